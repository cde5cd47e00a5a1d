"""The state that the parts of a local scheduler share, and their effects."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from zfabric.config import Config
from zfabric.machines.common.resources import ResourcePool, count_fitting, covers
from zfabric.machines.local_scheduler.actor_records import ActorLog, ActorRecord, GuestRecord, RemoteActorRecord
from zfabric.machines.local_scheduler.barrier import HOMES, Barrier
from zfabric.machines.local_scheduler.cluster import ClusterView
from zfabric.machines.local_scheduler.due import PartDeadlines
from zfabric.machines.local_scheduler.group_records import Bundle, KnownGroup
from zfabric.machines.local_scheduler.latencies import Latencies
from zfabric.machines.local_scheduler.ledger import Ledger
from zfabric.machines.local_scheduler.object_places import InlineValues, Stored
from zfabric.machines.local_scheduler.records import (
    HOSTING,
    NO_HOME,
    NOT_DURABLE,
    PROBE,
    AnyObject,
    EntrustedRow,
    HoldAtHome,
    JobRecord,
    NodeRecord,
    ObjectRecord,
    ProcessRecord,
    ShapeQueue,
    StreamRecord,
    TaskRecord,
    WorkerRecord,
)
from zfabric.machines.local_scheduler.requested_nodes import RequestedNodes
from zfabric.machines.local_scheduler.store import NodeStore
from zfabric.machines.local_scheduler.task_queues import TaskQueues
from zfabric.machines.local_scheduler.transfers import ValueTransfers
from zfabric.machines.local_scheduler.transitions import Transition
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Effect, Log, Send
from zfabric.protocol.ids import (
    CALL_RETURN,
    CLIENT,
    CONTROL,
    FIRST_RETURN,
    JOB_BYTES,
    LOCAL_SCHEDULER,
    PREFIX_BYTES,
    TASK_BYTES,
    Address,
    control_of,
)

NOTICES_MAX = 20
"""Most such notices to one driver."""
_NOBODY = (b"", b"")


class Tables:
    """Records and indexes. Each fact is in one container; an index says what it derives from.

    What any part may order and one part carries out is an outbox with methods: ``store``, ``transfers``, ``ledger``. One part enters what
    is in ``workers``, ``jobs``, ``nodes``, ``actors``, ``guests``, ``streams`` and ``bundles``; the others are entered by methods here.
    """

    def __init__(
        self,
        address: Address,
        node: bytes,
        store: Address | None,
        control: Address,
        placer: Address,
        config: Config,
        first: int,
        recovering: bool,
        pool: ResourcePool,
    ) -> None:
        self.address = address
        self.pool = pool
        """Resources, without those of bundles."""
        self.bundles: dict[bytes, dict[int, Bundle]] = {}
        """Bundles here, also unreserved ones, by group and index."""
        self.known_groups: dict[bytes, KnownGroup] = {}
        self.draining = False
        self.first_attempt = first
        """Number of a task's first attempt (``protocol.ids``)."""
        self.store = NodeStore(store)
        self.cluster = ClusterView(node, control, placer, config.placers)
        self.config = config
        self.tasks: dict[bytes, TaskRecord] = {}
        self.failures: dict[bytes, TaskRecord] = {}
        self.objects: dict[bytes, ObjectRecord] = {}
        """``put`` values, and several values of tasks."""
        self.streams: dict[bytes, StreamRecord] = {}
        self.processes: dict[bytes, ProcessRecord] = {}
        self.workers: dict[bytes, WorkerRecord] = {}
        self.nodes: dict[bytes, NodeRecord] = {}
        """Other nodes, by id. Each is in ``processes``, too, with its id as incarnation."""
        self.dead: dict[bytes, bool] = {}
        """The last dead nodes: whether this node has taken over."""
        self.entrusted: dict[bytes, dict[bytes, EntrustedRow]] = {}
        """Rows entrusted to this home of their jobs, by home and task."""
        self.ledger = Ledger(self.nodes, self.send_to_node)
        self.transfers = ValueTransfers()
        self.by_pid: dict[int, WorkerRecord | ProcessRecord] = {}
        self.jobs: dict[bytes, JobRecord] = {}
        self.actors: dict[bytes, ActorRecord] = {}
        self.guests: dict[bytes, GuestRecord] = {}
        self.remote_actors: dict[bytes, RemoteActorRecord] = {}
        self.logs: dict[bytes, ActorLog] = {}
        self.remakes: dict[bytes, bytes] = {}
        """Values that replays are to make again, by task id of the replay."""
        self.transitions: deque[Transition] = deque()
        self.queues = TaskQueues(pool, self.cluster, self.nodes, self.known_groups, self.bundles)
        self.barrier = Barrier(HOMES, has_closed=not recovering)
        """Nothing is dispatched until ``PROCESSES`` closes, and nothing freed until ``HOMES`` does."""
        self.unsettled: dict[TaskRecord, None] = {}
        """Tasks that other nodes may run: they wait for ``NODES``."""
        self.orphans = RowlessValues()
        self.promises = Promises()
        self.counts: Counter[str] = Counter()
        self.inline = InlineValues()
        self.latencies = Latencies()
        self.requested_nodes = RequestedNodes(node)
        self.effects: list[Effect] = []
        self.deadlines = PartDeadlines()
        self.end_due = True
        """Whether the end of this turn has something to decide: not after mere relays."""

    def note_failure(self, record: AnyObject) -> None:
        """Enter a record's task in ``failures``."""
        task = record.task
        if task is not None:
            task.facts()  # Extra fields keep it from the short way of ``References.release``, which does not maintain ``failures``.
            self.failures[task.id] = task

    def forget_failure(self, task: TaskRecord) -> None:
        """Remove a task that runs again from ``failures``."""
        self.failures.pop(task.id, None)

    def enter_task(self, task: TaskRecord) -> None:
        """Enter a task. Loops over submitted and delegated rows do so themselves, for speed."""
        self.tasks[task.id] = task

    def drop_task(self, task_id: bytes) -> TaskRecord | None:
        """Remove a task, if present."""
        self.failures.pop(task_id, None)
        return self.tasks.pop(task_id, None)

    def new_object(self, identifier: bytes, holder: bytes | None = None, durable: int = NOT_DURABLE) -> ObjectRecord:
        """Enter an object of this home."""
        record = self.objects[identifier] = ObjectRecord(identifier, None, holder, durable)
        return record

    def enter_outputs(self, task: TaskRecord) -> None:
        """Enter the objects of a task with several values."""
        for record in task.outputs or ():
            self.objects[record.object_id] = record

    def enter_object(self, record: ObjectRecord) -> None:
        """Enter an object, perhaps in another's place."""
        self.objects[record.id] = record

    def drop_object(self, identifier: bytes) -> ObjectRecord | None:
        """Remove an object, if present."""
        return self.objects.pop(identifier, None)

    def enter_process(self, process: ProcessRecord) -> None:
        """Enter a process or node."""
        self.processes[process.incarnation] = process

    def drop_process(self, process: ProcessRecord) -> None:
        """Remove a process or node."""
        self.processes.pop(process.incarnation, None)

    def enter_pid(self, pid: int, of: WorkerRecord | ProcessRecord) -> None:
        """Enter a worker or driver by its pid."""
        self.by_pid[pid] = of

    def drop_pid(self, pid: int) -> WorkerRecord | ProcessRecord | None:
        """Remove a worker or driver from ``by_pid``."""
        return self.by_pid.pop(pid, None)

    def values(self) -> list[AnyObject]:
        """Records of all tasks and objects."""
        return [*self.tasks.values(), *self.objects.values()]

    def maker_of(self, identifier: bytes) -> tuple[TaskRecord, bool] | None:
        """The task of the actor whose log can make a lost value again, and whether the replay begins with a checkpoint."""
        for actor_id, log in self.logs.items():
            for base, blocks in (*log.past, (log.checkpoint, log.blocks)):
                if any(identifier in block.made for block in blocks):
                    actor = self.actors.get(actor_id)  # During recovery, tasks are known before their actors.
                    maker = actor.task if actor is not None else self.tasks.get(actor_id)
                    return (maker, base is not None) if maker is not None else None
        return None

    def count(self, event: str, times: int = 1) -> None:
        """Count an event, for ``statistics``."""
        self.counts[event] += times

    def report(self, transition: Transition) -> None:
        """Report to a part above, at the end of this step."""
        self.transitions.append(transition)

    def emit(self, effect: Effect) -> None:
        """Have the shell do something besides sending."""
        self.effects.append(effect)

    def send(self, to: Address, message: m.Message) -> None:
        """Send ``message``, as an effect."""
        self.effects.append(Send(to, message))

    def send_to_client(self, process: ProcessRecord, message: m.Message) -> None:
        """Send ``message`` to a process's client."""
        self.effects.append(Send(CLIENT + process.incarnation, message))

    def send_to_store(self, message: m.Message) -> None:
        """Send to this node's object store, if it has one."""
        if self.store.address is not None:
            self.effects.append(Send(self.store.address, message))

    def send_to_control(self, worker: WorkerRecord, message: m.Message) -> None:
        """Send to a worker's control thread."""
        if worker.process is not None:
            self.effects.append(Send(CONTROL + worker.process.control, message))

    def write_log(self, level: str, text: str) -> None:
        """Write to the daemon's log."""
        self.effects.append(Log(level, text))

    def notify_again(self, job: JobRecord, text: str) -> None:
        """Notify a driver that something runs again, at most ``NOTICES_MAX`` times; the log has all."""
        self.write_log("info", text)
        if job.home:
            self.send_to_node(job.home, m.JobOutput(job.id, (), (("again", text),)))
        elif job.driver is not None and job.notices < NOTICES_MAX:
            job.notices += 1
            last = "; there are no further notices of this kind: `zfabric explain` says what had to run again"
            self.send_to_client(job.driver, m.Notice("warning", text + (last if job.notices == NOTICES_MAX else "")))

    def job_of(self, source: Address) -> JobRecord | None:
        """The job of a message's sender."""
        process = self.processes.get(source[1:])
        return process.job if process is not None else None

    def worker_of(self, source: Address) -> WorkerRecord | None:
        """The worker of a client or control thread."""
        process = self.processes.get(source[1:]) or self.processes.get(control_of(source[1:]))
        return self.workers.get(process.name) if process is not None else None

    def send_to_node(self, node: bytes, message: m.Message) -> None:
        """Send to another local scheduler."""
        self.effects.append(Send(LOCAL_SCHEDULER + node, message))

    def send_to_peer(self, node: bytes, message: m.Message) -> None:
        """Send to a local scheduler, perhaps this one."""
        self.effects.append(Send(self.address if node == self.cluster.node else LOCAL_SCHEDULER + node, message))

    def sender_of(self, source: Address) -> bytes | None:
        """The node of a local scheduler; None if it is dead or unregistered."""
        if source[1:] == self.address[1:]:
            return self.cluster.node
        node = self.nodes.get(source[1:])
        return node.token if node is not None and node.progress != PROBE else None

    def find(self, object_id: bytes) -> AnyObject | None:
        """An object's record, or None."""
        task = self.tasks.get(object_id[:TASK_BYTES])
        if task is not None and task.outputs is None and object_id[TASK_BYTES:] == FIRST_RETURN:
            return task
        return self.objects.get(object_id)

    def refer(self, identifier: bytes, home: bytes, former: bytes = b"") -> ObjectRecord:
        """Record another node's object. ``former`` is its dead home."""
        record = self.objects[identifier] = ObjectRecord(identifier, None, None, hold=HoldAtHome(home, former))
        return record

    def end_of(self, identifier: bytes) -> AnyObject | None:
        """The record of the end of an object's stream."""
        task_id = identifier[:TASK_BYTES]
        return self.find(task_id + FIRST_RETURN) or self.find(task_id + CALL_RETURN)

    def homes_of(self, object_ids: Iterable[bytes]) -> m.Rows:
        """Rows ``(object, home)``, without objects of this home.

        A dead home is named, too: the receiver may have to register at its heir (``nodes/orphans.py``).
        """
        if not object_ids:
            return ()
        found = ((record.object_id, record.hold) for record in map(self.find, dict.fromkeys(object_ids)) if record is not None)
        return tuple((object_id, hold.former or hold.home) for object_id, hold in found if hold is not None and hold.home != NO_HOME)

    def job_fact(self, identifier: bytes) -> tuple[tuple[str, str], ...]:
        """The job of an id, for explanations."""
        job = self.jobs.get(identifier[:JOB_BYTES])
        return () if job is None else (("job", job.program.title(job.number).removeprefix("job ")),)

    def job_home(self, identifier: bytes) -> bytes | None:
        """The home of an id's job: empty for this node, None if there is no job."""
        job = self.jobs.get(identifier[:JOB_BYTES])
        return None if job is None or job.ended else job.home

    def makes(self, record: AnyObject) -> TaskRecord | None:
        """The task that makes or yields it."""
        stream = self.streams.get(record.object_id[:TASK_BYTES]) if self.streams and record.task is None else None
        return record.task if stream is None else stream.owner.task

    def value_of(self, stream: StreamRecord, identifier: bytes) -> ObjectRecord:
        """Record a stream's value."""
        record = self.new_object(identifier)
        stream.values += 1
        return record

    def runs_once(self, task: TaskRecord) -> bool:
        """Whether a task must not run again once it may have begun. Actors are exempt: restarts count."""
        return task.function.actor is None and task.option("max_retries", self.config.max_retries) == 0

    def protect(self, record: AnyObject) -> None:
        """Have the store no longer drop a mere copy."""
        if type(record.value) is Stored:
            self.send_to_store(m.Protect((record.object_id,)))

    def capacity(self) -> dict[str, int]:
        """What would be free if no task ran: total less bundles and actors."""
        capacity = dict(self.pool.total)
        held = [bundle.demand for bundles in self.bundles.values() for bundle in bundles.values()]
        held += [worker.demand for worker in self.workers.values() if worker.state == HOSTING and worker.pool is self.pool]
        for demand in held:
            for name, amount in demand:
                capacity[name] = capacity.get(name, 0) - amount
        return capacity

    def could_run(self, queue: ShapeQueue) -> bool:
        """Whether some idle node could run its tasks."""
        if queue.pool.fits_total(queue.demand):
            return True
        return queue.group is None and any(covers(node.resources, queue.demand) for node in self.nodes.values())

    def begun_at(self, node: NodeRecord) -> int:
        """How many tasks a node can have begun, if all are like its last."""
        if not node.inflight:
            return 0
        last = next(reversed(node.inflight.values()))
        return min(len(node.inflight), count_fitting(node.resources, self.queue_of(last).demand, len(node.inflight)))

    def queue_of(self, task: TaskRecord) -> ShapeQueue:
        """The queue of a task's function, or of its own options."""
        rare = task.rare
        return task.function.queue if rare is None or rare.demand_queue is None else rare.demand_queue

    def children_of(self, prefixes: set[bytes]) -> list[TaskRecord]:
        """Tasks by 12-byte id prefix. Scans every task: for rare requests."""
        return [task for identifier, task in self.tasks.items() if identifier[:PREFIX_BYTES] in prefixes]

    def take_effects(self) -> list[Effect]:
        """Take all effects. The store's batches go first: others may wait for its answers."""
        effects, self.effects = self.effects, []
        if self.store.is_due:
            effects[:0] = self.store.take_batches()
        return effects


class RowlessValues:
    """Values whose row was lost with a daemon, by task, and whether the value is lost, too. In ``nodes.orphans`` the home is lost."""

    def __init__(self) -> None:
        self._of: dict[bytes, dict[bytes, bool]] = {}

    def enter(self, object_id: bytes, lost: bool) -> None:
        """Enter a value; ``lost``: whether no copy is left."""
        self._of.setdefault(object_id[:TASK_BYTES], {})[object_id] = lost

    def take(self, task_id: bytes) -> list[tuple[bytes, bool]]:
        """Take the values of a task that is submitted again: (object, whether it is lost)."""
        return list(self._of.pop(task_id, {}).items())

    def forget(self, object_id: bytes) -> None:
        """Remove a freed value."""
        values = self._of.get(object_id[:TASK_BYTES])
        if values is not None:
            values.pop(object_id, None)
            if not values:
                del self._of[object_id[:TASK_BYTES]]

    def job_ended(self, job: bytes) -> None:
        """Remove a job's values."""
        for task_id in [each for each in self._of if each[:JOB_BYTES] == job]:
            del self._of[task_id]

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._of)


class Promises:
    """Results of calls that others wait for before their callers have them: the caller and the actor of each."""

    def __init__(self) -> None:
        self._of: dict[bytes, tuple[bytes, bytes]] = {}
        self._callers: Counter[bytes] = Counter()

    def enter(self, identifier: bytes, caller: bytes, actor_id: bytes) -> None:
        """Record that others wait for a result."""
        self.settle(identifier)
        self._of[identifier] = (caller, actor_id)
        self._callers[caller] += 1

    def settle(self, identifier: bytes) -> None:
        """Remove a kept or void one."""
        caller, _ = self._of.pop(identifier, _NOBODY)
        if caller:
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller]

    def bound(self, process: bytes) -> bool:
        """Whether others wait for a result of this process alone."""
        return process in self._callers

    def caller(self, identifier: bytes) -> bytes:
        """Who promised it, or empty."""
        return self._of.get(identifier, _NOBODY)[0]

    def actor(self, identifier: bytes) -> bytes:
        """Whose call makes it, or empty."""
        return self._of.get(identifier, _NOBODY)[1]

    def count(self, actor_id: bytes) -> int:
        """How many promised results an actor owes."""
        return sum(1 for _, of in self._of.values() if of == actor_id)

    def by(self, process: bytes) -> list[bytes]:
        """Results that a process has promised."""
        return [each for each, (caller, _) in self._of.items() if caller == process] if self.bound(process) else []

    def __iter__(self) -> Iterator[bytes]:
        return iter(list(self._of))
