"""One question in a process of its own: nothing that one question leaves behind is there for the next, and one that hangs is ended.

``answer`` starts ``python -m perf.isolated``; what is asked goes there as an argument, and the result comes back in a file, since
systems write all kinds of things to the standard output.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from perf import machine
from perf.question import Question, Run

ERROR_LINES = 15
"""Lines of what a failed question wrote that are shown."""
PEERS_SLOWER = 4
"""How many times as long a question may take when peers take part."""


def answer(question: Question, run: Run, seconds_max: float | None = None) -> dict[str, Any]:
    """The result of a question, or its error; ends after ``seconds_max`` (None: the question's own limit)."""
    limit = seconds_max or question.seconds_max * (PEERS_SLOWER if run.peers else 1)
    with tempfile.TemporaryDirectory(prefix="zfabric-perf-") as directory:
        result, output = Path(directory, "result"), Path(directory, "output")
        request = {"question": question.name, "result": str(result), "repeat": run.repeat, "quick": run.quick, "peers": dict(run.peers)}
        with output.open("w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "perf.isolated", json.dumps(request)],
                cwd=machine.ROOT,
                env={**os.environ, "PYTHONPATH": str(machine.ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
            problem = _wait(process, limit)
        if not problem and result.exists():
            found: dict[str, Any] = json.loads(result.read_text())
            return found
        text = "\n".join(output.read_text(errors="replace").splitlines()[-ERROR_LINES:])
        return question.failed(f"{problem or 'no result'}\n{text}".strip())


def _wait(process: subprocess.Popen[bytes], seconds: float) -> str:
    """Wait for the end; why there is no result, empty if there should be one. Whatever happens, its group is gone."""
    try:
        code = process.wait(seconds)
        return f"it ended with code {code}" if code else ""
    except subprocess.TimeoutExpired:
        return f"it took longer than {seconds:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


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
