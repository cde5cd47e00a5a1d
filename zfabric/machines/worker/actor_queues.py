"""Queued calls of actors that share a process: in order of arrival, but earlier if another call here waits for them (decision 0011).

Each actor has a queue, so its operations do not depend on others' calls. Queues with an awaited call alternate with the queue whose first
call came first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator
from heapq import heappop, heappush
from typing import Protocol

from zfabric.machines.worker.queue import Invocation

Heads = list[tuple[int, bytes]]
"""A heap of (arrival number, actor id) of first calls, some out of date."""


class CallQueue(Protocol):
    """What a mailbox needs of a queue; a deque if one actor lives alone."""

    def append(self, item: Invocation, /) -> None:
        """Add a call."""

    def popleft(self) -> Invocation:
        """Remove and return the next call."""

    def remove(self, item: Invocation, /) -> None:
        """Remove a call, which does not run."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Invocation]: ...


class ActorQueues:
    """One queue per actor. True if a call may begin; the length counts all."""

    def __init__(self) -> None:
        self._queues: dict[bytes, deque[tuple[int, Invocation]]] = {}
        self._homes: dict[bytes, bytes] = {}
        """Call id -> actor id."""
        self._heads: Heads = []
        self._aside: set[bytes] = set()
        self._wanted: dict[bytes, int] = {}
        """Awaited calls -> how many calls wait."""
        self._urgent: dict[bytes, int] = {}
        """Awaited calls per queue."""
        self._urgent_heads: Heads = []
        self._urgent_next = True
        self._came = 0

    def __len__(self) -> int:
        return len(self._homes)

    def __iter__(self) -> Iterator[Invocation]:
        return (item for queue in self._queues.values() for _, item in queue)

    def __bool__(self) -> bool:
        return self._first(self._heads, self._queues) is not None

    def _first(self, heads: Heads, among: Container[bytes]) -> bytes | None:
        """The first current entry's actor, in ``among`` and not set aside."""
        while heads:
            number, actor_id = heads[0]
            queue = self._queues.get(actor_id)
            if queue is not None and queue[0][0] == number and actor_id not in self._aside and actor_id in among:
                return actor_id
            heappop(heads)
        return None

    def _changed(self, actor_id: bytes) -> None:
        """Handle that an actor's first call has changed, may begin, or is urgent."""
        queue = self._queues.get(actor_id)
        if queue is not None and not queue:
            del self._queues[actor_id]
        elif queue is not None and actor_id not in self._aside:
            heappush(self._heads, (queue[0][0], actor_id))
            if actor_id in self._urgent:
                heappush(self._urgent_heads, (queue[0][0], actor_id))

    # -- add and remove --

    def append(self, item: Invocation) -> None:
        """Add a call."""
        self._came += 1
        self._put(item, self._came)

    def put_first(self, item: Invocation) -> None:
        """Put a call first, for an actor without queued calls."""
        self._put(item, 0)

    def _put(self, item: Invocation, number: int) -> None:
        call_id, actor_id = item.row[0], item.actor_id
        self._homes[call_id] = actor_id
        queue = self._queues.get(actor_id)
        if queue is not None:
            queue.append((number, item))
        else:
            self._queues[actor_id] = deque([(number, item)])
            self._changed(actor_id)
        if self._wanted and call_id in self._wanted:
            self._hurry(actor_id)

    def popleft(self) -> Invocation:
        """Remove and return the next call. Raises IndexError."""
        urgent = self._first(self._urgent_heads, self._urgent) if self._urgent and self._urgent_next else None
        self._urgent_next = urgent is None
        actor_id = self._first(self._heads, self._queues) if urgent is None else urgent
        if actor_id is None:
            raise IndexError("no call may begin")
        _, item = self._queues[actor_id].popleft()
        self._gone(item)
        self._changed(actor_id)
        return item

    def remove(self, item: Invocation) -> None:
        """Remove a call, which does not run."""
        queue = self._queues[item.actor_id]
        entry = next(each for each in queue if each[1] is item)
        first = queue[0] is entry
        queue.remove(entry)
        self._gone(item)
        if first:
            self._changed(item.actor_id)

    def _gone(self, item: Invocation) -> None:
        call_id = item.row[0]
        self._homes.pop(call_id, None)
        if self._wanted and call_id in self._wanted:
            self._calm(item.actor_id)

    # -- calls that others wait for --

    def want(self, call_ids: Iterable[bytes]) -> None:
        """Have a running call wait for these."""
        for call_id in call_ids:
            self._wanted[call_id] = self._wanted.get(call_id, 0) + 1
            if self._wanted[call_id] == 1 and call_id in self._homes:
                self._hurry(self._homes[call_id])

    def want_no_more(self, call_ids: Iterable[bytes]) -> None:
        """Undo ``want``."""
        for call_id in call_ids:
            self._wanted[call_id] -= 1
            if not self._wanted[call_id]:
                del self._wanted[call_id]
                if call_id in self._homes:
                    self._calm(self._homes[call_id])

    def _hurry(self, actor_id: bytes) -> None:
        self._urgent[actor_id] = self._urgent.get(actor_id, 0) + 1
        if self._urgent[actor_id] == 1 and actor_id not in self._aside:
            heappush(self._urgent_heads, (self._queues[actor_id][0][0], actor_id))

    def _calm(self, actor_id: bytes) -> None:
        self._urgent[actor_id] -= 1
        if not self._urgent[actor_id]:
            del self._urgent[actor_id]

    # -- actors --

    def set_aside(self, actor_id: bytes) -> None:
        """Hold an actor's calls until ``bring_back``."""
        self._aside.add(actor_id)

    def bring_back(self, actor_id: bytes) -> None:
        """Let an actor's calls begin again, in order."""
        if actor_id in self._aside:
            self._aside.discard(actor_id)
            self._changed(actor_id)

    def of(self, actor_id: bytes) -> list[Invocation]:
        """Return an actor's queued calls."""
        return [item for _, item in self._queues.get(actor_id, ())]

    def has(self, actor_id: bytes) -> bool:
        """Whether an actor has queued calls."""
        return actor_id in self._queues

    def drop(self, actor_id: bytes) -> None:
        """Remove an actor's queued calls."""
        for _, item in self._queues.pop(actor_id, ()):
            self._gone(item)
