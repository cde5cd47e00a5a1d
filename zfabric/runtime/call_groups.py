"""Concurrency groups: queues with limits on calls running at once."""

from __future__ import annotations

import sys
from queue import SimpleQueue

from zfabric.machines.worker import CallQueue, Invocation, Item, Worker


class Group:
    """A queue of which ``size`` calls may run at once. Changed under the lock."""

    __slots__ = ("claimed", "name", "queue", "running", "size", "threads")

    def __init__(self, queue: CallQueue, size: int, name: str = "") -> None:
        self.queue = queue
        self.size = size
        self.name = name
        self.running = 0
        self.threads = 0
        self.claimed: SimpleQueue[Item | Invocation] = SimpleQueue()

    @property
    def wanted(self) -> bool:
        """Whether one more call may start."""
        return bool(self.queue) and self.running < self.size

    def claim(self, worker: Worker) -> Item | Invocation | None:
        """Claim the next queued call."""
        return worker.begin_beside(self.queue)


class SharedTurn(Group):
    """Runs a lightweight actor's call in another thread while the main thread's waits."""

    __slots__ = ("worker",)

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.mailbox.queue, sys.maxsize)
        self.worker = worker

    @property
    def wanted(self) -> bool:
        """Whether the baton is free and a call is queued."""
        return self.worker.baton_free

    def claim(self, worker: Worker) -> Item | Invocation | None:
        """Claim the next queued call."""
        return worker.stand_in()
