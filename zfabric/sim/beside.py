"""Actors that run several calls at once, in simulated workers: while one waits, or sleeps, others go on or begin, as in an event loop.

Between two of them, when none runs, the checkpoint is taken that is due (``machines.worker.quiescence``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack

from zfabric.machines.worker import CLOSED
from zfabric.sim.frames import Frame, Wait
from zfabric.sim.programs import Interrupted

if TYPE_CHECKING:
    from zfabric.sim.workers import WorkerProcess


class Beside:
    """The calls of the actor that is one worker process."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.size = 0
        """How many may run at once; 0 until the process is such an actor."""

    def sleep(self, frame: Frame, seconds: float) -> None:
        """A call sleeps; others do not."""
        frame.wait = Wait(lambda: False, lambda _: None, self.process.now + seconds, False)

    def advance(self) -> None:
        """Run calls until all wait."""
        process = self.process
        while process.alive:
            self._take_checkpoint()
            frame = next((each for each in process.frames if each.wait is None or process.is_over(each)), None) or self._begin()
            if frame is not None:
                self._resume(frame)
                continue
            process.flush()
            if process.inbox:
                process.take_in()
            elif (not process.frames and process.ends()) or not self._may_begin():
                return

    def _resume(self, frame: Frame) -> None:
        process, wait = self.process, frame.wait
        process.frames.remove(frame)
        process.frames.append(frame)
        if wait is None:
            process.resume(frame, None)
            return
        interrupted = process.interrupted(frame)
        if interrupted and wait.token:
            process.machine.room.forsake(wait.token)
        frame.wait = None
        process.resume(frame, Interrupted() if interrupted else wait.finish(wait.done()))

    def _may_begin(self) -> bool:
        worker = self.process.worker
        return bool(worker.mailbox.queue) and worker.may_begin and len(self.process.frames) < self.size and self.process.leaves_at is None

    def _begin(self) -> Frame | None:
        worker = self.process.worker
        item = worker.begin_beside(worker.mailbox.queue) if self._may_begin() else None
        if item is None:
            return None
        frame = self.process.begin(item)
        self.process.frames.append(frame)
        return frame

    def _take_checkpoint(self) -> None:
        process, gate = self.process, self.process.worker.gate
        if gate is None:
            return
        process.world.states["gate closed"] += gate.state is CLOSED
        process.world.states["gate opened in vain"] += gate.in_vain
        gate.in_vain = False
        if not gate.take():
            return
        process.worker.check_invariants()
        gate.log.checkpoint(msgpack.packb(process.logged.states[gate.log.actor_id]), ())
        gate.taken()
        process.world.states["quiet checkpoint"] += 1

    def deadline(self) -> float | None:
        """When the first of those that wait is to wait no longer."""
        waits = (each.wait for each in self.process.frames if each.wait is not None)
        return min((wait.deadline for wait in waits if wait.deadline is not None), default=None)
