"""Ray's bars of progress: a worker prints each step of one as JSON, and the program draws it."""

from __future__ import annotations

import contextlib
import importlib
import json

MARK = "__ray_tqdm_magic_token__"
"""What lines with such a step contain."""


def draw(line: str) -> bool:
    """Draw the step in a line, by the user's Ray. Return False if the line is text, and is to be shown."""
    if MARK not in line:
        return False
    with contextlib.suppress(Exception):  # A line cut in two, or a Ray that cannot draw it: ``get``, which shows lines, must not fail.
        importlib.import_module("ray.experimental.tqdm_ray").instance().process_state_update(json.loads(line))
    return True
