"""The barrier of a restarted scheduler among the other nodes (decision 0005).

Once this node's own tables are rebuilt (``lifecycle.recovery``), tasks that no process here runs wait (``Tables.unsettled``), and nothing
is freed, until each node has registered and repeated what it has, or is dead (the stage ``NODES``). Then ``_settle_tasks`` decides.

Objects with refs here and no other trace are *homeless*: each node is asked (``SEARCH``). If none is the home, the object is restored as
one of this node, or is lost. Only then is collection resumed (the stage ``HOMES``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TypeGuard

from zfabric.machines.local_scheduler.barrier import HOMES, NODES
from zfabric.machines.local_scheduler.channel import batches
from zfabric.machines.local_scheduler.lifecycle.jobs import Jobs
from zfabric.machines.local_scheduler.lifecycle.recovery import Recovery
from zfabric.machines.local_scheduler.nodes.borrowing import Borrowing
from zfabric.machines.local_scheduler.object_places import PENDING, Elsewhere
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import DONE, NO_HOME, WAITING, AnyObject, NodeRecord, ObjectRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.transitions import Recovered
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import JOB_BYTES, TASK_BYTES, Address, short
from zfabric.protocol.messages import FAILED, HOLD, OK, ROW, SEARCH


class PeerRecovery:
    """Settles with the other nodes. ``step`` handles a retained message."""

    def __init__(
        self,
        tables: Tables,
        references: References,
        outcomes: Outcomes,
        jobs: Jobs,
        borrowing: Borrowing,
        recovery: Recovery,
        streams: Streams,
        step: Callable[[float, Address, m.Message], None],
    ) -> None:
        self.tables = tables
        self.barrier = tables.barrier
        self.references = references
        self.outcomes = outcomes
        self.jobs = jobs
        self.borrowing = borrowing
        self.recovery = recovery
        self.streams = streams
        self.step = step
        self._searches: dict[bytes, int] = {}
        """Number of the last message of the unanswered search, by node."""
        self._unread: list[tuple[bytes, bytes]] = []
        """Values of streams, (node, object), retained there and not requested here."""

    # -- which nodes have registered --

    def on_recovered(self, transition: Recovered) -> None:
        """Begin: this node's processes have reported."""
        self.barrier.expect(NODES, self.tables.nodes)
        if self.recovery.homeless:
            self.barrier.expect(HOMES, self.tables.nodes)
        homes = {each.home for each in self.tables.jobs.values() if each.home and each.home not in self.tables.nodes}
        for dead in sorted(homes):  # These homes died while this daemon was down.
            self.jobs.pass_on(dead)
        for job in [each for each in self.tables.jobs.values() if each.home in homes]:
            self.jobs.end_job(job, transition.now)
        for home in self.tables.entrusted:
            if home not in self.tables.nodes:
                self.name_homes(home)
        self._handle_held(transition.now)
        self._go_on(transition.now)

    def _handle_held(self, now: float) -> None:
        for source, message in self.barrier.take_held():
            self.step(now, source, message)

    def holds_back(self, source: Address, message: m.Message) -> bool:
        """Retain a registered node's message that must wait. Return whether it must."""
        if isinstance(message, m.Delegate):
            self.recovery.run_again(row[0] for row in message.rows)
        is_search = isinstance(message, m.UpdateLedger) and self._restore(source[1:], message.added)
        is_report = isinstance(message, m.LedgerUpdated) and not message.number  # Of entries: the needed rows are known later.
        if is_report or ((is_search or _has_values(message)) and self.barrier.awaits(NODES)):
            self.barrier.hold(source, message)
            return True
        return self.barrier.holds_back(source, message)

    def name_homes(self, node: bytes) -> None:
        """Set a dead node as the home of objects that its entrusted rows make."""
        for record in filter(self._is_homeless, map(self.tables.find, self.recovery.homeless)):
            if record is not None and record.object_id[:TASK_BYTES] in self.tables.entrusted.get(node, ()):
                record.find_home(node)

    def begin_anew(self, node: bytes) -> None:
        """Drop the former daemon's reports: the next one repeats them."""
        self._searches.pop(node, None)
        self.barrier.begin_anew(node)
        self.barrier.expect(NODES, (node,))

    def node_ready(self, node: bytes, now: float) -> None:
        """Stop waiting for a registered node."""
        self.barrier.report(NODES, node)
        self._go_on(now)

    def node_died(self, node: bytes, now: float) -> None:
        """Stop waiting for it, and drop its reports."""
        self._searches.pop(node, None)
        self.barrier.remove(node)
        self._go_on(now)

    def _go_on(self, now: float) -> None:
        if self.barrier.may_close(NODES):
            self._settle_tasks(now)
        if self.barrier.may_close(HOMES):
            self.barrier.close(HOMES)
            self._give_up_search()
            self.recovery.settle()
            self.references.choose()
            self._handle_held(now)

    # -- tasks --

    def _settle_tasks(self, now: float) -> None:
        held = self.barrier.take_held()
        for source, message in held:
            if _has_values(message):
                self.take_retained(source[1:], message)
        self.streams.positions_known()
        self._adopt()
        self._give_up_unread()
        self.recovery.find_lost_actors()
        waiting, self.tables.unsettled = self.tables.unsettled, {}
        self.barrier.close(NODES)
        for task in waiting:
            self.outcomes.resolved(task)
        for source, message in held:
            if not _has_values(message):
                self.step(now, source, message)

    def _adopt(self) -> None:
        """Assign each task to the node with its newest attempt."""
        newest: dict[bytes, tuple[int, NodeRecord]] = {}
        for node in self.tables.nodes.values():
            for task_id, attempt in node.reported.items():
                if task_id not in newest or attempt > newest[task_id][0]:
                    newest[task_id] = attempt, node
        for task_id, (attempt, node) in newest.items():
            task = self.tables.tasks.get(task_id)
            if task is not None and task.state == WAITING and task in self.tables.unsettled:
                task.attempt = attempt
                task.ready()
                task.assign(node)
                node.inflight[task_id] = task
                self.tables.count("adopted")
            elif task is not None and task.function.actor is not None and task.state == DONE and task_id not in self.tables.actors:
                self.recovery.actors.return_to(node, task, attempt)
                self.tables.count("adopted")
        for node in self.tables.nodes.values():
            self.stop_unwanted(node)

    def stop_unwanted(self, node: NodeRecord) -> None:
        """Stop reported attempts that are not wanted."""
        reported, node.reported = node.reported, {}
        for task_id, attempt in reported.items():
            task = node.inflight.get(task_id)
            if task is None and task_id in node.actors:
                task = self.tables.actors[task_id].task
            if task is None or task.attempt != attempt:
                self.tables.send_to_node(node.token, m.StopDelegated(task_id, attempt, "cancelled", False))

    def take_retained(self, node: bytes, message: m.Holdings) -> None:
        """Enter values retained for this node. Release there what is not needed or exists."""
        for object_id, status, size, contained in message.objects:
            if status != OK:
                continue
            record = self.tables.find(object_id)
            of_stream = self.streams.is_value(object_id)
            if of_stream and record is None:
                self._unread.append((node, object_id))
                continue
            if isinstance(record, ObjectRecord) and self._is_homeless(record) and record.status == PENDING:
                # This node is the home, e.g. of a call's result whose caller has no outcome.
                record.become_home()
            is_of_actor = record is not None and record.task is not None and record.task.function.actor is not None
            if record is None or record.home or record.value is not None or is_of_actor:  # Actors are reported otherwise.
                if record is None or not isinstance(record.value, Elsewhere) or record.value.place != node:
                    self.tables.ledger.end(node, HOLD, object_id)
                continue
            self.borrowing.refer(contained, message.homes, node)
            self.outcomes.set_value(record, size, contained, node, False)
            self.borrowing.settle(contained)
            if record.task is None:
                self.outcomes.announce(record)
            if of_stream:
                self.streams.found(record)
            task = record.task
            if task is not None and task.state == WAITING and all(each.status != PENDING for each in task.values()):
                self.outcomes.adopt(task)
                process = self.tables.processes.get(task.submitter)
                if process is not None:
                    self.outcomes.report_to(process, task)
        if not self.barrier.awaits(NODES):
            self._give_up_unread()

    def _give_up_unread(self) -> None:
        """Release unrequested stream values, unless their maker may repeat them.

        At once: if the task runs again there, an old value must not pass for one of the new attempt.
        """
        unread, self._unread = self._unread, []
        by_node: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for node, object_id in unread:
            if node in self.tables.nodes and not self.streams.may_be_repeated(object_id, node):
                by_node[node].append(object_id)
        for node, object_ids in by_node.items():
            for batch in batches(object_ids):
                self.tables.send_to_node(node, m.UpdateLedger(0, (), ((HOLD, batch),)))

    # -- objects --

    def _restore(self, node: bytes, entries: m.Rows) -> bool:
        """Restore what another node's entries name. Return whether it searches.

        Rows are restored at once; what other nodes have of these tasks is entered behind the barrier.
        """
        for kind, ids in entries:
            if kind == HOLD:
                self._restore_objects(ids, node)
            elif kind in (SEARCH, ROW):
                self.recovery.restore_rows(ids)
        return any(kind == SEARCH for kind, _ in entries)

    def _restore_objects(self, object_ids: m.Ids, node: bytes) -> None:
        for object_id in sorted(object_ids):
            if self.streams.is_value(object_id):  # Its stream is restored before it.
                continue
            job = self.tables.jobs.get(object_id[:JOB_BYTES])
            if job is None or job.ended:
                continue
            if self.tables.find(object_id) is None:
                self.recovery.known(object_id)
            record = self.tables.find(object_id)
            if isinstance(record, ObjectRecord) and self._is_homeless(record):
                record.add_holder(node)
                self._enter_here(record, node)
            elif record is None and (home := self._dead_home_of(object_id)):
                self.tables.refer(object_id, home).add_holder(node)
            elif record is None:
                record = self.tables.new_object(object_id)
                self._lose(record)

    def _enter_here(self, record: ObjectRecord, node: bytes = b"") -> None:
        """Restore a homeless object as one of this node.

        If ``node`` has yet to repeat its retained values and ended attempts, the object remains homeless rather than lost.
        """
        object_id = record.id
        self.tables.drop_object(object_id)
        if record.status == PENDING:
            self.recovery.known_here(object_id)
        restored = self.tables.find(object_id)
        if restored is not None:
            self._join(restored, record)
        else:
            self.tables.enter_object(record)
            if not self._find_home(record, node):
                return
        found = restored or record
        if found.status != PENDING:
            self.outcomes.announce(found)
        self.references.collect_later(found)

    def _find_home(self, record: ObjectRecord, node: bytes) -> bool:
        """Set the home of an object without other traces. Return False if it remains homeless."""
        if record.status != PENDING or self.tables.promises.actor(record.id):  # A process here has supplied or promised it since.
            record.become_home()
        elif not node:
            record.become_home()
            self._lose(record)
        elif home := self._dead_home_of(record.id):
            record.find_home(home).give_back()
            record.expect(self.tables.inline)
            record.add_holder(node)
        return record.home != NO_HOME

    def _dead_home_of(self, object_id: bytes) -> bytes:
        return next((home for home, rows in self.tables.entrusted.items() if object_id[:TASK_BYTES] in rows), b"")

    def _join(self, restored: AnyObject, homeless: ObjectRecord) -> None:
        restored.join(homeless, self.tables.inline)
        stream = self.tables.streams.get(homeless.id[:TASK_BYTES])
        if stream is not None and stream.owner is homeless:
            stream.owner = restored

    def search(self, node: bytes) -> None:
        """Ask a node whether it is the home of homeless objects."""
        wanted = [each for each in self.recovery.homeless if self._is_homeless(self.tables.find(each))]
        if not wanted:
            self.barrier.report(HOMES, node)
            return
        for object_id in wanted:
            self.tables.ledger.add(node, SEARCH, object_id)
        self.tables.ledger.send_added(node)
        self._searches[node] = self.tables.ledger.holds.barrier

    def found(self, node: bytes, object_ids: m.Ids) -> None:
        """Accept the homes that a search has found."""
        for object_id in object_ids if node in self._searches else ():
            self._found(object_id, node)

    def acknowledged(self, node: bytes, number: int, now: float) -> None:
        """Note which searches are answered."""
        if self._searches.get(node) == number:
            del self._searches[node]
            self.barrier.report(HOMES, node)
            self._go_on(now)

    def _found(self, object_id: bytes, home: bytes) -> None:
        record = self.tables.find(object_id)
        hold = record.hold if record is not None else None
        if record is None or hold is None or hold.home not in (NO_HOME, home):
            self.tables.ledger.end(home, HOLD, object_id)
        elif hold.home == NO_HOME:
            record.find_home(home)
            self.tables.count("searched")
            self.wake(record)
            if hold.cancelled:
                self.tables.send_to_node(home, m.Cancel((object_id,), *hold.cancelled))

    def wake(self, record: AnyObject) -> None:
        """Request a value with a known home, if something waits."""
        if record.status != PENDING:
            return
        record.expect(self.tables.inline)
        if record.fetchers or record.dependents:
            self.tables.transfers.want(record)

    def _give_up_search(self) -> None:
        """Make homeless objects this node's or lost. A stream's values have the home of their stream."""
        homeless, self.recovery.homeless = self.recovery.homeless, []
        for value in list(self.tables.objects.values()):
            end = self.tables.end_of(value.id) if self._is_homeless(value) else None
            if end is None or end is value:
                continue
            if end.home and end.home != NO_HOME:
                value.find_home(end.home).give_back()
                self.tables.ledger.hold(value)
                self.wake(value)
            else:
                homeless.append(value.id)
        for object_id in homeless:
            before = self.tables.objects.get(object_id)
            if before is not None and self._is_homeless(before):
                self._enter_here(before)

    def _is_homeless(self, record: AnyObject | None) -> bool:
        return record is not None and record.home == NO_HOME

    def _lose(self, record: ObjectRecord) -> None:
        text = f"object {short(record.id)} is lost: nothing that would tell of it survived its node's daemon"
        record.fail(FAILED, pack_failure("ObjectLostError", text), self.tables.inline)
        self.tables.orphans.enter(record.id, True)


def _has_values(message: m.Message) -> TypeGuard[m.Holdings]:
    """Whether a node reports values that it retains for this home."""
    return type(message) is m.Holdings and not message.node and bool(message.objects)
