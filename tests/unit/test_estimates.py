"""``perf.estimates``: recorded loads, placed by different estimates of how long tasks run."""

from __future__ import annotations

import json

import pytest

from perf.estimates import model
from perf.estimates.__main__ import compared
from perf.estimates.record import PATH

LOADS = json.loads(PATH.read_text())


def test_an_estimate_learns_what_its_name_says() -> None:
    expected = {
        "exponential average (today)": 1.0 + (4.0 - 1.0) * 0.2 + (1.0 - 1.6) * 0.2,
        "average of all": 2.0,
        "average of the last 16": 2.0,
        "last value": 1.0,
        "median of the last 15": 1.0,
        "none: tasks are counted": model.MEAN_SECONDS,
    }
    for name, make in model.ESTIMATES.items():
        estimate = make()
        for seconds in (1.0, 4.0, 1.0):
            estimate.learn(seconds)
        assert estimate.seconds == pytest.approx(expected[name]), name


def test_tasks_wait_longer_if_one_duration_stands_for_all() -> None:
    """Episodes are as long as chance has them: the last one says little of the next ones."""
    waits = {name: sum(model.mean_wait(LOADS["episode"], name, seed) for seed in range(3)) for name in (model.TRUTH, "last value")}
    assert waits["last value"] > waits[model.TRUTH]


def test_the_same_seed_is_the_same_run_and_nobody_waits_less_than_not_at_all() -> None:
    one, two = (model.mean_wait(LOADS["words"][:64], "average of all", 7) for _ in range(2))
    assert one == two > 0


def test_the_table_has_a_row_for_each_load() -> None:
    lines = compared({name: durations[:32] for name, durations in LOADS.items()}, 1).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == [*LOADS, "all (geometric mean)"]
