"""What each worker process does first, whether it was forked from the template or started by the interpreter of an environment."""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
from collections.abc import Callable, Iterable

from zfabric.adapters import namespaces, numeric_threads
from zfabric.protocol.options import RUNTIME_ENV_VARIABLE
from zfabric.runtime import interface
from zfabric.runtime.session import Session

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
    """Run the worker to its end, and exit handlers after it."""
    import atexit  # Only workers need it.

    try:
        entry_point(entry)(session, token, job)
    finally:
        atexit._run_exitfuncs()
