"""The sent part of a worker's environment, fetched and unpacked before its first task.

A node unpacks each archive once. Workers hold what they use, and the archives' refs for what they submit.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence

from zfabric.adapters import cached_directories, serialization, task_errors
from zfabric.adapters.serialization import Outcome
from zfabric.exceptions import RuntimeEnvSetupError
from zfabric.protocol.messages import ERROR, OK
from zfabric.protocol.options import PACKAGE_SCHEME
from zfabric.runtime import interface
from zfabric.runtime.worker_connection import WorkerConnection

Get = Callable[[Sequence[bytes], float | None], list[bytes | Outcome]]


class SentPackages:
    """The sent directory and modules of this worker's environment."""

    def __init__(self, connection: WorkerConnection, get: Get) -> None:
        self.paths: list[str] = []
        self._connection = connection
        self._get = get
        self._root = f"{connection.session.directory}/environments"
        self._locks: list[int] = []
        _, self._directory, self._modules, _ = json.loads(interface.environment or '[[], "", [], []]')
        self._entered = not (self._directory or self._modules)

    def enter(self) -> None:
        """Enter them once: change the directory, extend ``sys.path``. Raises RuntimeEnvSetupError."""
        if self._entered:
            return
        paths = [self._unpacked(uri) for uri in (*self._modules, *[self._directory] * bool(self._directory))]
        if self._directory:
            os.chdir(paths[-1])
        sys.path[:0] = paths
        self.paths, self._entered = paths, True

    def _unpacked(self, uri: str) -> str:
        object_id, digest, entry = uri.removeprefix(PACKAGE_SCHEME).split("/", 2)
        identifier, archive = bytes.fromhex(object_id), b""
        with self._connection.lock:
            self._connection.machine.references.add(identifier)

        def make(path: str) -> None:
            if not archive:
                raise _NotFetched
            from zfabric.adapters.packages import unpack  # Most workers need no zipfile.

            unpack(archive, path)

        while True:
            try:
                found = cached_directories.use(self._root, digest, make, self._connection.config.environments_bytes)
            except _NotFetched:
                archive = self._fetched(identifier)  # Without the lock: a task on top may need the same archive.
            except OSError as error:
                raise RuntimeEnvSetupError(f"what was sent for a runtime_env cannot be unpacked in {self._root}: {error}") from None
            else:
                self._locks.append(found.lock)
                return f"{found.path}/{entry}".rstrip("/")

    def _fetched(self, identifier: bytes) -> bytes:
        outcome = self._get((identifier,), None)[0]
        if isinstance(outcome, bytes):
            return bytes(serialization.deserialize(outcome))
        status, data, release = outcome
        if status != OK:
            error = task_errors.load_error(data) if status == ERROR else task_errors.load_failure(data)
            raise RuntimeEnvSetupError(f"what was sent for a runtime_env is lost: {error}")
        return bytes(serialization.deserialize(data, release))


class _NotFetched(Exception):
    """The archive must be fetched first."""
