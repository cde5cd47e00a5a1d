"""What ``zfabric.api`` needs of the runtime: the client of this process, by ids and bytes only.

``zfabric.runtime.client.FabricClient`` is the real one; tests of the API may put another in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from zfabric.adapters import task_errors
from zfabric.config import Config
from zfabric.protocol.messages import Row
from zfabric.protocol.options import Demand


class Outcome(NamedTuple):
    """What became of an object. ``status`` as in ``protocol.messages`` (OK, ERROR, FAILED).

    ``data`` is what ``adapters.serialization.deserialize`` reads: bytes, or a memoryview of where the value lies. ``release``
    is None for bytes; for a view it must be called once, from any thread (also a finalizer), when nothing uses the view any more.
    """

    status: int
    data: bytes | memoryview
    release: Callable[[], None] | None


class Serialized(Protocol):
    """A value on its way out (``adapters.serialization.serialize``)."""

    size: int
    contained: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """The whole as one bytes object, for inline values."""

    def pieces(self) -> Iterable[bytes | memoryview]:
        """The whole, in pieces that follow each other."""

    def write_into(self, target: memoryview) -> None:
        """The whole, written at the start of ``target`` (64-byte aligned, at least ``size`` long)."""


class Terms(NamedTuple):
    """How calls of an actor are made: ``retries`` after the loss of its process (``LOGGED`` if it is logged), and at most ``pending``
    without an outcome, 0: any number. ``keeps``: its checkpoints keep outcomes that their callers may not have. ``unordered``: it runs
    several calls at once, and none waits for the arguments of another."""

    retries: int = 0
    pending: int = 0
    keeps: bool = False
    unordered: bool = False


class ClientInterface(Protocol):
    """The fabric inside this process. All methods are thread-safe; object ids are 20 bytes, task ids 16."""

    config: Config

    @property
    def namespace(self) -> str:
        """Where this process looks for names of actors, unless it is told otherwise."""

    @property
    def job(self) -> bytes:
        """The job of this process (4 bytes)."""

    @property
    def node(self) -> bytes:
        """The incarnation of its node."""

    def export(self, function_id: bytes, name: str, payload: bytes, options: tuple[Row, ...]) -> None:
        """Make a function known to the job (16-byte content hash). Cheap when repeated."""

    def submit(
        self, function_id: bytes, arguments: bytes, dependencies: tuple[bytes, ...], options: tuple[Row, ...] | None, num_returns: int
    ) -> bytes:
        """Queue one task and return the id of its first value at once, whether it has any or not. The process holds one reference to each.

        The very same bytes stand in the tables, and are found there the faster.
        """

    def submit_many(
        self, function_id: bytes, calls: Iterable[tuple[bytes, tuple[bytes, ...], tuple[Row, ...] | None]], num_returns: int
    ) -> list[bytes]:
        """The same for many calls of one function: (arguments, dependencies, options) each."""

    def call(
        self,
        actor_id: bytes,
        method: str,
        arguments: bytes,
        dependencies: tuple[bytes, ...],
        options: tuple[Row, ...] | None,
        num_returns: int,
        terms: Terms,
    ) -> bytes:
        """Queue one call of an actor and return the id of its first value at once. The process holds one reference to each.

        PendingCallsLimitExceededError if the terms allow no more calls, unless the configuration says to wait.
        """

    def kill_actor(self, actor_id: bytes, no_restart: bool) -> None:
        """End an actor's process at once."""

    def put(self, value: Serialized, durable: bool) -> bytes:
        """Store a value; return its object id. The process holds one reference to it. ObjectStoreFullError, ObjectTooLargeError."""

    def add_reference(self, object_id: bytes) -> None:
        """One more ref in this process (when a ref is unpickled or copied)."""

    def follow(self, object_ids: Sequence[bytes]) -> None:
        """One more ref in this process to each, and have their values sent as soon as they exist: the next ones of a stream."""

    def drop_reference(self, object_id: bytes) -> None:
        """One ref less. Safe in finalizers: takes no lock, never raises."""

    def get(self, object_ids: Sequence[bytes], timeout: float | None, fail_fast: bool = True) -> list[bytes | Outcome]:
        """Wait for all of them (each listed once); a small value comes as its bytes alone. GetTimeoutError after ``timeout`` seconds.

        With ``fail_fast`` a failure ends the wait at once: its outcome is then all that the list has.
        """

    def has_failed(self, object_id: bytes) -> bool:
        """Whether its outcome has arrived and is an error, which stays unread."""

    def wait(self, object_ids: Sequence[bytes], num_returns: int, timeout: float | None, fetch_local: bool) -> set[bytes]:
        """As many as ``num_returns`` that have an outcome (of those that have, the first), or all that have when ``timeout`` has passed."""

    def watch(self, object_ids: Iterable[bytes], callback: Callable[[bytes], None]) -> None:
        """Call ``callback`` with each once it has an outcome: at once, or while this process waits for anything."""

    def await_watched(self, object_ids: Collection[bytes], done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until a ``callback`` of ``watch`` has made ``done`` true; False after ``timeout``. ``object_ids`` are what it waits for."""

    def add_done_callback(self, object_id: bytes, callback: Callable[[bytes], None]) -> None:
        """Call ``callback(object_id)`` once it has an outcome, from a thread of the fabric (at once if it has one)."""

    def cancel(self, object_ids: Sequence[bytes], force: bool, recursive: bool) -> None:
        """Ask for the cancellation of the tasks that make these objects."""

    def explain_call(self, object_id: bytes) -> tuple[str, bytes, str] | None:
        """Where the call of an actor stands that is to make this object: state, actor, reason. None if it is none of this process."""

    def pending_calls(self, matches: Callable[[bytes], bool]) -> list[bytes]:
        """The ids of calls of actors by this process that have no outcome yet and that match."""

    def breakpoint_of(self, task_id: bytes, pid: str) -> str:
        """Where the task or call stands, or else the process with this pid, if that is at a ``breakpoint()``; empty if it is not."""

    def query(self, what: str, *arguments: Any, timeout: float = 10.0) -> Any:
        """Ask the node's daemon; the payload of its ``Answer``. FabricError with its error text."""

    def exit_actor(self) -> NoReturn:
        """End the actor that lives in this process, for good. TypeError where none does, or several do and none of them runs here."""

    def close(self) -> None:
        """Flush, say goodbye, and let go of everything."""


environment = ""
"""In a worker, the ``runtime_env`` that it was started with, as JSON: what it submits has the same, where that does not say otherwise."""

_current: ClientInterface | None = None


def current() -> ClientInterface | None:
    """This process's client, or None."""
    return _current


task_errors.client = current


def set_current(client: ClientInterface | None) -> None:
    """Install (or remove) this process's client."""
    global _current
    _current = client


class TaskContext(NamedTuple):
    """The task this thread runs, as ``get_runtime_context`` shows it."""

    task_id: bytes
    attempt: int
    function_name: str
    gpu_ids: tuple[int | str, ...]
    actor_id: bytes = b""
    demand: Demand = ()
    """What it holds: that of its actor, in a call."""
    name: str = ""
    """What its options call it; empty if they do not."""
    cancelled: bool = False
    """Whether it is to be stopped."""


def _no_task() -> TaskContext | None:
    return None


current_task: Callable[[], TaskContext | None] = _no_task
"""Tells the attempt on top of this process's stack; a worker replaces it, so that no task pays for what few ask."""


def _not_collected(function: Callable[..., Any]) -> Callable[..., Any]:
    from zfabric.exceptions import FabricError

    raise FabricError("num_returns='dynamic' needs the package itself: import zfabric in this process")


collected: Callable[[Callable[..., Any]], Callable[..., Any]] = _not_collected
"""Makes a function that stores all that a generator function yields, and returns one over the refs; the API, which knows these, sets it."""


def __getattr__(name: str) -> Any:
    """``interface.context``: the ``TaskContext`` of the attempt on top, None in a driver."""
    if name == "context":
        return current_task()
    raise AttributeError(name)
