"""Checkpoints of actors that run several calls at once. They have no log, since there is no order to replay.

Threaded and ``async def`` actors with ``checkpoint_every`` are not *logged*: outcomes leave at once, and a restart begins with the last
checkpoint. Effects of calls that ended after it are lost, and their number is reported (``ActorLogs``). Such a call runs again only if its
caller repeats it (``max_task_retries``). Calls that the checkpoint contains do not run twice: it carries the outcomes that their callers
may not have received, as a logged actor's does. It is taken at a quiet moment, when every call that has begun has ended: then the order in
which they ran does not matter.

**A quiet moment** is one in which no call runs, and the scheduler has recorded all values that were reported. When a checkpoint is due, the
*gate* closes: queued calls wait until the running ones have ended. That may take for ever, since a running call may wait for one that is
held back, or may run for as long as the actor lives. So:

- The gate is closed for ``quiesce_seconds`` at most. Then it opens, and stays open for twenty times as long: calls are held back for at
  most a twentieth of the time.
- It does not close again before all calls that outlasted it have ended: one coroutine that never ends holds calls back once.
- A moment that is quiet by itself is always used.
- ``readonly`` methods change nothing: their calls are neither counted nor waited for, and go on while the checkpoint is taken.
"""

from __future__ import annotations

from zfabric.machines.worker.call_log import CallLog, RetainedOutcome, plain_outputs
from zfabric.machines.worker.items import Invocation, Item
from zfabric.protocol import messages as m
from zfabric.protocol.messages import Row

OPEN, CLOSED, QUIET, TAKING = "open", "closed", "quiet", "taking"
"""States of the gate: calls may begin; they wait for the running ones; none runs any more; the checkpoint is being taken."""
PAUSE = 20.0
"""After a wait in vain the gate stays open for this multiple of the time that it was closed: calls are held back for 5 % of the time."""


class CheckpointLog(CallLog):
    """The part of a log that needs no rows: outcomes that callers may not have received, checkpoints, and the number of calls that ended.

    Calls are numbered as they end. A later life goes on with the number of the checkpoint that it begins with.
    """

    def __init__(self, actor_id: bytes, attempt: int, every: int) -> None:
        super().__init__(actor_id, attempt, every)
        self._counted = (0, 0)

    def ended(self, item: Invocation, status: int, outputs: Row, contained: tuple[Row, ...], whole: bool) -> bool:
        """Record the outcome of a call; it is never held back."""
        self.own.ended(item.row[0], (status, plain_outputs(outputs, contained)))
        if item.method not in self.readonly:
            self.number += 1
            self._retain(item, status, outputs, contained)
        return False

    @property
    def due(self) -> bool:
        """Whether a checkpoint is due. None is while another is being written."""
        return self.number - self.checkpointed >= self.every and not self._uncommitted

    @property
    def settled(self) -> bool:
        """True: no outcome waits for a commit."""
        return True

    def may_send(self, kept: RetainedOutcome) -> bool:
        """True: every outcome has left once."""
        return True

    def acknowledged(self, caller: bytes, call_ids: tuple[bytes, ...], others: bool) -> None:
        """Release outcomes that a caller has acknowledged. No row records it; the next checkpoint does not contain them."""
        self._forget(caller, call_ids, others)

    def report_count(self, waits_for: int) -> None:
        """Queue a report of the number of calls that have ended, if it has changed."""
        if self._counted != (self.number, waits_for):
            self._counted = (self.number, waits_for)
            self._unsent.append(m.CallCounts(self.actor_id, self.number, waits_for))

    def repeated(self) -> list[m.Message]:
        """Messages that repeat to a restarted daemon what it may not have received."""
        return [*super().repeated(), m.CallCounts(self.actor_id, *self._counted)]


class Gate:
    """Holds calls back until none runs. It uses the log of its actor; the shell takes the checkpoint in state ``QUIET``."""

    def __init__(self, log: CheckpointLog, patience: float) -> None:
        self.log = log
        self.patience = patience
        self.state = OPEN
        self.opens_at: float | None = None
        """While the gate is closed: when it opens even if calls still run."""
        self.in_vain = False
        """Whether the gate opened with calls still running for the first time. The shell warns about it and resets this."""
        self._warned = False
        self._running: set[bytes] = set()
        self._outlasted: set[bytes] = set()
        """Running calls that also ran when the gate last opened in vain. While one of them runs, the gate does not close."""
        self._again_at = 0.0

    @property
    def open(self) -> bool:
        """Whether calls may begin."""
        return self.state is OPEN

    @property
    def wants_shell(self) -> bool:
        """Whether the shell is to take the checkpoint, or to warn that it waits."""
        return self.state is QUIET or self.in_vain

    @property
    def waits_for(self) -> int:
        """Number of running calls that a due checkpoint waits for."""
        return len(self._running) if self.log.due else 0

    def counts(self, item: Item | Invocation) -> bool:
        """Whether a checkpoint waits for the end of this item."""
        return type(item) is Invocation and item.method not in self.log.readonly

    def began(self, item: Invocation) -> None:
        """Record that a call has begun."""
        if self.counts(item):
            self._running.add(item.row[0])

    def ended(self, now: float, item: Invocation) -> None:
        """Record that a call has ended, after the log has recorded its outcome."""
        self._running.discard(item.row[0])
        self._outlasted.discard(item.row[0])
        self.look(now)

    def look(self, now: float) -> None:
        """Close the gate, or find the moment quiet. Called when a call ends, a value is recorded or a checkpoint is written."""
        if self.state in (QUIET, TAKING) or not self.log.due:
            return
        if not self._running and not self.log.unrecorded:
            self.state, self.opens_at = QUIET, None
        elif self.state is OPEN and now >= self._again_at and not self._outlasted and self.patience > 0:
            self.state, self.opens_at = CLOSED, now + self.patience

    def tick(self, now: float) -> None:
        """Open the gate when its time is up."""
        if self.opens_at is not None and now >= self.opens_at:
            self.state, self.opens_at = OPEN, None
            self.in_vain, self._warned = not self._warned, True
            self._outlasted = set(self._running)
            self._again_at = now + PAUSE * self.patience

    def take(self) -> bool:
        """Whether the caller is to take the checkpoint; True for the first caller at a quiet moment."""
        if self.state is not QUIET:
            return False
        self.state = TAKING
        return True

    def taken(self) -> None:
        """Open the gate: the checkpoint was taken, or cannot be."""
        self.state = OPEN
