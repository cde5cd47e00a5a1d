"""Session directories: a cluster's files on one node, by which its processes find each other.

``<tmp>/zfabric-<uid>/s-<8 hex>/`` holds::

    lock           what earlier versions lock instead
    session.json   supervisor, configuration, resources, arena
    daemon         the incarnation of the daemon's socket, replaced atomically
    sockets/       by the incarnation that bound them; slots of workers
    logs/          output of daemon, template, workers and supervisor
    store/         the control store, unless it is elsewhere
    spill/         spilled objects, unless they are elsewhere
    failure        why the session ended by itself
    key            the key pair of a node of a cluster of several
    cluster.key    its copy of the cluster's key file; at the head, beside the head's own file
    membership     its number, once it has joined, and all nodes' addresses
    lease          when its lease ends, on the clock that also counts while the machine is suspended

All files belong to one user; a parent directory open to others is refused. Names are short: an ipc socket's path has less than 108 bytes.
With ``ZFABRIC_KEEP``, logs, store and ``session.json`` of the last ``KEPT_MAX`` sessions remain in ``kept-<8 hex>/``.

The supervisor holds a lock (``flock``) on the directory: a free lock is a dead session. The directory is made under its parent's lock, so
that no sweep finds it unlocked, and the supervisor inherits its lock. A sweep removes unlocked directories, except one with a new
``failure``, which programs have yet to read.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
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
"""The kernel permits 107 bytes, and ZeroMQ adds a prefix."""
_FIXED_PART = len("/zfabric-4294967295/s-00000000/sockets/") + 2 * INCARNATION_BYTES + len(SUFFIX)

EMBEDDED, RUN, FOREGROUND, STARTED = "embedded", "run", "foreground", "started"
"""Kinds of sessions. Programs find the last two; the first three end with their launcher."""
NOTIFIED = (RUN, FOREGROUND)
"""Kinds whose processes ignore SIGTERM: their launcher decides what follows."""
STOP = signal.SIGUSR1
"""Ends a daemon in order, or a session of ``NOTIFIED``. SIGTERM may come from Slurm or systemd, which send it to every process."""
KEEP_VARIABLE = "ZFABRIC_KEEP"
"""Unless "" or "0", logs and tables outlive sessions of this process."""
TCP = "tcp://"
LOOPBACK = "127.0.0.1"
"""The host of a lone node, or of a cluster on one machine."""
HEAD_SUFFIX = ".head"
"""Ends the name of the head's own key file."""
FILE_BYTES_MAX = 64 * 2**20
"""Most bytes read as a whole: more than the table of thousands of nodes."""
DAMAGED = (ValueError, KeyError, TypeError, RecursionError)
"""Raised when a damaged file is read."""
REASON_SECONDS = 10.0
"""Seconds for which an ended session's directory remains. Programs look once a second."""
LAST_FAILURE = "last-failure"
"""File beside the sessions: why the latest started node ended."""
KEPT = "kept-"
KEPT_MAX = 20
"""Ended sessions with files, the latest."""


def is_cluster_address(address: str) -> bool:
    """Whether this is a cluster node's address, and no directory."""
    return address.startswith(TCP)


class ClusterSettings(NamedTuple):
    """Settings of a node of several.

    The daemon listens at ``host`` and ``port`` (0: any). The ``head`` has the registry. ``address`` is the head's ("tcp://host:port"), or
    its session's directory if just started. Only ``key_file`` has the cluster's keys. ``name`` is for people; ``labels`` are (name, value)
    pairs; ``hash_seed`` is that of all workers.
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
    """The transfer agent's, on the same host (0: any)."""
    advertised: str = ""
    """The daemon's "host:port" for others, behind a router that translates addresses."""
    advertised_transfer: str = ""
    """The same of the transfer agent."""


class JoinedNode(NamedTuple):
    """A node's membership, for its next daemon.

    ``address`` is its own, ``addresses`` all nodes'. ``table`` is the last node table: a packed row in hex.
    """

    number: int
    address: str
    addresses: tuple[str, ...]
    table: str

    def node_table(self) -> m.NodeTable:
        """Unpack the node table."""
        return m.NodeTable(*unpack_row(bytes.fromhex(self.table)))


class Specification(NamedTuple):
    """What a launcher sends to its supervisor.

    ``directory`` is the session's. ``kind`` "started" ends when stopped, all others with the launcher. ``launcher`` (pid)
    and ``launcher_started`` (start ticks) name the launching process. ``labels`` are of a lone node. ``arena_size`` is in bytes (-1: as
    configured, 0: none). ``paths`` is the workers' ``sys.path`` (empty: the supervisor's). ``daemon`` and ``worker`` are
    "module:function"; ``imports`` are loaded before processes are forked.
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
    """Retain logs and tables."""
    transfer: str = ""
    """The agent's "host:port" (port 0: any); "" without other nodes."""
    warm: tuple[str, ...] = ()
    """Modules that the template imports, if it can."""

    def pack(self) -> bytes:
        """Pack into bytes."""
        # Paths that are not UTF-8 travel as Python represents them.
        packed: bytes = msgpack.packb((PROTOCOL_VERSION, *self), unicode_errors="surrogateescape")
        return packed

    @classmethod
    def unpack(cls, payload: bytes) -> Specification:
        """Unpack. Raises VersionMismatchError."""
        protocol, *fields = msgpack.unpackb(payload, use_list=False, unicode_errors="surrogateescape")
        if protocol != PROTOCOL_VERSION:
            raise VersionMismatchError(f"the launcher speaks protocol {protocol}, the supervisor {PROTOCOL_VERSION}")
        specification = cls(*fields)
        cluster = specification.cluster
        return specification if cluster is None else specification._replace(cluster=ClusterSettings(*cluster))


def new_incarnation() -> bytes:
    """A random incarnation: the first byte above zero (ZeroMQ), its highest bit for the control socket."""
    return bytes((1 + os.urandom(1)[0] % 127,)) + os.urandom(INCARNATION_BYTES - 1)


class Session:
    """A session directory. Only ``create`` makes files."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.logs = f"{directory}/logs"
        self.sockets = f"{directory}/sockets"
        self.key = f"{directory}/key"
        """The node's pair. The head's is beside ``cluster_key``."""
        self.cluster_key = f"{directory}/cluster.key"
        self._description: dict[str, Any] | None = None
        self._config: Config | None = None

    def __repr__(self) -> str:
        return f"Session({self.directory!r})"

    @classmethod
    def create(cls, base: str | None = None) -> tuple[Session, int]:
        """Create an empty session. Return it and its lock's descriptor."""
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
            fcntl.flock(lock, fcntl.LOCK_EX)  # Others hold it only to see whether the session lives.
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
        """Write ``session.json``."""
        self._description = None  # What was read before is old.
        _replace(f"{self.directory}/session.json", json.dumps(description).encode())

    def describe(self) -> dict[str, Any]:
        """Read ``session.json``. Raises FabricError if it is missing, VersionMismatchError if another version wrote it.

        Keys: protocol, python (its version), directory, kind, node (its id in hex), supervisor (pid), started (its start ticks), launcher
        (pid), created (seconds since the epoch), config (name → value), resources (name → amount), namespace, arena (path), arena_size,
        store, spill, transfer (the agent's endpoint or ""), cluster (``ClusterSettings`` by name, or None).
        """
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
        """Read ``session.json``, once: a session that was found is known after its end, too."""
        if self._description is None:
            self._description = _loaded(f"{self.directory}/session.json")
        return self._description

    def kind(self) -> str:
        """The kind of a session of any version; "" if unknown."""
        try:
            return str(self._written().get("kind", ""))
        except (OSError, *DAMAGED):
            return ""

    def outlives_programs(self) -> bool:
        """Whether ``zfabric start`` began this session, which programs join."""
        return self.kind() in (FOREGROUND, STARTED)

    def requested(self) -> tuple[str, str]:
        """The key file and name with which a node of several was started, of any version; ("", "") if unknown."""
        try:
            cluster = self._written()["cluster"]
            return str(cluster["key_file"]), str(cluster["name"])
        except (OSError, *DAMAGED):
            return "", ""

    def supervisor(self) -> tuple[int, int]:
        """The supervisor's pid and start ticks, of any version. Raises FabricError."""
        try:
            description = self._written()
            return int(description["supervisor"]), int(description["started"])
        except (OSError, *DAMAGED) as error:
            raise FabricError(f"{self.directory} is not a running session: {error}") from None

    def config(self) -> Config:
        """The session's configuration."""
        if self._config is None:
            self._config = Config.of(self.describe()["config"])
        return self._config

    # -- the cluster --

    def pair_of(self, settings: ClusterSettings) -> str:
        """The file with this node's own key pair."""
        return self.cluster_key + HEAD_SUFFIX if settings.head else self.key

    def cluster(self) -> ClusterSettings | None:
        """The settings of a node of several, or None."""
        found = self.describe()["cluster"]
        if found is None:
            return None
        return ClusterSettings(**{**found, "labels": tuple((name, value) for name, value in found["labels"])})

    def write_membership(self, membership: JoinedNode) -> None:
        """Record that the node has joined, for its next daemon and programs. A full disk is ignored."""
        with suppress(OSError):
            _replace(f"{self.directory}/membership", json.dumps(membership._asdict()).encode())

    def membership(self) -> JoinedNode | None:
        """The recorded membership, or None."""
        try:
            found = _loaded(f"{self.directory}/membership")
            return JoinedNode(found["number"], found["address"], tuple(found["addresses"]), found["table"])
        except (OSError, *DAMAGED):
            return None

    def write_lease(self, until: float) -> None:
        """Record the lease's end, in place, which also works on a disk that has filled up since."""
        with suppress(OSError):
            descriptor = os.open(f"{self.directory}/lease", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(struct.pack("d", until))

    def lease_until(self) -> float:
        """The recorded end of the lease; 0.0 is long ago."""
        with suppress(OSError, struct.error), open(f"{self.directory}/lease", "rb") as file:
            return float(struct.unpack("d", file.read())[0])
        return 0.0

    # -- the daemon's socket --

    def socket_path(self, incarnation: bytes) -> str:
        """An incarnation's ipc socket."""
        return f"{self.sockets}/{incarnation.hex()}"

    def publish_daemon(self, incarnation: bytes) -> None:
        """Show clients the daemon's incarnation, once its socket is bound.

        As the target of a symbolic link it needs no room on a full disk.
        """
        temporary = f"{self.directory}/daemon.{os.getpid()}"
        os.symlink(incarnation.hex(), temporary)
        os.replace(temporary, f"{self.directory}/daemon")

    def daemon(self) -> tuple[bytes, str] | None:
        """The published incarnation and its socket's path, or None."""
        try:
            incarnation = bytes.fromhex(os.readlink(f"{self.directory}/daemon"))
        except (OSError, ValueError):
            return None
        return incarnation, self.socket_path(incarnation)

    def remove_sockets(self, incarnation: bytes) -> None:
        """Delete a dead process's sockets."""
        for path in (self.socket_path(incarnation), path_of(self.sockets, incarnation)):
            with suppress(OSError):
                os.unlink(path)

    def sweep_sockets(self) -> None:
        """Delete dead processes' sockets, but not their slots, which are read later."""
        names = os.listdir(self.sockets)  # Listed first: without sockets bound meanwhile.
        with open("/proc/net/unix", "rb") as file:
            bound = {os.path.basename(line.split()[-1]) for line in file}
        for name in names:
            if os.fsencode(name.partition(".")[0]) not in bound and not name.endswith(".slot"):
                os.unlink(f"{self.sockets}/{name}")

    # -- the end --

    def fail(self, reason: str) -> None:
        """Record why the session ends by itself, in a directory made again if deleted. A full disk is ignored."""
        with suppress(OSError):
            for directory in (os.path.dirname(self.directory), self.directory):
                with suppress(FileExistsError):
                    os.mkdir(directory, 0o700)
            _replace(f"{self.directory}/failure", reason.encode(errors="replace"))

    def failure(self) -> str:
        """Why the session ended by itself, or ""."""
        try:
            return _content(f"{self.directory}/failure").decode(errors="replace")
        except OSError:
            return ""

    def leave_failed(self) -> None:
        """Leave the directory, without keys, for readers of ``failure``. Of a started node, record ``last_failure``."""
        self._remove_keys()
        with suppress(OSError, ValueError, FabricError):
            if self.outlives_programs():
                facts = {"session": self.identifier, "reason": self.failure(), "ended": time.time()}
                _replace(f"{os.path.dirname(self.directory)}/{LAST_FAILURE}", json.dumps(facts).encode(errors="replace"))

    def _remove_keys(self) -> None:
        for path in (self.key, self.cluster_key, self.cluster_key + HEAD_SUFFIX):
            with suppress(OSError):
                os.unlink(path)

    def alive(self) -> bool:
        """Whether a supervisor holds the session's lock."""
        try:
            os.close(_take_lock(self.directory, fcntl.LOCK_SH))  # Others may look at the same time.
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # It is held, or no descriptor is free: then nobody knows.
            return True
        return False

    def spill_path(self, directory: str) -> str:
        """Where objects are spilled: in ``directory``, by the session's name, or in the session."""
        name = os.path.basename(self.directory).removeprefix("dead-")
        return f"{directory}/zfabric-spill-{name}" if directory else f"{self.directory}/spill"

    def _note_end(self, directory: str) -> None:
        description = self._written()
        store = str(description["store"])
        if os.path.dirname(store) == description["directory"]:
            store = f"{directory}/store"
        self.write_description({**description, "directory": directory, "store": store, "ended": time.time()})

    def _kept(self) -> str:
        """The new path of files that are to remain, or ""."""
        try:
            found = bool(self._written().get("keep"))
        except (OSError, *DAMAGED):
            return ""
        parent, name = os.path.split(self.directory)
        return f"{parent}/{KEPT}{self.identifier}" if found and not name.startswith(KEPT) else ""

    def _spill_elsewhere(self) -> str:
        """This session's spill directory, if outside."""
        try:
            path = str(self._written()["spill"])
        except (OSError, *DAMAGED):
            return ""
        return path if path == self.spill_path(os.path.dirname(path)) else ""

    @property
    def identifier(self) -> str:
        """The directory's eight hexadecimal digits."""
        return os.path.basename(self.directory).rpartition("-")[2]

    def remove(self) -> OSError | None:
        """Delete a dead session, or rename it to be kept. Return why something is left."""
        if not os.path.lexists(self.directory):
            return None
        kept = self._kept()
        if kept:
            remove_tree(self._spill_elsewhere() or f"{self.directory}/spill")
            remove_tree(self.sockets)
            self._remove_keys()
            # This may be killed at any moment and repeated. So the record comes first: it can be written twice.
            with suppress(OSError, *DAMAGED):  # The disk is full, or another process has done this.
                self._note_end(kept)
            with suppress(OSError):  # The name is taken, or another process has done this. What is left is deleted.
                os.rename(self.directory, kept)
            for session in kept_sessions(os.path.dirname(os.path.dirname(kept)))[:-KEPT_MAX]:
                remove_tree(session.directory)
        elsewhere = self._spill_elsewhere()
        left = remove_tree(elsewhere) if elsewhere else None
        for _ in range(20):
            error = remove_tree(self.directory)
            if error is None or error.errno != errno.ENOTEMPTY:
                break
            time.sleep(0.005)  # A process that is being killed makes files. It is no child, so its end cannot be awaited.
        return error or left


# --- finding sessions -----------------------------------------------------------------------------------------------------------


def user_directory(base: str | None = None) -> str:
    """This user's directory of sessions, made if needed. Raises FabricError if others could use it.

    ``base`` is its parent: ``$TMPDIR`` if sockets' paths fit there (and are UTF-8), else ``/tmp``.
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
    """Why and when (seconds since the epoch) this user's latest started node ended, or None."""
    try:
        with open(f"{user_directory(base)}/{LAST_FAILURE}", "rb") as file:
            facts = json.loads(file.read())
        return str(facts["reason"]), float(facts["ended"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def forget_failure(base: str | None = None) -> None:
    """Forget ``last_failure``: a new node was started."""
    with suppress(OSError):
        os.unlink(f"{user_directory(base)}/{LAST_FAILURE}")


def where_looked(base: str | None = None) -> str:
    """Where sessions were looked for, for an error."""
    return f"looked in {user_directory(base)}, which TMPDIR decides: a cluster of another TMPDIR is found with that, or by its directory"


def find_sessions(base: str | None = None) -> list[Session]:
    """This user's living sessions, oldest first by ticks since boot: wall clocks may be set back."""
    parent = user_directory(base)
    found = {}
    for name in os.listdir(parent):
        session = Session(f"{parent}/{name}")
        if name.startswith("s-") and session.alive():
            with suppress(OSError, *DAMAGED):  # Not described yet, or just ended.
                found[session] = (int(session._written().get("started", 0)), os.stat(f"{session.directory}/session.json").st_mtime_ns)
    return sorted(found, key=found.__getitem__)


def kept_sessions(base: str | None = None) -> list[Session]:
    """This user's kept sessions, oldest first."""
    parent = user_directory(base)
    found = {}
    for name in os.listdir(parent):
        session = Session(f"{parent}/{name}")
        if name.startswith(KEPT):
            found[session] = 0.0  # Until the description is read, which may be damaged or just being removed.
            with suppress(OSError, *DAMAGED):
                found[session] = float(session._written()["created"])
    return sorted(found, key=found.__getitem__)


def sweep(base: str | None = None, report: Callable[[str, OSError], None] = lambda path, error: None) -> list[str]:
    """Delete this user's dead sessions; return their paths.

    ``report`` receives what could not be deleted, with the reason.
    """
    parent = user_directory(base)
    claimed = []
    with _locked_parent(parent):
        for name in os.listdir(parent):
            path = f"{parent}/{name}"
            if name.startswith("s-"):
                try:
                    lock = -1 if os.path.islink(path) else _take_lock(path, fcntl.LOCK_EX)
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
                    if error.errno != errno.ENOTEMPTY:  # One of this name is being deleted; the next sweep claims this one.
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
    """Whether programs may have yet to read why a session ended."""
    try:
        return abs(time.time() - os.stat(f"{directory}/failure").st_mtime) < REASON_SECONDS
    except OSError:
        return False


def started_session(base: str | None = None) -> Session | None:
    """The latest living session of ``zfabric start``, or its cluster's oldest node here. One that is joining or ending comes last."""
    # Read once: a node that ends meanwhile loses it.
    memberships = {session: session.membership() for session in find_sessions(base) if session.outlives_programs()}
    started = sorted(memberships, key=lambda session: memberships[session] is not None or _is_alone(session))
    latest = started[-1] if started else None
    membership = memberships[latest] if latest is not None else None
    if membership is None:
        return latest
    of_cluster = (session for session in started if (other := memberships[session]) is not None and other.address in membership.addresses)
    return next(of_cluster, latest)


def _is_alone(session: Session) -> bool:
    """Whether it is of no cluster of several nodes, or of another version."""
    try:
        return session.cluster() is None
    except VersionMismatchError:
        return True


# --- files ------------------------------------------------------------------------------------------------------------------------


def _content(path: str) -> bytes:
    """Read a regular file. Raises OSError for others, which may have no end, or no writer."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > FILE_BYTES_MAX:
            raise OSError(errno.EINVAL, "it is no file of a session", path)
        return file.read(FILE_BYTES_MAX)


def _loaded(path: str) -> dict[str, Any]:
    """Read a JSON file. Raises OSError or one of ``DAMAGED``."""
    found = json.loads(_content(path))
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged")
    return found


def _replace(path: str, content: bytes) -> None:
    temporary = f"{path}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(content)
    os.replace(temporary, path)


def _take_lock(directory: str, operation: int) -> int:
    """Lock a dead session; return the descriptor. Raises BlockingIOError if it lives."""
    descriptor = _lock(directory, os.O_DIRECTORY, operation)
    try:
        os.close(_lock(f"{directory}/lock", os.O_NOFOLLOW, operation))  # An earlier version's session has locked this file.
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # A link, or missing.
        pass
    return descriptor


def _lock(path: str, flags: int, operation: int) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
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
