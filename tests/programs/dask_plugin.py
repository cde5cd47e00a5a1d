"""A plugin for runs of Dask's own tests: wherever they compute by the synchronous scheduler, or name none, the cluster does it.

``test_dask`` starts such a run, on the tests that Dask installs beside its code.
"""

from __future__ import annotations

from typing import Any

import dask
import dask.base

import zfabric as zf
from zfabric.util.dask import get

computed = 0
"""Graphs that the cluster has computed."""


def counted(*args: Any, **kwargs: Any) -> Any:
    """Compute by the cluster."""
    global computed
    computed += 1
    return get(*args, **kwargs)


def pytest_configure(config: Any) -> None:
    for mark in ("array_expr", "gpu", "network", "slow", "skip_with_pyarrow_strings", "xfail_with_pyarrow_strings"):
        config.addinivalue_line("markers", f"{mark}: Dask's own")
    for name in ("sync", "synchronous", "single-threaded", "threads"):
        dask.base.named_schedulers[name] = counted
    dask.config.set(scheduler=counted)


def pytest_sessionstart() -> None:
    zf.init(num_cpus=2, log_to_driver=False, config={"preload": ("dask.array", "pytest")})


def pytest_sessionfinish() -> None:
    zf.shutdown()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"{computed} graphs were computed by the cluster")
