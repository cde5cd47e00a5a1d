"""Guards a session's files, which cleaners of ``/tmp`` delete by age.

``systemd-tmpfiles`` spares a locked directory; because of other cleaners no file gets old. If the directory, its sockets or its store are
deleted all the same, the session ends: its processes would wait for ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from zfabric.runtime.session import Session

LOOK_SECONDS = 1.0
"""Seconds between checks of ten microseconds."""
YOUNG_SECONDS = 3600.0
"""Seconds after which files are made young again. Cleaners delete after a day or more."""
FILES_PER_LOOK = 500
"""Most files made young per check, in milliseconds."""

ADVICE = "a cleaner of old files may do that: set TMPDIR to a directory that none of them cleans"


class SessionFiles:
    """One session's files. ``lock`` is the directory's descriptor, ``description`` the content of ``session.json``."""

    def __init__(self, session: Session, lock: int, description: dict[str, Any]) -> None:
        self._session = session
        self._description = description
        store, self._spill = str(description["store"]), str(description["spill"])
        self._directories = [session.directory, *([] if self._spill.startswith(f"{session.directory}/") else [self._spill])]
        self._needed = {session.directory: os.fstat(lock), session.sockets: os.stat(session.sockets)}
        if store.startswith(f"{session.directory}/"):
            self._needed[store] = os.stat(store)
        self._found: dict[int, bytes] = {}
        """The running daemon's incarnation by pid, once published."""
        self._unreachable = 0
        """The daemon without a socket at the last check."""
        self._young_until = time.monotonic() + YOUNG_SECONDS
        self._touched: Iterator[None] = iter(())

    def look(self, daemon: int, is_published: bool) -> str:
        """Restore deleted files where possible. Return why the session has to end, or "".

        ``daemon`` is its pid or 0. ``is_published``: the daemon's socket is certainly published; before that a start may take any time.
        """
        for path, before in self._needed.items():
            try:
                if os.path.samestat(os.stat(path), before):
                    continue
            except FileNotFoundError:
                pass
            except OSError:  # Without memory nobody knows.
                continue
            return f"{path} was deleted while the session ran; {ADVICE}"
        session = self._session
        with suppress(OSError):  # The disk may be full. The next check tries again.
            if not os.path.lexists(f"{session.directory}/session.json"):
                session.write_description(self._description)
            for path in (session.logs, *([self._spill] if self._spill not in self._directories else [])):
                if not os.path.lexists(path):
                    os.mkdir(path, 0o700)
            if daemon and daemon in self._found and session.daemon() is None:
                session.publish_daemon(self._found[daemon])
        return self._unreachable_daemon(daemon, is_published)

    def _unreachable_daemon(self, daemon: int, is_published: bool) -> str:
        """Why nobody can reach the daemon, if that held at the last check, too."""
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
        """Make some files young, if due."""
        if time.monotonic() >= self._young_until:
            self._young_until = time.monotonic() + YOUNG_SECONDS
            self._touched = self._touch_all()
        for _ in range(FILES_PER_LOOK):
            if next(self._touched, self) is self:
                return

    def _touch_all(self) -> Iterator[None]:
        """Set the times of all files, one per step.

        By the modification time Python recognises new modules, so it is set only where nobody reads it.
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
