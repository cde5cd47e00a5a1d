"""Ray's libraries with much data, many trials, many replicas, and too little room: ``./scripts/test-libraries tests/libraries/large``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perf.machine import ROOT
from perf.programs import run_program

HERE = Path(__file__).parent
SORTED_MIB = 4096
SECONDS_MAX = 600


@pytest.mark.parametrize("program", [("data_sort", str(SORTED_MIB)), ("tune_hundred",), ("serve_fifty",)], ids=lambda program: program[0])
def test_memory_is_bounded_and_nothing_hangs(program: tuple[str, ...]) -> None:
    name, *arguments = program
    command = [sys.executable, "-m", "zfabric.as_ray", f"{name}.py", *arguments]
    ended = run_program(command, HERE, SECONDS_MAX, {"RAY_USAGE_STATS_ENABLED": "0"})
    assert not ended.problem, f"{name} {ended.report}"
    outcome = json.loads(next(line for line in reversed(ended.output.splitlines()) if line.startswith('{"program"')))
    assert outcome["program"] == name
    memory = next((line for line in ended.output.splitlines() if line.startswith("at most")), "")
    print(f"\n{name}: {outcome['seconds']:.1f} s, {outcome['rate']:.3g} {outcome['unit']} {memory}")


@pytest.mark.parametrize("library", ["tune", "serve"])
def test_who_asks_for_more_memory_than_any_node_has_reads_how_much_there_is(library: str) -> None:
    command = [sys.executable, "-m", "zfabric.as_ray", "without_room.py", library]
    with subprocess.Popen(command, cwd=HERE, env={"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True) as program:
        assert program.stderr is not None
        try:
            warning = next(line for line in program.stderr if line.startswith("zfabric warning"))
        finally:
            program.kill()  # Its node ends with it.
    assert "1 CPU, 10240 GiB memory, which no" in warning
    assert "GiB memory); it stays pending" in warning
