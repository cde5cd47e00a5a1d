"""Errors of failed tasks, grouped by kind and place in the program."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from zfabric.protocol.failures import texts_of

TASKS_MOST = 10
"""Most task ids of a group."""
PLACES_MOST = 1_000
"""Most groups; the oldest are dropped."""
SEEN_MOST = 100_000
"""Failed tasks that are remembered, so that none counts twice."""
_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)$', re.M)
_OF_OTHERS = re.compile(r"(^<frozen )|/site-packages/|/lib/python3\.\d+/")


def read_error(row: dict[str, Any]) -> dict[str, str]:
    """Kind, text, place and traceback of a row of ``failures``."""
    kind, text, trace = texts_of(row["error"], row["raised"]) if row["error"] else ("an error in the object store", "", "")
    return {"kind": kind, "text": text, "place": place_of(trace), "traceback": trace}


def place_of(traceback: str) -> str:
    """The program's innermost line in a traceback, ``file:line in function``, or "".

    >>> place_of('Traceback (most recent call last):\\n  File "/home/a/job.py", line 7, in load\\n    raise ValueError\\nValueError\\n')
    '/home/a/job.py:7 in load'
    """
    frames = _FRAME.findall(traceback)
    own = [frame for frame in frames if not _OF_OTHERS.search(frame[0])] or frames
    return "{}:{} in {}".format(*own[-1]) if own else ""


class ErrorGroups:
    """Errors seen while somebody looked; they outlive the refs to failed tasks."""

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}
        self._groups: dict[tuple[str, str], dict[str, Any]] = {}

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Count new rows of ``failures``."""
        for row in reversed(rows):  # The newest come first.
            if row["task_id"] in self._seen:
                continue
            self._seen[row["task_id"]] = None
            error = read_error(row)
            key = error["kind"], error["place"]
            if key not in self._groups and len(self._groups) >= PLACES_MOST:
                del self._groups[next(iter(self._groups))]
            group = self._groups.setdefault(key, {**error, "count": 0, "functions": Counter(), "task_ids": []})
            group["count"] += 1
            group["functions"][row["name"]] += 1
            group["task_ids"] = [row["task_id"], *group["task_ids"]][:TASKS_MOST]
        while len(self._seen) > SEEN_MOST:
            del self._seen[next(iter(self._seen))]

    def groups(self) -> list[dict[str, Any]]:
        """The groups, the largest first."""
        return sorted(self._groups.values(), key=lambda group: -group["count"])
