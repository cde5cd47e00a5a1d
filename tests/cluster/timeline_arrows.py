"""The arrows that a timeline draws, as tests read them."""

from __future__ import annotations

from collections import Counter
from typing import Any

Event = dict[str, Any]
Named = Counter[tuple[str, str, str]]
"""(kind of arrow, name of the bar it begins at, name of the bar it ends at), and how many."""


def ends_of(events: list[Event]) -> list[tuple[Event, Event]]:
    """The pairs of events that arrows are, each checked to be whole: one end of either kind, in order, and both at bars."""
    begins = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    flows = [event for event in events if event["ph"] in "sf"]
    assert begins.keys() == ends.keys()
    assert len(flows) == 2 * len(begins)
    for number, begin in begins.items():
        end = ends[number]
        assert (begin["cat"], begin["name"]) == (end["cat"], end["name"])
        assert begin["ts"] <= end["ts"]
        assert end["bp"] == "e"
    return [(begins[number], ends[number]) for number in begins]


def bar_at(events: list[Event], end: Event) -> Event:
    """The bar that an end of an arrow is at: the shortest that is there then."""
    found = [
        event
        for event in events
        if event["ph"] == "X"
        and (event["pid"], event["tid"]) == (end["pid"], end["tid"])
        and event["ts"] <= end["ts"] <= event["ts"] + event["dur"]
    ]
    return min(found, key=lambda bar: float(bar["dur"]))


def named(events: list[Event]) -> Named:
    return Counter((begin["cat"], bar_at(events, begin)["name"], bar_at(events, end)["name"]) for begin, end in ends_of(events))
