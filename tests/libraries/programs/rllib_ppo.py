"""RLlib: PPO learns CartPole with two env runners; the algorithm is saved and restored."""

import tempfile
import time

import outcome
import ray
import torch
from ray.rllib.algorithms.ppo import PPO, PPOConfig

WARM, MEASURED, BATCH = 1, 4, 512


def main():
    """Train, and compare what was learned."""
    torch.set_num_threads(1)
    ray.init(num_cpus=2)
    algorithm = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=2, num_cpus_per_env_runner=0.5, num_envs_per_env_runner=2)
        .training(train_batch_size=BATCH, minibatch_size=128, num_epochs=4, lr=2e-3)
        .learners(num_learners=0)
        .debugging(seed=0)
        .build_algo()
    )
    for _ in range(WARM):
        first = algorithm.train()
    steps = first["num_env_steps_sampled_lifetime"]
    begun = time.perf_counter()
    for _ in range(MEASURED):
        last = algorithm.train()
    taken = time.perf_counter() - begun
    steps = last["num_env_steps_sampled_lifetime"] - steps
    assert steps >= MEASURED * BATCH, steps
    before, after = (each["env_runners"]["episode_return_mean"] for each in (first, last))
    assert after > before, (before, after)
    assert algorithm.env_runner_group.num_healthy_remote_workers() == 2

    with tempfile.TemporaryDirectory() as directory:
        algorithm.save_to_path(directory)
        restored = PPO.from_checkpoint(directory)
        ours, theirs = (each.get_module().get_state() for each in (algorithm, restored))
        assert ours.keys() == theirs.keys() and all((ours[key] == theirs[key]).all() for key in ours)
        restored.stop()
    algorithm.stop()
    ray.shutdown()
    outcome.report(steps, taken, "env steps/s")


main()
