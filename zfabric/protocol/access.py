"""What a process of the node may say to which role of its daemon. Everything else that arrives on a socket is refused and counted.

Machines in one daemon say more to each other, but never over a socket; what a message claims about its sender's role is therefore
worth nothing, and what it may be is decided by whom it is for.
"""

from __future__ import annotations

from typing import Any

from zfabric.protocol import messages as m
from zfabric.protocol.ids import LOCAL_SCHEDULER, OBJECT_STORE

FROM_PROCESSES: dict[bytes, frozenset[type[Any]]] = {
    LOCAL_SCHEDULER: frozenset(
        {
            m.Register,
            m.Ready,
            m.Goodbye,
            m.Export,
            m.Submit,
            m.Handed,
            m.Told,
            m.Cancel,
            m.Put,
            m.Offer,
            m.Hold,
            m.Release,
            m.Fetch,
            m.Query,
            m.Printed,
            m.Inspected,
            m.Running,
            m.Completed,
            m.Yielded,
            m.Blocked,
            m.Unblocked,
            m.Awaits,
            m.TakenBack,
            m.Find,
            m.Expect,
            m.Reported,
            m.Kill,
            m.Leaving,
            m.Traced,
            m.Hosting,
            m.Logged,
            m.Checkpoint,
            m.Replaying,
            m.Counted,
            m.Ended,
            m.Delays,
        }
    ),
    OBJECT_STORE: frozenset({m.Reserve, m.ReturnGrant, m.GrantsHeld, m.Pinned, m.Unpin}),
}
"""Messages that drivers, workers and tools may send, by the role they are for."""
