"""Actors that outlive their process, in their process: checkpoints are taken, and what the process before this one was is made again.

What the log says and when results may leave is decided in ``machines.worker.call_log``; here is what of it touches the user's objects. A
replay runs the calls in the order in which they ran, in the main thread, before anybody is told where the actor lives. Nobody hears of
what comes of it, but for large values that may have been lost with the last process: these are reported again. What a replayed call
submits, puts or calls is new, under names of its own; but for calls of its own actor, which are in the log (``own_calls``).

Of actors that run several calls at once there are checkpoints alone: when they are taken is decided in ``machines.worker.quiescence``.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from zfabric.adapters import serialization
from zfabric.exceptions import FabricError, ObjectTooLargeError, SerializationError
from zfabric.machines.common.log_format import CHECKPOINT, LOG, LoggedCall, blocks_after, calls_in, is_note, is_remake, newest
from zfabric.machines.common.naming import Namer
from zfabric.machines.worker import CallLog, CheckpointLog, Gate, Invocation, Item
from zfabric.protocol.ids import TASK_BYTES, call_value
from zfabric.protocol.messages import OK, Row
from zfabric.protocol.options import LOGGED, option
from zfabric.runtime.connection import clock

if TYPE_CHECKING:
    from zfabric.runtime.running import RunningWorker

READ_PATIENCE = 600.0
"""How long a page of the log may take to come, in seconds: the daemon may be restarted meanwhile."""
PROGRESS_EVERY = 0.25
"""How often the scheduler hears how far a replay is, in seconds."""


def logged(kind: Callable[..., Any], item: Item, worker: RunningWorker) -> Callable[..., Any]:
    """What makes an instance of the class ``kind`` for this attempt: ``kind`` itself, or what its log says.

    Or nothing of the kind, if calls are to be run again for the sake of a lost value.
    """
    if is_remake(item.row):
        return _Remaker(worker, item, kind).remake  # type: ignore[arg-type]
    every = option(worker.worker.functions[item.row[1]][3], "checkpoint_every")
    return kind if every is None else _Maker(worker, item, kind, every).make  # type: ignore[arg-type]


class Replay:
    """What the replayed calls of an actor call of itself: that was called already, and is not called again."""

    def __init__(self, worker: RunningWorker, actor_id: bytes, calls: Sequence[LoggedCall], live: bool) -> None:
        self.worker = worker
        self.actor_id = actor_id
        self.live = live
        """Whether the actor is made here, and not calls of it run beside it."""
        self.recalled: set[bytes] = set()
        """Calls whose values are wanted here, and are not in the log: they are reported once more when those run again."""
        self._ended = _endings(calls)
        self._number = calls[0].number if calls else 0
        self._made = _calls_of(calls[0]) if calls else deque()
        """What the first one's row says may have been called by ``__init__``, too."""

    def begin(self, call: LoggedCall) -> None:
        """This one is run again."""
        if call.number != self._number:
            self._number = call.number
            self._made = _calls_of(call)

    def called(self, method: str, returns: int) -> bytes | None:
        """The next call that what runs has made of its actor, with one more ref to its values; None if it had not made that many."""
        if self._made and self._made[0][1] == method:
            call_id: bytes = self._made.popleft()[0]
        elif self.live:
            return None
        else:
            with self.worker.lock:
                call_id = self.worker.namer().child()
        status, outputs = self._ended.get(call_id, (OK, ()))
        if None in outputs and self.live:
            self.recalled.add(call_id)
        with self.worker.lock:
            self.worker.machine.calls.recall(call_id, returns, status, outputs)
        return call_id


def _endings(calls: Sequence[LoggedCall]) -> dict[bytes, Row]:
    """How those have ended that may have been called: (status, outputs)."""
    return {
        **{call.call_id: (call.status, call.outputs) for call in calls},
        **{row[0]: row[1] for call in calls for row in call.calls if is_note(row)},
    }


def _calls_of(call: LoggedCall) -> deque[Row]:
    return deque(row for row in call.calls if not is_note(row))


class _Maker:
    """Makes the instance of a logged actor."""

    def __init__(self, worker: RunningWorker, item: Item, kind: type, every: int) -> None:
        self.worker = worker
        self.item = item
        self.kind = kind
        self.actor_id: bytes = item.row[0]
        self.namer: Namer | None = None
        """Who names what replayed calls submit. None: they do, in this life of the actor."""
        options = worker.worker.functions[item.row[1]][3]
        self.log = (CheckpointLog if option(options, "unlogged", False) else CallLog)(self.actor_id, item.attempt, every)
        self.log.readonly = frozenset(option(options, "readonly", ()))

    def make(self, *args: Any, **kwargs: Any) -> Any:
        """From its last checkpoint and what ran after it; anew if there is nothing."""
        worker, log = self.worker, self.log
        saved, last = newest(self._rows(CHECKPOINT))
        blocks = list(blocks_after(last, self._rows(LOG)))  # Nothing waits for answers while it holds the lock.
        with worker.lock:
            worker.worker.mailbox.logs[self.actor_id] = log
            if isinstance(log, CheckpointLog):
                worker.worker.gate = Gate(log, worker.config.quiesce_seconds)
            state, calls = log.restore(saved, last, blocks)
            waiting = self._call_again()
        if calls:
            worker.replays[self.actor_id] = Replay(worker, self.actor_id, calls, True)
        try:
            instance = self.kind(*args, **kwargs) if state is None else _loaded(state, self.kind)
            if state is None and not calls and log.every:
                checkpoint(worker, log, instance, self.kind)
            elif state is not None or calls:
                self._replay(instance, calls)
        finally:
            worker.replays.pop(self.actor_id, None)
            worker.machine.dropped.extend(waiting)  # Who wants their values has refs by now.
        return instance

    def _call_again(self) -> list[bytes]:
        """The actor's calls of itself that have not run are made again, by this process; their values, and those of other such calls that
        they need. The caller holds the lock."""
        values = []
        for call_id, (status, outputs) in self.log.own.needed.items():
            count = max(1, len(outputs))
            self.worker.machine.calls.recall(call_id, count, status, outputs)
            values += [call_value(call_id, index) for index in range(count)]
        for row in self.log.own.waiting.values():
            returns = option(row[5], "num_returns", 1) if len(row) > 3 else 1
            self.worker.machine.calls.call(self.actor_id, row, returns, LOGGED)
            values += [call_value(row[0], index) for index in range(returns)]
        return values

    def _rows(self, table: str) -> Iterator[Row]:
        after, more = b"", True
        while more:
            rows, more = self.worker.query("actor log", self.actor_id, table, after, timeout=READ_PATIENCE)
            after = rows[-1][0] if rows else after
            yield from rows

    def _replay(self, instance: Any, calls: list[LoggedCall]) -> None:
        worker, log = self.worker, self.log
        worker.host.instances[self.actor_id] = instance
        told_at = 0.0
        for done, call in enumerate(calls):
            if clock() >= told_at:
                told_at = clock() + PROGRESS_EVERY
                with worker.lock:
                    log.say_progress(done, len(calls))
                    worker.flush()
            if call.again:
                self._run_again(call)
        with worker.lock:
            log.say_progress(len(calls), len(calls))

    def _run_again(self, call: LoggedCall) -> None:
        worker = self.worker
        row = (call.call_id, b"", call.arguments, call.dependencies)
        item = Invocation(row, self.item.attempt, call.values, (), self.actor_id, call.method, call.caller, call.options)
        replay = worker.replays[self.actor_id]
        replay.begin(call)
        with worker.running_as(item, self.namer):
            try:
                function, _, args, kwargs = worker.prepare(item)
                value = function(*args, **kwargs)
                del args, kwargs
            except BaseException as error:  # as it did, most often, when it ran first
                if call.status == OK:
                    self._warn(f"{call.method} (call {call.number}) raised {type(error).__name__} in a replay and had not at first")
                return
            if call.call_id in replay.recalled:
                call = call._replace(caller=worker.incarnation)  # Who called was the process before this one.
            elif not self._wants(call):
                return
            status, outputs, extra = worker.packed(item, value)
            if status == OK:
                with worker.lock:
                    worker.worker.mailbox.made_again(self.log, call, outputs, extra[0] if extra is not None else ())
                    worker.finish_writes(call.call_id)
                    if call.call_id in replay.recalled:
                        worker.flush()  # The scheduler hears of it before it is asked for it, and before what is inside is let go of.

    def _wants(self, call: LoggedCall) -> bool:
        return self.log.wants(call)

    def _warn(self, text: str) -> None:
        print(f"zfabric warning: {self.kind.__qualname__}: {text}: its state may differ from what it was", file=sys.stderr)


class _Remaker(_Maker):
    """Runs calls again, up to the one that made a value which was lost, beside the actor."""

    def __init__(self, worker: RunningWorker, item: Item, kind: type) -> None:
        super().__init__(worker, item, kind, 0)
        self.actor_id, lost = option(item.row[4], "remake")
        self.log = CallLog(self.actor_id, item.attempt, 0)
        self._call_id: bytes = lost[:TASK_BYTES]
        self.namer = worker.namer()  # That of this task: as children of calls there are those of the actor's lives.

    def remake(self, *args: Any, **kwargs: Any) -> None:
        """From the last checkpoint before it."""
        worker, log = self.worker, self.log
        parts, blocks = list(self._rows(CHECKPOINT)), list(self._rows(LOG))
        number = next((call.number for block in blocks_after(0, blocks) for call in calls_in(block) if call.call_id == self._call_id), None)
        if number is None:
            raise FabricError("the row of its call is not in the log any more")
        saved, last = newest(parts, number)
        state, calls = log.restore(saved, last, blocks_after(last, blocks))
        worker.replays[self.actor_id] = Replay(worker, self.actor_id, calls, False)
        try:
            worker.host.instances[self.actor_id] = self.kind(*args, **kwargs) if state is None else _loaded(state, self.kind)
            for call in calls:
                if call.again and call.number <= number:
                    self._run_again(call)
        finally:
            del worker.replays[self.actor_id]
            worker.host.instances.pop(self.actor_id, None)
        with worker.lock:
            worker.flush()  # The value is heard of before the end of this.

    def _wants(self, call: LoggedCall) -> bool:
        return call.call_id == self._call_id


def checkpoint(worker: RunningWorker, log: CallLog, instance: Any, kind: type) -> None:
    """Take a checkpoint. Raises SerializationError, which names the path to what cannot be pickled, or ObjectTooLargeError."""
    name = kind.__qualname__
    with worker.lock:
        log.own.forget_all_but(worker.machine.calls.pending)
    save = getattr(instance, "__zf_save__", None)
    packed = serialization.dump_instance(instance if save is None else (save(),), kind, name if save is None else f"{name}.__zf_save__()")
    limit = worker.config.checkpoint_bytes
    if packed.size > limit:
        raise ObjectTooLargeError(f"a checkpoint of {name} has {packed.size} bytes; the setting checkpoint_bytes allows {limit}")
    with worker.lock:
        worker.machine.calls.results.share(packed.contained)
        log.checkpoint(packed.to_bytes(), packed.contained)


def checkpoint_if_due(worker: RunningWorker, item: Invocation) -> None:
    """A call of an actor has ended: take a checkpoint if it is time for one. If none can be taken, say so: its log goes on."""
    log = worker.worker.mailbox.logs.get(item.actor_id)
    instance = worker.host.instances.get(item.actor_id)
    if log is None or not log.due or instance is None:
        return
    worker.wait_quietly(lambda: not log.unrecorded)
    _try_checkpoint(worker, log, instance, "a restart will run more calls again")


def look_after(worker: RunningWorker) -> None:
    """Of an actor whose calls run beside each other: take the checkpoint, if one is due and none runs; say so, if one waits."""
    gate, crew = worker.worker.gate, worker.host.crew
    if gate is None or crew is None:
        return
    with worker.lock:
        quiet = gate.take()
        in_vain, gate.in_vain = gate.in_vain, False
        calls = [item for item in worker.worker.running_calls.values() if gate.counts(item)] if in_vain else []
    if quiet:
        crew.alone(partial(_checkpoint_beside, worker, gate))
    elif in_vain:
        names = ", ".join(sorted({worker.name_of(item) for item in calls}))
        what = f"{names} would not end" if names else "the scheduler has not taken in all values"
        print(
            f"zfabric warning: a checkpoint is due, and waits: {what} while other calls were held back for {gate.patience:g} s (the "
            "setting quiesce_seconds). They go on; it is taken when none runs, but for methods marked @zf.method(readonly=True)",
            file=sys.stderr,
        )


def _checkpoint_beside(worker: RunningWorker, gate: Gate) -> None:
    instance = worker.host.instances.get(gate.log.actor_id)
    if instance is not None:
        _try_checkpoint(worker, gate.log, instance, "a restart will lose more calls")
    with worker.lock:
        gate.taken()
        worker.flush()
        worker.post.ring()  # Calls may begin again.


def _try_checkpoint(worker: RunningWorker, log: CallLog, instance: Any, otherwise: str) -> None:
    try:
        checkpoint(worker, log, instance, type(instance))
    except (Exception, SystemExit) as error:  # whatever the user's __zf_save__ and __reduce__ raise; it is no call that could end the actor
        with worker.lock:
            log.no_checkpoint()
        if not isinstance(error, (SerializationError, ObjectTooLargeError)):
            error = SerializationError(f"__zf_save__ raised {type(error).__name__}: {error}")
        print(f"zfabric warning: no checkpoint: {error}; {otherwise}", file=sys.stderr)


def _loaded(state: bytes, kind: type) -> Any:
    """The instance that a checkpoint was taken of."""
    value = serialization.load_instance(state, kind)
    if getattr(kind, "__zf_save__", None) is None:
        return value
    instance: Any = kind.__new__(kind)  # type: ignore[call-overload]
    instance.__zf_load__(value[0])
    return instance
