"""What a worker says of the times of its attempts, as the timeline shows them.

A trace is a batch: for each attempt ``task id (16) | function id (16)``, then for each two doubles, the start (seconds of the
monotonic clock that all processes of a machine share) and the duration. An event, as the control store keeps it, is a trace with
all that is needed to read it later, when its worker is dead and the functions of its job are deleted.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

import msgpack

from zfabric.protocol.ids import FUNCTION_BYTES, JOB_BYTES, TASK_BYTES, pack_counter
from zfabric.protocol.messages import Rows

_HEAD = TASK_BYTES + FUNCTION_BYTES
_EACH = _HEAD + 16


def read_trace(trace: bytes) -> Iterator[tuple[bytes, bytes, float, float]]:
    """(task id, function id, start, seconds) of each attempt in the batch."""
    count = len(trace) // _EACH
    times = array("d")
    times.frombytes(trace[count * _HEAD : count * _EACH])
    for index in range(count):
        head = trace[index * _HEAD : (index + 1) * _HEAD]
        yield head[:TASK_BYTES], head[TASK_BYTES:], times[2 * index], times[2 * index + 1]


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
