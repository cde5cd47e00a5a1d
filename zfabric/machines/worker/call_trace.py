"""When calls of this process's actors ran, for the timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from zfabric.protocol import messages as m
from zfabric.protocol.messages import Row
from zfabric.protocol.trace import UNKNOWN, method_id, pack_times, pack_waited

CALLS_MAX = 1024
"""Calls per message: 48 kB. Unreported ones are lost if the process is killed."""
ARRIVALS_MAX = 65_536
"""Queued calls with an arrival; those behind have none."""


class CallTrace:
    """Calls since the last report."""

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

    It replaces the plain trace until ``until``, so that calls cost more only while somebody measures. ``present`` calls have arrived and
    not ended: others with an arrival were dropped.
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
