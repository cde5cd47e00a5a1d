"""Ids as people read and type them.

Siblings' ids differ in their last bytes only. So tables show ``job-parent-counter``, as in ``1-3fa2-57``: job and counter in decimal, the
first digits of the parent's hash. Objects have a suffix: ``-0`` and up for a task's values, ``-c0`` for those of an actor's call, ``-p0``
for ``put`` ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from zfabric.exceptions import OptionError
from zfabric.protocol.ids import FIRST_INDEX, JOB_BYTES, PREFIX_BYTES, short

_BRIEF = re.compile(r"(\d+)-([0-9a-f]{1,16})-(\d+)(?:-([cp]?)(\d+))?")


NAME_BYTES_MAX = 4096
"""Longest name of a task, an actor, a resource or an argument, and longest id that a person types."""


JOBS_NAMESPACE = "_jobs"
"""The namespace of actors that run jobs (``zfabric submit --detach``): listings show the jobs instead."""
JOB_RUNNER = "JobRunner"
"""The class of these actors (``util.jobs``)."""


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
