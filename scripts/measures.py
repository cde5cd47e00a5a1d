"""Prints how large the house is, and how tightly its rooms are tied: lines of code, messages, tables, prose.

    python scripts/measures.py [--json]

A line of code is one with a token that is no comment and belongs to no docstring (nor to a string that describes an attribute). Words of
docstrings are those of all such strings of the package and of the simulator; words of docs are those of Markdown. An attribute of the
scheduler's tables is written by a file that assigns it or a part of it, deletes it, or calls a method of it that changes it.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "zfabric"
SIMULATOR = ROOT / "tests" / "sim"
SCHEDULER = PACKAGE / "machines" / "local_scheduler"
SMALL = 60
"""Files with fewer lines of code are small."""
MODULES_OF_RAY = PACKAGE / "ray_mode" / "ray"
"""It has one file for each module of Ray, however small."""
SEVERAL = 3
"""An attribute that this many files write has no one who answers for it."""
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)
_CHANGING = frozenset(
    {
        "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove",
        "setdefault", "subtract", "update",
    }
)  # fmt: skip
"""Methods of Python's containers that change them."""


@cache
def described(source: str) -> list[ast.Constant]:
    """The docstrings of a module, and the strings that stand after attributes."""
    return [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


def code_lines(source: str) -> int:
    """How many lines of a module are code."""
    prose = {line for text in described(source) for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - prose)


def modules(place: Path) -> dict[Path, str]:
    """The source of each module below ``place``."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(place.rglob("*.py"))}


def words(texts: list[str]) -> int:
    """How many words these texts have."""
    return sum(len(text.split()) for text in texts)


def attributes_of_tables() -> set[str]:
    """The attributes that ``Tables`` gives itself when it is made."""
    tree = ast.parse((SCHEDULER / "tables.py").read_text(encoding="utf-8"))
    (made,) = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == "Tables"]
    stored = [node for node in ast.walk(made) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return {node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"}


def written(source: str, owner: str) -> Iterator[str]:
    """The attributes of ``owner`` ("tables", or "self" in its own file) that a module writes, each as often as it does."""

    def attribute(node: ast.expr) -> str | None:
        """The attribute of ``owner`` that ``node`` is, or is a part of."""
        while isinstance(node, ast.Subscript):
            node = node.value
        if not isinstance(node, ast.Attribute):
            return None
        base = node.value
        name = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
        return node.attr if name == owner else None

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            found = attribute(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
            found = attribute(node.func.value)
        else:
            continue
        if found is not None:
            yield found


def writers() -> dict[str, set[str]]:
    """The files that write each attribute of the scheduler's tables."""
    found: dict[str, set[str]] = {name: set() for name in attributes_of_tables()}
    for path, source in modules(SCHEDULER).items():
        for name in written(source, "self" if path.name == "tables.py" else "tables"):
            if name in found:
                found[name].add(path.name)
    return found


def measures() -> dict[str, int]:
    """All figures, by what they count."""
    from zfabric.protocol import access, messages
    from zfabric.protocol.ids import LOCAL_SCHEDULER

    package = modules(PACKAGE)
    simulator = {path: source for path, source in modules(SIMULATOR).items() if not path.name.startswith("test_")}
    lines = {path: code_lines(source) for path, source in package.items()}
    small = [path for path, count in lines.items() if 0 < count < SMALL]
    scheduler = [count for path, count in lines.items() if path.is_relative_to(SCHEDULER)]
    tables = writers()
    docs = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "perf").rglob("*.md")]
    return {
        "lines of code in the package": sum(lines.values()),
        "files of code in the package": len(lines),
        f"files with under {SMALL} lines": len(small),
        "of these, one for a module of Ray": sum(path.is_relative_to(MODULES_OF_RAY) for path in small),
        "lines of code in machines/local_scheduler": sum(scheduler),
        "files in machines/local_scheduler": len(scheduler),
        "lines of code in tests/sim": sum(map(code_lines, simulator.values())),
        "lines of code in ray_mode": sum(count for path, count in lines.items() if path.is_relative_to(PACKAGE / "ray_mode")),
        "message types": len(messages.MESSAGES),
        "message types between local schedulers": len(access.FROM_NODES[LOCAL_SCHEDULER]),
        "attributes of the scheduler's tables": len(tables),
        f"of these, written by {SEVERAL} files or more": sum(len(each) >= SEVERAL for each in tables.values()),
        "words of docstrings": words(
            [str(text.value) for source in (*package.values(), *simulator.values()) for text in described(source)]
        ),
        "words of docs": words([path.read_text(encoding="utf-8") for path in docs]),
        "lines of tests, without tests/sim": sum(
            source.count("\n") for path, source in modules(ROOT / "tests").items() if path not in simulator
        ),
    }


def main() -> None:
    """Run the command."""
    found = measures()
    if sys.argv[1:] == ["--json"]:
        print(json.dumps(found, indent=1))
    else:
        for name, count in found.items():
            print(f"{count:>9,}  {name}")


if __name__ == "__main__":
    main()
