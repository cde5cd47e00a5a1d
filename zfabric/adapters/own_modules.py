"""The program's own modules: installed nowhere, so their files may change while the program runs.

After a change, the program sends the state of these files with each exported function (``stamp``). A worker that gets another state unloads
its own modules (``drop``), so that the function imports them anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import os
import sys
from typing import Any

from zfabric.adapters.namespaces import MAIN

_LIBRARY = os.path.dirname(os.__file__) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_first: dict[str, tuple[int, int]] = {}
"""State in which this process first saw each file."""
_found: tuple[int, dict[str, str]] = (0, {})
"""(number of modules, own modules) at the last search. Some may be gone, if others came in their place."""


def _own() -> dict[str, str]:
    global _found
    if _found[0] != len(sys.modules):
        files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items()) if name != MAIN}
        _found = len(files), {name: str(file) for name, file in files.items() if _is_own(file)}
    return _found[1]


def _is_own(file: Any) -> bool:
    if not isinstance(file, str) or not file.endswith(".py"):
        return False
    return not file.startswith((_LIBRARY, _PACKAGE)) and not any(each in file for each in _INSTALLED)


def stamp() -> str:
    """Return a text for the present state of the own modules' files; empty until one changes."""
    changed = []
    for name, file in _own().items():
        if name not in sys.modules:
            continue
        with contextlib.suppress(OSError):
            found = os.stat(file)
            state = found.st_mtime_ns, found.st_size
            if _first.setdefault(file, state) != state:
                changed.append((file, state))
                _remove_outdated(file)
    return hashlib.blake2b(repr(sorted(changed)).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest() if changed else ""


def drop() -> list[str]:
    """Unload the own modules, so that the next import reads their files again. Return their names."""
    own = dict(_own())
    packages = tuple(f"{name}." for name, file in own.items() if os.path.basename(file) == "__init__.py")
    dropped = [name for name in list(sys.modules) if name in own or name.startswith(packages)]
    for name in dropped:
        sys.modules.pop(name, None)
    for file in own.values():
        _remove_outdated(file)
    importlib.invalidate_caches()
    return dropped


def _remove_outdated(file: str) -> None:
    """Remove an outdated compiled file: Python takes it for current if the source has the same size and the same whole second."""
    with contextlib.suppress(OSError, NotImplementedError):
        compiled = importlib.util.cache_from_source(file)
        if os.stat(compiled).st_mtime_ns < os.stat(file).st_mtime_ns:
            os.unlink(compiled)
