"""The worker machine, driven by hand: a task is begun or taken back, never both, and nothing of what it did is forgotten."""

from __future__ import annotations

import random
from typing import Any

import pytest

from zfabric.config import Config
from zfabric.machines.worker import Item, Worker
from zfabric.protocol import codec
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.ids import object_id
from zfabric.protocol.messages import OK
from zfabric.protocol.trace import read_trace

DAEMON = b"daemon01"
FUNCTION = b"f" * 16


def task(number: int) -> bytes:
    return number.to_bytes(16, "big")


def value(number: int) -> bytes:
    return object_id(task(number))


def row(number: int, *dependencies: bytes) -> m.Row:
    return (task(number), FUNCTION, b"args", dependencies)


class Driven:
    """A worker and the one who hears it."""

    def __init__(self) -> None:
        self.worker = Worker(b"Wworker01", Config())
        self.worker.connect(DAEMON)

    def hear(self, message: m.Message) -> None:
        decoded = codec.decode(codec.encode(0, 0, [(b"W", b"L", message)]))[2][0][2]
        self.worker.step(0.0, b"L" + DAEMON, decoded)
        self.worker.check_invariants()

    def give(self, *numbers: int, inline: bool = False) -> None:
        self.hear(m.Dispatch(tuple(row(number) for number in numbers), (), inline))

    def begin(self) -> int | None:
        item = self.worker.begin()
        return None if item is None else int.from_bytes(item.row[0], "big")

    def finish(self, status: int = OK, outputs: m.Row = (b"v",), extra: tuple[m.Row, m.Row] | None = None) -> Item:
        item = self.worker.stack[-1]
        self.worker.finish(item, status, outputs, extra, 10.0, 0.5)
        return item

    def said(self) -> list[m.Message]:
        effects = self.worker.take_effects(0.0)
        assert all(isinstance(effect, Send) and effect.to == b"L" + DAEMON for effect in effects)
        self.worker.check_invariants()
        return [codec.decode(codec.encode(0, 0, [(b"L", b"W", effect.message)]))[2][0][2] for effect in effects]


@pytest.fixture
def driven() -> Driven:
    return Driven()


def test_tasks_are_begun_in_the_order_in_which_they_came(driven: Driven) -> None:
    driven.give(1, 2)
    driven.give(3)
    order = []
    while (number := driven.begin()) is not None:
        order.append(number)
        driven.finish()
    assert order == [1, 2, 3]


def test_what_differs_from_a_first_attempt_comes_with_the_task_it_is_of(driven: Driven) -> None:
    driven.hear(m.Dispatch((row(1), row(2, value(9))), ((1, 3, (b"nine",), (0, 2)),), False))
    assert driven.worker.begin() == Item(row(1), 0, (), ())
    driven.finish()
    assert driven.worker.begin() == Item(row(2, value(9)), 3, (b"nine",), (0, 2))


def test_completions_are_one_batch_with_durations_and_a_trace(driven: Driven) -> None:
    driven.give(1, 2)
    driven.begin()
    driven.finish(outputs=(b"a",))
    driven.begin()
    driven.finish(outputs=(b"b",), extra=(((value(7),),), (value(8),)))
    assert driven.worker.unreported == 2
    (completed,) = driven.said()
    assert completed.rows == ((task(1), 0, OK, (b"a",)), (task(2), 0, OK, (b"b",)))
    assert completed.extras == ((1, ((value(7),),), (value(8),)),)
    assert completed.durations == ((FUNCTION, 2, 1.0),)
    assert [each[0] for each in read_trace(completed.trace)] == [task(1), task(2)]
    assert driven.said() == []
    assert not driven.worker.has_unsent


def test_take_back_takes_what_was_not_begun_and_never_what_was(driven: Driven) -> None:
    driven.give(1, 2, 3)
    assert driven.begin() == 1
    driven.hear(m.TakeBack((task(1), task(3), task(99))))
    assert driven.said() == [m.TakenBack((task(3),), task(1))]
    driven.finish()
    assert driven.begin() == 2
    driven.finish()
    assert driven.begin() is None


def test_take_back_reports_what_has_ended_first(driven: Driven) -> None:
    driven.give(1, 2)
    driven.begin()
    driven.finish()
    driven.hear(m.TakeBack((task(1), task(2))))
    completed, taken = driven.said()
    assert [each[0] for each in completed.rows] == [task(1)]
    assert taken == m.TakenBack((task(2),), b"")


def test_every_task_is_begun_or_taken_back_and_never_both() -> None:
    for seed in range(200):
        chance, driven = random.Random(seed), Driven()
        begun: list[int] = []
        taken: list[int] = []
        given = 0
        for _ in range(40):
            action = chance.randrange(5)
            if action == 0:
                batch = range(given, given := given + chance.randrange(1, 5))
                driven.give(*batch, inline=bool(driven.worker.stack) and chance.random() < 0.3)
            elif action == 1 and (number := driven.begin()) is not None:
                begun.append(number)
            elif action == 2 and driven.worker.stack:
                driven.finish()
            elif given:
                wanted = chance.sample(range(given), chance.randrange(1, given + 1))
                driven.hear(m.TakeBack(tuple(map(task, wanted))))
            for message in driven.said():
                if type(message) is m.TakenBack:
                    taken += [int.from_bytes(each, "big") for each in message.task_ids]
        while (number := driven.begin()) is not None:
            begun.append(number)
        assert sorted(begun + taken) == list(range(given)), seed


def test_places_that_came_with_tasks_given_back_are_given_up_with_them(driven: Driven) -> None:
    rows = (row(1, value(8)), row(2, value(8), value(9)))
    driven.hear(m.Dispatch(rows, ((0, 0, ((0, 5),), ()), (1, 0, ((0, 5), b"nine"), ())), False))
    assert driven.worker.unread() == ((value(8), 0, 5), (value(8), 0, 5))
    driven.begin()
    assert driven.worker.unread() == ((value(8), 0, 5),)
    driven.hear(m.TakeBack((task(1), task(2))))
    assert driven.worker.given_up == [(value(8), (0, 5))]
    assert driven.worker.unread() == ()


def test_an_interrupt_of_a_queued_task_gives_it_back(driven: Driven) -> None:
    driven.give(1, 2)
    driven.begin()
    driven.hear(m.Interrupt(task(2), 0, "cancelled"))
    assert driven.said() == [m.TakenBack((task(2),), task(1))]
    assert driven.worker.interrupts == {}
    driven.finish()
    assert driven.begin() is None


def test_an_interrupt_of_a_begun_task_is_of_that_attempt_alone(driven: Driven) -> None:
    driven.hear(m.Dispatch((row(1),), ((0, 2, (), ()),), False))
    item = driven.worker.begin()
    assert item is not None
    driven.hear(m.Interrupt(task(1), 1, "cancelled"))
    assert driven.worker.interrupted(item) == ""
    driven.hear(m.Interrupt(task(1), 2, "timeout"))
    assert driven.worker.interrupted(item) == "timeout"
    assert driven.worker.interrupted(item._replace(attempt=3)) == ""
    assert driven.said() == []


def test_an_interrupt_of_what_is_not_here_does_nothing(driven: Driven) -> None:
    driven.hear(m.Interrupt(task(1), 0, "cancelled"))
    assert driven.said() == []
    assert driven.worker.interrupts == {}


def test_a_task_that_waits_gives_back_what_was_not_begun_and_says_first_what_has_ended(driven: Driven) -> None:
    driven.give(1, 2, 3, 4)
    driven.begin()
    driven.finish()
    driven.begin()
    driven.worker.block((value(9),), True)
    completed, blocked = driven.said()
    assert [each[0] for each in completed.rows] == [task(1)]
    assert blocked == m.Blocked(task(2), (value(9),), (task(3), task(4)), True)
    assert driven.begin() is None
    driven.worker.unblock()
    assert driven.said() == [m.Unblocked(task(2))]


def test_what_crosses_the_news_that_a_task_waits_goes_back_at_once_and_what_is_for_on_top_of_it_runs(driven: Driven) -> None:
    driven.give(1)
    driven.begin()
    driven.worker.block((value(9),), True)
    driven.said()
    driven.give(2)
    assert driven.said() == [m.TakenBack((task(2),), task(1))]
    driven.give(9, inline=True)
    assert driven.begin() == 9
    driven.finish()
    assert [item.row[0] for item in driven.worker.stack] == [task(1)]
    assert [type(message) for message in driven.said()] == [m.Completed]


def test_a_new_daemon_hears_of_all_that_runs_waits_and_ended_unheard(driven: Driven) -> None:
    driven.give(1, 2, 3, 4)
    driven.begin()
    driven.finish()
    unheard = driven.said()
    driven.worker.unheard = list(unheard)
    driven.begin()
    driven.worker.block((value(9),), True)
    driven.give(9, inline=True)
    driven.begin()
    driven.finish(outputs=(b"nine",))
    driven.give(10, inline=True)
    running, *rest = driven.worker.running()
    assert running == m.Running(((row(2), 0, True), (row(10), 0, False)))
    completions: list[Any] = [message for message in rest if type(message) is m.Completed]
    assert [each[0] for message in completions for each in message.rows] == [task(1), task(9)]
    assert rest[-1] == m.Blocked(task(2), (value(9),), (), True)
    assert driven.said() == []


def test_functions_are_kept_and_a_stop_stops(driven: Driven) -> None:
    driven.hear(m.Functions(((FUNCTION, "f", b"code", ()),)))
    assert driven.worker.functions[FUNCTION] == (FUNCTION, "f", b"code", ())
    assert not driven.worker.stopping
    driven.hear(m.Stop())
    assert driven.worker.stopping


def test_what_a_worker_does_not_accept_is_counted_and_changes_nothing(driven: Driven) -> None:
    driven.hear(m.Submit((row(1),)))
    assert driven.worker.counts["refused"] == 1
    assert driven.begin() is None
