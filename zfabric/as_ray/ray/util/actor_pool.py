"""``zfabric.util.actor_pool``, under Ray's name."""

from zfabric.as_ray.absent import attributes
from zfabric.util.actor_pool import *  # noqa: F403

__getattr__ = attributes(__name__)
