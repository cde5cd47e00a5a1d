"""Actors in the local scheduler alone: made, killed, waited for."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_alone import DRIVER, FUNCTION, JOB, OWN, Node, died, row, task_id

from zfabric.machines.local_scheduler.lifecycle.jobs import SHUTDOWN_SECONDS
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import CLIENT, CONTROL, MEMBER, WORKER, call_value, child_prefix, pack_counter

KIND = b"k" * 16
ACTOR = task_id(0)


def made(cpus: int = 2, **config: Any) -> Node:
    node = Node(cpus, **config)
    node.driver()
    node.send(CLIENT + DRIVER, m.Export(((KIND, "K", b"payload", (("actor", b"blueprint"), ("max_retries", 0))),)))
    return node


@pytest.fixture
def node() -> Node:
    return made()


def locations(node: Node) -> list[tuple[int, str]]:
    """Locations of the actor sent to the driver: (state, why it is dead)."""
    rows = [row for to, message in node.take(m.ActorLocations) for row in message.rows if to == CLIENT + DRIVER]
    return [(row[1], unpack_failure(row[-1])[1] if row[-1] else "") for row in rows]


KILLED: tuple[bytes, Any] = (CLIENT + DRIVER, m.KillActor(ACTOR, True))
MADE = m.Completed.of(((ACTOR, 0, m.OK, (b"value",)),), (), ((KIND, 1, 0.001),))


@pytest.mark.parametrize("order", ["made, killed", "killed, made", "left, made"])
def test_an_actor_that_ends_in_the_turn_in_which_it_was_made_is_dead_once_its_process_is(node: Node, order: str) -> None:
    node.submit((ACTOR, KIND, b"", ()))
    node.send(CLIENT + DRIVER, m.FindActors((ACTOR,)))
    worker, *_ = node.workers()  # and those that are started in its place
    node.take(m.ActorLocations)
    messages = {"made": (WORKER + worker, MADE), "killed": KILLED, "left": (CLIENT + worker, m.ActorExiting(ACTOR))}
    for source, message in (messages[each] for each in order.split(", ")):
        node.scheduler.step(node.now, source, message)
    node.turn()
    assert [effect.pid for effect in node.effects if type(effect) is e.KillProcess] == [node.pids[worker]]
    died(node, worker, None)
    state, reason = locations(node)[-1]
    assert state == m.DEAD
    assert ("exit_actor" if "left" in order else "zf.kill") in reason


def test_an_actor_whose_init_failed_for_good_is_not_restarted_with_its_process(node: Node) -> None:
    """Its restarts are for deaths of an actor that lived, or may yet be made; this one has its outcome."""
    node.submit((ACTOR, KIND, b"", (), (("max_restarts", 1),)))
    node.send(CLIENT + DRIVER, m.FindActors((ACTOR,)))
    worker, *_ = node.workers()
    assert [number for _, number, _ in node.dispatched()] == [0]
    died(node, worker, 0)
    node.workers()
    assert node.dispatched() == []
    ((state, reason),) = locations(node)[-1:]
    assert state == m.DEAD
    assert "died" in reason
    assert node.scheduler.tables.counts["rebuilds"] == 0


def test_a_refused_actor_takes_neither_a_name_nor_a_place_from_those_behind_it_in_its_batch() -> None:
    node = made(actors_max=1)
    named = (("name", "counter"),)
    node.submit((task_id(1), KIND, b"", ()))
    node.submit((task_id(2), KIND, b"", (), named), (task_id(3), KIND, b"", (), named))
    kinds = {number: unpack_failure(value)[0] for number, (_, (value,)) in node.results().items()}
    assert kinds == {2: "ActorLimitExceededError", 3: "ActorLimitExceededError"}


def asked_to_collect(node: Node, seconds: float) -> list[bytes]:
    """Who is asked for a collection of garbage, so much later."""
    node.now += seconds
    node.scheduler.tick(node.now)
    node.turn()
    return [to for to, _ in node.take(m.CollectGarbage)]


def test_collections_are_requested_while_a_demand_waits_for_resources_of_actors() -> None:
    node = made(1)
    after = node.config.collect_seconds
    node.submit((ACTOR, KIND, b"", (), (("demand", (("CPU", 10_000),)),)))
    worker, *_ = node.workers()
    node.send(WORKER + worker, MADE)
    assert asked_to_collect(node, 10 * after) == [], "nothing waits"
    node.submit(row(1))
    assert node.scheduler.next_deadline() <= node.now + after
    control = CONTROL + bytes((worker[0] ^ 0x80,)) + worker[1:]
    assert {control, CLIENT + DRIVER} <= set(asked_to_collect(node, after))
    assert asked_to_collect(node, after) == [], "the pauses grow"
    assert asked_to_collect(node, after)
    died(node, worker, None)
    assert asked_to_collect(node, 100 * after) == [], "it has what it waited for"


def test_no_collection_is_requested_while_tasks_have_the_resources() -> None:
    node = made(1)
    node.submit(row(1))
    node.send(
        CLIENT + DRIVER, m.Export(((b"x" * 16, "x", b"payload", (("demand", (("CPU", 10_000),)), ("env", ((("A", "B"),), "", ())))),))
    )
    node.submit((task_id(2), b"x" * 16, b"", ()))
    assert asked_to_collect(node, 10 * node.config.collect_seconds) == []


def test_who_holds_what_is_waited_for_is_looked_up_once_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    node = made(1)
    looked: list[float] = []
    monkeypatch.setattr(node.scheduler.starvation, "_actors_hold_it", lambda: looked.append(node.now))
    node.submit(row(1))
    node.send(
        CLIENT + DRIVER, m.Export(((b"x" * 16, "x", b"payload", (("demand", (("CPU", 10_000),)), ("env", ((("A", "B"),), "", ())))),))
    )
    node.submit((task_id(2), b"x" * 16, b"", ()))
    for _ in range(100):
        asked_to_collect(node, node.config.collect_seconds / 10)
    assert 1 <= len(looked) <= 10


def test_an_actor_is_not_made_in_a_process_with_pending_promises() -> None:
    """What ends the actor, such as ``zf.kill``, ends its process."""
    node = made(2, workers_max=2)
    node.submit((ACTOR, KIND, b"", ()))
    host, *_ = node.workers()
    node.send(WORKER + host, MADE)
    others = [each for each in node.workers() if each != host]
    owed = call_value(task_id(77), 0)
    for each in others:
        node.send(CLIENT + each, m.ExpectResults(((owed, ACTOR),)))
        node.send(CLIENT + DRIVER, m.Hold((owed,)))
        owed = call_value(task_id(78), 0)
    node.take(m.Dispatch)
    node.submit((task_id(1), KIND, b"", ()))
    assert node.dispatched() == [], "all that are there owe something"
    assert [worker for worker in node.workers() if worker not in (host, *others)], "so there is one more, whatever the most workers are"
    ((worker, _, _),) = node.dispatched()
    assert worker not in others


def test_the_process_of_a_failed_init_lives_while_its_promises_are_pending() -> None:
    node = made(2, workers_max=2, worker_idle_seconds=1.0)
    node.submit((ACTOR, KIND, b"", ()))
    worker, *_ = node.workers()
    owed = call_value(task_id(77), 0)
    node.send(CLIENT + worker, m.ExpectResults(((owed, task_id(60)),)))
    node.send(CLIENT + DRIVER, m.Hold((owed,)))
    node.send(WORKER + worker, m.Completed.of(((ACTOR, 0, m.ERROR, (b"error",)),), (), ((KIND, 1, 0.001),)))
    assert [effect for effect in node.effects if type(effect) is e.KillProcess] == []
    assert dict(node.scheduler.pool.available())["CPU"] == dict(node.scheduler.pool.total)["CPU"], "it holds nothing meanwhile"
    node.take(m.Dispatch)
    node.submit(row(1), row(2), row(3))
    assert worker not in [each for each, _, _ in node.dispatched()]
    node.send(CLIENT + worker, m.OfferResults(((owed, m.OK, b"value", ()),)))
    node.now += 1.0
    node.scheduler.tick(node.now)
    node.turn()
    assert [(each.pid, each.reason) for each in node.effects if type(each) is e.KillProcess] == [
        (node.pids[worker], "its actor could not be made")
    ]
    node.now += 1.0
    node.scheduler.tick(node.now)
    node.turn()
    assert sum(type(each) is e.KillProcess and each.pid == node.pids[worker] for each in node.effects) == 1


@pytest.mark.parametrize(
    ("reason", "signal", "counted"),
    [("", 9, 1), ("", 0, 0), ("idle", 9, 0), ("its last handle was dropped", 9, 0), ("memory", 9, 1)],
)
def test_only_workers_that_were_not_to_end_count_as_died(node: Node, reason: str, signal: int, counted: int) -> None:
    node.submit(row(1))
    worker, *_ = node.workers()
    node.scheduler.tables.workers[worker].kill_reason = reason
    died(node, worker, None, signal)
    assert node.scheduler.tables.counts["workers_died"] == counted


def test_workers_with_pending_promises_do_not_delay_other_environments() -> None:
    """They may owe for ever, and run nothing of those."""
    node = made(2, workers_max=2)
    node.submit((ACTOR, KIND, b"", ()))
    host, *_ = node.workers()
    node.send(WORKER + host, MADE)
    others = [each for each in node.workers() if each != host]
    for number, each in enumerate(others):
        node.submit((task_id(number), FUNCTION, b"", ()))
        ((worker, _, _),) = node.dispatched()
        node.complete(worker, number)
        owed = call_value(task_id(77 + number), 0)
        node.send(CLIENT + each, m.ExpectResults(((owed, ACTOR),)))
        node.send(CLIENT + DRIVER, m.Hold((owed,)))
    environment = ((("A", "1"),), "", ())
    node.send(CLIENT + DRIVER, m.Export(((b"e" * 16, "e", b"payload", (("env", environment),)),)))
    node.submit((task_id(60), b"e" * 16, b"", ()))
    assert [worker for worker in node.workers() if worker not in (host, *others)]


def test_deaths_during_init_count_until_the_actor_lives(node: Node) -> None:
    """Made again often enough, each would be condemned else. (Restarts are counted over all lives.)"""
    node.submit((ACTOR, KIND, b"", (), (("max_restarts", -1), ("max_retries", -1))))
    for life in range(6):
        node.workers()
        ((worker, _, attempt),) = node.dispatched()
        assert attempt == 2 * life
        died(node, worker, 0)
        node.workers()
        ((worker, _, attempt),) = node.dispatched()
        node.send(WORKER + worker, m.Completed.of(((ACTOR, attempt, m.OK, (b"value",)),)))
        node.send(CLIENT + DRIVER, m.FindActors((ACTOR,)))
        assert locations(node)[-1] == (m.ALIVE, "")
        died(node, worker, None)


def polite(node: Node, detached: bool = False) -> bytes:
    """Make an actor with an exit handler; return the worker it lives in."""
    options = (("actor", b"blueprint"), ("max_retries", 0), ("farewell", True), *((("detached", True),) if detached else ()))
    node.send(CLIENT + DRIVER, m.Export(((b"p" * 16, "Polite", b"payload", options),)))
    node.submit((ACTOR, b"p" * 16, b"", ()))
    worker, *_ = node.workers()
    node.send(WORKER + worker, MADE._replace(durations=()))
    node.take(m.RetireActor)
    return worker


def test_a_job_ends_once_its_actors_have_shut_down_cleanly(node: Node) -> None:
    worker = polite(node)
    node.send(CLIENT + DRIVER, m.Goodbye())
    assert [(message.actor_id, message.at_once) for _, message in node.take(m.RetireActor)] == [(ACTOR, False)]
    assert node.take(m.Farewell) == []
    died(node, worker, None)
    assert len(node.take(m.Farewell)) == 1
    assert node.scheduler.job_shutdown.next_deadline() is None


def test_a_job_does_not_wait_for_ever_for_clean_shutdowns(node: Node) -> None:
    polite(node)
    node.send(CLIENT + DRIVER, m.Goodbye())
    due = node.scheduler.next_deadline()
    assert due is not None
    assert due <= node.now + SHUTDOWN_SECONDS
    node.now += SHUTDOWN_SECONDS
    node.scheduler.tick(node.now)
    node.turn()
    assert len(node.take(m.Farewell)) == 1


def test_a_job_whose_driver_died_has_no_clean_shutdown(node: Node) -> None:
    polite(node)
    node.send(CLIENT + DRIVER, m.Goodbye())
    node.scheduler.step(node.now, b"X" + OWN, m.ProcessDied(50, 0, 9, 0, ""))
    node.turn()
    assert node.scheduler.job_shutdown.next_deadline() is None


def test_workers_of_a_detached_job_are_notified_of_the_drivers_end(node: Node) -> None:
    actor = polite(node, detached=True)
    others = [worker for worker in node.workers() if worker != actor]
    node.submit(row(7))
    node.send(WORKER + others[0], m.Completed.of(((task_id(7), 0, m.OK, (b"value",)),)))
    node.take(m.CallerGone)
    node.send(CLIENT + DRIVER, m.Goodbye())
    assert {to[2:] for to, message in node.take(m.CallerGone) if message.incarnation == DRIVER} >= {others[0][1:]}


def test_detached_actors_outlive_the_clean_shutdown_of_their_job(node: Node) -> None:
    polite(node, detached=True)
    node.send(CLIENT + DRIVER, m.Goodbye())
    assert node.take(m.RetireActor) == []
    assert len(node.take(m.Farewell)) == 1


@pytest.mark.parametrize("knows", [True, False])
def test_callers_of_other_jobs_are_told_of_an_actor_that_ends_with_its_job_or_is_not_known(node: Node, knows: bool) -> None:
    """Only processes of the job itself end with it."""
    polite(node, detached=True)
    node.send(MEMBER + OWN, m.NodeTable(1, ((b"thisnode", 1, "a node", "", "", b"", (), (), 0),), b"thisnode"))
    caller = b"\x01driver9"
    answer = node.answer

    def second(message: Any) -> None:
        if isinstance(message, m.NewJob):
            node.send(b"S" + OWN, m.JobNumber(message.token, 2))
        else:
            answer(message)

    node.answer = second  # type: ignore[method-assign]
    node.send(CLIENT + caller, m.Register(m.PROTOCOL_VERSION, "driver", 51, 1, b"", b"another", b"", "", ""))
    node.send(CLIENT + caller, m.Ready())
    node.send(CLIENT + caller, m.FindActors((ACTOR if knows else task_id(5),)))
    if knows:
        node.take(m.ActorLocations)
        node.scheduler.jobs.end_job(node.scheduler.tables.jobs[JOB], node.now)
        node.turn()
    ((to, message),) = node.take(m.ActorLocations)
    assert to == CLIENT + caller
    ((_, state, *_, failure),) = message.rows
    assert state == m.DEAD
    assert ("its job has ended" if knows else "is not known here") in unpack_failure(failure)[1]


def test_a_worker_receives_at_once_what_fails_as_its_driver_leaves(node: Node) -> None:
    """It is decided after the results of the turn were sent, and no message follows that would lead to another turn."""
    leaves = polite(node)
    stays, owed = task_id(1), call_value(task_id(90), 0)
    options = (("actor", b"blueprint"), ("max_retries", 0), ("detached", True))
    node.send(CLIENT + DRIVER, m.Export(((b"s" * 16, "Stays", b"payload", options),)))
    node.submit((stays, b"s" * 16, b"", ()))
    home = next(worker for worker in node.workers() if worker != leaves)
    node.send(WORKER + home, m.Completed.of(((stays, 0, m.OK, (b"value",)),)))
    node.send(CLIENT + DRIVER, m.ExpectResults(((owed, stays),)))
    child = child_prefix(JOB, stays) + pack_counter(0)
    node.send(CLIENT + home, m.Submit(((child, FUNCTION, b"", (owed,)),)))
    node.send(CLIENT + DRIVER, m.Goodbye())
    node.take(m.Results)
    died(node, leaves, None)
    assert len(node.take(m.Farewell)) == 1
    ((to, message),) = node.take(m.Results)
    assert (to, message.rows[0][:2]) == (CLIENT + home, (child, m.FAILED))


def test_workers_that_wait_for_calls_do_not_count_as_available(node: Node) -> None:
    """They cannot run what they wait for, and it may itself wait for a task: without another worker nobody would go on.

    Workers that wait for tasks run these themselves, and more of them than CPUs are not replaced.
    """
    for number in range(1, 4):
        node.submit(row(number))
        before = set(node.workers())
        ((worker, given, _),) = node.dispatched()
        assert (worker in before, given) == (True, number)
        call = child_prefix(JOB, task_id(number)) + pack_counter(0)
        node.send(WORKER + worker, m.Blocked(task_id(number), (call_value(call, 0),), (), True))
    node.submit(row(4))
    node.workers()
    assert [number for _, number, _ in node.dispatched()] == [4]
