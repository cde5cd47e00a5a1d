"""Actors: the result of ``@zf.remote`` on a class, and the handles of its instances.

A task creates an actor. A handle is a ref to that task's value, with the methods' names (see ``methods``): it is counted, pickled and
passed on like a ref.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, GenericAlias
from typing import TYPE_CHECKING, Any, Generic, NoReturn, cast, overload

import msgpack

from zfabric.adapters.namespaces import register_without_data
from zfabric.api.errors import a, check_flag, near
from zfabric.api.generators import ObjectRefGenerator
from zfabric.api.lifecycle import connected
from zfabric.api.methods import BUILT_IN, Blueprint, Method, methods_of, signature_of
from zfabric.api.options import (
    NAMING,
    Pairs,
    check_checkpoints,
    check_lightweight,
    check_streams,
    checked_actor,
    checked_method,
    copying,
    group_in,
    is_unordered,
    naming,
    pairs_of_method,
    runs_several,
)
from zfabric.api.refs import ObjectRef, UncountedRef, owner_of
from zfabric.api.remote_function import ExportedFunction, dump_call, naming_refs
from zfabric.api.repeats import function_sent
from zfabric.api.signatures import fit, misfit, shape_of, shown
from zfabric.api.strategies import check_place
from zfabric.api.types import Instance_co, Parameters, R
from zfabric.exceptions import ActorNameTakenError, ActorNotFoundError, ArgumentTypeError, OptionError
from zfabric.protocol.ids import FIRST_RETURN, TASK_BYTES, call_value, short
from zfabric.protocol.names import check_length, is_text
from zfabric.protocol.options import LOGGED, Terms, option
from zfabric.runtime import interface
from zfabric.runtime.interface import ClientInterface

_FAREWELLS = ("__ray_shutdown__", "__exit__", "__del__")
"""Methods that an instance runs at a clean end."""

_LOOKED_UP = frozenset({"_signature", "_blueprint", "_export", "__name__", "__qualname__", "__wrapped__"})
"""Attributes of a remote class that are computed when the class is inspected."""
_OWN = _LOOKED_UP | {"_kind", "_options"}
"""Attributes of a remote class that are not the wrapped class's."""


def _is_static(kind: type, name: str) -> bool:
    import inspect  # Programs without actors start sooner without it.

    return isinstance(inspect.getattr_static(kind, name), staticmethod)


def _of_instances(kind: type, function: FunctionType) -> Callable[..., Any]:
    """Return a method as the class has it, to be called with an instance; its ``.remote`` raises an error with the correct form."""

    @functools.wraps(function)
    def method(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        name = kind.__qualname__
        raise TypeError(f"{name}.{function.__name__} is of no actor: make an actor with {name}.remote(...), and call that one's methods")

    method.remote = method.options = refuse  # type: ignore[attr-defined]  # Functions take any attribute.
    return method


class ActorClass(Generic[Parameters, Instance_co]):
    """A class whose instances are actors. Made by ``zf.remote``.

    - ``num_cpus``, ``num_gpus``, ``memory`` (bytes), ``resources`` (a dict): the demand, held until the actor ends.

    - ``name``, ``namespace``, ``get_if_exists``: for ``zf.get_actor``. ``lifetime="detached"``: outlive all handles and the program.

    - ``max_restarts`` (0; -1 for no limit): restarts after the loss of its process; ``max_task_retries``: attempts of calls that it was
    running.

    - ``checkpoint_every=N``: log calls, and replay them after a restart.

    - ``max_concurrency``: calls at once, in threads or, if a method is ``async def``, in an event loop; ``concurrency_groups``: such limits
    by name, for methods that name a group (``zf.method``); ``max_pending_calls``: of one caller.

    - ``runtime_env``: as for functions. ``lightweight=True``: share a process with others.

    >>> import zfabric as zf
    >>> @zf.remote
    ... class Counter:
    ...     def __init__(self, start=0):
    ...         self.value = start
    ...     def add(self, amount=1):
    ...         self.value += amount
    ...         return self.value
    >>> counter = Counter.remote(10)
    >>> zf.get([counter.add.remote(), counter.add.remote(5)])
    [11, 16]

    With ``checkpoint_every=N`` (and ``max_restarts``) an actor survives its process, unnoticed by callers. Calls are logged before their
    results leave; after N calls a checkpoint is taken: the pickled actor, or what its ``__zf_save__(self)`` returns. A restart loads it
    without ``__init__`` (by ``__zf_load__(self, state)``, if there is one), and runs later calls again, one by one. With 0 there are no
    checkpoints: ``__init__`` and all calls run again.

    Concurrent calls have no order to run again in. So with ``max_concurrency`` above 1, concurrency groups or ``async def`` methods there
    is no log, and effects of calls after the checkpoint are lost; a warning, and ``zf.explain``, say of how many. The checkpoint is taken
    once N calls have ended and none runs, ``readonly`` ones apart; new calls are held back for the setting ``quiesce_seconds`` at most.

    >>> lasting = zf.remote(max_restarts=-1, checkpoint_every=100)(Counter._kind).remote()
    >>> zf.get(lasting.add.remote(7))
    7
    >>> zf.kill(lasting, no_restart=False)
    >>> zf.get(lasting.add.remote(1))
    8
    """

    def __init__(self, kind: type, options: Mapping[str, Any]) -> None:
        self._kind = kind
        self._options = dict(options)
        self._look()

    def _look(self) -> None:
        """Inspect the class: collect its methods, and check that its options fit."""
        import inspect  # As above.

        kind, options = self._kind, self._options
        if options.get("lightweight"):
            check_lightweight(options, kind)
        self._signature = signature_of(kind)
        check_checkpoints(kind, options)
        keeps = options.get("checkpoint_every") is not None
        unlogged = keeps and runs_several(kind, options)
        logged = keeps and not unlogged
        retries = LOGGED if logged else options.get("max_task_retries") or 0
        groups = tuple(options.get("concurrency_groups") or ())
        pending, methods = max(0, options.get("max_pending_calls") or 0), methods_of(kind, retries, copying(options))
        for each in methods:
            check_streams(f"{kind.__qualname__}.{each.name}", logged, each.readonly, each.options)
        name, module, doc, unordered = kind.__qualname__, kind.__module__, inspect.getdoc(kind) or "", is_unordered(kind, options)
        blueprint = self._blueprint = Blueprint(name, module, doc, methods, retries, pending, groups, keeps, unordered)
        if groups:
            self._check_groups()
        readonly = tuple(each.name for each in (*methods, *BUILT_IN.values()) if each.readonly)
        said = {"readonly": readonly, "unlogged": unlogged, "farewell": any(hasattr(kind, name) for name in _FAREWELLS)}
        try:
            packed = msgpack.packb(blueprint)
        except UnicodeEncodeError as error:
            raise OptionError(f"{kind.__qualname__}: {error.object!r}, in a name or a docstring, is no text (it has no UTF-8)") from None
        shared = {name: value for name, value in options.items() if name not in NAMING}
        self._export = ExportedFunction(kind, {**shared, **said}, packed)
        functools.update_wrapper(cast(Any, self), kind, updated=())

    def __getstate__(self) -> dict[str, Any]:
        return {"_kind": self._kind, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Do not inspect the class yet: a recursive one is unpickled before it is complete.
        self.__dict__.update(state)

    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
            """Raise TypeError: an actor is created with ``.remote(...)``."""
            name = self._kind.__qualname__
            raise TypeError(
                f"{name} is a remote class: write {name}.remote(...) to make an actor, or {name}._kind(...) for a plain instance here"
            )

    def __repr__(self) -> str:
        return f"ActorClass({self._kind.__qualname__})"

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item: Any) -> GenericAlias:
            return GenericAlias(cls, item)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> NoReturn:
        name = self._kind.__qualname__
        raise TypeError(
            f"{name} is a remote class, of which there are no subclasses: make it a plain class, and what inherits from it remote"
        )

    def __getattr__(self, name: str) -> Any:
        if name in _LOOKED_UP and "_kind" in vars(self) and "_export" not in vars(self):
            self._look()
            return getattr(self, name)
        if "_kind" not in vars(self) or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)  # It is being unpickled, copied or inspected.
        kind = self._kind
        try:
            found = getattr(kind, name)
        except AttributeError:
            text = f"{self!r} has no {name!r}{near(name, dir(kind))}; make an actor with .remote(...), and call that one's methods"
            raise AttributeError(text, name=name, obj=self) from None
        return _of_instances(kind, found) if isinstance(found, FunctionType) and not _is_static(kind, name) else found

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the wrapped class, for its methods and later actors."""
        if name in _OWN or (name.startswith("__") and name.endswith("__")):
            object.__setattr__(self, name, value)
        else:
            setattr(self._kind, name, value)
            self._forget()

    def __delattr__(self, name: str) -> None:
        delattr(self._kind, name)
        self._forget()

    def _forget(self) -> None:
        """Discard what was derived from the class, which has changed."""
        for name in ("_export", "_blueprint", "_signature"):
            vars(self).pop(name, None)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._kind)})

    def options(self, **options: Any) -> ActorClass[Parameters, Instance_co]:
        """Return the same class with other ``options`` for actors created through it; None resets one. Raises OptionError."""
        wanted = checked_actor(options)
        merged = {**self._options, **wanted}
        if not NAMING.issuperset(wanted):
            return ActorClass(self._kind, merged)
        export = self._export
        named = ActorClass.__new__(type(self))  # The wrapped class is inspected and pickled once.
        vars(named).update(vars(self), _options=merged, _export=export)
        return named

    @overload
    def remote(self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> ActorHandle[Instance_co]: ...
    @overload
    def remote(self, first: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> ActorHandle[Instance_co]: ...
    @overload
    def remote(self, first: Any, second: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> ActorHandle[Instance_co]: ...
    @overload
    def remote(self, first: Any, second: Any, third: ObjectRef[Any], /, *args: Any, **kwargs: Any) -> ActorHandle[Instance_co]: ...
    def remote(self, /, *args: Any, **kwargs: Any) -> ActorHandle:
        """Create an actor; return its handle at once, while ``__init__`` runs in the actor's process.

        Arguments that are refs arrive as their values. A detached actor's handle is returned once the head knows it. Raises TypeError if
        the arguments do not fit, and ActorNameTakenError if a living actor has the name. If ``__init__`` fails, every call raises
        ActorDiedError with its error as cause.
        """
        client = connected()
        self._check_groups()
        check_place(self._options, client, self._kind.__qualname__, ())
        try:
            if self._signature is not None:
                fit(self._signature, args, kwargs)
        except TypeError as error:
            takes = shown(self._signature, list(self._signature.parameters.values())) if self._signature is not None else ""
            raise TypeError(f"{self._kind.__qualname__}.remote(): {error}; it takes {takes}") from None
        taken = self._taken(client, None)
        if taken is not None:
            return taken
        self._export.bind(client)
        function_sent(self._kind, self._export.name, self._export.size)
        named = naming_refs((*naming(self._options), *copying(self._options)) or None, self._export.packages + self._export.captured)
        arguments, dependencies, options, _held = dump_call(client, args, kwargs, named)
        if self._options.get("lifetime") == "detached":
            actor = client.create_detached(self._export.function_id, arguments, dependencies, options)
        else:
            actor = client.submit(self._export.function_id, arguments, dependencies, options, 1)
        made = ActorHandle(ObjectRef(actor, client), self._blueprint)
        taken = self._taken(client, made)  # Another process may have requested the name, too: the first one gets it.
        if taken is not None:
            client.get([actor], None)  # Its failure is known, and is not to be shown.
        return taken or made

    def _check_groups(self) -> None:
        """Raise OptionError if a method names an unknown concurrency group."""
        blueprint = self._blueprint
        for each in blueprint.methods:
            whose = f"{blueprint.class_name}, whose method {each.name} is to be of it,"
            group_in(option(each.options, "concurrency_group"), blueprint.groups, whose)

    def _taken(self, client: ClientInterface, made: ActorHandle | None) -> ActorHandle | None:
        """Return another living actor with this name. Raises ActorNameTakenError unless ``get_if_exists`` is set."""
        name = self._options.get("name")
        if name is None and self._options.get("get_if_exists"):
            raise OptionError("get_if_exists=True needs a name to look for: .options(name=...)")
        found = None if name is None else _find(client, name, self._options.get("namespace"), weak=False)
        if found is None or found == made:
            return None
        if not self._options.get("get_if_exists"):
            raise ActorNameTakenError(f"an actor is called {name!r} already; get_if_exists=True takes that one, zf.get_actor finds it")
        return found


class ActorMethod:  # noqa: D101 - its instances have docstrings of their own
    __slots__ = ("_blueprint", "_id", "_method", "_options", "_ref", "_returns", "_terms")

    def __init__(self, ref: ObjectRef, blueprint: Blueprint, terms: Terms, known: Method, options: Pairs) -> None:
        self._ref = ref  # Not its handle: the cycle would live until a garbage collection.
        self._id = ref.binary()[:TASK_BYTES]
        self._blueprint = blueprint
        self._terms = terms
        self._method = known
        self._options = options
        self._returns: int = option(options, "num_returns", 1)

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return f"{self._method.name}{self._method.signature}\n\n{self._method.doc}"

    def __getattr__(self, name: str) -> Any:
        """Return ``__signature__``, for ``inspect``."""
        if name in ActorMethod.__slots__:
            raise AttributeError(name)  # It is partly initialized.
        found = shape_of(self._method.signature) if name == "__signature__" else None
        if found is None:
            raise AttributeError(f"{self!r} has no {name!r}; it is called with .remote(...)", name=name, obj=self)
        return found

    def __repr__(self) -> str:
        return f"ActorMethod({self._blueprint.class_name}.{self._method.name}{self._method.signature})"

    def __hash__(self) -> int:
        return hash((self._id, self._method.name, self._options))

    def __eq__(self, other: object) -> bool:
        if type(other) is not ActorMethod:
            return NotImplemented
        same = (self._id, self._method.name, self._options) == (other._id, other._method.name, other._options)
        return same and self._ref._client is other._ref._client

    def __reduce__(self) -> tuple[Any, ...]:
        return _bound, (self._ref, tuple(self._blueprint), tuple(self._method), self._options)

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise TypeError: methods of actors are called with ``.remote(...)``."""
        raise TypeError(f"methods of actors are called with .remote(): write .{self._method.name}.remote(...)")

    def options(self, **options: Any) -> ActorMethod:
        """Return the same method with other options for its calls, as ``zf.method`` takes them."""
        blueprint = self._blueprint
        group_in(checked_method(options).get("concurrency_group"), blueprint.groups, blueprint.class_name)
        pairs = pairs_of_method(options, self._options, blueprint.retries)
        check_streams(self._method.name, blueprint.retries == LOGGED, self._method.readonly, pairs)
        return ActorMethod(self._ref, blueprint, self._terms, self._method, pairs)

    def remote(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the method; return its ref at once: a list of refs for ``num_returns`` above 1, None for 0, a generator of refs for
        "streaming".

        Calls of one caller (the program, a task, a method) run in submission order, separately for each concurrency group; in threaded and
        ``async def`` actors, each as soon as its arguments exist. Raises TypeError if the arguments do not fit.
        """
        known, ref, returns = self._method, self._ref, self._returns
        client = interface._current
        if client is None or client is not ref._client:
            client = owner_of(ref, "the actor ended")
        if kwargs or not known.least <= len(args) <= known.most:
            self._check(args, kwargs)
        extra = self._options or None
        if not args and not kwargs:
            first = client.call(self._id, known.name, b"", (), extra, returns, self._terms)
        else:
            arguments, dependencies, options, _held = dump_call(client, args, kwargs, extra, (self._id,))
            first = client.call(self._id, known.name, arguments, dependencies, options, returns, self._terms)
        return self._results(first, client)

    def _results(self, first: bytes, client: ClientInterface) -> Any:
        """What ``remote`` returns for a call with this first value."""
        if self._returns != 1:
            return [ObjectRef(call_value(first[:TASK_BYTES], index), client) for index in range(self._returns)] or None
        result = ObjectRef(first, client)
        ahead = None if not self._options else option(self._options, "stream")
        return result if ahead is None else ObjectRefGenerator(result, ahead or client.config.stream_buffered)

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """This test is exact; the caller's is only a quick one."""
        known = self._method
        if known.signature == "(...)":
            return
        if not kwargs and known.least <= len(args) <= known.most:
            return
        text = f"{self._blueprint.class_name}.{known.name}.remote()"
        problem = misfit(known.signature, args, kwargs)
        if problem:
            raise TypeError(f"{text}: {problem}; it takes {known.signature}")


class ActorHandle(Generic[Instance_co]):
    """A handle to an actor: its methods are attributes, each with ``.remote(...)``. Made by ``remote`` of its class.

    An actor ends when its last handle is released and all calls have run, and with its program unless detached. Then ``__ray_shutdown__``,
    ``__exit__`` and ``__del__`` run; not if it is killed. Handles from ``get_actor`` and ``current_actor`` are weak and do not count.
    ``dir(handle)`` lists the methods; ``help(handle.method)`` shows parameters.

    >>> import zfabric as zf
    >>> @zf.remote
    ... class Greeter:
    ...     def greet(self, name="you"):
    ...         return f"hello {name}"
    >>> handle = Greeter.remote()
    >>> handle.greet
    ActorMethod(Greeter.greet(name='you'))
    >>> zf.get(handle.greet.remote("world"))
    'hello world'
    """

    def __init__(self, ref: ObjectRef, blueprint: Blueprint) -> None:
        self._ref = ref
        self._id = ref.binary()[:TASK_BYTES]
        self._blueprint = blueprint
        self._terms = Terms(blueprint.retries, blueprint.pending, blueprint.keeps, blueprint.unordered)
        self._methods = {known.name: known for known in blueprint.methods}
        self.__doc__ = blueprint.doc or type(self).__doc__

    def _connect(self) -> ClientInterface:
        """Return the client that sends the calls. In another cluster, the same id may name another actor."""
        return owner_of(self._ref, "the actor ended")

    @property
    def _actor_id(self) -> bytes:
        """The actor's id; ``repr`` of the handle has the form of the command line."""
        return self._id

    def __getattr__(self, name: str) -> ActorMethod:
        known = self.__dict__.get("_methods", {})
        found = known.get(name) or BUILT_IN.get(name)
        if found is None:
            class_name = self._blueprint.class_name if "_blueprint" in self.__dict__ else "the actor"
            raise AttributeError(f"{class_name} has no method {name!r}{near(name, known)}", name=name, obj=self)
        bound = self.__dict__[name] = ActorMethod(self._ref, self._blueprint, self._terms, found, found.options)
        return bound  # From now on an ordinary attribute, past ``__getattr__``.

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item: Any) -> GenericAlias:
            return GenericAlias(cls, item)

        def __setattr__(self, name: str, value: Any) -> None:
            """Raise an error: this would have no effect on the actor's process."""
            if not name.startswith("_") and "_blueprint" in vars(self):
                kind = vars(self)["_blueprint"].class_name
                text = f"a handle has no attributes of its actor: give {kind} a method that sets {name!r}, and call that with .remote(...)"
                raise AttributeError(text, name=name, obj=self)
            object.__setattr__(self, name, value)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._methods]

    def __repr__(self) -> str:
        return f"ActorHandle({self._blueprint.class_name}, {short(self._id)})"

    def _repr_html_(self) -> str | None:
        from zfabric.api.explanations import html_of  # Only notebooks need it.

        return html_of(self, self._connect, self._id)

    def __hash__(self) -> int:
        return hash(self._id)

    def __eq__(self, other: object) -> bool:
        return type(other) is ActorHandle and self._id == other._id and self._ref._client is other._ref._client

    def __reduce__(self) -> tuple[Any, ...]:
        return _handle, (self._ref, tuple(self._blueprint))


def typed(handle: ActorHandle[R]) -> R:
    """Return ``handle``, typed as an instance of its class: methods marked ``@zf.method`` have a typed ``remote``, others are ``Any``.

    >>> import zfabric as zf
    >>> @zf.remote
    ... class Counter:
    ...     @zf.method
    ...     def add(self, amount: int) -> int:
    ...         return amount
    >>> counter = zf.typed(Counter.remote())
    >>> zf.get(counter.add.remote(2))
    2
    """
    if not isinstance(handle, ActorHandle):
        raise ArgumentTypeError(f"typed() takes the handle of an actor, not {a(handle)}")
    return handle  # type: ignore[return-value] # what it is there for


def _handle(ref: ObjectRef, blueprint: tuple[Any, ...]) -> ActorHandle:
    class_name, module, doc, methods, *terms = blueprint
    return ActorHandle(ref, Blueprint(class_name, module, doc, tuple(Method(*each) for each in methods), *terms))


def _bound(ref: ObjectRef, blueprint: tuple[Any, ...], known: tuple[Any, ...], options: Pairs) -> ActorMethod:
    """Restore a copied or unpickled method."""
    handle = _handle(ref, blueprint)
    return ActorMethod(ref, handle._blueprint, handle._terms, Method(*known), options)


def _find(client: ClientInterface, name: str, namespace: str | None, weak: bool) -> ActorHandle | None:
    answer = client.query("actor", name, client.namespace if namespace is None else namespace)
    if answer is None:
        return None
    actor_id, blueprint = answer
    return handle_of(actor_id, blueprint, weak)


def handle_of(actor_id: bytes, blueprint: bytes, weak: bool = True) -> ActorHandle:
    """Return another handle to an actor. A weak one does not retain it."""
    made = UncountedRef if weak else ObjectRef
    return _handle(made(actor_id + FIRST_RETURN), msgpack.unpackb(blueprint, use_list=False))


def get_actor(name: str, namespace: str | None = None) -> ActorHandle:
    """Return a weak handle to the actor with this ``name``, in this process's namespace, or in ``namespace``.

    Raises ActorNotFoundError (a ValueError) if there is none. The handle does not retain the actor; once that has ended, calls raise
    ActorDiedError.

    >>> import zfabric as zf
    >>> @zf.remote
    ... class Named:
    ...     def hello(self):
    ...         return "here I am"
    >>> kept = Named.options(name="found by name").remote()
    >>> zf.get(zf.get_actor("found by name").hello.remote())
    'here I am'
    """
    if not isinstance(name, str) or not name:
        raise ArgumentTypeError(f"get_actor() takes the name of an actor, not {a(name)}")
    if not (namespace is None or isinstance(namespace, str)):
        raise TypeError(f"get_actor() takes a namespace that is a str, not {a(namespace)}")
    check_length("get_actor(): a name", name)
    check_length("get_actor(): a namespace", namespace or "")
    if not is_text(name + (namespace or "")):
        raise ActorNotFoundError(f"no actor is called {name!r} in namespace {namespace!r}: names are text in UTF-8")
    client = connected()
    found = _find(client, name, namespace, weak=True)
    if found is None:
        where = client.namespace if namespace is None else namespace
        raise ActorNotFoundError(f"no living actor is called {name!r} in {f'namespace {where!r}' if where else 'the default namespace'}")
    return found


def kill(actor: ActorHandle, *, no_restart: bool = True) -> None:
    """End the process of ``actor`` at once, without waiting for its calls; with ``no_restart=False`` it restarts by its policy.

    A lightweight actor ends alone. Its calls raise ActorDiedError, or ActorUnavailableError if it restarts. Raises ArgumentTypeError (a
    TypeError and a ValueError) for an argument that is not a handle.

    >>> import zfabric as zf
    >>> @zf.remote
    ... class Idle:
    ...     def ping(self):
    ...         return "pong"
    >>> idle = Idle.remote()
    >>> zf.kill(idle)
    >>> zf.get(idle.ping.remote())
    Traceback (most recent call last):
        ...
    zfabric.exceptions.ActorDiedError: ...
    """
    if not isinstance(actor, ActorHandle):
        raise ArgumentTypeError(f"kill() takes the handle of an actor, not {a(actor)}; zf.cancel(ref) stops a task")
    check_flag("no_restart", no_restart)
    actor._connect().kill_actor(actor._id, no_restart)


def exit_actor() -> NoReturn:
    """Inside an actor: end it for good. This call and waiting ones raise ActorDiedError.

    Threads and asyncio tasks may call it, too, unless the actor is lightweight. Raises TypeError elsewhere. Concurrent calls are
    interrupted as by ``zf.cancel``. The process exits after a moment (the setting ``leave_seconds``), so that results of its own calls
    reach their readers.

    >>> import zfabric as zf
    >>> @zf.remote
    ... class Once:
    ...     def leave(self):
    ...         zf.exit_actor()
    >>> zf.get(Once.remote().leave.remote())
    Traceback (most recent call last):
        ...
    zfabric.exceptions.ActorDiedError: it ended itself (exit_actor)
    """
    client = interface.current()
    if client is None:
        raise TypeError("exit_actor() is for methods of actors; this is none")
    client.exit_actor()


for _kind in (ActorClass, ActorHandle, ActorMethod):
    register_without_data(_kind)


def call_all(handles: Iterable[ActorHandle[Any]], method: str, /, *args: Any, **kwargs: Any) -> list[Any]:
    """Call a method of many actors with the same arguments; return what ``.remote`` would return for each, in order.

    ``handles`` are the actors', ``method`` is the method's name, ``args`` and ``kwargs`` are what it takes. They are pickled once, and
    calls to actors of one process are one message. Order, options, retries and errors are each actor's.

    Raises TypeError if one of ``handles`` is none, or the arguments do not fit, and AttributeError if an actor lacks the method; then none
    is called.

    >>> import zfabric as zf
    >>> @zf.remote(num_cpus=0, lightweight=True)
    ... class Shard:
    ...     def add(self, number):
    ...         return number + 1
    >>> shards = [Shard.remote() for _ in range(3)]
    >>> zf.get(zf.util.call_all(shards, "add", 1))
    [2, 2, 2]
    """
    methods: list[ActorMethod] = []
    for handle in handles:
        if not isinstance(handle, ActorHandle):
            raise TypeError(f"call_all(handles, method, ...) takes handles of actors, not {type(handle).__name__}")
        methods.append(getattr(handle, method))
    if not methods:
        return []
    for each in methods:
        each._check(args, kwargs)
    client = owner_of(methods[0]._ref, "the actor ended")
    if any(each._ref._client is not methods[0]._ref._client for each in methods):
        raise ValueError("call_all(handles, ...): the handles are of two clusters, the one before and the one that runs")
    ids = [each._id for each in methods]
    arguments, dependencies, names, _held = dump_call(client, args, kwargs, None, ids) if args or kwargs else (b"", (), None, [])
    inside: tuple[bytes, ...] = option(names, "contains", ())
    calls = [(each._id, naming_refs(each._options or None, inside), each._returns, each._terms) for each in methods]
    firsts = client.call_all(method, arguments, dependencies, calls)
    return [each._results(first, client) for each, first in zip(methods, firsts, strict=True)]
