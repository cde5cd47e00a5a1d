"""How a restarted scheduler becomes whole again: everything it is told, put together in an order in which nothing is missed.

Four sources, from the surest to the last resort: what processes say between ``Register`` and ``Ready`` (rows without an outcome,
values, references, tasks that run), what lies in the arena and on disk, the functions and task rows in the control store, and
what was said after ``Ready``, which is simply taken in at the end. During registration only ``Hold`` says that something is held; a
row or a value alone does not.

A task row that only the control store has belongs to a task that finished, since whoever submitted it would have said it again (and
a driver says the rows of its workers that are gone: ``InheritTasks``). It comes back as lineage, done and without a value, and only if
something that is held, or an unfinished row, names it; the value is made again when somebody asks for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from zfabric.machines.common.lineage_blocks import BlockWriter
from zfabric.machines.common.log_format import is_remake
from zfabric.machines.local_scheduler.actors.directory import DETACHED, ActorDirectory
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.lifecycle.kept_rows import KeptRows
from zfabric.machines.local_scheduler.objects.call_results import CallResults
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import (
    DONE,
    HOSTING,
    LEASED,
    PENDING,
    AnyObject,
    JobRecord,
    ObjectRecord,
    Stored,
    TaskRecord,
    WorkerRecord,
    make_outputs,
    prefixes_of,
)
from zfabric.machines.local_scheduler.references import References, add_holder, named_by, row_names
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.admission import Admission
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.machines.local_scheduler.tasks.worker_pool import WorkerPool
from zfabric.protocol import ids
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure, refs_in
from zfabric.protocol.ids import FIRST_RETURN, JOB_BYTES, TASK_BYTES, Address, is_put, short
from zfabric.protocol.messages import FAILED, OK, Row
from zfabric.protocol.options import option

HELD = frozenset(
    {
        m.Export,
        m.HostedActors,
        m.LogAppended,
        m.Checkpoint,
        m.ReplayProgress,
        m.CallCounts,
        m.FindActors,
        m.ExpectResults,
        m.CallOutcomes,
        m.KillActor,
        m.ActorExiting,
        m.ActorEnded,
        m.Put,
        m.OfferResults,
        m.RunningTasks,
        m.Submit,
        m.Hold,
        m.Blocked,
        m.WaitDetails,
        m.Completed,
        m.Yielded,
        m.TakenBack,
        m.Unblocked,
        m.Fetch,
        m.Release,
        m.Cancel,
        m.Goodbye,
    }
)
"""What waits until everybody has registered."""
HELD_QUESTIONS = ("actor", "actor log", "nothing")
"""Likewise, of questions: what has a name is not known before, nor has anything that was said been taken in."""
_AFTERWARDS = (
    m.TakenBack, m.Unblocked, m.FindActors, m.LogAppended, m.Checkpoint, m.ReplayProgress, m.CallCounts, m.CallOutcomes,
    m.Fetch, m.Release, m.Cancel, m.KillActor, m.ActorExiting, m.ActorEnded, m.Query, m.Goodbye,
)  # fmt: skip
"""What is taken in last, in its order."""
_KNOWLEDGE = (m.Submit, m.Put, m.OfferResults)
"""What a process knew, whatever has become of it since."""


class Recovery:
    """Gathers, then rebuilds the tables, once.

    ``step`` takes in messages that were held back, ``deliver`` hands over transitions: both are the machine's.
    """

    def __init__(
        self,
        tables: Tables,
        blocks: BlockWriter,
        references: References,
        outcomes: Outcomes,
        rebuilding: Rebuilding,
        stopping: Stopping,
        admission: Admission,
        workers: WorkerPool,
        dispatcher: Dispatcher,
        streams: Streams,
        call_results: CallResults,
        logs: ActorLogs,
        actors: ActorDirectory,
        step: Callable[[float, Address, m.Message], None],
        deliver: Callable[[], object],
    ) -> None:
        self.tables = tables
        self.blocks = blocks
        self.references = references
        self.outcomes = outcomes
        self.rebuilding = rebuilding
        self.stopping = stopping
        self.admission = admission
        self.workers = workers
        self.dispatcher = dispatcher
        self.streams = streams
        self.call_results = call_results
        self.logs = logs
        self.actors = actors
        self.step = step
        self._deliver = deliver
        self._said: list[tuple[Address, m.Message]] = []
        self._later: list[tuple[Address, m.Message]] = []
        self._registered: set[bytes] = set()
        self._stored: dict[bytes, int] = {}
        """Objects found in the arena and on disk, with their sizes."""
        self._rows: dict[bytes, tuple[Row, Any]] = {}
        """Task rows of the control store, with their blocks."""
        self._entered: list[tuple[TaskRecord, WorkerRecord | None]] = []
        """Unfinished tasks in the order in which they came, and the workers that have them."""

    # -- gathering --

    def hold_back(self, source: Address, message: m.Message) -> None:
        """Keep what a process says, apart by whether it is still registering."""
        (self._later if source[1:] in self._registered else self._said).append((source, message))

    def registered(self, process: bytes) -> None:
        """A process has said all it holds; what it says from now on comes after."""
        self._registered.add(process)

    def found_in_arena(self, message: m.ArenaFound) -> None:
        """What the store before this one had taken over."""
        self._stored.update((object_id, size) for object_id, _, size in message.sealed)
        self._stored.update((object_id, size) for object_id, size, _ in message.spilled if object_id)

    # -- rebuilding --

    def rebuild(self, kept: KeptRows, now: float) -> None:
        """Take in all of it."""
        step = self.step
        kept.adopt_functions()
        self._rows = kept.adopt_rows()
        self._each(m.Export, lambda source, message: step(now, source, message))
        self._each(m.RunningTasks, self._note_use)
        self._each(m.HostedActors, lambda source, message: step(now, source, message))
        self._each(m.RunningTasks, self._enter_running)
        self._each(m.Submit, self._enter_submitted)
        self._each(m.Put, self._take_put)
        self._each(m.OfferResults, self._take_offer)
        self._each(m.ExpectResults, self._take_expect)
        self._each(m.Hold, self._take_hold)
        self._know(self.logs.references_of())
        self._know(named_by(record.task) for record in self.tables.actors.values())
        self._each(m.LogAppended, self._take_logged)
        self._each(m.Checkpoint, self._take_logged)
        self.streams.positions_known()
        for task, _ in self._entered:
            self._take_stored(task)
            self._know((named_by(task),))
        for record in self._values():
            self._know((record.contained,))
        for record in self._values():
            self.references.pin(record.contained)
        self.logs.recover()
        unheard = self._unheard()
        for task, worker in self._entered:
            if worker is None and task.id in unheard:
                worker, task.attempt = unheard[task.id]
            self._go_on(task, worker, now)
        self._each(m.Blocked, lambda source, message: step(now, source, message))
        self._each(m.WaitDetails, lambda source, message: step(now, source, message))
        self._each(m.Yielded, lambda source, message: self._take_yielded(now, source, message))
        self._each(m.Completed, lambda source, message: step(now, source, message))
        self._restore_detached()
        self.actors.find_lost()
        for source, message in self._said:
            if type(message) in _AFTERWARDS and source[1:] in self.tables.processes:
                step(now, source, message)
        self._deliver()
        self.logs.drop_lost()
        self.streams.recovered()
        for task_id, (_, block) in self._rows.items():
            if task_id not in self.tables.tasks:
                self.blocks.drop(task_id, block)
        self.actors.keep_arguments()
        self._stop_void(now)
        self.tables.spare.extend(self._values())

    def go_on(self, now: float) -> None:
        """Take in what was said after registration, in its order."""
        for source, message in self._later:
            if type(message) is m.Yielded:
                self._take_yielded(now, source, message)
            else:
                self.step(now, source, message)

    def _take_yielded(self, now: float, source: Address, message: m.Yielded) -> None:
        """Values of streams. Those that the daemon before this one had accepted (True) are in the arena."""
        for task_id, _, index, value, _ in message.rows:
            if value is True and task_id in self.tables.streams:
                self.known(ids.object_id(task_id, index + 1))
        self.step(now, source, message)

    def _each(self, kind: type[Any], action: Any) -> None:
        for source, message in self._said:
            # Of those who died since, what they knew still counts; what they held and ran does not.
            if type(message) is kind and (kind in _KNOWLEDGE or source[1:] in self.tables.processes):
                action(source, message)

    def _values(self) -> list[AnyObject]:
        tasks = (task for task in self.tables.tasks.values() if task.outputs is None)
        return [*tasks, *self.tables.objects.values()]

    def enter(self, row: Row, job: JobRecord, submitter: bytes = b"") -> TaskRecord | None:
        """A record for a row, if its function is known; nothing is said of its state yet."""
        function = job.functions.get(row[1])
        if function is None:
            return None
        task = TaskRecord(row, function, submitter, self.tables.first_attempt)
        count = task.option("num_returns", 1)
        if count != 1:
            make_outputs(task, count)
            self.tables.objects.update((record.object_id, record) for record in task.outputs or ())
        task.holders = None
        for record in task.values():
            record.holders = None
        kept = self._rows.get(task.id)
        if kept is not None and kept[0] == row:
            task.block = kept[1]
        elif self.tables.config.lineage:
            task.block = self.blocks.add(row)
        self.tables.tasks[task.id] = task
        if function.stream is not None:
            self.streams.begin(task)
        return task

    def _note_use(self, source: Address, message: m.RunningTasks) -> None:
        """What a worker has of the node is its own before anything is given out."""
        process = self.tables.processes.get(source[1:])
        worker = self.tables.workers.get(process.name) if process is not None else None
        if worker is not None:
            worker.gpus = message.gpus
            worker.used = worker.job is not None

    def on_hosted_actors(self, now: float, source: Address, message: m.HostedActors) -> None:
        """A worker says which actors it is, to a daemon that was restarted."""
        process = self.tables.processes.get(source[1:])
        worker = self.tables.workers.get(process.name) if process is not None else None
        if process is None or worker is None:
            return
        if not message.rows:
            worker.state, worker.shared = HOSTING, True
        for row, attempt in message.rows:
            job = self.tables.jobs.get(row[0][:JOB_BYTES])
            if job is None or job.ended:
                self.workers.end(worker, "its job has ended")
                return
            worker.job = process.job = job
            if row[0] not in self.tables.actors and not self._adopt_actor(row, attempt, job, worker):
                self.workers.end(worker, "nothing is known any more of the class of its actor")
                return

    def _adopt_actor(self, row: Row, attempt: int, job: JobRecord, worker: WorkerRecord) -> bool:
        """Take in an actor that lives. False if its class is not known: that died with its exporter and two daemons."""
        task = self.enter(row, job)
        if task is None:
            return False
        task.attempt = attempt
        task.finish()
        task.status = OK
        self.tables.inline.replace(task, b"actor")
        self.admission.set_terms(task, 0.0)
        self.actors.adopt(task, worker)
        return True

    def _restore_detached(self) -> None:
        """Detached actors that only the control store still knows."""
        for task_id, (row, _) in self._rows.items():
            job = self.tables.jobs.get(task_id[:JOB_BYTES])
            function = job.functions.get(row[1]) if job is not None else None
            if function is None or function.actor is None or task_id in self.tables.tasks:
                continue
            if option(row[4] if len(row) > 4 else None, "detached") or option(function.options, "detached"):
                self.known(task_id + FIRST_RETURN)
                task = self.tables.tasks.get(task_id)
                if task is not None:
                    add_holder(task, DETACHED)

    def _enter_running(self, source: Address, message: m.RunningTasks) -> None:
        """Tasks a worker has, begun or not, are its own to run."""
        process = self.tables.processes.get(source[1:])
        worker = self.tables.workers.get(process.name) if process is not None else None
        if process is None or worker is None:
            return
        for row, attempt, begun, stopped in message.rows:
            job = self.tables.jobs.get(row[0][:JOB_BYTES])
            if job is None or job.ended:
                self.workers.end(worker, "its job has ended")
                return
            worker.job = process.job = job
            if is_remake(row):
                self.workers.end(worker, "it makes a value again for a daemon that has died")
                return
            if row[0] in self.tables.tasks:
                continue
            task = self.enter(row, job, b"")  # Whoever submitted it says so, and hears of it.
            if task is not None:
                task.attempt = attempt
                if stopped:
                    task.facts().stopped = stopped
                self._entered.append((task, worker))
            elif begun:  # Nobody waits for it, and what is sent there would wait for its end.
                self.workers.end(worker, "it runs a task of which nothing else survived")
                return

    def _enter_submitted(self, source: Address, message: m.Submit) -> None:
        """Rows without an outcome."""
        process = self.tables.processes.get(source[1:])
        for row in message.rows:
            job = self.tables.jobs.get(row[0][:JOB_BYTES])
            if job is None or job.ended:
                continue
            task = self.tables.tasks.get(row[0])
            if task is None:
                task = self.enter(row, job, source[1:])
                if task is not None:
                    self._entered.append((task, None))
                elif process is not None:
                    self.admission.refuse_unknown(process, row)
            elif process is not None and task.row == row:
                if task.state == DONE:
                    self.outcomes.report_to(process, task)  # It made an actor, which has said so.
                if task.submitter != source[1:] and task.submitter in self.tables.processes:
                    task.facts().submitters += (task.submitter,)
                task.submitter = process.incarnation
            elif process is not None:
                self.admission.refuse_row(process, row)

    def _take_put(self, source: Address, message: m.Put) -> None:
        """Values of the process itself."""
        for object_id, value, contained, durable in message.rows:
            self._take_value(source[1:], object_id, OK, value, contained)
            record = self.tables.find(object_id)
            if isinstance(record, ObjectRecord):
                record.durable = record.durable or durable
            if type(value) is tuple:
                self.tables.locates.append((object_id, source[1:]))

    def _take_offer(self, source: Address, message: m.OfferResults) -> None:
        """Results a process has are adopted as accepted."""
        for object_id, status, value, contained in message.rows:
            self._take_value(source[1:], object_id, status, value, contained)

    def _take_value(self, process: bytes, object_id: bytes, status: int, value: Any, contained: tuple[bytes, ...]) -> None:
        record = self.tables.find(object_id)
        if record is None:
            self._restore(object_id)
            record = self.tables.find(object_id)
        if record is None:
            record = self._orphan(object_id)
        if type(value) is tuple:
            self.tables.sealed.append((object_id, value[0], value[1], process, False))
        if record.value is None:
            record.status = status
            record.contained = contained or (refs_in(value) if status != OK and type(value) is bytes else ())
            self.tables.inline.replace(record, Stored(value[1]) if type(value) is tuple else value)

    def _take_expect(self, source: Address, message: m.ExpectResults) -> None:
        """Results of calls: some have come into the arena, and their callers were not told; and streams of actors, not at their end."""
        self._know((row[0],) for row in message.rows)
        self.call_results.expect(source, message, False)

    def _take_logged(self, source: Address, message: m.LogAppended | m.Checkpoint) -> None:
        """What a log needs: known before it is taken in."""
        self._know((message.refs,))

    def _take_hold(self, source: Address, message: m.Hold) -> None:
        self._know((message.object_ids,))
        self.streams.claim(message.object_ids)
        for object_id in self.references.hold(message.object_ids, source[1:]):
            record = self.tables.objects[object_id] = ObjectRecord(object_id, None, source[1:])
            record.status = FAILED
            text = f"object {short(object_id)} is lost: nothing that would tell of it survived its node's daemon"
            self.tables.inline.replace(record, pack_failure("ObjectLostError", text))
            self.tables.orphans.setdefault(object_id[:TASK_BYTES], {})[object_id] = True

    def _unheard(self) -> dict[bytes, tuple[WorkerRecord, int]]:
        """Attempts that ended and of which the daemon before this one may not have heard: by task, the worker and the attempt."""
        found: dict[bytes, tuple[WorkerRecord, int]] = {}

        def note(source: Address, message: m.Completed) -> None:
            worker = self.tables.workers.get(self.tables.processes[source[1:]].name)
            if worker is not None:
                found.update((task_id, (worker, attempt)) for task_id, attempt, _, _ in message.rows)

        self._each(m.Completed, note)
        return found

    def _take_stored(self, task: TaskRecord) -> None:
        for record in task.values():
            size = self._stored.get(record.object_id)
            if record.status == PENDING and size is not None:
                record.status = OK
                self.tables.inline.replace(record, Stored(size))

    def _go_on(self, task: TaskRecord, worker: WorkerRecord | None, now: float) -> None:
        """An unfinished task is done after all, goes on where it is, or waits its turn."""
        values = task.values()
        if worker is not None and task.function.actor is not None and task.status != PENDING:
            self.actors.forget_value(task)  # It was alive once, and is being made again there.
            task.status = PENDING
        if values and all(record.status != PENDING for record in values):
            task.finish()
            if row_names(task.row):
                self.references.keep_row(task)
            process = self.tables.processes.get(task.submitter)
            if process is not None:
                self.outcomes.report_to(process, task)
            if worker is not None:
                self.admission.set_terms(task, now)
                self.stopping.goes_on(task, worker, now)
                self._lease(task, worker)
            return
        if task.function.actor is not None:
            self.actors.enter_again(task)
        if worker is not None:
            self.admission.set_terms(task, now)
            if row_names(task.row):
                self.references.keep_row(task)
                self.references.pin(named_by(task))
            self._assign(task, worker)
            if task.rare is not None and task.rare.stopped:
                self.stopping.stop(task, task.rare.stopped, now)  # Whoever asked for that may be gone.
        else:
            self.admission.set_terms(task, now)
            if task.function.actor is None or self.actors.submitted(task, task.function.queue.job):
                self.admission.resolve(task)

    def _stop_void(self, now: float) -> None:
        """What was submitted by attempts that came to nothing, and nobody else refers to: the next attempts submit it anew."""
        unfinished = [task for task, _ in self._entered if task.state != DONE]
        if any(value.holders is None for task in unfinished for value in task.values()):
            void = {prefix for task in unfinished for prefix in prefixes_of(task) - prefixes_of(task, earlier=0)}
            self.stopping.stop_void(void, b"", now)

    def _assign(self, task: TaskRecord, worker: WorkerRecord) -> None:
        task.assign(worker)
        worker.inflight[task.id] = task
        if task.function.actor is not None:
            self.actors.enter_again(task)
            self.dispatcher.host(worker, task)
        else:
            self._lease(task, worker)

    def _lease(self, task: TaskRecord, worker: WorkerRecord) -> None:
        if worker.state not in (LEASED, HOSTING):
            self.dispatcher.resume(worker, self.tables.queue_of(task))

    # -- what only the arena or the control store knows --

    def _know(self, several: Iterable[tuple[bytes, ...]]) -> None:
        for object_ids in several:
            for object_id in object_ids:
                self.known(object_id)

    def known(self, object_id: bytes) -> None:
        """Bring an object back, if anything is known of it."""
        if self.tables.find(object_id) is not None:
            return
        self._restore(object_id)
        if self.tables.find(object_id) is not None:
            return
        size = self._stored.get(object_id)
        if size is not None:
            record = self._orphan(object_id)
            record.status = OK
            self.tables.inline.replace(record, Stored(size))
        elif self.tables.maker_of(object_id) is not None:
            record = self.tables.objects[object_id] = ObjectRecord(object_id, None, None)
            record.status = OK  # Without a value: it is made again when somebody asks for it.
        elif is_put(object_id):
            record = self.tables.objects[object_id] = ObjectRecord(object_id, None, None)
            record.durable = True  # If it was not, the control store will say so.
            self.rebuilding.make_available(record, "its node's daemon died")

    def _orphan(self, object_id: bytes) -> ObjectRecord:
        """A value whose row, if it ever had one, is not known."""
        record = self.tables.objects[object_id] = ObjectRecord(object_id, None, None)
        if not is_put(object_id) and object_id[:TASK_BYTES] not in self.tables.streams:
            self.tables.orphans.setdefault(object_id[:TASK_BYTES], {})[object_id] = False
        return record

    def _restore(self, object_id: bytes) -> None:
        """Bring back the row that made an object, and those that it names: inputs first, since a row counts what it names."""
        agenda = deque([object_id[:TASK_BYTES]])
        restored: list[TaskRecord] = []
        while agenda:
            task_id = agenda.popleft()
            kept = self._rows.get(task_id)
            job = self.tables.jobs.get(task_id[:JOB_BYTES])
            if kept is None or job is None or task_id in self.tables.tasks:
                continue
            task = self.enter(kept[0], job, b"")
            if task is None:
                continue
            task.finish()
            for record in (task, *task.values()):
                record.status = OK
            for record in task.values():
                size = self._stored.get(record.object_id)
                self.tables.inline.replace(record, Stored(size) if size is not None else None)
            restored.append(task)
            agenda.extend(identifier[:TASK_BYTES] for identifier in named_by(task))
        for task in restored:
            for identifier in named_by(task):
                if identifier in self._stored and self.tables.find(identifier) is None:
                    self.known(identifier)
            self.references.keep_row(task)
