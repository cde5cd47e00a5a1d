"""What tasks of this home wait for, by shape, and missing bundles: for programs that add nodes.

Tasks that wait for dependencies do not count, nor those that other nodes can have begun. Tasks in placement groups wait for their bundles.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from zfabric.machines.common.resources import amounts
from zfabric.machines.local_scheduler.records import ASSIGNED, READY, NodeRecord, ShapeQueue, TaskRecord
from zfabric.machines.local_scheduler.reports.diagnoses import Diagnoses
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol.messages import PENDING_GROUP, RESCHEDULING
from zfabric.protocol.options import Strategy


class DemandReport:
    """The demand of this home."""

    def __init__(self, tables: Tables, diagnoses: Diagnoses) -> None:
        self.tables = tables
        self.diagnoses = diagnoses

    def report(self, now: float) -> dict[str, Any]:
        """Shapes with ready tasks, and placement groups that wait."""
        rows: dict[tuple[object, object], dict[str, Any]] = {}
        for queue, task in self._ready():
            shape = queue.demand, hard_terms(queue.strategy)
            row = rows.get(shape)
            if row is None:
                row = rows[shape] = {"resources": amounts(queue.demand), "labels": labels_of(queue.strategy), "ready": 0}
                row["oldest_seconds"], row["mean_seconds"] = self.diagnoses.elapsed(task, now) or 0.0, task.function.mean
            row["ready"] += 1
        return {"demand": list(rows.values()), "pending_groups": list(self._groups())}

    def _ready(self) -> Iterator[tuple[ShapeQueue, TaskRecord]]:
        """Tasks that no worker has: of other nodes first, which have the oldest."""
        for node in self.tables.nodes.values():
            for task in self._waiting_at(node):
                queue = self.tables.queue_of(task)
                if queue.group is None:
                    yield queue, task
        for queue in self.tables.queues.values():
            if queue.group is None and not queue.delegated:
                yield from ((queue, task) for task in queue if task.state == READY)

    def _waiting_at(self, node: NodeRecord) -> Iterator[TaskRecord]:
        return (task for task in islice(node.inflight.values(), self.tables.begun_at(node), None) if task.state == ASSIGNED)

    def _groups(self) -> Iterator[dict[str, Any]]:
        for record in self.tables.groups.values():
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
