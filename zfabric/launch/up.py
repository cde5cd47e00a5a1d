"""``zfabric up``, ``down`` and ``nodes --file``: a cluster on the hosts of a file.

Nothing is remembered here: each time the hosts are asked what runs there. So ``up`` can be repeated, from any machine, and starts what is
missing. All hosts are checked before the first node starts. The cluster's key passes from the head to the other hosts through this
process's memory.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from zfabric._version import __version__
from zfabric.exceptions import FabricError
from zfabric.launch.cluster_file import ClusterFile, HostEntry
from zfabric.launch.ssh import SSH_FAILED, Reply, Ssh
from zfabric.protocol.names import counted

JOIN_SECONDS = 15
"""Seconds for a node to reach a running head."""
RUNNING, STARTED, STOPPED, ABSENT, FAILED = "running", "started", "stopped", "not running", "failed"
_SAME = ("Python", "cloudpickle")
"""Versions that must be the head's; zfabric's must be this machine's."""
_PROBE = """
import json, sys
sys.path = [each for each in sys.path if each]
found = {"Python": "%d.%d" % sys.version_info[:2]}
try:
    import zfabric
    found["zfabric"] = zfabric.__version__
    if zfabric.__version__ == sys.argv[1]:
        from zfabric.launch.host import facts
        found.update(facts(sys.argv[2], sys.argv[3]))
except ImportError as error:
    found["missing"] = str(error)
print(json.dumps(found))
"""
"""Asks a host for its versions and its node. It runs on Pythons that have no zfabric, or another release."""


class HostsError(FabricError):
    """Hosts that cannot be used. The text has a line for each."""


class HostReport(NamedTuple):
    """A host of the file, and its node."""

    host: str
    head: bool
    state: str
    reason: str = ""
    facts: dict[str, Any] = {}
    """Of a running node: session, node (its id), address, resources."""


def check(ssh: Ssh, say: Callable[[str], None]) -> dict[str, dict[str, Any]]:
    """Ask all hosts for their facts, by host. Raises HostsError if one cannot have a node."""
    entries = ssh.cluster.hosts
    say(f"checking {counted(len(entries), 'host')}")
    replies = ssh.on_all(entries, lambda entry: _probe(ssh, entry), changing=False)
    head = _facts(replies[0])
    wrong = {entry.host: why for entry, reply in zip(entries, replies, strict=True) if (why := _unfit(ssh.cluster, entry, reply, head))}
    if wrong:
        raise HostsError(_refusal(ssh.cluster, wrong, any(reply.code == SSH_FAILED for reply in replies)))
    return {entry.host: _facts(reply) for entry, reply in zip(entries, replies, strict=True)}


def _probe(ssh: Ssh, entry: HostEntry) -> Reply:
    return ssh.run(entry, ["-c", _PROBE, __version__, ssh.cluster.name, entry.name])


def _facts(reply: Reply) -> dict[str, Any]:
    """The facts that a host has answered; none if it failed."""
    try:
        found = json.loads(reply.output)
    except ValueError:
        return {}
    return found if reply.code == 0 and isinstance(found, dict) else {}


def _unfit(cluster: ClusterFile, entry: HostEntry, reply: Reply, head: dict[str, Any]) -> str:
    """Why a host cannot have a node, or ""."""
    found = _facts(reply)
    if not found:
        return reply.reason
    if "zfabric" not in found:
        return f"{entry.python} (Python {found.get('Python')}) has no zfabric: {found.get('missing')}"
    if found["zfabric"] != __version__:
        return f"{entry.python} has zfabric {found['zfabric']}, this machine {__version__}: install the same release on both"
    if "missing" in found:
        return f"{entry.python} cannot load zfabric: {found['missing']}"
    for what in _SAME:
        if head and found[what] != head.get(what):
            return f"{entry.python} has {what} {found[what]}, the head {cluster.head.name} has {head.get(what)}: install the same version"
    stale = next((each["error"] for each in found["nodes"] if "error" in each), "")
    if stale:
        return f"a node of this cluster cannot be joined there ({stale}); `zfabric down {cluster.path}` ends it"
    is_head = next((each["head"] for each in found["nodes"] if "head" in each), entry.head)
    if is_head != entry.head:
        what, role = ("the head", "a node") if is_head else ("a node", "the head")
        return f"{what} of this cluster runs there, and the file names that host as {role}; `zfabric down {cluster.path}` ends it"
    if cluster.network is not None and not _address_in(cluster, found):
        return f"none of its addresses is in the network {cluster.network}: {', '.join(found['addresses'])}"
    if cluster.network is None and _is_loopback(head.get("reached", "")) and not _is_loopback(found["reached"]):
        return f"it cannot reach the head at {head['reached']}: write [head] host as other machines name it, or [cluster] network"
    return ""


def _refusal(cluster: ClusterFile, wrong: dict[str, str], unreached: bool) -> str:
    lines = [f"{len(wrong)} of {counted(len(cluster.hosts), 'host')} cannot be used; nothing was started", *_listed(wrong.items())]
    if unreached:
        options = shlex.join(("-o", "BatchMode=yes", *cluster.ssh))
        lines.append(f"`ssh {options} HOST true` must work: zfabric enters no password and accepts no host key for you")
    return "\n".join(lines)


def _listed(reasons: Any) -> list[str]:
    return [f"  {host}: {why}" for host, why in reasons]


def _address_in(cluster: ClusterFile, found: dict[str, Any]) -> str:
    """A host's address in the cluster's network, or ""."""
    assert cluster.network is not None
    addresses = (found["reached"], *found["addresses"])
    return next((each for each in addresses if each and _is_in(each, cluster.network)), "")


def _is_in(address: str, network: Any) -> bool:
    try:
        return ipaddress.ip_address(address) in network
    except ValueError:  # A hardware address.
        return False


def _is_loopback(address: str) -> bool:
    return bool(address) and ipaddress.ip_address(address).is_loopback


def up(ssh: Ssh, say: Callable[[str], None]) -> list[HostReport]:
    """Start the missing nodes, the head first; report all hosts.

    A node that fails is reported, and the others stay. Raises HostsError if a host cannot be used, before anything is started, or if the
    head does not start. If interrupted, it ends the nodes that it has started.
    """
    hosts = check(ssh, say)
    begun: list[HostEntry] = []
    try:
        return _start_missing(ssh, hosts, begun, say)
    except KeyboardInterrupt:
        say(f"interrupted: ending what was started on {counted(len(begun), 'host')}; Ctrl-C again leaves it there")
        failed = {report.host: report.reason for report in _end_all(ssh, begun) if report.state == FAILED}
        for line in _listed(failed.items()):
            say(line)
        raise


def _start_missing(ssh: Ssh, hosts: dict[str, dict[str, Any]], begun: list[HostEntry], say: Callable[[str], None]) -> list[HostReport]:
    """Start the missing nodes. ``begun`` receives their hosts."""
    cluster = ssh.cluster
    head = hosts[cluster.head.host]
    report = _running(cluster.head, head)
    if report is None:
        say(f"starting the head on {cluster.head.host}")
        address = _address_in(cluster, head) if cluster.network is not None else head["reached"]
        begun.append(cluster.head)
        options = ["--head", *(("--host", address) if address else ())]
        (report,) = ssh.on_all([cluster.head], lambda entry: _start(ssh, entry, head, options))
        if report.state == FAILED:
            raise HostsError(f"the head did not start on {report.host}: {report.reason}")
    reports = [report]
    missing = []
    for entry in cluster.nodes:
        found = _running(entry, hosts[entry.host])
        if found is not None and report.facts["node"] in found.facts["knows"]:
            reports.append(found)
        else:
            missing.append(entry)
    if missing:
        reports += _join_all(ssh, hosts, missing, report.facts, begun, say)
    order = [entry.host for entry in cluster.hosts]
    return sorted(reports, key=lambda report: order.index(report.host))


def _join_all(
    ssh: Ssh,
    hosts: dict[str, dict[str, Any]],
    missing: Sequence[HostEntry],
    head: dict[str, Any],
    begun: list[HostEntry],
    say: Callable[[str], None],
) -> list[HostReport]:
    """Start nodes, which join a head. ``begun`` receives their hosts."""
    cluster = ssh.cluster
    say(f"starting {counted(len(missing), 'node')}")
    answered = ssh.run(cluster.head, [], first=f"cat {shlex.quote(head['session'] + '/cluster.key')}")
    if answered.code != 0:
        raise HostsError(f"the key of the cluster cannot be read on {cluster.head.host}: {answered.reason}")

    def join(entry: HostEntry) -> HostReport:
        found = hosts[entry.host]
        former = _running(entry, found)
        if former is not None:
            # Its head has ended, and it will, too; unless the head of another file answers to the same name.
            if former.facts["head_address"] != head["address"]:
                at = former.facts["head_address"]
                return HostReport(entry.host, False, FAILED, f"a node of another cluster {cluster.name!r} runs there, whose head is {at}")
            ended = _end(ssh, entry)
            if ended.state == FAILED:
                return ended
        begun.append(entry)
        address = _address_in(cluster, found) if cluster.network is not None else ""
        options = ["--address", head["address"], "--wait", str(JOIN_SECONDS), *(("--host", address) if address else ())]
        return _start(ssh, entry, found, options, answered.output)

    return ssh.on_all(missing, join)


def _running(entry: HostEntry, found: dict[str, Any]) -> HostReport | None:
    nodes = [each for each in found["nodes"] if each.get("address")]
    return HostReport(entry.host, entry.head, RUNNING, facts=nodes[0]) if nodes else None


def _start(ssh: Ssh, entry: HostEntry, found: dict[str, Any], options: Sequence[str], key: str = "") -> HostReport:
    """Start a node. ``key`` is the key file's content, if the host does not have it yet."""
    path = str(found["key_file"])
    words = ["-P", "-m", "zfabric", "start", "--json", "--name", entry.name, "--key-file", path, *options, *entry.options]
    reply = ssh.run(entry, words, first=_write(path, entry.name) if key else "", text=key)
    facts = _facts(reply)
    if not facts:
        return HostReport(entry.host, entry.head, FAILED, reply.reason)
    return HostReport(entry.host, entry.head, STARTED, facts=facts)


def _write(path: str, name: str) -> str:
    """A shell command that writes its input to a file that only its user can read. Hosts may share the directory."""
    new = shlex.quote(f"{path}.{name}.new")
    return f"(umask 077 && mkdir -p {shlex.quote(os.path.dirname(path))} && cat >{new} && mv -f {new} {shlex.quote(path)})"


def down(ssh: Ssh, say: Callable[[str], None]) -> list[HostReport]:
    """End the cluster's nodes, the head last, and remove its keys from the hosts; report all hosts."""
    say(f"stopping the nodes on {counted(len(ssh.cluster.hosts), 'host')}")
    return _end_all(ssh, ssh.cluster.hosts)


def _end_all(ssh: Ssh, entries: Sequence[HostEntry]) -> list[HostReport]:
    heads = [entry for entry in entries if entry.head]
    reports = ssh.on_all([entry for entry in entries if not entry.head], lambda entry: _end(ssh, entry))
    return ssh.on_all(heads, lambda entry: _end(ssh, entry)) + reports


def _end(ssh: Ssh, entry: HostEntry) -> HostReport:
    role = "head" if entry.head else "node"
    reply = ssh.run(entry, ["-P", "-m", "zfabric.launch.host", "end", ssh.cluster.name, entry.name, role])
    facts = _facts(reply)
    if not facts:
        return HostReport(entry.host, entry.head, FAILED, reply.reason)
    return HostReport(entry.host, entry.head, STOPPED if facts["ended"] else ABSENT)


def look(ssh: Ssh) -> list[HostReport]:
    """Report what the hosts say of their nodes."""

    def ask(entry: HostEntry) -> HostReport:
        reply = _probe(ssh, entry)
        why = _unfit(ssh.cluster, entry, reply, {})
        if why:
            return HostReport(entry.host, entry.head, FAILED, why)
        return _running(entry, _facts(reply)) or HostReport(entry.host, entry.head, ABSENT)

    return ssh.on_all(ssh.cluster.hosts, ask, changing=False)


def execute(ssh: Ssh, command: Sequence[str], ports: Sequence[int], terminal: bool) -> tuple[int, str]:
    """Run a command on the head, with this process's input and output. Return its exit code, and the error of ssh or ""."""
    head = ssh.cluster.head
    words = ["-P", "-m", "zfabric.launch.host", "exec", ssh.cluster.name, head.name, *command]
    return ssh.attach(head, words, ports, terminal)
