"""Runs one attempt of a task, or one call, in the main thread, and shows it the GPUs that it may use."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from zfabric.adapters.processes import visible_gpus
from zfabric.adapters.serialization import NONE, SCALARS, serialize_fast
from zfabric.adapters.task_errors import HeldRefs
from zfabric.machines.worker import Invocation, Item
from zfabric.protocol.messages import INTERRUPTED, OK
from zfabric.protocol.options import option
from zfabric.runtime.crew import CallRunner, creator_of, crew_for, loop_for, set_running_loop
from zfabric.runtime.functions import Loaded, LoadedFunctions
from zfabric.runtime.interrupts import TaskInterrupt
from zfabric.runtime.replay import Replayer
from zfabric.runtime.shared_process import SharedProcess
from zfabric.runtime.streaming import StreamProducer
from zfabric.runtime.user_code import Ending, UserCode, never

if TYPE_CHECKING:
    import asyncio

_RETURNED_NONE: Ending = (OK, (NONE,), None)
NODE_GPUS = visible_gpus()
"""The GPUs of ``CUDA_VISIBLE_DEVICES``, if set. Read before any worker is forked."""
SHORT = 1000
"""Longest text on the fast path, in characters: longer texts may exceed an inline value."""


class AttemptRunner:
    """Runs user code in the main thread, where interrupts may end it.

    ``_run_plain`` is the fast path of tasks without arguments and options; attributes have copies of what it needs.
    """

    def __init__(
        self,
        runner: CallRunner,
        functions: LoadedFunctions,
        gpus: AssignedGpus,
        user_code: UserCode,
        streams: StreamProducer,
        shared: SharedProcess,
        replayer: Replayer,
    ) -> None:
        self.returned: Any = None
        """The result on top, until it is packed."""
        self._runner = runner
        self._connection = runner.connection
        self._worker = runner.worker
        self._host = runner.host
        self._inline_bytes = runner.connection.config.inline_bytes
        self._fence = runner.interrupter.fence
        self._functions = functions
        self._plain, self._classes, self._streaming = functions.plain, functions.classes, functions.streams
        self._limit_threads = functions.limit_threads
        self._gpus = gpus
        self._user_code = user_code
        self._prepare, self._packed, self._failed = user_code.prepare, user_code.packed, user_code.failed
        self._streams = streams
        self._shared = shared
        self._replayer = replayer

    def run(self, item: Item | Invocation) -> Ending:
        """Load function and arguments, call, pack the outcome."""
        row = item.row
        plain: Loaded | None = None
        try:
            if row[2] or item.values or item.gpus:
                pass
            elif type(item) is Invocation:
                plain = (self._host.method(item), never) if not item.options else None
            elif len(row) == 4:
                plain = self._plain.get(row[1]) if self._functions.thread_limit == 1 else None
            if plain is None:
                if type(item) is Item:
                    self._limit_threads(row)
                prepared = self._prepare(item)
        except BaseException as error:  # Importing and unpickling run user code; what they raise is the task's error.
            self._fence.depth = 1  # As below.
            return (INTERRUPTED, (), None) if isinstance(error, TaskInterrupt) else self._failed(item, error, None)
        if plain is not None:
            function, retryable = plain
            return self._run_plain(item, function, retryable)
        function, retryable, args, kwargs = prepared
        del prepared  # Released before the result is stored: there may be no room for both.
        loop = None
        if row[1] in self._classes:
            loop = loop_for(function) if self._worker.baton is None else None  # type: ignore[arg-type]
            function = self._replayer.maker_of(function, item, creator_of(function, loop))  # type: ignore[arg-type]
        if item.gpus:
            self._gpus.assign(item.gpus)
        try:
            if self._worker.interrupts and self._worker.interrupted(item):
                return INTERRUPTED, (), None
            if loop is not None:
                set_running_loop(loop)
            self._fence.depth = 0
            try:
                value = function(*args, **kwargs)
            finally:
                self._fence.depth = 1
                if loop is not None:
                    set_running_loop(None)
            if item.options if isinstance(item, Invocation) else self._streaming:
                value = self._streams.streamed(item, value)
        except BaseException as error:  # SystemExit and our own interrupt included.
            self._fence.depth = 1  # An interrupt may have preceded the line above.
            if loop is not None:
                set_running_loop(None)
                loop.close()
            return self._failed(item, error, retryable)
        args, kwargs = (), {}
        if row[1] in self._classes:
            self._become_actor(item, value, loop)  # type: ignore[arg-type]
            value = None
        self.returned = value
        del value  # A returned exception refers to this frame by its traceback.
        return self._packed(item, self.returned)

    def _run_plain(self, item: Item | Invocation, function: Callable[[], Any], retryable: Callable[[BaseException], bool]) -> Ending:
        fence, worker = self._fence, self._worker
        try:
            if worker.interrupts and worker.interrupted(item):
                return INTERRUPTED, (), None
            fence.depth = 0
            try:
                value = function()
            finally:
                fence.depth = 1
        except BaseException as error:  # As above.
            fence.depth = 1
            return self._failed(item, error, retryable)
        if value is None and not worker.abandoned:
            return _RETURNED_NONE
        if type(value) in SCALARS and (type(value) is not str or len(value) < SHORT) and not worker.abandoned:
            data = serialize_fast(value)
            if data is not None and len(data) <= self._inline_bytes:
                return OK, (data,), None
        self.returned = value
        del value  # As in ``run``.
        return self._packed(item, self.returned)

    def _become_actor(self, item: Item, instance: Any, loop: asyncio.AbstractEventLoop | None) -> None:
        worker, connection = self._worker, self._connection
        if worker.baton is not None:
            self._shared.add_actor(item, instance)
            return
        options = worker.functions[item.row[1]][3]
        crew = crew_for(self._runner, loop, option(options, "max_concurrency"), option(options, "concurrency_groups", ()))
        with connection.lock:
            connection.transport.enable_wake()
            worker.beside = crew is not None
            self._host.begin(item, instance, crew)
            if worker.gate is not None:
                self._runner.reporter.count(worker.gate)

    def release_returned(self, item: Item | Invocation, ending: Ending) -> None:
        """Release the result while the task still runs: finalizers may wait for other tasks."""
        if ending[2] is not None:
            self._connection.retained[item.row[0]] = HeldRefs(tuple(set().union(*ending[2][0])))
        self.returned = None


class AssignedGpus:
    """This process's GPUs, until it ends: the scheduler's ``Dispatcher`` chooses them."""

    def __init__(self) -> None:
        self.places: tuple[int, ...] = ()
        """Indices among the node's GPUs."""

    def assign(self, places: tuple[int, ...]) -> None:
        """Make only these GPUs visible to CUDA."""
        if places != self.places:
            self.places = places
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(_gpu_name, places))


def gpu_ids(places: tuple[int, ...]) -> tuple[int | str, ...]:
    """The CUDA names of these GPUs, numbers as ints."""
    return tuple(int(name) if name.isdigit() else name for name in map(_gpu_name, places))


def _gpu_name(place: int) -> str:
    return NODE_GPUS[place] if NODE_GPUS is not None and place < len(NODE_GPUS) else str(place)
