"""A program with a time limit, whose processes all end with it: a question, or a program of Ray's libraries (``tests/libraries``)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from perf import machine

TAIL = 6000
"""Characters of its output that are shown of a program that has failed."""
END_SECONDS = 10
"""How long the end of a killed process is waited for."""


class Ended(NamedTuple):
    """How a program has ended."""

    problem: str
    """Why it has failed: "ended with code 1" (negative: the number of a signal), or "took longer than 5 s". Empty if it has not."""
    output: str
    """What it wrote, to the standard output and to the standard error."""
    seconds: float
    """From its start to its end."""

    @property
    def report(self) -> str:
        """The problem, and the end of the output."""
        return f"{self.problem}; the end of what it wrote:\n{self.output[-TAIL:]}"


def run_program(command: Sequence[str], directory: Path, seconds_max: float, variables: Mapping[str, str] | None = None) -> Ended:
    """Run ``command`` in ``directory``, with the repository on its path, and a directory of its own for temporary files.

    ``variables`` are added to the environment. After ``seconds_max`` seconds it is killed. At the end its process group is killed, and
    every process that has its directory of temporary files, such as the daemons of its cluster.
    """
    # A short name: paths of sockets below it have at most 107 bytes. Files may still be written there while it is removed.
    with tempfile.TemporaryDirectory(prefix="zfp-", ignore_cleanup_errors=True) as temporary, tempfile.TemporaryFile() as output:
        environment = {**os.environ, "PYTHONPATH": str(machine.ROOT), "TMPDIR": temporary, **(variables or {})}
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(seconds_max)
            problem = f"ended with code {code}" if code else ""
        except subprocess.TimeoutExpired:
            problem = f"took longer than {seconds_max:g} s"
        finally:
            seconds = time.perf_counter() - begun
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _kill_those_below(temporary)
        output.seek(0)
        return Ended(problem, output.read().decode(errors="replace"), seconds)


def _kill_those_below(temporary: str) -> None:
    """Kill every process that has begun with this directory, or one below it, for temporary files."""
    wanted = f"TMPDIR={temporary}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has ended, or is another user's.
            if any(variable.startswith(wanted) for variable in (entry / "environ").read_bytes().split(b"\0")):
                with open(os.pidfd_open(int(entry.name)), "rb") as process:
                    signal.pidfd_send_signal(process.fileno(), signal.SIGKILL)
                    select.select([process], [], [], END_SECONDS)
