"""Circles of those who wait for each other, as the local scheduler sees them: refused where they are certain, shown otherwise."""

from __future__ import annotations

from typing import Any

import pytest
from test_local_scheduler import DRIVER, JOB, Node, died, task_id

from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, FIRST_RETURN, WORKER, call_value, child_prefix, object_id, pack_counter

KIND, FUNCTION = b"k" * 16, b"f" * 16
A, B = task_id(0), task_id(1)
FIRST = task_id(100)
"""The call with which it begins: the driver's, of A."""


def child(parent: bytes, number: int = 0) -> bytes:
    """What a task or a call has submitted."""
    return child_prefix(JOB, parent) + pack_counter(number)


class World(Node):
    """A node with two actors, which tells who waits for what."""

    def __init__(self) -> None:
        super().__init__(cpus=2)
        self.awaits: dict[bytes, m.Awaits] = {}
        self.driver()
        self.say(CLIENT + DRIVER, m.Export(((KIND, "K", b"payload", (("actor", b"blueprint"), ("max_retries", 0))),)))
        self.submit((A, KIND, b"", (), (("name", "a"),)), (B, KIND, b"", (), (("name", "b"),)))
        self.workers()
        self.homes = {}
        for to, dispatch in self.take(m.Dispatch):
            for row in dispatch.rows:
                self.homes[row[0]] = to[1:]
                self.say(to, m.Completed.of(((row[0], 0, m.OK, (b"value",)),), (), ((KIND, 1, 0.001),)))
        self.workers()
        assert set(self.homes) == {A, B}

    def waits(self, worker: bytes, who: bytes, wanted: bytes, callee: bytes = b"", name: str = "", certain: bool = True) -> None:
        self.say(WORKER + worker, m.Blocked(who, (wanted,), (), not name))
        if name or callee:
            self.awaits[who] = m.Awaits(who, name, ((wanted, callee),) if callee else (), certain)
            self.say(WORKER + worker, self.awaits[who])

    def call_waits(self, actor: bytes, call: bytes, wanted: bytes, callee: bytes = b"", certain: bool = True) -> None:
        self.waits(self.homes[actor], call, wanted, callee, "K.ask", certain)

    def told(self) -> list[tuple[bytes, bytes, str]]:
        """Who was told that it waits for itself: (worker, what waits there, the circle). Who was asked has said that it still waits."""
        for to, message in self.take(m.StillWaits):
            self.say(to, self.awaits.get(message.task_id, m.Awaits(message.task_id, "", (), True)))
        return [(to[1:], message.task_id, message.circle) for to, message in self.take(m.Deadlock)]

    def reason(self, actor: bytes) -> str:
        found = self.scheduler.explain(actor)
        assert found is not None
        return found.reason


@pytest.fixture
def world() -> World:
    return World()


def circle_of_two(world: World, last: bytes, certain: tuple[bool, bool] = (True, True)) -> None:
    """A waits for its call of B, and B for the call ``last`` of A."""
    call = child(FIRST)
    world.call_waits(A, FIRST, call_value(call, 0), B, certain[0])
    assert world.told() == []
    world.call_waits(B, call, call_value(last, 0), A, certain[1])


def test_who_closes_a_circle_is_told(world: World) -> None:
    circle_of_two(world, child(child(FIRST)))
    assert world.told() == [(world.homes[B], child(FIRST), "K.ask (b) -> K.ask (a) -> K.ask (b)")]
    assert "it waits for itself: K.ask (a) -> K.ask (b) -> K.ask (a)" in world.reason(A)
    assert "waiting for" in world.reason(B)
    assert "(call of K 1-" in world.reason(B)
    world.say(WORKER + world.homes[B], m.Unblocked(child(FIRST)))
    assert "waits for itself" not in world.reason(A)


def test_a_call_of_others_may_have_run(world: World) -> None:
    """Its result may be on its way: the circle is shown, and nobody is told to give up."""
    circle_of_two(world, task_id(99))
    assert world.told() == []
    assert "it waits for itself: K.ask (b) -> K.ask (a) -> K.ask (b)" in world.reason(B)


def test_two_that_wait_behind_others_may_have_run(world: World) -> None:
    """Each waits for a call of its own, and neither is what the other runs: both may have run before that."""
    other = task_id(101)
    world.call_waits(A, FIRST, call_value(child(FIRST), 0), B)
    world.call_waits(B, other, call_value(child(other), 0), A)
    assert world.told() == []
    assert "it waits for itself: K.ask (b) -> K.ask (a) -> K.ask (b)" in world.reason(B)


@pytest.mark.parametrize("certain", [(True, False), (False, True)])
def test_who_goes_on_by_itself_is_not_refused(world: World, certain: tuple[bool, bool]) -> None:
    circle_of_two(world, child(child(FIRST)), certain)
    assert world.told() == []
    assert "it waits for itself" in world.reason(A)


def test_who_has_heard_nothing_yet_of_what_has_come_waits_for_nobody(world: World) -> None:
    """B yields a value, and waits for a call of A, which waits for that value still."""
    call = child(FIRST)
    item = object_id(call, 1)
    for message in (m.Expect(((call_value(call, 0), B, 0),)), m.Hold((item, object_id(call, 2))), m.Fetch((item,))):
        world.say(CLIENT + world.homes[A], message)
    world.call_waits(A, FIRST, item, B)
    world.say(WORKER + world.homes[B], m.Yielded(((call, 0, 0, b"value", ()),)))
    world.call_waits(B, call, call_value(child(call), 0), A)
    assert world.told() == []
    world.say(WORKER + world.homes[A], m.Unblocked(FIRST))
    world.call_waits(A, FIRST, object_id(call, 2), B)
    assert [who for _, who, _ in world.told()] == [FIRST], "that is not to be"


def test_who_is_being_killed_goes_on_by_its_end(world: World) -> None:
    call = child(FIRST)
    world.call_waits(A, FIRST, call_value(call, 0), B)
    world.say(CLIENT + DRIVER, m.Kill(A, False))
    world.call_waits(B, call, call_value(child(call), 0), A)
    assert world.told() == []


def test_waiting_in_a_row_is_no_circle(world: World) -> None:
    call = child(FIRST)
    world.call_waits(A, FIRST, call_value(call, 0), B)
    world.call_waits(B, call, call_value(child(call), 0), task_id(77))
    assert world.told() == []
    assert "waits for itself" not in world.reason(A)


def run_task(world: World, actor: bytes, row: tuple[Any, ...]) -> bytes:
    """A task that a call has submitted is given to a worker."""
    world.say(CLIENT + world.homes[actor], m.Submit((row,)))
    world.workers()
    ((to, _),) = world.take(m.Dispatch)
    return to[1:]


def test_a_circle_through_a_task(world: World) -> None:
    task = child(FIRST)
    worker = run_task(world, A, (task, FUNCTION, b"", ()))
    world.call_waits(A, FIRST, task + FIRST_RETURN)
    world.waits(worker, task, call_value(child(task), 0), A)
    assert world.told() == [(worker, task, "f -> K.ask (a) -> f")]


@pytest.mark.parametrize("stops", [True, False])
def test_a_task_that_ends_by_itself_is_in_no_circle(world: World, stops: bool) -> None:
    task = child(FIRST)
    worker = run_task(world, A, (task, FUNCTION, b"", ()) if stops else (task, FUNCTION, b"", (), (("timeout", 5.0),)))
    if stops:
        world.say(CLIENT + world.homes[A], m.Cancel((task + FIRST_RETURN,), False, False))
    world.call_waits(A, FIRST, task + FIRST_RETURN)
    world.waits(worker, task, call_value(child(task), 0), A)
    assert world.told() == []
    assert "waits for itself" in world.reason(A)


def test_a_circle_that_a_task_closes_that_waits_for_tasks_alone(world: World) -> None:
    """It says nothing of calls, and the last to wait need not be the one that waits for the call."""
    outer = child(FIRST)
    inner = child(outer)
    first = run_task(world, A, (outer, FUNCTION, b"", (), (("inline", False),)))
    world.say(CLIENT + first, m.Submit(((inner, FUNCTION, b"", ()),)))
    world.workers()
    ((to, _),) = world.take(m.Dispatch)
    world.call_waits(A, FIRST, outer + FIRST_RETURN)
    world.waits(to[1:], inner, call_value(child(inner), 0), A)
    assert world.told() == []
    world.waits(first, outer, inner + FIRST_RETURN)
    assert world.told() == [(first, outer, "f -> f -> K.ask (a) -> f")]


def test_a_circle_through_an_argument(world: World) -> None:
    """The task has not begun: it waits for a call of the actor that waits for it."""
    own, task = child(FIRST), child(FIRST, 1)
    world.say(CLIENT + world.homes[A], m.Expect(((call_value(own, 0), A),)))
    world.say(CLIENT + world.homes[A], m.Submit(((task, FUNCTION, b"", (call_value(own, 0),)),)))
    world.call_waits(A, FIRST, task + FIRST_RETURN)
    assert world.told() == [(world.homes[A], FIRST, "K.ask (a) -> f -> K.ask (a)")]


def test_a_task_that_is_not_to_wait_for_ever_is_in_no_circle(world: World) -> None:
    own, task = child(FIRST), child(FIRST, 1)
    world.say(CLIENT + world.homes[A], m.Expect(((call_value(own, 0), A),)))
    world.say(CLIENT + world.homes[A], m.Submit(((task, FUNCTION, b"", (call_value(own, 0),), (("timeout", 5.0),)),)))
    world.call_waits(A, FIRST, task + FIRST_RETURN)
    assert world.told() == []


def test_a_long_way_is_not_followed_to_its_end(world: World) -> None:
    """Each of very many tasks needs the one before it."""
    own = call_value(child(FIRST), 0)
    world.say(CLIENT + world.homes[A], m.Expect(((own, A),)))
    tasks = [child(FIRST, number) for number in range(1, 3000)]
    needs = [own, *(each + FIRST_RETURN for each in tasks)]
    world.say(
        CLIENT + world.homes[A], m.Submit(tuple((each, FUNCTION, b"", (needed,)) for each, needed in zip(tasks, needs, strict=False)))
    )
    world.call_waits(A, FIRST, tasks[-1] + FIRST_RETURN)
    assert world.told() == []
    world.say(WORKER + world.homes[A], m.Unblocked(FIRST))
    world.call_waits(A, FIRST, tasks[50] + FIRST_RETURN)
    assert [who for _, who, _ in world.told()] == [FIRST]


def test_a_circle_through_an_actor_that_shares_its_process_is_shown(world: World) -> None:
    """Such a process says what its calls wait for when that has lasted for a while."""
    light, options = b"l" * 16, (("actor", b"blueprint"), ("max_retries", 0), ("lightweight", True))
    world.say(CLIENT + DRIVER, m.Export(((light, "Light", b"payload", options),)))
    third = task_id(2)
    world.submit((third, light, b"", ()))
    world.workers()
    ((to, _),) = world.take(m.Dispatch)
    world.say(to, m.Completed.of(((third, 0, m.OK, (b"value",)),), (), ((light, 1, 0.001),)))
    call = child(FIRST)
    world.call_waits(A, FIRST, call_value(call, 0), third)
    assert "waits for itself" not in world.reason(A)
    world.say(to, m.Delays(b"", ((third, call, (call_value(child(call), 0),), (A,)),)))
    assert f"it waits for itself: K.ask (a) -> Light (1-{third[4:6].hex()}-2) -> K.ask (a)" in world.reason(A)
    assert "-> K.ask (a) -> Light" in world.reason(third)
    assert world.told() == []


def asked(world: World) -> list[tuple[bytes, bytes]]:
    return [(to, message.task_id) for to, message in world.take(m.StillWaits)]


def test_who_is_refused_is_so_once_all_others_have_said_that_they_still_wait(world: World) -> None:
    call = child(FIRST)
    circle_of_two(world, child(call))
    assert asked(world) == [(WORKER + world.homes[A], FIRST)]
    assert world.take(m.Deadlock) == []
    world.say(WORKER + world.homes[B], world.awaits[call])  # It was not asked.
    assert world.take(m.Deadlock) == asked(world) == []
    world.say(WORKER + world.homes[A], world.awaits[FIRST])
    assert [message.task_id for _, message in world.take(m.Deadlock)] == [call]
    world.say(WORKER + world.homes[A], world.awaits[FIRST])
    assert world.take(m.Deadlock) == asked(world) == []


@pytest.mark.parametrize("who", [A, B])
def test_nobody_is_refused_if_one_of_them_has_gone_on(world: World, who: bytes) -> None:
    """It was cancelled, say, and the news of that was on its way."""
    call = child(FIRST)
    frames = {A: FIRST, B: call}
    circle_of_two(world, child(call))
    assert len(asked(world)) == 1
    world.say(WORKER + world.homes[who], m.Unblocked(frames[who]))
    world.say(WORKER + world.homes[A], world.awaits[FIRST])
    assert world.take(m.Deadlock) == []
    world.call_waits(who, frames[who], task_id(500) + FIRST_RETURN)
    world.say(WORKER + world.homes[A], world.awaits[FIRST])
    assert world.take(m.Deadlock) == []
    assert world.scheduler.deadlocks._suspected == {}


def test_the_dead_wait_for_nobody(world: World) -> None:
    call = child(FIRST)
    world.call_waits(A, FIRST, call_value(call, 0), B)
    died(world, world.homes[A], None)
    world.call_waits(B, call, call_value(child(call), 0), A)
    assert world.told() == []


def test_what_is_said_of_what_does_not_wait_is_refused(world: World) -> None:
    before = world.scheduler.statistics().get("refused", 0)
    world.say(WORKER + world.homes[A], m.Awaits(FIRST, "K.ask", (), True))
    world.say(WORKER + b"\x07nobody0", m.Awaits(FIRST, "K.ask", (), True))
    assert world.scheduler.statistics()["refused"] == before + 2
