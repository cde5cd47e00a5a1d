"""Remote functions."""

from zfabric import RemoteFunction
from zfabric.ray_mode.absent import attributes

__getattr__ = attributes(__name__)
