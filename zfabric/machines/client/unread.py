"""Failures that a program does not ask for: unless they are shown, a program whose tasks all fail seems to have done its work.

A failure is *unread* from its arrival until the program reads it or passes it on: to a task or a call, which then fails with it, inside a
value, or to another process. It is *lost* when its last ref is dropped before that, or the program ends. Only failures are noted here,
when they arrive; a task that succeeds costs nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from zfabric.machines.client.objects import ObjectTable
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import FIRST_RETURN, TASK_BYTES
from zfabric.protocol.messages import ERROR, Row

EXPECTED_MAX = 10_000
"""Entries of ``_expected``, at most: more than most programs wait for in one ``get``."""
INTENDED = frozenset(
    {
        "ActorDiedError",
        "ActorUnavailableError",
        "ConnectionLostError",
        "JobEndedError",
        "NodeDiedError",
        "NotInitializedError",
        "ObjectFreedError",
        "StreamEnded",
        "TaskCancelledError",
    }
)
"""Failures that the program caused itself or was shown already: the death of an actor counts only if its ``__init__`` raised."""


class UnreadFailures:
    """Unread failures of one process's tasks and calls, by task. Used under the client's lock."""

    def __init__(self, objects: ObjectTable, needed: Container[bytes]) -> None:
        self.watching = False
        """Whether the shell shows lost failures; none is noted otherwise."""
        self.held: dict[bytes, tuple[tuple[int, bytes], set[bytes]]] = {}
        """Failures to which this process has refs: (status, data), and the objects."""
        self.lost: tuple[int, bytes] | None = None
        """The first failure that was lost."""
        self.count = 0
        """How many were lost."""
        self._expected: dict[bytes, None] = {}
        """Tasks without an outcome whose failure needs no mention: another process or a ``get`` receives it."""
        self._objects = objects
        self._needed = needed
        """Objects that rows without an outcome name (``RetainedObjects.needed``)."""

    def came(self, task_id: bytes, status: int, outputs: Row, held: Iterable[bytes]) -> None:
        """A task or a call has failed. ``held`` are the values of it to which this process has refs."""
        data = outputs[0] if outputs else None
        if not self.watching or type(data) is not bytes:
            return
        if task_id in self._expected:
            del self._expected[task_id]
            return
        if status != ERROR and not _counts(data):
            return
        names = set(held)
        if names:
            self.held[task_id] = ((status, data), names)
        elif not self._is_needed(task_id):
            self._lose((status, data))

    def dropped(self, identifier: bytes) -> None:
        """The last ref to a value of a task in ``held`` was dropped."""
        failure, names = self.held[identifier[:TASK_BYTES]]
        names.discard(identifier)
        if not names:
            del self.held[identifier[:TASK_BYTES]]
            if identifier not in self._needed:
                self._lose(failure)

    def read(self, identifiers: Iterable[bytes]) -> None:
        """The program, or a task that fails with them, has the failures of these objects, as far as they have arrived."""
        if self.held:
            for identifier in identifiers:
                self.held.pop(identifier[:TASK_BYTES], None)

    def expected(self, identifiers: Iterable[bytes]) -> None:
        """Failures of these objects need no mention, whether they have arrived or will."""
        if not self.watching:
            return
        for identifier in identifiers:
            if self.held.pop(identifier[:TASK_BYTES], None) is None and not self._objects.known(identifier):
                self._expected[identifier[:TASK_BYTES]] = None
        while len(self._expected) > EXPECTED_MAX:
            del self._expected[next(iter(self._expected))]

    def lose_all(self) -> None:
        """The program ends: count all unread failures as lost."""
        for failure, _ in self.held.values():
            self._lose(failure)
        self.held.clear()

    def _is_needed(self, task_id: bytes) -> bool:
        """Whether a row without an outcome names the value of a task to which this process has no ref: that row fails with it."""
        return task_id + FIRST_RETURN in self._needed

    def _lose(self, failure: tuple[int, bytes]) -> None:
        if not self.count:
            self.lost = failure
        self.count += 1


def _counts(data: bytes) -> bool:
    kind, _, facts = unpack_failure(data)
    return kind not in INTENDED or (kind == "ActorDiedError" and "cause" in dict(facts))
