"""The supervisor's care for the files of its session, which others may delete: cleaners of ``/tmp`` go by the age of files.

``systemd-tmpfiles`` leaves a directory alone that a process has locked, as the supervisor has that of its session. For the sake of other
cleaners no file here gets old. If the directory, its sockets or its store are deleted all the same, the session ends: processes could not
reach each other, and would wait for ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from zfabric.runtime.session import Session

LOOK_SECONDS = 1.0
"""Seconds between two looks. One takes some ten microseconds."""
YOUNG_SECONDS = 3600.0
"""Seconds between the times at which all files are made young. Cleaners delete what is some days old; a day is the least that is usual."""
FILES_PER_LOOK = 500
"""Most files that are made young in one look, which takes some milliseconds. The rest follow in the next ones."""

ADVICE = "a cleaner of old files may do that: set TMPDIR to a directory that none of them cleans"


class SessionFiles:
    """The files of one session. ``lock`` is the descriptor of its directory, ``description`` what its ``session.json`` has."""

    def __init__(self, session: Session, lock: int, description: dict[str, Any]) -> None:
        self._session = session
        self._description = description
        store, self._spill = str(description["store"]), str(description["spill"])
        self._directories = [session.directory, *([] if self._spill.startswith(f"{session.directory}/") else [self._spill])]
        self._needed = {session.directory: os.fstat(lock), session.sockets: os.stat(session.sockets)}
        if store.startswith(f"{session.directory}/"):
            self._needed[store] = os.stat(store)
        self._found: dict[int, bytes] = {}
        """The incarnation of the running daemon, by its pid, once it was published."""
        self._unreachable = 0
        """The daemon that had no socket in the last look."""
        self._young_until = time.monotonic() + YOUNG_SECONDS
        self._touched: Iterator[None] = iter(())

    def look(self, daemon: int, is_published: bool) -> str:
        """Make again what was deleted and can be made; return why the session has to end, or an empty text if it has not.

        ``daemon`` is the pid of the daemon, 0 if none runs. ``is_published`` says that it was published for certain, even if no look has
        found it so; before that its start may take any time.
        """
        for path, before in self._needed.items():
            try:
                if os.path.samestat(os.stat(path), before):
                    continue
            except FileNotFoundError:
                pass
            except OSError:  # There is no memory for it: nobody knows.
                continue
            return f"{path} was deleted while the session ran; {ADVICE}"
        session = self._session
        with suppress(OSError):  # The disk may be full. The next look tries again.
            if not os.path.lexists(f"{session.directory}/session.json"):
                session.write_description(self._description)
            for path in (session.logs, *([self._spill] if self._spill not in self._directories else [])):
                if not os.path.lexists(path):
                    os.mkdir(path, 0o700)
            if daemon and daemon in self._found and session.daemon() is None:
                session.publish_daemon(self._found[daemon])
        return self._unreachable_daemon(daemon, is_published)

    def _unreachable_daemon(self, daemon: int, is_published: bool) -> str:
        """Return why nobody can reach the daemon, if that was so in the last look, too: it may have begun just now."""
        published = self._session.daemon()
        last, self._unreachable = self._unreachable, 0
        if published is not None and os.path.exists(published[1]):
            self._found = {daemon: published[0]}
        elif daemon and (daemon in self._found or is_published):
            self._unreachable = daemon
            if daemon == last:
                what = f"{self._session.directory}/daemon" if published is None else published[1]
                return f"{what} was deleted while the session ran; {ADVICE}"
        return ""

    def keep_young(self) -> None:
        """Make some files young, if their time has come."""
        if time.monotonic() >= self._young_until:
            self._young_until = time.monotonic() + YOUNG_SECONDS
            self._touched = self._touch_all()
        for _ in range(FILES_PER_LOOK):
            if next(self._touched, self) is self:
                return

    def _touch_all(self) -> Iterator[None]:
        """Set the times of all files, one in each step.

        The time of the last change is set only where nobody reads it: Python takes a module that has another one for a new module.
        """
        session = self._session
        unread = {session.directory, session.sockets, self._spill}
        directories = list(self._directories)
        _touch(os.path.dirname(session.directory), changed=True)
        while directories:
            directory = directories.pop()
            _touch(directory, changed=True)
            yield
            with suppress(OSError), os.scandir(directory) as entries:  # It may be gone, or deeper than paths may be.
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(entry.path)
                    else:
                        _touch(entry.path, changed=directory in unread)
                        yield


def _touch(path: str, changed: bool) -> None:
    now = time.time_ns()
    with suppress(OSError):  # It may be gone, or be on a full disk.
        times = (now, now if changed else os.lstat(path).st_mtime_ns)
        os.utime(path, ns=times, follow_symlinks=False)
