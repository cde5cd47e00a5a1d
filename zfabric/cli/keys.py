"""``zfabric keys``: the key files of clusters of several nodes."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import click

from zfabric.cli.options import json_option
from zfabric.cli.output import echo, print_json, print_table
from zfabric.runtime.cluster import default_key_file, make_keys, revoke_keys
from zfabric.runtime.keys import read_keys
from zfabric.runtime.session import HEAD_SUFFIX
from zfabric.shell.node import SWEEP_EVERY

FINGERPRINT_DIGITS = 16
_FILE = click.argument("file", required=False)


@click.group(short_help="Make, show and revoke the keys with which nodes join a cluster.")
def keys() -> None:
    """Make, show and revoke the keys with which nodes join a cluster.

    Who has the key file of a cluster can join it, and run code on it. Copy it to your machines only, by a safe way, and keep its mode 600.
    """


@keys.command(short_help="Make the keys of a new cluster.")
@_FILE
def create(file: str | None) -> None:
    """Make the keys of a new cluster: FILE, for all its nodes, and FILE.head, which stays on the head.

    By default FILE is ~/.config/zfabric/cluster.key, which `zfabric start --head` makes by itself.
    """
    path = _path(file)
    make_keys(path)
    echo(f"{path} is for all nodes; {path + HEAD_SUFFIX} stays on this machine, where the head can run:\n")
    echo(f"  zfabric start --head --key-file {path}")


@keys.command("list", short_help="Show which keys a key file has.")
@_FILE
@json_option
def list_keys(file: str | None, as_json: bool) -> None:
    """Show which keys FILE has, by fingerprints of their public halves."""
    path = _path(file)
    found = read_keys(path)
    rows: list[dict[str, Any]] = [{"key": "head", "fingerprint": _fingerprint(found.server), "admits_to": "being recognized as the head"}]
    rows += [{"key": role, "fingerprint": _fingerprint(pair.public), "admits_to": "join"} for role, pair in found.roles.items()]
    if as_json:
        print_json({"file": path, "can_be_head": os.path.exists(path + HEAD_SUFFIX), "keys": rows})
        return
    print_table(("key", "fingerprint", "for"), [tuple(row.values()) for row in rows])
    here = "this machine can be the head" if os.path.exists(path + HEAD_SUFFIX) else "the head is another machine"
    echo(f"\n{path}; {here}")


@keys.command(short_help="Have nodes join with a new key alone.")
@_FILE
def revoke(file: str | None) -> None:
    """Replace the key in FILE with which nodes join: copies of FILE made before admit nobody any more, within a few seconds.

    This is done on the head, where FILE.head is. Nodes that have joined have keys of their own, and go on; stop those that should not.
    """
    path = _path(file)
    heads = revoke_keys(path)
    running = f"the running head takes it within {SWEEP_EVERY:g} seconds" if heads else "no head of these keys runs here"
    echo(f"{path} has a new key to join with; {running}. Copy the file again to machines that are to join.")


def _path(file: str | None) -> str:
    return os.path.abspath(os.path.expanduser(file)) if file else default_key_file()


def _fingerprint(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:FINGERPRINT_DIGITS]
