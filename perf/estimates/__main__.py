"""``python -m perf.estimates``: recorded loads, placed by different estimates, as a table."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from perf import report
from perf.estimates.model import ESTIMATES, TRUTH, mean_wait
from perf.estimates.record import PATH

BEGIN, END = "<!-- begin estimates -->", "<!-- end estimates -->"
SEEDS = 60


def main(arguments: list[str] | None = None) -> int:
    """Print how much longer tasks wait with each estimate than if durations were known beforehand."""
    parser = argparse.ArgumentParser("python -m perf.estimates", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help=f"orders of arrival of which the mean is taken ({SEEDS})")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="put the table between the marks of a page")
    options = parser.parse_args(arguments)
    table = compared(json.loads(PATH.read_text()), options.seeds)
    print(table)
    if options.write:
        report.write_into(options.write, table + "\n", BEGIN, END)
    return 0


def compared(loads: dict[str, list[int]], seeds: int) -> str:
    """The table: loads by row, estimates by column."""
    lines = [f"| load | wait with {TRUTH} | {' | '.join(ESTIMATES)} |", f"|---|--:|{'--:|' * len(ESTIMATES)}"]
    ratios: dict[str, list[float]] = {name: [] for name in ESTIMATES}
    for load, durations in loads.items():
        known = statistics.fmean(mean_wait(durations, TRUTH, seed) for seed in range(seeds))
        cells = []
        for name, found in ratios.items():
            found.append(statistics.fmean(mean_wait(durations, name, seed) for seed in range(seeds)) / known)
            cells.append(f"{found[-1]:.2f}")
        lines.append(f"| {load} | {known * 1e3:.0f} ms | {' | '.join(cells)} |")
    means = [f"{statistics.geometric_mean(found):.2f}" for found in ratios.values()]
    return "\n".join([*lines, f"| all (geometric mean) | | {' | '.join(means)} |"])


if __name__ == "__main__":
    sys.exit(main())
