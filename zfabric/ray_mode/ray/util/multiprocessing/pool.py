"""``zfabric.util.multiprocessing``, under Ray's name."""

from zfabric.ray_mode.absent import attributes
from zfabric.util.multiprocessing import *

__getattr__ = attributes(__name__)
