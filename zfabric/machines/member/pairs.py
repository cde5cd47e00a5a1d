"""Nodes that this one cannot reach: complaints, and its part in a probe of all pairs.

The shell reports missing connections, the transfer agent silent agents. After ``pair_patience`` a node is complained of; the registry has
all pairs probed, and decides.
"""

from __future__ import annotations

from collections.abc import Callable

from zfabric.machines.common.probing import PROBE_SHARE, probe_seconds
from zfabric.protocol import messages as m

AGENT_PATIENCE = 1.25
"""In units of the agent's own time."""


class Pairs:
    """One node's pairs. ``patience`` is how many seconds one may be out of reach."""

    def __init__(self, patience: float, tell_registry: Callable[[m.Message], None], tell_scheduler: Callable[[m.Message], None]) -> None:
        self._patience = patience
        self._tell_registry = tell_registry
        self._tell_scheduler = tell_scheduler
        self._since: dict[bytes, float] = {}
        """Since when there is no connection."""
        self._complained_at = -patience
        self._probe = 0
        """The agent's unanswered probe, or 0."""
        self._probe_until = 0.0

    def on_unreachable(self, now: float, nodes: m.Ids) -> None:
        """Record missing connections."""
        self._since = {node: self._since.get(node, now) for node in nodes}

    def on_peers_silent(self, now: float, nodes: m.Ids) -> None:
        """The transfer agent's patience has expired."""
        self._complain(now, nodes)

    def on_probe(self, now: float, message: m.ProbePairs) -> None:
        """Have the agent ask all nodes."""
        self._probe = message.number
        self._probe_until = now + AGENT_PATIENCE * probe_seconds(self._patience)
        self._tell_scheduler(message)

    def on_probed(self, now: float, number: int, nodes: m.Ids) -> None:
        """Report nodes not reached, by the agent or for a while by this daemon."""
        if number == self._probe:
            self._probe = 0
            own = {node for node, since in self._since.items() if now >= since + PROBE_SHARE * self._patience}
            self._tell_registry(m.PairsProbed(number, tuple(sorted(own.union(nodes)))))

    def tick(self, now: float) -> None:
        """Complain of nodes; answer for a silent agent."""
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
