"""Samples for the node's time series."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice
from typing import NamedTuple

from zfabric.machines.common.resources import ResourcePool
from zfabric.machines.common.time_series import FUNCTIONS_COUNTED, Sample, TimeSeries, largest
from zfabric.machines.local_scheduler.records import FunctionRecord, JobRecord
from zfabric.machines.local_scheduler.reports.diagnoses import running_task
from zfabric.machines.local_scheduler.reports.events import Events
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol.options import RESOURCE_UNIT


class Measured(NamedTuple):
    """By the shell: shares of processors and memory in use, bytes of values in the object store and on disk."""

    cpu: float
    memory: float
    store: int
    spilled: int


class Sampling:
    """Samples when the shell asks. Tasks are counted at their home, calls where they ran."""

    def __init__(
        self,
        tables: Tables,
        pool: ResourcePool,
        events: Events,
        take_ended: Callable[[], list[JobRecord]],
        copied_bytes: Mapping[bytes, int],
    ) -> None:
        self.series = TimeSeries()
        self._tables = tables
        self._pool = pool
        self._events = events
        self._take_ended = take_ended
        self._copied_bytes = copied_bytes
        self._seen: dict[FunctionRecord, tuple[int, int]] = {}
        """(ended, failed) tasks at the last sample."""
        self._last: tuple[float, int, int] | None = None
        """(time, calls, copied bytes) at the last sample."""

    def sample(self, now: float, measured: Measured) -> None:
        """Add a sample that ends now; the first call only begins."""
        tables = self._tables
        calls, copied = self._events.ended_calls, sum(self._copied_bytes.values())
        jobs = [*tables.jobs.values(), *self._take_ended()]
        ended, failed = self._count(jobs)
        last, self._last = self._last, (now, calls, copied)
        if last is None or now <= last[0]:
            return
        running = sum(not worker.remote and running_task(worker) is not None for worker in tables.workers.values())
        functions = list(islice((function for job in tables.jobs.values() for function in job.functions.values()), FUNCTIONS_COUNTED))
        used = self._pool.total.get("CPU", 0) - dict(self._pool.available()).get("CPU", 0)
        self.series.add(
            Sample(
                now,
                now - last[0],
                largest(ended),
                failed,
                calls - last[1],
                running,
                sum(function.unfinished for function in functions),
                sum(function.waiting for function in functions),
                measured.cpu,
                used / RESOURCE_UNIT,
                measured.memory,
                measured.store,
                measured.spilled,
                copied - last[2],
            )
        )

    def _count(self, jobs: list[JobRecord]) -> tuple[Counter[str], int]:
        seen, self._seen = self._seen, {}
        ended, failed = Counter[str](), 0
        has_names = sum(len(job.functions) for job in jobs) <= FUNCTIONS_COUNTED
        for function in (function for job in jobs for function in job.functions.values() if function.received or function.failed):
            now = self._seen[function] = function.done, function.failed
            before = seen.get(function, (0, 0))
            if now != before:
                ended[function.name if has_names else ""] += now[0] - before[0]
                failed += now[1] - before[1]
        return ended, failed

    def report(self, now: float, seconds: float = 0.0) -> list[dict[str, object]]:
        """The last ``seconds``; a list, so that nodes' answers can be joined."""
        fine, coarse = self.series.after(now - seconds)
        return [{"now": now, "fine": [tuple(each) for each in fine], "coarse": [tuple(each) for each in coarse]}]
