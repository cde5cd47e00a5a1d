"""Children that outlive their parents, on another node than the home of the job (decision 0039).

When a delegated task ends, its unfinished children are entrusted to the home of the job, and when such a child ends, its own are: nobody
else would submit them again.
"""

from __future__ import annotations

from zfabric.machines.local_scheduler.nodes.entrusting import Entrusting
from zfabric.machines.local_scheduler.records import DONE, TaskRecord
from zfabric.machines.local_scheduler.submission import Submission
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.ids import JOB_BYTES, PREFIX_BYTES, child_prefix, salt_of
from zfabric.protocol.messages import UNFINISHED
from zfabric.protocol.messages.rows import OPTIONS, TASK_ID
from zfabric.protocol.options import option

CHILDREN_MIN = 10_000
"""Children at which ended ones are first dropped; then twice the rest."""


class Children:
    """Children of tasks of other homes' jobs, by parent."""

    def __init__(self, tables: Tables, outcomes: Outcomes, submission: Submission, entrusting: Entrusting) -> None:
        self.tables = tables
        self.outcomes = outcomes
        self.submission = submission
        self.entrusting = entrusting
        self._of: dict[bytes, list[bytes]] = {}
        """Ids by their prefix, or by the parent's id if a thread submitted them."""
        self._count = 0
        self._most = CHILDREN_MIN

    def __len__(self) -> int:
        return self._count

    def end_of_turn(self) -> None:
        """Enter the tasks of other homes' jobs. Of those that ended, entrust the children first."""
        for rows in self.submission.of_other_homes.take():
            self._enter(rows)
        for task in self.outcomes.ended_entrusted.take():
            self.parent_ended(task)
            self.tables.ledger.end(task.function.queue.job.home, UNFINISHED, task.id)

    def _enter(self, rows: m.Rows) -> None:
        for row in rows:
            parent = option(row[OPTIONS], "parent") if len(row) > OPTIONS else None
            self._of.setdefault(parent or row[TASK_ID][:PREFIX_BYTES], []).append(row[TASK_ID])
        self._count += len(rows)
        if self._count > self._most:
            self._forget_ended()

    def parent_ended(self, task: TaskRecord) -> None:
        """Entrust an ended task's unfinished children, and those of its finished children."""
        unfinished: list[TaskRecord] = []
        agenda = self._take(task)
        while agenda:
            child = self.tables.tasks.get(agenda.pop())
            if child is not None and child.state != DONE:
                unfinished.append(child)
            elif child is not None:
                agenda += self._take(child)
        if unfinished:
            self.entrusting.entrust_unfinished(unfinished)

    def parent_lost(self, task: TaskRecord) -> None:
        """Drop a void attempt's children: the next one submits its own."""
        self._take(task)

    def _take(self, task: TaskRecord) -> list[bytes]:
        found = self._of.pop(_prefix(task), []) + self._of.pop(task.id, [])
        self._count -= len(found)
        return found

    def _forget_ended(self) -> None:
        tasks = self.tables.tasks
        for parent, children in list(self._of.items()):
            left = [
                each for each in children if (task := tasks.get(each)) is not None and (task.state != DONE or _prefix(task) in self._of)
            ]
            self._count -= len(children) - len(left)
            if left:
                self._of[parent] = left
            else:
                del self._of[parent]
        self._most = max(CHILDREN_MIN, 2 * self._count)


def _prefix(task: TaskRecord) -> bytes:
    return child_prefix(task.id[:JOB_BYTES], task.id, 0, salt_of(task.attempt))
