"""What is around a task or object: inputs, submitter, results, and who waits for these (paper, figure 4)."""

from __future__ import annotations

from itertools import islice
from typing import Any

from zfabric.machines.local_scheduler.object_places import PENDING
from zfabric.machines.local_scheduler.records import DONE, STATE_NAMES, AnyObject, TaskRecord
from zfabric.machines.local_scheduler.reports.diagnoses import failed, object_row
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol.ids import OBJECT_BYTES, is_call
from zfabric.protocol.names import brief, size

EACH_MOST = 40
"""Most of one kind; ``more`` counts the others."""


class Neighbourhood:
    """Nodes and edges around one centre."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.nodes: dict[str, dict[str, Any]] = {}
        self.edges: list[tuple[str, str, str]] = []
        """(from, to, kind): "data", "contains" (a ref inside a value), "control" (who submitted it)."""
        self.more = 0

    def around(self, subject: bytes) -> dict[str, Any] | None:
        """Nodes, edges, and how many were left out; None without a record."""
        record = self.tables.find(subject) if len(subject) == OBJECT_BYTES else None
        task = record.task if record is not None else self.tables.tasks.get(subject)
        if task is None and record is None:
            return None
        if task is not None:
            self._task_with_inputs(task)
        for value in task.values() if task is not None else ():
            self._value(value)
        if task is None and record is not None:
            self._value(record)
        return {"nodes": list(self.nodes.values()), "edges": self.edges, "more": self.more}

    def _task_with_inputs(self, task: TaskRecord) -> None:
        name = self._task(task)
        process = self.tables.processes.get(task.submitter)
        if process is not None:
            submitter = f"process {process.pid}"
            self.nodes[submitter] = {"id": submitter, "kind": "process", "name": f"{process.kind} {process.pid}", "state": ""}
            self._edge(submitter, name, "control")
        for kind, objects in (("data", task.row[3]), ("contains", task.contains())):
            for object_id in self._some(dict.fromkeys(objects)):
                needed = self.tables.find(object_id)
                if needed is not None:
                    self._edge(self._object(needed), name, kind)
                    if needed.task is not None and needed.task is not task:
                        self._edge(self._task(needed.task), self._object(needed), "data")

    def _value(self, record: AnyObject) -> None:
        name = self._object(record)
        if record.task is not None:
            self._edge(self._task(record.task), name, "data")
        for object_id in self._some(record.contained):
            inside = self.tables.find(object_id)
            if inside is not None:
                self._edge(self._object(inside), name, "contains")
        for task in self._some(record.dependents or ()):
            self._edge(name, self._task(task), "data")

    def _some(self, things: Any) -> list[Any]:
        self.more += max(0, len(things) - EACH_MOST)
        return list(islice(things, EACH_MOST))

    def _edge(self, source: str, to: str, kind: str) -> None:
        if (source, to, kind) not in self.edges:
            self.edges.append((source, to, kind))

    def _task(self, task: TaskRecord) -> str:
        name = task.id.hex()
        state = "failed" if task.state == DONE and failed(task) else STATE_NAMES[task.state]
        kind = "task" if task.function.actor is None else "actor"
        self.nodes.setdefault(name, {"id": name, "kind": kind, "name": f"{task.name} {brief(task.id)}", "state": state})
        return name

    def _object(self, record: AnyObject) -> str:
        name = record.object_id.hex()
        if name not in self.nodes:
            row = object_row(record)
            made = "call" if is_call(record.object_id) else "value" if record.task is not None else "put"
            text = f"{made} {brief(record.object_id)}" + ("" if record.status == PENDING else f", {size(row['size'])}")
            self.nodes[name] = {"id": name, "kind": "object", "name": text, "state": row["state"]}
        return name
