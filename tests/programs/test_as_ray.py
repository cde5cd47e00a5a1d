"""Programs written for Ray, in processes of their own: a process that has entered the mode stays in it. No Ray is needed here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from command_line import Place
from faults import PATIENCE

from zfabric.ray_mode.command import LIBRARIES, modules
from zfabric.ray_mode.finder import NEWEST, OWN, TESTED, WITHOUT_RAY

ROOT = Path(__file__).parents[2]
MODE = "import zfabric.as_ray"


def run(source: str, *, code: int = 0, path: Path | None = None, command: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run a program (or a command), with ``path`` before what is installed; it must exit with ``code``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZFABRIC_") or name == "ZFABRIC_TEST_RUN"}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(path), environment.get("PYTHONPATH", ""))))
    ended = subprocess.run(
        [sys.executable, *(command or ("-c", textwrap.dedent(source)))],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert ended.returncode == code, (ended.returncode, ended.stdout, ended.stderr)
    return ended


def install(directory: Path, version: str = NEWEST) -> Path:
    """Put a distribution "ray" into a directory: a package that must not be run, a library, and a binary."""
    files = {
        "ray/__init__.py": "raise SystemError('the package of the installation was run')",
        "ray/_raylet.so": "no binary",
        "ray/binary.so": "no binary",
        "ray/library/__init__.py": "import ray\n@ray.remote\ndef version():\n    return ray.__version__\n",
        "ray/library/part.py": "from ray.library import version\nfrom ray._raylet import NodeID\n",
        "ray/bare/part.py": "ONE = 1\n",
        "ray/_private/theirs.py": "from ray._private import worker\n",
        f"ray-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: ray\nVersion: {version}\n",
    }
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


# --- a program --------------------------------------------------------------------------------------------------------------------

PROGRAM = """
import copy, os, sys, threading
import ray

@ray.remote
def inner():
    import ray
    return ray.__version__, bool(ray.put(0)), ray.get_runtime_context().job_id.hex()

@ray.remote(num_returns="streaming")
def numbers():
    yield from range(3)

@ray.remote
def outer():
    return ray.get(inner.remote())

@ray.remote
class Adder:
    def __init__(self, start=0):
        self.total = start
    def add(self, number, twice=False):
        self.total += number * (2 if twice else 1)
        return self.total

def in_order(events, name):
    return lambda *found: (events.append((name, *found)), done.set())

ray.init(num_cpus=2)
assert ray.is_initialized() and ray.__version__ == VERSION, ray.__version__
assert ray.get(outer.remote()) == (ray.__version__, True, ray.get_runtime_context().job_id.hex())

adder = ray.remote(num_cpus=0)(Adder._kind if hasattr(Adder, "_kind") else Adder)._remote(args=(1,), name="adder", max_restarts=1)
assert ray.get(adder.add._remote(args=(2,), kwargs={"twice": True})) == 5
assert ray.get(ray.get_actor("adder").add.options(_labels={"part": "1"}).remote(1)) == 6
assert adder._get_local_state() == 2, "it is alive"
assert isinstance(adder, ray.actor.ActorHandle) and adder._actor_id == ray.ActorID.from_hex(adder._actor_id.hex())
assert Adder.__ray_metadata__.class_name == "Adder" and Adder.__ray_metadata__.modified_class.__name__ == "Adder"
assert isinstance(Adder, ray.actor.ActorClass) and Adder.__ray_actor_class__ is Adder.__ray_metadata__.modified_class

@ray.remote
def names(kinds):
    return [type(kind).__name__ for kind in (Adder, *kinds)], ray.get(Adder.remote(3).add.remote(4))

kinds = [Adder, Adder.options(num_cpus=0), Adder.options(name="other"), copy.deepcopy(Adder)]
assert ray.get(names.remote(kinds)) == (["ActorClass(Adder)"] * 5, 7)
assert {type(kind).__name__ for kind in kinds} == {"ActorClass(Adder)"}

ref = ray.put("value")
if not ref:
    sys.exit("a ref is true")
assert ray.ObjectRef.nil().is_nil() and not ray.ObjectRef.nil()
assert ref.task_id().binary() == ref.binary()[:16] and ref.job_id() == ray.get_runtime_context().job_id
for name, call in (("completed", ref._on_completed), ("ready", ref._on_ready)):
    events, done = [], threading.Event()
    call(in_order(events, name))
    assert done.wait(60)
    assert events == [(name, "value" if name == "completed" else None)], events

generator = numbers.remote()
assert ray.get(generator._next_sync()) == 0
[coming] = generator._get_next_ref_n(1)
assert ray.get(coming) == 1
generator._consume_next_ref_n(1)
assert ray.get(generator._next_sync(timeout_s=-1)) == 2
try:
    generator._next_sync()
except StopIteration:
    assert generator._stream_exhausted() and ray.get(generator._generator_ref) == 3

freed, done = [], threading.Event()
ray._private.worker.global_worker.core_worker.add_object_out_of_scope_callback(ref, lambda id: (freed.append(id), done.set()))
identifier = ref.binary()
del ref, call
assert done.wait(60) and freed == [identifier]
large = ray.put(bytes(1_000_000))
where = ray.experimental.get_object_locations([large])[large]
assert where["object_size"] > 1_000_000 and where["node_ids"] == [ray.get_runtime_context().get_node_id()]
core_worker = ray._private.worker.global_worker.core_worker
small = ray.put(1)
assert core_worker.object_exists(large) and core_worker.object_exists(small)
assert ray.experimental.get_object_locations([small])[small]["node_ids"] == where["node_ids"], "it is where it is asked for"
held = [ray.remote(lambda value: threading.Event().wait()).remote(large) for _ in range(2)]
assert core_worker.get_all_reference_counts()[large.hex().encode()] == {"local": 1, "submitted": 2}
del small
[ray.cancel(each, force=True) for each in held]
assert ray.wait(held, num_returns=2, timeout=60)[0] == held, "their errors are here: what is measured below does not grow by them"

@ray.remote
def ends():
    raise StopIteration

try:
    ray.get(ends.remote())
except StopIteration as error:
    assert isinstance(error, ray.exceptions.RayTaskError)

kv = ray.experimental.internal_kv
assert not kv._internal_kv_put("key", b"0", namespace="space") and kv._internal_kv_put("key", b"1", namespace="space")
assert kv._internal_kv_put("key", b"2", overwrite=False, namespace="space")
assert kv._internal_kv_get(b"key", namespace=b"space") == b"1" and kv._internal_kv_list("k", namespace="space") == [b"key"]
assert kv._internal_kv_del("k", del_by_prefix=True, namespace="space") == 1 and not kv._internal_kv_exists("key", namespace="space")

node = ray.nodes()[0]
assert ray._private.worker._global_node.cluster_id == ray.ClusterID.from_hex(node["NodeID"]), "a cluster has the id of its head"
used = ray._private.worker.global_worker.core_worker.get_local_memory_store_bytes_used
before = used()
small = [ray.put(bytes(10_000)), ray.remote(lambda: bytes(10_000)).remote()]
ray.get(small)
assert 20_000 <= used() - before < 21_000, (before, used())
in_store = ray.put(bytes(1_000_000))
del small
assert used() < before + 1_000, "values of dropped refs, and of the object store, do not count"
assert ray._private.state.available_resources_per_node()[node["NodeID"]]["CPU"] <= 2
group = ray.util.placement_group([{"CPU": 1}])
assert group.id == ray.PlacementGroupID.from_hex(group.id.hex()) and not group.id.is_nil()
assert ray.get(group.ready()) and ray._private.state.state.placement_group_table(group.id)["state"] == "CREATED"
strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group)
assert ray.get(inner.options(scheduling_strategy=strategy).remote())[1]
ray.util.remove_placement_group(group)
try:
    ray.get(inner.options(num_cpus=1, retry_exceptions=False).remote(1))
except (TypeError, ray.exceptions.RayTaskError):
    pass
assert ray._private.worker.global_worker.mode == ray.SCRIPT_MODE
late = []
ray.remote(lambda: threading.Event().wait(60)).remote()._on_completed(late.append)
ray.shutdown()
assert late == [], late
print("all of it", *sys.argv[1:])
sys.exit(3)
"""


def test_a_program_runs_unchanged(tmp_path: Path) -> None:
    """By ``submit --as-ray`` and ``python -m zfabric.as_ray``: names of the core, their values, arguments and the exit code."""
    program = tmp_path / "program.py"
    program.write_text(f"VERSION = {NEWEST!r}\n{PROGRAM}")
    place = Place(str(tmp_path))
    shown = place.run("submit", "--as-ray", program, "a", "b c", code=3)
    assert shown.stdout.splitlines()[-1] == "all of it a b c", shown.stderr
    shown = run("", command=("-m", "zfabric.as_ray", str(program), "-x"), code=3)
    assert shown.stdout.splitlines()[-1] == "all of it -x"


def test_a_job_that_is_handed_over_runs_as_one_of_ray(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    (tmp_path / "job.py").write_text("import ray\nprint('version', ray.get(ray.remote(lambda: ray.__version__).remote()))\n")
    place.run("start", "--num-cpus", 1)
    try:
        job = place.run("submit", "--as-ray", "--detach", tmp_path / "job.py").stdout.strip()
        assert f"version {NEWEST}" in place.run("job", "logs", "--follow", job).stdout
    finally:
        place.run("stop")


def test_workers_of_other_nodes_enter_the_mode() -> None:
    run("""
        import zfabric.as_ray
        import ray
        from zfabric import LocalCluster
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        @ray.remote
        def where():
            import ray.util.state
            return ray.get_runtime_context().get_node_id(), ray.__commit__

        with LocalCluster(nodes=2, cpus_per_node=1):
            ray.init()
            ids = [node["NodeID"] for node in ray.nodes()]
            strategies = [NodeAffinitySchedulingStrategy(each, soft=False) for each in ids]
            found = ray.get([where.options(scheduling_strategy=each).remote() for each in strategies])
            assert found == [(each, ray.__commit__) for each in ids], found
    """)


def test_what_ray_takes_from_the_environment_and_from_a_jobs_configuration(tmp_path: Path) -> None:
    """Also: a namespace of its own for each program, and the files that name what is not sent."""
    (tmp_path / "sent").mkdir()
    for name, text in (("seen", ""), ("hidden", ""), ("not.seen", ""), (".gitignore", "hidden\n"), (".rayignore", "*.seen\n")):
        (tmp_path / "sent" / name).write_text(text)
    run(f"""
        import os
        import zfabric.as_ray
        import ray
        from types import SimpleNamespace

        os.environ["RAY_LOG_TO_DRIVER"] = "0"
        spaces = []
        for _ in range(2):
            with ray.init(num_cpus=1):
                spaces.append(ray.get_runtime_context().namespace)
                ray.get(ray.remote(print).remote("not shown"))
        assert spaces[0] != spaces[1] and "" not in spaces, spaces
        os.environ["RAY_NAMESPACE"] = "theirs"
        with ray.init(num_cpus=0, object_spilling_directory={str(tmp_path / "spilled")!r}):
            assert ray.get_runtime_context().namespace == "theirs"
            assert "CPU" not in ray.cluster_resources() and "CPU" not in ray.nodes()[0]["Resources"]
            assert os.listdir({str(tmp_path / "spilled")!r}), "its own directory is there"
        job = SimpleNamespace(ray_namespace="ours", runtime_env={{"working_dir": {str(tmp_path / "sent")!r}}})
        with ray.init(num_cpus=1, job_config=job):
            assert ray.get_runtime_context().namespace == "ours"
            assert ray.get(ray.remote(lambda: "seen" in os.listdir() and not {{"hidden", "not.seen"}} & set(os.listdir())).remote())
        os.environ["RAY_ADDRESS"] = "ray://there:10001"
        try:
            ray.init()
        except ray.exceptions.FabricError as error:
            assert "is an address of Ray's client" in str(error)
        else:
            raise SystemExit("RAY_ADDRESS is not read")
        try:
            ray.init(job_config=SimpleNamespace(ray_namespace="", runtime_env={{}}, _default_actor_lifetime=0), address="local")
        except ray.exceptions.FabricError as error:
            assert "lifetime='detached'" in str(error)
        else:
            raise SystemExit("the lifetime of a job's actors is not read")
    """)


def test_a_cluster_of_rays_tests_lists_its_dead_nodes() -> None:
    run("""
        import zfabric.as_ray
        import ray
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "num_gpus": 1, "_system_config": {"health_check_period_ms": 1}}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        other = cluster.add_node(num_cpus=1, resources={"theirs": 1}, enable_object_reconstruction=True)
        cluster.wait_for_nodes()
        assert not ray.is_initialized()
        cluster.connect()
        assert ray.cluster_resources()["GPU"] == 1 and ray.cluster_resources()["theirs"] == 1
        assert other.unique_id in [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        cluster.remove_node(other)
        dead = [node for node in ray.nodes() if not node["Alive"]]
        while not dead:
            dead = [node for node in ray.nodes() if not node["Alive"]]
        assert [node["NodeID"] for node in dead] == [other.unique_id] and dead[0]["Resources"] == {}, dead
        assert ray._private.state.current_node_id() == "node:127.0.0.1"
        cluster.shutdown()
    """)


def test_steps_of_a_bar_are_drawn_and_not_shown(tmp_path: Path) -> None:
    path = install(tmp_path)
    (path / "ray" / "experimental").mkdir()
    (path / "ray" / "experimental" / "tqdm_ray.py").write_text(
        "class Bars:\n def process_state_update(self, state):\n  print('drawn', 70 // state['n'])\ndef instance():\n return Bars()\n"
    )
    ended = run(
        """
        import zfabric.as_ray
        import ray

        @ray.remote
        def steps():
            print('{"__magic_token__": "__ray_tqdm_magic_token__", "n": 0}')
            print('{"__magic_token__": "__ray_tqdm_magic_token__", "n": 7}')
            print('{"__magic_token__": "__ray_tqdm_magic_token__", cut')
            print("text")

        with ray.init(num_cpus=1):
            ray.get(steps.remote())
        """,
        path=path,
    )
    lines = [line.rpartition(") ")[2] for line in ended.stdout.splitlines()]
    assert lines == ["drawn 10", "text"], ended.stdout


def test_a_node_starts_where_modin_has_every_interpreter_import_pandas(tmp_path: Path) -> None:
    """Modin does so while it calls ``ray.init`` itself, by a ``.pth`` file; pandas starts threads, beside which nothing can be forked."""
    threads = "import os, threading, time\nif os.environ.get('__MODIN_AUTOIMPORT_PANDAS__'):\n    "
    (tmp_path / "sitecustomize.py").write_text(f"{threads}threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n")
    run(
        """
        import zfabric.as_ray
        import os, ray
        os.environ["__MODIN_AUTOIMPORT_PANDAS__"] = "1"
        ray.init(num_cpus=1)
        assert ray.get(ray.remote(lambda: 1).remote()) == 1 and os.environ["__MODIN_AUTOIMPORT_PANDAS__"] == "1"
        """,
        path=tmp_path,
    )


# --- the user's Ray ---------------------------------------------------------------------------------------------------------------


def test_libraries_come_from_the_installation_and_its_package_is_not_run(tmp_path: Path) -> None:
    run(
        """
        import zfabric.as_ray
        import ray, ray.library.part, ray.bare.part
        from ray._private import theirs
        assert ray.__version__ == "2.60.9" and ray.bare.part.ONE == 1
        assert "zfabric" in ray.__file__ and "zfabric" in ray._raylet.__file__ and "zfabric" in theirs.worker.__file__
        ray.init(num_cpus=1)
        assert ray.get(ray.library.part.version.remote()) == "2.60.9"
        try:
            import ray.binary
        except ModuleNotFoundError as error:
            assert error.name == "ray.binary" and "docs/as-ray.md" in str(error), error
        else:
            raise AssertionError("a binary was loaded")
        """,
        path=install(tmp_path, "2.60.9"),
    )


@pytest.mark.parametrize("source", ["", "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"])
def test_workers_are_forked_with_what_the_program_has_loaded_of_ray(tmp_path: Path, source: str) -> None:
    """Unless that starts threads when it is imported: then they begin without, and import it themselves."""
    install(tmp_path)
    (tmp_path / "ray/library/part.py").write_text(source)
    run(
        f"""
        import zfabric.as_ray
        import sys
        import ray, ray.library.part
        ray.init(num_cpus=1)

        @ray.remote
        def loaded():
            import sys
            before = "ray.library.part" in sys.modules
            import ray.library.part
            return before

        assert ray.get(loaded.remote()) is {not source}
        """,
        path=tmp_path,
    )


def test_workers_do_not_wait_for_a_module_that_hangs(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text("import threading\nthreading.Event().wait()\n")
    run(
        """
        import sys
        from zfabric.runtime import template
        template.IMPORT_SECONDS = 1
        template._import_in_child(("hanging",))
        assert "hanging" not in sys.modules
        """,
        path=tmp_path,
    )


def test_an_untested_version_is_told_once(tmp_path: Path) -> None:
    program = "import ray\nray.init(num_cpus=1)\nassert ray.get(ray.remote(lambda: ray.__version__).remote()) == '9.1.0'\n"
    shown = run(f"{MODE}\n{program}", path=install(tmp_path, "9.1.0")).stderr
    assert shown.count("the libraries of Ray 9.1.0 are not tested") == 1
    assert TESTED[-1] in shown
    assert "not tested" not in run(MODE, path=install(tmp_path / "tested")).stderr


def test_two_versions_are_an_error(tmp_path: Path) -> None:
    both = f"{install(tmp_path / 'one', '2.60.0')}{os.pathsep}{install(tmp_path / 'two', '2.61.0')}"
    shown = run(MODE, path=Path(both), code=1).stderr
    assert "two versions of Ray are installed" in shown
    assert "2.61.0 in" in shown


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("import sys, types; sys.modules['ray'] = types.ModuleType('ray')", "Ray itself is imported in this process"),
        ("import zfabric; zfabric.init(num_cpus=1)", "connected to a cluster already, and not as a program of Ray"),
    ],
)
def test_the_mode_comes_first_or_not_at_all(before: str, said: str) -> None:
    shown = run(f"{before}\n{MODE}", code=1).stderr
    assert said in shown
    assert "AlreadyInitializedError" in shown


def test_names_that_are_not_here_say_where_to_look() -> None:
    run("""
        import zfabric.as_ray
        import copyreg, importlib.util, pickle, pytest, ray

        assert importlib.util.find_spec("ray.dta") is None and importlib.util.find_spec("ray.util") is not None
        with pytest.raises(ModuleNotFoundError, match=r"no module 'ray.dta' on zfabric.*pip install 'ray.*docs/as-ray.md"):
            import ray.dta
        with pytest.raises(ModuleNotFoundError, match="there is 'placement_group'.*docs/as-ray.md"):
            import ray.util.placement_groups
        with pytest.raises(AttributeError, match="module 'ray' has no 'gett' on zfabric; there is 'get' .*docs/as-ray.md"):
            ray.gett
        with pytest.raises(AttributeError, match="'ray._raylet' has no 'NoSuchName' on zfabric.*docs/as-ray.md"):
            ray._raylet.NoSuchName
        with pytest.raises(ray.NotInRayModeError, match="ray._raylet.Gauge is not in zfabric: ray.util.metrics.Gauge.*docs/as-ray.md"):
            ray._raylet.Gauge("name")
        with pytest.raises(NotImplementedError, match="global_worker.core_worker.get_objects is not in zfabric"):
            ray._private.worker.global_worker.core_worker.get_objects
        class Derived(ray._raylet.RayEvent):
            pass
        with pytest.raises(NotImplementedError, match="RayEvent"):
            Derived()
        class Kept:
            pass
        context = ray.util.serialization.StandaloneSerializationContext()
        context._register_cloudpickle_reducer(Kept, lambda kept: (str, ("kept",)))
        assert pickle.loads(pickle.dumps(Kept())) == "kept"
        context._unregister_cloudpickle_reducer(Kept)
        assert Kept not in copyreg.dispatch_table
        assert repr(pickle.loads(pickle.dumps(ray._raylet.Sum))) == "<ray._raylet.Sum, which is not in zfabric>"
        with pytest.raises(ValueError, match="ray://.* is an address of Ray's client.*docs/as-ray.md"):
            ray.init("ray://host:10001")
        with pytest.raises(ValueError, match="conda"):
            ray.remote(runtime_env=ray.runtime_env.RuntimeEnv(conda="env"))(len)
    """)


def test_what_only_libraries_import_can_be_imported_without_ray(tmp_path: Path) -> None:
    """Modin imports ``ray.data``. The package of an installed Ray comes first."""
    run("""
        import zfabric.as_ray
        import pytest, ray
        from ray.data import from_pandas_refs

        with pytest.raises(ray.NotInRayModeError, match=r"ray.data.from_pandas_refs is not in zfabric: .*pip install 'ray.*docs/as-ray.md"):
            from_pandas_refs([])
        with pytest.raises(AttributeError, match=r"'ray.data' has no 'range' on zfabric .*pip install 'ray.data.*docs/as-ray.md"):
            ray.data.range(3)
        for source in ("import ray.data.dataset", "from ray.data import dataset", "from ray import tune", "import ray.tune"):
            with pytest.raises(ModuleNotFoundError, match=r"no module 'ray.* on zfabric .*pip install 'ray.*docs/as-ray.md"):
                exec(source)
        assert not hasattr(ray.data, "range") and not hasattr(ray, "tune")
    """)
    install(tmp_path)
    (tmp_path / "ray/data.py").write_text("range = 'of the installation'\n")
    run("import zfabric.as_ray, ray.data\nassert ray.data.range == 'of the installation'", path=tmp_path)
    (tmp_path / "ray/data.py").unlink()
    run("import zfabric.as_ray, pytest\nwith pytest.raises(ModuleNotFoundError, match='ray.data'):\n    import ray.data", path=tmp_path)


def test_every_stand_in_can_be_imported() -> None:
    wanted = [name for name in modules((OWN, WITHOUT_RAY)) if "pydantic" not in name]  # That one needs what only Ray's libraries need.
    assert {"ray", "ray.util.state.common", "ray.data"} <= set(wanted)
    run(f"import zfabric.as_ray, importlib\nfor name in {wanted!r}:\n    importlib.import_module(name)")


def test_the_check_says_what_is_here(tmp_path: Path) -> None:
    shown = run("", command=("-m", "zfabric.as_ray", "--check")).stdout
    assert all(said in shown for said in ("Ray: not installed", "ray.data     not installed", "  ray.data: from_pandas_refs"))
    shown = run("", command=("-m", "zfabric.as_ray", "--check"), path=install(tmp_path), code=1).stdout
    for said in (f"Ray: {NEWEST} (tested)", "ray.data     ModuleNotFoundError", ", CoreWorker, "):
        assert said in shown


def test_the_page_names_versions_and_libraries() -> None:
    page = (ROOT / "docs/as-ray.md").read_text()
    assert all(re.search(rf"\bRay {re.escape(version)}\b", page) for version in TESTED)
    assert all(f"| `ray.{library}`" in page for library in LIBRARIES)
