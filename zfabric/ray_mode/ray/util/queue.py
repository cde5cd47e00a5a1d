"""``zfabric.util.queue``, under Ray's name."""

from zfabric.ray_mode.absent import Absent, attributes
from zfabric.util.queue import Empty, Full, Queue

_QueueActor = Absent("ray.util.queue._QueueActor", "ray.util.queue.Queue is here")

__getattr__ = attributes(__name__)
