"""Logged actors that call themselves: a restart loses none of these calls, and makes none of them twice."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import numpy as np
import pytest
from conftest import one_cluster, running_cluster
from faults import PATIENCE, damage_what_is_on_disk, eventually, kill_daemon
from logs_alone import ACTOR, Actor, next_incarnation

import zfabric as zf
from zfabric.machines.common.tables import calls_in
from zfabric.protocol import messages as m
from zfabric.runtime import interface

shared = one_cluster(autouse=False, config={"restart_backoff_max": 0.05})


def me() -> Any:
    return zf.get_runtime_context().current_actor


def get(refs: Any) -> Any:
    return zf.get(refs, timeout=PATIENCE)


@zf.remote
def same(value: Any) -> Any:
    return value


@zf.remote(max_restarts=-1, checkpoint_every=10)
class Chain:
    """Each step calls the next one."""

    def __init__(self, first: int = -1) -> None:
        self.steps: list[int] = []
        self.last: Any = None
        if first >= 0:
            me().step.remote(first)

    def step(self, left: int) -> int:
        self.steps.append(left)
        if left:
            self.last = me().step.remote(left - 1)
        return left * 10

    def two_ways(self, left: int, box: Any) -> None:
        self.steps.append(left)
        if left:
            me().two_ways.remote(left - 1, box)
            me().note.remote(-left)

    def note(self, number: int) -> int:
        self.steps.append(number)
        return number * 10

    def ask(self, number: int) -> None:
        self.last = me().note.remote(number)

    def answer(self) -> Any:
        return zf.get(self.last, timeout=PATIENCE)

    def note_large(self, number: int) -> Any:
        self.steps.append(number)
        me().note.remote(-number)
        return np.full(200_000, number)

    def large(self, number: int) -> Any:
        self.steps.append(number)
        return np.full(200_000, number)

    def boxed(self, number: int) -> list[Any]:
        self.steps.append(number)
        return [zf.put(number)]

    def ask_for(self, method: str, number: int) -> None:
        self.last = getattr(me(), method).remote(number)

    def answer_in_full(self) -> int:
        value = zf.get(self.last, timeout=PATIENCE)
        return int(value[-1] if isinstance(value, np.ndarray) else zf.get(value[0], timeout=PATIENCE))

    @zf.method(readonly=True)
    def read(self) -> tuple[int, list[int]]:
        return os.getpid(), list(self.steps)

    def ask_in_vain(self, number: int) -> None:
        self.last = me().note.options(timeout=0.2).remote(number)
        zf.wait([self.last], timeout=PATIENCE)

    def failure(self) -> str:
        try:
            return str(zf.get(self.last, timeout=PATIENCE))
        except zf.exceptions.FabricError as error:
            return type(error).__name__

    def of_a_task(self, left: int, value: int) -> None:
        self.steps.append(value)
        if left:
            me().of_a_task.remote(left - 1, same.remote(left))

    def that_was_put(self, left: int, value: int) -> None:
        self.steps.append(value)
        if left:
            me().that_was_put.remote(left - 1, zf.put(left))

    def step_with(self, left: int, before: int) -> None:
        self.steps.append(left)
        if left:
            me().step_with.remote(left - 1, me().same.remote(left))

    def same(self, number: int) -> int:
        return number

    @zf.method(readonly=True)
    def look_and_note(self, number: int) -> int:
        me().note.remote(number)
        return -number

    @zf.method(readonly=True)
    def look_and_step(self, left: int) -> None:
        me().step.remote(left)


def kill_when(actor: Any, count: int) -> None:
    """Once it has taken so many steps."""
    found: list[Any] = []

    def far_enough() -> bool:
        found[:] = get(actor.read.remote())
        return len(found[1]) >= count

    eventually(far_enough, f"{count} steps are taken")
    os.kill(found[0], signal.SIGKILL)


@pytest.mark.parametrize("every", [0, 1, 10, 1000])
def test_a_chain_of_own_calls_continues_whenever_its_actor_is_killed(shared: Any, every: int) -> None:
    chance = random.Random(every)
    actor = Chain.options(checkpoint_every=every).remote()
    actor.step.remote(200)
    at = 0
    while at < 175:
        at += chance.randrange(1, 60)
        kill_when(actor, min(at, 195))
        if chance.random() < 0.4:
            kill_daemon()
    eventually(lambda: len(get(actor.read.remote())[1]) >= 201, "all steps are taken")
    assert get(actor.read.remote())[1] == list(range(200, -1, -1))


@pytest.mark.parametrize("every", [0, 3])
def test_several_calls_each_with_a_ref_among_their_arguments(shared: Any, every: int) -> None:
    actor = Chain.options(checkpoint_every=every).remote()
    actor.two_ways.remote(40, [zf.put("kept by what waits")])
    for at in (3, 25, 60):
        kill_when(actor, at)
    eventually(lambda: len(get(actor.read.remote())[1]) >= 81, "all steps are taken")
    steps = get(actor.read.remote())[1]
    assert [each for each in steps if each >= 0] == list(range(40, -1, -1))
    assert [each for each in steps if each < 0] == list(range(-40, 0))


@pytest.mark.parametrize("every", [0, 1, 5])
def test_calls_by_init_survive_a_restart(shared: Any, every: int) -> None:
    actor = Chain.options(checkpoint_every=every).remote(30)
    kill_when(actor, 10)
    kill_when(actor, 20)
    eventually(lambda: len(get(actor.read.remote())[1]) >= 31, "all steps are taken")
    assert get(actor.read.remote())[1] == list(range(30, -1, -1))


@pytest.mark.parametrize("every", [0, 1, 2])
def test_the_value_of_an_own_call_is_available_after_a_restart(shared: Any, every: int) -> None:
    actor = Chain.options(checkpoint_every=every).remote()
    get(actor.ask.remote(7))
    eventually(lambda: get(actor.read.remote())[1] == [7], "what was called has run")
    assert get(actor.answer.remote()) == 70
    kill_when(actor, 1)
    assert get(actor.answer.remote()) == 70
    assert get(actor.read.remote())[1] == [7]


@pytest.mark.parametrize("method", ["large", "boxed"])
def test_a_value_missing_from_the_log_is_available_after_a_restart(shared: Any, method: str) -> None:
    actor = Chain.options(checkpoint_every=0).remote()
    get(actor.ask_for.remote(method, 7))
    for _ in range(2):
        kill_when(actor, 1)
        assert get(actor.answer_in_full.remote()) == 7
    assert get(actor.read.remote())[1] == [7]


@pytest.mark.parametrize("every", [0, 1, 7])
def test_own_calls_that_need_values_of_others_continue(shared: Any, every: int) -> None:
    actor = Chain.options(checkpoint_every=every).remote()
    actor.step_with.remote(80, 0)
    for at in (10, 30, 60):
        kill_when(actor, at)
    eventually(lambda: len(get(actor.read.remote())[1]) >= 81, "all steps are taken")
    assert get(actor.read.remote())[1] == list(range(80, -1, -1))


@pytest.mark.parametrize("every", [0, 7])
@pytest.mark.parametrize("how", ["of_a_task", "that_was_put"])
def test_values_of_tasks_and_puts_are_available_to_waiting_own_calls(shared: Any, every: int, how: str) -> None:
    actor = Chain.options(checkpoint_every=every).remote()
    getattr(actor, how).remote(60, 61)
    for at in (10, 40):
        kill_when(actor, at)
    eventually(lambda: len(get(actor.read.remote())[1]) >= 61, "all steps are taken")
    assert get(actor.read.remote())[1] == list(range(61, 0, -1)), "each step has the value that the one before has made"


@pytest.mark.parametrize("every", [0, 1])
def test_a_readonly_method_in_the_middle_is_not_replayed_with_its_calls(shared: Any, every: int) -> None:
    actor = Chain.options(checkpoint_every=every).remote()
    get(actor.ask_for.remote("look_and_note", 7))
    eventually(lambda: get(actor.read.remote())[1] == [7], "all that was called has run")
    for _ in range(2):
        kill_when(actor, 1)
        assert get(actor.answer.remote()) == -7
        get(actor.note.remote(0))
    assert get(actor.read.remote())[1] == [7, 0, 0]


@pytest.mark.parametrize("every", [0, 1])
def test_own_calls_stopped_before_they_ran_are_not_run_by_the_next_life(shared: Any, every: int) -> None:
    actor = Chain.options(checkpoint_every=every).remote()
    get(actor.ask_in_vain.remote(7))
    assert get(actor.failure.remote()) == "TaskTimeoutError"
    kill_when(actor, 0)
    assert get(actor.failure.remote()) == "TaskTimeoutError"
    assert get(actor.read.remote())[1] == []


def test_a_readonly_method_and_its_own_calls_are_not_replayed(shared: Any) -> None:
    actor = Chain.options(checkpoint_every=0).remote()
    get(actor.look_and_step.remote(3))
    eventually(lambda: len(get(actor.read.remote())[1]) == 4, "the steps are taken")
    get(actor.step.remote(0))
    kill_when(actor, 5)
    assert get(actor.step.remote(0)) == 0
    assert get(actor.read.remote())[1] == [3, 2, 1, 0, 0, 0]


def test_replayed_calls_for_a_lost_value_make_no_calls() -> None:
    with running_cluster(object_store_memory=32 * 2**20, config={"put_patience": PATIENCE}):
        actor = Chain.options(checkpoint_every=0).remote()
        refs = [actor.note_large.remote(number) for number in range(1, 41)]
        eventually(lambda: len(get(actor.read.remote())[1]) == 80, "all that was called has run")
        damaged = damage_what_is_on_disk({each.hex() for each in refs})
        lost = [ref for ref in refs if ref.hex() in damaged]
        assert lost
        get(lost)
        client: Any = interface.current()
        assert client.query("nothing") is None
        assert len(get(actor.read.remote())[1]) == 80


# -- the log alone ---------------------------------------------------------------------------------------------------------------------


def own(number: int, *more: Any) -> tuple[Any, ...]:
    return (number.to_bytes(16, "big"), "add", b"", *more)


def waiting(actor: Actor) -> list[int]:
    return [int.from_bytes(call_id, "big") for call_id in actor.log.own.waiting]


def test_a_row_lists_its_own_calls_and_pending_ones_wait_in_the_next_life() -> None:
    actor = Actor()
    actor.call(1)
    actor.log.own.make(own(10), True)
    actor.log.own.make(own(11), True)
    actor.run()
    actor.call(10)
    actor.log.own.make(own(12), True)
    actor.run()
    (block,) = actor.sent(m.LogAppended)
    assert [tuple(int.from_bytes(row[0], "big") for row in call.calls) for call in calls_in(block.rows)] == [(10, 11), (12,)]
    assert waiting(next_incarnation([block])[0]) == [11, 12]


def test_a_checkpoint_contains_pending_own_calls_and_pins_their_arguments() -> None:
    actor = Actor(every=1)
    actor.call(1)
    needed, inside = b"n" * 20, b"i" * 20
    actor.log.own.make(own(10, (needed, ACTOR + bytes(4)), (), (("contains", (inside,)),)), True)
    actor.run()
    actor.log.checkpoint(b"state", ())
    (block,) = actor.sent(m.LogAppended)
    (checkpoint,) = actor.sent(m.Checkpoint)
    assert block.refs == (needed, inside)
    assert checkpoint.refs == (needed, inside)
    after, state, rows = next_incarnation([], checkpoint.data, 1, every=1)
    assert (state, rows, waiting(after)) == (b"state", [], [10])
    actor.call(2)
    actor.run()
    (block,) = actor.sent(m.LogAppended)
    assert calls_in(block.rows)[0].calls == (), "what was made before a checkpoint is no part of what comes after"


def test_own_calls_with_an_outcome_that_never_ran_are_not_repeated() -> None:
    actor = Actor()
    actor.log.own.make(own(10), True)
    actor.log.own.make(own(11), True)
    actor.log.own.retain_only([own(11)[0]])
    assert waiting(actor) == [11]


def test_readonly_and_stopped_own_calls_are_recorded_in_the_next_row() -> None:
    actor = Actor()
    actor.log.readonly = frozenset(["look"])
    actor.call(1)
    actor.log.own.make((own(10)[0], "look", b""), True)
    actor.log.own.make(own(11), True)
    actor.run()
    actor.log.own.ended(own(11)[0], (m.FAILED, (b"stopped",)), False)
    actor.log.own.make((own(12)[0], "look", b""), False)
    actor.log.own.ended(own(12)[0], (m.OK, (b"of a call that no row has",)), False)
    (block,) = actor.sent(m.LogAppended)
    assert waiting(next_incarnation([block])[0]) == [10, 11]
    actor.call(2)
    actor.run()
    (after,) = actor.sent(m.LogAppended)
    assert calls_in(after.rows)[0].calls == ((own(11)[0], (m.FAILED, (b"stopped",))),)
    assert waiting(next_incarnation([block, after])[0]) == [10]


def test_a_checkpoint_contains_outcomes_that_pending_own_calls_need() -> None:
    actor = Actor(every=1)
    actor.call(1)
    first, value = own(10), (10).to_bytes(16, "big") + bytes(4)
    actor.log.own.make(first, True)
    actor.log.own.make(own(11, (value,), (), None), True)
    actor.run()
    actor.call(10)
    actor.run((b"ten",))
    actor.log.checkpoint(b"state", ())
    (checkpoint,) = actor.sent(m.Checkpoint)
    after, _, _ = next_incarnation([], checkpoint.data, 2, every=1)
    assert waiting(after) == [11]
    assert after.log.own.needed == {first[0]: (m.OK, (b"ten",))}
    after.log.own.ended(own(11)[0], (m.OK, (b"",)))
    assert after.log.own.needed == {}
