"""What runs on a host of a cluster file: ``python -m zfabric.launch.host``, by ssh.

A node of the cluster is found by the key file with which it was started, which has the cluster's name, and by its own name, which is that
of its host. The user's other clusters, and other nodes of this one, are left alone.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import psutil

from zfabric.api.lifecycle import ADDRESS_VARIABLE
from zfabric.exceptions import FabricError
from zfabric.runtime.cluster import default_key_file, versions
from zfabric.runtime.launch import stop
from zfabric.runtime.session import HEAD_SUFFIX, Session, find_sessions

NO_SUCH_PROGRAM, NOT_EXECUTABLE = 127, 126
"""As shells exit."""
_STDOUT = 1


def key_file(cluster: str) -> str:
    """The key file of a cluster that its cluster file started: not among those that users make."""
    return f"{os.path.dirname(default_key_file())}/clusters/{cluster}.key"


def facts(cluster: str, node: str) -> dict[str, Any]:
    """What ``zfabric up`` needs of a host: its versions, its addresses, and the node of the cluster that runs here.

    ``reached`` is the address at which ssh has reached this machine, "" without ssh. ``nodes`` has the living nodes of this name.
    """
    connection = os.environ.get("SSH_CONNECTION", "").split()
    return {
        **{what: version for what, version in versions("") if version},
        "key_file": key_file(cluster),
        "reached": connection[2] if len(connection) == 4 else "",
        "addresses": [each.address.partition("%")[0] for found in psutil.net_if_addrs().values() for each in found],
        "nodes": [_node_facts(session) for session in nodes_of(cluster, node)],
    }


def nodes_of(cluster: str, node: str) -> Iterator[Session]:
    """The living sessions of a cluster's node, of any version."""
    path = key_file(cluster)
    return (session for session in find_sessions() if session.requested() == (path, node))


def _node_facts(session: Session) -> dict[str, Any]:
    try:
        description = session.describe()
    except FabricError as error:  # Of another version, or just ending.
        return {"session": session.directory, "error": str(error)}
    membership = session.membership()
    return {
        "session": session.directory,
        "node": description["node"],
        "head": description["cluster"]["head"],
        "address": membership.address if membership is not None else "",
        "resources": description["resources"],
        "head_address": description["cluster"]["address"],
        "knows": [row[0].hex() for row in membership.node_table().rows] if membership is not None else [],
    }


def end(cluster: str, node: str, head: bool) -> list[str]:
    """End the nodes of this name, and remove the cluster's keys. Return the directories of their sessions.

    Without ``head``, the keys stay if this machine has the head's own pair in the same directory: machines may share the directory.
    """
    ended = [session.directory for session in list(nodes_of(cluster, node)) if stop(session)]
    path = key_file(cluster)
    unneeded = [path, path + HEAD_SUFFIX] if head else [] if os.path.exists(path + HEAD_SUFFIX) else [path]
    for each in unneeded:
        with suppress(FileNotFoundError):
            os.unlink(each)
    with suppress(OSError):  # There are keys of other clusters, or none at all.
        os.rmdir(os.path.dirname(path))
    return ended


def execute(cluster: str, node: str, command: Sequence[str]) -> int:
    """Run a command as a program of the cluster, whose address is in ``ZFABRIC_ADDRESS``. Return its exit code; 128 + n if signal n has
    ended it.

    Programs beside this Python are found first, as in an activated environment.
    """
    session = next(nodes_of(cluster, node), None)
    if session is None:
        raise FabricError(f"the cluster {cluster!r} does not run on {node}; zfabric up starts it")
    os.environ[ADDRESS_VARIABLE] = session.directory
    os.environ["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', os.defpath)}"
    try:
        return _run(command)
    except FileNotFoundError:
        raise CommandError(f"{command[0]}: there is no such program on {node}", NO_SUCH_PROGRAM) from None
    except OSError as error:
        raise CommandError(f"{command[0]}: {error.strerror}", NOT_EXECUTABLE) from None


class CommandError(FabricError):
    """A command that could not be started, and the exit code that says so."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def _run(command: Sequence[str]) -> int:
    """Run a command as a shell does, since sshd has no exit code for a command that a signal has ended.

    The command receives SIGHUP if the connection ends: without a terminal, the kernel sends none.
    """
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # All processes of the terminal get them.
        signal.signal(number, _do_nothing)  # What is ignored, the command would inherit.
    child = subprocess.Popen(command)
    ended = os.pidfd_open(child.pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(_STDOUT, 0)  # Of its end, poll reports without being asked.
    while ended not in (ready := [descriptor for descriptor, _ in poll.poll()]):
        poll.unregister(ready[0])
        os.kill(0, signal.SIGHUP)
    code = child.wait()
    return code if code >= 0 else 128 - code


def _do_nothing(number: int, frame: Any) -> None:
    pass


def main(arguments: Sequence[str]) -> int:
    """Run ``end CLUSTER NODE head|node`` or ``exec CLUSTER NODE COMMAND …``. Return the exit code; each error is one line."""
    what, cluster, node, *rest = arguments
    try:
        if what == "exec":
            return execute(cluster, node, rest)
        print(json.dumps({"ended": end(cluster, node, rest == ["head"])}))
        return 0
    except FabricError as error:
        print(f"Error: {error}", file=sys.stderr)
        return error.code if isinstance(error, CommandError) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
