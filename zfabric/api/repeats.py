"""Warns once of a large argument, or of a function with large data, that is sent again and again: ``zf.put`` stores such data once.

Arguments are compared by content, since each call may wrap an array in another list. Most bytes are read only if a sample was seen before.
"""

from __future__ import annotations

import sys
import threading
import warnings
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from zfabric.adapters.serialization import SerializedValue
from zfabric.runtime.lines import ZFABRIC

LARGE = 10 * 10**6
"""Least bytes worth storing once: fewer are copied in milliseconds."""
AGAIN = 3
"""Sends that cause the warning: two may be a retry, or a first try."""
REMEMBERED = 64
"""Most arguments and functions that are remembered, the latest ones."""
SAMPLES, SAMPLE_BYTES = 64, 256
"""Pieces of each buffer that are compared each time, and their bytes."""


class _Sent(NamedTuple):
    times: int
    checksum: int
    """Of all bytes, from the second time on."""


_lock = threading.Lock()
_sent: dict[Any, _Sent] = {}
_warned: set[str] = set()


def argument_sent(name: str, value: SerializedValue) -> None:
    """Note that an argument is stored for one call. Warn the third time."""
    if value.size < LARGE or "argument" in _warned:
        return
    pieces = value.pieces()
    key = value.size, _sampled(pieces)
    with _lock:
        before = _sent.pop(key, _Sent(0, 0))
        checksum = _checksum(pieces) if before.times else 0
        same = before.times < 2 or checksum == before.checksum
        count = before.times + 1 if same else 1
        _remember(key, _Sent(count, checksum))
    if count >= AGAIN:
        what = f"the same argument ({name}, {value.size / 10**6:.0f} MB) has been sent {count} times"
        _warn("argument", f"{what}: store it once, ref = zf.put(x), and pass the ref in its place")


def function_sent(function: Any, name: str, size: int, calls: int = 1) -> bool:
    """Note calls of a function or class of ``size`` bytes with what it captures. Warn from the third on.

    Return whether its next call is to be noted, too.
    """
    if size < LARGE or "function" in _warned:
        return False
    key = getattr(function, "__code__", name)  # A lambda in a loop is another function each time.
    with _lock:
        count = _sent.pop(key, _Sent(0, 0)).times + calls
        _remember(key, _Sent(count, 0))
    if count < AGAIN:
        return True
    what = f"{name} has {size / 10**6:.0f} MB with what it captures, which every worker that runs it receives"
    _warn("function", f"{what}: store the data once, ref = zf.put(x), and pass the ref as an argument")
    return False


def _remember(key: Any, sent: _Sent) -> None:
    _sent[key] = sent
    while len(_sent) > REMEMBERED:
        del _sent[next(iter(_sent))]


def _warn(kind: str, text: str) -> None:
    _warned.add(kind)
    level, frame = 1, sys._getframe(0)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ZFABRIC):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"zfabric: {text}", RuntimeWarning, stacklevel=level)


def _sampled(pieces: Sequence[Any]) -> int:
    found = 0
    for piece in pieces:
        if not len(piece):
            continue
        view = memoryview(piece).cast("B")
        for start in range(0, len(view), max(SAMPLE_BYTES, len(view) // SAMPLES)):
            found = zlib.crc32(view[start : start + SAMPLE_BYTES], found)
    return found


def _checksum(pieces: Sequence[Any]) -> int:
    found = 0
    for piece in pieces:
        found = zlib.crc32(piece, found)
    return found
