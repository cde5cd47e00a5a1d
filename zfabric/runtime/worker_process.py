"""What each worker process does first, forked or not."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable

from zfabric.adapters import namespaces, numeric_threads, termination
from zfabric.adapters.processes import flush_output
from zfabric.protocol.options import RUNTIME_ENV_VARIABLE
from zfabric.runtime import interface
from zfabric.runtime.session import Session

STACK_LINES = 4
"""Frames shown of an exit handler that does not end."""

site = ""
"""The virtual environment's packages; "" if forked."""


def entry_point(name: str) -> Callable[..., object]:
    """The function that "module:function" names."""
    module, _, function = name.partition(":")
    found: Callable[..., object] = getattr(importlib.import_module(module), function)
    return found


def begin(environment: Iterable[tuple[str, str]], threads: int) -> None:
    """Set signals, variables and numeric threads before user code is loaded."""
    namespaces.mirror()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Only libraries send it here, on purpose.
    termination.restore_in_forks()
    faulthandler.enable()
    os.environ.update(environment)
    # It repeats all other variables: child processes could not inherit so much in one.
    interface.environment = os.environ.pop(RUNTIME_ENV_VARIABLE, "")
    numeric_threads.begin(max(1, threads))


def run(entry: str, session: Session, token: bytes, job: bytes) -> None:
    """Run the worker, then exit handlers for at most ``exit_seconds``."""
    code = 1
    try:
        entry_point(entry)(session, token, job)
        code = 0
    finally:
        _run_exit_handlers(session.config().exit_seconds, code)


def _run_exit_handlers(seconds: float, code: int) -> None:
    """Run ``atexit`` handlers; exit with ``code`` if they take longer: others wait for what this process has.

    The program's threads go on. A handler that holds the interpreter's lock is ended a second later, from C.
    """
    import atexit

    ended = threading.Event()

    def watch(handlers: int) -> None:
        if not ended.wait(seconds):
            _report_handlers(seconds, handlers)
            flush_output()
            os._exit(code)

    watcher = threading.Thread(target=watch, args=(threading.get_ident(),), name="zfabric-exit", daemon=True)
    faulthandler.dump_traceback_later(seconds + 1.0, exit=True, file=2)
    watcher.start()
    try:
        atexit._run_exitfuncs()
    finally:
        ended.set()
        faulthandler.cancel_dump_traceback_later()


def _report_handlers(seconds: float, thread: int) -> None:
    import traceback

    frame = sys._current_frames().get(thread)
    where = "".join(traceback.format_stack(frame)[-STACK_LINES:]) if frame is not None else ""
    text = f"exit handlers (atexit) of process {os.getpid()} have not ended after {seconds:g} s (the setting exit_seconds)"
    print(f"zfabric warning: {text}; it exits without them. They were here:\n{where.rstrip()}", file=sys.stderr, flush=True)
