"""How soon does each view of the page open on a large job, and what does a viewer cost the daemon?

The job has a million tasks that are done and to which the program refers, and ten thousand lightweight actors, each called once. With
``ZFABRIC_PERF_PAGE_TASKS=10000000`` there are as many tasks: the program still refers to the newest million. A view is
open when the server has answered all that it asks for first; the browser's own time is not measured. The stacks are left out: a program
that computes answers once a second. The daemon's CPU time is taken without a viewer and with one who has the overview before him, in turns.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections import deque
from http.client import HTTPConnection
from typing import Any

import zfabric as zf
from perf import machine
from perf.question import Aim, Question, Run, Samples
from perf.workloads import nothing

TASKS = int(os.environ.get("ZFABRIC_PERF_PAGE_TASKS", "1000000"))
HELD = 1_000_000
"""Tasks to which the program refers: the newest ones."""
VIEWS = {
    "overview": "events",
    "task stream": "stream",
    "tasks": "tasks?limit=200",
    "actors": "actors?limit=200",
    "workers": "workers",
    "memory": "memory?limit=100",
    "graph": "graph?text={task}",
    "logs": "logs",
    "errors": "errors",
    "details": "details?text={task}",
}
"""What each view asks for first."""


class Counter:
    """An actor that counts its calls."""

    def __init__(self) -> None:
        self.n = 0

    def add(self) -> int:
        """Count a call."""
        self.n += 1
        return self.n


class Viewer:
    """A page of this cluster that somebody looks at, without a browser."""

    def __init__(self, address: str) -> None:
        command = [sys.executable, "-m", "zfabric", "page", "--address", address, "--port", "0"]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        url = self._server.stdout.readline().strip()
        base, _, self._token = url.partition("/?token=")
        self._port = int(base.rpartition(":")[2])
        self._headers = {"Authorization": f"Bearer {self._token}"}

    def open(self, path: str) -> float:
        """Return the milliseconds until all that a view asks for is there."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        begin = time.perf_counter()
        connection.request("GET", f"/api/{path}", headers=self._headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {answer.read()[:200]!r}")
        if path == "events":
            answer.fp.readline()
            answer.fp.readline()
        else:
            answer.read()
        seconds = time.perf_counter() - begin
        connection.close()
        return seconds * 1e3

    def watch(self) -> Any:
        """Open the overview, and leave it open."""
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/api/events", headers=self._headers)
        return urllib.request.urlopen(request, timeout=60)

    def close(self) -> None:
        """End the server."""
        self._server.terminate()
        self._server.wait()


def measure(run: Run) -> dict[str, Samples]:
    """One cluster; every view several times, then seconds with and without a viewer in turns."""
    samples = {figure: Samples([]) for figure in ("task stream, for the first time", *VIEWS, "daemon, for a viewer")}
    tasks, actors, seconds = run.pick(TASKS, 500), run.pick(10_000, 5), run.pick(100, 1) / 10
    with run.cluster() as system:
        remote, counter = system.remote(nothing), system.remote(Counter).options(lightweight=True, num_cpus=0)
        refs: deque[zf.ObjectRef[None]] = deque()
        for begin in range(0, tasks, HELD):
            new = [remote.remote() for _ in range(min(HELD, tasks - begin))]
            for ref in new:
                refs.append(ref)
                if len(refs) > HELD:
                    refs.popleft()
            zf.wait(new, num_returns=len(new))
        handles = [counter.remote() for _ in range(actors)]
        zf.get([handle.add.remote() for handle in handles])
        daemon = system.daemon()
        viewer = Viewer(zf.get_runtime_context().gcs_address)
        try:
            samples["task stream, for the first time"].values.append(viewer.open("stream"))
            for _ in range(run.repeat):
                for view, path in VIEWS.items():
                    samples[view].values.append(viewer.open(path.format(task=refs[0].hex()[:32])))
            for _ in range(run.repeat):
                machine.wait_until_quiet([daemon])
                without = _cpu(daemon, seconds)
                with viewer.watch():
                    time.sleep(seconds / 10)  # The first answer is what opening costs.
                    samples["daemon, for a viewer"].values.append(max(0.0, _cpu(daemon, seconds) - without))
        finally:
            viewer.close()
    return samples


def _cpu(pid: int, seconds: float) -> float:
    """Percent of a core."""
    before = machine.cpu_seconds_fine([pid])
    time.sleep(seconds)  # what is measured
    return (machine.cpu_seconds_fine([pid]) - before) / seconds * 100


QUESTION = Question(
    "page",
    f"the page on a job of {TASKS:,} tasks and 10,000 actors",
    (
        *(Aim(view, "ms", False, 300) for view in ("task stream, for the first time", *VIEWS)),
        Aim("daemon, for a viewer", "% of a core", False, 2),
    ),
    measure,
    seconds_max=600,
)
