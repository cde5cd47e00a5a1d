"""PPO goes on with the env runners that are left, and gets new ones for those that were killed."""

import json
import threading
import time

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from three_nodes import three_nodes

RUNNERS = 3


def noting(nodes):
    """The class of callbacks that note each process which samples."""

    class Noting(RLlibCallback):
        def on_sample_end(self, **_):
            nodes.note()

    return Noting


def killing() -> bool:
    return any(each.name.endswith("(kill_one_and_then_a_node)") for each in threading.enumerate())


if __name__ == "__main__":
    began = time.time()
    with three_nodes(workers=RUNNERS) as nodes:
        algorithm = (
            PPOConfig()
            .environment("CartPole-v1")
            .env_runners(num_env_runners=RUNNERS, num_cpus_per_env_runner=0.5)
            .fault_tolerance(restart_failed_env_runners=True, delay_between_env_runner_restarts_s=0.1)
            .training(train_batch_size=600, minibatch_size=128, num_epochs=2)
            .callbacks(noting(nodes))
            .build_algo()
        )
        rounds = 0
        while killing() or algorithm.env_runner_group.num_healthy_remote_workers() < RUNNERS:
            result = algorithm.train()
            rounds += 1
            assert rounds < 100
        assert algorithm.train()["num_env_steps_sampled_lifetime"] > result["num_env_steps_sampled_lifetime"]
        algorithm.stop()
    print(json.dumps({"program": "rllib killed", "seconds": time.time() - began}))
