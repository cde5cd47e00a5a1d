"""A barrier by itself: which stage may close, and in which order held messages come."""

from __future__ import annotations

import pytest

from zfabric.machines.local_scheduler.barrier import HOMES, JOBS, NODES, PROCESSES, REPORTS, TAKEOVERS, WAITS, Barrier
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, LOCAL_SCHEDULER

A, B = b"a" * 8, b"b" * 8


@pytest.fixture
def barrier() -> Barrier:
    barrier = Barrier(TAKEOVERS)
    for stage in (REPORTS, TAKEOVERS):
        barrier.expect(stage, (A, B))
    return barrier


def test_stages_close_in_order(barrier: Barrier) -> None:
    for node in (A, B):
        barrier.report(TAKEOVERS, node)
    assert not barrier.may_close(TAKEOVERS)
    barrier.report(REPORTS, A)
    assert not barrier.may_close(REPORTS)
    assert barrier.awaited == {B}
    barrier.report(REPORTS, B)
    assert barrier.may_close(REPORTS)
    barrier.close(REPORTS)
    assert (barrier.awaits(REPORTS), barrier.awaits(TAKEOVERS)) == (False, True)
    assert (barrier.may_close(REPORTS), barrier.may_close(TAKEOVERS)) == (False, True)


def test_whoever_reports_before_it_is_expected_is_not_awaited(barrier: Barrier) -> None:
    early = b"c" * 8
    barrier.report(REPORTS, early)
    barrier.expect(REPORTS, (early,))
    assert barrier.awaited == {A, B}


def test_a_reporter_that_begins_anew_is_awaited_again_and_a_dead_one_is_not(barrier: Barrier) -> None:
    for node in (A, B):
        barrier.report(REPORTS, node)
    barrier.begin_anew(A)
    assert barrier.awaited == {A}
    barrier.remove(A)
    assert barrier.may_close(REPORTS)
    assert barrier.reporters[TAKEOVERS] == {B}


def test_nobody_awaits_a_barrier_that_has_closed() -> None:
    barrier = Barrier(HOMES, has_closed=True)
    assert not any(barrier.awaits(stage) for stage in (JOBS, PROCESSES, NODES, HOMES))
    assert not barrier.holds_back(CLIENT + A, m.Receipt(1))
    assert barrier.take_held() == []


def test_messages_of_one_sender_for_one_stage_stay_in_order_over_each_closing() -> None:
    barrier = Barrier(HOMES)
    calls = [(CLIENT + A, m.OutcomesReceived(A, 1, ())), (CLIENT + A, m.Receipt(1)), (CLIENT + A, m.Receipt(2))]
    first, registration, *rest = calls[0], (CLIENT + B, m.Ready()), *calls[1:]
    assert all(barrier.holds_back(*each) for each in (first, registration, *rest))
    for stage, handled in (JOBS, [registration]), (PROCESSES, []), (NODES, []), (HOMES, calls):
        barrier.close(stage)
        assert [each for each in barrier.take_held() if not barrier.holds_back(*each)] == handled


def test_what_a_reporter_sent_before_it_began_anew_is_dropped() -> None:
    barrier = Barrier(HOMES)
    messages = [(LOCAL_SCHEDULER + node, m.CopyLost(b"o" * 16, "")) for node in (A, B)]
    assert all(barrier.holds_back(*each) for each in messages)
    barrier.begin_anew(A)
    assert barrier.take_held() == messages[1:]


def test_what_is_about_the_same_calls_waits_for_the_same_stage() -> None:
    """Else a receipt overtakes the calls that its sender repeats, and they run twice."""
    assert {WAITS[kind] for kind in (m.Call, m.CallsRepeated, m.OutcomesReceived, m.Receipt)} == {HOMES}
