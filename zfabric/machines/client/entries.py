"""What a process stores of one object."""

from __future__ import annotations

from zfabric.machines.client.pins import Place
from zfabric.protocol.messages import Row

PENDING = -1
"""The value's outcome has not arrived, and will be sent: this process submitted its task."""
ABSENT = -2
"""This process has nothing of the value and must fetch it."""


class ObjectEntry:
    """An object to which this process has refs, or whose task it submitted and which has no outcome.

    The two commonest kinds have no instance of this class, since every Python object costs the garbage collector time. In
    ``ObjectTable.entries`` a *row* stands for a task with one value, one ref and no outcome, and *bytes* for a small value with one ref.
    ``ObjectTable.entry`` makes an instance of either.

    ``data`` is inline bytes, a place in the arena, or None where it must be fetched. ``row`` is the task row until its outcome arrives.
    """

    __slots__ = ("data", "refs", "row", "status")

    def __init__(self, refs: int, status: int, data: bytes | Place | None, row: Row | None) -> None:
        self.refs = refs
        self.status = status
        self.data = data
        self.row = row
