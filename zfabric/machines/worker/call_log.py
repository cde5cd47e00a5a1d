"""An actor's call log: a call is durable before its outcome leaves, and runs again after a restart (decision 0013).

Calls are numbered over all lives. Rows leave as a block with the next flush, and outcomes are held back until its commit. ``readonly``
calls have no row; their outcomes wait for the rows before, whose effects they may show.

An outcome is *retained* until its caller acknowledges it (``OutcomesReceived``). Callers repeat calls without an outcome to a restarted
actor; a retained outcome answers, so no call runs twice. Checkpoints have the retained outcomes, rows the acknowledgements: both outlive
the process. Values in the arena, or with refs inside, are retained as None, and replays make them again. Errors are retained whole; the
scheduler retains what they refer to while it has their row or checkpoint.

In rows and checkpoints, a caller without a node is a process of the actor's home, wherever the actor lives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgpack

from zfabric.machines.common.tables import LoggedCall, unpack_row
from zfabric.machines.worker.own_calls import OwnCalls, named_by
from zfabric.machines.worker.queue import Invocation
from zfabric.protocol import messages as m
from zfabric.protocol.failures import refs_inside
from zfabric.protocol.ids import INCARNATION_BYTES, TASK_BYTES, call_value, node_of_caller
from zfabric.protocol.messages import FAILED, Row
from zfabric.protocol.options import option

PART_BYTES = 2**20
"""Largest part of a checkpoint: a row of the control store."""
DEPARTED_MAX = 1000
"""Remembered exited callers: more than exit while their calls are queued."""


class RetainedOutcome(NamedTuple):
    """An outcome that its caller may lack."""

    number: int
    status: int
    outputs: tuple[bytes | None, ...]


class HeldOutcome(NamedTuple):
    """An outcome held back until call ``number`` is durable."""

    number: int
    item: Invocation
    status: int
    outputs: Row
    contained: tuple[Row, ...]


class CallLog:
    """One actor's log in this life."""

    def __init__(self, actor_id: bytes, attempt: int, every: int) -> None:
        self.actor_id = actor_id
        self.attempt = attempt
        self.every = every
        """Calls between checkpoints; 0: none are taken."""
        self.readonly: frozenset[str] = frozenset()
        """Methods that are not logged."""
        self.number = 0
        """The last call in a row or checkpoint."""
        self.durable = 0
        """The last committed call."""
        self.checkpointed = 0
        self._torn: LoggedCall | None = None
        """A call stopped in its middle: only a checkpoint can record its effects. It gets a row if none can be taken."""
        self.own = OwnCalls()
        self.retained: dict[bytes, dict[bytes, RetainedOutcome]] = {}
        """Retained outcomes by caller and call, in order."""
        self.unrecorded: set[bytes] = set()
        """Calls whose values the scheduler has not recorded. Checkpoints wait for them: later no replay makes them."""
        self.progress = (0, 0)
        """(calls replayed, calls to replay)."""
        self.places: tuple[bytes, ...] = ()
        """This node and the actor's home, if they differ."""
        self._held: deque[HeldOutcome] = deque()
        self._rows: list[LoggedCall] = []
        self._refs: list[bytes] = []
        self._made: list[bytes] = []
        self._acknowledgements: list[tuple[bytes, tuple[bytes, ...], bool]] = []
        """Acknowledgements that no row has recorded."""
        self._uncommitted: deque[tuple[int, int, m.Message]] = deque()
        """(message's number, last call durable with it, message)."""
        self._unsent: list[m.Message] = []
        self._messages = 0
        self._departed: deque[bytes] = deque(maxlen=DEPARTED_MAX)
        """Exited callers, with calls perhaps queued."""

    # -- calls end --

    def ended(self, item: Invocation, status: int, outputs: Row, contained: tuple[Row, ...], whole: bool) -> bool:
        """Record an outcome; return whether it is held back. ``whole``: the call was not stopped in its middle."""
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
        plain = self._retain(item, status, outputs, contained)
        self._made += [call_value(call_id, index) for index, value in enumerate(plain) if value is None]
        what = (item.method, arguments, dependencies, item.values, item.options)
        made = self.own.take()
        call = LoggedCall(self.number, call_id, self._stored(item.caller), *what, status, plain, whole, made)
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

    def _retain(self, item: Invocation, status: int, outputs: Row, contained: tuple[Row, ...]) -> tuple[bytes | None, ...]:
        call_id = item.row[0]
        plain = plain_outputs(outputs, contained)
        if None in plain:
            self.unrecorded.add(call_id)
        if item.caller not in self._departed:
            self.retained.setdefault(item.caller, {})[call_id] = RetainedOutcome(self.number, status, plain)
        return plain

    def _others(self, object_ids: Iterable[bytes]) -> list[bytes]:
        """Leave out the actor's own handle: an actor that holds itself never ends."""
        return [each for each in object_ids if each[:TASK_BYTES] != self.actor_id]

    @property
    def due(self) -> bool:
        """Whether a checkpoint is due."""
        return self.every > 0 and (self.number - self.checkpointed >= self.every or self._torn is not None)

    @property
    def settled(self) -> bool:
        """Whether all messages are committed."""
        return not (self._held or self._rows or self._uncommitted or self._torn)

    # -- what becomes durable --

    def checkpoint(self, state: bytes, refs: tuple[bytes, ...]) -> None:
        """Queue a checkpoint: the pickled state after all calls, and its refs."""
        self._seal()
        kept = tuple(
            (self._stored(caller), tuple((call_id, *each) for call_id, each in calls.items())) for caller, calls in self.retained.items()
        )
        own = self.own.for_checkpoint()
        unread = (
            each for calls in self.retained.values() for outcome in calls.values() for each in refs_inside(outcome.status, outcome.outputs)
        )
        refs = tuple(self._others((*refs, *unread, *named_by(own))))
        payload = memoryview(msgpack.packb((state, kept, own), use_bin_type=True))
        count = max(1, -(-len(payload) // PART_BYTES))
        for index in range(count):
            part = bytes(payload[index * PART_BYTES : (index + 1) * PART_BYTES])
            last = index == count - 1
            message = m.Checkpoint(self.actor_id, self.attempt, self._count(), self.number, index, count, part, refs if last else ())
            self._queue(self.number if last else 0, message)
        self.checkpointed = self.number
        self._torn = None
        self._acknowledgements.clear()

    def no_checkpoint(self) -> None:
        """Have the next checkpoint due after as many calls again: none can be taken now."""
        self.checkpointed = self.number
        if self._torn is not None:
            self._rows.append(self._torn)
            self._torn = None

    def _seal(self) -> None:
        if self._rows:
            payload = msgpack.packb((self._acknowledgements, self._rows), use_bin_type=True)
            refs, self._refs = tuple(self._refs), []
            made, self._made = tuple(self._made), []
            last = self._rows[-1].number
            self._rows = []
            self._acknowledgements.clear()
            self._queue(last, m.LogAppended(self.actor_id, self.attempt, self._count(), last, payload, made, refs))

    def _count(self) -> int:
        self._messages += 1
        return self._messages

    def _queue(self, last: int, message: m.Message) -> None:
        self._uncommitted.append((self._messages, last, message))
        self._unsent.append(message)

    @property
    def unsent(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._rows or self._unsent)

    def take_messages(self) -> list[m.Message]:
        """Take the messages to send."""
        self._seal()
        messages, self._unsent = self._unsent, []
        return messages

    def report_progress(self, done: int, total: int) -> None:
        """Queue a report of a replay's progress."""
        self.progress = (done, total)
        self._unsent.append(m.ReplayProgress(self.actor_id, done, total, tuple(self.retained) if done == total else ()))

    def repeated(self) -> list[m.Message]:
        """What a restarted daemon may lack."""
        self._seal()
        self._unsent = []
        done, total = self.progress
        return [*(message for _, _, message in self._uncommitted), m.ReplayProgress(self.actor_id, done, total, tuple(self.retained))]

    def committed(self, upto: int) -> Iterator[HeldOutcome]:
        """Record a commit up to message ``upto``; yield the outcomes that may leave."""
        while self._uncommitted and self._uncommitted[0][0] <= upto:
            _, last, _ = self._uncommitted.popleft()
            self.durable = max(self.durable, last)
        while self._held and self._held[0].number <= self.durable:
            yield self._held.popleft()

    # -- outcomes that callers may not have --

    def answer(self, caller: bytes, call_id: bytes) -> RetainedOutcome | None:
        """A repeated call's retained outcome, if any."""
        calls = self.retained.get(caller)
        return calls.get(call_id) if calls else None

    def may_send(self, kept: RetainedOutcome) -> bool:
        """Whether a retained outcome is durable; else it is sent later."""
        return kept.number <= self.durable

    def held(self, call_id: bytes) -> Invocation | None:
        """The ended call with a held outcome, if any."""
        return next((each.item for each in self._held if each.item.row[0] == call_id), None)

    def give_up(self, call_id: bytes, outputs: Row) -> HeldOutcome:
        """Replace a held outcome by a failure; return it."""
        index, before = next((index, each) for index, each in enumerate(self._held) if each.item.row[0] == call_id)
        self._held[index] = before._replace(status=FAILED, outputs=outputs, contained=())
        kept = self.retained.get(before.item.caller, {})
        if call_id in kept:
            kept[call_id] = kept[call_id]._replace(status=FAILED, outputs=outputs)
        self.unrecorded.discard(call_id)
        return before

    def acknowledged(self, caller: bytes, call_ids: tuple[bytes, ...], others: bool) -> None:
        """Release a caller's outcomes of these calls or, with ``others``, of all but these."""
        self._forget(caller, call_ids, others)
        self._acknowledgements.append((self._stored(caller), call_ids, others))

    def _forget(self, caller: bytes, call_ids: tuple[bytes, ...], others: bool) -> None:
        calls = self.retained.get(caller, {})
        for call_id in calls.keys() - set(call_ids) if others else call_ids:
            calls.pop(call_id, None)
        if not calls:
            self.retained.pop(caller, None)

    def caller_exited(self, caller: bytes) -> None:
        """Release an exited caller's outcomes."""
        self._departed.append(caller)
        if caller in self.retained:
            self.acknowledged(caller, (), True)

    # -- after a restart --

    def restore(self, checkpoint: bytes | None, last: int, blocks: Iterable[bytes]) -> tuple[bytes | None, list[LoggedCall]]:
        """Restore from the control store. Return the pickled state after call ``last``, and the calls to run again."""
        state: bytes | None = None
        own: tuple[Row, ...] = ()
        if checkpoint is not None:
            state, kept, own = unpack_row(checkpoint)
            self.retained = {self._here(caller): {call_id: RetainedOutcome(*each) for call_id, *each in calls} for caller, calls in kept}
        self.number = self.checkpointed = last if checkpoint is not None else 0
        rows: list[LoggedCall] = []
        for block in blocks:
            taken, packed = unpack_row(block)
            for caller, *which in taken:
                self._forget(self._here(caller), *which)
            for fields in packed:
                call = LoggedCall(*fields)
                call = call._replace(caller=self._here(call.caller)) if self.places else call
                if call.number > self.number:  # A block may have been written twice, the second time with other calls.
                    self.number = call.number
                    self.retained.setdefault(call.caller, {})[call.call_id] = RetainedOutcome(call.number, call.status, call.outputs)
                    rows.append(call)
        self.durable = self.number
        self.own.restore(own, ((call.call_id, (call.status, call.outputs), call.calls) for call in rows))
        return state, rows

    def _stored(self, caller: bytes) -> bytes:
        if not self.places:
            return caller
        here, home = self.places
        node = node_of_caller(caller)
        return caller[:INCARNATION_BYTES] if node == home else caller if node else caller + here

    def _here(self, caller: bytes) -> bytes:
        """A caller's name here."""
        if not self.places:
            return caller
        here, home = self.places
        node = node_of_caller(caller)
        return caller[:INCARNATION_BYTES] if node == here else caller if node else caller + home

    def wants(self, call: LoggedCall) -> bool:
        """Whether a replay reports a call's values: the caller may lack them, and the row has none."""
        return None in call.outputs and self.answer(call.caller, call.call_id) is not None


def plain_outputs(outputs: Row, contained: tuple[Row, ...]) -> tuple[bytes | None, ...]:
    """Outputs, with None for values in the arena or with refs inside."""
    refs = contained or ((),) * len(outputs)
    return tuple(value if type(value) is bytes and not inside else None for value, inside in zip(outputs, refs, strict=True))
