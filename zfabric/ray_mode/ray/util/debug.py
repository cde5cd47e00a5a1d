"""What warns once."""

from zfabric.ray_mode.absent import Absent, attributes
from zfabric.util import iteration, log_once

Suspect = Absent("ray.util.debug.Suspect")
_test_some_code_for_memory_leaks = Absent("ray.util.debug._test_some_code_for_memory_leaks")


def reset_log_once(key: str | None = None) -> None:
    """Let ``log_once`` return True again for ``key``; None: for all."""
    if key is None:
        iteration._logged.clear()
    else:
        iteration._logged.discard(key)


def disable_log_once_globally() -> None:
    """Do nothing: each message is logged once."""


def enable_periodic_logging() -> None:
    """Do nothing: each message is logged once."""


__getattr__ = attributes(__name__)
