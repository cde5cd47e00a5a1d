"""``zfabric up``, ``exec``, ``nodes --file`` and ``down``: clusters over a real sshd, on two addresses that stand for machines."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import ZFABRIC, Place
from faults import PATIENCE, eventually, gone
from sshd import ADDRESSES, UNREACHABLE, Sshd, free_port, why_not

from zfabric.runtime.launch import stop
from zfabric.runtime.session import HEAD_SUFFIX, Session, find_sessions

PUMP = """
import os, socket, sys, threading
link = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def send():
    while block := os.read(0, 65536):
        link.sendall(block)
threading.Thread(target=send, daemon=True).start()
while block := link.recv(65536):
    os.write(1, block)
"""
"""A connection from another network namespace, on standard input and output."""
SERVER = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    print("listens", flush=True)
    client = server.accept()[0]
    with client, client.makefile("rb") as asked:
        client.sendall(asked.readline() * 100_000)
"""
CLIENT = """
import socket, subprocess, sys
port, *command = sys.argv[1:]
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as running:
    assert running.stdout.readline() == b"listens\\n"
    with socket.create_connection(("127.0.0.1", int(port))) as link, link.makefile("rb") as answer:
        link.sendall(b"a question\\n")
        print(answer.read() == b"a question\\n" * 100_000)
sys.exit(running.returncode)
"""
"""It runs in a network namespace of its own: the forwarded port and that of the server are both 127.0.0.1:PORT."""

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"CLUSTERS OVER SSH ARE NOT TESTED: {why_not()}")
NODE = '[[nodes]]\nhosts = ["node2"]\nnum_cpus = 1\nobject_store_memory = "32MB"\n'


@pytest.fixture
def machines() -> Iterator[Sshd]:
    with Sshd(Path(tempfile.mkdtemp(prefix="h", dir=os.environ["TMPDIR"]))) as server:
        yield server


@pytest.fixture
def laptop(tmp_path: Path) -> Place:
    """The machine at which somebody types."""
    return Place(str(tmp_path))


@contextmanager
def processes_watched() -> Iterator[set[bytes]]:
    """The command lines and environments of all processes that begin meanwhile."""
    seen: set[bytes] = set()
    before = set(os.listdir("/proc"))
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            for name in os.listdir("/proc"):
                if name.isdigit() and name not in before:
                    for what in ("cmdline", "environ"):
                        try:
                            seen.add(Path(f"/proc/{name}/{what}").read_bytes())
                        except OSError:
                            continue

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield seen
    finally:
        done.set()
        watching.join()


def secrets(file: Path) -> list[bytes]:
    """The secret halves of the keys in a file."""
    found = re.findall(rb"^(?:role|pair) .* (\S{40})$", file.read_bytes(), flags=re.MULTILINE)
    assert found
    return found


def states(rows: list[dict[str, Any]]) -> dict[str, str]:
    return {row["host"]: row["state"] for row in rows}


def nothing_runs(machines: Sshd) -> bool:
    return all(not find_sessions(place.directory) and not machines.keys(name).exists() for name, place in machines.places.items())


def test_a_cluster_over_ssh_from_up_to_down(machines: Sshd, laptop: Place, tmp_path: Path) -> None:
    port = free_port(ADDRESSES["node1"])
    file = machines.cluster_file(tmp_path / "lab.toml", f"{NODE}port = {port}\n")

    # Something of the same user, which is none of ours, runs on a host; and a port that a node is to have is taken.
    other = machines.places["node2"].json("start", "--num-cpus", "0", "--object-store-memory", "32MB")
    with processes_watched() as seen, socket.create_server(("0.0.0.0", port)):
        failed = laptop.run("up", file, "--verbose", code=1)
    assert "Error: 1 of 2 hosts failed\n  node2: this node cannot listen on host" in failed.stderr, failed.stderr
    assert [line.split()[:3] for line in failed.stdout.splitlines()[1:]] == [["node1", "head", "started"], ["node2", "failed", "-"]]
    rows = laptop.json("up", file)
    assert [(row["host"], row["head"], row["state"]) for row in rows] == [("node1", True, "running"), ("node2", False, "started")]

    keys = machines.keys("node1") / "lab.key"
    heads = secrets(machines.keys("node1") / f"lab.key{HEAD_SUFFIX}")
    assert (machines.keys("node2") / "lab.key").stat().st_mode & 0o777 == 0o600
    for secret in (*secrets(keys), *heads):
        assert not [each for each in seen if secret in each]
        assert secret not in machines.log.read_bytes()
        assert secret not in (failed.stdout + failed.stderr).encode()
        for log in machines.directory.glob("node*/zfabric-*/s-*/logs/*"):
            assert secret not in log.read_bytes(), log
    on_laptop = [path for path in tmp_path.rglob("*") if path.is_file()]
    elsewhere = [path for path in (machines.directory / "node2").rglob("*") if path.is_file()]
    assert not [path for path in on_laptop if any(secret in path.read_bytes() for secret in secrets(keys))]
    assert not [path for path in elsewhere if any(secret in path.read_bytes() for secret in heads)]

    commands_keep_what_they_are(laptop, file)
    a_port_is_forwarded(machines, laptop, file)

    lost = Session(rows[1]["session"])
    os.kill(lost.supervisor()[0], signal.SIGKILL)
    eventually(lambda: not lost.alive(), "the node's end")
    assert states(laptop.json("nodes", "--file", file)) == {"node1": "running", "node2": "not running"}
    assert states(laptop.json("up", file)) == {"node1": "running", "node2": "started"}

    assert states(laptop.json("down", file)) == {"node1": "stopped", "node2": "stopped"}
    assert stop(Session(other["session"]))
    assert nothing_runs(machines)


def commands_keep_what_they_are(laptop: Place, file: str) -> None:
    """Arguments, input, output and exit code of ``zfabric exec``."""
    odd = ["a b", "it's", '"', "$HOME `id` \\", "two\nlines", "*", "", "--", "-x", "é"]
    program = "import sys, zfabric as zf; zf.init(); print(ascii((len(zf.nodes()), sys.argv[1:], sys.stdin.read()))); sys.exit(5)"
    ran = subprocess.run(
        [ZFABRIC, "exec", file, "--", "python", "-c", program, *odd], env=laptop.environment, input="in\n", capture_output=True,
        text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (ran.stdout, ran.returncode, ran.stderr) == (f"{(2, odd, 'in' + chr(10))!a}\n", 5, "")
    assert laptop.run("exec", file, "--", "sh", "-c", "exit 255", code=255).stderr == ""
    assert laptop.run("exec", file, "no-such-program", code=127).stderr == "Error: no-such-program: there is no such program on node1\n"

    # Ctrl-C, first with a terminal, then without.
    terminal, other_end = pty.openpty()
    # A shell may miss the signal while it starts a command.
    waits = "import os, signal; print(os.ttyname(0), flush=True); signal.pause()"
    command = [ZFABRIC, "exec", file, "--", "python", "-c", waits]
    with subprocess.Popen(command, env=laptop.environment, stdin=other_end, stdout=other_end, start_new_session=True) as running:
        os.close(other_end)
        try:
            shown = b""
            while not shown.endswith(b"\n"):
                shown += os.read(terminal, 1000)
            assert shown.startswith(b"/dev/pts/")
            os.write(terminal, b"\x03")
            assert running.wait(PATIENCE) == 130
        finally:
            running.kill()
    os.close(terminal)
    command = [ZFABRIC, "exec", file, "--", "sh", "-c", "echo $$; exec sleep 1000"]
    with subprocess.Popen(command, env=laptop.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        running.terminate()
        assert running.wait(PATIENCE) == 143
    eventually(lambda: gone(pid), "the end of the command on the head")
    with subprocess.Popen(
        ["env", "--default-signal=INT", *command], env=laptop.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, process_group=0,
    ) as running:  # fmt: skip
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        os.killpg(running.pid, signal.SIGINT)
        assert (running.wait(PATIENCE), running.communicate()[1]) == (130, "\ninterrupted\n")
    eventually(lambda: gone(pid), "the end of the command on the head")


def a_port_is_forwarded(machines: Sshd, laptop: Place, file: str) -> None:
    """``zfabric exec --forward`` from a machine with a loopback of its own."""
    pump, apart = machines.directory / "pump.py", machines.directory / "apart.toml"
    pump.write_text(PUMP)
    proxy = f"ProxyCommand=nsenter --net=/proc/{os.getpid()}/ns/net {sys.executable} {pump} %h %p"
    apart.write_text(Path(file).read_text().replace("ssh = [", f'ssh = ["-o", "{proxy}", '))
    apart.chmod(0o600)
    port = str(free_port("127.0.0.1"))
    command = [ZFABRIC, "exec", str(apart), "--forward", port, "--", "python", "-c", SERVER, port]
    ran = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", CLIENT, port, *command],
        env=laptop.environment, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (ran.stdout, ran.returncode, ran.stderr) == ("True\n", 0, "")


def test_nothing_is_started_unless_all_hosts_can_be_used(machines: Sshd, laptop: Place, tmp_path: Path) -> None:
    stub = tmp_path / "python"
    stub.write_text("""#!/bin/sh\necho '{"zfabric": "0.0.1", "Python": "3.11"}'\n""")
    stub.chmod(0o755)
    nodes = f'[[nodes]]\nhosts = {json.dumps(UNREACHABLE)}\n[[nodes]]\nhosts = ["noprogram"]\npython = "/no/python"\n'
    file = machines.cluster_file(tmp_path / "lab.toml", f'{nodes}[[nodes]]\nhosts = ["stub"]\npython = "{stub}"\n')
    errors = laptop.run("up", file, code=1).stderr
    assert "6 of 7 hosts cannot be used; nothing was started\n" in errors
    expected = {
        "nokey": r".*Permission denied \(publickey\)\.",
        "stranger": r"No .* host key is known for .* Host key verification failed\.",
        "closed": r"ssh: connect to host 127\.0\.0\.2 port \d+: Connection refused",
        "nowhere": r"ssh: Could not resolve hostname no-such-host\.invalid: .*",
        "noprogram": r".*/no/python: .*",
        "stub": rf"{re.escape(str(stub))} has zfabric 0\.0\.1, this machine 0\.1\.0: install the same release on both",
    }
    for host, text in expected.items():
        assert re.search(rf"^  {host}: {text}$", errors, flags=re.MULTILINE), (host, errors)
    assert "` must work: zfabric enters no password and accepts no host key for you" in errors
    assert nothing_runs(machines)

    reasons = {"node1": "not running", **dict.fromkeys(expected, "failed")}
    assert states(json.loads(laptop.run("nodes", "--file", file, "--json", code=1).stdout)) == reasons
    file = machines.cluster_file(tmp_path / "closed.toml", "", head="closed")
    assert re.fullmatch(r"Error: closed: ssh: connect to host .* refused\n", laptop.run("exec", file, "true", code=255).stderr)


def test_an_interrupted_up_ends_what_it_has_started(machines: Sshd, laptop: Place, tmp_path: Path) -> None:
    file = machines.cluster_file(tmp_path / "lab.toml", NODE)
    with subprocess.Popen(
        ["env", "--default-signal=INT", ZFABRIC, "up", file], env=laptop.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, process_group=0,
    ) as running:  # fmt: skip
        assert running.stderr is not None
        begun = [running.stderr.readline() for _ in range(3)]
        assert begun == ["checking 2 hosts\n", "starting the head on node1\n", "starting 1 node\n"]
        eventually(lambda: find_sessions(machines.places["node2"].directory), "the node begins")
        os.killpg(running.pid, signal.SIGINT)
        errors = running.communicate(timeout=PATIENCE)[1]
    assert (running.returncode, errors.splitlines()[-1]) == (130, "interrupted")
    assert errors.splitlines()[:2] == [
        "interrupted: waiting for what has begun; Ctrl-C again may leave nodes there",
        "interrupted: ending what was started on 2 hosts; Ctrl-C again leaves it there",
    ]
    assert nothing_runs(machines)
