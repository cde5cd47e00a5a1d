"""A progress bar for refs: by rich in a terminal or a notebook's widget, as text in a notebook without widgets, else a line every 30
seconds.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, Protocol

from zfabric import api as zf
from zfabric.api import core
from zfabric.protocol.names import counted, span

REDRAW_SECONDS = 0.1
"""Seconds between updates: one costs as much as a task."""
NOTEBOOK_SECONDS = 0.5
"""In a notebook each update is a message to its page."""
LOG_SECONDS = 30.0
"""Seconds between lines where nothing can be redrawn."""


def progress(
    refs: Iterable[zf.ObjectRef], description: str = "", *, timeout: float | None = None, fail_fast: bool = True
) -> list[zf.ObjectRef]:
    """Wait until all ``refs`` have an outcome, with a progress bar on the standard error stream; return them as a list.

    ``description`` stands before the bar. It is drawn in a terminal and in a notebook (without ipywidgets, as text). Elsewhere, as in a
    log, a line is printed every 30 seconds. Returns early once a task has failed, so that ``zf.get(zf.progress(refs))`` raises at once as
    ``zf.get(refs)`` does; ``fail_fast=False`` waits for all, and counts failures. Raises GetTimeoutError after ``timeout`` seconds.

    >>> import zfabric as zf
    >>> square = zf.remote(lambda x: x * x)
    >>> zf.get(zf.progress(square.map(range(5))))
    [0, 1, 4, 9, 16]
    """
    if not isinstance(description, str):
        raise TypeError(f"progress(): description is a str, not {description!r}")
    if not isinstance(fail_fast, bool):
        raise TypeError(f"progress(): fail_fast is True or False, not {fail_fast!r}")
    listed: list[zf.ObjectRef] = [refs] if isinstance(refs, zf.ObjectRef) else list(refs)
    core.check_refs(listed, "progress")
    state = _State(description, len(set(listed)))
    shown = _shown(state)
    shown.begin()
    try:
        for ref in zf.as_completed(listed, timeout=timeout):
            state.done += 1
            state.failures += core.failed(ref)
            shown.update(state.failures == 1)
            if state.failures and fail_fast:
                break
    finally:
        shown.end()
    left = state.total - state.done
    if state.failures and fail_fast and left:
        rest = f"{counted(left, 'task')} {'has' if left == 1 else 'have'} no outcome yet and {'goes' if left == 1 else 'go'} on"
        _say(f"{state.title}a task has failed, so that this waits no longer: {rest}; progress(refs, fail_fast=False) waits for all")
    return listed


class _State:
    """Written by one thread, read by others."""

    def __init__(self, description: str, total: int) -> None:
        self.title = f"{description}: " if description else ""
        self.description = description
        self.total = total
        self.done = self.failures = 0
        self.began = time.monotonic()

    def __str__(self) -> str:
        passed = time.monotonic() - self.began
        failed = f", {self.failures:,} failed" if self.failures else ""
        left = f", about {span(passed / self.done * (self.total - self.done))} left" if 0 < self.done < self.total else ""
        return f"{self.title}{self.done:,} of {self.total:,} done{failed}, {span(passed)} passed{left}"


class _Display(Protocol):
    """Shows a state. One thread calls the methods, in this order."""

    def begin(self) -> None:
        """Show that it begins."""

    def update(self, at_once: bool) -> None:
        """Show a change: unless ``at_once``, not too soon after the last."""

    def end(self) -> None:
        """Show the last state."""


class _Bar:
    def __init__(self, state: _State) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = [
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("[red]{task.fields[failures]}"),
        ]
        if state.description:
            columns.insert(0, TextColumn("{task.description}", markup=False))
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._line = self._bar.add_task(state.description, total=state.total, failures="")
        self._state = state
        self._drawn_at = 0.0

    def begin(self) -> None:
        self._bar.start()

    def update(self, at_once: bool) -> None:
        now = time.monotonic()
        if at_once or now - self._drawn_at >= REDRAW_SECONDS:
            self._drawn_at = now
            self._draw()

    def _draw(self, refresh: bool = False) -> None:
        failures = f"{self._state.failures} failed" if self._state.failures else ""
        self._bar.update(self._line, completed=self._state.done, failures=failures, refresh=refresh)

    def end(self) -> None:
        self._draw(refresh=True)  # In a notebook, rich does not draw the last state otherwise.
        self._bar.stop()


class _NotebookText:
    """A line in a notebook that replaces itself."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._handle: Any = None
        self._drawn_at = 0.0

    def _text(self) -> Any:
        return {"text/plain": str(self._state)}

    def begin(self) -> None:
        import IPython.display

        display: Any = IPython.display.display

        self._handle = display(self._text(), raw=True, display_id=True)

    def update(self, at_once: bool) -> None:
        now = time.monotonic()
        if at_once or now - self._drawn_at >= NOTEBOOK_SECONDS:
            self._drawn_at = now
            self._handle.update(self._text(), raw=True)

    def end(self) -> None:
        self._handle.update(self._text(), raw=True)


class _Lines:
    """A line every ``LOG_SECONDS``, from a thread: a single task may take longer."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._over = threading.Event()
        self._printed = False
        self._thread = threading.Thread(target=self._print, name="zfabric-progress", daemon=True)

    def _print(self) -> None:
        while not self._over.wait(LOG_SECONDS):
            self._printed = True
            _say(str(self._state))

    def begin(self) -> None:
        self._thread.start()

    def update(self, at_once: bool) -> None:
        """Do nothing: the thread looks."""

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        if self._printed:
            _say(str(self._state))


def _shown(state: _State) -> _Display:
    shell = _notebook()
    if shell is None:
        return _Bar(state) if _in_terminal() else _Lines(state)
    from importlib.util import find_spec

    return _Bar(state) if find_spec("ipywidgets") is not None else _NotebookText(state)


def _say(text: str) -> None:
    try:
        print(f"zfabric: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):  # The stream is missing or closed: the tasks count, not the line.
        return


def _in_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # The stream is missing or closed.
        return False


def _notebook() -> Any:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell if type(shell).__name__ == "ZMQInteractiveShell" else None
