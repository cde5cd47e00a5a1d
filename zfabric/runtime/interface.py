"""What ``zfabric.api`` uses of the runtime: the client of this process, and what runs here. Tests of the API put another client there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from zfabric.adapters import task_errors
from zfabric.exceptions import FabricError
from zfabric.protocol.options import Demand, Strategy

if TYPE_CHECKING:
    from zfabric.runtime.client import FabricClient


ClientInterface: TypeAlias = "FabricClient"
"""A name for checkers alone: the module of the class loads ZeroMQ, and ``import zfabric`` does not."""

environment = ""
"""A worker's ``runtime_env``, as JSON: the default for tasks that it submits. Empty in a driver."""


def _no_modules() -> tuple[str, ...]:
    return ()


warm: Callable[[], tuple[str, ...]] = _no_modules
"""The modules with which workers of a cluster that this process starts are forked, where possible. ``as_ray`` sets this."""

prelude = ""
"""A module that workers import before they load a function of this process: the option ``prelude`` of its exports."""

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
    """The resources that the task, or the call's actor, holds."""
    name: str = ""
    """The name in its options, or empty."""
    cancelled: bool = False
    strategy: Strategy = ()
    """Where the task, or the call's actor, was to run."""


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
