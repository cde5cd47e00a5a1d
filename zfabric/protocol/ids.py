"""Identifiers: fixed-length bytes whose structure says where they come from.

A task's id is ``job (4) | parent (8) | counter (4)``: the parent part is a hash of the submitting task's id (and of an
epoch, so that an exhausted counter goes on under another hash), and the counter numbers that parent's children. No hash is
computed per task. What is said again after a daemon's restart has the same names; another attempt of the parent names other
children. An object's id is ``task id (16) | index (4)``:
returns of tasks count from 0, of actor calls from 2**30, ``put`` values from 2**31. An actor's id is that of the task that makes it.
"""

from __future__ import annotations

import hashlib
import struct

JOB_BYTES = 4
PARENT_BYTES = 8
PREFIX_BYTES = JOB_BYTES + PARENT_BYTES
TASK_BYTES = 16
OBJECT_BYTES = 20
INCARNATION_BYTES = 8
ADDRESS_BYTES = 1 + INCARNATION_BYTES
FUNCTION_BYTES = 16

CHILDREN_MAX = 2**32 - 1
"""Children one (parent, epoch) can name; the next epoch's hash names the ones after them."""

FIRST_PUT_INDEX = 2**31
FIRST_RETURN = b"\x00\x00\x00\x00"
FIRST_CALL_INDEX = 2**30
CALL_RETURN = b"\x40\x00\x00\x00"
"""What the id of an actor call's first value ends in: such values are their caller's business until others hear of them."""

_TRIES_BITS = 32
_TRIES_MAX = 2**32 - 1

SLOTS = 1024
"""Fixed number of slots that ids hash to; a versioned table maps slots to control-store shards."""
SLOT_RUN_BITS = 10
"""Successive children of one parent that share a slot, as a power of two: batches stay batches."""

pack_counter = struct.Struct(">I").pack
unpack_counter = struct.Struct(">I").unpack

Address = bytes
"""Who a message is from or for: one role letter and the process incarnation that plays the role."""

CLIENT, WORKER, CONTROL, ACTOR, TOOL = b"C", b"W", b"K", b"A", b"T"
LOCAL_SCHEDULER, OBJECT_STORE, CONTROL_STORE, GLOBAL_SCHEDULER, SHELL = b"L", b"O", b"S", b"G", b"X"


def job_id(number: int) -> bytes:
    """The id of the ``number``-th job of a cluster (4 bytes)."""
    return pack_counter(number)


def root_task(job: bytes) -> bytes:
    """The id under which a driver itself submits: the parent of all its first tasks (16 bytes)."""
    return job + bytes(TASK_BYTES - JOB_BYTES)


def child_prefix(job: bytes, parent: bytes, epoch: int = 0, salt: bytes = b"") -> bytes:
    """The first 12 bytes of every id that ``parent`` gives its children in ``epoch``.

    ``salt`` sets apart names that must not be shared: the attempt of a parent that is not deterministic, the thread of
    a task that submits from several, the attempt in which a value was ``put``.
    """
    digest = hashlib.blake2b(parent + pack_counter(epoch) + salt, digest_size=PARENT_BYTES).digest()
    return job + digest


def object_id(task: bytes, index: int = 0) -> bytes:
    """The id of the ``index``-th value of a task (20 bytes)."""
    return task + pack_counter(index)


def task_of(object_id: bytes) -> bytes:
    """The task whose value, or whose ``put``, an object is."""
    return object_id[:TASK_BYTES]


def index_of(object_id: bytes) -> int:
    """Which value of its task an object is: a return's number, or 2**31 and up for ``put`` values."""
    number: int = unpack_counter(object_id[TASK_BYTES:])[0]
    return number


def control_of(incarnation: bytes) -> bytes:
    """The incarnation under which the control thread of a worker's process registers; of that, the worker's own again."""
    return bytes((incarnation[0] ^ 0x80,)) + incarnation[1:]


def is_put(object_id: bytes) -> bool:
    """Whether the object was ``put`` rather than returned (and so has no lineage)."""
    return object_id[TASK_BYTES] >= 0x80


def is_call(object_id: bytes) -> bool:
    """Whether the object is the result of an actor's method."""
    return 0x40 <= object_id[TASK_BYTES] < 0x80


def call_value(call_id: bytes, index: int) -> bytes:
    """The id of the ``index``-th value of an actor call (20 bytes)."""
    return call_id + pack_counter(FIRST_CALL_INDEX + index)


def slot_of(task: bytes) -> int:
    """The slot (0 … 1023) of a task, its outputs and about a thousand of its siblings."""
    run = unpack_counter(task[PREFIX_BYTES:TASK_BYTES])[0] >> SLOT_RUN_BITS
    digest = hashlib.blake2b(task[:PREFIX_BYTES] + pack_counter(run), digest_size=4).digest()
    slot: int = unpack_counter(digest)[0] % SLOTS
    return slot


# The number of an attempt names it: its task has no other one of that number, whichever daemon gave it out. The upper half says how many
# daemons the node had had before that one, the lower half how many attempts that one knew of: that is what people are shown. A daemon that
# died may have given out attempts of which nobody tells the next one, and so the lower half alone would come again.


def first_attempt(daemons: int) -> int:
    """The attempt that a daemon gives out of a task of which it knows none; the node had ``daemons`` before it."""
    return daemons << _TRIES_BITS


def next_attempt(attempt: int, first: int) -> int:
    """The attempt after ``attempt``, given out by the daemon whose first attempts are ``first``."""
    return first + tries_of(attempt) + 1


def tries_of(attempt: int) -> int:
    """Which try this is of its task, from 0, as far as was known when it began."""
    return attempt & _TRIES_MAX


def daemons_of(attempt: int) -> int:
    """How many daemons the node had had before the one that gave this attempt out."""
    return attempt >> _TRIES_BITS


def address(role: bytes, incarnation: bytes) -> Address:
    """The address of the machine that plays ``role`` in the process ``incarnation``."""
    return role + incarnation


def split_ids(joined: bytes, length: int) -> list[bytes]:
    """Ids that are one behind the other, each of so many bytes."""
    return [joined[start : start + length] for start in range(0, len(joined), length)]


PARENT_DIGITS = 4
"""Digits of a parent's hash that people are shown; enough to tell apart the parents of one job that are on one screen."""


def short(identifier: bytes) -> str:
    """The form of a task's or an object's id that people read and type (``protocol.names``); hex for anything else."""
    if len(identifier) not in (TASK_BYTES, OBJECT_BYTES):
        return identifier.hex()
    job = unpack_counter(identifier[:JOB_BYTES])[0]
    parent = identifier[JOB_BYTES:PREFIX_BYTES].hex()[:PARENT_DIGITS]
    text = f"{job}-{parent}-{unpack_counter(identifier[PREFIX_BYTES:TASK_BYTES])[0]}"
    if len(identifier) == TASK_BYTES:
        return text
    index = index_of(identifier)
    kind = "p" if index >= FIRST_PUT_INDEX else "c" if index >= FIRST_CALL_INDEX else ""
    return f"{text}-{kind}{index - FIRST_INDEX[kind]}"


FIRST_INDEX = {"": 0, "c": FIRST_CALL_INDEX, "p": FIRST_PUT_INDEX}
"""The index of the first object of each kind: what a task returned, what a call of an actor did, what was put."""
