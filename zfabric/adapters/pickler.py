"""The picklers for all but plain data: cloudpickle's, with what it lacks for programs' code.

A process defines each class once (``definitions``), and names of ``__main__`` are bound in the reader's ``__main__`` (``namespaces``). Pass
what was pickled through ``finished``.
"""

from __future__ import annotations

import contextlib
import copyreg
import enum
import functools
import hashlib
import io
import os
import pickle
import re
import sys
import threading
import types
import typing
import weakref
import zlib
from collections import ChainMap
from collections.abc import Callable, Iterable
from typing import Any

from zfabric.adapters import namespaces
from zfabric.adapters.definitions import (
    Packed,
    constants_of,
    identities,
    is_plain_error,
    is_static,
    reduce_class,
    reduce_constant,
    reduce_error,
    reduce_member,
    reduce_symbol,
    stand_for_themselves,
)
from zfabric.adapters.namespaces import (
    MAIN,
    LoadedSnapshot,
    Snapshot,
    SnapshotRow,
    importable,
    key_of,
    main,
    namespace_of,
    open_snapshot,
    snapshot_of,
)

_FILENAME = 10
CLASSES_MAX = 8
"""Most classes inside a retained definition: classes that name each other would each have all."""
DEFINITION_BYTES_MAX = 256 * 1024
"""Largest retained definition, sent with each value of the class."""
_GLOBAL_READS = frozenset({"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_IDENTIFIER = re.compile(r"(?<![\w.])[^\W\d]\w*")
CachedFunction: Any = functools._lru_cache_wrapper
_NAMES_OF_CACHED = ("__module__", "__name__", "__qualname__", "__doc__")
_MADE_WITH_CACHE = frozenset(functools.WRAPPER_ASSIGNMENTS) | {"__wrapped__", "cache_parameters"}
"""Attributes that the constructor of a cached function sets."""
_NOTHING = object()
_used_names: weakref.WeakKeyDictionary[types.CodeType, tuple[str, ...]] = weakref.WeakKeyDictionary()
_dispatcher: Any = functools.singledispatch(print)
_DISPATCH = _dispatcher.__code__
_PARAMETERS = tuple(
    getattr(typing, name) for name in ("NewType", "ParamSpec", "TypeVarTuple", "TypeVar", "TypeAliasType") if hasattr(typing, name)
)
"""Classes of typing whose instances are pickled by name."""


_AS_CLOUDPICKLE, _FUNCTION, _CLASS, _MEMBER, _PARAMETER, _ERROR, _INSTANCE, _SYMBOL = (
    "as cloudpickle",
    "function",
    "class",
    "member",
    "parameter",
    "error",
    "instance",
    "symbol",
)


def _how(kind: Any) -> str:
    if kind is types.FunctionType:
        return _FUNCTION
    if issubclass(kind, type):
        return _CLASS
    if isinstance(kind, enum.EnumMeta):
        return _AS_CLOUDPICKLE if importable(kind) else _MEMBER
    if kind.__module__ == "typing" and any(kind is each for each in _PARAMETERS):
        return _PARAMETER
    if issubclass(kind, BaseException):
        return _AS_CLOUDPICKLE if importable(kind) or not is_plain_error(kind) else _ERROR
    if stand_for_themselves(kind):
        return _SYMBOL
    return _AS_CLOUDPICKLE if is_static(kind) or id(kind) in map(id, copyreg.dispatch_table) or importable(kind) else _INSTANCE


@functools.cache
def pickler() -> Any:
    """Return the class of picklers."""
    import cloudpickle  # Plain data is pickled without it: processes start sooner.

    reduce_code = cloudpickle.Pickler.dispatch_table[types.CodeType]

    def reduce_named_code(code: types.CodeType) -> tuple[Any, ...]:
        """Reduce code with its file's name, which tracebacks need and cloudpickle 3.1.3 leaves out."""
        kind, parameters = reduce_code(code)
        return kind, (*parameters[:_FILENAME], "".join(code.co_filename), *parameters[_FILENAME + 1 :])

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table = ChainMap(
            {
                CachedFunction: _reduce_cached_function,
                types.CodeType: reduce_named_code,
                functools.cached_property: _reduce_cached_property,
                functools.singledispatchmethod: _reduce_dispatching_method,
                types.CellType: _reduce_cell,
                Snapshot: lambda snapshot: (snapshot_of, (snapshot.nonce,)),
            },
            cloudpickle.Pickler.dispatch_table,
        )
        has_data = False
        """Whether names of ``__main__`` in this pickle have data, which other names may share."""
        refers = True
        """Whether classes are reduced to references to their definitions, if they have one."""
        nonces: Callable[[], bytes] = staticmethod(functools.partial(os.urandom, 16))
        """Makes keys under which snapshots are pickled until their rows are known."""

        def __init__(self, file: Any, protocol: int | None = None, buffer_callback: Any = None) -> None:
            super().__init__(file, protocol, buffer_callback)
            self.snapshots: dict[int, Snapshot] = {}
            self.definitions: dict[bytes, None] = {}
            self.classes = 0
            """Classes that travel with this pickle by value."""
            self._constants: dict[int, dict[int, tuple[type, str]]] = {}
            self._kinds: dict[int, str] = {}
            """How to reduce instances, by ``id`` of the class: classes may forbid to be keys."""

        def reducer_override(self, thing: Any) -> Any:
            """Reduce functions, classes and symbols; all else as cloudpickle does."""
            kind = type(thing)
            how = self._kinds.get(id(kind))
            if how is None:
                how = self._kinds[id(kind)] = _how(kind)
            if how is _AS_CLOUDPICKLE:
                return NotImplemented
            reduced: Any = None
            if how is _FUNCTION:
                reduced = self._reduce_function(thing) if not importable(thing) else None
            elif how is _CLASS:
                reduced = self._reduce_class(thing) if not is_static(thing) and not importable(thing) else None
            elif how is _MEMBER:
                reduced = reduce_member(thing)
            elif how is _PARAMETER:
                reduced = self._reduce_parameter(thing, kind) if thing.__module__ == MAIN else None
            elif how is _ERROR:
                reduced = reduce_error(thing)
            elif how is _INSTANCE:
                reduced = self._reduce_instance(thing, kind)
            elif not getattr(thing, "__dict__", None):
                reduced = reduce_symbol(thing, kind)
            return super().reducer_override(thing) if reduced is None else reduced

        def finished(self, stream: bytes) -> bytes:
            """Return the whole pickle, with what its snapshots need before ``stream``."""
            if not self.snapshots:
                return b"".join((*self.definitions, stream)) if self.definitions else stream
            opened = list(self.definitions)
            for snapshot in self.snapshots.values():
                rows = snapshot.rows(_examined)
                self.has_data = self.has_data or any(group > 0 for *_, group in rows)
                key, opening = _opening(rows)
                stream = stream.replace(snapshot.nonce, key)
                opened.append(opening)
            return b"".join((*opened, stream))

        def _snapshot(self, space: namespaces.Namespace) -> Snapshot:
            found = self.snapshots.get(id(space))
            if found is None:
                found = self.snapshots[id(space)] = Snapshot(space, self.nonces())
            return found

        def _reduce_function(self, function: Any) -> tuple[Any, ...] | None:
            if function.__code__ is _DISPATCH:
                return _reduce_dispatcher(function)
            space = namespace_of(function)
            if space is None:
                return None
            snapshot = self._snapshot(space)
            own = snapshot.own(function, function.__qualname__)
            values = {**self._annotated(snapshot, function.__annotations__.values()), **snapshot.values(used_names(function.__code__))}
            state = {name: getattr(function, name) for name in _ATTRIBUTES if hasattr(function, name)}
            parts = (values, _submodules(values.values(), function.__code__), state, vars(function))
            return (
                _make_function,
                (snapshot, own, function.__code__, function.__closure__),
                (snapshot, own, parts),
                None,
                None,
                _set_function,
            )

        def _reduce_class(self, kind: Any) -> tuple[Any, ...]:
            self.classes += 1
            if self.refers:
                packed = _packed(kind)
                if packed.beginning is not None:
                    self.definitions[packed.beginning] = None
                    return defined, (identities.of(kind), packed.revision)
            if getattr(kind, "__module__", None) != MAIN:
                return reduce_class(kind, None, "", {})
            snapshot = self._snapshot(main())
            root = kind.__qualname__.partition(".")[0]
            values = self._annotated(snapshot, vars(kind).get("__annotations__", {}).values())
            if root != kind.__qualname__ and isinstance(main().names.get(root), type):
                values.update(snapshot.values((root,)))
            return reduce_class(kind, snapshot, snapshot.own(kind, kind.__qualname__), values)

        def _reduce_instance(self, thing: Any, kind: Any) -> tuple[Any, ...] | None:
            constants = self._constants.get(id(kind))
            if constants is None:
                constants = self._constants[id(kind)] = constants_of(kind)
            found = constants.get(id(thing)) if constants else None
            return reduce_constant(thing, *found) if found is not None else None

        def _annotated(self, snapshot: Snapshot, annotations: Iterable[Any]) -> dict[str, Any]:
            """Return classes and types that annotations name in texts, if they can be pickled."""
            known = snapshot.space.names
            named = [name for name in _names_in(annotations) if isinstance(known.get(name), (type, *_PARAMETERS))]
            return snapshot.values(name for name in named if _can_travel(known[name]))

        def _reduce_parameter(self, thing: Any, kind: Any) -> tuple[Any, ...]:
            """Reduce a ``NewType``, ``TypeVar`` or their like of ``__main__``, which Python pickles by name."""
            snapshot = self._snapshot(main())
            own = snapshot.own(thing, thing.__name__)
            return _make_parameter, (snapshot, own, identities.of(thing), kind, *_parts_of_parameter(thing, kind))

    return Pickler


class _Arrived(threading.local):
    """Definitions of missing classes in what this thread loads; each is used within that load."""

    def __init__(self) -> None:
        self.packed: dict[bytes, bytes] = {}


_arrived = _Arrived()


def define(identity: bytes, number: int, packed: bytes) -> None:
    """Record a class's definition for ``defined``, unless this revision is here."""
    if identities.lacks(identity, number):
        _arrived.packed[identity] = packed


def defined(identity: bytes, number: int) -> Any:
    """Return the class of this identity; make it if it is missing."""
    packed = _arrived.packed.pop(identity, None)
    if packed is not None and identities.lacks(identity, number):
        return pickle.loads(zlib.decompress(packed))
    return identities.find(identity)


class _Bounded(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > DEFINITION_BYTES_MAX:
            raise OverflowError
        return super().write(data)


def _packed(kind: type) -> Packed:
    """Return a class's definition apart from its values, made once and after each change of its code.

    Some classes are part of each pickle: ones that share data of ``__main__`` or variables of a function with what is pickled beside them,
    have data or refs of their own, are large, or lead to many others.
    """
    identity = identities.of(kind)
    number = identities.revision_of(kind, identity)
    known = identities.packed.get(identity)
    if known is not None:
        if known.revision >= number and all(names.get(name) is value for names, name, value in known.names):
            return known
        number = identities.revised(identity, max(number, known.revision + 1))
    file = _Bounded()
    made = pickler()(file, protocol=5)
    made.refers = False
    found: bytes | None = None
    names: tuple[tuple[dict[str, Any], str, Any], ...] = ()
    try:
        made.dump(kind)
        stream = made.finished(file.getvalue())
    except Exception:  # The pickle that the class is a part of reports why.
        pass
    else:
        if not made.has_data and made.classes <= CLASSES_MAX and not _shares(made.memo.copy().values()):
            found = _call_and_drop(define, identity, number, zlib.compress(stream, 6))
            names = tuple((each.space.names, name, each.space.names[name]) for each in made.snapshots.values() for name in each.used)
    packed = identities.packed[identity] = Packed(found, names, number)
    return packed


def _shares(parts: Iterable[tuple[int, Any]]) -> bool:
    """Whether parts of a class may belong to others, too: data, refs, variables of functions."""
    for _, part in parts:
        if type(part) in namespaces.without_data:
            return True
        if isinstance(part, types.FunctionType):
            if _has_variables(part):
                return True
        elif isinstance(part, type) and not is_static(part) and not importable(part) and _has_data(part):
            return True
    return False


def _has_data(kind: type) -> bool:
    attributes = [value for name, value in vars(kind).items() if not (name.startswith("_") and name.endswith("_"))]
    return any(isinstance(value, (list, dict, set, bytearray)) for value in attributes)


def _has_variables(function: types.FunctionType) -> bool:
    """Whether a function has a closure, other than for ``super()``, or globals that travel."""
    if importable(function) or str(function.__globals__.get("__name__")).partition(".")[0] in sys.stdlib_module_names:
        return False  # Closures of the standard library's methods have defaults and types, which nobody shares.
    if namespace_of(function) is None:
        return True
    names = function.__code__.co_freevars
    return bool(names) and names != ("__class__",) and not _is_generated(function)


def _is_generated(function: types.FunctionType) -> bool:
    """Whether ``dataclasses`` or ``attrs`` made a function: nobody shares its variables."""
    code = function.__code__
    if code.co_filename == "<string>":
        return all(name.startswith(("_type_", "_dflt_", "__dataclass_")) or name in _GENERATED for name in code.co_freevars)
    return code.co_filename.startswith("<attrs generated ")


_GENERATED = ("MISSING", "_HAS_DEFAULT_FACTORY", "_return_type", "BUILTINS", "cls", "__class__")


def used_names(code: types.CodeType) -> tuple[str, ...]:
    """Return the globals that code, and code inside it, uses."""
    found = _used_names.get(code)
    if found is None:
        import dis  # Only functions that travel by value need it.

        names = dict.fromkeys(each.argval for each in dis.get_instructions(code) if each.opname in _GLOBAL_READS)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                names.update(dict.fromkeys(used_names(constant)))
        found = _used_names[code] = tuple(names)
    return found


def _can_travel(value: Any) -> bool:
    """Whether a class or type of an annotation can be pickled; it need not be."""
    if not isinstance(value, type) or is_static(value) or importable(value):
        return True
    if _packed(value).beginning is not None:
        return True
    try:
        pickler()(_Hashing(), protocol=5, buffer_callback=lambda _: None).dump(value)
    except Exception:  # Whatever the user's code raises.
        return False
    return True


def _names_in(annotations: Iterable[Any]) -> list[str]:
    names: list[str] = []
    for each in annotations:
        if isinstance(each, str):
            names += _IDENTIFIER.findall(each)
        elif isinstance(each, typing.ForwardRef):
            names += _IDENTIFIER.findall(each.__forward_arg__)
        elif isinstance(inside := getattr(each, "__args__", None), tuple):
            names += _names_in(inside)
    return names


def _submodules(values: Iterable[Any], code: types.CodeType) -> tuple[str, ...]:
    """Return loaded submodules that code reaches through its modules: ``import a.b`` binds ``a`` alone."""
    packages = [value.__name__ for value in values if isinstance(value, types.ModuleType) and hasattr(value, "__path__")]
    if not packages:
        return ()
    beginnings = tuple(f"{package}." for package in packages)
    words = set(code.co_names).union(*(each.co_names for each in code.co_consts if isinstance(each, types.CodeType)))
    return tuple(
        name
        for name in list(sys.modules)
        if name.startswith(beginnings)  # Few of thousands do.
        for package in packages
        if name.startswith(f"{package}.") and words.issuperset(name[len(package) + 1 :].split("."))
    )


@functools.lru_cache(maxsize=1024)
def _opening(rows: tuple[SnapshotRow, ...]) -> tuple[bytes, bytes]:
    key = key_of(rows)
    return key, _call_and_drop(open_snapshot, key, rows)


def _call_and_drop(function: Callable[..., Any], *arguments: Any) -> bytes:
    """Return the beginning of a pickle: a call with a dropped result. It leaves the memo empty, so any pickle may follow."""
    file = io.BytesIO()
    made = pickle.Pickler(file, 5)
    made.fast = True
    made.dump(_Call(function, arguments))
    return file.getvalue()[:-1] + pickle.POP


class _Call:
    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.parts = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.parts


# --- what snapshots compare -------------------------------------------------------------------------------------------------------


class _Hashing:
    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return len(data)


_WITHOUT_PARTS = (str, bytes, int, float, complex, tuple, Snapshot, types.CodeType, *namespaces.WITHOUT_DATA, *_PARAMETERS)
"""Classes of values that do not change, or are not data."""


def _examined(value: Any) -> tuple[bytes, dict[int, Any]]:
    """Return a digest of a value's content, and its mutable parts by ``id``."""
    file = _Hashing()
    made = pickler()(file, protocol=5, buffer_callback=lambda buffer: file.write(buffer.raw()))
    made.nonces = functools.partial(_counted, iter(range(1 << 30)))
    try:
        made.dump(value)
    except Exception:  # What cannot be pickled has failed already; what pickles differently each time is new each time.
        return os.urandom(16), {}
    return file.hash.digest(), {number: thing for number, (_, thing) in made.memo.copy().items() if not isinstance(thing, _WITHOUT_PARTS)}


def _counted(numbers: Any) -> bytes:
    return bytes(8) + int(next(numbers)).to_bytes(8, "big")


# --- functions --------------------------------------------------------------------------------------------------------------------

_ATTRIBUTES = ("__defaults__", "__kwdefaults__", "__annotations__", "__name__", "__qualname__", "__doc__", "__module__", "__type_params__")


def _reduce_cell(cell: types.CellType) -> tuple[Any, ...]:
    """Reduce a closure variable, made before its content, which may be the function itself."""
    try:
        content = cell.cell_contents
    except ValueError:  # It has none yet.
        return types.CellType, ()
    return types.CellType, (), (content,), None, None, _set_cell


def _set_cell(cell: types.CellType, content: tuple[Any]) -> None:
    cell.cell_contents = content[0]


def _make_function(snapshot: LoadedSnapshot, own: str, code: types.CodeType, closure: Any) -> Any:
    found = snapshot.find(own)
    return types.FunctionType(code, snapshot.space.names, None, None, closure) if found is None else found


def _set_function(function: Any, state: Any) -> None:
    import importlib

    snapshot, own, (values, submodules, attributes, contents) = state
    for each in submodules:
        importlib.import_module(each)
    if own not in snapshot.kept:
        for name, value in attributes.items():
            setattr(function, name, value)
        vars(function).update(contents)
    snapshot.bind({**values, own: function} if own else values)


def _reduce_dispatcher(function: Any) -> tuple[Any, ...]:
    """Reduce a ``functools.singledispatch`` function, whose registry is in an unpicklable closure."""
    implementations = dict(function.registry)
    plain = implementations.pop(object)
    return _make_dispatcher, (plain,), tuple(implementations.items()), None, None, _set_dispatcher


def _make_dispatcher(plain: Any) -> Any:
    return functools.singledispatch(plain)


def _set_dispatcher(function: Any, implementations: Any) -> None:
    for kind, implementation in implementations:
        function.register(kind, implementation)


def _reduce_dispatching_method(method: Any) -> tuple[Any, ...]:
    """Reduce a ``functools.singledispatchmethod``, which has weak references from Python 3.12 on."""
    return _make_dispatching_method, (method.func, method.dispatcher)


def _make_dispatching_method(function: Any, dispatcher: Any) -> Any:
    made = functools.singledispatchmethod(function)
    made.dispatcher = dispatcher
    return made


def _reduce_cached_property(each: Any) -> tuple[Any, ...]:
    """Reduce a ``functools.cached_property``, which has a lock up to Python 3.11."""
    return _make_cached_property, (each.func, each.attrname, each.__doc__)


def _make_cached_property(function: Any, name: str | None, doc: str | None) -> Any:
    made = functools.cached_property(function)
    made.attrname, made.__doc__ = name, doc
    return made


# --- parameters of types ----------------------------------------------------------------------------------------------------------


def _parts_of_parameter(thing: Any, kind: Any) -> tuple[Any, ...]:
    if kind is typing.NewType:
        return (thing.__name__, thing.__supertype__)
    if kind.__name__ == "TypeAliasType":
        return (thing.__name__, thing.__value__, thing.__type_params__)
    if kind.__name__ == "TypeVarTuple":
        return (thing.__name__,)
    variance = (thing.__covariant__, thing.__contravariant__)
    constraints = getattr(thing, "__constraints__", ())
    return (thing.__name__, constraints, thing.__bound__, *variance)


def _make_parameter(snapshot: LoadedSnapshot, own: str, identity: bytes, kind: Any, name: str, *parts: Any) -> Any:
    found = identities.find(identity)
    if found is None:
        found = _parameter(kind, name, *parts)
        with contextlib.suppress(AttributeError):
            found.__module__ = MAIN
        identities.add(found, identity)
    if own:
        snapshot.bind({own: found})
    return found


def _parameter(kind: Any, name: str, *parts: Any) -> Any:
    if kind.__name__ == "TypeAliasType":
        return kind(name, parts[0], type_params=parts[1])
    if kind.__name__ in ("NewType", "TypeVarTuple"):
        return kind(name, *parts)
    constraints, bound, covariant, contravariant = parts
    return kind(name, *constraints, bound=bound, covariant=covariant, contravariant=contravariant)


# --- functions with a cache (functools.lru_cache, functools.cache) ----------------------------------------------------------------


def _reduce_cached_function(cached: Any) -> str | tuple[Any, ...]:
    """Reduce a cached function to its name if other processes can import it, else to the inner function and the cache's parameters.

    Python pickles all by name, under which others do not find those of ``__main__`` or of other functions. A loaded one begins with an
    empty cache.
    """
    if importable(cached):
        return str(cached.__qualname__)
    inside = cached.__wrapped__
    inherited = getattr(inside, "__dict__", {})
    own = {
        name: value for name, value in vars(cached).items() if name not in _MADE_WITH_CACHE and inherited.get(name, _NOTHING) is not value
    }
    named = {name: getattr(cached, name, None) for name in _NAMES_OF_CACHED}
    changed = {name: value for name, value in named.items() if value != getattr(inside, name, None)}
    return _make_cached_function, (inside, cached.cache_parameters()), {**changed, **own} or None


def _make_cached_function(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)
