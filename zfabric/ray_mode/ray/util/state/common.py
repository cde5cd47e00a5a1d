"""The rows of those lists."""

from zfabric.ray_mode.absent import Absent, attributes
from zfabric.util.state import StateRow

ActorState = TaskState = NodeState = JobState = ObjectState = WorkerState = PlacementGroupState = StateRow
DEFAULT_LIMIT = 100
DEFAULT_RPC_TIMEOUT = 30
DEFAULT_LOG_LIMIT = 1000
RAY_MAX_LIMIT_FROM_API_SERVER = 10_000
RAY_MAX_LIMIT_FROM_DATA_SOURCE = 10_000
for _name in (
    "ActorSummaries", "ClusterEventState", "GetApiOptions", "GetLogOptions", "Humanify", "ListApiOptions", "ListApiResponse",
    "NestedTaskSummary", "ObjectSummaries", "PredicateType", "RuntimeEnvState", "StateResource", "StateSchema", "StateSummary",
    "SummaryApiOptions", "SummaryApiResponse", "SummaryResource", "SupportedFilterType", "TaskSummaries", "filter_fields",
    "protobuf_message_to_dict", "protobuf_to_task_state_dict", "state_column", "dict_to_state",
):  # fmt: skip
    globals()[_name] = Absent(f"ray.util.state.common.{_name}", "ray.util.state lists what there is")

__getattr__ = attributes(__name__)
