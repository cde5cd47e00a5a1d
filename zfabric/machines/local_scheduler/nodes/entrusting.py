"""Rows entrusted to the home of their job, which runs them again if this node dies (decision 0039).

What makes another node depend on a row goes through ``rows``, which retains it until every earlier ``Entrust`` is acknowledged
(``Entrusted``). Arguments of delegated tasks are exempt: those tasks are void if their home dies. *Unfinished* rows, of children of ended
parents, run again even if nothing refers to their values. ``Finished`` reports an outcome and ``Withdraw`` an end of need. After a restart
of the home all rows are entrusted again; after a restart of this node the homes report their rows, and ``settle`` withdraws the unneeded
ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from zfabric.config import ROWS_MAX, MiB
from zfabric.machines.local_scheduler.channel import PeerChannel, batches
from zfabric.machines.local_scheduler.records import JobRecord, TaskRecord
from zfabric.machines.local_scheduler.references import named_by
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address

BYTES_MAX = MiB // 2
"""Bytes of arguments that fill a message."""


class Entrusting:
    """Sends rows to the homes of their jobs."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.rows = PeerChannel(tables.nodes, tables.send_to_node, ordered=True)
        """``Entrust`` messages; what makes another node depend on objects goes behind them."""
        self._reported: dict[bytes, bytes] = {}
        """Homes that report rows of an earlier daemon, by task id."""
        self._settled = not tables.recovering
        """Whether the needed rows are known."""

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

    def finished(self, tasks: list[TaskRecord]) -> None:
        """Report outcomes of tasks entrusted as unfinished."""
        by_home: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for task in tasks:
            by_home[task.function.queue.job.home].append(task.id)
        for home, task_ids in by_home.items():
            self.tables.send_ids(home, m.Finished, task_ids)

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
        self.tables.counts["entrusted"] += len(tasks)

    def on_entrusted(self, now: float, source: Address, message: m.Entrusted) -> None:
        """Accept an acknowledgement, or a home's report of its rows."""
        self._reported.update(dict.fromkeys(message.task_ids, source[1:]))
        if self._settled:
            self.settle()
        self.rows.acknowledged(source[1:], message.number)

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
        self.rows.renew()

    def settle(self) -> None:
        """Withdraw the reported rows that nothing needs."""
        self._settled = True
        reported, self._reported = self._reported, {}
        by_home: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for task_id, home in reported.items():
            task = self.tables.tasks.get(task_id)
            if task is not None and not task.function.delegated:
                task.facts().entrusted = True
            else:
                by_home[home].append(task_id)
        self._withdraw(by_home)

    def node_died(self, node: bytes) -> None:
        """Stop waiting for a dead home of jobs."""
        self.rows.drop(node)
        self.rows.renew()

    def end_of_turn(self) -> None:
        """Withdraw what nothing needs."""
        by_home: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for task in self.tables.withdrawn:
            by_home[task.function.queue.job.home].append(task.id)
        self.tables.withdrawn.clear()
        self._withdraw(by_home)

    def _withdraw(self, by_home: dict[bytes, list[bytes]]) -> None:
        for home, task_ids in by_home.items():
            self.tables.send_ids(home, m.Withdraw, task_ids)


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
