"""The context of the running code."""

from zfabric import get_runtime_context
from zfabric.api.context import RuntimeContext
from zfabric.as_ray.absent import attributes

__getattr__ = attributes(__name__)
