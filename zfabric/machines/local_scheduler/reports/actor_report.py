"""Listings and explanations of actors. Only callers explain calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from zfabric.machines.common.resources import describe
from zfabric.machines.local_scheduler.actor_records import ActorRecord, GuestRecord
from zfabric.machines.local_scheduler.actors.directory import STATE_NAMES, ActorDirectory
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.records import BlockedTask, NodeRecord, TaskRecord, WorkerRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.machine import Diagnosis
from zfabric.protocol.messages import ALIVE, DEAD
from zfabric.protocol.names import JOBS_NAMESPACE, brief


class ActorReports:
    """Reports about actors."""

    def __init__(self, tables: Tables, actors: ActorDirectory, logs: ActorLogs) -> None:
        self.tables = tables
        self.actors = actors
        self.logs = logs

    def listing(self, limit: int) -> list[dict[str, Any]]:
        """Actors of this home, oldest first, dead ones while they have handles; of guests only what their homes do not know."""
        rows = [self._row(record) for record in islice(self._listed(), limit)]
        guests = islice((guest for guest in self.tables.guests.values() if not watches(guest.task)), limit)
        return rows + [{"actor_id": guest.id.hex(), "guest": True, "pid": guest.worker.pid} for guest in guests]

    def _row(self, record: ActorRecord) -> dict[str, Any]:
        worker, wait = record.worker, record.wait()
        elsewhere = {"node": worker.name} if isinstance(worker, NodeRecord) else {}
        return {
            **elsewhere,
            "actor_id": record.id.hex(),
            "class": record.class_name,
            "name": record.name,
            "namespace": record.namespace,
            "state": state_of(record),
            "pid": worker.pid if worker is not None else 0,
            "job": record.id[:4].hex(),
            "restarts": record.restarts,
            "max_restarts": record.task.option("max_restarts", 0),
            **self.logs.describe(record),
            "detached": record.detached,
            "handles": self._pids(_holders(record)),
            "callers": self._pids(record.watchers),
            "results_awaited": self.tables.promises.count(record.id),
            "waits_for": [identifier.hex() for identifier in wait.wanted] if wait is not None else [],
            "reason": unpack_failure(record.failure)[1] if record.failure else "",
        }

    def counts(self) -> dict[str, int]:
        """Number of actors in each state."""
        return dict(Counter(map(state_of, self._listed())))

    def _listed(self) -> Iterator[ActorRecord]:
        return (record for record in self.actors.records.values() if not watches(record.task))

    def _pids(self, incarnations: set[bytes]) -> list[int]:
        processes = self.tables.processes
        return sorted(processes[each].pid for each in incarnations if each in processes)

    def named(self, name: str) -> list[bytes]:
        """Living actors of that name in every namespace, else dead ones."""
        living = [record.id for (space, known), record in self.actors.named.items() if known == name and space != JOBS_NAMESPACE]
        return living or [record.id for record in self._listed() if name and record.name == name]

    def explain(self, record: ActorRecord, wanted_by: Callable[[BlockedTask], str], queued: Callable[[], str]) -> Diagnosis:
        """Why an actor is in its state: ``wanted_by`` describes what a call waits for, ``queued`` why the creation waits."""
        row = self._row(record)
        facts: list[tuple[str, str]] = [("actor", brief(record.id)), ("class", record.class_name), *self.tables.job_fact(record.id)]
        if record.name:
            facts.append(("name", record.name + (f" (namespace {record.namespace})" if record.namespace else "")))
        limit = row["max_restarts"]
        facts += [
            *((("node", row["node"]),) if "node" in row else (("pid", str(row["pid"] or "-")),)),
            ("restarts", f"{record.restarts} of {'any number' if limit < 0 else limit}"),
            ("holds", describe(self.tables.queue_of(record.task).demand)),
            ("handles", _listed(row["handles"]) + (" (detached: it needs none)" if record.detached else "")),
            ("called by", _listed(row["callers"])),
        ]
        if row["logged_calls"] is not None:
            taken = f"; last checkpoint after call {row['checkpoint']}" if row["checkpoint"] is not None else "; no checkpoint yet"
            facts.append(("logged", f"{row['logged_calls']} calls{taken}"))
        elif row["checkpoint_every"] is not None:
            facts += _checkpoints(row)
        if row["results_awaited"]:
            facts.append(("results awaited", f"{row['results_awaited']} that its callers have handed on before they came"))
        return Diagnosis(record.id, row["state"], self._reason(record, row, wanted_by, queued), tuple(facts))

    def _reason(self, record: ActorRecord, row: dict[str, Any], wanted_by: Callable[[BlockedTask], str], queued: Callable[[], str]) -> str:
        if record.state == DEAD:
            return str(row["reason"])
        wait = record.wait()
        if row["state"] == "blocked" and wait is not None:
            call = f"{wait.name} ({brief(wait.task_id)})" if wait.name else brief(wait.task_id)
            return f"its call {call} {wanted_by(wait)}"
        log = self.logs.logs.get(record.id)
        if log is not None and log.trouble:
            return f"lives in process {row['pid']}; the results of its calls wait, since their log cannot be written: {log.trouble}"
        if row["state"] == "ending":
            return f"ends once the calls that were made have run: {record.killed}"
        if record.state == ALIVE and "node" in row:
            return f"lives on node {row['node']}, and runs what it is called for"
        if record.state == ALIVE:
            return f"lives in process {row['pid']}, and " + self._shared_process(record)
        if wait is not None:
            return f"is being made: its __init__ {wanted_by(wait)}"
        if row["replaying"]:
            return f"is made again (restart {record.restarts}): {row['replaying']} logged calls have run again"
        again = f"is made again (restart {record.restarts}): " if record.restarts else "is being made: "
        return again + queued()

    def _shared_process(self, record: ActorRecord) -> str:
        running = record.worker.running_call if record.worker is not None else ()
        if not running:
            return "runs what it is called for"
        actor_id, call_id, *_ = running
        if actor_id == record.id:
            return f"runs its call {brief(call_id)}"
        other = self.actors.records.get(actor_id)
        name = other.class_name if other is not None else "another actor"
        return f"waits, if it is called: {name} {brief(actor_id)}, which shares its process, runs its call {brief(call_id)}"

    def call_of(self, actor_id: bytes) -> str:
        """An actor's call, described, or empty."""
        record = self.actors.records.get(actor_id)
        return f"call of {record.class_name} {brief(actor_id)}, {state_of(record)}" if record is not None else ""


def state_of(record: ActorRecord) -> str:
    """An actor's state, for users."""
    if record.state == ALIVE and record.unreferenced:
        return "ending"
    if record.state == ALIVE and record.wait() is not None:
        return "blocked"
    return STATE_NAMES[record.state]


def _holders(record: ActorRecord) -> set[bytes]:
    holders = record.task.holders
    return set() if holders is None else holders if isinstance(holders, set) else {holders}


def watches(task: TaskRecord) -> bool:
    """Whether a task makes the actor that watches a job of ``zfabric submit --detach``."""
    return task.function.actor is not None and task.option("namespace") == JOBS_NAMESPACE


def watches_job(worker: WorkerRecord, tables: Tables) -> bool:
    """Whether a worker has, or makes, such an actor."""
    tasks = (*map(tables.tasks.get, worker.actors), *worker.inflight.values())
    return any(task is not None and watches(task) for task in tasks)


def title(record: ActorRecord | GuestRecord) -> str:
    """An actor's class and name."""
    return f"{record.class_name}, {record.name}" if record.name else record.class_name


def _checkpoints(row: dict[str, Any]) -> list[tuple[str, str]]:
    taken = f"the last after {row['checkpoint']}" if row["checkpoint"] is not None else "none yet"
    text = f"every {row['checkpoint_every']} calls, {taken}; {row['since_checkpoint'] or 0} ended since, which a restart would lose"
    if row["checkpoint_waits_for"]:
        text += f"; one is due, and waits for {row['checkpoint_waits_for']} that run"
    found = [("checkpoints", text)]
    if row["restarts"]:
        known = "" if row["lost_known"] else ", as far as the node's daemon knows, which was restarted, too"
        found.append(("lost", f"what {row['lost_calls']} calls did that had ended after a checkpoint when the process died{known}"))
    return found


def _listed(pids: list[int]) -> str:
    if not pids:
        return "none"
    more = f" and {len(pids) - 8} more" if len(pids) > 8 else ""
    return ("process " if len(pids) == 1 else "processes ") + ", ".join(map(str, pids[:8])) + more


def blocked_on(names: list[str]) -> str:
    """The sentence for a wait for these; without any, for a stream's reader."""
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"is blocked in get, waiting for {listed}" if names else "waits for its stream to be read: it is as far ahead as it may be"
