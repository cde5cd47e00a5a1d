"""``zfabric.util.actor_pool``, under Ray's name."""

from zfabric.ray_mode.absent import attributes
from zfabric.util.actor_pool import *

__getattr__ = attributes(__name__)
