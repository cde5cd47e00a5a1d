"""How a restarted scheduler rebuilds its tables (decision 0005).

Sources, the most reliable first:

1. What each process reports between ``Register`` and ``Ready``. Only ``Hold`` makes a process a holder; a row or a value does not.
2. Objects that the object store found in the arena and on disk.
3. Functions and task rows in the control store.
4. What processes send after ``Ready``, handled last.

After the barrier (``rejoining``), ``Recovery.rebuild`` enters functions, living actors, running tasks, submitted rows, values and holds;
restores what these name from sources 2 and 3; pins the refs inside values; assigns unfinished tasks to the workers that report them and
queues the others; and accepts yields and ends of attempts. Rows that name an object are counted last, once all objects have records.

A task row that only the control store has belongs to a finished task: the submitter of an unfinished one repeats its row, or, if that was a
worker that died, the driver does (``InheritTasks``). Such a row is restored only if a held object or an unfinished row needs it, as a
finished task without a value, which is rebuilt on request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from zfabric.machines.common.lineage_blocks import BlockWriter
from zfabric.machines.common.tables import is_remake
from zfabric.machines.local_scheduler.actor_records import GuestRecord
from zfabric.machines.local_scheduler.actors.directory import DETACHED, ActorDirectory
from zfabric.machines.local_scheduler.actors.logs import ActorLogs
from zfabric.machines.local_scheduler.barrier import NODES
from zfabric.machines.local_scheduler.groups.directory import Groups
from zfabric.machines.local_scheduler.lifecycle.retained_rows import RetainedRows
from zfabric.machines.local_scheduler.object_places import PENDING, Stored
from zfabric.machines.local_scheduler.objects.call_results import CallResults
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.objects.values import Values
from zfabric.machines.local_scheduler.records import (
    DONE,
    DURABLE,
    ENDING,
    HOSTING,
    LEASED,
    NO_HOME,
    AnyObject,
    JobRecord,
    ObjectRecord,
    TaskRecord,
    WorkerRecord,
    prefixes_of,
)
from zfabric.machines.local_scheduler.references import References, named_by
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.admission import Admission
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes, contained_in
from zfabric.machines.local_scheduler.tasks.rebuilding import Rebuilding
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.machines.local_scheduler.tasks.worker_pool import WorkerPool
from zfabric.protocol import ids
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import FIRST_RETURN, JOB_BYTES, TASK_BYTES, Address, child_prefix, is_put, node_of, salt_of, short
from zfabric.protocol.inside import refs_in
from zfabric.protocol.messages import FAILED, OK, Row
from zfabric.protocol.options import names_objects, option

HELD_BACK = frozenset(
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
        m.ActorDrained,
        m.ActorEnded,
        m.Put,
        m.OfferResults,
        m.RunningTasks,
        m.Submit,
        m.Hold,
        m.Blocked,
        m.WaitDetails,
        m.HostDelays,
        m.Completed,
        m.Yielded,
        m.TakenBack,
        m.Unblocked,
        m.Fetch,
        m.Release,
        m.WatchReferences,
        m.Cancel,
        m.Goodbye,
    }
)
QUERIES_HELD_BACK = ("actor", "actor log", "create actor", "create group", "remove group", "keys", "nothing")
"""Queries that wait too: for names, or for messages that are not yet handled."""
_AFTERWARDS = (
    m.TakenBack, m.Unblocked, m.FindActors, m.LogAppended, m.Checkpoint, m.ReplayProgress, m.CallCounts, m.CallOutcomes,
    m.Fetch, m.Release, m.Cancel, m.KillActor, m.ActorExiting, m.ActorDrained, m.ActorEnded, m.Query, m.Goodbye,
)  # fmt: skip
"""Reports that are handled last, in order."""
_LASTING = (m.Submit, m.Put, m.OfferResults)
"""Reports that outlast their sender."""


class Recovery:
    """Collects reports, then rebuilds the tables, once.

    The machine passes ``adopt``, for delegated tasks, ``step`` and ``deliver``.
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
        values: Values,
        call_results: CallResults,
        logs: ActorLogs,
        actors: ActorDirectory,
        adopt: Callable[[Row, int, JobRecord], TaskRecord | None],
        groups: Groups,
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
        self.values = values
        self.call_results = call_results
        self.logs = logs
        self.actors = actors
        self._adopt = adopt
        self.groups = groups
        self.step = step
        self._deliver = deliver
        self._reports: list[tuple[Address, m.Message]] = []
        self._later: list[tuple[Address, m.Message]] = []
        self._registered: set[bytes] = set()
        self._stored: dict[bytes, int] = {}
        """Sizes of found objects."""
        self._inside: dict[bytes, tuple[bytes, ...]] = {}
        self._entered_values: deque[AnyObject] = deque()
        """Records whose refs inside are not restored yet."""
        self._pinned = False
        self._rows: dict[bytes, tuple[Row, Any]] = {}
        """Stored task rows, with their blocks."""
        self._entered: list[tuple[TaskRecord, WorkerRecord | None]] = []
        self._delegated: list[tuple[TaskRecord, WorkerRecord]] = []
        self._ended: list[tuple[bytes, set[bytes]]] = []
        """Processes ended for unknown tasks, and the id prefixes of these tasks' children."""
        self.homeless: list[bytes] = []
        """Objects without other trace: their home may be another node."""

    # -- collecting --

    def hold_back(self, source: Address, message: m.Message) -> None:
        """Retain a message, by whether its sender is still registering."""
        (self._later if source[1:] in self._registered else self._reports).append((source, message))

    def registered(self, process: bytes) -> None:
        """Note that all of a process is reported; its later messages are handled afterwards."""
        self._registered.add(process)

    def found_in_arena(self, message: m.ArenaFound) -> None:
        """Record what the earlier object store had sealed or spilled."""
        self._stored.update((object_id, size) for object_id, _, size in message.sealed)
        self._stored.update((object_id, size) for object_id, size, _ in message.spilled if object_id)
        self._inside.update(message.inside)

    # -- rebuilding --

    def rebuild(self, retained: RetainedRows, now: float) -> None:
        """Rebuild all tables, in the order of the module's text."""
        step = self.step
        self.references.choose()
        self.groups.restore(tuple(retained.groups))
        retained.adopt_functions()
        self._rows = retained.adopt_rows()
        self._each(m.Export, lambda source, message: step(now, source, message))
        self._each(m.RunningTasks, self._note_use)
        self._each(m.HostedActors, lambda source, message: step(now, source, message))
        self._each(m.RunningTasks, self._enter_running)
        self._each(m.Submit, self._enter_submitted)
        self._each(m.Put, self._take_put)
        self._each(m.OfferResults, self._take_offer)
        self._each(m.ExpectResults, self._take_expect)
        self._each(m.Hold, self._take_hold)
        self._restore_all(self.logs.references_of())
        self._restore_all(named_by(record.task) for record in self.tables.actors.values())
        self._each(m.LogAppended, self._take_logged)
        self._each(m.Checkpoint, self._take_logged)
        self.streams.positions_known()
        for task, _ in self._entered:
            self._take_stored(task)
            self._restore_all((named_by(task),))
            self._restore_yielded(task)
        self._restore_all(named_by(task) for task, _ in self._delegated)
        for record in self._values():
            self._restore_all((record.contained,))
        if self.tables.nodes:  # Another node may hold one of these values here: search the homes of the refs inside now.
            self._restore_all(self._inside.values())
        self._restore_inside()
        for record in self._values():
            self.references.pin(record.contained)
        self._pinned = True
        self.logs.recover()
        unreported = self._unreported()
        self._go_on_for_others(True, now)  # First: a task that runs on top of the creation of an actor has no lease of its own.
        for task, worker in self._entered:
            if worker is None and task.id in unreported:
                worker, task.attempt = unreported[task.id]
            self._go_on(task, worker, now)
        self._go_on_for_others(False, now)
        self._each(m.Blocked, lambda source, message: step(now, source, message))
        self._each(m.WaitDetails, lambda source, message: step(now, source, message))
        self._each(m.Yielded, lambda source, message: self._take_yielded(now, source, message))
        self._each(m.Completed, lambda source, message: self._take_completed(now, source, message))
        self._restore_detached()
        if not self.tables.barrier.awaits(NODES):
            self.actors.find_lost()
        for source, message in self._reports:
            if type(message) in _AFTERWARDS and source[1:] in self.tables.processes:
                step(now, source, message)
        self._deliver()
        if not self.tables.barrier.awaits(NODES):
            self.logs.drop_lost()
        self.streams.recovered()
        if not self.tables.nodes:
            self._drop_rows()
        self.actors.retain_arguments()
        self._count_rows()
        self._stop_void(now)
        for record in self._values():
            self.references.collect_later(record)

    def _count_rows(self) -> None:
        for record in self._values():
            record.forget_rows()
        for task in self.tables.tasks.values():
            if names_objects(task.row) and not task.function.delegated:
                self.references.retain_row(task)
        for stream in self.tables.streams.values():
            stream.values = 0
        for record in self.tables.objects.values() if self.tables.streams else ():
            self._count_value(record)

    def _count_value(self, record: ObjectRecord) -> None:
        stream = self.tables.streams.get(record.id[:TASK_BYTES])
        if stream is not None and stream.owner is not record and not record.home:
            stream.values += 1

    def find_lost_actors(self) -> None:
        """Restart each actor that nothing has reported, or record its death."""
        self.actors.has_returned()
        self.actors.find_lost()
        self.logs.drop_lost()
        self.actors.retain_arguments()

    def _drop_rows(self) -> None:
        for task_id, (_, block) in self._rows.items():
            if task_id not in self.tables.tasks:
                self.blocks.drop(task_id, block)
        self._rows.clear()

    def found_for_others(self) -> list[bytes]:
        """Found objects that another node may need: all, if there are others."""
        return list(self._stored) if self.tables.nodes else []

    def settle(self) -> None:
        """Drop what was found and is not needed. All nodes have registered."""
        self._drop_rows()
        self._inside.clear()
        self._free_found(list(self._stored))
        for record in self._values():
            self.references.collect_later(record)

    def run_again(self, task_ids: Iterable[bytes]) -> None:
        """Free what was found of tasks delegated anew: the store would take new values for copies of the former ones."""
        again = set(task_ids)
        self._free_found([each for each in self._stored if each[:TASK_BYTES] in again])

    def _free_found(self, object_ids: list[bytes]) -> None:
        for object_id in object_ids:
            del self._stored[object_id]
            record = self.tables.find(object_id)
            if record is None or type(record.value) is not Stored:
                self.tables.store.free(object_id)

    def stored_size(self, object_id: bytes) -> int | None:
        """Size of a value not yet dropped."""
        return self._stored.get(object_id)

    def go_on(self, now: float) -> None:
        """Handle messages sent after registration, in order."""
        for source, message in self._later:
            if type(message) is m.Yielded:
                self._take_yielded(now, source, message)
            else:
                self.step(now, source, message)

    def _take_yielded(self, now: float, source: Address, message: m.Yielded) -> None:
        """Handle values of streams. True is a value that an earlier daemon had accepted."""
        for task_id, _, index, value, contained in message.rows:
            self._restore_all((contained,))
            task = self.tables.tasks.get(task_id)
            if value is True and task_id in self.tables.streams:
                self.known(ids.object_id(task_id, index + 1))
            elif value is True and task is not None and task.function.delegated:
                self._retain_for(task.submitter, ids.object_id(task_id, index + 1), contained)
        self.step(now, source, message)

    def _take_completed(self, now: float, source: Address, message: m.Completed) -> None:
        """Handle ends of attempts. A ref inside may be of a put that only the control store has."""
        extras = {index: tuple(extra) for index, *extra in message.extras}
        for index, row in enumerate(message.rows):
            self._restore_all((contained_in(row, extras.get(index)),))
        self.step(now, source, message)

    def _retain_for(self, home: bytes, object_id: bytes, contained: tuple[bytes, ...]) -> None:
        """Retain another node's stream value, unless it is gone: its home may have released it."""
        size = self._stored.get(object_id)
        if size is not None and self.tables.find(object_id) is None:
            record = self.tables.refer(object_id, home)
            record.add_holder(home)
            record.arrive(Stored(size), self.tables.inline)
            self.outcomes.contain(record, contained)

    def _each(self, kind: type[Any], action: Any) -> None:
        for source, message in self._reports:
            # Rows and values of a process that has died still count; its holds and running tasks do not.
            if type(message) is kind and (kind in _LASTING or source[1:] in self.tables.processes):
                action(source, message)

    def _values(self) -> list[AnyObject]:
        tasks = (task for task in self.tables.tasks.values() if task.outputs is None)
        return [*tasks, *self.tables.objects.values()]

    def enter(self, row: Row, job: JobRecord, submitter: bytes = b"") -> TaskRecord | None:
        """Record a row; the caller sets its state. None if its function is unknown."""
        function = job.functions.get(row[1])
        if function is None:
            return None
        task = TaskRecord(row, function, submitter, self.tables.first_attempt)
        function.received += 1
        task.drop_holder(submitter)
        count = task.option("num_returns", 1)
        if count != 1:
            task.make_outputs(count)
            self.tables.enter_outputs(task)
        kept = self._rows.get(task.id)
        if kept is not None and kept[0] == row:
            task.block = kept[1]
        elif self.tables.config.lineage:
            task.block = self.blocks.add(row)
        self.tables.enter_task(task)
        if function.stream is not None:
            self.streams.begin(task)
        return task

    def _note_use(self, source: Address, message: m.RunningTasks) -> None:
        worker = self.tables.worker_of(source)
        if worker is not None:
            worker.gpus = message.gpus
            worker.used = worker.job is not None

    def on_hosted_actors(self, now: float, source: Address, message: m.HostedActors) -> None:
        """Record a worker's actors."""
        worker = self.tables.worker_of(source)
        if worker is None or worker.process is None:
            return
        if not message.rows:
            worker.state, worker.shared = HOSTING, True
        for row, attempt in message.rows:
            job = self.tables.jobs.get(row[0][:JOB_BYTES])
            if job is None or job.ended:
                self.workers.end(worker, "its job has ended")
                return
            worker.job = worker.process.job = job
            if node_of(attempt) != node_of(self.tables.first_attempt):
                if not self._adopt_guest(row, attempt, job, worker):
                    self.workers.end(worker, "it is an actor of a node that is dead")
                    return
            elif row[0] not in self.tables.actors and not self._adopt_actor(row, attempt, job, worker):
                self.workers.end(worker, "nothing is known any more of the class of its actor")
                return

    def _adopt_guest(self, row: Row, attempt: int, job: JobRecord, worker: WorkerRecord) -> bool:
        task = self._adopt(row, attempt, job)
        if task is None:
            return False
        self.tables.drop_task(task.id)
        task.finish()
        self.tables.guests[task.id] = GuestRecord(task, worker)
        self.dispatcher.host(worker, task)
        return True

    def _adopt_actor(self, row: Row, attempt: int, job: JobRecord, worker: WorkerRecord) -> bool:
        """Restore an actor. False if its class is lost: its exporter has died, and two daemons."""
        task = self.enter(row, job)
        if task is None:
            return False
        task.attempt = attempt
        task.finish()
        task.arrive(b"actor", self.tables.inline)
        self.admission.set_terms(task, 0.0)
        self.actors.adopt(task, worker)
        return True

    def _restore_detached(self) -> None:
        for task_id, (row, _) in self._rows.items():
            job = self.tables.jobs.get(task_id[:JOB_BYTES])
            function = job.functions.get(row[1]) if job is not None else None
            if function is None or function.actor is None or task_id in self.tables.tasks:
                continue
            if option(row[4] if len(row) > 4 else None, "detached") or option(function.options, "detached"):
                self.known(task_id + FIRST_RETURN)
                task = self.tables.tasks.get(task_id)
                if task is not None:
                    task.add_holder(DETACHED)

    def _enter_running(self, source: Address, message: m.RunningTasks) -> None:
        worker = self.tables.worker_of(source)
        if worker is None or worker.process is None:
            return
        for row, attempt, _, stopped in message.rows:
            job = self.tables.jobs.get(row[0][:JOB_BYTES])
            if job is None or job.ended:
                self.workers.end(worker, "its job has ended")
                return
            worker.job = worker.process.job = job
            if node_of(attempt) != node_of(self.tables.first_attempt):
                task = self._adopt(row, attempt, job)
                if task is not None:
                    if stopped:
                        task.facts().stopped = stopped
                    self._delegated.append((task, worker))
                    continue
                if job.home:
                    children = {child_prefix(each[0][:JOB_BYTES], each[0], 0, salt_of(given)) for each, given, *_ in message.rows}
                    self._ended.append((source[1:], children))
                    self.workers.end(worker, "it has a task of a node that is dead, or of a function of which nothing survived")
                    return
            if is_remake(row):
                self.workers.end(worker, "it makes a value again for a daemon that has died")
                return
            if row[0] in self.tables.tasks:
                continue
            task = self.enter(row, job, b"")  # The submitter is set when it repeats the row.
            if task is not None:
                task.attempt = attempt
                if stopped:
                    task.facts().stopped = stopped
                self._entered.append((task, worker))
            else:  # Nobody waits for it, and tasks sent to this worker would wait behind it.
                self.workers.end(worker, "it has a task of which nothing else survived")
                return

    def _enter_submitted(self, source: Address, message: m.Submit) -> None:
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
                    self.outcomes.report_to(process, task)  # It made an actor, which is already restored.
                if task.submitter != source[1:] and task.submitter in self.tables.processes:
                    task.facts().submitters += (task.submitter,)
                task.submitter = process.incarnation
            elif process is not None:
                self.admission.refuse_row(process, row)

    def _take_put(self, source: Address, message: m.Put) -> None:
        for object_id, value, contained, durable in message.rows:
            self._take_value(source[1:], object_id, OK, value, contained)
            record = self.tables.find(object_id)
            if durable and isinstance(record, ObjectRecord):
                record.note_durable()
            if type(value) is tuple:
                self.tables.store.locate(object_id, source[1:])
        self.values.keep_durable(source[1:], message.rows)

    def _take_offer(self, source: Address, message: m.OfferResults) -> None:
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
            self.tables.store.seal(object_id, value[0], value[1], process, False)
        if record.value is not None:
            return
        if status != OK:
            record.fail(status, value, self.tables.inline)
            self.tables.note_failure(record)
        elif value is None:
            record.lose(self.tables.inline)
        else:
            record.arrive(Stored(value[1]) if type(value) is tuple else value, self.tables.inline)
        record.contain(contained or (refs_in(value) if status != OK else ()))

    def _take_expect(self, source: Address, message: m.ExpectResults) -> None:
        """Restore promised results, some already in the arena, and unfinished streams of actors."""
        self._restore_all((row[0],) for row in message.rows)
        self.call_results.expect(source, message, False)

    def _take_logged(self, source: Address, message: m.LogAppended | m.Checkpoint) -> None:
        self._restore_all((message.refs,))

    def _take_hold(self, source: Address, message: m.Hold) -> None:
        self._restore_all((message.object_ids,))
        self.streams.claim(message.object_ids)
        for object_id in self.references.hold(message.object_ids, source[1:]):
            record = self.tables.new_object(object_id, source[1:])
            text = f"object {short(object_id)} is lost: nothing that would tell of it survived its node's daemon"
            record.fail(FAILED, pack_failure("ObjectLostError", text), self.tables.inline)
            self.tables.orphans.enter(object_id, True)

    def _unreported(self) -> dict[bytes, tuple[WorkerRecord, int]]:
        """Attempts whose end may be news: (worker, attempt) by task."""
        found: dict[bytes, tuple[WorkerRecord, int]] = {}

        def note(source: Address, message: m.Completed) -> None:
            worker = self.tables.workers.get(self.tables.processes[source[1:]].name)
            if worker is not None:
                found.update((task_id, (worker, attempt)) for task_id, attempt, _, _ in message.rows)

        self._each(m.Completed, note)
        return found

    def _take_stored(self, task: TaskRecord) -> None:
        for record in task.values():
            if record.status == PENDING:
                self._enter_value(record)

    def _enter_value(self, record: AnyObject) -> bool:
        """Enter a found value and the refs inside. Return False if none was found."""
        size = self._stored.get(record.object_id)
        if size is None:
            return False
        record.arrive(Stored(size), self.tables.inline)
        record.contain(self._inside.get(record.object_id, ()))
        if record.contained:
            self._entered_values.append(record)
        return True

    def _restore_inside(self) -> None:
        while self._entered_values:
            record = self._entered_values.popleft()
            for object_id in record.contained:
                self._known(object_id)
            if self._pinned:
                self.references.pin(record.contained)

    def _go_on(self, task: TaskRecord, worker: WorkerRecord | None, now: float) -> None:
        """Set an unfinished task's state: done if its values exist, assigned if a worker reports it, else waiting or ready."""
        values = task.values()
        if worker is not None and task.function.actor is not None and task.status != PENDING:
            self.references.clear(task)  # The actor had lived before, and is being created again there.
            task.expect(self.tables.inline)
        if values and all(record.status != PENDING for record in values):
            task.finish()
            process = self.tables.processes.get(task.submitter)
            if process is not None:
                self.outcomes.report_to(process, task)
            if worker is not None:
                self.admission.set_terms(task, now)
                self.stopping.still_running(task, worker, now)
                self._lease(task, worker)
            return
        if task.function.actor is not None:
            self.actors.enter_again(task)
        if worker is not None:
            self.admission.set_terms(task, now)
            self.references.pin(named_by(task))
            self._assign(task, worker)
            if task.rare is not None and task.rare.run_timeout is not None:
                self.stopping.expect_run(task, now)  # The time of its start is lost.
            if task.rare is not None and task.rare.stopped:
                self.stopping.stop(task, task.rare.stopped, now)  # Whoever requested the stop may be gone.
        else:
            self.admission.set_terms(task, now)
            if task.function.actor is None or self.actors.submitted(task, task.function.queue.job):
                others_may_run_it = self.tables.barrier.awaits(NODES)
                (self.admission.resolve_later if others_may_run_it else self.admission.resolve)(task)
                if task.function.actor is not None and others_may_run_it:
                    self.actors.may_return(task)

    def _go_on_for_others(self, actors: bool, now: float) -> None:
        """Assign delegated tasks to the workers that report them: those that create actors, or the others."""
        for task, worker in [each for each in self._delegated if (each[0].function.actor is not None) == actors]:
            self.references.pin(named_by(task))
            self._assign(task, worker)
            if task.rare is not None and task.rare.run_timeout is not None:
                self.stopping.expect_run(task, now)
            if task.rare is not None and task.rare.stopped:
                self.stopping.stop(task, task.rare.stopped, now)

    def _stop_void(self, now: float) -> None:
        unfinished = [task for task, _ in self._entered if task.state != DONE]
        if any(value.holders is None for task in unfinished for value in task.values()):
            void = {prefix for task in unfinished for prefix in prefixes_of(task) - prefixes_of(task, earlier=0)}
            self.stopping.stop_void(void, b"", now)
        for process, prefixes in self._ended:
            self.stopping.stop_void(prefixes, process, now)

    def _assign(self, task: TaskRecord, worker: WorkerRecord) -> None:
        task.assign(worker)
        worker.inflight[task.id] = task
        if task.function.actor is not None:
            if not task.function.delegated:
                self.actors.enter_again(task)
            self.dispatcher.host(worker, task)
        else:
            self._lease(task, worker)

    def _lease(self, task: TaskRecord, worker: WorkerRecord) -> None:
        if worker.state not in (LEASED, HOSTING, ENDING):
            self.dispatcher.resume(worker, self.tables.queue_of(task))

    # -- objects that only the arena or the control store has --

    def _restore_all(self, several: Iterable[tuple[bytes, ...]]) -> None:
        for object_ids in several:
            for object_id in object_ids:
                self.known(object_id)

    def known(self, object_id: bytes) -> None:
        """Restore an object from what is left, if anything is."""
        self._known(object_id)
        if self._pinned:
            self._restore_inside()

    def restore_rows(self, object_ids: Iterable[bytes]) -> None:
        """Restore rows that make these, for a node that searches for their home."""
        for object_id in object_ids:
            self._restore(object_id)
        if self._pinned:
            self._restore_inside()

    def known_here(self, object_id: bytes) -> None:
        """Restore an object of this home, if anything is left."""
        self._known_here(object_id)
        if self._pinned:
            self._restore_inside()

    def _known(self, object_id: bytes) -> None:
        if self.tables.find(object_id) is not None:
            return
        self._restore(object_id)
        if self.tables.find(object_id) is not None:
            return
        of_stream = object_id[:TASK_BYTES] in self.tables.streams  # A value of a stream may have been requested before it exists.
        if self.tables.barrier.awaits(NODES) and self.tables.maker_of(object_id) is None and not of_stream:
            self.homeless.append(object_id)
            self.tables.refer(object_id, NO_HOME)
            self._note_orphan(object_id)
        else:
            self._known_here(object_id)

    def _known_here(self, object_id: bytes) -> None:
        self._restore(object_id)
        if self.tables.find(object_id) is not None:
            return
        if object_id in self._stored:
            record = self._orphan(object_id)
            self._enter_value(record)
        elif self.tables.maker_of(object_id) is not None:
            record = self.tables.new_object(object_id)
            record.lose(self.tables.inline)  # It is rebuilt on request.
        elif is_put(object_id):
            put = self.tables.new_object(object_id, durable=DURABLE)
            self.rebuilding.make_available(put, "its node's daemon died")  # The control store has it if it was durable.

    def _orphan(self, object_id: bytes) -> ObjectRecord:
        record = self.tables.new_object(object_id)
        self._count_value(record)
        self._note_orphan(object_id)
        return record

    def _note_orphan(self, object_id: bytes) -> None:
        if not is_put(object_id) and object_id[:TASK_BYTES] not in self.tables.streams:
            self.tables.orphans.enter(object_id, False)

    def _restore(self, object_id: bytes) -> None:
        """Restore an object's row, and transitively those of its inputs, as finished tasks."""
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
            if task.outputs is not None:
                task.end_as(OK)
            for record in task.values():
                if not self._enter_value(record):
                    record.lose(self.tables.inline)
            restored.append(task)
            agenda.extend(identifier[:TASK_BYTES] for identifier in named_by(task))
        for task in restored:
            for identifier in named_by(task):
                if identifier in self._stored and self.tables.find(identifier) is None:
                    self._known(identifier)
            self._restore_yielded(task)
            self.references.retain_row(task)

    def _restore_yielded(self, task: TaskRecord) -> None:
        """Record lost stream values that a row names: their tasks yield them on request."""
        for identifier in named_by(task) if self.tables.streams else ():
            stream = self.tables.streams.get(identifier[:TASK_BYTES])
            if stream is not None and stream.owner.task is not None and self.tables.find(identifier) is None:
                self.tables.value_of(stream, identifier).lose(self.tables.inline)
