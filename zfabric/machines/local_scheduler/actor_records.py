"""Records of actors: each actor, and the log of its calls."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from zfabric.machines.common.log_format import CHECKPOINT, LOG, part_key
from zfabric.machines.local_scheduler.records import BlockedTask, TaskRecord, WorkerRecord
from zfabric.protocol.messages import CREATING, KillActor, RetireActor, Row, StopDelegated


class ActorRecord:
    """One actor, from its creation until no process can refer to it."""

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
        """Objects that its row names, as far as they are retained for restarts."""
        self.state = CREATING
        self.worker: WorkerRecord | None = None
        self.lived_before = False
        """Whether it has had an earlier life."""
        self.failure = b""
        self.executing = b""
        """The call that was running when its last life ended."""
        self.lives_on = False
        """Whether the process of that life lives on, with other actors."""
        self.killed = ""
        """Why it is to end for good; empty if it is not."""
        self.ending: RetireActor | StopDelegated | None = None
        """The request to end its present life that was sent to the node where it lives: a restarted daemon may not have received it."""
        self.unreferenced = False
        """Whether its last handle was dropped."""
        self.retire_at: float | None = None
        self.returning = False
        """Whether another node may yet report it to this restarted scheduler. Its callers are not notified meanwhile."""
        self.watchers: set[bytes] = set()
        """Processes that call it and are notified of its location."""

    @property
    def id(self) -> bytes:
        """Id of the actor, which is the id of the task that makes it."""
        return self.task.id

    @property
    def restarts(self) -> int:
        """Number of restarts, after a death in ``__init__`` or later: ``max_restarts`` limits their sum."""
        return self.task.rare.retries if self.task.rare is not None else 0

    @property
    def detached(self) -> bool:
        """Whether it lives on without handles."""
        return bool(self.task.option("detached", False))

    @property
    def shared(self) -> bool:
        """Whether it shares its process with other actors."""
        return self.task.function.shared

    def wait(self) -> BlockedTask | None:
        """Its call, or its ``__init__``, that is known to wait; None if there is none."""
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
    """A life on this node of an actor whose home is another one, as long as its process exists."""

    __slots__ = ("drained", "ending", "leaving", "task", "worker")

    def __init__(self, task: TaskRecord, worker: WorkerRecord) -> None:
        self.task = task
        """The attempt that has made it. Its home is the submitter."""
        self.worker = worker
        self.ending = ""
        """Why this node ends it for good; empty if it does not."""
        self.leaving = False
        """Whether it was asked to end, since this node is drained."""
        self.drained = False
        """Whether it has reported that it ends therefore."""

    @property
    def id(self) -> bytes:
        """Id of the actor."""
        return self.task.id

    @property
    def home(self) -> bytes:
        """The node that decides what becomes of the actor."""
        return self.task.submitter

    @property
    def may_restart(self) -> bool:
        """Whether its home may make it again."""
        return bool(self.task.option("max_restarts", 0))

    @property
    def class_name(self) -> str:
        """Name of its class."""
        return self.task.function.name

    @property
    def name(self) -> str:
        """Its name; empty if it has none."""
        return self.task.option("name") or ""


class RemoteActorRecord:
    """An actor of another node that processes of this one call, as its home reports it."""

    __slots__ = ("asked", "attempt", "failure", "home", "id", "killed", "node", "row", "state", "watchers")

    def __init__(self, identifier: bytes, home: bytes) -> None:
        self.id = identifier
        self.home = home
        """The node of its record; empty as long as that is not known, which is so if the handle is a weak one."""
        self.asked: set[bytes] = set()
        """Nodes that were asked whether they are its home, and have not answered."""
        self.node = b""
        """The node on which it lives, if it does: calls are sent there. It may be this one."""
        self.state = CREATING
        self.attempt = 0
        self.failure = b""
        self.row: Row = ()
        """Its location as processes here receive it; empty before the first report."""
        self.killed: KillActor | None = None
        """The request to end its present life that was sent to its home: a restarted daemon may not have received it."""
        self.watchers: set[bytes] = set()
        """Processes of this node that call it."""


class LogBlock(NamedTuple):
    """A block of rows up to call ``last``, or a whole checkpoint after that call. It pins ``refs``."""

    last: int
    parts: int
    """Number of parts of a checkpoint; 0 for a block of rows."""
    refs: tuple[bytes, ...]
    made: tuple[bytes, ...] = ()
    """Values that a replay of these rows makes again."""

    def keys(self, actor_id: bytes) -> tuple[tuple[str, bytes], ...]:
        """Its rows in the control store: (table, key)."""
        if not self.parts:
            return ((LOG, actor_id + self.last.to_bytes(8, "big")),)
        return tuple((CHECKPOINT, part_key(actor_id, self.last, index)) for index in range(self.parts))


class RetainedBlocks(NamedTuple):
    """Blocks before the last checkpoint that made values still referred to, and the checkpoint that their replay begins with, if any."""

    base: LogBlock | None
    blocks: list[LogBlock]

    def all(self) -> list[LogBlock]:
        """The base and all blocks."""
        return self.blocks if self.base is None else [self.base, *self.blocks]


class Writing:
    """A log message of an incarnation that is not known to be committed."""

    __slots__ = ("attempt", "block", "committed", "number", "row", "writer")

    def __init__(self, writer: bytes, attempt: int, number: int, row: tuple[str, bytes, bytes], block: LogBlock | None) -> None:
        self.writer = writer
        """The process in which the actor lives, or the node if that is another one."""
        self.attempt = attempt
        self.number = number
        self.row = row
        self.block = block
        """The block that is complete once this is committed; None for a part of a checkpoint that is not the last."""
        self.committed = False


class ActorLog:
    """The log of one actor, as the scheduler has it."""

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
        """Blocks that a replay would need, in order."""
        self.checkpoint: LogBlock | None = None
        self.past: list[RetainedBlocks] = []
        self.stray: list[LogBlock] = []
        """Checkpoints that lack parts."""
        self.last = 0
        """Number of the last call that was reported."""
        self.writing: deque[Writing] = deque()
        self.failed: deque[Writing] = deque()
        """Messages of ``writing`` that the control store could not write."""
        self.retry_at: float | None = None
        self.trouble = ""
        """Why the control store cannot write it at present; empty if it can."""
        self.replayed = self.to_replay = 0
        self.ended = 0
        """Calls that have ended, as last reported, for an actor whose calls are not logged."""
        self.exact = False
        """Whether ``ended`` is the final number that a dead process left, not an earlier report."""
        self.waits_for = 0
        """Calls that run while a checkpoint is due, for an actor whose calls are not logged."""
        self.lost = 0
        """Number of calls whose effects were lost in restarts from checkpoints, as far as this scheduler has seen them."""
        self.adopted = False
        """Whether an earlier scheduler may have counted more in ``lost``."""


def worker_of(record: ActorRecord) -> WorkerRecord | None:
    """The worker in which an actor lives, or is being made."""
    return record.worker or record.task.worker


def is_unlogged(record: ActorRecord) -> bool:
    """Whether an actor has checkpoints but no log of its calls."""
    return bool(record.task.option("unlogged", False))
