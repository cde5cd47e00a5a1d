"""Patterns of files to leave out, with the syntax and meaning of ``.gitignore``.

A later pattern overrides an earlier one, but nothing below an excluded directory is included again. Patterns become regular expressions
without backtracking: after a star, the first fit of the next part is the best, so each part is an atomic group.
"""

from __future__ import annotations

import os
import re
import string
from collections.abc import Iterable, Iterator
from typing import NamedTuple

PATTERN_BYTES_MAX = 4096
"""Longest pattern: Linux's ``PATH_MAX``."""

_CLASSES = {
    b"alnum": string.ascii_letters + string.digits,
    b"alpha": string.ascii_letters,
    b"blank": " \t",
    b"cntrl": "".join(map(chr, (*range(0x20), 0x7F))),
    b"digit": string.digits,
    b"graph": string.ascii_letters + string.digits + string.punctuation,
    b"lower": string.ascii_lowercase,
    b"print": string.ascii_letters + string.digits + string.punctuation + " ",
    b"punct": string.punctuation,
    b"space": string.whitespace,
    b"upper": string.ascii_uppercase,
    b"xdigit": string.hexdigits,
}
_STAR, _MANY, _SLASH = b"*", b"**", b"/"
"""``**`` stands for any number of directories."""


class _Pattern(NamedTuple):
    expression: re.Pattern[bytes]
    includes: bool
    directories_only: bool
    anchored: bool
    """Matched with the whole path, not with the last name."""


class IgnorePatterns:
    """Decides which paths below a directory are left out. Raises ValueError for a pattern over ``PATTERN_BYTES_MAX`` bytes.

    >>> patterns = IgnorePatterns(["*.log", "!kept.log", "/data/"])
    >>> [patterns.ignores(path, False) for path in ("a/b.log", "kept.log", "data")], patterns.ignores("data", True)
    ([True, False, False], True)
    """

    def __init__(self, lines: Iterable[str | bytes]) -> None:
        encoded = (line if isinstance(line, bytes) else os.fsencode(line) for line in lines)
        self._patterns = [pattern for pattern in map(_parse, encoded) if pattern is not None]

    def ignores(self, path: str, is_directory: bool) -> bool:
        """Whether ``path``, relative and with "/", is left out. Parent directories are not considered."""
        whole = os.fsencode(path)
        name = whole.rpartition(b"/")[2]
        for pattern in reversed(self._patterns):
            if (is_directory or not pattern.directories_only) and pattern.expression.fullmatch(whole if pattern.anchored else name):
                return not pattern.includes
        return False


class _MalformedError(Exception):
    """A pattern that matches nothing."""


def _parse(line: bytes) -> _Pattern | None:
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    while line.endswith(b" ") and not _is_escaped(line, len(line) - 1):
        line = line[:-1]
    if not line or line.startswith(b"#"):
        return None
    if len(line) > PATTERN_BYTES_MAX:
        raise ValueError(f"a pattern has {len(line):,} bytes, and at most {PATTERN_BYTES_MAX:,} are allowed: {line[:40]!r}...")
    includes = line.startswith(b"!")
    text = line[includes:]
    directories_only = text.endswith(b"/")
    text = text.removesuffix(b"/")
    if not text:
        return None
    anchored = b"/" in text
    try:
        expression = re.compile(_translate(text.removeprefix(b"/"), anchored), re.DOTALL)
    except _MalformedError:
        return None
    return _Pattern(expression, includes, directories_only, anchored)


def _is_escaped(text: bytes, index: int) -> bool:
    before = text[:index]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def _translate(text: bytes, anchored: bool) -> bytes:
    """Translate a pattern into blocks of names, with any number of directories between blocks."""
    blocks: list[list[list[bytes]]] = [[[]]]
    """Tokens by block and name."""
    for token in _tokens(text, anchored):
        if token == _MANY:
            blocks.append([[]])
        elif token == _SLASH:
            blocks[-1].append([])
        else:
            blocks[-1][-1].append(token)
    first, *others = [b"/".join(map(_name, block)) for block in blocks]
    if not others:
        return first
    *middle, last = others
    # ``**`` takes the slashes around it, so those of the neighbouring blocks are empty names.
    found = first + b"".join(b"(?>(?:.*?/)??" + block.removeprefix(b"/") + b")" for block in middle if block != b"/")
    return found + (b"(?:.*/)?" + last.removeprefix(b"/") if last else b".*")


def _name(tokens: list[bytes]) -> bytes:
    pieces: list[bytes] = [b""]
    for token in tokens:
        if token == _STAR:
            pieces.append(b"")
        else:
            pieces[-1] += token
    if len(pieces) == 1:
        return pieces[0]
    first, *middle, last = pieces
    return b"(?>" + first + b"".join(b"(?>[^/]*?" + piece + b")" for piece in middle if piece) + b"[^/]*" + last + rb"(?=/|\Z))"


def _tokens(text: bytes, anchored: bool) -> Iterator[bytes]:
    index = 0
    plain = 0
    """Bytes before the first special one. Git skips these, so that stars behind them begin a name."""
    while anchored and plain < len(text) and text[plain] not in b"*?[\\":
        plain += 1
    while index < len(text):
        character = text[index : index + 1]
        index += 1
        if character == b"*":
            start = index - 1
            while text[index : index + 1] == b"*":
                index += 1
            begins = start in (0, plain) or text[start - 1 : start] == b"/"
            yield _MANY if begins and index - start > 1 and text[index : index + 1] in (b"", b"/") else _STAR
        elif character == b"?":
            yield b"[^/]"
        elif character == b"/":
            yield _SLASH
        elif character == b"[":
            content, index = _translate_set(text, index)
            yield content
        else:
            if character == b"\\":
                character = _at(text, index)
                index += 1
            yield _SLASH if character == b"/" else re.escape(character)


def _translate_set(text: bytes, start: int) -> tuple[bytes, int]:
    """Translate a set from behind its "[". Return the expression, and the index behind its "]"."""
    index = start
    negated = text[index : index + 1] in (b"!", b"^")
    index += negated
    first = index
    chosen: set[int] = set()
    begin = -1
    while (character := _at(text, index)) != b"]" or index == first:
        index += 1
        if text[index - 1 : index + 1] == b"[:" and (end := text.find(b"]", index + 1)) > index + 1 and text[end - 1 : end] == b":":
            try:
                chosen.update(_CLASSES[text[index + 1 : end - 1]].encode())
            except KeyError:
                raise _MalformedError from None
            begin, index = -1, end + 1
        elif character == b"-" and begin >= 0 and text[index : index + 1] not in (b"", b"]"):
            if text[index : index + 1] == b"\\":
                index += 1
            chosen.update(range(begin, _at(text, index)[0] + 1))
            begin, index = -1, index + 1
        else:
            if character == b"\\":
                character = _at(text, index)
                index += 1
            begin = character[0]
            chosen.add(begin)
    members = set(range(256)) - chosen if negated else chosen
    content = b"".join(b"\\x%02x" % byte for byte in sorted(members - {ord("/")}))
    return b"[" + content + b"]" if content else b"(?!)", index + 1


def _at(text: bytes, index: int) -> bytes:
    """At the end of the text the pattern is malformed, and matches nothing, as in Git."""
    if index >= len(text):
        raise _MalformedError
    return text[index : index + 1]
