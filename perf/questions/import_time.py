"""What does ``import zfabric`` cost a program that may never use it?"""

from __future__ import annotations

import sys

from perf import floors, peers
from perf.question import Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with an interpreter that imports nothing."""
    return run.interleave(
        lambda: peers.cold("zfabric", sys.executable),
        "one interpreter that does nothing, start to end",
        floors.interpreter_ms,
        lambda: {name: peers.cold(name, interpreter) for name, interpreter in run.peers.items()},
    )


QUESTION = Question("import", "import zfabric in a fresh interpreter", (Aim("", "ms", False, 80),), measure)
