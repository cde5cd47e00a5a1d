"""The pages match the source: generated pages are current, named code exists, and public names are explained."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import zfabric as zf
from zfabric.protocol.messages import MESSAGES

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("", "zfabric", "zfabric/protocol", "docs/examples")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@functools.cache
def reference() -> ModuleType:
    """The generator."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts/reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- what is generated ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["docs/protocol.md", "docs/configuration.md", "docs/api.md"])
def test_a_generated_page_is_up_to_date(page: str) -> None:
    assert (ROOT / page).read_text() == reference().pages()[ROOT / page], "run scripts/protocol"


def test_the_generator_names_pages_that_are_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = reference()
    stale, current = tmp_path / "stale.md", tmp_path / "current.md"
    stale.write_text("old")
    current.write_text("new")
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    monkeypatch.setattr(generator, "pages", lambda: {stale: "new", current: "new"})
    assert generator.main(["--check"]) == 1
    assert stale.read_text() == "old"
    assert capsys.readouterr().out.startswith("stale.md")
    assert generator.main([]) == 0
    assert stale.read_text() == "new"
    assert generator.main(["--check"]) == 0


def public_names() -> ModuleType:
    """The generator of docs/api.md."""
    module: ModuleType = reference().api_reference
    return module


def test_every_public_name_has_a_section() -> None:
    assert public_names().unplaced() == set(), "add them to SECTIONS in scripts/api_reference.py"


def test_every_parameter_is_explained_with_its_unit() -> None:
    assert public_names().unexplained() == {}


def test_a_parameter_without_a_word_or_a_unit_is_found() -> None:
    names = public_names()

    def wait(count: int, timeout: float, memory: int, client: object) -> None:
        """Wait for ``count``, at most ``timeout``; with so much ``memory`` in bytes."""

    def join(name: str, timeout: float) -> None:
        """Join the one with this name, as ``wait`` does, within seconds."""

    wait.__module__ = join.__module__ = "zfabric"
    entries = [names.Entry(f"zfabric.{each.__name__}", each, 3) for each in (wait, join)]
    assert [[*names._unexplained(each, entries)] for each in entries] == [["timeout, in seconds"], ["name"]]


def test_a_name_keeps_the_version_that_it_came_with(monkeypatch: pytest.MonkeyPatch) -> None:
    names, reflow = public_names(), reference().paragraph
    first = names.page(reflow, "")
    monkeypatch.setattr(zf, "__version__", "9.9")
    gone = re.sub(r"### zfabric\.get\n.*?Since [\d.]+\n", "", first, count=1, flags=re.DOTALL)
    gone = re.sub(r'^\| <a id="taskerror">.*\n', "", gone, flags=re.MULTILINE)
    second = names.page(reflow, gone)
    assert len(re.findall(r"^Since 9\.9\.$", second, flags=re.MULTILINE)) == 1
    assert names.versions(second)["zfabric.get"] == names.versions(second)["TaskError"] == "9.9"
    assert names.versions(second)["zfabric.put"] == names.versions(second)["TaskCancelledError"] == "0.1.0"


def test_the_script_is_well_formed() -> None:
    subprocess.run(["bash", "-n", ROOT / "scripts/protocol"], check=True)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_names_its_sender_and_receiver(name: str) -> None:
    first = inspect.cleandoc(MESSAGES[name].__doc__ or "").split(". ")[0]
    assert re.fullmatch(r"[\w', \n]+( -> [\w', \n]+)+(`[\w`, .…]+)?", first), first


def test_every_message_has_a_handler() -> None:
    assert set(MESSAGES) == set(reference().handlers())


def test_every_setting_has_a_reason_and_a_section() -> None:
    page = (ROOT / "docs/configuration.md").read_text()
    for name, value in zf.config.Config().pairs():
        (row,) = re.findall(rf"^\| `{name}` \| (.*) \| (.*) \| (.*) \|$", page, flags=re.MULTILINE)
        assert len(row[2]) > 20, f"{name} says no reason"
        assert row[1] or isinstance(value, (str, bool, tuple)), f"{name} has no unit"


# --- what is named --------------------------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them, and its own anchors."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    own = set(re.findall(r'<a id="([^"]*)">', page.read_text()))
    return own | {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_have_a_target(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def code_in(page: Path) -> Iterator[tuple[str, str, Path | None]]:
    """(path, symbol, file) of each ``file.py`` and ``file.py:Class.method`` in backquotes; the file is None if there is none.

    A path begins at the root, below ``zfabric``, or below the package that the heading above it names.
    """
    places = PLACES
    for line in page.read_text().splitlines():
        heading = re.match(r"#+ (.*)$", line)
        if heading is not None:
            package = f"zfabric/{heading[1]}"
            places = (package, *PLACES) if (ROOT / package).is_dir() else PLACES
        for path, symbol in re.findall(r"`([\w/.]+\.py)(?::([\w.]+))?`", line):
            found = [ROOT / place / path for place in places]
            yield path, symbol, next((each for each in found if each.is_file()), None)


@functools.cache
def symbols(path: Path) -> set[str]:
    """What a file defines: functions, classes and their methods."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_named_on_a_page_exists(page: Path) -> None:
    for path, symbol, source in code_in(page):
        assert source is not None, f"there is no {path}"
        assert not symbol or symbol in symbols(source), f"{path} defines no {symbol}"


def test_the_map_names_every_file() -> None:
    """A file that nobody can find is not worth having: give it a line in docs/architecture.md."""
    named = {source for _, _, source in code_in(ROOT / "docs/architecture.md")}
    files = {path for path in (ROOT / "zfabric").rglob("*.py") if path.name != "__init__.py"} | {ROOT / "zfabric/__init__.py"}
    for stand_ins in ("ray", "without_ray"):  # Each is called as the module of Ray that it stands for.
        files -= set((ROOT / "zfabric/ray_mode" / stand_ins).rglob("*.py"))
    assert {name_of(path) for path in files - named} == set()


def test_the_map_is_short() -> None:
    assert len((ROOT / "docs/architecture.md").read_text().splitlines()) < 250


def test_decisions_are_listed_and_every_number_is_found_once() -> None:
    """A record has the number of its oldest decision. The list has, beside each, the numbers of those that it replaces."""
    directory = ROOT / "docs/decisions"
    files = sorted(path.name for path in directory.glob("0*.md"))
    rows = re.findall(r"^\| \[(\d+)\]\((.*?)\) \| (.*?) ?\| .+ \|$", (directory / "README.md").read_text(), flags=re.MULTILINE)
    assert [name for _, name, _ in rows] == files
    assert all(name.startswith(number) and number < min(re.findall(r"\[(\d+)\]", also), default="9") for number, name, also in rows)
    numbers = sorted(int(each) for number, _, also in rows for each in (number, *re.findall(r"\[(\d+)\]", also)))
    assert numbers == list(range(1, len(numbers) + 1))


# --- what is public -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in zf.__all__ if callable(getattr(zf, name))])
def test_what_is_public_is_explained(name: str) -> None:
    """Everything has a docstring of its own; what people call shows an example, which test_doctests runs."""
    thing = getattr(zf, name)
    assert len(thing.__doc__ or "") > 20
    if not (isinstance(thing, type) and issubclass(thing, Exception)):
        assert ">>> " in thing.__doc__
    if isinstance(thing, type) and issubclass(thing, zf.FabricError):
        assert thing.__doc__ != zf.FabricError.__doc__ or thing is zf.FabricError


def test_help_needs_no_cluster() -> None:
    """``help(zf.get)`` shows the docstring, and starts nothing."""
    code = "import zfabric as zf, pydoc; print(pydoc.render_doc(zf.get)); assert not zf.is_initialized()"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "GetTimeoutError" in shown
