"""Tune runs a hundred trials, each with three reports."""

import json
import tempfile
import time

import ray
from ray import tune

TRIALS, STEPS = 100, 3


def climb(config):
    """Report ``STEPS`` times."""
    for step in range(STEPS):
        tune.report({"height": config["x"] * (step + 1)})


def main():
    """Run them all."""
    ray.init(num_cpus=2)
    begun = time.perf_counter()
    found = tune.Tuner(
        climb,
        param_space={"x": tune.grid_search(list(range(TRIALS)))},
        run_config=tune.RunConfig(storage_path=tempfile.mkdtemp(), verbose=0),
    ).fit()
    seconds = time.perf_counter() - begun
    assert not found.errors, found.errors
    assert sorted(each.metrics["height"] for each in found) == [STEPS * x for x in range(TRIALS)]
    assert all(len(each.metrics_dataframe) == STEPS for each in found)
    ray.shutdown()
    print(json.dumps({"program": "tune_hundred", "seconds": seconds, "rate": TRIALS / seconds, "unit": "trials/s"}))


main()
