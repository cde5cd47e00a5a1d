"""Circles of tasks and calls that wait for each other: such a circle never ends by itself (decision 0011).

Tasks alone form none: what a task waits for existed, as a row, before it. The driver is warned once, and ``explain`` shows the circle.

A warning requires that each member needs everything it waits for, has no timeout, and has waited for ``LOOKS`` checks: a shorter wait may
end by a message under way. Actors that run several calls at once do not report their waits; a shared process reports only long calls
(``HostDelays``); an actor that waits for itself raises in its process (``Mailbox.refused``).
"""

from __future__ import annotations

from collections.abc import Iterator

from zfabric.machines.local_scheduler.due import WAITS
from zfabric.machines.local_scheduler.object_places import PENDING
from zfabric.machines.local_scheduler.records import ASSIGNED, WAITING, BlockedTask, JobRecord, TaskRecord, WorkerRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.messages import ALIVE
from zfabric.protocol.names import brief

LOOK_EVERY = 1.0
LOOKS = 3
"""Checks that must find the same wait: longer than a message takes on a busy machine."""
LOOKED_AT_MAX = 1000
"""Objects followed to find a circle."""

Wait = tuple[bytes, tuple[bytes, ...]]
"""The waiting task or call, and the objects."""


class Deadlocks:
    """Finds circles of waits, and warns drivers."""

    def __init__(self, tables: Tables, dispatcher: Dispatcher) -> None:
        self.tables = tables
        self.dispatcher = dispatcher
        self.look_at: float | None = None
        self._found: dict[Wait, int] = {}
        """Checks that found each wait."""
        self.warned: dict[frozenset[Wait], str] = {}
        """Existing circles, with their warnings."""

    # -- waits --

    def on_blocked(self, now: float, source: Address, message: m.Blocked) -> None:
        """Record the wait of a task or call."""
        worker = self.tables.worker_of(source)
        if worker is None:
            return
        blocked = self.dispatcher.blocked(worker, message)
        blocked.at = now
        if blocked.task_id not in worker.inflight and not worker.shared:
            blocked.actor = next(iter(worker.actors), b"")
        self.look_later(now)

    def on_wait_details(self, now: float, source: Address, message: m.WaitDetails) -> None:
        """Record that it is a call's, or for calls."""
        process = self.tables.processes.get(source[1:])
        worker = self.tables.workers.get(process.name) if process is not None else None
        blocked = next((each for each in worker.blocked_tasks if each.task_id == message.task_id), None) if worker is not None else None
        if blocked is None:
            self.tables.count("refused")
            return
        blocked.name, blocked.certain, blocked.callees = message.name, message.certain, dict(message.callees)

    def on_host_delays(self, now: float, source: Address, message: m.HostDelays) -> None:
        """Record long calls."""
        worker = self.tables.worker_of(source)
        if worker is not None:
            worker.delays = {row[0]: row for row in message.rows}
            worker.running_call = next((row for row in message.rows if row[1] == message.running), ())
            if message.rows:
                self.look_later(now)

    # -- warnings --

    def look_later(self, now: float) -> None:
        """Schedule a check."""
        if self.look_at is None:
            self.look_at = now + LOOK_EVERY
            self.tables.deadlines.note(WAITS, self.look_at)

    def tick(self, now: float) -> None:
        """Follow each wait that has lasted for ``LOOKS`` checks, once."""
        if self.look_at is None or now < self.look_at:
            return
        waits = {(blocked.task_id, blocked.wanted): blocked for blocked in self._blocked_tasks()}
        self._found = {wait: self._found.get(wait, 0) + 1 for wait in waits}
        self.warned = {circle: text for circle, text in self.warned.items() if all(wait in waits for wait in circle)}
        for wait, looks in self._found.items():
            if looks == LOOKS:
                self._follow_one(waits[wait])
        self.look_at = now + LOOK_EVERY if any(looks < LOOKS for looks in self._found.values()) else None

    def _blocked_tasks(self) -> Iterator[BlockedTask]:
        workers = self.tables.workers.values()
        if not any(worker.actors for worker in workers):
            return
        for worker in workers:
            yield from worker.blocked_tasks
            for actor_id in worker.delays:
                record = self.tables.actors.get(actor_id)
                blocked = record.wait() if record is not None else None
                if blocked is not None:
                    yield blocked

    def _follow_one(self, blocked: BlockedTask) -> None:
        waits, text = self._follow(blocked, True)
        circle = frozenset((each.task_id, each.wanted) for each in waits)
        if not circle or circle in self.warned:
            return
        self.tables.count("circles")
        text = (
            f"these wait for each other, and nothing but a timeout, a cancel or a kill will end it: {text}. Call in one direction only, "
            "return the ref instead of waiting for its value, or give get() a timeout."
        )
        self.warned[circle] = text
        jobs: dict[JobRecord, None] = {home.job: None for each in waits if (home := self._worker_of(each)) is not None and home.job}
        drivers = [job.driver for job in jobs if job.driver is not None]
        for driver in drivers:
            self.tables.send_to_client(driver, m.Notice("warning", text))
        if not drivers:
            self.tables.write_log("warning", text)

    # -- following --

    def circle(self, blocked: BlockedTask) -> str:
        """The circle of a wait, described; empty if none is known."""
        return self._follow(blocked, False)[1]

    def _follow(self, blocked: BlockedTask, lasting: bool) -> tuple[tuple[BlockedTask, ...], str]:
        """A circle's waits, this one first, and its description; else empty. ``lasting`` accepts only certain, long waits."""
        start = self._name_of(blocked)
        agenda: list[tuple[tuple[BlockedTask, ...], tuple[str, ...]]] = [((blocked,), (start,))]
        waiting: set[bytes] = set()
        objects: set[bytes] = set()
        while agenda:
            waits, path = agenda.pop()
            last = waits[-1]
            if lasting and not self._lasts(last):
                continue
            for identifier in last.wanted:
                for following, between in self._behind(last, identifier, objects, lasting):
                    if following.task_id == blocked.task_id:
                        return waits, " -> ".join((*path, *between, start))
                    if following.task_id not in waiting:
                        waiting.add(following.task_id)
                        agenda.append(((*waits, following), (*path, *between, self._name_of(following))))
        return (), ""

    def _behind(
        self, blocked: BlockedTask, identifier: bytes, seen: set[bytes], lasting: bool
    ) -> Iterator[tuple[BlockedTask, tuple[str, ...]]]:
        """Waits on which a wait for this object depends, each with the names of tasks between."""
        agenda: list[tuple[bytes, tuple[str, ...]]] = [(identifier, ())]
        while agenda and len(seen) < LOOKED_AT_MAX:
            each, between = agenda.pop()
            seen.add(each)
            found = self.tables.find(each)
            if found is not None and found.status != PENDING:
                continue
            actor_id = self.callee(blocked if each is identifier else None, each)
            task = found.task if found is not None and not actor_id else None
            waits: BlockedTask | None = None
            if actor_id:
                record = self.tables.actors.get(actor_id)
                waits = record.wait() if record is not None and record.state == ALIVE else None
            elif task is not None and task.state == ASSIGNED:
                waits = self.dispatcher.frame_of(task.id)
            elif task is not None and task.state == WAITING and not (lasting and _ends_by_itself(task)):
                agenda += [(needed, (*between, task.name)) for needed in task.row[3] if needed not in seen]
            if waits is not None:
                yield waits, between

    def _lasts(self, blocked: BlockedTask) -> bool:
        """Whether a wait is long and, as far as is known, ends only when all its objects exist."""
        if self._found.get((blocked.task_id, blocked.wanted), 0) < LOOKS:
            return False  # It will be followed itself.
        task, worker = self.tables.tasks.get(blocked.task_id), self._worker_of(blocked)
        return blocked.certain and worker is not None and not worker.kill_reason and not (task is not None and _ends_by_itself(task))

    def _worker_of(self, blocked: BlockedTask) -> WorkerRecord | None:
        task, actor = self.tables.tasks.get(blocked.task_id), self.tables.actors.get(blocked.actor)
        return task.worker if task is not None else actor.worker if actor is not None else None

    def callee(self, blocked: BlockedTask | None, identifier: bytes) -> bytes:
        """The actor whose call makes an object, or empty."""
        found = blocked.callees.get(identifier, b"") if blocked is not None else b""
        return found or self.tables.promises.actor(identifier)

    def _name_of(self, blocked: BlockedTask) -> str:
        task, actor = self.tables.tasks.get(blocked.task_id), self.tables.actors.get(blocked.actor)
        if task is not None or actor is None:
            return task.name if task is not None else blocked.name
        return f"{blocked.name or actor.class_name} ({actor.name or brief(actor.id)})"


def _ends_by_itself(task: TaskRecord) -> bool:
    rare = task.rare
    return rare is not None and (rare.deadline is not None or bool(rare.stopped))
