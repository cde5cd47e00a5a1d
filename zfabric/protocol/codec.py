"""Frames on the wire: msgpack, bounded and checked against the messages' own annotations before a machine sees them.

A frame is ``[sequence, acknowledged, [[to role, from role, message name, fields], …]]``. Decoding gives immutable tuples
only; nothing in a frame is ever unpickled here.

No frame is larger than its receiver accepts (``Config.frame_bytes_max``), whatever is sent: ``cut`` distributes messages over several
frames. A message that is a list of rows becomes several messages. One that is too large and cannot be divided travels in *pieces*: frames
``[sequence, acknowledged, bytes]``, where the bytes are the number of pieces that follow (4 bytes), and a part of the packed messages.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from zfabric.config import FRAME_BYTES_MAX, MESSAGE_BYTES_MAX
from zfabric.protocol.ids import FUNCTION_BYTES, INCARNATION_BYTES, OBJECT_BYTES, TASK_BYTES
from zfabric.protocol.messages import MESSAGES, Envelope
from zfabric.protocol.options import CHECKPOINT_PARTS_MAX, LOG_NUMBERS_MAX, OPTION_TYPES, RETURNS_MAX, STREAM_VALUES_MAX
from zfabric.protocol.pieces import Piece, divided
from zfabric.protocol.refusals import Unread
from zfabric.protocol.trace import EACH_BYTES, TIME_BYTES

MESSAGES_MAX = 65_536
"""Most messages in one frame."""


class MalformedFrame(ValueError):
    """Bytes that are not a frame of this protocol. The receiver drops and counts them."""


class MessageTooLarge(ValueError):
    """A message that no receiver would accept, in however many pieces."""


_HEAD = (bytes, bytes, str, tuple)
_SHAPES: dict[str, tuple[type[Any], tuple[tuple[type, ...] | None, ...], frozenset[tuple[type, ...]]]] = {}
"""By name: the class, the types each field may have, and all combinations of these, so that the usual check is one look-up."""
_new: Callable[[type[Any], tuple[Any, ...]], Any] = tuple.__new__
"""Makes a message of its fields once their number is checked, in half the time of calling its class."""


def _accepted(annotation: Any) -> tuple[type, ...] | None:
    """The types a field may have; None accepts anything."""
    if annotation is Any:
        return None
    arguments = typing.get_args(annotation)
    origin = typing.get_origin(annotation)
    if origin is tuple:
        return (tuple,)
    if arguments:
        return tuple(kind for argument in arguments for kind in (_accepted(argument) or ()))
    if annotation is float:
        return (float, int)
    return (annotation,)


def _prepare() -> None:
    for name, kind in MESSAGES.items():
        hints = typing.get_type_hints(kind)
        accepted = tuple(_accepted(hints[field]) for field in kind._fields)
        anything = any(types is None for types in accepted)
        combinations = frozenset() if anything else frozenset(itertools.product(*(types or () for types in accepted)))
        _SHAPES[name] = (kind, accepted, combinations)


_prepare()


_pack: Callable[[Any], bytes] = msgpack.Packer().pack
"""One packer for all threads: it calls no Python code, and so finishes a frame before another thread gets the interpreter."""
_PACKER_BYTES = 2**20
"""A packer retains memory for the largest frame that it has made: after a frame larger than this, another packer is used."""


def encode(sequence: int, acknowledged: int, envelopes: list[Envelope]) -> bytes:
    """One frame of ``envelopes``. Raises TypeError or ValueError for values that msgpack cannot carry."""
    global _pack
    if len(envelopes) == 1:  # a loop costs more than this
        to, source, message = envelopes[0]
        frame = _pack((sequence, acknowledged, ((to, source, type(message).__name__, message),)))
    else:
        frame = _pack((sequence, acknowledged, [(to, source, type(message).__name__, message) for to, source, message in envelopes]))
    if len(frame) > _PACKER_BYTES:
        _pack = msgpack.Packer().pack
    return frame


Body = list[Envelope] | Piece
"""The content of a frame."""

_HEAD_BYTES = 32
"""More bytes than a frame has besides its messages, or besides the bytes of a piece."""
_LEFT_BYTES = 4


def encode_body(sequence: int, acknowledged: int, body: Body) -> bytes:
    """One frame of a body that ``cut`` made, or of envelopes."""
    if not isinstance(body, Piece):
        return encode(sequence, acknowledged, body)
    return _pack((sequence, acknowledged, body.left.to_bytes(_LEFT_BYTES, "big") + body.data))


def cut(envelopes: list[Envelope], limit: int, expected: int = 0) -> Iterator[Body]:
    """Distribute ``envelopes`` over frames of at most ``limit`` bytes, in order. Raises MessageTooLarge if no receiver accepts one of
    them.

    Where more than ``limit`` bytes are ``expected``, it is halved without being encoded first, and each half is expected to have half the
    bytes: rows of similar size are encoded once, however many frames there are.
    """
    halves = _halved(envelopes) if expected > limit else None
    if halves is None:
        data = encode_messages(envelopes)
        if len(data) <= limit - _HEAD_BYTES and len(envelopes) <= MESSAGES_MAX:
            yield envelopes
            return
        expected = len(data)
        halves = _halved(envelopes)
    if halves is not None:
        data = b""  # Its memory is needed for the halves.
        for half in halves:
            yield from cut(half, limit, expected // 2)
        return
    message = envelopes[0][2]
    if len(data) > MESSAGE_BYTES_MAX:
        raise MessageTooLarge(f"{type(message).__name__} has {len(data)} bytes; a message has at most {MESSAGE_BYTES_MAX}")
    size = limit - _HEAD_BYTES
    count = -(-len(data) // size)
    for index in range(count):
        left = count - 1 - index
        yield Piece([] if left else envelopes, data[index * size : (index + 1) * size], left)


def _halved(envelopes: list[Envelope]) -> list[list[Envelope]] | None:
    """Two lists that mean the same in order; None for one message that cannot be divided."""
    if len(envelopes) > 1:
        middle = len(envelopes) // 2
        return [envelopes[:middle], envelopes[middle:]]
    to, source, message = envelopes[0]
    halves = divided(message)
    return None if halves is None else [[(to, source, half)] for half in halves]


def encode_messages(envelopes: list[Envelope]) -> bytes:
    """The messages of a frame, without the frame."""
    global _pack
    data = _pack([(to, source, type(message).__name__, message) for to, source, message in envelopes])
    if len(data) > _PACKER_BYTES:
        _pack = msgpack.Packer().pack
    return data


def decode(frame: bytes | memoryview) -> tuple[int, int, Body]:
    """The sequence, acknowledgement and content of ``frame``; MalformedFrame if it is anything else."""
    if len(frame) > FRAME_BYTES_MAX:
        raise MalformedFrame(f"frame of {len(frame)} bytes is over the limit of {FRAME_BYTES_MAX}")
    try:
        sequence, acknowledged, body = msgpack.unpackb(frame, use_list=False, raw=False, strict_map_key=False)
    except Exception as error:  # msgpack raises many kinds for bytes that are not its own; all mean the same here
        raise MalformedFrame(f"not a frame: {error}") from None
    if type(sequence) is not int or type(acknowledged) is not int:
        raise MalformedFrame("a frame is [sequence, acknowledged, messages]")
    if type(body) is tuple and len(body) == 1:
        return sequence, acknowledged, [_envelope(body[0])]
    if type(body) is bytes and len(body) > _LEFT_BYTES and sequence > 0:
        return sequence, acknowledged, Piece([], body[_LEFT_BYTES:], int.from_bytes(body[:_LEFT_BYTES], "big"))
    return sequence, acknowledged, _envelopes(body)


def salvage(frame: bytes) -> tuple[int, int, list[Envelope]]:
    """What ``decode`` has refused, with ``Unread`` in place of messages that do not fit; MalformedFrame if the frame itself does not."""
    try:
        sequence, acknowledged, body = msgpack.unpackb(frame, use_list=False, raw=False, strict_map_key=False)
    except Exception as error:  # as above
        raise MalformedFrame(f"not a frame: {error}") from None
    if type(sequence) is not int or type(acknowledged) is not int or sequence <= 0 or len(frame) > FRAME_BYTES_MAX:
        raise MalformedFrame("a frame is [sequence, acknowledged, messages]")
    return sequence, acknowledged, _salvaged(body)


def salvage_messages(data: bytes) -> list[Envelope]:
    """What ``decode_messages`` has refused, likewise."""
    try:
        return _salvaged(msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=False))
    except Exception as error:  # as above
        raise MalformedFrame(f"no messages: {error}") from None


def _salvaged(body: Any) -> list[Envelope]:
    if type(body) is not tuple or len(body) > MESSAGES_MAX:
        raise MalformedFrame("a frame is [sequence, acknowledged, messages]")
    found: list[Envelope] = []
    for item in body:
        try:
            found.append(_envelope(item))
        except MalformedFrame as error:
            if type(item) is not tuple or tuple(map(type, item)) != _HEAD or len(item[0]) != 1 or len(item[1]) != 1:
                raise
            found.append((item[0], item[1], Unread(item[2], item[3], str(error))))
    return found


def decode_messages(data: bytes) -> list[Envelope]:
    """What ``encode_messages`` encoded; MalformedFrame for anything else."""
    try:
        body = msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=False)
    except Exception as error:  # as above
        raise MalformedFrame(f"no messages: {error}") from None
    return _envelopes(body)


def _envelopes(body: Any) -> list[Envelope]:
    if type(body) is not tuple or len(body) > MESSAGES_MAX:
        raise MalformedFrame("a frame is [sequence, acknowledged, messages]")
    return [_envelope(item) for item in body]


def _envelope(item: Any) -> Envelope:
    if type(item) is not tuple or tuple(map(type, item)) != _HEAD:
        raise MalformedFrame("a message is [to, from, name, fields]")
    to, source, name, fields = item
    if len(to) != 1 or len(source) != 1:
        raise MalformedFrame("a message's head is two role letters and a name")
    shape = _SHAPES.get(name)
    if shape is None:
        raise MalformedFrame(f"no message is called {name!r}")
    kind, accepted, combinations = shape
    if tuple(map(type, fields)) not in combinations:
        if len(fields) != len(accepted):
            raise MalformedFrame(f"{name} has {len(accepted)} fields")
        for value, types, field in zip(fields, accepted, kind._fields, strict=True):
            if types is not None and type(value) not in types:
                raise MalformedFrame(f"{name}.{field} cannot be {type(value).__name__}")
    check = _ROW_CHECKS.get(name)
    if check is not None:
        check(name, fields)
    return to, source, _new(kind, fields)


# --- rows: checked by column, so that the price is a few C-level passes a batch, not a loop over fields ---------------------


def _columns(name: str, rows: tuple[Any, ...], widths: set[int], kinds: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    if not rows:
        return _NO_COLUMNS
    if len(rows) == 1:
        return _single(name, rows[0], widths, kinds)
    if set(map(type, rows)) != _TUPLE or len(rows[0]) not in widths:
        raise MalformedFrame(f"{name}: a row has {sorted(widths)} fields")
    try:
        columns = list(zip(*rows, strict=True))
    except ValueError:
        if not set(map(len, rows)) <= widths:
            raise MalformedFrame(f"{name}: a row has {sorted(widths)} fields") from None
        columns = list(itertools.zip_longest(*rows))  # Missing options are None; longer rows beside are checked whole.
    for column, accepted in zip(columns, kinds, strict=False):
        if accepted is not None and not (_all_empty(column, accepted) or set(map(type, column)) <= accepted):
            raise MalformedFrame(f"{name}: a row's field has the wrong type")
    return columns


def _all_empty(column: tuple[Any, ...], accepted: set[type]) -> bool:
    """Whether this field is empty in all rows, as it usually is for arguments: a tenth of the time of checking all types."""
    first = column[0]
    return not first and first != 0 and type(first) in accepted and column.count(first) == len(column)


def _single(name: str, row: Any, widths: set[int], kinds: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The same for one row: the usual frame of a program that waits for each task."""
    if type(row) is not tuple or len(row) not in widths:
        raise MalformedFrame(f"{name}: a row has {sorted(widths)} fields")
    for value, accepted in zip(row, kinds, strict=False):
        if accepted is not None and type(value) not in accepted:
            raise MalformedFrame(f"{name}: a row's field has the wrong type")
    return [(value,) for value in row]


_NO_COLUMNS: list[tuple[Any, ...]] = [()] * 8
"""The columns of an empty list of rows: as many as any row has fields."""


def _ids(name: str, ids: tuple[Any, ...], length: int) -> None:
    if len(ids) == 1 and type(ids[0]) is bytes and len(ids[0]) == length:
        return
    try:
        b"".join(ids)  # Raises for anything but bytes, faster than a check of each type.
    except TypeError:
        raise MalformedFrame(f"{name}: ids are bytes") from None
    if ids and set(map(len, ids)) != {length}:
        raise MalformedFrame(f"{name}: ids are {length} bytes")


def _few_ids(name: str, ids: tuple[Any, ...], length: int) -> None:
    """The same, if most ids are equal."""
    alike = bool(ids) and type(ids[0]) is bytes and ids.count(ids[0]) == len(ids)
    _ids(name, ids[:1] if alike else ids, length)


_BYTES, _INT, _TUPLE, _STR = {bytes}, {int}, {tuple}, {str}
_VALUE: set[type] = {bytes, tuple, type(None)}
_OPTIONS: set[type] = {tuple, type(None)}


_TASK_WIDTHS = {4, 5}
_TASK_KINDS = (None, None, _BYTES, _TUPLE, _OPTIONS)


def _task_rows(name: str, rows: tuple[Any, ...]) -> None:
    columns = _columns(name, rows, _TASK_WIDTHS, _TASK_KINDS)
    _ids(name, columns[0], TASK_BYTES)
    _few_ids(name, columns[1], FUNCTION_BYTES)
    if any(columns[3]):
        for dependencies in columns[3]:
            _ids(name, dependencies, OBJECT_BYTES)
    if len(columns) > 4 and any(columns[4]):
        for options in filter(None, columns[4]):
            _options(name, options)


def _options(name: str, options: tuple[Any, ...]) -> None:
    """Check pairs of a name and a value of the type that options of that name have, or None for "not set"."""
    for pair in options:
        if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not str:
            raise MalformedFrame(f"{name}: an option is a pair of a name and a value")
        key, value = pair
        if value is None:
            continue
        accepted = OPTION_TYPES.get(key)
        if accepted is not None and type(value) not in accepted:
            raise MalformedFrame(f"{name}: option {key} cannot be {type(value).__name__}")
        if key == "contains":
            _ids(name, value, OBJECT_BYTES)
        elif key == "demand":
            _columns(name, value, {2}, (_STR, _INT))
        elif key == "strategy":
            _columns(name, value, {4}, (_STR, _STR, _STR, _TUPLE))
        elif key == "env" and tuple(map(type, value)) != (tuple, str, tuple):
            raise MalformedFrame(f"{name}: an environment is variables, a directory and paths")
        elif key == "num_returns" and not 0 <= value <= RETURNS_MAX:
            raise MalformedFrame(f"{name}: a task has 0 to {RETURNS_MAX} values")


def _submit(name: str, fields: tuple[Any, ...]) -> None:
    _task_rows(name, fields[0])


def _handed(name: str, fields: tuple[Any, ...]) -> None:
    _ids(name, fields[:1], INCARNATION_BYTES)
    _task_rows(name, fields[1])


def _told(name: str, fields: tuple[Any, ...]) -> None:
    _ids(name, fields[:1], INCARNATION_BYTES)


def _introduced(name: str, fields: tuple[Any, ...]) -> None:
    _ids(name, fields[:1], INCARNATION_BYTES)
    _ids(name, fields[1], FUNCTION_BYTES)


def _inherit(name: str, fields: tuple[Any, ...]) -> None:
    _task_rows(name, fields[0])
    _exports(name, fields[1:])


def _dispatch(name: str, fields: tuple[Any, ...]) -> None:
    _task_rows(name, fields[0])
    _columns(name, fields[1], {4}, (_INT, _INT, _TUPLE, _TUPLE))


def _completed(name: str, fields: tuple[Any, ...]) -> None:
    attempts, statuses, outputs, task_ids, extras, durations, times = fields
    if not len(attempts) == len(statuses) == len(outputs) == len(task_ids) / TASK_BYTES:
        raise MalformedFrame(f"{name}: columns are of one length")
    if times and len(times) != len(attempts) * TIME_BYTES:
        raise MalformedFrame(f"{name}: times are {TIME_BYTES} bytes for each attempt")
    if not (set(map(type, attempts)) <= _INT and set(map(type, statuses)) <= _INT and set(map(type, outputs)) <= _TUPLE):
        raise MalformedFrame(f"{name}: a column has a value of the wrong type")
    _columns(name, extras, {3}, (_INT, _TUPLE, _TUPLE))
    _columns(name, durations, {3}, (_BYTES, _INT, {float, int}))


def _yielded(name: str, fields: tuple[Any, ...]) -> None:
    columns = _columns(name, fields[0], {5}, (_BYTES, _INT, _INT, {bytes, tuple, bool, type(None)}, _TUPLE))
    _ids(name, columns[0], TASK_BYTES)
    if not all(0 <= index <= STREAM_VALUES_MAX for index in columns[2]):
        raise MalformedFrame(f"{name}: a stream has 0 to {STREAM_VALUES_MAX} values")
    for contained in filter(None, columns[4]):
        _ids(name, contained, OBJECT_BYTES)


_RESULT = (bytes, int, tuple)


def _results(name: str, fields: tuple[Any, ...]) -> None:
    rows = fields[0]
    if len(rows) == 1 and type(rows[0]) is tuple and tuple(map(type, rows[0])) == _RESULT and len(rows[0][0]) == TASK_BYTES:
        return  # The usual frame of a program that waits for each task: one comparison instead of the checks below.
    columns = _columns(name, fields[0], {3}, (None, _INT, _TUPLE))
    _ids(name, columns[0], TASK_BYTES)


def _object_rows(name: str, fields: tuple[Any, ...]) -> None:
    columns = _columns(name, fields[0], {4}, (None, _INT, _VALUE, _TUPLE))
    _ids(name, columns[0], OBJECT_BYTES)
    for contained in filter(None, columns[3]):
        _ids(name, contained, OBJECT_BYTES)


def _put(name: str, fields: tuple[Any, ...]) -> None:
    columns = _columns(name, fields[0], {4}, (_BYTES, _VALUE, _TUPLE, {bool}))
    _ids(name, columns[0], OBJECT_BYTES)
    for contained in columns[2]:
        _ids(name, contained, OBJECT_BYTES)


def _running(name: str, fields: tuple[Any, ...]) -> None:
    columns = _columns(name, fields[0], {4}, (_TUPLE, _INT, {bool}, _STR))
    _task_rows(name, columns[0])
    if not set(map(type, fields[1])) <= _INT:
        raise MalformedFrame(f"{name}: GPUs are numbers")


def _exports(name: str, fields: tuple[Any, ...]) -> None:
    columns = _columns(name, fields[0], {4}, (_BYTES, _STR, _BYTES, _TUPLE))
    _ids(name, columns[0], FUNCTION_BYTES)
    for options in filter(None, columns[3]):
        _options(name, options)


def _object_ids(name: str, fields: tuple[Any, ...]) -> None:
    _ids(name, fields[0], OBJECT_BYTES)


def _task_ids(name: str, fields: tuple[Any, ...]) -> None:
    _ids(name, fields[0], TASK_BYTES)


def _places(name: str, fields: tuple[Any, ...]) -> None:
    columns = _columns(name, fields[0], {3}, (_BYTES, _INT, _INT))
    if name == "Pinned":
        _ids(name, columns[0], OBJECT_BYTES)


def _grants(name: str, fields: tuple[Any, ...]) -> None:
    _columns(name, fields[0], {3}, (_INT, _INT, _INT))


def _returned_grant(name: str, fields: tuple[Any, ...]) -> None:
    _columns(name, fields[2], {2}, (_INT, _INT))


def _writes(name: str, fields: tuple[Any, ...]) -> None:
    _columns(name, fields[1], {3}, (_STR, _BYTES, _BYTES))
    _columns(name, fields[2], {2}, (_STR, _BYTES))


def _blocked(name: str, fields: tuple[Any, ...]) -> None:
    _ids(name, fields[1], OBJECT_BYTES)
    _ids(name, fields[2], TASK_BYTES)


def _awaits(name: str, fields: tuple[Any, ...]) -> None:
    _ids(name, fields[:1], TASK_BYTES)
    columns = _columns(name, fields[2], {2}, (_BYTES, _BYTES))
    _ids(name, columns[0], OBJECT_BYTES)
    _ids(name, columns[1], TASK_BYTES)


_MAYBE_TUPLE: set[type] = {tuple, type(None)}
"""Types of a field that a short row does not have: it is None in the column then."""


_PLAIN_CALL = (bytes, str, bytes)


def _call(name: str, fields: tuple[Any, ...]) -> None:
    _ids(name, fields[:1], TASK_BYTES)
    rows = fields[2]
    if len(rows) == 1 and type(rows[0]) is tuple and tuple(map(type, rows[0])) == _PLAIN_CALL and len(rows[0][0]) == TASK_BYTES:
        return  # As for results.
    columns = _columns(name, fields[2], {3, 6}, (_BYTES, _STR, _BYTES, _MAYBE_TUPLE, _MAYBE_TUPLE, _OPTIONS))
    _ids(name, columns[0], TASK_BYTES)
    if len(columns) == 6:
        for dependencies, values, options in zip(*columns[3:], strict=True):
            _ids(name, dependencies or (), OBJECT_BYTES)
            if len(dependencies or ()) != len(values or ()):
                raise MalformedFrame(f"{name}: each dependency has a value")
            _options(name, options or ())


def _reported(name: str, fields: tuple[Any, ...]) -> None:
    columns = _columns(name, fields[0], {5}, (_BYTES, _BYTES, _INT, _TUPLE, _TUPLE))
    _ids(name, columns[0], TASK_BYTES)
    _ids(name, columns[1], INCARNATION_BYTES)
    for contained in columns[4]:
        if not set(map(type, contained)) <= _TUPLE:
            raise MalformedFrame(f"{name}: refs are rows of ids")
        for refs in contained:
            _ids(name, refs, OBJECT_BYTES)


def _expect(name: str, fields: tuple[Any, ...]) -> None:
    columns = _columns(name, fields[0], {2, 3}, (_BYTES, _BYTES, {int, type(None)}))
    _ids(name, columns[0], OBJECT_BYTES)
    _ids(name, columns[1], TASK_BYTES)


def _hosting(name: str, fields: tuple[Any, ...]) -> None:
    columns = _columns(name, fields[0], {2}, (_TUPLE, _INT))
    _task_rows(name, columns[0])


def _traced(name: str, fields: tuple[Any, ...]) -> None:
    columns = _columns(name, fields[0], {2}, (_BYTES, _STR))
    _ids(name, columns[0], FUNCTION_BYTES)
    if len(fields[1]) % EACH_BYTES:
        raise MalformedFrame(f"{name}: a trace has {EACH_BYTES} bytes for each call")
    columns = _columns(name, fields[2], {2}, (_BYTES, _TUPLE))
    _ids(name, columns[0], TASK_BYTES)
    _ids(name, tuple(itertools.chain.from_iterable(columns[1])), OBJECT_BYTES)


def _delays(name: str, fields: tuple[Any, ...]) -> None:
    columns = _columns(name, fields[1], {5}, (_BYTES, _BYTES, _TUPLE, _TUPLE, {bool}))
    _ids(name, (*columns[0], *columns[1], *itertools.chain.from_iterable(columns[3])), TASK_BYTES)
    _ids(name, tuple(itertools.chain.from_iterable(columns[2])), OBJECT_BYTES)


def _whereabouts(name: str, fields: tuple[Any, ...]) -> None:
    columns = _columns(name, fields[0], {7}, (_BYTES, _INT, _BYTES, _INT, {bool}, _BYTES, _BYTES))
    _ids(name, columns[0], TASK_BYTES)


def _logged(name: str, fields: tuple[Any, ...]) -> None:
    _ids(name, fields[:1], TASK_BYTES)
    _ids(name, fields[-1], OBJECT_BYTES)
    if min(fields[1:4]) < 0 or max(fields[1:4]) >= LOG_NUMBERS_MAX:
        raise MalformedFrame(f"{name}: what is logged is numbered from 0, below {LOG_NUMBERS_MAX}")


def _block(name: str, fields: tuple[Any, ...]) -> None:
    _logged(name, fields)
    _ids(name, fields[5], OBJECT_BYTES)


def _checkpoint(name: str, fields: tuple[Any, ...]) -> None:
    _logged(name, fields)
    if not 0 <= fields[4] < fields[5] <= CHECKPOINT_PARTS_MAX:
        raise MalformedFrame(f"{name}: a checkpoint has parts 0 to {CHECKPOINT_PARTS_MAX - 1}")


def _replaying(name: str, fields: tuple[Any, ...]) -> None:
    _ids(name, fields[:1], TASK_BYTES)
    _ids(name, fields[3], INCARNATION_BYTES)


def _counted(name: str, fields: tuple[Any, ...]) -> None:
    _ids(name, fields[:1], TASK_BYTES)
    if not (0 <= fields[1] < LOG_NUMBERS_MAX and 0 <= fields[2] < LOG_NUMBERS_MAX):
        raise MalformedFrame(f"{name}: calls are counted from 0, below {LOG_NUMBERS_MAX}")


def _taken(name: str, fields: tuple[Any, ...]) -> None:
    _ids(name, fields[:1], TASK_BYTES)
    _ids(name, fields[1], TASK_BYTES)


def _one_task(name: str, fields: tuple[Any, ...]) -> None:
    _ids(name, fields[:1], TASK_BYTES)


_ROW_CHECKS = {
    "FindActors": _task_ids,
    "ActorLocations": _whereabouts,
    "Call": _call,
    "Returned": _results,
    "CallOutcomes": _reported,
    "OutcomesRecorded": _task_ids,
    "ExpectResults": _expect,
    "HostedActors": _hosting,
    "CallTimes": _traced,
    "HostDelays": _delays,
    "LogAppended": _block,
    "Checkpoint": _checkpoint,
    "LogCommitted": _one_task,
    "ReplayProgress": _replaying,
    "CallCounts": _counted,
    "OutcomesReceived": _taken,
    "KillActor": _one_task,
    "ActorExiting": _one_task,
    "RetireActor": _one_task,
    "ActorEnded": _one_task,
    "StopCall": _one_task,
    "Submit": _submit,
    "InheritTasks": _inherit,
    "Dispatch": _dispatch,
    "DirectAllowed": _introduced,
    "SubmitDirect": _handed,
    "SubmittedDirect": _handed,
    "DirectCounts": _told,
    "Completed": _completed,
    "Yielded": _yielded,
    "Results": _results,
    "Objects": _object_rows,
    "OfferResults": _object_rows,
    "Put": _put,
    "RunningTasks": _running,
    "Export": _exports,
    "Functions": _exports,
    "Hold": _object_ids,
    "Release": _object_ids,
    "Fetch": _object_ids,
    "PutCommitted": _object_ids,
    "Cancel": _object_ids,
    "Unpin": _object_ids,
    "RecallPins": _object_ids,
    "Free": _object_ids,
    "RetainOnly": _object_ids,
    "TakeBack": _task_ids,
    "TakenBack": _task_ids,
    "Pinned": _places,
    "GrantsHeld": _grants,
    "ReturnGrant": _returned_grant,
    "Write": _writes,
    "Blocked": _blocked,
    "WaitDetails": _awaits,
}
