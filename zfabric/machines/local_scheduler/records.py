"""The records of a local scheduler, one per thing: tasks and their values, functions, processes, workers, jobs.

A task with one return *is* the record of its value: separate records for results took twice the time and 70 % more memory. ``put`` values,
and values of tasks with several returns, have records of their own. Records form no cycles that outlive a task, so daemons run without the
cyclic collector.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

from zfabric.machines.common.lineage_blocks import LineageBlock
from zfabric.machines.common.naming import salt_of
from zfabric.machines.common.resources import NO_POOL, ResourcePool
from zfabric.machines.local_scheduler.group_records import GroupPool
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
from zfabric.protocol.messages import Row, Rows
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
"""WAITING for dependencies; READY in a queue; ASSIGNED to a worker (running, or next to run); DONE has an outcome."""

ATTEMPTS_LOOKED_AT = 16
"""Attempts of a parent for which children are searched."""
DAEMONS_LOOKED_AT = TRIES_LOOKED_AT = 4
"""The same for attempts that earlier daemons numbered: how many daemons, and how many attempts of each."""
STOPPED_MOST = 1000
"""Stopped tasks that may remain in a queue before it is cleaned."""
QUEUES_MOST = 1000
"""Queues of a job before the unneeded ones are removed; afterwards, twice the number that remained."""
PASSED_SECONDS = 1.0
"""How long tasks without inputs may be passed over by tasks whose inputs exist: a chain that goes on for ever has one ready at any time."""
RESULT_BYTES_PER_SECOND = 1e9
"""Large results that count, for prefetching, as one second of running time: a worker prefetches 5 MB of them at most."""
PENDING = -1
"""The ``status`` of a value that does not exist yet."""


class Stored:
    """A value in the object store, not in the scheduler's memory."""

    __slots__ = ("copies", "size")

    copies: tuple[bytes, ...]
    """Nodes that have requested it and may have a copy. It is not set before one has."""

    def __init__(self, size: int) -> None:
        self.size = size


class Elsewhere:
    """A value of this node that lies in the object store of another one, which retains it for this node."""

    __slots__ = ("asked", "copies", "place", "size")

    def __init__(self, size: int, place: bytes) -> None:
        self.size = size
        self.place = place
        """The node."""
        self.asked = False
        """Whether it is being copied to this node."""
        self.copies: tuple[bytes, ...] = ()
        """Further nodes that may have a copy."""


def copies_of(value: Stored | Elsewhere) -> tuple[bytes, ...]:
    """Nodes that may have a copy of a value, besides the one that retains it."""
    return getattr(value, "copies", ())


NOT_DURABLE = 0
DURABLE = 1
"""The control store of the head has a copy of a value, or may have one; its row goes with the record."""
FORMER = 2
"""The same for a value that a process has asked for by its id: its row stays. An earlier program may have put it, or a dead node."""


class ObjectRecord:
    """A value that exists or will exist. ``holders`` is None, one process incarnation, or a set of them.

    ``pins`` counts unfinished rows that name the object and live values that contain it: the value must be retained. ``named`` counts
    retained rows that name it: the row that makes it must be retained, although its value may be freed.
    """

    __slots__ = ("contained", "dependents", "durable", "fetchers", "holders", "id", "named", "pins", "status", "task", "value")

    def __init__(self, identifier: bytes, task: TaskRecord | None, holder: bytes | None) -> None:
        self.id = identifier
        self.task = task
        self.status = PENDING
        self.value: bytes | Stored | Elsewhere | None = None
        self.holders: bytes | set[bytes] | None = holder
        self.pins = 0
        self.named = 0
        self.contained: tuple[bytes, ...] = ()
        self.dependents: list[TaskRecord] | None = None
        self.fetchers: set[bytes] | None = None
        self.durable = NOT_DURABLE
        """Whether the control store of the head has a copy, or will: ``DURABLE``, ``FORMER`` or ``NOT_DURABLE``."""

    home = b""
    """The node where the object is at home; empty if that is this one."""

    @property
    def object_id(self) -> bytes:
        """The 20-byte id of the value."""
        return self.id


NO_HOME = b"no home!"
"""The home of an object that a restarted scheduler searches: processes refer to it, and no node has said yet that it is at home there."""


class BorrowedRecord(ObjectRecord):
    """An object of another node, as far as this one knows it. Its value here is a copy."""

    __slots__ = ("asked", "borrowed", "cancelled", "dropped", "former", "home", "row_retained")

    def __init__(self, identifier: bytes, home: bytes, former: bytes = b"") -> None:
        super().__init__(identifier, None, None)
        self.home = home
        self.former = former
        """The node where it was at home before, if that has died; else empty."""
        self.borrowed = False
        """Whether this node is registered at the home as a holder, or is about to be."""
        self.asked = b""
        """The home, if it was asked for the value; else empty."""
        self.cancelled: tuple[bool, bool] | None = None
        """How a process of this node has cancelled what makes it: (force, recursive)."""
        self.dropped = False
        """Whether a copy was dropped for want of room."""
        self.row_retained = False
        """Whether the home retains its row for rows of this node, or is about to."""

    @property
    def is_needed(self) -> bool:
        """Whether something of this node needs the object. Its home may hold it here, too: then this node retains the value for it."""
        holders = self.holders
        held = holders is not None and (len(holders - {self.home}) > 0 if isinstance(holders, set) else holders != self.home)
        return held or self.pins > 0


class ReferenceWatch:
    """Who is to be notified when nothing needs an object any more, and which other nodes have to answer before."""

    __slots__ = ("asked", "former", "searched", "watchers")

    def __init__(self) -> None:
        self.watchers: set[bytes] = set()
        """Processes of this node, and other nodes."""
        self.asked: set[bytes] = set()
        """Nodes that were asked whether something needs it, and have not answered."""
        self.former = b""
        """A node that was its home and has died, if this one is to take over from it; else empty."""
        self.searched = False
        """Whether its home was asked, or all nodes were, since nothing was known of it here."""


class RefusedRow(NamedTuple):
    """A row of another node that this one does not run: what its report takes of a task's record."""

    id: bytes
    attempt: int
    submitter: bytes
    """The home."""


class TaskRecord:
    """One task, with its value if it has exactly one. Fields that few tasks need are in ``rare``, which most tasks never have."""

    __slots__ = (
        "attempt",
        "block",
        "contained",
        "dependents",
        "fetchers",
        "function",
        "holders",
        "named",
        "outputs",
        "pins",
        "rare",
        "row",
        "state",
        "status",
        "submitter",
        "value",
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
        self.value: bytes | Stored | Elsewhere | None = None
        self.holders: bytes | set[bytes] | None = submitter
        self.pins = 0
        self.named = 0
        self.contained: tuple[bytes, ...] = ()
        self.dependents: list[TaskRecord] | None = None
        self.fetchers: set[bytes] | None = None
        self.outputs: tuple[ObjectRecord, ...] | None = None
        self.block: Any = None
        self.rare: TaskExtras | None = None

    home = b""
    """As in ``ObjectRecord``: records of tasks are at home here, or delegated, and then have no values."""

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
        """Options that this call sets in addition to those of its function."""
        return self.row[4] if len(self.row) > 4 else None

    def option(self, name: str, default: Any = None) -> Any:
        """An option of the call, or of the function if the call does not set it."""
        value = option(self.options, name)
        return option(self.function.options, name, default) if value is None else value

    @property
    def name(self) -> str:
        """The name that users see."""
        return self.option("name") or self.function.name

    def facts(self) -> TaskExtras:
        """The extra fields, made on first use."""
        rare = self.rare
        if rare is None or rare.common:
            self.rare = TaskExtras()
            if rare is not None:
                self.rare.demand_queue = rare.demand_queue
        return self.rare  # type: ignore[return-value]

    # Only these methods change ``state`` and ``worker``, and change them together: a task has a worker exactly while it is assigned.

    def wait(self, unresolved: int) -> None:
        """Record that the task waits for this number of dependencies."""
        self.function.done -= self.state == DONE
        self.function.waiting += self.state != WAITING
        self.state = WAITING
        self.worker = None
        self.facts().unresolved = unresolved

    def ready(self) -> None:
        """Record that any worker of its shape may run the task."""
        self.function.done -= self.state == DONE
        self.function.waiting -= self.state == WAITING
        self.state = READY
        self.worker = None

    def assign(self, worker: WorkerRecord) -> None:
        """Record that this worker is to run the ready task."""
        self.state = ASSIGNED
        self.worker = worker

    def finish(self) -> None:
        """Record that the task has its outcome."""
        self.function.done += self.state != DONE
        self.function.waiting -= self.state == WAITING
        self.state = DONE
        self.worker = None

    def limit_run(self) -> None:
        """Take over how long an attempt may take, if that is limited."""
        limit = self.function.run_timeout if len(self.row) == 4 else self.option("run_timeout")
        if limit is not None:
            self.facts().run_timeout = limit

    @property
    def runs_alone(self) -> bool:
        """Whether a worker that receives the task is to have nothing before it: it has been near a crash, or the time of its run counts."""
        rare = self.rare
        return rare is not None and (rare.crashes > 0 or rare.buried or rare.run_timeout is not None)

    def finish_assigned(self) -> None:
        """The same for a task that a worker has run."""
        self.function.done += 1
        self.state = DONE
        self.worker = None

    def values(self) -> tuple[TaskRecord | ObjectRecord, ...]:
        """Records of the task's values: the task itself, or separate ones."""
        return (self,) if self.outputs is None else self.outputs

    def contains(self) -> tuple[bytes, ...]:
        """Refs inside the arguments."""
        return option(self.options, "contains", ()) if len(self.row) > 4 else ()


AnyObject = TaskRecord | ObjectRecord


class EntrustedRow(NamedTuple):
    """A row that another home has entrusted to this node, the home of the job: rows ``(object, home)`` of what it names."""

    row: Row
    homes: Rows
    unfinished: bool = False
    """Whether it is to run if its home dies, even if nothing refers to its values."""
    block: LineageBlock | None = None
    """Where it is stored for the next daemon of this node."""


class RelayedStream(NamedTuple):
    """A stream that an actor of this node makes for a caller of another one."""

    home: bytes
    actor: bytes
    ahead: int
    """How many values it may be ahead of its consumer."""


class StreamRecord:
    """The values that a streaming task or call yields. The stream's own object, ``owner``, stands for its end."""

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
        """Id of the actor whose call makes the stream; empty for a task."""
        self.ahead = ahead
        """Number of values that may exist before anybody requests one."""
        self.count = 0
        """Number of values so far, over all attempts: values below it are not accepted again."""
        self.declared: int | None = None
        """Number of values that the last attempt which reached its end reported."""
        self.end: int | None = None
        """Number of values in all, once the stream has ended."""
        self.upto = ahead
        """One past the last value requested: how far the task may go."""
        self.allowed: tuple[bytes, int] | None = None
        """(worker token, ``upto``) as last sent to the worker that makes the stream."""
        self.unclaimed: set[int] = set()
        """Values that no process has held yet: the stream itself retains them."""
        self.pending: dict[int, ObjectRecord] = {}
        """Values that were requested and do not exist yet, or are to be made again."""
        self.values = 0
        """Number of its values that have records: while there are any, the row of its task is retained."""
        self.closed = False
        """Whether the last ref to the stream was dropped."""
        self.reached = (0, 0)
        """(attempt, number of values that it has yielded) of the task, as far as is known."""
        self.cut: int | None = None
        """The attempt of the task that is to end early and to run again, since values are lost that it had yielded."""

    @property
    def name(self) -> str:
        """The name that users see."""
        return self.owner.name if isinstance(self.owner, TaskRecord) else "a method"

    @property
    def whole(self) -> bool:
        """Whether all values of a task or call that succeeded have arrived: some may have been lost, or its attempt have ended early."""
        is_there = self.closed or (self.declared is not None and self.declared <= self.count)
        return is_there and self.count <= min(self.pending, default=self.count)

    @property
    def upto_now(self) -> int:
        """How far its maker may go now: to the end of what it yields at present if nobody reads it and no lost value is wanted."""
        is_over = self.closed and not self.pending
        attempt = self.owner.attempt if isinstance(self.owner, TaskRecord) else None
        return m.CLOSE if is_over or (self.cut is not None and self.cut == attempt) else self.upto

    def take_unclaimed(self) -> list[bytes]:
        """Ids of the values that the stream itself has retained, and retains no longer."""
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
        """Whether these belong to all tasks that differ from others of their function in their queue alone: they are not changed."""
        self.demand_queue = common
        """The queue of a task that sets options of its own."""
        self.unresolved = 0
        """Dependencies without a value."""
        self.waits_since = 0.0
        """When it began to wait for them; 0 if that was not noted."""
        self.retries = 0
        """Number of times the task was run again."""
        self.rebuilt = False
        """Whether it had an outcome and runs again because its value was lost. Then only force cancels it."""
        self.crashes = 0
        """Number of workers that died while it was on top."""
        self.alone = 0
        """Number of these workers that ran nothing else."""
        self.deadline: float | None = None
        self.run_timeout: float | None = None
        """Seconds that an attempt may take. Such a task is sent to a worker that begins it at once."""
        self.run_until: float | None = None
        """When those of the last attempt are over."""
        self.stopped = ""
        """Why an attempt is to be stopped: "cancelled", "timeout", "run_timeout", "force" (which kills), "killed", or empty."""
        self.stays = False
        """Whether it is to run at its home: what it returns cannot travel."""
        self.recursively = False
        """Whether what it submitted on another node is to be stopped with it."""
        self.running_on: WorkerRecord | None = None
        """The worker that has not stopped the task, although the task has its outcome. It is in flight there until the worker reports it or
        dies."""
        self.history: list[str] = []
        """How earlier attempts ended, for the text of a later error."""
        self.buried = False
        """Whether a task on top of it, or next to it, killed its worker after it had begun and before its end was reported. It runs alone
        now."""
        self.wait_locations: dict[bytes, Any] | None = None
        self.submitters: tuple[bytes, ...] = ()
        """Earlier processes that submitted it and wait for its outcome, besides ``submitter``."""
        self.lineage_weight = 0
        self.entrusted = False
        """Whether the home of its job has its row."""
        self.unfinished = False
        """Whether the home of its job is to run it if this node dies, even if nothing refers to its values: its parent has ended."""

    def made(self) -> None:
        """Reset what counts failures of ``__init__``, since the actor lives; the number of restarts stays."""
        self.crashes = self.alone = 0
        self.history.clear()


class FunctionRecord:
    """A function of a job, and how long its runs take."""

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
        """Whether its tasks are at home on other nodes, which receive the outcome of each attempt and decide what follows."""
        self.entrusted = False
        """Whether the home of the job has received it from this node."""
        self.name = name
        self.payload = payload
        self.options = options
        self.actor: bytes | None = option(options, "actor")
        """For a class: what a handle to an instance is made of. Calls of the class make actors."""
        self.demand: Demand = option(options, "demand", ONE_CPU if self.actor is None else ())
        self.environment: Environment = option(options, "env", NO_ENVIRONMENT)
        self.strategy: Strategy = option(options, "strategy", ())
        self.num_returns: int = option(options, "num_returns", 1)
        self.stream: int | None = option(options, "stream")
        """For a streaming function: how many values a stream may be ahead (0: as configured)."""
        self.mean: float | None = None
        """Exponential average of its running time in seconds; None before the first has finished."""
        self.result_bytes = 0.0
        """Bytes of large values that a run returned lately, at most; 0 if its results are small."""
        self.cost: float | None = None
        """Seconds of the prefetch of a worker that one task takes: its running time, and more if its results are large."""
        self.received = 0
        """Records of its tasks that were made. Whoever makes one counts it."""
        self.done = 0
        """Those of them with an outcome, also if the record is gone. Changes of a record's state are counted there."""
        self.failed = 0
        """Tasks that have failed, also those that never ran."""
        self.waiting = 0
        """Records of tasks that wait for arguments."""
        self.shared: bool = self.actor is not None and option(options, "lightweight", False)
        """Whether the actors that it makes share processes."""
        self.concurrency: int = option(options, "max_concurrency", 0) if self.actor is None else 0
        """Number of its tasks that one worker runs at the same time, in an event loop (``async def``); 0: one, on its stack."""
        self.inline: bool = option(options, "inline", True) and not self.concurrency
        """Whether its tasks may run on top of one that waits."""
        usual = self.num_returns == 1 and self.actor is None and self.stream is None
        usual = usual and option(options, "timeout") is None and option(options, "run_timeout") is None
        self.plain = usual and not delegated
        self.run_timeout: float | None = option(options, "run_timeout")
        """Seconds that an attempt may take, if the call does not say."""
        self.queue: ShapeQueue
        self.by_strategy: dict[Strategy, TaskExtras] = {}
        """What tasks have in common whose only option is this strategy."""

    @property
    def shape(self) -> Shape:
        """Shape of its tasks that set no options of their own."""
        makes = TASKS if self.actor is None else SHARING if self.shared else ACTORS
        strategy = in_bundle(self.strategy) if self.delegated else self.strategy
        return self.demand, self.environment, makes, self.concurrency, self.delegated, strategy

    @property
    def unfinished(self) -> int:
        """Records of its tasks without an outcome."""
        return self.received - self.done

    def learn(self, count: int, seconds: float) -> None:
        """Update ``mean`` with ``count`` runs that took ``seconds`` together."""
        mean = seconds / count
        self.mean = self.cost = mean if self.mean is None else self.mean + (mean - self.mean) * (0.2 if count < 8 else 0.5)
        if self.result_bytes:
            self._set_result_bytes(self.result_bytes * 0.8**count)

    def learn_size(self, outputs: Row) -> None:
        """Note what a run has returned, of which something may be large: a place in the arena, or the size of a value on another node."""
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
"""What tasks of one queue share: demand, environment, what they make, how many run at the same time, whether they are delegated, and on
which nodes they may run."""


class ShapeQueue:
    """Ready tasks of one job and shape: any worker of that job and environment can run any of them.

    They are in two lines. ``consumers`` go before ``tasks``: what they read is freed, and what they need exists once. Were all tasks that
    only produce to run first, all that they produce would exist at once.
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
        """Whether its tasks are dealt out to nodes by their strategy, and none is dispatched from here."""
        self.group: GroupTerm | None = group_of(self.strategy)
        """The placement group in which its tasks run."""
        self.only = only_node(self.strategy)
        """The node on which its tasks are to run; empty if there may be several."""
        self.pool: ResourcePool | GroupPool = NO_POOL
        """What its tasks use: the node's resources, or those of bundles. ``Tables.queue_for`` sets it."""
        self.job = job
        self.concurrency = concurrency
        """Number of its tasks that one worker runs at the same time, in an event loop; 0: one, on its stack."""
        self.actors = makes == ACTORS
        """Whether its tasks make actors with a process each: they take a worker for life."""
        self.shared = makes == SHARING
        """Whether its tasks make actors that share processes. Such a process is leased as long as any of them lives there."""
        self.for_life = self.actors or self.shared
        """Whether what its tasks make remains in the worker."""
        self.demand = demand
        self.environment = environment
        self.token = token
        self.gpus: int = dict(demand).get("GPU", 0)
        """GPUs of the demand, in 1/10,000."""
        self.light = all(name == "CPU" and amount <= RESOURCE_UNIT for name, amount in demand)
        """Whether its tasks need no more than the CPU that a blocked worker lends, so that they may run on top of it."""
        self.consumers: deque[TaskRecord] = deque()
        """Ready tasks whose inputs were made: those with the newest inputs first, then those whose inputs were there when they arrived or
        lie on another node, in order. Some are no longer ready: those are skipped."""
        self.tasks: deque[TaskRecord] = deque()
        """The other ready tasks, in order: those without inputs, or with small ones that were there when they arrived."""
        self.passed_since: float | None = None
        """Since when consumers have gone before ``tasks``, none of which has begun."""
        self.stopped = 0
        """Number of tasks in it that were stopped since it was last cleaned."""
        self.leased: dict[bytes, WorkerRecord] = {}
        """Workers that hold the queue's resources, by token."""
        self.feasible: bool | None = None
        """Whether this node could run its tasks if it were empty; None before the first check."""
        self.infeasible_since: float | None = None
        self.warned = False
        self.placed = False
        """Whether a global scheduler was asked for a node for these tasks."""

    def __len__(self) -> int:
        return len(self.consumers) + len(self.tasks)

    def __iter__(self) -> Iterator[TaskRecord]:
        return chain(self.consumers, self.tasks)

    def __reversed__(self) -> Iterator[TaskRecord]:
        return chain(reversed(self.tasks), reversed(self.consumers))

    @property
    def first(self) -> TaskRecord:
        """The task at its head; there is one."""
        return (self.consumers or self.tasks)[0]

    @property
    def last(self) -> TaskRecord:
        """The task at its end; there is one."""
        return (self.tasks or self.consumers)[-1]

    def line(self, now: float) -> deque[TaskRecord]:
        """The line whose first task is next: the consumers, unless the others have been passed over for long."""
        if not self.tasks:
            self.passed_since = None
            return self.consumers
        if not self.consumers:
            return self.tasks
        if self.passed_since is None:
            self.passed_since = now
        return self.tasks if now - self.passed_since > PASSED_SECONDS else self.consumers

    def drop_stale(self) -> int:
        """Remove tasks from its head that are no longer ready; return the number of those left."""
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
        """Count a task that was stopped. Once more than half are, remove them: they may be behind a task that waits for long."""
        self.stopped += 1
        if self.stopped > max(STOPPED_MOST, len(self) // 2):
            self.stopped = 0
            for line in (self.consumers, self.tasks):
                ready = [task for task in line if task.state == READY]
                line.clear()
                line.extend(ready)


class ProcessRecord:
    """A registered process, by its incarnation: a driver, worker or tool."""

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
        "unconfirmed",
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
        """Number of times in a row that it has submitted a single task."""
        self.direct: dict[bytes, DirectLease] = {}
        """Its direct leases, by worker token, including those that have ended and whose last tasks may still arrive."""


STARTING, IDLE, LEASED, ENDING, HOSTING = range(5)
WORKER_STATES = ("starting", "idle", "busy", "ending", "actor")


class BlockedTask:
    """A task or call on a worker's stack that waits in ``get`` while others may run on top of it."""

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
        """Whether it goes on only once all its wanted objects exist."""
        self.at: float | None = None
        """When it began to wait; None if that was before a restart."""
        self.name = ""
        """Name of the waiting call; empty for a task."""
        self.actor = b""
        """Id of the actor whose call waits; empty for a task."""
        self.callees: dict[bytes, bytes] = {}
        """For wanted objects that calls will make: the actor that is called."""
        self.barred = False
        """Whether something it waits for is ready and may not run on top of it, and so needs another worker."""
        self.searched = -1
        """The value of ``Tables.became_ready`` when a search for a task to run on top last failed."""
        self.since = -1
        """The value of ``Tables.became_ready`` when the present search began. A search goes on for several turns."""
        self.position = 0
        """How many of ``wanted`` the search has visited."""
        self.agenda: list[bytes] = []
        self.seen: set[bytes] = set()
        self.barring = False
        """Whether the present search has found something that sets ``barred``."""
        self.found = False
        """Whether the last search found a task for which there was no CPU: it may start again when there is one."""


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
        """GPUs assigned to it, until it exits."""
        self.used = False
        """Whether it has received any task."""
        self.inflight: dict[bytes, TaskRecord] = {}
        """Tasks assigned to it and not finished, in the order in which it will run them."""
        self.work = 0.0
        """Estimated seconds that its tasks in flight will take."""
        self.functions: set[bytes] = set()
        self.direct: DirectLease | None = None
        """The direct lease of the driver that submits tasks to it itself, or may still do so."""
        self.blocked_tasks: list[BlockedTask] = []
        """Tasks and calls on its stack that wait, outermost first."""
        self.waits = 0
        """Number of ``Blocked`` and ``Unblocked`` messages it has sent: identifies the wait on top of its stack."""
        self.lent = False
        """Whether its CPU is lent to others while it is blocked."""
        self.last_progress = now
        self.idle_since = now
        self.started_at = now
        self.taking_back = False
        self.kill_reason = ""
        self.end_reason = ""
        """Why it is to end once no other process waits for results that only it has; empty if it is not to end, or is already being killed.
        """
        self.actors: dict[bytes, None] = {}
        """Ids of the actors that live in it: at most one, unless it is shared."""
        self.shared = False
        """Whether lightweight actors share it: then it runs nothing else."""
        self.delays: dict[bytes, Row] = {}
        """Calls that have lasted in a shared worker, by actor id: rows as in ``HostDelays``."""
        self.running_call: Row = ()
        """The row of ``delays`` whose call runs; empty if none does."""

    remote = False
    """Whether it is on another node."""

    @property
    def reserved_bytes(self) -> int:
        """How much memory its actor, or the task that it runs, has reserved."""
        return dict(self.demand).get(MEMORY, 0) // RESOURCE_UNIT

    @property
    def behind(self) -> bool:
        """Whether tasks are queued behind the one on top."""
        return len(self.inflight) > 1 + len(self.blocked_tasks) and (self.queue is None or not self.queue.concurrency)

    @property
    def blocked(self) -> bool:
        """Whether the task on top of its stack waits."""
        return bool(self.blocked_tasks)


class CallerReceipt:
    """Which outcomes of calls on another node a process of this one has received, by the numbers of the messages that they came in."""

    __slots__ = ("received", "requested", "sent", "token")

    def __init__(self) -> None:
        self.sent = 0
        """The last message of which outcomes were sent to the process."""
        self.received = 0
        """It has received the outcomes up to this one."""
        self.token = 0
        """The request for a receipt that it has not answered; 0 if there is none."""
        self.requested = 0
        """What was sent when that was requested."""


class NodeRecord(WorkerRecord):
    """Another node, as it is to the home of tasks: a worker that runs many of them at once, in any order.

    It may be a home whose tasks this node runs, too. Attributes that belong to one of these parts name the part of *this* node.
    """

    __slots__ = (
        "answered",
        "daemon",
        "draining",
        "ends_received",
        "full",
        "labels",
        "name",
        "next_end",
        "number",
        "pinned",
        "receipts",
        "reclaimable",
        "registered",
        "repeated",
        "reported",
        "requested",
        "resources",
        "restarts",
        "unconfirmed",
        "unreceived",
    )

    remote = True

    def __init__(self, node: bytes, number: int, name: str, resources: dict[str, int], labels: dict[str, str], now: float) -> None:
        super().__init__(node, None, NO_ENVIRONMENT, now)
        self.number = number
        self.name = name
        self.resources = resources
        self.labels = labels
        self.draining = False
        """Whether nothing new is to be placed there."""
        self.full: dict[Demand, float] = {}
        """As home: demands for which actors or bundles left no room there when it was tried, and until when it is not tried again."""
        self.reclaimable = False
        """As home: whether it may have tasks of this node that it has not begun. Some were sent since it last had none to return."""
        self.ends_received: int | None = None
        """As home: the newest message of ended attempts that is to be acknowledged (``Tables.owed``)."""
        self.receipts: dict[bytes, CallerReceipt] = {}
        """As home: processes here that may not have received all outcomes of their calls there."""
        self.requested = False
        """As home: whether their receipts were requested for the next acknowledgement."""
        self.next_end = 1
        """As executor: the number of the next message of ended attempts."""
        self.pinned: dict[int, tuple[bytes, ...]] = {}
        """As executor: objects that are pinned until a message of ended attempts is acknowledged, by its number."""
        self.unreceived: deque[m.Ended | m.CallsEnded | m.RelayedYields] = deque()
        """As executor: messages of ended attempts that the home has not acknowledged."""
        self.unconfirmed: dict[bytes, deque[m.CallsEnded]] = {}
        """As executor: acknowledged outcomes of calls that their callers may not have received, by caller."""
        self.daemon = b""
        """The incarnation of its daemon; empty before it has registered."""
        self.answered = b""
        """The daemon that this node has registered with, if one of the two was restarted."""
        self.registered = True
        """Whether its daemon has registered with this one, if one of the two was restarted: what came before is void."""
        self.restarts = 0
        """How often another daemon of it has registered, or the same one again with this restarted one."""
        self.reported: dict[bytes, int] = {}
        """As home: the attempts that it reports to have while it registers, by task."""
        self.repeated: set[bytes] = set()
        """As home: the objects that it reports to hold while it registers."""

    @property
    def is_ready(self) -> bool:
        """Whether its daemon has registered with this one, so that it may be given tasks."""
        return self.process is not None and self.process.ready


class DirectLease:
    """A driver and the worker to which it submits tasks itself."""

    __slots__ = ("died", "driver", "early", "ended", "functions", "over", "received", "sent", "submitted", "until", "waiting", "worker")

    def __init__(self, driver: ProcessRecord, worker: WorkerRecord) -> None:
        self.driver = driver
        self.worker = worker
        self.functions: set[bytes] = set()
        self.until = 0.0
        """The idle worker is reserved for the driver until then."""
        self.over = False
        """Whether the driver was notified to submit no more. The notice may not have arrived yet."""
        self.submitted: set[bytes] = set()
        """Tasks in flight that the driver submitted to the worker."""
        self.sent: list[TaskRecord] = []
        """Ended tasks whose values the worker has sent to the driver."""
        self.ended = 0
        """Number of values that the worker reported to have sent to the driver."""
        self.received = 0
        """Number of values that the driver reported to have received from the worker."""
        self.waiting: list[tuple[Address, Any]] = []
        """Messages of the driver that refer to more values than the worker has reported."""
        self.early: dict[bytes, tuple[Row, Row | None] | None] = {}
        """The worker's reports on tasks that the driver has not reported yet: outcomes, or None for a task that it returned."""
        self.died: m.ProcessDied | None = None
        """How the worker died, if it did."""

    def reserves(self, queues: list[ShapeQueue], now: float) -> bool:
        """Whether the idle worker stays reserved for its driver: not while tasks of other shapes wait."""
        return not self.over and now < self.until and all(queue is self.worker.queue for queue in queues)


class JobRecord:
    """Everything that one driver caused. An ``ended`` job accepts nothing more."""

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
        """The node of its driver; empty if that is this one."""
        self.functions: dict[bytes, FunctionRecord] = {}
        self.delegated: dict[bytes, FunctionRecord] = {}
        """Functions of tasks of this job that other nodes have delegated to this one."""
        self.queues: dict[Shape, ShapeQueue] = {}
        self.queues_most = QUEUES_MOST
        self.ended = False
        self.reason = ""
        """Why it ended, if its driver did not request it."""
        self.submitted = 0
        self.notices = 0
        """Number of notices to its driver that something runs again."""

    @property
    def program(self) -> Program:
        """The program, as far as its driver has said."""
        return Program.unpack(self.driver.name) if self.driver is not None else Program()


def attempt_text(task: TaskRecord, max_retries: int) -> str:
    """Number of an attempt and of the attempts allowed, counted from 1, as text. ``max_retries`` applies where options set none."""
    number, most = tries_of(task.attempt) + 1, task.option("max_retries", max_retries) + 1
    return f"{number} of {most}" if number <= most else str(number)  # Otherwise retries are unlimited, or a lost value was rebuilt.


def make_outputs(task: TaskRecord, count: int) -> None:
    """Make the records of values for a task with ``count`` != 1 returns."""
    task.outputs = tuple(ObjectRecord(object_id(task.id, index), task, task.submitter) for index in range(count))


def prefixes_of(task: TaskRecord, earlier: int = ATTEMPTS_LOOKED_AT) -> set[bytes]:
    """Prefixes of the ids of a task's children, for its last attempts: children of earlier ones have long been dropped."""
    node, daemons, tries = node_of(task.attempt), daemons_of(task.attempt), tries_of(task.attempt)
    attempts = [*range(task.attempt - min(tries, earlier), task.attempt + 1)]
    for before in range(max(0, daemons - DAEMONS_LOOKED_AT), daemons) if earlier else ():
        attempts += range(first_attempt(before, node), first_attempt(before, node) + TRIES_LOOKED_AT)
    return {child_prefix(task.id[:JOB_BYTES], task.id, 0, salt_of(attempt)) for attempt in attempts}
