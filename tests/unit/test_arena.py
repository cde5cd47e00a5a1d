"""The arena and the spill directory on the real system: memory, other processes, kills, full disks."""

from __future__ import annotations

import errno
import os
import queue
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from faults import PATIENCE

import zfabric as zf
from zfabric.adapters import arena as arena_module
from zfabric.adapters import mapping as mapping_module
from zfabric.adapters.arena import Arena, create_arena
from zfabric.adapters.spill import SpillDirectory, SpillFiles
from zfabric.config import Config
from zfabric.machines.common.extents import HEADER_BYTES, PIECE, data_start, file_offset, footprint
from zfabric.machines.object_store.machine import ObjectStore
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT
from zfabric.protocol.inside import with_refs
from zfabric.runtime.arena_access import ArenaAccess
from zfabric.runtime.connection import Connection
from zfabric.runtime.storage import Storage

SIZE = 16 * PIECE
FIRST = data_start(SIZE) + HEADER_BYTES
STORE, SCHEDULER, SHELL = b"Ostoretst", b"Lschedule", b"Xshellshe"
WRITER = b"writer01"


def object_id(number: int) -> bytes:
    return number.to_bytes(20, "big")


@pytest.fixture(params=["anonymous", "directory"])
def path(request: pytest.FixtureRequest) -> Iterator[str]:
    descriptor = create_arena("" if request.param == "anonymous" else "/dev/shm", SIZE)
    yield f"/proc/{os.getpid()}/fd/{descriptor}"
    os.close(descriptor)


@pytest.fixture
def arena(path: str) -> Iterator[Arena]:
    opened = Arena(path, SIZE, writable=True)
    yield opened
    opened.close()


class Shell:
    """Performs the store's effects on a real arena and a real directory, at once."""

    def __init__(self, arena: Arena, directory: Path, recovering: bool = False) -> None:
        self.arena = arena
        self.spill = SpillDirectory(str(directory))
        self.store = ObjectStore(STORE, SCHEDULER, Config(), SIZE, recovering)
        self.sent: list[e.Send] = []
        if recovering:
            self.send(SHELL, m.ArenaFound(tuple(arena.find_sealed()), tuple(self.spill.list())))

    def send(self, source: bytes, message: object) -> None:
        self.store.step(1.0, source, message)  # type: ignore[arg-type]
        self.turn()

    def turn(self) -> None:
        while effects := self.store.take_effects(1.0):
            for effect in effects:
                answer = self.perform(effect)
                if answer is not None:
                    self.store.step(1.0, SHELL, answer)
            self.store.check_invariants()

    def perform(self, effect: e.Effect) -> m.Message | None:
        if isinstance(effect, e.Send):
            self.sent.append(effect)
        elif isinstance(effect, e.MakeReady):
            return m.ExtentReady(effect.offset, effect.size, self.arena.make_ready(effect.offset, effect.size))
        elif isinstance(effect, e.Punch):
            self.arena.punch(effect.offset, effect.size)
        elif isinstance(effect, e.Spill):
            self.spill.write(effect.file, effect.object_id, self.arena.view(effect.offset, effect.size))
            return m.Spilled(effect.object_id, "")
        elif isinstance(effect, e.Unspill):
            self.spill.read_into(effect.file, effect.object_id, self.arena.writable(effect.offset, effect.size))
            self.arena.seal(effect.offset, effect.object_id, effect.size)
            return m.Restored(effect.object_id, "")
        elif isinstance(effect, e.Unlink):
            for number in effect.files:
                self.spill.remove(number)
        elif isinstance(effect, e.WriteValue):
            self.arena.write(effect.offset, effect.object_id, effect.value)
        elif isinstance(effect, e.WriteHeader):
            assert self.arena.mark(effect.offset, effect.state)
        elif isinstance(effect, e.Clear):
            self.arena.clear(effect.offset, effect.size)
        return None

    def received(self, kind: type) -> list[object]:
        return [send.message for send in self.sent if isinstance(send.message, kind)]


# -- memory ---------------------------------------------------------------------------------------------------------------------


def test_an_arena_costs_nothing_until_it_is_used_and_has_no_name(path: str) -> None:
    assert os.stat(path).st_size == SIZE
    assert os.stat(path).st_blocks == 0
    assert os.stat(path).st_nlink == 0
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert not [name for name in os.listdir("/dev/shm") if "zfabric-arena" in name]


def test_an_anonymous_arena_can_neither_shrink_nor_grow() -> None:
    descriptor = create_arena("", SIZE)
    try:
        for size in (PIECE, 2 * SIZE):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def test_mappings_are_aligned_so_that_huge_pages_can_be_mapped(arena: Arena) -> None:
    assert arena._mapping is not None
    assert arena._mapping.address % PIECE == 0


def test_views_are_read_only_and_see_what_was_written(arena: Arena) -> None:
    assert arena.make_ready(data_start(SIZE), PIECE) == ""
    arena.writable(FIRST, 5)[:] = b"hello"
    view = arena.view(FIRST, 5)
    assert bytes(view) == b"hello"
    assert view.readonly
    with pytest.raises(TypeError):
        view[0] = 1


def test_a_view_outlives_the_arena_it_came_from(path: str) -> None:
    opened = Arena(path, SIZE, writable=True)
    assert opened.make_ready(data_start(SIZE), PIECE) == ""
    opened.write(FIRST, object_id(1), b"still here")
    view = opened.view(FIRST, 10)
    opened.close()
    del opened
    assert bytes(view) == b"still here"


def test_an_arena_of_another_size_is_refused(path: str) -> None:
    with pytest.raises(OSError, match="bytes"):
        Arena(path, 2 * SIZE, writable=False)


def test_memory_is_allocated_when_made_ready_and_freed_when_punched(arena: Arena, path: str) -> None:
    start = data_start(SIZE)
    assert arena.make_ready(start, 3 * PIECE) == ""
    assert os.stat(path).st_blocks * 512 == 3 * PIECE
    assert bytes(arena.view(start, 3 * PIECE)) == bytes(3 * PIECE)
    arena.writable(start, 4)[:] = b"data"
    arena.punch(start, PIECE)
    assert os.stat(path).st_blocks * 512 == 2 * PIECE
    assert arena.make_ready(start, PIECE) == ""
    assert bytes(arena.view(start, 4)) == bytes(4)


def test_a_system_without_memory_is_a_readable_error(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        assert "ENOSPC" in arena.make_ready(data_start(SIZE), PIECE)
    monkeypatch.setattr(arena_module, "_MEMORY_RESERVE", 2**60)
    assert "memory left" in arena.make_ready(data_start(SIZE), PIECE)


FULL_TMPFS = """
    import subprocess, sys
    from zfabric.adapters.arena import Arena, create_arena
    from zfabric.machines.common.extents import PIECE, data_start
    directory = sys.argv[1]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", directory], check=True)
    descriptor = create_arena(directory, 64 * PIECE)
    arena = Arena(f"/proc/self/fd/{descriptor}", 64 * PIECE, writable=True)
    start, ready = data_start(64 * PIECE), 0
    while not (error := arena.make_ready(start + ready, PIECE)):
        arena.writable(start + ready, PIECE)[:] = b"x" * PIECE
        ready += PIECE
    arena.punch(start + ready, PIECE)
    assert bytes(arena.view(start, ready)) == b"x" * ready
    print(ready // PIECE, error)
"""


def test_a_full_tmpfs_is_an_error_and_never_a_signal(tmp_path: Path) -> None:
    """In a mount namespace of its own, where that is allowed; else against a limit on the size of files."""
    script = textwrap.dedent(FULL_TMPFS)
    may_mount = subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0
    if may_mount:
        command = ["unshare", "-rm", sys.executable, "-c", script, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(("3 ", "4 "))
        assert "ENOSPC" in done.stdout
        return
    child = os.fork()
    if not child:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (PIECE, PIECE))
        try:
            create_arena("/dev/shm", SIZE)
        except OSError as error:
            os._exit(0 if error.errno == errno.EFBIG else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class HugePages:
    """The system's huge pages, asked for through ``madvise``: how often, and how long they take to come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.seconds = 0.0
        """Processor time for each call."""
        self.waiting = 0.0
        """Time besides, for each call."""
        self.now = self.worked = 0.0
        real = mapping_module._libc.madvise
        monkeypatch.setattr(arena_module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(arena_module.time, "thread_time", lambda: self.worked)

        def madvise(address: int, size: int, advice: int) -> int:
            if advice == arena_module._MADV_COLLAPSE:
                self.asked += 1
                self.worked += self.seconds
                self.now += self.seconds + self.waiting
            return int(real(address, size, advice))

        monkeypatch.setattr(mapping_module._libc, "madvise", madvise)

    def asked_for(self, arena: Arena) -> int:
        """How often they are asked for while three pieces are made ready."""
        before = self.asked
        assert arena.make_ready(data_start(SIZE), 3 * PIECE) == ""
        return self.asked - before


def test_pages_are_huge_for_as_long_as_they_come_fast_however_busy_the_machine_is(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = HugePages(monkeypatch)
    pages.seconds, pages.waiting = PIECE / 2**40, 0.2
    for count in range(1, 8):
        assert arena.make_ready(data_start(SIZE), PIECE) == ""
        assert pages.asked == count


def test_small_pages_are_taken_while_huge_ones_come_slowly(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = HugePages(monkeypatch)
    pages.seconds = 3 * PIECE / 2**30
    pause = arena_module._TRY_AGAIN_SECONDS
    assert pages.asked_for(arena) == 1
    assert pages.asked_for(arena) == 0
    for _ in range(10):
        pages.now += 0.99 * pause
        assert pages.asked_for(arena) == 0
        pages.now += 0.02 * pause
        assert pages.asked_for(arena) == 1, "one piece is tried"
        pause = min(2 * pause, arena_module._TRY_AGAIN_SECONDS_MOST)
    pages.now += pause
    pages.seconds = PIECE / 2**40
    assert pages.asked_for(arena) == 2, "and the rest as well, since that one came fast"
    assert pages.asked_for(arena) == 1, "and fast again"
    pages.seconds = 3 * PIECE / 2**30
    assert pages.asked_for(arena) == 1
    pages.now += 1.01 * arena_module._TRY_AGAIN_SECONDS
    assert pages.asked_for(arena) == 1, "the first pause is short again"


# -- what a restart finds -------------------------------------------------------------------------------------------------------


def test_only_objects_with_matching_index_and_header_are_found(arena: Arena, path: str) -> None:
    assert arena.make_ready(data_start(SIZE), 2 * PIECE) == ""
    places = [FIRST + number * footprint(100) for number in range(6)]
    for number, offset in enumerate(places[:5]):
        arena.write(offset, object_id(number), bytes([number]) * 100)
        assert arena.mark(offset, e.SEALED)
    assert not arena.mark(places[5], e.SEALED), "it was never sealed"
    arena.mark(places[1], e.FREED)
    arena.writable(places[2] - HEADER_BYTES, 4)[:] = b"junk"
    arena.write(places[3], object_id(33), b"other")
    again = Arena(path, SIZE, writable=True)
    assert again.find_sealed() == [(object_id(0), places[0], 100), (object_id(4), places[4], 100)]
    assert again.mark(places[3], e.SEALED)
    again.mark(places[0], e.FREED)
    assert sorted(arena.find_sealed()) == [(object_id(4), places[4], 100), (object_id(33), places[3], 5)]
    again.close()


def test_the_index_grows_and_its_entries_are_used_again(arena: Arena) -> None:
    assert arena.make_ready(data_start(SIZE), 2 * PIECE) == ""
    places = [FIRST + number * footprint(1) for number in range(3000)]
    for number, offset in enumerate(places):
        arena.write(offset, object_id(number), b"x")
        assert arena.mark(offset, e.SEALED)
    for offset in places[::2]:
        arena.mark(offset, e.FREED)
    assert len(arena.find_sealed()) == 1500
    for number, offset in enumerate(places[::2]):
        arena.write(offset, object_id(number), b"y")
        assert arena.mark(offset, e.SEALED)
    assert len(arena.find_sealed()) == 3000
    assert arena._slots_used == 3000


def test_a_full_index_is_reported_and_harmless(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    assert arena.make_ready(data_start(SIZE), PIECE) == ""
    arena.write(FIRST, object_id(1), b"x")
    monkeypatch.setattr(arena, "_index_end", 0)
    assert not arena.mark(FIRST, e.SEALED)


WRITING = """
    import sys
    from zfabric.adapters.arena import Arena
    path, size, piece = sys.argv[1], int(sys.argv[2]), 1 << 20
    arena = Arena(path, size, writable=True)
    for line in sys.stdin:
        number, offset, whole = map(int, line.split())
        target = arena.writable(offset, piece)
        if whole:
            target[:] = bytes([number]) * piece
            arena.seal(offset, number.to_bytes(20, "big"), piece)
        else:
            target[: piece // 2] = bytes([number]) * (piece // 2)
        print("done", flush=True)
"""


def granted(shell: Shell, token: int, size: int, wish: int = 0) -> m.Granted:
    shell.send(CLIENT + WRITER, m.Reserve(token, size, wish, 1.0))
    answer = shell.received(m.Granted)[-1]
    assert isinstance(answer, m.Granted)
    assert answer.token == token
    return answer


def test_a_restarted_store_finds_sealed_objects_and_nothing_of_a_killed_writer(arena: Arena, path: str, tmp_path: Path) -> None:
    shell = Shell(arena, tmp_path)
    size = 2**20
    command = [sys.executable, "-c", textwrap.dedent(WRITING), path, str(SIZE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for number in range(1, 6):
            room = granted(shell, number, size)
            offset = room.offset + HEADER_BYTES
            writer.stdin.write(f"{number} {offset} {int(number < 5)}\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "done\n"
            if number < 4:
                shell.send(SCHEDULER, m.Sealed(((object_id(number), offset, size, WRITER, False),)))
        writer.kill()
        assert writer.wait() == -signal.SIGKILL
    shell.send(SCHEDULER, m.Free((object_id(2),)))

    # Object 4 was sealed but not reported, 5 was half written when its writer and then the store died.
    again = Shell(Arena(path, SIZE, writable=True), tmp_path, recovering=True)
    again.send(SCHEDULER, m.RetainOnly((object_id(1), object_id(3))))
    assert again.store.statistics()["objects"] == 2
    again.send(SCHEDULER, m.Locate(((object_id(1), WRITER), (object_id(3), WRITER), (object_id(4), WRITER))))
    (located,) = again.received(m.Located)
    for (identifier, _, offset, length), number in zip(located.rows, (1, 3), strict=True):  # type: ignore[attr-defined]
        assert identifier == object_id(number)
        assert bytes(arena.view(offset, length)) == bytes([number]) * size
    assert again.received(m.ObjectsLost) == [m.ObjectsLost(((object_id(4), "missing"),))]
    statistics = again.store.statistics()
    assert statistics["used"] == 2 * footprint(size)
    assert statistics["ready"] + statistics["cold"] == statistics["capacity"] - 2 * footprint(size)
    assert os.stat(path).st_blocks * 512 <= 64 * 2**10 + statistics["used"] + statistics["ready"]


def test_the_index_lists_an_object_though_the_storage_thread_makes_room(
    arena: Arena, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer drops the value as soon as the store has it: if the daemon dies then, only the index lists it."""
    assert arena.make_ready(data_start(SIZE), PIECE) == ""
    arena.write(FIRST, object_id(1), b"value")
    answers: queue.SimpleQueue[m.Message] = queue.SimpleQueue()
    go_on = threading.Event()
    monkeypatch.setattr(Arena, "make_ready", lambda arena, offset, size: "" if go_on.wait() else "not reached")
    storage = Storage(path, SIZE, str(tmp_path), answers.put)
    storage.perform(e.MakeReady(data_start(SIZE) + PIECE, PIECE))
    storage.perform(e.WriteHeader(FIRST, e.SEALED))
    assert Arena(path, SIZE, writable=False).find_sealed() == [(object_id(1), FIRST, 5)]
    storage.perform(e.WriteHeader(FIRST, e.FREED))
    assert Arena(path, SIZE, writable=False).find_sealed() == []
    go_on.set()
    assert type(answers.get(timeout=PATIENCE)) is m.ExtentReady
    storage.close()


def test_a_copy_counts_only_if_the_object_is_there(arena: Arena) -> None:
    """Not before it is sealed, under another id or size, after its room was given up, or where there is no memory."""
    assert arena.make_ready(data_start(SIZE), PIECE) == ""
    assert arena.copy(FIRST, 5, object_id(1)) is None
    arena.write(FIRST, object_id(1), b"value")
    assert arena.mark(FIRST, e.SEALED)
    copied = arena.copy(FIRST, 5, object_id(1))
    assert copied is not None
    assert bytes(copied) == b"value"
    assert arena.copy(FIRST, 5, object_id(2)) is None
    assert arena.copy(FIRST, 4, object_id(1)) is None
    for offset, size in ((0, 5), (HEADER_BYTES, 5), (SIZE, 5), (SIZE - 5, 5), (2**60, 5), (FIRST, 2**60), (FIRST + 8 * PIECE, 5)):
        assert arena.copy(offset, size, object_id(1)) is None
    arena.mark(FIRST, e.FREED)
    assert arena.copy(FIRST, 5, object_id(1)) is None
    assert bytes(copied) == b"value"


def test_copies_of_objects_that_others_overwrite_are_whole_or_none(arena: Arena) -> None:
    """What the store does when it gives room away, again and again, beside readers that know the old places."""
    assert arena.make_ready(data_start(SIZE), 3 * PIECE) == ""
    size, ended = 2 * PIECE, threading.Event()
    torn: list[int] = []
    seen = {"whole": 0, "none": 0}
    values = b"0" * size, b"1" * size
    number = 1

    def read() -> None:
        while not ended.is_set():
            known = number
            copied = arena.copy(FIRST, size, object_id(known))
            seen["none" if copied is None else "whole"] += 1
            if copied is not None and bytes(copied) != values[known % 2]:
                torn.append(known)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    while min(seen.values()) < 50 and not torn:
        arena.write(FIRST, object_id(number), values[number % 2])
        ended.wait(0.001 * (number % 4))  # So that copies are under way at this moment, or have ended.
        arena.mark(FIRST, e.FREED)
        number += 1
    ended.set()
    for reader in readers:
        reader.join()
    assert not torn


@pytest.mark.parametrize("alone", [False, True])
def test_what_a_dead_process_wrote_is_void_before_its_room_is_given_away(arena: Arena, tmp_path: Path, alone: bool) -> None:
    """It may have told others of a place, and not the store."""
    shell = Shell(arena, tmp_path)
    size = 3 * PIECE if alone else 1000
    room = granted(shell, 1, size, 0 if alone else PIECE)
    arena.write(room.offset + HEADER_BYTES, object_id(1), b"v" * size)
    assert arena.copy(room.offset + HEADER_BYTES, size, object_id(1)) is not None
    shell.send(SCHEDULER, m.ProcessGone(WRITER))
    assert arena.copy(room.offset + HEADER_BYTES, size, object_id(1)) is None


def test_a_restarted_store_voids_what_nobody_claims(arena: Arena, tmp_path: Path) -> None:
    """A process may have died with its daemon, and have told others of a place."""
    shell = Shell(arena, tmp_path)
    size = 1000
    room = granted(shell, 1, size, PIECE)
    kept, lost = room.offset + HEADER_BYTES, room.offset + HEADER_BYTES + footprint(size)
    for number, offset in ((1, kept), (2, lost)):
        arena.write(offset, object_id(number), b"v" * size)
    shell.send(SCHEDULER, m.Sealed(((object_id(1), kept, size, WRITER, False),)))
    after = Shell(arena, tmp_path, recovering=True)
    after.send(SCHEDULER, m.RetainOnly((object_id(1),)))
    assert arena.copy(kept, size, object_id(1)) is not None
    assert arena.copy(lost, size, object_id(2)) is None


def test_objects_go_to_disk_and_come_back_unchanged(arena: Arena, tmp_path: Path) -> None:
    shell = Shell(arena, tmp_path)
    size = 3 * PIECE
    for number in range(1, 12):
        room = granted(shell, number, size)
        arena.write(room.offset + HEADER_BYTES, object_id(number), bytes([number]) * size)
        shell.send(SCHEDULER, m.Sealed(((object_id(number), room.offset + HEADER_BYTES, size, WRITER, False),)))
    assert shell.store.statistics()["objects_spilled"] >= 6
    for number in range(1, 12):
        shell.send(SCHEDULER, m.Locate(((object_id(number), WRITER),)))
        ((_, _, offset, length),) = shell.received(m.Located)[-1].rows  # type: ignore[attr-defined]
        assert bytes(arena.view(offset, length)) == bytes([number]) * size
        shell.send(CLIENT + WRITER, m.Unpin((object_id(number),)))
    shell.send(SCHEDULER, m.Free(tuple(map(object_id, range(1, 12)))))
    assert os.listdir(tmp_path) == []
    assert arena.find_sealed() == []


def test_inline_values_become_objects(arena: Arena, tmp_path: Path) -> None:
    shell = Shell(arena, tmp_path)
    shell.send(SCHEDULER, m.Absorb(((object_id(1), b"inline", False), (object_id(2), b"", False))))
    shell.send(SCHEDULER, m.Locate(((object_id(1), WRITER), (object_id(2), WRITER))))
    (located,) = shell.received(m.Located)
    values = [bytes(arena.view(offset, length)) for _, _, offset, length in located.rows]  # type: ignore[attr-defined]
    assert values == [b"inline", b""]
    assert len(arena.find_sealed()) == 2


def test_a_restart_finds_the_refs_inside_values(arena: Arena, path: str, tmp_path: Path) -> None:
    assert arena.make_ready(data_start(SIZE), PIECE) == ""
    inside = tuple(object_id(number) for number in range(10, 15))
    values = {object_id(1): with_refs(b"value" * 100, inside), object_id(2): b"value", object_id(3): b""}
    for number, (identifier, value) in enumerate(values.items()):
        arena.write(FIRST + number * footprint(1000), identifier, value)
        assert arena.mark(FIRST + number * footprint(1000), e.SEALED)
    spilled = str(tmp_path / "spill")
    SpillDirectory(spilled).write(7, object_id(4), with_refs(b"", inside[:1]))
    SpillDirectory(spilled).make(8, 100)
    storage = Storage(path, SIZE, spilled, lambda message: None)
    found = storage.found()
    assert len(found.sealed) == 3
    assert len(found.spilled) == 2
    assert found.inside == ((object_id(1), inside), (object_id(4), inside[:1]))


# -- spilled files -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def spill(tmp_path: Path) -> SpillDirectory:
    return SpillDirectory(str(tmp_path / "spill"))


def test_spilled_objects_are_for_this_user_alone(spill: SpillDirectory, tmp_path: Path) -> None:
    spill.write(1, object_id(1), memoryview(b"data"))
    assert (tmp_path / "spill").stat().st_mode & 0o777 == 0o700
    (file,) = (tmp_path / "spill").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.name == "1.object"


@pytest.mark.parametrize("size", [0, 1, 2**20 - 1, 2**20, 3 * 2**20 + 7])
def test_spilled_bytes_come_back(spill: SpillDirectory, size: int) -> None:
    data = os.urandom(size)
    spill.write(1, object_id(1), memoryview(data))
    assert spill.list() == [(object_id(1), size, 1)]
    target = bytearray(size)
    spill.read_into(1, object_id(1), memoryview(target))
    assert target == data
    spill.remove(1)
    spill.remove(1)
    assert spill.list() == []
    with pytest.raises(FileNotFoundError):
        spill.read_into(1, object_id(1), memoryview(target))


@pytest.mark.parametrize("damage", ["cut", "header", "flip", "other"])
def test_a_damaged_file_is_an_error_and_never_wrong_data(spill: SpillDirectory, tmp_path: Path, damage: str) -> None:
    data = bytes(range(256)) * 100
    spill.write(1, object_id(1), memoryview(data))
    (file,) = (tmp_path / "spill").iterdir()
    content = bytearray(file.read_bytes())
    if damage == "flip":
        content[1000] ^= 1
    file.write_bytes({"cut": content[:-1], "header": content[:10], "flip": content, "other": content[:32] + b"x" + content[33:]}[damage])
    with pytest.raises(OSError):
        spill.read_into(1, object_id(1), memoryview(bytearray(len(data))))
    with pytest.raises(OSError):
        spill.check(1, object_id(1), len(data))
    assert ((object_id(1), len(data), 1) in spill.list()) == (damage == "flip")


def test_a_full_disk_leaves_no_partial_file(spill: SpillDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write

    def short(descriptor: int, data: memoryview) -> int:
        if len(data) < 2**19:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data[: 2**18])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda descriptor, data: short(descriptor, data) if len(data) > 100 else real(descriptor, data))
        with pytest.raises(OSError, match="No space left"):
            spill.write(1, object_id(1), memoryview(bytes(2**20)))
    assert list((tmp_path / "spill").iterdir()) == []


SPILLING = """
    import os, signal, sys
    from zfabric.adapters.spill import SpillDirectory
    spill = SpillDirectory(sys.argv[1])
    spill.write(1, (1).to_bytes(20, "big"), memoryview(b"whole"))
    os.rename = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
    spill.write(2, (2).to_bytes(20, "big"), memoryview(b"never renamed"))
"""


def test_a_kill_in_the_middle_of_a_spill_leaves_only_whole_objects(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(SPILLING), str(tmp_path)], timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    assert SpillDirectory(str(tmp_path)).list() == [(object_id(1), 5, 1), (b"", 0, 2)]


def test_a_file_that_a_process_writes_is_an_object_once_it_was_taken_over(spill: SpillDirectory, tmp_path: Path) -> None:
    spill.make(3, 3 * 2**20)
    assert (tmp_path / "spill/3.partial").stat().st_blocks * 512 >= 3 * 2**20, "the disk's room is behind it"
    files = SpillFiles(str(tmp_path / "spill"))
    files.fill(3, object_id(3), [b"a" * 2**20, memoryview(b"b" * 2**21)])
    assert spill.list() == [(b"", 0, 3)]
    assert bytes(files.map(3, 3 * 2**20)[:1]) == b"a", "its writer may read it already"
    spill.take_over(3)
    assert spill.list() == [(object_id(3), 3 * 2**20, 3)]
    spill.check(3, object_id(3), 3 * 2**20)
    with pytest.raises(OSError, match="of something else"):
        spill.check(3, object_id(4), 3 * 2**20)
    view = files.map(3, 3 * 2**20)
    assert view[2**20 - 1 : 2**20 + 1] == b"ab"
    view[0] = 0
    spill.remove(3)
    assert view[:2] == b"\0a", "who has it mapped goes on reading, and has written for himself alone"
    with pytest.raises(FileNotFoundError):
        files.map(3, 1)


def test_a_file_that_has_lost_its_end_since_it_was_checked_is_a_lost_object(path: str, spill: SpillDirectory, tmp_path: Path) -> None:
    spill.write(3, object_id(3), memoryview(b"whole"))
    values = ArenaAccess(cast(Connection, None), path, SIZE, str(tmp_path / "spill"))
    place = (file_offset(3), 5)
    assert values.view(place) == b"whole"
    (tmp_path / "spill/3.object").write_bytes(b"")
    with pytest.raises(zf.ObjectLostError, match=r"is damaged.*has lost its end"):
        values.view(place)
    spill.remove(3)
    with pytest.raises(zf.ObjectLostError, match="is gone"):
        values.view(place)


def test_a_private_view_of_the_arena_changes_nothing(arena: Arena) -> None:
    offset = arena_module.data_start(SIZE) + HEADER_BYTES
    assert arena.make_ready(offset - HEADER_BYTES, PIECE) == ""
    arena.write(offset, object_id(1), b"x" * 10_000)
    view = arena.private(offset + 100, 9_900)
    view[:] = b"y" * 9_900
    assert arena.view(offset, 10_000) == b"x" * 10_000
    assert view == b"y" * 9_900
    assert arena.private(offset, 0) == b""


def test_nothing_of_an_arena_is_left_when_its_processes_are_killed() -> None:
    """The creator is killed while another process has it mapped; with the last of them the memory is gone."""
    script = f"""
        import os, sys
        from zfabric.adapters.arena import Arena, create_arena
        descriptor = create_arena("", {SIZE})
        arena = Arena(f"/proc/self/fd/{{descriptor}}", {SIZE}, writable=True)
        assert arena.make_ready({data_start(SIZE)}, {8 * PIECE}) == ""
        arena.write({FIRST}, bytes(20), b"shared")
        print(descriptor, flush=True)
        sys.stdin.read()
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as creator:
        assert creator.stdout is not None
        descriptor = int(creator.stdout.readline())
        inode = os.stat(f"/proc/{creator.pid}/fd/{descriptor}").st_ino
        reader = Arena(f"/proc/{creator.pid}/fd/{descriptor}", SIZE, writable=False)
        creator.kill()
        creator.wait()
    assert bytes(reader.view(FIRST, 6)) == b"shared"
    with pytest.raises(OSError):
        os.stat(f"/proc/{creator.pid}/fd/{descriptor}")

    def is_mapped() -> bool:  # Other tests of this process may have left an arena to the garbage collector.
        return any(f" {inode} " in line and "zfabric-arena" in line for line in Path("/proc/self/maps").read_text().splitlines())

    assert is_mapped()
    reader.close()
    del reader
    assert not is_mapped()
