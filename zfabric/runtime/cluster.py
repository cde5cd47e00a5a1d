"""How a session becomes a node: addresses, keys, checks before its start, the request to join.

A cluster's keys are two files (``runtime.keys``), the key file for all nodes and the head's own pair; sessions have copies. The hash seed
of all workers derives from the head's public key, so that each supervisor has it before it starts an interpreter.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import os
import queue
import shutil
import socket
import sys
import threading
import time
from collections.abc import Mapping
from itertools import chain
from typing import NamedTuple

from zfabric._version import __version__
from zfabric.adapters.node_transport import JOIN_BYTES_MAX
from zfabric.exceptions import ConfigError, ConnectionLostError
from zfabric.machines.common.resources import OWN_RESOURCES, amount_of
from zfabric.protocol import messages as m
from zfabric.protocol.messages.cluster import LABELS_MAX
from zfabric.protocol.names import is_text
from zfabric.runtime.keys import ClusterKeys, create_keys, create_server_pair, read_keys, read_server_pair, replace_role
from zfabric.runtime.session import HEAD_SUFFIX, LOOPBACK, TCP, ClusterSettings, Session, find_sessions, is_cluster_address

clock = time.monotonic

KEY_SUFFIX = ".key"
HEAD_PORT = 6790
REACH_SECONDS = 3.5
"""Seconds to resolve the head's name and connect. Then a node has ``JOIN_SECONDS``."""
FACTS_BYTES_MAX = 3 * JOIN_BYTES_MAX // 4
"""Most bytes of a node's name, labels and resources; ``Join`` also has addresses, keys and versions."""
FACT_BYTES = 16
"""Bytes that a text, or a resource's amount, takes beside its own."""
_ANY = ("", "0.0.0.0", "*")


def parse_address(address: str) -> tuple[str, int]:
    """Split "tcp://host:port" or, for IPv6, "tcp://[host]:port". Raises ConfigError."""
    host, _, port = address.removeprefix(TCP).rpartition(":")
    numeric = host[1:-1] if host.startswith("[") and host.endswith("]") else ""
    if not is_cluster_address(address) or not host or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in host:
        raise ConfigError(f'{address!r} is no address of a cluster: write "tcp://HOST:PORT", as zfabric start --head prints it')
    if ":" in host and not numeric:
        raise ConfigError(f'{address!r} is no address of a cluster: an IPv6 address is in brackets, as in "tcp://[::1]:6790"')
    return numeric or host, int(port)


def endpoint(host: str, port: int | str) -> str:
    """An address of host and port."""
    return f"{TCP}[{host}]:{port}" if ":" in host else f"{TCP}{host}:{port}"


def reach(address: str) -> str:
    """This machine's address on the way to a head. Connects; raises ConnectionLostError."""
    host, port = parse_address(address)
    until = clock() + REACH_SECONDS
    shown = host
    try:
        number = resolve(host, until)
        shown = host if number == host else f"{host} ({number})"
        with socket.create_connection((number, port), max(until - clock(), 0.001)) as connection:
            return str(connection.getsockname()[0])
    except socket.gaierror as error:
        raise ConnectionLostError(
            f"no cluster is at {address}: a TCP connection to host {host}, port {port} failed ({error.strerror}); this machine knows no "
            "IPv4 address of that name"
        ) from None
    except OSError as error:
        reason = f"no answer within {REACH_SECONDS:g} s" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise ConnectionLostError(
            f"no cluster is at {address}: a TCP connection to host {shown}, port {port} failed ({reason}); is that node running "
            "(further nodes reach a cluster at its head, programs at any of its nodes), and does no firewall close that port?"
        ) from None


def resolve(host: str, until: float) -> str:
    """Resolve a host to a number by the time ``until``. Raises OSError."""
    if _is_number(host):
        return host
    found: queue.SimpleQueue[str | OSError] = queue.SimpleQueue()
    threading.Thread(target=_look_up, args=(host, found), daemon=True).start()  # A look-up has no time limit of its own.
    try:
        answer = found.get(timeout=max(until - clock(), 0.001))
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, OSError):
        raise answer
    return answer


def _look_up(host: str, found: queue.SimpleQueue[str | OSError]) -> None:
    try:
        found.put(str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]))
    except OSError as error:
        found.put(error)
    except UnicodeError as error:  # No possible name: a part is empty or too long.
        found.put(socket.gaierror(socket.EAI_NONAME, str(error)))


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def head_address(settings: ClusterSettings) -> str:
    """The head's address; waits for a head just started here. Raises ConnectionLostError if it has ended."""
    if is_cluster_address(settings.address):
        return settings.address
    head = Session(settings.address)
    while (membership := head.membership()) is None:
        if not head.alive():
            raise ConnectionLostError(f"the head could not start: {head.failure() or settings.address}")
        time.sleep(0.002)  # No event covers both a file and the death of a process; the wait is short.
    return membership.address


def check_facts(settings: ClusterSettings, resources: Mapping[str, float]) -> None:
    """Raise ConfigError if a node has more labels and resources than a head accepts."""
    for what, many, most in (("labels", len(settings.labels), LABELS_MAX), ("resources", len(resources), LABELS_MAX - OWN_RESOURCES)):
        if many > most:
            raise ConfigError(f"a node of a cluster has at most {most:,} {what}, not {many:,}")
    texts = (settings.name, *chain.from_iterable(settings.labels), *resources)
    size = sum(len(text.encode(errors="replace")) + FACT_BYTES for text in texts)
    if size > FACTS_BYTES_MAX:
        raise ConfigError(f"a node's name, labels and resources have at most {FACTS_BYTES_MAX:,} bytes together, not {size:,}")


def check_free(host: str, port: int) -> None:
    """Raise ConfigError if a node cannot listen there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("" if host in _ANY else host, port))
        except OSError as error:
            advice = "; choose another port" if error.errno == errno.EADDRINUSE else ""
            raise ConfigError(f"this node cannot listen on host {host}, port {port}: {error.strerror or error}{advice}") from None


def own_address(settings: ClusterSettings, port: int, advertised: str) -> str:
    """Where other nodes reach ``port``: the ``advertised`` "host:port", if given."""
    if advertised:
        return f"{TCP}{advertised}"
    if settings.host not in _ANY:
        return endpoint(settings.host, port)
    if not settings.head:
        return endpoint(reach(head_address(settings)), port)
    return f"{TCP}{default_address() or LOOPBACK}:{port}"


def default_address() -> str:
    """This machine's address on its default route; "" without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # An address reserved for examples: the kernel chooses a route, and sends nothing.
            return str(probe.getsockname()[0])
        except OSError:
            return ""


def default_key_file() -> str:
    """The default key file's path."""
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return f"{base if os.path.isabs(base) else os.path.expanduser('~/.config')}/zfabric/cluster.key"


def make_keys(path: str) -> None:
    """Make a new cluster's key file and its head's pair. Raises ConfigError if one exists or cannot be written."""
    _make_directory(path)
    create_keys(path, create_server_pair(path + HEAD_SUFFIX).public)


def _make_directory(path: str) -> None:
    try:
        os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the directory of the key file {path} cannot be made: {error.strerror}") from None


class KnownKeys(NamedTuple):
    """A cluster's keys on this machine. ``path`` may be gone."""

    path: str
    heads: tuple[Session, ...]
    """Running heads with copies of the keys."""

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return os.path.basename(self.path).removesuffix(KEY_SUFFIX)

    def content(self) -> ClusterKeys:
        """Read the keys, from a copy if the file is gone. Raises ConfigError."""
        if self.heads and not os.path.exists(self.path):
            return read_keys(self.heads[0].cluster_key)
        return read_keys(self.path)

    @property
    def can_be_head(self) -> bool:
        """Whether the head's own pair is here."""
        return bool(self.heads) or os.path.exists(self.path + HEAD_SUFFIX)


def known_keys() -> list[KnownKeys]:
    """This machine's keys by name: beside the default key file, and of running heads."""
    default = default_key_file()
    found: dict[str, list[Session]] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(os.path.dirname(default)):
            file = name.removesuffix(HEAD_SUFFIX)
            if file.endswith(KEY_SUFFIX):
                found[f"{os.path.dirname(default)}/{file}"] = []
    for session in find_sessions():
        cluster = session.cluster()
        if cluster is not None and cluster.head:
            found.setdefault(cluster.key_file, []).append(session)
    return sorted((KnownKeys(path, tuple(heads)) for path, heads in found.items()), key=lambda each: (each.name, each.path))


def find_keys(subject: str | None) -> KnownKeys:
    """Find keys by path or name, by default the default key file's. Raises ConfigError."""
    known = known_keys()
    path = os.path.abspath(os.path.expanduser(subject)) if subject else default_key_file()
    named = [each for each in known if each.path == path]
    if not named and subject and not os.path.exists(path):
        named = [each for each in known if subject == each.name]
    if len(named) > 1:
        raise ConfigError(f"{subject!r} is the name of several keys; name one by its path: {', '.join(each.path for each in named)}")
    return named[0] if named else KnownKeys(path, ())


def copy_keys(path: str, session: Session, head: bool) -> None:
    """Copy keys into a session. Raises ConfigError if they are unreadable, damaged or open to others."""
    if not os.path.exists(path):
        raise ConfigError(f"there is no key file {path}: zfabric start --head makes it, on the head; copy it from there")
    keys = read_keys(path)
    files = {path: session.cluster_key}
    if head:
        if not os.path.exists(path + HEAD_SUFFIX):
            raise ConfigError(f"{path} has no {path + HEAD_SUFFIX} beside it: only where the keys were made can the head be")
        if read_server_pair(path + HEAD_SUFFIX).public != keys.server:
            raise ConfigError(f"{path} and {path + HEAD_SUFFIX} are of two clusters: remove both, and zfabric start --head makes others")
        files[path + HEAD_SUFFIX] = session.cluster_key + HEAD_SUFFIX
    for source, target in files.items():
        shutil.copy(source, target)


def revoke_keys(path: str) -> list[Session]:
    """Replace the key with which nodes join, in its file and in running heads; return their sessions.

    Nodes that have joined have keys of their own. Raises ConfigError if the keys were not made here.
    """
    heads = [(session, cluster) for session in find_sessions() if (cluster := session.cluster()) is not None and cluster.head]
    own = path + HEAD_SUFFIX
    if not os.path.exists(own):
        own = next((session.cluster_key + HEAD_SUFFIX for session, cluster in heads if cluster.key_file == path), own)
    if not os.path.exists(own):
        raise ConfigError(f"{path} has no {path + HEAD_SUFFIX} beside it: keys are revoked where they were made, on the head")
    server = read_server_pair(own).public
    if not os.path.exists(path):
        _make_directory(path)
    elif read_keys(path).server != server:
        raise ConfigError(f"{path} and {own} are of two clusters")
    replace_role(path, server)
    replaced = []
    for session, _ in heads:
        if read_server_pair(session.cluster_key + HEAD_SUFFIX).public == server:
            copy = f"{session.cluster_key}.new"
            shutil.copy(path, copy)
            os.replace(copy, session.cluster_key)
            replaced.append(session)
    return replaced


def hash_seed(session: Session) -> str:
    """The ``PYTHONHASHSEED``: the user's, if a number, else the cluster's."""
    seed = os.environ.get("PYTHONHASHSEED", "")
    if seed.isascii() and seed.isdecimal():
        return seed
    return str(int.from_bytes(hashlib.sha256(read_keys(session.cluster_key).server).digest()[:4], "big"))


def bound_address(settings: ClusterSettings, port: int) -> str:
    """The endpoint that the daemon binds."""
    return endpoint("0.0.0.0" if settings.host in _ANY else settings.host, port or "*")


def versions(hash_seed: str) -> tuple[tuple[str, str], ...]:
    """(what, version) pairs that must agree on all nodes."""
    return (
        ("zfabric", __version__),
        ("Python", ".".join(map(str, sys.version_info[:2]))),
        ("cloudpickle", _version_of_cloudpickle().partition(".")[0]),
        ("PYTHONHASHSEED", hash_seed),
    )


def _version_of_cloudpickle() -> str:
    loaded = sys.modules.get("cloudpickle")
    if loaded is not None:  # Daemons have it loaded; ``importlib.metadata`` would cost them memory.
        return str(loaded.__version__)
    from importlib.metadata import version

    return version("cloudpickle")


def join_message(
    session: Session, settings: ClusterSettings, key: bytes, number: int, address: str, resources: Mapping[str, float]
) -> m.Join:
    """A node's request to join."""
    description = session.describe()
    amounts = tuple(sorted((name, amount_of(name, amount)) for name, amount in resources.items()))
    facts = (
        settings.name or node_name(),
        int(description["supervisor"]),
        key,
        address,
        str(description["transfer"]),
        amounts,
        settings.labels,
    )
    return m.Join(m.PROTOCOL_VERSION, bytes.fromhex(description["node"]), number, *facts, versions(settings.hash_seed))


class _Numbers:
    """Resolves each host once, by one deadline, so that two names of a host are equal."""

    def __init__(self) -> None:
        self._until = clock() + REACH_SECONDS
        self._found: dict[str, str] = {}

    def of(self, address: str) -> str:
        host, port = parse_address(address)
        if host not in self._found:
            try:
                self._found[host] = resolve(host, self._until)
            except OSError:
                self._found[host] = host
        return endpoint(self._found[host], port)


def node_name() -> str:
    """This machine's name, for people."""
    name = os.uname().nodename
    return name if is_text(name) else ""


def nodes_here(address: str) -> list[Session]:
    """This user's living nodes of the cluster with a node at ``address``: the addressed one first, then the oldest."""
    numbers = _Numbers()
    address = numbers.of(address)
    addressed: list[Session] = []
    others: list[Session] = []
    for session in find_sessions():
        membership = session.membership()
        if membership is None:
            continue
        if numbers.of(membership.address) == address:
            addressed.append(session)
        elif address in map(numbers.of, membership.addresses):
            others.append(session)
    return addressed + others
