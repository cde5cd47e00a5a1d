"""Whose turn it is in a process that lightweight actors share: one call runs at a time, and each actor lives and ends by itself.

A call that waits in ``get`` gives up the turn: then others run, of actors that have none begun, since an actor runs its calls one
after the other. A call that waits no longer takes the turn as soon as it is free, before any that has not begun. So whoever waits is
never held up by what runs meanwhile for longer than that runs, and calls between actors of one process end as they would
between processes. The calls of an actor whose call waits are set aside, so that what is at the head of the queue may always run.

A call of which threads or coroutines wait that it has started may do nothing but wait for those: it lends its turn meanwhile, and goes on
beside what runs then, since nobody can tell. It has its turn again once it has waited itself.

Making an actor takes its turn like a call, and so does what it has to do at a clean end (``__exit__``): that may wait for others, too.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import NamedTuple

from zfabric.machines.worker.items import Invocation
from zfabric.machines.worker.mailbox import Callee, Mailbox
from zfabric.protocol import messages as m
from zfabric.protocol.ids import JOB_BYTES, TASK_BYTES
from zfabric.protocol.messages import Row

RETIRE, LEAVE, KILL = "retire", "leave", "kill"
"""How an actor is to end: after the calls that it has; after the one that runs; with the one that runs, which has no outcome."""
FAREWELL = "__exit__"
"""The method that is called of an actor that has ended cleanly. Nobody waits for it, and nobody else can call it."""


SHOWN = 1000
"""Calls that are named to people, at most."""
WANTED_SHOWN = 8
"""Objects that are named of those which a call waits for."""


class ActorEnd(NamedTuple):
    """How an actor is to end, and why, if that is its own doing."""

    how: str
    reason: str


class Turns:
    """Of one process."""

    def __init__(self, mailbox: Mailbox, stopped: Container[bytes]) -> None:
        self.mailbox = mailbox
        self.stopped = stopped
        """What has begun and is to be stopped."""
        self.queues = mailbox.share()
        self.running = b""
        """The call, or the task that makes an actor, whose turn it is; empty if it is nobody's."""
        self.busy: dict[bytes, bytes] = {}
        """What has begun and not ended, by actor: never two of one actor."""
        self.wanted: dict[bytes, tuple[bytes, ...]] = {}
        """What those of them wait for that wait, by actor."""
        self.may_end: set[bytes] = set()
        """Those of these actors that go on although some of it does not come."""
        self.lent: dict[bytes, list[tuple[bytes, ...]]] = {}
        """What threads and coroutines of calls wait for, by actor: these calls have lent their turn, unless they wait themselves."""
        self.returning: dict[bytes, None] = {}
        """Actors whose call waits no longer, and wants its turn, in order."""
        self.polite: set[bytes] = set()
        """Actors that have something to do at a clean end."""
        self.gone: list[bytes] = []
        """Actors that have ended: the shell lets go of their instances."""
        self.on_free: Callable[[bytes], object] = lambda actor_id: None
        """Told when the turn is the first's of those that return."""
        self._seen: dict[bytes, bytes] = {}
        """What had begun when that was asked last."""
        self.told = m.HostDelays(b"", ())
        """What people were told last."""
        self._ending: dict[bytes, ActorEnd] = {}
        self._leaving: dict[bytes, m.ActorEnded] = {}
        """What is said of actors once they have done what they have to do at their end."""
        self.unsaid: list[m.ActorEnded] = []
        """News of actors that have ended, to be said behind all that they had to say."""
        self.instances = False
        """Whether there are instances: then it is said once the shell has let go of them."""

    @property
    def sayable(self) -> bool:
        """Whether there are such news to be said."""
        return bool(self.unsaid) and not (self.instances and self.gone)

    def take_ended(self) -> list[m.ActorEnded]:
        """The ends of actors that are to be sent now."""
        ended, self.unsaid = self.unsaid, []
        return ended

    def start_over(self) -> None:
        """A restarted scheduler has received nothing: ``Worker.running`` repeats which actors live here and which have ended."""
        self.unsaid.clear()
        self.told = m.HostDelays(b"", ())

    # -- turns --

    @property
    def free(self) -> bool:
        """Whether something that has not begun may begin."""
        return not self.running and not self.returning

    def begin(self, actor_id: bytes, identifier: bytes) -> None:
        """It is this one's turn."""
        self.running = self.busy[actor_id] = identifier

    def wait(self, actor_id: bytes, wanted: tuple[bytes, ...], may_end: bool) -> None:
        """What runs waits."""
        self._waits_no_more(actor_id)  # It may have lent its turn.
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
        """A thread or coroutine of what an actor runs waits."""
        self.lent.setdefault(actor_id, []).append(wanted)
        if self.running == self.busy[actor_id]:
            self.wait(actor_id, wanted, True)

    def lend_no_more(self, actor_id: bytes, wanted: tuple[bytes, ...]) -> None:
        """It goes on, and so may what has started it."""
        waits = self.lent.get(actor_id, [])
        if wanted in waits:
            waits.remove(wanted)
            if not waits:
                del self.lent[actor_id]

    def _pass_on(self) -> None:
        """What ran has ended, or waits: the turn is another's."""
        self.running = b""
        if self.returning:
            self.on_free(next(iter(self.returning)))

    def go_on(self, actor_id: bytes) -> bool:
        """It waits no longer. False if it is not its turn yet: then it asks again."""
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
        """What an actor ran, or its making, has ended."""
        had_its_turn = self.running == self.busy.pop(actor_id)
        self.lent.pop(actor_id, None)
        self._waits_no_more(actor_id)
        self.queues.bring_back(actor_id)
        if had_its_turn:
            self._pass_on()

    def end(self, actor_id: bytes) -> None:
        """What ran has ended."""
        self._over(actor_id)
        ending = self._ending.get(actor_id)
        if ending is not None and (ending.how != RETIRE or not self.queues.has(actor_id)):
            self._end_actor(actor_id, b"")

    def _goes_on_by_itself(self, actor_id: bytes) -> bool:
        """Whether what waits of an actor does not do so until all is there that it waits for."""
        begun = self.busy[actor_id]
        return actor_id in self.may_end or begun in self.stopped or begun in self.mailbox.timed

    def delays(self, callee: Callee) -> m.HostDelays | None:
        """What has begun and not ended since the last time that this was asked; None if that is no news.

        ``callee`` is the actor that an object is the pending result of a call of.
        """
        rows: list[Row] = []
        for actor_id, call_id in self.busy.items():
            if self._seen.get(actor_id) == call_id and len(rows) < SHOWN:
                wanted = self.wanted.get(actor_id, ())[:WANTED_SHOWN]
                callees = tuple(callee(each) or bytes(TASK_BYTES) for each in wanted)
                rows.append((actor_id, call_id, wanted, callees, not self._goes_on_by_itself(actor_id)))
        self._seen = dict(self.busy)
        running = self.running if any(row[1] == self.running for row in rows) else b""
        news = m.HostDelays(running, tuple(rows))
        if news == self.told:
            return None
        self.told = news
        return news

    # -- ends --

    def is_killed(self, actor_id: bytes) -> bool:
        """Whether an actor is to end with what it runs: that has no outcome, since its caller hears of the actor's end."""
        ending = self._ending.get(actor_id)
        return ending is not None and ending.how == KILL

    def leave(self, actor_id: bytes, how: str, reason: str) -> None:
        """What runs has ended its own actor."""
        self._ending.setdefault(actor_id, ActorEnd(how, reason))

    def retire(self, actor_id: bytes, attempt: int, at_once: bool) -> bytes:
        """End an actor; what it runs and is to be stopped for that, empty if there is nothing."""
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
        """What a killed actor ran has ended, without an outcome."""
        self._over(actor_id)
        self._end_actor(actor_id, executing)

    def not_made(self, actor_id: bytes) -> None:
        """There is no such actor after all."""
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
        if ending.how != KILL and actor_id in self.polite:
            self._leaving[actor_id] = ended
            name = b"\xff" * JOB_BYTES + actor_id[JOB_BYTES:]  # It runs under a name that no call has.
            self.queues.put_first(Invocation((name, b"", b"", ()), found[1], (), (), actor_id, FAREWELL, b"", None))
        else:
            self.gone.append(actor_id)
            self.unsaid.append(ended)
        self.polite.discard(actor_id)

    def left(self, actor_id: bytes) -> None:
        """What an actor had to do at its end is done: now it has ended."""
        self.end(actor_id)
        self.gone.append(actor_id)
        self.unsaid.append(self._leaving.pop(actor_id))
