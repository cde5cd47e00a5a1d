"""How near does a put of a large array come to memcpy?

The floor copies as many bytes in pieces of the same size, over more memory than the last-level cache holds, to pages that were
touched before. "Warm" is the last of several passes on one cluster; "first pass" is what a new cluster does with its first
puts, when no page of its arena was ever touched but those it made ready at its start.

The machine has the memory for that first pass: it was handed out and taken back right before. A virtual machine may first have
to get memory from its host, at a thirtieth of the speed; "fresh memory" shows what this one did at the first touch of the run. "First
pass, one thread" is what the system takes for the same without a cluster: getting pages, and copying into them.
"""

from __future__ import annotations

from perf import machine
from perf.floors import Copies, fresh_copies_gigabytes_per_second
from perf.question import PEER_ROUNDS, Aim, Question, Run, Samples
from perf.workloads import LARGE_MEGABYTES, MB, PASS_BYTES, put_pass

FLOOR = "memcpy of as much, in such pieces, to warm memory"
PASSES = 3
"""Passes before a cluster counts as warm, that which counts among them."""


def measure(run: Run) -> dict[str, Samples]:
    """Each size in turns with memcpy, each time on a cluster of its own."""
    import numpy

    total = run.pick(PASS_BYTES, PASS_BYTES // 8)
    copies = Copies(max(total, run.pick(4 * machine.last_level_cache(), 0)))
    samples = {"fresh memory": Samples([machine.touch_memory(2 * total)])}
    bare = samples["first pass, one thread"] = Samples([])
    for size in LARGE_MEGABYTES:
        piece = numpy.ones(size * MB, numpy.uint8)
        first, warm = Samples([], FLOOR), Samples([], FLOOR)
        for _ in range(run.repeat):
            with run.cluster(object_store_memory=8 * PASS_BYTES) as system:
                machine.touch_memory(2 * total)
                rates = []
                for _ in range(run.pick(PASSES, 2)):
                    rates.append(put_pass(system, piece, total))
                    system.settle()
            floor = copies.gigabytes_per_second(piece)
            machine.touch_memory(2 * total)
            bare.values.append(fresh_copies_gigabytes_per_second(piece, total))
            for figure, rate in ((first, rates[0]), (warm, rates[-1])):
                figure.values.append(rate)
                figure.floor_values.append(floor)
            if len(warm.values) <= PEER_ROUNDS:
                for name, rate in run.ask_peers(f"put_{size}mb").items():
                    warm.peers.setdefault(name, []).append(rate)
        samples[f"{size} MB, warm"], samples[f"{size} MB, first pass"] = warm, first
    return samples


QUESTION = Question(
    "put_large",
    "puts of arrays of 1, 16 and 100 MB",
    (
        *(
            Aim(f"{size} MB, {how}", "GB/s", True, budget, relative=True)
            for how, budget in (("warm", 0.9), ("first pass", 0.6))
            for size in LARGE_MEGABYTES
        ),
        Aim("fresh memory", "GB/s", True),
        Aim("first pass, one thread", "GB/s", True),
    ),
    measure,
    seconds_max=600,
)
