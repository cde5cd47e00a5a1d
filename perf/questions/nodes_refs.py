"""What does a ref cost that another node holds?

A task of the second node holds refs to values of the first: the growth of the heaps of both daemons, for each ref.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import zfabric as zf
from perf import machine
from perf.nodes import Nodes, until
from perf.question import Aim, Question, Run, Samples
from zfabric.runtime.daemon import COLLECT_EVERY


def hold(refs: list[Any], there: str, gone: str) -> None:
    """Hold the refs until there is a file."""
    Path(there).touch()
    while not Path(gone).exists():
        time.sleep(0.01)  # another process makes it


def measure(run: Run) -> dict[str, Samples]:
    """Each round with a cluster of its own, since a heap that has grown once does not grow again."""
    count = run.pick(20_000, 1_000)
    samples = {"where it is held": Samples([]), "at its home": Samples([])}
    for _ in range(run.repeat):
        with Nodes(2) as two, tempfile.TemporaryDirectory() as directory:
            two.join()
            refs = [zf.put(number) for number in range(count)]
            daemons = {"where it is held": two.process(1, "daemon"), "at its home": two.process(0, "daemon")}
            machine.wait_until_quiet(daemons.values())
            before = {figure: machine.status_bytes(pid, "RssAnon") for figure, pid in daemons.items()}
            there, gone = f"{directory}/there", f"{directory}/gone"
            task = zf.remote(hold).options(scheduling_strategy=two.on(1)).remote(refs, there, gone)
            until(Path(there).exists, "the refs are held")
            machine.wait_until_quiet(daemons.values())
            time.sleep(run.pick(int(1.5 * COLLECT_EVERY), 0))  # Idle daemons return memory that they do not need now and then.
            for figure, pid in daemons.items():
                samples[figure].values.append((machine.status_bytes(pid, "RssAnon") - before[figure]) / count)
            Path(gone).touch()
            zf.get(task)
    return samples


QUESTION = Question(
    "nodes_refs",
    "refs to values of one node that another holds",
    (Aim("where it is held", "bytes", False, 400, to_be_done=600), Aim("at its home", "bytes", False)),
    measure,
)
