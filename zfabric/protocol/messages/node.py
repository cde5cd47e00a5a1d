"""The shell of a node."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Rows


class WorkerSpawned(NamedTuple):
    """shell -> local scheduler. The worker with this token is process ``pid`` (0: it could not be started, ``error`` says why)."""

    token: bytes
    pid: int
    error: str


class ProcessDied(NamedTuple):
    """shell -> local scheduler. The process is proved dead. ``signal`` is 0 for an exit; ``peak`` is memory in bytes; ``stderr`` its last
    lines.

    ``executing`` is the task that was on top of the worker's stack, read from its slot after its death (empty: none). ``ended`` comes
    from the slot, too: rows ``(actor_id, count)``, how many calls had ended of an actor whose calls are not logged (``CallCounts``).
    """

    pid: int
    exit_code: int
    signal: int
    peak: int
    stderr: str
    executing: bytes = b""
    ended: Rows = ()


class ProcessTable(NamedTuple):
    """shell -> local scheduler, once after a daemon's restart. The supervisor's living workers: rows ``(token, pid)``.

    ``ended`` is as in ``ProcessDied``, for all dead workers; the daemon before this one may have received some of it.
    """

    workers: Rows
    ended: Rows = ()


class ValueRead(NamedTuple):
    """shell -> local scheduler. A value that ``ReadValue`` asked for; ``error`` says why it could not be read."""

    object_id: bytes
    value: bytes
    error: str


class MemoryPressure(NamedTuple):
    """shell -> local scheduler. The node is short of memory: ``usage`` rows are ``(pid, resident bytes)``. One process must be killed."""

    available: int
    limit: int
    usage: Rows
