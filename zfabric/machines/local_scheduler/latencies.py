"""How long tasks and calls wait, while somebody measures.

The first task of each batch stands for its batch: its submission is noted here, its start is in its event, and the reader joins the two.
Calls do not pass through the scheduler: processes of actors measure them (``MeasureCalls``).
"""

from __future__ import annotations

from collections.abc import Iterable

from zfabric.machines.local_scheduler.records import WorkerRecord

SAMPLES_MOST = 10_000
"""Most samples of each kind between reads."""
MEASURED_SECONDS = 300.0
"""How long sampling goes on after a read; longer than Prometheus's usual interval."""


class Latencies:
    """Samples since the last read. ``now`` is the handled message's time."""

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
        """Note a wait for arguments since then."""
        if self.now < self.until and since > 0.0 and len(self._waited) < SAMPLES_MOST:
            self._waited.append(self.now - since)

    def take(self, now: float) -> dict[str, object]:
        """Take times of submission by task id, and seconds waited for arguments."""
        found: dict[str, object] = {"submitted": self._submitted, "waited": self._waited}
        self._submitted, self._waited, self.until = {}, [], now + MEASURED_SECONDS
        return found

    def workers_to_ask(self, now: float, workers: Iterable[WorkerRecord]) -> list[WorkerRecord]:
        """Take workers whose actors do not measure, or will soon stop."""
        if now >= self._ask_again_at:
            self._asked, self._ask_again_at = set(), now + MEASURED_SECONDS / 2
        found = [worker for worker in workers if worker.actors and worker.process is not None and worker.token not in self._asked]
        self._asked.update(worker.token for worker in found)
        return found
