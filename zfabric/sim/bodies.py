"""The stack of a simulated process: the bodies that it runs, and what each of them waits for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from zfabric.machines.common.naming import Namer
from zfabric.machines.worker import Invocation, Item

Body = Generator[tuple[Any, ...], Any, Any]


class Wait:
    """A condition that a body waits for. Workers report ``blocking`` waits to the scheduler.

    ``finish`` receives whether the condition was met and returns what the body gets; ``token`` is that of a reservation, or 0.
    """

    __slots__ = ("blocking", "deadline", "done", "finish", "token", "wanted")

    def __init__(self, done: Callable[[], bool], finish: Callable[[bool], Any], deadline: float | None, blocking: bool) -> None:
        self.token = 0
        self.wanted: tuple[bytes, ...] = ()
        """The objects it waits for, if it needs all of them."""
        self.done = done
        self.finish = finish
        self.deadline = deadline
        self.blocking = blocking


class StackFrame:
    """One body on the stack: a task, a call, or the root of the driver's program (``item`` is None)."""

    __slots__ = ("body", "busy_since", "busy_until", "deaf", "item", "namer", "started", "wait")

    def __init__(self, item: Item | Invocation | None, body: Body, namer: Namer, now: float) -> None:
        self.item = item
        self.body = body
        self.namer = namer
        self.started = now
        self.busy_since = now
        self.busy_until: float | None = None
        self.deaf = False
        """Whether its computation ignores interrupts."""
        self.wait: Wait | None = None
