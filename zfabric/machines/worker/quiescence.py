"""Actors that run several calls at once, and have checkpoints: no log, since there is no order to replay, but quiet moments.

Threaded and ``async def`` actors with ``checkpoint_every`` are not *logged*: outcomes leave at once, and a restart begins with the last
checkpoint. What calls have done that ended after it is lost, and how many those were is said (``kept_logs``). Nothing is
run again but what callers make again themselves (``max_task_retries``). What the checkpoint contains is not run twice: it carries the
outcomes that their callers may not have, as a logged actor's does. At a quiet moment that is easy to say, whatever the
order in which calls ran: what has begun has ended.

**A quiet moment** is one in which no call runs, and the scheduler has taken in all values that were reported. When a checkpoint is due, the
*gate* closes: calls that have not begun wait until those that run have ended. That may take for ever, since what runs may wait for
what is held back, or be meant to run for as long as the actor does. So:

- The gate is closed for ``quiesce_seconds`` at most. Then it opens, and stays open for twenty times as long: held back is at most a
  twentieth of the time.
- It is not closed again before everything has ended that has outlasted it: one coroutine that never ends holds calls back once.
- A moment that is quiet by itself is always taken.
- ``readonly`` methods change nothing: their calls are neither counted nor waited for, and run on while the checkpoint is taken.
"""

from __future__ import annotations

from zfabric.machines.worker.call_log import CallLog, RetainedOutcome, plain_outputs
from zfabric.machines.worker.items import Invocation, Item
from zfabric.protocol import messages as m
from zfabric.protocol.messages import Row

OPEN, CLOSED, QUIET, TAKING = "open", "closed", "quiet", "taking"
"""States of the gate: calls may begin; they wait for those that run; none runs any more; the checkpoint is being taken."""
PAUSE = 20.0
"""So many times longer than it was closed in vain the gate stays open: what is held back for nothing is 5 % of the time."""


class CheckpointLog(CallLog):
    """What there is of a log without rows: outcomes that callers may not have, checkpoints, and how many calls have ended.

    Calls are numbered as they end. An incarnation goes on with the number of the checkpoint that it begins with.
    """

    def __init__(self, actor_id: bytes, attempt: int, every: int) -> None:
        super().__init__(actor_id, attempt, every)
        self._counted = (0, 0)

    def ended(self, item: Invocation, status: int, outputs: Row, contained: tuple[Row, ...], whole: bool) -> bool:
        """A call has an outcome, which leaves at once."""
        self.own.ended(item.row[0], (status, plain_outputs(outputs, contained)))
        if item.method not in self.readonly:
            self.number += 1
            self._keep(item, status, outputs, contained)
        return False

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint: not while one is being written."""
        return self.number - self.checkpointed >= self.every and not self._unheard

    @property
    def settled(self) -> bool:
        """Nothing waits for what is being written."""
        return True

    def may_tell(self, kept: RetainedOutcome) -> bool:
        """Every outcome has left once."""
        return True

    def taken(self, caller: bytes, call_ids: tuple[bytes, ...], others: bool) -> None:
        """A caller has these outcomes. There is no row to say so: the next checkpoint does, by what it does not contain."""
        self._forget(caller, call_ids, others)

    def say_count(self, waits_for: int) -> None:
        """Tell people how many calls have ended, if that has changed."""
        if self._counted != (self.number, waits_for):
            self._counted = (self.number, waits_for)
            self._unsent.append(m.CallCounts(self.actor_id, self.number, waits_for))

    def again(self) -> list[m.Message]:
        """What a restarted daemon may not have heard."""
        return [*super().again(), m.CallCounts(self.actor_id, *self._counted)]


class Gate:
    """Holds calls back until none runs. Works on the log of its actor; the shell takes the checkpoint when the moment is ``QUIET``."""

    def __init__(self, log: CheckpointLog, patience: float) -> None:
        self.log = log
        self.patience = patience
        self.state = OPEN
        self.opens_at: float | None = None
        """When it opens although calls run that have not ended, while it is closed."""
        self.in_vain = False
        """Whether it has, for the first time: people are told, and this is False again."""
        self._told = False
        self._running: set[bytes] = set()
        self._outlasted: set[bytes] = set()
        """Of those that run, what ran when the gate gave up: as long as one of them does, waiting is in vain."""
        self._again_at = 0.0

    @property
    def open(self) -> bool:
        """Whether calls may begin."""
        return self.state is OPEN

    @property
    def wants_shell(self) -> bool:
        """Whether the shell has something to do: take the checkpoint, or tell people that it waits."""
        return self.state is QUIET or self.in_vain

    @property
    def waits_for(self) -> int:
        """Calls that run while a checkpoint is due."""
        return len(self._running) if self.log.due else 0

    def counts(self, item: Item | Invocation) -> bool:
        """Whether what runs is waited for."""
        return type(item) is Invocation and item.method not in self.log.readonly

    def began(self, item: Invocation) -> None:
        """A call has."""
        if self.counts(item):
            self._running.add(item.row[0])

    def ended(self, now: float, item: Invocation) -> None:
        """A call has, and the log knows."""
        self._running.discard(item.row[0])
        self._outlasted.discard(item.row[0])
        self.look(now)

    def look(self, now: float) -> None:
        """Something has ended, or was taken in, or is written."""
        if self.state in (QUIET, TAKING) or not self.log.due:
            return
        if not self._running and not self.log.unrecorded:
            self.state, self.opens_at = QUIET, None
        elif self.state is OPEN and now >= self._again_at and not self._outlasted and self.patience > 0:
            self.state, self.opens_at = CLOSED, now + self.patience

    def tick(self, now: float) -> None:
        """It does not stay closed for ever."""
        if self.opens_at is not None and now >= self.opens_at:
            self.state, self.opens_at = OPEN, None
            self.in_vain, self._told = not self._told, True
            self._outlasted = set(self._running)
            self._again_at = now + PAUSE * self.patience

    def take(self) -> bool:
        """Whether the checkpoint is to be taken, by whoever asks first."""
        if self.state is not QUIET:
            return False
        self.state = TAKING
        return True

    def taken(self) -> None:
        """It was taken, or cannot be."""
        self.state = OPEN
