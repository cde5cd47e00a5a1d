"""Who waits for whom, where actors are among them: a circle of those will never end by itself.

Tasks alone wait in no circle: what a task waits for was there, as a row, before it. A call is different: it waits until its actor has
ended what it runs, and that may wait for the call. A circle is *refused* in the one who closed it, if it is one for certain: each waits,
without a limit of time and for all that it wants, for the end of the next, which it has itself submitted; and the last, instead of
that, for a call of its own that waits behind the first. (That call was made while the first ran, and so cannot have run. A call of anybody
else may have, and its result may be on its way.) What has come is waited for by nobody, such as a value of a stream that goes on; and
what has a timeout, or is being stopped, ends by itself. Before anybody is refused, the others are asked whether they still wait: if so, all
of them did when the circle was seen. Other circles are shown by ``explain``.

An actor that runs several calls at once says nothing of what these wait for. A process that lightweight actors share sees to its own
circles (``turns``), and says only what has waited for a while.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from zfabric.machines.parts.naming import salt_of
from zfabric.machines.parts.records import ASSIGNED, PENDING, WAITING, Frame, TaskRecord, WorkerRecord, prefixes_of
from zfabric.protocol import messages as m
from zfabric.protocol.ids import JOB_BYTES, PREFIX_BYTES, TASK_BYTES, WORKER, Address, child_prefix
from zfabric.protocol.messages import ALIVE
from zfabric.protocol.names import brief

if TYPE_CHECKING:
    from zfabric.machines.local_scheduler import LocalScheduler

LOOKED_AT_MAX = 1000
"""Objects that are followed to find a circle."""

Edge = tuple[Frame, tuple[str, ...], bool, bool]
"""What waits while an object is waited for; what is between the two; whether it is the end of the former that makes the object, or only
what comes before that; whether the one who wants the object can have submitted all of it."""


class Suspicion(NamedTuple):
    """A circle, as far as is known here: somebody in it may have gone on, since it was stopped, and the news of that be on its way."""

    frames: tuple[Frame, ...]
    asked: list[Frame]
    """Those that have not said again that they wait. The first of all need not: it knows what it is told."""
    circle: str


class Deadlocks:
    """Works on its scheduler's tables and parts."""

    def __init__(self, scheduler: LocalScheduler) -> None:
        self.scheduler = scheduler
        self.tables = scheduler.tables
        self._suspected: dict[bytes, Suspicion] = {}
        """Circles of which not all have said again that they wait, by the one who closed it."""

    def on_awaits(self, now: float, source: Address, message: m.Awaits) -> None:
        """More of a frame that waits: it is a call, or waits for some. Or it still does, as it was asked."""
        process = self.tables.processes.get(source[1:])
        worker = self.tables.workers.get(process.name) if process is not None else None
        frame = next((each for each in worker.frames if each.task_id == message.task_id), None) if worker is not None else None
        if worker is None or frame is None:
            self.tables.counts["refused"] += 1
            return
        before = frame.name, frame.certain, frame.callees
        frame.name, frame.certain, frame.callees = message.name, message.certain, dict(message.callees)
        asked = [each for each in self._suspected.values() if frame in each.asked]
        for suspicion in asked:
            suspicion.asked.remove(frame)
            if not suspicion.asked:
                self._refuse(suspicion)
        if before != (frame.name, frame.certain, frame.callees):
            self.look(worker, frame)

    def look(self, worker: WorkerRecord, frame: Frame) -> None:
        """Something waits: is it the last of a circle?"""
        if frame.task_id not in worker.inflight and not worker.shared:
            frame.actor = next(iter(worker.actors), b"")
        self._suspected = {task_id: each for task_id, each in self._suspected.items() if self._stands(each)}
        actors_wait = any(each.frames and each.actors for each in self.tables.workers.values())
        frames, circle = self._follow(frame, True) if actors_wait else ((), "")
        if not circle:
            return
        suspicion = self._suspected[frame.task_id] = Suspicion(frames, list(frames[1:]), circle)
        for each in frames[1:]:
            home = self._worker_of(each)
            if home is not None and home.process is not None:
                self.tables.send(WORKER + home.process.incarnation, m.StillWaits(each.task_id))
        if not suspicion.asked:
            self._refuse(suspicion)

    def _stands(self, suspicion: Suspicion) -> bool:
        """Whether nobody has said since that it waits no longer."""
        return all(self.scheduler.dispatcher.frame_of(each.task_id) is each for each in suspicion.frames)

    def _refuse(self, suspicion: Suspicion) -> None:
        """All wait, and have at the moment at which the circle was seen: that was one."""
        first = suspicion.frames[0]
        worker = self._worker_of(first)
        del self._suspected[first.task_id]
        if self._stands(suspicion) and worker is not None and worker.process is not None:
            self.tables.counts["deadlocks"] += 1
            message = m.Deadlock(first.task_id, first.wanted[0], suspicion.circle)
            self.tables.send(WORKER + worker.process.incarnation, message)

    def circle(self, frame: Frame) -> str:
        """Who waits for whom, from this one on, and in the end for this one, as far as is known; empty if it is in no circle."""
        return self._follow(frame, False)[1]

    def _follow(self, frame: Frame, certain: bool) -> tuple[tuple[Frame, ...], str]:
        """The circle in which something waits (that is ``certain``), beginning with that, and how it is called; empty if there is none."""
        start = self._name_of(frame)
        agenda: list[tuple[tuple[Frame, ...], tuple[str, ...], int]] = [((frame,), (start,), 0)]
        waiting: set[tuple[bytes, int]] = set()
        objects: set[bytes] = set()
        while agenda:
            frames, path, queued = agenda.pop()
            last = frames[-1]
            if certain and not self._lasts(last):
                continue
            own = self._own(last) if certain else set()
            for identifier in last.wanted:
                for following, between, at_its_end, together in self._behind(last, identifier, objects):
                    places = queued + (not at_its_end) if certain else 0
                    if certain and not (places <= 1 and together and identifier[:PREFIX_BYTES] in own):
                        continue
                    if following.task_id == frame.task_id:
                        return frames, " -> ".join((*path, *between, start))
                    if (following.task_id, places) not in waiting:
                        waiting.add((following.task_id, places))
                        agenda.append(((*frames, following), (*path, *between, self._name_of(following)), places))
        return (), ""

    def _behind(self, frame: Frame, identifier: bytes, seen: set[bytes]) -> Iterator[Edge]:
        """What waits while an object is waited for. ``seen`` are those that were followed before, of which there may be so many."""
        agenda: list[tuple[bytes, tuple[str, ...], bool]] = [(identifier, (), True)]
        while agenda and len(seen) < LOOKED_AT_MAX:
            each, between, together = agenda.pop()
            seen.add(each)
            found = self.tables.find(each)
            if found is not None and found.status != PENDING:
                continue
            actor_id = self.callee(frame if each is identifier else None, each)
            task = found.task if found is not None and not actor_id else None
            if actor_id:
                record = self.scheduler.actors.records.get(actor_id)
                waits = record.wait() if record is not None and record.state == ALIVE else None
                if waits is not None:
                    yield waits, between, waits.task_id == each[:TASK_BYTES], together
            elif task is not None and task.state == ASSIGNED:
                waits = self.scheduler.dispatcher.frame_of(task.id)
                if waits is not None:
                    yield waits, between, True, together
            elif task is not None and task.state == WAITING:
                together = together and not _ends_by_itself(task)
                for needed in task.row[3]:
                    if needed not in seen:
                        agenda.append((needed, (*between, task.name), together and needed[:PREFIX_BYTES] == task.id[:PREFIX_BYTES]))

    def _lasts(self, frame: Frame) -> bool:
        """Whether what waits goes on only once all is there that it wants, as far as is known."""
        task, worker = self.tables.tasks.get(frame.task_id), self._worker_of(frame)
        return frame.certain and worker is not None and not worker.kill_reason and not (task is not None and _ends_by_itself(task))

    def _worker_of(self, frame: Frame) -> WorkerRecord | None:
        """Where something waits."""
        task, actor = self.tables.tasks.get(frame.task_id), self.scheduler.actors.records.get(frame.actor)
        return task.worker if task is not None else actor.worker if actor is not None else None

    def callee(self, frame: Frame | None, identifier: bytes) -> bytes:
        """The actor whose call is to give an object; empty if it is none, or if that is not known."""
        found = frame.callees.get(identifier, b"") if frame is not None else b""
        return found or self.tables.promises.actor(identifier)

    def _own(self, frame: Frame) -> set[bytes]:
        """What the ids begin with of all that what waits has submitted."""
        task = self.tables.tasks.get(frame.task_id)
        if task is not None:
            return prefixes_of(task, 0)
        actor = self.scheduler.actors.records.get(frame.actor)
        return set() if actor is None else {child_prefix(frame.task_id[:JOB_BYTES], frame.task_id, 0, salt_of(actor.task.attempt))}

    def _name_of(self, frame: Frame) -> str:
        """What waits, for people."""
        task, actor = self.tables.tasks.get(frame.task_id), self.scheduler.actors.records.get(frame.actor)
        if task is not None or actor is None:
            return task.name if task is not None else frame.name
        return f"{frame.name or actor.class_name} ({actor.name or brief(actor.id)})"


def _ends_by_itself(task: TaskRecord) -> bool:
    """Whether a task has a timeout, or is to be stopped."""
    rare = task.rare
    return rare is not None and (rare.deadline is not None or bool(rare.stopped))
