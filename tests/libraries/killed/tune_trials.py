"""Trials of Tune are restored from their checkpoints, and finish."""

import json
import os
import tempfile
import time

from ray import tune
from three_nodes import three_nodes

STEPS = 25


def trainable(config):
    start, checkpoint = 0, tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory, open(os.path.join(directory, "step")) as file:
            start = int(file.read()) + 1
    for step in range(start, STEPS):
        config["nodes"].note()
        time.sleep(0.3)
        with tempfile.TemporaryDirectory() as directory:
            with open(os.path.join(directory, "step"), "w") as file:
                file.write(str(step))
            found = {"step": step, "score": step * config["x"], "start": start}
            tune.report(found, checkpoint=tune.Checkpoint.from_directory(directory))


if __name__ == "__main__":
    began = time.time()
    with three_nodes(workers=3) as nodes:
        failures = tune.FailureConfig(max_failures=5)
        results = tune.Tuner(
            trainable,
            param_space={"x": tune.grid_search([1, 2, 3]), "nodes": nodes},
            tune_config=tune.TuneConfig(metric="score", mode="max"),
            run_config=tune.RunConfig(storage_path=tempfile.mkdtemp(), failure_config=failures, verbose=0),
        ).fit()
        assert not results.errors, results.errors
        assert sorted(each.metrics["score"] for each in results) == [(STEPS - 1) * x for x in (1, 2, 3)]
        assert any(each.metrics["start"] > 0 for each in results), "no trial was restored"
    print(json.dumps({"program": "tune killed", "seconds": time.time() - began}))
