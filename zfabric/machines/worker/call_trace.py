"""When calls of this process's actors ran: gathered, and said now and then, since nobody waits for it."""

from __future__ import annotations

from zfabric.protocol import messages as m
from zfabric.protocol.messages import Row
from zfabric.protocol.trace import method_id, pack_times

CALLS_MAX = 1024
"""Calls that are told of in one message: 48 kB. What has not been said when the process is killed is not known."""


class CallTrace:
    """Calls that have ended since they were last told of."""

    def __init__(self) -> None:
        self._methods: dict[tuple[bytes, str], bytes] = {}
        self._names: dict[bytes, str] = {}
        """What methods are called, by the ids they have in traces."""
        self._ran: list[bytes] = []
        self._call_ids: list[bytes] = []
        """What ran, and in which call: of each the same place."""
        self._times: list[float] = []

    def add(self, call_id: bytes, actor_id: bytes, class_name: str, method: str, started: float, seconds: float) -> None:
        """A call has ended."""
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
        """Whether it is time to tell of them, however long ago that was done."""
        return len(self._ran) >= CALLS_MAX

    def take(self, took: list[Row]) -> m.CallTimes | None:
        """What is to be said, if anything, with what calls took: that is said but once."""
        if not self._ran:
            return None
        names = tuple((identifier, self._names[identifier]) for identifier in sorted(set(self._ran)))
        traced = m.CallTimes(names, b"".join(self._call_ids) + pack_times(self._ran, self._times), tuple(took))
        took.clear()
        self._ran, self._call_ids, self._times = [], [], []
        return traced
