"""What people ask of actors: which there are, and why one is as it is. Calls go past the scheduler: callers know of those."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from zfabric.machines.parts.actors import STATE_NAMES, ActorRecord
from zfabric.machines.parts.resources import describe
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import TASK_BYTES
from zfabric.protocol.machine import Explanation
from zfabric.protocol.messages import ALIVE, DEAD
from zfabric.protocol.names import brief

if TYPE_CHECKING:
    from zfabric.machines.local_scheduler import LocalScheduler


def listing(scheduler: LocalScheduler, now: float, limit: int) -> list[dict[str, Any]]:
    """The actors of the node, the oldest first; dead ones as long as somebody has a handle."""
    return [_row(scheduler, record) for record in islice(scheduler.actors.records.values(), limit)]


def _row(scheduler: LocalScheduler, record: ActorRecord) -> dict[str, Any]:
    worker = record.worker
    return {
        "actor_id": record.id.hex(),
        "class": record.class_name,
        "name": record.name,
        "namespace": record.namespace,
        "state": state_of(record),
        "pid": worker.pid if worker is not None else 0,
        "job": record.id[:4].hex(),
        "restarts": record.restarts,
        "max_restarts": record.task.option("max_restarts", 0),
        **scheduler.logs.describe(record.id),
        "detached": record.detached,
        "handles": _pids(scheduler, _holders(record)),
        "callers": _pids(scheduler, record.watchers),
        "results_awaited": sum(1 for _, actor_id in scheduler.tables.expected.values() if actor_id == record.id),
        "waits_for": [identifier.hex() for identifier in worker.frames[-1].wanted] if worker is not None and worker.frames else [],
        "reason": unpack_failure(record.failure)[1] if record.failure else "",
    }


def state_of(record: ActorRecord) -> str:
    """A word for how an actor is."""
    if record.state == ALIVE and record.gone:
        return "ending"
    if record.state == ALIVE and record.worker is not None and record.worker.frames:
        return "blocked"
    return STATE_NAMES[record.state]


def counts(scheduler: LocalScheduler) -> dict[str, int]:
    """How many actors there are, by state."""
    found: dict[str, int] = {}
    for record in scheduler.actors.records.values():
        state = state_of(record)
        found[state] = found.get(state, 0) + 1
    return found


def _holders(record: ActorRecord) -> set[bytes]:
    holders = record.task.holders
    return set() if holders is None else holders if isinstance(holders, set) else {holders}


def _pids(scheduler: LocalScheduler, incarnations: set[bytes]) -> list[int]:
    processes = scheduler.tables.processes
    return sorted(processes[each].pid for each in incarnations if each in processes)


def named(scheduler: LocalScheduler, name: str) -> list[bytes]:
    """Living actors of that name, in every namespace."""
    return [record.id for (_, known), record in scheduler.actors.named.items() if known == name]


def explain(scheduler: LocalScheduler, record: ActorRecord, maker: Callable[[bytes], str], queued: Callable[[], str]) -> Explanation:
    """Why an actor is as it is. ``maker`` says what makes an object, ``queued`` why its creation waits."""
    row = _row(scheduler, record)
    facts: list[tuple[str, str]] = [("actor", record.id.hex()), ("class", record.class_name)]
    if record.name:
        facts.append(("name", f"{record.name} (namespace {record.namespace!r})"))
    limit = row["max_restarts"]
    facts += [
        ("pid", str(row["pid"] or "-")),
        ("restarts", f"{record.restarts} of {'any number' if limit < 0 else limit}"),
        ("holds", describe(scheduler.tables.queue_of(record.task).demand)),
        ("handles", _listed(row["handles"]) + (" (detached: it needs none)" if record.detached else "")),
        ("called by", _listed(row["callers"])),
    ]
    if row["logged_calls"] is not None:
        taken = f"; last checkpoint after call {row['checkpoint']}" if row["checkpoint"] is not None else "; no checkpoint yet"
        facts.append(("logged", f"{row['logged_calls']} calls{taken}"))
    if row["results_awaited"]:
        facts.append(("results awaited", f"{row['results_awaited']} that its callers have handed on before they came"))
    return Explanation(record.id, row["state"], _reason(record, row, maker, queued), tuple(facts))


def _listed(pids: list[int]) -> str:
    return "processes " + ", ".join(map(str, pids[:8])) + (f" and {len(pids) - 8} more" if len(pids) > 8 else "") if pids else "none"


def _reason(record: ActorRecord, row: dict[str, Any], maker: Callable[[bytes], str], queued: Callable[[], str]) -> str:
    if record.state == DEAD:
        return str(row["reason"])
    if row["state"] == "blocked" and record.worker is not None:
        frame = record.worker.frames[-1]
        wanted = ", ".join(f"{brief(identifier)} ({maker(identifier)})" for identifier in frame.wanted[:5])
        return f"its call {brief(frame.task_id)} is blocked in get, waiting for {wanted}"
    if row["state"] == "ending":
        return f"ends once the calls that were made have run: {record.killed}"
    if record.state == ALIVE:
        return f"lives in process {row['pid']}, and runs what it is called for"
    if row["replaying"]:
        return f"is made again (restart {record.restarts}): {row['replaying']} logged calls have run again"
    again = f"is made again (restart {record.restarts}): " if record.restarts else "is being made: "
    return again + queued()


def call_of(scheduler: LocalScheduler, object_id: bytes) -> str:
    """What makes a result of a call, if others than its caller wait for it; empty if that is not known."""
    _, actor_id = scheduler.tables.expected.get(object_id, (b"", b""))
    record = scheduler.actors.records.get(actor_id)
    return f"call of {record.class_name} {brief(actor_id[:TASK_BYTES])}, {state_of(record)}" if record is not None else ""
