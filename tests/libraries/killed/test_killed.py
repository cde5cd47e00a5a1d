"""Programs of Ray's libraries go on when a worker and then a node is killed: ``./scripts/test-libraries tests/libraries/killed``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in ("test_killed", "three_nodes"))
SECONDS_MAX = 400


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_library_keeps_its_promise_when_a_worker_and_a_node_are_killed(program: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory(prefix="zfk-") as directory, tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "zfabric.as_ray", f"{program}.py"],
            cwd=Path(__file__).parent, env={**environment, "TMPDIR": directory},
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
        output.seek(0)
        shown = output.read()
    assert code == 0, f"{program} ended with code {code}; the end of what it wrote:\n{shown[-6000:]}"
    assert shown.index("killed a worker") < shown.index("killed a node")
    print(f"\n{program}: {json.loads(shown[shown.rindex('{' + chr(34) + 'program') :].splitlines()[0])['seconds']:.1f} s")
