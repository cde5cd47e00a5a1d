"""Refs to results of tasks that this process has passed on in outcomes.

What a task submits may end, and all its refs may have left with the task's value, before its row is in the control store
(``lineage_delay``). Then only the daemon has the result, if it is small, and a daemon that dies would take it along. So the process that
submitted the task keeps its refs for a second or two longer: it repeats the row, or the result, to the next daemon. After that time the
row is in the control store.
"""

from __future__ import annotations

from collections.abc import Collection

from zfabric.machines.client.objects import ObjectTable
from zfabric.protocol.ids import is_call, is_put

PASSED_MAX = 100_000
"""Refs after which older ones are dropped earlier."""


class PassedReferences:
    """Keeps refs for one to two rests. Used under the client's lock."""

    def __init__(self, objects: ObjectTable) -> None:
        self._objects = objects
        self._recent: list[bytes] = []
        """Refs that were passed on since the last rest."""
        self._older: list[bytes] = []
        """Refs that were passed on in the rest before it."""

    def __bool__(self) -> bool:
        """Whether any refs are kept."""
        return bool(self._recent or self._older)

    def add(self, identifiers: Collection[bytes]) -> None:
        """Keep one more ref to each result of a task among these. The process has refs to them all."""
        for identifier in identifiers:
            entry = None if is_put(identifier) or is_call(identifier) else self._objects.entry(identifier)
            if entry is not None:
                entry.refs += 1
                self._recent.append(identifier)
        if len(self._recent) > PASSED_MAX:
            self.rest()

    def rest(self) -> None:
        """Drop the refs that were kept before the last rest."""
        self._objects.dropped.extend(self._older)
        self._older, self._recent = self._recent, []
