"""What each view shows, from the queries behind ``--json`` of the command line. All text is plain."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import psutil

from zfabric.api.cluster import cancel_by_id, kill_by_id
from zfabric.exceptions import FabricError
from zfabric.page.errors import ErrorGroups, read_error
from zfabric.page.history import IDLE, add_history, calls_of_actors
from zfabric.page.lines import Output
from zfabric.page.series import AddedUp
from zfabric.page.spans import WINDOW_SECONDS, Attempt, TaskStream, shares
from zfabric.protocol.ids import JOB_BYTES, TASK_BYTES
from zfabric.protocol.messages.queries import LIST_LIMIT, PENDING_STATES
from zfabric.protocol.names import brief
from zfabric.runtime.activity import activities, process_report, processes_of, sample_report
from zfabric.runtime.connection import clock
from zfabric.runtime.driver import DriverClient
from zfabric.runtime.log_files import LocalLogFiles, LogFiles, RemoteLogFiles
from zfabric.runtime.session import Session
from zfabric.runtime.task_history import attempts_of
from zfabric.runtime.timeline import TimelineNode, members

ROWS = 200
"""Rows of a table's page."""
MIB = 2**20
ALMOST_FULL = 0.9
"""The used share from which a store or disk is a problem."""

CALLERS_MOST = 16
"""Most callers that are asked how many calls they wait for."""
CALLER_SECONDS = 1.5
"""Seconds for a caller's answer: a computing program looks for messages once a second."""
SAMPLED_SECONDS = 1.0
SUBMITTED_MOST = 50_000
"""Most sampled tasks whose end is awaited."""
RATE_SECONDS = 10.0
"""Seconds over which a function's rate is taken."""
MEMBERS_SECONDS = 5.0
"""Seconds for which a list of nodes is used."""
SERIES_SECONDS = 0.5
"""Seconds for which time series are used."""
WORKERS_MOST = 64
"""Most workers with a bar on the first screen, the busiest."""
PARTS_MOST = 6
"""Most functions in a worker's bar; the others are one part."""
LINES_OF_TASK = 20

COUNTS = ("waiting", "arguments", "running", "finished", "failed")
UNKNOWN_TIMES = {"mean_seconds": None, "seconds_left": None, "rate": None}
"""The times of tasks that are counted one by one."""

Table = dict[str, Any]
"""``rows``, and whether there are ``more``."""


class Views:
    """One cluster's views. Methods query the daemon and block; one thread calls them all."""

    def __init__(self, session: Session, client: DriverClient) -> None:
        self._session = session
        self._client = client
        self.metrics_directory = f"{session.directory}/metrics"
        """Where programs' processes write metrics."""
        self.running_times: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
        """By (function, kind): counts by the bounds of ``metrics``, and the sum in seconds."""
        self.call_times: dict[str, tuple[list[int], list[float]]] = {}
        """Durations of calls by method, the wait in the queue included."""
        self.waiting_times: dict[str, tuple[list[int], list[float]]] = {}
        """Waits of sampled tasks: to begin, and for arguments."""
        self._before: tuple[float, int] | None = None
        self._ended: deque[tuple[float, Counter[tuple[str, str]]]] = deque()
        """Ended tasks by (job, function) at the last answers."""
        self._copied: dict[str, tuple[float, int]] = {}
        """Node -> when it was asked, and the bytes that it had copied."""
        self._submitted: dict[bytes, float] = {}
        """When unfinished sampled tasks were submitted."""
        self._stream: TaskStream | None = None
        self._metered: TaskStream | None = None
        self._output: Output | None = None
        self._errors = ErrorGroups()
        self._series = AddedUp()
        self._series_at = 0.0
        self._nodes: list[TimelineNode] = []
        self._nodes_until = 0.0
        psutil.cpu_percent()  # The share since the last call: the first has none.

    # -- what is pushed every second --

    def overview(self) -> dict[str, Any]:
        """Nodes, counts, rates, the store, problems (the worst first), each function's progress."""
        # Asked at once: silent nodes hold up each question by two seconds.
        with ThreadPoolExecutor(3) as threads:
            asked = threads.submit(self._statuses), threads.submit(self.progress), threads.submit(self._client.query, "workers")
        statuses, progress, workers = (each.result() for each in asked)
        finished = sum(int(status["statistics"].get("tasks_finished", 0)) for status in statuses)
        now = clock()
        rate = 0.0
        if self._before is not None and now > self._before[0] and finished >= self._before[1]:
            rate = (finished - self._before[1]) / (now - self._before[0])
        self._before = now, finished
        self._add_rates(progress, now)
        memory = psutil.virtual_memory()
        tasks = _sum(status["tasks"] for status in statuses)
        # A task elsewhere has records on two nodes: waiting and running ones are counted by functions, at their homes.
        tasks["waiting"], tasks["running"] = sum(row["arguments"] for row in progress), sum(row["running"] for row in progress)
        tasks["queued"] = sum(row["waiting"] for row in progress) - tasks["waiting"]
        by_id = {status["node"]: status for status in statuses}
        nodes = [{**node, **self._of_node(by_id.get(node["node"]), now)} for node in self._client.query("nodes")]
        return {
            "session": self._session.identifier,
            "nodes": nodes,
            "resources": _sum(status["resources"] for status in statuses),
            "available": _sum(status["available"] for status in statuses),
            "tasks": tasks,
            "rate": rate,
            "ended": sum(row["finished"] + row["failed"] for row in progress),
            "workers": dict(Counter(worker["state"] for worker in workers)),
            "actors": _sum(status["actors"] for status in statuses),
            "jobs": statuses[0]["jobs"],
            "store": _sum(status["store"] for status in statuses),
            "machine": {
                "cpu": psutil.cpu_percent() / 100.0,
                "memory": memory.total - memory.available,
                "memory_total": memory.total,
            },
            "problems": _of_nodes(nodes) + [problem for status in statuses for problem in _problems_of(status)] + _of_machine(memory),
            "progress": progress,
        }

    def _statuses(self) -> list[dict[str, Any]]:
        """The statuses of nodes that answer, this one's first."""
        own = self._client.query("status")
        if self._session.membership() is None:
            return [own]
        found = list(self._client.query("statuses"))
        return sorted(found, key=lambda status: status["node"] != own["node"]) or [own]

    def _of_node(self, status: dict[str, Any] | None, now: float) -> dict[str, Any]:
        """A node's row. ``copying`` is bytes per second, None at first."""
        if status is None:
            return {"silent": True}
        tasks, node = status["tasks"], status["node"]
        before, self._copied[node] = self._copied.get(node), (now, status["copied_bytes"])
        new = status["copied_bytes"] - before[1] if before is not None else 0
        return {
            "silent": False,
            "available": status["available"],
            "pending": sum(tasks[state] for state in PENDING_STATES) - status["elsewhere"],
            "running": tasks["running"] + tasks["blocked"],
            "processes": status["workers"],
            "store_used": status["store"].get("used", 0),
            "store_capacity": status["store"].get("capacity", 0),
            "spilled": status["store"].get("spilled", 0),
            "memory": int(status["statistics"].get("memory_used", 0)),
            "copying": max(0, new) / (now - before[0]) if before is not None and now > before[0] else None,
        }

    def progress(self) -> list[dict[str, Any]]:
        """Each function's progress and the time left at the present speed, the function with most left first."""
        rows = [dict(row) for row in self._client.query("functions")]
        for row in rows:
            left = row["waiting"] + row["running"]
            parallel = max(1, row["running"])
            row["seconds_left"] = left * row["mean_seconds"] / parallel if left and row["mean_seconds"] is not None else None
        return sorted(rows, key=lambda row: (-(row["waiting"] + row["running"]), row["name"]))

    def _add_rates(self, rows: list[dict[str, Any]], now: float) -> None:
        """Add to each function the tasks that end per second, over ``RATE_SECONDS``; None if unknown."""
        ended: Counter[tuple[str, str]] = Counter()
        for row in rows:
            ended[row["job"], row["name"]] += row["finished"] + row["failed"]
        before = self._ended
        if before and now - before[-1][0] > RATE_SECONDS:
            before.clear()  # Nobody looked for a while.
        while len(before) > 1 and now - before[1][0] >= RATE_SECONDS:
            before.popleft()
        for row in rows:
            name = row["job"], row["name"]
            grown = ended[name] - before[0][1][name] if before else -1  # A restarted daemon counts from where it found the tasks.
            row["rate"] = grown / (now - before[0][0]) if grown >= 0 and now > before[0][0] else None
        before.append((now, ended))

    def measured(self) -> dict[str, Any]:
        """The data of metrics: all nodes, and this one's status, functions and workers by state."""
        nodes = self._client.query("nodes")
        about = ("at", next(bytes.fromhex(node["node"]) for node in nodes if node["here"])) if len(nodes) > 1 else ()
        workers = Counter(worker["state"] for worker in self._client.query(*about, "workers"))
        functions = self._client.query(*about, "functions")
        return {"status": self._client.query("status"), "nodes": nodes, "functions": functions, "workers": workers}

    def copied_bytes(self) -> dict[str, int]:
        """Bytes copied to this node, by source."""
        return dict(self._client.query("copied bytes"))

    def ended_since_last(self) -> tuple[list[Attempt], dict[str, list[float]]]:
        """Attempts and calls ended since the last call, and the seconds that sampled tasks waited since.

        They waited to begin ("scheduling"), once the daemon had them, and for arguments ("arguments").
        """
        taken = self._client.query("latencies")
        self._client.query("measure calls")
        self._submitted.update(taken["submitted"])
        if self._metered is None:
            self._metered = TaskStream(clock())
        self._metered.read([TimelineNode(self._client)])
        found = list(self._metered.attempts)
        self._metered.attempts.clear()
        waited = [max(0.0, each.start - self._submitted.pop(each.task)) for each in found if each.task in self._submitted]
        while len(self._submitted) > SUBMITTED_MOST:
            del self._submitted[next(iter(self._submitted))]
        return found, {"scheduling": waited, "arguments": taken["waited"]}

    # -- what one view asks for --

    def points(self, step: int, after: float) -> dict[str, Any]:
        """The first screen's points that end after a time of the clock (``AddedUp.points``)."""
        now = clock()
        if now >= self._series_at + SERIES_SECONDS:
            self._series_at = now
            answers = list(self._client.query("series", self._series.wanted(now)))
            self._series.read(now, clock(), answers)
        return self._series.points(now, step, after)

    def busy(self) -> dict[str, Any]:
        """What each worker runs, and its last minute: ``parts`` are ``[function, seconds]``, most first."""
        attempts = self._read_stream().attempts
        now = clock()
        spent = shares(attempts, now, WINDOW_SECONDS)
        if len(self._nodes) == 1:  # Rows of a cluster of one have no node.
            spent = {("", pid): parts for (_, pid), parts in spent.items()}
        rows = []
        for worker in self._client.query("workers"):
            place = worker.get("node", ""), worker["pid"]
            parts = spent.get(place, {})
            if worker["task"]:  # It has no attempt in the stream yet.
                free = WINDOW_SECONDS - sum(parts.values())
                parts[worker["task"]] = parts.get(worker["task"], 0.0) + min(worker["seconds"], max(0.0, free))
            first = sorted(parts.items(), key=lambda part: -part[1])
            others = sum(seconds for _, seconds in first[PARTS_MOST:])
            shown = {key: worker[key] for key in ("pid", "state", "seconds", "task", "task_id", "queued", "actor", "actor_id", "job")}
            rows.append(
                {
                    **shown,
                    "node": place[0],
                    "busy": min(1.0, sum(parts.values()) / WINDOW_SECONDS),
                    "parts": [*first[:PARTS_MOST], *([("", others)] if others else [])],
                }
            )
        chosen = sorted(rows, key=lambda row: (not row["task"], -row["busy"]))[:WORKERS_MOST]
        return {"workers": sorted(chosen, key=lambda row: (row["node"], row["pid"])), "total": len(rows), "seconds": WINDOW_SECONDS}

    def activity(self) -> list[dict[str, Any]]:
        """What answering actors' processes run, the longest first, and how many calls wait."""
        found = activities(self._client, self._client.query("workers"))
        return [
            {
                "node": node,
                "pid": pid,
                "waiting": each.waiting,
                "runs": [[name, task.hex(), seconds] for name, task, seconds in each.runs[:1]],
            }
            for (node, pid), each in found.items()
        ]

    def cancel(self, task: str, force: bool) -> dict[str, str]:
        """Cancel a task and its children, as ``zfabric cancel``. Raises ValueError if it goes on."""
        answer = cancel_by_id(self._client, _identifier(task), force)
        if answer is None:
            raise ValueError("this task has ended and was forgotten, or its home has died")
        if answer["goes_on"]:
            raise ValueError(f"{answer['name']} is {answer['state']}: {answer['goes_on']}")
        return {"text": f"{answer['name']} was {answer['state']}, and is cancelled"}

    def kill(self, actor: str) -> dict[str, str]:
        """End an actor for good, as ``zfabric kill``. Raises ValueError if it is dead."""
        answer = kill_by_id(self._client, _identifier(actor))
        if answer is None or answer["state"] == "dead":
            raise ValueError("this actor is dead already")
        return {"text": f"{answer['class']} was {answer['state']}, and is killed"}

    def stream(self, until: float = 0.0, seconds: float = WINDOW_SECONDS, ago: float = 0.0) -> dict[str, Any]:
        """The task stream's ``seconds`` that end ``ago`` before ``until``, a time of the clock (0: now)."""
        found = self._read_stream().window(until or clock(), seconds, ago)
        return {**found, "running": [] if until else self._running(), "nodes": len(self._nodes)}

    def _read_stream(self) -> TaskStream:
        if self._stream is None:
            self._stream = TaskStream(clock() - WINDOW_SECONDS)
        self._stream.read(self._members())
        return self._stream

    def _running(self) -> list[dict[str, Any]]:
        """Running tasks without an attempt in the stream."""
        rows = [row for row in self._client.query("workers") if row["task_id"] or row["depth"]]
        named = {node.name for node in self._nodes}
        only = next(iter(named)) if len(named) == 1 else ""
        return [{key: row[key] for key in ("pid", "state", "seconds", "task", "task_id")} | {"node": row.get("node", only)} for row in rows]

    def _members(self) -> list[TimelineNode]:
        """The nodes whose events are read, retained for ``MEMBERS_SECONDS``: a list takes several queries."""
        if not self._nodes or clock() > self._nodes_until:
            self._nodes, self._nodes_until = members(self._client), clock() + MEMBERS_SECONDS
        return self._nodes

    def tasks(self, states: tuple[str, ...], limit: int, text: str = "") -> Table:
        """Tasks, the running ones first; with a text, of functions so named."""
        if not text:
            return _table(self._client.query("tasks", limit + 1, states), limit)
        return _table([row for row in self._client.query("tasks", LIST_LIMIT, states) if text.lower() in row["name"].lower()], limit)

    def actors(self, limit: int) -> Table:
        """Actors with handles and the last minute's calls. Their processes then measure waits."""
        for node in self._members():
            with contextlib.suppress(FabricError):  # Named elsewhere; what it has is missing.
                node.asker.query("measure calls")
        table = _table(self._client.query("actors", min(limit + 1, LIST_LIMIT)), limit)
        calls = calls_of_actors(self._read_stream().attempts, clock(), WINDOW_SECONDS)
        return {**table, "rows": [{**row, **calls.get(row["actor_id"], IDLE)} for row in table["rows"]], "total": self._actors_in_all()}

    def _actors_in_all(self) -> int:
        return sum(sum(status["actors"].values()) for status in self._statuses())

    def queues(self, limit: int) -> dict[str, Any]:
        """How many calls callers wait for, by actor. ``silent`` callers did not answer, or were not asked."""
        callers: dict[tuple[str, int], None] = {}
        for row in self._client.query("actors", min(limit, LIST_LIMIT)):
            callers.update(dict.fromkeys((row.get("node", ""), pid) for pid in row["callers"]))
        waiting: Counter[str] = Counter()
        silent = len(callers)
        nodes = {node.name: node.asker for node in members(self._client)}
        for node, pid in islice(callers, CALLERS_MOST):
            with contextlib.suppress(FabricError):
                for actor, many in nodes.get(node, self._client).query("calls", pid, timeout=CALLER_SECONDS):
                    waiting[actor.hex()] += many
                silent -= 1
        return {"waiting": dict(waiting), "silent": silent}

    def workers(self) -> list[dict[str, Any]]:
        """Workers with their resident memory."""
        return list(self._client.query("workers", True))

    def memory(self, limit: int) -> dict[str, Any]:
        """The largest values, whose the store's content is, and the workers."""
        rows = self._client.query("objects", LIST_LIMIT)
        here = (row for row in rows if not row["where"].startswith("node "))  # The others are listed by the node that has them.
        makers = [
            {"made_by": maker, "where": where, **sums}
            for (maker, where), sums in _by(here, lambda row: [(row["made_by"], f"{row['where']}{_at(row)}")])
        ]
        owners = [{"held_by": holder, **sums} for holder, sums in _by(rows, _holders)]
        largest = sorted(rows, key=lambda row: -row["size"])
        statuses = self._statuses()
        store = {**_sum(status["store"] for status in statuses), "nodes": len(statuses)}
        return {
            "store": store,
            "makers": makers,
            "owners": owners,
            "objects": _table(largest, limit),
            "counted": len(rows),
            "cut": len(rows) == LIST_LIMIT,
            "workers": self.workers(),
        }

    def errors(self) -> dict[str, Any]:
        """Errors by kind and place, and how many tasks have failed."""
        rows = self._client.query("failures")
        self._errors.add(rows)
        groups = self._errors.groups()
        failed = sum(row["failed"] for row in self._client.query("functions"))
        return {"groups": groups, "counted": sum(group["count"] for group in groups), "failed": failed}

    def logs(self, since: int, pid: int | None, text: str, job: int = 0, function: str = "") -> dict[str, object]:
        """All workers' output after line ``since``."""
        if self._output is None:
            self._output = Output(self._log_files)
        self._output.read()
        return self._output.since(since, pid, text, job, function)

    def _log_files(self) -> list[tuple[str, LogFiles]]:
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
        """Drivers and workers, of a node or pid if given: (node, pid, a worker's row)."""
        found = []
        for of in members(self._client):
            if node in ("", of.name):
                found += [(of, each, worker) for each, worker in processes_of(of) if pid in (None, each)]
        if pid is not None and not found:
            raise ValueError(f"no process of this cluster has the pid {pid}")
        return found

    def details(self, text: str) -> dict[str, Any]:
        """Everything about what ``text`` names: an id or its beginning, an actor's name, a pid."""
        found = list(self._client.query("find", text))
        if not found and (forgotten := self._forgotten(text)):
            return forgotten
        if not found:
            found = self._functions_named(text)
        if len(found) != 1 or found[0]["kind"] == "function":
            return {"found": found}
        identifier = bytes.fromhex(found[0]["id"])
        answer = self._client.query("explain", identifier)
        if answer is None:
            return self._forgotten(text) or {"found": []}
        state, reason, facts = answer
        told = {"found": found, "state": state, "reason": reason, "facts": facts, "id": found[0]["id"], "brief": brief(identifier)}
        if found[0]["kind"] in ("task", "actor"):
            told |= self._of_task(identifier)
        return told

    def _functions_named(self, text: str) -> list[dict[str, Any]]:
        """Functions whose names contain a text, those named exactly so first, with their progress; else tasks with such names.

        A task may have another name than its function (``options(name=...)``).
        """
        wanted = text.lower()
        if not wanted:
            return []
        rows = [row for row in self.progress() if wanted in row["name"].lower()]
        if not rows:
            rows = _progress_of(row for row in self._client.query("tasks", LIST_LIMIT, ()) if wanted in row["name"].lower())
        rows.sort(key=lambda row: (row["name"].lower() != wanted, row["name"]))
        return [{"id": row["name"], "kind": "function", "name": row["name"], "progress": row} for row in rows[:ROWS]]

    def _forgotten(self, task: str) -> dict[str, Any]:
        """A task or call that only the stream has; empty if it has none."""
        ran = [each for each in (self._stream.attempts if self._stream is not None else ()) if each.task.hex() == task]
        if not ran:
            return {}
        found = {"id": task, "kind": ran[-1].kind, "name": ran[-1].name}
        reason = "has ended, and the cluster has forgotten it: nobody has a ref to its value, or it was a call"
        told = {
            "found": [found],
            "state": ran[-1].mark or "finished",
            "reason": reason,
            "facts": [],
            "id": task,
            "brief": brief(ran[-1].task),
        }
        return told | self._of_task(ran[-1].task)

    def _of_task(self, identifier: bytes) -> dict[str, Any]:
        """A task's attempts, arguments, error and output."""
        ran = [each for each in (self._stream.attempts if self._stream is not None else ()) if each.task == identifier]
        if not ran:  # It ended before somebody looked.
            found = attempts_of(self._members(), identifier.__eq__)
            ran = [Attempt((each.node, each.pid), each.name, each.mark, each.kind, each.start, each.seconds, each.task) for each in found]
        failures = self._client.query("failures", 1, identifier)
        around = self._client.query("neighbours", identifier) or {"nodes": [], "edges": []}
        nodes = {node["id"]: node for node in around["nodes"]}
        task = identifier.hex()
        needed = [nodes[source] for source, to, kind in around["edges"] if to == task and kind in ("data", "contains")]
        makers = {to: source for source, to, kind in around["edges"] if kind == "data" and nodes[source]["kind"] in ("task", "actor")}
        places = {(each.lane, each.name) for each in ran}
        lines = [line for lane, name in places for line in self._lines_of(lane, name)]
        return {
            "attempts": [
                {"node": each.lane[0], "pid": each.lane[1], "ago": clock() - each.start, "seconds": each.seconds, "mark": each.mark}
                for each in ran
            ],
            "arguments": [{**node, "made_by": makers.get(node["id"], "")} for node in needed],
            "error": read_error(failures[0]) if failures else None,
            "lines": lines[-LINES_OF_TASK:],
        }

    def _lines_of(self, lane: tuple[str, int], name: str) -> list[str]:
        if self._output is None:
            self._output = Output(self._log_files)
        self._output.read()
        lines = self._output.since(0, lane[1])["lines"]
        return [line.text for line in lines if line.name == name.rpartition("<locals>.")[2] and line.node in (lane[0], "")]  # type: ignore[attr-defined]

    def graph(self, text: str) -> dict[str, Any]:
        """The neighbourhood of a task, call or object: nodes and edges as in the paper's figure 4."""
        found = self._client.query("find", text)
        attempts, numbers = self._read_stream().attempts, [node.number for node in self._nodes]
        if not found:  # Calls, and tasks without refs, are only in the stream.
            ran = next((each for each in reversed(attempts) if each.task.hex() == text), None)
            found = [] if ran is None else [{"id": text, "kind": ran.kind, "name": ran.name}]
        if len(found) != 1:
            return {"found": found}
        centre = bytes.fromhex(found[0]["id"])
        graph = self._client.query("neighbours", centre) or {"nodes": [], "edges": [], "more": 0}
        graph = {**graph, "nodes": list(graph["nodes"]), "edges": [list(edge) for edge in graph["edges"]]}
        add_history(graph, centre[:TASK_BYTES], attempts, numbers)
        return {"found": found if graph["nodes"] else [], "centre": found[0]["id"], **graph}


def _at(row: dict[str, Any]) -> str:
    return f" of {row['node']}" if "node" in row and row["where"] != "nowhere" else ""


def _holders(row: dict[str, Any]) -> list[str]:
    """Processes with refs to a value. Nodes list their own processes'."""
    where = f" on {row['node']}" if "node" in row else ""
    processes = [holder + where for holder in row["held_by"] if not holder.startswith("node ")]
    return processes or ([] if row["held_by"] else ["nobody: tasks need it"])


def _by(rows: Iterable[dict[str, Any]], keys: Callable[[dict[str, Any]], list[Any]]) -> list[tuple[Any, dict[str, int]]]:
    """Sums of objects by their rows' keys, most bytes first: all, in use, on disk."""
    sums: dict[Any, dict[str, int]] = {}
    for row in rows:
        for key in keys(row):
            found = sums.setdefault(key, {"values": 0, "bytes": 0, "pinned": 0, "spilled": 0})
            found["values"] += 1
            found["bytes"] += row["size"]
            found["pinned"] += row["size"] if row["in_use_by"] else 0
            found["spilled"] += row["size"] if row["on_disk"] else 0
    return sorted(sums.items(), key=lambda pair: -pair[1]["bytes"])[:ROWS]


def _progress_of(tasks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The progress of listed tasks, by job and name."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for task in tasks:
        job, state = task["task_id"][: 2 * JOB_BYTES], task["state"]
        row = found.setdefault((job, task["name"]), {"job": job, "name": task["name"], **dict.fromkeys(COUNTS, 0), **UNKNOWN_TIMES})
        row[state if state in COUNTS else "running" if state == "blocked" else "waiting"] += 1
        row["arguments"] += state == "waiting"
    return list(found.values())


def _identifier(text: str) -> bytes:
    try:
        identifier = bytes.fromhex(text)
    except ValueError:
        identifier = b""
    if len(identifier) != TASK_BYTES:
        raise ValueError(f"that is no id of a task or an actor: {text[:40]!r}")
    return identifier


def _table(rows: Any, limit: int) -> Table:
    return {"rows": rows[:limit], "more": len(rows) > limit}


def _sum(counts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _problem(what: str, advice: str) -> dict[str, str]:
    return {"what": what, "advice": advice}


def _of_nodes(nodes: list[dict[str, Any]]) -> list[dict[str, str]]:
    advice = "what is there is missing here; if it stays silent, it is taken for dead and its tasks run elsewhere"
    return [_problem(f"{node['name']} does not answer", advice) for node in nodes if node["silent"]]


def _of_machine(memory: Any) -> list[dict[str, str]]:
    if memory.available >= (1 - ALMOST_FULL) * memory.total:
        return []
    return [_problem("the machine is short of memory", "workers may be killed and their tasks run again; run fewer at once")]


def _problems_of(status: dict[str, Any]) -> list[dict[str, str]]:
    found = []
    where = f" on {status['name']}" if "name" in status else ""
    store, counts = status["store"], status["statistics"]
    if status["recovering"]:
        text = f"the daemon{where} was restarted and is recovering"
        found.append(_problem(text, "it takes seconds; `zfabric logs --daemon` says why it ended"))
    if status["tasks"]["infeasible"]:
        waiting = _counted(status["tasks"]["infeasible"], f"task{where} waits", f"tasks{where} wait")
        text = f"{waiting} for resources that no node has"
        found.append(_problem(text, "see the tasks view, and add a node with these resources or lower the demand"))
    if store.get("capacity") and store.get("used", 0) > ALMOST_FULL * store["capacity"]:
        text = f"the object store{where} is almost full"
        found.append(_problem(text, "values are written to disk; drop refs that nobody needs (memory view)"))
    if store.get("spilled"):
        text = f"{store['spilled'] / MIB:,.1f} MiB of values{where} are on disk, for want of room in the object store"
        found.append(_problem(text, "reading them is slow; drop refs that nobody needs (memory view), or start with a larger store"))
    if counts.get("disk_total") and counts["disk_free"] < (1 - ALMOST_FULL) * counts["disk_total"]:
        text = f"the disk{where} is almost full: {counts['disk_free'] / MIB:,.0f} MiB are left"
        found.append(_problem(text, "free some: values, rows and logs are written there"))
    for name, one, several, advice in (
        ("workers_died", "worker has died", "workers have died", "their tasks ran again; the errors view and `zfabric logs` say why"),
        ("retries", "attempt was a retry", "attempts were retries", "see the errors view, and the attempts of a task with a click on it"),
        (
            "memory_kills",
            "worker was killed for want of memory",
            "workers were killed for want of memory",
            "reserve what large tasks need, so that fewer run at once: @zf.remote(memory=…)",
        ),
        ("lost_with_nodes", "task ran again because its node died", "tasks ran again because their node died", "see the nodes"),
    ):
        if counts.get(name):
            found.append(_problem(f"{_counted(int(counts[name]), one, several)}{where}", advice))
    return found


def _counted(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"
