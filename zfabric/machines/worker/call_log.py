"""The log of an actor's calls: the actor's side. What ran is durable before anybody hears of it, and is run again after a restart.

A *logged* actor (``checkpoint_every``) numbers the calls that it runs, over all its incarnations. When one ends, its row is appended
here; rows leave as one block with the next flush, and the outcome is held back until the control store has committed them. The next
calls run meanwhile: what is waited for is a batch, never a call. Outcomes of ``readonly`` calls have no row; they wait for the rows before
them, whose effects they may show.

An outcome is *retained* until its caller acknowledges it (``OutcomesReceived``). Callers send a restarted actor again every call whose
outcome they lack: a retained outcome answers such a call, which never runs twice. Retained outcomes go into checkpoints, and what was
taken into the rows; so both outlive the process. Values in the arena, or with refs inside, are kept as None: a replay makes them again.
Errors are retained whole, and the scheduler holds what they refer to for as long as it has their row or checkpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgpack

from zfabric.machines.common.log_format import LoggedCall
from zfabric.machines.common.row_format import unpack_row
from zfabric.machines.worker.items import Invocation
from zfabric.machines.worker.own_calls import OwnCalls, named_by
from zfabric.protocol import messages as m
from zfabric.protocol.failures import refs_inside
from zfabric.protocol.ids import TASK_BYTES, call_value
from zfabric.protocol.messages import FAILED, Row
from zfabric.protocol.options import option

PART_BYTES = 2**20
"""Largest part of a checkpoint: one row of the control store."""
DEPARTED_MAX = 1000
"""Callers that are known to have ended: more than end while calls of theirs wait."""


class RetainedOutcome(NamedTuple):
    """An outcome that its caller may not have."""

    number: int
    status: int
    outputs: tuple[bytes | None, ...]


class HeldOutcome(NamedTuple):
    """An outcome that is held back until call ``number`` is durable."""

    number: int
    item: Invocation
    status: int
    outputs: Row
    contained: tuple[Row, ...]


class CallLog:
    """The log of one actor, in the process that the actor is now."""

    def __init__(self, actor_id: bytes, attempt: int, every: int) -> None:
        self.actor_id = actor_id
        self.attempt = attempt
        self.every = every
        """Calls between two checkpoints; 0: there are none."""
        self.readonly: frozenset[str] = frozenset()
        """Methods that are not logged."""
        self.number = 0
        """The last call that has a row, or is part of a checkpoint."""
        self.durable = 0
        """The last call that is committed."""
        self.checkpointed = 0
        self._torn: LoggedCall | None = None
        """A call that was stopped in its middle. Only a checkpoint can tell what it has done: it has no row as long as one may come."""
        self.own = OwnCalls()
        self.kept: dict[bytes, dict[bytes, RetainedOutcome]] = {}
        """Outcomes that their callers may not have: by caller, in the order in which they ran, by call."""
        self.unrecorded: set[bytes] = set()
        """Calls whose values the scheduler has not taken in yet: a checkpoint waits for them, since it ends what could make them again."""
        self.progress = (0, 0)
        """Calls that have been run again, and how many there are to be."""
        self._held: deque[HeldOutcome] = deque()
        self._rows: list[LoggedCall] = []
        self._refs: list[bytes] = []
        self._made: list[bytes] = []
        self._taken: list[tuple[bytes, tuple[bytes, ...], bool]] = []
        """What callers have said they have, and no row says yet."""
        self._unheard: deque[tuple[int, int, m.Message]] = deque()
        """What is not known to be committed: (number of the message, last call that is durable with it, message)."""
        self._unsent: list[m.Message] = []
        self._messages = 0
        self._departed: deque[bytes] = deque(maxlen=DEPARTED_MAX)
        """Callers that have ended, whose calls may still wait here."""

    # -- calls end --

    def ended(self, item: Invocation, status: int, outputs: Row, contained: tuple[Row, ...], whole: bool) -> bool:
        """A call has an outcome. Whether it is held back; ``whole`` says that the call was not stopped in its middle."""
        logged = item.method not in self.readonly
        self.own.ended(item.row[0], (status, plain_outputs(outputs, contained)), logged)
        if logged:
            self._append(item, status, outputs, contained, whole)
        elif self.durable >= self.number:
            return False
        self._held.append(HeldOutcome(self.number, item, status, outputs, contained))
        return True

    def _append(self, item: Invocation, status: int, outputs: Row, contained: tuple[Row, ...], whole: bool) -> None:
        self.number += 1
        call_id, _, arguments, dependencies = item.row
        plain = self._keep(item, status, outputs, contained)
        self._made += [call_value(call_id, index) for index, value in enumerate(plain) if value is None]
        what = (item.method, arguments, dependencies, item.values, item.options)
        made = self.own.take()
        call = LoggedCall(self.number, call_id, item.caller, *what, status, plain, whole, made)
        self._refs += self._others(refs_inside(status, plain))
        if made:
            self._refs += self._others(named_by(made))
        if whole or not self.every:
            self._rows.append(call)
        else:
            self._torn = call
        if dependencies or item.options:
            fetched = (identifier for identifier, value in zip(dependencies, item.values, strict=True) if value is None)
            self._refs += self._others((*fetched, *option(item.options, "contains", ())))

    def _keep(self, item: Invocation, status: int, outputs: Row, contained: tuple[Row, ...]) -> tuple[bytes | None, ...]:
        """Keep an outcome, in which what is in the arena, or has refs inside, is None."""
        call_id = item.row[0]
        plain = plain_outputs(outputs, contained)
        if None in plain:
            self.unrecorded.add(call_id)
        if item.caller not in self._departed:
            self.kept.setdefault(item.caller, {})[call_id] = RetainedOutcome(self.number, status, plain)
        return plain

    def _others(self, object_ids: Iterable[bytes]) -> list[bytes]:
        """Return these ids without those of the actor's own handle: an actor that holds itself would never end."""
        return [each for each in object_ids if each[:TASK_BYTES] != self.actor_id]

    @property
    def due(self) -> bool:
        """Whether it is time for a checkpoint."""
        return self.every > 0 and (self.number - self.checkpointed >= self.every or self._torn is not None)

    @property
    def settled(self) -> bool:
        """Whether all that was said of the log is committed."""
        return not (self._held or self._rows or self._unheard or self._torn)

    # -- what becomes durable --

    def checkpoint(self, state: bytes, refs: tuple[bytes, ...]) -> None:
        """The state after all calls so far; ``refs`` are inside it."""
        self._seal()
        kept = tuple((caller, tuple((call_id, *each) for call_id, each in calls.items())) for caller, calls in self.kept.items())
        own = self.own.keep()
        unread = (
            each for calls in self.kept.values() for outcome in calls.values() for each in refs_inside(outcome.status, outcome.outputs)
        )
        refs = tuple(self._others((*refs, *unread, *named_by(own))))
        payload = memoryview(msgpack.packb((state, kept, own), use_bin_type=True))
        count = max(1, -(-len(payload) // PART_BYTES))
        for index in range(count):
            part = bytes(payload[index * PART_BYTES : (index + 1) * PART_BYTES])
            last = index == count - 1
            message = m.Checkpoint(self.actor_id, self.attempt, self._count(), self.number, index, count, part, refs if last else ())
            self._say(self.number if last else 0, message)
        self.checkpointed = self.number
        self._torn = None
        self._taken.clear()

    def no_checkpoint(self) -> None:
        """None can be taken now: the next one is due when as many calls have run again."""
        self.checkpointed = self.number
        if self._torn is not None:
            self._rows.append(self._torn)
            self._torn = None

    def _seal(self) -> None:
        """The rows so far are a block."""
        if self._rows:
            payload = msgpack.packb((self._taken, self._rows), use_bin_type=True)
            refs, self._refs = tuple(self._refs), []
            made, self._made = tuple(self._made), []
            last = self._rows[-1].number
            self._rows = []
            self._taken.clear()
            self._say(last, m.LogAppended(self.actor_id, self.attempt, self._count(), last, payload, made, refs))

    def _count(self) -> int:
        self._messages += 1
        return self._messages

    def _say(self, last: int, message: m.Message) -> None:
        self._unheard.append((self._messages, last, message))
        self._unsent.append(message)

    @property
    def unsent(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._rows or self._unsent)

    def take_messages(self) -> list[m.Message]:
        """What is to be said of the log now."""
        self._seal()
        messages, self._unsent = self._unsent, []
        return messages

    def say_progress(self, done: int, total: int) -> None:
        """So many calls have run again."""
        self.progress = (done, total)
        self._unsent.append(m.ReplayProgress(self.actor_id, done, total, tuple(self.kept) if done == total else ()))

    def again(self) -> list[m.Message]:
        """What a restarted daemon may not have heard."""
        self._seal()
        self._unsent = []
        done, total = self.progress
        return [*(message for _, _, message in self._unheard), m.ReplayProgress(self.actor_id, done, total, tuple(self.kept))]

    def committed(self, upto: int) -> Iterator[HeldOutcome]:
        """What was said up to a message is durable; the outcomes that may leave now."""
        while self._unheard and self._unheard[0][0] <= upto:
            _, last, _ = self._unheard.popleft()
            self.durable = max(self.durable, last)
        while self._held and self._held[0].number <= self.durable:
            yield self._held.popleft()

    # -- outcomes that callers may not have --

    def answer(self, caller: bytes, call_id: bytes) -> RetainedOutcome | None:
        """The outcome of a call that comes again."""
        calls = self.kept.get(caller)
        return calls.get(call_id) if calls else None

    def may_tell(self, kept: RetainedOutcome) -> bool:
        """Whether an outcome that is asked for again is durable; else it will be told, in its turn."""
        return kept.number <= self.durable

    def held(self, call_id: bytes) -> Invocation | None:
        """A call that has ended and whose outcome waits for its row."""
        return next((each.item for each in self._held if each.item.row[0] == call_id), None)

    def give_up(self, call_id: bytes, outputs: Row) -> HeldOutcome:
        """Nobody waits for an outcome any longer that is held: it is a failure, now and when it leaves. What it was."""
        index, before = next((index, each) for index, each in enumerate(self._held) if each.item.row[0] == call_id)
        self._held[index] = before._replace(status=FAILED, outputs=outputs, contained=())
        kept = self.kept.get(before.item.caller, {})
        if call_id in kept:
            kept[call_id] = kept[call_id]._replace(status=FAILED, outputs=outputs)
        self.unrecorded.discard(call_id)
        return before

    def taken(self, caller: bytes, call_ids: tuple[bytes, ...], others: bool) -> None:
        """A caller has the outcomes of these calls; with ``others``, of all but these."""
        self._forget(caller, call_ids, others)
        self._taken.append((caller, call_ids, others))

    def _forget(self, caller: bytes, call_ids: tuple[bytes, ...], others: bool) -> None:
        calls = self.kept.get(caller, {})
        for call_id in calls.keys() - set(call_ids) if others else call_ids:
            calls.pop(call_id, None)
        if not calls:
            self.kept.pop(caller, None)

    def gone(self, caller: bytes) -> None:
        """A process has ended: it wants no outcome any more."""
        self._departed.append(caller)
        if caller in self.kept:
            self.taken(caller, (), True)

    # -- after a restart --

    def restore(self, checkpoint: bytes | None, last: int, blocks: Iterable[bytes]) -> tuple[bytes | None, list[LoggedCall]]:
        """Begin where the incarnation before ended: the state it was in after call ``last``, and the calls to be run again."""
        state: bytes | None = None
        own: tuple[Row, ...] = ()
        if checkpoint is not None:
            state, kept, own = unpack_row(checkpoint)
            self.kept = {caller: {call_id: RetainedOutcome(*each) for call_id, *each in calls} for caller, calls in kept}
        self.number = self.checkpointed = last if checkpoint is not None else 0
        rows: list[LoggedCall] = []
        for block in blocks:
            taken, packed = unpack_row(block)
            for each in taken:
                self._forget(*each)
            for fields in packed:
                call = LoggedCall(*fields)
                if call.number > self.number:  # A block may have been written twice, with other calls in it.
                    self.number = call.number
                    self.kept.setdefault(call.caller, {})[call.call_id] = RetainedOutcome(call.number, call.status, call.outputs)
                    rows.append(call)
        self.durable = self.number
        self.own.restore(own, ((call.call_id, (call.status, call.outputs), call.calls) for call in rows))
        return state, rows

    def wants(self, call: LoggedCall) -> bool:
        """Whether the values of a call that runs again are to be reported again: its caller may not have them, and the row has not."""
        return None in call.outputs and self.answer(call.caller, call.call_id) is not None


def plain_outputs(outputs: Row, contained: tuple[Row, ...]) -> tuple[bytes | None, ...]:
    """Outputs, in which what is in the arena, or has refs inside, is None."""
    refs = contained or ((),) * len(outputs)
    return tuple(value if type(value) is bytes and not inside else None for value, inside in zip(outputs, refs, strict=True))
