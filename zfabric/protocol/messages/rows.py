"""The types of messages' fields. Each carries the check of its values (``protocol.checks``): a message is checked by its annotations.

The layouts that several messages share are at the top of the package.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from zfabric.protocol.checks import (
    ATTEMPT,
    CALLER,
    COUNT,
    FUNCTION,
    INCARNATION,
    JOB,
    NODE,
    OBJECT,
    SECONDS,
    STR,
    TASK,
    few,
    layout,
    one_of,
    short_text,
    within,
)
from zfabric.protocol.names import NAME_BYTES_MAX
from zfabric.protocol.options import LOG_NUMBERS_MAX, STREAM_VALUES_MAX
from zfabric.protocol.row_checks import check_calls, check_functions, check_objects, check_outcomes, check_results, check_task_rows

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = tuple[Row, ...]
Ids: TypeAlias = tuple[bytes, ...]

TaskId: TypeAlias = Annotated[bytes, TASK]
ObjectId: TypeAlias = Annotated[bytes, OBJECT]
JobId: TypeAlias = Annotated[bytes, JOB]
NodeId: TypeAlias = Annotated[bytes, NODE]
Incarnation: TypeAlias = Annotated[bytes, INCARNATION]
Caller: TypeAlias = Annotated[bytes, CALLER]
"""A process that calls actors: its incarnation, and the id of its node if that is another one."""
TaskIds: TypeAlias = Annotated[Ids, TASK]
FunctionIds: TypeAlias = Annotated[Ids, FUNCTION]
ObjectIds: TypeAlias = Annotated[Ids, OBJECT]
NodeIds: TypeAlias = Annotated[Ids, NODE]
Callers: TypeAlias = Annotated[Ids, CALLER]

Count: TypeAlias = Annotated[int, COUNT]
"""A count, a size or a position; also a token of another node."""
Attempt: TypeAlias = Annotated[int, ATTEMPT]
Seconds: TypeAlias = Annotated[float, SECONDS]
LogNumber: TypeAlias = Annotated[int, within(0, LOG_NUMBERS_MAX - 1)]
"""The number of a call, a message or a life in the log of an actor."""
Text: TypeAlias = Annotated[str, short_text(NAME_BYTES_MAX)]
STOP_REASONS = ("cancelled", "timeout", "force")
StopReason: TypeAlias = Annotated[str, one_of(STOP_REASONS)]

TaskRows: TypeAlias = Annotated[Rows, check_task_rows]
FunctionRows: TypeAlias = Annotated[Rows, check_functions]
CallRows: TypeAlias = Annotated[Rows, check_calls]
ResultRows: TypeAlias = Annotated[Rows, check_results]
OutcomeRows: TypeAlias = Annotated[Rows, check_outcomes]
ObjectRows: TypeAlias = Annotated[Rows, check_objects]
Homes: TypeAlias = Annotated[Rows, layout(OBJECT, few(NODE))]
check_amounts = layout(STR, COUNT)
Amounts: TypeAlias = Annotated[Rows, check_amounts]
"""Rows ``(resource, amount in 1/10,000)``."""

STREAM_INDEX = within(0, STREAM_VALUES_MAX)
"""The place of a value in its stream, or the number of its values."""

TASK_ID, FUNCTION_ID, ARGUMENTS, DEPENDENCIES, OPTIONS = range(5)
"""Places in a task row. Most rows end before the options. Code run for every plain task writes the numbers: a name costs a look-up."""
CALL_ID, METHOD, VALUES, CALL_OPTIONS = 0, 1, 4, 5
"""Places in a call row; arguments and dependencies are as in a task row. A plain call ends behind its arguments."""
