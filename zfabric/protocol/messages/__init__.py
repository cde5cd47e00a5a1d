"""Every message of the fabric: its sender and receiver, what it carries, and what happens when it is lost or comes twice.

Messages travel over *links* (``zfabric.machines.common.link``), which number, acknowledge, repeat and deduplicate them. Between two
living incarnations each message arrives once and in order. When an incarnation ends, its unprocessed messages are lost. The processes that
hold the same state then send it again when they register (``Register`` … ``Ready``). That is what happens to a lost message
wherever a docstring below says nothing else.

A *row* is an immutable tuple of bytes, int, float, bool, str, None and tuples. The row layouts that several messages share:

``task row``    ``(task_id, function_id, arguments, dependencies[, options])``: enough to run the task, more than once if need be.
                ``arguments`` are serialized bytes. ``dependencies`` are the ids of the objects that top-level arguments
                stand for, in the order of their place-holders. ``options`` is None or a tuple of (name, value) pairs
                that differ from the function's own, plus ``("contains", (object_id, …))`` for refs inside arguments.
``value``       ``bytes`` inline, or ``(offset, size)`` in the node's arena, or None for a value that is not sent.
``outputs``     a tuple of values, one per return.

Everything is data: no scheduler, store or tool ever unpickles it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, TypeAlias

from zfabric.protocol.messages import (
    actors,
    arena,
    cluster,
    control_store,
    delegation,
    failover,
    groups,
    key_values,
    node,
    placement,
    queries,
    registration,
    relays,
    tasks,
    transfer,
    values,
)
from zfabric.protocol.messages.actors import ALIVE as ALIVE
from zfabric.protocol.messages.actors import CREATING as CREATING
from zfabric.protocol.messages.actors import DEAD as DEAD
from zfabric.protocol.messages.actors import ActorDrained as ActorDrained
from zfabric.protocol.messages.actors import ActorEnded as ActorEnded
from zfabric.protocol.messages.actors import ActorExiting as ActorExiting
from zfabric.protocol.messages.actors import ActorLocations as ActorLocations
from zfabric.protocol.messages.actors import Call as Call
from zfabric.protocol.messages.actors import CallCounts as CallCounts
from zfabric.protocol.messages.actors import CallerGone as CallerGone
from zfabric.protocol.messages.actors import CallOutcomes as CallOutcomes
from zfabric.protocol.messages.actors import CallTimes as CallTimes
from zfabric.protocol.messages.actors import Checkpoint as Checkpoint
from zfabric.protocol.messages.actors import DrainActor as DrainActor
from zfabric.protocol.messages.actors import ExpectResults as ExpectResults
from zfabric.protocol.messages.actors import FindActors as FindActors
from zfabric.protocol.messages.actors import HostDelays as HostDelays
from zfabric.protocol.messages.actors import HostedActors as HostedActors
from zfabric.protocol.messages.actors import KillActor as KillActor
from zfabric.protocol.messages.actors import LogAppended as LogAppended
from zfabric.protocol.messages.actors import LogCommitted as LogCommitted
from zfabric.protocol.messages.actors import OutcomesReceived as OutcomesReceived
from zfabric.protocol.messages.actors import OutcomesRecorded as OutcomesRecorded
from zfabric.protocol.messages.actors import ReplayProgress as ReplayProgress
from zfabric.protocol.messages.actors import RetireActor as RetireActor
from zfabric.protocol.messages.actors import Returned as Returned
from zfabric.protocol.messages.actors import StopCall as StopCall
from zfabric.protocol.messages.arena import Absorb as Absorb
from zfabric.protocol.messages.arena import ArenaFound as ArenaFound
from zfabric.protocol.messages.arena import ExtentReady as ExtentReady
from zfabric.protocol.messages.arena import FileReady as FileReady
from zfabric.protocol.messages.arena import Free as Free
from zfabric.protocol.messages.arena import Granted as Granted
from zfabric.protocol.messages.arena import GrantsHeld as GrantsHeld
from zfabric.protocol.messages.arena import Locate as Locate
from zfabric.protocol.messages.arena import Located as Located
from zfabric.protocol.messages.arena import NoSpace as NoSpace
from zfabric.protocol.messages.arena import ObjectsLost as ObjectsLost
from zfabric.protocol.messages.arena import Pinned as Pinned
from zfabric.protocol.messages.arena import ProcessGone as ProcessGone
from zfabric.protocol.messages.arena import Protect as Protect
from zfabric.protocol.messages.arena import RecallGrant as RecallGrant
from zfabric.protocol.messages.arena import RecallPins as RecallPins
from zfabric.protocol.messages.arena import Reserve as Reserve
from zfabric.protocol.messages.arena import Restored as Restored
from zfabric.protocol.messages.arena import RetainOnly as RetainOnly
from zfabric.protocol.messages.arena import ReturnGrant as ReturnGrant
from zfabric.protocol.messages.arena import Sealed as Sealed
from zfabric.protocol.messages.arena import Spilled as Spilled
from zfabric.protocol.messages.arena import StoreRoom as StoreRoom
from zfabric.protocol.messages.arena import Unpin as Unpin
from zfabric.protocol.messages.cluster import Complain as Complain
from zfabric.protocol.messages.cluster import Expelled as Expelled
from zfabric.protocol.messages.cluster import Join as Join
from zfabric.protocol.messages.cluster import Joined as Joined
from zfabric.protocol.messages.cluster import LeaseRenewed as LeaseRenewed
from zfabric.protocol.messages.cluster import Leave as Leave
from zfabric.protocol.messages.cluster import NodeTable as NodeTable
from zfabric.protocol.messages.cluster import PairsProbed as PairsProbed
from zfabric.protocol.messages.cluster import ProbePairs as ProbePairs
from zfabric.protocol.messages.cluster import RenewLease as RenewLease
from zfabric.protocol.messages.cluster import Unreachable as Unreachable
from zfabric.protocol.messages.control_store import Committed as Committed
from zfabric.protocol.messages.control_store import Create as Create
from zfabric.protocol.messages.control_store import DeleteRows as DeleteRows
from zfabric.protocol.messages.control_store import Found as Found
from zfabric.protocol.messages.control_store import JobNumber as JobNumber
from zfabric.protocol.messages.control_store import NewJob as NewJob
from zfabric.protocol.messages.control_store import Read as Read
from zfabric.protocol.messages.control_store import ReadBlocks as ReadBlocks
from zfabric.protocol.messages.control_store import Scan as Scan
from zfabric.protocol.messages.control_store import Swap as Swap
from zfabric.protocol.messages.control_store import Write as Write
from zfabric.protocol.messages.control_store import Written as Written
from zfabric.protocol.messages.delegation import ANY_DAEMON as ANY_DAEMON
from zfabric.protocol.messages.delegation import LOST as LOST
from zfabric.protocol.messages.delegation import STAYS as STAYS
from zfabric.protocol.messages.delegation import Borrow as Borrow
from zfabric.protocol.messages.delegation import Borrowed as Borrowed
from zfabric.protocol.messages.delegation import ClaimValues as ClaimValues
from zfabric.protocol.messages.delegation import CopyLost as CopyLost
from zfabric.protocol.messages.delegation import CopyValues as CopyValues
from zfabric.protocol.messages.delegation import Delegate as Delegate
from zfabric.protocol.messages.delegation import Ended as Ended
from zfabric.protocol.messages.delegation import EndJob as EndJob
from zfabric.protocol.messages.delegation import EndsReceived as EndsReceived
from zfabric.protocol.messages.delegation import FetchedValues as FetchedValues
from zfabric.protocol.messages.delegation import FetchValues as FetchValues
from zfabric.protocol.messages.delegation import JobGone as JobGone
from zfabric.protocol.messages.delegation import JobLives as JobLives
from zfabric.protocol.messages.delegation import JobOutput as JobOutput
from zfabric.protocol.messages.delegation import NodeDraining as NodeDraining
from zfabric.protocol.messages.delegation import Reclaim as Reclaim
from zfabric.protocol.messages.delegation import Reclaimed as Reclaimed
from zfabric.protocol.messages.delegation import RegisterNode as RegisterNode
from zfabric.protocol.messages.delegation import RelayedYields as RelayedYields
from zfabric.protocol.messages.delegation import RetainCopies as RetainCopies
from zfabric.protocol.messages.delegation import RetainedValues as RetainedValues
from zfabric.protocol.messages.delegation import RunningDelegated as RunningDelegated
from zfabric.protocol.messages.delegation import StopChildren as StopChildren
from zfabric.protocol.messages.delegation import StopDelegated as StopDelegated
from zfabric.protocol.messages.delegation import ValuesCopied as ValuesCopied
from zfabric.protocol.messages.failover import Entrust as Entrust
from zfabric.protocol.messages.failover import Entrusted as Entrusted
from zfabric.protocol.messages.failover import Finished as Finished
from zfabric.protocol.messages.failover import ReleaseRows as ReleaseRows
from zfabric.protocol.messages.failover import Remains as Remains
from zfabric.protocol.messages.failover import RetainRows as RetainRows
from zfabric.protocol.messages.failover import TookOver as TookOver
from zfabric.protocol.messages.failover import Withdraw as Withdraw
from zfabric.protocol.messages.groups import CREATED as CREATED
from zfabric.protocol.messages.groups import GROUP_STATES as GROUP_STATES
from zfabric.protocol.messages.groups import PENDING_GROUP as PENDING_GROUP
from zfabric.protocol.messages.groups import REMOVED as REMOVED
from zfabric.protocol.messages.groups import RESCHEDULING as RESCHEDULING
from zfabric.protocol.messages.groups import AskRoom as AskRoom
from zfabric.protocol.messages.groups import BundlesPrepared as BundlesPrepared
from zfabric.protocol.messages.groups import CommitBundles as CommitBundles
from zfabric.protocol.messages.groups import FreeBundles as FreeBundles
from zfabric.protocol.messages.groups import GroupState as GroupState
from zfabric.protocol.messages.groups import HoldBundles as HoldBundles
from zfabric.protocol.messages.groups import NodeRoom as NodeRoom
from zfabric.protocol.messages.groups import PrepareBundles as PrepareBundles
from zfabric.protocol.messages.groups import RoomGrew as RoomGrew
from zfabric.protocol.messages.groups import WatchGroup as WatchGroup
from zfabric.protocol.messages.key_values import DeleteKeys as DeleteKeys
from zfabric.protocol.messages.key_values import DropUpload as DropUpload
from zfabric.protocol.messages.key_values import EndKeys as EndKeys
from zfabric.protocol.messages.key_values import GetKey as GetKey
from zfabric.protocol.messages.key_values import KeyAnswer as KeyAnswer
from zfabric.protocol.messages.key_values import ListKeys as ListKeys
from zfabric.protocol.messages.key_values import PutKey as PutKey
from zfabric.protocol.messages.key_values import PutPart as PutPart
from zfabric.protocol.messages.node import MemoryPressure as MemoryPressure
from zfabric.protocol.messages.node import ProcessDied as ProcessDied
from zfabric.protocol.messages.node import ProcessTable as ProcessTable
from zfabric.protocol.messages.node import ValueRead as ValueRead
from zfabric.protocol.messages.node import WorkerSpawned as WorkerSpawned
from zfabric.protocol.messages.placement import FOR_LIFE as FOR_LIFE
from zfabric.protocol.messages.placement import Heartbeat as Heartbeat
from zfabric.protocol.messages.placement import Place as Place
from zfabric.protocol.messages.placement import Placed as Placed
from zfabric.protocol.messages.queries import Answer as Answer
from zfabric.protocol.messages.queries import CollectGarbage as CollectGarbage
from zfabric.protocol.messages.queries import Inspect as Inspect
from zfabric.protocol.messages.queries import Inspected as Inspected
from zfabric.protocol.messages.queries import LogLines as LogLines
from zfabric.protocol.messages.queries import MeasureCalls as MeasureCalls
from zfabric.protocol.messages.queries import Notice as Notice
from zfabric.protocol.messages.queries import OutputWritten as OutputWritten
from zfabric.protocol.messages.queries import Query as Query
from zfabric.protocol.messages.registration import PROTOCOL_VERSION as PROTOCOL_VERSION
from zfabric.protocol.messages.registration import Farewell as Farewell
from zfabric.protocol.messages.registration import Goodbye as Goodbye
from zfabric.protocol.messages.registration import Ready as Ready
from zfabric.protocol.messages.registration import Refused as Refused
from zfabric.protocol.messages.registration import Register as Register
from zfabric.protocol.messages.registration import RegisterAgain as RegisterAgain
from zfabric.protocol.messages.registration import Welcome as Welcome
from zfabric.protocol.messages.relays import CallsEnded as CallsEnded
from zfabric.protocol.messages.relays import CallsRepeated as CallsRepeated
from zfabric.protocol.messages.relays import ClaimName as ClaimName
from zfabric.protocol.messages.relays import FreeName as FreeName
from zfabric.protocol.messages.relays import LifeEnded as LifeEnded
from zfabric.protocol.messages.relays import LogPage as LogPage
from zfabric.protocol.messages.relays import LogRecorded as LogRecorded
from zfabric.protocol.messages.relays import NameClaimed as NameClaimed
from zfabric.protocol.messages.relays import ReadLog as ReadLog
from zfabric.protocol.messages.relays import Receipt as Receipt
from zfabric.protocol.messages.relays import RelayedBlock as RelayedBlock
from zfabric.protocol.messages.relays import RelayedCalls as RelayedCalls
from zfabric.protocol.messages.relays import RelayedCheckpoint as RelayedCheckpoint
from zfabric.protocol.messages.relays import RelayedReceipt as RelayedReceipt
from zfabric.protocol.messages.relays import RepeatCalls as RepeatCalls
from zfabric.protocol.messages.relays import RequestReceipt as RequestReceipt
from zfabric.protocol.messages.relays import StopRelayed as StopRelayed
from zfabric.protocol.messages.rows import Ids as Ids
from zfabric.protocol.messages.rows import Row as Row
from zfabric.protocol.messages.rows import Rows as Rows
from zfabric.protocol.messages.tasks import CLOSE as CLOSE
from zfabric.protocol.messages.tasks import ERROR as ERROR
from zfabric.protocol.messages.tasks import FAILED as FAILED
from zfabric.protocol.messages.tasks import INTERRUPTED as INTERRUPTED
from zfabric.protocol.messages.tasks import OK as OK
from zfabric.protocol.messages.tasks import RETRY as RETRY
from zfabric.protocol.messages.tasks import AllowDirect as AllowDirect
from zfabric.protocol.messages.tasks import AllowYields as AllowYields
from zfabric.protocol.messages.tasks import Blocked as Blocked
from zfabric.protocol.messages.tasks import Cancel as Cancel
from zfabric.protocol.messages.tasks import Completed as Completed
from zfabric.protocol.messages.tasks import DirectAllowed as DirectAllowed
from zfabric.protocol.messages.tasks import DirectCounts as DirectCounts
from zfabric.protocol.messages.tasks import Dispatch as Dispatch
from zfabric.protocol.messages.tasks import Export as Export
from zfabric.protocol.messages.tasks import Functions as Functions
from zfabric.protocol.messages.tasks import InheritTasks as InheritTasks
from zfabric.protocol.messages.tasks import Interrupt as Interrupt
from zfabric.protocol.messages.tasks import Results as Results
from zfabric.protocol.messages.tasks import RunningTasks as RunningTasks
from zfabric.protocol.messages.tasks import StopWorker as StopWorker
from zfabric.protocol.messages.tasks import Submit as Submit
from zfabric.protocol.messages.tasks import SubmitDirect as SubmitDirect
from zfabric.protocol.messages.tasks import SubmittedDirect as SubmittedDirect
from zfabric.protocol.messages.tasks import TakeBack as TakeBack
from zfabric.protocol.messages.tasks import TakenBack as TakenBack
from zfabric.protocol.messages.tasks import Unblocked as Unblocked
from zfabric.protocol.messages.tasks import WaitDetails as WaitDetails
from zfabric.protocol.messages.tasks import Yielded as Yielded
from zfabric.protocol.messages.transfer import Chunk as Chunk
from zfabric.protocol.messages.transfer import ChunkFailed as ChunkFailed
from zfabric.protocol.messages.transfer import ChunkSent as ChunkSent
from zfabric.protocol.messages.transfer import Credit as Credit
from zfabric.protocol.messages.transfer import PeersSilent as PeersSilent
from zfabric.protocol.messages.transfer import Ping as Ping
from zfabric.protocol.messages.transfer import Pong as Pong
from zfabric.protocol.messages.transfer import Pull as Pull
from zfabric.protocol.messages.transfer import Pulled as Pulled
from zfabric.protocol.messages.transfer import PullFailed as PullFailed
from zfabric.protocol.messages.transfer import Queued as Queued
from zfabric.protocol.messages.transfer import Redirect as Redirect
from zfabric.protocol.messages.transfer import StopPull as StopPull
from zfabric.protocol.messages.transfer import StopWant as StopWant
from zfabric.protocol.messages.transfer import Unavailable as Unavailable
from zfabric.protocol.messages.transfer import ValueSealed as ValueSealed
from zfabric.protocol.messages.transfer import Want as Want
from zfabric.protocol.messages.values import Fetch as Fetch
from zfabric.protocol.messages.values import Hold as Hold
from zfabric.protocol.messages.values import Objects as Objects
from zfabric.protocol.messages.values import OfferResults as OfferResults
from zfabric.protocol.messages.values import Put as Put
from zfabric.protocol.messages.values import PutCommitted as PutCommitted
from zfabric.protocol.messages.values import Release as Release
from zfabric.protocol.messages.values import Unreferenced as Unreferenced
from zfabric.protocol.messages.values import WatchReferences as WatchReferences

Message: TypeAlias = tuple[Any, ...]
"""Any of the named tuples above."""
Envelope: TypeAlias = tuple[bytes, bytes, Message]
"""``(role it is for, role it is from, message)``"""

SECTIONS: tuple[ModuleType, ...] = (
    registration,
    tasks,
    actors,
    values,
    arena,
    control_store,
    placement,
    delegation,
    failover,
    groups,
    key_values,
    relays,
    cluster,
    transfer,
    node,
    queries,
)
"""The modules of messages, in the order in which a reader meets them: one for each pair of roles, or each subject."""

MESSAGES: dict[str, type[Any]] = {
    name: kind
    for section in SECTIONS
    for name, kind in vars(section).items()
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields") and kind.__module__ == section.__name__
}
"""Every message class by its name, which is also its name on the wire."""
