"""Bytes of values in the scheduler's memory rather than in the arena.

Above ``inline_memory``, values move to the arena (``References.absorb``). Values of records are set here, so that the count is exact. Two
hot loops set them themselves and report a sum per batch: completion of tasks, and release.
"""

from __future__ import annotations

from collections import Counter

from zfabric.machines.local_scheduler.records import AnyObject, Elsewhere, Stored


class InlineValues:
    """Owner of the count, one of the scheduler's ``counts``."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    @property
    def total(self) -> int:
        """Bytes of all inline values."""
        return self._counts["inline_bytes"]

    def replace(self, record: AnyObject, value: bytes | Stored | Elsewhere | None) -> None:
        """Set the value of a record, or None."""
        before, record.value = record.value, value
        if isinstance(before, bytes):
            self._counts["inline_bytes"] -= len(before)
        if isinstance(value, bytes):
            self._counts["inline_bytes"] += len(value)

    def add(self, difference: int) -> None:
        """Count a batch of one of the two hot loops."""
        self._counts["inline_bytes"] += difference
