"""What all machines have in common: one table of handlers each, and one answer to a message that is not in it."""

from __future__ import annotations

import inspect

import pytest

from zfabric.adapters.memory_journal import MemoryJournal
from zfabric.config import Config
from zfabric.machines.client import Client
from zfabric.machines.control_store import ControlStore
from zfabric.machines.global_scheduler import GlobalScheduler
from zfabric.machines.local_scheduler import LocalScheduler
from zfabric.machines.object_store import ObjectStore
from zfabric.machines.worker import Worker
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CONTROL_STORE, GLOBAL_SCHEDULER, LOCAL_SCHEDULER, OBJECT_STORE
from zfabric.protocol.machine import Machine

CONFIG = Config()
INCARNATION = b"\x01daemon0"
SCHEDULER, STORE, CONTROL, PLACER = (role + INCARNATION for role in (LOCAL_SCHEDULER, OBJECT_STORE, CONTROL_STORE, GLOBAL_SCHEDULER))
ROLES = ("client", "worker", "local scheduler", "object store", "control store", "global scheduler")


def machine_of(role: str) -> Machine:
    """A new machine of this role."""
    made: Machine
    match role:
        case "client":
            made = Client(b"C\x01client0", CONFIG)
        case "worker":
            made = Worker(b"W\x01worker0", CONFIG)
        case "local scheduler":
            made = LocalScheduler(SCHEDULER, b"node", CONFIG, (), STORE, CONTROL, PLACER, 1, 0)
        case "object store":
            made = ObjectStore(STORE, SCHEDULER, CONFIG, 64 * 2**20)
        case "control store":
            made = ControlStore(CONTROL, CONFIG, MemoryJournal())
        case _:
            made = GlobalScheduler(PLACER, CONFIG)
    return made


@pytest.mark.parametrize("role", ROLES)
def test_every_handler_accepts_a_message_of_the_protocol_from_a_source_at_a_time(role: str) -> None:
    handlers = machine_of(role).handlers
    assert set(handlers) <= set(m.MESSAGES.values())
    assert {tuple(inspect.signature(handler).parameters) for handler in handlers.values()} == {("now", "source", "message")}


@pytest.mark.parametrize("role", ROLES)
def test_a_message_that_a_machine_does_not_accept_is_counted_and_dropped(role: str) -> None:
    machine = machine_of(role)
    machine.take_effects(0.0)
    strange = m.RegisterAgain("")
    assert type(strange) not in machine.handlers
    for count in (1, 2):
        machine.step(0.0, SCHEDULER, strange)
        assert machine.statistics()["refused"] == count
    assert machine.take_effects(0.0) == []
    assert type(strange) not in machine.handlers
