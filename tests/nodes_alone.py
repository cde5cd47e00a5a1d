"""A local scheduler between two other nodes, which a test plays, message by message."""

from __future__ import annotations

from typing import Any

from ledger_updates import holding
from scheduler_alone import ACTOR_CLASS, DRIVER, FUNCTION, JOB, OWN, Node, row, task_id

from zfabric.machines.local_scheduler.nodes.receipts import ACKNOWLEDGE_AFTER
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, FIRST_RETURN, LOCAL_SCHEDULER, MEMBER, WORKER, first_attempt, remote_caller
from zfabric.protocol.options import RESOURCE_UNIT

HOME_A, HOME_C = b"\x02node A.", b"\x02node C."
SELF = b"thisnode"
OTHER, INNER = JOB + b"parent C" + bytes(8), JOB + b"parent D" + bytes(8)
"""Objects of other nodes."""
PUT = JOB + b"parent P" + bytes(4) + b"\x80" + bytes(3)
"""A value that a worker of this node puts."""
EXPORTED = ((FUNCTION, "f", b"payload", ()),)
ABOUT = (JOB, "", HOME_A)


def members(node: Node, version: int, *others: bytes) -> None:
    """The cluster has these nodes and this one."""
    rows = [
        (each, number, "n", "", "", b"", (), (), 0) for number, each in ((1, HOME_A), (2, SELF), (3, HOME_C)) if each in (*others, SELF)
    ]
    node.send(MEMBER + OWN, m.NodeTable(version, tuple(rows)))


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

    def told_at_last(self, node: bytes) -> list[Any]:
        """The same, after the time after which ends are acknowledged."""
        self.now += ACKNOWLEDGE_AFTER
        self.turn()
        return self.told(node)

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


ACTOR_ID = task_id(1)
HANDLE = ACTOR_ID + FIRST_RETURN
CALLER = b"\x05caller."
CALL = JOB + b"parent X" + bytes(4)


def call(number: int = 0, **options: Any) -> tuple[Any, ...]:
    """A call, with options if there are any."""
    plain = (CALL[:-1] + bytes([number]), "add", b"arguments")
    return (*plain, (), (), tuple(options.items())) if options else plain


class Nodes(Executor):
    """A node between two others, with a job of its own."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.driver()
        self.sent.clear()

    head = b""

    def table(self, version: int, *nodes: bytes) -> None:
        """Receive which nodes there are."""
        number = dict(zip(self.nodes(), (1, 2, 3), strict=True))
        rows = [(each, number[each], "n", "", "", b"", (("CPU", RESOURCE_UNIT),), (), 0) for each in nodes]
        self.send(MEMBER + OWN, m.NodeTable(version, tuple(rows), self.head))

    def actor(self) -> bytes:
        """Make an actor of this node, to which node A has a handle. Return its worker."""
        self.send(CLIENT + DRIVER, m.Export(((ACTOR_CLASS, "A", b"payload", (("actor", b"blueprint"), ("max_restarts", 1))),)))
        self.submit((ACTOR_ID, ACTOR_CLASS, b"", ()))
        self.workers()
        ((worker, _, _),) = self.dispatched()
        self.complete(worker, 1, first_attempt(0, 2), m.OK, b"")
        self.hear(HOME_A, holding(1, (HANDLE,)), m.FindActors((ACTOR_ID,)))
        self.sent.clear()
        return worker

    def sent_to(self, address: bytes, *without: type[Any]) -> list[Any]:
        """What this address was sent since the last look, but for these kinds."""
        found = [message for to, message in self.sent if to == address and type(message) not in without]
        self.sent = [(to, message) for to, message in self.sent if to != address]
        return found

    def report(self, worker: bytes, *rows: tuple[Any, ...]) -> None:
        """The actor ends calls of node A's caller."""
        self.send(WORKER + worker, m.CallOutcomes(tuple((row[0], remote_caller(CALLER, HOME_A), *row[1:]) for row in rows)))
