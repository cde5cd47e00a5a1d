"""How long tasks and calls wait, while somebody measures.

The first task of each batch stands for its batch: its time of submission is noted here, its start is in the event of its attempt, and the
reader joins the two. Calls do not pass through the scheduler, so the processes of actors are asked for their waits (``MeasureCalls``).
"""

from __future__ import annotations

from collections.abc import Iterable

from zfabric.machines.local_scheduler.records import WorkerRecord

SAMPLES_MOST = 10_000
"""Most samples of each kind between two reads."""
MEASURED_SECONDS = 300.0
"""How long samples are taken after each read; longer than Prometheus's usual interval."""


class Latencies:
    """Samples since the last read. ``now`` is the time of the message being handled."""

    def __init__(self) -> None:
        self.now = 0.0
        self.until = 0.0
        self._submitted: dict[bytes, float] = {}
        self._waited: list[float] = []
        self._asked: set[bytes] = set()
        """Workers that measure calls, by token."""
        self._ask_again_at = 0.0

    def submitted(self, task_id: bytes) -> None:
        """Note that a task was submitted."""
        if len(self._submitted) < SAMPLES_MOST:
            self._submitted[task_id] = self.now

    def waited(self, since: float) -> None:
        """Note a wait for arguments that began at this time."""
        if self.now < self.until and since > 0.0 and len(self._waited) < SAMPLES_MOST:
            self._waited.append(self.now - since)

    def take(self, now: float) -> dict[str, object]:
        """Take the samples: times of submission by task id, and waits for arguments in seconds."""
        found: dict[str, object] = {"submitted": self._submitted, "waited": self._waited}
        self._submitted, self._waited, self.until = {}, [], now + MEASURED_SECONDS
        return found

    def workers_to_ask(self, now: float, workers: Iterable[WorkerRecord]) -> list[WorkerRecord]:
        """Take the workers with actors that do not measure calls, or will soon stop."""
        if now >= self._ask_again_at:
            self._asked, self._ask_again_at = set(), now + MEASURED_SECONDS / 2
        found = [worker for worker in workers if worker.actors and worker.process is not None and worker.token not in self._asked]
        self._asked.update(worker.token for worker in found)
        return found
