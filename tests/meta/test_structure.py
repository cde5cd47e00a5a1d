"""The graph of imports: no circles, independent roles, and packages whose exported names alone are imported.

Every import counts, also one inside a function and one for type checkers alone: a reader follows those, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from zfabric.runtime.client import OPERATIONS

ROOT = Path(__file__).parents[2]
ROLES = ("client", "worker", "object_store", "control_store", "global_scheduler", "supervisor", "local_scheduler", "transfer")
INSIDE = tuple(f"tests.sim.{each}" for each in ("variants", "invariants", "call_invariants", "node_invariants", "object_stories"))
"""Modules outside ``machines`` that look inside a role: they break it on purpose, or check its tables."""


BELOW_THE_SIMULATOR = ("protocol", "machines", "shell", "adapters", "config", "exceptions")
"""What the simulator may import of the package: all that is below the runtime, which it replaces."""


@cache
def modules() -> dict[str, Path]:
    """Every module of the package, and of the simulator beside it, by its dotted name."""
    found = {}
    simulator = (path for path in (ROOT / "tests/sim").rglob("*.py") if not path.name.startswith("test_"))
    for path in sorted((*(ROOT / "zfabric").rglob("*.py"), *simulator)):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


class Outline(NamedTuple):
    """What most tests look at in a module: the whole trees of all modules would take much memory."""

    imports: tuple[tuple[str, str], ...]
    """(module, name) of every import; the name is empty for ``import module``."""
    classes: tuple[str, ...]
    """Classes at the top of the module."""


@cache
def outline(path: Path) -> Outline:
    """The outline of a file."""
    tree = ast.parse(path.read_text())
    return Outline(tuple(_imports(tree)), tuple(each.name for each in tree.body if isinstance(each, ast.ClassDef)))


def imported(path: Path) -> tuple[tuple[str, str], ...]:
    """(module, name) of every import of a file."""
    return outline(path).imports


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)


@cache
def graph() -> dict[str, frozenset[str]]:
    """The modules that each module imports."""
    edges = {}
    for name, path in modules().items():
        targets = set()
        for module, attribute in imported(path):
            whole = f"{module}.{attribute}"
            target = whole if whole in modules() else module
            if target in modules() and target != name:
                targets.add(target)
        edges[name] = frozenset(targets)
    return edges


def circles() -> list[set[str]]:
    """Modules that import each other, directly or through others: the strongly connected components (Tarjan's algorithm)."""
    edges, order, low, stack, found = graph(), dict[str, int](), dict[str, int](), list[str](), list[set[str]]()

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for target in sorted(edges[name]):
            if target not in order:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], order[target])
        if low[name] == order[name]:
            at = stack.index(name)
            component = set(stack[at:])
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    for name in sorted(edges):
        if name not in order:
            visit(name)
    return found


def test_imports_form_no_circle() -> None:
    assert circles() == []


@pytest.mark.parametrize("role", ROLES)
def test_roles_do_not_import_each_other(role: str) -> None:
    others = tuple(f"zfabric.machines.{other}" for other in ROLES if other != role)
    for name, targets in graph().items():
        if name.startswith(f"zfabric.machines.{role}"):
            strange = [target for target in targets if target.startswith(others)]
            assert not strange, f"{name} imports {strange}"


def test_others_import_what_a_role_exports() -> None:
    fronts = tuple(f"zfabric.machines.{role}" for role in ROLES)
    for name, targets in graph().items():
        if name.startswith("zfabric.machines") or name in INSIDE:
            continue
        inner = [target for target in targets if target.startswith(fronts) and target not in fronts]
        assert not inner, f"{name} imports {inner}; import the names from the package of the role"


def test_a_role_exports_only_what_others_import() -> None:
    used: dict[str, set[str]] = {}
    for name, path in modules().items():
        if not name.startswith("zfabric.machines.") and name not in INSIDE:
            for module, attribute in imported(path):
                used.setdefault(module, set()).add(attribute)
    for role in ROLES:
        exported = {attribute for _, attribute in imported(modules()[f"zfabric.machines.{role}"])}
        assert exported == used.get(f"zfabric.machines.{role}", set())


def test_the_package_imports_no_tests() -> None:
    """The simulator and the measurements are not installed with it."""
    for name, path in modules().items():
        if name.startswith("zfabric"):
            assert not [module for module, _ in imported(path) if module.split(".")[0] in ("tests", "perf")], name


def test_the_simulator_imports_only_what_is_below_the_runtime() -> None:
    for name, path in modules().items():
        if name.startswith("tests.sim"):
            parts = [module.split(".") for module, _ in imported(path)]
            assert not [each for each in parts if each[0] == "zfabric" and each[1] not in BELOW_THE_SIMULATOR], name
            assert not [each for each in parts if each[0] == "tests" and each[:2] != ["tests", "sim"]], name
            assert not {each[0] for each in parts} & {"click", "rich"}, name


@pytest.mark.parametrize("package", ["zfabric.util", "zfabric.cli"])
def test_packages_above_the_api_import_it_and_not_the_root(package: str) -> None:
    for name, path in modules().items():
        if name.startswith(package):
            assert not [each for each in imported(path) if each == ("zfabric", "")], name
            assert "zfabric" not in graph()[name], name


PRINTING = {
    *("click.echo", "click.secho", "click.echo_via_pager", "click.confirm", "click.prompt", "click.style", "click.get_text_stream"),
    *(
        "click.progressbar",
        "sys.stdout",
        "sys.stderr",
        "sys.__stdout__",
        "sys.__stderr__",
        "os.write",
        "rich.print",
        "console.Console",
        "traceback.print_exc",
    ),
}


DOCUMENTS = {("zfabric.cli.timeline", "sys.stdout")}
"""Where documents of JSON are written, which are of ASCII characters."""


def test_commands_print_through_one_module() -> None:
    """Names of tasks, nodes and labels become there what no terminal obeys: by ``echo``, ``print_table`` and ``console``."""
    found = []
    for name, path in modules().items():
        if not name.startswith("zfabric.cli.") or name == "zfabric.cli.output":
            continue
        tree = ast.parse(path.read_text())
        found += [f"{name}: {module}" for module, attribute in imported(path) if (module, attribute) == ("rich.console", "Console")]
        inspected = {
            ast.unparse(each.value) + f":{each.lineno}"
            for each in ast.walk(tree)
            if isinstance(each, ast.Attribute) and each.attr in ("flush", "fileno", "isatty")
        }
        for each in ast.walk(tree):
            if isinstance(each, ast.Name) and each.id == "print":
                found.append(f"{name}:{each.lineno}: print")
            text = ast.unparse(each) if isinstance(each, ast.Attribute) else ""
            prints = text in PRINTING or text.endswith(".show")
            if prints and f"{text}:{each.lineno}" not in inspected and (name, text) not in DOCUMENTS:  # type: ignore[attr-defined]
                found.append(f"{name}:{each.lineno}: {text}")  # type: ignore[attr-defined]
    assert not found


def test_no_two_classes_share_a_name() -> None:
    """The simulator's stand-ins are named after what they stand for."""
    found: dict[str, list[str]] = {}
    for name, path in modules().items():
        if not name.startswith(("tests.sim", "zfabric.ray_mode.ray")):  # The latter's are named after Ray's.
            for each in outline(path).classes:
                if not each.startswith("_"):
                    found.setdefault(each, []).append(name)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_what_takes_the_lock_of_a_client_is_an_operation() -> None:
    """A signal or an interrupt would stop what is not marked in its middle."""
    body = ast.parse(modules()["zfabric.runtime.client"].read_text()).body
    (client,) = [each for each in body if isinstance(each, ast.ClassDef) and each.name == "FabricClient"]
    methods = [each for each in client.body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")]
    locking = {each.name for each in methods if "self._lock" in ast.unparse(each)}
    assert len(locking) > 20
    assert locking <= set(OPERATIONS)


def test_tests_import_helper_modules_and_no_other_tests() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    tests = {path.stem for path in files if path.stem.startswith("test_")}
    # To parse all of them takes seconds, and few have such a line.
    files = [path for path in files if re.search(r"^\s*(?:from|import)\b.*\btest_", path.read_text(), re.MULTILINE)]
    assert [(path.name, module) for path in files for module, _ in imported(path) if module in tests] == []
