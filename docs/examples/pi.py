"""Estimates pi by throwing darts: tasks that start tasks, and `zf.wait` to use whatever is done first.

    zfabric submit docs/examples/pi.py --darts 100000000

Each line it prints uses the groups of darts that have landed by then, whichever those are.
"""

import argparse
import math

import numpy as np

import zfabric as zf

THROW = 250_000  # darts of one task: a few milliseconds
GROUP = 16  # tasks that one task starts


@zf.remote
def throw(darts: int, seed: int) -> int:
    """How many of ``darts`` darts, thrown at a square, hit the quarter of a circle in it."""
    x, y = np.random.default_rng(seed).random((2, darts))
    return int(np.count_nonzero(x * x + y * y < 1))


@zf.remote
def throw_group(sizes: list[int], seed: int) -> tuple[int, int]:
    """The darts of several tasks together. A task may wait for tasks of its own: its worker runs them meanwhile."""
    hits = zf.get([throw.remote(size, seed + number) for number, size in enumerate(sizes)])
    return sum(sizes), sum(hits)


def main() -> None:
    """Read the command line, start every group, and refine the estimate with each that is done."""
    parser = argparse.ArgumentParser(description="Estimate pi by throwing darts.")
    parser.add_argument("--darts", type=int, default=100_000_000, help="how many to throw (default: %(default)s)")
    darts = parser.parse_args().darts
    if darts < 1:
        parser.error("pi takes at least one dart")

    zf.init(ignore_reinit_error=True)
    sizes = [min(THROW, darts - start) for start in range(0, darts, THROW)]
    pending = [throw_group.remote(sizes[first : first + GROUP], first) for first in range(0, len(sizes), GROUP)]
    thrown = hits = 0
    while pending:
        done, pending = zf.wait(pending, num_returns=min(4, len(pending)))
        for group_thrown, group_hits in zf.get(done):
            thrown, hits = thrown + group_thrown, hits + group_hits
        print(f"{thrown:>13,} darts  pi is about {4 * hits / thrown:.6f}", flush=True)
    print(f"off by {abs(4 * hits / thrown - math.pi):.6f}; {1.64 / math.sqrt(thrown):.6f} is to be expected")


if __name__ == "__main__":
    main()
