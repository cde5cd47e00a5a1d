"""The executor's side of delegated tasks (decision 0030).

Each end is reported (``Ended``), and no record stays here. The report and its pins are retained until the home acknowledges it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from zfabric.machines.local_scheduler.barrier import HOMES
from zfabric.machines.local_scheduler.channel import NO_CALLS, CallsByWorker, Retained, Sent
from zfabric.machines.local_scheduler.lifecycle.jobs import Jobs
from zfabric.machines.local_scheduler.nodes.borrowing import Borrowing
from zfabric.machines.local_scheduler.nodes.children import Children
from zfabric.machines.local_scheduler.nodes.entrusting import Entrusting
from zfabric.machines.local_scheduler.nodes.fetching import Fetching
from zfabric.machines.local_scheduler.object_places import PENDING, Elsewhere, Stored
from zfabric.machines.local_scheduler.records import DONE, FunctionRecord, JobRecord, NodeRecord, RefusedRow, TaskRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.submission import Submission
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes, contained_in
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.machines.local_scheduler.transitions import CallsEndReceived
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import JOB_BYTES, Address, child_prefix, node_of, object_id, salt_of, short, unpack_counter
from zfabric.protocol.messages import FAILED, LOST, OK, STAYS
from zfabric.protocol.options import in_bundle, option


class Executions:
    """Accepts delegated tasks, and reports their ends."""

    def __init__(
        self,
        tables: Tables,
        references: References,
        outcomes: Outcomes,
        stopping: Stopping,
        submission: Submission,
        jobs: Jobs,
        borrowing: Borrowing,
        entrusting: Entrusting,
        children: Children,
        fetching: Fetching,
    ) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.stopping = stopping
        self.submission = submission
        self.jobs = jobs
        self.borrowing = borrowing
        self.entrusting = entrusting
        self.children = children
        self.fetching = fetching

    def on_delegate(self, now: float, source: Address, message: m.Delegate) -> None:
        """Accept rows from a home."""
        home = self.tables.nodes.get(source[1:])
        if home is None:
            self.tables.count("refused")
            return
        if message.job[2] == home.token:  # It goes on: an earlier daemon, or home, had begun to end it.
            self.jobs.ended_elsewhere.pop(message.job[0], None)
        job = self.job_of(message.job, now)
        if job is None:
            return
        self.submission.export(job, message.functions)  # A worker does not export again what it received with a task.
        for identifier, name, payload, options in message.functions:
            if identifier not in job.delegated:
                function = job.delegated[identifier] = FunctionRecord(identifier, name, payload, options, delegated=True)
                function.queue = self.tables.queues.of(job, function.shape)
        self._receive_values(message.values, message.homes, home.token)
        attempts: dict[int, int] = dict(message.attempts)
        tasks, any_ready = self.tables.tasks, False
        for index, row in enumerate(message.rows):
            attempt = attempts.get(index, message.attempt)
            delegated, known = job.delegated.get(row[1]), tasks.get(row[0])
            if delegated is None or known is not None:
                self._refuse(RefusedRow(row[0], attempt, home.token), known)
                continue
            if delegated.actor is not None and self._has_too_many_actors():
                limit = f"{self.tables.config.actors_max} actors, its limit (the setting actors_max)"
                text = f"node {self.tables.cluster.node.hex()} has {limit}"
                failure = pack_failure("ActorLimitExceededError", text)
                self.outcomes.delegated_ends.append((RefusedRow(row[0], attempt, home.token), FAILED, (failure,), None, ()))
                continue
            task = TaskRecord(row, delegated, home.token, attempt)
            delegated.received += 1
            task.drop_holder(home.token)
            task.outputs = ()  # The values are the home's; records of them here are borrowed.
            tasks[row[0]] = task
            if len(row) == 4 and not row[3] and delegated.actor is None and delegated.run_timeout is None:
                delegated.queue.tasks.append(task)
                any_ready = True
                continue
            self.borrowing.refer(task.contains(), message.homes, home.token)
            self._set_demand(task)
            self.references.pin(row[3])
            self.references.pin(task.contains())
            self._await_values(task)
        if any_ready:
            self.outcomes.note_ready()
        self.borrowing.forget_unneeded([each for identifier, _, contained in message.values for each in (identifier, *contained)])
        self.tables.count("received_delegated", len(message.rows))

    def adopt(self, row: m.Row, attempt: int, job: JobRecord) -> TaskRecord | None:
        """Make the record of a task that a worker reports after a restart. None if its home is dead or its function unknown."""
        home = next((node for node in self.tables.nodes.values() if node.number == node_of(attempt)), self.tables.nodes.get(job.home))
        function = job.delegated.get(row[1])
        if function is None and row[1] in job.functions:
            exported = job.functions[row[1]]
            known = (exported.id, exported.name, exported.payload, exported.options)
            function = job.delegated[row[1]] = FunctionRecord(*known, delegated=True)
            function.queue = self.tables.queues.of(job, function.shape)
        if home is None or function is None:
            return None
        task = TaskRecord(row, function, home.token, attempt)
        self.tables.enter_task(task)
        function.received += 1
        task.drop_holder(home.token)
        task.outputs = ()
        self._set_demand(task)
        return task

    def attempts_of(self, home: NodeRecord) -> m.Rows:
        """A home's attempts ``(task_id, attempt)`` that are here, or whose end is not acknowledged.

        Running ones come last: a task may run again after an unacknowledged end.
        """
        found: list[tuple[bytes, int]] = []
        for message in home.ends:
            if isinstance(message, m.Ended):
                found += [(task_id, attempt) for task_id, attempt, _, _ in m.Completed(*message.completed).rows]
        found += [(task.id, task.attempt) for task, *_ in self.outcomes.delegated_ends if task.submitter == home.token]
        found += [(guest.id, guest.task.attempt) for guest in self.tables.guests.values() if guest.home == home.token]
        here = [task for task in self.tables.tasks.values() if task.function.delegated and task.submitter == home.token]
        return (*found, *((task.id, task.attempt) for task in here))

    def repeat_ends(self, home: NodeRecord) -> None:
        """Repeat unacknowledged ends, and those that have made actors here. Behind them, name values that are released here since."""
        for message in home.ends:
            self.tables.ledger.holds.send(home.token, message)
        for identifier in dict.fromkeys(each for message in home.ends for each in _released_by_home(message)):
            record = self.tables.find(identifier)
            if record is None or type(record.value) is not Stored:
                self.tables.ledger.holds.send(home.token, m.CopyLost(identifier, "it was released before its home's daemon was restarted"))
        for guest in self.tables.guests.values():
            if guest.home == home.token:
                self.outcomes.delegated_ends.append((guest.task, OK, (b"actor",), None, ()))

    def life_ended(self, home: NodeRecord, actor_id: bytes, attempt: int) -> None:
        """Drop the unacknowledged end that made a dead actor: the home's next daemon would believe that it lives."""
        for message in list(home.ends):
            if isinstance(message, m.Ended) and (actor_id, attempt) in (row[:2] for row in m.Completed(*message.completed).rows):
                home.ends.replace(message, message._replace(completed=tuple(_without(m.Completed(*message.completed), actor_id))))

    def job_of(self, about: m.Row, now: float) -> JobRecord | None:
        """The job's record; None if it has ended, or this node stops and homes run its tasks again."""
        identifier, namespace, home = about
        if self.jobs.all_ended:
            return None
        job = self.tables.jobs.get(identifier)
        if identifier in self.jobs.ended_elsewhere or (job is None and home == self.borrowing.node) or (job is not None and job.ended):
            return None
        if job is None:
            job = self.jobs.enter(JobRecord(identifier, unpack_counter(identifier)[0], namespace, now))
            job.home = home
            self.jobs.elsewhere(job)
        return job

    def _has_too_many_actors(self) -> bool:
        tables = self.tables
        here = sum(len(worker.actors) for worker in tables.workers.values() if not worker.shared)
        waiting = sum(task.function.actor is not None and task.worker is None and task.state != DONE for task in tables.tasks.values())
        return here + waiting >= tables.config.actors_max

    def _refuse(self, row: RefusedRow, known: TaskRecord | None) -> None:
        """Fail a row, unless this very attempt is here."""
        if known is not None and known.submitter == row.submitter and known.attempt == row.attempt:
            return
        why = "its function was not sent with it" if known is None else "a task with its id is there already"
        failure = pack_failure("FabricError", f"the node that was given task {short(row.id)} refused it: {why}")
        self.tables.count("refused")
        self.outcomes.delegated_ends.append((row, FAILED, (failure,), None, ()))

    def _receive_values(self, values: m.Rows, homes: m.Rows, sender: bytes) -> None:
        """Enter dependencies; the sender retains them as long as the rows."""
        for identifier, value, contained in values:
            self.borrowing.refer((identifier, *contained), homes, sender)
            record = self.tables.find(identifier)
            if record is None or not record.home or record.status != PENDING:
                continue
            if isinstance(value, tuple):
                self.fetching.expect(record, value, contained, homes, sender)
            else:
                self.outcomes.set_value(record, value, contained, b"", False)
                self.outcomes.announce(record)

    def _await_values(self, task: TaskRecord) -> None:
        """Fetch missing values at once, before a worker is free."""
        missing = 0
        for identifier in task.row[3]:
            record = self.tables.find(identifier)
            if record is not None and (record.status == PENDING or isinstance(record.value, Elsewhere)):
                missing += 1
                record.add_dependent(task)
                self.tables.transfers.want(record)
        if missing:
            task.wait(missing)
        else:
            self.outcomes.make_ready(task)

    def _set_demand(self, task: TaskRecord) -> None:
        task.limit_run()
        demand, environment = option(task.options, "demand"), option(task.options, "env")
        strategy = option(task.options, "strategy", option(task.function.options, "strategy", option(task.options, "captured", ())))
        shape = task.function.shape
        if demand is not None or environment is not None or in_bundle(strategy) != shape[5]:
            own = (
                shape[0] if demand is None else demand,
                shape[1] if environment is None else environment,
                *shape[2:5],
                in_bundle(strategy),
            )
            task.facts().demand_queue = self.tables.queues.of(task.function.queue.job, own)

    def on_stop_delegated(self, now: float, source: Address, message: m.StopDelegated) -> None:
        """Stop an attempt and, if ``recursive``, its children. May come again."""
        task = self.tables.tasks.get(message.task_id)
        if task is None and message.recursive and source[1:] in self.tables.nodes:  # It has ended.
            prefix = child_prefix(message.task_id[:JOB_BYTES], message.task_id, 0, salt_of(message.attempt))
            self.stopping.stop_children({prefix}, {message.task_id}, message.reason, now)
        if task is None or task.attempt != message.attempt or task.submitter != source[1:]:
            return
        tasks = self.stopping.with_children([task], force=message.reason == "force") if message.recursive else [task]
        if message.recursive:
            self.stopping.stop_elsewhere(tasks, [], message.reason)
        for each in tasks:
            self.stopping.stop(each, message.reason, now)

    def end_of_turn(self) -> None:
        """Report the ends of this turn."""
        ended = self.outcomes.delegated_ends.take()
        if self.tables.barrier.awaits(HOMES):  # A stream's values are sent before its end, once the homes of their refs are known.
            self.outcomes.delegated_ends += [each for each in ended if _is_stream(each[0])]
            ended = [each for each in ended if not _is_stream(each[0])]
        by_home: defaultdict[bytes, _Report] = defaultdict(_Report)
        for task, status, outputs, extra, contained in ended:
            if self.children and isinstance(task, TaskRecord):
                (self.children.parent_lost if status in (LOST, STAYS) else self.children.parent_ended)(task)
            report = by_home[task.submitter]
            report.add((task.id, task.attempt, status, outputs), extra, contained)
            if status == OK and isinstance(task, TaskRecord) and task.function.mean is not None:
                report.runs[task.function] = report.runs.get(task.function, 0) + 1
        for node, report in by_home.items():
            home = self.tables.nodes.get(node)
            if home is None:
                self.references.unpin(report.named)
                continue
            self._send_report(home, report)

    def _send_report(self, home: NodeRecord, report: _Report) -> None:
        self.report(home, m.Ended(home.ends.next, tuple(report.completed()), self.tables.homes_of(report.named)), report.named)

    def report(
        self, home: NodeRecord, message: Sent, named: Sequence[bytes], pinned: Sequence[bytes] = (), calls: CallsByWorker = NO_CALLS
    ) -> None:
        """Send ends; retain them, and pins of at least what they name, until acknowledged (``PeerOutbox.retain``)."""
        if named:
            self.entrusting.entrust(named)
        self.tables.ledger.holds.send(home.token, message)
        home.ends.retain(message, tuple(pinned or named), calls)

    def home_died(self, dead: NodeRecord) -> list[m.Completed]:
        """Report unacknowledged ends to the heirs, each behind its attempts.

        Return the ends for this node as heir, with refs inside pinned.
        """
        own: list[m.Completed] = []
        for message in dead.ends:
            if isinstance(message, m.Ended):
                self._report_anew(dead.token, message, own)
        return own

    def _report_anew(self, dead: bytes, message: m.Ended, own: list[m.Completed]) -> None:
        completed = m.Completed(*message.completed)
        extras = {index: tuple(extra) for index, *extra in completed.extras}
        by_home: defaultdict[bytes, _Report] = defaultdict(_Report)
        for index, row in enumerate(completed.rows):
            home = self.tables.job_home(row[0])
            if home is not None:
                by_home[home].add(row, extras.get(index), contained_in(row, extras.get(index)) if row[2] != LOST else ())
        for home, report in by_home.items():
            if home and home not in self.tables.nodes:
                continue
            self.references.pin(report.named)
            if home:
                attempts = tuple((row[0], row[1]) for row in report.rows)
                self.tables.send_to_node(home, m.Holdings(dead, (), (), attempts, False))
                self._send_report(self.tables.nodes[home], report)
            else:
                own.append(report.completed())

    def on_ends_received(self, now: float, source: Address, message: m.EndsReceived) -> list[Sent]:
        """Drop acknowledged reports: the home holds what they name. Return those that no caller lacks."""
        home = self.tables.nodes.get(source[1:])
        return self._over(home.ends.acknowledged(message.number, message.callers)) if home is not None else []

    def drop_ends_for(self, dead: NodeRecord) -> None:
        """Drop a dead home's unacknowledged ends, once its heirs have them."""
        self._over(dead.ends.take_all())

    def _over(self, retained: list[Retained]) -> list[Sent]:
        for _, pins, calls in retained:
            self.references.unpin(pins)
            if calls:
                self.tables.report(CallsEndReceived(calls))
        return [each[0] for each in retained]


def _released_by_home(message: Sent) -> Iterator[bytes]:
    """Large values that the home may have released already. Those of calls are pinned until the message is acknowledged."""
    if isinstance(message, m.RelayedYields):
        yield from (object_id(row[0], row[2] + 1) for row in message.rows if type(row[3]) is int)
    elif isinstance(message, m.Ended):
        for task_id, _, _, outputs in m.Completed(*message.completed).rows:
            yield from (object_id(task_id, index) for index, value in enumerate(outputs) if type(value) is int)


def _is_stream(task: TaskRecord | RefusedRow) -> bool:
    return isinstance(task, TaskRecord) and task.function.stream is not None


def _without(completed: m.Completed, task_id: bytes) -> m.Completed:
    extras = {index: tuple(extra) for index, *extra in completed.extras}
    left = [(row, extras.get(index)) for index, row in enumerate(completed.rows) if row[0] != task_id]
    kept = tuple((index, *extra) for index, (_, extra) in enumerate(left) if extra is not None)
    return m.Completed.of(tuple(row for row, _ in left), kept, completed.durations)


class _Report:
    def __init__(self) -> None:
        self.rows: list[m.Row] = []
        self.extras: list[m.Row] = []
        self.named: list[bytes] = []
        self.runs: dict[FunctionRecord, int] = {}
        """Runs that succeeded, by function."""

    def add(self, row: m.Row, extra: tuple[m.Row, m.Row] | None, named: m.Ids) -> None:
        if extra is not None:
            self.extras.append((len(self.rows), *extra))
        self.rows.append(row)
        self.named += named

    def completed(self) -> m.Completed:
        durations = tuple((each.queue.job.id + each.id, count, count * (each.mean or 0.0)) for each, count in self.runs.items())
        return m.Completed.of(tuple(self.rows), tuple(self.extras), durations)
