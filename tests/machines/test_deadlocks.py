"""Circles of actors and tasks that wait for each other, in the local scheduler: the driver is warned of lasting ones, others are listed."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_alone import DRIVER, JOB, OLD, Node, Restarted, died, task_id

from zfabric.machines.local_scheduler.actors.deadlocks import LOOK_EVERY, LOOKS
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Log
from zfabric.protocol.ids import CLIENT, FIRST_RETURN, WORKER, call_value, child_prefix, object_id, pack_counter

KIND, FUNCTION = b"k" * 16, b"f" * 16
A, B = task_id(0), task_id(1)
FIRST = task_id(100)
"""The call with which it begins: the driver's, of A."""


def child(parent: bytes, number: int = 0) -> bytes:
    """What a task or a call has submitted."""
    return child_prefix(JOB, parent) + pack_counter(number)


class World(Node):
    """A node with two actors, with reports of who waits for what."""

    def __init__(self) -> None:
        super().__init__(cpus=2)
        self.driver()
        self.send(CLIENT + DRIVER, m.Export(((KIND, "K", b"payload", (("actor", b"blueprint"), ("max_retries", 0))),)))
        self.submit((A, KIND, b"", (), (("name", "a"),)), (B, KIND, b"", (), (("name", "b"),)))
        self.workers()
        self.homes = {}
        for to, dispatch in self.take(m.Dispatch):
            for row in dispatch.rows:
                self.homes[row[0]] = to[1:]
                self.send(to, m.Completed.of(((row[0], 0, m.OK, (b"value",)),), (), ((KIND, 1, 0.001),)))
        self.workers()
        assert set(self.homes) == {A, B}

    def waits(self, worker: bytes, who: bytes, wanted: bytes, callee: bytes = b"", name: str = "", certain: bool = True) -> None:
        self.send(WORKER + worker, m.Blocked(who, (wanted,), (), not name))
        if name or callee:
            self.send(WORKER + worker, m.WaitDetails(who, name, ((wanted, callee),) if callee else (), certain))

    def call_waits(self, actor: bytes, call: bytes, wanted: bytes, callee: bytes = b"", certain: bool = True) -> None:
        self.waits(self.homes[actor], call, wanted, callee, "K.ask", certain)

    def look(self, times: int = LOOKS) -> None:
        """Time passes."""
        for _ in range(times):
            due = self.scheduler.deadlocks.look_at
            assert due is None or due <= self.now + LOOK_EVERY
            self.now += LOOK_EVERY
            self.scheduler.tick(self.now)
            self.turn()

    def warned(self, times: int = LOOKS) -> list[str]:
        """The circles that the driver is warned of while time passes."""
        self.look(times)
        texts = [message.text for to, message in self.take(m.Notice) if to == CLIENT + DRIVER]
        return [text.partition("end it: ")[2].partition(". Call")[0] for text in texts]

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
    assert world.warned() == []
    world.call_waits(B, call, call_value(last, 0), A, certain[1])


def test_the_driver_is_warned_of_a_circle_that_lasts_and_once(world: World) -> None:
    circle_of_two(world, child(child(FIRST)))
    assert world.warned(LOOKS - 1) == [], "a result may be on its way"
    assert world.warned(1) == ["K.ask (b) -> K.ask (a) -> K.ask (b)"]
    assert world.warned() == []
    assert world.scheduler.deadlocks.look_at is None
    assert "it waits for itself: K.ask (a) -> K.ask (b) -> K.ask (a)" in world.reason(A)
    assert "waiting for" in world.reason(B)
    assert "(call of K 1-" in world.reason(B)
    assert world.scheduler.statistics()["circles"] == 1
    world.send(WORKER + world.homes[B], m.Unblocked(child(FIRST)))
    assert "waits for itself" not in world.reason(A)
    world.call_waits(B, child(FIRST, 1), call_value(child(FIRST), 1), A)
    world.look(1)
    assert world.scheduler.deadlocks.warned == {}


def test_a_circle_closed_by_simultaneous_waits_is_warned_of_once(world: World) -> None:
    call = child(FIRST)
    world.call_waits(A, FIRST, call_value(call, 0), B)
    world.call_waits(B, call, call_value(child(call), 0), A)
    assert len(world.warned()) == 1


def test_two_actors_that_call_each_other_are_a_circle_whoever_called_them(world: World) -> None:
    """Each waits for a call of its own, which is behind what the other one runs."""
    other = task_id(101)
    world.call_waits(A, FIRST, call_value(child(FIRST), 0), B)
    world.call_waits(B, other, call_value(child(other), 0), A)
    assert len(world.warned()) == 1


def test_a_circle_through_a_call_of_another_process_is_found(world: World) -> None:
    """B waits for a call of A that the driver has made, and handed on: had it run, its result would have come."""
    world.send(CLIENT + DRIVER, m.ExpectResults(((call_value(task_id(99), 0), A),)))
    circle_of_two(world, task_id(99))
    assert len(world.warned()) == 1


def test_no_warning_if_an_actor_has_gone_on_meanwhile(world: World) -> None:
    circle_of_two(world, child(child(FIRST)))
    assert world.warned(LOOKS - 1) == []
    world.send(WORKER + world.homes[A], m.Unblocked(FIRST))
    world.call_waits(A, FIRST, call_value(child(FIRST, 7), 0), B)
    assert world.warned(1) == []
    assert len(world.warned()) == 1, "it waits for B again, which still waits for it"


@pytest.mark.parametrize("certain", [(True, False), (False, True)])
def test_no_warning_of_an_actor_that_goes_on_by_itself(world: World, certain: tuple[bool, bool]) -> None:
    circle_of_two(world, child(child(FIRST)), certain)
    assert world.warned() == []
    assert "it waits for itself" in world.reason(A)


def test_an_actor_that_waits_for_a_value_in_flight_is_in_no_circle(world: World) -> None:
    """B yields a value, and waits for a call of A, which waits for that value still."""
    call = child(FIRST)
    item = object_id(call, 1)
    for message in (m.ExpectResults(((call_value(call, 0), B, 0),)), m.Hold((item, object_id(call, 2))), m.Fetch((item,))):
        world.send(CLIENT + world.homes[A], message)
    world.call_waits(A, FIRST, item, B)
    world.send(WORKER + world.homes[B], m.Yielded(((call, 0, 0, b"value", ()),)))
    world.call_waits(B, call, call_value(child(call), 0), A)
    assert world.warned() == []
    world.send(WORKER + world.homes[A], m.Unblocked(FIRST))
    world.call_waits(A, FIRST, object_id(call, 2), B)
    assert len(world.warned()) == 1, "that is not to be"


def test_an_actor_that_is_being_killed_is_in_no_circle(world: World) -> None:
    call = child(FIRST)
    world.call_waits(A, FIRST, call_value(call, 0), B)
    world.send(CLIENT + DRIVER, m.KillActor(A, False))
    world.call_waits(B, call, call_value(child(call), 0), A)
    assert world.warned() == []


def test_a_chain_of_waits_is_no_circle(world: World) -> None:
    call = child(FIRST)
    world.call_waits(A, FIRST, call_value(call, 0), B)
    world.call_waits(B, call, call_value(child(call), 0), task_id(77))
    assert world.warned() == []
    assert "waits for itself" not in world.reason(A)


def run_task(world: World, actor: bytes, row: tuple[Any, ...]) -> bytes:
    """A task that a call has submitted is given to a worker."""
    world.send(CLIENT + world.homes[actor], m.Submit((row,)))
    world.workers()
    ((to, _),) = world.take(m.Dispatch)
    return to[1:]


def test_a_circle_through_a_task(world: World) -> None:
    task = child(FIRST)
    worker = run_task(world, A, (task, FUNCTION, b"", ()))
    world.call_waits(A, FIRST, task + FIRST_RETURN)
    world.waits(worker, task, call_value(child(task), 0), A)
    assert world.warned() in (["f -> K.ask (a) -> f"], ["K.ask (a) -> f -> K.ask (a)"])


@pytest.mark.parametrize("stops", [True, False])
def test_a_task_that_ends_by_itself_is_in_no_circle(world: World, stops: bool) -> None:
    task = child(FIRST)
    worker = run_task(world, A, (task, FUNCTION, b"", ()) if stops else (task, FUNCTION, b"", (), (("timeout", 5.0),)))
    if stops:
        world.send(CLIENT + world.homes[A], m.Cancel((task + FIRST_RETURN,), False, False))
    world.call_waits(A, FIRST, task + FIRST_RETURN)
    world.waits(worker, task, call_value(child(task), 0), A)
    assert "waits for itself" in world.reason(A)
    assert world.warned() == []


def test_a_circle_closed_by_a_task_that_waits_for_tasks(world: World) -> None:
    """It reports no calls, and the last to wait need not be the one that waits for the call."""
    outer = child(FIRST)
    inner = child(outer)
    first = run_task(world, A, (outer, FUNCTION, b"", (), (("inline", False),)))
    world.send(CLIENT + first, m.Submit(((inner, FUNCTION, b"", ()),)))
    world.workers()
    ((to, _),) = world.take(m.Dispatch)
    world.call_waits(A, FIRST, outer + FIRST_RETURN)
    world.waits(to[1:], inner, call_value(child(inner), 0), A)
    assert world.warned() == []
    world.waits(first, outer, inner + FIRST_RETURN)
    assert world.warned() == ["f -> f -> K.ask (a) -> f"]


def test_a_circle_through_an_argument(world: World) -> None:
    """The task has not begun: it waits for a call of the actor that waits for it."""
    own, task = child(FIRST), child(FIRST, 1)
    world.send(CLIENT + world.homes[A], m.ExpectResults(((call_value(own, 0), A),)))
    world.send(CLIENT + world.homes[A], m.Submit(((task, FUNCTION, b"", (call_value(own, 0),)),)))
    world.call_waits(A, FIRST, task + FIRST_RETURN)
    assert world.warned() == ["K.ask (a) -> f -> K.ask (a)"]


def test_a_task_with_a_timeout_is_in_no_circle(world: World) -> None:
    own, task = child(FIRST), child(FIRST, 1)
    world.send(CLIENT + world.homes[A], m.ExpectResults(((call_value(own, 0), A),)))
    world.send(CLIENT + world.homes[A], m.Submit(((task, FUNCTION, b"", (call_value(own, 0),), (("timeout", 5.0),)),)))
    world.call_waits(A, FIRST, task + FIRST_RETURN)
    assert world.warned() == []


def test_a_long_chain_of_waits_is_not_followed_to_its_end(world: World) -> None:
    """Each of very many tasks needs the one before it."""
    own = call_value(child(FIRST), 0)
    world.send(CLIENT + world.homes[A], m.ExpectResults(((own, A),)))
    tasks = [child(FIRST, number) for number in range(1, 3000)]
    needs = [own, *(each + FIRST_RETURN for each in tasks)]
    world.send(
        CLIENT + world.homes[A], m.Submit(tuple((each, FUNCTION, b"", (needed,)) for each, needed in zip(tasks, needs, strict=False)))
    )
    world.call_waits(A, FIRST, tasks[-1] + FIRST_RETURN)
    assert world.warned() == []
    world.send(WORKER + world.homes[A], m.Unblocked(FIRST))
    world.call_waits(A, FIRST, tasks[50] + FIRST_RETURN)
    assert len(world.warned()) == 1


@pytest.mark.parametrize("certain", [True, False])
def test_a_circle_through_an_actor_that_shares_its_process(world: World, certain: bool) -> None:
    """Such a process reports what its calls wait for when that has lasted for a while."""
    light, options = b"l" * 16, (("actor", b"blueprint"), ("max_retries", 0), ("lightweight", True))
    world.send(CLIENT + DRIVER, m.Export(((light, "Light", b"payload", options),)))
    third = task_id(2)
    world.submit((third, light, b"", ()))
    world.workers()
    ((to, _),) = world.take(m.Dispatch)
    world.send(to, m.Completed.of(((third, 0, m.OK, (b"value",)),), (), ((light, 1, 0.001),)))
    call = child(FIRST)
    world.call_waits(A, FIRST, call_value(call, 0), third)
    assert "waits for itself" not in world.reason(A)
    world.send(to, m.HostDelays(b"", ((third, call, (call_value(child(call), 0),), (A,), certain),)))
    assert f"it waits for itself: K.ask (a) -> Light (1-{third[4:6].hex()}-2) -> K.ask (a)" in world.reason(A)
    assert "-> K.ask (a) -> Light" in world.reason(third)
    assert len(world.warned()) == certain


def test_a_circle_in_a_shared_process_is_found_though_its_report_came_before_all_had_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler looks for circles only after a report, and does not know any actor before it has recovered."""
    light, options = b"l" * 16, (("actor", b"blueprint"), ("max_retries", 0), ("lightweight", True))
    second = child(FIRST)
    made = tuple(((actor, light, b"", (), ()), 0) for actor in (A, B))
    delays = m.HostDelays(b"", ((A, FIRST, (call_value(second, 0),), (B,), True), (B, second, (call_value(child(second), 0),), (A,), True)))
    node = Restarted()
    plain = node.send

    def look() -> None:
        node.now += LOOK_EVERY
        node.scheduler.tick(node.now)
        node.turn()

    def send(source: bytes, message: Any) -> None:
        if source == CLIENT + DRIVER and type(message) is m.Register:
            plain(WORKER + OLD, delays)
            look()
        plain(source, message)

    monkeypatch.setattr(node, "send", send)
    held = m.Hold((A + FIRST_RETURN, B + FIRST_RETURN))
    node.rejoin((), (CLIENT, m.HostedActors(made)), functions=((light, "Light", b"payload", options),), held=(held,))
    for _ in range(LOOKS):
        look()
    assert [to for to, message in node.take(m.Notice) if "wait for each other" in message.text] == [CLIENT + DRIVER]


def test_a_circle_of_a_program_without_a_driver_is_in_the_log_of_the_daemon(world: World) -> None:
    circle_of_two(world, child(child(FIRST)))
    for job in world.scheduler.tables.jobs.values():
        job.driver = None
    assert world.warned() == []
    (output,) = [effect.text for effect in world.effects if isinstance(effect, Log) and effect.level == "warning"]
    assert "K.ask (b) -> K.ask (a) -> K.ask (b)" in output


def test_dead_actors_are_in_no_circle(world: World) -> None:
    call = child(FIRST)
    world.call_waits(A, FIRST, call_value(call, 0), B)
    died(world, world.homes[A], None)
    world.call_waits(B, call, call_value(child(call), 0), A)
    assert world.warned() == []


def test_reports_of_waits_by_actors_that_do_not_wait_are_refused(world: World) -> None:
    before = world.scheduler.statistics().get("refused", 0)
    world.send(WORKER + world.homes[A], m.WaitDetails(FIRST, "K.ask", (), True))
    world.send(WORKER + b"\x07nobody0", m.WaitDetails(FIRST, "K.ask", (), True))
    assert world.scheduler.statistics()["refused"] == before + 2
