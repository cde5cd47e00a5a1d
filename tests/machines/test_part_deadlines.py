"""The deadlines of a scheduler's parts: the soonest is found, and those that were taken back or put off are found out by asking."""

from __future__ import annotations

import pytest
from scheduler_alone import Node

from zfabric.machines.local_scheduler.due import DIRECT, LOGS, OWED, PartDeadlines, Timed
from zfabric.protocol.machine import InvariantViolation


class Parts:
    """Two parts that count how often they are asked."""

    def __init__(self) -> None:
        self.deadlines = PartDeadlines()
        self.soonest: dict[int, float | None] = {LOGS: None, OWED: None}
        self.asked: list[int] = []
        self.timed = {part: Timed(lambda part=part: self.ask(part)) for part in self.soonest}  # type: ignore[misc]

    def ask(self, part: int) -> float | None:
        self.asked.append(part)
        return self.soonest[part]

    def set(self, part: int, deadline: float) -> None:
        self.soonest[part] = deadline
        self.deadlines.note(part, deadline)

    def next(self) -> float | None:
        self.asked.clear()
        return self.deadlines.next(self.timed)


def test_only_the_part_with_the_soonest_deadline_is_asked() -> None:
    parts = Parts()
    assert (parts.next(), parts.asked) == (None, [])
    parts.set(LOGS, 5.0)
    parts.set(OWED, 3.0)
    assert (parts.next(), parts.asked) == (3.0, [OWED])


def test_a_deadline_that_has_gone_or_moved_is_found_out() -> None:
    parts = Parts()
    parts.set(LOGS, 5.0)
    parts.set(OWED, 3.0)
    parts.soonest[OWED] = 9.0
    assert (parts.next(), parts.asked) == (5.0, [OWED, LOGS])
    parts.soonest[LOGS] = None
    assert (parts.next(), parts.asked) == (9.0, [LOGS, OWED])
    assert (parts.next(), parts.asked) == (9.0, [OWED])


def test_a_part_may_ask_to_be_asked() -> None:
    parts = Parts()
    parts.set(LOGS, 5.0)
    parts.soonest[OWED] = 7.0
    parts.deadlines.note(OWED)
    assert (parts.next(), parts.asked) == (5.0, [OWED, LOGS])


def test_parts_are_due_in_order_and_one_that_an_earlier_one_makes_due_is_found() -> None:
    parts = Parts()
    parts.set(OWED, 3.0)
    parts.set(LOGS, 2.0)
    assert list(parts.deadlines.passed(2.5)) == [LOGS]
    passed = parts.deadlines.passed(3.0)
    assert next(passed) == LOGS
    parts.deadlines.note(DIRECT, 1.0)
    assert list(passed) == [OWED, DIRECT]


def test_a_deadline_that_a_part_has_not_noted_is_a_mistake() -> None:
    node = Node()
    node.turn()
    node.scheduler.call_results.confirm_at = node.now
    with pytest.raises(InvariantViolation, match="have not noted"):
        node.scheduler.check_invariants()


def test_a_turn_that_ends_with_something_to_decide_is_a_mistake() -> None:
    node = Node()
    node.turn()
    node.scheduler.tables.end_due = True
    with pytest.raises(InvariantViolation, match="things to decide"):
        node.scheduler.check_invariants()
