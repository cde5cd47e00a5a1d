"""Ray's decorators for the stability of names. They change nothing."""

from __future__ import annotations

from typing import Any


def _unchanged(*args: Any, **options: Any) -> Any:
    """Return the decorated object, or a decorator that does."""
    if len(args) == 1 and not options and callable(args[0]):
        return args[0]
    return lambda named: named


PublicAPI = DeveloperAPI = Deprecated = _unchanged
