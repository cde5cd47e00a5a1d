"""Which messages a process of the node may send to which role of its daemon, or of another process; and a daemon to that of another node.

All others that arrive on a socket are refused and counted.

Machines in one daemon send each other more kinds, but never over a socket. So the role that a message claims for its sender proves
nothing, and the receiving role alone decides which messages are accepted.
"""

from __future__ import annotations

from typing import Any

from zfabric.protocol import messages as m
from zfabric.protocol.ids import ACTOR, CLIENT, CONTROL, CONTROL_STORE, GLOBAL_SCHEDULER, LOCAL_SCHEDULER, MEMBER, OBJECT_STORE, REGISTRY

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
            m.WatchReferences,
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
            m.Call,
            m.OutcomesReceived,
            m.StopRelayed,
            m.CallsRepeated,
            m.Receipt,
            m.ActorExiting,
            m.ActorDrained,
            m.CallTimes,
            m.HostedActors,
            m.LogAppended,
            m.Checkpoint,
            m.ReplayProgress,
            m.CallCounts,
            m.ActorEnded,
            m.HostDelays,
            m.Pulled,
            m.PullFailed,
            m.PairsProbed,
            m.PeersSilent,
        }
    ),
    OBJECT_STORE: frozenset({m.Reserve, m.ReturnGrant, m.GrantsHeld, m.Pinned, m.Unpin}),
}
"""Messages that drivers, workers and tools may send, by the receiving role."""

FROM_NODES: dict[bytes, frozenset[type[Any]]] = {
    LOCAL_SCHEDULER: frozenset(
        {
            m.RegisterNode,
            m.Ready,
            m.RunningDelegated,
            m.ClaimValues,
            m.RetainedValues,
            m.Delegate,
            m.StopDelegated,
            m.StopChildren,
            m.Cancel,
            m.Reclaim,
            m.Reclaimed,
            m.Ended,
            m.RelayedYields,
            m.AllowYields,
            m.EndsReceived,
            m.Borrow,
            m.Borrowed,
            m.FetchValues,
            m.FetchedValues,
            m.CopyLost,
            m.NodeDraining,
            m.CopyValues,
            m.ValuesCopied,
            m.Entrust,
            m.Entrusted,
            m.Finished,
            m.Withdraw,
            m.Remains,
            m.RetainCopies,
            m.TookOver,
            m.RetainRows,
            m.ReleaseRows,
            m.Query,
            m.Answer,
            m.Release,
            m.WatchReferences,
            m.Unreferenced,
            m.EndJob,
            m.JobGone,
            m.JobLives,
            m.JobOutput,
            m.AskRoom,
            m.NodeRoom,
            m.RoomGrew,
            m.PrepareBundles,
            m.BundlesPrepared,
            m.CommitBundles,
            m.FreeBundles,
            m.HoldBundles,
            m.WatchGroup,
            m.GroupState,
            m.FindActors,
            m.ActorLocations,
            m.KillActor,
            m.ClaimName,
            m.NameClaimed,
            m.FreeName,
            m.RelayedCalls,
            m.RelayedReceipt,
            m.StopRelayed,
            m.CallsEnded,
            m.CallerGone,
            m.RetireActor,
            m.ActorExiting,
            m.LifeEnded,
            m.RelayedBlock,
            m.RelayedCheckpoint,
            m.LogRecorded,
            m.ReadLog,
            m.LogPage,
            m.ReplayProgress,
            m.CallCounts,
            m.Placed,
            m.JobNumber,
            m.Written,
            m.Found,
            m.KeyAnswer,
        }
    ),
    CONTROL_STORE: frozenset(
        {
            m.NewJob,
            m.Read,
            m.Write,
            m.DeleteRows,
            m.PutKey,
            m.PutPart,
            m.DropUpload,
            m.DeleteKeys,
            m.GetKey,
            m.ListKeys,
            m.EndKeys,
        }
    ),
    GLOBAL_SCHEDULER: frozenset({m.Heartbeat, m.Place}),
    REGISTRY: frozenset({m.Join, m.RenewLease, m.Leave, m.Complain, m.PairsProbed}),
    MEMBER: frozenset({m.Joined, m.Refused, m.NodeTable, m.LeaseRenewed, m.Expelled, m.ProbePairs}),
}
"""Messages that the daemons of other nodes may send, by the receiving role."""

FROM_PEERS: dict[bytes, frozenset[type[Any]]] = {
    CLIENT: frozenset({m.Returned, m.OutputWritten, m.Results}),
    ACTOR: frozenset({m.Call, m.OutcomesReceived, m.SubmitDirect}),
    CONTROL: frozenset({m.StopCall}),
}
"""Messages that a process may send to another process of its node, by the receiving role."""

FROM_AGENTS: frozenset[type[Any]] = frozenset({m.Want, m.Credit, m.StopWant, m.Chunk, m.Queued, m.Redirect, m.Unavailable, m.Ping, m.Pong})
"""Messages that transfer agents of other nodes may send to this node's agent. They have sockets of their own."""
