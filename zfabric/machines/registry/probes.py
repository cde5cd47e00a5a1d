"""Pairs of nodes that cannot reach each other: all are probed, and the node that most others cannot reach is to end.

A complaint may be either node's fault, so each reports which ones it does not reach. The node with most such pairs goes; of several, the
youngest, whose end costs least. Nobody ends if it is the head, since all would, or if the pairs have recovered. The node is dead when its
lease has expired: until then it may act.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from zfabric.machines.common.probing import probe_seconds

PROBE_PATIENCE = 2.0
"""In units of the transfer agents' time."""


class Worst(NamedTuple):
    """The node to end; ``pairs`` others are out of reach, one way or the other."""

    node: bytes
    pairs: int
    living: int


class Probes:
    """The probe under way. ``patience`` is ``pair_patience``."""

    def __init__(self, patience: float, first_number: int) -> None:
        self._patience = patience
        self.number = first_number
        self.until: float | None = None
        """When it ends without all answers; None without a probe."""
        self._answers: dict[bytes, frozenset[bytes]] = {}

    def begin(self, now: float) -> bool:
        """Probe all pairs, unless under way."""
        if self.until is not None:
            return False
        self.number += 1
        self.until = now + PROBE_PATIENCE * probe_seconds(self._patience)
        self._answers.clear()
        return True

    def answer(self, number: int, node: bytes, unreached: Iterable[bytes]) -> None:
        """Record whom a node does not reach."""
        if self.until is not None and number == self.number:
            self._answers[node] = frozenset(unreached)

    def give_up(self) -> None:
        """Drop the probe: answers may be unread. Who complained complains again."""
        self.until = None

    def end(self, now: float, numbers: Mapping[bytes, int]) -> Worst | None:
        """End a late or complete probe of the living nodes (with ``numbers``); return the node to end."""
        if self.until is None or (now < self.until and not numbers.keys() <= self._answers.keys()):
            return None
        self.until = None
        pairs = {frozenset((one, other)) for one, unreached in self._answers.items() for other in unreached if one != other}
        count = Counter(node for pair in pairs if pair <= numbers.keys() for node in pair)
        if not count:
            return None
        worst = max(count, key=lambda node: (count[node], numbers[node]))
        return Worst(worst, count[worst], len(numbers))
