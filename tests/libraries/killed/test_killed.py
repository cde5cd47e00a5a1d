"""Programs of Ray's libraries go on when a worker and then a node is killed: ``./scripts/test-libraries tests/libraries/killed``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from perf.programs import run_program

HERE = Path(__file__).parent
PROGRAMS = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("test_killed", "three_nodes"))
SECONDS_MAX = 400


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_library_keeps_its_promise_when_a_worker_and_a_node_are_killed(program: str) -> None:
    command = [sys.executable, "-m", "zfabric.as_ray", f"{program}.py"]
    ended = run_program(command, HERE, SECONDS_MAX, {"RAY_USAGE_STATS_ENABLED": "0"})
    assert not ended.problem, f"{program} {ended.report}"
    shown = ended.output
    assert shown.index("killed a worker") < shown.index("killed a node")
    print(f"\n{program}: {json.loads(shown[shown.rindex('{' + chr(34) + 'program') :].splitlines()[0])['seconds']:.1f} s")
