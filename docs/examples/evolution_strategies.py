"""Trains a policy on a Gymnasium environment by evolution strategies, with every core.

    zfabric submit docs/examples/evolution_strategies.py
    zfabric submit docs/examples/evolution_strategies.py --env Pendulum-v1 --iterations 100

The method is that of Salimans et al., "Evolution Strategies as a Scalable Alternative to Reinforcement Learning" (2017). An
iteration tries many small random changes of the policy's parameters, each in both directions (antithetic sampling), and moves
the parameters towards those that did well; only the rank of a return counts, not its size.

What makes it a good job for a cluster is how little has to be sent. One table of random numbers is put into the object store at
the start. Every worker reads it there in place, so that a change of the parameters is named by its offset in the table: a task
gets a few numbers and gives back a few numbers, however many parameters there are.
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import zfabric as zf

HIDDEN = 16  # units of the policy's one hidden layer
SIGMA = 0.1  # standard deviation of a change of the parameters
RATE = 0.02  # step of the optimizer
DECAY = 0.005  # pull of the parameters towards zero
TABLE = 2**20  # numbers in the shared table: 4 MiB
EVALUATIONS = 10  # episodes of the unchanged policy in every iteration
CONFIRMATIONS = 100  # episodes over which the environment's own threshold is to be held

environments: dict[str, gymnasium.Env] = {}  # in each worker: made once, used by all its tasks


class Returns(NamedTuple):
    """What a task gives back: the return of each episode, and how many steps they took together."""

    rewards: list[float]
    steps: int


class Policy:
    """One hidden layer from observation to action. The parameters are one flat array, so that noise can be added to it."""

    def __init__(self, environment: gymnasium.Env, parameters: np.ndarray) -> None:
        inputs, outputs = layers(environment)
        split = inputs * HIDDEN
        self.hidden = parameters[:split].reshape(inputs, HIDDEN)
        self.bias = parameters[split : split + HIDDEN]
        self.output = parameters[split + HIDDEN :].reshape(HIDDEN, outputs)
        self.space = environment.action_space

    def __call__(self, observation: np.ndarray) -> Any:
        """The action: the likeliest of a discrete set, or a point in the box of the allowed ones."""
        scores = np.tanh(observation @ self.hidden + self.bias) @ self.output
        if isinstance(self.space, gymnasium.spaces.Discrete):
            return int(scores.argmax())
        return self.space.low + (np.tanh(scores) + 1) / 2 * (self.space.high - self.space.low)


def layers(environment: gymnasium.Env) -> tuple[int, int]:
    """How many numbers go into a policy for this environment, and how many come out."""
    space = environment.action_space
    outputs = space.n if isinstance(space, gymnasium.spaces.Discrete) else np.prod(space.shape)
    return int(np.prod(environment.observation_space.shape)), int(outputs)


def episode(name: str, parameters: np.ndarray, seed: int) -> tuple[float, int]:
    """One episode from the start that ``seed`` gives: its return and its steps."""
    environment = environments.get(name)
    if environment is None:
        environment = environments[name] = gymnasium.make(name)
    policy = Policy(environment, parameters)
    observation, _ = environment.reset(seed=seed)
    total, steps, over = 0.0, 0, False
    while not over:
        observation, reward, terminated, truncated, _ = environment.step(policy(observation))
        total, steps, over = total + float(reward), steps + 1, terminated or truncated
    return total, steps


@zf.remote
def try_both(name: str, parameters: np.ndarray, table: np.ndarray, offset: int, seed: int) -> Returns:
    """One change of the parameters in both directions, each from the same start."""
    change = SIGMA * table[offset : offset + parameters.size]
    (up, up_steps), (down, down_steps) = episode(name, parameters + change, seed), episode(name, parameters - change, seed)
    return Returns([up, down], up_steps + down_steps)


@zf.remote
def evaluate(name: str, parameters: np.ndarray, seed: int) -> Returns:
    """One episode of the policy as it is."""
    reward, steps = episode(name, parameters, seed)
    return Returns([reward], steps)


class Adam:
    """The usual optimizer: steps scaled by running averages of the gradient and of its square."""

    def __init__(self, size: int) -> None:
        self.mean, self.square, self.count = np.zeros(size), np.zeros(size), 0

    def step(self, gradient: np.ndarray) -> np.ndarray:
        """How far to move for this gradient."""
        self.count += 1
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient**2 - self.square)
        mean, square = self.mean / (1 - 0.9**self.count), self.square / (1 - 0.999**self.count)
        return RATE * mean / (np.sqrt(square) + 1e-8)


def centered_ranks(values: np.ndarray) -> np.ndarray:
    """The values replaced by their ranks, spread evenly from -0.5 to 0.5: one lucky episode then moves no more than another."""
    return (values.ravel().argsort().argsort() / (values.size - 1) - 0.5).reshape(values.shape)


class Totals:
    """What has been done so far, and how it is shown: a moving bar on a terminal, one line an iteration anywhere else."""

    def __init__(self, console: Console, iterations: int) -> None:
        self.console, self.iterations = console, iterations
        self.episodes = self.tasks = self.steps = 0
        self.started = time.perf_counter()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.progress = Progress(*columns, console=console, disable=not console.is_interactive, transient=True)
        self.bar = self.progress.add_task("")

    def collect(self, refs: list[zf.ObjectRef], label: str) -> list[Returns]:
        """The results of ``refs`` in their order, taken as they come, so that a slow task holds up neither the bar nor the others."""
        self.progress.reset(self.bar, total=len(refs), description=label)
        results = {}
        for ref in zf.as_completed(refs):
            results[ref] = result = zf.get(ref)
            self.tasks, self.episodes, self.steps = self.tasks + 1, self.episodes + len(result.rewards), self.steps + result.steps
            self.progress.advance(self.bar)
        return [results[ref] for ref in refs]

    def iteration(self, number: int, tried: np.ndarray, reward: float) -> None:
        """One line about a finished iteration."""
        elapsed = time.perf_counter() - self.started
        self.console.print(
            f"iteration {number:3d}/{self.iterations}  reward {reward:7.1f}  tried: mean {tried.mean():7.1f} best {tried.max():7.1f}"
            f"  episodes {self.episodes:6d}  {elapsed:5.1f} s",
            highlight=False,
            soft_wrap=True,
        )

    def summary(self, verdict: str) -> None:
        """The last lines."""
        elapsed = time.perf_counter() - self.started
        self.console.print(verdict, highlight=False, soft_wrap=True)
        self.console.print(
            f"{self.episodes:,} episodes ({self.steps:,} steps) in {self.tasks:,} tasks and {elapsed:.1f} s: "
            f"{self.tasks / elapsed:,.0f} tasks/s, {self.steps / elapsed:,.0f} steps/s on {zf.cluster_resources()['CPU']:g} CPUs",
            highlight=False,
            soft_wrap=True,
        )


def train(name: str, iterations: int, population: int, seed: int, console: Console) -> None:
    """Improve a policy until it holds the environment's threshold, or for so many iterations."""
    random = np.random.default_rng(seed)
    environment = gymnasium.make(name)
    inputs, outputs = layers(environment)
    threshold = environment.spec.reward_threshold if environment.spec else None
    parameters = random.standard_normal(inputs * HIDDEN + HIDDEN + HIDDEN * outputs) * 0.1
    optimizer = Adam(parameters.size)
    noise = random.standard_normal(TABLE, dtype=np.float32)
    table = zf.put(noise)
    totals = Totals(console, iterations)
    verdict = f"stopped after {iterations} iterations"
    with totals.progress:
        for number in range(1, iterations + 1):
            offsets = random.integers(TABLE - parameters.size, size=population // 2)
            seeds = random.integers(2**31, size=population // 2 + EVALUATIONS).tolist()
            current = zf.put(parameters)
            refs = [try_both.remote(name, current, table, int(offset), seeds.pop()) for offset in offsets]
            refs += [evaluate.remote(name, current, seeds.pop()) for _ in range(EVALUATIONS)]
            results = totals.collect(refs, f"iteration {number}")
            tried = np.array([result.rewards for result in results[: len(offsets)]])
            reward = float(np.mean([result.rewards for result in results[len(offsets) :]]))
            totals.iteration(number, tried, reward)
            if threshold is not None and reward >= threshold:
                seeds = random.integers(2**31, size=CONFIRMATIONS).tolist()
                confirmed = totals.collect([evaluate.remote(name, current, each) for each in seeds], "confirming")
                reward = float(np.mean([result.rewards for result in confirmed]))
                if reward >= threshold:
                    verdict = f"solved in iteration {number}: mean reward {reward:.1f} over {CONFIRMATIONS} episodes, wanted {threshold:g}"
                    break
            ranks = centered_ranks(tried)
            weights = ranks[:, 0] - ranks[:, 1]
            changes = np.stack([noise[offset : offset + parameters.size] for offset in offsets])
            gradient = weights @ changes / (len(offsets) * SIGMA)
            parameters = parameters + optimizer.step(gradient) - RATE * DECAY * parameters
    totals.summary(verdict)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train a policy on a Gymnasium environment by evolution strategies.")
    parser.add_argument("--env", default="CartPole-v1", help="name of the environment (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=60, help="most iterations (default: %(default)s)")
    parser.add_argument("--population", type=int, default=1000, help="episodes tried per iteration (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is random; runs repeat exactly (default: %(default)s)")
    options = parser.parse_args()
    if options.iterations < 1 or options.population < 2:
        parser.error("there is nothing to do with fewer than 1 iteration or 2 episodes")
    zf.init(ignore_reinit_error=True)
    train(options.env, options.iterations, options.population, options.seed, Console())


if __name__ == "__main__":
    main()
