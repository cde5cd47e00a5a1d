"""What ``zfabric.api`` uses of the runtime: the client of this process, which handles only ids and bytes.

``runtime.driver.DriverClient`` and ``runtime.worker_client.WorkerClient`` are the real ones; tests of the API put another in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from zfabric.adapters import task_errors
from zfabric.config import Config
from zfabric.exceptions import FabricError
from zfabric.protocol.messages import Row
from zfabric.protocol.options import Demand, Strategy


class Outcome(NamedTuple):
    """The outcome of an object. ``status`` is one of ``protocol.messages`` (OK, ERROR, FAILED).

    ``data`` is for ``adapters.serialization.deserialize``: bytes, or a memoryview of the value in the arena. ``release``
    is None for bytes. For a view it must be called once, from any thread or finalizer, when the view is no longer used.
    """

    status: int
    data: bytes | memoryview
    release: Callable[[], None] | None


class Serialized(Protocol):
    """A serialized value (``adapters.serialization.serialize``)."""

    size: int
    contained: tuple[bytes, ...]

    def to_bytes(self) -> bytes:
        """Return the whole value as one bytes object, for inline values."""

    def pieces(self) -> Iterable[bytes | memoryview]:
        """Return the whole value as consecutive pieces."""

    def write_into(self, target: memoryview) -> None:
        """Write the whole value at the start of ``target`` (64-byte aligned, at least ``size`` long)."""


class YieldStatistics(NamedTuple):
    """What ``yield`` returns in a task or method that makes a stream: how the value became an object.

    ``object_creation_dur_s`` are the seconds that it took to pickle the value and to store it, ``size_bytes`` its bytes when pickled.

    >>> @zf.remote
    ... def blocks():
    ...     statistics = yield [1, 2, 3]
    ...     yield statistics.size_bytes > 0
    >>> [zf.get(ref) for ref in blocks.remote()]
    [[1, 2, 3], True]
    """

    object_creation_dur_s: float
    size_bytes: int


class Terms(NamedTuple):
    """How to call an actor.

    ``retries`` is how often a call is repeated after the loss of the process (``LOGGED`` if it is logged), ``pending`` the most calls
    without an outcome (0: any number). ``keeps`` says that its checkpoints retain outcomes that callers may not have received.
    ``unordered`` says that it runs several calls at once, so that no call waits for the arguments of an earlier one.
    """

    retries: int = 0
    pending: int = 0
    keeps: bool = False
    unordered: bool = False


ActorCall = tuple[bytes, tuple[Row, ...] | None, int, Terms]
"""One call of several: (actor id, options, number of values, terms)."""


class ClientInterface(Protocol):
    """The client of this process. All methods are thread-safe. Object ids have 20 bytes, task ids 16."""

    config: Config

    @property
    def namespace(self) -> str:
        """The default namespace for names of actors."""

    @property
    def job(self) -> bytes:
        """The job of this process (4 bytes)."""

    @property
    def node(self) -> bytes:
        """The incarnation of its node."""

    def new_id(self) -> bytes:
        """Return an id (16 bytes) that nothing else has: it begins with the job's."""

    def export(self, function_id: bytes, name: str, payload: bytes, options: tuple[Row, ...]) -> None:
        """Export a function to the job; its id is a 16-byte hash of its content. Repeated exports are cheap."""

    def submit(
        self, function_id: bytes, arguments: bytes, dependencies: tuple[bytes, ...], options: tuple[Row, ...] | None, num_returns: int
    ) -> bytes:
        """Queue one task and return the id of its first value, even if it will have none. The process holds one ref to each value.

        The returned bytes object is also the key in the tables, which makes look-ups faster.
        """

    def create_detached(
        self, function_id: bytes, arguments: bytes, dependencies: tuple[bytes, ...], options: tuple[Row, ...] | None
    ) -> bytes:
        """Have a detached actor made, and return the id of its handle, once the node that is its home has it. The process holds one ref."""

    def submit_many(
        self, function_id: bytes, calls: Iterable[tuple[bytes, tuple[bytes, ...], tuple[Row, ...] | None]], num_returns: int
    ) -> list[bytes]:
        """Queue many tasks of one function, each (arguments, dependencies, options). Return the ids of their first values."""

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
        """Queue one call of an actor and return the id of its first value. The process holds one ref to each value.

        If the terms allow no more calls, raise PendingCallsLimitExceededError, or wait if the configuration says so.
        """

    def call_all(self, method: str, arguments: bytes, dependencies: tuple[bytes, ...], calls: Sequence[ActorCall]) -> list[bytes]:
        """Call a method of several actors with the same arguments, in one message to each process. Return what ``call`` would for each."""

    def takes_far(self, actor_id: bytes) -> bool:
        """Whether arguments that would be stored for a call on this node travel with a call of this actor: it lives on another node."""

    def actor_state(self, actor_id: bytes) -> tuple[int, bool] | None:
        """The state of an actor (``CREATING``, ``ALIVE``, ``DEAD``) as this process last received it, and whether it has lived before that.

        None if this process has not called it. Asks nobody.
        """

    def reference_counts(self) -> dict[bytes, tuple[int, int]]:
        """The objects that this process refers to, each with its refs, and with the tasks and calls without an outcome that take it."""

    def inline_bytes(self) -> int:
        """Bytes of the values that this process has and the object store has not. Looks at each object of the process."""

    def kill_actor(self, actor_id: bytes, no_restart: bool) -> None:
        """End an actor's process at once."""

    def put(self, value: Serialized, durable: bool, argument: bool = False) -> bytes:
        """Store a value; return its object id. The process holds one ref. Raises ObjectStoreFullError or ObjectTooLargeError."""

    def add_reference(self, object_id: bytes) -> None:
        """Count one more ref in this process, for a ref that is unpickled or copied."""

    def follow(self, object_ids: Sequence[bytes]) -> None:
        """Count one more ref to each object, and request values as soon as they exist: the next ones of a stream."""

    def drop_reference(self, object_id: bytes) -> None:
        """Count one ref less. Safe in finalizers: takes no lock, never raises."""

    def get(self, object_ids: Sequence[bytes], timeout: float | None, fail_fast: bool = True) -> list[bytes | Outcome]:
        """Wait for all objects, each listed once. A small value is returned as bytes. Raises GetTimeoutError after ``timeout`` seconds.

        With ``fail_fast`` the first failure ends the wait; the list then has only its outcome.
        """

    def has_failed(self, object_id: bytes) -> bool:
        """Whether an object's outcome has arrived and is an error. The error still counts as unread."""

    def ignore_unread(self) -> None:
        """Show no failures that nobody has read, from now on: the user has interrupted the program, and knows that its tasks are lost."""

    def wait(self, object_ids: Sequence[bytes], num_returns: int, timeout: float | None, fetch_local: bool) -> set[bytes]:
        """Wait for ``num_returns`` outcomes; return the first objects that have one, or after ``timeout`` all that do."""

    def watch(self, object_ids: Iterable[bytes], callback: Callable[[bytes], None]) -> None:
        """Call ``callback`` with each object once it has an outcome: at once, or while this process waits for anything."""

    def await_watched(self, object_ids: Collection[bytes], done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for ``object_ids`` until a ``callback`` of ``watch`` has made ``done`` true. Return False after ``timeout``."""

    def add_done_callback(self, object_id: bytes, callback: Callable[[bytes], None]) -> None:
        """Call ``callback(object_id)`` once the object has an outcome: at once, or from a thread of the fabric."""

    def add_outcome_callback(self, object_id: bytes, callback: Callable[[bytes], None]) -> None:
        """Do as ``add_done_callback``, but do not bring a value here whose outcome comes without it."""

    def add_last_callback(self, object_id: bytes, callback: Callable[[bytes], None], everywhere: bool) -> None:
        """Call ``callback(object_id)`` in a thread of the fabric once no ref is left: in this process, or anywhere in the cluster.

        Raises CallbackLimitExceededError if ``last_callbacks_max`` have been added and not been called.
        """

    def locate(self, object_ids: Sequence[bytes]) -> dict[bytes, Row]:
        """Return what is known of these objects: (size or None, ids of the nodes with the value in hex, only on disk, has an outcome)."""

    def cancel(self, object_ids: Sequence[bytes], force: bool, recursive: bool) -> None:
        """Request the cancellation of the tasks that make these objects."""

    def explain_call(self, object_id: bytes) -> tuple[str, bytes, str] | None:
        """Explain the call that makes this object: (state, actor, reason). None if this process made no such call."""

    def pending_calls(self, matches: Callable[[bytes], bool]) -> list[bytes]:
        """Return the ids of this process's calls that have no outcome yet and match."""

    def breakpoint_of(self, task_id: bytes, pid: str) -> str:
        """Describe the ``breakpoint()`` at which this task or call waits, or else this process; empty if there is none."""

    def query(self, what: str, *arguments: Any, timeout: float = 10.0) -> Any:
        """Query the node's daemon; return the payload of its ``Answer``. Raises FabricError with its error text."""

    def exit_actor(self) -> NoReturn:
        """End this process's actor for good. Raises TypeError if it has none, or has several and none of them runs here."""

    def close(self) -> None:
        """Send everything, disconnect and release all refs."""


environment = ""
"""The ``runtime_env`` of a worker, as JSON: the default for tasks that it submits. Empty in a driver."""


def _no_modules() -> tuple[str, ...]:
    return ()


warm: Callable[[], tuple[str, ...]] = _no_modules
"""The modules that workers of a cluster which this process starts are forked with, where that is possible. ``as_ray`` sets this."""


def _no_line(line: str) -> bool:
    return False


takes_line: Callable[[str], bool] = _no_line
"""Asked before a line of a worker is shown: whether the line was no text, and is shown in its own way. ``as_ray`` sets this."""
prelude = ""
"""A module that workers import before they load a function of this process: the option ``prelude`` of what it exports."""

_current: ClientInterface | None = None


def current() -> ClientInterface | None:
    """Return this process's client, or None."""
    return _current


task_errors.client = current


def set_current(client: ClientInterface | None) -> None:
    """Install this process's client; None removes it."""
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
    """The resources that the task holds, or the actor of the call."""
    name: str = ""
    """The name in its options, or empty."""
    cancelled: bool = False
    """Whether it is to be stopped."""
    strategy: Strategy = ()
    """Where it was to run; in a call, where its actor was to."""


def _no_task() -> TaskContext | None:
    return None


current_task: Callable[[], TaskContext | None] = _no_task
"""Returns the context of the running task or call. A worker replaces it."""


def _same_process(error: BaseException | None = None) -> None:
    pass


check_process: Callable[..., None] = _same_process
"""``check_process(error)`` ends this process if user code that has just returned, or raised ``error``, began in another one and forked.

For code that runs several functions of users, or catches what they raise. A forked child of a worker replaces it.
"""


def _not_collected(function: Callable[..., Any]) -> Callable[..., Any]:
    raise FabricError("num_returns='dynamic' needs the package itself: import zfabric in this process")


collected: Callable[[Callable[..., Any]], Callable[..., Any]] = _not_collected
"""Wraps a generator function into one that stores all values and returns a generator of refs. The API sets it."""


def __getattr__(name: str) -> Any:
    """``interface.context``: the ``TaskContext`` of the attempt on top, None in a driver."""
    if name == "context":
        return current_task()
    raise AttributeError(name)
