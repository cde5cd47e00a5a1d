"""What does a task cost that runs on another node?

All tasks run on the second of two nodes: CPU time of all processes, in turns with tasks that run where they are submitted; one after the
other, in turns with a raw round trip over TCP with CURVE; and the messages that the home sends to the other node.
"""

from __future__ import annotations

from perf.nodes import Elsewhere, Nodes, cpu_us
from perf.question import Aim, Question, Run, Samples
from perf.workloads import tasks_async, tasks_sync

ALWAYS = {"RenewLease", "Heartbeat"}


def measure(run: Run) -> dict[str, Samples]:
    """On one cluster for tasks elsewhere, and one of one node for tasks at home."""
    many, few = run.pick(50_000, 200), run.pick(2_000, 20)
    samples = {
        "CPU": Samples([], "tasks that run where they are submitted"),
        "one after the other": Samples([], "raw round trip, TCP with CURVE"),
    }
    samples |= {"messages to the other node": Samples([]), "the same, many at once": Samples([])}
    with Nodes(2) as two, Nodes(1) as alone, run.echo(encrypted=True) as echo:
        for _ in range(run.repeat):
            two.join()
            elsewhere = Elsewhere(two)
            tasks_async(elsewhere, many // 10)
            samples["CPU"].values.append(cpu_us(two, many, lambda: tasks_async(elsewhere, many)))  # noqa: B023
            before = two.sent()
            tasks_async(elsewhere, many)
            samples["the same, many at once"].values.append(_count(two, before) / many)
            before = two.sent()
            samples["one after the other"].values.append(tasks_sync(elsewhere, few))
            samples["messages to the other node"].values.append(_count(two, before) / few)
            samples["one after the other"].floor_values.append(echo.round_trip_us(few))
            alone.join()
            tasks_async(alone, many // 10)
            samples["CPU"].floor_values.append(cpu_us(alone, many, lambda: tasks_async(alone, many)))
    return samples


def _count(system: Nodes, before: dict[str, int]) -> int:
    """Messages sent since, leases and heartbeats aside."""
    return sum(count - before.get(name, 0) for name, count in system.sent().items() if name not in ALWAYS)


QUESTION = Question(
    "nodes_elsewhere",
    "no-op tasks that run on another node",
    (
        Aim("CPU", "µs", False, 2, relative=True, to_be_done=2.5),
        Aim("one after the other", "µs", False, 4, relative=True, to_be_done=5),
        Aim("messages to the other node", "messages/task", False, 2, to_be_done=3),
        Aim("the same, many at once", "messages/task", False),
    ),
    measure,
)
