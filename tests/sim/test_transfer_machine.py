"""Transfer agents: values copied between nodes, in worlds with a fault each and in random ones with all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import ANY

import pytest
from scheduler_alone import OWN, Node
from tests.sim.network import Faults
from tests.sim.transfers import TransferNode, TransferWorld, transfer_world
from zfabric.config import CHUNK_BYTES, Config, MiB
from zfabric.machines.common.extents import HEADER_BYTES, footprint
from zfabric.machines.transfer import TransferAgent
from zfabric.machines.transfer.pulls import Pulls
from zfabric.machines.transfer.supplies import Supplies
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import CLIENT, LOCAL_SCHEDULER, OBJECT_STORE, TRANSFER_AGENT
from zfabric.protocol.messages import FAILED, OK

DAEMON, SELF = b"\x01daemon0", b"\x01agent00"
SCHEDULER, STORE = LOCAL_SCHEDULER + DAEMON, OBJECT_STORE + DAEMON
A, B, C, D = (b"\x02node00" + letter for letter in (b"a", b"b", b"c", b"d"))
VALUE, OTHER = bytes(19) + b"v", bytes(19) + b"w"


def world(*sizes: int, nodes: int = 2, **settings: Any) -> tuple[TransferWorld, list[tuple[str, str, Any]]]:
    """A world whose first node has values of these sizes; and its messages to agents and schedulers: (from, to, message)."""
    sent: list[tuple[str, str, Any]] = []
    made = TransferWorld(nodes=nodes, observer=lambda now, source, to, message: sent.append((source, to, message)), **settings)
    for number, size in enumerate(sizes):
        made.nodes[0].put(made.value(number), size)
    made.until(lambda: len(made.nodes[0].sizes) == len(sizes))
    return made, sent


def pause(there: TransferWorld, seconds: float) -> None:
    """Let some time pass."""
    end = there.now + seconds
    there.at(end, lambda: None)
    there.until(lambda: there.now >= end)


def kinds(sent: list[tuple[str, str, Any]]) -> Counter[str]:
    return Counter(type(message).__name__ for _, _, message in sent)


def moved(one: TransferNode, value: bytes) -> float:
    """Copies of a value that a node has sent, counted by bytes."""
    return one.sent[value] / one.sizes[value]


# --- one value --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 9 * MiB + 3])
def test_a_value_is_copied_whole_and_nothing_stays_pinned(size: int) -> None:
    there, sent = world(size)
    one, two = there.nodes
    two.pull(there.value(0), size, one)
    there.settle()
    assert two.sizes == {there.value(0): size}
    assert kinds(sent)["Chunk"] == -(-size // CHUNK_BYTES)
    assert kinds(sent)["StopWant"] == (size > CHUNK_BYTES)
    assert moved(one, there.value(0)) == 1


def test_an_empty_value_needs_nobody() -> None:
    there, sent = world()
    pause(there, 0.01)
    there.nodes[1].pull(there.value(0), 0, there.nodes[0])
    there.settle()
    assert there.nodes[1].sizes == {there.value(0): 0}
    assert not kinds(sent)["Want"]


def test_room_comes_before_the_first_byte_and_eight_chunks_are_under_way() -> None:
    there, sent = world(20 * MiB, pieces=24)
    there.nodes[1].pull(there.value(0), 20 * MiB, there.nodes[0])
    there.settle()
    order = [type(message).__name__ for _, to, message in sent if to == "node2" or type(message) is m.Want]
    assert order.index("Granted") < order.index("Want") < order.index("Chunk")
    (want,) = (message for _, _, message in sent if type(message) is m.Want)
    assert (want.position, want.limit) == (0, 8 * CHUNK_BYTES)
    received = limit = 0
    for _, _, message in sent:
        if type(message) is m.Chunk:
            received += 1
        elif type(message) in (m.Want, m.Credit):
            limit = max(limit, message.limit // CHUNK_BYTES)
        assert limit - received <= 9  # A message is seen when it arrives.


def test_a_spilled_value_is_restored_and_sent() -> None:
    there, _ = world(5 * MiB, pieces=5)
    one, two = there.nodes
    one.put(there.value(50), 7 * MiB)
    there.until(lambda: there.value(50) in one.sizes)
    assert one.store.statistics()["spills"] == 1
    two.pull(there.value(0), 5 * MiB, one)
    there.settle()
    assert two.sizes[there.value(0)] == 5 * MiB


# --- faults -----------------------------------------------------------------------------------------------------------------------


def halfway(there: TransferWorld, node: TransferNode) -> None:
    """Run until some chunks of a value have come, and not all."""
    there.until(lambda: there.states["Chunk"] >= 5)
    assert not node.sizes


def test_a_cut_in_the_middle_resumes_where_the_value_ended() -> None:
    there, sent = world(20 * MiB, pieces=24, settings={"transfer_patience": 0.1})
    one, two = there.nodes
    two.pull(there.value(0), 20 * MiB, one)
    halfway(there, two)
    there.cut(one, two)
    pause(there, 1.5)
    there.heal()
    there.settle()
    again = [message for _, _, message in sent if type(message) is m.Want][-1]
    assert again.position >= 4 * CHUNK_BYTES
    assert moved(one, there.value(0)) <= 1 + 9 / 20


def test_after_a_cut_another_source_goes_on() -> None:
    there, sent = world(20 * MiB, nodes=3, pieces=24, settings={"transfer_patience": 0.1})
    one, two, three = there.nodes
    two.pull(there.value(0), 20 * MiB, one)
    there.settle()
    there.states.clear()
    three.pull(there.value(0), 20 * MiB, one, two)
    halfway(there, three)
    there.cut(one, three)
    there.settle()
    resumed = next(message for _, to, message in sent if type(message) is m.Want and to == "node2")
    assert resumed.position >= 4 * CHUNK_BYTES


def test_a_killed_reader_begins_anew_and_its_room_is_free() -> None:
    there, _ = world(20 * MiB, pieces=12)
    one, two = there.nodes
    two.pull(there.value(0), 20 * MiB, one)
    halfway(there, two)
    two.kill_agent()
    there.settle()
    assert two.sizes[there.value(0)] == 20 * MiB


def test_a_killed_source_is_asked_again_from_where_the_value_ended() -> None:
    there, sent = world(20 * MiB, pieces=24, settings={"transfer_patience": 0.1})
    one, two = there.nodes
    two.pull(there.value(0), 20 * MiB, one)
    halfway(there, two)
    one.kill_agent()
    there.settle()
    assert [message for _, _, message in sent if type(message) is m.Want][-1].position >= 4 * CHUNK_BYTES


def test_a_source_that_is_stopped_in_the_middle_goes_on_where_it_was() -> None:
    there, _ = world(20 * MiB, pieces=24, settings={"transfer_patience": 0.05})
    one, two = there.nodes
    two.pull(there.value(0), 20 * MiB, one)
    halfway(there, two)
    one.agent.stopped = True
    pause(there, 3.0)
    one.agent.stopped = False
    one.agent.wake()
    there.settle()
    assert moved(one, there.value(0)) < 2


def test_a_source_without_the_value_is_left_and_without_any_the_pull_fails() -> None:
    there, _ = world(3 * MiB, nodes=4)
    one, two, three, four = there.nodes
    two.pull(there.value(0), 3 * MiB, four, three, one)
    there.settle()
    assert two.sizes
    one.free(there.value(0))
    two.free(there.value(0))
    three.pull(there.value(0), 3 * MiB, four, two, one)
    there.settle()
    kind, text = three.failed[there.value(0)]
    assert kind == "lost"
    assert all(f"node {node.identifier.hex()}: it is not known here" in text for node in (one, two, four))


def test_a_full_store_of_the_receiver_makes_room_or_writes_to_disk() -> None:
    there, _ = world(9 * MiB, pieces=12)
    one, two = there.nodes
    for number in range(50, 60):
        two.put(there.value(number), 3 * MiB)
    two.pull(there.value(0), 9 * MiB, one)
    there.settle()
    assert two.sizes[there.value(0)] == 9 * MiB
    assert two.store.statistics()["spills"] > 0


def test_a_value_larger_than_the_store_is_refused_with_the_reason() -> None:
    there, _ = world(2 * MiB)
    there.nodes[1].pull(there.value(0), 200 * MiB, there.nodes[0])
    there.settle()
    kind, text = there.nodes[1].failed[there.value(0)]
    assert kind == "too_large"
    assert "200" in text


def test_a_stopped_pull_returns_its_room() -> None:
    there, _ = world(20 * MiB, pieces=24)
    one, two = there.nodes
    two.pull(there.value(0), 20 * MiB, one)
    halfway(there, two)
    two.stop_pull(there.value(0))
    there.settle()
    assert two.sizes == {}


# --- many readers -----------------------------------------------------------------------------------------------------------------


def test_seven_readers_take_at_most_four_copies_from_the_first_holder() -> None:
    size = 64 * MiB
    alone, _ = world(size, pieces=40, rate=100 * MiB)
    began = alone.now
    alone.nodes[1].pull(alone.value(0), size, alone.nodes[0])
    alone.settle()
    one_copy = alone.copies[-1][0] - began
    there, _ = world(size, nodes=8, pieces=40, rate=100 * MiB)
    began = there.now
    for node in there.nodes[1:]:
        node.pull(there.value(0), size, there.nodes[0])
    there.settle()
    assert len(there.copies) == 7
    assert moved(there.nodes[0], there.value(0)) <= 4
    assert there.copies[-1][0] - began <= 4.5 * one_copy


def test_three_nodes_are_served_at_a_time() -> None:
    there, sent = world(30 * MiB, nodes=6, pieces=24, rate=100 * MiB)
    for node in there.nodes[1:]:
        node.pull(there.value(0), 30 * MiB, there.nodes[0])
    pause(there, 0.3)
    served = {to for source, to, message in sent if type(message) is m.Chunk}
    queued = {to for source, to, message in sent if type(message) is m.Queued}
    assert (len(served), len(queued)) == (3, 2)
    assert not served & queued


def test_a_reader_that_is_queued_takes_a_source_that_is_free() -> None:
    there, sent = world(30 * MiB, nodes=6, pieces=24, rate=100 * MiB)
    one, two, *others = there.nodes
    two.pull(there.value(0), 30 * MiB, one)
    there.settle()
    sent.clear()
    for node in others:
        node.pull(there.value(0), 30 * MiB, one, two)
    there.settle()
    assert {source for source, to, message in sent if type(message) is m.Chunk} >= {"node1", "node2"}


# --- the machine alone ------------------------------------------------------------------------------------------------------------


def table(version: int, *nodes: bytes) -> m.NodeTable:
    """A table with these nodes."""
    return m.NodeTable(version, tuple((node, 1, "", "", "", b"", (), (), 0) for node in nodes))


class Alone:
    """One agent, with everything that it says."""

    def __init__(self, **settings: Any) -> None:
        self.now = 10.0
        self.machine = TransferAgent(TRANSFER_AGENT + SELF, Config.of(settings), DAEMON)
        self(SCHEDULER, table(1, A, B, C, D))

    def __call__(self, source: bytes, *messages: Any) -> list[Any]:
        """Effects of these messages, those that are sent as (to, message)."""
        for message in messages:
            self.machine.step(self.now, source, message)
        effects = [(each.to, each.message) if type(each) is e.Send else each for each in self.machine.take_effects(self.now)]
        self.machine.check_invariants()
        return effects

    def tick(self, seconds: float) -> list[Any]:
        self.now += seconds
        self.machine.tick(self.now)
        return self(b"")

    def pulling(self, size: int, *sources: bytes) -> m.Want:
        """Have it pull a value; return what it wants first."""
        ((_, reserve),) = self(SCHEDULER, m.Pull(VALUE, size, sources))
        assert reserve == m.Reserve(reserve.token, size, 0, 30.0)
        ((to, want),) = self(STORE, m.Granted(reserve.token, 4096, footprint(size)))
        assert to == TRANSFER_AGENT + sources[0]
        assert isinstance(want, m.Want)
        return want


def test_chunks_of_another_node_or_of_the_wrong_size_are_not_written() -> None:
    agent = Alone()
    want = agent.pulling(3 * MiB, A)
    assert agent(TRANSFER_AGENT + B, m.Chunk(want.token, 0, CHUNK_BYTES)) == []
    assert agent(TRANSFER_AGENT + A, m.Chunk(want.token, 0, 5), m.Chunk(want.token, 7, CHUNK_BYTES), m.Chunk(want.token, 2**40, 1)) == []
    (write,) = agent(TRANSFER_AGENT + A, m.Chunk(want.token, 0, CHUNK_BYTES))
    assert write == e.WriteChunk(TRANSFER_AGENT + A, want.token, VALUE, 4096 + HEADER_BYTES, 0, CHUNK_BYTES)


def test_a_pull_without_a_source_fails_and_begins_again_after_ever_longer_pauses() -> None:
    agent = Alone(transfer_patience=1.0)
    for pause in (0.0, 1 / 32, 1 / 16):
        assert agent(SCHEDULER, m.Pull(VALUE, MiB, (b"\x02stranger",))) == [] or not pause
        if pause:
            assert agent.tick(0.9 * pause) == []
            ((_, failed),) = agent.tick(0.1 * pause + 0.001)
            assert (failed.kind, "not in the table" in failed.text) == ("lost", True)
    agent(SCHEDULER, m.Pull(VALUE, MiB, (A,)))
    ((_, reserve),) = agent.tick(1.0)
    ((_, want),) = agent(STORE, m.Granted(reserve.token, 4096, footprint(MiB)))
    assert (type(want), want.object_id) == (m.Want, VALUE)


def test_values_of_one_source_share_its_credit() -> None:
    agent = Alone()
    want = agent.pulling(20 * MiB, A)
    assert want.limit == 8 * MiB
    ((_, reserve),) = agent(SCHEDULER, m.Pull(OTHER, 2 * MiB, (A,)))
    assert agent(STORE, m.Granted(reserve.token, 2**30, footprint(2 * MiB))) == []
    write, (to, other) = agent(TRANSFER_AGENT + A, m.Chunk(want.token, 0, CHUNK_BYTES))
    assert (write.position, to, other.object_id, other.limit) == (0, TRANSFER_AGENT + A, OTHER, MiB)
    said = agent(TRANSFER_AGENT + A, m.Chunk(want.token, MiB, CHUNK_BYTES))
    assert (TRANSFER_AGENT + A, m.Credit(want.token, 9 * MiB)) in said


def test_a_value_that_is_being_sent_is_not_starved_by_those_that_wait_at_its_source() -> None:
    agent = Alone(transfer_credit=1)
    want = agent.pulling(20 * MiB, A)
    ((_, reserve),) = agent(SCHEDULER, m.Pull(OTHER, 2 * MiB, (A,)))
    agent(STORE, m.Granted(reserve.token, 2**30, footprint(2 * MiB)))
    for number in range(19):
        said = agent(TRANSFER_AGENT + A, m.Chunk(want.token, number * MiB, CHUNK_BYTES))
        assert said[1:] == [(TRANSFER_AGENT + A, m.Credit(want.token, (number + 2) * MiB))]
    said = agent(TRANSFER_AGENT + A, m.Chunk(want.token, 19 * MiB, CHUNK_BYTES))
    assert [each[1].object_id for each in said if type(each) is tuple and type(each[1]) is m.Want] == [OTHER]


def test_a_gap_is_asked_for_once_and_what_is_under_way_is_taken() -> None:
    agent = Alone()
    want = agent.pulling(5 * MiB, A)
    agent(TRANSFER_AGENT + A, m.Chunk(want.token, 0, CHUNK_BYTES))
    chunks = [m.Chunk(want.token, number * CHUNK_BYTES, CHUNK_BYTES) for number in range(5)]
    ((to, again),) = agent(TRANSFER_AGENT + A, chunks[2], chunks[3], chunks[4])
    assert (to, again.position, again.limit) == (TRANSFER_AGENT + A, CHUNK_BYTES, 5 * MiB)
    (write,) = agent(TRANSFER_AGENT + A, chunks[1])
    assert write.position == CHUNK_BYTES


def test_silence_is_answered_by_another_source_and_then_ever_more_slowly() -> None:
    agent = Alone()
    want = agent.pulling(5 * MiB, A, B)
    assert agent.tick(0.5) == []
    said = agent.tick(0.6)
    assert {to for to, _ in said} == {TRANSFER_AGENT + A, TRANSFER_AGENT + B}
    assert (TRANSFER_AGENT + A, want) in said
    pauses = []
    for _ in range(2000):
        if any(to == TRANSFER_AGENT + A for to, _ in agent.tick(0.1)):
            pauses.append(agent.now)
    assert 3 <= len(pauses) <= 16
    assert pauses[-1] - pauses[-2] == pytest.approx(16.0, abs=0.2)


def test_the_first_source_that_answers_goes_on_and_the_others_are_stopped() -> None:
    agent = Alone()
    want = agent.pulling(5 * MiB, A, B)
    ((to, second),) = agent(TRANSFER_AGENT + A, m.Queued(want.token))
    assert to == TRANSFER_AGENT + B
    said = agent(TRANSFER_AGENT + B, m.Chunk(second.token, 0, CHUNK_BYTES))
    assert (TRANSFER_AGENT + A, m.StopWant(want.token, False)) in said


def test_a_dead_source_is_left_at_once() -> None:
    agent = Alone()
    want = agent.pulling(5 * MiB, A, B)
    agent(TRANSFER_AGENT + A, m.Chunk(want.token, 0, CHUNK_BYTES))
    ((to, again),) = agent(SCHEDULER, table(2, B))
    assert (to, again.position) == (TRANSFER_AGENT + B, CHUNK_BYTES)
    (failed,) = (message for to, message in agent(SCHEDULER, m.NodeTable(3, ()))[1:] if to == SCHEDULER)
    assert failed.kind == "lost"


def test_room_that_comes_for_a_stopped_pull_is_returned() -> None:
    agent = Alone()
    ((_, reserve),) = agent(SCHEDULER, m.Pull(VALUE, 5 * MiB, (A,)))
    assert agent(SCHEDULER, m.StopPull(VALUE)) == []
    assert agent(STORE, m.Granted(reserve.token, 4096, footprint(5 * MiB))) == [(STORE, m.ReturnGrant(4096, 0))]


def test_bytes_that_cannot_be_written_fail_the_pull_and_return_the_room() -> None:
    agent = Alone()
    want = agent.pulling(MiB, A)
    assert agent(TRANSFER_AGENT + A, m.Chunk(want.token, 0, MiB))[-1] == e.SealValue(VALUE, 4096 + HEADER_BYTES, MiB)
    assert agent(SCHEDULER, m.Pull(VALUE, MiB, (A,))) == []
    said = agent(b"X" + SELF, m.ValueSealed(VALUE, "no space left"))
    assert said == [(STORE, m.ReturnGrant(4096, 0)), (SCHEDULER, m.PullFailed(VALUE, "disk", "no space left"))]


def test_bytes_that_cannot_be_read_send_readers_elsewhere() -> None:
    agent = Alone()
    agent(TRANSFER_AGENT + A, m.Want(1, VALUE, MiB, 0, MiB))
    agent(SCHEDULER, m.Objects(((VALUE, OK, (-64, MiB), ()),)))
    said = agent(b"X" + SELF, m.ChunkFailed(VALUE, "it is damaged: " + 5000 * "x"))
    assert said == [(TRANSFER_AGENT + A, m.Unavailable(1, ANY)), (STORE, m.Unpin((VALUE,)))]
    reason = said[0][1].reason
    assert reason.startswith("it is damaged: xxx")
    assert len(reason) <= 1000, "messages between agents have 4 KiB at most"


def test_a_value_stays_pinned_until_its_last_byte_has_left() -> None:
    agent = Alone()
    assert agent(TRANSFER_AGENT + A, m.Want(1, VALUE, 2 * MiB, 0, 2 * MiB)) == [(SCHEDULER, m.Fetch((VALUE,)))]
    chunks = agent(SCHEDULER, m.Objects(((VALUE, OK, (8192, 2 * MiB), ()),)))
    assert [(each.offset, each.position, each.size) for each in chunks] == [(8192, 0, CHUNK_BYTES), (8192, CHUNK_BYTES, CHUNK_BYTES)]
    assert agent(TRANSFER_AGENT + A, m.StopWant(1, False)) == []
    assert agent(b"X" + SELF, m.ChunkSent(VALUE)) == []
    assert agent(b"X" + SELF, m.ChunkSent(VALUE)) == [(STORE, m.Unpin((VALUE,)))]


def test_a_value_of_one_chunk_has_been_served_once_that_has_left() -> None:
    agent = Alone(transfer_readers=1)
    pinned = m.Objects(((VALUE, OK, (8192, MiB), ()),))
    for _ in range(2):  # A reader that the chunk does not reach asks again.
        assert agent(TRANSFER_AGENT + A, m.Want(1, VALUE, MiB, 0, MiB)) == [(SCHEDULER, m.Fetch((VALUE,)))]
        (chunk,) = agent(SCHEDULER, pinned)
        assert (chunk.reader, chunk.token) == (TRANSFER_AGENT + A, 1)
        assert agent(TRANSFER_AGENT + B, m.Want(1, VALUE, MiB, 0, MiB)) == [(TRANSFER_AGENT + B, m.Queued(1))]
        (chunk,) = agent(b"X" + SELF, m.ChunkSent(VALUE))
        assert chunk.reader == TRANSFER_AGENT + B, "the slot is free"
        assert agent(b"X" + SELF, m.ChunkSent(VALUE)) == [(STORE, m.Unpin((VALUE,)))]


def test_a_reader_stops_only_sources_that_do_not_know() -> None:
    agent = Alone()
    want = agent.pulling(MiB, A, B)
    ((_, other),) = agent(TRANSFER_AGENT + A, m.Queued(want.token))
    effects = agent(TRANSFER_AGENT + B, m.Chunk(other.token, 0, MiB))
    assert [each for each in effects if type(each) is tuple] == [(TRANSFER_AGENT + A, m.StopWant(want.token, True))]
    agent = Alone()
    want = agent.pulling(2 * MiB, A)
    effects = agent(TRANSFER_AGENT + A, m.Chunk(want.token, 0, MiB), m.Chunk(want.token, MiB, MiB))
    assert (TRANSFER_AGENT + A, m.StopWant(want.token, True)) in effects


def test_a_value_that_nobody_wants_any_more_is_unpinned_when_its_place_comes() -> None:
    agent = Alone()
    agent(TRANSFER_AGENT + A, m.Want(1, VALUE, 2 * MiB, 0, 2 * MiB), m.StopWant(1, False))
    assert agent(SCHEDULER, m.Objects(((VALUE, OK, (8192, 2 * MiB), ()),))) == [(STORE, m.Unpin((VALUE,)))]


@pytest.mark.parametrize(
    "row",
    [
        (VALUE, FAILED, pack_failure("ObjectFreedError", "it is gone"), ()),
        (VALUE, OK, b"inline", ()),
        (VALUE, OK, (8192, 3 * MiB), ()),
    ],
)
def test_a_reader_is_told_why_a_value_is_not_sent(row: Any) -> None:
    agent = Alone()
    agent(TRANSFER_AGENT + A, m.Want(1, VALUE, 2 * MiB, 0, 2 * MiB))
    to, said = agent(SCHEDULER, m.Objects((row,)))[0]
    assert (to, said.token) == (TRANSFER_AGENT + A, 1)
    assert said.reason


@pytest.mark.parametrize(
    "want",
    [
        m.Want(1, VALUE, 20 * MiB, 0, 9 * MiB),
        m.Want(1, VALUE, 20 * MiB, 5, MiB),
        m.Want(1, VALUE, 20 * MiB, MiB, MiB),
        m.Want(1, VALUE, 20 * MiB, 20 * MiB, 21 * MiB),
        m.Want(1, VALUE, -1, 0, 1),
        m.Want(1, VALUE, 0, 0, 0),
    ],
)
def test_a_want_that_makes_no_sense_or_asks_for_too_much_is_refused(want: m.Want) -> None:
    agent = Alone()
    assert agent(TRANSFER_AGENT + A, want) == []
    assert agent.machine.statistics()["refused"] == 1


def test_credit_beyond_what_a_reader_may_have_is_refused() -> None:
    agent = Alone()
    agent(TRANSFER_AGENT + A, m.Want(1, VALUE, 50 * MiB, 0, 8 * MiB))
    assert len(agent(SCHEDULER, m.Objects(((VALUE, OK, (8192, 50 * MiB), ()),)))) == 8
    assert agent(TRANSFER_AGENT + A, m.Credit(1, 40 * MiB)) == []
    assert agent.machine.statistics()["refused"] == 1
    assert len(agent(TRANSFER_AGENT + A, m.Credit(1, 9 * MiB))) == 1


def test_a_want_that_comes_twice_sends_no_more_than_the_credit() -> None:
    agent = Alone()
    want = m.Want(1, VALUE, 50 * MiB, 0, 8 * MiB)
    agent(TRANSFER_AGENT + A, want)
    agent(SCHEDULER, m.Objects(((VALUE, OK, (8192, 50 * MiB), ()),)))
    for number in range(9, 31):
        agent(TRANSFER_AGENT + A, m.Credit(1, number * MiB))
    assert [each.position // CHUNK_BYTES for each in agent(TRANSFER_AGENT + A, want)] == list(range(22, 30))


def test_a_silent_reader_gives_its_slot_to_another_and_is_served_when_it_asks_again() -> None:
    agent = Alone(transfer_readers=1)
    agent(TRANSFER_AGENT + A, m.Want(1, VALUE, 50 * MiB, 0, 8 * MiB))
    agent(SCHEDULER, m.Objects(((VALUE, OK, (8192, 50 * MiB), ()),)))
    assert agent(TRANSFER_AGENT + B, m.Want(1, OTHER, 50 * MiB, 0, MiB))[0] == (TRANSFER_AGENT + B, m.Queued(1))
    agent(SCHEDULER, m.Objects(((OTHER, OK, (2**30, 50 * MiB), ()),)))
    (chunk,) = agent.tick(10.0)
    assert (chunk.reader, chunk.object_id) == (TRANSFER_AGENT + B, OTHER)
    assert agent(TRANSFER_AGENT + A, m.Want(2, VALUE, 50 * MiB, MiB, 8 * MiB)) == [(TRANSFER_AGENT + A, m.Queued(2))]
    (*_, chunk) = agent(TRANSFER_AGENT + B, m.StopWant(1, False))[:-1]
    assert (chunk.reader, chunk.token) == (TRANSFER_AGENT + A, 2)


def test_nobody_is_overtaken_for_want_of_a_slot() -> None:
    agent = Alone(transfer_readers=1)
    agent(TRANSFER_AGENT + A, m.Want(1, VALUE, 50 * MiB, 0, MiB))
    agent(TRANSFER_AGENT + B, m.Want(1, OTHER, 50 * MiB, 0, MiB))
    assert (TRANSFER_AGENT + A, m.Queued(2)) in agent(TRANSFER_AGENT + A, m.Want(2, bytes(20), MiB, 0, MiB))


def test_readers_that_are_queued_are_shared_out_to_new_holders() -> None:
    agent = Alone()
    readers = [b"\x02reader" + bytes([number]) for number in range(7)]
    for reader in readers:
        agent(TRANSFER_AGENT + reader, m.Want(1, VALUE, 2 * MiB, 0, 2 * MiB))
    agent(SCHEDULER, m.Objects(((VALUE, OK, (8192, 2 * MiB), ()),)))
    redirected = []
    for holder in readers[:3]:
        redirected += [said for said in agent(TRANSFER_AGENT + holder, m.StopWant(1, True)) if type(said) is tuple]
    assert redirected == [(TRANSFER_AGENT + readers[3 + index], m.Redirect(1, readers[index])) for index in range(3)]


# --- random worlds ----------------------------------------------------------------------------------------------------------------


def test_random_worlds_copy_everything_and_leave_nothing() -> None:
    states: Counter[str] = Counter()
    for seed in range(300):
        outcome = transfer_world(seed).run()
        assert outcome.failure == "", f"seed {seed}"
        states.update(outcome.states)
    expected = (
        "gaps",
        "stalls",
        "redirects",
        "Queued",
        "silent_readers",
        "pulls_stopped",
        "agent killed",
        "spills",
        "written_on_disk",
        "late",
    )
    assert [name for name in expected if not states[name]] == []


def test_a_loss_of_half_the_frames_delays_and_changes_nothing() -> None:
    there = TransferWorld(7, nodes=3, faults=Faults(loss=0.5, duplication=0.1, late=0.1), settings={"transfer_patience": 0.05})
    one, two, three = there.nodes
    one.put(there.value(0), 9 * MiB)
    there.until(lambda: bool(one.sizes))
    two.pull(there.value(0), 9 * MiB, one)
    three.pull(there.value(0), 9 * MiB, one, two)
    there.settle()


# --- what these worlds find -------------------------------------------------------------------------------------------------------


def unpins_too_early(patch: pytest.MonkeyPatch) -> None:
    """A value is unpinned while chunks of it are on their way out of the arena."""
    settle = Supplies._settle

    def careless(self: Supplies, supply: Any) -> None:
        if not supply.readers:
            supply.unsent = 0
        settle(self, supply)

    patch.setattr(Supplies, "_settle", careless)
    patch.setattr(Supplies, "on_chunk_sent", lambda self, now, source, message: None)
    patch.setattr(Supplies, "check_invariants", lambda self: None)


def takes_chunks_in_any_order(patch: pytest.MonkeyPatch) -> None:
    """A chunk is taken for the next one, wherever it belongs."""
    take = Pulls.on_chunk

    def careless(self: Pulls, now: float, source: bytes, message: m.Chunk) -> None:
        request = self._received.get(message.token)
        if request is not None and message.position > request.pull.position and not message.position % CHUNK_BYTES:
            request.pull.position = message.position
        take(self, now, source, message)

    patch.setattr(Pulls, "on_chunk", careless)


def keeps_room_of_failed_pulls(patch: pytest.MonkeyPatch) -> None:
    """Room of a pull that is stopped is not returned."""
    patch.setattr(Pulls, "_drop", lambda self, pull: self._forget(pull, complete=False))


def never_repeats(patch: pytest.MonkeyPatch) -> None:
    """Nothing is asked for a second time."""
    patch.setattr(Pulls, "_silent", lambda self, pull, request, now: setattr(request, "due", now + 60.0))


@pytest.mark.parametrize("broken", [unpins_too_early, takes_chunks_in_any_order, keeps_room_of_failed_pulls, never_repeats])
def test_worlds_find_what_is_broken(broken: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    assert any(transfer_world(seed).run().failure for seed in range(300))


# --- the scheduler's side ---------------------------------------------------------------------------------------------------------


def with_agent() -> tuple[Node, list[Any], Callable[[bytes, int], None]]:
    """A scheduler with an agent; how its copies ended; and a function that begins one."""
    node = Node()
    ended: list[Any] = []
    node.send(b"F" + SELF, m.Register(m.PROTOCOL_VERSION, "agent", 77, 1, b"", b"", b"", "", ""))
    node.send(b"F" + SELF, m.Ready())
    node.sent.clear()

    def pull(value: bytes, size: int) -> None:
        node.scheduler.copies.pull(value, size, (A, B), lambda now, message, agent: ended.append(message))
        node.turn()

    return node, ended, pull


def test_a_copy_is_asked_for_and_its_end_reported_once() -> None:
    node, ended, pull = with_agent()
    pull(VALUE, 5 * MiB)
    assert node.sent == [(CLIENT + SELF, m.Pull(VALUE, 5 * MiB, (A, B)))]
    node.sent.clear()
    node.send(b"F" + SELF, m.Pulled(VALUE, 4160, 5 * MiB))
    assert ended == [m.Pulled(VALUE, 4160, 5 * MiB)]
    node.send(b"F" + SELF, m.Pulled(VALUE, 4160, 5 * MiB))
    assert ended == [m.Pulled(VALUE, 4160, 5 * MiB)]


def test_a_copy_that_nobody_needs_any_more_is_freed() -> None:
    node, ended, pull = with_agent()
    pull(VALUE, 5 * MiB)
    node.scheduler.copies.stop(VALUE)
    node.turn()
    assert node.sent[-1] == (CLIENT + SELF, m.StopPull(VALUE))
    node.sent.clear()
    node.send(b"F" + SELF, m.Pulled(VALUE, 4160, 5 * MiB))
    assert [type(message) for _, message in node.sent] == [m.Sealed, m.Free]
    assert ended == []


def test_a_new_agent_is_asked_for_what_is_missing_and_knows_the_nodes() -> None:
    node, ended, pull = with_agent()
    nodes = m.NodeTable(1, ((b"thisnode", 1, "", "", "", b"", (), (), 0),))
    node.send(b"N" + OWN, nodes)
    pull(VALUE, 5 * MiB)
    pull(VALUE, 5 * MiB)
    node.send(b"X" + OWN, m.ProcessDied(77, 0, 9, 0, ""))
    assert SELF not in node.scheduler.tables.processes
    node.sent.clear()
    again = b"\x01agent01"
    node.send(b"F" + again, m.Register(m.PROTOCOL_VERSION, "agent", 78, 1, b"", b"", b"", "", ""))
    node.send(b"F" + again, m.Ready())
    assert [message for _, message in node.sent][-2:] == [nodes, m.Pull(VALUE, 5 * MiB, (A, B))]
    node.send(b"F" + again, m.PullFailed(VALUE, "lost", "nobody has it"))
    assert ended == [m.PullFailed(VALUE, "lost", "nobody has it")]


def test_a_copy_of_another_size_begins_anew() -> None:
    """It was made again: the bytes that have come may be of the value before."""
    node, _, pull = with_agent()
    pull(VALUE, 5 * MiB)
    node.sent.clear()
    pull(VALUE, 6 * MiB)
    assert [message for _, message in node.sent] == [m.StopPull(VALUE), m.Pull(VALUE, 6 * MiB, (A, B))]


def test_an_agent_is_started_once_there_is_a_second_node() -> None:
    node = Node()
    rows = tuple((each, number, "", "", "", b"", (), (), 0) for number, each in enumerate((b"thisnode", A, B), 1))
    for version in (1, 2, 3):
        node.send(b"N" + OWN, m.NodeTable(version, rows[:version]))
        assert sum(type(each) is e.StartAgent for each in node.effects) == (version > 1)
