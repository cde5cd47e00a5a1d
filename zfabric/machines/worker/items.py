"""What a worker runs: attempts of tasks, and calls of its actors."""

from __future__ import annotations

from typing import Any, NamedTuple

from zfabric.protocol.messages import Row


class Item:
    """An attempt. ``values`` are of dependencies; ``driver`` is set by direct submission."""

    __slots__ = ("attempt", "driver", "gpus", "row", "values")

    def __init__(self, row: Row, attempt: int, values: tuple[Any, ...] = (), gpus: tuple[int, ...] = (), driver: bytes = b"") -> None:
        self.row = row
        self.attempt = attempt
        self.values = values
        self.gpus = gpus
        self.driver = driver


class Invocation(NamedTuple):
    """A call of an actor. ``row`` begins like a task's: the id first, dependencies fourth.

    ``values`` are as in ``Call``: places without pins. ``attempt`` is the actor's: a later life gives new ids to what a call submits.
    ``options`` is None only for calls from this node without any, whose outcomes have short ways.
    """

    row: Row
    attempt: int
    values: tuple[Any, ...]
    gpus: tuple[int, ...]
    actor_id: bytes
    method: str
    caller: bytes
    options: tuple[Row, ...] | None


def actor_of(item: Item | Invocation) -> bytes:
    """The actor that is called or made."""
    return item.actor_id if type(item) is Invocation else item.row[0]
