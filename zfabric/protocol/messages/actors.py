"""Actors: where they are, their calls, and the outcomes of these.

An actor is made by a task, whose id is the actor's and whose first value stands for it: a ref to that value is a handle.
Calls go from the caller to the actor's process and back, past the scheduler. Values in the arena and results with refs inside concern
others, so they go through the scheduler.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Ids, Rows

# Where an actor is, in ``ActorLocations``.
CREATING = 0
"""Its ``__init__`` has not ended (again): calls wait."""
ALIVE = 1
DEAD = 2
"""For good: calls fail with the failure in ``ActorLocations``."""


class FindActors(NamedTuple):
    """client, local scheduler of another node -> local scheduler. The sender calls these actors.

    ``ActorLocations`` answers now, and whenever a location changes.
    """

    actor_ids: Ids


class ActorLocations(NamedTuple):
    """local scheduler -> client, local scheduler of another node. Where actors are.

    Rows ``(actor_id, state, incarnation, attempt, lives_on, executing, failure)``.

    ``incarnation`` is the process in which the actor lives, empty while it is CREATING or DEAD. ``attempt`` tells its lives apart, since
    two may be in the same process. ``lives_on`` says whether the process of its last life still runs, as the process of lightweight
    actors may. ``executing`` is the call that was running when that life ended, empty if none is known. It is the
    actor's id if ``attempt`` has left a node that is drained: what has no outcome has not begun then. ``failure`` is a packed failure
    (``protocol.failures``) if it is DEAD, or why its last life ended if it is made again.

    If the actor is on another node, ``incarnation`` is the daemon that sends this: it relays calls (``relays``). Between nodes it is the
    node to which calls are to be sent.
    """

    rows: Rows


class Call(NamedTuple):
    """client -> actor, or the local scheduler that stands for it. Calls, in order.

    Rows ``(call_id, method, arguments[, dependencies, values, options])``.

    ``values`` are those of the dependencies, inline, or None where the actor is to fetch them itself. ``attempt`` is the life of the
    actor that the calls are for. Calls for an earlier life are not run; the caller is notified of the end of that life.
    """

    actor_id: bytes
    attempt: int
    rows: Rows


class Returned(NamedTuple):
    """actor, local scheduler -> client. Outcomes of calls: rows ``(call_id, status, outputs)``, as in ``Results``.

    An output that is None is an object of the scheduler's, and the client fetches it when it needs it.
    """

    rows: Rows


class CallOutcomes(NamedTuple):
    """actor -> local scheduler. Outcomes that concern others too: rows ``(call_id, caller, status, outputs, contained)``.

    A value that is in the arena, or has refs inside, becomes an object that the caller holds. The scheduler then sends ``Returned`` to
    the caller. The actor repeats the outcomes to a restarted daemon until ``OutcomesRecorded`` arrives. If the actor's process dies
    first, they are lost, and the caller's calls fail as those of a dead actor do.
    """

    rows: Rows


class OutcomesRecorded(NamedTuple):
    """local scheduler -> worker control. These outcomes are recorded: the actor sends them to the callers, too, and no longer repeats
    them.

    The scheduler has sent them to the callers, but may have died before the frame left. Callers ignore repetitions. A worker also
    receives it for each task that made a stream, and then no longer retains the stream's last values.
    """

    call_ids: Ids


class ExpectResults(NamedTuple):
    """client -> local scheduler. Results of calls that other processes are about to need: rows ``(object_id, actor_id[, ahead])``.

    With ``ahead``, the object is the end of a stream whose producer may be so many values ahead of its consumer (0: as configured).

    The caller holds these objects, and offers each value when it arrives (``OfferResults``). If the caller dies before that, they are
    lost.
    """

    rows: Rows


class KillActor(NamedTuple):
    """client, local scheduler of another node -> local scheduler. End the actor at once, and its process unless others share it.

    With ``no_restart`` it ends for good.
    """

    actor_id: bytes
    no_restart: bool


class StopCall(NamedTuple):
    """client -> worker control. Do not run this call, or stop it if it runs; ``reason`` as in ``Interrupt``."""

    call_id: bytes
    reason: str


class RetireActor(NamedTuple):
    """local scheduler -> worker control, or to the local scheduler of the node where the actor lives. No handle of the actor is left: it
    ends once its calls are done.

    An actor that shares its process and was killed ends ``at_once``: waiting calls are not run, and the one that runs is
    stopped. If the daemon dies, its successor finds out again whether there are handles, and clients repeat ``KillActor``.
    """

    actor_id: bytes
    attempt: int
    at_once: bool


class DrainActor(NamedTuple):
    """local scheduler -> worker control. The actor's node is drained, and it is to be made again elsewhere: it ends once its running calls
    have, and reports that (``ActorDrained``).

    Calls that wait, or arrive later, do not begin: their callers send them to its next life.
    """

    actor_id: bytes
    attempt: int


class ActorDrained(NamedTuple):
    """actor -> local scheduler. The process of an actor ends as its node is drained. All calls that have begun have an outcome, and their
    callers have received it: what has none has not begun."""

    actor_id: bytes
    attempt: int


class ActorEnded(NamedTuple):
    """actor -> local scheduler. An actor has left this process, which it shared. It sends no more after this.

    ``executing`` is the call that it was running, empty if none; ``reason`` says why it ended itself, if it did.
    If this is lost with the daemon, ``HostedActors`` tells the next daemon by not naming the actor.
    """

    actor_id: bytes
    attempt: int
    executing: bytes
    reason: str


class HostedActors(NamedTuple):
    """actor -> local scheduler, between ``Register`` and ``Ready``. The actors of this process: rows ``(task row of its creation,
    attempt)``.

    No rows: a host of lightweight actors in which none lives now.
    """

    rows: Rows


class ActorExiting(NamedTuple):
    """actor -> local scheduler -> home of the actor. The actor has ended itself (``exit_actor``): it is not restarted."""

    actor_id: bytes


class CallTimes(NamedTuple):
    """actor -> local scheduler. When calls ran, for the timeline: a trace (``protocol.trace``), and ``names``, rows ``(id, method)``.

    ``arguments`` are the values that calls took, rows ``(call_id, object ids)`` for those that took any. ``waited`` is empty
    unless somebody measures (``MeasureCalls``): seconds between a call's arrival in the process and its beginning, a double for each call.
    Sent once a second, or sooner if there are many. Lost times are missing in the timeline and nowhere else.
    """

    names: Rows
    trace: bytes
    arguments: Rows
    waited: bytes


class HostDelays(NamedTuple):
    """actor -> local scheduler. Calls that last in a process of lightweight actors. Replaces the last report of that process.

    ``running`` is the call that has the baton. ``rows`` are the calls that have begun, the running one among them: ``(actor, call, objects
    that it waits for, actors, certain)``. ``actors`` are those whose calls make the objects (zeros: no call of this process), ``certain``
    is as in ``WaitDetails``. Sent once a second if it has changed, about calls that began at least a second before.
    """

    running: bytes
    rows: Rows


class LogAppended(NamedTuple):
    """actor -> local scheduler. Calls that a logged actor has run since the block before, in the order in which they ran.

    ``rows`` are bytes to everybody but a replay, which reads them (``machines.worker.call_log``). ``last`` is the number of the last
    call, counted over all incarnations. ``made`` are the results that are not in the rows, because they are large or have refs inside.
    ``refs`` are refs that the rows need, also those inside errors; the scheduler holds them as long as it retains the rows. ``number``
    counts what this incarnation (``attempt``) has sent about its log. The actor repeats the message to a restarted daemon until
    ``LogCommitted`` confirms it. The scheduler refuses it from any process but the one in which the actor now lives.
    """

    actor_id: bytes
    attempt: int
    number: int
    last: int
    rows: bytes
    made: Ids
    refs: Ids


class Checkpoint(NamedTuple):
    """actor -> local scheduler. Part ``part`` (from 0) of ``parts`` of the actor's state after the call numbered ``last``.

    Once the last part is committed, the rows up to that call are deleted. ``refs`` are inside the state and inside retained
    errors, and come with the last part. Otherwise as ``LogAppended``.
    """

    actor_id: bytes
    attempt: int
    number: int
    last: int
    part: int
    parts: int
    data: bytes
    refs: Ids


class LogCommitted(NamedTuple):
    """local scheduler -> worker control. The messages about the actor's log are committed up to this number: results may leave."""

    actor_id: bytes
    upto: int


class ReplayProgress(NamedTuple):
    """actor -> local scheduler. ``done`` of ``total`` logged calls have run again. ``callers`` have outcomes retained for them.

    Sent from time to time, once at the end, and again to a restarted daemon. ``CallerGone`` answers for callers that are gone.
    """

    actor_id: bytes
    done: int
    total: int
    callers: Ids


class CallCounts(NamedTuple):
    """actor -> local scheduler. ``ended`` calls have ended, over all incarnations, of an actor with checkpoints but no log.

    The count includes calls that a restart from an earlier checkpoint has lost. ``waits_for`` is the number of
    calls that run while a checkpoint is due, 0 if none is. For people; sent once a second if it has changed. The
    exact count is in the process's slot after its death (``ProcessDied``).
    """

    actor_id: bytes
    ended: int
    waits_for: int


class OutcomesReceived(NamedTuple):
    """client -> actor, or the local scheduler that stands for it. The client has the outcomes of these calls of its own.

    The actor releases them. With ``others``: of all but these.

    Sent with ``others`` to each new incarnation, ahead of the calls that are repeated, and without from time to time.
    """

    actor_id: bytes
    call_ids: Ids
    others: bool


class CallerGone(NamedTuple):
    """local scheduler -> worker control. A process that may have called an actor here has ended.

    local scheduler -> local scheduler of another node. The process may have called an actor there.

    local scheduler -> client. A host of lightweight actors has ended, in which the client may have called one.
    """

    incarnation: bytes
