"""Every message of the fabric: who says it to whom, why, and what happens when it is lost or comes twice.

Messages travel over *links* (``zfabric.machines.parts.link``), which number, acknowledge, repeat and deduplicate them,
so between two living incarnations each arrives once and in order. When an incarnation ends, what it said that was not
acted upon is gone; the registration path (``Register`` … ``Ready``) rebuilds the state from those who hold it. That is
the answer to "what when it is lost" wherever a docstring below says nothing else.

A *row* is an immutable tuple of bytes, int, float, bool, str, None and tuples. The row layouts that several messages share:

``task row``    ``(task_id, function_id, arguments, dependencies[, options])``: enough to run the task, again if need be.
                ``arguments`` are serialized bytes, ``dependencies`` the ids of the objects that top-level arguments
                stand for, in the order of their place-holders. ``options`` is None or a tuple of (name, value) pairs
                that differ from the function's own, plus ``("contains", (object_id, …))`` for refs inside arguments.
``value``       ``bytes`` inline, or ``(offset, size)`` in the node's arena, or None for a value that is not handed out.
``outputs``     a tuple of values, one per return.

Everything is data: nothing here is ever unpickled by a scheduler, a store or a tool.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

PROTOCOL_VERSION = 1

Row: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = tuple[Row, ...]
Ids: TypeAlias = tuple[bytes, ...]

# How an attempt ended, in ``Completed`` and ``Results``.
OK = 0
ERROR = 1
"""The user's code raised; the one output is the serialized error."""
RETRY = 2
"""The user's code raised something its options say to retry; the one output is the serialized error."""
INTERRUPTED = 3
"""Stopped on request (cancel or deadline) before it had an outcome of its own."""
FAILED = 4
"""The fabric could not produce the value. The one output is a packed ``(kind, text, facts)`` (``protocol.failures``)."""


# --- registration: process -> local scheduler -------------------------------------------------------------------------


class Register(NamedTuple):
    """client -> local scheduler. First on every link: who I am. ``kind`` is "driver", "worker" or "tool".

    ``job`` is empty for a driver that wants a new job. ``name`` is the token a worker was spawned with, or what a driver
    calls itself. ``control`` is the incarnation of the process's control socket (empty: it has none). ``started`` is the process's
    start time in clock ticks, which guards its pid against reuse. Between this and ``Ready`` the process repeats what it
    holds: ``Export``, ``Offer``, ``Hold``, ``Running``, ``Completed``, ``Submit``.
    """

    protocol: int
    kind: str
    pid: int
    started: int
    job: bytes
    name: bytes
    control: bytes
    namespace: str
    path: str


class Ready(NamedTuple):
    """client -> local scheduler. All I hold has been said; dispatch may count on me."""


class Welcome(NamedTuple):
    """local scheduler -> client. You are registered. ``settings`` are (name, value) pairs a client needs (see ``config``).

    ``arena`` is the path the node's arena can be opened under (empty: none), with its size in bytes.
    """

    protocol: int
    job: bytes
    node: bytes
    arena: str
    arena_size: int
    settings: Rows


class Refused(NamedTuple):
    """any -> any. What you said does not fit: ``kind`` names an exception of ``zfabric.exceptions``, ``text`` says why."""

    kind: str
    text: str


class Rejoin(NamedTuple):
    """local scheduler -> client. I am a new incarnation of your node's daemon at ``path``; register again."""

    path: str


class Goodbye(NamedTuple):
    """driver, tool -> local scheduler. I am done; my job ends. Answered with ``Farewell`` once its log lines are out."""


class Farewell(NamedTuple):
    """local scheduler -> driver. Your job has ended, its tombstone is durable; ``reason`` is empty on request."""

    reason: str


# --- functions and tasks ----------------------------------------------------------------------------------------------


class Export(NamedTuple):
    """client -> local scheduler. Functions this job may run: rows ``(function_id, name, payload, options)``.

    ``options`` is a tuple of (name, value) pairs, see ``protocol.options``. Same id, same content: repeats are harmless.
    """

    functions: Rows


class Functions(NamedTuple):
    """local scheduler -> worker. The functions of the rows that follow, once per worker; rows as in ``Export``."""

    functions: Rows


class Submit(NamedTuple):
    """client -> local scheduler. Task rows, in order. A known id with the same row is a repeat; with another, refused."""

    rows: Rows


class Dispatch(NamedTuple):
    """local scheduler -> worker. Run these task rows, in order.

    ``details`` says what differs from "first attempt, nothing to resolve": rows ``(index in rows, attempt, values of the
    dependencies, gpu ids)``. ``inline`` rows are run at once, on top of the frame that waits in ``get``.
    """

    rows: Rows
    details: Rows
    inline: bool


class Completed(NamedTuple):
    """worker -> local scheduler. Attempts that ended: rows ``(task_id, attempt, status, outputs)``.

    ``extras`` are ``(index in rows, refs contained per output, argument refs kept)`` for the rows that have them;
    ``durations`` are ``(function_id, count, seconds in all)``; ``trace`` is what the timeline shows (``protocol.trace``).
    """

    rows: Rows
    extras: Rows
    durations: Rows
    trace: bytes


class Running(NamedTuple):
    """worker -> local scheduler, between ``Register`` and ``Ready``. Rows ``(task row, attempt, begun)`` that I hold."""

    rows: Rows


class TakeBack(NamedTuple):
    """local scheduler -> worker control. Give back those of these tasks that you have not begun."""

    task_ids: Ids


class TakenBack(NamedTuple):
    """worker control -> local scheduler. These I had not begun and will not begin. ``running`` is the attempt on top, or empty."""

    task_ids: Ids
    running: bytes


class Blocked(NamedTuple):
    """worker -> local scheduler. ``task_id`` waits for the objects ``wanted`` and gives back ``returned``, not begun.

    ``inline`` says whether tasks may run on top of it meanwhile (plain ``get``, no timeout).
    """

    task_id: bytes
    wanted: Ids
    returned: Ids
    inline: bool


class Unblocked(NamedTuple):
    """worker -> local scheduler. ``task_id`` no longer waits."""

    task_id: bytes


class Results(NamedTuple):
    """local scheduler -> client. Outcomes of tasks it submitted: rows ``(task_id, status, outputs)``, one for every task.

    Large values, and those with refs inside, are None here: they are fetched when they are wanted.
    """

    rows: Rows


class Inherit(NamedTuple):
    """local scheduler -> driver. Task rows whose submitter is gone: keep them until their outcome, as if they were your own.

    They are said again after a restart of the daemon, and nothing more: the driver holds none of their values. ``functions`` are those
    of the rows, as in ``Export``.
    """

    rows: Rows
    functions: Rows


class Cancel(NamedTuple):
    """client -> local scheduler. Cancel the tasks of these objects; ``force`` kills, ``recursive`` takes their children too."""

    object_ids: Ids
    force: bool
    recursive: bool


class Interrupt(NamedTuple):
    """local scheduler -> worker control. Stop this attempt. ``reason`` is "cancelled" or "timeout"."""

    task_id: bytes
    attempt: int
    reason: str


class Stop(NamedTuple):
    """local scheduler -> worker control. Finish nothing more; exit."""


# --- objects: client <-> local scheduler --------------------------------------------------------------------------------


class Put(NamedTuple):
    """client -> local scheduler. Values that exist: rows ``(object_id, value, contained refs, durable)``.

    Durable ones are answered with ``Kept`` after their commit.
    """

    rows: Rows


class Kept(NamedTuple):
    """local scheduler -> client. These durable values are committed."""

    object_ids: Ids


class Offer(NamedTuple):
    """client -> local scheduler, between ``Register`` and ``Ready``. Results I hold: rows ``(object_id, status, value, refs contained)``.

    They are adopted as accepted: a value that a program has seen is not made again.
    """

    rows: Rows


class Hold(NamedTuple):
    """client -> local scheduler. This process now has refs to these objects. Idempotent: holders are sets."""

    object_ids: Ids


class Release(NamedTuple):
    """client -> local scheduler. This process's last refs to these objects are gone. Idempotent."""

    object_ids: Ids


class Fetch(NamedTuple):
    """client -> local scheduler. Send me these objects (``Objects``) as soon as they exist."""

    object_ids: Ids


class Objects(NamedTuple):
    """local scheduler -> client. Values asked for: rows ``(object_id, status, value, refs contained)``. A place is a pin you now hold."""

    rows: Rows


# --- the arena: client <-> object store, local scheduler <-> object store --------------------------------------------------


class Reserve(NamedTuple):
    """client -> object store. Room for an object of ``size`` bytes; wait up to ``patience`` seconds for it.

    ``exact`` asks for that one object's room rather than a range to bump-allocate in. The store adds the header.
    """

    token: int
    size: int
    exact: bool
    patience: float


class Granted(NamedTuple):
    """object store -> client. The range ``offset … offset + size`` of the arena is yours to write."""

    token: int
    offset: int
    size: int


class NoSpace(NamedTuple):
    """object store -> client. No grant. ``kind`` is "too_large", "full" or "memory"; ``text`` says what to do."""

    token: int
    kind: str
    text: str


class ReturnGrant(NamedTuple):
    """client -> object store. I write no more into the grant at ``offset``; past ``used`` bytes it holds nothing."""

    offset: int
    used: int


class RecallGrant(NamedTuple):
    """object store -> client control. Return the idle grant at ``offset`` if you can."""

    offset: int


class GrantsHeld(NamedTuple):
    """client -> object store, between ``Register`` and ``Ready``. Grants I hold: rows ``(offset, size, used)``.

    Only what is not finished: the rest of a grant (``used`` 0), or an object being written (``used`` its whole size).
    """

    rows: Rows


class Pinned(NamedTuple):
    """client -> object store, between ``Register`` and ``Ready``. Locations I know: rows ``(object_id, offset, size)``."""

    rows: Rows


class Unpin(NamedTuple):
    """client -> object store. I no longer use the locations of these objects.

    A pin is one telling: an id is listed once for every time a location of it was told to this process (a ``Located`` row passed
    on). So an ``Unpin`` that crosses a new telling releases the old ones only, and nothing is moved under a reader.
    """

    object_ids: Ids


class Recall(NamedTuple):
    """object store -> client. Room is short: unpin those of these that no live value of yours uses."""

    object_ids: Ids


class Sealed(NamedTuple):
    """local scheduler -> object store. Objects written: rows ``(object_id, offset, size, writer incarnation, rebuildable)``.

    Said of every location a ``Completed`` or ``Put`` brings, also of those nobody wants (``Free`` follows): the room is the store's from
    here on. The first copy of an object stays; what is told its readers comes from ``Located``, never from the writer.
    """

    rows: Rows


class Absorb(NamedTuple):
    """local scheduler -> object store. Take over these inline values: rows ``(object_id, value, rebuildable)``."""

    rows: Rows


class Locate(NamedTuple):
    """local scheduler -> object store. Pin and tell: rows ``(object_id, process incarnation)``. Spilled ones come back first.

    Every row is answered by one row of ``Located`` or ``Lost``, and every row of ``Located`` is one pin (see ``Unpin``).
    """

    rows: Rows


class Located(NamedTuple):
    """object store -> local scheduler. Rows ``(object_id, process incarnation, offset, size)``: pinned by that process.

    Each row is told to that process exactly once, also when what it was asked for no longer matters: the process unpins it then.
    """

    rows: Rows


class Lost(NamedTuple):
    """object store -> local scheduler. Rows ``(object_id, reason)``: no copy is left here.

    ``reason`` is "evicted" (a rebuildable value made room), "missing", or starts with "unreadable:" or "full:". After "full:" the copy on
    disk is still there: there was no room to bring it back within ``put_patience``.
    """

    rows: Rows


class Free(NamedTuple):
    """local scheduler -> object store. Nobody refers to these any more; free each once it is unpinned."""

    object_ids: Ids


class ProcessGone(NamedTuple):
    """local scheduler -> object store. This process's death is proved: its pins and grants are void."""

    incarnation: bytes


class Keep(NamedTuple):
    """local scheduler -> object store, once after a restart. Exactly these are referenced; free all others, and begin."""

    object_ids: Ids


class ExtentReady(NamedTuple):
    """shell -> object store. The extent is reserved and warm, or (``error`` not empty) could not be."""

    offset: int
    size: int
    error: str


class Spilled(NamedTuple):
    """shell -> object store. The object's bytes are on disk, or (``error`` not empty) could not be written."""

    object_id: bytes
    error: str


class Unspilled(NamedTuple):
    """shell -> object store. The object's bytes are back in the arena, or (``error`` not empty) could not be read."""

    object_id: bytes
    error: str


class ArenaFound(NamedTuple):
    """shell -> object store, first after a restart. Sealed in the arena: ``(object_id, offset, size)``; on disk: ``(object_id, size)``."""

    sealed: Rows
    spilled: Rows


# --- control store ----------------------------------------------------------------------------------------------------------


class Write(NamedTuple):
    """any -> control store. Puts ``(table, key, value)`` and deletes ``(table, key)``; ``token`` 0 wants no answer.

    With a token, ``Written`` follows the commit, and the commit does not wait for a batch to fill. A ``Write`` without rows
    is a barrier: it is answered once all that came before it is committed.
    """

    token: int
    puts: Rows
    deletes: Rows


class Written(NamedTuple):
    """control store -> writer. Committed. ``ok`` is False where a condition failed or the store is read-only; ``text`` says which."""

    token: int
    ok: bool
    text: str


class Create(NamedTuple):
    """any -> control store. Put the row only if its key is free. Answered with ``Written``; ``ok`` is False if it exists.

    The very same row there already counts as put (the request came twice): put into the value who creates it.
    """

    token: int
    table: str
    key: bytes
    value: bytes


class Swap(NamedTuple):
    """any -> control store. Put the row only if the key's value is ``expected`` (None: absent). Answered with ``Written``.

    A row that has the new value already counts as put (the request came twice).
    """

    token: int
    table: str
    key: bytes
    expected: bytes | None
    value: bytes


class NewJob(NamedTuple):
    """local scheduler -> control store. The next job number, durably counted. Answered with ``JobNumber``.

    A store that cannot write answers ``Written`` with this token and ``ok`` False.
    """

    token: int


class JobNumber(NamedTuple):
    """control store -> local scheduler. The number is yours alone; it is committed."""

    token: int
    number: int


class Read(NamedTuple):
    """any -> control store. The rows of ``table`` under these keys. Answered with ``Found``; absent keys are left out."""

    token: int
    table: str
    keys: Ids


class Scan(NamedTuple):
    """any -> control store. Up to ``limit`` rows of ``table`` whose keys start with ``prefix``, after ``after``, in key order."""

    token: int
    table: str
    prefix: bytes
    after: bytes
    limit: int


class Found(NamedTuple):
    """control store -> asker. Rows ``(key, value)``; ``more`` says that a ``Scan`` stopped at its limit."""

    token: int
    rows: Rows
    more: bool


class ReadBlocks(NamedTuple):
    """local scheduler -> control store. The task rows of these task ids, out of their blocks.

    Answered with ``Found``, whose rows are ``(task_id, task row)``; ids that are not kept are left out.
    """

    token: int
    task_ids: Ids


class Subscribe(NamedTuple):
    """any -> control store. Keep me told of ``table`` rows that start with ``prefix``: a ``Snapshot`` now, then ``Publication``."""

    subscription: int
    table: str
    prefix: bytes


class Unsubscribe(NamedTuple):
    """any -> control store. No more of this subscription."""

    subscription: int


class Snapshot(NamedTuple):
    """control store -> subscriber. All rows ``(key, value)`` as of ``sequence``."""

    subscription: int
    sequence: int
    rows: Rows


class Publication(NamedTuple):
    """control store -> subscriber. Changes ``(key, value or None)`` since the publication before; a hint.

    Repeated (empty) every 500 ms, so that a gap in ``sequence`` shows; on a gap, subscribe again.
    """

    subscription: int
    sequence: int
    rows: Rows


class Committed(NamedTuple):
    """shell -> control store. Transactions up to ``sequence`` are durable, or (``error`` not empty) were rolled back."""

    sequence: int
    error: str


# --- global scheduler ---------------------------------------------------------------------------------------------------------


class Heartbeat(NamedTuple):
    """local scheduler -> global scheduler. What the node has: ``total`` and ``available`` are (resource, amount) pairs in 1/10,000."""

    node: bytes
    total: Rows
    available: Rows
    queued: int
    mean_seconds: float


class Place(NamedTuple):
    """local scheduler -> global scheduler. Where could tasks of these demands run? Rows ``(token, demand pairs)``."""

    rows: Rows


class Placed(NamedTuple):
    """global scheduler -> local scheduler. Rows ``(token, node or empty)``: empty where no node will ever have it."""

    rows: Rows


# --- the node's own shell ---------------------------------------------------------------------------------------------------------


class WorkerSpawned(NamedTuple):
    """shell -> local scheduler. The worker with this token is process ``pid`` (0: it could not be started, ``error`` says why)."""

    token: bytes
    pid: int
    error: str


class ProcessDied(NamedTuple):
    """shell -> local scheduler. Proved dead. ``signal`` 0 for an exit; ``peak`` memory in bytes; ``stderr`` its last lines.

    ``executing`` is the task that was on top of the worker's stack, read from its slot after its death (empty: none).
    """

    pid: int
    exit_code: int
    signal: int
    peak: int
    stderr: str
    executing: bytes = b""


class ProcessTable(NamedTuple):
    """shell -> local scheduler, once after a daemon's restart. Workers ``(token, pid)`` the supervisor still has."""

    workers: Rows


class MemoryPressure(NamedTuple):
    """shell -> local scheduler. The node is short of memory: ``usage`` rows are ``(pid, resident bytes)``; someone must go."""

    available: int
    limit: int
    usage: Rows


# --- people: tools and notices ------------------------------------------------------------------------------------------------------


class Query(NamedTuple):
    """client, tool -> local scheduler. ``what`` is one of ``QUESTIONS`` in ``machines/parts/report``; answered with ``Answer``."""

    token: int
    what: str
    arguments: Row


class Answer(NamedTuple):
    """local scheduler -> asker. ``payload`` is plain data (tuples, dicts, strings, numbers); ``error`` is empty when it could be had."""

    token: int
    payload: Any
    error: str


class Notice(NamedTuple):
    """local scheduler -> driver. Something a person should know. ``level`` is "info", "warning" or "error"."""

    level: str
    text: str


class LogLines(NamedTuple):
    """shell -> local scheduler -> driver. Output of workers: rows ``(pid, stream, text)``, stream "out" or "err"."""

    rows: Rows


Message: TypeAlias = tuple[Any, ...]
"""Any of the named tuples above."""

MESSAGES: dict[str, type[Any]] = {
    name: kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields") and kind.__module__ == __name__
}
"""Every message class by its name, which is also its name on the wire."""
