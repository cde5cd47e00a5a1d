"""How long does a program wait for its first result: import, ``init()``, one task?

Inside a fresh interpreter, from before the import until the value is there.
"""

from __future__ import annotations

import sys

from perf import floors, peers
from perf.question import WORKERS, Aim, Question, Run, Samples


def measure(run: Run) -> Samples:
    """In turns with a bare interpreter."""
    return run.interleave(
        lambda: peers.cold("zfabric", sys.executable, WORKERS),
        "one interpreter that does nothing, start to end",
        floors.interpreter_ms,
        lambda: {name: peers.cold(name, interpreter, WORKERS) for name, interpreter in run.peers.items()},
    )


QUESTION = Question("init", "a cold process: import, init(), first result", (Aim("", "ms", False, 400),), measure)
