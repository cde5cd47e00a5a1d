"""Links of the kernel between the nodes of a cluster on one machine: each has a network namespace, and veth pairs and a bridge join them.

What the relay does to bytes, this does to packets: they are lost, and TCP finds out by itself. It needs the right to make namespaces, that
of root or of user namespaces; ``why_not`` says what is missing. Faults of one channel, and connections that end, are the relay's alone.

The program must run in a network namespace of its own (``enter``), which is that of the first node: a driver and its node share one.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from types import TracebackType
from typing import Any

from relay import CUT, Fault

from zfabric.runtime.session import ClusterSettings
from zfabric.util.local_cluster import LocalCluster

OUTSIDE = "ZFABRIC_TEST_OUTSIDE"
"""The environment variable with the network namespace that a program has left."""
SUBNET = "10.77.0"
NOWHERE = "02:00:00:00:00:fe"
"""An address that no interface has: what is sent there is lost."""
CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _private() -> list[str]:
    return ["unshare", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


def why_not(*, netem: bool = False) -> str:
    """Return why there can be no such network here; empty if there can. ``netem``: one whose packets are delayed and lost by chance."""
    needed = "ip link add veth1 type veth peer name eth0 && ip link add bridge type bridge"
    if netem:
        needed += " && tc qdisc add dev veth1 root netem delay 1ms loss 1%"
    try:
        done = subprocess.run([*_private(), "sh", "-c", needed], capture_output=True, text=True, timeout=60, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip() or "no reason was given" if done.returncode else ""


def enter() -> None:
    """Run this program again, in a network namespace of its own, unless it is in one."""
    here = os.readlink("/proc/self/ns/net")
    if os.environ.get(OUTSIDE, here) == here:
        os.environ[OUTSIDE] = here
        os.execvp("unshare", [*_private(), sys.executable, *sys.argv])


class Network:
    """Links between nodes, by their names. Use as a context manager, in a program that has called ``enter``."""

    def __enter__(self) -> Network:
        self._numbers: dict[str, int] = {}
        self._pids: dict[str, int] = {}
        """A process in each node's namespace."""
        self._queues: set[int] = set()
        """Links whose packets are delayed."""
        self._holders: list[subprocess.Popen[bytes]] = []
        self._hub = self._namespace()
        _ip(self._hub, "link add bridge type bridge", "link set bridge up")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        for holder in self._holders:
            holder.communicate()
        if os.getpid() in self._pids.values():
            subprocess.run(["ip", "link", "delete", "eth0"], capture_output=True, check=False)

    def _namespace(self) -> int:
        """Make a network namespace; a process in it."""
        command = ["unshare", "--net", "sh", "-c", "echo; exec cat"]  # It ends with this process.
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._holders.append(holder)
        assert holder.stdout is not None
        holder.stdout.readline()  # It is in its namespace.
        return holder.pid

    def attach(self, name: str) -> str:
        """Make the namespace of a node, and its link; its address. The first node's is that of this program."""
        number = self._numbers[name] = len(self._numbers) + 1
        pid = self._pids[name] = self._namespace() if number > 1 else os.getpid()
        _ip(
            self._hub,
            f"link add veth{number} type veth peer name eth0 address {_hardware(number)}",
            f"link set eth0 netns {pid}",
            f"link set veth{number} master bridge up",
        )
        _ip(pid, "link set lo up", f"address add {SUBNET}.{number}/24 dev eth0", "link set eth0 up")
        return f"{SUBNET}.{number}"

    def within(self, name: str, function: Any, *arguments: Any, **options: Any) -> Any:
        """Call a function in a node's namespace: what it starts stays there."""
        with open("/proc/thread-self/ns/net") as here, open(f"/proc/{self._pids[name]}/ns/net") as there:
            _enter(there.fileno())
            try:
                return function(*arguments, **options)
            finally:
                _enter(here.fileno())

    # -- faults, as of a relay --

    def cut(self, one: str, other: str, channel: str = "*") -> None:
        """Lose what two nodes send each other; with "*", pull the node's cable."""
        if other == "*":
            assert channel == "*", "links have no channels: relays have"
            _ip(self._hub, f"link set veth{self._numbers[one]} down")
        else:
            self.fault(one, other, CUT, channel)
            self.fault(other, one, CUT, channel)

    def fault(self, sender: str, receiver: str, fault: Fault, channel: str = "*") -> None:
        """Lose what one node sends another, or delay and lose what all send."""
        assert channel == "*", "links have no channels: relays have"
        if fault == CUT:
            number = self._numbers[receiver]
            _ip(self._pids[sender], f"neighbour replace {SUBNET}.{number} lladdr {NOWHERE} dev eth0 nud permanent")
        else:
            assert (sender, receiver) == ("*", "*"), "netem has one queue for each link"
            for number in self._numbers.values():
                self._tc(f"replace dev veth{number} root netem delay {fault.delay}s loss {100 * fault.loss}%")
                self._queues.add(number)

    def heal(self) -> None:
        """End all faults."""
        _ip(self._hub, *(f"link set veth{number} up" for number in self._numbers.values()))
        for number in self._queues:
            self._tc(f"delete dev veth{number} root")
        self._queues.clear()
        for pid in self._pids.values():
            _ip(pid, *(f"neighbour replace {SUBNET}.{each} lladdr {_hardware(each)} dev eth0 nud stale" for each in self._numbers.values()))

    def _tc(self, command: str) -> None:
        subprocess.run(_in(self._hub, "tc", "qdisc", *command.split()), check=True)

    def __call__(self, *command: Any) -> None:
        """Do nothing: what a relay is told of chance and names has no meaning here."""


class LinkedCluster(LocalCluster):
    """A ``LocalCluster`` whose nodes have namespaces of their own in a ``Network``, under their names: "node1" is the head."""

    def __init__(self, network: Network, *arguments: Any, **options: Any) -> None:
        self.relay = network
        super().__init__(*arguments, **options)

    def _reached(self, settings: ClusterSettings) -> ClusterSettings:
        return settings._replace(host=f"{SUBNET}.{self.relay._numbers[settings.name]}")

    def _launch(self, *arguments: Any, **options: Any) -> Any:
        name = f"node{self._count + 1}"
        self.relay.attach(name)
        return self.relay.within(name, super()._launch, *arguments, **options)


def _hardware(number: int) -> str:
    return f"02:00:00:00:00:{number:02x}"


def _in(pid: int, *command: str) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net", *command]


def _ip(pid: int, *lines: str) -> None:
    done = subprocess.run(_in(pid, "ip", "-batch", "-"), input="\n".join(lines), capture_output=True, text=True, check=False)
    assert done.returncode == 0, (lines, done.stderr)


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
