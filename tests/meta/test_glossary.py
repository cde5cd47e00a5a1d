"""The glossary: every term has one sentence and a place in the source, and retired words are absent from revised files.

That the places exist is checked with those of all pages, by ``test_docs.test_code_named_on_a_page_exists``.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/glossary.md").read_text()
TERMS = re.findall(r"^\| \*\*(.+?)\*\* \| (.*) \| (.*) \|$", TEXT, flags=re.MULTILINE)
RETIRED = [
    word.strip()
    for words in re.findall(r"^\| (.*?) \| .* \|$", TEXT.partition("## Not these")[2], flags=re.MULTILINE)[1:]
    for word in words.split(",")
]
ANY_RETIRED = re.compile(r"\b(?:{})s?\b".format("|".join(r"\s+".join(word.split()) for word in RETIRED)), re.IGNORECASE)
REVISED = (
    "README.md",
    "docs/architecture.md",
    "docs/tour.md",
    "docs/guide",
    "docs/recipes.md",
    "docs/page.md",
    "docs/metrics.md",
    "docs/decisions",
    "docs/cli.md",
    "docs/deploy.md",
    "docs/security.md",
    "docs/limits.md",
    "docs/migrating-from-ray.md",
    "docs/performance.md",
    "docs/simulation.md",
    "zfabric/config.py",
    "zfabric/exceptions.py",
    "zfabric/protocol",
    "zfabric/runtime",
    "zfabric/adapters",
    "zfabric/api",
    "zfabric/cli",
    "zfabric/util",
    "tests",
    "perf",
    "zfabric/shell",
    "zfabric/machines",
)
"""Pages, modules and packages that keep to the glossary."""


def comments(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of a module's comments and docstrings; attributes' docstrings, too."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


SECOND_MEANINGS = {"frame": "blocked_tasks", "frames": "blocked_tasks", "turns": "baton"}
"""Names that once meant something else in the machines than in the glossary, with what is to be written instead."""


def second_meanings(source: str) -> Iterator[str]:
    """Names with a second meaning in a module, with their lines."""
    if not re.search("|".join(SECOND_MEANINGS), source):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and (instead := SECOND_MEANINGS.get(token.string.strip("_"))):
            yield f"line {token.start[0]}: {token.string} (write {instead})"


def retired(text: str) -> str | None:
    """The first retired word in a text, as it stands there."""
    found = ANY_RETIRED.search(text)
    return None if found is None else found[0]


def files() -> list[Path]:
    """Every file of ``REVISED``."""
    paths = [ROOT / each for each in REVISED]
    return [file for path in paths for file in (sorted(path.rglob("*.[pm][yd]")) if path.is_dir() else [path])]


def test_terms_are_there_once() -> None:
    names = [name for name, _, _ in TERMS]
    assert len(names) > 40
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("name", "meaning", "place"), TERMS, ids=[name for name, _, _ in TERMS])
def test_a_term_is_one_sentence_with_a_place_in_the_source(name: str, meaning: str, place: str) -> None:
    assert re.fullmatch(r"[A-Z][^.]*\.", re.sub(r"`[^`]*`", "", meaning)), name
    assert re.fullmatch(r"`[\w/]+\.py(:[\w.]+)?`(, `[\w/]+\.py(:[\w.]+)?`)*", place), name


def test_revised_files_have_no_retired_words() -> None:
    found = []
    for path in files():
        whole = path.read_text()
        if retired(whole) is not None:  # In most modules there is none, also not in the code: to look for comments takes much longer.
            texts = comments(whole) if path.suffix == ".py" else enumerate(whole.splitlines(), 1)
            found += [f"{path.relative_to(ROOT)}:{line}: {word}" for line, text in texts if (word := retired(text)) is not None]
    assert found == []


@pytest.mark.parametrize(
    "role", sorted(each.name for each in (ROOT / "zfabric/machines").iterdir() if each.is_dir() and each.name != "common")
)
def test_a_term_has_one_meaning_in_the_machines(role: str) -> None:
    """Only ``common`` has frames: those of links."""
    modules = sorted((ROOT / "zfabric/machines" / role).rglob("*.py"))
    assert {str(each): found for each in modules if (found := list(second_meanings(each.read_text())))} == {}


def test_second_meanings_are_found() -> None:
    source = "def f(worker, frame):\n    return worker.frames, worker._turns, worker.turn, 'frame'  # frame\n"
    assert [each.split()[1:3] for each in second_meanings(source)] == [["1:", "frame"], ["2:", "frames"], ["2:", "_turns"]]


def test_retired_words_are_found_in_comments_docstrings_and_across_lines() -> None:
    module = '"""It lets\n    go of it."""\nheard = 1  # what was said again\nlimit = 1\n"""Of tellings."""\nx = "whereabouts"\n'
    assert [retired(text) for _, text in sorted(comments(module))] == ["lets\n    go", "said again", "tellings"]
