"""Ray's autoscaler."""

from zfabric.ray_mode.absent import submodules

__getattr__ = submodules(__name__)
