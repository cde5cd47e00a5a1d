"""Call backs when values are complete and when nobody needs them any more, and where values are, on live clusters."""

from __future__ import annotations

import dataclasses
import gc
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from faults import LEASE, PATIENCE, descendants, eventually, failure, kill_daemon, name_of, on_node, query

import zfabric as zf
from zfabric.api.futures import call_later
from zfabric.runtime import interface
from zfabric.util.local_cluster import LocalCluster

LARGE = 500_000
"""Elements of an array that is in the object store."""


class Calls:
    """What call backs were called with, and in which threads."""

    def __init__(self) -> None:
        self.threads: set[str] = set()
        self._calls: SimpleQueue[Any] = SimpleQueue()

    def __call__(self, about: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self._calls.put(about)

    def next(self) -> Any:
        return self._calls.get(timeout=PATIENCE)

    def none(self) -> bool:
        """Whether none has come, although everything that was sent so far has been received and answered."""
        query("nothing")
        done = threading.Event()
        call_later(done.set)
        assert done.wait(PATIENCE)
        return self._calls.empty()


@pytest.fixture
def calls() -> Calls:
    return Calls()


@zf.remote(num_cpus=0)
def after(gate: str, value: Any = None, fail: bool = False) -> Any:
    """Return ``value``, or raise, once there is a file."""
    while not os.path.exists(gate):
        threading.Event().wait(0.005)
    if fail:
        raise KeyError(gate)
    return value


@zf.remote(num_cpus=0)
def array(size: int = LARGE) -> Any:
    return np.ones(size)


@zf.remote(num_cpus=0)
class Holder:
    def __init__(self) -> None:
        self.held: list[Any] = []
        self.seen: list[str] = []

    def hold(self, refs: list[Any]) -> None:
        self.held += refs

    def drop(self) -> None:
        self.held.clear()

    def value(self, size: int = 0) -> Any:
        return np.ones(size) if size else 5

    def wait(self, gate: str, value: Any = None) -> Any:
        while not os.path.exists(gate):
            threading.Event().wait(0.005)
        return value

    def make(self) -> Any:
        return [zf.put(np.ones(LARGE))]

    def watch(self, refs: list[Any]) -> None:
        for ref in refs:
            zf.util.on_freed(ref, lambda id_: self.seen.append("freed"))
            zf.util.on_ready(ref, lambda ref: self.seen.append("ready"))

    def look(self) -> list[str]:
        return self.seen


def size_of(location: Any) -> int:
    size = location.size
    assert isinstance(size, int)
    return size


@pytest.fixture
def gate(tmp_path: Any) -> Iterator[Any]:
    yield tmp_path / "gate"
    (tmp_path / "gate").touch()  # Nothing waits for ever, also if a test fails.


# --- one node ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shared_cluster")
class TestOneNode:
    @pytest.mark.parametrize(
        "make", [lambda: zf.put(1), lambda: zf.put(np.ones(LARGE)), lambda: zf.get(ref := array.remote()) is None or ref]
    )
    def test_a_complete_value_is_ready_at_once(self, calls: Calls, make: Callable[[], Any]) -> None:
        ref = make()
        zf.util.on_ready(ref, calls)
        zf.util.on_ready(ref, calls)
        assert (calls.next(), calls.next()) == (ref, ref)
        assert calls.threads == {"zfabric-futures"}

    @pytest.mark.parametrize("fail", [False, True])
    @pytest.mark.parametrize("size", [0, LARGE])
    def test_a_task_is_ready_when_it_ends_and_its_value_stays_where_it_is(self, calls: Calls, gate: Any, size: int, fail: bool) -> None:
        ref = after.remote(str(gate), np.ones(size), fail)
        zf.util.on_ready(ref, calls)
        assert calls.none()
        gate.touch()
        assert calls.next() == ref
        client: Any = interface.current()
        assert ref.binary() not in client.machine.pins.counts, "nothing keeps it in memory"
        if fail:
            assert isinstance(failure(ref), KeyError)

    def test_calls_and_refs_of_others_are_ready_too(self, calls: Calls, gate: Any) -> None:
        holder = Holder.remote()
        call = holder.wait.remote(str(gate), "value")
        zf.util.on_ready(call, calls)
        (inner,) = zf.get(zf.remote(lambda gate: [after.remote(gate, "inner")]).remote(str(gate)), timeout=PATIENCE)
        zf.util.on_ready(inner, calls)
        assert calls.none()
        gate.touch()
        assert {calls.next(), calls.next()} == {call, inner}
        large = holder.value.remote(LARGE)
        zf.util.on_ready(large, calls)
        assert calls.next() == large

    def test_a_ref_is_retained_until_its_value_is_ready_and_no_longer(self, calls: Calls, gate: Any) -> None:
        freed = Calls()
        ref = after.remote(str(gate), np.ones(LARGE))
        zf.util.on_freed(ref, freed, "process")
        zf.util.on_ready(ref, lambda ref: calls(zf.get(ref)[0]))
        expected = ref.binary()
        del ref
        assert freed.none()
        gate.touch()
        assert calls.next() == 1.0
        assert freed.next() == expected

    def test_an_error_in_a_call_back_is_logged_and_others_follow(self, calls: Calls, caplog: pytest.LogCaptureFixture) -> None:
        ref = zf.put(1)

        def wrong(about: Any) -> None:
            raise SystemExit("mine")

        with caplog.at_level(logging.ERROR):
            zf.util.on_ready(zf.put(2), wrong)
            zf.util.on_freed(ref, wrong)
            zf.util.on_freed(ref, calls)
            del ref
            calls.next()
        raised = [record for record in caplog.records if record.name == "zfabric"]
        assert [record.exc_info[1].args for record in raised if record.exc_info] == [("mine",)] * 2
        assert ["on_ready" in raised[0].message, "on_freed" in raised[1].message] == [True, True]

    KINDS: dict[str, Callable[[Any], Any]] = {
        "put": lambda holder: zf.put(1),
        "large put": lambda holder: zf.put(np.ones(LARGE)),
        "task": lambda holder: array.remote(10),
        "large task": lambda holder: array.remote(),
        "call": lambda holder: holder.value.remote(),
        "large call": lambda holder: holder.value.remote(LARGE),
        "failure": lambda holder: after.remote("/", None, True),
        "first of two": lambda holder: array.options(num_returns=2).remote(2)[0],
        "value of a stream": lambda holder: next(zf.remote(lambda: (yield 1)).remote()),
        "inside a value": lambda holder: zf.get(holder.make.remote(), timeout=PATIENCE)[0],
    }

    @pytest.mark.parametrize("read", [False, True])
    @pytest.mark.parametrize("scope", ["process", "cluster"])
    def test_the_last_ref_counts_whatever_the_value_is(self, scope: Any, read: bool) -> None:
        holder = Holder.remote()
        for kind, make in self.KINDS.items():
            calls, ref = Calls(), make(holder)
            expected, another = ref.binary(), zf.ObjectRef(ref.binary())
            if read:
                zf.wait([ref], timeout=PATIENCE)
            zf.util.on_freed(ref, calls, scope)
            zf.util.on_freed(ref, calls, scope)
            del ref
            gc.collect()
            assert calls.none(), kind
            del another
            assert (calls.next(), calls.next()) == (expected, expected), kind
            assert calls.threads == {"zfabric-futures"}
            assert calls.none(), kind

    def test_the_cluster_needs_what_tasks_actors_and_values_need(self, calls: Calls, gate: Any) -> None:
        here, holder = Calls(), Holder.remote()
        ref = array.remote()
        expected = ref.binary()
        zf.util.on_freed(ref, calls)
        zf.util.on_freed(ref, here, "process")
        zf.get(holder.hold.remote([ref]), timeout=PATIENCE)
        argument = after.remote(str(gate), [ref])
        box = zf.put({"inside": ref})
        del ref
        zf.get(holder.drop.remote(), timeout=PATIENCE)
        assert calls.none()
        gate.touch()
        zf.wait([argument], timeout=PATIENCE)
        del argument
        assert calls.none()
        assert here.none(), "what is inside a value counts here, too"
        del box
        assert here.next() == expected
        assert calls.next() == expected

    def test_a_process_that_dies_needs_nothing_and_is_not_notified(self, calls: Calls) -> None:
        holder, other = Holder.remote(), Holder.remote()
        here, ref = Calls(), zf.put(np.ones(LARGE))
        expected = ref.binary()
        zf.util.on_freed(ref, calls)
        zf.util.on_freed(ref, here, "process")
        zf.get([each.hold.remote([ref]) for each in (holder, other)] + [holder.watch.remote([ref])], timeout=PATIENCE)
        del ref
        assert here.next() == expected
        zf.kill(other)
        assert calls.none()
        zf.kill(holder)
        assert calls.next() == expected
        assert query("status")["statistics"]["watches"] == 0

    def test_actors_and_tasks_are_called_back_too(self) -> None:
        holder = Holder.remote()
        ref = array.remote()
        zf.get(holder.watch.remote([ref]), timeout=PATIENCE)
        del ref
        eventually(lambda: sorted(zf.get(holder.look.remote())) == ["freed", "ready"], "the actor is called back")

    def test_a_new_daemon_knows_who_waits(self, calls: Calls, gate: Any) -> None:
        holder = Holder.remote()
        refs = [zf.put(np.ones(LARGE)), zf.put(1), holder.value.remote(), after.remote(str(gate)), array.remote()]
        zf.wait(refs, num_returns=4, timeout=PATIENCE)
        ready, expected = Calls(), {ref.binary() for ref in refs}
        for ref in refs:
            zf.util.on_freed(ref, calls)
        zf.util.on_ready(refs[3], ready)
        zf.get(holder.hold.remote(refs), timeout=PATIENCE)
        del ref, refs
        kill_daemon()
        assert calls.none(), "the actor has them"
        gate.touch()
        ready.next()
        zf.get(holder.drop.remote(), timeout=PATIENCE)
        assert {calls.next() for _ in expected} == expected
        kept = zf.put(1)
        zf.util.on_freed(kept, calls)
        kill_daemon()
        expected = {kept.binary()}
        del kept
        assert {calls.next()} == expected

    def test_how_many_wait_is_bounded(self, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
        client: Any = interface.current()
        most = client.machine.last.count + 2
        monkeypatch.setattr(client, "config", dataclasses.replace(client.config, last_callbacks_max=most))
        ref, other = zf.put(1), zf.put(2)
        zf.util.on_freed(ref, calls)
        zf.util.on_freed(ref, calls, "process")
        with pytest.raises(zf.CallbackLimitExceededError, match="last_callbacks_max"):
            zf.util.on_freed(other, calls)
        del ref
        calls.next()
        calls.next()
        zf.util.on_freed(other, calls)

    def test_where_values_are(self, gate: Any) -> None:
        (node,) = (each["NodeID"] for each in zf.nodes())
        holder = Holder.remote()
        small, large, pending, wrong, call, none = refs = [
            zf.put(b"x" * 100),
            array.remote(),
            after.remote(str(gate)),
            after.remote("/", None, True),
            holder.value.remote(),
            holder.wait.remote(str(gate)),
        ]
        zf.wait([large, wrong, call], num_returns=3, timeout=PATIENCE, fetch_local=False)
        found = zf.util.locate(refs)
        assert list(found) == refs
        assert 100 < size_of(found[small]) < 300
        assert found[small][1:] == ((), False, True)
        assert size_of(found[large]) > 8 * LARGE
        assert found[large][1:] == ((node,), False, True)
        assert found[call].nodes == ()
        assert size_of(found[call]) < 100
        assert found[wrong] == (None, (), False, True)
        assert found[pending] == found[none] == (None, (), False, False)
        unknown = zf.ObjectRef(bytes(20))
        assert zf.util.locate([unknown])[unknown] == (None, (), False, False)
        assert zf.util.locate([]) == {}
        shared = zf.get(zf.remote(lambda refs: [tuple(each) for each in zf.util.locate(refs).values()]).remote([small, large]))
        assert shared == [tuple(found[small]), tuple(found[large])]

    def test_many_are_located_by_one_message(self, monkeypatch: pytest.MonkeyPatch) -> None:
        refs = [array.remote(10_000) for _ in range(300)]
        assert len(zf.wait(refs, num_returns=300, timeout=PATIENCE, fetch_local=False)[0]) == 300
        client: Any = interface.current()
        asked: list[str] = []
        right = client.machine.queries.ask
        monkeypatch.setattr(
            client.machine.queries, "ask", lambda token, what, arguments: asked.append(what) or right(token, what, arguments)
        )
        found = zf.util.locate(refs)
        assert len(found) == 300
        assert all(each.nodes and size_of(each) > 80_000 for each in found.values())
        assert asked == ["locate"]

    def test_bad_input_is_refused(self) -> None:
        ref = zf.put(1)
        for function in (zf.util.on_ready, zf.util.on_freed):
            with pytest.raises(zf.ArgumentTypeError, match="takes a ref, not an int"):
                function(1, print)  # type: ignore[arg-type]
            with pytest.raises(zf.ArgumentTypeError, match="takes a function to call, not an int"):
                function(ref, 1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="'everywhere'"):
            zf.util.on_freed(ref, print, "everywhere")  # type: ignore[arg-type]
        with pytest.raises(zf.ArgumentTypeError, match=r"locate\(\[ref\]\)"):
            zf.util.locate(ref)  # type: ignore[arg-type]
        with pytest.raises(zf.ArgumentTypeError, match="takes refs, not an int"):
            zf.util.locate([1])  # type: ignore[list-item]
        with pytest.raises(zf.FabricError, match="ids of objects"):
            query("locate", "text")


# --- the end ----------------------------------------------------------------------------------------------------------------------


def test_nothing_is_called_after_shutdown(cluster: Callable[..., Any], calls: Calls, gate: Any) -> None:
    with cluster(num_cpus=1):
        pending, ref = after.remote(str(gate)), zf.put(1)
        zf.util.on_ready(pending, calls)
        zf.util.on_freed(ref, calls)
        zf.util.on_freed(ref, calls, "process")
        zf.util.on_freed(pending, calls)
        zf.shutdown()
        del ref
        gate.touch()
    with cluster(num_cpus=1):
        assert calls.none(), "nor by the next cluster"
        with pytest.raises(zf.NotInitializedError):
            zf.util.on_ready(pending, calls)
        with pytest.raises(zf.NotInitializedError):
            zf.util.locate([pending])


# --- several nodes ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="class")
def nodes() -> Iterator[LocalCluster]:
    config = {"node_lease": LEASE, "preload": ("pytest", "numpy")}
    with (
        LocalCluster(nodes=4, cpus_per_node=1, object_store_memory=64 * 2**20, config=config) as found,
        zf.init(found.address),
    ):
        yield found


def kill_daemon_of(node: Any) -> None:
    before = eventually(lambda: daemon_of(node), "it has a daemon")
    os.kill(before, signal.SIGKILL)
    eventually(lambda: daemon_of(node) not in (0, before), "it has another daemon")


def daemon_of(node: Any) -> int:
    return next((pid for pid in descendants(node.pid) if name_of(pid) == "zf-daemon"), 0)


class TestSeveralNodes:
    """The driver is on the first node. Values are at home on the second, and an actor on the third has refs."""

    def placed(self, nodes: LocalCluster, *places: int) -> list[Any]:
        return [Holder.options(scheduling_strategy=on_node(nodes.nodes[place])).remote() for place in places]

    @pytest.mark.parametrize("restarted", [None, 0, 1, 2])
    def test_refs_on_other_nodes_count_whichever_daemon_is_new(self, nodes: LocalCluster, calls: Calls, restarted: int | None) -> None:
        maker, holder = self.placed(nodes, 1, 2)
        (ref,) = zf.get(maker.make.remote(), timeout=PATIENCE)
        own = zf.put(1)
        expected = {ref.binary(), own.binary()}
        here = Calls()
        for each in (ref, own):
            zf.util.on_freed(each, calls)
            zf.util.on_freed(each, here, "process")
        zf.get(holder.hold.remote([ref, own]), timeout=PATIENCE)
        del ref, own, each
        assert {here.next(), here.next()} == expected, "nothing is held here"
        if restarted is not None:
            kill_daemon_of(nodes.nodes[restarted])
        assert zf.get(holder.value.remote(), timeout=PATIENCE) == 5
        assert calls.none()
        zf.get(holder.drop.remote(), timeout=PATIENCE)
        assert {calls.next(), calls.next()} == expected

    def test_where_values_of_several_nodes_are(self, nodes: LocalCluster) -> None:
        first, second = (node.node_id for node in nodes.nodes[:2])
        there = on_node(nodes.nodes[1])
        large, small = (array.options(scheduling_strategy=there).remote(size) for size in (LARGE, 10))
        zf.wait([large, small], num_returns=2, timeout=PATIENCE, fetch_local=False)
        found = zf.util.locate([large, small])
        assert found[large][1:] == ((second,), False, True)
        assert found[small][1:] == ((), False, True)
        (maker,) = self.placed(nodes, 1)
        (put,) = zf.get(maker.make.remote(), timeout=PATIENCE)
        assert zf.util.locate([put])[put].nodes == (second,)
        zf.get(put, timeout=PATIENCE)
        both = zf.util.locate([put])[put]
        assert (set(both.nodes), both.spilled, both.complete) == ({first, second}, False, True)

    def test_a_value_on_disk_is_spilled(self, nodes: LocalCluster) -> None:
        refs = [zf.put(np.ones(3 * 2**20)) for _ in range(4)]  # 24 MiB each
        found = zf.util.locate(refs)
        assert all(each.nodes == (nodes.nodes[0].node_id,) for each in found.values())
        assert {each.spilled for each in found.values()} == {True, False}

    def test_the_death_of_a_node_is_no_end_of_refs(self, nodes: LocalCluster, calls: Calls, gate: Any) -> None:
        ready, kept = Calls(), Calls()
        maker, holder = self.placed(nodes, 3, 2)
        lost, held = (zf.get(maker.make.remote(), timeout=PATIENCE)[0] for _ in range(2))
        running = after.options(scheduling_strategy=on_node(nodes.nodes[3]), max_retries=0).remote(str(gate))
        zf.util.on_ready(running, ready)
        expected = lost.binary(), held.binary()
        zf.util.on_freed(lost, calls)
        zf.util.on_freed(held, kept)
        zf.get(holder.hold.remote([held]), timeout=PATIENCE)
        nodes.nodes[3].kill()
        assert ready.next() == running
        eventually(lambda: len(zf.nodes()) == 3, "it is known to be dead")
        assert calls.none()
        del lost, held
        assert calls.next() == expected[0]
        assert kept.none()
        zf.get(holder.drop.remote(), timeout=PATIENCE)
        assert kept.next() == expected[1]
