"""Settings that cannot be honoured are refused with a readable error; those that name directories leave nothing there."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from faults import PATIENCE, kill_daemon
from faults import session as here

import zfabric as zf
from zfabric.config import size_of
from zfabric.protocol import messages as m
from zfabric.runtime.connect import attach, await_daemon, join
from zfabric.runtime.session import Session, sweep

MiB = 2**20


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"object_store_memory": 10**15}, "931,322.6 GiB, and this machine has"),
        ({"config": {"object_store_memory": 10**15}}, "931,322.6 GiB, and this machine has"),
        ({"config": {"object_store_directory": "/nonexistent"}}, "'object_store_directory' is not a directory: /nonexistent"),
        ({"config": {"spill_directory": "/dev/null"}}, "'spill_directory' is not a directory: /dev/null"),
        ({"config": {"preload": "numpy"}}, "'preload' is a list, not 'numpy'"),
        ({"config": {"inline_bytes": "1"}}, "'inline_bytes' is an int, not '1'"),
        ({"config": {"lineage": 1}}, "'lineage' is True or False, not 1"),
        ({"config": {"send_delay": -1}}, "'send_delay' cannot be negative"),
        ({"config": {"inlnie_bytes": 1}}, "did you mean 'inline_bytes'"),
        ({"config": {"inline_bytes": 2**20}}, "'inline_bytes' is at most 261120 bytes, so that a receiver takes 1024 values in at once"),
        ({"config": {"frame_bytes_max": 2**30}}, "'frame_bytes_max' is 128 to 268435456 bytes, not 1073741824"),
        ({"config": {"frame_bytes_max": 100}}, "'frame_bytes_max' is 128 to 268435456 bytes, not 100"),
        ({"config": {"durable_bytes": 2**30}}, "'durable_bytes' is at most 536870912 bytes"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused_at_init(options: dict[str, Any], text: str) -> None:
    zf.shutdown()
    with pytest.raises(zf.ConfigError, match=text.replace("(", r"\(")):
        zf.init(num_cpus=1, **options)
    assert not zf.is_initialized()


STARTS = """
import os, resource, sys, zfabric as zf
exec(sys.argv[1])
try:
    zf.init("local", num_cpus=1, object_store_memory=2**26, log_to_driver=False, config=eval(sys.argv[2]))
except zf.FabricError as error:
    print(type(error).__name__, error)
else:
    print(zf.get(zf.remote(abs).remote(-1)), zf.init(ignore_reinit_error=True)["session_dir"])
"""


LITTLE = "resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33))"
FEW = "resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))"
ALONE = "resource.setrlimit(resource.RLIMIT_NPROC, (40, 40)); os.geteuid = lambda: 1"  # root may have any number
GONE = "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); sys.path.insert(0, '')"
ODD = "os.mkdir(b'\\xe9'); os.environ['TMPDIR'] = os.fsdecode(os.path.abspath(b'\\xe9'))"


@pytest.mark.parametrize(
    ("given", "config", "text"),
    [
        pytest.param(
            LITTLE,
            {"restart_backoff_max": 0.01},
            "ConnectionLostError .* 'control_store_bytes' is 17,179,869,184 bytes, .*",
            id="little address space",
        ),
        pytest.param(LITTLE, {"control_store_bytes": 2**30}, "1 .*", id="a smaller map"),
        pytest.param(FEW, {}, "ConfigError a process may open only 32 files here.*: ulimit -n 1024", id="few files"),
        pytest.param(ALONE, {}, "ConfigError this user may have only 40 processes and threads.*: ulimit -u 1024", id="few processes"),
        pytest.param(GONE, {}, "1 .*", id="a deleted directory"),
        pytest.param(ODD, {}, "1 /tmp/zfabric-.*", id="a TMPDIR that is no text"),
    ],
)
def test_a_session_starts_in_odd_directories_or_fails_with_one_line(given: str, config: dict[str, Any], text: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", STARTS, given, repr(config)], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert re.fullmatch(text, ended.stdout.rstrip("\n")), (ended.stdout, ended.stderr)


def test_init_refuses_to_preload_what_starts_threads(tmp_path: Path, monkeypatch: Any) -> None:
    """However long its import takes: ``init`` does not return before."""
    source = "import threading, time\ntime.sleep(1)\nthreading.Thread(target=time.sleep, args=(99,)).start()\n"
    (tmp_path / "a_slow_pool.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    zf.shutdown()
    with pytest.raises(zf.ConnectionLostError, match=r"'a_slow_pool', which starts threads when it is imported.*leave it out"):
        zf.init(num_cpus=1, config={"preload": ["json", "a_slow_pool"]})
    assert not zf.is_initialized()


def spilled(directory: Path) -> Path:
    """The one directory below ``directory``, when there are values in it."""
    (own,) = directory.iterdir()
    assert any(own.iterdir())
    return own


def fill() -> list[zf.ObjectRef]:
    """More than an arena of 64 MiB holds."""
    return [zf.put(np.full(3 * MiB, index)) for index in range(4)]


@pytest.mark.parametrize("how", ["in order", "killed"])
def test_a_spill_directory_is_shared_with_nobody_and_left_as_it_was(cluster: Callable[..., Any], tmp_path: Path, how: str) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    context = cluster(object_store_memory=64 * MiB, config={"spill_directory": str(tmp_path / "mine")})
    refs = fill()
    own = spilled(tmp_path / "mine")
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o755
    assert [int(zf.get(ref)[-1]) for ref in refs] == [0, 1, 2, 3]
    del refs
    if how == "killed":
        description = json.loads((Path(context.session_directory) / "session.json").read_text())
        os.kill(description["supervisor"], signal.SIGKILL)
    zf.shutdown()
    sweep()
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_program_may_have_one_cluster_after_the_other(cluster: Callable[..., Any]) -> None:
    """Functions and what they call go along, though the first job of every cluster has the same number."""

    @zf.remote
    def inner(x: int) -> int:
        return x + 1

    @zf.remote
    def outer(x: int) -> int:
        return int(zf.get(inner.remote(x))) * 2

    for _ in range(3):
        cluster(num_cpus=1)
        assert zf.get(outer.remote(1)) == 4
        zf.shutdown()


def test_a_program_of_another_version_is_refused_with_a_readable_error(cluster: Callable[..., Any], monkeypatch: Any) -> None:
    cluster(num_cpus=1)
    session = here()
    theirs = m.PROTOCOL_VERSION
    monkeypatch.setattr(m, "PROTOCOL_VERSION", theirs + 1)
    with pytest.raises(zf.VersionMismatchError, match=rf"speaks protocol {theirs}, you speak {theirs + 1}; use the same release"):
        attach(session, kind="tool")
    monkeypatch.undo()
    assert zf.get(zf.remote(abs).remote(-5), timeout=PATIENCE) == 5
    path = Path(session.directory, "session.json")
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "protocol": 99}))
    try:
        with pytest.raises(zf.VersionMismatchError, match=r'protocol 99.*address="local"'):
            attach(Session(session.directory), kind="tool")
        path.write_text(json.dumps({**json.loads(before), "python": "2.7.18"}))
        with pytest.raises(zf.VersionMismatchError, match=r'runs Python 2\.7\.18, this program 3\..*address="local"'):
            join(Session(session.directory), "", True)
    finally:
        path.write_text(before)


@pytest.mark.parametrize("size", [float("nan"), float("inf"), -1.0, True, "1GB"])
def test_a_wrong_object_store_memory_is_refused(size: Any) -> None:
    zf.shutdown()
    with pytest.raises(zf.ConfigError, match="init: object_store_memory is a number of bytes from 0, not"):
        zf.init("local", num_cpus=1, object_store_memory=size)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1GB", "1 * 10**9"), ("512 MiB", "512 * 2**20"), ("1.5g", "1500 * 10**6"), ("2GiB", "2 * 2**30"), ("1000", "1000")],
)
def test_a_size_with_a_unit_is_refused_with_the_number_to_write(text: str, number: str) -> None:
    zf.shutdown()
    with pytest.raises(zf.ConfigError, match=f"a number of bytes from 0, not {text!r}; write {re.escape(number)}$"):
        zf.init("local", num_cpus=1, object_store_memory=text)  # type: ignore[arg-type]
    assert eval(number) == size_of(text)


def test_a_node_has_the_labels_that_init_gives_it(cluster: Callable[..., Any]) -> None:
    cluster(labels={"zone": "a", "disk": "ssd"})
    ((own, labels),) = ((row["NodeID"], row["Labels"]) for row in zf.nodes())
    assert labels == {"zone": "a", "disk": "ssd"}
    of_zone = zf.remote(lambda: zf.get_runtime_context().get_node_labels()).options(label_selector={"zone": "a", "ray.io/node-id": own})
    assert zf.get(of_zone.remote()) == labels
    kill_daemon()
    assert zf.get(of_zone.remote()) == labels


@pytest.mark.parametrize("labels", [{"zone": 3}, {"": "a"}, {3: "a"}, ["zone"], {"zone": "\ud800"}])
def test_labels_that_are_none_are_refused(labels: Any) -> None:
    with pytest.raises(zf.ConfigError, match="init: labels map names to text, not"):
        zf.init("local", num_cpus=1, labels=labels)


def test_the_reason_of_a_session_that_ends_between_two_looks_is_not_missed() -> None:
    looks: list[bool] = []

    def alive() -> bool:
        looks.append(len(looks) < 1)
        return looks[-1]

    session: Any = SimpleNamespace(daemon=lambda: None, alive=alive, directory="/nowhere")
    with pytest.raises(zf.VersionMismatchError, match=r"^another one$"):
        await_daemon(session, lambda: "VersionMismatchError: another one" if len(looks) > 1 else "", PATIENCE)


@pytest.mark.parametrize("options", [{"object_store_memory": 10}, {"config": {"object_store_memory": 2**21 - 1}}])
def test_an_object_store_below_the_minimum_is_refused_with_it(options: dict[str, Any]) -> None:
    zf.shutdown()
    with pytest.raises(zf.ConfigError, match=r"a store has at least 2097152 \(2 \* 2\*\*20\)"):
        zf.init("local", num_cpus=1, **options)


def test_object_store_memory_may_be_a_share_of_something(cluster: Any) -> None:
    cluster(num_cpus=1, object_store_memory=0.7 * 100 * MiB + 0.5)
    assert zf.get(zf.put(b"x" * MiB)) == b"x" * MiB
