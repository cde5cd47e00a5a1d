"""A link delivers each frame once and in order, whatever is lost, doubled or late in the network."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import zmq
from faults import PATIENCE

from zfabric.adapters.sockets import Transport
from zfabric.config import Config
from zfabric.machines.common.link import GAP, Link
from zfabric.protocol import codec
from zfabric.protocol import messages as m
from zfabric.protocol.codec import Envelope, decode, encode_body
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.pieces import Piece
from zfabric.runtime.session import new_incarnation

REPEAT = 5.0


def numbered(number: int) -> list[Envelope]:
    return [(b"C", b"L", m.TakeBack((number.to_bytes(16, "big"),)))]


def test_frames_arrive_once_and_in_order_through_a_network_that_loses_doubles_and_reorders() -> None:
    chance = random.Random(7)
    ends = [Link(4096, REPEAT), Link(4096, REPEAT)]
    received: list[list[list[Envelope]]] = [[], []]
    on_the_way: list[tuple[int, tuple[int, int, list[Envelope]]]] = []
    now, sent = 0.0, 0
    while sent < 300 or len(received[0]) < 300 or len(received[1]) < 300:
        now += 0.05
        assert now < 10_000
        for index, link in enumerate(ends):
            if sent < 300:
                on_the_way.append((1 - index, (link.send(numbered(sent), now), link.received, numbered(sent))))
            on_the_way += [(1 - index, (sequence, link.received, body)) for sequence, body in link.due(now)]
        sent += 1
        chance.shuffle(on_the_way)
        for _ in range(len(on_the_way) // 2 + 1):
            if on_the_way:
                to, frame = on_the_way.pop()
                fate = chance.random()
                if fate > 0.2:
                    received[to] += ends[to].receive(*frame, now)
                if fate > 0.9:
                    received[to] += ends[to].receive(*frame, now)
    assert received[0] == received[1] == [numbered(number) for number in range(300)]


def test_a_lost_frame_is_requested_and_repeated_at_once() -> None:
    sender, receiver = Link(16, REPEAT), Link(16, REPEAT)
    sender.send(numbered(1), 0.0)
    second = sender.send(numbered(2), 0.0)
    assert receiver.receive(second, 0, numbered(2), 0.1) == []
    asked = receiver.due(0.1)
    assert asked == [(GAP, [])]
    assert sender.receive(GAP, receiver.received, [], 0.2) == []
    repeated = sender.due(0.2)
    assert repeated[0] == (1, numbered(1))
    received = [each for sequence, body in repeated for each in receiver.receive(sequence, 0, body, 0.3)]
    assert received == [numbered(1), numbered(2)]
    assert sender.receive(0, receiver.received, [], 0.4) == []
    assert sender.unacknowledged() == []
    assert sender.next_deadline() is None


def test_messages_in_pieces_arrive_whole_and_in_order_on_a_bad_network() -> None:
    chance = random.Random(11)
    sender, receiver = Link(4096, REPEAT), Link(4096, REPEAT)
    messages: list[list[Envelope]] = [[(b"C", b"L", m.Answer(number, chance.randbytes(10 * number), ""))] for number in range(100)]
    received: list[Envelope] = []
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
                received += [each for batch in receiver.receive(*decode(frame), now) for each in batch]
        for sequence, _ in receiver.due(now):
            sender.receive(sequence, receiver.received, [], now)
        if len(received) >= len(messages):
            break
    assert received == [each for envelopes in messages for each in envelopes]


def test_pieces_that_are_no_message_are_refused_and_the_link_goes_on() -> None:
    sender, receiver = Link(16, REPEAT), Link(16, REPEAT)
    frames = sender.pack([(b"C", b"L", m.Answer(1, "x" * 300, ""))], 0.0, 128)
    *first, last = [decode(frame) for frame in frames]
    for sequence, acknowledged, body in first:
        assert isinstance(body, Piece)
        assert receiver.receive(sequence, acknowledged, Piece([], b"\xc1" * len(body.data), body.left), 0.0) == [[]]
    assert receiver.receive(*last, 0.0) == [[]]
    assert receiver.refused == 1
    assert receiver.receive(*decode(sender.pack(numbered(2), 0.0, 128)[0]), 0.0) == [numbered(2)]


def test_a_transport_sends_no_frame_that_its_peers_socket_refuses(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    config = Config(frame_bytes_max=100_000)  # More than a datagram carries: what is cut goes through ZeroMQ.
    mine, theirs = (Transport(context, str(tmp_path), new_incarnation(), config) for _ in range(2))
    large: list[Envelope] = [(b"C", b"L", m.Answer(1, b"x" * 10_000_000, ""))]
    received: list[Envelope] = []
    try:
        theirs.send_envelopes(mine.incarnation, large, 0.0)
        theirs.send_envelopes(mine.incarnation, numbered(2), 0.0)
        while len(received) < 2:
            assert mine.poll(PATIENCE)
            received += [each for frame in mine.receive() for each in mine.accept(*frame, 0.0)]
        assert received == large + numbered(2)
    finally:
        mine.close()
        theirs.close()
        context.term()


@pytest.mark.parametrize(("token", "text"), [(2**64, "text"), (1, "\udc80"), (1, object())])
def test_a_message_that_no_frame_can_carry_is_refused_and_the_link_goes_on(tmp_path: Path, token: int, text: Any) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    mine, theirs = (Transport(context, str(tmp_path), new_incarnation(), Config()) for _ in range(2))
    received: list[Envelope] = []
    try:
        with pytest.raises((TypeError, ValueError, OverflowError)):
            theirs.send_envelopes(mine.incarnation, [*numbered(1), (b"C", b"L", m.Query(token, text, ())), *numbered(2)], 0.0)
        theirs.send_envelopes(mine.incarnation, numbered(3), 0.0)
        while len(received) < 3:
            assert mine.poll(PATIENCE)
            received += [each for frame in mine.receive() for each in mine.accept(*frame, 0.0)]
        theirs.tick(2 * Config().link_repeat)  # What is repeated can be repeated again, too.
        assert received == [*numbered(1), *numbered(2), *numbered(3)]
    finally:
        mine.close()
        theirs.close()


def test_of_a_message_with_a_row_that_no_frame_can_carry_the_other_rows_arrive(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    mine, theirs = (Transport(context, str(tmp_path), new_incarnation(), Config()) for _ in range(2))
    rows = tuple((number.to_bytes(16, "big"), m.OK, (b"value",)) for number in range(5))
    bad = (*rows[:3], (rows[3][0], m.OK, (b"value", 2**64)), rows[4])
    received: list[Envelope] = []
    try:
        theirs.send_envelopes(mine.incarnation, [(b"L", b"W", m.Completed.of(tuple((row[0], 0, *row[1:]) for row in bad)))], 0.0)
        theirs.send_envelopes(mine.incarnation, numbered(1), 0.0)
        while not received or received[-1] != numbered(1)[0]:
            assert mine.poll(PATIENCE)
            received += [each for frame in mine.receive() for each in mine.accept(*frame, 0.0)]
        outcomes = {row[0]: row[2:] for _, _, message in received[:-1] for row in message.rows}  # type: ignore[union-attr]
        assert {each: outcomes[each] for each in outcomes if each != rows[3][0]} == {row[0]: row[1:] for row in rows if row is not rows[3]}
        assert outcomes[rows[3][0]][0] == m.FAILED
    finally:
        mine.close()
        theirs.close()
        context.term()


def test_unread_frames_are_repeated_with_backoff_and_all_once_somebody_reads() -> None:
    sender, receiver = Link(4096, REPEAT), Link(4096, REPEAT)
    frames = [(sender.send(numbered(number), 0.0), numbered(number)) for number in range(10)]
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


def test_a_frame_that_waits_for_a_full_socket_is_not_repeated(tmp_path: Path) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    nobody = b"nobody00"
    transport = Transport(context, str(tmp_path), b"somebody", Config.of({"high_water_mark": 2, "link_repeat": REPEAT}))
    try:
        while not transport.congested:
            transport.send_envelopes(nobody, numbered(1), 0.0)
        backlog = transport.peers[nobody].backlog
        before = len(backlog)
        for hour in range(1, 10):
            transport.tick(hour * 3600.0)
        assert len(backlog) == before
    finally:
        transport.close()
        context.term()


TASK = b"t" * 16
FAILURE = "Submit was refused: Submit: ids are 20 bytes"


def answered(tmp_path: Path, envelopes: list[Envelope], frame_bytes_max: int = 2**20) -> tuple[list[Envelope], list[Envelope]]:
    """What is delivered of these messages, sent between two readable ones; and the replies to their sender."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    config = Config(frame_bytes_max=frame_bytes_max)
    mine, theirs = (Transport(context, str(tmp_path), new_incarnation(), config) for _ in range(2))
    ends = (mine, theirs)
    received: list[list[Envelope]] = [[], []]
    first, last = (b"L", b"C", m.Cancel((), False, False)), (b"L", b"C", m.Ready())
    try:
        mine.peer(theirs.incarnation)
        for each in ([first], envelopes, [last]):
            theirs.send_envelopes(mine.incarnation, each, 0.0)
        mine.send_envelopes(theirs.incarnation, [last], 0.0)
        while last not in received[0] or last not in received[1]:
            for index, end in enumerate(ends):
                if end.poll(0.01):
                    received[index] += [each for frame in end.receive() for each in end.accept(*frame, 0.0)]
            if last in received[0] and last not in received[1]:
                mine.send_envelopes(theirs.incarnation, [last], 0.0)
        mine.send_envelopes(theirs.incarnation, [first], 0.0)
        while first not in received[1]:  # All answers have come before it.
            assert theirs.poll(PATIENCE)
            received[1] += [each for frame in theirs.receive() for each in theirs.accept(*frame, 0.0)]
        assert not theirs.peer(mine.incarnation).link.unacknowledged()
    finally:
        for end in ends:
            end.close()
        context.term()
    return [each for each in received[0] if each not in (first, last)], [each for each in received[1] if each not in (first, last)]


@pytest.mark.parametrize("frame_bytes_max", [2**20, 128])
def test_a_message_that_its_receiver_refuses_has_outcomes_and_the_link_goes_on(tmp_path: Path, frame_bytes_max: int) -> None:
    bad = m.Submit(((TASK, b"f" * 16, b"a" * 200, (b"no id",)),))
    good = m.Hold((b"o" * 20,))
    delivered, replies = answered(tmp_path, [(b"L", b"C", bad), (b"L", b"C", good)], frame_bytes_max)
    assert delivered == [(b"L", b"C", good)]
    ((to, source, outcome),) = replies
    assert (to, source) == (b"C", b"L")
    ((task_id, status, (failure,)),) = outcome.rows
    assert (task_id, status) == (TASK, m.FAILED)
    assert unpack_failure(failure)[:2] == ("FabricError", FAILURE)


@pytest.mark.parametrize(
    ("bad", "delivered", "replies"),
    [
        (m.Call(TASK, 0, ((TASK, 7, b""),)), [], "Returned"),
        (m.Dispatch(((TASK, b"f" * 16, b"", (b"no id",)),), (), 0, 3), [], "Completed"),
        (m.Query(1, 7, ()), [], "Answer"),  # type: ignore[arg-type] # as from a program of another version
        (m.Put(((b"no id", b"", (), False),)), [], "Refused"),
        (m.SubmittedDirect(b"worker00", ((TASK, b"f" * 16, b"", (b"no id",)),)), [], "Results"),
        (m.Yielded(((TASK, 2, "one", b"", ()), (TASK, 2, 1, b"", ()))), ["Completed"], None),
        (m.Results(((TASK, "OK", ()),)), ["Results"], None),
        (m.Returned(((TASK, "OK", ()),)), ["Returned"], None),
        (m.Objects(((b"o" * 20, "OK", b"", ()),)), ["Objects"], None),
        (m.Completed.of(((TASK, 0, "OK", ()),)), ["Completed"], None),
        (m.Answer(1, 7, 7), ["Answer"], None),  # type: ignore[arg-type] # likewise
        (m.Results((("no id", 0, ()),)), [], None),
        (m.Blocked(b"t", ("no id",), (), False), [], None),  # type: ignore[arg-type] # likewise
    ],
)
def test_a_refused_message_fails_whatever_depends_on_it(tmp_path: Path, bad: m.Message, delivered: list[str], replies: str | None) -> None:
    received, answers = answered(tmp_path, [(b"L", b"C", bad)])
    assert [type(message).__name__ for _, _, message in received] == delivered
    assert [type(message).__name__ for _, _, message in answers] == ([replies] if replies is not None else [])
    for _, _, message in (*received, *answers):
        assert b"was refused" in repr(message).encode()


@pytest.mark.parametrize(
    ("first", "replies"),
    [
        (m.Register(m.PROTOCOL_VERSION, 7, 1, 1, b"", b"", b"", "", ""), [m.Refused]),  # type: ignore[arg-type] # as from another version
        (m.Query(1, 7, ()), []),  # type: ignore[arg-type] # likewise
    ],
)
def test_an_unreadable_registration_is_answered_and_nothing_else(tmp_path: Path, first: m.Message, replies: list[type]) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    mine, theirs = (Transport(context, str(tmp_path), new_incarnation(), Config()) for _ in range(2))
    try:
        theirs.send_envelopes(mine.incarnation, [(b"L", b"C", first)], 0.0)
        assert mine.poll(PATIENCE)
        assert [each for frame in mine.receive() for each in mine.accept(*frame, 0.0)] == []
        assert mine.refused == 1
        assert (theirs.incarnation in mine.peers) == bool(replies)
        received: list[Envelope] = []
        while replies and not received:
            assert theirs.poll(PATIENCE)
            received += [each for frame in theirs.receive() for each in theirs.accept(*frame, 0.0)]
        assert [type(message) for _, _, message in received] == replies
    finally:
        mine.close()
        theirs.close()
        context.term()


def test_an_answer_that_no_frame_can_carry_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MESSAGE_BYTES_MAX", 1000)
    received, _ = answered(tmp_path, [(b"C", b"L", m.Answer(7, "x" * 2000, ""))], 128)
    ((_, _, answer),) = received
    assert answer[:2] == (7, None)
    assert "a message has at most 1000" in answer.error
