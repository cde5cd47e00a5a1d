"""Facts about this machine and, from the kernel, about processes: CPU time, memory, descent."""

from __future__ import annotations

import compileall
import mmap
import os
import platform
import subprocess
import time
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MiB = 2**20
LIBRARIES = ("pyzmq", "msgpack", "lmdb", "cloudpickle", "numpy")
_TICK = 1 / os.sysconf("SC_CLK_TCK")


def facts() -> dict[str, Any]:
    """The machine and the software, as far as a figure depends on them."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "last_level_cache_mib": last_level_cache() / MiB,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in LIBRARIES},
        "load_average": os.getloadavg()[0],
    }


def compile_package() -> None:
    """Compile the package, as installing it does, peers too: a start is to be measured, and not the compiler.

    A checkout is compiled as it is used, unless PYTHONDONTWRITEBYTECODE is set: then every process would do it again.
    """
    compileall.compile_dir(str(ROOT / "zfabric"), quiet=1)


def commit() -> str:
    """The commit of the source, with "+" if there are changes beside it; empty outside a repository."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()
        changes = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit + ("+" if changes else "")


def last_level_cache() -> int:
    """Size of the largest cache in bytes; 32 MiB if it is unknown."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) * {"K": 2**10, "M": 2**20, "G": 2**30}[text[-1]])
    return max(sizes, default=32 * MiB)


def touch_memory(size: int) -> float:
    """GB/s at which this machine hands out ``size`` bytes of memory; they are free again afterwards, and the machine has them."""
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        begin = time.perf_counter()
        for offset in range(0, size, mmap.PAGESIZE):
            memory[offset] = 1
        return size / (time.perf_counter() - begin) / 1e9


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


# --- processes --------------------------------------------------------------------------------------------------------------


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on; ``pid`` itself is not among them."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            parents.setdefault(int(text[text.rindex(")") + 2 :].split()[1]), []).append(int(name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def process_name(pid: int) -> str:
    """The name of a process as ``ps`` shows it; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process, in user mode and in the kernel; in steps of a clock tick (10 ms)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = text[text.rindex(")") + 2 :].split()
    return (int(fields[11]) + int(fields[12])) * _TICK


def cpu_seconds_fine(pids: Iterable[int]) -> float:
    """CPU time of all threads of these processes in steps of nanoseconds; threads that have ended do not count."""
    total = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(path.read_text().split()[0])
            except OSError:
                continue
    return total / 1e9


def unique_bytes(pid: int) -> int:
    """Memory that would come free if this process ended: private pages of its private mappings (USS).

    Not those of the arena: its file keeps them. Which of them a process has mapped is chance, too, since the daemon maps huge pages when it
    makes them, and small ones never.
    """
    total = 0
    try:
        lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        name, *fields = line.split()
        if not name.endswith(":"):  # "7f86…-7f87… rw-p …": a mapping begins.
            shared = fields[0].endswith("s")
        elif name.startswith("Private_") and not shared:
            total += int(fields[0]) * 1024
    return total


def status_bytes(pid: int, field: str) -> int:
    """A size of ``/proc/<pid>/status`` in bytes: "RssAnon" (its heap), "VmHWM" (the most it ever had resident)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def wait_until_quiet(pids: Iterable[int], seconds: float = 0.3, timeout: float = 60.0) -> None:
    """Return once these processes took less than a hundredth of a core for ``seconds``."""
    pids = list(pids)
    end = time.monotonic() + timeout
    before = cpu_seconds_fine(pids)
    while time.monotonic() < end:
        time.sleep(seconds)  # what is measured is time
        after = cpu_seconds_fine(pids)
        if after - before < seconds * 0.01 * len(pids):
            return
        before = after
