"""Names for what a task or a driver submits and puts: ids in order, without a hash per id."""

from __future__ import annotations

from itertools import count

from zfabric.protocol.ids import CHILDREN_MAX, FIRST_PUT_INDEX, child_prefix, object_id, pack_counter

ATTEMPTS_OF_FIRST_DAEMON = 2**32 - 1
"""The largest number of an attempt that the first daemon of a node without a cluster gives out."""


def salt_of(attempt: int) -> bytes:
    """The salt that sets the names of a later attempt's children apart.

    A later attempt's rows may differ from an earlier one's: its ``put`` values have names of their own, and so do the rows that name
    them. Tasks of an earlier attempt may be running, too. So nothing is shared between attempts.
    """
    return _packed(attempt) if attempt else b""


def put_salt(attempt: int) -> bytes:
    """The salt that sets the names of an attempt's ``put`` values apart."""
    return b"put" + _packed(attempt)


def _packed(attempt: int) -> bytes:
    return pack_counter(attempt) if attempt <= ATTEMPTS_OF_FIRST_DAEMON else attempt.to_bytes(8, "big")


class Namer:
    """Allocates ids for the children of one attempt of a parent: in order, without a hash per child. Threads need no lock."""

    __slots__ = ("_counter", "_later", "_prefix", "_puts", "job", "parent", "salt")

    def __init__(self, job: bytes, parent: bytes, salt: bytes = b"", attempt: int = 0) -> None:
        self.job = job
        self.parent = parent
        self.salt = salt + salt_of(attempt)
        self._counter = count()
        self._later: dict[int, bytes] = {}
        """Prefixes of children beyond the first ``CHILDREN_MAX``, by epoch."""
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
    """Allocates ids for ``put`` values. Their hash covers the attempt, so that a re-run never redefines a ``put``."""

    __slots__ = ("_counter", "_task")

    def __init__(self, job: bytes, parent: bytes, salt: bytes, attempt: int) -> None:
        self._task = child_prefix(job, parent, 0, salt + put_salt(attempt)) + pack_counter(0)
        self._counter = FIRST_PUT_INDEX

    def next(self) -> bytes:
        """The next id."""
        counter = self._counter
        self._counter = counter + 1
        return object_id(self._task, counter)
