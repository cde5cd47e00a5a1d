"""The objects of one process, who waits for them, and which places in the arena it has pinned (decision 0004)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Sequence

from zfabric.machines.client.outbox import Outbox
from zfabric.protocol import messages as m
from zfabric.protocol.messages import OK, Row

PENDING = -1
"""The outcome will be sent: this process submitted the task."""
ABSENT = -2
"""Nothing is here: the value must be fetched."""
Place = tuple[int, int]
"""(offset, size) in the arena."""


class ObjectEntry:
    """An object with refs here, or of a submitted task without an outcome.

    The two commonest kinds have no instance, since every Python object costs the garbage collector time. In ``ObjectTable.entries`` a *row*
    stands for a task with one value, one ref and no outcome, and *bytes* for a small value with one ref. ``ObjectTable.entry`` makes an
    instance of either.

    ``data`` is inline bytes, a place in the arena, or None where it must be fetched. ``row`` is the task row until its outcome arrives.
    """

    __slots__ = ("data", "refs", "row", "status")

    def __init__(self, refs: int, status: int, data: bytes | Place | None, row: Row | None) -> None:
        self.refs = refs
        self.status = status
        self.data = data
        self.row = row


class ObjectTable:
    """Entries by object id. The containers are never replaced: parts may store them."""

    def __init__(self, outbox: Outbox) -> None:
        self.entries: dict[bytes, ObjectEntry | Row | bytes] = {}
        self.fetching: set[bytes] = set()
        self.gets: dict[int, Sequence[bytes]] = {}
        """Objects of each ``get``: none is unpinned before all have arrived, or they would displace each other."""
        self.watchers: dict[bytes, list[Callable[[bytes], None]]] = {}
        """Called with an outcome and its value; objects in ``outcome_watchers`` are here, too."""
        self.outcome_watchers: dict[bytes, list[Callable[[bytes], None]]] = {}
        """Called with an outcome, wherever its value is."""
        self.dropped: deque[bytes] = deque()
        """Refs that finalizers, which take no lock, have dropped, for ``Releases.settle``."""
        self.failures = 0
        """Arrived failures. A ``get`` searches for some only after a change."""
        self._outbox = outbox

    def entry(self, identifier: bytes) -> ObjectEntry | None:
        """An object's entry, or None."""
        found = self.entries.get(identifier)
        if found is None or type(found) is ObjectEntry:
            return found
        row = None if type(found) is bytes else found
        entry = self.entries[identifier] = ObjectEntry(1, OK, found, None) if row is None else ObjectEntry(1, PENDING, None, row)  # type: ignore[arg-type]
        return entry

    def all_entries(self) -> list[tuple[bytes, ObjectEntry]]:
        """All entries, by object id."""
        return [(identifier, entry) for identifier in list(self.entries) if (entry := self.entry(identifier)) is not None]

    def inline_bytes(self) -> int:
        """Bytes of values outside of the arena."""
        values = (each.data if type(each) is ObjectEntry else each for each in self.entries.values())
        return sum(len(value) for value in values if type(value) is bytes)

    def lookup(self, identifier: bytes) -> ObjectEntry:
        """An object's entry; a new one has no refs, since the program's is not counted here."""
        entry = self.entry(identifier)
        if entry is None:
            entry = self.entries[identifier] = ObjectEntry(0, ABSENT, None, None)
            self._outbox.add(m.Hold, identifier)
        return entry

    def want(self, identifiers: Iterable[bytes]) -> None:
        """Request values that will not be sent unasked."""
        entries = self.entries
        for identifier in identifiers:
            found = entries.get(identifier)
            if type(found) is bytes or type(found) is tuple:
                continue
            entry = self.lookup(identifier)
            if entry.status != PENDING and entry.data is None and identifier not in self.fetching:
                self.fetching.add(identifier)
                self._outbox.add(m.Fetch, identifier)

    def at_hand(self, identifier: bytes) -> bool:
        """Whether ``get`` need not wait."""
        found = self.entries.get(identifier)
        return type(found) is bytes or (type(found) is ObjectEntry and found.data is not None)

    def known(self, identifier: bytes) -> bool:
        """Whether the object has an outcome, here or elsewhere."""
        found = self.entries.get(identifier)
        return type(found) is bytes or (type(found) is ObjectEntry and found.status >= 0)

    def has_failed(self, identifier: bytes) -> bool:
        """Whether the object has failed, here or elsewhere."""
        found = self.entries.get(identifier)
        return type(found) is ObjectEntry and found.status > OK

    def first_failure(self, identifiers: Iterable[bytes]) -> tuple[bytes, ...]:
        """The first of these objects that has failed here, if any."""
        for identifier in identifiers:
            found = self.entries.get(identifier)
            if type(found) is ObjectEntry and found.status > OK:
                if found.data is not None:
                    return (identifier,)
                self.want((identifier,))
        return ()

    def settle(self, identifier: bytes, entry: ObjectEntry, status: int, data: bytes | Place | None) -> None:
        """Store an outcome, and call watchers once the value is here."""
        entry.status = status
        entry.data = data
        if status != OK:
            self.failures += 1
        if identifier in self.watchers:
            for watcher in self.outcome_watchers.pop(identifier, ()):
                watcher(identifier)
            if data is None and status == OK and self.watchers[identifier]:
                self.want((identifier,))
                return
            for watcher in self.watchers.pop(identifier):
                watcher(identifier)

    def watch(self, identifier: bytes, watcher: Callable[[bytes], None]) -> None:
        """Call ``watcher`` once the outcome is here."""
        self.watchers.setdefault(identifier, []).append(watcher)
        self.want((identifier,))

    def watch_outcome(self, identifier: bytes, watcher: Callable[[bytes], None]) -> None:
        """Call ``watcher`` once the outcome has arrived; request the value only if no outcome comes without it."""
        self.outcome_watchers.setdefault(identifier, []).append(watcher)
        self.watchers.setdefault(identifier, [])
        self.want((identifier,))

    def give_up_watching(self) -> None:
        """Call all watchers: no outcome arrives any more."""
        while self.watchers:
            identifier, watchers = self.watchers.popitem()
            for watcher in (*self.outcome_watchers.pop(identifier, ()), *watchers):
                watcher(identifier)


class Pins:
    """Places in the arena that this process has received, and its values that look into them.

    Each received place is a pin, released (``Unpin``) when this process has neither a ref to the object nor a value that looks into it.
    ``referred`` has objects with refs; ``unpin`` releases one pin.
    """

    def __init__(self, referred: Container[bytes], unpin: Callable[[bytes], None]) -> None:
        self.counts: Counter[bytes] = Counter()
        self.places: dict[bytes, Place] = {}
        self.views: Counter[bytes] = Counter()
        """Live values that look into each object."""
        self._referred = referred
        self._unpin = unpin

    def add(self, identifier: bytes, place: Place) -> None:
        """Count a received place."""
        self.counts[identifier] += 1
        self.places[identifier] = place

    def view(self, identifier: bytes) -> None:
        """Count a value that looks into an object."""
        self.views[identifier] += 1

    def viewed(self, identifier: bytes) -> bool:
        """Whether a value looks into an object."""
        return self.views.get(identifier, 0) > 0

    def unview(self, identifier: bytes) -> None:
        """Count off a deleted value; unpin the object if unused."""
        self.views[identifier] -= 1
        if self.views[identifier] <= 0:
            del self.views[identifier]
            self.release_if_unused(identifier)

    def release_if_unused(self, identifier: bytes) -> None:
        """Unpin an object that is not in use."""
        if identifier not in self._referred and not self.viewed(identifier):
            self.release(identifier)

    def release(self, identifier: bytes) -> None:
        """Release all pins on an object."""
        self.places.pop(identifier, None)
        for _ in range(self.counts.pop(identifier, 0)):
            self._unpin(identifier)

    def rows(self) -> list[tuple[bytes, int, int]]:
        """For ``Pinned``, one row for each pin."""
        return [(identifier, *self.places[identifier]) for identifier in self.counts.elements()]
