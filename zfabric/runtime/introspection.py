"""What a worker runs: task context, stacks, names of output, ``breakpoint()``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from types import CodeType
from typing import Any

from zfabric.machines.worker import Invocation, Item
from zfabric.protocol.ids import tries_of
from zfabric.protocol.messages import Rows
from zfabric.protocol.options import ONE_CPU
from zfabric.runtime.attempts import AssignedGpus, gpu_ids
from zfabric.runtime.connection import clock
from zfabric.runtime.contexts import Contexts
from zfabric.runtime.crew import Loop
from zfabric.runtime.functions import LoadedFunctions
from zfabric.runtime.interface import TaskContext
from zfabric.runtime.interrupts import TaskInterrupt
from zfabric.runtime.stacks import Run, own_threads
from zfabric.runtime.worker_connection import WorkerConnection


class Introspection:
    """Describes what a worker runs."""

    def __init__(self, connection: WorkerConnection, contexts: Contexts, functions: LoadedFunctions, gpus: AssignedGpus) -> None:
        self._directory = connection.session.directory
        self._worker = connection.worker
        self._host = connection.host
        self._contexts = contexts
        self._functions = functions
        self._gpus = gpus
        self._printing: tuple[bytes, str] = (b"", "")
        """The last printer's (id, name)."""

    def _here(self) -> Item | Invocation | None:
        """What runs here; outside of calls, the task that made the actor."""
        item = self._contexts.here
        if item is None:
            actors = list(self._worker.mailbox.actors.values())
            if len(actors) == 1:  # Of several, nobody can say whose code it is.
                (row, attempt), *_ = actors
                item = Item(row, attempt, gpus=self._gpus.places)
        return item

    def context(self) -> TaskContext | None:
        """Describe the task, call or actor whose code runs here, if any."""
        item = self._here()
        if item is None:
            return None
        functions, worker = self._functions, self._worker
        name, stopped, tries = functions.name_of(item), worker.interrupted(item) != "", tries_of(item.attempt)
        if type(item) is Invocation:
            made_by = worker.mailbox.actors[item.actor_id][0] if item.actor_id in worker.mailbox.actors else None
            demand = () if made_by is None else functions.option_of(made_by, "demand", ())
            strategy = () if made_by is None else functions.strategy_of(made_by)
            return TaskContext(item.row[0], tries, name, gpu_ids(self._gpus.places), item.actor_id, demand, "", stopped, strategy)
        makes_actor = functions.makes_actor(item)
        actor_id, default = (item.row[0], ()) if makes_actor else (b"", ONE_CPU)
        demand, called = functions.option_of(item.row, "demand", default), functions.option_of(item.row, "name", "")
        given, strategy = "" if makes_actor else called, functions.strategy_of(item.row)
        return TaskContext(item.row[0], tries, name, gpu_ids(item.gpus), actor_id, demand, given, stopped, strategy)

    # -- output --

    def name_of_writer(self) -> str:
        """The name before lines printed here, or ""."""
        item = self._here()
        if item is None:
            return ""
        identifier, name = self._printing
        if identifier != item.row[0]:
            name = self._writer(item)
            self._printing = item.row[0], name
        return name

    def _writer(self, item: Item | Invocation) -> str:
        functions = self._functions
        if isinstance(item, Invocation):
            made_by = self._worker.mailbox.actors.get(item.actor_id)
            row, kind = None if made_by is None else made_by[0], self._host.class_of(item)
        else:
            row, kind = item.row, functions.name_of(item)
        kind = kind.rpartition("<locals>.")[2]
        named = "" if row is None else functions.option_of(row, "name", "")
        is_task = isinstance(item, Item) and not functions.makes_actor(item)
        return (named or kind) if is_task else f"{kind}, {named}" if named else kind

    # -- stacks --

    def threads(self, runners: Iterable[CodeType]) -> Rows:
        """Stacks of the worker's threads and of its loops' coroutines.

        ``runners`` have variables ``item`` and ``started``: what runs above them, since when.
        """
        loops = [each for each in (self._host.crew, self._host.loop) if isinstance(each, Loop)]
        coroutines = [task.get_coro() for loop in loops for task in list(loop.running.values()) if task is not None]
        return own_threads(dict.fromkeys(runners, self._run_by), coroutines)

    def _run_by(self, variables: dict[str, Any]) -> Run | None:
        item, started = variables.get("item"), variables.get("started")
        return None if item is None or started is None else (self._functions.name_of(item), item.row[0], clock() - started)

    # -- breakpoints --

    def at_breakpoint(self, *args: Any, **kwargs: Any) -> Any:
        """Wait for ``zfabric debug``, unless PYTHONBREAKPOINT says otherwise."""
        if os.environ.get("PYTHONBREAKPOINT"):
            return sys.__breakpointhook__(*args, **kwargs)
        from zfabric.runtime.debugger import wait_at_breakpoint  # ``pdb`` is only loaded when it is used.

        item = self._contexts.here

        def check() -> None:
            if item is not None and self._worker.interrupted(item):
                raise TaskInterrupt("the task is to be stopped")

        name, identifier = ("", "") if item is None else (self._functions.name_of(item), item.row[0].hex())
        wait_at_breakpoint(self._directory, sys._getframe(1), {"task": name, "task_id": identifier}, check)
        return None
