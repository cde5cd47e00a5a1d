"""Ray's progress bars: a worker prints each step as JSON, and the program draws it."""

from __future__ import annotations

import contextlib
import importlib
import json

MARK = "__ray_tqdm_magic_token__"
"""Marks lines with a step."""


def draw(line: str) -> bool:
    """Draw the step in a line, by the user's Ray. Return False for other text, which is to be shown."""
    if MARK not in line:
        return False
    with contextlib.suppress(Exception):  # A broken line, or a Ray that cannot draw: ``get``, which shows lines, must not fail.
        importlib.import_module("ray.experimental.tqdm_ray").instance().process_state_update(json.loads(line))
    return True
