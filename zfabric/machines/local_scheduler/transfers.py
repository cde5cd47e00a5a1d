"""Values that cross between nodes in a turn: any part orders them, ``Fetching`` and ``Copies`` carry them out."""

from __future__ import annotations

from zfabric.machines.local_scheduler.channel import TurnOutbox
from zfabric.machines.local_scheduler.object_places import PENDING, Elsewhere
from zfabric.machines.local_scheduler.records import AnyObject


class ValueTransfers:
    """Values to fetch, copies to stop, and values to send."""

    def __init__(self) -> None:
        self.wanted: TurnOutbox[AnyObject] = TurnOutbox()
        self.unwanted: TurnOutbox[bytes] = TurnOutbox()
        """Values whose copying is to stop."""
        self.for_nodes: TurnOutbox[tuple[bytes, AnyObject]] = TurnOutbox()
        """(node, record) of existing values to send."""

    def __bool__(self) -> bool:
        return bool(self.wanted or self.unwanted or self.for_nodes)

    def want(self, record: AnyObject) -> None:
        """Request a value from its node. Others come by themselves."""
        value = record.value
        if isinstance(value, Elsewhere):
            if not value.asked:
                value.asked = True
                self.wanted.append(record)
        elif record.hold is not None and record.status == PENDING and not record.hold.asked:
            record.ask()
            self.wanted.append(record)

    def replace(self, before: AnyObject, after: AnyObject) -> None:
        """Send one record's value in place of another's."""
        self.for_nodes[:] = [(node, after if each is before else each) for node, each in self.for_nodes]
