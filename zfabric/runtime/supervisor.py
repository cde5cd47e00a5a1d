"""The supervisor: the parent of every process of a node. It starts, watches, reaps and restarts them, and has no tasks.

It must not fail, so it does little: one thread, one ``epoll``, no ZeroMQ, no LMDB, no user code. It imports what daemon, template and
workers need, freezes its heap, and forks them, which share that memory. Only a process with one thread can fork safely; each fork checks
that.

Lifetimes:

* everything on the node dies with the supervisor (``PR_SET_PDEATHSIG``);
* workers and template outlive the daemon; a new daemon gets the list of workers;
* an embedded session ends with the lifeline pipe or the launcher itself (a forked process may hold the pipe), a started one at SIGTERM;
* so do a foreground session and one of ``zfabric run``; at SIGTERM, which all their processes may receive, the launcher decides;
* processes that workers leave behind are inherited (subreaper), and end with the session.

A dead child's group is killed before the child is reaped: a zombie's pid and group id are nobody else's.

``zfabric.runtime.launch`` starts ``main`` with the lifeline, which carries the specification, as descriptor 0, and the session's locked
directory as descriptor 3.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from zfabric.adapters import processes, termination
from zfabric.config import Config
from zfabric.exceptions import FabricError
from zfabric.machines.supervisor import RestartPolicy
from zfabric.protocol.messages import PROTOCOL_VERSION
from zfabric.protocol.options import MEMORY
from zfabric.runtime import template, worker_process
from zfabric.runtime.logs import log, log_path, tail
from zfabric.runtime.session import FOREGROUND, NOTIFIED, RUN, STARTED, STOP, TCP, Session, Specification, new_incarnation
from zfabric.runtime.session_files import LOOK_SECONDS, SessionFiles
from zfabric.runtime.supervision import ENDING, Channel

LIFELINE, LOCK = 0, 3
"""Inherited descriptors."""
ORDERLY_SECONDS = 1.0
"""Seconds for the daemon to close its store."""
AGENT_BACKLOG = 128
"""Connections that wait while there is no transfer agent."""
ARENA_ALIGNMENT = 2 * 2**20
ARENA_SHARE = 0.3
ARENA_BYTES_MIN = 64 * 2**20
RESERVABLE_SHARE = 0.7
"""Share of the memory beside the arena. The rest is for daemons, and tasks without a reservation."""

DAEMON, TEMPLATE, AGENT = "daemon", "template", "transfer"
AGENT_ENTRY = "zfabric.runtime.transfer:run"
REAP_SECONDS = 0.001
"""Seconds between checks whether a dead daemon's agent has ended: it may write into the arena."""
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, STOP)
STOPPED = "the cluster was stopped (`zfabric stop`, or SIGTERM to its supervisor)"
PROGRAM_ENDED = "the program that had started the cluster has ended, or has ended the cluster"
COMMAND_ENDED = {FOREGROUND: "ended with its command, `zfabric start --block`", RUN: "ended with its command, `zfabric run`"}
"""Why a node ended with its launcher, by its session's kind."""


class Supervisor:
    """One session's supervisor."""

    def __init__(self, specification: Specification, session: Session) -> None:
        self._specification = specification
        self._session = session
        self._config = Config.of(dict(specification.config))
        self._pid = os.getpid()
        self._arena = -1
        self._ending = ""
        self._failure = ""
        self._daemon = 0
        self._template = 0
        self._agent = 0
        self._agent_arguments: tuple[bytes, str] | None = None
        self._transfer: socket.socket | None = None
        """Agents' listening socket: its port outlives them."""
        self._daemon_starts = 0
        self._daemon_before: object = None
        self._template_ready = False
        self._template_came_up = False
        self._unusable = ""
        """The template's report."""
        self._channels: dict[str, Channel] = {}
        self._frozen = False
        self._files: SessionFiles
        self._look_at = 0.0
        self._workers: dict[int, bytes] = {}
        self._makers: dict[int, bytes] = {}
        """Tokens, by pid, of workers whose environments are being made."""
        self._pending: dict[bytes, tuple[Any, ...]] = {}
        self._abandoned: set[bytes] = set()
        self._watched: dict[int, int] = {}
        self._due: dict[str, float] = {}
        self._policies = {name: RestartPolicy(self._config.restart_backoff_max) for name in (DAEMON, TEMPLATE, AGENT)}
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._wakeup, self._wakeup_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    # -- the session ---------------------------------------------------------------------------------------------------------------

    def run(self) -> bool:
        """Run the session until everything else of it has ended. Return False if it ended by itself; ``failure`` then says why."""
        processes.become_subreaper()
        self._take_signals()
        self._watch_launcher()
        try:
            self._prepare()
            while not self._ending:
                self._start_due()
                self._look_at_files()
                for descriptor, _ in self._epoll.poll(self._patience()):
                    handler = self._handlers.get(descriptor)  # An earlier handler may have removed it.
                    if handler is not None and not self._ending:
                        handler()
        except FabricError as error:
            self._fail(str(error))
        except Exception:  # Our own bug ends the node; ``failure`` must have its traceback.
            import traceback

            self._fail(f"the supervisor failed:\n{traceback.format_exc()}")
        self._end()
        return not self._failure

    def _take_signals(self) -> None:
        signal.set_wakeup_fd(self._wakeup_end, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._register(self._wakeup, self._on_signals)

    def _watch_launcher(self) -> None:
        if self._specification.kind == STARTED:
            return
        cluster = self._specification.cluster
        what = "cluster" if cluster is None else "head of the cluster" if cluster.head else "node"
        how = COMMAND_ENDED.get(self._specification.kind)
        reason = PROGRAM_ENDED if how is None else f"the {what} {how}"
        self._register(LIFELINE, lambda: self._request_end(reason))
        launcher = processes.open_pidfd(self._specification.launcher, self._specification.launcher_started)
        if launcher is None:
            self._request_end(reason)
        else:
            self._register(launcher, lambda: self._request_end(reason))

    def _prepare(self) -> None:
        size = self._make_arena()
        specification = self._specification
        if specification.cluster is not None and not specification.cluster.head:
            from zfabric.runtime.keys import create_server_pair

            create_server_pair(self._session.key)
        transfer = self._transfer_endpoint(size)
        description = {
            "protocol": PROTOCOL_VERSION,
            "python": ".".join(map(str, sys.version_info[:3])),
            "directory": specification.directory,
            "kind": specification.kind,
            "node": new_incarnation().hex(),
            "supervisor": self._pid,
            "started": processes.start_ticks(self._pid),
            "launcher": specification.launcher,
            "created": time.time(),
            "config": dict(specification.config),
            "resources": {MEMORY: float(reservable_bytes(size)), **dict(specification.resources)},
            "labels": dict(specification.labels),
            "namespace": specification.namespace,
            "keep": specification.keep,
            "cluster": specification.cluster and specification.cluster._asdict(),
            "arena": f"/proc/{self._pid}/fd/{self._arena}" if size else "",
            "arena_size": size,
            "transfer": transfer,
            "store": specification.store or f"{specification.directory}/store",
            "spill": specification.spill or self._session.spill_path(self._config.spill_directory),
        }
        self._session.write_description(description)
        self._files = SessionFiles(self._session, LOCK, description)
        for module in specification.imports:
            importlib.import_module(module)
        gc.freeze()
        gc.enable()
        now = time.monotonic()
        self._due = {TEMPLATE: now}
        if not self._config.preload:  # Else after that has succeeded: waiting clients then get its error.
            self._due[DAEMON] = now

    def _make_arena(self) -> int:
        size = self._specification.arena_size
        size = arena_bytes(self._config) if size < 0 else _aligned(size)
        if size > 0:
            from zfabric.adapters.arena import create_arena

            try:
                self._arena = create_arena(self._config.object_store_directory, size)
            except OSError as error:
                raise FabricError(f"the object store's {size} bytes of shared memory cannot be made: {error}") from None
        return size

    def _transfer_endpoint(self, arena_size: int) -> str:
        """Listen for other nodes' agents. Return the endpoint, or "" if unneeded."""
        cluster = self._specification.cluster
        if not arena_size or (cluster is None and not self._specification.transfer):
            return ""
        if cluster is None:
            return self._listen(self._specification.transfer)
        from zfabric.runtime.cluster import bound_address, own_address, parse_address

        endpoint = self._listen(bound_address(cluster, cluster.transfer_port).removeprefix(TCP).replace("*", "0"))
        return own_address(cluster, parse_address(endpoint)[1], cluster.advertised_transfer)

    def _listen(self, place: str) -> str:
        host, _, port = place.rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        try:
            self._transfer = socket.create_server((host.strip("[]"), int(port)), family=family, backlog=AGENT_BACKLOG)
        except OSError as error:
            raise FabricError(f"the transfer agent cannot listen at {place}: {error.strerror}") from None
        return f"tcp://{host}:{self._transfer.getsockname()[1]}"

    def _request_end(self, reason: str) -> None:
        self._ending = self._ending or reason

    def _fail(self, reason: str) -> None:
        log(f"giving up: {reason}")
        self._failure = reason
        self._session.fail(reason)
        self._request_end(reason)

    def _end(self) -> None:
        log(f"ending: {self._ending}")
        self._notify(ENDING, "" if self._failure else self._ending)
        for pid in (self._template, *self._workers):
            if pid:
                processes.kill_group(pid)
        if self._daemon:
            os.kill(self._daemon, STOP)
        deadline = time.monotonic() + ORDERLY_SECONDS
        while self._daemon and (patience := deadline - time.monotonic()) > 0:
            for descriptor, _ in self._epoll.poll(patience):
                if descriptor == self._wakeup:
                    self._on_signals()
                elif descriptor in self._handlers:
                    self._unregister(descriptor)  # Nothing else matters now.
        processes.kill_children()
        if self._failure:
            self._session.leave_failed()
        else:
            self._session.remove()

    # -- events -------------------------------------------------------------------------------------------------------------

    def _register(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._epoll.register(descriptor, select.EPOLLIN)
        self._handlers[descriptor] = handler

    def _unregister(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def _patience(self) -> float:
        return max(0.0, min([self._look_at, *self._due.values()]) - time.monotonic())

    def _look_at_files(self) -> None:
        if (now := time.monotonic()) >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            # The first daemon watches drivers only once they have found it; later ones do so before.
            reason = self._files.look(self._daemon, is_published=self._daemon_starts == 1 and bool(self._watched))
            if reason:
                self._fail(reason)
            self._files.keep_young()

    def _on_signals(self) -> None:
        try:
            numbers = os.read(self._wakeup, 4096)
        except BlockingIOError:
            return
        if STOP in numbers or (signal.SIGTERM in numbers and self._specification.kind not in NOTIFIED):
            self._request_end(STOPPED)
        if signal.SIGCHLD in numbers:
            self._reap()

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            if pid not in (*self._workers, self._daemon, self._template, self._agent) and TEMPLATE in self._channels:
                self._on_template()  # A worker is always reported before it becomes our child.
            if pid in self._workers or pid in self._makers:
                processes.kill_group(pid)
            _, status, usage = os.wait4(pid, 0)
            self._on_death(pid, os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024)

    def _on_death(self, pid: int, code: int, peak: int) -> None:
        if pid == self._daemon:
            self._daemon = 0
            self._on_daemon_death(code)
        elif pid == self._template:
            self._template = 0
            self._on_template_death(code)
        elif pid == self._agent:
            self._agent = 0
            if self._agent_arguments is not None and not self._ending:
                self._restart(AGENT, code, True)
        elif pid in self._makers:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._on_spawn_failed(self._makers.pop(pid), f"the process that makes its environment ended with {how}")
        elif pid in self._workers:
            token = self._workers.pop(pid)
            if not self._ending:  # Else it was killed here, and its tasks are not retried.
                last_lines = tail(log_path(self._session.logs, token, "err"))
                self._notify("ProcessDied", pid, max(code, 0), max(-code, 0), peak, last_lines)

    def _notify(self, *packet: Any) -> None:
        channel = self._channels.get(DAEMON)
        if channel is not None:
            channel.post(*packet)
            self._poll_for_room(channel)

    def _poll_for_room(self, channel: Channel) -> None:
        if channel.fileno() in self._handlers:
            self._epoll.modify(channel, select.EPOLLIN | (select.EPOLLOUT if channel.waiting else 0))

    def _close_channel(self, name: str) -> None:
        channel = self._channels.pop(name, None)
        if channel is not None:
            self._unregister(channel.fileno())
            channel.close()

    # -- daemon -------------------------------------------------------------------------------------------------------------

    def _start_due(self) -> None:
        now = time.monotonic()
        for name, start in ((DAEMON, self._start_daemon), (TEMPLATE, self._start_template), (AGENT, self._start_agent)):
            if name in self._due and self._due[name] <= now:
                if name == DAEMON and self._agent:
                    self._due[name] = now + REAP_SECONDS
                    continue
                del self._due[name]
                self._policies[name].on_start(now)
                start()

    def _start_daemon(self) -> None:
        ours, theirs = Channel.pair()
        before = self._daemon_starts
        self._daemon_before = self._session.daemon()
        self._daemon_starts += 1

        def body() -> None:
            worker_process.entry_point(self._specification.daemon)(self._specification.directory, theirs.fileno(), before)

        self._daemon = self._fork(DAEMON, theirs, body)
        theirs.close()
        self._channels[DAEMON] = ours
        self._register(ours.fileno(), self._on_daemon)
        if before:
            self._notify("ProcessTable", tuple((token, pid) for pid, token in self._workers.items()))

    def _on_daemon_death(self, code: int) -> None:
        self._close_channel(DAEMON)
        for pid in list(self._watched):
            self._unwatch(pid)
        self._agent_arguments = None
        self._due.pop(AGENT, None)
        if self._agent:
            os.kill(self._agent, signal.SIGKILL)
        self._abandoned.update(self._pending)  # The next daemon has not requested them.
        if self._ending:
            return
        came_up = self._session.daemon() != self._daemon_before
        self._restart(DAEMON, code, came_up)

    def _restart(self, name: str, code: int, came_up: bool) -> None:
        pause = self._policies[name].on_death(time.monotonic(), came_up)
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        if pause is None:
            last_lines = tail(f"{self._session.logs}/{name}.err")
            # The reason is the last line, unless it is a bug.
            reason = last_lines if "Traceback" in last_lines else last_lines.rpartition("\n")[2]
            self._fail(f"the {name} cannot be started ({how}): {reason}")
        else:
            log(f"the {name} ended ({how}); next start in {pause:.2f} s")
            self._due[name] = time.monotonic() + pause

    def _on_daemon(self) -> None:
        channel = self._channels[DAEMON]
        channel.flush()
        self._poll_for_room(channel)
        packets, ended = channel.drain()
        if ended:
            self._unregister(channel.fileno())  # Its death follows, and closes the channel.
        for kind, *fields in packets:
            self._requests[kind](self, *fields)

    def _spawn(self, *request: Any) -> None:
        self._pending[request[0]] = request
        channel = self._channels.get(TEMPLATE)
        if channel is not None:
            channel.post(*request)
            self._poll_for_room(channel)

    def _kill(self, pid: int, reason: str) -> None:
        if pid in self._workers:
            log(f"killing worker {pid}: {reason}")
            processes.kill_group(pid)

    def _freeze(self, frozen: bool) -> None:
        self._frozen = frozen
        log("the workers are stopped: the node has no lease" if frozen else "the workers go on")
        for pid in self._workers:
            processes.stop_group(pid, frozen)

    def _watch(self, pid: int, started: int) -> None:
        if pid in self._watched:
            return
        descriptor = processes.open_pidfd(pid, started)
        if descriptor is None:
            self._notify("ProcessDied", pid, 0, 0, 0, "")
        else:
            self._watched[pid] = descriptor
            self._register(descriptor, lambda: self._on_watched_death(pid))

    def _on_watched_death(self, pid: int) -> None:
        self._unwatch(pid)
        self._notify("ProcessDied", pid, 0, 0, 0, "")

    def _unwatch(self, pid: int) -> None:
        descriptor = self._watched.pop(pid, None)
        if descriptor is not None:
            self._unregister(descriptor)
            os.close(descriptor)

    def _request_agent(self, daemon: bytes, keys: str) -> None:
        if self._transfer is not None and self._agent_arguments is None:
            self._agent_arguments = daemon, keys
            self._due[AGENT] = time.monotonic()

    def _start_agent(self) -> None:
        if self._transfer is None or self._agent_arguments is None:
            return
        descriptor, arguments = self._transfer.fileno(), self._agent_arguments

        def body() -> None:
            worker_process.entry_point(AGENT_ENTRY)(self._specification.directory, descriptor, *arguments)

        self._agent = self._fork(AGENT, self._transfer, body)

    _requests: dict[str, Callable[..., None]] = {
        "spawn": _spawn,
        "kill": _kill,
        "freeze": _freeze,
        "watch": _watch,
        "agent": _request_agent,
        "end": _fail,
    }

    # -- template -----------------------------------------------------------------------------------------------------------

    def _start_template(self) -> None:
        ours, theirs = Channel.pair()
        self._template_ready = False
        self._unusable = ""
        self._template = self._fork(TEMPLATE, theirs, lambda: template.run(self._specification, theirs, self._pid))
        theirs.close()
        self._channels[TEMPLATE] = ours
        self._register(ours.fileno(), self._on_template)
        for request in list(self._pending.values()):
            self._spawn(*request)

    def _on_template(self) -> None:
        channel = self._channels[TEMPLATE]
        channel.flush()
        self._poll_for_room(channel)
        packets, ended = channel.drain()
        if ended:
            self._unregister(channel.fileno())
        for what, *fields in packets:
            if what == "ready":
                self._template_ready = self._template_came_up = True
                if not self._daemon_starts:
                    self._due.setdefault(DAEMON, time.monotonic())
            elif what == "unusable":
                self._unusable = fields[0]
            elif what == "making":
                token, pid = fields
                self._makers[pid] = token
            elif what == "spawned":
                self._on_spawned(*fields)
            else:
                self._on_spawn_failed(*fields)

    def _on_spawned(self, token: bytes, pid: int) -> None:
        self._makers.pop(pid, None)
        self._workers[pid] = token
        if self._frozen:
            processes.stop_group(pid, True)
        del self._pending[token]
        if token in self._abandoned:
            self._abandoned.discard(token)
            processes.kill_group(pid)
        else:
            self._notify("WorkerSpawned", token, pid, "")

    def _on_spawn_failed(self, token: bytes, error: str) -> None:
        if self._pending.pop(token, None) is not None:
            if token not in self._abandoned:
                self._notify("WorkerSpawned", token, 0, error)
            self._abandoned.discard(token)

    def _on_template_death(self, code: int) -> None:
        channel = self._channels[TEMPLATE]
        channel.refuse()  # Workers not reported by now never will be.
        self._on_template()
        self._close_channel(TEMPLATE)
        reason = self._unusable or f"the template ended with {code}: {tail(f'{self._session.logs}/{TEMPLATE}.err')}"
        for token in list(self._pending):
            self._on_spawn_failed(token, reason)
        if self._ending:
            return
        if self._unusable and not self._template_came_up:
            self._fail(self._unusable)  # The same modules would fail in the same way.
        else:
            self._restart(TEMPLATE, code, self._template_ready)

    # -- forking ------------------------------------------------------------------------------------------------------------

    def _fork(self, name: str, keep: Channel | socket.socket, body: Callable[[], object]) -> int:
        """Fork a child that runs ``body``, inherits only ``keep``, and dies with us."""
        if processes.thread_count() != 1:
            raise FabricError("the supervisor has more than one thread; it cannot fork safely")
        # Until the child resets our handlers, they must not handle its signals.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                processes.run_and_exit(lambda: self._become(name, keep, body))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        return pid

    def _become(self, name: str, keep: Channel | socket.socket, body: Callable[[], object]) -> None:
        signal.set_wakeup_fd(-1)
        for number in (*_SIGNALS, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if self._specification.kind in NOTIFIED:
            termination.disregard()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        processes.die_with_parent(self._pid)
        processes.set_name(f"zf-{name}")
        self._epoll.close()
        for channel in self._channels.values():
            channel.close()
        close_all_but({0, 1, 2, keep.fileno()})
        output = f"{self._session.logs}/{name}"
        processes.redirect(f"{output}.out", f"{output}.err")
        body()


def close_all_but(wanted: Iterable[int]) -> None:
    """Close all descriptors but ``wanted``."""
    low = 0
    for descriptor in sorted(wanted):
        if low < descriptor:  # CPython 3.11 closes all descriptors for an empty range that ends at 0.
            os.closerange(low, descriptor)
        low = descriptor + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def arena_bytes(config: Config) -> int:
    """The arena's size: as configured, or a share of the machine's memory as far as it is free."""
    size = config.object_store_memory
    if not size:
        size = int(min(ARENA_SHARE * processes.memory_total(), 0.8 * processes.memory_available()))
        if config.object_store_directory:
            status = os.statvfs(config.object_store_directory)
            size = min(size, int(0.9 * status.f_bavail * status.f_frsize))
        size = max(size, ARENA_BYTES_MIN)
    return _aligned(size)


def reservable_bytes(arena_bytes: int, nodes: int = 1) -> int:
    """What tasks may reserve on each of ``nodes`` nodes of this machine, each with an arena."""
    return int(RESERVABLE_SHARE * max(0, processes.memory_total() - nodes * arena_bytes)) // nodes


def _aligned(size: int) -> int:
    return (size + ARENA_ALIGNMENT - 1) // ARENA_ALIGNMENT * ARENA_ALIGNMENT


def read_specification() -> Specification:
    """Read the specification, behind its length in four bytes."""
    length = int.from_bytes(_read_exactly(4), "big")
    return Specification.unpack(_read_exactly(length))


def _read_exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = os.read(LIFELINE, size - len(data))
        if not part:
            raise SystemExit("the launcher ended before it had said what to start")
        data += part
    return data


def main() -> NoReturn:
    """Run the supervisor."""
    gc.disable()  # Loading modules makes no garbage.
    del sys.argv[1:]  # Hidden from the workers' programs.
    close_all_but({LIFELINE, 1, 2, LOCK})
    os.set_inheritable(LOCK, False)
    processes.set_name("zf-supervisor")

    def body() -> None:
        specification = read_specification()
        if not Supervisor(specification, Session(specification.directory)).run():
            raise SystemExit(1)

    processes.run_and_exit(body)
