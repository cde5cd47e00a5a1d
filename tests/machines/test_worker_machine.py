"""The worker alone: begun or taken back, never both; what it sends when a task blocks, and to the next daemon."""

from __future__ import annotations

import pytest
from logs_alone import ACTOR, Actor
from logs_alone import DAEMON as SCHEDULER
from worker_alone import DAEMON, FUNCTION, begin, finish, give, row, sent_by
from worker_alone import worker as worker  # a fixture

from zfabric.machines.worker.machine import Worker
from zfabric.machines.worker.queue import Item
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, object_id
from zfabric.protocol.trace import UNKNOWN, read_waited


def test_tasks_begin_in_order_and_their_outcomes_are_sent_together(worker: Worker) -> None:
    give(worker, 1, 2)
    assert begin(worker) == 1
    finish(worker)
    assert begin(worker) == 2
    finish(worker, m.ERROR, (b"error",))
    assert begin(worker) is None
    (completed,) = sent_by(worker)
    assert completed.rows == ((row(1)[0], 0, m.OK, (b"value",)), (row(2)[0], 0, m.ERROR, (b"error",)))
    assert completed.durations == ((FUNCTION, 2, 0.002),)
    assert sent_by(worker) == []


def test_the_report_of_a_lone_task_is_the_one_that_a_batch_of_one_would_have(worker: Worker) -> None:
    give(worker, 1)
    item = worker.begin()
    assert isinstance(item, Item)
    report = worker.report_alone(item, m.OK, (b"value",), 1.5, 0.25)
    assert not worker.stack
    assert sent_by(worker) == []  # Nothing is reported twice.
    give(worker, 1)
    assert begin(worker) == 1
    worker.finish(worker.stack[-1], m.OK, (b"value",), None, 1.5, 0.25)
    assert sent_by(worker) == [report]


def test_a_task_is_not_reported_alone_where_others_follow_or_must_go_before_it(worker: Worker) -> None:
    give(worker, 1, 2)
    first = worker.begin()
    assert isinstance(first, Item)
    assert worker.report_alone(first, m.OK, (b"value",), 0.0, 0.1) is None  # One frame for both.
    (second_row,) = worker.queue
    worker.queue.clear()
    worker.inline.append(second_row)
    assert worker.report_alone(first, m.OK, (b"value",), 0.0, 0.1) is None  # Likewise on top of a task that waits.
    worker.inline.clear()
    assert worker.report_alone(first, m.ERROR, (b"error",), 0.0, 0.1) is None
    assert worker.report_alone(first, m.OK, ((0, 100),), 0.0, 0.1) is None  # A place in the arena.
    worker.interrupts[first.row[0]] = (0, "cancelled")
    assert worker.report_alone(first, m.OK, (b"value",), 0.0, 0.1) is None
    worker.interrupts.clear()
    worker.report_output()
    assert worker.report_alone(first, m.OK, (b"value",), 0.0, 0.1) is None  # Its output is known before it ends.
    assert sent_by(worker) == [m.OutputWritten()]
    finish(worker)
    give(worker, 2)
    second = worker.begin()
    assert isinstance(second, Item)
    assert worker.report_alone(second, m.OK, (b"value",), 0.0, 0.1) is None  # The first one is reported with it.
    finish(worker)
    (completed,) = sent_by(worker)
    assert [task_id for task_id, *_ in completed.rows] == [row(1)[0], row(2)[0]]


def test_rows_that_wait_alone_keep_their_attempt_when_later_ones_have_another(worker: Worker) -> None:
    later = 1 << 20
    give(worker, 1)
    worker.step(0.0, b"L" + DAEMON, m.Dispatch((row(2), row(3)), ((1, 7, (), ()),), False, later))
    worker.step(0.0, b"L" + DAEMON, m.Dispatch((row(4),), ((0, 9, (), ()),), False))
    (running,) = worker.running()
    assert [(each[0], attempt) for each, attempt, _, _ in running.rows] == [
        (row(number)[0], attempt) for number, attempt in ((1, 0), (2, later), (3, 7), (4, 9))
    ]
    begun = [worker.begin() for _ in range(4)]
    assert [item.attempt for item in begun if item is not None] == [0, later, 7, 9]


def test_an_item_is_reused_with_all_fields_of_the_next_row(worker: Worker) -> None:
    give(worker, 2)
    spare = Item(row(1), 5, (b"value",), (3,), b"driver")
    item = worker.begin(spare)
    assert item is spare
    assert (spare.row, spare.attempt, spare.values, spare.gpus, spare.driver) == (row(2), 0, (), (), b"")


def test_only_the_named_attempt_is_dropped(worker: Worker) -> None:
    give(worker, 1)
    worker.step(0.0, b"L" + DAEMON, m.Dispatch((row(1), row(1)), ((0, 1, (), ()), (1, 2, (), ())), False))
    worker.task_queue.drop(row(1)[0], 1)
    assert [attempt for _, attempt in worker.task_queue.waiting()] == [0, 2]
    worker.task_queue.drop(row(1)[0], 0)
    assert [attempt for _, attempt in worker.task_queue.waiting()] == [2]


def test_tasks_that_have_not_begun_are_taken_back_and_never_begin(worker: Worker) -> None:
    give(worker, 1, 2, 3)
    begin(worker)
    worker.step(0.0, b"L" + DAEMON, m.TakeBack((row(1)[0], row(3)[0], row(9)[0])))
    assert sent_by(worker) == [m.TakenBack((row(3)[0],), row(1)[0])]
    finish(worker)
    assert (begin(worker), begin(worker)) == (2, None)


def test_places_of_a_task_taken_back_are_unpinned(worker: Worker) -> None:
    needed = object_id(b"n" * 16)
    worker.step(0.0, b"L" + DAEMON, m.Dispatch((row(1, needed),), ((0, 0, ((4096, 100),), ()),), False))
    assert worker.unread() == ((needed, 4096, 100),)
    worker.step(0.0, b"L" + DAEMON, m.TakeBack((row(1)[0],)))
    assert worker.task_queue.returned_places == [(needed, (4096, 100))]
    assert worker.unread() == ()


def test_a_blocked_task_returns_the_queue_and_runs_tasks_on_top(worker: Worker) -> None:
    give(worker, 1, 2)
    begin(worker)
    wanted = (object_id(b"w" * 16),)
    worker.block(wanted, True)
    assert sent_by(worker) == [m.Blocked(row(1)[0], wanted, (row(2)[0],), True)]
    assert begin(worker) is None
    give(worker, 5, inline=True)
    assert begin(worker) == 5
    finish(worker)
    worker.unblock()
    assert [type(message) for message in sent_by(worker)] == [m.Unblocked, m.Completed]


def test_a_task_blocked_on_calls_names_the_actors_also_to_the_next_daemon(worker: Worker) -> None:
    give(worker, 1)
    begin(worker)
    wanted = (object_id(b"w" * 16),)
    worker.block(wanted, True, callees=((wanted[0], b"a" * 16),), certain=True)
    awaits = m.WaitDetails(row(1)[0], "", ((wanted[0], b"a" * 16),), True)
    assert sent_by(worker) == [m.Blocked(row(1)[0], wanted, (), True), awaits]
    assert [message for message in worker.running() if type(message) in (m.Blocked, m.WaitDetails)] == [
        m.Blocked(row(1)[0], wanted, (), True),
        awaits,
    ]
    worker.unblock()
    worker.block((), True)
    assert not any(type(message) is m.WaitDetails for message in worker.running())


def test_a_call_blocked_with_a_timeout_is_in_no_circle(worker: Worker) -> None:
    call_id, actor_id, wanted = b"c" * 16, b"a" * 16, (object_id(b"w" * 16),)
    worker.mailbox.actors[actor_id] = ((actor_id, b"f" * 16, b"", ()), 0)
    worker.step(0.0, CLIENT + b"\x01client0", m.Call(actor_id, 0, ((call_id, "method", b"", (), (), (("timeout", 5.0),)),)))
    worker.begin()
    worker.block(wanted, False, "K.method", (), certain=True)
    assert [message.certain for message in sent_by(worker) if type(message) is m.WaitDetails] == [False]


def test_outcomes_of_tasks_on_top_are_sent_before_the_next_wait(worker: Worker) -> None:
    give(worker, 1)
    begin(worker)
    worker.block((), True)
    give(worker, 5, inline=True)
    begin(worker)
    finish(worker)
    worker.unblock()
    worker.block((), True)
    assert [type(message) for message in sent_by(worker)] == [m.Blocked, m.Unblocked, m.Completed, m.Blocked]


def test_tasks_that_cross_the_report_of_a_wait_are_returned(worker: Worker) -> None:
    give(worker, 1)
    begin(worker)
    worker.block((), True)
    sent_by(worker)
    give(worker, 2, 3)
    assert sent_by(worker) == [m.TakenBack((row(2)[0], row(3)[0]), row(1)[0])]
    worker.unblock()
    finish(worker)
    assert begin(worker) is None


def test_tasks_for_one_wait_do_not_run_on_top_of_another(worker: Worker) -> None:
    # 3 and 4 are what 1 waits for. 2 may not be buried under them: they may wait for it.
    give(worker, 1)
    begin(worker)
    worker.block((), True)
    give(worker, 2, 3, inline=True)
    assert begin(worker) == 2
    sent_by(worker)
    worker.block((), False)
    assert sent_by(worker) == [m.Blocked(row(2)[0], (), (row(3)[0],), False)]
    assert begin(worker) is None
    worker.step(0.0, b"L" + DAEMON, m.Dispatch((row(4),), (), worker.waits.changes - 1))
    assert sent_by(worker) == [m.TakenBack((row(4)[0],), row(2)[0])], "it was sent before the scheduler knew"
    give(worker, 5, 6, inline=True)
    assert begin(worker) == 5
    finish(worker)
    sent_by(worker)
    worker.unblock()
    assert sent_by(worker) == [m.TakenBack((row(6)[0],), row(2)[0]), m.Unblocked(row(2)[0])], "2 did not need it after all"
    assert begin(worker) is None


def test_a_restarted_scheduler_counts_the_reported_waits(worker: Worker) -> None:
    give(worker, 1)
    begin(worker)
    for _ in range(3):
        worker.block((), True)
        worker.unblock()
    worker.block((), True)
    assert [type(message) for message in worker.running()].count(m.Blocked) == 1
    worker.step(0.0, b"L" + DAEMON, m.Dispatch((row(2),), (), 1))
    assert begin(worker) == 2


def test_an_interrupt_stops_the_named_attempt_only(worker: Worker) -> None:
    worker.step(0.0, b"L" + DAEMON, m.Dispatch((row(1), row(2)), ((0, 3, (), ()),), False))
    item = worker.begin()
    assert item is not None
    worker.step(0.0, b"L" + DAEMON, m.Interrupt(row(1)[0], 2, "cancelled"))
    assert worker.interrupted(item) == ""
    worker.step(0.0, b"L" + DAEMON, m.Interrupt(row(1)[0], 3, "timeout"))
    assert worker.interrupted(item) == "timeout"
    worker.step(0.0, b"L" + DAEMON, m.Interrupt(row(2)[0], 0, "cancelled"))
    assert sent_by(worker) == [m.TakenBack((row(2)[0],), row(1)[0])]
    worker.finish(item, m.INTERRUPTED, (), None, 0.0, 0.0)
    assert [message.rows for message in sent_by(worker)] == [((row(1)[0], 3, m.INTERRUPTED, (b"timeout",)),)]
    assert worker.interrupts == {}


def test_the_next_daemon_is_sent_why_an_attempt_is_to_stop(worker: Worker) -> None:
    """Whoever asked for that may have died with the daemon before."""
    worker.step(0.0, b"L" + DAEMON, m.Dispatch((row(1), row(2)), ((0, 3, (), ()),), False))
    begin(worker)
    worker.step(0.0, b"L" + DAEMON, m.Interrupt(row(1)[0], 3, "cancelled"))
    (running,) = worker.running()
    assert running == m.RunningTasks(((row(1), 3, True, "cancelled"), (row(2), 0, False, "")), ())


def test_running_queued_and_unacknowledged_tasks_are_reported_to_the_next_daemon(worker: Worker) -> None:
    give(worker, 1)
    begin(worker)
    worker.block((object_id(b"w" * 16),), True)
    give(worker, 5, 6, inline=True)
    begin(worker)
    finish(worker)
    sent_by(worker)
    worker.unconfirmed.append(m.Completed.of(((row(9)[0], 0, m.OK, (b"",)),)))
    begin(worker)
    worker.connect(b"\x02daemon1")
    running, unheard, blocked = worker.running()
    assert running == m.RunningTasks(((row(1), 0, True, ""), (row(6), 0, True, "")), ())
    assert [each[0] for each in unheard.rows] == [row(9)[0]]
    assert (blocked.task_id, blocked.returned) == (row(1)[0], ())
    assert worker.unconfirmed == []
    assert sent_by(worker) == []


def test_a_stop_is_recorded(worker: Worker) -> None:
    worker.step(0.0, b"L" + DAEMON, m.StopWorker())
    assert worker.stopping


class Measured(Actor):
    """An actor without a log, at a time that the test sets."""

    def __init__(self) -> None:
        super().__init__()
        del self.worker.mailbox.logs[ACTOR]

    def arrive(self, now: float, *numbers: int) -> None:
        rows = tuple((number.to_bytes(16, "big"), "add", b"") for number in numbers)
        self.worker.step(now, CLIENT + b"\x01client0", m.Call(ACTOR, 0, rows))

    def end(self, started: float) -> None:
        item = self.worker.begin()
        assert item is not None
        self.worker.finish_call(item, m.OK, (b"value",), (), started, 0.5)  # type: ignore[arg-type]

    def measure(self, now: float, seconds: float = 10.0) -> None:
        self.worker.step(now, b"L" + SCHEDULER, m.MeasureCalls(seconds))

    def waited(self) -> list[float]:
        """How long the calls waited that are reported now."""
        self.worker.report_trace()
        return [each for message in self.sent(m.CallTimes) for each in read_waited(message.waited, len(message.trace) // 48)]


def test_calls_are_measured_from_their_arrival_while_somebody_asks_and_cost_nothing_more_otherwise() -> None:
    actor = Measured()
    accept, add = actor.worker.handlers[m.Call], actor.worker.call_trace.add
    assert (accept, add) == (actor.worker.mailbox.accept, actor.worker.call_trace.add)
    actor.arrive(1.0, 1, 2)
    actor.end(1.0)
    actor.measure(2.0)
    assert actor.waited() == [UNKNOWN], "it ended before anybody asked"
    actor.arrive(3.0, 3, 4)
    for started in (3.5, 4.0, 4.5):
        actor.end(started)
    assert actor.waited() == [UNKNOWN, 1.0, 1.5]
    actor.measure(5.0)
    actor.arrive(14.0, 5)
    actor.end(14.25)
    actor.arrive(15.0, 6)
    actor.end(16.0)
    assert actor.waited() == [0.25, UNKNOWN], "the time for which it was asked is over"
    assert actor.worker.handlers[m.Call] == accept
    assert type(actor.worker.call_trace) is type(Measured().worker.call_trace)


def test_a_drained_actor_that_is_measured_holds_its_calls() -> None:
    actor = Measured()
    actor.measure(0.0)
    actor.worker.step(0.0, b"L" + SCHEDULER, m.DrainActor(ACTOR, 0))
    actor.arrive(1.0, 1)
    assert actor.worker.begin() is None
    actor.arrive(20.0, 2)
    assert actor.worker.begin() is None, "also when nobody asks any more"


def test_arrivals_of_calls_that_never_begin_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zfabric.machines.worker.reports.ARRIVALS_MAX", 4)
    actor = Measured()
    actor.measure(0.0)
    actor.arrive(1.0, *range(10, 14))
    for number in range(10, 13):
        actor.worker.step(1.5, CLIENT + b"\x01client0", m.StopCall(number.to_bytes(16, "big"), "cancelled"))
    actor.arrive(2.0, 20)
    for _ in range(2):
        actor.end(3.0)
    assert actor.waited() == [2.0, UNKNOWN], "there was no room for the last one"
    actor.arrive(4.0, *range(30, 34))
    actor.worker.step(4.5, CLIENT + b"\x01client0", m.StopCall((30).to_bytes(16, "big"), "cancelled"))
    actor.waited()  # A report makes room.
    actor.arrive(5.0, 40)
    for _ in range(4):
        actor.end(6.0)
    assert actor.waited() == [2.0, 2.0, 2.0, 1.0]
