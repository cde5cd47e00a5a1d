"""Start, hurt, restart and stop clusters many times, and account for what is left: processes, descriptors, memory, files.

``scripts/soak --cycles 500`` runs long campaigns; ``test_leaks.py`` runs a few cycles of each kind of the same code. The account is
taken after a first round of cycles (imports, caches and pools are made once) and after the last: both must be the same.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from faults import PATIENCE, descendants, eventually, gone, kill_daemon, name_of, processes_named, session, session_processes

import zfabric as zf
from zfabric.runtime.session import user_directory

WARM_UP = 2
"""Cycles before the first account is taken."""
OPENED_LATER = 5
"""Descriptors that a worker or daemon opens on first use: the arena, connections. Two of a kind differ by these, and by no more."""
LAZY = ("zf-daemon", "zf-worker")
WIDE = 40_000
"""Bytes of a value that travels in a message, two of which are more than a datagram takes."""


@zf.remote
def double(x: int) -> int:
    return 2 * x


@zf.remote
def make(number: int) -> Any:
    return np.full(50_000, number)


@zf.remote(num_returns=2)
def wide() -> Any:
    return bytes(WIDE), bytes(WIDE)


# --- what there is ------------------------------------------------------------------------------------------------------------------


def descriptors(pid: int) -> Counter[str]:
    """The open descriptors of a process by what they are, without the numbers that tell two of a kind apart."""
    found: Counter[str] = Counter()
    try:
        entries = list(Path(f"/proc/{pid}/fd").iterdir())
    except FileNotFoundError:  # It has just ended; who counts until nothing changes counts again.
        return found
    for entry in entries:
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        if "/proc/" not in target:
            found[re.sub(r"[0-9a-f]{8,}|\d+", "#", target)] += 1
    return found


def outside() -> dict[str, Any]:
    """What this process and its clusters have on the machine."""
    parent = Path(user_directory())
    return {
        "descriptors": descriptors(os.getpid()),
        "threads": threading.active_count(),
        "processes": Counter(name_of(pid) for pid in descendants(os.getpid()) if not gone(pid)),
        "shared memory": sorted(path.name for path in Path("/dev/shm").glob("zfabric*")),
        "sessions": sorted(path.name for path in parent.iterdir() if path.name.startswith(("s-", "dead-"))),
        "temporary files": sorted(path.name for path in parent.parent.glob("z*")),
    }


def inside() -> dict[str, Any]:
    """What the session this process is connected to consists of."""
    directory = Path(session().directory)
    files = Counter(str(path.parent.relative_to(directory)) for path in directory.rglob("*") if "logs" not in path.parts)
    pids = session_processes()
    return {
        **outside(),
        "processes": Counter(pids.values()),
        "files": files,
        **{
            name: Counter(tuple(sorted(descriptors(pid).items())) for pid, found in pids.items() if found == name)
            for name in sorted(set(pids.values()) - set(LAZY))
        },
    }


def most() -> dict[str, int]:
    """The most descriptors that any worker, and any daemon, of the session has."""
    return {name: max((sum(descriptors(pid).values()) for pid in processes_named(name)), default=0) for name in LAZY}


def settled(take: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """An account that no longer changes."""
    accounts = [take()]

    def same() -> bool:
        time.sleep(0.05)  # an account is read from /proc, which raises no event
        accounts.append(take())
        return accounts[-1] == accounts[-2]

    eventually(same, "things calm down")
    return accounts[-1]


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What has changed, in words."""
    return [f"{name}: {before.get(name)} -> {after.get(name)}" for name in {**before, **after} if before.get(name) != after.get(name)]


# --- cycles -------------------------------------------------------------------------------------------------------------------------


def work() -> None:
    """A little of everything."""
    refs = [double.remote(index) for index in range(200)]
    arrays = [make.remote(index) for index in range(3)]
    put = zf.put(np.ones(50_000))
    assert zf.get(refs, timeout=PATIENCE) == [2 * index for index in range(200)]
    assert [int(array[0]) for array in zf.get(arrays, timeout=PATIENCE)] == [0, 1, 2]
    assert zf.get(put).sum() == 50_000
    # Messages of this length have connections of their own, made with the first of them: so they are there before any account.
    assert list(map(len, zf.get(wide.remote(), timeout=PATIENCE))) == [WIDE, WIDE]


def start_and_stop() -> None:
    """A cluster begins, works, and ends."""
    zf.init(num_cpus=2, log_to_driver=False)
    work()
    zf.shutdown()


def kill_and_stop() -> None:
    """A cluster begins, loses its supervisor under work, and is left for a new one."""
    zf.init(num_cpus=2, log_to_driver=False)
    ref = double.remote(1)
    supervisor = int(session().describe()["supervisor"])
    os.kill(supervisor, signal.SIGKILL)
    try:
        zf.get(ref, timeout=PATIENCE)
    except zf.NodeDiedError:
        pass
    zf.shutdown()


DRIVER = """
import sys
sys.path.insert(0, {path!r})
import soak, time, zfabric as zf
zf.init(num_cpus=2, log_to_driver=False)
soak.work()
print(*soak.session_processes(), flush=True)
refs = [zf.remote(lambda: time.sleep(1000)).remote() for _ in range(4)]
time.sleep(1000)
"""


def kill_a_driver() -> None:
    """A program with a cluster of its own is killed."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER.format(path=str(Path(__file__).parent))], stdout=subprocess.PIPE, text=True)
    with driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert pids
        driver.kill()
    eventually(lambda: all(gone(pid) for pid in pids), "all its processes have ended")


def kill_the_daemon() -> None:
    """The daemon is killed under work."""
    refs = [double.remote(index) for index in range(500)]
    kill_daemon()
    assert zf.get(refs, timeout=PATIENCE) == [2 * index for index in range(500)]
    work()


def kill_a_worker() -> None:
    """A worker is killed under work."""
    refs = [double.remote(index) for index in range(500)]
    workers = processes_named("zf-worker")
    if workers:
        os.kill(random.choice(workers), signal.SIGKILL)
    assert zf.get(refs, timeout=PATIENCE) == [2 * index for index in range(500)]
    work()
    eventually(lambda: len(processes_named("zf-worker")) >= 2, "the worker is replaced")


WHOLE = {"start": start_and_stop, "kill": kill_and_stop, "driver": kill_a_driver}
"""Kinds of cycles that begin and end without a cluster."""
WITHIN = {"daemon": kill_the_daemon, "worker": kill_a_worker}
"""Kinds of cycles inside one cluster."""


@contextmanager
def surroundings(kind: str) -> Iterator[Callable[[], dict[str, Any]]]:
    """What a kind of cycles needs around it; gives what takes its account."""
    if kind in WHOLE:
        yield outside
    else:
        zf.init(num_cpus=2, log_to_driver=False, config={"restart_backoff_max": 0.02})
        try:
            yield inside
        finally:
            zf.shutdown()


def run(kind: str, cycles: int, report: Callable[[str], None] = lambda text: None) -> list[str]:
    """Run cycles of one kind; what they left behind, in words."""
    body = WHOLE.get(kind) or WITHIN[kind]
    with surroundings(kind) as take:
        for _ in range(WARM_UP):
            body()
        before = settled(take)
        at_most = most() if kind in WITHIN else {}
        for number in range(cycles):
            body()
            report(f"{kind}: {number + 1} of {cycles}")
        deadline = time.monotonic() + 30
        while (left := differences(before, settled(take))) and time.monotonic() < deadline:
            time.sleep(0.2)  # the kernel and the collector take their time
        for name, count in (most() if kind in WITHIN else {}).items():
            if count > at_most[name] + OPENED_LATER:
                left.append(f"descriptors of a {name}: {at_most[name]} -> {count}")
        return left


def main() -> None:
    parser = argparse.ArgumentParser(description="Start, hurt and stop clusters many times, and account for what is left.")
    parser.add_argument("--cycles", type=int, default=500, help="cycles of all kinds together (500)")
    parser.add_argument("--kinds", nargs="+", choices=[*WHOLE, *WITHIN], default=[*WHOLE, *WITHIN], help="kinds of cycles (all)")
    options = parser.parse_args()
    failed = False
    os.environ["TMPDIR"] = directory = tempfile.mkdtemp(prefix="zfs-", dir="/tmp")  # so that no other cluster of this user is counted
    for kind in options.kinds:
        begun = time.monotonic()
        cycles = -(-options.cycles // len(options.kinds))
        left = run(kind, cycles, lambda text: print(f"\r{text} ", end="", file=sys.stderr, flush=True))
        verdict = f"left behind: {'; '.join(left)}" if left else "nothing left behind"
        print(f"\r{kind}: {cycles} cycles in {time.monotonic() - begun:.0f} s; {verdict}")
        failed = failed or bool(left)
    shutil.rmtree(directory)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
