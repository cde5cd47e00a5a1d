"""Looking and steering from outside of a program: ``zfabric cancel`` and ``kill``, and how listings name what runs. Real processes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from faults import PATIENCE, eventually, on_node
from files import wait_for_file

import zfabric as zf
from zfabric.cli.main import program
from zfabric.protocol.names import brief


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[zf.LocalCluster]:
    """Two nodes of two CPUs; this program is connected to the first one."""
    with (
        zf.LocalCluster(nodes=2, cpus_per_node=2, object_store_memory=64 * 2**20, config={"node_lease": 600.0}) as made,
        zf.init(made.address, log_to_driver=False),
    ):
        zf.get([zf.remote(max).options(scheduling_strategy=on_node(node)).remote(1, 2) for node in made.nodes], timeout=PATIENCE)
        yield made


@zf.remote
def hold(begun: str, over: str) -> str:
    """A task that runs until a file exists."""
    Path(begun).touch()
    wait_for_file(over)
    return zf.get_runtime_context().get_node_id()


@zf.remote(num_cpus=0)
class Counter:
    """An actor."""

    def add(self, number: int) -> int:
        """Return the next number."""
        return number + 1


def run(*arguments: str) -> tuple[int, str]:
    """Run a command: its exit status and what it prints."""
    done = CliRunner().invoke(program, arguments)
    return done.exit_code, done.output


def of_node(cluster: zf.LocalCluster, number: int) -> tuple[str, str]:
    """Options for a command to ask one node."""
    return "--address", cluster.nodes[number].address


def test_a_running_task_of_another_node_is_cancelled_by_its_id(cluster: zf.LocalCluster, tmp_path: Path) -> None:
    begun, over = tmp_path / "begun", tmp_path / "over"
    for number, node in enumerate(cluster.nodes):
        ref = hold.options(scheduling_strategy=on_node(node)).remote(str(begun), str(over))
        eventually(begun.exists, "the task runs")
        code, output = run("cancel", brief(ref.task_id()), *of_node(cluster, 1 - number))
        assert (code, output.startswith("Cancelled task 1-"), "(hold)" in output) == (0, True, True), output
        with pytest.raises(zf.TaskCancelledError):
            zf.get(ref, timeout=PATIENCE)
        code, output = run("cancel", brief(ref.task_id()), *of_node(cluster, 1 - number))
        assert code == 1
        assert "(hold) is failed: it has ended" in output
        begun.unlink()


def test_a_queued_task_is_cancelled_by_the_id_of_its_value_and_others_go_on(cluster: zf.LocalCluster, tmp_path: Path) -> None:
    begun, over = tmp_path / "begun", tmp_path / "over"
    first = hold.remote(str(begun), str(over))
    waiting = [zf.remote(lambda x: x).remote(first) for _ in range(2)]
    eventually(lambda: len(rows("tasks", "waiting")) == 2, "the daemon has both")
    code, output = run("cancel", brief(waiting[0].binary()), "nothing", *of_node(cluster, 0))
    assert code == 1
    assert "it was waiting." in output
    assert "nothing is known of 'nothing'" in output
    with pytest.raises(zf.TaskCancelledError):
        zf.get(waiting[0], timeout=PATIENCE)
    over.touch()
    assert zf.get(waiting[1], timeout=PATIENCE) == zf.get(first, timeout=PATIENCE)


def test_force_kills_the_worker_and_children_are_cancelled_too(cluster: zf.LocalCluster, tmp_path: Path) -> None:
    begun, child = tmp_path / "begun", tmp_path / "child"

    @zf.remote(num_cpus=0)
    def deaf(stubborn: bool) -> None:
        (begun if stubborn else child).touch()
        below = deaf.options(name="child").remote(False) if stubborn else None
        while True:
            try:
                time.sleep(0.01)
            except BaseException:
                if below is None:
                    raise

    ref = deaf.remote(True)
    eventually(child.exists, "the child runs")
    code, output = run("cancel", "--force", "--json", ref.task_id().hex(), *of_node(cluster, 1))
    assert code == 0, output
    assert [row["id"] for row in json.loads(output)] == [ref.task_id().hex()]
    with pytest.raises(zf.TaskCancelledError):
        zf.get(ref, timeout=PATIENCE)
    eventually(lambda: "child" not in [row["name"] for row in rows("tasks", "running", "blocked")], "the child has ended")


def rows(what: str, *states: str) -> Any:
    """A listing of the whole cluster."""
    client: Any = zf.api.lifecycle.connected()
    return client.query(what, 1000, states) if states else client.query(what)


def test_an_actor_is_killed_by_its_name_or_id_from_any_node(cluster: zf.LocalCluster) -> None:
    for number, node in enumerate(cluster.nodes):
        # A name may look like the beginning of an id.
        named = Counter.options(name="0", scheduling_strategy=on_node(node)).remote()
        plain = Counter.options(scheduling_strategy=on_node(node)).remote()
        assert zf.get([named.add.remote(1), plain.add.remote(2)], timeout=PATIENCE) == [2, 3]
        code, output = run("kill", "0", brief(plain._actor_id), *of_node(cluster, 1 - number))
        assert code == 0, output
        assert [line.endswith("it was alive.") for line in output.splitlines()] == [True, True]
        for actor in (named, plain):
            # The command returns once the home knows; a call may arrive at the process before its end.
            eventually(lambda actor=actor: zf.explain(actor).state == "dead", "it has ended")
            with pytest.raises(zf.ActorDiedError, match="it was killed \\(zfabric kill\\)"):
                zf.get(actor.add.remote(1), timeout=PATIENCE)
        code, output = run("kill", brief(plain._actor_id), *of_node(cluster, 1 - number))
        assert (code, "is dead already" in output) == (1, True), output


def test_a_killed_actor_restarts_if_it_may(cluster: zf.LocalCluster) -> None:
    actor = Counter.options(name="again", max_restarts=1, max_task_retries=-1).remote()
    assert zf.get(actor.add.remote(1), timeout=PATIENCE) == 2
    code, output = run("kill", "again", "--restart", *of_node(cluster, 1))
    assert (code, "restarts if it has restarts left" in output) == (0, True), output
    assert zf.get(actor.add.remote(1), timeout=PATIENCE) == 2
    assert run("kill", "again", *of_node(cluster, 0))[0] == 0

    def is_dead() -> bool:
        try:
            zf.get(actor.add.remote(1), timeout=PATIENCE)
        except zf.ActorDiedError:
            return True
        return False

    eventually(is_dead, "the signal that ends its process")  # It may follow the daemon's answer.


def test_what_cannot_be_cancelled_or_killed_is_refused_with_what_to_do(cluster: zf.LocalCluster) -> None:
    actor, value = Counter.options(name="steered").remote(), zf.put(1)
    pid = zf.get(zf.remote(lambda: __import__("os").getpid()).remote(), timeout=PATIENCE)
    done = zf.remote(max).remote(1, 2)
    assert zf.get([done, actor.add.remote(1)], timeout=PATIENCE) == [2, 2]
    task = brief(done.task_id())
    for arguments, status, text in (
        (("cancel", "steered"), 2, "'steered' is an actor (Counter, steered); to end it: zfabric kill steered"),
        (("cancel", value.hex()), 2, "was put: no task makes it"),
        (("cancel", str(pid)), 2, f"is a worker (pid {pid}); give the id of a task"),
        (("cancel", task), 1, "(max) is finished: it has ended"),
        (("kill", task), 2, f"is no actor, but a task (max); to cancel it: zfabric cancel {task}"),
        (("kill", "nobody"), 1, "nothing is known of 'nobody'"),
        (("cancel",), 2, "Missing argument 'ID...'"),
        (("cancel", "\udcff"), 1, "nothing is known of"),
    ):
        code, output = run(*arguments, *of_node(cluster, 1))
        assert (code, text in output) == (status, True), (arguments, output)
    assert zf.get(actor.add.remote(1), timeout=PATIENCE) == 2


@zf.remote
def speaks(number: int, values: Any = None) -> int:
    """A task that writes two lines."""
    print(f"number {number}")
    print("is written")
    return number


def test_a_task_that_has_ended_is_explained_with_its_time_place_arguments_and_lines(cluster: zf.LocalCluster) -> None:
    values = zf.put(bytes(300_000))
    ref = speaks.options(scheduling_strategy=on_node(cluster.nodes[1])).remote(17, values)
    assert zf.get(ref, timeout=PATIENCE) == 17
    task = brief(ref.task_id())
    found = zf.explain(ref)
    assert found.state == "finished"
    assert re.search(r"^[\d.]+ m?s in process \d+ on node2, ", found.facts["ran"])
    assert re.fullmatch(r"\d+ B with the call; 1-\w+-\d+-p\d+ \(put\): 293 KiB in the object store", found.facts["arguments"])
    assert found.facts["output"] == "number 17\nis written"
    code, output = run("explain", "--json", task, *of_node(cluster, 0))
    assert code == 0, output
    facts = json.loads(output)["facts"]
    assert {name: facts[name] for name in ("arguments", "output")} == {name: found.facts[name] for name in ("arguments", "output")}
    assert facts["ran"].split(" ago")[0].rpartition(", ")[0] == found.facts["ran"].split(" ago")[0].rpartition(", ")[0]
    printed = run("explain", task, *of_node(cluster, 1))[1]
    assert re.search(r"output: +number 17\n +is written", printed)
    del ref, found
    eventually(lambda: not [row for row in rows("tasks") if "speaks" in row["name"]], "it is forgotten")
    code, output = run("explain", task, *of_node(cluster, 0))
    assert code == 0, output
    assert f"task {task} (speaks): finished\nhas ended, and the cluster has forgotten it" in output
    assert re.search(r"ran: +[\d.]+ m?s in process \d+ on node2", output)


@zf.remote(num_cpus=0)
class Busy:
    """An actor whose calls last until a file exists."""

    def hold(self, begun: str, over: str) -> None:
        """Run until a file exists."""
        Path(begun).touch()
        wait_for_file(over)


def test_the_process_of_an_actor_is_named_after_it_with_what_it_runs(cluster: zf.LocalCluster, tmp_path: Path) -> None:
    begun, over = tmp_path / "begun", tmp_path / "over"
    actor = Busy.options(name="the busy one", scheduling_strategy=on_node(cluster.nodes[1])).remote()
    refs = [actor.hold.remote(str(begun), str(over)) for _ in range(3)]
    eventually(begun.exists, "the first call runs")
    eventually(lambda: "2 calls wait" in zf.explain(actor).facts.get("activity", ""), "the others wait")
    assert re.fullmatch(r"runs Busy.hold \(1-\S+\) for [\d.]+ m?s; 2 calls wait", zf.explain(actor).facts["activity"])
    for number in range(2):
        listed = json.loads(run("workers", "--json", *of_node(cluster, number))[1])
        (row,) = (row for row in listed if row["actor_id"] == actor._actor_id.hex())  # Actors of other tests may be ending.
        assert (row["actor"], row["calls_waiting"]) == ("Busy, the busy one", 2)
        assert [(each["name"], each["id"]) for each in row["runs"]] == [("Busy.hold", refs[0].task_id().hex())]
        assert "Busy, the busy one: runs Busy.hold (1-" in run("workers", *of_node(cluster, number))[1]
        assert "activity: " in (explained := run("explain", "the busy one", *of_node(cluster, number))[1]), explained
        assert "actor Busy, the busy one, 2 calls wait, for " in run("stack", str(row["pid"]), *of_node(cluster, number))[1]
    assert "is the process of the actor Busy, the busy one" in run("explain", str(row["pid"]), *of_node(cluster, 0))[1]
    over.touch()
    zf.get(refs, timeout=PATIENCE)
    # A call runs until its process has noted the end; the value may arrive before.
    eventually(lambda: zf.explain(actor).facts["activity"] == "runs nothing; 0 calls wait", "all calls have ended")
