"""RLlib: DQN with a prioritized replay buffer and two env runners on CartPole; evaluation runs beside it."""

import itertools
import time

import outcome
import ray
import torch
from ray.rllib.algorithms.dqn import DQNConfig

WARM, MEASURED, STEPS = 2, 4, 200


def main():
    """Train; every env step is sampled once, and is trained on more than once."""
    torch.set_num_threads(1)
    ray.init(num_cpus=3)
    algorithm = (
        DQNConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=2, num_cpus_per_env_runner=0.5, num_envs_per_env_runner=1, rollout_fragment_length=8)
        .training(
            train_batch_size=32,
            training_intensity=4,
            num_steps_sampled_before_learning_starts=STEPS,
            target_network_update_freq=100,
            replay_buffer_config={"type": "PrioritizedEpisodeReplayBuffer", "capacity": 5000, "alpha": 0.6, "beta": 0.4},
        )
        .evaluation(evaluation_num_env_runners=1, evaluation_interval=3, evaluation_duration=2)
        .reporting(min_sample_timesteps_per_iteration=STEPS, min_time_s_per_iteration=0)
        .debugging(seed=0)
        .build_algo()
    )
    results = [algorithm.train() for _ in range(WARM)]
    begun = time.perf_counter()
    results += [algorithm.train() for _ in range(MEASURED)]
    taken = time.perf_counter() - begun
    sampled = [each["num_env_steps_sampled_lifetime"] for each in results]
    assert all(after - before >= STEPS for before, after in itertools.pairwise(sampled)), sampled
    learner = results[-1]["learners"]["default_policy"]
    assert learner["num_module_steps_trained_lifetime"] > sampled[-1], learner
    assert results[-1]["env_runners"]["episode_return_mean"] > 5
    assert any(each.get("evaluation", {}).get("env_runners", {}).get("num_episodes") == 2 for each in results), results[-1].keys()
    algorithm.stop()
    ray.shutdown()
    outcome.report(sampled[-1] - sampled[WARM - 1], taken, "env steps/s")


main()
