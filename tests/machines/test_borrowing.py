"""Refs between nodes: a new holder is registered at the home before the lender releases, whichever message comes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ledger_updates import held, holding, released
from nodes_alone import ABOUT, EXPORTED, HOME_A, HOME_C, INNER, OTHER, PUT, SELF, Executor
from scheduler_alone import DRIVER, JOB, OWN, died, ref, row, task_id

from tests.sim.variants import applied
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import CLIENT, CONTROL_STORE, LOCAL_SCHEDULER, MEMBER, OBJECT_STORE, SHELL, TRANSFER_AGENT, first_attempt
from zfabric.protocol.options import RESOURCE_UNIT


@pytest.fixture
def node() -> Executor:
    return Executor()


def test_an_end_waits_until_what_a_worker_holds_is_registered_at_its_home(node: Executor) -> None:
    worker = node.delegated(1, OTHER, homes=((OTHER, HOME_C),))
    assert node.told(HOME_C) == [], "as long as the task runs, its home retains the object"
    node.send(CLIENT + worker, m.Hold((OTHER,)))
    (borrow,) = node.told(HOME_C)
    assert held(borrow) == (OTHER,)
    node.end(worker, 1)
    assert node.told(HOME_A) == [], "the end would have A release what C has not registered yet"
    node.hear(HOME_C, m.LedgerUpdated(borrow.number))
    (ended,) = node.told(HOME_A)
    assert (type(ended), ended.number) == (m.Ended, 1)


def test_what_a_task_only_names_is_not_borrowed(node: Executor) -> None:
    worker = node.delegated(1, OTHER, homes=((OTHER, HOME_C),))
    node.end(worker, 1)
    assert node.told(HOME_C) == []
    assert [type(each) for each in node.told(HOME_A)] == [m.Ended]
    assert node.scheduler.tables.objects == {}


def test_a_hold_at_the_home_that_delegated_needs_no_waiting_on_another_link(node: Executor) -> None:
    worker = node.delegated(1, OTHER)
    node.send(CLIENT + worker, m.Hold((OTHER,)))
    (borrow,) = node.told(HOME_A)
    assert held(borrow) == (OTHER,)
    node.hear(HOME_A, m.LedgerUpdated(borrow.number))
    node.end(worker, 1)
    assert [type(each) for each in node.told(HOME_A)] == [m.Ended]


def test_a_ref_that_is_dropped_is_released_once_its_hold_is_registered(node: Executor) -> None:
    worker = node.delegated(1, OTHER, homes=((OTHER, HOME_C),))
    node.send(CLIENT + worker, m.Hold((OTHER,)))
    (borrow,) = node.told(HOME_C)
    node.end(worker, 1)
    node.send(CLIENT + worker, m.Release((OTHER,)))
    assert node.told(HOME_C) == []
    node.hear(HOME_C, m.LedgerUpdated(borrow.number))
    assert node.told(HOME_C) == [released((OTHER,))]
    assert node.scheduler.tables.objects == {}


def test_a_ref_that_comes_back_before_its_release_has_left_is_not_released(node: Executor) -> None:
    worker = node.delegated(1, OTHER, homes=((OTHER, HOME_C),))
    node.send(CLIENT + worker, m.Hold((OTHER,)))
    (borrow,) = node.told(HOME_C)
    node.end(worker, 1)
    node.send(CLIENT + worker, m.Release((OTHER,)))
    worker = node.delegated(2, OTHER, homes=((OTHER, HOME_C),))
    node.send(CLIENT + worker, m.Hold((OTHER,)))
    node.hear(HOME_C, m.LedgerUpdated(borrow.number))
    assert node.told(HOME_C) == [], "neither a release, which would be of the new hold, nor a second request"
    node.end(worker, 2)
    node.send(CLIENT + worker, m.Release((OTHER,)))
    assert node.told(HOME_C) == [released((OTHER,))]


def test_a_large_value_is_retained_for_its_home_and_refs_to_it_here_do_not_keep_each_other(node: Executor) -> None:
    worker = node.delegated(1)
    value = task_id(1) + bytes(4)
    node.complete(worker, 1, first_attempt(0, 1), m.OK, (4096, 200_000))
    (ended,) = node.told(HOME_A)
    assert m.Completed(*ended.completed).outputs == ((200_000,),)
    other = node.delegated(2, value)
    node.send(CLIENT + other, m.Hold((value,)))
    (borrow,) = node.told(HOME_A)
    assert held(borrow) == (value,)
    node.hear(HOME_A, m.LedgerUpdated(borrow.number), m.EndsReceived(ended.number))
    node.end(other, 2)
    node.send(CLIENT + other, m.Release((value,)))
    assert {type(each) for each in node.told(HOME_A)} == {m.Ended, m.UpdateLedger}
    assert value in node.scheduler.tables.objects, "the home has not released it"
    node.hear(HOME_A, released((value,)))
    assert node.scheduler.tables.objects == {}


def test_what_is_unknown_at_its_home_was_freed(node: Executor) -> None:
    node.hear(HOME_A, m.FetchValues((OTHER,)))
    assert node.told(HOME_A) == [m.FetchedValues(((OTHER, m.OK, (), ()),), ())]
    wanted_of(node, HOME_A)
    node.hear(HOME_A, m.FetchedValues(((OTHER, m.OK, (), ()),), ()))
    assert failures(node) == ["ObjectFreedError"]


def test_an_object_of_this_node_inside_a_value_stays_until_its_receiver_is_registered(node: Executor) -> None:
    worker = node.delegated(1)
    node.send(CLIENT + worker, m.Put(((PUT, b"inner", (), False),)))
    node.end(worker, 1, contained=(PUT,))
    node.send(CLIENT + worker, m.Release((PUT,)))
    (ended,) = node.told(HOME_A)
    assert PUT in node.scheduler.tables.objects
    node.hear(HOME_A, holding(7, (PUT,)), m.EndsReceived(ended.number))
    assert node.told(HOME_A) == [m.LedgerUpdated(7)]
    assert PUT in node.scheduler.tables.objects
    node.hear(HOME_A, released((PUT,)))
    assert PUT not in node.scheduler.tables.objects


def test_a_value_of_another_node_is_fetched_once_for_all_who_wait(node: Executor) -> None:
    worker = node.delegated(1, OTHER, homes=((OTHER, HOME_C),))
    node.send(CLIENT + worker, m.Hold((OTHER,)))
    node.send(CLIENT + worker, m.Fetch((OTHER,)))
    node.send(CLIENT + worker, m.Fetch((OTHER,)))
    assert [type(each) for each in node.told(HOME_C)] == [m.UpdateLedger, m.FetchValues]
    node.take(m.Objects)
    node.hear(HOME_C, m.FetchedValues(((OTHER, m.OK, b"value of C", ()),), ()))
    rows = [each for _, message in node.take(m.Objects) for each in message.rows]
    assert rows == [(OTHER, m.OK, b"value of C", ())]


def test_what_was_inside_a_fetched_value_is_borrowed_before_the_outer_one_is_released(node: Executor) -> None:
    worker = node.delegated(1, OTHER)
    node.send(CLIENT + worker, m.Hold((OTHER,)))
    node.send(CLIENT + worker, m.Fetch((OTHER,)))
    borrow, _ = node.told(HOME_A)
    node.hear(HOME_A, m.LedgerUpdated(borrow.number), m.FetchedValues(((OTHER, m.OK, b"list", (INNER,)),), ((INNER, HOME_C),)))
    (second,) = node.told(HOME_C)
    assert held(second) == (INNER,)
    node.end(worker, 1)
    node.send(CLIENT + worker, m.Hold((INNER,)))
    node.send(CLIENT + worker, m.Release((OTHER,)))
    assert node.told(HOME_A) == [], "A's value is what retains the inner object until C has registered this node"
    node.hear(HOME_C, m.LedgerUpdated(second.number))
    assert {type(each) for each in node.told(HOME_A)} == {m.Ended, m.UpdateLedger}


def test_a_small_value_in_the_arena_is_read_for_another_node(node: Executor) -> None:
    worker = node.delegated(1)
    node.send(CLIENT + worker, m.Put(((PUT, (4096, 100), (), False),)))
    node.hear(HOME_A, holding(1, (PUT,)), m.FetchValues((PUT,)))
    assert m.Locate(((PUT, OWN),)) in [message for to, message in node.sent if to[:1] == OBJECT_STORE]
    node.send(OBJECT_STORE + OWN, m.Located(((PUT, OWN, 4096, 100),)))
    assert type(node.effects[-1]).__name__ == "ReadValue"
    node.send(SHELL + OWN, m.ValueRead(PUT, b"x" * 100, ""))
    assert node.told(HOME_A)[-1] == m.FetchedValues(((PUT, m.OK, b"x" * 100, ()),), ())
    assert m.Unpin((PUT,)) in [message for to, message in node.sent if to[:1] == OBJECT_STORE]


def test_the_home_of_the_job_is_that_of_an_object_whose_home_has_died_and_its_word_is_waited_for(node: Executor) -> None:
    worker = node.delegated(1, OTHER, homes=((OTHER, HOME_C),))
    node.send(CLIENT + worker, m.Hold((OTHER,)))
    node.send(CLIENT + worker, m.Fetch((OTHER,)))
    node.end(worker, 1)
    assert node.told(HOME_A) == []
    living = [(each, number, "", "", "", b"", (), (), 0) for number, each in enumerate((HOME_A, SELF), 1)]
    node.send(MEMBER + OWN, m.NodeTable(2, tuple(living)))
    found, borrow, complete, fetch = node.told(HOME_A)
    assert found == m.Holdings(HOME_C, ((OTHER, -1, b"", ()),), (), (), False)
    assert complete == m.Holdings(HOME_C, (), (), (), True)
    assert fetch == m.FetchValues((OTHER,))
    node.hear(HOME_A, m.LedgerUpdated(borrow.number))
    assert [type(each) for each in node.told(HOME_A)] == [m.Ended]


def test_a_small_value_of_a_dead_home_can_be_copied_to_the_home_of_the_job(node: Executor) -> None:
    worker = node.delegated(1, OTHER, homes=((OTHER, HOME_C),))
    node.send(CLIENT + worker, m.Hold((OTHER,)))
    node.send(CLIENT + worker, m.Fetch((OTHER,)))
    node.hear(HOME_C, m.FetchedValues(((OTHER, m.OK, b"value", ()),), ()))
    rows = tuple(row for row in node.scheduler.tables.cluster.rows.values() if row[0] != HOME_C)
    node.send(MEMBER + OWN, m.NodeTable(2, rows))
    assert m.Holdings(HOME_C, ((OTHER, m.OK, 5, ()),), (), (), False) in node.told(HOME_A)
    assert m.Absorb(((OTHER, b"value", False),)) in [message for to, message in node.sent if to[:1] == OBJECT_STORE], (
        "agents read in the arena alone"
    )
    with_agent(node)
    node.send(CLIENT + AGENT, m.Fetch((OTHER,)))
    assert m.Locate(((OTHER, AGENT),)) in [message for to, message in node.sent if to[:1] == OBJECT_STORE]


def test_an_end_that_a_dead_home_has_not_read_is_for_the_home_of_the_job(node: Executor) -> None:
    # The task is at home on node A, and its job on node C.
    node.hear(HOME_A, m.Delegate((JOB, "", HOME_C), EXPORTED, (row(1),), (), (), (), first_attempt(0, 1)))
    (worker,) = node.workers()
    node.send(CLIENT + worker, m.Put(((PUT, b"put", (), False),)))
    node.end(worker, 1, (PUT,))
    assert any(isinstance(message, m.Ended) for message in node.told(HOME_A))
    node.send(CLIENT + worker, m.Release((PUT,)))
    assert node.scheduler.tables.find(PUT) is not None, "its home has not read the end yet"
    rows = tuple(row for row in node.scheduler.tables.cluster.rows.values() if row[0] != HOME_A)
    node.send(MEMBER + OWN, m.NodeTable(2, rows))
    has, ended, complete = (each for each in node.told(HOME_C) if isinstance(each, m.Holdings | m.Ended))
    assert has == m.Holdings(HOME_A, (), (), ((task_id(1), first_attempt(0, 1)),), False)
    assert {type(ended), type(complete)} == {m.Ended, m.Holdings}
    assert node.scheduler.tables.find(PUT) is not None
    node.hear(HOME_C, m.EndsReceived(1))
    assert node.scheduler.tables.find(PUT) is None


def test_what_a_dead_node_held_is_released_once_all_others_have_taken_over_from_it(node: Executor) -> None:
    """A hold of whom it had lent the ref to may be on its way until then."""
    node.driver()
    value = ref(900, 2**31)
    node.send(CLIENT + DRIVER, m.Put(((value, b"value", (), False),)))
    node.hear(HOME_C, holding(1, (value,)))
    node.send(CLIENT + DRIVER, m.Release((value,)))
    rows = tuple(row for row in node.scheduler.tables.cluster.rows.values() if row[0] != HOME_C)
    node.send(MEMBER + OWN, m.NodeTable(2, rows))
    node.hear(HOME_A, m.Holdings(HOME_C, (), (), (), True))
    assert value in node.scheduler.tables.objects
    node.hear(HOME_A, m.TookOver(HOME_C))
    assert value not in node.scheduler.tables.objects


def test_a_daemon_that_was_started_after_a_death_says_that_it_has_nothing_to_take_over(node: Executor) -> None:
    """Else whoever waits for its report takes over when something else happens, or never."""
    node.hear(HOME_A, m.Holdings(LATE, (), (), (), False))
    assert node.told(HOME_A) == []
    node.hear(HOME_A, m.Holdings(LATE, (), (), (), True))
    assert node.told(HOME_A) == [m.TookOver(LATE)]


def test_the_home_of_a_job_takes_over_though_the_next_daemon_of_the_last_other_node_knows_nothing_of_the_dead_one(node: Executor) -> None:
    node.driver()
    node.hear(HOME_C, m.Entrust(1, JOB, EXPORTED, (row(7),), (), (task_id(7),)))
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon2.", OWN), m.Ready())
    rows = tuple(row for row in node.scheduler.tables.cluster.rows.values() if row[0] != HOME_C)
    node.send(MEMBER + OWN, m.NodeTable(2, rows))
    assert m.Holdings(HOME_C, (), (), (), True) in node.told(HOME_A)
    assert task_id(7) not in node.scheduler.tables.tasks
    node.hear(HOME_A, m.TookOver(HOME_C))
    assert task_id(7) in node.scheduler.tables.tasks
    assert HOME_C not in node.scheduler.failover._takeovers


@pytest.mark.parametrize("options", [{}, {"max_retries": 0}], ids=["retried", "once"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_end_that_a_dead_home_has_not_acknowledged_counts_if_only_a_task_needs_it_that_runs_again(
    elsewhere: bool, options: dict[str, Any]
) -> None:
    node, attempt = Executor(), first_attempt(0, 3)
    node.driver()
    first, needed = row(7, **options), ref(7)
    node.hear(HOME_C, m.Entrust(1, JOB, EXPORTED, (first, row(8, needed)), (), (task_id(8),)))
    if not elsewhere:
        node.hear(HOME_C, m.Delegate((JOB, "", SELF), EXPORTED, (first,), (), (), (), attempt))
        node.complete(node.workers()[0], 7, attempt)
    node.dispatched()
    rows = tuple(row for row in node.scheduler.tables.cluster.rows.values() if row[0] != HOME_C)
    node.send(MEMBER + OWN, m.NodeTable(2, rows))
    if elsewhere:
        node.hear(HOME_A, m.Holdings(HOME_C, (), (), ((task_id(7), attempt),), False))
        node.hear(HOME_A, m.Ended(1, tuple(m.Completed.of(((task_id(7), attempt, m.OK, (b"value",)),))), ()))
    node.hear(HOME_A, m.Holdings(HOME_C, (), (), (), True))
    node.workers()
    assert [number for _, number, _ in node.dispatched()] == [8]
    assert node.scheduler.tables.find(needed).value == b"value"


def test_a_row_of_a_task_that_is_at_home_here_cannot_be_entrusted(node: Executor) -> None:
    node.driver()
    node.send(CLIENT + DRIVER, m.Submit((row(7),)))
    task = node.scheduler.tables.tasks[task_id(7)]
    node.hear(HOME_C, m.Entrust(1, JOB, EXPORTED, (row(7), row(8)), (), ()))
    assert set(node.scheduler.tables.entrusted[HOME_C]) == {task_id(8)}
    assert node.scheduler.tables.tasks[task_id(7)] is task


def test_what_a_dead_node_held_is_released_though_the_next_daemon_of_the_last_other_node_takes_nothing_over(node: Executor) -> None:
    node.driver()
    value = ref(900, 2**31)
    node.send(CLIENT + DRIVER, m.Put(((value, b"value", (), False),)))
    node.hear(HOME_C, holding(1, (value,)))
    node.send(CLIENT + DRIVER, m.Release((value,)))
    rows = tuple(row for row in node.scheduler.tables.cluster.rows.values() if row[0] != HOME_C)
    node.send(MEMBER + OWN, m.NodeTable(2, rows))
    node.hear(HOME_A, m.Holdings(HOME_C, (), (), (), True))
    assert value in node.scheduler.tables.objects
    node.told(HOME_A)
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon2.", OWN), m.Ready())
    assert m.Holdings(HOME_C, (), (), (), True) in node.told(HOME_A), "asked again, which the next daemon answers"
    assert value in node.scheduler.tables.objects
    node.hear(HOME_A, m.TookOver(HOME_C))
    assert value not in node.scheduler.tables.objects
    assert HOME_C not in node.scheduler.failover._takeovers


def test_the_home_of_a_job_waits_for_the_next_daemon_of_a_node_that_has_yet_to_learn_of_a_death(node: Executor) -> None:
    """It begins with the last table of the one before."""
    rows = tuple(row for row in node.scheduler.tables.cluster.rows.values() if row[0] != HOME_C)
    node.send(MEMBER + OWN, m.NodeTable(2, rows))
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon2.", m.ANY_DAEMON))
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon2.", OWN), m.Ready())
    assert not node.scheduler.tables.dead[HOME_C]
    node.hear(HOME_A, m.Holdings(HOME_C, (), (), (), True))
    assert node.scheduler.tables.dead[HOME_C]


@pytest.mark.parametrize("early", [False, True])
def test_the_home_of_a_job_waits_for_a_node_that_it_meets_as_it_learns_of_a_death(node: Executor, early: bool) -> None:
    """That node may have met the dead one meanwhile. If not, it answers: it is told once it has registered, and so knows this node."""
    rows = {**node.scheduler.tables.cluster.rows, LATE: (LATE, 4, "n4", "", "", b"", (("CPU", RESOURCE_UNIT),), (), 0)}
    register, report = m.RegisterNode(m.PROTOCOL_VERSION, b"daemon.."), m.Holdings(HOME_C, (), (), (), True)
    if early:
        node.hear(LATE, register, m.Ready())
    node.send(MEMBER + OWN, m.NodeTable(2, tuple(row for row in rows.values() if row[0] != HOME_C)))
    node.hear(HOME_A, report, m.TookOver(HOME_C))
    assert not node.scheduler.tables.dead[HOME_C]
    if not early:
        assert report not in node.told(LATE)
        node.hear(LATE, register, m.Ready())
    assert node.told(LATE).count(report) == 1
    node.hear(LATE, m.TookOver(HOME_C))
    assert node.scheduler.tables.dead[HOME_C]
    assert HOME_C not in node.scheduler.failover._takeovers


def test_a_hold_is_acknowledged_once_the_home_of_the_job_has_the_row(node: Executor) -> None:
    worker = node.delegated(1)
    child = row(2)
    node.send(CLIENT + worker, m.Submit((child,)))
    node.hear(HOME_C, holding(1, (ref(2),)))
    (entrust,) = node.told(HOME_A)
    assert entrust.rows == (child,)
    assert node.told(HOME_C) == []
    node.hear(HOME_A, m.LedgerUpdated(entrust.number))
    assert node.told(HOME_C) == [m.LedgerUpdated(1)]


def test_what_a_dead_node_reports_is_refused(node: Executor) -> None:
    """Its connection ends with the table in which it is missing. What was read before is refused here."""
    living = [(each, number, "", "", "", b"", (), (), 0) for number, each in enumerate((SELF, HOME_C), 1)]
    node.send(MEMBER + OWN, m.NodeTable(2, tuple(living)))
    before = node.scheduler.tables.counts["refused"]
    node.hear(HOME_A, m.Ended(1, tuple(m.Completed.of(((task_id(1), 0, m.OK, (b"late",)),))), ()))
    assert node.scheduler.tables.counts["refused"] == before + 1


def test_an_object_that_only_a_dead_worker_waited_for_is_forgotten(node: Executor) -> None:
    worker = node.delegated(1, OTHER)
    node.send(CLIENT + worker, m.Hold((OTHER,)))
    node.send(CLIENT + worker, m.Fetch((OTHER,)))
    node.send(CLIENT + worker, m.Release((OTHER,)))
    node.end(worker, 1)
    died(node, worker, None)
    assert node.scheduler.tables.objects == {}


def test_a_task_of_another_node_may_submit_its_own_function(node: Executor) -> None:
    """Its worker does not export what it received with the task."""
    worker = node.delegated(1)
    node.send(CLIENT + worker, m.Submit((row(2),)))
    assert node.take(m.Results) == []
    assert not node.scheduler.tables.tasks[task_id(2)].function.delegated


def test_a_value_made_for_its_home_that_was_wanted_and_released_here_is_not_held_there(node: Executor) -> None:
    """Else its home would hold the value here, and this node the object there, for ever."""
    made = ref(2)
    worker = node.delegated(1, made)
    node.send(CLIENT + worker, m.Hold((made,)))
    node.send(CLIENT + worker, m.Fetch((made,)))
    node.end(worker, 1)
    node.hear(HOME_A, m.LedgerUpdated(1))
    node.send(CLIENT + worker, m.Release((made,)))
    node.told(HOME_A)
    node.hear(HOME_A, m.Delegate(ABOUT, EXPORTED, (row(2),), (), (), (), first_attempt(0, 1)))
    node.complete(worker, 2, first_attempt(0, 1), m.OK, (4096, 700_000))
    assert released((made,)) in node.told(HOME_A)


def test_a_value_that_is_lost_in_the_turn_in_which_it_is_requested_is_not_sent_empty(node: Executor) -> None:
    worker = node.delegated(1)
    node.send(CLIENT + worker, m.Put(((PUT, (4096, 100), (), False),)))
    node.hear(HOME_A, holding(1, (PUT,)))
    node.told(HOME_A)
    node.scheduler.step(node.now, LOCAL_SCHEDULER + HOME_A, m.FetchValues((PUT,)))
    node.scheduler.tables.objects[PUT].lose(node.scheduler.tables.inline)
    node.turn()
    (values,) = node.told(HOME_A)
    assert values.rows[0][1] == m.FAILED


def test_a_value_that_is_freed_in_the_turn_in_which_it_is_requested_is_unknown(node: Executor) -> None:
    worker = node.delegated(1)
    node.send(CLIENT + worker, m.Put(((PUT, b"value", (), False),)))
    node.scheduler.step(node.now, LOCAL_SCHEDULER + HOME_A, m.FetchValues((PUT,)))
    node.scheduler.step(node.now, CLIENT + worker, m.Release((PUT,)))
    node.turn()
    (values,) = node.told(HOME_A)
    assert values.rows == ((PUT, m.OK, (), ()),)


# --- nodes that are not in the table --------------------------------------------------------------------------------------------------

LATE = b"\x02node L."
"""A node that others know, and this one does not."""


def table(node: Executor, version: int, *nodes: bytes) -> None:
    """Receive a table with these nodes."""
    node.send(MEMBER + OWN, m.NodeTable(version, tuple((each, number, "", "", "", b"", (), (), 0) for number, each in enumerate(nodes, 1))))


def question(node: Executor) -> int:
    """The token of the one question about a node that the head was asked."""
    ((_, read),) = node.take(m.Read)
    assert (read.table, read.keys) == ("member", (LATE,))
    return int(read.token)


def wanted_of(node: Executor, home: bytes) -> bytes:
    """A worker holds and wants an object of this home. Return the worker."""
    worker = node.delegated(1, OTHER, homes=((OTHER, home),))
    node.send(CLIENT + worker, m.Hold((OTHER,)))
    node.send(CLIENT + worker, m.Fetch((OTHER,)))
    return worker


def failures(node: Executor) -> list[str]:
    """Kinds of the failures that processes were sent in place of values."""
    rows = [each for _, message in node.take(m.Objects) for each in message.rows]
    return [unpack_failure(value)[0] for _, status, value, _ in rows if status == m.FAILED]


def test_what_is_for_a_node_that_is_not_known_yet_waits_for_the_table(node: Executor) -> None:
    worker = wanted_of(node, LATE)
    token = question(node)
    node.end(worker, 1)
    assert node.told(HOME_A) == [], "its home has not registered the worker's ref"
    table(node, 2, HOME_A, SELF, HOME_C, LATE)
    _, _, borrow, fetch = node.told(LATE)
    assert (held(borrow), type(fetch)) == ((OTHER,), m.FetchValues)
    node.send(CONTROL_STORE + OWN, m.Found(token, ((LATE, b"row"),), False))
    assert failures(node) == []
    node.hear(LATE, m.LedgerUpdated(borrow.number))
    assert [type(each) for each in node.told(HOME_A)] == [m.Ended]


def test_a_value_of_a_node_that_was_dead_before_this_one_joined_is_asked_of_the_home_of_the_job(node: Executor) -> None:
    worker = wanted_of(node, LATE)
    node.end(worker, 1)
    node.send(CONTROL_STORE + OWN, m.Found(question(node), (), False))
    found, borrow, fetch = node.told(HOME_A)
    assert found == m.Holdings(LATE, ((OTHER, -1, b"", ()),), (), (), False)
    assert fetch == m.FetchValues((OTHER,))
    node.hear(HOME_A, m.LedgerUpdated(borrow.number))
    assert [type(each) for each in node.told(HOME_A)] == [m.Ended]
    node.hear(HOME_A, m.FetchedValues(((OTHER, m.OK, b"value", ()),), ()))
    node.send(CLIENT + worker, m.Release((OTHER,)))
    assert node.told(HOME_A) == [released((OTHER,))]
    assert node.told(LATE) == []
    assert node.scheduler.tables.objects == {}


def test_a_value_of_a_node_that_died_here_is_asked_of_the_home_of_the_job_without_a_question(node: Executor) -> None:
    table(node, 2, HOME_A, SELF)
    node.told(HOME_A)
    worker = wanted_of(node, HOME_C)
    found, borrow, fetch = node.told(HOME_A)
    assert found == m.Holdings(HOME_C, ((OTHER, -1, b"", ()),), (), (), False)
    assert (held(borrow), fetch.object_ids) == ((OTHER,), (OTHER,))
    assert node.take(m.Read) == []
    node.end(worker, 1)
    assert node.told(HOME_A) == []
    node.hear(HOME_A, m.LedgerUpdated(borrow.number))
    assert [type(each) for each in node.told(HOME_A)] == [m.Ended]


def test_the_last_other_node_takes_its_values_with_it(node: Executor) -> None:
    node.driver()
    node.delegated(1, OTHER, homes=((OTHER, HOME_C),))
    node.send(CLIENT + DRIVER, m.Hold((OTHER,)))
    table(node, 2, SELF)
    node.send(CLIENT + DRIVER, m.Fetch((OTHER,)))
    assert failures(node) == ["ObjectLostError"]


def test_questions_to_a_dead_node_are_forgotten(node: Executor) -> None:
    node.send(CLIENT + node.delegated(1), m.Query(5, "tasks", (10,)))
    requests = node.scheduler.requests._open
    assert {request.to[1:] for request in requests.values()} >= {HOME_A, HOME_C}
    table(node, 2, HOME_A, SELF)
    assert HOME_C not in {request.to[1:] for request in node.scheduler.requests._open.values()}


# --- large values -------------------------------------------------------------------------------------------------------------------

AGENT = b"\x01agent00"
SIZE = 5_000_000


def with_agent(node: Executor) -> Executor:
    """Register the transfer agent."""
    node.send(TRANSFER_AGENT + AGENT, m.Register(m.PROTOCOL_VERSION, "agent", 77, 1, b"", b"", b"", "", ""))
    node.send(TRANSFER_AGENT + AGENT, m.Ready())
    node.sent.clear()
    return node


def pulls(node: Executor) -> list[Any]:
    """What the agent was asked for or told to stop since the last look."""
    found = [message for to, message in node.sent if to[1:] == AGENT]
    node.sent = [(to, message) for to, message in node.sent if to[1:] != AGENT]
    return found


def delegated_with_input(node: Executor, number: int, *offer: Any) -> None:
    """A task of node A arrives whose input is large."""
    attempt = first_attempt(0, 1)
    node.hear(HOME_A, m.Delegate(ABOUT, EXPORTED, (row(number, OTHER),), (), ((OTHER, offer, (INNER,)),), ((INNER, HOME_C),), attempt))


def sealed(node: Executor) -> list[tuple[Any, ...]]:
    """Rows of what the object store has taken over since the last look."""
    return [each for _, message in node.take(m.Sealed) for each in message.rows]


def test_an_input_is_copied_before_a_worker_is_free_and_may_be_dropped_until_then(node: Executor) -> None:
    with_agent(node)
    delegated_with_input(node, 1, SIZE, HOME_A, HOME_C)
    assert pulls(node) == [m.Pull(OTHER, SIZE, (HOME_A, HOME_C))]
    assert node.told(HOME_A) == [], "the offer came with the task"
    assert [held(each) for each in node.told(HOME_C) if held(each)] == [(INNER,)]
    node.send(TRANSFER_AGENT + AGENT, m.Pulled(OTHER, 4160, SIZE))
    assert sealed(node) == [(OTHER, 4160, SIZE, AGENT, True)]
    node.send(OBJECT_STORE + OWN, m.ObjectsLost(((OTHER, "evicted"),)))
    assert node.told(HOME_A) == [], "no worker is free for it yet"
    node.workers()
    assert node.dispatched() == []
    assert [type(each) for each in node.told(HOME_A)] == [m.FetchValues]
    node.hear(HOME_A, m.FetchedValues(((OTHER, m.OK, (SIZE, HOME_A), (INNER,)),), ((INNER, HOME_C),)))
    assert pulls(node) == [m.Pull(OTHER, SIZE, (HOME_A,))]
    node.send(TRANSFER_AGENT + AGENT, m.Pulled(OTHER, 8256, SIZE))
    assert sealed(node) == [(OTHER, 8256, SIZE, AGENT, False)], "two inputs of one task would drop each other for ever"
    (worker,) = node.workers()
    node.send(OBJECT_STORE + OWN, m.Located(((OTHER, worker, 8256, SIZE),)))
    assert [number for _, number, _ in node.dispatched()] == [1]


def test_a_copy_that_no_node_can_give_is_requested_at_its_home_again(node: Executor) -> None:
    with_agent(node)
    wanted_of(node, HOME_A)
    node.hear(HOME_A, m.FetchedValues(((OTHER, m.OK, (SIZE, HOME_C), ()),), ()))
    assert pulls(node)[-1] == m.Pull(OTHER, SIZE, (HOME_C,))
    node.told(HOME_A)
    node.send(TRANSFER_AGENT + AGENT, m.PullFailed(OTHER, "lost", "nobody has it"))
    assert node.told(HOME_A) == [m.FetchValues((OTHER,))]
    node.hear(HOME_A, m.FetchedValues(((OTHER, m.OK, b"made again, and small", ()),), ()))
    rows = [each for _, message in node.take(m.Objects) for each in message.rows]
    assert rows == [(OTHER, m.OK, b"made again, and small", ())]


@pytest.mark.parametrize(
    ("kind", "error"), [("too_large", "ObjectTooLargeError"), ("full", "ObjectStoreFullError"), ("disk", "ObjectStoreFullError")]
)
def test_those_who_wait_are_notified_that_this_node_has_no_room(node: Executor, kind: str, error: str) -> None:
    with_agent(node)
    worker = wanted_of(node, HOME_A)
    node.hear(HOME_A, m.FetchedValues(((OTHER, m.OK, (SIZE, HOME_C), ()),), ()))
    delegated_with_input(node, 2, SIZE, HOME_A)
    for home in (HOME_A, HOME_C):
        for borrow in [each for each in node.told(home) if held(each)]:
            node.hear(home, m.LedgerUpdated(borrow.number))
    node.send(TRANSFER_AGENT + AGENT, m.PullFailed(OTHER, kind, "5 MB are larger than 1 MB"))
    assert failures(node) == [error]
    (ended,) = node.told(HOME_A)
    completed = m.Completed(*ended.completed)
    assert (completed.statuses, unpack_failure(completed.outputs[0][0])[0]) == ((m.FAILED,), error)
    node.send(CLIENT + worker, m.Fetch((OTHER,)))
    assert m.FetchValues((OTHER,)) in node.told(HOME_A), "there may be room by now"


def test_a_copy_that_nobody_waits_for_any_more_is_stopped(node: Executor) -> None:
    with_agent(node)
    worker = wanted_of(node, HOME_A)
    node.hear(HOME_A, m.FetchedValues(((OTHER, m.OK, (SIZE, HOME_C), ()),), ()))
    node.end(worker, 1)
    node.send(CLIENT + worker, m.Release((OTHER,)))
    died(node, worker, None)
    assert pulls(node)[-1] == m.StopPull(OTHER)
    node.send(TRANSFER_AGENT + AGENT, m.Pulled(OTHER, 4160, SIZE))  # It was whole by then.
    assert [each[0] for each in sealed(node)] == [OTHER]
    assert [message.object_ids for _, message in node.take(m.Free)] == [(OTHER,)]


def test_a_home_offers_its_large_value_from_all_who_may_have_it(node: Executor) -> None:
    worker = node.delegated(1)
    node.send(CLIENT + worker, m.Put(((PUT, (4096, SIZE), (), False),)))
    offers = []
    for reader in (HOME_A, HOME_C, HOME_A):
        node.hear(reader, holding(1, (PUT,)), m.FetchValues((PUT,)))
        (values,) = (each for each in node.told(reader) if type(each) is m.FetchedValues)
        ((_, _, offer, _),) = values.rows
        offers.append(offer)
    assert offers == [(SIZE, SELF), (SIZE, HOME_A, SELF), (SIZE, HOME_C, SELF)]


def test_a_copy_is_retained_for_a_home_that_has_lost_its_own(node: Executor) -> None:
    with_agent(node)
    worker = wanted_of(node, HOME_A)
    node.hear(HOME_A, m.FetchedValues(((OTHER, m.OK, (SIZE, HOME_C), ()),), ()))
    node.told(HOME_A)
    node.hear(HOME_A, m.ClaimValues(((OTHER, ()),), ()))
    assert [type(each) for each in node.told(HOME_A)] == [m.CopyLost], "it is not whole"
    node.send(TRANSFER_AGENT + AGENT, m.Pulled(OTHER, 4160, SIZE))
    node.hear(HOME_A, m.ClaimValues(((OTHER, ()),), ()))
    assert node.told(HOME_A) == []
    assert [message.object_ids for _, message in node.take(m.Protect)] == [(OTHER,)], "the store is not to drop it any more"
    node.end(worker, 1)
    node.send(CLIENT + worker, m.Release((OTHER,)))
    assert OTHER in node.scheduler.tables.objects
    node.hear(HOME_A, released((OTHER,)))
    assert node.take(m.Free) != []


def test_a_home_takes_another_copy_before_it_makes_a_lost_value_again(node: Executor) -> None:
    worker = node.delegated(1)
    node.send(CLIENT + worker, m.Put(((PUT, (4096, SIZE), (), False),)))
    node.hear(HOME_C, holding(1, (PUT,)), m.FetchValues((PUT,)))
    node.hear(HOME_A, holding(1, (PUT,)), m.FetchValues((PUT,)))
    node.told(HOME_A)
    node.told(HOME_C)
    node.send(OBJECT_STORE + OWN, m.ObjectsLost(((PUT, "unreadable: the file is damaged"),)))
    assert node.told(HOME_C) == [m.ClaimValues(((PUT, ()),), ())]
    node.hear(HOME_C, m.CopyLost(PUT, "it was dropped"))
    assert node.told(HOME_A) == [m.ClaimValues(((PUT, ()),), ())]
    node.hear(HOME_A, m.FetchValues((PUT,)), m.CopyLost(PUT, "it was dropped"), m.FetchValues((PUT,)))
    *_, values = node.told(HOME_A)
    ((_, status, failure, _),) = values.rows
    assert (status, unpack_failure(failure)[0]) == (m.FAILED, "ObjectLostError")


def test_an_agent_that_serves_others_is_answered_at_once(node: Executor) -> None:
    with_agent(node)
    wanted_of(node, HOME_A)
    node.hear(HOME_A, m.FetchedValues(((OTHER, m.OK, (SIZE, HOME_C), ()),), ()))
    pulls(node)
    node.send(TRANSFER_AGENT + AGENT, m.Fetch((OTHER, INNER)))
    statuses = [each[1] for message in pulls(node) for each in message.rows]
    assert statuses == [m.FAILED, m.FAILED], "the reader asks another node meanwhile"


def test_a_durable_value_travels_whole_in_a_message(node: Executor) -> None:
    """It is in the control store, and may be larger than the object store."""
    worker = node.delegated(1)
    value = b"x" * 100_000
    node.send(CLIENT + worker, m.Put(((PUT, value, (), True),)))
    node.hear(HOME_A, holding(1, (PUT,)), m.FetchValues((PUT,)))
    (values,) = (each for each in node.told(HOME_A) if type(each) is m.FetchedValues)
    assert values.rows == ((PUT, m.OK, value, ()),)
    node.end(worker, 1)
    wanted = node.delegated(2, OTHER)
    node.send(CLIENT + wanted, m.Hold((OTHER,)))
    node.send(CLIENT + wanted, m.Fetch((OTHER,)))
    node.hear(HOME_A, m.FetchedValues(((OTHER, m.OK, value, ()),), ()))
    assert [each for _, message in node.take(m.Objects) for each in message.rows] == [(OTHER, m.OK, value, ())]


@pytest.mark.parametrize(
    ("variant", "scripted"),
    [
        ("acknowledged-before-entrusted", test_a_hold_is_acknowledged_once_the_home_of_the_job_has_the_row),
        ("lender-lets-go-first", test_an_end_waits_until_what_a_worker_holds_is_registered_at_its_home),
        ("release-overtakes-hold", test_a_ref_that_is_dropped_is_released_once_its_hold_is_registered),
        ("release-overtakes-hold", test_a_ref_that_comes_back_before_its_release_has_left_is_not_released),
        ("death-overtakes-hold", test_what_a_dead_node_held_is_released_once_all_others_have_taken_over_from_it),
    ],
)
def test_a_variant_is_caught(variant: str, scripted: Callable[[Executor], None]) -> None:
    with applied(variant), pytest.raises((AssertionError, ValueError)):
        scripted(Executor())
