"""``zfabric.util.queue``, under Ray's name."""

from zfabric.ray_mode.absent import attributes
from zfabric.util.queue import *

__getattr__ = attributes(__name__)
