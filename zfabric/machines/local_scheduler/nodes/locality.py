"""Tasks whose inputs lie on another node: they are sent there, rather than their inputs here, if they can start sooner.

To fetch an input takes its bytes over the bandwidth; there, a task waits for what this node has given that node before. The home knows
both, and so asks no global scheduler. What is not sent is placed as any other task.
"""

from __future__ import annotations

from collections import Counter

from zfabric.machines.local_scheduler.nodes.delegations import Delegations, is_own_work
from zfabric.machines.local_scheduler.records import READY, Elsewhere, NodeRecord, Stored, TaskRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol.options import RESOURCE_UNIT


class Locality:
    """Sends tasks to their inputs, over the shared tables."""

    def __init__(self, tables: Tables, delegations: Delegations) -> None:
        self.tables = tables
        self.delegations = delegations

    def end_of_turn(self, now: float) -> None:
        """Look at the tasks with inputs that became ready in this turn."""
        tasks, self.tables.with_inputs = self.tables.with_inputs, []
        for task in tasks:
            queue = self.tables.queue_of(task)
            if task.state != READY or queue.for_life or not is_own_work(queue):
                continue
            node = self._best(task)
            if node is None or (self.tables.runs_once(task) and self.delegations.room_for_once(queue, node) <= 0):
                continue
            if queue.demand not in node.full and self.delegations.may_travel(task):
                task.assign(node)
                queue.stop_one()  # It is still in the queue, where it is skipped.
                self.delegations.send(queue, node, [task])
                self.tables.counts["sent_to_inputs"] += 1

    def _best(self, task: TaskRecord) -> NodeRecord | None:
        """The node with most bytes of a task's inputs, if the task can start there before those can be here."""
        bytes_at: Counter[bytes] = Counter()
        for object_id in set(task.row[3]):
            record = self.tables.find(object_id)
            if record is not None and isinstance(record.value, Stored | Elsewhere):
                bytes_at[record.value.place if isinstance(record.value, Elsewhere) else b""] += record.value.size
        here = bytes_at.pop(b"", 0)
        place = max(bytes_at, key=lambda each: bytes_at[each], default=b"")
        node = self.tables.nodes.get(place)
        if node is None or node.process is None or not node.process.ready or node.draining:
            return None
        whole, bandwidth = bytes_at.total() + here, self.tables.config.node_bandwidth
        saved = (bytes_at[place] - here) / bandwidth
        cpus = max(1.0, node.resources.get("CPU", 0) / RESOURCE_UNIT)
        queued = len(node.inflight) // cpus * (task.function.mean or 0.0)
        there = max(queued, (whole - bytes_at[place]) / bandwidth)
        return node if saved > self.tables.config.spill_after and there < (whole - here) / bandwidth else None
