"""An actor's process on a node that is drained: which calls begin there, and when the actor leaves."""

from __future__ import annotations

from typing import Any

import pytest
from logs_alone import ACTOR, ANN, BOB, DAEMON, HOME, Actor

from zfabric.protocol import messages as m
from zfabric.protocol.messages import OK


class Drained(Actor):
    """An actor without a log, of which ``running`` calls have begun when its node is drained."""

    def __init__(self, running: int, beside: bool = False) -> None:
        super().__init__()
        del self.worker.mailbox.logs[ACTOR]
        self.worker.beside = beside
        self.patience = self.worker.config.quiesce_seconds
        self.call(*range(running))
        assert [self.begin() for _ in range(running)] == [*range(running)]

    def begin(self) -> int | None:
        """Begin the next call."""
        item = self.worker.begin_beside(self.worker.mailbox.queue) if self.worker.beside else self.worker.begin()
        return int.from_bytes(item.row[0], "big") if item is not None else None

    def end(self, number: int) -> None:
        """End a call that runs."""
        found: list[Any] = [*self.worker.stack, *self.worker.running_calls.values()]
        item = next(each for each in found if each.row[0] == number.to_bytes(16, "big"))
        self.worker.finish_call(item, OK, (b"value",), (), 0.0, 0.001)

    def drain(self, attempt: int = 0) -> None:
        """Its node is drained."""
        self.worker.step(0.0, b"L" + DAEMON, m.DrainActor(ACTOR, attempt))

    def may_leave(self, *called: bytes) -> bool:
        return self.worker.may_relocate(called)

    def tick(self, now: float) -> None:
        due = self.worker.next_deadline()
        assert due is not None
        assert due <= now
        self.worker.tick(now)


def test_it_leaves_after_its_running_call_and_begins_none_of_those_that_wait_or_arrive() -> None:
    actor = Drained(1)
    actor.call(1, 2)
    actor.drain()
    actor.drain()
    actor.call(3, caller=BOB)
    assert not actor.may_leave()
    actor.end(0)
    assert actor.begin() is None
    assert not actor.may_leave(), "its outcome has not left"
    assert actor.returned() == [0]
    assert actor.may_leave()
    assert not actor.may_leave(ACTOR), "it has called itself, and that call is on its way"
    assert actor.worker.relocate() == m.ActorDrained(ACTOR, 0)
    assert actor.worker.next_deadline() is None


def test_another_life_is_not_drained() -> None:
    actor = Drained(0)
    actor.drain(attempt=1)
    actor.call(0)
    assert actor.begin() == 0
    assert not actor.may_leave()


def test_calls_of_itself_run_first_since_nobody_would_repeat_them() -> None:
    actor = Drained(1)
    actor.call(1)
    actor.call(2, caller=HOME)
    actor.drain()
    actor.call(3, caller=HOME)
    actor.end(0)
    assert actor.begin() == 2
    actor.end(2)
    actor.sent(m.Returned)
    assert not actor.may_leave(), "a call waits here that runs here"
    assert actor.begin() == 3
    actor.end(3)
    actor.sent(m.Returned)
    assert actor.begin() is None
    assert actor.may_leave()


def test_held_calls_are_cancelled_and_timed_out_like_others() -> None:
    actor = Drained(1)
    actor.call(1, options=(("timeout", 5.0),))
    actor.call(2)
    actor.drain()
    actor.worker.step(0.0, b"C" + ANN, m.StopCall((2).to_bytes(16, "big"), "cancelled"))
    assert actor.returned() == [2]
    actor.tick(5.0)
    assert actor.returned() == [1]


def test_calls_beside_each_other_are_let_through_for_a_while_since_one_may_wait_for_another() -> None:
    actor = Drained(2, beside=True)
    actor.drain()
    actor.call(2)
    assert actor.begin() is None
    actor.tick(actor.patience)
    assert actor.begin() == 2
    actor.tick(2 * actor.patience)
    actor.call(3)
    assert actor.begin() is None, "held again, for twice as long"
    with pytest.raises(AssertionError):
        actor.tick(3.9 * actor.patience)
    actor.tick(4 * actor.patience)
    assert actor.begin() == 3
    actor.tick(5 * actor.patience)
    for number in range(4):
        actor.end(number)
    actor.returned()
    actor.call(4)
    actor.tick(9 * actor.patience)
    assert actor.begin() is None, "none runs that could wait for it"
    assert actor.may_leave()
