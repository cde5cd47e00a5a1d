"""zfabric itself, by its public names, and what of its processes and daemon the public names do not show."""

from __future__ import annotations

import time
from typing import Any

import zfabric as zf
from perf import machine
from perf.peers import System
from perf.workloads import nothing
from zfabric.runtime import interface

_nothing = zf.remote(nothing)


def nested_parent(count: int) -> None:
    """A task that starts ``count`` no-op tasks and waits for them."""
    zf.get([_nothing.remote() for _ in range(count)])


def fib(number: int) -> int:
    """Fibonacci numbers, where each call is a task."""
    if number < 2:
        return number
    left, right = zf.get([_fib.remote(number - 1), _fib.remote(number - 2)])
    return int(left + right)


_fib = zf.remote(fib)


class Zfabric(System):
    """An embedded cluster."""

    name = "zfabric"
    joblib = {"backend": "zfabric"}
    remote = staticmethod(zf.remote)
    get = staticmethod(zf.get)
    put = staticmethod(zf.put)
    wait = staticmethod(zf.wait)
    nested_parent = staticmethod(nested_parent)
    fib = staticmethod(fib)

    def graph(self, graph: Any, key: Any) -> Any:
        """Run a graph of Dask."""
        from zfabric.util.dask import get

        return get(graph, key)

    def start(self, workers: int, **options: Any) -> None:
        """As a user would; ``options`` go to ``init``."""
        zf.init("local", num_cpus=workers, log_to_driver=False, **options)

    def stop(self) -> None:
        """End the cluster."""
        zf.shutdown()

    def roles(self) -> dict[int, str]:
        """The processes of the session by role: "supervisor", "daemon", "template", "worker"."""
        client: Any = interface.current()
        supervisor = int(client.session.describe()["supervisor"])
        pids = [supervisor, *machine.descendants(supervisor)]
        return {pid: machine.process_name(pid).removeprefix("zf-") for pid in pids}

    def processes(self) -> list[int]:
        """Supervisor, daemon, template and workers."""
        return list(self.roles())

    def daemon(self) -> int:
        """The daemon's pid."""
        return next(pid for pid, role in self.roles().items() if role == "daemon")

    def status(self) -> dict[str, Any]:
        """The status that the daemon reports; it walks over all its tasks."""
        client: Any = interface.current()
        status: dict[str, Any] = client.query("status")
        return status

    def settle(self) -> None:
        """Wait until the store has nothing left and rests."""
        end = time.monotonic() + 10
        while self.status()["store"].get("used") and time.monotonic() < end:
            time.sleep(0.02)  # the status is polled: there is no event for it
        machine.wait_until_quiet([self.daemon()], 0.1, 10)
