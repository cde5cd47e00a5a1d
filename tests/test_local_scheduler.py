"""The local scheduler, driven by hand: no processes, no clock, and every effect it decides on is accounted for.

``Node`` plays everyone else. What a test does not take with ``expect`` or ``drain`` is an error at its end (``emptiness``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from zfabric.config import Config
from zfabric.machines.local_scheduler import LocalScheduler
from zfabric.machines.parts import references
from zfabric.protocol import codec
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import FIRST_PUT_INDEX, object_id, pack_counter
from zfabric.protocol.messages import ERROR, INTERRUPTED, OK, PROTOCOL_VERSION, RETRY

ADDRESS, STORE, CONTROL, PLACER, SHELL = (role + b"daemon01" for role in (b"L", b"O", b"S", b"G", b"X"))
CPU = 10_000
FUNCTION = b"f" * 16
DRIVER = b"driver01"
JOB = pack_counter(1)
TIME = 100.0


def task(number: int) -> bytes:
    return JOB + b"parent00" + pack_counter(number)


def value(number: int, index: int = 0) -> bytes:
    return object_id(task(number), index)


def put_id(number: int) -> bytes:
    return object_id(task(9_999_999), FIRST_PUT_INDEX + number)


def row(number: int, *dependencies: bytes, function: bytes = FUNCTION, **options: Any) -> m.Row:
    return (task(number), function, b"args", dependencies, *((tuple(options.items()),) if options else ()))


def numbers(rows: m.Rows) -> list[int]:
    return [int.from_bytes(each[0][12:16], "big") for each in rows]


class Node:
    """A local scheduler with a driver whose function ``f`` takes a millisecond, and workers that do what the test says."""

    def __init__(self, cpus: int = 1, learn: bool = True, gpus: int = 0, **config: Any) -> None:
        self.config = Config.of(config)
        total = (("CPU", cpus * CPU), *((("GPU", gpus * CPU),) if gpus else ()))
        self.machine = LocalScheduler(ADDRESS, b"node0001", self.config, total, STORE, CONTROL, PLACER, 1, False)
        self.now = TIME
        self.effects: list[e.Effect] = []
        self.workers: dict[int, bytes] = {}
        self.functions: set[tuple[int, bytes]] = set()
        self.say(b"C" + DRIVER, m.Register(PROTOCOL_VERSION, "driver", 10, 1, b"", b"", b"control1", "", ""))
        self.answer(m.NewJob, lambda asked: m.JobNumber(asked.token, 1))
        self.answer(m.Write, lambda asked: m.Written(asked.token, True, ""))
        self.say(b"C" + DRIVER, m.Ready())
        self.turn()
        for worker, spawn in enumerate(self.take(e.SpawnWorker), 1):
            self.start(worker, spawn.token)
        self.drain()
        self.export(FUNCTION, "f", mean=0.001 if learn else None)

    # -- everyone else --

    def say(self, source: bytes, message: Any) -> None:
        heard = codec.decode(codec.encode(0, 0, [(b"L", source[:1], message)]))[2][0][2]
        self.machine.step(self.now, source, heard)

    def driver(self, message: Any) -> None:
        self.say(b"C" + DRIVER, message)
        self.turn()

    def shell(self, message: Any) -> None:
        self.say(SHELL, message)
        self.turn()

    def submit(self, *rows: m.Row) -> None:
        self.driver(m.Submit(rows))

    def export(self, function: bytes, name: str, mean: float | None = None, **options: Any) -> None:
        self.driver(m.Export(((function, name, b"code", tuple(options.items())),)))
        self.machine.membership.tables.jobs[JOB].functions[function].mean = mean
        (stored,) = self.sent(CONTROL, m.Write)
        assert stored.puts[0][:2] == ("function", JOB + function)

    def start(self, worker: int, token: bytes) -> None:
        """A worker that was asked for is there."""
        self.workers[worker] = token
        self.shell(m.WorkerSpawned(token, 100 + worker, ""))
        source = b"W" + token
        control = bytes((token[0] ^ 0x80,)) + token[1:]
        self.say(source, m.Register(PROTOCOL_VERSION, "worker", 100 + worker, 1, b"", token, control, "", ""))
        self.say(source, m.Ready())
        self.turn()

    def spawned(self, worker: int) -> None:
        (spawn,) = self.take(e.SpawnWorker)
        self.start(worker, spawn.token)
        assert self.sent(b"C" + spawn.token, m.Welcome)

    def given(self, worker: int = 1) -> list[int]:
        """The tasks a worker is given now."""
        return [number for dispatch in self.dispatched(worker) for number in numbers(dispatch.rows)]

    def dispatched(self, worker: int = 1) -> list[m.Dispatch]:
        address = b"W" + self.workers[worker]
        for functions in self.sent(address, m.Functions):
            for each in functions.functions:
                assert (worker, each[0]) not in self.functions, "a function is sent to a worker once"
                self.functions.add((worker, each[0]))
        dispatched = self.sent(address, m.Dispatch)
        assert all((worker, each[1]) in self.functions for dispatch in dispatched for each in dispatch.rows)
        return dispatched

    def ordered(self, kind: type[Any], worker: int = 1) -> list[Any]:
        """What a worker's control thread is told."""
        token = self.workers[worker]
        return self.sent(b"K" + bytes((token[0] ^ 0x80,)) + token[1:], kind)

    def end(self, number: int, outputs: m.Row = (b"v",), status: int = OK, attempt: int = 0, worker: int = 1, extras: m.Rows = ()) -> None:
        self.worker(m.Completed(((task(number), attempt, status, outputs),), extras, (), b""), worker)

    def end_all(self, given: list[int], worker: int = 1) -> None:
        self.worker(m.Completed(tuple((task(number), 0, OK, (b"v",)) for number in given), (), (), b""), worker)

    def worker(self, message: Any, worker: int = 1) -> None:
        self.say(b"W" + self.workers[worker], message)
        self.turn()

    def kill(self, worker: int = 1, executing: bytes = b"", signal: int = 9) -> None:
        self.shell(m.ProcessDied(100 + worker, 0, signal, 0, "", executing))
        assert self.sent(STORE, m.ProcessGone) == [m.ProcessGone(self.workers.pop(worker))]
        self.functions = {each for each in self.functions if each[0] != worker}

    # -- what it decides --

    def turn(self) -> None:
        self.effects += self.machine.take_effects(self.now)
        self.machine.check_invariants()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.machine.tick(self.now)
        self.turn()

    def take(self, kind: type[Any]) -> list[Any]:
        found = [effect for effect in self.effects if type(effect) is kind]
        self.effects = [effect for effect in self.effects if type(effect) is not kind]
        return found

    def sent(self, to: bytes, kind: type[Any]) -> list[Any]:
        def is_it(effect: e.Effect) -> bool:
            return isinstance(effect, e.Send) and effect.to == to and type(effect.message) is kind

        found = [effect.message for effect in self.effects if isinstance(effect, e.Send) and is_it(effect)]
        self.effects = [effect for effect in self.effects if not is_it(effect)]
        return [codec.decode(codec.encode(0, 0, [(to[:1], b"L", message)]))[2][0][2] for message in found]

    def answer(self, kind: type[Any], reply: Any) -> None:
        self.turn()
        for asked in self.sent(CONTROL, kind):
            if asked.token:
                self.say(CONTROL, reply(asked))

    def results(self) -> list[m.Row]:
        return [each for message in self.sent(b"C" + DRIVER, m.Results) for each in message.rows]

    def outcomes(self) -> dict[int, tuple[int, m.Row]]:
        return {int.from_bytes(each[0][12:16], "big"): (each[1], each[2]) for each in self.results()}

    def failure(self, number: int) -> tuple[str, str]:
        status, outputs = self.outcomes()[number]
        assert status == m.FAILED
        return unpack_failure(outputs[0])[:2]

    def freed(self) -> list[bytes]:
        return [each for message in self.sent(STORE, m.Free) for each in message.object_ids]

    def drain(self) -> list[e.Effect]:
        effects, self.effects = self.effects, []
        return effects

    def settle(self) -> None:
        """As many turns as it wants at once."""
        for _ in range(100):
            self.turn()
            deadline = self.machine.next_deadline()
            if deadline is None or deadline > self.now:
                return
        raise AssertionError("it never comes to rest")

    def emptiness(self) -> None:
        """Nothing was decided that the test has not seen. Lineage, heartbeats and settled news aside, which every test would see."""
        self.settle()
        assert self.effects == []


@pytest.fixture
def nodes() -> Iterator[Any]:
    made: list[Node] = []

    def make(**arguments: Any) -> Node:
        made.append(Node(**arguments))
        return made[-1]

    yield make
    for node in made:
        node.emptiness()


# --- the plain way --------------------------------------------------------------------------------------------------------------


def test_a_task_goes_to_a_worker_and_its_value_to_its_submitter(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1))
    assert node.dispatched() == [m.Dispatch((row(1),), (), False)]
    node.end(1, (b"one",))
    assert node.results() == [(task(1), OK, (b"one",))]


def test_the_last_release_forgets_a_finished_task(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1))
    node.given()
    node.end(1)
    node.results()
    node.driver(m.Release((value(1),)))
    assert node.machine.tables.tasks == {}
    assert node.machine.tables.counts["inline_bytes"] == 0
    node.driver(m.Fetch((value(1),)))
    ((identifier, status, payload, _),) = node.sent(b"C" + DRIVER, m.Objects)[0].rows
    assert (identifier, status) == (value(1), m.FAILED)
    assert unpack_failure(payload)[0] == "ObjectFreedError"


def test_lineage_is_written_a_while_later_and_only_of_tasks_that_are_still_needed(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1), row(2))
    node.given()
    node.end_all([1, 2])
    node.results()
    node.driver(m.Release((value(1),)))
    assert node.sent(CONTROL, m.Write) == []
    node.wait(node.config.lineage_delay)
    (written,) = node.sent(CONTROL, m.Write)
    ((table, key, block),) = written.puts
    assert (table, key) == ("task", task(2))
    assert task(1) not in block
    node.driver(m.Release((value(2),)))
    node.wait(node.config.lineage_delay)
    (deleted,) = node.sent(CONTROL, m.Write)
    assert deleted.deletes == (("task", task(2)),)


def test_a_task_waits_for_its_dependencies_and_gets_their_values(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1), row(2, value(1)))
    assert node.given() == [1]
    node.end(1, (b"one",))
    (dispatch,) = node.dispatched()
    assert dispatch.details == ((0, 0, (b"one",), ()),)
    node.driver(m.Release((value(1),)))
    assert task(1) in node.machine.tables.tasks, "the row of a task that another names stays"
    node.end(2)
    node.results()
    node.driver(m.Release((value(2),)))
    node.settle()
    assert node.machine.tables.tasks == {}
    node.sent(STORE, m.Absorb)
    node.freed()


def test_a_value_in_the_arena_is_located_before_its_reader_is_sent(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1), row(2, value(1)))
    node.given()
    node.end(1, ((4096, 10),))
    worker = node.workers[1]
    assert node.sent(STORE, m.Sealed) == [m.Sealed(((value(1), 4096, 10, worker, False),))]
    assert node.sent(STORE, m.Locate) == [m.Locate(((value(1), worker),))]
    assert node.given() == []
    node.say(STORE, m.Located(((value(1), worker, 4096, 10),)))
    node.turn()
    (dispatch,) = node.dispatched()
    assert dispatch.details == ((0, 0, ((4096, 10),), ()),)
    node.end(2)
    node.results()


def test_the_same_row_again_is_a_repeat_and_another_is_refused(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1))
    node.submit(row(1))
    assert node.given() == [1]
    node.submit((task(1), FUNCTION, b"other", ()))
    assert "not deterministic" in node.failure(1)[1]
    node.end(1)
    assert node.outcomes() == {1: (OK, (b"v",))}
    node.submit(row(1))
    assert node.outcomes() == {1: (OK, (b"v",))}


# --- prefetch, take-back --------------------------------------------------------------------------------------------------------


def test_a_worker_is_given_a_few_milliseconds_of_work_and_topped_up(nodes: Any) -> None:
    node = nodes()
    node.submit(*(row(number) for number in range(100)))
    first = node.given()
    assert first == list(range(5)), "5 ms of tasks of 1 ms"
    node.end(0)
    assert node.given() == []
    node.end_all([1, 2, 3])
    more = node.given()
    assert more == list(range(5, 5 + len(more)))
    assert 1 <= len(more) <= 5
    node.results()


def test_a_worker_is_never_given_more_tasks_than_the_limit(nodes: Any) -> None:
    node = nodes(prefetch_tasks=3, prefetch_seconds=1.0)
    node.submit(*(row(number) for number in range(100)))
    assert node.given() == [0, 1, 2]


def test_nothing_is_given_behind_a_function_nobody_knows_yet_and_none_such_behind_another(nodes: Any) -> None:
    node = nodes(learn=False)
    node.export(b"g" * 16, "g", mean=0.001)
    node.submit(row(1), row(2))
    assert node.given() == [1]
    node.submit(row(3, function=b"g" * 16))
    assert node.given() == []
    node.worker(m.Completed(((task(1), 0, OK, (b"v",)),), (), (), b""))
    assert node.given() == [2]
    node.worker(m.Completed(((task(2), 0, OK, (b"v",)),), (), ((FUNCTION, 1, 0.001),), b""))
    assert node.given() == [3]
    node.submit(row(4), row(5))
    assert node.given() == [4, 5]
    node.results()


def test_tasks_behind_a_long_one_are_asked_back_once_another_could_run_them(nodes: Any) -> None:
    node = nodes(cpus=2)
    node.submit(row(0), row(1), row(2))
    assert (node.given(1), node.given(2)) == ([0, 1], [2])
    node.wait(0.05)
    assert node.ordered(m.TakeBack, 1) == [], "nobody is free to run them"
    node.end(2, worker=2)
    node.wait(0.05)
    (asked,) = node.ordered(m.TakeBack, 1)
    assert set(asked.task_ids) == {task(0), task(1)}
    assert node.given(2) == [], "until it is given back it is nobody else's"
    node.worker(m.TakenBack((task(1),), task(0)), 1)
    assert node.given(2) == [1]
    assert node.given(1) == []
    node.end(0, worker=1)
    node.end(1, worker=2)
    assert len(node.results()) == 3
    node.sent(CONTROL, m.Write)


def test_a_task_taken_back_is_the_same_attempt_and_ahead_of_younger_ones(nodes: Any) -> None:
    node = nodes(prefetch_tasks=2)
    node.submit(*(row(number) for number in range(4)))
    assert node.given() == [0, 1]
    node.worker(m.TakenBack((task(1),), task(0)))
    (dispatch,) = node.dispatched()
    assert (numbers(dispatch.rows), dispatch.details) == ([1], ())
    node.end_all([0, 1])
    assert node.given() == [2, 3]
    node.end_all([2, 3])
    assert [each[1:] for each in node.results()] == [(OK, (b"v",))] * 4


# --- workers that wait ----------------------------------------------------------------------------------------------------------


def test_what_a_blocked_worker_waits_for_runs_on_top_of_it(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1))
    node.given()
    node.worker(m.Submit((row(2),)))
    assert node.given() == [2]
    node.worker(m.Blocked(task(1), (value(2),), (task(2),), True))
    (dispatch,) = node.dispatched()
    assert (numbers(dispatch.rows), dispatch.inline) == ([2], True)
    node.end(2)
    assert node.sent(b"C" + node.workers[1], m.Results)[0].rows == ((task(2), OK, (b"v",)),)
    node.worker(m.Unblocked(task(1)))
    node.end(1)
    assert list(node.outcomes()) == [1]


def test_a_blocked_worker_lends_its_cpu_and_nothing_else(nodes: Any) -> None:
    node = nodes(gpus=1)
    demand = (("CPU", CPU), ("GPU", CPU))
    node.export(b"g" * 16, "g", mean=0.001, demand=demand)
    node.submit(row(1, function=b"g" * 16))
    assert node.given() == [1]
    assert dict(node.machine.pool.available()).get("CPU", 0) == 0
    node.worker(m.Blocked(task(1), (value(99),), (), False))
    available = dict(node.machine.pool.available())
    assert (available.get("CPU", 0), available.get("GPU", 0)) == (CPU, 0)
    node.submit(row(2, function=b"g" * 16), row(3))
    node.spawned(2)
    assert node.given(2) == [3], "the CPU is lent to the one that needs no GPU"
    node.worker(m.Unblocked(task(1)))
    assert dict(node.machine.pool.available()).get("CPU", 0) <= 0
    node.end(1)
    node.end(3, worker=2)
    node.settle()
    assert sorted(node.given(1) + node.given(2)) == [2]
    node.end(2, worker=1 if task(2) in node.machine.tables.workers[node.workers[1]].inflight else 2)
    node.settle()
    assert dict(node.machine.pool.available()) == {"CPU": CPU, "GPU": CPU}
    assert len(node.results()) == 3


# --- outcomes -------------------------------------------------------------------------------------------------------------------


def test_an_outcome_of_an_attempt_that_was_given_up_is_refused(nodes: Any) -> None:
    node = nodes(cpus=2)
    node.submit(row(1))
    (holder,) = [worker for worker in (1, 2) if node.given(worker)]
    node.end(1, ((4096, 10),), attempt=1, worker=holder)
    node.end(1, worker=3 - holder)
    assert node.results() == []
    assert node.machine.tables.counts["late_completions"] == 2
    ((copy, offset, _, writer, _),) = node.sent(STORE, m.Sealed)[0].rows
    assert (offset, writer) == (4096, node.workers[holder])
    assert node.freed() == [copy], "what a late attempt wrote into the arena is freed"
    assert copy != value(1)
    node.end(1, (b"right",), worker=holder)
    assert node.results() == [(task(1), OK, (b"right",))]
    node.end(1, (b"again",), worker=holder)
    assert node.results() == []


def test_several_values_are_all_there_or_it_is_an_error(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1, num_returns=2), row(2, num_returns=2))
    node.given()
    node.end(1, (b"a", b"b"))
    node.end(2, (b"a",))
    outcomes = node.outcomes()
    assert outcomes[1] == (OK, (b"a", b"b"))
    assert "gave 1 values where 2" in unpack_failure(outcomes[2][1][0])[1]


def test_the_users_error_is_not_retried_unless_asked_and_then_only_so_often(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1), row(2, max_retries=1))
    node.given()
    node.end(1, (b"boom",), status=ERROR)
    assert node.outcomes() == {1: (ERROR, (b"boom",))}
    node.end(2, (b"boom",), status=RETRY)
    (dispatch,) = node.dispatched()
    assert dispatch.details == ((0, 1, (), ()),)
    assert node.results() == []
    node.end(2, (b"boom",), status=RETRY, attempt=1)
    assert node.outcomes() == {2: (ERROR, (b"boom",))}


def test_the_dependents_of_a_failure_fail_with_it_in_a_chain_of_5000(nodes: Any) -> None:
    node = nodes()
    length = 5000
    node.submit(*(row(number, *((value(number - 1),) if number else ())) for number in range(length)))
    assert node.given() == [0]
    node.end(0, (b"boom",), status=ERROR)
    results = node.results()
    assert len(results) == length
    assert {each[1:] for each in results} == {(ERROR, (b"boom",))}
    node.driver(m.Release(tuple(value(number) for number in range(length))))
    node.settle()
    assert node.machine.tables.tasks == {}
    assert node.machine.tables.counts["inline_bytes"] == 0
    assert node.sent(STORE, m.Absorb) == []


# --- dead workers ---------------------------------------------------------------------------------------------------------------


def test_a_crash_is_charged_to_the_task_on_top_and_the_rest_goes_on_as_innocent(nodes: Any) -> None:
    node = nodes(cpus=1, max_retries=0)
    node.submit(row(1), row(2), row(3))
    assert node.given() == [1, 2, 3]
    node.end(1)
    node.kill(executing=task(2))
    assert node.outcomes()[1] == (OK, (b"v",))
    node.spawned(2)
    (dispatch,) = node.dispatched(2)
    assert numbers(dispatch.rows) == [3]
    assert dispatch.details == ((0, 1, (), ()),), "it may have begun: what its first attempt says must not count"
    node.end(3, attempt=1, worker=2)
    assert node.outcomes()[3] == (OK, (b"v",))
    assert node.machine.tables.tasks[task(2)].state == 3
    record = node.machine.tables.tasks[task(2)]
    assert unpack_failure(record.value)[0] == "WorkerCrashedError"


def test_a_task_whose_worker_dies_is_run_again_as_its_next_attempt_up_to_its_retries(nodes: Any) -> None:
    node = nodes(max_retries=2)
    node.submit(row(1))
    for attempt in range(3):
        (dispatch,) = node.dispatched(attempt + 1)
        assert dispatch.details == (((0, attempt, (), ()),) if attempt else ())
        node.kill(attempt + 1, task(1))
        node.spawned(attempt + 2)
    kind, text = node.failure(1)
    assert kind == "WorkerCrashedError"
    assert text.count("signal 9") >= 3
    assert node.given(4) == []


def test_a_task_that_kills_every_worker_it_is_given_is_run_alone_and_then_condemned(nodes: Any) -> None:
    node = nodes(poison_kills=2)
    node.submit(row(1, max_retries=-1), row(2))
    worker = 1
    companions = []
    while 1 not in (outcomes := node.outcomes()):
        node.settle()
        node.turn()
        given = node.given(worker)
        assert given[0] == 1
        companions.append(given[1:])
        node.kill(worker, task(1))
        worker += 1
        node.spawned(worker)
        assert worker < 20
    kind, text, _ = unpack_failure(outcomes[1][1][0])
    assert kind == "PoisonedTaskError"
    assert "ran alone" in text
    assert companions[0] == [2]
    assert companions[1:] == [[]] * (len(companions) - 1), "nobody runs with a suspect"
    assert node.given(worker) == [2]
    node.end(2, attempt=1, worker=worker)
    assert node.outcomes() == {2: (OK, (b"v",))}


def test_a_worker_that_does_not_start_again_and_again_is_the_outcome_of_what_waits_for_it(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1))
    node.given()
    node.kill(executing=task(1))
    for _ in range(5):
        (spawn,) = node.take(e.SpawnWorker)
        node.shell(m.WorkerSpawned(spawn.token, 0, "no memory"))
    assert "no memory" in node.failure(1)[1]
    assert [notice.level for notice in node.sent(b"C" + DRIVER, m.Notice)] == ["error"]
    assert len(node.take(e.Say)) == 5
    assert len(node.take(e.SpawnWorker)) == 1, "for those that come after"
    node.sent(STORE, m.ProcessGone)


# --- stopping -------------------------------------------------------------------------------------------------------------------


def test_what_was_not_dispatched_is_cancelled_at_once_and_what_was_is_asked_until_it_has_ended(nodes: Any) -> None:
    node = nodes(prefetch_tasks=1)
    node.submit(row(1), row(2))
    node.given()
    node.driver(m.Cancel((value(1), value(2)), False, False))
    assert list(node.outcomes()) == [2]
    interrupt = m.Interrupt(task(1), 0, "cancelled")
    assert node.ordered(m.Interrupt) == [interrupt]
    node.wait(node.config.interrupt_every)
    assert node.ordered(m.Interrupt) == [interrupt]
    node.end(1, (), status=INTERRUPTED)
    assert node.failure(1)[0] == "TaskCancelledError"
    node.wait(node.config.interrupt_every)
    assert node.ordered(m.Interrupt) == []
    node.sent(CONTROL, m.Write)


def test_an_outcome_that_comes_before_the_cancel_is_heard_stands(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1))
    node.given()
    node.driver(m.Cancel((value(1),), False, False))
    assert len(node.ordered(m.Interrupt)) == 1
    node.end(1)
    assert node.outcomes() == {1: (OK, (b"v",))}


def test_a_deadline_ends_a_task_that_waits_and_stops_one_that_runs(nodes: Any) -> None:
    node = nodes(prefetch_tasks=1)
    node.submit(row(1, timeout=0.5), row(2, timeout=0.5), row(3, timeout=5.0))
    assert node.given() == [1]
    assert node.machine.next_deadline() <= TIME + 0.5
    node.wait(0.4)
    assert node.results() == []
    node.wait(0.1)
    assert node.failure(2)[0] == "TaskTimeoutError"
    assert node.ordered(m.Interrupt) == [m.Interrupt(task(1), 0, "timeout")]
    node.end(1, (), status=INTERRUPTED)
    assert node.failure(1)[0] == "TaskTimeoutError"
    assert node.given() == [3]
    node.end(3)
    assert node.outcomes() == {3: (OK, (b"v",))}
    assert len(node.sent(CONTROL, m.Write)) == 1


# --- resources ------------------------------------------------------------------------------------------------------------------


def test_what_no_local_resources_will_ever_satisfy_goes_to_a_global_scheduler_once_and_its_driver_is_warned_once(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1, demand=(("CPU", 8 * CPU),)))
    (asked,) = node.sent(PLACER, m.Place)
    assert asked.rows[0][1] == (("CPU", 8 * CPU),)
    node.say(PLACER, m.Placed(((asked.rows[0][0], b""),)))
    for _ in range(3):
        node.wait(node.config.infeasible_warning)
    (notice,) = node.sent(b"C" + DRIVER, m.Notice)
    assert notice.level == "warning"
    assert "8 CPU" in notice.text
    assert node.results() == []
    node.submit(row(2))
    assert node.given() == [2], "what waits for the impossible holds nobody up"
    node.sent(CONTROL, m.Write)
    node.sent(PLACER, m.Heartbeat)


def test_an_infeasible_task_is_an_error_where_that_was_asked_for(nodes: Any) -> None:
    node = nodes(infeasible="raise")
    node.submit(row(1, demand=(("GPU", CPU),)))
    (asked,) = node.sent(PLACER, m.Place)
    node.say(PLACER, m.Placed(((asked.rows[0][0], b""),)))
    node.turn()
    kind, text = node.failure(1)
    assert kind == "TaskUnschedulableError"
    assert "GPU" in text


# --- lineage --------------------------------------------------------------------------------------------------------------------


def test_a_lost_value_is_made_again_with_what_it_needs_each_once(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1), row(2, value(1)), row(3, value(1), value(2)))
    for number in (1, 2, 3):
        assert node.given() == [number]
        node.end(number)
    node.results()
    node.driver(m.Release((value(1), value(2))))
    node.settle()
    assert not [task_record for task_record in node.machine.tables.tasks.values() if task_record.id != task(3) and task_record.value]
    node.sent(STORE, m.Absorb)
    node.freed()
    record = node.machine.tables.tasks[task(3)]
    node.machine.tables.counts["inline_bytes"] -= len(record.value)
    record.value = None
    node.driver(m.Fetch((value(3),)))
    for number in (1, 2, 3):
        (dispatch,) = node.dispatched()
        assert numbers(dispatch.rows) == [number]
        assert dispatch.details[0][1] == 1, "it is another attempt"
        node.end(number, (b"again",), attempt=1)
    (objects,) = node.sent(b"C" + DRIVER, m.Objects)
    assert objects.rows == ((value(3), OK, b"again", ()),)
    assert node.machine.tables.counts["rebuilds"] == 3
    node.results()
    node.settle()
    node.freed()


def test_a_lost_put_has_no_lineage_and_says_so(nodes: Any) -> None:
    node = nodes()
    node.driver(m.Put(((put_id(0), (4096, 10), (), False),)))
    node.sent(STORE, m.Sealed)
    node.sent(STORE, m.Locate)
    node.driver(m.Fetch((put_id(0),)))
    node.sent(STORE, m.Locate)
    node.say(STORE, m.Lost(((put_id(0), "missing"),)))
    node.turn()
    (objects,) = node.sent(b"C" + DRIVER, m.Objects)
    kind, text, _ = unpack_failure(objects.rows[0][2])
    assert kind == "ObjectLostError"
    assert "durable=True" in text


def test_rows_past_the_lineage_cap_go_silently_and_a_rebuild_that_needs_one_says_so(nodes: Any) -> None:
    node = nodes(lineage_bytes=300)
    node.submit(row(1), row(2, value(1)), row(3, value(2)))
    for number in (1, 2, 3):
        node.given()
        node.end(number, (b"x" * 10,))
    node.results()
    node.driver(m.Release((value(1), value(2))))
    node.settle()
    assert node.machine.references.evicted == 1
    assert task(1) not in node.machine.tables.tasks
    assert node.machine.references.lineage_bytes <= 300
    assert node.results() == []
    node.sent(STORE, m.Absorb)
    node.freed()
    record = node.machine.tables.tasks[task(3)]
    node.machine.tables.counts["inline_bytes"] -= len(record.value)
    record.value = None
    node.driver(m.Fetch((value(3),)))
    (objects,) = node.sent(b"C" + DRIVER, m.Objects)
    assert unpack_failure(objects.rows[0][2])[0] == "LineageEvictedError"
    assert node.given() == []


def test_letting_go_of_a_chain_of_50000_is_sliced_over_turns(nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = nodes(prefetch_tasks=100_000, prefetch_seconds=1e9, lineage=False)
    length = 50_000
    tables = node.machine.tables
    looked: list[int] = []
    right = references.References._free

    def counted(self: references.References, record: Any) -> None:
        looked[-1] += 1
        right(self, record)

    # Each row names the value before it; all are made, and only the last is held.
    node.machine.check_invariants = lambda: None  # type: ignore[method-assign]
    for number in range(length):
        dependencies = (value(number - 1),) if number else ()
        node.machine.step(node.now, b"C" + DRIVER, m.Submit((row(number, *dependencies),)))
    for number in range(length):
        record = tables.tasks[task(number)]
        tables.queues[record.function.queue.token].tasks.clear()
        node.machine.outcomes.end_with(record, ERROR, b"")
    node.turn()
    node.settle()
    assert len(node.results()) == length
    del node.machine.check_invariants
    monkeypatch.setattr(references.References, "_free", counted)
    node.machine.step(node.now, b"C" + DRIVER, m.Release(tuple(value(number) for number in range(length))))
    assert len(tables.tasks) == length
    while tables.tasks:
        looked.append(0)
        node.effects += node.machine.take_effects(node.now)
        if tables.tasks:
            assert node.machine.next_deadline() == 0.0, "it goes on at once"
        assert len(looked) < 100
    assert max(looked) <= references.COLLECT_PER_TURN
    assert len(looked) >= length // references.COLLECT_PER_TURN
    node.machine.check_invariants()


# --- processes and jobs ---------------------------------------------------------------------------------------------------------


def test_what_a_dead_worker_submitted_its_driver_says_from_now_on(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1))
    node.given()
    node.worker(m.Submit((row(2),)))
    assert node.given() == [2]
    node.kill(executing=task(1))
    (inherited,) = node.sent(b"C" + DRIVER, m.Inherit)
    assert inherited.rows == (row(2),)
    assert inherited.functions == ((FUNCTION, "f", b"code", ()),)
    node.spawned(2)
    node.turn()
    assert node.given(2) == [1], "nothing is given behind a task under suspicion"
    node.end(1, attempt=1, worker=2)
    assert node.given(2) == [2]
    node.end(2, attempt=node.machine.tables.tasks[task(2)].attempt, worker=2)
    assert list(node.outcomes()) == [1, 2]


def test_the_end_of_a_job_leaves_nothing_of_it(nodes: Any) -> None:
    node = nodes()
    node.submit(row(1), row(2, value(1)))
    node.given()
    node.driver(m.Put(((put_id(0), (4096, 10), (), False),)))
    node.driver(m.Goodbye())
    assert len(node.take(e.KillProcess)) == 1
    assert node.freed() == [put_id(0)]
    (tombstone,) = [write for write in node.sent(CONTROL, m.Write) if write.token]
    assert ("function", JOB + FUNCTION) in tombstone.deletes
    assert node.sent(b"C" + DRIVER, m.Farewell) == [], "not before the tombstone is durable"
    node.say(CONTROL, m.Written(tombstone.token, True, ""))
    node.turn()
    assert node.sent(b"C" + DRIVER, m.Farewell) == [m.Farewell("")]
    tables = node.machine.tables
    assert (tables.tasks, tables.objects, tables.jobs, tables.queues) == ({}, {}, {}, {})
    node.submit(row(3))
    assert [refused.kind for refused in node.sent(b"C" + DRIVER, m.Refused)] == ["JobEndedError"]
    node.drain()
