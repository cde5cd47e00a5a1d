"""What Ray's parts share, from the user's Ray."""

from zfabric.as_ray.absent import submodules

__getattr__ = submodules(__name__)
