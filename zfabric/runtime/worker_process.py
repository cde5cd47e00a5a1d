"""How a worker process begins: forked from the template, or with a virtual environment's interpreter.

A forked worker has the template's modules, which other versions could not replace. So for a task with packages of its own, the process that
has made their environment executes its interpreter (``become``), which reads an inherited descriptor (``main``).
"""

from __future__ import annotations

import faulthandler
import hashlib
import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import msgpack

from zfabric.adapters import namespaces, numeric_threads, processes, termination
from zfabric.adapters.cached_directories import CachedDirectory
from zfabric.protocol.options import RUNTIME_ENV_VARIABLE
from zfabric.runtime import interface
from zfabric.runtime.installed_packages import Requirements, put_on_path, python_of, site_of
from zfabric.runtime.session import Session, Specification

STACK_LINES = 4
"""Frames shown of an exit handler that does not end."""

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from zfabric.runtime.worker_process import main; main()"

site = ""
"""The virtual environment's packages; "" if forked."""


def entry_point(name: str) -> Callable[..., object]:
    """Load the function of "module:function"."""
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
            processes.flush_output()
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


# --- with an environment's interpreter ------------------------------------------------------------------------------------------------


def requirements_of(environment: Iterable[tuple[str, str]]) -> Requirements | None:
    """The packages that a worker's environment requests, or None."""
    whole = dict(environment).get(RUNTIME_ENV_VARIABLE)
    if whole is None:
        return None
    requirements: Requirements = json.loads(whole)[3]
    return requirements if requirements[0] else None


def become(specification: Specification, found: CachedDirectory, request: tuple[Any, ...]) -> NoReturn:
    """Go on as a worker with this environment, which stays while the worker lives."""
    token, job, environment, threads = request
    work = specification.worker, token, job, environment, threads
    content = (specification.directory, sys.path, site_of(found.path), *work, found.lock, termination.is_disregarded())
    descriptor = os.memfd_create("worker")  # Other users can read arguments and variables.
    with open(descriptor, "wb", closefd=False) as file:
        file.write(msgpack.packb(content, unicode_errors="surrogateescape"))
    os.lseek(descriptor, 0, os.SEEK_SET)
    for inherited in (descriptor, found.lock):
        os.set_inheritable(inherited, True)
    python = python_of(found.path)
    given = {name: value for name, value in environment if name != RUNTIME_ENV_VARIABLE}
    variables = {"PATH": os.defpath, **os.environ, **given, "VIRTUAL_ENV": found.path}
    variables["PATH"] = f"{os.path.dirname(python)}:{variables['PATH']}"
    # Equal text has equal hashes in all such workers.
    variables.setdefault("PYTHONHASHSEED", str(int.from_bytes(hashlib.sha256(specification.directory.encode()).digest()[:4], "big")))
    os.execve(python, [python, "-P", "-c", _PROGRAM, _package_parent(), str(descriptor)], variables)


def _package_parent() -> str:
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main() -> NoReturn:
    """Run the worker that ``become`` described."""
    descriptor = int(sys.argv[2])
    del sys.argv[1:]  # Hidden from the worker's programs.

    def body() -> None:
        global site
        with open(descriptor, "rb") as file:
            content = msgpack.unpackb(file.read(), use_list=False, unicode_errors="surrogateescape")
        directory, paths, site, entry, token, job, environment, threads, lock, is_notice = content
        os.set_inheritable(lock, False)
        if is_notice:
            termination.disregard()
        sys.path[:] = put_on_path(site, paths)
        processes.set_name("zf-worker")
        begin(environment, threads)
        run(entry, Session(directory), token, job)

    processes.run_and_exit(body)
