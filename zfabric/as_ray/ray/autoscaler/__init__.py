"""Ray's autoscaler."""

from zfabric.as_ray.absent import submodules

__getattr__ = submodules(__name__)
