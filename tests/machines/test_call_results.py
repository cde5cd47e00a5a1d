"""Results of calls in the arena: what the scheduler sends to the caller, the actor and the store."""

from __future__ import annotations

import pytest
from scheduler_alone import ACTOR_CLASS, DRIVER, OWN, Node, task_id

from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import CLIENT, OBJECT_STORE, WORKER, call_value
from zfabric.protocol.messages import FAILED, OK

KIND = ACTOR_CLASS
CALL = task_id(5)
VALUE = call_value(CALL, 0)
PLACE = (4096, 100_000)


@pytest.fixture
def node() -> Node:
    """A node whose driver has called an actor."""
    found = Node()
    found.driver()
    found.send(CLIENT + DRIVER, m.Export(((KIND, "k", b"payload", (("actor", b"blueprint"),)),)))
    found.submit((task_id(0), KIND, b"", ()))
    found.workers()
    return found


def ended(node: Node, place: tuple[int, int] = PLACE) -> None:
    """The actor reports the outcome of the call."""
    ((actor, _, _),) = node.dispatched()
    node.complete(actor, 0)
    node.send(WORKER + actor, m.CallOutcomes(((CALL, DRIVER, OK, (place,), ()),)))


def test_the_caller_gets_the_place_unasked_and_pinned(node: Node) -> None:
    ended(node)
    assert node.take(m.Returned)[-1][1].rows == ((CALL, OK, (PLACE,)),)
    assert [row for _, message in node.take(m.Locate) for row in message.rows] == [(VALUE, DRIVER)]
    node.send(OBJECT_STORE + OWN, m.Located(((VALUE, DRIVER, *PLACE),)))
    assert node.take(m.Objects)[-1][1].rows == ((VALUE, OK, PLACE, ()),)
    assert node.scheduler.tables.store.waiting == {}


@pytest.mark.parametrize("why", ["large", "little room"])
def test_it_has_to_ask_for_what_is_large_or_if_there_is_little_room(node: Node, why: str) -> None:
    """A pin keeps a value from being spilled."""
    if why == "little room":
        node.send(OBJECT_STORE + OWN, m.StoreRoom(1000))
    ended(node, (4096, 10_000_000) if why == "large" else PLACE)
    assert node.take(m.Returned)[-1][1].rows == ((CALL, OK, (None,)),)
    assert node.take(m.Locate) == []
    node.send(CLIENT + DRIVER, m.Fetch((VALUE,)))
    assert [row for _, message in node.take(m.Locate) for row in message.rows] == [(VALUE, DRIVER)]


def test_a_caller_that_was_promised_a_place_is_told_of_a_value_that_is_lost(node: Node) -> None:
    """It does not ask a second time."""
    ended(node)
    node.send(OBJECT_STORE + OWN, m.ObjectsLost(((VALUE, "missing"),)))
    (row,) = node.take(m.Objects)[-1][1].rows
    assert row[:2] == (VALUE, FAILED)
    assert unpack_failure(row[2])[0] == "ObjectLostError"


def test_recorded_outcomes_are_confirmed_together_once_the_store_has_their_values(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then, only the actor could report them to a restarted daemon."""
    asked: list[int] = []
    answer = node.answer
    monkeypatch.setattr(node, "answer", lambda message: asked.append(message.token) if type(message) is m.Query else answer(message))
    ended(node)
    node.send(WORKER + next(iter(node.pids)), m.CallOutcomes(((task_id(6), DRIVER, OK, ((4096 + 128_000, 100_000),), ()),)))
    assert node.take(m.OutcomesRecorded) == []
    assert asked == []
    assert node.confirm() == []
    node.send(OBJECT_STORE + OWN, m.Answer(asked.pop(), b"", ""))
    ((_, confirmed),) = node.take(m.OutcomesRecorded)
    assert confirmed.call_ids == (CALL, task_id(6))
    assert node.confirm() == []
    assert asked == []
