"""ProcessPoolExecutor of the standard library: no dependencies, no shared values, no recovery; a floor among the peers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

from perf.peers import System


class _Remote:
    """A function with ``remote``."""

    def __init__(self, executor: ProcessPoolExecutor, function: Callable[..., Any]) -> None:
        self._executor = executor
        self._function = function

    def remote(self, *arguments: Any) -> Future[Any]:
        return self._executor.submit(self._function, *arguments)


class Pool(System):
    """An executor with its default start method."""

    name = "pool"

    def start(self, workers: int) -> None:
        """As a user would."""
        self._executor = ProcessPoolExecutor(workers)

    def stop(self) -> None:
        """End it."""
        self._executor.shutdown()

    def remote(self, function: Callable[..., Any]) -> _Remote:
        """A function that runs as tasks."""
        return _Remote(self._executor, function)

    def get(self, futures: Any) -> Any:
        """The values of futures."""
        return [future.result() for future in futures] if isinstance(futures, list) else futures.result()
