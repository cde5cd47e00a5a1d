"""What ``zfabric up`` does with what the hosts answer. The hosts are stand-ins, which note what is done to them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from zfabric._version import __version__
from zfabric.launch.cluster_file import HostEntry, read_cluster_file
from zfabric.launch.ssh import Reply, Ssh
from zfabric.launch.up import HostsError, down, look, up

FILE = '[cluster]\nname = "lab"\n[head]\nhost = "node1"\n[[nodes]]\nhosts = ["node2", "node3"]\n'
HEAD_ADDRESS = "tcp://10.0.0.1:6790"


class StandIns(Ssh):
    """Hosts with facts that ``changed`` changes, by host. ``done`` has what they were made to do."""

    def __init__(self, tmp_path: Path, **changed: Any) -> None:
        path = tmp_path / "lab.toml"
        path.write_text(FILE)
        path.chmod(0o600)
        super().__init__(read_cluster_file(str(path)))
        self.changed = changed
        self.done: list[tuple[str, ...]] = []
        self.said: list[str] = []
        self.ended = '{"ended": ["/session"]}'

    def run(self, entry: HostEntry, words: Sequence[str], first: str = "", text: str = "") -> Reply:
        if not words:
            self.done.append((entry.host, first))
            return Reply(0, "THE KEY", "")
        if words[0] == "-c":
            address = f"10.0.0.{entry.host[-1]}"
            facts = {"zfabric": __version__, "Python": "3.11", "cloudpickle": "3", "key_file": "/keys/lab.key", "nodes": []}
            return Reply(0, json.dumps({**facts, "reached": address, "addresses": [address], **self.changed.get(entry.host, {})}), "")
        if "end" in words:
            self.done.append((entry.host, "end", words[-1]))
            return Reply(0, self.ended, "")
        options = " ".join(words[words.index("/keys/lab.key") + 1 :])
        self.done.append((entry.host, "start", options, text))
        address = HEAD_ADDRESS if entry.head else f"tcp://10.0.0.{entry.host[-1]}:1"
        return Reply(0, json.dumps({"node": entry.host, "address": address, "session": "/session", "resources": {}}), "")

    def up(self) -> dict[str, str]:
        return {report.host: report.state for report in up(self, self.said.append)}


def running(node: str, *knows: str, head_address: str = HEAD_ADDRESS) -> dict[str, Any]:
    """Facts of a host where a node runs, which knows of others."""
    facts = {"session": f"/{node}", "node": node, "address": HEAD_ADDRESS if node == "node1" else "tcp://10.0.0.2:1", "resources": {}}
    return {"nodes": [{**facts, "head": node == "node1", "head_address": head_address, "knows": [node, *knows]}]}


JOIN = f"--address {HEAD_ADDRESS} --wait 15"


def test_the_head_is_started_first_and_the_key_passes_to_the_nodes(tmp_path: Path) -> None:
    hosts = StandIns(tmp_path)
    assert hosts.up() == {"node1": "started", "node2": "started", "node3": "started"}
    assert hosts.done[:2] == [("node1", "start", "--head --host 10.0.0.1", ""), ("node1", "cat /session/cluster.key")]
    assert sorted(hosts.done[2:]) == [("node2", "start", JOIN, "THE KEY"), ("node3", "start", JOIN, "THE KEY")]
    assert hosts.said == ["checking 3 hosts", "starting the head on node1", "starting 2 nodes"]


def test_what_runs_is_left_alone(tmp_path: Path) -> None:
    hosts = StandIns(tmp_path, node1=running("node1"), node3=running("node3", "node1"))
    assert list(hosts.up().items()) == [("node1", "running"), ("node2", "started"), ("node3", "running")]
    assert hosts.done == [("node1", "cat /node1/cluster.key"), ("node2", "start", JOIN, "THE KEY")]


def test_a_node_whose_head_has_ended_is_started_anew(tmp_path: Path) -> None:
    hosts = StandIns(tmp_path, node2=running("node2", "an earlier head"))
    assert hosts.up() == {"node1": "started", "node2": "started", "node3": "started"}
    assert [each for each in hosts.done if each[0] == "node2"] == [("node2", "end", "node"), ("node2", "start", JOIN, "THE KEY")]


def test_a_node_of_another_head_with_this_name_is_left_alone(tmp_path: Path) -> None:
    hosts = StandIns(tmp_path, node2=running("node2", "another", head_address="tcp://10.0.0.9:6790"))
    reports = up(hosts, hosts.said.append)
    assert [report.state for report in reports] == ["started", "failed", "started"]
    assert reports[1].reason == "a node of another cluster 'lab' runs there, whose head is tcp://10.0.0.9:6790"
    assert not [each for each in hosts.done if each[0] == "node2"]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"zfabric": "0.0.9"}, f"python3 has zfabric 0.0.9, this machine {__version__}: install the same release on both"),
        ({"Python": "3.12"}, "python3 has Python 3.12, the head node1 has 3.11: install the same version"),
        ({"cloudpickle": "2"}, "python3 has cloudpickle 2, the head node1 has 3: install the same version"),
        ({"missing": "No module named 'zmq'"}, "python3 cannot load zfabric: No module named 'zmq'"),
        (
            running("node1"),
            "the head of this cluster runs there, and the file names that host as a node; `zfabric down FILE` ends it",
        ),
        (
            {"nodes": [{"session": "/s", "error": "of another version"}]},
            "a node of this cluster cannot be joined there (of another version); `zfabric down FILE` ends it",
        ),
    ],
)
def test_nothing_is_started_if_a_host_does_not_fit(tmp_path: Path, facts: dict[str, Any], reason: str) -> None:
    hosts = StandIns(tmp_path, node3=facts)
    with pytest.raises(HostsError) as raised:
        hosts.up()
    expected = f"1 of 3 hosts cannot be used; nothing was started\n  node3: {reason}"
    assert str(raised.value) == expected.replace("FILE", hosts.cluster.path)
    assert not hosts.done
    if "Python" not in facts and "cloudpickle" not in facts:  # Those two differ from the head's only.
        assert [report.state for report in look(hosts)] == ["not running", "not running", "failed"]


def test_a_head_on_loopback_is_for_nodes_of_its_machine(tmp_path: Path) -> None:
    local = {"reached": "127.0.0.1"}
    hosts = StandIns(tmp_path, node1=local, node2=local)
    with pytest.raises(HostsError, match=r"\n  node3: it cannot reach the head at 127\.0\.0\.1: write \[head\] host as other machines"):
        hosts.up()
    assert StandIns(tmp_path, node1=local, node2=local, node3={"reached": "::1"}).up()["node3"] == "started"


def test_a_python_without_zfabric_is_named(tmp_path: Path) -> None:
    hosts = StandIns(tmp_path)
    run = hosts.run
    answer = Reply(0, json.dumps({"Python": "3.9", "missing": "No module named 'zfabric'"}), "")
    hosts.run = lambda entry, *arguments, **more: answer if entry.host == "node2" else run(entry, *arguments, **more)  # type: ignore[method-assign]
    with pytest.raises(HostsError, match=r"\n  node2: python3 \(Python 3\.9\) has no zfabric: No module named 'zfabric'$"):
        hosts.up()


def test_the_head_is_stopped_last(tmp_path: Path) -> None:
    hosts = StandIns(tmp_path)
    assert {report.host: report.state for report in down(hosts, hosts.said.append)} == dict.fromkeys(("node1", "node2", "node3"), "stopped")
    assert hosts.done[-1] == ("node1", "end", "head")
    assert sorted(hosts.done[:-1]) == [("node2", "end", "node"), ("node3", "end", "node")]


@pytest.mark.parametrize(
    ("answer", "state", "reason"),
    [
        ('{"ended": []}', "not running", ""),
        ("", "failed", "exit code 0, without a word"),
        ("This account is closed.", "failed", "exit code 0, without a word"),
    ],
)
def test_a_host_that_answers_something_else_has_failed(tmp_path: Path, answer: str, state: str, reason: str) -> None:
    hosts = StandIns(tmp_path)
    hosts.ended = answer
    reports = down(hosts, hosts.said.append)
    assert {report.state for report in reports} == {state}
    assert {report.reason for report in reports} == {reason}


def test_a_head_of_the_file_where_a_node_runs_is_refused(tmp_path: Path) -> None:
    hosts = StandIns(tmp_path, node1=running("node2"))
    with pytest.raises(
        HostsError, match=r"\n  node1: a node of this cluster runs there, and the file names that host as the head; `zfabric down"
    ):
        hosts.up()
    assert not hosts.done
