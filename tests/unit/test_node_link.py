"""A link between nodes delivers once and in order, however often its connections end and its daemons restart."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zfabric.machines.common.link import ACKNOWLEDGE_AFTER
from zfabric.machines.common.node_link import HELLO_BYTES, IN_FLIGHT_MAX, NOBODY, HelloRefused, LinkBroken, NodeLink, read_hello
from zfabric.protocol import messages as m
from zfabric.protocol.codec import encode
from zfabric.protocol.messages import Envelope

A, B = b"\x01" * 8, b"\x02" * 8
LIMIT = 2**20


def daemon(number: int) -> bytes:
    return bytes((3, number)) + bytes(6)


def message(text: Any) -> list[Envelope]:
    return [(b"L", b"L", m.Answer(1, text, ""))]


def texts(envelopes: list[Envelope]) -> list[Any]:
    return [each.payload for _, _, each in envelopes]


def pair(daemons: int = 0) -> tuple[NodeLink, NodeLink]:
    return NodeLink(A, daemon(2 * daemons), daemons, B, LIMIT), NodeLink(B, daemon(2 * daemons + 1), daemons, A, LIMIT)


def connect(one: NodeLink, other: NodeLink, now: float = 0.0) -> None:
    one.confirm(other.accept(one.dial(), now), now)


def pass_on(one: NodeLink, other: NodeLink, frames: list[bytes], now: float = 0.0) -> list[Any]:
    return [text for frame in frames for text in texts(other.receive(frame, now))]


def test_messages_wait_for_a_connection_and_arrive_in_order() -> None:
    one, other = pair()
    assert one.send(message(1), 0.0) == one.send(message(2), 0.0) == other.send(message("x"), 0.0) == []
    assert one.next_deadline() is None
    connect(one, other)
    assert pass_on(one, other, one.outgoing(0.0)) == [1, 2]
    assert pass_on(other, one, other.outgoing(0.0)) == ["x"]
    assert pass_on(one, other, one.send(message(3), 0.0)) == [3]


def test_a_new_connection_continues_with_what_the_old_one_lost() -> None:
    one, other = pair()
    connect(one, other)
    first, *lost = [frame for number in range(5) for frame in one.send(message(number), 0.0)]
    assert pass_on(one, other, [first]) == [0]
    assert len(lost) == 4
    one.disconnected()
    assert one.send(message(5), 0.0) == []
    connect(one, other)
    assert pass_on(one, other, one.outgoing(0.0)) == [1, 2, 3, 4, 5]
    assert one.outgoing(0.0) == []


def test_nothing_is_repeated_by_the_clock() -> None:
    one, other = pair()
    connect(one, other)
    one.send(message(1), 0.0)
    assert one.next_deadline() is None
    assert one.outgoing(10_000.0) == []
    assert len(one.unacknowledged()) == 1


def test_what_arrives_is_acknowledged_soon() -> None:
    one, other = pair()
    connect(one, other)
    pass_on(one, other, one.send(message(1), 0.0))
    assert other.outgoing(0.0) == []
    assert other.next_deadline() == ACKNOWLEDGE_AFTER
    assert pass_on(other, one, other.outgoing(ACKNOWLEDGE_AFTER)) == []
    assert one.unacknowledged() == []


def test_few_frames_are_in_flight_at_a_time() -> None:
    one, other = pair()
    connect(one, other)
    many = 3 * IN_FLIGHT_MAX
    wire = deque(frame for number in range(many) for frame in one.send(message(number), 0.0))
    assert len(wire) == IN_FLIGHT_MAX
    arrived: list[Any] = []
    while wire:
        arrived += pass_on(one, other, [wire.popleft()])
        pass_on(other, one, other.outgoing(0.0))
        wire += one.outgoing(0.0)
        assert len(wire) <= IN_FLIGHT_MAX
    assert arrived == list(range(many))


def test_a_large_message_travels_in_frames_of_the_limit() -> None:
    one, other = pair()
    large = bytes(3 * LIMIT)
    connect(one, other)
    frames = one.send(message(large), 0.0)
    assert len(frames) == 4
    assert max(map(len, frames)) <= LIMIT
    assert pass_on(one, other, frames[:2]) == []
    connect(one, other)  # The pieces that have arrived count.
    assert pass_on(one, other, one.outgoing(0.0)) == [large]


def test_a_later_daemon_begins_another_link() -> None:
    one, other = pair()
    connect(one, other)
    pass_on(one, other, one.send(message(1), 0.0))
    one.send(message("for the former daemon"), 0.0)
    later = NodeLink(B, daemon(9), 1, A, LIMIT)
    later.send(message("early"), 0.0)
    connect(one, later)
    assert one.unacknowledged() == []
    assert one.peer_daemon == daemon(9)
    assert pass_on(one, later, one.send(message(2), 0.0)) == [2]
    assert pass_on(later, one, later.outgoing(0.0)) == ["early"]


def test_a_later_daemon_that_dials_begins_another_link() -> None:
    one, other = pair()
    connect(one, other)
    pass_on(one, other, one.send(message(1), 0.0))
    other.send(message("for the former daemon"), 0.0)
    later = NodeLink(A, daemon(9), 1, B, LIMIT)
    connect(later, other)
    assert other.unacknowledged() == []
    assert pass_on(later, other, later.send(message(1), 0.0)) == [1]


def test_a_former_daemons_hello_is_refused() -> None:
    one, other = pair()
    left_over = one.dial()
    later = NodeLink(A, daemon(9), 1, B, LIMIT)
    connect(later, other)
    for hello in (left_over, one.dial()):
        with pytest.raises(HelloRefused) as refused:
            other.accept(hello, 0.0)
        assert refused.value.reason == "former daemon"
    assert pass_on(later, other, later.send(message(1), 0.0)) == [1]


def test_a_replayed_hello_is_refused_and_changes_nothing() -> None:
    one, other = pair()
    hello = one.dial()
    answer = other.accept(hello, 0.0)
    one.confirm(answer, 0.0)
    pass_on(one, other, one.send(message(1), 0.0))
    with pytest.raises(HelloRefused) as refused:
        other.accept(hello, 0.0)
    assert refused.value.reason == "replayed"
    with pytest.raises(HelloRefused) as refused:
        one.confirm(answer, 0.0)
    assert refused.value.reason == "replayed"
    one.dial()
    with pytest.raises(HelloRefused) as refused:
        one.confirm(answer, 0.0)
    assert refused.value.reason == "replayed"
    assert other.open
    assert not one.open


def test_a_link_that_began_anew_on_one_side_is_refused() -> None:
    """Numbers are never corrected: the same incarnation has lost what it knew."""
    one, other = pair()
    connect(one, other)
    pass_on(one, other, one.send(message(1), 0.0))
    anew = NodeLink(A, one.daemon, 0, B, LIMIT)
    anew.connection = 5
    with pytest.raises(HelloRefused, match="forgotten") as refused:
        other.accept(anew.dial(), 0.0)
    assert refused.value.reason == "numbers"
    with pytest.raises(HelloRefused, match="never answered") as refused:
        connect(one, NodeLink(B, other.daemon, 0, A, LIMIT))
    assert refused.value.reason == "numbers"


@pytest.mark.parametrize("received", [0, 3])
def test_a_peer_that_claims_other_numbers_is_refused(received: int) -> None:
    one, other = pair()
    connect(one, other)
    for number in range(2):
        pass_on(one, other, one.send(message(number), 0.0))
    pass_on(other, one, other.outgoing(ACKNOWLEDGE_AFTER))
    claimed = read_hello(other.accept(one.dial(), 1.0))
    with pytest.raises(HelloRefused) as refused:
        one.confirm(claimed._replace(received=received).encode(), 1.0)
    assert refused.value.reason == "numbers"
    assert not one.open
    one.confirm(claimed.encode(), 1.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"protocol": m.PROTOCOL_VERSION + 1}, "protocol"),
        ({"node": b"\x07" * 8}, "name"),
        ({"daemons": 4}, "numbers"),
    ],
)
def test_a_hello_that_does_not_fit_is_refused(change: dict[str, Any], reason: str) -> None:
    one, other = pair()
    connect(one, other)
    hello = read_hello(one.dial())._replace(**change).encode()
    with pytest.raises(HelloRefused) as refused:
        other.accept(hello, 0.0)
    assert refused.value.reason == reason
    connect(one, other)


@given(st.one_of(st.binary(max_size=80), st.binary(min_size=HELLO_BYTES, max_size=HELLO_BYTES)))
def test_bytes_that_are_no_hello_are_refused(data: bytes) -> None:
    with pytest.raises(HelloRefused) as refused:
        pair()[1].accept(data, 0.0)
    assert refused.value.reason == "no hello"


@pytest.mark.parametrize("frame", [encode(3, 0, message(1)), encode(1, 1, message(1)), encode(-1, 0, []), b"\xc1", b""])
def test_a_frame_that_cannot_follow_breaks_the_connection_only(frame: bytes) -> None:
    one, other = pair()
    with pytest.raises(LinkBroken):
        other.receive(frame, 0.0)
    connect(one, other)
    sent = one.send(message(1), 0.0)
    with pytest.raises(LinkBroken):
        other.receive(frame, 0.0)
    assert pass_on(one, other, sent * 2) == [1]
    connect(one, other)
    assert pass_on(one, other, one.send(message(2), 0.0)) == [2]


def test_of_a_frame_that_is_partly_unreadable_the_rest_is_delivered() -> None:
    one, other = pair()
    connect(one, other)
    frames = one.send([*message(1), (b"L", b"L", m.Query(7, b"no text", ())), *message(2)], 0.0)  # type: ignore[arg-type]
    assert pass_on(one, other, frames) == [1, 2]
    assert other.refused == 1
    (answer,) = [each for frame in other.outgoing(0.0) for _, _, each in one.receive(frame, 0.0)]
    assert isinstance(answer, m.Answer)
    assert answer.token == 7
    assert "Query was refused" in answer.error


# --- a campaign over everything that can happen to connections ------------------------------------------------------------------


class Side:
    """A node: its current daemon, what it sent and received, and which connection it takes as the current one."""

    def __init__(self, node: bytes, peer: bytes) -> None:
        self.node, self.peer = node, peer
        self.daemons = -1
        self.sent: dict[bytes, list[bytes]] = {}
        """For which daemon of the peer each message is, by own daemon."""
        self.received: dict[tuple[bytes, bytes], list[int]] = {}
        """Numbers received, by (sender's daemon, own daemon)."""
        self.reasons: set[str] = set()
        """Why it refused hellos."""
        self.restart()

    def restart(self) -> None:
        self.daemons += 1
        self.link = NodeLink(self.node, self.node[:1] + bytes((self.daemons,)) + bytes(6), self.daemons, self.peer, LIMIT)
        self.sent[self.link.daemon] = []
        self.current: Connection | None = None

    def send(self) -> None:
        sent = self.sent[self.link.daemon]
        sent.append(self.link.peer_daemon)
        self.write(self.link.send(message((self.link.daemon, len(sent) - 1)), 0.0))

    def assign(self) -> None:
        """Messages sent before any daemon of the peer was known are for the first one."""
        sent, peer = self.sent[self.link.daemon], self.link.peer_daemon
        sent[:] = [peer if each == NOBODY else each for each in sent]

    def write(self, frames: list[bytes]) -> None:
        if self.current is not None:
            self.current.wires[self.node] += frames

    def read(self, connection: Connection) -> None:
        """Process the oldest frame of a connection as a transport does."""
        wire = connection.wires[self.peer]
        if not wire:
            return
        frame = wire.popleft()
        if connection.greeted[self.node] and connection is not self.current:
            return
        try:
            if not connection.greeted[self.node]:
                connection.greeted[self.node] = True
                if connection.dialled_by is self:
                    self.link.confirm(frame, 0.0)
                else:
                    answer = self.link.accept(frame, 0.0)
                    self.current = connection
                    self.write([answer])
            else:
                for _, _, each in self.link.receive(frame, 0.0):
                    assert isinstance(each, m.Answer)
                    source, number = each.payload
                    self.received.setdefault((source, self.link.daemon), []).append(number)
        except HelloRefused as error:
            self.reasons.add(error.reason)
        self.assign()
        self.write(self.link.outgoing(0.0))


class Connection:
    """What each side wrote, and has not been read. Reading goes on after the connection has ended: a socket has buffers."""

    def __init__(self, dialled_by: Side, acceptor: Side) -> None:
        self.dialled_by = dialled_by
        self.wires: dict[bytes, deque[bytes]] = {dialled_by.node: deque(), acceptor.node: deque()}
        self.greeted = {dialled_by.node: False, acceptor.node: False}


class Campaign:
    def __init__(self) -> None:
        self.dialler, self.acceptor = Side(B, A), Side(A, B)
        self.connections: list[Connection] = []
        self.dialed: list[Connection] = []
        self.hellos: list[bytes] = []
        """The hello of each connection in ``dialed``."""

    def dial(self) -> None:
        connection = Connection(self.dialler, self.acceptor)
        self.connections.append(connection)
        self.dialed.append(connection)
        self.dialler.current = connection
        hello = self.dialler.link.dial()
        self.hellos.append(hello)
        self.dialler.write([hello])

    def perform(self, action: str, choice: int) -> None:
        old = self.connections[choice % len(self.connections)] if self.connections else None
        if action == "dial":
            self.dial()
        elif action == "send" or action == "answer":
            (self.dialler if action == "send" else self.acceptor).send()
        elif action == "restart dialler":
            self.dialler.restart()
        elif action == "restart acceptor":
            self.acceptor.restart()
            self.dialler.current = None
            self.dialler.link.disconnected()
            for each in self.connections:  # They were in the memory of the process that has ended.
                each.wires[self.dialler.node].clear()
        elif action == "work":
            self.work(choice)
        elif action == "accept" and old is not None:
            self.acceptor.read(old)
        elif action == "receive" and self.dialler.current is not None:
            self.dialler.read(self.dialler.current)
        elif action == "lose" and old is not None:
            for wire in old.wires.values():
                for _ in range(min(choice % 3, len(wire))):
                    wire.pop()
            if old is self.dialler.current:
                self.dialler.current = None
                self.dialler.link.disconnected()
            if old is self.acceptor.current:
                self.acceptor.current = None
                self.acceptor.link.disconnected()
        elif action == "replay" and self.hellos:
            index = choice % len(self.hellos)
            replayed = Connection(self.dialler, self.acceptor)
            if self.dialed[index].greeted[self.acceptor.node] or self.dialed[index] is not self.dialler.current:
                replayed.wires[self.dialler.node].append(self.hellos[index])
                self.connections.append(replayed)

    def work(self, rounds: int) -> None:
        """Both sides send and read, on a connection that works."""
        if self.dialler.current is None:
            self.dial()
        for _ in range(rounds):
            self.dialler.send()
            self.acceptor.send()
            self.acceptor.read(self.dialed[-1])
            if self.dialler.current is not None:
                self.dialler.read(self.dialler.current)

    def finish(self, newest_first: bool) -> None:
        """Without further faults: all that is left in sockets is read, and a connection that has not ended is enough."""
        if self.dialler.current is None:
            self.dial()
        current = self.dialler.current
        assert current is not None
        for _ in range(1000):
            for each in reversed(self.connections) if newest_first else self.connections:
                if each.wires[self.dialler.node]:
                    self.acceptor.read(each)
            self.dialler.read(current)
            if not any(wire for each in self.connections for wire in each.wires.values()):
                break
        assert self.dialler.link.open
        assert self.acceptor.current is current

    def check(self) -> None:
        for one, other in ((self.dialler, self.acceptor), (self.acceptor, self.dialler)):
            for (source, target), numbers in other.received.items():
                meant = [number for number, each in enumerate(one.sent[source]) if each == target]
                assert numbers == meant[: len(numbers)]

    def check_end(self) -> None:
        self.check()
        for one, other in ((self.dialler, self.acceptor), (self.acceptor, self.dialler)):
            own, target = one.link.daemon, other.link.daemon
            meant = [number for number, each in enumerate(one.sent[own]) if each == target]
            assert other.received.get((own, target), []) == meant


USUAL = ["dial", "send", "answer", "accept", "receive", "work", "work"]
FAULTS = ["lose", "replay", "restart dialler", "restart acceptor"]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(USUAL + FAULTS), st.integers(0, 7)), max_size=60), st.booleans())
def test_every_message_arrives_once_and_in_order_within_a_pair_of_daemons(actions: list[tuple[str, int]], newest_first: bool) -> None:
    campaign = Campaign()
    for action, choice in actions:
        campaign.perform(action, choice)
        campaign.check()
    campaign.finish(newest_first)
    campaign.check_end()
    assert campaign.acceptor.reasons <= {"former daemon", "replayed"}
    assert campaign.dialler.reasons <= {"replayed", "numbers"}  # An answer to another connection, or to the daemon before this one.
