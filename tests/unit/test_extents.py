"""Ranges, free space and grants against models made of plain sets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zfabric.config import MiB
from zfabric.machines.client.grants import Grants
from zfabric.machines.common.extents import ALIGNMENT, HEADER_BYTES, PIECE, FreeSpace, Ranges, data_start, footprint, round_up
from zfabric.machines.object_store.claims import Claims
from zfabric.protocol import messages as m
from zfabric.protocol.machine import InvariantViolation

SLOTS = 64


def runs(slots: set[int]) -> list[tuple[int, int]]:
    """The maximal runs in a set of integers, as (start, size)."""
    found: list[tuple[int, int]] = []
    for slot in sorted(slots):
        if found and sum(found[-1]) == slot:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((slot, 1))
    return found


@given(st.lists(st.tuples(st.booleans(), st.integers(0, SLOTS - 1), st.integers(1, 12)), max_size=60))
def test_ranges_agree_with_a_set_of_slots(operations: list[tuple[bool, int, int]]) -> None:
    ranges, model = Ranges(), set[int]()
    for adding, start, size in operations:
        span = set(range(start, start + size))
        if adding:
            if span & model:
                with pytest.raises(InvariantViolation):
                    ranges.add(start, size)
                return
            ranges.add(start, size)
            model |= span
        elif span <= model:
            ranges.remove(start, size)
            model -= span
        else:
            assert ranges.around(start, size) is None
            with pytest.raises(InvariantViolation):
                ranges.remove(start, size)
        assert list(ranges) == runs(model)
        assert ranges.total == len(model)
        for wanted in (1, 3, 9):
            fitting = [(length, begin) for begin, length in runs(model) if length >= wanted]
            found = ranges.smallest(wanted)
            assert found == ((min(fitting)[1], min(fitting)[0]) if fitting else None)
            assert ranges.lowest(wanted) == min(((begin, length) for length, begin in fitting), default=None)
            assert ranges.total_from(wanted) == sum(length for length, _ in fitting)


class Model:
    """Every 64-byte unit of a small arena: cold, ready, or taken."""

    def __init__(self, pieces: int) -> None:
        self.start = PIECE
        self.unit = PIECE // 8
        self.pieces = pieces
        self.state = ["cold"] * (pieces * 8)

    def units(self, start: int, size: int) -> range:
        assert start % self.unit == 0
        assert size % self.unit == 0
        return range((start - self.start) // self.unit, (start + size - self.start) // self.unit)

    def change(self, start: int, size: int, before: str, after: str) -> None:
        for unit in self.units(start, size):
            assert self.state[unit] == before
            self.state[unit] = after

    def ranges(self, state: str) -> list[tuple[int, int]]:
        slots = {unit for unit, has in enumerate(self.state) if has == state}
        return [(self.start + begin * self.unit, count * self.unit) for begin, count in runs(slots)]


@settings(max_examples=150)
@given(st.data())
def test_free_space_agrees_with_a_map_of_units(data: st.DataObject) -> None:
    model = Model(6)
    space = FreeSpace(model.start, model.start + 6 * PIECE)
    taken: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(1, 40))):
        what = data.draw(st.sampled_from(["ready", "cold", "mixed", "free", "free", "cool"]))
        size = data.draw(st.integers(1, 20)) * model.unit
        if what == "ready":
            possible = any(length >= size for _, length in model.ranges("ready"))
            start = space.take_ready(size)
            assert (start is not None) == possible
            if start is not None:
                model.change(start, size, "ready", "taken")
                taken.append((start, size))
        elif what in ("cold", "mixed"):
            found = space.take_cold(size) if what == "cold" else space.take_mixed(size)
            if found is None:
                if what == "mixed":
                    free = {unit for unit, has in enumerate(model.state) if has != "taken"}
                    assert all(count * model.unit < size for _, count in runs(free))
                continue
            for part in found.ready:
                model.change(*part, "ready", "taken")
            for part in found.cold:
                assert part[1] % PIECE == 0
                model.change(*part, "cold", "taken")
            parts = Ranges([*found.ready, *found.cold])
            whole = parts.around(found.start, size)
            assert whole is not None
            taken += list(parts)
        elif what == "free" and taken:
            part = taken.pop(data.draw(st.integers(0, len(taken) - 1)))
            space.free(*part)
            model.change(*part, "taken", "ready")
        elif what == "cool":
            cooled = space.cool(size)
            assert sum(length for _, length in cooled) <= size
            for start, length in cooled:
                assert start % PIECE == length % PIECE == 0
                model.change(start, length, "ready", "cold")
        assert list(space.ready) == model.ranges("ready")
        assert list(space.cold) == model.ranges("cold")
        assert space.total == model.state.count("ready") * model.unit + model.state.count("cold") * model.unit


def test_the_lowest_room_is_taken_first_until_room_is_scarce() -> None:
    space = FreeSpace(0, 16 * PIECE)
    taken = space.take_cold(16 * PIECE)
    assert taken is not None
    space.free(0, 4 * PIECE)
    space.free(8 * PIECE, PIECE)
    assert space.take_ready(PIECE) == 0
    space.free(0, PIECE)
    assert space.take_ready(2 * PIECE) == 0
    assert space.take_ready(PIECE) == 8 * PIECE, "two larger pieces stay together"


def test_the_index_has_its_own_pieces_in_front() -> None:
    assert data_start(2 * PIECE) == PIECE
    assert data_start(8 * 2**30) == 128 * 2**20
    assert footprint(0) == HEADER_BYTES
    assert footprint(1) == HEADER_BYTES + ALIGNMENT == footprint(64)
    assert round_up(65, 64) == 128


@given(st.lists(st.integers(0, 5000), max_size=60), st.randoms(use_true_random=False))
def test_grants_never_hand_out_a_byte_twice(sizes: list[int], random: object) -> None:
    grants, written = Grants(), Ranges()
    grants.add(1 << 20, 1 << 16)
    grants.add(1 << 22, 1 << 12)
    for size in sizes:
        offset = grants.allocate(size)
        if offset is None:
            continue
        assert offset % ALIGNMENT == 0
        if random.random() < 0.3:  # type: ignore[attr-defined]
            assert grants.abandon(offset) is None
        else:
            written.add(offset - HEADER_BYTES, footprint(size))
            grants.finished(offset)
    for start, size, used in grants.rows():
        assert used == 0
        written.add(start, size)


def test_a_grant_is_returned_only_when_nothing_is_being_written_in_it() -> None:
    grants = Grants()
    grants.add(4096, 1024)
    first = grants.allocate(100)
    assert first == 4096 + HEADER_BYTES
    assert grants.give_back(4096) is None
    assert grants.idle() == []
    grants.finished(first)
    assert grants.give_back(4096) == (4096, 192, ())
    assert grants.give_back(4096) is None
    assert len(grants) == 0


def test_an_exact_grant_serves_one_object() -> None:
    grants = Grants()
    offset = grants.add_exact(8192, footprint(1000))
    assert grants.allocate(1) is None
    assert grants.rows() == ((8192, footprint(1000), footprint(1000)),)
    assert grants.idle() == []
    grants.finished(offset)
    assert grants.rows() == ()
    offset = grants.add_exact(8192, footprint(1000))
    assert grants.abandon(offset) == (8192, 0, ())
    assert len(grants) == 0


def test_of_several_grants_the_roomiest_is_retained() -> None:
    grants = Grants()
    for number in range(4):
        grants.add(number << 20, 1 << 20)
        offset = grants.allocate((1 << 20) - (100_000 + 20_000 * number))
        assert offset is not None
        assert offset >> 20 == number
        if number != 1:
            grants.finished(offset)
    assert [start >> 20 for start, *_ in grants.spent(1 << 20)] == [2, 0]
    assert [start >> 20 for start, *_ in grants.idle()] == [3]


def test_a_full_grant_is_returned_with_its_last_object_and_abandoned_room_is_reused() -> None:
    grants = Grants()
    grants.add(0, 256)
    first, second = grants.allocate(64), grants.allocate(64)
    assert (first, second) == (64, 192)
    grants.abandon(64)
    assert grants.finished(192) is None, "the first left a gap"
    assert grants.allocate(64) == 64
    assert grants.spent(1 << 20) == []
    assert grants.finished(64) == (0, 256, ())
    assert len(grants) == 0


def test_a_repeated_claim_takes_no_room_of_another_process() -> None:
    """A worker has no acknowledgement of a completion whose value was taken over and freed, and whose room has another owner."""
    claims = Claims()
    old, now = b"old-one0", b"new-one0"
    claims.take(b"", m.Sealed(((b"o" * 20, MiB + HEADER_BYTES, MiB, old, False),)))
    claims.take(now, m.GrantsHeld(((MiB, 2 * MiB, 2 * MiB),)))
    layout = claims.layout(0, 4 * MiB)
    assert layout.objects == []
    claims.take(b"", m.Sealed(((b"p" * 20, MiB + HEADER_BYTES, 1000, now, False),)))
    assert [row[0] for row in claims.layout(0, 4 * MiB).objects] == [b"p" * 20], "it is being written there"
    assert [(offset, size, holder) for offset, size, holder, _, _ in layout.grants] == [(MiB, 2 * MiB, now)]
