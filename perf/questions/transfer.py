"""How fast do values go from one node's arena to that of another?

The floor is the same frames by nothing but pyzmq: encrypted as ours are, sent without a copy, and copied once at the receiver, into memory
that was used before. Both nodes are on this machine, so all of it is bound by its processors: what two of them do on one machine, each of
two machines does alone. "Not encrypted" and "raw TCP" show what the encryption costs; no setting turns it off.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from functools import partial
from types import TracebackType

from perf.question import Aim, Question, Run, Samples
from perf.transfers import AgentNodes, RawFrames
from zfabric.adapters.processes import memory_available
from zfabric.config import GiB, MiB

FLOOR = "frames of 1 MiB by pyzmq with CURVE, and one copy"
PLAIN_FLOOR = "the same frames without CURVE"
SIZES = ((MiB, "1 MiB, several under way"), (16 * MiB, "16 MiB"), (GiB, "1 GiB"))
UNITS = 1024
"""Chunks of 1 MiB in one sample."""


class Values:
    """Some values of one size on the first of two nodes. Use as a context manager."""

    def __init__(self, nodes: AgentNodes, size: int, count: int, first: int = 0) -> None:
        self.nodes = nodes
        self.size = size
        self.source, self.reader = nodes.nodes
        block = os.urandom(MiB)

        def fill(target: memoryview) -> None:
            for start in range(0, len(target), MiB):
                target[start : start + MiB] = block

        self.values = []
        for number in range(count):  # No two values of a node have the same number.
            self.values.append(self.source.put(first + number, size, fill))
            nodes.until(lambda: self.values[-1] in self.source.values)
        self.mebibytes_per_second()  # The memory of freed copies is used again.

    def __enter__(self) -> Values:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        for value in self.values:
            self.source.free(value)

    def mebibytes_per_second(self) -> float:
        """Copy all values; forget the copies."""
        begin = time.perf_counter()
        for value in self.values:
            self.reader.pull(value, self.size, self.source)
        self.nodes.until(lambda: len(self.reader.ended) == len(self.values))
        seconds = time.perf_counter() - begin
        failed = [ended for ended in self.reader.ended.values() if ended != ("", "")]
        if failed:
            raise RuntimeError(f"copies failed: {failed[:3]}")
        for value in self.values:
            self.reader.free(value)
        self.reader.ended.clear()
        self.nodes.until(lambda: not self.source.pinned())
        return self.size * len(self.values) / MiB / seconds


def measure(run: Run) -> dict[str, Samples]:
    """Each size in turns with the floor."""
    units = run.pick(UNITS, 16)
    largest = run.pick(min(GiB, memory_available() // 8 // MiB * MiB), 8 * MiB)
    samples: dict[str, Samples] = {}
    raw, plain = RawFrames(), RawFrames(encrypted=False)
    with closing(raw), closing(plain):
        with AgentNodes(2, 5 * largest // 2 + 256 * MiB) as nodes:
            for turn, (wanted, figure) in enumerate(SIZES):
                size = min(wanted, largest)
                count = max(1, min(units * MiB // size, 64))
                floor = partial(raw.mebibytes_per_second, size * count // MiB)
                with Values(nodes, size, count, 1000 * turn) as values:
                    samples[figure] = run.interleave(values.mebibytes_per_second, FLOOR, floor)
        size, count = 16 * MiB, run.pick(32, 1)
        with AgentNodes(2, 3 * size * count + 256 * MiB, encrypted=False) as nodes, Values(nodes, size, count) as values:
            floor = partial(plain.mebibytes_per_second, size * count // MiB)
            samples["16 MiB, not encrypted"] = run.interleave(values.mebibytes_per_second, PLAIN_FLOOR, floor)
        samples["raw TCP"] = run.interleave(lambda: plain.raw_tcp(units), "", None)
    return samples


QUESTION = Question(
    "transfer",
    "values copied from one arena to another",
    (
        *(Aim(figure, "MiB/s", True, 0.8, relative=True, to_be_done=0.7) for _, figure in SIZES),
        Aim("16 MiB, not encrypted", "MiB/s", True),
        Aim("raw TCP", "MiB/s", True),
    ),
    measure,
    seconds_max=600,
)
