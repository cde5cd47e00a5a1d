"""How fast do tasks and calls run on another node, and how fast do values get from there?

Two nodes of one CPU each on this machine: the driver is on the first, and tasks and the actor on the second. Ray and Dask (``--peers``) do
the same, each with two nodes of its own. Other questions compare with floors; connections of both peers are not encrypted, ours are.
"""

from __future__ import annotations

from perf.nodes import Elsewhere, Nodes
from perf.question import Aim, Question, Run, Samples
from perf.workloads import WORKLOADS

FIGURES = {
    "tasks, many at once": ("elsewhere_async", "tasks/s", True),
    "tasks, one after the other": ("elsewhere_sync", "µs", False),
    "calls, many under way": ("elsewhere_actor_async", "calls/s", True),
    "calls, one after the other": ("elsewhere_actor_sync", "µs", False),
    "values of 1 MB": ("moved_1mb", "MB/s", True),
    "values of 16 MB": ("moved_16mb", "MB/s", True),
}
"""Figure -> (workload, unit, whether more is better)."""


def measure(run: Run) -> dict[str, Samples]:
    """Each workload in turns with the peers."""
    samples = {}
    with Nodes(2, store=1024 * 2**20) as two:
        two.join()
        system = Elsewhere(two)
        for figure, (name, _, _) in FIGURES.items():
            work = WORKLOADS[name]
            size = run.pick(work.size, work.quick)
            work.run(system, work.quick)
            samples[figure] = run.interleave(
                lambda work=work, size=size: work.run(system, size), "", None, lambda name=name: run.ask_peers(name)
            )
    return samples


QUESTION = Question(
    "nodes_peers",
    "tasks, calls and values of another node, beside Ray and Dask",
    tuple(Aim(figure, unit, better) for figure, (_, unit, better) in FIGURES.items()),
    measure,
    seconds_max=1200,
)
