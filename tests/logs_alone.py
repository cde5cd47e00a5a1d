"""The two sides of a logged actor without processes: its own, and that of its scheduler and control store."""

from __future__ import annotations

from typing import Any

from scheduler_alone import CLIENT, FUNCTION, OWN, Node, task_id

from zfabric.config import Config
from zfabric.machines.common.tables import CHECKPOINT, LOG, TABLES
from zfabric.machines.worker.call_log import CallLog
from zfabric.machines.worker.machine import Worker
from zfabric.protocol import messages as m
from zfabric.protocol.ids import WORKER
from zfabric.protocol.messages import FAILED, OK

HOME, DAEMON = b"\x01actor00", b"\x02daemon0"
ANN, BOB = b"\x01client0", b"\x01client1"
ACTOR = task_id(1)


class Actor:
    """An actor's process, played to its machine; the daemon is played by the test."""

    def __init__(self, every: int = 0, attempt: int = 0) -> None:
        self.worker = Worker(WORKER + HOME, Config.of({}))
        self.worker.connect(DAEMON)
        self.worker.step(0.0, b"L" + DAEMON, m.Functions(((FUNCTION, "Counter", b"", ()),)))
        self.log = CallLog(ACTOR, attempt, every)
        self.log.readonly = frozenset({"look"})
        self.worker.mailbox.logs[ACTOR] = self.log
        self.worker.mailbox.actors[ACTOR] = ((ACTOR, FUNCTION, b"", ()), attempt)
        self.unread: list[Any] = []

    def call(self, *numbers: int, caller: bytes = ANN, method: str = "add", **more: Any) -> None:
        extra = (more.get("needs", ()), more.get("values", ()), more.get("options")) if more else ()
        rows = tuple((number.to_bytes(16, "big"), method, b"", *extra) for number in numbers)
        self.worker.step(0.0, CLIENT + caller, m.Call(ACTOR, self.log.attempt, rows))

    def run(self, outputs: tuple[Any, ...] = (b"value",), contained: tuple[Any, ...] = (), whole: bool = True) -> int:
        item = self.worker.begin()
        assert item is not None
        self.worker.finish_call(item, OK if whole else FAILED, outputs, contained, 0.0, 0.001, whole)  # type: ignore[arg-type]
        return int.from_bytes(item.row[0], "big")

    def sent(self, kind: type[Any]) -> list[Any]:
        self.unread += [effect.message for effect in self.worker.take_effects(0.0)]
        found = [message for message in self.unread if type(message) is kind]
        self.unread = [message for message in self.unread if type(message) is not kind]
        return found

    def returned(self) -> list[int]:
        return [int.from_bytes(row[0], "big") for message in self.sent(m.Returned) for row in message.rows]

    def durable(self, upto: int) -> None:
        self.worker.step(0.0, b"L" + DAEMON, m.LogCommitted(ACTOR, upto))

    def waiting(self) -> list[int]:
        return [int.from_bytes(item.row[0], "big") for item in self.worker.mailbox.queue]


def next_incarnation(
    blocks: list[m.LogAppended], checkpoint: bytes | None = None, last: int = 0, every: int = 0
) -> tuple[Actor, Any, list[Any]]:
    actor = Actor(every, attempt=1)
    state, rows = actor.log.restore(checkpoint, last, [block.rows for block in blocks])
    return actor, state, rows


class Store(Node):
    """A node whose control store retains what is written, and answers ``Write`` when the test commits."""

    def __init__(self) -> None:
        super().__init__(cpus=2)
        self.rows: dict[str, dict[bytes, bytes]] = {table: {} for table in TABLES}
        self.slow = False
        self.open: list[m.Write] = []

    def answer(self, message: Any) -> None:
        if isinstance(message, m.Write):
            if self.slow and message.token:
                self.open.append(message)
                return
            if not self.full:
                self.keep(message)
        elif isinstance(message, m.Scan) and message.table in (LOG, CHECKPOINT):
            rows = [
                (key, value)
                for key, value in sorted(self.rows[message.table].items())
                if key.startswith(message.prefix) and key > message.after
            ]
            self.send(b"S" + OWN, m.Found(message.token, tuple(rows[: message.limit]), len(rows) > message.limit))
            return
        super().answer(message)

    def keep(self, message: m.Write) -> None:
        for table, key, value in message.puts:
            self.rows[table][key] = value
        for table, key in message.deletes:
            self.rows[table].pop(key, None)

    def workers(self) -> list[bytes]:
        while any(worker.process is None for worker in self.scheduler.tables.workers.values()):
            super().workers()
        return list(self.pids)

    def commit(self, ok: bool = True) -> None:
        for message in self.open:
            if ok:
                self.keep(message)
        answers, self.open = self.open, []
        for message in answers:
            self.send(b"S" + OWN, m.Written(message.token, ok, "" if ok else "full"))


def home(store: Store, attempt: int = 0) -> bytes:
    """Make the actor, as its ``attempt``; where it lives."""
    ((to, dispatch),) = [(to, message) for to, message in store.take(m.Dispatch) if message.rows[0][0] == ACTOR]
    assert (dispatch.details[0][1] if dispatch.details else 0) == attempt
    store.send(WORKER + to[1:], m.Completed.of(((ACTOR, attempt, OK, (b"actor",)),)))
    token: bytes = to[1:]
    return token


def part(number: int, last: int, index: int = 0, count: int = 1, refs: tuple[bytes, ...] = ()) -> m.Checkpoint:
    return m.Checkpoint(ACTOR, 0, number, last, index, count, b"part", refs)


def lasts(store: Store, table: str = LOG) -> list[int]:
    return [int.from_bytes(key[16:24], "big") for key in sorted(store.rows[table])]
