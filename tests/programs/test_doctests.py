"""The examples in docstrings run: those of public names on a real cluster, the others alone."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest

import zfabric as zf

MODULES = [
    "zfabric",
    "zfabric.config",
    "zfabric.exceptions",
    *(f"zfabric.{part}" for part in ("api", "util", "adapters", "machines", "protocol")),
]


def module(name: str) -> ModuleType | None:
    """The module; None where the extra that it needs is not installed, as in an environment that is older than its list. CI has all."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if os.environ.get("CI") == "true" or "pip install" not in str(error):
            raise
        return None


def examples() -> list[doctest.DocTest]:
    """Every docstring with an example, by name. Public names are found where they are defined."""
    names = list(MODULES)
    for package in map(importlib.import_module, MODULES):
        if hasattr(package, "__path__") and package.__name__ != "zfabric":
            names += [each.name for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in names if (there := module(name)) is not None for test in finder.find(there)]
    return sorted((test for test in found if test.examples), key=lambda test: test.name)


@pytest.fixture(scope="module")
def _clusters() -> Iterator[None]:
    """Examples may end the cluster or start one of their own, so each begins with one that is there."""
    zf.shutdown()
    yield
    zf.shutdown()


@pytest.mark.usefixtures("_clusters")
@pytest.mark.parametrize("test", examples(), ids=lambda test: test.name)
def test_example(test: doctest.DocTest) -> None:
    if not zf.is_initialized():
        zf.init(num_cpus=2, log_to_driver=False)
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(test, out=output.append).failed == 0, "".join(output)


def test_the_examples_are_found() -> None:
    names = {test.name for test in examples()}
    assert {"zfabric", "zfabric.api.core.get", "zfabric.api.refs.ObjectRef", "zfabric.api.remote_function.RemoteFunction.map"} <= names
