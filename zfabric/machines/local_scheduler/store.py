"""This node's object store, as its scheduler sees it: free room, batches of a turn, and who waits for the place of a value."""

from __future__ import annotations

from collections.abc import Container

from zfabric.protocol import messages as m
from zfabric.protocol.effects import Effect, Send
from zfabric.protocol.ids import Address


class NodeStore:
    """Batches of a turn for the object store, and processes and nodes that wait for its answers.

    Without a store, ``address`` is None and nothing is sent.
    """

    def __init__(self, address: Address | None) -> None:
        self.address = address
        self.room: int | None = None
        """Free bytes; None above half."""
        self.is_due = False
        """Whether there are batches to send."""
        self._ahead: list[m.Message] = []
        self._sealed: list[m.Row] = []
        self._absorbed: list[m.Row] = []
        self._locates: list[m.Row] = []
        self._freed: list[bytes] = []
        self._waiting: dict[bytes, list[bytes]] = {}
        """Processes and nodes that wait for the place of each value."""

    # -- batches --

    def seal(self, object_id: bytes, offset: int, size: int, writer: bytes, rebuildable: bool) -> None:
        """Give an id to a value that ``writer`` has written."""
        self._sealed.append((object_id, offset, size, writer, rebuildable))
        self.is_due = True

    def absorb(self, object_id: bytes, value: bytes, rebuildable: bool) -> None:
        """Have the store write an inline value."""
        self._absorbed.append((object_id, value, rebuildable))
        self.is_due = True

    def free(self, object_id: bytes) -> None:
        """Free a value."""
        self._freed.append(object_id)
        self.is_due = True

    def locate(self, object_id: bytes, asker: bytes) -> None:
        """Have a value pinned for a process, or for this scheduler."""
        self._locates.append((object_id, asker))
        self.is_due = True

    @property
    def being_located(self) -> list[bytes]:
        """Values located in this turn."""
        return [row[0] for row in self._locates]

    def take_sealed(self) -> list[m.Row]:
        """Take this turn's seals, to send them ahead."""
        sealed, self._sealed = self._sealed, []
        return sealed

    def send_ahead(self, *messages: m.Message) -> None:
        """Send ahead of this turn's batches: the end of a recovery."""
        self._ahead += messages
        self.is_due = True

    def take_batches(self) -> list[Effect]:
        """Take what is to be sent, in order."""
        messages = self._ahead
        if self._sealed:
            messages.append(m.Sealed(tuple(self._sealed)))
        if self._absorbed:
            messages.append(m.Absorb(tuple(self._absorbed)))
        if self._locates:
            messages.append(m.Locate(tuple(self._locates)))
        if self._freed:
            messages.append(m.Free(tuple(self._freed)))
        self.is_due = False
        self._ahead, self._sealed, self._absorbed, self._locates, self._freed = [], [], [], [], []
        return [Send(self.address, each) for each in messages] if self.address is not None else []

    # -- places --

    def locate_for(self, object_id: bytes, process: bytes) -> None:
        """Have a value located for a process that may exit or be refused meanwhile."""
        self.locate(object_id, process)
        self._waiting.setdefault(object_id, []).append(process)

    def read_for(self, object_id: bytes, node: bytes, nodes: Container[bytes], reader: bytes) -> None:
        """Have a value read by ``reader``, this scheduler, for one of ``nodes``. One reading serves all of them."""
        waiting = self._waiting.setdefault(object_id, [])
        if not any(each in nodes for each in waiting):
            self.locate(object_id, reader)
        waiting.append(node)

    def located(self, object_id: bytes, process: bytes) -> None:
        """Note that a process has its answer."""
        waiting = self._waiting.get(object_id)
        if waiting is not None and process in waiting:
            waiting.remove(process)
            if not waiting:
                del self._waiting[object_id]

    def was_read(self, object_id: bytes, nodes: Container[bytes]) -> list[bytes]:
        """Take the nodes for which a value was read."""
        waiting = self._waiting.pop(object_id, [])
        if left := [each for each in waiting if each not in nodes]:
            self._waiting[object_id] = left
        return [each for each in waiting if each in nodes]

    def take_waiting(self, object_id: bytes) -> list[bytes]:
        """Take all that wait for a value, which is lost."""
        return self._waiting.pop(object_id, [])

    def process_gone(self, process: bytes) -> None:
        """Drop what a process or node waits for: the store answers the living only."""
        for object_id in [each for each, waiting in self._waiting.items() if process in waiting]:
            if left := [each for each in self._waiting.pop(object_id) if each != process]:
                self._waiting[object_id] = left

    @property
    def waiting(self) -> dict[bytes, tuple[bytes, ...]]:
        """Processes and nodes that wait, by object id."""
        return {object_id: tuple(each) for object_id, each in self._waiting.items()}
