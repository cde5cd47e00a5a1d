"""Failures that a program never reads: unless shown, a program whose tasks all fail seems to have done its work.

A failure is *unread* until the program reads it or passes it on: to a task or call that fails with it, inside a value, or to another
process. It is *lost* if before that its last ref is dropped, or the program ends.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable

from zfabric.machines.client.objects import ObjectTable
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import FIRST_RETURN, TASK_BYTES
from zfabric.protocol.messages import ERROR, Row

EXPECTED_MAX = 10_000
"""More than most programs wait for in one ``get``."""
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
"""Failures that the program caused itself or was shown. An actor's death is unread only if its ``__init__`` raised."""


class UnreadFailures:
    """Unread failures, by task."""

    def __init__(self, objects: ObjectTable, needed: Container[bytes]) -> None:
        self.watching = False
        """Whether the shell shows lost failures; else none is recorded. It ends with the program, since the job's end fails calls."""
        self.is_cancellation: Callable[[bytes], bool] = lambda data: False
        """Whether a packed exception is a cancelled task's. The shell sets it: it may unpickle."""
        self.held: dict[bytes, tuple[tuple[int, bytes], set[bytes]]] = {}
        """Failures with refs here: (status, data), and the objects."""
        self.lost: tuple[int, bytes] | None = None
        self.count = 0
        """Number of lost failures."""
        self._expected: dict[bytes, None] = {}
        """Pending tasks whose failure a ``get`` or another process will receive."""
        self._objects = objects
        self._needed = needed

    def arrived(self, task_id: bytes, status: int, outputs: Row, held: Iterable[bytes]) -> None:
        """Record a failure. ``held`` are its values with refs here."""
        data = outputs[0] if outputs else None
        if not self.watching or type(data) is not bytes:
            return
        if task_id in self._expected:
            del self._expected[task_id]
            return
        if self.is_cancellation(data) if status == ERROR else not _counts(data):
            return
        names = set(held)
        if names:
            self.held[task_id] = ((status, data), names)
        elif not self._is_needed(task_id):
            self._lose((status, data))

    def dropped(self, identifier: bytes) -> None:
        """Record that a last ref was dropped."""
        failure, names = self.held[identifier[:TASK_BYTES]]
        names.discard(identifier)
        if not names:
            del self.held[identifier[:TASK_BYTES]]
            if identifier not in self._needed:
                self._lose(failure)

    def read(self, identifiers: Iterable[bytes]) -> None:
        """Record that the program, or a dependent task, has read these."""
        if self.held:
            for identifier in identifiers:
                self.held.pop(identifier[:TASK_BYTES], None)

    def expected(self, identifiers: Iterable[bytes]) -> None:
        """Record that failures of these, present or future, are read elsewhere."""
        if not self.watching:
            return
        for identifier in identifiers:
            if self.held.pop(identifier[:TASK_BYTES], None) is None and not self._objects.known(identifier):
                self._expected[identifier[:TASK_BYTES]] = None
        while len(self._expected) > EXPECTED_MAX:
            del self._expected[next(iter(self._expected))]

    def lose_all(self) -> None:
        """Count all as lost: the program ends."""
        for failure, _ in self.held.values():
            self._lose(failure)
        self.held.clear()

    def ignore(self) -> None:
        """Record no more, and drop recorded ones."""
        self.watching = False
        self.held.clear()
        self.lost, self.count = None, 0

    def _is_needed(self, task_id: bytes) -> bool:
        return task_id + FIRST_RETURN in self._needed

    def _lose(self, failure: tuple[int, bytes]) -> None:
        if not self.count:
            self.lost = failure
        self.count += 1


def _counts(data: bytes) -> bool:
    kind, _, facts = unpack_failure(data)
    return kind not in INTENDED or (kind == "ActorDiedError" and "cause" in dict(facts))
