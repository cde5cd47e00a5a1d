"""The executor's side of tasks that other nodes have delegated to this one.

They are records as any others, in queues of their own, with one difference: whatever ends an attempt is reported to the home, and
nothing of the task stays here. The home retries, cancels, fails.
"""

from __future__ import annotations

from collections import defaultdict

from zfabric.machines.local_scheduler.lifecycle.jobs import Jobs
from zfabric.machines.local_scheduler.records import FunctionRecord, JobRecord, ObjectRecord, TaskRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address, unpack_counter
from zfabric.protocol.options import option


class Executions:
    """Takes in delegated tasks, and reports how they ended."""

    def __init__(self, tables: Tables, references: References, outcomes: Outcomes, stopping: Stopping, jobs: Jobs) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.stopping = stopping
        self.jobs = jobs

    def on_delegate(self, now: float, source: Address, message: m.Delegate) -> None:
        """Another node gives rows to this one."""
        home = self.tables.nodes.get(source[1:])
        if home is None:
            self.tables.counts["refused"] += 1
            return
        job = self._job(message.job, now)
        for identifier, name, payload, options in message.functions:
            if identifier not in job.delegated:
                function = job.delegated[identifier] = FunctionRecord(identifier, name, payload, options, delegated=True)
                function.queue = self.tables.queue_for(job, function.shape)
        details = {index: (attempt, values) for index, attempt, values in message.details}
        for index, row in enumerate(message.rows):
            attempt, values = details.get(index, (message.attempt, ()))
            task = TaskRecord(row, job.delegated[row[1]], home.token, attempt)
            task.holders = None
            task.outputs = ()  # Its values are the home's. A record here that has the name of one is what this node knows of it.
            self.tables.tasks[task.id] = task
            self._receive_values(row[3], values)
            self._set_demand(task)
            self.references.pin(row[3])
            self.outcomes.make_ready(task)
        self.tables.counts["received_delegated"] += len(message.rows)

    def _job(self, about: m.Row, now: float) -> JobRecord:
        identifier, namespace, home = about
        job = self.tables.jobs.get(identifier)
        if job is None:
            job = self.tables.jobs[identifier] = JobRecord(identifier, unpack_counter(identifier)[0], namespace, now)
            job.home = home
        return job

    def _receive_values(self, dependencies: m.Ids, values: m.Row) -> None:
        """Enter the values of a row's dependencies: they stay until the task has ended, which pins them."""
        for object_id, value in zip(dependencies, values, strict=True):
            if self.tables.find(object_id) is None:
                record = self.tables.objects[object_id] = ObjectRecord(object_id, None, None)
                self.outcomes.set_value(record, value, (), b"", False)

    def _set_demand(self, task: TaskRecord) -> None:
        """Take over what a call asks for on its own. Its deadline is the home's matter."""
        demand, environment = option(task.options, "demand"), option(task.options, "env")
        if demand is not None or environment is not None:
            shape = task.function.shape
            own = (shape[0] if demand is None else demand, shape[1] if environment is None else environment, *shape[2:])
            task.facts().demand_queue = self.tables.queue_for(task.function.queue.job, own)

    def on_stop_delegated(self, now: float, source: Address, message: m.StopDelegated) -> None:
        """Stop an attempt, and what it submitted if the home asks for that. The request may come again."""
        task = self.tables.tasks.get(message.task_id)
        if task is None or task.attempt != message.attempt or task.submitter != source[1:]:
            return
        tasks = self.stopping.with_children([task]) if message.recursive else [task]
        for each in tasks:
            self.stopping.stop(each, message.reason, now)

    def end_of_turn(self) -> None:
        """Report the attempts that ended in this turn."""
        ended, self.tables.delegated_ends = self.tables.delegated_ends, []
        by_home: defaultdict[bytes, tuple[list[m.Row], list[m.Row]]] = defaultdict(lambda: ([], []))
        for task, status, outputs, extra in ended:
            rows, extras = by_home[task.submitter]
            if extra is not None:
                extras.append((len(rows), *extra))
            rows.append((task.id, task.attempt, status, outputs))
        for node, (rows, extras) in by_home.items():
            home = self.tables.nodes.get(node)
            if home is None:
                continue
            report = tuple(m.Completed.of(tuple(rows), tuple(extras)))
            home.unreceived.append((home.next_end, report))
            self.tables.send_to_node(node, m.Ended(home.next_end, report))
            home.next_end += 1

    def on_ends_received(self, now: float, source: Address, message: m.EndsReceived) -> None:
        """A home has taken in reports."""
        home = self.tables.nodes.get(source[1:])
        while home is not None and home.unreceived and home.unreceived[0][0] <= message.number:
            home.unreceived.popleft()
