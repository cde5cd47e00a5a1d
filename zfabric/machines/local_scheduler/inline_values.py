"""The number of bytes of values in the memory of a local scheduler, rather than in the arena.

Above the setting ``inline_memory`` values move into the arena (``References.absorb``). A record's value is replaced here and nowhere else,
so that the count cannot miss a way in which a value arrives, moves or becomes an error. Two loops are exceptions, since every task passes
through them: its completion, and the release of its value. They set the records themselves and report the sum once per batch.
"""

from __future__ import annotations

from collections import Counter

from zfabric.machines.local_scheduler.records import AnyObject, Elsewhere, Stored


class InlineValues:
    """Owner of the count, which is one of a scheduler's ``counts``, so that ``zfabric status`` shows it."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    @property
    def total(self) -> int:
        """Bytes of all values in records."""
        return self._counts["inline_bytes"]

    def replace(self, record: AnyObject, value: bytes | Stored | Elsewhere | None) -> None:
        """Set the value of a record in the tables, or None."""
        before, record.value = record.value, value
        if isinstance(before, bytes):
            self._counts["inline_bytes"] -= len(before)
        if isinstance(value, bytes):
            self._counts["inline_bytes"] += len(value)

    def add(self, difference: int) -> None:
        """Count a batch of values that arrived (positive) or were dropped (negative) in one of the two loops above."""
        self._counts["inline_bytes"] += difference
