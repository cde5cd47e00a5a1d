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
            m.SubmittedDirect,
            m.DirectCounts,
            m.Cancel,
            m.Put,
            m.OfferResults,
            m.Hold,
            m.Release,
            m.Fetch,
            m.Query,
            m.OutputWritten,
            m.Inspected,
            m.RunningTasks,
            m.Completed,
            m.Yielded,
            m.Blocked,
            m.Unblocked,
            m.WaitDetails,
            m.TakenBack,
            m.FindActors,
            m.ExpectResults,
            m.CallOutcomes,
            m.KillActor,
            m.ActorExiting,
            m.CallTimes,
            m.HostedActors,
            m.LogAppended,
            m.Checkpoint,
            m.ReplayProgress,
            m.CallCounts,
            m.ActorEnded,
            m.HostDelays,
        }
    ),
    OBJECT_STORE: frozenset({m.Reserve, m.ReturnGrant, m.GrantsHeld, m.Pinned, m.Unpin}),
}
"""Messages that drivers, workers and tools may send, by the role they are for."""
