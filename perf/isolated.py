"""One question in a process of its own: nothing that one question leaves behind is there for the next, and one that hangs is ended.

``answer`` starts ``python -m perf.isolated``; what is asked goes there as an argument, and the result comes back in a file, since
systems write all kinds of things to the standard output.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from perf import machine
from perf.programs import run_program
from perf.question import Question, Run

ERROR_LINES = 15
"""Lines of what a failed question wrote that are shown."""
PEERS_SLOWER = 4
"""How many times as long a question may take when peers take part."""


def answer(question: Question, run: Run, seconds_max: float | None = None) -> dict[str, Any]:
    """The result of a question, or its error; ends after ``seconds_max`` (None: the question's own limit)."""
    limit = seconds_max or question.seconds_max * (PEERS_SLOWER if run.peers else 1)
    with tempfile.TemporaryDirectory(prefix="zfabric-perf-") as directory:
        result = Path(directory, "result")
        request = {"question": question.name, "result": str(result), "repeat": run.repeat, "quick": run.quick, "peers": dict(run.peers)}
        ended = run_program([sys.executable, "-m", "perf.isolated", json.dumps(request)], machine.ROOT, limit)
        if not ended.problem and result.exists():
            found: dict[str, Any] = json.loads(result.read_text())
            return found
        text = "\n".join(ended.output.splitlines()[-ERROR_LINES:])
        return question.failed(f"it {ended.problem or 'gave no result'}\n{text}".strip())


def main(text: str) -> None:
    """The process itself. It ends with the one that asked, and its cluster with it."""
    from perf.questions import load
    from zfabric.adapters.processes import die_with_parent

    die_with_parent(os.getppid())
    request = json.loads(text)
    run = Run(request["repeat"], request["quick"], request["peers"])
    result = load()[request["question"]].answer(run)
    Path(request["result"]).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
