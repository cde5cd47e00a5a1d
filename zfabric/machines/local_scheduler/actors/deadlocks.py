"""Who waits for whom, where actors are among them: a circle of those will never end by itself.

Tasks alone wait in no circle: what a task waits for was there, as a row, before it. A call is different: it waits until its actor has
ended what it runs, and that may wait for the call. Nobody is refused to wait in a circle: the driver is warned, once, and ``explain``
shows it. A timeout, a cancel, or the end of one of the actors breaks it, and so does the end of the program.

The driver is warned of a circle in which each waits for all that it wants, without a limit of time, and has done so for a while
(``LOOKS``): a result or a cancel may be on its way, which this scheduler has not been told of. What has a value is waited for by nobody.
``explain`` shows other circles, too.

An actor that runs several calls at once sends nothing of what these wait for. A process that lightweight actors share sends only what has
waited for a while (``HostDelays``). An actor that waits for a call of itself raises in its own process (``Mailbox.refused``).
"""

from __future__ import annotations

from collections.abc import Iterator

from zfabric.machines.local_scheduler.records import ASSIGNED, PENDING, WAITING, BlockedTask, JobRecord, TaskRecord, WorkerRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.messages import ALIVE
from zfabric.protocol.names import brief

LOOK_EVERY = 1.0
"""Seconds between two looks at what waits."""
LOOKS = 3
"""Looks that find the same wait before it is followed: longer than a message takes on a busy machine."""
LOOKED_AT_MAX = 1000
"""Objects that are followed to find a circle."""

Wait = tuple[bytes, tuple[bytes, ...]]
"""What tells one wait from another: the task or call that waits, and what for."""


class Deadlocks:
    """Follows what waits, and warns drivers of circles."""

    def __init__(self, tables: Tables, dispatcher: Dispatcher) -> None:
        self.tables = tables
        self.dispatcher = dispatcher
        self._look_at: float | None = None
        self._found: dict[Wait, int] = {}
        """How many looks have found a wait."""
        self.warned: dict[frozenset[Wait], str] = {}
        """Circles that still stand, with what a driver was told of them."""

    # -- what waits --

    def on_blocked(self, now: float, source: Address, message: m.Blocked) -> None:
        """A worker's task waits."""
        worker = self.tables.worker_of(source)
        if worker is None:
            return
        frame = self.dispatcher.blocked(worker, message)
        frame.at = now
        if frame.task_id not in worker.inflight and not worker.shared:
            frame.actor = next(iter(worker.actors), b"")
        self.look_later(now)

    def on_wait_details(self, now: float, source: Address, message: m.WaitDetails) -> None:
        """More of a frame that waits: it is a call, or waits for some."""
        process = self.tables.processes.get(source[1:])
        worker = self.tables.workers.get(process.name) if process is not None else None
        frame = next((each for each in worker.frames if each.task_id == message.task_id), None) if worker is not None else None
        if frame is None:
            self.tables.counts["refused"] += 1
            return
        frame.name, frame.certain, frame.callees = message.name, message.certain, dict(message.callees)

    def on_host_delays(self, now: float, source: Address, message: m.HostDelays) -> None:
        """What lasts in a process that actors share."""
        worker = self.tables.worker_of(source)
        if worker is not None:
            worker.delays = {row[0]: row for row in message.rows}
            worker.turn = next((row for row in message.rows if row[1] == message.running), ())
            if message.rows:
                self.look_later(now)

    # -- warning of circles --

    def look_later(self, now: float) -> None:
        """Something waits that no look has found yet."""
        if self._look_at is None:
            self._look_at = now + LOOK_EVERY

    def next_deadline(self) -> float | None:
        """When ``tick`` is wanted next."""
        return self._look_at

    def tick(self, now: float) -> None:
        """Follow each wait once, when it has lasted."""
        if self._look_at is None or now < self._look_at:
            return
        frames = {(frame.task_id, frame.wanted): frame for frame in self._frames()}
        self._found = {wait: self._found.get(wait, 0) + 1 for wait in frames}
        self.warned = {circle: text for circle, text in self.warned.items() if all(wait in frames for wait in circle)}
        for wait, looks in self._found.items():
            if looks == LOOKS:
                self._follow_one(frames[wait])
        self._look_at = now + LOOK_EVERY if any(looks < LOOKS for looks in self._found.values()) else None

    def _frames(self) -> Iterator[BlockedTask]:
        """All that waits, if an actor is among it."""
        workers = self.tables.workers.values()
        if not any(worker.actors for worker in workers):
            return
        for worker in workers:
            yield from worker.frames
            for actor_id in worker.delays:
                record = self.tables.actors.get(actor_id)
                frame = record.wait() if record is not None else None
                if frame is not None:
                    yield frame

    def _follow_one(self, frame: BlockedTask) -> None:
        frames, text = self._follow(frame, True)
        circle = frozenset((each.task_id, each.wanted) for each in frames)
        if not circle or circle in self.warned:
            return
        self.tables.counts["circles"] += 1
        text = (
            f"these wait for each other, and nothing but a timeout, a cancel or a kill will end it: {text}. Call in one direction only, "
            "return the ref instead of waiting for its value, or give get() a timeout."
        )
        self.warned[circle] = text
        jobs: dict[JobRecord, None] = {home.job: None for each in frames if (home := self._worker_of(each)) is not None and home.job}
        drivers = [job.driver for job in jobs if job.driver is not None]
        for driver in drivers:
            self.tables.tell(driver, m.Notice("warning", text))
        if not drivers:
            self.tables.say("warning", text)

    # -- following --

    def circle(self, frame: BlockedTask) -> str:
        """Who waits for whom, from this one on, and in the end for this one, as far as is known; empty if it is in no circle."""
        return self._follow(frame, False)[1]

    def _follow(self, frame: BlockedTask, lasting: bool) -> tuple[tuple[BlockedTask, ...], str]:
        """The circle in which something waits, beginning with that, and how it is called; empty if there is none.

        ``lasting``: only one that nobody in it ends by going on.
        """
        start = self._name_of(frame)
        agenda: list[tuple[tuple[BlockedTask, ...], tuple[str, ...]]] = [((frame,), (start,))]
        waiting: set[bytes] = set()
        objects: set[bytes] = set()
        while agenda:
            frames, path = agenda.pop()
            last = frames[-1]
            if lasting and not self._lasts(last):
                continue
            for identifier in last.wanted:
                for following, between in self._behind(last, identifier, objects, lasting):
                    if following.task_id == frame.task_id:
                        return frames, " -> ".join((*path, *between, start))
                    if following.task_id not in waiting:
                        waiting.add(following.task_id)
                        agenda.append(((*frames, following), (*path, *between, self._name_of(following))))
        return (), ""

    def _behind(
        self, frame: BlockedTask, identifier: bytes, seen: set[bytes], lasting: bool
    ) -> Iterator[tuple[BlockedTask, tuple[str, ...]]]:
        """What waits while an object is waited for, and what is between the two.

        ``seen`` are those that were followed before, of which there may be so many.
        """
        agenda: list[tuple[bytes, tuple[str, ...]]] = [(identifier, ())]
        while agenda and len(seen) < LOOKED_AT_MAX:
            each, between = agenda.pop()
            seen.add(each)
            found = self.tables.find(each)
            if found is not None and found.status != PENDING:
                continue
            actor_id = self.callee(frame if each is identifier else None, each)
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

    def _lasts(self, frame: BlockedTask) -> bool:
        """Whether what waits has done so for a while, and goes on only once all is there that it wants, as far as is known."""
        if self._found.get((frame.task_id, frame.wanted), 0) < LOOKS:
            return False  # It will be followed itself.
        task, worker = self.tables.tasks.get(frame.task_id), self._worker_of(frame)
        return frame.certain and worker is not None and not worker.kill_reason and not (task is not None and _ends_by_itself(task))

    def _worker_of(self, frame: BlockedTask) -> WorkerRecord | None:
        """Where something waits."""
        task, actor = self.tables.tasks.get(frame.task_id), self.tables.actors.get(frame.actor)
        return task.worker if task is not None else actor.worker if actor is not None else None

    def callee(self, frame: BlockedTask | None, identifier: bytes) -> bytes:
        """The actor whose call is to give an object; empty if it is none, or if that is not known."""
        found = frame.callees.get(identifier, b"") if frame is not None else b""
        return found or self.tables.promises.actor(identifier)

    def _name_of(self, frame: BlockedTask) -> str:
        """What waits, for people."""
        task, actor = self.tables.tasks.get(frame.task_id), self.tables.actors.get(frame.actor)
        if task is not None or actor is None:
            return task.name if task is not None else frame.name
        return f"{frame.name or actor.class_name} ({actor.name or brief(actor.id)})"


def _ends_by_itself(task: TaskRecord) -> bool:
    """Whether a task has a timeout, or is to be stopped."""
    rare = task.rare
    return rare is not None and (rare.deadline is not None or bool(rare.stopped))
