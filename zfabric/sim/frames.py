"""What a simulated process runs: bodies on its stack, and what each of them waits for."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from zfabric.machines.common.naming import Namer
from zfabric.machines.worker import Invocation, Item

Body = Generator[tuple[Any, ...], Any, Any]


class Wait:
    """What a body waits for. ``blocking`` waits are told to the scheduler by workers."""

    __slots__ = ("blocking", "deadline", "done", "finish", "token", "wanted")

    def __init__(self, done: Callable[[], bool], finish: Callable[[bool], Any], deadline: float | None, blocking: bool) -> None:
        self.token = 0
        self.wanted: tuple[bytes, ...] = ()
        """Objects of which it wants all."""
        self.done = done
        self.finish = finish
        self.deadline = deadline
        self.blocking = blocking


class Frame:
    """One body on the stack."""

    __slots__ = ("body", "busy_since", "busy_until", "deaf", "item", "namer", "started", "wait")

    def __init__(self, item: Item | Invocation | None, body: Body, namer: Namer, now: float) -> None:
        self.item = item
        self.body = body
        self.namer = namer
        self.started = now
        self.busy_since = now
        self.busy_until: float | None = None
        self.deaf = False
        """Whether nothing stops what it computes."""
        self.wait: Wait | None = None
