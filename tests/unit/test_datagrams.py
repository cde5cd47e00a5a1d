"""Small frames travel as datagrams, all others through ZeroMQ, and messages arrive once and in order by either way."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from faults import PATIENCE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zfabric.adapters import sockets
from zfabric.adapters.datagrams import FRAME_BYTES, path_of
from zfabric.adapters.sockets import ALERT_SECONDS, DATAGRAMS_IN_A_ROW, Transport
from zfabric.config import Config
from zfabric.protocol import messages as m
from zfabric.protocol.codec import Envelope
from zfabric.runtime.session import new_incarnation


class Pair:
    """A sender and a receiver, and what the latter has received."""

    def __init__(self, directory: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self.directory = str(directory)
        self.mine, self.theirs = (Transport(self.context, self.directory, new_incarnation(), Config()) for _ in range(2))
        self.received: list[int] = []
        self.ways: list[str] = []
        """Which way each frame took: "short" or "long"."""

    def send(self, number: int, size: int = 0) -> None:
        self.theirs.send_envelopes(self.mine.incarnation, envelopes(number, size), 0.0)
        peer = self.theirs.peers[self.mine.incarnation]
        self.ways.append("long" if peer.long_way == peer.link.next_out - 1 else "short")

    def listen(self, frames: int = 1) -> None:
        """Take in that many frames."""
        while frames > 0:
            assert self.mine.poll(PATIENCE)
            frame = self.mine.take()
            if frame is None:
                continue
            frames -= 1
            assert frame[0] == self.theirs.incarnation
            for _, _, message in self.mine.accept(*frame, 0.0):
                self.received.append(message.token)

    def listen_for(self, count: int) -> None:
        """Receive frames until that many messages have arrived."""
        while len(self.received) < count:
            self.listen()

    def acknowledge(self) -> None:
        """Acknowledge to the sender that everything has arrived."""
        self.mine.tick(3600.0)
        link = self.theirs.peers[self.mine.incarnation].link
        while link.acknowledged < link.next_out - 1:
            assert self.theirs.poll(PATIENCE)
            for frame in self.theirs.receive():
                self.theirs.accept(*frame, 0.0)

    def close(self) -> None:
        self.mine.close()
        self.theirs.close()
        self.context.term()


def envelopes(number: int, size: int = 0) -> list[Envelope]:
    return [(b"C", b"L", m.Query(number, "x" * size, ()))]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_small_frame_travels_as_a_datagram_without_a_connection(pair: Pair) -> None:
    for number in range(5):
        pair.send(number)
    pair.listen(5)
    assert (pair.received, pair.ways) == ([0, 1, 2, 3, 4], ["short"] * 5)
    assert pair.theirs.peers[pair.mine.incarnation].socket is None


def test_frames_behind_a_large_one_use_the_socket_until_it_has_arrived(pair: Pair) -> None:
    pair.send(0, FRAME_BYTES)
    pair.send(1)
    pair.listen(2)
    assert (pair.received, pair.ways) == ([0, 1], ["long", "long"])
    pair.send(2)
    pair.listen()
    assert pair.ways[-1] == "long", "nobody has said yet that the large one has come"
    pair.acknowledge()
    pair.send(3)
    pair.listen()
    assert (pair.received, pair.ways[-1]) == ([0, 1, 2, 3], "short")


def test_more_than_a_queue_holds_arrives_in_order(pair: Pair) -> None:
    for number in range(1000):
        pair.send(number)
    pair.listen_for(1000)
    assert pair.received == list(range(1000))
    assert {"short", "long"} == set(pair.ways)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["small", "small", "large", "listen", "acknowledge"]), max_size=60))
def test_frames_of_all_sizes_arrive_once_and_in_order(tmp_path: Path, acts: list[str]) -> None:
    pair = Pair(tmp_path)
    try:
        count = 0
        for act in acts:
            if act == "listen":
                pair.listen_for(count)
            elif act == "acknowledge" and count:
                pair.listen_for(count)
                pair.acknowledge()
            elif act != "acknowledge":
                pair.send(count, FRAME_BYTES if act == "large" else 0)
                count += 1
        pair.listen_for(count)
        assert pair.received == list(range(count))
        assert not pair.mine.readable
    finally:
        pair.close()


def test_endless_datagrams_do_not_starve_the_socket(pair: Pair) -> None:
    other = Transport(pair.context, pair.directory, new_incarnation(), Config())
    try:
        pair.send(0, FRAME_BYTES)
        assert pair.mine.router.poll(PATIENCE * 1000)
        senders = []
        while pair.theirs.incarnation not in senders:
            other.send_envelopes(pair.mine.incarnation, envelopes(1), 0.0)
            assert pair.mine.readable
            senders.append(pair.mine.take()[0])  # type: ignore[index]
        assert len(senders) == DATAGRAMS_IN_A_ROW + 1
    finally:
        other.close()


def test_a_process_without_a_datagram_socket_is_reached_by_the_other(pair: Pair) -> None:
    os.unlink(path_of(pair.directory, pair.mine.incarnation))
    pair.send(0)
    pair.listen()
    assert (pair.received, pair.ways) == ([0], ["long"])


def test_garbage_in_datagrams_is_refused_and_counted(pair: Pair) -> None:
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with raw:
        for garbage in (b"", b"abc", pair.theirs.incarnation, pair.theirs.incarnation + b"\xc1" * 100, os.urandom(FRAME_BYTES + 1000)):
            raw.sendto(garbage, path_of(pair.directory, pair.mine.incarnation))
            assert pair.mine.poll(PATIENCE)
            for frame in pair.mine.receive():
                assert pair.mine.accept(*frame, 0.0) == []
    assert pair.mine.refused == 5
    pair.send(0)
    pair.listen()
    assert pair.received == [0]


def test_a_socket_and_its_name_are_removed_with_the_transport(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    before = os.listdir("/proc/self/fd")
    transport = Transport(context, str(tmp_path), new_incarnation(), Config())
    assert len(list(tmp_path.iterdir())) == 2
    transport.close()
    assert list(tmp_path.iterdir()) == []
    context.term()
    assert len(os.listdir("/proc/self/fd")) <= len(before)


class Polls:
    """Records the timeouts with which a transport polls; nothing comes but what comes at a certain poll."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.timeouts: list[int] = []
        self.comes_at = 0
        self.now = 0.0
        monkeypatch.setattr(sockets, "zmq_poll", self)
        monkeypatch.setattr(sockets, "clock", lambda: self.now)

    def __call__(self, sources: Any, timeout: int) -> list[Any]:
        self.timeouts.append(timeout)
        self.now += ALERT_SECONDS / 10
        return sources[:1] if timeout or len(self.timeouts) == self.comes_at else []


def alert(pair: Pair) -> None:
    pair.theirs.alert(pair.mine.incarnation)
    pair.listen()


def alerted(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Polls:
    """Have a peer that is known alert the receiver; return what it polls from then on."""
    pair.mine.peer(pair.theirs.incarnation)
    pair.send(1)
    pair.listen()
    alert(pair)
    return Polls(monkeypatch)


def test_an_alert_has_its_receiver_look_for_the_frame_after_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.theirs.alert(pair.mine.incarnation)
    assert not pair.mine.poll(0.0), "nobody of that name is known"
    pair.mine.peer(pair.theirs.incarnation)
    for number in (1, 2):
        pair.send(number)
        pair.listen()
        alert(pair)
    assert (pair.received, pair.mine.refused) == ([1, 2], 0)
    polls = Polls(monkeypatch)
    polls.comes_at = 4
    assert pair.mine.poll(0.05)
    assert polls.timeouts == [0, 0, 0, 0]


def test_a_frame_that_does_not_follow_its_alert_is_waited_for_asleep(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    polls = alerted(pair, monkeypatch)
    assert pair.mine.poll(0.05)
    assert set(polls.timeouts[:-1]) == {0}
    assert 10 <= len(polls.timeouts) <= 12
    assert polls.timeouts[-1] == 50
    polls.timeouts.clear()
    assert pair.mine.poll(0.05)
    assert polls.timeouts == [50], "it looks once"


def test_an_alert_does_not_delay_what_does_not_wait(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    polls = alerted(pair, monkeypatch)
    assert not pair.mine.poll(0.0)
    assert polls.timeouts == [0]
