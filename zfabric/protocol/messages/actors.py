"""Actors: their locations, their calls, and the outcomes of the calls.

A task makes an actor. The task's id is the actor's, and its first value stands for the actor: a ref to that value is a handle.
Calls and their outcomes pass between the caller and the actor's process, without the scheduler. But values in the arena, and results
with refs inside, concern other processes as well: these go through the scheduler.
"""

from typing import Annotated, NamedTuple

from zfabric.protocol.access import from_nodes, from_peers, from_processes
from zfabric.protocol.checks import BOOL, BYTES, FUNCTION, INT, OBJECT, STR, TASK, MalformedFrame, column, layout, many
from zfabric.protocol.ids import ACTOR, CLIENT, CONTROL, LOCAL_SCHEDULER
from zfabric.protocol.messages.rows import (
    Attempt,
    Caller,
    Callers,
    CallRows,
    LogNumber,
    ObjectIds,
    OutcomeRows,
    ResultRows,
    Row,
    Rows,
    TaskId,
    TaskIds,
)
from zfabric.protocol.options import CHECKPOINT_PARTS_MAX
from zfabric.protocol.row_checks import TASK_ROW, is_plain_call
from zfabric.protocol.trace import EACH_BYTES, WAITED_BYTES

# Where an actor is, in ``ActorLocations``.
CREATING = 0
"""Its ``__init__`` runs or is to run, for the first time or after a restart: calls wait."""
ALIVE = 1
DEAD = 2
"""For good: calls fail with the failure in ``ActorLocations``."""


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class FindActors(NamedTuple):
    """client, local scheduler of another node -> local scheduler. The sender calls these actors.

    ``ActorLocations`` answers now, and whenever a location changes.
    """

    actor_ids: TaskIds


@from_nodes(LOCAL_SCHEDULER)
class ActorLocations(NamedTuple):
    """local scheduler -> client, local scheduler of another node. Where actors are.

    Rows ``(actor_id, state, incarnation, attempt, lives_on, executing, failure)``.

    - ``incarnation`` is the process in which the actor lives, empty while it is CREATING or DEAD. If the actor is on another node, it is
      the daemon that sends this, which relays calls (``relays``). Between nodes it is the node to which calls are to be sent.
    - ``attempt`` tells the actor's lives apart, since two may be in the same process.
    - ``lives_on`` says whether the process of its last life still runs, as a process of lightweight actors may.
    - ``executing`` is the call that was running when the last life ended, empty if none is known. It is the actor's id if that life left a
      drained node: then no call without an outcome has begun.
    - ``failure`` is a packed failure (``protocol.failures``): why a DEAD actor has ended, or why the last life of a CREATING one did.
    """

    rows: Annotated[Rows, layout(TASK, INT, BYTES, INT, BOOL, BYTES, BYTES)]


@from_processes(LOCAL_SCHEDULER)
@from_peers(ACTOR)
class Call(NamedTuple):
    """client -> actor, or the local scheduler that stands for it. Calls, in order.

    Rows ``(call_id, method, arguments[, dependencies, values, options])``.

    ``values`` are the inline values of the dependencies, their places (offset, size) in the arena, or None for those that the actor is to
    fetch. A place comes without a pin: the actor copies the value, and fetches it if it is no longer there. ``attempt`` is the life of
    the actor that the calls are for. Calls for an earlier life are not run: ``ActorLocations`` notifies the caller that it has ended.
    """

    actor_id: TaskId
    attempt: int
    rows: CallRows

    @staticmethod
    def is_plain(fields: Row) -> bool:
        """Whether this is one call that needs no other check."""
        return is_plain_call(fields)


@from_peers(CLIENT)
class Returned(NamedTuple):
    """actor, local scheduler -> client. Outcomes of calls: rows ``(call_id, status, outputs)``, as in ``Results``.

    An output that is None is a value that the scheduler has: the client fetches it when it needs it. So is a place (offset, size), which
    comes again with a pin, in ``Objects``: the client need not fetch it.
    """

    rows: ResultRows


@from_processes(LOCAL_SCHEDULER)
class CallOutcomes(NamedTuple):
    """actor -> local scheduler. Outcomes with large values or refs inside: rows ``(call_id, caller, status, outputs, contained)``.

    A value that is in the arena, or has refs inside, becomes an object that the caller holds. The scheduler then sends ``Returned`` to
    the caller. The actor repeats the outcomes to a restarted daemon until ``OutcomesRecorded`` arrives. If the actor's process dies
    first, they are lost, and the caller's calls fail as those of a dead actor do.
    """

    rows: OutcomeRows


class OutcomesRecorded(NamedTuple):
    """local scheduler -> worker control. These outcomes are recorded: the actor no longer repeats them to the scheduler.

    The actor sends them to the callers, too, since the daemon may have died before its frame to a caller left. Callers ignore repeated
    outcomes. A worker also receives this for each task that made a stream, and then releases the last values of the stream.
    """

    call_ids: TaskIds


@from_processes(LOCAL_SCHEDULER)
class ExpectResults(NamedTuple):
    """client -> local scheduler. Results of calls that other processes are about to need: rows ``(object_id, actor_id[, ahead])``.

    With ``ahead``, the object is the end of a stream. Its producer may be that many values ahead of its consumer; 0 stands for the
    setting ``stream_buffered``. The caller holds these objects, and offers each value when it arrives (``OfferResults``). If the caller
    dies before that, the values are lost.
    """

    rows: Annotated[Rows, layout(OBJECT, TASK, column(int, type(None)), widths=(2, 3))]


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class KillActor(NamedTuple):
    """client, local scheduler of another node -> local scheduler. End the actor at once, and its process unless others share it.

    With ``no_restart`` it ends for good.
    """

    actor_id: TaskId
    no_restart: bool


@from_peers(CONTROL)
class StopCall(NamedTuple):
    """client -> worker control. Do not run this call, or stop it if it runs; ``reason`` as in ``Interrupt``."""

    call_id: TaskId
    reason: str


@from_nodes(LOCAL_SCHEDULER)
class RetireActor(NamedTuple):
    """local scheduler -> worker control, or local scheduler of the actor's node. No handle is left: the actor ends after its calls.

    An actor that was killed and shares its process ends ``at_once``: waiting calls are not run, and the running one is stopped. If this
    is lost with the daemon, its successor finds out again whether there are handles, and clients repeat ``KillActor``.
    """

    actor_id: TaskId
    attempt: Attempt
    at_once: bool


class DrainActor(NamedTuple):
    """local scheduler -> worker control. The actor's node is drained: the actor ends after its running calls, to be made again elsewhere.

    ``ActorDrained`` is the answer. Calls that wait, or arrive later, do not begin: their callers send them to the actor's next life.
    """

    actor_id: TaskId
    attempt: int


@from_processes(LOCAL_SCHEDULER)
class ActorDrained(NamedTuple):
    """actor -> local scheduler. The process of an actor ends, since its node is drained.

    The callers have received the outcomes of all calls that have begun. So a call without an outcome has not begun.
    """

    actor_id: TaskId
    attempt: int


@from_processes(LOCAL_SCHEDULER)
class ActorEnded(NamedTuple):
    """actor -> local scheduler. An actor has left this process, which it shared. It sends no more after this.

    ``executing`` is the call that it was running, empty if none; ``reason`` says why it ended itself, if it did.
    If this is lost with the daemon, the actor is missing in the ``HostedActors`` that the next daemon receives.
    """

    actor_id: TaskId
    attempt: int
    executing: bytes
    reason: str


@from_processes(LOCAL_SCHEDULER)
class HostedActors(NamedTuple):
    """actor -> local scheduler, between ``Register`` and ``Ready``. The actors of this process: rows ``(creation task row, attempt)``.

    A host of lightweight actors sends no rows if none lives in it.
    """

    rows: Annotated[Rows, layout(TASK_ROW, INT)]


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class ActorExiting(NamedTuple):
    """actor -> local scheduler -> home of the actor. The actor has ended itself (``exit_actor``): it is not restarted."""

    actor_id: TaskId


@from_processes(LOCAL_SCHEDULER)
class CallTimes(NamedTuple):
    """actor -> local scheduler. When calls ran, for the timeline: a trace (``protocol.trace``), and ``names``, rows ``(id, method)``.

    ``arguments`` has a row ``(call_id, object ids)`` for each call that took values. ``waited`` is empty unless these times are requested
    (``MeasureCalls``). Then it has a double for each call: seconds between its arrival in the process and its beginning. The message is
    sent once a second, or sooner if there are many calls. Lost times are missing in the timeline and nowhere else.
    """

    names: Annotated[Rows, layout(FUNCTION, STR)]
    trace: bytes
    arguments: Annotated[Rows, layout(TASK, many(OBJECT))]
    waited: bytes

    def check(self) -> None:
        """Check that the times are as many as the calls."""
        count, left = divmod(len(self.trace), EACH_BYTES)
        if left:
            raise MalformedFrame(f"a trace has {EACH_BYTES} bytes for each call")
        if len(self.waited) not in (0, count * WAITED_BYTES):
            raise MalformedFrame(f"{WAITED_BYTES} bytes for how long each call waited, or none")


@from_processes(LOCAL_SCHEDULER)
class HostDelays(NamedTuple):
    """actor -> local scheduler. Calls that have run for a second or more in a process of lightweight actors.

    ``running`` is the call that has the baton. ``rows`` are the calls that have begun, the running one among them: ``(actor, call, objects
    that it waits for, actors, certain)``. ``actors`` names for each object the actor whose call makes it: zeros if no call of this process
    does. ``certain`` is as in ``WaitDetails``. It is sent once a second if it has changed, and replaces the last one of that process.
    """

    running: bytes
    rows: Annotated[Rows, layout(TASK, TASK, many(OBJECT), many(TASK), BOOL)]


@from_processes(LOCAL_SCHEDULER)
class LogAppended(NamedTuple):
    """actor -> local scheduler. Calls that a logged actor has run since the block before, in the order in which they ran.

    Only a replay decodes ``rows`` (``machines.worker.call_log``). ``last`` is the number of the last call, counted over all incarnations.
    ``made`` are the results that are not in the rows, because they are large or have refs inside. ``refs`` are refs that the rows need,
    also those inside errors: the scheduler holds them as long as it retains the rows. ``number`` counts the messages of this incarnation
    (``attempt``) about its log. The actor repeats the message to a restarted daemon until ``LogCommitted`` confirms it. The scheduler
    refuses it from any process but the one in which the actor now lives.
    """

    actor_id: TaskId
    attempt: LogNumber
    number: LogNumber
    last: LogNumber
    rows: bytes
    made: ObjectIds
    refs: ObjectIds


@from_processes(LOCAL_SCHEDULER)
class Checkpoint(NamedTuple):
    """actor -> local scheduler. Part ``part`` (from 0) of ``parts`` of the actor's state after the call numbered ``last``.

    Once the last part is committed, the rows up to that call are deleted. ``refs`` are the refs inside the state and inside retained
    errors; they come with the last part. The other fields are as in ``LogAppended``.
    """

    actor_id: TaskId
    attempt: LogNumber
    number: LogNumber
    last: LogNumber
    part: int
    parts: int
    data: bytes
    refs: ObjectIds

    def check(self) -> None:
        """Check that the part is one of the parts."""
        check_part(self.part, self.parts)


def check_part(part: int, parts: int) -> None:
    """Check that a checkpoint has this part."""
    if not 0 <= part < parts <= CHECKPOINT_PARTS_MAX:
        raise MalformedFrame(f"a checkpoint has parts 0 to {CHECKPOINT_PARTS_MAX - 1}")


class LogCommitted(NamedTuple):
    """local scheduler -> worker control. The messages about the actor's log are committed up to this number: results may leave."""

    actor_id: TaskId
    upto: int


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class ReplayProgress(NamedTuple):
    """actor -> local scheduler. ``done`` of ``total`` logged calls have run again. ``callers`` have outcomes retained for them.

    It is sent from time to time, once at the end, and again to a restarted daemon. ``CallerGone`` is the answer for each caller that is
    gone.
    """

    actor_id: TaskId
    done: int
    total: int
    callers: Callers


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class CallCounts(NamedTuple):
    """actor -> local scheduler. ``ended`` calls have ended, over all incarnations, of an actor with checkpoints but no log.

    The count includes calls that a restart from an earlier checkpoint has lost. ``waits_for`` is the number of
    calls that run while a checkpoint is due, 0 if none is. Both are shown to users, and sent once a second if they have changed. After
    the death of the process, its slot has the exact count (``ProcessDied``).
    """

    actor_id: TaskId
    ended: LogNumber
    waits_for: LogNumber


@from_processes(LOCAL_SCHEDULER)
@from_peers(ACTOR)
class OutcomesReceived(NamedTuple):
    """client -> actor, or the local scheduler that stands for it. The client has the outcomes of these calls of its own.

    With ``others`` it has the outcomes of all its calls but these. The actor releases the outcomes. It is sent with ``others`` to each new
    incarnation, ahead of the calls that are repeated, and without it from time to time.
    """

    actor_id: TaskId
    call_ids: TaskIds
    others: bool


@from_nodes(LOCAL_SCHEDULER)
class CallerGone(NamedTuple):
    """local scheduler -> worker control, client, local scheduler of another node. A process has ended.

    To worker control, or another node: the process may have called an actor there. To a client: the process was a host of lightweight
    actors, and the client may have called one of them.
    """

    incarnation: Caller
