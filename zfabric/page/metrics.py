"""Metrics for Prometheus, of the cluster and of the program (``zfabric.util.metrics``).

Each node serves its own. Only a scrape queries or adds up anything; durations count from the first scrape on.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client import exposition as text_format
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from zfabric.adapters.metric_files import read_metrics
from zfabric.adapters.processes import start_ticks
from zfabric.page.views import Views
from zfabric.protocol.trace import UNKNOWN
from zfabric.runtime.lines import shown

CONTENT_TYPE = text_format.CONTENT_TYPE_LATEST
BOUNDS = (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
"""Bounds of durations in seconds."""
OWN = "program_"
"""The prefix of a program's own metrics."""
GAUGES = frozenset(
    (
        *("events_bytes", "in_flight_rows", "inline_bytes", "lease_age_seconds", "lineage_bytes", "lineage_rows", "lineage_unwritten"),
        *("disk_free", "disk_total"),
        *("memory_limit", "memory_used", "objects", "owed_deletes", "pending_rows", "processes", "queued", "read_only"),
    ),
)
"""Statistics that go up and down; others grow until the daemon restarts."""
NEVER_YET = {"lost_with_nodes": 0, "retries": 0, "workers_died": 0}
"""Counters shown as 0 before they first count, so that rates are right."""
STORE_COUNTERS = frozenset(
    ("spills", "restores", "evictions", "recalls", "refused", "full", "copies_dropped", "written_on_disk", "read_on_disk"),
)


SCRAPERS_MAX = 16
"""Most scrapers at once, each with a thread."""
SILENCE_SECONDS = 10.0
"""Seconds within which a scraper's whole request must arrive."""


def exposition(views: Views) -> bytes:
    """All metrics in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Cluster(views))
    answer: bytes = text_format.generate_latest(registry)
    return answer


class _Cluster(Collector):
    def __init__(self, views: Views) -> None:
        self._views = views

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        measured = self._views.measured()
        status = measured["status"]
        yield _gauge("nodes", "living nodes", {(): len(measured["nodes"])})
        yield _gauge("tasks", "tasks by state", {(state,): count for state, count in status["tasks"].items()}, "state")
        yield _gauge("workers", "worker processes by state", {(state,): count for state, count in measured["workers"].items()}, "state")
        yield _gauge("actors", "actors by state", {(state,): count for state, count in status["actors"].items()}, "state")
        yield _gauge(
            "resources", "amounts of the node's resources", {(name,): many for name, many in status["resources"].items()}, "resource"
        )
        free = {(name,): many for name, many in status["available"].items()}
        yield _gauge("resources_available", "amounts that nobody uses", free, "resource")
        yield from self._functions(measured["functions"])
        for name, value in sorted({**NEVER_YET, **status["statistics"]}.items()):
            if name in ("tasks", "workers"):  # Shown above, by state.
                continue
            about = f"{name.replace('_', ' ')} (docs/cli.md, status)"
            yield _gauge(name, about, {(): value}) if name in GAUGES or name.endswith("_us") else _counter(name, about, {(): value})
        for name, value in sorted(status["store"].items()):
            about = f"{name.replace('_', ' ')} of the object store"
            yield _counter(f"store_{name}", about, {(): value}) if name in STORE_COUNTERS else _gauge(f"store_{name}", about, {(): value})
        copied = {(name,): many for name, many in self._views.copied_bytes().items()}
        yield _counter("copied_bytes", "bytes of values that were copied to this node", copied, "source")
        yield from self._times()
        yield from own_metrics(self._views.metrics_directory)

    def _functions(self, rows: list[dict[str, Any]]) -> Iterator[Metric]:
        for name, kind, about in (
            ("waiting", _gauge, "tasks that wait, by function"),
            ("running", _gauge, "tasks that run, by function"),
            ("finished", _counter, "tasks with a value, by function"),
            ("failed", _counter, "failed tasks, by function"),
        ):
            counts: Counter[tuple[str, ...]] = Counter()
            for row in rows:
                counts[row["name"],] += row[name]
            yield kind(f"function_{name}", about, dict(counts), "function")

    def _times(self) -> Iterator[Metric]:
        """Histograms of running and waiting times."""
        views = self._views
        attempts, waits = views.ended_since_last()
        for attempt in attempts:
            _observe(views.running_times, (attempt.name, attempt.kind), attempt.seconds)
            if attempt.waited != UNKNOWN:
                _observe(views.call_times, attempt.name, attempt.waited + attempt.seconds)
        for kind, times in waits.items():
            for seconds in times:
                _observe(views.waiting_times, kind, seconds)
        found = HistogramMetricFamily("zfabric_run_seconds", "how long tasks and calls ran", labels=["function", "kind"])
        for (name, kind), (buckets, total) in sorted(views.running_times.items()):
            found.add_metric(_labels((name, kind)), _cumulative(zip((*BOUNDS, math.inf), buckets, strict=True)), total[0])
        yield found
        about = "from a call's arrival in its actor's process to its end, its wait in the queue included"
        calls = HistogramMetricFamily("zfabric_call_seconds", about, labels=["function"])
        for name, (buckets, total) in sorted(views.call_times.items()):
            calls.add_metric(_labels((name,)), _cumulative(zip((*BOUNDS, math.inf), buckets, strict=True)), total[0])
        yield calls
        for kind, about in (
            ("scheduling", "how long sampled tasks took from their submission to their beginning"),
            ("arguments", "how long sampled tasks waited for their arguments"),
        ):
            buckets, total = views.waiting_times.setdefault(kind, _nothing_observed())
            family = HistogramMetricFamily(f"zfabric_{kind}_seconds", about)
            family.add_metric([], _cumulative(zip((*BOUNDS, math.inf), buckets, strict=True)), total[0])
            yield family


def _nothing_observed() -> tuple[list[int], list[float]]:
    return [0] * (len(BOUNDS) + 1), [0.0]


def _observe(times: dict[Any, tuple[list[int], list[float]]], key: Any, seconds: float) -> None:
    buckets, total = times.setdefault(key, _nothing_observed())
    buckets[next((place for place, bound in enumerate(BOUNDS) if seconds <= bound), len(BOUNDS))] += 1
    total[0] += seconds


def _gauge(name: str, about: str, values: Mapping[Any, float], *labels: str) -> Metric:
    family = GaugeMetricFamily(f"zfabric_{name}", about, labels=list(labels))
    for key, value in values.items():
        family.add_metric(_labels(key), value)
    return family


def _counter(name: str, about: str, values: Mapping[Any, float], *labels: str) -> Metric:
    family = CounterMetricFamily(f"zfabric_{name}", about, labels=list(labels))
    for key, value in values.items():
        family.add_metric(_labels(key), value)
    return family


def _labels(values: Iterable[str]) -> list[str]:
    return [_text(value) for value in values]


def _text(text: str) -> str:
    """A program's text, encodable and safe to show. Ends of lines have a form of their own."""
    return "\n".join(map(shown, text.split("\n")))


def _cumulative(buckets: Any) -> list[tuple[str, float]]:
    total = 0.0
    found = []
    for bound, count in buckets:
        total += count
        found.append(("+Inf" if math.isinf(bound) else str(bound), total))
    return found


def own_metrics(directory: str) -> Iterator[Metric]:
    """The program's metrics: sums over all processes; gauges of living ones, by pid."""
    counters: dict[tuple[str, str], Counter[tuple[tuple[str, str], ...]]] = {}
    gauges: dict[tuple[str, str], dict[tuple[tuple[str, str], ...], float]] = {}
    sums: dict[tuple[str, str], Counter[tuple[tuple[str, str], ...]]] = {}
    buckets: dict[tuple[str, str], dict[tuple[tuple[str, str], ...], Counter[float]]] = {}
    for file in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
        pid = file.partition("-")[0]
        with contextlib.suppress(OSError):
            for (kind, name, about, pairs, *more), value in read_metrics(f"{directory}/{file}"):
                metric, tags = (name, _text(about)), tuple((key, _text(text)) for key, text in pairs)
                if kind == "counter":
                    counters.setdefault(metric, Counter())[tags] += value  # type: ignore[assignment]
                elif kind == "gauge":
                    if start_ticks(int(pid)):
                        gauges.setdefault(metric, {})[(*tags, ("pid", pid))] = value
                elif more[0] == "sum":
                    sums.setdefault(metric, Counter())[tags] += value  # type: ignore[assignment]
                else:
                    found = buckets.setdefault(metric, {}).setdefault(tags, Counter(dict.fromkeys((*more[2:], math.inf), 0)))
                    found[more[1]] += value  # type: ignore[assignment]
    for (name, about), values in counters.items():
        yield from _own(CounterMetricFamily, name, about, values)
    for (name, about), numbers in gauges.items():
        yield from _own(GaugeMetricFamily, name, about, numbers)
    for (name, about), found_buckets in buckets.items():
        keys = sorted({key for tags in found_buckets for key, _ in tags})
        family = HistogramMetricFamily(OWN + name, about, labels=keys)
        for tags, counts in found_buckets.items():
            labels = [dict(tags).get(key, "") for key in keys]
            family.add_metric(labels, _cumulative(sorted(counts.items())), sums[name, about][tags])
        yield family


def _own(kind: Any, name: str, about: str, values: Mapping[Any, float]) -> Iterator[Metric]:
    keys = sorted({key for tags in values for key, _ in tags})
    family = kind(OWN + name, about, labels=keys)
    for tags, value in values.items():
        family.add_metric([dict(tags).get(key, "") for key in keys], value)
    yield family


def serve(views: Views, host: str, port: int) -> tuple[WSGIServer, int]:
    """Serve in threads. Return the server and its port. Raises OSError."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Cluster(views))
    server = make_server(host, port, make_wsgi_app(registry), _server_class(host), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, server.server_port


class _Server(ThreadingMixIn, WSGIServer):
    """A thread per connection; more than ``SCRAPERS_MAX`` are closed at once."""

    daemon_threads = True
    request_queue_size = 4 * SCRAPERS_MAX

    def __init__(self, *arguments: Any) -> None:
        self._left = threading.Semaphore(SCRAPERS_MAX)
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._left.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # No thread will release it.
            self._left.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._left.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing of a connection that was cut."""


class _Server6(_Server):
    address_family = socket.AF_INET6


def _server_class(host: str) -> type[_Server]:
    return _Server6 if ":" in host else _Server


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_SECONDS

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing of requests."""
