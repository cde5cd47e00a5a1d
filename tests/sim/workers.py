"""Workers of a simulated node: the machines of a worker and a client, as in ``zfabric.runtime.worker``, without its threads.

Messages to the control address are delivered at once, even while a task computes, as the control thread does.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

import msgpack
from tests.sim.arena import Content
from tests.sim.bodies import StackFrame, Wait
from tests.sim.interpreter import task_body
from tests.sim.logged import LoggedActors
from tests.sim.network import SimTransport
from tests.sim.processes import Process
from tests.sim.programs import ACTOR as ACTOR_CLASS
from tests.sim.programs import LIGHT, Interrupted, function_id, pack_value
from tests.sim.surroundings import NodeView, Surroundings
from zfabric.machines.common.tables import is_remake
from zfabric.machines.worker import CLOSED, LEAVE, Invocation, Item, Worker, actor_of
from zfabric.protocol import messages as m
from zfabric.protocol.access import FROM_PEERS
from zfabric.protocol.failures import left_for_good, pack_failure
from zfabric.protocol.ids import ACTOR, CONTROL, JOB_BYTES, TASK_BYTES, WORKER, Address, Namer, call_value, control_of, object_id
from zfabric.protocol.inside import refs_in
from zfabric.protocol.machine import Machine
from zfabric.protocol.messages import ERROR, FAILED, INTERRUPTED, OK, RETRY, Row
from zfabric.protocol.options import option
from zfabric.shell.process import admits_caller, control_step, unacknowledged_reports, worker_sends, worker_takes

CLASSES = (function_id(ACTOR_CLASS), function_id(LIGHT))
REPORT_ROWS = 64
"""Number of outcomes that are reported without waiting for more."""


class WorkerProcess(Process):
    """A process that runs tasks and actors."""

    kind = "worker"

    def __init__(self, world: Surroundings, node: NodeView, token: bytes, job: bytes, pid: int, name: str) -> None:
        super().__init__(world, node, token, pid, name)
        self.control = control_of(token)
        self.machine.job = job
        self.worker = Worker(WORKER + token, self.config)
        self.control_transport = SimTransport(world.network, self.control, self.config)
        self.logged = LoggedActors(self, self.worker)
        self.beside = Beside(self)
        self.leaves_at: float | None = None
        """The latest end of this process, after its actor has ended itself."""
        self.leaves_for = b""
        """The daemon notified that this process ends, since its node is drained."""
        self._actor_refs: dict[bytes, list[bytes]] = {}
        """Refs held by actors that share this process, by actor."""
        self._retained: dict[bytes, list[bytes]] = {}
        """Refs inside outcomes that wait for a commit, by call."""
        self._first_unreported = 0.0
        self._control_inbox: deque[tuple[bytes, bytes]] = deque()
        world.network.attach(self.control, self._receive_control)

    # -- the daemon --

    def join(self, daemon: bytes) -> None:
        """Register both machines with a daemon."""
        if self.daemon and self.daemon != daemon:
            self.leave()
            self.daemon = b""
        self.worker.connect(daemon)
        super().join(daemon)

    def leave(self) -> None:
        """Drop the links to the daemon, and retain unacknowledged reports for the next."""
        self.worker.unconfirmed += unacknowledged_reports(self.transport.forget(self.daemon))
        self.control_transport.forget(self.daemon)

    def running(self) -> tuple[m.Message, ...]:
        """Reports of all tasks here, begun or not, and of unacknowledged outcomes."""
        return self.worker.running()

    def unread(self) -> tuple[Row, ...]:
        """Places that arrived with unbegun tasks."""
        return self.worker.unread()

    # -- messages --

    def flush(self) -> None:
        """Send every message that waits, in the order of ``worker_sends``."""
        self.forget_gone()
        self.transmit(worker_sends(self.machine, self.worker, self.daemon, self._release_retained))

    def _release_retained(self, call_id: bytes) -> None:
        self.machine.dropped.extend(self._retained.pop(call_id, ()))

    def admits(self, sender: bytes) -> bool:
        """Whether frames of a sender are accepted: also of callers, if an actor lives here."""
        return super().admits(sender) or admits_caller(self.worker, sender, bool(self.worker.mailbox.actors))

    def deliver_from_daemon(self, sender: bytes, to: bytes, source: bytes, message: m.Message) -> None:
        """Pass a message to its machine."""
        if to in (WORKER, ACTOR) and sender == self.daemon:
            self.worker.step(self.now, source, message)
        else:
            super().deliver_from_daemon(sender, to, source, message)

    def takes(self, sender: bytes, message: m.Message) -> bool:
        """Whether one of both machines accepts a message."""
        return worker_takes(self.worker, sender, message) or super().takes(sender, message)

    def deliver_from_peer(self, source: Address, message: m.Message) -> None:
        """Pass a message to its machine."""
        if worker_takes(self.worker, source[1:], message):
            self.worker.step(self.now, source, message)
        else:
            super().deliver_from_peer(source, message)

    def _receive_control(self, sender: bytes, frame: bytes) -> None:
        self._control_inbox.append((sender, frame))
        self.wake()

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The client and the worker."""
        return (self.machine, self.worker)

    def turn(self) -> None:
        """Do a turn of the control thread, then of the main thread."""
        if self._control_inbox:
            self.deliver_inbox()  # A request to return a task may have overtaken it.
        while self._control_inbox:
            sender, frame = self._control_inbox.popleft()
            for _, role, message in self.control_transport.accept(sender, frame, self.now):
                self._controlled(sender, role + sender, message)
                if not self.alive:
                    return
        self._release_gone()
        self._ask_for_baton()
        self.control_transport.tick(self.now)
        due = self.worker.next_deadline()
        if due is not None and due <= self.now:
            self.worker.tick(self.now)
            self._stop_top()
        super().turn()
        dues = [due for due in (self.control_transport.next_deadline(), self.worker.next_deadline()) if due is not None]
        if dues and self.alive:
            self.wake(min(dues))

    def _controlled(self, sender: bytes, source: bytes, message: m.Message) -> None:
        self.world.delivered(CONTROL + self.incarnation, source, message)
        if type(message) is m.RegisterAgain:
            if self.daemon != sender == self.node.published:  # It may be late, from a daemon that has died since.
                self.join(sender)
                self.flush()
            return
        if sender != self.daemon and type(message) not in FROM_PEERS[CONTROL]:
            return
        if type(message) is m.RetireActor:
            self.world.calls.over(message.actor_id)
        if type(message) is m.CollectGarbage:
            self.collect_garbage()
        else:
            control_step(self.machine, self.worker, self.now, source, message)
        if self.worker.stopping:
            self.die("told to stop")
            return
        self.flush()
        if type(message) in (m.Interrupt, m.StopCall, m.RetireActor):
            self._stop_top()
        self.worker.check_invariants()

    def _stop_top(self) -> None:
        """Interrupt the top body's computation if that was requested, as the signal does."""
        top = self.stack[-1] if self.stack else None
        if top is not None and top.busy_until is not None and not top.deaf and self.interrupted(top):
            top.busy_until = None
            self.resume(top, Interrupted())

    def send_late(self) -> None:
        """Do what the flusher thread does: send what a computing task submitted. Outcomes wait for ``completion_delay``."""
        if self.worker.gate is not None and self.now >= self._upkeep_at:
            self.worker.report_counts()
        if self.world.kind.circles and self.now >= self._upkeep_at:
            self.worker.report_delays(self._callee)
            self.worker.mailbox.forget_answered(self.machine.calls.pending)
        if self.worker.unreported and self.stack and self.now - self._first_unreported <= self.config.completion_delay:
            return
        self.flush()

    def _callee(self, identifier: bytes) -> bytes | None:
        target = self.machine.calls.pending.get(identifier[:TASK_BYTES])
        return target.actor_id if target is not None else None

    def _unsent_deadline(self) -> float | None:
        unsent = self._first_unreported + self.config.completion_delay + 1e-6 if self.worker.unreported else None
        leaves = self.leaves_at if self.leaves_at is not None and self.leaves_at > self.now else None
        return leaves if unsent is None else unsent

    # -- tasks --

    def next_item(self) -> StackFrame | None:
        """Claim the next task or call; return its body."""
        if self.worker.baton is not None:
            item = self.worker.stand_in() if self.worker.stack else self.worker.begin()
            return self.begin(item) if item is not None else None
        if self.worker.beside:
            return None
        if not self.logged.may_begin():
            self.flush()
            return None
        item = self.worker.begin() if self.leaves_at is None else None
        if item is None:
            self.flush()
            self.ends()
            return None
        return self.begin(item)

    def ends(self) -> bool:
        """End the process if its actor has ended. Return whether it did."""
        mailbox = self.worker.mailbox
        done = mailbox.retiring and not mailbox.queue and not self.machine.calls.pending
        left = self.leaves_at is not None and (not self.machine.calls.results.awaited or self.now >= self.leaves_at)
        if (left or done) and mailbox.settled:
            self.die("its actor has ended")
        elif self.worker.relocation is not None:
            self._relocate()
        return not self.alive

    def _relocate(self) -> None:
        """Leave this node, if nothing runs, once all callers and then the daemon have received everything."""
        called = (target.actor_id for target in self.machine.calls.pending.values())
        if self.leaves_for:
            if self.leaves_for != self.daemon or self.transport.link(self.daemon).is_idle:
                self.die("its node is drained")
        elif self.worker.may_relocate(called) and not self.machine.calls.results.awaited and self.received_by_all():
            self.machine.send(self.worker.relocate())
            self.leaves_for = self.daemon
            self.flush()

    def received_by_all(self) -> bool:
        """Whether all processes have received what this one has sent them."""
        others = self.transport.peers.keys() - {self.daemon, self.incarnation, *self.worker.mailbox.gone}
        return all(self.transport.link(each).is_idle for each in others)

    def inline_item(self) -> StackFrame | None:
        """Claim the next task that was dispatched on top of a blocked one."""
        if not self.worker.inline:
            return None
        item = self.worker.begin()
        return self.begin(item) if type(item) is Item else None

    def begin(self, item: Item | Invocation) -> StackFrame:
        """Begin a claimed task or call; return its body."""
        row = item.row
        if isinstance(item, Invocation):
            self.world.calls.begun(self, item)
        else:
            self.world.invariants.begun(self, item)
            if row[1] in CLASSES and not is_remake(row):
                self.world.calls.alone(self, row[0])
        if not self.machine.job:
            self.machine.job = row[0][:JOB_BYTES]
        values = list(zip(row[3], item.values, strict=True))
        if isinstance(item, Invocation):
            values = [(identifier, self.copy(identifier, value) if type(value) is tuple else value) for identifier, value in values]
        for identifier, value in dict(values).items():
            if type(value) is tuple:
                self.machine.pins.add(identifier, value)
        namer = Namer(actor_of(item)[:JOB_BYTES], row[0], attempt=item.attempt)
        return StackFrame(item, task_body(self, self.worker, self.logged, item, values), namer, self.now)

    def sleep(self, frame: StackFrame, seconds: float) -> None:
        """Have a body compute, or sleep beside others. An early interrupt applies, since the real worker repeats interrupts."""
        if self.worker.beside:
            self.beside.sleep(frame, seconds)
            return
        super().sleep(frame, seconds)
        if not frame.deaf and self.worker.baton is None and self.interrupted(frame):
            frame.busy_until = None
            self.resume(frame, Interrupted())

    @property
    def left(self) -> tuple[Row, ...]:
        """Further rows in the slot: how many unlogged calls of the actor have ended."""
        gate = self.worker.gate
        return ((gate.log.actor_id, gate.log.number),) if gate is not None and self.worker.beside else ()

    def interrupted(self, frame: StackFrame) -> bool:
        """Whether an interrupt was requested for a body."""
        return frame.item is not None and bool(self.worker.interrupted(frame.item))

    def block(self, frame: StackFrame, wanted: tuple[bytes, ...], inline: bool, certain: bool) -> bool:
        """Report that the top task waits. Return False if a call would wait for one of its own actor."""
        item = frame.item
        assert item is not None
        if not self.worker.beside:
            lasting = partial(self.machine.calls.lasting, lives=self.worker.mailbox.actors)
            if self.worker.refused(item, wanted, len(wanted) if certain else 0, lasting):
                self.world.wait_graph.refused(self, frame, wanted)
                return False
        if self.worker.baton is not None:
            self.worker.pass_baton(item, wanted, not certain)
        elif not self.worker.beside:
            name = item.method if isinstance(item, Invocation) else ""
            calls = self.machine.calls
            self.worker.block(wanted, inline, name, calls.callees(wanted), certain and not calls.may_end(wanted))
        self.flush()
        return True

    def unblock(self) -> None:
        """Report that the top task no longer waits."""
        if self.worker.baton is None and not self.worker.beside:
            self.worker.unblock()
        self.flush()

    # -- lightweight actors: one thread has the baton, the others wait --

    @property
    def executing(self) -> bytes:
        """What the slot names after the process has died: the id that runs, or ran last."""
        baton = self.worker.baton
        if self.worker.beside:
            return b""
        return baton.running if baton is not None and baton.running else super().executing

    def advance(self) -> None:
        """Run the body that has the baton until it computes, all wait, or none is left."""
        if self.worker.baton is None and not self.worker.beside:
            super().advance()
        if self.worker.beside:
            self.beside.advance()
        while self.alive and self.worker.baton is not None:
            frame = self._with_baton(self.worker.baton.running)
            if frame is not None and frame.busy_until is not None:
                return
            wait = frame.wait if frame is not None else None
            if frame is not None and wait is None:
                self.resume(frame, None)
            elif frame is not None and wait is not None and self.is_over(frame):
                interrupted = self.interrupted(frame)
                if interrupted and wait.token:
                    self.machine.reservations.cancel(wait.token)
                self._end_wait(frame)
                self.resume(frame, Interrupted() if interrupted else wait.finish(wait.done()))
            else:
                self.flush()
                if not self.inbox:
                    return
                self.deliver_inbox()

    def is_over(self, frame: StackFrame) -> bool:
        """Whether a body's wait has ended."""
        wait = frame.wait
        return wait is not None and (self.interrupted(frame) or wait.done() or (wait.deadline is not None and self.now >= wait.deadline))

    def _ask_for_baton(self) -> None:
        """Have bodies whose wait has ended ask for the baton while another computes, as their threads do. Fail if one gets it."""
        if self.worker.baton is not None and len(self.stack) > 1 and self.stack[-1].busy_until is not None:
            self.deliver_inbox()
            for frame in self.stack[:-1]:
                if frame.item is not None and self.is_over(frame) and self.worker.take_baton(frame.item):
                    self.world.fail(f"{self.name}: two calls run at the same time")

    def _with_baton(self, running: bytes) -> StackFrame | None:
        """Choose the body that runs, goes on or begins; move it to the top of the stack."""
        for frame in self.stack:
            if frame.item is not None and (frame.item.row[0] == running or (self.is_over(frame) and self.worker.take_baton(frame.item))):
                self.stack.remove(frame)
                self.stack.append(frame)
                return frame
        begun = None if running else self.next_item()
        if begun is not None:
            self.stack.append(begun)
        return begun

    def _user_deadline(self) -> float | None:
        if self.worker.beside:
            return self.beside.deadline()
        if self.worker.baton is None:
            return super()._user_deadline()
        waits = [frame.wait.deadline for frame in self.stack if frame.wait is not None and frame.wait.deadline is not None]
        dues = [due for due in waits if due > self.now]  # Waits that are over wait only for the baton.
        due = super()._user_deadline()
        return min((*dues, due) if due is not None else dues, default=None)

    def keep(self, identifier: bytes) -> None:
        """Hold a ref until the process, or the running lightweight actor, ends."""
        super().keep(identifier)
        if self.worker.baton is not None and type(self.top.item) is Invocation:
            self._actor_refs.setdefault(self.top.item.actor_id, []).append(identifier)

    def _release_gone(self) -> None:
        baton = self.worker.baton
        while baton is not None and baton.gone:
            for identifier in self._actor_refs.pop(baton.gone.pop(), ()):
                self.drop(identifier)

    def ended(self, frame: StackFrame, status: int, result: Any) -> None:
        """Pack the outcome of a task or call that has ended. It is reported soon."""
        super().ended(frame, status, result)
        item = frame.item
        assert item is not None
        self.world.wait_graph.ended.add(item.row[0])
        refs: list[bytes] = []
        contained: tuple[tuple[bytes, ...], ...] = ()
        if status == OK:
            values, refs = result
            outputs = self._write(item, values)
            if isinstance(item, Invocation):
                self.logged.remember(item.row[0], values)
            contained = tuple(value.refs for value, _ in values) if any(value.refs for value, _ in values) else ()
            self.machine.pass_on([identifier for inside in contained for identifier in inside])
        elif status in (INTERRUPTED, FAILED):
            outputs = ()
        else:
            outputs = (result,)
            refs = list(refs_in(result))
            for identifier in refs:
                self.machine.references.add(identifier)
        if isinstance(item, Invocation):
            reason = self.worker.interrupts.pop(item.row[0], (0, "cancelled"))[1]
            ending = (*self._of_call(item, status, outputs, reason), contained)
            whole = status != INTERRUPTED
            answered = not contained and self._answer(item, *ending[:2])
            self.logged.ended(item, whole)
            if self.worker.finish_call(item, *ending, frame.started, self.now - frame.started, whole, answered):
                self._retained[item.row[0]], refs = refs, []
            else:
                self._finished(outputs)
        else:
            if status == OK and item.row[1] in CLASSES and not is_remake(item.row):
                self.worker.mailbox.actors[item.row[0]] = (item.row, item.attempt)
                self.beside.size = option(item.row[4] if len(item.row) > 4 else None, "max_concurrency", 0)
                self.worker.beside = self.beside.size > 0
            self._finished(outputs)
            extra = (contained, ()) if contained else None
            answered = extra is None and self._answer(item, status, outputs)
            self.worker.finish(item, status, outputs, extra, frame.started, self.now - frame.started, answered)
        self._release_gone()
        for identifier in refs:
            self.machine.dropped.append(identifier)
        if self.worker.unreported == 1:
            self._first_unreported = frame.started
        if self.worker.unreported >= REPORT_ROWS or self.now - self._first_unreported > self.config.completion_delay:
            self.flush()
            self.deliver_inbox()

    def _answer(self, item: Item | Invocation, status: int, outputs: Row) -> bool:
        """Send an outcome straight to the waiting process, if permitted. Return whether it was sent."""
        answer = self.worker.answer(item, status, outputs) if not self.machine.has_unsent else None
        if answer is not None:
            self.transmit([(WORKER, answer)])
        return answer is not None

    def _write(self, item: Item | Invocation, values: Any) -> tuple[Any, ...]:
        """Pack values; write those with a place into the arena and return the place."""
        name = call_value if type(item) is Invocation else object_id
        for index, (value, place) in enumerate(values):
            if place is not None:
                self.node.arena.write(place[0], Content(name(item.row[0], index), place[1], pack_value(value)))
        return tuple(place if place is not None else pack_value(value) for value, place in values)

    def _finished(self, outputs: tuple[Any, ...]) -> None:
        for place in outputs:
            if type(place) is tuple:
                self.machine.reservations.finished(place[0])

    def _of_call(self, item: Invocation, status: int, outputs: Row, reason: str) -> tuple[int, Row]:
        """A call's outcome as (status, outputs) for its caller."""
        if status == INTERRUPTED:
            kind = "TaskTimeoutError" if reason == "timeout" else "TaskCancelledError"
            return FAILED, (pack_failure(kind, f"{item.method} was stopped while it ran ({reason})"),)
        if status == FAILED:
            if self.worker.baton is None:
                self.leaves_at = self.leaves_at or self.now + self.config.leave_seconds
            else:
                self.worker.baton.leave(item.actor_id, LEAVE, "")
            self.world.calls.over(item.actor_id)
            self.machine.send(m.ActorExiting(item.actor_id))
            return FAILED, (left_for_good(item.actor_id, "exit_actor"),)
        return (ERROR if status == RETRY else status), outputs


class Beside:
    """The calls of a concurrent actor. While one waits or sleeps, others go on or begin, as in an event loop.

    A due checkpoint is taken when no call runs (``machines.worker.quiescence``).
    """

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.size = 0
        """How many calls may run at once; 0 without a concurrent actor."""

    def sleep(self, frame: StackFrame, seconds: float) -> None:
        """Have one call sleep while others go on."""
        frame.wait = Wait(lambda: False, lambda _: None, self.process.now + seconds, False)

    def advance(self) -> None:
        """Run calls until all of them wait."""
        process = self.process
        while process.alive:
            self._take_checkpoint()
            frame = next((each for each in process.stack if each.wait is None or process.is_over(each)), None) or self._begin()
            if frame is not None:
                self._resume(frame)
                continue
            process.flush()
            if process.inbox:
                process.deliver_inbox()
            elif (not process.stack and process.ends()) or not self._may_begin():
                return

    def _resume(self, frame: StackFrame) -> None:
        process, wait = self.process, frame.wait
        process.stack.remove(frame)
        process.stack.append(frame)
        if wait is None:
            process.resume(frame, None)
            return
        interrupted = process.interrupted(frame)
        if interrupted and wait.token:
            process.machine.reservations.cancel(wait.token)
        frame.wait = None
        process.resume(frame, Interrupted() if interrupted else wait.finish(wait.done()))

    def _may_begin(self) -> bool:
        worker = self.process.worker
        return bool(worker.mailbox.queue) and worker.may_begin and len(self.process.stack) < self.size and self.process.leaves_at is None

    def _begin(self) -> StackFrame | None:
        worker = self.process.worker
        item = worker.begin_beside(worker.mailbox.queue) if self._may_begin() else None
        if item is None:
            return None
        frame = self.process.begin(item)
        self.process.stack.append(frame)
        return frame

    def _take_checkpoint(self) -> None:
        process, gate = self.process, self.process.worker.gate
        if gate is None:
            return
        process.world.states["gate closed"] += gate.state is CLOSED
        process.world.states["gate opened in vain"] += gate.in_vain
        gate.in_vain = False
        if not gate.take():
            return
        process.worker.check_invariants()
        gate.log.checkpoint(msgpack.packb(process.logged.states[gate.log.actor_id]), ())
        gate.taken()
        process.world.states["quiet checkpoint"] += 1

    def deadline(self) -> float | None:
        """The earliest deadline of waiting calls."""
        waits = (each.wait for each in self.process.stack if each.wait is not None)
        return min((wait.deadline for wait in waits if wait.deadline is not None), default=None)
