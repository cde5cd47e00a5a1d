"""What must be true of actors and their calls, whatever happens to callers, actors and daemon.

- An actor lives in one process at a time; no method begins, and none is made anew, while another process is that actor.
- An actor runs one call at a time, whoever shares its process.
- A call begins once in one incarnation of its actor, and in another one only if it may be made again (``max_task_retries``).
- The calls of one caller begin in the order in which they were made, unless their actor runs several at once.
- What a logged call did is part of its actor's state once anybody has its outcome: once, and always at the same place among the others.
- Nothing is committed of what one incarnation did once the next one has read the log.
- Of an actor that has checkpoints and no log, a restart finds the calls that had ended at some moment, in their order and none twice; the
  scheduler knows how many are lost. A call whose outcome is said to be unknown is not among them.
- A call has one outcome, whoever looks. One that says "not run" is of a call that never began, and never will.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from zfabric.machines.common.log_format import LOG
from zfabric.machines.common.row_format import unpack_row
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import PREFIX_BYTES, TASK_BYTES, short
from zfabric.protocol.messages import ALIVE, FAILED
from zfabric.sim.logged import READONLY
from zfabric.sim.programs import LOST

if TYPE_CHECKING:
    from zfabric.machines.worker.items import Invocation
    from zfabric.sim.node import Overview
    from zfabric.sim.workers import WorkerProcess


REASONS = ("job has ended", "register", "memory", "class of its actor")
"""What the daemon may kill a process for in which several actors live."""


class Made(NamedTuple):
    """A call: who made it of which actor, which of theirs it is, and how often it may be made again."""

    caller: bytes
    actor_id: bytes
    number: int
    retries: int
    unordered: bool


class CallInvariants:
    """Watches the calls of one world."""

    def __init__(self, world: Overview) -> None:
        self.world = world
        self._made: dict[tuple[bytes, bytes], Made] = {}
        """By caller and call."""
        self._named: set[bytes] = set()
        self._numbers: dict[tuple[bytes, bytes], int] = {}
        self._begun: dict[tuple[bytes, bytes], list[bytes]] = {}
        """The incarnations in which a call began."""
        self._newest: dict[tuple[bytes, bytes, bytes], int] = {}
        """The newest call that began, by caller, actor and incarnation (empty: any)."""
        self._outcomes: dict[bytes, tuple[int, str]] = {}
        self._not_run: set[bytes] = set()
        self._places: dict[bytes, tuple[bytes, int]] = {}
        """Where the effect of a logged call is in the state of its actor, in the newest incarnation: (actor, place)."""
        self._released: dict[bytes, dict[bytes, int]] = {}
        """Of those, what was so when somebody heard of the outcome: by actor, by call."""
        self._states: dict[bytes, list[bytes]] = {}
        """Of actors that have checkpoints and no log: the calls that have ended in the newest incarnation, in their order."""
        self.lost: Counter[bytes] = Counter()
        """How many of those were not there any more after restarts, by actor."""
        self._over: set[bytes] = set()
        """Actors that were to end for good: one that has the name of such a one is another one."""
        self._rows: dict[tuple[bytes, bytes], int] = {}
        """Which attempt of an actor has said rows of its log: by key and rows."""
        self._restored: dict[bytes, int] = {}
        """The newest attempt of each actor that has read its log."""
        self.values: dict[bytes, list[tuple[Any, int]]] = {}
        """What calls have returned, and how large that is in the arena (0: inline)."""

    def made(self, caller: bytes, actor_id: bytes, call_id: bytes, retries: int, unordered: bool) -> None:
        """A process calls an actor."""
        number = self._numbers[caller, actor_id] = self._numbers.get((caller, actor_id), 0) + 1
        if call_id in self._named:
            self.world.fail(f"call {short(call_id)} is made by two attempts")
        self._named.add(call_id)
        self._made[caller, call_id] = Made(caller, actor_id, number, retries, unordered)

    def alone(self, worker: WorkerProcess, actor_id: bytes) -> None:
        """A process acts as an actor, or is about to become it."""
        for other in self.world.workers.values():
            if other is not worker and other.alive and actor_id in other.worker.mailbox.actors:
                self.world.fail(f"{worker.name} acts as actor {short(actor_id)}, and {other.name} is that actor")

    def killing(self, pid: int, reason: str) -> None:
        """The daemon kills a process. No end of one actor is a reason where others live, too."""
        several = [each for each in self.world.workers.values() if each.pid == pid and each.worker.turns is not None]
        for worker in several:
            if len(worker.worker.mailbox.actors) > 1 and not any(word in reason for word in REASONS):
                self.world.fail(f"{worker.name} is killed although actors share it: {reason}")

    def begun(self, worker: WorkerProcess, item: Invocation) -> None:
        """A call begins."""
        self.alone(worker, item.actor_id)
        call_id, here = item.row[0], worker.incarnation + item.attempt.to_bytes(8, "big")  # Two lives may be in one process.
        running = sum(1 for frame in worker.frames if type(frame.item) is type(item) and frame.item.actor_id == item.actor_id)
        if running >= max(1, worker.beside.size):
            self.world.fail(f"{worker.name} begins call {short(call_id)} while another one of its actor runs or waits")
        made = self._made[item.caller, call_id]
        before = self._begun.setdefault((item.caller, call_id), [])
        if here in before:
            self.world.fail(f"call {short(call_id)} begins twice on {worker.name}")
        if call_id in self._not_run:
            self.world.fail(f"call {short(call_id)} begins on {worker.name}, and somebody was told that it did not run")
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
        key = (made.caller + call_id[:PREFIX_BYTES], made.actor_id, where)  # The caller is the task, in this process.
        if self._newest.get(key, 0) >= made.number and not made.unordered:
            self.world.fail(f"call {short(call_id)} begins on {worker.name} after a later one of its caller's")
        self._newest[key] = made.number

    def had_effect(self, worker: WorkerProcess, item: Invocation, state: list[bytes]) -> None:
        """A call of a logged actor has run, in a state that these calls have left."""
        if item.row[0] in state:
            self.world.fail(f"call {short(item.row[0])} has run on {worker.name}, and its effect was there before")
        self._places[item.row[0]] = item.actor_id, len(state)

    def over(self, actor_id: bytes) -> None:
        """An actor is to end for good."""
        self._over.add(actor_id)
        self._released.pop(actor_id, None)

    def released(self, rows: Any) -> None:
        """Somebody hears of outcomes."""
        for call_id, status, outputs in rows:
            if status == FAILED and dict(unpack_failure(outputs[0])[2]).get("outcome") == "unknown":
                continue  # Nothing is said of what it has done.
            actor_id, place = self._places.get(call_id, (b"", 0))
            if actor_id and actor_id not in self._over and actor_id not in self._states:
                self._released.setdefault(actor_id, {}).setdefault(call_id, place)

    def logged(self, message: m.LogAppended) -> None:
        """The daemon hears rows of a log."""
        self._rows[message.actor_id + message.last.to_bytes(8, "big"), message.rows] = message.attempt

    def committed(self, puts: Any) -> None:
        """The control store has these rows."""
        for table, key, value in puts:
            attempt = self._rows.get((key, unpack_row(value)[2])) if table == LOG else None
            if attempt is not None and attempt < self._restored.get(key[:TASK_BYTES], 0):
                self.world.fail(f"rows of {short(key[:TASK_BYTES])} are committed, and a later incarnation has read the log without them")

    def restored(self, worker: WorkerProcess, actor_id: bytes, attempt: int, state: list[bytes], unlogged: bool) -> None:
        """An actor is made in a state that these calls have left."""
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
        for call_id, place in self._released.get(actor_id, {}).items():
            if place >= len(state) or state[place] != call_id:
                self.world.fail(f"{worker.name} has restored {short(actor_id)} without call {short(call_id)}, whose outcome is known")
        for call_id in [each for each, (actor, _) in self._places.items() if actor == actor_id]:
            del self._places[call_id]
        self._places.update((call_id, (actor_id, place)) for place, call_id in enumerate(state))
        self.world.states["actor restored"] += bool(state)

    def remade(self, actor_id: bytes, state: list[bytes], call_id: bytes) -> None:
        """The value of a call is made again, in a state that these calls have left."""
        place = self._places.get(call_id)
        if place is not None and place != (actor_id, len(state)):
            self.world.fail(f"call {short(call_id)} is run again in a state in which it has not run")
        self.world.states["value of a call made again"] += 1

    def looked(self, identifier: bytes, status: int, data: Any) -> None:
        """A process looks at the outcome of a call."""
        call_id = identifier[:TASK_BYTES]
        kind, _, facts = unpack_failure(data) if status == FAILED else ("", "", ())
        if kind in LOST:
            return
        if self._outcomes.setdefault(call_id, (status, kind)) != (status, kind):
            self.world.fail(f"call {short(call_id)} has ended with {status} {kind}; it had ended with {self._outcomes[call_id]}")
        said = dict(facts).get("outcome", "")
        if said == "unknown" and kind == "ActorUnavailableError" and any(call_id in state for state in self._states.values()):
            self.world.fail(f"the outcome of call {short(call_id)} is said to be unknown, and it is part of the state of its actor")
        if said:
            self.world.states[f"outcome {said}"] += 1
        if said == "not run":
            self._not_run.add(call_id)
            if any(call_id == begun for _, begun in self._begun):
                self.world.fail(f"call {short(call_id)} is said not to have run, and it began")

    def calm(self) -> None:
        """Nothing is on its way: the scheduler knows what restarts have lost, if it was there all the time."""
        daemon = self.world.daemon
        for actor_id, lost in self.lost.items() if not self.world.states["daemon restarted"] else ():
            log = daemon.scheduler.logs.logs.get(actor_id)
            record = daemon.scheduler.tables.actors.get(actor_id)
            if record is None or record.state != ALIVE:
                continue  # It is being made again, and waits for room: the scheduler learns at the end what that has lost.
            if log is not None and log.lost != lost and actor_id not in self._over:
                self.world.fail(f"{lost} calls of {short(actor_id)} are lost, and the daemon says {log.lost}")

    def left(self) -> list[str]:
        """What is left of actors and calls although nobody has a handle or a ref."""
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
                "home": calls._homes,
                "count of values": calls._several,
                "ref held for a call": calls._held,
                "blocked target": calls.blocked,
                "argument of a parked call": calls.awaited,
                "delayed target": calls.delayed,
                "result that others were promised": calls.results.awaited,
                "barrier": calls._barriers,
                "call that was asked about": calls._asked,
                "call to ask about": calls._to_ask,
                "call that was heard of": calls._heard,
                "killed actor": calls.killed,
                "stopped call": calls._stopped,
                "call with a timeout": calls._limited,
                "receipt": calls._receipts,
            }
            found += [f"a {name} of {process.name}" for name, table in tables.items() for _ in table]
        return found
