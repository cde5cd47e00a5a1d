"""The driver's side of direct submission (decision 0016).

The scheduler allows it, and receives a report of each task from the driver and from the worker.
"""

from __future__ import annotations

from zfabric.machines.client.outbox import Outbox
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.ids import WORKER, Address
from zfabric.protocol.messages import Row


class DirectSubmitter:
    """The workers that accept tasks directly, under the client's lock."""

    def __init__(self, outbox: Outbox) -> None:
        self.workers: dict[bytes, bytes] = {}
        """The worker of each function."""
        self.allowed: set[bytes] = set()
        """Workers allowed to this driver: they send it values."""
        self._received: dict[bytes, int] = {}
        """Values received from each allowed worker."""
        self._outbox = outbox
        self._daemon = b""
        self._first_attempt = 0
        self._ready: Send | None = None
        """A task to send now."""
        self._unreported: dict[bytes, list[Row]] = {}
        """Unreported tasks, by worker. Several may share one message, since the workers report them too."""

    def connect(self, daemon: bytes) -> None:
        """Set the daemon: a worker refuses tasks of another daemon's drivers."""
        self._daemon = daemon

    def submit(self, row: Row) -> None:
        """Send a task to its function's worker. Nothing else may be pending."""
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
        """Take the task; it goes ahead of all messages to the scheduler."""
        ready = self._ready
        if ready is not None:
            self._ready = None
        return ready

    def take_reports(self) -> list[m.SubmittedDirect]:
        """Take reports; they go ahead of every message that names those tasks."""
        reports = [m.SubmittedDirect(worker, tuple(rows)) for worker, rows in self._unreported.items()]
        self._unreported = {}
        return reports

    def on_direct_allowed(self, now: float, source: Address, message: m.DirectAllowed) -> None:
        """Submit tasks of these functions, or none, to a worker."""
        self.workers = {function: worker for function, worker in self.workers.items() if worker != message.worker}
        self.workers.update(dict.fromkeys(message.functions, message.worker))
        self._first_attempt = message.attempt
        if message.functions:
            self.allowed.add(message.worker)
        else:
            self._outbox.add_message(m.SubmittedDirect(message.worker, ()))

    def count(self, worker: bytes, rows: tuple[Row, ...]) -> None:
        """Count a worker's values."""
        self._received[worker] = self._received.get(worker, 0) + len(rows)

    def report_counts(self) -> None:
        """Report values received from each worker. The scheduler answers, or ends the job, once it has them too."""
        for worker, number in self._received.items():
            self._outbox.add_message(m.DirectCounts(worker, number))

    def forget(self, worker: bytes) -> None:
        """Remove a worker that has exited."""
        self.allowed.discard(worker)
        self._received.pop(worker, None)

    def start_over(self) -> None:
        """Drop an earlier scheduler's leases. ``Client.rejoin`` repeats unsent tasks."""
        self.workers = {}
        self._ready = None
        self._unreported = {}
