"""Dask's ``distributed``: a scheduler and worker processes on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import distributed  # type: ignore[import-not-found, import-untyped, unused-ignore]

from perf.peers import System


class _Remote:
    """A function with ``remote``; ``pure=False`` since the same call twice is two tasks."""

    def __init__(self, client: Any, function: Callable[..., Any], workers: list[str] | None = None) -> None:
        self._client = client
        self._function = function
        self._workers = workers
        """Where it runs; None: anywhere."""

    def remote(self, *arguments: Any) -> Any:
        return self._client.submit(self._function, *arguments, pure=False, workers=self._workers)


class Dask(System):
    """A ``LocalCluster`` of processes with one thread each, without its dashboard."""

    name = "dask"
    joblib = {"backend": "dask"}

    def start(self, workers: int) -> None:
        """As a user would."""
        self._cluster = distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=40
        )
        self._client = distributed.Client(self._cluster)

    def stop(self) -> None:
        """End it."""
        self._client.close()
        self._cluster.close()

    def remote(self, function: Callable[..., Any]) -> _Remote:
        """A function that runs as tasks."""
        return _Remote(self._client, function)

    def get(self, futures: Any) -> Any:
        """The values of futures."""
        return self._client.gather(futures)

    def graph(self, graph: Any, key: Any) -> Any:
        """Run a graph of Dask."""
        return self._client.get(graph, key)


class DaskNodes(Dask):
    """A node of Dask is a worker process of its own; there are two. The driver has a process of its own, as always."""

    def start(self, workers: int) -> None:
        """Start both, however many workers are asked for."""
        super().start(2)
        self._first, self._second = sorted(self._client.scheduler_info()["workers"])

    def remote(self, function: Callable[..., Any]) -> _Remote:
        """What runs on the second node."""
        return _Remote(self._client, function, [self._second])

    def here(self, function: Callable[..., Any]) -> _Remote:
        """What runs on the first."""
        return _Remote(self._client, function, [self._first])
