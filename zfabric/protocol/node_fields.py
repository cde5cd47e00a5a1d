"""Checks of the fields of messages between nodes: daemons of a cluster, and their transfer agents.

A node may run code on its peers. Yet its messages are checked as strictly as those of any process: a broken node must not stop the daemon
of another one. Offsets of an arena never leave their node, so a value is bytes, or its size.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgpack

from zfabric.protocol.fields import (
    BYTES,
    CALLER_BYTES,
    INT,
    STR,
    TUPLE,
    Check,
    MalformedFrame,
    check_block,
    check_call,
    check_callers,
    check_checkpoint,
    check_columns,
    check_completed,
    check_exports,
    check_few_ids,
    check_ids,
    check_reported,
    check_taken,
    check_task_rows,
    is_lone_outcome,
)
from zfabric.protocol.ids import (
    ATTEMPT_MAX,
    INCARNATION_BYTES,
    JOB_BYTES,
    NODE_BYTES,
    NODE_NUMBER_MAX,
    OBJECT_BYTES,
    PREFIX_BYTES,
    TASK_BYTES,
)
from zfabric.protocol.messages import CLOSE, GROUP_STATES, LOST, OK, STAYS
from zfabric.protocol.messages.key_values import KEY_LENGTH_MAX, NAMESPACE_LENGTH_MAX, PART_BYTES
from zfabric.protocol.names import NAME_BYTES_MAX
from zfabric.protocol.options import STREAM_VALUES_MAX

KEY_BYTES = 40
"""Bytes of a public key in Z85."""
LEVELS = {"info", "warning", "error", "again"}
"""Levels of notices. "again": something runs again, of which a driver receives a limited number of notices."""
STOP_REASONS = {"cancelled", "timeout", "force"}
RETURN_REASONS = {"", "blocked", "full"}
LOG_TABLES = {"log", "checkpoint"}
"""Where the home of an actor has its log (``machines/common/log_format.py``)."""
SIZE_MAX = 2**63 - 1
"""Largest size, position or count."""
SECONDS_MAX = 1e9
"""Longest time, in seconds."""
PENDING = -1
"""The status in ``Remains`` of an object whose value is not there."""
READ_TABLES = frozenset({"member", "object"})
"""The tables of the head that other nodes may read: which nodes are alive, and durable values."""
WRITE_TABLE = "object"
"""The table of the head that other nodes may write to: durable values."""
READ_MAX = 1000
"""Most rows that one ``Read`` of another node requests."""
OFFER_MAX = 64
"""Most fields of an offer of a large value: its size, and nodes that have it."""
LABELS_MAX = 1000
"""Most labels, resources or versions of one node."""


def _refuse(name: str, text: str) -> None:
    raise MalformedFrame(f"{name}: {text}")


def _numbers(name: str, *numbers: Any) -> None:
    """Check that all numbers are counts, sizes or positions."""
    if not all(type(number) is int and 0 <= number <= SIZE_MAX for number in numbers):
        _refuse(name, f"a number is 0 to {SIZE_MAX}")


def _seconds(name: str, *values: Any) -> None:
    if not all(0 <= value <= SECONDS_MAX for value in values):
        _refuse(name, f"a time is 0 to {SECONDS_MAX:g} s")


def _attempts(name: str, *numbers: int) -> None:
    if numbers and not 0 <= min(numbers) <= max(numbers) <= ATTEMPT_MAX:
        _refuse(name, "an attempt has a number of 64 bits")


def _node(name: str, node: Any) -> None:
    check_ids(name, (node,), NODE_BYTES)


def _homes(name: str, rows: tuple[Any, ...]) -> None:
    columns = check_columns(name, rows, {2}, (BYTES, BYTES))
    check_ids(name, columns[0], OBJECT_BYTES)
    check_few_ids(name, columns[1], NODE_BYTES)


def _refs(name: str, column: tuple[Any, ...]) -> None:
    """Check a column of ids of objects that values contain."""
    if any(column):
        check_ids(name, tuple(chain.from_iterable(column)), OBJECT_BYTES)


# -- between local schedulers --


def _register_node(name: str, fields: tuple[Any, ...]) -> None:
    _, daemon, peer = fields
    check_ids(name, (daemon, peer) if peer else (daemon,), INCARNATION_BYTES)


def _running(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {2}, (BYTES, INT))
    check_ids(name, columns[0], TASK_BYTES)
    _attempts(name, *columns[1])


def _claim(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {2}, (BYTES, TUPLE))
    check_ids(name, columns[0], OBJECT_BYTES)
    _refs(name, columns[1])
    _homes(name, fields[1])


def _retained(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {3}, (BYTES, INT, TUPLE))
    check_ids(name, columns[0], OBJECT_BYTES)
    _numbers(name, *columns[1])
    _refs(name, columns[2])
    _homes(name, fields[1])


def _entrusted(name: str, fields: tuple[Any, ...]) -> None:
    _numbers(name, fields[0])
    check_ids(name, fields[1], TASK_BYTES)


def _offer(name: str, offer: tuple[Any, ...]) -> None:
    """Check where a large value is to be copied from."""
    if not 1 <= len(offer) <= OFFER_MAX:
        _refuse(name, f"a large value is its size and up to {OFFER_MAX - 1} nodes")
    _numbers(name, offer[0])
    check_few_ids(name, offer[1:], NODE_BYTES)


def _delegate(name: str, fields: tuple[Any, ...]) -> None:
    about, functions, rows, attempts, values, homes, attempt = fields
    if tuple(map(type, about)) != (bytes, str, bytes) or len(about[0]) != JOB_BYTES or len(about[2]) != NODE_BYTES:
        _refuse(name, "a job is its id, its namespace and its home")
    if functions:
        check_exports(name, (functions,))
    check_task_rows(name, rows)
    if not {row[0][:JOB_BYTES] for row in rows} <= {about[0]}:
        _refuse(name, "all tasks are of one job")
    if attempts == values == homes == () and 0 <= attempt <= ATTEMPT_MAX:  # As of most tasks.
        return
    columns = check_columns(name, attempts, {2}, (INT, INT))
    _attempts(name, attempt, *columns[1])
    columns = check_columns(name, values, {3}, (BYTES, {bytes, tuple}, TUPLE))
    check_ids(name, columns[0], OBJECT_BYTES)
    for value in columns[1]:
        if type(value) is tuple:
            _offer(name, value)
    _refs(name, columns[2])
    _homes(name, homes)


def _reclaimed(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[0], TASK_BYTES)


def _returned(name: str, fields: tuple[Any, ...]) -> None:
    _reclaimed(name, fields)
    if fields[1] not in RETURN_REASONS:
        _refuse(name, f"tasks are returned for one of {sorted(RETURN_REASONS)}")


def _stop_delegated(name: str, fields: tuple[Any, ...]) -> None:
    task_id, attempt, reason, _ = fields
    check_ids(name, (task_id,), TASK_BYTES)
    _attempts(name, attempt)
    if reason not in STOP_REASONS:
        _refuse(name, f"a task is stopped for one of {sorted(STOP_REASONS)}")


_CRASH_KINDS = (bool, int, int, int, int, str, bool)


def _crash(name: str, values: tuple[bytes, ...]) -> None:
    """Check the outputs of an attempt that was lost: how its worker died."""
    try:
        kinds = [tuple(map(type, msgpack.unpackb(value, use_list=False, raw=False))) for value in values]
    except Exception:  # msgpack raises many kinds for bytes that are not its own; all mean the same here
        kinds = [()]
    if kinds not in ([], [_CRASH_KINDS]):
        _refuse(name, "a lost attempt says how its worker died")


def _outcomes(name: str, statuses: tuple[Any, ...], outputs: tuple[Any, ...]) -> None:
    """Check the outputs of attempts by their statuses."""
    for status, values in zip(statuses, outputs, strict=True):
        if not 0 <= status <= STAYS:
            _refuse(name, f"a status is 0 to {STAYS}")
        if not set(map(type, values)) <= ({bytes, int} if status == OK else BYTES):
            _refuse(name, "a value is bytes or its size, an error is bytes")
        if status == OK:
            _numbers(name, *(value for value in values if type(value) is int))
        elif status == LOST:
            _crash(name, values)


_ENDED_KINDS = (tuple, tuple, tuple, bytes, tuple, tuple, bytes)


_ENDED_PLAINLY = ((OK,), (), (), b"")
"""The other columns of one attempt that ended with small values: its status, refs, durations and times."""


def _is_plain_end(attempts: Any, statuses: Any, outputs: Any, task_id: Any) -> bool:
    """Whether these are the columns of one attempt that ended with one small value, as of a program that waits for each task."""
    return (
        type(attempts) is type(outputs) is tuple
        and len(attempts) == len(outputs) == 1
        and type(attempts[0]) is type(statuses[0]) is int
        and 0 <= attempts[0] <= ATTEMPT_MAX
        and type(outputs[0]) is tuple
        and tuple(map(type, outputs[0])) == (bytes,)
        and type(task_id) is bytes
        and len(task_id) == TASK_BYTES
    )


def _ended(name: str, fields: tuple[Any, ...]) -> None:
    number, completed, homes = fields
    if not 0 <= number <= SIZE_MAX:
        _numbers(name, number)  # Raises.
    if homes == () and completed[1:2] + completed[4:] == _ENDED_PLAINLY and _is_plain_end(*completed[:4]):
        return
    _homes(name, homes)
    if tuple(map(type, completed)) != _ENDED_KINDS:
        _refuse(name, "attempts that ended are seven columns")
    check_completed(name, completed)
    attempts, statuses, outputs, _, extras, durations, _ = completed
    _attempts(name, *attempts)
    if any(statuses) or not set(map(type, chain.from_iterable(outputs))) <= BYTES:  # Most are small values: one look at all of them.
        _outcomes(name, statuses, outputs)
    for index, contained, kept in extras:
        if not 0 <= index < len(attempts) or not set(map(type, contained)) <= TUPLE:
            _refuse(name, "refs inside values are rows of ids, by index")
        _refs(name, contained)
        check_ids(name, kept, OBJECT_BYTES)
    for _, count, seconds in durations:
        _numbers(name, count)
        _seconds(name, seconds)


def _number(name: str, fields: tuple[Any, ...]) -> None:
    _numbers(name, fields[0])


def _borrow(name: str, fields: tuple[Any, ...]) -> None:
    _numbers(name, fields[0])
    check_ids(name, fields[1], OBJECT_BYTES)


def _object_ids(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[0], OBJECT_BYTES)


def _fetched(name: str, fields: tuple[Any, ...]) -> None:
    rows, homes = fields
    columns = check_columns(name, rows, {4}, (BYTES, INT, {bytes, tuple}, TUPLE))
    check_ids(name, columns[0], OBJECT_BYTES)
    for status, value in zip(columns[1], columns[2], strict=True):
        if not 0 <= status <= STAYS:
            _refuse(name, f"a status is 0 to {STAYS}")
        if type(value) is tuple and value:
            _offer(name, value)
        if type(value) is tuple and status != OK:
            _refuse(name, "a failure is bytes")
    _refs(name, columns[3])
    _homes(name, homes)


def _relayed_yields(name: str, fields: tuple[Any, ...]) -> None:
    number, rows, homes = fields
    _numbers(name, number)
    columns = check_columns(name, rows, {5}, (BYTES, INT, INT, {bytes, int, type(None)}, TUPLE))
    check_ids(name, columns[0], TASK_BYTES)
    _attempts(name, *columns[1])
    if not all(0 <= index <= STREAM_VALUES_MAX for index in columns[2]):
        _refuse(name, f"a stream has 0 to {STREAM_VALUES_MAX} values")
    _numbers(name, *(value for value in columns[3] if type(value) is int))
    _refs(name, columns[4])
    _homes(name, homes)


def _allow_yields(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], TASK_BYTES)
    if not CLOSE <= fields[1] <= SIZE_MAX:
        _refuse(name, "a stream may yield up to a number of values, or is closed")


def _copy_lost(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], OBJECT_BYTES)


def _entrust(name: str, fields: tuple[Any, ...]) -> None:
    number, job, functions, rows, homes, unfinished = fields
    _numbers(name, number)
    check_ids(name, (job,), JOB_BYTES)
    check_ids(name, unfinished, TASK_BYTES)
    check_exports(name, (functions,))
    check_task_rows(name, rows)
    if not {row[0][:JOB_BYTES] for row in rows} <= {job}:
        _refuse(name, "all tasks are of one job")
    _homes(name, homes)


def _remains(name: str, fields: tuple[Any, ...]) -> None:
    node, objects, homes, attempts, _ = fields
    _node(name, node)
    columns = check_columns(name, objects, {6}, (BYTES, {bool}, {bool}, INT, {bytes, int}, TUPLE))
    check_ids(name, columns[0], OBJECT_BYTES)
    for status, value in zip(columns[3], columns[4], strict=False):
        if not PENDING <= status <= STAYS or type(value) is not (int if status == OK else bytes):
            _refuse(name, "there is no value, or its size, or an outcome that is not a value")
        if status == OK:
            _numbers(name, value)
    _refs(name, columns[5])
    _homes(name, homes)
    columns = check_columns(name, attempts, {2}, (BYTES, INT))
    check_ids(name, columns[0], TASK_BYTES)
    _attempts(name, *columns[1])


def _read(name: str, fields: tuple[Any, ...]) -> None:
    _numbers(name, fields[0])
    if len(fields[2]) > READ_MAX or not set(map(type, fields[2])) <= BYTES:
        _refuse(name, f"at most {READ_MAX} keys are bytes")


def _writer(name: str, row: Any) -> None:
    columns = check_columns(name, (row,), {5}, (BYTES, BYTES, BYTES, INT, INT))
    check_ids(name, columns[0], JOB_BYTES)
    check_ids(name, columns[1], NODE_BYTES)
    check_ids(name, columns[2], INCARNATION_BYTES)
    _numbers(name, *columns[3], *columns[4])


def _key(name: str, namespace: str, key: bytes) -> None:
    if len(key) > KEY_LENGTH_MAX or len(namespace.encode("utf-8", "surrogatepass")) > NAMESPACE_LENGTH_MAX:
        _refuse(name, f"a key has at most {KEY_LENGTH_MAX} bytes, a namespace {NAMESPACE_LENGTH_MAX}")


def _put_key(name: str, fields: tuple[Any, ...]) -> None:
    token, writer, namespace, key, value, upload, _, _ = fields
    _numbers(name, token, upload)
    _writer(name, writer)
    _key(name, namespace, key)
    _part(name, value)


def _put_part(name: str, fields: tuple[Any, ...]) -> None:
    token, writer, place, size, part = fields
    _numbers(name, token, place, size)
    _writer(name, writer)
    _part(name, part)
    if not 0 < len(part) == min(PART_BYTES, size - place * PART_BYTES):
        _refuse(name, f"each part of a value has {PART_BYTES} bytes, the last one those that are left")


def _part(name: str, part: bytes) -> None:
    if len(part) > PART_BYTES:
        _refuse(name, f"a part has at most {PART_BYTES} bytes")


def _drop_upload(name: str, fields: tuple[Any, ...]) -> None:
    _numbers(name, fields[0])
    _writer(name, fields[1])


def _delete_keys(name: str, fields: tuple[Any, ...]) -> None:
    token, writer, namespace, key, _ = fields
    _numbers(name, token)
    _writer(name, writer)
    _key(name, namespace, key)


def _get_key(name: str, fields: tuple[Any, ...]) -> None:
    token, namespace, key, _, place = fields
    _numbers(name, token, place + 1)
    _key(name, namespace, key)


def _list_keys(name: str, fields: tuple[Any, ...]) -> None:
    token, namespace, prefix, after = fields
    _numbers(name, token)
    _key(name, namespace, prefix)
    _key(name, "", after)


def _end_keys(name: str, fields: tuple[Any, ...]) -> None:
    _numbers(name, fields[0])
    check_ids(name, fields[1:], JOB_BYTES)


def _nodes(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[0], NODE_BYTES)


def _probed(name: str, fields: tuple[Any, ...]) -> None:
    _numbers(name, fields[0])
    check_ids(name, fields[1], NODE_BYTES)


def _delete_rows(name: str, fields: tuple[Any, ...]) -> None:
    _numbers(name, fields[0])
    if not all(len(key) <= OBJECT_BYTES for key in fields[2:]):
        _refuse(name, f"a key has at most {OBJECT_BYTES} bytes")


def _found(name: str, fields: tuple[Any, ...]) -> None:
    _numbers(name, fields[0])
    check_columns(name, fields[1], {2}, (BYTES, BYTES))


def _job(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], JOB_BYTES)


def _job_output(name: str, fields: tuple[Any, ...]) -> None:
    _job(name, fields)
    check_columns(name, fields[1], {4}, (INT, STR, STR, STR))
    columns = check_columns(name, fields[2], {2}, (STR, STR))
    if not set(columns[0]) <= LEVELS:
        _refuse(name, f"a level is one of {sorted(LEVELS)}")


# -- calls of actors --


def _relayed(name: str, fields: tuple[Any, ...]) -> None:
    check_call(name, fields)
    _, attempt, _, caller, homes = fields
    if homes == () and len(caller) in CALLER_BYTES and 0 <= attempt <= ATTEMPT_MAX:
        return
    _attempts(name, attempt)
    check_callers(name, (caller,))
    _homes(name, homes)


def _receipt(name: str, fields: tuple[Any, ...]) -> None:
    check_taken(name, fields)
    check_callers(name, fields[3:4])


def _stop_children(name: str, fields: tuple[Any, ...]) -> None:
    prefixes, parents, reason = fields
    check_ids(name, prefixes, PREFIX_BYTES)
    check_ids(name, parents, TASK_BYTES)
    if reason not in STOP_REASONS:
        _refuse(name, f"children are stopped for one of {sorted(STOP_REASONS)}")


def _stop_relayed(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:2], TASK_BYTES)
    if fields[2] not in STOP_REASONS:
        _refuse(name, f"a call is stopped for one of {sorted(STOP_REASONS)}")


def _retire(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], TASK_BYTES)
    _attempts(name, fields[1])


def _exiting(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], TASK_BYTES)


def _life_ended(name: str, fields: tuple[Any, ...]) -> None:
    actor_id, attempt, executing, _, _, facts, _, _ = fields
    check_ids(name, (actor_id, executing) if executing else (actor_id,), TASK_BYTES)
    _attempts(name, attempt)
    if tuple(map(type, facts)) != (int, int, int, int):
        _refuse(name, "facts are pid, signal, exit code and peak memory")


def _relayed_block(name: str, fields: tuple[Any, ...]) -> None:
    check_block(name, fields[:-1])
    _homes(name, fields[-1])


def _relayed_checkpoint(name: str, fields: tuple[Any, ...]) -> None:
    check_checkpoint(name, fields[:-1])
    _homes(name, fields[-1])


def _log_recorded(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], TASK_BYTES)
    _attempts(name, fields[1])
    _numbers(name, fields[2])


def _log_key(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], TASK_BYTES)
    _attempts(name, fields[1])
    if fields[2] not in LOG_TABLES:
        _refuse(name, f"the log of an actor is in the tables {sorted(LOG_TABLES)}")


def _log_page(name: str, fields: tuple[Any, ...]) -> None:
    *key, rows, _, refs, homes = fields
    _log_key(name, tuple(key))
    check_columns(name, rows, {2}, (BYTES, BYTES))
    check_ids(name, refs, OBJECT_BYTES)
    _homes(name, homes)


def _actor_name(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], TASK_BYTES)
    _text(name, *fields[1:])


def _name_claimed(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields, TASK_BYTES)


def _caller(name: str, fields: tuple[Any, ...]) -> None:
    check_callers(name, fields[:1])


def _calls_ended(name: str, fields: tuple[Any, ...]) -> None:
    number, rows, homes = fields
    if homes == () and is_lone_outcome(rows) and 0 <= number <= SIZE_MAX and rows[0][2] == OK and tuple(map(type, rows[0][3])) == (bytes,):
        return  # As for the ends of tasks.
    _numbers(name, number)
    check_reported(name, (rows,))
    for _, _, status, outputs, _ in rows:
        if not 0 <= status <= STAYS or not set(map(type, outputs)) <= ({bytes, int} if status == OK else BYTES):
            _refuse(name, "a value is bytes or its size, an error is bytes")
        _numbers(name, *(value for value in outputs if type(value) is int))
    _homes(name, homes)


def _ends_received(name: str, fields: tuple[Any, ...]) -> None:
    number, callers = fields
    columns = check_columns(name, callers, {2}, (BYTES, INT))
    check_ids(name, columns[0], INCARNATION_BYTES)
    _numbers(name, number, *columns[1])


# -- global schedulers --


def _heartbeat(name: str, fields: tuple[Any, ...]) -> None:
    _node(name, fields[0])
    _seconds(name, fields[4])


def _place(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {5}, (INT, TUPLE, INT, {float, int}, TUPLE))
    for demand, inputs in zip(columns[1], columns[4], strict=False):
        check_columns(name, demand, {2}, (STR, INT))
        check_columns(name, inputs, {2}, (BYTES, INT))
    _numbers(name, *columns[2])
    _seconds(name, *columns[3])


def _placed(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {2}, (INT, TUPLE))
    for places in columns[1]:
        counts = check_columns(name, places, {2}, (BYTES, INT))
        check_ids(name, counts[0], NODE_BYTES)
        _numbers(name, *counts[1])


# -- placement groups --


def _amounts(name: str, *several: tuple[Any, ...]) -> None:
    for amounts in several:
        _numbers(name, *check_columns(name, amounts, {2}, (STR, INT))[1])


def _room(name: str, fields: tuple[Any, ...]) -> None:
    _numbers(name, fields[0])
    _amounts(name, *fields[1:])


def _prepare_bundles(name: str, fields: tuple[Any, ...]) -> None:
    group, reservation, _, rows = fields
    check_ids(name, (group,), TASK_BYTES)
    columns = check_columns(name, rows, {2}, (INT, TUPLE))
    _numbers(name, reservation, *columns[0])
    _amounts(name, *columns[1])
    if not rows or len(set(columns[0])) < len(rows):
        _refuse(name, "bundles have numbers of their own, and there is one at least")


def _bundles_prepared(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], TASK_BYTES)
    _numbers(name, fields[1])


def _hold_bundles(name: str, fields: tuple[Any, ...]) -> None:
    columns = check_columns(name, fields[0], {3}, (BYTES, INT, {bool}))
    check_ids(name, columns[0], TASK_BYTES)
    _numbers(name, *columns[1])


def _free_bundles(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], TASK_BYTES)
    _numbers(name, *fields[1])


def _group(name: str, fields: tuple[Any, ...]) -> None:
    check_ids(name, fields[:1], TASK_BYTES)


def _group_state(name: str, fields: tuple[Any, ...]) -> None:
    group, state, rows, _ = fields
    check_ids(name, (group,), TASK_BYTES)
    columns = check_columns(name, rows, {2}, (TUPLE, BYTES))
    _amounts(name, *columns[0])
    check_ids(name, tuple(filter(None, columns[1])), NODE_BYTES)
    if state not in GROUP_STATES:
        _refuse(name, f"a placement group is {', '.join(GROUP_STATES)}")


# -- registry and members --


def _pairs(name: str, rows: Any, kinds: set[Any]) -> None:
    if len(rows) > LABELS_MAX:
        _refuse(name, f"a node has at most {LABELS_MAX} resources, labels and versions of each")
    columns = check_columns(name, rows, {2}, (STR, kinds))
    for text in chain(columns[0], columns[1]):
        if type(text) is int:
            _numbers(name, text)
        else:
            _text(name, text)


def _text(name: str, *texts: str) -> None:
    if any(len(text.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX for text in texts):
        _refuse(name, f"a text has at most {NAME_BYTES_MAX} bytes")


def _node_number(name: str, number: Any) -> None:
    if not 0 <= number <= NODE_NUMBER_MAX:
        _refuse(name, f"a node's number is 0 to {NODE_NUMBER_MAX}")


def _join(name: str, fields: tuple[Any, ...]) -> None:
    _, node, number, own, pid, key, address, transfer, resources, labels, versions = fields
    _node(name, node)
    _node_number(name, number)
    _numbers(name, pid)
    check_ids(name, (key,), KEY_BYTES)
    _text(name, own, address, transfer)
    _pairs(name, resources, INT)
    _pairs(name, labels, STR)
    _pairs(name, versions, STR)


def _joined(name: str, fields: tuple[Any, ...]) -> None:
    head, number, lease = fields
    _node(name, head)
    _node_number(name, number)
    _seconds(name, lease)
    if not number or not lease:
        _refuse(name, "a node has a number and a lease")


def _node_table(name: str, fields: tuple[Any, ...]) -> None:
    version, rows, head = fields
    _numbers(name, version)
    if head:
        _node(name, head)
    columns = check_columns(name, rows, {9}, (BYTES, INT, STR, STR, STR, BYTES, TUPLE, TUPLE, INT))
    check_ids(name, columns[0], NODE_BYTES)
    for node_number, resources, labels in zip(columns[1], columns[6], columns[7], strict=False):
        _node_number(name, node_number)
        _pairs(name, resources, INT)
        _pairs(name, labels, STR)


def _about_node(name: str, fields: tuple[Any, ...]) -> None:
    _node(name, fields[0])


def _renew(name: str, fields: tuple[Any, ...]) -> None:
    _node(name, fields[0])
    _numbers(name, fields[1])


# -- transfer agents --


def _want(name: str, fields: tuple[Any, ...]) -> None:
    token, identifier, size, position, limit = fields
    check_ids(name, (identifier,), OBJECT_BYTES)
    _numbers(name, token, size, position, limit)


def _all_numbers(name: str, fields: tuple[Any, ...]) -> None:
    _numbers(name, *fields)


def _redirect(name: str, fields: tuple[Any, ...]) -> None:
    _numbers(name, fields[0])
    _node(name, fields[1])


NODE_CHECKS: dict[str, Check] = {
    "RegisterNode": _register_node,
    "Delegate": _delegate,
    "StopDelegated": _stop_delegated,
    "StopChildren": _stop_children,
    "Cancel": _object_ids,
    "Reclaim": _reclaimed,
    "Reclaimed": _returned,
    "Ended": _ended,
    "RelayedYields": _relayed_yields,
    "AllowYields": _allow_yields,
    "EndsReceived": _ends_received,
    "Borrow": _borrow,
    "Borrowed": _borrow,
    "RunningDelegated": _running,
    "ClaimValues": _claim,
    "RetainedValues": _retained,
    "FetchValues": _object_ids,
    "FetchedValues": _fetched,
    "CopyLost": _copy_lost,
    "CopyValues": _object_ids,
    "ValuesCopied": _object_ids,
    "RetainCopies": _object_ids,
    "Entrust": _entrust,
    "Entrusted": _entrusted,
    "Finished": _reclaimed,
    "Withdraw": _reclaimed,
    "Remains": _remains,
    "TookOver": _about_node,
    "RetainRows": _object_ids,
    "ReleaseRows": _object_ids,
    "Read": _read,
    "DeleteRows": _delete_rows,
    "PutKey": _put_key,
    "PutPart": _put_part,
    "DropUpload": _drop_upload,
    "DeleteKeys": _delete_keys,
    "GetKey": _get_key,
    "ListKeys": _list_keys,
    "EndKeys": _end_keys,
    "KeyAnswer": _number,
    "RelayedCalls": _relayed,
    "RelayedReceipt": _receipt,
    "StopRelayed": _stop_relayed,
    "CallsEnded": _calls_ended,
    "RetireActor": _retire,
    "ActorExiting": _exiting,
    "LifeEnded": _life_ended,
    "RelayedBlock": _relayed_block,
    "RelayedCheckpoint": _relayed_checkpoint,
    "LogRecorded": _log_recorded,
    "ReadLog": _log_key,
    "LogPage": _log_page,
    "CallerGone": _caller,
    "ClaimName": _actor_name,
    "FreeName": _actor_name,
    "NameClaimed": _name_claimed,
    "EndJob": _job,
    "JobGone": _job,
    "JobLives": _job,
    "JobOutput": _job_output,
    "Heartbeat": _heartbeat,
    "Place": _place,
    "Placed": _placed,
    "JobNumber": _all_numbers,
    "NewJob": _number,
    "Written": _number,
    "AskRoom": _number,
    "NodeRoom": _room,
    "PrepareBundles": _prepare_bundles,
    "BundlesPrepared": _bundles_prepared,
    "CommitBundles": _group,
    "FreeBundles": _free_bundles,
    "HoldBundles": _hold_bundles,
    "WatchGroup": _group,
    "GroupState": _group_state,
    "Join": _join,
    "Joined": _joined,
    "NodeTable": _node_table,
    "RenewLease": _renew,
    "LeaseRenewed": _number,
    "Leave": _about_node,
    "Complain": _nodes,
    "ProbePairs": _number,
    "PairsProbed": _probed,
    "Ping": _number,
    "Pong": _number,
    "Want": _want,
    "Credit": _all_numbers,
    "StopWant": _number,
    "Chunk": _all_numbers,
    "Queued": _number,
    "Redirect": _redirect,
    "Unavailable": _number,
}
"""The check of each message between nodes, by name. Those without fields, or with texts alone, have none."""
