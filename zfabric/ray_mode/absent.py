"""Names of Ray that modules can import and nobody can use, and names that do not exist."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from zfabric.exceptions import NotInRayModeError

PAGE = "docs/as-ray.md says what there is"


class Absent:
    """Stands for an internal class or function of Ray. Its use raises NotInRayModeError with its name."""

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
    """A class to derive from, never to instantiate."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        absent._raise()

    return type(absent.__name__.rpartition(".")[2], (), {"__init__": refuse})


class Incomplete:
    """Base of an internal object of Ray that has some of its names; others raise NotInRayModeError. ``STANDS_FOR`` is its place in Ray."""

    STANDS_FOR: ClassVar[str]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotInRayModeError(f"{self.STANDS_FOR}.{name} is not in zfabric ({PAGE})")


def nearest(name: str, known: list[str]) -> str:
    """Return a hint at a similar name, or an empty string."""
    close = difflib.get_close_matches(name, known, 1)
    return f"; there is {close[0]!r}" if close else ""


def attributes(module: str, why: str = "") -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a stand-in: missing names raise AttributeError with the page and ``why``."""

    def lacks(name: str) -> NoReturn:
        known = [each for each in vars(sys.modules[module]) if not each.startswith("__")]
        raise AttributeError(f"module {module!r} has no {name!r} on zfabric{nearest(name, known)} ({why and f'{why}; '}{PAGE})")

    return lacks


def submodules(package: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package's stand-in, which loads modules on first use."""
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
            return lacks(name)  # Both errors are shown; the first says where libraries come from.

    return load
