"""How long does a program notice that a daemon was killed?

A writer of durable values whose node is the head, through the restart of the head's daemon: the longest of its puts. And the time from the
death of a daemon that has two other nodes to the next value of a task there, in turns with the same on a node alone. Each sample has a
cluster of its own, since the second restart in a row waits.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time

import zfabric as zf
from perf.nodes import Nodes
from perf.question import Aim, Question, Run, Samples
from perf.workloads import nothing

PUTS_BEFORE = 20


def measure(run: Run) -> dict[str, Samples]:
    """Clusters of three nodes and of one, in turns."""
    samples = {
        "longest put of a writer": Samples([]),
        "daemon with two peers": Samples([], "daemon of a node alone"),
    }
    for _ in range(run.repeat):
        samples["longest put of a writer"].values.append(_longest_put())
        samples["daemon with two peers"].values.append(_next_value(3))
        samples["daemon with two peers"].floor_values.append(_next_value(1))
    return samples


def _kill_daemon(system: Nodes) -> None:
    os.kill(system.process(0, "daemon"), signal.SIGKILL)


def _longest_put() -> float:
    """ms. The writer stops once it has written for a while after the restart; an error of a put fails the question."""
    with Nodes(3) as system:
        system.join()
        before = system.process(0, "daemon")
        began = threading.Event()

        def kill() -> None:
            began.wait()
            _kill_daemon(system)

        thread = threading.Thread(target=kill, daemon=True)
        thread.start()
        longest, left = 0.0, PUTS_BEFORE
        refs = []
        for number in itertools.count():
            begin = time.perf_counter()
            refs.append(zf.put(number, durable=True))
            longest = max(longest, time.perf_counter() - begin)
            if number == PUTS_BEFORE:
                began.set()
            if number > PUTS_BEFORE and not thread.is_alive():
                left -= before != _daemon(system)
                if not left:
                    break
        if zf.get(refs) != list(range(len(refs))):
            raise RuntimeError("values that were durable came back wrong")
        return longest * 1e3


def _daemon(system: Nodes) -> int:
    """The daemon of the first node; 0 while there is none."""
    return next((pid for pid, role in system.roles_of(0).items() if role == "daemon"), 0)


def _next_value(nodes: int) -> float:
    """ms from the death of the first node's daemon to the value of a task that was submitted at once."""
    with Nodes(nodes) as system:
        system.join()
        task = zf.remote(nothing).options(scheduling_strategy=system.on(0))
        zf.get([task.remote() for _ in range(100)])
        begin = time.perf_counter()
        _kill_daemon(system)
        zf.get(task.remote())
        return (time.perf_counter() - begin) * 1e3


QUESTION = Question(
    "nodes_restart",
    "a daemon of a cluster is killed and restarted",
    (
        Aim("longest put of a writer", "ms", False, 300, to_be_done=600),
        Aim("daemon with two peers", "ms", False, 1.5, relative=True, to_be_done=2),
    ),
    measure,
)
