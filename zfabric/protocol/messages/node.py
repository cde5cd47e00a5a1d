"""The node's own shell."""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Rows


class WorkerSpawned(NamedTuple):
    """shell -> local scheduler. The worker with this token is process ``pid`` (0: it could not be started, ``error`` says why)."""

    token: bytes
    pid: int
    error: str


class ProcessDied(NamedTuple):
    """shell -> local scheduler. Proved dead. ``signal`` 0 for an exit; ``peak`` memory in bytes; ``stderr`` its last lines.

    ``executing`` is the task that was on top of the worker's stack, read from its slot after its death (empty: none); so are
    ``ended``, rows ``(actor_id, count)``: the calls that had ended of an actor whose calls are not logged (``CallCounts``).
    """

    pid: int
    exit_code: int
    signal: int
    peak: int
    stderr: str
    executing: bytes = b""
    ended: Rows = ()


class ProcessTable(NamedTuple):
    """shell -> local scheduler, once after a daemon's restart. Workers ``(token, pid)`` the supervisor still has.

    ``ended`` as in ``ProcessDied``, of all that are dead; the daemon before this one may have heard of some of them.
    """

    workers: Rows
    ended: Rows = ()


class MemoryPressure(NamedTuple):
    """shell -> local scheduler. The node is short of memory: ``usage`` rows are ``(pid, resident bytes)``; someone must go."""

    available: int
    limit: int
    usage: Rows
