"""``python -m perf.peers SYSTEM WORKLOAD SIZE WARM WORKERS``: one sample, for ``perf.peers.sample``."""

from __future__ import annotations

import sys

from perf.peers import MARK, load
from perf.workloads import WORKLOADS


def main(name: str, workload: str, size: int, warm: int, workers: int) -> None:
    """Start the system, of two nodes if the workload needs them; warm it up, take the sample, stop it."""
    system = load(name, WORKLOADS[workload].nodes)
    system.start(workers)
    try:
        run = WORKLOADS[workload].run
        if warm:
            run(system, warm)
        print(MARK, run(system, size), flush=True)
    finally:
        system.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
