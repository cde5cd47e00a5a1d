"""The public names, over a client that runs tasks in this process."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Iterator

import cloudpickle
import numpy as np
import pytest
from fakes import FakeClient

import zfabric as zf
import zfabric.util
from zfabric.api import lifecycle
from zfabric.api.environments import environment_of
from zfabric.config import Config
from zfabric.protocol.ids import FIRST_RETURN, short
from zfabric.protocol.options import NODE_ID, RUNTIME_ENV_VARIABLE, SPREAD
from zfabric.protocol.trace import pack_event, pack_times
from zfabric.runtime import interface
from zfabric.util.scheduling_strategies import DoesNotExist, Exists, In, NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy, NotIn


@pytest.fixture
def client() -> Iterator[FakeClient]:
    yield from _installed(FakeClient())


@pytest.fixture
def manual() -> Iterator[FakeClient]:
    yield from _installed(FakeClient(manual=True))


def _installed(client: FakeClient) -> Iterator[FakeClient]:
    previous = interface.current()
    interface.set_current(client)
    yield client
    interface.set_current(previous)


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict]]:
    """``init`` starts fake clients, or joins with them; the arguments of each start, and the address of what was joined, are listed."""
    zf.shutdown()
    calls = []

    def start(**arguments):
        calls.append(arguments)
        return FakeClient(arguments["config"])

    module = types.ModuleType("zfabric.runtime.connect")
    module.start = start
    module.session_to_join = lambda address: None if address in (None, "", "local") else types.SimpleNamespace(directory=address)
    module.join = lambda session, namespace, log_to_driver: calls.append({"address": session.directory}) or FakeClient()
    monkeypatch.setitem(sys.modules, "zfabric.runtime.connect", module)
    monkeypatch.delenv(lifecycle.ADDRESS_VARIABLE, raising=False)
    yield calls
    zf.shutdown()


@zf.remote
def add(x, y=10):
    return x + y


@zf.remote
def fail(text):
    raise KeyError(text)


# --- remote functions ------------------------------------------------------------------------------------------------------------


def test_calls_in_every_form(client):
    assert zf.get(add.remote(1)) == 11
    assert zf.get(add.remote(1, 2)) == 3
    assert zf.get(add.remote(1, y=5)) == 6
    assert zf.get(add.remote(add.remote(1, 1), y=add.remote(2, 2))) == 6
    assert zf.get(zf.remote(max).remote(3, 4)) == 4
    assert zf.get(zf.remote(num_cpus=1)(lambda: "called").remote()) == "called"
    assert add.__name__ == "add"
    assert add._function(1, 2) == 3
    assert len(client.exports) == 3


def test_a_direct_call_is_an_error_that_names_remote():
    with pytest.raises(TypeError, match=r"write add\.remote\(\.\.\.\)"):
        add(1)


@pytest.mark.parametrize(
    "call", [lambda: add.remote(), lambda: add.remote(1, 2, 3), lambda: add.remote(1, z=3), lambda: add.remote(1, x=1)]
)
def test_arguments_that_do_not_fit_raise_at_the_call(client, call):
    with pytest.raises(TypeError, match=r"add\.remote\(\): .*; it takes \(x, y=10\)$"):
        call()
    assert client.rows == []


def test_arguments_of_odd_signatures_are_not_refused(client):
    def keyword_only(a, /, b=2, *rest, c, d=4, **more):
        return a, b, rest, c, d, more

    remote = zf.remote(keyword_only)
    assert zf.get(remote.remote(1, c=3)) == (1, 2, (), 3, 4, {})
    assert zf.get(remote.remote(1, 2, 3, c=4, e=5)) == (1, 2, (3,), 4, 4, {"e": 5})
    with pytest.raises(TypeError):
        remote.remote(1)
    assert zf.get(zf.remote("abc".upper).remote()) == "ABC"
    assert zf.get(zf.remote(pow).remote(2, exp=3)) == 8
    assert zf.get(zf.remote(lambda self, args: self + args).remote(self=1, args=2)) == 3, "names that ours have, too"


def test_a_plain_call_is_four_fields_without_options(client):
    add.remote(1)
    _, function, arguments, dependencies, options = client.rows[0]
    assert pickle.loads(arguments) == (1,)
    assert (dependencies, options) == ((), None)
    assert client.exports[function][0] == "add"
    assert client.exports[function][2] == ()
    zf.remote(lambda: 1).remote()
    assert client.rows[1][2] == b""


def test_options_travel_only_where_they_differ(client):
    remote = zf.remote(num_cpus=2, num_gpus=0.5, max_retries=5, name="base", timeout=9)(lambda: 1)
    remote.remote()
    remote.options(max_retries=5, name="other").remote()
    remote.options(max_retries=4, resources={"disk": 1}).remote()
    exported = dict(client.exports[client.rows[0][1]][2])
    assert exported == {"demand": (("CPU", 20_000), ("GPU", 5_000)), "max_retries": 5, "name": "base", "timeout": 9}
    assert client.rows[0][4] is None
    assert client.rows[1][4] == (("name", "other"),)
    assert dict(client.rows[2][4]) == {"demand": (("CPU", 20_000), ("GPU", 5_000), ("disk", 10_000)), "max_retries": 4}
    assert len(client.exports) == 1


def test_options_return_another_function_and_leave_the_first_alone(client):
    remote = zf.remote(num_gpus=0.5, timeout=9, name="base", runtime_env={"env_vars": {"A": "1"}}, retry_exceptions=True)(lambda: 1)
    remote.options(num_gpus=None, timeout=None, runtime_env={}).options(name=None, retry_exceptions=None).remote()
    assert client.rows[0][4] is None
    assert client.exports[client.rows[0][1]][2] == ()

    @zf.remote(num_cpus=2)
    async def waits():
        return 1

    assert waits.options(num_cpus=None)._options["num_cpus"] == 0


def test_num_returns(client):
    two = zf.remote(num_returns=2)(lambda: (1, 2))
    a, b = two.remote()
    assert zf.get([b, a]) == [2, 1]
    assert (a.task_id(), a.binary()[-1], b.binary()[-1]) == (b.task_id(), 0, 1)
    assert two.options(num_returns=0).remote() is None
    assert zf.get(two.options(num_returns=1).remote()) == (1, 2)


def test_generators_give_their_items_as_values(client):
    @zf.remote(num_returns=3)
    def three():
        yield from "abc"

    assert zf.get(three.remote()) == ["a", "b", "c"]
    with pytest.raises(zf.OptionError, match="generator"):
        three.options(num_returns=1).remote()


def test_map_returns_a_ref_per_item_and_submits_in_batches(client):
    refs = add.map(range(10), chunksize=4)
    assert zf.get(refs) == list(range(10, 20))
    assert client.batches == [4, 4, 2]
    assert add.map([]) == []
    assert zf.get(add.map([zf.put(1), add.remote(1, 1)])) == [11, 12]
    assert zf.get(zf.remote(num_returns=2)(lambda x: (x, -x)).map(iter([1, 2]))) == [[1, -1], [2, -2]]
    for bad in (0, "all", 1.5, True):
        with pytest.raises(zf.OptionError, match="chunksize"):
            add.map([1], chunksize=bad)
    with pytest.raises(TypeError):
        zf.remote(lambda: 1).map([1])


def test_map_takes_one_item_of_each_iterable(client):
    assert zf.get(add.map([1, 2, 3], iter((10, 20)), chunksize=1)) == [11, 22]
    assert zf.get(zf.remote(lambda *numbers: numbers).map([1], [2], [3])) == [(1, 2, 3)]
    with pytest.raises(TypeError, match="too many positional"):
        add.map([1], [2], [3])
    with pytest.raises(TypeError, match="iterables, each with one argument of every call, not an int"):
        add.map([1], 4)


def test_large_arguments_become_objects_once_each(client):
    big, small = np.zeros(20_000), np.zeros(10)

    @zf.remote
    def sizes(*arrays, **named):
        return [len(a) for a in arrays] + [len(a) for a in named.values()]

    assert zf.get(sizes.remote(big, small, big, x=big)) == [20_000, 10, 20_000, 20_000]
    assert len(client.puts) == 1
    row = client.rows[0]
    assert row[3] == (client.puts[0][0],)
    assert len(row[2]) < 1000
    assert client.references[client.puts[0][0]] == 0


def test_many_medium_arguments_become_objects_too():
    for client in _installed(FakeClient(Config(inline_bytes=1000))):
        assert zf.get(zf.remote(lambda *texts: sum(map(len, texts))).remote(*[chr(65 + i) * 900 for i in range(40)])) == 36_000
        assert len(client.rows[0][2]) <= 17_000
        assert 20 <= len(client.puts) < 40


def test_refs_inside_arguments_are_reported(client):
    inner = zf.put(7)
    assert zf.get(zf.remote(lambda box: zf.get(box["ref"]) + 1).remote({"ref": inner})) == 8
    assert client.rows[0][3] == ()
    assert client.rows[0][4] == (("contains", (inner.binary(),)),)
    named = add.options(name="n")
    assert zf.get(zf.remote(lambda refs, y: zf.get(refs)).remote([inner], named)) == [7]


def test_functions_that_call_themselves_keep_one_identity(client):
    @zf.remote
    def fib(n):
        return n if n < 2 else sum(zf.get([fib.remote(n - 1), fib.options(name="second").remote(n - 2)]))

    assert zf.get(fib.remote(6)) == 8
    assert len(client.exports) == 1


def test_functions_that_call_each_other_work(client):
    @zf.remote
    def even(n):
        return True if n == 0 else zf.get(odd.remote(n - 1))

    @zf.remote
    def odd(n):
        return False if n == 0 else zf.get(even.remote(n - 1))

    assert zf.get(even.remote(4)) is True


def test_a_remote_function_that_travels_is_not_exported_again(client):
    @zf.remote
    def caller(function):
        return zf.get(function.remote(1, 1))

    assert zf.get(caller.remote(add)) == 2
    assert zf.get(caller.remote(add.options(name="x"))) == 2
    assert len(client.exports) == 2
    assert zf.get(cloudpickle.loads(cloudpickle.dumps(add)).remote(2, 2)) == 4


def test_a_function_is_exported_again_to_another_cluster_whose_job_has_the_same_number():
    """The first job of every cluster is job 1: a program that shuts down and starts another keeps its functions."""
    remote = zf.remote(lambda: 1)
    job = FakeClient().job
    for _ in range(2):
        client = FakeClient()
        client.job = job
        for _ in _installed(client):
            remote.remote()
            assert len(client.exports) == 1


def test_a_function_is_exported_again_to_another_job():
    for _ in range(2):
        for client in _installed(FakeClient()):
            assert zf.get(add.remote(1)) == 11
            assert len(client.exports) == 1


def test_a_function_that_is_too_large_is_an_error_with_advice(client, monkeypatch):
    monkeypatch.setattr("zfabric.api.remote_function.FUNCTION_BYTES_MAX", 10_000)
    captured = b"x" * 20_000
    with pytest.raises(zf.SerializationError, match=r"zf\.put"):
        zf.remote(lambda: captured).remote()


def test_an_unpicklable_argument_is_named_at_the_call(client):
    lock = threading.Lock()
    with pytest.raises(zf.SerializationError, match=r"args\[1\]\['lock'\] -> _thread.lock"):
        add.remote(1, {"lock": lock})
    with pytest.raises(zf.SerializationError, match=r"y\['lock'\] -> _thread.lock"):
        add.remote(1, y={"lock": lock})

    def holds():
        return lock

    with pytest.raises(zf.SerializationError, match=r"<closure lock> -> _thread[.]lock"):
        zf.remote(holds).remote()
    with pytest.raises(zf.SerializationError, match=r"_thread[.]lock"):
        zf.put([lock])
    with pytest.raises(zf.SerializationError, match="result"):
        zf.get(zf.remote(lambda: threading.Lock()).remote())


def test_retry_exceptions(client):
    runs = client.runs
    counted = {True: 4, (KeyError,): 4, (OSError,): 1, False: 1}
    for kinds, times in counted.items():
        ref = fail.options(retry_exceptions=kinds if isinstance(kinds, bool) else list(kinds)).remote("x")
        with pytest.raises(zf.TaskError):
            zf.get(ref)
        assert runs[ref.task_id()] == times, kinds


# --- options ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_cpu": 1}, "did you mean 'num_cpus'"),
        ({"num_cpus": -1}, "negative"),
        ({"num_cpus": "2"}, "number"),
        ({"num_gpus": 1.5}, "num_gpus"),
        ({"resources": {"CPU": 1}}, "num_cpus="),
        ({"resources": {"disk": -1}}, "negative"),
        ({"resources": ["disk"]}, "dict"),
        ({"num_returns": -1}, "num_returns"),
        ({"num_returns": 1.0}, "num_returns"),
        ({"num_returns": True}, "num_returns"),
        ({"num_returns": "stream"}, '"streaming" or "dynamic"'),
        ({"max_buffered": 0}, "max_buffered"),
        ({"max_buffered": 4, "num_returns": 2}, "streaming"),
        ({"max_retries": -2}, "max_retries"),
        ({"retry_exceptions": ["ValueError"]}, "exception classes"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "1"}, "timeout"),
        ({"timeout": 10**400}, "timeout is at most"),
        ({"name": ""}, "name"),
        ({"runtime_env": "x"}, "dict"),
        ({"runtime_env": {"env_var": {"A": "b"}}}, "did you mean 'env_vars'"),
        ({"runtime_env": {"conda": ["x"]}}, "'conda'"),
        ({"runtime_env": {"env_vars": {"A": 1}}}, "str to str"),
        ({"runtime_env": {"working_dir": "/does/not/exist"}}, "not a directory"),
        ({"runtime_env": {"py_modules": ["/does/not/exist"]}}, "does not exist"),
        ({"runtime_env": {"py_modules": "/tmp"}}, "list"),
        ({"scheduling_strategy": "PACK"}, "scheduling_strategy"),
        ({"label_selector": {"": "a"}}, "non-empty"),
        ({"label_selector": {"zone": 1}}, "is a str"),
        ({"label_selector": {"zone": "!"}}, "in\\(a, b\\)"),
        ({"accelerator_type": ""}, "accelerator_type is a non-empty str"),
        ({"placement_group": object()}, "not supported"),
        ({"inline": 1}, "inline"),
    ],
)
def test_impossible_options_are_refused_where_they_are_written(options, text):
    with pytest.raises(zf.OptionError, match=text):
        zf.remote(**options)
    with pytest.raises(zf.OptionError, match=text):
        add.options(**options)


@pytest.mark.parametrize(
    "options",
    [
        *({name: "x"} for name in ("num_cpus", "num_gpus", "resources", "num_returns", "max_retries", "retry_exceptions", "timeout")),
        *({name: 5} for name in ("name", "runtime_env", "scheduling_strategy")),
        {"max_calls": "x"},
        {"memory": "x"},
        {"runtime_env": {"env_vars": 5}},
    ],
)
def test_options_of_the_wrong_type_are_caught_as_ray_raises_them(options):
    for kind in (TypeError, ValueError, zf.OptionError):
        with pytest.raises(kind, match=next(iter(options))):
            zf.remote(**options)


def test_arguments_of_the_wrong_type_are_caught_as_ray_raises_them(client):
    class Idle:
        pass

    calls = [lambda: zf.kill("x"), lambda: zf.kill(None), lambda: zf.get_actor(None), lambda: zf.get_actor(""), lambda: zf.get(5)]
    calls += [lambda: zf.get([5]), lambda: zf.ObjectRef(b"x"), lambda: zf.remote(Idle).options(lifetime=5, get_if_exists="x")]
    for call in calls:
        for kind in (TypeError, ValueError):
            with pytest.raises(kind):
                call()
    for options in ({"memory": -1}, {"max_calls": -1}, {"num_cpus": -1}, {"lifetime": "x"}):
        with pytest.raises(ValueError) as caught:
            zf.remote(**options)(Idle)
        assert not isinstance(caught.value, TypeError)


def test_options_that_this_kind_of_function_or_method_cannot_honour_are_refused(client):
    class Told:
        def tell(self):
            return 1

    remote_class = zf.remote(Told)
    for write in (
        lambda: zf.remote(max_buffered=2)(lambda: 1),
        lambda: add.options(max_buffered=2),
        lambda: remote_class.remote().tell.options(max_buffered=2),
        lambda: zf.remote(type("Bad", (), {"tell": zf.method(max_buffered=2)(lambda self: 1)})),
    ):
        with pytest.raises(zf.OptionError, match="makes no stream"):
            write()
    assert remote_class.remote().tell.options(num_returns="streaming", max_buffered=2)
    with pytest.raises(zf.OptionError, match="at least 1, or -1 for no limit"):
        remote_class.options(max_pending_calls=0)
    with pytest.raises(zf.OptionError, match="'max_retries' is an option of functions or classes, not of methods"):
        remote_class.remote().tell.options(max_retries=2)


def test_the_runtime_env_of_a_program_is_shown_as_given(client, monkeypatch):
    monkeypatch.setattr(lifecycle, "_runtime_env", None)
    assert zf.get_runtime_context().runtime_env == {}
    monkeypatch.setattr(lifecycle, "_runtime_env", environment_of({"env_vars": {"A": "1"}}))
    context = zf.get_runtime_context()
    assert context.runtime_env == {"env_vars": {"A": "1"}}
    assert context.get_runtime_env_string() == '{"env_vars": {"A": "1"}}'


def test_names_that_are_no_text_are_refused_where_they_are_written():
    with pytest.raises(zf.OptionError, match="no UTF-8"):
        zf.remote(concurrency_groups={"\udc80": 1})
    with pytest.raises(zf.OptionError, match="no UTF-8"):
        zf.remote(type("DirectCounts", (), {"\udc80": lambda self: 1}))


def test_options_of_actors_are_none_of_functions():
    with pytest.raises(zf.OptionError, match="option of actors"):
        zf.remote(max_restarts=1)(lambda: None)
    with pytest.raises(zf.OptionError, match="option of actors"):
        add.options(max_restarts=1)


def test_options_of_ray_without_meaning_here_are_accepted(client):
    with pytest.warns(RuntimeWarning, match="max_calls=1 has no effect: a worker goes on"):
        add.options(max_calls=1)
    remote = add.options(
        object_store_memory=100,
        max_calls=0,
        scheduling_strategy="DEFAULT",
        label_selector={},
        _metadata={},
        num_cpus=None,
    )
    assert zf.get(remote.remote(1)) == 11
    assert client.rows[0][4] is None


@pytest.mark.parametrize(
    ("options", "strategy"),
    [
        ({"scheduling_strategy": "SPREAD"}, SPREAD),
        ({"scheduling_strategy": NodeAffinitySchedulingStrategy("ab", soft=True)}, (("soft", NODE_ID, "in", ("ab",)),)),
        (
            {"scheduling_strategy": NodeLabelSchedulingStrategy({"zone": In("a", "b"), "gpu": Exists()}, {"slow": DoesNotExist()})},
            (("hard", "gpu", "in", ()), ("hard", "zone", "in", ("a", "b")), ("soft", "slow", "not in", ())),
        ),
        ({"scheduling_strategy": NodeLabelSchedulingStrategy(soft={"zone": NotIn("a")})}, (("soft", "zone", "not in", ("a",)),)),
        (
            {"label_selector": {"zone": "in(a, b)", "kind": "!slow", "rack": "7", "row": "!in(1,2)"}, "scheduling_strategy": "SPREAD"},
            (
                ("hard", "kind", "not in", ("slow",)),
                ("hard", "rack", "in", ("7",)),
                ("hard", "row", "not in", ("1", "2")),
                ("hard", "zone", "in", ("a", "b")),
            ),
        ),
    ],
)
def test_strategies_travel_with_the_call(client, options, strategy):
    add.options(**options).remote(1)
    assert client.rows[0][4] == (("strategy", strategy),)


@pytest.mark.parametrize(
    "make",
    [
        lambda: In(),
        lambda: In(3),
        lambda: NodeLabelSchedulingStrategy({"zone": "a"}),
        lambda: NodeLabelSchedulingStrategy({3: In("a")}),
        lambda: zf.remote(label_selector="zone=a"),
        lambda: zf.remote(label_selector={"zone": "in(a, b"}),
        lambda: zf.remote(label_selector={"zone": "!in a, b)"}),
        lambda: zf.remote(label_selector={"zone": "matches(a)"}),
        lambda: zf.remote(label_selector={"zone": "in(a,, b)"}),
    ],
)
def test_a_wrong_strategy_is_an_error_where_it_is_written(make):
    with pytest.raises(zf.OptionError):
        make()


def test_only_functions_and_classes_can_be_remote():
    with pytest.raises(TypeError, match="already"):
        zf.remote(add)
    with pytest.raises(TypeError, match=r"ActorClass\(.* already"):
        zf.remote(zf.remote(type("Plain", (), {})))
    with pytest.raises(TypeError, match="by name"):
        zf.remote(2)


def test_environments_are_absolute_and_checked(client, tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "one.py").write_text("")
    monkeypatch.chdir(tmp_path)
    env = {"env_vars": {"B": "2", "A": "1"}, "working_dir": "plain", "py_modules": ["package", "plain", plain / "one.py", json]}
    zf.remote(runtime_env=env)(lambda: 1).remote()
    (variables, directory, paths) = dict(client.exports[client.rows[0][1]][2])["env"]
    assert variables[:2] == (("A", "1"), ("B", "2"))
    assert json.loads(dict(variables)[RUNTIME_ENV_VARIABLE]) == [[["A", "1"], ["B", "2"]], directory, list(paths), [[], [], False]]
    package_uri, plain_uri, file_uri, json_uri = paths
    assert all(uri.startswith("zf://") and uri.endswith("/") for uri in (package_uri, file_uri, json_uri)), "the archive's root"
    assert directory == plain_uri
    assert plain_uri.endswith("/plain")
    sent = tuple(dict.fromkeys(bytes.fromhex(uri.split("/")[2]) for uri in paths))
    assert dict(client.rows[0][4])["contains"] == tuple(dict.fromkeys((sent[1], *sent)))
    assert [row[0] for row in client.puts] == [sent[1], sent[0], *sent[2:]], "each once"
    zf.remote(runtime_env=env)(lambda *_: 2).remote([zf.put(1)])
    assert len(client.puts) == 5
    assert dict(client.rows[1][4])["contains"] == (sent[1], sent[0], *sent[2:], client.puts[-1][0])


# --- refs -----------------------------------------------------------------------------------------------------------------------------


def test_refs_are_values(client):
    ref = zf.put(1)
    same = zf.ObjectRef(ref.binary())
    assert ref == same
    assert hash(ref) == hash(same)
    assert {ref: "x"}[same] == "x"
    assert ref != zf.put(1)
    assert ref != ref.binary()
    assert repr(ref) == f"ObjectRef({short(ref.binary())})"
    assert bytes.fromhex(ref.hex()) == ref.binary()
    assert add.remote(1).task_id() == client.rows[0][0]
    with pytest.raises(TypeError):
        zf.ObjectRef(b"short")


def test_references_are_counted(client):
    ref = zf.put(1)
    name = ref.binary()
    copies = [copy.copy(ref), copy.deepcopy([ref])[0], zf.ObjectRef(name)]
    assert client.references[name] == 4
    del copies
    assert client.references[name] == 1
    outside = pickle.dumps(ref)
    assert client.references[name] == 2  # and stays so, whoever has the bytes
    again = pickle.loads(outside)
    assert zf.get(again) == 1
    del ref, again
    gc.collect()
    assert client.references[name] == 1
    held = zf.put([zf.put(2)])
    inner = client.puts[-1][2][0]
    assert client.references[inner] == 0
    got = zf.get(held)[0]
    assert got.binary() == inner
    assert client.references[inner] == 1


def test_the_collector_does_not_look_at_refs(client):
    """Every pass would read each of them, and a program has as many as it has tasks."""
    ref = zf.put(1)
    refs = [ref, add.remote(1), *add.map([1, 2]), zf.ObjectRef(ref.binary()), copy.copy(ref)]
    refs += [pickle.loads(pickle.dumps(ref)), *zf.get(zf.put([ref]))]
    assert not any(map(gc.is_tracked, refs))
    gone = weakref.ref(refs[1])
    name = refs[1].binary()
    circle = [refs[1]]
    circle.append(circle)
    del refs, circle
    gc.collect()
    assert gone() is None, "what holds it was collected, and it with that"
    assert client.references[name] == 0


def test_the_collector_looks_at_refs_of_classes_of_the_programs(client):
    class Ours(zf.ObjectRef):
        pass

    ref = Ours(zf.put(1).binary())
    ref.itself = ref
    gone = weakref.ref(ref)
    del ref
    gc.collect()
    assert gone() is None


def test_a_ref_is_not_its_value(client):
    ref = zf.put(1)
    for use in (bool, list, len, int, lambda r: r + 1, lambda r: 1 + r, lambda r: r[0], lambda r: r < 2, lambda r: 1 in r):
        with pytest.raises(TypeError, match=r"zf\.get\(ref\)"):
            use(ref)


def test_finalizers_are_silent(client, capsys):
    ref = zf.put(1)

    def broken(object_id):
        raise RuntimeError

    client.drop_reference = broken
    del ref
    gc.collect()
    assert capsys.readouterr().err == ""


# --- get --------------------------------------------------------------------------------------------------------------------------------


def test_get_takes_nested_lists_and_duplicates(client):
    a, b = zf.put([1]), zf.put(2)
    assert zf.get([a, (b, [a]), []]) == [[1], (2, [[1]]), []]
    assert zf.get((a, b)) == ([1], 2)
    assert zf.get([]) == []
    one, two = zf.get([a, a])
    assert one is two


_inner: list[zf.ObjectRef] = []


def test_get_gives_each_ref_its_value_whatever_has_become_of_their_list(client):
    """Another thread may change it meanwhile."""
    _inner[:] = [zf.put("a"), zf.put("b")]
    last = zf.put("c")
    client.during_get = _inner.reverse
    assert zf.get((_inner, last)) == (["b", "a"], "c")
    client.during_get = _inner.clear
    assert zf.get((_inner, last)) == ([], "c")


@pytest.mark.parametrize("size", [5, 50_000])
def test_copies_of_small_and_large_arrays_are_writable(client, size):
    ref = zf.put(np.arange(size))
    other = zf.put(np.arange(50_000))
    assert not zf.get(ref).flags.writeable
    for array in (zf.get(ref, copy=True), *zf.get([ref, other], copy=True), zf.get([ref], copy=True)[0], zf.get(([ref],), copy=True)[0][0]):
        array[0] = 7
    assert zf.get(ref)[0] == 0


class Unreadable:
    """Raises when it is unpickled."""

    def __reduce__(self):
        return divmod, (1, 0)


@zf.remote
def fails():
    raise LookupError("no")


def test_an_error_among_many_values_is_raised_and_the_others_are_released(client):
    small, large, larger = zf.put([1]), zf.put(np.zeros(10_000)), zf.put(np.ones(20_000))
    first, array, second = zf.get([small, large, small])
    assert first is second
    assert (first, array.size) == ([1], 10_000)
    del array
    assert client.released == [large.binary()]
    with pytest.raises(LookupError):
        zf.get([small, fails.remote(), large, larger])
    assert client.released == [large.binary(), large.binary(), larger.binary()]
    with pytest.raises(zf.exceptions.SerializationError, match="cannot unpickle a value: ZeroDivisionError"):
        zf.get([small, zf.put(Unreadable())])
    with pytest.raises(zf.exceptions.SerializationError, match="cannot unpickle a value: ZeroDivisionError"):
        zf.get([larger, zf.put(Unreadable())])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (5, r"get\(\) was given an int \(5\)"),
        ("x", "a str"),
        (None, r"get\(\) was given None,"),
        ({}, r"a dict; .* zf\.get\(list\(refs\.values"),
        ([1], r"get\(\[\.\.\.\]\)\[0\] is an int"),
        ([[], [None]], r"\[1\]\[0\] is None, not"),
        ({1}, r"a set; .* zf\.get\(list"),
        ((x for x in ()), r"a generator; .* zf\.get\(list"),
        (add, "RemoteFunction"),
    ],
)
def test_get_of_something_other_than_a_ref_names_it_and_its_place(client, value, text):
    with pytest.raises(TypeError, match=text):
        zf.get(value)


def test_get_raises_what_the_task_raised(client):
    ref = fail.remote("gone")
    with pytest.raises(KeyError) as caught:
        zf.get(ref)
    error = caught.value
    assert isinstance(error, zf.TaskError)
    assert isinstance(error, zf.RayTaskError)
    assert error.facts["function"] == "fail"
    assert error.args == ("gone",)
    assert str(error) == "'gone'"
    assert "raise KeyError(text)" in error.traceback_text
    with pytest.raises(KeyError):
        zf.get(add.remote(ref))
    assert zf.get(zf.remote(lambda refs: "unread").remote([ref])) == "unread"


def test_get_raises_the_first_failure_and_releases_the_other_values(client):
    big = [zf.put(np.zeros(20_000)) for _ in range(3)]
    with pytest.raises(KeyError, match="first"):
        zf.get([big[0], fail.remote("first"), big[1], fail.remote("second"), big[2]])
    gc.collect()
    assert sorted(client.released) == sorted(ref.binary() for ref in big)


def test_views_retain_the_value_and_copies_do_not(client):
    ref = zf.put(np.arange(20_000))
    view = zf.get(ref)
    assert not view.flags.writeable
    assert client.released == []
    mine = zf.get(ref, copy=True)
    mine[0] = 5
    assert len(client.released) == 1
    part = view[5:]
    del view
    assert len(client.released) == 1
    del part
    assert len(client.released) == 2


def test_timeouts(manual):
    ref = add.remote(1)
    with pytest.raises(zf.GetTimeoutError):
        zf.get(ref, timeout=0)
    with pytest.raises(TimeoutError):
        zf.get([ref], timeout=0.01)
    for bad, kind in ((-1, ValueError), ("1", TypeError), (True, TypeError), (float("nan"), ValueError)):
        with pytest.raises(kind, match="timeout"):
            zf.get(ref, timeout=bad)
    manual.run()
    assert zf.get(ref, timeout=5) == 11


def test_put(client):
    ref = zf.put({"a": np.ones(3)}, durable=True)
    assert client.puts[0][3] is True
    assert zf.get(ref)["a"].sum() == 3
    with pytest.raises(TypeError, match="names a stored value already"):
        zf.put(ref)


# --- wait, as_completed, cancel --------------------------------------------------------------------------------------------------------


def test_wait(manual):
    refs = [add.remote(i) for i in range(4)]
    assert zf.wait(refs, timeout=0) == ([], refs)
    manual.held[2]()
    assert zf.wait(refs) == ([refs[2]], [refs[0], refs[1], refs[3]])
    manual.held[0]()
    assert zf.wait(refs, num_returns=1) == ([refs[0]], refs[1:])
    assert zf.wait(refs, num_returns=2) == ([refs[0], refs[2]], [refs[1], refs[3]])
    assert zf.wait(refs, num_returns=3, timeout=0.01) == ([refs[0], refs[2]], [refs[1], refs[3]])
    assert zf.wait([]) == ([], [])


def test_wait_refuses_impossible_arguments(client):
    ref = zf.put(1)
    cases = [
        (lambda: zf.wait(ref), TypeError, r"wait\(\[ref\]\)"),
        (lambda: zf.wait({ref}), TypeError, "list"),
        (lambda: zf.wait([ref, 5]), TypeError, r"\[1\] is an int"),
        (lambda: zf.wait([ref, zf.put(2), ref]), ValueError, r"\[2\] was listed before"),
        (lambda: zf.wait([ref], num_returns=0), ValueError, "num_returns"),
        (lambda: zf.wait([ref], num_returns=2), ValueError, "num_returns"),
        (lambda: zf.wait([ref], num_returns="1"), TypeError, "num_returns"),
        (lambda: zf.wait([ref], timeout=-1), ValueError, "timeout"),
    ]
    for call, kind, text in cases:
        with pytest.raises(kind, match=text):
            call()


def test_as_completed(manual):
    refs = [add.remote(i) for i in range(4)]
    tasks = dict(zip(refs, manual.held, strict=True))
    tasks[refs[3]]()
    completed = zf.as_completed([*refs, refs[0]], timeout=30)
    assert next(completed) == refs[3]
    tasks[refs[1]]()
    assert next(completed) == refs[1]
    tasks[refs[2]]()
    tasks[refs[0]]()
    assert list(completed) == [refs[2], refs[0]], "in the order in which they came, also where nobody had asked meanwhile"
    late = add.remote(1)
    with pytest.raises(zf.GetTimeoutError):
        list(zf.as_completed([late], timeout=0.01))
    with pytest.raises(TypeError):
        zf.as_completed([5])


def test_as_completed_reads_values_within_the_remaining_timeout(client, monkeypatch):
    limits = []
    read = client.get
    monkeypatch.setattr(client, "get", lambda ids, timeout, *rest: limits.append(timeout) or read(ids, timeout, *rest))
    refs = [zf.put(1), zf.put(2)]
    assert sorted(value for _, value in zf.as_completed(refs, timeout=60, with_values=True)) == [1, 2]
    assert all(5 <= limit <= 60 for limit in limits)
    assert limits[1] < limits[0]
    limits.clear()
    assert sorted(zfabric.util.as_completed(refs, timeout=60)) == [1, 2]
    assert all(5 <= limit <= 60 for limit in limits)
    limits.clear()
    list(zf.as_completed(refs, timeout=0, with_values=True))
    assert limits == [5, 5], "a value that has come is read although the time is over"
    limits.clear()
    list(zf.as_completed(refs, with_values=True))
    assert limits == [None, None]


def test_cancel(manual):
    ref = add.remote(1)
    zf.cancel(ref, force=True)
    assert manual.cancelled == [((ref.binary(),), True, True)]
    with pytest.raises(zf.TaskCancelledError) as caught:
        zf.get(ref)
    assert caught.value.facts == {"attempt": 0}
    with pytest.raises(TypeError):
        zf.cancel([ref])
    with pytest.raises(ValueError, match="was put"):
        zf.cancel(zf.put(1))


# --- asyncio and futures ---------------------------------------------------------------------------------------------------------------


def test_await():
    for _client in _installed(FakeClient(threads=True)):

        async def main():
            assert await add.remote(1) == 11
            assert await asyncio.gather(*[add.remote(i, i) for i in range(20)]) == [2 * i for i in range(20)]
            with pytest.raises(KeyError):
                await fail.remote("x")
            done, _ = await asyncio.wait([asyncio.ensure_future(_of(add.remote(1)))])
            return done.pop().result()

        async def _of(ref):
            return await ref

        assert asyncio.run(main()) == 11
        assert asyncio.run(main()) == 11  # a second loop has wake-ups of its own


def test_a_loop_is_woken_once_for_many(manual):
    wakes = []

    async def main():
        loop = asyncio.get_running_loop()
        original = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *call: (wakes.append(1), original(*call))[1]
        refs = [add.remote(i) for i in range(50)]

        async def value(ref):
            return await ref

        tasks = [asyncio.ensure_future(value(ref)) for ref in refs]
        await asyncio.sleep(0)
        manual.run()
        assert await asyncio.gather(*tasks) == list(range(10, 60))

    asyncio.run(main())
    assert len(wakes) == 1


def test_futures():
    for _client in _installed(FakeClient(threads=True)):
        assert add.remote(1).future().result(30) == 11
        with pytest.raises(KeyError):
            fail.remote("x").future().result(30)
        assert asyncio.run(_wrapped(add.remote(2))) == 12
    for client in _installed(FakeClient(manual=True)):
        future, other = add.remote(1).future(), add.remote(2).future()
        assert future.cancel()
        client.run()
        assert other.result(30) == 12
        assert client.cancelled == []


async def _wrapped(ref):
    return await asyncio.wrap_future(ref.future())


def test_threads_share_the_client():
    for client in _installed(FakeClient(threads=True)):
        results: list[int] = []

        def use(results=results):
            results.extend(zf.get([add.remote(i, 0) for i in range(20)]))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(results) == sorted(list(range(20)) * 4)
        assert len(client.exports) == 1


# --- beginning and end -----------------------------------------------------------------------------------------------------------------


def test_init_passes_on_its_arguments(starts):
    context = zf.init(
        num_cpus=2,
        num_gpus=1,
        resources={"disk": 2},
        object_store_memory=10**8,
        _memory=2**30,
        namespace="n",
        config={"max_retries": 1},
        log_to_driver=False,
        labels={"zone": "a", "disk": "ssd"},
    )
    assert zf.is_initialized()
    arguments = starts[0]
    assert arguments.pop("config") == Config(max_retries=1)
    assert arguments == {
        "num_cpus": 2,
        "num_gpus": 1,
        "resources": {"disk": 2},
        "object_store_memory": 10**8,
        "memory": 2**30,
        "namespace": "n",
        "log_to_driver": False,
        "labels": (("disk", "ssd"), ("zone", "a")),
    }
    assert context["node_id"] == interface.current().node.hex()
    assert context.address_info["session_dir"] == context.session_directory == "/nowhere/session"
    assert set(context) == set(context.address_info)
    context.disconnect()
    assert not zf.is_initialized()
    context.disconnect()


def test_addresses(starts, monkeypatch):
    zf.init("tcp://one:1")
    zf.shutdown()
    monkeypatch.setenv(lifecycle.ADDRESS_VARIABLE, "tcp://two:2")
    zf.init()
    zf.shutdown()
    for given in (
        {"num_cpus": 1},
        {"num_gpus": 0},
        {"resources": {}},
        {"object_store_memory": 10**8},
        {"_memory": 0},
        {"config": {"max_retries": 1}},
    ):
        with pytest.raises(ValueError, match=r'address="local"'):
            zf.init(**given)
    zf.init("local", num_cpus=1)
    assert [call.get("address") for call in starts] == ["tcp://one:1", "tcp://two:2", None]


def test_a_second_init(starts):
    with zf.init(num_cpus=1) as cluster:
        with pytest.raises(zf.AlreadyInitializedError, match="ignore_reinit_error"):
            zf.init()
        same = zf.init(ignore_reinit_error=True)
        assert same.address_info["job_id"] == cluster["job_id"]
    assert not zf.is_initialized()
    assert len(starts) == 1
    zf.shutdown()


def test_init_refuses_impossible_arguments(starts):
    for arguments, kind, text in [
        ({"num_cpu": 1}, TypeError, "did you mean 'num_cpus'"),
        ({"num_cpus": -1}, ValueError, "num_cpus"),
        ({"num_cpus": 1.5}, ValueError, "num_cpus"),
        ({"object_store_memory": "1"}, ValueError, "object_store_memory"),
        ({"_memory": "2GiB"}, ValueError, r"init: _memory is a number of bytes from 0, not '2GiB'; write 2 \* 2\*\*30"),
        ({"_memory": 2**50}, ValueError, "memory is at most 562949953421312 bytes"),
        ({"resources": {"memory": 1}}, ValueError, r"init\(_memory=\)"),
        ({"resources": {"x": -1}}, ValueError, "negative"),
        ({"config": {"max_retry": 1}}, ValueError, "did you mean 'max_retries'"),
        ({"config": 5}, TypeError, "config"),
        ({"address": 5}, TypeError, "address"),
        ({"namespace": 5}, TypeError, "namespace"),
        ({"namespace": ""}, ValueError, '"" is not a namespace'),
        ({"namespace": "caf\udce9"}, ValueError, "namespace is text"),
        ({"log_to_driver": "no"}, TypeError, "log_to_driver is True or False"),
        ({"ignore_reinit_error": None}, TypeError, "ignore_reinit_error is True or False"),
        ({"config": {"send_delay": float("nan")}}, ValueError, "no number"),
        ({"config": {"batch_rows": 2**70}}, ValueError, "too large"),
        ({"runtime_env": {"conda": ["x"]}}, ValueError, "conda"),
    ]:
        with pytest.raises(kind, match=text):
            zf.init(**arguments)
    assert starts == []
    zf.init(include_dashboard=False, logging_level="INFO", _temp_dir="/tmp", configure_logging=False)
    assert len(starts) == 1


def test_first_use_starts_a_cluster(starts):
    assert zf.get(add.remote(1)) == 11
    assert len(starts) == 1
    zf.shutdown()
    assert zf.get(zf.put(1)) == 1
    assert len(starts) == 2


def test_refs_of_a_cluster_that_was_shut_down(starts):
    ref = zf.put(1)
    zf.shutdown()
    for use in (lambda: zf.get(ref), lambda: zf.get([ref]), lambda: zf.wait([ref]), lambda: ref.future(), lambda: zf.explain(ref)):
        with pytest.raises(zf.NotInitializedError):
            use()
    assert len(starts) == 1
    zf.init()
    same = zf.ObjectRef(ref.binary())
    assert (ref == same, ref in {same}, same == zf.ObjectRef(ref.binary())) == (False, False, True)
    for refs in (ref, [ref], [zf.put(2), ref]):
        with pytest.raises(zf.NotInitializedError, match="shut down"):
            zf.get(refs)
    for refs in ([zf.put(2), ref], [same, ref]):  # In this cluster another object has its id.
        with pytest.raises(zf.NotInitializedError, match="shut down"):
            zf.wait(refs, num_returns=2, timeout=0)


def test_handles_of_a_cluster_that_was_shut_down(starts):
    """In the next cluster their ids are those of other actors and values: the first of each program."""

    class Told:
        def tell(self, what=None):
            return what

    handle, ref = zf.remote(Told).remote(), zf.put(1)
    zf.shutdown()
    for _ in range(2):
        before = len(starts)
        for use in (lambda: handle.tell.remote(), lambda: zf.kill(handle), lambda: zf.explain(handle)):
            with pytest.raises(zf.NotInitializedError, match="the actor ended with it"):
                use()
        assert len(starts) == before
        zf.init(ignore_reinit_error=True)
    another = zf.remote(Told).remote()
    for passed in (handle, [handle], ref, {"a": [ref]}):
        for pass_on in (add.remote, another.tell.remote, lambda value: zf.put((value,))):
            with pytest.raises(zf.NotInitializedError, match="shut down"):
                pass_on(passed)


def test_a_task_cannot_shut_its_worker_down(client):
    zf.shutdown()
    assert zf.is_initialized()
    assert not client.closed


def test_a_runtime_env_for_all(starts, monkeypatch):
    zf.init(runtime_env={"env_vars": {"A": "1", "B": "2"}})
    zf.remote(lambda: 1).remote()
    zf.remote(runtime_env={"env_vars": {"B": "3"}})(lambda: 2).remote()
    add.options(name="n").remote(1)
    client = interface.current()
    first, second = (dict(dict(client.exports[row[1]][2])["env"][0]) for row in client.rows[:2])
    assert (first["A"], first["B"], second["A"], second["B"]) == ("1", "2", "1", "3")
    assert client.rows[2][4] == (("name", "n"),)
    # A worker of that environment passes it on to the tasks that its tasks start.
    monkeypatch.setattr(lifecycle, "_runtime_env", None)
    monkeypatch.setattr(interface, "environment", first[RUNTIME_ENV_VARIABLE])
    zf.remote(lambda: 3).remote()
    assert dict(client.exports[client.rows[3][1]][2])["env"] == dict(client.exports[client.rows[0][1]][2])["env"]


FORKED = """
import os, sys
sys.path.insert(0, {tests!r})
import zfabric as zf
from fakes import FakeClient
from zfabric.runtime import interface
client = FakeClient()
interface.set_current(client)
f = zf.remote(lambda: 1)
ref = f.remote()
pid = os.fork()
if pid == 0:
    raised = 0
    context = zf.get_runtime_context()
    for use in (lambda: zf.get(ref), lambda: zf.put(1), f.remote, zf.init, zf.nodes, lambda: zf.wait([ref]), context.get_job_id):
        try:
            use()
        except zf.NotInitializedError as error:
            raised += "spawn" in str(error)
    before = client.references[ref.binary()]
    name = ref.binary()
    del ref
    zf.shutdown()
    os._exit(0 if (raised, client.references[name], zf.is_initialized()) == (7, before, False) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert zf.get(ref) == 1 and zf.is_initialized()
print("fine")
"""


def test_a_forked_child_gets_an_error_that_names_the_fork():
    program = FORKED.format(tests=os.path.dirname(__file__))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "fine\n", ran.stderr


# --- context and questions -------------------------------------------------------------------------------------------------------------


def test_the_runtime_context(client):
    context = zf.get_runtime_context()
    assert context.get_task_id() is None
    assert context.get_job_id() == client.job.hex()
    assert context.get_node_id() == client.node.hex()
    assert (context.namespace, context.attempt, zf.get_gpu_ids()) == ("tests", 0, [])

    @zf.remote
    def inside():
        here = zf.get_runtime_context()
        return here.get_task_id(), here.attempt, here.get_task_name(), here.get_accelerator_ids(), list(here.get())

    ref = inside.remote()
    everywhere = ["job_id", "node_id", "worker_id"]
    assert zf.get(ref) == (ref.task_id().hex(), 0, inside.__qualname__, {"GPU": []}, [*everywhere, "task_id", "namespace"])
    assert list(context.get()) == [*everywhere, "namespace"]


def test_the_labels_of_the_node(client):
    row = (("node", client.node.hex()), ("labels", {"zone": "a"}), ("resources", {}))
    client.answers["nodes"] = lambda: [(("node", "another"), ("labels", {"zone": "b"})), row]
    assert zf.get_runtime_context().get_node_labels() == {"zone": "a"}


def test_explain(client):
    seen = []
    client.answers["explain"] = lambda subject: seen.append(subject) or ("queued", "waits for 4 GPU", (("demand", "4 GPU"), ("x", "y")))
    ref = add.remote(1)
    found = zf.explain(ref)
    assert (found.state, found.reason, found.facts) == ("queued", "waits for 4 GPU", {"demand": "4 GPU", "x": "y"})
    assert str(found) == f"{short(ref.binary())}: queued\n  waits for 4 GPU\n  demand: 4 GPU\n  x:      y"
    client.answers["find"] = lambda text: []  # It could be an actor's name.
    zf.explain(ref.task_id().hex())
    assert seen == [ref.binary(), ref.task_id()]
    client.answers["explain"] = None
    assert zf.explain(ref).state == "unknown"
    with pytest.raises(ValueError, match="not 'not hex'"):
        zf.explain("not hex")
    with pytest.raises(TypeError):
        zf.explain(5)


def test_explain_accepts_names_and_short_ids(client):
    """A short id is looked up first; one that can mean several things is not guessed."""
    known = {"1-3fa2-57": [{"id": "ab" * 16}], "1-3fa2-58": [], "ab": [{"id": "ab" * 16}, {"id": "ac" * 16}]}
    client.answers["find"] = known.get
    client.answers["explain"] = lambda subject: ("running", "for 2 s", ()) if subject == b"\xab" * 16 else None
    assert zf.explain("1-3fa2-57").state == "running"
    assert str(zf.explain("1-3fa2-58")).startswith("1-3fa2-58: unknown")
    with pytest.raises(ValueError, match="2 things"):
        zf.explain("ab")


def test_a_timeline_goes_to_a_path(client):
    """An int would be a file descriptor, perhaps one of ours."""
    with pytest.raises(TypeError, match="an int"):
        zf.timeline(5)


def test_attributes_of_the_value_are_not_attributes_of_the_ref(client):
    ref = add.remote(1)
    assert not hasattr(ref, "shape")
    with pytest.raises(AttributeError, match=r"no 'shape'; zf\.get\(ref\)"):
        ref.shape  # noqa: B018
    with pytest.raises(TypeError, match=r"add\.map\(\) takes iterables"):
        add.map(5)


def test_nodes_and_resources(client):
    client.answers["nodes"] = ({"node": "ab", "alive": True, "resources": {"CPU": 2.0}, "queued": 3},)
    client.answers["cluster_resources"] = {"CPU": 2.0, "GPU": 1}
    client.answers["available_resources"] = {"CPU": 0.5, "GPU": 0.0}
    (node,) = zf.nodes()
    assert (node["NodeID"], node["Alive"], node["Resources"], node["queued"]) == ("ab", True, {"CPU": 2.0}, 3)
    assert (node["NodeManagerHostname"], node["NodeManagerAddress"]) == (socket.gethostname(), "127.0.0.1")
    assert zf.cluster_resources() == {"CPU": 2.0, "GPU": 1.0}
    assert zf.available_resources() == {"CPU": 0.5}


def test_timeline(client, tmp_path):
    def event(pid, *attempts):
        tasks, functions, starts, seconds = zip(*attempts, strict=True)
        times = pack_times(functions, [each for pair in zip(starts, seconds, strict=True) for each in pair])
        return pack_event(b"node", pid, ((b"f" * 16, "work"),), b"".join(tasks) + times)

    task, function = b"t" * 16, b"f" * 16
    rows = (
        (b"k2", event(77, (task, function, 2.0, 0.5), (task, b"g" * 16, 1.0, 0.25))),
        (b"k3", event(78, (task, function, 3.0, 1.0))),
    )
    pages = {b"": (rows[:1], True), b"k2": (rows[1:], False)}
    client.answers["nodes"] = ({"node": "ab", "alive": True},)
    client.answers["rows"] = lambda table, after, limit: pages[after] if table == "event" else ((), False)
    trace = zf.timeline()
    spans = [event for event in trace if event["ph"] == "X"]
    assert [(span["name"], span["ts"], span["dur"]) for span in spans] == [
        ("67676767", 1e6, 0.25e6),
        ("work", 2e6, 0.5e6),
        ("work", 3e6, 1e6),
    ]
    assert [span["tid"] for span in spans] == [77, 77, 78]
    assert len({span["pid"] for span in spans}) == 1
    assert zf.timeline(str(tmp_path / "trace.json")) is None
    assert sorted(json.loads((tmp_path / "trace.json").read_text()), key=lambda event: event["ts"]) == trace
    client.answers["rows"] = ((), False)
    assert zf.timeline() == []
    assert zf.timeline(str(tmp_path / "trace.json")) is None
    assert json.loads((tmp_path / "trace.json").read_text()) == []


# --- the package -------------------------------------------------------------------------------------------------------------------------


def test_the_public_names_are_there_and_nothing_heavy_is_imported():
    program = (
        "import sys, zfabric\n"
        "assert all(hasattr(zfabric, name) for name in zfabric.__all__)\n"
        "heavy = {'asyncio', 'numpy', 'psutil', 'click', 'rich', 'multiprocessing', 'subprocess', 'cloudpickle', 'lmdb', 'zmq'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "[]\n", ran.stderr
    assert issubclass(zf.RayTaskError, zf.RayError)


def test_a_ref_made_before_there_is_a_client(client):
    ref = zf.put(5)
    data = pickle.dumps(ref)
    interface.set_current(None)
    early = pickle.loads(data)
    interface.set_current(client)
    assert zf.get(early) == 5
    assert zf.get([pickle.loads(data)]) == [5]
    assert ref.binary().endswith(FIRST_RETURN) is False
