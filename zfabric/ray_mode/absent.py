"""Names of Ray that exist, so that modules can import them, and that cannot be used; and those that do not exist."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from zfabric.exceptions import NotInRayModeError

PAGE = "docs/as-ray.md says what there is"


class Absent:
    """Stands for a class or function of Ray's inside. Whoever uses it gets NotInRayModeError with its name."""

    def __init__(self, name: str, instead: str = "") -> None:
        self.__name__ = self.__qualname__ = name
        self._instead = instead

    def _raise(self, attribute: str = "") -> NoReturn:
        name = f"{self.__name__}.{attribute}" if attribute else self.__name__
        raise NotInRayModeError(f"{name} is not in zfabric{f': {self._instead}' if self._instead else ''} ({PAGE})")

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise NotInRayModeError."""
        self._raise()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._raise(name)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (_never_made(self),)

    def __reduce__(self) -> tuple[Any, ...]:
        return Absent, (self.__name__, self._instead)

    def __or__(self, other: Any) -> Any:
        return self  # In annotations.

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<{self.__name__}, which is not in zfabric>"


def _never_made(absent: Absent) -> type:
    """A class to derive from, of which no instance can be made."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        absent._raise()

    return type(absent.__name__.rpartition(".")[2], (), {"__init__": refuse})


class Incomplete:
    """Base of an object of Ray's inside that has some of its names; the others raise NotInRayModeError. ``STANDS_FOR`` is its place."""

    STANDS_FOR: ClassVar[str]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotInRayModeError(f"{self.STANDS_FOR}.{name} is not in zfabric ({PAGE})")


def nearest(name: str, known: list[str]) -> str:
    """Return a hint at the name that was probably meant; empty if none is close."""
    close = difflib.get_close_matches(name, known, 1)
    return f"; there is {close[0]!r}" if close else ""


def attributes(module: str, why: str = "") -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a stand-in: names that it lacks raise AttributeError with the page, and ``why`` there are not more."""

    def lacks(name: str) -> NoReturn:
        known = [each for each in vars(sys.modules[module]) if not each.startswith("__")]
        raise AttributeError(f"module {module!r} has no {name!r} on zfabric{nearest(name, known)} ({why and f'{why}; '}{PAGE})")

    return lacks


def submodules(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a stand-in for a package, whose modules are loaded on first use."""
    lacks = attributes(package)

    def load(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        whole = f"{package}.{name}"
        try:
            return importlib.import_module(whole)
        except ModuleNotFoundError as error:
            if error.name not in (whole, package):
                raise
            return lacks(name)  # Both errors are shown, and the first one says where libraries come from.

    return load
