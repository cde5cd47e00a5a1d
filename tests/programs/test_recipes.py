"""docs/recipes.md: each block is a program that runs."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import zfabric as zf

PAGE = Path(__file__).resolve().parents[2] / "docs/recipes.md"
TEXT = PAGE.read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)
OPTIONAL = {"optuna"}
"""Packages of recipes that the extra ``test`` does not have, since they bring many others with them."""


@pytest.mark.parametrize("block", BLOCKS, ids=[re.findall(r"^(?:import|from) (\w+)", block, flags=re.MULTILINE)[0] for block in BLOCKS])
def test_a_recipe_runs(block: str) -> None:
    packages = set(re.findall(r"^(?:import|from) (\w+)", block, flags=re.MULTILINE))
    missing = sorted(name for name in packages if find_spec(name) is None)
    if missing and OPTIONAL.issuperset(missing):
        pytest.skip(f"NO {' AND '.join(missing).upper()} HERE: its recipe is not run; pip install {' '.join(missing)}")
    zf.shutdown()
    try:
        exec(compile("\n" * TEXT[: TEXT.index(block)].count("\n") + block, str(PAGE), "exec"), {"__name__": "recipe"})
    finally:
        zf.shutdown()
