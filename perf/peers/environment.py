"""The peers' own environment, ``.venv-peers``: made and filled on first use, ignored by git, deleted at will.

A peer that cannot be installed is left out, with the reason, and the others go on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import NamedTuple

from perf import machine
from perf.peers import COLD, NEEDED, PEERS

DIRECTORY = machine.ROOT / ".venv-peers"
INSTALL_SECONDS_MAX = 900


class Prepared(NamedTuple):
    """The interpreter of each peer that is there, its version, and why the others are not."""

    interpreters: dict[str, str]
    versions: dict[str, str]
    absent: dict[str, str]


def prepare() -> Prepared:
    """See to it that the peers are there, as far as they can be."""
    prepared = Prepared({}, {}, {})
    for name, distribution in PEERS.items():
        interpreter = sys.executable if not distribution else str(DIRECTORY / "bin" / "python")
        problem = _install(interpreter, name, distribution)
        if problem:
            prepared.absent[name] = problem
        else:
            prepared.interpreters[name] = interpreter
            prepared.versions[name] = _version(interpreter, distribution)
    return prepared


def _install(interpreter: str, name: str, distribution: str) -> str:
    """Why the peer is not there; empty if it is."""
    module, more = NEEDED.get(name, ("", ""))
    if not distribution or not _run([interpreter, "-c", f"{COLD[name][0]}\n{'import ' + module if module else ''}"]):
        return ""
    if not os.path.exists(interpreter):
        print(f"making {DIRECTORY.name}", file=sys.stderr)
        problem = _run([sys.executable, "-m", "venv", str(DIRECTORY)])
        if problem:
            return problem
    print(f"installing {distribution} into {DIRECTORY.name}", file=sys.stderr)
    return _run(
        [interpreter, "-m", "pip", "install", "-q", "--disable-pip-version-check", distribution, "numpy", *([more] if more else [])]
    )


def _version(interpreter: str, distribution: str) -> str:
    source = (
        f"from importlib.metadata import version; print(version({distribution!r}))"
        if distribution
        else "import platform; print(platform.python_version())"
    )
    return subprocess.run([interpreter, "-c", source], capture_output=True, text=True, check=True).stdout.strip()


def _run(command: list[str]) -> str:
    """The last line of output of a failed command; empty if it did not fail."""
    try:
        done = subprocess.run(command, cwd=DIRECTORY.parent, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
