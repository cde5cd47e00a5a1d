"""Actors: their locations, their calls, and the outcomes of the calls.

A task makes an actor. The task's id is the actor's, and a ref to its first value is a handle. Calls and outcomes pass between the caller
and the actor's process, without the scheduler. Values in the arena, and results with refs inside, concern other processes as well: these go
through the scheduler.
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

    - ``incarnation`` is the actor's process, or empty; for an actor on another node, the daemon that relays calls; between nodes, the node
      to send calls to.
    - ``attempt`` is the actor's life. ``lives_on``: the process of its last life still runs, as a host may.
    - ``executing`` is the call that ran when the last life ended, or empty. The actor's own id: that life left a drained node, and no call
      without an outcome has begun.
    - ``failure`` is a packed failure (``protocol.failures``): why the actor is DEAD, or its last life ended.
    """

    rows: Annotated[Rows, layout(TASK, INT, BYTES, INT, BOOL, BYTES, BYTES)]


@from_processes(LOCAL_SCHEDULER)
@from_peers(ACTOR)
class Call(NamedTuple):
    """client -> actor, local scheduler. Calls, in order: rows ``(call_id, method, arguments[, dependencies, values, options])``.

    The local scheduler stands for an actor on another node. ``values`` are those of the dependencies; None is to be fetched. A place comes
    without a pin: the actor copies the value, or fetches it if it has gone. Calls for a life (``attempt``) that has ended are not run;
    ``ActorLocations`` notifies the caller.
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

    None is to be fetched when needed. A place comes again with a pin, in ``Objects``, without a fetch.
    """

    rows: ResultRows


@from_processes(LOCAL_SCHEDULER)
class CallOutcomes(NamedTuple):
    """actor -> local scheduler. Outcomes with values in the arena or refs inside: rows ``(call_id, caller, status, outputs, contained)``.

    Each such value becomes an object that the caller holds; then the scheduler sends ``Returned``. The actor repeats the outcomes to a
    restarted daemon until ``OutcomesRecorded``. If its process dies first, the calls fail as those of a dead actor.
    """

    rows: OutcomeRows


class OutcomesRecorded(NamedTuple):
    """local scheduler -> worker control. These outcomes are recorded: the actor no longer repeats them to the scheduler.

    The actor also sends them to the callers, which ignore repeats: the daemon may have died before its frame left. After a task that made a
    stream, the worker releases the stream's last values.
    """

    call_ids: TaskIds


@from_processes(LOCAL_SCHEDULER)
class ExpectResults(NamedTuple):
    """client -> local scheduler. Results of calls that other processes will need: rows ``(object_id, actor_id[, ahead])``.

    With ``ahead``, the object is the end of a stream, whose producer may be that many values ahead (0: ``stream_buffered``). The caller
    holds these objects and offers each value (``OfferResults``). If it dies first, they are lost.
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
    """client, local scheduler -> worker control. Do not run this call, or stop it; ``reason`` as in ``Interrupt``."""

    call_id: TaskId
    reason: str


class RetireActor(NamedTuple):
    """local scheduler -> worker control. No handle is left: the actor ends after its calls.

    With ``at_once`` (killed, in a shared process), its calls are stopped. A restarted daemon counts handles again, and clients repeat
    ``KillActor``.
    """

    actor_id: TaskId
    attempt: Attempt
    at_once: bool


class DrainActor(NamedTuple):
    """local scheduler -> worker control. The actor's node is drained: the actor ends after its running calls, and is made again elsewhere.

    ``ActorDrained`` is the answer. Other calls do not begin: their callers send them to the next life.
    """

    actor_id: TaskId
    attempt: int


@from_processes(LOCAL_SCHEDULER)
class ActorDrained(NamedTuple):
    """actor -> local scheduler. The actor's process ends, since its node is drained.

    Every call that has begun has its outcome at its caller.
    """

    actor_id: TaskId
    attempt: int


@from_processes(LOCAL_SCHEDULER)
class ActorEnded(NamedTuple):
    """actor -> local scheduler. An actor has left this process, which it shared; nothing more of it follows.

    ``executing`` is the call that it was running, or empty; ``reason``, why it ended itself, or empty. If this is lost, the actor is
    missing in the next ``HostedActors``.
    """

    actor_id: TaskId
    attempt: int
    executing: bytes
    reason: str


@from_processes(LOCAL_SCHEDULER)
class HostedActors(NamedTuple):
    """actor -> local scheduler. On registration: the actors of this process.

    Rows ``(creation task row, attempt)``; none for an empty host.
    """

    rows: Annotated[Rows, layout(TASK_ROW, INT)]


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class ActorExiting(NamedTuple):
    """actor -> local scheduler -> home of the actor. The actor has ended itself (``exit_actor``) and is not restarted."""

    actor_id: TaskId


@from_processes(LOCAL_SCHEDULER)
class CallTimes(NamedTuple):
    """actor -> local scheduler. When calls ran, for the timeline: a trace (``protocol.trace``), and ``names``, rows ``(id, method)``.

    ``arguments`` are rows ``(call_id, object ids)``. After ``MeasureCalls``, ``waited`` has a double for each call: seconds between arrival
    and beginning. Sent once a second, or sooner. A loss affects only the timeline.
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

    ``running`` has the baton. ``rows`` are all begun calls: ``(actor, call, objects awaited, their actors or zeros, certain)``, with
    ``certain`` as in ``WaitDetails``. Sent once a second if changed; replaces the last one.
    """

    running: bytes
    rows: Annotated[Rows, layout(TASK, TASK, many(OBJECT), many(TASK), BOOL)]


@from_processes(LOCAL_SCHEDULER)
class LogAppended(NamedTuple):
    """actor -> local scheduler. Calls that a logged actor has run since the block before, in order.

    Only a replay decodes ``rows`` (``machines.worker.call_log``). ``last`` is the number of the last call over all incarnations. ``made``
    are results outside the rows: large, or with refs. The scheduler holds ``refs`` as long as the rows. Repeated to a restarted daemon
    until ``LogCommitted``; refused from any process but the actor's present one.
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

    When the last part is committed, the log up to that call is deleted. That part also has ``refs``: those inside the state and retained
    errors. The other fields are as in ``LogAppended``.
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
    """actor -> local scheduler -> home of the actor, local scheduler of a caller. ``done`` of ``total`` logged calls have run again.

    ``callers`` have outcomes retained for them; ``CallerGone`` answers for each that is gone. Sent from time to time, at the end, and to a
    restarted daemon.
    """

    actor_id: TaskId
    done: int
    total: int
    callers: Callers


@from_processes(LOCAL_SCHEDULER)
@from_nodes(LOCAL_SCHEDULER)
class CallCounts(NamedTuple):
    """actor -> local scheduler -> home of the actor. How many calls of an actor with checkpoints but no log have ended.

    That is over all incarnations. Calls that an earlier checkpoint has lost count, too. ``waits_for`` is the number of calls that run while
    a checkpoint is due, else 0. Both are shown to users; sent once a second if changed. At a death, the slot has the exact count
    (``ProcessDied``).
    """

    actor_id: TaskId
    ended: LogNumber
    waits_for: LogNumber


@from_processes(LOCAL_SCHEDULER)
@from_peers(ACTOR)
class OutcomesReceived(NamedTuple):
    """client -> actor, local scheduler. The client has outcomes of its calls: release them.

    They are those of ``call_ids``, or with ``others``, all but these. With ``others``, it precedes the repeated calls to each new
    incarnation. Otherwise it is sent from time to time.
    """

    actor_id: TaskId
    call_ids: TaskIds
    others: bool


@from_nodes(LOCAL_SCHEDULER)
class CallerGone(NamedTuple):
    """local scheduler -> worker control, client, local scheduler of another node. A process has ended.

    To worker control or another node: it may have called an actor there. To a client: it was a host of lightweight actors that the client
    may have called.
    """

    incarnation: Caller
