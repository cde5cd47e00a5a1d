"""Packs exceptions in the worker that raised them, and loads them in the process that gets the value.

``pack_error`` makes a pickled tuple of texts, with the pickled exception inside: texts can be read even where the exception cannot be
loaded. ``load_error`` builds a ``TaskError`` that is also an instance of the raised class. It calls ``__new__``, since ``__init__`` has an
unknown signature, and copies the state.

An exception too large for a message becomes an object; the bytes have its id and a *cut* exception, in case the object had no room or is
lost.

A ``TaskError`` pickles as its original bytes. If a task raises one, another wraps it as ``error.cause``; each is an instance of the class
that was raised first. Exceptions behind the original (``error_links``) are behind the TaskError, and behind ``error.cause``.

``str(error)`` is the original's; if the class does not allow that, its name comes first. Place and remote traceback follow as a note.
"""

from __future__ import annotations

import pickle
import re
import reprlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from zfabric import exceptions
from zfabric.adapters import error_links, serialization
from zfabric.adapters.serialization import SerializedValue, deserialize, loads, note_reference, serialize_blindly, trying
from zfabric.exceptions import FabricError, TaskError
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.inside import refs_in, with_refs, without_refs
from zfabric.protocol.messages import OK

TRACEBACK_BYTES_MAX = 32 * 1024
"""Longest remote traceback or error text: small enough if a million tasks fail."""
ERROR_BYTES_MAX = 2**20
"""Largest pickled exception in messages, which reach every process with dependent tasks."""
ITEMS_BYTES_MAX = (64 * 1024, 1024)
"""Largest argument or attribute of a cut exception; the second value counts if the first leaves the exception too large."""

LINKED_TEXT_MAX = 1024
NODE_DIGITS = 8

_PACKAGE = __file__.rpartition("/adapters/")[0] + "/"
unfit: tuple[type[BaseException], ...] = (StopIteration, StopAsyncIteration, KeyboardInterrupt, SystemExit, GeneratorExit)
"""Classes that a TaskError never inherits from, nor from ``asyncio.CancelledError``: they would end the reader's generator, coroutine or
program. ``as_ray`` removes the first two, since programs of Ray read a remote iterator up to ``except StopIteration``.
"""
_READ_ONLY = re.compile(
    r"\b(array|destination|base|byte-swapped) is read-?only|read-?only (array|memory)|(buffer|object) is not writable"
    r"|cannot set WRITEABLE flag|contiguous, writable|it does not own its data"
)
"""Said of read-only memory, or of arrays that may not be resized, by NumPy, pandas, Cython and memoryviews."""
_WHERE_READ_ONLY = (ValueError, TypeError, BufferError)
_HINT = (
    "Arrays and data frames that come from zfabric (arguments, and what zf.get returns) are read-only: take x = x.copy(), or have "
    "arguments arrive as writable copies: @zf.remote(copy=True); zf.get(ref, copy=True) returns one."
)
_CAUSES_MAX = 10
"""Most causes of an error to look at: pandas raises others from NumPy's."""
_THEIRS = (Exception, SystemExit, GeneratorExit)
"""What user code may raise while its exceptions are pickled; not Ctrl-C and interrupts of tasks."""


class ObjectClient(Protocol):
    """The client's methods that this module uses."""

    def put(self, value: Any, durable: bool) -> bytes:
        """Store a value; return its object id, which has one ref."""

    def get(self, object_ids: Sequence[bytes], timeout: float | None) -> Sequence[Any]:
        """Wait for all of these objects."""

    def add_reference(self, object_id: bytes) -> None:
        """Count one more ref in this process."""

    def drop_reference(self, object_id: bytes) -> None:
        """Count one ref less. Safe in finalizers."""


def _no_client() -> ObjectClient | None:
    return None


client: Callable[[], ObjectClient | None] = _no_client
"""Returns this process's client, or None. The runtime sets it."""


class HeldRefs:
    """Refs to objects, dropped with this instance."""

    __slots__ = ("_client", "_ids")

    def __init__(self, object_ids: tuple[bytes, ...]) -> None:
        self._ids = object_ids
        self._client = client() if object_ids else None
        if self._client is not None:
            for each in self._ids:
                self._client.add_reference(each)

    def note(self) -> None:
        """Note the refs inside the value being pickled, which contains the packed error."""
        for each in self._ids:
            if not note_reference(each) and self._client is not None:
                self._client.add_reference(each)  # It leaves the fabric, as other refs do.

    def __del__(self) -> None:
        try:
            for each in self._ids:
                self._client.drop_reference(each)  # type: ignore[union-attr]
        except Exception:  # No client, or ``__init__`` failed. A finalizer has no caller to raise to.
            pass


# --- where it was raised ----------------------------------------------------------------------------------------------------


def pack_error(exception: BaseException, facts: Mapping[str, Any]) -> tuple[bytes, HeldRefs]:
    """Pack any exception. Return its bytes, and its refs, which the caller retains until another process has them. ``facts`` are plain
    data: function, node, pid, attempt, …
    """
    _hint(exception)
    contained: dict[bytes, None] = {}
    with trying():
        data, whole, why_cut = _packed(exception)
        linked = error_links.rows_of(_unwrapped(exception), partial(_pack_linked, contained))
    payload = pickle.dumps(
        (
            _name_of(exception),
            _text_of(exception),
            _traceback_of(exception, notes=data is None or isinstance(exception, TaskError)),
            dict(facts),
            None if data is None else data.to_bytes(),
            whole,
            why_cut,
            linked,
        ),
        5,
    )
    named = {**dict.fromkeys(data.contained if data is not None else ()), **dict.fromkeys((whole,) if whole else ()), **contained}
    refs = tuple(named)
    held, owner = HeldRefs(refs), client()
    if whole and owner is not None:
        owner.drop_reference(whole)  # The ref that came with ``put``.
    return with_refs(payload, refs), held


def _hint(exception: BaseException) -> None:
    """Add advice to errors whose text has none, such as numpy's for read-only arrays of the arena."""
    each: BaseException | None = exception
    for _ in range(_CAUSES_MAX):
        if each is None or isinstance(each, TaskError) or _HINT in getattr(each, "__notes__", ()):
            return
        text = each.args[0] if type(each) in _WHERE_READ_ONLY and each.args else None
        if isinstance(text, str) and _READ_ONLY.search(text):
            exception.add_note(_HINT)
            return
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _raised_class(exception: BaseException) -> type[BaseException]:
    """Return the class that was raised first, through all TaskErrors."""
    found = vars(exception).get("_user_class") if isinstance(exception, TaskError) else None
    return found if isinstance(found, type) else type(exception)


def _name_of(exception: BaseException) -> str:
    if isinstance(exception, TaskError) and "_class_name" in vars(exception):
        return str(vars(exception)["_class_name"])
    return _name_of_class(_raised_class(exception))


def _name_of_class(kind: type[BaseException]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _text_of(exception: BaseException) -> str:
    if isinstance(exception, TaskError) and "_text" in vars(exception):
        return _cut_text(str(vars(exception)["_text"]))
    try:
        return _cut_text(serialization.as_user(str, exception))
    except _THEIRS:  # A broken __str__ must not hide the error.
        return "<its text cannot be had>"


def _traceback_of(exception: BaseException, notes: bool) -> str:
    """Format the traceback without the fabric's frames at its top, with the exception's ``notes`` unless they travel with it."""
    import traceback  # Only errors need it.

    trace = exception.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    try:
        whole: Any = serialization.as_user(traceback.TracebackException, type(exception), exception, trace)
        if not notes:
            whole.__notes__ = None
        text = "".join(whole.format())
    except _THEIRS:  # Formatting runs the user's __str__ and __repr__.
        text = "".join(traceback.format_tb(trace)) + type(exception).__qualname__ + "\n"
    return _cut_text(text)


def _cut_text(text: str, most: int = TRACEBACK_BYTES_MAX) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n  ... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _packed(exception: BaseException) -> tuple[SerializedValue | None, bytes, str]:
    """Return (exception in the best form that survives a round trip or None, object id, reason).

    Forms: the exception, its class and state, a part of its state. A cut exception comes with the id of the whole, or why there is none.
    """
    exception = _unwrapped(exception)
    data = _best(exception)
    if data is not None and data.size <= ERROR_BYTES_MAX:
        return data, b"", ""
    whole, why_cut = _store(data) if data is not None else (b"", "it cannot be unpickled")
    return _best_cut(exception, ERROR_BYTES_MAX), whole, why_cut


def _unwrapped(exception: BaseException, most: int = ERROR_BYTES_MAX // 2) -> BaseException:
    """Return the cause of a TaskError with more than ``most`` bytes (errors of task chains are nested), else the exception."""
    while isinstance(exception, TaskError) and len(vars(exception).get("_payload", b"")) > most:
        cause = vars(exception).get("cause")
        if not isinstance(cause, BaseException):
            break
        exception = cause
    return exception


def _best(exception: BaseException) -> SerializedValue | None:
    kind, arguments, state = type(exception), _arguments_of(exception), vars(exception)
    candidates: list[Callable[[], Any]] = [
        lambda: exception,
        lambda: _Remains(kind, arguments, state),
        lambda: _Remains(kind, _taken_apart(arguments), _taken_apart(state)),
        lambda: _Remains(kind, _safe(arguments), _safe(state)),
    ]
    return _first_whole(candidates, kind)


def _best_cut(exception: BaseException, size_max: int) -> SerializedValue | None:
    kind, arguments, state = type(exception), _arguments_of(exception), vars(exception)
    for most in ITEMS_BYTES_MAX:
        data = _first_whole([partial(_Remains, kind, _cut(arguments, most), _cut(state, most))], kind)
        if data is None or data.size <= size_max:
            return data
    return None


def _pack_linked(contained: dict[bytes, None], exception: BaseException, size_max: int) -> error_links.Packed:
    """Pack an exception behind another, in at most ``size_max`` bytes. Add its refs to ``contained``."""
    exception = _unwrapped(exception, size_max)
    data = _best(exception)
    if data is not None and data.size > size_max:
        data = _best_cut(exception, size_max)
    if data is not None:
        contained.update(dict.fromkeys(data.contained))
    text = _cut_text(_text_of(exception), LINKED_TEXT_MAX)
    return _name_of(exception), text, None if data is None else data.to_bytes()


def _store(data: SerializedValue) -> tuple[bytes, str]:
    owner = client()
    if owner is None:
        return b"", "this process is part of no cluster"
    try:
        return owner.put(data.naming_refs(), False), ""
    except (FabricError, OSError) as error:  # Usually there is no room.
        return b"", f"{type(error).__name__}: {error}"


def _first_whole(candidates: Iterable[Callable[[], Any]], kind: type[BaseException]) -> SerializedValue | None:
    """Return the first candidate that is an exception of this class after a round trip, or None."""
    for candidate in candidates:
        try:
            data = serialize_blindly(candidate())
            if issubclass(kind, _PlainTaskError) or isinstance(loads(data), kind):  # A TaskError was made from such bytes.
                return data
        except _THEIRS:  # Pickling runs user code. The next form may work.
            continue
    return None


def _taken_apart(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _apart(item) for name, item in value.items()}
    return tuple(_apart(item) for item in value)


def _apart(value: Any) -> Any:
    if isinstance(value, BaseException) and not isinstance(value, _PlainTaskError):
        return _Remains(type(value), _taken_apart(_arguments_of(value)), _taken_apart(vars(value)))
    if type(value) in (list, tuple) and any(isinstance(each, BaseException) for each in value):
        return type(value)(_apart(each) for each in value)  # As in a group.
    return value


def _cut(value: Any, most: int) -> Any:
    if isinstance(value, dict):
        return {name: _cut_item(item, most) for name, item in value.items()}
    return tuple(_cut_item(item, most) for item in value)


def _cut_item(value: Any, most: int) -> Any:
    import cloudpickle  # Only large errors need it.

    if type(value) is str:
        return _cut_text(value, min(most, TRACEBACK_BYTES_MAX))
    if type(value) is list and all(type(each) is str for each in value):  # Such as notes.
        return [_cut_text(each, most // 4) for each in value[:8]]
    if isinstance(value, BaseException):
        return _Remains(type(value), _cut(_arguments_of(value), most), _cut(vars(value), most))
    if type(value) in (list, tuple) and len(value) <= GROUP_MAX and any(isinstance(each, BaseException) for each in value):
        return type(value)(_cut_item(each, most) for each in value)  # As in a group.
    try:
        if len(cloudpickle.dumps(value, 5)) <= most:
            return value
    except _THEIRS:  # as above
        pass
    if type(value) is bytes:
        return value[: most // 2]
    return _cut_text(reprlib.repr(value) if type(value) in _CONTAINERS else _repr(value), most // 2)


GROUP_MAX = 16
"""Most exceptions of a too large group; a group with more loses all."""
_CONTAINERS = (list, tuple, dict, set, frozenset)


def _safe(value: Any) -> Any:
    from zfabric.adapters.unpicklable import picklable  # Only errors that cannot be pickled need it.

    if isinstance(value, dict):
        return {name: item if picklable(item) else _repr(item) for name, item in value.items()}
    return tuple(item if picklable(item) else _repr(item) for item in value)


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:  # __repr__ is user code.
        return f"<{type(value).__qualname__}>"


class _Remains:
    """Pickles as an exception of a class, arguments and attributes, without calling ``__init__``."""

    def __init__(self, kind: type[BaseException], arguments: tuple[Any, ...], state: dict[str, Any]) -> None:
        self.parts = (kind, arguments, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return _assemble, self.parts


def _assemble(kind: type[BaseException], arguments: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    exception = BaseException.__new__(kind) if kind.__new__ is BaseException.__new__ else kind.__new__(kind, *arguments)
    _set_arguments(exception, arguments)
    vars(exception).update(state)
    return exception


_ARGUMENTS: Any = vars(BaseException)["args"]
"""A subclass may shadow the name, or forbid attributes."""


def _arguments_of(exception: BaseException) -> tuple[Any, ...]:
    arguments: tuple[Any, ...] = _ARGUMENTS.__get__(exception)
    return arguments


def _set_arguments(exception: BaseException, arguments: tuple[Any, ...]) -> None:
    _ARGUMENTS.__set__(exception, arguments)


# --- where it is asked for ------------------------------------------------------------------------------------------------------


def load_error(data: bytes | memoryview) -> TaskError:
    """Load the TaskError that ``pack_error`` packed, as an instance of the raised class too if possible.

    Waits for an exception that is an object of its own.
    """
    payload = bytes(data)
    name, text, traceback_text, facts, pickled, whole, why_cut, linked = pickle.loads(without_refs(payload))
    held = HeldRefs(refs_in(payload))
    cause = None
    if whole:
        cause, why_cut = _fetched(whole)
    if cause is None and pickled is not None:
        cause = _loaded(pickled)
    if len(text) > TRACEBACK_BYTES_MAX and cause is not None and not why_cut:
        try:
            text = str(cause)  # The packed text was cut.
        except _THEIRS:  # As above.
            pass
    error = _combined(cause)
    user_class = _raised_class(cause) if cause is not None else TaskError
    vars(error).update(
        cause=cause,
        traceback_text=traceback_text,
        facts=facts,
        _text=text,
        _class_name=name,
        _user_class=user_class,
        _payload=payload,
        _held=held,
    )
    known = vars(error)
    known["_note"] = note = _note_of(traceback_text, facts, why_cut)
    own = vars(cause).get("__notes__") if cause is not None else None
    if isinstance(own, list):
        before = vars(cause).get("_note")
        known["__notes__"] = [*(each for each in own if each is not before), note]
    else:
        known["__notes__"] = [note]
    error_links.restore(linked, error, cause, _load_linked)
    error_links.note_loaded(error)
    return error


def _load_linked(packed: error_links.Packed) -> BaseException:
    name, text, pickled = packed
    loaded = None if pickled is None else _loaded(pickled)
    return loaded if loaded is not None else FabricError(f"{name}: {text}" if text else name)


def told(payload: bytes, raised: bool) -> str:
    """Return the text about an unread error: one that a task has ``raised``, or a failure. Unpickles no user data."""
    if raised:
        name, text, traceback_text, facts, _, _, why_cut, _ = pickle.loads(without_refs(payload))
        return (
            f"{name}: {text}\n{_note_of(traceback_text, facts, why_cut)}" if text else f"{name}\n{_note_of(traceback_text, facts, why_cut)}"
        )
    kind, text, pairs = unpack_failure(payload)
    cause = dict(pairs).get("cause")
    return f"{kind}: {text}" + (f"\n{told(cause, True)}" if type(cause) is bytes else "")


def is_cancellation(payload: bytes) -> bool:
    """Whether an error is that of a cancelled task. Unpickles no user data."""
    name = pickle.loads(without_refs(payload))[0]
    return bool(name == _name_of_class(exceptions.TaskCancelledError))


def _fetched(whole: bytes) -> tuple[BaseException | None, str]:
    """Fetch an exception that is an object. Return (exception, "") or (None, reason)."""
    owner = client()
    if owner is None:
        return None, "this process is part of no cluster"
    try:
        outcome = owner.get((whole,), None)[0]
        if isinstance(outcome, bytes):
            return _exception_in(deserialize(outcome)), ""
        status, data, release = outcome
        if status != OK:
            return None, str(load_failure(data))
        return _exception_in(deserialize(data, release)), ""
    except _THEIRS as error:  # Lost, or without its module here. The cut one is used.
        return None, f"{type(error).__name__}: {error}"


def _loaded(pickled: bytes) -> BaseException | None:
    try:
        return _exception_in(deserialize(pickled))
    except _THEIRS:  # Without its module here, the texts are used.
        return None


def _exception_in(loaded: Any) -> BaseException | None:
    return loaded if isinstance(loaded, BaseException) else None


def _note_of(traceback_text: str, facts: Mapping[str, Any], why_cut: str) -> str:
    remote = traceback_text.rstrip().replace("\n", "\n  ")
    if why_cut:
        remote += f"\n  (what it held is cut down, since the whole exception could not be stored or fetched: {why_cut})"
    shown = {**facts, "node": str(facts["node"])[:NODE_DIGITS]} if "node" in facts else dict(facts)
    if isinstance(shown.get("attempt"), int):
        shown["attempt"] += 1  # Programs count from 0, people from 1.
    where = ", ".join(f"{name} {value}" for name, value in shown.items())
    return f"raised in {where or 'a task'}\n  {remote}"


_CLASSES: dict[type[BaseException], type[TaskError]] = {}


def _combined(cause: BaseException | None) -> TaskError:
    """Make a TaskError with the class and state of ``cause``, or a plain one if that is impossible."""
    kind = TaskError if cause is None else _raised_class(cause)
    if cause is not None and not issubclass(kind, (TaskError, *unfit)) and not _cancels(kind):
        arguments = _arguments_of(cause)
        try:
            made = _class_for(kind)
            # MemoryError takes instances from a store of its own, and makes none of a subclass with several bases.
            maker: Any = BaseException if issubclass(kind, MemoryError) else made
            error: TaskError = maker.__new__(made, *arguments)
            _set_arguments(error, arguments)
            _copy_state(cause, error, kind)
            if isinstance(error, kind):
                return error
        except _THEIRS:  # The class forbids subclasses or instances. The plain error has all facts.
            pass
    plain = _PlainTaskError.__new__(_PlainTaskError)
    plain.args = _arguments_of(cause) if cause is not None else ()
    return plain


def _cancels(kind: type[BaseException]) -> bool:
    """Whether an event loop takes this error for a cancellation of the waiting coroutine."""
    asyncio = sys.modules.get("asyncio.exceptions")
    return asyncio is not None and issubclass(kind, asyncio.CancelledError)


def _class_for(kind: type[BaseException]) -> type[TaskError]:
    known = _CLASSES.get(kind)
    if known is None:
        name = f"TaskError({kind.__qualname__})"
        namespace = {"__module__": TaskError.__module__, "__qualname__": name, "__doc__": TaskError.__doc__}
        known = _CLASSES[kind] = types.new_class(name, (_PlainTaskError, kind), exec_body=lambda body: body.update(namespace))
    return known


def _copy_state(cause: BaseException, error: BaseException, kind: type[BaseException]) -> None:
    """Copy attributes, slots, and members of C exceptions (``errno``, ``value``, ``obj``)."""
    members = (types.MemberDescriptorType, types.GetSetDescriptorType)
    for base in kind.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, members) and not name.startswith("__"):
                try:
                    member.__set__(error, member.__get__(cause))
                except Exception:  # Not set, or read-only.
                    continue
    vars(error).update(vars(cause))


_RAY_NAMES = {"function_name": "function", "pid": "pid", "traceback_str": ""}


class _PlainTaskError(TaskError):
    """A TaskError from a worker."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Do nothing: ``load_error`` copies the state."""

    def __str__(self) -> str:
        text: str = vars(self)["_text"]
        name: str = vars(self)["_class_name"]
        if type(self) is not _PlainTaskError or vars(self)["cause"] is None or name == _OWN_NAME:
            return text
        return f"{name}: {text}" if text else name  # "2" alone would not show that the task called sys.exit(2).

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({str(self)!r})"

    def __getattr__(self, name: str) -> Any:
        """Return a fact under Ray's name for it, if the raised class has no such attribute."""
        if name in _RAY_NAMES and "facts" in vars(self):
            return vars(self)["traceback_text"] if name == "traceback_str" else vars(self)["facts"].get(_RAY_NAMES[name])
        inherited = getattr(super(), "__getattr__", None)
        if inherited is not None:
            return inherited(name)
        raise AttributeError(f"{type(self).__qualname__!r} object has no attribute {name!r}", name=name, obj=self)

    def __reduce__(self) -> tuple[Any, ...]:
        vars(self)["_held"].note()
        return load_error, (vars(self)["_payload"],)

    def __copy__(self) -> TaskError:
        return load_error(vars(self)["_payload"])

    def __deepcopy__(self, memo: Any) -> TaskError:
        return load_error(vars(self)["_payload"])

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


_OWN_NAME = f"{TaskError.__module__}.{TaskError.__qualname__}"
_PlainTaskError.__name__ = _PlainTaskError.__qualname__ = "TaskError"
_PlainTaskError.__module__ = TaskError.__module__


def load_failure(payload: bytes | memoryview) -> FabricError:
    """Load the exception for a ``protocol.failures`` kind; a FabricError for an unknown one."""
    kind, text, facts = unpack_failure(bytes(payload))
    found: Any = getattr(exceptions, kind, None)
    is_known = isinstance(found, type) and issubclass(found, FabricError)
    error: FabricError = found(text) if is_known else FabricError(f"{kind}: {text}")
    error.facts = dict(facts)
    if "outcome" in error.facts:
        vars(error)["outcome"] = error.facts["outcome"]
    cause = error.facts.pop("cause", None)
    if type(cause) is bytes:
        told = load_error(cause)
        known = vars(told)
        said = f"{known['_class_name']}: {known['_text']}" if known["_text"] else known["_class_name"]
        error.args = (f"{text}\n{said}\n{known['_note']}",)
        error.__cause__ = told
        vars(error)["cause"] = told.cause or told
    return error
