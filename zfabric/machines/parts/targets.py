"""What a caller knows of one actor: where it lives, and the calls of it that have no outcome yet."""

from __future__ import annotations

from collections import deque

from zfabric.protocol.ids import FIRST_RETURN
from zfabric.protocol.messages import CREATING, Row


class Target:
    """One actor, as a caller sees it."""

    __slots__ = (
        "actor_id",
        "attempt",
        "failure",
        "incarnation",
        "keeps",
        "leaving",
        "mixed",
        "outbox",
        "queue",
        "retries",
        "sent",
        "state",
        "tried",
        "untaken",
    )

    def __init__(self, actor_id: bytes) -> None:
        self.actor_id = actor_id
        self.retries = 0
        """How often a call that may have run is made again by itself; -1 without end, ``LOGGED`` if the actor recognises it."""
        self.keeps = False
        """Whether the actor keeps outcomes until it is told that they are here, beyond its process: it is logged, or has checkpoints."""
        self.state = CREATING
        self.incarnation = b""
        self.attempt = 0
        """Which of its lives it is in."""
        self.failure = b""
        self.queue: deque[Row] = deque()
        """Calls that were not sent to the present incarnation, in order."""
        self.mixed = False
        """Whether some of them may be of different tasks, whose calls have no order among each other."""
        self.sent: dict[bytes, Row] = {}
        """Calls that were, and have no outcome yet, in order."""
        self.outbox: list[Row] = []
        """Those of them that leave with the next frame."""
        self.leaving = False
        """Whether the program has no handle any more: the last ref goes once the last call has an outcome."""
        self.tried: dict[bytes, int] = {}
        """Calls that were made again, and how often."""
        self.untaken: list[bytes] = []
        """Calls whose outcomes came since an actor that keeps them was told so."""

    @property
    def handle(self) -> bytes:
        """The object that stands for the actor."""
        return self.actor_id + FIRST_RETURN
