"""The context of the running code."""

from zfabric import get_runtime_context
from zfabric.api.context import RuntimeContext
from zfabric.ray_mode.absent import attributes

__getattr__ = attributes(__name__)
