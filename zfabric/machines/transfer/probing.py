"""Whether other agents answer, for probes of pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zfabric.machines.common.probing import probe_seconds
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import TRANSFER_AGENT, Address

REPEATS = 10
"""Pings to a silent agent, which may be restarting."""
TRANSFER = 4
"""In a row of ``NodeTable``."""


class Probing:
    """The probe under way, if any. ``peers`` are all rows of the table."""

    def __init__(
        self,
        patience: float,
        peers: Callable[[], Mapping[bytes, m.Row]],
        own: Callable[[], bytes],
        tell_scheduler: Callable[[m.Message], None],
        perform: Callable[[e.Effect], None],
    ) -> None:
        self._seconds = probe_seconds(patience)
        self._peers = peers
        self._own = own
        self._tell_scheduler = tell_scheduler
        self._perform = perform
        self._number = 0
        self._waiting: set[bytes] | None = None
        """Agents that have not answered; None without a probe."""
        self._until = 0.0
        self._ping_at = 0.0

    def on_probe_pairs(self, now: float, source: Address, message: m.ProbePairs) -> None:
        """Ask all nodes with an agent."""
        self._number = message.number
        self._waiting = {node for node, row in self._peers().items() if row[TRANSFER] and node != self._own()}
        self._until, self._ping_at = now + self._seconds, now
        self.tick(now)

    def on_ping(self, now: float, source: Address, message: m.Ping) -> None:
        """Answer another node's agent."""
        self._perform(e.Send(source, m.Pong(message.number)))

    def on_pong(self, now: float, source: Address, message: m.Pong) -> None:
        """Another node's agent has answered."""
        if self._waiting is not None and message.number == self._number:
            self._waiting.discard(source[1:])
            self.tick(now)

    def tick(self, now: float) -> None:
        """Ping silent agents; report once all have answered, or time is up."""
        if self._waiting is None:
            return
        self._waiting &= self._peers().keys()
        if not self._waiting or now >= self._until:
            unreached, self._waiting = tuple(sorted(self._waiting)), None
            self._tell_scheduler(m.PairsProbed(self._number, unreached))
        elif now >= self._ping_at:
            self._ping_at = now + self._seconds / REPEATS
            for node in sorted(self._waiting):
                self._perform(e.Send(TRANSFER_AGENT + node, m.Ping(self._number)))

    def next_deadline(self) -> float | None:
        """When ``tick`` is due next."""
        return None if self._waiting is None else min(self._ping_at, self._until)
