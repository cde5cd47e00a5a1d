"""Errors of those lists."""

from zfabric.exceptions import FabricError


class RayStateApiException(FabricError):
    """A list cannot be made."""


class DataSourceUnavailable(FabricError):
    """A list cannot be made."""


class ServerUnavailable(FabricError):
    """A list cannot be made."""
