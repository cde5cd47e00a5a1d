"""Directories that are made once for all processes of a node, and removed when they are unused and others need the room.

A user holds a shared ``flock`` on the directory's ``lock`` until it exits; the remover needs an exclusive one. The maker also holds
``making``, since an exclusive ``lock`` would wait for all users. ``ready`` exists once ``content`` is complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import NamedTuple

from zfabric.adapters.file_trees import remove_tree


class CachedDirectory(NamedTuple):
    """A complete directory. It is not removed while the descriptor ``lock`` is open."""

    path: str
    lock: int


def use(root: str, name: str, make: Callable[[str], None], bytes_max: int) -> CachedDirectory:
    """Return the directory ``name`` below ``root``. If absent, ``make(path)`` fills it, in one process at a time.

    Then the longest unused directories are removed, until all together have at most ``bytes_max`` bytes. Raises what ``make`` raises.
    """
    place = f"{root}/{name}"
    while True:
        lock = _open(place, "lock")
        try:
            _share(lock, place)
            if _complete(place, make):
                _remove_unused(root, bytes_max, name)
            os.utime(f"{place}/ready")
            found, lock = CachedDirectory(f"{place}/content", lock), -1
            return found
        except _Removed:
            continue
        finally:
            if lock >= 0:
                os.close(lock)


def _complete(place: str, make: Callable[[str], None]) -> bool:
    """Make a directory under the shared lock, unless another process has made it; return whether this call did."""
    if os.path.exists(f"{place}/ready"):
        return False
    making = _open(place, "making")
    try:
        fcntl.flock(making, fcntl.LOCK_EX)
        if os.path.exists(f"{place}/ready"):
            return False
        remove_tree(f"{place}/content")
        os.mkdir(f"{place}/content", 0o700)
        try:
            make(f"{place}/content")
        except BaseException:  # Interrupts too: nothing half made may be used.
            remove_tree(f"{place}/content")
            raise
        _write_size(place)
        return True
    finally:
        os.close(making)


class _Removed(Exception):
    """The directory was removed while this process waited for its lock."""


def _open(place: str, name: str) -> int:
    while True:
        os.makedirs(place, 0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # It was removed just now.
            return os.open(f"{place}/{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _share(lock: int, place: str) -> None:
    fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        if os.stat(f"{place}/lock").st_ino == os.fstat(lock).st_ino:
            return
    except FileNotFoundError:
        pass
    raise _Removed


def _write_size(place: str) -> None:
    size = 0
    for directory, _, names in os.walk(f"{place}/content"):
        size += sum(os.lstat(f"{directory}/{name}").st_blocks * 512 for name in names)
    with open(f"{place}/ready.new", "w") as file:
        file.write(str(size))
    os.rename(f"{place}/ready.new", f"{place}/ready")


def _remove_unused(root: str, bytes_max: int, besides: str) -> None:
    complete: list[tuple[float, int, str]] = []
    for name in os.listdir(root):
        with contextlib.suppress(OSError, ValueError), open(f"{root}/{name}/ready") as file:
            complete.append((os.fstat(file.fileno()).st_mtime, int(file.read()), name))
    total = sum(size for _, size, _ in complete)
    for _, size, name in sorted(complete):
        if total <= bytes_max:
            return
        if name != besides and _remove(f"{root}/{name}"):
            total -= size


def _remove(place: str) -> bool:
    lock = _open(place, "lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{place}/ready")
        remove_tree(place)
        return True
    finally:
        os.close(lock)
