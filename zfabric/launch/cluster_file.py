"""The cluster file: which machines a cluster has, and what its nodes are started with. ``zfabric up`` and its siblings read it.

The file is TOML. ``[cluster]`` has the cluster's name and how commands run on each machine, ``[head]`` its first node, and each
``[[nodes]]`` further machines that have options in common. A key is a row of ``CLUSTER_KEYS``, ``HEAD_KEYS`` or ``NODES_KEYS``, which
checks its value.

Who can write the file can run commands on all its machines. So a file that others can write is refused, as ssh refuses its own
configuration then. Each error names the key, what was found there and what to write.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from zfabric.config import size_of
from zfabric.exceptions import ConfigError, OptionError
from zfabric.machines.common.resources import demand_of

FILE_BYTES_MAX = 2**20
"""Most bytes of a cluster file: a thousand hosts take 20 KB."""
PYTHON = "python3"
"""Python on each machine, unless the file names another one."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class HostEntry(NamedTuple):
    """A machine of the file, which has one node of the cluster."""

    host: str
    """As ssh is to be told: a name, an address or an alias of its configuration, perhaps with a user (``me@node1``)."""
    head: bool
    python: str
    options: tuple[str, ...]
    """Options of ``zfabric start``."""

    @property
    def name(self) -> str:
        """The name of the node: that of the host, without a user."""
        return self.host.rpartition("@")[2]


class ClusterFile(NamedTuple):
    """A cluster file's content."""

    path: str
    name: str
    before: tuple[str, ...]
    """Shell commands that each machine runs before any other."""
    directory: str
    """The working directory on each machine, or ""."""
    network: Network | None
    """The network by which the nodes reach each other; None: that by which ssh reaches the head."""
    ssh: tuple[str, ...]
    """Options of ssh."""
    head: HostEntry
    nodes: tuple[HostEntry, ...]

    @property
    def hosts(self) -> tuple[HostEntry, ...]:
        """All machines, the head's first."""
        return (self.head, *self.nodes)


class FileKey(NamedTuple):
    """What a key of the file may hold."""

    parse: Callable[[Any], Any]
    """Return the parsed value. Raises ValueError that says what to write."""
    example: str
    """A value, as TOML."""
    option: str = ""
    """The option of ``zfabric start`` that the key sets. Its parsed value is then a tuple of texts, each for one such option."""


def read_cluster_file(path: str) -> ClusterFile:
    """Read a cluster file. Raises ConfigError if it cannot be read, others can write it, or it has something wrong."""
    try:
        document = tomllib.loads(_content(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"cannot read the cluster file {path}: {error.strerror}") from None
    _check_names(path, "the file", document, ("cluster", "head", "nodes"))
    cluster = _section(path, "[cluster]", document.get("cluster"), CLUSTER_KEYS, ("name",))
    python = cluster.get("python", PYTHON)
    head = _section(path, "[head]", document.get("head"), HEAD_KEYS, ("host",))
    groups = document.get("nodes", [])
    if not isinstance(groups, list):
        raise ConfigError(f'{path}: [nodes] is not a list of tables: write [[nodes]] and hosts = ["node2", "node3"]')
    nodes = []
    for number, found in enumerate(groups, 1):
        group = _section(path, f"[[nodes]] number {number}" if len(groups) > 1 else "[[nodes]]", found, NODES_KEYS, ("hosts",))
        nodes += [_entry(host, False, group, python) for host in group["hosts"]]
    made = ClusterFile(
        path,
        cluster["name"],
        cluster.get("before", ()),
        cluster.get("directory", ""),
        cluster.get("network"),
        tuple(map(os.path.expanduser, cluster.get("ssh", ()))),
        _entry(head["host"], True, head, python),
        tuple(nodes),
    )
    names = [entry.name for entry in made.hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{path}: the host {twice!r} is there twice: write it once, since each host has one node")
    return made


def _content(path: str) -> str:
    """The file's text. Raises ConfigError if others can write it, OSError, or UnicodeDecodeError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"the cluster file {path} is not a regular file")
        if status.st_uid not in (os.getuid(), 0):
            raise ConfigError(f"the cluster file {path} belongs to another user: make a copy of your own")
        if stat.S_IMODE(status.st_mode) & 0o022:
            raise ConfigError(f"others can write the cluster file {path}, and so run commands on its hosts: run chmod go-w {path}")
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"the cluster file {path} has more than {FILE_BYTES_MAX:,} bytes")
    return data.decode()


def _section(path: str, title: str, found: Any, keys: Mapping[str, FileKey], needed: tuple[str, ...]) -> dict[str, Any]:
    """Parse a section. Raises ConfigError for a key that is unknown, missing or wrong."""
    if found is None:
        found = {}
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: {title} is {_shown(found)}: write a section with {needed[0]} = {keys[needed[0]].example}")
    _check_names(path, title, found, keys)
    missing = next((key for key in needed if key not in found), None)
    if missing is not None:
        raise ConfigError(f"{path}: {title} has no {missing}: write {missing} = {keys[missing].example}")
    parsed = {}
    for key, value in found.items():
        try:
            parsed[key] = keys[key].parse(value)
        except ValueError as error:
            raise ConfigError(f"{path}: {title} {key} is {_shown(value)}: write {error}, as in {key} = {keys[key].example}") from None
    return parsed


def _check_names(path: str, title: str, found: Mapping[str, Any], known: Mapping[str, Any] | tuple[str, ...]) -> None:
    unknown = next((name for name in found if name not in known), None)
    if unknown is None:
        return
    near = difflib.get_close_matches(unknown, known, 1)
    what = "section" if title == "the file" else "key"
    advice = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"{path}: {title} has no {what} {unknown!r}; {advice}there are {', '.join(known)}")


def _entry(host: str, head: bool, section: Mapping[str, Any], python: str) -> HostEntry:
    keys = HEAD_KEYS if head else NODES_KEYS
    options = [f"{keys[key].option}={text}" for key, texts in section.items() if keys[key].option for text in texts]
    return HostEntry(host, head, section.get("python", python), tuple(options))


def _shown(value: Any) -> str:
    """A value as it stands in the file, or nearly so."""
    return json.dumps(value, ensure_ascii=False, default=str)


# --- values ------------------------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("a text on one line")
    return value


def _program(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not re.match("[^-]", value):
        raise ValueError("the path of a Python interpreter")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) and each and "\0" not in each for each in value):
        raise ValueError("a list of texts")
    return tuple(value)


def _cluster_name(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", value):
        raise ValueError('at most 64 letters, digits, "-" and "_"')
    return value


def _host(value: Any) -> str:
    """A host that no program takes for an option or a path."""
    if not isinstance(value, str) or not re.fullmatch(r"([^\s@/-][^\s@/]*@)?[^\s@/-][^\s@/]*", value) or not value.isprintable():
        raise ValueError('a name without spaces and "/" that does not begin with "-"')
    return value


def _hosts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise ValueError("a list of hosts")
    for each in value:
        try:
            _host(each)
        except ValueError as error:
            raise ValueError(f"for each host {error}") from None
    return tuple(value)


def _network(value: Any) -> Network:
    try:
        return ipaddress.ip_network(value if isinstance(value, str) else "")
    except ValueError:
        raise ValueError("a network with the length of its prefix, whose other bits are zero") from None


def _whole(minimum: int, maximum: int | None = None) -> Callable[[Any], tuple[str, ...]]:
    bounds = f"{minimum:,} or more" if maximum is None else f"from {minimum:,} to {maximum:,}"

    def parse(value: Any) -> tuple[str, ...]:
        if type(value) is not int or value < minimum or (maximum is not None and value > maximum):
            raise ValueError(f"a whole number, {bounds}")
        return (str(value),)

    return parse


def _size(value: Any) -> tuple[str, ...]:
    if type(value) not in (int, str) or size_of(str(value)) is None:
        raise ValueError("bytes, or a text with a number and a unit")
    return (str(value),)


def _resources(value: Any) -> tuple[str, ...]:
    if not isinstance(value, dict):
        raise ValueError("amounts by name")
    try:
        demand_of(None, None, value)
    except (OptionError, ValueError, TypeError) as error:
        raise ValueError(f"amounts by name ({error})") from None
    return (json.dumps(value),)


def _labels(value: Any) -> tuple[str, ...]:
    if not isinstance(value, dict) or not all(name and "=" not in name and isinstance(text, str) for name, text in value.items()):
        raise ValueError('texts by name, which has no "="')
    return tuple(f"{name}={text}" for name, text in value.items())


_ONE_NODE = {
    "python": FileKey(_program, '"/srv/venv/bin/python"'),
    "num_cpus": FileKey(_whole(0), "16", "--num-cpus"),
    "num_gpus": FileKey(_whole(0), "2", "--num-gpus"),
    "memory": FileKey(_size, '"64GiB"', "--memory"),
    "object_store_memory": FileKey(_size, '"16GiB"', "--object-store-memory"),
    "resources": FileKey(_resources, "{ tpu = 2 }", "--resources"),
    "labels": FileKey(_labels, '{ disk = "ssd" }', "--label"),
    "port": FileKey(_whole(1, 65535), "6790", "--port"),
    "transfer_port": FileKey(_whole(1, 65535), "6791", "--transfer-port"),
}
CLUSTER_KEYS = {
    "name": FileKey(_cluster_name, '"lab"'),
    "python": _ONE_NODE["python"],
    "before": FileKey(_texts, '["module load cuda"]'),
    "directory": FileKey(_text, '"/srv/project"'),
    "network": FileKey(_network, '"10.0.0.0/24"'),
    "ssh": FileKey(_texts, '["-F", "~/lab/ssh_config"]'),
}
HEAD_KEYS = {"host": FileKey(_host, '"node1"'), **_ONE_NODE}
NODES_KEYS = {"hosts": FileKey(_hosts, '["node2", "node3"]'), **_ONE_NODE}
