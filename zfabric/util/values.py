"""Callbacks for values that are complete, or that nobody needs any more; locations of values."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from zfabric.api.errors import a
from zfabric.api.futures import begin, call_later
from zfabric.api.refs import ObjectRef, owner_of
from zfabric.exceptions import ArgumentTypeError
from zfabric.runtime import interface
from zfabric.runtime.interface import ClientInterface

_log = logging.getLogger("zfabric")


def on_ready(ref: ObjectRef[Any], f: Callable[[ObjectRef[Any]], object]) -> None:
    """Call ``f(ref)`` once the value of ``ref`` is complete: it exists, has failed, or is lost.

    ``f`` is called once, in the thread that calls back for all futures of this process: one that waits delays the others. It may call
    ``zf.get(ref)``. An exception in it is logged (by the logger "zfabric"). None is called after ``shutdown``.

    Until then ``ref``, and with it the value, is retained. A value that this process's task or call makes stays where it was made; one
    whose ref came from another process is brought to this node, as by ``zf.wait``.

    Raises ArgumentTypeError if ``ref`` is no ref or ``f`` cannot be called, and NotInitializedError if the ref's cluster was shut down.

    >>> import zfabric as zf
    >>> from queue import Queue
    >>> ready = Queue()
    >>> zf.util.on_ready(zf.put("value"), ready.put)
    >>> zf.get(ready.get())
    'value'
    """
    client = _checked("on_ready", ref, f)
    client.add_outcome_callback(ref.binary(), _calling(client, "on_ready", f, ref))


def on_freed(ref: ObjectRef[Any], f: Callable[[bytes], object], scope: Literal["process", "cluster"] = "cluster") -> None:
    """Call ``f(id)`` once no ref to a value is left; ``id`` is what ``ref.binary()`` returns (20 bytes).

    With ``scope="process"`` the refs of this process count, and those inside values to which it has refs. With ``scope="cluster"`` all refs
    count that lead to the value: of all processes, in arguments of unfinished tasks and calls, and inside values that are needed
    themselves. A value whose task has not ended is needed. Waiting retains nothing.

    ``f`` is called once, by the rules of ``on_ready``, even if the value has failed, its job has ended, a daemon was restarted or the
    value's node has died. The call comes within about 0.1 s; a ref that was passed on in a value or in arguments counts for up to 2 s
    longer. None comes once this process's own node has ended.

    Not covered: an id that a program stores as bytes is no ref, so ``ObjectRef(id)`` may be made after the call, and may even find the
    value. Where two processes read one stream, a value that the first has dropped may be made again for the second; ``f`` is not called
    again.

    Raises ArgumentTypeError as ``on_ready``, ValueError for another ``scope``, NotInitializedError if the ref's cluster was shut down, and
    CallbackLimitExceededError if ``last_callbacks_max`` (a setting; 100,000) wait in this process.

    >>> import zfabric as zf
    >>> from queue import Queue
    >>> freed, ref = Queue(), zf.put("value")
    >>> zf.util.on_freed(ref, freed.put)
    >>> expected = ref.binary()
    >>> del ref
    >>> freed.get() == expected
    True
    """
    client = _checked("on_freed", ref, f)
    if scope not in ("process", "cluster"):
        raise ValueError(f'on_freed(): scope is "process" or "cluster", not {scope!r}')
    client.add_last_callback(ref.binary(), _calling(client, "on_freed", f, ref.binary()), scope == "cluster")


class ValueLocation(NamedTuple):
    """What ``zf.util.locate`` reports of one value.

    ``size`` is its bytes when pickled; None if the value is missing, an error, or unknown. ``nodes`` are the ids, as in ``zf.nodes()``, of
    nodes whose object store has it: none for a value up to ``inline_bytes`` (64 KiB), which travels in messages. ``spilled``: whether all
    these nodes have it on disk only. ``complete``: whether it has an outcome, a value or an error.
    """

    size: int | None
    nodes: tuple[str, ...]
    spilled: bool
    complete: bool


def locate(refs: Iterable[ObjectRef[Any]]) -> dict[ObjectRef[Any], ValueLocation]:
    """Return the size and the nodes of each of these values (``ValueLocation``), without moving any.

    One message goes to each node for up to 10,000 refs. What was dropped or lost has no size and no node. What another node does not report
    within 2 s is missing, and a warning says so.

    Raises ArgumentTypeError if ``refs`` are no refs, and NotInitializedError if the cluster of one was shut down.

    >>> import zfabric as zf
    >>> ref = zf.put(bytes(1_000_000))
    >>> where = zf.util.locate([ref])[ref]
    >>> where.size > 1_000_000, where.nodes == (zf.nodes()[0]["NodeID"],), where.spilled, where.complete
    (True, True, False, True)
    """
    if isinstance(refs, ObjectRef) or not isinstance(refs, Iterable):
        raise ArgumentTypeError(f"locate() takes a list of refs, not {a(refs)}; for one ref: locate([ref])")
    wanted = list(refs)
    for each in wanted:
        if not isinstance(each, ObjectRef):
            raise ArgumentTypeError(f"locate() takes refs, not {a(each)}")
    clients = {id(client): client for client in map(owner_of, wanted)}
    found = {}
    for client in clients.values():  # There is one, unless there is no ref.
        found = client.locate([each.binary() for each in wanted])
    return {each: ValueLocation(*found.get(each.binary(), (None, (), False, False))) for each in wanted}


def _checked(name: str, ref: ObjectRef[Any], f: Callable[..., object]) -> ClientInterface:
    if not isinstance(ref, ObjectRef):
        raise ArgumentTypeError(f"{name}() takes a ref, not {a(ref)}")
    if not callable(f):
        raise ArgumentTypeError(f"{name}() takes a function to call, not {a(f)}")
    begin()
    return owner_of(ref)


def _calling(client: ClientInterface, name: str, f: Callable[[Any], object], about: Any) -> Callable[[bytes], None]:
    def call() -> None:
        if interface.current() is client:
            try:
                f(about)
            except BaseException:  # Even SystemExit: the thread calls back for others, too.
                _log.exception("a call back of zf.util.%s() raised", name)

    return lambda _: call_later(call)
