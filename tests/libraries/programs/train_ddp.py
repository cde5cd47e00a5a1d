"""Train: two processes train digits by DDP; one fails, and both go on from the last checkpoint."""

import tempfile
import time
from pathlib import Path

import outcome
import ray
import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model
from sklearn.datasets import load_digits

EPOCHS, FAILS_AT = 7, 2


def loop(config):
    """One process: load the checkpoint if there is one, train, report each epoch with a checkpoint."""
    torch.manual_seed(0)
    images, digits = load_digits(return_X_y=True)
    data = torch.utils.data.TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(digits))
    loader = prepare_data_loader(torch.utils.data.DataLoader(data, batch_size=32, shuffle=True))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    begin = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as directory:
            saved = torch.load(Path(directory, "state.pt"))
        model.load_state_dict(saved["model"])
        begin = saved["epoch"] + 1
    model = prepare_model(model)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    context = ray.train.get_context()
    marker = Path(config["marker"])
    for epoch in range(begin, EPOCHS):
        begun = time.perf_counter()
        right = seen = 0
        for features, wanted in loader:
            found = model(features)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(found, wanted).backward()
            optimizer.step()
            right += (found.argmax(1) == wanted).sum().item()
            seen += len(wanted)
        metrics = {"accuracy": right / seen, "epoch": epoch, "begun_at": begin, "seconds": time.perf_counter() - begun, "seen": seen}
        metrics["workers"] = torch.distributed.get_world_size()
        with tempfile.TemporaryDirectory() as directory:
            if context.get_world_rank() == 0:
                torch.save({"model": model.module.state_dict(), "epoch": epoch}, Path(directory, "state.pt"))
                ray.train.report(metrics, checkpoint=Checkpoint.from_directory(directory))
            else:
                ray.train.report(metrics)
        if epoch == FAILS_AT and context.get_world_rank() == 1 and not marker.exists():
            marker.touch()
            raise RuntimeError("on purpose")


def main():
    """Train once, with one failure."""
    storage = tempfile.mkdtemp(prefix="programs-train-")
    ray.init(num_cpus=3)
    result = TorchTrainer(
        loop,
        train_loop_config={"marker": str(Path(storage, "has-failed"))},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="ddp",
            storage_path=storage,
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()
    assert result.error is None, result.error
    assert Path(storage, "has-failed").exists()
    metrics = result.metrics
    assert metrics["epoch"] == EPOCHS - 1 and metrics["workers"] == 2, metrics
    assert 1 <= metrics["begun_at"] <= FAILS_AT + 1, metrics  # It went on, and did not begin anew.
    assert metrics["accuracy"] > 0.85, metrics
    with result.checkpoint.as_directory() as directory:
        saved = torch.load(Path(directory, "state.pt"))
    assert saved["epoch"] == EPOCHS - 1
    assert len(result.best_checkpoints) == 2
    ray.shutdown()
    outcome.report(metrics["seen"] * metrics["workers"], metrics["seconds"], "rows/s")


main()
