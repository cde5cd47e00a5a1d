"""``zfabric.util.multiprocessing``, under Ray's name."""

from zfabric.as_ray.absent import submodules
from zfabric.util.multiprocessing import *  # noqa: F403

__getattr__ = submodules(__name__)
