"""``zfabric run``: ranks that find each other, run one program, and end with it. Real processes, without a batch system."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from command_line import ZFABRIC, Place
from faults import LEASE, PATIENCE, descendants, eventually, gone, name_of

SMALL = ("--num-cpus", "1", "--object-store-memory", "32MB", "--network", "127.0.0.0/8")
JOINED = """
import os, signal, sys, tempfile, time, zfabric as zf
zf.init(log_to_driver=False)

@zf.remote
def meet(directory):
    open(f"{directory}/{os.urandom(8).hex()}", "w").close()
    while len(os.listdir(directory)) < 2:
        time.sleep(0.01)
    return zf.get_runtime_context().get_node_id()

def nodes_at_once():
    "How many nodes run two tasks of a CPU each at the same time."
    directory = tempfile.mkdtemp(dir=os.environ["HOME"])
    return len(set(zf.get([meet.remote(directory) for _ in range(2)])))
"""
WHERE = "[label for node in zf.nodes() for name, label in node['Labels'].items() if name == 'rank']"


class Run:
    """Some ranks as processes of this machine, each with sessions of its own, and a home that all of them share."""

    def __init__(self, home: Path, name: str = "run") -> None:
        self.home = home
        self.name = name
        self.ranks: list[subprocess.Popen[str]] = []

    def start(self, number: int, size: int, *arguments: str, place: Place | None = None, options: tuple[str, ...] = SMALL) -> None:
        """Start a rank, in a ``place`` of its own by default; ``arguments`` are further options, ``--`` and a command. Size 0 is none."""
        if place is None:
            directory = self.home / f"{self.name}{number}"
            directory.mkdir()
            place = Place(str(directory))
        environment = {**place.environment, "HOME": str(self.home)}
        environment |= {"ZFABRIC_RANK": str(number), "ZFABRIC_SIZE": str(size), "ZFABRIC_RUN": self.name} if size else {}
        self.ranks.append(
            subprocess.Popen(
                ["env", "--default-signal=INT", ZFABRIC, "run", *options, *arguments], env=environment, cwd=self.home,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0,
            )
        )  # fmt: skip

    def end(self) -> list[tuple[int, str, str]]:
        """(exit code, output, errors) of each rank, in the order in which they were started."""
        return [(rank.wait(PATIENCE), *rank.communicate()) for rank in self.ranks]

    def everything(self) -> list[int]:
        """All processes of all ranks."""
        return [pid for rank in self.ranks for pid in (rank.pid, *descendants(rank.pid))]

    def nothing_left(self) -> bool:
        """Whether no rendezvous and no session is left."""
        return not list(self.home.glob(".cache/zfabric/run/*")) and not list(self.home.glob("*/zfabric-*/s-*"))


@contextmanager
def running(home: Path, name: str = "run") -> Iterator[Run]:
    """A run, whose ranks are killed at the end if they still run."""
    run = Run(home, name)
    try:
        yield run
    finally:
        for rank in run.ranks:
            rank.kill()
            rank.communicate()


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="zr-", dir="/tmp") as directory:
        yield Path(directory)


def program(home: Path, source: str) -> tuple[str, ...]:
    """The end of a command line that runs a program, which has joined its cluster."""
    path = home / f"program{len(list(home.iterdir()))}.py"
    path.write_text(JOINED + source)
    return "--", sys.executable, str(path)


def test_two_runs_of_one_user_on_the_same_machines_never_meet(home: Path) -> None:
    """Each machine has a rank of both. The last rank is started first, and all join, whichever comes first."""
    places = []
    for name in ("m0", "m1"):
        (home / name).mkdir()
        places.append(Place(str(home / name)))
    source = f"""
        print(os.environ["ZFABRIC_ADDRESS"], *sorted({WHERE}), nodes_at_once())
        sys.exit(int(sys.argv[1]))
    """.replace("\n        ", "\n")
    with running(home, "a") as one, running(home, "b") as other:
        for run, code in ((one, "7"), (other, "0")):
            command = program(home, source)
            run.start(1, 2, *command, place=places[1])
            run.start(0, 2, *command, code, place=places[0])
        found = []
        for run, expected in ((one, 7), (other, 0)):
            (code1, output1, errors1), (code0, output0, errors0) = run.end()
            assert (code1, output1, errors1) == (0, "", "")
            assert (code0, errors0.startswith("zfabric: 2 nodes with 2 CPUs joined in ")) == (expected, True), errors0
            address, *rest = output0.split()
            assert rest == ["0", "1", "2"]
            found.append(address)
        assert len(set(found)) == 2
        assert one.nothing_left()


def test_all_ends_with_the_launcher_of_rank_0_however_that_ends(home: Path) -> None:
    with running(home) as run:
        run.start(0, 2, *program(home, "print(os.getpid(), flush=True); time.sleep(1000)"))
        run.start(1, 2, *program(home, ""))
        assert run.ranks[0].stdout is not None
        pid = int(run.ranks[0].stdout.readline())
        everything = run.everything()
        assert pid in everything
        run.ranks[0].kill()
        assert [rank.wait(PATIENCE) for rank in run.ranks] == [-signal.SIGKILL, 0]
        eventually(lambda: all(map(gone, everything)), "all processes have ended")
        assert [path.name for path in home.glob(".cache/zfabric/run/*")] == ["run"]
    with running(home, "next") as run:  # It sweeps.
        run.start(0, 2, "--wait", "0.2", *program(home, ""))
        ((code, _, errors),) = run.end()
        assert (code, errors) == (1, "Error: rank 1 of 2 did not join within 0.2 s\n")
        assert [path.name for path in home.glob(".cache/zfabric/run/*")] == ["next"], "why, for ranks that come late"
        run.start(1, 2, *program(home, ""))
        assert run.end()[1] == (1, "", "Error: rank 0 has failed: rank 1 of 2 did not join within 0.2 s\n")


def test_a_rank_that_has_lost_the_head_fails(home: Path) -> None:
    with running(home) as run:
        lease = ("--config", f"node_lease={LEASE}")
        run.start(0, 2, *lease, *program(home, "print(os.getpid(), flush=True); time.sleep(1000)"))
        run.start(1, 2, *lease, *program(home, ""))
        assert run.ranks[0].stdout is not None
        pid = int(run.ranks[0].stdout.readline())
        nodes = Place(str(home / "run1")).json("nodes")
        assert [node["labels"]["rank"] for node in nodes] == ["0", "1"], "commands find it on each machine"
        (supervisor,) = [pid for pid in descendants(run.ranks[0].pid) if name_of(pid) == "zf-supervisor"]
        os.kill(supervisor, signal.SIGKILL)
        assert run.ranks[1].wait(PATIENCE) == 1
        errors = run.ranks[1].communicate()[1]
        assert errors.startswith("Error: the node has ended: "), errors
        # Slurm's signal may end the program before rank 0 passes it on.
        os.kill(run.ranks[0].pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: gone(pid), "the program has ended")
        for number in (signal.SIGTERM, signal.SIGCONT):
            os.kill(run.ranks[0].pid, number)
        assert run.ranks[0].wait(PATIENCE) == 128 + signal.SIGTERM


def test_at_sigterm_the_program_has_time_and_its_cluster(home: Path) -> None:
    source = f"""
        def end(number, frame):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # It comes from whoever signals all, and from rank 0.
            print(nodes_at_once())
            sys.exit(3)
        signal.signal(signal.SIGTERM, end)
        print("ready", {WHERE}, flush=True)
        time.sleep(1000)
    """.replace("\n        ", "\n")
    with running(home) as run:
        run.start(0, 2, *program(home, source))
        run.start(1, 2, *program(home, ""))
        assert run.ranks[0].stdout is not None
        assert run.ranks[0].stdout.readline() == "ready ['0', '1']\n"
        for pid in run.everything():  # As Slurm does.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        (code0, output, errors0), (code1, _, errors1) = run.end()
        assert (code0, output, code1) == (3, "2\n", 0)
        assert errors0.endswith("zfabric: SIGTERM: the program has 25 s to end\n")
        assert errors1 == "zfabric, rank 1: SIGTERM: waiting for the program's end, at most 25 s\n"
        assert run.nothing_left()


def test_what_a_rank_cannot_do_ends_all(home: Path) -> None:
    """Each by its own words, and at once."""
    with socket.create_server(("127.0.0.1", 0)) as taken, running(home, "port") as run:
        port = str(taken.getsockname()[1])
        run.start(0, 2, "--port", port, *program(home, ""))
        run.start(1, 2, *program(home, ""))
        failed = f"this node cannot listen on host 127.0.0.1, port {port}: Address already in use; choose another port\n"
        assert run.end() == [(2, "", f"Error: {failed}"), (1, "", f"Error: rank 0 has failed: {failed}")]
    with running(home, "network") as run:
        run.start(0, 2, *program(home, ""))
        run.start(1, 2, "--network", "10.254.0.0/16", *program(home, ""))
        (code0, _, errors0), (code1, _, errors1) = run.end()
        assert (code0, code1) == (1, 2)
        assert errors0.startswith("Error: rank 1 cannot join: this machine has no address in 10.254.0.0/16: it has 127.0.0.1 (lo)"), errors0
        assert errors1.startswith("Error: this machine has no address in 10.254.0.0/16")
    assert run.nothing_left()


def test_enough_ranks_go_on_when_the_time_is_over(home: Path) -> None:
    with running(home) as run:
        run.start(0, 3, "--wait", "0.2", "--min-nodes", "1", *program(home, f"print({WHERE})"))
        ((code, output, errors),) = run.end()
        assert (code, output, errors.endswith(" s, without ranks 1, 2\n")) == (0, "['0']\n", True), errors
        assert run.nothing_left()


def test_a_rank_that_waits_in_vain_says_for_what(home: Path) -> None:
    with running(home) as run:
        run.start(1, 2, "--wait", "0.2", "--", "true")
        where = home / ".cache/zfabric/run/run"
        expected = (
            f"rank 0 has not arrived in {where}; is that the same directory on all machines?\nThis rank has waited for 0.2 s (--wait)."
        )
        assert run.end() == [(1, "", f"Error: {expected}\n")]


def test_a_program_that_is_not_there_is_named(home: Path) -> None:
    with running(home) as run:
        run.start(0, 0, "--", "no-such-program")
        assert run.end() == [(1, "", "Error: there is no program 'no-such-program'\n")]


def test_a_program_has_the_open_files_of_the_command_and_standard_output_may_be_closed(home: Path) -> None:
    code = home / "code"
    code.write_text("3")
    begin = ("sh", "-c", f'exec "$@" 7<{code} >&-', "sh")
    source = "import os, sys; print(os.listdir('/proc/self/fd'), file=sys.stderr); sys.exit(int(os.read(7, 1)))"
    command = (ZFABRIC, "run", *SMALL, "--", sys.executable, "-c", source)
    ended = subprocess.run([*begin, *command], env=Place(str(home)).environment, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stderr) == (3, "['0', '1', '2', '7']\n")  # 1 is the listed directory.


def test_alone_it_is_one_node_and_the_program_which_is_killed_after_the_grace_period(home: Path) -> None:
    with running(home) as run:
        ignoring = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(len(zf.nodes()), flush=True); time.sleep(1000)"
        run.start(0, 0, "--grace", "0.2", *program(home, ignoring))
        assert run.ranks[0].stdout is not None
        assert run.ranks[0].stdout.readline() == "1\n"
        run.ranks[0].send_signal(signal.SIGINT)  # A terminal sends it to the program, too.
        run.ranks[0].send_signal(signal.SIGTERM)
        errors = "zfabric: SIGTERM: the program has 0.2 s to end\nzfabric: the program is killed: it has not ended within 0.2 s\n"
        assert run.end() == [(128 + signal.SIGKILL, "", errors)]
        assert run.nothing_left()


def test_ranks_without_a_shared_file_system_meet_at_an_address(home: Path) -> None:
    key, copy = home / "cluster.key", home / "copy.key"
    place = Place(str(home))
    place.run("keys", "create", key)
    copy.write_bytes(key.read_bytes())
    copy.chmod(0o600)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    small = SMALL[:4]
    with running(home) as run:
        run.start(1, 2, "--rendezvous", address, "--key-file", str(copy), *program(home, ""), options=small)
        run.start(0, 2, "--rendezvous", address, "--key-file", str(key), *program(home, f"print({WHERE})"), options=small)
        (code1, _, errors1), (code0, output, errors0) = run.end()
        assert (code0, output, code1) == (0, "['0', '1']\n", 0), (errors0, errors1)
        assert run.nothing_left()
