"""Outcomes that the fabric itself gives a task, as data: ``(kind, text, facts)``, packed with msgpack.

``kind`` is the name of an exception in ``zfabric.exceptions``. ``facts`` are (name, value) pairs, where known: node,
pid, attempt, signal, exit code, peak memory, last lines of stderr. Clients turn a failure into that exception.
"""

from __future__ import annotations

import pickletools
from typing import Any

import msgpack

Facts = tuple[tuple[str, Any], ...]


def pack_failure(kind: str, text: str, facts: Facts = ()) -> bytes:
    """The failure as the one output of a FAILED row."""
    packed: bytes = msgpack.packb((kind, text, facts), use_bin_type=True)
    return packed


def left_for_good(actor_id: bytes, how: str) -> bytes:
    """The failure of a call in which its actor has ended itself."""
    return pack_failure("ActorDiedError", f"it ended itself ({how})", (("actor", actor_id.hex()), ("outcome", "unknown"), ("left", how)))


def has_left(payload: bytes, actor_id: bytes) -> bool:
    """Whether a failure reports that this actor has ended itself (see ``left_for_good``)."""
    facts = dict(unpack_failure(payload)[2]) if payload else {}
    return "left" in facts and facts.get("actor") == actor_id.hex()


def summary_of(payload: bytes, raised: bool) -> tuple[str, str]:
    """``(kind, text)`` of an error: an exception that a task has ``raised``, or a failure.

    A raised exception is a pickle that begins with both (``adapters/task_errors``): they are read, and nothing is unpickled.
    """
    if not raised:
        return unpack_failure(payload)[:2]
    texts = (str(argument) for opcode, argument, _ in pickletools.genops(payload) if "UNICODE" in opcode.name)
    try:
        return next(texts), next(texts)
    except (StopIteration, ValueError):
        return "an error", ""


def unpack_failure(payload: bytes) -> tuple[str, str, Facts]:
    """What ``pack_failure`` packed."""
    kind, text, facts = msgpack.unpackb(payload, use_list=False, raw=False)
    return kind, text, facts
