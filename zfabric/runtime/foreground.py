"""A node in the foreground: ``zfabric start --block``, for Slurm, systemd and containers.

The node ends with this process, however that ends (the lifeline of ``launch``). At SIGTERM or a first Ctrl-C, this process drains the node
for at most the grace period, and ends it. A node that cannot be drained ends at once: the head, which takes the cluster with it, and a lone
node. As PID 1 of a container, this process collects what orphans leave.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from zfabric.exceptions import FabricError
from zfabric.protocol.effects import DRAINED
from zfabric.runtime.connect import drain_node
from zfabric.runtime.launch import Launched
from zfabric.runtime.session import forget_failure

GRACE_SECONDS = 25.0
"""Default seconds of a drain after SIGTERM: less than the 30 s after which Slurm and Kubernetes kill."""
END_SECONDS = 2.0
"""Seconds beyond the grace period for a daemon that does not answer."""
AGAIN_SECONDS = 1.0
"""Seconds after which a signal handler's exception is raised again: in a finalizer, Python prints it and goes on."""
_NOTICES = (signal.SIGTERM, signal.SIGINT)


class Notified(BaseException):
    """SIGTERM arrived before the node had started."""


class _Overdue(BaseException):
    """The grace period is over, and the daemon has not answered."""


@contextmanager
def notified() -> Iterator[None]:
    """Raise ``Notified`` inside at the first SIGTERM; later ones do nothing. This process exits soon after the end."""

    def arrive(number: int, frame: Any) -> NoReturn:
        signal.signal(signal.SIGTERM, _do_nothing)
        raise Notified

    signal.signal(signal.SIGTERM, arrive)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # As it exits, the interpreter restores the default action of all others.


def run_until_end(launched: Launched, grace: float, say: Callable[[str], None]) -> str:
    """Wait for the end of a foreground session; drain it at SIGTERM or SIGINT.

    ``grace`` is in seconds; ``say`` receives lines for people. Return "" if the node was stopped or drained, else why it ended. Only the
    main thread calls this, once: it replaces the handlers of SIGTERM, SIGINT and SIGCHLD.
    """
    number, code = ChildWatch().wait(launched.pid)
    if number is not None:
        _end(launched, grace, signal.Signals(number).name, say)
        return ""
    reason = launched.failure() if code else ""
    if reason and DRAINED not in reason:
        return reason
    say(f"the node has ended: it was {'drained' if reason else 'stopped'}")
    launched.close()
    forget_failure()
    return ""


class ChildWatch:
    """Waits for the end of a child, or for SIGTERM or SIGINT, whose handlers it replaces. Only the main thread makes one, once."""

    def __init__(self) -> None:
        self._readable, writable = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, _do_nothing)
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # Scripts start commands in the background without it.
            signal.signal(signal.SIGINT, _do_nothing)
        self._poll = select.poll()
        self._poll.register(self._readable, select.POLLIN)

    def wait(self, child: int, seconds: float | None = None) -> tuple[int | None, int | None]:
        """Return the signal that has arrived, or None, and the child's exit code, negative for a signal; (None, None) after ``seconds``."""
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            code = _reap(child)
            if code is not None:
                return None, code
            if not self._poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000):
                return None, None
            arrived = os.read(self._readable, 4096)
            for number in _NOTICES:
                if number in arrived:
                    return number, None


def _reap(child: int) -> int | None:
    """Collect all children that have ended: PID 1 has others', too. Return the exit code of ``child``, or None."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
        if not pid:
            return code


def _end(launched: Launched, grace: float, notice: str, say: Callable[[str], None]) -> None:
    """Drain the node for at most ``grace`` seconds, then end it. SIGINT ends it at once."""
    cluster = launched.session.cluster()
    try:
        if cluster is None or cluster.head:
            say(f"{notice}: the cluster ends")
        else:
            if signal.getsignal(signal.SIGINT) is _do_nothing:
                signal.signal(signal.SIGINT, raises(KeyboardInterrupt))
            say(f"{notice}: draining this node for at most {grace:g} s; Ctrl-C ends it at once")
            say(_drain(launched, grace))
    except KeyboardInterrupt:
        say("interrupted: the node ends without waiting for its tasks")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        launched.close()
        forget_failure()


def _drain(launched: Launched, grace: float) -> str:
    left: dict[str, Any] = {}
    signal.signal(signal.SIGALRM, raises(_Overdue))
    signal.setitimer(signal.ITIMER_REAL, grace + END_SECONDS)
    try:
        in_time = drain_node(launched.session, str(launched.session.describe()["node"]), grace, force=True, report=left.update)
    except _Overdue:
        return f"the node ends undrained: its daemon did not answer within {grace:g} s"
    except FabricError as error:
        return f"the node ends undrained: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
    return "drained" if in_time else f"the node ends after {grace:g} s with what was left on it: {_listed(left)}"


def raises(error: type[BaseException]) -> Callable[[int, Any], NoReturn]:
    """Return a signal handler that raises ``error``, repeatedly until the timer (``setitimer``) is stopped."""

    def handler(number: int, frame: Any) -> NoReturn:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        raise error

    return handler


def _listed(left: dict[str, Any]) -> str:
    counted = [f"{left[what]} {what if left[what] != 1 else what[:-1]}" for what in ("tasks", "values") if left[what]]
    return ", ".join([*counted, *(f"the actor {each}" for each in left["actors"])]) or "nothing"


def plain(reason: str) -> str:
    """A recorded failure, without our own traceback and the error's class."""
    if re.match(r"the \w+ (cannot be started|failed).*\n", reason):
        *_, reason = reason.splitlines()  # The reason is below our own traceback.
    reason = re.sub(r"^the \w+ cannot be started \([^)]*\): ", "", reason)
    return re.sub(r"^(zfabric\.exceptions\.)?\w+Error: ", "", reason)


def _do_nothing(number: int, frame: Any) -> None:
    pass
