"""What a ``runtime_env`` sends to nodes: working directories and modules."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faults import eventually, on_node

import zfabric as zf
from zfabric.adapters import processes
from zfabric.api.cluster import session_directory
from zfabric.job_submission import JobStatus, JobSubmissionClient

PATIENCE = 60
INSTALL_SECONDS = 3 * PATIENCE
"""Limit for what waits until pip has installed packages: it works for many seconds where others want the CPUs, too."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """A cluster of two nodes; the ids of this program's and of the other. The program has packages in a place of its own."""
    installed = tmp_path_factory.mktemp("driver") / "site-packages"
    installed.mkdir()
    (installed / "a_package_of_the_driver.py").write_text("VERSION = 'of the driver'\n")
    with zf.LocalCluster(nodes=2, cpus_per_node=2) as cluster:
        sys.path.insert(0, str(installed))
        with zf.init(cluster.address):
            here = zf.get_runtime_context().get_node_id()
            yield [here, *(node["NodeID"] for node in zf.nodes() if node["NodeID"] != here)]
        sys.path.remove(str(installed))


def project(tmp_path: Path, value: int = 42) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "a_module_that_is_sent.py").write_text(f"VALUE = {value}\n")
    (place / "data.txt").write_text("found")
    (place / "secret.log").write_text("not to be sent")
    (place / ".zfabricignore").write_text("*.log\n")
    return place


def look() -> Any:
    import a_module_that_is_sent

    return zf.get_runtime_context().get_node_id(), os.getcwd(), sorted(set(os.listdir(".")) - {"__pycache__"}), a_module_that_is_sent.VALUE


@zf.remote
class Looker:
    def __init__(self) -> None:
        self.first = look()

    def child(self) -> Any:
        return self.first, zf.get(zf.remote(look).remote())


def test_a_directory_is_sent_to_each_node_once(nodes: list[str], tmp_path: Path) -> None:
    place = project(tmp_path)
    env = {"working_dir": str(place)}
    task = zf.remote(look).options(runtime_env=env)
    found = zf.get([task.options(scheduling_strategy=on_node(node)).remote() for node in nodes for _ in range(3)], timeout=PATIENCE)
    assert [each[0] for each in found] == [node for node in nodes for _ in range(3)]
    (here, there) = {each[1] for each in found}
    assert {os.path.basename(here), os.path.basename(there)} == {"project"}
    assert os.path.dirname(here).split("/")[-2:] == os.path.dirname(there).split("/")[-2:], "the same hash in two sessions"
    assert str(place) not in (here, there)
    assert {tuple(each[2]) for each in found} == {(".zfabricignore", "a_module_that_is_sent.py", "data.txt")}
    assert {each[3] for each in found} == {42}
    (place / "a_module_that_is_sent.py").write_text("VALUE = 1\n")  # It was sent as it was.
    assert zf.get(task.remote(), timeout=PATIENCE)[3] == 42


def test_actors_and_children_are_in_the_directory_of_their_parent(nodes: list[str], tmp_path: Path) -> None:
    place = project(tmp_path, 7)
    actor = Looker.options(runtime_env={"working_dir": str(place)}).remote()
    first, child = zf.get(actor.child.remote(), timeout=PATIENCE)
    assert first[3] == child[3] == 7
    nested = zf.remote(lambda: zf.get(zf.remote(look).options(scheduling_strategy=on_node(nodes[0])).remote()))
    there = nested.options(scheduling_strategy=on_node(nodes[1]), runtime_env={"working_dir": str(place)})
    assert zf.get(there.remote(), timeout=PATIENCE)[::3] == (nodes[0], 7)


def test_modules_are_sent(nodes: list[str], tmp_path: Path) -> None:
    package = tmp_path / "a_package_that_is_sent"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import VALUE\n")
    (package / "inner.py").write_text("VALUE = 1\n")
    single = tmp_path / "a_file_that_is_sent.py"
    single.write_text("VALUE = 2\n")
    (tmp_path / "beside_it.py").write_text("")
    place = project(tmp_path, 3)

    def values() -> Any:
        from importlib import import_module
        from importlib.util import find_spec

        names = ("a_package_that_is_sent", "a_file_that_is_sent", "a_module_that_is_sent")
        return [import_module(name).VALUE for name in names], find_spec("beside_it"), str(tmp_path) in sys.path

    env = {"py_modules": [package, str(single), str(place)]}
    found = zf.remote(values).options(runtime_env=env, scheduling_strategy=on_node(nodes[1])).remote()
    assert zf.get(found, timeout=PATIENCE) == ([1, 2, 3], None, False)


# --- pip ----------------------------------------------------------------------------------------------------------------------------


def wheel(place: Path, name: str, version: str, content: str = "", requires: str = "") -> str:
    """Build a wheel of one module; return the directory that it is in."""
    import base64
    import hashlib
    import zipfile

    place.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    needs = f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        f"{name}.py": content or f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
        rows.append(f"{path},sha256={digest},{len(text.encode())}")
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(place / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return str(place)


def from_wheels(place: str, *packages: str) -> dict[str, Any]:
    return {"packages": list(packages), "pip_install_options": ["--no-index", "--find-links", place]}


def version_of(name: str) -> Any:
    import importlib

    module = importlib.import_module(name)
    return zf.get_runtime_context().get_node_id(), sys.executable, getattr(module, "VERSION", module.__file__), os.getpid()


def test_packages_are_installed_on_each_node_and_win(nodes: list[str], tmp_path: Path) -> None:
    """Here "tqdm" stands for a package of the node that is wanted in another version."""
    place = wheel(tmp_path / "wheels", "a_package_of_a_wheel", "1.5", requires="tqdm==0.0.1")
    wheel(tmp_path / "wheels", "tqdm", "0.0.1")
    wheel(tmp_path / "wheels", "a_package_of_the_driver", "2.0")
    env = {"pip": from_wheels(place, "a_package_of_a_wheel", "a_package_of_the_driver"), "working_dir": str(project(tmp_path))}
    task = zf.remote(version_of).options(runtime_env=env)
    for node in nodes:
        there = task.options(scheduling_strategy=on_node(node))
        names = ("a_package_of_a_wheel", "tqdm", "a_package_of_the_driver")
        found = zf.get([there.remote(name) for name in names], timeout=INSTALL_SECONDS)
        assert [(where, version) for where, _, version, _ in found] == [(node, "1.5"), (node, "0.0.1"), (node, "2.0")]
        assert len({python for _, python, _, _ in found}) == 1
    plain = zf.get([zf.remote(version_of).remote(name) for name in names[1:]], timeout=INSTALL_SECONDS)
    assert (plain[0][2] == "0.0.1", plain[1][2]) == (False, "of the driver")
    assert zf.get(zf.remote(look).options(runtime_env=env).remote(), timeout=INSTALL_SECONDS)[3] == 42

    def child() -> Any:
        return zf.get(zf.remote(version_of).remote("tqdm"))

    assert zf.get(zf.remote(child).options(runtime_env=env).remote(), timeout=INSTALL_SECONDS)[2] == "0.0.1"


def test_packages_on_a_cluster_inside_the_program(tmp_path: Path) -> None:
    """Of one node, which the program has started itself; for all its tasks."""
    place = wheel(tmp_path / "wheels", "a_package_of_an_embedded_cluster", "1.0")
    program = f"""
import sys
import zfabric as zf

@zf.remote
def version():
    import a_package_of_an_embedded_cluster as found
    return found.VERSION, sys.executable

@zf.remote
class Holder:
    def version(self):
        import a_package_of_an_embedded_cluster as found
        return found.VERSION, sys.executable

with zf.init(address="local", num_cpus=1, runtime_env={{"pip": {from_wheels(place, "a_package_of_an_embedded_cluster")!r}}}):
    task, method = zf.get([version.remote(), Holder.remote().version.remote()], timeout={INSTALL_SECONDS})
assert task == method
assert task[0] == "1.0" and task[1] != sys.executable
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=INSTALL_SECONDS + PATIENCE)
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_installed_fails_with_the_last_lines_of_pip_and_once(nodes: list[str], tmp_path: Path) -> None:
    place = wheel(tmp_path / "wheels", "another_package_of_a_wheel", "1.0")
    task = zf.remote(version_of).options(runtime_env={"pip": from_wheels(place, "another_package_of_a_wheel==2.0")}, max_retries=5)
    refs = [task.options(scheduling_strategy=on_node(nodes[1])).remote("x") for _ in range(20)]
    errors = []
    for ref in refs:
        with pytest.raises(zf.RuntimeEnvSetupError) as caught:
            zf.get(ref, timeout=INSTALL_SECONDS)
        errors.append(str(caught.value))
    assert len(set(errors)) == 1
    assert "on node" in errors[0]
    assert "No matching distribution found for another_package_of_a_wheel==2.0" in errors[0]
    with pytest.raises(zf.RuntimeEnvSetupError, match="No matching distribution"):
        zf.get(task.options(scheduling_strategy=on_node(nodes[1])).remote("x"), timeout=INSTALL_SECONDS)
    logs = Path(session_of(nodes[1]), "environments").glob("pip-*/pip.log")
    assert sum(log.read_text().count("No matching distribution") for log in logs) == 1, "nobody tries again at once"


def session_of(node: str) -> str:
    return str(zf.get(zf.remote(session_directory).options(scheduling_strategy=on_node(node)).remote(), timeout=INSTALL_SECONDS))


BACKEND = """
import os, time
def build_wheel(directory, config_settings=None, metadata_directory=None):
    with open("PLACE/begun", "w") as file:
        file.write(str(os.getpid()))
    while not os.path.exists("PLACE/go"):
        time.sleep(0.01)
    name = "a_slow_package-1.0-py3-none-any.whl"
    os.link("PLACE/wheels/" + name, directory + "/" + name)
    return name
"""


def slow(tmp_path: Path) -> dict[str, Any]:
    """A package that is not installed before there is a file "go"; "begun" says that somebody waits for it."""
    wheel(tmp_path / "wheels", "a_slow_package", "1.0")
    source = tmp_path / "source"
    source.mkdir()
    (source / "pyproject.toml").write_text('[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n')
    (source / "backend.py").write_text(BACKEND.replace("PLACE", str(tmp_path)))
    return {"packages": [str(source)], "pip_install_options": ["--no-index", "--no-build-isolation"]}


def test_others_are_not_held_up_while_packages_are_installed(nodes: list[str], tmp_path: Path) -> None:
    here = on_node(nodes[0])
    task = zf.remote(version_of).options(runtime_env={"pip": slow(tmp_path)}, scheduling_strategy=here)
    refs = [task.remote("a_slow_package") for _ in range(4)]
    eventually((tmp_path / "begun").exists, "the build")
    assert len(zf.get([zf.remote(os.getpid).options(scheduling_strategy=here).remote() for _ in range(50)], timeout=INSTALL_SECONDS)) == 50
    assert zf.wait(refs, num_returns=4, timeout=0)[0] == []
    assert "the environment that it asks for is being made" in str(zf.explain(refs[0]))
    (tmp_path / "go").touch()
    assert {version for _, _, version, _ in zf.get(refs, timeout=INSTALL_SECONDS)} == {"1.0"}


def test_a_process_that_makes_an_environment_may_die(nodes: list[str], tmp_path: Path) -> None:
    task = zf.remote(version_of).options(runtime_env={"pip": slow(tmp_path)}, scheduling_strategy=on_node(nodes[0]))
    ref = task.remote("a_slow_package")
    begun = tmp_path / "begun"
    builder = int(eventually(lambda: begun.exists() and begun.read_text(), "the build"))
    (pid,) = [pid for pid in every_process() if name_of(pid) == "zf-maker" and builder in processes.descendants(pid)]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(zf.RuntimeEnvSetupError, match="the process that makes its environment ended with signal 9"):
        zf.get(ref, timeout=INSTALL_SECONDS)
    eventually(lambda: not os.path.exists(f"/proc/{builder}"), "the end of what pip has started")


def every_process() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_an_actor_and_a_job_have_their_packages(nodes: list[str], tmp_path: Path) -> None:
    place = wheel(tmp_path / "wheels", "a_package_of_a_job", "3.0")
    wanted = tmp_path / "requirements.txt"
    wanted.write_text(f"# for jobs\n--no-index\n--find-links {place}\na_package_of_a_job\n")
    env = {"pip": str(wanted), "env_vars": {"COLOUR": "red"}}

    @zf.remote
    class Actor:
        def see(self) -> Any:
            return version_of("a_package_of_a_job")[2], os.environ["COLOUR"], zf.get_runtime_context().runtime_env["pip"]["packages"]

    lines = ["--no-index", f"--find-links {place}", "a_package_of_a_job"]
    assert zf.get(Actor.options(runtime_env=env).remote().see.remote(), timeout=INSTALL_SECONDS) == ("3.0", "red", lines)
    client = JobSubmissionClient()
    inner = "import sys, zfabric as zf; f = lambda: (__import__('a_package_of_a_job').VERSION, sys.prefix); "
    inner += "print(*zf.get(zf.remote(f).remote()))"
    job = client.submit_job(entrypoint=f'python -c "{inner}"', runtime_env=env)
    assert client.wait_for_job(job, INSTALL_SECONDS) == JobStatus.SUCCEEDED, client.get_job_logs(job)
    version, prefix = client.get_job_logs(job).splitlines()[-1].split()
    assert (version, "/environments/pip-" in prefix) == ("3.0", True)
    client.delete_job(job)


@pytest.mark.parametrize(
    ("pip", "text"),
    [
        (5, "list of requirements"),
        ([5], "list of requirements"),
        (["a\nb"], "one requirement or option in each item"),
        (["-r other.txt"], "nodes do not have that file"),
        (["a" * 70_000], "at most 65,536 bytes"),
        ("nowhere.txt", "cannot be read"),
        ({"packages": []}, "names no packages"),
        ({"package": ["a"]}, "did you mean 'packages'"),
        ({"packages": ["a"], "pip_version": "==1"}, "no 'pip_version' here"),
        ({"packages": ["a"], "pip_check": 1}, "pip_check is True or False"),
        ({"packages": ["a"], "pip_install_options": "--no-index"}, "list of options"),
    ],
)
def test_wrong_requirements_are_refused_where_they_are_written(pip: Any, text: str) -> None:
    with pytest.raises(zf.OptionError, match=text):
        zf.remote(runtime_env={"pip": pip})
