"""What every test file may use: clusters to run on, an end to hangs, and an account of what a run left behind."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import zfabric as zf

HANG_SECONDS = 120  # a test that runs this long hangs: dump every thread's stack and end the run
GONE_SECONDS = 15  # how long the last processes may take to go; the fabric promises ten

# Every process this run starts inherits this, however often it forks or changes its name, and no process of another run has it.
MARK = uuid.uuid4().hex
os.environ["ZFABRIC_TEST_RUN"] = MARK

# A file descriptor of its own: pytest replaces stderr while a test runs, and the dump must be seen.
_stderr = os.fdopen(os.dup(sys.__stderr__.fileno()), "w") if sys.__stderr__ else None


@contextmanager
def running_cluster(**options: Any) -> Iterator[Any]:
    """A cluster as ``zf.init`` makes it, of two CPUs unless the test says otherwise; gone afterwards, whatever happened."""
    zf.shutdown()
    try:
        yield zf.init(**{"num_cpus": 2, "log_to_driver": False, **options})
    finally:
        zf.shutdown()


@pytest.fixture
def cluster() -> Iterator[Callable[..., Any]]:
    """A factory: ``cluster(num_cpus=1, config={...})`` starts a cluster that ends with the test."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(running_cluster(**options))


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Any]:
    """One cluster of two CPUs for all tests of a file; they leave it as they found it and use no other."""
    with running_cluster() as context:
        yield context


@pytest.fixture(autouse=True)
def end_hangs() -> Iterator[None]:
    """Say where a hanging test hangs, and end the run."""
    if _stderr is not None:
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True, file=_stderr)
    yield
    faulthandler.cancel_dump_traceback_later()


def processes_of_this_run() -> dict[int, str]:
    """The processes that descend from this run, each with its command line, this one aside."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if f"ZFABRIC_TEST_RUN={MARK}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue  # it ended meanwhile, or belongs to another user
    return found


def files_of_fabric() -> set[Path]:
    """What clusters of this user keep outside the tree: session directories and shared memory."""
    places = [*Path("/tmp").glob(f"zfabric-{os.getuid()}/*"), *Path("/dev/shm").glob("zfabric*")]
    return {place for place in places if owned(place)}


def owned(place: Path) -> bool:
    """Whether this user owns it (and it is still there)."""
    try:
        return place.lstat().st_uid == os.getuid()
    except OSError:
        return False


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """At the end of the run no process, session directory or shared memory of it is left."""
    before = files_of_fabric()
    yield
    deadline = time.monotonic() + GONE_SECONDS
    while processes_of_this_run() or files_of_fabric() - before:
        if time.monotonic() > deadline:
            pytest.fail(f"left behind: processes {processes_of_this_run()}, files {sorted(map(str, files_of_fabric() - before))}")
        time.sleep(0.05)
