"""Records of actors, and of the logs of their calls."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from zfabric.machines.common.tables import CHECKPOINT, LOG, part_key
from zfabric.machines.local_scheduler.records import BlockedTask, TaskRecord, WorkerRecord
from zfabric.protocol.messages import CREATING, KillActor, Row, StopDelegated


class ActorRecord:
    """An actor at its home, until no process can refer to it."""

    __slots__ = (
        "arguments",
        "ending",
        "executing",
        "failure",
        "killed",
        "lived_before",
        "lives_on",
        "name",
        "namespace",
        "retire_at",
        "returning",
        "state",
        "task",
        "unreferenced",
        "watchers",
        "worker",
    )

    def __init__(self, task: TaskRecord, namespace: str) -> None:
        self.task = task
        self.namespace = namespace
        self.name: str = task.option("name") or ""
        self.arguments: set[bytes] = set()
        self.state = CREATING
        self.worker: WorkerRecord | None = None
        self.lived_before = False
        self.failure = b""
        self.executing = b""
        """The call that ran when its last life ended."""
        self.lives_on = False
        """Whether that life's process lives, with other actors."""
        self.killed = ""
        """Why it ends for good, or empty."""
        self.ending: StopDelegated | None = None
        """The request to end this life, in case its node's daemon is restarted."""
        self.unreferenced = False
        self.retire_at: float | None = None
        self.returning = False
        """Whether another node may yet report it; callers are not notified meanwhile."""
        self.watchers: set[bytes] = set()

    @property
    def id(self) -> bytes:
        """The id of the task that makes it."""
        return self.task.id

    @property
    def restarts(self) -> int:
        """Restarts so far, in ``__init__`` or later; ``max_restarts`` limits them."""
        return self.task.rare.retries if self.task.rare is not None else 0

    @property
    def detached(self) -> bool:
        """Whether it lives without handles."""
        return bool(self.task.option("detached", False))

    @property
    def shared(self) -> bool:
        """Whether it shares its process."""
        return self.task.function.shared

    def wait(self) -> BlockedTask | None:
        """The call, or ``__init__``, that is known to wait."""
        worker = self.worker or self.task.worker
        if worker is None:
            return None
        if not worker.shared:
            return worker.blocked_tasks[-1] if worker.blocked_tasks and self.worker is not None else None
        row = worker.delays.get(self.id)
        if row is None or row is worker.running_call:
            return None
        _, call_id, wanted, callees, certain = row
        found = BlockedTask(call_id, wanted, False)
        found.actor, found.certain = self.id, certain
        found.callees = {identifier: actor_id for identifier, actor_id in zip(wanted, callees, strict=False) if any(actor_id)}
        return found

    @property
    def class_name(self) -> str:
        """Name of its class."""
        return self.task.function.name


class GuestRecord:
    """A life here of an actor of another home, while its process exists."""

    __slots__ = ("drained", "ending", "leaving", "task", "worker")

    def __init__(self, task: TaskRecord, worker: WorkerRecord) -> None:
        self.task = task
        self.worker = worker
        self.ending = ""
        """Why this node ends it for good, or empty."""
        self.leaving = False
        """Whether it is to end for a drain."""
        self.drained = False
        """Whether it has agreed."""

    @property
    def id(self) -> bytes:
        """The actor's id."""
        return self.task.id

    @property
    def home(self) -> bytes:
        """The node that decides on restarts."""
        return self.task.submitter

    @property
    def may_restart(self) -> bool:
        """Whether its home may restart it."""
        return bool(self.task.option("max_restarts", 0))

    @property
    def class_name(self) -> str:
        """Name of its class."""
        return self.task.function.name

    @property
    def name(self) -> str:
        """The actor's name, or empty."""
        return self.task.option("name") or ""


class RemoteActorRecord:
    """An actor of another home that processes here call."""

    __slots__ = ("asked", "attempt", "failure", "home", "id", "killed", "node", "row", "state", "watchers")

    def __init__(self, identifier: bytes, home: bytes) -> None:
        self.id = identifier
        self.home = home
        """Empty while unknown, as for a weak handle."""
        self.asked: set[bytes] = set()
        """Nodes that may yet be its home."""
        self.node = b""
        """Where it lives, perhaps here: calls are sent there."""
        self.state = CREATING
        self.attempt = 0
        self.failure = b""
        self.row: Row = ()
        """Its location for processes here; empty before the first report."""
        self.killed: KillActor | None = None
        """The request to end this life, in case the home's daemon is restarted."""
        self.watchers: set[bytes] = set()


class LogBlock(NamedTuple):
    """Rows up to call ``last``, or a checkpoint after it. Pins ``refs``."""

    last: int
    parts: int
    """Of a checkpoint; 0 for rows."""
    refs: tuple[bytes, ...]
    made: tuple[bytes, ...] = ()
    """Values that a replay makes again."""

    def keys(self, actor_id: bytes) -> tuple[tuple[str, bytes], ...]:
        """(table, key) of its rows in the control store."""
        if not self.parts:
            return ((LOG, actor_id + self.last.to_bytes(8, "big")),)
        return tuple((CHECKPOINT, part_key(actor_id, self.last, index)) for index in range(self.parts))


class RetainedBlocks(NamedTuple):
    """Blocks before the last checkpoint that made values still referred to, and the checkpoint before them."""

    base: LogBlock | None
    blocks: list[LogBlock]

    def all(self) -> list[LogBlock]:
        """The base and all blocks."""
        return self.blocks if self.base is None else [self.base, *self.blocks]


class Writing:
    """A log message that may not be committed."""

    __slots__ = ("attempt", "block", "committed", "number", "row", "writer")

    def __init__(self, writer: bytes, attempt: int, number: int, row: tuple[str, bytes, bytes], block: LogBlock | None) -> None:
        self.writer = writer
        """The process, or the node if that is another one."""
        self.attempt = attempt
        self.number = number
        self.row = row
        self.block = block
        """What this message completes; None for an earlier part of a checkpoint."""
        self.committed = False


class ActorLog:
    """The log of one actor."""

    __slots__ = (
        "actor_id",
        "adopted",
        "blocks",
        "checkpoint",
        "ended",
        "exact",
        "failed",
        "last",
        "lost",
        "past",
        "replayed",
        "retry_at",
        "stray",
        "to_replay",
        "trouble",
        "waits_for",
        "writing",
    )

    def __init__(self, actor_id: bytes) -> None:
        self.actor_id = actor_id
        self.blocks: deque[LogBlock] = deque()
        """What a replay would need, in order."""
        self.checkpoint: LogBlock | None = None
        self.past: list[RetainedBlocks] = []
        self.stray: list[LogBlock] = []
        """Checkpoints that lack parts."""
        self.last = 0
        self.writing: deque[Writing] = deque()
        self.failed: deque[Writing] = deque()
        """Those that the control store failed to write."""
        self.retry_at: float | None = None
        self.trouble = ""
        self.replayed = self.to_replay = 0
        self.ended = 0
        """Without a log: the last reported number of ended calls."""
        self.exact = False
        """Whether that is final, as left by a dead process."""
        self.waits_for = 0
        """Without a log: calls that run while a checkpoint is due."""
        self.lost = 0
        self.adopted = False
        """Whether an earlier scheduler may have counted more."""


def worker_of(record: ActorRecord) -> WorkerRecord | None:
    """Where an actor lives or is being made."""
    return record.worker or record.task.worker


def is_unlogged(record: ActorRecord) -> bool:
    """Whether an actor has checkpoints but no log."""
    return bool(record.task.option("unlogged", False))
