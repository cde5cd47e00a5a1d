"""What a local scheduler has sent to others and they have not acknowledged.

A ``PeerChannel`` has numbered messages to all other nodes, and what may be sent only when they are acknowledged: a barrier.

A node whose daemon is new has received nothing: numbers to it are dropped, and whatever waited waits for what is sent again, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container

from zfabric.protocol import messages as m


class PeerChannel:
    """Numbered messages to other nodes, and messages that wait for their acknowledgements.

    ``nodes`` are the living ones. ``send`` sends what need not wait any more. In an ``ordered`` channel, a node processes all messages in
    the order in which they were sent: what follows to the same node waits for other nodes only.
    """

    def __init__(self, nodes: Container[bytes], send: Callable[[bytes, m.Message], None], ordered: bool = False) -> None:
        self._nodes = nodes
        self._send = send
        self._ordered = ordered
        self.barrier = 0
        """The number of the last message: what is to wait for all messages so far waits for this one."""
        self._open: dict[int, bytes] = {}
        """The receiver of each message that is not acknowledged, by its number, in order."""
        self._waiting: deque[tuple[int, bytes, m.Message]] = deque()
        """Messages to send once a barrier has closed: (barrier, node, message)."""

    @property
    def is_clear(self) -> bool:
        """Whether ``send`` sends at once."""
        return not (self._open or self._waiting)

    def number_for(self, node: bytes) -> int:
        """Take the number of the next message, which this node is to acknowledge."""
        self.barrier += 1
        self._open[self.barrier] = node
        return self.barrier

    def acknowledged(self, node: bytes, number: int) -> None:
        """Accept an acknowledgement of a message by its receiver, and send what has waited for it."""
        if self._open.get(number) == node:
            del self._open[number]
            self._flush()

    def has_closed(self, barrier: int) -> bool:
        """Whether all messages up to this number are acknowledged, or their receivers are dead."""
        return not self._open or barrier < next(iter(self._open))

    def send(self, node: bytes, message: m.Message) -> None:
        """Send a message once all numbered messages so far are acknowledged. The order of these messages is preserved."""
        if self._waiting or (self._open and not (self._ordered and set(self._open.values()) == {node})):
            self._waiting.append((self.barrier, node, message))
        else:
            self._send(node, message)

    def drop(self, node: bytes) -> None:
        """Drop all messages to a node, which is dead or has a new daemon. ``renew`` is to follow."""
        self._open = {number: receiver for number, receiver in self._open.items() if receiver != node}
        self._waiting = deque(each for each in self._waiting if each[1] != node)

    def renew(self) -> None:
        """Have whatever waits wait for all numbered messages so far: some were sent again after a restart or a death."""
        self._waiting = deque((self.barrier, node, message) for _, node, message in self._waiting)
        self._flush()

    def _flush(self) -> None:
        while self._waiting and self.has_closed(self._waiting[0][0]):
            _, node, message = self._waiting.popleft()
            if node in self._nodes:
                self._send(node, message)
