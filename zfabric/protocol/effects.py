"""What a machine may ask of its shell. Effects are per batch, never per row, and are performed in order."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from zfabric.protocol.ids import Address
from zfabric.protocol.messages import Message


class Send(NamedTuple):
    """Send ``message`` to ``to``. It leaves only once the journal has committed up to ``sequence`` (0: at once)."""

    to: Address
    message: Message
    sequence: int = 0


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

    ``environment`` are extra variables, ``directory`` the working directory (empty: the cluster's own), ``paths``
    what goes in front of its ``sys.path``.
    """

    token: bytes
    job: bytes
    environment: tuple[tuple[str, str], ...]
    directory: str
    paths: tuple[str, ...]
    threads: int


class KillProcess(NamedTuple):
    """Kill the process with this pid for good (SIGKILL), its whole process group with it. ``reason`` is for people.

    With ``executing``, only if that is the task that it runs: a worker that does not answer has it in its slot all the same.
    """

    pid: int
    reason: str
    executing: bytes = b""


class WatchProcess(NamedTuple):
    """Report (``ProcessDied``) when this process, not a child of ours, is gone. ``started`` guards against pid reuse."""

    pid: int
    started: int


class MakeReady(NamedTuple):
    """Have memory behind ``size`` bytes of the arena at ``offset``; the shell answers ``ExtentReady``."""

    offset: int
    size: int


class Punch(NamedTuple):
    """Give ``size`` bytes of the arena at ``offset`` back to the system."""

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
    """Read a spilled object's file and compare it with its checksum; the shell answers ``Restored``. It is read where it is then."""

    object_id: bytes
    file: int
    size: int


class MakeFile(NamedTuple):
    """Make a file for an object of ``size`` bytes, with the disk's room behind all of it; the shell answers ``FileReady``."""

    file: int
    size: int


class Unlink(NamedTuple):
    """Delete files of spilled objects, finished or not. Who has one mapped goes on reading it."""

    files: tuple[int, ...]


class WriteValue(NamedTuple):
    """Write an inline value as a sealed object whose payload is at ``offset`` of the arena, before anything after this is done."""

    offset: int
    object_id: bytes
    value: bytes


class WriteHeader(NamedTuple):
    """Take the object whose payload is at ``offset`` into the arena's index, or out of it (``state``: ``SEALED`` or ``FREED``).

    What is in the index is what a restarted daemon finds (``zfabric.adapters.arena``). A file that a process has written
    (``offset`` is negative) gets the name under which it is found.
    """

    offset: int
    state: int


WRITING, SEALED, FREED = 0, 1, 2
"""States of an object's header."""


class Say(NamedTuple):
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
    | WriteHeader
    | Say
)
