"""What an object is and who needs it is written by the methods of its record alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SCHEDULER = Path(__file__).parents[2] / "zfabric/machines/local_scheduler"
OWNER = "records.py"
FIELDS = frozenset({"contained", "dependents", "fetchers", "hold", "holders", "named", "pins", "status", "value"})
CHANGING = frozenset({"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "update"})
IN_PLACE = {
    ("tasks/outcomes.py", "completed"): {"status", "value"},
    ("references.py", "release"): {"holders"},
}
"""The two loops that every task passes, with what they write themselves: a call for each task costs them some 3 %."""


def written(tree: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Each write to one of ``FIELDS``, as (function, owner of the field, field)."""

    def visit(node: ast.AST, function: str) -> Iterator[tuple[str, str, str]]:
        for child in ast.iter_child_nodes(node):
            inside = child.name if isinstance(child, ast.FunctionDef) else function
            target: ast.AST | None = None
            if isinstance(child, ast.Attribute) and isinstance(child.ctx, ast.Store | ast.Del):
                target = child
            elif isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr in CHANGING:
                target = child.func.value
            if isinstance(target, ast.Attribute):
                owner = ast.unparse(target.value)
                if target.attr in FIELDS or owner.split(".")[-1] == "hold":
                    yield inside, owner, target.attr
            yield from visit(child, inside)

    return visit(tree, "")


@pytest.mark.parametrize("path", sorted(SCHEDULER.rglob("*.py")), ids=lambda path: path.name)
def test_only_the_methods_of_a_record_write_its_fields(path: Path) -> None:
    name = path.relative_to(SCHEDULER).as_posix()
    others: dict[str, set[str]] = {}
    for function, owner, field in written(ast.parse(path.read_text())):
        if owner != "self" and not (name == OWNER and (owner == "self.hold" or function == "join")):
            others.setdefault(function, set()).add(field)
    assert others == {function: fields for (file, function), fields in IN_PLACE.items() if file == name}


@pytest.mark.parametrize(
    "line",
    [
        "record.status = OK",
        "a.value, b.pins = 1, 2",
        "record.pins += 1",
        "record.fetchers.add(x)",
        "del task.value",
        "record.hold.home = b",
        "record.hold = None",
    ],
)
def test_such_a_write_is_found(line: str) -> None:
    assert list(written(ast.parse(line)))
