"""Checkpoints of actors that run several calls at once: the gate, the retained outcomes, repeated calls, and reports of lost calls."""

from __future__ import annotations

import re
from typing import Any

import pytest
from logs_alone import ACTOR, ANN, DAEMON, Actor, Store, home, lasts, part
from scheduler_alone import CLIENT, DRIVER, OWN

from zfabric.machines.common.tables import CHECKPOINT, newest
from zfabric.machines.worker.quiescence import CLOSED, OPEN, PAUSE, QUIET, TAKING, CheckpointLog, Gate
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import WORKER
from zfabric.protocol.messages import FAILED, OK

PATIENCE = 2.0

# -- the actor's side ------------------------------------------------------------------------------------------------------------


class Beside(Actor):
    """An actor that runs as many calls at once as the test begins."""

    def __init__(self, every: int = 3, attempt: int = 0) -> None:
        super().__init__(every, attempt)
        self.worker.beside = True
        self.log: CheckpointLog = CheckpointLog(ACTOR, attempt, every)
        self.log.readonly = frozenset({"look"})
        self.worker.mailbox.logs[ACTOR] = self.log
        self.gate = self.worker.gate = Gate(self.log, PATIENCE)

    def begin(self, count: int = 1000) -> list[int]:
        """Begin as many calls as may begin, up to so many."""
        found: list[int] = []
        while len(found) < count and (item := self.worker.begin_beside(self.worker.mailbox.queue)) is not None:
            found.append(int.from_bytes(item.row[0], "big"))
        self.worker.check_invariants()
        return found

    def end(self, *calls: int, now: float = 0.0, outputs: tuple[Any, ...] = (b"value",), contained: tuple[Any, ...] = ()) -> None:
        for call in calls:
            item: Any = self.worker.running_calls[call.to_bytes(16, "big")]
            assert not self.worker.finish_call(item, OK, outputs, contained, now - 0.001, 0.001), "nothing is held back"
            self.worker.check_invariants()

    def take(self, state: bytes = b"state") -> m.Checkpoint:
        """Take the checkpoint; return its message."""
        assert self.gate.take()
        assert not self.gate.take(), "once"
        self.log.checkpoint(state, ())
        self.gate.taken()
        (checkpoint,) = self.sent(m.Checkpoint)
        return checkpoint  # type: ignore[no-any-return]

    def tick(self, now: float) -> None:
        due = self.worker.next_deadline()
        assert due is not None
        assert due <= now
        self.worker.tick(now)

    def receive(self, message: m.Message, now: float = 0.0) -> None:
        self.worker.step(now, b"L" + DAEMON, message)


def restored(checkpoint: m.Checkpoint) -> tuple[Beside, bytes | None]:
    actor = Beside(attempt=1)
    state, rows = actor.log.restore(checkpoint.data, checkpoint.last, ())
    assert rows == []
    return actor, state


def failure_in(actor: Beside) -> list[tuple[int, str, str]]:
    """Calls that have failed: number, kind, and whether they are reported to have run."""
    found = []
    for message in actor.sent(m.Returned):
        for call_id, status, outputs in message.rows:
            assert status == FAILED
            kind, _, facts = unpack_failure(outputs[0])
            found.append((int.from_bytes(call_id, "big"), kind, dict(facts)["outcome"]))
    return found


def test_outcomes_are_sent_at_once_and_the_gate_closes_when_a_checkpoint_is_due() -> None:
    actor = Beside(every=3)
    actor.call(1, 2, 3, 4, 5, 6)
    assert actor.begin(4) == [1, 2, 3, 4]
    actor.end(2, 1)
    assert actor.returned() == [2, 1]
    assert actor.gate.state == OPEN
    actor.end(4)
    assert (actor.gate.state, actor.begin()) == (CLOSED, []), "5 and 6 wait for 3"
    actor.end(3)
    assert actor.gate.state == QUIET
    assert actor.begin() == []
    checkpoint = actor.take()
    assert checkpoint.last == 4
    assert actor.begin() == [5, 6]


def test_a_checkpoint_uses_a_quiet_moment_and_no_call_begins_before_it_is_taken() -> None:
    actor = Beside(every=1)
    actor.call(1, 2)
    actor.begin(1)
    actor.end(1)
    assert actor.gate.state == QUIET
    assert actor.gate.take()
    assert (actor.gate.state, actor.begin()) == (TAKING, [])
    actor.log.no_checkpoint()
    actor.gate.taken()
    assert actor.begin() == [2], "also if none could be taken"
    assert not actor.log.due


def test_one_checkpoint_at_a_time_is_written() -> None:
    """What is taken while the store cannot write would pile up."""
    actor = Beside(every=1)
    actor.call(1, 2)
    actor.begin(1)
    actor.end(1)
    first = actor.take()
    actor.begin()
    actor.end(2)
    assert actor.gate.state == OPEN
    actor.receive(m.LogCommitted(ACTOR, first.number))
    assert actor.gate.state == QUIET


def test_the_gate_opens_after_its_patience_and_stays_open_until_old_calls_have_ended() -> None:
    actor = Beside(every=1)
    actor.call(1, 2, 3, 4, 5, 6)
    actor.begin(2)
    actor.end(2, now=10.0)
    assert actor.gate.state == CLOSED
    actor.tick(10.0 + PATIENCE)
    assert (actor.gate.state, actor.gate.wants_shell) == (OPEN, True)
    actor.gate.in_vain = False  # A warning was shown.
    later = 10.0 + PATIENCE + PAUSE * PATIENCE
    assert actor.begin(3) == [3, 4, 5]
    actor.end(3, now=later + 1)
    assert actor.gate.state == OPEN, "the first call has outlasted it, and runs"
    actor.end(1, now=later + 2)
    assert actor.gate.state == CLOSED
    actor.tick(later + 2 + PATIENCE)
    assert not actor.gate.wants_shell, "it is requested once"
    actor.end(4, now=later + 3 + PATIENCE)
    assert actor.gate.state == OPEN
    actor.end(5, now=later + 3 + PATIENCE)
    assert actor.gate.state == QUIET, "nothing runs: that is taken at any time"


def test_the_gate_stays_open_twenty_times_as_long_as_it_was_closed_in_vain() -> None:
    actor = Beside(every=1)
    actor.call(*range(1, 9))
    actor.begin(3)
    actor.end(1, now=10.0)
    opened = 10.0 + PATIENCE
    actor.tick(opened)
    actor.begin(2)
    actor.end(2, 3, now=opened + 0.1)
    assert actor.gate.state == OPEN, "what has outlasted it has ended, but it is too soon"
    actor.begin(2)
    actor.end(4, now=opened + PAUSE * PATIENCE + 0.1)
    assert actor.gate.state == CLOSED


def test_without_patience_no_call_is_held_back() -> None:
    actor = Beside(every=1)
    actor.gate.patience = 0.0
    actor.call(1, 2, 3)
    actor.begin(2)
    actor.end(1)
    assert (actor.gate.state, actor.begin()) == (OPEN, [3])
    actor.end(2, 3)
    assert actor.gate.state == QUIET


def test_readonly_calls_are_not_counted_awaited_or_recorded() -> None:
    actor = Beside(every=2)
    actor.call(1, 2, 3, method="look")
    actor.begin(2)
    actor.end(1)
    assert (actor.log.number, actor.log.retained) == (0, {})
    actor.call(4, 5)
    actor.begin(3)
    actor.end(4, 5)
    assert actor.gate.state == QUIET, "although two of them run"
    assert actor.gate.waits_for == 0


def test_a_checkpoint_waits_until_large_values_are_recorded() -> None:
    actor = Beside(every=1)
    actor.call(1, 2)
    actor.begin(1)
    actor.end(1, outputs=((4096, 100_000),))
    assert (actor.gate.state, actor.begin()) == (CLOSED, [])
    actor.receive(m.OutcomesRecorded(((1).to_bytes(16, "big"),)))
    assert actor.gate.state == QUIET


def test_calls_in_the_checkpoint_are_answered_and_not_repeated() -> None:
    actor = Beside(every=3)
    actor.call(1, 2, 3)
    actor.begin()
    actor.end(3, 1, 2)
    actor.worker.step(0.0, CLIENT + ANN, m.OutcomesReceived(ACTOR, ((1).to_bytes(16, "big"),), False))
    checkpoint = actor.take(b"after three")
    actor.call(4)
    actor.begin()
    actor.end(4)
    again, state = restored(checkpoint)
    assert state == b"after three"
    again.call(2, 3, 4)
    assert again.returned() == [2, 3]
    assert again.waiting() == [4], "its caller makes it again"


def test_the_end_of_a_stream_in_the_checkpoint_is_reported_to_the_scheduler() -> None:
    actor = Beside(every=1)
    stream = {"options": (("stream", 0),)}
    actor.call(1, **stream)
    actor.begin()
    actor.end(1, outputs=(b"three",))
    again, _ = restored(actor.take())
    again.call(1, **stream)
    assert (again.waiting(), again.returned()) == ([], [])
    ((row,),) = (message.rows for message in again.sent(m.CallOutcomes))
    assert row == ((1).to_bytes(16, "big"), ANN, OK, (b"three",), ())


def test_a_call_without_retries_is_answered_or_unknown_and_runs_only_if_readonly() -> None:
    actor = Beside(every=1)
    actor.call(1)
    actor.begin()
    actor.end(1)
    again, _ = restored(actor.take())
    ask = {"options": (("ask", True),)}
    again.call(1, **ask)
    assert again.returned() == [1]
    again.call(2, **ask)
    assert failure_in(again) == [(2, "ActorUnavailableError", "unknown")]
    assert again.waiting() == []
    again.call(3, method="look", **ask)
    assert again.waiting() == [3]


def test_counts_are_reported_when_they_change_and_to_a_restarted_daemon() -> None:
    actor = Beside(every=2)
    actor.call(1, 2, 3)
    actor.begin()
    actor.end(1, 2)
    actor.worker.report_counts()
    assert actor.sent(m.CallCounts) == [m.CallCounts(ACTOR, 2, 1)]
    actor.worker.report_counts()
    assert actor.sent(m.CallCounts) == []
    actor.end(3)
    checkpoint = actor.take()
    again = [message for message in actor.worker.running() if type(message) in (m.CallCounts, m.Checkpoint)]
    assert again == [checkpoint, m.CallCounts(ACTOR, 2, 1)]


def test_an_exiting_actor_does_not_wait_for_its_checkpoint() -> None:
    actor = Beside(every=1)
    actor.call(1)
    actor.begin()
    actor.end(1)
    actor.take()
    assert actor.returned() == [1]
    assert actor.worker.mailbox.settled


# -- the scheduler's side --------------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> Store:
    return made_store()


def made_store() -> Store:
    """A node on which an actor is being made that has checkpoints, and whose calls are not logged."""
    made = Store()
    made.scheduler.workers.prestart(made.now)
    made.driver()
    options = (("actor", b""), ("max_restarts", -1), ("max_retries", -1), ("checkpoint_every", 3), ("unlogged", True))
    made.send(CLIENT + DRIVER, m.Export(((b"a" * 16, "Counter", b"payload", options),)))
    made.workers()
    made.submit((ACTOR, b"a" * 16, b"", ()))
    return made


def dies(store: Store, worker: bytes, ended: int | None = None) -> None:
    """A worker dies. ``ended`` is the number of ended calls in its slot; None: it has no slot."""
    left = ((ACTOR, ended),) if ended is not None else ()
    store.send(b"X" + OWN, m.ProcessDied(store.pids.pop(worker), 0, 9, 0, "", b"", left))
    store.workers()


def warnings(store: Store) -> list[str]:
    """What the driver was warned of since the last call, besides that the actor is made again."""
    notices = [message.text for to, message in store.take(m.Notice) if to == CLIENT + DRIVER]
    logged = [effect.text for effect in store.effects if isinstance(effect, e.Log)]
    store.effects = [effect for effect in store.effects if not isinstance(effect, e.Log)]
    assert notices == logged, "the daemon's log has it, too"
    return [text for text in notices if not re.search(" is made again, restart | runs again, attempt ", text)]


def described(store: Store) -> dict[str, Any]:
    (row,) = store.scheduler.reports.actor_reports.listing(10)
    return row


def test_calls_after_the_last_checkpoint_are_reported_as_lost_after_a_restart(store: Store) -> None:
    worker = home(store)
    store.send(WORKER + worker, part(1, 0))
    store.send(WORKER + worker, part(2, 4))
    store.send(WORKER + worker, m.CallCounts(ACTOR, 6, 2))
    row = described(store)
    assert (row["checkpoint_every"], row["checkpoint"], row["since_checkpoint"], row["checkpoint_waits_for"], row["lost_calls"]) == (
        3,
        4,
        2,
        2,
        0,
    )
    assert row["logged_calls"] is None
    dies(store, worker, ended=7)
    assert warnings(store) == []
    worker = home(store, attempt=1)
    (text,) = warnings(store)
    assert "after 4 calls" in text
    assert "what 3 calls did" in text
    assert (described(store)["lost_calls"], described(store)["since_checkpoint"]) == (3, 0)
    dies(store, worker, ended=4)
    home(store, attempt=2)
    assert warnings(store) == [], "nothing was lost"
    assert described(store)["lost_calls"] == 3


def test_a_checkpoint_that_is_committed_after_the_death_counts(store: Store) -> None:
    worker = home(store)
    store.slow = True
    store.send(WORKER + worker, part(1, 0))
    store.send(WORKER + worker, part(2, 5))
    dies(store, worker, ended=6)
    store.commit()
    home(store, attempt=1)
    assert "after 5 calls: what 1 call did" in warnings(store)[0]


@pytest.mark.parametrize(("counted", "text"), [(0, "an unknown number of calls, if any,"), (9, "at least 5 calls, and perhaps more,")])
def test_without_a_page_of_the_dead_process_the_number_of_lost_calls_is_open(store: Store, counted: int, text: str) -> None:
    worker = home(store)
    store.send(WORKER + worker, part(1, 4))
    if counted:
        store.send(WORKER + worker, m.CallCounts(ACTOR, counted, 0))
    dies(store, worker)
    home(store, attempt=1)
    assert text in warnings(store)[0]


def test_counts_reported_to_a_former_daemon_do_not_belong_to_the_next_life(store: Store) -> None:
    worker = home(store)
    store.send(WORKER + worker, part(1, 4))
    store.scheduler.logs.record_ended(((ACTOR, 9),), True)
    store.scheduler.logs.lives_on(ACTOR)
    assert described(store)["since_checkpoint"] == 0
    dies(store, worker)
    home(store, attempt=1)
    assert "an unknown number of calls" in warnings(store)[0]


def test_calls_counted_before_the_restart_is_complete_are_not_lost(store: Store) -> None:
    worker = home(store)
    store.send(WORKER + worker, part(1, 4))
    dies(store, worker, ended=7)
    ((to, _),) = store.take(m.Dispatch)
    store.send(WORKER + to[1:], m.CallCounts(ACTOR, 4, 0))
    store.send(WORKER + to[1:], m.Completed.of(((ACTOR, 1, OK, (b"actor",)),)))
    assert "what 3 calls did" in warnings(store)[0]


@pytest.mark.parametrize(("ended", "text"), [(7, "what 3 calls did"), (None, "an unknown number of calls")])
def test_the_page_of_a_process_that_never_became_the_actor_is_ignored(store: Store, ended: int | None, text: str) -> None:
    worker = home(store)
    store.send(WORKER + worker, part(1, 4))
    dies(store, worker, ended)
    ((to, _),) = store.take(m.Dispatch)
    dies(store, to[1:], ended=4)
    home(store, attempt=2)
    assert text in warnings(store)[0]


def test_only_the_process_of_an_actor_counts_its_calls(store: Store) -> None:
    worker = home(store)
    store.send(WORKER + worker, part(1, 4))
    other = next(each for each in store.workers() if each != worker)
    store.send(WORKER + other, m.CallCounts(ACTOR, 100, 0))
    assert described(store)["since_checkpoint"] == 0


def test_explain_shows_calls_at_risk_and_what_the_checkpoint_waits_for(store: Store) -> None:
    worker = home(store)
    store.send(WORKER + worker, part(1, 4))
    store.send(WORKER + worker, m.CallCounts(ACTOR, 9, 2))
    found = store.scheduler.explain(ACTOR)
    assert found is not None
    assert dict(found.facts)["checkpoints"] == (
        "every 3 calls, the last after 4; 5 ended since, which a restart would lose; one is due, and waits for 2 that run"
    )
    assert "lost" not in dict(found.facts)
    dies(store, worker, ended=9)
    home(store, attempt=1)
    found = store.scheduler.explain(ACTOR)
    assert found is not None
    assert dict(found.facts)["lost"] == "what 5 calls did that had ended after a checkpoint when the process died"


def test_a_checkpoint_replaces_an_incomplete_one_after_the_same_call(store: Store) -> None:
    """The next incarnation counts on from where the last whole one was, and comes to the same number, perhaps with fewer parts."""
    first = home(store)
    store.send(WORKER + first, part(1, 0))
    for index in range(3):
        store.send(WORKER + first, part(2 + index, 5, index, 4))
    dies(store, first, ended=5)
    second = home(store, attempt=1)
    store.send(WORKER + second, part(1, 5, 0, 2)._replace(attempt=1))
    assert newest(sorted(store.rows[CHECKPOINT].items()))[1] == 0, "neither is whole"
    store.send(WORKER + second, part(2, 5, 1, 2)._replace(attempt=1))
    assert lasts(store, CHECKPOINT) == [5, 5]
    assert newest(sorted(store.rows[CHECKPOINT].items()))[1] == 5


def test_a_restarted_scheduler_drops_parts_of_a_replaced_checkpoint(store: Store) -> None:
    first = home(store)
    for index in range(3):
        store.send(WORKER + first, part(1 + index, 5, index, 4))
    rows = {**store.rows[CHECKPOINT]}
    dies(store, first, ended=5)
    second = home(store, attempt=1)
    for index in range(2):
        store.send(WORKER + second, part(1 + index, 5, index, 2)._replace(attempt=1))
    rows.update(store.rows[CHECKPOINT])  # As it is if the daemon dies between the last part and the deletion of what it replaces.
    fresh = made_store()
    fresh.rows[CHECKPOINT] = rows
    fresh.scheduler.logs.adopt(CHECKPOINT, tuple(sorted(rows.items())))
    assert fresh.scheduler.logs.logs[ACTOR].checkpoint[:2] == (5, 2)  # type: ignore[index]
    worker = home(fresh)
    fresh.send(WORKER + worker, part(1, 8))
    assert lasts(fresh, CHECKPOINT) == [8]
