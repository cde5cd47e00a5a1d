"""How fast are programs of scikit-learn whose calls joblib runs on a cluster?

The floor is loky, the processes that joblib starts by itself: everything is warm in both, and both run two calls at a time.
"""

from __future__ import annotations

from perf.peers import load
from perf.question import WORKERS, Aim, Question, Run, Samples
from perf.workloads import WORKLOADS

FIGURES = {
    "grid search of 20 support vector machines": "grid_search",
    "random forest of 400 trees": "forest",
    "grid search of 6 random forests": "forest_search",
}


def measure(run: Run) -> dict[str, Samples]:
    """Each in turns with loky, and with Dask."""
    from zfabric.util.joblib import register

    register()
    loky = load("loky")
    loky.start(WORKERS)
    samples = {}
    try:
        with run.cluster(config={"preload": ("sklearn.ensemble",)}) as system:  # All are warm, those that start later, too.
            for figure, name in FIGURES.items():
                work = WORKLOADS[name]
                work.run(loky, work.quick)
                samples[figure] = run.compare(name, system, "loky", lambda work=work: work.run(loky, run.pick(work.size, work.quick)))
    finally:
        loky.stop()
    return samples


QUESTION = Question(
    "joblib", "scikit-learn on the digits, by joblib", tuple(Aim(figure, "s", False, 1.0, True) for figure in FIGURES), measure
)
