"""Lists of what the cluster has (``zfabric.util.state``)."""

from zfabric.ray_mode.absent import attributes
from zfabric.util.state import *

__getattr__ = attributes(__name__)
