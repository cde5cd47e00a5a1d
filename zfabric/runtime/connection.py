"""A process's connection to its daemon: sockets, locks and threads around ``machines.client``, and waits.

A waiting thread receives by itself. Of several, one leads: it receives for all, wakes each follower whose wait is over, and wakes a
successor when it stops. The only other thread, the flusher, sends rows after two milliseconds. While the program computes, the flusher also
receives: once a second, more often while other processes wait for this one.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import get_ident
from typing import Any

import zmq

from zfabric import exceptions
from zfabric.adapters import task_errors
from zfabric.adapters.sockets import Transport
from zfabric.config import Config
from zfabric.exceptions import ConnectionLostError, FabricError, NodeDiedError, NotInitializedError
from zfabric.machines.client import Client
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, control_of
from zfabric.protocol.messages import ERROR, Row, Rows
from zfabric.runtime.sampling import Sampler
from zfabric.runtime.session import Session
from zfabric.runtime.terminal import Terminal
from zfabric.shell.process import Outgoing, client_sends, client_takes, peers_first

clock = time.monotonic

FLUSHER_PATIENCE = 25
"""Idle checks after which the flusher sleeps: waking it costs the sender more than one check."""
RECEIVE_EVERY = 0.01
"""Seconds between the flusher's receipts while others wait for this process."""
CHECK_EVERY = 1.0
"""Seconds between checks whether the node lives."""


UNREAD_HINT = "zf.get(ref) raises its error; config={'show_unread_failures': False} hides this"
BEGIN_ANEW = "call zf.shutdown() and zf.init()"
IN_FINALIZER = (
    "a finalizer (__del__) that the garbage collector ran in the middle of the fabric's own work cannot wait for it; release resources "
    "in a method that you call, or break the cycle that keeps the object alive"
)

FORKED = (
    "this process was forked from one that uses zfabric, and cannot share its connection; start it with multiprocessing's 'spawn' method "
    "(or subprocess), or use tasks instead of processes"
)

_RLock: Any = type(threading.RLock())


class ConnectionLock(_RLock):  # type: ignore[misc]
    """The lock held for every send: a forked child that cannot acquire it cannot hurt its parent."""

    __slots__ = ()


def _refuse() -> None:
    raise NotInitializedError(FORKED)


in_child: Callable[[], None] = _refuse
"""Called when a forked child acquires its parent's lock: raises, or ends the process. Workers replace it."""


class _ParentsLock(ConnectionLock):
    """A ``ConnectionLock`` in a forked child: a thread that the child lacks may have held it."""

    __slots__ = ()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        in_child()
        return True

    __enter__ = acquire

    def release(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def _after_fork() -> None:
    """Make the parent's connections unusable. Any other detection of a fork costs system calls."""
    for connection in _connections:
        connection.forked = True
        connection.lock.__class__ = _ParentsLock


os.register_at_fork(after_in_child=_after_fork)


class Follower:
    """A thread that waits while another leads. Releasing ``wakeup`` wakes it."""

    __slots__ = ("done", "wakeup")

    def __init__(self, done: Callable[[], bool]) -> None:
        self.done = done
        self.wakeup = threading.Lock()
        self.wakeup.acquire()


class Connection:
    """Registers with the daemon, exchanges the client machine's messages, and waits."""

    def __init__(self, session: Session, incarnation: bytes, kind: str, name: bytes, job: bytes, namespace: str) -> None:
        self.session = session
        self.config: Config = session.config()
        self.kind = kind
        self.name = name
        self.namespace = namespace
        """The default namespace of actors' names."""
        self.incarnation = incarnation
        self.control = b""
        self.lock: threading.RLock = ConnectionLock()
        self.machine = Client(CLIENT + incarnation, self.config)
        self.machine.job = job
        self.machine.unread.watching = kind != "tool" and self.config.log_to_driver and self.config.show_unread_failures
        self.machine.unread.is_cancellation = task_errors.is_cancellation
        self._unread_shown = 0
        self.closed = False
        self.alive: Callable[[], bool] = session.alive
        self.failure: Callable[[], str] = session.failure
        self.shows_output = True
        """Whether this process prints its job's output."""
        self._died = ""
        self.forked = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self.transport = Transport(self._context, session.sockets, incarnation, self.config)
        self.daemon = b""
        self._pump_lock = threading.Lock()
        self.leader = 0
        self._between = False
        """Whether the leader polls or prints: a signal handler on top of it may then receive."""
        self._sockets_close = False
        """Whether such a handler has closed the connection: then the leader closes the sockets."""
        self._followers: dict[Follower, None] = {}
        self._following = threading.Lock()
        """Guards ``_followers``; the innermost lock."""
        self._inbox: deque[tuple[bytes, bytes]] = deque()
        self._peers: set[bytes] = set()
        """Processes with direct sockets: called actors, and callers."""
        self.armed = False
        self._arm = threading.Lock()
        self._arm.acquire()
        self._flusher_asleep = True
        self.sent_at = 0.0
        self.terminal = Terminal(self.config.log_repeat_seconds)
        self._showing = threading.RLock()
        self._sampler = Sampler()
        self._flusher: threading.Thread | None = None
        self._watcher: threading.Thread | None = None
        _connections.add(self)

    # -- connecting --

    def register(self) -> m.Register:
        """This process's registration."""
        from zfabric.adapters.processes import start_ticks, working_directory

        return m.Register(
            m.PROTOCOL_VERSION,
            self.kind,
            os.getpid(),
            start_ticks(os.getpid()),
            self.machine.job,
            self.name,
            self.control,
            self.namespace,
            _readable(working_directory()) if self.kind == "driver" else "",
        )

    def connect(self, daemon: bytes) -> None:
        """Register with the daemon and wait for ``Welcome``."""
        self.register_with(daemon)
        self.await_welcome()

    def register_with(self, daemon: bytes) -> None:
        """Send the registration without waiting."""
        with self.lock:
            self._join(daemon)
            self.flush()

    def await_welcome(self) -> None:
        """Wait for ``Welcome``. Raises a refusal's error, or ConnectionLostError."""
        deadline = clock() + self.config.register_seconds
        if not self.wait_until(lambda: self.machine.welcomed or self.machine.refused is not None, deadline):
            raise ConnectionLostError(f"the daemon in {self.session.directory} did not answer within {self.config.register_seconds} s")
        if not self.machine.welcomed:
            refused = self.machine.refused
            self.machine.refused = None
            raise _error(refused.kind, refused.text) if refused is not None else ConnectionLostError("refused")
        self._flusher = threading.Thread(target=self._flush_late, name="zfabric-flusher", daemon=True)
        self._flusher.start()

    def _join(self, daemon: bytes) -> None:
        """Register, report what the daemon must record, and send all further messages there."""
        if self.daemon and self.daemon != daemon:
            self._leave(self.daemon)
        self.daemon = daemon
        self.machine.connect(daemon)
        self.machine.rejoin(self.register(), self.running(), self.unread())

    def _follow_daemon(self) -> None:
        """Join the session's daemon, if new. The caller holds the lock."""
        found = self.session.daemon()
        if found is not None and found[0] != self.daemon and not self.closed:
            self._join(found[0])
            self.flush()

    def _is_new_daemon(self, sender: bytes) -> bool:
        """Join an unknown sender that is the new daemon. Other senders' frames are not decoded.

        So a ``RegisterAgain`` of a daemon that has since died causes only this look at the session.
        """
        self._follow_daemon()
        if sender != self.daemon:
            self.transport.refused += 1
            return False
        return True

    def _leave(self, daemon: bytes) -> None:
        self.transport.forget(daemon)

    def running(self) -> tuple[m.Message, ...]:
        """What a worker adds to its registration."""
        return ()

    def unread(self) -> tuple[Row, ...]:
        """Places that arrived with tasks not yet begun."""
        return ()

    # -- sending --

    def flush(self) -> None:
        """Send every unsent message. The caller holds the lock."""
        sends = self._sends()
        if sends:
            self.sent_at = clock()
            self.transport.send(sends, self.sent_at)

    def flush_first(self) -> None:
        """Send the first task or call, for which the program is about to wait; the rest follows. The caller holds the lock."""
        first = self.machine.take_first()
        if first is not None:
            to, message = first
            self.transport.send_envelopes(to[1:], [(to[:1], CLIENT, message)], clock())
        if first is None or self.machine.urgent:
            self.flush()
        elif not self.armed and (self.machine.has_unsent or self.machine.dropped):
            self.arm_flusher()

    def _sends(self) -> list[Outgoing]:
        self._forget_ended_actors()
        return client_sends(self.machine, self.daemon)

    def _forget_ended_actors(self) -> None:
        while self.machine.calls.gone:
            ended = self.machine.calls.gone.pop()
            for incarnation in (ended, control_of(ended)):  # The second received requests to stop calls.
                self.transport.forget(incarnation)
                self._peers.discard(incarnation)

    def settle(self) -> None:
        """Release what finalizers dropped. The caller holds the lock."""
        if self.machine.dropped or self.machine.unviewed:
            self.machine.releases.settle()

    def _has_unsent(self) -> bool:
        return self.machine.has_unsent

    def _is_urgent(self) -> bool:
        return self.machine.urgent

    # -- receiving --

    def _pump(self, timeout: float) -> None:
        """Wait for frames and deliver them, as the leader."""
        come = bool(self._inbox)
        if not come and timeout > 0:
            self._between = True
            try:
                come = self._wait_readable(timeout)
            finally:
                self._between = False
        if (come or (timeout <= 0 and self.transport.readable)) and not self._sockets_close:
            self._receive(timeout)
        self._pumped()

    def _stop_leading(self) -> None:
        if self._sockets_close:
            self._close_sockets()
        self.leader = 0
        self._pump_lock.release()

    def _pumped(self) -> None:
        """Hook for subclasses, after each look at the sockets."""

    def _receive(self, timeout: float) -> None:
        first = self.transport.take()
        if first is not None:
            self._inbox.append(first)
            # Usually a thread waits for exactly this frame of a peer.
            if (timeout <= 0 or first[0] not in self._peers) and self.transport.readable:
                self._inbox.extend(self.transport.receive())
        if not self._inbox:
            return
        if len(self._inbox) > 1 and self._peers:
            self._inbox = deque(peers_first(self._inbox, self._peers.__contains__))
        with self.lock:
            now = clock()
            while self._inbox:
                sender, frame = self._inbox.popleft()
                if sender == self.daemon or (sender not in self._peers and not self._is_peer(sender) and self._is_new_daemon(sender)):
                    for to, role, message in self.transport.accept(sender, frame, now):
                        self._deliver(now, to, role + sender, message)
                elif sender in self._peers:
                    for to, role, message in self.transport.accept(sender, frame, now):
                        self._deliver_from_peer(now, to, role + sender, message)
        if self.machine.notices:
            self._between = True
            try:
                self.show_notices()
            finally:
                self._between = False

    def look(self) -> None:
        """Deliver what has arrived, without waiting."""
        if self._pump_lock.acquire(blocking=False):
            self.leader = get_ident()
            try:
                self._pump(0.0)
            finally:
                self._stop_leading()
                self.wake_followers()
                self._hand_over()

    def _wait_readable(self, timeout: float) -> bool:
        return self.transport.poll(timeout)

    def _deliver(self, now: float, to: bytes, source: bytes, message: Any) -> None:
        if type(message) is m.Inspect:
            self.inspect(message)
        elif type(message) is m.CollectGarbage:
            self.collect_garbage()
        elif type(message) is not m.RegisterAgain:
            self.machine.step(now, source, message)

    def collect_garbage(self) -> None:
        """Run the garbage collector in a thread: finalizers are user code and may wait for anything.

        If no thread can start, the daemon repeats the request.
        """
        with suppress(RuntimeError):
            threading.Thread(target=self._collect_garbage, name="zfabric-collect", daemon=True).start()

    def _collect_garbage(self) -> None:
        gc.collect()
        self._attempt(self._flush_armed)

    def inspect(self, message: m.Inspect) -> None:
        """Report calls or stacks, at once or as samples of a thread. The caller holds the lock."""
        if message.about == "calls":
            self.machine.send(m.Inspected(message.asker, message.token, self.machine.calls.outstanding()))
        elif message.about == "runs":
            self.machine.send(m.Inspected(message.asker, message.token, (*self.runs(), ("", b"", self.calls_waiting()))))
        elif message.seconds > 0.0:
            with suppress(RuntimeError):  # No thread can start at the interpreter's exit; the asker's time expires.
                self._sampler.ask(message.asker, message.token, message.seconds, self._report_samples)
        else:
            self.machine.send(m.Inspected(message.asker, message.token, self.threads()))

    def _report_samples(self, asked: list[tuple[bytes, int]], rows: Rows) -> None:
        with self.lock:
            for asker, token in asked:
                self.machine.send(m.Inspected(asker, token, rows))
        self._attempt(self._flush_armed)

    def runs(self) -> Rows:
        """Rows ``(name, id, seconds)`` of what runs here."""
        return tuple(run for _, runs, _ in self.threads() for run in runs)

    def calls_waiting(self) -> int:
        """How many calls of its actors wait here."""
        return 0

    def threads(self) -> Rows:
        """Stacks of this process's threads (see ``stacks``)."""
        from zfabric.runtime.stacks import own_threads

        return own_threads({})

    def _is_peer(self, sender: bytes) -> bool:
        """Whether an unknown sender is a called actor, which becomes a peer."""
        if sender in self.transport.peers:
            self._peers.add(sender)
        return sender in self._peers

    def _deliver_from_peer(self, now: float, to: bytes, source: bytes, message: Any) -> None:
        if client_takes(self.machine, source[1:], message):
            self.machine.step(now, source, message)
        else:
            self.transport.refused += 1

    def wake_followers(self) -> None:
        """Wake followers whose waits are over."""
        with self.lock:
            machine = self.machine
            all_over = self.closed or machine.farewell or machine.refused or self._died
            for follower in [each for each in list(self._followers) if all_over or each.done()]:
                self._wake(follower)

    def _wake(self, follower: Follower) -> None:
        with self._following:
            if self._followers.pop(follower, self) is None:
                follower.wakeup.release()

    def _hand_over(self) -> None:
        if not self._pump_lock.locked():
            with self._following:
                successor = next(iter(self._followers), None)
            if successor is not None:
                self._wake(successor)

    def show_notices(self) -> None:
        """Show notices before any thread returns that waited for a later message."""
        with self._showing:
            notices = self.machine.notices
            found = [notices.popleft() for _ in range(len(notices))]
            self.terminal.show([each for each in found if self.shows_output or isinstance(each, m.Notice)])

    # -- waiting --

    def wait_until(self, done: Callable[[], bool], deadline: float | None) -> bool:
        """Receive until ``done()``, or return False at the deadline. What has arrived by then counts.

        ``done`` is called under the lock, by any thread and repeatedly; its result may be dropped.
        """
        me = get_ident()
        leads_below = self.leader == me  # A signal handler or finalizer waits on top of this thread's wait.
        if self.lock._is_owned() or (leads_below and not self._between):  # type: ignore[attr-defined]  # As ``threading.Condition`` does.
            raise FabricError(IN_FINALIZER)
        check_at = clock() + CHECK_EVERY
        looked = False
        try:
            while True:
                with self.lock:
                    self.check_usable()
                    if done():
                        return True
                    if self._is_urgent():
                        self.flush()
                    elif not self.armed and self._has_unsent():
                        self.arm_flusher()
                    if self.transport.congested:
                        self.transport.tick(clock())
                now = clock()
                if deadline is not None and now >= deadline and looked:
                    return False
                looked = True
                if now >= check_at or self._died:
                    check_at = now + CHECK_EVERY
                    self._check_node()
                    with self.lock:
                        self.transport.tick(now)
                pause = max(0.0, min(check_at, deadline) - now) if deadline is not None else check_at - now
                if self.transport.congested:
                    pause = min(pause, 0.005)
                if leads_below:
                    self._between = False
                    try:
                        self._pump(pause)
                    finally:
                        self._between = True
                        if self._followers:
                            self.wake_followers()
                elif self._pump_lock.acquire(blocking=False):
                    self.leader = me
                    try:
                        self._pump(pause)
                    finally:
                        self._stop_leading()
                        if self._followers:
                            self.wake_followers()
                else:
                    self._follow(done, pause)
        finally:
            if self._followers:
                self._hand_over()  # Even if it never led: it may have been woken as successor.

    def _follow(self, done: Callable[[], bool], pause: float) -> None:
        """Sleep until the leader wakes this thread, or stops."""
        follower = Follower(done)
        with self._following:
            self._followers[follower] = None
        try:
            if not self._pump_lock.locked():  # A leader that stopped earlier did not wake this thread.
                return
            with self.lock:
                if done():  # It may have become true before the leader could find this thread.
                    return
            self._await_wake(follower, max(0.0, pause))
        finally:
            with self._following:
                self._followers.pop(follower, None)

    def _await_wake(self, follower: Follower, timeout: float) -> None:
        follower.wakeup.acquire(timeout=timeout)

    def pump_aside(self) -> None:
        """Receive for waiters without a thread (asyncio, futures). The caller holds the lock."""
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="zfabric-watcher", daemon=True)
            self._watcher.start()

    def _watch(self) -> None:
        try:
            self.wait_until(self._unwatched, None)
        except (
            FabricError,
            zmq.ZMQError,
        ):  # Nothing more will be received; the waiters get the error when they read.
            with self.lock:
                self._watcher = None
                self.machine.objects.give_up_watching()

    def _unwatched(self) -> bool:
        """Whether the watcher ends because no such waiter is left."""
        if self._watched():
            return False
        self._watcher = None
        return True

    def _watched(self) -> bool:
        return bool(self.machine.objects.watchers)

    def check_usable(self) -> None:
        """Raise if the cluster is no longer usable. The caller holds the lock."""
        if self.closed:
            raise NotInitializedError("the connection to the cluster is closed; call zf.init() for a new one")
        if self.machine.refused is not None and self.machine.welcomed:
            refused, self.machine.refused = self.machine.refused, None
            raise _error(refused.kind, refused.text)
        if self.machine.farewell:
            raise NodeDiedError(f"{self.machine.farewell}; {BEGIN_ANEW}")

    def _check_node(self) -> None:
        if not self._died and not self.alive():
            self.look()  # The daemon's last messages.
            with self.lock:
                self.check_usable()
            reason = self.failure()
            text = f"the node's supervisor is gone, and all its processes with it; {BEGIN_ANEW}"
            self._died = f"{text}. It said: {reason}" if reason else text
        if self._died:
            raise NodeDiedError(self._died)
        with self.lock:
            self._follow_daemon()

    # -- the flusher --

    def arm_flusher(self) -> None:
        """Have unsent messages sent within ``send_delay``. The caller holds the lock."""
        self.armed = True
        if self._flusher_asleep:
            self._flusher_asleep = False
            self._arm.release()

    def _wake_flusher(self) -> None:
        """Have the flusher check ``_reads_aside``. The caller holds the lock."""
        if self._flusher_asleep:
            self._flusher_asleep = False
            self._arm.release()

    def _flush_late(self) -> None:
        maintain_at = clock() + CHECK_EVERY
        while not self.closed:
            if clock() >= maintain_at:  # Also in a program that always submits and never waits.
                maintain_at = clock() + CHECK_EVERY
                self._attempt(self._maintain)
            if not self._arm.acquire(timeout=max(0.0, maintain_at - clock())):
                continue
            idle = 0 if self.armed else FLUSHER_PATIENCE
            while (idle < FLUSHER_PATIENCE or self._reads_aside()) and not self.closed and clock() < maintain_at:
                # To wake this thread for each row would cost the sender more than the row itself.
                time.sleep(self.config.send_delay if idle < FLUSHER_PATIENCE else RECEIVE_EVERY)
                idle = 0 if self.armed else idle + 1
                if self._reads_aside():
                    self._attempt(self._receive_and_send)
                # A program that submits in a loop sends full batches itself; unsent rows are then newer than the last batch.
                if self.armed and clock() - self.sent_at >= self.config.send_delay:
                    self._attempt(self._flush_armed)
            with self.lock:
                self._flusher_asleep = not self.armed and not self._reads_aside()
                if not self._flusher_asleep:
                    self._arm.release()

    def _reads_aside(self) -> bool:
        """Whether the flusher receives, for other processes or call backs that wait."""
        return self.machine.calls.expectant or self.machine.last.count > 0

    def _flush_armed(self) -> None:
        with self.lock:
            self.armed = False
            if not self.closed:
                self.flush()

    def _receive_and_send(self) -> None:
        self.look()
        with self.lock:
            if not self.closed and (self._has_unsent() or (self.machine.last.count and self.machine.dropped)):
                self.flush()

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except (zmq.ZMQError, FabricError, OSError):
            if not self.closed:
                raise

    def _maintain(self) -> None:
        """Once a second while no thread waits: receive, release what was dropped, repeat frames."""
        self.look()
        self.terminal.look()
        with self.lock:
            if not self.closed:
                self.machine.rest()
                self._forget_dead_workers()
                self.flush()
                self.transport.tick(clock())
        self.show_unread()

    def show_unread(self, ending: bool = False) -> None:
        """Show the first unread failure, and at the end the number of others.

        A worker may be killed at any moment, so it prints the number each time it has doubled.
        """
        unread = self.machine.unread
        with self.lock:
            if self.machine.dropped:
                self.settle()
            if ending:
                unread.lose_all()
            first = unread.lost if unread.count and not self._unread_shown else None
            due = ending or (self.kind == "worker" and unread.count >= 2 * self._unread_shown > 0)
            more = unread.count - 1 if due else 0
            if more or first is not None:
                self._unread_shown = unread.count if more else 1
        if first is not None:
            text = task_errors.told(first[1], first[0] == ERROR)
            self.terminal.show([m.Notice("warning", f"a task failed whose result nobody asked for ({UNREAD_HINT}): {text}")])
        if more > 0:
            text = f"{more} more tasks failed whose results" if more > 1 else "one more task failed whose result"
            self.terminal.show([m.Notice("warning", f"{text} nobody asked for{'' if ending else ', so far'}")])

    def _forget_dead_workers(self) -> None:
        """Close sockets to exited workers of direct submission.

        The scheduler must first have ended that submission: else the next task would open the socket again.
        """
        sockets, direct = self.session.sockets, self.machine.direct
        idle = direct.allowed.difference(direct.workers.values())
        for worker in [each for each in idle if not os.path.exists(os.path.join(sockets, each.hex()))]:
            direct.forget(worker)
            self._peers.discard(worker)
            self.transport.forget(worker)

    # -- the end --

    def disconnect(self) -> None:
        """Close the sockets; waiting threads raise."""
        with self.lock:
            self.closed = True
            if self._flusher_asleep:
                self._flusher_asleep = False
                self._arm.release()
        self.wake_followers()
        if self.leader == get_ident():
            self._sockets_close = True
        else:
            with self._pump_lock:
                self._close_sockets()
        with self.lock:
            if self._watcher is None:  # A watcher notifies the waiters and drops them itself.
                self.machine.objects.watchers.clear()
                self.machine.objects.outcome_watchers.clear()

    def abandon(self) -> None:
        """Close the sockets before registration."""
        self.closed = True
        self.transport.close()
        self._context.term()

    def _close_sockets(self) -> None:
        self._sockets_close = False
        with self.lock:  # Others wake this process's receiver under the lock.
            self.transport.close(flush=0.2)
        self.terminal.close()
        self._end_context()

    def _end_context(self) -> None:
        """Wait until ZeroMQ has sent the rest."""
        self._context.term()


def _readable(path: str) -> str:
    """Replace what is not UTF-8 by question marks."""
    return path.encode(errors="replace").decode()


def _error(kind: str, text: str) -> FabricError:
    found = getattr(exceptions, kind, FabricError)
    error: FabricError = found(text)
    return error
