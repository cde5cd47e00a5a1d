"""Key files: whoever has a cluster's key file can join it.

The *key file*, copied to each machine, has the head's public key, by which nodes recognise the head, and a key pair per role: so far
"node", which asks to join. The *server file*, the head's own pair, stays there. Files that others can read are refused; no error shows
content.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from typing import NamedTuple

import zmq
from zmq.utils import z85

from zfabric.adapters.curve import KeyPair, make_pair
from zfabric.exceptions import ConfigError

NODE_ROLE = "node"
FILE_BYTES_MAX = 4096
KEY_CHARACTERS = 40
_COMMENT = "# A key of a zfabric cluster. Whoever can read it can run code on the cluster: chmod 600.\n"


class ClusterKeys(NamedTuple):
    """A key file's content."""

    server: bytes
    """The head's public key."""
    roles: dict[str, KeyPair]

    @property
    def node(self) -> KeyPair:
        """The pair with which nodes ask to join."""
        return self.roles[NODE_ROLE]


def create_keys(path: str, server: bytes) -> ClusterKeys:
    """Make a cluster's key file. Raises ConfigError if it exists or cannot be written."""
    pair = make_pair()
    lines = [("server", server), ("role", NODE_ROLE.encode(), *pair)]
    _create(path, lines)
    return ClusterKeys(server, {NODE_ROLE: pair})


def replace_role(path: str, server: bytes) -> ClusterKeys:
    """Replace the pair with which nodes ask to join; earlier copies admit nobody.

    A file that is gone is made again, for the head with key ``server``. Raises ConfigError.
    """
    pair = make_pair()
    _create(path, [("server", server), ("role", NODE_ROLE.encode(), *pair)], replace=True)
    return ClusterKeys(server, {NODE_ROLE: pair})


def create_server_pair(path: str) -> KeyPair:
    """Make a head's pair in its file. Raises ConfigError if it exists or cannot be written."""
    pair = make_pair()
    _create(path, [("pair", *pair)])
    return pair


def read_keys(path: str) -> ClusterKeys:
    """Read a key file. Raises ConfigError if it is missing, damaged or readable by others."""
    server, roles = b"", {}
    for kind, *words in _read(path):
        if kind == "server" and len(words) == 1:
            server = _key(path, words[0])
        elif kind == "role" and len(words) == 3:
            roles[words[0]] = _pair(path, words[1:])
        else:
            raise _no_key_file(path)
    if not server or NODE_ROLE not in roles:
        raise _no_key_file(path)
    return ClusterKeys(server, roles)


def read_server_pair(path: str) -> KeyPair:
    """As ``read_keys``, for a head's pair."""
    lines = _read(path)
    if len(lines) != 1 or len(lines[0]) != 3 or lines[0][0] != "pair":
        raise _no_key_file(path)
    return _pair(path, lines[0][1:])


def _create(path: str, lines: list[tuple[str | bytes, ...]], replace: bool = False) -> None:
    """Write a file atomically, for its owner alone. With ``replace`` it may exist."""
    text = _COMMENT + "".join(" ".join(word if isinstance(word, str) else word.decode() for word in line) + "\n" for line in lines)
    temporary = f"{path}.{os.getpid()}.new"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, text.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)  # Fails if the file exists: a cluster's keys are not lost by accident.
    except FileExistsError:
        raise ConfigError(f"{path} exists: remove it, if no cluster uses it, or name another file") from None
    except OSError as error:
        raise ConfigError(f"cannot write the key file {path}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _read(path: str) -> list[list[str]]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise ConfigError(f"cannot read the key file {path}: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _no_key_file(path)
        if status.st_uid not in (os.getuid(), 0):
            raise ConfigError(f"the key file {path} belongs to another user: make a copy of your own")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise ConfigError(f"others can read the key file {path}: run chmod 600 {path}")
        data = os.read(descriptor, FILE_BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(data) > FILE_BYTES_MAX or not data.isascii():
        raise _no_key_file(path)
    lines = [line for line in data.decode("ascii").splitlines() if line.strip() and not line.startswith("#")]
    return [line.split() for line in lines]


def _pair(path: str, words: list[str]) -> KeyPair:
    pair = KeyPair(*(_key(path, word) for word in words))
    if zmq.curve_public(pair.secret) != pair.public:
        raise _no_key_file(path)
    return pair


def _key(path: str, word: str) -> bytes:
    key = word.encode()
    try:
        whole = len(key) == KEY_CHARACTERS and len(z85.decode(key)) == 32
    except (KeyError, ValueError, struct.error):
        whole = False
    if not whole:
        raise _no_key_file(path)
    return key


def _no_key_file(path: str) -> ConfigError:
    return ConfigError(f"{path} is no key file of zfabric, or it is damaged")
