"""Facts about processes and the machine, checked against real ones."""

from __future__ import annotations

import errno
import math
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from faults import PATIENCE

from zfabric.adapters import processes
from zfabric.runtime.connect import node_resources


def in_child(body: Callable[[], object]) -> int:
    """The exit code (or minus the signal) of a forked child that runs ``body``."""
    pid = os.fork()
    if pid == 0:
        processes.run_and_exit(body)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def check(condition: object) -> None:
    if not condition:
        raise SystemExit(9)


def test_a_process_is_identified_by_pid_and_start_time() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        started = processes.start_ticks(process.pid)
        assert started >= processes.start_ticks(os.getpid()) > 0
        assert processes.open_pidfd(process.pid, started + 1) is None
        descriptor = processes.open_pidfd(process.pid, started)
        assert descriptor is not None
        assert not processes.wait_pidfd(descriptor, 0)
        assert processes.signal_pidfd(descriptor, signal.SIGKILL)
        assert processes.wait_pidfd(descriptor, PATIENCE)
        process.wait()
        assert not processes.signal_pidfd(descriptor, signal.SIGKILL)
        os.close(descriptor)
    assert processes.open_pidfd(process.pid) is None
    assert processes.start_ticks(process.pid) == 0


def test_a_process_name_may_have_blanks_and_brackets() -> None:
    def body() -> None:
        before = processes.start_ticks(os.getpid())
        processes.set_name("a) b (c) and a long rest")
        check(Path("/proc/self/comm").read_text() == "a) b (c) and a \n")
        check(processes.start_ticks(os.getpid()) == before)
        check(os.getpid() in processes.children(os.getppid()))

    assert in_child(body) == 0


@pytest.mark.parametrize(("how", "code"), [(lambda: None, 0), (lambda: sys.exit(3), 3), (lambda: sys.exit("why"), 1), (lambda: 1 / 0, 1)])
def test_a_forked_body_ends_the_process_with_its_code(how: Callable[[], object], code: int) -> None:
    assert in_child(how) == code


def test_output_is_appended_line_by_line(tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    out.write_text("before\n")

    program = (
        "import os, sys; from zfabric.adapters import processes; processes.redirect(*sys.argv[1:])\n"
        "print('a line'); print('to stderr', file=sys.stderr)\n"
        "os.kill(os.getpid(), 9 if sys.stdin.read() == '' else 15)"  # so that nothing is flushed at exit
    )
    done = subprocess.run([sys.executable, "-c", program, str(out), str(err)], check=False, input="something", text=True)
    assert done.returncode == -signal.SIGKILL
    assert out.read_text() == "before\na line\n"
    assert err.read_text() == "to stderr\n"


def test_children_of_children_are_inherited_and_killed() -> None:
    def body() -> None:
        processes.become_subreaper()
        with subprocess.Popen(["sh", "-c", "setsid sleep 1000 & sleep 1000 & echo"], stdout=subprocess.PIPE) as shell:
            assert shell.stdout is not None
            shell.stdout.readline()
            shell.wait()
            left = processes.children(os.getpid())
            check(len(left) == 2)
            processes.kill_children()
            check(processes.children(os.getpid()) == [])
            check(not any(processes.start_ticks(pid) for pid in left))

    assert in_child(body) == 0


@pytest.mark.parametrize("pid", [1, 0, -1])
def test_no_signal_goes_to_whole_groups_that_were_not_meant(pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    monkeypatch.setattr(os, "kill", lambda *call: sent.append(call))
    monkeypatch.setattr(os, "killpg", lambda *call: sent.append(call))
    for send in (processes.kill_group, lambda pid: processes.stop_group(pid, True)):
        with pytest.raises(ValueError, match="no child of ours"):
            send(pid)
    assert sent == []


def test_a_process_dies_with_its_parent() -> None:
    reading, writing = os.pipe()

    def parent() -> None:
        ready, writable = os.pipe()
        me = os.getpid()
        if os.fork() == 0:
            processes.die_with_parent(me)
            os.write(writable, b"x")
            signal.pause()
        os.read(ready, 1)

    assert in_child(parent) == 0
    os.close(writing)
    assert os.read(reading, 1) == b""  # the last holder of the writing end is gone
    os.close(reading)
    assert in_child(lambda: processes.die_with_parent(1 if os.getppid() != 1 else 2)) == 1


def test_limits_of_a_worker() -> None:
    def body() -> None:
        import resource

        processes.limit_worker()
        soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
        check(soft == processes.STACK_BYTES or soft == hard)
        check(resource.getrlimit(resource.RLIMIT_CORE) == (0, 0))
        check(int(Path("/proc/self/oom_score_adj").read_text()) == processes.WORKER_OOM_SCORE)

    assert in_child(body) == 0


def test_threads_have_the_stack_that_is_wanted_unless_address_space_is_limited() -> None:
    def body() -> None:
        import resource
        import threading

        wanted = 64 * 2**20
        resource.setrlimit(resource.RLIMIT_STACK, (2 * wanted, resource.getrlimit(resource.RLIMIT_STACK)[1]))
        counted = Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2"
        size = processes.THREAD_STACK_BYTES if counted else wanted
        check(processes.deepen_thread_stacks(wanted) == size == threading.stack_size())
        check(processes.main_stack_room() > 2**20)
        resource.setrlimit(resource.RLIMIT_AS, (64 * 2**30, resource.RLIM_INFINITY))
        check(processes.deepen_thread_stacks(wanted) == processes.THREAD_STACK_BYTES == threading.stack_size())
        resource.setrlimit(resource.RLIMIT_STACK, (2**20, 2**20))
        check(processes.deepen_thread_stacks(wanted) == 2**20)  # The main thread's is the smallest then.

    assert in_child(body) == 0


def test_memory_of_freed_blocks_is_returned() -> None:
    """Blocks between which others live on: without help, glibc keeps them all."""
    code = """if True:
        import os
        from zfabric.adapters.processes import resident_bytes, return_free_memory
        blocks = [b"x" * 100_000 for _ in range(400)]
        del blocks[:-1:2], blocks[:-1:2]
        before = resident_bytes(os.getpid())
        return_free_memory()
        print(before - resident_bytes(os.getpid()))
    """
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert int(ran.stdout) > 5_000_000


def test_memory_of_a_process_is_its_own() -> None:
    before = processes.resident_bytes(os.getpid())
    shared = mmap.mmap(-1, 64 << 20)  # as the arena is: shared pages do not count
    shared.write(b"x" * (64 << 20))
    own = bytearray(b"x" * (128 << 20))
    grown = processes.resident_bytes(os.getpid()) - before
    assert 120 << 20 < grown < 160 << 20
    del own
    shared.close()
    assert processes.resident_bytes(2**22 + 1) == 0


def test_the_machines_cpus_and_memory_are_found() -> None:
    assert 1 <= processes.cpu_count() <= len(os.sched_getaffinity(0))
    assert 0 < processes.memory_available() <= processes.memory_total()
    assert processes.memory_total() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert in_child(lambda: (os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}), check(processes.cpu_count() == 1))) == 0


@pytest.mark.parametrize(("visible", "count"), [("", 0), ("0", 1), ("3,1", 2), ("GPU-8932f937,2", 2), ("0,-1,1", 1), ("NoDevFiles", 0)])
def test_visible_gpus_count(visible: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert processes.gpu_count() == count


def test_all_gpus_of_the_machine_count_unless_some_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(os, "listdir", lambda path: ["null", "nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm"])
    assert processes.gpu_count() == 2


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        (["NVIDIA A100-SXM4-80GB"] * 2, "A100"),
        (["Tesla V100-SXM2-16GB"], "V100"),
        (["NVIDIA L40S"], "L40S"),
        (["NVIDIA GeForce RTX 3090"], ""),
        (["NVIDIA A100-PCIE-40GB", "NVIDIA H100 80GB HBM3"], ""),
        ([], ""),
    ],
)
def test_the_model_of_gpus_is_what_the_driver_says_of_all(models: list[str], expected: str, tmp_path: Path) -> None:
    for number, model in enumerate(models):
        file = tmp_path / f"0000:0{number}:00.0" / "information"
        file.parent.mkdir()
        file.write_text(f"Model: \t\t {model}\nIRQ:   \t\t 27\n")
    assert processes.gpu_model(str(tmp_path)) == expected


@pytest.mark.parametrize(("model", "more"), [("A100", {"accelerator_type:A100": 1.0}), ("", {})])
def test_a_node_with_gpus_has_their_model_among_its_resources(model: str, more: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(processes, "gpu_model", lambda: model)
    assert node_resources(1, 2, None, None) == {"CPU": 1.0, "GPU": 2.0, **more}
    assert node_resources(1, 0, None, None) == {"CPU": 1.0}


V2 = {
    "/proc/self/cgroup": "0::/a/b\n",
    "/sys/fs/cgroup/a/b/cpu.max": "max 100000\n",
    "/sys/fs/cgroup/a/cpu.max": "150000 100000\n",
    "/sys/fs/cgroup/a/b/memory.max": "1000000000\n",
    "/sys/fs/cgroup/a/b/memory.current": "700000000\n",
    "/sys/fs/cgroup/a/b/memory.stat": "anon 1\ninactive_file 200000000\n",
    "/sys/fs/cgroup/a/memory.max": "max\n",
    "/sys/fs/cgroup/a/memory.current": "5\n",
}
V1 = {
    "/proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/y\n",
    "/sys/fs/cgroup/cpu/y/cpu.cfs_quota_us": "150000\n",
    "/sys/fs/cgroup/cpu/y/cpu.cfs_period_us": "100000\n",
    "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
    "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    "/sys/fs/cgroup/memory/x/memory.limit_in_bytes": "1000000000\n",
    "/sys/fs/cgroup/memory/x/memory.usage_in_bytes": "700000000\n",
    "/sys/fs/cgroup/memory/x/memory.stat": "cache 1\ntotal_inactive_file 200000000\n",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    "/sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
}


@pytest.mark.parametrize("files", [V2, V1])
def test_limits_of_control_groups_count(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    files = {**files, "/proc/meminfo": "MemTotal: 64000000 kB\nMemFree: 100 kB\nMemAvailable: 32000000 kB\n"}
    directories = {str(parent) for name in files for parent in Path(name).parents}
    monkeypatch.setattr(processes, "_read", lambda path: files.get(path, ""))
    monkeypatch.setattr(os.path, "isdir", lambda path: str(path) in directories)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    assert processes.cpu_count() == math.ceil(1.5)
    assert processes.memory_total() == 1_000_000_000
    assert processes.memory_available() == 500_000_000


def test_a_fork_that_fails_for_want_of_processes_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "threads_max", lambda: 4096)
    assert "4,096 processes and threads (ulimit -u)" in processes.why_no_process(BlockingIOError(errno.EAGAIN, "Try again"))
    assert processes.why_no_process(OSError(errno.ENOMEM, "No memory")) == "fork: No memory"
