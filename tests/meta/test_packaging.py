"""The package as it is installed: its metadata, the cost of importing it, and the README's example."""

from __future__ import annotations

import configparser
import importlib.metadata
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import zfabric
from zfabric import _version
from zfabric.runtime.launch import IMPORTS, IMPORTS_OF_CLUSTERS

ROOT = Path(__file__).resolve().parents[2]


def test_the_command_is_an_entry_point() -> None:
    (command,) = importlib.metadata.entry_points(group="console_scripts", name="zfabric")
    assert command.value == "zfabric.cli.main:main"
    assert callable(command.load())


def test_metadata_lists_the_requirements() -> None:
    metadata = importlib.metadata.metadata("zfabric")
    assert metadata["Version"] == _version.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    needed = {re.match(r"[\w-]+", line)[0] for line in importlib.metadata.requires("zfabric") or () if "extra ==" not in line}
    assert needed == {"pyzmq", "msgpack", "numpy", "lmdb", "cloudpickle", "click", "psutil", "rich"}
    assert {"examples", "test", "dev"} <= set(metadata.get_all("Provides-Extra"))


def test_metadata_is_in_setup_cfg() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project) == {"build-system", "tool"}
    assert set(project["tool"]) == {"ruff"}  # The only one of our tools that does not read setup.cfg.
    configuration = configparser.ConfigParser()
    configuration.read(ROOT / "setup.cfg")
    assert {"metadata", "options", "tool:pytest", "mypy", "importlinter"} <= set(configuration)
    assert configuration["mypy"]["strict"] == "True"
    assert {"joblib", "examples", "test", "dev"} <= set(configuration["options.extras_require"])


def test_a_build_holds_every_file_of_the_package_and_no_others(tmp_path: Path) -> None:
    """Built from a copy: what setuptools leaves behind stays out of the tree. The simulator and the measurements lie beside the package."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md"):
        (source / name).write_bytes((ROOT / name).read_bytes())

    def files_of(*places: str) -> set[Path]:
        found = (path for place in places for path in (ROOT / place).rglob("*"))
        return {path.relative_to(ROOT) for path in found if path.is_file() and "__pycache__" not in path.parts}

    files = files_of("zfabric")
    for path in files | files_of("tests/sim", "perf"):
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_bytes((ROOT / path).read_bytes())
    build = "from setuptools import setup; setup(script_args=['-q', 'build', '--build-base', 'base', '--build-lib', 'built'])"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    assert {path.relative_to(source / "built") for path in (source / "built").rglob("*") if path.is_file()} == files


def test_the_types_marker_is_there() -> None:
    assert (Path(zfabric.__file__).parent / "py.typed").is_file()


def test_import_is_lean() -> None:
    """What costs milliseconds to import is imported where it is used: a driver may never need it."""
    code = "import sys; before = set(sys.modules); import zfabric; print(*set(sys.modules) - before)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "zfabric" in loaded
    costly = {"asyncio", "psutil", "click", "rich", "numpy", "multiprocessing"}
    assert not costly & {name.partition(".")[0] for name in loaded}


def test_the_processes_of_a_node_load_nothing_heavy() -> None:
    """What a supervisor loads is in the memory of all processes of its node: a daemon of a cluster once had 4 MiB of asyncio and ssl."""
    code = "import sys, importlib as i; [i.import_module(name) for name in sys.argv[1:]]; print(*sys.modules)"
    command = [sys.executable, "-S", "-c", f"import sys; sys.path += {sys.path}; {code}", *IMPORTS, *IMPORTS_OF_CLUSTERS]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert set(IMPORTS_OF_CLUSTERS) < set(loaded)
    assert not {"asyncio", "ssl", "email", "importlib.metadata", "subprocess", "multiprocessing", "numpy", "click"} & set(loaded)


def test_every_public_name_exists() -> None:
    assert zfabric.__all__
    assert len(set(zfabric.__all__)) == len(zfabric.__all__)
    for name in zfabric.__all__:
        assert getattr(zfabric, name) is not None


def test_the_readme_shows_the_quickstart() -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert shown == (ROOT / "docs/examples/quickstart.py").read_text()


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "docs/cli.md", "docs/shell-completion.md"])
def test_links_have_a_target(page: str) -> None:
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)\)", path.read_text())
    missing = [link for link in links if "://" not in link and not (path.parent / link).exists()]
    assert not missing


def test_the_readme_names_every_command() -> None:
    from zfabric.cli.main import SECTIONS

    names = [entry.name for _, entries in SECTIONS for entry in entries]
    readme = (ROOT / "README.md").read_text()
    assert names
    assert [name for name in names if f"`zfabric {name}" not in readme and f"`{name}`" not in readme] == []


@pytest.mark.parametrize("script", ["scripts/run", "scripts/test", "scripts/check", ".ci/run"])
def test_scripts_can_be_run_and_are_well_formed(script: str) -> None:
    assert (ROOT / script).stat().st_mode & stat.S_IXUSR
    subprocess.run(["bash", "-n", ROOT / script], check=True)


def test_run_without_a_program_shows_its_usage() -> None:
    answer = subprocess.run([ROOT / "scripts/run"], capture_output=True, text=True)
    assert answer.returncode == 2
    assert "usage" in answer.stderr


def shell(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in bash with the functions of scripts/_env.sh."""
    source = f"set -euo pipefail; source '{ROOT}/scripts/_env.sh'; {code}"
    return subprocess.run(["bash", "-c", source], capture_output=True, text=True, env={**os.environ, **environment})


def executable(path: Path, code: str) -> None:
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)


def test_the_newest_python_that_works_is_chosen(tmp_path: Path) -> None:
    """A shim that fails, one that is too old and one that answers nonsense are passed over."""
    executable(tmp_path / "python3.13", "echo 'command not found' >&2; exit 127")
    executable(tmp_path / "python3.12", "echo 3012")
    executable(tmp_path / "python3.11", "echo 3011")
    executable(tmp_path / "python3", "echo hello")
    found = shell("find_python", PATH=f"{tmp_path}:/usr/bin:/bin", PYTHON="")
    assert found.stdout.strip() == "python3.12"


def test_without_a_python_the_script_names_the_package_to_install(tmp_path: Path) -> None:
    for name in ("python3.13", "python3.12", "python3.11", "python3"):
        executable(tmp_path / name, "echo 3009")
    answer = shell("venv=/nonexistent/.venv; make_venv", PATH=f"{tmp_path}:/usr/bin:/bin", PYTHON="", CI="")
    assert answer.returncode == 1
    assert "apt-get install python3 python3-venv" in answer.stderr


def test_a_python_without_venv_is_completed_on_a_bare_build_machine_only(tmp_path: Path) -> None:
    """Elsewhere the script names what to install, and installs nothing."""
    packages = tmp_path / "packages"
    python = f"""
case "$*" in
  *version_info*) echo 3011 ;;
  *platform*) echo 3.11.0 ;;
  *ensurepip*) test -e '{packages}' ;;
  "-m venv --without-pip"*|"-m pip"*) exit 1 ;;
  "-m venv"*) for last; do :; done; mkdir -p "$last" ;;
esac"""
    executable(tmp_path / "python3", python)
    executable(tmp_path / "apt-get", f"""[ "$1" = update ] || echo "$*" >>'{packages}'""")
    executable(tmp_path / "id", "echo 0")
    venv = tmp_path / ".venv"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHON": str(tmp_path / "python3")}
    refused = shell(f"venv='{venv}'; make_venv", **environment, CI="")
    assert refused.returncode == 1
    assert "apt-get install python3-venv" in refused.stderr
    assert not packages.exists()
    made = shell(f"venv='{venv}'; make_venv", **environment, CI="true")
    assert made.returncode == 0, made.stderr
    assert "python3.11-venv" in packages.read_text()
    assert venv.is_dir()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A tree with the scripts, in a directory with a space in its name, and a stand-in for Python that notes each install."""
    project = tmp_path / "a project"
    for name in ("scripts/_env.sh", "scripts/run", "scripts/test", "setup.cfg", "pyproject.toml"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, project / name)
    python = f"""
case "$*" in
  *version_info*1000*) echo 3011 ;;
  *platform*) echo 3.11.0 ;;
  "-m venv"*) for last; do :; done; mkdir -p "$last/bin"; cp "$0" "$last/bin/python"; echo "$last" >"$last/bin/activate" ;;
  *"pip install"*)
    echo "$*" >>'{tmp_path}/installs'
    printf '#!/bin/sh\\nprintf "<%%s>" "$PWD" "$@"; exit 7\\n' >"${{0%/*}}/zfabric"; chmod +x "${{0%/*}}/zfabric" ;;
  "-m pytest"*) printf "<%s>" "$PWD" "$@"; exit 5 ;;
esac"""
    executable(tmp_path / "python3", python)
    return project


def start(script: Path, *arguments: str) -> subprocess.Popen[str]:
    """The script as a user with next to no environment starts it, from a directory that is not the project's."""
    directory = script.parent.parent.parent
    environment = {"HOME": str(directory), "PATH": f"{directory}:/usr/bin:/bin", "PYTHON": str(directory / "python3")}
    return subprocess.Popen([script, *arguments], cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def installs(project: Path) -> list[str]:
    return (project.parent / "installs").read_text().splitlines()


def test_run_hands_everything_to_submit_and_its_exit_code_back(project: Path) -> None:
    process = start(project / "scripts/run", "my program.py", "--flag", "a b")
    printed, _ = process.communicate()
    assert printed == f"<{project.parent}><submit><my program.py><--flag><a b>"
    assert process.returncode == 7
    assert installs(project)[0].endswith(f"{project}[examples]")


def test_test_hands_everything_to_pytest_in_the_root(project: Path) -> None:
    process = start(project / "scripts/test", "-k", "a b")
    printed, _ = process.communicate()
    began, ended = f"<{project}><-m><pytest><-n>", "<-k><a b>"
    assert printed.startswith(began), printed
    assert printed.endswith(ended), printed  # What is asked for comes last, and so is what counts.
    assert printed.removeprefix(began).startswith(f"<{min(2 * len(os.sched_getaffinity(0)), 8)}><--dist><loadfile>")
    assert process.returncode == 5


def test_an_environment_is_made_once_and_again_when_it_no_longer_fits(project: Path) -> None:
    def run_two_at_once(root: Path) -> int:
        for process in [start(root / "scripts/run", "program.py") for _ in range(2)]:
            process.communicate()
            assert process.returncode == 7
        return len(installs(project))

    assert run_two_at_once(project) == 1
    assert run_two_at_once(project) == 1
    with (project / "setup.cfg").open("a") as setup:
        setup.write("# changed\n")
    assert run_two_at_once(project) == 2
    moved = project.rename(project.parent / "moved")
    assert run_two_at_once(moved) == 3
    assert installs(project)[-1].endswith(f"{moved}[examples]")
