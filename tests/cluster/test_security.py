"""Access to a cluster: other users, garbage, pickles, network ports."""

from __future__ import annotations

import ast
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from conftest import one_cluster
from faults import PATIENCE, eventually, kill_daemon, processes_named, query, session, session_processes

import zfabric as zf
from zfabric.adapters.datagrams import FRAME_BYTES, SUFFIX
from zfabric.adapters.sockets import Transport
from zfabric.config import Config
from zfabric.protocol import messages as m
from zfabric.protocol.codec import Envelope, encode
from zfabric.protocol.ids import INCARNATION_BYTES
from zfabric.protocol.trace import TIME_BYTES
from zfabric.runtime import interface
from zfabric.runtime.session import new_incarnation

PACKAGE = Path(zf.__file__).parent


shared = one_cluster()


@zf.remote
def identity(value: Any) -> Any:
    return value


def works() -> bool:
    return bool(zf.get([identity.remote(index) for index in range(200)], timeout=PATIENCE) == list(range(200)))


# --- another local user -----------------------------------------------------------------------------------------------------------


def reachable(places: list[str], pids: list[int], user: int) -> list[str]:
    """What a process of ``user`` can open, list, or connect to."""
    script = """
import os, socket, sys
user, count = int(sys.argv[1]), int(sys.argv[2])
os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
for path in sys.argv[3:3 + count]:
    for how in (os.O_RDONLY, os.O_WRONLY):
        try:
            os.close(os.open(path, how)); print(path); break
        except OSError: pass
    try: os.listdir(path); print(path)
    except OSError: pass
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        end = socket.socket(socket.AF_UNIX, kind)
        try: end.connect(path); print(path)
        except OSError: pass
for pid in sys.argv[3 + count:]:
    for what in ("fd", "mem", "environ", "map_files"):
        path = f"/proc/{pid}/{what}"
        try:
            if what in ("fd", "map_files"):
                for name in os.listdir(path) or ["0"]:
                    os.close(os.open(f"{path}/{name}", os.O_RDONLY)); print(path)
            else:
                os.close(os.open(path, os.O_RDONLY)); print(path)
        except OSError: pass
    try: os.kill(int(pid), 0); print("kill", pid)
    except OSError: pass
print("done")
"""
    arguments = [str(user), str(len(places)), *places, *map(str, pids)]
    done = subprocess.run([sys.executable, "-S", "-c", script, *arguments], capture_output=True, text=True, check=False)
    lines = done.stdout.split("\n")
    assert "done" in lines, done.stderr
    return [line for line in lines if line not in ("", "done")]


def test_another_user_cannot_open_sockets_arena_keys_logs_or_tables() -> None:
    held = zf.put(np.ones(200_000))
    directory = Path(session().directory)
    places = [str(directory), *(str(path) for path in directory.rglob("*"))]
    assert any("/sockets/" in place for place in places)
    assert any("/store/" in place for place in places)
    assert any("/logs/" in place for place in places)
    described = session().describe()
    places += [str(described["arena"]), str(described["store"]), str(described["spill"])]
    if os.geteuid() == 0:
        assert reachable(places, list(session_processes()), 0) != []  # the search itself finds what is open
        assert reachable(places, list(session_processes()), 65534) == []
    for path in [directory, directory.parent, *directory.rglob("*")]:
        try:
            status = path.lstat()
        except FileNotFoundError:  # It was there for a moment.
            continue
        assert status.st_uid == os.geteuid()
        kind = stat.S_IFMT(status.st_mode)
        if path in (directory, directory.parent) or kind not in (stat.S_IFSOCK, stat.S_IFLNK):  # a link has no permissions of its own
            assert stat.S_IMODE(status.st_mode) & 0o077 == 0, path
    del held


def test_no_secret_of_a_session_is_in_arguments_or_environments() -> None:
    secrets = [process.hex() for process in (interface.current().connection.incarnation,)]  # type: ignore[union-attr]
    looked = 0
    for pid in session_processes():
        try:
            shown = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError):  # One that stood between the template and a worker has ended.
            continue
        assert not any(secret.encode() in shown for secret in secrets)
        looked += 1
    assert looked >= 4, "supervisor, daemon, template and a worker"


# --- the network --------------------------------------------------------------------------------------------------------------------


def network_sockets(pids: list[int]) -> list[str]:
    """Sockets of these processes that are not of the Unix domain."""
    inodes = set()
    for name in ("tcp", "tcp6", "udp", "udp6", "raw", "raw6"):
        path = Path(f"/proc/net/{name}")
        if path.exists():
            inodes |= {line.split()[9] for line in path.read_text().splitlines()[1:]}
    found = []
    for pid in pids:
        for entry in Path(f"/proc/{pid}/fd").iterdir() if Path(f"/proc/{pid}/fd").exists() else ():
            try:
                target = os.readlink(entry)
            except OSError:
                continue
            if target.startswith("socket:[") and target[8:-1] in inodes:
                found.append(f"{pid} {target}")
    return found


def test_no_network_port_is_open_on_one_machine() -> None:
    assert works()
    zf.get(zf.put(np.ones(200_000)))
    pids = [os.getpid(), *session_processes()]
    before = network_sockets([os.getpid()])
    assert [each for each in network_sockets(pids) if each not in before] == []
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        assert len(network_sockets(pids)) == len(before) + 1


# --- garbage --------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stranger() -> Iterator[zmq.Context[Any]]:
    context: zmq.Context[Any] = zmq.Context()
    yield context
    context.destroy(linger=0)


class Bomb:
    """Unpickled, it leaves a mark."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def garbage(mark: str) -> list[bytes]:
    """Frames that are no frames, nearly frames, and frames of the wrong content."""
    import pickle

    bomb = pickle.dumps(Bomb(mark))
    odd = bytes(range(256))
    return [
        b"",
        b"\0",
        odd,
        bomb,
        os.urandom(4096),
        b"\xdd\xff\xff\xff\xff",
        b"\x93\x01\x00\x91\x94" + b"\xc4\x01L" * 2 + b"\xa6Submit" + b"\x91\x91\x92\x01\x02",
        encode(1, 0, [(b"L", b"C", m.Submit(((b"x" * 16, b"f" * 16, bomb, ()),)))]),
        encode(2, 0, [(b"L", b"C", m.Export(((b"f" * 16, "f", bomb, ()),)))]),
        encode(3, 0, [(b"L", b"W", m.Completed.of(((b"x" * 16, 0, 0, (bomb,)),)))]),
        encode(4, 0, [(b"Z", b"C", m.Ready())]),
        encode(5, 0, [(b"W", b"L", m.Dispatch((), (), False))]),
        encode(6, 0, [(b"O", b"C", m.Reserve(1, -5, 0, 1.0))]),
        encode(7, 0, [(b"O", b"C", m.Restored(b"x" * 20, ""))]),
        encode(8, 0, [(b"S", b"C", m.Scan(1, "no such table", b"", b"", 10))]),
        encode(9, 0, [(b"X", b"C", m.ProcessDied(1, 0, 9, 0, ""))]),
        encode(10, 0, [(b"L", b"X", m.ProcessDied(os.getpid(), 0, 9, 0, ""))]),
        encode(11, 0, [(b"L", b"C", m.Goodbye())]),
        encode(12, 10**9, [(b"L", b"C", m.Register(99, "driver", 1, 1, b"", b"", b"", "", ""))]),
    ]


def throw_at(path: str, frames: list[bytes], context: zmq.Context[Any]) -> None:
    for identity_ in (os.urandom(8).replace(b"\0", b"\1"), b"short", None):
        end = context.socket(zmq.DEALER)
        if identity_ is not None:
            end.setsockopt(zmq.ROUTING_ID, identity_)
        end.connect("ipc://" + path)
        for frame in frames:
            end.send(frame)
            end.send_multipart([frame, frame])
        end.close(linger=5000)
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(path)
    raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + os.urandom(1000))
    raw.close()
    short_way = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    for datagram in (*frames, *(os.urandom(INCARNATION_BYTES) + frame for frame in frames), b"", os.urandom(FRAME_BYTES * 2)):
        short_way.sendto(datagram, path + SUFFIX)  # It waits while the queue is full.
    short_way.close()


def test_garbage_at_the_daemon_is_dropped_and_counted_and_everything_goes_on(stranger: Any, tmp_path: Path) -> None:
    daemon = processes_named("zf-daemon")
    before = query("status")["statistics"].get("refused_frames", 0)
    refs = [identity.remote(index) for index in range(5000)]
    throw_at(session().daemon()[1], garbage(str(tmp_path / "mark")), stranger)  # type: ignore[index]
    assert zf.get(refs, timeout=PATIENCE) == list(range(5000))
    assert works()
    assert processes_named("zf-daemon") == daemon
    assert list(tmp_path.iterdir()) == []
    assert eventually(lambda: query("status")["statistics"]["refused_frames"] - before >= 15, "what was dropped is counted")


def test_a_thousand_unknown_senders_cost_the_daemon_no_sockets() -> None:
    daemon = processes_named("zf-daemon")
    known = session().daemon()
    assert known is not None
    before = len(os.listdir(f"/proc/{daemon[0]}/fd"))
    short_way = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    frame = encode(1, 0, [(b"L", b"C", m.Query(1, "status", ()))])
    goodbye = encode(1, 0, [(b"L", b"C", m.Goodbye())])
    early = encode(3, 0, [(b"L", b"C", m.Ready())])  # It is answered at once: two frames before it have not come.
    for number in range(1200):
        for each in ((frame,), (early,), (goodbye, early))[number % 3]:
            short_way.sendto(bytes([7]) * 6 + number.to_bytes(2, "big") + each, known[1] + SUFFIX)
    last = bytes([7]) * 8
    short_way.bind(os.path.join(os.path.dirname(known[1]), last.hex() + SUFFIX))
    short_way.settimeout(PATIENCE)
    short_way.sendto(last + goodbye, known[1] + SUFFIX)
    assert short_way.recv(1000), "it is acknowledged after the others, since it came after them"
    short_way.close()
    assert works()
    assert processes_named("zf-daemon") == daemon
    assert len(os.listdir(f"/proc/{daemon[0]}/fd")) < before + 100


def test_a_transport_that_cannot_open_a_socket_goes_on(tmp_path: Path) -> None:
    context: zmq.Context[Any] = zmq.Context(1)
    context.set(zmq.MAX_SOCKETS, 3)
    mine, theirs = (Transport(context, str(tmp_path), new_incarnation(), Config()) for _ in range(2))
    third = context.socket(zmq.DEALER)
    large: list[Envelope] = [(b"C", b"L", m.Answer(1, b"x" * FRAME_BYTES, ""))]
    try:
        theirs.send_envelopes(mine.incarnation, large, 0.0)
        assert not mine.poll(0.0)
        third.close(0)
        now = 0.0
        while not mine.poll(0.05):  # Sockets are closed by a thread of ZeroMQ's.
            now += 100.0
            theirs.tick(now)
        assert mine.accept(*mine.receive()[0], 0.0) == large
    finally:
        mine.close()
        theirs.close()
        third.close(0)
        context.term()


def test_garbage_at_workers_and_drivers_is_dropped(stranger: Any, tmp_path: Path) -> None:
    eventually(lambda: all(row["state"] == "idle" for row in query("workers")), "no worker is about to start")
    processes = session_processes()
    known = session().daemon()
    assert known is not None
    client: Any = interface.current()
    before = client.connection.transport.refused
    frames = garbage(str(tmp_path / "mark"))
    for path in Path(session().sockets).iterdir():
        if stat.S_ISSOCK(path.stat().st_mode) and path.suffix != SUFFIX and str(path) != known[1]:
            throw_at(str(path), frames, stranger)
    assert works()
    eventually(lambda: works() and client.connection.transport.refused - before >= len(frames), "what was dropped is counted")
    zf.get(zf.put(np.ones(200_000)))
    assert session_processes() == processes
    assert list(tmp_path.iterdir()) == []


def test_frames_forged_in_the_name_of_a_worker_do_not_stop_the_daemon(stranger: Any, tmp_path: Path) -> None:
    """(A process of the same user may do anything to it; but what is wrong is refused, not a crash.)"""
    worker = query("workers")[0]["token"]
    forged = m.Completed.of(((b"x" * 16, 0, 0, (b"",)),), ((0, (), ()),), ((b"f" * 16, 1, 1.0),), b"x" * TIME_BYTES)
    end = stranger.socket(zmq.DEALER)
    end.setsockopt(zmq.ROUTING_ID, bytes.fromhex(worker)[:4] + b"\1\1\1\1")
    end.connect("ipc://" + session().daemon()[1])  # type: ignore[index]
    for number in range(1, 20):
        end.send(encode(number, 0, [(b"L", b"W", forged)]))
    end.close(linger=5000)
    assert works()


def test_impossible_requests_of_members_are_refused_and_counted() -> None:
    daemon = processes_named("zf-daemon")
    before = query("status")["statistics"]["refused_frames"]
    client: Any = interface.current()
    with client.connection.lock:
        client.machine.reservations.reserve(-5, True, 1.0)
        client.connection.flush()
    eventually(lambda: query("status")["statistics"]["refused_frames"] > before, "it is counted")
    client.machine.reservations.requests.clear()
    assert works()
    assert processes_named("zf-daemon") == daemon


# --- pickles --------------------------------------------------------------------------------------------------------------------------

LOADERS = {
    "zfabric.adapters.pickler",
    "zfabric.adapters.serialization",
    "zfabric.adapters.arrays",
    "zfabric.adapters.task_errors",
    "zfabric.adapters.unpicklable",
    "zfabric.ray_mode.ray.cloudpickle",  # Names for programs of Ray; nothing of ours calls them.
    "zfabric.ray_mode.ray.cloudpickle.cloudpickle",
    "zfabric.ray_mode.ray.cloudpickle.compat",
}
"""Modules that may unpickle: only workers and drivers call them."""
NEVER = (
    "zfabric.machines",
    "zfabric.protocol",
    "zfabric.cli",
    "zfabric.runtime.daemon",
    "zfabric.runtime.supervisor",
    "zfabric.runtime.supervision",
    "zfabric.runtime.storage",
    "zfabric.runtime.session",
    "zfabric.runtime.logs",
    "zfabric.adapters.journal",
    "zfabric.adapters.dump",
    "zfabric.adapters.arena",
    "zfabric.adapters.spill",
    "zfabric.adapters.sockets",
)
"""Schedulers, stores, tools and what they are made of."""


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


def modules() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(("zfabric", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        found[name] = path
    return found


def test_only_workers_and_drivers_can_unpickle() -> None:
    pickling = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "_pickle"}
    for name, path in modules().items():
        used = {each.split(".")[0] for each in imports_of(path)} & pickling
        assert not used or name in LOADERS, f"{name} imports {used}"
    for name, path in modules().items():
        if name.startswith(NEVER):
            assert not imports_of(path) & LOADERS, f"{name} can reach a pickle"


def test_no_message_of_a_stranger_reaches_pickle_in_the_daemon(tmp_path: Path) -> None:
    """The values and functions that pass through the daemon stay bytes there: the daemon has no way of making objects of them."""
    mark = tmp_path / "mark"

    @zf.remote
    def make() -> Any:
        return Bomb(str(mark))

    ref = make.remote()
    zf.wait([ref], timeout=PATIENCE, fetch_local=False)
    query("objects"), query("tasks"), zf.explain(ref)
    kill_daemon()
    query("status")
    assert not mark.exists()
    zf.get(ref).close()
    assert mark.exists()
