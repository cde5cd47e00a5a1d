"""Starts and ends a session, for ``init()`` (embedded), ``zfabric run``, and ``zfabric start`` (lasting, or with ``--block`` foreground).

In a cold process the first result must arrive within 400 ms of ``init()``. So a launch makes the session's directory, spawns the
supervisor, and pipes the specification to it: other users could read ``argv`` and the environment. Meanwhile the client loads its modules,
then looks for the daemon. The pipe stays open as an embedded session's lifeline, whose end the supervisor detects, however the driver ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from zfabric.adapters import processes
from zfabric.config import Config
from zfabric.exceptions import ConfigError, FabricError, OptionError, OutOfDiskError
from zfabric.protocol.names import check_length
from zfabric.runtime.logs import tail
from zfabric.runtime.session import (
    EMBEDDED,
    KEEP_VARIABLE,
    LOOPBACK,
    NOTIFIED,
    STARTED,
    STOP,
    ClusterSettings,
    Session,
    Specification,
    is_cluster_address,
    sweep,
)

DAEMON_ENTRY = "zfabric.runtime.daemon:run"
WORKER_ENTRY = "zfabric.runtime.worker:run"
IMPORTS = ("zmq", "msgpack", "lmdb", "cloudpickle", "zfabric.runtime.daemon", "zfabric.runtime.worker")
"""Modules loaded once per node."""
IMPORTS_OF_CLUSTERS = ("zfabric.runtime.cluster_connection", "zfabric.runtime.transfer")
"""Further modules of clusters."""

FILES_MIN = 128
"""Fewest open files: the daemon has one or two per process of the cluster."""

THREADS_MIN = 64
"""Fewest threads: each process has four or five."""

STORE_BYTES_MIN = 2 * 2**20
"""Sizes are multiples of it (``supervisor.ARENA_ALIGNMENT``)."""

ROOM_BYTES_MIN = 256 * 2**10
"""Room on disk: 64 KiB at the start, then logs and control store grow."""

NEW_FILES_MIN = 64
"""Files: about thirty at the start, three per worker."""

_FULL = (errno.ENOSPC, errno.EDQUOT)

EXIT_SECONDS = 1.0
"""Seconds for a supervisor to exit after it has released its lock."""

_LIFELINE, _LOCK = 0, 3  # As in zfabric.runtime.supervisor, which is not imported here.
_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from zfabric.runtime.supervisor import main; main()"


class Launched:
    """A session that this process started. Inert in a forked child."""

    def __init__(self, session: Session, kind: str, pid: int, lifeline: int, keep: bool = False) -> None:
        self.session = session
        self.keep = keep
        self.kind = kind
        self.pid = pid
        self._lifeline = lifeline
        self._pidfd = os.pidfd_open(pid)
        self._owner = os.getpid()
        self._status: int | None = None

    def alive(self) -> bool:
        """Whether the supervisor runs."""
        return self._pidfd >= 0 and not processes.wait_pidfd(self._pidfd, 0.0)

    def failure(self) -> str:
        """Why the session ended by itself; "" while it runs.

        Once the supervisor has released its lock, waits for its exit.
        """
        if self.alive() and (self.session.alive() or not processes.wait_pidfd(self._pidfd, EXIT_SECONDS)):
            return ""
        return self.session.failure() or tail(f"{self.session.logs}/supervisor.err") or self._unwritten_failure()

    def _unwritten_failure(self) -> str:
        """Why the session ended, if nobody could write that."""
        try:
            _check_room(self.session.directory)
        except FabricError as error:
            return str(error)
        return "the supervisor was killed"

    def detach(self) -> None:
        """Leave a started session running."""
        self._release()

    def close(self, timeout: float = 5.0) -> None:
        """End the session with its processes, memory and files; after ``timeout`` seconds, kill it.

        Returns when nothing is left. A second call does nothing.
        """
        if self._pidfd < 0 or os.getpid() != self._owner:
            return
        self.request_end()
        if self.kind == STARTED:
            processes.signal_pidfd(self._pidfd, signal.SIGTERM)
        if not processes.wait_pidfd(self._pidfd, timeout):
            processes.signal_pidfd(self._pidfd, signal.SIGKILL)
            processes.wait_pidfd(self._pidfd, 1.0)
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:  # The program reaps its children itself.
            pass
        self.session.remove()
        self._release()
        if self.keep and sys.stderr is not None:
            with contextlib.suppress(OSError, ValueError):  # It may be closed.
                print(
                    f"zfabric: logs and tables are kept; `zfabric sessions` lists them (session {self.session.identifier})", file=sys.stderr
                )

    def request_end(self) -> None:
        """Close the lifeline, which ends sessions of all kinds but "started"."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _release(self) -> None:
        self.request_end()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def launch(
    *,
    kind: str = EMBEDDED,
    config: Config | None = None,
    resources: Mapping[str, float] | None = None,
    labels: Sequence[tuple[str, str]] = (),
    namespace: str = "",
    store: str = "",
    spill: str = "",
    arena_size: int = -1,
    paths: Sequence[str] | None = None,
    base: str | None = None,
    cluster: ClusterSettings | None = None,
    daemon: str = DAEMON_ENTRY,
    worker: str = WORKER_ENTRY,
    imports: Sequence[str] = IMPORTS,
    transfer: str = "",
    warm: Sequence[str] = (),
) -> Launched:
    """Start a session and return at once. Its daemon is ready when ``Session.daemon()`` names it; ``failure()`` describes a failed start.

    ``kind``, ``labels``, ``arena_size``, ``transfer`` and ``warm`` are as in ``Specification``, where this process is the launcher.
    ``paths`` is the workers' ``sys.path``, by default this process's; ``base`` is for temporary files. With ``cluster`` the session is a
    node of one; a head without a key file gets one. ``ZFABRIC_KEEP`` in the environment retains logs and tables.

    Raises FabricError if the session cannot be made, ConfigError if ``config`` names a missing directory or more than the machine has, and
    what ``runtime.cluster`` raises.
    """
    settings = _checked(config or Config(), arena_size)
    _check_length("the namespace of programs", namespace)
    for each in (*labels, *(cluster.labels if cluster is not None else ())):
        for text in each:
            _check_length("a label of a node, its name or its value,", text)
    if cluster is not None:
        cluster = _checked_cluster(cluster, resources or {})
    if not sys.executable:
        raise FabricError("sys.executable is not known, so no further Python process can be started")
    session, lock = _created(base)
    try:
        _check_room(session.directory)
        if cluster is not None:
            cluster = _with_keys(cluster, session)
    except BaseException:  # Ctrl-C too: nobody else would remove the session.
        os.close(lock)
        session.remove()
        raise
    specification = Specification(
        directory=session.directory,
        kind=kind,
        launcher=os.getpid(),
        launcher_started=processes.start_ticks(os.getpid()),
        config=settings.pairs(),
        resources=tuple((resources or {}).items()),
        labels=tuple(labels),
        namespace=namespace,
        store=store,
        spill=spill,
        arena_size=arena_size,
        paths=tuple(paths if paths is not None else processes.module_paths()),
        daemon=daemon,
        worker=worker,
        imports=(*imports, *(IMPORTS_OF_CLUSTERS if cluster is not None else ())),
        cluster=cluster,
        keep=os.environ.get(KEEP_VARIABLE, "0") not in ("", "0"),
        transfer=transfer,
        warm=tuple(warm),
    )
    lifeline = -1
    try:
        pid, lifeline = _spawn(session, lock, cluster.hash_seed if cluster is not None else "")
        launched = Launched(session, kind, pid, lifeline, specification.keep)
    except OSError as error:
        if lifeline >= 0:
            os.close(lifeline)
        session.remove()
        raise FabricError(f"{sys.executable} cannot be started: {error}") from error
    finally:
        os.close(lock)
    payload = specification.pack()
    try:
        _write(lifeline, len(payload).to_bytes(4, "big") + payload)
    except BrokenPipeError:  # It died at once; ``failure`` describes why.
        pass
    if kind == STARTED:
        launched.request_end()
    with contextlib.suppress(OSError):  # Leftovers of others do not concern this session.
        sweep(base, _report_leftover)
    return launched


def _report_leftover(path: str, error: OSError) -> None:
    if sys.stderr is not None:
        with contextlib.suppress(OSError, ValueError):  # It may be closed.
            print(f"zfabric: {path}, left by an ended cluster, cannot be removed: {error.strerror}; remove it yourself", file=sys.stderr)


def _created(base: str | None) -> tuple[Session, int]:
    try:
        return Session.create(base)
    except OSError as error:
        if error.errno in _FULL:
            raise _no_room(os.path.dirname(error.filename)) from None
        raise FabricError(f"the directory of a session cannot be made: {error}") from error


def _check_room(directory: str) -> None:
    """Raise OutOfDiskError if the disk is so full that processes could not write why they end."""
    found = os.statvfs(directory)
    if found.f_files and found.f_favail < NEW_FILES_MIN:
        raise _no_room(os.path.dirname(directory))
    path = f"{directory}/room"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, ROOM_BYTES_MIN)
        finally:
            os.close(descriptor)
            os.unlink(path)
    except OSError as error:
        if error.errno in _FULL:
            raise _no_room(os.path.dirname(directory)) from None  # Other errors recur where they have their own text.


def _no_room(directory: str) -> OutOfDiskError:
    return OutOfDiskError(
        f"the disk of {directory} is full: a cluster needs {ROOM_BYTES_MIN // 1024} KiB and {NEW_FILES_MIN} new files there to begin with; "
        "make room, or set TMPDIR to a directory on another disk"
    )


def _checked(config: Config, arena_size: int) -> Config:
    """Make paths absolute. Raises ConfigError for what would fail later elsewhere."""
    files = processes.open_files_max()
    if files < FILES_MIN:
        raise ConfigError(
            f"a process may open only {files} files here, and those of a cluster need {FILES_MIN} or more; run: ulimit -n 1024"
        )
    threads = processes.threads_max()
    if threads < THREADS_MIN:
        raise ConfigError(
            f"this user may have only {threads} processes and threads, and the smallest cluster needs {THREADS_MIN}; run: ulimit -u 1024"
        )
    memory = processes.memory_total()
    size = config.object_store_memory if arena_size < 0 else arena_size
    if 0 < size < STORE_BYTES_MIN:
        raise ConfigError(
            f"object_store_memory is {size} bytes, and a store has at least {STORE_BYTES_MIN} (2 * 2**20); "
            "leave it out for a share of the memory"
        )
    if size > memory:
        raise ConfigError(f"object_store_memory is {size / 2**30:,.1f} GiB, and this machine has {memory / 2**30:,.1f} GiB of memory")
    found = {}
    for name in ("object_store_directory", "spill_directory"):
        path = getattr(config, name)
        if path:
            found[name] = path = os.path.abspath(os.path.expanduser(path))
            if not os.path.isdir(path):
                raise ConfigError(f"config {name!r} is not a directory: {path}")
            if not os.access(path, os.W_OK | os.X_OK):
                raise ConfigError(f"config {name!r} cannot be written to: {path}")
    return replace(config, **found)


def _check_length(what: str, text: str) -> None:
    try:
        check_length(what, text)
    except OptionError as error:
        raise ConfigError(str(error)) from None


def _checked_cluster(cluster: ClusterSettings, resources: Mapping[str, float]) -> ClusterSettings:
    """Fill in what is empty. Raises ConfigError or ConnectionLostError for what would fail later."""
    from zfabric.runtime import cluster as joining

    _check_length("the name of a node", cluster.name)
    joining.check_facts(cluster, resources)
    remote = not cluster.head and is_cluster_address(cluster.address)
    local = joining.reach(cluster.address) if remote else LOOPBACK
    cluster = cluster._replace(host=cluster.host or local)
    for port in (cluster.port, cluster.transfer_port):
        joining.check_free(cluster.host, port)
    return cluster


def _with_keys(cluster: ClusterSettings, session: Session) -> ClusterSettings:
    """Copy or make the session's keys, which give the hash seed unless ``PYTHONHASHSEED`` is set."""
    from zfabric.runtime import cluster as joining  # ZeroMQ is loaded with it.

    if cluster.key_file:
        joining.copy_keys(cluster.key_file, session, cluster.head)
    else:
        joining.make_keys(session.cluster_key)
    return cluster._replace(key_file=cluster.key_file or session.cluster_key, hash_seed=joining.hash_seed(session))


def _spawn(session: Session, lock: int, hash_seed: str) -> tuple[int, int]:
    """Start the supervisor. Return its pid and its lifeline."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed} if hash_seed else os.environ
    ends = os.pipe2(os.O_CLOEXEC)
    # Above all targets, so that no duplication overwrites a needed descriptor.
    sources = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10) for descriptor in (ends[0], lock)]
    os.close(ends[0])
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-P", "-c", _PROGRAM, _package_parent(), session.directory],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, sources[0], _LIFELINE),
                (os.POSIX_SPAWN_OPEN, 1, f"{session.logs}/supervisor.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, sources[1], _LOCK),
            ],
            setsid=True,  # Ctrl-C must only reach the driver.
            setsigmask=[],
            setsigdef=[signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE],
        )
    except BaseException:  # Ctrl-C, too: nothing else would close this end.
        os.close(ends[1])
        raise
    finally:
        for source in sources:
            os.close(source)
    return pid, ends[1]


def _package_parent() -> str:
    """The directory of ``zfabric``, which a fresh interpreter may not search."""
    return os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def stop(session: Session, timeout: float = 10.0) -> bool:
    """End this user's session, of any version. Return False if it was dead."""
    pidfd = processes.open_pidfd(*session.supervisor()) if session.alive() else None
    if pidfd is None:
        return False
    try:
        processes.signal_pidfd(pidfd, STOP if session.kind() in NOTIFIED else signal.SIGTERM)
        if not processes.wait_pidfd(pidfd, timeout):
            processes.signal_pidfd(pidfd, signal.SIGKILL)
            processes.wait_pidfd(pidfd, 1.0)
    finally:
        os.close(pidfd)
    session.remove()
    return True
