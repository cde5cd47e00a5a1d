"""Pairs of nodes that cannot reach each other: all are probed, and the node that most others cannot reach is to end.

A complaint says only that two nodes do not reach each other, which may be the fault of either. So every living node is asked which ones
it does not reach. The node with the most pairs of that kind goes; of several, the youngest, whose end costs least. If it is the head,
nobody ends, since all would end with it. If the pairs have recovered meanwhile, nobody does either.

A node that is to end is notified, and its lease is not renewed any more. It is dead when that has run out: until then it may act.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from zfabric.machines.common.probing import probe_seconds

PROBE_PATIENCE = 2.0
"""How long answers are waited for, as a multiple of the time that transfer agents have."""


class Worst(NamedTuple):
    """The node that is to end, how many others it does not reach or they do not reach it, and how many living nodes there are."""

    node: bytes
    pairs: int
    living: int


class Probes:
    """The probe that is under way, if any. ``patience`` is ``pair_patience``."""

    def __init__(self, patience: float, first_number: int) -> None:
        self._patience = patience
        self.number = first_number
        """The number of the last probe."""
        self.until: float | None = None
        """When the probe under way ends, if nodes do not answer; None if there is none."""
        self._answers: dict[bytes, frozenset[bytes]] = {}

    def begin(self, now: float) -> bool:
        """Begin to probe all pairs, unless that is under way."""
        if self.until is not None:
            return False
        self.number += 1
        self.until = now + PROBE_PATIENCE * probe_seconds(self._patience)
        self._answers.clear()
        return True

    def answer(self, number: int, node: bytes, unreached: Iterable[bytes]) -> None:
        """Note which nodes a node does not reach."""
        if self.until is not None and number == self.number:
            self._answers[node] = frozenset(unreached)

    def give_up(self) -> None:
        """Forget the probe under way: answers may lie unread. Who complained complains again."""
        self.until = None

    def end(self, now: float, numbers: Mapping[bytes, int]) -> Worst | None:
        """End the probe if all living nodes have answered, or it is late: return the node that is to end.

        ``numbers`` are those of the living nodes.
        """
        if self.until is None or (now < self.until and not numbers.keys() <= self._answers.keys()):
            return None
        self.until = None
        pairs = {frozenset((one, other)) for one, unreached in self._answers.items() for other in unreached if one != other}
        count = Counter(node for pair in pairs if pair <= numbers.keys() for node in pair)
        if not count:
            return None
        worst = max(count, key=lambda node: (count[node], numbers[node]))
        return Worst(worst, count[worst], len(numbers))
