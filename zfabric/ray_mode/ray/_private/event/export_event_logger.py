"""Ray's export of events to files: off, as in Ray by default."""

from enum import Enum
from typing import Any

from zfabric.ray_mode.absent import Absent, attributes


class EventLogType(Enum):
    """The kinds of events."""

    TRAIN_STATE = "EXPORT_TRAIN_STATE"
    DATASET_METADATA = "EXPORT_DATASET_METADATA"
    DATASET_OPERATOR_EVENT = "EXPORT_DATASET_OPERATOR_EVENT"
    DATASET_OPERATOR_SCHEMA = "EXPORT_DATASET_OPERATOR_SCHEMA"
    SUBMISSION_JOB = "EXPORT_SUBMISSION_JOB"


def check_export_api_enabled(source: Any) -> bool:
    """False: nothing is exported."""
    return False


get_export_event_logger = Absent("ray._private.event.export_event_logger.get_export_event_logger", "nothing is exported")

__getattr__ = attributes(__name__)
