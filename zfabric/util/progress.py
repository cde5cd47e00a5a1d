"""A progress bar for refs, drawn by rich: in a terminal as text, in a notebook as a widget, and not at all elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from zfabric import api as zf
from zfabric.api import core

REDRAW_SECONDS = 0.1
"""The interval between updates of a bar: an update costs as much as a task."""


def progress(
    refs: Iterable[zf.ObjectRef], description: str = "", *, timeout: float | None = None, fail_fast: bool = True
) -> list[zf.ObjectRef]:
    """Wait until all ``refs`` have an outcome, with a progress bar on the standard error stream; return them as a list.

    ``description`` stands before the bar. It is drawn in a terminal and, where ipywidgets is installed, in a notebook; elsewhere nothing is
    printed. Returns early once a task has failed, so that ``zf.get(zf.progress(refs))`` raises at once as ``zf.get(refs)`` does;
    ``fail_fast=False`` waits for all, and the bar counts failures. Raises GetTimeoutError after ``timeout`` seconds.

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
    done = failures = 0
    drawn_at = 0.0
    with _bar(description) as bar:
        line = None if bar is None else bar.add_task(description, total=len(set(listed)), failures="")
        for ref in zf.as_completed(listed, timeout=timeout):
            done += 1
            failures += core.failed(ref)
            now = time.monotonic()
            if bar is not None and (now - drawn_at >= REDRAW_SECONDS or failures == 1):
                drawn_at = now
                bar.update(line, completed=done, failures=f"{failures} failed" if failures else "")
            if failures and fail_fast:
                break
        if bar is not None:
            bar.update(line, completed=done, refresh=True)  # In a notebook, rich does not draw the last state otherwise.
    return listed


def _bar(description: str) -> AbstractContextManager[Any]:
    """Return a bar of rich that has not begun; a null context if nothing can show it."""
    if not (_in_terminal() or _in_notebook()):
        return nullcontext()
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = [BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("[red]{task.fields[failures]}")]
    if description:
        columns.insert(0, TextColumn("{task.description}", markup=False))
    return Progress(*columns, console=Console(stderr=True))


def _in_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # There is no such stream, or it is closed.
        return False


def _in_notebook() -> bool:
    """Whether this is a notebook's process that can show widgets."""
    from importlib.util import find_spec

    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell" and find_spec("ipywidgets") is not None
