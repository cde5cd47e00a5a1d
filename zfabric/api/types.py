"""Type variables of the public classes, for type checkers.

They have defaults, so that ``ObjectRef`` alone is ``ObjectRef[Any]``; Python has these from 3.13 on, and type checkers know them before.

``f.remote`` takes what ``f`` takes, and refs in the place of values. Types can express that of positional arguments (the overloads of
each ``remote``), up to the fourth, and not of keywords, whose names no overload can list: there a checker wants the value's type, and a
ref needs ``typing.cast``. Refs were not made assignable to everything, which types could express too: a checker is to find
where the program forgot ``zf.get``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from typing_extensions import ParamSpec as DefaultParamSpec
    from typing_extensions import TypeVar as DefaultTypeVar

    Value_co = DefaultTypeVar("Value_co", covariant=True, default=Any)
    """What a ref is of."""
    Parameters = DefaultParamSpec("Parameters", default=...)
    """What a function, or the ``__init__`` of a class, takes."""
    Given_co = DefaultTypeVar("Given_co", covariant=True, default=Any)
    """What ``remote`` gives: most often a ref to what the function returns."""
    Instance_co = DefaultTypeVar("Instance_co", covariant=True, default=Any)
    """The class of an actor."""
else:
    Value_co = TypeVar("Value_co", covariant=True)
    Parameters = ParamSpec("Parameters")
    Given_co = TypeVar("Given_co", covariant=True)
    Instance_co = TypeVar("Instance_co", covariant=True)

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
C_co = TypeVar("C_co", covariant=True)


class ClassOf(Protocol[P, C_co]):
    """A class, with what it is called with. (Functions have no bases.)

    Mypy finds both out. Pyright asks the metaclass, which takes anything and gives anything; the other members make it refuse this
    protocol, so that it knows at least the class, by the next overload.
    """

    __bases__: tuple[type, ...]

    def __init__(self) -> None: ...

    def __eq__(self, other: object) -> int: ...  # type: ignore[override] # see above

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C_co:
        """Make an instance."""
