"""Outcomes that the fabric itself gives a task, as data: ``(kind, text, facts)``, packed with msgpack.

``kind`` is the name of an exception in ``zfabric.exceptions``, which clients raise. ``facts`` are (name, value) pairs, where known: node,
pid, attempt, signal, exit code, peak memory, last lines of stderr.

An outcome without a value, be it such a failure or what user code raised (``adapters/task_errors``), begins with the ids of the refs inside
(``inside``).
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgpack

from zfabric.protocol.inside import refs_in, with_refs, without_refs
from zfabric.protocol.messages import OK

Facts = tuple[tuple[str, Any], ...]


def refs_inside(status: int, outputs: Iterable[bytes | None]) -> tuple[bytes, ...]:
    """Ids of the objects that the outputs of a task or call contain refs to, if it has no value."""
    return () if status == OK else tuple(each for payload in outputs if payload for each in refs_in(payload))


def pack_failure(kind: str, text: str, facts: Facts = ()) -> bytes:
    """The failure as the one output of a FAILED row. The "cause" among the facts is what user code raised."""
    packed: bytes = msgpack.packb((kind, text, facts), use_bin_type=True)
    cause = next((value for name, value in facts if name == "cause"), None)
    return with_refs(packed, refs_in(cause)) if type(cause) is bytes else packed


def left_for_good(actor_id: bytes, how: str) -> bytes:
    """The failure of a call in which its actor has ended itself."""
    return pack_failure("ActorDiedError", f"it ended itself ({how})", (("actor", actor_id.hex()), ("outcome", "unknown"), ("left", how)))


def has_left(payload: bytes, actor_id: bytes) -> bool:
    """Whether a failure reports that this actor has ended itself (see ``left_for_good``)."""
    facts = dict(unpack_failure(payload)[2]) if payload else {}
    return "left" in facts and facts.get("actor") == actor_id.hex()


def summary_of(payload: bytes, raised: bool) -> tuple[str, str]:
    """``(kind, text)`` of an error: an exception that a task has ``raised``, or a failure.

    A raised exception is a pickle that begins with both (``adapters/task_errors``): they are read without unpickling.
    """
    kind, text, _ = texts_of(payload, raised)
    return kind, text


def texts_of(payload: bytes, raised: bool) -> tuple[str, str, str]:
    """``(kind, text, traceback)`` of an error as in ``summary_of``; empty where the payload was cut."""
    found = ["an error", "", ""]
    try:
        if not raised:
            return (*unpack_failure(payload)[:2], "")
        texts = (str(argument) for opcode, argument, _ in pickletools.genops(without_refs(payload)) if "UNICODE" in opcode.name)
        for place, text in enumerate(islice(texts, len(found))):
            found[place] = text
    except ValueError:
        pass
    return found[0], found[1], found[2]


def unpack_failure(payload: bytes) -> tuple[str, str, Facts]:
    """What ``pack_failure`` packed."""
    kind, text, facts = msgpack.unpackb(without_refs(payload), use_list=False, raw=False)
    return kind, text, facts
