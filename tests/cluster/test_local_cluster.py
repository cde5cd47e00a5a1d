"""Clusters of several nodes with real processes: how nodes join, run each other's tasks, die and leave."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy
import pytest
from click.testing import CliRunner
from command_line import ZFABRIC, Place, a_place
from faults import LEASE, PATIENCE, descendants, eventually, gone, name_of, on_node, query
from relay import free_port

import zfabric as zf
from zfabric.adapters import processes
from zfabric.cli.main import program
from zfabric.runtime.connect import await_registered
from zfabric.runtime.keys import read_keys, read_server_pair
from zfabric.runtime.session import Session, find_sessions
from zfabric.util import placement_group, remove_placement_group, state
from zfabric.util.scheduling_strategies import In, NodeAffinitySchedulingStrategy, NodeLabelSchedulingStrategy


def listening() -> dict[str, int]:
    """The TCP addresses at which this machine listens ("host:port"), each with the inode of its socket."""
    found = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A":
            host, port = fields[1].split(":")
            found[f"{socket.inet_ntoa(bytes.fromhex(host)[::-1])}:{int(port, 16)}"] = int(fields[9])
    return found


def ports_of(supervisor: int) -> list[str]:
    """The TCP addresses at which the processes of a node listen."""
    inodes = set()
    for pid in (supervisor, *descendants(supervisor)):
        with suppress(OSError):  # A process may just have gone,
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with suppress(OSError):  # or a descriptor.
                    inodes.add(os.readlink(entry.path))
    return [address for address, inode in listening().items() if f"socket:[{inode}]" in inodes]


def session_of(node: Any) -> Session:
    """The session of a node."""
    return next(session for session in find_sessions() if session.supervisor()[0] == node.pid)


def agents_of(node: Any) -> list[int]:
    """The transfer agents of a node."""
    return [pid for pid in descendants(node.pid) if name_of(pid) == "zf-transfer"]


def where(seconds: float = 0.1) -> tuple[str, int, int]:
    """A task: where it runs, its process, and the hash of a text there."""
    time.sleep(seconds)
    print("a line")
    return zf.get_runtime_context().get_node_id(), os.getpid(), hash("text")


@pytest.fixture(scope="module")
def cluster() -> Iterator[zf.LocalCluster]:
    """Two nodes of one CPU, which tests leave as they are."""
    with zf.LocalCluster(nodes=2, cpus_per_node=1, object_store_memory=64e6, config={"preload": ("pytest", "numpy")}) as made:
        yield made


@pytest.fixture
def driver(cluster: zf.LocalCluster) -> Iterator[zf.LocalCluster]:
    """The same, with this program connected."""
    with zf.init(cluster.address):
        yield cluster


def run_on_both(cluster: zf.LocalCluster) -> list[tuple[str, int, int]]:
    """Run tasks until each node has had some; where each ran."""
    rows: list[tuple[str, int, int]] = []

    def both() -> bool:
        rows.extend(zf.get([zf.remote(where).remote() for _ in range(12)], timeout=60))
        return {node for node, _, _ in rows} == {node.node_id for node in cluster.nodes}

    eventually(both, "both nodes have had some")
    return rows


def have_registered(cluster: zf.LocalCluster) -> bool:
    """Whether each node may give tasks to every other one."""
    nodes = {node.node_id for node in cluster.nodes}
    return all({node, *query("at", bytes.fromhex(node), "registered")} == nodes for node in nodes)


class Registering:
    """A client of a cluster whose nodes register with each other, one pair at each question. One of them does not answer."""

    def __init__(self, nodes: tuple[str, ...], silent: str) -> None:
        self.silent = silent
        self.later = [pair for pair in permutations(nodes, 2) if silent not in pair]
        self.registered: list[tuple[str, str]] = []

    def query(self, what: str, node: bytes, query: str) -> list[str]:
        """The nodes that have registered with one."""
        assert (what, query) == ("at", "registered")
        if node.hex() == self.silent:
            raise zf.FabricError("no answer")
        self.registered += self.later[:1]
        del self.later[:1]
        return [there for here, there in self.registered if here == node.hex()]


def test_nodes_are_waited_for_until_each_has_registered_with_every_other() -> None:
    client: Any = Registering(nodes := ("aa", "bb", "cc", "dd"), "cc")
    await_registered(client, nodes)
    assert not client.later
    assert len(client.registered) == 6, "the one that does not answer is not waited for"


def test_two_nodes_run_a_job_and_end_it(driver: zf.LocalCluster, capfd: pytest.CaptureFixture[str]) -> None:
    rows = run_on_both(driver)
    assert len({value for _, _, value in rows}) == 1, "all workers share a hash seed"
    other = {pid for node, pid, _ in rows if node == driver.nodes[1].node_id}
    printed = ""

    def lines() -> bool:
        nonlocal printed
        printed += capfd.readouterr().out
        return printed.count("a line") == len(rows)

    eventually(lines, "the output of both nodes")
    assert all(f"on node2 pid={pid})" in printed for pid in other)
    zf.shutdown()
    eventually(lambda: all(gone(pid) for _, pid, _ in rows), "the job's processes are gone on both nodes")


def test_a_program_joins_its_cluster_without_an_address(cluster: zf.LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZFABRIC_ADDRESS", raising=False)
    zf.shutdown()
    assert zf.get(zf.remote(lambda: len(zf.nodes())).remote()) == 2, "without init, too"
    zf.shutdown()
    with zf.init("auto"):
        assert len(zf.nodes()) == 2
    with zf.init(num_cpus=1):
        assert len(zf.nodes()) == 1, "options of a new cluster start one"
    second = cluster.nodes[1]
    monkeypatch.setenv("ZFABRIC_ADDRESS", second.address)
    for address in (None, "auto"):
        with zf.init(address):
            assert zf.get_runtime_context().get_node_id() == second.node_id, "what submits a program says where it runs"


def test_a_node_lists_all_and_jobs_of_all_nodes_have_different_numbers(cluster: zf.LocalCluster) -> None:
    jobs, listed = [], []
    for node in cluster.nodes:
        with zf.init(node.address) as context:
            assert context["node_id"] == node.node_id
            jobs.append(context["job_id"])
            listed.append(
                [(row["NodeID"], row["NodeName"], f"tcp://{row['NodeManagerAddress']}:{row['NodeManagerPort']}") for row in zf.nodes()]
            )
            assert zf.cluster_resources()["CPU"] == 2.0
            assert 0 < zf.cluster_resources()["memory"] < processes.memory_total(), "nodes of one machine share it"
            run_on_both(cluster)
    assert jobs[0] != jobs[1]
    assert listed == [[(node.node_id, node.name, node.address) for node in cluster.nodes]] * 2


def test_a_program_that_one_node_can_run_sends_nothing_to_others() -> None:
    def sent() -> Counter[str]:
        return Counter({name: int(count) for name, count in query("status")["statistics"].items() if name.startswith("to_nodes_")})

    config = {"spill_after": 600.0}  # No start of a worker is long enough that others would be asked for help.
    with zf.LocalCluster(nodes=2, cpus_per_node=1, object_store_memory=64 * 2**20, config=config) as cluster, zf.init(cluster.address):
        eventually(lambda: have_registered(cluster), "all have registered")
        before = sent()
        assert before["to_nodes_RegisterNode"] == 1, "messages are counted once"
        counter = zf.remote(Counting).remote()
        assert zf.get([zf.remote(lambda: 1).remote() for _ in range(5)], timeout=60) == [1] * 5
        assert zf.get([counter.add.remote() for _ in range(20)], timeout=60) == list(range(1, 21))
        assert zf.get([zf.put(bytes(100 * number)) for number in range(2000)], timeout=60)[-1] == bytes(199_900)
        assert set(sent() - before) <= {f"to_nodes_{name}" for name in ("LeaseRenewed", "Heartbeat")}


class Counting:
    """An actor."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count


def test_options_say_on_which_node_tasks_run(driver: zf.LocalCluster) -> None:
    def nodes_of(count: int, strategy: object) -> list[str]:
        remote = zf.remote(where).options(scheduling_strategy=strategy)
        return [node for node, _, _ in zf.get([remote.remote(0.0) for _ in range(count)], timeout=60)]

    run_on_both(driver)  # Each has a worker: spread tasks leave a node that ends none of them.
    first, second = (node.node_id for node in driver.nodes)
    assert sorted(nodes_of(6, "SPREAD")) == sorted([first, second] * 3)
    for soft in (False, True):
        assert set(nodes_of(3, NodeAffinitySchedulingStrategy(second, soft))) == {second}
    assert len(nodes_of(1, NodeAffinitySchedulingStrategy("00" * 8, soft=True))) == 1
    with pytest.raises(zf.TaskUnschedulableError, match="not in this cluster"):
        nodes_of(1, NodeAffinitySchedulingStrategy("00" * 8, soft=False))
    assert set(nodes_of(3, NodeLabelSchedulingStrategy({"ray.io/node-id": In(second)}))) == {second}


def test_rows_have_the_ids_of_their_nodes(driver: zf.LocalCluster) -> None:
    class Resident:
        pass

    run_on_both(driver)
    nodes = [node.node_id for node in driver.nodes]
    places = [on_node(node) for node in nodes]
    actors = [zf.remote(Resident).options(num_cpus=0, scheduling_strategy=place).remote() for place in places]
    zf.get([actor.__ray_ready__.remote() for actor in actors], timeout=60)
    assert [state.get_actor(actor._actor_id.hex()).node_id for actor in actors] == nodes
    assert {row.node_id for row in state.list_workers()} == set(nodes)


def test_refs_and_handles_in_closures_are_known_on_other_nodes(driver: zf.LocalCluster) -> None:
    small, large = zf.put(5), zf.put(numpy.ones(10**5))
    here, there = (on_node(node) for node in driver.nodes)

    @zf.remote(num_cpus=0)
    class Adder:
        def __init__(self) -> None:
            self.first = zf.get(small)

        def add(self) -> Any:
            return self.first + zf.get(large).sum()

    made = Adder.options(scheduling_strategy=here).remote()

    @zf.remote
    def captures(depth: int) -> Any:
        mine = zf.get(small), zf.get(large).sum(), zf.get(made.add.remote())
        below = captures.options(scheduling_strategy=here if depth % 2 else there)
        return (*mine, *(zf.get(below.remote(depth - 1)) if depth else ()))

    once = (5, 10**5, 10**5 + 5)
    assert zf.get(Adder.options(scheduling_strategy=there).remote().add.remote(), timeout=60) == once[2]
    assert zf.get(captures.options(scheduling_strategy=there).remote(2), timeout=60) == once * 3


def test_recursion_over_two_nodes_of_one_cpu_ends(driver: zf.LocalCluster) -> None:
    @zf.remote(scheduling_strategy="SPREAD")
    def fib(n: int) -> int:
        return n if n < 2 else sum(zf.get([fib.remote(n - 1), fib.remote(n - 2)]))

    assert zf.get(fib.remote(7), timeout=60) == 13


def test_each_node_has_a_transfer_agent_which_is_restarted(cluster: zf.LocalCluster) -> None:
    for node in cluster.nodes:
        eventually(partial(agents_of, node), "a transfer agent")
        (first,) = agents_of(node)
        os.kill(first, signal.SIGKILL)
        eventually(lambda dead=first, node=node: agents_of(node) not in ([], [dead]), "another one")


def test_a_node_has_two_ports_which_are_bound_to_loopback_and_an_embedded_cluster_none(cluster: zf.LocalCluster) -> None:
    for node in cluster.nodes:
        transfer = session_of(node).describe()["transfer"]
        assert sorted(ports_of(node.pid)) == sorted(each.removeprefix("tcp://") for each in (node.address, transfer))
    assert all(node.address.startswith("tcp://127.0.0.1:") for node in cluster.nodes)
    with zf.init("local", num_cpus=1) as context:
        assert ports_of(Session(context["address"]).describe()["supervisor"]) == []


def test_no_secret_is_in_arguments_environments_or_logs(cluster: zf.LocalCluster) -> None:
    def read(path: Path) -> bytes:
        with suppress(OSError):  # Its process has just ended.
            return path.read_bytes()
        return b""

    keys = read_keys(cluster.key_file)
    pairs = [keys.node, read_server_pair(cluster.key_file + ".head")]
    pairs += [read_server_pair(f"{node.session_directory}/key") for node in cluster.nodes[1:]]
    for node in cluster.nodes:
        logs = list(Path(node.session_directory, "logs").iterdir())
        shown = [Path(f"/proc/{pid}/{name}") for pid in (node.pid, *descendants(node.pid)) for name in ("cmdline", "environ")]
        text = b"".join(read(path) for path in (*shown, *logs, Path(node.session_directory, "session.json")))
        assert b"PYTHONHASHSEED" in text
        assert not [pair for pair in pairs if pair.secret in text]
        assert not [path for path in Path(node.session_directory).glob("*key*") if path.stat().st_mode & 0o077]


@zf.remote
def put_here(*values: bytes, durable: bool) -> list[Any]:
    """Put values on the node where this runs."""
    return [zf.put(value, durable=durable) for value in values]


def test_tasks_of_killed_nodes_run_elsewhere_and_one_that_was_paused_is_fenced() -> None:
    """Of what was put there, the durable values are left: also those that nobody else had read."""
    with zf.LocalCluster(nodes=1, cpus_per_node=1, object_store_memory=64 * 2**20, config={"node_lease": LEASE}) as cluster:
        victim, paused = cluster.add_node(labels={"kind": "victim"}), cluster.add_node(num_cpus=2)
        with zf.init(cluster.address):
            assert [row["Labels"] for row in zf.nodes()] == [{}, {"kind": "victim"}, {}]
            there = put_here.options(label_selector={"kind": "victim"})
            small, large = b"kept", os.urandom(3 * 2**20)
            durable, lost = zf.get([there.remote(small, large, durable=True), there.remote(b"not kept", durable=False)], timeout=60)
            boxed = zf.get(
                zf.remote(lambda refs: [zf.put(refs, durable=True)]).options(label_selector={"kind": "victim"}).remote(durable[:1])
            )
            refs = [zf.remote(where).remote(0.5) for _ in range(12)]
            eventually(lambda: query("status")["statistics"].get("delegated", 0) > 2, "others have some")
            victim.kill()
            paused.pause()
            eventually(lambda: len(zf.nodes()) == 1, "both are declared dead")
            assert zf.get(durable, timeout=60) == [small, large]
            assert zf.get(zf.get(boxed[0], timeout=60), timeout=60) == [small]
            assert zf.get(zf.remote(len).remote(durable[1]), timeout=60) == len(large)
            with pytest.raises(zf.ObjectLostError, match=r"it was put, not made by a task.*durable=True\) would have kept it"):
                zf.get(lost, timeout=60)
            assert len(zf.get(refs, timeout=60)) == 12
            paused.resume()
            eventually(lambda: not paused.alive(), "it is no part of the cluster any more, and ends")


def test_nodes_leave_in_order_and_the_end_of_the_head_is_that_of_the_others() -> None:
    with zf.LocalCluster(nodes=2, cpus_per_node=1, object_store_memory=64 * 2**20, config={"node_lease": 600.0}) as cluster:
        with zf.init(cluster.address):
            added = cluster.add_node()
            eventually(lambda: have_registered(cluster), "all have registered")
            cluster.remove_node(added)
            with pytest.raises(zf.FabricError, match="is no node of this LocalCluster"):
                cluster.remove_node(added)
            eventually(lambda: len(zf.nodes()) == 2, "it has left, long before its lease ends")
            run_on_both(cluster)
        other = cluster.nodes[1]
        cluster.remove_node(cluster.nodes[0])
        eventually(lambda: not other.alive(), "it ends as well, long before its lease does")
        for use in (cluster.add_node, lambda: cluster.address, lambda: cluster.key_file, lambda: cluster.remove_node(other, drain=True)):
            with pytest.raises(zf.FabricError, match="this LocalCluster has ended"):
                use()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"num_cpus": -1}, "num_cpus cannot be negative: -1"),
        ({"resources": {"CPU": 3}}, "'CPU' is asked for with num_cpus="),
        ({"labels": {"zone": 3}}, "labels map names to text, not {'zone': 3}"),
        ({"labels": ["zone"]}, "labels map names to text, not ['zone']"),
        ({"resources": ["disk"]}, "resources is a dict of names and amounts, not ['disk']"),
        ({"memory": -1}, "memory is a number of bytes, not -1"),
        ({"object_store_memory": "1GiB"}, "object_store_memory is a number of bytes, not '1GiB'"),
    ],
)
def test_settings_of_a_node_are_checked_before_it_starts(cluster: zf.LocalCluster, wrong: dict[str, Any], text: str) -> None:
    before = list(cluster.nodes)
    with pytest.raises(ValueError, match=re.escape(text)):
        cluster.add_node(**wrong)
    assert cluster.nodes == before


def test_what_cannot_join_is_refused_with_the_reason(cluster: zf.LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        with pytest.raises(zf.ConnectionLostError, match=rf"host 127.0.0.1, port {port} failed \(Connection refused\)"):
            zf.init(f"tcp://127.0.0.1:{port}")
    for name in ("a..b", "a" * 64):  # They are refused before a name server is asked.
        with pytest.raises(zf.ConnectionLostError, match=rf"host {re.escape(name)}, .* knows no IPv4 address of that name"):
            zf.init(f"tcp://{name}:6790")
    with pytest.raises(zf.ConfigError, match="tcp://HOST:PORT"):
        zf.init("tcp://127.0.0.1")
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    with pytest.raises(zf.VersionMismatchError, match=r"this cluster has PYTHONHASHSEED \d+, the node 5"):
        cluster.add_node()
    assert len(cluster.nodes) == 2


def test_the_command_line_starts_lists_and_stops_the_nodes_of_a_cluster() -> None:
    port = str(free_port())
    with a_place() as place, socket.create_server(("127.0.0.1", int(port))) as probe:
        config = {"XDG_CONFIG_HOME": f"{place.directory}/config"}
        taken = place.run("start", "--head", "--port", port, "--num-cpus", 1, code=2, **config).stderr
        assert f"cannot listen on host 127.0.0.1, port {port}: Address already in use; choose another port" in taken
        probe.close()
        place.run("keys", "create", f"{place.directory}/other", **config)
        head = json.loads(place.run("start", "--head", "--port", port, "--num-cpus", 1, "--json", **config).stdout)
        _join_as_said(place, head, config)
        listed = place.json("nodes")
        assert [(row["name"], row["number"], row["head"]) for row in listed] == [(os.uname().nodename, 1, True), ("second", 2, False)]
        program = f"{place.directory}/program.py"
        Path(program).write_text("import zfabric as zf\nzf.init()\nprint(zf.get_runtime_context().get_node_id())\n")
        assert place.run("submit", program).stdout.strip() == head["node"], "the oldest node here"
        assert place.run("submit", "--address", listed[1]["address"], program).stdout.strip() == listed[1]["node"]
        assert "2 nodes of this cluster run here" in place.run("stop", code=2).stderr
        first, last = place.run("stop", "--cluster").stdout.splitlines()
        assert first.startswith("Stopped a node of the cluster started ")
        assert last.startswith("Stopped the cluster started ")
        assert place.left() == []


OF_TWO_NODES = """
    import os, sys, zfabric as zf
    context = zf.init(address=sys.argv[1])
    kept = [zf.put(b"kept", durable=True)]
    spread = dict(scheduling_strategy="SPREAD")
    put_there = zf.remote(lambda: (zf.get_runtime_context().get_node_id(), zf.put(b"there", durable=True)))
    there = dict(zf.get([put_there.options(**spread).remote() for _ in range(8)]))
    assert len(there) == 2
    kept += there.values()
    if sys.argv[2:]:
        former = [zf.ObjectRef(bytes.fromhex(each)) for each in sys.argv[2].split()]
        assert zf.get(former) == [b"kept", b"there", b"there"]
        again = zf.remote(lambda *values: list(values)).options(**spread)
        assert zf.get([again.remote(*former) for _ in range(4)]) == [[b"kept", b"there", b"there"]] * 4
        try: print("unknown:", zf.get(zf.ObjectRef(former[0].binary()[:-1] + b"7")))
        except zf.ObjectFreedError: pass
    print(context["job_id"], *[each.hex() for each in kept], flush=True)
    if not sys.argv[2:]:
        zf.get(zf.remote(lambda: __import__("time").sleep(1000)).remote())
"""


def test_a_head_that_was_killed_starts_again_on_its_store_and_its_jobs_have_ended() -> None:
    """The next one knows the jobs of the one before, and that they are over; the same nodes' machines join again with their key file.

    It has what those jobs had put as durable, on whichever node.
    """
    with a_place() as place:
        os.makedirs(f"{place.directory}/config")
        more = {"XDG_CONFIG_HOME": f"{place.directory}/config"}
        common = ("--num-cpus", 1, "--object-store-memory", "64MiB", "--config", f"node_lease={LEASE}")
        head = ("start", "--head", "--port", free_port(), "--store", "kept", "--json", *common)

        def jobs() -> dict[str, str]:
            rows = place.json("state", "dump", "kept")
            return {row["key"]: row["value"]["status"] for row in rows if row["table"] == "job"}

        def durable() -> list[str]:
            return [row["key"] for row in place.json("state", "dump", "kept") if row["table"] == "object"]

        started = json.loads(place.run(*head, **more).stdout)
        keys = ("--key-file", f"{place.directory}/config/zfabric/cluster.key")
        join = ("start", "--address", started["address"], *keys, *common)
        place.run(*join, **more)
        sessions = [Session(f"{place.sessions}/{name}") for name in place.left()]
        with place.program(OF_TWO_NODES, started["address"]) as running:
            assert running.stdout is not None
            job, *kept = running.stdout.readline().split()
            assert job == "00000001"
            os.kill(next(each for each in sessions if each.describe()["node"] == started["node"]).supervisor()[0], signal.SIGKILL)
            assert "NodeDiedError" in running.communicate(timeout=60)[1]
        eventually(lambda: not any(each.alive() for each in sessions), "the other node has ended, too")
        assert (jobs(), {*kept} <= {*durable()}) == ({"00000001": "running"}, True)
        again = json.loads(place.run(*head, **more).stdout)
        assert again["address"] == started["address"]
        place.run(*join, **more)
        short = Path(place.directory, "program.py")
        short.write_text(textwrap.dedent(OF_TWO_NODES))
        printed = place.run("submit", "--address", again["address"], short, again["address"], " ".join(kept)).stdout
        assert printed.startswith("00000002 ")
        place.run("stop", "--cluster", "--address", again["address"])
        assert jobs() == {"00000001": "ended", "00000002": "ended"}
        left = {row["table"] for row in place.json("state", "dump", "kept")}
        assert left.isdisjoint(("task", "function")), "nothing of what they had is left"
        assert {*kept} <= {*durable()}, "these remain for further programs"
        assert not [each for each in durable() if each.startswith("00000002")], "the program that has put these has ended by itself"


def _join_as_said(place: Place, head: Any, config: dict[str, str]) -> None:
    """Join with the command that the head has printed, after some that fail."""
    keys = Path(place.directory, "config/zfabric/cluster.key")
    join = ("start", "--address", head["address"], "--num-cpus", 1, "--name", "second")
    keys.chmod(0o644)
    assert f"run chmod 600 {keys}" in place.run(*join, code=2, **config).stderr
    keys.chmod(0o600)
    assert "there is no key file" in place.run(*join, "--key-file", "missing", code=2, **config).stderr
    assert " as second, with 1 CPU, 100 MiB memory." in place.run(*join, "--memory", "100MiB", "--key-file", keys).stdout
    again = json.loads(place.run(*join, "--key-file", keys, "--json").stdout)
    assert again["name"] == "second-3", "another node has the name that it asked for"
    place.run("stop", "--address", again["address"])


# --- tools over all nodes -----------------------------------------------------------------------------------------------------------


def shown(*arguments: str) -> str:
    """What the command line prints."""
    done = CliRunner().invoke(program, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_status_logs_and_timeline_are_of_all_nodes(driver: zf.LocalCluster, tmp_path: Path) -> None:
    rows = run_on_both(driver)
    other = {pid for node, pid, _ in rows if node == driver.nodes[1].node_id}
    status = shown("status", "--address", driver.address)
    assert [line.split()[0] for line in status.splitlines() if " of 1 " in line] == ["node1", "node2"]
    found = json.loads(shown("status", "--json", "--address", driver.address))
    assert [(each["name"], each["node"]) for each in found["nodes"]] == [
        (f"node{number}", node.node_id) for number, node in enumerate(driver.nodes, 1)
    ]
    assert all(each["store"]["capacity"] and each["statistics"]["memory_used"] > 0 for each in found["nodes"])
    assert re.search(r"^job \d+ +.*of node1, at work here for ", shown("status", "--address", driver.nodes[1].address), re.MULTILINE)
    workers = json.loads(shown("workers", "--json", "--address", driver.address))
    assert all(row["memory_bytes"] > 0 for row in workers if row["pid"])
    headings = {line.partition(":")[0] for line in shown("stack", "--address", driver.nodes[1].address).splitlines() if line[:1] in "dw"}
    assert headings >= {f"driver {os.getpid()} on node1"} | {f"worker {pid} on node2" for pid in other}
    for pid in other:
        lines = shown("logs", "--address", driver.address, "--worker", str(pid)).splitlines()
        assert lines
        assert all("a line" in line and f"on node2 pid={pid})" in line for line in lines)
    path = tmp_path / "trace.json"
    zf.timeline(path)
    events = json.loads(path.read_text())
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    ran = [names[event["pid"]] for event in events if event["ph"] == "X" and event["name"].endswith("where")]
    assert {name.split()[1] for name in ran} == {"node1", "node2"}
    assert "attempts" in shown("timeline", "--address", driver.address, "-o", str(path))


def test_the_demand_of_a_cluster_has_what_waits_for_resources_alone(driver: zf.LocalCluster) -> None:
    gadget = zf.remote(resources={"gadget": 1})(max)
    refs = [gadget.remote(1, 2) for _ in range(3)]
    refs.append(zf.remote(max).remote(refs[0], 1))  # It waits for a value.
    refs.append(zf.remote(max).options(scheduling_strategy=NodeLabelSchedulingStrategy(hard={"zone": In("a", "b")})).remote(1, 2))
    group = placement_group([{"CPU": 4}, {"CPU": 1}], strategy="SPREAD")
    run_on_both(driver)

    def found() -> Any:
        return json.loads(shown("status", "--json", "--address", driver.address))

    (first, second), (pending,) = found()["demand"], found()["pending_groups"]
    assert first.pop("oldest_seconds") > 0.0
    assert first == {"resources": {"CPU": 1.0, "gadget": 1.0}, "labels": {}, "ready": 3, "mean_seconds": None, "placeable": "never"}
    assert (second["ready"], second["labels"], second["placeable"]) == (1, {"zone": {"in": ["a", "b"]}}, "never")
    assert [each["resources"] for each in pending["bundles"]] == [{"CPU": 4.0}, {"CPU": 1.0}]
    eventually(lambda: found()["nodes"][1]["idle_seconds"] > 0.0, "the second node is idle")
    assert found()["nodes"][0]["idle_seconds"] == 0.0, "a program is connected there"
    for ref in refs:
        zf.cancel(ref)
    remove_placement_group(group)


def test_a_task_on_another_node_is_listed_there_and_its_stack_is_shown(driver: zf.LocalCluster, tmp_path: Path) -> None:
    @zf.remote(num_cpus=0)
    def held() -> None:
        (tmp_path / "begun").touch()
        while not (tmp_path / "end").exists():
            time.sleep(0.01)

    ref = held.options(scheduling_strategy=on_node(driver.nodes[1])).remote()
    eventually((tmp_path / "begun").exists, "it runs")
    assert re.match(r"worker \d+ on node2: .*held, for ", shown("stack", "--address", driver.address, ref.hex()))
    assert ".held (" in shown("stack", "--address", driver.address, "--seconds", "0.2", ref.hex())
    home, there = (json.loads(shown("status", "--json", "--address", node.address)) for node in driver.nodes)
    assert (home["elsewhere"], home["tasks"]["assigned"], there["tasks"]["running"]) == (1, 1, 1)
    status = shown("status", "--address", driver.address)
    assert "1 on other nodes" in status
    assert [line.split()[-3] for line in status.splitlines() if " of 1 " in line] == ["0", "0"], "none is queued"
    (tmp_path / "end").touch()
    zf.get(ref, timeout=60)


def test_a_node_that_does_not_answer_is_named_by_each_tool(tmp_path: Path) -> None:
    with zf.LocalCluster(nodes=2, cpus_per_node=1, object_store_memory=64 * 2**20, config={"node_lease": 600.0}) as cluster:
        cluster.nodes[1].pause()
        commands = ("status",), ("logs",), ("stack",), ("timeline", "-o", str(tmp_path / "trace.json"))
        command_lines = [[ZFABRIC, *arguments, "--address", cluster.address] for arguments in commands]
        for each in [subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for each in command_lines]:
            printed, _ = each.communicate(timeout=PATIENCE)
            assert each.returncode == 0
            assert "node2" in printed, each.args
        cluster.nodes[1].resume()


def test_what_a_function_captures_is_found_on_every_node(driver: zf.LocalCluster) -> None:
    here, there = (on_node(node) for node in driver.nodes)
    put, large = zf.put("put"), zf.put(bytes(300_000))
    (inner,) = zf.get(zf.remote(lambda: [zf.put("inner")]).options(scheduling_strategy=there).remote(), timeout=60)

    @zf.remote
    def captured() -> Any:
        return zf.get([put, inner]), len(zf.get(large))

    for strategy in (there, here):
        assert zf.get(captured.options(scheduling_strategy=strategy).remote(), timeout=60) == (["put", "inner"], 300_000)
