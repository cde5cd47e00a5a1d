"""What must be true of actors and their calls, whatever happens to callers, actors and daemon.

- An actor lives in one process at a time. While it does, no other process runs its methods or creates it.
- An actor runs one call at a time, whoever shares its process.
- A call begins once in each life of its actor, and in a later life only if it may be repeated (``max_task_retries``).
- The calls of one caller begin in the order in which they were made, unless their actor runs several at once.
- Once any process has received the outcome of a logged call, the call's effect is in the actor's state: once, and always in one place.
- Rows of one life's log are not committed after the next life has read the log.
- A restart of an actor with checkpoints and no log restores a prefix of the calls that had ended, each once. The scheduler counts the lost
  ones. A call whose outcome is reported as unknown is not in the restored state.
- A call has one outcome for all readers. If it is "not run", the call never began, and never will.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from tests.sim.logged import READONLY
from tests.sim.node import Overview
from tests.sim.programs import LOST
from tests.sim.workers import WorkerProcess
from zfabric.machines.common.tables import LOG, unpack_row
from zfabric.machines.worker.queue import Invocation
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import INCARNATION_BYTES, PREFIX_BYTES, TASK_BYTES, short
from zfabric.protocol.messages import ALIVE, FAILED

REASONS = ("job has ended", "register", "memory", "class of its actor")
"""Words of the reasons for which the daemon may kill a process that actors share."""


class Made(NamedTuple):
    """A call as its caller made it. ``number`` counts the caller's calls to the actor; ``retries`` limits repeats."""

    caller: bytes
    actor_id: bytes
    number: int
    retries: int
    unordered: bool


class CallInvariants:
    """Checks the calls of one world."""

    def __init__(self, world: Overview) -> None:
        self.world = world
        self._made: dict[tuple[bytes, bytes], Made] = {}
        """By caller and call id."""
        self._named: set[bytes] = set()
        self._numbers: dict[tuple[bytes, bytes], int] = {}
        self._begun: dict[tuple[bytes, bytes], list[bytes]] = {}
        """The lives in which a call began, as incarnation and attempt."""
        self._newest: dict[tuple[bytes, bytes, bytes], int] = {}
        """The number of the newest begun call, by caller, actor and life (empty: any life)."""
        self._outcomes: dict[bytes, tuple[int, str]] = {}
        self._not_run: set[bytes] = set()
        self._places: dict[bytes, tuple[bytes, int]] = {}
        """(actor, position in its state) of each logged call's effect, in the actor's newest life."""
        self._received: dict[bytes, dict[bytes, int]] = {}
        """The positions of effects when a process received the outcome, by actor and call."""
        self._states: dict[bytes, list[bytes]] = {}
        """The ended calls in the newest life of each actor with checkpoints and no log, in order."""
        self.lost: Counter[bytes] = Counter()
        """How many calls of ``_states`` restarts have lost, by actor."""
        self._over: set[bytes] = set()
        """Actors that were ended for good. A later actor with such an id is another one."""
        self._rows: dict[tuple[bytes, bytes], int] = {}
        """The attempt of an actor that sent log rows, by key and rows."""
        self._restored: dict[bytes, int] = {}
        """The newest attempt that has read the log, by actor."""
        self.values: dict[bytes, list[tuple[Any, int]]] = {}
        """(value, its size in the arena or 0 if inline) of each value that a call returned, by call."""

    def made(self, caller: bytes, actor_id: bytes, call_id: bytes, retries: int, unordered: bool) -> None:
        """Record a process's call of an actor."""
        number = self._numbers[caller, actor_id] = self._numbers.get((caller, actor_id), 0) + 1
        if call_id in self._named:
            self.world.fail(f"call {short(call_id)} is made by two attempts")
        self._named.add(call_id)
        self._made[caller, call_id] = Made(caller, actor_id, number, retries, unordered)

    def alone(self, worker: WorkerProcess, actor_id: bytes) -> None:
        """Fail if another process is the actor that ``worker`` runs or is about to create: on any node whose processes act.

        A node that was stopped until it was declared dead sends nothing before its daemon's first turn, and its later messages are refused.
        """
        if self.world.invariants.is_behind(worker.node):
            return
        for other in self.world.workers.values():
            acts = other.alive and other.node.acts and not self.world.invariants.is_behind(other.node)
            if other is not worker and acts and actor_id in other.worker.mailbox.actors:
                self.world.fail(f"{worker.name} acts as actor {short(actor_id)}, and {other.name} is that actor")

    def killing(self, pid: int, reason: str) -> None:
        """Fail if the daemon kills a process that several actors share because one of them ends."""
        several = [each for each in self.world.workers.values() if each.pid == pid and each.worker.baton is not None]
        for worker in several:
            if len(worker.worker.mailbox.actors) > 1 and not any(word in reason for word in REASONS):
                self.world.fail(f"{worker.name} is killed although actors share it: {reason}")

    def begun(self, worker: WorkerProcess, item: Invocation) -> None:
        """Check a call that begins."""
        self.alone(worker, item.actor_id)
        call_id, here = item.row[0], worker.incarnation + item.attempt.to_bytes(8, "big")  # One process may host two lives.
        running = sum(1 for frame in worker.stack if type(frame.item) is type(item) and frame.item.actor_id == item.actor_id)
        if running >= max(1, worker.beside.size):
            self.world.fail(f"{worker.name} begins call {short(call_id)} while another one of its actor runs or waits")
        caller = item.caller[:INCARNATION_BYTES]  # Behind it is the node of a caller on another one.
        made = self._made[caller, call_id]
        before = self._begun.setdefault((caller, call_id), [])
        if here in before:
            self.world.fail(f"call {short(call_id)} begins twice on {worker.name}")
        if call_id in self._not_run:
            self.world.fail(f"call {short(call_id)} begins on {worker.name}, and it was reported as not run")
        harmless = worker.worker.gate is not None and item.method == READONLY
        if 0 <= made.retries < len(before) and not harmless:
            self.world.fail(f"call {short(call_id)} begins on {worker.name} for the {len(before) + 1}th time")
        self._in_order(worker, call_id, made, here)
        if not before:
            self._in_order(worker, call_id, made, b"")
        else:
            self.world.states["call made again"] += 1
        before.append(here)

    def _in_order(self, worker: WorkerProcess, call_id: bytes, made: Made, where: bytes) -> None:
        key = (made.caller + call_id[:PREFIX_BYTES], made.actor_id, where)  # Calls are ordered by the calling task.
        if self._newest.get(key, 0) >= made.number and not made.unordered:
            self.world.fail(f"call {short(call_id)} begins on {worker.name} after a later one of its caller's")
        self._newest[key] = made.number

    def had_effect(self, worker: WorkerProcess, item: Invocation, state: list[bytes]) -> None:
        """Record the effect of a logged actor's call. ``state`` lists the earlier calls."""
        if item.row[0] in state:
            self.world.fail(f"call {short(item.row[0])} has run on {worker.name}, and its effect was there before")
        self._places[item.row[0]] = item.actor_id, len(state)

    def over(self, actor_id: bytes) -> None:
        """Record that an actor is to end for good."""
        self._over.add(actor_id)
        self._received.pop(actor_id, None)

    def outcomes_received(self, rows: Any) -> None:
        """Record outcomes that a process received."""
        for call_id, status, outputs in rows:
            if status == FAILED and dict(unpack_failure(outputs[0])[2]).get("outcome") == "unknown":
                continue  # It makes no statement about the effect.
            actor_id, place = self._places.get(call_id, (b"", 0))
            if actor_id and actor_id not in self._over and actor_id not in self._states:
                self._received.setdefault(actor_id, {}).setdefault(call_id, place)

    def logged(self, message: m.LogAppended) -> None:
        """Record log rows that the daemon receives."""
        self._rows[message.actor_id + message.last.to_bytes(8, "big"), message.rows] = message.attempt

    def committed(self, puts: Any) -> None:
        """Check rows that the control store committed."""
        for table, key, value in puts:
            attempt = self._rows.get((key, unpack_row(value)[2])) if table == LOG else None
            if attempt is not None and attempt < self._restored.get(key[:TASK_BYTES], 0):
                self.world.fail(f"rows of {short(key[:TASK_BYTES])} are committed, and a later incarnation has read the log without them")

    def restored(self, worker: WorkerProcess, actor_id: bytes, attempt: int, state: list[bytes], unlogged: bool) -> None:
        """Check a restored actor. ``state`` lists the calls whose effects it has."""
        self._restored[actor_id] = attempt
        if unlogged:
            before = self._states.get(actor_id, [])
            if state != before[: len(state)]:
                self.world.fail(f"{worker.name} has restored {short(actor_id)} in a state that it never had")
            self.lost[actor_id] += len(before) - len(state)
            self.world.states["calls lost"] += len(before) - len(state)
            self._states[actor_id] = state
        if len(set(state)) < len(state):
            self.world.fail(f"the state of {short(actor_id)} that {worker.name} has restored has a call twice")
        for call_id, place in self._received.get(actor_id, {}).items():
            if place >= len(state) or state[place] != call_id:
                self.world.fail(
                    f"{worker.name} has restored {short(actor_id)} without call {short(call_id)}, whose outcome a process has received"
                )
        for call_id in [each for each, (actor, _) in self._places.items() if actor == actor_id]:
            del self._places[call_id]
        self._places.update((call_id, (actor_id, place)) for place, call_id in enumerate(state))
        self.world.states["actor restored"] += bool(state)

    def remade(self, actor_id: bytes, state: list[bytes], call_id: bytes) -> None:
        """Check a call that runs again for its lost value. ``state`` lists the earlier calls."""
        place = self._places.get(call_id)
        if place is not None and place != (actor_id, len(state)):
            self.world.fail(f"call {short(call_id)} is run again in a state in which it has not run")
        self.world.states["value of a call made again"] += 1

    def looked(self, identifier: bytes, status: int, data: Any) -> None:
        """Check the outcome of a call that a process reads."""
        call_id = identifier[:TASK_BYTES]
        kind, _, facts = unpack_failure(data) if status == FAILED else ("", "", ())
        if kind in LOST:
            return
        said = dict(facts).get("outcome", "")
        vague = said == "unknown" and self.world.states["daemon restarted"]  # A value may be in the arena, and no message of it survived.
        if not vague and self._outcomes.setdefault(call_id, (status, kind)) != (status, kind):
            self.world.fail(f"call {short(call_id)} has ended with {status} {kind}; it had ended with {self._outcomes[call_id]}")
        if said == "unknown" and kind == "ActorUnavailableError" and any(call_id in state for state in self._states.values()):
            self.world.fail(f"the outcome of call {short(call_id)} is said to be unknown, and it is part of the state of its actor")
        if said:
            self.world.states[f"outcome {said}"] += 1
        if said == "not run":
            self._not_run.add(call_id)
            if any(call_id == begun for _, begun in self._begun):
                self.world.fail(f"call {short(call_id)} is said not to have run, and it began")

    def calm(self) -> None:
        """In a calm world, check the scheduler's counts of lost calls, unless a daemon was restarted."""
        daemon = self.world.daemon
        for actor_id, lost in self.lost.items() if not self.world.states["daemon restarted"] else ():
            log = daemon.scheduler.logs.logs.get(actor_id)
            record = daemon.scheduler.tables.actors.get(actor_id)
            if record is None or record.state != ALIVE:
                continue  # It is being restored: the count of lost calls arrives at the end.
            if log is not None and log.lost != lost and actor_id not in self._over:
                self.world.fail(f"{lost} calls of {short(actor_id)} are lost, and the daemon says {log.lost}")

    def left(self) -> list[str]:
        """List what remains of actors and calls although no handle and no ref exists."""
        daemon = self.world.daemon
        actors = daemon.scheduler.actors
        found = [f"the record of actor {short(each)}" for each in actors.records]
        found += [f"the name of actor {name}" for name in actors.named]
        found += [f"the expected result {short(each)}" for each in daemon.scheduler.tables.promises]
        found += [f"the log of actor {short(each)}" for each in daemon.scheduler.logs.logs]
        found += [f"{short(key)} of the {table} table" for table in ("log", "checkpoint") for key, _ in daemon.journal.scan(table)]
        for worker in self.world.workers.values():
            mailbox = worker.worker.mailbox
            found += [f"actor {short(each)} in {worker.name}" for each in mailbox.actors]
        for process in self.world.processes():
            calls = process.machine.calls
            tables: dict[str, Any] = {
                "target": calls.targets,
                "call without outcome": calls.pending,
                "shared result": calls.results.ids,
                "location": calls._locations,
                "call with extra fields": calls._extras,
                "blocked target": calls.blocked,
                "argument of a parked call": calls.awaited,
                "delayed target": calls.delayed,
                "promised result": calls.results.awaited,
                "query that calls wait for": calls._confirmed_by,
                "call to query": calls._to_ask,
                "killed actor": calls.killed,
                "receipt": calls._receipts,
            }
            found += [f"a {name} of {process.name}" for name, table in tables.items() for _ in table]
        return found
