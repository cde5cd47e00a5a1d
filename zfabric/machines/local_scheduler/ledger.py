"""What other nodes retain for this one: entries of several kinds, such as holds of objects (``protocol.messages.ledger``).

Any part enters and ends entries; each node is sent them once per turn. The order: what may end another node's hold (``Ended``,
``EndsReceived``, a hold's end) leaves only when every earlier hold of this node is acknowledged, and what makes another node depend on a
row only when every earlier row is.

After a restart of either daemon, what counts is entered again, and whatever waited waits for these entries, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from itertools import count, takewhile
from typing import Any, TypeAlias

from zfabric.machines.local_scheduler.channel import PeerChannel, Sender, batches
from zfabric.machines.local_scheduler.records import AnyObject
from zfabric.protocol import messages as m
from zfabric.protocol.messages import HOLD, ROW, SEARCH

Entry: TypeAlias = tuple[str, Any]
"""Kind, and id of an object or task, or a row."""


class Ledger:
    """New and ended entries, and what waits for acknowledgements. ``nodes`` are the living ones."""

    def __init__(self, nodes: Container[bytes], send: Sender) -> None:
        self._nodes = nodes
        self._send = send
        numbers = count(1)
        self.rows = PeerChannel(nodes, send, numbers, ordered=True)
        """``Entrust`` messages; what makes another node depend on objects goes behind them."""
        self.holds = PeerChannel(nodes, self.rows.send, numbers)
        """Holds and searches; what may end a hold goes behind them, and behind rows."""
        self.added: dict[bytes, dict[Entry, None]] = {}
        """New entries, by node."""
        self.ended: dict[tuple[bytes, Entry], None] = {}
        """Entries that ended in this turn."""
        self._releasing: dict[tuple[bytes, bytes], int] = {}
        """Barriers of ended holds, (node, object), ascending."""

    # -- entries --

    def add(self, node: bytes, kind: str, identifier: Any) -> None:
        """Enter; or undo an end that is not sent yet."""
        entry = kind, identifier
        if (node, entry) in self.ended:
            del self.ended[node, entry]
        elif kind != HOLD or self._releasing.pop((node, identifier), None) is None:
            self.added.setdefault(node, {})[entry] = None

    def end(self, node: bytes, kind: str, identifier: Any) -> None:
        """End; or undo an entry that is not sent yet."""
        entry = kind, identifier
        if entry in self.added.get(node, ()):
            del self.added[node][entry]
        else:
            self.ended[node, entry] = None

    def hold(self, record: AnyObject) -> None:
        """Hold another home's object, if something here needs it."""
        if record.hold is not None and record.is_needed and record.hold.register():
            self.add(record.hold.home, HOLD, record.object_id)

    def give_back(self, record: AnyObject) -> None:
        """End the hold of another home's object."""
        if record.hold is not None and record.hold.give_back():
            self.end(record.hold.home, HOLD, record.object_id)

    def retain_row(self, record: AnyObject) -> None:
        """Have another home retain an object's row."""
        if record.hold is not None and record.hold.retain_row():
            self.add(record.hold.home, ROW, record.object_id)

    def enter_again(self, record: AnyObject) -> bool:
        """Enter what this node needs of an object, at its next home or daemon. Return whether it needs anything."""
        hold = record.hold
        assert hold is not None
        if hold.registered:
            self.add(hold.home, HOLD, record.object_id)
        if hold.row_retained:
            self.add(hold.home, ROW, record.object_id)
        return hold.registered or hold.row_retained

    # -- messages --

    @property
    def is_clear(self) -> bool:
        """Whether nothing waits for an acknowledgement."""
        return not self.added and self.holds.is_clear and self.rows.is_clear

    @property
    def is_due(self) -> bool:
        """Whether there may be messages."""
        return bool(self.added or self.ended or self._releasing)

    def send_added(self, node: bytes) -> None:
        """Send the new entries of one node at once."""
        for message in self._take_added(node):
            self._send(node, message)

    def _take_added(self, node: bytes) -> list[m.UpdateLedger]:
        """Take the new entries of one node. Messages with holds or searches are to be acknowledged."""
        return [
            m.UpdateLedger(self.holds.number_for(node) if any(kind in (HOLD, SEARCH) for kind, _ in batch) else 0, _by_kind(batch))
            for batch in batches(self.added.pop(node, ()))
        ]

    def take(self) -> dict[bytes, list[m.UpdateLedger]]:
        """Take all new entries, and ended ones: holds once their barrier has closed."""
        found = {node: self._take_added(node) for node in list(self.added)}
        ended: defaultdict[bytes, list[Entry]] = defaultdict(list)
        for node, entry in self.ended:
            if entry[0] == HOLD:
                self._releasing.pop((node, entry[1]), None)  # So that barriers rise.
                self._releasing[node, entry[1]] = self.holds.barrier
            else:
                ended[node].append(entry)
        self.ended.clear()
        for node, object_id in self._take_released():
            ended[node].append((HOLD, object_id))
        for node, entries in ended.items():
            messages = found.setdefault(node, [])
            for batch in batches(entries if node in self._nodes else ()):
                if messages and not messages[-1].ended:
                    messages[-1] = messages[-1]._replace(ended=_by_kind(batch))
                else:
                    messages.append(m.UpdateLedger(0, (), _by_kind(batch)))
        return found

    def _take_released(self) -> list[tuple[bytes, bytes]]:
        due = list(takewhile(lambda each: self.holds.has_closed(self._releasing[each]), self._releasing))
        for each in due:
            del self._releasing[each]
        return due

    # -- acknowledgements --

    def acknowledged(self, node: bytes, number: int) -> None:
        """Accept an acknowledgement, and send what waited for it."""
        self.rows.acknowledged(node, number)
        self.holds.acknowledged(node, number)

    def drop(self, node: bytes) -> None:
        """Drop all to a node that is dead or has a new daemon; then enter what counts again, and call ``renew``."""
        self.rows.drop(node)
        self.holds.drop(node)
        self.added.pop(node, None)
        self.ended = {each: None for each in self.ended if each[0] != node}
        self._releasing = {each: barrier for each, barrier in self._releasing.items() if each[0] != node}

    def renew(self) -> None:
        """Have whatever waits wait for all so far: some was sent again."""
        self._releasing = dict.fromkeys(self._releasing, self.holds.barrier)
        self.rows.renew()
        self.holds.renew()


def _by_kind(entries: Iterable[Entry]) -> m.Rows:
    """Rows ``(kind, entries)``."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for kind, identifier in entries:
        found[kind].append(identifier)
    return tuple((kind, tuple(ids)) for kind, ids in found.items())
