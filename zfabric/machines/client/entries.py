"""What a process knows of one object."""

from __future__ import annotations

from zfabric.machines.client.pins import Place
from zfabric.protocol.messages import Row

PENDING = -1
"""The value's outcome has not come, and will be pushed: this process submitted its task."""
ABSENT = -2
"""Nothing is known of the value: it must be fetched."""


class ObjectEntry:
    """An object that this process has refs to, or whose task it submitted and has not heard of.

    The two commonest kinds have no entry of their own, since every object a program creates costs its garbage collector twice over:
    in ``Client.entries`` a *row* stands for a task with one value, one ref, and no outcome yet, and *bytes* for a small value
    with one ref. ``Client.entry`` makes an entry of either.

    ``data`` is inline bytes, a place in the arena, or None where it must be fetched. ``row`` is the task row until its outcome comes.
    """

    __slots__ = ("data", "refs", "row", "status")

    def __init__(self, refs: int, status: int, data: bytes | Place | None, row: Row | None) -> None:
        self.refs = refs
        self.status = status
        self.data = data
        self.row = row
