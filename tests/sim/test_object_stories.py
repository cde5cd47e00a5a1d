"""The simulator finds changes of an object's place that are not in the table, and tells what came before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.sim.object_stories import LENGTH, watched
from zfabric.machines.local_scheduler.object_places import InlineValues
from zfabric.machines.local_scheduler.records import Object, ObjectRecord
from zfabric.protocol.ids import object_id
from zfabric.protocol.machine import InvariantViolation
from zfabric.protocol.messages import FAILED, OK

INLINE = InlineValues()


@pytest.fixture
def record() -> Iterator[ObjectRecord]:
    with watched():
        yield ObjectRecord(object_id(b"t" * 16, 0), None, None)


def test_a_change_that_is_not_allowed_is_found_with_what_came_before(record: ObjectRecord) -> None:
    record.arrive(b"value", INLINE)
    with pytest.raises(InvariantViolation, match=r"at home, must not change so: arrive: nowhere to inline; fail: inline to failed$"):
        record.fail(FAILED, b"failure", INLINE)


def test_a_write_in_place_is_found_with_the_next_change(record: ObjectRecord) -> None:
    record.status, record.value = OK, b"as the loop over completed tasks does"
    record.lose(INLINE)
    record.status, record.value = OK, b"as nothing may do"
    with pytest.raises(InvariantViolation, match=r"in place: lost to inline$"):
        record.lose(INLINE)


def test_a_story_is_short(record: ObjectRecord) -> None:
    for _ in range(LENGTH):
        record.lose(INLINE)
        record.expect(INLINE)
    record.arrive(b"value", INLINE)
    with pytest.raises(InvariantViolation) as error:
        record.fail(FAILED, b"failure", INLINE)
    assert str(error.value).count("; ") == LENGTH - 1


def test_methods_are_whole_again_behind_a_world() -> None:
    before = {name: getattr(Object, name) for name in ("arrive", "join")}
    with watched():
        assert {name: getattr(Object, name) for name in before} != before
    assert {name: getattr(Object, name) for name in before} == before
