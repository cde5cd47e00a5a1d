"""Messages too large for one frame: lists of rows become several messages, others travel in pieces.

``divided`` halves a message where two messages with half the rows each mean the same. Others (an answer, a function, the objects that a
task waits for) are sent as parts of their bytes, which the receiver's link joins (``codec.cut``, ``Link.receive``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zfabric.config import SMALL_BYTES
from zfabric.protocol import messages as m
from zfabric.protocol.ids import FUNCTION_BYTES, TASK_BYTES
from zfabric.protocol.trace import SPAN_BYTES

DIVISIBLE: dict[type[Any], str] = {
    m.Call: "rows",
    m.Export: "functions",
    m.Fetch: "object_ids",
    m.FindActors: "actor_ids",
    m.Functions: "functions",
    m.Hold: "object_ids",
    m.LogLines: "rows",
    m.Objects: "rows",
    m.OfferResults: "rows",
    m.Put: "rows",
    m.OutcomesRecorded: "call_ids",
    m.Release: "object_ids",
    m.CallOutcomes: "rows",
    m.Results: "rows",
    m.Returned: "rows",
    m.Submit: "rows",
    m.SubmittedDirect: "rows",
    m.Unpin: "object_ids",
    m.Unreferenced: "object_ids",
    m.WatchReferences: "object_ids",
    m.ActorLocations: "rows",
    m.Yielded: "rows",
}
"""Messages that are lists of independent rows, and the field with the rows."""


class Piece:
    """The content of one frame of a message in pieces: a part of its bytes."""

    __slots__ = ("data", "envelopes", "left")

    def __init__(self, envelopes: list[m.Envelope], data: bytes, left: int) -> None:
        self.envelopes = envelopes
        """Messages that are complete with this frame. Empty at its receiver."""
        self.data = data
        self.left = left
        """The number of parts that follow."""


def divided(message: m.Message) -> tuple[m.Message, m.Message] | None:
    """Two messages that mean the same in order, each with half the rows; None if the message must not be divided."""
    kind: Any = type(message)
    special = _SPECIAL.get(kind)
    if special is not None:
        return special(message)
    field = DIVISIBLE.get(kind)
    if field is None:
        return None
    rows = getattr(message, field)
    if len(rows) < 2:
        return None
    middle = len(rows) // 2
    return message._replace(**{field: rows[:middle]}), message._replace(**{field: rows[middle:]})  # type: ignore[attr-defined]


def _dispatch(message: m.Dispatch) -> tuple[m.Message, m.Message] | None:
    middle = len(message.rows) // 2
    if not middle:
        return None
    before = tuple(row for row in message.details if row[0] < middle)
    behind = tuple((row[0] - middle, *row[1:]) for row in message.details if row[0] >= middle)
    return message._replace(rows=message.rows[:middle], details=before), message._replace(rows=message.rows[middle:], details=behind)


def _completed(message: m.Completed) -> tuple[m.Message, m.Message] | None:
    count = len(message.attempts)
    middle = count // 2
    if not middle:
        return None
    functions, times = message.times[: count * FUNCTION_BYTES], message.times[count * FUNCTION_BYTES :]
    halves: list[m.Message] = []
    for start, stop in ((0, middle), (middle, count)):
        halves.append(
            m.Completed(
                message.attempts[start:stop],
                message.statuses[start:stop],
                message.outputs[start:stop],
                message.task_ids[start * TASK_BYTES : stop * TASK_BYTES],
                tuple((row[0] - start, *row[1:]) for row in message.extras if start <= row[0] < stop),
                tuple((identifier, 0, 0.0) for identifier, *_ in message.durations) if start else message.durations,
                functions[start * FUNCTION_BYTES : stop * FUNCTION_BYTES] + times[start * SPAN_BYTES : stop * SPAN_BYTES],
            )
        )
    return halves[0], halves[1]


_SPECIAL: dict[type[Any], Callable[[Any], tuple[m.Message, m.Message] | None]] = {m.Dispatch: _dispatch, m.Completed: _completed}


def within_row(values: Sequence[object], limit: int) -> tuple[object, ...]:
    """Values of a row's dependencies, with None for inline ones beyond ``limit`` bytes together, which the receiver fetches."""
    kept: list[object] = []
    for value in values:
        if type(value) is bytes and len(value) > SMALL_BYTES:
            limit -= len(value)
            value = value if limit >= 0 else None
        kept.append(value)
    return tuple(kept)
