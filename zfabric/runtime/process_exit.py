"""The end of a process, as threads see it that still run: daemon threads, which go on until the process has exited.

What such a thread waits for does not come any more, and an error that nobody can handle would only be printed. So it waits for the exit, as
it would in any other call that blocks.
"""

from __future__ import annotations

import threading

_begun = False


def begin() -> None:
    """Record that this process exits: its connection is about to be closed for good."""
    global _begun
    _begun = True


def withdraw() -> None:
    """Record that this process does not exit: it was forked from one that does."""
    global _begun
    _begun = False


def hold_thread() -> None:
    """Block the calling thread for ever if the process exits, unless this is the main thread. The caller holds no lock of the fabric."""
    if _begun and threading.current_thread() is not threading.main_thread():
        never = threading.Lock()
        never.acquire()
        never.acquire()
