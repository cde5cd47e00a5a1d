"""Ids for what a task or driver submits and puts, in order, without a hash each."""

from __future__ import annotations

from itertools import count

from zfabric.protocol.ids import CHILDREN_MAX, FIRST_PUT_INDEX, child_prefix, object_id, pack_counter

ATTEMPTS_OF_FIRST_DAEMON = 2**32 - 1
"""The last attempt number of the first daemon of a node without a cluster."""


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
