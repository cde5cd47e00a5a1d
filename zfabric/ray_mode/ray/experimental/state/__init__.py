"""Lists of what the cluster has (``zfabric.util.state``)."""

from zfabric.ray_mode.absent import submodules
from zfabric.util.state import *

__getattr__ = submodules(__name__)
