"""The figures of ``scripts/measures.py``: what counts as a line of code, and who writes a table."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPEC = spec_from_file_location("measures", ROOT / "scripts" / "measures.py")
assert SPEC is not None
assert SPEC.loader is not None
measures = module_from_spec(SPEC)
SPEC.loader.exec_module(measures)

SOURCE = '''"""Two lines
of prose."""

import os  # a comment beside code

# a comment


class Part:
    limit = 1
    """What this is."""

    def run(self, text="""one
two"""):
        """Prose."""
        return (
            text
        )
'''


def test_prose_and_empty_lines_are_no_code() -> None:
    assert measures.code_lines(SOURCE) == len(["import", "class", "limit", "def", "two", "return", "text", ")"])
    assert [text.value for text in measures.described(SOURCE)] == ["Two lines\nof prose.", "What this is.", "Prose."]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("self.tables.tasks = {}", ["tasks"]),
        ("tables.tasks[name].rows += 1", []),
        ("self.tables.tasks[name] = record", ["tasks"]),
        ("del self.tables.tasks[name]", ["tasks"]),
        ("self.tables.count += 1", ["count"]),
        ("tables.tasks[node].pop(name)", ["tasks"]),
        ("self.tables.tasks.get(name)", []),
        ("self.other.tasks.clear()", []),
    ],
)
def test_a_file_writes_what_it_assigns_deletes_or_changes(line: str, found: list[str]) -> None:
    assert list(measures.written(line, "tables")) == found


def test_the_script_prints_every_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a part of the package: all of it takes several seconds."""
    monkeypatch.setattr(sys, "argv", ["measures.py"])
    monkeypatch.setattr(measures, "PACKAGE", measures.SCHEDULER)
    monkeypatch.setattr(measures, "SIMULATOR", ROOT / "perf")
    measures.main()
    shown = capsys.readouterr().out
    for name in (
        "lines of code in the package",
        "message types between local schedulers",
        "words of docs",
        "lines of tests, without tests/sim",
    ):
        assert name in shown
