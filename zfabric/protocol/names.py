"""Ids, times, sizes, counts and programs as people read and type them: one wording for the command line, explanations and the page.

Siblings' ids differ in their last bytes only. So tables show ``job-parent-counter``, as in ``1-3fa2-57``: job and counter in decimal, the
first digits of the parent's hash. Objects have a suffix: ``-0`` and up for a task's values, ``-c0`` for those of an actor's call, ``-p0``
for ``put`` ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import msgpack

from zfabric.exceptions import OptionError
from zfabric.protocol.ids import FIRST_INDEX, JOB_BYTES, PREFIX_BYTES, short
from zfabric.protocol.options import MEMORY, STORE_MEMORY

NAME_BYTES_MAX = 4096
"""Longest name of a task, an actor, a resource or an argument, and longest id that a person types."""
COMMAND_MOST = 1000
"""Most characters of a program's command that are sent: the beginning of a long one tells it apart."""
JOBS_NAMESPACE = "_jobs"
"""The namespace of actors that run jobs (``zfabric submit --detach``): listings show the jobs instead."""
JOB_RUNNER = "JobRunner"
"""The class of these actors (``util.jobs``)."""
_BRIEF = re.compile(r"(\d+)-([0-9a-f]{1,16})-(\d+)(?:-([cp]?)(\d+))?")
_BEGIN = b"program\0"
"""Begins the name of a driver, which is then no worker's token."""


def check_length(what: str, value: str | bytes, most: int = NAME_BYTES_MAX) -> None:
    """OptionError, a ValueError, that names the bound if ``value`` has more bytes than ``most``.

    >>> check_length("name", "x" * 5000)
    Traceback (most recent call last):
        ...
    zfabric.exceptions.OptionError: name has at most 4,096 bytes, not 5,000
    """
    if 4 * len(value) <= most:
        return
    size = len(value) if isinstance(value, bytes) else len(value.encode(errors="replace"))
    if size > most:
        raise OptionError(f"{what} has at most {most:,} bytes, not {size:,}")


def is_text(value: str) -> bool:
    """Whether messages can carry this str: whether it is valid Unicode.

    Python decodes file names and variables that are not UTF-8 to str with surrogates, which are not.

    >>> is_text("naïve"), is_text("na\\udcefve")
    (True, False)
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


brief = short
"""The short form of a task's or an object's id; hex for anything else."""


def matcher(text: str) -> Callable[[bytes], bool] | None:
    """A test for the ids that ``text`` (a short form, or the first digits in hex) can mean; None if it is neither."""
    text = text.strip().lower()
    found = _BRIEF.fullmatch(text)
    if found is not None:
        job, parent, counter, kind, index = found.groups()
        suffix = _number(counter)
        if index is not None:
            suffix += _number(index, FIRST_INDEX[kind])
        prefix = _number(job)
        return lambda identifier: (
            identifier.startswith(prefix)
            and identifier[PREFIX_BYTES:] == suffix
            and identifier[JOB_BYTES:PREFIX_BYTES].hex().startswith(parent)
        )
    if not text or re.fullmatch(r"[0-9a-f]+", text) is None:
        return None
    whole = bytes.fromhex(text[: len(text) & ~1])
    if len(text) % 2 == 0:
        return lambda identifier: identifier.startswith(whole)
    return lambda identifier: identifier.startswith(whole) and identifier.hex().startswith(text)


def _number(digits: str, base: int = 0) -> bytes:
    number = int(digits) + base
    return number.to_bytes(4, "big") if number < 2**32 else bytes(5)


def span(seconds: float) -> str:
    """A time span.

    >>> span(0.0123), span(7.25), span(150), span(4000), span(10**6)
    ('12 ms', '7.2 s', '2 min', '1 h 6 min', '11 days')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"


def size(count: float) -> str:
    """A number of bytes.

    >>> size(100), size(8_000_000), size(3 * 2**40)
    ('100 B', '7.6 MiB', '3072 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"


def quantity(name: str, amount: float) -> str:
    """An amount of a resource; of memory, in units of bytes.

    >>> quantity("CPU", 0.5), quantity("memory", 2**31)
    ('0.5 CPU', '2.0 GiB memory')
    """
    return f"{amount_text(name, amount)} {name}"


def amount_text(name: str, amount: float) -> str:
    """An amount of a resource without the resource's name.

    >>> amount_text("CPU", 2.0), amount_text("memory", 2**31)
    ('2', '2.0 GiB')
    """
    return size(amount) if name in (MEMORY, STORE_MEMORY) else f"{amount:g}"


def counted(number: int, one: str, several: str = "") -> str:
    """A number of things; ``several`` is ``one`` with an s unless it is given.

    >>> counted(1, "call"), counted(2000, "call"), counted(2, "process", "processes")
    ('1 call', '2,000 calls', '2 processes')
    """
    return f"{number:,} {one if number == 1 else several or one + 's'}"


class Program(NamedTuple):
    """Which program a job is. Its driver registers with it as its name."""

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
