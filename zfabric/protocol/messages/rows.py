"""The types of messages' fields. The layouts that several messages share are at the top of the package."""

from __future__ import annotations

from typing import Any, TypeAlias

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = tuple[Row, ...]
Ids: TypeAlias = tuple[bytes, ...]

TASK_ID, FUNCTION_ID, ARGUMENTS, DEPENDENCIES, OPTIONS = range(5)
"""Places in a task row. Most rows have no options, and end before them. Code that runs for every plain task writes the numbers instead: a
global name costs a look-up per row."""
CALL_ID, METHOD, VALUES, CALL_OPTIONS = 0, 1, 4, 5
"""Places in a call row, which has arguments and dependencies where a task row has them. A plain call ends behind its arguments."""
