"""The template: a process that has imported the modules that workers need. Workers are forked from it.

A worker forked here is ready in milliseconds, where a fresh interpreter takes a tenth of a second, and shares the memory of all
imported modules. The template itself is forked from the supervisor, imports the modules that the configuration names, freezes its
heap (so that no garbage collection touches, and thereby copies, shared pages) and waits. Neither it nor its imports may start threads: a
forked child has only the thread that forked, and locks held by other threads stay locked in it for ever.

Workers are forked twice. The process in the middle ends at once, and the supervisor, a subreaper, becomes the worker's
parent: it reaps the worker, and the worker dies with it. (``PR_SET_PDEATHSIG`` refers to the parent, so it is set after that.) The process
in the middle reports the worker's pid before it ends. If the report cannot be sent, it kills the worker.
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
    """Return the function that "module:function" names."""
    module, _, function = name.partition(":")
    found: Callable[..., object] = getattr(importlib.import_module(module), function)
    return found


def run(specification: Specification, channel: Channel, supervisor: int) -> None:
    """Run the template: prepare, report "ready" or the reason why it cannot start, and fork a worker for each request."""
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
    session.config()  # Workers need not read it again.
    gc.collect()
    gc.freeze()
    channel.send("ready")
    while (request := channel.receive()) is not None:
        _fork_worker(specification, session, channel, supervisor, request)


def _preload(modules: tuple[str, ...]) -> str:
    """Import these modules. Return an empty string, or an error text that names the module and what to do."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as error:  # User modules may raise anything; a script may exit.
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
    """Format the traceback from the first frame of user code on."""
    import traceback  # Only needed here.

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((__file__, importlib.__file__, "<frozen importlib")):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _fork_worker(specification: Specification, session: Session, channel: Channel, supervisor: int, request: tuple[Any, ...]) -> None:
    token = request[0]
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
        except OSError:  # The supervisor has closed the channel, and will never get this worker's pid.
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
        time.sleep(0.0001)  # No event reports a new parent; the old one is about to end.
    processes.die_with_parent(supervisor)
    processes.set_name("zf-worker")
    processes.redirect(log_path(session.logs, token, "out"), log_path(session.logs, token, "err"))
    processes.limit_worker()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # No terminal can send it here; libraries may, on purpose.
    faulthandler.enable()
    _set_environment(dict(environment), threads)
    _reseed()
    import atexit  # Only workers need it.

    try:
        entry_point(specification.worker)(session, token, job)
    finally:
        atexit._run_exitfuncs()


def _set_environment(environment: Mapping[str, str], threads: int) -> None:
    os.environ.update(environment)
    # It repeats all other variables: processes that the worker starts could not inherit so much in one variable.
    interface.environment = os.environ.pop(RUNTIME_ENV_VARIABLE, "")
    numeric_threads.begin(max(1, threads))


def _reseed() -> None:
    """Make random numbers differ between workers. ``random`` does so itself after a fork; numpy does not."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        with contextlib.suppress(AttributeError):
            numpy_random.seed()
