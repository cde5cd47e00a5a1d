"""Lines of workers' output as shown: with writers, without terminal escapes, with short progress bars and crash reports.

A *mark*, written by ``printing``, is a line that names the writer of the next lines, with time and job. Other output, as of child
processes, has no name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

NAME_MAX = 80
ZFABRIC = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
"""The package, whose frames crash reports leave out."""

_MARK = re.compile(r"(.*)\x1e\(([^\x1e]*)\)\x1e(?:(\d{1,12}\.\d) (\d{1,10}))?")
_COLOUR = re.compile(r"(\x1b\[[0-9;:]*m)")
_COLOUR_END = "\x1b[0m"
_UNSEEN = {
    **{code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 0x09},
    **{code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000))},
}
"""Text for control characters but the tab, for those that reorder others, and for lone surrogates."""
CRASH = "Fatal Python error: "
_THREAD = re.compile(r"(?:Current thread|Thread) 0x")
_FRAME = re.compile(r'  File "(.*)", line (?:\d+|\?\?\?) in (.*)')
_THREAD_START = ("_bootstrap", "_bootstrap_inner", "run")


def mark(name: str, at: float = 0.0, job: int = 0) -> str:
    """The mark that begins the output of ``name``, or with "" ends it.

    ``at`` (seconds since 1970) and ``job``, the job's number, are left out if 0.
    """
    return f"\x1e({name[:NAME_MAX].translate(_UNSEEN)})\x1e" + (f"{at:.1f} {job}\n" if at else "\n")


def shown(text: str) -> str:
    """Escape what a terminal would obey or cannot encode, in all names and errors.

    >>> shown("\\x1b[2Jgone?\\n \\x1b[31mred \\udcff")
    '\\\\x1b[2Jgone?\\\\x0a \\\\x1b[31mred \\\\udcff'
    """
    return text if text.isprintable() else text.translate(_UNSEEN)


def visible(line: str) -> str:
    """Escape a line of output; its colours end with it.

    >>> visible("\\x1b[2Jgone? \\x1b[31mred")
    '\\\\x1b[2Jgone? \\x1b[31mred\\x1b[0m'
    """
    if line.isprintable():
        return line
    if "\x1b" not in line:
        return line.translate(_UNSEEN)
    pieces = _COLOUR.split(line)
    pieces[::2] = [piece.translate(_UNSEEN) for piece in pieces[::2]]
    coloured = len(pieces) > 1 and pieces[-2] not in (_COLOUR_END, "\x1b[m")
    return "".join(pieces) + (_COLOUR_END if coloured else "")


def last_written(line: str) -> str:
    """What a terminal shows of a line with carriage returns: its last text."""
    if "\r" not in line:
        return line
    return next((piece for piece in reversed(line.split("\r")) if piece), "")


def is_of_program(path: str, function: str) -> bool:
    """Whether a frame is user code: not of this package, nor a thread's first."""
    return not (path.startswith(ZFABRIC) or (path.endswith("/threading.py") and function.rpartition(".")[2] in _THREAD_START))


class Lines:
    """Reads a file's lines, with writers. ``name`` is the last mark's."""

    __slots__ = ("_crashed", "_ours", "_thread", "at", "job", "name")

    def __init__(self) -> None:
        self.name = ""
        self.at = 0.0
        """The last mark's time in seconds since 1970, or 0."""
        self.job = 0
        self._crashed = False
        """Whether a crash report (``faulthandler``) is read."""
        self._thread = ""
        """A thread's first line, until shown."""
        self._ours: bool | None = None
        """Whether the last frame was of this package; None once the thread's user code was shown."""

    def read(self, data: bytes) -> Iterator[tuple[str, str]]:
        """Yield ``(name, line)`` to show."""
        for line in data.decode(errors="replace").removesuffix("\n").split("\n"):
            marked = _MARK.fullmatch(line) if "\x1e" in line else None
            if marked is not None:
                line = marked[1]
            if marked is None or line:
                for each in self._shown(last_written(line)):
                    yield self.name, visible(each)
            if marked is not None:
                self.name, self.at = marked[2], float(marked[3] or 0.0)
                self.job = int(marked[4] or self.job)

    def _shown(self, line: str) -> tuple[str, ...]:
        """What to show: of a crash report, each thread's innermost user code."""
        if line.startswith(CRASH):
            self._crashed, self._thread, self._ours = True, "", None
            return (line,)
        if not self._crashed:
            return (line,)
        if _THREAD.match(line):
            self._thread, self._ours = line, True
            return ()
        frame = _FRAME.fullmatch(line)
        if frame is None:
            self._crashed = not line or line.startswith(("Extension modules:", "  ..."))
            return () if self._crashed else (line,)
        if not is_of_program(*frame.groups()):
            self._ours = True if self._ours else None
            return ()
        if self._ours is None:
            return ()
        thread, self._thread, self._ours = self._thread, "", False
        return (thread, line) if thread else (line,)
