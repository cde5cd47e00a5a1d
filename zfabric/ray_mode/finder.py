"""Where modules of ``ray`` come from: the directory ``ray`` beside this file, else the user's Ray, else ``without_ray``.

No binary of Ray is loaded, and its ``ray/__init__.py`` never runs: this finder knows only Python files. Finding the user's Ray and its
version runs none of its code.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import NamedTuple

from zfabric.exceptions import ConfigError
from zfabric.ray_mode.absent import PAGE, nearest

OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ray")
WITHOUT_RAY = os.path.join(os.path.dirname(OWN), "without_ray")
TESTED = ("2.60",)
"""Versions of Ray whose libraries are tested on zfabric."""
NEWEST = "2.60.0"
"""``ray.__version__`` where no Ray is installed."""


class Finder(MetaPathFinder):
    """Finds ``ray`` and every module below it. ``installed`` is the user's Ray, or None."""

    def __init__(self, installed: Installed | None) -> None:
        self.installed = installed
        self._directories = OWN, WITHOUT_RAY if installed is None else installed.directory

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how to load a module of ``ray``.

        Raises ModuleNotFoundError, which names the page of the modules that exist. But ``importlib.util.find_spec`` gets None.
        """
        if fullname.partition(".")[0] != "ray":
            return None
        parts = fullname.split(".")[1:]
        places = self._places(parts)
        found_in = [place for place in places if os.path.isdir(place)]
        for place in places:
            package = os.path.join(place, "__init__.py")
            if os.path.isfile(package):
                return importlib.util.spec_from_file_location(fullname, package, submodule_search_locations=found_in)
            if os.path.isfile(f"{place}.py"):
                return importlib.util.spec_from_file_location(fullname, f"{place}.py")
        if found_in:
            found = ModuleSpec(fullname, None, is_package=True)
            found.submodule_search_locations = found_in
            return found
        if sys._getframe(2).f_code is importlib.util.find_spec.__code__:
            return None  # A question, which no error answers.
        raise self._missing(fullname)

    def _places(self, parts: Sequence[str]) -> list[str]:
        return [os.path.join(directory, *parts) for directory in self._directories]

    def _missing(self, name: str) -> ModuleNotFoundError:
        package, _, last = name.rpartition(".")
        places = self._places(package.split(".")[1:])
        libraries = "" if self.installed else "no Ray is installed here, which Ray's libraries come from: pip install 'ray[...]'; "
        known = {entry.removesuffix(".py") for place in places if os.path.isdir(place) for entry in os.listdir(place)}
        text = f"there is no module {name!r} on zfabric{nearest(last, sorted(known))} ({libraries}{PAGE})"
        # Python would replace an error with the whole name by its own (``from ray import tune``).
        return ModuleNotFoundError(text, name=package if self.installed is None else name)


class Installed(NamedTuple):
    """An installed distribution of Ray."""

    directory: str
    """The directory of the package ``ray``."""
    version: str


def find() -> Installed | None:
    """Return the Ray that this process would import, or None. Raises ConfigError if ``sys.path`` has two versions."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions(name="ray"):
        directory = os.path.realpath(str(distribution.locate_file("ray")))
        if os.path.isdir(directory):
            found.setdefault(directory, distribution.version)
    if len(set(found.values())) > 1:
        listed = ", ".join(f"{version} in {os.path.dirname(directory)}" for directory, version in found.items())
        raise ConfigError(f"two versions of Ray are installed ({listed}): remove one from sys.path (docs/as-ray.md)")
    return next((Installed(directory, version) for directory, version in found.items()), None)
