"""Tasks that run on another node than their home: what is sent, what returns, and who decides."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from zfabric.protocol import messages as m
from zfabric.protocol.ids import DAEMONS_MAX, daemons_of, first_attempt, next_attempt, node_of, tries_of
from zfabric.sim.network import Faults
from zfabric.sim.programs import Program
from zfabric.sim.scenarios import STEADY, call, get, task
from zfabric.sim.world import World

MEMBERSHIP = {"Join", "Joined", "NodeTable", "RenewLease", "LeaseRenewed"}
TRACE = Path(__file__).parent / "scenarios" / "delegated.txt"


def run(*statements: Any, nodes: int = 2, faults: Faults = STEADY, **settings: Any) -> tuple[World, list[tuple[str, str, Any]]]:
    """Run a program on several nodes of one CPU each; return the world and its messages: (from, to, message)."""
    sent: list[tuple[str, str, Any]] = []
    usual = {"workers_max": 4, "inline_depth": 100, "prefetch_tasks": 64, "worker_idle_seconds": 60.0, "spill_after": 0.02}
    world = World(
        0,
        faults=faults,
        program=Program(statements, 0),
        observer=lambda now, source, to, message: sent.append((source, to, message)) if source else None,
        cpus=1,
        nodes=nodes,
        settings={**usual, **settings},
    )
    outcome = world.run()
    assert outcome.failure == ""
    return world, sent


def between_nodes(sent: list[tuple[str, str, Any]]) -> Counter[str]:
    """Count the messages from one daemon to another, by kind."""
    daemons = [(source, to, message) for source, to, message in sent if source[-1].isdigit() and not source.startswith("worker")]
    pairs = [(source, to, message) for source, to, message in daemons if to[-1].isdigit() and not to.startswith("worker")]
    return Counter(type(message).__name__ for source, to, message in pairs if source[-1] != to[-1])


def test_a_task_elsewhere_costs_two_messages_between_nodes_and_an_acknowledgement() -> None:
    lines = [line.split(": ", 1)[1].split()[0] for line in TRACE.read_text().splitlines() if "scheduler1 -> scheduler2" in line]
    lines = [each for each in lines if each not in ("RegisterNode", "Ready", "EndJob")]
    assert lines == ["Delegate", "EndsReceived"]
    assert TRACE.read_text().count("scheduler2 -> scheduler1: Ended") == 1


def test_a_program_that_one_node_can_run_sends_no_task_to_another() -> None:
    _, sent = run(call(0, task(5)), get((0, 162)), call(1, task(6)), get((1, 193)))
    assert set(between_nodes(sent)) <= {"RegisterNode", "Ready", "Heartbeat", "EndJob", "JobGone", *MEMBERSHIP}


def test_functions_are_sent_once_to_a_node() -> None:
    statements = [call(slot, task(5, ("sleep", 0.1))) for slot in range(12)]
    _, sent = run(*statements, get(*((slot, 162) for slot in range(12))))
    functions = [row for _, _, message in sent if isinstance(message, m.Delegate) for row in message.functions]
    assert len(functions) == 1
    assert sum(len(message.rows) for _, _, message in sent if isinstance(message, m.Delegate)) >= 4


def test_what_a_task_elsewhere_submits_is_at_home_there() -> None:
    child = task(6, ("sleep", 0.01))
    parent = task(7, call(0, child), get((0, 193)))
    _, sent = run(call(0, task(5, ("sleep", 0.5))), call(1, parent), ("drop", 1), get((0, 162)))
    submits = [to for source, to, message in sent if isinstance(message, m.Submit) and source.startswith("worker")]
    assert submits == ["scheduler2"]


@pytest.mark.parametrize("force", [False, True])
def test_a_task_elsewhere_is_cancelled(force: bool) -> None:
    _, sent = run(
        call(0, task(5, ("sleep", 0.5))),
        call(1, task(6, ("sleep", 9.0))),
        ("sleep", 0.2),
        ("cancel", 1, force, True),
        get((1, ("TaskCancelledError",)), (0, 162)),
    )
    assert any(isinstance(message, m.StopDelegated) and message.reason == ("force" if force else "cancelled") for _, _, message in sent)


def test_the_end_of_a_job_is_acknowledged_by_every_node_before_its_driver_leaves() -> None:
    _, sent = run(call(0, task(5)), get((0, 162)), nodes=3)
    kinds = [type(message) for _, _, message in sent]
    assert kinds.count(m.JobGone) == 2
    assert max(index for index, kind in enumerate(kinds) if kind is m.JobGone) < kinds.index(m.Farewell)


def test_a_value_that_cannot_travel_is_made_at_home() -> None:
    world, sent = run(call(0, task(5, ("sleep", 0.3))), call(1, task(6, size=3_000_000)), get((0, 162), (1, 193)))
    statuses = [status for _, _, message in sent if isinstance(message, m.Ended) for status in m.Completed(*message.completed).statuses]
    assert statuses == [m.STAYS]
    assert world.states["delegated"] == 1


def test_numbers_of_attempts_of_two_nodes_never_meet() -> None:
    """The node is in the number, and so is the daemon: names of children follow from it."""
    numbers = [first_attempt(daemons, node) for node in (0, 1, 2, 2**20 - 1) for daemons in (0, 1, DAEMONS_MAX)]
    assert len({next_attempt(number, first) for number in numbers for first in numbers}) == len(numbers)
    assert [(node_of(each), daemons_of(each), tries_of(each)) for each in numbers[3:6]] == [(1, 0, 0), (1, 1, 0), (1, DAEMONS_MAX, 0)]
    assert all(number < 2**64 for number in numbers)
