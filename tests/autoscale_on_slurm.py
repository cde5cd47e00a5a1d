"""``zfabric autoscale`` on a real Slurm: no nodes, 24 tasks, no nodes again. Too long for every change: scripts/nightly runs it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import Place, a_place
from faults import PATIENCE, eventually
from scalers import TASKS, Scaler, nodes, scaling
from slurm import HIGH, Slurm, running_slurm, why_not

KIND = """
[cluster]
name = "lab"
[[kinds]]
name = "small"
provider = "slurm"
num_cpus = 2
object_store_memory = "32MB"
max = 3
idle_timeout = 2
grace = 8
sbatch = ["--cpus-per-task=4", "--mem=1000"]
"""
SECONDS_MOST = 30.0


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Place, Slurm]]:
    if reason := why_not():
        pytest.skip(f"THERE IS NO SLURM HERE, AS {reason.upper()}: `zfabric autoscale` is not tested on it")
    with a_place() as made, running_slurm(3, {**made.environment, "HOME": made.directory}) as site:
        made.environment = site.environment
        made.run("start", "--head", "--port", "0", "--num-cpus", "0", "--object-store-memory", "32MB")
        Path(f"{made.directory}/lab.toml").write_text(KIND)
        yield made, site
        made.run("stop", "--cluster")


def is_empty(place: Place, site: Slurm) -> bool:
    return not nodes(place) and not site.jobs()


def test_no_nodes_24_tasks_and_no_nodes_again(machines: tuple[Place, Slurm]) -> None:
    place, site = machines
    began = time.monotonic()
    with scaling(place, f"{place.directory}/lab.toml") as scaler:
        with place.program(TASKS.replace("0.1", "1")) as program:
            assert scaler.says() == "kind 'small': submitted 3 jobs"
            assert program.communicate(timeout=PATIENCE)[0] == "3\n"
        eventually(lambda: is_empty(place, site), "the nodes leave and their jobs end")
        assert time.monotonic() < began + SECONDS_MOST
        assert scaler.end()[0] == 0


def test_the_scaler_is_killed_in_the_middle(machines: tuple[Place, Slurm]) -> None:
    place, site = machines
    began = time.monotonic()
    with scaling(place, f"{place.directory}/lab.toml") as scaler, place.program(TASKS.replace("0.1", "1")) as program:
        assert scaler.says() == "kind 'small': submitted 3 jobs"
        scaler.end(signal.SIGKILL)
        assert program.communicate(timeout=PATIENCE)[0] == "3\n"
    eventually(lambda: is_empty(place, site), "the nodes leave and their jobs end, without a scaler")
    assert time.monotonic() < began + SECONDS_MOST


def test_a_node_that_is_preempted_loses_no_task(machines: tuple[Place, Slurm]) -> None:
    place, site = machines
    tasks = TASKS.replace("0.1", "1").replace("@zf.remote", "@zf.remote(max_retries=0)")
    with scaling(place, f"{place.directory}/lab.toml") as scaler, place.program(tasks) as program:
        assert scaler.says() == "kind 'small': submitted 3 jobs"
        eventually(lambda: len(nodes(place)) == 3, "all nodes have joined")
        urgent = site.submit("sleep 1", f"--partition={HIGH}", "--nodes=1", "--exclusive")
        assert program.communicate(timeout=PATIENCE)[0] in ("3\n", "4\n")
        eventually(lambda: urgent not in site.command("squeue", "--noheader", "--format=%i"), "the urgent job has ended")
    eventually(lambda: is_empty(place, site), "the nodes leave and their jobs end")


def test_the_next_scaler_finds_jobs_that_wait_and_cancels_them_at_its_end(machines: tuple[Place, Slurm]) -> None:
    place, site = machines
    path = f"{place.directory}/lab.toml"
    blocking = site.submit("sleep 100", "--nodes=3", "--exclusive")
    with scaling(place, path) as killed, place.program(TASKS):
        assert killed.says() == "kind 'small': submitted 3 jobs"
        killed.end(signal.SIGKILL)
        scaler = Scaler(place, path)
        eventually(lambda: _pending(place) == 3, "it has found the jobs")
        states = site.command("squeue", "--noheader", "--array", "--format=%T").split()
        assert sorted(states) == ["PENDING"] * 3 + ["RUNNING"]
        code, said = scaler.end()
        assert (code, said) == (0, ["cancelled 3 jobs that had not begun", "ended; nodes leave once they are idle"])
    site.command("scancel", blocking)
    eventually(lambda: is_empty(place, site), "no job is left")


def _pending(place: Place) -> int:
    return sum(kind["pending"] for kind in place.json("status").get("autoscaler", ()))
