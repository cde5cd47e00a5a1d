"""The contract between a machine (a protocol role) and its shell (the runtime, or the simulator)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, NamedTuple, Protocol

from zfabric.protocol.effects import Effect
from zfabric.protocol.ids import Address
from zfabric.protocol.messages import Message


class Diagnosis(NamedTuple):
    """Why something is in its state: ``state`` in one word, ``reason`` in one sentence, and facts by name."""

    subject: bytes
    state: str
    reason: str
    facts: tuple[tuple[str, str], ...] = ()


class Refusal(Exception):
    """A peer's message is invalid: its batch is refused, answered and counted; nothing was changed."""


class InvariantViolation(AssertionError):
    """An impossible state of our own: the process dies, is restarted, and recovers."""


Handler = Callable[[float, Address, Any], None]
"""Receives one type of message: (now, source, message)."""


class Handlers(dict[type[Any], Handler]):
    """The messages that a machine accepts, by handler. Others are dropped, and counted in ``counts["refused"]``."""

    def __init__(self, counts: MutableMapping[str, int], handlers: Mapping[type[Any], Handler]) -> None:
        super().__init__(handlers)
        self._counts = counts

    def __missing__(self, kind: type[Any]) -> Handler:
        """The handler of a message that the machine does not accept."""
        return self._refuse

    def _refuse(self, now: float, source: Address, message: Message) -> None:
        self._counts["refused"] += 1


class Machine(Protocol):
    """A protocol role without I/O, clock or randomness. Time is an argument, in seconds.

    ``step`` records: it never blocks, and never fails half way. Decisions (placement, dispatch) happen once per turn, in ``take_effects``;
    the shell performs its result in order.
    """

    address: Address
    handlers: Handlers

    def step(self, now: float, source: Address, message: Message) -> None:
        """Process one message."""

    def tick(self, now: float) -> None:
        """Act on deadlines that have passed."""

    def next_deadline(self) -> float | None:
        """The time at which ``tick`` is due next; None for never."""

    def take_effects(self, now: float) -> Iterable[Effect]:
        """Decide what follows from all recorded messages, and return it."""

    def statistics(self) -> Mapping[str, float]:
        """Counters and sizes, by name."""

    def check_invariants(self) -> None:
        """Raise InvariantViolation if two facts disagree. Slow; for tests and the simulator."""


class WrappedMachine:
    """A machine around another, to which it passes on what a subclass does not override."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.address = machine.address
        self.handlers = machine.handlers
        self.statistics = machine.statistics
        self.check_invariants = machine.check_invariants

    def step(self, now: float, source: Address, message: Message) -> None:
        """Process one message."""
        self.machine.step(now, source, message)

    def tick(self, now: float) -> None:
        """Act on deadlines that have passed."""
        self.machine.tick(now)

    def next_deadline(self) -> float | None:
        """The time at which ``tick`` is due next; None for never."""
        return self.machine.next_deadline()

    def take_effects(self, now: float) -> Iterable[Effect]:
        """Return what the machine decides."""
        return self.machine.take_effects(now)
