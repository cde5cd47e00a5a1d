"""Where the ranks of a run meet: each finds the head's address, and the key with which it joins.

``SharedDirectory`` is a directory on a file system that all machines have, ``BASE/RUN``::

    owner          which process of which machine has made it
    cluster.key    a key of this run alone
    head           the head's address and version, or why there is none
    rank-N         that rank N has joined, or why it could not

Rank 0 makes the directory for its user alone, since it has the key. Another user may have made a directory or a link of that name first. So
nothing is read or written before owner and mode are as expected. Files appear by ``rename``, whole.

``FixedAddress`` needs no common file system: the head's address was chosen, and its key file copied, before the run began.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator, Mapping, Set
from typing import Any, NamedTuple

import psutil

from zfabric._version import __version__
from zfabric.adapters import processes
from zfabric.adapters.file_trees import remove_tree
from zfabric.exceptions import ConfigError, ConnectionLostError, FabricError, VersionMismatchError
from zfabric.runtime.cluster import REACH_SECONDS, default_address, parse_address, resolve
from zfabric.runtime.session import DAMAGED, Session

NAME_SECONDS = 45.0
"""Seconds for a new machine's name to be known: a Kubernetes name server remembers for 30 s that a pod has none yet."""
NAME_PAUSE_SECONDS = 0.5
DEFAULT_BASE = "~/.cache/zfabric/run"
OWNER, HEAD, KEY, RANK_PREFIX = "owner", "head", "cluster.key", "rank-"
FILE_BYTES_MAX = 64 * 1024
STALE_SECONDS = 30 * 24 * 3600.0
"""Age at which another machine's directory is removed: no batch job runs so long, and a rank that waits in it has given up."""
FAILURE_SECONDS = 1.0
"""Seconds for which a failed head waits until all ranks have read why."""
LOOK_SECONDS = 0.1
"""Seconds between looks into the directory: no event reports other machines' files."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class HeadOffer(NamedTuple):
    """Where a rank joins: the head's address, and the key file."""

    address: str
    key_file: str


class FixedAddress:
    """The head listens at ``address``. All ranks have ``key_file``, and rank 0 the head's own pair beside it."""

    def __init__(self, address: str, key_file: str) -> None:
        self.address = address
        self.key_file = key_file

    def __str__(self) -> str:
        return self.address

    def open(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def head_endpoint(self, network: str, port: int) -> tuple[str, int]:
        """Return the host and the port at which the head listens. Raises ConfigError if other machines cannot reach it there."""
        name, chosen = parse_address(self.address)
        return own_host(network) if network else host_of(name), chosen

    def offer(self, session: Session) -> None:
        """Do nothing: others know the address."""

    def fail(self, reason: str, ranks: int) -> None:
        """Do nothing: others cannot be notified, and wait."""

    def close(self) -> None:
        """Do nothing."""

    def find(self, rank: int) -> HeadOffer | None:
        """Return the head's address and the key file."""
        return HeadOffer(self.address, self.key_file)

    def report(self, rank: int, reason: str) -> None:
        """Do nothing: the head cannot be notified."""

    def reports(self, ranks: Set[int]) -> Mapping[int, str]:
        """Return nothing."""
        return {}


class SharedDirectory:
    """The directory ``run`` below ``base``, by default ``DEFAULT_BASE``."""

    key_file = ""
    """The head makes a key."""

    def __init__(self, base: str, run: str) -> None:
        self._base = os.path.abspath(os.path.expanduser(base or DEFAULT_BASE))
        self._path = f"{self._base}/{run}"
        self._opened = False

    def __str__(self) -> str:
        return self._path

    # -- rank 0 --

    def open(self) -> None:
        """Make the directory, and remove those of ended runs. Raises ConfigError if it cannot be trusted, FabricError if it is in use."""
        try:
            os.makedirs(self._base, mode=0o700, exist_ok=True)
            _check_base(self._base)
            self._sweep()
            os.mkdir(self._path, 0o700)
            self._opened = True
            os.close(_checked(self._path))
            pid = os.getpid()
            self._write(OWNER, {"host": os.uname().nodename, "machine": _machine(), "pid": pid, "started": processes.start_ticks(pid)})
        except FileExistsError:
            raise self._in_use() from None
        except OSError as error:
            self.close()
            raise _unusable(self._path, error) from None
        except ConfigError:
            self.close()
            raise

    def head_endpoint(self, network: str, port: int) -> tuple[str, int]:
        """Return the host and the port (0: any) at which the head listens. Raises ConfigError as ``own_host`` does."""
        return own_host(network), port

    def offer(self, session: Session) -> None:
        """Have the other ranks join the head of ``session``."""
        membership = session.membership()
        if membership is None:
            raise ConnectionLostError(f"the head has ended: {session.failure()}")
        temporary = f"{self._path}/{KEY}.new"
        try:
            shutil.copy(session.cluster_key, temporary)
            os.rename(temporary, f"{self._path}/{KEY}")
            self._write(HEAD, {"version": __version__, "address": membership.address})
        except OSError as error:
            raise _unusable(self._path, error) from None

    def fail(self, reason: str, ranks: int) -> None:
        """Have the other ranks end with ``reason``; wait until all of ``ranks`` have read it, ``FAILURE_SECONDS`` at most."""
        with contextlib.suppress(OSError):  # A full disk, or no disk any more, may be the reason.
            self._write(HEAD, {"version": __version__, "failure": reason})
            until = time.monotonic() + FAILURE_SECONDS
            while len(self._reported()) < ranks - 1 and time.monotonic() < until:
                time.sleep(LOOK_SECONDS)
            self._opened = len(self._reported()) == ranks - 1  # Else it stays, for those who come later.

    def reports(self, ranks: Set[int]) -> Mapping[int, str]:
        """Return why some of ``ranks`` could not join, by their numbers."""
        states = {rank: self._read(f"{RANK_PREFIX}{rank}") or {} for rank in self._reported() & ranks}
        return {rank: str(state["failure"]) for rank, state in states.items() if "failure" in state}

    def close(self) -> None:
        """Remove the directory."""
        if self._opened and remove_tree(self._path) is not None:
            remove_tree(self._path)  # A rank has reported meanwhile.

    # -- other ranks --

    def find(self, rank: int) -> HeadOffer | None:
        """Return what the head has written, or None. Raises FabricError if it has failed, ConfigError if others could have written it."""
        try:
            os.listdir(self._base)  # NFS remembers for a while that a name is missing, until its directory is read.
            os.close(_checked(self._path))
            os.listdir(self._path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(self._path, error) from None
        found = self._read(HEAD)
        if found is None:
            return None
        if "failure" in found:
            raise FabricError(f"rank 0 has failed: {found['failure']}")
        if found.get("version") != __version__:
            raise VersionMismatchError(f"rank 0 has zfabric {found.get('version')}, this machine {__version__}: install one version on all")
        return HeadOffer(str(found["address"]), f"{self._path}/{KEY}")

    def report(self, rank: int, reason: str) -> None:
        """Record that a rank has joined (""), or why it cannot."""
        with contextlib.suppress(OSError, ConfigError):  # The run has ended, or the directory is another user's.
            os.close(_checked(self._path))
            self._write(f"{RANK_PREFIX}{rank}", {"host": os.uname().nodename, **({"failure": reason} if reason else {})})

    # -- files --

    def _write(self, name: str, content: dict[str, Any]) -> None:
        temporary = f"{self._path}/{name}.new"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(json.dumps(content).encode(errors="replace"))
        os.rename(temporary, f"{self._path}/{name}")

    def _read(self, name: str, path: str = "") -> dict[str, Any] | None:
        """A file's content; None if it is missing, or no file of ours."""
        try:
            descriptor = os.open(f"{path or self._path}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                found = json.loads(file.read(FILE_BYTES_MAX))
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _reported(self) -> set[int]:
        try:
            found = os.listdir(self._path)
        except FileNotFoundError:  # Somebody has cleaned up; ranks that have joined stay.
            return set()
        numbers = (name.removeprefix(RANK_PREFIX) for name in found if name.startswith(RANK_PREFIX))
        return {int(number) for number in numbers if number.isdecimal()}

    def _in_use(self) -> FabricError:
        try:
            os.close(_checked(self._path))
        except (OSError, ConfigError) as error:
            return error if isinstance(error, ConfigError) else _unusable(self._path, error)
        owner = self._read(OWNER) or {}
        maker = f" (process {owner.get('pid')} on {owner.get('host')})"
        return FabricError(f"another run meets in {self._path}{maker if owner else ''}; if that has ended, remove the directory")

    def _sweep(self) -> None:
        """Remove directories of runs whose rank 0 has ended."""
        for name in os.listdir(self._base):
            path = f"{self._base}/{name}"
            with contextlib.suppress(OSError, ConfigError, *DAMAGED):
                os.close(_checked(path))
                owner = self._read(OWNER, path)
                if owner is not None and _has_ended(owner, os.lstat(path).st_mtime):  # Else the directory is no run's.
                    remove_tree(path)


Meeting = SharedDirectory | FixedAddress


def _has_ended(owner: dict[str, Any], changed: float) -> bool:
    if owner["machine"] != _machine():  # Of another one only the age is known.
        return time.time() - changed > STALE_SECONDS
    descriptor = processes.open_pidfd(int(owner["pid"]), int(owner["started"]))
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def _machine() -> str:
    """A name for the processes that this one can see: of this boot and container."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"


def _checked(path: str) -> int:
    """Open a directory that is this user's alone. Raises ConfigError for another, OSError for a link."""
    directory = os.open(path, _DIRECTORY)
    status = os.fstat(directory)
    reason = ""
    if status.st_uid != os.geteuid():
        reason = f"belongs to user {status.st_uid}"
    elif status.st_mode & 0o077:
        reason = f"is open to other users (mode {stat.S_IMODE(status.st_mode):o}), perhaps on a file system without modes"
    if reason:
        os.close(directory)
        raise ConfigError(f"{path} {reason}; it would have a key: name another place with --rendezvous")
    return directory


def _check_base(path: str) -> None:
    """Raise ConfigError if other users may rename what is in a directory."""
    status = os.stat(path)
    if status.st_uid not in (os.geteuid(), 0) or (status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX):
        raise ConfigError(f"other users can change {path}; name a directory of your own with --rendezvous, or run: chmod go-w {path}")


def _unusable(path: str, error: OSError) -> ConfigError:
    reason = "it is a symbolic link" if os.path.islink(path) else error.strerror
    return ConfigError(f"the ranks cannot meet in {path}: {reason}; name a directory that all machines have with --rendezvous")


# --- the address at which other machines reach this one, chosen by subnet: names of interfaces differ from machine to machine ---------


def own_host(network: str) -> str:
    """Return this machine's address in ``network``, such as "10.1.0.0/16", or that of the default route for "".

    Raises ConfigError if there is none, or if it is loopback, which other machines cannot reach.
    """
    if network:
        try:
            wanted = ipaddress.ip_network(network, strict=False)
        except ValueError:
            raise ConfigError(f"{network!r} is no network; write for example 10.1.0.0/16") from None
        found = next((address for _, address in _addresses() if ipaddress.ip_address(address) in wanted), "")
        if not found:
            raise ConfigError(f"this machine has no address in {network}: it has {_listed()}")
        return found
    found = default_address()
    if not found:
        raise ConfigError(f"this machine has no default route; name the network of the others with --network: it has {_listed()}")
    return found


def host_of(name: str) -> str:
    """Return the address of a host, this machine, as a number.

    Raises ConfigError if the host's name is still unknown after ``NAME_SECONDS``, or loopback by a name of its own.
    """
    until = time.monotonic() + NAME_SECONDS
    while True:
        try:
            host = resolve(name, time.monotonic() + REACH_SECONDS)
            break
        except OSError as error:
            if time.monotonic() > until:
                raise ConfigError(f"this machine does not know the address of {name}: {error.strerror or 'no answer'}") from None
            time.sleep(NAME_PAUSE_SECONDS)
    if host != name and ipaddress.ip_address(host).is_loopback:
        raise ConfigError(f"to this machine {name} is {host}, which no other machine can reach; write its number, or add --network")
    return host


def _listed() -> str:
    return ", ".join(f"{address} ({interface})" for interface, address in _addresses())


def _addresses() -> Iterator[tuple[str, str]]:
    """(interface, address) pairs of this machine, without addresses that need a zone."""
    for interface, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family in (socket.AF_INET, socket.AF_INET6) and "%" not in each.address:
                yield interface, each.address
