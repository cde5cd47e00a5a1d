"""Packs values, arguments, functions and actors' states into bytes, and loads them.

A value without out-of-band buffers *is* its pickle (it starts with 0x80). One with buffers (numpy arrays, large ``bytes``, …) is::

    tag (1) | padding (3) | count of buffers (u32) | length of the pickle (u64) | length of each buffer (u64 each)
    | the pickle | each buffer, at the next multiple of 64

The value is written straight into its place and read without a copy. Arrays are read-only views at every size, so that a program behaves
alike with small and large ones. The tag marks torch tensors, whose reader needs private memory (``adapters.arrays``). In shared memory, one
numpy array stands between the memory and all views; its finalizer releases the memory with the last view, in any thread.

Ids of refs inside precede the value (``protocol.inside``), for a restarted daemon.

The C pickler pickles plain data (numbers, texts, small containers, arrays without Python objects), cloudpickle all else. Refs report
themselves to their thread's ``serialize`` call (``note_reference``).
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import hashlib
import pickle
import signal
import struct
import sys
import threading
import weakref
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from zfabric.adapters.arrays import ArrowReducers, is_arrow_loaded, tensor_reducers, tensor_types
from zfabric.adapters.mapping import aligned_room
from zfabric.adapters.pickler import pickler
from zfabric.exceptions import FabricError, SerializationError
from zfabric.protocol.ids import FUNCTION_BYTES
from zfabric.protocol.inside import REFS, ids_end, with_refs

__all__ = [
    "ArgumentsTooLarge",
    "SerializedValue",
    "deserialize",
    "dump_arguments",
    "dump_function",
    "dump_instance",
    "function_identity",
    "load_arguments",
    "load_function",
    "load_instance",
    "loads",
    "note_function",
    "note_reference",
    "register_plain",
    "serialize",
    "serialize_blindly",
    "serialize_fast",
    "trying",
]

ALIGNMENT = 64
"""Alignment of buffers: a cache line, and enough for every vector instruction."""
SCAN_MAX = 512
"""Most elements of a plain container; beyond, cloudpickle's fixed cost is small."""
BUFFER_MIN = 16 * 1024
"""``bytes`` of this length are written from their own memory, not copied into the pickle."""

_REGISTERED = copyreg.dispatch_table
"""Classes with a program's serializer, whose results may need cloudpickle."""
_CONTENTS = bytes.__basicsize__ - 1
_PICKLE = 0x80
_TAG = 0x01
OWN_MEMORY = 0x02
"""Tag of a value whose reader may write to its bytes."""
_HEAD = struct.Struct("<B3xIQ")
SCALARS = frozenset({int, float, str, bytes, bool, type(None), complex})
_dumps, _loads = pickle.dumps, pickle.loads

NONE = _dumps(None, 5)
_TRUE, _FALSE = _dumps(True, 5), _dumps(False, 5)


class _Collecting(threading.local):
    references: dict[bytes, None] | None = None
    tensors = False
    functions: list[Any] | None = None
    kind: type | None = None


_collecting = _Collecting()
_LEAVES: set[type] = set()


def register_plain(kind: type) -> None:
    """Let the C pickler pickle instances of exactly ``kind``: importable everywhere, reduced to plain data."""
    _LEAVES.add(kind)


def note_reference(object_id: bytes) -> bool:
    """Record a pickled ref. Return False outside of ``serialize``: it leaves the fabric."""
    references = _collecting.references
    if references is None:
        return False
    references[object_id] = None
    return True


@contextlib.contextmanager
def trying() -> Iterator[None]:
    """Pickle as a test, without recording refs."""
    previous, _collecting.references = _collecting.references, {}
    try:
        yield
    finally:
        _collecting.references = previous


# --- plain or not ---------------------------------------------------------------------------------------------------------------

_CLOUD, _BARE, _BUFFERED = 0, 1, 2
"""Pickle by cloudpickle; by the C pickler; likewise with buffers and refs."""


def _scan(value: Any) -> int:
    if type(value) in SCALARS:
        return _BARE
    answer, seen, stack = _BARE, 0, [value]
    while stack:
        item = stack.pop()
        kind = type(item)
        if kind in SCALARS:
            continue
        if kind is tuple or kind is list or kind is set or kind is frozenset:
            seen += len(item)
            if seen > SCAN_MAX:
                return _CLOUD
            stack.extend(item)
        elif kind is dict:
            seen += 2 * len(item)
            if seen > SCAN_MAX:
                return _CLOUD
            stack.extend(item)
            stack.extend(item.values())
        elif kind in _LEAVES or _is_plain_array(item, kind):
            answer = _BUFFERED
        else:
            return _CLOUD
    return answer


def _is_plain_array(value: Any, kind: type) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None or kind.__module__ != "numpy" or kind in _REGISTERED:
        return False
    return (kind is numpy.ndarray or issubclass(kind, numpy.generic)) and not value.dtype.hasobject


# --- values -----------------------------------------------------------------------------------------------------------------------


class SerializedValue:
    """A pickle, and buffers to be written from their original memory.

    The buffers are views of the user's memory: write them before the call returns to the user.
    """

    __slots__ = ("buffers", "contained", "head", "size", "stream", "tag")

    def __init__(self, stream: bytes, buffers: Sequence[memoryview] = (), contained: tuple[bytes, ...] = (), tag: int = _TAG) -> None:
        self.stream = stream
        self.tag = tag
        self.buffers = buffers
        self.contained = contained
        self.head = b""
        size = len(stream)
        if buffers:
            size += _HEAD.size + 8 * len(buffers)
            for buffer in buffers:
                size += -size % ALIGNMENT + buffer.nbytes
        self.size = size

    def naming_refs(self) -> SerializedValue:
        """Put the ids of refs inside in front, for the arena. Return this value."""
        if self.contained and not self.head:
            head = with_refs(b"", self.contained)
            self.head = head + bytes(-len(head) % ALIGNMENT)
            self.size += len(self.head)
        return self

    def pieces(self) -> list[bytes | memoryview]:
        """Return the value as consecutive pieces."""
        return [self.head, *self._body()] if self.head else self._body()

    def _body(self) -> list[bytes | memoryview]:
        if not self.buffers:
            return [self.stream]
        lengths = [buffer.nbytes for buffer in self.buffers]
        head = _HEAD.pack(self.tag, len(lengths), len(self.stream)) + struct.pack(f"<{len(lengths)}Q", *lengths)
        pieces: list[bytes | memoryview] = [head, self.stream]
        position = len(head) + len(self.stream)
        for buffer in self.buffers:
            gap = -position % ALIGNMENT
            pieces += (bytes(gap), buffer)
            position += gap + buffer.nbytes
        return pieces

    def to_bytes(self) -> bytes:
        """Return the value as one bytes object, for inline values."""
        return b"".join(self.pieces()) if self.buffers or self.head else self.stream

    def write_into(self, target: memoryview) -> None:
        """Write the value into ``target`` (64-byte aligned, at least ``size`` long)."""
        position = 0
        for piece in self.pieces():
            end = position + len(piece)
            target[position:end] = piece
            position = end


class Outcome(NamedTuple):
    """The outcome of an object. ``status`` is one of ``protocol.messages`` (OK, ERROR, FAILED).

    ``data`` is for ``deserialize``: bytes, or a memoryview of the value in the arena. ``release`` is None for bytes. For a view it must be
    called once, from any thread or finalizer, when the view is no longer used.
    """

    status: int
    data: bytes | memoryview
    release: Callable[[], None] | None


def serialize(value: Any, where: str = "value") -> SerializedValue:
    """Serialize a value. Raises SerializationError with the path, from ``where``, to the part that cannot be pickled."""
    kind = type(value)
    if kind in SCALARS:
        if kind is bytes and len(value) >= BUFFER_MIN:
            return _pickle(_LargeBytes(value), _BUFFERED, where)
        return SerializedValue(_dumps(value, 5))
    if _is_plain_array(value, kind) and value.ndim:
        return _serialize_array(value, where)
    how = _scan(value)
    if how == _BARE:
        return SerializedValue(_dumps(value, 5))
    return _pickle(value, how, where).naming_refs()


_array_streams: dict[tuple[Any, ...], bytes] = {}
"""Pickles of arrays, by all that is in them beside the buffer: dtype, shape, order."""


def _serialize_array(value: Any, where: str) -> SerializedValue:
    """Serialize a numpy array. Arrays of one dtype and shape have the same pickle, which takes longer to make than the rest."""
    order = value.flags.c_contiguous
    if not order and not value.flags.f_contiguous:
        value, order = value.copy(), True
    if value.dtype.isbuiltin != 1 or value.dtype.metadata is not None:
        return _pickle(value, _BUFFERED, where)
    facts = value.dtype, value.shape, order
    stream = _array_streams.get(facts)
    if stream is not None:
        return SerializedValue(stream, (pickle.PickleBuffer(value).raw(),))
    made = _pickle(value, _BUFFERED, where)
    if len(made.buffers) == 1 and len(made.stream) <= PLAIN_MAX:
        if len(_array_streams) == ARRAY_STREAMS_MAX:
            _array_streams.clear()
        _array_streams[facts] = made.stream
    return made


def serialize_fast(value: Any) -> bytes | None:
    """Return ``serialize(value).to_bytes()`` for plain data without buffers and refs, else None."""
    if value is None:
        return NONE
    kind = type(value)
    if kind is bool:
        return _TRUE if value else _FALSE
    if kind in SCALARS:
        return None if kind is bytes and len(value) >= BUFFER_MIN else _dumps(value, 5)
    return _dumps(value, 5) if _scan(value) == _BARE else None


class _LargeBytes:
    def __init__(self, value: bytes) -> None:
        self.value = value

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return bytes, (pickle.PickleBuffer(self.value),)


def _pickle(value: Any, how: int, where: str) -> SerializedValue:
    try:
        return serialize_blindly(value, how)
    except FabricError:
        raise
    except (Exception, SystemExit) as error:  # ``__reduce__`` is user code, and may call sys.exit().
        if _raised_by_handler(error):
            raise
        raise _cannot_pickle(value, where, error) from error


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


as_user: Callable[..., Any] = _call
"""Calls what runs user code of values that are pickled or loaded. A worker sets it, so that such code can be interrupted."""
ARRAY_STREAMS_MAX = 256
"""Shapes of arrays for which the pickle is remembered."""
PLAIN_MAX = 4096
_BY_NAME = b"\x93"
"""Opcode (``STACK_GLOBAL``) for a class or a function. A pickle without it runs no user code."""


def serialize_blindly(value: Any, how: int = _CLOUD) -> SerializedValue:
    """Serialize a value. Errors of the user's ``__reduce__`` pass through."""
    buffers: list[pickle.PickleBuffer] = []
    references: dict[bytes, None] = {}
    previous, _collecting.references = _collecting.references, references
    tensors, _collecting.tensors = _collecting.tensors, False
    tag = _TAG
    try:
        if how == _CLOUD:
            stream = as_user(_dump_cloud, value, buffers.append)
            tag = OWN_MEMORY if _collecting.tensors else _TAG
        else:
            stream = _dumps(value, 5, buffer_callback=buffers.append)
        raw = [buffer.raw() for buffer in buffers]
    finally:
        _collecting.references, _collecting.tensors = previous, tensors
    return SerializedValue(stream, raw, tuple(references), tag)


def _dump_cloud(value: Any, note_buffer: Callable[[pickle.PickleBuffer], Any]) -> bytes:
    import io  # Plain data does not need it.

    kinds = tensor_types()
    kind = _pickler_for(bool(kinds) and not any(kind in _REGISTERED for kind in kinds), is_arrow_loaded())
    file = io.BytesIO()
    made = kind(file, protocol=5, buffer_callback=note_buffer)
    made.dump(value)
    return bytes(made.finished(file.getvalue()))


@functools.cache
def _pickler_for(tensors: bool, arrays: bool) -> Any:
    if not tensors and not arrays:
        return pickler()

    class Pickler(pickler()):  # type: ignore[misc]
        dispatch_table = ChainMap(
            tensor_reducers(_note_tensor) if tensors else {}, pickler().dispatch_table, ArrowReducers() if arrays else {}
        )

    return Pickler


def _note_tensor() -> None:
    _collecting.tensors = True


def _raised_by_handler(error: BaseException) -> bool:
    """Whether a signal handler raised the error; then the value is not to blame."""
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = [handler for handler in map(signal.getsignal, signal.valid_signals()) if callable(handler)]
    plain = [handler.func if isinstance(handler, functools.partial) else getattr(handler, "__func__", handler) for handler in handlers]
    codes = {getattr(each, "__code__", None) or getattr(type(each).__call__, "__code__", None) for each in plain} - {None}
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code not in codes:
        traceback = traceback.tb_next
    return traceback is not None


def _cannot_pickle(value: Any, where: str, error: BaseException) -> SerializationError:
    from zfabric.adapters.unpicklable import blame  # Only errors need it.

    path = as_user(blame, value, where)
    advice = ""
    if "through inheritance" in str(error):  # multiprocessing's error about its locks, queues and values.
        advice = "; tasks share zfabric.util.queue.Queue, an actor, or arrays by zf.put"
    return SerializationError(f"cannot pickle {path} ({type(error).__name__}: {error}){advice}", path=path)


def deserialize(data: bytes | memoryview, owner: Callable[[], None] | None = None, copy: bool = False) -> Any:
    """Load the value that a ``SerializedValue`` wrote.

    Arrays are read-only views of ``data``, or with ``copy`` writable copies. Tensors are writable views of writable ``data``, else of a
    copy. ``owner`` is called exactly once: when the last view of ``data`` dies (in any thread), or before this returns if there is none.
    """
    first = data[0] if len(data) else _PICKLE
    if first == REFS:
        return deserialize(data[_body_at(data) :], owner, copy)
    if first > OWN_MEMORY:
        try:
            return _load(data, ())
        finally:
            if owner is not None:
                _call_owner(owner)
    if first == OWN_MEMORY and (type(data) is bytes or memoryview(data).readonly):
        view = _copied(data)
        if owner is not None:
            _call_owner(owner)
            owner = None
    else:
        view = memoryview(data) if owner is not None else _aligned(data)
    if owner is not None:
        import numpy  # Loaded already if the value has arrays.

        base: Any = numpy.frombuffer(view, numpy.uint8)
        weakref.finalize(base, _call_owner, owner).atexit = False
        view = memoryview(base)
        del base
    if not view.readonly:
        view = view.toreadonly()
    stream, buffers = _split(view)
    if copy:
        return _load(stream, [bytearray(buffer) for buffer in buffers], copy)
    return _load(stream, buffers)


def has_own_memory(data: memoryview) -> bool:
    """Whether the reader of a value may write to its bytes."""
    at = _body_at(data)
    return at < len(data) and data[at] == OWN_MEMORY


def _body_at(data: bytes | memoryview) -> int:
    end = ids_end(data)
    return end + -end % ALIGNMENT


def _aligned(data: bytes | memoryview) -> memoryview:
    """Return ``data``, or an aligned copy: ``bytes`` align their contents to 16 only."""
    if type(data) is not bytes or (id(data) + _CONTENTS) % ALIGNMENT == 0:
        return memoryview(data)
    return _copied(data)


def _copied(data: bytes | memoryview) -> memoryview:
    view = aligned_room(len(data))
    view[:] = data
    return view


def loads(value: SerializedValue) -> Any:
    """Load a serialized value from memory, as its reader will."""
    return _loads(value.stream, buffers=[buffer.toreadonly() for buffer in value.buffers])


def deserialize_all(values: Iterable[bytes]) -> list[Any]:
    """Deserialize many values; small ones cost half as much together."""
    loads = _loads
    try:
        return [loads(data) if data[0] == _PICKLE else deserialize(data) for data in values]
    except (FabricError, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # User code runs here, too (__setstate__, imports), and may call sys.exit().
        if _raised_by_handler(error):
            raise
        raise _cannot_unpickle(error) from error


def _call_owner(owner: Callable[[], None]) -> None:
    """A finalizer has no caller to raise to, and at interpreter exit the client may be partly destroyed."""
    try:
        owner()
    except Exception:  # As above.
        pass


def _split(view: memoryview) -> tuple[memoryview, list[memoryview]]:
    """Return a value's pickle and buffers. Raises SerializationError if they are truncated."""
    try:
        _, count, length = _HEAD.unpack_from(view)
        lengths = struct.unpack_from(f"<{count}Q", view, _HEAD.size)
    except struct.error as error:
        raise SerializationError(f"not a value of the fabric: {error}") from None
    position = _HEAD.size + 8 * count
    stream = view[position : position + length]
    position += length
    buffers = []
    for size in lengths:
        position += -position % ALIGNMENT
        buffers.append(view[position : position + size])
        position += size
    if position > len(view):
        raise SerializationError(f"a value of {position} bytes was cut to {len(view)}")
    return stream, buffers


def _load(stream: bytes | memoryview, buffers: Sequence[Any], copy: bool = False) -> Any:
    try:
        if copy:
            return as_user(_copying_unpickler()(stream, buffers).load)
        if buffers:
            return as_user(_loads_with, stream, buffers)
        if type(stream) is bytes and len(stream) <= PLAIN_MAX and _BY_NAME not in stream:
            return _loads(stream)
        return as_user(_loads, stream)
    except (FabricError, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # As in ``deserialize_all``.
        if _raised_by_handler(error):
            raise
        raise _cannot_unpickle(error) from error


def _loads_with(stream: bytes | memoryview, buffers: Sequence[Any]) -> Any:
    return _loads(stream, buffers=buffers)


def _cannot_unpickle(error: BaseException) -> SerializationError:
    return SerializationError(f"cannot unpickle a value: {type(error).__name__}: {error}{_advice(error)}")


def _advice(error: BaseException) -> str:
    if type(error).__module__.startswith("multiprocessing") and type(error).__name__ == "AuthenticationError":
        return "; a multiprocessing.Manager admits only children of its program: let an actor have what tasks share"
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    module = error.name.partition(".")[0]
    return (
        "; it is not where this process looks (workers look where the program did when it called init()): put it there, name it in "
        f"runtime_env={{'py_modules': [...]}}, or let it travel by value: cloudpickle.register_pickle_by_value({module})"
    )


def _copying_unpickler() -> Callable[[Any, Any], pickle.Unpickler]:
    """Make an unpickler whose arrays are all writable, even ones that were read-only."""
    import io  # Only restored actors need these two.

    import numpy

    def writable(*arguments: Any) -> Any:
        return _from_buffer(*arguments).copy(order="K")

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            return writable if name == "_frombuffer" and module.startswith("numpy.") else super().find_class(module, name)

    _from_buffer: Any = numpy.zeros(1).__reduce_ex__(5)[0]
    return lambda stream, buffers: Unpickler(io.BytesIO(stream), buffers=buffers)


# --- instances of actors ----------------------------------------------------------------------------------------------------------


def dump_instance(state: Any, kind: type, where: str) -> SerializedValue:
    """Pack an actor's state without its class. Raises SerializationError with a path from ``where``."""
    import io  # Only actors with checkpoints need it.

    file = io.BytesIO()
    references: dict[bytes, None] = {}
    pickler = _instance_pickler(is_arrow_loaded())(file, protocol=5)
    pickler.kind = kind
    previous, _collecting.references = _collecting.references, references
    try:
        pickler.dump(state)
    except FabricError:
        raise
    except (Exception, SystemExit) as error:  # As in ``_pickle``.
        if _raised_by_handler(error):
            raise
        raise _cannot_pickle(state, where, error) from error
    finally:
        _collecting.references = previous
    return SerializedValue(pickler.finished(file.getvalue()), (), tuple(references))


def load_instance(data: bytes, kind: type) -> Any:
    """Load what ``dump_instance`` packed, with writable copies of arrays."""
    _collecting.kind = kind
    try:
        return _load(data, ())
    finally:
        _collecting.kind = None


def _kind() -> type:
    """Stands for the class in pickled instances."""
    if _collecting.kind is None:
        raise SerializationError("the state of an actor is loaded by its process alone")
    return _collecting.kind


@functools.cache
def _instance_pickler(arrays: bool) -> Any:
    class Pickler(_pickler_for(False, arrays)):  # type: ignore[misc]
        kind: type | None = None

        def reducer_override(self, item: Any) -> Any:
            return (_kind, ()) if item is self.kind else super().reducer_override(item)

    return Pickler


# --- arguments ---------------------------------------------------------------------------------------------------------------------


class ArgumentsTooLarge(Exception):
    """The arguments exceed the limit of ``dump_arguments``: some must become objects."""


def dump_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], ref_type: type[Any], limit: int | None = None
) -> tuple[bytes, tuple[bytes, ...], tuple[bytes, ...]]:
    """Pack a call's arguments: return (bytes, dependencies, refs inside). Raises ArgumentsTooLarge past ``limit``.

    Refs that are arguments become dependencies, each once; deeper refs stay refs. No arguments are no bytes, positional ones alone a tuple,
    anything else the list [args, kwargs, places].
    """
    if not kwargs:
        if not args:
            return b"", (), ()
        for value in args:
            if type(value) not in SCALARS:
                break
        else:
            data = _dumps(args, 5)
            if limit is not None and len(data) > limit:
                raise ArgumentsTooLarge
            return data, (), ()
    dependencies: dict[bytes, int] = {}
    places: list[tuple[int | str, int]] = []
    if ref_type in map(type, args) or ref_type in map(type, kwargs.values()):

        def replaced(key: int | str, value: Any) -> Any:
            if type(value) is not ref_type:
                return value
            places.append((key, dependencies.setdefault(value.travel(), len(dependencies))))
            return None

        args = tuple([replaced(index, value) for index, value in enumerate(args)])
        kwargs = {name: replaced(name, value) for name, value in kwargs.items()}
    whole: Any = [args, dict(kwargs), places] if kwargs or places else args
    data, contained = _dump_whole(whole, args, kwargs, limit)
    return data, tuple(dependencies), contained


def _dump_whole(whole: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int | None) -> tuple[bytes, tuple[bytes, ...]]:
    how = _scan(whole)
    if how == _BARE:
        data = _dumps(whole, 5)
        if limit is not None and len(data) > limit:
            raise ArgumentsTooLarge
        return data, ()
    if limit is not None and how == _BUFFERED and any(getattr(value, "nbytes", 0) > limit for value in args):
        raise ArgumentsTooLarge  # An array: it need not be packed to be sure.
    try:
        serialized = _pickle(whole, how, "args")
    except SerializationError:
        for name, value in [*((f"args[{index}]", value) for index, value in enumerate(args)), *kwargs.items()]:
            serialize(value, name)
        raise
    if limit is not None and serialized.size > limit:
        raise ArgumentsTooLarge
    return serialized.to_bytes(), serialized.contained


def load_arguments(data: bytes | memoryview, values: Sequence[Any] = (), copy: bool = False) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Load (args, kwargs) from ``dump_arguments``, with the ``values`` of the dependencies, in order.

    With ``copy``, arrays among them are writable copies.
    """
    if not data:
        return (), {}
    whole = deserialize(data, None, copy)
    if type(whole) is tuple:
        return whole, {}
    args, kwargs, places = whole
    if places:
        args = list(args)
        for key, index in places:
            if type(key) is int:
                args[key] = values[index]
            else:
                kwargs[key] = values[index]
        args = tuple(args)
    return args, kwargs


# --- functions -----------------------------------------------------------------------------------------------------------------------


Retry = bool | tuple[type[BaseException], ...]


def dump_function(function: Callable[..., Any], retry: Retry = False, name: str = "function") -> tuple[bytes, tuple[bytes, ...]]:
    """Pack a function, with the errors that cause another attempt (True: all). Return the bytes and the refs inside."""
    packed = _pickle((function, retry), _CLOUD, name)
    return packed.to_bytes(), packed.contained


def function_identity(payload: bytes, options: tuple[tuple[Any, ...], ...]) -> bytes:
    """Return a function's id: a hash of its payload and options, 16 bytes."""
    digest = hashlib.blake2b(payload, digest_size=FUNCTION_BYTES)
    digest.update(repr(options).encode())
    return digest.digest()


def note_function(remote: Any) -> None:
    """Record a remote function unpickled without an id; ``remote.adopt(function, payload, id)`` may follow."""
    if _collecting.functions is not None:
        _collecting.functions.append(remote)


def load_function(
    payload: bytes | memoryview, function_id: bytes = b"", contained: tuple[bytes, ...] = ()
) -> tuple[Callable[..., Any], Callable[[BaseException], bool]]:
    """Load a function, and a predicate for errors that cause another attempt.

    A function that calls itself contains a remote function of itself, pickled before the id existed: the inner one adopts the id and
    ``contained``.
    """
    found: list[Any] = []
    previous, _collecting.functions = _collecting.functions, found
    try:
        function, retry = deserialize(payload)
    finally:
        _collecting.functions = previous
    for remote in found:
        remote.adopt(function, bytes(payload), function_id, contained)
    if isinstance(retry, bool):
        return function, lambda error: retry and isinstance(error, Exception)
    return function, lambda error: isinstance(error, retry)
