"""What a local scheduler knows, one record per thing: tasks and their values, functions, processes, workers, jobs.

A task with one return *is* the record of its value: a table of results of its own cost twice the time and 70 % more memory.
``put`` values and the values of tasks with several returns have records of their own. Records form no cycles that outlive
a task, so that daemons can run without the cyclic collector.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from zfabric.machines.common.naming import salt_of
from zfabric.protocol import messages as m
from zfabric.protocol.ids import (
    FIRST_RETURN,
    JOB_BYTES,
    TASK_BYTES,
    Address,
    child_prefix,
    daemons_of,
    first_attempt,
    object_id,
    tries_of,
)
from zfabric.protocol.messages import Row
from zfabric.protocol.options import NO_ENVIRONMENT, ONE_CPU, RESOURCE_UNIT, Demand, Environment, option

WAITING, READY, ASSIGNED, DONE = range(4)
STATE_NAMES = ("waiting", "ready", "assigned", "finished")
"""WAITING for dependencies; READY in a queue; ASSIGNED to a worker (running, or next to run); DONE has an outcome."""

ATTEMPTS_LOOKED_AT = 16
"""Attempts of a parent whose children are looked for."""
DAEMONS_LOOKED_AT = TRIES_LOOKED_AT = 4
"""Likewise, of those that earlier daemons gave out: how many daemons, and how many attempts of each."""
STOPPED_MOST = 1000
"""Tasks that may be in a queue although they were stopped."""
QUEUES_MOST = 1000
"""Queues of a job before those that nobody needs are looked for; twice as many as were needed when that was done last."""
PENDING = -1
"""The ``status`` of a value that does not exist yet."""


class Stored:
    """A value that is in the object store rather than in the scheduler's memory."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size


class ObjectRecord:
    """A value that exists or will. ``holders`` is None, one process incarnation, or a set of them.

    ``pins`` counts unfinished rows that name the object and live values that contain it: the value must stay. ``named``
    counts kept rows that name it: the row that makes it must stay, though its value may go.
    """

    __slots__ = ("contained", "dependents", "durable", "fetchers", "holders", "id", "named", "pins", "status", "task", "value")

    def __init__(self, identifier: bytes, task: TaskRecord | None, holder: bytes | None) -> None:
        self.id = identifier
        self.task = task
        self.status = PENDING
        self.value: bytes | Stored | None = None
        self.holders: bytes | set[bytes] | None = holder
        self.pins = 0
        self.named = 0
        self.contained: tuple[bytes, ...] = ()
        self.dependents: list[TaskRecord] | None = None
        self.fetchers: set[bytes] | None = None
        self.durable = False
        """Whether the control store has a copy."""

    @property
    def object_id(self) -> bytes:
        """The 20-byte id of the value."""
        return self.id


class TaskRecord:
    """One task, with its value where it has exactly one. Rare facts live in ``rare``, which most tasks never have."""

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
        self.value: bytes | Stored | None = None
        self.holders: bytes | set[bytes] | None = submitter
        self.pins = 0
        self.named = 0
        self.contained: tuple[bytes, ...] = ()
        self.dependents: list[TaskRecord] | None = None
        self.fetchers: set[bytes] | None = None
        self.outputs: tuple[ObjectRecord, ...] | None = None
        self.block: Any = None
        self.rare: TaskExtras | None = None

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
        """A task's value is made by the task."""
        return self

    @property
    def options(self) -> tuple[Row, ...] | None:
        """What this call set apart from its function's own options."""
        return self.row[4] if len(self.row) > 4 else None

    def option(self, name: str, default: Any = None) -> Any:
        """An option of the call, else of the function."""
        value = option(self.options, name)
        return option(self.function.options, name, default) if value is None else value

    @property
    def name(self) -> str:
        """What people call it."""
        return self.option("name") or self.function.name

    def facts(self) -> TaskExtras:
        """The record of the rare facts, made on first use."""
        if self.rare is None:
            self.rare = TaskExtras()
        return self.rare

    # Only these change ``state`` and ``worker``, and change them together: a task has a worker exactly while it is assigned.

    def wait(self, unresolved: int) -> None:
        """It waits for so many dependencies."""
        self.state = WAITING
        self.worker = None
        self.facts().unresolved = unresolved

    def ready(self) -> None:
        """It can be given to any worker of its shape."""
        self.state = READY
        self.worker = None

    def assign(self, worker: WorkerRecord) -> None:
        """It is a worker's to run."""
        self.state = ASSIGNED
        self.worker = worker

    def finish(self) -> None:
        """It has its outcome."""
        self.state = DONE
        self.worker = None

    def values(self) -> tuple[TaskRecord | ObjectRecord, ...]:
        """The records of its values: itself, or those of its own."""
        return (self,) if self.outputs is None else self.outputs

    def contains(self) -> tuple[bytes, ...]:
        """Refs inside its arguments."""
        return option(self.options, "contains", ()) if len(self.row) > 4 else ()


AnyObject = TaskRecord | ObjectRecord


class StreamRecord:
    """The values that a streaming task, or a call of an actor, yields; its own value, ``owner``, stands for the end of the stream."""

    __slots__ = ("actor", "ahead", "closed", "count", "declared", "end", "owner", "pending", "told", "unclaimed", "upto")

    def __init__(self, owner: AnyObject, ahead: int, actor: bytes) -> None:
        self.owner = owner
        self.actor = actor
        """Whose call it is; empty for a task."""
        self.ahead = ahead
        """Values that may exist before anybody has asked for one."""
        self.count = 0
        """Values so far, over all attempts: those below are not made again."""
        self.declared: int | None = None
        """How many values the last attempt that came to its end says there are."""
        self.end: int | None = None
        """How many there are in all, once that is known."""
        self.upto = ahead
        """One past the last value asked for, and so how far the task may go."""
        self.told: tuple[bytes, int] | None = None
        """Which worker was told last how far it may go, since it began."""
        self.unclaimed: set[int] = set()
        """Values that no process has held yet: the stream itself keeps them."""
        self.pending: dict[int, ObjectRecord] = {}
        """Values that were asked for and do not exist yet."""
        self.closed = False
        """Whether the last reference to the stream went while its task was not done."""

    @property
    def name(self) -> str:
        """What people call it."""
        return self.owner.name if isinstance(self.owner, TaskRecord) else "a method"

    @property
    def whole(self) -> bool:
        """Whether all values have come of a task or call that has succeeded: some may have gone with the daemon before this one."""
        return self.closed or (self.declared is not None and self.declared <= self.count <= min(self.pending, default=self.count))

    def value(self, index: int) -> bytes:
        """The id of its ``index``-th value."""
        return object_id(self.owner.object_id[:TASK_BYTES], index + 1)


class TaskExtras:
    """What only some tasks have."""

    __slots__ = (
        "alone",
        "buried",
        "crashes",
        "deadline",
        "demand_queue",
        "goes_on",
        "history",
        "kept",
        "rebuilt",
        "retries",
        "stopped",
        "submitters",
        "unresolved",
        "wait_locations",
    )

    def __init__(self) -> None:
        self.unresolved = 0
        """Dependencies without a value yet."""
        self.retries = 0
        """Times it was run again."""
        self.rebuilt = False
        """Whether it had an outcome and runs again for its value, which was lost: only force takes that outcome back."""
        self.crashes = 0
        """Workers that died while it was on top."""
        self.alone = 0
        """Of those, the ones that ran nothing else."""
        self.deadline: float | None = None
        self.stopped = ""
        """Why an attempt was asked to stop: "cancelled", "timeout", or empty; "force" kills."""
        self.goes_on: WorkerRecord | None = None
        """The worker that does not stop it, although it has its outcome. It is in flight there until the worker reports it, or dies."""
        self.history: list[str] = []
        """How earlier attempts ended, for the error that may come."""
        self.buried = False
        """Whether its worker was once killed by what ran on top of it, or next, before its own end was heard: nothing does any more."""
        self.wait_locations: dict[bytes, Any] | None = None
        self.submitters: tuple[bytes, ...] = ()
        """Processes that submitted it before the last one did: they too wait for its outcome."""
        self.demand_queue: ShapeQueue | None = None
        self.kept = 0

    def made(self) -> None:
        """The actor lives: what its making has cost says nothing of the next time, but for the restarts that are left."""
        self.crashes = self.alone = 0
        self.history.clear()


class FunctionRecord:
    """A function of a job, and what is known of how long it takes."""

    __slots__ = (
        "actor",
        "concurrency",
        "demand",
        "environment",
        "id",
        "inline",
        "mean",
        "name",
        "num_returns",
        "options",
        "payload",
        "plain",
        "queue",
        "shared",
        "stream",
    )

    def __init__(self, identifier: bytes, name: str, payload: bytes, options: tuple[Row, ...]) -> None:
        self.id = identifier
        self.name = name
        self.payload = payload
        self.options = options
        self.actor: bytes | None = option(options, "actor")
        """If it is a class, what a handle to one of its instances is made of; its calls make actors."""
        self.demand: Demand = option(options, "demand", ONE_CPU if self.actor is None else ())
        self.environment: Environment = option(options, "env", NO_ENVIRONMENT)
        self.num_returns: int = option(options, "num_returns", 1)
        self.stream: int | None = option(options, "stream")
        """If its calls make streams, how many values those may be ahead (0: as configured)."""
        self.mean: float | None = None
        """Exponential average of its running time in seconds; None before the first has finished."""
        self.shared: bool = self.actor is not None and option(options, "lightweight", False)
        """Whether the actors that its calls make share processes with others."""
        self.concurrency: int = option(options, "max_concurrency", 0) if self.actor is None else 0
        """How many of its tasks one worker runs beside each other, in an event loop (``async def``); 0: one, on its stack."""
        self.inline: bool = option(options, "inline", True) and not self.concurrency
        """Whether its tasks may run on top of one that waits."""
        self.plain = self.num_returns == 1 and option(options, "timeout") is None and self.actor is None and self.stream is None
        self.queue: ShapeQueue

    @property
    def shape(self) -> Shape:
        """That of its tasks, if they do not say otherwise."""
        makes = TASKS if self.actor is None else SHARING if self.shared else ACTORS
        return self.demand, self.environment, makes, self.concurrency

    def learn(self, count: int, seconds: float) -> None:
        """Take in ``count`` runs that took ``seconds`` together."""
        mean = seconds / count
        self.mean = mean if self.mean is None else self.mean + (mean - self.mean) * (0.2 if count < 8 else 0.5)


TASKS, ACTORS, SHARING = range(3)
"""What tasks make: values, actors with a process each, actors that share processes."""
Shape = tuple[Demand, Environment, int, int]
"""What tasks of one queue have in common: demand, environment, what they make, how many run beside each other."""


class ShapeQueue:
    """Ready tasks of one job, environment and demand: any worker of that job and environment can run any of them."""

    __slots__ = (
        "actors",
        "concurrency",
        "demand",
        "environment",
        "feasible",
        "for_life",
        "gpus",
        "infeasible_since",
        "job",
        "leased",
        "light",
        "placed",
        "shape",
        "shared",
        "stopped",
        "tasks",
        "token",
        "warned",
    )

    def __init__(self, shape: Shape, job: JobRecord, token: int) -> None:
        demand, environment, makes, concurrency = self.shape = shape
        self.job = job
        self.concurrency = concurrency
        """How many of its tasks one worker runs beside each other, in an event loop; 0: one, on its stack."""
        self.actors = makes == ACTORS
        """Whether its tasks make actors with a process each: a worker for life."""
        self.shared = makes == SHARING
        """Whether they make actors that share processes, which are leased for as long as any lives there."""
        self.for_life = self.actors or self.shared
        """Whether what its tasks make stays in the worker."""
        self.demand = demand
        self.environment = environment
        self.token = token
        self.gpus: int = dict(demand).get("GPU", 0)
        """GPUs of the demand, in 1/10,000."""
        self.light = all(name == "CPU" and amount <= RESOURCE_UNIT for name, amount in demand)
        """Whether its tasks need no more than the CPU that a blocked worker lends: they may run on top of it."""
        self.tasks: deque[TaskRecord] = deque()
        """Those that are ready, and some that were and are not any more: they are passed over."""
        self.stopped = 0
        """How many of them were stopped since they were looked through."""
        self.leased: dict[bytes, WorkerRecord] = {}
        """Workers that hold the queue's resources now, by token."""
        self.feasible: bool | None = None
        """Whether this node could ever run its tasks, were it empty; None until somebody looked."""
        self.infeasible_since: float | None = None
        self.warned = False
        self.placed = False
        """Whether a global scheduler was asked where such tasks could run."""

    def __len__(self) -> int:
        return len(self.tasks)

    def stop_one(self) -> None:
        """One of its tasks is ready no more. Where they are most of all, behind one that waits for long, they go."""
        self.stopped += 1
        if self.stopped > max(STOPPED_MOST, len(self.tasks) // 2):
            self.stopped = 0
            ready = [task for task in self.tasks if task.state == READY]
            self.tasks.clear()
            self.tasks.extend(ready)


class ProcessRecord:
    """A registered process: driver, worker or tool, by its incarnation."""

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
        """Outcomes to be pushed at the end of this turn."""
        self.singles = 0
        """How often in a row it has submitted one task alone."""
        self.direct: dict[bytes, DirectLease] = {}
        """Workers to which it hands tasks itself, or may still do so, by token."""


STARTING, IDLE, LEASED, ENDING, HOSTING = range(5)
WORKER_STATES = ("starting", "idle", "busy", "ending", "actor")


class BlockedTask:
    """A task on a worker's stack that waits in ``get`` while others may run on top of it."""

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
        """Whether it goes on only once all is there that it wants."""
        self.at: float | None = None
        """When it began to wait; None if that was before a restart."""
        self.name = ""
        """What waits, if it is a call."""
        self.actor = b""
        """The actor that is called, if it is one."""
        self.callees: dict[bytes, bytes] = {}
        """Of those of them that calls are to give, the actors that are called."""
        self.barred = False
        """Whether something it waits for is ready and may not run on top of it, and so needs another worker."""
        self.searched = -1
        """How many tasks had become ready when one for it was last looked for in vain."""
        self.since = -1
        """How many had when the search began that is under way: a part of what it waits for is looked at in each turn."""
        self.position = 0
        """How far that has come in what it waits for directly."""
        self.agenda: list[bytes] = []
        self.seen: set[bytes] = set()
        self.barring = False
        """Whether it is barred by something that this search has come across."""
        self.found = False
        """Whether the last search found something for which there was no CPU: it may begin again when there is one."""


class WorkerRecord:
    """A worker process of this node, from the moment it is asked for."""

    __slots__ = (
        "actors",
        "delays",
        "demand",
        "direct",
        "end_reason",
        "environment",
        "frames",
        "functions",
        "gpus",
        "idle_since",
        "inflight",
        "job",
        "kill_reason",
        "last_progress",
        "lent",
        "pid",
        "process",
        "queue",
        "shared",
        "started_at",
        "state",
        "taking_back",
        "token",
        "turn",
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
        self.gpus: tuple[int, ...] = ()
        """Those that it was given. It has them until it ends."""
        self.used = False
        """Whether it was given any task."""
        self.inflight: dict[bytes, TaskRecord] = {}
        """Tasks given to it and not finished, in the order in which it will run them."""
        self.work = 0.0
        """Estimated seconds of what is in flight."""
        self.functions: set[bytes] = set()
        self.direct: DirectLease | None = None
        """The driver that hands tasks to it, or may still do so."""
        self.frames: list[BlockedTask] = []
        self.waits = 0
        """How often its process has sent that a task begins to wait, or waits no longer: names the wait that is on top."""
        self.lent = False
        """Whether its CPU is lent to others while it is blocked."""
        self.last_progress = now
        self.idle_since = now
        self.started_at = now
        self.taking_back = False
        self.kill_reason = ""
        self.end_reason = ""
        """Why it is to end once nobody waits for what only it will have; empty if it is not to, or is being killed."""
        self.actors: dict[bytes, None] = {}
        """The actor it is, if it is one; those that it is, if it is shared."""
        self.shared = False
        """Whether lightweight actors share it: then it runs nothing else."""
        self.delays: dict[bytes, Row] = {}
        """What lasts there, by actor: rows as in ``HostDelays``."""
        self.turn: Row = ()
        """That of them whose turn it is."""

    @property
    def behind(self) -> bool:
        """Whether something waits behind the task on top."""
        return len(self.inflight) > 1 + len(self.frames) and (self.queue is None or not self.queue.concurrency)

    @property
    def blocked(self) -> bool:
        """Whether the task on top of its stack waits."""
        return bool(self.frames)


class DirectLease:
    """A driver and the worker to which it hands tasks itself."""

    __slots__ = ("died", "driver", "early", "ended", "functions", "handed", "known", "over", "told", "until", "waiting", "worker")

    def __init__(self, driver: ProcessRecord, worker: WorkerRecord) -> None:
        self.driver = driver
        self.worker = worker
        self.functions: set[bytes] = set()
        self.until = 0.0
        """The worker is kept for the driver until then, with nothing to run."""
        self.over = False
        """Whether the driver was told to hand over no more. It may not have heard of it yet."""
        self.handed: set[bytes] = set()
        """Tasks that the worker got from the driver and that have not ended."""
        self.told: list[TaskRecord] = []
        """Those that have ended, of which the worker has told the driver."""
        self.ended = 0
        """Values of which the worker has said that it told the driver."""
        self.known = 0
        """Values of which the driver has said that the worker told it."""
        self.waiting: list[tuple[Address, Any]] = []
        """What the driver says in the knowledge of more values than have been heard of here."""
        self.early: dict[bytes, tuple[Row, Row | None] | None] = {}
        """What the worker said of tasks before the driver said that it has handed them over: how they ended; None if it gave them back."""
        self.died: m.ProcessDied | None = None
        """How the worker died, if it did."""

    def reserves(self, queues: list[ShapeQueue], now: float) -> bool:
        """Whether the worker, which has nothing to run, is left to its driver: not where tasks of other shapes wait."""
        return not self.over and now < self.until and all(queue is self.worker.queue for queue in queues)


class JobRecord:
    """All that one driver caused. ``ended`` jobs accept nothing more."""

    __slots__ = (
        "driver",
        "ended",
        "functions",
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
        self.functions: dict[bytes, FunctionRecord] = {}
        self.queues: dict[Shape, ShapeQueue] = {}
        self.queues_most = QUEUES_MOST
        self.ended = False
        self.reason = ""
        """Why it ended, if its driver did not ask for that."""
        self.submitted = 0
        self.notices = 0
        """How many times its driver was told that something runs again."""


def attempt_text(task: TaskRecord, max_retries: int) -> str:
    """Which attempt of a task this is, and of how many, as people count: from 1. ``max_retries`` holds where its options say nothing."""
    number, most = tries_of(task.attempt) + 1, task.option("max_retries", max_retries) + 1
    return f"{number} of {most}" if number <= most else str(number)  # Else there is no bound, or a lost value was made again.


def make_outputs(task: TaskRecord, count: int) -> None:
    """Give a task with ``count`` != 1 returns records for its values."""
    task.outputs = tuple(ObjectRecord(object_id(task.id, index), task, task.submitter) for index in range(count))


def prefixes_of(task: TaskRecord, earlier: int = ATTEMPTS_LOOKED_AT) -> set[bytes]:
    """What the ids of a task's children begin with, by attempt (the last few: earlier ones' have long been dropped)."""
    daemons, tries = daemons_of(task.attempt), tries_of(task.attempt)
    attempts = [*range(task.attempt - min(tries, earlier), task.attempt + 1)]
    for before in range(max(0, daemons - DAEMONS_LOOKED_AT), daemons) if earlier else ():
        attempts += range(first_attempt(before), first_attempt(before) + TRIES_LOOKED_AT)
    return {child_prefix(task.id[:JOB_BYTES], task.id, 0, salt_of(attempt)) for attempt in attempts}
