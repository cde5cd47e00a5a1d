"""The stack of a simulated process: the bodies that it runs, and what each of them waits for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from zfabric.machines.worker import Invocation, Item
from zfabric.protocol.ids import Namer

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
    """A body on the stack: a task, a call, or the root of the driver's program (``item`` is None)."""

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


class Ancestry:
    """Which attempt or call submitted each task and call, and which attempts broke off with their node, without an outcome."""

    def __init__(self) -> None:
        self._parents: dict[bytes, tuple[bytes, int]] = {}
        self._broken: set[tuple[bytes, int]] = set()

    def made(self, child: bytes, parent: Item | Invocation | None) -> None:
        """Record who submits a task or a call; ``parent`` is None for the root of the program."""
        if parent is not None:
            self._parents[child] = parent.row[0], parent.attempt

    def broke_off(self, stack: list[StackFrame]) -> None:
        """Record that a process with these bodies died with its node."""
        self._broken.update((frame.item.row[0], frame.item.attempt) for frame in stack if type(frame.item) is Item)

    def is_void(self, identifier: bytes) -> bool:
        """Whether an ancestor of a task or call broke off: its next attempt submits all of it anew."""
        parent = self._parents.get(identifier)
        while parent is not None:
            if parent in self._broken:
                return True
            parent = self._parents.get(parent[0])
        return False
