"""``python -m perf.scaling``: simulated clusters of 1 to 1,000 nodes, as a table, and with ``--write`` as a picture too."""

from __future__ import annotations

import argparse
import gc
import sys
from pathlib import Path

from perf import machine, report
from perf.scaling import picture
from perf.scaling.costs import Costs, measure
from perf.scaling.loads import CPUS, LOADS, Result
from perf.scaling.world import Cluster

BEGIN, END = "<!-- begin scaling -->", "<!-- end scaling -->"
PICTURE = Path("pictures", "scaling.svg")


def simulated(sizes: list[int], loads: list[str], costs: Costs) -> list[Result]:
    """The results, load by load. A cluster serves all loads: to start a thousand nodes takes a minute."""
    found = {}
    gc.disable()  # Millions of objects would be looked at again and again, and none is in a cycle until a cluster has ended.
    try:
        for nodes in sizes:
            print(f"{nodes} nodes start", file=sys.stderr, flush=True)
            cluster = Cluster(nodes, costs, CPUS)
            for load in loads:
                print(f"{nodes} nodes: {load}", file=sys.stderr, flush=True)
                found[load, nodes] = LOADS[load](cluster)
            del cluster
            gc.collect()
    finally:
        gc.enable()
    return [found[load, nodes] for load in loads for nodes in sizes]


def main(arguments: list[str] | None = None) -> int:
    """Simulate each load on clusters of each size."""
    parser = argparse.ArgumentParser("python -m perf.scaling", description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 10, 100, 1000], metavar="N", help="sizes of clusters (1 10 100 1000)")
    parser.add_argument("--load", choices=LOADS, action="append", help="only this load")
    parser.add_argument("--recorded", action="store_true", help="with the costs in perf/scaling/costs.py, measuring nothing")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help=f"put the table between the marks of a page, and the picture at {PICTURE} beside it"
    )
    options = parser.parse_args(arguments)
    costs = Costs() if options.recorded else measure()
    source = "recorded" if options.recorded else f"measured, commit `{machine.commit()}`"
    results = simulated(options.nodes, options.load or list(LOADS), costs)
    table = picture.table(results, costs, source)
    print(table)
    if options.write:
        report.write_into(options.write, table + "\n", BEGIN, END)
        path = options.write.parent / PICTURE
        path.parent.mkdir(exist_ok=True)
        path.write_text(picture.picture(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
