"""A plugin for runs of joblib's own tests: they get the backend "zfabric" wherever they run each backend of processes or threads.

``test_joblib`` starts such a run, on the tests that joblib installs beside its code.
"""

from __future__ import annotations

from typing import Any

import joblib.testing

import zfabric as zf
from zfabric.util.joblib import register

register()
_plain = joblib.testing.parametrize


def parametrize(names: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
    """``pytest.mark.parametrize``, with our backend beside loky and threading."""
    values = list(values)
    if {"loky", "threading"} <= {each for each in values if isinstance(each, str)} and "zfabric" not in values:
        values.append("zfabric")
    return _plain(names, values, *args, **kwargs)


joblib.testing.parametrize = parametrize


def pytest_configure(config: Any) -> None:
    for mark in ("thread_unsafe", "no_cover"):
        config.addinivalue_line("markers", f"{mark}: joblib's own")


def pytest_sessionstart() -> None:
    zf.init(num_cpus=2, log_to_driver=False, config={"preload": ("joblib", "pytest")})


def pytest_sessionfinish() -> None:
    zf.shutdown()
