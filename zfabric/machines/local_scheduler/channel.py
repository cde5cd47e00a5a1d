"""What a local scheduler has sent to others and they have not acknowledged.

A node with a new daemon has received nothing: numbers to it are dropped, its outboxes are sent again, and whatever waited waits for these,
too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import TypeAlias, TypeVar

from zfabric.config import ROWS_MAX
from zfabric.protocol import messages as m

Item = TypeVar("Item")
Sent: TypeAlias = m.Ended | m.CallsEnded | m.RelayedYields | m.LogAppended | m.Checkpoint
"""Numbered messages, retained until they are acknowledged."""
Sender: TypeAlias = Callable[[bytes, m.Message], None]
"""Sends a message to a node."""
CallsByWorker: TypeAlias = Mapping[bytes, list[bytes]]
"""Ids of calls, by the worker that ran them."""
NO_CALLS: CallsByWorker = {}
Retained: TypeAlias = tuple[Sent, tuple[bytes, ...], CallsByWorker]
"""A message, the objects pinned for it, and the calls of which it has outcomes."""


def batches(rows: Iterable[Item]) -> Iterator[tuple[Item, ...]]:
    """Rows or ids in as many parts as messages."""
    rows = tuple(rows)
    for start in range(0, len(rows), ROWS_MAX):
        yield rows[start : start + ROWS_MAX]


class TurnOutbox(list[Item]):
    """What a part collects in a turn, for another part to take at its end. Any part may append."""

    def take(self) -> list[Item]:
        """Take all."""
        taken = self.copy()
        self.clear()
        return taken


class PeerChannel:
    """Numbered messages to other nodes, and messages that wait for their acknowledgements.

    ``nodes`` are the living ones; channels may share ``numbers``. In an ``ordered`` channel, a node processes messages in the order in
    which they were sent: what follows to the same node waits for other nodes only.
    """

    def __init__(self, nodes: Container[bytes], send: Sender, numbers: Iterator[int], ordered: bool = False) -> None:
        self._nodes = nodes
        self._send = send
        self._numbers = numbers
        self._ordered = ordered
        self.barrier = 0
        """The last number: what waits for all messages so far waits for this one."""
        self._open: dict[int, bytes] = {}
        """Receivers of unacknowledged messages, by number, in order."""
        self._waiting: deque[tuple[int, bytes, m.Message]] = deque()
        """Messages, (barrier, node, message), that wait."""

    @property
    def is_clear(self) -> bool:
        """Whether ``send`` sends at once."""
        return not (self._open or self._waiting)

    def number_for(self, node: bytes) -> int:
        """Take the next number, for this node to acknowledge."""
        self.barrier = next(self._numbers)
        self._open[self.barrier] = node
        return self.barrier

    def acknowledged(self, node: bytes, number: int) -> None:
        """Accept an acknowledgement, and send what waited for it."""
        if self._open.get(number) == node:
            del self._open[number]
            self._flush()

    def has_closed(self, barrier: int) -> bool:
        """Whether all up to this number are acknowledged, or their receivers dead."""
        return not self._open or barrier < next(iter(self._open))

    def send(self, node: bytes, message: m.Message) -> None:
        """Send, in order, once all numbered messages so far are acknowledged."""
        if self._waiting or (self._open and not (self._ordered and all(receiver == node for receiver in self._open.values()))):
            self._waiting.append((self.barrier, node, message))
        else:
            self._send(node, message)

    def drop(self, node: bytes) -> None:
        """Drop all to a node that is dead or has a new daemon; then call ``renew``."""
        self._open = {number: receiver for number, receiver in self._open.items() if receiver != node}
        self._waiting = deque(each for each in self._waiting if each[1] != node)

    def renew(self) -> None:
        """Have whatever waits wait for all so far: some were sent again."""
        self._waiting = deque((self.barrier, node, message) for _, node, message in self._waiting)
        self._flush()

    def _flush(self) -> None:
        while self._waiting and self.has_closed(self._waiting[0][0]):
            _, node, message = self._waiting.popleft()
            if node in self._nodes:
                self._send(node, message)


class PeerOutbox:
    """Messages to one node, in order, each retained until acknowledged.

    Outcomes of calls are retained until their caller has them, too: after a restart of the node's daemon they are repeated.
    """

    __slots__ = ("next", "retained")

    def __init__(self) -> None:
        self.next = 1
        self.retained: deque[Retained] = deque()

    def __iter__(self) -> Iterator[Sent]:
        return (entry[0] for entry in self.retained)

    def retain(self, message: Sent, pins: tuple[bytes, ...] = (), calls: CallsByWorker = NO_CALLS) -> None:
        """Retain a message that was sent."""
        self.retained.append((message, pins, calls))
        self.next = message.number + 1

    @property
    def free(self) -> int:
        """The number of an acknowledged message, for one that goes before all others; else 0."""
        return (self.retained[0][0].number if self.retained else self.next) - 1

    def retain_first(self, message: Sent, pins: tuple[bytes, ...]) -> None:
        """Retain a message before all others."""
        self.retained.appendleft((message, pins, NO_CALLS))

    def replace(self, message: Sent, by: Sent) -> None:
        """Retain another message with the same number and pins."""
        self.retained = deque((by if each is message else each, pins, calls) for each, pins, calls in self.retained)

    def acknowledged(self, number: int, lacking: m.Rows = ()) -> list[Retained]:
        """Remove and return what has been received, up to a number.

        ``lacking`` are callers that have outcomes only up to a number of their own: the others remain.
        """
        received: list[Retained] = []
        while self.retained and self.retained[0][0].number <= number:
            received.append(self.retained.popleft())
        if lacking:
            last: dict[bytes, int] = dict(lacking)
            remaining = [each for each in received if _is_lacked(each[0], last)]
            received = [each for each in received if not _is_lacked(each[0], last)]
            self.retained.extendleft(reversed(remaining))
        return received

    def take_all(self) -> list[Retained]:
        """Remove and return all messages."""
        entries = list(self.retained)
        self.retained.clear()
        return entries


def _is_lacked(message: Sent, last: dict[bytes, int]) -> bool:
    return isinstance(message, m.CallsEnded) and message.number > last.get(message.rows[0][1], message.number)


class PeerInbox:
    """A node's accepted and unacknowledged messages."""

    __slots__ = ("callers", "newest", "requested")

    def __init__(self) -> None:
        self.newest: int | None = None
        """The newest of these messages."""
        self.callers: dict[bytes, CallerReceipt] = {}
        """Processes here that may lack outcomes."""
        self.requested = False


class CallerReceipt:
    """What a process has received of outcomes from another node, in numbers of messages."""

    __slots__ = ("received", "requested", "sent", "token")

    def __init__(self) -> None:
        self.sent = 0
        self.received = 0
        """Everything up to this has arrived."""
        self.token = 0
        """The unanswered request for a receipt, or 0."""
        self.requested = 0
        """``sent`` when the receipt was requested."""
