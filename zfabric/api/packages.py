"""Sends the local paths of a ``runtime_env`` to the cluster: each is packed and stored once in a program, when it is first used.

The archive is a value in the object store, which every node with a task of that environment fetches once. The program retains it.
Calls name it as a ref inside their arguments (``contains``), so that it can be fetched wherever they run.
"""

from __future__ import annotations

import threading
from typing import Any

from zfabric.adapters.serialization import serialize
from zfabric.api.environments import RuntimeEnv
from zfabric.exceptions import OptionError
from zfabric.protocol.options import NO_ENVIRONMENT, PACKAGE_SCHEME, Environment, option
from zfabric.runtime import interface
from zfabric.runtime.interface import ClientInterface


class _Sent:
    """What this program has sent to a cluster: URIs by path, patterns left out, and whether it is a module."""

    def __init__(self, client: ClientInterface) -> None:
        self.client = client
        self.uris: dict[tuple[str, tuple[str, ...], bool], str] = {}
        self.objects: dict[str, bytes] = {}
        """Object ids by hash."""


_lock = threading.Lock()
_sent: _Sent | None = None


def sent(environment: RuntimeEnv) -> RuntimeEnv:
    """Return an environment with its local paths replaced by what was sent. Raises RuntimeEnvSetupError if something cannot be sent."""
    if not environment.directory and not environment.modules:
        return environment
    excludes = environment.excludes
    directory = environment.directory and _uri(environment.directory, excludes, False)
    return environment._replace(directory=directory, modules=tuple(_uri(path, excludes, True) for path in environment.modules), excludes=())


def _uri(path: str, excludes: tuple[str, ...], is_module: bool) -> str:
    global _sent
    if path.startswith(PACKAGE_SCHEME):
        return path
    client = interface.current()
    if client is None:
        raise OptionError(f"{path!r} cannot be sent before there is a cluster; call zf.init()")
    with _lock:
        if _sent is None or _sent.client is not client:
            _sent = _Sent(client)
        key = path, excludes, is_module
        if key not in _sent.uris:
            from zfabric.adapters.packages import pack  # Only programs that send something need zipfile.

            package = pack(path, client.config.package_bytes, excludes, is_module)
            if package.digest not in _sent.objects:
                _sent.objects[package.digest] = client.put(serialize(package.archive), False)
            _sent.uris[key] = f"{PACKAGE_SCHEME}{_sent.objects[package.digest].hex()}/{package.digest}/{package.entry}"
        return _sent.uris[key]


def _packages_in(environment: Environment) -> tuple[bytes, ...]:
    _, directory, paths = environment
    return tuple(dict.fromkeys(_object_of(path) for path in (directory, *paths) if path.startswith(PACKAGE_SCHEME)))


def _object_of(uri: str) -> bytes:
    return bytes.fromhex(uri.removeprefix(PACKAGE_SCHEME).partition("/")[0])


def packages_of(options: tuple[tuple[str, Any], ...]) -> tuple[bytes, ...]:
    """Ids of the archives that the environment in encoded options names."""
    return _packages_in(option(options, "env", NO_ENVIRONMENT))
