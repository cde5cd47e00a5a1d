"""``zfabric.util.dask``, under Ray's name."""

from zfabric.as_ray.absent import attributes
from zfabric.util.dask import *  # noqa: F403

__getattr__ = attributes(__name__)
