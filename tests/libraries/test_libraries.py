"""Ray's libraries, and what is built on Ray, on zfabric: each program of ``programs`` runs unchanged (``./scripts/test-libraries``).

The libraries come from an environment of their own. A program whose libraries are not installed is skipped by name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from perf.programs import run_program

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
def test_a_program_of_ray_runs_unchanged(program: str) -> None:
    run(program, {})


def test_modin_runs_where_no_ray_is_installed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_RAY)
    run("modin_frames", {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))})


WITHOUT_RAY = """
from importlib import metadata
every = metadata.distributions
metadata.distributions = lambda **wanted: () if wanted.get("name") == "ray" else every(**wanted)
"""
"""Hides the distribution Ray from the mode, in every process."""


def run(program: str, variables: dict[str, str]) -> None:
    """Run a program to its end, and look at what it reports."""
    command = [interpreter(program), "-m", "zfabric.as_ray", f"{program}.py"]
    ended = run_program(command, PROGRAMS, SECONDS_MAX, {"RAY_USAGE_STATS_ENABLED": "0", **variables})
    assert not ended.problem, f"{program} {ended.report}"
    outcome = json.loads(next(line for line in reversed(ended.output.splitlines()) if line.startswith('{"program"')))
    assert outcome["program"] == program
    assert outcome["rate"] > 0
    print(f"\n{program}: {outcome['seconds']:.1f} s, {outcome['rate']:.3g} {outcome['unit']}")
