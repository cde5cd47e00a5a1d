"""The driver of a simulated world."""

from __future__ import annotations

from typing import Any

from tests.sim.bodies import StackFrame
from tests.sim.interpreter import driver_body
from tests.sim.processes import Process
from tests.sim.programs import Program
from tests.sim.surroundings import NodeView, Surroundings
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Namer, root_task
from zfabric.protocol.messages import OK


class Driver(Process):
    """Runs the program's root, then releases everything and sends ``Goodbye``."""

    def __init__(self, world: Surroundings, node: NodeView, incarnation: bytes, pid: int, program: Program) -> None:
        super().__init__(world, node, incarnation, pid, "driver")
        self.program = program
        self.finished = False
        self.began = False

    def start(self) -> None:
        """Connect; until ``Welcome`` arrives, look regularly whether another daemon is published."""
        super().start()
        self.world.after(0.5, self._connect_again)

    def _connect_again(self) -> None:
        if self.alive and (not self.machine.welcomed or self.machine.leaving):
            if self.node.up and self.node.published != self.daemon:
                self.join(self.node.published)
                self.wake()
            self.world.after(0.5, self._connect_again)

    def next_item(self) -> StackFrame | None:
        """The root, once the job has its number."""
        if self.began or not self.machine.welcomed:
            return None
        self.began = True
        namer = Namer(self.machine.job, root_task(self.machine.job))
        return StackFrame(None, driver_body(self, self.program), namer, self.now)

    def ended(self, frame: StackFrame, status: int, result: Any) -> None:
        """Fail if the root raised."""
        super().ended(frame, status, result)
        if status != OK:
            self.world.fail(f"the driver's program ended with {result}")
        self.finished = True
        self.flush()

    def send_goodbye(self) -> None:
        """Send ``Goodbye``, which ends the job."""
        self.machine.send(m.Goodbye())
        self.wake()
        self.world.after(0.5, self._connect_again)
