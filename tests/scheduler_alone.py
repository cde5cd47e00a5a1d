"""A local scheduler without processes: a test plays its surroundings, message by message."""

from __future__ import annotations

from typing import Any

from zfabric.config import Config
from zfabric.machines.common.tables import pack_row
from zfabric.machines.local_scheduler.machine import LocalScheduler
from zfabric.machines.local_scheduler.objects.call_results import CONFIRM_DELAY
from zfabric.protocol import codec
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, WORKER, child_prefix, control_of, job_id, object_id, pack_counter, root_task
from zfabric.protocol.options import RESOURCE_UNIT

JOB = job_id(1)
DRIVER = b"\x01driver0"
FUNCTION = b"f" * 16
ACTOR_CLASS = b"a" * 16
OWN = b"\x02daemon0"
OLD = b"\x00" * 7 + b"\x63"
"""A worker of the daemon before."""


def task_id(number: int) -> bytes:
    return child_prefix(JOB, root_task(JOB)) + pack_counter(number)


def ref(number: int, index: int = 0) -> bytes:
    return object_id(task_id(number), index)


def row(number: int, *needs: bytes, **options: Any) -> tuple[Any, ...]:
    plain = (task_id(number), FUNCTION, b"arguments", needs)
    return (*plain, tuple(options.items())) if options else plain


class Node:
    """A scheduler with its surroundings played by the test: what it sends is kept until it is asked for."""

    def __init__(self, cpus: int = 1, others: tuple[tuple[str, int], ...] = (), daemons: int = 0, **config: Any) -> None:
        self.now = 10.0
        self.config = Config.of(config)
        total = (("CPU", cpus * RESOURCE_UNIT), *others)
        self.scheduler = LocalScheduler(b"L" + OWN, b"thisnode", self.config, total, b"O" + OWN, b"S" + OWN, b"G" + OWN, 1, daemons)
        self.sent: list[tuple[bytes, Any]] = []
        self.effects: list[Any] = []
        self.pids: dict[bytes, int] = {}
        self.full = ""

    def send(self, source: bytes, message: Any) -> None:
        """One message, through the codec, and all that follows from it."""
        _, _, ((_, _, decoded),) = codec.decode(codec.encode(0, 0, [(b"L", source[:1], message)]))
        self.scheduler.step(self.now, source, decoded)
        self.turn()

    def turn(self) -> None:
        self.scheduler.tables.end_due = True  # Tests change tables and the time, too.
        for effect in self.scheduler.take_effects(self.now):
            if isinstance(effect, e.Send):
                self.sent.append((effect.to, effect.message))
                self.answer(effect.message)
            else:
                self.effects.append(effect)
                if isinstance(effect, e.SpawnWorker):
                    self.pids[effect.token] = 100 + int.from_bytes(effect.token, "big")
        self.scheduler.check_invariants()

    def confirm(self) -> list[tuple[bytes, Any]]:
        """Let the time pass after which recorded outcomes are confirmed; take the confirmations, with those that were sent before."""
        self.now += CONFIRM_DELAY
        self.scheduler.tick(self.now)
        self.turn()
        return self.take(m.OutcomesRecorded)

    def answer(self, message: Any) -> None:
        """The stores are always at hand; while the control store is ``full``, it writes nothing."""
        if isinstance(message, m.Query) and message.what == "nothing":
            self.send(b"O" + OWN, m.Answer(message.token, b"", ""))
        elif isinstance(message, m.NewJob) and not self.full:
            self.send(b"S" + OWN, m.JobNumber(message.token, 1))
        elif isinstance(message, m.NewJob | m.Write | m.EndKeys) and message.token:
            self.send(b"S" + OWN, m.Written(message.token, not self.full, self.full))

    def driver(self) -> None:
        self.send(CLIENT + DRIVER, m.Register(m.PROTOCOL_VERSION, "driver", 50, 1, b"", b"program", b"", "", ""))
        self.send(CLIENT + DRIVER, m.Ready())
        self.send(CLIENT + DRIVER, m.Export(((FUNCTION, "f", b"payload", ()),)))

    def workers(self) -> list[bytes]:
        """Every worker that was asked for is there."""
        for token, pid in list(self.pids.items()):
            if self.scheduler.tables.workers[token].process is None:
                self.send(b"X" + OWN, m.WorkerSpawned(token, pid, ""))
                control = control_of(token)
                self.send(CLIENT + token, m.Register(m.PROTOCOL_VERSION, "worker", pid, 1, b"", token, control, "", ""))
                self.send(CLIENT + token, m.Ready())
        return list(self.pids)

    def submit(self, *rows: tuple[Any, ...]) -> None:
        self.send(CLIENT + DRIVER, m.Submit(rows))

    def complete(self, worker: bytes, number: int, attempt: int = 0, status: int = m.OK, *outputs: Any, extras: Any = ()) -> None:
        outputs = outputs or (b"value",)
        self.send(WORKER + worker, m.Completed.of(((task_id(number), attempt, status, outputs),), extras, ((FUNCTION, 1, 0.0001),)))

    def take(self, kind: type[Any]) -> list[tuple[bytes, Any]]:
        """What was sent of one kind, which is thereby seen."""
        found = [pair for pair in self.sent if type(pair[1]) is kind]
        self.sent = [pair for pair in self.sent if type(pair[1]) is not kind]
        return found

    def dispatched(self) -> list[tuple[bytes, int, int]]:
        """(worker, number of the task, attempt) of all that was given out."""
        found = []
        for to, message in self.take(m.Dispatch):
            attempts = {index: attempt for index, attempt, _, _ in message.details}
            found += [
                (to[1:], int.from_bytes(row[0][-4:], "big"), attempts.get(index, message.attempt)) for index, row in enumerate(message.rows)
            ]
        return found

    def results(self) -> dict[int, tuple[int, Any]]:
        """Outcomes sent to the driver, by the number of the task."""
        rows = [row for to, message in self.take(m.Results) if to == CLIENT + DRIVER for row in message.rows]
        return {int.from_bytes(identifier[-4:], "big"): (status, outputs) for identifier, status, outputs in rows}


class Restarted(Node):
    """The third daemon of its node, to which one driver and one worker register again."""

    def __init__(self, others: tuple[tuple[str, int], ...] = ()) -> None:
        super().__init__(cpus=1, others=others, daemons=2)
        self.pids[OLD] = 99

    def answer(self, message: Any) -> None:
        """The control store has the job."""
        if isinstance(message, m.Scan):
            facts = {"number": 1, "namespace": "", "status": "running", "driver": DRIVER, "control": b"", "pid": 50, "started": 1}
            rows = ((JOB, pack_row({**facts, "name": b"program"})),) if message.table == "job" else ()
            self.send(b"S" + OWN, m.Found(message.token, rows, False))
        super().answer(message)

    found: tuple[Any, ...] = ()
    """Values that are in the arena: (object, offset, size)."""
    inside: tuple[Any, ...] = ()
    """Refs inside them: (object, refs)."""

    def rejoin(self, rows: tuple[Any, ...] = (), *reports: Any, functions: tuple[Any, ...] = (), held: tuple[Any, ...] = ()) -> None:
        """The worker sends its reports, then the driver its rows, and messages with all else that it holds."""
        self.send(b"X" + OWN, m.ArenaFound(self.found, (), self.inside))
        self.send(b"X" + OWN, m.ProcessTable(((OLD, 99),)))
        control = control_of(OLD)
        self.send(CLIENT + OLD, m.Register(m.PROTOCOL_VERSION, "worker", 99, 1, JOB, OLD, control, "", ""))
        for role, message in reports:
            self.send(role + OLD, message)
        self.send(CLIENT + OLD, m.Ready())
        self.send(CLIENT + DRIVER, m.Register(m.PROTOCOL_VERSION, "driver", 50, 1, JOB, b"program", b"", "", ""))
        actors = (("actor", b""), ("max_restarts", 3))
        self.send(CLIENT + DRIVER, m.Export(((FUNCTION, "f", b"payload", ()), (ACTOR_CLASS, "C", b"payload", actors), *functions)))
        self.send(CLIENT + DRIVER, m.Submit(rows))
        self.send(CLIENT + DRIVER, m.Hold(tuple(each[0] + bytes(4) for each in rows)))
        for message in held:
            self.send(CLIENT + DRIVER, message)
        self.send(CLIENT + DRIVER, m.Ready())
        assert not self.scheduler.is_recovering


def died(node: Node, worker: bytes, executing: int | None, signal: int = 9) -> None:
    top = task_id(executing) if executing is not None else b""
    node.send(b"X" + OWN, m.ProcessDied(node.pids.pop(worker), 0, signal, 0, "its last words", top))
