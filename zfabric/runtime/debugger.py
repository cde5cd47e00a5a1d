"""``breakpoint()`` in a task: ``pdb`` over a Unix socket, for ``zfabric debug``.

The task waits until a terminal attaches, the task is stopped, or its job ends. A file beside the socket describes the breakpoint. Terminals
attach one at a time; when one disconnects, or continues without breakpoints, the task goes on. The debugger detaches where user code's
frames end. The socket carries text, and ``ASK`` where a line is to be typed.
"""

from __future__ import annotations

import code
import contextlib
import itertools
import json
import os
import pdb
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from zfabric.adapters import processes
from zfabric.runtime.lines import is_of_program

ASK = b"\x05"
LOOK_EVERY = 0.2
"""Seconds between checks whether the task is stopped: not all threads can be interrupted in a system call."""
LINE_MAX = 64 * 1024
_numbers = itertools.count(1)


def directory_of(session_directory: str) -> str:
    """Where a session's breakpoints are."""
    return f"{session_directory}/debug"


@contextlib.contextmanager
def _short_path(directory: str, name: str) -> Iterator[str]:
    """A short path to a socket at any depth."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


class _Terminal:
    """The attached terminal as a file. ``check`` raises if the task is stopped."""

    encoding = "utf-8"

    def __init__(self, connection: socket.socket, check: Callable[[], None]) -> None:
        self._connection = connection
        self._check = check
        self._typed = b""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._connection.sendall(text.encode(errors="backslashreplace").replace(ASK, b""))
        return len(text)

    def flush(self) -> None:
        """``write`` sends at once."""

    def readline(self) -> str:
        """The next line; "" if disconnected."""
        try:
            self._connection.sendall(ASK)
            while b"\n" not in self._typed and len(self._typed) < LINE_MAX:
                _await(self._connection, self._check)
                received = self._connection.recv(4096)
                if not received:
                    return ""
                self._typed += received
        except OSError:
            return ""
        except BaseException:  # The task is stopped.
            self.close()
            raise
        line, _, self._typed = self._typed.partition(b"\n")
        return line.decode(errors="replace") + "\n"

    def close(self) -> None:
        self._connection.close()


def _await(source: socket.socket, check: Callable[[], None]) -> None:
    poll = select.poll()
    poll.register(source, select.POLLIN)
    while not poll.poll(LOOK_EVERY * 1000):
        check()


class Debugger(pdb.Pdb):
    """``pdb`` on a terminal that may disconnect."""

    def __init__(self, terminal: _Terminal) -> None:
        super().__init__(stdin=terminal, stdout=terminal, skip=["zfabric.*"], nosigint=True)  # type: ignore[arg-type]
        self._terminal = terminal
        self._open = True
        self._interrupt: KeyboardInterrupt | None = None

    def cmdloop(self, intro: Any = None) -> None:
        """Keep an interrupt: ``pdb`` would take it for the terminal's, and go on."""
        try:
            super().cmdloop(intro)
        except KeyboardInterrupt as interrupt:
            self._interrupt = interrupt

    def interaction(self, *args: Any, **kwargs: Any) -> None:
        """Read commands until the program goes on."""
        super().interaction(*args, **kwargs)
        if self._interrupt is not None:
            raise self._interrupt

    def set_continue(self) -> None:
        """Go on; without breakpoints, for good."""
        super().set_continue()
        if not self.breaks:
            self._hang_up()

    def set_quit(self) -> None:
        """End the task by ``bdb.BdbQuit``."""
        super().set_quit()
        self._hang_up()

    def get_stack(self, f: FrameType | None, t: Any) -> tuple[list[tuple[FrameType, int]], int]:
        """User code's frames only."""
        stack, at = super().get_stack(f, t)
        ours = [place for place, (frame, _) in enumerate(stack[: at + 1]) if not is_of_program(frame.f_code.co_filename, "")]
        begin = ours[-1] + 1 if ours else 0
        return stack[begin:], at - begin

    def do_interact(self, arg: str) -> None:
        """Run an interpreter with the current frame's names."""
        frame = self.curframe
        if frame is None:
            return

        def typed(prompt: str = "") -> str:
            self.stdout.write(prompt)
            line = self.stdin.readline()
            if not line:
                raise EOFError
            return line.rstrip("\n")

        console = code.InteractiveConsole({**frame.f_globals, **self.curframe_locals})
        console.raw_input = typed  # type: ignore[method-assign]
        with contextlib.redirect_stdout(self.stdout), contextlib.redirect_stderr(self.stdout):
            console.interact(banner="*interactive*", exitmsg="")

    def do_EOF(self, arg: str) -> bool:  # noqa: N802  # The name that ``cmd`` calls.
        """Go on: the terminal has disconnected."""
        self.leave("")
        return True

    do_detach = do_EOF

    def dispatch_return(self, frame: FrameType, arg: Any) -> Any:
        """Detach where user code's frames end."""
        traced = super().dispatch_return(frame, arg)
        outer = frame.f_back
        if self._open and (outer is None or not is_of_program(outer.f_code.co_filename, outer.f_code.co_qualname)):
            self.leave(f"{frame.f_code.co_name} has ended; the debugger leaves it\n")
            return None
        return traced

    def leave(self, text: str) -> None:
        """Go on without this debugger."""
        if self._open:
            self._terminal.write(text)
            self.clear_all_breaks()
            self.set_continue()

    def _hang_up(self) -> None:
        self._open = False
        self._terminal.close()


def wait_at_breakpoint(session_directory: str, frame: FrameType, about: dict[str, Any], check: Callable[[], None]) -> None:
    """Wait for a terminal, then debug ``frame`` from its next line on. ``check`` may raise."""
    directory = directory_of(session_directory)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    name = f"{os.getpid()}.{next(_numbers)}"
    where = {"file": frame.f_code.co_filename, "line": frame.f_lineno, "function": frame.f_code.co_qualname}
    row = {"pid": os.getpid(), **about, **where, "since": time.time()}
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_path(directory, f"{name}.socket") as path:
            listening.bind(path)
        listening.listen(1)
        _write(f"{directory}/{name}", json.dumps(row))
        place = f"{where['file']}:{where['line']}"
        print(f"breakpoint in {where['function']} ({place}): attach with `zfabric debug {os.getpid()}`", file=sys.stderr, flush=True)
        _await(listening, check)
        connection, _ = listening.accept()
    finally:
        listening.close()
        for path in (f"{directory}/{name}", f"{directory}/{name}.socket"):
            with contextlib.suppress(OSError):
                os.unlink(path)
    Debugger(_Terminal(connection, check)).set_trace(frame)


def _write(path: str, text: str) -> None:
    with open(f"{path}.new", "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
    os.rename(f"{path}.new", path)


# -- from outside --


def waiting(session_directory: str) -> list[dict[str, Any]]:
    """List waiting breakpoints, the oldest first.

    Keys: pid, task, task_id, file, line, function, since (seconds since the epoch), name (for ``attach``).
    """
    directory, found = directory_of(session_directory), []
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(directory):
            if name.endswith((".socket", ".new")):
                continue
            with contextlib.suppress(OSError, ValueError):
                with open(f"{directory}/{name}", encoding="utf-8") as file:
                    row = json.load(file)
                descriptor = processes.open_pidfd(row["pid"])
                if descriptor is not None:  # It did not die there.
                    os.close(descriptor)
                    found.append({**row, "name": name})
    return sorted(found, key=lambda row: float(row["since"]))


def where_waiting(session_directory: str, task_id: bytes, pid: str = "") -> str:
    """Describe this task's or process's breakpoint, and how to attach; "" if there is none."""
    for row in waiting(session_directory):
        if row["task_id"] == task_id.hex() or str(row["pid"]) == pid:
            who = "it stands" if row["task_id"] == task_id.hex() else f"{row['task'] or 'its code'} stands"
            return f"{who} at a breakpoint() ({row['file']}:{row['line']}): attach with `zfabric debug {row['pid']}`"
    return ""


def attach(session_directory: str, name: str) -> socket.socket:
    """Connect to a breakpoint. Raises OSError if it is gone or taken."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_path(directory_of(session_directory), f"{name}.socket") as path:
            connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection
