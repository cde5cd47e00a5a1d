"""A few cycles of each kind of the soak: clusters that were started, damaged and ended leave nothing behind."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
import soak
from faults import eventually

import zfabric as zf
from zfabric.runtime import interface

CYCLES = {"start": 4, "kill": 2, "driver": 2, "daemon": 6, "worker": 6}


@pytest.mark.parametrize("kind", [*soak.WHOLE, *soak.WITHIN])
def test_repeated_work_leaks_no_processes_descriptors_memory_or_files(kind: str) -> None:
    soak.zf.shutdown()
    assert soak.run(kind, CYCLES[kind]) == []


def is_freed(client: Callable[[], object]) -> bool:
    gc.collect()
    return client() is None


def test_a_client_is_freed_with_the_last_ref_of_its_cluster() -> None:
    """The collector does not look at refs, so none may be left where the client itself keeps it."""
    zf.shutdown()
    with zf.init(num_cpus=1):
        client = weakref.ref(interface.current())

        @zf.remote
        def same(value: object) -> object:
            return value

        refs = [same.remote(number) for number in range(3)]
        assert [ref.future().result(60) for ref in refs] == [0, 1, 2]
        assert zf.get(next(zf.as_completed([same.remote(refs[0])])), timeout=60) == 0
        late = same.remote(zf.put(1)).future()
    gc.collect()
    assert client() is not None, "refs of an ended cluster say so"
    del refs, late, same  # a function keeps the client that it was exported to
    eventually(lambda: is_freed(client), "its last thread ends")


def test_an_abandoned_as_completed_is_freed_with_its_cluster() -> None:
    zf.shutdown()
    with zf.init(num_cpus=1):
        client = weakref.ref(interface.current())

        @zf.remote
        def never() -> None:
            threading.Event().wait()

        refs = [never.remote() for _ in range(3)]
        with pytest.raises(zf.GetTimeoutError):
            next(zf.as_completed(refs, timeout=0.1))
    del refs, never
    eventually(lambda: is_freed(client), "its last thread ends")


def test_parallel_test_processes_account_for_their_own_leftovers(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    account = (tests / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(f"{account}\nGONE_SECONDS = 0.1\n")
    (tmp_path / "test_untidy.py").write_text(
        "import os, subprocess\n"
        "def test_untidy():\n"
        "    os.makedirs(os.environ['TMPDIR'] + '/zfabric-1/forgotten')\n"
        '    print(f\'left {subprocess.Popen(["sleep", "1000"]).pid}\')\n'
        "    open('left', 'w').close()\n"
    )
    (tmp_path / "test_tidy.py").write_text("import os, time\ndef test_tidy():\n    while not os.path.exists('left'): time.sleep(0.01)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-vvrA"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(tests), os.environ.get("PYTHONPATH"))))}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=100
    )
    (pid,) = set(map(int, re.findall(r"^left (\d+)$", ran.stdout, re.MULTILINE))) or {0}
    assert pid, ran.stdout + ran.stderr
    os.kill(pid, signal.SIGKILL)
    assert re.findall(r"^ERROR (\S+)", ran.stdout, re.MULTILINE) == ["test_untidy.py::test_untidy"], ran.stdout
    assert f"({pid}, 'sleep 1000')" in ran.stdout
    assert re.search(r"/gw\d+/zfabric-1/forgotten'", ran.stdout)
    assert "2 passed, 1 error" in ran.stdout
