"""Remote functions: the result of ``@zf.remote`` on a function (``zfabric.api.decorator``).

A function is exported once per job, with its options; its id is a hash of both. A call carries the id, its arguments, and options that
differ. Inside an argument or a closure, a remote function is pickled with its export's id, so that the same calls make the same task rows
in every worker.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NoReturn, cast, overload

from zfabric.adapters import own_modules
from zfabric.adapters.namespaces import register_without_data
from zfabric.adapters.serialization import (
    ArgumentsTooLarge,
    SerializedValue,
    dump_arguments,
    dump_function,
    function_identity,
    note_function,
    serialize,
)
from zfabric.api import notebooks
from zfabric.api.environments import NO_RUNTIME_ENV, packages_of
from zfabric.api.errors import a
from zfabric.api.generators import Collected, ObjectRefGenerator
from zfabric.api.lifecycle import connected, default_environment
from zfabric.api.options import Pairs, checked, copying, difference, mode_of, pairs_of, pairs_of_actor
from zfabric.api.refs import ObjectRef
from zfabric.api.repeats import argument_sent, function_sent
from zfabric.api.signatures import fit, shown, signature_as_called
from zfabric.api.strategies import check_place
from zfabric.api.types import Given_co, Parameters
from zfabric.config import FAR_BYTES_MAX
from zfabric.exceptions import ObjectStoreError, OptionError, SerializationError
from zfabric.protocol.ids import OBJECT_BYTES, object_id, task_of
from zfabric.protocol.names import check_length, is_text
from zfabric.protocol.options import ONE_CPU, option
from zfabric.runtime import interface
from zfabric.runtime.interface import ClientInterface

FUNCTION_BYTES_MAX = 64 * 2**20
"""Largest function, with all that it captures: one message, again for every worker."""
CALL_BYTES_MAX = 256 * 2**20
"""Most bytes of one call, without stored arguments: ten million refs."""
SHOWN_MAX = 1000
"""Most characters of a function's or class's name in output."""
ASYNC_CONCURRENCY = 1000
"""Default number of tasks of an ``async def`` function at the same time in one worker."""

_VARARGS, _VARKEYWORDS, _GENERATOR, _COROUTINE, _ASYNC_GENERATOR = 0x04, 0x08, 0x20, 0x80, 0x200
"""Flags of code objects, as in ``inspect``, without importing it."""


class ExportedFunction:
    """A function or class as exported to a job, shared by its ``options`` variants."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any], blueprint: bytes = b"") -> None:
        self.function = function
        self.options = options
        self.blueprint = blueprint
        self.client: ClientInterface | None = None
        self.job = b""
        self.node = b""
        """The node to which it was exported. Where it travels to another node, it is exported there, too."""
        self.function_id = b""
        self.environment = NO_RUNTIME_ENV
        """The environment inherited at the export; another one needs another export."""
        self.packages: tuple[bytes, ...] = ()
        """Ids of its environment's archives, which whoever runs it needs."""
        self.captured: tuple[bytes, ...] = ()
        """Refs in its closure, which whoever runs it holds. Calls name both, so that other nodes know where they are."""
        self.size = 0
        """Bytes of the exported function with what it captures."""
        self.busy = False
        self.stale = False
        """Whether what it uses may have changed since the export."""

    @property
    def name(self) -> str:
        """The name for output."""
        name = str(getattr(self.function, "__qualname__", None) or getattr(type(self.function), "__qualname__", "function"))
        return (name if is_text(name) else ascii(name))[:SHOWN_MAX]

    def bind(self, client: ClientInterface) -> None:
        """Export the function to the client's job, once."""
        # Job numbers are not unique across clusters.
        elsewhere = self.client is not None and self.client is not client
        environment = default_environment()
        known = bool(self.function_id) and self.job == client.job and not elsewhere and self.environment == environment
        if not known or self.stale or self.node != client.node:
            retry = self.options.get("retry_exceptions") or False
            pairs = self._pairs()
            self.busy = True
            try:
                payload, captured = dump_function(self.function, retry if isinstance(retry, bool) else tuple(retry), self.name)
            finally:
                self.busy = False
            if len(payload) > FUNCTION_BYTES_MAX:
                raise SerializationError(
                    f"{self.name} has {len(payload) / 2**20:.0f} MiB with what it captures, which is over the limit of "
                    f"{FUNCTION_BYTES_MAX / 2**20:.0f} MiB; zf.put the data and pass the ref as an argument"
                )
            function_id = self.function_id if known and not self.stale else function_identity(payload, pairs)
            if not known or function_id != self.function_id or self.node != client.node:
                more = (("contains", captured), ("prelude", interface.prelude))
                client.export(function_id, self.name, payload, (*pairs, *(each for each in more if each[1])))
            # Set these last: Ctrl-C may interrupt at any line above.
            self.packages, self.captured, self.size = packages_of(pairs), captured, len(payload)
            self.function_id, self.job, self.node, self.environment = function_id, client.job, client.node, environment
            self.stale = False
            notebooks.note(self)
        self.client = client

    def examine_again(self) -> None:
        """Export it again at the next call if what it uses has changed."""
        self.stale = True

    def _pairs(self) -> Pairs:
        if self.blueprint:
            pairs = pairs_of_actor(self.options, self.blueprint, default_environment())
        else:
            pairs = pairs_of(self.options, default_environment())
        modules = own_modules.stamp()
        return (*pairs, ("modules", modules)) if modules else pairs

    def __getstate__(self) -> dict[str, Any]:
        client = interface.current()
        if client is not None and (client is not self.client or self.stale) and not self.busy:
            self.bind(client)
        return {
            "function": self.function,
            "options": self.options,
            "blueprint": self.blueprint,
            "function_id": b"" if self.busy else self.function_id,
            "job": self.job,
            "node": self.node,
            "environment": self.environment,
            "packages": self.packages,
            "captured": self.captured,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, client=None, busy=False, stale=False, size=0)
        if not self.function_id:
            note_function(self)

    def adopt(self, function: Callable[..., Any], payload: bytes, function_id: bytes, contained: tuple[bytes, ...]) -> None:
        """Adopt ``function_id`` if this is the function of that payload. Called by ``load_function``."""
        client = interface.current()
        pairs = self._pairs()
        if client is not None and self.function is function and function_identity(payload, pairs) == function_id:
            self.function_id, self.job, self.node = function_id, client.job, client.node
            self.environment, self.packages, self.captured = default_environment(), packages_of(pairs), contained


class RemoteFunction(Generic[Parameters, Given_co]):
    """A function whose calls are tasks. Made by ``zf.remote``.

    >>> import zfabric as zf
    >>> @zf.remote(num_cpus=1, max_retries=2)
    ... def double(x):
    ...     return 2 * x
    >>> zf.get(double.remote(4))
    8
    >>> zf.get(double.options(name="my double").remote(5))
    10
    """

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any], export: ExportedFunction | None = None) -> None:
        self._function = function
        self._options = dict(options)
        self._export = export or ExportedFunction(function, self._options)
        self._client: ClientInterface | None = None
        functools.update_wrapper(cast(Any, self), function, updated=())

    def __getstate__(self) -> dict[str, Any]:
        return {"_function": self._function, "_options": self._options, "_export": self._export}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Do not inspect the function yet: a recursive one is unpickled before it is complete.
        self.__dict__.update(state, _client=None)

    def _bind(self) -> ClientInterface:
        """Return the client, after exporting the function to its job and computing what every call needs."""
        client = connected()
        if self._client is not client:
            function, options, export = self._function, self._options, self._export
            check_place(options, client, export.name, ONE_CPU)
            export.bind(client)
            functools.update_wrapper(cast(Any, self), function, updated=())
            returns = options.get("num_returns")
            self._num_returns: int = returns if isinstance(returns, int) else 1
            if returns in (None, 1) and _flags(function) & (_GENERATOR | _ASYNC_GENERATOR):
                raise OptionError(
                    f'{export.name} is a generator: leave num_returns out to consume its items while it runs ("streaming"), or set it to '
                    '"dynamic" to get them all once it is done, or to the number of its items'
                )
            default = default_environment()
            wanted = pairs_of(options, default)
            differs = (*difference(pairs_of(export.options, default), wanted), *copying(options))
            self._call_options: Pairs | None = naming_refs(differs or None, packages_of(wanted) + export.captured)
            self._least, self._most = _positional(function)
            self._signature: Any = None
            # A function with large data is bound again, until called often enough for a warning.
            self._client = None if function_sent(function, export.name, export.size) else client
            notebooks.note(self)
        return client

    def examine_again(self) -> None:
        """Bind again at the next call."""
        self._client = None

    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
            """Raise TypeError: a remote function is called with ``.remote(...)``."""
            name = self._export.name
            raise TypeError(f"{name} is a remote function: write {name}.remote(...), or {name}._function(...) to run it here and now")

    def __repr__(self) -> str:
        return f"RemoteFunction({self._export.name})"

    @overload
    def options(self, *, num_returns: Any, **options: Any) -> RemoteFunction[Parameters, Any]: ...
    @overload
    def options(self, **options: Any) -> RemoteFunction[Parameters, Given_co]: ...
    def options(self, **options: Any) -> RemoteFunction[Any, Any]:
        """Return the same function with other ``options`` for its calls; None resets one to its default.

        Raises OptionError for an unknown option or an invalid value.

        >>> import zfabric as zf
        >>> @zf.remote
        ... def pair():
        ...     return 1, 2
        >>> zf.get(pair.options(num_returns=2).remote())
        [1, 2]
        """
        merged = {**self._options, **checked(options)}
        base = self._export.options
        retries = (merged.get("retry_exceptions") or False) != (base.get("retry_exceptions") or False)
        unset = any((value is None or value == {}) and base.get(name) is not None for name, value in merged.items())
        # Options that the scheduler stores per function need another function.
        fixed = any(merged.get(name) != base.get(name) for name in ("max_concurrency", "inline"))
        if unset or retries or fixed or mode_of(merged) != mode_of(base):
            return made(self._function, merged)
        _check_kind(self._function, merged)
        return type(self)(self._function, merged, self._export)

    @overload
    def remote(self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Given_co: ...
    @overload
    def remote(self, first: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> Given_co: ...
    @overload
    def remote(self, first: Any, second: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> Given_co: ...
    @overload
    def remote(self, first: Any, second: Any, third: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> Given_co: ...
    @overload
    def remote(self, first: Any, second: Any, third: Any, fourth: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> Given_co: ...
    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Submit a call; return its ref at once (a list of refs for ``num_returns`` above 1, None for 0).

        The call waits for arguments that are refs, which arrive as their values; large ones are stored as by ``put``. Raises TypeError if
        the arguments do not fit, SerializationError if they cannot be pickled.

        >>> import zfabric as zf
        >>> @zf.remote
        ... def add(x, y):
        ...     return x + y
        >>> zf.get(add.remote(add.remote(1, 2), y=3))
        6
        """
        client = interface._current
        if client is None or self._client is not client:
            client = self._bind()
        export, returns = self._export, self._num_returns
        if not args and not kwargs and not self._least:
            first = client.submit(export.function_id, b"", (), self._call_options, returns)
        else:
            arguments, dependencies, options, _held = self._call(client, args, kwargs)
            first = client.submit(export.function_id, arguments, dependencies, options, returns)
        if returns == 1:
            return ObjectRef(first, client)
        return _refs(first, returns, client)

    def map(self, iterable: Iterable[Any], /, *iterables: Iterable[Any], chunksize: int | str = "auto") -> list[Given_co]:
        """Call the function on every item of ``iterable``; return the result of ``remote`` for each, in order.

        Several iterables are read in parallel, up to the end of the shortest. Every call is a task; ``chunksize`` of them are submitted at
        a time ("auto": the fabric's batch size), which is cheaper than a loop over ``remote``.

        >>> import zfabric as zf
        >>> zf.get(zf.remote(abs).map(range(-2, 3)))
        [2, 1, 0, 1, 2]
        >>> zf.get(zf.remote(pow).map([2, 3], [10, 2]))
        [1024, 9]
        """
        if chunksize != "auto" and (isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1):
            raise OptionError(f'chunksize is "auto" or an int from 1, not {chunksize!r}')
        for each in (iterable, *iterables):
            if not hasattr(each, "__iter__") and not hasattr(each, "__getitem__"):
                raise TypeError(f"{self._export.name}.map() takes iterables, each with one argument of every call, not {a(each)}")
        client = self._bind()
        size = chunksize if isinstance(chunksize, int) else client.config.batch_rows
        returns, export = self._num_returns, self._export
        results: list[Any] = []
        if not self._least <= 1 + len(iterables) <= self._most:
            self._refuse((None,) * (1 + len(iterables)), {})
        calls = zip(iterable, *iterables, strict=False)
        while chunk := list(islice(calls, size)):
            held: list[ObjectRef] = []
            firsts = client.submit_many(export.function_id, list(self._rows(client, chunk, held)), returns)
            if returns == 1:
                results += [ObjectRef(first, client) for first in firsts]
            else:
                results += [_refs(first, returns, client) for first in firsts]
        if self._client is not client and results:
            function_sent(self._function, export.name, export.size, len(results) - 1)  # The first one was noted above.
        return results

    def _rows(
        self, client: ClientInterface, chunk: list[tuple[Any, ...]], held: list[ObjectRef]
    ) -> Iterator[tuple[bytes, tuple[bytes, ...], Pairs | None]]:
        for args in chunk:
            arguments, dependencies, options, kept = self._call(client, args, {})
            held += kept
            yield arguments, dependencies, options

    def _call(
        self, client: ClientInterface, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, tuple[bytes, ...], Pairs | None, list[ObjectRef]]:
        """Return (arguments, dependencies, options, refs to hold until submitted) of one call."""
        if kwargs or not self._least <= len(args) <= self._most:
            self._refuse(args, kwargs)
        return dump_call(client, args, kwargs, self._call_options)

    def _refuse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise TypeError if the arguments do not fit: an exact test, after the caller's quick one."""
        if self._signature is None:
            try:
                self._signature = signature_as_called(self._function)
            except (TypeError, ValueError):  # Some functions written in C have no signature.
                return
        try:
            fit(self._signature, args, kwargs)
        except TypeError as error:
            method = "; a method cannot be remote: write a function that takes the object" if "'self'" in str(error) else ""
            takes = shown(self._signature, list(self._signature.parameters.values()))
            raise TypeError(f"{self._export.name}.remote(): {error}; it takes {takes}{method}") from None


class StreamingFunction(RemoteFunction):
    """A function whose calls are streams. Made by ``zf.remote(num_returns="streaming")``."""

    def _stream(self, ref: ObjectRef) -> ObjectRefGenerator:
        options = self._options
        ahead = options.get("max_buffered") or max(0, options.get("_generator_backpressure_num_objects") or 0)
        return ObjectRefGenerator(ref, ahead or connected().config.stream_buffered)

    def remote(self, /, *args: Any, **kwargs: Any) -> ObjectRefGenerator:
        """Submit a call; return the generator of its refs at once."""
        return self._stream(super().remote(*args, **kwargs))

    def map(self, iterable: Iterable[Any], /, *iterables: Iterable[Any], chunksize: int | str = "auto") -> list[Any]:
        """Call the function on every item; return a generator for each."""
        return [self._stream(ref) for ref in super().map(iterable, *iterables, chunksize=chunksize)]


class DynamicFunction(RemoteFunction):
    """A function whose calls return a generator of all yielded values. Made by ``zf.remote(num_returns="dynamic")``."""

    def __init__(self, function: Callable[..., Any], options: Mapping[str, Any], export: ExportedFunction | None = None) -> None:
        super().__init__(function, options, export or ExportedFunction(Collected(function), options))


def _refs(first: bytes, returns: int, client: ClientInterface) -> list[ObjectRef] | None:
    """Refs to the values of a task without exactly one value."""
    return [ObjectRef(object_id(task_of(first), index), client) for index in range(returns)] or None


def _with_defaults(function: Any, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options, with the defaults for this kind of function."""
    if not _flags(function) & (_COROUTINE | _ASYNC_GENERATOR):
        return options
    # It mostly waits, so it asks for no CPU, and many run in one worker.
    said = {name: value for name, value in options.items() if value is not None}
    return {"num_cpus": 0, "max_concurrency": ASYNC_CONCURRENCY, **said}


def made(function: Callable[..., Any], options: Mapping[str, Any]) -> RemoteFunction:
    """Return the kind of remote function for these options. A function that yields is a stream by default."""
    options = _with_defaults(function, options)
    if options.get("num_returns") is None and _flags(function) & (_GENERATOR | _ASYNC_GENERATOR):
        options = {**options, "num_returns": "streaming"}
    _check_kind(function, options)
    if not _flags(function) & (_COROUTINE | _ASYNC_GENERATOR):
        options = {name: value for name, value in options.items() if name != "max_concurrency"}  # One is the default; no event loop.
    if not mode_of(options):
        return RemoteFunction(function, options)
    if _flags(function) & _COROUTINE:
        raise OptionError(f"{function.__qualname__} is 'async def' without yield: num_returns={mode_of(options)!r} is for generators")
    if mode_of(options) == "dynamic" and hasattr(function, "__code__") and not _flags(function) & (_GENERATOR | _ASYNC_GENERATOR):
        raise OptionError(f'{function.__qualname__} does not yield: num_returns="dynamic" can only be used with generators')
    return (StreamingFunction if mode_of(options) == "streaming" else DynamicFunction)(function, options)


def _check_kind(function: Any, options: Mapping[str, Any]) -> None:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    if options.get("max_buffered") is not None and mode_of(options) != "streaming":
        raise OptionError(f'max_buffered is for num_returns="streaming": {name} makes no stream')
    if (options.get("max_concurrency") or 1) > 1 and not _flags(function) & (_COROUTINE | _ASYNC_GENERATOR):
        raise OptionError(f"max_concurrency is for 'async def': {name} is a plain function, of which a worker runs one")


def _flags(function: Any) -> int:
    return int(getattr(getattr(function, "__code__", None), "co_flags", 0))


def _positional(function: Any) -> tuple[int, float]:
    """(least, most) positional arguments of a call without keywords; (1, 0) if only the signature can decide."""
    code = getattr(function, "__code__", None)
    if (
        code is None
        or (code.co_kwonlyargcount and len(function.__kwdefaults__ or ()) < code.co_kwonlyargcount)
        or hasattr(function, "__self__")
    ):
        return 1, 0
    most = code.co_argcount
    least = most - len(function.__defaults__ or ())
    return least, float("inf") if code.co_flags & _VARARGS else most


def dump_call(
    client: ClientInterface, args: tuple[Any, ...], kwargs: dict[str, Any], options: Pairs | None = None, actors: Sequence[bytes] = ()
) -> tuple[bytes, tuple[bytes, ...], Pairs | None, list[ObjectRef]]:
    """As ``RemoteFunction._call``, for a function or for a method of these actors."""
    held: list[ObjectRef] = []
    try:
        arguments, dependencies, contained = dump_arguments(args, kwargs, ObjectRef, client.config.inline_bytes)
    except ArgumentsTooLarge:
        # For several actors the arguments are stored, and copied to their node once.
        far = _dump_far(args, kwargs) if len(actors) == 1 and client.takes_far(actors[0]) else None
        if far is not None:
            return far[0], far[1], naming_refs(options, far[2]) if far[2] else options, held
        args, kwargs, held = _store_large(client, args, kwargs, bool(actors))
        arguments, dependencies, contained = dump_arguments(args, kwargs, ObjectRef)
        size = len(arguments) + OBJECT_BYTES * (len(dependencies) + len(contained))
        if size > CALL_BYTES_MAX:
            raise OptionError(
                f"the arguments of one call, with the ids of its refs, have at most {CALL_BYTES_MAX:,} bytes when the large ones are "
                f"stored, not {size:,}: put them into a list, and pass a ref to that (zf.put)"
            ) from None
    return arguments, dependencies, naming_refs(options, contained) if contained else options, held


def _dump_far(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, tuple[bytes, ...], tuple[bytes, ...]] | None:
    """Return a call's arguments as they travel to another node; None if they are too large."""
    try:
        return dump_arguments(args, kwargs, ObjectRef, FAR_BYTES_MAX)
    except ArgumentsTooLarge:
        return None


def naming_refs(options: Pairs | None, contained: tuple[bytes, ...]) -> Pairs | None:
    """Return a call's options with these objects among those that it names."""
    if not contained:
        return options
    others = tuple(pair for pair in options or () if pair[0] != "contains")
    named: tuple[bytes, ...] = option(options, "contains", ())
    return (*others, ("contains", tuple(dict.fromkeys(named + contained))))


def _store_large(
    client: ClientInterface, args: tuple[Any, ...], kwargs: dict[str, Any], of_actor: bool
) -> tuple[tuple[Any, ...], dict[str, Any], list[ObjectRef]]:
    """Store large arguments: each over ``inline_bytes``, and the largest others while the total is too large."""
    for name in kwargs:
        check_length("the name of an argument", name)
    values: dict[int, tuple[str, SerializedValue]] = {}
    for name, value in [*((f"args[{index}]", value) for index, value in enumerate(args)), *kwargs.items()]:
        if type(value) is not ObjectRef and id(value) not in values:
            values[id(value)] = name, serialize(value, name)
    limit = client.config.inline_bytes
    total = sum(serialized.size for _, serialized in values.values())
    stored: dict[int, ObjectRef] = {}
    for key, (name, serialized) in sorted(values.items(), key=lambda entry: -entry[1][1].size):
        if serialized.size <= limit and total <= client.config.row_bytes:
            break
        try:
            argument_sent(name, serialized)
            stored[key] = ObjectRef(client.put(serialized, False, True) if of_actor else client.put(serialized, False), client)
        except ObjectStoreError as error:
            raise type(error)(f"{name} has no place: {error}", **error.facts) from None
        total -= serialized.size
    swapped = tuple(stored.get(id(value), value) for value in args)
    return swapped, {name: stored.get(id(value), value) for name, value in kwargs.items()}, list(stored.values())


for _kind in (RemoteFunction, StreamingFunction, DynamicFunction):
    register_without_data(_kind)
