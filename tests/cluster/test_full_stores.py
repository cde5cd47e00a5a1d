"""A store that is full: values are written to its disk and read there, and what nobody refers to leaves nothing.

All tests share a cluster, whose store is empty when one begins.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blocks import STORE, Unpicklable, block, check, make, raises
from conftest import one_cluster
from faults import PATIENCE, eventually, failure, kill_daemon, objects_on_disk, query, session

import zfabric as zf

shared = one_cluster(object_store_memory=STORE, config={"put_patience": PATIENCE})


@pytest.fixture(autouse=True)
def empty_store(shared: Any) -> Iterator[None]:
    """Nothing is left of the values of a test."""
    yield
    gc.collect()  # Errors and their tracebacks refer to each other.
    eventually(lambda: count("objects") == 0, "nothing is kept of what nobody refers to")
    eventually(lambda: not list(Path(session().describe()["spill"]).iterdir()), "nor a file, of what nobody was told of")


def count(what: str) -> int:
    """A figure of the store."""
    return int(query("status")["store"][what])


def test_a_full_store_spills_to_disk_and_reads_back_what_was_written() -> None:
    spills = count("spills")
    refs = [zf.put(block(number)) if number % 2 else make.remote(number) for number in range(60)]
    assert zf.get([check.remote(ref, number) for number, ref in enumerate(refs)], timeout=PATIENCE) == [True] * 60
    for number, ref in enumerate(refs):
        assert (zf.get(ref, timeout=PATIENCE) == number).all()
    spilled = list(Path(session().describe()["spill"]).iterdir())
    assert spilled
    assert count("spills") > spills


def test_wait_fetches_values_unless_fetch_local_is_false() -> None:
    restores = count("restores")
    refs = [make.remote(number) for number in range(40)]
    ready, rest = zf.wait(refs, num_returns=40, timeout=PATIENCE, fetch_local=False)
    assert (len(ready), rest) == (40, [])
    assert count("restores") == restores, "they are there, on disk most of them, and nobody has asked for more"
    for ref in refs[:4]:
        assert zf.wait([ref], timeout=PATIENCE) == ([ref], [])
        assert (zf.get(ref, timeout=0) == refs.index(ref)).all(), "what wait has counted is here"
    assert count("restores") > restores


def test_a_store_full_of_pinned_values_uses_the_disk() -> None:
    written = count("written_on_disk")
    refs: list[Any] = []
    views: list[Any] = []
    for number in range(30):
        refs.append(zf.put(block(number)))
        views.append(zf.get(refs[-1]))
    refs.append(zf.put(b"x" * 70_000))  # which would share a grant with others
    assert zf.get(refs[-1], timeout=PATIENCE) == b"x" * 70_000
    assert all((view == number).all() for number, view in enumerate(views))
    assert zf.get(check.remote(refs[-2], 29), timeout=PATIENCE), "others read it where it is"
    assert zf.get(check.remote(make.remote(7), 7), timeout=PATIENCE), "a task's value goes there too"
    assert count("written_on_disk") - written > 10
    kill_daemon()
    refs.append(zf.put(block(31)))
    views.append(zf.get(refs[-1]))
    assert zf.get([check.remote(refs[number], number) for number in range(30)], timeout=PATIENCE) == [True] * 30
    del refs
    assert all((view == (number if number < 30 else 31)).all() for number, view in enumerate(views)), "what is read stays"


@zf.remote(num_returns=8, max_retries=0)
def eight() -> tuple[Any, ...]:
    return tuple(block(number, 16) for number in range(8))


@zf.remote(num_returns="streaming", max_retries=0)
def stream() -> Iterator[Any]:
    for number in range(8):
        yield block(number, 16)


@zf.remote(num_returns=2, max_retries=0)
def half_large() -> Any:
    return tuple(block(number, 16) for number in range(8)), Unpicklable()


def test_values_of_one_task_may_be_larger_than_the_store_together() -> None:
    refs = eight.remote()
    assert zf.get([check.remote(ref, number) for number, ref in enumerate(refs)], timeout=PATIENCE) == [True] * 8
    del refs
    values = [zf.get(ref, timeout=PATIENCE) for ref in stream.remote()]
    assert all((value == number).all() for number, value in enumerate(values))
    del values
    for ref in half_large.remote():
        assert failure(ref) is not None


def test_more_values_than_the_store_has_room_for_are_read_from_disk() -> None:
    refs = [zf.put(block(number, 16)) if number % 2 else make.remote(number, 16) for number in range(10)]
    values = zf.get(refs, timeout=PATIENCE)
    assert all((value == number).all() for number, value in enumerate(values))
    with pytest.raises(ValueError, match="read-only"):
        values[0][0] = 1
    assert count("objects_read_on_disk") >= 6
    del values
    zf.get(zf.remote(lambda *arrays: sum(map(check_number, arrays))).remote(*refs), timeout=PATIENCE)


def check_number(array: Any) -> int:
    return int(array[0])


def test_a_writer_that_dies_leaves_no_file() -> None:
    views = [zf.get(zf.put(block(number))) for number in range(15)]
    assert len(views) == 15

    @zf.remote(max_retries=1)
    def dies_while_it_writes(marks: str) -> Any:
        if not os.path.exists(marks):
            os.mkdir(marks)

            def die(*_: Any) -> None:
                os._exit(1)

            import zfabric.adapters.spill as spill

            spill._write_all = die
        return block(77)

    ref = dies_while_it_writes.remote(session().directory + "/logs/mark")
    assert zf.get(check.remote(ref, 77), timeout=PATIENCE)
    assert os.path.exists(session().directory + "/logs/mark")
    eventually(lambda: count("files_granted") == 0, "what the dead one was given is taken back")
    del ref
    directory = Path(session().describe()["spill"])
    eventually(lambda: not list(directory.glob("*.partial")), "and its file is gone")


@zf.remote
class Receiver:
    def take(self, *arrays: Any) -> int:
        return len(arrays)


def test_a_call_may_have_more_arguments_than_the_store_has_room_for() -> None:
    refs = [zf.put(block(number, 8)) for number in range(12)]
    assert zf.get(Receiver.remote().take.remote(*refs), timeout=PATIENCE) == 12


def test_a_put_that_waits_for_room_gets_it_when_another_object_is_released() -> None:
    refs = [zf.put(block(number, 8)) for number in range(7)]
    views = [zf.get(ref) for ref in refs[:6]]
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.extend(zf.put(block(50 + index, 8)) for index in range(4)))
    thread.start()
    thread.join(0.5)
    assert (views[5] == 5).all()
    views.clear()
    thread.join(PATIENCE)
    assert zf.get([check.remote(ref, 50 + index) for index, ref in enumerate(done)], timeout=PATIENCE) == [True] * 4
    assert zf.get([check.remote(ref, index) for index, ref in enumerate(refs)], timeout=PATIENCE) == [True] * 7


def test_a_view_is_valid_after_its_ref_is_gone_and_while_the_store_is_refilled() -> None:
    view = zf.get(zf.put(block(7)))
    part = view[1000:2000]
    del view
    for number in range(40):
        zf.put(block(number))
    assert (part == 7).all()
    with pytest.raises(ValueError, match="read-only"):
        part[0] = 1
    writable = zf.get(zf.put(block(3)), copy=True)
    writable[0] = 1


def test_objects_written_by_workers_that_were_killed_are_whole_or_made_again() -> None:
    @zf.remote(max_retries=20)
    def write_and_die(number: int, marks: str) -> Any:
        path = Path(marks, str(number))
        if not path.exists():
            path.touch()
            zf.put(block(-1))
            zf.put(np.zeros(100_000))
            os._exit(1)
        return block(number)

    refs = [write_and_die.remote(number, session().directory + "/logs") for number in range(8)]
    assert zf.get([check.remote(ref, number) for number, ref in enumerate(refs)], timeout=PATIENCE) == [True] * 8


def test_a_put_value_whose_file_is_damaged_is_an_error_that_offers_durable() -> None:
    refs = [zf.put(block(number)) for number in range(40)]
    damaged = eventually(objects_on_disk, "something was spilled")
    for path in damaged.values():
        path.write_bytes(path.read_bytes()[:1000])
    lost = [ref for ref in refs if ref.hex() in damaged]
    assert lost
    error = failure(lost[0])
    assert isinstance(error, zf.ObjectLostError)
    assert "durable=True" in str(error)


def test_a_task_value_whose_file_is_damaged_is_made_again() -> None:
    refs = [make.remote(number) for number in range(40)]
    zf.wait(refs, num_returns=len(refs), timeout=PATIENCE, fetch_local=False)
    directory = Path(session().describe()["spill"])
    files = eventually(lambda: list(directory.rglob("*.object")), "something was spilled")
    for path in files:
        path.write_bytes(b"")
    for number, ref in enumerate(refs):
        assert zf.get(check.remote(ref, number), timeout=PATIENCE)


def test_a_large_error_whose_object_is_lost_arrives_cut_down_with_the_reason() -> None:
    ref = raises.remote(4)
    zf.wait([ref], timeout=PATIENCE)
    fill = [zf.put(block(number)) for number in range(40)]
    for path in eventually(lambda: list(objects_on_disk().values()), "the whole error is on disk"):
        path.unlink()
    error = failure(ref)
    assert isinstance(error, ValueError)
    assert len(error.args[0]) < 40_000
    assert any("cut down" in note and "lost" in note for note in error.__notes__)
    del fill
