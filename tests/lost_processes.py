"""A test that hangs, or whose process dies, fails by name, and the other tests of the run go on. ``conftest.py`` registers this plugin.

A test may run for ``faulthandler_timeout`` seconds (``setup.cfg``) on a machine with nothing else to do, and longer on a busy one. Then its
process writes the stacks of its threads and exits. Where tests run side by side, the controller of pytest-xdist ends what a lost process
has left, shows the stacks with the failure, and has a new process run the tests that remain.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SLOWDOWN_MAX = 2.5
"""How many times its limit a test may run, however busy the machine is: a run with several hangs must end before its own limit."""

END_SECONDS = 10
"""How long processes may take to end after SIGKILL."""

STACKS = ".stacks"
"""The file with the stacks of a process has the name of its directory, and this."""


RUN = "ZFABRIC_TEST_RUN"
"""The environment variable with the directory of a process that runs tests. All processes that it starts inherit it."""


def processes_of(directory: str) -> dict[int, str]:
    """The processes that descend from the one with this directory, each with its command line, this one aside."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if f"{RUN}={directory}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # it ended meanwhile, or belongs to another user
    return found


def slowdown() -> float:
    """How many times as long as alone a test may take now: programs that want a CPU, at least the processes of this run, for each CPU."""
    wanting = max(os.getloadavg()[0], float(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1)))
    return min(max(wanting / len(os.sched_getaffinity(0)), 1.0), SLOWDOWN_MAX)


class LoadEachFileOnce(LoadFileScheduling):
    """Distribution of whole files, as by xdist, which continues after the loss of a process.

    xdist's own repeats the test at which a process was lost, and loses the next one by it. It may also assign a new process a file
    of which no test or a single one is left. That process waits for a second test before it begins, and reports nothing after which it
    would get one.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Stop assigning tests to a process. Return the test that it has not ended, if there is one; those after it are assigned anew."""
        units = self.assigned_work[node]
        lost = next((test for unit in units.values() for test, has_ended in unit.items() if not has_ended), None)
        if lost is not None:
            units[self._split_scope(lost)][lost] = True
        super().remove_node(node)
        return lost

    def _reschedule(self, node: WorkerController) -> None:
        """Assign files until a process has enough tests to begin one, or none are left."""
        super()._reschedule(node)
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) <= 2:
            super()._reschedule(node)


class LostProcesses:
    """The plugin. ``directory`` is that of this process, and ``stacks`` the descriptor to which it writes the stacks of its threads."""

    def __init__(self, directory: str, stacks: int) -> None:
        self.directory = directory
        self.stacks = stacks

    # -- in the process of a test --

    @pytest.hookimpl(wrapper=True, trylast=True)  # Inside pytest's own, which sets the limit of a quiet machine, and lifts it.
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.limit(item.config)
        return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self.limit(item.config)  # Once more: pytest lifts the limit of a test that fails, whose end can hang, too.

    def limit(self, config: pytest.Config) -> None:
        """Have this process exit after the time that a test may take, counted from now."""
        seconds = float(config.getini("faulthandler_timeout"))
        if seconds > 0:
            faulthandler.dump_traceback_later(seconds * slowdown(), exit=True, file=self.stacks)

    # -- in the controller --

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> LoadEachFileOnce | None:
        return LoadEachFileOnce(config, log) if config.getvalue("dist") == "loadfile" else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController, error: object) -> None:
        """Where a process was lost, end all that its tests have started. Its directory is below that of the run, and ends with it."""
        deadline = time.monotonic() + END_SECONDS
        while error and (left := processes_of(f"{self.directory}/{node.gateway.id}")) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)  # They are no children of this process: their end raises no event.

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """Show what the lost process wrote, with the failure of the test that it ran."""
        stacks = Path(f"{self.directory}/{report.node.gateway.id}{STACKS}").read_text()
        report.longrepr = f"{report.longrepr}\n{stacks or 'It wrote no stacks: it has exited, or was killed.'}"
