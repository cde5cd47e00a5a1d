"""Which program a job is: its script and its command, and the id with which it was submitted. A driver registers with it as its name."""

from __future__ import annotations

from typing import NamedTuple

import msgpack

from zfabric.protocol.names import is_text

COMMAND_MOST = 1000
"""Most characters of a command that are sent: the beginning of a long one tells it apart."""
_BEGIN = b"program\0"
"""Begins the name of a driver, which is then no worker's token."""


class Program(NamedTuple):
    """A program that uses the cluster."""

    submission_id: str = ""
    """The id of ``zfabric submit --detach``; empty for other programs."""
    script: str = ""
    """The name of its file, or of its module."""
    command: str = ""

    def pack(self) -> bytes:
        """The name with which its driver registers."""
        texts = ((text if is_text(text) else ascii(text))[:COMMAND_MOST] for text in self)
        packed: bytes = msgpack.packb(tuple(texts))
        return _BEGIN + packed

    @classmethod
    def unpack(cls, name: bytes) -> Program:
        """The program of a driver with this name; an empty one if the name says nothing."""
        if not name.startswith(_BEGIN):
            return cls()
        try:
            texts = msgpack.unpackb(name[len(_BEGIN) :])
        except (ValueError, TypeError):
            return cls()
        fits = isinstance(texts, list) and len(texts) == len(cls._fields) and all(isinstance(text, str) for text in texts)
        return cls(*texts) if fits else cls()

    def title(self, number: int) -> str:
        """A job as every view names it: its number, its script and its id.

        >>> Program("job-12ab", "train.py", "python train.py").title(3), Program().title(4)
        ('job 3 (train.py, job-12ab)', 'job 4')
        """
        known = ", ".join(text for text in (self.script, self.submission_id) if text)
        return f"job {number} ({known})" if known else f"job {number}"
