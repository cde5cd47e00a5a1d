"""Lone tasks on other nodes: the awaited message is sent before its cause is processed (decision 0016).

A finder reads the tables, unchanged. The shell sends what it finds, processes the cause as usual, and calls ``settle``, which removes the
duplicate. Anything but the plain case is left to the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from zfabric.machines.local_scheduler.barrier import NODES
from zfabric.machines.local_scheduler.lifecycle.jobs import Jobs
from zfabric.machines.local_scheduler.nodes.children import Children
from zfabric.machines.local_scheduler.nodes.failover import Failover
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import (
    IDLE,
    PROBE,
    REPLICATE,
    FunctionRecord,
    NodeRecord,
    ProcessRecord,
    ShapeQueue,
    WorkerRecord,
)
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.stopping import Stopping
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.ids import CLIENT, LOCAL_SCHEDULER, WORKER, Address
from zfabric.protocol.machine import InvariantViolation
from zfabric.protocol.messages import OK


class Ahead(NamedTuple):
    """A message to send ahead, and what to call afterwards with it and the time."""

    send: Send
    settle: Callable[[Any, float], None]


Finder = Callable[[Address, Any], Ahead | None]
"""Finds what to send ahead of a message from this address."""
Finders = Mapping[type[Any], Finder]


class LoneTasks:
    """Finders for a lone task on another node."""

    def __init__(
        self,
        tables: Tables,
        outcomes: Outcomes,
        stopping: Stopping,
        streams: Streams,
        jobs: Jobs,
        dispatcher: Dispatcher,
        children: Children,
        failover: Failover,
        node: bytes,
    ) -> None:
        self.tables = tables
        self.outcomes = outcomes
        self.stopping = stopping
        self.streams = streams
        self.jobs = jobs
        self.dispatcher = dispatcher
        self.children = children
        self.failover = failover
        self.node = node

    # -- at home: a task is submitted --

    def submitted(self, source: Address, message: m.Submit) -> Ahead | None:
        """For one submitted task whose node has none of this home's: the message to that node."""
        tables = self.tables
        process = tables.processes.get(source[1:])
        if process is None or not process.ready or len(message.rows) != 1 or tables.barrier.awaits(NODES) or tables.orphans:
            return None
        (row,) = message.rows
        job = process.job
        if job is None or job.ended or self.stopping.condemned or row[3] or row[0] in tables.tasks:
            return None
        function = job.functions.get(row[1])
        queue = _queue_of(row, function) if function is not None and function.plain else None
        if queue is None or queue or not queue.away or queue.group is not None:
            return None
        node = tables.nodes.get(queue.only)
        if node is None or node.inflight or node.draining or node.full or node.progress != REPLICATE:
            return None
        if job.id + row[1] not in node.functions:  # The first of a function takes the usual way, which checks the node's resources.
            return None
        about = (job.id, job.namespace, job.home or self.node)
        delegate = m.Delegate(about, (), (row[:4],), (), (), (), tables.first_attempt)
        return Ahead(Send(LOCAL_SCHEDULER + node.token, delegate), partial(self._delegated, queue, node))

    def _delegated(self, queue: ShapeQueue, node: NodeRecord, sent: m.Delegate, now: float) -> None:
        task = queue.tasks.pop()
        _agree((task.row[:4], task.attempt, queue.only), (sent.rows[0], sent.attempt, node.token))
        task.assign(node)
        node.inflight[task.id] = task
        self.tables.count("delegated")

    # -- where it runs --

    def given(self, source: Address, message: m.Delegate) -> Ahead | None:
        """For one delegated plain task whose function an idle worker has: the message to that worker."""
        tables = self.tables
        home = tables.nodes.get(source[1:])
        if len(message.rows) != 1 or message.functions or message.attempts or message.values or home is None or home.progress == PROBE:
            return None
        (row,) = message.rows
        job = tables.jobs.get(message.job[0])
        if len(row) != 4 or row[3] or row[0] in tables.tasks or job is None or job.ended or job.id in self.jobs.ended_elsewhere:
            return None
        function = job.delegated.get(row[1])
        if function is None or function.actor is not None or function.stream is not None:
            return None
        queue = function.queue
        if tables.barrier.awaits(NODES) or tables.draining or queue or queue.concurrency or not queue.light or queue.group is not None:
            return None
        worker = self.dispatcher.idle_at_once(queue)
        if worker is None or worker.process is None or worker.direct is not None or function.id not in worker.functions:
            return None
        dispatch = m.Dispatch((row,), (), 0, message.attempt)
        return Ahead(Send(WORKER + worker.process.incarnation, dispatch), partial(self._dispatched, queue, worker))

    def _dispatched(self, queue: ShapeQueue, worker: WorkerRecord, sent: m.Dispatch, now: float) -> None:
        task = queue.tasks.pop()
        _agree((task.row, task.attempt, worker.state), (sent.rows[0], sent.attempt, IDLE))
        self.dispatcher.begun(worker, queue, task, now)

    def completed(self, source: Address, message: m.Completed) -> Ahead | None:
        """For the end of a worker's only task, delegated and with one small value: the message to the home."""
        tables = self.tables
        if len(message.attempts) != 1 or message.statuses != (OK,) or message.extras or not _is_small(message.outputs[0]):
            return None
        worker = tables.worker_of(source)
        task = worker.inflight.get(message.task_ids) if worker is not None else None
        if worker is None or task is None or len(worker.inflight) != 1 or worker.blocked_tasks or task.attempt != message.attempts[0]:
            return None
        function = task.function
        if not function.delegated or task.rare is not None or function.actor is not None or function.stream is not None:
            return None
        home = tables.nodes.get(task.submitter)
        if home is None or function.queue or tables.barrier.awaits(NODES) or home.progress == PROBE or self.outcomes.delegated_ends:
            return None
        if self.children or not tables.ledger.is_clear or self.streams.relayed:
            return None
        completed = m.Completed(message.attempts, message.statuses, message.outputs, message.task_ids, (), (), b"")
        ended = m.Ended(home.ends.next, tuple(completed), ())
        return Ahead(Send(LOCAL_SCHEDULER + home.token, ended), partial(self._reported, home))

    def _reported(self, home: NodeRecord, sent: m.Ended, now: float) -> None:
        task, status, outputs, extra, contained = self.outcomes.delegated_ends.pop()
        _agree(m.Completed.of(((task.id, task.attempt, status, outputs),)), m.Completed(*sent.completed))
        _agree((task.submitter, extra, contained, home.ends.next), (home.token, None, (), sent.number))
        home.ends.retain(sent)

    # -- at home: it has ended --

    def ended(self, source: Address, message: m.Ended) -> Ahead | None:
        """For the end of a node's only task of this home, with one small value: the message to the submitter."""
        attempts, statuses, outputs, task_id, extras, _, _ = message.completed
        if len(attempts) != 1 or statuses != (OK,) or extras or not _is_small(outputs[0]):
            return None
        tables = self.tables
        node = tables.nodes.get(source[1:])
        task = node.inflight.get(task_id) if node is not None else None
        if node is None or task is None or node.progress == PROBE or len(node.inflight) != 1 or task.attempt != attempts[0]:
            return None
        if not task.function.plain or task.outputs is not None or (task.rare is not None and not task.rare.common):
            return None
        process = tables.processes.get(task.submitter)
        if (
            process is None
            or not process.ready
            or process.results
            or task.holders is None
            or tables.barrier.awaits(NODES)
            or self.failover.under_way
        ):
            return None
        results = m.Results(((task_id, OK, outputs[0]),))
        return Ahead(Send(CLIENT + process.incarnation, results), partial(self._answered, process))

    def _answered(self, process: ProcessRecord, sent: m.Results, now: float) -> None:
        _agree((self.outcomes.take_last_result(process),), sent.rows)


def _queue_of(row: m.Row, function: FunctionRecord) -> ShapeQueue | None:
    """The queue of a task with no option but a strategy; else None."""
    if len(row) == 4:
        return function.queue
    options = row[4]
    if len(options) != 1 or options[0][0] != "strategy" or function.strategy:
        return None
    extras = function.by_strategy.get(options[0][1])
    return extras.demand_queue if extras is not None else None


def _agree(booked: Any, sent: Any) -> None:
    if booked != sent:
        raise InvariantViolation(f"{sent} was sent ahead, and the books have {booked}")


def _is_small(outputs: Any) -> bool:
    return len(outputs) == 1 and type(outputs[0]) is bytes
