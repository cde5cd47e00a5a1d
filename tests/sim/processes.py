"""Processes of a simulated node: the client machine of every driver and worker, in a minimal shell.

This shell does what ``zfabric.runtime.client`` and ``zfabric.runtime.worker`` do, without threads. User code is a generator that yields
when it computes or waits. While it computes, only frames to the control address are read. A process may die between any two frames that it
sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any
from zlib import crc32

from tests.sim.arena import Content
from tests.sim.bodies import StackFrame, Wait
from tests.sim.network import SimTransport
from tests.sim.programs import FUNCTIONS, Boom, Doomed, Interrupted, Left, StoreFull, Value, WaitRefused, unpack_value
from tests.sim.surroundings import Crashed, NodeView, Surroundings
from zfabric.machines.client import Client
from zfabric.machines.worker import Invocation
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import CLIENT, TASK_BYTES, Address, is_call, short
from zfabric.protocol.inside import refs_in, with_refs, without_refs
from zfabric.protocol.machine import Machine
from zfabric.protocol.messages import ERROR, FAILED, INTERRUPTED, OK, RETRY, Row
from zfabric.shell.process import Outgoing, batches, client_sends, client_takes, peers_first

DELIVER_EVERY = 1.0
"""Seconds after which frames are received even during a computation."""


class Process:
    """The common part of drivers and workers."""

    kind = "driver"

    def __init__(self, world: Surroundings, node: NodeView, incarnation: bytes, pid: int, name: str) -> None:
        self.world = world
        self.node = node
        self.clock = node.clock()
        self.config = world.config
        self.incarnation = incarnation
        self.pid = pid
        self.name = name
        self.control = b""
        self.alive = True
        self.stalled_until = 0.0
        self.effects_left: int | None = None
        self.daemon = b""
        self.machine = Client(CLIENT + incarnation, self.config)
        self.machine.arguments.void = node.arena.void.add
        self.machine.unread.watching = True
        self.transport = SimTransport(world.network, incarnation, self.config)
        self.stack: list[StackFrame] = []
        self.inbox: deque[tuple[bytes, bytes]] = deque()
        self.garbage: list[bytes] = []
        """Ids of refs that are only in reference cycles."""
        self._awake_at = float("inf")
        self._deliver_at = 0.0
        self._upkeep_at = 0.0
        self._rest_at = 0.0
        world.network.attach(incarnation, self._receive)

    # -- start and end --

    def start(self) -> None:
        """Connect to the published daemon."""
        if self.alive:
            self.join(self.node.published)
            self.wake()

    def die(self, why: str) -> None:
        """Die, and lose what was not sent."""
        if not self.alive:
            return
        self.world.note(f"{self.name} dies: {why}")
        self.alive = False
        if self.node.dead:
            self.world.ancestry.broke_off(self.stack)
        self.world.network.detach(self.incarnation)
        self.world.network.detach(self.control)
        self.node.process_died(self)

    @property
    def executing(self) -> bytes:
        """The id of the task on top of the stack, which the slot names after the process has died."""
        item = self.stack[-1].item if self.stack else None
        return item.row[0] if item is not None else b""

    @property
    def left(self) -> tuple[Row, ...]:
        """Further rows in the slot, as in ``ProcessDied.ended``."""
        return ()

    # -- the daemon --

    def join(self, daemon: bytes) -> None:
        """Register with a daemon, report everything that it must record, and send all further messages to it."""
        if self.daemon and self.daemon != daemon:
            self.leave()
        self.daemon = daemon
        self.machine.connect(daemon)
        self.machine.rejoin(self.register(), self.running(), self.unread())

    def leave(self) -> None:
        """Drop the link to the previous daemon."""
        self.transport.forget(self.daemon)

    def register(self) -> m.Register:
        """This process's registration."""
        return m.Register(m.PROTOCOL_VERSION, self.kind, self.pid, 1, self.machine.job, self.incarnation, self.control, "", "")

    def running(self) -> tuple[m.Message, ...]:
        """Messages that a worker adds to its registration."""
        return ()

    def unread(self) -> tuple[Row, ...]:
        """Places that arrived with unbegun tasks."""
        return ()

    # -- messages --

    def _receive(self, sender: bytes, frame: bytes) -> None:
        if not self.inbox:
            self._deliver_at = self.now + DELIVER_EVERY
        self.inbox.append((sender, frame))
        self.wake()

    def flush(self) -> None:
        """Send every message that waits."""
        self.forget_gone()
        self.transmit(client_sends(self.machine, self.daemon))

    def forget_gone(self) -> None:
        """Close links to actors' processes that have ended."""
        while self.machine.calls.gone:
            self.transport.forget(self.machine.calls.gone.pop())

    def transmit(self, sends: list[Outgoing]) -> None:
        """Send these messages, in one frame or a few per receiver."""
        frames = list(batches(sends, self.world.frame_rows))
        if len(frames) > 1 and any(type(message) in (m.SubmitDirect, m.Results) for _, envelopes in frames for _, _, message in envelopes):
            # Frames of two sockets arrive in any order, and some may be lost with the process. Those of one socket stay in order.
            receivers = list(dict.fromkeys(incarnation for incarnation, _ in frames))
            self.world.orders.shuffle(receivers)
            frames.sort(key=lambda frame: receivers.index(frame[0]))
        for incarnation, envelopes in frames:
            self.crash_point()
            self.transport.send(incarnation, envelopes, self.now)

    def crash_point(self) -> None:
        """Crash here, if this frame was chosen."""
        if self.effects_left is not None:
            self.effects_left -= 1
            if self.effects_left < 0:
                raise Crashed

    def deliver_inbox(self) -> None:
        """Deliver the frames in the inbox."""
        self.inbox = deque(peers_first(self.inbox, lambda sender: not self.is_daemon(sender)))
        while self.inbox:
            sender, frame = self.inbox.popleft()
            if self.is_daemon(sender) or self.admits(sender):
                for to, role, message in self.transport.accept(sender, frame, self.now):
                    self.deliver(sender, to, role + sender, message)

    def is_daemon(self, sender: bytes) -> bool:
        """Whether the sender is the daemon that this process has joined or that the session names."""
        return sender in (self.daemon, self.node.published)

    def admits(self, sender: bytes) -> bool:
        """Whether this process accepts a sender's frames: only those of called actors."""
        return sender in self.transport.peers

    def deliver(self, sender: bytes, to: bytes, source: bytes, message: m.Message) -> None:
        """Deliver one message."""
        self.world.delivered(to + self.incarnation, source, message)
        if self.is_daemon(sender):
            self.deliver_from_daemon(sender, to, source, message)
        elif self.takes(sender, message):
            self.deliver_from_peer(source, message)
        else:
            self.world.refused_by(self.name, sender, message)

    def deliver_from_daemon(self, sender: bytes, to: bytes, source: bytes, message: m.Message) -> None:
        """Pass a message to its machine."""
        if type(message) is m.RegisterAgain:
            if sender != self.daemon:
                self.join(sender)
        elif sender != self.daemon:
            return
        elif type(message) is m.CollectGarbage:
            self.collect_garbage()
            self.flush()
        else:
            self.machine.step(self.now, source, message)
            if type(message) is m.Notice:
                self.world.wait_graph.warning_received(self, message.text)

    def takes(self, sender: bytes, message: m.Message) -> bool:
        """Whether this process accepts another one's message."""
        return client_takes(self.machine, sender, message)

    def deliver_from_peer(self, source: Address, message: m.Message) -> None:
        """Pass a message to its machine."""
        if type(message) is m.Returned:
            self.world.calls.outcomes_received(message.rows)
        self.machine.step(self.now, source, message)

    # -- the loop --

    @property
    def now(self) -> float:
        """The time on this process's clock."""
        return self.clock.now

    def wake(self, at: float | None = None) -> None:
        """Schedule a turn at a time on this process's clock, by default at once."""
        at = max(self.now, self.stalled_until, at or 0.0)
        if at < self._awake_at:
            self._awake_at = at
            self.clock.at(at, self._loop)

    def _loop(self) -> None:
        if not self.alive or self.now < self._awake_at:
            return
        self._awake_at = float("inf")
        if self.node.stopped_until or (self.node.frozen and self.kind == "worker"):
            return
        if self.now < self.stalled_until:
            self.wake(self.stalled_until)
            return
        try:
            self.turn()
        except Crashed:
            self.die("crash between two effects")
        else:
            for machine in self.machines:
                machine.check_invariants()

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The machines that this process hosts."""
        return (self.machine,)

    def turn(self) -> None:
        """Deliver frames, run user code, send messages, and schedule the next turn."""
        top = self.stack[-1] if self.stack else None
        if top is not None and top.busy_until is not None and self.now >= top.busy_until:
            top.busy_until = None
            self.world.ran_to_its_end(top)
        if top is None or top.busy_until is None:
            self.deliver_inbox()
            self.advance()
        elif self.inbox and self.now >= self._deliver_at:
            self.deliver_inbox()
        if self.machine.passed and self.now >= self._rest_at:
            self._rest_at = self.now + DELIVER_EVERY
            self.machine.passed.rest()
        self.send_late()
        self.transport.tick(self.now)
        if not self.alive:
            return
        rests = self._rest_at if self.machine.passed else None
        each = self.transport.next_deadline(), self._user_deadline(), self._unsent_deadline(), rests
        deadlines = [due for due in each if due is not None]
        if deadlines:
            self.wake(min(deadlines))

    def send_late(self) -> None:
        """Do what the flusher thread does during a computation: send messages, and return unused room now and then."""
        if self.now >= self._upkeep_at:
            self._upkeep_at = self.now + DELIVER_EVERY
            self.machine.reservations.rest()
        self.flush()

    def _unsent_deadline(self) -> float | None:
        return None

    def _user_deadline(self) -> float | None:
        top = self.stack[-1] if self.stack else None
        if top is None:
            return None
        if top.busy_until is not None:
            return min(top.busy_until, self._deliver_at) if self.inbox else top.busy_until
        return top.wait.deadline if top.wait is not None else None

    # -- running user code --

    def next_item(self) -> StackFrame | None:
        """The next body to run, if the stack is empty."""
        return None

    def inline_item(self) -> StackFrame | None:
        """The next body to run on top of one that waits."""
        return None

    def advance(self) -> None:
        """Run bodies until one computes, all wait, or none is left."""
        while self.alive:
            if not self.stack:
                frame = self.next_item()
                if frame is None:
                    return
                self.stack.append(frame)
                self.resume(frame, None)
                continue
            frame = self.stack[-1]
            if frame.busy_until is not None:
                return
            wait = frame.wait
            if wait is None:
                self.resume(frame, None)
                continue
            if self.interrupted(frame):
                if wait.token:
                    self.machine.reservations.cancel(wait.token)
                self._end_wait(frame)
                self.resume(frame, Interrupted())
                continue
            above = self.inline_item() if wait.blocking else None
            if above is not None:
                self.stack.append(above)
                self.resume(above, None)
            elif wait.done() or (wait.deadline is not None and self.now >= wait.deadline):
                self._end_wait(frame)
                self.resume(frame, wait.finish(wait.done()))
            else:
                self.flush()
                if not self.inbox:
                    return
                self.deliver_inbox()

    def interrupted(self, frame: StackFrame) -> bool:
        """Whether an interrupt was requested for a body."""
        return False

    def _end_wait(self, frame: StackFrame) -> None:
        wait, frame.wait = frame.wait, None
        if wait is not None and wait.blocking:
            self.world.wait_graph.resumed(frame)
            self.unblock()

    def block(self, frame: StackFrame, wanted: tuple[bytes, ...], inline: bool, certain: bool) -> bool:
        """Report that the top task waits. Return False if the wait is refused."""
        return True

    def unblock(self) -> None:
        """Report that the top task no longer waits."""

    def resume(self, frame: StackFrame, value: Any) -> None:
        """Run a body until it makes a request, and handle the request."""
        try:
            request = frame.body.throw(value) if isinstance(value, BaseException) else frame.body.send(value)
        except StopIteration as stop:
            self.ended(frame, OK, stop.value)
            return
        except Interrupted:
            self.ended(frame, INTERRUPTED, None)
            return
        except Left:
            self.ended(frame, FAILED, None)
            return
        except Boom as error:
            self.ended(frame, RETRY if error.retry else ERROR, with_refs(str(error).encode(), (error.inside,)))
            return
        except Doomed:
            self.ended(frame, ERROR, b"doomed")
            return
        except WaitRefused:
            self.ended(frame, ERROR, b"refused")
            return
        except StoreFull:
            self.ended(frame, ERROR, b"ObjectStoreFullError")
            return
        self._request(frame, request)

    def _request(self, frame: StackFrame, request: tuple[Any, ...]) -> None:
        kind = request[0]
        frame.deaf = kind == "deaf"
        if kind in ("sleep", "deaf"):
            self.sleep(frame, request[1])
        elif kind == "get":
            self._get(frame, request[1], request[2])
        elif kind == "wait":
            self._wait(frame, request[1], request[2], request[3])
        elif kind == "room":
            self._room(frame, request[1])
        elif kind == "commit":
            frame.wait = Wait(lambda: request[1] in self.machine.committed, lambda _: self.machine.committed.pop(request[1]), None, False)
        elif kind == "ask":
            self._ask(frame, request[1], request[2])
        elif kind == "permission":
            self._await_permission(frame, request[1])
        elif kind == "die":
            self.die("its program says so")

    def sleep(self, frame: StackFrame, seconds: float) -> None:
        """Have a body compute for some seconds."""
        frame.busy_since = self.now
        frame.busy_until = self.now + seconds

    def ended(self, frame: StackFrame, status: int, result: Any) -> None:
        """Remove a body that has ended from the stack."""
        self.stack.pop()
        self.machine.objects.gets.pop(id(frame), None)

    # -- requests of user code that never wait --

    @property
    def top(self) -> StackFrame:
        """The running body."""
        return self.stack[-1]

    def submit(
        self, function_id: bytes, arguments: bytes, dependencies: tuple[bytes, ...], options: tuple[Row, ...] | None, returns: int
    ) -> bytes:
        """Submit a task; return its id."""
        if function_id not in self.machine.tasks.functions:
            self.machine.tasks.export(function_id, *FUNCTIONS[function_id])
        task_id = self.top.namer.child()
        self.world.ancestry.made(task_id, self.top.item)
        row: Row = (task_id, function_id, arguments, dependencies)
        self.machine.tasks.submit(row if options is None else (*row, options), returns)
        return task_id

    def invoke(
        self,
        actor_id: bytes,
        arguments: bytes,
        dependencies: tuple[bytes, ...],
        options: tuple[Row, ...] | None,
        returns: int,
        retries: int,
        method: str = "method",
        has_checkpoints: bool = False,
        unordered: bool = False,
    ) -> bytes:
        """Call an actor; return the call's id."""
        call_id = self.top.namer.child()
        self.world.ancestry.made(call_id, self.top.item)
        self.world.calls.made(self.incarnation, actor_id, call_id, retries, unordered)
        row: Row = (call_id, method, arguments)
        if dependencies or options is not None:
            row = (*row, dependencies, (), options)
        self.machine.calls.call(actor_id, row, returns, retries, has_checkpoints, unordered)
        return call_id

    def kill_actor(self, actor_id: bytes, no_restart: bool) -> None:
        """Kill an actor."""
        if no_restart:
            self.world.calls.over(actor_id)
        self.machine.calls.kill(actor_id, no_restart)

    def put_small(self, value: bytes, contained: tuple[bytes, ...], *, durable: bool = False) -> bytes:
        """Put an inline value; return its id."""
        identifier = self.top.namer.put()
        self.machine.put(identifier, value, contained, durable)
        return identifier

    def put_large(self, offset: int, value: bytes, size: int, contained: tuple[bytes, ...]) -> bytes:
        """Write a value at ``offset`` and put it; return its id."""
        identifier = self.top.namer.put()
        self.node.arena.write(offset, Content(identifier, size, value))
        self.machine.put(identifier, (offset, size), contained, False)
        self.machine.reservations.finished(offset)
        self.flush()
        return identifier

    def add_argument(self, offset: int, value: bytes, size: int) -> bytes:
        """Write a value at ``offset`` that a call will take; return its id."""
        identifier = self.top.namer.put()
        self.node.arena.write(offset, Content(identifier, size, value))
        self.machine.add_argument(identifier, (offset, size))
        return identifier

    def keep(self, identifier: bytes) -> None:
        """Hold a ref until the process ends."""
        self.machine.references.add(identifier)

    def abandon(self, identifier: bytes) -> None:
        """Leave a ref to a reference cycle, until the next garbage collection."""
        self.garbage.append(identifier)

    def collect_garbage(self) -> None:
        """Drop the refs in ``garbage``."""
        self.machine.dropped.extend(self.garbage)
        self.garbage.clear()

    def drop(self, identifier: bytes) -> None:
        """Drop one ref, and perhaps watch for the last one."""
        if self.world.kind.watches and not crc32(identifier) % 2 and identifier[:TASK_BYTES] not in self.machine.calls.targets:
            self.machine.last.add(identifier, self.world.last_dropped, True)
        self.machine.dropped.append(identifier)

    def copy(self, identifier: bytes, place: tuple[int, int]) -> bytes | None:
        """Copy a value from a place without a pin; None if it is gone. Fail if its room belongs to others.

        Some copies of values in the store fail, as if the store had just spilled them.
        """
        copied, owner = self.node.arena.copy(identifier, *place), self.node.owner(identifier, *place)
        if copied is not None and not owner:
            self.world.fail(f"{self.name} copies {short(identifier)} from {place}, which belongs to others")
        if owner == "store" and not crc32(identifier) % 4:
            copied = None
        self.world.states["copied without a pin" if copied is not None else "no copy without a pin"] += 1
        return copied

    def look(self, identifier: bytes, status: int, data: Any) -> tuple[str, Value | None]:
        """Read a finished object and hold the refs inside it. Return ("", value) or (kind of error, None)."""
        if is_call(identifier):
            self.world.calls.looked(identifier, status, data)
        if status == OK:
            payload = data
            if type(data) is tuple:
                self.machine.pins.view(identifier)
                payload = self.node.arena.read(self.name, identifier, *data)
                self.world.after(0.0005 + 0.003 * self.world.shape.random(), lambda: self._unview(identifier, data, payload))
            value = unpack_value(payload)
            for inner in value.refs:
                self.machine.references.add(inner)
            return "", value
        if status == FAILED:
            return unpack_failure(data)[0], None
        for inner in refs_in(data):
            self.world.invariants.seen_inside(self.node, identifier, inner)
            self.machine.references.add(inner)
        return without_refs(data).decode(), None

    def _unview(self, identifier: bytes, place: tuple[int, int], payload: bytes) -> None:
        if not self.alive:
            return
        if self.node.arena.read(f"{self.name} (an old view)", identifier, *place) != payload:
            self.world.fail(f"{self.name}: a value changed under its reader")
        self.machine.unviewed.append(identifier)
        self.wake()

    # -- waiting --

    def _get(self, frame: StackFrame, identifiers: tuple[bytes, ...], timeout: float | None) -> None:
        machine = self.machine
        machine.objects.want(identifiers)

        def done() -> bool:
            missing = [identifier for identifier in identifiers if not machine.objects.at_hand(identifier)]
            machine.objects.want(missing)
            return not missing

        def finish(ready: bool) -> Any:
            machine.objects.gets.pop(id(frame), None)
            if not ready:
                return None
            return [(entry.status, entry.data) for entry in (machine.objects.lookup(identifier) for identifier in identifiers)]

        machine.objects.gets[id(frame)] = identifiers
        deadline = None if timeout is None else self.now + timeout
        if not done():
            if self.block(frame, identifiers, timeout is None and type(frame.item) is not Invocation, timeout is None):
                frame.wait = Wait(done, finish, deadline, True)
                frame.wait.wanted = identifiers
            else:
                frame.wait = Wait(lambda: True, lambda _: WaitRefused(), None, False)
        else:
            frame.wait = Wait(done, finish, None, False)

    def _wait(self, frame: StackFrame, identifiers: tuple[bytes, ...], count: int, timeout: float | None) -> None:
        machine = self.machine
        machine.objects.want(identifiers)

        def ready() -> list[bytes]:
            return [each for each in identifiers if machine.objects.known(each)]

        deadline = None if timeout is None else self.now + timeout
        blocking, every = len(ready()) < count, count == len(identifiers)
        if blocking and not self.block(frame, identifiers, False, timeout is None and every):
            frame.wait = Wait(lambda: True, lambda _: WaitRefused(), None, False)
            return
        frame.wait = Wait(lambda: len(ready()) >= count, lambda _: ready(), deadline, blocking)
        frame.wait.wanted = identifiers if every else ()

    def _await_permission(self, frame: StackFrame, may_go_on: Callable[[], bool]) -> None:
        """Have a stream wait until it may yield. Nothing runs on top of it meanwhile."""
        blocking = not may_go_on() and self.block(frame, (), False, False)
        frame.wait = Wait(may_go_on, lambda _: None, None, blocking)

    def _ask(self, frame: StackFrame, what: str, arguments: Row) -> None:
        machine = self.machine
        token = machine.queries.token()
        machine.queries.ask(token, what, arguments)
        frame.wait = Wait(lambda: token in machine.queries.answers, lambda _: machine.queries.answers.pop(token), None, False)
        self.flush()

    def _room(self, frame: StackFrame, size: int) -> None:
        room = self.machine.reservations
        exact = not room.shares(size)
        ahead = 0
        if not exact:
            offset = room.allocate(size)
            if offset is not None:
                frame.wait = Wait(lambda: True, lambda _: offset, None, False)
                return
            ahead = room.ahead
        patience = self.config.put_patience
        asked = max(size, self.config.grant_bytes - 4096)
        token = ahead or room.reserve(size if exact else asked, exact, patience)

        def finish(_: bool) -> Any:
            answer = room.take(token)
            if type(answer) is m.Granted and exact:
                return room.grants.add_exact(answer.offset, answer.size)
            if type(answer) is m.NoSpace and answer.kind == "alone":
                return None  # Try again, and reserve room for this value alone.
            if type(answer) is m.Granted:
                room.grants.add(answer.offset, answer.size)
            offset = room.grants.allocate(size)
            if offset is None and (type(answer) is m.Granted or (token == ahead and room.answered(token))):
                return None  # Try again: the earlier reservation was smaller than this value.
            return StoreFull() if offset is None else offset

        frame.wait = Wait(lambda: room.answered(token), finish, self.now + patience + 5.0, False)
        frame.wait.token = token
        self.flush()
