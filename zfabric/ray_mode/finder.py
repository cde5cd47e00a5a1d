"""Where each module of ``ray`` comes from: a file beside this one, else the user's Ray.

A binary of Ray is never loaded, and ``ray/__init__.py`` of the installation never run: this finder knows only files of Python, and the
package ``ray`` itself is zfabric's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType

from zfabric.ray_mode.absent import PAGE, nearest
from zfabric.ray_mode.installed import Installed

OWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ray")
"""The directory with zfabric's modules of ``ray``."""


class Finder(MetaPathFinder):
    """Finds ``ray`` and every module below it. ``installed`` is the user's Ray, None if there is none."""

    def __init__(self, installed: Installed | None) -> None:
        self.installed = installed

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return how to load a module of ``ray``. Raises ModuleNotFoundError with the page that says what there is."""
        if fullname.partition(".")[0] != "ray":
            return None
        parts = fullname.split(".")[1:]
        places = [os.path.join(OWN, *parts)]
        if self.installed is not None:
            places.append(os.path.join(self.installed.directory, *parts))
        directories = [place for place in places if os.path.isdir(place)]
        for place in places:
            if os.path.isfile(os.path.join(place, "__init__.py")):
                return spec_from_file_location(fullname, os.path.join(place, "__init__.py"), submodule_search_locations=directories)
            if os.path.isfile(f"{place}.py"):
                return spec_from_file_location(fullname, f"{place}.py")
        if directories:
            found = ModuleSpec(fullname, None, is_package=True)
            found.submodule_search_locations = directories
            return found
        raise ModuleNotFoundError(self._why(fullname), name=fullname)

    def _why(self, name: str) -> str:
        package, _, last = name.rpartition(".")
        places = [os.path.join(OWN, *package.split(".")[1:])]
        if self.installed is None:
            libraries = "no Ray is installed here, which Ray's libraries come from: pip install 'ray[...]'; "
        else:
            libraries = ""
            places.append(os.path.join(self.installed.directory, *package.split(".")[1:]))
        known = {entry.removesuffix(".py") for place in places if os.path.isdir(place) for entry in os.listdir(place)}
        return f"there is no module {name!r} on zfabric{nearest(last, sorted(known))} ({libraries}{PAGE})"
