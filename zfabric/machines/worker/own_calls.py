"""Calls that a logged actor makes of itself. They are part of its log: who made them dies with it, and nobody else would make them again.

A row of the log says which of them its call has made; a checkpoint has those that have not run. So a restart knows which are still to
be run, and a replay does not make them once more: the call that is run again is given those that it made at first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from zfabric.machines.common.log_format import is_note
from zfabric.protocol.failures import refs_inside
from zfabric.protocol.ids import TASK_BYTES
from zfabric.protocol.messages import Row
from zfabric.protocol.messages.rows import CALL_OPTIONS, DEPENDENCIES
from zfabric.protocol.options import option


class OwnCalls:
    """Those of one actor. Rows are as in ``Call``, the values of their dependencies aside.

    One that has no row of its own in the end (it was stopped before it ran, or its method is readonly) leaves a note, ``(call, ending)``,
    among those made: the row that follows it has that. An ending is ``(status, outputs)``.
    """

    def __init__(self) -> None:
        self.waiting: dict[bytes, Row] = {}
        """Those that have not run, in the order in which they were made."""
        self.needed: dict[bytes, Row] = {}
        """How those have ended whose values the waiting ones need, which nobody else has."""
        self._needs: Counter[bytes] = Counter()
        """Calls whose values are needed, and by how many."""
        self._made: list[Row] = []
        self._noted: set[bytes] = set()
        """Those of ``waiting`` that a row or a checkpoint has, or will have."""

    def make(self, row: Row, logged: bool) -> None:
        """The actor calls itself. ``logged`` says that what makes the call will have a row, and is run again in a replay."""
        self._await(row)
        if logged:
            self._made.append(row)
            self._noted.add(row[0])

    def take(self) -> tuple[Row, ...]:
        """Those made since the last row: they are part of the next."""
        made, self._made = tuple(self._made), []
        return made

    def keep(self) -> tuple[Row, ...]:
        """Those that a checkpoint has, behind notes of what they need: what was made before it belongs to no row after it."""
        self._made = []
        self._noted = set(self.waiting)
        return (*self.needed.items(), *self.waiting.values())

    def ended(self, call_id: bytes, ending: Row, logged: bool = True) -> None:
        """One has run, or will not be: ``logged`` says that it has a row."""
        row = self.waiting.pop(call_id, None)
        if row is None:
            return
        self._let_go(row)
        if call_id in self._needs:
            self.needed[call_id] = ending
        if call_id in self._noted:
            self._noted.remove(call_id)
            if not logged:
                self._made.append((call_id, ending))

    def forget_all_but(self, pending: Iterable[bytes]) -> None:
        """The others have outcomes, though they have not run: they were stopped before, or what they needed was lost."""
        known = set(pending)
        for call_id in [each for each in self.waiting if each not in known]:
            self._let_go(self.waiting.pop(call_id))
        self._noted.intersection_update(known)

    def restore(self, kept: Iterable[Row], rows: Iterable[tuple[bytes, Row, Iterable[Row]]]) -> None:
        """Begin with what a checkpoint has and the rows after it: which call each ran, how that ended, and which of these it has made."""
        for row in kept:
            if is_note(row):
                self.needed[row[0]] = row[1]
            else:
                self._await(row)
        for call_id, ending, made in rows:
            for row in made:
                if is_note(row):
                    self.ended(*row)
                else:
                    self._await(row)
            self.ended(call_id, ending)
        self._noted = set(self.waiting)

    def _await(self, row: Row) -> None:
        self.waiting[row[0]] = row
        self._needs.update(_needed_by(row))

    def _let_go(self, row: Row) -> None:
        for call_id in _needed_by(row):
            self._needs[call_id] -= 1
            if not self._needs[call_id]:
                del self._needs[call_id]
                self.needed.pop(call_id, None)


def _needed_by(row: Row) -> set[bytes]:
    return {identifier[:TASK_BYTES] for identifier in row[DEPENDENCIES]} if len(row) > DEPENDENCIES else set()


def named_by(rows: Iterable[Row]) -> list[bytes]:
    """Return ids of the objects that such rows need: arguments, refs inside arguments, and refs inside errors in their notes."""
    named: list[bytes] = []
    for row in rows:
        if is_note(row):
            status, outputs = row[1]
            named += refs_inside(status, outputs)
        elif len(row) > DEPENDENCIES:
            named += (*row[DEPENDENCIES], *option(row[CALL_OPTIONS], "contains", ()))
    return named
