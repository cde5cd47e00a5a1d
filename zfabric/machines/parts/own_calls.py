"""Calls that a logged actor makes of itself. They are part of its log: who made them dies with it, and nobody else would make them again.

A row of the log says which of them its call has made; a checkpoint has those that have not run. So a restart knows which are still to
be run, and a replay does not make them once more: the call that is run again is given those that it made at first.
"""

from __future__ import annotations

from collections.abc import Iterable

from zfabric.protocol.ids import TASK_BYTES
from zfabric.protocol.messages import Row
from zfabric.protocol.options import option


class OwnCalls:
    """Those of one actor. Rows are as in ``Call``, the values of their dependencies aside."""

    def __init__(self) -> None:
        self.waiting: dict[bytes, Row] = {}
        """Those that have not run, in the order in which they were made."""
        self._made: list[Row] = []

    def make(self, row: Row, logged: bool) -> None:
        """The actor calls itself. ``logged`` says that what makes the call will have a row, and is run again in a replay."""
        self.waiting[row[0]] = row
        if logged:
            self._made.append(row)

    def take(self) -> tuple[Row, ...]:
        """Those made since the last row: they are part of the next."""
        made, self._made = tuple(self._made), []
        return made

    def keep(self) -> tuple[Row, ...]:
        """Those that a checkpoint has: what was made before it belongs to no row after it."""
        self._made = []
        return tuple(self.waiting.values())

    def ended(self, call_id: bytes) -> None:
        """One has run, or will not be."""
        self.waiting.pop(call_id, None)

    def forget_all_but(self, pending: Iterable[bytes]) -> None:
        """The others have outcomes, though they have not run: they were stopped before, or what they needed was lost."""
        known = set(pending)
        self.waiting = {call_id: row for call_id, row in self.waiting.items() if call_id in known}

    def restore(self, kept: Iterable[Row], rows: Iterable[tuple[bytes, Iterable[Row]]]) -> None:
        """Begin with those that a checkpoint has and the rows after it, each with what it ran and which of these calls it has made."""
        self.waiting = {row[0]: row for row in kept}
        for call_id, made in rows:
            self.waiting.update((row[0], row) for row in made)
            self.ended(call_id)


def refs_in(rows: Iterable[Row], actor_id: bytes) -> list[bytes]:
    """What such calls refer to, but for the actor itself."""
    named = (each for row in rows if len(row) > 3 for each in (*row[3], *option(row[5], "contains", ())))
    return [identifier for identifier in named if identifier[:TASK_BYTES] != actor_id]
