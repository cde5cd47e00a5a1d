"""A client without a process: a test plays the daemon, message by message."""

from __future__ import annotations

from typing import Any

import pytest

from zfabric.config import Config
from zfabric.machines.client.machine import Client
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, Namer, job_id, root_task

JOB = job_id(1)
ME = b"\x01client0"
DAEMON = b"\x02daemon0"
FUNCTION = b"f" * 16
REGISTER = m.Register(m.PROTOCOL_VERSION, "driver", 1, 1, JOB, ME, b"", "", "")


@pytest.fixture
def client() -> Client:
    made = Client(CLIENT + ME, Config.of({}))
    made.connect(DAEMON)
    made.step(0.0, b"L" + DAEMON, m.Welcome(m.PROTOCOL_VERSION, JOB, b"node", "", 0, ()))
    made.tasks.export(FUNCTION, "f", b"payload", ())
    made.take_effects(0.0)
    return made


NAMER = Namer(JOB, root_task(JOB))


def sent_by(client: Client) -> list[Any]:
    messages = [effect.message for effect in client.take_effects(0.0)]  # type: ignore[union-attr]
    client.check_invariants()
    return messages


def submit(client: Client, *needs: bytes, returns: int = 1, **options: Any) -> bytes:
    row: tuple[Any, ...] = (NAMER.child(), FUNCTION, b"arguments", needs)
    client.tasks.submit((*row, tuple(options.items())) if options else row, returns)
    return row[0]


def receive(client: Client, message: Any) -> None:
    client.step(0.0, b"L" + DAEMON, message)
