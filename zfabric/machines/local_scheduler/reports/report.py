"""What people ask a local scheduler: listings, status, timelines, and why something is as it is.

An answer is plain data. What only the object store knows (where a value is, how full it is) is asked of it first, and a page of the
control store's rows is answered when that has read them; everything else is answered in the turn in which it was asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from zfabric.machines.common.resources import describe
from zfabric.machines.common.tables import TABLES
from zfabric.machines.local_scheduler.records import (
    ASSIGNED,
    DONE,
    IDLE,
    LEASED,
    PENDING,
    READY,
    STATE_NAMES,
    WAITING,
    WORKER_STATES,
    AnyObject,
    BlockedTask,
    Stored,
    TaskRecord,
    WorkerRecord,
    attempt_text,
)
from zfabric.machines.local_scheduler.reports import actor_report
from zfabric.protocol import messages as m
from zfabric.protocol.failures import summary_of
from zfabric.protocol.ids import CLIENT, CONTROL, FUNCTION_BYTES, OBJECT_BYTES, TASK_BYTES, Address, control_of, tries_of
from zfabric.protocol.machine import Diagnosis
from zfabric.protocol.messages import ERROR, OK
from zfabric.protocol.messages.queries import LIST_LIMIT, TASK_STATES
from zfabric.protocol.names import brief, matcher
from zfabric.protocol.options import RESOURCE_UNIT, Demand
from zfabric.protocol.trace import marked, pack_event, pack_times, rename, unmarked

if TYPE_CHECKING:
    from zfabric.machines.local_scheduler.machine import LocalScheduler

COUNT_MAX = 50_000
"""Tasks that ``status`` counts one by one: about 10 ms."""
PAGE_MAX = 1000
"""Most rows of the control store in one answer."""
ERROR_CHARACTERS = 200
"""What ``explain`` says of an error's text."""
FOUND_MAX = 20
"""Most things named by what a person typed."""


def event_key(now: float, number: int) -> bytes:
    """Events sort by the time at which the scheduler heard of them."""
    return int(now * 1e6).to_bytes(8, "big") + number.to_bytes(4, "big", signed=False)


def trace_event(node: bytes, worker: WorkerRecord, message: m.Completed, renamed: dict[int, str]) -> bytes:
    """What a worker's batch adds to the event table; the names are kept with it, since functions go when their job ends.

    ``renamed`` has the names of those rows that are not called as their function is, or that did not succeed.
    """
    functions = worker.job.functions if worker.job is not None else {}
    names = tuple((identifier, functions[identifier].name) for identifier, *_ in message.durations if identifier in functions)
    trace = message.task_ids + message.times
    if renamed:
        for place, name in renamed.items():
            if not unmarked(name)[0]:  # Its scheduler did not know it yet.
                function = functions.get(message.times[place * FUNCTION_BYTES : (place + 1) * FUNCTION_BYTES])
                renamed[place] = (function.name if function is not None else "?") + name
        trace, more = rename(trace, renamed)
        names += more
    return pack_event(node, worker.pid, names, trace)


def death_events(scheduler: LocalScheduler, now: float, worker: WorkerRecord, died: m.ProcessDied) -> Iterator[bytes]:
    """What the death of a worker adds to the event table: the attempt that it cut off, and actors that nobody had killed."""
    task = scheduler.outcomes.suspect(worker, died.executing)
    if task is not None:
        since = _running_since(worker)
        name = marked(task.name, "cancelled" if task.rare is not None and task.rare.stopped else "crashed")
        trace = task.id + pack_times([task.function.id], [since, max(0.0, now - since)])
        yield pack_event(scheduler.node, worker.pid, ((task.function.id, name),), trace)
    for actor in map(scheduler.actors.records.get, worker.actors):
        if actor is not None and not actor.killed and (died.signal or died.exit_code):
            function = actor.task.function.id
            trace = actor.id + pack_times([function], [now, 0.0])
            yield pack_event(scheduler.node, worker.pid, ((function, marked(actor_report.title(actor), "died")),), trace, "death")


def amounts(demand: Demand) -> dict[str, float]:
    """A demand in units rather than in 1/10,000."""
    return {name: amount / RESOURCE_UNIT for name, amount in demand}


def answer(scheduler: LocalScheduler, now: float, source: Address, message: m.Query) -> None:
    """Answer a question, at once or when others have answered what it takes."""
    token, what, arguments = message.token, message.what, message.arguments
    question = QUESTIONS.get(what)
    payload, error = None, ""
    try:
        if what == "rows":
            _ask_rows(scheduler, source, token, *arguments)
            return
        if what == "actor log":
            scheduler.logs.read(source, token, *arguments)
            return
        if what == "stacks":
            _ask_stacks(scheduler, source, token, *arguments)
            return
        if question is None:
            raise ValueError(f"there is no such question; there are {', '.join(sorted((*QUESTIONS, 'rows', 'stacks')))}")
        payload = question(scheduler, now, *arguments)
        if what in _FROM_STORE and scheduler.tables.store_address is not None:
            wanted = _stored_in(payload) if what == "objects" else ()
            scheduler.requests.ask_store(_FROM_STORE[what], wanted, partial(_store_answered, scheduler), (source, token, what, payload))
            return
    except (TypeError, ValueError) as problem:
        payload, error = None, f"{what}: {problem}"
    scheduler.tables.send(source, m.Answer(token, payload, error))


def _ask_stacks(scheduler: LocalScheduler, source: Address, token: int, pid: int) -> None:
    """Pass the question on to the process: a worker has a thread that listens while user code runs, a driver looks once a second."""
    process = scheduler.tables.by_pid.get(pid)
    if process is None:
        raise ValueError(f"no process of this cluster has the pid {pid}")
    to = CONTROL + control_of(process.token) if isinstance(process, WorkerRecord) else CLIENT + process.incarnation
    scheduler.tables.send(to, m.Inspect(source, token))


def _processes(scheduler: LocalScheduler, now: float, subject: bytes) -> list[int]:
    """The pids of the processes that a worker, a task, a value's task or an actor is; of all workers and drivers without a subject."""
    tables = scheduler.tables
    if not subject:
        drivers = [job.driver.pid for job in tables.jobs.values() if job.driver is not None]
        return [*drivers, *(worker.pid for worker in tables.workers.values() if worker.pid)]
    actor = scheduler.actors.records.get(subject[:TASK_BYTES])
    task = tables.tasks.get(subject[:TASK_BYTES])
    worker = tables.workers.get(subject) or (actor.worker if actor is not None else task.worker if task is not None else None)
    return [worker.pid] if worker is not None and worker.pid else []


# -- what the object store knows --

_FROM_STORE = {"status": "statistics", "objects": "entries"}
"""Answers to which the object store adds, and what it is asked for them."""


def _stored_in(rows: list[dict[str, Any]]) -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(row["object_id"]) for row in rows if row["where"] == "store")


def _store_answered(scheduler: LocalScheduler, now: float, about: tuple[Address, int, str, Any], answer: m.Answer) -> None:
    """The object store has said its part of an answer."""
    source, token, what, payload = about
    known: Any = answer.payload
    if what == "status":
        payload["store"] = known
    else:
        for row in payload:
            entry = known.get(bytes.fromhex(row["object_id"]))
            if entry is not None:
                state, row["in_use_by"], row["on_disk"] = entry
                row["where"] = "disk" if state in ("spilled", "waiting", "restoring", "checking") else "memory"
    scheduler.tables.send(source, m.Answer(token, payload, ""))


# -- rows of the control store --


def _ask_rows(scheduler: LocalScheduler, source: Address, token: int, table: str, after: bytes = b"", limit: int = PAGE_MAX) -> None:
    """A page ``(rows, whether there are more)`` of a table. The first waits for the commit of all that was written before."""
    if table not in TABLES:
        raise ValueError(f"there is no table {table!r}; there are {', '.join(TABLES)}")
    if not (isinstance(after, bytes) and isinstance(limit, int) and limit > 0):
        raise ValueError(f"a page is asked for by the key it comes after and a number of rows, not {after!r} and {limit!r}")
    about = (source, token, table, after, min(limit, PAGE_MAX))
    if after:
        _read_rows(scheduler, 0.0, about)
    else:
        scheduler.requests.ask(m.Write, (), (), then=partial(_read_rows, scheduler), about=about)


def _read_rows(scheduler: LocalScheduler, now: float, about: tuple[Address, int, str, bytes, int], answer: m.Written | None = None) -> None:
    """What was written before is committed, or cannot be: read."""
    _, _, table, after, limit = about
    scheduler.requests.ask(m.Scan, table, b"", after, limit, then=partial(_rows_found, scheduler), about=about)


def _rows_found(scheduler: LocalScheduler, now: float, about: tuple[Address, int, str, bytes, int], found: m.Found) -> None:
    """The control store has read a page."""
    scheduler.tables.send(about[0], m.Answer(about[1], (found.rows, found.more), ""))


# -- listings --


def _tasks(scheduler: LocalScheduler, now: float, limit: int = LIST_LIMIT, states: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    unknown = [state for state in states if state not in TASK_STATES]
    if unknown:
        raise ValueError(f"there is no state {unknown[0]!r}; there are {', '.join(TASK_STATES)}")
    wanted = set(states or TASK_STATES)
    chosen = (task for task in _by_progress(scheduler, wanted) if _state_of(scheduler, task) in wanted)
    return [_task_row(scheduler, task, now) for task in islice(chosen, min(limit, LIST_LIMIT))]


def _by_progress(scheduler: LocalScheduler, wanted: set[str]) -> Iterator[TaskRecord]:
    """Tasks, those that run first, without looking at all of them where those wanted can be found otherwise."""
    tables = scheduler.tables
    inflight = chain.from_iterable(worker.inflight.values() for worker in tables.workers.values())
    running = (task for task in inflight if task.state != DONE)
    yield from sorted(running, key=lambda task: TASK_STATES.index(_state_of(scheduler, task)))
    for queue in tables.queues.values():
        yield from (task for task in queue.tasks if task.state == READY)
    if "waiting" in wanted:
        yield from (task for task in tables.tasks.values() if task.state == WAITING)
    if not wanted.isdisjoint(("finished", "failed")):
        yield from (task for task in tables.tasks.values() if task.state == DONE)


def _task_row(scheduler: LocalScheduler, task: TaskRecord, now: float) -> dict[str, Any]:
    return {
        "task_id": task.id.hex(),
        "name": task.name,
        "state": _state_of(scheduler, task),
        "attempt": tries_of(task.attempt),
        "job": task.id[:4].hex(),
        "pid": task.worker.pid if task.worker is not None else 0,
        "seconds": _elapsed(scheduler, task, now),
        "demand": amounts(scheduler.tables.queue_of(task).demand),
        "waits_for": task.rare.unresolved if task.state == WAITING and task.rare is not None else 0,
    }


def _elapsed(scheduler: LocalScheduler, task: TaskRecord, now: float) -> float | None:
    """Seconds for which a task has been running, or blocked, or, if it has not begun, since it was submitted. None where that is not known.

    Nothing is written down for each task: a block of lineage knows when its rows came, a worker when the task before has ended.
    """
    state, worker = _state_of(scheduler, task), task.worker
    since: float | None = None
    if state == "running" and worker is not None:
        since = _running_since(worker)
    elif state == "blocked" and worker is not None:
        since = next((frame.at for frame in worker.frames if frame.task_id == task.id), None)
    elif task.state != DONE and task.block is not None:
        since = task.block.since
    return None if since is None else max(0.0, now - since)


def _running_since(worker: WorkerRecord) -> float:
    """When what a worker runs now has begun: it ended something then, or what is below began to wait."""
    return max([worker.last_progress, *(frame.at for frame in worker.frames if frame.at is not None)])


def span(seconds: float) -> str:
    """A time span as people read it."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _state_of(scheduler: LocalScheduler, task: TaskRecord) -> str:
    if task.state == ASSIGNED:
        worker = task.worker
        waiting = worker is not None and any(frame.task_id == task.id for frame in worker.frames)
        running = worker is not None and _top(worker) is task
        return "blocked" if waiting else "running" if running else "assigned"
    if task.state == READY and not scheduler.pool.fits_total(scheduler.tables.queue_of(task).demand):
        return "infeasible"
    return "failed" if task.state == DONE and _failed(task) else STATE_NAMES[task.state]


def _failed(task: TaskRecord) -> bool:
    return any(record.status not in (OK, PENDING) for record in task.values())


def name_of_running(scheduler: LocalScheduler, worker: WorkerRecord, executing: bytes) -> str:
    """The name of the task or actor that a worker runs, as in front of what it prints, or nothing. ``executing`` is the task's id."""
    task = worker.inflight.get(executing)
    if task is not None:
        return task.name.rpartition("<locals>.")[2]
    actor = next(map(scheduler.actors.records.get, worker.actors), None) if executing and len(worker.actors) == 1 else None
    return actor_report.title(actor).rpartition("<locals>.")[2] if actor is not None else ""


def _objects(scheduler: LocalScheduler, now: float, limit: int = LIST_LIMIT) -> list[dict[str, Any]]:
    tables = scheduler.tables
    records = chain[AnyObject](tables.objects.values(), (task for task in tables.tasks.values() if task.outputs is None))
    return [_object_row(record) for record in islice(records, min(limit, LIST_LIMIT))]


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
        "in_use_by": 0,
        "on_disk": False,
    }


def _workers(scheduler: LocalScheduler, now: float) -> list[dict[str, Any]]:
    rows = []
    for worker in scheduler.tables.workers.values():
        top = _top(worker)
        since = worker.idle_since if worker.state == IDLE else _running_since(worker) if worker.state == LEASED else worker.started_at
        rows.append(
            {
                "pid": worker.pid,
                "state": "blocked" if worker.frames and top is None else WORKER_STATES[worker.state],
                "seconds": max(0.0, now - since),
                "job": worker.job.id.hex() if worker.job is not None else "",
                "task": top.name if top is not None else "",
                "task_id": top.id.hex() if top is not None else "",
                "queued": max(0, len(worker.inflight) - len(worker.frames) - (1 if top is not None else 0)),
                "depth": len(worker.frames),
                "demand": amounts(tuple(pair for pair in worker.demand if not (worker.lent and pair[0] == "CPU"))),
                "lent": amounts(tuple(pair for pair in worker.demand if worker.lent and pair[0] == "CPU")),
                "gpus": list(worker.gpus),
                "token": worker.token.hex(),
            }
        )
    return rows


def _top(worker: WorkerRecord) -> TaskRecord | None:
    waiting = {frame.task_id for frame in worker.frames}
    return next((task for identifier, task in worker.inflight.items() if identifier not in waiting), None)


def _status(scheduler: LocalScheduler, now: float) -> dict[str, Any]:
    states = dict.fromkeys(TASK_STATES, 0)
    # A question must not hold up a million tasks: past a slice of them, the states that have no table of their own are estimated.
    seen = 0
    for task in islice(scheduler.tables.tasks.values(), COUNT_MAX):
        states["failed" if task.state == DONE and _failed(task) else STATE_NAMES[task.state]] += 1
        seen += 1
    if seen == COUNT_MAX:
        share = len(scheduler.tables.tasks) / seen
        states = {name: round(count * share) for name, count in states.items()}
    for worker in scheduler.tables.workers.values():
        blocked = sum(frame.task_id in worker.inflight for frame in worker.frames)  # Calls of actors wait, too, and are no tasks.
        running = _top(worker) is not None
        states["blocked"] += blocked
        states["running"] += running
        states["assigned"] -= blocked + running
    for queue in scheduler.tables.queues.values():
        if not scheduler.pool.fits_total(queue.demand):
            count = sum(task.state == READY for task in queue.tasks)
            states["infeasible"] += count
            states["ready"] -= count
    return {
        "node": scheduler.node.hex(),
        "resources": amounts(tuple(sorted(scheduler.pool.total.items()))),
        "available": _available(scheduler, now),
        "tasks": states,
        "estimated": seen == COUNT_MAX,
        "workers": len(scheduler.tables.workers),
        "actors": actor_report.counts(scheduler),
        "jobs": [
            {
                "job": job.id.hex(),
                "number": job.number,
                "pid": job.driver.pid if job.driver else 0,
                "submitted": job.submitted,
                "namespace": job.namespace,
                "seconds": max(0.0, now - job.started),
                "ended": job.ended,
            }
            for job in scheduler.tables.jobs.values()
        ],
        "statistics": dict(scheduler.statistics()),
        "store": {},
        "recovering": scheduler.membership.recovering,
    }


def _nodes(scheduler: LocalScheduler, now: float) -> list[dict[str, Any]]:
    return [{"node": scheduler.node.hex(), "alive": True, "resources": amounts(tuple(sorted(scheduler.pool.total.items())))}]


def _available(scheduler: LocalScheduler, now: float) -> dict[str, float]:
    return {name: max(0.0, amount) for name, amount in amounts(scheduler.pool.available()).items()}


def _resources(scheduler: LocalScheduler, now: float) -> dict[str, float]:
    return amounts(tuple(sorted(scheduler.pool.total.items())))


def _explain(scheduler: LocalScheduler, now: float, subject: bytes) -> tuple[str, str, tuple[tuple[str, str], ...]] | None:
    explanation = explain(scheduler, subject, now)
    return None if explanation is None else (explanation.state, explanation.reason, explanation.facts)


def _find(scheduler: LocalScheduler, now: float, text: str) -> list[dict[str, str]]:
    """What a person can mean by ``text``: an id in hex or its beginning, the short form of one, an actor's name, a worker's pid."""
    tables = scheduler.tables
    found = []
    matches = matcher(text)
    if matches is not None:
        exact = bytes.fromhex(text) if len(text) in (2 * TASK_BYTES, 2 * OBJECT_BYTES) and text.isalnum() else b""
        if exact in tables.tasks or tables.find(exact) is not None:
            return [_named(scheduler, exact)]
        found = list(islice(filter(matches, chain(tables.tasks, tables.objects, tables.workers)), FOUND_MAX))
        if not found and text.endswith("-0"):  # the only value of a task has the task's record
            found = list(islice(filter(matcher(text[:-2]) or matches, tables.tasks), FOUND_MAX))
    if not found:
        found = actor_report.named(scheduler, text)
    if not found and text.isdecimal():
        found = [token for token, worker in tables.workers.items() if worker.pid == int(text)]
    return [_named(scheduler, identifier) for identifier in found]


def _named(scheduler: LocalScheduler, identifier: bytes) -> dict[str, str]:
    worker = scheduler.tables.workers.get(identifier)
    if worker is not None:
        return {"id": identifier.hex(), "kind": "worker", "name": f"pid {worker.pid}"}
    actor = scheduler.actors.records.get(identifier)
    if actor is not None:
        return {"id": identifier.hex(), "kind": "actor", "name": actor_report.title(actor)}
    record = scheduler.tables.tasks.get(identifier) if len(identifier) == TASK_BYTES else scheduler.tables.find(identifier)
    name = record.task.name if record is not None and record.task is not None else "put"
    return {"id": identifier.hex(), "kind": "task" if len(identifier) == TASK_BYTES else "object", "name": name}


def _actor(scheduler: LocalScheduler, now: float, name: str, namespace: str) -> m.Row | None:
    """What a handle to the living actor of that name is made of."""
    record = scheduler.actors.named.get((namespace, name))
    return None if record is None else (record.id, record.task.function.actor)


def _actor_of(scheduler: LocalScheduler, now: float, actor_id: bytes) -> m.Row | None:
    """The name of the actor with this id, and what a handle is made of."""
    record = scheduler.actors.records.get(actor_id)
    return None if record is None else (record.name, record.task.function.actor)


def _namespace(scheduler: LocalScheduler, now: float, job: bytes) -> str:
    """The namespace of a job: its driver has said it, and its tasks do not know it."""
    known = scheduler.tables.jobs.get(job)
    return "" if known is None else known.namespace


QUESTIONS: dict[str, Any] = {
    "tasks": _tasks,
    "objects": _objects,
    "workers": _workers,
    "actors": lambda scheduler, now, limit=LIST_LIMIT: actor_report.listing(scheduler, now, min(limit, LIST_LIMIT)),
    "status": _status,
    "nodes": _nodes,
    "cluster_resources": _resources,
    "available_resources": _available,
    "explain": _explain,
    "find": _find,
    "actor": _actor,
    "actor of": _actor_of,
    "named actors": lambda scheduler, now: sorted(scheduler.actors.named),
    "namespace": _namespace,
    "processes": _processes,
    "nothing": lambda scheduler, now: None,
    "output": lambda scheduler, now: None,  # The shell shows what workers have written, ahead of the answer.
}
"""What can be asked, besides "rows" (a page of a table of the control store): name -> function of (scheduler, now, arguments)."""


def explain(scheduler: LocalScheduler, subject: bytes, now: float | None = None) -> Diagnosis | None:
    """Why the task, object, actor or worker ``subject`` is as it is, in one sentence and a few facts; for how long, if ``now`` is known."""
    tables = scheduler.tables
    worker = tables.workers.get(subject)
    if worker is not None:
        return _explain_worker(worker, subject)
    actor = scheduler.actors.records.get(subject[:TASK_BYTES])
    if actor is not None:
        task = actor.task
        return actor_report.explain(
            scheduler, actor, lambda frame: _wanted_by(scheduler, frame), lambda: _explain_task(scheduler, task, subject).reason
        )
    record: AnyObject | None = None
    if len(subject) == OBJECT_BYTES:
        record = tables.find(subject)
    elif len(subject) == TASK_BYTES:
        record = tables.tasks.get(subject)
    if record is None:
        return None
    if record.task is None:
        row = _object_row(record)
        call = actor_report.call_of(scheduler, scheduler.deadlocks.callee(None, subject))
        if call:
            return Diagnosis(subject, row["state"], f"the result of a {call}", _facts(row))
        return Diagnosis(subject, row["state"], f"a value that was put, {row['size']} bytes, {row['where']}", _facts(row))
    return _explain_task(scheduler, record.task, subject, now)


def _explain_task(scheduler: LocalScheduler, task: TaskRecord, subject: bytes, now: float | None = None) -> Diagnosis:
    tables = scheduler.tables
    queue = tables.queue_of(task)
    state = _state_of(scheduler, task)
    facts: list[tuple[str, str]] = [
        ("task", brief(task.id)),
        ("function", task.name),
        ("attempt", attempt_text(task, scheduler.config.max_retries)),
        ("demand", describe(queue.demand)),
    ]
    elapsed = None if now is None else _elapsed(scheduler, task, now)
    if elapsed is not None:
        begun = state in ("running", "blocked")
        facts.append((state, f"for {span(elapsed)}") if begun else ("submitted", f"{span(elapsed)} ago"))
    if task.rare is not None and task.rare.history:
        facts.append(("earlier attempts", "; ".join(task.rare.history)))
    if task.state == WAITING:
        missing = [identifier for identifier in task.row[3] if _is_pending(tables.find(identifier))]
        names = ", ".join(f"{brief(identifier)} ({_maker(scheduler, identifier)})" for identifier in missing[:5])
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        return Diagnosis(subject, state, f"waits for {len(missing)} of its arguments: {names}{more}", tuple(facts))
    if task.state == READY:
        return Diagnosis(subject, state, _why_queued(scheduler, task), tuple(facts))
    if task.rare is not None and task.rare.goes_on is not None:
        pid = task.rare.goes_on.pid
        facts.append(("goes on in worker", str(pid)))
        reason = f"has finished with an error, and its code goes on in worker {pid}: {_error_of(task)}"
        return Diagnosis(subject, state, reason, tuple(facts))
    if task.state == ASSIGNED and task.worker is not None:
        facts.append(("worker", str(task.worker.pid)))
        frame = next((frame for frame in task.worker.frames if frame.task_id == task.id), None)
        if frame is not None:
            return Diagnosis(subject, state, _wanted_by(scheduler, frame), tuple(facts))
        if state == "running":
            return Diagnosis(subject, state, f"runs on worker {task.worker.pid}", tuple(facts))
        return Diagnosis(subject, state, f"is next on worker {task.worker.pid}, behind what it runs now", tuple(facts))
    rows = [_object_row(record) for record in task.values()]
    where = ", ".join(f"{row['size']} bytes {row['where']}" for row in rows)
    reason = f"has finished with an error: {_error_of(task)}" if state == "failed" else f"has finished; its values: {where}"
    return Diagnosis(subject, state, reason, tuple(facts))


def _error_of(task: TaskRecord) -> str:
    """The error of a failed task: its kind, and the first line of its text."""
    record = next(record for record in task.values() if record.status not in (OK, PENDING))
    if type(record.value) is not bytes:
        return "it is in the object store"
    kind, text = summary_of(record.value, raised=record.status == ERROR)
    line = "".join(each if each.isprintable() else " " for each in text.strip().split("\n")[0][:ERROR_CHARACTERS])
    return f"{kind}: {line}" if line else kind


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
    parts = []
    for worker in scheduler.tables.workers.values():
        actor = next(map(scheduler.actors.records.get, worker.actors), None)
        if actor is not None and worker.demand:
            parts.append(f"actor {actor_report.title(actor)} has {describe(worker.demand)} for life")
        elif worker.state == LEASED:
            top = _top(worker)
            if top is not None:
                parts.append(f"worker {worker.pid} runs {top.name}")
            elif worker.frames:
                wanted = worker.frames[-1].wanted
                first = _maker(scheduler, wanted[0], worker.frames[-1]) if wanted else "nothing"
                parts.append(f"worker {worker.pid} waits for {first}")
    more = f"; and {len(parts) - 8} more" if len(parts) > 8 else ""
    return "held by: " + ("; ".join(parts[:8]) + more if parts else "nobody")


def _explain_worker(worker: WorkerRecord, subject: bytes) -> Diagnosis:
    top = _top(worker)
    reason = f"runs {top.name}" if top is not None else "waits in get" if worker.frames else WORKER_STATES[worker.state]
    return Diagnosis(subject, WORKER_STATES[worker.state], reason, (("pid", str(worker.pid)), ("in flight", str(len(worker.inflight)))))


def _is_pending(record: AnyObject | None) -> bool:
    return record is not None and record.status == PENDING


def _wanted_by(scheduler: LocalScheduler, frame: BlockedTask) -> str:
    """What a task or a call that waits waits for; if that is in the end itself, how."""
    names = [f"{brief(identifier)} ({_maker(scheduler, identifier, frame)})" for identifier in frame.wanted]
    circle = scheduler.deadlocks.circle(frame)
    return actor_report.blocked_on(names) + (f"; it waits for itself: {circle}" if circle else "")


def _maker(scheduler: LocalScheduler, object_id: bytes, frame: BlockedTask | None = None) -> str:
    call = actor_report.call_of(scheduler, scheduler.deadlocks.callee(frame, object_id))
    if call:
        return call
    record = scheduler.tables.find(object_id)
    if record is None:
        return "not known any more"
    if record.task is None:
        return "put"
    return f"{record.task.name}, {_state_of(scheduler, record.task)}"


def _facts(row: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """What people are told of an object's row."""
    rest = tuple((name, str(value)) for name, value in row.items() if name != "object_id")
    return (("object", brief(bytes.fromhex(row["object_id"]))), *rest)
