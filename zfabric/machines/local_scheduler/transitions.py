"""What a part of a local scheduler reports to a part above it, which it does not import.

A part appends a transition to ``Tables.transitions``. At the end of a step the machine delivers each, in order, to its one receiver. Most
steps have none.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.machines.local_scheduler.records import AnyObject, JobRecord, ProcessRecord, StreamRecord, TaskRecord, WorkerRecord
from zfabric.protocol import messages as m


class ActorTaskEnded(NamedTuple):
    """A task that makes an actor has its outcome. ``worker`` ran it, if any did."""

    task: TaskRecord
    worker: WorkerRecord | None
    status: int
    payload: bytes


class RemakeEnded(NamedTuple):
    """A task that replays an actor's calls for a lost value has its outcome."""

    task: TaskRecord
    worker: WorkerRecord | None
    status: int
    payload: bytes


class RemakeWanted(NamedTuple):
    """A value is lost and now pending: a replay of an actor's calls is to make it again."""

    record: AnyObject
    reason: str


class ActorUnwanted(NamedTuple):
    """A process that actors share has made one in an attempt that does not count."""

    worker: WorkerRecord
    actor_id: bytes
    attempt: int


class ActorUnreferenced(NamedTuple):
    """The last handle of an actor was dropped."""

    task: TaskRecord


class DetachedActorsChanged(NamedTuple):
    """A detached actor was made, or is dead for good: whether its job goes on without its driver may have changed."""

    job: JobRecord


class ActorLifeEnded(NamedTuple):
    """A life of an actor of this node has ended: calls that were relayed to it have no outcome."""

    actor_id: bytes


class ActorReturned(NamedTuple):
    """Another node has reported to this restarted scheduler that an actor lives there."""

    actor_id: bytes


class GuestTaskEnded(NamedTuple):
    """An attempt of this node to make an actor of another one has ended. ``worker`` lives, if it is not None."""

    task: TaskRecord
    worker: WorkerRecord | None
    status: int


class GuestDied(NamedTuple):
    """The process is dead of an actor of another node that lived on this one."""

    actor_id: bytes
    worker: WorkerRecord
    died: m.ProcessDied


class ActorNameFreed(NamedTuple):
    """An actor of this node is dead, or was refused: it does not need its name any more."""

    actor_id: bytes
    namespace: str
    name: str


class CallerExited(NamedTuple):
    """A process of this node has exited, which may have called actors of other nodes."""

    incarnation: bytes


class CallerNotified(NamedTuple):
    """A process of this node is notified that an actor of this node lives on another one, to which this scheduler relays its calls."""

    actor_id: bytes


class CallsEndReceived(NamedTuple):
    """A caller on another node has received the outcomes in a message with this number; their actors retain them until then."""

    node: bytes
    number: int


class StreamMakerEnded(NamedTuple):
    """A task that makes a stream has its outcome, or values of a call's stream cannot be read."""

    task_id: bytes
    status: int
    payload: bytes


class StreamWanted(NamedTuple):
    """Values of a stream are lost and wanted: its task is to run again."""

    stream: StreamRecord
    reason: str


class ObjectUnreferenced(NamedTuple):
    """Nothing in the cluster needs an object of this node any more that is in ``Tables.watches``."""

    object_id: bytes


class StreamUnreferenced(NamedTuple):
    """A stream, or a value of it that does not exist yet, is no longer needed."""

    record: AnyObject


class NodeFoundDead(NamedTuple):
    """A node is dead that others have named to this one, and that was never in its table."""

    node: bytes


class AgentReady(NamedTuple):
    """The transfer agent of this node has registered."""

    process: ProcessRecord


class Recovered(NamedTuple):
    """A restarted scheduler has rebuilt its tables from what the processes of its node reported."""

    now: float


class NodeReady(NamedTuple):
    """Another node has repeated everything that it has of this one's."""

    now: float
    process: ProcessRecord


class NodeGone(NamedTuple):
    """Another node is dead, and what it ran is queued again."""

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
