"""``zfabric.util.joblib``, under Ray's name."""

from zfabric.as_ray.absent import attributes
from zfabric.util.joblib import *  # noqa: F403

__getattr__ = attributes(__name__)
