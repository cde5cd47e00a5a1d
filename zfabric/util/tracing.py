"""OpenTelemetry: a span for each task and each call of an actor, below the span that was current where it was submitted.

``enable("package.module:function")`` begins it: ``function`` sets a tracer provider, with an exporter of the program's choice, once in this
process and in each worker that runs a traced task. The context travels in the options of tasks and calls, so that spans of all processes
and nodes join into one trace. While tracing is off, nothing of it is in the way of a task: ``enable`` replaces methods of this process's
connection.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from zfabric.adapters.generated_values import advanced
from zfabric.api.lifecycle import connected
from zfabric.exceptions import OptionError, OptionTypeError
from zfabric.protocol.names import check_length
from zfabric.runtime import interface
from zfabric.runtime.interface import ClientInterface

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
except ImportError as error:
    raise ImportError("zfabric.util.tracing needs OpenTelemetry: pip install 'zfabric[tracing]'") from error

CONTEXT_BYTES_MAX = 4096
"""Longest context of a task, as text: its baggage is part of it, and every task carries its own."""

_lock = threading.RLock()
_done: set[str] = set()
"""Names of the setup functions that have run in this process."""


def enable(setup: str) -> None:
    """Trace what this program submits from now on: each task, each call of an actor, and what those submit in turn.

    ``setup`` names a function without parameters, as ``"package.module:function"``, that sets the tracer provider of its process. It is
    called here at once, and in each worker before its first traced task; so workers must be able to import it. The cluster is started if
    there is none. Holds until ``disable``, or until the connection ends (``zf.shutdown``).

    Raises OptionError for a name that is not of this form, and what importing or calling the function raises.

    >>> import zfabric as zf
    >>> from zfabric.util import tracing
    >>> tracing.enable("opentelemetry.trace:get_tracer_provider")  # A program names a function of its own.
    >>> zf.get(zf.remote(abs).remote(-3))
    3
    >>> tracing.disable()
    """
    _set_up(setup)
    with _lock:
        disable()
        _Submissions(connected(), setup, always=True)


def disable() -> None:
    """End what ``enable`` began, for what is submitted from now on. The tracer provider remains."""
    with _lock:
        client = interface.current()
        known = None if client is None else vars(client).get(_NAME)
        if known is not None:
            known.end()


def is_enabled() -> bool:
    """Whether this process traces what it submits."""
    client = interface.current()
    return client is not None and _NAME in vars(client)


_NAME = "_tracing"
_OPERATIONS = ("submit", "submit_many", "call", "call_all")


class _Submissions:
    """Adds the current context to what a connection submits. With ``always`` false, only below a span."""

    def __init__(self, client: ClientInterface, setup: str, always: bool) -> None:
        self._setup = setup
        self._always = always
        self._own = vars(client)
        self._end = client.alter_options(_OPERATIONS, self._options)
        self._own[_NAME] = self

    def end(self) -> None:
        """Add nothing from now on."""
        self._end()
        del self._own[_NAME]

    def _options(self, options: tuple[Any, ...] | None) -> tuple[Any, ...] | None:
        if not self._always and not trace.get_current_span().get_span_context().is_valid:
            return options
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        texts = [text for pair in carrier.items() for text in pair]
        check_length("the context of a trace, with its baggage,", "".join(texts), CONTEXT_BYTES_MAX)
        return (*(options or ()), ("wrapper", (__name__, "traced", self._setup, *texts)))


def _set_up(setup: str) -> None:
    """Call a setup function, unless this process has."""
    if not isinstance(setup, str):
        raise OptionTypeError(f'tracing is set up by the name of a function, "package.module:function", not {setup!r}')
    module, colon, name = setup.partition(":")
    if not (module and colon and name):
        raise OptionError(f'tracing is set up by the name of a function, "package.module:function", not {setup!r}')
    with _lock:
        if setup not in _done:
            getattr(importlib.import_module(module), name)()
            _done.add(setup)


# --- in the process that runs the task --------------------------------------------------------------------------------------------


def traced(function: Callable[..., Any], facts: Mapping[str, Any], setup: str, *texts: str) -> Callable[..., Any]:
    """Return ``function`` in a span below the context of its caller. Workers call this; see ``UserCode.prepare``."""
    _set_up(setup)
    client = connected()
    with _lock:
        if _NAME not in vars(client):
            _Submissions(client, setup, always=False)
    around = _Around(facts, propagate.extract(dict(zip(texts[::2], texts[1::2], strict=True))))

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with around.current():
            value = function(*args, **kwargs)
        if isinstance(value, Coroutine):
            return around.awaited(value)
        if isinstance(value, GeneratorType):
            return around.yielded(value)
        if isinstance(value, AsyncGeneratorType):
            return around.yielded_in_loop(value)
        around.end()
        return value

    return run


class _Around:
    """The span of one task or call. It begins with the first line of user code, and ends with what that returns, yields last, or raises."""

    def __init__(self, facts: Mapping[str, Any], parent: Any) -> None:
        self._facts = facts
        self._parent = parent
        self._span: Any = None

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the span the current one; an error ends it."""
        if self._span is None:
            facts = self._facts
            attributes = {
                "code.function.name": facts["function"],
                "process.pid": os.getpid(),
                "zfabric.node": facts["node"],
                "zfabric.attempt": facts["attempt"] + 1,
            }
            tracer = trace.get_tracer("zfabric")
            self._span = tracer.start_span(facts["function"], self._parent, trace.SpanKind.CONSUMER, attributes)
        token = contexts.attach(trace.set_span_in_context(self._span, self._parent))
        try:
            yield
        except BaseException as error:  # Whatever ends user code ends its span.
            if not isinstance(error, (StopIteration, StopAsyncIteration)):
                self._span.record_exception(error)
                self._span.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
            self.end()
            raise
        finally:
            contexts.detach(token)

    def end(self) -> None:
        """End the span."""
        self._span.end()

    async def awaited(self, value: Coroutine[Any, Any, Any]) -> Any:
        """The result of a coroutine."""
        with self.current():
            found = await value
        self.end()
        return found

    def yielded(self, values: Any) -> Generator[Any, Any, Any]:
        """The values of a generator."""
        statistics: Any = None
        try:
            while True:
                with self.current():
                    value = advanced(values, statistics)
                statistics = yield value
        except StopIteration as end:
            return end.value
        finally:
            values.close()
            self.end()

    async def yielded_in_loop(self, values: Any) -> AsyncIterator[Any]:
        """The values of an asynchronous generator."""
        statistics: Any = None
        try:
            while True:
                with self.current():
                    value = await values.asend(statistics)
                statistics = yield value
        except StopAsyncIteration:
            return
        finally:
            await values.aclose()
            self.end()
