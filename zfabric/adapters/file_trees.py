"""Removes directories with all that is in them, however deep and whatever their modes.

Paths may be longer than the kernel accepts, so each directory is opened from its parent. Few stay open at a time; a closed directory is
found again as ".." of its child.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

OPEN_MAX = 32
"""Most directories open at a time. Each deeper level costs two more system calls."""

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def remove_tree(path: str) -> OSError | None:
    """Remove a directory with its contents, or a file. Links are not followed.

    What cannot be removed stays. Return the first error about it; None if nothing is left. Removal by another process is no error.
    """
    parent, name = os.path.split(os.path.abspath(path))
    removal = _Removal(path)
    try:
        removal.run(parent, name)
    except OSError as error:
        removal.note(error)
    finally:
        removal.close()
    return removal.error


class _Level:
    """A directory on the way down; ``left`` are its directories still to remove."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self.descriptor = descriptor
        """-1 while closed."""
        self.identity = (0, 0)
        """Device and inode, set when closed."""
        self.left: list[str] = []


class _Removal:
    def __init__(self, path: str) -> None:
        self.error: OSError | None = None
        self._path = path
        self._levels: list[_Level] = []
        """From the directory that has the tree to the one being removed."""

    def run(self, parent: str, name: str) -> None:
        """Remove ``name`` in the directory ``parent``. Raises OSError if it cannot go on."""
        self._levels.append(_Level(parent, os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)))
        if stat.S_ISDIR(os.stat(name, dir_fd=self._here.descriptor, follow_symlinks=False).st_mode):
            self._enter(name)
        else:
            self._remove(name, os.unlink)
        while len(self._levels) > 1:
            if self._here.left:
                self._enter(self._here.left.pop())
            else:
                self._leave()

    def close(self) -> None:
        for level in self._levels:
            if level.descriptor >= 0:
                os.close(level.descriptor)

    def note(self, error: OSError) -> None:
        if self.error is None and not isinstance(error, FileNotFoundError):
            self.error = OSError(error.errno, error.strerror, self._path)

    @property
    def _here(self) -> _Level:
        return self._levels[-1]

    def _enter(self, name: str) -> None:
        above = self._here.descriptor
        try:
            try:
                descriptor = os.open(name, _OPEN, dir_fd=above)
            except PermissionError:
                os.chmod(name, stat.S_IRWXU, dir_fd=above)
                descriptor = os.open(name, _OPEN, dir_fd=above)
        except OSError as error:
            self.note(error)
            return
        self._levels.append(_Level(name, descriptor))
        if len(self._levels) > OPEN_MAX:
            self._close_one(self._levels[-OPEN_MAX])
        try:
            with os.scandir(descriptor) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except OSError as error:
            self.note(error)
            return
        for each, is_directory in found:
            if is_directory:
                self._here.left.append(each)
            else:
                self._remove(each, os.unlink)

    def _leave(self) -> None:
        level, above = self._levels[-1], self._levels[-2]
        if above.descriptor < 0:
            above.descriptor = os.open("..", _OPEN, dir_fd=level.descriptor)
            if _identity(above.descriptor) != above.identity:  # Nothing outside of the tree is touched.
                raise OSError(None, "a directory of it was moved while it was removed")
        os.close(level.descriptor)
        self._levels.pop()
        self._remove(level.name, os.rmdir)

    def _close_one(self, level: _Level) -> None:
        level.identity = _identity(level.descriptor)
        os.close(level.descriptor)
        level.descriptor = -1

    def _remove(self, name: str, remove: Callable[..., None]) -> None:
        here = self._here.descriptor
        try:
            try:
                remove(name, dir_fd=here)
            except PermissionError:
                if len(self._levels) < 2:  # The directory that has the tree stays as it is.
                    raise
                os.fchmod(here, stat.S_IRWXU)
                remove(name, dir_fd=here)
        except OSError as error:
            self.note(error)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
