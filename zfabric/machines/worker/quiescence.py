"""Checkpoints of concurrent actors, which have no log: there is no order to replay (decision 0013).

Calls run again only if repeated (``max_task_retries``), and not if they are in the checkpoint, which has the outcomes that callers may
lack. At a **quiet moment** no counted call runs, and the scheduler has all reported values. When a checkpoint is due, the *gate* closes:
queued calls wait for running ones. They could wait for ever, if a running call waits for a held one or lasts as long as the actor. So:

- The gate is closed for ``quiesce_seconds`` at most, then open for twenty times as long.
- It stays open until all calls that outlasted it have ended: an endless coroutine holds calls back once.
- A moment that is quiet by itself is always used.
- ``readonly`` calls change nothing: they are not counted, and run during the checkpoint.
"""

from __future__ import annotations

from zfabric.machines.worker.call_log import CallLog, RetainedOutcome, plain_outputs
from zfabric.machines.worker.queue import Invocation, Item
from zfabric.protocol import messages as m
from zfabric.protocol.messages import Row

OPEN, CLOSED, QUIET, TAKING = "open", "closed", "quiet", "taking"
"""Calls may begin; wait for running ones; none runs; the checkpoint is being taken."""
PAUSE = 20.0
"""Open for so many times the closed time: calls are held back for 5 % of the time."""


class CheckpointLog(CallLog):
    """A log without rows: retained outcomes, checkpoints, and a count of ended calls.

    Calls are numbered as they end, in later lives from the checkpoint's number on.
    """

    def __init__(self, actor_id: bytes, attempt: int, every: int) -> None:
        super().__init__(actor_id, attempt, every)
        self._counted = (0, 0)

    def ended(self, item: Invocation, status: int, outputs: Row, contained: tuple[Row, ...], whole: bool) -> bool:
        """Record an outcome, never held back."""
        self.own.ended(item.row[0], (status, plain_outputs(outputs, contained)))
        if item.method not in self.readonly:
            self.number += 1
            self._retain(item, status, outputs, contained)
        return False

    @property
    def due(self) -> bool:
        """Whether a checkpoint is due, and none is being written."""
        return self.number - self.checkpointed >= self.every and not self._uncommitted

    @property
    def settled(self) -> bool:
        """No outcome waits for a commit."""
        return True

    def may_send(self, kept: RetainedOutcome) -> bool:
        """Every outcome has left once."""
        return True

    def acknowledged(self, caller: bytes, call_ids: tuple[bytes, ...], others: bool) -> None:
        """Release outcomes. No row records that; the next checkpoint lacks them."""
        self._forget(caller, call_ids, others)

    def report_count(self, waits_for: int) -> None:
        """Queue the count of ended calls, if changed."""
        if self._counted != (self.number, waits_for):
            self._counted = (self.number, waits_for)
            self._unsent.append(m.CallCounts(self.actor_id, self.number, waits_for))

    def repeated(self) -> list[m.Message]:
        """What a restarted daemon may lack."""
        return [*super().repeated(), m.CallCounts(self.actor_id, *self._counted)]


class Gate:
    """Holds calls until none runs. In ``QUIET`` the shell takes the checkpoint."""

    def __init__(self, log: CheckpointLog, patience: float) -> None:
        self.log = log
        self.patience = patience
        self.state = OPEN
        self.opens_at: float | None = None
        """When the gate opens even if calls still run."""
        self.in_vain = False
        """Whether it has opened in vain for the first time. The shell warns, and resets this."""
        self._warned = False
        self._running: set[bytes] = set()
        self._outlasted: set[bytes] = set()
        """Calls that outlasted the gate, which does not close before they end."""
        self._again_at = 0.0

    @property
    def open(self) -> bool:
        """Whether calls may begin."""
        return self.state is OPEN

    @property
    def wants_shell(self) -> bool:
        """Whether the shell takes the checkpoint, or warns."""
        return self.state is QUIET or self.in_vain

    @property
    def waits_for(self) -> int:
        """Running calls that a due checkpoint waits for."""
        return len(self._running) if self.log.due else 0

    def counts(self, item: Item | Invocation) -> bool:
        """Whether checkpoints wait for this item."""
        return type(item) is Invocation and item.method not in self.log.readonly

    def began(self, item: Invocation) -> None:
        """Record that a call has begun."""
        if self.counts(item):
            self._running.add(item.row[0])

    def ended(self, now: float, item: Invocation) -> None:
        """Record a call's end, after the log has its outcome."""
        self._running.discard(item.row[0])
        self._outlasted.discard(item.row[0])
        self.look(now)

    def look(self, now: float) -> None:
        """Close the gate, or find the moment quiet: after a call, a recorded value or a checkpoint."""
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
        """True for the first caller at a quiet moment, who takes the checkpoint."""
        if self.state is not QUIET:
            return False
        self.state = TAKING
        return True

    def taken(self) -> None:
        """Open the gate: the checkpoint was taken, or cannot be."""
        self.state = OPEN
