"""A worker without a process: a test plays the daemon, message by message."""

from __future__ import annotations

from typing import Any

import pytest

from zfabric.config import Config
from zfabric.machines.worker.machine import Worker
from zfabric.protocol import messages as m
from zfabric.protocol.ids import WORKER

FUNCTION = b"f" * 16
DAEMON = b"\x02daemon0"


@pytest.fixture
def worker() -> Worker:
    made = Worker(WORKER + b"\x01worker0", Config.of({}))
    made.connect(DAEMON)
    return made


def row(number: int, *needs: bytes) -> tuple[Any, ...]:
    return (number.to_bytes(16, "big"), FUNCTION, b"", needs)


def give(worker: Worker, *numbers: int, inline: bool = False) -> None:
    worker.step(0.0, b"L" + DAEMON, m.Dispatch(tuple(map(row, numbers)), (), worker.waits.changes if inline else 0))


def sent_by(worker: Worker) -> list[Any]:
    worker.check_invariants()
    return [effect.message for effect in worker.take_effects(0.0)]  # type: ignore[union-attr]


def begin(worker: Worker) -> int | None:
    item = worker.begin()
    return None if item is None else int.from_bytes(item.row[0], "big")


def finish(worker: Worker, status: int = m.OK, outputs: tuple[Any, ...] = (b"value",)) -> None:
    worker.finish(worker.stack[-1], status, outputs, None, 0.0, 0.001)
