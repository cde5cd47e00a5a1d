"""Results of calls that others wait for before their callers have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

_NOBODY = (b"", b"")


class Promises:
    """Caller and actor of each promised result."""

    def __init__(self) -> None:
        self._of: dict[bytes, tuple[bytes, bytes]] = {}
        self._callers: Counter[bytes] = Counter()

    def add(self, identifier: bytes, caller: bytes, actor_id: bytes) -> None:
        """Record that others wait for a result."""
        self.remove(identifier)
        self._of[identifier] = (caller, actor_id)
        self._callers[caller] += 1

    def remove(self, identifier: bytes) -> None:
        """Remove a kept or void one."""
        caller, _ = self._of.pop(identifier, _NOBODY)
        if caller:
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller]

    def bound(self, process: bytes) -> bool:
        """Whether others wait for a result of this process alone."""
        return process in self._callers

    def caller(self, identifier: bytes) -> bytes:
        """Who promised it, or empty."""
        return self._of.get(identifier, _NOBODY)[0]

    def actor(self, identifier: bytes) -> bytes:
        """Whose call makes it, or empty."""
        return self._of.get(identifier, _NOBODY)[1]

    def count(self, actor_id: bytes) -> int:
        """How many promised results an actor owes."""
        return sum(1 for _, of in self._of.values() if of == actor_id)

    def by(self, process: bytes) -> list[bytes]:
        """Results that a process has promised."""
        return [each for each, (caller, _) in self._of.items() if caller == process] if self.bound(process) else []

    def __iter__(self) -> Iterator[bytes]:
        return iter(list(self._of))
