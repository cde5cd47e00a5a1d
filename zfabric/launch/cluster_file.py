"""The cluster file: which machines a cluster has, and what its nodes are started with. ``zfabric up`` and its siblings read it.

The file is TOML. ``[cluster]`` has the cluster's name and how commands run on each machine, ``[head]`` the first node, and each
``[[nodes]]`` further machines with common options. ``CLUSTER_KEYS``, ``HEAD_KEYS`` and ``NODES_KEYS`` have a row for each key, which checks
its value.

Who can write the file can run commands on all its machines. So a file that others can write is refused, as ssh refuses such a
configuration. Each error names the key, what was found there and what to write.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import re
import stat
import sys
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from zfabric.config import size_of
from zfabric.exceptions import ConfigError, OptionError
from zfabric.launch.policy import JOB_LABEL, KIND_LABEL, NodeKind
from zfabric.machines.common.resources import demand_of
from zfabric.protocol.scaling import KINDS_MOST

FILE_BYTES_MAX = 2**20
"""Most bytes of a cluster file: a thousand hosts take 20 KB."""
SECONDS_MAX = 10**7
"""Longest time that ``zfabric start`` takes."""
NODES_MOST = 10_000
"""Most nodes of a kind."""
PYTHON = "python3"
"""Python on each machine by default."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class HostEntry(NamedTuple):
    """A machine of the file, which has one node of the cluster."""

    host: str
    """What ssh receives: a name, an address or an alias of its configuration, perhaps with a user (``me@node1``)."""
    head: bool
    python: str
    options: tuple[str, ...]
    """Options of ``zfabric start``."""

    @property
    def name(self) -> str:
        """The node's name: the host without a user."""
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
    """The network by which the nodes reach each other; None: the one by which ssh reaches the head."""
    ssh: tuple[str, ...]
    """Options of ssh."""
    head: HostEntry
    nodes: tuple[HostEntry, ...]

    @property
    def hosts(self) -> tuple[HostEntry, ...]:
        """All machines, the head's first."""
        return (self.head, *self.nodes)


class KindEntry(NamedTuple):
    """A kind of nodes, and where they come from."""

    kind: NodeKind
    provider: str
    python: str
    options: tuple[str, ...]
    """Options of ``zfabric start``."""
    sbatch: tuple[str, ...]
    submit: str
    states: str
    cancel: str


class ScalingFile(NamedTuple):
    """What ``zfabric autoscale`` takes from a cluster file."""

    path: str
    name: str
    before: tuple[str, ...]
    address: str
    """Where nodes join, or "": at the head of the cluster that runs here."""
    key_file: str
    """The key file of each machine, or "": at the path that the head was started with."""
    kinds: tuple[KindEntry, ...]


class FileKey(NamedTuple):
    """What a key of the file may hold."""

    parse: Callable[[Any], Any]
    """Return the parsed value. Raises ValueError that says what to write."""
    example: str
    """A value, as TOML."""
    option: str = ""
    """The option of ``zfabric start`` that the key sets: once for each text of the parsed value, which is a tuple then."""


def read_cluster_file(path: str) -> ClusterFile:
    """Read a cluster file. Raises ConfigError if it cannot be read, others can write it, or something in it is wrong."""
    document, cluster = _begun(path)
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


def read_scaling_file(path: str) -> ScalingFile:
    """Read the kinds of nodes of a cluster file. Raises ConfigError as ``read_cluster_file`` does."""
    document, cluster = _begun(path)
    kinds = document.get("kinds", [])
    if not isinstance(kinds, list) or not kinds:
        raise ConfigError(f'{path} has no [[kinds]]: write [[kinds]] with name = "small", provider = "slurm", max = 8, num_cpus = 4')
    if len(kinds) > KINDS_MOST:
        raise ConfigError(f"{path} has {len(kinds)} [[kinds]]: write at most {KINDS_MOST}")
    entries = []
    for number, found in enumerate(kinds, 1):
        title = f"[[kinds]] {number}:" if len(kinds) > 1 else "[[kinds]]"
        entries.append(_kind(path, title, _section(path, title, found, KIND_KEYS, ("name", "provider", "max", "num_cpus")), found, cluster))
    names = [entry.kind.name for entry in entries]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{path}: the kind {twice!r} is there twice: choose another name")
    return ScalingFile(
        path,
        cluster["name"],
        cluster.get("before", ()),
        cluster.get("address", ""),
        os.path.expanduser(cluster.get("key_file", "")),
        tuple(entries),
    )


def _kind(path: str, title: str, section: Mapping[str, Any], found: Mapping[str, Any], cluster: Mapping[str, Any]) -> KindEntry:
    """A kind of nodes. ``found`` has its values as in the file."""
    provider = section["provider"]
    for key, needs in PROVIDER_KEYS.items():
        if key in section and provider != needs:
            raise ConfigError(f"{path}: {title} {key} is for provider = {_shown(needs)}, and the provider is {_shown(provider)}")
        if key not in section and provider == needs == "command":
            raise ConfigError(f"{path}: {title} has no {key}: write {key} = {KIND_KEYS[key].example}")
    least, most = section.get("min", 0), section["max"]
    if least > most:
        raise ConfigError(f"{path}: {title} min is {least}, which is more than max, {most}")
    labels = found.get("labels", {})
    reserved = next((label for label in (KIND_LABEL, JOB_LABEL) if label in labels), None)
    if reserved is not None:
        raise ConfigError(f"{path}: {title} labels has {reserved!r}, which the autoscaler sets: choose another name")
    memory = size_of(str(found["memory"])) if "memory" in found else None
    try:
        demand = demand_of(found["num_cpus"], found.get("num_gpus"), found.get("resources"), memory)
    except OptionError as error:
        raise ConfigError(f"{path}: {title} {error}") from None
    times = {option: section.get(key, (usual,)) for key, (option, usual) in KIND_TIMES.items()}
    options = [f"{option}={text}" for option, (text,) in times.items()]
    options += [
        f"{KIND_KEYS[key].option}={text}"
        for key, texts in section.items()
        if KIND_KEYS[key].option and key not in KIND_TIMES
        for text in texts
    ]
    return KindEntry(
        NodeKind(section["name"], dict(demand), labels, least, most),
        provider,
        section.get("python") or cluster.get("python") or sys.executable,
        tuple(options),
        section.get("sbatch", ()),
        section.get("submit", ""),
        section.get("states", ""),
        section.get("cancel", ""),
    )


def _begun(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The file's content, and its parsed section [cluster]. Raises ConfigError."""
    try:
        content = _content(path)
    except OSError as error:
        raise ConfigError(f"cannot read the cluster file {path}: {error.strerror}") from None
    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # Also bytes that are not UTF-8, and numbers of thousands of digits.
        raise ConfigError(f"{path} is not TOML: {error}") from None
    _check_names(path, "the file", document, ("cluster", "head", "nodes", "kinds"))
    return document, _section(path, "[cluster]", document.get("cluster"), CLUSTER_KEYS, ("name",))


def _content(path: str) -> bytes:
    """The file's content. Raises ConfigError if others can write it, or OSError."""
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
    return data


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


def _number(minimum: int) -> Callable[[Any], int]:
    parse = _whole(minimum, NODES_MOST)
    return lambda value: int(parse(value)[0])


def _seconds(value: Any) -> tuple[str, ...]:
    if type(value) not in (int, float) or not 0 < value <= SECONDS_MAX:
        raise ValueError(f"a time in seconds, above 0 and up to {SECONDS_MAX:,.0f}")
    return (f"{value:g}",)


def _command(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError("a shell command")
    return value


def _provider(value: Any) -> str:
    if value not in ("local", "slurm", "command"):
        raise ValueError('"local", "slurm" or "command"')
    return str(value)


def _address(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"tcp://[^\s/]+:\d+", value):
        raise ValueError("the address of the head")
    return value


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
    "address": FileKey(_address, '"tcp://head:6790"'),
    "key_file": FileKey(_text, '"~/.config/zfabric/cluster.key"'),
}
HEAD_KEYS = {"host": FileKey(_host, '"node1"'), **_ONE_NODE}
NODES_KEYS = {"hosts": FileKey(_hosts, '["node2", "node3"]'), **_ONE_NODE}
PROVIDER_KEYS = {"sbatch": "slurm", "submit": "command", "states": "command", "cancel": "command"}
"""Keys that only one provider has."""
KIND_TIMES = {"idle_timeout": ("--idle-timeout", "60"), "wait": ("--wait", "300"), "grace": ("--grace", "25")}
"""Times of a kind in seconds: options of ``zfabric start``, and their defaults."""
KIND_KEYS = {
    "name": FileKey(_cluster_name, '"small"'),
    "provider": FileKey(_provider, '"slurm"'),
    "min": FileKey(_number(0), "0"),
    "max": FileKey(_number(1), "8"),
    **{key: _ONE_NODE[key] for key in ("python", "num_cpus", "num_gpus", "memory", "object_store_memory", "resources", "labels")},
    **{key: FileKey(_seconds, usual, option) for key, (option, usual) in KIND_TIMES.items()},
    "sbatch": FileKey(_texts, '["--partition=short", "--time=2:00:00"]'),
    "submit": FileKey(_command, "'echo {script} | qsub -N {id} -o {output} -j oe'"),
    "states": FileKey(_command, "'list-my-jobs'"),
    "cancel": FileKey(_command, "'qdel {ids}'"),
}
