"""A running ``zfabric autoscale``, for tests on this machine and on Slurm."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from command_line import ZFABRIC, Place
from faults import PATIENCE, next_line

TASKS = """
import sys, time
import zfabric as zf

@zf.remote
def work(index):
    time.sleep(0.1)
    return zf.get_runtime_context().get_node_id()

zf.init()
print(len(set(zf.get([work.remote(index) for index in range(24)]))))
"""
"""24 tasks; prints how many nodes have run them."""


class Scaler:
    """A running ``zfabric autoscale``."""

    def __init__(self, place: Place, path: str) -> None:
        self.process = subprocess.Popen(
            [ZFABRIC, "autoscale", path], env=place.environment, cwd=place.directory, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        while not (line := self.says()).startswith("scaling the cluster "):
            assert line.startswith("the head is at tcp://127.0.0.1:"), line

    def says(self) -> str:
        return next_line(self.process.stdout).strip()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, list[str]]:
        """Its exit code, and what it has said since."""
        self.process.send_signal(number)
        said, _ = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, said.splitlines()


@contextmanager
def scaling(place: Place, path: str) -> Iterator[Scaler]:
    scaler = Scaler(place, path)
    try:
        yield scaler
    finally:
        scaler.process.kill()
        scaler.process.communicate()


def nodes(place: Place) -> list[dict[str, Any]]:
    return [row for row in place.json("nodes") if not row["head"]]
