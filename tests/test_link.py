"""A link delivers once and in order, whatever is lost, doubled or late on the way."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import zmq
from bad_days import PATIENCE

from zfabric.adapters.sockets import Post
from zfabric.config import Config
from zfabric.machines.parts.link import GAP, Link
from zfabric.protocol import messages as m
from zfabric.protocol.codec import Envelope, decode, encode_body
from zfabric.protocol.pieces import Piece
from zfabric.runtime.connect import new_incarnation

REPEAT = 5.0


def said(number: int) -> list[Envelope]:
    return [(b"C", b"L", m.TakeBack((number.to_bytes(16, "big"),)))]


def test_frames_arrive_once_and_in_order_through_a_network_that_loses_doubles_and_reorders() -> None:
    chance = random.Random(7)
    ends = [Link(4096, REPEAT), Link(4096, REPEAT)]
    heard: list[list[list[Envelope]]] = [[], []]
    on_the_way: list[tuple[int, tuple[int, int, list[Envelope]]]] = []
    now, sent = 0.0, 0
    while sent < 300 or len(heard[0]) < 300 or len(heard[1]) < 300:
        now += 0.05
        assert now < 10_000
        for index, link in enumerate(ends):
            if sent < 300:
                on_the_way.append((1 - index, (link.send(said(sent), now), link.received, said(sent))))
            on_the_way += [(1 - index, (sequence, link.received, body)) for sequence, body in link.due(now)]
        sent += 1
        chance.shuffle(on_the_way)
        for _ in range(len(on_the_way) // 2 + 1):
            if on_the_way:
                to, frame = on_the_way.pop()
                fate = chance.random()
                if fate > 0.2:
                    heard[to] += ends[to].receive(*frame, now)
                if fate > 0.9:
                    heard[to] += ends[to].receive(*frame, now)
    assert heard[0] == heard[1] == [said(number) for number in range(300)]


def test_a_frame_that_was_lost_is_asked_for_and_repeated_without_waiting() -> None:
    sender, receiver = Link(16, REPEAT), Link(16, REPEAT)
    sender.send(said(1), 0.0)
    second = sender.send(said(2), 0.0)
    assert receiver.receive(second, 0, said(2), 0.1) == []
    asked = receiver.due(0.1)
    assert asked == [(GAP, [])]
    assert sender.receive(GAP, receiver.received, [], 0.2) == []
    repeated = sender.due(0.2)
    assert repeated[0] == (1, said(1))
    heard = [each for sequence, body in repeated for each in receiver.receive(sequence, 0, body, 0.3)]
    assert heard == [said(1), said(2)]
    assert sender.receive(0, receiver.received, [], 0.4) == []
    assert sender.unacknowledged() == []
    assert sender.next_deadline() is None


def test_what_comes_in_pieces_arrives_whole_and_in_order_whatever_is_lost_doubled_or_late() -> None:
    chance = random.Random(11)
    sender, receiver = Link(4096, REPEAT), Link(4096, REPEAT)
    messages: list[list[Envelope]] = [[(b"C", b"L", m.Answer(number, chance.randbytes(10 * number), ""))] for number in range(100)]
    heard: list[Envelope] = []
    on_the_way: list[bytes] = []
    now = 0.0
    for number in range(10_000):
        now += 0.05
        if number < len(messages):
            frames = sender.pack(messages[number], now, 128)
            assert max(map(len, frames)) <= 128
            on_the_way += frames
        on_the_way += [encode_body(sequence, 0, body) for sequence, body in sender.due(now)]
        chance.shuffle(on_the_way)
        for _ in range(len(on_the_way) // 2 + 1 if on_the_way else 0):
            frame = on_the_way.pop()
            fate = chance.random()
            for _ in range(0 if fate < 0.2 else 2 if fate > 0.9 else 1):
                heard += [each for batch in receiver.receive(*decode(frame), now) for each in batch]
        for sequence, _ in receiver.due(now):
            sender.receive(sequence, receiver.received, [], now)
        if len(heard) >= len(messages):
            break
    assert heard == [each for envelopes in messages for each in envelopes]


def test_pieces_that_are_no_message_are_refused_and_the_link_goes_on() -> None:
    sender, receiver = Link(16, REPEAT), Link(16, REPEAT)
    frames = sender.pack([(b"C", b"L", m.Answer(1, "x" * 300, ""))], 0.0, 128)
    *first, last = [decode(frame) for frame in frames]
    for sequence, acknowledged, body in first:
        assert isinstance(body, Piece)
        assert receiver.receive(sequence, acknowledged, Piece([], None, b"\xc1" * len(body.data), body.left), 0.0) == [[]]
    assert receiver.receive(*last, 0.0) == [[]]
    assert receiver.refused == 1
    assert receiver.receive(*decode(sender.pack(said(2), 0.0, 128)[0]), 0.0) == [said(2)]


def test_a_post_sends_nothing_that_the_socket_of_its_peer_refuses(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    config = Config(frame_bytes_max=100_000)  # More than a datagram carries: what is cut goes through ZeroMQ.
    mine, theirs = (Post(context, str(tmp_path), new_incarnation(), config) for _ in range(2))
    large: list[Envelope] = [(b"C", b"L", m.Answer(1, b"x" * 10_000_000, ""))]
    heard: list[Envelope] = []
    try:
        theirs.send_envelopes(mine.incarnation, large, 0.0)
        theirs.send_envelopes(mine.incarnation, said(2), 0.0)
        while len(heard) < 2:
            assert mine.poll(PATIENCE)
            heard += [each for frame in mine.receive() for each in mine.accept(*frame, 0.0)]
        assert heard == large + said(2)
    finally:
        mine.close()
        theirs.close()
        context.term()


@pytest.mark.parametrize(("token", "text"), [(2**64, "text"), (1, "\udc80"), (1, object())])
def test_what_no_frame_can_carry_is_refused_and_the_link_goes_on(tmp_path: Path, token: int, text: Any) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    mine, theirs = (Post(context, str(tmp_path), new_incarnation(), Config()) for _ in range(2))
    heard: list[Envelope] = []
    try:
        with pytest.raises((TypeError, ValueError, OverflowError)):
            theirs.send_envelopes(mine.incarnation, [*said(1), (b"C", b"L", m.Query(token, text, ())), *said(2)], 0.0)
        theirs.send_envelopes(mine.incarnation, said(3), 0.0)
        while len(heard) < 3:
            assert mine.poll(PATIENCE)
            heard += [each for frame in mine.receive() for each in mine.accept(*frame, 0.0)]
        theirs.tick(2 * Config().link_repeat)  # What is repeated can be said again, too.
        assert heard == [*said(1), *said(2), *said(3)]
    finally:
        mine.close()
        theirs.close()


def test_what_nobody_reads_is_repeated_less_and_less_and_all_of_it_once_somebody_does() -> None:
    sender, receiver = Link(4096, REPEAT), Link(4096, REPEAT)
    frames = [(sender.send(said(number), 0.0), said(number)) for number in range(10)]
    repeated = []
    while len(repeated) < 8:
        due = sender.next_deadline()
        assert due is not None
        repeated.append(len(sender.due(due)))
    assert repeated[0] == 10
    assert repeated[-4:] == [1, 1, 1, 1]
    now = due + 1.0
    receiver.receive(frames[0][0], 0, frames[0][1], now)  # It reads again, and all but the first was lost.
    receiver.receive(frames[0][0], 0, frames[0][1], now)
    for _, _ in receiver.due(now):
        sender.receive(0, receiver.received, [], now)
    assert sender.due(now + REPEAT) == frames[1:]


def test_what_waits_for_room_in_a_socket_is_not_repeated_behind_itself(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    nobody = b"nobody00"
    post = Post(context, str(tmp_path), b"somebody", Config.of({"high_water_mark": 2, "link_repeat": REPEAT}))
    try:
        while not post.congested:
            post.send_envelopes(nobody, said(1), 0.0)
        backlog = post.peers[nobody].backlog
        before = len(backlog)
        for hour in range(1, 10):
            post.tick(hour * 3600.0)
        assert len(backlog) == before
    finally:
        post.close()
        context.term()
