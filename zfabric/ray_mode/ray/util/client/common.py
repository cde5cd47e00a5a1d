"""Types of Ray's client: nothing is an instance of them."""

from zfabric.ray_mode.absent import attributes


class ClientObjectRef:
    """A ref of Ray's client."""


class ClientActorHandle:
    """A handle of Ray's client."""


INT32_MAX = 2**31 - 1

__getattr__ = attributes(__name__)
