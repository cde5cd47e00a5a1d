"""The record of an object: where its value is, where its home is, who needs it."""

from __future__ import annotations

import itertools

import pytest

from zfabric.machines.local_scheduler.object_places import CHANGES, Elsewhere, InlineValues, ObjectPlace, Stored
from zfabric.machines.local_scheduler.records import DURABLE, NO_HOME, HoldAtHome, ObjectRecord
from zfabric.protocol.ids import object_id
from zfabric.protocol.messages import ERROR

ID = object_id(b"t" * 16, 0)
HOME, HEIR, OTHER = b"home----", b"heir----", b"other---"
PROCESS, READER = b"process-", b"reader--"


@pytest.fixture
def inline() -> InlineValues:
    return InlineValues()


def borrowed(home: bytes = HOME) -> ObjectRecord:
    return ObjectRecord(ID, None, None, hold=HoldAtHome(home))


WAYS: dict[str, tuple[tuple[str, tuple[object, ...]], ...]] = {
    "nowhere": (),
    "asked": (("ask", ()),),
    "inline": (("arrive", (b"value",)),),
    "stored": (("arrive", (Stored(9),)),),
    "elsewhere": (("arrive", (Elsewhere(9, OTHER),)),),
    "failed": (("fail", (ERROR, b"error")),),
    "lost": (("arrive", (b"value",)), ("lose", ())),
}
"""How an object comes to each place: methods, with their arguments."""


def at(place: ObjectPlace, inline: InlineValues) -> ObjectRecord:
    """An object in a place."""
    record = borrowed() if place is ObjectPlace.ASKED else ObjectRecord(ID, None, None)
    for method, arguments in WAYS[place.value]:
        getattr(record, method)(*arguments, *(() if method == "ask" else (inline,)))
    return record


@pytest.mark.parametrize("place", ObjectPlace)
def test_an_object_comes_to_each_place(place: ObjectPlace, inline: InlineValues) -> None:
    record = at(place, inline)
    assert record.place is place
    assert record.is_lost == (place is ObjectPlace.LOST)
    assert record.is_here == (place in (ObjectPlace.INLINE, ObjectPlace.STORED, ObjectPlace.ELSEWHERE))
    assert inline.total == (len(record.value) if isinstance(record.value, bytes) else 0)


def test_an_error_that_is_dropped_leaves_an_error_without_text(inline: InlineValues) -> None:
    record = at(ObjectPlace.FAILED, inline)
    record.lose(inline)
    assert (record.place, record.status, record.value, inline.total) == (ObjectPlace.FAILED, ERROR, None, 0)


def test_a_value_that_is_awaited_again_is_to_be_requested_again(inline: InlineValues) -> None:
    record = at(ObjectPlace.ASKED, inline)
    assert record.hold is not None
    assert record.hold.asked == HOME
    record.expect(inline)
    assert record.place is ObjectPlace.NOWHERE


# -- the home --


def test_an_heir_gets_the_holds_and_the_value_that_its_predecessor_had_here(inline: InlineValues) -> None:
    record = borrowed()
    for holder in (HOME, PROCESS):
        record.add_holder(holder)
    record.arrive(Stored(9), inline)
    record.retain_row()
    record.move_home(HEIR)
    assert record.hold is not None
    assert (record.home, record.hold.former) == (HEIR, HOME)
    assert record.all_holders == {HEIR, PROCESS}
    assert (record.hold.registered, record.hold.row_retained) == (True, True)


def test_an_heir_is_no_holder_of_a_value_that_is_not_here() -> None:
    record = borrowed()
    record.add_holder(HOME)
    record.move_home(HEIR)
    assert record.hold is not None
    assert (record.all_holders, record.hold.registered) == (frozenset(), False)


def test_the_home_of_an_object_may_become_this_node(inline: InlineValues) -> None:
    record = borrowed()
    record.add_holder(PROCESS)
    record.arrive(b"value", inline)
    record.become_home(DURABLE)
    assert (record.home, record.hold, record.durable) == (b"", None, DURABLE)
    assert (record.place, record.all_holders) == (ObjectPlace.INLINE, {PROCESS})


def test_the_search_for_a_home_registers_this_node_and_asks_for_the_value(inline: InlineValues) -> None:
    record = borrowed(NO_HOME)
    assert record.place is ObjectPlace.ASKED
    hold = record.find_home(HOME)
    assert (record.home, hold.registered, hold.former) == (HOME, True, b"")


def test_a_node_registers_and_retains_a_row_once_until_it_gives_that_back() -> None:
    hold = HoldAtHome(HOME)
    assert [hold.register(), hold.register(), hold.give_back(), hold.give_back(), hold.register()] == [True, False, True, False, True]
    assert [hold.retain_row(), hold.retain_row()] == [True, False]


def test_the_hold_of_the_home_does_not_count_as_need() -> None:
    record = borrowed()
    record.add_holder(HOME)
    assert not record.is_needed
    record.add_holder(PROCESS)
    assert record.is_needed


# -- two records of one object --


@pytest.mark.parametrize(("mine", "other"), list(itertools.product(ObjectPlace, ObjectPlace)))
def test_a_record_takes_an_outcome_from_another_one_if_it_has_none(mine: ObjectPlace, other: ObjectPlace, inline: InlineValues) -> None:
    record, homeless = at(mine, inline), at(other, inline)
    without = (ObjectPlace.NOWHERE, ObjectPlace.ASKED, ObjectPlace.LOST)
    is_taken = mine in without and other not in without
    assert record.join(homeless, inline) == is_taken
    assert record.place is (other if is_taken else mine)
    assert inline.total == (len(record.value) if isinstance(record.value, bytes) else 0)


def test_a_record_takes_over_all_users_of_another_one_which_is_never_freed(inline: InlineValues) -> None:
    record, homeless = ObjectRecord(ID, None, PROCESS), borrowed(NO_HOME)
    homeless.add_holder(READER)
    homeless.pin()
    homeless.retain_row()
    homeless.add_fetchers(READER)
    homeless.contain((ID,))
    record.join(homeless, inline)
    assert (record.all_holders, record.pins, record.named, record.take_fetchers()) == ({PROCESS, READER}, 1, 1, [READER])
    assert record.contained == (ID,)
    assert (homeless.holders, homeless.fetchers, homeless.pins) == (None, None, 1)


# -- users --


def test_holders_are_none_one_or_several() -> None:
    record = ObjectRecord(ID, None, None)
    for process in (PROCESS, PROCESS, READER):
        record.add_holder(process)
    assert record.holders == {PROCESS, READER}
    for process in (PROCESS, PROCESS, READER):
        record.drop_holder(process)
    assert record.holders is None


def test_requests_are_taken_once_and_sorted() -> None:
    record = ObjectRecord(ID, None, None)
    record.add_fetchers()
    assert record.fetchers is None
    record.add_fetchers(READER, PROCESS)
    record.drop_fetcher(OTHER)
    assert record.take_fetchers() == sorted((READER, PROCESS))
    assert record.take_fetchers() == []


def test_every_change_in_the_table_is_a_method_of_objects() -> None:
    assert all(callable(getattr(ObjectRecord, name)) for name in CHANGES)
    assert all(place in ObjectPlace and places for changes in CHANGES.values() for place, places in changes.items())
