"""The systems that are measured: ours and its peers, each behind the same few names.

Peers are installed into an environment of their own (``environment``). A sample of theirs is taken in a process of its own,
which starts the system, warms it up and stops it, so that nothing of a peer runs beside the others (``__main__``). What a cold
start takes is asked of a fresh interpreter that runs what a user would write (``COLD``).
"""

from __future__ import annotations

import abc
import importlib
import os
import subprocess
import time
from typing import Any

from perf import machine

PEER_SECONDS_MAX = 240
"""When a peer's sample is no longer waited for."""
MARK = "perf-result"
"""Begins the line with a process's sample: systems print other lines beside it."""


class System(abc.ABC):
    """What a workload may use. ``remote``, ``get``, ``put`` and ``wait`` are as in Ray; a system has those its workloads need."""

    name = ""
    remote: Any
    get: Any
    put: Any
    wait: Any
    nested_parent: Any
    """A task that starts so many no-op tasks and waits for them."""
    fib: Any
    """Fibonacci numbers, where each call is a task."""
    graph: Any
    """Runs a graph of Dask, and returns the value of a key."""
    here: Any
    """As ``remote``, but on the first node, where a cluster of two nodes runs everything else on the second."""
    joblib: dict[str, Any]
    """Arguments of ``joblib.parallel_config``, with which joblib's calls run on it."""

    @abc.abstractmethod
    def start(self, workers: int) -> None:
        """Start it with so many workers."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End it and all its processes."""

    def processes(self) -> list[int]:
        """Its processes, the driver not among them: all that the driver started."""
        return machine.descendants(os.getpid())

    def settle(self) -> None:
        """Wait until what was released is gone. Most systems have no event for that; half a second is enough."""
        time.sleep(0.5)


CLASSES = {"zfabric": "Zfabric", "ray": "Ray", "dask": "Dask", "pool": "Pool", "loky": "Loky"}
"""The adapters: module of this package -> its class."""
OF_NODES = {"ray": "RayNodes", "dask": "DaskNodes"}
"""The same for clusters of two nodes on this machine."""
PEERS = {"ray": "ray", "dask": "distributed", "pool": ""}
"""Peer -> the distribution to install for it; "pool" is ProcessPoolExecutor of the standard library."""

NEEDED = {"dask": ("sklearn", "scikit-learn")}
"""Peer -> the module that its workloads need beside it, and the distribution of that."""

COLD = {
    "zfabric": (
        "import zfabric as zf",
        "zf.init('local', num_cpus={workers}, log_to_driver=False)\nassert zf.get(zf.remote(lambda: 1).remote()) == 1",
    ),
    "ray": (
        "import ray",
        "ray.init(num_cpus={workers}, include_dashboard=False, log_to_driver=False)\nassert ray.get(ray.remote(lambda: 1).remote()) == 1",
    ),
    "dask": (
        "import distributed",
        "client = distributed.Client(n_workers={workers}, threads_per_worker=1, dashboard_address=None)\n"
        "assert client.submit(abs, -1).result() == 1",
    ),
    "pool": ("import concurrent.futures.process as p", "assert p.ProcessPoolExecutor({workers}).submit(abs, -1).result() == 1"),
}
"""System -> (its import, and what then leads to a first result), as source of a fresh interpreter."""
_COLD_PROGRAM = """
import time
begin = time.perf_counter()
{source}
print({mark!r}, (time.perf_counter() - begin) * 1e3, flush=True)
"""


def load(name: str, nodes: bool = False) -> System:
    """The adapter called ``name``, or that of two nodes of it; imports its library."""
    module = importlib.import_module(f"perf.peers.{name}")
    system: System = getattr(module, (OF_NODES if nodes else CLASSES)[name])()
    return system


def cold(name: str, interpreter: str, workers: int = 0) -> float:
    """Milliseconds that a fresh interpreter needs for the import, and with ``workers`` from there to a first result."""
    imports, first = COLD[name]
    source = f"{imports}\n{first.format(workers=workers)}" if workers else imports
    return _ask(name, [interpreter, "-c", _COLD_PROGRAM.format(source=source, mark=MARK)])


def sample(name: str, interpreter: str, workload: str, size: int, warm: int, workers: int) -> float:
    """One sample of a workload from a system in a process of its own, after a warm-up of size ``warm`` (0: none)."""
    return _ask(name, [interpreter, "-m", "perf.peers", name, workload, str(size), str(warm), str(workers)])


def _ask(name: str, command: list[str]) -> float:
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    environment = {**os.environ, **quiet, "PYTHONPATH": str(machine.ROOT)}
    done = subprocess.run(command, cwd=machine.ROOT, env=environment, capture_output=True, text=True, timeout=PEER_SECONDS_MAX)
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return float(line.split()[1])
    raise RuntimeError(f"{name} gave no sample (exit code {done.returncode}): {done.stderr.strip()[-2000:]}")
