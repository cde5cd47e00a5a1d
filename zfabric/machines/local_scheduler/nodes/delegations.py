"""The home's side of delegated tasks (decision 0030): rows and outcomes are as a worker's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zfabric.config import ROWS_MAX
from zfabric.machines.common.resources import count_fitting
from zfabric.machines.local_scheduler.nodes.borrowing import Borrowing
from zfabric.machines.local_scheduler.nodes.copies import Copies
from zfabric.machines.local_scheduler.nodes.receipts import Receipts
from zfabric.machines.local_scheduler.records import READY, FunctionRecord, NodeRecord, ShapeQueue, TaskRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes, contained_in
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.protocol import messages as m
from zfabric.protocol.ids import JOB_BYTES, Address
from zfabric.protocol.messages import LOST
from zfabric.protocol.options import names_objects, only_prefers, option


class Delegations:
    """Gives ready tasks to other nodes."""

    def __init__(
        self,
        tables: Tables,
        references: References,
        outcomes: Outcomes,
        rebuilding: Rebuilding,
        borrowing: Borrowing,
        copies: Copies,
        receipts: Receipts,
        node: bytes,
    ) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.rebuilding = rebuilding
        self.borrowing = borrowing
        self.copies = copies
        self.receipts = receipts
        self.node = node
        self.preferring: dict[bytes, float] = {}
        """Nodes with tasks that could run elsewhere, and since when they have ended none."""

    def give(self, queue: ShapeQueue, node: NodeRecord, most: int, now: float) -> int:
        """Delegate up to ``most`` tasks of a queue, from its end; return how many.

        Of tasks that must not run twice a node receives only what it can run at once: if it dies, all may have begun.
        """
        batch: list[TaskRecord] = []
        once, function = self.room_for_once(queue, node), None
        """How many of those it may still receive, and a function without them."""
        for tasks in (queue.tasks, queue.consumers):
            stay: list[TaskRecord] = []
            while tasks and len(batch) < most:
                task = tasks.pop()
                if task.state != READY:
                    continue
                if once <= 0 and (task.function is not function or len(task.row) > 4):
                    if self.tables.runs_once(task):
                        stay.append(task)
                        break
                    function = task.function
                if self.may_travel(task):
                    once -= 1
                    task.assign(node)  # At once: a task may be in its queue twice.
                    batch.append(task)
                elif not self.rebuilding.hold_back(task, here=False):
                    stay.append(task)
            tasks.extend(reversed(stay))
        batch.reverse()
        for start in range(0, len(batch), ROWS_MAX):
            self.send(queue, node, batch[start : start + ROWS_MAX])
        if batch and queue.strategy and only_prefers(queue.strategy):
            self.preferring.setdefault(node.token, now)
        return len(batch)

    def room_for_once(self, queue: ShapeQueue, node: NodeRecord) -> int:
        """How many tasks that must not run twice a node may receive; many if they may run nowhere else."""
        if queue.only or queue.group is not None:
            return ROWS_MAX
        return max(1, count_fitting(node.resources, queue.demand, 0)) - len(node.inflight)

    def waits_for_room(self, queue: ShapeQueue, nodes: Iterable[NodeRecord | None]) -> bool:
        """Whether a queue's tasks must not run twice, and none of these nodes can begin them now."""
        if not queue or not self.tables.runs_once(queue.last):
            return False
        return any(self.room_for_once(queue, node) <= 0 for node in nodes if node is not None)

    def may_travel(self, task: TaskRecord) -> bool:
        """Whether a task may leave: the homes of its refs are known.

        Actors that share processes stay, and so do replays, which read this node's logs.
        """
        function = task.function
        if task.rare is not None and task.rare.common:
            return True
        if task.rare is not None and task.rare.stays:
            return False
        if function.actor is not None and (function.shared or task.id in self.tables.remakes):
            return False
        if not names_objects(task.row):
            return True
        may = self.references.may_travel
        dependencies = self._dependencies(task)
        if not all(record.is_here for record in dependencies):
            return False  # Something was lost since it became ready.
        return all(map(may, task.contains())) and all(may(each) for record in dependencies for each in record.contained)

    def _dependencies(self, task: TaskRecord) -> list[Any]:
        return [self.tables.find(object_id) for object_id in task.row[3]]

    def send(self, queue: ShapeQueue, node: NodeRecord, batch: list[TaskRecord]) -> None:
        """Send rows, as one message."""
        job = queue.job
        first = self.tables.first_attempt
        functions: dict[bytes, m.Row] = {}
        rows: list[m.Row] = []
        attempts: list[m.Row] = []
        values: dict[bytes, m.Row] = {}
        named: list[bytes] = []
        strategic = bool(queue.strategy) and queue.group is None
        inflight, function = node.inflight, None
        for task in batch:
            row = task.row
            inflight[row[0]] = task
            if task.function is not function:  # Most tasks of a batch have the same one.
                function = task.function
                if job.id + function.id not in node.functions:
                    node.functions.add(job.id + function.id)
                    functions[function.id] = (function.id, function.name, function.payload, function.options)
            if task.attempt != first:
                attempts.append((len(rows), task.attempt))
            if strategic and task.rare is not None and task.rare.common and not function.strategy:
                rows.append(row[:4])
                continue
            rows.append(_without_strategy(row, function) if strategic and len(row) > 4 else row)
            if not names_objects(row):
                continue
            for record in self._dependencies(task):
                if record.object_id not in values:
                    value = record.value if type(record.value) is bytes else self.copies.offer(record, node.token)
                    values[record.object_id] = (record.object_id, value, record.contained)
                named += (record.object_id, *record.contained)
            named += task.contains()
        about = (job.id, job.namespace, job.home or self.node)
        homes = self.tables.homes_of(named)
        columns = (tuple(functions.values()), tuple(rows), tuple(attempts), tuple(values.values()), homes)
        self.tables.send_to_node(node.token, m.Delegate(about, *columns, first))
        node.reclaimable |= not queue.strategy
        self.outcomes.note_ready()  # A blocked task that waits for one of these may now be replaced.
        self.tables.count("delegated", len(batch))

    def on_ended(self, now: float, source: Address, message: m.Ended) -> None:
        """Accept ends of attempts from another node."""
        node = self.tables.nodes.get(source[1:])
        if node is None:
            self.tables.count("refused")
            return
        completed = m.Completed(*message.completed)
        if node.token in self.preferring:
            self.preferring[node.token] = now
        if node.full:
            for task in [node.inflight[row[0]] for row in completed.rows if row[0] in node.inflight]:
                node.full.pop(self.tables.queue_of(task).demand, None)  # There is room again.
        for function_id, count, seconds in completed.durations:
            job = self.tables.jobs.get(function_id[:JOB_BYTES])
            function = job.functions.get(function_id[JOB_BYTES:]) if job is not None else None
            if function is not None and count > 0:
                function.learn(count, seconds)
        extras = {index: tuple(extra) for index, *extra in completed.extras}
        named: list[bytes] = []
        if extras or any(completed.statuses):
            for index, row in enumerate(completed.rows):
                if row[2] != LOST:
                    named += contained_in(row, extras.get(index))
        self.borrowing.refer(named, message.homes, node.token)
        self.outcomes.completed(node, completed, now)
        self.borrowing.settle(named)
        self.receipts.accepted(node, message.number, now)

    def take_slow(self, now: float, patience: float) -> list[NodeRecord]:
        """Take from ``preferring`` what was slow for ``patience`` seconds."""
        slow = [token for token, since in self.preferring.items() if now >= since + patience]
        for token in slow:
            del self.preferring[token]
        return [self.tables.nodes[token] for token in slow if token in self.tables.nodes]


def _without_strategy(row: m.Row, function: FunctionRecord) -> m.Row:
    """A row without its strategy, its only option: the executor does not need it."""
    if function.actor is not None or len(row[4]) != 1 or row[4][0][0] != "strategy" or option(function.options, "strategy") is not None:
        return row
    return row[:4]


def is_own_work(queue: ShapeQueue) -> bool:
    """Whether a queue's tasks are at home here and may run anywhere."""
    return not queue.delegated and not queue.shared and not queue.strategy
