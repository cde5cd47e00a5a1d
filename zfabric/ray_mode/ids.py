"""Ray's ids, objects with ``hex()``, ``binary()`` and ``is_nil()``. They are bytes, equal to zfabric's."""

from __future__ import annotations

import os
from typing import ClassVar, Self

from zfabric.protocol.ids import INCARNATION_BYTES, JOB_BYTES, TASK_BYTES, job_id


class Id(bytes):
    """An id, of the length that zfabric's ids of this kind have."""

    SIZE: ClassVar[int] = TASK_BYTES

    def binary(self) -> bytes:
        """The id as plain bytes."""
        return bytes(self)

    def is_nil(self) -> bool:
        """Whether nothing has this id."""
        return self == self.nil()

    @classmethod
    def size(cls) -> int:
        """Bytes of an id of this kind."""
        return cls.SIZE

    @classmethod
    def nil(cls) -> Self:
        """The id that nothing has."""
        return cls(b"\xff" * cls.SIZE)

    @classmethod
    def from_hex(cls, text: str) -> Self:
        """The id that ``hex`` has written."""
        return cls(bytes.fromhex(text))

    @classmethod
    def from_binary(cls, data: bytes) -> Self:
        """The id with these bytes."""
        return cls(data)

    @classmethod
    def from_random(cls) -> Self:
        """An id that nothing else has."""
        return cls(os.urandom(cls.SIZE))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex()})"

    __str__ = __repr__


class UniqueID(Id):
    """The id of anything."""


class TaskID(Id):
    """The id of a task."""


class ActorID(Id):
    """The id of an actor."""


class PlacementGroupID(Id):
    """The id of a placement group."""


class FunctionID(Id):
    """The id of a function."""


class ActorClassID(Id):
    """The id of a class of actors."""


class ClusterID(Id):
    """The id of a cluster: its head's."""

    SIZE = INCARNATION_BYTES


class NodeID(Id):
    """The id of a node."""

    SIZE = INCARNATION_BYTES


class WorkerID(Id):
    """The id of a process: its node's, and its pid."""

    SIZE = INCARNATION_BYTES + 4


class JobID(Id):
    """The id of a job."""

    SIZE = JOB_BYTES

    @classmethod
    def from_int(cls, number: int) -> Self:
        """The id of the job with this number."""
        return cls(job_id(number))

    def int(self) -> int:
        """The job's number."""
        return int.from_bytes(self, "big")
