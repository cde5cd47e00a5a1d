"""Transfer agents as processes: real sockets with encryption, real arenas, and the machines of a daemon on each node."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator

import pytest
import zmq
from faults import PATIENCE
from relay import Fault, Relay

from perf.transfers import WRITER, AgentNode, AgentNodes
from zfabric.adapters import curve
from zfabric.adapters.chunk_sockets import ChunkSockets, Received
from zfabric.adapters.curve import KeyPair, make_pair
from zfabric.adapters.spill import SpillDirectory
from zfabric.config import CHUNK_BYTES, MiB
from zfabric.protocol import messages as m
from zfabric.protocol.codec import encode
from zfabric.protocol.ids import TRANSFER_AGENT
from zfabric.runtime.cluster import parse_address
from zfabric.runtime.transfer import ValueFiles

PATTERN = os.urandom(MiB + 17)


def fill(target: memoryview) -> None:
    """Write bytes that differ from chunk to chunk."""
    for start in range(0, len(target), len(PATTERN)):
        target[start : start + len(PATTERN)] = PATTERN[: len(target) - start]


def same(found: memoryview, size: int) -> bool:
    expected = bytearray(size)
    fill(memoryview(expected))
    return found == expected


def copied(nodes: AgentNodes, node: AgentNode, size: int, *sources: AgentNode, number: int = 1) -> bytes:
    """Put a value on the first source, have ``node`` copy it, and return its id."""
    identifier = sources[0].put(number, size, fill)
    nodes.until(lambda: identifier in sources[0].values)
    node.pull(identifier, size, *sources)
    nodes.until(lambda: identifier in node.ended)
    assert node.ended[identifier] == ("", "")
    return identifier


class SlowNodes(AgentNodes):
    """Agents reach each other through a relay, at 12 MiB/s until it heals: whoever is held up still meets a copy under way."""

    def __init__(self, relay: Relay, count: int) -> None:
        self.relay = relay
        super().__init__(count, 110 * MiB, transfer_patience=0.2)

    def introduce(self, *nodes: AgentNode) -> None:
        """Advertise the relay's ports."""
        for node in self.nodes:
            if not node.advertised:
                port = self.relay("listen", f"node{node.number}", "transfer", parse_address(node.address)[1])
                node.advertised = f"tcp://127.0.0.1:{port}"
        super().introduce(*nodes)

    def begin(self, node: AgentNode, identifier: bytes, *sources: AgentNode) -> None:
        """Begin to copy a value, and return once some of it has been written into the room of the agent."""
        self.relay.fault("*", "*", Fault(rate=12 * MiB), "transfer")
        node.pull(identifier, SIZE, *sources)

        def has_begun() -> bool:
            grants = [grant for grant in node.core.store._tables.grants.values() if grant.holder != WRITER]
            return any(node.arena.view(grant.offset + 4 * MiB, 64) != bytes(64) for grant in grants)

        self.until(has_begun)
        assert identifier not in node.ended


SIZE = 48 * MiB


@pytest.mark.parametrize("encrypted", [True, False])
def test_values_are_copied_byte_for_byte_and_unpinned(encrypted: bool) -> None:
    with AgentNodes(2, 96 * MiB, encrypted) as nodes:
        one, two = nodes.nodes
        for number, size in enumerate((100_001, MiB, 20 * MiB + 5), 1):
            identifier = copied(nodes, two, size, one, number=number)
            assert same(two.content(identifier), size)
        nodes.until(lambda: not one.pinned())


def test_a_value_that_is_spilled_is_read_and_one_for_which_there_is_no_room_is_written_to_disk() -> None:
    with AgentNodes(2, 32 * MiB) as nodes:
        one, two = nodes.nodes
        first = one.put(1, 20 * MiB, fill)
        nodes.until(lambda: first in one.core.store._tables.idle)  # Else the second one would be written to disk after a while.
        second = one.put(2, 20 * MiB, fill)
        nodes.until(lambda: second in one.values)
        nodes.until(lambda: one.core.store.statistics()["spills"] == 1)
        blocking = two.put(3, 25 * MiB, fill)
        nodes.until(lambda: blocking in two.values)
        two.pin(blocking)
        nodes.until(lambda: two.core.store._tables.entries[blocking].pins != {})
        two.pull(first, 20 * MiB, one)
        nodes.until(lambda: first in two.ended)
        assert two.ended[first] == ("", "")
        assert two.core.store.statistics()["written_on_disk"] == 1
        (name,) = (name for name in os.listdir(f"{two.session.directory}/spill") if name.endswith(".object"))
        target = bytearray(20 * MiB)
        SpillDirectory(f"{two.session.directory}/spill").read_into(int(name.partition(".")[0]), first, memoryview(target))
        assert same(memoryview(target), 20 * MiB)


@pytest.mark.parametrize("victim", ["reader", "source"])
def test_an_agent_killed_in_the_middle_is_replaced_and_the_copy_is_whole(victim: str) -> None:
    with Relay() as relay, SlowNodes(relay, 2) as nodes:
        one, two = nodes.nodes
        identifier = one.put(1, SIZE, fill)
        nodes.until(lambda: identifier in one.values)
        nodes.begin(two, identifier, one)
        dead = two if victim == "reader" else one
        dead.kill_agent()
        relay.heal()
        dead.start_agent()
        nodes.introduce()
        nodes.until(lambda: identifier in two.ended)
        assert two.ended[identifier] == ("", "")
        assert same(two.content(identifier), SIZE)
        nodes.until(lambda: not one.pinned())


def test_another_source_goes_on_after_a_dead_one() -> None:
    with Relay() as relay, SlowNodes(relay, 3) as nodes:
        one, two, three = nodes.nodes
        identifier = copied(nodes, two, SIZE, one)
        two.keep(identifier)
        nodes.begin(three, identifier, one, two)
        one.kill_agent()
        relay.heal()
        nodes.until(lambda: identifier in three.ended)
        assert same(three.content(identifier), SIZE)


def test_a_node_that_is_in_no_table_reads_nothing() -> None:
    with AgentNodes(2, 32 * MiB, transfer_patience=0.1) as nodes:
        one, two = nodes.nodes
        nodes.introduce(one)  # The second one knows where the first one is no more than that one lets it in.
        identifier = one.put(1, MiB, fill)
        nodes.until(lambda: identifier in one.values)
        two.pull(identifier, MiB, one)
        with pytest.raises(TimeoutError):
            nodes.until(lambda: identifier in two.ended, seconds=0.5)
        nodes.introduce()
        nodes.until(lambda: identifier in two.ended)


# --- sockets ----------------------------------------------------------------------------------------------------------------------


def receive(sockets: ChunkSockets, done: Callable[[list[Received]], bool], seconds: float = PATIENCE) -> list[Received]:
    """Receive until something is so."""
    found: list[Received] = []
    deadline = time.monotonic() + seconds
    while not done(found):
        assert time.monotonic() < deadline
        ready = dict(zmq.zmq_poll(sockets.sources, 20))
        found += [each._replace(data=memoryview(bytes(each.data))) for each in sockets.receive(time.monotonic(), ready)]
    return found


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(0)


A, B = b"\x02node00a", b"\x02node00b"


def row(node: bytes, sockets: ChunkSockets | None, keys: KeyPair) -> m.Row:
    return node, 1, "", "", sockets.address if sockets is not None else "", keys.public, (), (), 0


def test_what_an_agent_does_not_send_is_refused_and_the_sender_is_whose_key_it_is(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    ours, theirs = make_pair(), make_pair()
    sockets = ChunkSockets(context, ours, "tcp://127.0.0.1:*")
    sockets.connect({A: row(A, sockets, ours), B: row(B, None, theirs)})
    dealer = curve.dealer(context, theirs, ours.public, 64)
    dealer.connect(sockets.address)
    want = m.Want(1, bytes(20), MiB, 0, MiB)
    good = encode(0, 0, [(TRANSFER_AGENT, TRANSFER_AGENT, want)])
    strange = encode(0, 0, [(b"L", b"F", m.Pulled(bytes(20), 64, MiB))])
    with_chunk = encode(0, 0, [(TRANSFER_AGENT, TRANSFER_AGENT, each) for each in (want, m.Chunk(1, 0, 4))])
    for parts in (
        [b""],
        [b"\x00junk"],
        [strange],
        [with_chunk],
        [with_chunk, b"data"],
        [good, b"data"],
        [good, b"", b"", b"", b"", b""],
        [bytes(5000)],
    ):
        dealer.send_multipart(parts)
    dealer.send(good)
    found = receive(sockets, lambda found: bool(found))
    assert [(each.node, each.message) for each in found] == [(B, want)]
    assert sockets.refused["frames_refused"] == 8
    dealer.close(0)
    sockets.close()


def test_memory_is_read_until_it_is_sent_and_dropped_chunks_count_as_sent(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    first, second = make_pair(), make_pair()
    source = ChunkSockets(context, first, "tcp://127.0.0.1:*")
    other: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    reader = ChunkSockets(other, second, "tcp://127.0.0.1:*")
    table = {A: row(A, source, first), B: row(B, reader, second)}
    source.connect(table)
    reader.connect(table)
    chunk, value = m.Chunk(1, 0, CHUNK_BYTES), bytes(20)
    data = memoryview(bytes(range(256)) * (CHUNK_BYTES // 256))
    source.send_chunk(B, chunk, value, data)
    assert list(source.sent()) == [value]  # Nobody has asked.
    requests = [m.Want(1, value, CHUNK_BYTES, 0, CHUNK_BYTES), *(m.Credit(1, number) for number in range(99))]
    reader.ask(A, requests, time.monotonic())
    assert [(each.node, each.message) for each in receive(source, lambda found: len(found) >= 100)] == [(B, each) for each in requests]
    source.send_chunk(B, chunk, value, data)
    (found,) = receive(reader, bool)
    assert (found.node, found.message, found.data) == (A, chunk, data)
    deadline = time.monotonic() + PATIENCE
    while not (sent := list(source.sent())):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert sent == [value]
    source.answer(B, m.Queued(1))
    assert [each.message for each in receive(reader, bool)] == [m.Queued(1)]
    reader.close()
    other.term()
    source.close()


def test_a_port_outlives_the_agent_that_listens_there(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    ours, theirs = make_pair(), make_pair()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        dealer = curve.dealer(context, theirs, ours.public, 64)
        dealer.connect(address)
        dealer.send(encode(0, 0, [(TRANSFER_AGENT, TRANSFER_AGENT, m.Credit(1, 1))]))
        for _ in range(2):
            other: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
            sockets = ChunkSockets(other, ours, address, os.dup(listener.fileno()))
            sockets.connect({A: row(A, sockets, ours), B: row(B, None, theirs)})
            assert receive(sockets, bool)[0].message == m.Credit(1, 1)
            sockets.close()
            other.term()
            dealer.close(0)
            dealer = curve.dealer(context, theirs, ours.public, 64)
            dealer.connect(address)
            dealer.send(encode(0, 0, [(TRANSFER_AGENT, TRANSFER_AGENT, m.Credit(1, 1))]))
        dealer.close(0)


# --- files ------------------------------------------------------------------------------------------------------------------------


def test_a_value_in_a_file_is_written_chunk_by_chunk_and_read_again(tmp_path: object) -> None:
    directory = SpillDirectory(f"{tmp_path}/spill")
    directory.make(3, 2 * MiB + 9)
    files = ValueFiles(None, f"{tmp_path}/spill")  # type: ignore[arg-type]
    whole = bytearray(2 * MiB + 9)
    fill(memoryview(whole))
    for position in range(0, len(whole), CHUNK_BYTES):
        files.write(-192, position, memoryview(whole)[position : position + CHUNK_BYTES])
    files.seal(-192, bytes(20), len(whole))
    directory.take_over(3)
    directory.check(3, bytes(20), len(whole))
    assert files.read(-192, len(whole), MiB, 10) == whole[MiB : MiB + 10]
    with pytest.raises(OSError, match="No such file"):
        files.write(-64, 0, memoryview(b"x"))
