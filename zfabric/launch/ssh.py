"""Commands on other machines, by the program ssh.

A machine runs its commands in the user's login shell, which must take the syntax of ``sh``: first those of the file (``before``), whose
output goes to standard error, then ``cd``, then Python. The words of a command are quoted, so they arrive unchanged.

No connection is less safe than the user's own. ssh asks for no password (``BatchMode``), and accepts only hosts that the user has accepted:
``StrictHostKeyChecking`` is never set here. Secrets pass through standard input and output, never through arguments, which others can read,
nor through ``trace``.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from zfabric.exceptions import ConfigError
from zfabric.launch.cluster_file import ClusterFile, HostEntry

AT_A_TIME = 8
"""Connections at a time: sshd refuses some of more than ten that have not logged in (``MaxStartups``), and a jump host has all of them."""
ANSWER_SECONDS = 120.0
"""Seconds for a command: a node starts in 2 s, but its machine may be busy, and its disk slow."""
SSH_FAILED = 255
"""ssh's exit code for its own failures."""
_DEFAULTS = ("-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=10")
"""They stand after the user's options, since ssh takes the first value of an option."""
_BEGIN = "--- zfabric ---"
"""The line before a command's own output: login scripts may print some, too."""

Result = TypeVar("Result")


def _nothing(text: str) -> None:
    pass


class Reply(NamedTuple):
    """A host's answer to a command."""

    code: int
    output: str
    """Standard output, without that of login scripts."""
    errors: str

    @property
    def reason(self) -> str:
        """Why it failed: the error of zfabric, or the last lines of ssh or of the shell."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        own = [number for number, line in enumerate(lines) if line.startswith("Error: ")]
        if own:
            return " ".join(lines[own[-1] :]).removeprefix("Error: ")
        return " ".join(lines[-2 if self.code == SSH_FAILED else -1 :]) or f"exit code {self.code}, without a word"


class Ssh:
    """Runs commands on the hosts of a cluster file. ``trace`` receives each as a shell would take it, ``say`` lines for people."""

    def __init__(self, cluster: ClusterFile, trace: Callable[[str], None] = _nothing, say: Callable[[str], None] = _nothing) -> None:
        self.cluster = cluster
        self._trace = trace
        self._say = say
        self._running: set[subprocess.Popen[str]] = set()

    def run(self, entry: HostEntry, words: Sequence[str], first: str = "", text: str = "") -> Reply:
        """Run a command; return its answer.

        ``words`` are arguments of the host's Python, or none. ``first`` is a shell command to run before. ``text`` is the standard input of
        both.
        """
        command = remote_command(self.cluster, entry, words, f"printf '%s\\n' '{_BEGIN}'", first)
        # A connection that persists would hold the pipes below open.
        arguments = self._arguments(entry, ("-T", "-o", "ClearAllForwardings=yes", "-o", "ControlPersist=no"), command)
        try:
            # In a session of its own, since Ctrl-C must not cut a command off that would go on over there.
            process = subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                encoding="utf-8", errors="replace", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise _no_ssh(error) from None
        self._running.add(process)
        try:
            output, errors = process.communicate(text, ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            return Reply(SSH_FAILED, "", f"no answer within {ANSWER_SECONDS:g} s")
        finally:
            self._running.discard(process)
        return Reply(process.returncode, output.partition(f"{_BEGIN}\n")[2], errors)

    def _arguments(self, entry: HostEntry, own: Sequence[str], command: str) -> list[str]:
        """The arguments of ssh for a command. The file cannot override the options in ``own``."""
        arguments = ["ssh", *own, "-o", "BatchMode=yes", *self.cluster.ssh, *_DEFAULTS, "--", entry.host, command]
        self._trace(shlex.join(arguments))
        return arguments

    def on_all(self, entries: Sequence[HostEntry], function: Callable[[HostEntry], Result], changing: bool = True) -> list[Result]:
        """Call ``function`` for each host, for several at a time; return the results in order.

        If interrupted, this waits for the calls that have begun, so that what they change on the hosts is complete. Calls that are not
        ``changing`` anything are given up.
        """
        executor = ThreadPoolExecutor(AT_A_TIME)
        try:
            return list(executor.map(function, entries))
        except KeyboardInterrupt:
            executor.shutdown(wait=False, cancel_futures=True)
            if changing:
                self._say("interrupted: waiting for what has begun; Ctrl-C again may leave nodes there")
            for process in () if changing else tuple(self._running):
                _kill(process)
            raise
        finally:
            executor.shutdown()

    def attach(self, entry: HostEntry, words: Sequence[str], ports: Sequence[int], terminal: bool) -> tuple[int, str]:
        """Run a command with this process's input and output. Return its exit code, and ssh's own error or "".

        ``ports`` of the host are forwarded from the same ports here. ``terminal`` gives the command one.
        """
        forwards = [word for port in ports for word in ("-L", f"127.0.0.1:{port}:127.0.0.1:{port}")]
        with tempfile.NamedTemporaryFile("r", prefix="zfabric-ssh-", errors="replace") as log:
            forwarding = ("-o", "ExitOnForwardFailure=yes", *forwards) if forwards else ("-o", "ClearAllForwardings=yes")
            own = ("-t" if terminal else "-T", "-E", log.name, "-o", "LogLevel=ERROR", *forwarding)
            arguments = self._arguments(entry, own, remote_command(self.cluster, entry, words))
            try:
                process = subprocess.Popen(arguments)
            except OSError as error:
                raise _no_ssh(error) from None
            with process:
                try:
                    code = process.wait()
                except BaseException:
                    process.terminate()  # It restores the terminal, and the command receives SIGHUP.
                    raise
            return code if code >= 0 else 128 - code, log.read().strip() if code == SSH_FAILED else ""


def remote_command(cluster: ClusterFile, entry: HostEntry, words: Sequence[str], *steps: str) -> str:
    """A command line for a host's login shell: the file's commands, ``steps``, then Python with ``words``."""
    parts = [f"{{ {command}\n}} </dev/null >&2" for command in cluster.before]
    if cluster.directory:
        parts.append(f"cd -- {_path(cluster.directory)}")
    parts += [step for step in steps if step]
    if words:
        parts.append(f"exec {_path(entry.python)} {shlex.join(words)}")
    return " && ".join(parts)


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill ssh, and the proxy that ssh may have started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _path(path: str) -> str:
    """A quoted path, which may begin in that machine's home directory."""
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


def _no_ssh(error: OSError) -> ConfigError:
    if not isinstance(error, FileNotFoundError):
        return ConfigError(f"ssh cannot be run: {error.strerror}")
    return ConfigError(f"there is no program ssh here (PATH is {os.environ.get('PATH', '')!r}): install the client of OpenSSH")
