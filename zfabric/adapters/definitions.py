"""Classes that travel by value: each process defines a class once, and later values find that definition.

A class has an *identity*: 16 random bytes, drawn when the process that made the class first pickles it. A pickle carries the identity, what
the bare class is made of, and its contents. A process that has the class ignores the contents, so reading a value never changes a class. A
class statement that runs again makes another class; old instances keep the old one.

Code is an exception, in workers alone: a method that the program has replaced, or that shares variables with a function of the same pickle,
replaces the loaded one, unless a task has replaced that.

A bare class is made by the ``__new__`` of ``type`` (or of the C metaclass below the user's). ``__new__`` and ``__init__`` of Python
metaclasses and ``__init_subclass__`` do not run again: their effects are among the contents. Enumeration members are made bare, too.

Objects that stand for themselves (``MISSING = object()``) travel by name if a library has them, else by identity.
"""

from __future__ import annotations

import abc
import copyreg
import enum
import functools
import importlib
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from zfabric.adapters import namespaces
from zfabric.adapters.namespaces import MAIN, found_in, importable
from zfabric.exceptions import SerializationError

IDENTITY_BYTES = 16
_HEAP_TYPE = 1 << 9
"""Flag of classes made at run time, as in CPython's ``object.h``."""
_BUILT_IN = (types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)
_ENUM_MAPS = ("_member_map_", "_value2member_map_", "_unhashable_values_", "_unhashable_values_map_", "_hashable_values_")
"""Attributes of an enumeration that map names and values to members."""
_CODE = (types.FunctionType, property, classmethod, staticmethod, functools.cached_property, functools.partialmethod, type)
_lock = threading.RLock()


class Packed(NamedTuple):
    """The definition of a class as it travels, apart from its values."""

    beginning: bytes | None
    """The beginning of a pickle that refers to the class; None if the class must be part of each pickle."""
    names: tuple[tuple[dict[str, Any], str, Any], ...]
    """(namespace, name, value) of names that its methods use; a change causes a new packing."""
    revision: int


class Revision(NamedTuple):
    """The code of a class, by name, and how often it has changed."""

    number: int
    code: dict[str, Any]


class _Identities:
    """Objects with an identity, both ways. Classes are held weakly; all else, of which there is little, strongly."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[Callable[[], Any], bytes]] = {}
        self._objects: dict[bytes, Callable[[], Any]] = {}
        self.packed: dict[bytes, Packed] = {}
        self.revisions: dict[bytes, Revision] = {}
        """Code by identity: as last pickled for classes made here, as last loaded for others."""
        self._made_here: set[bytes] = set()

    def of(self, thing: Any) -> bytes:
        """Return the identity of an object; draw one if it has none."""
        known = self._of.get(id(thing))
        if known is not None:
            return known[1]
        with _lock:
            known = self._of.get(id(thing))
            if known is not None:
                return known[1]
            identity = os.urandom(IDENTITY_BYTES)
            self._made_here.add(identity)
            return self.add(thing, identity)

    def revision_of(self, kind: type, identity: bytes) -> int:
        """Return the revision of a class. It rises if a method of a class made here has changed."""
        known = self.revisions.get(identity)
        if identity in self._made_here:
            code = code_of(vars(kind).items())
            if known is None or code.keys() != known.code.keys() or any(known.code[name] is not value for name, value in code.items()):
                known = self.revisions[identity] = Revision(0 if known is None else known.number + 1, code)
        return 0 if known is None else known.number

    def revised(self, identity: bytes, number: int) -> int:
        """Return the revision of a class after names that its methods use have changed."""
        if identity not in self._made_here:
            return number - 1
        self.revisions[identity] = self.revisions[identity]._replace(number=number)
        return number

    def lacks(self, identity: bytes, number: int) -> bool:
        """Whether this process lacks a class, or has an older revision."""
        return self.find(identity) is None or identity in _unfinished or number > self.number(identity)

    def number(self, identity: bytes) -> int:
        """Return this process's revision of a class: the newest of its own classes."""
        known = self.revisions.get(identity)
        return sys.maxsize if identity in self._made_here else 0 if known is None else known.number

    def find(self, identity: bytes) -> Any:
        reference = self._objects.get(identity)
        return None if reference is None else reference()

    def add(self, thing: Any, identity: bytes) -> bytes:
        number = id(thing)

        def forget(_: Any) -> None:
            self._of.pop(number, None)
            self._objects.pop(identity, None)
            self.packed.pop(identity, None)
            self.revisions.pop(identity, None)
            self._made_here.discard(identity)

        reference: Callable[[], Any] = weakref.ref(thing, forget) if isinstance(thing, type) else lambda: thing
        self._of[number] = reference, identity
        self._objects[identity] = reference
        return identity


identities = _Identities()


def code_of(contents: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the contents of a class that are code."""
    return {name: value for name, value in contents if isinstance(value, _CODE)}


_unfinished: set[bytes] = set()
"""Bare classes whose load has not ended, or has failed. The next load sets their contents."""


# --- classes --------------------------------------------------------------------------------------------------------------------


def is_static(kind: type) -> bool:
    """Whether all processes have a class: it is the interpreter's or an extension module's."""
    return not kind.__flags__ & _HEAP_TYPE


def reduce_class(kind: type, snapshot: Any, own: str, values: dict[str, Any]) -> tuple[Any, ...]:
    """Reduce a class that travels by value. ``own`` is its name in the namespace of ``snapshot``, if any; ``values`` are bound there."""
    contents = {name: value for name, value in vars(kind).items() if not _is_made_with_class(kind, name, value)}
    slots = _slots_of(kind)
    registered: tuple[Any, ...] = ()
    if "_abc_impl" in contents:
        registered = tuple(each for reference in abc._get_dump(kind)[0] if (each := reference()) is not None)  # type: ignore[attr-defined]
        del contents["_abc_impl"]
    members: tuple[Any, ...] | None = None
    if isinstance(kind, enum.EnumMeta):
        members = _members_of(kind)
        found = set(map(id, kind.__members__.values()))
        contents = {name: value for name, value in contents.items() if name not in _ENUM_MAPS and id(value) not in found}
    arguments = (identities.of(kind), type(kind), kind.__name__, kind.__bases__, kind.__module__, kind.__qualname__, slots)
    number = identities.revision_of(kind, identities.of(kind))
    state = (contents, members, registered, snapshot, {**values, own: kind} if own else values, number)
    return make_class, arguments, state, None, None, set_class


def _is_made_with_class(kind: type, name: str, value: Any) -> bool:
    if name in ("__module__", "__qualname__", "__annotate_func__", "__annotations_cache__"):
        return True
    if not isinstance(value, (types.MemberDescriptorType, types.GetSetDescriptorType)):
        return False
    return value.__objclass__ is kind or name in ("__dict__", "__weakref__")  # Another's, where a class was made of a copy of its contents.


def _slots_of(kind: type) -> tuple[str, ...] | None:
    """Slots as instances have them; None without ``__slots__``."""
    if "__slots__" not in vars(kind):
        return None
    made = [name for name, value in vars(kind).items() if isinstance(value, types.MemberDescriptorType) and value.__objclass__ is kind]
    return (*made, *(name for name in ("__dict__", "__weakref__") if isinstance(vars(kind).get(name), types.GetSetDescriptorType)))


def make_class(
    identity: bytes,
    meta: type,
    name: str,
    bases: tuple[type, ...],
    module: str,
    qualname: str,
    slots: tuple[str, ...] | None,
) -> type:
    """Return the class of this identity, or make a bare one."""
    with _lock:
        kind: type | None = identities.find(identity)
        if kind is None:
            contents: dict[str, Any] = {"__module__": module, "__qualname__": qualname}
            if slots is not None:
                contents["__slots__"] = slots
            kind = _bare(meta, name, bases, contents)
            identities.add(kind, identity)
            _unfinished.add(identity)
    return kind


class _Making(threading.local):
    quiet = False
    """Whether this thread makes a bare class, which runs no ``__init_subclass__``."""


_making = _Making()


def _bare(meta: type, name: str, bases: tuple[type, ...], contents: dict[str, Any]) -> type:
    """Make a class without running user code. Raises SerializationError if its metaclass forbids that."""
    native = _native(meta, "__new__")
    restore = _silence(bases)
    try:
        _making.quiet = True
        kind: type = native(meta, name, bases, contents)
    except TypeError as error:
        raise SerializationError(f"cannot define the class {contents['__qualname__']} here: {error}") from error
    finally:
        _making.quiet = False
        restore()
    if isinstance(kind, abc.ABCMeta):
        abc._abc_init(kind)  # type: ignore[attr-defined]
    return kind


def _native(meta: type, name: str) -> Any:
    for base in meta.__mro__:
        found = vars(base).get(name)
        if isinstance(found, _BUILT_IN):
            return getattr(base, name)
    return getattr(type, name)


def _silence(bases: tuple[type, ...]) -> Callable[[], None]:
    """Suppress ``__init_subclass__`` for bare classes of this thread, until the returned function is called."""
    for base in (each for parent in bases for each in parent.__mro__):
        original = vars(base).get("__init_subclass__")
        if original is None or is_static(base):
            continue
        called = original

        def hook(cls: type, /, _original: Any = called, **keywords: Any) -> None:
            if not _making.quiet:
                _original.__get__(None, cls)(**keywords)

        type.__setattr__(base, "__init_subclass__", classmethod(hook))
        later = _silence(tuple(each for each in bases if not issubclass(each, base)))

        def restore(_base: type = base, _original: Any = original, _later: Callable[[], None] = later) -> None:
            _later()
            type.__setattr__(_base, "__init_subclass__", _original)

        return restore
    return lambda: None


def set_class(kind: type, state: tuple[Any, ...]) -> None:
    """Set the contents of a bare class; for a complete one, renew at most its code."""
    contents, members, registered, snapshot, values, number = state
    identity = identities.of(kind)
    if identity in _unfinished:
        _fill(kind, contents, members, registered)
        identities.revisions[identity] = Revision(number, code_of(contents.items()))
        _unfinished.discard(identity)
    elif namespaces.mirrors and namespaces.may_renew():
        known = identities.number(identity)
        if number > known or (number == known and (snapshot is None or snapshot.space is namespaces.main())):
            _renew_code(kind, identity, number, code_of(contents.items()))
    if values:
        snapshot.bind(values)


def _renew_code(kind: type, identity: bytes, number: int, code: dict[str, Any]) -> None:
    """Replace loaded code of a class. What a task has replaced stays."""
    known = identities.revisions[identity].code if identity in identities.revisions else {}
    assign = _native(type(kind), "__setattr__")
    for name, value in code.items():
        if vars(kind).get(name) is known.get(name):
            assign(kind, name, value)
    identities.revisions[identity] = Revision(number, code)


def _fill(kind: type, contents: dict[str, Any], members: Any, registered: tuple[Any, ...]) -> None:
    assign = _native(type(kind), "__setattr__")
    for name, value in contents.items():
        assign(kind, name, value)
    if members is not None:
        _set_members(kind, members, assign)
    for each in registered:
        kind.register(each)  # type: ignore[attr-defined]


# --- enumerations -----------------------------------------------------------------------------------------------------------------


def _members_of(kind: Any) -> tuple[Any, ...]:
    """Describe an enumeration: member by each name, what members are made of, names that are plain attributes, values, and the rest."""
    names = {name: member._name_ for name, member in kind._member_map_.items()}
    parts = {member._name_: (*_raw(member), dict(getattr(member, "__dict__", {}))) for member in kind._member_map_.values()}
    plain = [name for name, member in kind._member_map_.items() if vars(kind).get(name) is member]
    values = [(value, member._name_) for value, member in kind._value2member_map_.items() if member._name_ in kind._member_map_]
    others = {name: vars(kind)[name] for name in _ENUM_MAPS[2:] if name in vars(kind)}
    return names, parts, plain, values, others


def reduce_member(member: Any) -> tuple[Any, ...]:
    """Reduce a member of an enumeration that travels by value."""
    kind = type(member)
    if kind._member_map_.get(member._name_) is not member:  # Flags that were combined.
        return _combined, (kind, member._value_)
    return member_of, (kind, member._name_, *_raw(member))


def _raw(member: Any) -> tuple[Any, ...]:
    """Return (C class whose ``__new__`` makes the bare member, arguments)."""
    base: Any = next(each for each in type(member).__mro__ if is_static(each))
    if base is object:
        return base, ()
    if hasattr(base, "__getnewargs__"):
        return base, base.__getnewargs__(member)
    return base, base.__reduce__(member)[1]


def _combined(kind: Any, value: Any) -> Any:
    return kind(value)


def member_of(kind: Any, name: str, base: Any, arguments: tuple[Any, ...]) -> Any:
    """Return a member of an enumeration; a bare one while the class has no contents."""
    with _lock:
        known = vars(kind).get("_member_map_")
        if known is None:
            known = {}
            type.__setattr__(kind, "_member_map_", known)
        member = known.get(name)
        if member is None:
            member = known[name] = base.__new__(kind, *arguments)
            member._name_ = name
        return member


def _set_members(kind: Any, members: tuple[Any, ...], assign: Any) -> None:
    names, parts, plain, values, others = members
    found = {name: member_of(kind, name, base, arguments) for name, (base, arguments, _) in parts.items()}
    for name, (_, _, attributes) in parts.items():
        if attributes:
            vars(found[name]).update(attributes)
    every = {name: found[own] for name, own in names.items()}
    assign(kind, "_member_map_", every)
    assign(kind, "_value2member_map_", {value: every[own] for value, own in values})
    for name in plain:
        assign(kind, name, every[name])
    for name, value in others.items():
        assign(kind, name, value)


# --- constants ----------------------------------------------------------------------------------------------------------------------


def constants_of(kind: type) -> dict[int, tuple[type, str]]:
    """Return instances of a class among its own and its bases' attributes: (class, name), by ``id``."""
    found: dict[int, tuple[type, str]] = {}
    for base in kind.__mro__:
        if not is_static(base) and not importable(base):
            found.update({id(value): (base, name) for name, value in vars(base).items() if type(value) is kind})
    return found


def reduce_constant(value: Any, owner: type, name: str) -> tuple[Any, ...] | None:
    """Reduce a class attribute such as ``Color.RED`` so that the reader's class has the same object."""
    parts = value.__reduce_ex__(5)
    if not isinstance(parts, tuple) or any(part is not None for part in parts[3:]):
        return None
    state = parts[2] if len(parts) > 2 else None
    return constant, (owner, name, *parts[:2]), (owner, name, state), None, None, set_constant


_bare_constants: dict[tuple[bytes, str], Any] = {}


def constant(owner: type, name: str, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Return a constant of a class; a bare one while the class has no contents."""
    key = identities.of(owner), name
    if key[0] not in _unfinished and name in vars(owner):
        return vars(owner)[name]
    if key not in _bare_constants:
        _bare_constants[key] = make(*arguments)
    return _bare_constants[key]


def set_constant(value: Any, state: tuple[type, str, Any]) -> None:
    """Set the state of a bare constant."""
    owner, name, inside = state
    if _bare_constants.pop((identities.of(owner), name), None) is not value or inside is None:
        return
    if hasattr(value, "__setstate__"):
        value.__setstate__(inside)
        return
    attributes, slots = inside if isinstance(inside, tuple) and len(inside) == 2 else (inside, None)
    vars(value).update(attributes or {})
    for each, content in (slots or {}).items():
        setattr(value, each, content)


# --- exceptions -------------------------------------------------------------------------------------------------------------------


def is_plain_error(kind: type[BaseException]) -> bool:
    """Whether an instance consists of its arguments and attributes, and is pickled as a call of the class."""
    return (
        _inherits(kind, BaseException, "__reduce_ex__", "__reduce__")
        and isinstance(kind.__new__, types.BuiltinFunctionType)
        and isinstance(kind.__init__, types.FunctionType)
        and id(kind) not in map(id, copyreg.dispatch_table)
        and not _has_slots(kind)
        and next(base for base in kind.__mro__ if is_static(base)).__basicsize__ == BaseException.__basicsize__
    )


def reduce_error(error: BaseException) -> tuple[Any, ...]:
    """Reduce an exception without a new call of ``__init__``, which may have effects."""
    return _make_error, (type(error), BaseException.args.__get__(error)), vars(error) or None  # type: ignore[attr-defined]


def _make_error(kind: type[BaseException], arguments: tuple[Any, ...]) -> BaseException:
    return kind.__new__(kind, *arguments)


def _inherits(kind: type, base: type, *names: str) -> bool:
    return all(getattr(kind, name, None) is getattr(base, name, None) for name in names)


# --- objects that stand for themselves --------------------------------------------------------------------------------------------

_seen_modules: dict[str, int] = {}
"""Module -> how many names it had when it was searched for plain objects."""
_plain_objects: dict[int, tuple[str, str, Any]] = {}
"""(module, name, object) of plain ``object()`` of library modules, by ``id``."""


def stand_for_themselves(kind: type) -> bool:
    """Whether instances may stand for themselves: special methods and default pickling alone."""
    if kind is object:
        return True
    return (
        not is_static(kind)
        and _inherits(kind, object, "__reduce_ex__", "__reduce__", "__getstate__")
        and not hasattr(kind, "__getnewargs__")
        and not hasattr(kind, "__getnewargs_ex__")
        and not any(is_static(base) for base in kind.__mro__[:-1])
        and id(kind) not in map(id, copyreg.dispatch_table)
        and not _has_slots(kind)
        and all(_is_special(name) for base in kind.__mro__[:-1] for name in vars(base))
    )


def _has_slots(kind: type) -> bool:
    made = (value for base in kind.__mro__ if not is_static(base) for value in vars(base).values())
    return any(isinstance(value, types.MemberDescriptorType) for value in made)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def reduce_symbol(thing: Any, kind: type) -> tuple[Any, ...] | None:
    """Reduce an object that stands for itself; None if no module names it."""
    if kind is object:
        found = _plain_object(thing)
        if found is not None:
            return named_symbol, (identities.of(thing), kind, *found[:2])
    elif importable(kind):
        for name, value in list(vars(sys.modules[kind.__module__]).items()):
            if value is thing:
                return named_symbol, (identities.of(thing), kind, kind.__module__, name)
        return None
    for name, value in list(vars(sys.modules[MAIN]).items()):
        # Programs write such names in capitals. Another name may be an empty object that is filled later.
        if value is thing and (kind is object or name.isupper()):
            return symbol, (identities.of(thing), kind)
    return None


def named_symbol(identity: bytes, kind: type, module: str, name: str) -> Any:
    """Return a module's object of this name and class, or else what ``symbol`` returns."""
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):  # The module is missing, or of another version.
        found = None
    return found if type(found) is kind else symbol(identity, kind)


def symbol(identity: bytes, kind: type) -> Any:
    """Return the object of this identity, or make one that stands for it."""
    with _lock:
        thing = identities.find(identity)
        if thing is None:
            thing = object.__new__(kind)
            identities.add(thing, identity)
        return thing


def _plain_object(thing: Any) -> tuple[str, str, Any] | None:
    found = _plain_objects.get(id(thing))
    if found is None:
        for module, name, value in _new_plain_objects():
            _plain_objects.setdefault(id(value), (module, name, value))
        found = _plain_objects.get(id(thing))
    return found if found is not None and found[2] is thing and found_in(sys.modules.get(found[0]), found[1]) is thing else None


def _new_plain_objects() -> Iterator[tuple[str, str, Any]]:
    """Yield plain objects of modules that have changed since the last call."""
    for module, contents in list(sys.modules.items()):
        names = getattr(contents, "__dict__", None)
        if contents is sys.modules[MAIN] or names is None or _seen_modules.get(module) == len(names):
            continue
        _seen_modules[module] = len(names)
        for name, value in list(names.items()):
            if type(value) is object:
                yield module, name, value
