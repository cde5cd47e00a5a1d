"""The template: a process that has imported what workers need, and becomes one by forking.

A worker forked here is ready in milliseconds, where a fresh interpreter takes a tenth of a second, and shares the memory of
everything imported. The template itself is forked from the supervisor, imports what the configuration names, freezes its
heap (so that no collection touches, and thereby copies, shared pages) and waits. It starts no threads, neither do its imports: a
forked child has only the thread that forked, and locks the others held stay locked in it for ever.

Workers are forked twice. The process in the middle ends at once, and the supervisor, a subreaper, becomes the worker's
parent: it reaps it, and takes it along when it dies. (``PR_SET_PDEATHSIG`` follows the parent, so it is set after that.) The one
in the middle reports the pid before it ends; if nobody takes the report, the worker is killed before it has done anything.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from zfabric.adapters import numeric_threads, processes
from zfabric.adapters.numeric_threads import VARIABLES
from zfabric.config import Config
from zfabric.protocol.options import RUNTIME_ENV_VARIABLE
from zfabric.runtime import interface
from zfabric.runtime.logs import log_path
from zfabric.runtime.session import Session, Specification
from zfabric.runtime.supervision import Channel


def entry_point(name: str) -> Callable[..., object]:
    """The function that "module:function" names."""
    module, _, function = name.partition(":")
    found: Callable[..., object] = getattr(importlib.import_module(module), function)
    return found


def run(specification: Specification, channel: Channel, supervisor: int) -> None:
    """Be the template: prepare, say "ready" (or why it cannot be), and fork a worker for each request until the channel ends."""
    chosen = {name: os.environ.get(name) for name in VARIABLES}
    os.environ.update(dict.fromkeys(VARIABLES, "1"))
    if specification.paths:
        sys.path[:] = specification.paths
    problem = _preload(Config.of(dict(specification.config)).preload)
    if problem:
        channel.send("unusable", problem)
        raise SystemExit(problem)
    for name, value in chosen.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    session = Session(specification.directory)
    session.config()  # So that no worker has to read it.
    gc.collect()
    gc.freeze()
    channel.send("ready")
    while (request := channel.receive()) is not None:
        _fork_worker(specification, session, channel, supervisor, request)


def _preload(modules: tuple[str, ...]) -> str:
    """Import these. If one cannot be, or not here: which, why, and what to do."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:  # whatever the user's module raises, or a script that ends itself
            where = "It is looked for where the program that started the cluster finds its modules."
            return (
                f"config 'preload' names {module!r}, which cannot be imported:\n{_as_raised(error)}"
                f"Correct it, or leave it out of 'preload': tasks import what they need by themselves. {where}"
            )
        if processes.thread_count() != 1:
            return (
                f"config 'preload' names {module!r}, which starts threads when it is imported; workers cannot be forked beside them. "
                "Start them later, in a function, or leave it out of 'preload': tasks import what they need by themselves."
            )
    return ""


def _as_raised(error: BaseException) -> str:
    """The traceback from the first line of the user's on: neither ours nor the import system's."""
    import traceback

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((__file__, importlib.__file__, "<frozen importlib")):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _fork_worker(specification: Specification, session: Session, channel: Channel, supervisor: int, request: tuple[Any, ...]) -> None:
    token: bytes = request[0]
    try:
        middle = os.fork()
    except OSError as error:
        channel.send("failed", token, processes.why_no_process(error))
        return
    if middle:
        _, status = os.waitpid(middle, 0)
        if status:
            channel.send("failed", token, f"the process that forks the worker ended with status {status}")
        return
    try:
        middle = os.getpid()
        worker = os.fork()
        if worker == 0:
            processes.run_and_exit(lambda: _become_worker(specification, session, channel, supervisor, middle, *request))
        try:
            channel.send("spawned", token, worker)
        except OSError:  # the supervisor has given this template up, and with it all workers that were not reported
            os.kill(worker, signal.SIGKILL)
        os._exit(0)
    except OSError as error:
        channel.send("failed", token, processes.why_no_process(error))
        os._exit(0)
    finally:
        os._exit(1)


def _become_worker(
    specification: Specification,
    session: Session,
    channel: Channel,
    supervisor: int,
    middle: int,
    token: bytes,
    job: bytes,
    environment: tuple[tuple[str, str], ...],
    directory: str,
    paths: tuple[str, ...],
    threads: int,
) -> None:
    channel.close()
    os.setpgid(0, 0)
    while os.getppid() == middle:
        time.sleep(0.0001)  # nothing tells a process of its new parent; the old one is about to end
    processes.die_with_parent(supervisor)
    processes.set_name("zf-worker")
    processes.redirect(log_path(session.logs, token, "out"), log_path(session.logs, token, "err"))
    processes.limit_worker()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # no terminal reaches this session; libraries may send it on purpose
    faulthandler.enable()
    _set_environment(dict(environment), threads)
    if directory:
        os.chdir(directory)
        paths = (*paths, directory)  # Programs keep the modules of their own there.
    sys.path[:0] = paths
    _reseed()
    import atexit

    try:
        entry_point(specification.worker)(session, token, job)
    finally:
        atexit._run_exitfuncs()


def _set_environment(environment: Mapping[str, str], threads: int) -> None:
    os.environ.update(environment)
    # It has all the others once more: a program that the worker starts could not be passed so much in one variable.
    interface.environment = os.environ.pop(RUNTIME_ENV_VARIABLE, "")
    numeric_threads.begin(max(1, threads))


def _reseed() -> None:
    """Random numbers must differ between workers. ``random`` sees to that itself after a fork; numpy does not."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        with contextlib.suppress(AttributeError):
            numpy_random.seed()
