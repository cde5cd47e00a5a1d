"""Messages of small worlds: every scenario matches its trace, and one task costs the number of messages that the documentation states."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sim.scenarios import SCENARIOS, render

DIRECTORY = Path(__file__).parents[1] / "scenarios"


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_matches_its_trace(name: str) -> None:
    assert render(name) == (DIRECTORY / f"{name}.txt").read_text(), "if this change is meant: scripts/bless, and read the difference"


def test_every_trace_has_a_scenario() -> None:
    assert {path.stem for path in DIRECTORY.glob("*.txt")} == set(SCENARIOS)


def between_processes(lines: list[str]) -> list[str]:
    """The messages that leave a process: those that cost a system call and a wake-up."""
    inside = ("scheduler", "store", "control", "placer", "shell")
    found = []
    for line in lines:
        if " -> " not in line:
            continue
        source, _, rest = line.partition(" -> ")
        to, _, message = rest.partition(": ")
        if source.split()[-1] not in inside or to not in inside:
            found.append(message.split()[0])
    return found


def test_one_task_costs_four_messages_and_none_of_them_waits_for_a_store() -> None:
    # What the paper's readers hold against it is the number of round trips for one addition. Ours: there and back, over two hops each.
    lines = (DIRECTORY / "one_task.txt").read_text().splitlines()
    messages = between_processes(lines)
    path = [message for message in messages if message in ("Submit", "Dispatch", "Completed", "Results")]
    assert path == ["Submit", "Dispatch", "Completed", "Results"]
    once = {"Register", "RunningTasks", "Ready", "Welcome", "Export", "Functions", "Release", "Goodbye", "Farewell"}
    assert set(messages) - set(path) == once
    assert len([message for message in messages if message in once]) == 12  # once a process or a function, not once a task
    submitted, completed = (next(i for i, line in enumerate(lines) if each in line) for each in (": Submit", ": Results"))
    stored = [line for line in lines[submitted:completed] if "control" in line and ": Write" in line and "task" in line.split(": Write")[1]]
    assert stored == []


def test_an_argument_costs_no_message_of_its_own() -> None:
    lines = (DIRECTORY / "dependency.txt").read_text().splitlines()
    messages = between_processes(lines)
    assert [message for message in messages if message in ("Submit", "Dispatch", "Completed", "Results", "Fetch", "Objects")] == [
        *("Submit", "Dispatch", "Completed", "Dispatch", "Results", "Completed", "Results"),
    ]


def test_a_child_runs_on_top_of_the_parent_that_waits_for_it() -> None:
    lines = (DIRECTORY / "nested_inline.txt").read_text().splitlines()
    workers = {line.split(" -> ")[1].split(":")[0] for line in lines if ": Dispatch" in line}
    assert len(workers) == 1
    assert any(": Dispatch" in line and line.endswith(" 1") for line in lines)
