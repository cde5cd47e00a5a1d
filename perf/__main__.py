"""``python -m perf``: the questions; ``python -m perf NAME...``: their answers; ``python -m perf all --peers --markdown``: the table."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perf import isolated, machine, report
from perf.peers import PEERS
from perf.question import Question, Run
from perf.questions import load

QUIET_LOAD = 0.3
"""Load for each core above which a run warns that its figures will be off."""

MORE = """
Questions that are easily forgotten, since they need peers or several nodes:

  python -m perf joblib dask_graphs nodes_restart nodes_peers --peers --repeat 3

asks for joblib beside loky and Dask, for graphs of Dask beside distributed, for a writer through the restart of the head's daemon
(< 300 ms), for the restart of a daemon with two peers beside one without (<= 1.5), and for two nodes beside two of Ray and of Dask.

  python -m perf libraries --peers --repeat 2

runs programs of Tune, RLlib, Data, Train, Serve, Modin, Daft, Flower and EvoTorch on zfabric and on Ray; first ./scripts/test-libraries.

  python -m perf.scaling --write docs/performance.md

simulates clusters of 1 to 1,000 nodes by measured costs, and draws a picture.
"""


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 1 if a question gave no figure. Missed budgets are no failure: machines differ."""
    questions = load()
    options = _parser(questions).parse_args(arguments)
    names = [name for name in questions if not questions[name].apart] if "all" in options.names else list(dict.fromkeys(options.names))
    if unknown := [name for name in names if name not in questions]:
        print(f"there is no question {unknown[0]!r}; there are {', '.join(questions)}, and all", file=sys.stderr)
        return 2
    if not names:
        print(listing(questions, options.json))
        return 0
    found = ask([questions[name] for name in names], options)
    if options.json:
        print(json.dumps(found, indent=2))
    if options.markdown:
        print(report.markdown(found), end="")
    if options.write:
        report.write_into(options.write, report.markdown(found))
    return int(any(result["error"] for result in found["results"]))


def _parser(questions: dict[str, Question]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m perf",
        description="How fast it is, beside floors measured in the same run.",
        epilog=MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"questions, or all: {', '.join(questions)}; none lists them")
    parser.add_argument("--json", action="store_true", help="print all samples as JSON")
    parser.add_argument("--markdown", action="store_true", help="print the tables of docs/performance.md")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="put the tables between the marks of a page, such as docs/performance.md"
    )
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="rounds of which the median is taken (5)")
    parser.add_argument(
        "--passes", type=int, default=1, metavar="N", help="go through all questions this often: samples are then taken minutes apart (1)"
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes and one round: shows that everything runs, measures nothing")
    parser.add_argument("--peers", action="store_true", help=f"the same workloads on {', '.join(PEERS)}; installs them into .venv-peers")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="give a question up after this long, whatever it says itself")
    return parser


def listing(questions: dict[str, Question], as_json: bool = False) -> str:
    """The questions with what they ask and the budgets they have."""
    rows = []
    for question in questions.values():
        budgets = {}
        for aim in question.aims:
            wanted = {"budget": aim.budget, "more_is_better": aim.more_is_better, "budget_is_ratio": aim.relative}
            text = report.limit(wanted, "budget")
            budgets[aim.figure] = f"{text}{'' if aim.relative else ' ' + aim.unit}" if text else ""
        rows.append({"question": question.name, "asks": question.asks, "budgets": budgets})
    if as_json:
        return json.dumps(rows, indent=2)
    width = max(len(name) for name in questions)
    lines = []
    for row in rows:
        lines.append(f"{row['question']:<{width}}  {row['asks']}")
        for figure, text in row["budgets"].items():  # type: ignore[attr-defined]
            if text:
                lines.append(f"{'':<{width}}    budget: {figure + ' ' if figure else ''}{text}")
    return "\n".join([*lines, "", "python -m perf NAME... [--peers] [--json | --markdown]; python -m perf all asks all of them."])


def ask(questions: list[Question], options: argparse.Namespace) -> dict[str, Any]:
    """Ask them one after the other; the report. Unless it is printed as a whole, each answer is shown once it is complete."""
    machine.compile_package()
    facts = machine.facts()
    if facts["load_average"] > QUIET_LOAD * facts["cores"]:
        print(f"the machine is busy (load {facts['load_average']:.2f}): figures will be off", file=sys.stderr)
    interpreters: dict[str, str] = {}
    found: dict[str, Any] = {
        "format": report.FORMAT,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": machine.commit(),
        "machine": facts,
        "repeat": 1 if options.quick else max(1, options.repeat),
        "passes": max(1, options.passes),
        "quick": options.quick,
        "peers": {},
        "absent": {},
        "results": [],
    }
    if options.peers:
        from perf.peers.environment import prepare

        interpreters, found["peers"], found["absent"] = prepare()
        for name, reason in found["absent"].items():
            print(f"{name} takes no part: {reason}", file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that what was started is ended on the way out
    run = Run(found["repeat"], options.quick, interpreters)
    answers: dict[str, list[dict[str, Any]]] = {question.name: [] for question in questions}
    for number in range(1, found["passes"] + 1):
        for question in questions:
            answers[question.name].append(isolated.answer(question, run, options.timeout))
            if number < found["passes"]:
                print(f"pass {number} of {found['passes']}: {question.name}", file=sys.stderr, flush=True)
                continue
            result = question.together(answers[question.name])
            found["results"].append(result)
            shown = sys.stderr if options.json or options.markdown else sys.stdout
            print(report.text(result), file=shown, flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
