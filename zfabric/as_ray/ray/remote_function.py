"""Remote functions."""

from zfabric import RemoteFunction
from zfabric.as_ray.absent import attributes

__getattr__ = attributes(__name__)
