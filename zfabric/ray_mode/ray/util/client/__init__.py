"""Ray's client for programs outside of the cluster: a program of zfabric runs on one of its machines."""

from zfabric.ray_mode.absent import Absent, attributes


class _Client:
    """Never connected."""

    def is_connected(self) -> bool:
        """False."""
        return False


ray = _Client()
RayAPIStub = Absent("ray.util.client.RayAPIStub", "a program joins a cluster by ray.init(address), from one of its machines")

__getattr__ = attributes(__name__)
