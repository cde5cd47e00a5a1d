"""What a cluster's processes do now, by their own answers: what actors run, and the stacks of every process."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from zfabric.exceptions import FabricError, GetTimeoutError
from zfabric.protocol.names import brief, counted, span
from zfabric.runtime.session import Session
from zfabric.runtime.stacks import Frame, Thread, dump_path, dumped_threads, frames_of_program, is_idle_loop
from zfabric.runtime.timeline import Asker, TimelineNode, nodes_of

ASKED_MOST = 64
RUNS_SECONDS = 0.5
"""Seconds for a worker's answer: its control thread gives one, unless C code holds the interpreter's lock."""
STACKS_SECONDS = 2.5
"""Seconds for a process's stacks: a driver polls for requests once a second."""
DUMP_SECONDS = 2.0
SHOWN_MOST = 3
"""A concurrent actor may run thousands of calls."""


class Activity(NamedTuple):
    """What an actor's process runs, and how many calls wait in it."""

    runs: tuple[tuple[str, bytes, float], ...]
    """(name, id, seconds), the longest first."""
    waiting: int

    def __str__(self) -> str:
        named = [f"{name} ({brief(identifier)}) for {span(seconds)}" for name, identifier, seconds in self.runs[:SHOWN_MOST]]
        more = len(self.runs) - SHOWN_MOST
        runs = ", ".join(named) + (f" and {more:,} more" if more > 0 else "")
        waiting = f"{counted(self.waiting, 'call')} {'waits' if self.waiting == 1 else 'wait'}"
        return f"runs {runs}; {waiting}" if runs else f"runs nothing; {waiting}"


def activity_of(client: Asker, pid: int) -> Activity | None:
    """What a worker of the asked node runs; None without an answer."""
    try:
        *rows, last = client.query("runs", pid, timeout=RUNS_SECONDS)
    except FabricError:
        return None
    return Activity(tuple(sorted(map(tuple, rows), key=lambda run: -run[2])), int(last[2]))


def activities(client: Asker, workers: Sequence[dict[str, Any]]) -> dict[tuple[str, int], Activity]:
    """What these actors' processes run, by (node, pid); the node is "" in a cluster of one."""
    actors = [row for row in workers if row["actor_id"] and row["pid"]]
    askers = {node.name: node.asker for node in nodes_of(client)} if actors else {}
    found = {}
    for row in islice(actors, ASKED_MOST):
        activity = activity_of(askers.get(row.get("node", ""), client), row["pid"])
        if activity is not None:
            found[row.get("node", ""), row["pid"]] = activity
    return found


def activity_of_actor(client: Asker, actor_id: bytes) -> dict[str, str]:
    """The fact "activity" for an actor's explanation; empty without an answer."""
    rows = [row for row in client.query("workers") if row["actor_id"] == actor_id.hex()]
    found = next(iter(activities(client, rows).values()), None)
    return {} if found is None else {"activity": str(found)}


# --- stacks, with running times -------------------------------------------------------------------------------------------------------


def processes_of(node: TimelineNode, subject: bytes = b"") -> list[tuple[int, dict[str, Any] | None]]:
    """A node's drivers and workers, or that of ``subject`` (an id), with workers' rows.

    Raises FabricError if the node does not answer.
    """
    pids = node.asker.query("processes", subject)
    workers = {row["pid"]: row for row in node.asker.query("workers") if row.get("node", node.name) == node.name} if pids else {}
    return [(pid, workers.get(pid)) for pid in pids]


def process_report(session: Session, client: Asker, pid: int, worker: dict[str, Any] | None, everything: bool) -> dict[str, Any]:
    """A process's report of its threads; a dump if the process does not answer."""
    answers = True
    threads: tuple[Thread, ...] = ()
    try:
        threads = client.query("stacks", pid, timeout=STACKS_SECONDS)
    except GetTimeoutError:
        answers = False
        if worker is not None:
            threads = dumped_threads(pid, dump_path(session.logs, bytes.fromhex(worker["token"])), DUMP_SECONDS)
    except FabricError:  # It has ended meanwhile.
        answers = False
    shown = [_thread_report(each, worker is not None, everything) for each in threads]
    return {
        "pid": pid,
        "kind": "driver" if worker is None else "worker",
        "state": "" if worker is None else worker["state"],
        "task": "" if worker is None else worker["task"],
        "actor": "" if worker is None else worker["actor"],
        "calls_waiting": _calls_waiting(client, pid) if worker is not None and worker["actor"] and answers else None,
        "seconds": 0.0 if worker is None else worker["seconds"],
        "answers": answers,
        "threads": [each for each in shown if each["frames"] or each["runs"]],
    }


def _calls_waiting(client: Asker, pid: int) -> int | None:
    found = activity_of(client, pid)
    return None if found is None else found.waiting


def sample_report(client: Asker, pid: int, is_worker: bool, seconds: float) -> dict[str, Any]:
    """Where a process spends the next ``seconds``: rows of ``stacks`` with samples; threads that wait for work are ``idle``.

    Raises GetTimeoutError where no Python code can run.
    """
    stacks: Counter[tuple[str, tuple[Frame, ...]]] = Counter()
    idle = 0
    for thread, frames, samples in client.query("stacks", pid, seconds, timeout=seconds + STACKS_SECONDS):
        shown = () if is_idle_loop(frames) else frames_of_program(frames, is_worker)
        if shown:
            stacks[thread, shown] += samples
        else:
            idle += samples
    rows = [{"thread": thread, "frames": frames, "samples": samples} for (thread, frames), samples in stacks.items()]
    return {"pid": pid, "seconds": seconds, "idle": idle, "stacks": rows}


def _thread_report(thread: Thread, is_worker: bool, everything: bool) -> dict[str, Any]:
    name, runs, frames = thread
    return {
        "name": name,
        "runs": [{"name": task, "task_id": identifier.hex(), "seconds": span} for task, identifier, span in runs],
        "frames": [
            {"file": path, "line": line, "function": function, "source": linecache.getline(path, line).strip()[:200]}
            for path, line, function in (frames if everything else () if is_idle_loop(frames) else frames_of_program(frames, is_worker))
        ],
    }
