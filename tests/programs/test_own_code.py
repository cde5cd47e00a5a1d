"""What a program defines itself, in its own module, in notebooks and in modules that are edited: it is the same in tasks."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from faults import PATIENCE

import zfabric as zf
from zfabric.adapters import definitions, namespaces, pickler, serialization

PROGRAMS = Path(__file__).parent / "own_code"


@pytest.mark.parametrize("name", ["classes", "enumerations", "names", "wrappers"])
def test_what_a_program_defines_is_the_same_in_tasks(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAMS / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() in (["as in the program"], ["run", "as in the program"]), "no worker runs the program's file"


# --- the versions of names ----------------------------------------------------------------------------------------------------------


class Processes:
    """A program and workers in one process: each has a module ``__main__``, and shares neither classes nor names with the others."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.program = types.ModuleType("__main__")
        self.worker = types.ModuleType("__main__")

    def run(self, text: str) -> None:
        """Run statements in the program."""
        self._enter(self.program, False)
        exec(compile(text, "<program>", "exec"), vars(self.program))

    def send(self, expression: str) -> bytes:
        """Pickle the value of an expression in the program."""
        self._enter(self.program, False)
        return serialization.serialize(eval(expression, vars(self.program))).to_bytes()

    def load(self, data: bytes) -> Any:
        """Unpickle a value in the worker."""
        self._enter(self.worker, True)
        return pickle.loads(data)

    def load_function(self, data: bytes) -> Any:
        """Unpickle a function in the worker, which is to run it next."""
        with namespaces.loading_function():
            return self.load(data)

    def _enter(self, module: types.ModuleType, mirrors: bool) -> None:
        if sys.modules["__main__"] is module:
            return
        for name, value in (("mirrors", mirrors), ("origin", b"worker" if mirrors else b"program")):
            self._monkeypatch.setattr(namespaces, name, value)
        for name, made in (("_of", {}), ("_objects", {}), ("packed", {})):
            kept = vars(module).setdefault(f"__test{name}__", made)
            self._monkeypatch.setattr(definitions.identities, name, kept)
        self._monkeypatch.setattr(namespaces, "_main", vars(module).setdefault("__test_space__", namespaces.Namespace(vars(module))))
        self._monkeypatch.setitem(sys.modules, "__main__", module)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    return Processes(monkeypatch)


def test_functions_share_the_names_of_main(processes: Processes) -> None:
    processes.run("limit = 3\nknown = {}\ndef f(): known['x'] = limit; return known\ndef g(): return known, f")
    f, g = (processes.load(processes.send(name)) for name in "fg")
    assert f.__globals__ is g.__globals__ is vars(processes.worker)
    assert f() is g()[0]
    assert g()[1] is f is processes.load(processes.send("f")), "a function of one version is loaded once"


def test_newer_names_replace_older_ones_which_get_a_namespace_of_their_own(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed: list[frozenset[str]] = []
    monkeypatch.setattr(namespaces, "on_renewed", renewed.append)
    processes.run("rate = 1\ndef f(): return rate\ndef again(): return f()")
    old = processes.send("again")
    assert processes.load_function(old)() == 1
    processes.run("rate = 2")
    new = processes.send("again")
    assert processes.load(new)() == 2
    assert processes.worker.rate == 1, "an argument changes nothing for those that run"
    assert processes.load_function(new)() == 2
    assert renewed == [{"rate"}], "what uses it has to be loaded again"
    assert processes.worker.rate == 2
    loaded = processes.load_function(old)
    assert loaded() == 1
    assert loaded.__globals__ is not vars(processes.worker)
    assert processes.load(new)() == 2


def test_newer_names_wait_while_something_runs(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    processes.run("rate = 1\ndef f(): return rate")
    running = processes.load(processes.send("f"))
    monkeypatch.setattr(namespaces, "may_renew", lambda: False)
    processes.run("rate = 2")
    assert processes.load_function(processes.send("f"))() == 2
    assert running() == 1


def test_names_that_a_task_has_bound_are_not_the_programs(processes: Processes) -> None:
    processes.run("def f(): return rate\nrate = 1")
    processes.worker.rate = "of a task"
    assert processes.load(processes.send("f"))() == 1
    assert processes.worker.rate == "of a task"


def test_data_that_has_changed_is_a_newer_version(processes: Processes) -> None:
    processes.run("items = [1]\ndef f(): return items\ndef g(): return items")
    assert processes.load(processes.send("f"))() is processes.load(processes.send("g"))()
    processes.run("items.append(2)")
    assert processes.load(processes.send("g"))() == [1, 2]


@pytest.mark.parametrize("first", ["f", "g"])
def test_data_with_parts_in_common_is_bound_together(processes: Processes, first: str) -> None:
    processes.run("part = [1]; model = [part]; other = [part]\ndef f(): return model\ndef g(): return model[0] is other[0], model")
    processes.load(processes.send(first))
    together, model = processes.load(processes.send("g"))()
    assert together
    assert model == [[1]]


def test_a_program_gets_its_own_functions_and_classes_back(processes: Processes) -> None:
    processes.run("count = 1\ndef f(): return count\nclass A: pass\na = A()")
    data = processes.send("[f, A, a]")
    processes.run("count = 2")
    processes.run("count = 1")
    function, kind, value = pickle.loads(data)
    assert (function, kind, type(value)) == (processes.program.f, processes.program.A, processes.program.A)
    processes.run("def f(): return 'another'")
    function = pickle.loads(data)[0]
    assert function() == 1
    assert processes.program.f() == "another"


def test_a_load_that_has_failed_is_repeated_whole(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("fails_once")
    text = """
failures = [1]
def load():
    if failures:
        raise OSError(failures.pop())
    return "loaded"
load.__module__ = "fails_once"
class Value:
    def __reduce__(self):
        return load, ()
Value.__module__ = "fails_once"
"""
    exec(text, vars(module))
    monkeypatch.setitem(sys.modules, "fails_once", module)
    processes.run("import fails_once\nclass A:\n    value = fails_once.Value()\n    def m(self): return 1\na = A()")
    data = processes.send("a")
    with pytest.raises(OSError, match="1"):
        processes.load(data)
    assert processes.load(data).m() == 1
    assert processes.worker.A.value == "loaded"


def test_two_threads_that_load_a_class_at_the_same_time_both_have_all_of_it(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have taken in its definition; the one that uses it first is stopped in the middle, until the other one has used it."""
    both, first, other = threading.Barrier(2), threading.Lock(), threading.Event()
    take_in = pickler.define

    def define(*parts: Any) -> None:
        take_in(*parts)
        both.wait(60)

    def load() -> str:
        if first.acquire(blocking=False):
            assert other.wait(60)
        return "loaded"

    class Value:
        def __reduce__(self) -> Any:
            return load, ()

    module: Any = types.ModuleType("stops_once")
    for name, each in (("load", load), ("Value", Value)):
        each.__module__, each.__qualname__ = "stops_once", name
        setattr(module, name, each)
    monkeypatch.setitem(sys.modules, "stops_once", module)
    processes.run("import stops_once\nclass A:\n    value = stops_once.Value()\n    def m(self): return 1\na = A()")
    data = processes.send("a")
    processes.load(processes.send("1"))
    monkeypatch.setattr(pickler, "define", define)
    found: list[Any] = []

    def use() -> None:
        try:
            value = pickle.loads(data)
            found.append((value.m(), value.value, type(value)))
        except Exception as error:  # It fails the comparison below.
            found.append(error)
        finally:
            other.set()

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [(1, "loaded", processes.worker.A)] * 2


def test_values_refer_to_the_definition_of_their_class(processes: Processes) -> None:
    text = "\n".join(f"    def method{number}(self): return {number}" for number in range(50))
    processes.run(f"class A:\n{text}\n    count = 0\nvalue = A()")
    data = processes.send("value")
    assert len(data) < 4000, "a definition is compressed"
    value = processes.load(data)
    assert value.method49() == 49
    type(value).count = 5
    assert type(processes.load(data)) is type(value)
    assert type(value).count == 5


# --- notebooks and edited modules ---------------------------------------------------------------------------------------------------

CELLS = [
    """
import zfabric as zf
zf.init(num_cpus=1)
limit = 1
def helper(): return "first"
class Model:
    def run(self): return "old", limit
@zf.remote
def f(): return helper(), limit, Model().run()
@zf.remote
class Actor:
    def get(self): return helper(), limit
actor = Actor.remote()
assert zf.get([f.remote(), actor.get.remote()]) == [("first", 1, ("old", 1)), ("first", 1)]
""",
    "limit = 2",
    """
assert zf.get(f.remote()) == ("first", 2, ("old", 2))
assert zf.get([actor.get.remote(), Actor.remote().get.remote()]) == [("first", 1), ("first", 2)]
def helper(): return "second"
old, OldModel = Model(), Model
class Model:
    def run(self): return "new", limit
""",
    """
assert zf.get(f.remote()) == ("second", 2, ("new", 2))
@zf.remote
def g(value): return value.run(), Model().run(), isinstance(value, Model)
assert zf.get([g.remote(old), g.remote(Model())]) == [(("old", 2), ("new", 2), False), (("new", 2), ("new", 2), True)]
""",
    """
import importlib, pathlib, sys
sys.path.insert(0, "")
path = pathlib.Path("edited_module.py")
path.write_text("def value(): return 1\\n")
import edited_module
@zf.remote
def through():
    import edited_module
    return edited_module.value()
assert zf.get([through.remote(), zf.remote(edited_module.value).remote()]) == [1, 1]
""",
    """
path.write_text("def value(): return 2\\n")
importlib.reload(edited_module)
assert zf.get([through.remote(), zf.remote(edited_module.value).remote()]) == [2, 2]
zf.shutdown()
""",
]


def test_cells_of_a_notebook_see_what_earlier_ones_have_redefined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="NO NBCLIENT HERE: no notebook is run (the extra 'test' has it)")
    pytest.importorskip("ipykernel", reason="NO IPYKERNEL HERE: no notebook is run (the extra 'test' has it)")
    import nbformat

    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    nbclient.NotebookClient(notebook, timeout=100, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_workers_import_an_edited_module_anew(
    tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"edited_{tmp_path.name.replace('-', '_')}"
    path = tmp_path / f"{name}.py"
    path.write_text("def value(): return 1\n")
    module = importlib.import_module(name)
    request.addfinalizer(lambda: sys.modules.pop(name))  # For programs of later tests it would be one that has been edited.
    cluster(num_cpus=1)

    def reads() -> Any:
        return importlib.import_module(name).value()

    def holder() -> Any:
        class Holder:
            def __init__(self) -> None:
                self.module = importlib.import_module(name)

            def value(self) -> Any:
                return self.module.value(), importlib.import_module(name).value()

        return Holder

    actor = zf.remote(num_cpus=0)(holder()).remote()
    assert zf.get([zf.remote(reads).remote(), zf.remote(module.value).remote(), actor.value.remote()]) == [1, 1, (1, 1)]
    path.write_text("def value(): return 2\n")  # It is not even loaded again here.
    assert zf.get([zf.remote(reads).remote(), zf.remote(module.value).remote()]) == [2, 2]
    assert zf.get(actor.value.remote()) == (1, 1), "an actor keeps the modules that it has"
    assert zf.get(zf.remote(num_cpus=0)(holder()).remote().value.remote()) == (2, 2)
