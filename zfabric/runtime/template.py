"""The template: a process with the modules that workers need, from which workers are forked.

So workers are ready in milliseconds (a fresh interpreter takes a tenth of a second) and share the modules' memory. The template, itself
forked from the supervisor, imports what the configuration names, freezes its heap, because a garbage collection would copy shared pages,
and waits. It must have one thread: others' locks stay locked in a forked child.

Workers are forked twice. The process in the middle reports the worker's pid, or kills the worker, and ends: then the supervisor, a
subreaper, is the parent that reaps the worker, and with which the worker dies.

Modules of a program may be imported, too (``Specification.warm``). Whether they start threads is known only afterwards, so a child imports
them. With one thread left the child becomes the template, whose end the first one awaits; else the child exits, and the first one goes on
without them.

A worker with packages of its own (``runtime_env={"pip": ...}``) first makes a virtual environment, while nobody waits, then becomes its
interpreter (``worker_process``), and reports both steps.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import time
from functools import partial
from typing import Any, NoReturn

from zfabric.adapters import processes, termination
from zfabric.adapters.numeric_threads import VARIABLES
from zfabric.config import Config
from zfabric.exceptions import RuntimeEnvSetupError
from zfabric.runtime import worker_process
from zfabric.runtime.installed_packages import Requirements, environment_with
from zfabric.runtime.logs import log_path
from zfabric.runtime.session import Session, Specification
from zfabric.runtime.supervision import Channel
from zfabric.runtime.worker_process import become, requirements_of

IMPORT_SECONDS = 60
"""Seconds to import ``warm`` modules; then workers begin without them."""
ARROW_ALLOCATOR = "JE_ARROW_MALLOC_CONF"
"""Has Arrow start no thread when imported."""


def run(specification: Specification, channel: Channel, supervisor: int) -> None:
    """Prepare, report "ready" or why not, then fork workers on request."""
    chosen = {name: os.environ.get(name) for name in (*VARIABLES, ARROW_ALLOCATOR)}
    os.environ.update({**dict.fromkeys(VARIABLES, "1"), ARROW_ALLOCATOR: "background_thread:false"})
    if specification.paths:
        sys.path[:] = specification.paths
    problem = _preload(Config.of(dict(specification.config)).preload)
    if problem:
        channel.send("unusable", problem)
        raise SystemExit(problem)
    if specification.warm:
        _import_in_child(specification.warm)
    for name, value in chosen.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    session = Session(specification.directory)
    session.config()  # Workers need not read it again.
    processes.main_stack_room()  # As above.
    gc.collect()
    gc.freeze()
    channel.send("ready")
    while (request := channel.receive()) is not None:
        _fork_worker(specification, session, channel, supervisor, request)


def _import_in_child(modules: tuple[str, ...]) -> None:
    ours, theirs = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        os.close(ours)
        processes.die_with_parent(parent)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(IMPORT_SECONDS)  # It ends this process: workers wait for the template.
        for module in modules:
            # What fails here is reported by the worker that needs it.
            with contextlib.suppress(Exception, SystemExit):
                importlib.import_module(module)
        signal.alarm(0)
        if processes.thread_count() != 1:
            os._exit(0)
        os.write(theirs, b"1")
        os.close(theirs)
        return
    os.close(theirs)
    took_over = os.read(ours, 1)
    os.close(ours)
    _, status = os.waitpid(child, 0)
    if took_over:
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _preload(modules: tuple[str, ...]) -> str:
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
    """The traceback from user code on."""
    import traceback

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith((__file__, importlib.__file__, "<frozen importlib")):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _fork_worker(specification: Specification, session: Session, channel: Channel, supervisor: int, request: tuple[Any, ...]) -> None:
    token, _, environment, _ = request
    requirements = requirements_of(environment)
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
            body = partial(_become_worker, specification, session, channel, supervisor, middle, request, requirements)
            processes.run_and_exit(body)
        try:
            channel.send("spawned" if requirements is None else "making", token, worker)
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
    request: tuple[Any, ...],
    requirements: Requirements | None,
) -> None:
    token, job, environment, threads = request
    if requirements is None:
        channel.close()
    os.setpgid(0, 0)
    while os.getppid() == middle:
        time.sleep(0.0001)  # No event reports a new parent; the old one is about to end.
    processes.die_with_parent(supervisor)
    processes.set_name("zf-worker")
    processes.redirect(log_path(session.logs, token, "out"), log_path(session.logs, token, "err"))
    if requirements is not None:
        processes.set_name("zf-maker")
        _make_environment(specification, session, channel, request, requirements)
    processes.limit_worker()
    worker_process.begin(environment, threads)
    _reseed()
    worker_process.run(specification.worker, session, token, job)


def _make_environment(
    specification: Specification, session: Session, channel: Channel, request: tuple[Any, ...], requirements: Requirements
) -> NoReturn:
    token, _, environment, _ = request
    root = f"{session.directory}/environments"
    termination.hold()  # pip must not end at it, either.
    try:
        found = environment_with(requirements, dict(environment), root, session.config())
    except RuntimeEnvSetupError as error:
        channel.send("failed", token, str(error))
        os.killpg(os.getpid(), signal.SIGKILL)  # With all that pip has left behind in this process's group.
    processes.limit_worker()
    channel.send("spawned", token, os.getpid())
    become(specification, found, request)


def _reseed() -> None:
    """``random`` does so itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        with contextlib.suppress(AttributeError):
            numpy_random.seed()
