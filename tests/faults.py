"""Helpers for tests on a live session: patience, its processes, and ways to damage them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest

import zfabric as zf
from zfabric.adapters.spill import contents
from zfabric.runtime import interface
from zfabric.runtime.session import Session
from zfabric.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PATIENCE = 60.0
"""Seconds until an event that should come is taken for lost: generous, since the machine may be busy."""


LEASE = 4.0
"""Seconds of ``node_lease`` where a node dies: others wait for its end, and no living daemon is held up for so long by a busy machine."""


def eventually(condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> Any:
    """Wait for the first true value of ``condition``, and return it."""
    deadline = time.monotonic() + seconds
    while True:
        asked = time.monotonic()
        if found := condition():
            return found
        now = time.monotonic()
        assert now < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01 + now - asked)  # Conditions concern other processes, which raise no event here, and need the CPU meanwhile.


def next_line(output: IO[str] | None, seconds: float = PATIENCE) -> str:
    """The next line that a process prints, with its end; empty at the end of its output."""
    assert output is not None
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(output.readline()), daemon=True)  # It ends with the process, if it is late.
    reader.start()
    reader.join(seconds)
    assert found, f"no line within {seconds} s"
    return found[0]


def on_node(node: Any, soft: bool = False) -> NodeAffinitySchedulingStrategy:
    """The strategy of what is to run on a node, given as a LocalNode or by its id; with ``soft`` it goes elsewhere once that is gone."""
    return NodeAffinitySchedulingStrategy(getattr(node, "node_id", node), soft=soft)


def restore(cluster: zf.LocalCluster, count: int) -> None:
    """Have this program's cluster consist of ``count`` nodes again: replace those that left it or died, and end those above."""

    def is_whole() -> bool:
        registered = {row["NodeID"] for row in zf.nodes()}
        stayed = [node for node in cluster.nodes if node.node_id in registered]
        for node in [*(node for node in cluster.nodes if node not in stayed), *stayed[count:]]:
            cluster.remove_node(node)
        while len(cluster.nodes) < count:
            cluster.add_node()
        return registered == {node.node_id for node in cluster.nodes}

    eventually(is_whole, "its nodes are registered, and no others")


def failure(ref: Any, timeout: float = PATIENCE) -> BaseException:
    """The exception that ``get`` of this ref raises."""
    with pytest.raises(BaseException) as caught:
        zf.get(ref, timeout=timeout)
    assert not isinstance(caught.value, zf.GetTimeoutError), "nothing came at all"
    return caught.value


def taken(refs: Any) -> Iterator[Any]:
    """The refs of a stream, or those of a list: one that stands still is an error, and not waited for until the test is ended."""
    if not isinstance(refs, zf.ObjectRefGenerator):
        yield from refs
        return
    with suppress(StopIteration):
        while True:
            yield refs.next(timeout=PATIENCE)


def query(what: str, *arguments: Any) -> Any:
    """The answer of the node's daemon to a query."""
    client = interface.current()
    assert client is not None
    return client.query(what, *arguments, timeout=PATIENCE)


@contextmanager
def patient_queries() -> Iterator[None]:
    """Have this program wait for each answer of a busy daemon, also where it would wait a moment: for the reason in an error of ``get``."""
    client: Any = interface.current()
    right = client.query
    client.query = lambda *what, timeout=PATIENCE: right(*what, timeout=PATIENCE)
    try:
        yield
    finally:
        del client.query


def worker_rows() -> tuple[dict[str, Any], ...]:
    """The workers as the daemon lists them."""
    return tuple(query("workers"))


def worker_pids() -> set[int]:
    """The processes of the workers, once none is being started: until then its row has pid 0, which to ``os.kill`` is this whole run."""
    found: set[int] = eventually(lambda: 0 not in (pids := {row["pid"] for row in worker_rows()}) and pids, "all workers have started")
    return found


def session() -> Session:
    """The session this program is connected to."""
    found: Session = interface.current().session  # type: ignore[union-attr]
    return found


def name_of(pid: int) -> str:
    """The name of a process; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    """All processes below this one."""
    found = []
    agenda = [pid]
    while agenda:
        parent = agenda.pop()
        try:
            children = [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
        except OSError:
            continue
        found += children
        agenda += children
    return found


def session_processes() -> dict[int, str]:
    """The supervisor of the session and all below it, with their names."""
    supervisor = int(session().describe()["supervisor"])
    return {pid: name_of(pid) for pid in (supervisor, *descendants(supervisor))}


def processes_named(name: str) -> list[int]:
    """Living processes of the session with this name ("zf-daemon", "zf-worker", ...): one that was killed may not have been reaped yet."""
    return [pid for pid, found in session_processes().items() if found == name and not gone(pid)]


def kill_daemon(number: int = signal.SIGKILL) -> int:
    """Send a signal to the node's daemon; its pid."""
    pid: int = eventually(lambda: processes_named("zf-daemon"), "there is a daemon")[0]
    os.kill(pid, number)
    return pid


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def in_own_mounts(mount: str, script: str, *arguments: str) -> None:
    """Run a program where ``mount`` was done for it alone: a private mount namespace, of a user namespace unless we are root."""
    command = ["unshare", "--mount"] + ([] if os.geteuid() == 0 else ["--user", "--map-root-user"])
    done = subprocess.run(
        [*command, "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        cwd=Path(__file__).parent,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},  # what could not be written stays buffered
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def objects_on_disk() -> dict[str, Path]:
    """The files of spilled objects of this session's node, by object id as ``ObjectRef.hex`` gives it."""
    return {contents(str(path))[0].hex(): path for path in Path(session().describe()["spill"]).glob("*.object")}


def damage_what_is_on_disk(names: set[str], most: int = 4) -> set[str]:
    """Truncate the files of some of these objects that were spilled, and return their ids."""
    spilled = eventually(lambda: {each: path for each, path in objects_on_disk().items() if each in names}, "something was spilled")
    damaged = sorted(spilled)[:most]
    for each in damaged:
        spilled[each].write_bytes(b"")
    return set(damaged)
