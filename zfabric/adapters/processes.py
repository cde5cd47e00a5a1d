"""Processes and the machine as the operating system sees them. Linux only.

A child has its pid until we reap it. Any other process is named by (pid, start ticks) and referred to by a pidfd. Limits are those of this
process: CPU affinity and control groups (both versions).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import glob
import math
import os
import re
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import NoReturn

STACK_BYTES = 512 * 2**20
"""Stack bytes of a worker's main thread: room for 1,500 nested tasks. Only touched pages use memory."""
LEVEL_BYTES = 4096
"""Stack bytes per level of recursion as the interpreter counts levels: 400 through ``map``, 2,500 through a sort's key, at most 3,600
measured.
"""
THREAD_STACK_BYTES = 8 * 2**20
"""Stack bytes of a worker's thread where memory must not be reserved: Linux's usual default."""
WORKER_OOM_SCORE = 500
"""Makes the out-of-memory killer prefer workers to the processes that would retry their tasks."""

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int | bytes) -> None:
    value = argument if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    if _libc.prctl(option, value, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


# --- this process -----------------------------------------------------------------------------------------------------------


def set_name(name: str) -> None:
    """Set this process's name in ``ps`` and ``top`` (first 15 bytes)."""
    _prctl(_PR_SET_NAME, name.encode()[:15] + b"\0")


def become_subreaper() -> None:
    """Make orphaned descendants children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have this process killed when ``parent`` ends; exit if it has. Call this once the parent is final."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def thread_count() -> int:
    """Return the number of threads, also of those not started by Python."""
    return len(os.listdir("/proc/self/task"))


def redirect(output: str, errors: str) -> None:
    """Read ``/dev/null``; append standard output and error to files, line by line."""
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


FILES_WANTED = 65_536
"""Open files that a process asks for if strangers can connect: each takes one until refused."""


def open_files_max() -> int:
    """Return this process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def open_more_files() -> None:
    """Raise this process's limit of open files, up to ``FILES_WANTED``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def threads_max() -> int:
    """Return how many processes and threads this user may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return sys.maxsize if soft == resource.RLIM_INFINITY or not os.geteuid() else soft


def why_no_process(error: OSError) -> str:
    """Explain a failed fork."""
    hint = f": this user may have {threads_max():,} processes and threads (ulimit -u)" if error.errno == errno.EAGAIN else ""
    return f"fork: {error.strerror}{hint}"


def working_directory() -> str:
    """Return the working directory; empty if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def module_paths() -> tuple[str, ...]:
    """Return absolute import paths, without those in a deleted directory."""
    here = working_directory()
    return tuple(os.path.normpath(os.path.join(here, path)) for path in sys.path if here or os.path.isabs(path))


def limit_worker() -> None:
    """Set a worker's limits: deep stack, no core dumps, first choice of the out-of-memory killer."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    soft = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(WORKER_OOM_SCORE))
    except OSError:  # Some containers forbid it.
        pass


def deepen_thread_stacks(wanted: int) -> int:
    """Give later threads stacks of ``wanted`` bytes, or of ``THREAD_STACK_BYTES`` where address space is scarce. Return the smallest
    stack's bytes.
    """
    counted = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY or _read("/proc/sys/vm/overcommit_memory").strip() == "2"
    size = THREAD_STACK_BYTES if counted else max(wanted, THREAD_STACK_BYTES)
    threading.stack_size(size)
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return min(size, main_stack_room(), sys.maxsize if soft == resource.RLIM_INFINITY else soft)


@functools.cache
def main_stack_room() -> int:
    """Return how many bytes the main thread's stack can have before other memory. Forked processes need not look again."""
    below = 0
    for line in _read("/proc/self/maps").splitlines():
        _, _, end = line.split(maxsplit=1)[0].partition("-")
        if line.endswith("[stack]"):
            return int(end, 16) - below
        below = int(end, 16)
    return sys.maxsize  # Its stack has no name here, as after a fork from a thread.


def run_and_exit(body: Callable[[], object]) -> NoReturn:
    """Run ``body``, then exit this forked process without returning to the caller."""
    code = 1
    try:
        body()
        code = 0
    except BaseException as error:  # The caller's frames belong to the parent.
        code = _exit_code(error)
    finally:
        try:
            flush_output()
        finally:
            os._exit(code & 0xFF)


def exit_as_interpreter(error: BaseException | None) -> NoReturn:
    """End this forked process as the interpreter would, with ``error`` shown, threads joined and exit handlers run."""
    import atexit  # Only forked children of workers need them.
    import threading

    code = 1
    try:
        code = 0 if error is None else _exit_code(error)
        with contextlib.suppress(Exception):  # Python did not start the forking thread.
            threading._shutdown()  # type: ignore[attr-defined]  # As the interpreter and ``multiprocessing`` do.
        atexit._run_exitfuncs()
        flush_output()
        if isinstance(error, KeyboardInterrupt):  # The parent sees that it was interrupted.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        os._exit(code & 0xFF)


def _exit_code(error: BaseException) -> int:
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def flush_output() -> None:
    """Flush standard output and error. A full disk raises no error."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # User code may have replaced the stream by one that raises anything.
            stream.flush()


# --- other processes --------------------------------------------------------------------------------------------------------


def start_ticks(pid: int) -> int:
    """Return a process's start in clock ticks since boot, 0 if it has ended: with the pid its identity."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return 0
    return int(text[text.rindex(b")") + 2 :].split()[19])


def open_pidfd(pid: int, started: int = 0) -> int | None:
    """Open a pidfd; None if the process has ended, or did not start at ``started`` (0: any)."""
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, OSError):
        return None
    if started and start_ticks(pid) != started:
        os.close(descriptor)
        return None
    return descriptor


def wait_pidfd(descriptor: int, timeout: float) -> bool:
    """Wait up to ``timeout`` seconds for a process's end; return whether it came."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout) * 1000))


def signal_pidfd(descriptor: int, number: int) -> bool:
    """Send a signal. Return False if the process has ended."""
    try:
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    return True


def kill_group(pid: int) -> None:
    """Send SIGKILL to an unreaped child of ours and its process group."""
    _signal_group(pid, signal.SIGKILL)


def stop_group(pid: int, stopped: bool) -> None:
    """Stop or continue an unreaped child of ours and its process group."""
    _signal_group(pid, signal.SIGSTOP if stopped else signal.SIGCONT)


def _signal_group(pid: int, number: int) -> None:
    if pid <= 1:  # To the kernel, 0 is our own group and -1 every process of this user.
        raise ValueError(f"{pid} is no child of ours")
    for kill in (os.kill, os.killpg):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # It leads no group yet, or only set-uid programs are left in it.
            kill(pid, number)


def children(pid: int) -> list[int]:
    """Return the pids of a process's children, zombies included."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(int(name)) == pid]


def descendants(pid: int) -> list[int]:
    """Return the pids of a process and of its living descendants."""
    found = [pid]
    for each in found:
        found += children(each)
    return found


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return 0
    return int(text[text.rindex(b")") + 2 :].split()[1])


def kill_children(timeout: float = 5.0) -> None:
    """Kill and reap every child, also later ones, until none is left."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        for child in children(os.getpid()):
            kill_group(child)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.001)  # The kernel does not notify us of new children.
        except ChildProcessError:
            return


def return_free_memory() -> None:
    """Return freed memory to the system: glibc retains what is not at the end of its heap."""
    with contextlib.suppress(AttributeError):  # Other libraries do without.
        _libc.malloc_trim(0)


def retain_free_memory(block: int, total: int) -> None:
    """Have glibc retain freed blocks of up to ``block`` bytes, and ``total`` bytes at each heap's end."""
    with contextlib.suppress(AttributeError):  # as above
        _libc.mallopt(_M_MMAP_THRESHOLD, block)
        _libc.mallopt(_M_TRIM_THRESHOLD, total)


def resident_bytes(pid: int) -> int:
    """Return resident bytes without pages of files and the arena; 0 if the process has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            fields = file.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * resource.getpagesize()


# --- the machine, as far as this process may use it ---------------------------------------------------------------------------


def disk_room(path: str) -> tuple[int, int]:
    """Return (free bytes, all bytes) of a path's disk; zeros if it is gone."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def cpu_count() -> int:
    """Return how many CPUs this process may use; a part of a CPU counts as one."""
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
    """Return the GPUs in ``CUDA_VISIBLE_DEVICES``; None if it is not set."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    names = [name.strip() for name in visible.split(",")]
    return tuple(names[: next((position for position, name in enumerate(names) if name in ("", "-1", "NoDevFiles")), len(names))])


def gpu_count() -> int:
    """Return how many NVIDIA GPUs this process may use."""
    visible = visible_gpus()
    if visible is not None:
        return len(visible)
    return sum(name.startswith("nvidia") and name[6:].isdigit() for name in os.listdir("/dev"))


def gpu_model(directory: str = "/proc/driver/nvidia/gpus") -> str:
    """Return the NVIDIA GPU model, such as "A100"; empty if there is none, or several."""
    models = set()
    for file in glob.glob(f"{directory}/*/information"):
        with contextlib.suppress(OSError), open(file) as lines:
            found = re.search(r"^Model:.*?\b([A-Z]{1,3}\d+[A-Z]?)\b", lines.read(), re.MULTILINE)
            models.add(found[1] if found else "")
    return models.pop() if len(models) == 1 else ""


def memory_total() -> int:
    """Return usable memory in bytes: the machine's, or a control group's limit."""
    total = _machine_memory()["MemTotal"]
    return min([total, *(limit for limit, _ in _memory_groups())])


def memory_available() -> int:
    """Return bytes that can be allocated without swapping or reaching a limit. Raises OSError without a free descriptor."""
    memory = _machine_memory()
    available = memory.get("MemAvailable", memory["MemFree"])
    return max(0, min([available, *(limit - used for limit, used in _memory_groups())]))


def memory_share() -> float:
    """Return the share of memory in use, without control groups, which are slow to read. Raises OSError without a free descriptor."""
    memory = _machine_memory()
    return 1.0 - memory.get("MemAvailable", memory["MemFree"]) / memory["MemTotal"]


def processor_times() -> tuple[int, int]:
    """Return (busy, total) ticks of the processors since boot. Raises OSError without a free descriptor."""
    times = [int(each) for each in _read("/proc/stat").partition("\n")[0].split()[1:9]]
    idle = sum(times[3:5])  # Waiting for a disk is no work.
    return sum(times) - idle, sum(times)


def _machine_memory() -> dict[str, int]:
    fields = (line.split() for line in _read("/proc/meminfo").splitlines()[:8])
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields if len(field) >= 2}


def _memory_groups() -> Iterator[tuple[int, int]]:
    """Yield (limit, used memory that cannot be dropped) of each limited control group."""
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
    """Yield the directories of this process's control groups for ``controller``, innermost first."""
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
    """Return a kernel file's content, or nothing if it is missing. Raises OSError without a free descriptor."""
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return ""
