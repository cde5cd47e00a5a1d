"""What a machine may ask its shell to do. Effects are per batch, never per row, and are performed in order."""

from typing import Any, NamedTuple, TypeAlias

from zfabric.protocol.ids import Address
from zfabric.protocol.messages import Message


class Send(NamedTuple):
    """Send ``message`` to ``to``. A machine that must wait for a commit sends after ``Committed``: a shell holds nothing back."""

    to: Address
    message: Message


class Store(NamedTuple):
    """Put and delete rows in the journal, in this turn's one transaction, which gets ``sequence``.

    ``puts`` are (table, key, value), ``deletes`` (table, key). With ``urgent``, something waits: commit now. Otherwise it may take up to 50
    ms. ``Committed`` answers each commit.
    """

    puts: tuple[tuple[str, bytes, bytes], ...]
    deletes: tuple[tuple[str, bytes], ...]
    sequence: int
    urgent: bool


class SpawnWorker(NamedTuple):
    """Start a worker process for ``job`` (empty: for any); it registers under the name ``token``.

    ``environment`` are extra variables, ``directory`` is the working directory (empty: the cluster's own), ``paths`` are prepended to
    ``sys.path``. A variable repeats the latter two, if they are packages, which the worker unpacks before its first task.
    """

    token: bytes
    job: bytes
    environment: tuple[tuple[str, str], ...]
    directory: str
    paths: tuple[str, ...]
    threads: int


class KillProcess(NamedTuple):
    """Kill this pid (SIGKILL), with its whole process group. ``reason`` is for people.

    With ``executing``, only if the process runs that task, by its slot, even if the worker does not answer.
    """

    pid: int
    reason: str
    executing: bytes = b""


class WatchProcess(NamedTuple):
    """Report (``ProcessDied``) when this process, not our child, has died. ``started`` guards against pid reuse."""

    pid: int
    started: int


class MakeReady(NamedTuple):
    """Allocate memory for ``size`` bytes of the arena at ``offset``; ``ExtentReady`` answers."""

    offset: int
    size: int


class Punch(NamedTuple):
    """Return ``size`` bytes of the arena at ``offset`` to the system."""

    offset: int
    size: int


class Spill(NamedTuple):
    """Copy an object to the file of this number; ``Spilled`` answers when the bytes are there.

    They are at ``offset`` of the arena, or are ``value`` (an inline value, ``offset`` 0).
    """

    object_id: bytes
    file: int
    offset: int
    size: int
    value: bytes


class Unspill(NamedTuple):
    """Copy a spilled object back into the arena at ``offset``; ``Restored`` answers."""

    object_id: bytes
    file: int
    offset: int
    size: int


class CheckFile(NamedTuple):
    """Compare a spilled object's file with its checksum; ``Restored`` answers. Readers then map the file."""

    object_id: bytes
    file: int
    size: int


class MakeFile(NamedTuple):
    """Make a file for an object of ``size`` bytes, with disk space behind all of it; ``FileReady`` answers."""

    file: int
    size: int


class Unlink(NamedTuple):
    """Delete files of spilled objects, finished or not. Who has one mapped may go on reading it."""

    files: tuple[int, ...]


class WriteValue(NamedTuple):
    """Write an inline value as a sealed object with its payload at ``offset`` of the arena, before any later effect."""

    offset: int
    object_id: bytes
    value: bytes


class ReadValue(NamedTuple):
    """Read a value that is pinned at ``offset`` (negative: a file); ``ValueRead`` answers to the local scheduler."""

    object_id: bytes
    offset: int
    size: int


class WriteHeader(NamedTuple):
    """Add the object at ``offset`` to the arena's index (``SEALED``), or remove it and void its header (``FREED``).

    Void, it shows a process that is copying the object that the copy may be torn. A restarted daemon finds the objects of the index
    (``zfabric.adapters.arena``). A file that a process has written (``offset`` is negative) gets the name under which it is found.
    """

    offset: int
    state: int


class Clear(NamedTuple):
    """Fill this room with zeros. A dead process may have sent others to values there of which the store does not know."""

    offset: int
    size: int


WRITING, SEALED, FREED = 0, 1, 2
"""States of an object's header."""


class ConnectNodes(NamedTuple):
    """Connect to these nodes, and close all other connections. Fields as in ``NodeTable``, with the own node's row.

    The shell retains it for the node's next daemon.
    """

    version: int
    rows: tuple[tuple[Any, ...], ...]
    head: bytes


class Silence(NamedTuple):
    """Send nothing to other nodes but requests for a lease: this node's lease is nearly over."""

    silent: bool


class Freeze(NamedTuple):
    """Stop all workers of the node, or let them run. The cluster may have declared the node dead and run their tasks elsewhere."""

    frozen: bool


class RecordLease(NamedTuple):
    """Retain for the node's next daemon when the lease ends, in seconds on the clock of leases."""

    until: float


class EndNode(NamedTuple):
    """End this node: its supervisor kills all its processes. ``reason`` is for people; ``DRAINED`` if it was drained."""

    reason: str


DRAINED = "it was drained"


class StartAgent(NamedTuple):
    """Start the node's transfer agent, unless it runs: the cluster has several nodes."""


class SendChunk(NamedTuple):
    """Send a reader ``Chunk(token, position, size)`` and those bytes of the object whose payload is at ``offset``.

    ``ChunkSent`` answers once they may change.
    """

    reader: Address
    token: int
    object_id: bytes
    offset: int
    position: int
    size: int


class WriteChunk(NamedTuple):
    """Write the bytes of a ``Chunk(token, position, size)`` of ``source`` in this turn, to ``position`` of the payload at ``offset``."""

    source: Address
    token: int
    object_id: bytes
    offset: int
    position: int
    size: int


class SealValue(NamedTuple):
    """Seal the object whose payload, at ``offset``, has been written; ``ValueSealed`` answers.

    If ``size`` is negative, the write is abandoned, without an answer.
    """

    object_id: bytes
    offset: int
    size: int


class Log(NamedTuple):
    """Write one line to the component's log. ``level`` is "info", "warning" or "error"."""

    level: str
    text: str


Effect: TypeAlias = (
    Send
    | Store
    | SpawnWorker
    | KillProcess
    | WatchProcess
    | MakeReady
    | Punch
    | Spill
    | Unspill
    | CheckFile
    | MakeFile
    | Unlink
    | WriteValue
    | ReadValue
    | WriteHeader
    | Clear
    | StartAgent
    | SendChunk
    | WriteChunk
    | SealValue
    | ConnectNodes
    | Silence
    | Freeze
    | RecordLease
    | EndNode
    | Log
)
