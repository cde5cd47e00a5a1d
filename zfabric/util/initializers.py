"""Initializers of pools, executors and joblib's calls, and their effects on a script's globals.

In one process, an initializer that says ``global model`` sets what the script's functions read. Here each call brings its own copy of
globals. So the names that an initializer sets or reads are put into a function's globals before it runs, and their new values retained for
the next one. Names of functions, classes and modules are carried over only if the initializer has rebound them.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

DEPTH_MAX = 8
"""Most levels of decorators, ``functools.partial`` and the like to search."""
_CODE = (types.FunctionType, type, types.ModuleType, types.BuiltinFunctionType)
_NOTHING = object()

Namespace = dict[str, Any]


class InitializerError(BrokenExecutor):
    """An initializer failed in a worker: the executor is unusable."""


class Initializer:
    """Runs an initializer once in each worker process, before the first call that needs it."""

    done: dict[Hashable, InitializerError | SharedNames] = {}
    """Results or errors of initializers in this process, by key."""

    def __init__(self, key: Hashable, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.parts = key, function, arguments

    def __call__(self) -> SharedNames:
        """Return the names that it shares with functions of this process."""
        key, function, arguments = self.parts
        if key not in self.done:
            self.done[key] = SharedNames()  # The initializer may wait for calls, which then run here.
            try:
                self.done[key] = run(function, arguments)
            except Exception as error:  # The user's own.
                self.done[key] = failed = InitializerError(f"the initializer raised {type(error).__name__}: {error}")
                failed.__cause__ = error
        found = self.done[key]
        if isinstance(found, InitializerError):
            raise found
        return found


def run(initializer: Callable[..., Any], arguments: Iterable[Any]) -> SharedNames:
    """Call an initializer; return the names that functions of its modules share with it."""
    spaces = namespaces(initializer)
    before = {module: dict(space) for module, space in spaces.items()}
    initializer(*arguments)
    shared = SharedNames()
    for module, space in spaces.items():
        for name, value in space.items():
            if not name.startswith("__") and (before[module].get(name, _NOTHING) is not value or not isinstance(value, _CODE)):
                shared.names.setdefault(module, {})[name] = value
    shared.origins = spaces
    return shared


class SharedNames:
    """Names that the functions of one process share, by module."""

    def __init__(self) -> None:
        self.names: dict[str, Namespace] = {}
        self.origins: dict[str, Namespace] = {}
        """The initializer's globals, by module: functions that it made have these."""

    @contextmanager
    def given_to(self, *functions: Any) -> Iterator[None]:
        """Set the names for ``functions`` while they run, and store what they rebind."""
        spaces = [
            (space, names, self.origins[module])
            for each in functions
            for module, space in namespaces(each).items()
            if (names := self.names.get(module))
        ]
        for space, names, _ in spaces:
            space.update(names)
        try:
            yield
        finally:
            for space, names, origin in spaces:
                names.update((name, space[name]) for name in list(names) if name in space)
                origin.update(names)


def namespaces(function: Any) -> dict[str, Namespace]:
    """Return the globals, by module, of the functions inside this one, but those of imported modules."""
    found: dict[str, Namespace] = {}
    level: list[Any] = [function]
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for each in level:
            if isinstance(each, types.FunctionType):
                space = each.__globals__
                module = str(space.get("__name__", ""))
                if getattr(sys.modules.get(module), "__dict__", None) is not space:
                    found.setdefault(module, space)
                below += (cell.cell_contents for cell in each.__closure__ or () if _has_function(cell))
            elif isinstance(each, types.MethodType):
                below.append(each.__func__)
            elif isinstance(each, partial):
                below += filter(callable, (each.func, *each.args, *each.keywords.values()))
            elif isinstance(each, type):
                below += (member for member in vars(each).values() if isinstance(member, types.FunctionType))
            elif hasattr(each, "__wrapped__"):
                below.append(each.__wrapped__)
            elif callable(each) and not isinstance(each, _CODE):
                below.append(type(each))
        level = below
    return found


def _has_function(cell: Any) -> bool:
    try:
        return callable(cell.cell_contents)
    except ValueError:  # A variable without a value yet.
        return False
