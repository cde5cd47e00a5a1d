"""Sets how many threads numeric libraries use in this process: OpenMP, OpenBLAS, MKL and torch.

By default each library takes all CPUs, in every worker. A library reads its variables when it loads, so they are set before user code
loads; a loaded library is set by its own function. Values of the user, or of a ``runtime_env``, come first; ``OMP_NUM_THREADS`` counts for
all.

OpenMP's limit is the calling thread's; other threads have the variable's value from when OpenMP was loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import NamedTuple

OPENMP = "OMP_NUM_THREADS"
VARIABLES = (OPENMP, "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class _Library(NamedTuple):
    """A library: ``parts`` of its files' names, names of its function (``setters``), ``variables`` in order of precedence."""

    parts: tuple[str, ...]
    setters: tuple[str, ...]
    variables: tuple[str, ...]


_OPENBLAS_SETTERS = tuple(f"{prefix}openblas_set_num_threads{suffix}" for prefix in ("", "scipy_") for suffix in ("", "64_", "_64"))
_LIBRARIES = (
    _Library(("openblas",), _OPENBLAS_SETTERS, ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", OPENMP)),
    _Library(("libmkl_rt",), ("MKL_Set_Num_Threads",), ("MKL_NUM_THREADS", OPENMP)),
    _Library(("libgomp", "libomp", "libiomp"), ("omp_set_num_threads",), (OPENMP,)),
)
_TORCH = (OPENMP, "MKL_NUM_THREADS")

_user_variables: dict[str, str] = {}
_count = 1
"""Threads of each library unless the user sets them."""


def begin(count: int) -> None:
    """Limit the threads of a new process whose environment is still the user's. Loaded libraries have one thread each."""
    global _count
    names = {*VARIABLES, *(name for library in _LIBRARIES for name in library.variables)}
    _user_variables.clear()
    _user_variables.update({name: os.environ[name] for name in names if name in os.environ})
    _count = count
    _set_variables()
    if count != 1 or _user_variables:
        _set_libraries()


def limit(count: int) -> None:
    """Change the number of threads. A change takes a millisecond or two."""
    global _count
    if count != _count:
        _count = count
        _set_variables()
        _set_libraries()


def _set_variables() -> None:
    if OPENMP not in _user_variables:
        for name in VARIABLES:
            if name not in _user_variables:
                os.environ[name] = str(_count)


def _set_libraries() -> None:
    for path in _loaded():
        name = os.path.basename(path)
        for library in _LIBRARIES:
            if any(part in name for part in library.parts):
                _call(path, library.setters, _wanted(library.variables))
    torch, count = sys.modules.get("torch"), _wanted(_TORCH)
    if torch is not None and count and hasattr(torch, "set_num_threads"):
        with contextlib.suppress(RuntimeError):  # It is too late for a change.
            torch.set_num_threads(count)


def _wanted(variables: tuple[str, ...]) -> int:
    """Return the number that a variable sets; 0 if it is not a number: the library interprets it."""
    for name in variables:
        if name in _user_variables:
            first = _user_variables[name].partition(",")[0].strip()
            return int(first) if first.isdecimal() else 0
    return _count


def _loaded() -> set[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            lines = (line.split(maxsplit=5) for line in file)
            return {fields[5].rstrip("\n") for fields in lines if len(fields) == 6 and ".so" in fields[5]}
    except OSError:  # No descriptor is left. The task must not fail for that.
        return set()


def _call(path: str, setters: tuple[str, ...], count: int) -> None:
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:  # Its file was replaced while in use.
        return
    for name in setters:
        if count and hasattr(library, name):
            getattr(library, name)(count)
            return
