"""Enters the mode in which ``import ray`` is zfabric."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import warnings

from zfabric.adapters import packages, task_errors
from zfabric.exceptions import AlreadyInitializedError
from zfabric.ray_mode.additions import add
from zfabric.ray_mode.finder import TESTED, Finder, Installed, find
from zfabric.runtime import interface, terminal

PRELUDE = "zfabric.as_ray"
"""What workers of a job in this mode import first."""

BELOW = ("numpy", "pandas", "pyarrow", "sklearn", "torch")
"""Libraries that workers of Ray's programs use, and that take long to import."""

STEP_MARK = "__ray_tqdm_magic_token__"
"""Marks lines with a step of one of Ray's progress bars."""


def enter() -> None:
    """Make ``ray`` the name of zfabric in this process. Has no effect if called again.

    Raises AlreadyInitializedError if Ray itself is imported, or if this process is connected to a cluster without the mode: workers would
    load earlier exports without it.
    """
    if any(isinstance(each, Finder) for each in sys.meta_path):
        return
    if "ray" in sys.modules:
        where = getattr(sys.modules["ray"], "__file__", None)
        raise AlreadyInitializedError(
            f"Ray itself is imported in this process ({where}): run the program by `zfabric submit --as-ray`, or put "
            "`import zfabric.as_ray` before whatever imports ray (docs/as-ray.md)"
        )
    if interface.current() is not None and interface.prelude != PRELUDE:
        raise AlreadyInitializedError(
            "this process is connected to a cluster already, and not as a program of Ray: put `import zfabric.as_ray` first "
            "(docs/as-ray.md)"
        )
    ray = find()
    if interface.current() is None:  # A worker's driver has said so.
        _warn(ray)
    add()
    warnings.filterwarnings("ignore", message="max_calls=", category=RuntimeWarning)  # Ray's libraries use it.
    interface.prelude = PRELUDE
    interface.warm = modules_to_share
    terminal.takes_line = draw_progress
    task_errors.unfit = tuple(kind for kind in task_errors.unfit if kind not in (StopIteration, StopAsyncIteration))
    packages.ignore_files = (".gitignore", ".rayignore", packages.IGNORE_FILE)
    sys.meta_path.insert(0, Finder(ray))
    if ray is not None:
        sys.path.append(os.path.join(ray.directory, "thirdparty_files"))  # Last: what the user has installed comes first.


def modules_to_share() -> tuple[str, ...]:
    """Modules that workers are forked with: the mode, and what this process has loaded of Ray and of ``BELOW``.

    Each takes seconds to import, and Tune, Serve and Data make many short-lived actors.
    """
    loaded = [name for name in (*sys.modules, *BELOW) if name in sys.modules and (name in BELOW or name.partition(".")[0] == "ray")]
    return (PRELUDE, *dict.fromkeys(loaded))


def _warn(ray: Installed | None) -> None:
    if ray is not None and not ray.version.startswith(tuple(f"{version}." for version in TESTED)):
        tested = ", ".join(TESTED)
        warnings.warn(
            f"the libraries of Ray {ray.version} are not tested on zfabric ({tested} is): what they need of Ray's inside may be missing "
            "(docs/as-ray.md)",
            stacklevel=4,
        )


def draw_progress(line: str) -> bool:
    """Draw the step of a progress bar, by the user's Ray. Return False for other text, which is to be shown.

    A worker prints each step as JSON, and the program draws it.
    """
    if STEP_MARK not in line:
        return False
    with contextlib.suppress(Exception):  # A broken line, or a Ray that cannot draw: ``get``, which shows lines, must not fail.
        importlib.import_module("ray.experimental.tqdm_ray").instance().process_state_update(json.loads(line))
    return True
