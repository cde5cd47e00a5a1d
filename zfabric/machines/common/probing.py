"""How long it takes to probe all pairs of nodes: registry, members and transfer agents must agree."""

from __future__ import annotations

PROBE_SHARE = 1 / 3
"""Of ``pair_patience``."""
PROBE_SECONDS_MIN = 5.0
"""The least time of a probe: agents may make a connection first, perhaps on busy machines."""


def probe_seconds(patience: float) -> float:
    """Seconds that a transfer agent waits for answers. ``patience`` is ``pair_patience``."""
    return max(PROBE_SECONDS_MIN, PROBE_SHARE * patience)
