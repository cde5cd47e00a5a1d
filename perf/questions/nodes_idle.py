"""What does a node cost that has nothing to do, for being one of three?

The daemon's memory in turns with that of a node alone, the CPU time of all processes of the node, and the memory of its transfer agent.
"""

from __future__ import annotations

import time

from perf import machine
from perf.nodes import Nodes, until
from perf.question import Aim, Question, Run, Samples
from perf.workloads import tasks_async


def measure(run: Run) -> dict[str, Samples]:
    """The second of three nodes, beside the only node of another cluster."""
    seconds = run.pick(10, 1)
    samples = {"daemon": Samples([], "the daemon of a node alone"), "CPU": Samples([]), "transfer agent": Samples([])}
    with Nodes(3) as three, Nodes(1) as alone:
        for system in (three, alone):
            system.join()
            tasks_async(system, 100)
        until(lambda: "transfer" in three.roles_of(1).values(), "the transfer agent is there")
        for _ in range(run.repeat):
            pids = list(three.roles_of(1))
            machine.wait_until_quiet(pids)
            before = machine.cpu_seconds_fine(pids)
            time.sleep(seconds)  # what is measured
            samples["CPU"].values.append((machine.cpu_seconds_fine(pids) - before) / seconds * 100)
            samples["daemon"].values.append(machine.unique_bytes(three.process(1, "daemon")) / machine.MiB)
            samples["daemon"].floor_values.append(machine.unique_bytes(alone.process(0, "daemon")) / machine.MiB)
            samples["transfer agent"].values.append(machine.unique_bytes(three.process(1, "transfer")) / machine.MiB)
    return samples


QUESTION = Question(
    "nodes_idle",
    "an idle node of three",
    (
        Aim("daemon", "MiB", False, 1.15, relative=True, to_be_done=1.3),
        Aim("CPU", "% of a core", False, 0.4, to_be_done=0.6),
        Aim("transfer agent", "MiB", False, 18, to_be_done=24),
    ),
    measure,
)
