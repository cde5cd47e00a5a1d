"""What a user can get wrong with a cluster of several nodes: each is refused within 10 s, with an error that says what to do.

========================================================================  ==============================================================
what                                                                      where it is tested
========================================================================  ==============================================================
nobody there; no such host; no route; no name server; somebody else       here
no key file; one that others can read; one of another cluster             here
a revoked key                                                             here
a bind beyond loopback without keys                                       here
another release, protocol, Python minor, cloudpickle major, hash seed     here, and ``test_registry``: a node that does not fit
another Python minor version in a program                                 ``test_api``
clocks off                                                                here: nothing depends on them
a node joins twice                                                        ``test_registry``: another node with the same id
``--head`` on a port in use; other ports in use                           here
hard affinity to a node that is unknown, or dies                          ``test_delegation``: a node that does not exist; a death
a ``runtime_env`` that a node cannot make; a directory over the limit     here
a value larger than the reader's store                                    ``test_transfer_machine``: a value larger than the store
========================================================================  ==============================================================
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from faults import eventually
from relay import free_port
from scheduler_alone import FUNCTION, JOB, OWN, Node, row

import zfabric as zf
from zfabric.cli.main import program
from zfabric.config import Config
from zfabric.machines.member.machine import JOIN_SECONDS
from zfabric.machines.registry import Registry
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import CONTROL_STORE, JOINER, LOCAL_SCHEDULER, MEMBER, REGISTRY, first_attempt
from zfabric.runtime import cluster as joining
from zfabric.runtime.cluster import endpoint, parse_address, revoke_keys, versions
from zfabric.runtime.keys import read_keys
from zfabric.runtime.launch import launch
from zfabric.runtime.session import HEAD_SUFFIX, STARTED, ClusterSettings, Session, find_sessions
from zfabric.util.scheduling_strategies import NodeAffinitySchedulingStrategy

SECONDS = 10.0
"""Within which each of these is refused."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[zf.LocalCluster]:
    """A head, which tests leave as it is."""
    with zf.LocalCluster(nodes=1, cpus_per_node=1, object_store_memory=64 * 2**20) as made:
        yield made


def settings(address: str, key_file: str, **more: Any) -> ClusterSettings:
    """Those of a node that is to join."""
    return ClusterSettings(False, "", 0, address, key_file, "", (), "")._replace(**more)


def head_session(cluster: zf.LocalCluster) -> Session:
    """The session of the head."""
    return next(session for session in find_sessions() if session.supervisor()[0] == cluster.nodes[0].pid)


def key_file(cluster: zf.LocalCluster, tmp_path: Path) -> str:
    """A copy of the cluster's key file."""
    path = tmp_path / "cluster.key"
    shutil.copy(head_session(cluster).cluster_key, path)
    path.chmod(0o600)
    return str(path)


def why_not(cluster: ClusterSettings) -> str:
    """Start a node that cannot join; return what it says. What it waits for takes ``SECONDS``, and a busy machine may start it slowly."""
    until = time.monotonic() + 6 * SECONDS
    launched = launch(kind=STARTED, resources={"CPU": 1.0}, arena_size=0, cluster=cluster)
    try:
        with pytest.raises((zf.FabricError, ConnectionError)) as caught:
            while True:  # The session ends by itself, and its file has the reason.
                reason = launched.session.failure() or launched.failure()
                assert launched.session.membership() is None, "it has joined"
                assert time.monotonic() < until, "it waits for ever"
                if reason or not launched.alive():
                    raise zf.ConnectionLostError(reason)
                time.sleep(0.01)  # Another process writes that file.
    finally:
        launched.close()
    return str(caught.value)


# --- addresses ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "no-such-host.invalid"])
def test_where_nobody_is_the_error_names_host_port_and_what_was_tried(host: str) -> None:
    port = free_port()
    address = endpoint(host, port)
    with pytest.raises(zf.ConnectionLostError) as caught:
        zf.init(address)
    assert address in str(caught.value)
    assert f"a TCP connection to host {host}, port {port} failed" in str(caught.value)


def test_a_host_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind no route, or a firewall that drops: nothing comes back."""
    monkeypatch.setattr(joining, "REACH_SECONDS", 0.2)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(8)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        with pytest.raises(zf.ConnectionLostError, match=r"no answer within 0.2 s"):
            joining.reach(endpoint(*full.getsockname()))
        for each in waiting:
            each.close()


def test_a_name_that_no_server_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """``getaddrinfo`` has no time limit: resolvers ask several servers several times."""
    over, asked = threading.Event(), []

    def look_up(*arguments: Any) -> None:
        asked.append(arguments)
        over.wait()
        raise OSError("nobody has answered")

    monkeypatch.setattr(joining, "REACH_SECONDS", 0.2)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    try:
        with pytest.raises(zf.ConnectionLostError, match=r"host slow.invalid, port 6790 failed \(no answer within 0.2 s\)"):
            zf.init("tcp://slow.invalid:6790")
        assert len(asked) == 2, "once for nodes of this machine, once to connect"
    finally:
        over.set()


def test_a_name_is_shown_with_its_number() -> None:
    port = free_port()
    with pytest.raises(zf.ConnectionLostError, match=rf"host localhost \(127.0.0.1\), port {port} failed \(Connection refused\)"):
        zf.init(f"tcp://localhost:{port}")


def test_all_that_is_tried_fits_into_the_time() -> None:
    starting = 0.5
    assert 2 * joining.REACH_SECONDS < SECONDS, "a program looks for a node here, and then for the head"
    assert joining.REACH_SECONDS + starting + JOIN_SECONDS <= SECONDS, "a node looks for the head, starts, and asks to join"


def test_somebody_else_at_the_address_is_named_with_the_key_file(cluster: zf.LocalCluster, tmp_path: Path) -> None:
    """A server that is no head of a cluster accepts, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        held: list[socket.socket] = []
        thread = threading.Thread(target=lambda: _accept_all(other, held), daemon=True)
        thread.start()
        port, path = other.getsockname()[1], key_file(cluster, tmp_path)
        text = why_not(settings(f"tcp://127.0.0.1:{port}", path))
    assert f"the cluster at host 127.0.0.1, port {port} has not accepted this node" in text
    assert path in text


def _accept_all(server: socket.socket, held: list[socket.socket]) -> None:
    try:
        while True:
            held.append(server.accept()[0])
    except OSError:
        return


@pytest.mark.parametrize("address", ["tcp://host", "tcp://:5", "tcp://host:0", "tcp://host:65536", "tcp://::1:6790", "tcp://a/b:5"])
def test_what_is_no_address_is_said(address: str) -> None:
    with pytest.raises(zf.ConfigError, match="no address of a cluster"):
        parse_address(address)


def test_an_ipv6_address_is_in_brackets() -> None:
    assert parse_address("tcp://[::1]:6790") == ("::1", 6790)
    assert endpoint("::1", 6790) == "tcp://[::1]:6790"


def test_nodes_meet_at_an_ipv6_address(tmp_path: Path) -> None:
    path = str(tmp_path / "cluster.key")
    joining.make_keys(path)
    head = launch(kind=STARTED, resources={"CPU": 1.0}, cluster=ClusterSettings(True, "::1", 0, "", path, "head", (), ""))
    try:
        address = _address_of(head.session)
        assert address.startswith("tcp://[::1]:")
        node = launch(kind=STARTED, resources={"CPU": 1.0}, cluster=settings(address, path))
        try:
            assert _address_of(node.session).startswith("tcp://[::1]:")
            with zf.init(address):
                on = NodeAffinitySchedulingStrategy(str(node.session.describe()["node"]), soft=False)
                assert len(zf.get(zf.remote(os.urandom).options(scheduling_strategy=on).remote(200_000), timeout=60)) == 200_000
                there = zf.get(zf.remote(zf.util.get_node_ip_address).options(scheduling_strategy=on).remote(), timeout=60)
                assert [there, zf.util.get_node_ip_address(), zf.nodes()[0]["NodeManagerAddress"]] == ["::1"] * 3
        finally:
            node.close()
    finally:
        head.close()


# --- keys ---------------------------------------------------------------------------------------------------------------------------


def test_no_key_file_and_one_that_others_can_read_are_refused_before_anything_starts(cluster: zf.LocalCluster, tmp_path: Path) -> None:
    before = find_sessions()
    with pytest.raises(zf.ConfigError, match=r"there is no key file .*missing: zfabric start --head makes it, on the head; copy it from"):
        launch(kind=STARTED, cluster=settings(cluster.address, str(tmp_path / "missing")))
    path = key_file(cluster, tmp_path)
    os.chmod(path, 0o644)
    with pytest.raises(zf.ConfigError, match=f"others can read the key file {path}: run chmod 600 {path}"):
        launch(kind=STARTED, cluster=settings(cluster.address, path))
    assert [each.directory for each in find_sessions()] == [each.directory for each in before]


def test_a_bind_beyond_loopback_needs_keys(tmp_path: Path, cluster: zf.LocalCluster) -> None:
    with pytest.raises(zf.ConfigError, match="there is no key file"):
        launch(kind=STARTED, cluster=settings(cluster.address, str(tmp_path / "missing"), host="0.0.0.0"))
    head = ClusterSettings(True, "0.0.0.0", 0, "", str(tmp_path / "missing"), "", (), "")
    with pytest.raises(zf.ConfigError, match="there is no key file"):
        launch(kind=STARTED, cluster=head)


def test_keys_of_another_cluster_are_refused(cluster: zf.LocalCluster, tmp_path: Path) -> None:
    path = str(tmp_path / "other.key")
    joining.make_keys(path)
    text = why_not(settings(cluster.address, path))
    assert "has not accepted this node" in text
    assert f"The key file must be the one of that cluster: {path}" in text


def test_a_node_that_is_not_the_head_admits_none_and_the_error_says_who_does() -> None:
    with zf.LocalCluster(nodes=2, cpus_per_node=1, object_store_memory=64 * 2**20) as own:
        text = why_not(settings(own.nodes[1].address, own.key_file))
    assert "The address must be that of the head (zfabric nodes shows it), which alone admits nodes." in text


@pytest.mark.parametrize(
    ("name", "labels", "resources", "text"),
    [
        ("n" * 4097, {}, {}, "the name of a node has at most 4,096 bytes, not 4,097"),
        ("", {"a": "\u00e9" * 2049}, {}, "a label of a node, its name or its value, has at most 4,096 bytes, not 4,098"),
        ("", {"l" * 5000: "a"}, {}, "a label of a node"),
        ("", {f"l{each}": "" for each in range(1001)}, {}, "at most 1,000 labels, not 1,001"),
        ("", {}, {f"r{each}": 1.0 for each in range(1001)}, "at most 995 resources, not 1,001"),
        ("", {f"l{each}": "a" * 4000 for each in range(20)}, {}, "at most 49,152 bytes together"),
    ],
)
def test_what_the_head_would_not_read_is_refused_before_anything_starts(
    tmp_path: Path, name: str, labels: dict[str, str], resources: dict[str, float], text: str
) -> None:
    node = ClusterSettings(False, "127.0.0.1", 0, f"tcp://127.0.0.1:{free_port()}", "", name, tuple(labels.items()), "")
    with pytest.raises(zf.ConfigError, match=text):
        launch(kind=STARTED, resources=resources, cluster=node, base=str(tmp_path))
    assert not os.listdir(tmp_path)


def test_labels_and_namespaces_of_single_nodes_have_the_same_bounds(tmp_path: Path) -> None:
    with pytest.raises(zf.ConfigError, match="a label of a node"):
        launch(labels=(("a", "b" * 4097),), base=str(tmp_path))
    with pytest.raises(zf.ConfigError, match="the namespace of programs"):
        launch(namespace="b" * 4097, base=str(tmp_path))
    assert not os.listdir(tmp_path)


def test_the_most_labels_that_are_allowed_are_read_by_the_head(cluster: zf.LocalCluster) -> None:
    node = cluster.add_node(labels={f"l{each}": "v" * 4000 for each in range(11)})
    cluster.remove_node(node)


def test_a_revoked_key_admits_nobody_and_nodes_go_on(tmp_path: Path) -> None:
    path = str(tmp_path / f"of-{tmp_path.name}.key")
    name = f"of-{tmp_path.name}"
    joining.make_keys(path)
    head = ClusterSettings(True, "127.0.0.1", 0, "", path, "head", (), "")
    launched = launch(kind=STARTED, resources={"CPU": 1.0}, arena_size=0, cluster=head)
    try:
        old = str(tmp_path / "old.key")
        shutil.copy(path, old)
        address = _address_of(launched.session)
        joined = launch(kind=STARTED, resources={"CPU": 1.0}, arena_size=0, cluster=settings(address, old))
        try:
            _address_of(joined.session)
            before = read_keys(path)
            assert [each.directory for each in revoke_keys(path)] == [launched.session.directory]
            assert read_keys(path) == read_keys(launched.session.cluster_key) != before
            os.unlink(path)
            os.unlink(path + HEAD_SUFFIX)
            assert not _joins_no_more(address, launched.session.cluster_key), "without its files, too, the head admits who has a copy"
            listed = CliRunner().invoke(program, ["keys", "list"])
            assert re.search(rf"^{name} +node .* join +{path} \(removed; the running head has a copy\)$", listed.output, re.MULTILINE), (
                listed
            )
            old = str(tmp_path / "newer.key")
            shutil.copy(launched.session.cluster_key, old)
            revoked = CliRunner().invoke(program, ["keys", "revoke", name])
            assert "the running head takes it" in revoked.output, revoked
            after = read_keys(path)
            assert (after.server, after.node == before.node) == (before.server, False)
            eventually(lambda: _joins_no_more(address, old), "the head has looked at the file")
            assert joined.alive()
            again = launch(kind=STARTED, resources={"CPU": 1.0}, arena_size=0, cluster=settings(address, path))
            try:
                assert _address_of(again.session)
            finally:
                again.close()
        finally:
            joined.close()
    finally:
        launched.close()
    with pytest.raises(zf.ConfigError, match="keys are revoked where they were made, on the head"):
        revoke_keys(old)


def _address_of(session: Session) -> str:
    """The address of a node, once it has joined."""

    def membership() -> Any:
        assert session.alive(), session.failure()
        return session.membership()

    return str(eventually(membership, "it has joined").address)


def _joins_no_more(address: str, path: str) -> bool:
    """Whether a node with this key file does not join any more; it is ended at once if it does."""
    launched = launch(kind=STARTED, resources={"CPU": 1.0}, arena_size=0, cluster=settings(address, path))
    try:
        eventually(lambda: not launched.alive() or launched.session.membership(), "it has joined, or ended")
        return launched.session.membership() is None
    finally:
        launched.close()


# --- versions -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["zfabric", "Python", "cloudpickle", "PYTHONHASHSEED"])
def test_another_version_is_refused_with_both(what: str) -> None:
    ours = versions("7")
    theirs = tuple((name, "0.0" if name == what else version) for name, version in ours)
    registry = Registry(REGISTRY + OWN, b"headhead", Config(), CONTROL_STORE + OWN, ours, 0)
    registry.take_effects(0.0)
    registry.step(0.0, CONTROL_STORE + OWN, m.Found(1, (), False))
    registry.take_effects(0.0)
    join = m.Join(m.PROTOCOL_VERSION, b"nodenode", 0, "n", 1, b"k" * 40, "", "", (), (), theirs)
    registry.step(0.0, MEMBER + JOINER + b"12345", join)
    (refused,) = [effect.message for effect in registry.take_effects(0.0)]  # type: ignore[union-attr]
    assert refused == m.Refused("VersionMismatchError", f"this cluster has {what} {dict(ours)[what]}, the node 0.0")


def test_versions_name_all_that_must_be_the_same() -> None:
    assert [name for name, _ in versions("7")] == ["zfabric", "Python", "cloudpickle", "PYTHONHASHSEED"]


def test_nothing_that_nodes_decide_depends_on_the_time_of_day() -> None:
    """So a node may join whose clock is off: leases and deadlines are each node's own durations (docs/limits.md)."""
    package = Path(zf.__file__).parent
    readers = [
        str(path.relative_to(package))
        for room in ("protocol", "machines", "shell", "adapters", "runtime")
        for path in (package / room).rglob("*.py")
        if re.search(r"time\.time(_ns)?\(|datetime\.(now|utcnow)|CLOCK_REALTIME", path.read_text())
    ]
    shown_to_people = ["runtime/debugger.py", "runtime/session.py", "runtime/supervisor.py"]
    written_to_files = ["runtime/session_files.py"]  # Their times keep cleaners of /tmp away.
    assert sorted(readers) == sorted(shown_to_people + written_to_files)


# --- ports --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["port", "transfer_port"])
@pytest.mark.parametrize("head", [True, False])
def test_a_port_in_use_is_named(cluster: zf.LocalCluster, tmp_path: Path, which: str, head: bool) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        if head:
            path = str(tmp_path / "cluster.key")
            joining.make_keys(path)
            wanted = ClusterSettings(True, "127.0.0.1", 0, "", path, "", (), "")._replace(**{which: port})
        else:
            wanted = settings(cluster.address, key_file(cluster, tmp_path), **{which: port})
        with pytest.raises(zf.ConfigError, match=f"cannot listen on host 127.0.0.1, port {port}: Address already in use"):
            launch(kind=STARTED, cluster=wanted)


# --- paths --------------------------------------------------------------------------------------------------------------------------


def test_an_environment_that_a_node_cannot_make_is_named_with_the_node() -> None:
    here, there = b"thisnode", b"\x02node B."
    executor = Node()
    rows = tuple((node, number, f"n{number}", "", "", b"", (), (), 0) for number, node in enumerate((there, here), 1))
    executor.send(MEMBER + OWN, m.NodeTable(1, rows))
    executor.send(LOCAL_SCHEDULER + there, m.RegisterNode(m.PROTOCOL_VERSION, there))
    executor.send(LOCAL_SCHEDULER + there, m.Ready())
    environment = ("env", ((), "/data/project", ()))
    given = m.Delegate((JOB, "", there), ((FUNCTION, "f", b"", (environment,)),), (row(1),), (), (), (), first_attempt(0, 1))
    executor.send(LOCAL_SCHEDULER + there, given)
    (token,) = [token for token in executor.pids if executor.scheduler.tables.workers[token].environment[1]]
    executor.send(b"X" + OWN, m.WorkerSpawned(token, 0, "no '/data/project'"))
    ((_, ended),) = executor.take(m.Ended)
    kind, text, _ = unpack_failure(m.Completed(*ended.completed).outputs[0][0])
    assert kind == "RuntimeEnvSetupError"
    assert "'/data/project'" in text
    assert f"on node n2 ({here.hex()})" in text


def test_a_directory_over_the_limit_is_refused_with_its_largest_files(tmp_path: Path) -> None:
    for name, size in (("small.py", 10), ("large.bin", 2_000_000), ("ignored.bin", 2_000_000)):
        (tmp_path / name).write_bytes(bytes(size))
    (tmp_path / ".zfabricignore").write_text("ignored.*\n")
    text = r"1\.9 MiB in 3 files, and at most 1\.0 MiB \(config 'package_bytes'\).*: large\.bin \(1\.9 MiB\), .*\.zfabricignore"
    refused = pytest.raises(zf.RuntimeEnvSetupError, match=text)
    with refused, zf.init(address="local", num_cpus=1, config={"package_bytes": 2**20}, runtime_env={"working_dir": tmp_path}):
        pass
    assert not zf.is_initialized()
