"""Sets up OpenTelemetry for ``test_tracing``: each process writes its spans, a line each, into a file of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

PLACE = "ZFABRIC_TEST_SPANS"
"""The variable with the directory of the files."""


def set_up() -> None:
    """The setup function that programs name."""
    file = (Path(os.environ[PLACE]) / str(os.getpid())).open("a", buffering=1)
    exporter = ConsoleSpanExporter(out=file, formatter=lambda span: json.dumps(json.loads(span.to_json())) + "\n")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
