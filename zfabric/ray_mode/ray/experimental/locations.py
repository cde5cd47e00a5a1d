"""Where values are."""

from ray.experimental import get_local_object_locations, get_object_locations  # type: ignore[import-not-found, unused-ignore]

from zfabric.ray_mode.absent import attributes

__getattr__ = attributes(__name__)
