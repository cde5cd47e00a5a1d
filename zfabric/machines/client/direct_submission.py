"""Tasks that a driver submits to a worker directly, because it waits for each of them: the driver's side (decision 0016).

The scheduler allows it, and both report each task to the scheduler.
"""

from __future__ import annotations

from zfabric.machines.client.outbox import Outbox
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.ids import WORKER, Address
from zfabric.protocol.messages import Row


class DirectSubmitter:
    """The workers that accept a client's tasks directly. Used under the client's lock."""

    def __init__(self, outbox: Outbox) -> None:
        self.workers: dict[bytes, bytes] = {}
        """The worker that accepts the tasks of each of these functions."""
        self.introduced: set[bytes] = set()
        """Workers to which tasks were submitted: they send the values themselves."""
        self._received: dict[bytes, int] = {}
        """How many values each of them has sent."""
        self._outbox = outbox
        self._daemon = b""
        self._first_attempt = 0
        self._ready: Send | None = None
        """The task to be sent now."""
        self._unreported: dict[bytes, list[Row]] = {}
        """Tasks that were not reported to the scheduler, by worker. The workers report them too, so several may wait for one message."""

    def connect(self, daemon: bytes) -> None:
        """The daemon's incarnation: a worker refuses tasks of a driver that is connected to an earlier one."""
        self._daemon = daemon

    def submit(self, row: Row) -> None:
        """Send a task to the worker that ran the last one of its function. No other task or call of this process is pending."""
        worker = self.workers[row[1]]
        self._ready = Send(WORKER + worker, m.SubmitDirect(self._daemon, (row,), self._first_attempt))
        self._unreported.setdefault(worker, []).append(row)

    @property
    def urgent(self) -> bool:
        """Whether a task is to be sent."""
        return self._ready is not None

    @property
    def unsent(self) -> bool:
        """Whether a task or a report is to be sent."""
        return bool(self._ready or self._unreported)

    def take(self) -> Send | None:
        """The task to be sent, if there is one: ahead of all messages to the scheduler."""
        ready = self._ready
        if ready is not None:
            self._ready = None
        return ready

    def take_reports(self) -> list[m.SubmittedDirect]:
        """Reports to the scheduler, to be sent ahead of all that names those tasks."""
        reports = [m.SubmittedDirect(worker, tuple(rows)) for worker, rows in self._unreported.items()]
        self._unreported = {}
        return reports

    def on_direct_allowed(self, now: float, source: Address, message: m.DirectAllowed) -> None:
        """A worker accepts tasks of these functions from this process directly; without functions, none any more."""
        self.workers = {function: worker for function, worker in self.workers.items() if worker != message.worker}
        self.workers.update(dict.fromkeys(message.functions, message.worker))
        self._first_attempt = message.attempt
        if message.functions:
            self.introduced.add(message.worker)
        else:
            self._outbox.add_message(m.SubmittedDirect(message.worker, ()))

    def count(self, worker: bytes, rows: tuple[Row, ...]) -> None:
        """A worker has sent these values."""
        self._received[worker] = self._received.get(worker, 0) + len(rows)

    def report_counts(self) -> None:
        """Report how many values each worker has sent, so that the scheduler answers, or ends the job, with all that this process has."""
        for worker, number in self._received.items():
            self._outbox.add_message(m.DirectCounts(worker, number))

    def forget(self, worker: bytes) -> None:
        """A worker has exited."""
        self.introduced.discard(worker)
        self._received.pop(worker, None)

    def start_over(self) -> None:
        """A restarted scheduler has allowed nothing yet. ``Client.rejoin`` repeats the tasks that were not sent."""
        self.workers = {}
        self._ready = None
        self._unreported = {}
