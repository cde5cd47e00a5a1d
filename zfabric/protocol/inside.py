"""The ids of objects that a value or a failure contains refs to, in front of its bytes.

So a process that receives a failure, or a restarted daemon that finds a value, reads them without the program's code.
"""

from __future__ import annotations

from collections.abc import Callable

from zfabric.protocol.ids import OBJECT_BYTES, split_ids

REFS = 0xC1
"""The first byte of what has refs inside. No pickle and nothing of msgpack begins with it."""
_HEAD_BYTES = 5
_READ_BYTES = 64
"""Bytes that ``read_refs`` reads first: enough for two ids, as most values have."""


def with_refs(payload: bytes, refs: tuple[bytes, ...]) -> bytes:
    """``payload`` with the ids of the objects that it contains refs to."""
    return b"".join((bytes((REFS,)), len(refs).to_bytes(4, "big"), *refs, payload)) if refs else payload


def refs_in(payload: bytes) -> tuple[bytes, ...]:
    """Ids of the objects that ``payload`` contains refs to."""
    end = ids_end(payload)
    return tuple(split_ids(payload[_HEAD_BYTES:end], OBJECT_BYTES)) if end else ()


def without_refs(payload: bytes) -> bytes:
    """``payload`` without the ids at its beginning."""
    return payload[ids_end(payload) :]


def ids_end(payload: bytes | memoryview) -> int:
    """The number of bytes that the ids at the beginning of ``payload`` take. Its first 5 bytes suffice."""
    if not len(payload) or payload[0] != REFS:
        return 0
    return _HEAD_BYTES + int.from_bytes(payload[1:_HEAD_BYTES], "big") * OBJECT_BYTES


def read_refs(read: Callable[[int], bytes], size: int) -> tuple[bytes, ...]:
    """Ids of the objects that a payload of ``size`` bytes contains refs to. ``read(count)`` returns its first bytes."""
    start = read(min(size, _READ_BYTES))
    end = ids_end(start)
    return refs_in(start if end <= len(start) else read(end)) if end <= size else ()
