"""The event table: when attempts and calls ran, and what died."""

from __future__ import annotations

from collections.abc import Iterator

from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.records import WorkerRecord
from zfabric.machines.local_scheduler.reports.actor_report import title
from zfabric.machines.local_scheduler.reports.diagnoses import running_since
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.ids import FUNCTION_BYTES
from zfabric.protocol.trace import EACH_BYTES, marked, pack_event, pack_times, rename, unmarked


class Events:
    """Rows that wait for the next write."""

    def __init__(self, node: bytes, outcomes: Outcomes, actors: ActorDirectory) -> None:
        self.node = node
        self.outcomes = outcomes
        self.actors = actors
        self.ended_calls = 0
        self._waiting: list[m.Row] = []
        self._last = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def take(self) -> m.Rows:
        """Take the rows, to be written."""
        rows, self._waiting = tuple(self._waiting), []
        return rows

    def attempts_ended(self, now: float, worker: WorkerRecord, message: m.Completed) -> None:
        """Add ended attempts."""
        self._add(now, _attempts(self.node, worker, message, self.outcomes.renamed))

    def calls_ended(self, now: float, worker: WorkerRecord, message: m.CallTimes) -> None:
        """Add ended calls of actors."""
        self.ended_calls += len(message.trace) // EACH_BYTES
        self._add(now, pack_event(self.node, worker.pid, message.names, message.trace, "call", message.arguments, message.waited))

    def worker_died(self, now: float, worker: WorkerRecord, died: m.ProcessDied) -> None:
        """Add the attempt that a death cut off, and the actors that ended with it unless they were killed."""
        for event in self._deaths(now, worker, died):
            self._add(now, event)

    def _add(self, now: float, event: bytes) -> None:
        self._last += 1
        key = int(now * 1e6).to_bytes(8, "big") + self._last.to_bytes(4, "big", signed=False)
        self._waiting.append(("event", key, event))

    def _deaths(self, now: float, worker: WorkerRecord, died: m.ProcessDied) -> Iterator[bytes]:
        task = self.outcomes.suspect(worker, died.executing)
        if task is not None:
            since = running_since(worker)
            name = marked(task.name, "cancelled" if task.rare is not None and task.rare.stopped else "crashed")
            trace = task.id + pack_times([task.function.id], [since, max(0.0, now - since)])
            yield pack_event(self.node, worker.pid, ((task.function.id, name),), trace)
        for actor_id in worker.actors:
            actor, guest = self.actors.records.get(actor_id), self.actors.tables.guests.get(actor_id)
            lives = guest or actor
            is_killed = worker.kill_reason if actor is None else actor.killed
            if lives is not None and not is_killed and (died.signal or died.exit_code):
                function = lives.task.function.id
                trace = lives.id + pack_times([function], [now, 0.0])
                yield pack_event(self.node, worker.pid, ((function, marked(title(lives), "died")),), trace, "death")


def _attempts(node: bytes, worker: WorkerRecord, message: m.Completed, renamed: dict[int, str]) -> bytes:
    """One event for a batch, with names of functions, which are dropped with their job.

    ``renamed`` has other names, and those of failed attempts, by place in the batch.
    """
    functions = worker.job.functions if worker.job is not None else {}
    names = tuple((identifier, functions[identifier].name) for identifier, *_ in message.durations if identifier in functions)
    trace = message.task_ids + message.times
    if renamed:
        for place, name in renamed.items():
            if not unmarked(name)[0]:  # The function was not known yet.
                function = functions.get(message.times[place * FUNCTION_BYTES : (place + 1) * FUNCTION_BYTES])
                renamed[place] = (function.name if function is not None else "?") + name
        trace, more = rename(trace, renamed)
        names += more
    return pack_event(node, worker.pid, names, trace)
