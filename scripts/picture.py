"""Draws the roles, and which messages each sends to which other, from the messages, their decorators and the machines' handlers.

    python scripts/picture.py            # writes docs/pictures/messages.svg
    python scripts/picture.py --check    # writes nothing, and says whether that is out of date

The docstring of each message begins with its route, ``client -> local scheduler``. A role's handlers must agree with that, and so must the
decorators, and the packages of the machines that name it (``problems``). A test runs the check.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import reference  # noqa: E402 - it is beside this file, wherever that was started

from zfabric.protocol import access, ids  # noqa: E402
from zfabric.protocol.messages import MESSAGES  # noqa: E402

PICTURE = ROOT / "docs/pictures/messages.svg"

CLIENT, WORKER, CONTROL, LOCAL, STORE, TABLE = "client", "worker", "worker control", "local scheduler", "object store", "control store"
GLOBAL, MEMBER, REGISTRY, AGENT, SHELL = "global scheduler", "member", "registry", "transfer agent", "shell"
PEERS, AGENTS = "local schedulers of other nodes", "transfer agents of other nodes"
WORDS = {"driver": CLIENT, "tool": CLIENT, "actor": WORKER, "reader": AGENT, "source": AGENTS}
"""Other words for roles in routes. A word that names no role (home, executor, node) is a local scheduler of some node."""
PROCESSES = {ids.CLIENT: CLIENT, ids.ACTOR: WORKER, ids.CONTROL: CONTROL}
"""The roles of a process that another process of its node may send messages to, by their letters."""
IN_DAEMON = {
    ids.LOCAL_SCHEDULER: LOCAL,
    ids.OBJECT_STORE: STORE,
    ids.CONTROL_STORE: TABLE,
    ids.GLOBAL_SCHEDULER: GLOBAL,
    ids.MEMBER: MEMBER,
    ids.REGISTRY: REGISTRY,
}
"""The roles of a daemon, by their letters."""
PACKAGES = {
    "client": {CLIENT, WORKER},
    "worker": {CLIENT, WORKER, CONTROL},
    "local_scheduler": {LOCAL},
    "object_store": {STORE},
    "control_store": {TABLE},
    "global_scheduler": {GLOBAL},
    "registry": {REGISTRY},
    "member": {MEMBER},
    "transfer": {AGENT},
}
"""The roles of each package of machines. The client of a worker sends what is said there to come from the worker, and the reverse."""


class Box(NamedTuple):
    """One role in the picture: its rectangle, and what is written below its name."""

    left: int
    top: int
    width: int
    height: int
    note: str = ""


BOXES = {
    CONTROL: Box(190, 60, 150, 50, "a thread of each worker"),
    WORKER: Box(430, 60, 150, 50, "runs tasks, or actors"),
    CLIENT: Box(720, 60, 190, 50, "of each driver, worker, tool"),
    PEERS: Box(20, 250, 170, 50),
    LOCAL: Box(330, 250, 290, 60, "of a node: when and where tasks run"),
    STORE: Box(750, 250, 210, 60, "who may use which bytes"),
    MEMBER: Box(210, 450, 130, 50, "keeps the node's lease"),
    TABLE: Box(385, 450, 130, 50, "durable rows"),
    GLOBAL: Box(580, 450, 130, 50, "names a node"),
    AGENT: Box(800, 450, 130, 50, "copies values"),
    AGENTS: Box(1000, 450, 130, 50),
    REGISTRY: Box(280, 600, 140, 50, "on the head: the nodes"),
    SHELL: Box(200, 730, 780, 50, "sockets, disks, time; the supervisor starts processes and reports their deaths"),
}
ENDS = {
    (CLIENT, CONTROL): ((760, 60), (300, 60)),
    (CLIENT, WORKER): ((720, 85), (580, 85)),
    (CLIENT, LOCAL): ((750, 110), (590, 250)),
    (CLIENT, STORE): ((860, 110), (860, 250)),
    (WORKER, LOCAL): ((490, 110), (490, 250)),
    (CONTROL, LOCAL): ((270, 110), (380, 250)),
    (LOCAL, PEERS): ((330, 277), (190, 277)),
    (LOCAL, STORE): ((620, 280), (750, 280)),
    (LOCAL, MEMBER): ((350, 310), (280, 450)),
    (LOCAL, TABLE): ((440, 310), (440, 450)),
    (LOCAL, GLOBAL): ((590, 310), (640, 450)),
    (LOCAL, AGENT): ((615, 310), (815, 450)),
    (AGENT, STORE): ((860, 450), (860, 310)),
    (AGENT, AGENTS): ((930, 475), (1000, 475)),
    (MEMBER, REGISTRY): ((295, 500), (320, 600)),
    (REGISTRY, TABLE): ((390, 600), (420, 500)),
    (SHELL, MEMBER): ((230, 730), (230, 500)),
    (SHELL, TABLE): ((480, 730), (480, 500)),
    (SHELL, LOCAL): ((545, 730), (545, 310)),
    (SHELL, AGENT): ((865, 730), (865, 500)),
    (SHELL, STORE): ((945, 730), (945, 310)),
}
"""Where the lines between two boxes begin and end. The messages back have a line beside."""
MUTUAL = ((LOCAL, PEERS), (AGENT, AGENTS))
"""Pairs of equals: each message may go either way."""
WIDTH, DRAWN, MARGIN, COLUMNS, LINE = 1150, 800, 20, 172, 14
"""Widths and heights in pixels, and the characters of one line of the list."""
INK, LINES, FILL, OTHERS = "#333333", "#8a97a6", "#eef4fa", "#f4f4f4"
ASIDE, ABOVE = 10, 36
"""Half the distance between the lines of two directions, and how far down the bent line is, in pixels."""


def routes(kind: type[Any]) -> list[list[list[str]]]:
    """The ways of a message, as its docstring begins with them: their stops, each with the words for the roles that it may be."""
    first = " ".join(inspect.cleandoc(kind.__doc__ or "").partition(". ")[0].split())
    return [[stop.split(", ") for stop in way.split(" -> ")] for way in first.split("; ")]


def role(word: str) -> str:
    """The role that a word of a route names."""
    word = WORDS.get(word, word)
    return word if word in BOXES else PEERS


def edges(kind: type[Any]) -> Iterator[tuple[str, str]]:
    """Every (sender, receiver) of a message. Two local schedulers, or two transfer agents, are one's own and the others."""
    hops = (hop for way in routes(kind) for hop in pairwise(way))
    for sender, receiver in ((role(one), role(other)) for senders, receivers in hops for one in senders for other in receivers):
        if {sender, receiver} <= {LOCAL, PEERS}:
            yield LOCAL, PEERS
        elif {sender, receiver} <= {AGENT, AGENTS}:
            yield AGENT, AGENTS
        else:
            yield LOCAL if sender == PEERS else sender, LOCAL if receiver == PEERS else receiver


def arrows() -> dict[tuple[str, str], list[str]]:
    """The messages from each role to each other."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, kind in MESSAGES.items():
        for edge in dict.fromkeys(edges(kind)):
            found.setdefault(edge, []).append(name)
    return found


def problems() -> list[str]:
    """Routes that disagree with the machines' handlers, or with what the decorators allow."""
    takers: dict[str, set[str]] = {}
    for taker, machine in reference.machines().items():
        for kind in machine.handlers:
            takers.setdefault(kind.__name__, set()).add(taker)
    found = []
    for name, kind in MESSAGES.items():
        receivers = {{CONTROL: WORKER, PEERS: LOCAL, AGENTS: AGENT}.get(receiver, receiver) for _, receiver in edges(kind)}
        if name not in reference.SHELLS and receivers != takers[name]:
            found.append(f"{name}: its route leads to {sorted(receivers)}, its handlers are of {sorted(takers[name])}")
        found += [f"{name}: {what} by its route or its decorators, not by both" for what in undeclared(kind)]
    found += [
        f"{name}: it is named in machines/{package}, which its route does not pass"
        for package, roles in PACKAGES.items()
        for name in named_in(package) - {"Refused"}  # Every machine may answer with that.
        if roles.isdisjoint(role for pair in edges(MESSAGES[name]) for role in pair)
    ]
    return found


def undeclared(kind: type[Any]) -> Iterator[str]:
    """What the route of a message says and its decorators do not, or the reverse."""
    pairs = set(edges(kind))
    receivers_of_processes = {receiver for sender, receiver in pairs if sender in (CLIENT, WORKER, CONTROL, AGENT)}
    for kinds, roles in ((access.FROM_PROCESSES, IN_DAEMON), (access.FROM_PEERS, PROCESSES)):
        for letter, receiver in roles.items():
            if (receiver in receivers_of_processes) != (kind in kinds.get(letter, ())):
                yield f"from a process to the {receiver}"
    if (LOCAL, PEERS) in pairs and kind not in access.FROM_NODES[ids.LOCAL_SCHEDULER]:
        yield "from another node"
    if ((AGENT, AGENTS) in pairs) != (kind in access.FROM_AGENTS):
        yield "from another node's agent"


def named_in(package: str) -> set[str]:
    """The messages that the machines of a package name."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "zfabric/machines" / package).rglob("*.py"))]
    return {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & MESSAGES.keys()


# --- drawing ------------------------------------------------------------------------------------------------------------------


def picture() -> str:
    """The picture, as SVG."""
    found = arrows()
    listed = [*listing(found)]
    height = DRAWN + LINE * len(listed) + MARGIN
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
    lines = [begin + 'font-family="sans-serif" font-size="12">', f'<rect width="{WIDTH}" height="{height}" fill="white"/>', HEAD]
    lines.append(text(MARGIN, 26, f"{len(MESSAGES)} types of messages. A number is how many of them one role sends to the other.", "start"))
    for name, box in BOXES.items():
        lines += drawn(name, box)
    for (sender, receiver), names in found.items():
        lines += arrow(sender, receiver, names)
    lines += [
        text(MARGIN, DRAWN + LINE * (index + 1), line, "start", 'font-size="11" xml:space="preserve"') for index, line in enumerate(listed)
    ]
    return "\n".join([*lines, "</svg>", ""])


HEAD = (
    '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse">'
    f'<path d="M0,0 L8,4 L0,8 z" fill="{LINES}"/></marker></defs>'
)


def drawn(name: str, box: Box) -> Iterator[str]:
    """One box."""
    fill = OTHERS if name in (PEERS, AGENTS, SHELL) else FILL
    yield f'<rect x="{box.left}" y="{box.top}" width="{box.width}" height="{box.height}" rx="5" fill="{fill}" stroke="{INK}"/>'
    above, below = (name, box.note) if box.note else name.split(" of ")
    across, middle = box.left + box.width / 2, box.top + box.height / 2
    yield text(across, middle - 3, above, "middle", 'font-weight="bold"')
    yield text(across, middle + 13, below if box.note else f"of {below}", "middle", 'font-size="10"')


def arrow(sender: str, receiver: str, names: list[str]) -> Iterator[str]:
    """A line from one box to another, with the number of its messages; their names are shown under the pointer."""
    is_back = (sender, receiver) not in ENDS
    one, other = ENDS[(receiver, sender) if is_back else (sender, receiver)]
    is_alone = (sender, receiver) in MUTUAL or sender == SHELL or (sender, receiver) == (CLIENT, CONTROL)
    aside, share = (0, 0.5) if is_alone else (-ASIDE, 0.6) if is_back else (ASIDE, 0.4)
    across, down = (0, aside) if one[1] == other[1] else (aside, 0)
    points = [(x + across, y + down) for x, y in (one, other)]
    (left, top), (right, bottom) = points
    middle = (left + (right - left) * share, top + (bottom - top) * share)
    (start, end) = reversed(points) if is_back else points
    bend = ""
    if (sender, receiver) == (CLIENT, CONTROL):  # It passes above the worker.
        bend, middle = f"C{left - 60},{ABOVE} {right + 60},{ABOVE} ", ((left + right) / 2, ABOVE + 6)
    heads = 'marker-end="url(#head)"' + (' marker-start="url(#head)"' if (sender, receiver) in MUTUAL else "")
    path = f"M{start[0]},{start[1]} {bend or 'L'}{end[0]},{end[1]}"
    yield f"<g><title>{between(sender, receiver)}: {', '.join(names)}</title>"
    yield f'<path d="{path}" fill="none" stroke="{LINES}" stroke-width="1.4" {heads}/>'
    yield f'<rect x="{middle[0] - 10:.1f}" y="{middle[1] - 8:.1f}" width="20" height="16" rx="8" fill="white" stroke="{LINES}"/>'
    yield text(middle[0], middle[1] + 4, str(len(names)), "middle", 'font-size="11"') + "</g>"


def between(sender: str, receiver: str) -> str:
    """From whom to whom."""
    return f"{sender} {'↔' if (sender, receiver) in MUTUAL else '→'} {receiver}"


def listing(found: Mapping[tuple[str, str], list[str]]) -> Iterator[str]:
    """The lines of the list below: from whom to whom, and the names."""
    for pair in in_order(found):
        heading = f"{between(*pair)} ({len(found[pair])}): "
        yield from textwrap.wrap(heading + ", ".join(found[pair]), COLUMNS, subsequent_indent="      ")


def in_order(found: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs of roles in the order of the boxes."""
    places = [*BOXES]
    return sorted(found, key=lambda pair: (places.index(pair[0]), places.index(pair[1])))


def text(across: float, down: float, words: str, anchor: str, more: str = "") -> str:
    """One line of text."""
    return f'<text x="{across:.1f}" y="{down:.1f}" text-anchor="{anchor}" fill="{INK}" {more}>{escape(words)}</text>'


def main(arguments: list[str]) -> int:
    """Write the picture, or with ``--check`` only say whether that is current."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and say whether the picture is out of date")
    check = parser.parse_args(arguments).check
    if found := problems():
        print(*found, sep="\n")
        return 1
    if not check:
        PICTURE.write_text(picture(), encoding="utf-8")
    elif PICTURE.read_text(encoding="utf-8") != picture():
        print(f"{PICTURE} is out of date; run scripts/picture.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
