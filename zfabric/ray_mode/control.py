"""What Ray's libraries query of the cluster, in Ray's forms: its control service (the key-value store, and the nodes) and its ``state``."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import zfabric
from zfabric.api.cluster import nodes
from zfabric.api.lifecycle import connected
from zfabric.ray_mode.absent import Incomplete
from zfabric.ray_mode.ids import NodeID
from zfabric.util import kv, placement_group_table

Text = bytes | str
_seen: dict[str, dict[str, Any]] = {}
"""Each node as last seen here, since the cluster has only the id of a dead node."""


class ControlClient(Incomplete):
    """``ray._raylet.GcsClient``."""

    STANDS_FOR = "ray._raylet.GcsClient"

    def __init__(self, address: str | None = None, *args: Any, **options: Any) -> None:
        self.address = address

    def internal_kv_get(self, key: Text, namespace: Text | None = None, timeout: float | None = None) -> bytes | None:
        """Return a key's value, or None."""
        return kv.get(key, namespace=_text(namespace))

    def internal_kv_put(
        self, key: Text, value: Text, overwrite: bool = False, namespace: Text | None = None, timeout: float | None = None
    ) -> int:
        """Store a value. Return 1 if the key is new, else 0."""
        return int(not put(key, value, overwrite, namespace))

    def internal_kv_del(self, key: Text, del_by_prefix: bool = False, namespace: Text | None = None, timeout: float | None = None) -> int:
        """Delete a key, or all keys with this prefix. Return how many there were."""
        return kv.delete(key, namespace=_text(namespace), prefix=del_by_prefix)

    def internal_kv_exists(self, key: Text, namespace: Text | None = None, timeout: float | None = None) -> bool:
        """Whether there is a key."""
        return kv.exists(key, namespace=_text(namespace))

    def internal_kv_keys(self, prefix: Text, namespace: Text | None = None, timeout: float | None = None) -> list[bytes]:
        """The keys that begin with ``prefix``."""
        return kv.list(prefix, namespace=_text(namespace))

    def get_all_node_info(self, *args: Any, **options: Any) -> dict[NodeID, Any]:
        """The living nodes, by id."""
        return {
            NodeID.from_hex(node["NodeID"]): SimpleNamespace(
                node_id=bytes.fromhex(node["NodeID"]),
                node_name=node["NodeName"],
                node_manager_address=node["NodeManagerAddress"],
                node_manager_port=node["NodeManagerPort"],
                instance_id="",
                state=0,  # ALIVE
                labels=node["Labels"],
                resources_total=node["Resources"],
            )
            for node in nodes()
        }

    def get_all_resource_usage(self, timeout: float | None = None) -> Any:
        """What each living node has, and what is free."""
        totals, free = totals_by_node(), available_by_node()
        batch = [
            SimpleNamespace(node_id=bytes.fromhex(node), resources_total=amounts, resources_available=free.get(node, {}))
            for node, amounts in totals.items()
        ]
        return SimpleNamespace(resource_usage_data=SimpleNamespace(batch=batch))

    def check_alive(self, node_ids: list[bytes], timeout: float | None = None) -> list[bool]:
        """Whether each of these nodes lives."""
        living = {node["NodeID"] for node in nodes()}
        return [each.hex() in living for each in node_ids]

    def get_draining_nodes(self, *args: Any, **options: Any) -> dict[NodeID, int]:
        """Nodes about to end, with deadlines: none, since zfabric moves what runs there."""
        return {}


class ErrorSubscriber:
    """``ray._raylet.GcsErrorSubscriber``. Nothing arrives: zfabric shows or raises errors itself."""

    def __init__(self, worker_id: bytes | None = None, address: str | None = None) -> None:
        self._closed = threading.Event()

    def subscribe(self) -> None:
        """Do nothing."""

    def poll(self, timeout: float | None = None) -> tuple[None, None]:
        """Wait ``timeout`` seconds, or until ``close``. Return (no job, no error)."""
        self._closed.wait(timeout)
        return None, None

    def close(self) -> None:
        """End ``poll``."""
        self._closed.set()


def put(key: Text, value: Text, overwrite: bool, namespace: Text | None) -> bool:
    """Store a value that outlives the job, as Ray's does. Return whether the key existed."""
    data = value.encode() if isinstance(value, str) else value
    return kv.store(key, data, _text(namespace), overwrite, keep=True).existed


def _text(namespace: Text | None) -> str:
    return namespace.decode() if isinstance(namespace, bytes) else namespace or ""


# --- ``state``: resources and nodes ---------------------------------------------------------------------------------------------------


def all_nodes() -> list[dict[str, Any]]:
    """The living nodes, as ``zfabric.nodes`` lists them, then those that died or left, without resources."""
    living = [{**node, "Resources": _without_nothing(node["Resources"])} for node in nodes()]
    _seen.update({node["NodeID"]: node for node in living})
    dead = [each for each in connected().query("dead nodes") if each not in {node["NodeID"] for node in living}]
    nothing = {"Alive": False, "alive": False, "Resources": {}}
    return [*living, *({**_seen.get(each, {"NodeID": each, "Labels": {}}), **nothing} for each in dead)]


def cluster_resources() -> dict[str, float]:
    """The resources of all nodes together, without zeros, as in Ray."""
    return _without_nothing(zfabric.cluster_resources())


def _without_nothing(amounts: dict[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in amounts.items() if amount}


def totals_by_node() -> dict[str, dict[str, float]]:
    """The resources of each living node, by id."""
    return {node["NodeID"]: dict(node["Resources"]) for node in nodes()}


def available_by_node() -> dict[str, dict[str, float]]:
    """What is free on each living node, by id."""
    return {str(status["node"]): dict(status["available"]) for status in connected().query("statuses")}


class GlobalState:
    """``ray._private.state.state``."""

    def placement_group_table(self, placement_group_id: Any) -> dict[str, Any]:
        """Describe a placement group. Raises KeyError for an unknown id."""
        name = placement_group_id.hex() if isinstance(placement_group_id, bytes) else str(placement_group_id)
        found: dict[str, Any] = placement_group_table()[name]
        return found

    def node_table(self) -> list[dict[str, Any]]:
        """All nodes."""
        return all_nodes()

    def get_draining_nodes(self) -> dict[str, int]:
        """As ``ControlClient.get_draining_nodes``."""
        return {}

    def get_cluster_config(self) -> None:
        """None: no autoscaler is attached."""

    def get_max_resources_from_cluster_config(self) -> None:
        """As ``get_cluster_config``."""
