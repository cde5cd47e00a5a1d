"""Ray's internal modules: zfabric's stand-ins, else the user's Ray."""

from zfabric.ray_mode.absent import submodules

__getattr__ = submodules(__name__)
