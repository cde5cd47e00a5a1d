"""Checks of messages' fields, beyond the types that the annotations of messages give.

Rows are checked by column, so that the price is a few C-level passes a batch, not a loop over fields. A check raises MalformedFrame.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from zfabric.protocol.ids import FUNCTION_BYTES, INCARNATION_BYTES, NODE_BYTES, OBJECT_BYTES, TASK_BYTES
from zfabric.protocol.options import CHECKPOINT_PARTS_MAX, LOG_NUMBERS_MAX, OPTION_TYPES, RETURNS_MAX, STREAM_VALUES_MAX, group_of
from zfabric.protocol.trace import EACH_BYTES, TIME_BYTES, WAITED_BYTES

Check = Callable[[str, tuple[Any, ...]], None]
"""Checks the fields of a message, whose types are right already: (name of the message, fields). Raises MalformedFrame."""


class MalformedFrame(ValueError):
    """Bytes that are not a frame of this protocol. The receiver drops and counts them."""


def check_columns(name: str, rows: tuple[Any, ...], widths: set[int], kinds: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Check rows of one of these widths, whose fields have these types (None: any). Return their columns."""
    if not rows:
        return _NO_COLUMNS
    if len(rows) == 1:
        return _single(name, rows[0], widths, kinds)
    if set(map(type, rows)) != TUPLE or len(rows[0]) not in widths:
        raise MalformedFrame(f"{name}: a row has {sorted(widths)} fields")
    try:
        columns = list(zip(*rows, strict=True))
    except ValueError:
        if not set(map(len, rows)) <= widths:
            raise MalformedFrame(f"{name}: a row has {sorted(widths)} fields") from None
        columns = list(itertools.zip_longest(*rows))  # Missing options are None; longer rows beside are checked whole.
    for column, accepted in zip(columns, kinds, strict=False):
        if accepted is not None and not (_all_empty(column, accepted) or set(map(type, column)) <= accepted):
            raise MalformedFrame(f"{name}: a row's field has the wrong type")
    return columns


def _all_empty(column: tuple[Any, ...], accepted: set[type]) -> bool:
    """Whether this field is empty in all rows, as it usually is for arguments: a tenth of the time of checking all types."""
    first = column[0]
    return not first and first != 0 and type(first) in accepted and column.count(first) == len(column)


def _single(name: str, row: Any, widths: set[int], kinds: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The same for one row: the usual frame of a program that waits for each task."""
    if type(row) is not tuple or len(row) not in widths:
        raise MalformedFrame(f"{name}: a row has {sorted(widths)} fields")
    for value, accepted in zip(row, kinds, strict=False):
        if accepted is not None and type(value) not in accepted:
            raise MalformedFrame(f"{name}: a row's field has the wrong type")
    return [(value,) for value in row]


_NO_COLUMNS: list[tuple[Any, ...]] = [()] * 8
"""The columns of an empty list of rows: as many as any row has fields."""


def check_ids(name: str, ids: tuple[Any, ...], length: int) -> None:
    """Check ids of ``length`` bytes each."""
    if len(ids) == 1 and type(ids[0]) is bytes and len(ids[0]) == length:
        return
    try:
        b"".join(ids)  # Raises for anything but bytes, faster than a check of each type.
    except TypeError:
        raise MalformedFrame(f"{name}: ids are bytes") from None
    if ids and set(map(len, ids)) != {length}:
        raise MalformedFrame(f"{name}: ids are {length} bytes")


def check_few_ids(name: str, ids: tuple[Any, ...], length: int) -> None:
    """The same, if most ids are equal."""
    alike = bool(ids) and type(ids[0]) is bytes and ids.count(ids[0]) == len(ids)
    check_ids(name, ids[:1] if alike else ids, length)


BYTES, INT, TUPLE, STR = {bytes}, {int}, {tuple}, {str}
VALUE: set[type] = {bytes, tuple, type(None)}
OPTIONS: set[type] = {tuple, type(None)}


STRATEGIES_MOST = 1000
"""Most strategies that are remembered as well formed."""
_strategies: set[Any] = set()
"""Strategies that were found to be well formed: most rows that have one have one of a few."""
_lone_strategies: set[Any] = set()
"""Options that were found to be well formed and are a strategy alone."""

_TASK_WIDTHS = {4, 5}
_TASK_KINDS = (None, None, BYTES, TUPLE, OPTIONS)


_PLAIN_ROWS = frozenset(
    ((bytes, bytes, bytes, tuple), (bytes, bytes, bytes, tuple, tuple), (bytes, bytes, bytes, tuple, type(None))),
)


def _is_plain_row(row: Any) -> bool:
    """Whether a row is that of a task without dependencies, as most are of a program that waits for each task. Options are not checked."""
    if type(row) is not tuple or tuple(map(type, row)) not in _PLAIN_ROWS:
        return False
    return not row[3] and len(row[0]) == TASK_BYTES and len(row[1]) == FUNCTION_BYTES


def check_task_rows(name: str, rows: tuple[Any, ...]) -> None:
    """Check task rows, with or without options."""
    if len(rows) == 1 and _is_plain_row(rows[0]):
        if len(rows[0]) > 4 and rows[0][4]:
            _check_lone_options(name, rows[0][4])
        return
    columns = check_columns(name, rows, _TASK_WIDTHS, _TASK_KINDS)
    check_ids(name, columns[0], TASK_BYTES)
    check_few_ids(name, columns[1], FUNCTION_BYTES)
    if any(columns[3]):
        for dependencies in columns[3]:
            check_ids(name, dependencies, OBJECT_BYTES)
    if len(columns) > 4 and any(columns[4]):
        last = None
        for options in filter(None, columns[4]):
            if options != last:  # Most calls set what the one before it has set.
                check_options(name, options)
                last = options


def _check_lone_options(name: str, options: tuple[Any, ...]) -> None:
    """Check the options of one row. In a program that waits for each task, they are mostly a strategy that came before."""
    try:
        if options in _lone_strategies:
            return
    except TypeError:  # There are mappings inside.
        pass
    check_options(name, options)
    if len(options) == 1 and options[0][0] == "strategy" and len(_lone_strategies) < STRATEGIES_MOST:
        _lone_strategies.add(options)


def check_options(name: str, options: tuple[Any, ...]) -> None:
    """Check pairs of a name and a value of the type that options of that name have, or None for "not set"."""
    for pair in options:
        if type(pair) is not tuple or len(pair) != 2 or type(pair[0]) is not str:
            raise MalformedFrame(f"{name}: an option is a pair of a name and a value")
        key, value = pair
        if value is None:
            continue
        accepted = OPTION_TYPES.get(key)
        if accepted is not None and type(value) not in accepted:
            raise MalformedFrame(f"{name}: option {key} cannot be {type(value).__name__}")
        if key == "contains":
            check_ids(name, value, OBJECT_BYTES)
        elif key == "demand":
            check_columns(name, value, {2}, (STR, INT))
        elif key in ("strategy", "captured"):
            _strategy(name, value)
        elif key == "env" and (tuple(map(type, value)) != (tuple, str, tuple) or not _is_hashable(value)):
            raise MalformedFrame(f"{name}: an environment is variables, a directory and paths")
        elif key == "num_returns" and not 0 <= value <= RETURNS_MAX:
            raise MalformedFrame(f"{name}: a task has 0 to {RETURNS_MAX} values")


def _strategy(name: str, strategy: Any) -> None:
    """Check a strategy: rows of texts, the last field with several. It is looked up in tables, so all of it can be."""
    if not _is_hashable(strategy):
        raise MalformedFrame(f"{name}: a strategy has texts and numbers only")
    if strategy not in _strategies:
        check_columns(name, strategy, {4}, (STR, STR, STR, TUPLE))
        _group(name, strategy)
        if len(_strategies) < STRATEGIES_MOST:
            _strategies.add(strategy)


def _is_hashable(value: Any) -> bool:
    """Whether a value can be looked up in tables: it has no mappings inside."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _group(name: str, strategy: Any) -> None:
    """Check the placement group of a strategy, if it names one."""
    try:
        group_of(strategy)
    except (ValueError, TypeError):
        raise MalformedFrame(f"{name}: a placement group is named by its id, its home and a bundle") from None


def _submit(name: str, fields: tuple[Any, ...]) -> None:
    check_task_rows(name, fields[0])


def _direct_rows(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], INCARNATION_BYTES)
    check_task_rows(name, fields[1])


def _direct_counts(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], INCARNATION_BYTES)


def _direct_allowed(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], INCARNATION_BYTES)
    check_ids(name, fields[1], FUNCTION_BYTES)


def _inherit(name: str, fields: tuple[Any, ...]) -> None:
    check_task_rows(name, fields[0])
    check_exports(name, fields[1:])


def _dispatch(name: str, fields: tuple[Any, ...]) -> None:
    check_task_rows(name, fields[0])
    check_columns(name, fields[1], {4}, (INT, INT, TUPLE, TUPLE))


_LONE_DURATION = frozenset(((bytes, int, float), (bytes, int, int)))


def _is_lone_end(attempts: Any, statuses: Any, outputs: Any, task_id: bytes, durations: Any) -> bool:
    """Whether these are the columns of one attempt, as of a program that waits for each task: a third of the checks below."""
    return (
        len(statuses) == len(outputs) == len(durations) == 1
        and len(task_id) == TASK_BYTES
        and type(attempts[0]) is type(statuses[0]) is int
        and type(outputs[0]) is type(durations[0]) is tuple
        and tuple(map(type, durations[0])) in _LONE_DURATION
    )


def check_completed(name: str, fields: tuple[Any, ...]) -> None:
    """Check the columns of ``Completed``."""
    attempts, statuses, outputs, task_ids, extras, durations, times = fields
    if len(attempts) == 1 and not extras and len(times) == TIME_BYTES and _is_lone_end(attempts, statuses, outputs, task_ids, durations):
        return
    if not len(attempts) == len(statuses) == len(outputs) == len(task_ids) / TASK_BYTES:
        raise MalformedFrame(f"{name}: columns are of one length")
    if times and len(times) != len(attempts) * TIME_BYTES:
        raise MalformedFrame(f"{name}: times are {TIME_BYTES} bytes for each attempt")
    if not (set(map(type, attempts)) <= INT and set(map(type, statuses)) <= INT and set(map(type, outputs)) <= TUPLE):
        raise MalformedFrame(f"{name}: a column has a value of the wrong type")
    check_columns(name, extras, {3}, (INT, TUPLE, TUPLE))
    check_columns(name, durations, {3}, (BYTES, INT, {float, int}))


def _yielded(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {5}, (BYTES, INT, INT, {bytes, tuple, bool, type(None)}, TUPLE))
    check_ids(name, columns[0], TASK_BYTES)
    if not all(0 <= index <= STREAM_VALUES_MAX for index in columns[2]):
        raise MalformedFrame(f"{name}: a stream has 0 to {STREAM_VALUES_MAX} values")
    for contained in filter(None, columns[4]):
        check_ids(name, contained, OBJECT_BYTES)


_RESULT = (bytes, int, tuple)


def _results(name: str, fields: tuple[Any, ...]) -> None:
    rows = fields[0]
    if len(rows) == 1 and type(rows[0]) is tuple and tuple(map(type, rows[0])) == _RESULT and len(rows[0][0]) == TASK_BYTES:
        return  # The usual frame of a program that waits for each task: one comparison instead of the checks below.
    columns = check_columns(name, fields[0], {3}, (None, INT, TUPLE))
    check_ids(name, columns[0], TASK_BYTES)


def _object_rows(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {4}, (None, INT, VALUE, TUPLE))
    check_ids(name, columns[0], OBJECT_BYTES)
    for contained in filter(None, columns[3]):
        check_ids(name, contained, OBJECT_BYTES)


def _put(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {4}, (BYTES, VALUE, TUPLE, {bool}))
    check_ids(name, columns[0], OBJECT_BYTES)
    for contained in columns[2]:
        check_ids(name, contained, OBJECT_BYTES)


def _running(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {4}, (TUPLE, INT, {bool}, STR))
    check_task_rows(name, columns[0])
    if not set(map(type, fields[1])) <= INT:
        raise MalformedFrame(f"{name}: GPUs are numbers")


def check_exports(name: str, fields: tuple[Any, ...]) -> None:
    """Check rows of functions, the first of these fields."""
    columns = check_columns(name, fields[0], {4}, (BYTES, STR, BYTES, TUPLE))
    check_ids(name, columns[0], FUNCTION_BYTES)
    for options in filter(None, columns[3]):
        check_options(name, options)


def _object_ids(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[0], OBJECT_BYTES)


def _watch_references(name: str, fields: tuple[Any, ...]) -> None:
    object_ids, former = fields
    check_ids(name, object_ids, OBJECT_BYTES)
    if len(former) not in (0, NODE_BYTES):
        raise MalformedFrame(f"{name}: a node's id has {NODE_BYTES} bytes")


def _task_ids(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[0], TASK_BYTES)


def _places(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {3}, (BYTES, INT, INT))
    if name == "Pinned":
        check_ids(name, columns[0], OBJECT_BYTES)


def _grants(name: str, fields: tuple[Any, ...]) -> None:
    check_columns(name, fields[0], {3}, (INT, INT, INT))


def _returned_grant(name: str, fields: tuple[Any, ...]) -> None:
    check_columns(name, fields[2], {2}, (INT, INT))


def _writes(name: str, fields: tuple[Any, ...]) -> None:
    check_columns(name, fields[1], {3}, (STR, BYTES, BYTES))
    check_columns(name, fields[2], {2}, (STR, BYTES))


def _blocked(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[1], OBJECT_BYTES)
    check_ids(name, fields[2], TASK_BYTES)


def _awaits(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], TASK_BYTES)
    columns = check_columns(name, fields[2], {2}, (BYTES, BYTES))
    check_ids(name, columns[0], OBJECT_BYTES)
    check_ids(name, columns[1], TASK_BYTES)


_MAYBE_TUPLE: set[type] = {tuple, type(None)}
"""Types of a field that a short row does not have: it is None in the column then."""


_PLAIN_CALL = (bytes, str, bytes)


def check_call(name: str, fields: tuple[Any, ...]) -> None:
    """Check an actor, a number, and rows of calls."""
    actor_id, rows = fields[0], fields[2]
    row = rows[0] if len(rows) == 1 else None
    if type(row) is tuple and tuple(map(type, row)) == _PLAIN_CALL and len(row[0]) == len(actor_id) == TASK_BYTES:
        return  # As for results.
    check_ids(name, fields[:1], TASK_BYTES)
    columns = check_columns(name, fields[2], {3, 6}, (BYTES, STR, BYTES, _MAYBE_TUPLE, _MAYBE_TUPLE, OPTIONS))
    check_ids(name, columns[0], TASK_BYTES)
    if len(columns) == 6:
        for dependencies, values, options in zip(*columns[3:], strict=True):
            check_ids(name, dependencies or (), OBJECT_BYTES)
            if len(dependencies or ()) != len(values or ()):
                raise MalformedFrame(f"{name}: each dependency has a value")
            if values:
                check_values(name, values)
            check_options(name, options or ())


def check_values(name: str, values: tuple[Any, ...]) -> None:
    """Check values that come with calls or outcomes: bytes, None, or places (offset, size)."""
    for value in values:
        if type(value) not in VALUE or (
            type(value) is tuple and not (len(value) == 2 and set(map(type, value)) <= INT and min(value) >= 0)
        ):
            raise MalformedFrame(f"{name}: a value is bytes, a place, or nothing")


def check_callers(name: str, callers: tuple[Any, ...]) -> None:
    """Check names of callers: processes of this node, or of another one, whose id follows."""
    if not set(map(type, callers)) <= BYTES or not set(map(len, callers)) <= CALLER_BYTES:
        raise MalformedFrame(f"{name}: a caller is {INCARNATION_BYTES} bytes, and {NODE_BYTES} more if it is on another node")


_OUTCOME = (bytes, bytes, int, tuple, tuple)
CALLER_BYTES = {INCARNATION_BYTES, INCARNATION_BYTES + NODE_BYTES}
"""How long names of callers are: that of a process of this node, or of another one, whose id follows."""


def is_lone_outcome(rows: tuple[Any, ...]) -> bool:
    """Whether these rows are one outcome of a call, without refs, as of a program that waits for each call. Its values are not checked."""
    if len(rows) != 1 or type(row := rows[0]) is not tuple or tuple(map(type, row)) != _OUTCOME:
        return False
    return len(row[0]) == TASK_BYTES and len(row[1]) in CALLER_BYTES and not row[4]


def check_reported(name: str, fields: tuple[Any, ...]) -> None:
    """Check rows of outcomes of calls."""
    if is_lone_outcome(fields[0]):
        return
    columns = check_columns(name, fields[0], {5}, (BYTES, BYTES, INT, TUPLE, TUPLE))
    check_ids(name, columns[0], TASK_BYTES)
    check_callers(name, columns[1])
    for contained in columns[4]:
        if not set(map(type, contained)) <= TUPLE:
            raise MalformedFrame(f"{name}: refs are rows of ids")
        for refs in contained:
            check_ids(name, refs, OBJECT_BYTES)


def _expect(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {2, 3}, (BYTES, BYTES, {int, type(None)}))
    check_ids(name, columns[0], OBJECT_BYTES)
    check_ids(name, columns[1], TASK_BYTES)


def _hosting(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {2}, (TUPLE, INT))
    check_task_rows(name, columns[0])


def _traced(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {2}, (BYTES, STR))
    check_ids(name, columns[0], FUNCTION_BYTES)
    if len(fields[1]) % EACH_BYTES:
        raise MalformedFrame(f"{name}: a trace has {EACH_BYTES} bytes for each call")
    if len(fields[3]) not in (0, len(fields[1]) // EACH_BYTES * WAITED_BYTES):
        raise MalformedFrame(f"{name}: {WAITED_BYTES} bytes for how long each call waited, or none")
    columns = check_columns(name, fields[2], {2}, (BYTES, TUPLE))
    check_ids(name, columns[0], TASK_BYTES)
    check_ids(name, tuple(itertools.chain.from_iterable(columns[1])), OBJECT_BYTES)


def _delays(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[1], {5}, (BYTES, BYTES, TUPLE, TUPLE, {bool}))
    check_ids(name, (*columns[0], *columns[1], *itertools.chain.from_iterable(columns[3])), TASK_BYTES)
    check_ids(name, tuple(itertools.chain.from_iterable(columns[2])), OBJECT_BYTES)


def _actor_locations(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {7}, (BYTES, INT, BYTES, INT, {bool}, BYTES, BYTES))
    check_ids(name, columns[0], TASK_BYTES)


def _logged(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], TASK_BYTES)
    check_ids(name, fields[-1], OBJECT_BYTES)
    if min(fields[1:4]) < 0 or max(fields[1:4]) >= LOG_NUMBERS_MAX:
        raise MalformedFrame(f"{name}: what is logged is numbered from 0, below {LOG_NUMBERS_MAX}")


def check_block(name: str, fields: tuple[Any, ...]) -> None:
    """Check a block of an actor's log."""
    _logged(name, fields)
    check_ids(name, fields[5], OBJECT_BYTES)


def check_checkpoint(name: str, fields: tuple[Any, ...]) -> None:
    """Check a part of a checkpoint."""
    _logged(name, fields)
    if not 0 <= fields[4] < fields[5] <= CHECKPOINT_PARTS_MAX:
        raise MalformedFrame(f"{name}: a checkpoint has parts 0 to {CHECKPOINT_PARTS_MAX - 1}")


def _replaying(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], TASK_BYTES)
    check_callers(name, fields[3])


def _counted(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], TASK_BYTES)
    if not (0 <= fields[1] < LOG_NUMBERS_MAX and 0 <= fields[2] < LOG_NUMBERS_MAX):
        raise MalformedFrame(f"{name}: calls are counted from 0, below {LOG_NUMBERS_MAX}")


def check_taken(name: str, fields: tuple[Any, ...]) -> None:
    """Check an actor and ids of calls."""
    check_ids(name, fields[:1], TASK_BYTES)
    check_ids(name, fields[1], TASK_BYTES)


def _one_task(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], TASK_BYTES)


ROW_CHECKS: dict[str, Check] = {
    "FindActors": _task_ids,
    "ActorLocations": _actor_locations,
    "Call": check_call,
    "Returned": _results,
    "CallOutcomes": check_reported,
    "OutcomesRecorded": _task_ids,
    "ExpectResults": _expect,
    "HostedActors": _hosting,
    "CallTimes": _traced,
    "HostDelays": _delays,
    "LogAppended": check_block,
    "Checkpoint": check_checkpoint,
    "LogCommitted": _one_task,
    "ReplayProgress": _replaying,
    "CallCounts": _counted,
    "OutcomesReceived": check_taken,
    "KillActor": _one_task,
    "ActorExiting": _one_task,
    "RetireActor": _one_task,
    "ActorEnded": _one_task,
    "DrainActor": _one_task,
    "ActorDrained": _one_task,
    "StopCall": _one_task,
    "Submit": _submit,
    "InheritTasks": _inherit,
    "Dispatch": _dispatch,
    "DirectAllowed": _direct_allowed,
    "SubmitDirect": _direct_rows,
    "SubmittedDirect": _direct_rows,
    "DirectCounts": _direct_counts,
    "Completed": check_completed,
    "Yielded": _yielded,
    "Results": _results,
    "Objects": _object_rows,
    "OfferResults": _object_rows,
    "Put": _put,
    "RunningTasks": _running,
    "Export": check_exports,
    "Functions": check_exports,
    "Hold": _object_ids,
    "Release": _object_ids,
    "WatchReferences": _watch_references,
    "Unreferenced": _object_ids,
    "Fetch": _object_ids,
    "PutCommitted": _object_ids,
    "Cancel": _object_ids,
    "Unpin": _object_ids,
    "RecallPins": _object_ids,
    "Free": _object_ids,
    "Protect": _object_ids,
    "RetainOnly": _object_ids,
    "TakeBack": _task_ids,
    "TakenBack": _task_ids,
    "Pinned": _places,
    "GrantsHeld": _grants,
    "ReturnGrant": _returned_grant,
    "Write": _writes,
    "Blocked": _blocked,
    "WaitDetails": _awaits,
}
