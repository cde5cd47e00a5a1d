"""A program's own metrics: counters, gauges and histograms, from the driver, tasks and actors, under Ray's names.

``zfabric metrics`` and the page serve them to Prometheus. Counting costs microseconds and no message: each process writes into a mapped
file, and a reader adds up the files of the node.
"""

from __future__ import annotations

import bisect
import math
import os
import re
import threading
import warnings
from collections.abc import Sequence
from typing import Any

from zfabric.api import cluster as here

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*\Z")
TAG = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*\Z")
TEXT_MOST = 1_000
"""Most characters of a description or a tag's value."""

_lock = threading.Lock()
_series: dict[tuple[Any, ...], _Series] = {}
_file: Any = None
_file_of = ""
"""The session's directory that the file belongs to."""


class _Series:
    """A metric with values of its tags; ``place`` is its place in the file."""

    __slots__ = ("place", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.place = -1


def _after_fork() -> None:
    global _file, _file_of, _lock
    _lock = threading.Lock()
    _file, _file_of = None, ""
    _series.clear()  # The parent has them.


os.register_at_fork(after_in_child=_after_fork)


def _record(name: tuple[Any, ...], value: float, add: bool) -> None:
    with _lock:
        _open_file()
        series = _series.get(name)
        if series is None:
            series = _series[name] = _Series()
        series.value = series.value + value if add else value
        if _file is not None:
            if series.place < 0:
                _enter(name, series)
            else:
                _file.set(series.place, series.value)


def _open_file() -> None:
    global _file, _file_of
    directory = here.session_directory()
    if directory == _file_of or not directory:
        return
    from zfabric.adapters.metric_files import MetricFile  # Only processes with metrics need it.

    os.makedirs(f"{directory}/metrics", mode=0o700, exist_ok=True)
    _file, _file_of = MetricFile(f"{directory}/metrics/{os.getpid()}-{os.urandom(4).hex()}"), directory
    for name, series in _series.items():
        _enter(name, series)


def _enter(name: tuple[Any, ...], series: _Series) -> None:
    """Without room, the number is not served; a warning says so once."""
    from zfabric.adapters.metric_files import MetricsFull  # As above.

    try:
        series.place = _file.add(name, series.value)
    except MetricsFull as error:
        series.place = -1
        warnings.warn(f"the metric {name[1]} is not served: {error}", RuntimeWarning, stacklevel=5)


class Metric:
    """A named metric. ``tag_keys`` are the names of the tags that its values may have."""

    kind = ""

    def __init__(self, name: str, description: str = "", tag_keys: Sequence[str] | None = None) -> None:
        if not isinstance(name, str) or not NAME.match(name):
            raise ValueError(f"a metric's name has letters, digits, _ and :, and begins with no digit; not {name!r}")
        if not isinstance(description, str) or len(description) > TEXT_MOST:
            raise ValueError(f"the description of {name} is text of at most {TEXT_MOST} characters")
        keys = tuple(tag_keys or ())
        if isinstance(tag_keys, str) or not all(isinstance(key, str) and TAG.match(key) for key in keys):
            raise TypeError(f"tag_keys of {name} are names in a tuple, not {tag_keys!r}")
        self._name = name
        self._description = description
        self._keys = keys
        self._defaults: dict[str, str] = {}

    @property
    def info(self) -> dict[str, Any]:
        """Its name, description, tag_keys and default_tags."""
        return {"name": self._name, "description": self._description, "tag_keys": self._keys, "default_tags": dict(self._defaults)}

    def set_default_tags(self, default_tags: dict[str, str]) -> Metric:
        """Set ``default_tags`` for all that is recorded from now on. Raises ValueError for a tag not in ``tag_keys``."""
        self._defaults = dict(self._tags(default_tags))
        return self

    def _tags(self, tags: dict[str, str] | None) -> list[tuple[str, str]]:
        given = {**self._defaults, **(tags or {})}
        for key, value in given.items():
            if key not in self._keys:
                raise ValueError(f"{self._name} has no tag {key!r}; its tag_keys are {', '.join(self._keys) or 'none'}")
            if not isinstance(value, str):
                raise TypeError(f"the tag {key} of {self._name} is a str, not {value!r}")
            if len(value) > TEXT_MOST:
                raise ValueError(f"the tag {key} of {self._name} has more than {TEXT_MOST} characters")
        return sorted(given.items())

    def _series(self, tags: dict[str, str] | None, *more: Any) -> tuple[Any, ...]:
        return (self.kind, self._name, self._description, tuple(self._tags(tags)), *more)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self._arguments(), self._defaults)

    def _arguments(self) -> tuple[Any, ...]:
        return self._name, self._description, self._keys


def _restored(kind: type[Metric], arguments: tuple[Any, ...], defaults: dict[str, str]) -> Metric:
    return kind(*arguments).set_default_tags(defaults)


class Counter(Metric):
    """A number that only grows. Its sum over all processes of a node is served.

    ``name`` and ``description`` are as Prometheus shows them; ``tag_keys`` name the tags of its values. Raises ValueError for an invalid
    name.

    >>> from zfabric.util.metrics import Counter
    >>> served = Counter("served", "requests that were answered", tag_keys=("model",))
    >>> served.inc(1, tags={"model": "small"})
    """

    kind = "counter"

    def inc(self, value: float = 1.0, tags: dict[str, str] | None = None) -> None:
        """Add ``value``, under ``tags`` (by key). Raises ValueError if it is not positive, or for an unknown tag."""
        if not value > 0 or math.isinf(value):
            raise ValueError(f"{self._name}.inc(): a counter grows by a positive number, not {value!r}")
        _record(self._series(tags), float(value), True)


class Gauge(Metric):
    """A number that goes up and down. Each living process has its own, with the tag "pid".

    ``name`` and ``description`` are as Prometheus shows them; ``tag_keys`` name the tags of its values. Raises ValueError for an invalid
    name.

    >>> from zfabric.util.metrics import Gauge
    >>> Gauge("queue_length", "requests that wait").set(3)
    """

    kind = "gauge"

    def set(self, value: float | None, tags: dict[str, str] | None = None) -> None:
        """Set the ``value`` under ``tags`` (by key); None is ignored, as in Ray. Raises ValueError for an unknown tag."""
        if value is not None:
            _record(self._series(tags), float(value), False)


class Histogram(Metric):
    """How values are distributed: counts up to each of ``boundaries`` (ascending, positive), count and sum.

    ``name`` and ``description`` are as Prometheus shows them; ``tag_keys`` name the tags of its values. Raises ValueError for an invalid
    name.

    >>> from zfabric.util.metrics import Histogram
    >>> latency = Histogram("latency_seconds", "of answers", boundaries=[0.01, 0.1, 1.0])
    >>> latency.observe(0.05)
    """

    kind = "histogram"

    def __init__(
        self, name: str, description: str = "", boundaries: Sequence[float] | None = None, tag_keys: Sequence[str] | None = None
    ) -> None:
        super().__init__(name, description, tag_keys)
        bounds = [float(bound) for bound in boundaries or ()]
        if not bounds or bounds != sorted(set(bounds)) or bounds[0] <= 0:
            raise ValueError(f"boundaries of {name} are positive numbers in ascending order, such as [0.01, 0.1, 1]; not {boundaries!r}")
        self._bounds = bounds

    @property
    def info(self) -> dict[str, Any]:
        """Its name, description, tag_keys, default_tags and boundaries."""
        return {**super().info, "boundaries": list(self._bounds)}

    def observe(self, value: float, tags: dict[str, str] | None = None) -> None:
        """Add a ``value`` under ``tags`` (by key). Raises ValueError for an unknown tag."""
        number = float(value)
        if math.isnan(number):
            raise ValueError(f"{self._name}.observe(): {value!r} is no number")
        place = bisect.bisect_left(self._bounds, number)
        bound = self._bounds[place] if place < len(self._bounds) else math.inf
        _record(self._series(tags, "bucket", bound, *self._bounds), 1.0, True)
        _record(self._series(tags, "sum", ""), number, True)

    def _arguments(self) -> tuple[Any, ...]:
        return self._name, self._description, self._bounds, self._keys
