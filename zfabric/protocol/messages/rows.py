"""The types of messages' fields. The layouts that several messages share are at the top of the package."""

from __future__ import annotations

from typing import Any, TypeAlias

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = tuple[Row, ...]
Ids: TypeAlias = tuple[bytes, ...]
