"""What each view of the page shows, from the same queries as ``--json`` of the command line. All text in it is plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import psutil

from zfabric.adapters.processes import resident_bytes
from zfabric.page.lines import Output
from zfabric.page.spans import WINDOW_SECONDS, Attempt, TaskStream
from zfabric.protocol.messages.queries import LIST_LIMIT
from zfabric.protocol.names import brief
from zfabric.runtime.connection import clock
from zfabric.runtime.driver import DriverClient
from zfabric.runtime.log_files import LocalLogFiles, LogFiles, RemoteLogFiles
from zfabric.runtime.session import Session
from zfabric.runtime.stack_report import process_report, sample_report
from zfabric.runtime.timeline import TimelineNode, members

ROWS = 200
"""Rows of a table on one page of it."""
FAILED_MOST = 500
"""Most failed tasks whose errors are grouped; the view says how many there are."""
ALMOST_FULL = 0.9
"""Share of a store or a disk from which on it is a problem."""

SAMPLED_SECONDS = 1.0
"""How long one question for samples of stacks takes."""
MEMBERS_SECONDS = 5.0
"""How long a list of the nodes is used for the task stream."""
ERROR_PREFIX = "has finished with an error: "
"""How the explanation of a task with an error begins."""

Table = dict[str, Any]
"""``rows``, and ``more``: whether there are more than these."""


class Views:
    """The views of one cluster. Each method queries the daemon and blocks; one thread calls them all."""

    def __init__(self, session: Session, client: DriverClient) -> None:
        self._session = session
        self._client = client
        self.metrics_directory = f"{session.directory}/metrics"
        """Where the processes of programs write metrics of their own."""
        self.running_times: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
        """Of a function and a kind: counts by the boundaries of ``metrics``, and the sum in seconds."""
        self._before: tuple[float, int] | None = None
        self._stream: TaskStream | None = None
        self._metered: TaskStream | None = None
        self._output: Output | None = None
        self._nodes: list[TimelineNode] = []
        self._nodes_until = 0.0

    # -- what is pushed every second --

    def overview(self) -> dict[str, Any]:
        """Nodes, counts, rates, the store, and what is wrong, the worst first; and the progress of each function."""
        statuses = self._statuses()
        progress = self.progress()
        finished = sum(int(status["statistics"].get("tasks_finished", 0)) for status in statuses)
        now = clock()
        rate = 0.0
        if self._before is not None and now > self._before[0] and finished >= self._before[1]:
            rate = (finished - self._before[1]) / (now - self._before[0])
        self._before = now, finished
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(self._session.directory)
        tasks = _sum(status["tasks"] for status in statuses)
        # A task that runs elsewhere has a record on two nodes: what waits and runs is counted by functions, at their homes.
        tasks["waiting"], tasks["running"] = sum(row["waiting"] for row in progress), sum(row["running"] for row in progress)
        by_name = {status.get("name"): status for status in statuses}
        nodes = self._client.query("nodes")
        return {
            "session": self._session.identifier,
            "nodes": [{**node, **_of_node(by_name.get(node.get("name"), statuses[0]))} for node in nodes],
            "resources": _sum(status["resources"] for status in statuses),
            "available": _sum(status["available"] for status in statuses),
            "tasks": tasks,
            "rate": rate,
            "finished": finished,
            "workers": dict(Counter(worker["state"] for worker in self._client.query("workers"))),
            "actors": _sum(status["actors"] for status in statuses),
            "jobs": statuses[0]["jobs"],
            "store": _sum(status["store"] for status in statuses),
            "machine": {
                "cpu": psutil.cpu_percent() / 100.0,
                "memory": memory.total - memory.available,
                "memory_total": memory.total,
                "disk": disk.used,
                "disk_total": disk.total,
            },
            "problems": [problem for status in statuses for problem in _problems_of(status)] + self._of_machine(memory, disk),
            "progress": progress,
        }

    def _statuses(self) -> list[dict[str, Any]]:
        """The status of each node that answers, this one's first."""
        own = self._client.query("status")
        if self._session.membership() is None:
            return [own]
        found = list(self._client.query("statuses"))
        return sorted(found, key=lambda status: status["node"] != own["node"]) or [own]

    def _of_machine(self, memory: Any, disk: Any) -> list[dict[str, str]]:
        """What is wrong with this machine."""
        found = []
        if memory.available < (1 - ALMOST_FULL) * memory.total:
            found.append(_problem("the machine is short of memory", "workers may be killed and their tasks run again; run fewer at once"))
        if disk.free < (1 - ALMOST_FULL) * disk.total:
            text = f"the disk of {self._session.directory} is almost full"
            found.append(_problem(text, "free some: values and rows are written there"))
        return found

    def progress(self) -> list[dict[str, Any]]:
        """How far the tasks of each function are, those with the most left first; with the time that is left at the present speed."""
        rows = [dict(row) for row in self._client.query("functions")]
        for row in rows:
            left = row["waiting"] + row["running"]
            parallel = max(1, row["running"])
            row["seconds_left"] = left * row["mean_seconds"] / parallel if left and row["mean_seconds"] is not None else None
        return sorted(rows, key=lambda row: (-(row["waiting"] + row["running"]), row["name"]))

    def measured(self) -> dict[str, Any]:
        """What metrics are made of: status, nodes, functions, workers by state."""
        workers = Counter(worker["state"] for worker in self._client.query("workers"))
        functions = self._client.query("functions")
        return {"status": self._client.query("status"), "nodes": self._client.query("nodes"), "functions": functions, "workers": workers}

    def ended_since_last(self) -> list[Attempt]:
        """Attempts and calls that have ended since the last call."""
        if self._metered is None:
            self._metered = TaskStream(clock())
        self._metered.read([TimelineNode(self._client)])
        found = list(self._metered.attempts)
        self._metered.attempts.clear()
        return found

    # -- what one view asks for --

    def stream(self) -> dict[str, Any]:
        """The task stream of the last minute."""
        if self._stream is None:
            self._stream = TaskStream(clock() - WINDOW_SECONDS)
        self._stream.read(self._members())
        return self._stream.window(clock())

    def _members(self) -> list[TimelineNode]:
        """The nodes whose events are read; looked up now and then, as that takes several questions."""
        if not self._nodes or clock() > self._nodes_until:
            self._nodes, self._nodes_until = members(self._client), clock() + MEMBERS_SECONDS
        return self._nodes

    def tasks(self, states: tuple[str, ...], limit: int) -> Table:
        """Tasks, the running ones first."""
        return _table(self._client.query("tasks", limit + 1, states), limit)

    def actors(self, limit: int) -> Table:
        """Actors, with their calls and handles."""
        return _table(self._client.query("actors", min(limit + 1, LIST_LIMIT)), limit)

    def workers(self) -> list[dict[str, Any]]:
        """Workers, with their resident memory where they run on this machine."""
        rows = [dict(row) for row in self._client.query("workers")]
        for row in rows:
            row["memory"] = resident_bytes(row["pid"]) if row["pid"] and not row.get("node") else 0
        return rows

    def memory(self, limit: int) -> dict[str, Any]:
        """The largest values, what of the store is whose, and the workers."""
        rows = self._client.query("objects", LIST_LIMIT)
        by_maker: Counter[tuple[str, str]] = Counter()
        counts: Counter[tuple[str, str]] = Counter()
        for row in rows:
            by_maker[row["made_by"], row["where"]] += row["size"]
            counts[row["made_by"], row["where"]] += 1
        makers = [
            {"made_by": maker, "where": where, "bytes": total, "values": counts[maker, where]}
            for (maker, where), total in by_maker.most_common(ROWS)
        ]
        largest = sorted(rows, key=lambda row: -row["size"])
        store = self._client.query("status")["store"]
        return {
            "store": store,
            "makers": makers,
            "objects": _table(largest, limit),
            "counted": len(rows),
            "cut": len(rows) == LIST_LIMIT,
            "workers": self.workers(),
        }

    def errors(self) -> dict[str, Any]:
        """Errors of failed tasks that somebody still refers to, grouped by function and kind."""
        failed = self._client.query("tasks", FAILED_MOST + 1, ("failed",))
        groups: dict[tuple[str, str], dict[str, Any]] = {}
        for row in failed[:FAILED_MOST]:
            answer = self._client.query("explain", bytes.fromhex(row["task_id"]))
            reason = answer[1] if answer is not None else "its error is gone"
            reason = reason.removeprefix(ERROR_PREFIX)
            kind = reason.split(":", 1)[0][:80]
            group = groups.setdefault((row["name"], kind), {"name": row["name"], "kind": kind, "count": 0, "text": reason, "task_ids": []})
            group["count"] += 1
            if len(group["task_ids"]) < 10:
                group["task_ids"].append(row["task_id"])
        return {"groups": sorted(groups.values(), key=lambda group: -group["count"]), "more": len(failed) > FAILED_MOST}

    def logs(self, since: int, pid: int | None, text: str) -> dict[str, object]:
        """Output of the workers of all nodes after line number ``since``."""
        if self._output is None:
            self._output = Output(self._log_files)
        self._output.read()
        return self._output.since(since, pid, text)

    def _log_files(self) -> list[tuple[str, LogFiles]]:
        """The log files of each node, by its name; this one's are read here."""
        found: list[tuple[str, LogFiles]] = []
        for node in self._client.query("nodes"):
            here = node.get("here", True)
            found.append((node.get("name", ""), LocalLogFiles(self._session.logs) if here else RemoteLogFiles(self._client, node["node"])))
        return found

    def stacks(self, pid: int | None, node: str = "") -> list[dict[str, Any]]:
        """The stacks of one process, or of all."""
        found = self._processes(pid, node)
        return [{"node": of.name, **process_report(self._session, of.asker, each, worker, False)} for of, each, worker in found]

    def samples(self, pid: int, node: str = "") -> dict[str, Any]:
        """Where a process spends the next second."""
        of, _, worker = self._processes(pid, node)[0]
        return {"node": of.name, **sample_report(of.asker, pid, worker is not None, SAMPLED_SECONDS)}

    def _processes(self, pid: int | None, node: str) -> list[tuple[TimelineNode, int, dict[str, Any] | None]]:
        """The drivers and workers of all nodes, or of one, or one of them: node, pid, the row of a worker."""
        found = []
        for of in members(self._client):
            if node in ("", of.name):
                workers = {row["pid"]: row for row in of.asker.query("workers") if row.get("node", of.name) == of.name}
                pids = of.asker.query("processes", b"")
                found += [(of, each, workers.get(each)) for each in pids if pid in (None, each)]
        if pid is not None and not found:
            raise ValueError(f"no process of this cluster has the pid {pid}")
        return found

    def details(self, text: str) -> dict[str, Any]:
        """Everything about what ``text`` names: an id, the beginning of one, an actor's name, a pid."""
        found = self._client.query("find", text)
        if len(found) != 1:
            return {"found": found}
        identifier = bytes.fromhex(found[0]["id"])
        answer = self._client.query("explain", identifier)
        if answer is None:
            return {"found": []}
        state, reason, facts = answer
        return {"found": found, "state": state, "reason": reason, "facts": facts, "id": found[0]["id"], "brief": brief(identifier)}

    def graph(self, text: str) -> dict[str, Any]:
        """The neighbourhood of a task or an object: nodes and edges as in the paper's figure 4."""
        found = self._client.query("find", text)
        if len(found) != 1:
            return {"found": found}
        answer = self._client.query("neighbours", bytes.fromhex(found[0]["id"]))
        return {"found": found if answer is not None else [], "centre": found[0]["id"], **(answer or {})}


def _table(rows: Any, limit: int) -> Table:
    return {"rows": rows[:limit], "more": len(rows) > limit}


def _sum(counts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _of_node(status: dict[str, Any]) -> dict[str, Any]:
    """What the table of nodes shows of a node's status."""
    tasks = status["tasks"]
    return {
        "available": status["available"],
        "queued": sum(tasks[state] for state in ("assigned", "ready", "infeasible", "waiting")),
        "running": tasks["running"] + tasks["blocked"],
        "processes": status["workers"],
        "store_used": status["store"].get("used", 0),
        "store_capacity": status["store"].get("capacity", 0),
        "memory": int(status["statistics"].get("memory_used", 0)),
    }


def _problem(what: str, advice: str) -> dict[str, str]:
    return {"what": what, "advice": advice}


def _problems_of(status: dict[str, Any]) -> list[dict[str, str]]:
    """What is wrong on a node now, with what to do about it."""
    found = []
    where = f" on {status['name']}" if "name" in status else ""
    store, counts = status["store"], status["statistics"]
    if status["recovering"]:
        text = f"the daemon{where} was restarted and is recovering"
        found.append(_problem(text, "it takes seconds; `zfabric logs --daemon` says why it ended"))
    if status["tasks"]["infeasible"]:
        text = f"{status['tasks']['infeasible']:,} tasks{where} wait for resources that no node has"
        found.append(_problem(text, "see the tasks view, and add a node with these resources or lower the demand"))
    if store.get("capacity") and store.get("used", 0) > ALMOST_FULL * store["capacity"]:
        text = f"the object store{where} is almost full"
        found.append(_problem(text, "values are written to disk; drop refs that nobody needs (memory view)"))
    for name, text, advice in (
        ("workers_died", "workers have died", "their tasks ran again; the errors view and `zfabric logs` say why"),
        ("memory_kills", "workers were killed for want of memory", "demand memory for large tasks: @zf.remote(memory=…)"),
        ("lost_with_nodes", "tasks ran again because their node died", "see the nodes"),
    ):
        if counts.get(name):
            found.append(_problem(f"{int(counts[name]):,} {text}{where}", advice))
    return found
