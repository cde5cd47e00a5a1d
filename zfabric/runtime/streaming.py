"""Making a stream: running a generator of the user's, value by value, no further ahead of its consumer than it may be."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from zfabric.adapters import serialization
from zfabric.machines.parts.mailbox import Invocation
from zfabric.machines.worker import Item
from zfabric.protocol.ids import object_id
from zfabric.protocol.options import STREAM_VALUES_MAX

if TYPE_CHECKING:
    from zfabric.runtime.worker import WorkerRuntime

_END = object()


def produce(worker: WorkerRuntime, item: Item | Invocation, produced: Any, ahead: int) -> int:
    """Yield all values; how many there are. Raises what the user's code raises.

    Values wait in the generator: it is resumed only when there is room for what comes next. While it is not, its CPU is lent, since
    whoever is to consume the stream may need just that.
    """
    row, attempt, yields = item.row, item.attempt, worker.worker.yields
    source = _iterator(worker, item, produced)
    index = 0
    with worker.lock:
        yields.begin(row[0], ahead or worker.config.stream_buffered)
    try:
        while True:
            if not yields.may_go_on(row[0], index):
                worker.wait_for((), partial(yields.may_go_on, row[0], index), None, False)
            if yields.closed(row[0]):
                break
            value = worker.as_user(next, source, _END)
            if value is _END:
                break
            if index == STREAM_VALUES_MAX:
                raise ValueError(f"{worker.name_of(item)} has yielded {index} values, the most that a stream can have")
            packed = serialization.serialize(value, f"what {worker.name_of(item)} yielded")
            stored = worker.store(object_id(row[0], index + 1), packed)
            worker.yielded((row[0], attempt, index, stored, packed.contained))
            del value
            index += 1
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            worker.as_user(close)  # GeneratorExit, where it has not come to its end
    worker.yielded((row[0], attempt, index, None, ()))
    return index


def _iterator(worker: WorkerRuntime, item: Item | Invocation, produced: Any) -> Iterator[Any]:
    if not hasattr(produced, "__iter__") or isinstance(produced, (str, bytes, dict)):
        name = worker.name_of(item)
        raise TypeError(f"{name} declares num_returns='streaming' and returned one {type(produced).__name__}: it should yield its values")
    return iter(produced)
