"""Ray's utilities: zfabric's where it has them, else those of the user's Ray."""

from typing import Any

import zfabric.util as _util
from zfabric.ray_mode.absent import submodules
from zfabric.util import (
    ActorPool,
    as_completed,
    deregister_serializer,
    get_current_placement_group,
    get_node_ip_address,
    get_placement_group,
    inspect_serializability,
    list_named_actors,
    log_once,
    map_unordered,
    placement_group_table,
    register_serializer,
    remove_placement_group,
)

_load = submodules(__name__)


def _unchanged(*args: Any, **options: Any) -> Any:
    """Return the decorated object, or a decorator that does: these decorators declare how stable a name is."""
    if len(args) == 1 and not options and callable(args[0]):
        return args[0]
    return lambda named: named


PublicAPI = DeveloperAPI = Deprecated = _unchanged


def get_node_instance_id() -> str:
    """Empty: zfabric knows no cloud instances."""
    return ""


def disconnect() -> None:
    """Leave the cluster."""
    import zfabric

    zfabric.shutdown()


def __getattr__(name: str) -> Any:
    """Modules, on first use."""
    return _load(name)
