"""Simulated clusters of ``perf.scaling``: what they count follows from the costs."""

from __future__ import annotations

import xml.etree.ElementTree
from pathlib import Path

import pytest

from perf.scaling import costs, loads, picture
from perf.scaling.__main__ import BEGIN, END, PICTURE, main
from perf.scaling.costs import Costs
from perf.scaling.world import Cluster

ROOT = Path(__file__).resolve().parents[2]
FREE = Costs(*[0.0] * len(Costs._fields))


def test_no_op_tasks_are_as_fast_as_the_busiest_role_and_grow_with_the_nodes() -> None:
    slow_driver = FREE._replace(driver=50.0)
    one, two = (loads.each_for_itself(Cluster(nodes, slow_driver), tasks=400) for nodes in (1, 2))
    assert one.first == two.first == "driver"
    assert one.per_second == pytest.approx(1e6 / 50, rel=0.1)
    assert two.per_second == pytest.approx(2 * one.per_second, rel=0.05)
    slow_workers = loads.each_for_itself(Cluster(1, FREE._replace(worker=100.0)), tasks=400)
    assert slow_workers.first == "workers"
    assert slow_workers.per_second <= loads.CPUS * 1e6 / 100


def test_one_driver_for_all_reaches_every_node_until_its_daemon_is_busy() -> None:
    free = loads.one_for_all(Cluster(3, FREE), tasks=10)
    assert 0.7 * free.ideal < free.per_second <= free.ideal
    slow = loads.one_for_all(Cluster(3, FREE._replace(home=10_000.0)), tasks=10)
    assert slow.first == "driver's daemon"
    assert slow.per_second < 0.5 * free.per_second


def test_the_head_is_busy_with_leases_and_heartbeats() -> None:
    few, more = (loads.idle(Cluster(nodes, FREE._replace(heartbeat=1000.0, lease=1000.0)), seconds=1.0) for nodes in (2, 6))
    assert few.messages < more.messages
    assert 0.0 < few.busy["head's daemon"] < more.busy["head's daemon"]


def test_machines_are_measured_on_their_own() -> None:
    assert all(measure(20) > 0 for measure in (costs._heartbeat, costs._lease, costs._placing))


def test_the_command_prints_a_table_and_writes_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    assert main(["--recorded", "--load", "one for all", "--nodes", "1", "2", "--write", str(page)]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| one for all")]
    assert [row.split("|")[2].strip() for row in rows] == ["1", "2"]
    assert all(row in page.read_text() for row in rows)
    drawn = xml.etree.ElementTree.parse(tmp_path / PICTURE)
    assert "one driver has tasks of 10 ms for all" in "".join(drawn.getroot().itertext())


def test_the_page_has_a_place_for_the_table_and_shows_the_picture() -> None:
    text = (ROOT / "docs" / "performance.md").read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    assert f"({PICTURE})" in text
    assert (ROOT / "docs" / PICTURE).exists()


def test_all_roles_of_a_result_are_columns_of_the_table() -> None:
    cluster = Cluster(3, FREE)
    for load in (loads.each_for_itself(cluster, tasks=10), loads.one_for_all(cluster, tasks=2), loads.idle(cluster, seconds=0.1)):
        assert set(load.busy) <= set(picture.ROLES)
