"""The records of a local scheduler: tasks and values, functions, queues, processes, workers, nodes, jobs.

A task with one return *is* the record of its value: separate records took twice the time and 70 % more memory. Records form no cycles that
outlive a task, so daemons run without the cyclic collector.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from zfabric.machines.common.lineage_blocks import LineageBlock
from zfabric.machines.common.resources import NO_POOL, ResourcePool
from zfabric.machines.local_scheduler.channel import PeerInbox, PeerOutbox
from zfabric.machines.local_scheduler.group_records import GroupPool
from zfabric.machines.local_scheduler.object_places import PENDING, InlineValues, ObjectPlace, Value, place_of
from zfabric.protocol import messages as m
from zfabric.protocol.ids import (
    FIRST_RETURN,
    JOB_BYTES,
    TASK_BYTES,
    Address,
    child_prefix,
    daemons_of,
    first_attempt,
    node_of,
    object_id,
    salt_of,
    tries_of,
)
from zfabric.protocol.messages import OK, Row, Rows
from zfabric.protocol.names import Program
from zfabric.protocol.options import (
    MEMORY,
    NO_ENVIRONMENT,
    ONE_CPU,
    RESOURCE_UNIT,
    Demand,
    Environment,
    GroupTerm,
    Strategy,
    group_of,
    in_bundle,
    only_node,
    option,
)

WAITING, READY, ASSIGNED, DONE = range(4)
STATE_NAMES = ("waiting", "queued", "assigned", "finished")
"""WAITING for dependencies; READY in a queue; ASSIGNED to a worker; DONE has an outcome."""

ATTEMPTS_LOOKED_AT = 16
"""Attempts of a parent whose children are searched."""
DAEMONS_LOOKED_AT = TRIES_LOOKED_AT = 4
"""The same for earlier daemons: their number, and attempts of each."""
STOPPED_MOST = 1000
"""Stopped tasks that a queue has before they are removed."""
QUEUES_MOST = 1000
"""Queues of a job before unneeded ones are removed; then twice the rest."""
PASSED_SECONDS = 1.0
"""How long consumers may pass over others: a chain always has one ready."""
RESULT_BYTES_PER_SECOND = 1e9
"""So much is one second of prefetching: 5 MB at most are prefetched."""
NOT_DURABLE = 0
DURABLE = 1
"""The head's control store may have a copy; its row goes with the record."""
FORMER = 2
"""The same of an earlier program or a dead node; its row stays."""


NO_HOME = b"no home!"
"""A home that a restarted scheduler searches."""


class HoldAtHome:
    """What an object's home, another node, has for this one."""

    __slots__ = ("asked", "cancelled", "dropped", "former", "home", "registered", "row_retained")

    def __init__(self, home: bytes, former: bytes = b"") -> None:
        self.home = home
        self.former = former
        """The dead earlier home, or empty."""
        self.registered = home == NO_HOME  # The search for a home registers this node there, and asks for the value.
        """Whether this node is a holder there, or about to be."""
        self.asked = home if home == NO_HOME else b""
        """The home once the value is requested, else empty."""
        self.cancelled: tuple[bool, bool] | None = None
        """How a process here cancelled the task: (force, recursive)."""
        self.dropped = False
        """Whether a copy was dropped for want of room."""
        self.row_retained = False
        """Whether the home retains the row for rows here, or is about to."""

    def register(self) -> bool:
        """Register this node. Return whether that is new."""
        before, self.registered = self.registered, True
        return not before

    def give_back(self) -> bool:
        """Release the hold. Return whether there was one."""
        before, self.registered = self.registered, False
        return before

    def retain_row(self) -> bool:
        """Retain the row. Return whether that is new."""
        before, self.row_retained = self.row_retained, True
        return not before

    def cancel(self, force: bool, recursive: bool) -> None:
        """Note how the task was cancelled."""
        self.cancelled = force, recursive


class Object:
    """A value that exists or will exist, and who needs it: a task's only value, or a separate ``ObjectRecord``.

    Only the methods write these fields, so that a change of place has a name, and a row in ``object_places.CHANGES``. ``holders`` is None,
    one process incarnation, or a set. ``pins`` counts unfinished rows that name the object and live values that contain it, which retain
    the value. ``named`` counts retained rows that name it, which retain the row that makes it, though the value may be freed. ``fetchers``
    requested the value; ``dependents`` are tasks that wait.
    """

    __slots__ = ("contained", "dependents", "fetchers", "holders", "named", "pins", "status", "value")

    status: int
    value: Value | None
    holders: bytes | set[bytes] | None
    pins: int
    named: int
    contained: tuple[bytes, ...]
    dependents: list[TaskRecord] | None
    fetchers: set[bytes] | None
    hold: HoldAtHome | None = None
    """The hold at the home; None if this node is the home. A value here is a copy, unless this is the home."""

    # -- where the value is --

    @property
    def place(self) -> ObjectPlace:
        """Where the value is."""
        return place_of(self.status, self.value, self.hold is not None and bool(self.hold.asked))

    @property
    def is_lost(self) -> bool:
        """Whether the value existed and no copy is left."""
        return self.value is None and self.status == OK

    @property
    def is_here(self) -> bool:
        """Whether the value exists: in memory, in the store, or retained at another node."""
        return self.value is not None and self.status == OK

    def arrive(self, value: Value, inline: InlineValues) -> None:
        """Enter the value, or its next place."""
        if self.value is not None:
            inline.replaced(self.value, value)
        elif type(value) is bytes:
            inline.total += len(value)  # Without a call: every ``put`` passes here.
        self.status = OK
        self.value = value

    def fail(self, status: int, payload: bytes, inline: InlineValues) -> None:
        """Enter an error."""
        inline.replaced(self.value, payload)
        self.status = status
        self.value = payload

    def lose(self, inline: InlineValues) -> None:
        """Drop the value: lost or unneeded. An error only loses its text."""
        inline.replaced(self.value, None)
        if self.status == PENDING:
            self.status = OK
        self.value = None

    def expect(self, inline: InlineValues) -> None:
        """Await the value, perhaps again, to be requested at another home."""
        inline.replaced(self.value, None)
        self.status = PENDING
        self.value = None
        if self.hold is not None:
            self.hold.asked = b""

    def ask(self) -> None:
        """Note a request to its home, another node."""
        assert self.hold is not None
        self.hold.asked = self.hold.home

    def contain(self, refs: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Set the refs inside. Return those before."""
        before, self.contained = self.contained, refs
        return before

    # -- where its home is --

    @property
    def home(self) -> bytes:
        """The object's home; empty for this node."""
        return self.hold.home if self.hold is not None else b""

    def find_home(self, home: bytes) -> HoldAtHome:
        """Set a searched home. Return the hold."""
        assert self.hold is not None
        self.hold.home = home
        return self.hold

    def move_home(self, home: bytes) -> None:
        """Make its job's home the home after a death. A value here is retained for it."""
        assert self.hold is not None
        dead = self.hold.home
        self.hold.home, self.hold.former = home, dead
        self.drop_holder(dead)
        if self.is_here:
            self.add_holder(home)
        self.hold.registered = self.is_needed or bool(self.fetchers)
        self.hold.row_retained = self.named > 0

    def drop_copy(self, inline: InlineValues) -> None:
        """Drop a copy for want of room; the next one is retained."""
        assert self.hold is not None
        self.lose(inline)
        self.hold.dropped = True

    # -- who needs it --

    @property
    def is_needed(self) -> bool:
        """Whether a process or row here needs it. Its home's hold here does not count."""
        holders, home = self.holders, self.home
        held = holders is not None and (len(holders - {home}) > 0 if isinstance(holders, set) else holders != home)
        return held or self.pins > 0

    def add_holder(self, process: bytes) -> None:
        """Register a holder. Idempotent."""
        holders = self.holders
        if holders is None:
            self.holders = process
        elif type(holders) is set:
            holders.add(process)
        elif holders != process:
            self.holders = {holders, process}  # type: ignore[arg-type]

    def drop_holder(self, process: bytes) -> None:
        """Remove a holder. Idempotent."""
        holders = self.holders
        if type(holders) is set:
            holders.discard(process)
            if not holders:
                self.holders = None
        elif holders == process:
            self.holders = None

    @property
    def all_holders(self) -> frozenset[bytes]:
        """The holders."""
        holders = self.holders
        return frozenset() if holders is None else frozenset(holders) if isinstance(holders, set) else frozenset({holders})

    def pin(self) -> None:
        """Count an unfinished row that names it, or value that contains it."""
        self.pins += 1

    def unpin(self) -> None:
        """Undo one ``pin``."""
        self.pins -= 1

    def add_row(self) -> None:
        """Count an unfinished row that names it, and is retained."""
        self.pins += 1
        self.named += 1

    def retain_row(self) -> None:
        """Count a retained row that names it."""
        self.named += 1

    def release_row(self) -> None:
        """Undo one ``retain_row``."""
        self.named -= 1

    def forget_rows(self) -> None:
        """Count the retained rows anew."""
        self.named = 0

    def add_fetchers(self, *incarnations: bytes) -> None:
        """Note who has requested the value."""
        if self.fetchers is None and incarnations:
            self.fetchers = set(incarnations)
        elif self.fetchers is not None:
            self.fetchers.update(incarnations)

    def drop_fetcher(self, incarnation: bytes) -> None:
        """Drop a process's or node's request."""
        if self.fetchers is not None:
            self.fetchers.discard(incarnation)

    def take_fetchers(self) -> list[bytes]:
        """Take who has requested the value, sorted."""
        fetchers, self.fetchers = self.fetchers, None
        return sorted(fetchers or ())

    def add_dependent(self, task: TaskRecord) -> None:
        """Note a task that waits."""
        if self.dependents is None:
            self.dependents = []
        self.dependents.append(task)

    def take_dependents(self) -> list[TaskRecord]:
        """Take the tasks that wait."""
        dependents, self.dependents = self.dependents, None
        return dependents or []

    def join(self, other: Object, inline: InlineValues) -> bool:
        """Take over another record's users, and its outcome if none is here. Return whether it had one.

        The other record must be in no table; a pin keeps it from being freed where a list still has it.
        """
        for holder in sorted(other.all_holders):
            self.add_holder(holder)
        self.pins += other.pins
        self.named += other.named
        self.add_fetchers(*(other.fetchers or ()))
        for task in other.take_dependents():
            self.add_dependent(task)
        is_taken = other.status != PENDING and not other.is_lost and (self.status == PENDING or self.is_lost)
        if is_taken:
            self.status, self.value, other.value = other.status, other.value, None
        if is_taken or not self.contained:
            self.contained = other.contained
        inline.replaced(other.value, None)
        other.status, other.value, other.holders, other.pins, other.fetchers = OK, None, None, 1, None
        return is_taken


class ObjectRecord(Object):
    """A ``put``, one of several values, a result of a call, another node's object."""

    __slots__ = ("durable", "hold", "id", "task")

    def __init__(
        self,
        identifier: bytes,
        task: TaskRecord | None,
        holder: bytes | None,
        durable: int = NOT_DURABLE,
        hold: HoldAtHome | None = None,
    ) -> None:
        self.id = identifier
        self.task = task
        self.status = PENDING
        self.value = None
        self.holders = holder
        self.pins = 0
        self.named = 0
        self.contained = ()
        self.dependents = None
        self.fetchers = None
        self.durable = durable
        self.hold = hold

    @property
    def object_id(self) -> bytes:
        """The 20-byte id of the value."""
        return self.id

    def become_home(self, durable: int = NOT_DURABLE) -> None:
        """Make this node, of the job or searched for, the home."""
        self.hold = None
        self.durable = durable

    def forget_durable(self) -> None:
        """Note that the head has no copy."""
        self.durable = NOT_DURABLE

    def note_durable(self) -> None:
        """Note that the head may have a copy."""
        self.durable = DURABLE


class ReferenceWatch:
    """Who is notified when nothing needs an object, and who has yet to answer."""

    __slots__ = ("asked", "former", "searched", "watchers")

    def __init__(self) -> None:
        self.watchers: set[bytes] = set()
        self.asked: set[bytes] = set()
        """Nodes that have not answered."""
        self.former = b""
        """The dead home of which this node is the heir, or empty."""
        self.searched = False
        """Whether nodes were asked about an unknown object."""


class RefusedRow(NamedTuple):
    """What a report needs of another home's refused row."""

    id: bytes
    attempt: int
    submitter: bytes
    """The home."""


class TaskRecord(Object):
    """One task, with its value if it has exactly one. ``rare`` has uncommon fields."""

    __slots__ = (
        "attempt",
        "block",
        "function",
        "outputs",
        "rare",
        "row",
        "state",
        "submitter",
        "worker",
    )

    def __init__(self, row: Row, function: FunctionRecord, submitter: bytes, attempt: int) -> None:
        self.row = row
        self.function = function
        self.submitter = submitter
        self.state = READY
        self.attempt = attempt
        self.worker: WorkerRecord | None = None
        self.status = PENDING
        self.value = None
        self.holders = submitter
        self.pins = 0
        self.named = 0
        self.contained = ()
        self.dependents = None
        self.fetchers = None
        self.outputs: tuple[ObjectRecord, ...] | None = None
        self.block: Any = None
        self.rare: TaskExtras | None = None

    home = b""

    @property
    def id(self) -> bytes:
        """The 16-byte task id."""
        identifier: bytes = self.row[0]
        return identifier

    @property
    def object_id(self) -> bytes:
        """The 20-byte id of its only value."""
        return self.id + FIRST_RETURN

    @property
    def task(self) -> TaskRecord:
        """The task itself: it makes its value."""
        return self

    @property
    def options(self) -> tuple[Row, ...] | None:
        """This call's own options."""
        return self.row[4] if len(self.row) > 4 else None

    def option(self, name: str, default: Any = None) -> Any:
        """An option of the call, else of the function."""
        value = option(self.options, name)
        return option(self.function.options, name, default) if value is None else value

    @property
    def name(self) -> str:
        """The name that users see."""
        return self.option("name") or self.function.name

    def facts(self) -> TaskExtras:
        """Uncommon fields, made on first use."""
        rare = self.rare
        if rare is None or rare.common:
            self.rare = TaskExtras()
            if rare is not None:
                self.rare.demand_queue = rare.demand_queue
        return self.rare  # type: ignore[return-value]

    # Only these methods write ``state`` and ``worker``: a task has a worker exactly while it is assigned.

    def wait(self, unresolved: int) -> None:
        """Enter WAITING for so many dependencies."""
        self.function.done -= self.state == DONE
        self.function.waiting += self.state != WAITING
        self.state = WAITING
        self.worker = None
        self.facts().unresolved = unresolved

    def ready(self) -> None:
        """Enter READY."""
        self.function.done -= self.state == DONE
        self.function.waiting -= self.state == WAITING
        self.state = READY
        self.worker = None

    def assign(self, worker: WorkerRecord) -> None:
        """Enter ASSIGNED from READY."""
        self.state = ASSIGNED
        self.worker = worker

    def finish(self) -> None:
        """Enter DONE, from any state."""
        self.function.done += self.state != DONE
        self.function.waiting -= self.state == WAITING
        self.state = DONE
        self.worker = None

    def limit_run(self) -> None:
        """Copy the limit on an attempt's duration into ``rare``."""
        limit = self.function.run_timeout if len(self.row) == 4 else self.option("run_timeout")
        if limit is not None:
            self.facts().run_timeout = limit

    @property
    def runs_alone(self) -> bool:
        """Whether a task queues behind no other: it was near a crash, or its time is limited."""
        rare = self.rare
        return rare is not None and (rare.crashes > 0 or rare.buried or rare.run_timeout is not None)

    def finish_assigned(self) -> None:
        """Enter DONE from ASSIGNED."""
        self.function.done += 1
        self.state = DONE
        self.worker = None

    def make_outputs(self, count: int) -> None:
        """Make records of ``count`` != 1 values. Its holder holds these, no longer the task."""
        holder, self.holders = self.holders, None
        self.outputs = tuple(ObjectRecord(object_id(self.id, index), self, holder) for index in range(count))  # type: ignore[arg-type]

    def end_as(self, status: int) -> None:
        """Set the outcome of a task that is no value itself."""
        self.status = status

    def values(self) -> tuple[TaskRecord | ObjectRecord, ...]:
        """The task itself, or separate records."""
        return (self,) if self.outputs is None else self.outputs

    def contains(self) -> tuple[bytes, ...]:
        """Refs inside the arguments."""
        return option(self.options, "contains", ()) if len(self.row) > 4 else ()


AnyObject = TaskRecord | ObjectRecord


class EntrustedRow(NamedTuple):
    """A row entrusted to the home of its job, with rows ``(object, home)`` of what it names."""

    row: Row
    homes: Rows
    unfinished: bool = False
    """Whether it runs again even if nothing refers to its values."""
    block: LineageBlock | None = None
    """Where it is stored for the next daemon."""


class RelayedStream(NamedTuple):
    """A stream of an actor here for another node's caller."""

    home: bytes
    actor: bytes
    ahead: int


class StreamRecord:
    """The values of a streaming task or call. ``owner``, the stream's own object, stands for its end."""

    __slots__ = (
        "actor",
        "ahead",
        "allowed",
        "closed",
        "count",
        "cut",
        "declared",
        "end",
        "owner",
        "pending",
        "reached",
        "unclaimed",
        "upto",
        "values",
    )

    def __init__(self, owner: AnyObject, ahead: int, actor: bytes) -> None:
        self.owner = owner
        self.actor = actor
        """The actor of the call; empty for a task."""
        self.ahead = ahead
        """Values that may exist unrequested."""
        self.count = 0
        """Values so far, over all attempts: none below is accepted again."""
        self.declared: int | None = None
        """Values of the last whole attempt."""
        self.end: int | None = None
        """Values in all, once it has ended."""
        self.upto = ahead
        """How far the task may go: one past the last requested value."""
        self.allowed: tuple[bytes, int] | None = None
        """(worker token, ``upto``) last sent to the maker."""
        self.unclaimed: set[int] = set()
        """Values that no process has held: the stream retains them."""
        self.pending: dict[int, ObjectRecord] = {}
        """Requested values that do not exist, or no longer."""
        self.values = 0
        """Values with records, which retain the task's row."""
        self.closed = False
        self.reached = (0, 0)
        """(attempt, values yielded), as far as is known."""
        self.cut: int | None = None
        """The attempt that is to end early and run again for lost values."""

    @property
    def name(self) -> str:
        """The name that users see."""
        return self.owner.name if isinstance(self.owner, TaskRecord) else "a method"

    @property
    def whole(self) -> bool:
        """Whether all values of a successful maker have arrived."""
        is_there = self.closed or (self.declared is not None and self.declared <= self.count)
        return is_there and self.count <= min(self.pending, default=self.count)

    @property
    def upto_now(self) -> int:
        """How far the maker may go: to its end if nobody reads, or if the attempt is cut."""
        is_over = self.closed and not self.pending
        attempt = self.owner.attempt if isinstance(self.owner, TaskRecord) else None
        return m.CLOSE if is_over or (self.cut is not None and self.cut == attempt) else self.upto

    def take_unclaimed(self) -> list[bytes]:
        """Release and return the unclaimed values."""
        unclaimed, self.unclaimed = self.unclaimed, set()
        return [self.value(index) for index in sorted(unclaimed)]

    def value(self, index: int) -> bytes:
        """Id of value ``index``."""
        return object_id(self.owner.object_id[:TASK_BYTES], index + 1)


class TaskExtras:
    """Fields that only some tasks need."""

    __slots__ = (
        "alone",
        "buried",
        "common",
        "crashes",
        "deadline",
        "demand_queue",
        "entrusted",
        "history",
        "lineage_weight",
        "moved",
        "rebuilt",
        "recursively",
        "retries",
        "run_timeout",
        "run_until",
        "running_on",
        "stays",
        "stopped",
        "submitters",
        "unfinished",
        "unresolved",
        "wait_locations",
        "waits_since",
    )

    def __init__(self, common: ShapeQueue | None = None) -> None:
        self.common = common is not None
        """Whether many tasks share it: it must not be changed."""
        self.demand_queue = common
        """The queue of own options."""
        self.unresolved = 0
        self.waits_since = 0.0
        self.retries = 0
        self.rebuilt = False
        """Whether it runs for a lost value. Only force cancels it then."""
        self.crashes = 0
        """Workers that died while it ran, or waited, on top."""
        self.alone = 0
        """Of these, workers that ran nothing else."""
        self.deadline: float | None = None
        self.run_timeout: float | None = None
        """Most seconds of an attempt; sent only to a worker that begins at once."""
        self.run_until: float | None = None
        self.stopped = ""
        """Why to stop it: "cancelled", "timeout", "run_timeout", "force" (which kills), "killed", or empty."""
        self.moved = -1
        """The attempt reclaimed for another node; -1 if none."""
        self.stays = False
        """Whether it must run at home: its result cannot travel."""
        self.recursively = False
        self.running_on: WorkerRecord | None = None
        """A worker that still runs it after its outcome."""
        self.history: list[str] = []
        """Ends of earlier attempts, for an error's text."""
        self.buried = False
        """Whether another task killed its worker: it now runs alone."""
        self.wait_locations: dict[bytes, Any] | None = None
        self.submitters: tuple[bytes, ...] = ()
        """Other processes that wait for its outcome."""
        self.lineage_weight = 0
        self.entrusted = False
        """Whether the home of its job has its row."""
        self.unfinished = False
        """Whether that home is to run it if this node dies: its parent has ended."""

    def made(self) -> None:
        """Reset the failures of ``__init__``: the actor lives; restarts still count."""
        self.crashes = self.alone = 0
        self.history.clear()


class FunctionRecord:
    """A function of a job, with durations."""

    __slots__ = (
        "actor",
        "by_strategy",
        "concurrency",
        "cost",
        "delegated",
        "demand",
        "done",
        "entrusted",
        "environment",
        "failed",
        "id",
        "inline",
        "mean",
        "name",
        "num_returns",
        "options",
        "payload",
        "plain",
        "queue",
        "received",
        "result_bytes",
        "run_timeout",
        "shared",
        "strategy",
        "stream",
        "waiting",
    )

    def __init__(self, identifier: bytes, name: str, payload: bytes, options: tuple[Row, ...], delegated: bool = False) -> None:
        self.id = identifier
        self.delegated = delegated
        """Whether its tasks are at home elsewhere, where attempts are followed up."""
        self.entrusted = False
        """Whether the home of the job has it."""
        self.name = name
        self.payload = payload
        self.options = options
        self.actor: bytes | None = option(options, "actor")
        """For a class, what handles are made of: its calls make actors."""
        self.demand: Demand = option(options, "demand", ONE_CPU if self.actor is None else ())
        self.environment: Environment = option(options, "env", NO_ENVIRONMENT)
        self.strategy: Strategy = option(options, "strategy", ())
        self.num_returns: int = option(options, "num_returns", 1)
        self.stream: int | None = option(options, "stream")
        """How many values a stream may be ahead (0: as configured); None if it does not stream."""
        self.mean: float | None = None
        """Average running time in seconds, exponential; None before the first run."""
        self.result_bytes = 0.0
        self.cost: float | None = None
        """Seconds of a prefetch per task: its running time, and more for large results."""
        self.received = 0
        """Task records made, counted by their makers."""
        self.done = 0
        """Tasks with an outcome, counted by the record's methods."""
        self.failed = 0
        """Failed tasks, even if they never ran."""
        self.waiting = 0
        self.shared: bool = self.actor is not None and option(options, "lightweight", False)
        self.concurrency: int = option(options, "max_concurrency", 0) if self.actor is None else 0
        """Tasks that run at once in an event loop; 0: one, on the stack."""
        self.inline: bool = option(options, "inline", True) and not self.concurrency
        """Whether its tasks may run on top of one that waits."""
        usual = self.num_returns == 1 and self.actor is None and self.stream is None
        usual = usual and option(options, "timeout") is None and option(options, "run_timeout") is None
        self.plain = usual and not delegated
        self.run_timeout: float | None = option(options, "run_timeout")
        """Most seconds of an attempt, by default."""
        self.queue: ShapeQueue
        self.by_strategy: dict[Strategy, TaskExtras] = {}
        """What tasks with only this option share."""

    @property
    def shape(self) -> Shape:
        """Shape of tasks without own options."""
        makes = TASKS if self.actor is None else SHARING if self.shared else ACTORS
        strategy = in_bundle(self.strategy) if self.delegated else self.strategy
        return self.demand, self.environment, makes, self.concurrency, self.delegated, strategy

    @property
    def unfinished(self) -> int:
        """Tasks without an outcome."""
        return self.received - self.done

    def learn(self, count: int, seconds: float) -> None:
        """Learn from ``count`` runs of together ``seconds``."""
        mean = seconds / count
        self.mean = self.cost = mean if self.mean is None else self.mean + (mean - self.mean) * (0.2 if count < 8 else 0.5)
        if self.result_bytes:
            self._set_result_bytes(self.result_bytes * 0.8**count)

    def learn_size(self, outputs: Row) -> None:
        """Learn the sizes of results."""
        size = sum(value[1] if type(value) is tuple else value for value in outputs if type(value) is not bytes)
        if size > self.result_bytes:
            self._set_result_bytes(float(size))

    def _set_result_bytes(self, size: float) -> None:
        self.result_bytes = size if size >= 1.0 else 0.0
        if self.mean is not None:
            self.cost = self.mean + self.result_bytes / RESULT_BYTES_PER_SECOND


TASKS, ACTORS, SHARING = range(3)
"""What tasks make; ACTORS have a process each, SHARING share processes."""
Shape = tuple[Demand, Environment, int, int, bool, Strategy]
"""Demand, environment, what is made, concurrency, whether delegated, and the strategy."""


class ShapeQueue:
    """Ready tasks of one job and shape.

    ``consumers`` go before ``tasks``: their inputs exist and are freed when read. If all producers ran first, all their results would exist
    at once.
    """

    __slots__ = (
        "actors",
        "away",
        "concurrency",
        "consumers",
        "delegated",
        "demand",
        "environment",
        "feasible",
        "for_life",
        "gpus",
        "group",
        "infeasible_since",
        "job",
        "leased",
        "light",
        "only",
        "passed_since",
        "placed",
        "pool",
        "shape",
        "shared",
        "stopped",
        "strategy",
        "tasks",
        "token",
        "warned",
    )

    def __init__(self, shape: Shape, job: JobRecord, token: int) -> None:
        demand, environment, makes, concurrency, self.delegated, self.strategy = self.shape = shape
        self.away = False
        """Whether its tasks are dealt out to nodes, and not dispatched here."""
        self.group: GroupTerm | None = group_of(self.strategy)
        self.only = only_node(self.strategy)
        self.pool: ResourcePool | GroupPool = NO_POOL
        """Resources of the node, or of bundles."""
        self.job = job
        self.concurrency = concurrency
        self.actors = makes == ACTORS
        """Whether each task's actor takes a worker for life."""
        self.shared = makes == SHARING
        """Whether its actors share processes, leased while any lives there."""
        self.for_life = self.actors or self.shared
        self.demand = demand
        self.environment = environment
        self.token = token
        self.gpus: int = dict(demand).get("GPU", 0)
        self.light = all(name == "CPU" and amount <= RESOURCE_UNIT for name, amount in demand)
        """Whether the CPU that a blocked worker lends is enough: its tasks may run on top."""
        self.consumers: deque[TaskRecord] = deque()
        """Tasks with new inputs, the newest first; then, in order, those whose inputs existed on arrival or are on another node. Stale ones
        are skipped.
        """
        self.tasks: deque[TaskRecord] = deque()
        """The others, in order: inputs are none, or small and existed on arrival."""
        self.passed_since: float | None = None
        self.stopped = 0
        self.leased: dict[bytes, WorkerRecord] = {}
        self.feasible: bool | None = None
        """Whether this node, if idle, could run its tasks; None if unchecked."""
        self.infeasible_since: float | None = None
        self.warned = False
        self.placed = False

    def __len__(self) -> int:
        return len(self.consumers) + len(self.tasks)

    def __iter__(self) -> Iterator[TaskRecord]:
        return chain(self.consumers, self.tasks)

    def __reversed__(self) -> Iterator[TaskRecord]:
        return chain(reversed(self.tasks), reversed(self.consumers))

    @property
    def first(self) -> TaskRecord:
        """The task at its head, which exists."""
        return (self.consumers or self.tasks)[0]

    @property
    def last(self) -> TaskRecord:
        """The task at its end, which exists."""
        return (self.tasks or self.consumers)[-1]

    def line(self, now: float) -> deque[TaskRecord]:
        """What is served next: consumers, unless the others have waited for long."""
        if not self.tasks:
            self.passed_since = None
            return self.consumers
        if not self.consumers:
            return self.tasks
        if self.passed_since is None:
            self.passed_since = now
        return self.tasks if now - self.passed_since > PASSED_SECONDS else self.consumers

    def drop_stale(self) -> int:
        """Remove stale tasks at the head; return how many tasks are left."""
        for line in (self.consumers, self.tasks):
            while line and line[0].state != READY:
                line.popleft()
        return len(self)

    def clear(self) -> None:
        """Remove all tasks."""
        self.consumers.clear()
        self.tasks.clear()

    def move_to(self, other: ShapeQueue) -> None:
        """Move ready tasks to another queue of the job."""
        for line, to in ((self.consumers, other.consumers), (self.tasks, other.tasks)):
            for task in line:
                if task.state == READY:
                    task.facts().demand_queue = other
                    to.append(task)
        self.clear()

    def stop_one(self) -> None:
        """Count a stopped task. Once most are, remove them."""
        self.stopped += 1
        if self.stopped > max(STOPPED_MOST, len(self) // 2):
            self.stopped = 0
            for line in (self.consumers, self.tasks):
                ready = [task for task in line if task.state == READY]
                line.clear()
                line.extend(ready)


class ProcessRecord:
    """A registered driver, worker, tool, agent or node."""

    __slots__ = (
        "control",
        "direct",
        "incarnation",
        "job",
        "kind",
        "name",
        "path",
        "pid",
        "ready",
        "results",
        "singles",
        "started",
    )

    def __init__(self, incarnation: bytes, kind: str, pid: int, started: int, job: JobRecord | None, name: bytes, control: bytes) -> None:
        self.incarnation = incarnation
        self.kind = kind
        self.pid = pid
        self.started = started
        self.job = job
        self.name = name
        self.control = control
        self.path = ""
        self.ready = False
        self.results: list[Row] = []
        """Outcomes to send in this turn."""
        self.singles = 0
        """Successive submissions of a single task."""
        self.direct: dict[bytes, DirectLease] = {}
        """Direct leases by worker token, also ended ones whose last tasks may arrive."""


STARTING, IDLE, LEASED, ENDING, HOSTING = range(5)
WORKER_STATES = ("starting", "idle", "busy", "ending", "actor")


class BlockedTask:
    """A task or call on a worker's stack that waits in ``get``; others may run on top."""

    __slots__ = (
        "actor",
        "agenda",
        "at",
        "barred",
        "barring",
        "callees",
        "certain",
        "found",
        "inline",
        "name",
        "position",
        "searched",
        "seen",
        "since",
        "task_id",
        "wanted",
    )

    def __init__(self, task_id: bytes, wanted: tuple[bytes, ...], inline: bool) -> None:
        self.task_id = task_id
        self.wanted = wanted
        self.inline = inline
        self.certain = inline
        """Whether it goes on only when all wanted objects exist."""
        self.at: float | None = None
        """When the wait began; None if before a restart."""
        self.name = ""
        self.actor = b""
        """The actor of the call; empty for a task."""
        self.callees: dict[bytes, bytes] = {}
        """The actors called, by wanted result."""
        self.barred = False
        """Whether something ready that it needs requires another worker."""
        self.searched = -1
        """``Tables.became_ready`` when the last search failed."""
        self.since = -1
        """``Tables.became_ready`` when the present search began, which may take several turns."""
        self.position = 0
        """How many of ``wanted`` are searched."""
        self.agenda: list[bytes] = []
        self.seen: set[bytes] = set()
        self.barring = False
        self.found = False
        """Whether the last search lacked only a CPU."""


class WorkerRecord:
    """A worker process, from the request to start it."""

    __slots__ = (
        "actors",
        "blocked_tasks",
        "delays",
        "demand",
        "direct",
        "end_reason",
        "environment",
        "functions",
        "gpus",
        "idle_since",
        "inflight",
        "job",
        "kill_reason",
        "last_progress",
        "lent",
        "pid",
        "pool",
        "process",
        "queue",
        "running_call",
        "shared",
        "started_at",
        "state",
        "taking_back",
        "token",
        "used",
        "waits",
        "work",
    )

    def __init__(self, token: bytes, job: JobRecord | None, environment: Environment, now: float) -> None:
        self.token = token
        self.job = job
        self.environment = environment
        self.state = STARTING
        self.pid = 0
        self.process: ProcessRecord | None = None
        self.queue: ShapeQueue | None = None
        self.demand: Demand = ()
        self.pool: ResourcePool = NO_POOL
        self.gpus: tuple[int, ...] = ()
        """Its GPUs, until it exits."""
        self.used = False
        self.inflight: dict[bytes, TaskRecord] = {}
        self.work = 0.0
        self.functions: set[bytes] = set()
        self.direct: DirectLease | None = None
        """A driver's direct lease, perhaps ended and still in use."""
        self.blocked_tasks: list[BlockedTask] = []
        """What waits on its stack, outermost first."""
        self.waits = 0
        """``Blocked`` and ``Unblocked`` received: identifies the topmost wait."""
        self.lent = False
        self.last_progress = now
        self.idle_since = now
        self.started_at = now
        self.taking_back = False
        self.kill_reason = ""
        self.end_reason = ""
        """Why it ends once nobody waits for its results, or empty."""
        self.actors: dict[bytes, None] = {}
        """Actors in it: at most one, unless shared."""
        self.shared = False
        """Whether lightweight actors share it; nothing else runs."""
        self.delays: dict[bytes, Row] = {}
        """Long calls, as rows of ``HostDelays``, by actor."""
        self.running_call: Row = ()
        """The row of ``delays`` whose call runs."""

    remote = False

    @property
    def reserved_bytes(self) -> int:
        """Memory of its actor or running task."""
        return dict(self.demand).get(MEMORY, 0) // RESOURCE_UNIT

    @property
    def behind(self) -> bool:
        """Whether tasks are queued behind the topmost."""
        return len(self.inflight) > 1 + len(self.blocked_tasks) and (self.queue is None or not self.queue.concurrency)

    @property
    def blocked(self) -> bool:
        """Whether the topmost task waits."""
        return bool(self.blocked_tasks)


PROBE, SNAPSHOT, REPLICATE = range(3)
"""Progress of another node. PROBE: either daemon is new, and it has yet to register; its messages are void. SNAPSHOT: it repeats what it
has of this node's. REPLICATE: all is repeated, and it may be given tasks.
"""


class NodeRecord(WorkerRecord):
    """Another node. "As home" and "as executor" name the part of *this* node."""

    __slots__ = (
        "answered",
        "daemon",
        "draining",
        "ends",
        "full",
        "inbox",
        "labels",
        "name",
        "number",
        "progress",
        "reclaimable",
        "repeated",
        "reported",
        "resources",
        "restarts",
    )

    remote = True

    def __init__(self, node: bytes, number: int, name: str, resources: dict[str, int], labels: dict[str, str], now: float) -> None:
        super().__init__(node, None, NO_ENVIRONMENT, now)
        self.number = number
        self.name = name
        self.resources = resources
        self.labels = labels
        self.draining = False
        self.full: dict[Demand, float] = {}
        """As home: demands without room there, and until when they are not tried."""
        self.reclaimable = False
        """As home: whether it may have unbegun tasks."""
        self.ends: PeerOutbox = PeerOutbox()
        """As executor: messages of ends."""
        self.inbox = PeerInbox()
        """As home: ends to acknowledge."""
        self.daemon = b""
        """Its daemon's incarnation; empty before it has registered."""
        self.answered = b""
        """The daemon with which this node has registered after a restart."""
        self.progress = SNAPSHOT
        """Written by ``Peers``."""
        self.restarts = 0
        """How often it has registered again, after either's restart."""
        self.reported: dict[bytes, int] = {}
        """As home: attempts that it reports on registering, by task."""
        self.repeated: set[tuple[str, Any]] = set()
        """Entries of its ledger that it repeats on registering, searches as holds."""

    @property
    def is_ready(self) -> bool:
        """Whether the node has registered, and may be given tasks."""
        return self.progress == REPLICATE


class DirectLease:
    """A driver, and the worker to which it submits."""

    __slots__ = ("died", "driver", "early", "ended", "functions", "over", "received", "sent", "submitted", "until", "waiting", "worker")

    def __init__(self, driver: ProcessRecord, worker: WorkerRecord) -> None:
        self.driver = driver
        self.worker = worker
        self.functions: set[bytes] = set()
        self.until = 0.0
        """The idle worker is reserved until then."""
        self.over = False
        """Whether the driver was sent the end, which may be under way."""
        self.submitted: set[bytes] = set()
        """The driver's tasks in flight."""
        self.sent: list[TaskRecord] = []
        """Ended tasks whose values the worker sent."""
        self.ended = 0
        """Values that the worker reports as sent."""
        self.received = 0
        """Values that the driver reports as received."""
        self.waiting: list[tuple[Address, Any]] = []
        """The driver's messages with values that the worker has not reported."""
        self.early: dict[bytes, tuple[Row, Row | None] | None] = {}
        """The worker's reports ahead of the driver's: outcomes, or None for a returned task."""
        self.died: m.ProcessDied | None = None

    def reserves(self, queues: list[ShapeQueue], now: float) -> bool:
        """Whether the idle worker stays reserved: not while other shapes wait."""
        return not self.over and now < self.until and all(queue is self.worker.queue for queue in queues)


class JobRecord:
    """What one driver caused. An ``ended`` job accepts nothing."""

    __slots__ = (
        "delegated",
        "driver",
        "ended",
        "functions",
        "home",
        "id",
        "namespace",
        "notices",
        "number",
        "queues",
        "queues_most",
        "reason",
        "started",
        "submitted",
    )

    def __init__(self, identifier: bytes, number: int, namespace: str, started: float) -> None:
        self.id = identifier
        self.number = number
        self.namespace = namespace
        self.started = started
        self.driver: ProcessRecord | None = None
        self.home = b""
        """Its driver's node; empty for this one."""
        self.functions: dict[bytes, FunctionRecord] = {}
        self.delegated: dict[bytes, FunctionRecord] = {}
        """Functions of tasks delegated to this node."""
        self.queues: dict[Shape, ShapeQueue] = {}
        self.queues_most = QUEUES_MOST
        self.ended = False
        self.reason = ""
        """Why it ended, unless at its driver's request."""
        self.submitted = 0
        self.notices = 0
        """Notices to its driver that something runs again."""

    @property
    def program(self) -> Program:
        """The program, as its driver describes it."""
        return Program.unpack(self.driver.name) if self.driver is not None else Program()


def attempt_text(task: TaskRecord, max_retries: int) -> str:
    """An attempt of those allowed, as "2 of 4". ``max_retries`` is the default."""
    number, most = tries_of(task.attempt) + 1, task.option("max_retries", max_retries) + 1
    return f"{number} of {most}" if number <= most else str(number)  # Otherwise retries are unlimited, or a lost value was rebuilt.


def prefixes_of(task: TaskRecord, earlier: int = ATTEMPTS_LOOKED_AT) -> set[bytes]:
    """Id prefixes of children of the last attempts."""
    node, daemons, tries = node_of(task.attempt), daemons_of(task.attempt), tries_of(task.attempt)
    attempts = [*range(task.attempt - min(tries, earlier), task.attempt + 1)]
    for before in range(max(0, daemons - DAEMONS_LOOKED_AT), daemons) if earlier else ():
        attempts += range(first_attempt(before, node), first_attempt(before, node) + TRIES_LOOKED_AT)
    return {child_prefix(task.id[:JOB_BYTES], task.id, 0, salt_of(attempt)) for attempt in attempts}
