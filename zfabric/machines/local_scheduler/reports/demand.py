"""What tasks of this home wait for, by shape, and missing bundles: for programs that add nodes.

Tasks that wait for dependencies do not count, nor those that other nodes can have begun. Tasks in placement groups wait for their bundles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, TypeAlias

from zfabric.machines.common.resources import amounts
from zfabric.machines.local_scheduler.records import ASSIGNED, READY, ShapeQueue, TaskRecord
from zfabric.machines.local_scheduler.reports.diagnoses import Diagnoses
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol.messages import PENDING_GROUP, RESCHEDULING
from zfabric.protocol.options import Strategy

Ready: TypeAlias = tuple[ShapeQueue, TaskRecord, int]
"""A queue, the first of its ready tasks, and how many there are."""


class DemandReport:
    """The demand of this home."""

    def __init__(self, tables: Tables, diagnoses: Diagnoses) -> None:
        self.tables = tables
        self.diagnoses = diagnoses

    def report(self, now: float) -> dict[str, Any]:
        """Shapes with ready tasks, and placement groups that wait."""
        rows: dict[tuple[object, object], dict[str, Any]] = {}
        for queue, first, count in chain(self._ready_elsewhere(), self._ready_here()):
            shape = queue.demand, hard_terms(queue.strategy)
            row = rows.get(shape)
            if row is None:
                row = rows[shape] = {"resources": amounts(queue.demand), "labels": labels_of(queue.strategy), "ready": 0}
                row["oldest_seconds"], row["mean_seconds"] = self.diagnoses.elapsed(first, now) or 0.0, first.function.mean
            row["ready"] += count
        return {"demand": list(rows.values()), "pending_groups": list(self._groups())}

    def _ready_elsewhere(self) -> Iterator[Ready]:
        """What other nodes have and no worker: the oldest tasks."""
        for node in self.tables.nodes.values():
            found: dict[ShapeQueue, list[TaskRecord]] = defaultdict(list)
            for task in islice(node.inflight.values(), self.tables.begun_at(node), None):
                if task.state == ASSIGNED:
                    found[self.tables.queue_of(task)].append(task)
            yield from ((queue, tasks[0], len(tasks)) for queue, tasks in found.items() if queue.group is None)

    def _ready_here(self) -> Iterator[Ready]:
        for queue in self.tables.queues.values():
            if queue.group is None and not queue.delegated:
                count = sum(task.state == READY for task in queue)  # A million tasks may be queued: nothing else is done for each.
                if count:
                    yield queue, next(task for task in queue if task.state == READY), count

    def _groups(self) -> Iterator[dict[str, Any]]:
        for record in self.diagnoses.groups.records.values():
            if record.state in (PENDING_GROUP, RESCHEDULING):
                selectors = record.selectors or ((),) * len(record.bundles)
                bundles = [{"resources": amounts(each), "labels": labels_of(selectors[index])} for index, each in record.missing.items()]
                yield {"group": record.id.hex(), "name": record.name, "strategy": record.policy, "bundles": bundles}


def hard_terms(strategy: Strategy) -> Strategy:
    """Terms that a node must meet."""
    return tuple(term for term in strategy if term[0] == "hard")


def labels_of(strategy: Strategy) -> dict[str, dict[str, list[str]]]:
    """Required operators ("in", "not in") and values, by label."""
    found: dict[str, dict[str, list[str]]] = {}
    for _, label, operator, values in hard_terms(strategy):
        found.setdefault(label, {})[operator] = list(values)
    return found
