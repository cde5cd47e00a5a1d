"""``zfabric.util.multiprocessing``, under Ray's name."""

from zfabric.as_ray.absent import attributes
from zfabric.util.multiprocessing import *  # noqa: F403

__getattr__ = attributes(__name__)
