"""What a local scheduler knows of its actors: each actor, and the log of its calls."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from zfabric.machines.common.log_format import CHECKPOINT, LOG, part_key
from zfabric.machines.local_scheduler.records import BlockedTask, TaskRecord, WorkerRecord
from zfabric.protocol.messages import CREATING


class ActorRecord:
    """One actor, from its creation until nobody could ask for it any more."""

    __slots__ = (
        "arguments",
        "executing",
        "failure",
        "gone",
        "killed",
        "lived_before",
        "lives_on",
        "name",
        "namespace",
        "retire_at",
        "state",
        "task",
        "watchers",
        "worker",
    )

    def __init__(self, task: TaskRecord, namespace: str) -> None:
        self.task = task
        self.namespace = namespace
        self.name: str = task.option("name") or ""
        self.arguments: set[bytes] = set()
        """What its row names, as far as that is kept for restarts."""
        self.state = CREATING
        self.worker: WorkerRecord | None = None
        self.lived_before = False
        """Whether an earlier process was this actor."""
        self.failure = b""
        self.executing = b""
        """The call that was running when its last life ended."""
        self.lives_on = False
        """Whether the process of that life lives on, with others."""
        self.killed = ""
        """Why it is to end for good, if it is."""
        self.gone = False
        """Whether the last handle has gone."""
        self.retire_at: float | None = None
        self.watchers: set[bytes] = set()
        """Processes that call it."""

    @property
    def id(self) -> bytes:
        """The actor's id: that of the task that makes it."""
        return self.task.id

    @property
    def restarts(self) -> int:
        """How often it was made again, be it after a death in ``__init__`` or later: of both there are ``max_restarts``."""
        return self.task.rare.retries if self.task.rare is not None else 0

    @property
    def detached(self) -> bool:
        """Whether it lives on without handles."""
        return bool(self.task.option("detached", False))

    @property
    def shared(self) -> bool:
        """Whether it shares its process."""
        return self.task.function.shared

    def wait(self) -> BlockedTask | None:
        """Its call, or its ``__init__``, that waits, if it is known that one does."""
        worker = self.worker or self.task.worker
        if worker is None:
            return None
        if not worker.shared:
            return worker.frames[-1] if worker.frames and self.worker is not None else None
        row = worker.delays.get(self.id)
        if row is None or row is worker.turn:
            return None
        _, call_id, wanted, callees, certain = row
        found = BlockedTask(call_id, wanted, False)
        found.actor, found.certain = self.id, certain
        found.callees = {identifier: actor_id for identifier, actor_id in zip(wanted, callees, strict=False) if any(actor_id)}
        return found

    @property
    def class_name(self) -> str:
        """What its class is called."""
        return self.task.function.name


class LogBlock(NamedTuple):
    """Rows of a log, up to call ``last``, or a whole checkpoint after that call; ``refs`` are pinned by it."""

    last: int
    parts: int
    """0: it is a block of rows."""
    refs: tuple[bytes, ...]
    made: tuple[bytes, ...] = ()
    """Values that a replay of these rows makes again."""

    def keys(self, actor_id: bytes) -> tuple[tuple[str, bytes], ...]:
        """Its rows in the control store: (table, key)."""
        if not self.parts:
            return ((LOG, actor_id + self.last.to_bytes(8, "big")),)
        return tuple((CHECKPOINT, part_key(actor_id, self.last, index)) for index in range(self.parts))


class RetainedBlocks(NamedTuple):
    """Rows before the last checkpoint that made values which live, and the checkpoint that a replay of them begins with, if any."""

    base: LogBlock | None
    blocks: list[LogBlock]

    def all(self) -> list[LogBlock]:
        """Everything that is kept."""
        return self.blocks if self.base is None else [self.base, *self.blocks]


class Writing:
    """What an incarnation has said of its log, and is not known to be committed."""

    __slots__ = ("block", "committed", "number", "row", "writer")

    def __init__(self, writer: bytes, number: int, row: tuple[str, bytes, bytes], block: LogBlock | None) -> None:
        self.writer = writer
        self.number = number
        self.row = row
        self.block = block
        """What is whole once this is committed; None for a part of a checkpoint that is not the last."""
        self.committed = False


class ActorLog:
    """What is known of the log of one actor."""

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
        """Blocks of rows that a replay would need, in order."""
        self.checkpoint: LogBlock | None = None
        self.past: list[RetainedBlocks] = []
        self.stray: list[LogBlock] = []
        """Checkpoints of which not every part came."""
        self.last = 0
        """The last call of which this scheduler has heard."""
        self.writing: deque[Writing] = deque()
        self.failed: deque[Writing] = deque()
        """Those of them that the control store could not write."""
        self.retry_at: float | None = None
        self.trouble = ""
        """Why the control store cannot write it, as long as it cannot; empty if it can."""
        self.replayed = self.to_replay = 0
        self.ended = 0
        """Calls that have ended, of an actor whose calls are not logged, as far as is known."""
        self.exact = False
        """Whether its dead process has left that number, and not merely said it."""
        self.waits_for = 0
        """Calls that run while a checkpoint is due, of such an actor."""
        self.lost = 0
        """Calls that had ended after the checkpoints from which it was made again, as far as this scheduler has seen that."""
        self.adopted = False
        """Whether there was a scheduler before this one, which may have seen more."""


def worker_of(record: ActorRecord) -> WorkerRecord | None:
    """The worker in which an actor lives, or is being made."""
    return record.worker or record.task.worker


def is_unlogged(record: ActorRecord) -> bool:
    """Whether an actor has checkpoints, and its calls are not logged."""
    return bool(record.task.option("unlogged", False))
