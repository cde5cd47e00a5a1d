"""Actors with checkpoints, in simulated workers. An actor's state is the list of the calls it has run, which can be compared.

A replay appends the ids of calls to the list without running their bodies. (Tasks and calls that a body submits are new in a real replay,
too.) Large values that must be reported again are copies of the first run's.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgpack
from tests.sim.arena import Content
from tests.sim.processes import Process
from tests.sim.programs import Doomed, Value, pack_value
from zfabric.machines.common.tables import CHECKPOINT, LOG, LoggedCall, blocks_after, calls_in, newest
from zfabric.machines.worker import CallLog, CheckpointLog, Gate, Invocation, Item, Worker
from zfabric.protocol.ids import TASK_BYTES, call_value
from zfabric.protocol.messages import Row
from zfabric.protocol.options import option

Running = Generator[tuple[Any, ...], Any, Any]
READONLY = "look"
"""The name of methods whose calls are not logged."""


class LoggedActors:
    """The actors with checkpoints of one worker process."""

    def __init__(self, process: Process, worker: Worker) -> None:
        self.process = process
        self.worker = worker
        self.states: dict[bytes, list[bytes]] = {}
        """The calls that each actor has run, in order, over all lives."""

    def made(self, item: Item, room: Any) -> Running:
        """Create an actor, or restore it from its log. ``room`` yields until a large value has room."""
        options = item.row[4] if len(item.row) > 4 else None
        every, unlogged = option(options, "checkpoint_every"), option(options, "unlogged", False)
        if every is None:
            return
        process, actor_id = self.process, item.row[0]
        parts, _ = yield from self._rows(actor_id, CHECKPOINT)
        blocks, places = yield from self._rows(actor_id, LOG)
        log = CheckpointLog(actor_id, item.attempt, every) if unlogged else CallLog(actor_id, item.attempt, every)
        if isinstance(log, CheckpointLog):
            self.worker.gate = Gate(log, process.config.quiesce_seconds)
        log.readonly = frozenset({READONLY})
        log.places = places
        self.worker.mailbox.logs[actor_id] = log
        checkpoint, last = newest(parts)
        saved, calls = log.restore(checkpoint, last, blocks_after(last, blocks))
        state = self.states[actor_id] = list(msgpack.unpackb(saved)) if saved is not None else []
        for call in calls:
            if call.again:
                state.append(call.call_id)
                if log.wants(call):
                    yield from self._make_again(log, call, room)
        process.world.calls.restored(process, actor_id, item.attempt, state, unlogged)
        if saved is None and not calls and every:
            log.checkpoint(msgpack.packb(state), ())
        log.report_progress(len(calls), len(calls))

    def remade(self, item: Item, room: Any) -> Running:
        """Rebuild the lost value of a call from the actor's log."""
        actor_id, lost = option(item.row[4], "remake")
        parts, _ = yield from self._rows(actor_id, CHECKPOINT)
        blocks, _ = yield from self._rows(actor_id, LOG)
        log = CallLog(actor_id, item.attempt, 0)
        calls = [call for block in blocks_after(0, blocks) for call in calls_in(block) if call.call_id == lost[:TASK_BYTES]]
        if not calls:
            raise Doomed
        saved, last = newest(parts, calls[0].number)
        state, between = log.restore(saved, last, blocks_after(last, blocks))
        ran = [*(msgpack.unpackb(state) if state is not None else ()), *(call.call_id for call in between if call.again)]
        self.process.world.calls.remade(actor_id, ran[: ran.index(lost[:TASK_BYTES])], lost[:TASK_BYTES])
        yield from self._make_again(log, calls[0], room)
        self.process.flush()

    def _rows(self, actor_id: bytes, table: str) -> Generator[tuple[Any, ...], Any, tuple[list[Row], tuple[bytes, ...]]]:
        found: list[Row] = []
        places: list[bytes] = []
        more = True
        while more:
            answer = yield ("ask", "actor log", (actor_id, table, found[-1][0] if found else b""))
            if answer.error:
                raise Doomed  # It is no longer needed.
            rows, more, *places = answer.payload
            found += rows
        return found, tuple(places)

    def _make_again(self, log: CallLog, call: LoggedCall, room: Any) -> Running:
        process = self.process
        outputs: list[Any] = []
        for index, (value, size) in enumerate(process.world.calls.values[call.call_id]):
            if not size:
                outputs.append(pack_value(value))
                continue
            offset = yield from room(size)
            process.node.arena.write(offset, Content(call_value(call.call_id, index), size, pack_value(value)))
            process.machine.reservations.finished(offset)
            outputs.append((offset, size))
        self.worker.mailbox.report_remade(log, call, tuple(outputs), ())

    def ended(self, item: Invocation, whole: bool) -> None:
        """Append a call that has run to its actor's state, if it changes that."""
        state = self.states.get(item.actor_id)
        if state is None or item.method == READONLY:
            return
        if whole or self.worker.mailbox.logs[item.actor_id].every:  # Only a checkpoint has the effect of an interrupted call.
            self.process.world.calls.had_effect(self.process, item, state)
            state.append(item.row[0])

    def remember(self, call_id: bytes, values: list[tuple[Value, Any]]) -> None:
        """Store the values of a call, with their sizes in the arena."""
        self.process.world.calls.values[call_id] = [(value, place[1] if place is not None else 0) for value, place in values]

    def may_begin(self) -> bool:
        """Take checkpoints due between two calls. Return False if one must wait until values are recorded."""
        mailbox = self.worker.mailbox
        for actor_id, log in mailbox.logs.items():
            if log.due and actor_id in mailbox.actors:
                if log.unrecorded:
                    return False
                log.checkpoint(msgpack.packb(self.states[actor_id]), ())
        return True
