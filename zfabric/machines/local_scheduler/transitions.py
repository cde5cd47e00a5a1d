"""Transitions: what a part of a local scheduler reports to a part above it, which it must not import.

A part appends to ``Tables.transitions``. At the end of a step the machine delivers each, in order, to its one receiver.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.machines.local_scheduler.channel import CallsByWorker
from zfabric.machines.local_scheduler.records import AnyObject, JobRecord, ProcessRecord, StreamRecord, TaskRecord, WorkerRecord
from zfabric.protocol import messages as m


class ActorTaskEnded(NamedTuple):
    """The task that makes an actor has its outcome. ``worker`` ran it, if any did."""

    task: TaskRecord
    worker: WorkerRecord | None
    status: int
    payload: bytes


class RemakeEnded(NamedTuple):
    """A replay of an actor's calls for a lost value has ended."""

    task: TaskRecord
    worker: WorkerRecord | None
    status: int
    payload: bytes


class RemakeWanted(NamedTuple):
    """A lost value is pending: a replay of an actor's calls is to make it again."""

    record: AnyObject
    reason: str


class ActorUnwanted(NamedTuple):
    """A void attempt has made an actor in a shared process."""

    worker: WorkerRecord
    actor_id: bytes
    attempt: int


class ActorUnreferenced(NamedTuple):
    """The last handle of an actor was dropped."""

    task: TaskRecord


class DetachedActorsChanged(NamedTuple):
    """A detached actor was created or is dead for good."""

    job: JobRecord


class ActorLifeEnded(NamedTuple):
    """A life of an actor of this node has ended; calls relayed to it have no outcome."""

    actor_id: bytes


class ActorReturned(NamedTuple):
    """Another node reports to this restarted scheduler that the actor lives there."""

    actor_id: bytes


class GuestTaskEnded(NamedTuple):
    """An attempt here to make an actor of another home has ended. ``worker`` lives, unless None."""

    task: TaskRecord
    worker: WorkerRecord | None
    status: int


class GuestDied(NamedTuple):
    """The process of a guest is dead."""

    actor_id: bytes
    worker: WorkerRecord
    died: m.ProcessDied


class ActorNameFreed(NamedTuple):
    """An actor of this node is dead or refused, and its name is free."""

    actor_id: bytes
    namespace: str
    name: str


class CallerExited(NamedTuple):
    """A process of this node, which may have called actors elsewhere, has exited."""

    incarnation: bytes


class CallerNotified(NamedTuple):
    """A process was notified that an actor lives on another node, to which its calls are relayed."""

    actor_id: bytes


class CallsEndReceived(NamedTuple):
    """Callers on another node have received the outcomes of calls, or are dead: calls by the worker that has run them."""

    calls: CallsByWorker


class StreamMakerEnded(NamedTuple):
    """The task of a stream has its outcome, or values of a call's stream cannot be read."""

    task_id: bytes
    status: int
    payload: bytes


class StreamWanted(NamedTuple):
    """Values of a stream are lost and wanted: its task is to run again."""

    stream: StreamRecord
    reason: str


class ObjectUnreferenced(NamedTuple):
    """Nothing in the cluster needs an object that is in ``Tables.watches``."""

    object_id: bytes


class StreamUnreferenced(NamedTuple):
    """Nothing needs a stream, or a value of it that does not exist yet."""

    record: AnyObject


class NodeFoundDead(NamedTuple):
    """A node that others named, and that was never in this node's table, is dead."""

    node: bytes


class AgentReady(NamedTuple):
    """The transfer agent of this node has registered."""

    process: ProcessRecord


class Recovered(NamedTuple):
    """A restarted scheduler has rebuilt its tables from the reports of its node's processes."""

    now: float


class NodeReady(NamedTuple):
    """Another node has repeated all that it has of this one's."""

    now: float
    process: ProcessRecord


class NodeGone(NamedTuple):
    """Another node is dead, and its tasks are queued again."""

    node: bytes


class JobOver(NamedTuple):
    """A job has ended on this node."""

    job: bytes


Transition = (
    ActorTaskEnded
    | RemakeEnded
    | RemakeWanted
    | ActorUnwanted
    | ActorUnreferenced
    | DetachedActorsChanged
    | ActorLifeEnded
    | ActorReturned
    | GuestTaskEnded
    | GuestDied
    | ActorNameFreed
    | CallerExited
    | CallerNotified
    | CallsEndReceived
    | StreamMakerEnded
    | StreamWanted
    | ObjectUnreferenced
    | StreamUnreferenced
    | NodeFoundDead
    | AgentReady
    | Recovered
    | NodeReady
    | NodeGone
    | JobOver
)
