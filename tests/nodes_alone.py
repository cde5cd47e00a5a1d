"""A local scheduler between two other nodes, which a test plays, message by message."""

from __future__ import annotations

from typing import Any

from scheduler_alone import FUNCTION, JOB, OWN, Node, row

from zfabric.protocol import messages as m
from zfabric.protocol.ids import LOCAL_SCHEDULER, MEMBER, first_attempt
from zfabric.protocol.options import RESOURCE_UNIT

HOME_A, HOME_C = b"\x02node A.", b"\x02node C."
SELF = b"thisnode"
OTHER, INNER = JOB + b"parent C" + bytes(8), JOB + b"parent D" + bytes(8)
"""Objects of other nodes."""
PUT = JOB + b"parent P" + bytes(4) + b"\x80" + bytes(3)
"""A value that a worker of this node puts."""
EXPORTED = ((FUNCTION, "f", b"payload", ()),)
ABOUT = (JOB, "", HOME_A)


class Executor(Node):
    """A node between two others: A delegates tasks to it, and C is the home of what they name."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        rows = [(each, number, f"n{number}", "", "", b"", (("CPU", RESOURCE_UNIT),), (), 0) for number, each in enumerate(self.nodes(), 1)]
        self.send(MEMBER + OWN, m.NodeTable(1, tuple(rows)))
        for node in (HOME_A, HOME_C):
            self.hear(node, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon.."), m.Ready())
        self.sent.clear()

    def nodes(self) -> tuple[bytes, ...]:
        """All nodes, oldest first."""
        return HOME_A, SELF, HOME_C

    def hear(self, node: bytes, *messages: Any) -> None:
        """Receive messages of another node."""
        for message in messages:
            self.send(LOCAL_SCHEDULER + node, message)

    def told(self, node: bytes) -> list[Any]:
        """What another node was sent since the last look, without heartbeats."""
        found = [message for to, message in self.sent if to[1:] == node and not isinstance(message, m.Heartbeat)]
        self.sent = [(to, message) for to, message in self.sent if to[1:] != node]
        return found

    def delegated(self, number: int, *contains: bytes, homes: tuple[Any, ...] = ()) -> bytes:
        """A task of node A arrives and is dispatched. Return its worker."""
        attempt = first_attempt(0, 1)
        options = {"contains": contains} if contains else {}
        self.hear(HOME_A, m.Delegate(ABOUT, EXPORTED, (row(number, **options),), (), (), homes, attempt))
        self.workers()
        (dispatched,) = self.dispatched()
        assert dispatched[1:] == (number, attempt)
        return dispatched[0]

    def end(self, worker: bytes, number: int, contained: tuple[bytes, ...] = ()) -> None:
        """The worker ends the task, with a value that has these refs inside."""
        self.complete(worker, number, first_attempt(0, 1), m.OK, b"value", extras=((0, (contained,), ()),) if contained else ())
