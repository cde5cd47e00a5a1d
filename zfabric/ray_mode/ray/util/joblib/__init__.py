"""``zfabric.util.joblib``, under Ray's name."""

from zfabric.ray_mode.absent import attributes
from zfabric.util.joblib import *

__getattr__ = attributes(__name__)
