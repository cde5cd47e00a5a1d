"""The pages match the source: generated pages are current, named code exists, and public names are explained."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import zfabric as zf
import zfabric.protocol.effects
from zfabric.protocol.messages import MESSAGES

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("", "zfabric", "zfabric/protocol", "docs/examples")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "perf/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@functools.cache
def script(name: str) -> ModuleType:
    """A script that generates pages or pictures."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reference() -> ModuleType:
    """The generator of the reference."""
    return script("reference")


# --- what is generated ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of the reference, by name."""
    pages: dict[Path, str] = reference().pages(tmp_path_factory.mktemp("reference"))
    for path, text in pages.items():
        path.write_text(text)
    return {path.name: path for path in pages}


def test_the_versions_of_names_are_up_to_date() -> None:
    assert public_names().SINCE.read_text() == public_names().record(), "run scripts/protocol"


def test_the_generator_says_that_the_versions_are_out_of_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    generator, since = reference(), tmp_path / "since.json"
    since.write_text("{}")
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    monkeypatch.setattr(public_names(), "SINCE", since)
    monkeypatch.setattr(generator, "pages", lambda directory: {directory / "page.md": "page"})
    assert generator.main(["--check"]) == 1
    assert since.read_text() == "{}"
    assert "since.json is out of date" in capsys.readouterr().out
    assert generator.main([]) == 0
    assert "zfabric.get" in since.read_text()
    assert (tmp_path / "build/reference/page.md").read_text() == "page"
    assert generator.main(["--check"]) == 0


def sections(page: Path) -> dict[str, str]:
    """The sections of names on a page of the reference, by name."""
    return dict(re.findall(r"^#{3,4} ([\w.]+)\n(.*?)(?=^##|\Z)", page.read_text(), flags=re.MULTILINE | re.DOTALL))


def test_each_message_and_effect_is_on_the_page_with_its_fields(generated: dict[str, Path]) -> None:
    found = sections(generated["protocol.md"])
    effects = {name: kind for name, kind in vars(zfabric.protocol.effects).items() if hasattr(kind, "_fields")}
    for name, kind in {**MESSAGES, **effects}.items():
        assert f"`{name}(" in found[name], name
        assert all(f"{field}: " in found[name] for field in kind._fields), name
    assert all(re.search(r"^Handled by (?!nobody)", found[name], flags=re.MULTILINE) for name in MESSAGES)


def test_each_public_name_is_on_the_page_with_its_version(generated: dict[str, Path]) -> None:
    names, found = public_names(), sections(generated["api.md"])
    entries = [entry for title in names.SECTIONS for entry in names.entries(title)]
    assert len(entries) > 200
    for entry in entries:
        assert re.search(r"^Since [\d.]+\.$", found[entry.name], flags=re.MULTILINE), entry.name
        assert len(entry.text) > 10, f"{entry.name} has no docstring"
        assert all(each.name in found[entry.name] for each in entry.parameters), entry.name
    page = generated["api.md"].read_text()
    assert [name for name in names.error_classes() if f'<a id="{name.lower()}"></a>`{name}`' not in page] == []


def public_names() -> ModuleType:
    """The generator of api.md."""
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


def test_a_name_keeps_the_version_that_it_came_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = public_names()
    recorded = json.loads(names.SINCE.read_text())
    recorded["0.1.0"] = [name for name in recorded["0.1.0"] if name not in ("zfabric.get", "TaskError")]
    monkeypatch.setattr(names, "SINCE", tmp_path / "since.json")
    monkeypatch.setattr(zf, "__version__", "9.9")
    names.SINCE.write_text(json.dumps({**recorded, "0.2.0": ["zfabric.gone"]}))
    assert json.loads(names.record()) == {**recorded, "9.9": ["TaskError", "zfabric.get"]}
    page = names.page(reference().paragraph, "docs")
    assert len(re.findall(r"^Since 9\.9\.$", page, flags=re.MULTILINE)) == 1
    assert len(re.findall(r"\| 9\.9 \|$", page, flags=re.MULTILINE)) == 1


def test_the_script_is_well_formed() -> None:
    subprocess.run(["bash", "-n", ROOT / "scripts/protocol"], check=True)


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_names_its_sender_and_receiver(name: str) -> None:
    first = inspect.cleandoc(MESSAGES[name].__doc__ or "").split(". ")[0]
    assert re.fullmatch(r"[\w', \n]+( -> [\w', \n]+)+(; [\w', \n]+( -> [\w', \n]+)+)*", first), first


def test_routes_of_messages_agree_with_handlers_and_decorators() -> None:
    assert script("picture").problems() == []


def test_the_picture_of_messages_is_current() -> None:
    assert script("picture").PICTURE.read_text() == script("picture").picture(), "run scripts/picture.py"


def test_nothing_overlaps_in_the_picture_of_messages() -> None:
    """Neither boxes nor numbers, which have rectangles of their own."""
    pattern = r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"'
    drawn = [tuple(map(float, each)) for each in re.findall(pattern, script("picture").PICTURE.read_text())]
    assert len(drawn) > 40
    for (left, top, width, height), other in itertools.combinations(drawn, 2):
        beside = left + width <= other[0] or other[0] + other[2] <= left
        assert beside or top + height <= other[1] or other[1] + other[3] <= top


def test_every_message_has_a_handler() -> None:
    assert set(MESSAGES) == set(reference().handlers())


def test_every_setting_has_a_reason_and_a_section(generated: dict[str, Path]) -> None:
    page = generated["configuration.md"].read_text()
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


def broken_links(page: Path) -> list[str]:
    """Links of a page without a target."""
    found = []
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in anchors(target))):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_have_a_target(page: Path) -> None:
    assert broken_links(page) == []


def test_links_of_the_reference_have_a_target(generated: dict[str, Path]) -> None:
    assert {name: broken_links(page) for name, page in generated.items()} == {name: [] for name in generated}


def code_in(page: Path) -> Iterator[tuple[str, str, Path | None]]:
    """(path, symbol, file) of each ``file.py`` and ``file.py:Class.method`` in backquotes; the file is None if there is none.

    A path begins at the root, below ``zfabric``, or below the package that the heading above it names.
    """
    places = PLACES
    for line in page.read_text().splitlines():
        heading = re.match(r"#+ (.*)$", line)
        if heading is not None:
            packages = (f"zfabric/{heading[1]}", heading[1])
            places = (*(each for each in packages if (ROOT / each).is_dir()), *PLACES)
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


def absent_code(page: Path) -> list[str]:
    """Files and symbols that a page names, and that do not exist."""
    return [f"{path}:{symbol}" for path, symbol, source in code_in(page) if source is None or (symbol and symbol not in symbols(source))]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_code_named_on_a_page_exists(page: Path) -> None:
    assert absent_code(page) == []


def test_code_named_in_the_reference_exists(generated: dict[str, Path]) -> None:
    assert {name: absent_code(page) for name, page in generated.items()} == {name: [] for name in generated}


def test_the_map_names_every_file() -> None:
    """A file that nobody can find is not worth having: give it a line in docs/architecture.md."""
    named = {source for _, _, source in code_in(ROOT / "docs/architecture.md")}
    files = {path for path in (ROOT / "zfabric").rglob("*.py") if path.name != "__init__.py"} | {ROOT / "zfabric/__init__.py"}
    files |= {path for path in (ROOT / "tests/sim").rglob("*.py") if not path.name.startswith(("__init__", "test_"))}
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
