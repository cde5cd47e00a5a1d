"""How long it takes to probe all pairs of nodes: what the registry, the members and the transfer agents must agree on."""

from __future__ import annotations

PROBE_SHARE = 1 / 3
"""The time of a probe as a share of ``pair_patience``."""
PROBE_SECONDS_MIN = 5.0
"""The least time of a probe: agents that had nothing to do with each other make a connection first, perhaps on busy machines."""


def probe_seconds(patience: float) -> float:
    """How long a transfer agent waits for the answers of the others, if pairs are probed after ``patience`` seconds (``pair_patience``)."""
    return max(PROBE_SECONDS_MIN, PROBE_SHARE * patience)
