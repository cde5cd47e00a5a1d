"""Actors: where they are, what is called on them, and what comes of it.

An actor is made by a task, whose id is the actor's and whose first value stands for it: who holds a ref to that value has a handle.
Calls go from the caller to the actor's process and back, past the scheduler; what concerns others (values in the arena, refs inside
results) goes through it.
"""

from __future__ import annotations

from typing import NamedTuple

from zfabric.protocol.messages.rows import Ids, Rows

# Where an actor is, in ``ActorLocations``.
CREATING = 0
"""Its ``__init__`` has not ended (again): calls wait."""
ALIVE = 1
DEAD = 2
"""For good: calls fail with the failure that comes with the news."""


class FindActors(NamedTuple):
    """client -> local scheduler. I call these actors: tell me where they are, now and whenever that changes."""

    actor_ids: Ids


class ActorLocations(NamedTuple):
    """local scheduler -> client. Rows ``(actor_id, state, incarnation, attempt, lives_on, executing, failure)``.

    ``incarnation`` is the process it lives in; while it is CREATING or DEAD, empty. ``attempt`` tells its lives apart, which may be
    in the same process. ``lives_on`` says whether the process of its last life lives on, as one that several actors share may.
    ``executing`` is the call that was running when that life ended, empty if none. ``failure`` is a packed failure
    (``protocol.failures``) if it is DEAD.
    """

    rows: Rows


class Call(NamedTuple):
    """client -> actor. Calls, in order: rows ``(call_id, method, arguments[, dependencies, values, options])``.

    ``values`` are those of the dependencies, inline, or None where the actor is to fetch them itself. ``attempt`` is the life of the
    actor that they are for: what comes for an earlier one is not run, and its caller hears of the end of that life.
    """

    actor_id: bytes
    attempt: int
    rows: Rows


class Returned(NamedTuple):
    """actor, local scheduler -> client. Outcomes of calls: rows ``(call_id, status, outputs)``, as in ``Results``.

    An output that is None is known to the scheduler, and fetched when it is wanted.
    """

    rows: Rows


class CallOutcomes(NamedTuple):
    """actor -> local scheduler. Outcomes that concern others too: rows ``(call_id, caller, status, outputs, contained)``.

    What is in the arena, or has refs inside, becomes an object that the caller holds; the caller is told with ``Returned``. The actor
    repeats it to a restarted daemon until ``OutcomesRecorded`` arrives. Lost with the actor's process: then the caller's calls fail as
    those of a dead actor do.
    """

    rows: Rows


class OutcomesRecorded(NamedTuple):
    """local scheduler -> worker control. These outcomes are taken in: the actor tells the callers, too, and repeats them no longer.

    The callers have been told already, unless this daemon dies before that leaves; they ignore what they hear again.
    """

    call_ids: Ids


class ExpectResults(NamedTuple):
    """client -> local scheduler. Results of calls that others are about to hear of: rows ``(object_id, actor_id[, ahead])``.

    With ``ahead``, it is the end of a stream, which may be so many values ahead of its consumer (0: as configured).

    The caller holds them, and offers each value when it has come (``OfferResults``). Should it end before, they are lost.
    """

    rows: Rows


class KillActor(NamedTuple):
    """client -> local scheduler. End the actor at once, and its process unless others share it; with ``no_restart`` for good."""

    actor_id: bytes
    no_restart: bool


class StopCall(NamedTuple):
    """client -> worker control. Do not run this call, or stop it if it runs; ``reason`` as in ``Interrupt``."""

    call_id: bytes
    reason: str


class RetireActor(NamedTuple):
    """local scheduler -> worker control. Nobody has a handle any more: end once the calls you have are done.

    An actor that shares its process is also ended ``at_once``, if it was killed: calls that wait are not run, the one that runs is
    stopped. Lost with the daemon: the next one knows whether anybody has a handle, and clients say again whom they killed.
    """

    actor_id: bytes
    attempt: int
    at_once: bool


class ActorEnded(NamedTuple):
    """actor -> local scheduler. An actor that shared this process lives here no longer; all that it had to say has been said.

    ``executing`` is the call that it did not come to the end of, empty if none; ``reason`` says why it ended itself, if it did.
    Lost with the daemon: to the next one, ``HostedActors`` does not name it.
    """

    actor_id: bytes
    attempt: int
    executing: bytes
    reason: str


class HostedActors(NamedTuple):
    """actor -> local scheduler, between ``Register`` and ``Ready``. Rows ``(task row of its creation, attempt)``: I am these actors.

    Without rows: a process that actors share, and none lives here now.
    """

    rows: Rows


class ActorExiting(NamedTuple):
    """actor -> local scheduler. The actor has ended itself (``exit_actor``): it is not to be restarted."""

    actor_id: bytes


class CallTimes(NamedTuple):
    """actor -> local scheduler. When calls ran, for the timeline: a trace (``protocol.trace``), and ``names``, rows ``(id, method)``.

    ``arguments`` are the values that calls took, rows ``(call_id, object ids)`` for those that took any.
    Said once a second, or sooner if there is much to say. What is lost is missing in the timeline, and nowhere else.
    """

    names: Rows
    trace: bytes
    arguments: Rows


class HostDelays(NamedTuple):
    """actor -> local scheduler. What lasts in a process that actors share, in place of what was said of it before; for people.

    ``running`` is the call whose turn it is, ``rows`` those that have begun, among them that one: ``(actor, call, objects that it waits
    for, actors, certain)``: the latter actors are those whose calls make the objects (zeros: none of this process's), and ``certain`` is
    as in ``WaitDetails``. Said once a second, if it is news, of calls that had begun a second before.
    """

    running: bytes
    rows: Rows


class LogAppended(NamedTuple):
    """actor -> local scheduler. Calls that a logged actor has run since the block before, in the order in which they ran.

    ``rows`` is theirs to read who replay them (``machines.worker.call_log``), and bytes to everybody else; ``last`` numbers the last of
    them, over all incarnations. ``made`` are those of their results that are no part of the rows, being large or with refs inside.
    ``refs`` are what they need and only their callers held: the scheduler holds it as long as the rows are kept. ``number`` counts
    what this incarnation (``attempt``) has said of its log; it is repeated to a restarted daemon until ``LogCommitted`` says that it is
    committed. What another process than the one that is the actor now says is refused.
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

    Once the last part is committed, the rows up to that call are dropped. ``refs`` are inside the state, and come with the last part.
    Otherwise as ``LogAppended``.
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
    """local scheduler -> worker control. What you have said of the actor's log is committed, up to this number: results may leave."""

    actor_id: bytes
    upto: int


class ReplayProgress(NamedTuple):
    """actor -> local scheduler. So many of the logged calls have run again; ``callers`` are those whose outcomes are kept for them.

    Said from time to time, once at the end, and again to a restarted daemon. Of callers that are gone, ``CallerGone`` is the answer.
    """

    actor_id: bytes
    done: int
    total: int
    callers: Ids


class CallCounts(NamedTuple):
    """actor -> local scheduler. So many calls have ended of an actor whose calls are not logged, over all its incarnations.

    Those count of which nothing is left in an incarnation that begins with a checkpoint from before them, until then. ``waits_for`` are
    the calls that run while a checkpoint is due, 0 if none is. For people, and said once a second if it has changed: what is
    exact is in the process's slot when it has died (``ProcessDied``).
    """

    actor_id: bytes
    ended: int
    waits_for: int


class OutcomesReceived(NamedTuple):
    """client -> actor. I have the outcomes of these calls of mine; with ``others``, of all but these.

    The latter is said to each new incarnation, ahead of the calls that are made again, the former now and then; the actor forgets those
    outcomes.
    """

    actor_id: bytes
    call_ids: Ids
    others: bool


class CallerGone(NamedTuple):
    """local scheduler -> worker control. A process that may have called you has ended.

    local scheduler -> client. A process that actors shared has ended, which you may have called while one lived there.
    """

    incarnation: bytes
