"""The records of a local scheduler: tasks and values, functions, queues, processes, workers, nodes, jobs.

A task with one return *is* the record of its value: separate records took twice the time and 70 % more memory. ``put`` values, and values
of tasks with several returns, have records of their own. Records form no cycles that outlive a task, so daemons run without the cyclic
collector.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from zfabric.machines.common.lineage_blocks import LineageBlock
from zfabric.machines.common.naming import salt_of
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
    tries_of,
)
from zfabric.protocol.messages import OK, Row, Rows
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
from zfabric.protocol.programs import Program

WAITING, READY, ASSIGNED, DONE = range(4)
STATE_NAMES = ("waiting", "queued", "assigned", "finished")
"""WAITING for dependencies; READY in a queue; ASSIGNED to a worker; DONE has an outcome."""

ATTEMPTS_LOOKED_AT = 16
"""Attempts of a parent whose children are searched."""
DAEMONS_LOOKED_AT = TRIES_LOOKED_AT = 4
"""The same for earlier daemons: number of daemons, and attempts of each."""
STOPPED_MOST = 1000
"""Stopped tasks in a queue before they are removed."""
QUEUES_MOST = 1000
"""Queues of a job before the unneeded ones are removed; afterwards twice what remained."""
PASSED_SECONDS = 1.0
"""How long consumers may pass over other tasks: a chain always has a consumer ready."""
RESULT_BYTES_PER_SECOND = 1e9
"""Bytes of large results that prefetching counts as one second: 5 MB at most are prefetched."""
NOT_DURABLE = 0
DURABLE = 1
"""The head's control store may have a copy; its row is deleted with the record."""
FORMER = 2
"""The same for a value of an earlier program or a dead node; its row stays."""


NO_HOME = b"no home!"
"""The home of an object whose home a restarted scheduler searches."""


class HoldAtHome:
    """What the home of an object, another node, has for this one."""

    __slots__ = ("asked", "cancelled", "dropped", "former", "home", "registered", "row_retained")

    def __init__(self, home: bytes, former: bytes = b"") -> None:
        self.home = home
        self.former = former
        """Its earlier home, which has died; else empty."""
        self.registered = home == NO_HOME  # The search for a home registers this node there, and asks for the value.
        """Whether this node is a holder at the home, or about to be."""
        self.asked = home if home == NO_HOME else b""
        """The home, once the value is requested there; else empty."""
        self.cancelled: tuple[bool, bool] | None = None
        """How a process here has cancelled the object's task: (force, recursive)."""
        self.dropped = False
        """Whether a copy here was dropped for want of room."""
        self.row_retained = False
        """Whether the home retains the object's row for rows of this node, or is about to."""

    def register(self) -> bool:
        """Note that the home is to register this node as a holder. Return whether that is new."""
        before, self.registered = self.registered, True
        return not before

    def give_back(self) -> bool:
        """Note that the home is to release this node as a holder. Return whether it was one."""
        before, self.registered = self.registered, False
        return before

    def retain_row(self) -> bool:
        """Note that the home is to retain the object's row. Return whether that is new."""
        before, self.row_retained = self.row_retained, True
        return not before

    def cancel(self, force: bool, recursive: bool) -> None:
        """Note how a process here has cancelled the object's task."""
        self.cancelled = force, recursive


class Object:
    """A value that exists or will exist, and who needs it: a task's only value, or a separate ``ObjectRecord``.

    Only the methods write these fields, so that a change of place has a name, and a row in ``object_places.CHANGES``. ``holders`` is None,
    one process incarnation, or a set of them. ``pins`` counts unfinished rows that name the object and live values that contain it: while
    there are any, the value is retained. ``named`` counts retained rows that name it: while there are any, the row that makes it is
    retained, though the value may be freed. ``fetchers`` have requested the value, and ``dependents`` are tasks that wait for it.
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
    """This node's hold at the object's home; None if the home is this node. A value here is a copy, unless this is the home."""

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
        """Whether the value exists, in memory, in the store, or at another node that retains it."""
        return self.value is not None and self.status == OK

    def arrive(self, value: Value, inline: InlineValues) -> None:
        """Enter the value, or its place, or its next place."""
        if self.value is not None:
            inline.replaced(self.value, value)
        elif type(value) is bytes:
            inline.total += len(value)  # Without a call: every ``put`` passes here.
        self.status = OK
        self.value = value

    def fail(self, status: int, payload: bytes, inline: InlineValues) -> None:
        """Enter an error in place of the value."""
        inline.replaced(self.value, payload)
        self.status = status
        self.value = payload

    def lose(self, inline: InlineValues) -> None:
        """Drop the value: no copy is left, or nobody needs it. An error only loses its text."""
        inline.replaced(self.value, None)
        if self.status == PENDING:
            self.status = OK
        self.value = None

    def expect(self, inline: InlineValues) -> None:
        """Await the value, perhaps once more. If its home is another node, it is to be requested there."""
        inline.replaced(self.value, None)
        self.status = PENDING
        self.value = None
        if self.hold is not None:
            self.hold.asked = b""

    def ask(self) -> None:
        """Note that the value is requested at its home, another node."""
        assert self.hold is not None
        self.hold.asked = self.hold.home

    def contain(self, refs: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Set the refs inside the value. Return those before."""
        before, self.contained = self.contained, refs
        return before

    # -- where its home is --

    @property
    def home(self) -> bytes:
        """The node that is the object's home; empty for this one."""
        return self.hold.home if self.hold is not None else b""

    def find_home(self, home: bytes) -> HoldAtHome:
        """Set the home that a restarted scheduler has searched for. Return the hold there."""
        assert self.hold is not None
        self.hold.home = home
        return self.hold

    def move_home(self, home: bytes) -> None:
        """Set the home of its job as the home, since the home has died. A value here is retained for it."""
        assert self.hold is not None
        dead = self.hold.home
        self.hold.home, self.hold.former = home, dead
        self.drop_holder(dead)
        if self.is_here:
            self.add_holder(home)
        self.hold.registered = self.is_needed or bool(self.fetchers)
        self.hold.row_retained = self.named > 0

    def drop_copy(self, inline: InlineValues) -> None:
        """Drop a copy for want of room, so that the next one is retained."""
        assert self.hold is not None
        self.lose(inline)
        self.hold.dropped = True

    # -- who needs it --

    @property
    def is_needed(self) -> bool:
        """Whether a process or a row of this node needs the object. The hold here of its home, another node, does not count."""
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
        """Count one more unfinished row that names the object, or value that contains it."""
        self.pins += 1

    def unpin(self) -> None:
        """Undo one ``pin``."""
        self.pins -= 1

    def add_row(self) -> None:
        """Count one more unfinished row that names the object, which is retained."""
        self.pins += 1
        self.named += 1

    def retain_row(self) -> None:
        """Count one more retained row that names the object."""
        self.named += 1

    def release_row(self) -> None:
        """Undo one ``retain_row``."""
        self.named -= 1

    def forget_rows(self) -> None:
        """Count the retained rows anew."""
        self.named = 0

    def add_fetchers(self, *incarnations: bytes) -> None:
        """Note processes and nodes that have requested the value."""
        if self.fetchers is None and incarnations:
            self.fetchers = set(incarnations)
        elif self.fetchers is not None:
            self.fetchers.update(incarnations)

    def drop_fetcher(self, incarnation: bytes) -> None:
        """Forget the request of a process or node."""
        if self.fetchers is not None:
            self.fetchers.discard(incarnation)

    def take_fetchers(self) -> list[bytes]:
        """Remove and return who has requested the value, sorted."""
        fetchers, self.fetchers = self.fetchers, None
        return sorted(fetchers or ())

    def add_dependent(self, task: TaskRecord) -> None:
        """Note a task that waits for the value."""
        if self.dependents is None:
            self.dependents = []
        self.dependents.append(task)

    def take_dependents(self) -> list[TaskRecord]:
        """Remove and return the tasks that wait for the value."""
        dependents, self.dependents = self.dependents, None
        return dependents or []

    def join(self, other: Object, inline: InlineValues) -> bool:
        """Take over the users of another record of this object, and its outcome if none is here. Return whether it had one to give.

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
    """An object that is not the only value of a task here: a ``put``, one of several values, a result of a call, another node's object."""

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
        """Make this node the home: that of its job, after a death; or that which a restarted scheduler has searched for."""
        self.hold = None
        self.durable = durable

    def forget_durable(self) -> None:
        """Note that the head's control store has no copy."""
        self.durable = NOT_DURABLE

    def note_durable(self) -> None:
        """Note that the head's control store may have a copy."""
        self.durable = DURABLE


class ReferenceWatch:
    """Who is notified when nothing needs an object, and which nodes are yet to answer."""

    __slots__ = ("asked", "former", "searched", "watchers")

    def __init__(self) -> None:
        self.watchers: set[bytes] = set()
        """Processes of this node, and other nodes."""
        self.asked: set[bytes] = set()
        """Nodes that have not answered whether they need it."""
        self.former = b""
        """Its dead former home, if this node is the heir; else empty."""
        self.searched = False
        """Whether other nodes were asked, since the object was unknown here."""


class RefusedRow(NamedTuple):
    """A refused row of another home: the part of a task's record that its report needs."""

    id: bytes
    attempt: int
    submitter: bytes
    """The home."""


class TaskRecord(Object):
    """One task, with its value if it has exactly one. Uncommon fields are in ``rare``, which most tasks never have."""

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
        """The 20-byte id of the task's only value."""
        return self.id + FIRST_RETURN

    @property
    def task(self) -> TaskRecord:
        """The task itself: it makes its own value."""
        return self

    @property
    def options(self) -> tuple[Row, ...] | None:
        """Options of this call, besides those of its function."""
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
        """The uncommon fields, made on first use."""
        rare = self.rare
        if rare is None or rare.common:
            self.rare = TaskExtras()
            if rare is not None:
                self.rare.demand_queue = rare.demand_queue
        return self.rare  # type: ignore[return-value]

    # Only these methods write ``state`` and ``worker``: a task has a worker exactly while it is assigned.

    def wait(self, unresolved: int) -> None:
        """Enter WAITING, for this number of dependencies."""
        self.function.done -= self.state == DONE
        self.function.waiting += self.state != WAITING
        self.state = WAITING
        self.worker = None
        self.facts().unresolved = unresolved

    def ready(self) -> None:
        """Enter READY: any worker of its shape may run it."""
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
        """Copy the limit on an attempt's duration into ``rare``, if there is one."""
        limit = self.function.run_timeout if len(self.row) == 4 else self.option("run_timeout")
        if limit is not None:
            self.facts().run_timeout = limit

    @property
    def runs_alone(self) -> bool:
        """Whether it must not queue behind others: it was near a crash, or its running time is limited."""
        rare = self.rare
        return rare is not None and (rare.crashes > 0 or rare.buried or rare.run_timeout is not None)

    def finish_assigned(self) -> None:
        """Enter DONE from ASSIGNED."""
        self.function.done += 1
        self.state = DONE
        self.worker = None

    def make_outputs(self, count: int) -> None:
        """Make the records of values for a task with ``count`` != 1 returns. Its holder holds these, and no longer the task."""
        holder, self.holders = self.holders, None
        self.outputs = tuple(ObjectRecord(object_id(self.id, index), self, holder) for index in range(count))  # type: ignore[arg-type]

    def end_as(self, status: int) -> None:
        """Set the outcome of a task that is no value itself: it returns none, or several."""
        self.status = status

    def values(self) -> tuple[TaskRecord | ObjectRecord, ...]:
        """Records of its values: the task itself, or separate ones."""
        return (self,) if self.outputs is None else self.outputs

    def contains(self) -> tuple[bytes, ...]:
        """Refs inside the arguments."""
        return option(self.options, "contains", ()) if len(self.row) > 4 else ()


AnyObject = TaskRecord | ObjectRecord


class EntrustedRow(NamedTuple):
    """A row entrusted to this node as the home of its job, with rows ``(object, home)`` of what it names."""

    row: Row
    homes: Rows
    unfinished: bool = False
    """Whether it runs again if its home dies, even if nothing refers to its values."""
    block: LineageBlock | None = None
    """Where it is stored for this node's next daemon."""


class RelayedStream(NamedTuple):
    """A stream that an actor here makes for a caller on another node."""

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
        """The actor whose call makes the stream; empty for a task."""
        self.ahead = ahead
        """Values that may exist before one is requested."""
        self.count = 0
        """Values so far, over all attempts: none below is accepted again."""
        self.declared: int | None = None
        """Values of the last attempt that reached its end."""
        self.end: int | None = None
        """Values in all, once the stream has ended."""
        self.upto = ahead
        """One past the last requested value: how far the task may go."""
        self.allowed: tuple[bytes, int] | None = None
        """(worker token, ``upto``) as last sent to the maker."""
        self.unclaimed: set[int] = set()
        """Values that no process has held: the stream retains them."""
        self.pending: dict[int, ObjectRecord] = {}
        """Values that are requested and do not exist, or no longer."""
        self.values = 0
        """Values with records: while there are any, the row of the task is retained."""
        self.closed = False
        """Whether the last ref to the stream was dropped."""
        self.reached = (0, 0)
        """(attempt, values it has yielded) of the task, as far as is known."""
        self.cut: int | None = None
        """The attempt that is to end early and run again, for lost values."""

    @property
    def name(self) -> str:
        """The name that users see."""
        return self.owner.name if isinstance(self.owner, TaskRecord) else "a method"

    @property
    def whole(self) -> bool:
        """Whether all values of a maker that succeeded have arrived."""
        is_there = self.closed or (self.declared is not None and self.declared <= self.count)
        return is_there and self.count <= min(self.pending, default=self.count)

    @property
    def upto_now(self) -> int:
        """How far the maker may go now: to its end if nobody reads, or if the attempt is cut short."""
        is_over = self.closed and not self.pending
        attempt = self.owner.attempt if isinstance(self.owner, TaskRecord) else None
        return m.CLOSE if is_over or (self.cut is not None and self.cut == attempt) else self.upto

    def take_unclaimed(self) -> list[bytes]:
        """Ids of the values retained by the stream alone, which it now releases."""
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
        """Whether many tasks share it, so that it must not be changed."""
        self.demand_queue = common
        """The queue of a task with options of its own."""
        self.unresolved = 0
        self.waits_since = 0.0
        self.retries = 0
        """Attempts after the first."""
        self.rebuilt = False
        """Whether it runs again for a lost value. Only force cancels it then."""
        self.crashes = 0
        """Workers that died while it ran, or waited, on top."""
        self.alone = 0
        """Of these, workers that ran nothing else."""
        self.deadline: float | None = None
        self.run_timeout: float | None = None
        """Most seconds of an attempt; the task is sent only to a worker that begins it at once."""
        self.run_until: float | None = None
        """When the last attempt has used these."""
        self.stopped = ""
        """Why an attempt is to be stopped: "cancelled", "timeout", "run_timeout", "force" (which kills), "killed", or empty."""
        self.moved = -1
        """The attempt that was reclaimed from a node for another one; -1 if none was."""
        self.stays = False
        """Whether it must run at its home, since its result cannot travel."""
        self.recursively = False
        """Whether to stop its children on other nodes, too."""
        self.running_on: WorkerRecord | None = None
        """A worker that still runs it although it has its outcome."""
        self.history: list[str] = []
        """How earlier attempts ended, for the text of a later error."""
        self.buried = False
        """Whether another task killed its worker while it ran: it now runs alone."""
        self.wait_locations: dict[bytes, Any] | None = None
        self.submitters: tuple[bytes, ...] = ()
        """Other processes that submitted it and wait for its outcome."""
        self.lineage_weight = 0
        self.entrusted = False
        """Whether the home of its job has its row."""
        self.unfinished = False
        """Whether the home of its job is to run it if this node dies: its parent has ended."""

    def made(self) -> None:
        """Reset the failures of ``__init__``, since the actor lives; restarts still count."""
        self.crashes = self.alone = 0
        self.history.clear()


class FunctionRecord:
    """A function of a job, with the durations of its runs."""

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
        """Whether its tasks are at home on other nodes, which decide what follows each attempt."""
        self.entrusted = False
        """Whether this node has sent it to the home of the job."""
        self.name = name
        self.payload = payload
        self.options = options
        self.actor: bytes | None = option(options, "actor")
        """For a class, what a handle to an instance is made of: its calls make actors."""
        self.demand: Demand = option(options, "demand", ONE_CPU if self.actor is None else ())
        self.environment: Environment = option(options, "env", NO_ENVIRONMENT)
        self.strategy: Strategy = option(options, "strategy", ())
        self.num_returns: int = option(options, "num_returns", 1)
        self.stream: int | None = option(options, "stream")
        """For a streaming function, how many values a stream may be ahead (0: as configured)."""
        self.mean: float | None = None
        """Exponential average of its running time in seconds; None before the first run."""
        self.result_bytes = 0.0
        """Largest recent result in bytes of large values; 0 if results are small."""
        self.cost: float | None = None
        """Seconds of a prefetch that one task takes: its running time, and more for large results."""
        self.received = 0
        """Task records made; whoever makes one counts it."""
        self.done = 0
        """Tasks with an outcome, counted by the record's methods."""
        self.failed = 0
        """Failed tasks, also those that never ran."""
        self.waiting = 0
        self.shared: bool = self.actor is not None and option(options, "lightweight", False)
        """Whether its actors share processes."""
        self.concurrency: int = option(options, "max_concurrency", 0) if self.actor is None else 0
        """Tasks that one worker runs at once in an event loop; 0: one, on its stack."""
        self.inline: bool = option(options, "inline", True) and not self.concurrency
        """Whether its tasks may run on top of one that waits."""
        usual = self.num_returns == 1 and self.actor is None and self.stream is None
        usual = usual and option(options, "timeout") is None and option(options, "run_timeout") is None
        self.plain = usual and not delegated
        self.run_timeout: float | None = option(options, "run_timeout")
        """Most seconds of an attempt, unless the call says."""
        self.queue: ShapeQueue
        self.by_strategy: dict[Strategy, TaskExtras] = {}
        """What tasks share whose only option is this strategy."""

    @property
    def shape(self) -> Shape:
        """Shape of tasks without options of their own."""
        makes = TASKS if self.actor is None else SHARING if self.shared else ACTORS
        strategy = in_bundle(self.strategy) if self.delegated else self.strategy
        return self.demand, self.environment, makes, self.concurrency, self.delegated, strategy

    @property
    def unfinished(self) -> int:
        """Tasks without an outcome."""
        return self.received - self.done

    def learn(self, count: int, seconds: float) -> None:
        """Update ``mean`` with ``count`` runs that took ``seconds`` together."""
        mean = seconds / count
        self.mean = self.cost = mean if self.mean is None else self.mean + (mean - self.mean) * (0.2 if count < 8 else 0.5)
        if self.result_bytes:
            self._set_result_bytes(self.result_bytes * 0.8**count)

    def learn_size(self, outputs: Row) -> None:
        """Note the sizes of a run's results: places in the arena, or sizes of values on another node."""
        size = sum(value[1] if type(value) is tuple else value for value in outputs if type(value) is not bytes)
        if size > self.result_bytes:
            self._set_result_bytes(float(size))

    def _set_result_bytes(self, size: float) -> None:
        self.result_bytes = size if size >= 1.0 else 0.0
        if self.mean is not None:
            self.cost = self.mean + self.result_bytes / RESULT_BYTES_PER_SECOND


TASKS, ACTORS, SHARING = range(3)
"""What tasks make: values, actors with a process each, or actors that share processes."""
Shape = tuple[Demand, Environment, int, int, bool, Strategy]
"""Demand, environment, what is made, concurrency, whether delegated, and the strategy."""


class ShapeQueue:
    """Ready tasks of one job and shape, for any worker of that job and environment.

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
        """Whether its strategy deals its tasks out to nodes, so that none is dispatched from this queue."""
        self.group: GroupTerm | None = group_of(self.strategy)
        self.only = only_node(self.strategy)
        """The only node on which its tasks may run; empty if there are several."""
        self.pool: ResourcePool | GroupPool = NO_POOL
        """The node's resources, or those of bundles; set by ``Tables.queue_for``."""
        self.job = job
        self.concurrency = concurrency
        self.actors = makes == ACTORS
        """Whether each task makes an actor that takes a worker for life."""
        self.shared = makes == SHARING
        """Whether its actors share processes; such a process is leased while any lives in it."""
        self.for_life = self.actors or self.shared
        """Whether what its tasks make remains in the worker."""
        self.demand = demand
        self.environment = environment
        self.token = token
        self.gpus: int = dict(demand).get("GPU", 0)
        """GPUs of the demand, in 1/10,000."""
        self.light = all(name == "CPU" and amount <= RESOURCE_UNIT for name, amount in demand)
        """Whether the CPU that a blocked worker lends is enough, so that its tasks may run on top."""
        self.consumers: deque[TaskRecord] = deque()
        """Tasks with new inputs, the newest first; then those with inputs that existed on arrival or are on another node, in order. Tasks
        that are not ready are skipped.
        """
        self.tasks: deque[TaskRecord] = deque()
        """The others, in order: without inputs, or with small ones that existed on arrival."""
        self.passed_since: float | None = None
        """Since when consumers have gone before ``tasks``."""
        self.stopped = 0
        self.leased: dict[bytes, WorkerRecord] = {}
        """Workers that lease the queue's resources, by token."""
        self.feasible: bool | None = None
        """Whether this node, if idle, could run its tasks; None if not checked."""
        self.infeasible_since: float | None = None
        self.warned = False
        self.placed = False
        """Whether a global scheduler was asked for a node."""

    def __len__(self) -> int:
        return len(self.consumers) + len(self.tasks)

    def __iter__(self) -> Iterator[TaskRecord]:
        return chain(self.consumers, self.tasks)

    def __reversed__(self) -> Iterator[TaskRecord]:
        return chain(reversed(self.tasks), reversed(self.consumers))

    @property
    def first(self) -> TaskRecord:
        """The task at its head; the queue is not empty."""
        return (self.consumers or self.tasks)[0]

    @property
    def last(self) -> TaskRecord:
        """The task at its end; the queue is not empty."""
        return (self.tasks or self.consumers)[-1]

    def line(self, now: float) -> deque[TaskRecord]:
        """The line that is served next: the consumers, unless the others have been passed over for long."""
        if not self.tasks:
            self.passed_since = None
            return self.consumers
        if not self.consumers:
            return self.tasks
        if self.passed_since is None:
            self.passed_since = now
        return self.tasks if now - self.passed_since > PASSED_SECONDS else self.consumers

    def drop_stale(self) -> int:
        """Remove tasks at the head that are no longer ready; return the number of tasks left."""
        for line in (self.consumers, self.tasks):
            while line and line[0].state != READY:
                line.popleft()
        return len(self)

    def clear(self) -> None:
        """Remove all tasks."""
        self.consumers.clear()
        self.tasks.clear()

    def move_to(self, other: ShapeQueue) -> None:
        """Move all ready tasks to another queue of the job."""
        for line, to in ((self.consumers, other.consumers), (self.tasks, other.tasks)):
            for task in line:
                if task.state == READY:
                    task.facts().demand_queue = other
                    to.append(task)
        self.clear()

    def stop_one(self) -> None:
        """Count a stopped task. Once most are stopped, remove them."""
        self.stopped += 1
        if self.stopped > max(STOPPED_MOST, len(self) // 2):
            self.stopped = 0
            for line in (self.consumers, self.tasks):
                ready = [task for task in line if task.state == READY]
                line.clear()
                line.extend(ready)


class ProcessRecord:
    """A registered process: a driver, worker, tool, agent or node."""

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
        """Outcomes to send at the end of this turn."""
        self.singles = 0
        """Successive submissions of a single task."""
        self.direct: dict[bytes, DirectLease] = {}
        """Its direct leases by worker token, also ended ones whose last tasks may still arrive."""


STARTING, IDLE, LEASED, ENDING, HOSTING = range(5)
WORKER_STATES = ("starting", "idle", "busy", "ending", "actor")


class BlockedTask:
    """A task or call on a worker's stack that waits in ``get``; others may run on top of it."""

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
        """The actor whose call waits; empty for a task."""
        self.callees: dict[bytes, bytes] = {}
        """For wanted results of calls, the actor that is called."""
        self.barred = False
        """Whether something it needs is ready and needs another worker."""
        self.searched = -1
        """``Tables.became_ready`` when the last search for a task failed."""
        self.since = -1
        """``Tables.became_ready`` when the present search began; a search may take several turns."""
        self.position = 0
        """Number of ``wanted`` that the search has visited."""
        self.agenda: list[bytes] = []
        self.seen: set[bytes] = set()
        self.barring = False
        """Whether the present search is to set ``barred``."""
        self.found = False
        """Whether the last search found a task but no CPU: it may be repeated when there is one."""


class WorkerRecord:
    """A worker process of this node, from the request to start it."""

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
        """Where its demand was acquired."""
        self.gpus: tuple[int, ...] = ()
        """Its GPUs, until it exits."""
        self.used = False
        self.inflight: dict[bytes, TaskRecord] = {}
        """Tasks assigned to it, in the order in which it runs them."""
        self.work = 0.0
        """Estimated seconds of the tasks in flight."""
        self.functions: set[bytes] = set()
        self.direct: DirectLease | None = None
        """The direct lease of a driver that submits to it, or may still do so."""
        self.blocked_tasks: list[BlockedTask] = []
        """Waiting tasks and calls on its stack, outermost first."""
        self.waits = 0
        """Number of ``Blocked`` and ``Unblocked`` received: identifies the wait on top of its stack."""
        self.lent = False
        self.last_progress = now
        self.idle_since = now
        self.started_at = now
        self.taking_back = False
        self.kill_reason = ""
        self.end_reason = ""
        """Why it ends once nobody waits for results that only it has; else empty."""
        self.actors: dict[bytes, None] = {}
        """Ids of the actors in it: at most one, unless it is shared."""
        self.shared = False
        """Whether lightweight actors share it; it then runs nothing else."""
        self.delays: dict[bytes, Row] = {}
        """Long calls in a shared worker, by actor id: rows of ``HostDelays``."""
        self.running_call: Row = ()
        """The row of ``delays`` whose call runs; empty if none does."""

    remote = False

    @property
    def reserved_bytes(self) -> int:
        """Memory reserved by its actor or running task."""
        return dict(self.demand).get(MEMORY, 0) // RESOURCE_UNIT

    @property
    def behind(self) -> bool:
        """Whether tasks are queued behind the one on top."""
        return len(self.inflight) > 1 + len(self.blocked_tasks) and (self.queue is None or not self.queue.concurrency)

    @property
    def blocked(self) -> bool:
        """Whether the task on top of its stack waits."""
        return bool(self.blocked_tasks)


PROBE, SNAPSHOT, REPLICATE = range(3)
"""Progress of another node. PROBE: its daemon or this one is new, and it has yet to register; its messages are void. SNAPSHOT: it repeats
what it has of this node's. REPLICATE: it has repeated everything, and may be given tasks.
"""


class NodeRecord(WorkerRecord):
    """Another node: to a home, a worker of many tasks; to an executor, a home.

    "As home" and "as executor" name the part of *this* node.
    """

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
        """Whether nothing new is placed there."""
        self.full: dict[Demand, float] = {}
        """As home: demands that found no room there, and until when they are not tried."""
        self.reclaimable = False
        """As home: whether it may have tasks that it has not begun."""
        self.ends: PeerOutbox = PeerOutbox()
        """As executor: messages of ends."""
        self.inbox = PeerInbox()
        """As home: messages of ends to acknowledge."""
        self.daemon = b""
        """Incarnation of its daemon; empty before it has registered."""
        self.answered = b""
        """The daemon with which this node has registered after a restart of either."""
        self.progress = SNAPSHOT
        """How far it has registered with this daemon. Written by ``Peers``."""
        self.restarts = 0
        """How often it has registered again, after a restart of either daemon."""
        self.reported: dict[bytes, int] = {}
        """As home: attempts that it reports while it registers, by task."""
        self.repeated: set[bytes] = set()
        """As home: objects that it reports to hold while it registers."""

    @property
    def is_ready(self) -> bool:
        """Whether it has registered, and may be given tasks."""
        return self.progress == REPLICATE


class DirectLease:
    """A driver, and the worker to which it submits tasks itself."""

    __slots__ = ("died", "driver", "early", "ended", "functions", "over", "received", "sent", "submitted", "until", "waiting", "worker")

    def __init__(self, driver: ProcessRecord, worker: WorkerRecord) -> None:
        self.driver = driver
        self.worker = worker
        self.functions: set[bytes] = set()
        self.until = 0.0
        """The idle worker is reserved for the driver until then."""
        self.over = False
        """Whether the driver was notified of the end; the notice may be under way."""
        self.submitted: set[bytes] = set()
        """Tasks in flight that the driver submitted."""
        self.sent: list[TaskRecord] = []
        """Ended tasks whose values the worker has sent to the driver."""
        self.ended = 0
        """Values that the worker reports to have sent to the driver."""
        self.received = 0
        """Values that the driver reports to have received from the worker."""
        self.waiting: list[tuple[Address, Any]] = []
        """Messages of the driver that refer to values the worker has not reported."""
        self.early: dict[bytes, tuple[Row, Row | None] | None] = {}
        """The worker's reports ahead of the driver's: outcomes, or None for a returned task."""
        self.died: m.ProcessDied | None = None

    def reserves(self, queues: list[ShapeQueue], now: float) -> bool:
        """Whether the idle worker stays reserved: not while tasks of other shapes wait."""
        return not self.over and now < self.until and all(queue is self.worker.queue for queue in queues)


class JobRecord:
    """Everything that one driver caused. An ``ended`` job accepts nothing."""

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
        """The node of its driver; empty for this one."""
        self.functions: dict[bytes, FunctionRecord] = {}
        self.delegated: dict[bytes, FunctionRecord] = {}
        """Functions of tasks that other nodes have delegated to this one."""
        self.queues: dict[Shape, ShapeQueue] = {}
        self.queues_most = QUEUES_MOST
        self.ended = False
        self.reason = ""
        """Why it ended, if its driver did not request the end."""
        self.submitted = 0
        self.notices = 0
        """Notices to its driver that something runs again."""

    @property
    def program(self) -> Program:
        """The program, as described by its driver."""
        return Program.unpack(self.driver.name) if self.driver is not None else Program()


def attempt_text(task: TaskRecord, max_retries: int) -> str:
    """An attempt and those allowed, such as "2 of 4". ``max_retries`` is the default."""
    number, most = tries_of(task.attempt) + 1, task.option("max_retries", max_retries) + 1
    return f"{number} of {most}" if number <= most else str(number)  # Otherwise retries are unlimited, or a lost value was rebuilt.


def prefixes_of(task: TaskRecord, earlier: int = ATTEMPTS_LOOKED_AT) -> set[bytes]:
    """Id prefixes of the children of a task's last attempts."""
    node, daemons, tries = node_of(task.attempt), daemons_of(task.attempt), tries_of(task.attempt)
    attempts = [*range(task.attempt - min(tries, earlier), task.attempt + 1)]
    for before in range(max(0, daemons - DAEMONS_LOOKED_AT), daemons) if earlier else ():
        attempts += range(first_attempt(before, node), first_attempt(before, node) + TRIES_LOOKED_AT)
    return {child_prefix(task.id[:JOB_BYTES], task.id, 0, salt_of(attempt)) for attempt in attempts}
