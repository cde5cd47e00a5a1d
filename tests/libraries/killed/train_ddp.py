"""Training is begun again from its checkpoint, and ends with all its steps."""

import json
import os
import tempfile
import time

import ray.train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model
from three_nodes import three_nodes

STEPS = 20


def train(config):
    import torch

    model, start, checkpoint = prepare_model(torch.nn.Linear(4, 1)), 0, ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            state = torch.load(os.path.join(directory, "state"))
        model.load_state_dict(state["model"])
        start = state["step"] + 1
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    first = ray.train.get_context().get_world_rank() == 0
    for step in range(start, STEPS):
        config["nodes"].note()
        inputs = torch.randn(32, 4)
        loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with tempfile.TemporaryDirectory() as directory:
            torch.save({"model": model.state_dict(), "step": step}, os.path.join(directory, "state"))
            found = {"loss": loss.item(), "step": step, "start": start}
            ray.train.report(found, checkpoint=Checkpoint.from_directory(directory) if first else None)


if __name__ == "__main__":
    began = time.time()
    with three_nodes(workers=2) as nodes:
        result = TorchTrainer(
            train,
            train_loop_config={"nodes": nodes},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(storage_path=tempfile.mkdtemp(), failure_config=FailureConfig(max_failures=5)),
        ).fit()
        assert result.error is None, result.error
        assert result.metrics["step"] == STEPS - 1
        assert result.metrics["start"] > 0, "it was not begun again"
    print(json.dumps({"program": "train killed", "seconds": time.time() - began}))
