"""Lists of what the cluster has (``zfabric.util.state``)."""

from zfabric.as_ray.absent import submodules
from zfabric.util.state import *  # noqa: F403

__getattr__ = submodules(__name__)
