"""The guide: each page is a program, which runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import zfabric as zf

GUIDE = Path(__file__).parents[2] / "docs/guide"
PAGES = sorted(path.name for path in GUIDE.glob("[0-9]*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def test_there_are_eleven_pages_and_the_first_lists_them() -> None:
    assert len(PAGES) == 11
    listed = re.findall(r"\]\((\d\d-[a-z-]+\.md)\)", (GUIDE / "README.md").read_text())
    assert listed == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_a_program_that_runs(page: str) -> None:
    text = (GUIDE / page).read_text()
    blocks = BLOCK.findall(text)
    assert blocks
    namespace = {"__name__": f"guide_{page[:2]}"}
    zf.shutdown()
    try:
        for block in blocks:
            line = text[: text.index(block)].count("\n")
            exec(compile("\n" * line + block, str(GUIDE / page), "exec"), namespace)
    finally:
        zf.shutdown()
