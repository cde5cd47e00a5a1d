"""``zfabric.util.dask``, under Ray's name."""

from zfabric.ray_mode.absent import attributes
from zfabric.util.dask import *

__getattr__ = attributes(__name__)
