"""What people ask a local scheduler: listings, status, timelines, and why something is as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack

from zfabric.machines.parts.records import (
    ASSIGNED,
    DONE,
    LEASED,
    PENDING,
    READY,
    STATE_NAMES,
    WAITING,
    WORKER_STATES,
    AnyObject,
    Stored,
    TaskRecord,
    WorkerRecord,
)
from zfabric.machines.parts.resources import describe
from zfabric.protocol import messages as m
from zfabric.protocol.ids import OBJECT_BYTES, TASK_BYTES, Address, short
from zfabric.protocol.machine import Explanation
from zfabric.protocol.messages import OK
from zfabric.protocol.options import RESOURCE_UNIT, Demand

if TYPE_CHECKING:
    from zfabric.machines.local_scheduler import LocalScheduler

LIST_LIMIT = 10_000
"""Most rows one listing answers with."""
PAGE = 500
"""Rows of the control store that a long answer takes at a time."""


def packed(value: Any) -> bytes:
    """Plain data as a row's value in the control store."""
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data


def unpacked(data: bytes) -> Any:
    """What ``packed`` packed."""
    return msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=False)


def event_key(now: float, number: int) -> bytes:
    """Events sort by the time at which the scheduler heard of them."""
    return int(now * 1e6).to_bytes(8, "big") + number.to_bytes(4, "big", signed=False)


def amounts(demand: Demand) -> dict[str, float]:
    """A demand in units rather than in 1/10,000."""
    return {name: amount / RESOURCE_UNIT for name, amount in demand}


def answer(scheduler: LocalScheduler, now: float, source: Address, message: m.Query) -> None:
    """Answer a question, at once or when the control store has answered."""
    what, arguments = message.what, message.arguments
    if what in _PAGED:
        about: tuple[Address, int, str, list[Any]] = (source, message.token, what, [])
        scheduler.ask("query", about, m.Scan, _PAGED[what], b"", b"", PAGE)
        return
    question = QUESTIONS.get(what)
    if question is None:
        known = ", ".join(sorted({*QUESTIONS, *_PAGED}))
        scheduler.tables.send(source, m.Answer(message.token, None, f"there is no question {what!r}; there are {known}"))
        return
    try:
        payload, error = question(scheduler, now, *arguments), ""
    except (TypeError, ValueError) as problem:
        payload, error = None, f"{what}: {problem}"
    scheduler.tables.send(source, m.Answer(message.token, payload, error))


def rows_found(scheduler: LocalScheduler, about: tuple[Address, int, str, list[Any]], found: m.Found) -> None:
    """A page of the control store has come; ask for the next, or answer."""
    source, token, what, rows = about
    rows.extend(found.rows)
    if found.more and len(rows) < 100 * LIST_LIMIT:
        scheduler.ask("query", about, m.Scan, _PAGED[what], b"", found.rows[-1][0], PAGE)
        return
    scheduler.tables.send(source, m.Answer(token, tuple(rows), ""))


_PAGED = {"events": "event", "functions": "function", "jobs": "job"}


def _tasks(scheduler: LocalScheduler, now: float, limit: int = LIST_LIMIT, state: str = "") -> list[dict[str, Any]]:
    rows = []
    for task in scheduler.tables.tasks.values():
        name = _state_of(task)
        if state and name != state:
            continue
        worker = task.worker
        rows.append(
            {
                "task_id": task.id.hex(),
                "name": task.name,
                "state": name,
                "attempt": task.attempt,
                "job": task.id[:4].hex(),
                "pid": worker.pid if worker is not None else 0,
                "demand": amounts(scheduler.tables.queue_of(task).demand),
            }
        )
        if len(rows) >= limit:
            break
    return rows


def _state_of(task: TaskRecord) -> str:
    if task.state == ASSIGNED:
        worker = task.worker
        waiting = worker is not None and any(frame.task_id == task.id for frame in worker.frames)
        running = worker is not None and next(iter(worker.inflight.values()), None) is task
        return "blocked" if waiting else "running" if running else "assigned"
    if task.state == DONE and any(record.status not in (OK, PENDING) for record in task.values()):
        return "failed"
    return STATE_NAMES[task.state]


def _objects(scheduler: LocalScheduler, now: float, limit: int = LIST_LIMIT) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for table in (scheduler.tables.tasks, scheduler.tables.objects):
        for record in table.values():
            if isinstance(record, TaskRecord) and record.outputs is not None:
                continue
            if len(rows) >= limit:
                return rows
            rows.append(_object_row(record))
    return rows


def _object_row(record: AnyObject) -> dict[str, Any]:
    value = record.value
    holders = record.holders
    return {
        "object_id": record.object_id.hex(),
        "state": "pending" if record.status == PENDING else "ready" if record.status == OK else "error",
        "where": "store" if type(value) is Stored else "inline" if value is not None else "nowhere",
        "size": value.size if isinstance(value, Stored) else len(value) if value is not None else 0,
        "holders": 0 if holders is None else len(holders) if isinstance(holders, set) else 1,
        "pins": record.pins,
        "named": record.named,
        "made_by": record.task.name if record.task is not None else "put",
    }


def _workers(scheduler: LocalScheduler, now: float) -> list[dict[str, Any]]:
    rows = []
    for worker in scheduler.tables.workers.values():
        top = _top(worker)
        rows.append(
            {
                "pid": worker.pid,
                "state": "blocked" if worker.frames and top is None else WORKER_STATES[worker.state],
                "job": worker.job.id.hex() if worker.job is not None else "",
                "task": top.name if top is not None else "",
                "task_id": top.id.hex() if top is not None else "",
                "queued": max(0, len(worker.inflight) - len(worker.frames) - (1 if top is not None else 0)),
                "depth": len(worker.frames),
                "demand": amounts(worker.demand),
                "token": worker.token.hex(),
            }
        )
    return rows


def _top(worker: WorkerRecord) -> TaskRecord | None:
    waiting = {frame.task_id for frame in worker.frames}
    return next((task for identifier, task in worker.inflight.items() if identifier not in waiting), None)


def _status(scheduler: LocalScheduler, now: float) -> dict[str, Any]:
    states = dict.fromkeys((*STATE_NAMES, "failed"), 0)
    for task in scheduler.tables.tasks.values():
        name = "failed" if task.state == DONE and task.status not in (OK, PENDING) else STATE_NAMES[task.state]
        states[name] += 1
    return {
        "node": scheduler.node.hex(),
        "resources": amounts(tuple(sorted(scheduler.pool.total.items()))),
        "available": amounts(scheduler.pool.available()),
        "tasks": states,
        "workers": len(scheduler.tables.workers),
        "jobs": [
            {"job": job.id.hex(), "pid": job.driver.pid if job.driver else 0, "submitted": job.submitted, "namespace": job.namespace}
            for job in scheduler.tables.jobs.values()
        ],
        "statistics": dict(scheduler.statistics()),
        "recovering": scheduler.membership.recovering,
    }


def _nodes(scheduler: LocalScheduler, now: float) -> list[dict[str, Any]]:
    return [{"node": scheduler.node.hex(), "alive": True, "resources": amounts(tuple(sorted(scheduler.pool.total.items())))}]


def _available(scheduler: LocalScheduler, now: float) -> dict[str, float]:
    return {name: max(0.0, amount) for name, amount in amounts(scheduler.pool.available()).items()}


def _resources(scheduler: LocalScheduler, now: float) -> dict[str, float]:
    return amounts(tuple(sorted(scheduler.pool.total.items())))


def _explain(scheduler: LocalScheduler, now: float, subject: bytes) -> tuple[str, str, tuple[tuple[str, str], ...]] | None:
    explanation = explain(scheduler, subject)
    return None if explanation is None else (explanation.state, explanation.reason, explanation.facts)


def _find(scheduler: LocalScheduler, now: float, prefix: str) -> list[str]:
    """Full ids of tasks, objects and workers that start with a hex prefix, as people type them."""
    found = [identifier.hex() for identifier in scheduler.tables.tasks if identifier.hex().startswith(prefix)]
    found += [identifier.hex() for identifier in scheduler.tables.objects if identifier.hex().startswith(prefix)]
    found += [token.hex() for token in scheduler.tables.workers if token.hex().startswith(prefix)]
    return found[:20]


QUESTIONS: dict[str, Any] = {
    "tasks": _tasks,
    "objects": _objects,
    "workers": _workers,
    "status": _status,
    "nodes": _nodes,
    "cluster_resources": _resources,
    "available_resources": _available,
    "explain": _explain,
    "find": _find,
}
"""What can be asked: name -> function of (scheduler, now, arguments)."""


def explain(scheduler: LocalScheduler, subject: bytes) -> Explanation | None:
    """Why the task, object or worker ``subject`` is as it is, in one sentence and a few facts."""
    tables = scheduler.tables
    worker = tables.workers.get(subject)
    if worker is not None:
        return _explain_worker(worker, subject)
    record: AnyObject | None = None
    if len(subject) == OBJECT_BYTES:
        record = tables.find(subject)
    elif len(subject) == TASK_BYTES:
        record = tables.tasks.get(subject)
    if record is None:
        return None
    if record.task is None:
        row = _object_row(record)
        return Explanation(subject, row["state"], f"a value that was put, {row['size']} bytes, {row['where']}", _facts(row))
    return _explain_task(scheduler, record.task, subject)


def _explain_task(scheduler: LocalScheduler, task: TaskRecord, subject: bytes) -> Explanation:
    tables = scheduler.tables
    queue = tables.queue_of(task)
    state = _state_of(task)
    facts: list[tuple[str, str]] = [
        ("task", task.id.hex()),
        ("function", task.name),
        ("attempt", str(task.attempt)),
        ("demand", describe(queue.demand)),
    ]
    if task.rare is not None and task.rare.history:
        facts.append(("earlier attempts", "; ".join(task.rare.history)))
    if task.state == WAITING:
        missing = [identifier for identifier in task.row[3] if _is_pending(tables.find(identifier))]
        names = ", ".join(f"{short(identifier)} ({_maker(tables.find(identifier))})" for identifier in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        return Explanation(subject, state, f"waits for {len(missing)} of its arguments: {names}{more}", tuple(facts))
    if task.state == READY:
        return Explanation(subject, state, _why_queued(scheduler, task), tuple(facts))
    if task.state == ASSIGNED and task.worker is not None:
        facts.append(("worker", str(task.worker.pid)))
        frame = next((frame for frame in task.worker.frames if frame.task_id == task.id), None)
        if frame is not None:
            names = ", ".join(f"{short(identifier)} ({_maker(tables.find(identifier))})" for identifier in frame.wanted[:5])
            return Explanation(subject, state, f"is blocked in get, waiting for {names}", tuple(facts))
        if state == "running":
            return Explanation(subject, state, f"runs on worker {task.worker.pid}", tuple(facts))
        return Explanation(subject, state, f"is next on worker {task.worker.pid}, behind what it runs now", tuple(facts))
    rows = [_object_row(record) for record in task.values()]
    where = ", ".join(f"{row['size']} bytes {row['where']}" for row in rows)
    reason = f"has finished with an error ({where})" if state == "failed" else f"has finished; its values: {where}"
    return Explanation(subject, state, reason, tuple(facts))


def _why_queued(scheduler: LocalScheduler, task: TaskRecord) -> str:
    queue = scheduler.tables.queue_of(task)
    total = describe(tuple(sorted(scheduler.pool.total.items())))
    if not scheduler.pool.fits_total(queue.demand):
        return f"no node has or will ever have {describe(queue.demand)} (this one has {total}); it stays pending until one joins"
    if scheduler.membership.recovering:
        return "the node's daemon restarted and waits for every process to register again"
    if not scheduler.pool.fits(queue.demand):
        return f"waits for {describe(queue.demand)}: free now is {describe(scheduler.pool.available())} of {total}; {_holders(scheduler)}"
    starting = sum(1 for worker in scheduler.tables.workers.values() if WORKER_STATES[worker.state] == "starting")
    return f"its resources are free; waits for a worker ({starting} starting, {len(queue.tasks)} tasks in its queue)"


def _holders(scheduler: LocalScheduler) -> str:
    """Who has the resources; where workers wait for each other, the circle that shows it."""
    busy = [worker for worker in scheduler.tables.workers.values() if worker.state == LEASED]
    parts = []
    for worker in busy[:8]:
        top = _top(worker)
        if top is not None:
            parts.append(f"worker {worker.pid} runs {top.name}")
        elif worker.frames:
            wanted = worker.frames[-1].wanted
            first = _maker(scheduler.tables.find(wanted[0])) if wanted else "nothing"
            parts.append(f"worker {worker.pid} waits for {first}")
    return "held by: " + ("; ".join(parts) if parts else "nobody")


def _explain_worker(worker: WorkerRecord, subject: bytes) -> Explanation:
    top = _top(worker)
    reason = f"runs {top.name}" if top is not None else "waits in get" if worker.frames else WORKER_STATES[worker.state]
    return Explanation(subject, WORKER_STATES[worker.state], reason, (("pid", str(worker.pid)), ("in flight", str(len(worker.inflight)))))


def _is_pending(record: AnyObject | None) -> bool:
    return record is not None and record.status == PENDING


def _maker(record: AnyObject | None) -> str:
    if record is None:
        return "not known any more"
    if record.task is None:
        return "put"
    return f"{record.task.name}, {_state_of(record.task)}"


def _facts(row: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(value)) for name, value in row.items())

