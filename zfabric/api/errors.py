"""Exceptions from outcomes, and checks and texts for invalid arguments."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

from zfabric.adapters.serialization import Outcome
from zfabric.adapters.task_errors import load_error, load_failure
from zfabric.exceptions import ConfigError
from zfabric.protocol.messages import ERROR
from zfabric.protocol.names import is_text
from zfabric.runtime.process_exit import hold_thread


def error_of(outcome: Outcome) -> Exception:
    """Return the exception that an outcome without a value represents. Releases the outcome's memory."""
    hold_thread()
    try:
        return load_error(outcome.data) if outcome.status == ERROR else load_failure(outcome.data)
    finally:
        if outcome.release is not None:
            outcome.release()


def near(name: str, known: Any) -> str:
    """Return a hint such as "; did you mean 'num_cpus'?", or an empty string."""
    import difflib  # Only errors need it.

    found = difflib.get_close_matches(str(name), list(known), 1)
    return f"; did you mean {found[0]!r}?" if found else ""


def check_flag(name: str, value: Any) -> None:
    """Raise TypeError unless ``value`` is True or False."""
    if type(value) is not bool:
        raise TypeError(f"{name} is True or False, not {a(value)}")


def check_labels(what: str, labels: Any) -> None:
    """Raise ConfigError, a ValueError, unless ``labels`` map names, which are not empty, to text."""
    texts = isinstance(labels, Mapping) and all(isinstance(each, str) and is_text(each) for pair in labels.items() for each in pair)
    if not texts or "" in labels:
        raise ConfigError(f"{what} map names to text, not {labels!r}")


def check_timeout(timeout: Any) -> None:
    """Raise TypeError or ValueError unless ``timeout`` is None or a number of seconds."""
    if isinstance(timeout, bool) or not isinstance(timeout, Real):
        raise TypeError(f"timeout is a number of seconds or None, not {a(timeout)}")
    if not float(timeout) >= 0:
        raise ValueError(f"timeout cannot be negative: {timeout!r}")


def a(value: Any) -> str:
    """Describe a value for an error text, such as "an int (5)"."""
    if value is None:
        return "None"
    name = type(value).__name__
    text = repr(value) if isinstance(value, (int, float, str, bytes, bool)) else ""
    if len(text) > 40:
        text = text[:37] + "..."
    article = "an" if name[:1].lower() in "aeiou" else "a"
    return f"{article} {name}" + (f" ({text})" if text else "")
