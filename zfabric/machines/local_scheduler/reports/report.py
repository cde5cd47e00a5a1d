"""Queries that a local scheduler answers: listings, status, pages of tables, explanations.

Answers are plain data, given in the turn of the query, except those of the object store, the control store, or an inspected process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from zfabric.machines.common.resources import ResourcePool, amounts
from zfabric.machines.common.tables import TABLES
from zfabric.machines.local_scheduler.actors.deadlocks import Deadlocks
from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.barrier import PROCESSES
from zfabric.machines.local_scheduler.group_records import GroupRecord
from zfabric.machines.local_scheduler.groups.directory import Groups
from zfabric.machines.local_scheduler.latencies import MEASURED_SECONDS
from zfabric.machines.local_scheduler.object_places import PENDING
from zfabric.machines.local_scheduler.records import (
    DONE,
    IDLE,
    LEASED,
    READY,
    WAITING,
    WORKER_STATES,
    AnyObject,
    FunctionRecord,
    JobRecord,
    TaskRecord,
    WorkerRecord,
)
from zfabric.machines.local_scheduler.reports.actor_report import ActorReports, state_of, title, watches, watches_job
from zfabric.machines.local_scheduler.reports.demand import DemandReport
from zfabric.machines.local_scheduler.reports.diagnoses import Diagnoses, object_row, running_since, running_task
from zfabric.machines.local_scheduler.reports.neighbours import Neighbourhood
from zfabric.machines.local_scheduler.reports.sampling import Sampling
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, CONTROL, OBJECT_BYTES, TASK_BYTES, Address, control_of, tries_of
from zfabric.protocol.messages import ERROR, OK
from zfabric.protocol.messages.queries import LIST_LIMIT, TASK_STATES
from zfabric.protocol.names import JOB_RUNNER, matcher
from zfabric.protocol.options import NODE_ID, STORE_MEMORY

PAGE_MAX = 1000
"""Rows of the control store per answer."""
SAMPLING_MOST = 1.5
"""Longest sampling of stacks in seconds: within another node's wait for the answer."""
HOLDERS_MAX = 8
FAILURES_MAX = 500
ERROR_MOST = 8192
"""Most failed tasks in an answer, and most bytes of an error."""
FOUND_MAX = 20
FROM_STORE = {
    "status": "statistics",
    "statuses": "statistics",
    "available_resources": "statistics",
    "objects": "entries",
    "locate": "entries",
}
"""Reports that the object store completes, with its query."""
ON_DISK = ("spilled", "waiting", "restoring", "checking")


class Reports:
    """Answers queries. ``statistics`` has the machine's counters; ``relayed`` are queries that others answer."""

    def __init__(
        self,
        node: bytes,
        tables: Tables,
        pool: ResourcePool,
        requests: PendingRequests,
        actors: ActorDirectory,
        logs: ActorLogs,
        deadlocks: Deadlocks,
        groups: Groups,
        read_log: Callable[..., None],
        drain: Callable[..., Any],
        idle_seconds: Callable[[float], float],
        stopping: Stopping,
        sampling: Sampling,
        statistics: Callable[[], Mapping[str, float]],
        copied_bytes: Mapping[bytes, int],
        relayed: Mapping[str, Callable[..., None]],
    ) -> None:
        self.node = node
        self.tables = tables
        self.pool = pool
        self.requests = requests
        self.actors = actors
        self.actor_reports = ActorReports(tables, actors, logs)
        self.diagnoses = Diagnoses(tables, pool, actors, self.actor_reports, deadlocks, groups)
        self._idle_seconds = idle_seconds
        self.stopping = stopping
        self._statistics = statistics
        self.copied_bytes = copied_bytes
        self.resident: dict[int, int] = {}
        """Bytes by pid, measured for a query."""
        self._reports: dict[str, Callable[..., Any]] = {
            "tasks": self._tasks,
            "objects": self._objects,
            "locate": self._locate,
            "workers": self._workers,  # With an argument: their memory, too, which the shell measures.
            "functions": self._functions,
            "failures": self._failures,
            "actors": self._actors,
            "status": self._status,
            "statuses": lambda now: [self._status(now)],
            "demand": lambda now: [DemandReport(tables, self.diagnoses).report(now)],
            "clock": lambda now: now,
            "latencies": lambda now: tables.latencies.take(now),
            "measure calls": self._measure_calls,
            "copied bytes": self._copied_bytes,
            "nodes": self._nodes,
            "registered": self._registered,
            "dead nodes": self._dead_nodes,
            "cluster_resources": self._resources,
            "available_resources": self._available,
            "explain": self._explain,
            "neighbours": self._neighbours,
            "find": self._find,
            "actor": self._actor,
            "actor of": self._actor_of,
            "named actors": self._named_actors,
            "namespace": self._namespace,
            "groups": self._groups,
            "drain": drain,
            "autoscaler": self._autoscaler,
            "series": sampling.report,
            "cancel": self._cancel,
            "kill": self._kill,
            "group": self._group,
            "processes": self._processes,
            "detached elsewhere": lambda now: not tables.cluster.is_head,
            "nothing": self._nothing,
            "output": self._nothing,  # The shell sends the output of workers ahead of the answer.
        }
        """Answered at once: (now, arguments) -> answer."""
        self._relayed: dict[str, Callable[..., None]] = {
            "rows": self._ask_rows,
            "actor log": read_log,
            "stacks": self._ask_stacks,
            "calls": self._ask_calls,
            "runs": self._ask_runs,
            "create group": groups.create,
            "remove group": groups.remove,
            **relayed,
        }
        """Answered by others: (source, token, arguments). The answer goes to ``source``."""

    @property
    def queries(self) -> list[str]:
        """Names of all queries."""
        return sorted((*self._reports, *self._relayed))

    def answer(self, now: float, source: Address, message: m.Query) -> None:
        """Answer a query, now or later; an error with its reason."""
        token, what, arguments = message
        payload, error = None, ""
        try:
            if what in self._relayed:
                self._relayed[what](source, token, *arguments)
                return
            report = self._reports.get(what)
            if report is None:
                raise ValueError(f"there is no such question; there are {', '.join(self.queries)}")
            payload = report(now, *arguments)
            stored = what != "available_resources" or STORE_MEMORY in payload
            if what in FROM_STORE and stored and self.tables.store.address is not None:
                wanted = _stored_in(payload) if what == "objects" else tuple(payload) if what == "locate" else ()
                self.requests.ask_store(FROM_STORE[what], wanted, self._store_answered, (source, token, what, payload))
                return
        except (TypeError, ValueError) as problem:
            payload, error = None, f"{what}: {problem}"
        self.tables.send(source, m.Answer(token, payload, error))

    def _ask_stacks(self, source: Address, token: int, pid: int, seconds: float = 0.0) -> None:
        """Sample stacks: a worker's control thread at once, a driver within a second."""
        if not isinstance(seconds, int | float) or not 0.0 <= seconds <= SAMPLING_MOST:
            raise ValueError(f"stacks are sampled for 0 to {SAMPLING_MOST:g} seconds, not {seconds!r}; ask again to see more")
        self._inspect(source, token, pid, "stacks", float(seconds))

    def _ask_calls(self, source: Address, token: int, pid: int) -> None:
        self._inspect(source, token, pid, "calls", 0.0)

    def _ask_runs(self, source: Address, token: int, pid: int) -> None:
        if not isinstance(self.tables.by_pid.get(pid), WorkerRecord):
            raise ValueError(f"no worker of this cluster has the pid {pid}")
        self._inspect(source, token, pid, "runs", 0.0)

    def _inspect(self, source: Address, token: int, pid: int, about: str, seconds: float) -> None:
        process = self.tables.by_pid.get(pid)
        if process is None:
            raise ValueError(f"no process of this cluster has the pid {pid}")
        to = CONTROL + control_of(process.token) if isinstance(process, WorkerRecord) else CLIENT + process.incarnation
        self.tables.send(to, m.Inspect(source, token, about, seconds))

    def _measure_calls(self, now: float) -> None:
        for worker in self.tables.latencies.workers_to_ask(now, self.tables.workers.values()):
            self.tables.send_to_control(worker, m.MeasureCalls(MEASURED_SECONDS))

    def _processes(self, now: float, subject: bytes) -> list[int]:
        """Pids for a worker, task, actor or object; else of all drivers and workers."""
        tables = self.tables
        if not subject:
            drivers = [job.driver.pid for job in tables.jobs.values() if job.driver is not None]
            return [*drivers, *(worker.pid for worker in tables.workers.values() if worker.pid and not watches_job(worker, self.tables))]
        actor = self.actors.records.get(subject[:TASK_BYTES])
        task = tables.tasks.get(subject[:TASK_BYTES])
        lives = actor or tables.guests.get(subject[:TASK_BYTES])
        worker = tables.workers.get(subject) or (lives.worker if lives is not None else task.worker if task is not None else None)
        return [worker.pid] if worker is not None and worker.pid else []

    # -- what the object store adds --

    def _store_answered(self, now: float, about: tuple[Address, int, str, Any], answer: m.Answer) -> None:
        source, token, what, payload = about
        known: Any = answer.payload
        if what == "available_resources":
            _take_used(payload, known)
        elif what in ("status", "statuses"):
            status = payload if what == "status" else payload[0]
            status["store"] = known
            _take_used(status["available"], known)
        elif what == "locate":
            here = (self.node.hex(),)
            for object_id, (state, *_) in known.items():
                size, _, _, complete = payload[object_id]
                payload[object_id] = (size, here, state in ON_DISK, complete)
        else:
            for row in payload:
                entry = known.get(bytes.fromhex(row["object_id"]))
                if entry is not None:
                    state, row["in_use_by"], row["on_disk"] = entry
                    row["where"] = "disk" if state in ON_DISK else "memory"
        self.tables.send(source, m.Answer(token, payload, ""))

    # -- rows of the control store --

    def _ask_rows(self, source: Address, token: int, table: str, after: bytes = b"", limit: int = PAGE_MAX) -> None:
        """Request a page, ``(rows, whether there are more)``. The first waits for earlier writes."""
        if table not in TABLES:
            raise ValueError(f"there is no table {table!r}; there are {', '.join(TABLES)}")
        if not (isinstance(after, bytes) and isinstance(limit, int) and limit > 0):
            raise ValueError(f"a page is asked for by the key it comes after and a number of rows, not {after!r} and {limit!r}")
        about = (source, token, table, after, min(limit, PAGE_MAX))
        if after:
            self._read_rows(0.0, about)
        else:
            self.requests.ask(m.Write, (), (), then=self._read_rows, about=about)

    def _read_rows(self, now: float, about: tuple[Address, int, str, bytes, int], answer: m.Written | None = None) -> None:
        _, _, table, after, limit = about
        self.requests.ask(m.Scan, table, b"", after, limit, then=self._rows_found, about=about)

    def _rows_found(self, now: float, about: tuple[Address, int, str, bytes, int], found: m.Found) -> None:
        self.tables.send(about[0], m.Answer(about[1], (found.rows, found.more), ""))

    # -- listings --

    def _tasks(self, now: float, limit: int = LIST_LIMIT, states: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        unknown = [state for state in states if state not in TASK_STATES]
        if unknown:
            raise ValueError(f"there is no state {unknown[0]!r}; there are {', '.join(TASK_STATES)}")
        wanted = set(states or TASK_STATES)
        chosen = (task for task in self._by_progress(wanted) if self.diagnoses.state_of(task) in wanted and not watches(task))
        return [self._task_row(task, now) for task in islice(chosen, min(limit, LIST_LIMIT))]

    def _by_progress(self, wanted: set[str]) -> Iterator[TaskRecord]:
        """Running tasks first. All are searched only for states that no queue and no worker has."""
        tables = self.tables
        inflight = chain.from_iterable(worker.inflight.values() for worker in tables.workers.values())
        running = (task for task in inflight if task.state != DONE)
        yield from sorted(running, key=lambda task: TASK_STATES.index(self.diagnoses.state_of(task)))
        for queue in tables.queues.values():
            yield from (task for task in queue if task.state == READY)
        if "waiting" in wanted:
            waiting = sum(function.waiting for function in self._all_functions())
            yield from islice((task for task in tables.tasks.values() if task.state == WAITING), waiting)
        if "finished" in wanted:
            yield from (task for task in tables.tasks.values() if task.state == DONE)
        elif "failed" in wanted:
            yield from tables.failures.values()

    def _task_row(self, task: TaskRecord, now: float) -> dict[str, Any]:
        return {
            "task_id": task.id.hex(),
            "name": task.name,
            "function": task.function.name,
            "state": self.diagnoses.state_of(task),
            "attempt": tries_of(task.attempt),
            "job": task.id[:4].hex(),
            "pid": task.worker.pid if task.worker is not None else 0,
            "seconds": self.diagnoses.elapsed(task, now),
            "demand": amounts(self.tables.queue_of(task).demand),
            "waits_for": task.rare.unresolved if task.state == WAITING and task.rare is not None else 0,
        }

    def _objects(self, now: float, limit: int = LIST_LIMIT) -> list[dict[str, Any]]:
        tables = self.tables
        records = chain[AnyObject](tables.objects.values(), (task for task in tables.tasks.values() if task.outputs is None))
        return [
            {**object_row(record), "where": self.diagnoses.place_of(record), "held_by": self._held_by(record)}
            for record in islice(records, min(limit, LIST_LIMIT))
        ]

    def _locate(self, now: float, object_ids: tuple[bytes, ...]) -> dict[bytes, m.Row]:
        """Known objects: (size or None, nodes, only on disk, has an outcome)."""
        if type(object_ids) is not tuple or len(object_ids) > LIST_LIMIT or any(type(each) is not bytes for each in object_ids):
            raise ValueError(f"it takes up to {LIST_LIMIT} ids of objects")
        found: dict[bytes, m.Row] = {}
        for object_id in object_ids:
            record = self.tables.find(object_id)
            if record is not None:
                value = record.value if record.status == OK else None
                size = len(value) if isinstance(value, bytes) else value.size if value is not None else None
                found[object_id] = (size, (), False, record.status != PENDING)
        return found

    def _held_by(self, record: AnyObject) -> list[str]:
        holders = record.holders if isinstance(record.holders, set) else () if record.holders is None else (record.holders,)
        names = []
        for holder in sorted(islice(holders, HOLDERS_MAX)):
            process, node = self.tables.processes.get(holder), self.tables.nodes.get(holder)
            known = f"{process.kind} {process.pid}" if process is not None else "a process"
            names.append(f"node {node.name}" if node is not None else known)
        return names

    def _workers(self, now: float, measured: bool = False) -> list[dict[str, Any]]:
        rows = []
        for worker in self.tables.workers.values():
            if watches_job(worker, self.tables):
                continue
            running = running_task(worker)
            since = worker.idle_since if worker.state == IDLE else running_since(worker) if worker.state == LEASED else worker.started_at
            rows.append(
                {
                    "pid": worker.pid,
                    "state": "blocked" if worker.blocked_tasks and running is None else WORKER_STATES[worker.state],
                    "seconds": max(0.0, now - since),
                    "job": worker.job.id.hex() if worker.job is not None else "",
                    "task": running.name if running is not None else "",
                    "task_id": running.id.hex() if running is not None else "",
                    **self.diagnoses.actor_of_worker(worker),
                    "queued": max(0, len(worker.inflight) - len(worker.blocked_tasks) - (1 if running is not None else 0)),
                    "depth": len(worker.blocked_tasks),
                    "demand": amounts(tuple(pair for pair in worker.demand if not (worker.lent and pair[0] == "CPU"))),
                    "lent": amounts(tuple(pair for pair in worker.demand if worker.lent and pair[0] == "CPU")),
                    "gpus": list(worker.gpus),
                    "token": worker.token.hex(),
                    **({"memory": self.resident.get(worker.pid, 0)} if measured else {}),
                }
            )
        return rows

    def _failures(self, now: float, limit: int = FAILURES_MAX, subject: bytes = b"") -> list[dict[str, Any]]:
        """The newest failed tasks with refs, or one, with packed errors (``protocol.failures``)."""
        failures = self.tables.failures
        chosen = reversed(failures.values()) if not subject else (failures[each] for each in (subject[:TASK_BYTES],) if each in failures)
        rows = []
        for task in islice(chosen, min(limit, FAILURES_MAX)):
            record = next((record for record in task.values() if record.status not in (OK, PENDING)), None)
            if record is not None:
                error = record.value[:ERROR_MOST] if type(record.value) is bytes else b""
                rows.append({"task_id": task.id.hex(), "name": task.name, "raised": record.status == ERROR, "error": error})
        return rows

    def _functions(self, now: float) -> list[dict[str, Any]]:
        """Progress by function in running jobs; a class counts its actors.

        Counts are kept at the tasks' home, so that the size of a job does not matter.
        """
        running: dict[FunctionRecord, int] = {}
        for worker in self.tables.workers.values():
            task_run = running_task(worker)
            if task_run is not None:
                running[task_run.function] = running.get(task_run.function, 0) + 1
        rows = []
        for job in self.tables.jobs.values():
            for function in job.delegated.values() if not job.ended else ():
                if runs := running.get(function, 0):  # At their home these wait; the rows are added up.
                    rows.append({**_progress(job, function, -runs, runs), "finished": 0, "failed": 0})
            for function in job.functions.values() if not job.ended else ():
                if function.actor is not None and function.name == JOB_RUNNER:
                    continue
                if function.received or function.mean is not None:  # It may have run here for another node.
                    runs = running.get(function, 0)
                    rows.append(_progress(job, function, max(0, function.unfinished - runs), runs))
        return rows

    def _all_functions(self) -> list[FunctionRecord]:
        return [function for job in self.tables.jobs.values() for each in (job.functions, job.delegated) for function in each.values()]

    def _status(self, now: float) -> dict[str, Any]:
        states = dict.fromkeys(TASK_STATES, 0)
        for worker in (*self.tables.workers.values(), *self.tables.nodes.values()):
            assigned = sum(task.state != DONE for task in worker.inflight.values())
            blocked = sum(each.task_id in worker.inflight for each in worker.blocked_tasks)  # Waiting calls of actors are not tasks.
            running = running_task(worker) is not None and not worker.remote
            states["blocked"] += blocked
            states["running"] += running
            states["assigned"] += assigned - blocked - running
        functions = self._all_functions()
        unfinished = sum(function.unfinished for function in functions)
        states["waiting"] = sum(function.waiting for function in functions)
        states["queued"] = unfinished - states["waiting"] - states["assigned"] - states["blocked"] - states["running"]
        states["failed"] = len(self.tables.failures)
        states["finished"] = len(self.tables.tasks) - unfinished - states["failed"]
        for queue in self.tables.queues.values():
            if not self.tables.could_run(queue):
                count = sum(task.state == READY for task in queue)
                states["infeasible"] += count
                states["queued"] -= count
        return {
            "node": self.node.hex(),
            "resources": amounts(tuple(sorted(self.pool.total.items()))),
            "available": self._available(now),
            "tasks": states,
            "elsewhere": sum(task.state != DONE for node in self.tables.nodes.values() for task in node.inflight.values()),
            "workers": sum(not watches_job(worker, self.tables) for worker in self.tables.workers.values()),
            "actors": self.actor_reports.counts(),
            "jobs": [
                {
                    "job": job.id.hex(),
                    "number": job.number,
                    "pid": job.driver.pid if job.driver else 0,
                    "home": self._name_of(job.home) if job.home else "",
                    "submitted": job.submitted,
                    "namespace": job.namespace,
                    **job.program._asdict(),
                    "seconds": max(0.0, now - job.started),
                    "ended": job.ended,
                }
                for job in self.tables.jobs.values()
                if not self._only_watches(job)
            ],
            "statistics": dict(self._statistics()),
            "store": {},
            "copied_bytes": sum(self.copied_bytes.values()),
            "idle_seconds": self._idle_seconds(now),
            "recovering": self.tables.barrier.awaits(PROCESSES),
            "draining": self.tables.draining,
        }

    def _autoscaler(self, now: float, *report: Any) -> list[dict[str, Any]]:
        if report:
            self.tables.requested_nodes.take(now, *report)
        return self.tables.requested_nodes.rows(now)

    def _only_watches(self, job: JobRecord) -> bool:
        return job.driver is None and not job.home and all(watches(each.task) for each in self.actors.of(job))

    def _copied_bytes(self, now: float) -> dict[str, int]:
        """Bytes copied here, by source; "several" if more than one was asked."""
        found: dict[str, int] = {}
        for node, many in self.copied_bytes.items():
            name = self._name_of(node) if node else "several"
            found[name] = found.get(name, 0) + many
        return found

    def _name_of(self, node: bytes) -> str:
        table = self.tables.cluster.rows
        return table[node][2] if node in table else node.hex()

    def _nodes(self, now: float) -> list[dict[str, Any]]:
        rows = self.tables.cluster.rows
        if not rows:
            labels = {name: value for name, value in self.tables.cluster.labels.items() if name != NODE_ID}
            return [{"node": self.node.hex(), "alive": True, "resources": self._own_resources(), "labels": labels}]
        return [
            {
                "node": node.hex(),
                "alive": True,
                "resources": amounts(tuple(resources)),
                "number": number,
                "name": name,
                "address": address,
                "labels": dict(labels),
                "pid": pid,
                "head": node == self.tables.cluster.head,
                "here": node == self.node,
            }
            for node, number, name, address, _, _, resources, labels, pid in sorted(rows.values(), key=lambda row: row[1])
        ]

    def _registered(self, now: float) -> list[str]:
        return [node.token.hex() for node in self.tables.nodes.values() if node.is_ready]

    def _dead_nodes(self, now: float) -> list[str]:
        return [node.hex() for node in self.tables.dead]

    def _own_resources(self) -> dict[str, float]:
        return amounts(tuple(sorted(self.pool.total.items())))

    def _available(self, now: float) -> dict[str, float]:
        return {name: max(0.0, amount) for name, amount in amounts(self.pool.available()).items()}

    def _resources(self, now: float) -> dict[str, float]:
        total: dict[str, float] = {}
        for node in self._nodes(now):
            for name, amount in node["resources"].items():
                total[name] = total.get(name, 0.0) + amount
        return total

    def _explain(self, now: float, subject: bytes) -> tuple[str, str, tuple[tuple[str, str], ...]] | None:
        explanation = self.diagnoses.explain(subject, now)
        return None if explanation is None else (explanation.state, explanation.reason, explanation.facts)

    def _neighbours(self, now: float, subject: bytes) -> dict[str, Any] | None:
        return Neighbourhood(self.tables).around(subject)

    def _find(self, now: float, text: str) -> list[dict[str, str]]:
        """Things that ``text`` may name: by id in hex or its beginning, short id, actor's name, or worker's pid."""
        if type(text) is not str:
            raise TypeError(f"it takes a text, not {text!r}")
        tables = self.tables
        found = []
        matches = matcher(text)
        if matches is not None:
            exact = bytes.fromhex(text) if len(text) in (2 * TASK_BYTES, 2 * OBJECT_BYTES) and text.isalnum() else b""
            if exact in tables.tasks or tables.find(exact) is not None:
                return [self._named(exact)]
            found = list(islice(filter(matches, chain(tables.tasks, tables.objects, tables.workers)), FOUND_MAX))
            if not found and text.endswith("-0"):  # the only value of a task has the task's record
                found = list(islice(filter(matcher(text[:-2]) or matches, tables.tasks), FOUND_MAX))
        found = list(dict.fromkeys((*self.actor_reports.named(text), *found)))  # A name may look like the beginning of an id.
        if not found and text.isdecimal():
            found = [token for token, worker in tables.workers.items() if worker.pid == int(text)]
        return [self._named(identifier) for identifier in found]

    def _named(self, identifier: bytes) -> dict[str, str]:
        worker = self.tables.workers.get(identifier)
        if worker is not None:
            return {"id": identifier.hex(), "kind": "worker", "name": f"pid {worker.pid}"}
        actor = self.actors.records.get(identifier) or self.tables.guests.get(identifier)
        if actor is not None:
            return {"id": identifier.hex(), "kind": "actor", "name": title(actor), "called": actor.name}
        record = self.tables.tasks.get(identifier) if len(identifier) == TASK_BYTES else self.tables.find(identifier)
        name = record.task.name if record is not None and record.task is not None else "put"
        return {"id": identifier.hex(), "kind": "task" if len(identifier) == TASK_BYTES else "object", "name": name}

    def _actors(self, now: float, limit: int = LIST_LIMIT) -> list[dict[str, Any]]:
        return self.actor_reports.listing(min(limit, LIST_LIMIT))

    def _cancel(self, now: float, task_id: bytes, force: bool = False, recursive: bool = True) -> dict[str, str] | None:
        """Cancel a task of this home. Return its name, its earlier state, and why it goes on (empty if stopped); None elsewhere."""
        _check_id(task_id)
        task = self.tables.tasks.get(task_id)
        if task is None or task.function.delegated:
            return None
        state = self.diagnoses.state_of(task)
        return {"name": task.name, "state": state, "goes_on": self.stopping.cancel(now, task, bool(force), bool(recursive))}

    def _kill(self, now: float, actor_id: bytes, no_restart: bool = True) -> dict[str, str] | None:
        """End an actor of this home. Return its class, name and earlier state; None elsewhere."""
        _check_id(actor_id)
        record = self.actors.records.get(actor_id)
        if record is None:
            return None
        facts = {"class": record.class_name, "name": record.name, "state": state_of(record)}
        self.actors.kill(record, bool(no_restart), "zfabric kill")
        return facts

    def _named_actors(self, now: float) -> list[tuple[str, str]]:
        return sorted(self.actors.named)

    def _nothing(self, now: float) -> None:
        """Do nothing: the answer shows that everything sent before was handled."""

    def _actor(self, now: float, name: str, namespace: str) -> m.Row | None:
        record = self.actors.named.get((namespace, name))
        return None if record is None else (record.id, record.task.function.actor)

    def _actor_of(self, now: float, actor_id: bytes) -> m.Row | None:
        record = self.actors.records.get(actor_id) or self.tables.guests.get(actor_id)
        task = record.task if record is not None else self.tables.tasks.get(actor_id)  # It may be in its ``__init__`` here.
        return None if task is None or task.function.actor is None else (task.option("name") or "", task.function.actor)

    def _groups(self, now: float) -> list[dict[str, Any]]:
        return [_group_row(record) for record in self.diagnoses.groups.records.values()]

    def _group(self, now: float, name: str, namespace: str, identifier: bytes = b"") -> m.Row | None:
        for record in self.diagnoses.groups.records.values():
            if record.id == identifier or (name and (record.name, record.namespace) == (name, namespace)):
                return record.id, self.node, record.bundles, record.name
        return None

    def _namespace(self, now: float, job: bytes) -> str:
        known = self.tables.jobs.get(job)
        return "" if known is None else known.namespace


def _check_id(identifier: object) -> None:
    if type(identifier) is not bytes or len(identifier) != TASK_BYTES:
        raise ValueError(f"it takes the id of a task or an actor ({TASK_BYTES} bytes), not {identifier!r}")


def _group_row(record: GroupRecord) -> dict[str, Any]:
    return {
        "group": record.id.hex(),
        "name": record.name,
        "namespace": record.namespace,
        "strategy": record.policy,
        "state": record.state,
        "detached": record.detached,
        "bundles": [amounts(bundle) for bundle in record.bundles],
        "places": [place.hex() for place in record.places],
    }


def _take_used(available: dict[str, float], store: Mapping[str, float]) -> None:
    if STORE_MEMORY in available:
        available[STORE_MEMORY] = max(0.0, available[STORE_MEMORY] - store["used"] - store["granted"])


def _progress(job: JobRecord, function: FunctionRecord, waiting: int, running: int) -> dict[str, Any]:
    return {
        "job": job.id.hex(),
        "function": function.id.hex(),
        "name": function.name,
        "kind": "function" if function.actor is None else "class",
        "waiting": waiting,
        "arguments": 0 if function.delegated else function.waiting,
        "running": running,
        "finished": function.done - function.failed,
        "failed": function.failed,
        "mean_seconds": function.mean,
    }


def _stored_in(rows: list[dict[str, Any]]) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(row["object_id"]) for row in rows if row["where"] == "store")
