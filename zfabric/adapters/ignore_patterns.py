"""Patterns of files to leave out, with the syntax of ``.gitignore``.

A later pattern overrides an earlier one. Nothing below a directory that is left out can be included again, as in Git.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple


class _Pattern(NamedTuple):
    expression: re.Pattern[str]
    includes: bool
    directories_only: bool


class IgnorePatterns:
    """Decides which paths below a directory are left out.

    >>> patterns = IgnorePatterns(["*.log", "!kept.log", "/data/"])
    >>> [patterns.ignores(path, False) for path in ("a/b.log", "kept.log", "data")], patterns.ignores("data", True)
    ([True, False, False], True)
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._patterns = [pattern for pattern in map(_parse, lines) if pattern is not None]

    def ignores(self, path: str, is_directory: bool) -> bool:
        """Whether ``path``, relative and with "/", is left out. Its parent directories are not looked at."""
        for pattern in reversed(self._patterns):
            if (is_directory or not pattern.directories_only) and pattern.expression.fullmatch(path):
                return not pattern.includes
        return False


def _parse(line: str) -> _Pattern | None:
    line = line.rstrip("\r\n")
    while line.endswith(" ") and not _is_escaped(line, len(line) - 1):
        line = line[:-1]
    if not line or line.startswith("#"):
        return None
    includes = line.startswith("!")
    text = line[includes:]
    directories_only = text.endswith("/")
    text = text.removesuffix("/")
    if not text:
        return None
    anchored = "/" in text
    text = text.removeprefix("/")
    try:
        expression = re.compile(("" if anchored else "(?:.*/)?") + _translate(text), re.DOTALL)
    except re.error:  # A malformed set of characters matches nothing, as in Git.
        return None
    return _Pattern(expression, includes, directories_only)


def _is_escaped(text: str, index: int) -> bool:
    """Whether an odd number of backslashes is before ``index``."""
    before = text[:index]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _translate(text: str) -> str:
    parts = text.split("/")
    found = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            found += ".+" if last else "(?:.*/)?"
        else:
            found += _translate_name(part) + ("" if last else "/")
    return found


def _translate_name(part: str) -> str:
    found, index = "", 0
    while index < len(part):
        character = part[index]
        index += 1
        if character == "*":
            found += "[^/]*"
        elif character == "?":
            found += "[^/]"
        elif character == "\\":
            if index == len(part):
                raise re.error("a pattern that ends with a backslash matches nothing")
            found += re.escape(part[index])
            index += 1
        elif character == "[":
            content, index = _translate_set(part, index)
            found += content
        else:
            found += re.escape(character)
    return found


def _translate_set(part: str, start: int) -> tuple[str, int]:
    """Translate a set of characters from behind its "[". Return the expression, and the index behind its "]"."""
    index = start
    negated = part[index : index + 1] in ("!", "^")
    index += negated
    first, content = index, ""
    while index < len(part) and (part[index] != "]" or index == first):
        if part[index] == "\\" and index + 1 < len(part):
            index += 1
            content += re.escape(part[index])
        else:
            content += "-" if part[index] == "-" else re.escape(part[index])
        index += 1
    if index == len(part):
        raise re.error("a set of characters without an end")
    return f"(?!/)[{'^' if negated else ''}{content}]", index + 1
