"""Ray's inside: what zfabric stands in for, else what the user's Ray has."""

from zfabric.ray_mode.absent import submodules

__getattr__ = submodules(__name__)
