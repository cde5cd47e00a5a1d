"""Calls that wait in a process which actors share, in the order in which they came; those of an actor that is set aside have no turn.

Each actor has a queue of its own. So what is done to one costs the same however many calls of others wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from zfabric.machines.parts.mailbox import Invocation


class CallQueue(Protocol):
    """What a mailbox needs of a queue: a plain deque will do where one actor lives alone."""

    def append(self, item: Invocation, /) -> None:
        """One more call."""

    def popleft(self) -> Invocation:
        """The call whose turn it is next."""

    def remove(self, item: Invocation, /) -> None:
        """A call that does not wait any more."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Invocation]: ...


class ActorQueues:
    """A queue for each actor. It is true if a call may begin, and as long as all that wait."""

    def __init__(self) -> None:
        self._queues: dict[bytes, deque[tuple[int, Invocation]]] = {}
        self._heads: list[tuple[int, bytes]] = []
        """The first call of each actor that may begin, by the number under which it came, and some that are that no longer."""
        self._aside: set[bytes] = set()
        self._came = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Invocation]:
        return (item for queue in self._queues.values() for _, item in queue)

    def __bool__(self) -> bool:
        heads = self._heads
        while heads and not self._is_head(*heads[0]):
            heappop(heads)
        return bool(heads)

    def _is_head(self, number: int, actor_id: bytes) -> bool:
        queue = self._queues.get(actor_id)
        return queue is not None and queue[0][0] == number and actor_id not in self._aside

    def _changed(self, actor_id: bytes) -> None:
        """Another call is the first of an actor's, or may begin."""
        queue = self._queues.get(actor_id)
        if queue is not None and not queue:
            del self._queues[actor_id]
        elif queue is not None and actor_id not in self._aside:
            heappush(self._heads, (queue[0][0], actor_id))

    def append(self, item: Invocation) -> None:
        """One more call."""
        self._came += 1
        self._count += 1
        queue = self._queues.get(item.actor_id)
        if queue is not None:
            queue.append((self._came, item))
            return
        self._queues[item.actor_id] = deque([(self._came, item)])
        self._changed(item.actor_id)

    def put_first(self, item: Invocation) -> None:
        """A call that comes before all others; its actor has none."""
        self._count += 1
        self._queues[item.actor_id] = deque([(0, item)])
        self._changed(item.actor_id)

    def popleft(self) -> Invocation:
        """The call that came first of those that may begin. IndexError if there is none."""
        if not self:
            raise IndexError("no call may begin")
        _, actor_id = heappop(self._heads)
        _, item = self._queues[actor_id].popleft()
        self._count -= 1
        self._changed(actor_id)
        return item

    def remove(self, item: Invocation) -> None:
        """A call that does not wait any more."""
        queue = self._queues[item.actor_id]
        entry = next(each for each in queue if each[1] is item)
        first = queue[0] is entry
        queue.remove(entry)
        self._count -= 1
        if first:
            self._changed(item.actor_id)

    def set_aside(self, actor_id: bytes) -> None:
        """No call of an actor begins until it is brought back."""
        self._aside.add(actor_id)

    def bring_back(self, actor_id: bytes) -> None:
        """They may begin. They are still where they came."""
        if actor_id in self._aside:
            self._aside.discard(actor_id)
            self._changed(actor_id)

    def of(self, actor_id: bytes) -> list[Invocation]:
        """The calls of an actor."""
        return [item for _, item in self._queues.get(actor_id, ())]

    def has(self, actor_id: bytes) -> bool:
        """Whether calls of an actor wait."""
        return actor_id in self._queues

    def drop(self, actor_id: bytes) -> None:
        """The calls of an actor wait no longer."""
        self._count -= len(self._queues.pop(actor_id, ()))
