"""What a simulated node and its processes get from their world: time, chance, the network, and observers.

The world consists of nodes, programs and observers. A node and a process see no more of it than these protocols.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, NoReturn, Protocol

from zfabric.config import Config
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.messages import Row
from zfabric.sim.arena import SimArena
from zfabric.sim.frames import Frame
from zfabric.sim.network import Faults, Network

ROUNDING = 1e-7


class Crashed(Exception):
    """Raised between two effects: the process is no more."""


class Time(Protocol):
    """The world's time, in virtual seconds."""

    now: float

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Do something at a time."""

    def after(self, delay: float, action: Callable[[], object]) -> None:
        """Do something in a while."""


class Clock:
    """The clock of one process: as fast as the world's, from an origin of its own."""

    def __init__(self, time: Time, ahead: float) -> None:
        self._time = time
        self._ahead = ahead

    @property
    def now(self) -> float:
        """What it shows."""
        return self._time.now + self._ahead

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Do something when it shows this, or a little later where sums are rounded."""
        if self._ahead:
            self._time.after(max(0.0, time - self.now) + ROUNDING, action)
        else:
            self._time.at(time, action)


class Resident(Protocol):
    """What a node has of a process that has ended."""

    kind: str
    incarnation: bytes
    pid: int
    frames: list[Frame]

    @property
    def executing(self) -> bytes:
        """The task on top of its stack."""

    @property
    def left(self) -> tuple[Row, ...]:
        """What else is in its slot: rows as in ``ProcessDied.ended``."""


class Home(Protocol):
    """What a process has of its node."""

    arena: SimArena

    @property
    def published(self) -> bytes:
        """The incarnation of the daemon that the session names."""

    @property
    def up(self) -> bool:
        """Whether that daemon lives."""

    def process_died(self, process: Resident) -> None:
        """A process of the node has ended."""


class Surroundings(Time, Protocol):
    """What nodes and processes get from their world."""

    config: Config
    faults: Faults
    network: Network
    states: Counter[str]
    """States that were reached, and how often."""
    shape: random.Random
    """Chance in what the world is like."""
    orders: random.Random
    """Chance in the order in which frames to several receivers leave."""
    frame_rows: int
    """Rows after which a process begins another frame: it may die between any two."""
    circling: bool
    """Whether actors of its programs wait for each other in circles."""
    went_on: bool
    """Whether a task has ended normally that was stopped, which a daemon had forgotten (``docs/limits.md``)."""
    calls: Any
    """Observer of actors' calls. Observers see whole nodes, so their classes are not known here."""
    truth: Any
    """Observer of who waits for whom."""
    invariants: Any
    """Observer of tasks and values."""

    def clock(self) -> Clock:
        """Make the clock of a new process."""

    def incarnation(self) -> bytes:
        """A new incarnation. They are in order, so that traces can be read."""

    def after_turn(self, daemon: Any) -> None:
        """Observe a turn of a daemon."""

    def note(self, text: str) -> None:
        """Write a line into the trace."""

    def fail(self, text: str) -> NoReturn:
        """End the world with this failure."""

    def heard(self, to: Address, source: Address, message: m.Message) -> None:
        """Observe the delivery of a message."""

    def refused(self, sender: bytes, to: bytes, message: m.Message) -> None:
        """Observe a message that a daemon has refused."""

    def refused_by(self, name: str, sender: bytes, message: m.Message) -> None:
        """Observe a message that the process ``name`` has refused."""

    def lives(self, pid: int) -> bool:
        """Whether a process with this pid lives."""

    def ran_to_its_end(self, frame: Frame) -> None:
        """Observe that a body was not stopped while it computed."""

    def condemned(self, frame: Frame) -> bool:
        """Whether a body is to be stopped, or its job has ended. It may notice that by its children before it is stopped itself."""

    def caller_lives(self, frame: Frame) -> bool:
        """Whether the process that made the call which this body runs still lives."""

    def before_release(self) -> Generator[tuple[Any, ...], Any, None]:
        """Wait for calm at the end of the driver's program, then compare the refs of processes with the holders in daemons' tables."""

    def lose(self, share: float) -> None:
        """Lose files of results that their actors' logs make again."""
