"""Large values for tests of object stores, and tasks that make and check them."""

from __future__ import annotations

from typing import Any

import numpy as np

import zfabric as zf

MIB = 2**20
STORE = 64 * MIB
"""Bytes of a store that a few blocks fill."""


def block(number: int, mib: int = 4) -> Any:
    """An array that no other number gives."""
    return np.full(mib * MIB // 8, number, dtype=np.int64)


@zf.remote
def make(number: int, mib: int = 4) -> Any:
    return block(number, mib)


@zf.remote
def check(array: Any, number: int) -> bool:
    return bool((array == number).all())


@zf.remote
def raises(mib: int) -> None:
    raise ValueError("x" * (mib * MIB))


class Unpicklable:
    """Until it is interrupted."""

    def __reduce__(self) -> Any:
        raise LookupError("not me")
