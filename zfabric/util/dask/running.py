"""Runs a batch of a graph's tasks in a worker."""

from __future__ import annotations

from time import perf_counter
from typing import Any, NamedTuple

from dask.sizeof import sizeof

from zfabric.adapters.serialization import deserialize, serialize, serialize_fast
from zfabric.runtime import interface
from zfabric.util.dask.batches import last_uses
from zfabric.util.dask.graphs import Step


class Work(NamedTuple):
    """A batch as it travels. Values have numbers: first those from outside, then one of each step, in order."""

    constants: list[Any]
    """The first values, which the graph has."""
    inputs: list[tuple[int, int]]
    """The next ones: which argument of the task, and which value of it; -1 if the argument is the value."""
    steps: list[Step]
    groups: list[list[int]]
    """Numbers of the values to return, by group to store together."""


def run(work: Work, *arguments: Any) -> Any:
    """Run the steps of a batch. Return their measurements, then the groups of values."""
    values: list[Any] = [*work.constants, *work.inputs]
    begin, first = len(work.constants), len(values)
    uses: list[list[int]] = [[place for _, place in step[4]] for step in work.steps]
    uses.append([number for group in work.groups for number in group])
    drops = last_uses(uses, first + len(work.steps))
    loaded = bytearray(first)
    measured: dict[int, list[Any]] = {}
    for index, (key, kind, function, args, places) in enumerate(work.steps):
        began = perf_counter()
        try:
            for place in uses[index]:
                if begin <= place < first and not loaded[place]:
                    loaded[place] = 1
                    argument, entry = values[place]
                    values[place] = arguments[argument] if entry < 0 else unpacked(arguments[argument][entry])
            if function is None:
                values.append(args({name: values[place] for name, place in places}))
            else:
                for position, place in places:
                    args[position] = values[place]
                values.append(function(*args))
                args.clear()
            interface.check_process()
        except Exception as error:  # Whatever a task of the graph raises gets its key.
            error.add_note(f"in the Dask task {key!r}")
            raise
        for place in drops[index]:
            values[place] = None
        taken = perf_counter() - began
        row = measured.get(kind)
        if row is None:
            measured[kind] = [1, taken, 0, 0]
        else:
            row[0] += 1
            row[1] += taken
    returned: list[Any] = [None]
    for group in work.groups:
        if len(group) == 1:
            returned.append(values[group[0]])
            _note(measured, work.steps[group[0] - first][1], 0.0, sizeof(values[group[0]]))
            continue
        entries = []
        for number in group:
            began = perf_counter()
            entry = packed(values[number])
            entries.append(entry)
            _note(measured, work.steps[number - first][1], perf_counter() - began, len(entry))
        returned.append(entries)
    returned[0] = [(kind, *row) for kind, row in measured.items()]
    return returned if work.groups else returned[0]


def packed(value: Any) -> bytes | tuple[Any]:
    """Pack a value that is stored with others: a reader of one loads no other. Refs in it would not be seen."""
    fast = serialize_fast(value)
    if fast is not None:
        return fast
    serialized = serialize(value)
    return (value,) if serialized.contained else serialized.to_bytes()


def unpacked(entry: bytes | tuple[Any], copy: bool = False) -> Any:
    """The value of an entry; with ``copy`` it may be written to."""
    return entry[0] if type(entry) is tuple else deserialize(entry, copy=copy)  # type: ignore[arg-type]


def _note(measured: dict[int, list[Any]], kind: int, seconds: float, size: int) -> None:
    row = measured[kind]
    row[1] += seconds
    row[2] += 1
    row[3] += size
