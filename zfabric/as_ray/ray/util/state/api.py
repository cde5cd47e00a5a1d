"""Lists of what the cluster has (``zfabric.util.state``)."""

from zfabric.as_ray.absent import attributes
from zfabric.util.state import *  # noqa: F403

__getattr__ = attributes(__name__)
