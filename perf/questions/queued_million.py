"""Do a million tasks in a queue get done, how fast, and in how much memory?

They are queued behind a task that holds both CPUs until all of them are in the scheduler; the time is that of the submission and, after
the blocker has ended, of running them and having every value. Bytes are what the daemon's heap grew by, divided by the tasks. The
longest turn is wall-clock time: where more processes are busy than there are cores, it contains the turns of others.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

from perf import machine
from perf.peers.zfabric import Zfabric
from perf.question import WORKERS, Aim, Question, Run, Samples
from perf.workloads import nothing

FIGURES = ("all done", "daemon, for each", "longest turn of the daemon", "daemon, peak", "driver, peak")
ROUNDS = 3


def block(started: str, released: str) -> None:
    """Make a file that shows that it runs, and run until another file exists."""
    open(started, "w").close()
    while not os.path.exists(released):
        time.sleep(0.002)  # processes share only files


def measure(run: Run) -> dict[str, Samples]:
    """Each time on a new cluster, in turns with as many raw messages."""
    count = run.pick(1_000_000, 2_000)
    samples = {figure: Samples([]) for figure in FIGURES}
    samples["all done"].floor = "as many raw messages, echoed, many under way"
    with run.echo() as echo:
        for _ in range(min(run.repeat, ROUNDS)):
            with run.cluster() as system:
                for figure, value in zip(FIGURES, _one_round(system, count), strict=True):
                    samples[figure].values.append(value)
            samples["all done"].floor_values.append(count / echo.messages_per_second())
    return samples


def _one_round(system: Zfabric, count: int) -> tuple[float, ...]:
    daemon = system.daemon()
    with tempfile.TemporaryDirectory(prefix="zfabric-perf-") as directory:
        started, released = f"{directory}/started", f"{directory}/released"
        blocker = system.remote(block).options(num_cpus=WORKERS).remote(started, released)
        while not os.path.exists(started):
            time.sleep(0.01)  # processes share only files
        before = machine.status_bytes(daemon, "RssAnon")
        refs, seconds = _submit(system, count)
        machine.wait_until_quiet([daemon])
        each = (machine.status_bytes(daemon, "RssAnon") - before) / count
        begin = time.perf_counter()
        open(released, "w").close()
        values = system.get(refs)
        seconds += time.perf_counter() - begin
        if len(values) != count:
            raise RuntimeError(f"{len(values)} values of {count} tasks")
        system.get(blocker)
    turn = system.status()["statistics"]["turn_longest_us"] / 1000
    peaks = [machine.status_bytes(pid, "VmHWM") / machine.MiB for pid in (daemon, os.getpid())]
    return seconds, each, turn, *peaks


def _submit(system: Zfabric, count: int) -> tuple[list[Any], float]:
    remote = system.remote(nothing)
    begin = time.perf_counter()
    refs = [remote.remote() for _ in range(count)]
    return refs, time.perf_counter() - begin


QUESTION = Question(
    "queued_million",
    "1,000,000 no-op tasks queued behind a blocker, then drained",
    (
        Aim("all done", "s", False, 15),
        Aim("daemon, for each", "bytes", False, 500),
        Aim("longest turn of the daemon", "ms", False, 50),
        Aim("daemon, peak", "MiB", False),
        Aim("driver, peak", "MiB", False),
    ),
    measure,
    seconds_max=600,
)
