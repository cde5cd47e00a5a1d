"""Which functions and classes travel by name (``importable``), and the names of the program's own module (``__main__``) in other processes.

Functions and classes of ``__main__`` travel by value with the names that they use. A worker binds these in *its* module ``__main__``, which
never runs the program's file, so that plain ``pickle``, process pools and ``typing.get_type_hints`` find them.

A loop or a notebook cell may bind a name anew. The pickling process numbers the *versions* of names; a pickle's *snapshot* has the version
of each name that it uses. A worker that loads a snapshot compares:

- all names are absent, or bound in this version: the module ``__main__`` is extended and shared;
- some are newer: the module takes them if a function is about to run and nothing else runs that could notice. Functions loaded with older
  names are loaded again when they run next;
- some are older, not of the program, or newer otherwise: the functions get a namespace of their own.

Names whose data share a part (a model and its optimizer) are bound together or not at all.
"""

from __future__ import annotations

import builtins
import contextlib
import hashlib
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

MAIN = "__main__"
Version = tuple[bytes, int]
"""(process that bound the name, its count)."""
SnapshotRow = tuple[str, bytes, int, int]
"""(name, process, count, group of names that share data; 0: no data; -1: a class)."""
ROWS_MAX = 4096
"""Most retained snapshots; each is used within the load that opens it."""
PARTS_MAX = 50_000
"""Most parts of a value to compare. A value with more counts as sharing with all others."""
_MARK = "__zfabric_namespace__"
_SCALARS = (int, float, str, bytes, bool, type(None), complex)
WITHOUT_DATA = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_CLASS = -1
_UNNAMED = frozenset({"__builtins__", "__name__", "__doc__", "__package__", "__spec__", "__loader__"})
"""Names that every module has."""
_NOTHING = object()
without_data: set[type] = set()
"""Classes of handles and refs."""


def register_without_data(kind: type) -> None:
    """Compare values of exactly this class by identity, not content."""
    without_data.add(kind)


class Record(NamedTuple):
    """A name's version, and its value, or a digest of data."""

    version: Version
    value: Any
    digest: bytes | None = None


class Namespace:
    """The globals of functions of ``__main__``, with their versions."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names
        self.records: dict[str, Record] = {}
        """Names bound by the program, or by snapshots of a program."""
        self.local: dict[str, Record] = {}
        """In a worker: names that its tasks have bound, or whose data they may have changed."""

    def has(self, name: str, version: Version) -> bool:
        """Whether a name is bound in this version."""
        record = self.records.get(name)
        return record is not None and record.version == version and name in self.names


origin = os.urandom(8)
"""Identifies this process in versions."""
_count = 0
_main: Namespace | None = None
_rows: dict[bytes, tuple[SnapshotRow, ...]] = {}
_private: weakref.WeakValueDictionary[bytes, Namespace] = weakref.WeakValueDictionary()
mirrors = False
"""Whether ``__main__`` mirrors a program's: this is a worker."""


def _always() -> bool:
    return True


def _nothing(_: frozenset[str]) -> None:
    """Loaded functions are not noted here."""


may_renew: Callable[[], bool] = _always
"""Whether nothing runs that could notice a new binding in ``__main__``. The worker runtime sets it."""
on_renewed: Callable[[frozenset[str]], None] = _nothing
"""Called with names that are about to be bound anew."""


class _Loading(threading.local):
    names: set[str] | None = None
    """Names used by the function that this thread loads."""


_loading = _Loading()


@contextlib.contextmanager
def loading_function() -> Iterator[set[str]]:
    """Load a function that is about to run, and may renew names. Yield the names that it uses."""
    before, _loading.names = _loading.names, set()
    try:
        yield _loading.names
    finally:
        _loading.names = before


def _renew_process() -> None:
    global origin
    origin = os.urandom(8)


os.register_at_fork(after_in_child=_renew_process)


def main() -> Namespace:
    """Return the namespace of the module ``__main__``."""
    global _main
    names = vars(sys.modules[MAIN])
    if _main is None or _main.names is not names:
        _main = Namespace(names)
    return _main


def mirror() -> None:
    """Replace ``__main__`` by an empty module that mirrors a program's."""
    global mirrors
    module = types.ModuleType(MAIN)
    vars(module)["__builtins__"] = builtins
    sys.modules[MAIN] = module
    if "__mp_main__" in sys.modules:  # multiprocessing has the same module under this name.
        sys.modules["__mp_main__"] = module
    mirrors = True


def forget(modules: Iterable[str]) -> None:
    """Unbind names of dropped modules, and names of objects of these modules."""
    dropped, space = set(modules), main()
    for name, value in list(space.names.items()):
        owner = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
        if name in space.records and isinstance(owner, str) and owner in dropped:
            del space.names[name], space.records[name]


def namespace_of(function: Any) -> Namespace | None:
    """Return the namespace of a function of ``__main__``; None for other modules."""
    names = function.__globals__
    if names is vars(sys.modules[MAIN]):
        return main()
    found: Namespace | None = names.get(_MARK)
    return found


# --- pickling -----------------------------------------------------------------------------------------------------------------------


class Snapshot:
    """The names of one namespace that one pickle uses. It travels as a key, after its rows."""

    def __init__(self, space: Namespace, nonce: bytes) -> None:
        self.space = space
        self.nonce = nonce
        self.used: dict[str, None] = {}

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the bound values of ``names``, and note these names as used."""
        known = self.space.names
        found = {name: known[name] for name in names if name in known and name not in _UNNAMED}
        self.used.update(dict.fromkeys(found))
        return found

    def own(self, thing: Any, qualname: str) -> str:
        """Return ``qualname`` if ``thing`` has that name here, else an empty text."""
        if self.space.names.get(qualname) is not thing:
            return ""
        self.used[qualname] = None
        return qualname

    def rows(self, examined: Callable[[Any], tuple[bytes, dict[int, Any]]]) -> tuple[SnapshotRow, ...]:
        """Return the version of each used name. ``examined`` returns a value's digest and its parts."""
        parts: dict[str, Any] = {}
        versions = {name: self._version(name, examined, parts) for name in self.used}
        groups = _groups(parts)
        kinds = {name: _CLASS for name in self.used if isinstance(self.space.names.get(name), type)}
        return tuple((name, *version, groups.get(name, kinds.get(name, 0))) for name, version in versions.items())

    def _version(self, name: str, examined: Callable[[Any], tuple[bytes, dict[int, Any]]], parts: dict[str, Any]) -> Version:
        global _count
        value = self.space.names.get(name)
        known = [each for each in (self.space.records.get(name), self.space.local.get(name)) if each is not None]
        digest = None
        if type(value) in _SCALARS:
            found = [each for each in known if _is_same_scalar(each.value, value)]
        elif has_data(value):
            digest, parts[name] = examined(value)
            found = [each for each in known if each.digest == digest]
        else:
            found = [each for each in known if each.value is value]
        if found:
            return found[0].version
        _count += 1
        record = Record((origin, _count), value if digest is None else None, digest)
        (self.space.local if mirrors else self.space.records)[name] = record
        return origin, _count


def _is_same_scalar(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    return one is other or (repr(one) == repr(other) if isinstance(one, (float, complex)) else bool(one == other))


def has_data(value: Any) -> bool:
    """Whether a value is compared by content: data, or a function with data of its own."""
    if isinstance(value, types.BuiltinFunctionType):
        return not isinstance(value.__self__, types.ModuleType | type | None)
    if isinstance(value, types.FunctionType):
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        return bool(value.__closure__ or vars(value)) or any(type(each) not in _SCALARS for each in defaults)
    return type(value) not in _SCALARS and not isinstance(value, WITHOUT_DATA) and type(value) not in without_data


def _groups(parts: dict[str, Any]) -> dict[str, int]:
    groups: dict[str, int] = {}
    first: dict[int, str] = {}
    leaders = {name: name for name in parts}

    def leader(name: str) -> str:
        while leaders[name] != name:
            name = leaders[name]
        return name

    large = [name for name, found in parts.items() if len(found) > PARTS_MAX]
    for name, found in parts.items():
        if large:
            leaders[leader(name)] = leader(large[0])
        for part in found if len(found) <= PARTS_MAX else ():
            other = first.setdefault(part, name)
            if other != name:
                leaders[leader(name)] = leader(other)
    numbers: dict[str, int] = {}
    for name in parts:
        groups[name] = numbers.setdefault(leader(name), len(numbers) + 1)
    return groups


def key_of(rows: tuple[SnapshotRow, ...]) -> bytes:
    """Return a snapshot's key: a hash of its rows, 16 bytes."""
    return hashlib.blake2b(repr(rows).encode("utf-8", "surrogatepass"), digest_size=16).digest()


# --- loading ------------------------------------------------------------------------------------------------------------------------


class LoadedSnapshot:
    """Where functions of one pickle have their globals, and which names there they may bind."""

    def __init__(self, space: Namespace, versions: dict[str, Version], renewed: frozenset[str] = frozenset(), binds: bool = True) -> None:
        self.space = space
        self._versions = versions
        self._renewed = set(renewed)
        self._binds = binds
        self.kept: set[str] = set()
        """Names that were found, and are not made again."""

    def find(self, own: str) -> Any:
        """Return what the namespace has under ``own`` in this version, or None."""
        found = self.space.names.get(own) if own and own not in self._renewed else None
        if found is not None:
            self.kept.add(own)
        return found

    def bind(self, values: dict[str, Any]) -> None:
        """Bind names that are absent, or that this snapshot renews."""
        if not self._binds:
            return
        names, records = self.space.names, self.space.records
        for name, value in values.items():
            if name not in names or name in self._renewed:
                names[name] = value
                self._renewed.discard(name)
                records[name] = Record(self._versions[name], value)


def open_snapshot(key: bytes, rows: tuple[SnapshotRow, ...]) -> None:
    """Record a snapshot's rows for the ``snapshot_of`` that follows."""
    if key not in _rows and len(_rows) >= ROWS_MAX:
        del _rows[next(iter(_rows))]
    _rows[key] = rows


def snapshot_of(key: bytes) -> LoadedSnapshot:
    """Return where a snapshot's functions have their globals: the module ``__main__``, or their own namespace."""
    rows = _rows[key]
    versions = {name: (process, count) for name, process, count, _ in rows}
    space = main()
    status = {name: _status(space, name, version) for name, version in versions.items()}
    found = set(status.values())
    if not mirrors:
        if found <= {_BOUND}:
            return LoadedSnapshot(space, versions, binds=False)
    elif _OLDER not in found and not _is_torn(rows, status):
        renewed = frozenset(name for name, each in status.items() if each is _NEWER)
        if not renewed or ((_loading.names is not None or _are_classes(rows, renewed)) and may_renew()):
            if renewed:
                on_renewed(renewed)
            if _loading.names is not None:
                _loading.names.update(versions)
            return LoadedSnapshot(space, versions, renewed)
    private = _private.get(key)
    if private is None:
        # What tasks have bound is visible here, too: an initializer may have set it.
        names = {name: value for name, value in space.names.items() if name not in versions} if mirrors else {}
        private = Namespace(names)
        private.records.update((name, record) for name, record in space.records.items() if name in names)
        names.update(__name__=MAIN, __builtins__=builtins)
        names[_MARK] = private
        _private[key] = private
    return LoadedSnapshot(private, versions)


_ABSENT, _BOUND, _NEWER, _OLDER = "absent", "bound", "newer", "older"


def _status(space: Namespace, name: str, version: Version) -> str:
    if name not in space.names:
        return _ABSENT
    record = space.records.get(name)
    if record is None:
        return _OLDER
    if record.version == version:
        return _BOUND if mirrors or record.digest is not None or record.value is space.names[name] else _OLDER
    return _NEWER if record.version[0] == version[0] and record.version[1] < version[1] else _OLDER


def _are_classes(rows: tuple[SnapshotRow, ...], names: frozenset[str]) -> bool:
    return all(group == _CLASS for name, _, _, group in rows if name in names)


def _is_torn(rows: tuple[SnapshotRow, ...], status: dict[str, str]) -> bool:
    """Whether only some of the names whose data share parts are bound here."""
    bound: dict[int, bool] = {}
    return any(group > 0 and bound.setdefault(group, status[name] is _BOUND) is not (status[name] is _BOUND) for name, _, _, group in rows)


# --- by name or by value ------------------------------------------------------------------------------------------------------------


def importable(named: Any) -> bool:
    """Whether this function or class travels by its name, since other processes can and should import it.

    What they cannot import (what ``__main__`` or a function made) travels by value, as do contents of modules registered with
    ``cloudpickle.register_pickle_by_value``.
    """
    module = getattr(named, "__module__", None)
    if not isinstance(module, str) or module == MAIN or module not in sys.modules:
        return False
    if _travels_by_value(module):
        return False
    return found_in(sys.modules[module], getattr(named, "__qualname__", "")) is named


def found_in(place: Any, path: str) -> Any:
    """Return the attribute at a dotted path, or a unique object if there is none."""
    for name in path.split("."):
        place = getattr(place, name, _NOTHING)
        if place is _NOTHING:
            break
    return place


def _travels_by_value(module: str) -> bool:
    cloudpickle = sys.modules.get("cloudpickle")  # Whoever registers a module has loaded it.
    registered = () if cloudpickle is None else cloudpickle.list_registry_pickle_by_value()
    return bool(registered) and any(module == each or module.startswith(f"{each}.") for each in registered)
