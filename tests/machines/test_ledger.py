"""What other nodes retain for this one: batches, ends, barriers, and what a restart or a death leaves of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ledger_updates import holding, released
from nodes_alone import HOME_A, Nodes
from scheduler_alone import DRIVER, OWN, ref, row, task_id

from tests.sim.variants import applied
from zfabric.config import ROWS_MAX
from zfabric.machines.local_scheduler.ledger import Ledger
from zfabric.machines.local_scheduler.records import HoldAtHome, ObjectRecord
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, first_attempt
from zfabric.protocol.messages import ENTRUSTED, HOLD, ROW

A, C = b"a", b"c"


class Books:
    """A ledger of two other nodes, and what it has sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Any]] = []
        self.ledger = Ledger({A, C}, lambda node, message: self.sent.append((node, message)))

    def turn(self) -> dict[bytes, list[Any]]:
        """What each node receives at the end of a turn."""
        return {node: messages for node, messages in self.ledger.take().items() if messages}


@pytest.fixture
def books() -> Books:
    return Books()


def test_a_node_is_sent_the_new_and_the_ended_entries_of_a_turn_in_one_message(books: Books) -> None:
    books.ledger.add(A, HOLD, b"1")
    books.ledger.acknowledged(A, books.turn()[A][0].number)
    for kind, identifier in ((HOLD, b"2"), (ROW, b"1"), (HOLD, b"3")):
        books.ledger.add(A, kind, identifier)
    books.ledger.end(A, ENTRUSTED, b"4")
    assert books.turn() == {A: [m.UpdateLedger(2, ((HOLD, (b"2", b"3")), (ROW, (b"1",))), ((ENTRUSTED, (b"4",)),))]}


def test_only_holds_are_acknowledged(books: Books) -> None:
    books.ledger.add(A, ROW, b"1")
    assert books.turn() == {A: [m.UpdateLedger(0, ((ROW, (b"1",)),))]}
    assert books.ledger.is_clear


def test_what_begins_and_ends_in_a_turn_is_not_sent(books: Books) -> None:
    books.ledger.add(A, HOLD, b"1")
    books.ledger.end(A, HOLD, b"1")
    assert books.turn() == {}
    assert books.ledger.is_clear
    books.ledger.end(A, ROW, b"2")
    books.ledger.add(A, ROW, b"2")
    assert books.turn() == {}


def test_the_end_of_a_hold_waits_for_the_holds_of_its_turn_and_other_ends_for_nothing(books: Books) -> None:
    books.ledger.end(C, HOLD, b"outer")
    books.ledger.end(C, ROW, b"row")
    books.ledger.add(A, HOLD, b"inner")
    found = books.turn()
    assert found == {A: [holding(1, (b"inner",))], C: [m.UpdateLedger(0, (), ((ROW, (b"row",)),))]}
    assert books.turn() == {}
    books.ledger.acknowledged(A, 1)
    assert books.turn() == {C: [released((b"outer",))]}


def test_a_hold_that_returns_before_its_end_is_sent_goes_on(books: Books) -> None:
    books.ledger.add(A, HOLD, b"other")
    books.ledger.end(C, HOLD, b"1")
    books.turn()
    books.ledger.add(C, HOLD, b"1")
    books.ledger.acknowledged(A, 1)
    assert books.turn() == {}


def test_many_entries_are_several_messages_and_ends_follow_all_new_ones(books: Books) -> None:
    for number in range(ROWS_MAX + 1):
        books.ledger.add(A, ROW, b"%d" % number)
    books.ledger.end(A, HOLD, b"1")
    first, last = books.turn()[A]
    assert [len(first.added[0][1]), len(last.added[0][1])] == [ROWS_MAX, 1]
    assert (first.ended, last.ended) == ((), ((HOLD, (b"1",)),))


def test_a_restart_drops_what_was_under_way_and_whatever_waited_waits_for_what_is_entered_again(books: Books) -> None:
    record = ObjectRecord(b"1", None, b"process", hold=HoldAtHome(A))
    books.ledger.hold(record)
    books.turn()
    books.ledger.end(C, HOLD, b"2")
    books.turn()
    books.ledger.holds.send(C, "behind")  # type: ignore[arg-type]
    books.ledger.drop(A)
    assert books.ledger.enter_again(record)
    books.ledger.send_added(A)
    books.ledger.renew()
    books.ledger.acknowledged(A, 1)
    assert (books.turn(), books.sent) == ({}, [(A, holding(2, (b"1",)))])
    books.ledger.acknowledged(A, 2)
    assert (books.turn(), books.sent[1:]) == ({C: [released((b"2",))]}, [(C, "behind")])


def test_what_was_to_end_at_a_node_is_over_with_its_daemon(books: Books) -> None:
    books.ledger.end(A, HOLD, b"1")
    books.ledger.end(A, ENTRUSTED, b"2")
    books.ledger.drop(A)
    assert books.turn() == {}


def test_a_row_is_retained_for_a_node_that_repeats_it_and_released_when_its_next_daemon_does_not() -> None:
    """It is not released before the node has registered: the row would be gone when the repetition comes."""
    home = Nodes()
    home.submit(row(1))
    (worker,) = home.workers()
    home.complete(worker, 1, first_attempt(0, 2), m.OK, b"value")
    home.hear(HOME_A, m.UpdateLedger(0, ((ROW, (ref(1),)),)))
    home.send(CLIENT + DRIVER, m.Release((ref(1),)))
    for daemon, repeated in ((b"daemon.2", ((ROW, (ref(1),)),)), (b"daemon.3", ())):
        home.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, daemon, OWN))
        assert task_id(1) in home.scheduler.tables.tasks
        home.hear(HOME_A, m.UpdateLedger(0, repeated), m.Ready())
        assert (task_id(1) in home.scheduler.tables.tasks) is bool(repeated)


@pytest.mark.parametrize(
    ("variant", "scripted"),
    [
        ("lender-lets-go-first", test_the_end_of_a_hold_waits_for_the_holds_of_its_turn_and_other_ends_for_nothing),
        ("wait-ends-with-daemon", test_a_restart_drops_what_was_under_way_and_whatever_waited_waits_for_what_is_entered_again),
    ],
)
def test_a_variant_is_caught(variant: str, scripted: Callable[[Books], None]) -> None:
    with applied(variant), pytest.raises(AssertionError):
        scripted(Books())


@pytest.mark.parametrize("variant", ["recovered-without-peers", "missing-entries-stay"])
def test_a_variant_of_the_snapshot_is_caught(variant: str) -> None:
    with applied(variant), pytest.raises(AssertionError):
        test_a_row_is_retained_for_a_node_that_repeats_it_and_released_when_its_next_daemon_does_not()
