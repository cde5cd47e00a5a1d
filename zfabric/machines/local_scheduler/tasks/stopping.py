"""Stopping tasks: cancellation, with or without force and children, and deadlines (decision 0008).

An undispatched task is stopped at once. The worker of a dispatched one is asked repeatedly until an outcome arrives; if the task ends
first, its own outcome counts. After ``stop_patience`` the task receives its outcome while its worker still runs it, and after
``stop_grace_seconds``, if set, the worker is killed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from zfabric.config import ROWS_MAX
from zfabric.machines.common.deadlines import Deadlines
from zfabric.machines.local_scheduler.due import STOPPING
from zfabric.machines.local_scheduler.object_places import PENDING
from zfabric.machines.local_scheduler.records import ASSIGNED, DONE, READY, WAITING, TaskRecord, WorkerRecord, prefixes_of
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import STOPPED, Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.effects import KillProcess
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import (
    CLIENT,
    FIRST_RETURN,
    JOB_BYTES,
    LOCAL_SCHEDULER,
    PREFIX_BYTES,
    TASK_BYTES,
    Address,
    child_prefix,
    is_call,
    salt_of,
    tries_of,
)
from zfabric.protocol.messages import FAILED
from zfabric.protocol.options import option

CONDEMNED_MAX = 100_000
"""Remembered id prefixes of cancelled children: more than tasks have before they stop."""


class Stopping:
    """Requests to stop tasks."""

    def __init__(self, tables: Tables, outcomes: Outcomes) -> None:
        self.tables = tables
        self.outcomes = outcomes
        self._deadlines = Deadlines(self._has_no_end)
        self.cancelled: dict[str, tuple[list[TaskRecord], list[bytes]]] = {}
        """What was cancelled recursively in this turn, by reason: tasks, calls."""
        self.condemned: dict[bytes, None] = {}
        """Id prefixes of children to cancel."""
        self._asked: dict[bytes, float] = {}
        """Dispatched tasks to stop, and when to ask again."""
        self._since: dict[bytes, float] = {}
        self._given_up: dict[bytes, tuple[TaskRecord, m.Interrupt]] = {}
        """Running tasks with an outcome, and the request to their workers."""
        self._graces: dict[bytes, tuple[float, TaskRecord]] = {}
        """Of these, when their workers are killed."""

    def expect(self, task: TaskRecord, deadline: float) -> None:
        """Set the deadline of a task."""
        self._deadlines.add(deadline, task.id)
        self.tables.deadlines.note(STOPPING, deadline)

    def expect_run(self, task: TaskRecord, now: float) -> None:
        """Set the end of a limited attempt that begins."""
        rare = task.facts()
        if rare.run_timeout is not None:
            rare.run_until = now + rare.run_timeout
            self._deadlines.add(rare.run_until, task.id)
            self.tables.deadlines.note(STOPPING, rare.run_until)

    def _has_no_end(self, deadline: float, task_id: bytes) -> bool:
        task = self.tables.tasks.get(task_id)
        return task is not None and task.state != DONE

    def tick(self, now: float) -> None:
        """Stop tasks past their deadline; repeat due requests."""
        for task_id in self._deadlines.due(now):
            task = self.tables.tasks.get(task_id)
            rare = task.rare if task is not None else None
            if task is None or rare is None:
                continue
            if rare.deadline is not None and now >= rare.deadline:
                self.stop(task, "timeout", now)
            elif rare.run_until is not None and now >= rare.run_until and task.state == ASSIGNED:
                self.stop(task, "run_timeout", now)
        for task_id, due in list(self._asked.items()):
            if now >= due:
                self._repeat(task_id, now)
        for task_id, (due, task) in list(self._graces.items()):
            if now >= due:
                grace = self.tables.config.stop_grace_seconds
                if self._kill(task, f"task {task.name} was stopped and did not end within {grace} s"):
                    self._graces[task_id] = now + grace, task
                else:
                    del self._graces[task_id]

    def next_deadline(self) -> float | None:
        """The next deadline or repeated request."""
        if not (self._asked or self._graces or len(self._deadlines)):
            return None
        soonest = self._deadlines.next()
        candidates = [] if soonest is None else [soonest]
        candidates.extend(self._asked.values())
        candidates.extend(due for due, _ in self._graces.values())
        return min(candidates, default=None)

    def on_cancel(self, now: float, source: Address, message: m.Cancel) -> None:
        """Stop tasks. Children (``recursive``) are searched once per turn."""
        if source[:1] == LOCAL_SCHEDULER and source[1:] not in self.tables.nodes:
            return
        self._cancel(now, source, message)

    def _cancel(self, now: float, source: Address, message: m.Cancel) -> None:
        self._pass_on(source, message)
        reason = "force" if message.force else "cancelled"
        tasks = [record.task for record in map(self.tables.find, message.object_ids) if record is not None and record.task is not None]
        if message.recursive:
            parents, calls = self.cancelled.setdefault(reason, ([], []))
            for task in tasks:
                _set_recursively(task)
            begun = (task for task in tasks if task.attempt or task.state not in (WAITING, READY))
            parents += [task for task in begun if message.force or not _keeps_its_outcome(task)]
            calls += [each[:TASK_BYTES] for each in message.object_ids if is_call(each)]
        for task in tasks:
            if message.force:
                self._kill(task, f"task {task.name} was cancelled by force")
            self.stop(task, reason, now)

    def cancel(self, now: float, task: TaskRecord, force: bool, recursive: bool) -> str:
        """Cancel a task of this home for a tool. Return why it goes on, or empty. Raises ValueError for actors."""
        if task.function.actor is not None:
            raise ValueError("it makes an actor: kill that instead")
        if task.state == DONE:
            return "it has ended"
        if not force and _keeps_its_outcome(task):
            return "it runs again to make a value that was lost; only force stops it"
        self._cancel(now, self.tables.address, m.Cancel((task.id + FIRST_RETURN,), force, recursive))
        return ""

    def _pass_on(self, source: Address, message: m.Cancel) -> None:
        """Pass cancellations to homes of objects, and callers of promised results."""
        receivers: defaultdict[Address, list[bytes]] = defaultdict(list)
        for object_id in message.object_ids:
            record = self.tables.find(object_id)
            if record is not None and record.hold is not None and record.status == PENDING:
                record.hold.cancel(message.force, message.recursive)
                if record.home in self.tables.nodes:
                    receivers[LOCAL_SCHEDULER + record.home].append(object_id)
            elif record is not None and (caller := self.tables.promises.caller(object_id)):
                receivers[CLIENT + caller].append(object_id)
        receivers.pop(source, None)  # A caller that cancels its own call has stopped it: only the children are left.
        for receiver, object_ids in receivers.items():
            self.tables.send(receiver, message._replace(object_ids=tuple(object_ids)))

    def _kill(self, task: TaskRecord, reason: str) -> bool:
        """Kill a given-up task's worker. False if it does not have the task."""
        worker = task.rare.running_on if task.rare is not None else None
        if worker is None or not worker.pid or worker.shared:
            return False
        waits = any(blocked.task_id == task.id for blocked in worker.blocked_tasks)
        self.tables.emit(KillProcess(worker.pid, reason, b"" if waits else task.id))
        return True

    def end_of_turn(self, now: float) -> None:
        """Stop children of what was cancelled recursively."""
        cancelled, self.cancelled = self.cancelled, {}
        for reason, (parents, calls) in cancelled.items():
            known = {task.id for task in parents}
            found = self.with_children(parents, calls, reason == "force") if parents or calls else []
            self.stop_elsewhere(found, calls, reason)
            for task in found:
                if task.id not in known:
                    self.stop(task, reason, now)

    def stop_elsewhere(self, tasks: list[TaskRecord], calls: list[bytes], reason: str) -> None:
        """Have other nodes stop children. A task that is there now is stopped with its own."""
        ended = [task for task in tasks if task.worker is None and _has_begun(task)] if self.tables.counts["delegated"] else []
        calls = calls if self._lives_elsewhere() else []
        prefixes = {prefix for task in ended for prefix in prefixes_of(task)} | (self._prefixes_of_calls(calls) if calls else set())
        parent_ids = (*(task.id for task in ended), *calls)
        for node in self.tables.nodes if parent_ids else ():
            for start in range(0, max(len(prefixes), len(parent_ids)), ROWS_MAX):
                stop = start + ROWS_MAX
                message = m.StopChildren(tuple(sorted(prefixes))[start:stop], parent_ids[start:stop], reason)
                self.tables.send_to_node(node, message)

    def on_stop_children(self, now: float, source: Address, message: m.StopChildren) -> None:
        """Stop children of another node's tasks and calls."""
        if source[1:] in self.tables.nodes:
            self.stop_children(set(message.prefixes), set(message.parents), message.reason, now)

    def stop_children(self, prefixes: set[bytes], parents: set[bytes], reason: str, now: float) -> None:
        """Stop the children of ended tasks and of calls."""
        found = self.with_children([], [], reason == "force", prefixes, parents)
        self.stop_elsewhere(found, [], reason)
        for task in found:
            self.stop(task, reason, now)

    def with_children(
        self,
        tasks: list[TaskRecord],
        calls: Iterable[bytes] = (),
        force: bool = False,
        prefixes: Iterable[bytes] = (),
        parents: Iterable[bytes] = (),
    ) -> list[TaskRecord]:
        """These tasks, and all descendants of them, of these calls, prefixes and parents.

        Children that arrive later, or on other nodes, will be stopped, too.
        """
        found = {task.id: task for task in tasks}
        level = tasks
        prefixes = set(prefixes) | (self._prefixes_of_calls(calls) if calls else set())
        parents = {*parents, *calls}
        while level or prefixes:
            prefixes |= {prefix for task in level for prefix in prefixes_of(task)}
            parents |= {task.id for task in level}
            self._condemn(prefixes)
            level = [task for task in self._children(prefixes, parents) if task.id not in found]
            level = [task for task in level if force or not _keeps_its_outcome(task)]
            found.update((task.id, task) for task in level)
            prefixes, parents = set(), set()
        for task in found.values():
            _set_recursively(task)
        return list(found.values())

    def _children(self, prefixes: set[bytes], parents: set[bytes]) -> list[TaskRecord]:
        """Children, without detached actors, which outlive their makers."""
        found = {task.id: task for task in self.tables.children_of(prefixes)}
        found.update(
            (task.id, task) for task in self.tables.tasks.values() if len(task.row) > 4 and option(task.row[4], "parent") in parents
        )
        return [task for task in found.values() if not _outlives_its_parent(task)]

    def job_ended(self, job: bytes) -> None:
        """Forget which children of a job to stop."""
        self.condemned = {prefix: None for prefix in self.condemned if prefix[:JOB_BYTES] != job}

    def _condemn(self, prefixes: set[bytes]) -> None:
        condemned = self.condemned
        condemned.update(dict.fromkeys(prefixes))
        while len(condemned) > CONDEMNED_MAX:
            del condemned[next(iter(condemned))]

    def _prefixes_of_calls(self, calls: Iterable[bytes]) -> set[bytes]:
        """Prefixes of children, for every actor that may run the calls."""
        actors = (self.tables.tasks.get(actor_id) for worker in self.tables.workers.values() for actor_id in worker.actors)
        lives = [(actor.id, actor.attempt) for actor in actors if actor is not None] + self._lives_elsewhere()
        named = {(actor_id[:JOB_BYTES], salt_of(attempt)) for actor_id, attempt in lives}
        return {child_prefix(job, call, 0, salt) for call in calls for job, salt in named}

    def _lives_elsewhere(self) -> list[tuple[bytes, int]]:
        hosted = (actor.task for actor in self.tables.actors.values() if actor.worker is not None and actor.worker.remote)
        remote = self.tables.remote_actors.items()
        return [*((task.id, task.attempt) for task in hosted), *((actor_id, record.attempt) for actor_id, record in remote)]

    def stop_void(self, prefixes: set[bytes], gone: bytes, now: float) -> None:
        """Stop the children of void attempts: the next attempts submit them again.

        Only tasks of this home without other holders are stopped, later children first, since they name earlier ones. A running task is
        stopped with its descendants. One that does not run may have run before, so its held children stay.
        """
        parents: set[bytes] = set()
        while prefixes or parents:
            children = self._children(prefixes, parents)
            prefixes, parents = set(), set()
            for task in reversed(children):
                alone = all(value.holders in (None, gone) and not value.pins and not value.fetchers for value in task.values())
                if not alone or task.state == DONE or task.function.delegated or _keeps_its_outcome(task):
                    continue
                if task.state == ASSIGNED:
                    for each in self.with_children([task]):
                        self.stop(each, "cancelled", now)
                else:
                    self._condemn(prefixes_of(task))
                    prefixes |= prefixes_of(task)
                    parents.add(task.id)
                    self.stop(task, "cancelled", now)

    def stop_late(self, rows: m.Rows, now: float) -> None:
        """Stop children that arrive after a recursive cancel."""
        for row in rows:
            if row[0][:PREFIX_BYTES] in self.condemned:
                task = self.tables.tasks.get(row[0])
                if task is not None and not _keeps_its_outcome(task) and not _outlives_its_parent(task):
                    for each in self.with_children([task]):
                        self.stop(each, "cancelled", now)

    def stop(self, task: TaskRecord, reason: str, now: float) -> None:
        """Stop a task: at once if undispatched, else by requests."""
        if task.state == DONE or (reason != "force" and _keeps_its_outcome(task)):
            return
        if task.state in (WAITING, READY):
            self.outcomes.stopped(task, reason)
            return
        facts = task.facts()
        if not facts.stopped or reason == "force":
            facts.stopped = reason
        self._repeat(task.id, now)

    def still_running(self, task: TaskRecord, worker: WorkerRecord, now: float) -> None:
        """Enter an ended task that a worker still runs; if it was given up, ask again."""
        record = task.values()[0]
        kind = unpack_failure(record.value)[0] if record.status == FAILED and type(record.value) is bytes else ""
        reason = next((each for each in ("cancelled", "timeout", "run_timeout") if STOPPED[each] == kind), "")
        request = m.Interrupt(task.id, task.attempt, reason)
        self.outcomes.still_running(task, worker)
        if reason:
            task.facts().stopped = reason
            self._ask_given_up(task, request, now)

    def _ask_given_up(self, task: TaskRecord, request: m.Interrupt, now: float) -> None:
        self._given_up[task.id] = task, request
        self._repeat(task.id, now)
        if self.tables.config.stop_grace_seconds:
            due = now + self.tables.config.stop_grace_seconds
            self._graces[task.id] = (due, task)
            self.tables.deadlines.note(STOPPING, due)

    def _ask_again(self, task_id: bytes, now: float) -> None:
        self._asked[task_id] = due = now + self.tables.config.interrupt_every
        self.tables.deadlines.note(STOPPING, due)

    def _repeat_given_up(self, task_id: bytes, task: TaskRecord, request: m.Interrupt, now: float) -> None:
        worker = task.rare.running_on if task.rare is not None else None
        if worker is None or worker.process is None or worker.inflight.get(task_id) is not task:
            del self._given_up[task_id]
            self._asked.pop(task_id, None)
            return
        self._ask_again(task_id, now)
        if worker.remote:
            self.tables.send_to_node(worker.token, m.StopDelegated(task_id, request.attempt, request.reason, False))
        else:
            self.tables.send_to_control(worker, request)

    def _repeat(self, task_id: bytes, now: float) -> None:
        given_up = self._given_up.get(task_id)
        if given_up is not None:
            self._repeat_given_up(task_id, *given_up, now)
            return
        task = self.tables.tasks.get(task_id)
        worker = task.worker if task is not None else None
        if task is None or task.state != ASSIGNED or worker is None or task.rare is None:
            self._asked.pop(task_id, None)
            self._since.pop(task_id, None)
            return
        late = now - self._since.setdefault(task_id, now) >= self.tables.config.stop_patience
        if late and task.rare.stopped != "force" and _may_be_given_up(task):
            del self._since[task_id]
            request = m.Interrupt(task_id, task.attempt, task.rare.stopped)
            self.outcomes.give_up(task)
            self._ask_given_up(task, request, now)
            return
        self._ask_again(task_id, now)
        if late and task.function.delegated and task.rare.stopped == "run_timeout" and worker.pid and not worker.shared:
            reason = f"task {task.name} does not stop after its run_timeout"  # Its home does not know when it began.
            self.tables.emit(KillProcess(worker.pid, reason, task_id))
        if worker.remote:
            recursive = task.rare.recursively and task.rare.stopped not in ("timeout", "run_timeout")
            self.tables.send_to_node(worker.token, m.StopDelegated(task_id, task.attempt, task.rare.stopped, recursive))
        elif worker.shared:  # The process has other actors, which must not die with it.
            self.tables.send_to_control(worker, m.Interrupt(task_id, task.attempt, task.rare.stopped))
        elif task.rare.stopped == "force":
            reason = f"task {task.name} was cancelled by force"
            if any(blocked.task_id == task_id for blocked in worker.blocked_tasks) and worker.pid:
                worker.kill_reason = "cancelled"
                self.tables.emit(KillProcess(worker.pid, reason))
                return
            self.tables.send_to_control(worker, m.TakeBack((task_id,)))
            if late and worker.pid:  # Its process does not answer; an outcome may be unreported.
                self.tables.emit(KillProcess(worker.pid, reason, task_id))
        else:
            self.tables.send_to_control(worker, m.Interrupt(task_id, task.attempt, task.rare.stopped))


def _set_recursively(task: TaskRecord) -> None:
    if task.worker is not None and task.worker.remote:
        task.facts().recursively = True


def _has_begun(task: TaskRecord) -> bool:
    return task.state not in (WAITING, READY) or tries_of(task.attempt) > 0


def _may_be_given_up(task: TaskRecord) -> bool:
    """Whether a task may have its outcome while it runs: it was sent, and only its end matters to others."""
    unsent = task.rare is not None and task.rare.wait_locations is not None
    return task.function.actor is None and task.function.stream is None and not unsent and not task.function.delegated


def _outlives_its_parent(task: TaskRecord) -> bool:
    return task.function.actor is not None and bool(task.option("detached", False))


def _keeps_its_outcome(task: TaskRecord) -> bool:
    """Whether a task is being rebuilt: only force stops it, and its children are needed."""
    return task.rare is not None and task.rare.rebuilt and task.state != DONE
