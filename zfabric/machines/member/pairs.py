"""Other nodes that this one cannot reach: when it complains of them, and what it answers when all pairs are probed.

The shell reports to which nodes there is no connection; the transfer agent, which ones do not answer it. A node that cannot be reached for
``pair_patience`` is complained of. The registry then has every node probe all others, and decides.
"""

from __future__ import annotations

from collections.abc import Callable

from zfabric.machines.common.probing import PROBE_SHARE, probe_seconds
from zfabric.protocol import messages as m

AGENT_PATIENCE = 1.25
"""How long the answer of the transfer agent is waited for, as a multiple of the time that it has."""


class Pairs:
    """What one node knows of its pairs. ``patience`` is how long a node may be out of reach, in seconds."""

    def __init__(self, patience: float, tell_registry: Callable[[m.Message], None], tell_scheduler: Callable[[m.Message], None]) -> None:
        self._patience = patience
        self._tell_registry = tell_registry
        self._tell_scheduler = tell_scheduler
        self._since: dict[bytes, float] = {}
        """Since when there is no connection, by node."""
        self._complained_at = -patience
        self._probe = 0
        """The number of the probe that the transfer agent has not answered; 0 if there is none."""
        self._probe_until = 0.0

    def on_unreachable(self, now: float, nodes: m.Ids) -> None:
        """Note to which nodes there is no connection."""
        self._since = {node: self._since.get(node, now) for node in nodes}

    def on_peers_silent(self, now: float, nodes: m.Ids) -> None:
        """The transfer agent has had no answer from these nodes for as long as it is patient."""
        self._complain(now, nodes)

    def on_probe(self, now: float, message: m.ProbePairs) -> None:
        """Have the transfer agent ask all nodes whether they answer."""
        self._probe = message.number
        self._probe_until = now + AGENT_PATIENCE * probe_seconds(self._patience)
        self._tell_scheduler(message)

    def on_probed(self, now: float, number: int, nodes: m.Ids) -> None:
        """Report which nodes were not reached: by the transfer agent, or for a while by this daemon."""
        if number == self._probe:
            self._probe = 0
            own = {node for node, since in self._since.items() if now >= since + PROBE_SHARE * self._patience}
            self._tell_registry(m.PairsProbed(number, tuple(sorted(own.union(nodes)))))

    def tick(self, now: float) -> None:
        """Complain of nodes that are out of reach for too long; answer for a transfer agent that does not."""
        self._complain(now, tuple(sorted(node for node, since in self._since.items() if now >= since + self._patience)))
        if self._probe and now >= self._probe_until:
            self.on_probed(now, self._probe, ())

    def _complain(self, now: float, nodes: m.Ids) -> None:
        if nodes and now >= self._complained_at + self._patience:
            self._complained_at = now
            self._tell_registry(m.Complain(nodes))

    def next_deadline(self) -> float | None:
        """When ``tick`` is wanted next."""
        due = [max(since, self._complained_at) + self._patience for since in self._since.values()]
        return min([*due, self._probe_until] if self._probe else due, default=None)
