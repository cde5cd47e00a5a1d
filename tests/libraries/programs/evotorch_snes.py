"""EvoTorch: two actors evaluate a population, and SNES finds the minimum."""

import time

import outcome
import ray
import torch
from evotorch import Problem
from evotorch.algorithms import SNES

WARM, MEASURED = 20, 120


def sphere(solution):
    """The squared length of one solution."""
    return torch.sum(solution.pow(2.0))


def main():
    """Search, and measure generations once the actors are warm."""
    ray.init(num_cpus=2)
    problem = Problem("min", sphere, solution_length=10, initial_bounds=(-1, 1), num_actors=2)
    searcher = SNES(problem, stdev_init=1.0, popsize=40)
    searcher.run(WARM)
    begun = time.perf_counter()
    searcher.run(MEASURED)
    taken = time.perf_counter() - begun
    assert searcher.step_count == WARM + MEASURED
    assert searcher.status["best_eval"] < 1e-3, searcher.status["best_eval"]
    problem.kill_actors()
    ray.shutdown()
    outcome.report(MEASURED, taken, "generations/s")


main()
