"""SIGTERM as a notice, in the processes of a node that is drained before it ends.

Slurm and systemd send SIGTERM to all processes of a node at once. One process takes the signal as the notice (``zfabric start --block``)
and drains the node; all others must live until then. They have a handler that does nothing: programs that tasks start would inherit
SIG_IGN, and nobody could terminate them.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

_forking = threading.local()
"""The signal mask of each thread that forks."""


def _do_nothing(number: int, frame: Any) -> None:
    pass


def disregard() -> None:
    """Have SIGTERM do nothing in this process, and no longer block it. Only the main thread calls this."""
    signal.signal(signal.SIGTERM, _do_nothing)
    signal.siginterrupt(signal.SIGTERM, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))


def is_disregarded() -> bool:
    """Whether SIGTERM does nothing in this process."""
    return signal.getsignal(signal.SIGTERM) is _do_nothing


def hold() -> None:
    """If SIGTERM does nothing, block it until ``disregard``: programs that this process starts, or becomes, would end at the signal."""
    if is_disregarded():
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))


def restore_in_forks() -> None:
    """Have SIGTERM end children that this process forks later, as ``multiprocessing`` in tasks does.

    SIGTERM is blocked while a thread forks: a child that received the signal before its handler is restored would miss it.
    """
    if is_disregarded():
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def _before_fork() -> None:
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _in_child() -> None:
    if is_disregarded():  # Else the program has a handler of its own.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _after_fork()
