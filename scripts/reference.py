"""Writes the reference from the source: api.md, configuration.md and protocol.md, which git does not have.

    python scripts/reference.py [DIRECTORY]    # the pages go to build/reference, or to DIRECTORY
    python scripts/reference.py --check        # writes nothing, and says whether scripts/since.json is out of date

``scripts/protocol`` runs this. since.json has the version that each public name came with, and is a file of git: a test compares it with
the source. No page has anything that is not in a docstring or a table of ``zfabric``.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from zfabric.adapters.memory_journal import MemoryJournal
from zfabric.config import Config
from zfabric.machines.client import Client
from zfabric.machines.control_store import ControlStore
from zfabric.machines.global_scheduler import GlobalScheduler
from zfabric.machines.local_scheduler import LocalScheduler
from zfabric.machines.member import Member
from zfabric.machines.object_store import ObjectStore
from zfabric.machines.registry import Registry
from zfabric.machines.transfer import TransferAgent
from zfabric.machines.worker import Worker
from zfabric.protocol import messages
from zfabric.protocol.ids import INCARNATION_BYTES
from zfabric.protocol.machine import Machine

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import api_reference  # noqa: E402 - it is beside this file, wherever that was started

GENERATED = "<!-- Written by scripts/protocol from `{source}`. Change that file, then run the script. -->\n"


def pages(directory: Path) -> dict[Path, str]:
    """The pages, by their paths in ``directory``."""
    docs = os.path.relpath(ROOT / "docs", directory)
    api = GENERATED.format(source="the docstrings") + "\n" + api_reference.page(paragraph, docs)
    return {directory / "api.md": api, directory / "configuration.md": configuration(), directory / "protocol.md": protocol()}


def main(arguments: list[str]) -> int:
    """Write the pages and since.json, or with ``--check`` only say whether that is current."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, default=ROOT / "build/reference", help="where the pages go")
    parser.add_argument("--check", action="store_true", help="write nothing, and say whether scripts/since.json is out of date")
    options = parser.parse_args(arguments)
    since, record = api_reference.SINCE, api_reference.record()
    is_current = since.exists() and since.read_text(encoding="utf-8") == record
    if options.check:
        if not is_current:
            print(f"{since} is out of date; run scripts/protocol")
        return int(not is_current)
    directory = options.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    for path, text in {**({} if is_current else {since: record}), **pages(directory)}.items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


# --- docstrings as Markdown ---------------------------------------------------------------------------------------------------


def markdown(text: str) -> str:
    """A docstring's paragraphs, joined to one line each; what is indented or ruled in it becomes a block or a table."""
    return "\n\n".join(paragraph(each) for each in re.split(r"\n\s*\n", inspect.cleandoc(text)))


def paragraph(text: str) -> str:
    """One paragraph of a docstring."""
    lines = text.splitlines()
    if lines[0].startswith("===="):
        return table(lines)
    if any(line.startswith("    ") for line in lines):
        aligned = re.sub(r"^``([^`]*)``", r"\1    ", text, flags=re.MULTILINE)
        return "```text\n" + aligned.replace("``", "") + "\n```"
    return inline(" ".join(line.strip() for line in lines))


def inline(text: str) -> str:
    """Code in a docstring as code in Markdown."""
    return re.sub(r"``([^`]*)``", r"`\1`", text)


def table(lines: list[str]) -> str:
    """A ruled table of two columns, as Markdown."""
    width = lines[0].index(" ")
    rows = [[line[:width].strip(), line[width:].strip()] for line in lines if not line.startswith("====")]
    return "\n".join(["| name | meaning |", "|---|---|", *(f"| {inline(name)} | {inline(meaning)} |" for name, meaning in rows)])


def sections(source: str, marker: str) -> Iterator[tuple[int, str]]:
    """(line, title) of the comments that divide a file: ``marker`` a pattern with the title as its group."""
    for number, line in enumerate(source.splitlines(), 1):
        found = re.match(marker, line)
        if found is not None:
            yield number, found[1]


def headline(title: str) -> str:
    """A title as a heading."""
    return title[:1].upper() + title[1:].replace("<->", "↔").replace("->", "→")


# --- the protocol -------------------------------------------------------------------------------------------------------------


def protocol() -> str:
    """The text of protocol.md."""
    from zfabric.protocol import codec, effects, messages, options

    takers = handlers()
    lines = [GENERATED.format(source="zfabric/protocol"), "# The protocol\n", f"Version {messages.PROTOCOL_VERSION}.\n"]
    lines += [markdown(messages.__doc__ or ""), ""]
    lines += ["## Frames and roles\n", markdown(codec.__doc__ or ""), "", roles(), ""]
    lines += ["## How an attempt ends\n", statuses(inspect.getsource(messages.tasks)), ""]
    lines += ["## Contents\n", *contents(messages.SECTIONS, messages.MESSAGES), ""]
    for section in messages.SECTIONS:
        title, more = introduction(section)
        lines += [f"## {title}\n", *([markdown(more), ""] if more else [])]
        for name, kind in of_section(section, messages.MESSAGES).items():
            lines += [message(name, kind, takers.get(name, [])), ""]
    lines += ["## Options of functions and calls\n", markdown(options.__doc__ or ""), ""]
    lines += ["## Effects: what a machine asks of its shell\n", markdown(effects.__doc__ or ""), ""]
    for name, kind in vars(effects).items():
        if inspect.isclass(kind) and hasattr(kind, "_fields") and kind.__module__ == effects.__name__:
            lines += [f"### {name}\n", f"`{signature(name, kind)}`\n", markdown(kind.__doc__ or ""), ""]
    return "\n".join(lines).rstrip() + "\n"


def of_section(section: ModuleType, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The messages of one module."""
    return {name: kind for name, kind in kinds.items() if kind.__module__ == section.__name__}


def introduction(section: ModuleType) -> tuple[str, str]:
    """(title, the rest) of what a module of messages says of itself."""
    title, _, rest = inspect.cleandoc(section.__doc__ or "").partition("\n")
    return headline(title.rstrip(".")), rest


def contents(sections: Iterable[ModuleType], kinds: Mapping[str, Any]) -> list[str]:
    """A line per section with its messages."""
    return [
        f"- {introduction(section)[0]}: " + ", ".join(f"[{name}](#{name.lower()})" for name in of_section(section, kinds))
        for section in sections
    ]


def message(name: str, kind: Any, takers: list[str]) -> str:
    """The section of one message."""
    route, _, rest = inspect.cleandoc(kind.__doc__).partition(". ")
    route = inline(" ".join(route.split())).replace("->", "→")
    handled = "; ".join(takers) or "nobody yet"
    return "\n\n".join([f"### {name}", f"**{route}**", f"`{signature(name, kind)}`", markdown(rest), f"Handled by {handled}."])


def signature(name: str, kind: Any) -> str:
    """A message's or an effect's name and fields, with their types as the source writes them."""
    written = annotations(kind.__module__)[kind.__name__]
    fields = ", ".join(f"{field}: {written[field]}" for field in kind._fields)
    return f"{name}({fields})"


@cache
def annotations(module: str) -> dict[str, dict[str, str]]:
    """By class and field of a module, the types as their author wrote them."""
    found: dict[str, dict[str, str]] = {}
    for each in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(each, ast.ClassDef):
            fields = [(field.target, field.annotation) for field in each.body if isinstance(field, ast.AnnAssign)]
            found[each.name] = {target.id: ast.unparse(annotation) for target, annotation in fields if isinstance(target, ast.Name)}
    return found


def roles() -> str:
    """The letters that addresses begin with: in ``protocol.ids`` the only constants of one byte."""
    from zfabric.protocol import ids

    letters = [f"`{value.decode()}` {name}" for name, value in vars(ids).items() if type(value) is bytes and len(value) == 1]
    named = ", ".join(letters).lower().replace("_", " ")
    named = re.sub(r"`(.)`", lambda found: f"`{found[1].upper()}`", named)
    return f"An address is one role letter and an incarnation of {ids.INCARNATION_BYTES} bytes: {named} (`zfabric/protocol/ids.py`)."


def statuses(source: str) -> str:
    """The numbers in ``Completed`` and ``Results``, with what is said of each."""
    found = []
    for node, following in pairwise(ast.parse(source).body):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int(number))):
                said = following.value if isinstance(following, ast.Expr) else None
                text = " ".join(str(said.value).split()) if isinstance(said, ast.Constant) else "The outputs are the values."
                found.append(f"- `{name}` ({number}): {inline(text)}")
    return "\n".join(found)


# Messages that the shells take themselves, since they are about connections and not about a role.
SHELLS = {
    "RegisterAgain": "the shell of a process (`runtime/connection.py`, `runtime/worker_connection.py`), which registers again",
    "Inspect": "the shell of a process (`runtime/connection.py`, `runtime/worker_connection.py`), which walks its threads",
    "CollectGarbage": "the shell of a process (`runtime/connection.py`, `runtime/worker_connection.py`), which runs the collector",
}


def machines() -> dict[str, Machine]:
    """One machine of each role, by the name of the role."""
    config, address = Config(), bytes(INCARNATION_BYTES + 1)
    return {
        "client": Client(address, config),
        "worker": Worker(address, config),
        "local scheduler": LocalScheduler(address, b"node", config, (), address, address, address, 1, 0),
        "object store": ObjectStore(address, address, config, 64 * 2**20),
        "control store": ControlStore(address, config, MemoryJournal()),
        "global scheduler": GlobalScheduler(address, config),
        "transfer agent": TransferAgent(address, config, address[1:]),
        "registry": Registry(address, b"node", config, address, (), 0),
        "member": Member(address, address, messages.Join(0, b"node", 0, "", 0, b"", "", "", (), (), ())),
    }


def handlers() -> dict[str, list[str]]:
    """Who takes which message, from the handlers of the machines."""
    found: dict[str, list[str]] = {name: [text] for name, text in SHELLS.items()}
    for role, machine in machines().items():
        for kind, handler in machine.handlers.items():
            place = f"{handler.__module__.replace('.', '/')}.py"
            found.setdefault(kind.__name__, []).append(f"the {role} (`{place}`: `{handler.__qualname__}`)")
    return found


# --- the configuration ---------------------------------------------------------------------------------------------------------


def configuration() -> str:
    """The text of configuration.md."""
    from zfabric import config

    source = inspect.getsource(config)
    titles = [*sections(source, r"    # -- (.*?) --$")]
    lines = [GENERATED.format(source="zfabric/config.py"), "# Configuration\n", markdown(config.__doc__ or ""), "", HOW_TO_SET, ""]
    for (start, title), (end, _) in zip(titles, [*titles[1:], (sys.maxsize, "")], strict=True):
        lines += [f"## {headline(title)}\n", "| name | default | unit | reason |", "|---|---|---|---|"]
        for line, name, default, reason in settings(source):
            if start < line < end:
                lines.append(f"| `{name}` | {shown(default)} | {unit(name, default)} | {inline(reason)} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


HOW_TO_SET = """\
Three ways to set one. An unknown name, or a value that makes no sense, is refused with a hint:

    zf.init(config={"inline_bytes": 100_000, "durability": "power"})       # in a program
    zfabric submit --config durability=power --config spill_directory=/big program.py
    zfabric start --config object_store_directory=/dev/shm"""


def settings(source: str) -> Iterator[tuple[int, str, ast.expr, str]]:
    """(line, name, default, reason) of every setting."""
    (body,) = (node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            said = following.value if isinstance(following, ast.Expr) else None
            reason = " ".join(str(said.value).split()) if isinstance(said, ast.Constant) else ""
            yield node.lineno, node.target.id, node.value, reason


def shown(default: ast.expr) -> str:
    """A default as the source writes it, units as people do."""
    text = ast.unparse(default)
    if text in ("''", "()"):
        return "empty"
    found = re.fullmatch(r"(\d+) \* ([KMG]iB)", text)
    return f"{found[1]} {found[2]}" if found is not None else f"`{text}`"


def unit(name: str, default: ast.expr) -> str:
    """What the number counts: times are seconds and sizes bytes, unless the name says otherwise."""
    value = default.value if isinstance(default, ast.Constant) else 0
    if isinstance(value, (bool, str)) or isinstance(default, ast.Tuple):
        return ""
    if isinstance(value, float):
        return "bytes/s" if name.endswith("_bandwidth") else "s"
    return "bytes" if "bytes" in name or "memory" in name else "count"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
