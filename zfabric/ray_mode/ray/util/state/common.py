"""The rows of those lists."""

from zfabric.ray_mode.absent import attributes
from zfabric.util.state import StateRow

ActorState = TaskState = NodeState = JobState = ObjectState = WorkerState = PlacementGroupState = StateRow
DEFAULT_LIMIT = 100
RAY_MAX_LIMIT_FROM_API_SERVER = 10_000
RAY_MAX_LIMIT_FROM_DATA_SOURCE = 10_000

__getattr__ = attributes(__name__)
