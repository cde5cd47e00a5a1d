"""What a worker says of the times of its attempts, as the timeline shows them.

A trace is a batch, by column: for each attempt its task's id (16), then for each the function's (16), then for each two doubles, the
start (seconds of the monotonic clock that all processes of a machine share) and the duration. An event, as the control store keeps it,
is a trace with all that is needed to read it later, when its worker is dead and the functions of its job are deleted.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgpack

from zfabric.protocol.ids import FUNCTION_BYTES, JOB_BYTES, TASK_BYTES, pack_counter, split_ids
from zfabric.protocol.messages import Rows

_HEAD = TASK_BYTES + FUNCTION_BYTES
SPAN_BYTES = 16
"""When an attempt began, and how long it took."""
TIME_BYTES = FUNCTION_BYTES + SPAN_BYTES
"""What a trace has of an attempt besides its task's id."""
EACH_BYTES = TASK_BYTES + TIME_BYTES


def read_trace(trace: bytes) -> Iterator[tuple[bytes, bytes, float, float]]:
    """(task id, function id, start, seconds) of each attempt in the batch."""
    count = len(trace) // EACH_BYTES
    times = array("d")
    times.frombytes(trace[count * _HEAD : count * EACH_BYTES])
    tasks, functions = (
        split_ids(trace[: count * TASK_BYTES], TASK_BYTES),
        split_ids(trace[count * TASK_BYTES : count * _HEAD], FUNCTION_BYTES),
    )
    yield from zip(tasks, functions, times[::2], times[1::2], strict=True)


def pack_times(functions: Sequence[bytes], times: Sequence[float]) -> bytes:
    """What follows the ids of tasks in a trace: the functions, and when each began, and how many seconds it took."""
    return b"".join(functions) + struct.pack(f"{len(times)}d", *times)


class TraceEvent(NamedTuple):
    """A row of the event table: which worker of which node says so, the names of the functions, and the trace."""

    node: bytes
    pid: int
    names: tuple[tuple[bytes, str], ...]
    trace: bytes
    kind: str = "task"
    """Attempts of a "task", or a "call" of an actor: then the ids of functions are those of methods."""
    arguments: Rows = ()
    """The values that calls took as arguments: ``(call_id, object ids)``, for those that took any."""


MARKS = ("failed", "retried", "cancelled", "timed out", "crashed", "died")
"""How attempts and calls end that did not succeed, as traces mark them. ("retried": it raised what its options say to retry.)"""
_MARK = "\x1f"


def marked(name: str, mark: str) -> str:
    """A name in a trace, with how what it names has ended."""
    return f"{name}{_MARK}{mark}"


def unmarked(name: str) -> tuple[str, str]:
    """``(name, mark)`` of a name in a trace; the mark is empty if it succeeded."""
    before, separator, mark = name.rpartition(_MARK)
    return (before, mark) if separator and mark in MARKS else (name, "")


def rename(trace: bytes, names: dict[int, str]) -> tuple[bytes, Rows]:
    """A trace in which the attempts at these places have names of their own, and the rows for these names: one for each name."""
    count = len(trace) // EACH_BYTES
    changed = bytearray(trace)
    identifiers: dict[str, bytes] = {}
    for place, name in names.items():
        identifier = identifiers.get(name)
        if identifier is None:  # Nothing else in this trace is called so.
            identifier = identifiers[name] = b"name of " + place.to_bytes(FUNCTION_BYTES - 8, "big")
        at = count * TASK_BYTES + place * FUNCTION_BYTES
        changed[at : at + FUNCTION_BYTES] = identifier
    return bytes(changed), tuple((identifier, name) for name, identifier in identifiers.items())


def pack_event(node: bytes, pid: int, names: Rows, trace: bytes, kind: str = "task", arguments: Rows = ()) -> bytes:
    """The value of a row of the event table."""
    packed: bytes = msgpack.packb((node, pid, names, trace, kind, arguments), use_bin_type=True)
    return packed


def method_id(actor_id: bytes, number: int) -> bytes:
    """What stands for a method in the place of a function's id: it says which actor's it is, within the job of its process."""
    return actor_id[JOB_BYTES:] + pack_counter(number)


def actor_of(method: bytes, call_id: bytes) -> bytes:
    """The actor whose method this is."""
    return call_id[:JOB_BYTES] + method[: TASK_BYTES - JOB_BYTES]


def unpack_event(value: bytes) -> TraceEvent:
    """What ``pack_event`` packed."""
    return TraceEvent(*msgpack.unpackb(value, use_list=False, raw=False))
