"""Which rank of a run a process is, and where the ranks of a run meet, without processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from faults import PATIENCE

from zfabric.adapters import processes
from zfabric.cli.main import program
from zfabric.config import Config
from zfabric.exceptions import ConfigError, ConnectionLostError, FabricError, VersionMismatchError
from zfabric.launch import rendezvous, run
from zfabric.launch.ranks import ALONE, Rank, find_rank
from zfabric.launch.rendezvous import STALE_SECONDS, SharedDirectory, host_of, own_host
from zfabric.launch.run import RunSettings, settings_of
from zfabric.runtime.cluster import make_keys
from zfabric.runtime.foreground import Notified

STEP = {
    "SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "3", "SLURM_JOB_NUM_NODES": "4", "SLURM_LOCALID": "0",
    "SLURM_CLUSTER_NAME": "c", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0",
}  # fmt: skip
SHELL = {
    "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_LOCALID": "0",
    "SLURM_STEP_ID": "4294967290",
}  # fmt: skip
"""As in the shell of salloc, with LaunchParameters=use_interactive_step (Slurm 22.05)."""


# --- ranks ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ALONE),
        ({"ZFABRIC_SIZE": "1"}, ALONE),
        ({"SLURM_JOB_NUM_NODES": "1"}, ALONE),
        ({**SHELL, "SLURM_CPUS_ON_NODE": "4"}, Rank(0, 1, "", 4)),
        ({"SLURM_JOB_NUM_NODES": "2", "ZFABRIC_SIZE": "1"}, ALONE),
        ({"ZFABRIC_RANK": "1", "ZFABRIC_SIZE": "2", "ZFABRIC_RUN": "a"}, Rank(1, 2, "a")),
        (STEP, Rank(2, 3, "c-17-0")),
        ({**STEP, "SLURM_RESTART_COUNT": "1"}, Rank(2, 3, "c-17-0-1")),
        ({**STEP, "SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_NODE": "500"}, Rank(2, 3, "c-17-0", 4, 500 * 2**20)),
        ({**STEP, "SLURM_MEM_PER_NODE": "0"}, Rank(2, 3, "c-17-0")),
        # Within a batch script of one machine, outside of its steps.
        ({"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NUM_NODES": "1", "SLURM_CPUS_ON_NODE": "4"}, Rank(0, 1, "", 4)),
        # mpirun starts one process of its own on each machine by srun, whose environment its ranks inherit.
        (
            {**STEP, "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "PMIX_NAMESPACE": "n@1"},
            Rank(5, 6, "n_1-17-d07f452f"),
        ),
        ({**STEP, "PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "0"}, Rank(1, 3, "17")),
        ({**STEP, "PMI_RANK": "2", "PMI_SIZE": "3"}, Rank(2, 3, "c-17-0")),  # As of srun --mpi=pmi2.
        (
            {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "2", "FLUX_JOB_NNODES": "2", "FLUX_TASK_LOCAL_ID": "0", "FLUX_JOB_ID": "f2"},
            Rank(0, 2, "f2"),
        ),
        ({"PBS_NODENUM": "1", "PBS_NUM_NODES": "2", "PBS_JOBID": "4.server"}, Rank(1, 2, "4.server")),
        ({"PBS_NODENUM": "1", "ZFABRIC_SIZE": "4", "PBS_JOBID": "4"}, Rank(1, 4, "4")),
        ({"JOB_COMPLETION_INDEX": "1", "ZFABRIC_SIZE": "2"}, Rank(1, 2, "")),
    ],
)
def test_ranks_of_environments(environment: dict[str, str], expected: Rank) -> None:
    assert find_rank(environment) == expected


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({**STEP, "SLURM_LOCALID": "1"}, "start it with srun --ntasks-per-node=1"),
        ({**STEP, "SLURM_STEP_NUM_NODES": "2"}, "3 processes were started on fewer machines, and a run has one on each"),
        (
            {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_JOB_NUM_NODES": "2"},
            "and this command was started once: start it with srun",
        ),
        ({**SHELL, "SLURM_JOB_NUM_NODES": "2"}, "and this command was started once: start it with srun"),
        ({"SLURM_JOB_NUM_NODES": "2"}, "and this command was started once: start it with srun"),  # By salloc's shell.
        ({"ZFABRIC_SIZE": "4"}, "ZFABRIC_SIZE is 4, and the number of this process is unknown: set ZFABRIC_RANK"),
        ({"JOB_COMPLETION_INDEX": "1"}, "JOB_COMPLETION_INDEX is set, and the number of ranks is unknown: set ZFABRIC_SIZE"),
        ({"ZFABRIC_RANK": "2", "ZFABRIC_SIZE": "2"}, "there is no rank 2 of 2"),
        ({"ZFABRIC_RANK": "-1", "ZFABRIC_SIZE": "2"}, "ZFABRIC_RANK is a whole number, not '-1'"),
    ],
)
def test_environments_that_are_refused(environment: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find_rank(environment)
    assert text in str(refused.value)


def test_names_of_runs_can_be_those_of_files() -> None:
    given = ("../x", "/x", ".x", "x" * 500, "x" * 501)
    names = {find_rank({"ZFABRIC_RANK": "0", "ZFABRIC_SIZE": "2", "ZFABRIC_RUN": name}).run for name in given}
    assert len(names) == 5
    assert all("/" not in name and not name.startswith(".") and len(name) < 100 for name in names)


@pytest.fixture
def notices_as_before() -> Iterator[None]:
    """What SIGTERM does here: the command ignores it from its beginning, and so would all processes that later tests start."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("arguments", "environment", "text"),
    [
        ((), {}, "Missing argument '-- COMMAND [ARGS]...'"),
        (("--key-file", "x"), {}, "--key-file: in a directory the ranks find a key of their run"),
        (("--min-nodes", "2"), {}, "--min-nodes: there are 1 ranks"),
        (("--grace", "-1"), {}, "'-1' is not a time in seconds"),
        (("--rendezvous", "tcp://x:1"), {"ZFABRIC_RANK": "0", "ZFABRIC_SIZE": "2"}, "--rendezvous tcp://HOST:PORT needs --key-file"),
        ((), {"ZFABRIC_RANK": "0", "ZFABRIC_SIZE": "2"}, "nothing here names this run: set ZFABRIC_RUN"),
    ],
)
@pytest.mark.usefixtures("notices_as_before")
def test_command_lines_that_are_refused(arguments: tuple[str, ...], environment: dict[str, str], text: str) -> None:
    command = () if text.startswith("Missing") else ("--", "true")
    refused = CliRunner().invoke(program, ["run", *arguments, *command], env=environment)
    assert (refused.exit_code, text in refused.output) == (2, True), refused.output


def test_a_node_has_what_the_job_has_of_its_machine() -> None:
    job = Rank(0, 2, "a", 1, 2**28)
    config, resources, arena = settings_of(job, {}, None, None, None, None, None)
    assert resources["CPU"] == 1
    assert 0 < arena < 2**28 - resources["memory"] - arena / 2
    assert config.memory_limit == int(0.95 * 2**28)
    config, resources, arena = settings_of(job, {"memory_limit": 5}, 3, None, None, 6, 2**21)
    assert (config.memory_limit, resources["CPU"], resources["memory"], arena) == (5, 3, 6, 2**21)
    more = Rank(0, 2, "a", 2**20, 2**60)
    assert settings_of(more, {}, None, 0, None, None, None) == (Config(), {"CPU": float(processes.cpu_count())}, -1)


# --- networks ---------------------------------------------------------------------------------------------------------------------


def test_addresses_are_chosen_by_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def address(host: str, family: int = socket.AF_INET) -> Any:
        return SimpleNamespace(address=host, family=family)

    found = {
        "lo": [address("127.0.0.1")],
        "eth0": [address("10.0.0.7"), address("fe80::1%eth0", socket.AF_INET6), address("02:00", socket.AF_PACKET)],
        "ib0": [address("10.1.0.7"), address("fd00::7", socket.AF_INET6)],
    }
    monkeypatch.setattr(rendezvous.psutil, "net_if_addrs", lambda: found)
    assert [own_host(each) for each in ("10.1.0.0/16", "fd00::/8", "10.0.0.9/24")] == ["10.1.0.7", "fd00::7", "10.0.0.7"]
    with pytest.raises(ConfigError, match=r"no address in 10\.2\.0\.0/16: it has 127\.0\.0\.1 \(lo\), 10\.0\.0\.7 \(eth0\)"):
        own_host("10.2.0.0/16")
    with pytest.raises(ConfigError, match=r"'ib0' is no network; write for example 10\.1\.0\.0/16"):
        own_host("ib0")
    monkeypatch.setattr(rendezvous, "default_address", lambda: "")
    with pytest.raises(ConfigError, match="no default route; name the network of the others with --network"):
        own_host("")


def test_a_name_of_this_machine_alone_is_no_address_for_others() -> None:
    assert host_of("127.0.0.1") == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"localhost is 127\.0\.0\.1, which no other machine can reach"):
        host_of("localhost")


def test_the_name_of_a_new_machine_may_be_known_late(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([socket.gaierror(socket.EAI_NONAME, "Name or service not known")] * 2)

    def resolve(name: str, until: float) -> str:
        for answer in answers:
            raise answer
        return "10.0.0.7"

    monkeypatch.setattr(rendezvous, "resolve", resolve)
    monkeypatch.setattr(rendezvous, "NAME_PAUSE_SECONDS", 0.01)
    assert host_of("pod-0.service") == "10.0.0.7"
    monkeypatch.setattr(rendezvous, "NAME_SECONDS", 0.0)
    answers = iter([TimeoutError()])
    with pytest.raises(ConfigError, match=r"this machine does not know the address of pod-0\.service: no answer"):
        host_of("pod-0.service")


# --- rendezvous -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A directory for runs, not yet made."""
    return tmp_path / "runs"


class StubHead:
    """A head's session, as far as ranks see it."""

    def __init__(self, directory: Path) -> None:
        self.cluster_key = str(directory / "cluster.key")
        if not os.path.exists(self.cluster_key):
            make_keys(self.cluster_key)

    def membership(self) -> Any:
        return SimpleNamespace(address="tcp://10.0.0.1:5")


def test_ranks_find_the_head_and_its_key(base: Path, tmp_path: Path) -> None:
    head, other = SharedDirectory(str(base), "a"), SharedDirectory(str(base), "a")
    assert other.find(1) is None
    head.open()
    assert other.find(1) is None
    head.offer(StubHead(tmp_path))  # type: ignore[arg-type]
    offer = other.find(1)
    assert offer is not None
    assert offer.address == "tcp://10.0.0.1:5"
    assert Path(offer.key_file).read_text() == (tmp_path / "cluster.key").read_text()
    assert {path.name for path in (base / "a").iterdir()} == {"owner", "cluster.key", "head"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (base / "a").iterdir()} == {0o600}
    assert [stat.S_IMODE(path.stat().st_mode) for path in (base, base / "a")] == [0o700, 0o700]
    other.report(1, "")
    other.report(2, "no memory")
    assert head.reports({1, 2, 3}) == {2: "no memory"}
    assert head.reports({1, 3}) == {}
    head.close()
    assert list(base.iterdir()) == []
    other.report(1, "too late")
    assert head.reports({1}) == {}
    head.fail("the directory is gone", 2)
    with pytest.raises(ConfigError, match=r"the ranks cannot meet in .*/a: No such file or directory"):
        head.offer(StubHead(tmp_path))  # type: ignore[arg-type]


def test_the_failure_of_the_head_is_read_and_removed(base: Path) -> None:
    head, other = SharedDirectory(str(base), "a"), SharedDirectory(str(base), "a")
    head.open()
    other.report(1, "")
    head.fail("no port", 2)
    with pytest.raises(FabricError, match="rank 0 has failed: no port"):
        other.find(1)
    head.close()
    assert list(base.iterdir()) == []


def settings() -> RunSettings:
    return RunSettings(Config(), {}, -1, "", 0, 0, 0.0, 0.0, print)


def test_a_rank_that_joins_while_the_head_fails_reads_why(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = SharedDirectory(str(base), "a")
    head.open()
    head.offer(StubHead(tmp_path))  # type: ignore[arg-type]
    head.report(2, "no memory")

    def start(*_: Any) -> None:
        head.fail("rank 2 cannot join: no memory", 3)
        head.close()
        raise ConnectionLostError("the head has ended")

    monkeypatch.setattr(run, "_start", start)
    monkeypatch.setattr(run, "reach", lambda address: "")
    monkeypatch.setattr(rendezvous, "FAILURE_SECONDS", 0.0)
    with pytest.raises(FabricError, match="rank 0 has failed: rank 2 cannot join: no memory"):
        run.follow(Rank(1, 3, "a"), SharedDirectory(str(base), "a"), settings()._replace(wait=PATIENCE))


def test_whatever_keeps_a_rank_from_joining_is_reported(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = SharedDirectory(str(base), "a")
    head.open()
    head.offer(StubHead(tmp_path))  # type: ignore[arg-type]

    def reach(address: str) -> None:
        raise OSError("too many open files")

    monkeypatch.setattr(run, "reach", reach)
    with pytest.raises(OSError, match="too many open files"):
        run.follow(Rank(1, 2, "a"), SharedDirectory(str(base), "a"), settings())
    assert head.reports({1}) == {1: "too many open files"}


def test_a_head_that_is_signalled_as_it_makes_the_directory_removes_it(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: Any) -> None:
        raise Notified

    monkeypatch.setattr(SharedDirectory, "_write", write)
    with pytest.raises(Notified):
        run.lead(Rank(0, 2, "a"), SharedDirectory(str(base), "a"), settings(), 2, ("true",))
    assert list(base.iterdir()) == []


def test_a_directory_in_which_a_rank_reports_while_it_is_removed_is_removed(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = SharedDirectory(str(base), "a")
    head.open()
    remove, late = os.rmdir, iter([1])

    def rmdir(name: str, dir_fd: int) -> None:
        for rank in late:
            (base / f"a/rank-{rank}").touch()
        remove(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir)
    head.close()
    assert list(base.iterdir()) == []


def test_a_head_of_another_version_is_named(base: Path, tmp_path: Path) -> None:
    head = SharedDirectory(str(base), "a")
    head.open()
    (base / "a/head").write_text(json.dumps({"version": "9.9", "address": "tcp://10.0.0.1:5"}))
    with pytest.raises(VersionMismatchError, match=r"rank 0 has zfabric 9\.9, this machine .*: install one version on all"):
        head.find(1)


@pytest.mark.parametrize("damaged", ["", "{", "[]", '"x"', "\xff"])
def test_what_no_head_has_written_is_not_read(base: Path, damaged: str) -> None:
    head = SharedDirectory(str(base), "a")
    head.open()
    (base / "a/head").write_text(damaged, "latin-1")
    assert head.find(1) is None
    (base / "a/head").unlink()
    (base / "a/head").symlink_to("/etc/hostname")
    assert head.find(1) is None


def test_a_run_that_goes_on_is_not_replaced_and_one_that_has_ended_is(base: Path) -> None:
    head = SharedDirectory(str(base), "a")
    head.open()
    with pytest.raises(FabricError, match=rf"another run meets in .*/a \(process {os.getpid()} on .*\); if that has ended, remove"):
        SharedDirectory(str(base), "a").open()
    owner = json.loads((base / "a/owner").read_text())
    (base / "a/owner").write_text(json.dumps({**owner, "started": 1}))  # Its pid is another process's now.
    SharedDirectory(str(base), "b").open()
    assert [path.name for path in base.iterdir()] == ["b"]
    # Of another machine only the age is known.
    (base / "b/owner").write_text(json.dumps({**owner, "machine": "other", "started": 1}))
    SharedDirectory(str(base), "c").open()
    assert {path.name for path in base.iterdir()} == {"b", "c"}
    (base / "mine").mkdir(mode=0o700)  # As if the base were the user's home.
    os.utime(base / "mine", (0, 0))
    old = (base / "b").stat().st_mtime - STALE_SECONDS - 60
    os.utime(base / "b", (old, old))
    SharedDirectory(str(base), "d").open()
    assert {path.name for path in base.iterdir()} == {"c", "d", "mine"}


def open_to_all(base: Path) -> str:
    (base / "a").mkdir(parents=True)
    (base / "a").chmod(0o755)
    return "is open to other users (mode 755)"


def a_link(base: Path) -> str:
    base.mkdir()
    (base / "real").mkdir(mode=0o700)
    (base / "a").symlink_to("real")
    return "it is a symbolic link"


def of_another_user(base: Path) -> str:
    if os.geteuid():
        pytest.skip("ONLY ROOT CAN MAKE ANOTHER USER'S DIRECTORY: that it is refused is not tested")
    (base / "a").mkdir(mode=0o700, parents=True)
    os.chown(base / "a", 12345, 12345)
    return "belongs to user 12345"


@pytest.mark.parametrize("make", [open_to_all, a_link, of_another_user])
def test_directories_of_others_are_refused(base: Path, make: Callable[[Path], str]) -> None:
    text = make(base)
    for rank in ("open", "find"):
        with pytest.raises(ConfigError) as refused:
            SharedDirectory(str(base), "a").open() if rank == "open" else SharedDirectory(str(base), "a").find(1)
        assert text in str(refused.value)
        assert "--rendezvous" in str(refused.value)
    SharedDirectory(str(base), "a").report(1, "nothing is written there")
    assert list((base / "a").iterdir()) == []


def test_a_base_that_others_can_change_and_a_file_system_without_modes_are_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(ConfigError, match=r"other users can change .*/runs; name a directory of your own"):
        SharedDirectory(str(base), "a").open()
    base.chmod(0o1777)
    SharedDirectory(str(base), "a").open()
    true_mkdir = os.mkdir
    monkeypatch.setattr(os, "mkdir", lambda path, mode: (true_mkdir(path), os.chmod(path, 0o777)))
    with pytest.raises(ConfigError, match=r"is open to other users \(mode 777\), perhaps on a file system without modes"):
        SharedDirectory(str(base), "b").open()
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"the ranks cannot meet in /proc/x/a: .*; name a directory that all machines have"):
        SharedDirectory("/proc/x", "a").open()
