"""The end of jobs.

A job ends with its driver, or with its last detached actor. Its home then sends ``EndJob`` to every node; another node forwards it to those
that have tasks of it from there. Each answers ``JobGone`` when nothing is left. Only then are the job's rows deleted and its *tombstone*
written, a job row with the status "ended"; no process writes anything of the job after that. The driver receives its ``Farewell`` once the
tombstone is durable.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from zfabric.machines.common.lineage_blocks import BlockWriter
from zfabric.machines.common.tables import pack_row
from zfabric.machines.local_scheduler.actor_records import ActorRecord
from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.actors.remakes import Remakes
from zfabric.machines.local_scheduler.barrier import PROCESSES
from zfabric.machines.local_scheduler.due import SHUTDOWN, TOMBSTONES
from zfabric.machines.local_scheduler.lifecycle.departures import Departures
from zfabric.machines.local_scheduler.lifecycle.detached import DetachedActors
from zfabric.machines.local_scheduler.records import JobRecord, TaskRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.reports.events import Events
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.direct_submission import DirectSubmissions
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.machines.local_scheduler.tasks.worker_pool import WorkerPool
from zfabric.machines.local_scheduler.transitions import JobOver
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import JOB_BYTES, Address, job_id, short, unpack_counter
from zfabric.protocol.messages import ALIVE, FAILED

ELSEWHERE = "elsewhere"
"""Status of a job row on a node that is not the home."""
TOMBSTONES_KEPT = 1000
"""Tombstones that are retained, for users."""
SHUTDOWN_SECONDS = 3.0
"""Seconds that a job's end waits for actors."""
ENDED_JOBS_MOST = 100
"""Ended jobs whose tasks have yet to enter the time series, each second."""


class JobShutdown:
    """Delays the end of a program with actors that define ``__exit__`` or ``__del__``.

    When its driver exits cleanly, these are retired, after the calls already made; the job ends when they have, at the latest after three
    seconds. If the driver dies, they are killed at once.
    """

    def __init__(self, actors: ActorDirectory) -> None:
        self.actors = actors
        self.until: dict[JobRecord, float] = {}
        """Jobs of exited drivers, with their latest end."""

    def begin(self, job: JobRecord, now: float) -> bool:
        """Retire these actors of a job. Return False without any."""
        actors = self._with_farewell(job)
        for record in actors:
            self.actors.retire(record, "its program has ended")
        if actors:
            self.until[job] = now + SHUTDOWN_SECONDS
            self.actors.tables.deadlines.note(SHUTDOWN, self.until[job])
        return bool(actors)

    def _with_farewell(self, job: JobRecord) -> list[ActorRecord]:
        return [
            record
            for record in self.actors.of(job)
            if record.state == ALIVE and record.worker is not None and not record.detached and record.task.option("farewell", False)
        ]

    def take_over(self, now: float) -> list[JobRecord]:
        """Take jobs whose actors have ended, or whose time is up."""
        over = []
        for job, until in list(self.until.items()):
            if job.ended or job.driver is None:
                del self.until[job]
            elif now >= until or not self._with_farewell(job):
                del self.until[job]
                over.append(job)
        return over

    def next_deadline(self) -> float | None:
        """When a job's time is up."""
        return min(self.until.values(), default=None)


class _LastRows(NamedTuple):
    """What is written at the end: ``first_puts`` once, ``puts`` when the write is repeated."""

    job: JobRecord
    first_puts: m.Rows
    puts: m.Rows
    deletes: m.Rows


class Jobs:
    """Ends jobs, and writes their tombstones."""

    def __init__(
        self,
        tables: Tables,
        blocks: BlockWriter,
        requests: PendingRequests,
        references: References,
        outcomes: Outcomes,
        stopping: Stopping,
        direct: DirectSubmissions,
        workers: WorkerPool,
        dispatcher: Dispatcher,
        actors: ActorDirectory,
        logs: ActorLogs,
        remakes: Remakes,
        events: Events,
        departures: Departures,
        detached: DetachedActors,
        job_shutdown: JobShutdown,
    ) -> None:
        self.tables = tables
        self.blocks = blocks
        self.requests = requests
        self.references = references
        self.outcomes = outcomes
        self.stopping = stopping
        self.direct = direct
        self.workers = workers
        self.dispatcher = dispatcher
        self.actors = actors
        self.logs = logs
        self.remakes = remakes
        self.events = events
        self.departures = departures
        self.detached = detached
        self.job_shutdown = job_shutdown
        self.ended_elsewhere: dict[bytes, None] = {}
        self.all_ended = False
        """Whether this node stops: it accepts no delegated tasks."""
        self._ended: deque[JobRecord] = deque(maxlen=ENDED_JOBS_MOST)
        self._leaving: dict[bytes, tuple[set[bytes], _LastRows]] = {}
        """Ended jobs, each with nodes that owe ``JobGone``, and what is then written."""
        self.without_driver: dict[JobRecord, None] = {}
        """Jobs of which it is unknown whether they have detached actors."""
        self.tombstones: list[tuple[float, _LastRows]] = []
        """Failed writes: (time of the next attempt, rows)."""

    def on_goodbye(self, now: float, source: Address, message: m.Goodbye) -> None:
        """Handle a driver's or tool's clean exit."""
        process = self.tables.processes.get(source[1:])
        if process is None or self.direct.wait(source, message):
            return
        if process.kind == "driver" and process.job is not None:
            if not self.job_shutdown.begin(process.job, now):
                self.driver_gone(process.job, now)
        else:
            self.departures.release(process)

    def driver_gone(self, job: JobRecord, now: float) -> None:
        """End a driver's job, unless it has detached actors."""
        if self.detached.is_unknown():
            self.without_driver[job] = None
        elif not self.detached.driver_gone(job, job.driver, now):
            self.end_job(job, now)

    def end_of_turn(self, now: float) -> None:
        """End jobs whose last actor has ended."""
        without_driver, self.without_driver = self.without_driver, {}
        for job in (*without_driver, *self.job_shutdown.take_over(now)):
            self.driver_gone(job, now)
        for job in self.detached.take_over():
            self.end_job(job, now)

    def end_job(self, job: JobRecord, now: float, *, leaving: bool = False) -> None:
        """End a job: refuse its messages, end its workers, free its values, delete its rows.

        ``leaving``: this node stops, and a job with its driver elsewhere, or with detached actors on the head, goes on without it.
        """
        if job.ended:
            return
        job.ended = True
        tables = self.tables
        goes_on = leaving and (bool(job.home) or self.detached.lives_at(tables.cluster.head, job))
        for worker in list(tables.workers.values()):
            if worker.job is job:
                for task in list(worker.inflight.values()):
                    task.finish()
                worker.inflight.clear()
                self.dispatcher.abandon(worker)
                self.workers.end(worker, "its job has ended")
        self.stopping.job_ended(job.id)
        tables.queues.job_ended(job)
        self.actors.job_ended(job)
        self.remakes.job_ended(job.id)
        self.detached.job_ended(job.id)
        tables.report(JobOver(job.id))
        self._fail_for_others(job)
        for task in [task for identifier, task in tables.tasks.items() if identifier[:JOB_BYTES] == job.id]:
            self._drop_task(task)
            if task.block is not None:
                self.blocks.drop(task.id, task.block)
        deletes = [("function", job.id + identifier) for identifier in job.functions]
        deletes += self.logs.job_ended(job.id)
        for identifier, record in [(each, record) for each, record in tables.objects.items() if each[:JOB_BYTES] == job.id]:
            self.references.clear(record)
            tables.drop_object(identifier)
            if record.home:
                tables.transfers.unwanted.append(identifier)
            if record.task is None and not self._in_cluster:
                deletes.append(("object", identifier))
        self.references.job_ended(job.id)
        for rows in tables.entrusted.values():
            for identifier, entrusted in rows.items():
                if identifier[:JOB_BYTES] == job.id and entrusted.block is not None:
                    self.blocks.drop(identifier, entrusted.block)
        tables.orphans.job_ended(job.id)
        by_task: list[dict[bytes, Any]] = [tables.streams, *tables.entrusted.values()]
        for table in by_task:
            for identifier in [each for each in table if each[:JOB_BYTES] == job.id]:
                del table[identifier]
        puts, more = self.blocks.flush(rows_max=1 << 30)
        # Written together, so that a timeline can be read as soon as the driver has exited.
        status = ("job", job.id, self.row(job, "ended"))
        deletes += self._oldest_tombstone(job.number)
        statuses = (status,) if not job.home else (tombstone(job.id, job.number),) if tables.cluster.is_head else ()
        if not statuses:
            deletes.append(("job", job.id))
        ends = _LastRows(job, (*puts, *self.events.take(), *statuses), statuses, (*deletes, *more))
        given = self._nodes_of(job)
        nodes = [] if goes_on else given
        for node in nodes:
            tables.send_to_node(node, m.EndJob(job.id))
        if nodes:
            self._leaving[job.id] = set(nodes), ends
        elif goes_on:  # The durable values stay.
            self._write_tombstone(ends)
        else:
            self._write_end(ends)

    def _fail_for_others(self, job: JobRecord) -> None:
        processes = self.tables.processes
        waited_for = [each for each in self.tables.values() if each.fetchers or each.dependents]
        for record in [each for each in waited_for if each.object_id[:JOB_BYTES] == job.id]:
            waiting = map(processes.get, record.take_fetchers())
            record.add_fetchers(*(each.incarnation for each in waiting if each is not None and each.job is not job))
            for task in record.take_dependents():
                if task.id[:JOB_BYTES] != job.id:
                    record.add_dependent(task)
            if record.fetchers or record.dependents:
                text = f"object {short(record.object_id)} is not known here any more: its job has ended"
                self.outcomes.set_failure(record, FAILED, pack_failure("ObjectFreedError", text))
                self.outcomes.announce(record)

    def _nodes_of(self, job: JobRecord) -> list[bytes]:
        """Drop records of an ended job elsewhere. Return the nodes that must answer ``JobGone``.

        At the home these are all nodes, elsewhere those with tasks from here, of which the home may be unaware.
        """
        found = []
        for node in self.tables.nodes.values():
            given = {name for name in node.functions if name[:JOB_BYTES] == job.id}
            node.functions -= given
            for identifier in [each for each in node.inflight if each[:JOB_BYTES] == job.id]:
                del node.inflight[identifier]
            if given or not job.home:
                found.append(node.token)
        return found

    @property
    def _in_cluster(self) -> bool:
        """Whether nodes, perhaps dead, may have put durable values into the head's table."""
        return bool(self.tables.cluster.rows)

    def _oldest_tombstone(self, number: int) -> list[tuple[str, bytes]]:
        """The tombstone that makes room for job ``number``'s, as ``deletes`` of ``Write``."""
        oldest = job_id(max(number - TOMBSTONES_KEPT, 0))
        return [("job", oldest)] if number > TOMBSTONES_KEPT and oldest not in self.tables.jobs else []

    def _write_end(self, ends: _LastRows) -> None:
        if ends.job.home:
            self._write_tombstone(ends)
        else:
            self.requests.ask_head(m.EndKeys, ends.job.id, then=self._keys_ended, about=ends)

    def _keys_ended(self, now: float, ends: _LastRows, answer: m.Written) -> None:
        """The head's keys are deleted, or will be when its disk has room."""
        job, next_job = ends.job, job_id(ends.job.number + 1)
        if self._in_cluster and not self.tables.cluster.is_head:
            self.requests.ask_head(m.DeleteRows, "object", job.id, next_job, then=self._values_deleted, about=ends)
            return
        if self._in_cluster:  # Nodes that have died may have put durable values.
            self.tables.send(self.tables.cluster.control_address, m.DeleteRows(0, "object", job.id, next_job))
        self._write_tombstone(ends)

    def _values_deleted(self, now: float, ends: _LastRows, answer: m.Written) -> None:
        """The head's durable values are deleted, or will be when its disk has room."""
        self._write_tombstone(ends)

    def _write_tombstone(self, ends: _LastRows) -> None:
        self.requests.ask(m.Write, ends.first_puts, ends.deletes, then=self._job_ended, about=ends)

    def on_end_job(self, now: float, source: Address, message: m.EndJob) -> None:
        """End another home's job. A third node may still send tasks."""
        self.ended_elsewhere[message.job] = None
        while len(self.ended_elsewhere) > TOMBSTONES_KEPT:
            del self.ended_elsewhere[next(iter(self.ended_elsewhere))]
        job = self.tables.jobs.get(message.job)
        if job is not None:
            self.end_job(job, now)
        else:
            self.actors.remote_ended(message.job, None)
        if job is None and self.tables.cluster.is_head:
            number = unpack_counter(message.job)[0]
            rows = (tombstone(message.job, number),), tuple(self._oldest_tombstone(number))
            self.tables.send(self.tables.cluster.control_address, m.Write(0, *rows))
        if job is None or job.home != source[1:]:  # The home receives its answer once all is gone; other senders at once.
            self.tables.send_to_node(source[1:], m.JobGone(message.job))

    def on_job_gone(self, now: float, source: Address, message: m.JobGone) -> None:
        """Record that a node has nothing left."""
        self._left(message.job, source[1:])

    def node_joined(self, node: bytes) -> None:
        """Notify a node of the jobs that are ending: others may have given it their tasks."""
        for job, (nodes, _) in self._leaving.items():
            nodes.add(node)
            self.tables.send_to_node(node, m.EndJob(job))

    def take_ended(self) -> list[JobRecord]:
        """Take ended jobs whose tasks have yet to enter the time series."""
        ended = list(self._ended)
        self._ended.clear()
        return ended

    def enter(self, job: JobRecord) -> JobRecord:
        """Enter a job that has begun, or that has tasks here."""
        self.tables.jobs[job.id] = job
        return job

    def elsewhere(self, job: JobRecord) -> None:
        """Write that this node works for another home's job.

        The next daemon ends workers of unknown jobs. The write is a request so that it is committed at once.
        """
        facts = {"status": ELSEWHERE, "namespace": job.namespace, "home": job.home}
        self.requests.ask(m.Write, (("job", job.id, pack_row(facts)),), (), then=_written)

    def pass_on(self, dead: bytes) -> list[JobRecord]:
        """Make the head the home of a dead node's jobs, if it has detached actors of theirs. Return the jobs with a new home.

        Other nodes ask the head, which has them end the jobs that do not go on.
        """
        tables, passed = self.tables, []
        for job in [each for each in tables.jobs.values() if each.home == dead and not each.ended]:
            if not tables.cluster.is_head:
                job.home = tables.cluster.head
                self.elsewhere(job)
                self.detached.passed_on(job)
                passed.append(job)
            elif self.detached.lives_here(job):
                job.home = b""
                tables.send(tables.cluster.control_address, m.Write(0, (("job", job.id, self.row(job, "running")),), ()))
                tables.write_log("info", f"job {job.number} goes on here for its detached actors: the node of its driver is dead")
                passed.append(job)
        return passed

    def node_died(self, node: bytes) -> None:
        """Stop waiting for a dead node."""
        self.detached.begin_anew(node)
        for job in list(self._leaving):
            self._left(job, node)

    def _left(self, job: bytes, node: bytes) -> None:
        nodes, ends = self._leaving.get(job, (set(), None))
        nodes.discard(node)
        if ends is not None and not nodes:
            del self._leaving[job]
            self._write_end(ends)

    def _drop_task(self, task: TaskRecord) -> None:
        self.references.revive(task)
        self.references.clear(task)
        task.finish()
        self.tables.drop_task(task.id)

    def end_all(self, now: float, reason: str = "") -> None:
        """End every job; drivers receive ``reason``. During recovery jobs are unknown, and left to the next node."""
        self.all_ended = self.tables.end_due = True
        for job in list(self.tables.jobs.values()) if not self.tables.barrier.awaits(PROCESSES) else ():
            job.reason = reason
            self.end_job(job, now, leaving=True)

    def _job_ended(self, now: float, about: _LastRows, answer: m.Written) -> None:
        """Send the farewell once the tombstone is durable. Repeat a failed write later."""
        job = about.job
        if not answer.ok:
            due = now + self.tables.config.store_retry_every
            self.tombstones.append((due, about))
            self.tables.deadlines.note(TOMBSTONES, due)
        driver = job.driver
        if self.tables.jobs.pop(job.id, None) is not None:
            self._ended.append(job)
        if job.home in self.tables.nodes:
            self.tables.send_to_node(job.home, m.JobGone(job.id))
        if driver is not None and driver.incarnation in self.tables.processes:
            self.tables.send_to_client(driver, m.Farewell(job.reason))
            self.departures.release(driver)

    def row(self, job: JobRecord, status: str) -> bytes:
        """A job's row in the control store."""
        driver = job.driver
        return pack_row(
            {
                "number": job.number,
                "namespace": job.namespace,
                "status": status,
                "driver": driver.incarnation if driver else b"",
                "control": driver.control if driver else b"",
                "pid": driver.pid if driver else 0,
                "started": driver.started if driver else 0,
                "name": driver.name if driver else b"",
                "submitted": job.submitted,
            }
        )

    def tick(self, now: float) -> None:
        """Repeat failed writes."""
        while self.tombstones and self.tombstones[0][0] <= now:
            _, about = self.tombstones.pop(0)
            self.requests.ask(m.Write, about.puts, about.deletes, then=self._job_ended, about=about)

    def next_deadline(self) -> float | None:
        """When the next is repeated."""
        return self.tombstones[0][0] if self.tombstones else None


def tombstone(job: bytes, number: int) -> m.Row:
    """Another home's tombstone, on the head, as ``puts`` of ``Write``."""
    return ("job", job, pack_row({"number": number, "status": "ended"}))


def _written(now: float, about: None, answer: m.Written) -> None:
    """Nothing depends on the answer."""
