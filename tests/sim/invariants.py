"""What must be true of a whole node, whatever happened to it. Machines check themselves; these invariants need more than one.

- No attempt begins twice, whatever daemons forget. Only the attempt that was dispatched is accepted.
- An object's value never changes once it was sent to a process; within one incarnation of the daemon its outcome does not, either.
- The daemon records as in flight whatever a worker runs, even if the task was given an outcome before it ended.
- No process holds a ref to an object that was freed.
- In the calm before the end, the daemon's holders are the processes that hold refs. After all refs were released, nothing is left: no
  task, object, row of lineage, pin, or byte of the arena except grants.
"""

from __future__ import annotations

from typing import Any

from tests.sim.bodies import StackFrame
from tests.sim.node import Node, Overview, SimDaemon
from tests.sim.node_invariants import NodeInvariants
from tests.sim.programs import LOST, unpack_value
from tests.sim.surroundings import NodeView
from tests.sim.workers import CLASSES, WorkerProcess
from zfabric.machines.local_scheduler.actors.directory import DETACHED
from zfabric.machines.local_scheduler.object_places import Stored
from zfabric.machines.local_scheduler.records import DONE, ENDING, NO_HOME, AnyObject, TaskRecord
from zfabric.machines.registry.machine import NUMBERS_KEY, TABLE
from zfabric.machines.worker import Item
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import REGISTRY, TASK_BYTES, object_id, short
from zfabric.protocol.messages import FAILED, OK, Envelope

_OF_HANDLES = (b"", b"actor")
"""What stands for a handle's value: to an actor of another node; to one that has lived through a daemon's restart."""


class Invariants:
    """Checks the tasks and values of one world."""

    def __init__(self, world: Overview) -> None:
        self.world = world
        self._begun: dict[tuple[bytes, int], str] = {}
        """The worker that began each (task, attempt)."""
        self._numbers: dict[bytes, int] = {}
        self._outcomes: dict[AnyObject, int] = {}
        self._ended: dict[bytes, dict[tuple[bytes, int, int], tuple[bytes, int]]] = {}
        self._going_on: dict[bytes, int] = {}
        """Attempts that nodes reported to the job's home when their home was dead, unless they are to stop."""
        self._copies: dict[bytes, tuple[bytes, bytes]] = {}
        """Values that nodes reported then, and do not release: (object, node), by task."""
        self._members: set[bytes] = set()
        """Nodes of the last table that a registry sent."""
        self.lost: set[bytes] = set()
        """Large values that the deaths of two daemons may have lost: the last one that knew their places died."""
        self.of_nodes = NodeInvariants(world)

    def begun(self, worker: WorkerProcess, item: Item) -> None:
        """Check an attempt that begins."""
        named = item.row[0], item.attempt
        if named in self._begun:
            which = f"attempt {item.attempt:#x} of {short(item.row[0])}"
            self.world.fail(f"{which} begins on {worker.name} and was begun on {self._begun[named]}: their children have the same names")
        self._begun[named] = worker.name
        self._runs_once_more(worker, item)
        if len(self.world.nodes) > 1:
            self._alone(worker, item)

    def _alone(self, worker: WorkerProcess, item: Item) -> None:
        """Fail if an attempt begins while another one runs on a living node, or has ended there unacknowledged by its home."""
        task_id = item.row[0]
        homes = [
            node
            for node in filter(self.is_member, self.world.living)  # A dead one need not know yet that it is not the home any more.
            if (task := node.daemon.scheduler.tables.tasks.get(task_id)) and not task.function.delegated
        ]
        for home in homes:
            nodes = home.daemon.scheduler.tables.nodes
            task = home.daemon.scheduler.tables.tasks[task_id]
            stream = home.daemon.scheduler.tables.streams.get(task_id)
            if stream is not None and stream.cut is not None:
                continue  # Its attempt ended early, since it is to run again.
            if task.rare is not None and (task.rare.stopped or task.rare.rebuilt):
                continue
            own = next((node for node in self.world.nodes if worker.incarnation in node.workers), home)
            if own is not home and self.is_behind(own):
                continue
            for node in self.world.living:
                if node is home or node.identifier not in nodes or not node.up:
                    continue
                ended = self._ended.get(node.identifier, {})
                if stream is not None:  # It runs again if its home has taken the end in, and lacks values.
                    taken = nodes[node.identifier].inbox.newest or 0
                    ended = {key: each for key, each in ended.items() if key[0] != home.identifier or key[1] > taken}
                gone = item.row[1] in CLASSES and not any(task_id in each.worker.mailbox.actors for each in node.workers.values())
                if (task_id, node.restarts) in ended.values() and not gone:  # An actor that has died is to be made again.
                    self.world.fail(f"{short(task_id)} begins on {worker.name}, and node {node.number} has its outcome")
                for other in node.workers.values():
                    if other is not worker and any(type(each.item) is Item and each.item.row[0] == task_id for each in other.stack):
                        self.world.fail(f"{short(task_id)} begins on {worker.name}, and runs on {other.name}")

    def is_behind(self, node: Node) -> bool:
        """Whether a node was declared dead while it was stopped, and its daemon has had no turn since: nobody there can have noticed."""
        return node.resuming and node.identifier not in self._members

    def is_member(self, node: NodeView) -> bool:
        """Whether no registry has declared a node dead."""
        return node.identifier in self._members

    def is_being_killed(self, frame: StackFrame) -> bool:
        """Whether the daemon of its node has a body's process killed, for instance because it does not know the function."""
        for node in self.world.living:
            for token, worker in node.workers.items():
                if frame in worker.stack:
                    record = node.daemon.scheduler.tables.workers.get(token)
                    return record is not None and record.state == ENDING
        return False

    def remains(self, daemon: SimDaemon, sender: bytes, message: m.Holdings) -> None:
        """Check a report on a dead node, for which the home of a job waits before it takes over. Note the attempts that run on."""
        tables = daemon.scheduler.tables
        if message.complete and tables.dead.get(message.node) and sender in tables.nodes:
            self.world.fail(f"node {daemon.node.number} has taken over from a dead one before {self.world.who(sender)} has reported")
        self._going_on.update(message.attempts)
        self._copies.update({row[0][:TASK_BYTES]: (row[0], sender) for row in message.objects if row[1] == OK})

    def _runs_once_more(self, worker: WorkerProcess, item: Item) -> None:
        """Fail if a task of a dead home runs again although another node has reported an attempt that goes on, or the task's value."""
        identifier, holder = self._copies.get(item.row[0], (b"", b""))
        if self._going_on.get(item.row[0], item.attempt) != item.attempt:
            self.world.fail(f"{short(item.row[0])} begins on {worker.name}, and an attempt of it that another node has reported counts")
        for node in self.world.living if identifier else ():
            copy = node.daemon.scheduler.tables.find(identifier) if node.identifier == holder and not node.doomed else None
            if copy is not None and copy.home and copy.value is not None:
                self.world.fail(f"{short(item.row[0])} begins on {worker.name}, and node {node.number} has its value")

    def came_to_nothing(self, message: m.Ended | m.Reclaimed) -> None:
        """Forget reported attempts that have failed or come back."""
        failed = message.task_ids if isinstance(message, m.Reclaimed) else [row[0] for row in _rows_of(message) if row[2] != OK]
        for task_id in failed:
            self._going_on.pop(task_id, None)

    def late_attempts(self, daemon: SimDaemon, source: bytes, message: m.Completed) -> list[TaskRecord]:
        """Return unfinished tasks of which a worker or node reports another attempt than the one that it was given."""
        late = []
        for task_id, attempt, _, _ in message.rows:
            task = daemon.scheduler.tables.tasks.get(task_id)
            if task is not None and task.state != DONE:
                given = task.worker is not None and task.worker.token == source[1:] and task.attempt == attempt
                late += [] if given else [task]
        return late

    def not_accepted(self, tasks: list[TaskRecord]) -> None:
        """Fail if the scheduler accepted an outcome that ``late_attempts`` found."""
        for task in tasks:
            if task.state == DONE:
                self.world.fail(f"an attempt of {short(task.id)} was accepted that was not the one given out")

    def ends_received(self, daemon: SimDaemon, home: bytes, number: int) -> None:
        """Forget the ends that a home has acknowledged."""
        ended = self._ended.get(daemon.node.identifier, {})
        for key in [each for each in ended if each[0] == home and each[1] <= number]:
            del ended[key]

    def between_nodes(self, daemon: SimDaemon, node: bytes, envelopes: list[Envelope]) -> None:
        """Check what a daemon sends to that of another node: only requests for its lease, if that is nearly over."""
        for to, _, message in envelopes:
            if type(message) is m.Delegate:
                self._delegated(daemon, message)
            elif type(message) is m.Ended:
                ended = self._ended.setdefault(daemon.node.identifier, {})
                for index, row in enumerate(m.Completed(*message.completed).rows):
                    if row[2] == OK:
                        ended[node, message.number, index] = row[0], daemon.node.restarts
            if type(message) is m.StopDelegated and self._going_on.get(message.task_id) == message.attempt:
                del self._going_on[message.task_id]
            if type(message) is m.UpdateLedger:
                for identifier in [each for kind, ids in message.ended if kind == m.HOLD for each in ids]:
                    self._copies.pop(identifier[:TASK_BYTES], None)
            if to != REGISTRY and daemon.core.member is not None and daemon.core.member.silent:
                self.world.fail(f"node {daemon.node.number} sends {type(message).__name__}, and its lease is nearly over")

    def table_sent(self, daemon: SimDaemon, message: m.NodeTable) -> None:
        """Check a registry's node table: its rows are durable, and nodes that are gone had ceased to act."""
        members = {row[0] for row in message.rows}
        durable = {key for key, _ in daemon.journal.scan(TABLE) if key != NUMBERS_KEY}
        if members != durable:
            self.world.fail(f"the registry names {len(members)} nodes, and {len(durable)} rows are durable")
        for node in self.world.living:
            member = node.daemon.core.member
            if node.identifier not in self._members - members or member is None or not member.number or not node.up:
                continue
            if member.silent and (node.frozen or not node.workers):
                continue
            if not (node.stopped_until or node.resuming):
                self.world.fail(f"node {node.number} is declared dead, and acts")
        if self._members - members:
            self._going_on.clear()
        self._members = members

    def _delegated(self, daemon: SimDaemon, message: m.Delegate) -> None:
        for row in message.rows:
            task = daemon.scheduler.tables.tasks.get(row[0])
            if task is not None and task.function.delegated:
                self.world.fail(f"{short(row[0])} is passed on by node {daemon.node.number}, to which it was delegated")

    def sent(self, daemon: SimDaemon, message: m.Message) -> None:
        """Check the outcomes in a message of the daemon."""
        if isinstance(message, m.Results):
            for task_id, status, outputs in message.rows:
                for index, value in enumerate(outputs):
                    self._check_sent(daemon, object_id(task_id, index), status, value)
        elif isinstance(message, m.Objects):
            for identifier, status, value, _ in message.rows:
                self._check_sent(daemon, identifier, status, value)

    def _check_sent(self, daemon: SimDaemon, identifier: bytes, status: int, value: Any) -> None:
        if status == FAILED:
            kind = unpack_failure(value)[0]
            if kind in LOST or kind == "ObjectStoreFullError":
                return
        record = daemon.scheduler.tables.find(identifier)
        if record is not None and record.task is not None and record.task.function.actor is not None:
            return  # Nobody gets the value of a handle.
        if value in _OF_HANDLES and any(
            identifier[:TASK_BYTES] in node.daemon.scheduler.tables.actors for node in self.world.nodes if node.up
        ):
            return  # The same of a handle to an actor of another node, or of one that its process has dropped since.
        if value is None and record is not None:
            status = record.status  # The process is to fetch the value, and receives this.
        before = self._outcomes.setdefault(record, status) if record is not None else status
        if before != status:
            self.world.fail(f"a process is sent that {short(identifier)} ended with {status}; it had ended with {before}")
        if status == OK and type(value) is bytes:
            number = unpack_value(value).number
            if self._numbers.setdefault(identifier, number) != number:
                self.world.fail(f"a process is sent another value of {short(identifier)}")

    def daemon_dies(self, node: Node) -> None:
        """Record values that a daemon retains for homes whose next daemons have yet to be notified (``docs/limits.md``).

        Pinned values count as known: the actor that made one may repeat it.
        """
        for home in self.world.living:
            for record in node.daemon.scheduler.tables.objects.values() if home is not node else ():
                if record.home == home.identifier and not record.pins and type(record.value) is Stored:
                    found = home.daemon.scheduler.tables.find(record.id) if home.up else None
                    if found is None or found.home == NO_HOME:
                        self.lost.add(record.id)

    def seen_inside(self, node: Node, identifier: bytes, inner: bytes) -> None:
        """Check the object of a ref inside an error that a process reads. Only a daemon's death, or the end of the job, loses it."""
        if self.world.driver.alive and not node.restarts and node.up and node.daemon.scheduler.tables.find(inner) is None:
            self.world.fail(f"{short(inner)}, which is inside the error of {short(identifier)}, no longer exists")

    def after_turn(self, daemon: SimDaemon) -> None:
        """Check the daemon's machines."""
        for machine in daemon.core.machines.values():
            machine.check_invariants()
        if not daemon.scheduler.is_recovering:
            self._in_flight(daemon)
        if len(self.world.nodes) > 1:
            self.of_nodes.after_turn(daemon, self._members)

    def _in_flight(self, daemon: SimDaemon) -> None:
        """Fail if the daemon does not record a running task as in flight: its resources would be free."""
        for process in daemon.node.workers.values():
            record = daemon.scheduler.tables.workers.get(process.incarnation)
            if record is None or record.process is None or process.daemon != daemon.incarnation:
                continue
            if record.direct is not None or record.shared or record.state == ENDING:
                continue
            for frame in process.stack:
                if type(frame.item) is Item and frame.item.row[0] not in record.inflight:
                    self.world.fail(f"{process.name} runs {short(frame.item.row[0])}, and the daemon does not record it as in flight")

    # -- calm and end --

    def calm(self) -> None:
        """In a calm world, compare the holders in daemons' tables with processes' refs."""
        for node in self.world.living:
            self._calm(node)
        self._groups_are_whole_or_nowhere()
        self.of_nodes.calm()

    def _groups_are_whole_or_nowhere(self) -> None:
        """Fail if a group's bundles are at nodes unknown to its home, or a group that waits for room has some."""
        reserved = {}
        for node in self.world.living:
            for bundles in node.daemon.scheduler.tables.bundles.values():
                for bundle in bundles.values():
                    if not bundle.ending:
                        reserved[bundle.group, bundle.index, node.identifier] = bundle.committed
        known: dict[tuple[bytes, int, bytes], bool] = {}
        for node in self.world.living:
            for record in node.daemon.scheduler.groups.records.values():
                places = [*enumerate(record.places), *record.target.items()]
                known.update(((record.id, index, place), record.state == m.CREATED) for index, place in places if place)
                if record.state == m.PENDING_GROUP and any(record.places):
                    self.world.fail(f"placement group {short(record.id)} waits, and has places")
        if reserved.keys() != known.keys():
            self.world.fail(f"bundles are reserved that no home needs, or missing: {sorted(reserved.keys() ^ known.keys())}")
        if any(committed and not reserved[key] for key, committed in known.items()):
            self.world.fail("a placement group is whole, and one of its bundles is not committed")

    def _calm(self, node: Node) -> None:
        daemon = node.daemon
        processes = [process for process in self.world.processes() if process.node is node]
        believed = {
            (record.object_id, holder)
            for record in daemon.scheduler.tables.values()
            for holder in (record.holders if isinstance(record.holders, set) else {record.holders} if record.holders else ())
            if getattr(record, "outputs", None) is None and holder != DETACHED
        }
        held = {
            (identifier, process.incarnation)
            for process in processes
            if process.machine.welcomed
            for identifier, entry in process.machine.objects.all_entries()
            if entry.refs > 0
        }
        missing = {pair for pair in held - believed if daemon.scheduler.tables.find(pair[0]) is not None}
        known = {(identifier, process.incarnation) for process in processes for identifier in process.machine.entries}
        extra = believed - known - {(identifier, other.identifier) for other in self.world.nodes for identifier in borrowed_by(other)}
        for identifier, holder in sorted(missing):
            self.world.fail(f"{self.world.who(holder)} holds {short(identifier)}, and the daemon does not know it")
        for identifier, holder in sorted(extra):
            self.world.fail(f"the daemon records that {self.world.who(holder)} holds {short(identifier)}")

    def nothing_left(self) -> list[str]:
        """List what remains after all refs were released."""
        return [each for node in self.world.living for each in self._left_on(node)] + self._left_of_processes()

    def _left_on(self, node: Node) -> list[str]:
        daemon = node.daemon
        tables = daemon.scheduler.tables
        left = [f"task {short(task.id)} ({daemon.scheduler.explain(task.id)})" for task in tables.tasks.values()]
        left += [f"object {short(record.id)} {_describe(record)}" for record in tables.objects.values()]
        entries = daemon.store._tables.entries.values()
        left += [f"{short(entry.object_id)} in the arena ({entry.state}, pins {entry.pins})" for entry in entries]
        blocks = daemon.scheduler.blocks.statistics()
        left += [f"{count:.0f} {name}" for name, count in blocks.items() if count and name != "lineage_unwritten"]
        left += [f"{short(key)} of the task table" for key, _ in daemon.journal.scan("task")]
        if not (self.world.states["node ended"] or self.world.states["daemon restarted"]):  # Else they go with the job (decision 0048).
            left += [f"{short(key)} of the object table" for key, _ in daemon.journal.scan("object")]
        if daemon.scheduler.references.lineage_bytes:
            left.append(f"{daemon.scheduler.references.lineage_bytes} bytes of lineage")
        if tables.inline.total:
            left.append(f"{tables.inline.total} inline bytes")
        return left + self._files(node) + self._of_nodes(node)

    def _of_nodes(self, node: Node) -> list[str]:
        """List what a node retains for others, unknown nodes, and dead ones that it believes to live."""
        tables = node.daemon.scheduler.tables
        living = {each.identifier: each.number for each in self.world.living if each.number}
        known = {node.identifier, *tables.nodes}
        left = [f"the dead node {record.name} on node {node.number}" for record in tables.nodes.values() if record.token not in living]
        left += [f"no node {number} on node {node.number}" for identifier, number in living.items() if identifier not in known]
        if node.agent is not None and not node.agent.idle:
            left.append(f"the agent of node {node.number} is not idle: {dict(node.agent.machine.statistics())}")
        left += [f"the actor {short(each)} of another node on node {node.number}" for each in tables.guests]
        left += [f"{len(node.daemon.scheduler.copies)} copies under way"] if len(node.daemon.scheduler.copies) else []
        left += self.of_nodes.for_the_dead(node)
        for record in tables.nodes.values():
            left += [f"task {short(each)} on node {record.name}" for each in record.inflight]
            left += [f"the actor {short(each)} on node {record.name}" for each in record.actors]
            left += [f"the unreceived end {each.number}" for each in record.ends]
            if not record.is_ready:
                left.append(f"node {record.name} is not ready on node {node.number}")
        return left + [f"the unreported end of {short(each[0].id)}" for each in node.daemon.scheduler.outcomes.delegated_ends]

    def _left_of_processes(self) -> list[str]:
        left: list[str] = []
        for process in self.world.processes():
            machine = process.machine
            left += [f"entry {short(each)} of {process.name}" for each in machine.entries]
            left += [f"{machine.unfinished} unfinished rows of {process.name}"] if machine.unfinished else []
            left += [f"row {short(each)} of {process.name}" for each in machine.tasks.several]
            left += [f"lineage {short(each)} of {process.name}" for each in machine.retained.lineage]
            left += [f"pin on {short(each)} of {process.name}" for each in machine.pins.counts]
            left += [f"a reservation of {process.name}" for _ in machine.reservations.answers]
            left += [f"{process.name} waits for the last ref to {short(each)}" for each in machine.last.everywhere]
        return [*left, *self.world.calls.left()]

    def _files(self, node: Node) -> list[str]:
        arena = node.arena
        return [f"{short(content.object_id)} on disk" for content in arena.disk.values()] + [f"file {each}" for each in arena.unfinished]

    def job_gone(self, job: bytes) -> list[str]:
        """List what is left of a job that has ended."""
        return [each for node in self.world.living for each in self._job_on(node, job)]

    def _job_on(self, node: Node, job: bytes) -> list[str]:
        daemon = node.daemon
        tables = daemon.scheduler.tables
        left = [f"task {short(each)}" for each in tables.tasks if each.startswith(job)]
        left += [f"object {short(each)}" for each in tables.objects if each.startswith(job)]
        left += [f"worker {worker.pid}" for worker in tables.workers.values() if worker.job is not None and worker.job.id == job]
        left += [f"the job {short(each)}" for each in tables.jobs if each == job]
        left += [f"{short(entry.object_id)} in the arena, {entry.state}" for entry in daemon.store._tables.entries.values()]
        left += [f"a grant of {self.world.who(grant.holder)}" for grant in daemon.store._tables.grants.values() if self._dead(grant.holder)]
        by_itself = self.world.driver.machine.farewell is not None  # Else its durable values stay for the next one (decision 0048).
        for table in ("task", "function", "log", "checkpoint", "group", *(("object",) if by_itself else ())):
            left += [f"{short(key)} of the {table} table" for key, _ in daemon.journal.scan(table)]
        left += self._files(node)
        left += self._of_nodes(node)
        left += [f"a function on node {each.name}" for each in tables.nodes.values() for name in each.functions if name.startswith(job)]
        left += [f"the end of job {short(each)} on other nodes" for each in daemon.scheduler.jobs._leaving]
        left += [f"the record of actor {short(each)}" for each in daemon.scheduler.actors.records]
        left += [f"the name of actor {each}" for each in daemon.scheduler.actors.named]
        left += [f"a bundle of group {short(each)}" for each in tables.bundles]
        left += [f"placement group {short(each)}" for each in (*daemon.scheduler.groups.records, *tables.known_groups)]
        return left

    def _dead(self, incarnation: bytes) -> bool:
        agents = (node.agent.incarnation for node in self.world.living if node.agent is not None)
        return incarnation not in agents and all(process.incarnation != incarnation for process in self.world.processes())


def _rows_of(message: m.Ended) -> m.Rows:
    return m.Completed(*message.completed).rows


def borrowed_by(node: Node) -> list[bytes]:
    """Objects of other nodes that a node has borrowed, and its own that others retain for it."""
    values = node.daemon.scheduler.tables.values()
    borrowed = [record.object_id for record in values if record.hold is not None and record.hold.registered]
    return borrowed + [record.object_id for record in values if hasattr(record.value, "place")]


def _describe(record: Any) -> str:
    return f"holders {record.holders!r} pins {record.pins} status {record.status} fetchers {record.fetchers}"
