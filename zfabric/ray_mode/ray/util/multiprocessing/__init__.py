"""``zfabric.util.multiprocessing``, under Ray's name."""

from zfabric.ray_mode.absent import submodules
from zfabric.util.multiprocessing import *

__getattr__ = submodules(__name__)
