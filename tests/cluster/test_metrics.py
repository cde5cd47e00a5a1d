"""Metrics: what Prometheus reads of the cluster, and of the program's own counters, gauges and histograms."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import one_cluster
from faults import PATIENCE, eventually
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

import zfabric as zf
from zfabric.adapters.metric_files import FILE_BYTES, MetricFile, MetricsFull, read_metrics
from zfabric.page.metrics import exposition, own_metrics
from zfabric.page.views import Views
from zfabric.runtime.connect import attach
from zfabric.runtime.session import Session
from zfabric.util.metrics import Counter, Gauge, Histogram

COMMAND = (sys.executable, "-m", "zfabric", "metrics")


cluster = one_cluster(autouse=False)


def scraped(cluster: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    done = subprocess.run([*COMMAND, "--once", "--address", cluster["address"]], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return samples(done.stdout)


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All samples by name and labels; each family is there once."""
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples}


@zf.remote
def work(number: int, served: Counter, latency: Histogram) -> int:
    served.inc(tags={"model": "small" if number % 2 else "large"})
    latency.observe(number / 100)
    return os.getpid()


@zf.remote
def counted(i: int) -> int:
    if i % 10 == 0:
        raise ValueError("no")
    return i


@zf.remote
def timed() -> None:
    pass


@zf.remote
class Line:
    def __init__(self) -> None:
        self.length = Gauge("line_length", "that wait")

    def grow(self, by: int) -> int:
        self.length.set(by)
        return os.getpid()


def test_numbers_of_a_program_are_summed_over_its_processes(cluster: Any) -> None:
    served = Counter("served_here", "requests", tag_keys=("model",))
    latency = Histogram("latency_here", "seconds", boundaries=[0.05, 0.2, 1.0])
    zf.get([work.remote(i, served, latency) for i in range(40)], timeout=PATIENCE)
    served.inc(5, tags={"model": 'odd "name"\n'})
    found = scraped(cluster)
    assert found["program_served_here_total", (("model", "small"),)] == 20
    assert found["program_served_here_total", (("model", "large"),)] == 20
    assert found["program_served_here_total", (("model", 'odd "name"\n'),)] == 5
    buckets = [found["program_latency_here_bucket", (("le", bound),)] for bound in ("0.05", "0.2", "1.0", "+Inf")]
    assert buckets == [6, 21, 40, 40]
    assert found["program_latency_here_count", ()] == 40
    assert found["program_latency_here_sum", ()] == pytest.approx(sum(i / 100 for i in range(40)))


def test_a_gauge_ends_with_its_process_and_a_counter_does_not(cluster: Any) -> None:
    line = Line.remote()
    pid = zf.get(line.grow.remote(7), timeout=PATIENCE)
    assert scraped(cluster)["program_line_length", (("pid", str(pid)),)] == 7
    zf.kill(line)
    with pytest.raises(zf.ActorDiedError):
        zf.get(line.grow.remote(8), timeout=PATIENCE)
    eventually(lambda: not [key for key in scraped(cluster) if key[0] == "program_line_length"], "its process has ended")


def test_the_cluster_is_measured_exactly(cluster: Any) -> None:
    refs = [counted.remote(i) for i in range(50)]
    zf.wait(refs, num_returns=50, timeout=PATIENCE)
    found = scraped(cluster)
    assert found["zfabric_function_finished_total", (("function", "counted"),)] == 45
    assert found["zfabric_function_failed_total", (("function", "counted"),)] == 5
    assert found["zfabric_tasks", (("state", "failed"),)] >= 5
    assert found["zfabric_resources", (("resource", "CPU"),)] == 2
    assert found["zfabric_store_capacity", ()] > 0
    assert found["zfabric_nodes", ()] == 1
    del refs


@zf.remote
def takes(value: int) -> int:
    return value


def test_how_long_tasks_wait_is_measured_while_somebody_asks(cluster: Any) -> None:
    with closing(attach(Session(cluster["address"]), kind="tool")) as client:
        views = Views(Session(cluster["address"]), client)
        exposition(views)  # From now on.
        zf.get([takes.remote(takes.remote(timed.remote())) for _ in range(5)], timeout=PATIENCE)

        def measured() -> Any:
            found = samples(exposition(views).decode())
            counts = [found[f"zfabric_{kind}_seconds_count", ()] for kind in ("scheduling", "arguments")]
            return found if min(counts) > 0 else None

        found = eventually(measured, "samples of both kinds")
    assert found["zfabric_scheduling_seconds_sum", ()] > 0.0
    assert found["zfabric_commits_total", ()] > 0
    assert found["zfabric_commit_microseconds_total", ()] > 0
    assert found["zfabric_retries_total", ()] == 0


def test_a_server_is_scraped_and_running_times_are_counted(cluster: Any) -> None:
    command = [*COMMAND, "--port", "0", "--address", cluster["address"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            measured_by(server)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(PATIENCE)


def measured_by(server: subprocess.Popen[str]) -> None:
    """What it says of tasks and calls."""
    assert server.stdout is not None
    url = server.stdout.readline().strip()

    def scrape() -> dict[Any, float]:
        return samples(urllib.request.urlopen(url, timeout=PATIENCE).read().decode())

    line = Line.remote()
    zf.get(line.grow.remote(1), timeout=PATIENCE)
    scrape()
    zf.get([timed.remote() for _ in range(20)], timeout=PATIENCE)
    labels = (("function", "timed"), ("kind", "task"))
    eventually(lambda: scrape().get(("zfabric_run_seconds_count", labels)) == 20, "the runs of the tasks")

    def calls() -> Any:
        zf.get([line.grow.remote(2) for _ in range(5)], timeout=PATIENCE)
        found = scrape()
        return found if found.get(("zfabric_call_seconds_count", method)) else None

    method = (("function", "Line.grow"),)
    found = eventually(calls, "how long calls took, with their wait")
    ran = (*method, ("kind", "call"))
    assert found["zfabric_call_seconds_count", method] <= found["zfabric_run_seconds_count", ran]
    assert found["zfabric_call_seconds_sum", method] > 0.0


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda: Counter("9lives"), ValueError, "begins with no digit"),
        (lambda: Counter("a b"), ValueError, "a metric's name"),
        (lambda: Counter("a", tag_keys="model"), TypeError, "names in a tuple"),
        (lambda: Counter("a").inc(0), ValueError, "positive number"),
        (lambda: Counter("a").inc(float("nan")), ValueError, "positive number"),
        (lambda: Counter("a").inc(1, {"b": "c"}), ValueError, "has no tag 'b'"),
        (lambda: Counter("a", tag_keys=("b",)).inc(1, {"b": 3}), TypeError, "is a str"),
        (lambda: Counter("a", tag_keys=("b",)).inc(1, {"b": "c" * 1001}), ValueError, "more than 1000 characters"),
        (lambda: Histogram("a"), ValueError, "ascending order"),
        (lambda: Histogram("a", boundaries=[1, 0.1]), ValueError, "ascending order"),
        (lambda: Histogram("a", boundaries=[1]).observe(float("nan")), ValueError, "no number"),
    ],
)
def test_wrong_metrics_are_refused(make: Any, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        make()


def test_metrics_travel_with_their_tags() -> None:
    sent = pickle.loads(pickle.dumps(Histogram("h", "d", [0.1, 1], ("a",)).set_default_tags({"a": "b"})))
    assert sent.info == {"name": "h", "description": "d", "tag_keys": ("a",), "default_tags": {"a": "b"}, "boundaries": [0.1, 1.0]}


@given(st.lists(st.tuples(st.lists(st.text(max_size=30), max_size=4), st.floats(allow_nan=False)), max_size=30), st.integers(0, 4000))
def test_a_file_gives_back_what_was_written_and_a_cut_one_a_beginning(entries: list[tuple[list[str], float]], cut: int) -> None:
    path = f"{os.environ.get('TMPDIR', '/tmp')}/metrics-{os.getpid()}"
    file = MetricFile(path)
    try:
        places = [file.add(tuple(name), 0.0) for name, _ in entries]
        for place, (_, value) in zip(places, entries, strict=True):
            file.set(place, value)
        written = [(tuple(name), value) for name, value in entries]
        assert list(read_metrics(path)) == written
        os.truncate(path, cut)
        assert list(read_metrics(path)) == written[: len(list(read_metrics(path)))]
    finally:
        os.unlink(path)


def test_a_full_file_takes_no_more_and_keeps_what_it_has(tmp_path: Path) -> None:
    file = MetricFile(str(tmp_path / "7-x"))
    name = ("counter", "n", "", [("t", "x" * 1000)])
    with pytest.raises(MetricsFull, match="use fewer values of tags"):
        for _ in range(FILE_BYTES):
            file.add(name, 1.0)
    assert sum(1 for _ in read_metrics(str(tmp_path / "7-x"))) > 3000
    (tmp_path / "8-y").write_bytes(b"\xff" * 100)
    assert [family.name for family in own_metrics(str(tmp_path))] == ["program_n"]


def test_the_board_draws_metrics_that_exist(cluster: Any) -> None:
    board = json.loads((Path(__file__).parents[2] / "docs/grafana.json").read_text())
    drawn = {name for panel in board["panels"] for target in panel["targets"] for name in re.findall(r"zfabric_\w+", target["expr"])}
    zf.get(timed.remote(), timeout=PATIENCE)  # Functions have counts once there is one.
    there = {name for name, _ in scraped(cluster)} | {
        "zfabric_run_seconds_bucket",
        "zfabric_call_seconds_bucket",
        "zfabric_lease_age_seconds",  # These two are those of nodes of a cluster.
        "zfabric_copied_bytes_total",
    }
    assert drawn <= there
