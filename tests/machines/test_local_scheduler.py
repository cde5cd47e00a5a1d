"""The local scheduler alone: what it sends for what it receives, message by message."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

import pytest
from scheduler_alone import DRIVER, FUNCTION, JOB, OWN, Node, died, ref, row, task_id

from zfabric.adapters.task_errors import pack_error
from zfabric.config import Config
from zfabric.machines.common.resources import ResourcePool
from zfabric.machines.common.tables import pack_row, unpack_row
from zfabric.machines.local_scheduler import records, tables, task_queues
from zfabric.machines.local_scheduler.object_places import Stored
from zfabric.machines.local_scheduler.records import DONE, READY
from zfabric.machines.local_scheduler.tables import NOTICES_MAX
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure, unpack_failure
from zfabric.protocol.ids import CLIENT, CONTROL, FIRST_RETURN, WORKER, child_prefix, control_of, job_id, object_id, pack_counter, salt_of
from zfabric.protocol.inside import with_refs
from zfabric.protocol.machine import InvariantViolation
from zfabric.protocol.options import RESOURCE_UNIT


@pytest.fixture
def node() -> Node:
    made = Node()
    made.scheduler.workers.prestart(made.now)
    made.turn()
    made.driver()
    made.workers()
    made.sent.clear()
    return made


def test_a_task_goes_to_a_worker_with_its_function_once_and_its_value_to_the_driver(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0))
    assert [(to, len(message.functions)) for to, message in node.take(m.Functions)] == [(WORKER + worker, 1)]
    assert node.dispatched() == [(worker, 0, 0)]
    node.complete(worker, 0)
    assert node.results() == {0: (m.OK, (b"value",))}
    node.submit(row(1))
    assert node.take(m.Functions) == []
    assert node.dispatched() == [(worker, 1, 0)]


def test_the_same_row_again_is_a_repeat_and_another_under_its_name_is_refused(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0))
    node.submit(row(0))
    assert node.dispatched() == [(worker, 0, 0)]
    node.complete(worker, 0)
    node.results()
    node.submit(row(0))
    assert node.results() == {0: (m.OK, (b"value",))}
    node.submit((task_id(0), FUNCTION, b"other arguments", ()))
    ((status, (failure,)),) = node.results().values()
    assert status == m.FAILED
    assert "different content" in unpack_failure(failure)[1]


def test_a_late_completion_changes_nothing_and_what_it_wrote_is_freed(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0))
    node.complete(worker, 0, 7, m.OK, (4096, 100))
    assert node.results() == {}
    ((_, sealed),) = node.take(m.Sealed)
    ((_, freed),) = node.take(m.Free)
    assert [each[0] for each in sealed.rows] == list(freed.object_ids) != [ref(0)]
    node.complete(worker, 0, 0)
    assert node.results() == {0: (m.OK, (b"value",))}
    node.complete(worker, 0, 0, m.OK, b"again")
    assert node.results() == {}


def test_a_dependent_task_waits_and_gets_the_value_with_its_row(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0), row(1, ref(0)))
    assert node.dispatched() == [(worker, 0, 0)]
    node.sent.clear()
    node.complete(worker, 0)
    ((to, dispatch),) = node.take(m.Dispatch)
    assert (to, dispatch.details) == (WORKER + worker, ((0, 0, (b"value",), ()),))


def test_inline_values_that_are_too_many_for_one_row_are_left_to_be_fetched() -> None:
    node = Node(inline_bytes=100)  # 1,600 bytes for one row, and any number of values up to 1 KiB.
    values = [b"a" * 1500, b"b" * 1500, b"c" * 1000, b"d" * 50]
    node.driver()
    (worker,) = node.workers()
    for number, value in enumerate(values, 1):
        node.submit(row(number))
        node.complete(worker, number, 0, m.OK, value)
    node.sent.clear()
    node.submit(row(9, *(ref(number) for number in range(1, 5))))
    ((_, dispatch),) = node.take(m.Dispatch)
    assert dispatch.details[0][2] == (values[0], None, values[2], values[3])


def test_an_error_passes_to_all_that_depend_on_it_however_long_the_chain(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(*(row(number, *((ref(number - 1),) if number else ())) for number in range(3000)))
    node.complete(worker, 0, 0, m.ERROR, b"the user's error")
    results = node.results()
    assert len(results) == 3000
    assert set(results.values()) == {(m.ERROR, (b"the user's error",))}


def test_a_failure_from_outside_a_chain_does_not_hide_later_ones(node: Node) -> None:
    # The end of a value that is no task's (here: lost by the store) once left the list of what is to end half done.
    (worker,) = node.workers()
    node.send(CLIENT + DRIVER, m.Put(((ref(900, 2**31), (4096, 100), (), False),)))
    node.submit(row(0, ref(900, 2**31)))
    node.sent.clear()
    node.send(b"O" + OWN, m.ObjectsLost(((ref(900, 2**31), "missing"),)))
    assert node.results()[0][0] == m.FAILED
    node.submit(row(1), row(2, ref(1)))
    node.complete(worker, 1, 0, m.ERROR, b"boom")
    assert node.results() == {1: (m.ERROR, (b"boom",)), 2: (m.ERROR, (b"boom",))}


def test_a_value_is_freed_with_its_last_holder_unless_a_row_or_a_value_names_it(node: Node) -> None:
    (worker,) = node.workers()
    tables = node.scheduler.tables
    node.submit(row(0))
    node.complete(worker, 0)
    node.submit(row(1, ref(0)))
    node.send(CLIENT + DRIVER, m.Release((ref(0),)))
    assert tables.find(ref(0)) is not None
    node.complete(worker, 1, 0, m.OK, b"box", extras=((0, ((ref(0),),), ()),))
    assert tables.find(ref(0)) is not None
    node.send(CLIENT + DRIVER, m.Release((ref(1),)))
    assert tables.find(ref(1)) is None
    assert tables.find(ref(0)) is None
    assert (len(tables.tasks), len(tables.objects)) == (0, 0)


def test_refs_inside_an_error_are_retained_while_an_outcome_is_that_error(node: Node) -> None:
    (worker,) = node.workers()
    tables = node.scheduler.tables
    inside = ref(900, 2**31)
    error = with_refs(b"boom", (inside,))
    node.send(WORKER + worker, m.Put(((inside, b"put", (), False),)))
    node.submit(row(1), row(2, ref(1)))
    node.complete(worker, 1, 0, m.ERROR, error)
    node.submit(row(3, ref(2)))
    assert node.results() == dict.fromkeys((1, 2, 3), (m.ERROR, (error,)))
    node.send(WORKER + worker, m.Release((inside,)))
    for number in (1, 2):
        node.send(CLIENT + DRIVER, m.Release((ref(number),)))
        assert tables.find(inside) is not None
    node.send(CLIENT + DRIVER, m.Release((ref(3),)))
    assert (len(tables.tasks), len(tables.objects)) == (0, 0)


def test_a_reader_of_a_value_holds_the_refs_inside(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0), row(1))
    node.complete(worker, 0)
    node.complete(worker, 1, 0, m.OK, b"box", extras=((0, ((ref(0),),), ()),))
    assert node.results()[1] == (m.OK, (None,))
    node.send(CLIENT + DRIVER, m.Fetch((ref(1),)))
    ((_, objects),) = node.take(m.Objects)
    assert objects.rows == ((ref(1), m.OK, b"box", (ref(0),)),)


def test_a_value_that_cannot_be_rebuilt_retains_no_inputs(node: Node) -> None:
    (worker,) = node.workers()
    put = ref(900, 2**31)
    node.submit(row(0))
    node.send(CLIENT + DRIVER, m.Put(((put, b"put", (), False),)))
    node.submit(row(1, ref(0), put))
    node.complete(worker, 0)
    node.complete(worker, 1, 0, m.OK, (4096, 100_000))
    node.send(CLIENT + DRIVER, m.Release((put,)))
    node.send(b"O" + OWN, m.ObjectsLost(((ref(1), "missing"),)))
    assert node.scheduler.tables.tasks[task_id(1)].status == m.FAILED, "nothing makes again what was put"
    node.send(CLIENT + DRIVER, m.Release((ref(0), ref(1))))
    assert node.scheduler.tables.tasks == {}


def test_a_rebuilt_value_is_not_dropped_again(node: Node) -> None:
    """In a small store the task that makes it may itself need the room: it was dropped and made again without end."""
    (worker,) = node.workers()
    node.submit(row(0, deterministic=True))
    node.complete(worker, 0, 0, m.OK, (4096, 100_000))
    ((_, first),) = node.take(m.Sealed)
    node.send(CLIENT + DRIVER, m.Fetch((ref(0),)))
    node.send(b"O" + OWN, m.ObjectsLost(((ref(0), "evicted"),)))
    node.complete(worker, 0, 1, m.OK, (4096, 100_000))
    ((_, second),) = node.take(m.Sealed)
    assert [each.rows[0][4] for each in (first, second)] == [True, False]


@pytest.mark.parametrize("retries", [0, 1])
def test_a_value_whose_task_must_not_run_twice_is_not_dropped(node: Node, retries: int) -> None:
    (worker,) = node.workers()
    node.submit(row(0, deterministic=True, max_retries=retries))
    node.complete(worker, 0, 0, m.OK, (4096, 100_000))
    ((_, sealed),) = node.take(m.Sealed)
    assert sealed.rows[0][4] == bool(retries)


def test_a_value_that_exists_stays_when_the_task_that_makes_others_again_fails(node: Node) -> None:
    """One process had read it; the submitter received the failure for all values, and the value as well."""
    (worker,) = node.workers()
    node.submit(row(0, num_returns=2))
    node.complete(worker, 0, 0, m.OK, (4096, 100_000), (1_048_576, 100_000))
    assert node.results() == {0: (m.OK, (None, None))}
    node.send(CLIENT + DRIVER, m.Fetch((ref(0, 1),)))
    node.send(b"O" + OWN, m.ObjectsLost(((ref(0, 1), "evicted"),)))
    node.complete(worker, 0, 1, m.ERROR, b"error")
    assert node.results() == {0: (m.OK, (None, None))}
    node.send(CLIENT + DRIVER, m.Fetch((ref(0, 1),)))
    ((_, objects),) = node.take(m.Objects)[-1:]
    assert objects.rows == ((ref(0, 1), m.ERROR, b"error", ()),)
    node.submit(row(0, num_returns=2))
    assert node.results() == {0: (m.OK, (None, None))}


def test_a_lost_argument_is_made_again_though_that_is_found_when_its_queue_was_looked_through() -> None:
    """No message follows that would lead to another turn."""
    node = Node(prefetch_tasks=1)
    node.scheduler.workers.prestart(node.now)
    node.turn()
    node.driver()
    (worker,) = node.workers()
    node.submit(row(0, deterministic=True))
    node.complete(worker, 0, 0, m.OK, (4096, 100_000))
    node.submit(row(1))
    node.submit(row(2, ref(0)))
    node.send(b"O" + OWN, m.ObjectsLost(((ref(0), "evicted"),)))
    node.dispatched()
    node.complete(worker, 1)
    while node.scheduler.next_deadline() == 0.0:
        node.turn()
    assert node.dispatched() == [(worker, 0, 1)]
    node.complete(worker, 0, 1)
    assert node.dispatched() == [(worker, 2, 0)]


def test_only_the_task_that_a_dead_worker_ran_is_charged_and_all_run_again(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0))
    node.complete(worker, 0)
    node.submit(*(row(number, max_retries=0) for number in (1, 2, 3)))
    assert [number for _, number, _ in node.dispatched()] == [0, 1, 2, 3]
    died(node, worker, 2)
    ((number, (status, (failure,))),) = [item for item in node.results().items() if item[0] != 0]
    assert (number, status) == (2, m.FAILED)
    kind, text, facts = unpack_failure(failure)
    assert (kind, dict(facts)["signal"]) == ("WorkerCrashedError", 9)
    assert "its last words" in text
    (other,) = node.workers()
    given = node.dispatched()
    node.complete(other, 1, 1)
    given += node.dispatched()
    assert sorted((number, attempt) for _, number, attempt in given) == [(1, 1), (3, 1)]


def test_a_task_that_kills_its_worker_repeatedly_fails_for_good(node: Node) -> None:
    node.submit(row(0, max_retries=-1))
    for attempt in range(5):
        (worker,) = node.workers()
        assert node.dispatched() == [(worker, 0, attempt)]
        died(node, worker, 0)
    ((status, (failure,)),) = node.results().values()
    assert status == m.FAILED
    kind, text, _ = unpack_failure(failure)
    assert kind == "PoisonedTaskError"
    assert text.count("signal 9") == 5


def test_children_of_a_lost_attempt_without_other_holders_are_stopped(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0))
    child = (child_prefix(JOB, task_id(0)) + pack_counter(0), FUNCTION, b"", ())
    node.send(CLIENT + worker, m.Submit((child,)))
    assert child[0] in node.scheduler.tables.tasks
    died(node, worker, 0)
    assert child[0] not in node.scheduler.tables.tasks
    assert node.scheduler.tables.tasks[task_id(0)].attempt == 1


def test_children_with_other_holders_of_a_void_task_are_not_stopped(node: Node) -> None:
    """It had run before, and made a call that waits: what is in the arguments of that is held by its process, and by nothing else."""
    (maker,) = node.workers()
    node.submit(row(0))
    void = (child_prefix(JOB, task_id(0)) + pack_counter(0), FUNCTION, b"", ())
    node.send(CLIENT + maker, m.Submit((void,)))
    node.send(WORKER + maker, m.Blocked(task_id(0), (ref(1),), (), False))
    (caller,) = [worker for worker in node.workers() if worker != maker]
    ((given, _, attempt),) = [each for each in node.dispatched() if each[0] != maker]
    prefix = child_prefix(JOB, void[0], 0, salt_of(attempt))
    needed, spare = ((prefix + pack_counter(number), FUNCTION, b"", ()) for number in range(2))
    node.send(CLIENT + caller, m.Submit((needed, spare)))
    node.send(CLIENT + caller, m.Release((spare[0] + FIRST_RETURN,)))
    node.send(WORKER + maker, m.Unblocked(task_id(0)))
    node.send(WORKER + caller, m.Completed.of(((void[0], attempt, m.RETRY, (b"boom",)),), (), ()))
    tables = node.scheduler.tables
    assert (given, node.dispatched(), tables.tasks[void[0]].state) == (caller, [], READY)
    died(node, maker, 0)
    assert void[0] not in tables.tasks
    assert spare[0] not in tables.tasks
    assert tables.tasks[needed[0]].state != DONE


def test_an_error_is_retained_as_long_as_the_row_that_made_it(node: Node) -> None:
    """Another row names it, and runs again after the last ref to it has gone."""
    (worker,) = node.workers()
    tables = node.scheduler.tables
    node.submit(row(0), row(1, contains=(ref(0),)))
    node.complete(worker, 0, 0, m.ERROR, b"boom")
    node.complete(worker, 1, 0, m.OK, (4096, 100_000))
    node.send(CLIENT + DRIVER, m.Release((ref(0),)))
    assert node.scheduler.references.lineage_bytes >= len(b"boom")
    node.send(b"O" + OWN, m.ObjectsLost(((ref(1), "missing"),)))
    assert node.dispatched()[-1] == (worker, 1, 1)
    node.send(CLIENT + worker, m.Fetch((ref(0),)))
    ((_, objects),) = node.take(m.Objects)
    assert objects.rows == ((ref(0), m.ERROR, b"boom", ()),)
    node.complete(worker, 1, 1)
    node.send(CLIENT + DRIVER, m.Release((ref(1),)))
    assert (tables.tasks, node.scheduler.references.lineage_bytes, tables.counts["inline_bytes"]) == ({}, 0, 0)


def test_a_driver_inherits_tasks_that_a_dead_worker_had_submitted(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0))
    child = (child_prefix(JOB, task_id(0)) + pack_counter(0), FUNCTION, b"", ())
    stopped = (child_prefix(JOB, task_id(0)) + pack_counter(1), FUNCTION, b"", ())
    node.send(CLIENT + worker, m.Submit((child, stopped)))
    node.scheduler.tables.tasks[stopped[0]].facts().stopped = "cancelled"
    node.complete(worker, 0)
    died(node, worker, None)
    ((to, inherit),) = node.take(m.InheritTasks)
    assert to == CLIENT + DRIVER
    assert inherit.rows == (child,)
    assert [each[0] for each in inherit.functions] == [FUNCTION]


def later(node: Node, seconds: float) -> None:
    node.now += seconds
    node.scheduler.tick(node.now)
    node.turn()
    node.scheduler.check_invariants()


def given_up(node: Node) -> bytes:
    """The worker of task 0, which was cancelled and does not stop."""
    (worker,) = node.workers()
    node.submit(row(0))
    node.send(CLIENT + DRIVER, m.Cancel((ref(0),), False, True))
    assert node.results() == {}
    later(node, node.config.interrupt_every)
    assert node.results() == {}
    later(node, node.config.stop_patience)
    assert unpack_failure(node.results()[0][1][0])[0] == "TaskCancelledError"
    return worker


def test_a_task_that_does_not_stop_has_its_outcome_and_holds_its_cpu_until_it_ends(node: Node) -> None:
    worker = given_up(node)
    held = dict(node.scheduler.pool.available()).get("CPU", 0)
    node.submit(row(1))
    assert node.scheduler.tables.workers[worker].inflight.keys() == {task_id(0)}, "nothing is to wait behind it"
    node.send(WORKER + worker, m.Completed.of(((task_id(0), 0, m.OK, ((4096, 100_000),)),)))
    later(node, 0.0)
    assert node.results() == {}, "it has its outcome"
    assert node.scheduler.tables.counts["late_completions"] == 1
    ((_, sealed),) = node.take(m.Sealed)
    ((_, freed),) = node.take(m.Free)
    assert freed.object_ids == (sealed.rows[0][0],), "what it wrote is no value of it"
    assert task_id(0) not in node.scheduler.tables.workers[worker].inflight
    assert dict(node.scheduler.pool.available()).get("CPU", 0) >= held


def test_force_kills_the_worker_of_a_task_that_does_not_stop_and_nothing_fails_twice(node: Node) -> None:
    worker = given_up(node)
    assert not [effect for effect in node.effects if isinstance(effect, e.KillProcess)]
    node.send(CLIENT + DRIVER, m.Cancel((ref(0),), True, True))
    (kill,) = [effect for effect in node.effects if isinstance(effect, e.KillProcess)]
    assert kill.pid == node.pids[worker]
    died(node, worker, None)
    assert node.results() == {}
    node.scheduler.check_invariants()


@pytest.mark.parametrize("given", ["up", "out"])
def test_a_silent_worker_is_killed_only_for_the_task_that_it_runs(node: Node, given: str) -> None:
    """What ended there before may not have been reported, and what is queued there has not begun."""
    (worker,) = node.workers()
    node.submit(row(0))
    node.complete(worker, 0)
    node.submit(row(1), row(2))
    assert node.scheduler.tables.workers[worker].inflight.keys() == {task_id(1), task_id(2)}
    node.send(CLIENT + DRIVER, m.Cancel((ref(2),), given == "out", False))
    later(node, node.config.stop_patience)
    if given == "up":
        assert unpack_failure(node.results()[2][1][0])[0] == "TaskCancelledError"
        node.send(CLIENT + DRIVER, m.Cancel((ref(2),), True, False))
    (kill,) = [effect for effect in node.effects if isinstance(effect, e.KillProcess)]
    assert kill.executing == task_id(2)
    died(node, worker, 2)
    node.workers()
    outcomes = node.results()
    assert 1 not in outcomes
    assert given == "up" or unpack_failure(outcomes[2][1][0])[0] == "TaskCancelledError"
    assert [each[1:] for each in node.dispatched()][-1] == (1, 1)


def test_a_worker_is_killed_after_the_grace_period_also_for_a_task_that_began_later() -> None:
    node = Node(stop_grace_seconds=5.0)
    node.scheduler.workers.prestart(node.now)
    node.turn()
    node.driver()
    worker = given_up(node)
    for _ in range(2):
        later(node, 5.0)
        (kill,) = [effect for effect in node.effects if isinstance(effect, e.KillProcess)]
        assert (kill.pid, kill.executing) == (node.pids[worker], task_id(0))
        node.effects.clear()
    node.send(WORKER + worker, m.Completed.of(((task_id(0), 0, m.OK, (b"value",)),)))
    later(node, 5.0)
    assert not [effect for effect in node.effects if isinstance(effect, e.KillProcess)]


def test_cancel_is_final_for_queued_tasks_and_a_request_for_dispatched_ones(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0), row(1))
    node.send(CLIENT + DRIVER, m.Cancel((ref(0), ref(1)), False, True))
    assert unpack_failure(node.results()[1][1][0])[0] == "TaskCancelledError"
    ((to, interrupt),) = node.take(m.Interrupt)
    assert (to[:1], interrupt) == (CONTROL, m.Interrupt(task_id(0), 0, "cancelled"))
    node.now += node.config.interrupt_every
    node.scheduler.tick(node.now)
    node.turn()
    assert len(node.take(m.Interrupt)) == 1
    node.send(WORKER + worker, m.Completed.of(((task_id(0), 0, m.INTERRUPTED, (b"cancelled",)),)))
    assert unpack_failure(node.results()[0][1][0])[0] == "TaskCancelledError"
    node.now += node.config.interrupt_every
    node.scheduler.tick(node.now)
    node.turn()
    assert node.take(m.Interrupt) == []


@pytest.mark.parametrize("how", ["returned", "taken back", "not sent"])
def test_a_cancelled_task_that_is_taken_back_is_not_dispatched_again(node: Node, how: str) -> None:
    """It was asked to stop where it was not, or not yet: it crossed that on its way."""
    (worker,) = node.workers()
    node.submit(row(0), row(1))
    node.complete(worker, 0)
    large = ref(900, 2**31)
    node.send(CLIENT + DRIVER, m.Put(((large, (4096, 100_000), (), False),)))
    node.submit(row(2), row(3, *((large,) if how == "not sent" else ())))
    node.complete(worker, 1)
    assert node.scheduler.tables.tasks[task_id(3)].worker is not None
    node.send(CLIENT + DRIVER, m.Cancel((ref(3),), True, False))
    node.results()
    if how == "taken back":
        node.send(CONTROL + worker, m.TakenBack((task_id(3),), task_id(2)))
    else:
        node.send(WORKER + worker, m.Blocked(task_id(2), (ref(77),), (task_id(3),) if how == "returned" else (), False))
    ((status, (failure,)),) = node.results().values()
    assert (status, unpack_failure(failure)[0]) == (m.FAILED, "TaskCancelledError")


def test_children_are_searched_once_a_turn_and_only_of_begun_tasks(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever cancels all that it has submitted does so one by one, and each look goes through all tasks."""
    looked: list[set[bytes]] = []
    tables = node.scheduler.tables
    children_of = tables.children_of
    monkeypatch.setattr(tables, "children_of", lambda prefixes: (looked.append(prefixes), children_of(prefixes))[1])
    node.submit(*(row(number) for number in range(50)))
    ((worker, running, _),) = node.dispatched()
    node.send(CLIENT + worker, m.Submit(((child_prefix(JOB, task_id(running)) + pack_counter(0), FUNCTION, b"", ()),)))
    for number in range(1, 50):
        node.send(CLIENT + DRIVER, m.Cancel((ref(number),), False, True))
    assert looked == []
    for _ in range(5):
        node.scheduler.step(node.now, CLIENT + DRIVER, m.Cancel((ref(running),), False, True))
    node.turn()
    assert len(looked) == 2, "its child, and the child's"
    assert len(tables.tasks) == 51
    assert sum(task.state == DONE for task in tables.tasks.values()) == 50
    assert [order.task_id for _, order in node.take(m.Interrupt)][:1] == [task_id(running)]


def test_endless_cancels_take_bounded_memory(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zfabric.machines.local_scheduler.tasks.stopping.CONDEMNED_MAX", 20)
    for number in range(100):
        node.submit(row(number))
        ((worker, _, _),) = node.dispatched()
        node.send(CLIENT + DRIVER, m.Cancel((ref(number),), False, True))
        child = (child_prefix(JOB, task_id(number)) + pack_counter(0), FUNCTION, b"", ())
        node.send(CLIENT + worker, m.Submit((child,)))
        node.complete(worker, number, 0, m.INTERRUPTED)
        assert node.dispatched() == [], "what comes late of the latest is stopped"
    assert len(node.scheduler.stopping.condemned) <= 20


def test_children_in_flight_when_their_parent_was_cancelled_are_cancelled(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0))
    node.send(CLIENT + DRIVER, m.Cancel((ref(0),), False, True))
    child = (child_prefix(JOB, task_id(0)) + pack_counter(0), FUNCTION, b"", ())
    node.send(CLIENT + worker, m.Submit((child,)))
    ((_, results),) = [pair for pair in node.take(m.Results) if pair[0] == CLIENT + worker]
    assert unpack_failure(results.rows[0][2][0])[0] == "TaskCancelledError"


@pytest.mark.parametrize("how", ["cancelled", "its parent is dead"])
def test_a_rebuilt_task_and_its_children_are_not_stopped(how: str) -> None:
    """It had an outcome, which is final; it would get the ends of its children as their values."""
    node = Node(cpus=2)
    node.driver()
    node.workers()
    node.submit(row(0))
    maker, *_ = [worker for worker, _, _ in node.dispatched()]
    again = (child_prefix(JOB, task_id(0)) + pack_counter(0), FUNCTION, b"", ())
    node.send(CLIENT + maker, m.Submit((again,)))
    ((worker, _, attempt),) = node.dispatched()
    node.scheduler.tables.tasks[again[0]].facts().rebuilt = True
    child = (child_prefix(JOB, again[0], 0, salt_of(attempt)) + pack_counter(0), FUNCTION, b"", ())
    node.send(CLIENT + worker, m.Submit((child,)))
    if how == "cancelled":
        node.send(CLIENT + DRIVER, m.Cancel((again[0] + FIRST_RETURN,), False, True))
        node.send(CLIENT + DRIVER, m.Cancel((ref(0),), False, True))
    else:
        died(node, maker, 0)
    assert [node.scheduler.tables.tasks[each[0]].state != DONE for each in (again, child)] == [True, True]
    assert not any(order.task_id in (again[0], child[0]) for _, order in node.take(m.Interrupt))


def test_a_deadline_counts_from_submission(node: Node) -> None:
    node.submit(row(0), row(1, timeout=0.5))
    node.now += 0.51
    node.scheduler.tick(node.now)
    node.turn()
    assert unpack_failure(node.results()[1][1][0])[0] == "TaskTimeoutError"


def test_an_ended_task_has_no_deadline(node: Node) -> None:
    node.submit(row(0, timeout=3600.0))
    ((worker, _, _),) = node.dispatched()
    stopping = node.scheduler.stopping
    assert stopping.next_deadline() == node.now + 3600.0
    node.complete(worker, 0)
    assert stopping.next_deadline() is None


def test_a_blocked_worker_runs_only_what_it_waits_for(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0))
    node.dispatched()
    prefix = child_prefix(JOB, task_id(0))
    children = [(prefix + pack_counter(number), FUNCTION, b"", ()) for number in range(3)]
    node.send(CLIENT + worker, m.Submit(tuple(children)))
    assert node.take(m.Dispatch) == []
    node.send(WORKER + worker, m.Blocked(task_id(0), (children[1][0] + FIRST_RETURN,), (), True))
    ((to, dispatch),) = node.take(m.Dispatch)
    assert (to, bool(dispatch.waits), [each[0] for each in dispatch.rows]) == (WORKER + worker, True, [children[1][0]])


@pytest.mark.parametrize("waits", [True, False], ids=["another waits", "it waits no longer"])
def test_a_task_whose_argument_is_being_located_does_not_run_on_top(node: Node, waits: bool) -> None:
    (worker,) = node.workers()
    node.submit(row(0))
    node.dispatched()
    node.send(CLIENT + DRIVER, m.Put(((ref(900, 2**31), (4096, 100_000), (), False),)))
    node.submit(row(1, ref(900, 2**31)))
    node.send(WORKER + worker, m.Blocked(task_id(0), (ref(1),), (), True))
    assert node.take(m.Locate)[-1][1].rows == ((ref(900, 2**31), worker),), "the argument of the one that it waits for"
    if waits:
        node.send(WORKER + worker, m.Blocked(task_id(0), (ref(5),), (), False))
    else:
        node.send(WORKER + worker, m.Unblocked(task_id(0)))
    assert node.scheduler.tables.tasks[task_id(1)].worker is None
    node.send(b"O" + OWN, m.Located(((ref(900, 2**31), worker, 4096, 100_000),)))
    assert node.dispatched() == []


def test_a_value_that_a_process_requested_before_it_died_is_freed_though_it_is_lost_meanwhile(node: Node) -> None:
    (worker,) = node.workers()
    large = ref(900, 2**31)
    node.send(CLIENT + DRIVER, m.Put(((large, (4096, 100_000), (), False),)))
    node.send(CLIENT + worker, m.Hold((large,)))
    node.send(CLIENT + worker, m.Fetch((large,)))
    assert node.take(m.Locate)[-1][1].rows == ((large, worker),)
    node.send(b"X" + OWN, m.ProcessDied(node.scheduler.tables.workers[worker].pid, 0, 9, 0, ""))
    assert not node.scheduler.tables.store.waiting
    node.send(b"O" + OWN, m.ObjectsLost(((large, "unreadable"),)))
    node.send(CLIENT + DRIVER, m.Release((large,)))
    assert node.scheduler.tables.find(large) is None


def test_an_argument_pinned_for_a_task_that_is_not_dispatched_is_unpinned(node: Node) -> None:
    (worker,) = node.workers()
    here, lost = ref(900, 2**31), ref(901, 2**31)
    node.send(CLIENT + DRIVER, m.Put(((here, (4096, 100_000), (), False), (lost, (200_000, 100_000), (), False))))
    node.submit(row(1, here, lost))
    node.send(b"O" + OWN, m.Located(((here, worker, 4096, 100_000),)))
    assert node.take(m.Objects) == node.dispatched() == []
    node.send(b"O" + OWN, m.ObjectsLost(((lost, "unreadable"),)))
    assert [pair for pair in node.take(m.Objects) if pair[0] == CLIENT + worker] == [
        (CLIENT + worker, m.Objects(((here, m.OK, (4096, 100_000), ()),)))
    ]


def test_a_worker_blocked_with_a_timeout_lends_its_cpu_and_takes_it_back(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0), row(1))
    node.send(WORKER + worker, m.Blocked(task_id(0), (ref(1),), (), False))
    assert dict(node.scheduler.pool.available())["CPU"] == RESOURCE_UNIT
    other = next(token for token in node.workers() if token != worker)
    assert (other, 1, 0) in node.dispatched()
    node.send(WORKER + worker, m.Unblocked(task_id(0)))
    assert dict(node.scheduler.pool.available())["CPU"] == -RESOURCE_UNIT


@pytest.mark.parametrize("end", ["dies", "its job ends"])
@pytest.mark.parametrize("lent_to_another", [False, True])
def test_a_worker_that_ends_while_its_cpu_is_lent_returns_it_once(end: str, lent_to_another: bool) -> None:
    demand = (("CPU", RESOURCE_UNIT), ("GPU", RESOURCE_UNIT), ("disk", 5))
    node = Node(others=demand[1:])
    node.scheduler.workers.prestart(node.now)
    node.turn()
    node.driver()
    (worker,) = node.workers()
    pool = node.scheduler.pool
    node.submit(row(0, demand=demand, max_retries=0))
    assert set(dict(pool.available()).values()) == {0}
    node.send(WORKER + worker, m.Blocked(task_id(0), (ref(1),), (), False))
    assert dict(pool.available()) == {"CPU": RESOURCE_UNIT, "GPU": 0, "disk": 0}
    if lent_to_another:
        node.submit(row(1))
        other = next(token for token in node.workers() if token != worker)
        assert dict(pool.available())["CPU"] == 0
    if end == "dies":
        died(node, worker, 0)
        assert dict(pool.available()) == {"CPU": 0 if lent_to_another else RESOURCE_UNIT, "GPU": RESOURCE_UNIT, "disk": 5}
        if lent_to_another:
            node.complete(other, 1)
    else:
        node.send(CLIENT + DRIVER, m.Goodbye())
        assert dict(pool.available())["GPU"] == 0, "it may have their memory until it is dead"
        for token in list(node.pids):
            died(node, token, None)
    assert dict(pool.available()) == dict(demand)
    if end == "dies":
        # The GPU itself, too, is another's now.
        node.submit(row(2, demand=demand))
        node.workers()
        ((_, dispatch),) = node.take(m.Dispatch)[-1:]
        assert (dispatch.rows[0][0], dispatch.details[0][3]) == (task_id(2), (0,))


GPU = (("CPU", RESOURCE_UNIT), ("GPU", RESOURCE_UNIT))


def with_gpus(cpus: int = 2, gpus: int = 2, **config: Any) -> Node:
    node = Node(cpus, (("GPU", gpus * RESOURCE_UNIT),), **config)
    node.scheduler.workers.prestart(node.now)
    node.turn()
    node.driver()
    node.workers()
    return node


def gpus_given(node: Node) -> dict[int, tuple[bytes, tuple[int, ...]]]:
    """(worker, GPUs) of what was given out, by the number of the task."""
    return {
        int.from_bytes(message.rows[index][0][-4:], "big"): (to[1:], gpus)
        for to, message in node.take(m.Dispatch)
        for index, _, _, gpus in message.details
    }


def test_a_process_that_had_gpus_ends_and_they_are_free_when_it_is_dead() -> None:
    node = with_gpus()
    node.submit(row(0, demand=GPU))
    ((worker, gpus),) = gpus_given(node).values()
    node.complete(worker, 0)
    assert [effect.pid for effect in node.effects if isinstance(effect, e.KillProcess)] == [node.pids[worker]]
    assert dict(node.scheduler.pool.available())["GPU"] == RESOURCE_UNIT, "its libraries may still have memory there"
    node.submit(row(1, demand=GPU), row(2, demand=(("CPU", 5), ("GPU", RESOURCE_UNIT))))
    ((other, others),) = gpus_given(node).values()
    assert other != worker
    assert set(others).isdisjoint(gpus)
    died(node, worker, None)
    node.workers()
    assert gpus_given(node) == {2: (next(token for token in node.pids if token != other), gpus)}


def test_tasks_with_gpus_begin_in_a_fresh_process() -> None:
    node = with_gpus(workers_max=2)
    used = set()
    node.submit(row(0), row(1))
    for worker, number, _ in node.dispatched():
        used.add(worker)
        node.complete(worker, number)
    node.submit(row(2), row(3))
    for worker, number, _ in node.dispatched():
        used.add(worker)
        node.complete(worker, number)
    assert used == set(node.pids)
    node.submit(row(4, demand=GPU))
    assert gpus_given(node) == {}
    (ended,) = {effect.pid for effect in node.effects if isinstance(effect, e.KillProcess)}
    died(node, next(token for token, pid in node.pids.items() if pid == ended), None)
    node.workers()
    ((worker, _),) = gpus_given(node).values()
    assert worker not in used


def test_a_process_with_gpus_runs_the_next_task_that_demands_them() -> None:
    node = with_gpus(cpus=1, gpus=1)
    node.submit(*(row(number, demand=GPU) for number in range(3)))
    seen = {}
    while given := gpus_given(node):
        assert not any(isinstance(effect, e.KillProcess) for effect in node.effects)
        seen.update(given)
        for number, (worker, _) in given.items():
            node.complete(worker, number)
    assert len(seen) == 3
    assert len(set(seen.values())) == 1
    assert any(isinstance(effect, e.KillProcess) for effect in node.effects)


def test_a_process_with_gpus_ends_while_others_wait_for_its_resources() -> None:
    node = with_gpus(cpus=1, gpus=1)
    node.submit(row(0, demand=GPU), row(1), row(2, demand=GPU))
    ((worker, _),) = gpus_given(node).values()
    node.complete(worker, 0)
    died(node, worker, None)
    node.workers()
    (first, *_) = (number for _, number, _ in node.dispatched())
    assert first == 1


def test_a_task_of_unknown_duration_is_dispatched_alone(node: Node) -> None:
    # In front of others, behind others in one batch, and behind what is in flight: nothing waits behind it, or before it.
    unknown = b"g" * 16
    node.send(CLIENT + DRIVER, m.Export(((unknown, "unknown", b"", ()),)))
    (worker,) = node.workers()
    node.submit(row(0))
    node.complete(worker, 0)  # so it is known how long the others take
    node.dispatched()
    node.submit(row(1), row(2), (task_id(3), unknown, b"", ()), row(4), row(5))
    assert node.dispatched() == [(worker, 1, 0), (worker, 2, 0)]
    node.complete(worker, 1)
    assert node.dispatched() == []
    node.complete(worker, 2)
    assert node.dispatched() == [(worker, 3, 0)]
    node.send(WORKER + worker, m.Completed.of(((task_id(3), 0, m.OK, (b"value",)),), (), ((unknown, 1, 0.0001),)))
    assert node.dispatched() == [(worker, 4, 0), (worker, 5, 0)]
    node.submit((task_id(6), unknown, b"", ()))
    node.complete(worker, 4)
    node.complete(worker, 5)
    assert (worker, 6, 0) in node.dispatched()


def test_a_ready_task_that_may_not_run_on_top_gets_another_worker(node: Node) -> None:
    # Waiting workers that can run what they wait for are not replaced; one that waits for a function that is never inline is.
    node.send(CLIENT + DRIVER, m.Export(((b"g" * 16, "apart", b"", (("inline", False),)),)))
    (worker,) = node.workers()
    node.submit(row(0))
    node.submit((task_id(1), b"g" * 16, b"", ()))
    before = set(node.pids)
    node.send(WORKER + worker, m.Blocked(task_id(0), (ref(1),), (), True))
    node.send(WORKER + worker, m.TakenBack((), task_id(0)))
    assert set(node.pids) - before


def test_tasks_behind_a_long_one_are_taken_back_and_dispatched_elsewhere() -> None:
    node = Node(cpus=2)
    node.scheduler.workers.prestart(node.now)
    node.turn()
    node.driver()
    first, second = node.workers()
    node.submit(row(0), row(1))
    for worker, number, _ in node.dispatched():
        node.complete(worker, number)
    node.submit(*(row(number) for number in range(2, 8)))
    given = node.dispatched()
    slow = given[0][0]
    quick = second if slow == first else first
    for _ in range(6):
        for worker, number, _ in given:
            if worker == quick:
                node.complete(worker, number)
        given = [each for each in given if each[0] != quick] + node.dispatched()
    assert len([worker for worker, _, _ in given if worker == slow]) > 1
    node.now += 1.0
    node.scheduler.tick(node.now)
    node.turn()
    ((to, take_back),) = node.take(m.TakeBack)
    assert to[:1] == CONTROL
    assert node.dispatched() == []  # nothing is presumed
    rest = take_back.task_ids[1:]
    node.send(WORKER + slow, m.TakenBack(rest, take_back.task_ids[0]))
    moved = node.dispatched()
    assert {worker for worker, _, _ in moved} == {quick}
    assert {number for _, number, _ in moved} <= {int.from_bytes(each[-4:], "big") for each in rest}


def takes(node: Node, worker: bytes, number: int, seconds: float) -> None:
    node.send(WORKER + worker, m.Completed.of(((task_id(number), 0, m.OK, (b"value",)),), (), ((FUNCTION, 1, seconds),)))


def two_workers(seconds: float) -> tuple[Node, bytes, bytes]:
    """Two idle workers, and tasks that are expected to take so long."""
    node = Node(cpus=2)
    node.scheduler.workers.prestart(node.now)
    node.turn()
    node.driver()
    node.workers()
    node.submit(row(0), row(1))
    for worker, number, _ in node.dispatched():
        takes(node, worker, number, seconds)
    return (node, *node.workers())


@pytest.mark.parametrize(("seconds", "ready", "ahead"), [(0.02, 5, 2), (0.02, 4, 2), (0.02, 3, 0), (0.6, 5, 0)])
def test_each_worker_has_one_task_ahead_if_there_are_enough_and_none_is_too_long(seconds: float, ready: int, ahead: int) -> None:
    node, *_ = two_workers(seconds)
    node.submit(*(row(number) for number in range(2, 2 + ready)))
    assert sorted(Counter(worker for worker, _, _ in node.dispatched()).values()) == [1 + ahead // 2] * 2


def test_what_can_never_run_here_takes_no_worker_from_others() -> None:
    """It waits for a node that has what it asks for: leases are topped up, tasks sent ahead, as without it."""
    node, first, second = two_workers(0.001)
    node.submit(row(1000, demand=(("GPU", RESOURCE_UNIT),)))
    node.submit(*(row(number) for number in range(2, 500)))
    given = node.dispatched()
    mine = [number for worker, number, _ in given if worker == first]
    for number in mine[:-1]:
        takes(node, first, number, 0.001)
    assert {worker for worker, _, _ in node.dispatched()} == {first}, "it has one task left, and more before that has ended"
    node, first, second = two_workers(0.02)
    node.submit(row(1000, demand=(("GPU", RESOURCE_UNIT),)))
    node.submit(*(row(number) for number in range(2, 6)))
    assert Counter(worker for worker, _, _ in node.dispatched()) == {first: 2, second: 2}
    takes(node, first, 2, 0.02)
    assert node.take(m.TakeBack) == []
    node.send(CLIENT + DRIVER, m.Cancel((ref(1000),), False, False))
    later(node, 1.0)
    assert not any(queue.tasks for queue in node.scheduler.tables.queues.values())


def test_a_task_that_was_sent_ahead_is_taken_back_for_an_idle_worker_at_once_and_once() -> None:
    node, first, second = two_workers(0.02)
    node.submit(*(row(number) for number in range(2, 6)))
    given = node.dispatched()
    mine = [number for worker, number, _ in given if worker == first]
    theirs = [number for worker, number, _ in given if worker == second]
    takes(node, first, mine[0], 0.02)
    assert node.take(m.TakeBack) == [], "it has begun the next one"
    takes(node, first, mine[1], 0.02)
    ((to, message),) = node.take(m.TakeBack)
    assert (to, message.task_ids) == (CONTROL + control_of(second), tuple(map(task_id, theirs)))
    assert node.dispatched() == [], "nothing is presumed"
    node.turn()
    node.send(CONTROL + second, m.TakenBack((task_id(theirs[1]),), task_id(theirs[0])))
    assert node.dispatched() == [(first, theirs[1], 0)]
    takes(node, first, theirs[1], 0.02)
    assert node.take(m.TakeBack) == []


def test_a_task_that_has_begun_is_asked_for_once() -> None:
    node, first, second = two_workers(0.02)
    node.submit(*(row(number) for number in range(2, 6)))
    given = node.dispatched()
    for worker, number, _ in given:
        if worker == first:
            takes(node, first, number, 0.02)
    assert len(node.take(m.TakeBack)) == 1
    node.send(CONTROL + second, m.TakenBack((), task_id(2)))
    node.turn()
    assert node.take(m.TakeBack) == []


@pytest.mark.parametrize("who", ["another shape", "a blocked task"])
def test_tasks_that_were_sent_ahead_are_taken_back_if_others_need_their_workers(who: str) -> None:
    node, first, second = two_workers(0.02)
    node.submit(*(row(number) for number in range(2, 8)))
    given = node.dispatched()
    behind = {worker: [number for to, number, _ in given if to == worker] for worker in (first, second)}
    if who == "another shape":
        node.submit(row(8, demand=(("CPU", 2 * RESOURCE_UNIT),)))
        asked = {first, second}
    else:
        running, waiting = behind[first]
        node.send(WORKER + first, m.Blocked(task_id(running), (ref(behind[second][1]),), (task_id(waiting),), True))
        asked = {second}
    assert {to for to, _ in node.take(m.TakeBack)} == {CONTROL + control_of(worker) for worker in asked}
    node.dispatched()
    for worker in asked:
        running, waiting = behind[worker]
        node.send(CONTROL + worker, m.TakenBack((task_id(waiting),), task_id(running)))
    again = node.dispatched()
    if who == "another shape":
        assert again == [], "it would be behind another one again"
    else:
        assert again == [(first, behind[second][1], 0)], "it runs on top of the one that waits for it"


def test_an_infeasible_demand_is_warned_of_once_and_only_while_it_waits(node: Node) -> None:
    def later() -> list[tuple[bytes, Any]]:
        node.now = node.scheduler.next_deadline() or node.now
        node.scheduler.tick(node.now)
        node.turn()
        return node.take(m.Notice)

    demand = (("CPU", 9 * RESOURCE_UNIT),)
    node.submit(row(0, demand=demand))
    # It is cancelled in the turn in which its warning is due: there is none, and the next such task still gets one.
    node.now += node.config.infeasible_warning
    node.scheduler.step(node.now, CLIENT + DRIVER, m.Cancel((ref(0),), False, True))
    node.scheduler.tick(node.now)
    node.turn()
    assert node.take(m.Notice) == []
    submitted = node.now
    node.submit(row(1, demand=demand))
    ((at, (to, notice)),) = [(node.now, found) for _ in range(5) for found in later()]
    assert at - submitted < 1.0  # a driver that computes may take another second to look
    assert to == CLIENT + DRIVER
    assert "f asks for" in notice.text
    node.submit(row(2, demand=demand))
    node.now += 60.0
    node.scheduler.tick(node.now)
    node.turn()
    assert node.take(m.Notice) == []


def test_the_end_of_a_job_leaves_nothing_and_refuses_the_rest(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0), row(1, ref(0)), row(2, num_returns=2))
    node.send(CLIENT + DRIVER, m.Put(((ref(900, 2**31), b"value", (), False),)))
    node.sent.clear()
    node.send(CLIENT + DRIVER, m.Goodbye())
    assert [to for to, _ in node.take(m.Farewell)] == [CLIENT + DRIVER]
    tables = node.scheduler.tables
    assert (len(tables.tasks), len(tables.objects), len(tables.queues), len(tables.jobs)) == (0, 0, 0, 0)
    assert any(isinstance(effect, e.KillProcess) for effect in node.effects)
    node.send(CLIENT + worker, m.Export(((b"h" * 16, "late", b"", ()),)))
    assert node.take(m.Write)[-1][1].puts[-1][0] == "job"


def test_reports_of_processes_of_an_ended_job_are_not_retained(node: Node) -> None:
    """Such as the promised result of a call: nobody would ever release it."""
    (worker,) = node.workers()
    node.submit(row(0))
    node.send(CLIENT + DRIVER, m.Goodbye())
    node.send(CLIENT + worker, m.OfferResults(((ref(900, 2**30), m.OK, b"value", ()),)))
    assert node.scheduler.tables.objects == {}


def test_the_count_of_inline_bytes_matches_the_records() -> None:
    inline = tables.Tables(b"", b"", None, b"", b"", Config(), 0, False, ResourcePool(())).inline
    record = records.ObjectRecord(ref(0), None, None)
    for value in (b"four", b"another", Stored(10**9), None, b"", b"one", None):
        record.lose(inline) if value is None else record.arrive(value, inline)
        assert record.value is value
        assert inline.total == (len(value) if isinstance(value, bytes) else 0)


def test_a_control_store_that_cannot_write_refuses_jobs_and_durable_values_and_nothing_else() -> None:
    node = Node()
    node.full = "the disk is full"
    node.driver()
    ((to, refused),) = node.take(m.Refused)
    assert (to, refused.kind) == (CLIENT + DRIVER, "OutOfDiskError")
    assert "the disk is full" in refused.text
    node = Node()
    node.scheduler.workers.prestart(node.now)
    node.driver()
    (worker,) = node.workers()
    node.full = "the disk is full"
    durable = ref(900, 2**31)
    node.send(CLIENT + DRIVER, m.Put(((durable, b"value", (), True),)))
    assert node.take(m.PutCommitted) == [(CLIENT + DRIVER, m.PutCommitted((durable,), "the disk is full"))]
    node.submit(row(0))
    node.complete(worker, 0)
    assert node.results() == {0: (m.OK, (b"value",))}


def test_the_end_of_a_job_that_could_not_be_written_is_written_later_and_the_driver_does_not_wait_for_it(node: Node) -> None:
    def ends() -> list[Any]:
        return [each for _, each in node.take(m.Write) if each.puts and each.puts[-1][0] == "job"]

    node.full = "the disk is full"
    node.send(CLIENT + DRIVER, m.Goodbye())
    assert [to for to, _ in node.take(m.Farewell)] == [CLIENT + DRIVER]
    (first,) = ends()
    for full in ("the disk is full", ""):
        node.full = full
        assert node.scheduler.next_deadline() is not None
        node.now += node.config.store_retry_every
        node.scheduler.tick(node.now)
        node.turn()
        (again,) = ends()
        assert (again.puts, again.deletes) == (first.puts[-1:], first.deletes)
    node.now += 60.0
    node.scheduler.tick(node.now)
    node.turn()
    assert ends() == node.take(m.Farewell) == []


def test_jobs_of_a_former_node_are_cleared_page_by_page_and_marked_as_ended_last() -> None:
    """But what they had put as durable stays as long as the rows of jobs do."""
    old, over = job_id(1007), job_id(1006)
    store: dict[str, dict[bytes, bytes]] = {
        "job": {old: pack_row({"status": "running", "number": 1007}), over: pack_row({"status": "ended", "number": 1006})},
        "task": {old + bytes((number,)): b"row" for number in range(5)},
        "function": {},
        "object": {old + b"o": b"value", over + b"o": b"not this one's", job_id(6) + b"o": b"too old", job_id(7) + b"o": b"not yet"},
        "log": {old + b"l": b"block"},
        "checkpoint": {old + b"c": b"part"},
        "group": {each + b"g": b"reserved" for each in (old, over)},
    }
    node = Node()
    node.scheduler.former_jobs.ask()
    node.turn()
    written = []
    asked = node.take(m.Scan)
    while asked:
        (_, scan), *asked = asked
        found = sorted(row for row in store[scan.table].items() if row[0].startswith(scan.prefix) and row[0] > scan.after)
        node.send(b"S" + OWN, m.Found(scan.token, tuple(found[:2]), len(found) > 2))
        for _, write in node.take(m.Write):
            written += [(table, key) for table, key, _ in write.puts]
            store["job"].update({key: value for table, key, value in write.puts if table == "job"})
            for table, key in write.deletes:
                del store[table][key]
        asked += node.take(m.Scan)
    assert written[-1] == ("job", old)
    assert [written.count(each) for each in (("job", old), ("job", over))] == [1, 0]
    assert unpack_row(store["job"][old]) == {"status": "ended", "number": 1007}
    assert (store["task"], len(store["object"])) == ({}, 4)
    assert [message for _, message in node.take(m.DeleteRows)] == [m.DeleteRows(0, "object", bytes(4), job_id(7))]
    assert (store["log"], store["checkpoint"], store["group"]) == ({}, {}, {})


def test_messages_of_an_unknown_process_are_ignored(node: Node) -> None:
    node.submit(row(0))
    ghost = b"\x03ghosts0"
    node.send(CLIENT + ghost, m.Hold((ref(0),)))
    node.send(CLIENT + ghost, m.OfferResults(((ref(5), m.OK, b"value", ()),)))
    node.send(WORKER + ghost, m.Completed.of(((task_id(0), 0, m.OK, (b"value",)),)))
    record = node.scheduler.tables.find(ref(0))
    assert record is not None
    assert (record.holders, record.status) == (DRIVER, -1)
    assert node.scheduler.tables.find(ref(5)) is None


def test_a_parent_that_runs_again_elsewhere_does_not_leave_its_first_process_waiting(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0))
    node.send(CLIENT + worker, m.Submit((row(0),)))
    node.sent.clear()
    node.complete(worker, 0)
    assert {to for to, _ in node.take(m.Results)} == {CLIENT + DRIVER, CLIENT + worker}


def test_an_async_task_does_not_run_on_top_of_a_blocked_task_which_is_replaced(node: Node) -> None:
    """It would be in the wrong thread; and while it runs, what it waits for may need another worker still."""
    loop = b"l" * 16
    node.send(CLIENT + DRIVER, m.Export(((loop, "l", b"payload", (("demand", ()), ("max_concurrency", 1000))),)))
    for depth in range(1, 10):
        node.submit(row(depth))
        node.workers()
        ((waits, _, _),) = node.dispatched()
        node.submit((task_id(100 + depth), loop, b"arguments", ()))
        node.send(WORKER + waits, m.Blocked(task_id(depth), (ref(100 + depth),), (), True))
        node.workers()
        ((runs, number, _),) = node.dispatched()
        assert (runs != waits, number) == (True, 100 + depth)


def test_a_worker_that_waits_for_a_task_with_waiting_threads_is_replaced(node: Node) -> None:
    """What it waits for besides may need another worker: only the waits of one of its threads are reported."""
    node.submit(row(0))
    ((threads, _, _),) = node.dispatched()
    node.send(WORKER + threads, m.Blocked(task_id(0), (ref(100),), (), False))
    for number in range(1, 10):
        node.submit(row(number))
        node.workers()
        ((waits, _, _),) = node.dispatched()
        node.send(WORKER + waits, m.Blocked(task_id(number), (ref(0),), (), True))


@pytest.mark.parametrize("most", [0, 32])
def test_a_ready_task_at_the_end_of_a_long_chain_is_found(most: int) -> None:
    """Once all workers are blocked, nobody else would run it."""
    node = Node(workers_blocked_max=most)
    node.scheduler.workers.prestart(node.now)
    node.turn()
    node.driver()
    node.workers()
    node.submit(*map(row, range(60)))
    found: list[int] = []
    hurried = False
    for _ in range(100):
        for worker, number, _ in node.dispatched():
            if number >= 1000:
                found.append(number)
                continue
            first = 1000 * (number + 1)
            chain = [row(first), *(row(each, ref(each - 1)) for each in range(first + 1, first + 600))]
            node.submit(*chain)
            node.send(WORKER + worker, m.Blocked(task_id(number), (chain[-1][0] + FIRST_RETURN,), (), True))
        node.workers()
        hurried |= node.scheduler.next_deadline() == 0.0
        node.turn()
    assert found
    assert hurried or most, "nothing else will happen"


def test_a_lost_value_at_the_end_of_a_long_chain_is_rebuilt(node: Node) -> None:
    (worker,) = node.workers()
    last = sys.getrecursionlimit() + 50
    for number in range(last + 1):
        node.submit(row(number, ref(number - 1)) if number else row(0))
        node.complete(worker, number, 0, m.OK, (4096, 100_000) if number == last else b"value")
        if number:
            node.send(CLIENT + DRIVER, m.Release((ref(number - 1),)))
    node.dispatched()
    node.results()
    node.send(b"O" + OWN, m.ObjectsLost(((ref(last), "its file is gone"),)))
    for number in range(last + 1):
        assert node.dispatched() == [(worker, number, 1)]
        node.complete(worker, number, 1, m.OK, b"value")
    assert node.results()[last] == (m.OK, (b"value",))


def test_a_lost_value_that_is_made_of_itself_fails(node: Node) -> None:
    """Rows of other nodes may say so. It was looked for without end."""
    node.workers()
    chain(node, 0)
    first, last = (node.scheduler.tables.tasks[task_id(number)] for number in range(2))
    first.row = (*first.row[:3], (ref(1),), *first.row[4:])
    first.value, last.value = None, None
    assert "needs a value that is made of it" in node.scheduler.rebuilding.rebuild(last, "it is lost")


# --- what is remembered of what has gone --------------------------------------------------------------------------------------------


def chain(node: Node, number: int) -> None:
    """A task, and another that takes its value; the first value is released, and its row is retained for the second."""
    for each in (row(number), row(number + 1, ref(number))):
        node.submit(each)
        for worker, task, attempt in node.dispatched():
            node.complete(worker, task, attempt)
    node.send(CLIENT + DRIVER, m.Release((ref(number),)))


def test_rows_retained_for_other_rows_leave_nothing_behind(node: Node) -> None:
    for number in range(0, 20, 2):
        chain(node, number)
        assert node.scheduler.references.lineage_bytes > 0
        node.send(CLIENT + DRIVER, m.Release((ref(number + 1),)))
    assert node.scheduler.tables.tasks == {}
    assert node.scheduler.references.lineage_bytes == 0
    assert not node.scheduler.references._lineage


@pytest.mark.parametrize("dropped", ["before", "with it"])
def test_the_end_of_a_job_leaves_nothing_that_counts_against_a_limit(node: Node, dropped: str) -> None:
    chain(node, 0)
    chain(node, 2)
    node.send(CLIENT + DRIVER, m.Put(((object_id(task_id(9), 2**31), b"a value", (), False),)))
    streams = b"s" * 16
    node.send(CLIENT + DRIVER, m.Export(((streams, "s", b"payload", (("stream", 2),)),)))
    node.submit((task_id(5), streams, b"arguments", ()))
    if dropped == "with it":
        node.scheduler.step(node.now, CLIENT + DRIVER, m.Release((ref(3), ref(1))))
    node.send(CLIENT + DRIVER, m.Goodbye())
    node.turn()
    assert node.scheduler.references.lineage_bytes == 0
    assert not node.scheduler.references._lineage
    assert node.scheduler.tables.inline.total == 0
    assert not node.scheduler.tables.streams


def test_stopped_tasks_do_not_accumulate_behind_an_endless_one(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "STOPPED_MOST", 20)
    demand = (("unicorn", 1),)
    node.submit(row(0, demand=demand))
    for first in range(1, 200, 10):
        node.submit(*(row(number, demand=demand) for number in range(first, first + 10)))
        node.send(CLIENT + DRIVER, m.Cancel(tuple(map(ref, range(first, first + 10))), False, False))
        node.send(CLIENT + DRIVER, m.Release(tuple(map(ref, range(first, first + 10)))))
    (queue,) = [queue for queue in node.scheduler.tables.queues.values() if queue.demand == demand]
    assert len(queue.tasks) < 50
    assert [task.id for task in queue.tasks if task.state != DONE] == [task_id(0)]


def test_tasks_of_many_shapes_leave_no_queues_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "QUEUES_MOST", 20)
    monkeypatch.setattr(task_queues, "QUEUES_MOST", 20)
    node = Node(others=(("disk", 1000),))
    node.scheduler.workers.prestart(node.now)
    node.turn()
    node.driver()
    (worker,) = node.workers()
    node.submit(row(0), row(1, ref(0), demand=(("disk", 1),)))
    for number in range(2, 100):
        node.submit(row(number, ref(0), demand=(("disk", number),)))
        node.send(CLIENT + DRIVER, m.Cancel((ref(number),), False, False))
    assert len(node.scheduler.tables.queues) < 30
    node.complete(worker, 0)
    node.workers()
    assert [number for _, number, _ in node.dispatched()] == [0, 1], "its queue was let go of meanwhile, and is there again"


# --- listings and notices ---------------------------------------------------------------------------------------------------------


def asked(node: Node, what: str, *arguments: Any) -> Any:
    node.send(CLIENT + DRIVER, m.Query(1, what, arguments))
    ((_, answer),) = node.take(m.Answer)
    assert not answer.error
    return answer.payload


class Uncounted(dict[bytes, Any]):
    """A table that nobody may go through."""

    def values(self) -> Any:
        raise AssertionError("a count of tasks goes through the table of all tasks")

    items = __iter__ = values  # type: ignore[assignment]


def test_tasks_are_counted_without_a_look_at_each(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts of ten million tasks take as long as those of ten."""
    (worker,) = node.workers()
    node.submit(row(0), row(1), row(2, ref(0)), row(3, ref(2)), row(4, ref(1)))
    node.complete(worker, 0, 0)
    node.complete(worker, 1, 0, m.ERROR, pack_error(ValueError("no"), {})[0])
    node.submit(row(5, demand=(("GPU", RESOURCE_UNIT),)), row(1))
    node.send(CLIENT + DRIVER, m.Cancel((ref(3),), False, False))
    monkeypatch.setattr(node.scheduler, "check_invariants", lambda: None)
    monkeypatch.setattr(node.scheduler.tables, "tasks", Uncounted(node.scheduler.tables.tasks))
    (counts,) = asked(node, "functions")
    assert {name: counts[name] for name in ("waiting", "arguments", "running", "finished", "failed")} == {
        "waiting": 1,  # The one that needs a GPU.
        "arguments": 0,
        "running": 1,
        "finished": 1,
        "failed": 3,  # It raised, its dependent failed with it, and one was cancelled.
    }
    node.send(CLIENT + DRIVER, m.Query(1, "status", ()))
    node.send(b"O" + OWN, m.Answer(node.take(m.Query)[0][1].token, {}, ""))
    states = node.take(m.Answer)[0][1].payload["tasks"]
    assert {state: count for state, count in states.items() if count} == {"running": 1, "infeasible": 1, "finished": 1, "failed": 3}


def test_how_long_a_task_runs_is_blocked_or_has_waited(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0))
    node.now += 1.0
    node.submit(row(1), row(2, ref(0)))
    node.now += 2.0
    assert {task["task_id"][-2:]: (task["state"], task["seconds"]) for task in asked(node, "tasks")} == {
        "00": ("running", 3.0),
        "01": ("queued", 3.0),  # Its block of lineage began with the first of them, not yet written.
        "02": ("waiting", 3.0),
    }
    node.now += 1.0
    node.turn()  # The block is written.
    node.submit(row(3))
    node.now += 4.0
    assert [task["seconds"] for task in asked(node, "tasks") if task["task_id"].endswith("03")] == [4.0]
    node.send(WORKER + worker, m.Blocked(task_id(0), (ref(1),), (), True))
    node.now += 5.0
    shown = {task["task_id"][-2:]: (task["state"], task["seconds"]) for task in asked(node, "tasks")}
    assert (shown["00"], shown["01"]) == (("blocked", 5.0), ("running", 5.0))
    assert asked(node, "workers")[0]["seconds"] == 5.0
    _, _, facts = asked(node, "explain", task_id(0))
    assert ("blocked", "for 5.0 s") in facts
    _, _, facts = asked(node, "explain", task_id(3))
    assert ("submitted", "9.0 s ago") in facts
    node.complete(worker, 1)
    assert [task["seconds"] for task in asked(node, "tasks", 10, ("finished",))] == [None]


def test_workers_and_status_agree_on_a_cpu_that_is_lent(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0), row(1))
    node.send(WORKER + worker, m.Blocked(task_id(0), (ref(1),), (), False))
    for held, lent in (([{}, {"CPU": 1.0}], [{"CPU": 1.0}, {}]), ([{"CPU": 1.0}, {"CPU": 1.0}], [{}, {}])):
        node.workers()
        rows = asked(node, "workers")
        assert [each["demand"] for each in rows] == held
        assert [each["lent"] for each in rows] == lent
        taken = sum(each["demand"].get("CPU", 0) for each in rows)
        assert dict(node.scheduler.pool.available())["CPU"] == (1 - taken) * RESOURCE_UNIT
        node.send(WORKER + worker, m.Unblocked(task_id(0)))


def test_explain_names_the_error_of_a_failed_task(node: Node) -> None:
    (worker,) = node.workers()
    node.submit(row(0), row(1), row(2))
    error = pack_error(KeyError("which \x1b[2J one\nof many"), {"function": "f"})[0]
    node.complete(worker, 0, 0, m.ERROR, error)
    node.complete(worker, 1, 0, m.FAILED, pack_failure("ObjectLostError", "it is gone\nfor good"))
    node.complete(worker, 2, 0, m.ERROR, b"no pickle")
    assert [asked(node, "explain", task_id(number))[:2] for number in range(3)] == [
        ("failed", "has finished with an error: KeyError: 'which \\x1b[2J one\\nof many'"),
        ("failed", "has finished with an error: ObjectLostError: it is gone"),
        ("failed", "has finished with an error: an error"),
    ]


def test_a_driver_is_notified_of_retries_with_a_limit(node: Node) -> None:
    node.submit(row(0, max_retries=2, name="train"))
    for _ in range(2):
        (worker,) = node.workers()
        died(node, worker, 0)
    brief = "1-75f6-0"
    assert [message for _, message in node.take(m.Notice)] == [
        m.Notice("warning", f"train ({brief}) runs again, attempt {attempt} of 3: its worker (pid {pid}) died of signal 9")
        for attempt, pid in ((2, 101), (3, 102))
    ]
    for number in range(1, 3 * NOTICES_MAX):
        node.submit(row(number, max_retries=1))
        died(node, next(iter(node.workers())), int(node.dispatched()[-1][1]))
    notices = [message.text for _, message in node.take(m.Notice)]
    assert len(notices) == NOTICES_MAX - 2
    assert ["no further notices" in text for text in notices] == [False] * (NOTICES_MAX - 3) + [True]


def test_a_worker_whose_environment_takes_long_is_not_late_before_it_runs() -> None:
    node = Node(worker_start_seconds=30.0)
    node.driver()
    node.submit(row(1, env=((("A", "1"),), "", ())))
    (token,) = [token for token in node.pids if node.scheduler.tables.workers[token].environment[0]]
    for other in set(node.pids) - {token}:
        del node.pids[other]
        node.send(b"X" + OWN, m.WorkerSpawned(other, 0, "not this one"))
    node.now += 300.0
    node.scheduler.tick(node.now)
    node.turn()
    assert (node.scheduler.next_deadline() or node.now + 1) > node.now, "nothing is due again and again"
    node.send(b"X" + OWN, m.WorkerSpawned(token, 7, ""))
    node.now += 20.0
    node.scheduler.tick(node.now)
    node.turn()
    assert not [effect for effect in node.effects if isinstance(effect, e.KillProcess)]
    node.now += 11.0
    node.scheduler.tick(node.now)
    node.turn()
    assert [effect.pid for effect in node.effects if isinstance(effect, e.KillProcess)] == [7]


def test_work_that_a_turn_has_left_undone_is_found() -> None:
    """The guards in ``LocalScheduler.take_effects`` repeat what parts have to do; the simulator checks them after each turn."""
    node = Node()
    node.driver()
    node.scheduler.check_invariants()
    node.scheduler.references.unneeded_durable.append(ref(1))
    with pytest.raises(InvariantViolation, match="a turn has ended, and there are durable rows to delete"):
        node.scheduler.check_invariants()
    node.turn()
    node.scheduler.check_invariants()
