"""Daemons of two nodes exchange messages over TCP: once, in order, whatever happens to connections, and with nobody else."""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from faults import PATIENCE
from zmq.utils import z85

from zfabric.adapters import curve, node_transport
from zfabric.adapters.curve import DOMAIN, FRAME_BYTES_MAX, HELD_SECONDS, SEALED_BYTES, Authenticator, KeyPair, make_pair
from zfabric.adapters.node_transport import JOIN_BYTES_MAX, JOINER, NodeTransport
from zfabric.exceptions import ConnectionLostError
from zfabric.machines.common.node_link import NodeLink
from zfabric.protocol import messages as m
from zfabric.protocol.codec import encode
from zfabric.protocol.ids import HEAD
from zfabric.protocol.messages import Envelope

ROLE = make_pair()
JOINS = (m.Query,)
"""Stands for ``Join``: what a node that is not in the table may send."""
ANSWERS = (m.Answer,)


def admits(kind: str, message: type[Any]) -> bool:
    """What a daemon lets through, with other messages in place of those of the registry."""
    return message in {"joiner": JOINS, "head": ANSWERS, "node": (m.Answer, m.Ready)}[kind]


def message(text: Any) -> list[Envelope]:
    return [(b"L", b"L", m.Answer(1, text, ""))]


class Daemon:
    """A transport with a context of its own, and what it received."""

    def __init__(self, number: int, daemons: int = 0, keys: KeyPair | None = None, endpoint: str = "tcp://127.0.0.1:*") -> None:
        self.number = number
        self.node = bytes((1, number)) + bytes(6)
        self.keys = keys if keys is not None else make_pair()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        incarnation = bytes((3, number, daemons)) + bytes(5)
        self.transport = NodeTransport(self.context, self.node, incarnation, daemons, self.keys, endpoint, admits, [ROLE.public])
        self.received: list[tuple[bytes, Any]] = []
        """(sender, message)"""

    @property
    def row(self) -> m.Row:
        return self.node, self.number, f"node{self.number}", self.transport.address, "", self.keys.public, (), (), 0

    def texts(self) -> list[Any]:
        return [each.payload for _, each in self.received if isinstance(each, m.Answer)]

    def send(self, to: Daemon, *texts: Any) -> None:
        for text in texts:
            self.transport.send_envelopes(to.node, message(text), time.monotonic())

    def turn(self) -> None:
        now = time.monotonic()
        for sender, envelopes in self.transport.receive(now):
            self.received += [(sender, each) for _, _, each in envelopes]
        self.transport.tick(now)

    def cut(self) -> None:
        """Close the TCP connections to and from other nodes under libzmq's hands."""
        for each in psutil.Process().net_connections("tcp"):
            if each.status == psutil.CONN_ESTABLISHED and each.laddr.port == int(self.transport.address.rpartition(":")[2]):
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(each.fd)) as one:  # libzmq may just have closed it.
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.transport.close()
        self.context.term()


def connect(*daemons: Daemon) -> None:
    rows = [each.row for each in daemons]
    for each in daemons:
        each.transport.connect(rows)


def until(condition: Callable[[], Any], *daemons: Daemon, seconds: float = PATIENCE) -> Any:
    """Run these daemons until a condition is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        now = time.monotonic()
        assert now < deadline, [(each.transport.refused, each.transport.trouble(), each.texts()[-3:]) for each in daemons]
        deadlines = [due for each in daemons if (due := each.transport.next_deadline()) is not None]
        wait = min(0.05, max(0.0, min(deadlines, default=now + 1.0) - now))
        select.select([source for each in daemons for source, _ in each.transport.sources], [], [], wait)
        for each in daemons:
            each.turn()
    return found


@pytest.fixture
def daemons() -> Iterator[Callable[..., Daemon]]:
    made: list[Daemon] = []

    def make(*arguments: Any, **named: Any) -> Daemon:
        made.append(Daemon(*arguments, **named))
        return made[-1]

    yield make
    for each in made:
        if not each.context.closed:
            each.close()


Make = Callable[..., Daemon]


def test_nodes_exchange_messages_in_order(daemons: Make) -> None:
    three = [daemons(number) for number in (1, 2, 3)]
    for one in three:
        for other in three:
            if one is not other:
                connect(*three)
                one.send(other, *[(one.number, index) for index in range(50)])  # Before there is a connection.
    until(lambda: all(len(each.received) == 100 for each in three), *three)
    for one in three:
        for other in three:
            from_other = [text for text in one.texts() if text[0] == other.number]
            assert from_other == [(other.number, index) for index in range(50 if one is not other else 0)]
        assert {sender for sender, _ in one.received} == {other.node for other in three if other is not one}
        assert +one.transport.refused == {}


def test_only_the_younger_dials(daemons: Make) -> None:
    one, two = daemons(1), daemons(2)
    connect(one, two)
    two.send(one, "x")
    until(lambda: one.received, one, two)
    assert one.transport.peers[two.node].dialled is None
    assert two.transport.peers[one.node].dialled is not None


def test_messages_of_many_frames_and_of_many_messages_arrive(daemons: Make) -> None:
    one, two = daemons(1), daemons(2)
    connect(one, two)
    large = random.Random(1).randbytes(8 * FRAME_BYTES_MAX)
    for each, other in ((one, two), (two, one)):
        each.send(other, large)
        each.send(other, *range(2000))
    until(lambda: len(one.received) == len(two.received) == 2001, one, two)
    assert one.texts() == two.texts() == [large, *range(2000)]


def test_a_connection_that_is_cut_loses_nothing(daemons: Make) -> None:
    one, two = daemons(1), daemons(2)
    connect(one, two)
    until(lambda: two.transport.peers[one.node].link.open, one, two)
    sent = 0
    for _ in range(6):
        for _ in range(300):
            one.send(two, sent)
            two.send(one, sent)
            sent += 1
            if sent % 20 == 0:
                one.turn()
                two.turn()
        one.cut()
        until(lambda: not two.transport.peers[one.node].link.open, one, two)
        one.send(two, sent)
        two.send(one, sent)
        sent += 1
        until(lambda: two.transport.peers[one.node].link.open, one, two)
    until(lambda: len(one.received) >= sent and len(two.received) >= sent, one, two)
    assert one.texts() == two.texts() == list(range(sent))


def test_a_connection_that_ends_before_the_hello_is_dialled_again(daemons: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon dies as another one dials it: the connection may have ended before anything is written to it."""
    one, other = daemons(1), daemons(2)
    with socket.create_server(("127.0.0.1", 0)) as dying:
        other.transport.connect([(*one.row[:3], f"tcp://127.0.0.1:{dying.getsockname()[1]}", *one.row[4:]), other.row])
        dial = node_transport.DialledConnection.dial
        ended: list[None] = []

        def dial_and_wait(connection: node_transport.DialledConnection, name: str) -> None:
            dial(connection, name)
            dying.accept()[0].close()
            assert connection.socket is not None
            deadline = time.monotonic() + PATIENCE
            while connection.socket.get(zmq.EVENTS) & zmq.POLLOUT:
                assert time.monotonic() < deadline
                time.sleep(0.001)  # The event of it is for the transport.
            ended.append(None)

        monkeypatch.setattr(node_transport.DialledConnection, "dial", dial_and_wait)
        until(lambda: len(ended) > 1, other)
        monkeypatch.undo()
    connect(one, other)
    one.send(other, "after all")
    until(lambda: other.texts() == ["after all"], one, other)


def test_the_next_daemon_of_a_node_begins_other_links(daemons: Make) -> None:
    one, two, three = daemons(1), daemons(2), daemons(3)
    connect(one, two, three)
    for each in (one, three):
        each.send(two, "first")
        two.send(each, "first")
    until(lambda: len(two.received) == 2 and one.received and three.received, one, two, three)
    address = two.transport.address
    two.close()
    one.send(two, "for the former daemon")
    later = daemons(2, 1, two.keys, address)
    later.transport.connect([each.row for each in (one, later, three)])
    for each in (one, three):
        later.send(each, "second")
    until(lambda: len(one.texts()) == 2 and len(three.texts()) == 2, one, later, three)
    one.send(later, "third")
    three.send(later, "third")
    until(lambda: len(later.received) == 2, one, later, three)
    assert later.texts() == ["third", "third"]
    assert one.texts() == three.texts() == ["first", "second"]


def test_a_node_that_is_not_in_the_table_any_more_is_refused(daemons: Make) -> None:
    one, two = daemons(1), daemons(2)
    connect(one, two)
    two.send(one, "alive")
    until(lambda: one.received, one, two)
    one.transport.connect([one.row])
    two.send(one, "dead")
    until(lambda: one.transport.refused["dead node"], one, two)
    one.cut()
    unknown = until(one.transport.authenticator.waiting, one, two)
    assert unknown == [two.keys.public]
    until(lambda: one.transport.refused["key"], one, two)
    assert one.texts() == ["alive"]
    one.send(two, "dropped")


def test_a_key_that_arrives_late_is_let_in(daemons: Make) -> None:
    one, two = daemons(1), daemons(2)
    two.transport.connect([one.row, two.row])
    two.send(one, "early")
    assert until(one.transport.authenticator.waiting, one, two) == [two.keys.public]
    one.transport.connect([one.row, two.row])
    assert one.transport.authenticator.waiting() == []
    until(lambda: one.received, one, two)
    assert +one.transport.refused == {}
    assert two.transport.trouble(one.node) == ""


@pytest.mark.parametrize(("address", "key"), [("", None), ("tcp://nonsense", None), ("ipc://x", b""), (None, b"short"), (None, b"")])
def test_a_row_with_which_nobody_can_be_dialled_disturbs_nobody(daemons: Make, address: str | None, key: bytes | None) -> None:
    one, two, three = daemons(1), daemons(2), daemons(3)
    bad = list(two.row)
    bad[3], bad[5] = two.transport.address if address is None else address, two.keys.public if key is None else key
    rows = [one.row, bad, three.row]
    for each in (one, three):
        each.transport.connect(rows)
    still_works(one, three)
    assert three.transport.trouble(two.node)
    connect(one, two, three)
    still_works(two, three)


# --- joining --------------------------------------------------------------------------------------------------------------------


def joining(head: Daemon, node: Daemon) -> None:
    node.transport.join(head.transport.address, head.keys.public, ROLE)
    until(lambda: node.transport._join is not None and node.transport._join.socket is not None, head, node)


def ask(node: Daemon) -> None:
    node.transport.send_envelopes(HEAD, [(b"R", b"N", m.Query(1, "join", ()))], time.monotonic())


def test_a_node_joins_with_the_role_key_and_is_then_a_node(daemons: Make) -> None:
    head, node = daemons(1), daemons(2)
    joining(head, node)
    ask(node)
    until(lambda: head.received, head, node)
    ((sender, asked),) = head.received
    assert sender.startswith(JOINER)
    assert len(sender) == len(node.node)
    assert isinstance(asked, m.Query)
    head.transport.send_envelopes(sender, message("joined"), time.monotonic())
    until(lambda: node.received, head, node)
    assert node.received == [(HEAD, m.Answer(1, "joined", ""))]
    connect(head, node)
    assert node.transport._join is None
    node.send(head, "as a node")
    until(lambda: head.texts(), head, node)
    assert head.received[-1][0] == node.node
    head.transport.send_envelopes(sender, message("too late"), time.monotonic())


def test_a_role_key_admits_to_joining_alone(daemons: Make) -> None:
    head, node = daemons(1), daemons(2)
    joining(head, node)
    node.transport.send_envelopes(HEAD, [(b"L", b"L", m.Ready()), (b"R", b"N", m.Query(1, "join", ()))], 0.0)
    until(lambda: head.received, head, node)
    assert [type(each) for _, each in head.received] == [m.Query]
    assert head.transport.refused["message"] == 1


def test_the_head_sends_a_joiner_answers_alone(daemons: Make) -> None:
    head, node = daemons(1), daemons(2)
    joining(head, node)
    ask(node)
    until(lambda: head.received, head, node)
    head.transport.send_envelopes(head.received[0][0], [(b"L", b"L", m.Ready()), *message("x")], 0.0)
    until(lambda: node.received, head, node)
    assert node.texts() == ["x"]
    assert node.transport.refused["message"] == 1


@pytest.mark.parametrize("wrong", ["head's key", "role key", "port"])
def test_a_joiner_learns_what_is_wrong(daemons: Make, wrong: str) -> None:
    head, node = daemons(1), daemons(2)
    role = make_pair() if wrong == "role key" else ROLE
    server = make_pair().public if wrong == "head's key" else head.keys.public
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{unused.getsockname()[1]}" if wrong == "port" else head.transport.address
        node.transport.join(address, server, role)
        trouble = until(node.transport.trouble, head, node)
    assert trouble.startswith(address)
    assert (
        trouble.removeprefix(address + ": ")
        in {
            "head's key": ("handshake", "handshake not finished"),
            "role key": ("it admits no node with this key",),
            "port": ("nobody listens",),
        }[wrong]
    )


# --- strangers ------------------------------------------------------------------------------------------------------------------


ENDS = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
"""Events of a socket whose connection has ended."""


class Stranger:
    """A plain socket of ZeroMQ that connects to a daemon."""

    def __init__(self, daemon: Daemon, keys: KeyPair | None = None, mechanism: str = "CURVE", routing_id: bytes = b"") -> None:
        self.daemon = daemon
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self.socket = self.context.socket(zmq.DEALER)
        if routing_id:
            self.socket.setsockopt(zmq.ROUTING_ID, routing_id)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, -1)
        if mechanism == "CURVE":
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, daemon.keys.public)
            pair = keys if keys is not None else make_pair()
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public)
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret)
        elif mechanism == "PLAIN":
            self.socket.setsockopt(zmq.PLAIN_USERNAME, b"node")
            self.socket.setsockopt(zmq.PLAIN_PASSWORD, b"node")
        self.ended = self.socket.get_monitor_socket(ENDS)
        self.socket.connect(daemon.transport.address)

    def send(self, *frames: bytes) -> None:
        """Send frames. While there is no room for one, the daemon goes on. Once it has closed the connection, the others are dropped."""
        for frame in frames:
            until(lambda frame=frame: self._sent(frame), self.daemon)

    def _sent(self, frame: bytes) -> bool:
        ended = bool(self.ended.poll(0))  # Asked first: an end that comes later is seen by the next attempt.
        try:
            self.socket.send(frame, zmq.DONTWAIT)
        except zmq.Again:
            return ended
        return True

    def close(self) -> None:
        self.context.destroy(0)


@pytest.fixture
def strange() -> Iterator[Callable[..., Stranger]]:
    made: list[Stranger] = []

    def make(*arguments: Any, **named: Any) -> Stranger:
        made.append(Stranger(*arguments, **named))
        return made[-1]

    yield make
    for each in made:
        each.close()


Strange = Callable[..., Stranger]


def still_works(one: Daemon, two: Daemon) -> None:
    """Both exchange messages; no link between them has been disturbed."""
    count = len(one.received), len(two.received)
    one.send(two, "still")
    two.send(one, "still")
    until(lambda: len(one.received) > count[0] and len(two.received) > count[1], one, two)
    assert one.texts()[-1] == two.texts()[-1] == "still"


@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN", "CURVE"])
def test_a_stranger_does_not_get_in(daemons: Make, strange: Strange, mechanism: str) -> None:
    one, two = daemons(1), daemons(2)
    connect(one, two)
    stranger = strange(one, mechanism=mechanism)
    stranger.send(NodeLink(two.node, bytes(8), 0, one.node, 100).dial(), encode(0, 0, message("x")))
    until(lambda: +one.transport.refused, one, two)
    still_works(one, two)
    ((reason, count),) = (+one.transport.refused).items()
    assert count == 1
    assert reason in (("key",) if mechanism == "CURVE" else ("handshake", "handshake not finished"))  # Either side may close first.


def test_without_an_authenticator_nobody_gets_in(strange: Strange) -> None:
    """libzmq lets all in where nobody answers, unless told otherwise."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    keys = make_pair()
    server = curve.listen(context, "tcp://127.0.0.1:*", keys, 10)
    observer = curve.observe(context, server, "test", int(zmq.EVENT_ALL))
    try:
        address = server.getsockopt_string(zmq.LAST_ENDPOINT)

        class Server:
            transport = type("Address", (), {"address": address})
            keys = make_pair()

        Server.keys = keys
        strange(Server).send(b"x")
        reasons: set[str] = set()
        while not reasons & {"handshake not finished", "handshake", "key"}:
            assert observer.poll(PATIENCE * 1000)
            reasons.update(curve.failures(observer))
        assert not server.poll(0)
    finally:
        context.destroy(0)


def test_a_nodes_key_with_another_nodes_name_is_refused(daemons: Make, strange: Strange) -> None:
    one, two, three = daemons(1), daemons(2), daemons(3)
    connect(one, two, three)
    until(lambda: one.transport.peers[two.node].link.open, one, two)
    thief = strange(one, three.keys)
    thief.send(NodeLink(two.node, b"\x05" * 8, 9, one.node, 100).dial(), encode(1, 0, message("stolen")))
    until(lambda: one.transport.refused["name"], one, two)
    still_works(one, two)
    assert "stolen" not in one.texts()


def test_a_connection_named_as_another_ones_has_its_own_identity(daemons: Make, strange: Strange) -> None:
    """Whoever chooses the routing id of a connection that has ended is still who its key is."""
    one, two, three = daemons(1), daemons(2), daemons(3)
    connect(one, two, three)
    until(lambda: one.transport.peers[two.node].link.open, one, two)
    one.transport.peers[two.node].connection = b"chosen"
    strange(one, three.keys, routing_id=b"chosen").send(encode(1, 0, message("stolen")))
    until(lambda: one.transport.refused["no hello"], one)
    assert one.texts() == []


def test_a_replayed_hello_does_not_disturb_the_link(daemons: Make, strange: Strange) -> None:
    one, two = daemons(1), daemons(2)
    connect(one, two)
    until(lambda: two.transport.peers[one.node].link.open, one, two)
    link = two.transport.peers[one.node].link
    hello = link._hello()
    replayer = strange(one, two.keys)
    replayer.send(hello)
    until(lambda: one.transport.refused["replayed"], one, two)
    assert link.open
    still_works(one, two)
    assert replayer.socket.poll(PATIENCE * 1000)
    assert replayer.socket.recv() == node_transport.DIAL_AGAIN


def test_the_older_node_is_not_let_in_as_one_that_dials(daemons: Make, strange: Strange) -> None:
    one, two = daemons(1), daemons(2)
    connect(one, two)
    strange(two, one.keys).send(NodeLink(one.node, b"\x05" * 8, 9, two.node, 100).dial())
    until(lambda: two.transport.refused["dialled by the older"], one, two)
    still_works(one, two)


def test_frames_that_are_too_large_are_refused(daemons: Make, strange: Strange) -> None:
    one, two = daemons(1), daemons(2)
    connect(one, two)
    joiner = strange(one, ROLE)
    joiner.send(encode(0, 0, [(b"R", b"N", m.Query(1, "x" * JOIN_BYTES_MAX, ()))]))
    until(lambda: one.transport.refused["size"], one, two)
    joiner.send(bytes(FRAME_BYTES_MAX + SEALED_BYTES), encode(0, 0, [(b"R", b"N", m.Query(1, "after it", ()))]))
    still_works(one, two)
    strange(one, ROLE).send(encode(0, 0, [(b"R", b"N", m.Query(1, "join", ()))]))
    until(lambda: any(isinstance(each, m.Query) for _, each in one.received), one, two)
    assert [each.what for _, each in one.received if isinstance(each, m.Query)] == ["join"]


def test_connections_that_say_nothing_are_closed(daemons: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "HANDSHAKE_SECONDS", 0.3)
    one, two = daemons(1), daemons(2)
    connect(one, two)
    host, port = "127.0.0.1", int(one.transport.address.rpartition(":")[2])
    silent = [socket.create_connection((host, port)) for _ in range(20)]
    silent[0].sendall(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03")  # It begins a greeting.
    try:
        still_works(one, two)
        until(lambda: one.transport.refused["handshake not finished"] >= 20, one, two)
        for each in silent:
            each.settimeout(PATIENCE)
            with contextlib.suppress(ConnectionResetError):
                while each.recv(100):  # libzmq's greeting, then the end.
                    pass
    finally:
        for each in silent:
            each.close()
    still_works(one, two)


GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def test_three_hundred_connections_at_once_are_refused_and_others_work(daemons: Make) -> None:
    one, two = daemons(1), daemons(2)
    connect(one, two)
    until(lambda: two.transport.peers[one.node].link.open, one, two)
    port = int(one.transport.address.rpartition(":")[2])
    many = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
    try:
        for each in many[:200]:
            each.sendall(GREETING)
        for each in many[200:]:
            each.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: nobody in particular\r\n\r\n")
        still_works(one, two)
        until(lambda: one.transport.refused["handshake"] >= 200, one, two)
        for each in many:
            each.settimeout(PATIENCE)
            with contextlib.suppress(ConnectionResetError):
                while each.recv(100):
                    pass
    finally:
        for each in many:
            each.close()
    still_works(one, two)
    assert one.transport.authenticator.waiting() == []


def fuzz(chance: random.Random) -> bytes:
    """A frame that is not quite one."""
    good = bytearray(encode(chance.randrange(3), chance.randrange(3), message(chance.randrange(9))))
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    if kind == 1:
        return bytes(good[: chance.randrange(len(good))])
    if kind == 2:
        return b"\x93\x00\x00" + chance.choice([b"\xdd\x7f\xff\xff\xff", b"\x91" * 5000, b"\xdc\xff\xff" + b"\xc0" * 65535, b"\xc1"])
    for _ in range(chance.randrange(1, 4)):
        good[chance.randrange(len(good))] = chance.randrange(256)
    return bytes(good)


@pytest.mark.parametrize("kind", ["joiner", "node"])
def test_fuzzed_frames_are_refused_and_others_work(daemons: Make, strange: Strange, kind: str) -> None:
    one, two, three = daemons(1), daemons(2), daemons(3)
    connect(one, two, three)
    chance = random.Random(5)
    attacker = strange(one, ROLE if kind == "joiner" else three.keys)
    count = 2000
    attacker.send(fuzz(chance))
    until(lambda: one.transport.refused or one.received, one)  # The handshake is over.
    for index in range(1, count):
        attacker.send(fuzz(chance))
        if index % 50 == 0:
            one.turn()
    if kind == "node":  # Within a link, too.
        link = NodeLink(three.node, b"\x05" * 8, 0, one.node, 100)
        attacker.send(link.dial(), fuzz(chance), fuzz(chance))
    done = chance.randbytes(3)
    attacker.send(*[done] * 100)
    refused = one.transport.refused
    until(lambda: sum(refused.values()) + len(one.received) >= count, one, two)
    still_works(one, two)
    assert all(sender == two.node for sender, each in one.received if isinstance(each, m.Ready))
    assert len(one.transport.peers) == 2
    assert {reason for reason in refused if refused[reason]} <= {"frame", "message", "no hello", "size"}


def test_an_authenticator_lets_few_wait_and_answers_all() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    authenticator = Authenticator(context)
    asker = context.socket(zmq.DEALER)
    asker.connect("inproc://zeromq.zap.01")

    def ask(*credentials: bytes, domain: bytes = DOMAIN, version: bytes = b"1.0") -> None:
        asker.send_multipart([b"", version, b"1", domain, b"127.0.0.1", b"", *credentials])
        authenticator.answer(0.0)

    def answer() -> tuple[bytes, bytes]:
        _, _, _, code, _, user, _ = asker.recv_multipart(zmq.DONTWAIT)
        return code, user

    try:
        for strange in ((b"NULL",), (b"PLAIN", b"a", b"b"), (b"CURVE", b"short"), (b"CURVE",), ()):
            ask(*strange)
            assert answer() == (b"500", b"")
        ask(b"CURVE", bytes(32), domain=b"other")
        assert answer() == (b"500", b"")
        ask(b"CURVE", bytes(32), version=b"2.0")
        assert answer() == (b"500", b"")
        for index in range(2 * curve.HELD_MAX):
            ask(b"CURVE", index.to_bytes(32, "big"))
        assert [answer() for _ in range(curve.HELD_MAX)] == [(b"300", b"")] * curve.HELD_MAX
        late = z85.encode((3).to_bytes(32, "big"))
        assert len(authenticator.waiting()) == curve.HELD_MAX
        assert late in authenticator.waiting()
        authenticator.admit(frozenset({late}))
        assert answer() == (b"200", late)
        assert authenticator.next_deadline() == HELD_SECONDS
        authenticator.expire(HELD_SECONDS)
        assert [answer() for _ in range(curve.HELD_MAX - 1)] == [(b"400", b"")] * (curve.HELD_MAX - 1)
        assert authenticator.next_deadline() is None
    finally:
        authenticator.close()
        asker.close(0)
        context.term()


# --- what is open ---------------------------------------------------------------------------------------------------------------


def listening() -> set[tuple[str, int]]:
    connections = psutil.Process().net_connections("all")
    return {each.laddr for each in connections if each.status == psutil.CONN_LISTEN or (each.type == socket.SOCK_DGRAM and each.laddr)}


def test_a_transport_listens_on_one_socket(daemons: Make) -> None:
    before = listening()
    one, two = daemons(1), daemons(2)
    connect(one, two)
    still_works(one, two)
    ports = {int(each.transport.address.rpartition(":")[2]) for each in (one, two)}
    assert listening() - before == {("127.0.0.1", port) for port in ports}


def test_a_port_in_use_is_named(daemons: Make) -> None:
    one = daemons(1)
    with pytest.raises(ConnectionLostError, match=f"cannot listen at {one.transport.address}: Address already in use"):
        Daemon(2, endpoint=one.transport.address)


def test_descriptors_are_closed(daemons: Make) -> None:
    one = daemons(1)
    connect(one)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        two = Daemon(2)
        connect(one, two)
        still_works(one, two)
        two.close()
        one.transport.connect([one.row])
    until(lambda: len(os.listdir("/proc/self/fd")) <= before, one)


def test_no_secret_is_shown(tmp_path: Path) -> None:
    pair = make_pair()
    assert pair.secret.decode() not in f"{pair} {pair!r}"
