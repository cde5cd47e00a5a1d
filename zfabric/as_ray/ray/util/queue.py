"""``zfabric.util.queue``, under Ray's name."""

from zfabric.as_ray.absent import attributes
from zfabric.util.queue import *  # noqa: F403

__getattr__ = attributes(__name__)
