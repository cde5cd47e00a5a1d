"""The driver of a simulated world: it runs the root of a program."""

from __future__ import annotations

from typing import Any

from zfabric.machines.common.naming import Namer
from zfabric.protocol import messages as m
from zfabric.protocol.ids import root_task
from zfabric.protocol.messages import OK
from zfabric.sim.frames import Frame
from zfabric.sim.interpreter import driver_body
from zfabric.sim.processes import Process
from zfabric.sim.programs import Program
from zfabric.sim.surroundings import Home, Surroundings


class Driver(Process):
    """Runs the program's root, then lets go of everything and says goodbye."""

    def __init__(self, world: Surroundings, node: Home, incarnation: bytes, pid: int, program: Program) -> None:
        super().__init__(world, node, incarnation, pid, "driver")
        self.program = program
        self.finished = False
        self.began = False

    def start(self) -> None:
        """Connect; as long as there is no welcome, look whether another daemon is published."""
        super().start()
        self.world.after(0.5, self._connect_again)

    def _connect_again(self) -> None:
        if self.alive and (not self.machine.welcomed or self.machine.leaving):
            if self.node.up and self.node.published != self.daemon:
                self.join(self.node.published)
                self.wake()
            self.world.after(0.5, self._connect_again)

    def next_item(self) -> Frame | None:
        """The root, once the job has its number."""
        if self.began or not self.machine.welcomed:
            return None
        self.began = True
        namer = Namer(self.machine.job, root_task(self.machine.job))
        return Frame(None, driver_body(self, self.program), namer, self.now)

    def ended(self, frame: Frame, status: int, result: Any) -> None:
        """The root has ended."""
        super().ended(frame, status, result)
        if status != OK:
            self.world.fail(f"the driver's program ended with {result}")
        self.finished = True
        self.flush()

    def say_goodbye(self) -> None:
        """End the job."""
        self.machine.say(m.Goodbye())
        self.wake()
        self.world.after(0.5, self._connect_again)
