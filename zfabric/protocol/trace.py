"""The times of a worker's attempts, as the timeline shows them.

A trace is a batch of attempts, in three columns: the ids of tasks (16 bytes each) and of functions (16), and two doubles: start, by the
monotonic clock that all processes of a machine share, and duration, in seconds. An event of the control store is a trace with all that is
needed to read it once the worker is dead and the job's functions are deleted.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgpack

from zfabric.protocol.ids import FUNCTION_BYTES, JOB_BYTES, TASK_BYTES, pack_counter, split_ids

Names = tuple[tuple[bytes, str], ...]
"""The names of functions or attempts, by their ids in a trace."""
Arguments = tuple[tuple[bytes, tuple[bytes, ...]], ...]
"""The values that calls took as arguments: ``(call_id, object ids)``, without calls that took none."""

_HEAD = TASK_BYTES + FUNCTION_BYTES
SPAN_BYTES = 16
"""The start and the duration of an attempt."""
TIME_BYTES = FUNCTION_BYTES + SPAN_BYTES
"""Bytes of an attempt in a trace, besides its task's id."""
EACH_BYTES = TASK_BYTES + TIME_BYTES
WAITED_BYTES = 8
"""How long a call waited in its actor's process, if measured: a double beside the trace."""
UNKNOWN = -1.0
"""In its place, for a call that arrived before the measurement."""


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
    """The part of a trace after the tasks' ids: functions' ids, then the start and the duration in seconds of each attempt."""
    return b"".join(functions) + struct.pack(f"{len(times)}d", *times)


def pack_waited(waited: Sequence[float]) -> bytes:
    """Seconds for which each call of a trace waited, or ``UNKNOWN``."""
    return struct.pack(f"{len(waited)}d", *waited)


def read_waited(waited: bytes, count: int) -> Sequence[float]:
    """What ``pack_waited`` packed, for a trace of ``count`` calls; all are unknown if nobody measured."""
    found = array("d", waited)
    return found if len(found) == count else [UNKNOWN] * count


class TraceEvent(NamedTuple):
    """A row of the event table: the reporting worker and its node, the names of the functions, and the trace."""

    node: bytes
    pid: int
    names: Names
    trace: bytes
    kind: str = "task"
    """Attempts of a "task", or a "call" of an actor: then the functions' ids are those of methods."""
    arguments: Arguments = ()
    waited: bytes = b""
    """How long calls waited in the actor's process before they began (``pack_waited``); empty if nobody measured."""


MARKS = ("failed", "retried", "cancelled", "timed out", "crashed", "died")
"""How an attempt or a call ended without success, as traces mark it. ("retried": it raised an error that its options retry.)"""
_MARK = "\x1f"


def marked(name: str, mark: str) -> str:
    """A name in a trace, with a mark for how the named attempt or call ended."""
    return f"{name}{_MARK}{mark}"


def unmarked(name: str) -> tuple[str, str]:
    """``(name, mark)`` of a name in a trace; the mark is empty if it succeeded."""
    before, separator, mark = name.rpartition(_MARK)
    return (before, mark) if separator and mark in MARKS else (name, "")


def rename(trace: bytes, names: dict[int, str]) -> tuple[bytes, Names]:
    """Name the attempts at these places separately: the changed trace, and one row ``(id, name)`` for each name."""
    count = len(trace) // EACH_BYTES
    changed = bytearray(trace)
    identifiers: dict[str, bytes] = {}
    for place, name in names.items():
        identifier = identifiers.get(name)
        if identifier is None:  # No other id in this trace equals it.
            identifier = identifiers[name] = b"name of " + place.to_bytes(FUNCTION_BYTES - 8, "big")
        at = count * TASK_BYTES + place * FUNCTION_BYTES
        changed[at : at + FUNCTION_BYTES] = identifier
    return bytes(changed), tuple((identifier, name) for name, identifier in identifiers.items())


def pack_event(
    node: bytes, pid: int, names: Names, trace: bytes, kind: str = "task", arguments: Arguments = (), waited: bytes = b""
) -> bytes:
    """The value of a row of the event table."""
    packed: bytes = msgpack.packb((node, pid, names, trace, kind, arguments, *((waited,) if waited else ())), use_bin_type=True)
    return packed


def method_id(actor_id: bytes, number: int) -> bytes:
    """An id for a method, in place of a function's: it names the actor, within the job of its process."""
    return actor_id[JOB_BYTES:] + pack_counter(number)


def actor_of(method: bytes, call_id: bytes) -> bytes:
    """The actor whose method this is."""
    return call_id[:JOB_BYTES] + method[: TASK_BYTES - JOB_BYTES]


def unpack_event(value: bytes) -> TraceEvent:
    """What ``pack_event`` packed."""
    return TraceEvent(*msgpack.unpackb(value, use_list=False, raw=False))
