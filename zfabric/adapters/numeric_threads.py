"""Sets how many threads numeric libraries use in this process: OpenMP, OpenBLAS, MKL and torch.

By default each takes all CPUs of the machine, in every worker. A library reads an environment variable when it is loaded, so the
variables are set before user code is loaded. A library that is loaded already, by an earlier task or before this process was forked, is
set by its own function. Values of the user who started the cluster, or of a ``runtime_env``, have precedence; ``OMP_NUM_THREADS`` counts
for all libraries, as in the libraries themselves.

A limit belongs to its process, OpenMP's to the calling thread: other threads have the value of the environment when OpenMP was loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from typing import NamedTuple

OPENMP = "OMP_NUM_THREADS"
VARIABLES = (OPENMP, "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""The variables that libraries read when they are loaded, for the number of threads to start."""


class _Library(NamedTuple):
    """A library. ``parts`` occur in the names of its files, one of ``setters`` is its function; the first set of ``variables`` decides."""

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
"""The variables that the user has set."""
_count = 1
"""The number of threads of each library unless the user sets it."""


def begin(count: int) -> None:
    """Limit the threads of a new process. Libraries that are loaded have one thread each; the environment is still the user's."""
    global _count
    names = {*VARIABLES, *(name for library in _LIBRARIES for name in library.variables)}
    _user_variables.clear()
    _user_variables.update({name: os.environ[name] for name in names if name in os.environ})
    _count = count
    _set_variables()
    if count != 1 or _user_variables:
        _set_libraries()


def limit(count: int) -> None:
    """Change the number of threads of libraries. Takes a millisecond or two if the number changes."""
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
        with contextlib.suppress(RuntimeError):  # torch raises this if it is too late for a change.
            torch.set_num_threads(count)


def _wanted(variables: tuple[str, ...]) -> int:
    """Return the number that a variable sets; 0 if it is not a number, and the library is to interpret it."""
    for name in variables:
        if name in _user_variables:
            first = _user_variables[name].partition(",")[0].strip()
            return int(first) if first.isdecimal() else 0
    return _count


def _loaded() -> set[str]:
    """Return the files of the shared libraries in this process."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            lines = (line.split(maxsplit=5) for line in file)
            return {fields[5].rstrip("\n") for fields in lines if len(fields) == 6 and ".so" in fields[5]}
    except OSError:  # No descriptor is left. The task must not fail for that.
        return set()


def _call(path: str, setters: tuple[str, ...], count: int) -> None:
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:  # Its file was replaced while it was in use.
        return
    for name in setters:
        if count and hasattr(library, name):
            getattr(library, name)(count)
            return
