"""Messages that other nodes acknowledge: what waits for them, what is retained, and what a restart or a death drops."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nodes_alone import HOME_A, HOME_C, SELF, Nodes
from scheduler_alone import DRIVER, JOB

from tests.sim.variants import applied
from zfabric.machines.local_scheduler.channel import PeerChannel, PeerOutbox
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT

A, B, C = b"a", b"b", b"c"


class Peers:
    """Three other nodes, and what a channel has sent them."""

    def __init__(self, ordered: bool = False) -> None:
        self.living = {A, B, C}
        self.sent: list[tuple[bytes, Any]] = []
        self.channel = PeerChannel(self.living, lambda node, message: self.sent.append((node, message)), count(1), ordered)


def test_a_message_is_sent_once_all_numbered_ones_before_it_are_acknowledged() -> None:
    peers = Peers()
    first, second = peers.channel.number_for(A), peers.channel.number_for(B)
    peers.channel.send(C, "behind both")  # type: ignore[arg-type]
    third = peers.channel.number_for(C)
    peers.channel.acknowledged(B, second)
    assert peers.sent == []
    peers.channel.acknowledged(A, first)
    assert peers.sent == [(C, "behind both")], "the third is later"
    assert not peers.channel.is_clear
    peers.channel.acknowledged(C, third)
    assert peers.channel.is_clear


def test_an_acknowledgement_counts_only_if_its_receiver_sends_it() -> None:
    peers = Peers()
    number = peers.channel.number_for(A)
    peers.channel.send(B, "behind")  # type: ignore[arg-type]
    peers.channel.acknowledged(C, number)
    peers.channel.acknowledged(A, number + 1)
    assert peers.sent == []
    peers.channel.acknowledged(A, number)
    assert peers.sent == [(B, "behind")]


def test_in_an_ordered_channel_a_message_waits_for_other_nodes_only() -> None:
    peers = Peers(ordered=True)
    number = peers.channel.number_for(A)
    peers.channel.send(A, "at once")  # type: ignore[arg-type]
    peers.channel.send(B, "behind")  # type: ignore[arg-type]
    peers.channel.send(A, "in order")  # type: ignore[arg-type]
    assert peers.sent == [(A, "at once")]
    peers.channel.acknowledged(A, number)
    assert peers.sent == [(A, "at once"), (B, "behind"), (A, "in order")]


def test_what_waits_for_a_restarted_node_waits_for_what_is_sent_to_it_again() -> None:
    peers = Peers()
    before = peers.channel.number_for(A)
    barrier = peers.channel.barrier
    peers.channel.send(B, "behind")  # type: ignore[arg-type]
    peers.channel.send(A, "void")  # type: ignore[arg-type]
    peers.channel.drop(A)
    assert peers.sent == [], "it is not known yet what is sent again"
    assert peers.channel.has_closed(barrier)
    again = peers.channel.number_for(A)
    peers.channel.renew()
    peers.channel.acknowledged(A, before)
    assert peers.sent == []
    peers.channel.acknowledged(A, again)
    assert peers.sent == [(B, "behind")]


def test_a_death_closes_what_waited_for_it_alone_and_nothing_goes_to_the_dead() -> None:
    peers = Peers()
    peers.channel.number_for(A)
    peers.channel.send(B, "behind")  # type: ignore[arg-type]
    peers.channel.send(C, "to another that dies")  # type: ignore[arg-type]
    peers.living.discard(C)
    peers.channel.drop(A)
    peers.channel.renew()
    assert peers.sent == [(B, "behind")]
    assert peers.channel.is_clear


NODES = st.sampled_from([A, B, C])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("number"), NODES),
        st.tuples(st.just("send"), NODES),
        st.tuples(st.just("acknowledge"), NODES),
        st.tuples(st.just("restart"), NODES),
    ),
    max_size=40,
)


@given(STEPS, st.booleans())
def test_whatever_happens_messages_leave_in_order_and_behind_all_that_they_wait_for(steps: list[tuple[str, bytes]], ordered: bool) -> None:
    """Each node acknowledges in the order in which it receives, as over a link."""
    peers, channel = (found := Peers(ordered)), found.channel
    unacknowledged: dict[int, bytes] = {}
    needs: dict[int, set[int]] = {}
    """What each message that was given to the channel, and not sent, has to wait for."""
    receivers: list[bytes] = []
    seen = 0
    for name, node in steps:
        if name == "number":
            unacknowledged[channel.number_for(node)] = node
        elif name == "send":
            needs[len(receivers)] = {number for number, to in unacknowledged.items() if not ordered or to != node}
            receivers.append(node)
            channel.send(node, len(receivers) - 1)  # type: ignore[arg-type]
        elif name == "acknowledge":
            number = next((number for number, to in unacknowledged.items() if to == node), None)
            if number is not None:
                del unacknowledged[number]
                channel.acknowledged(node, number)
        else:
            unacknowledged = {number: to for number, to in unacknowledged.items() if to != node}
            channel.drop(node)
            unacknowledged[channel.number_for(node)] = node
            sent = {index for _, index in peers.sent}
            needs = {index: set(unacknowledged) for index in needs if index not in sent and receivers[index] != node}
            channel.renew()
        for to, index in peers.sent[seen:]:
            assert receivers[index] == to
            assert not needs.pop(index) & unacknowledged.keys()
        seen = len(peers.sent)
    order = [index for _, index in peers.sent]
    assert order == sorted(order)
    for number, node in list(unacknowledged.items()):
        channel.acknowledged(node, number)
    assert channel.is_clear
    assert {index for _, index in peers.sent[seen:]} == needs.keys(), "each is sent in the end, unless its receiver was restarted"


# -- what is retained --


def outcomes(number: int, caller: bytes) -> m.CallsEnded:
    """The outcome of a call of this caller."""
    return m.CallsEnded(number, ((b"call", caller, m.OK, (b"value",), ()),), ())


def ends(number: int) -> m.RelayedYields:
    """A message that is of no caller."""
    return m.RelayedYields(number, (), ())


def numbers(retained: list[Any]) -> list[int]:
    return [message.number for message, *_ in retained]


def test_a_message_is_retained_with_its_pins_until_it_is_acknowledged() -> None:
    outbox = PeerOutbox()
    for pins in ((b"x",), (), (b"y",)):
        outbox.retain(ends(outbox.next), pins)
    received = outbox.acknowledged(2)
    assert numbers(received) == [1, 2]
    assert [pins for _, pins, *_ in received] == [(b"x",), ()]
    assert [each.number for each in outbox] == [3]
    assert outbox.acknowledged(2) == []
    assert numbers(outbox.take_all()) == [3]
    assert outbox.next == 4


def test_outcomes_are_retained_until_their_caller_has_them_too() -> None:
    outbox = PeerOutbox()
    for caller in (A, B, b"", A):
        outbox.retain(outcomes(outbox.next, caller) if caller else ends(outbox.next))
    assert numbers(outbox.acknowledged(4, ((A, 1),))) == [1, 2, 3], "what else its node has is over"
    assert numbers(outbox.acknowledged(3)) == []
    assert numbers(outbox.acknowledged(4, ((A, 2),))) == []
    assert numbers(outbox.acknowledged(4)) == [4]


def test_what_a_caller_lacks_is_repeated_before_later_messages() -> None:
    outbox = PeerOutbox()
    for caller in (A, b"", A, b""):
        outbox.retain(outcomes(outbox.next, caller) if caller else ends(outbox.next))
    outbox.acknowledged(3, ((A, 0),))
    assert [each.number for each in outbox] == [1, 3, 4]


@pytest.mark.parametrize(("acknowledged", "free"), [(0, 0), (1, 1), (2, 2)])
def test_only_an_acknowledged_number_is_free(acknowledged: int, free: int) -> None:
    outbox = PeerOutbox()
    outbox.retain(ends(1))
    outbox.retain(ends(2))
    outbox.acknowledged(acknowledged)
    assert outbox.free == free
    if free:
        outbox.retain_first(ends(free), (b"x",))
        assert [each.number for each in outbox] == list(range(free, 3))


# -- requests --


def test_a_request_is_repeated_to_the_next_daemon_and_not_to_others() -> None:
    node = Nodes()
    group = JOB + bytes(8)
    node.hear(HOME_A, m.Query(9, "create group", (group, ((("CPU", 1),),), "PACK", "", "", False)))
    node.send(CLIENT + DRIVER, m.Query(5, "remove group", (group, HOME_C)))
    (asked,) = [each for each in node.told(HOME_C) if type(each) is m.Query]
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon.2", SELF))
    assert asked not in node.told(HOME_C) + node.told(HOME_A)
    node.hear(HOME_C, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon.2", m.ANY_DAEMON))
    found = node.told(HOME_C)
    assert found.count(asked) == 1
    assert found.index(asked) > found.index(m.Ready()), "it is new to what the question is about until then"
    node.hear(HOME_C, m.Answer(asked.token, None, ""))
    assert m.Answer(5, None, "") in [message for to, message in node.sent if to == CLIENT + DRIVER]
    node.hear(HOME_C, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon.3", m.ANY_DAEMON))
    assert asked not in node.told(HOME_C)


@pytest.mark.parametrize(
    ("variant", "scripted"),
    [
        ("lender-lets-go-first", test_a_message_is_sent_once_all_numbered_ones_before_it_are_acknowledged),
        ("acknowledged-before-entrusted", test_in_an_ordered_channel_a_message_waits_for_other_nodes_only),
        ("wait-ends-with-daemon", test_what_waits_for_a_restarted_node_waits_for_what_is_sent_to_it_again),
        ("outcomes-lost-on-the-way", test_outcomes_are_retained_until_their_caller_has_them_too),
        ("requests-not-repeated", test_a_request_is_repeated_to_the_next_daemon_and_not_to_others),
    ],
)
def test_a_variant_is_caught(variant: str, scripted: Callable[[], None]) -> None:
    with applied(variant), pytest.raises(AssertionError):
        scripted()
