"""What every program here prints last: one JSON object with how long it took, and how fast it was once it was warm."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

BEGUN = time.perf_counter()


def report(count: float, seconds: float, unit: str) -> None:
    """Print the outcome: ``count`` things were done in ``seconds`` of the steady part; ``unit`` is that of the rate."""
    whole = time.perf_counter() - BEGUN
    print(json.dumps({"program": Path(sys.argv[0]).stem, "seconds": whole, "rate": count / seconds, "unit": unit}), flush=True)
