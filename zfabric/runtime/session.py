"""Session directories: all that a cluster has on disk on one node, and how its processes find each other.

``<tmp>/zfabric-<uid>/s-<8 hex>/`` holds::

    lock           flock'ed by the supervisor for its life: a free lock is a dead session
    session.json   what the session is: supervisor, configuration, resources, arena
    daemon         the incarnation of the daemon's socket, replaced atomically by each new daemon
    sockets/       ipc sockets, each named by the incarnation of the process that bound it, and those for datagrams beside them
    logs/          output of daemon, template, workers and supervisor
    store/         the control store, unless it lies elsewhere
    spill/         objects that the arena has no room for, unless they go elsewhere
    failure        why the session ended by itself, if it did

All of it belongs to one user: the parent directory is refused unless it is that user's and closed to all others, so
nothing inside needs further care. The names are short since the path of an ipc socket must stay below 108 bytes.

With ``ZFABRIC_KEEP`` set, logs, store and ``session.json`` stay when the session has ended, as ``<tmp>/zfabric-<uid>/kept-<8 hex>/``; those
of the last ``KEPT_MAX`` such sessions.

A directory is born locked (under a lock of the parent, so that no sweep sees it before), the lock goes over to the
supervisor by inheritance, and a sweep removes what nobody holds. That needs no pid and no age.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgpack

from zfabric.adapters.datagrams import SUFFIX, path_of
from zfabric.config import Config
from zfabric.exceptions import FabricError, VersionMismatchError
from zfabric.protocol.ids import INCARNATION_BYTES
from zfabric.protocol.messages import PROTOCOL_VERSION
from zfabric.protocol.names import is_text

SOCKET_PATH_MAX = 100
"""Longest path of an ipc socket in bytes: the kernel takes 107, and ZeroMQ prefixes some."""
_FIXED_PART = len("/zfabric-4294967295/s-00000000/sockets/") + 2 * INCARNATION_BYTES + len(SUFFIX)

EMBEDDED, STARTED = "embedded", "started"
KEEP_VARIABLE = "ZFABRIC_KEEP"
"""Environment variable that says whether a session is kept that this process starts: neither empty nor "0"."""
KEPT = "kept-"
KEPT_MAX = 20
"""Ended sessions that are kept; the oldest go first. Their logs and events are bounded while they run."""


class Specification(NamedTuple):
    """What a supervisor is told at its start.

    ``directory`` is the session's. ``kind`` is "embedded" (ends with the launcher) or "started" (ends when told to).
    ``launcher`` and ``launcher_started`` name the launching process. ``arena_size`` is -1 for what ``config`` says, 0 for
    no arena. ``paths`` is the workers' ``sys.path`` (empty: the supervisor's own). ``daemon`` and ``worker`` are entry points,
    "module:function"; ``imports`` are the modules loaded once, before processes are forked.
    """

    directory: str
    kind: str
    launcher: int
    launcher_started: int
    config: tuple[tuple[str, Any], ...]
    resources: tuple[tuple[str, float], ...]
    namespace: str
    store: str
    spill: str
    arena_size: int
    paths: tuple[str, ...]
    daemon: str
    worker: str
    imports: tuple[str, ...]
    keep: bool = False
    """Whether logs and tables stay when the session has ended."""

    def pack(self) -> bytes:
        """The specification as bytes."""
        # Paths may be no text: what Python makes of names that are not UTF-8 goes as it is.
        packed: bytes = msgpack.packb((PROTOCOL_VERSION, *self), unicode_errors="surrogateescape")
        return packed

    @classmethod
    def unpack(cls, payload: bytes) -> Specification:
        """What ``pack`` packed; VersionMismatchError if another version did."""
        protocol, *fields = msgpack.unpackb(payload, use_list=False, unicode_errors="surrogateescape")
        if protocol != PROTOCOL_VERSION:
            raise VersionMismatchError(f"the launcher speaks protocol {protocol}, the supervisor {PROTOCOL_VERSION}")
        return cls(*fields)


class Session:
    """One session directory, for whoever has something to do there. Makes nothing by itself; see ``create``."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.logs = f"{directory}/logs"
        self.sockets = f"{directory}/sockets"
        self._description: dict[str, Any] | None = None
        self._config: Config | None = None

    def __repr__(self) -> str:
        return f"Session({self.directory!r})"

    @classmethod
    def create(cls, base: str | None = None) -> tuple[Session, int]:
        """A new, empty session and the descriptor that holds its lock."""
        parent = user_directory(base)
        with _locked_parent(parent):
            while True:
                session = cls(f"{parent}/s-{os.urandom(4).hex()}")
                try:
                    os.mkdir(session.directory, 0o700)
                    break
                except FileExistsError:
                    continue
            lock = os.open(f"{session.directory}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in ("logs", "sockets", "store", "spill"):
            os.mkdir(f"{session.directory}/{name}", 0o700)
        return session, lock

    # -- what the session is --

    def write_description(self, description: dict[str, Any]) -> None:
        """Write ``session.json`` (the supervisor does, once)."""
        _replace(f"{self.directory}/session.json", json.dumps(description).encode())

    def describe(self) -> dict[str, Any]:
        """What the supervisor wrote. FabricError if it has not yet, VersionMismatchError if another version did.

        Keys: protocol, python (its version), directory, kind, supervisor (pid), started (its start ticks), launcher (pid), created (seconds
        since the epoch), config (name → value), resources (name → amount), namespace, arena (path), arena_size, store, spill.
        """
        if self._description is None:
            self._description = self._read()
        return self._description

    def _read(self) -> dict[str, Any]:
        try:
            description = self._written()
        except (OSError, ValueError) as error:
            raise FabricError(f"{self.directory} is not a running session: {error}") from None
        if description.get("protocol") != PROTOCOL_VERSION:
            raise VersionMismatchError(
                f"the cluster in {self.directory} was started by another version of zfabric (protocol {description.get('protocol')}, this "
                f'has {PROTOCOL_VERSION}): end it with `zfabric stop --address {self.directory}`, or pass address="local" for one of '
                "this program's own"
            )
        return description

    def _written(self) -> dict[str, Any]:
        with open(f"{self.directory}/session.json", "rb") as file:
            description: dict[str, Any] = json.load(file)
        return description

    def kind(self) -> str:
        """ "embedded" or "started", whatever version of zfabric made the session; empty if it is not there, or just being made."""
        try:
            return str(self._written().get("kind", ""))
        except (OSError, ValueError):
            return ""

    def supervisor(self) -> tuple[int, int]:
        """Its pid and start ticks, whatever version of zfabric made the session. FabricError if it has not written them yet."""
        try:
            description = self._written()
            return int(description["supervisor"]), int(description["started"])
        except (OSError, ValueError, KeyError) as error:
            raise FabricError(f"{self.directory} is not a running session: {error}") from None

    def config(self) -> Config:
        """The session's configuration."""
        if self._config is None:
            self._config = Config.of(self.describe()["config"])
        return self._config

    # -- the daemon's socket --

    def socket_path(self, incarnation: bytes) -> str:
        """Where the process of this incarnation binds its ipc socket."""
        return f"{self.sockets}/{incarnation.hex()}"

    def publish_daemon(self, incarnation: bytes) -> None:
        """From now on clients find the daemon at this incarnation's socket; call it once the socket is bound.

        It is a link to nowhere, since a name takes no room: a new daemon is found also where the disk is full.
        """
        temporary = f"{self.directory}/daemon.{os.getpid()}"
        os.symlink(incarnation.hex(), temporary)
        os.replace(temporary, f"{self.directory}/daemon")

    def daemon(self) -> tuple[bytes, str] | None:
        """The daemon's incarnation and the path of its socket; None if no daemon has got that far."""
        try:
            incarnation = bytes.fromhex(os.readlink(f"{self.directory}/daemon"))
        except (OSError, ValueError):
            return None
        return incarnation, self.socket_path(incarnation)

    def remove_sockets(self, incarnation: bytes) -> None:
        """Delete those of a process that has died."""
        for path in (self.socket_path(incarnation), path_of(self.sockets, incarnation)):
            with suppress(OSError):
                os.unlink(path)

    def sweep_sockets(self) -> None:
        """Delete the sockets of processes that were killed, which a new daemon finds. Not what is read after their deaths."""
        names = os.listdir(self.sockets)  # Before the look at who is there: what is bound in between is not in the list.
        with open("/proc/net/unix", "rb") as file:
            bound = {os.path.basename(line.split()[-1]) for line in file}
        for name in names:
            if os.fsencode(name.partition(".")[0]) not in bound and not name.endswith(".slot"):
                os.unlink(f"{self.sockets}/{name}")

    # -- its end --

    def fail(self, reason: str) -> None:
        """Leave word of why the session ends by itself, if there is room for it."""
        with suppress(OSError):
            _replace(f"{self.directory}/failure", reason.encode(errors="replace"))

    def failure(self) -> str:
        """Why the session ended by itself; empty if it did not."""
        try:
            with open(f"{self.directory}/failure", "rb") as file:
                return file.read().decode(errors="replace")
        except OSError:
            return ""

    def alive(self) -> bool:
        """Whether a supervisor holds the session."""
        lock = _take_lock(f"{self.directory}/lock")
        if lock is None:
            return os.path.exists(f"{self.directory}/lock")
        os.close(lock)
        return False

    def spill_path(self, directory: str) -> str:
        """Where spilled objects go: a directory of this session's own in ``directory`` (empty: in the session's)."""
        name = os.path.basename(self.directory).removeprefix("dead-")
        return f"{directory}/zfabric-spill-{name}" if directory else f"{self.directory}/spill"

    def _note_end(self) -> None:
        """Put into ``session.json`` that the session has ended, and that its directory has another name now."""
        description = self._written()
        store = str(description["store"])
        if os.path.dirname(store) == description["directory"]:
            store = f"{self.directory}/store"
        self.write_description({**description, "directory": self.directory, "store": store, "ended": time.time()})

    def _kept(self) -> str:
        """Where to, if it is to be kept; empty if it is not, or is already and is to go."""
        try:
            found = bool(self._written().get("keep"))
        except (OSError, ValueError):
            return ""
        parent, name = os.path.split(self.directory)
        return f"{parent}/{KEPT}{self.identifier}" if found and not name.startswith(KEPT) else ""

    def _spill_elsewhere(self) -> str:
        """The directory of spilled objects, if it is this session's own and lies outside of it."""
        try:
            path = str(self._written()["spill"])
        except (OSError, ValueError, KeyError):
            return ""
        return path if path == self.spill_path(os.path.dirname(path)) else ""

    @property
    def identifier(self) -> str:
        """The part of the directory's name that is this session's own, running or kept: eight hexadecimal digits."""
        return os.path.basename(self.directory).rpartition("-")[2]

    def remove(self) -> None:
        """Delete the directory, or what of it is not kept. Only for who knows that the session is dead."""
        if not os.path.exists(self.directory):
            return
        import shutil

        kept = self._kept()
        if kept:
            shutil.rmtree(self._spill_elsewhere() or f"{self.directory}/spill", ignore_errors=True)
            shutil.rmtree(self.sockets, ignore_errors=True)
            with suppress(OSError):  # The launcher does this, too.
                os.rename(self.directory, kept)
                Session(kept)._note_end()
            for session in kept_sessions(os.path.dirname(os.path.dirname(kept)))[:-KEPT_MAX]:
                shutil.rmtree(session.directory, ignore_errors=True)
            return
        shutil.rmtree(self._spill_elsewhere() or self.directory, ignore_errors=True)
        for _ in range(20):  # a process that is being killed may still be making files
            shutil.rmtree(self.directory, ignore_errors=True)
            if not os.path.exists(self.directory):
                return
            time.sleep(0.005)  # its death follows from the supervisor's, and this process cannot wait for what is not its child


# --- finding sessions -----------------------------------------------------------------------------------------------------------


def user_directory(base: str | None = None) -> str:
    """The directory of this user's sessions, made if need be. FabricError if others could get at it.

    ``base`` is where it lies: by default ``$TMPDIR`` if the paths of sockets fit below it (and are UTF-8), else ``/tmp``.
    """
    if base is None:
        base = os.environ.get("TMPDIR", "").rstrip("/")
        fits = len(os.fsencode(base)) + _FIXED_PART <= SOCKET_PATH_MAX and is_text(base)
        if not os.path.isabs(base) or not os.path.isdir(base) or not fits:
            base = "/tmp"
    elif len(os.fsencode(base)) + _FIXED_PART > SOCKET_PATH_MAX:
        raise FabricError(f"{base} is too long: sockets below it would pass {SOCKET_PATH_MAX} bytes")
    path = f"{base}/zfabric-{os.geteuid()}"
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise FabricError(f"{path} is not a directory; remove it")
    if status.st_uid != os.geteuid():
        raise FabricError(
            f"{path} belongs to user {status.st_uid}; it cannot be trusted. Remove it or set TMPDIR to a directory of your own"
        )
    if status.st_mode & 0o077:
        raise FabricError(f"{path} is open to other users (mode {stat.S_IMODE(status.st_mode):o}); run: chmod 700 {path}")
    return path


def find_sessions(base: str | None = None) -> list[Session]:
    """This user's living sessions that have been described, oldest first: by ticks since the boot, since the wall clock may be set back."""
    parent = user_directory(base)
    found = {}
    for name in os.listdir(parent):
        session = Session(f"{parent}/{name}")
        if name.startswith("s-") and session.alive():
            with suppress(OSError, ValueError):  # It is just being made, or has ended meanwhile.
                found[session] = (int(session._written().get("started", 0)), os.stat(f"{session.directory}/session.json").st_mtime_ns)
    return sorted(found, key=found.__getitem__)


def kept_sessions(base: str | None = None) -> list[Session]:
    """This user's sessions that have ended and were kept, in the order in which they began."""
    parent = user_directory(base)
    found = {}
    for name in os.listdir(parent):
        session = Session(f"{parent}/{name}")
        if name.startswith(KEPT):
            found[session] = 0.0  # Until the description shows it, which may be damaged, or just being removed.
            with suppress(OSError, ValueError):
                found[session] = float(session._written()["created"])
    return sorted(found, key=found.__getitem__)


def sweep(base: str | None = None) -> list[str]:
    """Delete the directories of this user's dead sessions; return their paths."""
    parent = user_directory(base)
    claimed = []
    with _locked_parent(parent):
        for name in os.listdir(parent):
            path = f"{parent}/{name}"
            if name.startswith("s-"):
                lock = _take_lock(f"{path}/lock")
                if lock is None and os.path.exists(f"{path}/lock"):
                    continue
                os.rename(path, f"{parent}/dead-{name}")  # so that deleting, which may take long, needs no lock
                if lock is not None:
                    os.close(lock)
                claimed.append(path)
    for name in os.listdir(parent):
        if name.startswith("dead-"):
            Session(f"{parent}/{name}").remove()
    return claimed


def started_session(base: str | None = None) -> Session | None:
    """The living session of ``zfabric start``, the latest if there are several; None if there is none."""
    return next((session for session in reversed(find_sessions(base)) if session.kind() == STARTED), None)


# --- files ------------------------------------------------------------------------------------------------------------------------


def _replace(path: str, content: bytes) -> None:
    """Give the file this content at one stroke: readers see the old or the new, whole."""
    temporary = f"{path}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
    os.replace(temporary, path)


def _take_lock(path: str) -> int | None:
    """A descriptor that holds the lock file's lock; None if another process does, or there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def _locked_parent(parent: str) -> Iterator[None]:
    descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
