"""Frames on the wire: msgpack, bounded and checked against the messages' own annotations before a machine sees them.

A frame is ``[sequence, acknowledged, [[to role, from role, message name, fields], …]]``. It decodes to immutable tuples; nothing is
unpickled.

No frame is larger than its receiver accepts (``Config.frame_bytes_max``): ``cut`` distributes messages over several. A message that is a
list of rows becomes several messages. Another large one travels in *pieces*: frames ``[sequence, acknowledged, bytes]``, the bytes being
the number of pieces that follow (4 bytes) and a part of the packed messages.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable, Iterator
from typing import Any

import msgpack

from zfabric.config import FRAME_BYTES_MAX, MESSAGE_BYTES_MAX
from zfabric.protocol.checks import FieldChecks, field_checks
from zfabric.protocol.checks import MalformedFrame as MalformedFrame
from zfabric.protocol.ids import LOCAL_SCHEDULER
from zfabric.protocol.messages import MESSAGES, Envelope, Message
from zfabric.protocol.pieces import Piece, divided
from zfabric.protocol.refusals import Unread

MESSAGES_MAX = 65_536
"""Most messages in one frame."""


class MessageTooLarge(ValueError):
    """A message that no receiver would accept, in however many pieces."""


_HEAD = (bytes, bytes, str, tuple)
Types = tuple[tuple[type, ...] | None, ...]
Shape = tuple[type[Any], Types, frozenset[tuple[type, ...]], *FieldChecks]
_SHAPES: dict[str, Shape] = {}
"""

By the names of messages received so far: the class, the types of each field, all combinations of these (so that the usual check is one
look-up), and the checks of the fields.
"""
_new: Callable[[type[Any], tuple[Any, ...]], Any] = tuple.__new__
"""Makes a message of its fields, whose number is checked, in half the time of a call of its class."""


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


def _shape_of(name: str) -> Shape:
    """Find what a message of this name must be, once for each name."""
    kind: Any = MESSAGES.get(name)
    if kind is None:
        raise MalformedFrame(f"no message is called {name!r}")
    hints = typing.get_type_hints(kind)
    accepted = tuple(_accepted(hints[field]) for field in kind._fields)
    anything = any(types is None for types in accepted)
    combinations = frozenset() if anything else frozenset(itertools.product(*(types or () for types in accepted)))
    return _SHAPES.setdefault(name, (kind, accepted, combinations, *field_checks(kind)))


_pack: Callable[[Any], bytes] = msgpack.Packer().pack
"""One packer for all threads: it calls no Python code, so a frame is finished before another thread gets the interpreter."""
_PACKER_BYTES = 2**20
"""After a larger frame, another packer is used: a packer retains memory for its largest one."""


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
"""More bytes than a frame has besides its messages, or the bytes of a piece."""
_LEFT_BYTES = 4


def encode_body(sequence: int, acknowledged: int, body: Body) -> bytes:
    """One frame of a body that ``cut`` made, or of envelopes."""
    if not isinstance(body, Piece):
        return encode(sequence, acknowledged, body)
    return _pack((sequence, acknowledged, body.left.to_bytes(_LEFT_BYTES, "big") + body.data))


def cut(envelopes: list[Envelope], limit: int, expected: int = 0) -> Iterator[Body]:
    """Distribute ``envelopes`` over frames of at most ``limit`` bytes, in order. Raises MessageTooLarge if one fits no receiver.

    If more than ``limit`` bytes are ``expected``, they are halved before they are encoded, so that rows of similar size are encoded once.
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


def check_message(message: Message) -> None:
    """Check a message that was made of what a process sent, as if it had come in a frame. Raises MalformedFrame."""
    _envelope((LOCAL_SCHEDULER, LOCAL_SCHEDULER, type(message).__name__, tuple(message)))


def _envelope(item: Any) -> Envelope:
    if type(item) is not tuple or tuple(map(type, item)) != _HEAD:
        raise MalformedFrame("a message is [to, from, name, fields]")
    to, source, name, fields = item
    if len(to) != 1 or len(source) != 1:
        raise MalformedFrame("a message's head is two role letters and a name")
    kind, accepted, combinations, is_plain, checks, whole = _SHAPES.get(name) or _shape_of(name)
    if tuple(map(type, fields)) not in combinations:
        if len(fields) != len(accepted):
            raise MalformedFrame(f"{name} has {len(accepted)} fields")
        for value, types, field in zip(fields, accepted, kind._fields, strict=True):
            if types is not None and type(value) not in types:
                raise MalformedFrame(f"{name}.{field} cannot be {type(value).__name__}")
    message = _new(kind, fields)
    try:
        if is_plain is None or not is_plain(fields):
            for place, check in checks:
                check(fields[place])
            if whole is not None:
                whole(message)
    except MalformedFrame as error:
        raise MalformedFrame(f"{name}: {error}") from None
    return to, source, message
