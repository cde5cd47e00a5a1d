"""The cluster file of ``zfabric up``: what it may hold, what is wrong with it, and which commands come of it. No host is connected."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from zfabric.exceptions import ConfigError
from zfabric.launch import ssh as commands
from zfabric.launch.cluster_file import ClusterFile, HostEntry, read_cluster_file
from zfabric.launch.ssh import AT_A_TIME, SSH_FAILED, Reply, Ssh, remote_command
from zfabric.launch.up import _address_in

HEAD = '[cluster]\nname = "lab"\n[head]\nhost = "node1"\n'


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "lab.toml"
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_a_file_with_every_key(tmp_path: Path) -> None:
    text = """
        [cluster]
        name = "lab"
        python = "~/venv/bin/python"
        before = ["module load cuda"]
        directory = "/srv/a project"
        network = "10.0.0.0/24"
        ssh = ["-p", "2222"]
        [head]
        host = "me@node1"
        num_cpus = 0
        port = 7000
        [[nodes]]
        hosts = ["node2", "10.0.0.3"]
        num_cpus = 16
        num_gpus = 2
        memory = "64GiB"
        object_store_memory = 1000000
        transfer_port = 7001
        resources = { tpu = 2 }
        labels = { disk = "ssd", rack = "a b" }
        [[nodes]]
        hosts = ["node4"]
        python = "/opt/python"
        """
    path = written(tmp_path, text)
    found = read_cluster_file(path)
    options = (
        *("--num-cpus=16", "--num-gpus=2", "--memory=64GiB", "--object-store-memory=1000000", "--transfer-port=7001"),
        *('--resources={"tpu": 2}', "--label=disk=ssd", "--label=rack=a b"),
    )
    python = "~/venv/bin/python"
    head = HostEntry("me@node1", True, python, ("--num-cpus=0", "--port=7000"))
    nodes = (HostEntry("node2", False, python, options), HostEntry("10.0.0.3", False, python, options))
    network = found.network
    assert str(network) == "10.0.0.0/24"
    last = HostEntry("node4", False, "/opt/python", ())
    assert found == ClusterFile(path, "lab", ("module load cuda",), "/srv/a project", network, ("-p", "2222"), head, (*nodes, last))
    assert [each.name for each in found.hosts] == ["node1", "node2", "10.0.0.3", "node4"]


def test_the_least_file(tmp_path: Path) -> None:
    found = read_cluster_file(written(tmp_path, HEAD))
    assert found.hosts == (HostEntry("node1", True, "python3", ()),)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[cluster", " is not TOML: Expected ']'"),
        ("", ': [cluster] has no name: write name = "lab"'),
        ("cluster = 5", ': [cluster] is 5: write a section with name = "lab"'),
        ("[cluster]\nname = 'lab'", ': [head] has no host: write host = "node1"'),
        (f"{HEAD}[node]\nhosts = []", ": the file has no section 'node'; did you mean 'nodes'? there are"),
        (f"{HEAD}[x]", ": the file has no section 'x'; there are cluster, head, nodes"),
        (f'{HEAD}[nodes]\nhosts = ["a"]', ': [nodes] is not a list of tables: write [[nodes]] and hosts = ["node2", "node3"]'),
        (f"{HEAD}[[nodes]]", ': [[nodes]] has no hosts: write hosts = ["node2", "node3"]'),
        (f"{HEAD}[[nodes]]\nhosts=['a']\n[[nodes]]\nhosts=['b']\nlabel=1", ": [[nodes]] number 2 has no key 'label'; did you mean"),
        (f"{HEAD}zone = 'x'", ": [head] has no key 'zone'; there are host, python, num_cpus,"),
        (
            HEAD.replace("node1", "-oProxyCommand=x"),
            ': [head] host is "-oProxyCommand=x": write a name without spaces and "/"',
        ),
        (HEAD.replace("node1", "me@-x"), ': [head] host is "me@-x": write a name'),
        (HEAD.replace("node1", "a b"), ': [head] host is "a b": write a name'),
        (HEAD.replace("lab", "../x"), ': [cluster] name is "../x": write at most 64 letters, digits, "-" and "_", as in name = "lab"'),
        (f"{HEAD}num_cpus = '4'", ': [head] num_cpus is "4": write a whole number, 0 or more, as in num_cpus = 16'),
        (f"{HEAD}num_cpus = true", ": [head] num_cpus is true: write a whole number"),
        (f"{HEAD}port = 70000", ": [head] port is 70000: write a whole number, from 1 to 65,535, as in port = 6790"),
        (f"{HEAD}memory = '5XB'", ': [head] memory is "5XB": write bytes, or a text with a number and a unit, as in memory = "64GiB"'),
        (f"{HEAD}labels = {{ a = 1 }}", ': [head] labels is {"a": 1}: write texts by name, which has no "="'),
        (f"{HEAD}resources = {{ tpu = -1 }}", ': [head] resources is {"tpu": -1}: write amounts by name ('),
        (f"{HEAD}python = '-c'", ': [head] python is "-c": write the path of a Python interpreter'),
        (f"[cluster]\nbefore = 'x'\n{HEAD[10:]}", ': [cluster] before is "x": write a list of texts, as in before = ["module load cuda"]'),
        (f"[cluster]\nnetwork = '10.0.0.1/24'\n{HEAD[10:]}", ': [cluster] network is "10.0.0.1/24": write a network with'),
        (f"{HEAD}[[nodes]]\nhosts = ['me@node1']", ": the host 'node1' is there twice: write it once, since each host has one node"),
        (f"{HEAD}num_cpus = {'9' * 5000}", " is not TOML: Exceeds the limit"),
        (f"{HEAD}memory = '{'9' * 400}'", ': [head] memory is "999'),
        ("x = " + 5000 * "[", " is not TOML: maximum recursion depth exceeded"),
        (f"{HEAD}[[nodes]]\nhosts = ['node2', '']", ': [[nodes]] hosts is ["node2", ""]: write for each host a name without'),
    ],
)
def test_an_error_names_the_key_and_what_to_write(tmp_path: Path, text: str, error: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        read_cluster_file(path)
    assert str(raised.value).startswith(f"{path}{error}")


def test_a_file_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, HEAD)
    for mode in (0o620, 0o602):
        os.chmod(path, mode)
        with pytest.raises(ConfigError, match=r"^others can write the cluster file .*: run chmod go-w "):
            read_cluster_file(path)
    os.chmod(path, 0o644)
    read_cluster_file(path)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(path).st_uid + 1)
    if os.stat(path).st_uid:
        with pytest.raises(ConfigError, match="belongs to another user: make a copy of your own"):
            read_cluster_file(path)
    with pytest.raises(ConfigError, match=r"^cannot read the cluster file .*: No such file"):
        read_cluster_file(path + "x")
    with pytest.raises(ConfigError, match=r"/dev/null is not a regular file$"):
        read_cluster_file("/dev/null")


def test_a_shell_hands_the_words_of_a_command_to_python_unchanged(tmp_path: Path) -> None:
    (tmp_path / "it's $HOME").mkdir()
    text = f'before = ["echo before", "cat", "export MADE=\'a b\'"]\ndirectory = "~/it\'s $HOME"\npython = "{sys.executable}"\n'
    cluster = read_cluster_file(written(tmp_path, f"[cluster]\n{text}{HEAD[10:]}"))
    odd = ["a b", "it's", '"', "$HOME `id` \\", "two\nlines", "*", "", "--", "-x", "é"]
    program = "import os, sys; print(ascii((sys.argv[1:], os.getcwd(), os.environ['MADE'])))"
    command = remote_command(cluster, cluster.head, ["-c", program, *odd], "", "cat")
    environment = {**os.environ, "HOME": str(tmp_path)}
    ran = subprocess.run(["sh", "-c", command], env=environment, input="begins\n", capture_output=True, text=True, check=True)
    assert ran.stdout == f"begins\n{(odd, str(tmp_path / chr(105)) + 't' + chr(39) + 's $HOME', 'a b')!a}\n"
    assert ran.stderr == "before\n"


@pytest.mark.parametrize(
    ("code", "errors", "reason"),
    [
        (255, "Welcome.\n\nssh: x: refused\n", "Welcome. ssh: x: refused"),
        (127, "a\nsh: 1: python: not found\n", "sh: 1: python: not found"),
        (1, "Usage: zfabric start\n\nError: the cluster did not start:\n  why\n", "the cluster did not start: why"),
        (3, "\n", "exit code 3, without a word"),
    ],
)
def test_the_reason_of_a_failure_is_one_line(code: int, errors: str, reason: str) -> None:
    assert Reply(code, "", errors).reason == reason


def test_an_address_is_chosen_by_its_network(tmp_path: Path) -> None:
    cluster = read_cluster_file(written(tmp_path, HEAD.replace("[head]", 'network = "10.0.0.0/24"\n[head]')))
    addresses = ["127.0.0.1", "fe80::1", "02:00:00:00:00:01", "192.168.0.4", "10.0.0.4", "10.0.0.5"]
    assert _address_in(cluster, {"reached": "192.168.0.4", "addresses": addresses}) == "10.0.0.4"
    assert _address_in(cluster, {"reached": "10.0.0.5", "addresses": addresses}) == "10.0.0.5"
    assert _address_in(cluster, {"reached": "", "addresses": addresses[:4]}) == ""


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Ssh:
    """Commands of a file by another program than ssh."""
    program = tmp_path / "bin" / "ssh"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    options = '["-o", "BatchMode=no", "-o", "ConnectTimeout=3"]'
    return Ssh(read_cluster_file(written(tmp_path, HEAD.replace("[head]", f"ssh = {options}\n[head]"))))


def test_ssh_gets_options_that_no_file_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = stand_in(tmp_path, monkeypatch, f'printf "%s\\0" "$@" >{tmp_path}/got; exit 7')
    head = ssh.cluster.head
    assert ssh.attach(head, ["-c", "pass"], (), False) == (7, "")
    alone = (tmp_path / "got").read_text().split("\0")
    assert ssh.attach(head, ["-c", "pass"], (8888,), True) == (7, "")
    attached = (tmp_path / "got").read_text().split("\0")[:-1]
    assert ssh.run(head, ["-c", "pass"], text="input").code == 7
    ran = (tmp_path / "got").read_text().split("\0")[:-1]
    for arguments, command in ((attached, "exec python3 -c pass"), (ran, "printf '%s\\n' '--- zfabric ---' && exec python3 -c pass")):
        # ssh takes the first value of an option.
        found = [each for each in arguments if each.startswith(("BatchMode", "ConnectTimeout", "StrictHostKeyChecking"))]
        assert found == ["BatchMode=yes", "BatchMode=no", "ConnectTimeout=3", "ConnectTimeout=10"]
        assert arguments[-3:] == ["--", "node1", command]
    assert "ClearAllForwardings=yes" in alone, "a port of the user's configuration may be taken"
    assert "ClearAllForwardings=yes" not in attached
    assert "ExitOnForwardFailure=yes" in attached
    assert "ControlPersist=no" in ran
    assert attached[0] == "-t"
    assert attached[attached.index("-L") + 1] == "127.0.0.1:8888:127.0.0.1:8888"
    assert ran[0] == "-T"


def test_what_login_scripts_print_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = stand_in(tmp_path, monkeypatch, 'echo Welcome.; for last; do :; done; exec sh -c "$last"')
    assert ssh.run(ssh.cluster.head, [], first="cat; echo why >&2; false", text="the input\n") == Reply(1, "the input\n", "why\n")


def test_a_host_that_does_not_answer_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = stand_in(tmp_path, monkeypatch, "sleep 1000")
    monkeypatch.setattr(commands, "ANSWER_SECONDS", 0.2)
    reply = ssh.run(ssh.cluster.head, [])
    assert (reply.code, reply.reason) == (SSH_FAILED, "no answer within 0.2 s")


def test_few_connections_are_made_at_a_time(tmp_path: Path) -> None:
    ssh = Ssh(read_cluster_file(written(tmp_path, HEAD)))
    here = threading.Semaphore(AT_A_TIME)
    entries = [HostEntry(f"node{number}", False, "python3", ()) for number in range(30)]

    def call(entry: HostEntry) -> str:
        assert here.acquire(blocking=False), "a ninth"
        time.sleep(0.002)
        here.release()
        return entry.name

    assert ssh.on_all(entries, call) == [entry.name for entry in entries]


def test_a_machine_without_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = Ssh(read_cluster_file(written(tmp_path, HEAD)))
    monkeypatch.setenv("PATH", str(tmp_path))
    for call in (lambda: ssh.run(ssh.cluster.head, []), lambda: ssh.attach(ssh.cluster.head, ["-c", ""], (), False)):
        with pytest.raises(ConfigError, match=r"^there is no program ssh here \(PATH is .*\): install the client of OpenSSH$"):
            call()


def test_a_command_that_is_too_long_and_an_ssh_that_is_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = stand_in(tmp_path, monkeypatch, "true")
    for call in (lambda: ssh.run(ssh.cluster.head, ["x" * 2**20]), lambda: ssh.attach(ssh.cluster.head, ["x" * 2**20], (), False)):
        with pytest.raises(ConfigError, match=r"^ssh cannot be run: Argument list too long$"):
            call()


def test_a_second_interrupt_is_announced_and_only_questions_are_given_up(tmp_path: Path) -> None:
    said: list[str] = []
    ssh = Ssh(read_cluster_file(written(tmp_path, HEAD)), say=said.append)

    def interrupted(entry: HostEntry) -> str:
        raise KeyboardInterrupt

    for changing in (False, True):
        with pytest.raises(KeyboardInterrupt):
            ssh.on_all(ssh.cluster.hosts, interrupted, changing)
    assert said == ["interrupted: waiting for what has begun; Ctrl-C again may leave nodes there"]
