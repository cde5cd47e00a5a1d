"""What a machine may ask its shell to do. Effects are per batch, never per row, and are performed in order."""

from typing import Any, NamedTuple, TypeAlias

from zfabric.protocol.ids import Address
from zfabric.protocol.messages import Message


class Send(NamedTuple):
    """Send ``message`` to ``to``. A machine that waits for a commit asks for it after ``Committed``: a shell holds nothing back."""

    to: Address
    message: Message


class Store(NamedTuple):
    """Put and delete rows in the journal, as part of this turn's one transaction, which gets ``sequence``.

    ``puts`` are (table, key, value) and ``deletes`` (table, key). ``urgent`` asks for the commit now, since something
    waits for it; otherwise it may come up to 50 ms later. The shell answers every commit with ``Committed``.
    """

    puts: tuple[tuple[str, bytes, bytes], ...]
    deletes: tuple[tuple[str, bytes], ...]
    sequence: int
    urgent: bool


class SpawnWorker(NamedTuple):
    """Start a worker process for ``job`` (empty: for any); it registers under the name ``token``.

    ``environment`` are extra variables, ``directory`` is the working directory (empty: the cluster's own), and ``paths`` are prepended to
    its ``sys.path``. A variable repeats the latter two, which are packages: the worker unpacks them itself before its first task.
    """

    token: bytes
    job: bytes
    environment: tuple[tuple[str, str], ...]
    directory: str
    paths: tuple[str, ...]
    threads: int


class KillProcess(NamedTuple):
    """Kill the process with this pid (SIGKILL), and its whole process group. ``reason`` is for people.

    With ``executing``, only if the process runs that task: its slot names the task even if the worker does not answer.
    """

    pid: int
    reason: str
    executing: bytes = b""


class WatchProcess(NamedTuple):
    """Report (``ProcessDied``) when this process, not a child of ours, is gone. ``started`` guards against pid reuse."""

    pid: int
    started: int


class MakeReady(NamedTuple):
    """Allocate memory for ``size`` bytes of the arena at ``offset``; the shell answers ``ExtentReady``."""

    offset: int
    size: int


class Punch(NamedTuple):
    """Return ``size`` bytes of the arena at ``offset`` to the system."""

    offset: int
    size: int


class Spill(NamedTuple):
    """Copy an object to the file of this number; the shell answers ``Spilled`` when the bytes are there.

    They lie at ``offset`` of the arena, or are ``value`` (an inline value, ``offset`` 0).
    """

    object_id: bytes
    file: int
    offset: int
    size: int
    value: bytes


class Unspill(NamedTuple):
    """Copy a spilled object back into the arena at ``offset``; the shell answers ``Restored``."""

    object_id: bytes
    file: int
    offset: int
    size: int


class CheckFile(NamedTuple):
    """Read a spilled object's file and compare it with its checksum; the shell answers ``Restored``. Readers then map the file."""

    object_id: bytes
    file: int
    size: int


class MakeFile(NamedTuple):
    """Make a file for an object of ``size`` bytes, with disk space behind all of it; the shell answers ``FileReady``."""

    file: int
    size: int


class Unlink(NamedTuple):
    """Delete files of spilled objects, finished or not. A process that has one mapped can go on reading it."""

    files: tuple[int, ...]


class WriteValue(NamedTuple):
    """Write an inline value as a sealed object whose payload is at ``offset`` of the arena, before any later effect is performed."""

    offset: int
    object_id: bytes
    value: bytes


class ReadValue(NamedTuple):
    """Read a value that is pinned at ``offset`` (a negative one names a file); the shell answers ``ValueRead`` to the local scheduler."""

    object_id: bytes
    offset: int
    size: int


class WriteHeader(NamedTuple):
    """Add the object whose payload is at ``offset`` to the arena's index (``state``: ``SEALED``), or remove it and void its header
    (``FREED``): a process that copies it just now then knows that the copy may be torn.

    A restarted daemon finds the objects of the index (``zfabric.adapters.arena``). A file that a process has written
    (``offset`` is negative) gets the name under which it is found.
    """

    offset: int
    state: int


class Clear(NamedTuple):
    """Fill this room with zeros. A dead process may have told others of values that it wrote there, and did not tell the store."""

    offset: int
    size: int


WRITING, SEALED, FREED = 0, 1, 2
"""States of an object's header."""


class ConnectNodes(NamedTuple):
    """Connect to these nodes, and close the connections to all others. Fields as in ``NodeTable``, the own node's row included.

    The shell retains it for the node's next daemon.
    """

    version: int
    rows: tuple[tuple[Any, ...], ...]
    head: bytes


class Silence(NamedTuple):
    """Send nothing to other nodes, save requests for a lease, as long as this holds: this node's lease is nearly over."""

    silent: bool


class Freeze(NamedTuple):
    """Stop all workers of the node as long as this holds: it may be dead for the cluster, whose other nodes then run what ran here."""

    frozen: bool


class RecordLease(NamedTuple):
    """Retain for the node's next daemon when the node's lease ends, in seconds on the clock of leases."""

    until: float


class EndNode(NamedTuple):
    """End this node: its supervisor kills all its processes. ``reason`` is for people; ``DRAINED`` is that of a node that was drained."""

    reason: str


DRAINED = "it was drained"


class StartAgent(NamedTuple):
    """Start the node's transfer agent, unless there is one: the cluster has several nodes."""


class SendChunk(NamedTuple):
    """Send a reader ``Chunk(token, position, size)`` and the bytes that lie at ``position`` of the object whose payload is at ``offset``.

    The shell answers ``ChunkSent`` once they may change.
    """

    reader: Address
    token: int
    object_id: bytes
    offset: int
    position: int
    size: int


class WriteChunk(NamedTuple):
    """Write the bytes that came with a ``Chunk(token, position, size)`` of ``source`` in this turn.

    They belong at ``position`` of the payload at ``offset``.
    """

    source: Address
    token: int
    object_id: bytes
    offset: int
    position: int
    size: int


class SealValue(NamedTuple):
    """Seal the object whose payload, at ``offset``, has been written; the shell answers ``ValueSealed``.

    If ``size`` is negative, nothing more is written there, and there is no answer.
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
