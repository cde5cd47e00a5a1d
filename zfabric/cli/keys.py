"""``zfabric keys``: the key files of clusters of several nodes."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import click

from zfabric.cli.options import json_option
from zfabric.cli.output import echo, print_json, print_table
from zfabric.exceptions import ConfigError
from zfabric.runtime.cluster import KnownKeys, default_key_file, find_keys, known_keys, make_keys, revoke_keys
from zfabric.runtime.session import HEAD_SUFFIX
from zfabric.shell.node import SWEEP_EVERY

FINGERPRINT_DIGITS = 16
_FILE = click.argument("file", required=False)
_SUBJECT = click.argument("subject", metavar="[KEY]", required=False)


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


@keys.command("list", short_help="Show which keys this machine or a key file has.")
@_SUBJECT
@json_option
def list_keys(subject: str | None, as_json: bool) -> None:
    """Show which keys this machine has: their names, their files, and fingerprints of their public halves.

    These are the keys in ~/.config/zfabric, and those of heads that run here, also where their file was removed: the head goes on to admit
    who has a copy, until `zfabric keys revoke NAME`. With KEY, the name of keys or their file, show these alone.
    """
    if subject is None:
        _list_all(known_keys(), as_json)
        return
    known = find_keys(subject)
    rows = _rows(known)
    if as_json:
        print_json({"file": known.path, "can_be_head": known.can_be_head, "keys": rows})
        return
    print_table(("key", "fingerprint", "for"), [tuple(row.values()) for row in rows])
    here = "this machine can be the head" if known.can_be_head else "the head is another machine"
    echo(f"\n{known.path}{_gone(known)}; {here}")


def _list_all(known: list[KnownKeys], as_json: bool) -> None:
    found: list[dict[str, Any]] = [
        {"name": each.name, "file": each.path, "exists": os.path.exists(each.path), "heads": len(each.heads)} for each in known
    ]
    for each, row in zip(known, found, strict=True):
        try:
            row["keys"] = _rows(each)
        except ConfigError as error:
            row |= {"keys": [], "error": str(error)}
    if as_json:
        print_json(found)
        return
    if not found:
        echo("There are no keys here. `zfabric start --head` makes some, or `zfabric keys create`.")
        return
    cells = [
        (row["name"], part["key"], part["fingerprint"], part["admits_to"], f"{each.path}{_gone(each)}")
        for each, row in zip(known, found, strict=True)
        for part in row["keys"] or [{"key": "-", "fingerprint": "-", "admits_to": row["error"]}]
    ]
    print_table(("name", "key", "fingerprint", "for", "file"), cells, flexible="file")


def _rows(known: KnownKeys) -> list[dict[str, Any]]:
    content = known.content()
    rows: list[dict[str, Any]] = [{"key": "head", "fingerprint": _fingerprint(content.server), "admits_to": "being recognized as the head"}]
    rows += [{"key": role, "fingerprint": _fingerprint(pair.public), "admits_to": "join"} for role, pair in content.roles.items()]
    return rows


def _gone(known: KnownKeys) -> str:
    return "" if os.path.exists(known.path) else " (removed; the running head has a copy)" if known.heads else " (removed)"


@keys.command(short_help="Have nodes join with a new key alone.")
@_SUBJECT
def revoke(subject: str | None) -> None:
    """Replace the key with which nodes join: copies of its file made before admit nobody any more, within a few seconds.

    KEY is the file, or the name that `zfabric keys list` shows. A file that was removed is made again. This is done on the head, where
    FILE.head is. Nodes that have joined have keys of their own, and go on; stop those that should not.
    """
    path = find_keys(subject).path
    heads = revoke_keys(path)
    running = f"the running head takes it within {SWEEP_EVERY:g} seconds" if heads else "no head of these keys runs here"
    echo(f"{path} has a new key to join with; {running}. Copy the file again to machines that are to join.")


def _path(file: str | None) -> str:
    return os.path.abspath(os.path.expanduser(file)) if file else default_key_file()


def _fingerprint(key: bytes) -> str:
    return hashlib.sha256(key).hexdigest()[:FINGERPRINT_DIGITS]
