"""The actors of a worker process: instances, and what of them is called."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from zfabric.adapters.serialization import YIELDS, run_to_its_end
from zfabric.exceptions import FabricError
from zfabric.machines.client import Calls
from zfabric.machines.worker import FAREWELL, Invocation, Item, Mailbox
from zfabric.protocol.options import option
from zfabric.runtime import interface
from zfabric.runtime.crew import Crew


class ActorExit(BaseException):
    """Raised by ``exit_actor`` through the method that called it."""


def _terminate(instance: Any) -> None:
    raise ActorExit


BUILT_IN: dict[str, Callable[..., Any]] = {
    "__ray_ready__": lambda instance: True,
    "__ray_call__": lambda instance, function, *args, **kwargs: function(instance, *args, **kwargs),
    "__ray_terminate__": _terminate,
}
"""Methods that every actor has, by Ray's names: to wait until it is made, to have a function called with it, to end it for good."""


class Host:
    """The instances that live in this process, by actor."""

    def __init__(self, mailbox: Mailbox, calls: Calls, lock: threading.RLock) -> None:
        self.mailbox = mailbox
        self.calls = calls
        self._lock = lock
        self.instances: dict[bytes, Any] = {}
        self.crew: Crew | None = None
        """Who runs calls, if it is not the main thread."""
        self.leaving = False
        """Whether the actor has ended itself."""
        self.leaves_at = 0.0
        """When it does so at the latest, whatever still runs in other threads."""
        self.gone: list[bytes] = []
        """Actors that have ended, of those that share this process."""

    def begin(self, item: Item, instance: Any, crew: Crew | None) -> Any:
        """An actor was made: calls may come. An earlier life of it that is still here, for the caller to let go of without the lock."""
        self.crew = crew
        before = self.instances.get(item.row[0])
        if item.row[0] in self.gone:
            self.gone.remove(item.row[0])
        self.instances[item.row[0]] = instance
        self.mailbox.actors[item.row[0]] = (item.row, item.attempt)
        return before

    def method(self, item: Invocation) -> Callable[..., Any]:
        """What a call runs. AttributeError if there is no such method."""
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
        if item.options is None:
            return found
        if option(item.options, "dynamic"):
            return interface.collected(found)
        if option(item.options, "num_returns", 1) > 1 and getattr(getattr(found, "__code__", None), "co_flags", 0) & YIELDS:
            return run_to_its_end(found)
        return found

    def class_of(self, item: Invocation) -> str:
        """The name of the class of the actor that is called."""
        return type(self.instances.get(item.actor_id)).__qualname__

    @property
    def done(self) -> bool:
        """Whether this process has nothing more to do as an actor."""
        retired = self.mailbox.retiring and not self.mailbox.waiting and not self.calls.pending
        return (self.leaving or retired) and self.mailbox.settled

    def end(self) -> None:
        """A clean end."""
        while self.instances:
            _leave(self.instances.popitem()[1])

    def let_go(self) -> None:
        """Let go of actors that have ended, of those that share this process; ``__del__`` runs as the last reference goes."""
        while self.gone:
            with self._lock:
                instance = self.instances.pop(self.gone.pop(0), None) if self.gone else None
            del instance


def _of_class(instance: Any, name: str) -> Callable[..., Any]:
    """A method whose name the instance uses for something else: what callers know is the class's."""
    import inspect

    kind = type(instance)
    attribute: Any = inspect.getattr_static(kind, name)
    bind = getattr(type(attribute), "__get__", None)
    found: Callable[..., Any] = attribute if bind is None else bind(attribute, instance, kind)
    return found


AT_THE_END: dict[str, tuple[Any, ...]] = {"__ray_shutdown__": (), "__exit__": (None, None, None)}
"""Methods that are called at a clean end of an actor, if its class has them, with their arguments. The first is Ray's."""


def leaves(instance: Any) -> bool:
    """Whether an actor has something to do at a clean end."""
    return any(hasattr(type(instance), name) for name in AT_THE_END)


def _leave(instance: Any) -> None:
    for name, arguments in AT_THE_END.items():
        try:
            if hasattr(type(instance), name):
                getattr(type(instance), name)(instance, *arguments)
        except (Exception, SystemExit):  # its end is nobody's result, so this is where it is told of
            import traceback

            print(f"zfabric warning: {type(instance).__qualname__}.{name} raised:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
