"""``python -m zfabric.as_ray program.py ARGS`` runs a program of Ray; ``--check`` reports what of Ray is here."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from zfabric.ray_mode.report import report

USAGE = """usage: python -m zfabric.as_ray PROGRAM [ARGS]...
       python -m zfabric.as_ray -m MODULE [ARGS]...
       python -m zfabric.as_ray --check

The first two are `zfabric submit --as-ray`, which has more options. The last one shows Ray's version, which of its libraries can be
imported, and which of its names are stand-ins that cannot be used."""


def main(arguments: list[str]) -> NoReturn:
    """Run the command."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        sys.exit(0 if arguments else 2)
    if arguments == ["--check"]:
        sys.exit(report())
    # One way into a program: the command does the rest, in this process.
    os.execv(sys.executable, [sys.executable, "-m", "zfabric", "submit", "--as-ray", *arguments])
