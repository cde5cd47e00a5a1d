"""Checks of messages' fields, beyond their types: a field's annotation carries its check, as in ``Annotated[Rows, layout(TASK, COUNT)]``.

Rows are checked by column: a few C-level passes a batch. A check raises MalformedFrame with the reason; the codec names the message. A
message may have two more methods:

- ``is_plain(fields)``, static: a fast path for usual small messages, which need no other check.
- ``check()``: a check of several fields together, after each of them.
"""

from __future__ import annotations

import itertools
import typing
from collections.abc import Callable, Collection, Set
from functools import cache
from typing import Any, NamedTuple

from zfabric.protocol.ids import (
    ATTEMPT_MAX,
    FUNCTION_BYTES,
    INCARNATION_BYTES,
    JOB_BYTES,
    NODE_BYTES,
    OBJECT_BYTES,
    TASK_BYTES,
)

SIZE_MAX = 2**63 - 1
"""Largest size, position or count."""
SECONDS_MAX = 1e9
"""Longest time, in seconds."""
CALLER_BYTES = {INCARNATION_BYTES, INCARNATION_BYTES + NODE_BYTES}
"""Lengths of callers' names: a process of this node, or of another one, whose id follows."""

Check = Callable[[Any], None]
"""Checks a field whose type is right. Raises MalformedFrame."""


class MalformedFrame(ValueError):
    """Bytes that are not a frame of this protocol. The receiver drops and counts them."""


def _accept(values: tuple[Any, ...]) -> None:
    """Check nothing."""


class Column(NamedTuple):
    """Values of one kind: a field of all rows, the entries of a tuple, or one field of a message."""

    types: Set[type] | None
    """Types that values may have; None if ``check`` refuses all others itself."""
    check: Check = _accept
    """Checks a tuple of values."""


def column(*types: type) -> Column:
    """A column of values of these types."""
    return Column(frozenset(types))


# -- columns of ids, numbers, texts --


def ids_of(length: int) -> Column:
    """Ids of ``length`` bytes."""

    def check(ids: tuple[Any, ...]) -> None:
        if len(ids) == 1 and type(ids[0]) is bytes and len(ids[0]) == length:
            return
        try:
            b"".join(ids)  # Raises for anything but bytes, faster than a check of each type.
        except TypeError:
            raise MalformedFrame("ids are bytes") from None
        if ids and set(map(len, ids)) != {length}:
            raise MalformedFrame(f"ids are {length} bytes")

    return Column(None, check)


def few(ids: Column) -> Column:
    """Ids of which most are equal."""

    def check(values: tuple[Any, ...]) -> None:
        alike = len(values) > 1 and type(values[0]) is bytes and values.count(values[0]) == len(values)
        ids.check(values[:1] if alike else values)

    return Column(None, check)


def optional(ids: Column) -> Column:
    """Ids of which some may be empty."""
    return Column(BYTES.types, lambda values: ids.check(tuple(filter(None, values))))


def within(low: int, high: int) -> Column:
    """Numbers from ``low`` to ``high``."""

    def check(numbers: tuple[int, ...]) -> None:
        if numbers and not low <= min(numbers) <= max(numbers) <= high:
            raise MalformedFrame(f"a number is {low} to {high}")

    return Column(INT.types, check)


def one_of(texts: Collection[str]) -> Column:
    """Texts from a few."""
    known = frozenset(texts)

    def check(values: tuple[str, ...]) -> None:
        if not known.issuperset(values):
            raise MalformedFrame(f"a text is one of {sorted(known)}")

    return Column(STR.types, check)


def short_text(length: int) -> Column:
    """Texts of at most ``length`` bytes in UTF-8."""

    def check(texts: tuple[str, ...]) -> None:
        if any(len(text.encode("utf-8", "surrogatepass")) > length for text in texts):
            raise MalformedFrame(f"a text has at most {length} bytes")

    return Column(STR.types, check)


def short_bytes(length: int) -> Column:
    """Bytes, at most ``length`` of them."""

    def check(values: tuple[bytes, ...]) -> None:
        if any(len(value) > length for value in values):
            raise MalformedFrame(f"a value has at most {length} bytes")

    return Column(BYTES.types, check)


def _check_seconds(values: tuple[float, ...]) -> None:
    if not all(0 <= value <= SECONDS_MAX for value in values):  # Not by ``min``, which may pass over what is not a number.
        raise MalformedFrame(f"a time is 0 to {SECONDS_MAX:g} s")


def _check_callers(callers: tuple[Any, ...]) -> None:
    if not set(map(len, callers)) <= CALLER_BYTES:
        raise MalformedFrame(f"a caller is {INCARNATION_BYTES} bytes, and {NODE_BYTES} more if it is on another node")


BYTES, INT, TUPLE, STR, BOOL = map(column, (bytes, int, tuple, str, bool))
NUMBER = column(float, int)
VALUE = column(bytes, tuple, type(None))
TASK, FUNCTION, OBJECT = ids_of(TASK_BYTES), ids_of(FUNCTION_BYTES), ids_of(OBJECT_BYTES)
JOB, INCARNATION = ids_of(JOB_BYTES), ids_of(INCARNATION_BYTES)
NODE = ids_of(NODE_BYTES)
CALLER = Column(BYTES.types, _check_callers)
COUNT = within(0, SIZE_MAX)
"""Counts, sizes, positions."""
ATTEMPT = within(0, ATTEMPT_MAX)
SECONDS = Column(NUMBER.types, _check_seconds)


# -- rows --


def check_columns(rows: tuple[Any, ...], widths: Collection[int], types: tuple[Set[type] | None, ...]) -> list[tuple[Any, ...]]:
    """Check rows of these widths and types (None: any), and return their columns."""
    if not rows:
        return _NO_COLUMNS
    if len(rows) == 1:
        return _single(rows[0], widths, types)
    if set(map(type, rows)) != _TUPLE or len(rows[0]) not in widths:
        raise MalformedFrame(f"a row has {sorted(widths)} fields")
    try:
        columns = list(zip(*rows, strict=True))
    except ValueError:
        if not set(map(len, rows)) <= set(widths):
            raise MalformedFrame(f"a row has {sorted(widths)} fields") from None
        columns = list(itertools.zip_longest(*rows))  # Missing options are None; longer rows beside are checked whole.
    for values, accepted in zip(columns, types, strict=False):
        if accepted is not None and not (_all_empty(values, accepted) or set(map(type, values)) <= accepted):
            raise MalformedFrame("a row's field has the wrong type")
    return columns


def _all_empty(values: tuple[Any, ...], accepted: Set[type]) -> bool:
    """Whether the field is empty in all rows, as arguments usually are: a tenth of the time of checking all types."""
    first = values[0]
    return not first and first != 0 and type(first) in accepted and values.count(first) == len(values)


def _single(row: Any, widths: Collection[int], types: tuple[Set[type] | None, ...]) -> list[tuple[Any, ...]]:
    """As ``check_columns``, for one row: the usual frame of a program that waits for each task."""
    if type(row) is not tuple or len(row) not in widths:
        raise MalformedFrame(f"a row has {sorted(widths)} fields")
    for value, accepted in zip(row, types, strict=False):
        if accepted is not None and type(value) not in accepted:
            raise MalformedFrame("a row's field has the wrong type")
    return [(value,) for value in row]


_TUPLE = {tuple}
_NO_COLUMNS: list[tuple[Any, ...]] = [()] * 8
"""The columns of no rows: as many as any row has fields."""


def layout(*columns: Column, widths: Collection[int] = ()) -> Check:
    """Make a check of rows that have these columns, or fewer where ``widths`` permits."""
    types = tuple(each.types for each in columns)
    checks = tuple((index, each.check) for index, each in enumerate(columns) if each.check is not _accept)
    accepted = frozenset(widths or (len(columns),))

    def check(rows: tuple[Any, ...]) -> None:
        if rows:
            found = check_columns(rows, accepted, types)
            for index, each in checks:
                each(found[index])

    return check


def row(*columns: Column) -> Check:
    """Make a check of one row that has these columns."""
    check_rows = layout(*columns)
    return lambda fields: check_rows((fields,))


def many(values: Column) -> Column:
    """Tuples of such values."""
    check = entries(values)
    return Column(TUPLE.types, lambda tuples: check(tuple(itertools.chain.from_iterable(tuples))) if any(tuples) else None)


def each(check: Check) -> Column:
    """Tuples, each with this check."""

    def check_each(tuples: tuple[Any, ...]) -> None:
        for each in tuples:
            check(each)

    return Column(TUPLE.types, check_each)


def entries(values: Column) -> Check:
    """Make a check of a tuple whose entries are such values."""
    types, check = values
    if types is None:
        return check
    accepted = types

    def check_entries(found: tuple[Any, ...]) -> None:
        if not set(map(type, found)) <= accepted:
            raise MalformedFrame("an entry has the wrong type")
        check(found)

    return check_entries


# -- messages --


FieldChecks = tuple[Callable[[Any], bool] | None, tuple[tuple[int | slice, Check], ...], Check | None]
"""

The checks of one type of message: its fast path; checks of fields, by place (neighbours of one kind are one column); and that of the whole.
"""
UNCHECKED: FieldChecks = (None, (), None)


@cache
def field_checks(kind: Any) -> FieldChecks:
    """The checks of a type of message, from its annotations and methods."""
    hints = typing.get_type_hints(kind, include_extras=True)
    found: list[tuple[int | slice, Check]] = []
    last: Column | None = None
    for index, field in enumerate(kind._fields):
        before, last = last, None
        for carried in getattr(hints[field], "__metadata__", ()):
            if not isinstance(carried, Column):
                found.append((index, carried))
                last = None
            elif typing.get_origin(hints[field].__origin__) is tuple:
                found.append((index, entries(carried)))
            elif carried.check is not _accept:
                start = index
                if carried is before:
                    start = found.pop()[0].start  # type: ignore[union-attr]
                found.append((slice(start, index + 1), carried.check))
                last = carried
    return getattr(kind, "is_plain", None), tuple(found), getattr(kind, "check", None)


def check_fields(message: Any) -> None:
    """Check the fields of a message, whose types are right. Raises MalformedFrame."""
    kind: Any = type(message)
    is_plain, fields, whole = field_checks(kind)
    if is_plain is not None and is_plain(message):
        return
    for place, check in fields:
        check(message[place])
    if whole is not None:
        whole(message)
