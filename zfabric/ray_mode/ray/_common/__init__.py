"""What Ray's parts share, from the user's Ray."""

from zfabric.ray_mode.absent import submodules

__getattr__ = submodules(__name__)
