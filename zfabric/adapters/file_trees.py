"""Removal of directories with all that is in them, however deep they are and whatever their modes.

What a program leaves behind may be any tree: thousands of levels deep, where paths are longer than the kernel accepts and recursion
fails; or closed to its own owner. So each directory is opened in the one above it, and few are open at a time: one that was closed
meanwhile is found again as the ".." of the one in it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

OPEN_MAX = 32
"""Most directories that are open at a time. Almost all trees are less deep; each level below costs two more system calls."""

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def remove_tree(path: str) -> OSError | None:
    """Remove a directory with all that is in it, or a file. Links are removed, not followed.

    What cannot be removed stays, and all else is removed. Return the first error about such an entry; None if nothing is left. It is no
    error if another process removes something meanwhile.
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
    """A directory on the way down. ``left`` are the names of the directories in it that are left to remove."""

    def __init__(self, name: str, descriptor: int) -> None:
        self.name = name
        self.descriptor = descriptor
        """-1 while it is closed."""
        self.identity = (0, 0)
        """Device and inode, once it was closed."""
        self.left: list[str] = []


class _Removal:
    """The removal of one tree."""

    def __init__(self, path: str) -> None:
        self.error: OSError | None = None
        self._path = path
        self._levels: list[_Level] = []
        """From the directory that the tree is in to the one that is being removed."""

    def run(self, parent: str, name: str) -> None:
        """Remove the tree of this name in a directory. Raises OSError if it cannot go on."""
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
        """Close all descriptors."""
        for level in self._levels:
            if level.descriptor >= 0:
                os.close(level.descriptor)

    def note(self, error: OSError) -> None:
        """Record an error about an entry that stays."""
        if self.error is None and not isinstance(error, FileNotFoundError):
            self.error = OSError(error.errno, error.strerror, self._path)

    @property
    def _here(self) -> _Level:
        return self._levels[-1]

    def _enter(self, name: str) -> None:
        """Go to the directory of this name in the current one, and remove what is in it but directories."""
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
        """Go to the directory above, and remove the one that was left."""
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
        """Remove an entry of the current directory."""
        here = self._here.descriptor
        try:
            try:
                remove(name, dir_fd=here)
            except PermissionError:
                if len(self._levels) < 2:  # The directory that the tree is in stays as it is.
                    raise
                os.fchmod(here, stat.S_IRWXU)
                remove(name, dir_fd=here)
        except OSError as error:
            self.note(error)


def _identity(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
