"""Fixtures for pytest: a cluster for one test, for a run, and one of several nodes.

pytest loads this module wherever zfabric is installed, so it imports nothing heavy until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from zfabric.api import lifecycle
from zfabric.api.lifecycle import ClusterContext
from zfabric.util.local_cluster import LocalCluster

MARKER = "zfabric(**options): options of the cluster that the fixtures zfabric_cluster and zfabric_nodes start for this test"


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, for ``--strict-markers``."""
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(scope="session")
def zfabric_options() -> dict[str, Any]:
    """Options of ``zf.init`` for ``zfabric_cluster`` and ``zfabric_session_cluster``: two CPUs. To be overridden."""
    return {"num_cpus": 2}


@pytest.fixture
def zfabric_cluster(request: pytest.FixtureRequest, zfabric_options: dict[str, Any]) -> Iterator[ClusterContext]:
    """A cluster on this machine that ends with the test. ``@pytest.mark.zfabric(num_cpus=4)`` changes its options."""
    with _running("zfabric_cluster", {**zfabric_options, **_marked(request)}) as context:
        yield context


@pytest.fixture(scope="session")
def zfabric_session_cluster(zfabric_options: dict[str, Any]) -> Iterator[ClusterContext]:
    """One cluster on this machine for all tests that ask for it. It ends with the run."""
    with _running("zfabric_session_cluster", zfabric_options) as context:
        yield context


@pytest.fixture
def zfabric_nodes(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """A ``zf.LocalCluster`` of three nodes with one CPU each, which the test has joined through the first.

    ``@pytest.mark.zfabric(nodes=2, cpus_per_node=4)`` changes its options.
    """
    _check_unconnected("zfabric_nodes")
    with LocalCluster(**{"nodes": 3, **_marked(request)}) as cluster:
        try:
            lifecycle.init(cluster.address)
            yield cluster
        finally:
            lifecycle.shutdown()


@contextmanager
def _running(fixture: str, options: dict[str, Any]) -> Iterator[ClusterContext]:
    _check_unconnected(fixture)
    try:
        yield lifecycle.init("local", **options)
    finally:
        lifecycle.shutdown()


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    marks = list(request.node.iter_markers("zfabric"))
    for mark in marks:
        if mark.args:
            raise pytest.UsageError(f"@pytest.mark.zfabric{mark.args}: its options have names, as in @pytest.mark.zfabric(num_cpus=4)")
    return {name: value for mark in reversed(marks) for name, value in mark.kwargs.items()}


def _check_unconnected(fixture: str) -> None:
    if lifecycle.is_initialized():
        pytest.fail(
            f"{fixture}: this process is connected to a cluster already, by another fixture or by an earlier test that did not call "
            "zf.shutdown(). Tests with a cluster of their own and tests that share one go in different runs, or files of pytest-xdist's.",
            pytrace=False,
        )
