"""Names of Ray beyond the plainest: contexts, errors, generators, built-in methods, retries and tools."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import one_cluster
from faults import PATIENCE, eventually, failure, kill_daemon
from files import wait_for_file

import zfabric as ray
from zfabric.runtime import interface
from zfabric.util import inspect_serializability, list_named_actors
from zfabric.util.scheduling_strategies import NodeAffinitySchedulingStrategy

shared = one_cluster(num_gpus=2, namespace="colours")
"""With a namespace and GPUs."""


def value(ref: Any) -> Any:
    return ray.get(ref, timeout=PATIENCE)


# --- where code runs ---------------------------------------------------------------------------------------------------------------


@ray.remote
def where() -> dict[str, Any]:
    here = ray.get_runtime_context()
    return {
        "namespace": here.namespace,
        "found": value(ray.get_actor("orange").value.remote()) if "orange" in list_named_actors() else None,
        "holds": here.get_assigned_resources(),
        "names": (here.get_task_name(), here.get_task_function_name(), here.get_actor_name()),
        "restarted": here.was_current_actor_reconstructed,
    }


@ray.remote
class Orange:
    def __init__(self, number: int = 5) -> None:
        self.number = number
        self.made_with = ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")

    def value(self) -> int:
        return self.number

    def gpus(self) -> tuple[Any, ...]:
        return self.made_with, (ray.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES"))

    def here(self) -> tuple[Any, ...]:
        here = ray.get_runtime_context()
        return here.get_actor_name(), here.get_assigned_resources(), here.was_current_actor_reconstructed, here.namespace

    def itself(self) -> Any:
        return ray.get_runtime_context().current_actor

    def has_child(self) -> bool:
        self.child = Orange.options(name="child").remote()  # Kept: without a handle it would end.
        return self.child is not None

    def pid(self) -> int:
        return os.getpid()


def test_tasks_find_names_in_the_namespace_of_their_program() -> None:
    orange = Orange.options(name="orange").remote()
    shown = value(where.options(num_cpus=0.5, name="a task").remote())
    assert (shown["namespace"], shown["found"], shown["holds"]) == ("colours", 5, {"CPU": 0.5})
    assert (shown["names"], shown["restarted"]) == (("a task", "where", None), False)
    assert value(orange.has_child.remote())
    assert sorted(list_named_actors()) == ["child", "orange"]
    assert {"name": "orange", "namespace": "colours"} in list_named_actors(all_namespaces=True)


def test_an_actor_keeps_its_gpus_in_its_methods() -> None:
    first, second = Orange.options(num_gpus=1, num_cpus=0).remote(), Orange.options(num_gpus=1, num_cpus=0).remote()
    shown = [value(actor.gpus.remote()) for actor in (first, second)]
    assert all(at_first == later for at_first, later in shown)
    assert sorted(later for _, later in shown) == [([0], "0"), ([1], "1")]


def test_the_runtime_context_of_an_actor() -> None:
    actor = Orange.options(num_cpus=1, max_restarts=1, name="itself").remote()
    assert value(actor.here.remote()) == ("itself", {"CPU": 1.0}, False, "colours")
    itself = value(actor.itself.remote())
    assert itself == actor
    assert value(itself.value.remote()) == 5
    ray.kill(actor, no_restart=False)
    eventually(lambda: _restarted(actor), "it says that it was restarted")
    with pytest.raises(RuntimeError, match="actors"):
        _ = ray.get_runtime_context().current_actor


def _restarted(actor: Any) -> bool:
    try:
        return bool(value(actor.here.remote())[2])
    except ray.ActorUnavailableError:
        return False


def test_a_task_may_be_sent_to_its_node() -> None:
    here = ray.get_runtime_context().get_node_id()
    assert value(where.options(scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False)).remote())
    assert value(where.options(scheduling_strategy=NodeAffinitySchedulingStrategy("00", soft=True)).remote())
    for remote in (where, Orange):
        with pytest.raises(ray.TaskUnschedulableError, match="soft=True"):
            remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy("00", soft=False)).remote()


# --- methods that every actor has --------------------------------------------------------------------------------------------------


def test_methods_that_every_actor_has() -> None:
    actor = Orange.remote(7)
    assert value(actor.__ray_ready__.remote()) is True
    assert value(actor.__ray_call__.remote(lambda instance, more: instance.number + more, more=3)) == 10
    behind = actor.value.remote()
    actor.__ray_terminate__.remote()
    assert value(behind) == 7
    assert isinstance(failure(actor.value.remote()), ray.ActorDiedError)


def test_an_exiting_actor_is_not_restarted_although_its_death_is_reported_at_once() -> None:
    """The news of its death would come first."""
    actor = Orange.options(max_restarts=3).remote()
    pid = value(actor.pid.remote())
    daemon = kill_daemon(signal.SIGSTOP)
    try:
        assert isinstance(failure(actor.__ray_terminate__.remote()), ray.ActorDiedError)
        deadline = time.monotonic() + 0.5
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)  # It must not end before the daemon has been notified; nothing shows when that is.
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert isinstance(failure(actor.value.remote()), ray.ActorDiedError)


def test_remote_classes_use_themselves_and_each_other() -> None:
    """Such a class is unpickled before it is whole."""

    @ray.remote(num_cpus=0)
    class Even:
        def holds(self, number: int) -> bool:
            return number == 0 or (number > 1 and bool(value(Even.remote().holds.remote(number - 2))))

        def sees(self, number: int) -> bool:
            return number == 0 or bool(value(Odd.remote().sees.remote(number - 1)))

    @ray.remote(num_cpus=0)
    class Odd:
        def sees(self, number: int) -> bool:
            return number != 0 and bool(value(Even.remote().sees.remote(number - 1)))

    assert [value(Even.remote().holds.remote(number)) for number in (4, 5)] == [True, False]
    assert [value(Even.remote().sees.remote(number)) for number in (4, 3)] == [True, False]


def test_remote_classes_have_no_subclasses() -> None:
    with pytest.raises(TypeError, match="plain class"):

        class Blood(Orange):  # type: ignore[misc]
            pass


def test_types_for_annotations() -> None:
    for kind in (ray.ObjectRef, ray.ObjectRefGenerator, ray.actor.ActorHandle, ray.actor.ActorClass):
        assert kind[int].__origin__ is kind


# --- methods that are called again ------------------------------------------------------------------------------------------------


class NetworkError(Exception):
    pass


@ray.remote(max_task_retries=2)
class Flaky:
    def __init__(self) -> None:
        self.tries = 0

    @ray.method(retry_exceptions=[NetworkError])
    def fetch(self, given: list[int], good: int) -> tuple[int, list[int]]:
        return self._try(given, good)

    @ray.method(retry_exceptions=True, max_task_retries=-1)
    async def fetch_async(self, given: list[int], good: int) -> tuple[int, list[int]]:
        return self._try(given, good)

    def once(self, given: list[int], good: int) -> tuple[int, list[int]]:
        return self._try(given, good)

    def _try(self, given: list[int], good: int) -> tuple[int, list[int]]:
        self.tries += 1
        given.append(self.tries)
        if self.tries < good:
            raise NetworkError(f"try {self.tries}")
        return self.tries, given

    def count(self) -> int:
        return self.tries


def test_methods_are_retried_after_listed_exceptions() -> None:
    """With arguments as they were given, whatever the try before has done to them."""
    assert value(Flaky.remote().fetch.remote([], 3)) == (3, [3])
    assert value(Flaky.remote().fetch_async.remote([0], 20)) == (20, [0, 20])
    flaky = Flaky.remote()
    assert isinstance(failure(flaky.fetch.remote([], 9)), NetworkError)
    assert value(flaky.count.remote()) == 3
    assert isinstance(failure(flaky.once.remote([], 9)), NetworkError)
    assert value(flaky.count.remote()) == 4
    assert value(flaky.once.options(retry_exceptions=[NetworkError], max_task_retries=5).remote([], 9)) == (9, [9])
    assert isinstance(failure(Flaky.remote().fetch.options(retry_exceptions=[KeyError]).remote([], 3)), NetworkError)
    assert isinstance(failure(Flaky.remote().fetch.options(retry_exceptions=False).remote([], 3)), NetworkError)


def test_retries_of_a_method_after_the_loss_of_its_process(tmp_path: Path) -> None:
    @ray.remote(max_restarts=-1)
    class Dying:
        def die_until(self, times: int) -> int:
            mark = tmp_path / "deaths"
            deaths = int(mark.read_text()) if mark.exists() else 0
            if deaths < times:
                mark.write_text(str(deaths + 1))
                os._exit(1)
            return deaths

    assert value(Dying.remote().die_until.options(max_task_retries=3).remote(2)) == 2
    (tmp_path / "deaths").unlink()
    assert isinstance(failure(Dying.remote().die_until.options(max_task_retries=1).remote(2)), ray.ActorUnavailableError)


def test_a_generator_method_is_retried() -> None:
    @ray.remote
    class Numbers:
        tries = 0

        @ray.method(retry_exceptions=True, max_task_retries=1)
        def all(self) -> Iterator[int]:
            yield 1
            self.tries += 1
            yield 10 // (self.tries - 1)

    assert value(list(Numbers.remote().all.remote())) == [1, 10]


# --- refs, generators, waiting -----------------------------------------------------------------------------------------------------


@ray.remote
def count(upto: int) -> Iterator[int]:
    yield from range(upto)


@ray.remote
def after(path: str, upto: int) -> Iterator[int]:
    while not os.path.exists(path):
        time.sleep(0.002)
    yield from range(upto)


def test_wait_takes_generators(tmp_path: Path) -> None:
    late, early, ref = after.remote(str(tmp_path / "go"), 1), count.remote(2), ray.put(1)
    assert ray.wait([late, early, ref], num_returns=2, timeout=PATIENCE) == ([early, ref], [late])
    assert ray.wait([late], timeout=0) == ([], [late])
    (tmp_path / "go").touch()
    assert ray.wait([late], timeout=PATIENCE) == ([late], [])
    assert [value(ref) for ref in late] == [0]
    assert late.is_finished()
    assert not early.is_finished()
    assert ray.wait([late, early], num_returns=2, timeout=PATIENCE) == ([late, early], [])
    with pytest.raises(TypeError, match=r"wait\(\[...\]\)\[1\] is an int"):
        ray.wait([ref, 5])


def test_refs_as_asyncio_futures() -> None:
    async def both() -> set[Any]:
        done, pending = await asyncio.wait([ray.put(1).as_future(), ray.put(2).as_future()], timeout=PATIENCE)
        assert not pending
        return {each.result() for each in done}

    assert asyncio.run(both()) == {1, 2}


# --- errors ------------------------------------------------------------------------------------------------------------------------


class Coded(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.pid = f"pid {code}"


@ray.remote
def fails(error: Exception) -> None:
    raise error


def test_rays_names_for_the_facts_of_an_error() -> None:
    error = failure(fails.remote(ValueError("no")))
    assert isinstance(error, ray.exceptions.RayTaskError)
    assert error.as_instanceof_cause() is error
    assert (error.function_name, error.pid) == ("fails", error.facts["pid"])  # type: ignore[attr-defined]
    assert "ValueError: no" in error.traceback_str  # type: ignore[attr-defined]
    assert failure(fails.remote(Coded(3))).pid == "pid 3"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'code'"):
        _ = error.code  # type: ignore[attr-defined]
    dead = Orange.remote()
    ray.kill(dead)
    assert failure(dead.value.remote()).actor_id == dead._actor_id.hex()  # type: ignore[attr-defined]


def test_an_except_clause_for_system_errors_leaves_those_of_tasks_alone() -> None:
    for error in (ray.exceptions.RayTaskError, ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
        assert not issubclass(error, ray.exceptions.RaySystemError)


# --- values of classes that cannot be pickled -------------------------------------------------------------------------------------


class Guarded:
    def __init__(self, number: int) -> None:
        self.number = number
        self.lock = threading.Lock()


@ray.remote
def number_of(guarded: Any) -> int:
    return int(guarded.number)


def test_a_custom_serializer() -> None:
    with pytest.raises(ray.SerializationError):
        ray.put(Guarded(1))
    ray.util.register_serializer(Guarded, serializer=lambda guarded: guarded.number, deserializer=Guarded)
    try:
        assert value(ray.put(Guarded(2))).number == 2
        assert value(number_of.remote(Guarded(3))) == 3
    finally:
        ray.util.deregister_serializer(Guarded)
    with pytest.raises(ray.SerializationError):
        ray.put(Guarded(1))
    ray.util.deregister_serializer(Guarded)


def test_serializers_of_classes_from_libraries() -> None:
    ray.util.register_serializer(np.ndarray, serializer=lambda array: array.tolist(), deserializer=lambda items: ["was an array", *items])
    try:
        assert value(ray.put(np.zeros(1))) == ["was an array", 0.0]
        assert value(ray.put([np.zeros((2, 2)).T])) == [["was an array", [0.0, 0.0], [0.0, 0.0]]]
    finally:
        ray.util.deregister_serializer(np.ndarray)
    assert value(ray.put(np.ones(3))).sum() == 3
    ray.util.register_serializer(complex, serializer=str, deserializer=complex)
    ray.util.deregister_serializer(complex)
    ray.util.deregister_serializer(complex)
    assert pickle.loads(pickle.dumps(1j)) == 1j, "Python's own is back"
    for wrong in (dict, list, str):
        with pytest.raises(ValueError, match="by pickle itself"):
            ray.util.register_serializer(wrong, serializer=str, deserializer=str)
    with pytest.raises(TypeError, match="are functions"):
        ray.util.register_serializer(Guarded, serializer=None, deserializer=str)  # type: ignore[arg-type]


def test_inspect_serializability_names_the_cause(capsys: pytest.CaptureFixture[str]) -> None:
    guarded = {"kept": Guarded(1)}
    ok, failures = inspect_serializability(guarded, name="settings")
    (found,) = failures
    assert (ok, found.obj, found.name, found.parent) == (False, guarded["kept"].lock, "settings['kept'].lock", guarded["kept"])
    assert "settings['kept'].lock: lock" in capsys.readouterr().out
    assert inspect_serializability(5) == (True, set())


# --- calls reach their actor while the caller does something else ------------------------------------------------------------------


@ray.remote
class Noting:
    def note(self, path: str, seconds: float | None = None) -> None:
        time.sleep(seconds or 0)
        Path(path).touch()


@ray.remote
def note_it(path: str, _: Any) -> None:
    Path(path).touch()


@ray.remote
def late(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.002)


@ray.remote
def calls_and_computes(actor: Any, noted: str) -> bool:
    vars(interface.current().connection)["_maintain"] = lambda: None
    while not vars(interface.current().connection)["_flusher_asleep"]:
        pass
    actor.note.remote(noted)
    deadline = time.monotonic() + PATIENCE
    while not os.path.exists(noted) and time.monotonic() < deadline:
        pass
    del vars(interface.current().connection)["_maintain"]
    return os.path.exists(noted)


def test_a_call_is_sent_although_its_caller_never_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program only looks at files meanwhile; the thread that keeps house has nothing to do with it."""
    monkeypatch.setattr(interface.current().connection, "_maintain", lambda: None)
    Noting.remote().note.remote(str(tmp_path / "of a new actor"))
    eventually(lambda: (tmp_path / "of a new actor").exists(), "the call has run")
    actor = Noting.remote()
    actor.note.remote(str(tmp_path / "behind a value"), late.remote(str(tmp_path / "go")))
    (tmp_path / "go").touch()
    eventually(lambda: (tmp_path / "behind a value").exists(), "the call has run")
    note_it.remote(str(tmp_path / "passed on"), actor.note.remote(str(tmp_path / "slow"), 0.2))
    eventually(lambda: (tmp_path / "passed on").exists(), "the result was passed on")


def test_a_call_from_a_task_is_sent_before_the_task_ends(tmp_path: Path) -> None:
    actor = Noting.remote()
    assert value(calls_and_computes.remote(actor, str(tmp_path / "noted")))


# --- taking results as they come, as Ray's helpers do -------------------------------------------------------------------------------------


@ray.remote
def passes_when(path: str, number: int) -> int:
    if path:
        wait_for_file(path)
    return number


def test_as_completed_yields_values(tmp_path: Path) -> None:
    from zfabric.util import as_completed, map_unordered

    late = passes_when.remote(str(tmp_path / "open"), 1)
    refs = [late, early := passes_when.remote("", 2)]
    found = as_completed(refs, chunk_size=1)
    assert next(found) == 2
    (tmp_path / "open").touch()
    assert list(found) == [1]
    assert set(as_completed(refs, yield_obj_refs=True)) == {late, early}
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(10):
            taken.append(number)
            yield number

    square = ray.remote(lambda number: number * number)
    found = map_unordered(square, items(), backpressure_size=3)
    first = next(found)
    assert taken == [0, 1, 2], "no more are under way"
    assert sorted([first, *found]) == [number * number for number in range(10)]
    assert len({ray.get(ref) for ref in map_unordered(square, range(5), backpressure_size=None, yield_obj_refs=True)}) == 5
    for wrong in (lambda: list(map_unordered(square, [1], backpressure_size=0)), lambda: list(as_completed([], chunk_size=0))):
        with pytest.raises(ValueError, match="at least 1"):
            wrong()


def test_log_once_returns_true_once() -> None:
    from zfabric.util import log_once

    assert [log_once("here"), log_once("there"), log_once("here")] == [True, True, False]


def test_a_task_can_ask_whether_it_is_to_stop(tmp_path: Path) -> None:
    @ray.remote(max_retries=0)
    def asks() -> None:
        before = ray.get_runtime_context().is_canceled()
        try:
            (tmp_path / "runs").touch()
            while True:
                time.sleep(0.001)  # until it is interrupted
        finally:
            (tmp_path / "asked").write_text(f"{before} {ray.get_runtime_context().is_canceled()}")

    ref = asks.remote()
    eventually((tmp_path / "runs").exists, "it runs")
    ray.cancel(ref)
    assert isinstance(failure(ref), ray.TaskCancelledError)
    asked = tmp_path / "asked"
    assert eventually(lambda: asked.exists() and asked.read_text(), "it has asked") == "False True"
    with pytest.raises(RuntimeError, match="tasks and actors"):
        ray.get_runtime_context().is_canceled()
    here = ray.get_runtime_context()
    assert here.get_resource_ids() == here.get_accelerator_ids()
    assert Path(here.get_temp_dir(), here.get_session_name()).is_dir()
