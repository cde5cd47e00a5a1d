"""Following workers' output: complete lines, bounded, across rotation, whatever the bytes are."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zfabric.protocol import messages as m
from zfabric.runtime import logs, printing
from zfabric.runtime.lines import ZFABRIC, Lines, mark, visible
from zfabric.runtime.logs import LogTailer, log_path, tail
from zfabric.runtime.terminal import RECENT_MAX, Terminal

TOKEN, OTHER = b"\x01" * 8, b"\x02" * 8
PIDS = {TOKEN: 41}


def write(directory: Path, data: bytes, stream: str = "out", token: bytes = TOKEN) -> None:
    """Append as a worker does: through a descriptor opened anew, which behaves as one that was kept open."""
    with open(log_path(str(directory), token, stream), "ab") as file:
        file.write(data)


def tailer(directory: Path, max_bytes: int = 1 << 20, files: int = 3) -> LogTailer:
    return LogTailer(str(directory), max_bytes, files)


def without_descriptors(function: Callable[..., bytes]) -> Callable[..., bytes]:
    """The same, while this process may open no further file."""

    def limited(*arguments: Any) -> bytes:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            return function(*arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    return limited


def test_only_new_complete_lines_are_returned(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    assert t.poll(PIDS) == []
    write(tmp_path, b"one\ntwo\nthr")
    write(tmp_path, b"oops\n", "err")
    assert t.poll(PIDS) == [(41, "", "out", "one\ntwo"), (41, "", "err", "oops")]
    assert t.poll(PIDS) == []
    write(tmp_path, b"ee\n\n")
    assert t.poll(PIDS) == [(41, "", "out", "three\n")]


def test_only_the_workers_asked_for_are_read_under_their_pids(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    write(tmp_path, b"a\n")
    write(tmp_path, b"b\n", token=OTHER)
    assert t.poll(PIDS) == [(41, "", "out", "a")]
    assert t.poll({TOKEN: 41, OTHER: 42}) == [(42, "", "out", "b")]


def test_flush_gives_the_unfinished_line_too(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    write(tmp_path, b"done\nlast wo")
    assert t.poll(PIDS) == [(41, "", "out", "done")]
    write(tmp_path, b"rds")
    assert t.flush(TOKEN) == [(41, "", "out", "last words")]
    assert t.flush(TOKEN) == []
    write(tmp_path, b"never polled", token=OTHER)
    assert t.flush(OTHER, 42) == [(42, "", "out", "never polled")]


def test_bytes_that_are_no_text_are_escaped(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    write(tmp_path, b"\xff\xfe caf\xc3")
    assert t.poll(PIDS) == []
    write(tmp_path, b"\xa9\n")
    assert t.poll(PIDS) == [(41, "", "out", "\ufffd\ufffd café")]


def test_an_endless_line_arrives_in_pieces(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    data = bytes(range(97, 123)) * 10_000
    write(tmp_path, data)
    pieces = [row[3] for _ in range(8) for row in t.poll(PIDS)]
    assert len(pieces) > 1
    assert "".join(pieces + [row[3] for row in t.flush(TOKEN)]).encode() == data


def test_a_read_is_bounded_and_the_next_continues(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    lines = [f"line {i}" for i in range(40_000)]
    write(tmp_path, "".join(f"{line}\n" for line in lines).encode())
    seen: list[str] = []
    while rows := t.poll(PIDS):
        ((_, _, _, text),) = rows
        assert len(text) <= 2 * logs.CHUNK_BYTES
        seen += text.splitlines()
    assert seen == lines


def test_skipped_output_is_reported(tmp_path: Path) -> None:
    t = tailer(tmp_path, max_bytes=1 << 30)
    write(tmp_path, b"first\nunfini")
    t.poll(PIDS)
    write(tmp_path, b"x" * 99 + b"\n" + b"y" * 99 + b"\n" * (3 * logs.BACKLOG_BYTES) + b"the end\n")
    text = "\n".join(row[3] for _ in range(40) for row in t.poll(PIDS))
    assert text.startswith("unfini\n[")
    assert f"bytes of output skipped; until the cluster ends they are in {log_path(str(tmp_path), TOKEN, 'out')}, and with " in text
    assert text.endswith("the end")
    assert len(text) < 2 * logs.BACKLOG_BYTES


@pytest.mark.parametrize("files", [0, 2])
def test_rotation_loses_no_line_and_retains_a_number_of_copies(tmp_path: Path, files: int) -> None:
    t = tailer(tmp_path, max_bytes=1000, files=files)
    path = log_path(str(tmp_path), TOKEN, "out")
    seen: list[str] = []
    with open(path, "ab", buffering=0) as worker:  # goes on writing through all rotations
        for number in range(1000):
            worker.write(b"line %d and" % number)
            worker.write(b" its end\n" if number % 2 else b" some\n")
            if number % 7 == 0:
                seen += [line for row in t.poll(PIDS) for line in row[3].splitlines()]
            assert os.stat(path).st_size < 2000
    seen += [line for row in t.poll(PIDS) for line in row[3].splitlines()]
    assert seen == [f"line {n} and {'its end' if n % 2 else 'some'}" for n in range(1000)]
    rotated = sorted(name for name in os.listdir(tmp_path) if ".out." in name)
    assert rotated == [os.path.basename(f"{path}.{n}") for n in range(1, files + 1)]
    for copy in rotated:
        assert (tmp_path / copy).read_bytes().startswith(b"line")


def test_a_file_is_rotated_later_when_no_descriptor_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    t = tailer(tmp_path, max_bytes=10)
    write(tmp_path, b"long enough\n")
    with monkeypatch.context() as full:
        full.setattr(logs._Follower, "rotate", without_descriptors(logs._Follower.rotate))
        assert t.poll(PIDS) == [(41, "", "out", "long enough")]
    write(tmp_path, b"more\n")
    assert t.poll(PIDS) == [(41, "", "out", "more")]
    assert os.stat(log_path(str(tmp_path), TOKEN, "out")).st_size == 0


def test_a_line_cut_by_rotation_arrives_whole(tmp_path: Path) -> None:
    t = tailer(tmp_path, max_bytes=10)
    write(tmp_path, b"long enough\nand cut he")
    assert t.poll(PIDS) == [(41, "", "out", "long enough")]
    assert os.stat(log_path(str(tmp_path), TOKEN, "out")).st_size == 0
    write(tmp_path, b"re\n")
    assert t.poll(PIDS) == [(41, "", "out", "and cut here")]


def test_log_files_of_dead_workers_are_retained_for_a_while_unless_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_tail_of_a_crash_report_is_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x.err"
    account = ["Fatal Python error: Aborted", "Current thread 0x1:", *(f'  File "x.py", line {n} in f' for n in range(100))]
    path.write_text("\n".join(["before", *account]))
    assert tail(str(path), lines=5).splitlines() == account[:5]


def test_lines_name_the_task_that_wrote_them(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    write(tmp_path, b"from a thread\n" + mark("first").encode() + b"one\ntwo, unfinished" + mark("").encode() + b"from a child\n")
    assert t.poll(PIDS) == [(41, "", "out", "from a thread"), (41, "first", "out", "one\ntwo, unfinished"), (41, "", "out", "from a child")]
    write(tmp_path, mark("odd\x1e)\n\x1b[2J name" + "x" * 100).encode() + b"three\n")
    ((_, name, _, text),) = t.poll(PIDS)
    assert (len(name), text) == (80 + 3 * 3, "three")
    assert name.startswith("odd\\x1e)\\x0a\\x1b[2J name")
    write(tmp_path, b"four\n")
    assert t.poll(PIDS)[0][1] == name


def test_a_line_has_the_time_and_the_job_of_the_mark_before_it() -> None:
    lines = Lines()
    found = [(*each, lines.at, lines.job) for each in lines.read(mark("f", 1000.26, 7).encode() + b"one\n" + mark("").encode() + b"two\n")]
    assert found == [("f", "one", 1000.3, 7), ("", "two", 0.0, 7)]
    assert [*lines.read(mark("f").encode() + b"three\n")] == [("f", "three")], "a mark without a time, as those of crashes"
    assert lines.at == 0.0


def test_a_writer_that_goes_on_has_a_mark_a_second_and_none_within_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Machine:
        printed, job = False, (3).to_bytes(4, "big")

    now = 100.0
    monkeypatch.setattr(printing, "time", lambda: now)
    with (tmp_path / "out").open("w") as file:
        output = printing.NamedOutput(file, lambda: "f", Machine())  # type: ignore[arg-type]
        for text, after in (("a\n", 0.5), ("b\n", 2.0), ("c", 2.0), ("d\n", 0.1), ("e\n", 0.0)):
            output.write(text)
            now += after
        output.close_output()
        output.detach()
    text = (tmp_path / "out").read_text()
    first, second, third = (mark("f", at, 3) for at in (100.0, 102.5, 104.6))
    assert text == f"{first}a\nb\n{second}cd\n{third}e\n{mark('')}"


@given(st.text())
def test_no_line_affects_a_terminal_except_for_colours(line: str) -> None:
    shown = visible(line)
    coloured = re.findall(r"\x1b\[[0-9;:]*m", shown)
    assert not re.search(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", re.sub(r"\x1b\[[0-9;:]*m", "", shown))
    assert not coloured or coloured[-1] in ("\x1b[0m", "\x1b[m")


def test_escapes_are_text_and_colours_stay() -> None:
    assert (
        visible("\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J\x9b2J\b\ttab")
        == "\x1b[31mred\x1b[0m \\x1b]0;title\\x07 \\x1b[2J\\x9b2J\\x08\ttab"
    )
    assert visible("\x1b[1;32mgreen") == "\x1b[1;32mgreen\x1b[0m"
    assert visible("plain, naïve") == "plain, naïve"


def test_a_rewritten_line_is_shown_once_a_second(tmp_path: Path) -> None:
    now = 100.0
    t = LogTailer(str(tmp_path), 1 << 20, 3, lambda: now)
    shown = []
    for step in range(40):
        write(tmp_path, b"\r" + b"\r".join(b" %d%%" % (step + part / 10) for part in range(3)))
        shown += [(now, row[3]) for row in t.poll(PIDS)]
        now += 0.125
    assert shown == [(100.0 + second, f" {8 * second}%") for second in range(5)]
    write(tmp_path, b"\r 100%\r\nnext\r\n")
    assert [row[3] for row in t.poll(PIDS)] == [" 100%\nnext"]


def test_an_unchanged_last_state_of_a_bar_is_not_repeated(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    write(tmp_path, b"\r 50%\r 100%")
    assert [row[3] for row in t.poll(PIDS)] == [" 100%"]
    write(tmp_path, b"\nnext\n")
    assert [row[3] for row in t.poll(PIDS)] == ["next"]
    write(tmp_path, b"\r 1%")
    assert t.poll(PIDS) == []  # Within the same second.
    assert [row[3] for row in t.flush(TOKEN)] == [" 1%"]


def test_one_large_write_leaves_no_larger_logs(tmp_path: Path) -> None:
    t = tailer(tmp_path, max_bytes=100_000, files=2)
    path = log_path(str(tmp_path), TOKEN, "out")
    for _ in range(4):
        write(tmp_path, b"x" * 3_000_000 + b"\nthe end\n")
        assert t.poll(PIDS)[-1][3].endswith("the end")
        assert os.stat(path).st_size == 0
        assert Path(f"{path}.1").read_bytes() == b"x" * (100_000 - 9) + b"\nthe end\n"
    write(tmp_path, b"y" * 3_000_000)
    t.flush(TOKEN)
    t.forget(TOKEN)  # It died in the middle of that.
    sizes = {name: os.stat(tmp_path / name).st_size for name in os.listdir(tmp_path)}
    assert sizes == {os.path.basename(path) + suffix: size for suffix, size in (("", 0), (".1", 100_000), (".2", 100_000))}


CRASH = f"""
before
Fatal Python error: Segmentation fault

Thread 0x00007f1 (most recent call first):
  File "{ZFABRIC}runtime/connection.py", line 480 in _flush_late
  File "/usr/lib/python3.11/threading.py", line 982 in run
  File "/usr/lib/python3.11/threading.py", line 1045 in _bootstrap_inner
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Thread 0x00007f2 (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/home/me/program.py", line 8 in reader
  File "/usr/lib/python3.11/threading.py", line 982 in run
  File "/usr/lib/python3.11/threading.py", line 1045 in _bootstrap_inner
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f3 (most recent call first):
  File "{ZFABRIC}adapters/arena.py", line 9 in view
  File "/home/me/program.py", line 30 in inner
  File "/home/me/program.py", line 31 in task
  File "{ZFABRIC}runtime/running.py", line 99 in execute
  File "/home/me/program.py", line 40 in outer
  File "{ZFABRIC}runtime/running.py", line 99 in execute
  File "<string>", line 1 in <module>

Extension modules: msgpack._cmsgpack, zmq.backend.cython._zmq (total: 2)
"""
SHORT = """before
Fatal Python error: Segmentation fault
Thread 0x00007f2 (most recent call first):
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/home/me/program.py", line 8 in reader
Current thread 0x00007f3 (most recent call first):
  File "/home/me/program.py", line 30 in inner
  File "/home/me/program.py", line 31 in task"""


def test_a_crash_shows_the_frames_of_the_program(tmp_path: Path) -> None:
    t = tailer(tmp_path)
    write(tmp_path, CRASH.lstrip().encode(), "err")
    assert t.flush(TOKEN, 41) == [(41, "", "err", SHORT)]
    assert tail(log_path(str(tmp_path), TOKEN, "err")) == SHORT.partition("\n")[2]


def shown_by(terminal: Terminal, capsys: pytest.CaptureFixture[str], *rows: tuple[int, str, str, str]) -> list[str]:
    terminal.show([m.LogLines(rows)])
    return capsys.readouterr().out.splitlines()


def test_the_same_line_of_many_workers_is_shown_once_with_a_count(capsys: pytest.CaptureFixture[str]) -> None:
    now = 0.0
    terminal = Terminal(5.0, lambda: now)
    assert shown_by(terminal, capsys, *((pid, "f", "out", "loading\n\nready") for pid in (1, 2, 3))) == [
        "(f pid=1) loading",
        "(f pid=1) ",
        "(f pid=1) ready",
        "(f pid=2) ",
        "(f pid=3) ",
    ]
    assert shown_by(terminal, capsys, (1, "f", "out", "loading"), (1, "g", "out", "loading"), (4, "f", "out", "loading")) == [
        "(f pid=1) loading",  # One worker that repeats itself means it.
        "(g pid=1) loading",
    ]
    now = 4.9
    terminal.look()
    assert capsys.readouterr().out == ""
    now = 5.0
    terminal.look()
    assert capsys.readouterr().out.splitlines() == [
        "(f pid=4) loading [repeated 3x by other workers; the setting log_repeat_seconds=0 shows each]",
        "(f pid=3) ready [repeated 2x by other workers]",
    ]
    assert shown_by(terminal, capsys, (2, "f", "out", "loading"), (3, "f", "out", "loading")) == ["(f pid=2) loading"]
    terminal.close()
    assert capsys.readouterr().out == "(f pid=3) loading [repeated 1x by other workers]\n"
    assert shown_by(Terminal(0.0), capsys, *((pid, "", "out", "each") for pid in (1, 2))) == ["(pid=1) each", "(pid=2) each"]


def test_memory_for_repeated_lines_is_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(5.0, lambda: 0.0)
    shown_by(terminal, capsys, *((pid, "f", "out", f"line {n}") for n in range(RECENT_MAX) for pid in (1, 2)))
    assert shown_by(terminal, capsys, (1, "f", "out", "one more"))[1:] == [
        "(f pid=2) line 0 [repeated 1x by other workers; the setting log_repeat_seconds=0 shows each]"
    ]
