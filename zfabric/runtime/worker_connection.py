"""A worker's connections: what it sends in which order, who may speak to it, and the thread that listens to the scheduler.

The control thread, asleep on a socket of its own, gives back tasks that were not begun, passes on interrupts and timeouts, and rejoins a
restarted daemon while user code runs.

An interrupt is a real-time signal to the main thread. Its handler raises only if the attempt on top is to be stopped *and* user
code runs (or the thread waits in ``poll``). See ``interrupts``.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import zmq

from zfabric.adapters.sockets import Transport
from zfabric.machines.worker import Invocation, Item, Worker
from zfabric.protocol import messages as m
from zfabric.protocol.access import FROM_PEERS
from zfabric.protocol.ids import CONTROL, TASK_BYTES, WORKER, control_of, short
from zfabric.protocol.messages import Row
from zfabric.runtime.client import FabricClient
from zfabric.runtime.connection import CHECK_EVERY, clock
from zfabric.runtime.crew import Loop, current_call
from zfabric.runtime.hosting import Host
from zfabric.runtime.interrupts import AGAIN_AFTER, INTERRUPT, Fence, Fences, TaskInterrupt, closed_to_interrupts
from zfabric.runtime.session import Session
from zfabric.shell.process import Outgoing, admits_caller, control_step, unacknowledged_reports, worker_sends, worker_takes

ABANDON_AFTER = 1.0
"""Seconds for which a call that is to be stopped is waited for: nothing stops a thread in code that does not come back to Python."""


class WorkerConnection(FabricClient):
    """A client that is told what to run, and reports what came of it."""

    def __init__(self, session: Session, token: bytes, job: bytes) -> None:
        super().__init__(session, token, "worker", token, job, "")
        self.control = control_of(token)
        self.worker = Worker(WORKER + token, self.config)
        self.host = Host(self.worker.mailbox, self.machine.calls, self.lock)
        self.control_post = Transport(self._context, session.sockets, self.control, self.config)
        self.control_post.hang_bell()
        self._main = threading.get_ident()
        self._listener: threading.Thread | None = None
        self.fences = Fences()
        self._fence = self.fences.mine
        """The main thread's."""
        self._fence.depth = 1
        self._waiting = False
        self._quiet = False
        """Whether the main thread waits for what the control thread hears."""
        self._asked: dict[bytes, float] = {}
        """Of those, when that was first tried."""
        self._to_interrupt: dict[bytes, float] = {}
        """Attempts and calls that are to be interrupted, and when that is tried next: a finalizer may have swallowed the last one."""
        self._contexts: list[Item | Invocation] = []
        """What the main thread runs: the attempt on top is last."""
        self._loop: Loop | None = None
        """Runs async tasks."""
        self._callers_gone: list[bytes] = []
        """Processes that have called and ended: the links to them are closed once all has been read that they had said."""

    # -- the API's entry points --

    export = closed_to_interrupts(FabricClient.export)
    submit = closed_to_interrupts(FabricClient.submit)
    submit_many = closed_to_interrupts(FabricClient.submit_many)
    kill_actor = closed_to_interrupts(FabricClient.kill_actor)
    put = closed_to_interrupts(FabricClient.put)
    add_reference = closed_to_interrupts(FabricClient.add_reference)
    follow = closed_to_interrupts(FabricClient.follow)
    get = closed_to_interrupts(FabricClient.get)
    wait = closed_to_interrupts(FabricClient.wait)
    add_done_callback = closed_to_interrupts(FabricClient.add_done_callback)
    cancel = closed_to_interrupts(FabricClient.cancel)
    explain_call = closed_to_interrupts(FabricClient.explain_call)
    pending_calls = closed_to_interrupts(FabricClient.pending_calls)
    query = closed_to_interrupts(FabricClient.query)

    @property
    def namespace(self) -> str:
        """That of the job, which a worker has with its first task: asked for when somebody wants to know."""
        if not self._namespace and self.machine.job:
            self._namespace = self.query("namespace", self.machine.job)
        return self._namespace

    # -- the daemon, and peers --

    def running(self) -> tuple[m.Message, ...]:
        """What this worker adds to its registration."""
        return self.worker.running()

    def unread(self) -> tuple[Row, ...]:
        """Places that came with tasks it has not begun."""
        return self.worker.unread()

    def _join(self, daemon: bytes) -> None:
        self.worker.connect(daemon)
        super()._join(daemon)
        if self._listener is None:  # From the first registration on: the daemon that is to hear of it may be replaced meanwhile.
            self._listener = threading.Thread(target=self._listen, name="zfabric-control", daemon=True)
            self._listener.start()

    def _is_peer(self, sender: bytes) -> bool:
        """Whoever is not the node's daemon may call the actor that lives here."""
        if not super()._is_peer(sender) and admits_caller(self.worker, sender, bool(self.host.instances)):
            self._follow_daemon()
            if sender != self.daemon:
                self._peers.add(sender)
        return sender in self._peers

    def _forget_callers(self) -> None:
        while self._callers_gone and not self.post.readable:
            with self.lock:
                caller = self._callers_gone.pop()
                self._peers.discard(caller)
                self.post.forget(caller)

    def _deliver_from_peer(self, now: float, to: bytes, source: bytes, message: Any) -> None:
        timed = self.worker.mailbox.timed
        if not worker_takes(self.worker, source[1:], message):
            super()._deliver_from_peer(now, to, source, message)
        elif type(message) is m.Call:
            before = self.worker.next_deadline() if timed else None
            self.worker.step(now, source, message)
            if timed and self.worker.next_deadline() != before:
                self.control_post.ring()
        else:
            self.worker.step(now, source, message)

    def _leave(self, daemon: bytes) -> None:
        self.worker.unheard += unacknowledged_reports(self.post.forget(daemon))
        self.control_post.forget(daemon)

    def _sends(self) -> list[Outgoing]:
        self._forget_gone()
        return worker_sends(self.machine, self.worker, self.daemon)

    def _settle(self) -> None:
        if self.worker.unreported:
            self.flush()
        else:
            super()._settle()

    def _watched(self) -> bool:
        return bool(self.machine.objects.watchers or self.worker.yields.waiting)

    def _has_unsent(self) -> bool:
        return self.machine.has_unsent or self.worker.has_unsent

    def _is_urgent(self) -> bool:
        return self.machine.urgent or self.worker.has_unsent

    def _deliver(self, now: float, to: bytes, source: bytes, message: Any) -> None:
        if to == WORKER:
            self.worker.step(now, source, message)
        else:
            super()._deliver(now, to, source, message)

    def _wait_readable(self, timeout: float) -> bool:
        if threading.get_ident() != self._main:
            return self.post.poll(timeout)
        self._waiting = True
        try:
            return self.post.poll(timeout)
        finally:
            self._waiting = False

    def _keep_house(self) -> None:
        with self.lock:
            self.worker.say_counts()
            self.worker.say_delays(self.callee)
            self.worker.mailbox.have_come(self.machine.calls.pending)
        super()._keep_house()

    def callee(self, identifier: bytes) -> bytes | None:
        """The actor whose call is to make an object, if it was called here. The caller holds the lock."""
        target = self.machine.calls.pending.get(identifier[:TASK_BYTES])
        return target.actor_id if target is not None else None

    def _say_the_last(self) -> None:
        """Send what is unsent, and let go of all sockets."""
        with self.lock:
            self.worker.say_trace()
            self.flush()
            self.closed = True
            self.control_post.close()
        self.disconnect()

    # -- the control thread --

    def _listen(self) -> None:
        try:
            self._obey()
        except zmq.ZMQError:
            if not self.closed:
                raise

    def _obey(self) -> None:
        post = self.control_post
        while not self.closed:
            dues = [due for due in (post.next_deadline(), self.worker.next_deadline(), *self._to_interrupt.values()) if due is not None]
            post.poll(max(0.0, min(dues) - clock()) if dues else CHECK_EVERY * 10)
            for sender, frame in post.receive():
                with self.lock:
                    now = clock()
                    from_peer = sender != self.daemon and self._is_peer(sender)
                    if sender == self.daemon or from_peer or self._is_new_daemon(sender):
                        for _, role, message in post.accept(sender, frame, now):
                            if not from_peer or type(message) in FROM_PEERS[CONTROL]:
                                self._controlled(now, role + sender, message)
            with self.lock:
                post.tick(clock())
                self._enforce_timeouts()
                for stopped in [each for each, due in self._to_interrupt.items() if due <= clock()]:
                    self._interrupt(stopped)

    def _enforce_timeouts(self) -> None:
        """Stop calls whose time is up. The caller holds the lock."""
        before = set(self.worker.interrupts)
        due = self.worker.next_deadline()
        if due is not None and due <= clock():
            self.worker.tick(clock())
            for call_id in set(self.worker.interrupts) - before:
                self._interrupt(call_id)
            self.flush()
            if self.worker.gate is not None:
                self.post.ring()  # Calls may begin that were held back.

    def _interrupt(self, stopped: bytes) -> None:
        """Stop what runs under this id, if it is to be stopped. The caller holds the lock."""
        if stopped not in self.worker.interrupts:
            self._to_interrupt.pop(stopped, None)
            self._asked.pop(stopped, None)
            return
        now = clock()
        if now - self._asked.setdefault(stopped, now) > ABANDON_AFTER and self.worker.abandon(stopped):
            self.flush()
        self._to_interrupt[stopped] = now + AGAIN_AFTER
        beside = self.worker.running_calls.get(stopped)
        crew = self.host.crew or self._loop
        if beside is None or crew is None:
            signal.pthread_kill(self._main, INTERRUPT)
        elif crew.interrupt(beside):
            self._to_interrupt[stopped] = now + self.config.interrupt_every
        else:
            self.post.ring()  # It may be the thread that receives.
        self.wake_followers()

    def stop_soon(self, running: bytes) -> None:
        """Have the control thread stop what runs under this id. The caller holds the lock."""
        self._to_interrupt[running] = clock()
        self.control_post.ring()

    def _controlled(self, now: float, source: bytes, message: Any) -> None:
        if type(message) is m.RegisterAgain:
            return
        if type(message) is m.Inspect:
            self.machine.say(m.Inspected(message.asker, message.token, self.threads()))
        elif type(message) is m.CollectGarbage:
            self.collect_garbage()
        else:
            control_step(self.machine, self.worker, now, source, message)
        if self.worker.stopping:
            os._exit(0)
        self.flush()
        if type(message) is m.Interrupt:
            self._interrupt(message.task_id)
        elif type(message) is m.StopCall:
            self._interrupt(message.call_id)
        elif type(message) is m.RetireActor:
            if self.worker.turns is not None:
                self._interrupt(self.worker.turns.busy.get(message.actor_id, b""))
            self.post.ring()
        elif type(message) is m.CallerGone:
            self.control_post.forget(message.incarnation)
            self._callers_gone.append(message.incarnation)
        elif type(message) in (m.LogCommitted, m.OutcomesRecorded) and (self._quiet or self.host.done or self.worker.gate is not None):
            self.post.ring()

    def _interrupted(self, number: int, frame: Any) -> None:
        if self._fence.depth and not self._waiting:
            self._fence.missed = True
        elif self._contexts:
            self._stop_if_asked(self._contexts[-1])

    def catch_up(self, fence: Fence) -> None:
        """User code of this thread, for which an interrupt came at another moment, enters the fabric."""
        fence.missed = False
        item = self._contexts[-1] if fence is self._fence and self._contexts else current_call.get()
        if item is not None:
            self._stop_if_asked(item)

    def _stop_if_asked(self, item: Item | Invocation) -> None:
        if self.worker.interrupted(item):
            self._to_interrupt[item.row[0]] = clock() + self.config.interrupt_every
            raise TaskInterrupt(f"{short(item.row[0])} is to be stopped")
