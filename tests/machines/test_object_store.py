"""The object store alone: room, pins, spilling, typed errors, death of processes, restart."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from store_world import SCHEDULER, World, object_id, process_id

from zfabric.machines.common.extents import HEADER_BYTES, PIECE, footprint
from zfabric.machines.object_store.machine import ObjectStore
from zfabric.machines.object_store.room import Room
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT
from zfabric.protocol.machine import Refusal

MiB = 2**20


def known(store: ObjectStore) -> set[bytes]:
    """The ids of the objects that a store has."""
    return set(store._tables.entries)


def sent_by(world: World, kind: type) -> list[object]:
    return [message for message in world.sent if isinstance(message, kind)]


def filled(pieces: int = 8, size: int = PIECE - HEADER_BYTES, **options: object) -> World:
    """A world whose arena is full of objects 0, 1, 2 … of one piece each, written by process 0."""
    world = World(pieces, **options)
    for number in range(pieces):
        world.put_now(world.process(0), number, size)
    return world


def test_a_few_grants_are_ready_in_advance() -> None:
    world = World(64)
    assert all(isinstance(effect, e.MakeReady) for effect in world.pending)
    assert 0 < sum(effect.size for effect in world.pending) <= 64 * PIECE // 8
    world.complete_all()
    world.reserve(world.process(0), 1000, exact=False)
    world.turn()
    assert isinstance(world.process(0).answers[1], m.Granted)


def test_small_objects_share_a_grant_and_a_large_one_gets_its_own() -> None:
    world = World(64)
    process = world.process(0)
    world.reserve(process, 1000, exact=False)
    world.settle()
    for number in range(10):
        assert world.put(process, number, 1000)
    world.put_now(process, 100, 3 * PIECE)
    world.settle()
    statistics = world.store.statistics()
    assert statistics["objects"] == 11
    assert statistics["used"] == 10 * footprint(1000) + footprint(3 * PIECE)
    assert statistics["grants"] == 1


def test_grants_shrink_when_they_take_an_eighth_of_the_arena() -> None:
    world = World(64, grant_bytes=4 * PIECE)
    sizes = []
    for number in range(12):
        token = world.reserve(world.process(number), 1000, exact=False)
        world.settle()
        answer = world.process(number).answers[token]
        sizes.append(answer.size)
    assert sizes[0] == 4 * PIECE
    assert sizes[-1] == footprint(1000)
    assert world.store.statistics()["granted"] <= 64 * PIECE // 8 + 12 * footprint(1000)


def test_a_larger_grant_is_given_on_request_if_enough_memory_is_ready() -> None:
    world = World(400)
    process = world.process(0)
    world.complete_all()
    small = world.reserve(process, 1000, exact=False, wish=8)
    world.turn()
    assert process.answers[small].size == world.config.grant_bytes, "there is no more ready, and nobody waits for more"
    world.put_now(process, 1, 40 * PIECE)
    world.free(1)
    world.settle()
    large = world.reserve(process, 1000, exact=False, wish=8)
    much = world.reserve(process, 1000, exact=False, wish=80)
    world.turn()
    assert process.answers[large].size == 8 * world.config.grant_bytes
    assert process.answers[much].size <= 8 * world.config.grant_bytes


def test_a_waiting_writer_gets_memory_that_is_being_made_ready() -> None:
    world = World(256)
    under_way = {effect.offset for effect in world.pending}
    writers = [world.process(number) for number in range(len(under_way))]
    tokens = [world.reserve(writer, 1000, exact=False, patience=50.0) for writer in writers]
    world.turn()
    for count in range(1, len(under_way) + 1):
        world.complete()
        world.turn()
        answers = [writer.answers[token] for writer, token in zip(writers, tokens, strict=True) if token in writer.answers]
        assert len(answers) == count
        assert {answer.offset for answer in answers} <= under_way
    world.check()


def test_memory_made_ready_in_advance_grows_while_writers_wait() -> None:
    world = World(512)
    grants = [sum(effect.size for effect in world.pending) // world.config.grant_bytes]
    for number in range(6):
        world.reserve(world.process(number), 1000, exact=False, patience=50.0)
        world.turn()
        grants.append(sum(effect.size for effect in world.pending) // world.config.grant_bytes)
    assert grants[0] == 2
    assert grants == sorted(grants)
    assert 8 + 3 <= grants[-1] <= 8 + 6, "eight for those to come, and one for each who waits, as far as they fit together"


def test_memory_made_ready_in_advance_grows_with_requests() -> None:
    world = World(512)
    world.complete_all()
    world.reserve(world.process(0), 1000, exact=False, wish=4)
    world.turn()
    assert sum(effect.size for effect in world.pending) >= 6 * world.config.grant_bytes


def test_larger_than_the_store_is_refused_at_once_by_size() -> None:
    world = World(4)
    world.reserve(world.process(0), 4 * PIECE, patience=100.0)
    world.turn()
    answer = world.process(0).answers[1]
    assert (type(answer), answer.kind) == (m.NoSpace, "too_large")
    assert "8.0 MiB" in answer.text
    assert "object_store_memory" in answer.text


def test_freed_room_is_reused_from_below_in_parts_and_whole() -> None:
    world = World(64)
    for number, pieces in ((1, 6), (2, 2), (3, 3)):
        world.put_now(world.process(number), number, pieces * PIECE - HEADER_BYTES)
    lowest = min(world.contents) - HEADER_BYTES
    world.free(1)
    world.free(2)
    world.settle()
    for process, part in ((2, 0), (1, 1), (2, 2)):
        token = world.reserve(world.process(process), 2 * PIECE - HEADER_BYTES)
        world.turn()
        assert world.process(process).answers[token].offset == lowest + part * 2 * PIECE
    assert world.pending == []


def test_free_memory_is_returned_to_the_system_after_a_while() -> None:
    world = World(64)
    world.put_now(world.process(0), 1, 20 * PIECE)
    world.free(1)
    world.settle()
    assert world.memory.total >= 20 * PIECE
    world.pass_time(60)
    world.complete_all()
    assert world.memory.total <= 64 * PIECE // 8
    assert world.store.next_deadline() is None


def test_a_full_store_spills_the_least_recently_used_and_brings_it_back() -> None:
    world = filled()
    for number in (0, 1, 2):
        world.locate(number, world.process(1))
        world.turn()
        world.unpin(world.process(1), object_id(number))
    world.put_now(world.process(0), 100, PIECE - HEADER_BYTES)
    assert world.disk.keys() == {object_id(3)}
    world.locate(3, world.process(1))
    world.settle()
    assert object_id(3) in world.process(1).places
    assert object_id(3) not in world.lost
    assert len(world.disk) == 2


def test_a_copy_on_disk_makes_the_second_eviction_free() -> None:
    world = filled(2)
    reader = world.process(1)
    world.put_now(world.process(0), 100, PIECE - HEADER_BYTES)
    (spilled,) = world.disk
    world.locate(int.from_bytes(spilled, "big"), reader)
    world.settle()
    world.unpin(reader, spilled)
    for number in (1, 100):
        world.locate(number, reader)
    world.settle()
    assert world.store.statistics()["spills"] == 2
    assert world.store.statistics()["restores"] >= 1


def test_locates_of_one_object_share_one_restore() -> None:
    world = filled(4)
    world.put_now(world.process(0), 100, PIECE - HEADER_BYTES)
    (spilled,) = world.disk
    number = int.from_bytes(spilled, "big")
    for reader in (1, 2, 3, 3):
        world.locate(number, world.process(reader))
    world.settle()
    assert [world.process(reader).tellings[spilled] for reader in (1, 2, 3)] == [1, 1, 2]
    assert world.store.statistics()["restores"] == 1


def test_an_unpin_that_crosses_a_new_pin_leaves_the_reader_that_pin() -> None:
    world = filled(1)
    reader = world.process(1)
    world.locate(0, reader)
    world.turn()
    world.locate(0, reader)
    world.send(CLIENT + reader.incarnation, m.Unpin((object_id(0),)))
    reader.tellings[object_id(0)] -= 1
    world.turn()
    world.reserve(world.process(0), PIECE - HEADER_BYTES)
    world.settle()
    assert reader.tellings[object_id(0)] == 1
    assert world.disk == {}
    world.unpin(reader, object_id(0))
    world.settle()
    assert isinstance(world.process(0).answers[2], m.Granted)


def test_pins_are_recalled_when_nothing_else_makes_room() -> None:
    world = filled(2)
    reader = world.process(1)
    world.locate(0, reader)
    world.locate(1, reader)
    world.turn()
    world.reserve(world.process(0), PIECE - HEADER_BYTES)
    world.turn()
    assert sent_by(world, m.RecallPins) == [m.RecallPins((object_id(0),))]
    world.pass_time(0.2)
    assert 3 not in world.process(0).answers, "readers have a moment to answer"
    world.unpin(reader, object_id(0))
    world.settle()
    assert world.process(0).answers[3].offset > 0
    assert world.disk.keys() == {object_id(0)}


def pinned(objects: int) -> World:
    """A store full of objects that somebody reads."""
    world = filled(objects)
    for number in range(objects):
        world.locate(number, world.process(1))
    world.turn()
    return world


def test_a_writer_without_room_is_granted_a_file() -> None:
    world = pinned(2)
    token = world.reserve(world.process(0), 100, patience=100.0)
    world.settle()
    world.pass_time(0.3)
    world.settle()
    assert world.process(0).answers[token].offset < 0
    again = world.reserve(world.process(0), 3000, patience=100.0)
    world.settle()
    assert world.process(0).answers[again].offset < 0, "readers were asked a moment ago: nobody waits for them again"
    assert world.store.statistics()["files_granted"] == 2
    assert world.put(world.process(0), 7, 100)
    world.settle()
    assert world.disk == {object_id(7): 100}
    assert world.store.statistics()["written_on_disk"] == 1
    world.locate(7, world.process(2))
    world.settle()
    assert world.process(2).places[object_id(7)][0] < 0, "it is read where it is, as long as there is no room"
    world.free(7)
    world.settle()
    assert world.disk == {object_id(7): 100}, "its file stays while it is read"
    world.unpin(world.process(2), object_id(7))
    world.kill(world.process(0))
    world.settle()
    assert (world.disk, world.unfinished) == ({}, {})


def test_values_of_one_writer_that_exceed_the_store_go_to_disk_at_once() -> None:
    world = World(2)
    writer = world.process(0)
    for _ in range(5):
        token = world.reserve(writer, PIECE - HEADER_BYTES, patience=100.0)
        world.settle()
        assert isinstance(writer.answers[token], m.Granted), "none of them becomes an object, and so room, before all are written"
    assert [writer.answers[token].offset < 0 for token in sorted(writer.answers)] == [False, False, True, True, True]
    for number in range(5):
        assert world.put(writer, number, PIECE - HEADER_BYTES)
    world.settle()
    assert len(world.disk) >= 3
    assert world.store.statistics()["files_granted"] == 0


def test_a_store_that_is_full_gives_files_for_one_object_each_and_no_grants() -> None:
    world = pinned(2)
    token = world.reserve(world.process(0), 100, exact=False, patience=100.0)
    world.settle()
    world.pass_time(0.3)
    assert world.process(0).answers[token].kind == "alone"


def test_more_readers_than_there_is_room_for_read_on_disk() -> None:
    world = filled(2)
    for number in range(2, 6):
        world.put_now(world.process(0), number, PIECE - HEADER_BYTES)
    reader = world.process(1)
    for number in range(6):
        world.locate(number, reader)
    world.settle()
    world.pass_time(0.3)
    world.settle()
    assert len(reader.places) == 6
    assert sorted(offset < 0 for offset, _ in reader.places.values()) == [False] * 2 + [True] * 4
    statistics = world.store.statistics()
    assert (statistics["objects_read_on_disk"], statistics["read_on_disk"], statistics["waiting"]) == (4, 4, 0)
    on_disk = [identifier for identifier, (offset, _) in reader.places.items() if offset < 0]
    world.restart()
    assert len(reader.places) == 6
    assert all(reader.places[identifier][0] < 0 for identifier in on_disk)
    for identifier in sorted(reader.places):
        world.unpin(reader, identifier)
    world.locate(int.from_bytes(on_disk[0], "big"), world.process(2))
    world.settle()
    assert world.process(2).places[on_disk[0]][0] > 0, "it comes back where there is room again"


def test_a_damaged_file_is_detected_before_it_is_read() -> None:
    world = pinned(2)
    world.reserve(world.process(0), 100, patience=100.0)
    world.turn()
    world.pass_time(0.3)
    world.settle()
    assert world.put(world.process(0), 7, 100)
    world.locate(7, world.process(2))
    world.turn()
    assert isinstance(world.pending[0], e.CheckFile)
    world.complete(error="the spilled object's checksum is wrong")
    world.turn()
    assert world.lost[object_id(7)].startswith("unreadable: the spilled")
    assert world.disk == {}


def test_a_file_is_an_object_only_once_the_store_has_taken_it_over() -> None:
    world = pinned(2)
    for _ in range(3):
        world.reserve(world.process(0), 100, patience=100.0)
    world.reserve(world.process(2), 100, patience=100.0)
    world.turn()
    world.pass_time(0.3)
    world.settle()
    assert world.put(world.process(0), 7, 100)
    world.settle()
    dead = world.process(2)
    (granted,) = dead.exact.values()
    world.write(granted.offset + HEADER_BYTES, object_id(8), 100)
    del world.processes[dead.incarnation]
    world.restart()
    world.settle()
    assert world.disk == {object_id(7): 100}
    assert len(world.unfinished) == 2, "what a living process may still write stays, the dead one's goes"
    assert world.put(world.process(0), 9, 100)
    world.settle()
    assert world.disk.keys() == {object_id(7), object_id(9)}


def test_inline_values_that_find_no_room_move_to_disk() -> None:
    world = pinned(2)
    world.send(SCHEDULER, m.Absorb(((object_id(7), b"seven", False),)))
    world.values[object_id(7)] = 5
    world.locate(7, world.process(2))
    world.turn()
    world.pass_time(0.3)
    assert isinstance(world.pending[0], e.Spill)
    world.complete(error="No space left on device")
    world.turn()
    world.pass_time(1.1)
    world.settle()
    assert world.disk == {object_id(7): 5}
    assert world.process(2).places[object_id(7)][0] < 0


def test_idle_grants_are_recalled() -> None:
    world = World(16)
    idle, busy = world.process(0), world.process(1)
    world.reserve(idle, 10, exact=False)
    world.settle()
    held = idle.grants.rows()[0]
    world.reserve(busy, 15 * PIECE + PIECE // 2)
    world.settle()
    assert sent_by(world, m.RecallGrant) == [m.RecallGrant(held[0])]
    world.return_grants(idle)
    world.settle()
    assert isinstance(busy.answers[2], m.Granted)


def test_rebuildable_values_are_dropped_rather_than_spilled() -> None:
    world = World(1)
    world.put_now(world.process(0), 0, PIECE - HEADER_BYTES, rebuildable=True)
    world.put_now(world.process(0), 1, PIECE - HEADER_BYTES)
    assert world.lost == {object_id(0): "evicted"}
    assert world.disk == {}
    world.locate(0, world.process(1))
    world.turn()
    assert world.lost == {object_id(0): "missing"}


def test_a_reservation_waits_no_longer_than_its_patience() -> None:
    world = filled(2)
    for number in (0, 1):
        world.locate(number, world.process(1))
    world.turn()
    world.reserve(world.process(2), 1000, patience=3.0)
    world.turn()
    while world.now < 102.9:
        world.pass_time(0.1)
        while world.pending:
            world.complete(error="No space left on device")
            world.turn()
    assert world.process(2).answers == {}
    assert world.store.statistics()["waiting"] == 1
    world.pass_time(0.2)
    answer = world.process(2).answers[3]
    assert (type(answer), answer.kind) == (m.NoSpace, "full")
    assert "1,000 bytes" in answer.text
    assert "4.0 MiB are in use by live values" in answer.text
    assert "No space left on device" in answer.text
    assert world.unfinished == {}


def test_reservations_are_served_in_order() -> None:
    world = filled(4)
    for number in range(4):
        world.locate(number, world.process(1))
    world.turn()
    large = world.reserve(world.process(2), 2 * PIECE - HEADER_BYTES, patience=50)
    small = world.reserve(world.process(3), 1000, patience=50)
    world.turn()
    world.unpin(world.process(1), object_id(3))
    world.free(3)
    world.settle()
    assert world.process(3).answers == {}
    world.unpin(world.process(1), object_id(2))
    world.free(2)
    world.settle()
    assert isinstance(world.process(2).answers[large], m.Granted)
    assert small in world.process(3).waiting
    world.return_grants(world.process(2))
    world.settle()
    assert isinstance(world.process(3).answers[small], m.Granted)


def test_a_full_disk_is_named_in_the_error_and_tried_again_when_it_heals() -> None:
    world = filled(2)
    first = world.reserve(world.process(0), PIECE - HEADER_BYTES, patience=3.0)
    world.turn()
    world.complete(error="No space left on device")
    world.turn()
    assert world.pending == []
    world.pass_time(3.1)
    while world.pending:
        world.complete(error="No space left on device")
        world.turn()
    world.pass_time(3.1)
    answer = world.process(0).answers[first]
    assert answer.kind == "full"
    assert "No space left on device" in answer.text
    second = world.reserve(world.process(0), PIECE - HEADER_BYTES, patience=5.0)
    world.pass_time(2.0)
    world.complete_all()
    assert isinstance(world.process(0).answers[second], m.Granted)


def test_memory_that_the_system_refuses_is_a_typed_error_only_if_nothing_can_be_freed() -> None:
    world = World(8)
    while world.pending:
        world.complete(error="Cannot allocate memory")
    world.turn()
    world.now += 2
    world.reserve(world.process(0), 1000, patience=100.0)
    world.turn()
    while world.pending:
        world.complete(error="Cannot allocate memory")
        world.turn()
    answer = world.process(0).answers[1]
    assert answer.kind == "memory"
    assert "Cannot allocate memory" in answer.text
    world.now += 2
    world.put_now(world.process(0), 1, PIECE - HEADER_BYTES)


def test_memory_that_the_system_refuses_is_taken_from_what_can_be_spilled() -> None:
    world = World(8)
    world.put_now(world.process(0), 1, PIECE - HEADER_BYTES)
    world.complete_all()
    token = world.reserve(world.process(0), 2 * PIECE - HEADER_BYTES, patience=100.0)
    world.turn()
    while not isinstance(world.process(0).answers.get(token), m.Granted):
        if not world.pending:
            world.pass_time(0.5)
        elif isinstance(world.pending[0], e.MakeReady) and not world.disk:
            world.complete(error="Cannot allocate memory")
        else:
            world.complete()
        world.turn()
    assert world.disk.keys() == {object_id(1)}


def test_inline_values_move_in_and_wait_for_room_if_need_be() -> None:
    world = filled(1)
    world.locate(0, world.process(1))
    world.turn()
    world.values[object_id(7)] = 100
    world.send(SCHEDULER, m.Absorb(((object_id(7), b"v" * 100, False),)))
    world.locate(7, world.process(1))
    world.turn()
    world.pass_time(30)
    assert object_id(7) not in world.process(1).places
    world.unpin(world.process(1), object_id(0))
    world.settle()
    assert object_id(7) in world.process(1).places


def test_a_freed_object_goes_with_its_last_reader_and_its_file_with_it() -> None:
    world = filled(2)
    world.put_now(world.process(0), 100, PIECE - HEADER_BYTES)
    (spilled,) = world.disk
    number = int.from_bytes(spilled, "big")
    world.locate(number, world.process(1))
    world.settle()
    world.free(number)
    world.settle()
    assert spilled in world.disk
    assert spilled in known(world.store)
    world.unpin(world.process(1), spilled)
    world.settle()
    assert spilled not in world.disk
    assert spilled not in known(world.store)


def test_an_object_freed_while_it_is_spilled_leaves_nothing() -> None:
    world = filled(1)
    world.reserve(world.process(0), PIECE - HEADER_BYTES)
    world.turn()
    assert isinstance(world.pending[0], e.Spill)
    world.free(0)
    world.settle()
    assert world.disk == {}
    assert world.store.statistics()["objects"] == 0


def test_an_object_that_is_read_while_it_is_spilled_stays_and_its_copy_counts() -> None:
    world = filled(2)
    world.reserve(world.process(0), PIECE - HEADER_BYTES)
    world.turn()
    spilling = [effect.object_id for effect in world.pending]
    reader = world.process(1)
    for identifier in spilling:
        world.locate(int.from_bytes(identifier, "big"), reader)
    world.turn()
    assert reader.places.keys() == set(spilling)
    while world.pending:
        world.complete()
        world.check()
    assert world.disk.keys() == set(spilling)
    world.locate(0, reader)
    world.settle()
    spills = world.store.statistics()["spills"]
    for identifier in list(reader.tellings):
        world.unpin(reader, identifier)
    world.settle()
    assert isinstance(world.process(0).answers[3], m.Granted)
    assert world.store.statistics()["spills"] == spills


def test_pins_of_a_dead_reader_are_released() -> None:
    world = filled(1)
    world.locate(0, world.process(1))
    world.turn()
    world.free(0)
    world.settle()
    assert object_id(0) in known(world.store)
    world.kill(world.process(1))
    world.settle()
    assert world.store.statistics()["objects"] == 0


def test_room_freed_inside_a_grant_stays_with_it_until_it_ends() -> None:
    world = World(4)
    writer, other = world.process(0), world.process(1)
    world.reserve(writer, PIECE // 2, exact=False)
    world.settle()
    offset, size, _ = writer.grants.rows()[0]
    assert world.put(writer, 1, PIECE // 2 - HEADER_BYTES)
    world.free(1)
    world.settle()
    second = world.reserve(writer, PIECE // 2 - HEADER_BYTES)
    world.settle()
    fresh = writer.answers[second]
    assert fresh.offset >= offset + size or fresh.offset + fresh.size <= offset
    token = world.reserve(other, 4 * PIECE - HEADER_BYTES, patience=50)
    world.settle()
    assert token in other.waiting
    world.return_grants(writer)
    world.settle()
    granted = other.answers[token]
    assert granted.offset <= offset
    assert granted.offset + granted.size >= offset + size


def test_a_damaged_file_is_a_lost_object() -> None:
    world = filled(1)
    world.put_now(world.process(0), 1, PIECE - HEADER_BYTES)
    world.locate(0, world.process(1))
    world.turn()
    while world.pending:
        world.complete(error="checksum" if isinstance(world.pending[0], e.Unspill) else "")
        world.turn()
    assert world.lost[object_id(0)] == "unreadable: checksum"
    assert object_id(0) not in world.disk


def test_a_restore_whose_time_is_up_reads_on_disk() -> None:
    world = filled(1)
    world.put_now(world.process(0), 1, PIECE - HEADER_BYTES)
    world.locate(0, world.process(2))
    world.turn()
    while world.now < 106:
        world.pass_time(0.5)
        while any(isinstance(effect, e.Spill) for effect in world.pending):
            world.complete(error="No space left on device")
            world.turn()
    world.settle()
    assert world.process(2).places[object_id(0)][0] < 0


def test_a_dead_writers_grants_are_freed_and_what_it_sealed_stays() -> None:
    world = World(16)
    writer, reader = world.process(0), world.process(1)
    world.reserve(writer, 1000, exact=False)
    world.settle()
    assert world.put(writer, 1, 1000)
    world.locate(1, reader)
    world.locate(1, writer)
    world.settle()
    pending = world.reserve(writer, 3 * PIECE)
    world.turn()
    world.kill(writer)
    world.settle()
    statistics = world.store.statistics()
    assert (statistics["granted"], statistics["grants"], statistics["waiting"]) == (0, 0, 0)
    assert object_id(1) in reader.places
    world.send(CLIENT + writer.incarnation, m.Reserve(pending + 1, 1000, 0, 9.0))
    world.settle()
    assert world.store.statistics()["grants"] == 0
    world.send(SCHEDULER, m.Sealed(((object_id(2), 3 * PIECE, 1000, writer.incarnation, False),)))
    world.turn()
    assert world.lost[object_id(2)] == "missing"


def test_a_seal_that_comes_after_the_grants_return_still_counts() -> None:
    world = World(16)
    writer = world.process(0)
    world.reserve(writer, 1000, exact=False)
    world.settle()
    offset = writer.grants.allocate(1000)
    assert offset is not None
    world.write(offset, object_id(1), 1000)
    writer.grants.finished(offset)
    ((start, used, _),) = writer.grants.idle()
    world.send(CLIENT + writer.incarnation, m.ReturnGrant(start, used))
    world.turn()
    assert world.store.statistics()["granted"] == used
    world.send(SCHEDULER, m.Sealed(((object_id(1), offset, 1000, writer.incarnation, False),)))
    world.turn()
    statistics = world.store.statistics()
    assert (statistics["granted"], statistics["grants"], statistics["used"]) == (0, 0, used)


def test_abandoned_room_between_objects_is_free_again() -> None:
    """It will never be sealed: the grant would stay open for it, with all that lies in it."""
    world = World(16)
    writer = world.process(0)
    world.reserve(writer, 3 * 100_000, exact=False)
    world.settle()
    first, given_up, last = (writer.grants.allocate(100_000) for _ in range(3))
    writer.grants.abandon(given_up)
    for number, offset in enumerate((first, last)):
        world.seal(writer, object_id(number), offset, 100_000)
    (row,) = writer.grants.idle()
    assert row[2] == ((given_up - HEADER_BYTES, footprint(100_000)),)
    world.send(CLIENT + writer.incarnation, m.ReturnGrant(*row))
    world.settle()
    statistics = world.store.statistics()
    assert (statistics["grants"], statistics["granted"], statistics["used"]) == (0, 0, 2 * footprint(100_000))
    for number in range(2):
        world.free(number)
    world.settle()
    assert world.store.statistics()["used"] == 0
    world.check()


def test_abandoned_room_goes_to_nobody_before_what_lies_behind_it_is_sealed() -> None:
    """A grant inside another one would be taken for that of the object behind it, which would be refused."""
    world = World(16)
    writer = world.process(0)
    token = world.reserve(writer, 3 * 100_000, exact=False)
    world.settle()
    granted = writer.answers[token]
    assert isinstance(granted, m.Granted)
    size = granted.size - 2 * footprint(100_000) - HEADER_BYTES
    first, given_up, last = (writer.grants.allocate(each) for each in (100_000, 100_000, size))
    writer.grants.abandon(given_up)
    world.seal(writer, object_id(0), first, 100_000)
    world.write(last, object_id(1), size)
    writer.grants.finished(last)
    (row,) = writer.grants.idle()
    world.send(CLIENT + writer.incarnation, m.ReturnGrant(*row))
    world.reserve(writer, 100_000)
    world.settle()
    world.send(SCHEDULER, m.Sealed(((object_id(1), last, size, writer.incarnation, False),)))
    world.settle()
    assert world.lost == {}
    assert known(world.store) == {object_id(0), object_id(1)}
    statistics = world.store.statistics()
    assert (statistics["grants"], statistics["granted"]) == (1, footprint(100_000)), "the new one"
    assert statistics["used"] == footprint(100_000) + footprint(size)


def test_fragmented_room_is_not_searched_after_each_free(monkeypatch: pytest.MonkeyPatch) -> None:
    size, count = 100_000, 400
    world = World(count * footprint(size) // PIECE + 2)
    for number in range(count):
        world.put_now(world.process(0), number, size, rebuildable=number % 2 == 0)
    for number in range(1, count, 2):
        world.locate(number, world.process(1))
    world.settle()
    looked: list[int] = []
    place = Room._place
    monkeypatch.setattr(Room, "_place", lambda self, now, waiter: (looked.append(waiter.need), place(self, now, waiter))[1])
    world.reserve(world.process(2), count // 4 * footprint(size), patience=100.0)
    world.settle()
    assert world.store.statistics()["evictions"] == count // 2, "and it is still not in one piece"
    assert len(looked) < count // 4


def test_a_second_copy_of_an_object_is_dropped() -> None:
    world = World(16)
    for writer in (0, 1):
        world.put_now(world.process(writer), 5, 1000)
    statistics = world.store.statistics()
    assert (statistics["objects"], statistics["used"], statistics["copies_dropped"]) == (1, footprint(1000), 1)


def test_impossible_requests_are_refused() -> None:
    world = World(4)
    with pytest.raises(Refusal):
        world.send(CLIENT + process_id(0), m.Reserve(1, -1, 0, 1.0))
    with pytest.raises(Refusal):
        world.send(CLIENT + process_id(0), m.Reserve(1, 1, 0, float("nan")))
    with pytest.raises(Refusal):
        world.send(SCHEDULER, m.RetainOnly(()))
    world.send(CLIENT + process_id(0), m.ReturnGrant(12345, 0))
    world.send(SCHEDULER, m.Sealed(((object_id(1), 2 * PIECE, 10, process_id(0), False),)))
    world.turn()
    assert world.store.statistics()["refused"] == 2


def test_a_restarted_store_moves_nothing_before_its_recovery() -> None:
    world = filled(4)
    reader = world.process(1)
    world.locate(0, reader)
    world.locate(1, reader)
    world.settle()
    world.free(1)
    before = world.store
    world.store = ObjectStore(before.address, SCHEDULER, world.config, world.capacity, recovering=True)
    world.send(CLIENT + reader.incarnation, m.Pinned(tuple((identifier, *place) for identifier, place in reader.places.items())))
    token = world.reserve(world.process(2), 1000)
    world.send(SCHEDULER, m.RetainOnly((object_id(0), object_id(2))))
    assert world.store.take_effects(world.now) == []
    assert world.store.next_deadline() is None
    found = tuple((identifier, offset, size) for offset, (identifier, size) in world.contents.items())
    world.send(b"Xshellshe", m.ArenaFound(found, ()))
    world.settle()
    world.complete_all()
    assert isinstance(world.process(2).answers[token], m.Granted)
    assert known(world.store) == {object_id(0), object_id(1), object_id(2)}
    world.unpin(reader, object_id(1))
    world.settle()
    assert object_id(1) not in known(world.store)


def test_of_two_claims_to_one_object_the_arenas_index_counts() -> None:
    world = World(4)
    start = world.capacity - 4 * PIECE + HEADER_BYTES
    store = ObjectStore(b"Ostoretst", SCHEDULER, world.config, world.capacity, recovering=True)
    writer = process_id(1)
    sealed = ((object_id(1), start + PIECE, 100, writer, False), (object_id(2), start + 2 * PIECE, 10, writer, True))
    store.step(0.0, SCHEDULER, m.Sealed(sealed))
    store.step(0.0, CLIENT + writer, m.Pinned(((object_id(1), start + PIECE, 100), (object_id(3), start + PIECE, 100))))
    store.step(0.0, SCHEDULER, m.ArenaFound(((object_id(1), start, 100),), ((object_id(1), 99, 4),)))
    store.step(0.0, SCHEDULER, m.RetainOnly((object_id(1), object_id(2))))
    effects = store.take_effects(0.0)
    store.check_invariants()
    assert e.Unlink((4,)) in effects
    store.step(0.0, SCHEDULER, m.Locate(tuple((object_id(number), writer) for number in (1, 2))))
    (located,) = [effect.message for effect in store.take_effects(0.0) if isinstance(effect, e.Send)]
    assert [row[2] for row in located.rows] == [start, start + 2 * PIECE]


def test_a_repeated_seal_is_void_inside_unused_room_of_its_writer() -> None:
    """The store before this one had freed it, and given its room to the same process, which has not used it yet."""
    world = World(4)
    start = world.capacity - 4 * PIECE
    writer = process_id(1)
    store = ObjectStore(b"Ostoretst", SCHEDULER, world.config, world.capacity, recovering=True)
    being_written = start + 2 * PIECE
    store.step(0.0, CLIENT + writer, m.GrantsHeld(((start, PIECE, 0), (being_written, footprint(100), footprint(100)))))
    rows = ((object_id(1), start + HEADER_BYTES, 1000, writer, False), (object_id(2), being_written + HEADER_BYTES, 100, writer, False))
    store.step(0.0, SCHEDULER, m.Sealed(rows))
    store.step(0.0, SCHEDULER, m.ArenaFound((), ()))
    store.step(0.0, SCHEDULER, m.RetainOnly((object_id(2),)))
    store.take_effects(0.0)
    store.check_invariants()
    assert known(store) == {object_id(2)}, "that is being written: its place is said before the write is over"
    store.step(0.0, SCHEDULER, m.Sealed(((object_id(3), start + HEADER_BYTES, PIECE - HEADER_BYTES, writer, False),)))
    assert object_id(3) in known(store)
    store.check_invariants()


def test_a_late_process_is_notified_of_objects_lost_by_a_restart() -> None:
    world = filled(2)
    world.send(CLIENT + process_id(9), m.Pinned(((object_id(0), 64, 10),)))
    world.send(CLIENT + process_id(9), m.GrantsHeld(((PIECE, PIECE, 0),)))
    effects = world.store.take_effects(world.now)
    assert [(effect.to, effect.message.kind) for effect in effects] == [(CLIENT + process_id(9), "ObjectLostError")] * 2


NUMBERS = st.integers(0, 11)
SIZES = st.sampled_from([0, 1, 1000, 70_000, PIECE // 2, PIECE - HEADER_BYTES, PIECE, 2 * PIECE + 5])
PROCESSES = st.integers(0, 3)


class AnyOrder(RuleBasedStateMachine):
    """Processes, a scheduler, a shell with faults and restarts, in any order; in the end everybody has an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(5)
        self.next_process = 4
        self.alive = {number: number for number in range(4)}
        self.next_object = 0

    def process(self, number: int):  # type: ignore[no-untyped-def]
        return self.world.process(self.alive[number])

    def existing(self, number: int) -> int | None:
        known = sorted(self.world.referenced)
        return int.from_bytes(known[number % len(known)], "big") if known else None

    @rule(number=PROCESSES, size=SIZES, exact=st.booleans(), patience=st.sampled_from([0.0, 1.0, 20.0]), wish=st.sampled_from([1, 8]))
    def reserve(self, number: int, size: int, exact: bool, patience: float, wish: int) -> None:
        self.world.reserve(self.process(number), size, exact, patience, wish)
        self.world.turn()

    @rule(number=PROCESSES, size=SIZES, rebuildable=st.booleans())
    def put(self, number: int, size: int, rebuildable: bool) -> None:
        if self.world.put(self.process(number), self.next_object, size, rebuildable):
            self.next_object += 1
            self.world.turn()

    @rule(number=PROCESSES, size=st.sampled_from([PIECE - HEADER_BYTES, 2 * PIECE]), rebuildable=st.booleans())
    def fill(self, number: int, size: int, rebuildable: bool) -> None:
        self.world.reserve(self.process(number), size, True, 1.0)
        self.world.turn()
        for _ in range(3):
            if self.world.pending:
                self.world.complete()
                self.world.turn()
        self.put(number, size, rebuildable)

    @rule(number=PROCESSES, which=NUMBERS)
    def put_again(self, number: int, which: int) -> None:
        known = self.existing(which)
        if known is not None:
            self.world.put(self.process(number), known, self.world.values[object_id(known)])
            self.world.turn()

    @rule(size=st.sampled_from([0, 100, 70_000]), rebuildable=st.booleans())
    def absorb(self, size: int, rebuildable: bool) -> None:
        identifier = object_id(self.next_object)
        self.next_object += 1
        self.world.values[identifier] = size
        self.world.referenced.add(identifier)
        if rebuildable:
            self.world.rebuildable.add(identifier)
        self.world.send(SCHEDULER, m.Absorb(((identifier, b"x" * size, rebuildable),)))
        self.world.turn()

    @rule(which=NUMBERS, number=PROCESSES)
    def locate(self, which: int, number: int) -> None:
        known = self.existing(which)
        if known is not None:
            self.world.locate(known, self.process(number))
            self.world.turn()

    @rule(number=PROCESSES)
    def unpin(self, number: int) -> None:
        for identifier in sorted(self.process(number).tellings):
            self.world.unpin(self.process(number), identifier)
        self.world.turn()

    @rule(which=NUMBERS)
    def free(self, which: int) -> None:
        known = self.existing(which)
        if known is not None and not any(key[0] == object_id(known) and count for key, count in self.world.asked.items()):
            self.world.free(known)
            self.world.turn()

    @rule(number=PROCESSES)
    def return_grants(self, number: int) -> None:
        self.world.return_grants(self.process(number))
        self.world.turn()

    @rule(number=PROCESSES)
    def kill(self, number: int) -> None:
        if self.alive[number] in {int(incarnation[-1]) for incarnation in self.world.processes}:
            self.world.kill(self.process(number))
            self.alive[number] = self.next_process
            self.next_process += 1
            self.world.turn()

    @rule(index=st.integers(0, 5), error=st.sampled_from(["", "", "", "broken"]))
    def complete(self, index: int, error: str) -> None:
        if self.world.pending:
            self.world.complete(index % len(self.world.pending), error)
            self.world.turn()

    @rule(seconds=st.sampled_from([0.1, 1.0, 12.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule()
    def restart(self) -> None:
        self.world.restart()

    def teardown(self) -> None:
        world = self.world
        for _ in range(30):
            world.pass_time(1.0)
            world.complete_all()
        for process in world.processes.values():
            assert process.waiting == {}, "a reservation was forgotten"
        assert +world.asked == {}, "a reader was forgotten"
        for process in world.processes.values():
            for identifier in sorted(process.tellings):
                world.unpin(process, identifier)
            world.return_grants(process)
        world.turn()
        for _ in range(10):
            world.pass_time(1.0)
            world.complete_all()
        for identifier in sorted(world.values):
            world.free(int.from_bytes(identifier, "big"))
        world.settle()
        statistics = world.store.statistics()
        assert statistics["ready"] + statistics["cold"] + statistics["granted"] == statistics["capacity"]
        assert (statistics["objects"], statistics["granted"], statistics["grants"]) == (0, 0, 0)
        assert world.disk == world.index == {}
        world.pass_time(30.0)
        assert world.store.next_deadline() is None


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
test_any_order = AnyOrder.TestCase


def test_an_arena_is_never_too_small_for_its_index_and_an_object() -> None:
    store = ObjectStore(b"Ostoretst", SCHEDULER, World(1).config, 1000)
    assert store.statistics()["capacity"] == PIECE
