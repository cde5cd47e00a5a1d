"""The node daemon: one thread, one loop, around the machines of its node (``zfabric.shell.node``).

A turn takes in what has come (frames, events of the supervisor, results of the I/O thread), lets deadlines pass, and has the machines
decide. Each write to the journal is committed in its place among their effects; what they send leaves at the end of the turn, as one frame
per peer. The loop polls the socket, an eventfd and the supervisor's channel: nothing that grows with the number of peers.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from collections import deque
from typing import Any

import zmq
from zmq import zmq_poll

from zfabric.adapters.journal import Journal
from zfabric.adapters.processes import memory_available, memory_total, resident_bytes
from zfabric.adapters.sockets import Transport
from zfabric.exceptions import ConnectionLostError, FabricError
from zfabric.machines.local_scheduler import JobRecord, WorkerRecord
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CONTROL_STORE, LOCAL_SCHEDULER, OBJECT_STORE
from zfabric.protocol.names import brief
from zfabric.protocol.options import RESOURCE_UNIT
from zfabric.runtime.connect import new_incarnation
from zfabric.runtime.lines import CRASH
from zfabric.runtime.logs import LogRow, LogTailer, note_worker, say
from zfabric.runtime.session import Session
from zfabric.runtime.slots import Slots
from zfabric.runtime.storage import Storage
from zfabric.runtime.supervision import Supervision
from zfabric.shell.node import SWEEP_EVERY, NodeMachines

clock = time.monotonic

FRAMES_PER_TURN = 32
"""Frames taken in before the machines decide: a turn stays well under 50 ms."""
RECEIVE_SECONDS = 0.01
"""Time spent on taking frames in before the machines decide."""
LOGS_EVERY = 0.1
"""How often the output of workers is looked at, in seconds, while any is busy or has just said something."""
LOGS_SELDOM = 0.5
"""How often it is looked at while none is: the last words of a task come after its end, and threads may outlive it."""
MEMORY_SECONDS = 0.004
"""Pause between two looks at the memory of workers, at least, for each of them: looking takes a two-hundredth of that."""
CRASHES = frozenset(map(int, (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)))
"""Signals at which Python reports where each thread was, and cannot know which task that was."""
STOP_SECONDS = 0.5
"""How long a daemon that is stopped waits for the commits of its jobs' ends: half of what the supervisor allows it."""
COLLECT_EVERY = 30.0
"""How often the cyclic collector runs, when the daemon is idle (records form no cycles, libraries may)."""


class Daemon:
    """One incarnation of a node's daemon, which had ``daemons`` before it."""

    def __init__(self, session: Session, channel: int, daemons: int) -> None:
        self.session = session
        self.config = session.config()
        description = session.describe()
        self.incarnation = new_incarnation()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self.post = Transport(self.context, session.sockets, self.incarnation, self.config)
        self.supervision = Supervision(channel)
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.stopping = False
        self._events: deque[tuple[bytes, m.Message]] = deque()
        """Messages of other threads: (role they are for, message)."""
        self._logs = LogTailer(session.logs, self.config.log_bytes, self.config.log_files)
        self._slots = Slots(session.sockets)
        self._busy = False
        self._logs_at = 0.0
        self._memory_at = 0.0
        self._sweep_at = 0.0
        self._collect_at = 0.0
        self._memory_limit = self.config.memory_limit or int(memory_total() * 0.95)

        total = tuple(sorted((name, round(amount * RESOURCE_UNIT)) for name, amount in description["resources"].items()))
        self.journal = Journal.open(
            description.get("store") or f"{session.directory}/store",
            self.config.control_store_bytes,
            self.config.durability,
            thorough=daemons != 1,  # The first restart is to be quick. One after another may be for what the store says.
            in_use=daemons > 0,
        )
        if self.journal.report:
            self.say("warning", self.journal.report)
        node = description.get("node") or f"{description['supervisor']:x}-{description['started']:x}"
        capacity = int(description["arena_size"])
        self.storage = Storage(
            str(description["arena"]), capacity, description.get("spill") or f"{session.directory}/spill", self._from_thread
        )
        self.core = NodeMachines(self.incarnation, str(node).encode(), self.config, total, capacity, self.journal, daemons)
        self.scheduler = self.core.scheduler
        self.post.admits = self.core.admits
        self._perform: dict[type[Any], Any] = {
            e.Store: self._store,
            e.SpawnWorker: lambda effect: self.supervision.spawn(*effect),
            e.KillProcess: self._kill,
            e.WatchProcess: lambda effect: self.supervision.watch(effect.pid, effect.started),
            e.Say: lambda effect: self.say(effect.level, effect.text),
        }
        if daemons:
            session.sweep_sockets()
            sealed, spilled = self.storage.found()
            self.core.recover(clock(), m.ArenaFound(sealed, spilled))
        else:
            self.core.start(clock(), former_jobs=bool(self.journal.scan("job", limit=1)))

    def say(self, level: str, text: str) -> None:
        """A line in the daemon's log."""
        say(f"{level}: {text}")

    def _from_thread(self, message: m.Message) -> None:
        """Called by other threads: the object store is told in the next turn."""
        self._events.append((OBJECT_STORE, message))
        os.eventfd_write(self.wakeup, 1)

    # -- the loop --

    def run(self) -> None:
        """Until asked to stop."""
        wakeup, supervision = self.wakeup, self.supervision.fileno()
        polled = self.post.sources + [(each, int(zmq.POLLIN)) for each in (wakeup, supervision)]
        self.turn(clock())
        self.session.publish_daemon(self.incarnation)
        gc.collect()
        gc.freeze()
        gc.disable()
        counts = self.scheduler.tables.counts  # shown with the scheduler's own: while a turn lasts, nobody is answered
        while not self.stopping:
            now = clock()
            deadline = self._next_deadline(now)
            timeout = max(0, min(60_000, int((deadline - now) * 1000 + 0.999)))
            ready: dict[Any, int] = dict(zmq_poll(polled, timeout))
            now = clock()
            if supervision in ready:
                self._supervised(now)
            self._take_events(now, wakeup in ready)
            if self.post.polled(ready):
                self._receive(now)
            self.core.tick(now)
            self.turn(now)
            # Whoever waits for an answer has it; the rest is done while they work on it.
            self._watch_over(now, bool(ready))
            self.post.tick(now)
            counts["refused_frames"] = self.post.refused + self.core.refused
            counts["turn_longest_us"] = max(counts["turn_longest_us"], int((clock() - now) * 1e6))
        self._stop()

    def _stop(self) -> None:
        """End every job, and tell its driver why once that is committed."""
        now = clock()
        with contextlib.suppress(ConnectionLostError):
            self._supervised(now)  # The signal may have come before the packet that says why was read.
        self.scheduler.jobs.end_all(now, self.supervision.ending)
        self.core.stir(LOCAL_SCHEDULER)
        self.turn(now)
        until = now + STOP_SECONDS
        while any(job.ended for job in self.scheduler.tables.jobs.values()) and (left := until - clock()) > 0:
            if zmq_poll([(self.wakeup, int(zmq.POLLIN))], int(left * 1000) + 1):
                self._take_events(clock())
                self.turn(clock())

    def _take_events(self, now: float, woken: bool = True) -> None:
        """Pass on what other threads have to say."""
        if woken:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.wakeup)
        while self._events:
            role, message = self._events.popleft()
            if type(message) is m.Committed:
                self.core.committed(message.sequence, message.error)
            else:
                self.core.step(now, role, message)

    def _receive(self, now: float) -> None:
        receive = self.core.receive
        for _ in range(FRAMES_PER_TURN):
            taken = self.post.take()
            if taken is None:
                return
            sender, frame = taken
            for to, role, message in self.post.accept(sender, frame, now):
                kind = type(message)
                if (kind is m.Goodbye or kind is m.OutputWritten or kind is m.Query) and self.core.may_send(sender, to, message):
                    self._before(now, sender, message)
                receive(now, sender, to, role, message)
            if not self.post.readable or clock() - now > RECEIVE_SECONDS:
                return

    def _before(self, now: float, sender: bytes, message: Any) -> None:
        """Do what the shell itself has to do before the scheduler takes in one of these messages."""
        if type(message) is m.Goodbye:
            if self.core.admits(sender):
                self.post.peer(sender).admitted = True  # The farewell is sent when it is no longer registered.
            leaving = self.scheduler.tables.processes.get(sender)
            self._tell_logs(now, leaving.job if leaving is not None else None)
        elif type(message) is m.OutputWritten or message.what == "output":
            self._tell_logs(now)

    def turn(self, now: float) -> None:
        """Effects until none is left, then sends."""
        self.core.decide(now, self._do)
        for incarnation, envelopes in self.core.take_outgoing().items():
            self.post.send_envelopes(incarnation, envelopes, now)

    def _do(self, effect: Any) -> None:
        perform = self._perform.get(type(effect))
        if perform is not None:
            perform(effect)
        else:
            self.storage.perform(effect)

    def _store(self, effect: e.Store) -> None:
        sequence = effect.sequence

        def done(error: str) -> None:
            self._events.append((CONTROL_STORE, m.Committed(sequence, error)))
            os.eventfd_write(self.wakeup, 1)

        if self.config.durability == "process":
            self.journal.commit([effect], lambda error: self.core.committed(sequence, error))
        else:
            self.journal.commit([effect], done)

    def _next_deadline(self, now: float) -> float:
        if self._events or self.core.pending:
            return now
        soonest = min(self._sweep_at, self._collect_at, self._logs_at)
        for due in (self.core.next_deadline(), self.post.next_deadline()):
            if due is not None and due < soonest:
                soonest = due
        if self._busy:
            soonest = min(soonest, self._memory_at)
        return min(soonest, now + 0.002) if self.post.congested else soonest

    # -- the supervisor --

    def _supervised(self, now: float) -> None:
        for event in self.supervision.receive():
            dead: tuple[bytes, ...] = ()
            if type(event) is m.ProcessDied:
                dead = self.core.incarnations_of(event.pid)
                event = self._died(event, now)
            elif type(event) is m.ProcessTable:
                event = event._replace(ended=self._slots.read_others({token for token, _ in event.workers}))
            elif type(event) is m.WorkerSpawned and event.pid:
                note_worker(self.session.logs, event.token, event.pid)
            self.core.step(now, LOCAL_SCHEDULER, event)
            for incarnation in dead:
                self.post.forget(incarnation)
                self.session.remove_sockets(incarnation)
            if dead and not self.scheduler.tables.recovering:
                self._slots.keep_only(self.scheduler.logs.logs)

    def _died(self, died: m.ProcessDied, now: float) -> m.ProcessDied:
        """Read what a dead worker left: the task that was on top, how many calls had ended, and its last output."""
        known = self.scheduler.tables.by_pid.get(died.pid)
        if not isinstance(known, WorkerRecord):
            return died
        executing, ended = self._slots.read(known.token)
        rows = self._with_names_of_crashes(self._logs.flush(known.token, died.pid), executing)
        name = self.scheduler.reports.diagnoses.name_of_running(known, executing) if died.signal in CRASHES else ""
        if name:
            self._logs.sign(known.token, name, f"this worker died of signal {died.signal} while it ran {name} ({brief(executing)})")
        if rows and self.config.log_to_driver:
            self.core.step(now, LOCAL_SCHEDULER, m.LogLines(tuple(rows)))
        self._logs.forget(known.token)
        return died._replace(executing=executing, ended=ended)

    def _with_names_of_crashes(self, rows: list[LogRow], executing: bytes = b"") -> list[LogRow]:
        """Lines of workers, where Python's report of a crash, which no Python code could put a name in front of, has that of the task."""
        found = []
        for pid, name, stream, text in rows:
            worker = self.scheduler.tables.by_pid.get(pid) if not name and CRASH in text else None
            if isinstance(worker, WorkerRecord):
                name = self.scheduler.reports.diagnoses.name_of_running(worker, executing or self._slots.executing(worker.token))
            found.append((pid, name, stream, text))
        return found

    def _kill(self, effect: e.KillProcess) -> None:
        known = self.scheduler.tables.by_pid.get(effect.pid) if effect.executing else None
        if not effect.executing or (isinstance(known, WorkerRecord) and self._slots.executes(known.token, effect.executing)):
            self.supervision.kill(effect.pid, effect.reason)

    # -- what the loop itself looks after --

    def _watch_over(self, now: float, active: bool) -> None:
        was_busy, self._busy = self._busy, self.scheduler.busy
        if self._busy and not was_busy:
            self._logs_at = min(self._logs_at, now + LOGS_EVERY)
        if now >= self._logs_at:
            said = self._tell_logs(now)
            self._logs_at = now + (LOGS_EVERY if said or self._busy else LOGS_SELDOM)
        if self._busy and now >= self._memory_at:
            self._memory_at = now + max(self.config.memory_check_every, MEMORY_SECONDS * len(self.scheduler.tables.workers))
            self._check_memory(now)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_EVERY
            for incarnation in self.core.sweep(self.post.peers):
                self.post.forget(incarnation)
        if now >= self._collect_at:
            self._collect_at = now + COLLECT_EVERY
            if not active:
                gc.collect()

    def _tell_logs(self, now: float, last_of: JobRecord | None = None) -> bool:
        """Show what workers have written since; of a job that ends, the lines that have no end, too. Whether there was anything."""
        workers = [worker for worker in self.scheduler.tables.workers.values() if worker.pid]
        rows = self._logs.poll({worker.token: worker.pid for worker in workers})
        for worker in workers:
            if last_of is not None and worker.job is last_of:
                rows += self._logs.flush(worker.token, worker.pid)
        if rows and self.config.log_to_driver:
            self.core.step(now, LOCAL_SCHEDULER, m.LogLines(tuple(self._with_names_of_crashes(rows))))
        return bool(rows)

    def _check_memory(self, now: float) -> None:
        usage = []
        for worker in self.scheduler.tables.workers.values():
            if worker.pid:
                usage.append((worker.pid, resident_bytes(worker.pid)))
        used = sum(size for _, size in usage)
        available = memory_available()
        if used > self._memory_limit or available < (memory_total() - self._memory_limit if not self.config.memory_limit else 0):
            self.core.step(now, LOCAL_SCHEDULER, m.MemoryPressure(available, self._memory_limit, tuple(usage)))

    def close(self) -> None:
        """Close everything in order: what was acknowledged is in the journal already."""
        self.storage.close()
        self.journal.close()
        self.post.close()
        self.context.term()


def run(session_directory: str, channel_fd: int, daemons: int) -> None:
    """The daemon child's body: until SIGTERM."""
    try:
        daemon = Daemon(Session(session_directory), channel_fd, daemons)
    except (FabricError, OSError) as error:  # What the machine or its user can mend: one line says it, where our bugs have a traceback.
        raise SystemExit(str(error)) from None

    def stop(number: int, frame: Any) -> None:
        daemon.stopping = True
        os.eventfd_write(daemon.wakeup, 1)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        daemon.run()
    finally:
        daemon.close()
