"""Checks of the rows of tasks, functions, calls and outcomes.

They are written by hand, with a fast path for lone rows: those of a program that waits for each task or call.
"""

from __future__ import annotations

from typing import Any

from zfabric.protocol.checks import (
    BYTES,
    CALLER,
    CALLER_BYTES,
    FUNCTION,
    INT,
    OBJECT,
    STR,
    TASK,
    TUPLE,
    VALUE,
    Column,
    MalformedFrame,
    check_columns,
    column,
    few,
    layout,
    many,
)
from zfabric.protocol.ids import FUNCTION_BYTES, TASK_BYTES
from zfabric.protocol.options import OPTION_TYPES, RETURNS_MAX, group_of

STRATEGIES_MOST = 1000
"""Most strategies that are remembered as well formed."""
_strategies: set[Any] = set()
"""Strategies that are well formed. Most rows have one of a few."""
_lone_strategies: set[Any] = set()
"""Options that are well formed and a strategy alone."""

_MAYBE_TUPLE = column(tuple, type(None))
"""A field that short rows lack: None in the column then."""


# -- tasks and functions --

_FEW_FUNCTIONS = few(FUNCTION)
_TASK_WIDTHS = {4, 5}
_TASK_TYPES = (None, None, BYTES.types, TUPLE.types, _MAYBE_TUPLE.types)
_PLAIN_ROWS = frozenset(
    ((bytes, bytes, bytes, tuple), (bytes, bytes, bytes, tuple, tuple), (bytes, bytes, bytes, tuple, type(None))),
)


def _is_plain_row(row: Any) -> bool:
    """Whether the row is that of a task without dependencies. Options are not checked."""
    if type(row) is not tuple or tuple(map(type, row)) not in _PLAIN_ROWS:
        return False
    return not row[3] and len(row[0]) == TASK_BYTES and len(row[1]) == FUNCTION_BYTES


def check_task_rows(rows: tuple[Any, ...]) -> None:
    """Check task rows, with or without options."""
    if len(rows) == 1 and _is_plain_row(rows[0]):
        if len(rows[0]) > 4 and rows[0][4]:
            _check_lone_options(rows[0][4])
        return
    columns = check_columns(rows, _TASK_WIDTHS, _TASK_TYPES)
    TASK.check(columns[0])
    _FEW_FUNCTIONS.check(columns[1])
    if any(columns[3]):
        for dependencies in columns[3]:
            OBJECT.check(dependencies)
    if len(columns) > 4 and any(columns[4]):
        last = None
        for options in filter(None, columns[4]):
            if options != last:  # Most calls set what the one before it has set.
                check_options(options)
                last = options


TASK_ROW = Column(TUPLE.types, check_task_rows)


def _check_lone_options(options: tuple[Any, ...]) -> None:
    """Check the options of one row. In a program that waits for each task, they are mostly a strategy that came before."""
    try:
        if options in _lone_strategies:
            return
    except TypeError:  # There are mappings inside.
        pass
    check_options(options)
    if len(options) == 1 and options[0][0] == "strategy" and len(_lone_strategies) < STRATEGIES_MOST:
        _lone_strategies.add(options)


def check_options(options: tuple[Any, ...]) -> None:
    """Check (name, value) pairs. A value has the type of its option, or is None for "not set"."""
    for pair in options:
        if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not str:
            raise MalformedFrame("an option is a pair of a name and a value")
        key, value = pair
        if value is None:
            continue
        accepted = OPTION_TYPES.get(key)
        if accepted is not None and type(value) not in accepted:
            raise MalformedFrame(f"option {key} cannot be {type(value).__name__}")
        if key == "contains":
            OBJECT.check(value)
        elif key == "demand":
            _check_demand(value)
        elif key in ("strategy", "captured"):
            _check_strategy(value)
        elif key == "env" and (tuple(map(type, value)) != (tuple, str, tuple) or not _is_hashable(value)):
            raise MalformedFrame("an environment is variables, a directory and paths")
        elif key == "num_returns" and not 0 <= value <= RETURNS_MAX:
            raise MalformedFrame(f"a task has 0 to {RETURNS_MAX} values")


_check_demand = layout(STR, INT)
_check_terms = layout(STR, STR, STR, TUPLE)


def _check_strategy(strategy: Any) -> None:
    """Check a strategy: hashable rows of texts, the last field with several."""
    if not _is_hashable(strategy):
        raise MalformedFrame("a strategy has texts and numbers only")
    if strategy not in _strategies:
        _check_terms(strategy)
        _check_group(strategy)
        if len(_strategies) < STRATEGIES_MOST:
            _strategies.add(strategy)


def _is_hashable(value: Any) -> bool:
    """Whether the value has no mappings inside."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _check_group(strategy: Any) -> None:
    """Check the placement group of a strategy, if it names one."""
    try:
        group_of(strategy)
    except (ValueError, TypeError):
        raise MalformedFrame("a placement group is named by its id, its home and a bundle") from None


_FUNCTION_TYPES = (BYTES.types, STR.types, BYTES.types, TUPLE.types)


def check_functions(rows: tuple[Any, ...]) -> None:
    """Check rows of functions."""
    columns = check_columns(rows, {4}, _FUNCTION_TYPES)
    FUNCTION.check(columns[0])
    for options in filter(None, columns[3]):
        check_options(options)


# -- calls --

_CALL_WIDTHS = {3, 6}
_CALL_TYPES = (BYTES.types, STR.types, BYTES.types, _MAYBE_TUPLE.types, _MAYBE_TUPLE.types, _MAYBE_TUPLE.types)
_PLAIN_CALL = (bytes, str, bytes)


def is_plain_call(call: tuple[Any, ...]) -> bool:
    """Whether a message that begins as ``Call`` is one call without dependencies and options."""
    actor_id, rows = call[0], call[2]
    if len(rows) != 1 or type(row := rows[0]) is not tuple or tuple(map(type, row)) != _PLAIN_CALL:
        return False
    return len(row[0]) == len(actor_id) == TASK_BYTES


def check_calls(rows: tuple[Any, ...]) -> None:
    """Check rows of calls."""
    columns = check_columns(rows, _CALL_WIDTHS, _CALL_TYPES)
    TASK.check(columns[0])
    if len(columns) == 6:
        for dependencies, values, options in zip(*columns[3:], strict=True):
            OBJECT.check(dependencies or ())
            if len(dependencies or ()) != len(values or ()):
                raise MalformedFrame("each dependency has a value")
            if values:
                _check_values(values)
            check_options(options or ())


def _check_values(values: tuple[Any, ...]) -> None:
    """Check values of dependencies: bytes, None, or places (offset, size)."""
    for value in values:
        if type(value) not in _VALUE_TYPES or (type(value) is tuple and not (tuple(map(type, value)) == (int, int) and min(value) >= 0)):
            raise MalformedFrame("a value is bytes, a place, or nothing")


_VALUE_TYPES = (bytes, tuple, type(None))


# -- outcomes --

_RESULT = (bytes, int, tuple)
_check_many_results = layout(TASK, INT, TUPLE)


def check_results(rows: tuple[Any, ...]) -> None:
    """Check rows of outcomes, as in ``Results``."""
    if len(rows) == 1 and type(rows[0]) is tuple and tuple(map(type, rows[0])) == _RESULT and len(rows[0][0]) == TASK_BYTES:
        return  # The usual frame of a program that waits for each task: one comparison instead of the checks below.
    _check_many_results(rows)


_OUTCOME = (bytes, bytes, int, tuple, tuple)


def is_lone_outcome(rows: tuple[Any, ...]) -> bool:
    """Whether the rows are one outcome of a call, without refs. Its values are not checked."""
    if len(rows) != 1 or type(row := rows[0]) is not tuple or tuple(map(type, row)) != _OUTCOME:
        return False
    return len(row[0]) == TASK_BYTES and len(row[1]) in CALLER_BYTES and not row[4]


def check_outcomes(rows: tuple[Any, ...]) -> None:
    """Check rows of outcomes of calls, as in ``CallOutcomes``."""
    if not is_lone_outcome(rows):
        _check_many_outcomes(rows)


_check_many_outcomes = layout(TASK, CALLER, INT, TUPLE, many(many(OBJECT)))
check_objects = layout(OBJECT, INT, VALUE, many(OBJECT))
