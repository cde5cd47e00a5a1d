"""Tune: a scheduler that stops trials early, checkpoints, a trial that fails and goes on, population-based training, a restored tuner."""

import json
import tempfile
import time
from pathlib import Path

import outcome
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining

STEPS = 8


def descend(config):
    """Approach the optimum ``config["rate"]`` = 0.5; the trial with ``config["fails"]`` raises once, on its way."""
    begin, distance = 0, 1.0
    if checkpoint := tune.get_checkpoint():
        with checkpoint.as_directory() as directory:
            saved = json.loads(Path(directory, "state.json").read_text())
        begin, distance = saved["step"] + 1, saved["distance"]
    for step in range(begin, STEPS):
        distance *= abs(config["rate"] - 0.5) + 0.4
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "state.json").write_text(json.dumps({"step": step, "distance": distance}))
            tune.report({"distance": distance, "begun_at": begin}, checkpoint=tune.Checkpoint.from_directory(directory))
        if config["fails"] and begin == 0 and step == 4:
            raise RuntimeError("on purpose")


class Climber(tune.Trainable):
    """Climbs by its step width; checkpoints are its height."""

    def setup(self, config):
        self.height = 0.0
        self.width = config["width"]

    def reset_config(self, config):
        self.width = config["width"]
        return True

    def step(self):
        self.height += self.width
        return {"height": self.height}

    def save_checkpoint(self, directory):
        Path(directory, "height").write_text(str(self.height))

    def load_checkpoint(self, directory):
        self.height = float(Path(directory, "height").read_text())


def square(config):
    """A trial that takes no time."""
    tune.report({"value": config["x"] ** 2})


def main():
    """Run three experiments; the third is measured."""
    storage = tempfile.mkdtemp(prefix="programs-tune-")
    ray.init(num_cpus=2)

    found = tune.Tuner(
        descend,
        param_space={"rate": tune.grid_search([0.5, 0.6, 0.9, 1.0]), "fails": tune.sample_from(lambda spec: spec.config.rate == 0.5)},
        tune_config=tune.TuneConfig(
            metric="distance", mode="min", scheduler=ASHAScheduler(max_t=STEPS, grace_period=2, reduction_factor=2)
        ),
        run_config=tune.RunConfig(name="asha", storage_path=storage, verbose=0, failure_config=tune.FailureConfig(max_failures=1)),
    ).fit()
    best = found.get_best_result()
    assert best.config["rate"] == 0.5, best.config
    assert best.metrics["training_iteration"] == STEPS, best.metrics
    assert best.metrics["begun_at"] == 5, best.metrics  # The failed trial went on from its last checkpoint.
    assert abs(best.metrics["distance"] - 0.4**STEPS) < 1e-9, best.metrics
    assert min(len(each.metrics_dataframe) for each in found) < STEPS, "no trial was stopped early"
    restored = tune.Tuner.restore(str(Path(storage, "asha")), descend).get_results()
    assert restored.get_best_result("distance", "min").config == best.config

    population = PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=2, hyperparam_mutations={"width": [1.0, 2.0, 10.0]}
    )
    found = tune.Tuner(
        Climber,
        param_space={"width": tune.grid_search([0.01, 10.0])},
        tune_config=tune.TuneConfig(metric="height", mode="max", scheduler=population, reuse_actors=True),
        run_config=tune.RunConfig(
            name="population", storage_path=storage, verbose=0, stop={"training_iteration": 8},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2),
        ),
    ).fit()  # fmt: skip
    heights = sorted(each.metrics["height"] for each in found)
    assert not found.errors, found.errors
    assert heights[0] > 1, heights  # The worse one was replaced by the better one's checkpoint.

    trials = 8
    begun = time.perf_counter()
    found = tune.Tuner(
        square,
        param_space={"x": tune.grid_search(list(range(trials)))},
        run_config=tune.RunConfig(name="many", storage_path=storage, verbose=0),
    ).fit()
    taken = time.perf_counter() - begun
    assert sorted(each.metrics["value"] for each in found) == [x**2 for x in range(trials)]
    ray.shutdown()
    outcome.report(trials, taken, "trials/s")


main()
