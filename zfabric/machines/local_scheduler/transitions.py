"""Transitions: reports to a part above, which the sender must not import.

A part calls ``Tables.report``. At the end of a step the machine delivers each, in order, to its one receiver.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.machines.local_scheduler.channel import CallsByWorker
from zfabric.machines.local_scheduler.records import AnyObject, JobRecord, ProcessRecord, StreamRecord, TaskRecord, WorkerRecord
from zfabric.protocol import messages as m


class ActorTaskEnded(NamedTuple):
    """The task that makes an actor has its outcome. ``worker`` ran it, if any."""

    task: TaskRecord
    worker: WorkerRecord | None
    status: int
    payload: bytes


class RemakeEnded(NamedTuple):
    """A replay for a lost value has ended."""

    task: TaskRecord
    worker: WorkerRecord | None
    status: int
    payload: bytes


class RemakeWanted(NamedTuple):
    """A replay is to make a lost value, which is pending."""

    record: AnyObject
    reason: str


class ActorUnwanted(NamedTuple):
    """A void attempt has made an actor in a shared process."""

    worker: WorkerRecord
    actor_id: bytes
    attempt: int


class ActorUnreferenced(NamedTuple):
    """An actor's last handle was dropped."""

    task: TaskRecord


class DetachedActorsChanged(NamedTuple):
    """A detached actor was made, or is dead for good."""

    job: JobRecord


class ActorLifeEnded(NamedTuple):
    """A life has ended; calls relayed to it have no outcome."""

    actor_id: bytes


class ActorReturned(NamedTuple):
    """After a restart another node reports that the actor lives there."""

    actor_id: bytes


class GuestTaskEnded(NamedTuple):
    """An attempt to make another home's actor has ended. ``worker`` lives, unless None."""

    task: TaskRecord
    worker: WorkerRecord | None
    status: int


class GuestDied(NamedTuple):
    """The process of a guest is dead."""

    actor_id: bytes
    worker: WorkerRecord
    died: m.ProcessDied


class ActorNameFreed(NamedTuple):
    """A name is free: its actor is dead or refused."""

    actor_id: bytes
    namespace: str
    name: str


class CallerExited(NamedTuple):
    """A process that may have called actors elsewhere has exited."""

    incarnation: bytes


class CallerNotified(NamedTuple):
    """A process was notified of an actor on another node; calls are relayed."""

    actor_id: bytes


class CallsEndReceived(NamedTuple):
    """Callers have received outcomes, or are dead: calls by the worker that has run them."""

    calls: CallsByWorker


class StreamMakerEnded(NamedTuple):
    """A stream's task has its outcome, or values of a call's stream cannot be read."""

    task_id: bytes
    status: int
    payload: bytes


class StreamWanted(NamedTuple):
    """A stream's lost values are wanted: its task is to run again."""

    stream: StreamRecord
    reason: str


class ObjectUnreferenced(NamedTuple):
    """Nothing needs an object in ``References.watches``."""

    object_id: bytes


class StreamUnreferenced(NamedTuple):
    """Nothing needs a stream, or a value that does not exist yet."""

    record: AnyObject


class NodeFoundDead(NamedTuple):
    """A node that others named, and no table, is dead."""

    node: bytes


class AgentReady(NamedTuple):
    """This node's transfer agent has registered."""

    process: ProcessRecord


class Recovered(NamedTuple):
    """A restarted scheduler's tables are rebuilt."""

    now: float


class NodeReady(NamedTuple):
    """Another node has repeated all that it has."""

    now: float
    process: ProcessRecord


class NodeGone(NamedTuple):
    """A node is dead, and its tasks are queued again."""

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
