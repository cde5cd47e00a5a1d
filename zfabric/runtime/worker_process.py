"""What each worker process does first, whether it was forked from the template or started by the interpreter of an environment."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable

from zfabric.adapters import namespaces, numeric_threads
from zfabric.adapters.processes import flush_output
from zfabric.protocol.options import RUNTIME_ENV_VARIABLE
from zfabric.runtime import interface
from zfabric.runtime.session import Session

STACK_LINES = 4
"""Frames that are shown of an exit handler which does not end: those of the handler, and what it waits in."""

site = ""
"""Where the virtual environment of this worker has its packages; empty if it was forked."""


def entry_point(name: str) -> Callable[..., object]:
    """Return the function that "module:function" names."""
    module, _, function = name.partition(":")
    found: Callable[..., object] = getattr(importlib.import_module(module), function)
    return found


def begin(environment: Iterable[tuple[str, str]], threads: int) -> None:
    """Set signals, variables and the number of threads of numeric libraries, before any code of a user is loaded."""
    namespaces.mirror()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # No terminal can send it here; libraries may, on purpose.
    faulthandler.enable()
    os.environ.update(environment)
    # It repeats all other variables: processes that the worker starts could not inherit so much in one variable.
    interface.environment = os.environ.pop(RUNTIME_ENV_VARIABLE, "")
    numeric_threads.begin(max(1, threads))


def run(entry: str, session: Session, token: bytes, job: bytes) -> None:
    """Run the worker to its end, and exit handlers after it, for ``exit_seconds`` at most."""
    code = 1
    try:
        entry_point(entry)(session, token, job)
        code = 0
    finally:
        _run_exit_handlers(session.config().exit_seconds, code)


def _run_exit_handlers(seconds: float, code: int) -> None:
    """Run what is registered with ``atexit``. If that takes longer, exit with ``code``: others wait for what this process has.

    Threads of the program go on meanwhile. A handler that retains the interpreter's lock is ended a second later, from a thread of C.
    """
    import atexit  # Only workers need it.

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
    """Print where exit handlers are that do not end."""
    import traceback  # Only needed here.

    frame = sys._current_frames().get(thread)
    where = "".join(traceback.format_stack(frame)[-STACK_LINES:]) if frame is not None else ""
    text = f"exit handlers (atexit) of process {os.getpid()} have not ended after {seconds:g} s (the setting exit_seconds)"
    print(f"zfabric warning: {text}; it exits without them. They were here:\n{where.rstrip()}", file=sys.stderr, flush=True)
