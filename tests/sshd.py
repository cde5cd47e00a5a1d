"""A real sshd on two loopback addresses, each of which stands for a machine: it has its own directories of sessions and of keys.

It needs root and the package openssh-server; ``why_not`` says what is missing. The configuration of ssh (``Sshd.config``) knows further
hosts, each of which fails in its own way.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from command_line import Place
from faults import PATIENCE
from lost_processes import RUN
from relay import free_port

from zfabric.runtime.launch import stop
from zfabric.runtime.session import find_sessions

PROGRAM = "/usr/sbin/sshd"
ADDRESSES = {"node1": "127.0.0.2", "node2": "127.0.0.3"}
UNREACHABLE = ("nokey", "stranger", "closed", "nowhere")
"""Hosts that ssh cannot reach: by their keys, their port, their name."""
PRIVILEGES = Path("/run/sshd")
"""A directory that sshd wants as root."""


def why_not() -> str:
    """Return why there can be no sshd here; empty if there can."""
    if not os.access(PROGRAM, os.X_OK):
        return f"there is no {PROGRAM}: apt-get install openssh-server"
    return "" if os.geteuid() == 0 else "sshd is started by root only"


class Sshd:
    """The server. Use as a context manager; ``directory`` is removed at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.config = directory / "ssh_config"
        self.log = directory / "sshd.log"
        self.places = {name: Place(str(directory / name)) for name in ADDRESSES}
        """What programs on each machine see."""

    def keys(self, name: str) -> Path:
        """The directory where a machine has keys of clusters."""
        return self.directory / name / "config" / "zfabric" / "clusters"

    def __enter__(self) -> Sshd:
        for name in ("hostkey", "userkey", "otherkey"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.directory / name], check=True)
        shutil.copy(self.directory / "userkey.pub", self.directory / "authorized_keys")
        for name in ADDRESSES:
            os.mkdir(self.directory / name)
        self.port = free_port("127.0.0.2")
        (self.directory / "sshd_config").write_text(self._server())
        host_key = " ".join((self.directory / "hostkey.pub").read_text().split()[:2])
        known = "".join(f"[{address}]:{self.port} {host_key}\n" for address in ADDRESSES.values())
        (self.directory / "known_hosts").write_text(known)
        (self.directory / "nobody").write_text("")
        self.config.write_text(self._client())
        self._made = not PRIVILEGES.exists()
        PRIVILEGES.mkdir(mode=0o755, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen([PROGRAM, "-D", "-e", "-f", self.directory / "sshd_config"], stderr=log)
        until = time.monotonic() + PATIENCE
        for address in ADDRESSES.values():
            while True:
                try:
                    socket.create_connection((address, self.port)).close()
                    break
                except OSError:
                    assert self._process.poll() is None, self.log.read_text()
                    assert time.monotonic() < until, self.log.read_text()
                    time.sleep(0.01)  # sshd does not notify anybody
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait()
        for place in self.places.values():
            for session in find_sessions(place.directory):  # A test has failed.
                stop(session)
        if self._made:
            PRIVILEGES.rmdir()
        shutil.rmtree(self.directory)

    def _server(self) -> str:
        lines = [
            f"Port {self.port}",
            *(f"ListenAddress {address}" for address in ADDRESSES.values()),
            f"HostKey {self.directory}/hostkey",
            f"PidFile {self.directory}/sshd.pid",
            f"AuthorizedKeysFile {self.directory}/authorized_keys",
            "LogLevel VERBOSE",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
        ]
        for name, address in ADDRESSES.items():
            place = self.places[name]
            seen = {"TMPDIR": place.directory, "XDG_CONFIG_HOME": f"{place.directory}/config", RUN: os.environ.get(RUN, "")}
            seen["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
            lines += [f"Match LocalAddress {address}", "SetEnv " + " ".join(f'"{key}={value}"' for key, value in seen.items())]
        return "\n".join(lines) + "\n"

    def _client(self) -> str:
        aliases = {**ADDRESSES, "noprogram": "127.0.0.3", "stub": "127.0.0.3", "nokey": "127.0.0.2", "stranger": "127.0.0.2"}
        closed = free_port("127.0.0.2")
        blocks = [
            *(f"Host {name}\nHostName {address}" for name, address in aliases.items()),
            f"Host nokey\nIdentityFile {self.directory}/otherkey",
            f"Host stranger\nUserKnownHostsFile {self.directory}/nobody",
            f"Host closed\nHostName 127.0.0.2\nPort {closed}",
            "Host nowhere\nHostName no-such-host.invalid",
            f"Host * !nokey\nIdentityFile {self.directory}/userkey",
            f"Host *\nPort {self.port}\nUser {getpass.getuser()}\nIdentitiesOnly yes",
            f"IdentityAgent none\nUserKnownHostsFile {self.directory}/known_hosts\nGlobalKnownHostsFile /dev/null",
            "StrictHostKeyChecking yes",
        ]
        return "\n".join(blocks) + "\n"

    def cluster_file(self, path: Path, nodes: str, *, head_port: int = 0, head: str = "node1", python: str = sys.executable) -> str:
        """Write a cluster file, with its head on one of the machines; ``nodes`` is TOML. Return its path."""
        head_port = head_port or free_port(ADDRESSES["node1"])
        path.write_text(
            f'[cluster]\nname = "lab"\npython = "{python}"\nssh = ["-F", "{self.config}"]\n'
            f'[head]\nhost = "{head}"\nport = {head_port}\nnum_cpus = 1\nobject_store_memory = "32MB"\n{nodes}'
        )
        path.chmod(0o600)
        return str(path)
