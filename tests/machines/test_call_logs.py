"""Call logs, both sides alone: when outcomes are sent, which are answered from the log, who may append, and when the log is cut."""

from __future__ import annotations

import pytest
from logs_alone import ACTOR, ANN, BOB, DAEMON, Actor, Store, home, lasts, next_incarnation, part
from scheduler_alone import CLIENT, DRIVER, OWN, ref, task_id

from zfabric.machines.common.tables import CHECKPOINT, LOG, calls_in
from zfabric.machines.worker.call_log import PART_BYTES
from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure, unpack_failure
from zfabric.protocol.ids import CONTROL, FIRST_RETURN, TASK_BYTES, WORKER, call_value
from zfabric.protocol.inside import with_refs
from zfabric.protocol.messages import ERROR, FAILED, OK

STOPPED = pack_failure("TaskCancelledError", "it was cancelled")

# -- the actor's side ------------------------------------------------------------------------------------------------------------


def numbers(block: m.LogAppended) -> list[int]:
    return [int.from_bytes(call.call_id, "big") for call in calls_in(block.rows)]


def test_an_outcome_is_sent_once_its_row_is_committed_while_later_calls_run() -> None:
    actor = Actor()
    actor.call(1, 2, 3)
    assert [actor.run(), actor.run()] == [1, 2]
    (first,) = actor.sent(m.LogAppended)
    assert (first.number, first.last, numbers(first)) == (1, 2, [1, 2])
    actor.run()
    (second,) = actor.sent(m.LogAppended)
    assert actor.returned() == []
    assert not actor.worker.mailbox.settled
    actor.durable(first.number)
    assert actor.returned() == [1, 2]
    actor.durable(second.number)
    assert actor.returned() == [3]
    assert actor.worker.mailbox.settled


def test_a_timeout_sent_to_the_caller_is_the_outcome_of_the_call() -> None:
    """The log could not be written in time. The value of the call is late: it is sent to nobody, and its room is freed."""
    actor = Actor()
    actor.call(1, options=(("timeout", 0.5),))
    actor.run(((4096, 100_000),))
    (block,) = actor.sent(m.LogAppended)
    actor.worker.tick(0.6)
    ((answer,),) = [message.rows for message in actor.sent(m.Returned)]
    assert (answer[1], unpack_failure(answer[2][0])[0]) == (FAILED, "TaskTimeoutError")
    assert (actor.worker.mailbox.dropped, actor.worker.mailbox.written) == ([4096], [])
    actor.durable(block.number)
    assert actor.sent(m.CallOutcomes) == []
    assert all(row == answer for message in actor.sent(m.Returned) for row in message.rows)
    assert (actor.worker.mailbox.written, actor.log.unrecorded) == ([], set())


def test_a_readonly_call_has_no_row_and_its_outcome_waits_for_the_rows_before_it() -> None:
    actor = Actor()
    actor.call(1, method="look")
    actor.run()
    assert actor.returned() == [1], "nothing is before it"
    actor.call(2)
    actor.call(3, method="look")
    actor.run()
    actor.run()
    (block,) = actor.sent(m.LogAppended)
    assert numbers(block) == [2]
    assert actor.returned() == []
    actor.durable(block.number)
    assert actor.returned() == [2, 3]


def test_rows_that_may_not_be_committed_are_repeated_to_a_restarted_daemon() -> None:
    actor = Actor()
    actor.call(1, 2)
    actor.run()
    (first,) = actor.sent(m.LogAppended)
    actor.run()
    (second,) = actor.sent(m.LogAppended)
    actor.durable(first.number)
    actor.call(3)
    actor.run()
    again = [message for message in actor.worker.running() if type(message) is m.LogAppended]
    assert [numbers(block) for block in again] == [[2], [3]]
    assert again[0] == second, "word for word: it may be written already"
    assert actor.sent(m.LogAppended) == [], "and once"
    actor.durable(again[1].number)
    assert sorted(actor.returned()) == [1, 2, 3]


def test_a_repeated_call_is_answered_and_not_run() -> None:
    actor = Actor()
    actor.call(1, 2)
    actor.call(1001, caller=BOB)
    for _ in range(3):
        actor.run()
    (block,) = actor.sent(m.LogAppended)
    again, _, rows = next_incarnation([block])
    assert [row.number for row in rows] == [1, 2, 3]
    again.call(2, 5)
    assert again.waiting() == [5]
    assert again.returned() == [2]
    again.call(1001, caller=BOB)
    assert again.waiting() == [5]
    again.run()
    (more,) = again.sent(m.LogAppended)
    assert (more.attempt, more.last) == (1, 4), "numbers go on"


def test_refs_inside_a_retained_error_are_part_of_its_row_and_of_the_next_checkpoint() -> None:
    """Else who asks the next incarnation for the outcome is sent an error whose refs lead nowhere (simulator seed 9214173, with actors)."""
    actor, inside = Actor(every=10), ref(7)
    error = with_refs(b"boom", (inside, ACTOR + FIRST_RETURN))
    actor.call(1)
    actor.worker.finish_call(actor.worker.begin(), ERROR, (error,), (), 0.0, 0.001, True)  # type: ignore[arg-type]
    (block,) = actor.sent(m.LogAppended)
    assert block.refs == (inside,), "an actor does not hold itself"
    actor.log.checkpoint(b"state", ())
    assert [message.refs for message in actor.sent(m.Checkpoint)] == [(inside,)]
    again, _, _ = next_incarnation([block])
    again.call(1)
    (reported,) = again.sent(m.CallOutcomes)
    assert reported.rows == (((1).to_bytes(16, "big"), ANN, ERROR, (error,), ()),), "the scheduler holds for the caller what is inside"


def test_acknowledged_outcomes_are_dropped_also_by_the_next_incarnation() -> None:
    actor = Actor()
    actor.call(1, 2, 3)
    for _ in range(3):
        actor.run()
    (block,) = actor.sent(m.LogAppended)
    actor.durable(block.number)
    actor.worker.step(0.0, CLIENT + ANN, m.OutcomesReceived(ACTOR, tuple(n.to_bytes(16, "big") for n in (1, 2)), False))
    assert [len(kept) for kept in actor.log.retained.values()] == [1]
    actor.call(4)
    actor.run()
    (more,) = actor.sent(m.LogAppended)
    again, _, _ = next_incarnation([block, more])
    assert [int.from_bytes(call_id, "big") for call_id in again.log.retained[ANN]] == [3, 4]
    wanted = tuple(n.to_bytes(16, "big") for n in (2, 4))  # The first is a readonly call's, of which nothing is kept.
    again.worker.step(0.0, CLIENT + ANN, m.OutcomesReceived(ACTOR, wanted, True))
    assert [int.from_bytes(call_id, "big") for call_id in again.log.retained[ANN]] == [4]
    again.worker.step(0.0, CLIENT + ANN, m.OutcomesReceived(ACTOR, (), True))
    assert again.log.retained == {}


def test_outcomes_for_a_dead_caller_are_not_retained_also_of_later_calls() -> None:
    actor = Actor()
    actor.call(1, 2)
    actor.run()
    actor.worker.step(0.0, b"L" + DAEMON, m.CallerGone(ANN))
    actor.run()
    assert actor.log.retained == {}
    (block,) = actor.sent(m.LogAppended)
    assert numbers(block) == [1, 2], "they have run, all the same"


def test_a_call_repeated_after_its_callers_end_is_not_run_twice() -> None:
    """It was sent to the next incarnation before, which has run it again from the log, and forgotten its outcome with the caller."""
    before = Actor()
    before.call(1)
    before.run()
    actor, _, (call,) = next_incarnation(before.sent(m.LogAppended))
    assert call.call_id == (1).to_bytes(16, "big")
    actor.worker.step(0.0, b"L" + DAEMON, m.CallerGone(ANN))
    actor.call(1)
    actor.call(2, caller=BOB)
    assert actor.waiting() == [2]


def test_a_checkpoint_carries_the_state_and_the_outcomes_that_callers_may_not_have() -> None:
    actor = Actor(every=2)
    actor.call(1, 2, 3)
    actor.run()
    assert not actor.log.due
    actor.run()
    assert actor.log.due
    actor.log.checkpoint(b"state" * PART_BYTES, ())
    assert not actor.log.due
    actor.run()
    (before,), parts, (after,) = (
        actor.sent(m.LogAppended)[:1],
        actor.sent(m.Checkpoint),
        [block for block in actor.worker.running() if type(block) is m.LogAppended][1:],
    )
    assert [(part.last, part.part, part.parts) for part in parts] == [(2, index, 6) for index in range(6)]
    assert max(len(part.data) for part in parts) == PART_BYTES
    assert (before.number, parts[0].number, parts[-1].number, after.number) == (1, 2, 7, 8)
    again, state, rows = next_incarnation([after], b"".join(part.data for part in parts), 2)
    assert state == b"state" * PART_BYTES
    assert [row.number for row in rows] == [3]
    again.call(1, 2, 3)
    assert again.waiting() == []
    assert again.returned() == [1, 2, 3]


def test_rows_that_a_checkpoint_covers_are_not_run_again() -> None:
    actor = Actor(every=2)
    actor.call(1, 2)
    actor.run()
    actor.run()
    actor.log.checkpoint(b"state", ())
    (block,), (part,) = actor.sent(m.LogAppended), actor.sent(m.Checkpoint)
    _, _, rows = next_incarnation([block], part.data, 2)
    assert rows == []


def test_a_stopped_call_is_in_the_next_checkpoint_and_in_no_row() -> None:
    actor = Actor(every=100)
    actor.call(1, 2)
    actor.run()
    actor.run((STOPPED,), whole=False)
    assert actor.log.due, "only a checkpoint can tell what it has done"
    (block,) = actor.sent(m.LogAppended)
    actor.durable(block.number)
    assert actor.returned() == [1], "the other one is not durable"
    actor.log.checkpoint(b"torn", ())
    (part,) = actor.sent(m.Checkpoint)
    actor.durable(part.number)
    assert actor.returned() == [2]
    again, state, rows = next_incarnation([block], part.data, part.last)
    assert (state, rows) == (b"torn", [])
    again.call(2)
    assert again.returned() == [2]


def test_a_checkpoint_waits_for_a_call_that_does_not_stop() -> None:
    """What others call comes after it in the log, and it is not known yet what it does."""
    actor = Actor(every=5)
    actor.call(1)
    item = actor.worker.begin()
    assert item is not None
    actor.worker.step(0.0, CLIENT + ANN, m.StopCall(item.row[0], "cancelled"))
    assert not actor.worker.abandon(item.row[0])
    assert actor.returned() == []


def test_without_checkpoints_a_stopped_call_has_a_row_and_is_not_replayed() -> None:
    actor = Actor()
    actor.call(1)
    actor.run((STOPPED,), whole=False)
    (block,) = actor.sent(m.LogAppended)
    assert [call.again for call in calls_in(block.rows)] == [False]


def test_a_large_value_is_reported_behind_its_row_and_reported_again_by_a_replay() -> None:
    actor = Actor()
    actor.call(1)
    actor.run(((4096, 100_000),))
    (block,) = actor.sent(m.LogAppended)
    assert actor.sent(m.CallOutcomes) == []
    actor.durable(block.number)
    assert [row[3] for message in actor.sent(m.CallOutcomes) for row in message.rows] == [((4096, 100_000),)]
    assert actor.worker.mailbox.written == [4096]
    again, _, (call,) = next_incarnation([block])
    assert again.log.wants(call)
    again.worker.mailbox.report_remade(again.log, call, ((8192, 100_000),), ())
    again.call(1)
    assert (again.waiting(), again.returned()) == ([], []), "the scheduler sends it to the caller"
    assert [row[3] for message in again.sent(m.CallOutcomes) for row in message.rows] == [((8192, 100_000),)]
    assert again.log.unrecorded
    again.worker.step(0.0, b"L" + DAEMON, m.OutcomesRecorded((call.call_id,)))
    assert not again.log.unrecorded
    assert again.returned() == [1]


def test_a_row_lists_refs_that_only_the_caller_held_but_not_the_actor_itself() -> None:
    actor = Actor()
    inside = (ref(7), ACTOR + FIRST_RETURN)
    actor.call(1, needs=(ref(5), ref(6)), values=(None, b"small"), options=(("contains", inside),))
    actor.run()
    (block,) = actor.sent(m.LogAppended)
    assert block.refs == (ref(5), ref(7))


# -- the scheduler's side --------------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> Store:
    made = Store()
    made.scheduler.workers.prestart(made.now)
    made.driver()
    options = (("actor", b""), ("max_restarts", -1), ("max_retries", -1), ("checkpoint_every", 0))
    made.send(CLIENT + DRIVER, m.Export(((b"a" * 16, "Counter", b"payload", options),)))
    made.workers()
    made.submit((ACTOR, b"a" * 16, b"", ()))
    return made


def later(store: Store) -> None:
    """Let the time pass after which rows are written that nobody waits for."""
    store.turn()
    store.now += 2 * store.config.lineage_delay
    store.turn()


def block(number: int, last: int, attempt: int = 0, refs: tuple[bytes, ...] = (), made: tuple[bytes, ...] = ()) -> m.LogAppended:
    return m.LogAppended(ACTOR, attempt, number, last, b"rows", made, refs)


def durable(store: Store) -> list[int]:
    return [message.upto for _, message in store.take(m.LogCommitted)]


def dies(store: Store, worker: bytes) -> None:
    store.send(b"X" + OWN, m.ProcessDied(store.pids.pop(worker), 0, 9, 0, "", b""))
    store.workers()


def test_a_log_is_acknowledged_once_it_is_committed_and_in_order(store: Store) -> None:
    worker = home(store)
    store.slow = True
    store.send(WORKER + worker, block(1, 5))
    store.send(WORKER + worker, block(2, 9))
    assert durable(store) == []
    assert all(to == CONTROL + bytes((worker[0] ^ 0x80,)) + worker[1:] for to, _ in store.take(m.LogCommitted))
    store.commit()
    assert durable(store)[-1] == 2
    assert lasts(store) == [5, 9]


def test_only_the_actors_current_process_appends_to_its_log(store: Store) -> None:
    first = home(store)
    other = next(worker for worker in store.pids if worker != first)
    for liar, message in ((other, block(1, 1)), (first, block(1, 1, attempt=1)), (DRIVER, block(1, 1))):
        store.send(WORKER + liar, message)
        assert (durable(store), lasts(store)) == ([], [])
    dies(store, first)
    second = home(store, attempt=1)
    store.send(WORKER + first, block(1, 1))
    store.send(WORKER + second, block(1, 1, attempt=0))
    assert (durable(store), lasts(store)) == ([], [])
    store.send(WORKER + second, block(1, 1, attempt=1))
    assert (durable(store), lasts(store)) == ([1], [1])


def test_acknowledgements_of_a_former_incarnation_are_not_sent_to_the_next(store: Store) -> None:
    first = home(store)
    store.slow = True
    store.send(WORKER + first, block(7, 5))
    dies(store, first)
    home(store, attempt=1)
    store.commit()
    assert durable(store) == []
    assert lasts(store) == [5], "it is committed all the same, before anybody reads the log"


def test_a_checkpoint_cuts_the_log_when_all_of_it_is_committed(store: Store) -> None:
    worker = home(store)
    store.send(WORKER + worker, part(1, 0))
    store.send(WORKER + worker, block(2, 5))
    store.send(WORKER + worker, part(3, 5, 0, 2))
    assert (lasts(store), lasts(store, CHECKPOINT)) == ([5], [0, 5])
    store.send(WORKER + worker, part(4, 5, 1, 2))
    assert (lasts(store), lasts(store, CHECKPOINT)) == ([], [5, 5])
    store.send(WORKER + worker, block(5, 6))
    assert lasts(store) == [6]


def test_rows_that_made_living_values_outlast_checkpoints(store: Store) -> None:
    """With the checkpoint before them, for as long as a replay may have to make such a value again."""
    worker, value = home(store), ref(7, 2**31)
    store.send(CLIENT + DRIVER, m.Put(((value, b"value", (), False),)))
    for message in (part(1, 0), block(2, 3), block(3, 5, made=(value,)), part(4, 5), block(5, 6), part(6, 6)):
        store.send(WORKER + worker, message)
    assert (lasts(store), lasts(store, CHECKPOINT)) == ([3, 5], [0, 6])
    maker = store.scheduler.tables.maker_of(value)
    assert maker is not None
    assert (maker[0].id, maker[1]) == (ACTOR, True)
    fresh = Store()
    for table in (LOG, CHECKPOINT):
        fresh.scheduler.logs.adopt(table, tuple(sorted(store.rows[table].items())))
    fresh.scheduler.logs.recover()
    log = fresh.scheduler.logs.logs[ACTOR]
    assert [(past.base and past.base.last, [each.last for each in past.blocks]) for past in log.past] == [(0, [3, 5])]
    assert not log.blocks
    store.send(CLIENT + DRIVER, m.Release((value,)))
    for message in (block(7, 8), part(8, 8)):
        store.send(WORKER + worker, message)
    assert (lasts(store), lasts(store, CHECKPOINT)) == ([], [8])
    assert store.scheduler.tables.maker_of(value) is None


def lost(store: Store, worker: bytes, value: bytes) -> tuple[bytes, bytes]:
    """A large result of the actor's third call, which the driver holds, is lost; the worker and the task that are to make it again."""
    store.send(CLIENT + DRIVER, m.ExpectResults(((value, ACTOR),)))
    store.send(WORKER + worker, block(1, 3, made=(value,)))
    store.send(WORKER + worker, m.CallOutcomes(((value[:TASK_BYTES], DRIVER, OK, ((4096, 100_000),), ()),)))
    store.send(WORKER + worker, part(2, 3))
    store.send(b"O" + OWN, m.ObjectsLost(((value, "missing"),)))
    store.workers()
    ((to, dispatch),) = store.take(m.Dispatch)
    return to[1:], dispatch.rows[0][0]


def test_rows_outlast_checkpoints_while_a_value_that_they_made_is_rebuilt(store: Store) -> None:
    worker = home(store)
    replays, _ = lost(store, worker, call_value(task_id(7), 0))
    store.send(WORKER + worker, block(3, 4))
    store.send(WORKER + worker, part(4, 4))
    assert (lasts(store), lasts(store, CHECKPOINT)) == ([3], [4])
    store.send(CLIENT + replays, m.Query(9, "actor log", (ACTOR, LOG, b"")))
    ((_, answer),) = store.take(m.Answer)
    assert [int.from_bytes(key[-8:], "big") for key, _ in answer.payload[0]] == [3]


def test_a_replay_for_a_lost_value_that_raises_gives_the_value_that_error(store: Store) -> None:
    value = call_value(task_id(7), 0)
    replays, replay = lost(store, home(store), value)
    store.send(CLIENT + DRIVER, m.Fetch((value,)))
    store.send(WORKER + replays, m.Completed.of(((replay, 0, ERROR, (b"a pickled exception",)),)))
    ((_, status, failure, _),) = [row for _, message in store.take(m.Objects) for row in message.rows]
    kind, text, facts = unpack_failure(failure)
    assert (status, kind, dict(facts)) == (FAILED, "ObjectLostError", {"cause": b"a pickled exception"})
    assert "raised" in text


def test_parts_of_an_incomplete_checkpoint_are_deleted_with_the_next_one(store: Store) -> None:
    first = home(store)
    store.send(WORKER + first, block(1, 5))
    store.send(WORKER + first, part(2, 5, 0, 2))
    dies(store, first)
    second = home(store, attempt=1)
    store.send(WORKER + second, block(1, 6, attempt=1))
    store.send(WORKER + second, part(2, 6)._replace(attempt=1))
    assert (lasts(store), lasts(store, CHECKPOINT)) == ([], [6])


def test_objects_that_rows_and_checkpoints_need_are_retained(store: Store) -> None:
    worker = home(store)
    tables = store.scheduler.tables
    for number in (7, 8):
        store.send(CLIENT + DRIVER, m.Put(((ref(number, 2**31), b"value", (), False),)))
    store.send(WORKER + worker, block(1, 1, refs=(ref(7, 2**31),)))
    store.send(WORKER + worker, part(2, 1, refs=(ref(8, 2**31),))._replace(last=0))
    store.send(CLIENT + DRIVER, m.Release((ref(7, 2**31), ref(8, 2**31))))
    assert {ref(7, 2**31), ref(8, 2**31)} <= set(tables.objects)
    store.send(WORKER + worker, part(3, 1))
    store.turn()
    assert not tables.objects


def test_while_the_store_is_full_nothing_is_acknowledged_and_everything_is_written_in_order_once_it_is_not(store: Store) -> None:
    worker = home(store)
    store.full = "no space"
    store.send(WORKER + worker, block(1, 1))
    store.send(WORKER + worker, block(2, 2))
    store.full = ""
    store.send(WORKER + worker, block(3, 3))
    assert (durable(store), lasts(store)) == ([], []), "what comes later waits behind it"
    due = store.scheduler.logs.next_deadline()
    assert due is not None
    store.scheduler.tick(due)
    store.turn()
    assert (durable(store)[-1], lasts(store)) == (3, [1, 2, 3])


def test_a_call_whose_row_was_not_written_never_happened_if_the_process_dies(store: Store) -> None:
    first = home(store)
    store.full = "no space"
    store.send(WORKER + first, block(1, 1))
    dies(store, first)
    store.full = ""
    second = home(store, attempt=1)
    store.send(WORKER + second, block(1, 1, attempt=1))
    store.scheduler.tick(store.now + 100)
    store.turn()
    assert (durable(store), lasts(store)) == ([1], [1])
    assert len(store.scheduler.logs.logs[ACTOR].blocks) == 1


def test_the_process_in_which_an_actor_is_made_reads_its_log_and_nobody_else_does(store: Store) -> None:
    first = home(store)
    store.send(WORKER + first, block(1, 5))
    dies(store, first)
    ((to, _),) = store.take(m.Dispatch)
    second = to[1:]
    store.send(CLIENT + second, m.Query(9, "actor log", (ACTOR, LOG, b"")))
    ((_, answer),) = store.take(m.Answer)
    assert [key[-8:] for key, _ in answer.payload[0]] == [(5).to_bytes(8, "big")]
    store.send(CLIENT + DRIVER, m.Query(9, "actor log", (ACTOR, LOG, b"")))
    ((_, answer),) = store.take(m.Answer)
    assert answer.error


def test_dead_callers_with_retained_outcomes_are_reported_to_the_actor(store: Store) -> None:
    worker = home(store)
    store.send(WORKER + worker, m.ReplayProgress(ACTOR, 3, 3, (DRIVER, BOB)))
    assert [message.incarnation for _, message in store.take(m.CallerGone)] == [BOB]
    assert DRIVER in store.scheduler.actors.records[ACTOR].watchers


@pytest.mark.parametrize("how", ["killed", "job ended"])
def test_the_log_is_deleted_with_its_actor(store: Store, how: str) -> None:
    worker = home(store)
    store.send(WORKER + worker, part(1, 0))
    store.send(WORKER + worker, block(2, 5))
    store.send(WORKER + worker, part(3, 5, 0, 2))
    if how == "killed":
        later(store)
        store.take(m.Write)
        store.send(CLIENT + DRIVER, m.KillActor(ACTOR, True))
        dies(store, worker)
        assert lasts(store) == [5], "a daemon that dies now has both the log and the row that would make the actor again"
    else:
        store.send(CLIENT + DRIVER, m.Goodbye())
    later(store)
    assert (lasts(store), lasts(store, CHECKPOINT)) == ([], [])
    assert store.scheduler.logs.logs == {}
    if how == "killed":
        (write,) = [message for _, message in store.take(m.Write) if ("task", ACTOR) in message.deletes]
        assert {table for table, _ in write.deletes} == {"task", LOG, CHECKPOINT}


def test_a_restarted_scheduler_recovers_logs_and_the_objects_they_need(store: Store) -> None:
    worker = home(store)
    store.send(WORKER + worker, part(1, 4, refs=(ref(8, 2**31),)))
    store.send(WORKER + worker, part(2, 7, 0, 3))
    store.send(WORKER + worker, block(3, 9, refs=(ref(7, 2**31),)))
    rows = {table: tuple(sorted(store.rows[table].items())) for table in (LOG, CHECKPOINT)}
    fresh = Store()
    for table in (LOG, CHECKPOINT):
        fresh.scheduler.logs.adopt(table, rows[table])
    log = fresh.scheduler.logs.logs[ACTOR]
    assert (log.checkpoint.last if log.checkpoint else None, [each.last for each in log.blocks], [each.last for each in log.stray]) == (
        4,
        [9],
        [7],
    )
    assert sorted(refs for refs in fresh.scheduler.logs.references_of() if refs) == [(ref(7, 2**31),), (ref(8, 2**31),)]
    fresh.rows = store.rows
    fresh.scheduler.logs.drop_lost()
    later(fresh)
    assert (lasts(fresh), lasts(fresh, CHECKPOINT)) == ([], [])
