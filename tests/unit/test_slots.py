"""Slots: a worker's page outlives it, is read when it is dead, and stays while the next daemon may need it."""

from __future__ import annotations

import os
from pathlib import Path

from zfabric.runtime.slots import COUNT, Slots, open_slot

TASK, ACTOR = b"t" * 16, b"a" * 16
FIRST, SECOND, THIRD = b"\x01first..", b"\x01second.", b"\x01third.."


def left(directory: Path, token: bytes, task: bytes = b"", ended: int | None = None, attempt: int = 0) -> None:
    """A worker that is dead now."""
    page = open_slot(str(directory), token)
    page[0 : len(task)] = task
    if ended is not None:
        COUNT.pack_into(page, 16, ended, attempt, ACTOR)
    page.close()


def test_the_page_of_a_dead_worker_is_read_once(tmp_path: Path) -> None:
    left(tmp_path, FIRST, TASK)
    slots = Slots(str(tmp_path))
    assert slots.read(FIRST) == (TASK, ())
    assert slots.read(FIRST) == (b"", ())
    assert os.listdir(tmp_path) == []


def test_the_number_of_ended_calls_is_retained_until_a_newer_page(tmp_path: Path) -> None:
    left(tmp_path, FIRST, ended=7)
    slots = Slots(str(tmp_path))
    assert slots.read(FIRST) == (b"", ((ACTOR, 7),))
    assert Slots(str(tmp_path)).read(FIRST) == (b"", ((ACTOR, 7),)), "for the next daemon"
    left(tmp_path, SECOND, ended=9)
    assert slots.read(SECOND) == (b"", ((ACTOR, 9),))
    assert os.listdir(tmp_path) == [f"{SECOND.hex()}.slot"]


def test_the_task_of_a_living_worker_is_read_and_unknown_pages_match_any_task(tmp_path: Path) -> None:
    slots = Slots(str(tmp_path))
    assert not slots.executes(FIRST, TASK), "it is gone"
    page = open_slot(str(tmp_path), FIRST)
    assert not slots.executes(FIRST, TASK)
    page[0 : len(TASK)] = TASK
    assert slots.executes(FIRST, TASK)
    assert not slots.executes(FIRST, b"o" * len(TASK))
    page.close()
    (tmp_path / f"{FIRST.hex()}.slot").write_bytes(b"")  # As on a full disk.
    assert slots.executes(FIRST, TASK)


def test_a_page_that_is_read_twice_stays(tmp_path: Path) -> None:
    left(tmp_path, FIRST, ended=7)
    slots = Slots(str(tmp_path))
    assert slots.read(FIRST) == slots.read(FIRST) == (b"", ((ACTOR, 7),))
    assert os.listdir(tmp_path) == [f"{FIRST.hex()}.slot"]


def test_the_page_of_an_actors_last_attempt_counts(tmp_path: Path) -> None:
    """Two daemons have named their workers, in no order."""
    left(tmp_path, FIRST, ended=9, attempt=2)
    left(tmp_path, SECOND, TASK, ended=12, attempt=1)
    assert Slots(str(tmp_path)).read_others(()) == ((ACTOR, 9),)
    assert os.listdir(tmp_path) == [f"{FIRST.hex()}.slot"]
    left(tmp_path, SECOND, ended=12, attempt=1)
    left(tmp_path, THIRD, ended=11, attempt=3)
    assert Slots(str(tmp_path)).read_others(()) == ((ACTOR, 11),)
    assert os.listdir(tmp_path) == [f"{THIRD.hex()}.slot"]


def test_the_page_of_a_dead_actor_is_removed(tmp_path: Path) -> None:
    left(tmp_path, FIRST, ended=7)
    slots = Slots(str(tmp_path))
    slots.read(FIRST)
    slots.release_all_but({ACTOR})
    assert len(os.listdir(tmp_path)) == 1
    slots.release_all_but(set())
    assert os.listdir(tmp_path) == []


def test_pages_of_all_dead_workers_are_read(tmp_path: Path) -> None:
    left(tmp_path, FIRST, TASK)
    left(tmp_path, SECOND, ended=3)
    left(tmp_path, THIRD, ended=5)
    (tmp_path / "0100").touch()
    assert Slots(str(tmp_path)).read_others({THIRD}) == ((ACTOR, 3),)
    assert sorted(os.listdir(tmp_path)) == sorted(["0100", f"{SECOND.hex()}.slot", f"{THIRD.hex()}.slot"])
