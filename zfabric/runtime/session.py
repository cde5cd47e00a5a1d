"""Session directories: the files of a cluster on one node, by which its processes find each other.

``<tmp>/zfabric-<uid>/s-<8 hex>/`` holds::

    lock           what earlier versions lock in its place; to them this is a session that lives
    session.json   the description of the session: supervisor, configuration, resources, arena
    daemon         the incarnation of the daemon's socket, replaced atomically by each new daemon
    sockets/       ipc and datagram sockets, named by the incarnation of the process that bound them; slots of workers
    logs/          output of daemon, template, workers and supervisor
    store/         the control store, unless it is elsewhere
    spill/         spilled objects, unless they are elsewhere
    failure        why the session ended by itself, if it did
    key            the key pair of a node of a cluster of several
    cluster.key    such a node's copy of the cluster's key file; at the head, with the file beside it that only the head has
    membership     the number of such a node, once it has joined, and the addresses of all nodes
    lease          when the lease of such a node ends, on the clock that runs on while the machine is suspended

All files belong to one user. A parent directory that other users own or may enter is refused, so the files inside need no further
protection. The names are short, since the path of an ipc socket must be shorter than 108 bytes.

With ``ZFABRIC_KEEP`` set, logs, store and ``session.json`` remain after the end, as ``<tmp>/zfabric-<uid>/kept-<8 hex>/``, for the last
``KEPT_MAX`` such sessions.

The directory itself is locked (``flock``) by the supervisor as long as it lives: a free lock is a dead session, whatever is in it. It is
created locked, under a lock of the parent, so that no sweep finds it unlocked. The supervisor inherits the lock. A sweep removes
directories whose lock is free, without checking a pid; one with a new ``failure`` remains until its programs have read that.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import msgpack

from zfabric.adapters.datagrams import SUFFIX, path_of
from zfabric.adapters.file_trees import remove_tree
from zfabric.config import Config
from zfabric.exceptions import FabricError, VersionMismatchError
from zfabric.machines.common.tables import unpack_row
from zfabric.protocol import messages as m
from zfabric.protocol.ids import INCARNATION_BYTES
from zfabric.protocol.messages import PROTOCOL_VERSION
from zfabric.protocol.names import is_text

SOCKET_PATH_MAX = 100
"""Longest path of an ipc socket in bytes: the kernel permits 107, and ZeroMQ adds a prefix."""
_FIXED_PART = len("/zfabric-4294967295/s-00000000/sockets/") + 2 * INCARNATION_BYTES + len(SUFFIX)

EMBEDDED, STARTED = "embedded", "started"
KEEP_VARIABLE = "ZFABRIC_KEEP"
"""Environment variable: unless it is empty or "0", logs and tables of sessions that this process starts remain after their end."""
TCP = "tcp://"
LOOPBACK = "127.0.0.1"
"""Where a node is reached that is alone, or whose cluster is on one machine."""
"""Begins the address of a node of a cluster of several. All other addresses are session directories."""
HEAD_SUFFIX = ".head"
"""Ends the name of the key file that only the head of a cluster has."""
FILE_BYTES_MAX = 64 * 2**20
"""Largest file of a session that is read as a whole, in bytes: the node table of thousands of nodes has less."""
DAMAGED = (ValueError, KeyError, TypeError, RecursionError)
"""What files raise when they are read that no session has written so."""
REASON_SECONDS = 10.0
"""Seconds for which the directory of a session that has ended by itself remains. Its programs look for the reason once a second."""
LAST_FAILURE = "last-failure"
"""The file, beside the sessions, that says why the latest started node ended by itself."""
KEPT = "kept-"
KEPT_MAX = 20
"""Number of ended sessions whose files remain; the oldest are deleted first. Logs and events are bounded while a session runs."""


def is_cluster_address(address: str) -> bool:
    """Whether this is the address of a node of a cluster of several, and no session directory."""
    return address.startswith(TCP)


class ClusterSettings(NamedTuple):
    """Settings that make a session a node of a cluster of several.

    ``head`` says whether it is the head, which has the registry. The daemon listens at ``host`` and ``port`` (0: any free one).
    ``address`` is the head's ("tcp://host:port"), or the directory of its session if that has just been started; ``key_file`` is the file
    with the keys of the cluster, whose content is nowhere else.
    ``name`` is the node's, for people, and ``labels`` are (name, value) pairs. ``hash_seed`` is that of all workers of the cluster.
    """

    head: bool
    host: str
    port: int
    address: str
    key_file: str
    name: str
    labels: tuple[tuple[str, str], ...]
    hash_seed: str
    transfer_port: int = 0
    """Port of the same host on which the transfer agent listens (0: any free one)."""
    advertised: str = ""
    """Where other nodes reach the daemon, "host:port", if that is not where it listens: behind a router that translates addresses."""
    advertised_transfer: str = ""
    """Where other nodes reach the transfer agent, "host:port", if that is not where it listens."""


class JoinedNode(NamedTuple):
    """The membership of a node in a cluster, for its next daemon: its number, and the address at which others reach it.

    ``addresses`` are those of all nodes, as of the last node table; ``table`` is that table, packed as a row, in hexadecimal digits.
    """

    number: int
    address: str
    addresses: tuple[str, ...]
    table: str

    def node_table(self) -> m.NodeTable:
        """The last node table."""
        return m.NodeTable(*unpack_row(bytes.fromhex(self.table)))


class Specification(NamedTuple):
    """The specification that a launcher sends to the supervisor that it starts.

    ``directory`` is the session's. ``kind`` is "embedded" (ends with the launcher) or "started" (ends when it is stopped).
    ``launcher`` and ``launcher_started`` name the launching process. ``labels`` are those of a node without ``cluster``. ``arena_size`` is
    -1 for that of ``config``, 0 for no arena. ``paths`` is the workers' ``sys.path`` (empty: the supervisor's own). ``daemon`` and
    ``worker`` are entry points, "module:function"; ``imports`` are the modules loaded once, before processes are forked.
    """

    directory: str
    kind: str
    launcher: int
    launcher_started: int
    config: tuple[tuple[str, Any], ...]
    resources: tuple[tuple[str, float], ...]
    labels: tuple[tuple[str, str], ...]
    namespace: str
    store: str
    spill: str
    arena_size: int
    paths: tuple[str, ...]
    daemon: str
    worker: str
    imports: tuple[str, ...]
    cluster: ClusterSettings | None = None
    keep: bool = False
    """Whether logs and tables remain after the session's end."""
    transfer: str = ""
    """Where the transfer agent listens, "host:port" (port 0: any free one); empty if the node is in no cluster of several."""
    warm: tuple[str, ...] = ()
    """Modules that the template imports if it can, without an error if it cannot."""

    def pack(self) -> bytes:
        """Pack the specification into bytes."""
        # Paths whose names are not UTF-8 travel as Python represents them.
        packed: bytes = msgpack.packb((PROTOCOL_VERSION, *self), unicode_errors="surrogateescape")
        return packed

    @classmethod
    def unpack(cls, payload: bytes) -> Specification:
        """Unpack what ``pack`` packed. Raises VersionMismatchError if another version packed it."""
        protocol, *fields = msgpack.unpackb(payload, use_list=False, unicode_errors="surrogateescape")
        if protocol != PROTOCOL_VERSION:
            raise VersionMismatchError(f"the launcher speaks protocol {protocol}, the supervisor {PROTOCOL_VERSION}")
        specification = cls(*fields)
        cluster = specification.cluster
        return specification if cluster is None else specification._replace(cluster=ClusterSettings(*cluster))


def new_incarnation() -> bytes:
    """Make a random incarnation. Its first byte is not zero, as ZeroMQ requires, and its highest bit is free for the control socket."""
    return bytes((1 + os.urandom(1)[0] % 127,)) + os.urandom(INCARNATION_BYTES - 1)


class Session:
    """One session directory. The constructor makes no files; ``create`` does."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.logs = f"{directory}/logs"
        self.sockets = f"{directory}/sockets"
        self.key = f"{directory}/key"
        """Path of the key pair of a node of a cluster of several. The head has its pair from ``cluster_key`` instead."""
        self.cluster_key = f"{directory}/cluster.key"
        """Path of such a node's copy of the cluster's key file."""
        self._description: dict[str, Any] | None = None
        self._config: Config | None = None

    def __repr__(self) -> str:
        return f"Session({self.directory!r})"

    @classmethod
    def create(cls, base: str | None = None) -> tuple[Session, int]:
        """Create an empty session. Return it with the descriptor that holds its lock."""
        parent = user_directory(base)
        with _locked_parent(parent):
            while True:
                session = cls(f"{parent}/s-{os.urandom(4).hex()}")
                try:
                    os.mkdir(session.directory, 0o700)
                    break
                except FileExistsError:
                    continue
            lock = os.open(session.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)  # Whoever has it looks whether the session lives, and releases it at once.
        try:
            os.symlink(".", f"{session.directory}/lock")
            for name in ("logs", "sockets", "store", "spill"):
                os.mkdir(f"{session.directory}/{name}", 0o700)
        except BaseException:  # A full disk, or Ctrl-C: nobody else would remove it.
            os.close(lock)
            session.remove()
            raise
        return session, lock

    # -- the description --

    def write_description(self, description: dict[str, Any]) -> None:
        """Write ``session.json``. The supervisor does so, once."""
        _replace(f"{self.directory}/session.json", json.dumps(description).encode())

    def describe(self) -> dict[str, Any]:
        """Return ``session.json``. Raises FabricError if it has not been written, VersionMismatchError if another version wrote it.

        Keys: protocol, python (its version), directory, kind, node (its id in hex), supervisor (pid), started (its start ticks), launcher
        (pid), created (seconds since the epoch), config (name → value), resources (name → amount), namespace, arena (path), arena_size,
        store, spill, transfer (endpoint of the transfer agent, or empty), cluster (``ClusterSettings`` by name, or None).
        """
        if self._description is None:
            self._description = self._read()
        return self._description

    def _read(self) -> dict[str, Any]:
        try:
            description = self._written()
        except (OSError, *DAMAGED) as error:
            raise FabricError(f"{self.directory} is not a running session: {error}") from None
        if description.get("protocol") != PROTOCOL_VERSION:
            raise VersionMismatchError(
                f"the cluster in {self.directory} was started by another version of zfabric (protocol {description.get('protocol')}, this "
                f'has {PROTOCOL_VERSION}): end it with `zfabric stop --address {self.directory}`, or pass address="local" for one of '
                "this program's own"
            )
        return description

    def _written(self) -> dict[str, Any]:
        return _loaded(f"{self.directory}/session.json")

    def kind(self) -> str:
        """Return "embedded" or "started", for sessions of any version; empty if it is missing or not described yet."""
        try:
            return str(self._written().get("kind", ""))
        except (OSError, *DAMAGED):
            return ""

    def supervisor(self) -> tuple[int, int]:
        """Return the supervisor's pid and start ticks, for sessions of any version. Raises FabricError if they are not written yet."""
        try:
            description = self._written()
            return int(description["supervisor"]), int(description["started"])
        except (OSError, *DAMAGED) as error:
            raise FabricError(f"{self.directory} is not a running session: {error}") from None

    def config(self) -> Config:
        """Return the session's configuration."""
        if self._config is None:
            self._config = Config.of(self.describe()["config"])
        return self._config

    # -- the cluster --

    def pair_of(self, settings: ClusterSettings) -> str:
        """Return the path of the file with this node's own key pair."""
        return self.cluster_key + HEAD_SUFFIX if settings.head else self.key

    def cluster(self) -> ClusterSettings | None:
        """Return what makes this session a node of a cluster of several; None if it is none."""
        found = self.describe()["cluster"]
        if found is None:
            return None
        return ClusterSettings(**{**found, "labels": tuple((name, value) for name, value in found["labels"])})

    def write_membership(self, membership: JoinedNode) -> None:
        """Record that the node has joined, for its next daemon and for programs that look for their node. A full disk is ignored."""
        with suppress(OSError):
            _replace(f"{self.directory}/membership", json.dumps(membership._asdict()).encode())

    def membership(self) -> JoinedNode | None:
        """Return what ``write_membership`` recorded; None if the node has not joined a cluster."""
        try:
            found = _loaded(f"{self.directory}/membership")
            return JoinedNode(found["number"], found["address"], tuple(found["addresses"]), found["table"])
        except (OSError, *DAMAGED):
            return None

    def write_lease(self, until: float) -> None:
        """Record when the node's lease ends, for its next daemon. It is written in place: a disk that is full since takes it, too."""
        with suppress(OSError):
            descriptor = os.open(f"{self.directory}/lease", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(struct.pack("d", until))

    def lease_until(self) -> float:
        """Return what ``write_lease`` recorded; 0.0, which is long ago, if there is nothing."""
        with suppress(OSError, struct.error), open(f"{self.directory}/lease", "rb") as file:
            return float(struct.unpack("d", file.read())[0])
        return 0.0

    # -- the daemon's socket --

    def socket_path(self, incarnation: bytes) -> str:
        """Return the path of the ipc socket of an incarnation."""
        return f"{self.sockets}/{incarnation.hex()}"

    def publish_daemon(self, incarnation: bytes) -> None:
        """Publish the daemon's incarnation to clients. Called once its socket is bound.

        The incarnation is the target of a symbolic link, which needs no room on a full disk.
        """
        temporary = f"{self.directory}/daemon.{os.getpid()}"
        os.symlink(incarnation.hex(), temporary)
        os.replace(temporary, f"{self.directory}/daemon")

    def daemon(self) -> tuple[bytes, str] | None:
        """Return the daemon's incarnation and the path of its socket; None if no daemon is published yet."""
        try:
            incarnation = bytes.fromhex(os.readlink(f"{self.directory}/daemon"))
        except (OSError, ValueError):
            return None
        return incarnation, self.socket_path(incarnation)

    def remove_sockets(self, incarnation: bytes) -> None:
        """Delete the sockets of a process that has died."""
        for path in (self.socket_path(incarnation), path_of(self.sockets, incarnation)):
            with suppress(OSError):
                os.unlink(path)

    def sweep_sockets(self) -> None:
        """Delete the sockets of dead processes, for a new daemon. Slots remain: they are read later."""
        names = os.listdir(self.sockets)  # Listed first, so that a socket bound meanwhile is not in the list.
        with open("/proc/net/unix", "rb") as file:
            bound = {os.path.basename(line.split()[-1]) for line in file}
        for name in names:
            if os.fsencode(name.partition(".")[0]) not in bound and not name.endswith(".slot"):
                os.unlink(f"{self.sockets}/{name}")

    # -- the end --

    def fail(self, reason: str) -> None:
        """Record why the session ends by itself, unless the disk is full. If its directory was deleted, it is made again for that."""
        with suppress(OSError):
            for directory in (os.path.dirname(self.directory), self.directory):
                with suppress(FileExistsError):
                    os.mkdir(directory, 0o700)
            _replace(f"{self.directory}/failure", reason.encode(errors="replace"))

    def failure(self) -> str:
        """Return why the session ended by itself; empty if it did not."""
        try:
            return _content(f"{self.directory}/failure").decode(errors="replace")
        except OSError:
            return ""

    def leave_failed(self) -> None:
        """Leave the directory for programs that read ``failure``, without keys; and, of a started node, the reason for ``last_failure``."""
        self._remove_keys()
        with suppress(OSError, ValueError, FabricError):
            if self.kind() == STARTED:
                facts = {"session": self.identifier, "reason": self.failure(), "ended": time.time()}
                _replace(f"{os.path.dirname(self.directory)}/{LAST_FAILURE}", json.dumps(facts).encode(errors="replace"))

    def _remove_keys(self) -> None:
        for path in (self.key, self.cluster_key, self.cluster_key + HEAD_SUFFIX):
            with suppress(OSError):
                os.unlink(path)

    def alive(self) -> bool:
        """Whether a supervisor holds the session's lock."""
        try:
            os.close(_take_lock(self.directory))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # Another process has it, or this one may open no further file: then nobody knows.
            return True
        return False

    def spill_path(self, directory: str) -> str:
        """Return the directory for spilled objects: one for this session in ``directory``, or if that is empty, in the session's."""
        name = os.path.basename(self.directory).removeprefix("dead-")
        return f"{directory}/zfabric-spill-{name}" if directory else f"{self.directory}/spill"

    def _note_end(self, directory: str) -> None:
        """Record in ``session.json`` the end of the session, and the name that its directory is about to have."""
        description = self._written()
        store = str(description["store"])
        if os.path.dirname(store) == description["directory"]:
            store = f"{directory}/store"
        self.write_description({**description, "directory": directory, "store": store, "ended": time.time()})

    def _kept(self) -> str:
        """Return the new path if the files are to remain; empty if they are not, or were renamed already."""
        try:
            found = bool(self._written().get("keep"))
        except (OSError, *DAMAGED):
            return ""
        parent, name = os.path.split(self.directory)
        return f"{parent}/{KEPT}{self.identifier}" if found and not name.startswith(KEPT) else ""

    def _spill_elsewhere(self) -> str:
        """Return the directory of spilled objects, if it belongs to this session and is not inside its directory."""
        try:
            path = str(self._written()["spill"])
        except (OSError, *DAMAGED):
            return ""
        return path if path == self.spill_path(os.path.dirname(path)) else ""

    @property
    def identifier(self) -> str:
        """The eight hexadecimal digits in the name of the directory."""
        return os.path.basename(self.directory).rpartition("-")[2]

    def remove(self) -> OSError | None:
        """Delete the directory, or rename it if it is to be kept. The session must be dead. Return why something is left, if it is."""
        if not os.path.lexists(self.directory):
            return None
        kept = self._kept()
        if kept:
            remove_tree(self._spill_elsewhere() or f"{self.directory}/spill")
            remove_tree(self.sockets)
            self._remove_keys()
            # Whoever does this may be killed at any moment, and the next one does it again: first the record, which can be written twice.
            with suppress(OSError, *DAMAGED):  # The disk is full, or another process has done this.
                self._note_end(kept)
            with suppress(OSError):  # Its name is taken, or another process has done this. What is still here is deleted.
                os.rename(self.directory, kept)
            for session in kept_sessions(os.path.dirname(os.path.dirname(kept)))[:-KEPT_MAX]:
                remove_tree(session.directory)
        elsewhere = self._spill_elsewhere()
        left = remove_tree(elsewhere) if elsewhere else None
        for _ in range(20):
            error = remove_tree(self.directory)
            if error is None or error.errno != errno.ENOTEMPTY:
                break
            time.sleep(0.005)  # A process makes files that is being killed. It is no child of this one, so this cannot wait for its end.
        return error or left


# --- finding sessions -----------------------------------------------------------------------------------------------------------


def user_directory(base: str | None = None) -> str:
    """Return the directory of this user's sessions; make it if it is missing. Raises FabricError if other users could use it.

    ``base`` is its parent: by default ``$TMPDIR`` if the paths of sockets fit below it (and are UTF-8), else ``/tmp``.
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
    except OSError as error:
        raise FabricError(f"the directory of your clusters, {path}, cannot be made: {error.strerror}; set TMPDIR to another one") from None
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


def last_failure(base: str | None = None) -> tuple[str, float] | None:
    """Return why the latest started node of this user ended by itself, and when (seconds since the epoch); None if none did."""
    try:
        with open(f"{user_directory(base)}/{LAST_FAILURE}", "rb") as file:
            facts = json.loads(file.read())
        return str(facts["reason"]), float(facts["ended"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget_failure(base: str | None = None) -> None:
    """Forget what ``last_failure`` returns: a new node has been started."""
    with suppress(OSError):
        os.unlink(f"{user_directory(base)}/{LAST_FAILURE}")


def where_looked(base: str | None = None) -> str:
    """Say, for an error, where sessions were looked for."""
    return f"looked in {user_directory(base)}, which TMPDIR decides: a cluster of another TMPDIR is found with that, or by its directory"


def find_sessions(base: str | None = None) -> list[Session]:
    """List this user's living sessions, oldest first. Their age is in ticks since boot: the wall clock may be set back."""
    parent = user_directory(base)
    found = {}
    for name in os.listdir(parent):
        session = Session(f"{parent}/{name}")
        if name.startswith("s-") and session.alive():
            with suppress(OSError, *DAMAGED):  # It is not described yet, or has just ended.
                found[session] = (int(session._written().get("started", 0)), os.stat(f"{session.directory}/session.json").st_mtime_ns)
    return sorted(found, key=found.__getitem__)


def kept_sessions(base: str | None = None) -> list[Session]:
    """List this user's ended sessions whose files remain, in the order in which they began."""
    parent = user_directory(base)
    found = {}
    for name in os.listdir(parent):
        session = Session(f"{parent}/{name}")
        if name.startswith(KEPT):
            found[session] = 0.0  # Until the description shows it, which may be damaged, or just being removed.
            with suppress(OSError, *DAMAGED):
                found[session] = float(session._written()["created"])
    return sorted(found, key=found.__getitem__)


def sweep(base: str | None = None, report: Callable[[str, OSError], None] = lambda path, error: None) -> list[str]:
    """Delete the directories of this user's dead sessions; return their paths.

    What cannot be deleted is passed to ``report`` with the reason, and stays. The next sweep tries again.
    """
    parent = user_directory(base)
    claimed = []
    with _locked_parent(parent):
        for name in os.listdir(parent):
            path = f"{parent}/{name}"
            if name.startswith("s-"):
                try:
                    lock = -1 if os.path.islink(path) else _take_lock(path)
                except NotADirectoryError:  # It is no session at all.
                    lock = -1
                except OSError:  # It lives, or another sweep has it.
                    continue
                try:
                    if _has_just_failed(path):
                        continue
                    os.rename(path, f"{parent}/dead-{name}")  # Deleting may take long, and then needs no lock.
                    claimed.append(path)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:  # One of this name is being deleted. The next sweep claims this one.
                        report(path, error)
                finally:
                    if lock >= 0:
                        os.close(lock)
    for name in os.listdir(parent):
        if name.startswith("dead-"):
            left = Session(f"{parent}/{name}").remove()
            if left is not None:
                report(f"{parent}/{name}", left)
    return claimed


def _has_just_failed(directory: str) -> bool:
    """Whether a session has ended by itself so lately that its programs may not have read the reason."""
    try:
        return abs(time.time() - os.stat(f"{directory}/failure").st_mtime) < REASON_SECONDS
    except OSError:
        return False


def started_session(base: str | None = None) -> Session | None:
    """Return the latest living session of ``zfabric start``, or the oldest node here of its cluster; None if there is none."""
    started = [session for session in find_sessions(base) if session.kind() == STARTED]
    latest = started[-1] if started else None
    membership = latest.membership() if latest is not None else None
    if membership is None:
        return latest
    of_cluster = (session for session in started if (other := session.membership()) is not None and other.address in membership.addresses)
    return next(of_cluster, latest)


# --- files ------------------------------------------------------------------------------------------------------------------------


def _content(path: str) -> bytes:
    """Return the content of a file. Raises OSError if it is no regular file: another one may have no end, or no writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES_MAX:
            raise OSError(errno.EINVAL, "it is no file of a session", path)
        return file.read(FILE_BYTES_MAX)


def _loaded(path: str) -> dict[str, Any]:
    """Return the content of a file of JSON. Raises OSError or one of ``DAMAGED``."""
    found = json.loads(_content(path))
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged")
    return found


def _replace(path: str, content: bytes) -> None:
    """Replace a file's content atomically."""
    temporary = f"{path}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
    os.replace(temporary, path)


def _take_lock(directory: str) -> int:
    """Lock the directory of a dead session, and return the descriptor. Raises BlockingIOError if the session lives."""
    descriptor = _lock(directory, os.O_DIRECTORY)
    try:
        os.close(_lock(f"{directory}/lock", os.O_NOFOLLOW))  # A session of an earlier version has locked this file.
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # It is a link, or is missing.
        pass
    return descriptor


def _lock(path: str, flags: int) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _locked_parent(parent: str) -> Iterator[None]:
    descriptor = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
