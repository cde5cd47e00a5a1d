"""``python -m zfabric.as_ray program.py ARGS`` runs a program of Ray; ``--check`` reports what of Ray is here."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import NoReturn

from zfabric.ray_mode.absent import Absent
from zfabric.ray_mode.finder import NEWEST, OWN, TESTED, WITHOUT_RAY, find

LIBRARIES = ("data", "train", "tune", "rllib", "serve")
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


def report() -> int:
    """Print Ray's version, importable libraries and unusable names. Return 1 if a library cannot be imported."""
    ray = find()
    tested = ", ".join(TESTED)
    if ray is None:
        print(f"Ray: not installed (ray.__version__ is {NEWEST}); programs that use its core alone run without it")
    else:
        known = "tested" if ray.version.startswith(tuple(f"{version}." for version in TESTED)) else f"not tested: {tested} is"
        print(f"Ray: {ray.version} ({known}) in {os.path.dirname(ray.directory)}")
    failed = 0
    print("\nlibraries:")
    for library in LIBRARIES:
        problem = _problem(f"ray.{library}") if ray else "not installed"
        failed += bool(problem)
        print(f"  ray.{library:<8} {problem or 'can be imported'}")
    print("\nnames that exist and raise NotInRayModeError where they are used:")
    for module in dict.fromkeys(modules((OWN,) if ray else (OWN, WITHOUT_RAY))):
        if _problem(module):
            print(f"  {module}: cannot be imported")
        elif names := sorted(name for name, value in vars(sys.modules[module]).items() if type(value) is Absent):
            print(f"  {module}: {', '.join(names)}")
    return int(failed > 0 and ray is not None)


def modules(places: Sequence[str] = (OWN,)) -> Iterator[str]:
    """Modules of ``ray`` that zfabric has itself."""
    for place in places:
        for directory, folders, files in os.walk(place):
            folders[:] = sorted(folder for folder in folders if folder != "__pycache__")
            below = os.path.relpath(directory, place)
            package = "ray" if below == os.curdir else f"ray.{below.replace(os.sep, '.')}"
            for name in sorted(file.removesuffix(".py") for file in files if file.endswith(".py")):
                yield package if name == "__init__" else f"{package}.{name}"


def _problem(module: str) -> str:
    """Return why a module cannot be imported; empty if it can."""
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    except Exception as error:  # Whatever the library raises is shown.
        return f"{type(error).__name__}: {error}"
    return ""
