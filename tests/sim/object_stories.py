"""What has happened to each object of a world: a change of its place must be one that ``object_places.CHANGES`` allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from zfabric.machines.local_scheduler.object_places import CHANGES, IN_PLACE, ObjectPlace
from zfabric.machines.local_scheduler.records import AnyObject, Object, ObjectRecord
from zfabric.protocol.ids import short
from zfabric.protocol.machine import InvariantViolation

LENGTH = 12
"""Changes that an object's story retains."""


class ObjectStories:
    """The last changes of each object, by its record."""

    def __init__(self) -> None:
        self._places: dict[AnyObject, ObjectPlace] = {}
        self._stories: dict[AnyObject, deque[str]] = {}

    def changed(self, record: AnyObject, method: str, before: ObjectPlace) -> None:
        """Record a method's change. Raise InvariantViolation if it is not allowed, or if something else changed the place before."""
        born = before if before is ObjectPlace.ASKED else ObjectPlace.NOWHERE  # The home of an object may be searched from the beginning.
        known = self._places.get(record, born)
        if known != before:
            self._note(record, "in place", known, before, IN_PLACE.get(known, set()))
        self._note(record, method, before, record.place, CHANGES[method].get(before, set()))

    def joined(self, record: AnyObject, other: AnyObject) -> None:
        """Record that a record has taken over from another one of its object."""
        self._places.update(((record, record.place), (other, other.place)))
        self._story(record).append(f"join: {record.place.value}")

    def _story(self, record: AnyObject) -> deque[str]:
        return self._stories.setdefault(record, deque(maxlen=LENGTH))

    def _note(self, record: AnyObject, method: str, before: ObjectPlace, after: ObjectPlace, allowed: set[ObjectPlace]) -> None:
        story = self._story(record)
        story.append(f"{method}: {before.value} to {after.value}")
        self._places[record] = after
        if after not in allowed:
            where = "at home" if not record.home else "away from home"
            raise InvariantViolation(f"the place of {short(record.object_id)}, {where}, must not change so: {'; '.join(story)}")


@contextmanager
def watched() -> Iterator[ObjectStories]:
    """Check each change of an object's place within the context."""
    stories = ObjectStories()

    def watch(name: str, right: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(right)
        def method(self: Any, *arguments: Any) -> Any:
            before = self.place
            result = right(self, *arguments)
            stories.changed(self, name, before)
            return result

        return method

    right = {name: getattr(_owner(name), name) for name in (*CHANGES, "join")}

    @wraps(right["join"])
    def join(self: Any, other: Any, inline: Any) -> bool:
        is_taken: bool = right["join"](self, other, inline)
        stories.joined(self, other)
        return is_taken

    try:
        for name in CHANGES:
            setattr(_owner(name), name, watch(name, right[name]))
        Object.join = join  # type: ignore[method-assign]
        yield stories
    finally:
        for name, method in right.items():
            setattr(_owner(name), name, method)


def _owner(method: str) -> type[Object]:
    return Object if hasattr(Object, method) else ObjectRecord


__all__ = ["ObjectStories", "watched"]
