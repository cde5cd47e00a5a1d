"""How long tasks wait, while somebody measures: when the first task of each batch was submitted, and how long tasks waited for arguments.

One task stands for its batch, so that a batch costs one comparison where nobody measures, and one entry in a table where somebody does.
When a task began is in its attempt's event: who measures puts both together.
"""

from __future__ import annotations

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
