"""Following workers' output: complete lines, bounded, across rotation, whatever the bytes are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from zfabric.runtime import logs
from zfabric.runtime.logs import LogTailer, log_path, tail

TOKEN, OTHER = b"\x01" * 8, b"\x02" * 8
PIDS = {TOKEN: 41}


def write(directory: Path, data: bytes, stream: str = "out", token: bytes = TOKEN) -> None:
    """Append as a worker does: through a descriptor opened anew, which behaves as one that was kept open."""
    with open(log_path(str(directory), token, stream), "ab") as file:
        file.write(data)


def tailer(directory: Path, max_bytes: int = 1 << 20, files: int = 3) -> LogTailer:
    return LogTailer(str(directory), max_bytes, files)


def test_only_new_complete_lines_come(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    assert t.poll(PIDS) == []
    write(tmp_path, b"one\ntwo\nthr")
    write(tmp_path, b"oops\n", "err")
    assert t.poll(PIDS) == [(41, "out", "one\ntwo"), (41, "err", "oops")]
    assert t.poll(PIDS) == []
    write(tmp_path, b"ee\n\n")
    assert t.poll(PIDS) == [(41, "out", "three\n")]


def test_only_the_workers_asked_for_are_read_under_their_pids(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    write(tmp_path, b"a\n")
    write(tmp_path, b"b\n", token=OTHER)
    assert t.poll(PIDS) == [(41, "out", "a")]
    assert t.poll({TOKEN: 41, OTHER: 42}) == [(42, "out", "b")]


def test_flush_gives_the_unfinished_line_too(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    write(tmp_path, b"done\nlast wo")
    assert t.poll(PIDS) == [(41, "out", "done")]
    write(tmp_path, b"rds")
    assert t.flush(TOKEN) == [(41, "out", "last words")]
    assert t.flush(TOKEN) == []
    write(tmp_path, b"never polled", token=OTHER)
    assert t.flush(OTHER, 42) == [(42, "out", "never polled")]


def test_bytes_that_are_no_text_are_shown_as_such(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    write(tmp_path, b"\xff\xfe caf\xc3")
    assert t.poll(PIDS) == []
    write(tmp_path, b"\xa9\n")
    assert t.poll(PIDS) == [(41, "out", "\ufffd\ufffd café")]


def test_a_line_without_end_comes_in_pieces_and_nothing_is_lost(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    data = bytes(range(97, 123)) * 10_000
    write(tmp_path, data)
    pieces = [row[2] for _ in range(8) for row in t.poll(PIDS)]
    assert len(pieces) > 1
    assert "".join(pieces + [row[2] for row in t.flush(TOKEN)]).encode() == data


def test_a_call_is_bounded_and_the_next_goes_on(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    lines = [f"line {i}" for i in range(40_000)]
    write(tmp_path, "".join(f"{line}\n" for line in lines).encode())
    seen: list[str] = []
    while rows := t.poll(PIDS):
        ((_, _, text),) = rows
        assert len(text) <= 2 * logs.CHUNK_BYTES
        seen += text.splitlines()
    assert seen == lines


def test_a_flood_is_skipped_and_said(tmp_path: Path) -> None:
    t = tailer(tmp_path, max_bytes=1 << 30)
    write(tmp_path, b"first\nunfini")
    t.poll(PIDS)
    write(tmp_path, b"x" * 99 + b"\n" + b"y" * 99 + b"\n" * (3 * logs.BACKLOG_BYTES) + b"the end\n")
    text = "\n".join(row[2] for _ in range(40) for row in t.poll(PIDS))
    assert text.startswith("unfini\n[")
    assert f"bytes of output skipped; they are in {log_path(str(tmp_path), TOKEN, 'out')}]" in text
    assert text.endswith("the end")
    assert len(text) < 2 * logs.BACKLOG_BYTES


@pytest.mark.parametrize("files", [0, 2])
def test_rotation_loses_no_line_and_keeps_so_many_copies(tmp_path: Path, files: int) -> None:
    t = tailer(tmp_path, max_bytes=1000, files=files)
    path = log_path(str(tmp_path), TOKEN, "out")
    seen: list[str] = []
    with open(path, "ab", buffering=0) as worker:  # goes on writing through all rotations
        for number in range(1000):
            worker.write(b"line %d and" % number)
            worker.write(b" its end\n" if number % 2 else b" some\n")
            if number % 7 == 0:
                seen += [line for row in t.poll(PIDS) for line in row[2].splitlines()]
            assert os.stat(path).st_size < 2000
    seen += [line for row in t.poll(PIDS) for line in row[2].splitlines()]
    assert seen == [f"line {n} and {'its end' if n % 2 else 'some'}" for n in range(1000)]
    rotated = sorted(name for name in os.listdir(tmp_path) if ".out." in name)
    assert rotated == [os.path.basename(f"{path}.{n}") for n in range(1, files + 1)]
    for copy in rotated:
        assert (tmp_path / copy).read_bytes().startswith(b"line")


def test_a_line_cut_by_rotation_comes_whole(tmp_path: Path) -> None:
    t = tailer(tmp_path, max_bytes=10)
    write(tmp_path, b"long enough\nand cut he")
    assert t.poll(PIDS) == [(41, "out", "long enough")]
    assert os.stat(log_path(str(tmp_path), TOKEN, "out")).st_size == 0
    write(tmp_path, b"re\n")
    assert t.poll(PIDS) == [(41, "out", "and cut here")]


def test_what_was_written_before_can_be_skipped(tmp_path: Path) -> None:
    write(tmp_path, b"shown by the daemon before\n")
    t = tailer(tmp_path)
    t.skip(TOKEN)
    write(tmp_path, b"new\n")
    assert t.poll(PIDS) == [(41, "out", "new")]


def test_files_of_the_dead_are_kept_for_a_while_unless_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "DEAD_KEPT", 2)
    t = tailer(tmp_path)
    for number in range(5):
        token = bytes([number]) * 8
        write(tmp_path, b"words\n", token=token)
        write(tmp_path, b"", "err", token=token)
        t.flush(token, number + 1)
        t.forget(token)
    assert sorted(os.listdir(tmp_path)) == [f"worker-{bytes([n] * 8).hex()}.out" for n in (3, 4)]


def test_the_tail_of_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "x.err")
    assert tail(path) == ""
    Path(path).write_bytes(b"".join(b"line %d\n" % n for n in range(100)))
    assert tail(path, lines=3) == "line 97\nline 98\nline 99"
    Path(path).write_bytes(b"\xff" + b"z" * 10_000)
    assert tail(path) == "z" * 4096
    os.rename(path, f"{path}.1")
    Path(path).touch()
    assert tail(path) == "z" * 4096


def test_the_tail_of_a_crash_is_the_beginning_of_its_account(tmp_path: Path) -> None:
    path = tmp_path / "x.err"
    account = ["Fatal Python error: Segmentation fault", "", *(f"  File {n}" for n in range(100))]
    path.write_text("\n".join(["before", *account]))
    assert tail(str(path), lines=5).splitlines() == account[:5]
