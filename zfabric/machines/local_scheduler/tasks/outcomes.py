"""Outcomes of tasks: accepted, retried or failed, and sent to the processes that wait.

Acceptance is at most once per attempt: a completion counts only if it is of the dispatched attempt and from the worker that has the task
now. Any other is late, and its bytes in the arena are freed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from zfabric.config import ROWS_MAX
from zfabric.machines.common.resources import describe
from zfabric.machines.common.tables import pack_row, unpack_row
from zfabric.machines.local_scheduler.barrier import NODES
from zfabric.machines.local_scheduler.channel import TurnOutbox
from zfabric.machines.local_scheduler.object_places import PENDING, Elsewhere, Stored
from zfabric.machines.local_scheduler.records import (
    DONE,
    READY,
    WAITING,
    AnyObject,
    DirectLease,
    NodeRecord,
    ProcessRecord,
    RefusedRow,
    StreamRecord,
    TaskRecord,
    WorkerRecord,
    attempt_text,
    prefixes_of,
)
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.transitions import ActorTaskEnded, ActorUnwanted, GuestTaskEnded, RemakeEnded, StreamMakerEnded
from zfabric.protocol import messages as m
from zfabric.protocol.failures import Facts, pack_failure
from zfabric.protocol.ids import TASK_BYTES, WORKER, next_attempt, object_id, split_ids, tries_of
from zfabric.protocol.inside import refs_in
from zfabric.protocol.messages import ERROR, FAILED, HOLD, INTERRUPTED, LOST, OK, RETRY, STAYS
from zfabric.protocol.names import brief, size
from zfabric.protocol.trace import marked

_SMALL = frozenset((bytes,))
"""Types that travel with an outcome."""
_LARGE = frozenset((Stored, Elsewhere))


class Crash(NamedTuple):
    """How a task's worker died; also the output of a ``LOST`` attempt."""

    suspect: bool
    """Whether it was running the task."""
    pid: int
    exit_code: int
    signal: int
    peak: int
    """Most memory that it had, in bytes."""
    stderr: str
    memory: bool


DelegatedEnd: TypeAlias = tuple[TaskRecord | RefusedRow, int, m.Row, tuple[m.Row, m.Row] | None, m.Ids]
"""Task, status, outputs, extra as in ``Completed``, refs inside, pinned."""
NAMED_MOST = 3
ALONE_AFTER = 2
"""Crashes after which nothing is behind a task on its worker."""
STOPPED = {
    "cancelled": "TaskCancelledError",
    "force": "TaskCancelledError",
    "timeout": "TaskTimeoutError",
    "run_timeout": "TaskTimeoutError",
    "killed": "ActorDiedError",
}


_MARKS = {RETRY: "retried", INTERRUPTED: "cancelled"}
"""Timeline marks by status; other failures are marked as failed."""


class Outcomes:
    """Accepts outcomes; retries and fails tasks."""

    def __init__(self, tables: Tables, references: References, node: bytes) -> None:
        self.tables = tables
        self.references = references
        self.node = node
        self.renamed: dict[int, str] = {}
        """Timeline names of the last batch, by index, where they differ from the function's or the attempt failed."""
        self.with_inputs: TurnOutbox[TaskRecord] = TurnOutbox()
        """Tasks with dependencies that became ready, if there are other nodes."""
        self.touched: dict[ProcessRecord, None] = {}
        """Processes with results to send in this turn."""
        self.delegated_ends: TurnOutbox[DelegatedEnd] = TurnOutbox()
        """Ends of delegated attempts to report."""
        self.ended_entrusted: TurnOutbox[TaskRecord] = TurnOutbox()
        """Tasks of other homes' jobs that ended, and that these homes have as unfinished."""
        self.ready_changes = 0
        """Counts changes of what is ready: a failed search is repeated only after one."""
        self.usual_seconds = 0.0
        """Exponential average of running times."""
        self._ending = False
        self._failing: deque[tuple[TaskRecord, int, bytes]] = deque()
        """Failures to apply: a queue and not recursion, since chains are long."""

    # -- completions --

    def completed(self, worker: WorkerRecord, message: m.Completed, now: float) -> None:
        """Accept a worker's ends of attempts."""
        tables = self.tables
        inflight = worker.inflight
        for function_id, count, seconds in message.durations:
            job = worker.job
            for functions in (job.functions, job.delegated) if job is not None and count > 0 else ():
                function = functions.get(function_id)
                if function is not None:
                    function.learn(count, seconds)
                    self.usual_seconds += (seconds / count - self.usual_seconds) * 0.2
        extras = {index: (contained, kept) for index, contained, kept in message.extras} if message.extras else {}
        processes, touched, spare = tables.processes, self.touched, self.references.to_collect
        lease = worker.direct
        inline_bytes = 0
        renamed = self.renamed = {}
        rows = zip(split_ids(message.task_ids, TASK_BYTES), message.attempts, message.statuses, message.outputs, strict=True)
        for index, (task_id, attempt, status, outputs) in enumerate(rows):
            task = inflight.pop(task_id, None)
            if task is None or task.attempt != attempt:
                if task is not None and task.state == DONE:
                    self._stopped_at_last(task, worker, attempt)
                elif task is not None:
                    inflight[task_id] = task
                elif lease is not None and task_id not in tables.tasks:
                    if status != OK:
                        renamed[index] = marked("", _MARKS.get(status, "failed"))
                    self._ended_early(lease, (task_id, attempt, status, outputs), extras.get(index))
                    continue
                self._late(worker, task_id, attempt, outputs)
                continue
            directly = lease is not None and task_id in lease.submitted
            if directly:
                lease.submitted.discard(task_id)  # type: ignore[union-attr]
            function = task.function
            if function.mean is not None:
                worker.work -= function.mean
            if status == OK and task.outputs is None and len(outputs) == 1 and type(outputs[0]) is bytes and not extras and function.plain:
                # The plain case, in place: one small value.
                task.finish_assigned()
                task.status = OK
                task.value = outputs[0]
                inline_bytes += len(outputs[0])
                row = task.row
                if (row[3] or len(row) > 4) and not (task.rare is not None and task.rare.common):
                    self._unpin_row(task)
                    if len(row) > 4:
                        renamed[index] = task.name
                if task.dependents is not None or task.fetchers is not None:
                    self.announce(task)
                process = processes.get(task.submitter)
                if directly and not lease.over:  # type: ignore[union-attr]
                    lease.sent.append(task)  # type: ignore[union-attr]
                elif process is not None:
                    process.results.append((task_id, OK, outputs if task.holders is not None else ()))
                    touched[process] = None
                if task.rare is not None:
                    self._send_to_others(task, OK, outputs)
                if task.holders is None:
                    spare.append(task)
            else:
                if status != OK or len(task.row) > 4:
                    renamed[index] = self._called(task, status, outputs)
                self._settle(worker, task, status, outputs, extras.get(index))
        worker.last_progress = now
        tables.inline.count(inline_bytes)
        if worker.work < 0.0 or not inflight:
            worker.work = 0.0

    def _ended_early(self, lease: DirectLease, row: m.Row, extra: m.Row | None) -> None:
        lease.early[row[0]] = (row, extra)
        self.references.pin(contained_in(row, extra))

    def _called(self, task: TaskRecord, status: int, outputs: m.Row) -> str:
        if status == OK:
            return task.name
        mark = _MARKS.get(status, "failed")
        if status == INTERRUPTED and outputs in ((b"timeout",), (b"run_timeout",)):
            mark = "timed out"
        elif status == RETRY and not self._may_retry(task):
            mark = "failed"
        return marked(task.name, mark)

    def _settle(self, worker: WorkerRecord, task: TaskRecord, status: int, outputs: m.Row, extra: tuple[m.Row, m.Row] | None) -> None:
        if task.function.stream is not None:
            self._recorded(worker, task.id)
        if task.function.delegated:
            self._end_delegated(task, status, outputs, extra)
            return
        stopped = task.rare.stopped if task.rare is not None else ""
        if status == INTERRUPTED:  # An earlier daemon may have requested it: the outcome has the reason.
            reason = next((each for each in STOPPED if (each.encode(),) == outputs), stopped)
            kind = STOPPED.get(reason, "TaskCancelledError")
            self.fail(task, kind, stopped_text(task, reason) + _BEGUN.get(reason, ""), self._facts(task, worker))
        elif status == RETRY and not stopped and self._may_retry(task):
            task.facts().history.append("raised an exception its options say to retry")
            self.again(task)
        elif status in (ERROR, RETRY):
            self._finish(task, ERROR, outputs[0] if outputs else b"")
        elif status == LOST:
            self._lost_elsewhere(task, worker, outputs)
        elif status == STAYS:
            task.facts().stays = True
            self._detach(task)
            self.renumber(task)
            self.make_ready(task, front=True)
        elif status == FAILED:
            self._finish(task, FAILED, outputs[0] if outputs else pack_failure("FabricError", "the worker gave no reason"))
        elif task.function.stream is not None and (stream := self.tables.streams.get(task.id)) is not None and not stream.whole:
            self._once_more(task)  # Values were lost, with a daemon or since they were yielded.
        else:
            self._accept_values(worker, task, outputs, extra)

    def _accept_values(self, worker: WorkerRecord, task: TaskRecord, outputs: m.Row, extra: tuple[m.Row, m.Row] | None) -> None:
        task.function.learn_size(outputs)
        values = task.values()
        if len(outputs) != len(values):
            self.fail(task, "FabricError", f"{task.name} gave {len(outputs)} values where {len(values)} were declared", ())
            self._late(worker, task.id, task.attempt, outputs)
            return
        contained = extra[0] if extra is not None else ()
        droppable = self.references.may_be_dropped(task)
        for index, (record, value) in enumerate(zip(values, outputs, strict=True)):
            if record.is_here:
                self.drop_copy(worker, record.object_id, value)
                continue
            refs = contained[index] if index < len(contained) else ()
            self.set_value(record, value, refs, worker.process.incarnation if worker.process else b"", droppable)
        self._done(task, OK)

    def set_value(self, record: AnyObject, value: object, refs: tuple[bytes, ...], writer: bytes, rebuildable: bool) -> None:
        """Record a value: inline bytes, a place in the arena written by ``writer``, or the size of a value at the node ``writer``."""
        if isinstance(value, tuple):
            offset, size = value
            record.arrive(Stored(size), self.tables.inline)
            self.tables.store.seal(record.object_id, offset, size, writer, rebuildable)
        elif isinstance(value, int):
            record.arrive(Elsewhere(value, writer), self.tables.inline)
        elif isinstance(value, bytes):
            record.arrive(value, self.tables.inline)
        self.contain(record, refs)

    def set_failure(self, record: AnyObject, status: int, payload: bytes) -> None:
        """Record a failure for a value."""
        record.fail(status, payload, self.tables.inline)
        self.tables.note_failure(record)
        refs = refs_in(payload)
        if refs or record.contained:
            self.contain(record, refs)

    def contain(self, record: AnyObject, refs: tuple[bytes, ...]) -> None:
        """Pin what is inside a value, and unpin what was."""
        before = record.contain(refs)
        if refs:
            self.references.pin(refs)
        if before:
            self.references.unpin(before)  # A rebuilt value may have other refs inside.

    def _late(self, worker: WorkerRecord, task_id: bytes, attempt: int, outputs: m.Row) -> None:
        stream = self.tables.streams.get(task_id)
        if stream is not None and stream.actor:
            self._unreadable(worker, stream, outputs)
            return
        self.tables.count("late_completions")
        self._recorded(worker, task_id)
        if worker.shared:
            self.tables.report(ActorUnwanted(worker, task_id, attempt))
        for index, value in enumerate(outputs):
            self.drop_copy(worker, object_id(task_id, index), value)

    def _unreadable(self, worker: WorkerRecord, stream: StreamRecord, outputs: m.Row) -> None:
        """Fail a call's stream whose values were refused (``refusals``). The call goes on."""
        actor = self.tables.actors.get(stream.actor)
        if actor is not None and actor.worker is worker:
            failure = next((value for value in outputs if type(value) is bytes), b"")
            self.tables.report(StreamMakerEnded(stream.owner.object_id[:TASK_BYTES], FAILED, failure))

    def _recorded(self, worker: WorkerRecord, task_id: bytes) -> None:
        """Have a worker release what it retains of a stream, behind its end."""
        if worker.process is not None and not worker.remote:
            self.tables.send(WORKER + worker.process.incarnation, m.OutcomesRecorded((task_id,)))

    def drop_copy(self, worker: WorkerRecord, identifier: bytes, value: object) -> None:
        """Free a second copy of a value, under an id of its own, or have its node drop it."""
        if isinstance(value, int) and worker.remote:
            record = self.tables.find(identifier)
            there = record is not None and isinstance(record.value, Elsewhere) and record.value.place == worker.token
            if record is None or record.home or not (there or record.status == PENDING):
                self.tables.ledger.end(worker.token, HOLD, identifier)
        if isinstance(value, tuple) and self.tables.store.address is not None:
            name = b"\xff" * 4 + identifier[4:16] + int(value[0] % 2**32).to_bytes(4, "big")
            writer = worker.process.incarnation if worker.process else b""
            self.tables.store.seal(name, value[0], value[1], writer, False)
            self.tables.store.free(name)

    # -- endings --

    def fail(self, task: TaskRecord, kind: str, text: str, facts: Facts) -> None:
        """Fail a task with an error of the fabric."""
        self._finish(task, FAILED, pack_failure(kind, text, facts))

    def stopped(self, task: TaskRecord, reason: str) -> None:
        """Fail an undispatched task: cancelled, or past its deadline."""
        task.facts().stopped = reason
        kind = STOPPED[reason]
        ready = task.state == READY
        text = stopped_text(task, reason)
        if reason == "timeout":
            text += f": it had not begun, and {waits_for(self.tables, task)}"
        self.fail(task, kind, text, (("task", task.id.hex()), ("function", task.name)))
        if ready:
            self.tables.queue_of(task).stop_one()

    def give_up(self, task: TaskRecord) -> None:
        """Fail a task that does not stop. Its worker remains busy; its report will be late."""
        rare, worker = task.facts(), task.worker
        assert worker is not None
        kind = STOPPED[rare.stopped]
        facts = self._facts(task, worker)
        rare.running_on = worker
        if worker.direct is not None:
            worker.direct.submitted.discard(task.id)
        self.renumber(task)
        self.tables.count("tasks_given_up")
        why = f"does not stop: it goes on in worker {worker.pid} and holds its resources until it ends"
        if isinstance(worker, NodeRecord):  # That node reports its end, if it lives.
            why = f"{worker.name} does not report that it has stopped: it holds its resources there until it ends"
        self.fail(task, kind, f"{stopped_text(task, rare.stopped)}, and {why}", facts)

    def still_running(self, task: TaskRecord, worker: WorkerRecord) -> None:
        """Enter an ended task that a worker still runs, after a restart."""
        task.facts().running_on = worker
        worker.inflight[task.id] = task
        self.renumber(task)

    def _stopped_at_last(self, task: TaskRecord, worker: WorkerRecord, attempt: int) -> None:
        task.facts().running_on = None
        if worker.remote and task.function.actor is not None:
            self.tables.report(ActorUnwanted(worker, task.id, attempt))
        if task.function.mean is not None:
            worker.work -= task.function.mean

    def end_with(self, task: TaskRecord, status: int, payload: bytes) -> None:
        """End a task with a dependency's failure."""
        self._finish(task, status, payload)

    def wait_again(self, task: TaskRecord, absent: Sequence[AnyObject]) -> None:
        """Have an unsent task wait for missing inputs."""
        self._detach(task)
        task.wait(len(absent))
        for record in absent:
            record.add_dependent(task)

    def adopt(self, task: TaskRecord) -> None:
        """Finish a task whose values were offered."""
        self._detach(task)
        self._unpin_row(task)
        task.finish()
        for record in task.values():
            self.announce(record)
            if record.holders is None:
                self.references.to_collect.append(record)

    def send_results(self) -> None:
        """Send this turn's results."""
        for process in self.touched:
            rows, process.results = process.results, []
            for start in range(0, len(rows), ROWS_MAX):
                self.tables.send_to_client(process, m.Results(tuple(rows[start : start + ROWS_MAX])))
        self.touched.clear()

    def add_result(self, process: ProcessRecord, task_id: bytes, status: int, outputs: m.Row) -> None:
        """Send a process the result of a task at the end of this turn."""
        process.results.append((task_id, status, outputs))
        self.touched[process] = None

    def take_last_result(self, process: ProcessRecord) -> m.Row:
        """Take back the last result of a process."""
        row = process.results.pop()
        if not process.results:
            del self.touched[process]
        return row

    def process_gone(self, process: ProcessRecord) -> None:
        """Drop the results of a process that is gone."""
        self.touched.pop(process, None)

    def report_to(self, process: ProcessRecord, task: TaskRecord) -> None:
        """Report an outcome to a repeated submitter."""
        failed = next((record for record in task.values() if record.status != OK), None)
        if failed is not None:
            status, row = self._failure_of(task, failed.status, failed.value if type(failed.value) is bytes else b"")
        else:
            status, row = OK, tuple(_pushed(record) for record in task.values())
        self.add_result(process, task.id, status, row)

    def _failure_of(self, task: TaskRecord, status: int, payload: bytes) -> tuple[int, m.Row]:
        """Status and values of a failed task: if some exist, the submitter fetches each."""
        values = task.values()
        return (OK, (None,) * len(values)) if any(record.status == OK for record in values) else (status, (payload,))

    def _finish(self, task: TaskRecord, status: int, payload: bytes) -> None:
        self._failing.append((task, status, payload))
        self._fail_all()

    def _fail_all(self) -> None:
        """Apply queued failures and what follows. Nested calls leave that to the outermost."""
        if self._ending:
            return
        self._ending = True
        while self._failing:
            self._finish_one(*self._failing.popleft())
        self._ending = False

    def _finish_one(self, task: TaskRecord, status: int, payload: bytes) -> None:
        if task.state == DONE:
            return
        if task.function.delegated:
            self._end_delegated(task, status, (payload,), None)
            return
        values = task.values()
        for record in values:
            if record.is_here:
                continue
            self.set_failure(record, status, payload)
        self.tables.count("tasks_failed")
        task.function.failed += 1
        if status == FAILED and task.block is not None:  # The next daemon must not run it again.
            self.references.blocks.withdraw(task.id, task.block)
            task.block = None
        self._done(task, status, payload)

    def _done(self, task: TaskRecord, status: int, payload: bytes = b"") -> None:
        worker = task.worker
        task.finish()
        if worker is not None:
            if task.rare is None or task.rare.running_on is None:
                worker.inflight.pop(task.id, None)
            self._unpin_places(worker, task)
        if task.function.actor is not None:
            ended = RemakeEnded if task.id in self.tables.remakes else ActorTaskEnded
            self.tables.report(ended(task, worker, status, payload))
        if task.function.stream is not None:
            self.tables.report(StreamMakerEnded(task.id, status, payload))
        self._unpin_row(task)
        for record in reversed(task.values()):  # The reader of the first value is announced last, and runs first.
            self.announce(record)
            if record.holders is None:
                self.references.to_collect.append(record)
        if task.outputs == ():
            task.end_as(status)
            self.references.to_collect.append(task)
        process = self.tables.processes.get(task.submitter)
        if status == OK:
            row: m.Row = tuple(_pushed(record) for record in task.values())
        else:
            status, row = self._failure_of(task, status, payload)
        if process is not None:
            process.results.append((task.id, status, row))
            self.touched[process] = None
        if task.rare is not None:
            self._send_to_others(task, status, row)

    def _end_delegated(self, task: TaskRecord, status: int, outputs: m.Row, extra: tuple[m.Row, m.Row] | None) -> None:
        """Queue the end of a delegated attempt for its home, and drop the task."""
        worker = task.worker
        if worker is not None and status == OK and extra is None and task.function.actor is None and _SMALL.issuperset(map(type, outputs)):
            row = task.row  # Most are plain: small values without refs.
            if row[3] or len(row) > 4:
                self.remove_delegated(task)
            else:
                task.finish()
                worker.inflight.pop(row[0], None)
                del self.tables.tasks[row[0]]
            self.delegated_ends.append((task, OK, outputs, None, ()))
            return
        contained = contained_in((task.id, task.attempt, status, outputs), extra) if status != LOST else ()
        if not all(map(self.references.may_travel, contained)):
            for index, value in enumerate(outputs):
                if worker is not None:
                    self.drop_copy(worker, object_id(task.id, index), value)
            status, outputs, extra, contained = STAYS, (), None, ()
        elif status == OK and worker is not None:
            task.function.learn_size(outputs)
            refs = extra[0] if extra is not None else ()
            outputs = tuple(
                self.retain_for_home(object_id(task.id, index), task.submitter, worker, value, refs[index] if index < len(refs) else ())
                for index, value in enumerate(outputs)
            )
        self.references.pin(contained)
        self.remove_delegated(task)
        self.delegated_ends.append((task, status, outputs, extra, contained))
        if task.function.actor is not None:
            self.tables.report(GuestTaskEnded(task, worker if status != LOST else None, status))

    def remove_delegated(self, task: TaskRecord) -> None:
        """Remove a delegated task."""
        worker = task.worker
        task.finish()
        if worker is not None:
            worker.inflight.pop(task.id, None)
            self._unpin_places(worker, task)
        self._unpin_row(task)
        self.tables.drop_task(task.id)

    def retain_for_home(self, identifier: bytes, home: bytes, worker: WorkerRecord, value: object, refs: m.Ids) -> object:
        """Retain a large value for its home. Return its size, or a small value."""
        if not isinstance(value, tuple):
            return value
        record = self.tables.find(identifier)
        if record is None:
            record = self.tables.refer(identifier, home)
        record.add_holder(home)
        if record.is_here:
            self.drop_copy(worker, identifier, value)
        else:
            self.set_value(record, value, refs, worker.process.incarnation if worker.process else b"", False)
            self.announce(record)
            self.references.to_collect.append(record)  # Requests for it may have ended meanwhile.
        return value[1]

    def _lost_elsewhere(self, task: TaskRecord, node: WorkerRecord, outputs: m.Row) -> None:
        crash = Crash(*unpack_row(outputs[0])) if outputs and type(outputs[0]) is bytes else Crash(False, 0, 0, 0, 0, "", False)
        if crash.suspect:
            self._crashed(task, node, crash)
        else:
            self._detach(task)
            self.renumber(task)
            self.make_ready(task, front=True)

    def node_lost(self, node: WorkerRecord) -> None:
        """Run again what a dead node had. What killed a worker there is unknown."""
        for task in reversed(list(node.inflight.values())):
            self.attempt_lost(task, node)
        node.inflight.clear()

    def attempt_lost(self, task: TaskRecord, node: WorkerRecord) -> None:
        """Run a task again whose attempt is lost, unless it was being stopped.

        The attempt may have begun: a task that must not run twice fails.
        """
        stopped = task.rare.stopped if task.rare is not None else ""
        if task.state == DONE:
            task.facts().running_on = None
        elif stopped in STOPPED:
            kind = STOPPED[stopped]
            self.fail(task, kind, stopped_text(task, stopped), self._facts(task, node))
        elif task.function.actor is None and task.option("max_retries", self.tables.config.max_retries) == 0:
            text = f"{task.name} may have run on a node that is lost, or whose daemon died, and max_retries=0 forbids another attempt"
            self.fail(task, "WorkerCrashedError", text, self._facts(task, node))
        else:
            self._detach(task)
            self.renumber(task)
            self.make_ready(task, front=True)

    def _send_to_others(self, task: TaskRecord, status: int, row: m.Row) -> None:
        rare = task.rare
        if rare is None or rare.common:
            return
        if rare.submitters:
            for incarnation in set(rare.submitters) - {task.submitter}:
                process = self.tables.processes.get(incarnation)
                if process is not None:
                    self.add_result(process, task.id, status, row)
            rare.submitters = ()
        if rare.unfinished:
            rare.unfinished = False
            self.ended_entrusted.append(task)

    def _unpin_row(self, task: TaskRecord) -> None:
        row = task.row
        if row[3]:
            self.references.unpin(row[3])
        if len(row) > 4:
            self.references.unpin(task.contains())

    def announce(self, record: AnyObject) -> None:
        """Continue tasks and answer requests that wait for a value."""
        for dependent in reversed(record.take_dependents()):  # The last to become ready goes to the head of its queue.
            if dependent.state != WAITING:
                continue
            if record.status != OK:
                self._failing.append((dependent, record.status, record.value if type(record.value) is bytes else b""))
                continue
            rare = dependent.facts()
            rare.unresolved -= 1
            if rare.unresolved <= 0:
                self.tables.latencies.waited(rare.waits_since)
                self.make_ready(dependent, True)
        for incarnation in record.take_fetchers():
            process = self.tables.processes.get(incarnation)
            if process is not None:
                self.hand_over(record, process.incarnation)
        if self._failing:
            self._fail_all()

    def settle_value(self, record: AnyObject, status: int, payload: bytes) -> None:
        """Record a value that no task makes."""
        if status == OK:
            record.arrive(payload, self.tables.inline)
        else:
            self.set_failure(record, status, payload)
        self.announce(record)
        if record.holders is None:
            self.references.to_collect.append(record)

    def hand_over(self, record: AnyObject, incarnation: bytes) -> None:
        """Send a value: an inline one at once, else when it is located."""
        if incarnation in self.tables.nodes:
            self.tables.transfers.for_nodes.append((incarnation, record))
        elif isinstance(record.value, Elsewhere):
            record.add_fetchers(incarnation)
            self.tables.transfers.want(record)
        elif type(record.value) is Stored:
            self.tables.store.locate_for(record.object_id, incarnation)
        else:
            process = self.tables.processes.get(incarnation)
            if process is not None:
                self.tables.send_to_client(process, m.Objects(((record.object_id, record.status, record.value, record.contained),)))

    def make_ready(self, task: TaskRecord, front: bool = False) -> None:
        """Queue a ready task, in ``front`` if an input was just made or it was ready before."""
        task.ready()
        self.ready_changes += 1
        queue = self.tables.queue_of(task)
        if task.rare is not None and task.rare.demand_queue is queue and queue.token not in self.tables.queues and not queue.job.ended:
            queue = task.rare.demand_queue = self.tables.queues.of(queue.job, queue.shape)  # The queue was removed while unneeded.
        if not task.row[3]:
            line = queue.tasks
        else:
            line = queue.consumers if front or self.reads_large(task) else queue.tasks
            if self.tables.nodes:
                self.with_inputs.append(task)
                front = front and not self.reads_elsewhere(task)
        if front:
            line.appendleft(task)
        else:
            line.append(task)

    def note_ready(self) -> None:
        """Note that tasks became ready, or went where others may wait for them."""
        self.ready_changes += 1

    def reads_large(self, task: TaskRecord) -> bool:
        """Whether a task reads an existing large value."""
        return any(type(record.value) in _LARGE for record in map(self.tables.find, task.row[3]) if record is not None)

    def reads_elsewhere(self, task: TaskRecord) -> bool:
        """Whether a task reads another node's large value."""
        return any(type(record.value) is Elsewhere for record in map(self.tables.find, task.row[3]) if record is not None)

    def resolved(self, task: TaskRecord) -> None:
        """Count down what a task waits for."""
        if task.state == WAITING:
            facts = task.facts()
            facts.unresolved -= 1
            if facts.unresolved <= 0:
                self.make_ready(task)

    # -- running again --

    def again(self, task: TaskRecord, front: bool = True) -> None:
        """Run a task's next attempt."""
        task.facts().retries += 1
        self._once_more(task, front)

    def _once_more(self, task: TaskRecord, front: bool = True) -> None:
        self.tables.count("retries")
        self._detach(task)
        self.renumber(task)
        if task.function.actor is not None or not self.tables.barrier.awaits(NODES):
            self.make_ready(task, front)
        else:  # The earlier daemon may have done the same: another node may have that attempt.
            task.wait(1)
            self.tables.unsettled[task] = None

    def give_back(self, tasks: Iterable[TaskRecord]) -> None:
        """Requeue unbegun tasks at the head, as the same attempt; end those being stopped."""
        for task in reversed(list(tasks)):
            if task.state == DONE:
                if task.rare is not None and task.rare.running_on is not None:  # It was given up before it began.
                    task.rare.running_on.inflight.pop(task.id, None)
                    task.rare.running_on = None
                continue
            reason = task.rare.stopped if task.rare is not None else ""
            if reason:
                self.stopped(task, reason)
                continue
            self._detach(task)
            self.make_ready(task, front=True)

    def renumber(self, task: TaskRecord) -> None:
        """Number a task's next attempt."""
        task.attempt = next_attempt(task.attempt, self.tables.first_attempt)

    def _detach(self, task: TaskRecord) -> None:
        worker = task.worker
        if worker is not None:
            if worker.direct is not None:
                worker.direct.submitted.discard(task.id)
            if worker.inflight.pop(task.id, None) is not None and task.function.mean is not None:
                worker.work = max(0.0, worker.work - task.function.mean)
            self._unpin_places(worker, task)

    def _unpin_places(self, worker: WorkerRecord, task: TaskRecord) -> None:
        if task.rare is None or task.rare.wait_locations is None:
            return
        places, task.rare.wait_locations = task.rare.wait_locations, None
        rows = tuple((object_id, OK, place, ()) for object_id, place in places.items() if type(place) is tuple)
        if rows and worker.process is not None:
            self.tables.send_to_client(worker.process, m.Objects(rows))

    def _may_retry(self, task: TaskRecord) -> bool:
        limit: int = task.option("max_retries", self.tables.config.max_retries)
        return limit < 0 or (task.rare.retries if task.rare is not None else 0) < limit

    def worker_lost(self, worker: WorkerRecord, died: m.ProcessDied) -> set[bytes]:
        """Requeue, retry or fail a dead worker's tasks. Only the running one is suspected.

        Return the id prefixes of the children of its void attempts.
        """
        inflight = list(worker.inflight.values())
        void: set[bytes] = set()
        suspect = self.suspect(worker, died.executing)
        begun = len(inflight) if suspect is None else inflight.index(suspect)
        for task in inflight[:begun]:
            task.facts().buried = True
        for task in reversed(inflight):
            if task.state == DONE:
                task.facts().running_on = None
                continue
            stopped = task.rare.stopped if task.rare is not None else ""
            memory = worker.kill_reason == "memory"
            crash = Crash(task is suspect, worker.pid, died.exit_code, died.signal, died.peak, died.stderr, memory)
            if stopped in STOPPED:
                kind = STOPPED[stopped]
                self.fail(task, kind, stopped_text(task, stopped), self._facts(task, worker))
            elif task.function.delegated:
                void |= prefixes_of(task)
                self._end_delegated(task, LOST, (pack_row(crash),), None)
            elif task is suspect:
                self._crashed(task, worker, crash)
            else:
                self._detach(task)
                # It may have begun, or even ended unreported: a late report must not count.
                self.renumber(task)
                self.make_ready(task, front=True)
        worker.inflight.clear()
        worker.blocked_tasks.clear()
        return void.union(*(prefixes_of(task) for task in inflight if task.state != DONE))

    def suspect(self, worker: WorkerRecord, executing: bytes) -> TaskRecord | None:
        """What a dead worker was running: the task that it named, else the first that did not wait."""
        if executing:
            return worker.inflight.get(executing)
        inflight = worker.inflight.values()
        waiting = {blocked.task_id for blocked in worker.blocked_tasks}
        return next((task for task in inflight if task.id not in waiting), None) if not waiting else None

    def _crashed(self, task: TaskRecord, worker: WorkerRecord, died: Crash) -> None:
        rare = task.facts()
        rare.crashes += 1
        if rare.crashes > ALONE_AFTER:
            rare.alone += 1
        memory = died.memory
        how = f"signal {died.signal}" if died.signal else f"exit code {died.exit_code}"
        if memory:
            how = f"the node ran out of memory, and this worker had the most beyond its reservation: {size(died.peak)} in all"
        rare.history.append(f"attempt {tries_of(task.attempt) + 1}: worker {died.pid}: {how}")
        if rare.alone >= self.tables.config.poison_kills:
            kind = "PoisonedTaskError"
            text = f"{task.name} killed every worker it was given ({rare.crashes}), {rare.alone} of them while it ran alone"
        elif self._may_retry(task):
            self.again(task)
            attempt = attempt_text(task, self.tables.config.max_retries)
            died_of = (
                how
                if memory
                else f"its worker (pid {died.pid}) died of {how}"
                if died.signal
                else f"its worker (pid {died.pid}) ended with {how}"
            )
            self.tables.notify_again(task.function.queue.job, f"{task.name} ({brief(task.id)}) runs again, attempt {attempt}: {died_of}")
            return
        else:
            kind = "OutOfMemoryError" if memory else "WorkerCrashedError"
            text = f"the worker running {task.name} died: {how}; after {rare.crashes} crash(es) no retry is left"
        text += "".join(f"\n  {line}" for line in rare.history)
        if died.stderr:
            text += "\nlast lines of its stderr:\n" + died.stderr
        facts = (
            *self._facts(task, worker, died.pid),
            ("signal", died.signal),
            ("exit_code", died.exit_code),
            ("peak", died.peak),
            ("stderr", died.stderr),
        )
        self.fail(task, kind, text, facts)

    def _facts(self, task: TaskRecord, worker: WorkerRecord, pid: int = 0) -> Facts:
        return (
            ("task", task.id.hex()),
            ("function", task.name),
            ("node", (worker.token if worker.remote else self.node).hex()),
            ("pid", pid or worker.pid),
            ("attempt", tries_of(task.attempt)),
        )


def contained_in(row: m.Row, extra: m.Row | None) -> tuple[bytes, ...]:
    """Refs inside a completion's values or error."""
    if extra is not None:
        return tuple(identifier for refs in extra[0] for identifier in refs)
    return refs_in(row[3][0]) if row[2] != OK and row[3] else ()


def _pushed(record: AnyObject) -> bytes | None:
    """What goes with an outcome: an inline value without refs.

    Not a stream's end: its submitter retains the row, which can rebuild lost values.
    """
    if type(record) is TaskRecord and record.function.stream is not None:
        return None
    return record.value if type(record.value) is bytes and record.holders is not None and not record.contained else None


_BEGUN = {"timeout": ": it had begun"}


def stopped_text(task: TaskRecord, reason: str) -> str:
    """A stopped task, described."""
    if reason == "run_timeout":
        return f"{task.name} ran longer than its run_timeout of {task.option('run_timeout')} s"
    if reason == "timeout":
        return f"{task.name} had no outcome within its timeout of {task.option('timeout')} s"
    return f"{task.name} was killed (zf.kill) while it was being made" if reason == "killed" else f"{task.name} was cancelled"


def waits_for(tables: Tables, task: TaskRecord) -> str:
    """Arguments, resources, or tasks before it."""
    if task.state == WAITING:
        missing = [each for each in task.row[3] if (record := tables.find(each)) is not None and record.status == PENDING]
        makers = (record.task for each in missing[:NAMED_MOST] if (record := tables.find(each)) is not None)
        names = ", ".join(f"{brief(maker.id)} ({maker.name})" for maker in makers if maker is not None)
        return f"waited for {len(missing)} of its arguments{names and ': '}{names}"
    if isinstance(task.worker, NodeRecord):
        return f"was on node {task.worker.name}"
    if task.worker is not None:
        first = next((each for each in task.worker.inflight.values() if each is not task), None)
        behind = f", behind {brief(first.id)} ({first.name})" if first is not None else ""
        return f"was queued in worker {task.worker.pid}{behind}"
    queue = tables.queue_of(task)
    held = [each for worker in queue.leased.values() for each in worker.inflight.values()]
    others = ", ".join(f"{brief(each.id)} ({each.name})" for each in held[:NAMED_MOST])
    if queue.pool.fits(queue.demand):
        return f"waited for a worker, with {len(queue)} tasks in its queue"
    behind = f", which {others}{' and more' if len(held) > NAMED_MOST else ''} had" if others else ", which others had"
    return f"waited for {describe(queue.demand)}{behind}; {len(queue)} tasks were in its queue"
