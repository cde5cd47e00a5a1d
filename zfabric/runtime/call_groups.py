"""Concurrency groups: queues of calls, and how many of each may run at the same time."""

from __future__ import annotations

import sys
from queue import SimpleQueue

from zfabric.machines.worker import CallQueue, Invocation, Item, Worker


class Group:
    """A queue of calls of which ``size`` may run at the same time. Changed under the lock."""

    __slots__ = ("claimed", "name", "queue", "running", "size", "threads")

    def __init__(self, queue: CallQueue, size: int, name: str = "") -> None:
        self.queue = queue
        self.size = size
        self.name = name
        self.running = 0
        self.threads = 0
        """Threads started for it, where its calls run in threads."""
        self.claimed: SimpleQueue[Item | Invocation] = SimpleQueue()
        """Calls that have begun, for those threads."""

    @property
    def wanted(self) -> bool:
        """Whether one more call is to start."""
        return bool(self.queue) and self.running < self.size

    def claim(self, worker: Worker) -> Item | Invocation | None:
        """Claim and start the next queued call."""
        return worker.begin_beside(self.queue)


class SharedTurn(Group):
    """What runs next in a process that actors share, while what the main thread runs waits, and only then."""

    __slots__ = ("worker",)

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.mailbox.queue, sys.maxsize)
        self.worker = worker

    @property
    def wanted(self) -> bool:
        """Whether the turn is free, and something is queued."""
        return self.worker.turn_free

    def claim(self, worker: Worker) -> Item | Invocation | None:
        """Claim and start what has its turn next."""
        return worker.stand_in()
