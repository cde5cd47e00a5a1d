"""The state that the parts of a local scheduler share, and their effects."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

from zfabric.config import Config
from zfabric.machines.common.resources import ResourcePool, count_fitting, covers
from zfabric.machines.local_scheduler.actor_records import ActorLog, ActorRecord, GuestRecord, RemoteActorRecord
from zfabric.machines.local_scheduler.due import PartDeadlines
from zfabric.machines.local_scheduler.group_records import Bundle, GroupPool, GroupRecord, KnownGroup
from zfabric.machines.local_scheduler.latencies import Latencies
from zfabric.machines.local_scheduler.ledger import Ledger
from zfabric.machines.local_scheduler.object_places import PENDING, Elsewhere, InlineValues, Stored
from zfabric.machines.local_scheduler.records import (
    HOSTING,
    NO_HOME,
    PROBE,
    QUEUES_MOST,
    AnyObject,
    EntrustedRow,
    HoldAtHome,
    JobRecord,
    NodeRecord,
    ObjectRecord,
    ProcessRecord,
    ReferenceWatch,
    RefusedRow,
    RelayedStream,
    Shape,
    ShapeQueue,
    StreamRecord,
    TaskRecord,
    WorkerRecord,
)
from zfabric.machines.local_scheduler.requested_nodes import RequestedNodes
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
from zfabric.protocol.messages import Row
from zfabric.protocol.options import HERE, NODE_ID, GroupTerm, Strategy, accepts

ENDED_JOBS_MOST = 100
"""Ended jobs whose tasks have yet to enter the time series, each second."""
NOTICES_MAX = 20
"""Most such notices to one driver."""
_NOBODY = (b"", b"")


class Tables:
    """Records and indexes. Each fact is in one container; an index says what it derives from.

    Lists of things to do, such as ``to_fetch``, are outboxes: filled by any part, emptied once per turn by their owner.
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
        self.node = node
        self.pool = pool
        """Resources, without those of bundles."""
        self.groups: dict[bytes, GroupRecord] = {}
        """This home's placement groups, oldest first."""
        self.bundles: dict[bytes, dict[int, Bundle]] = {}
        """Bundles here, also unreserved ones, by group and index."""
        self.known_groups: dict[bytes, KnownGroup] = {}
        self.draining = False
        self.reserving = False
        """Whether a bundle waits for resources; no lease is prolonged."""
        self.first_attempt = first
        """Number of a task's first attempt (``protocol.ids``)."""
        self.store_address = store
        self.control_address = control
        self.head_control_address = control
        """The head's control store, with job numbers and durable values."""
        self.placers: tuple[Address, ...] = (placer,)
        """Global schedulers, by their nodes' numbers."""
        self.labels: dict[str, str] = {NODE_ID: node.hex()}
        self.any_away = False
        self.any_in_groups = False
        self.config = config
        self.tasks: dict[bytes, TaskRecord] = {}
        self.failures: dict[bytes, TaskRecord] = {}
        self.objects: dict[bytes, ObjectRecord] = {}
        """``put`` values, and several values of tasks."""
        self.watches: dict[bytes, ReferenceWatch] = {}
        self.streams: dict[bytes, StreamRecord] = {}
        self.processes: dict[bytes, ProcessRecord] = {}
        self.workers: dict[bytes, WorkerRecord] = {}
        self.nodes: dict[bytes, NodeRecord] = {}
        """Other nodes, by id. Each is in ``processes``, too, with its id as incarnation."""
        self.node_table: dict[bytes, Row] = {}
        """Rows of the newest ``NodeTable``; empty in a cluster of one."""
        self.head = b""
        """The node of registry and control store; empty in a cluster of one."""
        self.dead: dict[bytes, bool] = {}
        """The last dead nodes: whether this node has taken over."""
        self.entrusted: dict[bytes, dict[bytes, EntrustedRow]] = {}
        """Rows entrusted to this home of their jobs, by home and task."""
        self.submitted_here: list[m.Rows] = []
        """Other homes' rows submitted here in this turn."""
        self.finished: list[TaskRecord] = []
        """Unfinished entrusted tasks that ended in this turn."""
        self.ledger = Ledger(self.nodes, self.send_to_node)
        self.retained_rows: dict[bytes, set[bytes]] = {}
        """Objects whose rows other nodes' rows need, by node."""
        self.to_fetch: list[AnyObject] = []
        """Values on other nodes that something here awaits."""
        self.unwanted: list[bytes] = []
        """Values whose copying is to stop."""
        self.for_nodes: list[tuple[bytes, AnyObject]] = []
        """(node, record) of existing values to send."""
        self.delegated_ends: list[tuple[TaskRecord | RefusedRow, int, Row, tuple[Row, Row] | None, tuple[bytes, ...]]] = []
        """Ends of delegated attempts in this turn: (task, status, outputs, extra as in ``Completed``, refs inside, pinned)."""
        self.relayed_yields: list[tuple[bytes, Row]] = []
        """Values for other nodes' streams in this turn: (home, row of ``RelayedYields``), with the refs inside pinned."""
        self.relayed_streams: dict[bytes, RelayedStream] = {}
        """Streams made here for other nodes' callers, by call."""
        self.by_pid: dict[int, WorkerRecord | ProcessRecord] = {}
        self.jobs: dict[bytes, JobRecord] = {}
        self.actors: dict[bytes, ActorRecord] = {}
        self.guests: dict[bytes, GuestRecord] = {}
        self.remote_actors: dict[bytes, RemoteActorRecord] = {}
        self.relayed_ends: list[tuple[WorkerRecord, Row, tuple[bytes, ...]]] = []
        """Relayed outcomes in this turn: (worker, row of ``CallOutcomes``, pinned objects: refs inside, and large values)."""
        self.behind_ends: list[tuple[bytes, m.Message]] = []
        """(node, message) to send behind this turn's ends."""
        self.logs: dict[bytes, ActorLog] = {}
        self.remakes: dict[bytes, bytes] = {}
        """Values that replays are to make again, by task id of the replay."""
        self.transitions: deque[Transition] = deque()
        self.queues: dict[int, ShapeQueue] = {}
        self.touched: dict[ProcessRecord, None] = {}
        """Processes with results to send in this turn."""
        self.recovering = recovering
        """Whether processes have yet to register; nothing is dispatched or freed."""
        self.unsettled: dict[TaskRecord, None] | None = None
        """Tasks that other nodes may run; None once all nodes have registered."""
        self.became_ready = 0
        """Counts tasks that became ready: a failed search is repeated only after a change."""
        self.orphans: dict[bytes, dict[bytes, bool]] = {}
        """Values whose row was lost with a daemon, by task id; True if the value is lost too. In ``nodes.orphans`` the home is lost."""
        self.promises = Promises()
        self.condemned: dict[bytes, None] = {}
        """Id prefixes of children to cancel."""
        self.counts: Counter[str] = Counter()
        self.inline = InlineValues()
        self.store_room: int | None = None
        """Free bytes of the store; None above half."""
        self.latencies = Latencies()
        self.requested_nodes = RequestedNodes(node)
        self.resident: dict[int, int] = {}
        """Bytes by pid, measured for a query."""
        self.ended_jobs: deque[JobRecord] = deque(maxlen=ENDED_JOBS_MOST)
        self.copied_bytes: Counter[bytes] = Counter()
        """Bytes copied here, by source; empty if several were asked."""
        self.effects: list[Effect] = []
        self.deadlines = PartDeadlines()
        self.end_due = True
        """Whether the end of this turn has something to decide: not after mere relays."""
        self.before_batches: list[Effect] = []
        """Messages to the store ahead of this turn's batches: the end of a recovery."""
        self.locates: list[m.Row] = []
        self.locating: dict[bytes, list[bytes]] = {}
        """Processes for which each value is located."""
        self.durable_wanted: list[tuple[bytes, str]] = []
        """Durable values to read, and why."""
        self.durable_freed: list[bytes] = []
        self.absorbed: list[m.Row] = []
        self.sealed: list[m.Row] = []
        self.freed: list[bytes] = []
        self.spare: deque[AnyObject] = deque()
        """Released records for ``References.collect``."""
        self._next_queue = 1

    def note_failure(self, record: AnyObject) -> None:
        """Enter a record's task in ``failures``."""
        task = record.task
        if task is not None:
            task.facts()  # Extra fields keep it from the short way of ``References.release``, which does not maintain ``failures``.
            self.failures[task.id] = task

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

    def send(self, to: Address, message: m.Message) -> None:
        """Send ``message``, as an effect."""
        self.effects.append(Send(to, message))

    def send_to_client(self, process: ProcessRecord, message: m.Message) -> None:
        """Send ``message`` to a process's client."""
        self.effects.append(Send(CLIENT + process.incarnation, message))

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
        self.effects.append(Send(self.address if node == self.node else LOCAL_SCHEDULER + node, message))

    @property
    def is_head(self) -> bool:
        """Whether this is the head, or a cluster of one."""
        return self.head_control_address == self.control_address

    def sender_of(self, source: Address) -> bytes | None:
        """The node of a local scheduler; None if it is dead or unregistered."""
        if source[1:] == self.address[1:]:
            return self.node
        node = self.nodes.get(source[1:])
        return node.token if node is not None and node.progress != PROBE else None

    def number_of(self, node: bytes) -> int:
        """A node's number, or 0."""
        row = self.node_table.get(node)
        return 0 if row is None else int(row[1])

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
        record = self.objects[identifier] = ObjectRecord(identifier, None, None)
        stream.values += 1
        return record

    def runs_once(self, task: TaskRecord) -> bool:
        """Whether a task must not run again once it may have begun. Actors are exempt: restarts count."""
        return task.function.actor is None and task.option("max_retries", self.config.max_retries) == 0

    def want(self, record: AnyObject) -> None:
        """Request a value from its node. Others come by themselves."""
        value = record.value
        if isinstance(value, Elsewhere):
            if not value.asked:
                value.asked = True
                self.to_fetch.append(record)
        elif record.hold is not None and record.status == PENDING and not record.hold.asked:
            record.ask()
            self.to_fetch.append(record)

    def protect(self, record: AnyObject) -> None:
        """Have the store no longer drop a mere copy."""
        if type(record.value) is Stored and self.store_address is not None:
            self.send(self.store_address, m.Protect((record.object_id,)))

    def queue_for(self, job: JobRecord, shape: Shape) -> ShapeQueue:
        """A job's queue of this shape, made on first use."""
        queue = job.queues.get(shape)
        if queue is None:
            queue = ShapeQueue(shape, job, self._next_queue)
            self._next_queue += 1
            job.queues[shape] = queue
            self.queues[queue.token] = queue
            self._find_out_if_away(queue)
            if len(job.queues) > job.queues_most:
                self._drop_queues(job, queue)
        return queue

    def queue_like(self, queue: ShapeQueue, strategy: Strategy) -> ShapeQueue:
        """The same shape's queue for another strategy."""
        return self.queue_for(queue.job, (*queue.shape[:5], strategy))

    def _find_out_if_away(self, queue: ShapeQueue) -> None:
        strategy = queue.strategy
        if queue.group is not None:
            self._find_bundles(queue, queue.group)
            return
        queue.pool = self.pool
        hard = [term for term in strategy if term[0] == "hard"]
        queue.away = bool(strategy) and strategy[:1] != HERE and (bool(self.nodes) or not accepts(self.labels, hard))
        self.any_away |= queue.away

    def _find_bundles(self, queue: ShapeQueue, term: GroupTerm) -> None:
        """Set whether it is away: not if the whole group is here, or the tasks were delegated here."""
        known = self.known_groups.get(term.group)
        if queue.strategy[0][0] == "group":
            queue.away = known is None or not known.all_at(self.node) or not known.able(term, queue.demand)
        else:
            queue.away = all(bundle.ending for bundle in self.bundles.get(term.group, {}).values())
        queue.pool = GroupPool(self.bundles, term.group, term.bundle)
        self.any_away |= queue.away
        self.any_in_groups = True

    def group_changed(self, group: bytes) -> None:
        """Decide again which of its queues are away."""
        for queue in self.queues.values():
            if queue.group is not None and queue.group.group == group:
                self._find_out_if_away(queue)

    def nodes_changed(self) -> None:
        """Decide again which queues are away."""
        for queue in self.queues.values():
            self._find_out_if_away(queue)

    def _drop_queues(self, job: JobRecord, new: ShapeQueue) -> None:
        functions = (*job.functions.values(), *job.delegated.values())
        needed = {new.token, *(function.queue.token for function in functions)}
        for shape, queue in list(job.queues.items()):
            if not queue and not queue.leased and queue.token not in needed:
                del job.queues[shape]
                del self.queues[queue.token]
        job.queues_most = max(QUEUES_MOST, 2 * len(job.queues))

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
        if self.sealed or self.absorbed or self.locates or self.freed:
            if (store := self.store_address) is not None:
                batches: tuple[tuple[list[Any], Any], ...] = (
                    (self.sealed, m.Sealed),
                    (self.absorbed, m.Absorb),
                    (self.locates, m.Locate),
                    (self.freed, m.Free),
                )
                effects[:0] = [Send(store, kind(tuple(batch))) for batch, kind in batches if batch]
            self.sealed, self.absorbed, self.locates, self.freed = [], [], [], []
        if self.before_batches:
            effects[:0], self.before_batches = self.before_batches, []
        return effects


class Promises:
    """Results of calls that others wait for before their callers have them: the caller and the actor of each."""

    def __init__(self) -> None:
        self._of: dict[bytes, tuple[bytes, bytes]] = {}
        self._callers: Counter[bytes] = Counter()

    def add(self, identifier: bytes, caller: bytes, actor_id: bytes) -> None:
        """Record that others wait for a result."""
        self.remove(identifier)
        self._of[identifier] = (caller, actor_id)
        self._callers[caller] += 1

    def remove(self, identifier: bytes) -> None:
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
