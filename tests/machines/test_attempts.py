"""Numbers of attempts: no daemon assigns a number that another one may have assigned."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_alone import ACTOR_CLASS, CLIENT, DRIVER, FUNCTION, JOB, OLD, OWN, Restarted, died, ref, row, task_id

from zfabric.machines.local_scheduler.barrier import PROCESSES
from zfabric.protocol import messages as m
from zfabric.protocol.effects import KillProcess
from zfabric.protocol.failures import pack_failure, unpack_failure
from zfabric.protocol.ids import (
    WORKER,
    call_value,
    child_prefix,
    control_of,
    first_attempt,
    job_id,
    next_attempt,
    pack_counter,
    root_task,
    salt_of,
    tries_of,
)
from zfabric.protocol.options import RESOURCE_UNIT

THIRD = next_attempt(next_attempt(0, first_attempt(1)), first_attempt(1))
"""A third attempt, which the daemon before gave out."""
FIRST = first_attempt(2)
"""What the restarted daemon begins with."""


@pytest.fixture
def node() -> Restarted:
    return Restarted()


def child_of(number: int, attempt: int) -> tuple[Any, ...]:
    return (child_prefix(JOB, task_id(number), 0, salt_of(attempt)) + pack_counter(0), FUNCTION, b"", ())


def test_a_queued_task_gets_an_attempt_number_of_the_new_daemon(node: Restarted) -> None:
    node.rejoin((row(0),))
    assert node.dispatched() == [(OLD, 0, FIRST)]
    node.complete(OLD, 0, 0)
    assert node.results() == {}, "that was an attempt of the daemon before"
    node.complete(OLD, 0, FIRST)
    assert node.results() == {0: (m.OK, (b"value",))}
    node.submit(row(1))
    assert node.dispatched() == [(OLD, 1, FIRST)]


def test_nothing_is_due_again_and_again_while_a_worker_neither_registers_nor_dies(node: Restarted) -> None:
    node.send(b"X" + OWN, m.ArenaFound((), ()))
    node.send(b"X" + OWN, m.ProcessTable(((OLD, 99),)))
    for _ in range(5):
        node.now = node.scheduler.next_deadline() or 0.0
        node.scheduler.tick(node.now)
        node.turn()
        assert (node.scheduler.next_deadline() or 0.0) > node.now
    assert node.scheduler.is_recovering
    assert node.now > 10.0 + node.config.worker_start_seconds


def test_processes_that_come_after_a_restart_are_not_remembered_as_reporters(node: Restarted) -> None:
    node.rejoin((row(0),))
    died(node, OLD, None)
    (worker,) = node.workers()
    assert node.scheduler.tables.barrier.has_reported(PROCESSES, OLD)
    assert not node.scheduler.tables.barrier.has_reported(PROCESSES, worker)


@pytest.mark.parametrize("begun", [True, False])
def test_a_worker_with_a_task_of_which_nothing_else_survived_is_ended(node: Restarted, begun: bool) -> None:
    """It would run the task, and what it is given meanwhile would wait for that."""
    unknown = (task_id(0), b"\x07" * len(FUNCTION), b"", ())
    node.rejoin((row(1),), (WORKER, m.RunningTasks(((unknown, THIRD, begun, ""),), ())))
    assert [each.pid for each in node.effects if isinstance(each, KillProcess)] == [99]
    assert OLD not in [worker for worker, _, _ in node.dispatched()]


def test_a_running_task_retains_its_attempt_number_and_its_retry_gets_a_new_one(node: Restarted) -> None:
    node.rejoin((row(0),), (WORKER, m.RunningTasks(((row(0), THIRD, True, ""),))))
    assert node.dispatched() == []
    died(node, OLD, 0)
    (worker,) = node.workers()
    assert node.dispatched() == [(worker, 0, next_attempt(THIRD, FIRST))]
    node.send(CLIENT + DRIVER, m.Query(1, "tasks", ()))
    ((_, answer),) = node.take(m.Answer)
    assert [task["attempt"] for task in answer.payload] == [3]
    explanation = node.scheduler.explain(task_id(0))
    assert explanation is not None
    assert dict(explanation.facts)["attempt"] == "4 of 4", "people are told how often it was tried"
    assert "attempt 3: worker 99" in dict(explanation.facts)["earlier attempts"]
    node.complete(worker, 0, next_attempt(THIRD, FIRST))
    assert node.results() == {0: (m.OK, (b"value",))}


def test_an_outcome_that_the_dead_daemon_may_not_have_received_counts_once(node: Restarted) -> None:
    again = m.Completed.of(((task_id(0), 1, m.RETRY, (b"error",)),), (), ((FUNCTION, 1, 0.001),))
    node.rejoin((row(0, retry_errors=True),), (WORKER, again))
    assert node.dispatched() == [(OLD, 0, next_attempt(1, FIRST))], "and not the number that the daemon before may have gone on to"


@pytest.mark.parametrize(
    ("why", "kind"), [("cancelled", "TaskCancelledError"), ("timeout", "TaskTimeoutError"), ("killed", "ActorDiedError")]
)
def test_the_reason_for_stopping_an_attempt_survives_the_daemon(node: Restarted, why: str, kind: str) -> None:
    node.rejoin((row(0),), (WORKER, m.Completed.of(((task_id(0), THIRD, m.INTERRUPTED, (why.encode(),)),))))
    ((status, (failure,)),) = node.results().values()
    assert (status, unpack_failure(failure)[0]) == (m.FAILED, kind)


@pytest.mark.parametrize("held", [False, True])
def test_an_attempt_that_was_asked_to_stop_is_asked_again_and_does_not_run_again(node: Restarted, held: bool) -> None:
    """Whoever cancelled it died with the daemon before, and nobody else would ever stop it."""
    node.rejoin((row(0),) if held else (), (WORKER, m.RunningTasks(((row(0), THIRD, True, "cancelled"),))))
    assert node.take(m.Interrupt) == [(b"K" + control_of(OLD), m.Interrupt(task_id(0), THIRD, "cancelled"))]
    died(node, OLD, 0)
    node.workers()
    assert node.dispatched() == []
    assert (task_id(0) in node.scheduler.tables.tasks) == held
    assert [unpack_failure(failure)[0] for _, (failure,) in node.results().values()] == ["TaskCancelledError"] * held


def test_a_living_actor_retains_its_attempt_number_and_restarts(node: Restarted) -> None:
    made = (task_id(0), ACTOR_CLASS, b"", ())
    node.rejoin((), (CLIENT, m.HostedActors(((made, THIRD),))), (CLIENT, m.Hold((task_id(0) + bytes(4),))))
    record = node.scheduler.actors.records[task_id(0)]
    assert (record.restarts, record.task.attempt) == (2, THIRD)
    node.send(CLIENT + DRIVER, m.Hold((task_id(0) + bytes(4),)))
    died(node, OLD, None)
    assert (record.restarts, record.task.attempt) == (3, next_attempt(THIRD, FIRST))


@pytest.mark.parametrize("held", [False, True])
def test_children_of_an_abandoned_attempt_run_only_if_another_process_waits(node: Restarted, held: bool) -> None:
    child = child_of(0, 0)
    holds = ((CLIENT, m.Hold((child[0] + bytes(4),))),) if held else ()
    node.rejoin((row(0),), (CLIENT, m.Submit((child,))), *holds)
    assert (child[0] in node.scheduler.tables.tasks) == held


def test_children_of_the_current_attempt_run(node: Restarted) -> None:
    child = child_of(0, THIRD)
    node.rejoin((row(0),), (WORKER, m.RunningTasks(((row(0), THIRD, True, ""),))), (CLIENT, m.Submit((child,))))
    assert child[0] in node.scheduler.tables.tasks


def test_attempt_numbers_contain_the_daemon_and_are_shown_as_tries() -> None:
    third = next_attempt(next_attempt(first_attempt(0), first_attempt(0)), first_attempt(5))
    assert tries_of(third) == 2
    assert first_attempt(5) < third < first_attempt(6)


def test_a_value_that_failed_once_and_fails_again_for_the_next_daemon_is_counted_once(node: Restarted) -> None:
    # One of its two values was read as an error, and is offered; the other one fails now, since an argument is an error.
    error = pack_failure("TaskCancelledError", "it was cancelled")
    offer = m.OfferResults(((ref(0, 1), m.FAILED, error * 3, ()), (ref(1), m.FAILED, error, ())))
    held = m.Hold((ref(0), ref(0, 1), ref(1)))
    node.rejoin((row(0, ref(1), num_returns=2),), (CLIENT, offer), (CLIENT, held))
    assert node.results()[0][0] == m.FAILED
    assert node.scheduler.tables.inline.total == 3 * len(error)


def test_a_failure_that_is_repeated_to_the_next_daemon_is_forgotten_with_its_last_ref(node: Restarted) -> None:
    """It was released as if it were a plain value, and stayed among the failures that are listed."""
    error = pack_failure("TaskCancelledError", "it was cancelled")
    node.rejoin((row(0),), held=(m.OfferResults(((ref(0), m.FAILED, error, ()),)),))
    tables = node.scheduler.tables
    assert tables.failures.keys() == tables.tasks.keys() == {task_id(0)}
    node.turn()
    node.send(CLIENT + DRIVER, m.Release((ref(0),)))
    assert not tables.tasks
    assert not tables.failures


def test_values_sealed_before_and_after_their_writer_registered_are_distinguished(node: Restarted) -> None:
    """Room that a process reports as unused when it registers may have a value a moment later; earlier reports concern other room."""
    before, after = ((ref(900 + number, 2**31), (4096 * number, 100), (), False) for number in (1, 2))
    node.send(b"X" + OWN, m.ArenaFound((), ()))
    node.send(b"X" + OWN, m.ProcessTable(((OLD, 99),)))
    control = control_of(OLD)
    node.send(CLIENT + OLD, m.Register(m.PROTOCOL_VERSION, "worker", 99, 1, JOB, OLD, control, "", ""))
    for message in (m.Put((before,)), m.Hold((before[0],)), m.Ready(), m.Put((after,))):
        node.send(CLIENT + OLD, message)
    node.send(CLIENT + DRIVER, m.Register(m.PROTOCOL_VERSION, "driver", 50, 1, JOB, b"program", b"", "", ""))
    node.send(CLIENT + DRIVER, m.Ready())
    messages = [message for to, message in node.sent if to == b"O" + OWN and type(message) in (m.Sealed, m.RetainOnly)]
    assert [type(message) for message in messages] == [m.Sealed, m.RetainOnly, m.Sealed]
    assert [[row[0] for row in message.rows] for message in messages[::2]] == [[before[0]], [after[0]]]
    assert set(messages[1].object_ids) == {before[0], after[0]}


def test_a_value_without_refs_in_its_writer_is_retained_until_its_place_is_known(node: Restarted) -> None:
    """It may have a view of what it has put: that is pinned by the news of the place, which the daemon before this one had not sent."""
    put = (ref(900, 2**31), (4096, 100), (), False)
    node.rejoin((), (CLIENT, m.Put((put,))))
    messages = [message for to, message in node.sent if to == b"O" + OWN and type(message) in (m.Sealed, m.RetainOnly, m.Locate, m.Free)]
    assert [type(message) for message in messages] == [m.Sealed, m.RetainOnly, m.Locate, m.Free]
    assert put[0] in messages[1].object_ids
    assert messages[2].rows == ((put[0], OLD),)


def test_what_a_value_contains_that_was_found_in_the_arena_lives_as_long_as_the_value(node: Restarted) -> None:
    """Nobody has read it, so no process has refs to what it contains, at any depth."""
    found = ref(0), ref(1), ref(900, 2**31)
    node.found = tuple((each, 4096 * number, 100) for number, each in enumerate(found, 1))
    node.inside = ((found[0], (found[1],)), (found[1], (found[2],)))
    node.rejoin((row(0),))
    assert node.results()[0][0] == m.OK
    assert node.dispatched() == []
    (retained,) = (message for _, message in node.take(m.RetainOnly))
    assert set(retained.object_ids) == set(found)
    assert node.take(m.Free) == []
    node.send(CLIENT + DRIVER, m.Hold((found[1],)))
    node.send(CLIENT + DRIVER, m.Release((found[0],)))
    assert [each for _, message in node.take(m.Free) for each in message.object_ids] == [found[0]]
    node.send(CLIENT + DRIVER, m.Release((found[1],)))
    assert {each for _, message in node.take(m.Free) for each in message.object_ids} == set(found[1:])
    assert not node.scheduler.tables.objects


def test_a_process_that_expects_a_result_when_it_registers_holds_it_only_if_it_reports_that(node: Restarted) -> None:
    """It has handed the ref on and dropped its own. It is ready long before all others are, and its rows are taken in."""
    call = call_value(task_id(77), 0), call_value(task_id(77), 1)
    made = (task_id(60), ACTOR_CLASS, b"", ())
    held = m.Hold((call[1], task_id(60) + bytes(4)))
    node.rejoin(
        (),
        (CLIENT, m.HostedActors(((made, THIRD),))),
        (CLIENT, m.ExpectResults(tuple((each, task_id(60)) for each in call))),
        (CLIENT, held),
    )
    first, second = (node.scheduler.tables.objects.get(each) for each in call)
    assert second is not None
    assert second.holders == OLD
    assert first is None or first.holders is None


def test_a_durable_value_that_no_commit_was_reported_of_is_written_again(node: Restarted) -> None:
    """Its process waits in ``put`` until it is committed: the daemon before this one may have died before it could report that."""
    put = ref(900, 2**31)
    node.rejoin((), (CLIENT, m.Put(((put, b"value", (), True),))), (CLIENT, m.Hold((put,))))
    assert [message.puts for _, message in node.take(m.Write) if message.token][-1:] == [(("object", put, b"value"),)]
    assert node.take(m.PutCommitted) == [(CLIENT + OLD, m.PutCommitted((put,), ""))]
    assert node.scheduler.tables.objects[put].durable


def test_a_durable_value_inside_a_repeated_outcome_is_read_from_the_control_store(node: Restarted) -> None:
    """Its worker has released it, and repeats only that the task has ended."""
    put = ref(900, 2**31)
    ended = m.Completed.of(((task_id(0), THIRD, m.OK, (b"value",)),), ((0, ((put,),), ()),), ())
    node.rejoin((row(0),), (WORKER, m.RunningTasks((), ())), (WORKER, ended))
    node.send(CLIENT + DRIVER, m.Hold((put,)))
    node.send(CLIENT + DRIVER, m.Fetch((put,)))
    assert [message.keys for _, message in node.take(m.Read) if message.table == "object"] == [(put,)]


# --- what workers have of the node --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("why", ["its task has ended", "its job has ended"])
def test_a_worker_has_its_gpus_until_it_is_dead_whatever_it_had_run(why: str) -> None:
    node = Restarted((("GPU", RESOURCE_UNIT),))
    other = (child_prefix(job_id(9), root_task(job_id(9))) + pack_counter(0), FUNCTION, b"", ())
    node.rejoin((), (WORKER, m.RunningTasks(((other, THIRD, True, ""),) if why == "its job has ended" else (), (0,))))
    node.turn()
    assert [each.pid for each in node.effects if isinstance(each, KillProcess)][:1] == [99]
    assert dict(node.scheduler.pool.available())["GPU"] == 0
    node.submit(row(0, demand=(("CPU", RESOURCE_UNIT), ("GPU", RESOURCE_UNIT))))
    node.workers()
    assert node.dispatched() == []
    died(node, OLD, None)
    node.workers()
    assert [number for _, number, _ in node.dispatched()] == [0]


# --- values without rows ------------------------------------------------------------------------------------------------------------


def test_a_value_without_a_row_is_freed_with_its_last_ref(node: Restarted) -> None:
    rows = [row(7), row(8)]
    offered = (CLIENT, m.OfferResults(tuple((each[0] + bytes(4), m.OK, b"value", ()) for each in rows)))
    node.rejoin((), offered, (CLIENT, m.Hold(tuple(each[0] + bytes(4) for each in rows))))
    tables = node.scheduler.tables
    assert set(tables.orphans) == {task_id(7), task_id(8)}
    node.send(CLIENT + OLD, m.Release((rows[0][0] + bytes(4),)))
    assert set(tables.orphans) == {task_id(8)}
    node.submit(rows[1])
    assert node.results() == {8: (m.OK, (b"value",))}
    assert not tables.orphans
