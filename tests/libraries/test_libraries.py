"""Ray's libraries, and what is built on Ray, on zfabric: each program of ``programs`` runs unchanged (``./scripts/test-libraries``).

The libraries come from an environment of their own. A program whose libraries are not installed is skipped by name.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "libraries" / "programs"
SECONDS_MAX = 110
"""When a program hangs. On two idle cores each takes less than 20 seconds."""

NEEDED = {
    "tune_trials": ("ray", "pyarrow"),
    "rllib_ppo": ("ray", "torch", "gymnasium"),
    "rllib_dqn": ("ray", "torch", "gymnasium"),
    "data_pipeline": ("ray", "pyarrow"),
    "train_ddp": ("ray", "torch", "sklearn"),
    "serve_application": ("ray", "starlette", "uvicorn"),
    "modin_frames": ("modin",),
    "daft_query": ("daft",),
    "flower_fedavg": ("flwr", "sklearn"),
    "evotorch_snes": ("evotorch",),
}
"""Program -> the modules that it needs."""
FLOWER = ROOT / ".venv-libraries-flower" / "bin" / "python"
"""The interpreter of Flower, which pins another version of Ray."""


def interpreter(program: str) -> str:
    """The interpreter with the program's libraries; skips the test if some are not installed."""
    if program == "flower_fedavg":
        if not FLOWER.exists() or subprocess.run([FLOWER, "-c", "import flwr, sklearn, zfabric"], capture_output=True).returncode:
            pytest.skip(f"{program}: Flower is not installed in {FLOWER.parents[1].name}")
        return str(FLOWER)
    if absent := [name for name in NEEDED[program] if find_spec(name) is None]:
        pytest.skip(f"{program}: {', '.join(absent)} not installed")
    return sys.executable


def test_every_program_is_listed() -> None:
    assert {path.stem for path in PROGRAMS.glob("*.py")} - {"outcome"} == set(NEEDED)
    for path in PROGRAMS.glob("*.py"):
        assert "zfabric" not in path.read_text(), path  # They are programs of Ray.


@pytest.mark.parametrize("program", NEEDED)
def test_a_program_of_ray_runs_unchanged(program: str, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [interpreter(program), "-m", "zfabric.as_ray", f"{program}.py"],
            cwd=PROGRAMS, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        output.seek(0)
        shown = output.read()
    assert code == 0, f"{program} {'hangs' if code is None else f'ended with code {code}'}; the end of what it wrote:\n{shown[-6000:]}"
    outcome = json.loads(next(line for line in reversed(shown.splitlines()) if line.startswith('{"program"')))
    assert outcome["program"] == program
    assert outcome["rate"] > 0
    print(f"\n{program}: {outcome['seconds']:.1f} s, {outcome['rate']:.3g} {outcome['unit']}")
