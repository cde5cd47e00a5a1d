"""Fixtures for all test files: clusters, and the account of what a run has left behind."""

from __future__ import annotations

import faulthandler
import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

# Tests start hundreds of interpreters, and each would compile the package again if none may write that down. What is compiled lies beside
# the source, as that of installed packages does already. Set before anything large is imported, and inherited by all processes of the run.
if sys.dont_write_bytecode:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False

import pytest
from command_line import COMMANDS
from lost_processes import RUN, STACKS, LostProcesses, processes_of

import zfabric as zf

collect_ignore = ["libraries"]  # Ray and its libraries are in an environment of their own: ./scripts/test-libraries.
GONE_SECONDS = 30  # how long the last processes may take to end; the fabric promises ten, and the machine may be busy

LONGEST = (
    "test_sim", "test_perf", "test_bad_days", "test_page", "test_local_cluster", "test_cli_live", "test_cli", "test_failures_objects",
    "test_bad_input", "test_lost_nodes", "test_ssh_clusters", "test_failures_processes", "test_joblib", "test_programs", "test_jobs",
    "test_failures_actors", "test_actors_between_nodes", "test_actors", "test_drain", "test_run", "test_examples", "test_leaks",
    "test_slurm", "test_kubernetes", "test_placement_groups", "test_streams_between_nodes", "test_actor_quiescence", "test_actor_replay",
    "test_dask", "test_full_stores", "test_unpinned_values", "test_failures_tasks", "test_failures_disk", "test_own_calls", "test_sizes",
    "test_runtime_env", "test_types", "test_transfer", "test_unread_failures", "test_migrating", "test_logged_between_nodes",
    "test_cluster_security", "test_interrupts", "test_value_callbacks", "test_ray_names", "test_supervisor", "test_large_values",
    "test_executor", "test_as_ray", "test_lightweight", "test_node_fields", "test_codec",
)  # fmt: skip
"""The files that take longest, in the order in which a run side by side begins with them."""

# A shell without job control starts what it puts in the background with Ctrl-C ignored, for all its descendants; tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def kill_one(kill: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """``os.kill`` or ``os.killpg`` for tests. 0 is often a pid that was not found, and to the kernel the group of this run."""

    def checked(pid: int, number: int) -> None:
        if pid <= 1:
            raise ValueError(f"signal {number} to {pid}, which is no process of a test")
        kill(pid, number)

    return checked


os.kill, os.killpg = kill_one(os.kill), kill_one(os.killpg)


@contextmanager
def running_cluster(**options: Any) -> Iterator[Any]:
    """A cluster as ``zf.init`` makes it, of two CPUs by default; shut down afterwards, whatever happened.

    Its workers are forked with pytest and numpy. Each that runs what a test module has imports that, and would take 0.15 s of CPU time.
    """
    zf.shutdown()
    config = {"preload": ("pytest", "numpy"), **options.get("config", {})}
    try:
        yield zf.init(**{"num_cpus": 2, "log_to_driver": False, **options, "config": config})
    finally:
        zf.shutdown()


@pytest.fixture
def cluster() -> Iterator[Callable[..., Any]]:
    """A factory: ``cluster(num_cpus=1, config={...})`` starts a cluster that ends with the test."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(running_cluster(**{**options, "config": {"preload": (), **options.get("config", {})}}))


def one_cluster(*, autouse: bool = True, **options: Any) -> Any:
    """A fixture: one cluster as of ``running_cluster`` for all tests of a file, which must leave it unchanged and start no other."""

    @pytest.fixture(scope="module", autouse=autouse)
    def cluster_of_the_file() -> Iterator[Any]:
        with running_cluster(**options) as context:
            yield context

    return cluster_of_the_file


shared_cluster = one_cluster(autouse=False)


def shared_memory() -> set[Path]:
    """The named shared memory of this user's clusters. It does not show which test has left it."""
    return {path for path in Path("/dev/shm").glob("zfabric*") if owned(path)}


def owned(place: Path) -> bool:
    """Whether this user owns it (and it is still there)."""
    try:
        return place.lstat().st_uid == os.getuid()
    except OSError:
        return False


def pytest_configure(config: pytest.Config) -> None:
    """Give the run a directory for its sessions, so that runs on one machine neither see nor sweep each other's.

    Its name is short, since sockets lie below it, and others may enter it, since tests show that they get no further. Where tests run side
    by side, each process that runs some has a directory below the run's, and accounts for what its own tests left.
    """
    tempfile.gettempdir()  # Python keeps this answer: what pytest makes stays where it is looked for
    if side_by_side(config):
        directory = f"{os.environ['TMPDIR']}/{os.environ['PYTEST_XDIST_WORKER']}"
        os.mkdir(directory)
        stacks = os.open(directory + STACKS, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        faulthandler.enable(stacks)
        config.pluginmanager.register(RotatedCollection())
    else:
        directory = tempfile.mkdtemp(prefix="zft-", dir="/tmp")
        stacks = os.dup(2)  # What pytest captures later is not shown when this process exits.
    os.chmod(directory, 0o755)
    os.environ["TMPDIR"] = directory
    for name in [name for name in os.environ if name.startswith("ZFABRIC_")]:  # No cluster of whoever runs the tests is joined.
        del os.environ[name]
    os.environ[RUN] = directory
    set_profile()
    config.pluginmanager.register(LostProcesses(directory, stacks))


def set_profile() -> None:
    """Let examples have no deadline: tests do not measure speed.

    In CI they are the same for the same code, as the simulator's seeds are: what lands is not decided by chance. Others' runs search on.
    """
    import hypothesis  # Not above: workers import this file, and would take 0.2 s for that.

    hypothesis.settings.register_profile("patient", deadline=None, derandomize=bool(os.environ.get("CI")))
    hypothesis.settings.load_profile("patient")


def pytest_unconfigure() -> None:
    """Remove the run's directory."""
    shutil.rmtree(os.environ.pop("TMPDIR"), ignore_errors=True)


def side_by_side(config: pytest.Config) -> bool:
    """Whether this process is one of several that share the tests of a run."""
    return hasattr(config, "workerinput")


def pytest_collection() -> None:
    """Collect no garbage while modules are imported and tests are made: it would go through all of them again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Have the collector leave alone what is there now: thousands of tests, through which each collection of a test would go."""
    gc.collect()
    gc.freeze()
    gc.enable()


class RotatedDirectory(pytest.Dir):
    """A directory of which each process that runs tests collects another part first.

    pytest compiles a file when it is first collected, and writes that down. So each process compiles its part, and not all of them all.
    """

    def collect(self) -> list[pytest.Item | pytest.Collector]:
        """The files and directories in it."""
        found = list(super().collect())
        number, processes = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw")), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        first = number % processes * len(found) // processes
        return found[first:] + found[:first]


class RotatedCollection:
    """Collects such directories. No hook of this file, since pytest asks a directory's own ``conftest.py`` only about those below."""

    def pytest_collect_directory(self, path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        """The collector of a directory that is no package."""
        return None if (path / "__init__.py").exists() else RotatedDirectory.from_parent(parent, path=path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests run side by side, begin with the longest files, so that none is left alone at the end; all processes in one order."""
    if side_by_side(config):
        order = {name: place for place, name in enumerate(LONGEST)}
        items.sort(key=lambda item: (order.get(item.path.stem, len(order)), str(item.path)))


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """At the end of the run no process, session directory or shared memory of it is left.

    The directory of a session whose supervisor a test killed is swept first, as the next ``init`` would.
    """
    before = shared_memory()
    yield
    COMMANDS.end()
    from zfabric.runtime.session import LAST_FAILURE, sweep

    deadline = time.monotonic() + GONE_SECONDS
    while True:
        sweep()
        # The reason of the latest node that ended by itself stays, for ``zfabric status``.
        directories = (each for each in Path(os.environ["TMPDIR"]).glob("zfabric-*/*") if each.name != LAST_FAILURE)
        left = [*processes_of(os.environ[RUN]).items(), *map(str, directories), *map(str, shared_memory() - before)]
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.05)  # the last processes are no children of this one: their end raises no event
    assert left == []
