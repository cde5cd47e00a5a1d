"""The exit of a process, for daemon threads that still run: they block until then.

What they wait for will not come, and nobody handles their errors.
"""

from __future__ import annotations

import threading

_begun = False


def begin() -> None:
    """This process exits: its connection is about to close."""
    global _begun
    _begun = True


def withdraw() -> None:
    """This process does not exit: it was forked from one that does."""
    global _begun
    _begun = False


def hold_thread() -> None:
    """In an exiting process, block any thread but the main one for ever. The caller holds no lock of the fabric."""
    if _begun and threading.current_thread() is not threading.main_thread():
        never = threading.Lock()
        never.acquire()
        never.acquire()
