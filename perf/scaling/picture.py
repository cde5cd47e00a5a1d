"""Figures of simulated clusters as a picture (SVG) and as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from perf.report import number
from perf.scaling.costs import Costs
from perf.scaling.loads import Result

WIDTH, HEIGHT = 400, 300
LEFT, TOP, RIGHT, BOTTOM = 74, 36, 14, 92
INK, GRID = "#333333", "#dddddd"
COLOURS = ("#1f6fb4", "#d2601a", "#3a8f3a", "#8a4fb0", "#b03a4e")
ROLES = ("driver", "driver's daemon", "head's daemon", "other daemons", "workers")


class Line(NamedTuple):
    """One line of a diagram."""

    name: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


def picture(results: Iterable[Result]) -> str:
    """The picture, as SVG: tasks a second, and how busy the busiest roles are, by the number of nodes."""
    of = {(result.load, result.nodes): result for result in results}
    counts = sorted({nodes for _, nodes in of})

    def line(name: str, load: str, value: Callable[[Result], float], dashed: bool = False) -> Line:
        return Line(name, [(nodes, value(of[load, nodes])) for nodes in counts if (load, nodes) in of], dashed)

    rates = (
        line("each node has its own no-op tasks", "each for itself", lambda result: result.per_second),
        line("one driver has tasks of 10 ms for all", "one for all", lambda result: result.per_second),
        line("what the CPUs could do of these", "one for all", lambda result: result.ideal, True),
    )
    busy = (
        line("own no-op tasks: a driver", "each for itself", lambda result: 100 * result.busy["driver"]),
        line("one driver for all: its daemon", "one for all", lambda result: 100 * result.busy["driver's daemon"]),
        line("one driver for all: the driver", "one for all", lambda result: 100 * result.busy["driver"]),
        line("leases and heartbeats: the head's daemon", "idle", lambda result: 100 * result.busy["head's daemon"]),
    )
    panels = [
        *_panel(0, "tasks a second", rates, counts, logarithmic=True),
        *_panel(WIDTH, "% of its time that a process is busy", busy, counts, logarithmic=False),
    ]
    begin = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}" width="{2 * WIDTH}" height="{HEIGHT}" '
    style = 'font-family="sans-serif" font-size="11">'
    return "\n".join([begin + style, f'<rect width="{2 * WIDTH}" height="{HEIGHT}" fill="white"/>', *panels, "</svg>", ""])


def _panel(left: int, title: str, lines: Sequence[Line], counts: Sequence[int], logarithmic: bool) -> Iterator[str]:
    """One diagram: nodes to the right, on a logarithmic scale."""
    values = [value for each in lines for _, value in each.points if value > 0]
    low, high = (math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))) if logarithmic else (0, 100)
    last = math.log10(max(max(counts), 10))

    def across(nodes: float) -> float:
        return left + LEFT + math.log10(nodes) / last * (WIDTH - LEFT - RIGHT)

    def down(value: float) -> float:
        height = math.log10(max(value, 10**low)) if logarithmic else value
        return TOP + (high - height) / (high - low) * (HEIGHT - TOP - BOTTOM)

    yield _text(left + LEFT, TOP - 16, title, "start", 'font-weight="bold"')
    marks = [10.0**power for power in range(low, high + 1)] if logarithmic else [0.0, 25.0, 50.0, 75.0, 100.0]
    for value in marks:
        yield _stroke([(left + LEFT, down(value)), (left + WIDTH - RIGHT, down(value))], GRID)
        yield _text(left + LEFT - 6, down(value) + 4, number(value), "end")
    for nodes in counts:
        yield _stroke([(across(nodes), TOP), (across(nodes), HEIGHT - BOTTOM)], GRID)
        yield _text(across(nodes), HEIGHT - BOTTOM + 15, number(nodes), "middle")
    yield _text(left + (LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 29, "nodes", "middle")
    for index, each in enumerate(lines):
        colour = COLOURS[index]
        dash = ' stroke-dasharray="5 4"' if each.dashed else ""
        yield _stroke([(across(nodes), down(value)) for nodes, value in each.points], colour, f'stroke-width="2"{dash}')
        if not each.dashed:
            yield from (f'<circle cx="{across(nodes):.1f}" cy="{down(value):.1f}" r="3" fill="{colour}"/>' for nodes, value in each.points)
        at = HEIGHT - BOTTOM + 45 + 13 * index
        yield _stroke([(left + LEFT, at - 4), (left + LEFT + 20, at - 4)], colour, f'stroke-width="2"{dash}')
        yield _text(left + LEFT + 26, at, each.name, "start")


def _text(across: float, down: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{across:.1f}" y="{down:.1f}" text-anchor="{anchor}" fill="{INK}" {more}>{escape(text)}</text>'


def _stroke(points: Iterable[tuple[float, float]], colour: str, more: str = "") -> str:
    joined = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" {more}/>'


def table(results: Iterable[Result], costs: Costs, source: str) -> str:
    """The same figures, with the costs that led to them, as Markdown."""
    lines = [
        f"Costs in µs of CPU ({source}): " + ", ".join(f"{name} {number(value)}" for name, value in costs._asdict().items()) + ".",
        "",
        f"| load | nodes | tasks/s | of the CPUs | busy first | {' | '.join(ROLES)} | leases and heartbeats/s |",
        f"|---|--:|--:|--:|---|{'--:|' * len(ROLES)}--:|",
    ]
    for result in results:
        rate = number(result.per_second) if result.tasks else ""
        share = f"{100 * result.per_second / result.ideal:.0f} %" if result.ideal else ""
        roles = [f"{100 * result.busy[role]:.1f} %" if role in result.busy else "" for role in ROLES]
        cells = (result.load, number(result.nodes), rate, share, result.first, *roles, number(result.messages))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
