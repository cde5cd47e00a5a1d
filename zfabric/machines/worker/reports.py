"""What a worker reports, until it is sent or recorded: outcomes of attempts, values of streams, waits, and when calls ran.

Outcomes are for the scheduler. A driver that submitted a task directly receives its value at once; the scheduler receives the number of
these values (decision 0016).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter

from zfabric.machines.worker.queue import Item
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.ids import CLIENT, TASK_BYTES, Address, split_ids
from zfabric.protocol.messages import CLOSE, OK, Row
from zfabric.protocol.trace import UNKNOWN, method_id, pack_times, pack_waited

CALLS_MAX = 1024
"""Calls per ``CallTimes``: 48 kB. Unreported ones are lost if the process is killed."""
ARRIVALS_MAX = 65_536
"""Queued calls with an arrival; those behind have none."""
_task_id = itemgetter(0)
_function = itemgetter(1)


class CompletionBatch:
    """Outcomes in plain lists, since every task adds to them."""

    def __init__(self) -> None:
        self.attempts: list[int] = []
        self.statuses: list[int] = []
        self.outputs: list[Row] = []
        self.extras: list[Row] = []
        """``(index, contained, written)`` where there are such."""
        self.rows: list[Row] = []
        """The attempts' task rows."""
        self.times: list[float] = []
        """Two per attempt: start and seconds."""

    def take(self) -> m.Completed | None:
        """Take the message, if anything has ended."""
        if not self.rows:
            return None
        functions = list(map(_function, self.rows))
        completed = m.Completed(
            tuple(self.attempts),
            tuple(self.statuses),
            tuple(self.outputs),
            b"".join(map(_task_id, self.rows)),
            tuple(self.extras),
            _durations(functions, self.times[1::2]),
            pack_times(functions, self.times),
        )
        self.attempts, self.statuses, self.outputs, self.extras, self.rows, self.times = [], [], [], [], [], []
        return completed


def lone_report(item: Item, outputs: Row, started: float, seconds: float) -> m.Completed:
    """The message about one attempt without error, as of ``take``."""
    row = item.row
    function = row[1]
    times = pack_times((function,), (started, seconds))
    return m.Completed((item.attempt,), (OK,), (outputs,), row[0], (), ((function, 1, seconds),), times)


def _durations(functions: list[bytes], seconds: list[float]) -> tuple[Row, ...]:
    """(function id, runs, seconds in all)."""
    if functions.count(functions[0]) == len(functions):
        return ((functions[0], len(functions), sum(seconds)),)
    each: dict[bytes, list[float]] = {}
    for function_id, took in zip(functions, seconds, strict=True):
        each.setdefault(function_id, []).append(took)
    return tuple((function_id, len(took), sum(took)) for function_id, took in each.items())


class Drivers:
    """The drivers of one worker."""

    def __init__(self) -> None:
        self.sent: Counter[bytes] = Counter()
        """Values sent to each driver that may submit tasks."""
        self._rows: dict[bytes, list[Row]] = {}
        """Values to send with the next frames, by driver. A driver with an empty list only needs its count sent to the scheduler."""

    def __contains__(self, driver: bytes) -> bool:
        return driver in self.sent

    def accept(self, driver: bytes) -> m.DirectCounts:
        """Accept a driver; return the confirmation for the scheduler."""
        self.sent[driver] += 0
        return m.DirectCounts(driver, self.sent[driver])

    def queue_value(self, driver: bytes, task_id: bytes, outputs: Row) -> None:
        """Queue a value for the next frame."""
        self._rows.setdefault(driver, []).append((task_id, OK, outputs))

    def count_value(self, driver: bytes, task_id: bytes, outputs: Row) -> Send:
        """Count a value; return the message to send at once."""
        self._rows.setdefault(driver, [])
        self.sent[driver] += 1
        return Send(CLIENT + driver, m.Results(((task_id, OK, outputs),)))

    def forget(self, driver: bytes) -> bool:
        """Stop sending to an exited driver: messages would be repeated for ever. Return whether it was accepted."""
        self._rows.pop(driver, None)
        return self.sent.pop(driver, None) is not None

    @property
    def unsent(self) -> bool:
        """Whether values or counts are to be sent."""
        return bool(self._rows)

    def take_results(self) -> Iterator[Send]:
        """Messages with values; they go ahead of all to the scheduler."""
        for driver, rows in self._rows.items():
            if rows:
                self.sent[driver] += len(rows)
                yield Send(CLIENT + driver, m.Results(tuple(rows)))

    def take_counts(self, scheduler: Address) -> Iterator[Send]:
        """Messages with counts; they go behind the completions of those tasks."""
        rows, self._rows = self._rows, {}
        for driver in rows:
            yield Send(scheduler, m.DirectCounts(driver, self.sent[driver]))


class Yields:
    """The streams begun by this worker: values on their way, and how many may come."""

    def __init__(self) -> None:
        self.open: dict[bytes, deque[Row]] = {}
        """Last rows of unfinished streams: consumers may lack them if the daemon dies."""
        self.ended: dict[bytes, deque[Row]] = {}
        """Last rows of ended streams, until the outcome is recorded (``OutcomesRecorded``)."""
        self.unsent: list[Row] = []
        self.waiting: dict[bytes, Callable[[], object]] = {}
        """Wakes a stream that waits without a thread."""
        self._allowed: dict[bytes, int] = {}

    def begin(self, task_id: bytes, ahead: int) -> None:
        """Open a stream, at most ``ahead`` of its consumer."""
        self.open[task_id] = deque(maxlen=ahead + 1)  # The last row counts the values.
        self.ended.pop(task_id, None)  # A later attempt makes all values again.
        self._allowed[task_id] = ahead

    def allow(self, task_id: bytes, upto: int) -> None:
        """Allow a stream up to this index, or close it (``CLOSE``); wake it."""
        before = self._allowed.get(task_id, 0)
        if before != CLOSE:
            self._allowed[task_id] = upto if upto == CLOSE else max(before, upto)
        wake = self.waiting.pop(task_id, None)  # Without a lock: the waiting stream may go away meanwhile.
        if wake is not None:
            wake()

    def may_go_on(self, task_id: bytes, index: int) -> bool:
        """Whether value ``index`` is allowed, or the stream is to end."""
        return self.closed(task_id) or index < self._allowed[task_id]

    def closed(self, task_id: bytes) -> bool:
        """Whether a stream is to end."""
        return self._allowed[task_id] == CLOSE

    def add(self, row: Row) -> None:
        """Queue a row of ``Yielded``."""
        self.unsent.append(row)
        self.open[row[0]].append(row)

    def take(self) -> m.Yielded:
        """Take the message to send."""
        rows, self.unsent = self.unsent, []
        return m.Yielded(tuple(rows))

    def end(self, task_id: bytes) -> None:
        """Close an ended stream; its last rows stay until ``release``."""
        rows = self.open.pop(task_id, None)
        self._allowed.pop(task_id, None)
        if rows is not None:
            self.ended[task_id] = rows

    def release(self, task_ids: Iterable[bytes]) -> None:
        """Release last rows of streams with recorded outcomes, or none."""
        for task_id in task_ids:
            self.ended.pop(task_id, None)

    def repeated(self, unconfirmed: Iterable[m.Message], is_repeated: Callable[[bytes], bool]) -> list[m.Message]:
        """What a restarted daemon needs, in order: unconfirmed reports, and streams' last rows.

        For a place that the previous daemon received, the row says only that the value exists: the arena has it. Ended streams count only
        if their outcome is repeated: in ``unconfirmed``, or of a call with ``is_repeated``.
        """
        unconfirmed = list(unconfirmed)
        ended = {each for message in unconfirmed if type(message) is m.Completed for each in split_ids(message.task_ids, TASK_BYTES)}
        self.ended = {task_id: rows for task_id, rows in self.ended.items() if task_id in ended or is_repeated(task_id)}
        retained = (*self.open.values(), *self.ended.values())
        rows = {row[:3]: row if type(row[3]) is not tuple else (*row[:3], True, ()) for kept in retained for row in kept}
        ends: list[m.Message] = []
        for message in unconfirmed:
            if type(message) is m.Yielded:
                rows.update((row[:3], row) for row in message.rows)
            else:
                ends.append(message)
        return [m.Yielded(tuple(rows[key] for key in sorted(rows))), *ends] if rows else ends


class BlockedStack:
    """Waits on a worker's stack, from its bottom, as its scheduler has them."""

    def __init__(self) -> None:
        self.blocked: list[m.Blocked] = []
        self._awaits: dict[bytes, m.WaitDetails] = {}
        """Further reports by id."""
        self.changes = 0
        """``Blocked`` and ``Unblocked`` sent; the scheduler counts them, too."""

    def __len__(self) -> int:
        return len(self.blocked)

    def __contains__(self, task_id: bytes) -> bool:
        return any(blocked.task_id == task_id for blocked in self.blocked)

    def begin(self, blocked: m.Blocked, name: str, callees: m.Rows, certain: bool) -> Iterator[m.Message]:
        """Push a wait; yield the messages. Other arguments are as in ``WaitDetails``."""
        self.blocked.append(blocked)
        self.changes += 1
        yield blocked
        if name or callees:
            awaits = self._awaits[blocked.task_id] = m.WaitDetails(blocked.task_id, name, callees, certain)
            yield awaits

    def end(self) -> m.Unblocked:
        """Pop the top wait; return the message."""
        blocked = self.blocked.pop()
        self.changes += 1
        self._awaits.pop(blocked.task_id, None)
        return m.Unblocked(blocked.task_id)

    def repeated(self) -> Iterator[m.Message]:
        """The whole stack, for a restarted scheduler."""
        self.changes = len(self.blocked)
        for blocked in self.blocked:
            yield blocked._replace(returned=())  # These were returned at first, and are not among the worker's rows.
        yield from self._awaits.values()


class CallTrace:
    """When calls of this process's actors ran since the last report, for the timeline."""

    def __init__(self) -> None:
        self._methods: dict[tuple[bytes, str], bytes] = {}
        self._names: dict[bytes, str] = {}
        """Names by method id in traces."""
        self._ran: list[bytes] = []
        self._call_ids: list[bytes] = []
        """Ids of the calls in ``_ran``, in that order."""
        self._times: list[float] = []

    def add(self, call_id: bytes, actor_id: bytes, class_name: str, method: str, started: float, seconds: float) -> None:
        """Record a call that has ended."""
        identifier = self._methods.get((actor_id, method))
        if identifier is None:
            identifier = self._methods[actor_id, method] = method_id(actor_id, len(self._methods))
            self._names[identifier] = f"{class_name}.{method}"
        self._ran.append(identifier)
        self._call_ids.append(call_id)
        self._times.append(started)
        self._times.append(seconds)

    @property
    def full(self) -> bool:
        """Whether a report is due at once."""
        return len(self._ran) >= CALLS_MAX

    def take(self, took: list[Row]) -> m.CallTimes | None:
        """Take the message, if any call has ended, with the rows of ``Mailbox.took``."""
        if not self._ran:
            return None
        names = tuple((identifier, self._names[identifier]) for identifier in sorted(set(self._ran)))
        traced = m.CallTimes(names, b"".join(self._call_ids) + pack_times(self._ran, self._times), tuple(took), b"")
        took.clear()
        self._ran, self._call_ids, self._times = [], [], []
        return traced


class MeasuredCallTrace(CallTrace):
    """Also measures how long calls waited in this process.

    It replaces the plain trace until ``until``: calls cost more only while somebody measures. ``present`` calls have arrived and not ended;
    others with an arrival were dropped.
    """

    def __init__(self, until: float, present: Callable[[], Iterable[bytes]]) -> None:
        super().__init__()
        self.until = until
        self._present = present
        self._arrivals: dict[bytes, float] = {}
        self._waited: list[float] = []
        """Waits, in the order of calls."""

    def arrived(self, now: float, rows: tuple[Row, ...]) -> None:
        """Record arrivals; of a repeated call the first."""
        for row in rows if len(self._arrivals) < ARRIVALS_MAX else ():
            self._arrivals.setdefault(row[0], now)

    def add(self, call_id: bytes, actor_id: bytes, class_name: str, method: str, started: float, seconds: float) -> None:
        """Record a call that has ended."""
        super().add(call_id, actor_id, class_name, method, started, seconds)
        arrival = self._arrivals.pop(call_id, None)
        self._waited.append(started - arrival if arrival is not None else UNKNOWN)

    def take(self, took: list[Row]) -> m.CallTimes | None:
        """Take the message, if any call has ended."""
        traced = super().take(took)
        if len(self._arrivals) >= ARRIVALS_MAX:
            self._arrivals = {call_id: self._arrivals[call_id] for call_id in self._present() if call_id in self._arrivals}
        if traced is None:
            return None
        waited, self._waited = self._waited, []
        return traced._replace(waited=pack_waited(waited))
