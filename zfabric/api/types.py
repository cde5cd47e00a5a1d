"""Type variables of the public classes, for type checkers.

They have defaults, so that ``ObjectRef`` alone is ``ObjectRef[Any]``. Python supports defaults from 3.13 on; type checkers support them in
earlier versions, too.

``f.remote`` takes the arguments of ``f``, and refs in place of values. Types can express this for up to four positional arguments: these
are the overloads of each ``remote``. They cannot for keywords, whose names no overload can list. There a checker requires the value's type,
and a ref needs ``typing.cast``. A ref could be typed as assignable to everything. It is not, because a checker should find a forgotten
``zf.get``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from typing_extensions import ParamSpec as DefaultParamSpec
    from typing_extensions import TypeVar as DefaultTypeVar

    Value_co = DefaultTypeVar("Value_co", covariant=True, default=Any)
    """The type of a ref's value."""
    Parameters = DefaultParamSpec("Parameters", default=...)
    """The parameters of a function, or of the ``__init__`` of a class."""
    Given_co = DefaultTypeVar("Given_co", covariant=True, default=Any)
    """The result of ``remote``: usually a ref to the function's result."""
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
    """A class, with the parameters of its constructor. (Functions have no bases.)

    Mypy infers both. Pyright consults the metaclass, which takes and returns anything; the other members make it reject this protocol, so
    that it infers at least the class, by the next overload.
    """

    __bases__: tuple[type, ...]

    def __init__(self) -> None: ...

    def __eq__(self, other: object) -> int: ...  # type: ignore[override] # see above

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C_co:
        """Make an instance."""
