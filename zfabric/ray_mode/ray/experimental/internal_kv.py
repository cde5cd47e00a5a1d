"""The cluster's key-value store (``zfabric.util.kv``)."""

from zfabric import is_initialized as _internal_kv_initialized
from zfabric.ray_mode import control as _control
from zfabric.ray_mode.absent import Absent, attributes

_pin_runtime_env_uri = Absent("ray.experimental.internal_kv._pin_runtime_env_uri", "packages of a runtime_env are kept as long as needed")
_client = _control.ControlClient()


def _internal_kv_put(key: str | bytes, value: str | bytes, overwrite: bool = True, *, namespace: str | bytes | None = None) -> bool:
    """Store a value. Return whether the key was there already."""
    return _control.put(key, value, overwrite, namespace)


def _internal_kv_get(key: str | bytes, *, namespace: str | bytes | None = None) -> bytes | None:
    """The value of a key; None if there is none."""
    return _client.internal_kv_get(key, namespace)


def _internal_kv_exists(key: str | bytes, *, namespace: str | bytes | None = None) -> bool:
    """Whether there is a key."""
    return _client.internal_kv_exists(key, namespace)


def _internal_kv_del(key: str | bytes, *, del_by_prefix: bool = False, namespace: str | bytes | None = None) -> int:
    """Delete a key, or all keys with this prefix. Return how many there were."""
    return _client.internal_kv_del(key, del_by_prefix, namespace)


def _internal_kv_list(prefix: str | bytes, *, namespace: str | bytes | None = None) -> list[bytes]:
    """The keys that begin with ``prefix``."""
    return _client.internal_kv_keys(prefix, namespace)


def _internal_kv_reset() -> None:
    """Do nothing: there is no client to reset."""


def internal_kv_get_gcs_client() -> _control.ControlClient:
    """What these functions ask."""
    return _client


__getattr__ = attributes(__name__)
