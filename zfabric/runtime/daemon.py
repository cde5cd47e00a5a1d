"""The node daemon: one thread, one loop, around the machines of its node (``zfabric.shell.node``).

A turn receives frames, the supervisor's events and the I/O thread's results, handles deadlines, has the machines decide, and sends each
peer one frame. Writes are committed in the order of effects. What the loop polls does not grow with the number of peers.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import zmq
from zmq import zmq_poll

from zfabric.adapters.collector import IdleCollector
from zfabric.adapters.journal import Journal
from zfabric.adapters.processes import (
    disk_room,
    memory_available,
    memory_share,
    memory_total,
    open_more_files,
    processor_times,
    resident_bytes,
    return_free_memory,
)
from zfabric.adapters.sockets import Transport
from zfabric.exceptions import ConnectionLostError, FabricError
from zfabric.machines.common.resources import amount_of, own_resources
from zfabric.machines.local_scheduler import JobRecord, Measured, WorkerRecord
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CONTROL_STORE, LOCAL_SCHEDULER, OBJECT_STORE
from zfabric.protocol.messages import Envelope
from zfabric.protocol.names import brief
from zfabric.runtime.lines import CRASH
from zfabric.runtime.logs import LogRow, LogTailer, log, note_worker
from zfabric.runtime.session import LOOPBACK, STOP, Session, new_incarnation
from zfabric.runtime.slots import Slots
from zfabric.runtime.storage import Storage
from zfabric.runtime.supervision import Supervision
from zfabric.shell.node import SWEEP_EVERY, NodeMachines

if TYPE_CHECKING:
    from zfabric.runtime.cluster_connection import ClusterConnection

clock = time.monotonic

FRAMES_PER_TURN = 32
"""Most frames per turn, which takes well under 50 ms."""
RECEIVE_SECONDS = 0.01
"""Most seconds of receiving per turn."""
LOOK_SECONDS = 0.0002
"""Longest polling before a cluster's daemon sleeps: waking a thread costs both sides 20 to 40 µs."""
ALERT_AFTER = 0.00005
"""Seconds of quiet after which another node's next message is probably alone and awaited."""
LOGS_EVERY = 0.1
"""Seconds between reads of workers' output while there is some or a worker is busy."""
SAMPLE_EVERY = 0.95
"""Least seconds between samples. An idle daemon takes them when it reads output."""
VALUES_COUNTED = 10_000
"""Above so many values a sample leaves out what is on disk: adding that up takes a millisecond."""
PAIRS_EVERY = 1.0
"""Least seconds between checks for unreachable nodes. An idle daemon checks when it wakes for its lease."""
LOGS_SELDOM = 0.5
"""Seconds between reads otherwise: output may follow a task's end."""
MEMORY_SECONDS = 0.004
"""Least seconds between checks of memory, per worker: a check takes a two-hundredth."""
BEFORE = frozenset({m.Goodbye, m.OutputWritten, m.Query})
"""What the shell handles in part before the scheduler does."""
CRASHES = frozenset(map(int, (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)))
"""Signals at which Python reports frames, but not the task."""
STOP_SECONDS = 0.5
"""Seconds for the ends of jobs to be committed: half of what the supervisor allows."""
STOP_TICK = 0.02
"""Seconds between checks of connections meanwhile."""
COLLECT_EVERY = 30.0
"""Seconds between an idle daemon's collections. Records form no cycles; libraries may."""


def lease_clock() -> float:
    """The clock of leases in seconds, which runs on while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Daemon:
    """One incarnation of a node's daemon. ``daemons`` counts its predecessors."""

    def __init__(self, session: Session, channel: int, daemons: int) -> None:
        self.session = session
        self.config = session.config()
        description = session.describe()
        self.incarnation = new_incarnation()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self.transport = Transport(self.context, session.sockets, self.incarnation, self.config)
        self.supervision = Supervision(channel)
        self.wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.stopping = False
        self._expectant = False
        """Whether a message was sent ahead of the turn, whose receiver may answer at once."""
        self._answered_soon = False
        """Whether the last answer came within ``LOOK_SECONDS``."""
        self._sent_ahead = b""
        """The last receiver of a message ahead of the turn."""
        self._likely = b""
        """The probable receiver of another node's next message, as of its last two."""
        self._events: deque[tuple[bytes, m.Message]] = deque()
        """(receiver's role, message) from other threads."""
        self._logs = LogTailer(session.logs, self.config.log_bytes, self.config.log_files)
        self._slots = Slots(session.sockets)
        self._busy = False
        self._logs_at = 0.0
        self._memory_at = 0.0
        self._sweep_at = 0.0
        self._pairs_at = 0.0
        self._sample_at = 0.0
        self._processors = 0, 0
        """Processor time (busy, total) at the last sample."""
        self._collect_at = 0.0
        self._collector = IdleCollector(clock)
        self._published = False
        self._agent_wanted = False
        self._restarted = daemons > 0
        self._memory_limit = self.config.memory_limit or int(memory_total() * 0.95)

        self.journal = Journal.open(
            description.get("store") or f"{session.directory}/store",
            self.config.control_store_bytes,
            self.config.durability,
            thorough=daemons != 1,  # The first restart is quick; a damaged store may cause further ones.
            in_use=daemons > 0,
        )
        if self.journal.report:
            self.log("warning", self.journal.report)
        capacity = int(description["arena_size"])
        spill = description.get("spill") or f"{session.directory}/spill"
        self._disks = session.directory, spill
        self.storage = Storage(str(description["arena"]), capacity, spill, self._from_thread)
        self.cluster = self._join_cluster(daemons, capacity)
        if self.cluster is not None:
            part, resources = self.cluster.part, self.cluster.resources
        else:
            part, resources = None, {**own_resources(LOOPBACK, True, capacity), **description["resources"]}
        total = tuple(sorted((name, amount_of(name, amount)) for name, amount in resources.items()))
        node = bytes.fromhex(description["node"])
        self.core = NodeMachines(self.incarnation, node, self.config, total, capacity, self.journal, daemons, part)
        self.scheduler = self.core.scheduler
        self.scheduler.tables.cluster.labels |= dict(description["labels"])  # A cluster's node gets them with the node table.
        self._receive_one = self.core.receive if self.cluster is None else self._receive_in_cluster
        self.transport.admits = self.core.admits
        self._perform: dict[type[Any], Any] = {
            e.Store: self._store,
            e.SpawnWorker: lambda effect: self.supervision.spawn(effect.token, effect.job, effect.environment, effect.threads),
            e.KillProcess: self._kill,
            e.StartAgent: self._request_agent,
            e.WatchProcess: lambda effect: self.supervision.watch(effect.pid, effect.started),
            e.Log: lambda effect: self.log(effect.level, effect.text),
            e.ConnectNodes: self._connect,
            e.Silence: self._silence,
            e.Freeze: lambda effect: self.supervision.freeze(effect.frozen),
            e.RecordLease: lambda effect: session.write_lease(effect.until),
            e.EndNode: self._end_node,
        }
        if daemons:
            session.sweep_sockets()
            self.core.recover(clock(), self.storage.found())
        else:
            self.core.start(clock(), former_jobs=bool(self.journal.scan("job", limit=1)))

    def _join_cluster(self, daemons: int, arena_bytes: int) -> ClusterConnection | None:
        """Connect to other nodes. None for a lone node, which has no TCP port."""
        settings = self.session.cluster()
        if settings is None:
            return None
        from zfabric.runtime.cluster_connection import ClusterConnection

        return ClusterConnection(self.context, self.session, settings, self.incarnation, daemons, arena_bytes)

    def _connect(self, effect: e.ConnectNodes) -> None:
        if self.cluster is not None and not self.stopping:  # Else the others are about to be notified of the end.
            self.cluster.send(clock(), self.core)  # Nodes that leave the table are notified first.
            self.cluster.connect(effect)
            if self.cluster.joined and not self._published:
                self._publish()

    def _silence(self, effect: e.Silence) -> None:
        if self.cluster is not None:
            self.cluster.silence(effect.silent, clock())

    def _publish(self) -> None:
        self._published = True
        self.session.publish_daemon(self.incarnation)

    def _end_node(self, effect: e.EndNode) -> None:
        if not self.stopping and self.cluster is not None:
            self.log("error", f"this node ends: {effect.reason}")
            self.supervision.end(self.cluster.reason(effect.reason))

    def log(self, level: str, text: str) -> None:
        """Write to the daemon's log."""
        log(f"{level}: {text}")

    def _request_agent(self, effect: e.StartAgent) -> None:
        self._agent_wanted = True

    def _start_agent(self) -> None:
        """Start the agent if there is an arena to copy to."""
        self._agent_wanted = False
        settings = self.session.cluster()
        if settings is not None and self.session.describe()["transfer"]:
            self.supervision.start_agent(self.incarnation, self.session.pair_of(settings))

    def _from_thread(self, message: m.Message) -> None:
        """Queue a message for the next turn, from another thread."""
        self._events.append((LOCAL_SCHEDULER if type(message) is m.ValueRead else OBJECT_STORE, message))
        os.eventfd_write(self.wakeup, 1)

    # -- the loop --

    def run(self) -> None:
        """Run until asked to stop."""
        wakeup, supervision = self.wakeup, self.supervision.fileno()
        polled = self.transport.sources + [(each, int(zmq.POLLIN)) for each in (wakeup, supervision)]
        cluster = self.cluster
        if cluster is not None:
            polled += cluster.transport.sources
            self.core.read_lease_clock(clock(), lease_clock())
            cluster.transport.tick(clock())
        self.turn(clock())
        if cluster is None or self._restarted:  # Else once the node has joined. Living processes look for a restarted daemon at once.
            self._publish()
        gc.collect()
        gc.freeze()
        gc.disable()
        counts, longest = self.scheduler.tables.counts, 0.0
        deadline, is_quiet = 0.0, False
        wait = zmq_poll if cluster is None else self._wait
        while not self.stopping:
            now = clock()
            deadline = self._next_deadline(now) if not is_quiet else self._next_of_transports(deadline, now)
            timeout = max(0, min(60_000, int((deadline - now) * 1000 + 0.999)))
            ready: dict[Any, int] = dict(wait(polled, timeout))
            before, now = now, clock()
            if cluster is not None:
                self.core.read_lease_clock(now, lease_clock())
            if supervision in ready:
                self._supervised(now)
            self._take_events(now, wakeup in ready)
            if self.transport.polled(ready):
                self._receive(now)
            if cluster is not None and cluster.transport.polled(ready):
                self._alert(now - before)
                cluster.receive(now, self.core, self._measure, self._send_ahead)
            # If only calls between nodes were passed on, no machine has to decide and no deadline has changed.
            is_quiet = cluster is not None and now < deadline and self.core.rests(now)
            if not is_quiet:
                self.core.tick(now)
                self.turn(now)
                # Housekeeping follows the answers, so that nobody waits for it.
                self._watch_over(now, bool(ready))
            self.transport.tick(now)
            if cluster is not None:
                cluster.transport.tick(now)
            longest = max(longest, clock() - now)
            counts["turn_longest_us"] = int(longest * 1e6)
        self._stop()

    def _wait(self, polled: list[tuple[Any, int]], timeout: int) -> list[tuple[Any, int]]:
        """Wait as ``zmq_poll``, but while answers come within ``LOOK_SECONDS`` poll before sleeping: waking a thread takes both sides
        longer.
        """
        expectant, self._expectant = self._expectant, False
        if not expectant or not timeout:
            return zmq_poll(polled, timeout)
        began = clock()
        if self._answered_soon:
            while clock() - began < LOOK_SECONDS:
                if ready := zmq_poll(polled, 0):
                    return ready
        ready = zmq_poll(polled, timeout)
        self._answered_soon = clock() - began < LOOK_SECONDS
        return ready

    def _alert(self, waited: float) -> None:
        """Wake the probable receiver while this thread reads another node's message. ``waited`` is in seconds."""
        if self._likely and waited > ALERT_AFTER:
            self.transport.alert(self._likely)
        self._likely = b""

    def _stop(self) -> None:
        """End every job, and notify drivers once that is committed."""
        now = clock()
        with contextlib.suppress(ConnectionLostError):
            self._supervised(now)  # The packet with the reason may be unread.
        self.scheduler.jobs.end_all(now, self.supervision.ending)
        self.core.stir(LOCAL_SCHEDULER)
        self.core.leave(self.supervision.ending)
        self.turn(now)
        until = now + STOP_SECONDS
        cluster = self.cluster
        polled = [(self.wakeup, int(zmq.POLLIN))] + (cluster.transport.sources if cluster is not None else [])
        while self._leaving() and (left := until - clock()) > 0:
            ready: dict[Any, int] = dict(zmq_poll(polled, int(min(left, STOP_TICK if cluster is not None else left) * 1000) + 1))
            now = clock()
            self._take_events(now)
            if cluster is not None:
                if cluster.transport.polled(ready):
                    cluster.receive(now, self.core, self._measure, self._send_ahead)
                cluster.transport.tick(now)
            self.turn(now)

    def _leaving(self) -> bool:
        """Whether a job's end is uncommitted, or another node not notified."""
        if any(job.ended for job in self.scheduler.tables.jobs.values()) or self.core.leaving:
            return True
        return self.cluster is not None and self.cluster.unacknowledged

    def _take_events(self, now: float, woken: bool = True) -> None:
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
        receive = self._receive_one
        for _ in range(FRAMES_PER_TURN):
            taken = self.transport.take()
            if taken is None:
                return
            sender, frame = taken
            for to, role, message in self.transport.accept(sender, frame, now):
                kind = type(message)
                if kind in BEFORE and self.core.may_send(sender, to, message):
                    self._before(now, sender, message)
                receive(now, sender, to, role, message)
            if not self.transport.readable or clock() - now > RECEIVE_SECONDS:
                return

    def _receive_in_cluster(self, now: float, sender: bytes, to: bytes, role: bytes, message: m.Message) -> None:
        self.core.receive_in_cluster(now, sender, to, role, message, self._send_ahead)

    def _send_ahead(self, receiver: bytes, envelopes: list[Envelope]) -> None:
        if envelopes[0][0] != LOCAL_SCHEDULER:
            self.transport.send_envelopes(receiver, envelopes, clock())
            self._expectant = True
            self._likely = receiver if receiver == self._sent_ahead else b""
            self._sent_ahead = receiver
        elif self.cluster is not None:
            self.cluster.transport.send_envelopes(receiver, envelopes, clock())

    def _before(self, now: float, sender: bytes, message: Any) -> None:
        if type(message) is m.Goodbye:
            if self.core.admits(sender):
                self.transport.peer(sender).admitted = True  # ``Farewell`` is sent when it is no longer registered.
            leaving = self.scheduler.tables.processes.get(sender)
            self._pass_on_output(now, leaving.job if leaving is not None else None)
        elif type(message) is m.OutputWritten or message.what == "output":
            self._pass_on_output(now)
        elif message.what in ("status", "statuses"):
            self._measure()
        elif message.what == "workers" and message.arguments:
            self._resident()

    def _measure(self) -> None:
        counts = self.scheduler.tables.counts
        counts["memory_used"], counts["memory_limit"] = sum(self._resident().values()), self._memory_limit
        counts["disk_free"], counts["disk_total"] = min(map(disk_room, self._disks), key=_share)
        counts["refused_frames"] = self.transport.refused + self.core.refused
        dict.update(counts, self.core.sent_to_nodes)  # A Counter's own would add them.
        if self.cluster is not None:
            dict.update(counts, self.cluster.refused())
        dict.update(counts, {name: many for name, many in self.core.control.statistics().items() if name != "refused"})
        if (age := self.core.lease_age(clock())) is not None:
            dict.update(counts, {"lease_age_seconds": age})

    def _resident(self) -> dict[int, int]:
        workers = self.scheduler.tables.workers.values()
        resident = self.scheduler.reports.resident = {worker.pid: resident_bytes(worker.pid) for worker in workers if worker.pid}
        return resident

    def turn(self, now: float) -> None:
        """Perform all effects, then send messages."""
        self.core.decide(now, self._do)
        for incarnation, envelopes in self.core.take_outgoing().items():
            self.transport.send_envelopes(incarnation, envelopes, now)
        if self.cluster is not None:
            self.cluster.send(now, self.core)

    def _do(self, effect: Any) -> None:
        perform = self._perform.get(type(effect))
        if perform is not None:
            perform(effect)
        else:
            self.storage.perform(effect)

    def _store(self, effect: e.Store) -> None:
        sequence, began, counts = effect.sequence, clock(), self.scheduler.tables.counts

        def done(error: str) -> None:
            counts["commit_microseconds"] += int((clock() - began) * 1e6)
            self._events.append((CONTROL_STORE, m.Committed(sequence, error)))
            os.eventfd_write(self.wakeup, 1)

        if self.config.durability == "process":
            self.journal.commit([effect], lambda error: self.core.committed(sequence, error))
            counts["commit_microseconds"] += int((clock() - began) * 1e6)
        else:
            self.journal.commit([effect], done)

    def _next_deadline(self, now: float) -> float:
        if self._events or self.core.pending:
            return now
        soonest = min(self._sweep_at, self._collect_at, self._logs_at)
        due = self.core.next_deadline()
        if due is not None and due < soonest:
            soonest = due
        if self._busy:
            soonest = min(soonest, self._memory_at)
        return self._next_of_transports(soonest, now)

    def _next_of_transports(self, soonest: float, now: float) -> float:
        due = self.transport.next_deadline()
        if due is not None and due < soonest:
            soonest = due
        if self.cluster is not None and (due := self.cluster.transport.next_deadline()) is not None and due < soonest:
            soonest = due
        return min(soonest, now + 0.002) if self.transport.congested else soonest

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
                self.transport.forget(incarnation)
                self.session.remove_sockets(incarnation)
            if dead and not self.scheduler.is_recovering:
                self._slots.release_all_but(self.scheduler.logs.logs)

    def _died(self, died: m.ProcessDied, now: float) -> m.ProcessDied:
        """Add a dead worker's running task and ended calls to the notice; show its last output."""
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
        """Name the running task in Python's crash reports."""
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

    # -- housekeeping --

    def _watch_over(self, now: float, active: bool) -> None:
        was_busy, self._busy = self._busy, self.scheduler.busy
        if self._busy and not was_busy:
            self._logs_at = min(self._logs_at, now + LOGS_EVERY)
        if now >= self._logs_at:
            found = self._pass_on_output(now)
            self._logs_at = now + (LOGS_EVERY if found or self._busy else LOGS_SELDOM)
        if now >= self._sample_at:
            self._sample_at = now + SAMPLE_EVERY
            self._take_sample(now)
        if self._busy and now >= self._memory_at:
            self._memory_at = now + max(self.config.memory_check_every, MEMORY_SECONDS * len(self.scheduler.tables.workers))
            self._check_memory(now)
        if self.cluster is not None:
            if self._agent_wanted and not self.scheduler.is_recovering:  # Its start would delay processes that register again.
                self._start_agent()
            if now >= self._pairs_at:
                self._pairs_at = now + PAIRS_EVERY
                self.cluster.look_at_pairs(now, self.core)
        if now >= self._sweep_at:
            self._sweep_at = now + SWEEP_EVERY
            for incarnation in self.core.sweep(self.transport.peers):
                self.transport.forget(incarnation)
            if self.cluster is not None:
                self.cluster.look_at_keys()
        if now >= self._collect_at:
            self._collect_at = now + COLLECT_EVERY
            if not active:
                self._collector.run()
                return_free_memory()

    def _take_sample(self, now: float) -> None:
        try:
            memory, processors = memory_share(), processor_times()
        except OSError:  # As in ``_check_memory``.
            return
        busy, all_of_them = (new - old for new, old in zip(processors, self._processors, strict=True))
        self._processors = processors
        used, spilled = self.core.store.room(VALUES_COUNTED)
        self.scheduler.sampling.sample(now, Measured(busy / all_of_them if all_of_them else 0.0, memory, used, spilled))

    def _pass_on_output(self, now: float, last_of: JobRecord | None = None) -> bool:
        """Pass on workers' output, with unfinished lines of a job that ends. Return whether there was any."""
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
        try:
            available, total = memory_available(), memory_total()
        except OSError:  # Strangers' connections hold every descriptor until their handshakes end.
            return
        if used > self._memory_limit or available < (total - self._memory_limit if not self.config.memory_limit else 0):
            self.core.step(now, LOCAL_SCHEDULER, m.MemoryPressure(available, self._memory_limit, tuple(usage)))

    def close(self) -> None:
        """Close everything, in order. What was acknowledged is in the journal."""
        self.storage.close()
        self.journal.close()
        if self.cluster is not None:
            self.cluster.close()
        self.transport.close()
        self.context.term()


def _share(room: tuple[int, int]) -> float:
    return room[0] / room[1] if room[1] else 1.0


def run(session_directory: str, channel_fd: int, daemons: int) -> None:
    """Run the daemon until ``STOP``."""
    open_more_files()
    try:
        daemon = Daemon(Session(session_directory), channel_fd, daemons)
    except (FabricError, OSError) as error:  # The user can mend these: one line is enough. Our bugs have a traceback.
        raise SystemExit(str(error)) from None

    def stop(number: int, frame: Any) -> None:
        daemon.stopping = True
        os.eventfd_write(daemon.wakeup, 1)

    signal.signal(STOP, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        daemon.run()
    finally:
        daemon.close()
