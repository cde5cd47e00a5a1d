"""What a run found, for people: as text, and as the tables of ``docs/performance.md``.

A report is plain data, as ``--json`` prints it::

    {"format": 1, "date", "commit", "machine": {...}, "repeat", "passes", "quick", "peers": {name: version}, "absent": {name: reason},
     "results": [{"question", "asks", "seconds", "error", "figures": [{"figure", "unit", "value", "low", "high", "samples",
                  "floor": {"what", "value", "samples"} or null, "ratio", "more_is_better", "budget", "bound",
                  "budget_is_ratio", "verdict", "peers": {name: {"value", "times_better", "samples"}}}]}]}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FORMAT = 1
BEGIN, END = "<!-- begin results -->", "<!-- end results -->"
"""Where the results stand in a page that is written again and again."""


def number(value: float | None) -> str:
    """Three digits that mean something, in groups of three.

    >>> [number(value) for value in (123456.0, 1234.0, 12.345, 0.01234, 0.0, None)]
    ['123,000', '1,230', '12.3', '0.0123', '0', '']
    """
    if value is None:
        return ""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 or rounded == 0 else f"{rounded:g}"


def limit(figure: dict[str, Any], which: str) -> str:
    """A budget or a bound in words, such as "≥ 50,000" or "≤ 3 × floor"; empty where nothing was promised."""
    if figure[which] is None:
        return ""
    sign = "≥" if figure["more_is_better"] else "≤"
    return f"{sign} {number(figure[which])}{' × floor' if figure['budget_is_ratio'] else ''}"


def name_of(result: dict[str, Any], figure: dict[str, Any]) -> str:
    """The question and which of its figures."""
    return f"{result['question']}: {figure['figure']}" if figure["figure"] else str(result["question"])


# --- text -------------------------------------------------------------------------------------------------------------------


def text(result: dict[str, Any]) -> str:
    """One result, some lines."""
    lines = [f"{result['question']}: {result['asks']}"]
    if result["error"]:
        lines += [f"  failed: {line}" if not index else f"    {line}" for index, line in enumerate(result["error"].splitlines())]
    for figure in result["figures"]:
        label = f"{figure['figure']}: " if figure["figure"] else ""
        spread = f" ({number(figure['low'])} to {number(figure['high'])})" if len(figure["samples"]) > 1 else ""
        lines.append(f"  {label}{number(figure['value'])} {figure['unit']}{spread}")
        if figure["floor"]:
            floor = figure["floor"]
            lines.append(f"    {number(figure['ratio'])} × the floor of {number(floor['value'])} {figure['unit']}: {floor['what']}")
        if figure["budget"] is not None:
            lines.append(f"    budget {limit(figure, 'budget')}, bound {limit(figure, 'bound')}: {figure['verdict']}")
        for name, peer in figure["peers"].items():
            lines.append(f"    {name}: {number(peer['value'])} {figure['unit']}; zfabric is {number(peer['times_better'])} times as good")
    return "\n".join(lines)


# --- Markdown ---------------------------------------------------------------------------------------------------------------


def markdown(report: dict[str, Any]) -> str:
    """The whole report: where it was made, the figures, the peers, what failed."""
    return "\n\n".join(["\n".join(_circumstances(report)), "\n".join(_figures(report)), *_more(report)]) + "\n"


def _circumstances(report: dict[str, Any]) -> Iterator[str]:
    machine = report["machine"]
    libraries = ", ".join(f"{name} {version}" for name, version in machine["libraries"].items() if version)
    yield f"- **When**: {report['date']}, commit `{report['commit'] or 'unknown'}`"
    yield (
        f"- **Where**: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']:g} GiB, "
        f"last-level cache {machine['last_level_cache_mib']:g} MiB, Linux {machine['kernel']}; "
        f"load before the run {machine['load_average']:.2f}"
    )
    yield f"- **With**: Python {machine['python']}, {libraries}"
    quick = ", quick: sizes too small for figures that mean anything" if report["quick"] else ""
    passes = f" in each of {report['passes']} passes through all questions" if report["passes"] > 1 else ""
    yield f"- **How**: medians of {report['repeat']} rounds{passes}{quick}"
    if report["peers"]:
        yield "- **Peers**: " + ", ".join(f"{name} {version}" for name, version in report["peers"].items())
    for name, reason in report["absent"].items():
        yield f"- **Absent**: {name} ({_cell(reason)})"


def _figures(report: dict[str, Any]) -> Iterator[str]:
    yield "| question | value | unit | floor | value / floor | budget | to be done | verdict | Ray | times Ray |"
    yield "|---|--:|---|--:|--:|--:|--:|---|--:|--:|"
    for result in report["results"]:
        for figure in result["figures"]:
            ray = figure["peers"].get("ray")
            cells = (
                name_of(result, figure),
                number(figure["value"]),
                figure["unit"],
                number(figure["floor"]["value"]) if figure["floor"] else "",
                number(figure["ratio"]),
                limit(figure, "budget"),
                limit(figure, "bound"),
                figure["verdict"],
                number(ray["value"]) if ray else "",
                number(ray["times_better"]) if ray else "",
            )
            yield "| " + " | ".join(map(_cell, cells)) + " |"


def _more(report: dict[str, Any]) -> Iterator[str]:
    """The floors of the questions, peers other than Ray, and what failed; each where there is any."""
    figures = [(result["question"], name_of(result, figure), figure) for result in report["results"] for figure in result["figures"]]
    floors: dict[str, dict[str, None]] = {}
    for question, _, figure in figures:
        if figure["floor"]:
            floors.setdefault(figure["floor"]["what"], {})[f"`{question}`"] = None
    if floors:
        yield "\n".join(["The floors:\n", *(f"- {', '.join(questions)}: {_cell(what)}" for what, questions in floors.items())])
    others = [name for name in report["peers"] if name != "ray"]  # Ray stands beside ours.
    rows = [_peer_row(name, figure, others) for _, name, figure in figures if not figure["peers"].keys().isdisjoint(others)]
    if rows:
        yield "\n".join([f"| figure | unit | {' | '.join(others)} |", f"|---|---|{'--:|' * len(others)}", *rows])
    failures = [
        f"- `{result['question']}` {'failed in a pass' if result['figures'] else 'gave no figure'}: {_cell(result['error'])}"
        for result in report["results"]
        if result["error"]
    ]
    if failures:
        yield "\n".join(failures)


def _peer_row(name: str, figure: dict[str, Any], peers: list[str]) -> str:
    values = [number(figure["peers"][peer]["value"]) if peer in figure["peers"] else "" for peer in peers]
    return "| " + " | ".join(map(_cell, (name, figure["unit"], *values))) + " |"


def _cell(value: str) -> str:
    return re.sub(r"\s+", " ", value.replace("|", "\\|"))


def write_into(path: Path, results: str, begin: str = BEGIN, end: str = END) -> None:
    """Replace what stands between two marks of the page at ``path``."""
    page = path.read_text()
    before, mark, rest = page.partition(begin)
    _, other, after = rest.partition(end)
    if not mark or not other:
        raise ValueError(f"{path} has no place for results: a line {begin} and a line {end}")
    path.write_text(f"{before}{begin}\n\n{results}\n{end}{after}")
