"""Streams whose values are made on another node than their home, or read there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import LEASE, descendants, eventually, name_of, on_node, taken
from ledger_updates import held, holding, released
from nodes_alone import ABOUT, HOME_A, HOME_C, OTHER, SELF, Executor
from scheduler_alone import DRIVER, OWN, task_id

import zfabric as zf
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import CLIENT, FIRST_RETURN, MEMBER, WORKER, first_attempt, object_id
from zfabric.protocol.options import NODE_ID, RESOURCE_UNIT

PATIENCE = 60
STREAM = b"s" * 16
EXPORTED = ((STREAM, "s", b"payload", (("stream", 2),)),)
ATTEMPT = first_attempt(0, 1)
"""As node A numbers it."""


class Nodes(Executor):
    """A node between two others, with a job of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.driver()
        self.sent.clear()

    def makes(self) -> bytes:
        """A stream of node A begins here. Return its worker."""
        self.hear(HOME_A, m.Delegate(ABOUT, EXPORTED, ((task_id(0), STREAM, b"", ()),), (), (), (), ATTEMPT))
        self.workers()
        ((worker, _, _),) = self.dispatched()
        self.sent.clear()
        return worker

    def yields(self, worker: bytes, *rows: tuple[int, Any, tuple[bytes, ...]], attempt: int = ATTEMPT) -> None:
        """The worker yields values: index, value, refs inside."""
        self.send(WORKER + worker, m.Yielded(tuple((task_id(0), attempt, *row) for row in rows)))

    def table(self, version: int, *nodes: bytes) -> None:
        """Receive which nodes there are."""
        number = dict(zip(self.nodes(), (1, 2, 3), strict=True))
        rows = [(each, number[each], "n", "", "", b"", (("CPU", RESOURCE_UNIT),), (), 0) for each in nodes]
        self.send(MEMBER + OWN, m.NodeTable(version, tuple(rows)))

    def gives(self, soft: bool = False) -> int:
        """A stream of this node's driver runs on node A. Return its attempt."""
        strategy = ("strategy", on(HOME_A, "soft" if soft else "hard"))
        self.send(CLIENT + DRIVER, m.Export(((STREAM, "s", b"payload", (("stream", 2), strategy)),)))
        self.submit((task_id(0), STREAM, b"", ()))
        (given,) = [each for each in self.told(HOME_A) if type(each) is m.Delegate]
        return given.attempt

    def asks(self, *indexes: int) -> None:
        """The driver requests values."""
        names = tuple(object_id(task_id(0), index + 1) for index in indexes)
        self.send(CLIENT + DRIVER, m.Hold(names))
        self.send(CLIENT + DRIVER, m.Fetch(names))

    def got(self) -> list[tuple[int, Any]]:
        """What the driver was sent: index, value or kind of failure."""
        rows = [row for _, message in self.take(m.Objects) for row in message.rows]
        return [(int.from_bytes(row[0][-4:], "big") - 1, row[2] if row[1] == m.OK else unpack_failure(row[2])[0]) for row in rows]


def on(node: bytes, rank: str) -> tuple[Any, ...]:
    """The strategy of tasks that run on a certain node only."""
    return ((rank, NODE_ID, "in", (node.hex(),)),)


@pytest.fixture
def node() -> Nodes:
    return Nodes()


# -- where a stream is made --


def test_values_go_home_as_they_are_yielded_and_before_the_end(node: Nodes) -> None:
    worker = node.makes()
    node.yields(worker, (0, b"a", ()), (1, (640, 100_000), ()))
    (sent,) = node.told(HOME_A)
    assert sent == m.RelayedYields(1, ((task_id(0), ATTEMPT, 0, b"a", ()), (task_id(0), ATTEMPT, 1, 100_000, ())), ())
    node.yields(worker, (2, None, ()))
    node.complete(worker, 0, ATTEMPT, m.OK, b"end")
    assert [type(each) for each in node.told(HOME_A)] == [m.RelayedYields, m.Ended]
    assert [message for _, message in node.take(m.OutcomesRecorded)] == [m.OutcomesRecorded((task_id(0),))]
    node.hear(HOME_A, m.EndsReceived(3), released((object_id(task_id(0), 2),)))
    assert not node.scheduler.tables.objects


def test_refs_inside_a_value_are_retained_until_the_home_has_taken_it_in_and_no_reader_can_miss_it(node: Nodes) -> None:
    worker = node.makes()
    node.send(CLIENT + worker, m.Put(((OTHER, b"inner", (), False),)))
    node.yields(worker, (0, b"a", (OTHER,)))
    node.send(CLIENT + worker, m.Release((OTHER,)))
    node.told(HOME_A)
    node.hear(HOME_A, m.EndsReceived(1))
    assert node.scheduler.tables.find(OTHER) is not None  # Node A's next daemon may need the value again.
    node.yields(worker, (1, b"b", ()), (2, b"c", ()), (3, b"d", ()))
    node.hear(HOME_A, m.EndsReceived(2))
    assert node.scheduler.tables.find(OTHER) is None


def test_what_its_home_permits_is_passed_on(node: Nodes) -> None:
    worker = node.makes()
    node.hear(HOME_A, m.AllowYields(task_id(0), 9))
    node.hear(HOME_C, m.AllowYields(task_id(0), 20))
    node.hear(HOME_A, m.AllowYields(task_id(7), 9))
    assert node.take(m.AllowYields) == [(WORKER + worker, m.AllowYields(task_id(0), 9))]


def test_values_of_another_attempt_or_worker_are_dropped(node: Nodes) -> None:
    worker = node.makes()
    node.yields(worker, (0, b"a", ()), attempt=ATTEMPT + 1)
    node.yields(b"\x01nobody0", (0, b"a", ()))
    assert not node.told(HOME_A)


@pytest.mark.parametrize("received", [False, True])
def test_the_next_daemon_of_the_home_receives_the_last_values_in_order(node: Nodes, received: bool) -> None:
    worker = node.makes()
    for index in range(4):
        node.yields(worker, (index, b"v", ()))
    if received:
        node.hear(HOME_A, m.EndsReceived(3))
    node.told(HOME_A)
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon 2", node.scheduler.address[1:]), m.Ready())
    repeated = [row[2] for each in node.told(HOME_A) if type(each) is m.RelayedYields for row in each.rows]
    assert repeated == ([1, 2, 3, 3] if received else [0, 1, 2, 3])


def test_the_next_daemon_of_the_home_receives_the_last_values_again_until_the_end_is_acknowledged(node: Nodes) -> None:
    worker = node.makes()
    node.send(CLIENT + worker, m.Put(((OTHER, b"inner", (), False),)))
    node.yields(worker, (0, b"a", ()), (1, b"b", (OTHER,)))
    node.send(CLIENT + worker, m.Release((OTHER,)))
    node.hear(HOME_A, m.EndsReceived(1))
    node.yields(worker, (2, None, ()))
    node.complete(worker, 0, ATTEMPT, m.OK, b"end")
    node.told(HOME_A)
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon 2", node.scheduler.address[1:]), m.Ready())
    told = node.told(HOME_A)
    assert [row[2] for each in told if type(each) is m.RelayedYields for row in each.rows] == [0, 1, 2, 2]
    assert type(told[-1]) is m.Ended
    assert node.scheduler.tables.find(OTHER) is not None
    node.hear(HOME_A, m.EndsReceived(told[-1].number))
    assert node.scheduler.tables.find(OTHER) is None


# -- at its home --


def test_a_stream_runs_on_another_node_and_is_read_at_home(node: Nodes) -> None:
    attempt = node.gives()
    node.asks(0, 1)
    node.hear(HOME_A, m.RelayedYields(1, ((task_id(0), attempt, 0, b"a", ()), (task_id(0), attempt, 1, b"b", ())), ()))
    assert node.got() == [(0, b"a"), (1, b"b")]
    assert node.told(HOME_A) == []
    node.asks(2, 3)
    assert node.told_at_last(HOME_A) == [m.AllowYields(task_id(0), 4), m.EndsReceived(1)]
    node.hear(HOME_A, m.RelayedYields(2, ((task_id(0), attempt, 2, None, ()),), ()))
    node.hear(HOME_A, m.Ended(3, tuple(m.Completed.of(((task_id(0), attempt, m.OK, (b"2",)),))), ()))
    assert node.got() == [(2, "StreamEnded"), (3, "StreamEnded")]


def test_a_large_value_is_copied_from_where_it_was_made_and_released_there(node: Nodes) -> None:
    attempt = node.gives()
    node.hear(HOME_A, m.RelayedYields(1, ((task_id(0), attempt, 0, 100_000, ()),), ()))
    first = object_id(task_id(0), 1)
    assert node.scheduler.tables.objects[first].value.place == HOME_A  # type: ignore[union-attr]
    node.send(CLIENT + DRIVER, m.Hold((first,)))
    node.send(CLIENT + DRIVER, m.Release((first,)))
    assert released((first,)) in node.told(HOME_A)


def test_a_closed_stream_is_closed_where_it_is_made(node: Nodes) -> None:
    attempt = node.gives()
    node.send(CLIENT + DRIVER, m.Release((task_id(0) + FIRST_RETURN,)))
    node.told(HOME_A)
    node.hear(HOME_A, m.RelayedYields(1, ((task_id(0), attempt, 0, b"a", ()),), ()))
    assert m.AllowYields(task_id(0), m.CLOSE) in node.told(HOME_A)


def test_a_node_whose_daemon_is_new_is_told_again_how_far_a_stream_may_go(node: Nodes) -> None:
    node.gives()
    node.asks(*range(5))
    node.told(HOME_A)
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon 2", node.scheduler.address[1:]))
    assert m.AllowYields(task_id(0), 5) in node.told(HOME_A)


@pytest.mark.parametrize("ended", [False, True])
def test_values_that_are_lost_with_their_node_are_made_by_the_next_attempt(node: Nodes, ended: bool) -> None:
    """One was taken and dropped, one is requested, one nobody has requested yet. The first is not made again."""
    attempt = node.gives(soft=True)
    node.send(CLIENT + DRIVER, m.Hold((object_id(task_id(0), 1),)))
    node.asks(1)
    rows = tuple((task_id(0), attempt, index, 100_000, ()) for index in range(3))
    node.hear(HOME_A, m.RelayedYields(1, (*rows, (task_id(0), attempt, 3, None, ())), ()))
    node.send(CLIENT + DRIVER, m.Release((object_id(task_id(0), 1),)))
    if ended:
        node.hear(HOME_A, m.Ended(2, tuple(m.Completed.of(((task_id(0), attempt, m.OK, (b"3",)),))), ()))
    node.table(2, SELF, HOME_C)
    node.workers()
    ((worker, _, again),) = node.dispatched()
    node.yields(worker, (0, b"a", ()), (1, b"b", ()), (2, b"c", ()), (3, None, ()), attempt=again)
    node.complete(worker, 0, again, m.OK, b"3")
    assert node.got() == [(1, b"b")]
    node.asks(2, 3)
    assert node.got() == [(2, b"c"), (3, "StreamEnded")]


# -- where it is read --


def test_values_are_requested_from_the_home_of_their_stream_before_they_exist(node: Nodes) -> None:
    """The end of the stream came with a task; ids of its values come from the process that reads it."""
    end, value = task_id(7) + FIRST_RETURN, object_id(task_id(7), 1)
    worker = node.delegated(1, end)
    node.told(HOME_A)
    node.send(CLIENT + worker, m.Hold((end, value)))
    node.send(CLIENT + worker, m.Fetch((value,)))
    borrow, fetched = node.told(HOME_A)
    assert set(held(borrow)) == {end, value}
    assert fetched == m.FetchValues((value,))
    node.hear(HOME_A, m.LedgerUpdated(1), m.FetchedValues(((value, m.OK, b"a", ()),), ()))
    assert node.got() == [(0, b"a")]
    node.send(CLIENT + worker, m.Release((value,)))
    assert node.told(HOME_A) == [released((value,))]


def test_a_reader_on_another_node_has_the_producer_go_on(node: Nodes) -> None:
    node.send(CLIENT + DRIVER, m.Export(((STREAM, "s", b"payload", (("stream", 2),)),)))
    node.submit((task_id(0), STREAM, b"", ()))
    node.workers()
    ((worker, _, attempt),) = node.dispatched()
    names = tuple(object_id(task_id(0), index + 1) for index in range(4))
    node.hear(HOME_A, holding(1, (task_id(0) + FIRST_RETURN, *names)), m.FetchValues(names))
    assert node.told(HOME_A) == [m.LedgerUpdated(1)]
    node.send(CLIENT + DRIVER, m.Release((task_id(0) + FIRST_RETURN,)))  # The reader has a ref, too.
    node.yields(worker, (0, b"a", ()), (1, None, ()), attempt=attempt)
    assert [message.upto for _, message in node.take(m.AllowYields)] == [4, 4]  # Once more after the first value.
    node.complete(worker, 0, attempt, m.OK, b"1")
    rows = [row for each in node.told(HOME_A) for row in each.rows]
    assert rows[0] == (names[0], m.OK, b"a", ())
    assert [unpack_failure(row[2])[0] for row in rows[1:]] == ["StreamEnded"] * 3
    node.hear(HOME_A, released((task_id(0) + FIRST_RETURN, *names)))
    assert not node.scheduler.tables.streams


# -- real processes --


@zf.remote(num_returns="streaming")
def numbers(count: int, size: int = 0, pause: float = 0.0, path: str = "") -> Iterator[Any]:
    """Numbers with the node that yields them, as large as ``size``."""
    node = zf.get_runtime_context().get_node_id()
    try:
        for number in range(count):
            if path:
                Path(path).write_text(str(number))
            time.sleep(pause)
            yield np.full(size, number) if size else (number, node)
    finally:
        if path:
            Path(path).write_text("closed")


@zf.remote(num_returns="streaming")
def boxes(count: int) -> Iterator[list[Any]]:
    for number in range(count):
        yield [zf.put(number)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[zf.LocalCluster]:
    with zf.LocalCluster(nodes=3, cpus_per_node=1, object_store_memory=64 * 2**20, config={"preload": ("pytest", "numpy")}) as made:
        yield made


@pytest.fixture
def cluster(nodes: zf.LocalCluster) -> Iterator[zf.LocalCluster]:
    with zf.init(nodes.address):
        yield nodes


def values(stream: Any) -> list[Any]:
    return [zf.get(ref, timeout=PATIENCE) for ref in taken(stream)]


def kill_daemon(node: Any) -> None:
    """Kill the daemon of a node, which is restarted."""
    (daemon,) = [pid for pid in descendants(node.pid) if name_of(pid) == "zf-daemon"]
    os.kill(daemon, signal.SIGKILL)


def first(value: Any) -> int:
    return int(value[0])


def test_a_stream_of_another_node_is_consumed_at_home(cluster: zf.LocalCluster) -> None:
    there = numbers.options(scheduling_strategy=on_node(cluster.nodes[1]))
    assert values(there.remote(40)) == [(number, cluster.nodes[1].node_id) for number in range(40)]
    assert list(map(first, values(there.remote(20, 100_000)))) == list(range(20))
    assert [zf.get(box[0]) for box in values(boxes.options(scheduling_strategy=on_node(cluster.nodes[1])).remote(20))] == list(range(20))


def test_a_producer_on_another_node_is_not_further_ahead_than_its_credit_and_is_closed(cluster: zf.LocalCluster, tmp_path: Path) -> None:
    note = tmp_path / "note"
    stream = numbers.options(scheduling_strategy=on_node(cluster.nodes[1]), max_buffered=3).remote(10**6, path=str(note))
    assert zf.get(next(stream), timeout=PATIENCE)[0] == 0
    eventually(lambda: note.read_text() == "3", "it yields as far as was requested")
    del stream
    eventually(lambda: note.read_text() == "closed", "GeneratorExit is raised in it")


@pytest.mark.parametrize("size", [0, 20_000])
def test_a_stream_survives_the_daemons_at_both_ends(cluster: zf.LocalCluster, size: int) -> None:
    stream = numbers.options(scheduling_strategy=on_node(cluster.nodes[1])).remote(60, size, 0.01)
    seen = [zf.get(next(stream), timeout=PATIENCE) for _ in range(5)]
    for number in (1, 0):
        kill_daemon(cluster.nodes[number])
        seen += [zf.get(next(stream), timeout=PATIENCE) for _ in range(10)]
    seen += values(stream)
    assert list(map(first, seen)) == list(range(60))


@zf.remote
def total(stream: Any) -> int:
    return sum(first(zf.get(ref)) for ref in stream)


@zf.remote
def made() -> list[Any]:
    return [numbers.remote(30)]


@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("size", [0, 20_000])
def test_a_generator_is_consumed_by_a_task_of_another_node(cluster: zf.LocalCluster, where: int, size: int) -> None:
    """The values are made at home, where they are read, or on a third node."""
    stream = numbers.options(scheduling_strategy=on_node(cluster.nodes[where])).remote(30, size)
    assert first(zf.get(next(stream), timeout=PATIENCE)) == 0
    assert zf.get(total.options(scheduling_strategy=on_node(cluster.nodes[1])).remote(stream), timeout=PATIENCE) == 435


def test_a_generator_in_the_result_of_a_task_of_another_node_is_consumed_here(cluster: zf.LocalCluster) -> None:
    (stream,) = zf.get(made.options(scheduling_strategy=on_node(cluster.nodes[1])).remote(), timeout=PATIENCE)
    assert list(map(first, values(stream))) == list(range(30))


@zf.remote
class Source:
    """Yields numbers, of any size."""

    def numbers(self, count: int, size: int = 0, pause: float = 0.0, path: str = "") -> Iterator[Any]:
        yield from numbers._function(count, size, pause, path)

    def failing(self) -> Iterator[int]:
        yield 0
        raise KeyError("missing")

    def total(self, stream: Any) -> int:
        return sum(first(zf.get(ref)) for ref in stream)

    def ping(self) -> int:
        return 1


@zf.remote
def source() -> list[Any]:
    made = Source.remote()
    zf.get(made.ping.remote())
    return [made]


def source_at(cluster: zf.LocalCluster, number: int) -> Any:
    (made,) = zf.get(source.options(scheduling_strategy=on_node(cluster.nodes[number])).remote(), timeout=PATIENCE)
    return made


@pytest.mark.parametrize("made_here", [False, True])
def test_a_method_of_an_actor_on_another_node_yields_and_reads_streams(cluster: zf.LocalCluster, tmp_path: Path, made_here: bool) -> None:
    """The actor's home is that node, or this one."""
    actor = Source.options(scheduling_strategy=on_node(cluster.nodes[1])).remote() if made_here else source_at(cluster, 1)
    methods = actor.numbers.options(num_returns="streaming")
    assert values(methods.remote(30)) == [(number, cluster.nodes[1].node_id) for number in range(30)]
    assert list(map(first, values(methods.remote(20, 20_000)))) == list(range(20))
    *refs, last = actor.failing.options(num_returns="streaming").remote()
    assert zf.get(refs, timeout=PATIENCE) == [0]
    with pytest.raises(KeyError):
        zf.get(last, timeout=PATIENCE)
    assert zf.get(actor.total.remote(numbers.remote(30)), timeout=PATIENCE) == 435
    assert zf.get(total.options(scheduling_strategy=on_node(cluster.nodes[2])).remote(methods.remote(30)), timeout=PATIENCE) == 435
    note = tmp_path / "note"
    stream = actor.numbers.options(num_returns="streaming", max_buffered=3).remote(10**6, path=str(note))
    assert first(zf.get(next(stream), timeout=PATIENCE)) == 0
    eventually(lambda: note.read_text() == "3", "it yields as far as was requested")
    del stream
    eventually(lambda: note.read_text() == "closed", "GeneratorExit is raised in it")


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("size", [0, 20_000])
def test_a_stream_of_a_method_survives_a_daemon_or_ends_with_the_reason(cluster: zf.LocalCluster, number: int, size: int) -> None:
    """That of its reader's node may be restarted. That of the actor's node may have lost values which cannot be made again."""
    actor = source_at(cluster, 1)
    stream = actor.numbers.options(num_returns="streaming").remote(60, size, 0.005)
    seen = [zf.get(next(stream), timeout=PATIENCE) for _ in range(5)]
    kill_daemon(cluster.nodes[number])
    *refs, last = stream
    seen += zf.get(refs, timeout=PATIENCE)
    try:
        seen.append(zf.get(last, timeout=PATIENCE))
    except zf.ObjectLostError:
        assert number == 1
    else:
        assert len(seen) == 60
    assert list(map(first, seen)) == list(range(len(seen)))
    assert zf.get(actor.ping.remote(), timeout=PATIENCE) == 1


def test_a_stream_is_lost_with_its_home_and_its_reader_is_told() -> None:
    with zf.LocalCluster(nodes=2, cpus_per_node=1, config={"node_lease": LEASE}) as cluster, zf.init(cluster.address):
        (stream,) = zf.get(made.options(scheduling_strategy=on_node(cluster.nodes[1])).remote(), timeout=PATIENCE)
        assert first(zf.get(next(stream), timeout=PATIENCE)) == 0
        cluster.nodes[1].kill()
        *refs, last = stream
        assert len(refs) < 29
        with pytest.raises(zf.ObjectLostError):
            zf.get(last, timeout=PATIENCE)


@zf.remote
def doubled(value: Any) -> Any:
    return 2 * value


def test_a_stream_goes_on_elsewhere_if_its_node_dies_and_what_was_made_of_another_is_made_again() -> None:
    """Nothing is delivered twice. Of the other stream nothing is left but what a task has made of its values."""
    with zf.LocalCluster(nodes=2, cpus_per_node=1, config={"node_lease": LEASE}) as cluster, zf.init(cluster.address):
        there = {"scheduling_strategy": on_node(cluster.nodes[1], soft=True)}
        made_of = [doubled.options(**there).remote(ref) for ref in numbers.options(**there).remote(3, 20_000)]
        zf.wait(made_of, num_returns=3, timeout=PATIENCE)
        stream = numbers.options(**there).remote(40, 20_000, 0.02)
        seen = [zf.get(next(stream), timeout=PATIENCE) for _ in range(5)]
        cluster.nodes[1].kill()
        assert list(map(first, seen + values(stream))) == list(range(40))
        assert list(map(first, zf.get(made_of, timeout=PATIENCE))) == [0, 2, 4]
