"""Rows entrusted to the home of their job, which runs them again if this node dies (decision 0039).

What makes another node depend on a row is sent behind each earlier row (``Ledger.rows``). Arguments of delegated tasks are exempt: those
tasks are void if their home dies. *Unfinished* rows, of children of ended parents, run again even if nothing refers to their values. After
a restart of the home all rows are entrusted again; after a restart of this node the homes report their rows, and ``reported`` ends the
unneeded ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from zfabric.config import ROWS_MAX, MiB
from zfabric.machines.local_scheduler.channel import batches
from zfabric.machines.local_scheduler.records import JobRecord, TaskRecord
from zfabric.machines.local_scheduler.references import named_by
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.messages import ENTRUSTED

BYTES_MAX = MiB // 2
"""Bytes of arguments that fill a message."""


class Entrusting:
    """Sends rows to the homes of their jobs."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.rows = tables.ledger.rows

    def entrust(self, object_ids: Iterable[bytes]) -> None:
        """Entrust the rows that make these objects, and transitively those of their inputs."""
        makers = self._makers(object_ids)
        if makers:
            self._entrust(makers)

    def entrust_unfinished(self, tasks: list[TaskRecord]) -> None:
        """Entrust tasks that run again even if nothing refers to their values."""
        known = [task for task in tasks if task.facts().entrusted]
        for task in tasks:
            task.facts().unfinished = True
        self._entrust(tasks)
        for job in {task.function.queue.job: None for task in known}:
            unfinished = [task.id for task in known if task.function.queue.job is job]
            for task_ids in batches(unfinished if job.home in self.tables.nodes else ()):
                self.tables.send_to_node(job.home, m.Entrust(self.rows.number_for(job.home), job.id, (), (), (), task_ids))

    def _makers(self, object_ids: Iterable[bytes]) -> list[TaskRecord]:
        records = map(self.tables.find, object_ids)
        return [record.task for record in records if record is not None and record.task is not None]

    def _entrust(self, agenda: list[TaskRecord]) -> None:
        found: defaultdict[JobRecord, list[TaskRecord]] = defaultdict(list)
        while agenda:
            task = agenda.pop()
            if task.function.actor is not None or task.function.stream is not None or (task.rare is not None and task.rare.entrusted):
                continue
            job = task.function.queue.job
            if job.home in self.tables.nodes:
                task.facts().entrusted = True
                found[job].append(task)
                agenda.extend(self._makers(named_by(task)))
        for job, tasks in found.items():
            self._send(job, tasks)

    def _send(self, job: JobRecord, tasks: list[TaskRecord]) -> None:
        for batch in _batches(tasks):
            functions = []
            for function in {task.function: None for task in batch if not task.function.entrusted}:
                function.entrusted = True
                functions.append((function.id, function.name, function.payload, function.options))
            homes = self.tables.homes_of(each for task in batch for each in named_by(task))
            rows = tuple(task.row for task in batch)
            unfinished = tuple(task.id for task in batch if task.facts().unfinished)
            number = self.rows.number_for(job.home)
            self.tables.send_to_node(job.home, m.Entrust(number, job.id, tuple(functions), rows, homes, unfinished))
        self.tables.count("entrusted", len(tasks))

    def reported(self, home: bytes, task_ids: m.Ids) -> None:
        """Accept a home's report of its rows, once the needed ones are known. End the others."""
        for task_id in task_ids:
            task = self.tables.tasks.get(task_id)
            if task is not None and not task.function.delegated:
                task.facts().entrusted = True
            else:
                self.tables.ledger.end(home, ENTRUSTED, task_id)

    def repeat(self, home: bytes) -> None:
        """Entrust again what a home's former daemon had."""
        self.repeat_jobs([job for job in self.tables.jobs.values() if job.home == home])

    def repeat_jobs(self, jobs: list[JobRecord]) -> None:
        """Entrust again the rows of these jobs, at new homes or daemons."""
        found: defaultdict[JobRecord, list[TaskRecord]] = defaultdict(list)
        for task in self.tables.tasks.values() if jobs else ():
            if task.rare is not None and task.rare.entrusted and task.function.queue.job in jobs:
                task.function.entrusted = False
                found[task.function.queue.job].append(task)
        for job, tasks in found.items():
            self._send(job, tasks)


def _batches(tasks: list[TaskRecord]) -> Iterator[list[TaskRecord]]:
    """Batches of ``ROWS_MAX`` rows and about ``BYTES_MAX`` bytes."""
    batch: list[TaskRecord] = []
    size = 0
    for task in tasks:
        if len(batch) == ROWS_MAX or size > BYTES_MAX:
            yield batch
            batch, size = [], 0
        batch.append(task)
        size += len(task.row[2])
    yield batch
