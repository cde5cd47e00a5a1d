"""Takes checkpoints of actors, and restores state from the last process's checkpoint and log.

``machines.worker.call_log`` decides what a log has and when outcomes leave; this module handles the user's objects. A replay runs calls in
order, in the main thread, before anybody has the actor's address. It sends no outcomes, except large values that may be lost. What replayed
calls submit, put or call is new, with new names, except calls of their own actor, which are in the log (``own_calls``). Concurrent actors
have checkpoints at moments of ``machines.worker.quiescence``, and no log.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from zfabric.adapters import serialization
from zfabric.exceptions import FabricError, ObjectTooLargeError, SerializationError
from zfabric.machines.common.tables import CHECKPOINT, LOG, LoggedCall, blocks_after, calls_in, is_note, is_remake, newest
from zfabric.machines.worker import CallLog, CheckpointLog, Gate, Invocation, Item
from zfabric.protocol.ids import TASK_BYTES, Namer, call_value
from zfabric.protocol.messages import OK, Row
from zfabric.protocol.options import LOGGED, option
from zfabric.runtime import interface
from zfabric.runtime.arena_access import UnreportedWrites
from zfabric.runtime.client import FabricClient
from zfabric.runtime.connection import clock
from zfabric.runtime.contexts import Contexts
from zfabric.runtime.functions import LoadedFunctions
from zfabric.runtime.user_code import UserCode
from zfabric.runtime.worker_connection import WorkerConnection

READ_PATIENCE = 600.0
"""Seconds for a page of the log: the daemon may restart."""
PROGRESS_EVERY = 0.25
"""Seconds between reports of progress."""


class Replayer:
    """Checkpoints, replays, and logged actors' calls of themselves."""

    def __init__(
        self,
        connection: WorkerConnection,
        client: FabricClient,
        replays: dict[bytes, Replay],
        contexts: Contexts,
        functions: LoadedFunctions,
        user_code: UserCode,
        writes: UnreportedWrites,
    ) -> None:
        self.connection = connection
        self.worker = connection.worker
        self.host = connection.host
        self.client = client
        self.contexts = contexts
        self.user_code = user_code
        self.writes = writes
        self.replays = replays
        self._functions = functions

    # -- creating actors --

    def maker_of(self, kind: type, item: Item, create: Callable[..., Any]) -> Callable[..., Any]:
        """What makes an instance of ``kind``: ``create``, or what restores it. Of a remake task, what rebuilds the value."""
        if is_remake(item.row):
            return _Remaker(self, item, kind).remake
        every = option(self.worker.functions[item.row[1]][3], "checkpoint_every")
        return create if every is None else _Maker(self, item, kind, create, every).make

    # -- checkpoints --

    def checkpoint(self, log: CallLog, instance: Any, kind: type) -> None:
        """Take a checkpoint. Raises SerializationError (naming the attribute) or ObjectTooLargeError."""
        name, connection = kind.__qualname__, self.connection
        with connection.lock:
            log.own.retain_only(connection.machine.calls.pending)
        save = getattr(instance, "__zf_save__", None)
        saved, what = (instance, name) if save is None else ((save(),), f"{name}.__zf_save__()")
        packed = serialization.dump_instance(saved, kind, what)
        limit = connection.config.checkpoint_bytes
        if packed.size > limit:
            raise ObjectTooLargeError(f"a checkpoint of {name} has {packed.size} bytes; the setting checkpoint_bytes allows {limit}")
        with connection.lock:
            connection.machine.pass_on(packed.contained)
            log.checkpoint(packed.to_bytes(), packed.contained)

    def checkpoint_if_due(self, item: Invocation) -> None:
        """Take a due checkpoint after a call. A failure is a warning; the log goes on."""
        log = self.worker.mailbox.logs.get(item.actor_id)
        instance = self.host.instances.get(item.actor_id)
        if log is None or not log.due or instance is None:
            return
        self.connection.wait_quietly(lambda: not log.unrecorded)
        self._try_checkpoint(log, instance, "a restart will run more calls again")

    def checkpoint_when_quiet(self) -> None:
        """Take a concurrent actor's due checkpoint while no call runs. A failure is a warning."""
        gate, crew = self.worker.gate, self.host.crew
        if gate is None or crew is None:
            return
        with self.connection.lock:
            quiet = gate.take()
            in_vain, gate.in_vain = gate.in_vain, False
            calls = [item for item in self.worker.running_calls.values() if gate.counts(item)] if in_vain else []
        if quiet:
            crew.alone(partial(self._checkpoint_beside, gate))
        elif in_vain:
            names = ", ".join(sorted({self._functions.name_of(item) for item in calls}))
            what = f"{names} would not end" if names else "the scheduler has not taken in all values"
            print(
                f"zfabric warning: a checkpoint is due, and waits: {what} while other calls were held back for {gate.patience:g} s (the "
                "setting quiesce_seconds). They go on; it is taken when none runs, but for methods marked @zf.method(readonly=True)",
                file=sys.stderr,
            )

    def _checkpoint_beside(self, gate: Gate) -> None:
        instance = self.host.instances.get(gate.log.actor_id)
        if instance is not None:
            self._try_checkpoint(gate.log, instance, "a restart will lose more calls")
        with self.connection.lock:
            gate.taken()
            self.connection.flush()
            self.connection.transport.wake()  # Calls may begin again.

    def _try_checkpoint(self, log: CallLog, instance: Any, otherwise: str) -> None:
        try:
            self.checkpoint(log, instance, type(instance))
        except BaseException as error:  # What the user's __zf_save__ and __reduce__ raise must not end the actor.
            with self.connection.lock:
                log.no_checkpoint()
            if not isinstance(error, (SerializationError, ObjectTooLargeError)):
                error = SerializationError(f"__zf_save__ raised {type(error).__name__}: {error}")
            print(f"zfabric warning: no checkpoint: {error}; {otherwise}", file=sys.stderr)


class Replay:
    """Calls of an actor to itself by its replayed calls, which are not made again."""

    def __init__(self, connection: WorkerConnection, contexts: Contexts, actor_id: bytes, calls: Sequence[LoggedCall], live: bool) -> None:
        self._connection = connection
        self._contexts = contexts
        self.actor_id = actor_id
        self.live = live
        """Whether the actor itself is restored, and not a lost value rebuilt."""
        self.recalled: set[bytes] = set()
        """Calls with needed, unlogged values, reported when the calls run again."""
        self._ended = _endings(calls)
        self._number = calls[0].number if calls else 0
        self._made = _calls_of(calls[0]) if calls else deque()
        """Calls by the running call; the first one's may include those of ``__init__``."""

    def begin(self, call: LoggedCall) -> None:
        """Prepare to repeat a call."""
        if call.number != self._number:
            self._number = call.number
            self._made = _calls_of(call)

    def called(self, method: str, returns: int) -> bytes | None:
        """The id of the running call's next call of its actor, whose values are held; None without one."""
        if self._made and self._made[0][1] == method:
            call_id: bytes = self._made.popleft()[0]
        elif self.live:
            return None
        else:
            with self._connection.lock:
                call_id = self._contexts.namer().child()
        status, outputs = self._ended.get(call_id, (OK, ()))
        if None in outputs and self.live:
            self.recalled.add(call_id)
        with self._connection.lock:
            self._connection.machine.calls.recall(call_id, returns, status, outputs)
        return call_id


def _endings(calls: Sequence[LoggedCall]) -> dict[bytes, Row]:
    """Ended call -> (status, outputs)."""
    return {
        **{call.call_id: (call.status, call.outputs) for call in calls},
        **{row[0]: row[1] for call in calls for row in call.calls if is_note(row)},
    }


def _calls_of(call: LoggedCall) -> deque[Row]:
    return deque(row for row in call.calls if not is_note(row))


class _Maker:
    """Restores a logged actor's instance from checkpoint and log, or creates it."""

    def __init__(self, replayer: Replayer, item: Item, kind: type, create: Callable[..., Any], every: int) -> None:
        self.replayer = replayer
        self.create = create
        self.connection = replayer.connection
        self.item = item
        self.kind = kind
        self.actor_id: bytes = item.row[0]
        self.namer: Namer | None = None
        """The namer of replayed calls' submissions. None: each call has its own."""
        options = replayer.worker.functions[item.row[1]][3]
        self.log = (CheckpointLog if option(options, "unlogged", False) else CallLog)(self.actor_id, item.attempt, every)
        self.log.readonly = frozenset(option(options, "readonly", ()))
        self.places: list[bytes] = []
        """This node and the actor's home, if they differ."""

    def make(self, *args: Any, **kwargs: Any) -> Any:
        replayer, connection, log = self.replayer, self.connection, self.log
        saved, last = newest(self._rows(CHECKPOINT))
        blocks = list(blocks_after(last, self._rows(LOG)))  # Read before the lock is taken: this waits for answers.
        with connection.lock:
            replayer.worker.mailbox.logs[self.actor_id] = log
            if isinstance(log, CheckpointLog):
                replayer.worker.gate = Gate(log, connection.config.quiesce_seconds)
            log.places = tuple(self.places)
            state, calls = log.restore(saved, last, blocks)
            waiting = self._call_again()
        if calls:
            replayer.replays[self.actor_id] = Replay(connection, replayer.contexts, self.actor_id, calls, True)
        try:
            instance = self.create(*args, **kwargs) if state is None else _loaded(state, self.kind)
            if state is None and not calls and log.every:
                replayer.checkpoint(log, instance, self.kind)
            elif state is not None or calls:
                self._replay(instance, calls)
        finally:
            replayer.replays.pop(self.actor_id, None)
            connection.machine.dropped.extend(waiting)  # Replayed calls hold the values that they need.
        return instance

    def _call_again(self) -> list[bytes]:
        """Repeat the actor's calls of itself that have not run. The caller holds the lock.

        Return the ids of their values and of those that they need.
        """
        values = []
        for call_id, (status, outputs) in self.log.own.needed.items():
            count = max(1, len(outputs))
            self.connection.machine.calls.recall(call_id, count, status, outputs)
            values += [call_value(call_id, index) for index in range(count)]
        for row in self.log.own.waiting.values():
            returns = option(row[5], "num_returns", 1) if len(row) > 3 else 1
            self.connection.machine.calls.call(self.actor_id, row, returns, LOGGED)
            values += [call_value(row[0], index) for index in range(returns)]
        return values

    def _rows(self, table: str) -> Iterator[Row]:
        after, more = b"", True
        while more:
            rows, more, *self.places = self.replayer.client.query("actor log", self.actor_id, table, after, timeout=READ_PATIENCE)
            after = rows[-1][0] if rows else after
            yield from rows

    def _replay(self, instance: Any, calls: list[LoggedCall]) -> None:
        replayer, connection, log = self.replayer, self.connection, self.log
        replayer.host.instances[self.actor_id] = instance
        reported_at = 0.0
        for done, call in enumerate(calls):
            if clock() >= reported_at:
                reported_at = clock() + PROGRESS_EVERY
                with connection.lock:
                    log.report_progress(done, len(calls))
                    connection.flush()
            if call.again:
                self._run_again(call)
        with connection.lock:
            log.report_progress(len(calls), len(calls))

    def _run_again(self, call: LoggedCall) -> None:
        replayer, connection = self.replayer, self.connection
        row = (call.call_id, b"", call.arguments, call.dependencies)
        item = Invocation(row, self.item.attempt, call.values, (), self.actor_id, call.method, call.caller, call.options)
        replay = replayer.replays[self.actor_id]
        replay.begin(call)
        with replayer.contexts.running_as(item, self.namer):
            try:
                function, _, args, kwargs = replayer.user_code.prepare(item)
                value = function(*args, **kwargs)
                del args, kwargs
                interface.check_process()
            except BaseException as error:  # Usually it raised the same error the first time.
                if call.status == OK:
                    self._warn(f"{call.method} (call {call.number}) raised {type(error).__name__} in a replay and had not at first")
                return
            if call.call_id in replay.recalled:
                call = call._replace(caller=connection.incarnation)  # The caller was this actor's previous process.
            elif not self._wants(call):
                return
            status, outputs, extra = replayer.user_code.packed(item, value)
            connection.retained.pop(call.call_id, None)  # No process receives a replay's error.
            if status == OK:
                with connection.lock:
                    replayer.worker.mailbox.report_remade(self.log, call, outputs, extra[0] if extra is not None else ())
                    replayer.writes.finish(call.call_id)
                    if call.call_id in replay.recalled:
                        connection.flush()  # Before it is requested, and before refs inside it are released.

    def _wants(self, call: LoggedCall) -> bool:
        return self.log.wants(call)

    def _warn(self, text: str) -> None:
        print(f"zfabric warning: {self.kind.__qualname__}: {text}: its state may differ from what it was", file=sys.stderr)


class _Remaker(_Maker):
    """Runs calls again, in another process, from the checkpoint before a lost value's call to that call."""

    def __init__(self, replayer: Replayer, item: Item, kind: type) -> None:
        super().__init__(replayer, item, kind, kind, 0)
        self.actor_id, lost = option(item.row[4], "remake")
        self.log = CallLog(self.actor_id, item.attempt, 0)
        self._call_id: bytes = lost[:TASK_BYTES]
        self.namer = replayer.contexts.namer()  # The task's: the calls' own names belong to the actor's lives.

    def remake(self, *args: Any, **kwargs: Any) -> None:
        replayer, connection, log = self.replayer, self.connection, self.log
        parts, blocks = list(self._rows(CHECKPOINT)), list(self._rows(LOG))
        number = next((call.number for block in blocks_after(0, blocks) for call in calls_in(block) if call.call_id == self._call_id), None)
        if number is None:
            raise FabricError("the row of its call is not in the log any more")
        saved, last = newest(parts, number)
        state, calls = log.restore(saved, last, blocks_after(last, blocks))
        replayer.replays[self.actor_id] = Replay(connection, replayer.contexts, self.actor_id, calls, False)
        try:
            replayer.host.instances[self.actor_id] = self.kind(*args, **kwargs) if state is None else _loaded(state, self.kind)
            for call in calls:
                if call.again and call.number <= number:
                    self._run_again(call)
        finally:
            del replayer.replays[self.actor_id]
            replayer.host.instances.pop(self.actor_id, None)
        with connection.lock:
            connection.flush()  # The value is reported before this task's outcome.

    def _wants(self, call: LoggedCall) -> bool:
        return call.call_id == self._call_id


def _loaded(state: bytes, kind: type) -> Any:
    value = serialization.load_instance(state, kind)
    if getattr(kind, "__zf_save__", None) is None:
        return value
    instance: Any = kind.__new__(kind)  # type: ignore[call-overload]
    instance.__zf_load__(value[0])
    return instance
