"""Actors as programs use them: made, called in order, passed around, found by name, counted. Real processes."""

from __future__ import annotations

import asyncio
import atexit
import copy
import functools
import gc
import inspect
import os
import pickle
import pydoc
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import one_cluster
from faults import PATIENCE, eventually, failure, gone, query

import zfabric as zf
from zfabric.protocol.ids import short
from zfabric.runtime import interface

shared = one_cluster()


def value_of(ref: Any) -> Any:
    return zf.get(ref, timeout=PATIENCE)


def death_of(method: Any) -> BaseException:
    """What calls raise once the actor is dead; its callers are notified a moment later."""

    def error() -> BaseException | None:
        try:
            value_of(method.remote())
        except zf.ActorDiedError as death:
            return death
        return None

    found: BaseException = eventually(error, "the actor is dead")
    return found


@zf.remote
class Counter:
    """Counts."""

    def __init__(self, start: int = 0, *, step: int = 1) -> None:
        self.value = start
        self.step = step

    def add(self, amount: int | None = None) -> int:
        """Count on."""
        self.value += self.step if amount is None else amount
        return self.value

    def read(self) -> int:
        return self.value

    def pid(self) -> int:
        return os.getpid()


@zf.remote
class Recorder:
    """Keeps what it is given, in the order in which it came."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def note(self, value: Any) -> Any:
        self.seen.append(value)
        return value

    def all(self) -> list[Any]:
        return self.seen


@zf.remote
class Gate:
    """Calls of it wait at a file: nothing behind them runs before it is there."""

    def pid(self) -> int:
        return os.getpid()

    def pass_when(self, path: str) -> str:
        while not os.path.exists(path):
            time.sleep(0.002)
        return path


@zf.remote
def identity(value: Any) -> Any:
    return value


# --- state, order -------------------------------------------------------------------------------------------------------------


def test_an_actor_keeps_its_state_between_calls() -> None:
    counter = Counter.remote(10, step=2)
    assert value_of([counter.add.remote(), counter.add.remote(5), counter.add.remote(amount=1), counter.read.remote()]) == [12, 17, 18, 18]


def test_each_actor_has_a_process_of_its_own() -> None:
    pids = value_of([counter.pid.remote() for counter in (Counter.remote(), Counter.remote())])
    assert len({*pids, os.getpid()}) == 3


def test_calls_of_one_caller_run_in_the_order_in_which_they_were_made() -> None:
    recorder = Recorder.remote()
    for index in range(2000):
        recorder.note.remote(index)
    assert value_of(recorder.all.remote()) == list(range(2000))


@zf.remote
def notes(recorder: Any, name: int, count: int) -> list[Any]:
    return zf.get([recorder.note.remote((name, index)) for index in range(count)])


def test_calls_of_several_callers_are_each_in_order() -> None:
    recorder = Recorder.remote()
    callers = [notes.remote(recorder, name, 300) for name in range(4)]
    mine = [recorder.note.remote((4, index)) for index in range(300)]
    results = [*value_of(callers), value_of(mine)]
    assert results == [[(name, index) for index in range(300)] for name in range(5)]
    seen = value_of(recorder.all.remote())
    assert len(seen) == 1500
    for name in range(5):
        assert [index for caller, index in seen if caller == name] == list(range(300))


def test_a_call_whose_argument_does_not_exist_yet_blocks_later_calls(tmp_path: Path) -> None:
    gate, recorder = Gate.remote(), Recorder.remote()
    go = str(tmp_path / "go")
    first = recorder.note.remote(gate.pass_when.remote(go))
    second = recorder.note.remote("second")
    ready, _ = zf.wait([second], timeout=0)
    assert ready == []
    Path(go).touch()
    assert value_of([first, second]) == [go, "second"]
    assert value_of(recorder.all.remote()) == [go, "second"]


# --- arguments and results ----------------------------------------------------------------------------------------------------


def test_large_arguments_and_results() -> None:
    recorder = Recorder.remote()
    array = np.arange(3_000_000)
    returned = recorder.note.remote(array)
    assert (value_of(returned) == array).all()
    put = zf.put(array + 1)
    assert (value_of(recorder.note.remote(put)) == array + 1).all()
    assert (value_of(recorder.note.remote(identity.remote(array + 2))) == array + 2).all()
    assert (value_of(identity.remote(recorder.note.remote(array + 3))) == array + 3).all(), "a large result goes on to a task"
    assert [int(each[0]) for each in value_of(recorder.all.remote())] == [0, 1, 2, 3]


def test_small_results_are_arguments_of_tasks_and_other_actors() -> None:
    counter, recorder = Counter.remote(), Recorder.remote()
    refs = [counter.add.remote() for _ in range(100)]
    assert value_of([identity.remote(ref) for ref in refs]) == list(range(1, 101))
    assert value_of([recorder.note.remote(ref) for ref in refs]) == list(range(1, 101))


def test_refs_inside_arguments_and_results() -> None:
    recorder = Recorder.remote()
    inner = identity.remote("from a task")
    (kept,) = value_of(recorder.note.remote([inner]))
    assert isinstance(kept, zf.ObjectRef)
    del inner
    assert value_of(kept) == "from a task"
    call = recorder.note.remote("from a call")
    (of_call,) = value_of(recorder.note.remote([call]))
    del call
    assert value_of(of_call) == "from a call"


@zf.remote
class Keeper:
    """Keeps refs, and makes values of its own."""

    def __init__(self) -> None:
        self.refs: list[zf.ObjectRef] = []

    def keep(self, refs: list[zf.ObjectRef]) -> None:
        self.refs = refs

    def values(self) -> list[Any]:
        return zf.get(self.refs)

    def made(self, count: int) -> list[zf.ObjectRef]:
        return [zf.put(np.full(200_000, index)) for index in range(count)]

    def asked(self, value: Any) -> list[zf.ObjectRef]:
        return [identity.remote(value)]


def test_an_actor_retains_its_refs() -> None:
    keeper = Keeper.remote()
    large, small = zf.put(np.ones(500_000)), identity.remote(7)
    value_of(keeper.keep.remote([large, small]))
    del large, small
    first, second = value_of(keeper.values.remote())
    assert first.sum() == 500_000
    assert second == 7


def test_refs_that_an_actor_made_outlive_the_call() -> None:
    keeper = Keeper.remote()
    refs = value_of(keeper.made.remote(3))
    assert [int(value[0]) for value in value_of(refs)] == [0, 1, 2]
    (ref,) = value_of(keeper.asked.remote("by a task of the actor's"))
    assert value_of(ref) == "by a task of the actor's"


@zf.remote
class Several:
    @zf.method(num_returns=2)
    def two(self) -> tuple[int, Any]:
        return 1, np.ones(100_000)

    def three(self) -> list[int]:
        return [1, 2, 3]

    @zf.method(num_returns=0)
    def nothing(self) -> None:
        return None


def test_methods_with_several_values_or_none() -> None:
    several = Several.remote()
    one, array = several.two.remote()
    assert value_of(one) == 1
    assert value_of(array).sum() == 100_000
    assert value_of(several.three.options(num_returns=3).remote()) == [1, 2, 3]
    assert several.nothing.remote() is None
    wrong = failure(several.three.options(num_returns=2).remote()[0])
    assert isinstance(wrong, ValueError)
    assert "Several.three declares num_returns=2" in str(wrong)


# --- handles ------------------------------------------------------------------------------------------------------------------


@zf.remote
def add_from_a_task(counter: Any, times: int) -> list[int]:
    return zf.get([counter.add.remote() for _ in range(times)])


@zf.remote
class Boss:
    """Calls another actor."""

    def __init__(self, counter: Any) -> None:
        self.counter = counter

    def add(self) -> int:
        return int(zf.get(self.counter.add.remote()))

    def handle(self) -> Any:
        return self.counter

    def own(self) -> Any:
        self.made = Counter.remote(100)
        return self.made


def test_handles_are_passed_to_tasks_and_actors_and_returned() -> None:
    counter = Counter.remote()
    assert value_of(add_from_a_task.remote(counter, 3)) == [1, 2, 3]
    boss = Boss.remote(counter)
    assert value_of(boss.add.remote()) == 4
    back = value_of(boss.handle.remote())
    assert back == counter
    assert value_of(back.add.remote()) == 5
    assert value_of(value_of(boss.own.remote()).add.remote()) == 101
    assert value_of(value_of(zf.put({"handle": counter}))["handle"].add.remote()) == 6


def test_the_actor_ends_with_its_last_handle_but_runs_the_calls_made_before(tmp_path: Path) -> None:
    gate = Gate.remote()
    pid = value_of(gate.pid.remote())
    go = str(tmp_path / "go")
    calls = [gate.pass_when.remote(go) for _ in range(3)]
    del gate
    Path(go).touch()
    assert value_of(calls) == [go] * 3
    eventually(lambda: gone(pid), "the actor ended with its last handle")


def test_a_handle_whose_methods_were_used_is_freed_with_its_last_reference() -> None:
    counter = Counter.remote()
    assert counter.add is counter.add, "it is made once"
    gone_at_once = weakref.ref(counter)
    gc.disable()
    try:
        del counter
        assert gone_at_once() is None
    finally:
        gc.enable()


def test_a_handle_in_a_task_retains_the_actor() -> None:
    counter = Counter.remote()
    ref = add_from_a_task.remote(counter, 50)
    del counter
    assert value_of(ref) == list(range(1, 51))


def test_a_handle_that_another_actor_has_counts() -> None:
    counter = Counter.remote()
    pid = value_of(counter.pid.remote())
    boss = Boss.remote(counter)
    assert value_of(boss.add.remote()) == 1
    del counter
    assert value_of(boss.add.remote()) == 2
    assert not gone(pid)
    del boss
    eventually(lambda: gone(pid), "both actors ended")


@zf.remote
class Polite:
    """Says goodbye in a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> Polite:
        return self

    def __exit__(self, *how: object) -> None:
        Path(self.path).write_text("goodbye")

    def pid(self) -> int:
        return os.getpid()


def test_a_clean_end_runs_exit(tmp_path: Path) -> None:
    path = tmp_path / "said"
    polite = Polite.remote(str(path))
    pid = value_of(polite.pid.remote())
    del polite
    eventually(lambda: gone(pid), "the actor ended")
    assert path.read_text() == "goodbye"


def test_repr_and_equality_of_handles() -> None:
    counter = Counter.remote()
    assert {"add", "read", "pid"} <= set(dir(counter))
    assert not hasattr(counter, "__enter__")
    assert counter.__doc__ == "Counts."
    assert "Count on." in (counter.add.__doc__ or "")
    assert str(inspect.signature(counter.add)) == "(amount: 'int | None' = None) -> 'int'"
    assert pydoc.plaintext.document(counter.add).count("Count on.") == 1
    with pytest.raises(AttributeError, match="called with"):
        counter.add.locally()
    assert repr(counter.add) == "ActorMethod(Counter.add(amount: 'int | None' = None) -> 'int')"
    assert repr(counter) == f"ActorHandle(Counter, {short(counter._actor_id)})"
    assert counter in {counter}


# --- the caller's mistakes ----------------------------------------------------------------------------------------------------


def test_a_method_that_does_not_exist() -> None:
    counter = Counter.remote()
    with pytest.raises(AttributeError, match=r"Counter has no method 'ad'.*'add'"):
        counter.ad.remote()
    assert not hasattr(counter, "value"), "attributes are not methods"


def test_wrong_arity_is_an_error_at_the_call() -> None:
    counter = Counter.remote()
    with pytest.raises(TypeError, match=r"Counter.add.remote\(\): too many positional arguments"):
        counter.add.remote(1, 2)
    with pytest.raises(TypeError, match=r"Counter.add.remote\(\): .*'much'"):
        counter.add.remote(much=1)
    with pytest.raises(TypeError, match=r"Recorder.note.remote\(\): missing a required argument: 'value'"):
        Recorder.remote().note.remote()
    with pytest.raises(TypeError, match=r"Counter.remote\(\): .*'pace'; it takes \(start"):
        Counter.remote(pace=2)
    assert value_of(counter.add.remote()) == 1, "nothing of it was called"


NOTHING = object()


@zf.remote
class Odd:
    """Methods whose defaults and annotations are no code, when they are written down."""

    def sentinel(self, x: int, key: Any = NOTHING, *, kind: Any = pytest) -> bool:
        return key is NOTHING

    def positional(self, x: Any, /, y: Any = lambda: 1, *rest: Any, z: Any = os.environ, **more: Any) -> Any:
        return x

    def annotated(self, x: Any) -> Any:
        return x

    annotated.__annotations__["x"] = NOTHING


def test_arity_is_checked_whatever_defaults_and_annotations_are() -> None:
    odd = Odd.remote()
    assert repr(odd.sentinel) == "ActorMethod(Odd.sentinel(x: 'int', key: 'Any' = ..., *, kind: 'Any' = ...) -> 'bool')"
    for call in (
        odd.sentinel.remote,
        lambda: odd.sentinel.remote(1, 2, 3),
        lambda: odd.sentinel.remote(1, kin=2),
        odd.positional.remote,
        lambda: odd.positional.remote(x=1),
        odd.annotated.remote,
    ):
        with pytest.raises(TypeError, match=r"Odd\.\w+\.remote\(\): "):
            call()
    assert value_of([odd.sentinel.remote(1), odd.positional.remote(1, 2, 3, a=4), odd.annotated.remote(x=5)]) == [True, 1, 5]


def test_a_wrong_call_names_what_to_write() -> None:
    counter = Counter.remote()
    with pytest.raises(TypeError, match=r"Counter\.remote\("):
        Counter()
    with pytest.raises(TypeError, match=r"\.add\.remote\("):
        counter.add()
    with pytest.raises(TypeError, match="make an actor with"):
        Counter.add.remote()
    with pytest.raises(AttributeError, match=r"did you mean 'add'.*make an actor with"):
        Counter.ad  # noqa: B018
    with pytest.raises(TypeError, match=r"zf\.cancel"):
        zf.kill(counter.add.remote())
    with pytest.raises(TypeError, match="for methods of actors"):
        zf.exit_actor()
    with pytest.raises(zf.OptionError, match="max_restarts"):
        Counter.options(max_restart=1)


# --- inheritance --------------------------------------------------------------------------------------------------------------


class Base:
    def __init__(self, name: str) -> None:
        self.name = name

    def greet(self) -> str:
        return f"{self.title()} {self.name}"

    def title(self) -> str:
        return "nobody"

    @classmethod
    def kind(cls) -> str:
        return cls.__name__

    @staticmethod
    def double(number: int) -> int:
        return 2 * number


class Derived(Base):
    def title(self) -> str:
        return "Dr."

    def greet(self) -> str:
        return super().greet() + "!"


def test_methods_are_inherited() -> None:
    derived = zf.remote(Derived).remote("Who")
    assert value_of([derived.greet.remote(), derived.kind.remote(), derived.double.remote(4)]) == ["Dr. Who!", "Derived", 8]
    assert value_of(zf.remote(Base).remote("else").greet.remote()) == "nobody else"


# --- classes as their programs know them --------------------------------------------------------------------------------------


@zf.remote
class Shadowed:
    """Its instances use the names of its methods for something else."""

    LIMIT = 7
    made = 0

    def __init__(self) -> None:
        self.value = 1
        self.twice = self.later = self.name_of = None
        Shadowed.made += 1

    def value(self) -> int:  # type: ignore[no-redef]
        return 10 * self.value  # type: ignore[operator]

    @staticmethod
    def twice(number: int) -> int:  # type: ignore[no-redef]
        return 2 * number

    @classmethod
    def name_of(cls) -> str:  # type: ignore[no-redef]
        return cls.__name__

    def by_class(self) -> list[Any]:
        return [Shadowed.LIMIT, Shadowed.twice(3), Shadowed.name_of(), Shadowed.value(self), Shadowed.made, self.made]


def test_a_method_is_called_although_its_instance_has_an_attribute_of_that_name() -> None:
    shadowed = Shadowed.remote()
    assert value_of([shadowed.value.remote(), shadowed.twice.remote(4), shadowed.name_of.remote()]) == [10, 8, "Shadowed"]


def test_a_remote_class_has_the_attributes_of_its_class() -> None:
    assert (Shadowed.LIMIT, Shadowed.twice(5), Shadowed.name_of()) == (7, 10, "Shadowed")
    assert {"LIMIT", "twice", "by_class", "remote", "options"} <= set(dir(Shadowed))
    assert inspect.signature(Shadowed.by_class).parameters.keys() == {"self"}

    @zf.remote
    class Local:
        LIMIT = 1

        def limit(self) -> tuple[int, int]:
            return Local.LIMIT, self.LIMIT

    Local.LIMIT = 2
    assert value_of(Local.remote().limit.remote()) == (2, 2)
    Local.LIMIT = 3
    assert value_of(Local.remote().limit.remote()) == (3, 3), "also once there are actors"
    del Local.LIMIT
    with pytest.raises(AttributeError):
        value_of(Local.remote().limit.remote())
    assert value_of(Shadowed.remote().by_class.remote()) == [7, 6, "Shadowed", 10, 1, 1]


def test_a_wrapper_may_take_the_instance_among_its_arguments() -> None:
    def counted(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return len(args), len(kwargs), function(*args, **kwargs)

        return wrapper

    @zf.remote
    class Wrapped:
        @counted
        def add(self, first: int, second: int = 0) -> int:
            return first + second

    wrapped = Wrapped.remote()
    calls = [wrapped.add.remote(1, 2), wrapped.add.remote(1, second=3), wrapped.add.remote(first=1)]
    assert value_of(calls) == [(3, 0, 3), (2, 1, 4), (1, 1, 1)]
    assert list(inspect.signature(wrapped.add).parameters) == ["args", "kwargs"]


def test_methods_are_values() -> None:
    @zf.remote
    def call(method: Any, *args: Any) -> Any:
        return zf.get(method.remote(*args))

    counter = Counter.remote()
    assert value_of(call.remote(counter.add, 5)) == 5
    for again in (copy.copy(counter.add), copy.deepcopy(counter.add), pickle.loads(pickle.dumps(counter.add))):
        assert again == counter.add
        assert hash(again) == hash(counter.add)
    add = copy.copy(counter.add.options(num_returns=1))
    del counter
    assert value_of(call.remote(add, 1)) == 6


@zf.remote
class Lonely:
    """Keeps a handle of itself."""

    def __init__(self) -> None:
        self.me = zf.get_runtime_context().current_actor

    def pid(self) -> int:
        return os.getpid()

    def give(self) -> Any:
        return self.me


def test_an_actors_handle_of_itself_does_not_retain_it() -> None:
    actor = Lonely.remote()
    pid, given = value_of([actor.pid.remote(), actor.give.remote()])
    assert value_of(given.pid.remote()) == pid
    del actor
    eventually(lambda: gone(pid), "it ends with its last handle that counts")
    assert isinstance(death_of(given.pid), zf.ActorDiedError)


def test_a_handle_from_get_actor_does_not_retain_the_actor() -> None:
    @zf.remote
    def pass_on(handle: Any) -> tuple[int, Any]:
        return zf.get(handle.pid.remote()), handle

    actor = Lonely.options(name="lonely").remote()
    found = zf.get_actor("lonely")
    assert found == actor
    pid, again = value_of(pass_on.remote(found))
    assert value_of([found.pid.remote(), again.pid.remote(), copy.copy(found).pid.remote()]) == [pid] * 3
    method, counts = found.pid, Lonely.options(name="lonely", get_if_exists=True).remote()
    del actor
    assert value_of(method.remote()) == pid
    del counts
    eventually(lambda: gone(pid), "it ends with its last handle that counts")
    assert isinstance(death_of(method), zf.ActorDiedError)
    client: Any = interface.current()
    eventually(lambda: not any(each == found._actor_id for each in client.machine.calls.targets), "nothing is kept of it")


def hide(handle: Any) -> None:
    """Leave a handle to the garbage collector."""
    cycle = [handle]
    cycle.append(cycle)


@zf.remote
class Hoarder:
    """Makes an actor that holds both CPUs, and forgets it in a cycle."""

    def __init__(self) -> None:
        gc.disable()

    def hoard(self) -> None:
        made = Counter.options(num_cpus=2).remote()
        zf.get(made.add.remote())
        hide(made)


@pytest.mark.parametrize("where", ["driver", "actor"])
def test_collecting_a_handle_in_a_cycle_frees_its_actors_resources(where: str) -> None:
    @zf.remote
    def pid() -> int:
        return os.getpid()

    hoarder = Hoarder.options(num_cpus=0).remote()
    gc.disable()
    try:
        if where == "driver":
            made = Counter.options(num_cpus=2).remote()
            value_of(made.add.remote())
            hide(made)
            del made
        else:
            value_of(hoarder.hoard.remote())
        assert value_of(pid.remote()) > 0
    finally:
        gc.enable()


# --- names --------------------------------------------------------------------------------------------------------------------


def test_a_name_belongs_to_one_living_actor() -> None:
    first = Counter.options(name="the one").remote(1)
    assert value_of(first.read.remote()) == 1
    found = zf.get_actor("the one")
    assert found == first
    with pytest.raises(zf.ActorNameTakenError, match="get_if_exists=True"):
        Counter.options(name="the one").remote(2)
    same = Counter.options(name="the one", get_if_exists=True).remote(3)
    assert value_of(same.read.remote()) == 1
    zf.kill(first)
    assert "killed (zf.kill)" in str(death_of(found.read))
    again = Counter.options(name="the one").remote(4)
    assert value_of(again.read.remote()) == 4


def test_actors_with_names_are_of_one_class_that_is_exported_once() -> None:
    client = interface.current()
    base = Counter.options(name="of the base", max_restarts=2)
    first = base.remote(1)
    known = set(client.machine.tasks.functions)  # type: ignore[union-attr]
    others = [base.options(name=f"of many {index}", namespace="many").remote(index) for index in range(3)]
    others.append(Counter.options(name="of many 3", namespace="many", max_restarts=2).remote(3))
    nameless = base.options(name=None).remote(5)
    assert value_of([each.read.remote() for each in (first, *others, nameless)]) == [1, 0, 1, 2, 3, 5]
    assert set(client.machine.tasks.functions) == known  # type: ignore[union-attr]
    rows = {row["actor_id"]: row for row in query("actors")}
    listed = [(rows[each._actor_id.hex()]["name"], rows[each._actor_id.hex()]["namespace"]) for each in (first, others[2], nameless)]
    assert listed == [("of the base", ""), ("of many 2", "many"), ("", "")]
    assert {rows[each._actor_id.hex()]["max_restarts"] for each in (first, *others, nameless)} == {2}
    assert base.options(get_if_exists=True).remote() == first
    with pytest.raises(zf.OptionError, match="needs a name"):
        Counter.options(get_if_exists=True).remote()


def test_names_in_different_namespaces_do_not_collide() -> None:
    here = Counter.options(name="anywhere").remote(1)
    there = Counter.options(name="anywhere", namespace="elsewhere").remote(2)
    assert value_of([here.read.remote(), there.read.remote()]) == [1, 2]
    assert value_of(zf.get_actor("anywhere", namespace="elsewhere").read.remote()) == 2
    assert value_of(zf.get_actor("anywhere").read.remote()) == 1


def test_no_actor_of_that_name() -> None:
    with pytest.raises(zf.ActorNotFoundError, match="no living actor is called 'nobody' in the default namespace"):
        zf.get_actor("nobody")
    with pytest.raises(ValueError, match="in namespace 'nowhere'"):
        zf.get_actor("nobody", namespace="nowhere")
    with pytest.raises(TypeError):
        zf.get_actor("")


@zf.remote
def find_and_add(name: str) -> int:
    return int(zf.get(zf.get_actor(name).add.remote()))


def test_workers_find_actors_by_name() -> None:
    counter = Counter.options(name="for workers").remote()
    assert value_of(find_and_add.remote("for workers")) == 1
    assert value_of(counter.read.remote()) == 1


@zf.remote
def one_of_many() -> int:
    return int(zf.get(Counter.options(name="raced for", get_if_exists=True, lifetime="detached").remote().add.remote()))


def test_get_if_exists_makes_one_actor_however_many_ask() -> None:
    counts = value_of([one_of_many.remote() for _ in range(6)])
    assert sorted(counts) == [1, 2, 3, 4, 5, 6]
    zf.kill(zf.get_actor("raced for"))


def test_a_detached_actor_needs_no_handle() -> None:
    pid = value_of(Counter.options(name="stays", lifetime="detached").remote(5).pid.remote())
    assert value_of(zf.get_actor("stays").add.remote()) == 6
    assert value_of(zf.get_actor("stays").pid.remote()) == pid
    zf.kill(zf.get_actor("stays"))
    eventually(lambda: gone(pid) and not exists("stays"), "the detached actor was killed")


def exists(name: str) -> bool:
    try:
        return zf.get_actor(name) is not None
    except zf.ActorNotFoundError:
        return False


# --- contexts, environments ---------------------------------------------------------------------------------------------------


@zf.remote
class Placed:
    def __init__(self) -> None:
        self.at_first = zf.get_runtime_context().get_actor_id()

    def ids(self) -> tuple[Any, Any]:
        return self.at_first, zf.get_runtime_context().get_actor_id()

    def made_again(self) -> bool:
        return zf.get_runtime_context().was_current_actor_reconstructed

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


def test_where_an_actor_runs() -> None:
    placed = Placed.options(runtime_env={"env_vars": {"OF_THIS_ACTOR": "yes"}}).remote()
    assert value_of(placed.ids.remote()) == (placed._actor_id.hex(),) * 2
    assert value_of(placed.variable.remote("OF_THIS_ACTOR")) == "yes"


def test_an_actor_can_see_that_it_was_restarted() -> None:
    placed = Placed.options(max_restarts=1, max_task_retries=-1).remote()
    assert not value_of(placed.made_again.remote())
    zf.kill(placed, no_restart=False)
    assert value_of(placed.made_again.remote())
    assert not zf.get_runtime_context().was_current_actor_reconstructed


def test_an_actor_holds_its_resources_for_life() -> None:
    with_cpu = Counter.options(num_cpus=1).remote()
    value_of(with_cpu.add.remote())
    eventually(lambda: zf.available_resources().get("CPU", 0) == 1, "what tasks of other tests had is free, and this is not")
    pid = value_of(with_cpu.pid.remote())
    del with_cpu
    eventually(lambda: gone(pid) and zf.available_resources().get("CPU", 0) == 2, "the CPU is free again")


def test_actors_of_a_program_end_with_it(tmp_path: Path) -> None:
    """In a process of its own: its cluster, and a class of ``__main__``."""
    program = tmp_path / "program.py"
    program.write_text(
        "import os, zfabric as ray\n"
        "ray.init(num_cpus=1, log_to_driver=False)\n"
        "@ray.remote\n"
        "class Mine:\n"
        "    def pid(self):\n"
        "        return os.getpid()\n"
        "mine = Mine.remote()\n"
        "print(ray.get(mine.pid.remote()))\n"
    )
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=True)
    eventually(lambda: gone(int(ended.stdout)), "the actor ended with its program")


POLITE = """
import os, sys, time
import zfabric as zf
zf.init(num_cpus=2, log_to_driver=False)

class Polite:
    def __init__(self, path):
        self.path = path
    def say(self, what):
        with open(self.path, "a") as file:
            file.write(what + "\\n")
    def work(self, seconds):
        self.say("works")
        time.sleep(seconds)
        self.say("has worked")

class Leaving(Polite):
    def __exit__(self, *how):
        self.say("exit")

class Deleted(Polite):
    def __del__(self):
        self.say("del")

path, how, seconds, light = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4] == "light"
actors = [zf.remote(lightweight=light)(kind).remote(path) for kind in (Leaving, Deleted)]
for each in actors:
    each.work.remote(seconds)
refs = [each.say.remote("is there") for each in actors]
if seconds < 1:
    zf.wait(refs, num_returns=2)
while not os.path.exists(path) or open(path).read().count("works") < 2:
    time.sleep(0.01)  # They work in other processes.
if how == "shutdown":
    zf.shutdown()
"""


@pytest.mark.parametrize("how", ["shutdown", "ends"])
@pytest.mark.parametrize("light", ["light", "ordinary"])
def test_actors_shut_down_cleanly_at_the_end_of_a_program(tmp_path: Path, how: str, light: str) -> None:
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(POLITE)
    subprocess.run([sys.executable, program, log, how, "0.01", light], timeout=PATIENCE, check=True)
    lines = log.read_text().split("\n")
    assert (lines.count("exit"), lines.count("del"), lines.count("has worked"), lines.count("is there")) == (1, 1, 2, 2)


def test_the_end_of_a_program_does_not_wait_for_slow_actors(tmp_path: Path) -> None:
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(POLITE)
    subprocess.run([sys.executable, program, log, "ends", "1e6", "ordinary"], timeout=PATIENCE, check=True)
    assert set(log.read_text().split("\n")) == {"works", ""}


# --- the end ------------------------------------------------------------------------------------------------------------------


def test_kill_ends_the_process_and_its_calls(tmp_path: Path) -> None:
    gate = Gate.remote()
    pid = value_of(gate.pid.remote())
    running, waiting = gate.pass_when.remote(str(tmp_path / "never")), gate.pid.remote()
    zf.kill(gate)
    for ref in (running, waiting, gate.pid.remote()):
        assert "killed (zf.kill)" in str(failure(ref))
    eventually(lambda: gone(pid), "its process has ended")


@zf.remote
class Leaver:
    def leave(self) -> None:
        zf.exit_actor()

    def pid(self) -> int:
        return os.getpid()


def test_a_call_after_exit_actor_did_not_run() -> None:
    leaver = Leaver.remote()
    with pytest.raises(zf.ActorDiedError) as left:
        value_of(leaver.leave.remote())
    assert left.value.outcome == "unknown"
    with pytest.raises(zf.ActorDiedError, match=r"\(it did not run\)") as late:
        value_of(leaver.pid.remote())
    assert late.value.outcome == "not run"


def test_an_attribute_set_on_a_handle_is_refused_with_what_to_do() -> None:
    counter = Counter.remote()
    with pytest.raises(AttributeError, match=r"give Counter a method that sets 'limit', and call that with \.remote"):
        counter.limit = 3
    with pytest.raises(AttributeError, match="a method that sets 'add'"):
        counter.add = None
    assert value_of(pickle.loads(pickle.dumps(counter)).add.remote()) == 1


def test_exit_actor_ends_the_actor_for_good() -> None:
    leaver = Leaver.options(max_restarts=-1).remote()
    pid = value_of(leaver.pid.remote())
    left = failure(leaver.leave.remote())
    assert isinstance(left, zf.ActorDiedError)
    assert "exit_actor" in str(left)
    assert "exit_actor" in str(failure(leaver.pid.remote()))
    eventually(lambda: gone(pid), "it ended")


@zf.remote
class Quitter:
    """Leaves as programs do."""

    def quit(self, code: int) -> None:
        raise SystemExit(code)

    def ping(self) -> str:
        return "pong"


def test_sys_exit_ends_the_actor_as_wanted_or_as_a_death() -> None:
    content = Quitter.options(max_restarts=1).remote()
    with pytest.raises(zf.ActorDiedError, match=r"sys\.exit"):
        value_of(content.quit.remote(0))
    with pytest.raises(zf.ActorDiedError):
        value_of(content.ping.remote())
    failing = Quitter.options(max_restarts=1).remote()
    with pytest.raises(zf.ActorUnavailableError) as failed:
        value_of(failing.quit.remote(3))
    assert failed.value.outcome == "unknown"
    assert value_of(failing.ping.remote()) == "pong"
    with pytest.raises(zf.ActorDiedError, match="exit code 3"):
        value_of(failing.quit.remote(3))


def test_sys_exit_in_a_thread_of_an_actor_ends_it_with_its_code() -> None:
    """The main thread, which finds the connection closed, does not end the process first."""
    for _ in range(3):
        with pytest.raises(zf.ActorDiedError, match=r"exit code 3 \(it has no restarts\)$"):
            value_of(Quitter.options(max_concurrency=2).remote().quit.remote(3))


@zf.remote
class Reluctant:
    def __init__(self, note: str) -> None:
        with open(note, "a") as file:
            file.write("begun ")
        zf.exit_actor()

    def ping(self) -> str:
        return "pong"


def test_an_actor_may_end_itself_before_it_is_made(tmp_path: Path) -> None:
    """For good: it is not made again, as it would be if its process had died."""
    assert "it ended itself (exit_actor)" in str(death_of(Reluctant.options(max_restarts=3).remote(str(tmp_path / "note")).ping))
    assert (tmp_path / "note").read_text() == "begun "


@zf.remote
class Departing:
    """Ends itself aside of its calls, and notes what runs at its end."""

    def __init__(self, note: str, at_once: bool = False) -> None:
        self.note = note
        self.go = threading.Event()
        atexit.register(self.write, "atexit")
        threading.Thread(target=self.leave_once_told, daemon=True).start()
        if at_once:
            self.go.set()

    def write(self, text: str) -> None:
        with open(self.note, "a") as file:
            file.write(text + " ")

    def leave_once_told(self) -> None:
        self.go.wait()
        zf.exit_actor()
        self.write("not reached")

    def tell(self) -> None:
        self.go.set()

    def wait(self, listed: bool) -> None:
        if listed:
            self.go.set()
        while True:
            time.sleep(0.01)  # until it is interrupted

    def __ray_shutdown__(self) -> None:
        self.write("shutdown")

    def __exit__(self, *_: Any) -> None:
        self.write("exit")


@zf.remote
class DepartingInLoop:
    """The same from a task of its event loop."""

    def __init__(self, note: str) -> None:
        self.note = note

    async def tell(self) -> None:
        self.task = asyncio.create_task(self.leave())

    async def leave(self) -> None:
        zf.exit_actor()

    async def wait(self, listed: bool) -> None:
        if listed:
            await self.tell()
        await asyncio.Event().wait()

    def __ray_shutdown__(self) -> None:
        with open(self.note, "a") as file:
            file.write("shutdown ")


@pytest.mark.parametrize("threads", [None, 2, "event loop"])
@pytest.mark.parametrize("how", ["idle", "in a call"])
def test_a_thread_of_an_actor_or_a_task_of_its_event_loop_may_end_it(tmp_path: Path, how: str, threads: Any) -> None:
    note, in_loop = tmp_path / "note", threads == "event loop"
    kind = DepartingInLoop.options(max_restarts=-1) if in_loop else Departing.options(max_restarts=-1, max_concurrency=threads)
    departing = kind.remote(str(note))
    if how == "idle":
        value_of(departing.tell.remote())
    else:
        assert isinstance(failure(departing.wait.remote(True)), zf.ActorDiedError)
    assert "exit_actor" in str(death_of(departing.tell))
    # A call that runs at that moment fails before the actor's last method has run.
    last = "shutdown " if in_loop else "shutdown exit atexit "
    eventually(lambda: note.exists() and note.read_text() == last, "a clean end")


def test_a_thread_may_end_an_actor_that_is_being_made(tmp_path: Path) -> None:
    departing = Departing.options(max_restarts=-1).remote(str(tmp_path / "note"), at_once=True)
    assert "exit_actor" in str(death_of(departing.tell))


def test_atexit_handlers_run_when_the_last_handle_is_gone(tmp_path: Path) -> None:
    note = tmp_path / "note"
    departing = Departing.remote(str(note))
    value_of(departing.write.remote("begun"))
    del departing
    eventually(lambda: note.read_text() == "begun shutdown exit atexit ", "a clean end")


def test_exit_actor_is_for_actors() -> None:
    with pytest.raises(TypeError, match="exit_actor"):
        zf.exit_actor()
    with pytest.raises(TypeError, match="exit_actor"):
        value_of(zf.remote(zf.exit_actor).remote())


def test_the_names_of_ray_actor() -> None:
    assert isinstance(Quitter.remote(), zf.actor.ActorHandle)
    assert zf.actor.exit_actor is zf.exit_actor


def test_kill_with_restart_runs_init_again() -> None:
    counter = Counter.options(max_restarts=1, max_task_retries=-1).remote(5)
    value_of(counter.add.remote())
    pid = value_of(counter.pid.remote())
    zf.kill(counter, no_restart=False)
    eventually(lambda: gone(pid), "its first process ended")
    assert value_of(counter.read.remote()) == 5
    os.kill(value_of(counter.pid.remote()), signal.SIGKILL)
    assert "no restart is left" in str(death_of(counter.read))
