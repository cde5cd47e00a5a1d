"""Type checkers on programs: mypy and pyright infer arguments and results of tasks, and find mistakes."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import zfabric as zf

ROOT = Path(__file__).resolve().parents[2]
CHECKER_SECONDS = 100

RIGHT = """
from collections.abc import AsyncIterator, Iterator
import zfabric as zf

@zf.remote
def add(x: int, y: int = 10) -> str:
    return str(x + y)

@zf.remote(num_cpus=2)
def half(x: float) -> float:
    return x / 2

@zf.remote
async def slow(x: int) -> bytes:
    return bytes(x)

@zf.remote
def count(n: int) -> Iterator[int]:
    yield n

@zf.remote
async def count_slowly(n: int) -> AsyncIterator[int]:
    yield n

@zf.remote(num_returns=2)
def pair() -> tuple[int, str]:
    return 1, "a"

class PlainCounter:
    def __init__(self, start: int, step: int = 1) -> None:
        self.value = start

    @zf.method
    def add(self, amount: int) -> int:
        self.value += amount
        return self.value

    @zf.method(timeout=5)
    async def name(self) -> str:
        return str(self.add(1))

    def plain(self) -> int:
        return 1

Counter = zf.remote(PlainCounter)
ref = add.remote(1, y=2)
reveal_type(ref)  # ObjectRef[str]
reveal_type(zf.get(ref))  # str
reveal_type(zf.get([ref, ref]))  # list[str]
reveal_type(zf.get((ref, half.remote(1.0))))  # tuple[str, float]
reveal_type(zf.get([ref], return_exceptions=True))  # list[str | Exception]
reveal_type(half.options(num_cpus=1).remote(half.remote(2)))  # ObjectRef[float]
reveal_type(add.remote(zf.put(1), 2))  # ObjectRef[str]
reveal_type(add.remote(1, zf.put(2)))  # ObjectRef[str]
reveal_type(slow.remote(3))  # ObjectRef[bytes]
for each in count.remote(3):
    reveal_type(each)  # ObjectRef[int]
reveal_type(count_slowly.remote(3))  # ObjectRefGenerator[int]
first, second = pair.remote()
reveal_type(add.map([1, 2]))  # list[ObjectRef[str]]
reveal_type(zf.put([1]))  # ObjectRef[list[int]]
reveal_type(zf.wait([ref], num_returns="all"))  # tuple[list[ObjectRef[str]], list[ObjectRef[str]]]
for _, value in zf.as_completed([ref], with_values=True):
    reveal_type(value)  # str

async def main() -> None:
    reveal_type(await ref)  # str

reveal_type(Counter.remote(1))  # ActorHandle[PlainCounter]
reveal_type(Counter.options(num_cpus=1).remote(zf.put(1)))  # ActorHandle[PlainCounter]
counter = zf.typed(Counter.remote(1, step=2))
reveal_type(counter.add.remote(1))  # ObjectRef[int]
reveal_type(counter.add.remote(zf.put(1)))  # ObjectRef[int]
reveal_type(counter.name.remote())  # ObjectRef[str]
reveal_type(Counter.remote(1).plain.remote())  # Any
reveal_type(zf.get(Counter.remote(1).plain.remote()))  # Any
with zf.Executor(2) as executor:
    reveal_type(executor)  # Executor
    reveal_type(executor.submit(lambda: 5))  # Future[int]
    reveal_type(list(executor.map(str, [1])))  # list[str]
"""

WRONG = """
import zfabric as zf

@zf.remote
def add(x: int, y: int = 10) -> str:
    return str(x + y)

class PlainCounter:
    def __init__(self, start: int, step: int = 1) -> None:
        self.value = start

    @zf.method
    def add(self, amount: int) -> int:
        return amount

Counter = zf.remote(PlainCounter)
counter = zf.typed(Counter.remote(1))
add.remote("one")  # wrong
add.remote()  # wrong
add.remote(1, 2, 3)  # wrong
add.remote(1, z=3)  # wrong
add(1)  # wrong
print(add.remote(1) + "x")  # wrong
x: int = zf.get(add.remote(1))  # wrong
y: str = add.remote(1)  # wrong
zf.get(5)  # wrong
Counter.remote("one")  # wrong, to mypy
Counter.remote()  # wrong, to mypy
Counter(1)  # wrong
counter.add.remote("one")  # wrong
counter.add.remote()  # wrong
counter.missing.remote()  # wrong
zf.Executor().submit(pow)  # wrong
zf.wait([add.remote(1)], num_returns="every")  # wrong
"""


Findings = dict[str, tuple[dict[int, str], set[int]]]
"""By file: types revealed, by line, and lines with errors."""


def mypy(directory: Path) -> Findings:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed: pip install -e .[dev]")
    (directory / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-zfabric.*]\nfollow_imports = silent\nignore_missing_imports = True\n")
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--no-error-summary", "right.py", "wrong.py"]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=CHECKER_SECONDS)
    assert ran.returncode in (0, 1), ran
    found: Findings = {"right.py": ({}, set()), "wrong.py": ({}, set())}
    for file, line, kind, text in re.findall(r"^(\w+\.py):(\d+): (\w+): (.*)$", ran.stdout, re.MULTILINE):
        if kind == "error":
            found[file][1].add(int(line))
        elif text.startswith("Revealed type"):
            found[file][0][int(line)] = text.split('"')[1]
    return found


def pyright(directory: Path) -> Findings:
    if shutil.which("node") is None or importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed: pip install -e .[types], and Node.js")
    settings = {"extraPaths": [str(ROOT)], "include": ["right.py", "wrong.py"], "typeCheckingMode": "standard"}
    (directory / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    ran = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=CHECKER_SECONDS)
    if not ran.stdout.lstrip().startswith("{"):
        pytest.skip(f"pyright does not run here: {ran.stderr or ran.stdout}")
    found: Findings = {"right.py": ({}, set()), "wrong.py": ({}, set())}
    for each in json.loads(ran.stdout)["generalDiagnostics"]:
        file, line, text = found[Path(each["file"]).name], each["range"]["start"]["line"] + 1, each["message"]
        if each["severity"] == "error":
            file[1].add(line)
        elif text.startswith("Type of"):
            file[0][line] = text.rsplit('" is "', 1)[1][:-1]
    return found


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_types_are_known_and_mistakes_found(checker: Callable[[Path], Findings], tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    found = checker(tmp_path)
    revealed, errors = found["right.py"]
    wanted = {number: line.split("# ")[1] for number, line in enumerate(RIGHT.splitlines(), 1) if "reveal_type" in line}
    assert errors == set()
    assert {line: re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", text) for line, text in revealed.items()} == wanted
    ending = ("# wrong", "# wrong, to mypy") if checker is mypy else ("# wrong",)
    assert found["wrong.py"][1] == {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith(ending)}


def test_the_executor_is_listed() -> None:
    assert {"Executor", "progress", "util"} <= set(dir(zf))
