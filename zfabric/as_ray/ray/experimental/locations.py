"""Where values are."""

from ray.experimental import get_local_object_locations, get_object_locations  # type: ignore[import-not-found, unused-ignore]

from zfabric.as_ray.absent import attributes

__getattr__ = attributes(__name__)
