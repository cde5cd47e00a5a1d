"""Stacks of every process of a cluster, with running times, as plain data."""

from __future__ import annotations

import linecache
from collections import Counter
from typing import Any

from zfabric.exceptions import FabricError, GetTimeoutError
from zfabric.runtime.activity import activity_of
from zfabric.runtime.session import Session
from zfabric.runtime.stacks import Frame, Thread, dump_path, dumped_threads, frames_of_program, is_idle_loop
from zfabric.runtime.timeline import Asker, TimelineNode

ANSWER_SECONDS = 2.5
"""A driver polls for requests once a second."""
DUMP_SECONDS = 2.0


def processes_of(node: TimelineNode, subject: bytes = b"") -> list[tuple[int, dict[str, Any] | None]]:
    """A node's drivers and workers, or that of ``subject`` (an id), with workers' rows.

    Raises FabricError if the node does not answer.
    """
    pids = node.asker.query("processes", subject)
    workers = {row["pid"]: row for row in node.asker.query("workers") if row.get("node", node.name) == node.name} if pids else {}
    return [(pid, workers.get(pid)) for pid in pids]


def process_report(session: Session, client: Asker, pid: int, worker: dict[str, Any] | None, everything: bool) -> dict[str, Any]:
    """A process's report of its threads, or a dump if it does not answer."""
    answers = True
    threads: tuple[Thread, ...] = ()
    try:
        threads = client.query("stacks", pid, timeout=ANSWER_SECONDS)
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
    for thread, frames, samples in client.query("stacks", pid, seconds, timeout=seconds + ANSWER_SECONDS):
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
