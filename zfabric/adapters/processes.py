"""The operating system's view of processes and of the machine: identity, death, memory, limits. Linux only.

A pid names a process only until it is reaped. So a process that is not a child of ours is named by (pid, start ticks)
and held by a pidfd; a child of ours keeps its pid until we reap it. Limits are those of this process: its CPU affinity
and the control groups around it (both versions of them), not those of the hardware.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

STACK_BYTES = 512 * 2**20
"""Stack of a worker's main thread: room for tasks that run on top of each other, 1,500 deep. Only touched pages cost memory."""
WORKER_OOM_SCORE = 500
"""The kernel's out-of-memory killer takes workers before the processes that would notice and retry."""

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int | bytes) -> None:
    value = argument if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    if _libc.prctl(option, value, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


# --- this process -----------------------------------------------------------------------------------------------------------


def set_name(name: str) -> None:
    """The name of this process (its first 15 bytes) in ``ps`` and ``top``."""
    _prctl(_PR_SET_NAME, name.encode()[:15] + b"\0")


def become_subreaper() -> None:
    """From now on, descendants whose parent ended become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Be killed when ``parent`` ends; end now if it already has. Call it after the process got its final parent."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def thread_count() -> int:
    """Number of threads of this process, including those that Python does not know."""
    return len(os.listdir("/proc/self/task"))


def redirect(output: str, errors: str) -> None:
    """Make ``/dev/null`` the standard input and append standard output and error to these files, line by line."""
    flush_output()
    for path, flags, number in (
        (os.devnull, os.O_RDONLY, 0),
        (output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 1),
        (errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 2),
    ):
        descriptor = os.open(path, flags, 0o600)
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.set_inheritable(number, True)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def open_files_max() -> int:
    """How many files this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def threads_max() -> int:
    """How many processes and threads this user may have; root may have any number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return sys.maxsize if soft == resource.RLIM_INFINITY or not os.geteuid() else soft


def why_no_process(error: OSError) -> str:
    """Return the error text about a failed fork."""
    hint = f": this user may have {threads_max():,} processes and threads (ulimit -u)" if error.errno == errno.EAGAIN else ""
    return f"fork: {error.strerror}{hint}"


def working_directory() -> str:
    """The working directory of this process; empty if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def module_paths() -> tuple[str, ...]:
    """The absolute paths where this process finds its modules. A path relative to a deleted working directory leads nowhere."""
    here = working_directory()
    return tuple(os.path.normpath(os.path.join(here, path)) for path in sys.path if here or os.path.isabs(path))


def limit_worker() -> None:
    """Limits of a process that runs user code: a deep stack, no core dumps, first choice of the out-of-memory killer."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    soft = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(WORKER_OOM_SCORE))
    except OSError:  # some containers forbid it; it is a preference, nothing depends on it
        pass


def run_and_exit(body: Callable[[], object]) -> NoReturn:
    """Run ``body`` as the rest of this forked process: nothing of the caller's frames runs after it."""
    code = 1
    try:
        body()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:  # nothing may go on in the frames of the process that was forked
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            flush_output()
        finally:
            os._exit(code & 0xFF)


def flush_output() -> None:
    """Flush standard output and error. On a full disk they stay unwritten, and no error is raised."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


# --- other processes --------------------------------------------------------------------------------------------------------


def start_ticks(pid: int) -> int:
    """When the process started, in clock ticks since boot; with the pid, its identity. 0 if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return 0
    return int(text[text.rindex(b")") + 2 :].split()[19])


def open_pidfd(pid: int, started: int = 0) -> int | None:
    """A pidfd of the process; None if it is gone, or did not start at ``started`` (0: any)."""
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, OSError):
        return None
    if started and start_ticks(pid) != started:
        os.close(descriptor)
        return None
    return descriptor


def wait_pidfd(descriptor: int, timeout: float) -> bool:
    """Whether the process ended, after at most ``timeout`` seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout) * 1000))


def signal_pidfd(descriptor: int, number: int) -> bool:
    """Send the signal; False if the process is gone."""
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    return True


def kill_group(pid: int) -> None:
    """SIGKILL to a child of ours that was not reaped yet, and to the process group it leads."""
    for kill in (os.kill, os.killpg):
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # not a group leader (yet), or nothing but set-uid programs left in it
            pass


def children(pid: int) -> list[int]:
    """The children of a process, zombies included."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(int(name)) == pid]


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return 0
    return int(text[text.rindex(b")") + 2 :].split()[1])


def kill_children(timeout: float = 5.0) -> None:
    """Kill and reap every child of this process, and processes that become its children meanwhile, until none is left."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        for child in children(os.getpid()):
            kill_group(child)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.001)  # The kernel does not notify us of new children; this lasts until it has killed all.
        except ChildProcessError:
            return


def resident_bytes(pid: int) -> int:
    """Memory that is this process's own (resident, not counting pages of files and of the arena); 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            fields = file.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * resource.getpagesize()


# --- the machine, as far as this process may use it ---------------------------------------------------------------------------


def cpu_count() -> int:
    """CPUs this process may use: its affinity, and the quotas of its control groups (a part of a CPU counts as one)."""
    count = float(len(os.sched_getaffinity(0)))
    for directory in _control_groups("cpu"):
        quota = _read(f"{directory}/cpu.max").split() or [
            _read(f"{directory}/cpu.cfs_quota_us").strip(),
            _read(f"{directory}/cpu.cfs_period_us").strip(),
        ]
        if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]):
            count = min(count, int(quota[0]) / int(quota[1]))
    return max(1, math.ceil(count))


def visible_gpus() -> tuple[str, ...] | None:
    """The names of the GPUs in ``CUDA_VISIBLE_DEVICES``; None if it is not set, and all may be used."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    names = [name.strip() for name in visible.split(",")]
    return tuple(names[: next((position for position, name in enumerate(names) if name in ("", "-1", "NoDevFiles")), len(names))])


def gpu_count() -> int:
    """NVIDIA GPUs this process may use: those ``CUDA_VISIBLE_DEVICES`` names, or all the machine has."""
    visible = visible_gpus()
    if visible is not None:
        return len(visible)
    return sum(name.startswith("nvidia") and name[6:].isdigit() for name in os.listdir("/dev"))


def memory_total() -> int:
    """Memory this process and its like may use, in bytes: the machine's, or the least limit of the control groups around it."""
    total = _machine_memory()["MemTotal"]
    return min([total, *(limit for limit, _ in _memory_groups())])


def memory_available() -> int:
    """Memory that can still be taken without swapping or hitting a limit, in bytes."""
    memory = _machine_memory()
    available = memory.get("MemAvailable", memory["MemFree"])
    return max(0, min([available, *(limit - used for limit, used in _memory_groups())]))


def _machine_memory() -> dict[str, int]:
    fields = (line.split() for line in _read("/proc/meminfo").splitlines()[:8])
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields if len(field) >= 2}


def _memory_groups() -> Iterator[tuple[int, int]]:
    """(limit, memory in use that cannot be dropped) of each control group around this process that has a limit."""
    for directory in _control_groups("memory"):
        for limit_name, used_name, cache_name in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, used = _read(f"{directory}/{limit_name}").strip(), _read(f"{directory}/{used_name}").strip()
            if limit.isdigit() and used.isdigit():
                statistics = dict(line.split(maxsplit=1) for line in _read(f"{directory}/memory.stat").splitlines())
                yield int(limit), max(0, int(used) - int(statistics.get(cache_name, "0")))


def _control_groups(controller: str) -> Iterator[str]:
    """The directories of this process's control groups for ``controller``, innermost first."""
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        mount = f"/sys/fs/cgroup/{controller}" if controllers else "/sys/fs/cgroup"
        path = path.rstrip("/")
        while True:
            if os.path.isdir(mount + path):
                yield mount + path
            if not path:
                break
            path = path.rpartition("/")[0]


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
