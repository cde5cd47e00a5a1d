"""Running the command line as people and scripts do, in a directory where nothing else runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zfabric.runtime.session import Session

ZFABRIC = str(Path(sys.executable).with_name("zfabric"))
PATIENCE = 60.0


class Place:
    """A directory of its own for sessions, so that commands see what the test made and nothing else."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.sessions = f"{directory}/zfabric-{os.geteuid()}"
        kept = [name for name in os.environ if not name.startswith("ZFABRIC_") or name == "ZFABRIC_TEST_RUN"]
        self.environment = {name: os.environ[name] for name in kept}
        self.environment.update(TMPDIR=directory, COLUMNS="80", PYTHONUNBUFFERED="1")

    def run(self, *arguments: object, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; it must exit with ``code`` and never show a traceback."""
        ended = subprocess.run(
            [ZFABRIC, *map(str, arguments)], env={**self.environment, **more}, cwd=self.directory,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        assert ended.returncode == code, (ended.args, ended.returncode, ended.stdout, ended.stderr)
        assert "submit" in arguments or not ended.stderr.startswith("Traceback"), ended.stderr
        return ended

    def json(self, *arguments: object) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)

    @contextmanager
    def program(self, source: str, *arguments: str, command: tuple[str, ...] = ("submit",), **more: str) -> Iterator[subprocess.Popen[str]]:
        """A program that runs meanwhile, in a process group of its own as in a terminal."""
        path = tempfile.mkstemp(suffix=".py", dir=self.directory)[1]
        Path(path).write_text(textwrap.dedent(source))
        running = subprocess.Popen(
            [ZFABRIC, *command, path, *arguments], env={**self.environment, **more}, process_group=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            yield running
        finally:
            running.kill()
            running.communicate()

    def left(self) -> list[str]:
        """What is in the sessions' directory."""
        return sorted(os.listdir(self.sessions)) if os.path.exists(self.sessions) else []


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Wait until ``condition()`` is true; its value."""
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.02)  # conditions concern other processes, which raise no event here
    return value


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@contextmanager
def a_place() -> Iterator[Place]:
    directory = tempfile.mkdtemp(prefix="c", dir=os.environ["TMPDIR"])
    place = Place(directory)
    try:
        yield place
        eventually(lambda: not [name for name in place.left() if Session(f"{place.sessions}/{name}").alive()], "the sessions' end")
    finally:
        for name in place.left():
            if Session(f"{place.sessions}/{name}").alive():
                subprocess.run([ZFABRIC, "stop", "--all"], env=place.environment, capture_output=True, timeout=PATIENCE)
        shutil.rmtree(directory, ignore_errors=True)
