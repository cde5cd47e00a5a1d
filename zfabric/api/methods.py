"""Methods of actors: ``zf.method``, and what a handle carries of each method.

The methods of a class are inspected once, where the class is (``methods_of``). Every handle carries their names, signatures and docstrings
in its blueprint.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, Protocol, overload

from zfabric.api.options import Pairs, checked_method, pairs_of_method
from zfabric.api.refs import ObjectRef
from zfabric.api.signatures import positional, shown, signature_as_called
from zfabric.api.types import P, R, R_co

if TYPE_CHECKING:
    import inspect

_METHOD_OPTIONS = "__zf_method_options__"
_SKIPPED = frozenset(vars(object)) | {"__init_subclass__", "__class_getitem__", "__del__", "__dict__", "__weakref__"}
"""Methods that cannot be called remotely."""


class Method(NamedTuple):
    """A method, as handles carry it."""

    name: str
    least: int
    """Least positional arguments of a call without keywords."""
    most: float
    signature: str
    doc: str
    options: Pairs
    """Default options of its calls."""
    readonly: bool
    """Whether it leaves the state unchanged: its calls are not logged."""


BUILT_IN = {
    known.name: known
    for known in (
        Method("__ray_ready__", 0, 0, "()", "True, once the actor is made.", (), True),
        Method("__ray_call__", 1, float("inf"), "(function, /, *args, **kwargs)", "function(actor, *args, **kwargs), there.", (), False),
        Method("__ray_terminate__", 0, 0, "()", "End the actor, for good, behind the calls made before.", (), True),
    )
}
"""Methods that every actor has, by Ray's names (``runtime.hosting``)."""


class Blueprint(NamedTuple):
    """What a handle carries of an actor's class, beside the actor's id."""

    class_name: str
    module: str
    doc: str
    methods: tuple[Method, ...]
    retries: int
    pending: int
    groups: tuple[str, ...] = ()
    keeps: bool = False
    """Whether its checkpoints retain outcomes that callers may not have received."""
    unordered: bool = False
    """Whether it runs several calls of one group at once."""


class TypedMethod(Protocol[P, R_co]):
    """The type of a method marked ``@zf.method``, for type checkers: it has ``remote``, and the class itself can call it."""

    @overload
    def __get__(self, instance: None, owner: Any = None) -> TypedMethod[P, R_co]: ...
    @overload
    def __get__(self, instance: object, owner: Any = None) -> BoundMethod[P, R_co]: ...


class BoundMethod(Protocol[P, R_co]):
    """A method of an instance, or of a handle."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call it directly, inside the class."""

    @overload
    def remote(self, *args: P.args, **kwargs: P.kwargs) -> ObjectRef[R_co]: ...
    @overload
    def remote(self, first: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> ObjectRef[R_co]: ...
    @overload
    def remote(self, first: Any, second: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> ObjectRef[R_co]: ...
    @overload
    def remote(self, first: Any, second: Any, third: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> ObjectRef[R_co]: ...

    def options(self, **options: Any) -> Any:
        """The same method with other options."""


class MethodDecorator(Protocol):
    """The result of ``@zf.method(timeout=2)``."""

    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> TypedMethod[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Any, P], R], /) -> TypedMethod[P, R]: ...


@overload
def method(function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], /) -> TypedMethod[P, R]: ...
@overload
def method(function: Callable[Concatenate[Any, P], R], /) -> TypedMethod[P, R]: ...
@overload
def method(*, num_returns: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]: ...
@overload
def method(**options: Any) -> MethodDecorator: ...
def method(*args: Any, **options: Any) -> Any:
    """Set ``options`` of a method: ``@zf.method(num_returns=2)`` inside a class that is made remote. Raises OptionError.

    Without options (``@zf.method``) it tells type checkers the method's parameters and result, through ``zf.typed(handle)``.

    - ``readonly=True``: the method leaves the state unchanged. Its calls are not logged (``checkpoint_every``), and no checkpoint waits for
      them.
    - ``num_returns``: a number, "streaming" (with ``max_buffered``; the default for methods that yield) or "dynamic".
    - ``timeout``: seconds from the call's arrival at the actor. ``run_timeout``: seconds from its begin.
    - ``copy=True``: arguments arrive as writable copies.
    - ``concurrency_group``: one of the groups of the class. Its calls begin in order, at most the group's number run at a time, and no
      group waits for another. Without a group, ``max_concurrency`` applies.
    - ``retry_exceptions``: True or a list of classes that cause another attempt, with the original arguments. ``max_task_retries`` limits
      the attempts (by default that of the class); those after the loss of the actor's process count, too.

    ``handle.method.options(...)`` overrides them for its calls.

    >>> import zfabric as zf
    >>> @zf.remote(concurrency_groups={"io": 2})
    ... class Store:
    ...     @zf.method(concurrency_group="io")
    ...     def read(self):
    ...         return "while the others compute"
    >>> zf.get(Store.remote().read.remote())
    'while the others compute'

    >>> import zfabric as zf
    >>> @zf.remote
    ... class Pair:
    ...     @zf.method(num_returns=2)
    ...     def both(self):
    ...         return 1, 2
    >>> zf.get(Pair.remote().both.remote())
    [1, 2]
    """
    if len(args) == 1 and not options and callable(args[0]):
        return args[0]
    if args or not options:
        raise TypeError("zf.method() takes options by name, such as @zf.method(num_returns=2)")
    settings = checked_method(options)

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(function, _METHOD_OPTIONS, settings)
        return function

    return mark


def signature_of(kind: type) -> inspect.Signature | None:
    """The signature of a class; None for some written in C."""
    try:
        return signature_as_called(kind)
    except (TypeError, ValueError):  # Some classes written in C have no signature.
        return None


def methods_of(kind: type, retries: int, defaults: Pairs = ()) -> tuple[Method, ...]:
    """The methods of a class that can be called remotely. ``retries``: repeats of their calls after a death; ``defaults``: options of their
    calls.
    """
    import inspect  # Programs without actors start sooner without it.

    found = []
    for name in dir(kind):
        if name in _SKIPPED or (name.startswith("__") and name.endswith("__") and name not in ("__call__", "__len__", "__getitem__")):
            continue
        function = inspect.getattr_static(kind, name)
        static = isinstance(function, staticmethod)
        bound = getattr(kind, name)
        if not callable(bound) or isinstance(bound, type):
            continue
        settings = getattr(bound, _METHOD_OPTIONS, {})
        yields = inspect.isgeneratorfunction(bound) or inspect.isasyncgenfunction(bound)
        options = pairs_of_method(settings, (*defaults, ("stream", 0)) if yields else defaults, retries)
        readonly = bool(settings.get("readonly"))
        try:
            signature = signature_as_called(bound)
        except (TypeError, ValueError):  # Some methods written in C have no signature.
            found.append(Method(name, 0, float("inf"), "(...)", inspect.getdoc(bound) or "", options, readonly))
            continue
        parameters = list(signature.parameters.values())
        bare = not static and not isinstance(function, classmethod)
        if bare and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:  # A wrapper's ``*args`` have the instance.
            parameters = parameters[1:]
        least, most = positional(parameters)
        found.append(Method(name, least, most, shown(signature, parameters), inspect.getdoc(bound) or "", options, readonly))
    return tuple(found)
