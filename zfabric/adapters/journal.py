"""The journal: the control store's tables in one LMDB environment, opened by one process.

LMDB writes new pages beside the old ones and then replaces one root page, so a transaction is on disk whole or not at all, even after
``kill -9``.

**Durability.** "process": commits run inline without sync. They outlive every process, but a power loss may *corrupt* the store. So a stamp
names the boot that wrote the store, and ``Journal.open`` begins a new store after another boot. "power": the caller puts rows, and a second
thread makes the synced ``commit()`` (putting rows there, too, costs two hundred times as much).

**The stamp is a file**, synced before the data file exists: LMDB trusts the file that it maps.

**No write map**: ``writemap`` halves a tiny commit's price, but turns a full disk into a SIGBUS.

**No locks of LMDB** (``lock=False``): a ``flock`` excludes other processes. A writer never reuses pages of the last committed state, so
reads of that state are safe until the commit after next begins. Reads during a commit share one snapshot of the state before.

**Full.** A failed commit is rolled back and reported, and the environment reopened (LMDB breaks after some failures). Since LMDB copies on
write, a full map cannot even delete: transactions that only delete (or write to "meta") may grow the map a little.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import queue
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import lmdb

from zfabric.adapters.store_check import find_damage
from zfabric.exceptions import ConfigError, FabricError, VersionMismatchError
from zfabric.machines.common.tables import TABLES, Pair
from zfabric.protocol.messages import PROTOCOL_VERSION

STORE_VERSION = 3
"""Version of the tables' contents and formats; any other is refused."""
LMDB_MAJOR = 0
"""LMDB engine that writes our files: 0 for LMDB 0.9, 1 for 1.0 (docs/decisions/0002-lmdb-format.md)."""
LMDB_DATA_VERSION = 1
"""That engine's file format, as its meta pages state it (LMDB 1.0 writes 3)."""

_STAMP, _LOCK, _DATA = "stamp.json", "lock", "data.mdb"
_STAMP_NEW = _STAMP + ".new"
_KIND = "zfabric control store"
_LMDB_MAGIC = 0xBEEFC0DE
_HEADROOM_MIN = 1 << 20
_UNSYNCED = "was written without sync before this boot and may be corrupt"

Done = Callable[[str], None]
"""Called once per commit: with an empty string when durable, else with why it was rolled back."""


class Transaction(Protocol):
    """Rows to put and delete, such as ``protocol.effects.Store``. A key is in one of the two, once."""

    @property
    def puts(self) -> tuple[tuple[str, bytes, bytes], ...]:
        """(table, key, value)."""

    @property
    def deletes(self) -> tuple[tuple[str, bytes], ...]:
        """(table, key)."""


class _Stamp(NamedTuple):
    version: int
    protocol: int
    lmdb: str
    data: int
    durability: str
    boot: str


def boot_id() -> str:
    """Return the id of the machine's boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


class Journal:
    """The tables on disk, for one thread. Use ``Journal.open``.

    ``report`` is a message for users if a damaged store was set aside, else empty.
    """

    def __init__(self, path: str, size: int, durability: str, lock: int, report: str = "") -> None:
        self.path = path
        self.durability = durability
        self.report = report
        self._size = size
        self._lock = lock
        self._map_size = size
        self._suspect = False
        self._snapshot: lmdb.Transaction | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._filled: queue.SimpleQueue[tuple[lmdb.Transaction, Done] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._environment, self._tables = self._open_environment()

    @classmethod
    def open(cls, path: str, size: int, durability: str, boot: str | None = None, thorough: bool = False, in_use: bool = False) -> Journal:
        """Open or begin the store in the directory ``path``, which may grow to ``size`` bytes. ``thorough`` searches all of it for damage.

        Raises VersionMismatchError for an unknown format, ConfigError if ``path`` is no store, FabricError if another process has it open.
        A damaged store (``adapters.store_check``), or an unsynced one of an earlier boot, is renamed and reported (``report``), and a new
        one begun. But if ``in_use``, FabricError is raised, since jobs need the rows.
        """
        boot = boot or boot_id()
        path = os.path.abspath(path)
        lock = _take_directory(path)
        report = ""
        try:
            stamp = _read_stamp(path)
            if stamp is not None:
                _check_format(path, stamp)
                damage = _UNSYNCED if stamp.durability == "process" and stamp.boot != boot else _damage(path, thorough)
                if damage and in_use:
                    raise FabricError(f"the control store in {path} {damage}, and this session cannot go on without it")
                if damage:
                    aside = _set_aside(path)
                    lock = _take_directory(path, lock)
                    stamp = None
                    report = f"the control store in {path} {damage}: set aside as {aside}, and begun anew"
            ours = _Stamp(STORE_VERSION, PROTOCOL_VERSION, _engine(), LMDB_DATA_VERSION, durability, boot)
            if stamp is None or stamp.durability == durability:
                if stamp != ours:
                    _write_stamp(path, ours)
                return cls(path, size, durability, lock, report)
            if durability == "process":
                _write_stamp(path, ours)
                return cls(path, size, durability, lock, report)
            journal = cls(path, size, durability, lock, report)
            journal._environment.sync(True)
            _write_stamp(path, ours)
            return journal
        except BaseException as error:  # After any error, the directory must be unlocked.
            os.close(lock)
            if isinstance(error, lmdb.MemoryError):
                raise FabricError(
                    f"the control store in {path} cannot be mapped: config 'control_store_bytes' is {size:,} bytes, more than the address "
                    "space that is left to a process here; set it lower, or the limit higher (ulimit -v)"
                ) from error
            if isinstance(error, lmdb.Error):
                raise FabricError(f"the control store in {path} cannot be opened: {error}") from error
            raise

    # -- reading ---------------------------------------------------------------------------------------------------------

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the committed value of ``key``, or None."""
        if not key:
            return None
        with self._read() as transaction:
            value: bytes | None = transaction.get(key, db=self._tables[table])
            return value

    def scan(self, table: str, prefix: bytes = b"", after: bytes = b"", limit: int = 1000) -> list[Pair]:
        """Return up to ``limit`` committed rows, in key order, with keys that start with ``prefix`` and come after ``after``."""
        rows: list[Pair] = []
        start = max(prefix, after)
        with self._read() as transaction, transaction.cursor(db=self._tables[table]) as cursor:
            more = cursor.set_range(start) if start else cursor.first()
            while more and len(rows) < limit:
                key, value = cursor.item()
                if not key.startswith(prefix):
                    break
                if key != after:
                    rows.append((key, value))
                more = cursor.next()
        return rows

    def floor(self, table: str, prefix: bytes, key: bytes) -> Pair | None:
        """Return the committed row with the largest key up to ``key`` that starts with ``prefix``, or None."""
        with self._read() as transaction, transaction.cursor(db=self._tables[table]) as cursor:
            at_or_past = cursor.set_range(key)
            found = (cursor.key() == key or cursor.prev()) if at_or_past else cursor.last()
            if not found or not cursor.key().startswith(prefix):
                return None
            row: Pair = cursor.item()
            return row

    # -- writing ---------------------------------------------------------------------------------------------------------

    def commit(self, transactions: Sequence[Transaction], done: Done) -> None:
        """Apply all in one transaction, then call ``done``: inline, or from the commit thread ("power")."""
        self._settle(wait=True)
        try:
            filled = self._fill(transactions)
            if self.durability == "process":
                filled.commit()
        except lmdb.Error as error:
            done(self._failed(error))
            return
        if self.durability == "process":
            done("")
            return
        self._snapshot = self._environment.begin()
        self._idle.clear()
        if self._thread is None:
            self._thread = threading.Thread(target=self._commit_filled, name="journal", daemon=True)
            self._thread.start()
        self._filled.put((filled, done))

    def close(self) -> None:
        """Wait for the commit under way, and unlock the directory."""
        self._settle(wait=True)
        if self._thread is not None:
            self._filled.put(None)
            self._thread.join()
        self._environment.close()
        os.close(self._lock)

    def _fill(self, transactions: Sequence[Transaction]) -> lmdb.Transaction:
        self._make_room(deleting=all(table == "meta" for transaction in transactions for table, _, _ in transaction.puts))
        return self._put(transactions)

    def _make_room(self, deleting: bool) -> None:
        """Limit the map to its size, or for a transaction that only deletes, to a little past its used part.

        Freed pages are reused only by the second transaction after. The transaction in between is the row of "meta" by which the control
        store tests whether it can write again.
        """
        size = self._size
        if deleting:
            used = (self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"]
            size = max(size, used + max(_HEADROOM_MIN, size // 16))
        if size != self._map_size:
            self._environment.set_mapsize(size)
            self._map_size = size

    def _put(self, transactions: Sequence[Transaction]) -> lmdb.Transaction:
        filled = self._environment.begin(write=True)
        try:
            for transaction in transactions:
                by_table: dict[str, list[Pair]] = {}
                for table, key, value in transaction.puts:
                    by_table.setdefault(table, []).append((key, value))
                for table, rows in by_table.items():
                    with filled.cursor(db=self._tables[table]) as cursor:
                        cursor.putmulti(rows)
                for table, key in transaction.deletes:
                    filled.delete(key, db=self._tables[table])
        except BaseException:  # After a bug, too: an open transaction would block every later one.
            filled.abort()
            raise
        return filled

    def _commit_filled(self) -> None:
        while (item := self._filled.get()) is not None:
            filled, done = item
            text = ""
            try:
                filled.commit()
            except lmdb.Error as error:
                text = self._failed(error)
            self._idle.set()
            done(text)

    def _failed(self, error: lmdb.Error) -> str:
        if isinstance(error, lmdb.MapFullError):
            return f"the control store in {self.path} has reached its limit of {self._size} bytes (control_store_bytes)"
        if not isinstance(error, lmdb.BadValsizeError):
            self._suspect = True
        if error.code == errno.ENOSPC or (error.code == errno.EIO and _is_full(self.path)):
            return f"the disk of {self.path} is full"
        return f"the control store in {self.path} cannot be written: {error}"

    def _settle(self, wait: bool = False) -> None:
        if self._snapshot is not None and (wait or self._idle.is_set()):
            self._idle.wait()
            self._snapshot.abort()
            self._snapshot = None
        if self._suspect and self._snapshot is None:
            self._suspect = False
            self._environment.close()
            self._environment, self._tables = self._open_environment()

    def _read(self) -> contextlib.AbstractContextManager[Any]:
        if self._snapshot is not None or self._suspect:
            self._settle()
        return self._environment.begin() if self._snapshot is None else contextlib.nullcontext(self._snapshot)

    def _open_environment(self) -> tuple[lmdb.Environment, dict[str, Any]]:
        synced = self.durability == "power"
        environment = lmdb.open(
            self.path,
            map_size=self._map_size,
            max_dbs=len(TABLES),
            sync=synced,
            metasync=synced,
            readahead=False,
            lock=False,
            mode=0o700,
            lib_version=LMDB_MAJOR,
        )
        return environment, {table: environment.open_db(table.encode()) for table in TABLES}


class ReadOnlyJournal(Journal):
    """A store that no daemon has open: nothing is set aside or written."""

    def __init__(self, path: str, lock: int) -> None:
        super().__init__(path, 0, "process", lock)

    @classmethod
    def look_into(cls, path: str) -> ReadOnlyJournal:
        """Open ``path`` for reading. Raises as ``Journal.open``, and FabricError for a damaged store."""
        path = os.path.abspath(path)
        if not os.path.isdir(path):
            raise ConfigError(f"there is no control store in {path}")
        stamp = _read_stamp(path)
        if stamp is None:
            raise ConfigError(f"there is no control store in {path}")
        _check_format(path, stamp)
        if stamp.durability == "process" and stamp.boot != boot_id():
            raise FabricError(f"the control store in {path} {_UNSYNCED}")
        lock = _lock(path)
        try:
            damage = _damage(path, thorough=True, rows=False)
            if damage:
                raise FabricError(f"the control store in {path} {damage}; a cluster that is started with it sets it aside, and begins anew")
            return cls(path, lock)
        except lmdb.Error as error:
            os.close(lock)
            raise FabricError(f"the control store in {path} cannot be opened: {error}") from error
        except FabricError:
            os.close(lock)
            raise

    def commit(self, transactions: Sequence[Transaction], done: Done) -> None:
        """Refuse."""
        done(f"the control store in {self.path} is open for reading only")

    def _open_environment(self) -> tuple[lmdb.Environment, dict[str, Any]]:
        environment = lmdb.open(self.path, max_dbs=len(TABLES), readonly=True, create=False, lock=False, lib_version=LMDB_MAJOR)
        return environment, {table: environment.open_db(table.encode(), create=False) for table in TABLES}


# --- the directory --------------------------------------------------------------------------------------------------------


def _take_directory(path: str, former: int = -1) -> int:
    """Make and lock the directory. Return the lock's descriptor: ``former`` if given."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    status = os.stat(path)
    if status.st_uid != os.geteuid():
        raise ConfigError(f"{path} belongs to another user")
    names = set(os.listdir(path))
    if _STAMP not in names and not names <= {_LOCK, _STAMP_NEW}:
        raise ConfigError(f"{path} is not a control store of zfabric, and not empty")
    if status.st_mode & 0o077:
        os.chmod(path, 0o700)
    lock = _lock(path)
    if former < 0:
        return lock
    os.dup2(lock, former, inheritable=False)
    os.close(lock)
    return former


def _lock(path: str) -> int:
    name = os.path.join(path, _LOCK)
    while True:
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last process with the lock may have renamed the directory, and our lock with it.
            if os.path.samestat(os.fstat(file), os.stat(name)):
                os.ftruncate(file, os.pwrite(file, str(os.getpid()).encode(), 0))  # In place: needs no room on a full disk.
                return file
        except BlockingIOError:
            holder = os.pread(file, 20, 0).decode(errors="replace") or "another process"
            os.close(file)
            raise FabricError(f"the control store in {path} is in use by process {holder}") from None
        except FileNotFoundError:
            os.close(file)
            raise
        os.close(file)


def _read_stamp(path: str) -> _Stamp | None:
    try:
        with open(os.path.join(path, _STAMP), encoding="utf-8") as file:
            stamp = json.load(file)
        if stamp["kind"] != _KIND or type(stamp["version"]) is not int:
            raise KeyError
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path} is not a control store of zfabric: {_STAMP} does not say so") from None
    try:
        return _Stamp(*(stamp[field] for field in _Stamp._fields))
    except KeyError:
        raise VersionMismatchError(f"the control store in {path} has format {stamp['version']}; this is {STORE_VERSION}") from None


def _write_stamp(path: str, stamp: _Stamp) -> None:
    new = os.path.join(path, _STAMP_NEW)
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, json.dumps({"kind": _KIND, **stamp._asdict()}).encode())
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(new, os.path.join(path, _STAMP))
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _check_format(path: str, stamp: _Stamp) -> None:
    ours = (STORE_VERSION, PROTOCOL_VERSION, LMDB_DATA_VERSION)
    theirs = (stamp.version, stamp.protocol, stamp.data)
    if theirs != ours:
        raise VersionMismatchError(
            f"the control store in {path} has format, protocol and LMDB data format {theirs} (LMDB {stamp.lmdb}); "
            f"this zfabric reads {ours} (LMDB {_engine()})"
        )
    data = _data_version(path)
    if data not in (0, LMDB_DATA_VERSION):
        raise VersionMismatchError(
            f"{path}/{_DATA} is in LMDB data format {data}; this zfabric writes format {LMDB_DATA_VERSION} (LMDB {_engine()})"
        )


def _damage(path: str, thorough: bool, rows: bool = True) -> str:
    problem = find_damage(os.path.join(path, _DATA), thorough, rows)
    return f"is damaged ({_DATA}: {problem})" if problem else ""


def _data_version(path: str) -> int:
    """Return the format in the data file's first meta page; 0 without a file."""
    try:
        with open(os.path.join(path, _DATA), "rb") as file:
            head = file.read(64)
    except FileNotFoundError:
        return 0
    for offset in range(0, len(head) - 7, 4):
        magic, version = struct.unpack_from("=II", head, offset)
        if magic == _LMDB_MAGIC:
            return int(version)
    return 0


def _set_aside(path: str) -> str:
    number = 1
    while os.path.exists(f"{path}.set-aside-{number}"):
        number += 1
    aside = f"{path}.set-aside-{number}"
    os.rename(path, aside)
    return aside


def _engine() -> str:
    return ".".join(map(str, lmdb.version(lib_version=LMDB_MAJOR)))


def _is_full(path: str) -> bool:
    try:
        return os.statvfs(path).f_bavail == 0
    except OSError:
        return False
