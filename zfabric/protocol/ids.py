"""Identifiers: fixed-length bytes whose structure names their origin.

A task's id is ``job (4) | parent (8) | counter (4)``. The parent part is a hash of the submitting task's id, its attempt, and an epoch,
under which an exhausted counter continues. The counter numbers that parent's children, so no hash is computed per task. After a daemon's
restart, the same attempt gives its children the same ids, another attempt others. An object's id is ``task id (16) | index (4)``: returns
of tasks count from 0, of actor calls from 2**30, ``put`` values from 2**31. An actor's id is that of the task that makes it.
"""

from __future__ import annotations

import hashlib
import struct
from itertools import count

JOB_BYTES = 4
PARENT_BYTES = 8
PREFIX_BYTES = JOB_BYTES + PARENT_BYTES
TASK_BYTES = 16
OBJECT_BYTES = 20
INCARNATION_BYTES = 8
FUNCTION_BYTES = 16
NODE_BYTES = 8

CHILDREN_MAX = 2**32 - 1
"""Children of one (parent, epoch); the next epoch names those after."""

FIRST_PUT_INDEX = 2**31
FIRST_RETURN = b"\x00\x00\x00\x00"
FIRST_CALL_INDEX = 2**30
CALL_RETURN = b"\x40\x00\x00\x00"
"""The end of the id of a call's first value. Only the caller knows such a value until other processes need it."""

_TRIES_BITS = 32
_TRIES_MAX = 2**32 - 1
_DAEMONS_BITS = 12
DAEMONS_MAX = 2**12 - 1
"""Most daemons of a node, which its supervisor then ends: an attempt's number has no room for more."""
NODE_NUMBER_MAX = 2**20 - 1
"""Largest number of a node: an attempt's has no room for more."""
ATTEMPT_MAX = 2**64 - 1
"""Largest number of an attempt."""
ATTEMPTS_OF_FIRST_DAEMON = 2**32 - 1
"""The last attempt number of the first daemon of a node without a cluster."""

pack_counter = struct.Struct(">I").pack
unpack_counter = struct.Struct(">I").unpack

Address = bytes
"""Sender or receiver of a message: a role letter, and the incarnation of the process that plays the role. For the daemon of another
node, the node's id follows: it outlives the daemon.
"""

CLIENT, WORKER, CONTROL, ACTOR, TOOL, TRANSFER_AGENT = b"C", b"W", b"K", b"A", b"T", b"F"
LOCAL_SCHEDULER, OBJECT_STORE, CONTROL_STORE, GLOBAL_SCHEDULER, SHELL = b"L", b"O", b"S", b"G", b"X"
REGISTRY, MEMBER = b"R", b"N"
DAEMON_ROLES = frozenset((LOCAL_SCHEDULER, OBJECT_STORE, CONTROL_STORE, GLOBAL_SCHEDULER, REGISTRY, MEMBER))
"""Roles of daemons."""
HEAD = bytes(INCARNATION_BYTES)
"""The head's node id for a node that joins and does not have it yet."""
JOINER = b"\x00\x00\x00"
"""Begins the sender's name in a request to join, to which the answer goes. No node id begins so."""


def is_control(incarnation: bytes) -> bool:
    """Whether the control thread of a process receives under this incarnation."""
    return incarnation[0] >= 0x80


def job_id(number: int) -> bytes:
    """The id of the ``number``-th job of a cluster (4 bytes)."""
    return pack_counter(number)


def root_task(job: bytes) -> bytes:
    """The id of a driver as a submitter: the parent of its tasks (16 bytes)."""
    return job + bytes(TASK_BYTES - JOB_BYTES)


def child_prefix(job: bytes, parent: bytes, epoch: int = 0, salt: bytes = b"") -> bytes:
    """The first 12 bytes of the ids that ``parent`` gives its children in ``epoch``.

    ``salt`` separates another attempt of the parent, another thread that submits, another attempt of a ``put``.
    """
    digest = hashlib.blake2b(parent + pack_counter(epoch) + salt, digest_size=PARENT_BYTES).digest()
    return job + digest


def object_id(task: bytes, index: int = 0) -> bytes:
    """The id of the ``index``-th value of a task (20 bytes)."""
    return task + pack_counter(index)


def task_of(object_id: bytes) -> bytes:
    """The task that returned an object, or ``put`` it."""
    return object_id[:TASK_BYTES]


def index_of(object_id: bytes) -> int:
    """The index of an object among its task's values: from 0 for returns, from 2**31 for ``put`` values."""
    number: int = unpack_counter(object_id[TASK_BYTES:])[0]
    return number


def control_of(incarnation: bytes) -> bytes:
    """The incarnation of a worker's control thread; of that, the worker's own again."""
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


# The number of an attempt is unique for its task, over all daemons and nodes. The upper half is the number of the node (20 bits) that gave
# it out, and how many daemons the node had before (12 bits). The lower half counts the attempts that the daemon had records of, and is
# shown to people. Alone it would repeat: no process may report a dead daemon's last attempts to the next one.


def first_attempt(daemons: int, node: int = 0) -> int:
    """The number of a task's first attempt under a daemon of this node; the node had ``daemons`` before it."""
    return (node << _DAEMONS_BITS | daemons) << _TRIES_BITS


def next_attempt(attempt: int, first: int) -> int:
    """The number of the attempt after ``attempt``, under the daemon whose first attempts are ``first``."""
    return first + tries_of(attempt) + 1


def tries_of(attempt: int) -> int:
    """How many of the task's attempts were known before this one."""
    return attempt & _TRIES_MAX


def daemons_of(attempt: int) -> int:
    """How many daemons the node had before the one that gave out this attempt."""
    return (attempt >> _TRIES_BITS) & DAEMONS_MAX


def node_of(attempt: int) -> int:
    """The number of the node that gave out this attempt."""
    return attempt >> (_TRIES_BITS + _DAEMONS_BITS)


def address(role: bytes, incarnation: bytes) -> Address:
    """The address of the machine that plays ``role`` in the process ``incarnation``."""
    return role + incarnation


def remote_caller(incarnation: bytes, node: bytes) -> bytes:
    """The name of a caller to an actor on another node: its incarnation, and its node's id."""
    return incarnation + node


def node_of_caller(caller: bytes) -> bytes:
    """The node of an actor's caller; empty if it is the actor's own."""
    return caller[INCARNATION_BYTES:]


def split_ids(joined: bytes, length: int) -> list[bytes]:
    """Split concatenated ids of ``length`` bytes each."""
    return [joined[start : start + length] for start in range(0, len(joined), length)]


PARENT_DIGITS = 4
"""Digits of a parent's hash that are shown: enough for the parents of one job on one screen."""


def short(identifier: bytes) -> str:
    """The short form of a task's or an object's id (``protocol.names``); hex for anything else."""
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
"""The first index of each kind of object: returns of tasks, of an actor's calls ("c"), and ``put`` values ("p")."""


# --- names of what a task or driver submits and puts, in order, without a hash each ---------------------------------------------------


def salt_of(attempt: int) -> bytes:
    """The salt of the names of an attempt's children.

    A later attempt's rows may differ, its ``put`` values have other names, and tasks of an earlier attempt may be running. So nothing is
    shared between attempts.
    """
    return _packed(attempt) if attempt else b""


def put_salt(attempt: int) -> bytes:
    """The salt of the names of an attempt's ``put`` values."""
    return b"put" + _packed(attempt)


def _packed(attempt: int) -> bytes:
    return pack_counter(attempt) if attempt <= ATTEMPTS_OF_FIRST_DAEMON else attempt.to_bytes(8, "big")


class Namer:
    """Allocates ids for the children of an attempt, in order. Threads need no lock."""

    __slots__ = ("_counter", "_later", "_prefix", "_puts", "job", "parent", "salt")

    def __init__(self, job: bytes, parent: bytes, salt: bytes = b"", attempt: int = 0) -> None:
        self.job = job
        self.parent = parent
        self.salt = salt + salt_of(attempt)
        self._counter = count()
        self._later: dict[int, bytes] = {}
        self._prefix = child_prefix(job, parent, 0, self.salt)
        self._puts = PutNamer(job, parent, salt, attempt)

    def child(self) -> bytes:
        """The next child's id."""
        counter = next(self._counter)
        if counter <= CHILDREN_MAX:
            return self._prefix + pack_counter(counter)
        epoch, counter = divmod(counter, CHILDREN_MAX + 1)
        prefix = self._later.get(epoch)
        if prefix is None:
            prefix = self._later[epoch] = child_prefix(self.job, self.parent, epoch, self.salt)
        return prefix + pack_counter(counter)

    def put(self) -> bytes:
        """The next ``put`` value's id."""
        return self._puts.next()


class PutNamer:
    """Allocates ids for ``put`` values. Their hash covers the attempt: a re-run never redefines a ``put``."""

    __slots__ = ("_counter", "_task")

    def __init__(self, job: bytes, parent: bytes, salt: bytes, attempt: int) -> None:
        self._task = child_prefix(job, parent, 0, salt + put_salt(attempt)) + pack_counter(0)
        self._counter = FIRST_PUT_INDEX

    def next(self) -> bytes:
        """The next id."""
        counter = self._counter
        self._counter = counter + 1
        return object_id(self._task, counter)
