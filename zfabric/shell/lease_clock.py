"""The clock that leases are measured with: it runs on while the machine is suspended, where the shell's other clock stands still.

A node that was suspended for longer than its lease is dead for the others, and must not act before it knows. So the machines that decide on
leases read this clock, and all others the shell's.
"""

from __future__ import annotations

from collections.abc import Iterable

from zfabric.protocol.effects import Effect
from zfabric.protocol.ids import Address
from zfabric.protocol.machine import Machine, WrappedMachine
from zfabric.protocol.messages import Message

NOTICED_SECONDS = 0.05
"""Changes of the difference between the clocks that count. They are read one after the other, so it is never quite the same."""


class LeaseClock:
    """How far the clock of leases is ahead of the shell's, in seconds. Two clocks that run alike are as good as one."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def read(self, now: float, lease_now: float) -> bool:
        """Compare the clocks. Return whether the difference has changed: what was due earlier may be due now."""
        changed = abs(lease_now - now - self.ahead) > NOTICED_SECONDS
        if changed:
            self.ahead = lease_now - now
        return changed


class OnLeaseClock(WrappedMachine):
    """A machine that is given the time on the clock of leases."""

    def __init__(self, machine: Machine, clock: LeaseClock) -> None:
        super().__init__(machine)
        self.clock = clock

    def step(self, now: float, source: Address, message: Message) -> None:
        """Process one message."""
        self.machine.step(now + self.clock.ahead, source, message)

    def tick(self, now: float) -> None:
        """Act on deadlines that have passed."""
        self.machine.tick(now + self.clock.ahead)

    def next_deadline(self) -> float | None:
        """The time at which ``tick`` is due next, on the shell's clock."""
        due = self.machine.next_deadline()
        return None if due is None else due - self.clock.ahead

    def take_effects(self, now: float) -> Iterable[Effect]:
        """Return what the machine decides."""
        return self.machine.take_effects(now + self.clock.ahead)
