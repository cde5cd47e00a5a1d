"""Failures that a program does not ask for: without a word, a program whose tasks all fail would seem to have done its work.

A failure is *unread* from the moment at which it comes until somebody reads it, or passes it on: to a task or a call that needs it, which
then fails with it, inside a value, or to another process. It is *lost* when the last ref to it goes before that, or the program ends.
Only failures are noted here, when they come; a task that succeeds costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import FIRST_RETURN, TASK_BYTES
from zfabric.protocol.messages import ERROR, Row

if TYPE_CHECKING:
    from zfabric.machines.client.machine import Client

EXPECTED_MAX = 10_000
"""Tasks without an outcome that are remembered to need no mention: more than most programs have under way in one ``get``."""
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
"""Failures that follow from what the program did, or was told of: the death of an actor counts only if its ``__init__`` raised."""


class UnreadFailures:
    """The failures of one process's tasks and calls that nobody has read, by task. Works under its client's lock."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.watching = False
        """Whether the shell tells anybody; nothing is noted otherwise."""
        self.held: dict[bytes, tuple[tuple[int, bytes], set[bytes]]] = {}
        """Those that this process has refs to: the failure, (status, data), and the objects."""
        self.lost: tuple[int, bytes] | None = None
        """The first that was lost."""
        self.count = 0
        """How many were."""
        self._expected: dict[bytes, None] = {}
        """Tasks without an outcome whose failure needs no mention: somebody asked for it, or was given the ref."""

    def came(self, task_id: bytes, status: int, outputs: Row, held: Iterable[bytes]) -> None:
        """A task, or a call, has failed. ``held`` are those of its values that this process has refs to."""
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
        """The last ref to a value of a task in ``held`` is gone."""
        failure, names = self.held[identifier[:TASK_BYTES]]
        names.discard(identifier)
        if not names:
            del self.held[identifier[:TASK_BYTES]]
            if identifier not in self.client.keeping.needed:
                self._lose(failure)

    def read(self, identifiers: Iterable[bytes]) -> None:
        """Somebody has the failures of these, or what fails for them, as far as they have come."""
        if self.held:
            for identifier in identifiers:
                self.held.pop(identifier[:TASK_BYTES], None)

    def expected(self, identifiers: Iterable[bytes]) -> None:
        """Failures of these need no mention, whether they have come or will."""
        if not self.watching:
            return
        for identifier in identifiers:
            if self.held.pop(identifier[:TASK_BYTES], None) is None and not self.client.known(identifier):
                self._expected[identifier[:TASK_BYTES]] = None
        while len(self._expected) > EXPECTED_MAX:
            del self._expected[next(iter(self._expected))]

    def lose_all(self) -> None:
        """The program ends: what it has not read by now it will not read."""
        for failure, _ in self.held.values():
            self._lose(failure)
        self.held.clear()

    def _is_needed(self, task_id: bytes) -> bool:
        """Whether a row without an outcome names the value of a task to which nobody has a ref here: what it makes fails with it."""
        return task_id + FIRST_RETURN in self.client.keeping.needed

    def _lose(self, failure: tuple[int, bytes]) -> None:
        if not self.count:
            self.lost = failure
        self.count += 1


def _counts(data: bytes) -> bool:
    kind, _, facts = unpack_failure(data)
    return kind not in INTENDED or (kind == "ActorDiedError" and "cause" in dict(facts))
