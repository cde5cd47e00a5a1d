"""A logged actor's calls of itself: part of its log, since their caller dies with the actor and nobody would repeat them (decision 0013).

A log row has the calls that its call made, a checkpoint those that have not run. A replay does not make them again; the repeated call
receives their first ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from zfabric.machines.common.tables import is_note
from zfabric.protocol.failures import refs_inside
from zfabric.protocol.ids import TASK_BYTES
from zfabric.protocol.messages import Row
from zfabric.protocol.messages.rows import CALL_OPTIONS, DEPENDENCIES
from zfabric.protocol.options import option


class OwnCalls:
    """One actor's calls of itself. Rows are as in ``Call``, without values of dependencies.

    A call that ends without a row (stopped before it ran, or readonly) leaves a note, ``(call, ending)``, among the next row's calls. An
    ending is ``(status, outputs)``.
    """

    def __init__(self) -> None:
        self.waiting: dict[bytes, Row] = {}
        """Calls not run, in order."""
        self.needed: dict[bytes, Row] = {}
        """Endings whose values only waiting calls need."""
        self._needs: Counter[bytes] = Counter()
        self._made: list[Row] = []
        self._noted: set[bytes] = set()
        """Waiting calls that a row or checkpoint has, or will."""

    def make(self, row: Row, logged: bool) -> None:
        """Add a call. ``logged``: the calling call will have a row, and a replay."""
        self._await(row)
        if logged:
            self._made.append(row)
            self._noted.add(row[0])

    def take(self) -> tuple[Row, ...]:
        """Take the calls since the last row, for the next."""
        made, self._made = tuple(self._made), []
        return made

    def for_checkpoint(self) -> tuple[Row, ...]:
        """A checkpoint's rows: notes of needed values, then calls that have not run. Earlier calls belong to no later row."""
        self._made = []
        self._noted = set(self.waiting)
        return (*self.needed.items(), *self.waiting.values())

    def ended(self, call_id: bytes, ending: Row, logged: bool = True) -> None:
        """Record an ending. ``logged``: it has a row."""
        row = self.waiting.pop(call_id, None)
        if row is None:
            return
        self._release_needs(row)
        if call_id in self._needs:
            self.needed[call_id] = ending
        if call_id in self._noted:
            self._noted.remove(call_id)
            if not logged:
                self._made.append((call_id, ending))

    def retain_only(self, pending: Iterable[bytes]) -> None:
        """Drop waiting calls not ``pending``: they ended without running."""
        known = set(pending)
        for call_id in [each for each in self.waiting if each not in known]:
            self._release_needs(self.waiting.pop(call_id))
        self._noted.intersection_update(known)

    def restore(self, kept: Iterable[Row], rows: Iterable[tuple[bytes, Row, Iterable[Row]]]) -> None:
        """Restore from a checkpoint's rows, then from log rows: (call id, ending, calls that it made)."""
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

    def _release_needs(self, row: Row) -> None:
        for call_id in _needed_by(row):
            self._needs[call_id] -= 1
            if not self._needs[call_id]:
                del self._needs[call_id]
                self.needed.pop(call_id, None)


def _needed_by(row: Row) -> set[bytes]:
    return {identifier[:TASK_BYTES] for identifier in row[DEPENDENCIES]} if len(row) > DEPENDENCIES else set()


def named_by(rows: Iterable[Row]) -> list[bytes]:
    """Arguments, refs inside them, refs inside errors of notes."""
    named: list[bytes] = []
    for row in rows:
        if is_note(row):
            status, outputs = row[1]
            named += refs_inside(status, outputs)
        elif len(row) > DEPENDENCIES:
            named += (*row[DEPENDENCIES], *option(row[CALL_OPTIONS], "contains", ()))
    return named
