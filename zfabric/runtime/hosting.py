"""The actors of a worker process: instances, and what of them is called."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from zfabric.exceptions import FabricError
from zfabric.machines.parts.calls import Calls
from zfabric.machines.parts.mailbox import Invocation, Mailbox
from zfabric.machines.worker import Item
from zfabric.protocol.options import option
from zfabric.runtime import interface
from zfabric.runtime.crew import Crew


class ActorExit(BaseException):
    """Raised by ``exit_actor`` through the method that called it."""


def _leave(instance: Any) -> None:
    raise ActorExit


BUILT_IN: dict[str, Callable[..., Any]] = {
    "__ray_ready__": lambda instance: True,
    "__ray_call__": lambda instance, function, *args, **kwargs: function(instance, *args, **kwargs),
    "__ray_terminate__": _leave,
}
"""Methods that every actor has, by Ray's names: to wait until it is made, to have a function called with it, to end it for good."""


class Host:
    """The instances that live in this process, by actor."""

    def __init__(self, mailbox: Mailbox, calls: Calls) -> None:
        self.mailbox = mailbox
        self.calls = calls
        self.instances: dict[bytes, Any] = {}
        self.crew: Crew | None = None
        """Who runs calls, if it is not the main thread."""
        self.leaving = False
        """Whether the actor has ended itself."""
        self.gone: list[tuple[bytes, bool]] = []
        """Actors that have ended, of those that share this process, and whether cleanly."""

    def begin(self, item: Item, instance: Any, crew: Crew | None) -> None:
        """An actor was made: calls may come."""
        self.crew = crew
        self.let_go()  # An earlier life of the same actor may not have been taken down yet.
        self.instances[item.row[0]] = instance
        self.mailbox.actors[item.row[0]] = (item.row, item.attempt)

    def method(self, item: Invocation) -> Callable[..., Any]:
        """What a call runs. AttributeError if there is no such method."""
        instance = self.instances.get(item.actor_id)
        if instance is None:
            raise FabricError("the actor has ended")
        built_in = BUILT_IN.get(item.method) if item.method[:2] == "__" else None
        found: Callable[..., Any] = getattr(instance, item.method) if built_in is None else partial(built_in, instance)
        return found if item.options is None or not option(item.options, "dynamic") else interface.collected(found)

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
            self._end_one(next(iter(self.instances)), True)

    def let_go(self) -> None:
        """Let go of actors that have ended, of those that share this process."""
        while self.gone:
            self._end_one(*self.gone.pop(0))

    def _end_one(self, actor_id: bytes, clean: bool) -> None:
        """``__exit__``, if there is one and the end is clean; ``__del__`` runs as the last reference goes."""
        instance = self.instances.pop(actor_id, None)
        leave = getattr(type(instance), "__exit__", None)
        if clean and leave is not None:
            with contextlib.suppress(Exception):  # its end is nobody's result
                leave(instance, None, None, None)
