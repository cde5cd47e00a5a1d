"""The shell of a node."""

from typing import NamedTuple

from zfabric.protocol.messages.rows import Rows


class WorkerSpawned(NamedTuple):
    """shell -> local scheduler. The worker with this token is process ``pid`` (0: it could not be started, for the reason ``error``)."""

    token: bytes
    pid: int
    error: str


class ProcessDied(NamedTuple):
    """shell -> local scheduler. The process is dead.

    ``signal`` is 0 for an exit, ``peak`` its memory in bytes, ``stderr`` its last lines. From its slot come ``executing``, the task on top
    of the worker's stack, or empty, and ``ended``, rows ``(actor_id, ended calls)`` of actors without a log (``CallCounts``).
    """

    pid: int
    exit_code: int
    signal: int
    peak: int
    stderr: str
    executing: bytes = b""
    ended: Rows = ()


class ProcessTable(NamedTuple):
    """shell -> local scheduler. Once after a daemon's restart: the supervisor's living workers, rows ``(token, pid)``.

    ``ended`` is as in ``ProcessDied``, for all dead workers, those that the former daemon received included.
    """

    workers: Rows
    ended: Rows = ()


class ValueRead(NamedTuple):
    """shell -> local scheduler. The value that ``ReadValue`` requested, or the ``error`` of the attempt to read it."""

    object_id: bytes
    value: bytes
    error: str


class MemoryPressure(NamedTuple):
    """shell -> local scheduler. The node is short of memory: one process must be killed. ``usage`` rows are ``(pid, resident bytes)``."""

    available: int
    limit: int
    usage: Rows
