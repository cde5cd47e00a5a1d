"""``zfabric autoscale``: nodes join while tasks wait, and leave when they are idle. Real processes, nodes of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import ZFABRIC, Place, a_place
from faults import PATIENCE, eventually, next_line
from scalers import nodes, scaling

TASKS = """
import os, sys, time
import zfabric as zf

@zf.remote
def work(notes, go):
    node = zf.get_runtime_context().get_node_id()
    open(os.path.join(notes, node), "w").close()
    while not os.path.exists(go):
        time.sleep(0.01)
    return node

zf.init()
print(len(set(zf.get([work.remote(*sys.argv[1:]) for _ in range(24)]))))
"""
"""24 tasks; prints how many nodes have run them. Each notes its node in a directory, and goes on until a file exists."""

WAITS = """
import time
import zfabric as zf

@zf.remote
def common():
    pass

@zf.remote(num_gpus=3)
def rare():
    pass

zf.init()
refs = common.remote(), rare.remote()
time.sleep(100)
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A place with a head that runs no tasks, on a port of its own."""
    with a_place() as made:
        made.environment["XDG_CACHE_HOME"] = made.directory
        key_file = f"{made.directory}/keys/cluster.key"
        made.run("start", "--head", "--port", "0", "--num-cpus", "0", "--key-file", key_file, "--object-store-memory", "32MB")
        yield made
        subprocess.run([ZFABRIC, "stop", "--all"], env=made.environment, capture_output=True, timeout=PATIENCE)


def write(place: Place, *kinds: str, name: str = "lab") -> str:
    """A cluster file with kinds, each with two CPUs."""
    path = f"{place.directory}/{name}.toml"
    small = 'num_cpus = 2\nobject_store_memory = "32MB"\n'
    Path(path).write_text(f'[cluster]\nname = "{name}"\n' + "".join(f"[[kinds]]\n{kind}\n{small}" for kind in kinds))
    return path


LOCAL = 'name = "small"\nprovider = "local"\nmax = 2\nidle_timeout = 1'


@pytest.fixture
def at_work(tmp_path: Path) -> Path:
    """The directory in which tasks note their nodes."""
    (tmp_path / "nodes").mkdir()
    return tmp_path / "nodes"


def test_no_nodes_24_tasks_and_no_nodes_again(place: Place, at_work: Path, tmp_path: Path) -> None:
    with scaling(place, write(place, LOCAL)) as scaler:
        with place.program(TASKS, str(at_work), str(tmp_path / "go")) as program:
            assert scaler.says() == "kind 'small': submitted 2 jobs"
            assert "2 nodes of kind 'small' are requested (2 " in place.run("status").stdout
            eventually(lambda: len(os.listdir(at_work)) == 2, "both nodes run tasks")
            assert [row["labels"]["zfabric-kind"] for row in nodes(place)] == ["small", "small"]
            (tmp_path / "go").touch()
            assert program.communicate(timeout=PATIENCE)[0] == "2\n"
        eventually(lambda: not nodes(place), "the nodes leave")
        code, said = scaler.end()
        assert code == 0
        assert said[-1] == "ended; nodes leave once they are idle"
        assert "autoscaler" not in place.run("status").stdout


def test_the_scaler_is_killed_in_the_middle_and_the_next_one_keeps_a_node(place: Place, at_work: Path, tmp_path: Path) -> None:
    path = write(place, LOCAL)
    with scaling(place, path) as killed, place.program(TASKS, str(at_work), str(tmp_path / "go")) as program:
        assert killed.says() == "kind 'small': submitted 2 jobs"
        killed.end(signal.SIGKILL)
        with scaling(place, write(place, f"{LOCAL}\nmin = 1")) as scaler:
            eventually(lambda: len(os.listdir(at_work)) == 2, "both nodes run tasks")
            (tmp_path / "go").touch()
            assert program.communicate(timeout=PATIENCE)[0] == "2\n"
            eventually(lambda: len(nodes(place)) == 1, "one leaves")
            time.sleep(2)  # twice the idle timeout, in which nothing is to happen
            assert len(nodes(place)) == 1
            code, said = scaler.end()
            assert (code, [line for line in said if "submitted" in line]) == (0, []), "it has found the jobs"
    eventually(lambda: not nodes(place), "the node leaves without a scaler")


def test_a_job_that_was_pending_when_last_asked_for_and_has_joined_since_is_not_cancelled(place: Place) -> None:
    """Its scheduler of jobs is asked every 15 s. A cancelled job could lose tasks."""
    commands = "submit = 'setsid {start} >{output} 2>&1 &'\nstates = 'true'\ncancel = 'echo {ids} >>cancelled'"
    kind = f'name = "small"\nprovider = "command"\nmax = 1\nmin = 1\nidle_timeout = 1\n{commands}'
    with scaling(place, write(place, kind)) as scaler:
        assert scaler.says() == "kind 'small': submitted 1 job"
        assert scaler.says() == "kind 'small': 1 node joined"
        assert scaler.end() == (0, ["ended; nodes leave once they are idle"])
        assert not Path(place.directory, "cancelled").exists()
    eventually(lambda: not nodes(place), "the node leaves without a scaler")


def test_jobs_that_end_at_once_and_work_that_no_kind_can_run(place: Place) -> None:
    """The first are submitted three times, and then not for a minute; for the second nothing ever is."""
    kind = 'name = "broken"\nprovider = "command"\nmax = 1\nsubmit = "echo no such queue >&2; false"\nstates = "true"\ncancel = "true"'
    began = time.monotonic()
    with scaling(place, write(place, kind)) as scaler, place.program(WAITS) as program:
        said = sorted(scaler.says() for _ in range(3))
        assert said[0].startswith("kind 'broken': a job failed: `echo no such queue >&2; false` has failed with exit code 1: no such queue")
        assert said[1].startswith("kind 'broken': nothing is submitted for ")
        assert said[2] == "no kind of nodes can run tasks that ask for 1 CPU, 3 GPU"
        (row,) = place.json("status")["autoscaler"]
        assert (row["nodes"], row["pending"], row["starting"]) == (0, 0, 0)
        assert 60 - (time.monotonic() - began) <= row["pause_seconds"] <= 60
        reasons = {row["name"]: place.run("explain", row["task_id"]).stdout for row in place.json("tasks")}
        assert "autoscaler: no node of kind 'broken' is requested for" in reasons["common"]
        assert "no such queue" in reasons["common"]
        never = "no kind of nodes that the autoscaler has can run it (it has 'broken': zfabric status shows them)"
        assert never in reasons["rare"]
        warnings = [next_line(program.stderr) for _ in range(3)]
        assert never in "".join(warnings), "the driver's warning"
        place.run("stop")
        code, last = scaler.end(0)
        assert (code, last[-1]) == (1, "Error: the cluster has ended")
