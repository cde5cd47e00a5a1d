"""What a worker runs: attempts of tasks, and calls of the actors in its process."""

from __future__ import annotations

from typing import Any, NamedTuple

from zfabric.protocol.messages import Row


class Item:
    """One attempt of a task: row, number, values of its dependencies, ids of its GPUs, and the driver if that submitted it directly."""

    __slots__ = ("attempt", "driver", "gpus", "row", "values")

    def __init__(self, row: Row, attempt: int, values: tuple[Any, ...] = (), gpus: tuple[int, ...] = (), driver: bytes = b"") -> None:
        self.row = row
        self.attempt = attempt
        self.values = values
        self.gpus = gpus
        self.driver = driver


class Invocation(NamedTuple):
    """One call of an actor. ``row`` begins like a task's: the id first, the dependencies in the fourth place.

    ``values`` are as in ``Call``: a place among them, unlike one that comes with a task, has no pin.
    ``attempt`` is the actor's: when a later life runs the call again, tasks that the call submits get new ids. ``options`` is None only for
    calls of processes of this node without any, which have short ways to their callers.
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
    """Id of the actor that this item calls or makes."""
    return item.actor_id if type(item) is Invocation else item.row[0]
