"""Strangers, and nodes that send garbage, at the ports of a real node: refused and counted; its processes, and other nodes, go on.

``FUZZ_FRAMES=100000 pytest tests/cluster/test_cluster_security.py`` sends as many frames to each port; the usual number is a tenth of that.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from faults import descendants, eventually, name_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node_messages import node_messages

import zfabric as zf
from zfabric.adapters import curve
from zfabric.adapters.curve import KeyPair, make_pair
from zfabric.adapters.node_transport import DIAL_AGAIN
from zfabric.adapters.processes import resident_bytes
from zfabric.machines.common.node_link import HELLO_BYTES, MAGIC, NOBODY, Hello, read_hello
from zfabric.protocol import messages as m
from zfabric.protocol.access import FROM_AGENTS, FROM_NODES
from zfabric.protocol.codec import encode
from zfabric.protocol.ids import INCARNATION_BYTES, TRANSFER_AGENT
from zfabric.runtime.cluster import parse_address
from zfabric.runtime.connect import attach
from zfabric.runtime.keys import read_keys, read_server_pair
from zfabric.runtime.session import Session, find_sessions
from zfabric.util.scheduling_strategies import NodeAffinitySchedulingStrategy

FRAMES = int(os.environ.get("FUZZ_FRAMES", "10000"))
"""Frames that are sent to each port."""
HALF_OPEN = 3000
"""Connections at once to each port that say nothing."""
FILES_USUAL = 1024
"""How many files a process may open by default, before it asks for more."""
GROWTH_MAX = 96 * 2**20
"""By how much a process may grow meanwhile: it retains what well-formed messages name, such as functions and jobs."""
LEFT_OUT = {"Leave", "EndJob", "PrepareBundles"}
"""What a node may do to itself and its jobs, and reserve on others for them."""


class Victim:
    """The head of a cluster, and the keys of its other node, which is paused: somebody else has taken them."""

    def __init__(self, cluster: zf.LocalCluster) -> None:
        self.cluster = cluster
        head, other = (self._session(node.pid) for node in cluster.nodes)
        self.session = head
        settings_of_head, settings_of_other = head.cluster(), other.cluster()
        assert settings_of_head is not None
        assert settings_of_other is not None
        self.server_key = read_server_pair(head.pair_of(settings_of_head)).public
        self.role = read_keys(other.cluster_key).node
        self.stolen: KeyPair = read_server_pair(other.pair_of(settings_of_other))
        self.other = bytes.fromhex(str(other.describe()["node"]))
        self.ports = {"control": cluster.nodes[0].address, "transfer": str(head.describe()["transfer"])}
        self.pids = {name: self._process(name) for name in ("zf-daemon", "zf-transfer")}

    @staticmethod
    def _session(supervisor: int) -> Session:
        return next(session for session in find_sessions() if session.supervisor()[0] == supervisor)

    def _process(self, name: str) -> int:
        return eventually(lambda: [pid for pid in descendants(self.cluster.nodes[0].pid) if name_of(pid) == name], name)[0]  # type: ignore[no-any-return]

    def statistics(self) -> dict[str, float]:
        """The counters of the head."""
        client = attach(self.session, kind="tool")
        try:
            found: dict[str, float] = client.query("status", timeout=60.0)["statistics"]
        finally:
            client.close()
        return found

    def is_well(self) -> None:
        """Its processes are the same, let others in, and run tasks (here: the other node, which may be thought to have room, is paused)."""
        assert {name: self._process(name) for name in self.pids} == self.pids
        assert self.statistics()
        here = NodeAffinitySchedulingStrategy(str(self.session.describe()["node"]), soft=False)
        assert zf.get([zf.remote(scheduling_strategy=here)(abs).remote(-index) for index in range(20)], timeout=60) == list(range(20))


@pytest.fixture(scope="module")
def victim() -> Iterator[Victim]:
    """Two nodes, with this program on the head. The lease is long, so that the one that is paused stays a member."""
    options: dict[str, Any] = {"object_store_memory": 64 * 2**20, "config": {"node_lease": 3600.0}}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * HALF_OPEN + FILES_USUAL:
        pytest.fail(f"these tests need {2 * HALF_OPEN + FILES_USUAL} open files: ulimit -Hn says {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_USUAL, hard))  # The nodes ask for more by themselves.
    with zf.LocalCluster(nodes=2, cpus_per_node=1, **options) as cluster, zf.init(cluster.address):
        found = Victim(cluster)
        cluster.nodes[1].pause()
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        yield found
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        cluster.nodes[1].resume()  # It acknowledges the end of this program's job.


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    made: zmq.Context[Any] = zmq.Context(1)
    yield made
    made.destroy(0)


def connection(context: zmq.Context[Any], address: str, server_key: bytes, keys: KeyPair) -> Any:
    """An encrypted connection to a port."""
    made = curve.dealer(context, keys, server_key, 1000)
    curve.connect(made, address)
    return made


# --- those without a key ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", ["control", "transfer"])
@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN", "unknown key", "another server's key", "role key"])
def test_a_stranger_gets_nothing_from_either_port(victim: Victim, context: zmq.Context[Any], port: str, mechanism: str) -> None:
    if mechanism in ("NULL", "PLAIN"):
        stranger = context.socket(zmq.DEALER)
        stranger.setsockopt(zmq.LINGER, 0)
        if mechanism == "PLAIN":
            stranger.setsockopt(zmq.PLAIN_USERNAME, b"node")
            stranger.setsockopt(zmq.PLAIN_PASSWORD, b"node")
        stranger.connect(victim.ports[port])
    else:
        server = make_pair().public if mechanism == "another server's key" else victim.server_key
        stranger = connection(context, victim.ports[port], server, victim.role if mechanism == "role key" else make_pair())
    hello = Hello(m.PROTOCOL_VERSION, victim.other, b"daemon..", 9, 1, NOBODY, 0).encode()
    for frame in (hello, encode(0, 0, [(b"L", b"L", m.Ready())]), encode(0, 0, [(b"R", b"N", m.RenewLease(victim.other, 1))])):
        with contextlib.suppress(zmq.Again):  # Its connection may have been refused by now, and is not made again.
            stranger.send(frame, zmq.NOBLOCK)
    assert not stranger.poll(500), "the cluster stays silent"
    victim.is_well()


def test_three_thousand_connections_that_say_nothing_are_closed_and_hinder_nobody(victim: Victim) -> None:
    victim.is_well()  # So that all of its own are connected that are to be connected at the end.
    before = {name: (resident_bytes(pid), len(os.listdir(f"/proc/{pid}/fd"))) for name, pid in victim.pids.items()}
    refused = victim.statistics().get("refused_handshake_not_finished", 0)
    held = []
    for _ in range(HALF_OPEN):
        for address in victim.ports.values():
            held.append(socket.socket())
            held[-1].setblocking(False)
            held[-1].connect_ex(parse_address(address))
    victim.is_well()
    with subprocess.Popen([sys.executable, "-c", "import sys, zfabric\nzfabric.init(sys.argv[1])", victim.session.directory]) as program:
        assert program.wait(60) == 0, "another program comes and goes meanwhile"
    for name, pid in victim.pids.items():
        size, files = before[name]
        eventually(lambda pid=pid, files=files: len(os.listdir(f"/proc/{pid}/fd")) <= files, "it has closed what came")
        assert resident_bytes(pid) - size < GROWTH_MAX

    def counted() -> float:
        return victim.statistics()["refused_handshake_not_finished"] - refused

    eventually(lambda: counted() > HALF_OPEN / 2, "all are counted but for those that the kernel has dropped; some come late")
    assert counted() <= HALF_OPEN
    for each in held:
        each.close()
    victim.is_well()


@pytest.mark.parametrize("port", ["control", "transfer"])
def test_bytes_that_are_no_handshake_are_refused(victim: Victim, port: str) -> None:
    host, number = parse_address(victim.ports[port])
    choose = random.Random(port)
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00"
    for index in range(200):
        with socket.create_connection((host, number)) as stranger:
            data = choose.randbytes(choose.randint(1, 200))
            mechanism = choose.choice([b"CURVE", b"NULL", b"PLAIN", b"ZZ"]).ljust(20, b"\0")
            stranger.sendall(data if index % 2 else greeting + mechanism + bytes(32) + b"\x04" + struct.pack(">B", 200) + data)
    victim.is_well()


# --- a node that sends garbage ------------------------------------------------------------------------------------------------------


def corpus(kinds: set[str], wrap: Any) -> list[bytes]:
    """Encoded messages of these kinds."""
    frames: list[bytes] = []
    strategies = node_messages()

    @settings(max_examples=400, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(sorted(kinds)).flatmap(lambda name: strategies[name]))
    def collect(message: Any) -> None:
        frames.append(wrap(message))

    collect()
    return frames


def spoiled(frame: bytes, choose: random.Random) -> bytes:
    """A frame with some bytes changed, cut off or added; one in four stays as it is."""
    data = bytearray(frame)
    for _ in range(choose.choice((0, 1, 1, 3))):
        data[choose.randrange(len(data))] = choose.randrange(256)
    match choose.randrange(8):
        case 0:
            del data[choose.randrange(len(data)) :]
        case 1:
            data += choose.randbytes(choose.randrange(50))
    return bytes(data)


def send(stranger: Any, *parts: bytes) -> None:
    """Send a frame as soon as there is room, and read what has come."""
    until = time.monotonic() + 60.0
    while True:
        while stranger.poll(0):
            stranger.recv_multipart()
        try:
            stranger.send_multipart(parts, zmq.DONTWAIT)
        except zmq.Again:
            assert time.monotonic() < until, "the other side has closed the connection, or stopped reading"
            stranger.poll(5, zmq.POLLOUT)
        else:
            return


def test_garbage_of_a_node_at_the_control_port_is_refused_and_counted(victim: Victim, context: zmq.Context[Any]) -> None:
    roles = {kind.__name__: role for role, kinds in FROM_NODES.items() for kind in kinds if kind.__name__ not in LEFT_OUT}
    frames = corpus({*roles}, lambda message: encode(1, 0, [(roles[type(message).__name__], b"L", message)]))
    choose = random.Random(14)
    before, size = victim.statistics(), resident_bytes(victim.pids["zf-daemon"])
    stranger = connection(context, victim.ports["control"], victim.server_key, victim.stolen)
    for number in range(FRAMES // 2):  # Each frame is the first of a new daemon of that node.
        hello = Hello(m.PROTOCOL_VERSION, victim.other, choose.randbytes(INCARNATION_BYTES), number + 1, 1, NOBODY, 0)
        send(stranger, hello.encode() if number % 16 else choose.randbytes(choose.randrange(100)))
        send(stranger, spoiled(choose.choice(frames), choose))
    await_read(stranger, victim, FRAMES)
    after = victim.statistics()
    assert after["refused_frame"] - before.get("refused_frame", 0) > FRAMES / 50
    assert resident_bytes(victim.pids["zf-daemon"]) - size < GROWTH_MAX
    victim.is_well()


def await_read(stranger: Any, victim: Victim, daemons: int) -> None:
    """Wait until the head has read all that came on this connection: it answers the hello of one more daemon of that node."""
    last = b"the last"
    for attempt in range(1, FRAMES):  # "Dial again" is the answer to earlier garbage, or to a hello on a connection that was open.
        send(stranger, Hello(m.PROTOCOL_VERSION, victim.other, last, daemons, attempt, NOBODY, 0).encode())
        answer = None
        while answer != DIAL_AGAIN:
            assert stranger.poll(60_000), "the head has stopped reading"
            answer = stranger.recv()
            if answer.startswith(MAGIC) and len(answer) == HELLO_BYTES and read_hello(answer).meant == last:
                return
    pytest.fail("the head accepts no hello")


def test_garbage_of_a_node_at_the_transfer_port_is_refused(victim: Victim, context: zmq.Context[Any]) -> None:
    kinds = {kind.__name__ for kind in FROM_AGENTS}
    frames = corpus(kinds, lambda message: encode(0, 0, [(TRANSFER_AGENT, TRANSFER_AGENT, message)]))
    choose = random.Random(15)
    size = resident_bytes(victim.pids["zf-transfer"])
    stranger = connection(context, victim.ports["transfer"], victim.server_key, victim.stolen)
    for _ in range(FRAMES):
        more = [choose.randbytes(choose.randrange(100)) for _ in range(choose.choice((0, 0, 1, 3)))]
        send(stranger, spoiled(choose.choice(frames), choose), *more)
    assert resident_bytes(victim.pids["zf-transfer"]) - size < GROWTH_MAX
    victim.is_well()


def test_a_nodes_key_with_another_nodes_name_is_sent_away(victim: Victim, context: zmq.Context[Any]) -> None:
    before = victim.statistics().get("refused_name", 0)
    stranger = connection(context, victim.ports["control"], victim.server_key, victim.stolen)
    send(stranger, Hello(m.PROTOCOL_VERSION, b"somebody", b"daemon..", 9, 1, NOBODY, 0).encode())
    assert stranger.poll(60_000)
    assert stranger.recv() == DIAL_AGAIN
    assert victim.statistics()["refused_name"] == before + 1


# --- secrets ------------------------------------------------------------------------------------------------------------------------


def test_no_secret_is_in_arguments_environments_logs_or_tables(victim: Victim) -> None:
    secrets = [pair.secret for pair in (victim.role, victim.stolen)]
    looked = 0
    for supervisor in (node.pid for node in victim.cluster.nodes):
        for pid in (supervisor, *descendants(supervisor)):
            with contextlib.suppress(OSError):  # A worker of a program that came and went may just have ended.
                shown = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
                assert not any(secret in shown for secret in secrets)
                looked += 1
    assert looked >= 8, "supervisor, daemon, template and agent of each"
    directory = Path(victim.session.directory)
    files = [path for path in directory.rglob("*") if path.is_file() and "key" not in path.name]
    assert any(path.suffix == ".err" for path in files)
    for path in files:
        assert not any(secret in path.read_bytes() for secret in secrets), path
