"""Finds what cannot be pickled: the path from a value to the part to blame.

The search pickles the value's children, enters the first child that fails too, and stops where none fails, or at a bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from zfabric.adapters.namespaces import importable
from zfabric.adapters.pickler import CachedFunction, pickler

DEPTH_MAX = 24
TRIES_MAX = 2_000


class _Sink:
    def write(self, data: Any) -> int:
        return len(data)


def picklable(value: Any) -> bool:
    """Whether cloudpickle can pickle ``value``."""
    try:
        pickler()(_Sink(), protocol=5, buffer_callback=lambda _: None).dump(value)
    except (Exception, SystemExit):  # A user's __reduce__ may raise anything.
        return False
    return True


def blame(value: Any, root: str) -> str:
    """Return the path from ``root`` (a name of ``value``) to the part that cannot be pickled, and that part's type.

    >>> import threading
    >>> blame({"lock": threading.Lock()}, "args[1].config")
    "args[1].config['lock'] -> _thread.lock"
    """
    path, found = trail(value, root)[-1]
    return f"{path} -> {_type_name(found)}"


def trail(value: Any, root: str) -> list[tuple[str, Any]]:
    """List the values that cannot be pickled, each with its path, from ``value`` down to the part to blame."""
    way, tries, seen = [(root, value)], 0, {id(value)}
    while len(way) <= DEPTH_MAX:
        path, value = way[-1]
        for step, child in _children(value):
            if id(child) in seen or type(child) in (int, float, str, bytes, bool, type(None)):
                continue
            tries += 1
            if tries > TRIES_MAX:
                return way
            if not picklable(child):
                seen.add(id(child))
                way.append((path + step, child))
                break
        else:
            break
    return way


def _type_name(value: Any) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{name} {value.__name__!r}" if name in ("function", "type", "module") else name


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts that pickling would enter, each with its step of the path."""
    kind = type(value)
    if isinstance(value, dict):
        yield from ((f"[{_short(key)}]", child) for key, child in list(value.items()))
        yield from ((f".keys()[{_short(key)}]", key) for key in list(value))
    elif isinstance(value, (list, tuple)):
        yield from ((f"[{index}]", child) for index, child in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((f"{{{_short(child)}}}", child) for child in value)
    elif kind.__name__ == "function":
        yield from _captured(value)
    elif kind.__name__ == "method":
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif kind is CachedFunction:
        yield ".__wrapped__", value.__wrapped__
    elif kind.__name__ == "partial":
        yield ".func", value.func
        yield ".args", value.args
        yield ".keywords", value.keywords
    if isinstance(value, type):
        yield from ((f".{name}", child) for name, child in list(vars(value).items()) if name not in ("__dict__", "__weakref__"))
        return
    yield from ((f".{name}", child) for name, child in list(getattr(value, "__dict__", {}).items()))
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name) and name not in ("__dict__", "__weakref__"):
                yield f".{name}", getattr(value, name)
    if not importable(kind):
        yield f".<class {kind.__qualname__}>", kind


def _captured(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function captures: closure, used globals, defaults."""
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=False):
        try:
            yield f".<closure {name}>", cell.cell_contents
        except ValueError:  # It has no value yet.
            continue
    codes, used = [function.__code__], []
    while codes:
        code = codes.pop()
        used += code.co_names
        codes += [constant for constant in code.co_consts if isinstance(constant, type(code))]
    for name in dict.fromkeys(used):
        if name in function.__globals__:
            yield f".<global {name}>", function.__globals__[name]
    for index, default in enumerate(function.__defaults__ or ()):
        yield f".<default {index}>", default
    for name, default in (function.__kwdefaults__ or {}).items():
        yield f".<default {name}>", default


def _short(key: Any) -> str:
    try:
        text = repr(key)
    except Exception:  # __repr__ is user code.
        text = f"<{type(key).__name__}>"
    return text if len(text) <= 40 else text[:37] + "..."
