"""Waiting for files: what processes of a test have in common, whether they run tasks or the test itself."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path


def wait_for_file(path: str | Path) -> None:
    """Return once the file is there. It is looked for again and again, so that an interrupt finds a line of Python to be raised at."""
    while not os.path.exists(path):
        time.sleep(0.005)


async def wait_for_file_in_loop(path: str | Path) -> None:
    """The same in an event loop, whose other coroutines go on."""
    while not os.path.exists(path):
        await asyncio.sleep(0.005)
