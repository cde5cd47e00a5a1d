"""Ray's statistics of usage: none are collected or sent."""

from typing import Any

from zfabric.ray_mode.absent import attributes


class _Tags(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class TagKey(metaclass=_Tags):
    """Names of what Ray would count; each is its own number."""

    @staticmethod
    def Value(name: str) -> str:
        """The number of a name."""
        return name

    @staticmethod
    def Name(value: str) -> str:
        """The name of a number."""
        return value


def record_library_usage(library: str) -> None:
    """Nothing is recorded."""


def record_extra_usage_tag(key: Any, value: str, *args: Any, **kwargs: Any) -> None:
    """Nothing is recorded."""


def usage_stats_enabled() -> bool:
    """False."""
    return False


__getattr__ = attributes(__name__)
