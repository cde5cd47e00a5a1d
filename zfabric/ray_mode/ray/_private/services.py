"""Where this node is."""

from typing import Any

from zfabric import is_initialized
from zfabric.api.cluster import node_ip_address as _address
from zfabric.ray_mode.absent import Absent, attributes

ProcessInfo = Absent("ray._private.services.ProcessInfo")
canonicalize_bootstrap_address_or_die = Absent("ray._private.services.canonicalize_bootstrap_address_or_die")
for _name in ("get_address", "get_node", "get_node_with_retry", "get_ray_jars_dir", "serialize_config", "start_ray_client_server"):
    globals()[_name] = Absent(f"ray._private.services.{_name}")


def get_node_ip_address(address: str | None = None, **ignored: Any) -> str:
    """The address at which others reach this node."""
    return _address()


def remaining_processes_alive() -> bool:
    """Whether this node answers. Its supervisor restarts what ends."""
    return is_initialized() and bool(_address())


def get_node_instance_id() -> str:
    """Empty: zfabric knows no cloud instances."""
    return ""


__getattr__ = attributes(__name__)
