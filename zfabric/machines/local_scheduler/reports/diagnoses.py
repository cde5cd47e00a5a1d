"""Why tasks, objects, actors and workers are in their states."""

from __future__ import annotations

from typing import Any

from zfabric.machines.common.resources import ResourcePool, covers, describe, describe_node
from zfabric.machines.local_scheduler.actor_records import ActorRecord, GuestRecord
from zfabric.machines.local_scheduler.actors.deadlocks import Deadlocks
from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.barrier import PROCESSES
from zfabric.machines.local_scheduler.groups.directory import Groups
from zfabric.machines.local_scheduler.object_places import PENDING, Elsewhere, Stored
from zfabric.machines.local_scheduler.records import (
    ASSIGNED,
    DONE,
    LEASED,
    READY,
    STATE_NAMES,
    WAITING,
    WORKER_STATES,
    AnyObject,
    BlockedTask,
    NodeRecord,
    ShapeQueue,
    TaskRecord,
    WorkerRecord,
    attempt_text,
)
from zfabric.machines.local_scheduler.reports.actor_report import ActorReports, blocked_on, title
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol.failures import summary_of
from zfabric.protocol.ids import FIRST_CALL_INDEX, FIRST_PUT_INDEX, OBJECT_BYTES, TASK_BYTES, index_of
from zfabric.protocol.machine import Diagnosis
from zfabric.protocol.messages import ERROR, OK
from zfabric.protocol.names import brief, size, span
from zfabric.protocol.options import NO_ENVIRONMENT, GroupTerm, describe_strategy

COPY = "copy"
"""The maker, in listings, of another home's value."""
ARGUMENTS_MOST = 8
ERROR_CHARACTERS = 200


class Diagnoses:
    """Explains states from the tables."""

    def __init__(
        self,
        tables: Tables,
        pool: ResourcePool,
        actors: ActorDirectory,
        actor_reports: ActorReports,
        deadlocks: Deadlocks,
        groups: Groups,
    ) -> None:
        self.tables = tables
        self.pool = pool
        self.actors = actors
        self.groups = groups
        self.actor_reports = actor_reports
        self.deadlocks = deadlocks

    def explain(self, subject: bytes, now: float | None = None) -> Diagnosis | None:
        """Why the thing with this id is in its state; None without a record.

        With ``now``, the facts say for how long.
        """
        tables = self.tables
        worker = tables.workers.get(subject)
        if worker is not None:
            return _explain_worker(worker, subject, self.actor_of_worker(worker)["actor"])
        actor = self.actors.records.get(subject[:TASK_BYTES])
        if actor is not None:
            task = actor.task
            return self.actor_reports.explain(actor, self._wanted_by, lambda: self._explain_task(task, subject).reason)
        record: AnyObject | None = None
        if len(subject) == OBJECT_BYTES:
            record = tables.find(subject)
        elif len(subject) == TASK_BYTES:
            record = tables.tasks.get(subject)
        if record is None:
            return None
        if record.task is None:
            row = object_row(record)
            call = self.actor_reports.call_of(self.deadlocks.callee(None, subject))
            if call:
                return Diagnosis(subject, row["state"], f"the result of a {call}", _facts(row))
            reason = f"{_WITHOUT_TASK[row['made_by']]}, {self._size_and_place(record)}"
            return Diagnosis(subject, row["state"], reason, _facts({**row, "where": self.place_of(record)}))
        return self._explain_task(record.task, subject, now)

    def _explain_task(self, task: TaskRecord, subject: bytes, now: float | None = None) -> Diagnosis:
        tables = self.tables
        queue = tables.queue_of(task)
        state = self.state_of(task)
        facts: list[tuple[str, str]] = [
            ("task", brief(task.id)),
            ("function", task.name),
            *tables.job_fact(task.id),
            ("attempt", attempt_text(task, self.tables.config.max_retries)),
            ("demand", describe(queue.demand)),
        ]
        elapsed = None if now is None else self.elapsed(task, now)
        if elapsed is not None:
            begun = state in ("running", "blocked")
            facts.append((state, f"for {span(elapsed)}") if begun else ("submitted", f"{span(elapsed)} ago"))
        if arguments := self._arguments(task):
            facts.append(("arguments", arguments))
        if task.rare is not None and task.rare.history:
            facts.append(("earlier attempts", "; ".join(task.rare.history)))
        if task.state == WAITING:
            missing = [identifier for identifier in task.row[3] if _is_pending(tables.find(identifier))]
            names = ", ".join(f"{brief(identifier)} ({self._maker(identifier)})" for identifier in missing[:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            reason = f"waits for {len(missing)} of its arguments: {names}{more}"
            if not missing:  # It waits for an actor's name or row, or for other nodes' reports after a restart.
                reason = "waits for the control store, or for other nodes, and for none of its arguments"
            return Diagnosis(subject, state, reason, tuple(facts))
        if task.state == READY:
            reason = self._why_queued(task) + ("" if now is None else self._requested(task, now))
            return Diagnosis(subject, state, reason, tuple(facts))
        if task.rare is not None and task.rare.running_on is not None:
            worker = task.rare.running_on
            where, name = ("on node", worker.name) if isinstance(worker, NodeRecord) else ("in worker", str(worker.pid))
            facts.append((f"goes on {where}", name))
            reason = f"has finished with an error, and its code goes on {where} {name}: {_error_of(task)}"
            return Diagnosis(subject, state, reason, tuple(facts))
        if task.state == ASSIGNED and isinstance(task.worker, NodeRecord):
            name = f"{task.worker.name} ({task.worker.token.hex()})"
            facts.append(("node", name))
            return Diagnosis(subject, state, f"runs on node {name}, or is queued there", tuple(facts))
        if task.state == ASSIGNED and task.worker is not None:
            facts.append(("worker", str(task.worker.pid)))
            blocked = next((blocked for blocked in task.worker.blocked_tasks if blocked.task_id == task.id), None)
            if blocked is not None:
                return Diagnosis(subject, state, self._wanted_by(blocked), tuple(facts))
            if state == "running":
                return Diagnosis(subject, state, f"runs on worker {task.worker.pid}", tuple(facts))
            return Diagnosis(subject, state, f"is next on worker {task.worker.pid}, behind what it runs now", tuple(facts))
        where = ", ".join(self._size_and_place(record) for record in task.values()) or "none"
        reason = f"has finished with an error: {_error_of(task)}" if state == "failed" else f"has finished; its values: {where}"
        return Diagnosis(subject, state, reason, tuple(facts))

    def _arguments(self, task: TaskRecord) -> str:
        parts = [f"{size(len(task.row[2]))} with the call"] if task.row[2] else []
        needed = list(dict.fromkeys(task.row[3]))
        for identifier in needed[:ARGUMENTS_MOST]:
            record = self.tables.find(identifier)
            about = "released since" if record is None else self._size_and_place(record)
            parts.append(
                f"{brief(identifier)} ({self._maker(identifier)}): {about}" if record is not None else f"{brief(identifier)}: {about}"
            )
        more = len(needed) - ARGUMENTS_MOST
        return "; ".join(parts) + (f"; and {more:,} more" if more > 0 else "")

    def place_of(self, record: AnyObject) -> str:
        """Where a value is, with the node's name."""
        value, table = record.value, self.tables.cluster.rows
        return f"node {table[value.place][2]}" if isinstance(value, Elsewhere) and value.place in table else where(value)

    def _size_and_place(self, record: AnyObject) -> str:
        if record.status == PENDING:
            return "does not exist yet"
        place = self.place_of(record)
        words = {"store": "in the object store", "nowhere": "which is lost"}.get(
            place, f"on {place}" if place.startswith("node ") else place
        )
        return f"{size(object_row(record)['size'])} {words}"

    def _why_queued(self, task: TaskRecord) -> str:
        queue = self.tables.queue_of(task)
        if queue.group is not None:
            return self._why_in_group(queue, queue.group)
        where = describe_strategy(queue.strategy) if queue.away else ""
        if where:
            why = "actors leave no room there now" if queue.infeasible_since is None else "no living node that may run it has that"
            return f"waits for {describe(queue.demand)} {where}: {why}"
        total = describe_node(tuple(sorted(self.pool.total.items())))
        if not self.pool.fits_total(queue.demand):
            able = [node.name for node in self.tables.nodes.values() if covers(node.resources, queue.demand)]
            if able:
                more = f" and {len(able) - 8} more" if len(able) > 8 else ""
                return f"waits for {describe(queue.demand)}, which this node does not have; no room now on {', '.join(able[:8])}{more}"
            return f"no node has {describe(queue.demand)} (this one has {total}); it stays pending until one joins that does"
        if self.tables.barrier.awaits(PROCESSES):
            return "the node's daemon restarted and waits for every process to register again"
        if not self.pool.fits(queue.demand):
            return f"waits for {describe(queue.demand)}: free now is {describe_node(self.pool.available())} of {total}; {self._holders()}"
        starting = sum(1 for worker in self.tables.workers.values() if WORKER_STATES[worker.state] == "starting")
        made = any(not worker.pid and worker.environment == queue.environment for worker in self.tables.workers.values())
        first = ", and the environment that it asks for is being made" if made and queue.environment != NO_ENVIRONMENT else ""
        return f"its resources are free; waits for a worker ({starting} starting, {len(queue)} tasks in its queue){first}"

    def _requested(self, task: TaskRecord, now: float) -> str:
        """What an autoscaler has requested for it, as the end of a sentence."""
        queue = self.tables.queue_of(task)
        if queue.group is None:
            has_room = not queue.away and queue.pool.fits(queue.demand)
            return "" if has_room else self.tables.requested_nodes.describe(now, queue.demand, queue.strategy)
        known = self.tables.known_groups.get(queue.group.group)
        places = zip(known.bundles, known.places, strict=True) if known is not None else ()
        missing = next((demand for demand, place in places if not place), None)
        return "" if missing is None else self.tables.requested_nodes.describe(now, missing)

    def _why_in_group(self, queue: ShapeQueue, term: GroupTerm) -> str:
        known = self.tables.known_groups.get(term.group)
        group = f"placement group {term.group.hex()}"
        if known is None and queue.away:
            return f"waits for {group}: the node that decides about it has not answered yet"
        if known is not None and queue.away:
            missing = [describe(demand) for demand, place in zip(known.bundles, known.places, strict=True) if not place]
            home = self.groups.records.get(term.group)
            labels = ", on nodes with the labels that they ask for" if home is not None and home.selectors else ""
            return f"waits for {group}, which is {known.state}: no nodes have room yet for {'; '.join(missing[:8])}{labels}"
        if not queue.pool.fits(queue.demand):
            return f"waits for {describe(queue.demand)} of {group}: free in its bundles here is {describe(queue.pool.available())}"
        return f"{group} has its resources; waits for a worker ({len(queue)} tasks in its queue)"

    def _holders(self) -> str:
        parts = []
        for worker in self.tables.workers.values():
            actor = self._actor_in(worker)
            if actor is not None and worker.demand:
                parts.append(f"actor {title(actor)} has {describe(worker.demand)} for life")
            elif worker.state == LEASED:
                running = running_task(worker)
                if running is not None:
                    parts.append(f"worker {worker.pid} runs {running.name}")
                elif worker.blocked_tasks:
                    wanted = worker.blocked_tasks[-1].wanted
                    first = self._maker(wanted[0], worker.blocked_tasks[-1]) if wanted else "nothing"
                    parts.append(f"worker {worker.pid} waits for {first}")
        more = f"; and {len(parts) - 8} more" if len(parts) > 8 else ""
        return "held by: " + ("; ".join(parts[:8]) + more if parts else "nobody")

    def _actor_in(self, worker: WorkerRecord) -> ActorRecord | GuestRecord | None:
        actor_id = next(iter(worker.actors), b"")
        return self.actors.records.get(actor_id) or self.tables.guests.get(actor_id)

    def actor_of_worker(self, worker: WorkerRecord) -> dict[str, str]:
        """Class, name and id of a worker's first actor, or empty texts."""
        actor = self._actor_in(worker)
        if actor is None:
            return {"actor": "", "actor_id": ""}
        more = len(worker.actors) - 1
        return {"actor": title(actor) + (f" and {more:,} more" if more else ""), "actor_id": actor.id.hex()}

    def _wanted_by(self, blocked: BlockedTask) -> str:
        names = [f"{brief(identifier)} ({self._maker(identifier, blocked)})" for identifier in blocked.wanted]
        circle = self.deadlocks.circle(blocked)
        return blocked_on(names) + (f"; it waits for itself: {circle}" if circle else "")

    def _maker(self, object_id: bytes, blocked: BlockedTask | None = None) -> str:
        call = self.actor_reports.call_of(self.deadlocks.callee(blocked, object_id))
        if call:
            return call
        record = self.tables.find(object_id)
        if record is None:
            return "not known any more"
        if record.task is None:
            return "put"
        return f"{record.task.name}, {self.state_of(record.task)}"

    # -- states --

    def state_of(self, task: TaskRecord) -> str:
        """One of ``TASK_STATES``."""
        if task.state == ASSIGNED:
            worker = task.worker
            waiting = worker is not None and any(blocked.task_id == task.id for blocked in worker.blocked_tasks)
            running = worker is not None and not worker.remote and running_task(worker) is task
            return "blocked" if waiting else "running" if running else "assigned"
        if task.state == READY and not self.tables.could_run(self.tables.queue_of(task)):
            return "infeasible"
        return "failed" if task.state == DONE and failed(task) else STATE_NAMES[task.state]

    def elapsed(self, task: TaskRecord, now: float) -> float | None:
        """Seconds for which it has run or been blocked, or since its submission; None if unknown.

        No time is stored per task: lineage blocks have arrival times, workers the end of their last task.
        """
        state, worker = self.state_of(task), task.worker
        since: float | None = None
        if state == "running" and worker is not None:
            since = running_since(worker)
        elif state == "blocked" and worker is not None:
            since = next((blocked.at for blocked in worker.blocked_tasks if blocked.task_id == task.id), None)
        elif task.state != DONE and task.block is not None:
            since = task.block.since
        return None if since is None else max(0.0, now - since)

    def name_of_running(self, worker: WorkerRecord, executing: bytes) -> str:
        """What a worker runs, for its output; else empty. ``executing`` is the task's id."""
        task = worker.inflight.get(executing)
        if task is not None:
            return task.name.rpartition("<locals>.")[2]
        actor = self._actor_in(worker) if executing and len(worker.actors) == 1 else None
        return title(actor).rpartition("<locals>.")[2] if actor is not None else ""


def running_since(worker: WorkerRecord) -> float:
    """When a worker's task began: another had ended, or the one below had blocked."""
    return max([worker.last_progress, *(blocked.at for blocked in worker.blocked_tasks if blocked.at is not None)])


def failed(task: TaskRecord) -> bool:
    """Whether a task's value has an error in its place."""
    return any(record.status not in (OK, PENDING) for record in task.values())


def where(value: bytes | Stored | Elsewhere | None) -> str:
    """Where a value is, as in listings."""
    if value is None:
        return "nowhere"
    return "inline" if isinstance(value, bytes) else "store" if isinstance(value, Stored) else f"node {value.place.hex()}"


_WITHOUT_TASK = {
    "put": "a value that was put",
    "call": "the result of a call",
    "stream": "a value that a stream yielded",
    COPY: "a copy of a value of another node",
}
"""Texts by makers of values without a task."""


def _maker(record: AnyObject) -> str:
    index = index_of(record.object_id)
    if record.home and index < FIRST_CALL_INDEX:
        return COPY
    return "put" if index >= FIRST_PUT_INDEX else "call" if index >= FIRST_CALL_INDEX else "stream"


def object_row(record: AnyObject) -> dict[str, Any]:
    """An object as in listings."""
    value = record.value
    holders = record.holders
    return {
        "object_id": record.object_id.hex(),
        "state": "pending" if record.status == PENDING else "ready" if record.status == OK else "error",
        "where": where(value),
        "size": len(value) if isinstance(value, bytes) else value.size if value is not None else 0,
        "holders": 0 if holders is None else len(holders) if isinstance(holders, set) else 1,
        "pins": record.pins,
        "named": record.named,
        "made_by": record.task.name if record.task is not None else _maker(record),
        "in_use_by": 0,
        "on_disk": False,
    }


def running_task(worker: WorkerRecord) -> TaskRecord | None:
    """The first task in flight, unless it is blocked."""
    waiting = {blocked.task_id for blocked in worker.blocked_tasks}
    return next((task for identifier, task in worker.inflight.items() if identifier not in waiting), None)


def _error_of(task: TaskRecord) -> str:
    record = next(record for record in task.values() if record.status not in (OK, PENDING))
    if type(record.value) is not bytes:
        return "it is in the object store"
    kind, text = summary_of(record.value, raised=record.status == ERROR)
    first = text.strip().split("\n")[0][:ERROR_CHARACTERS]
    line = "".join(each if each.isprintable() else " " if each.isspace() else ascii(each)[1:-1] for each in first)
    return f"{kind}: {line}" if line else kind


def _explain_worker(worker: WorkerRecord, subject: bytes, actor: str) -> Diagnosis:
    running = running_task(worker)
    reason = f"runs {running.name}" if running is not None else "waits in get" if worker.blocked_tasks else WORKER_STATES[worker.state]
    reason = f"is the process of the actor {actor}" if actor else reason
    facts = (("pid", str(worker.pid)), *((("actor", actor),) if actor else ()), ("in flight", str(len(worker.inflight))))
    return Diagnosis(subject, WORKER_STATES[worker.state], reason, facts)


def _is_pending(record: AnyObject | None) -> bool:
    return record is not None and record.status == PENDING


def _facts(row: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    rest = tuple((name, str(value)) for name, value in row.items() if name != "object_id")
    return (("object", brief(bytes.fromhex(row["object_id"]))), *rest)
