"""The format of values in the control store's tables: plain data, packed."""

from __future__ import annotations

from typing import Any

import msgpack


def pack_row(value: Any) -> bytes:
    """Pack plain data as the value of a row in the control store."""
    data: bytes = msgpack.packb(value, use_bin_type=True)
    return data


def unpack_row(data: bytes) -> Any:
    """Return what ``pack_row`` packed."""
    return msgpack.unpackb(data, use_list=False, raw=False, strict_map_key=False)
