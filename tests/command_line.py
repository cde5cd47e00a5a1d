"""Running the command line as people and scripts do, in a directory where nothing else runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from faults import PATIENCE, eventually, session

from zfabric.runtime.session import Session

ZFABRIC = str(Path(sys.executable).with_name("zfabric"))


class Commands:
    """Runs commands in forks of one process that has imported them (``command_server``), from the first until ``end``."""

    def __init__(self) -> None:
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket

    def run(self, arguments: Sequence[str], environment: dict[str, str], directory: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as ``subprocess.run`` does, without input; kill one that takes longer than ``PATIENCE``."""
        if self._server is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._server = subprocess.Popen([sys.executable, Path(__file__).with_name("command_server.py")], stdin=theirs)
            self._socket.settimeout(PATIENCE)
        output, its_output = os.pipe()
        with tempfile.TemporaryFile() as errors, open(output, encoding="utf-8") as reader:
            socket.send_fds(self._socket, [json.dumps([arguments, environment, directory]).encode()], [its_output, errors.fileno()])
            os.close(its_output)
            late = threading.Timer(PATIENCE, os.kill, (int(self._socket.recv(16)), signal.SIGKILL))
            late.start()
            try:
                printed = reader.read()  # Until no process holds the pipe any more, those that it has started included.
                code = int(self._socket.recv(16))
            finally:
                late.cancel()
            errors.seek(0)
            return subprocess.CompletedProcess([ZFABRIC, *arguments], code, printed, errors.read().decode())

    def end(self) -> None:
        """End the process."""
        if self._server is not None:
            self._socket.close()
            self._server.wait(PATIENCE)
            self._server = None


COMMANDS = Commands()


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
        words, environment = list(map(str, arguments)), {**self.environment, **more}
        if words[:1] == ["submit"] or any(name.startswith("PYTHON") for name in more):  # It is to be the interpreter of a program.
            ended = subprocess.run(
                [ZFABRIC, *words], env=environment, cwd=self.directory,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
            )  # fmt: skip
        else:
            ended = COMMANDS.run(words, environment, self.directory)
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


def printed(*arguments: str) -> str:
    """Output of a command on this cluster."""
    ended = COMMANDS.run([*arguments, "--address", session().directory], {**os.environ, "COLUMNS": "80"}, os.getcwd())
    ended.check_returncode()
    return ended.stdout


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
