"""The time series of a node, and of several added up: nothing is lost by thinning, and nodes with other clocks meet in the same second."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from scheduler_alone import Node

from zfabric.machines.common.time_series import COARSE_OF, COARSE_ROWS, FINE_ROWS, FUNCTIONS_MOST, Sample, TimeSeries, largest, merged
from zfabric.machines.local_scheduler import Measured
from zfabric.page.series import AddedUp


def _sample(at: float, seconds: float = 1.0, ended: tuple[tuple[str, int], ...] = (("f", 4),), **changed: Any) -> Sample:
    usual = {
        "failed": 1,
        "calls": 2,
        "running": 1,
        "unfinished": 4,
        "waiting": 1,
        "cpu": 0.5,
        "cpus_used": 2.0,
        "memory": 0.25,
        "store": 100,
    }
    return Sample(at, seconds, ended, **(usual | {"spilled": 0, "copied": 10} | changed))


def test_thinned_samples_stand_for_all_that_they_replace() -> None:
    series = TimeSeries()
    for second in range(3 * FINE_ROWS):
        series.add(_sample(second, ended=((f"f{second % 3}", 6),), cpu=second % 2))
    assert (len(series.fine), len(series.coarse)) == (FINE_ROWS, 3 * FINE_ROWS // COARSE_OF)
    assert sum(sum(dict(each.ended).values()) for each in series.coarse) == 3 * FINE_ROWS * 6
    assert {each.cpu for each in series.coarse} == {0.5}
    assert {(each.seconds, each.copied, each.failed) for each in series.coarse} == {(10.0, 100, 10)}
    for second in range(3 * FINE_ROWS, COARSE_OF * (COARSE_ROWS + 10)):
        series.add(_sample(second))
    assert len(series.coarse) == COARSE_ROWS


def test_a_sample_names_the_functions_with_the_most_tasks_and_counts_the_others() -> None:
    ended = {f"f{number}": 100 - number for number in range(20)} | {"": 5}
    found = largest(ended)
    assert [name for name, _ in found] == [*(f"f{number}" for number in range(FUNCTIONS_MOST)), ""]
    assert sum(many for _, many in found) == sum(ended.values())
    assert dict(merged([_sample(1, ended=found), _sample(2, ended=found)]).ended)[""] == 2 * found[-1][1]


def test_nodes_are_added_up_by_the_second_whatever_their_clocks() -> None:
    added = AddedUp()
    fine = [tuple(_sample(100.5 + second)) for second in range(10)]
    other = [tuple(_sample(7100.1 + second, cpu=1.0)) for second in range(10)]
    added.read(
        200.0, 200.0, [{"node": "a", "now": 110.0, "fine": fine, "coarse": ()}, {"node": "b", "now": 7110.0, "fine": other, "coarse": ()}]
    )
    points = added.points(200.0, 1, 100.0)["points"]
    shown = [point for point in points if point[1] is not None]
    assert [point[0] for point in shown[1:-1]] == list(range(191, 200))
    _, functions, failed, calls, running, queued, waiting, cpu, cpus, memory, store, spilled, copied = shown[5]
    assert (functions, failed, calls, running, queued, waiting) == ({"f": 8.0}, 2.0, 4.0, 2.0, 4.0, 2.0)
    assert (cpu, cpus, memory, store, spilled, copied) == (0.75, 4.0, 0.25, 200, 0, 20)
    assert points[0][1] is None, "before the first sample there is nothing, and not zero"


@pytest.mark.parametrize("every", [0.95, 0.97, 1.0, 1.3, 2.7])
@pytest.mark.parametrize("begin", [0.0, 0.013, 0.5, 0.96])
def test_each_task_is_in_the_points_once_however_often_samples_are_taken(every: float, begin: float) -> None:
    added = AddedUp()
    fine = [tuple(_sample(100.0 + begin + every * number, every, ((f"f{number}", 4),))) for number in range(1, 101)]
    added.read(400.0, 400.0, [{"now": 400.0, "fine": fine, "coarse": ()}])
    counts: Counter[str] = Counter()
    for point in added.points(400.0, 1, 0.0)["points"]:
        counts.update(point[1] or {})
    inner = [f"f{number}" for number in range(2, 100)]  # The first and the last are shown by a second each, covered or not.
    assert {name: counts[name] for name in inner} == pytest.approx(dict.fromkeys(inner, 4.0), abs=0.01)
    assert len(counts) == 100


def test_a_slow_answer_is_from_the_same_clock_and_nothing_is_forgotten() -> None:
    """A daemon that restarts answers late, and has no samples of before."""
    added = AddedUp()
    answers = ((50.0, 50.0, 40.0), (60.0, 63.0, 52.5), (70.0, 70.1, 60.05))
    for number, (asked, answered, theirs) in enumerate(answers):
        fine = [] if number else [tuple(_sample(35.0))]
        added.read(asked, answered, [{"now": theirs, "fine": fine, "coarse": ()}])
    assert any(point[1] for point in added.points(75.0, 1, 0.0)["points"])
    added.read(80.0, 80.0, [{"now": 3.0, "fine": [], "coarse": ()}])
    assert not any(point[1] for point in added.points(80.0, 1, 0.0)["points"]), "of a machine that was started again"


def test_a_gap_stays_one_and_what_is_read_twice_counts_once() -> None:
    added = AddedUp()
    fine = [tuple(_sample(float(second), ended=(("f", second),))) for second in (*range(10, 20), *range(40, 50))]
    for _ in range(2):
        added.read(50.0, 50.0, [{"now": 50.0, "fine": fine, "coarse": ()}])
    assert added.wanted(51.0) < 60.0
    points = {point[0]: point[1] for point in added.points(50.0, 1, 0.0)["points"]}
    assert points[15] == {"f": 15.0}
    assert points[30] is None
    assert points[45] == {"f": 45.0}


def test_samples_count_tasks_at_home_and_calls_where_they_ran() -> None:
    node = Node()
    node.driver()
    sampling = node.scheduler.sampling
    for now in (1.0, 2.0):
        sampling.sample(now, Measured(0.5, 0.25, 7, 0))
    (report,) = sampling.report(3.0, 2.5)
    (row,) = report["fine"]
    assert Sample._make(row) == _sample(2.0, 1.0, (), failed=0, calls=0, running=0, unfinished=0, waiting=0, cpus_used=0, store=7, copied=0)
    assert sampling.report(3.0, 0.5)[0]["fine"] == []


@pytest.mark.parametrize("step", [1, COARSE_OF])
def test_points_are_bounded(step: int) -> None:
    assert len(AddedUp().points(1e6, step, 0.0)["points"]) <= max(FINE_ROWS, COARSE_ROWS)
