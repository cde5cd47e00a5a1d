"""Protocols of all that a simulated node and its processes use of their world: time, randomness, the network, observers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any, NoReturn, Protocol

from tests.sim.arena import SimArena
from tests.sim.bodies import Ancestry, StackFrame
from tests.sim.kinds import Kind
from tests.sim.network import Faults, Network
from zfabric.config import Config
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address
from zfabric.protocol.messages import Envelope, Row

ROUNDING = 1e-7


class Crashed(Exception):
    """Raised between two effects: the process has crashed."""


class Time(Protocol):
    """The world's time, in virtual seconds."""

    now: float

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Schedule an action at a time."""

    def after(self, delay: float, action: Callable[[], object]) -> None:
        """Schedule an action in ``delay`` seconds."""


class Clock:
    """A clock with an offset from the world's time, and faster or slower by a factor."""

    def __init__(self, time: Time, ahead: float, rate: float = 1.0) -> None:
        self._time = time
        self._ahead = ahead
        self._rate = rate

    @property
    def now(self) -> float:
        """The time on this clock."""
        return self._time.now * self._rate + self._ahead

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Schedule an action at a time on this clock, or later by a rounding error."""
        if self._ahead:
            self._time.after(max(0.0, time - self.now) / self._rate + ROUNDING, action)
        else:
            self._time.at(time, action)


class ProcessView(Protocol):
    """What a node uses of a process that has ended."""

    kind: str
    incarnation: bytes
    pid: int
    stack: list[StackFrame]

    @property
    def executing(self) -> bytes:
        """The id of the task on top of its stack."""

    @property
    def left(self) -> tuple[Row, ...]:
        """Further rows in its slot, as in ``ProcessDied.ended``."""


class NodeView(Protocol):
    """What a process uses of its node."""

    arena: SimArena
    stopped_until: float
    """When all its processes go on, on the world's clock; 0 if they are not stopped."""

    frozen: bool
    """Whether its workers are stopped, since it has no lease."""

    identifier: bytes
    dead: bool
    """Whether all its processes have ended, or are about to."""

    @property
    def acts(self) -> bool:
        """Whether its workers run."""

    @property
    def published(self) -> bytes:
        """The incarnation of the daemon in the session file."""

    @property
    def up(self) -> bool:
        """Whether the current daemon lives."""

    def clock(self) -> Clock:
        """The clock of a new process."""

    def owner(self, object_id: bytes, offset: int, size: int) -> str:
        """Who owns an object's room: the ``store`` as that object's; a ``grant``; or empty if it is free or another object's."""

    def process_died(self, process: ProcessView) -> None:
        """Record a process's death."""


class Surroundings(Time, Protocol):
    """What nodes and processes use of their world."""

    config: Config
    faults: Faults
    network: Network
    states: Counter[str]
    """How often each state was reached, by name."""
    shape: random.Random
    """Decides the world's settings."""
    orders: random.Random
    """Decides the order in which frames to several receivers are sent."""
    frame_rows: int
    """Rows after which a process begins another frame. It may die between two frames."""
    kind: Kind
    cancel_forgotten: bool
    """Whether a cancelled task ended normally because a restarted daemon had lost the cancel (``docs/limits.md``)."""
    cancellers: dict[bytes, set[bytes]]
    """Incarnations of the processes that have cancelled each task."""
    ancestry: Ancestry
    """Who submitted what."""
    calls: Any
    """Observer of actors' calls (``CallInvariants``). Observers import nodes, so their types cannot be named here."""
    detached: Any
    """The detached actors of programs that make such (``Detached``)."""
    wait_graph: Any
    """Observer of who waits for whom (``WaitGraph``)."""
    invariants: Any
    """Observer of tasks and values (``Invariants``)."""

    rate: float
    """Bytes that each transfer agent sends in a second."""
    nodes: list[Any]
    """All nodes, dead ones included (``Node``)."""

    @property
    def head(self) -> bytes:
        """The head's node id, in a world of several nodes."""

    def clock(self) -> Clock:
        """Make the clock of a new process."""

    def node_clock(self, number: int) -> Clock | None:
        """Make a node's clock; None if each of its processes has its own."""

    def processes(self) -> list[Any]:
        """All living processes but daemons."""

    def between_nodes(self, daemon: Any, node: bytes, envelopes: list[Envelope]) -> None:
        """Observe messages to another node's daemon."""

    def incarnation(self) -> bytes:
        """A new incarnation, numbered so that traces can be read."""

    def after_turn(self, daemon: Any) -> None:
        """Observe a turn of a daemon."""

    def note(self, text: str) -> None:
        """Add a line to the trace."""

    def fail(self, text: str) -> NoReturn:
        """Raise ``Failure``, which ends the world."""

    def delivered(self, to: Address, source: Address, message: m.Message) -> None:
        """Observe the delivery of a message."""

    def refused(self, sender: bytes, to: bytes, message: m.Message) -> None:
        """Observe a message that a daemon refused."""

    def refused_by(self, name: str, sender: bytes, message: m.Message) -> None:
        """Observe a message that the process ``name`` refused."""

    def last_dropped(self, identifier: bytes) -> None:
        """Observe that a process was notified: no ref to this object is left."""

    def lives(self, pid: int) -> bool:
        """Whether a process with this pid lives."""

    def ran_to_its_end(self, frame: StackFrame) -> None:
        """Observe that a body computed to the end without an interrupt."""

    def condemned(self, frame: StackFrame) -> bool:
        """Whether a body is to be stopped, or its job has ended. Its children may fail before it is stopped itself."""

    def caller_lives(self, frame: StackFrame) -> bool:
        """Whether the process that made this body's call still lives."""

    def before_release(self) -> Generator[tuple[Any, ...], Any, None]:
        """Wait for calm at the program's end, then compare the refs of processes with the holders in the daemons' tables."""

    def lose(self, share: float) -> None:
        """Delete a share of the files whose results actors' logs can rebuild."""
