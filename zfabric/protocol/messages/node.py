"""The shell of a node."""

from typing import NamedTuple

from zfabric.protocol.messages.rows import Rows


class WorkerSpawned(NamedTuple):
    """shell -> local scheduler. The worker with this token is process ``pid`` (0: it could not be started, ``error`` says why)."""

    token: bytes
    pid: int
    error: str


class ProcessDied(NamedTuple):
    """shell -> local scheduler. The process is dead.

    ``signal`` is 0 for an exit, ``peak`` its memory in bytes, ``stderr`` the last lines it wrote. ``executing`` and ``ended`` are read from
    its slot after its death. ``executing`` is the task on top of the worker's stack, or empty. ``ended`` has a row ``(actor_id, count)``
    for each actor whose calls are not logged: how many of its calls had ended (``CallCounts``).
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

    ``ended`` is as in ``ProcessDied``, for all dead workers: the daemon before this one may have received some of these rows.
    """

    workers: Rows
    ended: Rows = ()


class ValueRead(NamedTuple):
    """shell -> local scheduler. The value that ``ReadValue`` requested. ``error`` says why it could not be read."""

    object_id: bytes
    value: bytes
    error: str


class MemoryPressure(NamedTuple):
    """shell -> local scheduler. The node is short of memory: ``usage`` rows are ``(pid, resident bytes)``. One process must be killed."""

    available: int
    limit: int
    usage: Rows
