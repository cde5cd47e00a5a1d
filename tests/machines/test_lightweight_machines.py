"""Lightweight actors in the machines alone: placement and end by the scheduler; the baton in their process."""

from __future__ import annotations

import random
from typing import Any

import pytest
from scheduler_alone import CLIENT, DRIVER, OWN, Node, ref, task_id

from zfabric.config import Config
from zfabric.machines.worker.actor_queues import ActorQueues
from zfabric.machines.worker.baton import FAREWELL, LEAVE
from zfabric.machines.worker.machine import Worker
from zfabric.machines.worker.queue import Invocation, actor_of
from zfabric.protocol import effects as e
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import WORKER, call_value
from zfabric.protocol.messages import ALIVE, CREATING, DEAD, INTERRUPTED, OK
from zfabric.protocol.names import brief

LIGHT = b"l" * 16
DAEMON = b"\x02daemon0"
OPTIONS = (("actor", b"blueprint"), ("max_retries", 0), ("lightweight", True))


# --- the scheduler ----------------------------------------------------------------------------------------------------------------


def made(cpus: int = 2, **config: Any) -> tuple[Node, list[bytes]]:
    node = Node(cpus, **config)
    node.scheduler.workers.prestart(node.now)
    node.turn()
    node.driver()
    node.send(CLIENT + DRIVER, m.Export(((LIGHT, "Light", b"payload", OPTIONS),)))
    return node, node.workers()


def row(number: int, **options: Any) -> tuple[Any, ...]:
    plain = (task_id(number), LIGHT, b"arguments", ())
    return (*plain, tuple(options.items())) if options else plain


def lives(node: Node, *numbers: int) -> dict[bytes, int]:
    """Actors of these numbers are made; how many each worker has."""
    node.submit(*(row(number) for number in numbers))
    found: dict[bytes, int] = {}
    for worker, number, attempt in node.dispatched():
        node.complete(worker, number, attempt)
        found[worker] = found.get(worker, 0) + 1
    return found


def locations(node: Node) -> dict[int, tuple[int, bytes, int, bool, bytes]]:
    rows = [each for to, message in node.take(m.ActorLocations) if to == CLIENT + DRIVER for each in message.rows]
    return {int.from_bytes(each[0][-4:], "big"): each[1:6] for each in rows}


def home(node: Node, number: int) -> bytes:
    node.send(CLIENT + DRIVER, m.FindActors((task_id(number),)))
    return locations(node)[number][1]


def test_lightweight_actors_are_spread_evenly_over_a_worker_per_cpu() -> None:
    node, workers = made()
    assert lives(node, *range(10)) == dict.fromkeys(workers, 5)
    assert lives(node, *range(10, 14)) == dict.fromkeys(workers, 2)


def test_a_single_lightweight_actor_takes_one_worker() -> None:
    node, _ = made()
    assert len(lives(node, 0)) == 1
    assert sum(worker.shared for worker in node.scheduler.tables.workers.values()) == 1


def test_a_new_actor_goes_to_the_process_with_fewest() -> None:
    node, workers = made()
    lives(node, *range(10))
    for number in range(10):
        if home(node, number) == workers[0]:
            node.send(WORKER + workers[0], m.ActorEnded(task_id(number), 0, b"", "because"))
    assert lives(node, *range(20, 25)) == {workers[0]: 5}


def test_no_task_runs_on_a_host_of_lightweight_actors() -> None:
    node, workers = made()
    lives(node, 0, 1)
    node.submit((task_id(50), b"f" * 16, b"", ()))
    assert node.dispatched() == []
    assert [worker for worker, _, _ in node.dispatched()] == []
    fresh = [token for token in node.workers() if token not in workers]
    assert [(worker, number) for worker, number, _ in node.dispatched()] == [(fresh[0], 50)]


def test_lightweight_actors_do_not_count_as_processes() -> None:
    node, _ = made(actors_max=1)
    assert sum(lives(node, *range(30)).values()) == 30


def test_plain_actors_past_the_limit_are_refused_with_advice() -> None:
    node = Node(actors_max=2)
    node.driver()
    node.send(CLIENT + DRIVER, m.Export(((b"o" * 16, "Ordinary", b"payload", (("actor", b"blueprint"), ("max_retries", 0))),)))
    node.submit(*((task_id(number), b"o" * 16, b"", ()) for number in range(3)))
    ((number, (status, (payload,))),) = node.results().items()
    assert (number, status) == (2, m.FAILED)
    kind, text, _ = unpack_failure(payload)
    assert kind == "ActorLimitExceededError"
    assert "this node has 2 actors" in text
    assert "lightweight=True" in text


def test_a_kill_ends_one_actor_once_its_process_confirms_it() -> None:
    node, _ = made()
    lives(node, 0, 1, 2, 3)
    where = home(node, 0)
    node.send(CLIENT + DRIVER, m.KillActor(task_id(0), True))
    ((_, order),) = node.take(m.RetireActor)
    assert order == m.RetireActor(task_id(0), 0, True)
    assert locations(node) == {}
    assert not [effect for effect in node.effects if isinstance(effect, e.KillProcess)]
    node.send(WORKER + where, m.ActorEnded(task_id(0), 0, b"c" * 16, ""))
    assert locations(node) == {0: (DEAD, b"", 0, True, b"c" * 16)}
    assert home(node, 2)


def test_a_restartable_actor_is_made_in_the_next_attempt() -> None:
    node, _ = made()
    node.submit(row(0, max_restarts=1, max_retries=1))
    ((worker, _, _),) = node.dispatched()
    node.complete(worker, 0)
    assert home(node, 0) == worker
    node.send(CLIENT + DRIVER, m.KillActor(task_id(0), False))
    node.send(WORKER + worker, m.ActorEnded(task_id(0), 0, b"", ""))
    assert locations(node) == {0: (CREATING, b"", 0, True, b"")}
    ((worker, number, attempt),) = node.dispatched()
    assert (number, attempt) == (0, 1)
    node.complete(worker, 0, 1)
    assert locations(node) == {0: (ALIVE, worker, 1, True, b"")}


def test_the_end_of_an_earlier_life_is_ignored() -> None:
    node, _ = made()
    node.submit(row(0, max_restarts=1, max_retries=1))
    ((worker, _, _),) = node.dispatched()
    node.complete(worker, 0)
    node.send(WORKER + worker, m.ActorEnded(task_id(0), 0, b"", "because"))
    ((again, _, _),) = node.dispatched()
    node.complete(again, 0, 1)
    node.send(WORKER + worker, m.ActorEnded(task_id(0), 0, b"", "because"))
    assert home(node, 0) == again


def test_all_actors_end_with_their_process() -> None:
    node, _ = made()
    lives(node, *range(6))
    where = home(node, 0)
    there = [number for number in range(6) if home(node, number) == where]
    node.send(b"X" + OWN, m.ProcessDied(node.pids[where], 0, 9, 0, "", b""))
    dead = locations(node)
    assert sorted(dead) == there
    assert {state for state, *_ in dead.values()} == {DEAD}


def test_many_detached_actors_that_die_with_their_process_are_scanned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node, _ = made(cpus=1)
    node.submit(*(row(number, detached=True) for number in range(50)))
    ((worker, *_), *_) = given = node.dispatched()
    for _, number, attempt in given:
        node.complete(worker, number, attempt)
    node.send(CLIENT + DRIVER, m.Goodbye())
    looked: list[Any] = []
    detached = node.scheduler.detached
    lives_on = detached._lives_on
    monkeypatch.setattr(detached, "_lives_on", lambda job: (looked.append(job), lives_on(job))[1])
    (job,) = node.scheduler.tables.jobs.values()
    assert not job.ended
    node.send(b"X" + OWN, m.ProcessDied(node.pids[worker], 0, 9, 0, "", b""))
    assert job.ended
    assert len(looked) <= 2


def test_an_actor_killed_during_its_init_does_not_stay() -> None:
    node, _ = made()
    node.submit(row(0))
    ((worker, _, _),) = node.dispatched()
    node.send(CLIENT + DRIVER, m.KillActor(task_id(0), True))
    assert [order for _, order in node.take(m.RetireActor)] == [m.RetireActor(task_id(0), 0, True)]
    node.complete(worker, 0)  # It was made before that arrived.
    assert [order for _, order in node.take(m.RetireActor)] == [m.RetireActor(task_id(0), 0, True)]


def test_a_forced_cancel_during_init_leaves_the_process_to_the_others() -> None:
    node, _ = made(cpus=1)
    lives(node, 0)
    node.submit(row(1))
    ((worker, _, _),) = node.dispatched()
    node.send(CLIENT + DRIVER, m.Cancel((ref(1),), True, True))
    assert [order for _, order in node.take(m.Interrupt)] == [m.Interrupt(task_id(1), 0, "force")]
    node.complete(worker, 1, 0, INTERRUPTED)
    assert node.take(m.TakeBack) == []
    assert not [effect for effect in node.effects if isinstance(effect, e.KillProcess)]
    assert home(node, 0) == worker


def test_an_empty_process_ends_after_a_while() -> None:
    node, _ = made()
    lives(node, 0)
    where = home(node, 0)
    node.send(CLIENT + DRIVER, m.Release((ref(0),)))
    assert [order for _, order in node.take(m.RetireActor)] == [m.RetireActor(task_id(0), 0, False)]
    node.send(WORKER + where, m.ActorEnded(task_id(0), 0, b"", ""))
    node.now += node.config.worker_idle_seconds + 1
    node.scheduler.tick(node.now)
    node.turn()
    assert [effect.pid for effect in node.effects if isinstance(effect, e.KillProcess)] == [node.pids[where]]


def expect(node: Node, caller: bytes, *numbers: int) -> None:
    """Somebody is to have results of calls which this process has made, of an actor that lives."""
    names = [call_value(task_id(number), 0) for number in numbers]
    node.send(CLIENT + caller, m.ExpectResults(tuple((name, task_id(0)) for name in names)))
    node.send(CLIENT + DRIVER, m.Hold(tuple(names)))


def test_an_empty_process_stays_while_its_promises_are_pending() -> None:
    node, _ = made(worker_idle_seconds=5.0)
    lives(node, 0)
    where = home(node, 0)
    expect(node, where, 1000)
    node.send(CLIENT + DRIVER, m.Release((ref(0),)))
    node.send(WORKER + where, m.ActorEnded(task_id(0), 0, b"", ""))

    def ended() -> list[int]:
        node.now = node.scheduler.next_deadline() or node.now + 100.0
        node.scheduler.tick(node.now)
        node.turn()
        return [effect.pid for effect in node.effects if isinstance(effect, e.KillProcess)]

    assert [ended() for _ in range(3)] == [[], [], []]
    node.send(CLIENT + where, m.OfferResults(((call_value(task_id(1000), 0), OK, b"value", ()),)))
    assert [node.pids[where]] in [ended() for _ in range(3)]


def test_promises_are_not_scanned_in_each_turn() -> None:
    node, workers = made()
    lives(node, 0)
    expect(node, workers[0], *range(1000, 1010))

    class Counted(dict[bytes, Any]):
        looked = 0

        def values(self) -> Any:
            Counted.looked += 1
            return super().values()

        items = values

    promises = node.scheduler.tables.promises
    promises._of = Counted(promises._of)
    for number in range(100, 120):
        node.submit((task_id(number), b"f" * 16, b"", ()))
    assert Counted.looked == 0


def explained(node: Node, number: int) -> tuple[str, str]:
    found = node.scheduler.explain(task_id(number))
    assert found is not None
    return found.state, found.reason


def test_explain_uses_the_reported_delays_of_a_host() -> None:
    node, _ = made(cpus=1)
    lives(node, 0, 1, 2)
    node.submit(row(3))
    ((worker, _, _),) = node.dispatched()
    pid = node.pids[worker]
    assert explained(node, 0) == ("alive", f"lives in process {pid}, and runs what it is called for")
    waits = (task_id(0), task_id(50), (call_value(task_id(51), 0), ref(99)), (task_id(1), bytes(16)), True)
    streams = (task_id(2), task_id(52), (), (), True)
    made_slowly = (task_id(3), task_id(3), (call_value(task_id(54), 0),), (task_id(0),), True)
    runs = (task_id(1), task_id(53), (), (), True)
    node.send(WORKER + worker, m.HostDelays(task_id(53), (waits, streams, made_slowly, runs)))
    state, reason = explained(node, 0)
    assert state == "blocked"
    assert f"its call {brief(task_id(50))} is blocked in get, waiting for {brief(call_value(task_id(51), 0))} (call of Light" in reason
    assert brief(ref(99)) in reason
    assert explained(node, 1) == ("alive", f"lives in process {pid}, and runs its call {brief(task_id(53))}")
    assert explained(node, 2) == (
        "blocked",
        f"its call {brief(task_id(52))} waits for its stream to be read: it is as far ahead as it may be",
    )
    state, reason = explained(node, 3)
    assert (state, reason.partition(" (")[0]) == (
        "creating",
        f"is being made: its __init__ is blocked in get, waiting for {brief(call_value(task_id(54), 0))}",
    )
    node.send(WORKER + worker, m.ActorEnded(task_id(2), 0, b"", ""))
    node.complete(worker, 3)
    node.send(WORKER + worker, m.HostDelays(task_id(53), (runs,)))
    assert explained(node, 3)[1].startswith(f"lives in process {pid}, and waits, if it is called: Light")
    node.send(WORKER + worker, m.HostDelays(b"", ()))
    assert explained(node, 3) == ("alive", f"lives in process {pid}, and runs what it is called for")


# --- the process ------------------------------------------------------------------------------------------------------------------

A, B = b"a" * 16, b"b" * 16
ME = b"\x03caller0"


@pytest.fixture
def worker() -> Worker:
    """Two actors live here."""
    found = Worker(WORKER + b"\x01worker0", Config.of({}))
    found.connect(DAEMON)
    found.step(0.0, b"L" + DAEMON, m.Functions(((LIGHT, "Light", b"", OPTIONS),)))
    found.step(0.0, b"L" + DAEMON, m.Dispatch(((A, LIGHT, b"", ()), (B, LIGHT, b"", ())), (), False))
    for actor_id in (A, B):
        item: Any = found.begin()
        found.mailbox.actors[actor_id] = (item.row, 0)
        found.finish(item, OK, (b"",), None, 0.0, 0.0)
    found.take_effects(0.0)
    return found


def call(worker: Worker, actor_id: bytes, number: int, attempt: int = 0) -> None:
    worker.step(0.0, CLIENT + ME, m.Call(actor_id, attempt, ((number.to_bytes(16, "big"), "method", b""),)))


def begin(worker: Worker) -> Any:
    item = worker.stand_in() if worker.stack else worker.begin()
    worker.check_invariants()
    return item


def end(worker: Worker, item: Any) -> None:
    worker.finish_call(item, OK, (b"value",), (), 0.0, 0.0)
    worker.check_invariants()


def sent_by(worker: Worker) -> list[Any]:
    return [effect.message for _ in range(2) for effect in worker.take_effects(0.0) if isinstance(effect, e.Send)]


def number_of(item: Any) -> int:
    return int.from_bytes(item.row[0], "big")


def test_one_call_at_a_time_in_order_of_arrival(worker: Worker) -> None:
    for number, actor_id in enumerate((A, B, A)):
        call(worker, actor_id, number)
    for number in range(3):
        item = begin(worker)
        assert number_of(item) == number
        assert begin(worker) is None
        end(worker, item)


def test_while_a_call_waits_calls_of_other_actors_run(worker: Worker) -> None:
    for number, actor_id in enumerate((A, A, B)):
        call(worker, actor_id, number)
    first = begin(worker)
    worker.pass_baton(first, ())
    call(worker, A, 3)
    other = begin(worker)
    assert actor_of(other) == B
    assert not worker.take_baton(first)
    end(worker, other)
    call(worker, B, 4)
    assert begin(worker) is None, "who returns comes before who has not begun"
    assert worker.take_baton(first)
    worker.pass_baton(first, ())  # It waits once more, and those that were set aside still are.
    assert worker.take_baton(first)
    end(worker, first)
    order = []
    while (item := begin(worker)) is not None:
        order.append(number_of(item))
        end(worker, item)
    assert order == [1, 3, 4]


def test_a_killed_actor_ends_with_what_it_runs(worker: Worker) -> None:
    call(worker, A, 0)
    call(worker, A, 1)
    call(worker, B, 2)
    item = begin(worker)
    worker.step(0.0, b"L" + DAEMON, m.RetireActor(A, 0, True))
    assert worker.interrupted(item) == "killed"
    assert sent_by(worker) == []
    end(worker, item)
    assert sent_by(worker) == [m.ActorEnded(A, 0, item.row[0], "")]
    assert number_of(begin(worker)) == 2


def test_a_retired_actor_ends_after_its_calls(worker: Worker) -> None:
    call(worker, A, 0)
    worker.step(0.0, b"L" + DAEMON, m.RetireActor(A, 0, False))
    assert sent_by(worker) == []
    end(worker, begin(worker))
    returned, ended = sent_by(worker)
    assert type(returned) is m.Returned
    assert ended == m.ActorEnded(A, 0, b"", "")
    assert worker.baton is not None
    assert worker.baton.gone == [A]


def test_an_exit_handler_has_its_turn_before_waiting_calls_and_no_outcome(worker: Worker) -> None:
    assert worker.baton is not None
    worker.baton.with_farewell.add(A)
    call(worker, A, 0)
    call(worker, B, 1)
    call(worker, B, 2)
    worker.step(0.0, b"L" + DAEMON, m.RetireActor(A, 0, False))
    end(worker, begin(worker))
    assert [type(message) for message in sent_by(worker)] == [m.Returned], "it ends once that is done"
    farewell = begin(worker)
    assert (farewell.method, farewell.actor_id) == (FAREWELL, A)
    assert worker.baton.gone == []
    worker.pass_baton(farewell, ())
    other = begin(worker)
    assert number_of(other) == 1
    end(worker, other)
    assert worker.take_baton(farewell)
    end(worker, farewell)
    assert worker.baton.gone == [A]
    returned, ended = sent_by(worker)
    assert type(returned) is m.Returned, "of the other one"
    assert ended == m.ActorEnded(A, 0, b"", "")
    assert number_of(begin(worker)) == 2


def test_an_end_is_reported_once_the_instance_is_gone(worker: Worker) -> None:
    assert worker.baton is not None
    worker.baton.instances = True
    worker.step(0.0, b"L" + DAEMON, m.RetireActor(A, 0, False))
    assert worker.baton.gone == [A]
    assert not worker.has_unsent
    assert sent_by(worker) == []
    worker.baton.gone.clear()
    assert worker.has_unsent
    assert sent_by(worker) == [m.ActorEnded(A, 0, b"", "")]


def test_an_exit_handler_that_takes_too_long_is_stopped(worker: Worker) -> None:
    assert worker.baton is not None
    worker.baton.with_farewell.add(A)
    worker.step(0.0, b"L" + DAEMON, m.RetireActor(A, 0, False))
    farewell = begin(worker)
    worker.step(0.0, b"L" + DAEMON, m.RetireActor(A, 0, True))
    assert worker.interrupted(farewell) == "killed"
    end(worker, farewell)
    assert sent_by(worker) == [m.ActorEnded(A, 0, b"", "")]


def test_a_killed_actor_has_no_exit_handler(worker: Worker) -> None:
    assert worker.baton is not None
    worker.baton.with_farewell.add(A)
    worker.step(0.0, b"L" + DAEMON, m.RetireActor(A, 0, True))
    assert worker.baton.gone == [A]
    assert begin(worker) is None


@pytest.mark.parametrize("seed", range(30))
def test_actor_queues_form_one_queue_with_exclusions_and_preferences(seed: int) -> None:
    chance = random.Random(seed)
    queues = ActorQueues()
    simple: list[Any] = []
    aside: set[bytes] = set()
    wanted: list[bytes] = []
    preferred = True
    for number in range(600):
        actor_id = chance.choice((A, B, b"c" * 16))
        call_id = number.to_bytes(16, "big")
        what = chance.choice(("append", "append", "append", "pop", "pop", "aside", "back", "remove", "drop", "want", "want", "unwant"))
        if what == "append":
            item = Invocation((call_id, b"", b"", ()), 0, (), (), actor_id, "method", ME, None)
            queues.append(item)
            simple.append(item)
        elif what == "aside":
            queues.set_aside(actor_id)
            aside.add(actor_id)
        elif what == "back":
            queues.bring_back(actor_id)
            aside.discard(actor_id)
        elif what == "drop" and chance.random() < 0.2:
            queues.drop(actor_id)
            simple = [each for each in simple if each.actor_id != actor_id]
        elif what == "want":  # of calls that have come, that are still to come, and twice
            wanted.append(chance.choice([each.row[0] for each in simple] + [(number + 3).to_bytes(16, "big")]))
            queues.want(wanted[-1:])
        elif what == "unwant" and wanted:
            queues.want_no_more([wanted.pop(chance.randrange(len(wanted)))])
        elif what == "remove" and simple:
            item = chance.choice(simple)
            queues.remove(item)
            simple.remove(item)
        may_begin = [each for each in simple if each.actor_id not in aside]
        hurried = {each.actor_id for each in simple if each.row[0] in wanted}
        urgent = [each for each in may_begin if each.actor_id in hurried] if preferred else []
        assert bool(queues) == bool(may_begin)
        if what == "pop" and may_begin:
            expected = (urgent or may_begin)[0]
            assert queues.popleft() is expected
            simple.remove(expected)
            preferred = not urgent
        assert len(queues) == len(simple)
        assert {each: queues.of(each) for each in (A, B)} == {each: [i for i in simple if i.actor_id == each] for each in (A, B)}
        assert queues.has(A) == any(each.actor_id == A for each in simple)
        assert sorted(each.row[0] for each in queues) == sorted(each.row[0] for each in simple)


def test_calls_that_others_wait_for_are_preferred_every_other_time(worker: Worker) -> None:
    third = b"c" * 16
    worker.mailbox.actors[third] = worker.mailbox.actors[A]
    call(worker, A, 0)
    for number in range(10, 14):
        call(worker, third, number)
    for number in range(20, 23):
        call(worker, B, number)
    first = begin(worker)
    worker.pass_baton(first, (result_of(22),))
    order = []
    while (item := begin(worker)) is not None:
        order.append(number_of(item))
        end(worker, item)
    assert order == [20, 10, 21, 11, 22, 12, 13]


def result_of(number: int) -> bytes:
    return call_value(number.to_bytes(16, "big"), 0)


def test_an_exiting_actor_has_the_outcome_of_its_last_call_and_no_other(worker: Worker) -> None:
    call(worker, A, 0)
    call(worker, A, 1)
    item = begin(worker)
    assert worker.baton is not None
    worker.baton.leave(A, LEAVE, "")
    end(worker, item)
    returned, ended = sent_by(worker)
    assert [row[0] for row in returned.rows] == [item.row[0]]
    assert ended == m.ActorEnded(A, 0, b"", "")
    assert begin(worker) is None


def test_calls_for_another_life_are_not_run(worker: Worker) -> None:
    call(worker, A, 0, attempt=1)
    assert begin(worker) is None
    worker.step(0.0, b"L" + DAEMON, m.RetireActor(A, 1, True))
    assert sent_by(worker) == []
    assert A in worker.mailbox.actors


def test_a_call_whose_threads_wait_lends_its_turn_and_goes_on(worker: Worker) -> None:
    for number, actor_id in enumerate((A, B, B, A)):
        call(worker, actor_id, number)
    assert worker.baton is not None
    lends = begin(worker)
    worker.baton.lend(A, (result_of(50),))
    other = begin(worker)
    assert number_of(other) == 1, "and no other of the actor that lends"
    worker.baton.lend(A, (result_of(51),))
    worker.baton.lend_no_more(A, (result_of(50),))
    worker.baton.lend_no_more(A, (result_of(51),))
    assert begin(worker) is None
    end(worker, lends)  # It has not waited for the baton, and takes it from nobody.
    assert begin(worker) is None
    end(worker, other)
    assert number_of(begin(worker)) == 2


def test_a_call_that_lent_its_turn_and_waits_then_gets_it_back(worker: Worker) -> None:
    for number, actor_id in enumerate((A, B, B)):
        call(worker, actor_id, number)
    assert worker.baton is not None
    lends = begin(worker)
    worker.baton.lend(A, (result_of(50),))
    worker.pass_baton(lends, (result_of(2),))
    other = begin(worker)
    assert not worker.take_baton(lends)
    end(worker, other)
    assert worker.take_baton(lends)
    assert worker.baton.running == b"", "its thread still waits, so it lends it again"
    second = begin(worker)
    end(worker, second)
    worker.baton.lend_no_more(A, (result_of(50),))
    worker.pass_baton(lends, ())
    assert worker.take_baton(lends)
    assert worker.baton.running == lends.row[0]
    end(worker, lends)
    assert worker.baton.lent == {}


def test_an_actor_that_would_wait_for_its_own_call_is_refused_and_others_are_not(worker: Worker) -> None:
    for number, actor_id in enumerate((A, B)):
        call(worker, actor_id, number)
    own, others, another = result_of(7), result_of(8), result_of(9)
    callee = {own: A, others: B}.get
    first = begin(worker)
    assert worker.refused(first, (own,), 1, callee)
    assert worker.refused(first, (own, another), 2, callee)
    assert not worker.refused(first, (own, another), 1, callee), "the other one is enough"
    assert not worker.refused(first, (others,), 1, callee)
    worker.pass_baton(first, (others,))
    assert not worker.refused(begin(worker), (own,), 1, callee), "a circle of two: the driver is warned"


def test_an_actor_may_wait_for_its_own_call_whose_result_is_in_flight(worker: Worker) -> None:
    """The call has ended, and its outcome is not sent yet; another call of the actor runs already."""
    own, result = worker.address[1:], result_of(2)
    worker.step(0.0, CLIENT + own, m.Call(A, 0, (((2).to_bytes(16, "big"), "method", b""),)))
    call(worker, A, 3)
    ended = begin(worker)
    end(worker, ended)
    waits = begin(worker)
    assert number_of(waits) == 3
    assert not worker.refused(waits, (result,), 1, {result: A}.get)
    assert sent_by(worker)
    worker.mailbox.forget_answered({(2).to_bytes(16, "big"): None})
    assert not worker.refused(waits, (result,), 1, {result: A}.get), "it is still on its way"
    worker.mailbox.forget_answered({})
    assert worker.refused(waits, (result,), 1, {result: A}.get), "nobody would ask for what has come"


def test_an_actor_may_wait_for_its_own_call_that_was_stopped_before_it_ran(worker: Worker) -> None:
    own, result = worker.address[1:], result_of(2)
    call(worker, A, 3)
    waits = begin(worker)
    worker.step(0.0, CLIENT + own, m.Call(A, 0, (((2).to_bytes(16, "big"), "method", b""),)))
    assert worker.refused(waits, (result,), 1, {result: A}.get)
    worker.step(0.0, CLIENT + own, m.StopCall((2).to_bytes(16, "big"), "cancelled"))
    assert not worker.refused(waits, (result,), 1, {result: A}.get)


def delays(worker: Worker) -> list[tuple[bytes, set[bytes]]]:
    worker.report_delays(lambda identifier: {ref(7): B}.get(identifier))
    return [(each.running, set(each.rows)) for each in sent_by(worker) if type(each) is m.HostDelays]


def test_long_delays_are_reported_once_and_again_to_a_restarted_daemon(worker: Worker) -> None:
    assert delays(worker) == []
    call(worker, A, 0)
    call(worker, B, 1)
    first = begin(worker)
    worker.pass_baton(first, (ref(7), ref(8)))
    second = begin(worker)
    assert delays(worker) == [], "they have only just begun"
    rows = {(A, first.row[0], (ref(7), ref(8)), (B, bytes(16)), True), (B, second.row[0], (), (), True)}
    assert delays(worker) == [(second.row[0], rows)]
    assert delays(worker) == []
    worker.running()
    assert delays(worker) == [(second.row[0], rows)]
    end(worker, second)
    assert worker.take_baton(first)
    end(worker, first)
    assert delays(worker) == [(b"", set())]


@pytest.mark.parametrize("why", ["may end", "is stopped", "has a timeout"])
def test_a_call_that_goes_on_by_itself_is_not_reported_as_waiting_for_all(worker: Worker, why: str) -> None:
    options = (("timeout", 5.0),) if why == "has a timeout" else None
    worker.step(0.0, CLIENT + DRIVER, m.Call(A, 0, ((bytes(16), "method", b"arguments", (), (), options),)))
    item = begin(worker)
    worker.pass_baton(item, (ref(7),), may_end=why == "may end")
    if why == "is stopped":
        worker.step(0.0, CLIENT + DRIVER, m.StopCall(item.row[0], "cancelled"))
    delays(worker)
    ((_, rows),) = delays(worker)
    assert [row[-1] for row in rows] == [False]


def test_living_actors_are_reported_to_a_restarted_daemon(worker: Worker) -> None:
    worker.step(0.0, b"L" + DAEMON, m.RetireActor(A, 0, True))
    (hosting,) = [message for message in worker.running() if type(message) is m.HostedActors]
    assert [row[0][0] for row in hosting.rows] == [B]
    assert sent_by(worker) == []


# --- ordinary actors beside them ----------------------------------------------------------------------------------------------------


def test_a_worker_taken_by_an_actor_is_replaced_in_advance() -> None:
    node, workers = made()
    node.send(CLIENT + DRIVER, m.Export(((b"o" * 16, "Ordinary", b"payload", OPTIONS[:2]),)))
    node.submit((task_id(0), b"o" * 16, b"", ()))
    assert len(node.dispatched()) == 1
    assert len(node.pids) == len(workers) + 1
    lives(node, 1)
    assert len(node.pids) == len(workers) + 2


def test_the_end_of_an_actor_is_repeated_with_its_creation_to_a_restarted_daemon(worker: Worker) -> None:
    worker.unconfirmed.append(m.Completed.of(((A, 0, OK, (b"",)),)))
    worker.step(0.0, b"L" + DAEMON, m.RetireActor(A, 0, True))
    assert [(each.actor_id, each.attempt) for each in worker.running() if type(each) is m.ActorEnded] == [(A, 0)]
