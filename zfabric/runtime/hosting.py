"""The actors of a worker: instances, and the methods that calls run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from zfabric.adapters.generated_values import YIELDS, run_to_its_end
from zfabric.exceptions import FabricError
from zfabric.machines.client import Calls
from zfabric.machines.worker import FAREWELL, Invocation, Item, Worker
from zfabric.protocol.options import option
from zfabric.runtime import interface
from zfabric.runtime.connection import clock


class ActorExit(BaseException):
    """Raised by ``exit_actor`` through the method that called it."""


def _terminate(instance: Any) -> None:
    raise ActorExit


BUILT_IN: dict[str, Callable[..., Any]] = {
    "__ray_ready__": lambda instance: True,
    "__ray_call__": lambda instance, function, *args, **kwargs: function(instance, *args, **kwargs),
    "__ray_terminate__": _terminate,
}
"""Every actor's methods under Ray's names: await the creation, call a function with the actor, end it for good."""


class Crew(Protocol):
    """Runs calls outside the main thread."""

    def hand_out(self) -> None:
        """Start as many queued calls as may run, from the main thread."""

    def wanted(self) -> bool:
        """Whether a call may start. The caller holds the lock."""

    def alone(self, action: Callable[[], None]) -> None:
        """Run ``action`` in a thread that runs calls, while none runs."""

    def interrupt(self, item: Item | Invocation) -> bool:
        """Interrupt a call; False if that is impossible now. The caller holds the lock."""

    def runs_here(self, item: Item | Invocation) -> bool:
        """Whether this very thread or asyncio task runs the call."""


class Host:
    """The actors' instances, and the crews that run their calls."""

    def __init__(self, worker: Worker, calls: Calls, lock: threading.RLock) -> None:
        self._worker = worker
        self._mailbox = worker.mailbox
        self._calls = calls
        self._lock = lock
        self.instances: dict[bytes, Any] = {}
        self.crew: Crew | None = None
        """None if the main thread runs calls."""
        self.loop: Crew | None = None
        """The crew of async tasks."""
        self.leaving = False
        """The actor has ended itself."""
        self.leaves_at = 0.0
        """When the process then exits regardless of threads."""
        self.exit_code: int | None = None
        """Set by a thread that is ending the process."""
        self.received: Callable[[], bool] = lambda: True
        """Whether others have received all that this process sent."""
        self.gone: list[bytes] = []
        """Ended lightweight actors with instances."""

    def begin(self, item: Item, instance: Any, crew: Crew | None) -> Any:
        """Add a new actor's instance, ready for calls. The caller holds the lock.

        Return an earlier life's instance, to be released without the lock.
        """
        self.crew = crew
        before = self.instances.get(item.row[0])
        if item.row[0] in self.gone:
            self.gone.remove(item.row[0])
        self.instances[item.row[0]] = instance
        self._mailbox.actors[item.row[0]] = (item.row, item.attempt)
        return before

    def begin_shared(self, item: Item, instance: Any) -> None:
        """Add a lightweight actor's instance."""
        assert self._worker.baton is not None
        with self._lock:
            before = self.begin(item, instance, self.crew)
            if leaves(instance):
                self._worker.baton.with_farewell.add(item.row[0])
        del before

    def method(self, item: Invocation) -> Callable[..., Any]:
        """The method of a call. Raises AttributeError."""
        instance = self.instances.get(item.actor_id)
        if instance is None:
            raise FabricError("the actor has ended")
        if item.method == FAREWELL:
            return partial(_leave, instance)
        built_in = BUILT_IN.get(item.method) if item.method[:2] == "__" else None
        if built_in is not None:
            found: Callable[..., Any] = partial(built_in, instance)
        elif item.method in getattr(instance, "__dict__", ()):
            found = _of_class(instance, item.method)
        else:
            found = getattr(instance, item.method)
        if not item.options:
            return found
        if option(item.options, "dynamic"):
            return interface.collected(found)
        if option(item.options, "num_returns", 1) > 1 and getattr(getattr(found, "__code__", None), "co_flags", 0) & YIELDS:
            return run_to_its_end(found)
        return found

    def class_of(self, item: Invocation) -> str:
        """The called actor's class name."""
        return type(self.instances.get(item.actor_id)).__qualname__

    @property
    def done(self) -> bool:
        """Whether nothing is left to do here."""
        mailbox = self._mailbox
        retired = mailbox.retiring and not mailbox.waiting and not self._calls.pending
        return ((self.leaving or retired) and mailbox.settled) or self.relocates

    @property
    def relocates(self) -> bool:
        """Whether the actor leaves to be made again elsewhere."""
        worker = self._worker
        return worker.relocation is not None and worker.may_relocate(target.actor_id for target in self._calls.pending.values())

    def may_retire(self) -> bool:
        """Whether the process may exit. Threads and promises delay that until ``leaves_at``."""
        if not self.done:
            return False
        relocates = not self.leaving and self.relocates
        stays = self._worker.running_calls or ((self.leaving or relocates) and self._calls.results.awaited)
        if relocates and not self.received():
            return False
        return not stays or (self.leaving and clock() >= self.leaves_at)

    def end(self) -> None:
        """Run each actor's clean end; release the instances."""
        while self.instances:
            _leave(self.instances.popitem()[1])

    def release_gone(self) -> bool:
        """Release ended lightweight actors; ``__del__`` runs with the last reference.

        Return whether to notify the daemon.
        """
        while self.gone:
            with self._lock:
                instance = self.instances.pop(self.gone.pop(0), None) if self.gone else None
            del instance
        return self._worker.baton is not None and bool(self._worker.baton.has_reports)


def _of_class(instance: Any, name: str) -> Callable[..., Any]:
    """The class's method, where the instance has an attribute of that name."""
    import inspect  # Workers start sooner without it.

    kind = type(instance)
    attribute: Any = inspect.getattr_static(kind, name)
    bind = getattr(type(attribute), "__get__", None)
    found: Callable[..., Any] = attribute if bind is None else bind(attribute, instance, kind)
    return found


AT_THE_END: dict[str, tuple[Any, ...]] = {"__ray_shutdown__": (), "__exit__": (None, None, None)}
"""Arguments by the name of each method that is called at an actor's clean end, if its class has the method. The first is Ray's."""


def leaves(instance: Any) -> bool:
    """Whether an actor has a clean end."""
    return any(hasattr(type(instance), name) for name in AT_THE_END)


def _leave(instance: Any) -> None:
    for name, arguments in AT_THE_END.items():
        try:
            if hasattr(type(instance), name):
                getattr(type(instance), name)(instance, *arguments)
        except (Exception, SystemExit):  # No caller gets this error.
            import traceback

            print(f"zfabric warning: {type(instance).__qualname__}.{name} raised:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
