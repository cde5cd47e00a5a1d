"""How many trivial tasks of a graph of Dask run a second?

The floor is Dask's own ``distributed``, where it takes part as a peer (``--peers``): the same graphs, materialised before the clock starts.
"""

from __future__ import annotations

from perf.question import Aim, Question, Run, Samples
from perf.workloads import WORKLOADS

FIGURES = {"tree reduction of 100,000": "graph_tree", "shuffle by tasks, of 100,000": "graph_shuffle"}


def measure(run: Run) -> dict[str, Samples]:
    """Each in turns with Dask."""
    found = {}
    with run.cluster() as system:
        for figure, name in FIGURES.items():
            work = WORKLOADS[name]
            work.run(system, work.quick)
            size = run.pick(work.size, work.quick)
            samples = run.interleave(lambda work=work, size=size: work.run(system, size), "", None, lambda name=name: run.ask_peers(name))
            if "dask" in samples.peers:
                samples.floor, samples.floor_values = "distributed", samples.peers["dask"]
            found[figure] = samples
    return found


QUESTION = Question(
    "dask_graphs",
    "graphs of Dask, trivial tasks",
    tuple(Aim(figure, "tasks/s", True, 5.0, True, 5.0) for figure in FIGURES),
    measure,
    1200.0,
)
