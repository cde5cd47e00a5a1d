"""The operating system's view of processes and of the machine: identity, death, memory, limits. Linux only.

A pid names a process only until it is reaped. A child of ours has its pid until we reap it. Any other process is named by
(pid, start ticks), and referred to by a pidfd. Limits are those of this process: its CPU affinity and its control groups (of
both versions), not those of the hardware.
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
"""Stack size of a worker's main thread in bytes: room for 1,500 tasks on top of each other. Only touched pages use memory."""
LEVEL_BYTES = 4096
"""Stack in bytes that one level of recursion takes, as the interpreter counts levels: 400 through ``map`` or ``__init__``, 2,500 through
the key of a sort, and at most 3,600 measured (an ``__array_ufunc__`` of numpy that calls its ufunc).
"""
THREAD_STACK_BYTES = 8 * 2**20
"""Stack of a worker's thread in bytes where memory must not be reserved: the usual default of Linux."""
WORKER_OOM_SCORE = 500
"""Makes the kernel's out-of-memory killer choose workers rather than the processes that would retry their tasks."""

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
    """Set the name of this process in ``ps`` and ``top`` (the first 15 bytes)."""
    _prctl(_PR_SET_NAME, name.encode()[:15] + b"\0")


def become_subreaper() -> None:
    """Make descendants whose parent has ended children of this process, from now on."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Have this process killed when ``parent`` ends; exit if it has ended. Call this once the process has its final parent."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def thread_count() -> int:
    """Return the number of threads of this process, including those not started by Python."""
    return len(os.listdir("/proc/self/task"))


def redirect(output: str, errors: str) -> None:
    """Make ``/dev/null`` the standard input; append standard output and error to these files, line by line."""
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
"""Open files that a process asks for to which strangers can connect: each connection takes one until it is refused."""


def open_files_max() -> int:
    """Return how many files this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def open_more_files() -> None:
    """Let this process open as many files as it is allowed to, within reason."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, FILES_WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def threads_max() -> int:
    """Return how many processes and threads this user may have; root may have any number."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    return sys.maxsize if soft == resource.RLIM_INFINITY or not os.geteuid() else soft


def why_no_process(error: OSError) -> str:
    """Return the error text about a failed fork."""
    hint = f": this user may have {threads_max():,} processes and threads (ulimit -u)" if error.errno == errno.EAGAIN else ""
    return f"fork: {error.strerror}{hint}"


def working_directory() -> str:
    """Return the working directory of this process; empty if it was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def module_paths() -> tuple[str, ...]:
    """Return the absolute paths where this process finds modules, without paths relative to a deleted working directory."""
    here = working_directory()
    return tuple(os.path.normpath(os.path.join(here, path)) for path in sys.path if here or os.path.isabs(path))


def limit_worker() -> None:
    """Set the limits of a process that runs user code: a deep stack, no core dumps, first choice of the out-of-memory killer."""
    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    soft = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(WORKER_OOM_SCORE))
    except OSError:  # Some containers forbid it. It is only a preference.
        pass


def deepen_thread_stacks(wanted: int) -> int:
    """Give the threads that this process starts from now on stacks of ``wanted`` bytes. Return the bytes of its smallest stack.

    A stack takes address space, and memory only where it is touched. Where address space is limited, or counts as memory, threads have
    ``THREAD_STACK_BYTES``. C libraries start threads with a default of their own.
    """
    counted = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY or _read("/proc/sys/vm/overcommit_memory").strip() == "2"
    size = THREAD_STACK_BYTES if counted else max(wanted, THREAD_STACK_BYTES)
    threading.stack_size(size)
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return min(size, main_stack_room(), sys.maxsize if soft == resource.RLIM_INFINITY else soft)


@functools.cache
def main_stack_room() -> int:
    """Return how many bytes the main thread's stack can have before it meets other memory, whatever its limit.

    The kernel places both at random when a program is loaded, so forked processes need not look again.
    """
    below = 0
    for line in _read("/proc/self/maps").splitlines():
        _, _, end = line.split(maxsplit=1)[0].partition("-")
        if line.endswith("[stack]"):
            return int(end, 16) - below
        below = int(end, 16)
    return sys.maxsize  # Its stack has no name here, as in a process that was forked from a thread.


def run_and_exit(body: Callable[[], object]) -> NoReturn:
    """Run ``body``, then exit this forked process without returning to the caller's frames."""
    code = 1
    try:
        body()
        code = 0
    except BaseException as error:  # The caller's frames belong to the forked process's parent and must not go on.
        code = _exit_code(error)
    finally:
        try:
            flush_output()
        finally:
            os._exit(code & 0xFF)


def exit_as_interpreter(error: BaseException | None) -> NoReturn:
    """End this forked process as the interpreter ends: with ``error`` shown, threads joined, exit handlers run, and the usual exit code.

    The frames of the caller do not go on, since they belong to the process's parent.
    """
    import atexit  # Only forked children of workers need them.
    import threading

    code = 1
    try:
        code = 0 if error is None else _exit_code(error)
        with contextlib.suppress(Exception):  # The thread that forked is none of Python's.
            threading._shutdown()  # type: ignore[attr-defined]  # As the interpreter and ``multiprocessing`` do.
        atexit._run_exitfuncs()
        flush_output()
        if isinstance(error, KeyboardInterrupt):  # The parent sees that it was interrupted.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        os._exit(code & 0xFF)


def _exit_code(error: BaseException) -> int:
    """Show an error that ends a process, and return the exit code that the interpreter gives it."""
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    if error.code is None or isinstance(error.code, int):
        return error.code or 0
    print(error.code, file=sys.stderr)
    return 1


def flush_output() -> None:
    """Flush standard output and error. On a full disk they stay unwritten, and no error is raised."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # User code may have replaced the stream by one that raises anything.
            stream.flush()


# --- other processes --------------------------------------------------------------------------------------------------------


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if there is none. With the pid it identifies a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return 0
    return int(text[text.rindex(b")") + 2 :].split()[19])


def open_pidfd(pid: int, started: int = 0) -> int | None:
    """Open a pidfd of a process. None if it has ended, or did not start at ``started`` (0: any time)."""
    try:
        descriptor = os.pidfd_open(pid)
    except (ProcessLookupError, OSError):
        return None
    if started and start_ticks(pid) != started:
        os.close(descriptor)
        return None
    return descriptor


def wait_pidfd(descriptor: int, timeout: float) -> bool:
    """Wait up to ``timeout`` seconds for the end of a process. Return whether it has ended."""
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
    """Send SIGKILL to an unreaped child of ours, and to the process group that it leads."""
    _signal_group(pid, signal.SIGKILL)


def stop_group(pid: int, stopped: bool) -> None:
    """Stop an unreaped child of ours, and the process group that it leads, or have them go on."""
    _signal_group(pid, signal.SIGSTOP if stopped else signal.SIGCONT)


def _signal_group(pid: int, number: int) -> None:
    if pid <= 1:  # To the kernel, 0 is our own group and -1 is every process of this user.
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
    """Return the pid of a process, and of all that descend from it and live."""
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


def return_free_memory() -> None:
    """Return memory of freed blocks to the system. glibc keeps what is not at the end of its heap: the room of large frames, for one."""
    with contextlib.suppress(AttributeError):  # Other libraries do without.
        _libc.malloc_trim(0)


def retain_free_memory(block: int, total: int) -> None:
    """Have glibc retain freed blocks of up to ``block`` bytes, and up to ``total`` bytes at the end of each heap.

    Else it returns them to the system, and the pages of each new block come from there.
    """
    with contextlib.suppress(AttributeError):  # as above
        _libc.mallopt(_M_MMAP_THRESHOLD, block)
        _libc.mallopt(_M_TRIM_THRESHOLD, total)


def resident_bytes(pid: int) -> int:
    """Return a process's own resident memory in bytes, without pages of files and of the arena; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            fields = file.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * resource.getpagesize()


# --- the machine, as far as this process may use it ---------------------------------------------------------------------------


def disk_room(path: str) -> tuple[int, int]:
    """Bytes that are free, and bytes in all, on the disk of a path; zeros if it is gone."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def cpu_count() -> int:
    """Return how many CPUs this process may use, by affinity and control groups. A part of a CPU counts as one."""
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
    """Return the names of the GPUs in ``CUDA_VISIBLE_DEVICES``; None if it is not set, and all may be used."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return None
    names = [name.strip() for name in visible.split(",")]
    return tuple(names[: next((position for position, name in enumerate(names) if name in ("", "-1", "NoDevFiles")), len(names))])


def gpu_count() -> int:
    """Return how many NVIDIA GPUs this process may use: those in ``CUDA_VISIBLE_DEVICES``, or all of the machine."""
    visible = visible_gpus()
    if visible is not None:
        return len(visible)
    return sum(name.startswith("nvidia") and name[6:].isdigit() for name in os.listdir("/dev"))


def gpu_model(directory: str = "/proc/driver/nvidia/gpus") -> str:
    """Return the model of this machine's NVIDIA GPUs, such as "A100"; empty where the driver says none, or several."""
    models = set()
    for file in glob.glob(f"{directory}/*/information"):
        with contextlib.suppress(OSError), open(file) as lines:
            found = re.search(r"^Model:.*?\b([A-Z]{1,3}\d+[A-Z]?)\b", lines.read(), re.MULTILINE)
            models.add(found[1] if found else "")
    return models.pop() if len(models) == 1 else ""


def memory_total() -> int:
    """Return the usable memory in bytes: that of the machine, or the least limit of this process's control groups."""
    total = _machine_memory()["MemTotal"]
    return min([total, *(limit for limit, _ in _memory_groups())])


def memory_available() -> int:
    """Return how many bytes of memory can be allocated without swapping or reaching a limit.

    Raises OSError if this process may open no further file: then nobody knows.
    """
    memory = _machine_memory()
    available = memory.get("MemAvailable", memory["MemFree"])
    return max(0, min([available, *(limit - used for limit, used in _memory_groups())]))


def memory_share() -> float:
    """Return the share of the machine's memory that is in use; limits of control groups, which take long to read, do not count.

    Raises OSError if this process may open no further file.
    """
    memory = _machine_memory()
    return 1.0 - memory.get("MemAvailable", memory["MemFree"]) / memory["MemTotal"]


def processor_times() -> tuple[int, int]:
    """Return how long the machine's processors have been busy, and how long they have been there, in ticks since it started.

    Raises OSError if this process may open no further file.
    """
    times = [int(each) for each in _read("/proc/stat").partition("\n")[0].split()[1:9]]
    idle = sum(times[3:5])  # Waiting for a disk is no work.
    return sum(times) - idle, sum(times)


def _machine_memory() -> dict[str, int]:
    fields = (line.split() for line in _read("/proc/meminfo").splitlines()[:8])
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields if len(field) >= 2}


def _memory_groups() -> Iterator[tuple[int, int]]:
    """Yield (limit, used memory that cannot be dropped) of each control group of this process with a limit."""
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
    """Return what a file of the kernel contains; nothing if there is none. Raises OSError if no descriptor is left to read it."""
    try:
        with open(path) as file:
            return file.read()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return ""
