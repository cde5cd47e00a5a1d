"""How long tasks and calls wait, while somebody measures.

Of tasks: when the first one of each batch was submitted, and how long tasks waited for arguments. Calls do not pass through the scheduler:
the processes of actors are asked to report how long these waited (``MeasureCalls``).

One task stands for its batch, so that a batch costs one comparison where nobody measures, and one entry in a table where somebody does.
When a task began is in its attempt's event: who measures puts both together.
"""

from __future__ import annotations

from collections.abc import Iterable

from zfabric.machines.local_scheduler.records import WorkerRecord

SAMPLES_MOST = 10_000
"""Most samples of each kind until they are asked for."""
MEASURED_SECONDS = 300.0
"""How long samples are taken after each time they were asked for: longer than the interval at which Prometheus usually asks."""


class Latencies:
    """Samples since they were last taken. ``now`` is the time of the message that is being handled."""

    def __init__(self) -> None:
        self.now = 0.0
        self.until = 0.0
        """Until when samples are taken."""
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
        """Note that a task has waited for its arguments since this time."""
        if self.now < self.until and since > 0.0 and len(self._waited) < SAMPLES_MOST:
            self._waited.append(self.now - since)

    def take(self, now: float) -> dict[str, object]:
        """Return the samples, and go on: when tasks were submitted, by id, and seconds for which tasks waited for arguments."""
        found: dict[str, object] = {"submitted": self._submitted, "waited": self._waited}
        self._submitted, self._waited, self.until = {}, [], now + MEASURED_SECONDS
        return found

    def workers_to_ask(self, now: float, workers: Iterable[WorkerRecord]) -> list[WorkerRecord]:
        """Take those workers with actors that do not measure calls yet, or not for long any more."""
        if now >= self._ask_again_at:
            self._asked, self._ask_again_at = set(), now + MEASURED_SECONDS / 2
        found = [worker for worker in workers if worker.actors and worker.process is not None and worker.token not in self._asked]
        self._asked.update(worker.token for worker in found)
        return found
