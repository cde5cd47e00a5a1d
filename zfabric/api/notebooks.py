"""Notebooks and IPython: what a cell has changed reaches the calls that follow it.

A function is exported once, with the functions and data that it uses. A cell that runs later may define these anew. So after each cell,
functions that were exported before it are examined again when they are called next.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any, Protocol


class Exported(Protocol):
    """A function or class that this program has exported, or a handle of one."""

    def examine_again(self) -> None:
        """Pickle it again at the next call, and export it if that differs."""


_exported: weakref.WeakSet[Any] = weakref.WeakSet()
_shell: Any = None


def note(exported: Exported) -> None:
    """Have an exported function examined after the next cell. This does nothing in programs that are no notebooks."""
    global _shell
    ipython = sys.modules.get("IPython")
    if ipython is None:
        return
    shell = ipython.get_ipython()
    events = getattr(shell, "events", None)
    if events is None:
        return
    if shell is not _shell:
        events.register("pre_run_cell", _before_cell)
        _shell = shell
    _exported.add(exported)


def _before_cell(*_: Any) -> None:
    for exported in list(_exported):
        exported.examine_again()
    _exported.clear()
