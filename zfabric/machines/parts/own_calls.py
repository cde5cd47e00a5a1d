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
    """Those of one actor. Rows are as in ``Call``, the values of their dependencies aside.

    One that has no row of its own in the end (it was stopped before it ran, or its method is readonly) leaves a note, ``(call, ending)``,
    among those made: the row that follows it has that. An ending is ``(status, outputs)``.
    """

    def __init__(self) -> None:
        self.waiting: dict[bytes, Row] = {}
        """Those that have not run, in the order in which they were made."""
        self._made: list[Row] = []
        self._noted: set[bytes] = set()
        """Those of ``waiting`` that a row or a checkpoint has, or will have."""

    def make(self, row: Row, logged: bool) -> None:
        """The actor calls itself. ``logged`` says that what makes the call will have a row, and is run again in a replay."""
        self.waiting[row[0]] = row
        if logged:
            self._made.append(row)
            self._noted.add(row[0])

    def take(self) -> tuple[Row, ...]:
        """Those made since the last row: they are part of the next."""
        made, self._made = tuple(self._made), []
        return made

    def keep(self) -> tuple[Row, ...]:
        """Those that a checkpoint has: what was made before it belongs to no row after it."""
        self._made = []
        self._noted = set(self.waiting)
        return tuple(self.waiting.values())

    def ended(self, call_id: bytes, ending: Row | None = None) -> None:
        """One has run, or will not be: with this ``ending``, if it has no row."""
        if self.waiting.pop(call_id, None) is not None and call_id in self._noted:
            self._noted.remove(call_id)
            if ending is not None:
                self._made.append((call_id, ending))

    def forget_all_but(self, pending: Iterable[bytes]) -> None:
        """The others have outcomes, though they have not run: they were stopped before, or what they needed was lost."""
        known = set(pending)
        self.waiting = {call_id: row for call_id, row in self.waiting.items() if call_id in known}
        self._noted.intersection_update(known)

    def restore(self, kept: Iterable[Row], rows: Iterable[tuple[bytes, Iterable[Row]]]) -> None:
        """Begin with those that a checkpoint has and the rows after it, each with what it ran and which of these calls it has made."""
        self.waiting = {row[0]: row for row in kept}
        for call_id, made in rows:
            for row in made:
                if is_note(row):
                    self.ended(row[0])
                else:
                    self.waiting[row[0]] = row
            self.ended(call_id)
        self._noted = set(self.waiting)


def is_note(row: Row) -> bool:
    """Whether what a row of the log has is not a call, but how one ended."""
    return len(row) == 2


def refs_in(rows: Iterable[Row], actor_id: bytes) -> list[bytes]:
    """What such calls refer to, but for the actor itself."""
    named = (each for row in rows if len(row) > 3 for each in (*row[3], *option(row[5], "contains", ())))
    return [identifier for identifier in named if identifier[:TASK_BYTES] != actor_id]
