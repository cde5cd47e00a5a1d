"""``zfabric.util.tracing``: spans of tasks and calls, in one trace, across processes and nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import running_cluster
from faults import PATIENCE, eventually, on_node
from opentelemetry import trace
from span_files import PLACE, set_up

import zfabric as zf
from zfabric.api.lifecycle import connected
from zfabric.util import tracing

SETUP = "span_files:set_up"


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cluster for the file. Its processes write their spans into one file each."""
    found = tmp_path_factory.mktemp("spans")
    os.environ[PLACE] = str(found)
    with running_cluster():
        yield found
    del os.environ[PLACE]


@pytest.fixture
def enabled() -> Iterator[None]:
    tracing.enable(SETUP)
    yield
    tracing.disable()


def spans(place: Path, within: trace.Span) -> dict[str, dict[str, Any]]:
    """Spans of the trace, by name."""
    wanted = f"0x{within.get_span_context().trace_id:032x}"
    rows = [json.loads(line) for file in place.iterdir() for line in file.read_text().splitlines()]
    return {row["name"]: row for row in rows if row["context"]["trace_id"] == wanted}


def span_of(place: Path, within: trace.Span, *names: str) -> list[dict[str, Any]]:
    """The spans of these names, once all have been written: a task's result may come a moment before."""
    found: dict[str, dict[str, Any]] = {}

    def there() -> bool:
        found.clear()
        found.update(spans(place, within))
        return set(names) <= set(found)

    eventually(there, f"spans of {names} are written")
    return [found[name] for name in names]


def parent(row: dict[str, Any]) -> Any:
    return row["parent_id"]


def own(row: dict[str, Any]) -> Any:
    return row["context"]["span_id"]


@zf.remote
def leaf(number: int = 0) -> int:
    return number + 1


@zf.remote
def branch(counter: Any) -> int:
    return int(zf.get(leaf.remote(4)) + zf.get(counter.add.remote(2)))


@zf.remote
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> int:
        self.count += number
        return self.count

    async def slowly(self) -> str:
        return f"{trace.get_current_span().get_span_context().span_id:016x}"


def tracer() -> trace.Tracer:
    return trace.get_tracer("test")


def test_spans_of_tasks_and_calls_are_below_their_callers(enabled: None, place: Path) -> None:
    counter = Counter.remote()
    with tracer().start_as_current_span("program") as here:
        assert zf.get(branch.remote(counter)) == 7
    program, outer, inner, call = span_of(place, here, "program", "branch", "leaf", "Counter.add")
    assert [parent(each) for each in (program, outer, inner, call)] == [None, own(program), own(outer), own(outer)]
    assert outer["attributes"]["process.pid"] != os.getpid()
    assert outer["attributes"]["zfabric.node"] == connected().node.hex()
    assert outer["attributes"]["zfabric.attempt"] == 1
    assert outer["start_time"] <= inner["start_time"] <= inner["end_time"] <= outer["end_time"]


def test_a_span_is_current_in_coroutines_and_generators(enabled: None, place: Path) -> None:
    @zf.remote
    def produce() -> Iterator[str]:
        for _ in range(2):
            yield f"{trace.get_current_span().get_span_context().span_id:016x}"

    @zf.remote
    async def wait() -> str:
        return f"{trace.get_current_span().get_span_context().span_id:016x}"

    with tracer().start_as_current_span("program") as here:
        values = {
            "Counter.slowly": zf.get(Counter.remote().slowly.remote()),
            "wait": zf.get(wait.remote()),
            "produce": [zf.get(each) for each in produce.remote()],
        }
    rows = {row["name"].rpartition(".<locals>.")[2]: row for row in span_of(place, here, *spans_named(place, here, 4))}
    assert values["Counter.slowly"] == own(rows["Counter.slowly"])[2:]
    assert values["wait"] == own(rows["wait"])[2:]
    assert values["produce"] == [own(rows["produce"])[2:]] * 2


def spans_named(place: Path, within: trace.Span, count: int) -> list[str]:
    eventually(lambda: len(spans(place, within)) == count, "all are written")
    return list(spans(place, within))


def test_an_error_is_part_of_the_span(enabled: None, place: Path) -> None:
    with tracer().start_as_current_span("program") as here:
        refs = [leaf.remote("x"), *leaf.map(["y"])]
        for ref in refs:
            with pytest.raises(TypeError):
                zf.get(ref)
    (row,) = span_of(place, here, "leaf")
    assert row["status"]["status_code"] == "ERROR"
    assert row["events"][0]["attributes"]["exception.type"] == "TypeError"


def test_methods_with_options_are_traced(enabled: None, place: Path) -> None:
    counter = Counter.options(max_task_retries=2).remote()
    with tracer().start_as_current_span("program") as here:
        assert zf.get(counter.add.options(retry_exceptions=True, timeout=PATIENCE).remote(1)) == 1
        assert zf.get(leaf.options(name="other", num_cpus=2).remote(1)) == 2
    span_of(place, here, "Counter.add", "leaf")


def test_off_it_leaves_the_connection_as_it_was(place: Path) -> None:
    client = connected()
    before = dict(vars(client))
    assert not tracing.is_enabled()
    tracing.enable(SETUP)
    assert tracing.is_enabled()
    tracing.disable()
    methods = "submit", "submit_many", "call"
    assert {name: vars(client).get(name) for name in methods} == {name: before.get(name) for name in methods}
    assert vars(client).keys() == before.keys()
    with tracer().start_as_current_span("program") as here:
        assert zf.get(branch.remote(Counter.remote())) == 7
    span_of(place, here, "program")
    assert list(spans(place, here)) == ["program"]


def test_what_is_wrong_is_said() -> None:
    for wrong in ("span_files", "span_files:", ":set_up", 5, set_up):
        with pytest.raises(zf.OptionError, match=r"package\.module:function"):
            tracing.enable(wrong)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        tracing.enable("span_files:nothing")
    with pytest.raises(ModuleNotFoundError):
        tracing.enable("no_such_module:nothing")


def test_without_opentelemetry_the_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['opentelemetry'] = None; import zfabric.util.tracing"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert "ImportError: zfabric.util.tracing needs OpenTelemetry: pip install 'zfabric[tracing]'" in ran.stderr


def test_spans_join_across_nodes(place: Path) -> None:
    with zf.LocalCluster(nodes=2, cpus_per_node=1, object_store_memory=64 * 2**20) as cluster:
        zf.shutdown()
        with zf.init(cluster.address):
            tracing.enable(SETUP)

            places = [on_node(node["NodeID"]) for node in zf.nodes()]

            @zf.remote
            def there() -> str:
                return zf.get_runtime_context().get_node_id()

            with tracer().start_as_current_span("program") as here:
                nodes = set(zf.get([there.options(scheduling_strategy=each).remote() for each in places]))
            assert len(nodes) == 2
            wanted = f"0x{here.get_span_context().trace_id:032x}"

            def written() -> set[str]:
                rows = [json.loads(line) for file in place.iterdir() for line in file.read_text().splitlines()]
                return {row["attributes"]["zfabric.node"] for row in rows if row["context"]["trace_id"] == wanted and row["parent_id"]}

            eventually(lambda: written() == nodes, "both nodes have written spans")
    zf.init(num_cpus=2, log_to_driver=False)
