"""Lists and summaries under Ray's names, against tasks, actors and values that are known."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import one_cluster
from faults import PATIENCE, eventually

import zfabric as zf
from zfabric.util import state

shared = one_cluster(num_cpus=1)


@zf.remote
def doubled(x: int) -> int:
    return 2 * x


@zf.remote(max_retries=0)
def fails() -> None:
    raise ValueError("no")


@zf.remote(num_cpus=50)
def never() -> None:
    pass


@zf.remote
class Person:
    def name(self) -> str:
        return "somebody"

    def names(self) -> Iterator[str]:
        yield "some"
        threading.Event().wait()  # What it has yielded is a value although the call goes on, until the actor is killed.


@zf.remote
def waits(_: str, given: str) -> str:
    return given


def test_tasks_by_state_and_by_name() -> None:
    refs = [doubled.remote(i) for i in range(5)] + [fails.remote()]
    zf.wait(refs, num_returns=6, timeout=PATIENCE)
    waiting = never.options(name="a name of its own").remote()
    rows = state.list_tasks(filters=[("name", "=", "doubled")])
    assert [row.state for row in rows] == ["FINISHED"] * 5
    assert {row["task_id"] for row in rows} == {ref.hex()[:-8] for ref in refs[:5]}
    assert [row.state for row in state.list_tasks(filters=[("func_or_class_name", "=", "fails")])] == ["FAILED"]
    assert [row.state for row in state.list_tasks(filters=[("name", "=", "a name of its own")])] == ["PENDING_NODE_ASSIGNMENT"]
    assert state.list_tasks(filters=[("name", "=", "a name of its own")])[0].func_or_class_name == "never"
    assert len(state.list_tasks(filters=[("state", "=", "finished"), ("name", "!=", "never")], limit=3)) == 3
    found = state.get_task(refs[0].hex()[:-8])
    assert found is not None
    assert found.attempt_number == 0
    assert state.get_task("00") is None
    zf.cancel(waiting)


def test_what_was_not_looked_at_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    refs = [doubled.remote(i) for i in range(30)] + [fails.remote()]
    zf.wait(refs, num_returns=31, timeout=PATIENCE)
    monkeypatch.setattr(state, "LIST_LIMIT", 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(state.list_tasks(limit=20)) == 20
        assert {row.state for row in state.list_tasks(filters=[("state", "=", "FAILED"), ("name", "=", "fails")], limit=20)} == {"FAILED"}
        assert state.get_task(state.list_tasks(limit=20)[-1].task_id) is not None
    for asked in (
        lambda: state.get_task("00"),
        lambda: state.list_objects(filters=[("where", "=", "nowhere")], limit=20),
        state.summarize_objects,
    ):
        with pytest.warns(RuntimeWarning, match="only the first 20 were looked at"):
            asked()


def test_rows_of_a_started_node_alone_have_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    class Head:
        def query(self, what: str, *_: Any) -> list[dict[str, Any]]:
            return [{"name": "vm", "node": "ab"}] if what == "nodes" else [{"token": "t", "pid": 1, "state": "idle"}]

    monkeypatch.setattr(state, "connected", Head)
    assert [(row.node, row.node_id) for row in state.list_workers()] == [("vm", "ab")]


def test_a_summary_counts_what_nobody_refers_to_any_more() -> None:
    before = state.summarize_tasks()["cluster"]["summary"].get("doubled", {}).get("state_counts", {}).get("FINISHED", 0)
    zf.get([doubled.remote(i) for i in range(20)], timeout=PATIENCE)
    after = state.summarize_tasks()["cluster"]["summary"]["doubled"]
    assert after["state_counts"]["FINISHED"] == before + 20
    assert after["type"] == "NORMAL_TASK"


def test_actors_alive_and_dead() -> None:
    person = Person.options(name="someone").remote()
    zf.get(person.name.remote(), timeout=PATIENCE)
    (row,) = state.list_actors(filters=[("name", "=", "someone")])
    assert (row.state, row.class_name) == ("ALIVE", "Person")
    found = state.get_actor(row.actor_id)
    assert found is not None
    assert found.pid == row.pid
    assert state.summarize_actors()["cluster"]["summary"]["Person"]["state_counts"]["ALIVE"] == 1
    zf.kill(person)
    eventually(lambda: not state.list_actors(filters=[("name", "=", "someone"), ("state", "=", "ALIVE")]), "the actor's end")


def test_values_of_calls_and_streams_are_not_taken_for_put_ones() -> None:
    person = Person.remote()
    called, yielded = person.name.remote(), next(person.names.remote())
    zf.wait([called, yielded], num_returns=2, timeout=PATIENCE)
    pending = [waits.remote(never.remote(), ref) for ref in (called, yielded)]  # So the daemon has them, too.
    for ref, maker, text in ((called, "call", "the result of a call"), (yielded, "stream", "a value that a stream yielded")):
        eventually(lambda ref=ref, maker=maker: [row.made_by for row in state.get_objects(ref.hex())] == [maker], "the list has it")
        assert zf.explain(ref).reason.startswith(text)
    zf.cancel(pending[0])
    zf.kill(person)


def test_objects_nodes_jobs_and_workers() -> None:
    ref = zf.put(b"x" * 5000)
    (row,) = state.get_objects(ref.hex())
    assert row.object_size >= 5000
    assert state.summarize_objects()["cluster"]["summary"]["put"]["total_size_bytes"] >= 5000
    (node,) = state.list_nodes()
    assert node.resources_total["CPU"] == 1
    assert state.get_node(node.node_id) == node
    assert [job.status for job in state.list_jobs()] == ["RUNNING"]
    assert all(worker.pid for worker in state.list_workers(filters=[("state", "=", "idle")]))


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"limit": 0}, ValueError, "limit is a number of rows"),
        ({"limit": 10_001}, ValueError, "limit is a number of rows"),
        ({"filters": [("name", "~", "x")]}, ValueError, "a filter is"),
        ({"filters": [("colour", "=", "x")]}, ValueError, "there is no column 'colour'; there are node_id"),
        ({"limits": 5}, TypeError, "has no argument 'limits'"),
    ],
)
def test_wrong_arguments_are_explained(arguments: dict[str, Any], kind: type, text: str) -> None:
    with pytest.raises(kind, match=text):
        state.list_nodes(**arguments)


def test_placement_groups_jobs_and_workers_by_id() -> None:
    group = zf.util.placement_group([{"CPU": 1}, {"CPU": 50}], name="listed")
    (row,) = state.list_placement_groups(filters=[("name", "=", "listed")])
    assert (row.placement_group_id, row.state, row.strategy, row.is_detached) == (group.id.hex(), "PENDING", "PACK", False)
    assert row.bundles == [{"CPU": 1.0}, {"CPU": 50.0}]
    assert state.get_placement_group(row.placement_group_id) == row
    zf.util.remove_placement_group(group)
    assert state.get_placement_group(row.placement_group_id) is None
    (job,) = state.list_jobs(filters=[("status", "=", "RUNNING")])
    assert state.get_job(job.job_id) == job
    worker = eventually(state.list_workers, "a worker")[0]
    assert state.get_worker(worker.worker_id).pid == worker.pid
    assert state.get_job("00") is state.get_worker("00") is None


def test_a_row_says_which_columns_it_has() -> None:
    with pytest.raises(AttributeError, match="this row has no 'colour'; it has node_id"):
        _ = state.list_nodes()[0].colour
