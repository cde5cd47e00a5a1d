"""The examples, run as a user runs them: `zfabric submit FILE`, in a process of their own, with small sizes."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"
ZFABRIC = Path(sys.executable).with_name("zfabric")


IMPORTS = {
    "model_server.py": "sklearn.datasets,sklearn.linear_model",
    "parameter_server.py": "sklearn.datasets",
    "evolution_strategies.py": "gymnasium",
}
"""What takes long to import. Workers are forked with it: each would import it again."""


def submit(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run an example to its end; neither its output nor its input is a terminal."""
    environment = {**os.environ, "TERM": "dumb"}
    preload = ("--config", f"preload={IMPORTS[name]}") if name in IMPORTS else ()
    return subprocess.run(
        [ZFABRIC, "submit", *preload, EXAMPLES / name, *arguments],
        cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def output_of(name: str, *arguments: str, cwd: Path) -> str:
    """What it printed, given that all went well."""
    ended = submit(name, *arguments, cwd=cwd)
    assert ended.returncode == 0, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout


def test_every_example_is_run_here() -> None:
    names = {"quickstart.py", "pi.py", "evolution_strategies.py", "parameter_server.py", "model_server.py", "shuffle.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == names


def test_quickstart(tmp_path: Path) -> None:
    printed = output_of("quickstart.py", cwd=tmp_path)
    counts = re.fullmatch(r"points nearest to each center: \[(\d+), (\d+), (\d+)\]\n", printed)
    assert counts is not None, printed
    assert sum(map(int, counts.groups())) == 100_000


def test_pi_counts_every_dart(tmp_path: Path) -> None:
    printed = output_of("pi.py", "--darts", "8100001", cwd=tmp_path)
    lines = re.findall(r"([\d,]+) darts  pi is about ([\d.]+)", printed)
    thrown = [int(count.replace(",", "")) for count, _ in lines]
    assert thrown == sorted(set(thrown))
    assert thrown[-1] == 8_100_001
    assert abs(float(lines[-1][1]) - math.pi) < 0.01


def iterations(printed: str) -> list[float]:
    """The reward each iteration's line gives; there is one line for each, without escape sequences."""
    assert "\x1b" not in printed
    assert "\r" not in printed
    found = re.findall(r"^iteration +(\d+)/\d+  reward +(-?[\d.]+)  tried: .* s$", printed, flags=re.MULTILINE)
    assert [int(number) for number, _ in found] == list(range(1, len(found) + 1))
    return [float(reward) for _, reward in found]


def test_evolution_strategies_learns(tmp_path: Path) -> None:
    """The reward rises, every episode is counted, and the same seed gives the same run whatever order tasks finish in."""
    arguments = ("--iterations", "4", "--population", "100", "--seed", "3")
    printed = output_of("evolution_strategies.py", *arguments, cwd=tmp_path)
    rewards = iterations(printed)
    assert len(rewards) == 4
    assert max(rewards[2:]) > 2 * rewards[0]
    assert "stopped after 4 iterations" in printed
    assert re.search(r"^440 episodes \([\d,]+ steps\) in 240 tasks and [\d.]+ s: [\d,]+ tasks/s, .* CPUs$", printed, flags=re.MULTILINE)
    assert iterations(output_of("evolution_strategies.py", *arguments, cwd=tmp_path)) == rewards


def test_evolution_strategies_on_continuous_actions(tmp_path: Path) -> None:
    printed = output_of("evolution_strategies.py", "--env", "Pendulum-v1", "--iterations", "2", "--population", "6", cwd=tmp_path)
    assert len(iterations(printed)) == 2


def test_parameter_server_learns_whatever_order_gradients_come_in(tmp_path: Path) -> None:
    printed = output_of("parameter_server.py", "--workers", "2", "--updates", "400", cwd=tmp_path)
    lines = re.findall(r"^ *(\d+) updates +([\d.]+)% of the digits recognised$", printed, flags=re.MULTILINE)
    assert [int(updates) for updates, _ in lines] == list(range(40, 401, 40))
    assert float(lines[-1][1]) > 90


def test_model_server_answers_every_client_in_batches_of_several_and_as_a_stream(tmp_path: Path) -> None:
    printed = output_of("model_server.py", "--clients", "3", "--requests", "100", "--batch", "20", "--patience", "0.05", cwd=tmp_path)
    found = re.findall(
        r"^client (\d): ([\d.]+)% right, answers came from (\d+) to (\d+) ms after it had asked$", printed, flags=re.MULTILINE
    )
    assert sorted(int(number) for number, *_ in found) == [0, 1, 2], printed
    assert all(float(right) > 80 and int(first) <= int(last) for _, right, first, last in found)
    summary = re.search(r"^300 requests in (\d+) batches, the largest of (\d+)$", printed, flags=re.MULTILINE)
    assert summary is not None, printed
    assert 15 <= int(summary[1]) < 100
    assert 5 < int(summary[2]) <= 20


def test_shuffle_counts_every_word_once(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("the quick, brown fox; the lazy dog " * (number + 1))
    printed = output_of("shuffle.py", "--parts", "3", "--words", "3", "0.txt", "1.txt", "2.txt", cwd=tmp_path)
    assert printed.split() == ["12", "the", "6", "brown", "6", "dog"]


def test_help_is_the_programs_own(tmp_path: Path) -> None:
    """What stands after the file is the program's, even what zfabric itself would understand."""
    assert "pi.py" in output_of("pi.py", "--help", cwd=tmp_path)


MISTAKES = """
import sys
from zfabric.cli.main import main

for path in sys.argv[1:]:
    try:
        main(["submit", path, "--no-such-option"])
    except SystemExit as end:
        print(end.code)
"""


def test_mistakes_are_shown_with_the_programs_own_usage() -> None:
    """Of all in one process, which imports what they need once."""
    names = ("pi.py", "evolution_strategies.py", "parameter_server.py", "model_server.py", "shuffle.py")
    paths = [str(EXAMPLES / name) for name in names]
    wrong = subprocess.run([sys.executable, "-c", MISTAKES, *paths], capture_output=True, text=True, timeout=100)
    assert wrong.stdout.split() == ["2"] * len(names), wrong.stderr
    for name in names:
        assert f"usage: {name}" in wrong.stderr
        assert re.search(rf"^{name}: error: .*--no-such-option", wrong.stderr, re.MULTILINE)
