"""The format of the log of a logged actor: what the actor writes, the control store keeps, and a replay and ``zfabric state dump`` read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from zfabric.machines.common.tables import unpack_row
from zfabric.protocol.ids import TASK_BYTES
from zfabric.protocol.messages import Row
from zfabric.protocol.options import LOG_NUMBERS_MAX, option

LOG, CHECKPOINT = "log", "checkpoint"


class LoggedCall(NamedTuple):
    """A call that has run. Enough to run it again in the state that the calls before it have left."""

    number: int
    call_id: bytes
    caller: bytes
    method: str
    arguments: bytes
    dependencies: tuple[bytes, ...]
    values: tuple[bytes | None, ...]
    options: tuple[Row, ...] | None
    status: int
    outputs: tuple[bytes | None, ...]
    again: bool
    """Whether a replay runs it. It does not run a call that was stopped in its middle: nobody knows where that was."""
    calls: tuple[Row, ...] = ()
    """Calls that the actor has made of itself since the row before, and the outcomes of such calls that have no row (see ``OwnCalls``)."""


def is_note(row: Row) -> bool:
    """Whether a row of the log records the end of a call, and not a call."""
    return len(row) == 2


def calls_in(block: bytes) -> list[LoggedCall]:
    """Unpack the calls of a block."""
    return [LoggedCall(*fields) for fields in unpack_row(block)[1]]


def part_key(actor_id: bytes, last: int, index: int) -> bytes:
    """The key of a part of a checkpoint."""
    return actor_id + last.to_bytes(8, "big") + index.to_bytes(4, "big")


def newest(parts: Iterable[Row], before: int = LOG_NUMBERS_MAX) -> tuple[bytes | None, int]:
    """Find the last complete checkpoint of an actor, and the call after which it was taken; (None, 0) if there is none.

    Only those count that were taken before call ``before``.
    """
    found: tuple[bytes | None, int] = None, 0
    pieces: list[bytes] = []
    wanted = 0
    for key, value in parts:
        count, _, data = unpack_row(value)
        if int.from_bytes(key[TASK_BYTES:-4], "big") >= before:
            break
        if int.from_bytes(key[-4:], "big") == 0:
            pieces, wanted = [], count
        if count == wanted:  # Not one of a checkpoint after the same call that was never whole.
            pieces.append(data)
            if len(pieces) == count:
                found = b"".join(pieces), int.from_bytes(key[TASK_BYTES:-4], "big")
    return found


def blocks_after(last: int, blocks: Iterable[Row]) -> Iterator[bytes]:
    """The rows of an actor's log from call ``last`` + 1 on."""
    for key, value in blocks:
        if int.from_bytes(key[TASK_BYTES:], "big") > last:
            yield unpack_row(value)[2]


def is_remake(row: Row) -> bool:
    """Whether a task row is that of a replay for a lost value."""
    return len(row) > 4 and option(row[4], "remake") is not None
