"""How the home of a job becomes the heir of a dead node (decision 0039).

The last ``Holdings`` of a survivor (``orphans``) is ``complete``; a node that never knew the dead one sends ``TookOver`` instead. Until
each survivor has reported or is dead too (the stage ``REPORTS``), the heir's records of the objects are borrowed ones, and ends of attempts
are set aside, with their refs pinned. ``_take_over`` then rebuilds, in this order: records of needed rows and their inputs, and of objects
without a row; values; ends of attempts that ran here; attempts elsewhere; lost values that are held, and unfinished tasks without an
attempt; the ends set aside.

``TookOver`` goes behind the heir's own holds. So the dead node's holds are released, once all heirs have sent it, only after new holders
are registered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from zfabric.machines.common.lineage_blocks import BlockWriter, LineageBlock, entrusted_row
from zfabric.machines.local_scheduler.barrier import REPORTS, TAKEOVERS, Barrier
from zfabric.machines.local_scheduler.channel import batches
from zfabric.machines.local_scheduler.lifecycle.departures import Departures
from zfabric.machines.local_scheduler.nodes.borrowing import Borrowing
from zfabric.machines.local_scheduler.nodes.delegations import Delegations
from zfabric.machines.local_scheduler.nodes.placement.back import Reclaiming
from zfabric.machines.local_scheduler.object_places import PENDING
from zfabric.machines.local_scheduler.records import (
    ASSIGNED,
    DONE,
    DURABLE,
    NOT_DURABLE,
    READY,
    AnyObject,
    EntrustedRow,
    JobRecord,
    NodeRecord,
    ObjectRecord,
    TaskRecord,
)
from zfabric.machines.local_scheduler.references import References, named_by
from zfabric.machines.local_scheduler.submission import Submission
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.admission import Admission
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes, contained_in
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import JOB_BYTES, TASK_BYTES, Address, is_put, short
from zfabric.protocol.messages import ENTRUSTED, FAILED, HOLD, LOST, OK
from zfabric.protocol.messages.rows import DEPENDENCIES, OPTIONS
from zfabric.protocol.options import names_objects, option


class _Copy(NamedTuple):
    """An object's outcome on a node that retains it, as in ``Holdings``."""

    node: bytes
    status: int
    value: object
    contained: m.Ids
    homes: m.Rows


class _Takeover:
    def __init__(self, dead: bytes) -> None:
        self.barrier = Barrier(TAKEOVERS)
        self.barrier.expect(REPORTS, (dead,))  # Until its death is known here: others may report before.
        self.copies: defaultdict[bytes, list[_Copy]] = defaultdict(list)
        self.own: list[TaskRecord] = []
        """Its attempts that run here."""
        self.attempts: dict[bytes, tuple[bytes, int]] = {}
        """Attempts elsewhere: (node, attempt) by task id."""
        self.ends: list[tuple[bytes, m.Row, m.Row | None, m.Ids]] = []
        """Their ends: (node, row and extra of ``Completed``, pinned refs inside)."""
        self.own_ends: list[m.Completed] = []
        """Unacknowledged ends of attempts here. The refs inside are pinned."""

    def with_values(self) -> Iterator[bytes]:
        rows = [row for _, row, _, _ in self.ends] + [row for completed in self.own_ends for row in completed.rows]
        return (row[0] for row in rows if row[2] == OK)


class Failover:
    """Takes over from dead nodes."""

    def __init__(
        self,
        tables: Tables,
        blocks: BlockWriter,
        references: References,
        outcomes: Outcomes,
        rebuilding: Rebuilding,
        stopping: Stopping,
        admission: Admission,
        submission: Submission,
        departures: Departures,
        borrowing: Borrowing,
        delegations: Delegations,
        reclaiming: Reclaiming,
    ) -> None:
        self.tables = tables
        self.blocks = blocks
        self.references = references
        self.outcomes = outcomes
        self.rebuilding = rebuilding
        self.stopping = stopping
        self.admission = admission
        self.submission = submission
        self.departures = departures
        self.borrowing = borrowing
        self.delegations = delegations
        self.reclaiming = reclaiming
        self._takeovers: dict[bytes, _Takeover] = {}
        self.to_tell: list[tuple[bytes, set[bytes]]] = []
        """Dead nodes taken over in this turn, and the survivors to notify."""

    # -- rows of living nodes --

    def on_entrust(self, now: float, source: Address, message: m.Entrust) -> None:
        """Enter rows of a job of this node."""
        home, job = source[1:], self.tables.jobs.get(message.job)
        if home not in self.tables.nodes:
            self.tables.count("refused")
            return
        if job is not None and not job.ended:
            self.submission.export(job, message.functions)
            homes = {row[0]: row for row in message.homes}
            rows = self.tables.entrusted.setdefault(home, {})
            self.blocks.now = now
            for row in message.rows:
                task = self.tables.tasks.get(row[0])
                if task is not None and not task.function.delegated:  # At home here, so that no other node can be its home.
                    self.tables.count("refused")
                    continue
                named = tuple(homes[each] for each in _named_in(row) if each in homes)
                rows[row[0]] = EntrustedRow(row, named, False, self._store(row, home, named, rows.get(row[0])))
            self._set_unfinished(rows, message.unfinished, True)
        self.tables.send_to_node(home, m.LedgerUpdated(message.number))

    def _store(self, row: m.Row, home: bytes, named: m.Rows, known: EntrustedRow | None) -> LineageBlock | None:
        """Store a row for this node's next daemon: it may begin after the row's home has died."""
        if known is not None and known.block is not None:
            if known.row == row:
                return known.block
            self.blocks.drop(row[0], known.block)
        return self.blocks.add(entrusted_row(row, home, named)) if self.tables.config.lineage else None

    def _drop(self, entrusted: EntrustedRow) -> None:
        if entrusted.block is not None:
            self.blocks.drop(entrusted.row[0], entrusted.block)

    def _set_unfinished(self, rows: dict[bytes, EntrustedRow], task_ids: m.Ids, unfinished: bool) -> None:
        for task_id in task_ids:
            if task_id in rows:
                rows[task_id] = rows[task_id]._replace(unfinished=unfinished)

    def finished(self, home: bytes, task_ids: m.Ids) -> None:
        """Note that entrusted tasks have outcomes."""
        self._set_unfinished(self.tables.entrusted.get(home, {}), task_ids, False)

    def drop_rows(self, home: bytes, task_ids: m.Ids) -> None:
        """Drop entrusted rows that nobody needs."""
        rows = self.tables.entrusted.get(home, {})
        for task_id in task_ids:
            if task_id in rows:
                self._drop(rows.pop(task_id))

    def begin_anew(self, node: bytes) -> None:
        """Drop the former daemon's reports: the next one reports again, perhaps before it learns of the death."""
        for takeover in self._takeovers.values():
            self._forget_reports(takeover, node)
            takeover.barrier.begin_anew(node)

    def repeat(self, node: bytes) -> None:
        """Repeat reports on dead nodes, and confirm which of the node's rows are here."""
        self.repeat_reports(node)
        for task_ids in batches(self.tables.entrusted.get(node, ())):
            self.tables.send_to_node(node, m.LedgerUpdated(0, ((ENTRUSTED, task_ids),)))

    # -- reports on a dead one --

    def repeat_reports(self, node: bytes) -> None:
        """Repeat which dead nodes are taken over, and that no more reports follow."""
        for dead, takeover in self._takeovers.items():
            if dead not in self.tables.nodes and not takeover.barrier.has_reported(TAKEOVERS, node):
                self.tables.send_to_node(node, m.Holdings(dead, (), (), (), True))
            if not takeover.barrier.awaits(REPORTS):
                self.tables.send_to_node(node, m.TookOver(dead))

    def node_died(self, dead: bytes, survivors: Iterable[bytes], ended: list[m.Completed], now: float) -> None:
        """Begin a succession. ``ended`` are the unacknowledged ends (``Executions.home_died``)."""
        takeover = self._takeovers.setdefault(dead, _Takeover(dead))
        takeover.own_ends = ended
        for stage in (REPORTS, TAKEOVERS):
            takeover.barrier.expect(stage, survivors)
        for task in self.tables.tasks.values():
            if task.function.delegated and task.submitter == dead and self.tables.job_home(task.id) == b"":
                task.submitter = self.tables.cluster.node  # The attempt goes on, as one of this node.
                takeover.own.append(task)
        for other in self._takeovers.values():
            self._forget_reports(other, dead)
            other.barrier.remove(dead)
        self._advance(now)

    def _forget_reports(self, takeover: _Takeover, node: bytes) -> None:
        for copies in takeover.copies.values():
            copies[:] = [copy for copy in copies if copy.node != node]
        takeover.attempts = {task_id: each for task_id, each in takeover.attempts.items() if each[0] != node}
        for each in takeover.ends:
            if each[0] == node:
                self.references.unpin(each[3])
        takeover.ends = [each for each in takeover.ends if each[0] != node]

    def on_remains(self, now: float, source: Address, message: m.Holdings) -> None:
        """Enter a report. It may arrive before the death is known here."""
        node = source[1:]
        if node not in self.tables.nodes:
            self.tables.count("refused")
            return
        over = self.tables.dead.get(message.node, message.node not in self.tables.nodes)
        takeover = _Takeover(message.node) if over else self._takeovers.setdefault(message.node, _Takeover(message.node))
        for identifier, status, value, contained in message.objects:
            self._found(takeover, message.node, identifier, _Copy(node, status, value, contained, message.homes))
            if over:
                self._fail_orphan(identifier, message.node)
        if over:
            for task_id, attempt in message.attempts:
                self.tables.send_to_node(node, m.StopDelegated(task_id, attempt, "cancelled", True))
        else:
            takeover.attempts.update((task_id, (node, attempt)) for task_id, attempt in message.attempts)
        if message.complete and over:  # Its report comes after the succession: this daemon, or that node's, is newer than the death.
            self.tables.ledger.holds.send(node, m.TookOver(message.node))
        elif message.complete:
            takeover.barrier.report(REPORTS, node)
            self._advance(now)

    def _fail_orphan(self, identifier: bytes, dead: bytes) -> None:
        record = self.tables.find(identifier)
        if record is not None and record.home == dead:
            self.borrowing.orphans.fail(record)

    def _found(self, takeover: _Takeover, dead: bytes, identifier: bytes, copy: _Copy) -> None:
        record = self.tables.find(identifier)
        if record is None and self.tables.job_home(identifier) == b"":
            record = self.tables.refer(identifier, dead)
        if record is None or copy.status == PENDING:
            return
        if record.home and record.status == PENDING:
            takeover.copies[identifier].append(copy)
        elif copy.status == OK:
            self.tables.ledger.end(copy.node, HOLD, identifier)

    @property
    def under_way(self) -> bool:
        """Whether a succession is under way."""
        return bool(self._takeovers)

    def on_ended(self, now: float, source: Address, message: m.Ended) -> None:
        """Accept ends of attempts, or set them aside for a succession."""
        node = source[1:]
        waiting = {each: takeover for takeover in self._takeovers.values() for each, (at, _) in takeover.attempts.items() if at == node}
        if waiting and node in self.tables.nodes:
            message = self._set_aside(node, waiting, message)
        self.delegations.on_ended(now, source, message)

    def _set_aside(self, node: bytes, waiting: dict[bytes, _Takeover], message: m.Ended) -> m.Ended:
        completed = m.Completed(*message.completed)
        extras = {index: tuple(extra) for index, *extra in completed.extras}
        rows: list[m.Row] = []
        kept: list[m.Row] = []
        for index, row in enumerate(completed.rows):
            extra = extras.get(index)
            takeover = waiting.get(row[0])
            if takeover is None:
                if extra is not None:
                    kept.append((len(rows), *extra))
                rows.append(row)
                continue
            named = contained_in(row, extra) if row[2] != LOST else ()
            self.borrowing.refer(named, message.homes, node)
            self.references.pin(named)
            self.borrowing.settle(named)
            takeover.ends.append((node, row, extra, named))
        return message._replace(completed=tuple(m.Completed.of(tuple(rows), tuple(kept), completed.durations)))

    def on_reclaimed(self, now: float, source: Address, message: m.Reclaimed) -> None:
        """Drop attempts that were not begun."""
        for takeover in self._takeovers.values():
            for task_id in message.task_ids:
                if takeover.attempts.get(task_id, (b"", 0))[0] == source[1:]:
                    del takeover.attempts[task_id]
        self.reclaiming.on_reclaimed(now, source, message)

    # -- taking over --

    def on_took_over(self, now: float, source: Address, message: m.TookOver) -> None:
        """Note that a node reports nothing more."""
        if message.node in self.tables.nodes or message.node in self._takeovers:
            takeover = self._takeovers.setdefault(message.node, _Takeover(message.node))
            for stage in (REPORTS, TAKEOVERS):
                takeover.barrier.report(stage, source[1:])
            self._advance(now)

    def _advance(self, now: float) -> None:
        """Take over where the barrier has closed. Release holds once all survivors have taken over."""
        for dead, takeover in list(self._takeovers.items()):
            barrier = takeover.barrier
            if barrier.may_close(REPORTS):
                barrier.close(REPORTS)
                self.tables.dead[dead] = True
                self._take_over(dead, takeover, now)
                self.to_tell.append((dead, barrier.reporters[TAKEOVERS]))
            if barrier.may_close(TAKEOVERS):
                del self._takeovers[dead]
                self.references.node_gone(dead)

    def end_of_turn(self) -> None:
        """Notify survivors, behind this node's own holds."""
        for dead, survivors in self.to_tell:
            for node in sorted(survivors & self.tables.nodes.keys()):
                self.tables.ledger.holds.send(node, m.TookOver(dead))
        self.to_tell.clear()

    def _take_over(self, dead: bytes, takeover: _Takeover, now: float) -> None:
        """Become the home of the dead node's tasks and objects, in the order of the module's text."""
        rows = self.tables.entrusted.pop(dead, {})
        orphans = [each for each in self.tables.objects.values() if each.home == dead and self.tables.job_home(each.id) == b""]
        for orphan in orphans:
            orphan.drop_holder(self.tables.cluster.node)
        wanted = [each.id[:TASK_BYTES] for each in orphans if each.is_needed or each.named or each.fetchers or each.dependents]
        unfinished = [task_id for task_id, entrusted in rows.items() if entrusted.unfinished]
        tasks = self._restore_tasks(dead, rows, wanted + unfinished, now)
        for entrusted in [each for task_id, each in rows.items() if task_id not in tasks]:
            self._drop(entrusted)
        records: list[AnyObject] = [value for task in tasks.values() for value in task.values()]
        for orphan in [each for each in orphans if self.tables.find(each.id) is each]:
            self._become_home(orphan)
            records.append(orphan)
        for task in tasks.values():
            records += self._refer(task, rows[task.id].homes)
        for task in tasks.values():
            if names_objects(task.row):
                self.references.retain_row(task)
        self._retain_foreign_rows(tasks.values())
        self._adopt_values(takeover, records)
        needed = [each for each in records if each.holders is not None or each.pins > 0 or each.fetchers or each.dependents]
        to_run = [tasks[task_id] for task_id in unfinished if task_id in tasks]
        tasks_needed = {*to_run, *(each.task for each in needed if each.task is not None)}
        # An outcome also counts if only tasks that run again need it.
        tasks_needed.update(tasks[task_id] for task_id in takeover.with_values() if task_id in tasks)
        self._accept_own_ends(dead, takeover.own_ends, tasks_needed, now)
        self._adopt_attempts(takeover, tasks_needed)
        to_run = [task for task in to_run if not self._must_not_run_twice(task)]
        reason = "its home, the node where it was made, is dead"
        for record in needed:
            if record.is_lost and (record.task is None or record.task.state == DONE):
                self.rebuilding.make_available(record, reason)
            elif record.status != PENDING:
                self.outcomes.announce(record)
        for task in to_run:
            self._run(task, reason)
        self._accept_ends(takeover, now)
        self._end_attempts(takeover.own, now)
        takeover.copies.clear()
        takeover.attempts.clear()
        takeover.ends.clear()
        for job in {task.function.queue.job for task in tasks.values()}:
            if job.driver is not None:
                self.departures.pass_on(dead, job.driver)
        for record in (*records, *(task for task in tasks.values() if task.outputs == ())):
            self.references.collect_later(record)
        if tasks:
            again = sum(task.state != DONE for task in tasks.values())
            self.tables.write_log("info", f"took over {len(tasks)} tasks of the dead node {dead.hex()}; {again} of them have no outcome")
            self.tables.count("taken_over", len(tasks))

    def _retain_foreign_rows(self, tasks: Iterable[TaskRecord]) -> None:
        for record in (self.tables.find(each) for task in tasks for each in named_by(task)):
            if record is not None:
                self.tables.ledger.retain_row(record)

    def _restore_tasks(self, dead: bytes, rows: dict[bytes, EntrustedRow], wanted: list[bytes], now: float) -> dict[bytes, TaskRecord]:
        """Make records of these tasks and transitively of their inputs, as finished tasks whose values are lost."""
        found: dict[bytes, TaskRecord] = {}
        agenda = list(wanted)
        while agenda:
            task_id = agenda.pop()
            entrusted, job = rows.get(task_id), self.tables.jobs.get(task_id[:JOB_BYTES])
            if entrusted is not None and task_id not in found and job is not None and entrusted.row[1] in job.functions:
                found[task_id] = self._restore(entrusted, job, dead, now)
                agenda += [each[:TASK_BYTES] for each in _named_in(entrusted.row)]
        return found

    def _restore(self, entrusted: EntrustedRow, job: JobRecord, dead: bytes, now: float) -> TaskRecord:
        """Make the record of a stored row. An attempt that runs here goes on as this node's."""
        row, tables = entrusted.row, self.tables
        function = job.functions[row[1]]
        task = tables.tasks.get(row[0])
        runs = task is not None and task.state == ASSIGNED
        if task is None or not runs:
            if task is not None:
                self._drop_attempt(task)
            task = TaskRecord(row, function, dead, tables.first_attempt)
            tables.enter_task(task)
            task.drop_holder(dead)
            function.received += 1
            task.finish()
        else:
            task.function.received -= 1
            function.received += 1
            task.function, task.submitter, task.outputs = function, dead, None
            task.facts().demand_queue = None
        count = task.option("num_returns", 1)
        if count != 1:
            task.make_outputs(count)
        for value in task.values():
            if not runs:
                value.lose(tables.inline)
            orphan = tables.drop_object(value.object_id)
            if orphan is not None:
                self._join(value, orphan)
            if isinstance(value, ObjectRecord):
                tables.enter_object(value)
        self.admission.set_terms(task, now)
        task.block = entrusted.block
        return task

    def _drop_attempt(self, task: TaskRecord) -> None:
        if task.state == READY:
            self.tables.queue_of(task).stop_one()
        self.outcomes.remove_delegated(task)

    def _refer(self, task: TaskRecord, homes: m.Rows) -> list[AnyObject]:
        """Make records for the objects that a row names. Return those of the dead node that no row makes."""
        elsewhere = {row[0] for row in homes}
        self.borrowing.refer(elsewhere, homes, self.tables.cluster.node)
        unknown = [each for each in named_by(task) if each not in elsewhere and self.tables.find(each) is None]
        for identifier in unknown:
            record = self.tables.new_object(identifier, durable=_durability(identifier))
            record.lose(self.tables.inline)
        return [self.tables.objects[each] for each in unknown]

    def _become_home(self, orphan: ObjectRecord) -> None:
        """Make this node the home of an object that no row makes. Without a value here it counts as lost for now."""
        orphan.become_home(_durability(orphan.id))
        if orphan.status == PENDING:
            orphan.lose(self.tables.inline)
        self.tables.protect(orphan)
        self.tables.transfers.unwanted.append(orphan.id)  # A rebuilt value may differ from the copy that is under way.

    def _join(self, value: AnyObject, orphan: ObjectRecord) -> None:
        """Move an object's state into the record of a restored value."""
        if value.join(orphan, self.tables.inline):
            if value.status != OK:
                self.tables.note_failure(value)
            self.tables.protect(value)
        self.tables.transfers.unwanted.append(value.object_id)  # A rebuilt value may differ from the copy that is under way.
        self.tables.transfers.replace(orphan, value)

    def _adopt_values(self, takeover: _Takeover, records: list[AnyObject]) -> None:
        lost = {each.object_id: each for each in records if each.is_lost}
        for identifier, copies in takeover.copies.items():
            for copy in copies:
                record = lost.pop(identifier, None)
                if record is None:
                    if copy.status == OK:
                        self.tables.ledger.end(copy.node, HOLD, identifier)
                    continue
                self.borrowing.refer(copy.contained, copy.homes, copy.node)
                if copy.status == OK:
                    self.outcomes.set_value(record, copy.value, copy.contained, copy.node, False)
                else:
                    self.outcomes.set_failure(record, copy.status, copy.value)  # type: ignore[arg-type]
                self.borrowing.settle(copy.contained)
                self.tables.count("adopted")

    def _adopt_attempts(self, takeover: _Takeover, needed: set[TaskRecord]) -> None:
        """Adopt needed attempts on other nodes. Stop the others, unless they have ended."""
        ended = {(row[0], row[1]) for _, row, _, _ in takeover.ends if row[2] != LOST}
        for task_id, (token, attempt) in takeover.attempts.items():
            task = self.tables.tasks.get(task_id)
            if task is not None and task in needed and _is_to_run(task):
                self._assign(task, self.tables.nodes[token], attempt)
            elif (task_id, attempt) not in ended:  # Its value may be the adopted one, with its children inside.
                self.tables.send_to_node(token, m.StopDelegated(task_id, attempt, "cancelled", True))

    def _assign(self, task: TaskRecord, node: NodeRecord, attempt: int) -> None:
        self.references.pin(named_by(task))
        self.borrowing.settle(named_by(task))
        for value in task.values():
            if value.is_lost:
                value.expect(self.tables.inline)
        task.attempt = attempt
        task.ready()
        task.assign(node)
        node.inflight[task.id] = task
        self.tables.count("adopted")

    def _must_not_run_twice(self, task: TaskRecord) -> bool:
        """Fail a task that may run only once and may have run on the dead node. Return whether it is one."""
        if not _is_to_run(task) or not self.tables.runs_once(task):
            return False
        text = f"{task.name} may have run on a node that is dead, and max_retries=0 forbids another attempt"
        for value in task.values():
            if value.is_lost:
                self.outcomes.set_failure(value, FAILED, pack_failure("WorkerCrashedError", text))
        if task.outputs == ():
            task.end_as(FAILED)
        self.tables.write_log("warning", text)
        return True

    def _run(self, task: TaskRecord, reason: str) -> None:
        if not _is_to_run(task):
            return
        if task.outputs != ():
            self.rebuilding.make_available(task.values()[0], reason)
        elif why := self.rebuilding.rebuild(task, reason):
            self.tables.write_log("warning", f"{task.name} ({short(task.id)}) cannot run: {why}")

    def _accept_ends(self, takeover: _Takeover, now: float) -> None:
        for token, row, extra, named in takeover.ends:
            extras = ((0, *extra),) if extra is not None else ()
            self.outcomes.completed(self.tables.nodes[token], m.Completed.of((row,), extras), now)
            self.references.unpin(named)
            self.borrowing.settle(named)

    def _accept_own_ends(self, dead: bytes, ends: list[m.Completed], needed: set[TaskRecord], now: float) -> None:
        """Accept ends of attempts that ran here. A task whose large value has no record runs again."""
        for completed in ends:
            node = NodeRecord(dead, 0, "", {}, {}, now)
            named: list[bytes] = []
            extras = {index: tuple(extra) for index, *extra in completed.extras}
            for index, (task_id, attempt, status, outputs) in enumerate(completed.rows):
                task = self.tables.tasks.get(task_id)
                if status != LOST:
                    named += contained_in((task_id, attempt, status, outputs), extras.get(index))
                if task in needed and _is_to_run(task) and not any(isinstance(value, int) for value in outputs):
                    self._assign(task, node, attempt)
            self.outcomes.completed(node, completed, now)
            self.references.unpin(named)
            self.borrowing.settle(named)

    def _end_attempts(self, own: list[TaskRecord], now: float) -> None:
        void = [task for task in own if task.function.delegated and task.state != DONE]
        for task in self.stopping.with_children(void):
            self.stopping.stop(task, "cancelled", now)


def _is_to_run(task: TaskRecord) -> bool:
    """Whether a task has no attempt and lacks a value, or has none to make."""
    return task.state == DONE and (task.outputs == () or any(value.is_lost for value in task.values()))


def _durability(identifier: bytes) -> int:
    """Whether the head may have an object that no row makes."""
    return DURABLE if is_put(identifier) else NOT_DURABLE


def _named_in(row: m.Row) -> tuple[bytes, ...]:
    dependencies: tuple[bytes, ...] = row[DEPENDENCIES]
    return dependencies + tuple(option(row[OPTIONS], "contains", ())) if len(row) > OPTIONS else dependencies
