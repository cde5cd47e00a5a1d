"""The baton of a process that lightweight actors share: the call that has it runs (decision 0011).

A call in ``get`` passes the baton on, to calls of actors that have begun none; calls of an actor whose running call waits are set aside.
Once its values are there, the call takes the baton as soon as it is free, before any new call. So it waits for at most one other call, and
calls between actors end as they would between processes.

While threads or coroutines of a call wait in ``get``, the call lends the baton, and may compute beside the next. It needs the baton again
once it has waited itself. Making an actor and ``__exit__`` need the baton, too.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from zfabric.machines.worker.mailbox import Callee, Mailbox
from zfabric.machines.worker.queue import Invocation
from zfabric.protocol import messages as m
from zfabric.protocol.ids import JOB_BYTES, TASK_BYTES
from zfabric.protocol.messages import Row

RETIRE, LEAVE, KILL = "retire", "leave", "kill"
"""How an actor ends: after its queued calls; after the running call; with the running call, without an outcome."""
FAREWELL = "__exit__"
"""Called at a clean end. Nobody waits for it, and no caller can name it."""


SHOWN = 1000
"""Most calls in ``HostDelays``."""
WANTED_SHOWN = 8
"""Most objects per call there."""


class ActorEnd(NamedTuple):
    """How an actor ends, and why if it ends itself."""

    how: str
    reason: str


class Baton:
    """Who runs, who waits, and how actors end."""

    def __init__(self, mailbox: Mailbox, stopped: Container[bytes]) -> None:
        self.mailbox = mailbox
        self.stopped = stopped
        self.queues = mailbox.share()
        self.running = b""
        """The call, or task that makes an actor, with the baton; or empty."""
        self.busy: dict[bytes, bytes] = {}
        """Actor -> its begun call; never two."""
        self.wanted: dict[bytes, tuple[bytes, ...]] = {}
        self.may_end: set[bytes] = set()
        """Actors whose call may go on without all of ``wanted``."""
        self.lent: dict[bytes, list[tuple[bytes, ...]]] = {}
        """Object ids for which a call's threads and coroutines wait. The call has lent the baton unless it waits itself."""
        self.returning: dict[bytes, None] = {}
        """Actors whose call needs the baton after a wait, in order."""
        self.with_farewell: set[bytes] = set()
        """Actors that define ``__exit__``."""
        self.gone: list[bytes] = []
        """Ended actors whose instances the shell drops."""
        self.on_free: Callable[[bytes], object] = lambda actor_id: None
        """Called with the first of ``returning`` when the baton is free."""
        self._seen: dict[bytes, bytes] = {}
        """``busy`` at the last ``delays``."""
        self.last_report = m.HostDelays(b"", ())
        self._ending: dict[bytes, ActorEnd] = {}
        self._leaving: dict[bytes, m.ActorEnded] = {}
        """Ends to report after ``__exit__``, which runs."""
        self.unsent: list[m.ActorEnded] = []
        """Ends to report behind all that the actors have sent."""
        self.instances = False
        """Whether there are instances: an end is reported once the shell has dropped the actor's instance."""

    @property
    def has_reports(self) -> bool:
        """Whether ends can be reported now."""
        return bool(self.unsent) and not (self.instances and self.gone)

    def take_ended(self) -> list[m.ActorEnded]:
        """Take the ends to report."""
        ended, self.unsent = self.unsent, []
        return ended

    def start_over(self) -> None:
        """Drop reports: ``Worker.running`` repeats actors and ends."""
        self.unsent.clear()
        self.last_report = m.HostDelays(b"", ())

    # -- the baton --

    @property
    def free(self) -> bool:
        """Whether a queued call may begin."""
        return not self.running and not self.returning

    def begin(self, actor_id: bytes, identifier: bytes) -> None:
        """Give the baton to a call, or to a task that makes an actor."""
        self.running = self.busy[actor_id] = identifier

    def wait(self, actor_id: bytes, wanted: tuple[bytes, ...], may_end: bool) -> None:
        """Record what a call waits for; pass the baton on."""
        self._waits_no_more(actor_id)  # The call may have lent the baton.
        self.wanted[actor_id] = wanted
        if may_end:
            self.may_end.add(actor_id)
        self.queues.want(each[:TASK_BYTES] for each in wanted)
        self.queues.set_aside(actor_id)
        if self.running == self.busy[actor_id]:
            self._pass_on()

    def _waits_no_more(self, actor_id: bytes) -> None:
        self.queues.want_no_more(each[:TASK_BYTES] for each in self.wanted.pop(actor_id, ()))
        self.may_end.discard(actor_id)

    def lend(self, actor_id: bytes, wanted: tuple[bytes, ...]) -> None:
        """Record what a call's thread or coroutine waits for."""
        self.lent.setdefault(actor_id, []).append(wanted)
        if self.running == self.busy[actor_id]:
            self.wait(actor_id, wanted, True)

    def lend_no_more(self, actor_id: bytes, wanted: tuple[bytes, ...]) -> None:
        """End this wait: the call may go on, too."""
        waits = self.lent.get(actor_id, [])
        if wanted in waits:
            waits.remove(wanted)
            if not waits:
                del self.lent[actor_id]

    def _pass_on(self) -> None:
        self.running = b""
        if self.returning:
            self.on_free(next(iter(self.returning)))

    def take(self, actor_id: bytes) -> bool:
        """Take the baton after a wait; False if it is not free: ask again."""
        if self.running or next(iter(self.returning), actor_id) != actor_id:
            self.returning[actor_id] = None
            return False
        self.returning.pop(actor_id, None)
        self._waits_no_more(actor_id)
        self.running = self.busy[actor_id]
        if actor_id in self.lent:
            self.wait(actor_id, self.lent[actor_id][0], True)
        return True

    def _over(self, actor_id: bytes) -> None:
        had_it = self.running == self.busy.pop(actor_id)
        self.lent.pop(actor_id, None)
        self._waits_no_more(actor_id)
        self.queues.bring_back(actor_id)
        if had_it:
            self._pass_on()

    def end(self, actor_id: bytes) -> None:
        """End an actor's call, and the actor if due."""
        self._over(actor_id)
        ending = self._ending.get(actor_id)
        if ending is not None and (ending.how != RETIRE or not self.queues.has(actor_id)):
            self._end_actor(actor_id, b"")

    def _wait_may_end(self, actor_id: bytes) -> bool:
        begun = self.busy[actor_id]
        return actor_id in self.may_end or begun in self.stopped or begun in self.mailbox.timed

    def delays(self, callee: Callee) -> m.HostDelays | None:
        """Calls that run or wait since the last ``delays``; None if nothing has changed.

        ``callee`` maps an object id to the actor whose call will make it.
        """
        rows: list[Row] = []
        for actor_id, call_id in self.busy.items():
            if self._seen.get(actor_id) == call_id and len(rows) < SHOWN:
                wanted = self.wanted.get(actor_id, ())[:WANTED_SHOWN]
                callees = tuple(callee(each) or bytes(TASK_BYTES) for each in wanted)
                rows.append((actor_id, call_id, wanted, callees, not self._wait_may_end(actor_id)))
        self._seen = dict(self.busy)
        running = self.running if any(row[1] == self.running for row in rows) else b""
        news = m.HostDelays(running, tuple(rows))
        if news == self.last_report:
            return None
        self.last_report = news
        return news

    # -- ends --

    def is_killed(self, actor_id: bytes) -> bool:
        """Whether an actor ends with its running call, without an outcome: its end is notified instead."""
        ending = self._ending.get(actor_id)
        return ending is not None and ending.how == KILL

    def leave(self, actor_id: bytes, how: str, reason: str) -> None:
        """Have the running call end its own actor."""
        self._ending.setdefault(actor_id, ActorEnd(how, reason))

    def retire(self, actor_id: bytes, attempt: int, at_once: bool) -> bytes:
        """End an actor. Return the running call to stop, or empty."""
        known = self.mailbox.actors.get(actor_id)
        running = self.busy.get(actor_id, b"")
        if (known is None and not running) or (known is not None and known[1] != attempt):
            return b""
        if at_once:
            self._ending[actor_id] = ActorEnd(KILL, "")
            self.mailbox.drop(self.queues, actor_id)
            if not running:
                self._end_actor(actor_id, b"")
            return running
        self._ending.setdefault(actor_id, ActorEnd(RETIRE, ""))
        if not running and not self.queues.has(actor_id):
            self._end_actor(actor_id, b"")
        return b""

    def ended_with(self, actor_id: bytes, executing: bytes) -> None:
        """End a killed actor, whose call has no outcome."""
        self._over(actor_id)
        self._end_actor(actor_id, executing)

    def not_made(self, actor_id: bytes) -> None:
        """Release the baton of a task that failed to make an actor."""
        self._over(actor_id)
        self._ending.pop(actor_id, None)

    def _end_actor(self, actor_id: bytes, executing: bytes) -> None:
        ending = self._ending.pop(actor_id)
        found = self.mailbox.actors.pop(actor_id, None)
        self.mailbox.drop(self.queues, actor_id)
        self.queues.bring_back(actor_id)
        if found is None:
            return
        ended = m.ActorEnded(actor_id, found[1], executing, ending.reason)
        if ending.how != KILL and actor_id in self.with_farewell:
            self._leaving[actor_id] = ended
            name = b"\xff" * JOB_BYTES + actor_id[JOB_BYTES:]  # An id that no call has.
            self.queues.put_first(Invocation((name, b"", b"", ()), found[1], (), (), actor_id, FAREWELL, b"", None))
        else:
            self.gone.append(actor_id)
            self.unsent.append(ended)
        self.with_farewell.discard(actor_id)

    def farewell_done(self, actor_id: bytes) -> None:
        """End an actor whose ``__exit__`` has returned."""
        self.end(actor_id)
        self.gone.append(actor_id)
        self.unsent.append(self._leaving.pop(actor_id))
