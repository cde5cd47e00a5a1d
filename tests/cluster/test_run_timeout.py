"""``run_timeout``: how long an attempt may take; and what the text of a timeout says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import PATIENCE
from files import wait_for_file
from nodes_alone import ABOUT, EXPORTED, HOME_A, Executor
from scheduler_alone import Node, died, ref, row, task_id

import zfabric as zf
from zfabric.machines.local_scheduler.records import DONE
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import CONTROL, WORKER, control_of, first_attempt


def pass_time(node: Node, seconds: float) -> None:
    node.now += seconds
    node.scheduler.tick(node.now)
    node.turn()


def text_of(node: Node, number: int) -> str:
    status, (failure,) = node.results()[number]
    assert status == m.FAILED
    kind, text, *_ = unpack_failure(failure)
    assert kind == "TaskTimeoutError"
    return text


@pytest.fixture
def node() -> Node:
    node = Node()
    node.driver()
    node.workers()
    return node


def test_the_time_of_a_run_counts_from_its_begin(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0), row(1, run_timeout=2.0))
    pass_time(node, 100.0)
    assert node.take(m.Interrupt) == []
    node.complete(worker, 0)
    assert node.dispatched()[-1] == (worker, 1, 0)
    pass_time(node, 1.9)
    assert node.take(m.Interrupt) == []
    pass_time(node, 0.2)
    assert node.take(m.Interrupt)[-1] == (CONTROL + control_of(worker), m.Interrupt(task_id(1), 0, "run_timeout"))
    node.send(WORKER + worker, m.Completed.of(((task_id(1), 0, m.INTERRUPTED, (b"run_timeout",)),)))
    assert text_of(node, 1) == "f ran longer than its run_timeout of 2.0 s"


def test_each_attempt_has_its_own_time(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0, run_timeout=2.0))
    pass_time(node, 1.5)
    died(node, worker, 0)
    (worker,) = node.workers()
    assert node.scheduler.tables.tasks[task_id(0)].worker is not None
    pass_time(node, 1.5)
    assert node.take(m.Interrupt) == []
    pass_time(node, 0.6)
    assert len(node.take(m.Interrupt)) == 1


def test_a_task_with_a_limit_is_sent_to_a_worker_that_begins_it_at_once(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0))
    node.complete(worker, 0)  # Tasks are short: several are sent together.
    node.submit(row(1), *(row(number, run_timeout=9.0) for number in range(2, 6)))
    node.sent.clear()
    for number in range(1, 6):
        assert list(node.scheduler.tables.workers[worker].inflight) == [task_id(number)]
        node.complete(worker, number)


@pytest.mark.parametrize("late", [False, True])
def test_a_node_limits_the_runs_of_tasks_of_others(late: bool) -> None:
    node = Executor(stop_patience=1.0)
    attempt = first_attempt(0, 1)
    node.hear(HOME_A, m.Delegate(ABOUT, EXPORTED, (row(1, run_timeout=2.0),), (), (), (), attempt))
    (worker,) = node.workers()
    pass_time(node, 2.1)
    assert node.take(m.Interrupt)[-1][1] == m.Interrupt(task_id(1), attempt, "run_timeout")
    node.told(HOME_A)
    if late:
        pass_time(node, 5.0)
        pass_time(node, 5.0)
        assert [each.pid for each in node.effects if type(each).__name__ == "KillProcess"][-1:] == [node.pids[worker]]
        return
    node.send(WORKER + worker, m.Completed.of(((task_id(1), attempt, m.INTERRUPTED, (b"run_timeout",)),)))
    (ended,) = [each for each in node.told(HOME_A) if isinstance(each, m.Ended)]
    assert m.Completed(*ended.completed).rows[0][2:] == (m.INTERRUPTED, (b"run_timeout",))


def test_a_timeout_says_for_what_a_task_waited(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0, name="long"), row(1, timeout=5.0), row(2, ref(0), timeout=5.0), row(3))
    pass_time(node, 5.1)
    results = node.results()
    texts = {number: unpack_failure(results[number][1][0])[1] for number in (1, 2)}
    assert "had no outcome within its timeout of 5.0 s: it had not begun, and waited for 1 CPU, which" in texts[1]
    assert "(long) had; 2 tasks were in its queue" in texts[1]
    assert "it had not begun, and waited for 1 of its arguments" in texts[2]
    assert "(long)" in texts[2]
    node.complete(worker, 0)
    node.complete(worker, 3)
    node.submit(row(4, timeout=5.0))
    pass_time(node, 5.1)
    node.send(WORKER + worker, m.Completed.of(((task_id(4), 0, m.INTERRUPTED, (b"timeout",)),)))
    assert text_of(node, 4).endswith("within its timeout of 5.0 s: it had begun")


def test_a_timeout_says_behind_what_a_task_was_queued(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0))
    node.complete(worker, 0)
    node.submit(row(1, name="first"), row(2, timeout=5.0))
    assert len(node.scheduler.tables.workers[worker].inflight) == 2
    pass_time(node, 5.1)
    node.send(CONTROL + control_of(worker), m.TakenBack((task_id(2),), task_id(1)))
    text = text_of(node, 2)
    assert "it had not begun, and was queued in worker" in text
    assert "(first)" in text
    assert node.scheduler.tables.tasks[task_id(2)].state == DONE


# -- real processes --------------------------------------------------------------------------------------------------------------


LIMIT = 1.0
"""Seconds that a run may take here: those that do not hang are over by then, also on a busy machine."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    zf.init(num_cpus=1)
    yield
    zf.shutdown()


@zf.remote
def fit(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@pytest.mark.usefixtures("cluster")
def test_two_hung_tasks_of_six_fail_and_the_others_run() -> None:
    fits = [fit.options(run_timeout=LIMIT).remote(60 if number in (1, 3) else 0.01) for number in range(6)]
    found = []
    for ref_ in fits:
        try:
            found.append(zf.get(ref_, timeout=PATIENCE))
        except zf.TaskTimeoutError as error:
            found.append(str(error))
    assert [each for each in found if isinstance(each, float)] == [0.01] * 4
    assert all(f"ran longer than its run_timeout of {LIMIT} s" in found[number] for number in (1, 3))


@zf.remote(num_cpus=0)
class Model:
    def train(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    @zf.method(run_timeout=LIMIT)
    def short(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def until(self, path: str) -> None:
        wait_for_file(path)


@zf.remote(num_cpus=0)
class Server:
    async def later(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds


@pytest.mark.usefixtures("cluster")
def test_a_call_that_hangs_fails_and_those_behind_it_run() -> None:
    """These wait for longer than their own runs may take."""
    model, server = Model.remote(), Server.remote()
    zf.get([model.train.remote(0.0), server.later.remote(0.0)])
    calls = [model.train.options(run_timeout=LIMIT).remote(60 if number == 1 else 0.01) for number in range(4)]
    calls += [
        model.short.remote(60),
        model.short.remote(0.01),
        server.later.options(run_timeout=LIMIT).remote(60),
        server.later.remote(0.0),
    ]
    for number, call in enumerate(calls):
        if number in (1, 4, 6):
            with pytest.raises(zf.TaskTimeoutError, match="stopped while it ran"):
                zf.get(call, timeout=PATIENCE)
        else:
            assert zf.get(call, timeout=PATIENCE) < 1


@pytest.mark.usefixtures("cluster")
def test_a_call_that_never_ran_says_behind_how_many_it_waited(tmp_path: Path) -> None:
    model, over = Model.remote(), tmp_path / "over"
    first = model.until.remote(str(over))
    second, third = model.train.remote(0.0), model.train.options(timeout=0.2).remote(0.0)
    with pytest.raises(zf.TaskTimeoutError, match="behind 1 other call of its actor"):
        zf.get(third, timeout=PATIENCE)
    over.touch()
    assert zf.get([first, second], timeout=PATIENCE) == [None, 0.0]


def test_a_limit_is_a_number_of_seconds() -> None:
    with pytest.raises(TypeError, match="run_timeout is a number of seconds above 0"):
        fit.options(run_timeout="1")
    with pytest.raises(ValueError, match="run_timeout is a number of seconds above 0"):
        zf.remote(run_timeout=0)(lambda: None)
