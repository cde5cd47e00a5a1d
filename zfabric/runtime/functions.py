"""A worker's functions, loaded from exported bytes."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from zfabric.adapters import namespaces, numeric_threads, own_modules, serialization
from zfabric.adapters.generated_values import returning_all
from zfabric.machines.worker import Invocation, Item, Worker
from zfabric.protocol.messages import Row
from zfabric.protocol.options import NO_ENVIRONMENT, ONE_CPU, RESOURCE_UNIT, Demand, Strategy, group_of, option
from zfabric.runtime import interface, worker_process
from zfabric.runtime.client import FabricClient
from zfabric.runtime.hosting import Host
from zfabric.runtime.installed_packages import is_site
from zfabric.runtime.sent_packages import SentPackages

Loaded = tuple[Callable[..., Any], Callable[[BaseException], bool]]
"""(function, whether to retry an error)."""


class LoadedFunctions:
    """Loads functions once; looks up names and options of tasks."""

    def __init__(self, client: FabricClient, worker: Worker, host: Host, packages: SentPackages) -> None:
        self.plain: dict[bytes, Loaded] = {}
        """The fast path's functions: one value, at most one CPU, no stream, no actor."""
        self.streams: dict[bytes, int] = {}
        """Values that a function's streams may be ahead (0: as configured)."""
        self.classes: set[bytes] = set()
        """Functions that create actors."""
        self.usual_terms: dict[bytes, tuple[str, int]] = {}
        """(name, default number of values)."""
        self.on_capturing: Callable[[], None] = _nothing
        """Called when a task's children are to run in its placement group."""
        self.thread_limit = 1
        self._modules = ""
        """The state of the program's modules at the last load."""
        self._client = client
        self._worker = worker
        self._host = host
        self._packages = packages
        self._loaded: dict[bytes, Loaded] = {}
        self._used: dict[bytes, set[str]] = {}
        """The program's names that functions use."""
        self._cpus: dict[bytes, int] = {}
        """Threads of numeric libraries."""

    def load(self, task: Row) -> Loaded:
        """A task's function. Raises what its modules raise."""
        function_id = task[1]
        found = self._loaded.get(function_id)
        if found is None:
            row = self._worker.functions[function_id]
            self._look_in(option(row[3], "paths", ()))
            self._go_to(option(row[3], "directory", ""), task)
            self._packages.enter()
            if prelude := option(row[3], "prelude", ""):
                interface.prelude = prelude  # For what this worker exports, too.
                importlib.import_module(prelude)
            self._renew_modules(option(row[3], "modules", ""))
            self._look_for_captures(option(row[3], "strategy", ()))
            ahead = option(row[3], "stream")
            self.usual_terms[function_id] = (row[1], option(row[3], "num_returns", 1))
            with namespaces.loading_function() as names:
                function, retry = serialization.load_function(row[2], function_id, option(row[3], "contains", ()))
            if names:
                self._used[function_id] = names
            found = self._loaded[function_id] = (returning_all(function) if ahead is None else function, retry)
            if ahead is not None:
                self.streams[function_id] = ahead
            if option(row[3], "actor") is not None:
                self.classes.add(function_id)
            elif ahead is None and option(row[3], "num_returns", 1) == 1 and self._cpus_of(function_id) == 1:
                self.plain[function_id] = found
        return found

    def load_again(self, names: frozenset[str]) -> None:
        """Forget functions that use these changed names, so that they load again."""
        for function_id in [each for each, used in self._used.items() if not names.isdisjoint(used)]:
            self._forget(function_id)

    def _forget(self, function_id: bytes) -> None:
        self._loaded.pop(function_id, None)
        self.plain.pop(function_id, None)
        self._used.pop(function_id, None)

    def _renew_modules(self, state: str) -> None:
        """Import the program's changed modules anew. Actors, and what runs here, keep theirs."""
        if state and state != self._modules and not self._host.instances and namespaces.may_renew():
            self._modules = state
            namespaces.forget(own_modules.drop())
            for function_id in list(self._loaded):
                self._forget(function_id)

    def strategy_of(self, task: Row) -> Strategy:
        """Where a task is to run, by itself, its function or its parent."""
        own = option(task[4], "strategy") if len(task) > 4 else None
        if own is None:
            own = option(self._worker.functions[task[1]][3], "strategy")
        if own is None:
            own = option(task[4], "captured") if len(task) > 4 else None
        return own or ()

    def _look_for_captures(self, strategy: Strategy) -> None:
        term = group_of(strategy)
        if term is not None and term.captures:
            self.on_capturing()

    def _look_in(self, paths: tuple[str, ...]) -> None:
        """Import from the program's paths, also for functions exported here."""
        if paths != self._client.paths:
            self._client.paths = paths
            first = len(self._packages.paths)  # The task's own environment comes first.
            added = [path for path in paths if path not in sys.path]
            if worker_process.site:
                behind = sys.path.index(worker_process.site) + 1
                sys.path[behind:behind] = [path for path in added if is_site(path)]
                added = [path for path in added if not is_site(path)]
            sys.path[first:first] = added

    def _go_to(self, directory: str, task: Row) -> None:
        """Change to the program's directory, unless the task's environment names another."""
        if directory != self._client.directory:
            self._client.directory = directory
            if not self.option_of(task, "env", NO_ENVIRONMENT)[1]:
                with contextlib.suppress(OSError):
                    os.chdir(directory)

    def limit_threads(self, task: Row) -> None:
        """Allow one numeric thread per whole CPU of a task, before it imports any library."""
        count = self._cpus_of(task[1])
        if len(task) > 4:
            if demand := option(task[4], "demand"):
                count = _whole_cpus(demand)
            self._look_for_captures(self.strategy_of(task))
        if count != self.thread_limit:
            self.thread_limit = count
            numeric_threads.limit(count)

    def _cpus_of(self, function_id: bytes) -> int:
        count = self._cpus.get(function_id)
        if count is None:
            count = self._cpus[function_id] = _whole_cpus(option(self._worker.functions[function_id][3], "demand", ONE_CPU))
        return count

    def terms(self, item: Item | Invocation) -> tuple[str, int]:
        """The readable name of a task or call, and its number of values."""
        if type(item) is Invocation:
            return f"{self._host.class_of(item)}.{item.method}", option(item.options, "num_returns", 1)
        name, count = self.usual_terms.get(item.row[1], ("?", 1))
        return name, option(item.row[4], "num_returns", count) if len(item.row) > 4 else count

    def name_of(self, item: Item | Invocation) -> str:
        """The readable name of a task or call."""
        return self.terms(item)[0]

    def option_of(self, task: Row, name: str, default: Any) -> Any:
        """A task's option, by default its function's."""
        usual = option(self._worker.functions[task[1]][3], name, default)
        return option(task[4], name, usual) if len(task) > 4 else usual

    def makes_actor(self, item: Item | Invocation) -> bool:
        """Whether this task creates an actor."""
        return item.row[1] in self.classes


def _nothing() -> None:
    """This process submits no tasks."""


def _whole_cpus(demand: Demand) -> int:
    return max(1, dict(demand).get("CPU", 0) // RESOURCE_UNIT)
