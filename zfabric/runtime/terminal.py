"""Shows tasks' output and notices in a driver: with names, and lines of many workers once."""

from __future__ import annotations

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TextIO

from zfabric.protocol import messages as m
from zfabric.runtime.lines import visible

RECENT_MAX = 1000


def _no_line(line: str) -> bool:
    return False


takes_line: Callable[[str], bool] = _no_line
"""Asked before a worker's line is shown: whether the line was no text, and is shown in its own way. ``as_ray`` sets this."""


class Recent:
    """A shown line: who printed it first and last, until when it counts, and how often others printed it."""

    __slots__ = ("count", "last_pid", "pid", "until")

    def __init__(self, pid: int, until: float) -> None:
        self.pid = pid
        self.until = until
        self.count = 0
        self.last_pid = 0


Key = tuple[str, str, str]
"""(name, stream, line)"""


class Terminal:
    """Shows lines on this process's standard streams.

    Another worker's same line within ``repeat_seconds`` is counted, and shown once more with its count afterwards. With 0, every line is
    shown.
    """

    def __init__(self, repeat_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.repeat_seconds = repeat_seconds
        self._clock = clock
        self._lock = threading.RLock()
        """Keeps lines whole and in order."""
        self._recent: OrderedDict[Key, Recent] = OrderedDict()
        self._explained = False

    def show(self, notices: list[m.LogLines | m.Notice]) -> None:
        """Show lines and notices, in order."""
        with self._lock:
            for notice in notices:
                if isinstance(notice, m.Notice):
                    _print(f"zfabric {notice.level}: {notice.text}", sys.stderr)
                    continue
                for pid, name, stream, text in notice.rows:
                    for line in text.split("\n"):
                        self._line(pid, name, stream, line)

    def look(self) -> None:
        """Show due counts, about once a second."""
        if self._recent:
            with self._lock:
                now = self._clock()
                while self._recent and next(iter(self._recent.values())).until <= now:
                    self._forget_oldest()

    def close(self) -> None:
        """Show all counts; nothing follows."""
        with self._lock:
            while self._recent:
                self._forget_oldest()

    def _line(self, pid: int, name: str, stream: str, line: str) -> None:
        if takes_line(line):
            return
        if self.repeat_seconds <= 0 or not line or line.isspace():
            _print_line(pid, name, stream, line)
            return
        self.look()
        key = (name, stream, line)
        known = self._recent.get(key)
        if known is not None and known.pid != pid:
            known.count += 1
            known.last_pid = pid
            return
        _print_line(pid, name, stream, line)
        if known is None:
            self._recent[key] = Recent(pid, self._clock() + self.repeat_seconds)
            if len(self._recent) > RECENT_MAX:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        (name, stream, line), known = self._recent.popitem(last=False)
        if known.count:
            hint = "" if self._explained else "; the setting log_repeat_seconds=0 shows each"
            self._explained = True
            _print_line(known.last_pid, name, stream, f"{line} [repeated {known.count}x by other workers{hint}]")


def _print_line(pid: int, name: str, stream: str, line: str) -> None:
    _print(f"({name} pid={pid}) {line}" if name else f"(pid={pid}) {line}", sys.stderr if stream == "err" else sys.stdout)


def _print(line: str, file: TextIO) -> None:
    """Print a line, or drop it: ``get`` must not fail."""
    try:
        print("\n".join(map(visible, line.split("\n"))), file=file)
    except UnicodeEncodeError:
        print(line.encode("ascii", "backslashreplace").decode(), file=file)
    except (OSError, ValueError, AttributeError):
        pass  # The stream is closed or missing, or its reader has exited.
