"""Messages that their receiver cannot read, or that no frame can carry: each row in them gets an outcome that names the reason.

``answer_to`` makes the answer for a sender that waits for outcomes, ``in_place_of`` the message delivered instead of one that had outcomes.
A link never waits for a refused message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from zfabric.protocol import messages as m
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.ids import OBJECT_BYTES, TASK_BYTES, split_ids
from zfabric.protocol.messages import FAILED


class Unread(NamedTuple):
    """A message that could not be read: its name, its fields as received, and the reason."""

    name: str
    fields: tuple[Any, ...]
    text: str


def settle(said: Iterable[m.Envelope]) -> tuple[list[m.Envelope], list[m.Envelope]]:
    """Split received messages into those to deliver and the answers to send."""
    delivered: list[m.Envelope] = []
    answers: list[m.Envelope] = []
    for to, source, message in said:
        if not isinstance(message, Unread):
            delivered.append((to, source, message))
            continue
        replacement = in_place_of(message)
        answer = answer_to(message) if replacement is None else None
        if replacement is not None:
            delivered.append((to, source, replacement))
        if answer is not None:
            answers.append((source, to, answer))
    return delivered, answers


def answer_to(unread: Unread) -> m.Message | None:
    """The answer to a sender that waits for outcomes; None if it waits for none, or the rows cannot be identified."""
    return _made(_ANSWERS, unread)


def in_place_of(unread: Unread) -> m.Message | None:
    """A message of the same kind with failures for outcomes; None if it has none, or the rows cannot be identified."""
    return _made(_REPLACEMENTS, unread)


_Maker = Callable[[tuple[Any, ...], bytes, str], m.Message]


def _made(makers: dict[str, _Maker], unread: Unread) -> m.Message | None:
    maker = makers.get(unread.name)
    if maker is None:
        return None
    text = f"{unread.name} was refused: {unread.text}"
    try:
        return maker(unread.fields, pack_failure("FabricError", text), text)
    except (TypeError, ValueError, IndexError, AttributeError):
        return None  # Not even the ids of its rows are valid.


def _id(value: Any, length: int = TASK_BYTES) -> bytes:
    if type(value) is not bytes or len(value) != length:
        raise ValueError("not an id")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("not a number")
    return value


def _failed(rows: Any, failure: bytes) -> m.Rows:
    return tuple((_id(row[0]), FAILED, (failure,)) for row in rows)


def _dispatched(fields: tuple[Any, ...], failure: bytes, text: str) -> m.Message:
    rows, details, _, first = fields
    attempts = {row[0]: row[1] for row in details}
    return m.Completed.of(tuple((_id(row[0]), _whole(attempts.get(index, first)), FAILED, (failure,)) for index, row in enumerate(rows)))


def _delegated(fields: tuple[Any, ...], failure: bytes, text: str) -> m.Message:
    """The end of each attempt. Nobody retains it, so its number is none."""
    rows, pairs, first = fields[2], fields[3], fields[6]
    attempts = {row[0]: row[1] for row in pairs}
    ends = tuple((_id(row[0]), _whole(attempts.get(index, first)), FAILED, (failure,)) for index, row in enumerate(rows))
    return m.Ended(0, tuple(m.Completed.of(ends)), ())


def _ended(fields: tuple[Any, ...], failure: bytes, text: str) -> m.Message:
    return m.Ended(_whole(fields[0]), tuple(_completed(fields[1], failure, text)), ())


def _yielded(fields: tuple[Any, ...], failure: bytes, text: str) -> m.Message:
    """Failed attempts, since a stream without one of its values has no end. Of a call, only the stream fails."""
    attempts = {_id(row[0]): _whole(row[1]) for row in fields[0]}
    return m.Completed.of(tuple((task, attempt, FAILED, (failure,)) for task, attempt in attempts.items()))


def _completed(fields: tuple[Any, ...], failure: bytes, text: str) -> m.Message:
    attempts, task_ids = fields[0], split_ids(fields[3], TASK_BYTES)
    return m.Completed.of(tuple((_id(task), _whole(each), FAILED, (failure,)) for task, each in zip(task_ids, attempts, strict=True)))


_ANSWERS: dict[str, _Maker] = {
    "Submit": lambda fields, failure, text: m.Results(_failed(fields[0], failure)),
    # ``SubmitDirect`` needs no answer. Its sender reports the same rows to the scheduler, which refuses the same ones and answers here.
    "SubmittedDirect": lambda fields, failure, text: m.Results(_failed(fields[1], failure)),
    "Call": lambda fields, failure, text: m.Returned(_failed(fields[2], failure)),
    "Dispatch": _dispatched,
    "Delegate": _delegated,
    "Query": lambda fields, failure, text: m.Answer(_whole(fields[0]), None, text),
    **dict.fromkeys(
        (
            "Export",
            "Put",
            "OfferResults",
            "Hold",
            "Release",
            "WatchReferences",
            "Fetch",
            "FindActors",
            "ExpectResults",
            "Cancel",
            "KillActor",
            "Register",
            "Reserve",
            "Unpin",
        ),
        lambda fields, failure, text: m.Refused("FabricError", text),
    ),
}
"""Makers of answers, by the name of a message. A sender that waits for no outcomes gets ``Refused``."""
_REPLACEMENTS: dict[str, _Maker] = {
    "Results": lambda fields, failure, text: m.Results(_failed(fields[0], failure)),
    "Returned": lambda fields, failure, text: m.Returned(_failed(fields[0], failure)),
    "Objects": lambda fields, failure, text: m.Objects(tuple((_id(row[0], OBJECT_BYTES), FAILED, failure, ()) for row in fields[0])),
    "CallOutcomes": lambda fields, failure, text: m.CallOutcomes(tuple((_id(row[0]), row[1], FAILED, (failure,), ()) for row in fields[0])),
    "Completed": _completed,
    "Ended": _ended,
    "Yielded": _yielded,
    "Answer": lambda fields, failure, text: m.Answer(_whole(fields[0]), None, text),
}
"""Makers of messages to deliver instead, by the name of a message."""
