"""Finalizers of user code that wait for tasks: those of returned values, and those that run inside a fence."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import one_cluster
from faults import PATIENCE

import zfabric as zf
from zfabric.protocol import messages as m
from zfabric.runtime import interface

shared = one_cluster(num_cpus=1)
"""One CPU: what the finalizer waits for can only run if the task lends its own."""


@zf.remote
def note_of(path: Path, text: str) -> str:
    path.write_text(text)
    return text


class Asks:
    """Waits for a task when it is dropped, and pickles as a text."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return str, ("packed",)

    def __del__(self) -> None:
        zf.get(note_of.remote(self.path, "asked"), timeout=PATIENCE)


@zf.remote
def returns_one_that_asks(path: Path) -> Any:
    return [Asks(path), zf.put("inside")]


def test_a_finalizer_of_a_returned_value_may_wait_for_another_task(tmp_path: Path) -> None:
    first = returns_one_that_asks.remote(tmp_path / "asked")
    behind = note_of.remote(tmp_path / "behind", "behind")
    text, inside = zf.get(first, timeout=PATIENCE)
    assert text == "packed"
    assert zf.get([inside, behind], timeout=PATIENCE) == ["inside", "behind"]
    assert (tmp_path / "asked").read_text() == "asked"


def test_a_finalizer_in_the_middle_of_the_fabrics_own_work_is_refused() -> None:
    client: Any = interface.current()
    ref = zf.put(1)
    with client.connection.lock, pytest.raises(zf.FabricError, match="__del__"):
        zf.wait([ref, note_of.remote(Path("/dev/null"), "")], num_returns=2)


def waits_while(what: str) -> str:
    """The error of a finalizer that runs while this process polls, or receives frames."""
    client: Any = interface.current()
    done, texts = getattr(client.connection.transport, what), []

    def collecting(*args: Any) -> Any:
        try:
            zf.get(note_of.remote(Path("/dev/null"), ""), timeout=PATIENCE)
        except zf.FabricError as error:
            texts.append(str(error))
        return done(*args)

    setattr(client.connection.transport, what, collecting)
    try:
        assert zf.get(note_of.remote(Path("/dev/null"), "came"), timeout=PATIENCE) == "came"
    finally:
        setattr(client.connection.transport, what, done)
    return str(texts[0])


def test_a_finalizer_while_frames_are_taken_in_is_refused() -> None:
    assert "__del__" in waits_while("take")


@pytest.mark.parametrize("what", ["poll", "take"])
def test_a_finalizer_while_a_task_waits_is_refused(what: str) -> None:
    assert "__del__" in zf.get(zf.remote(waits_while).remote(what), timeout=PATIENCE)


def test_a_collection_for_which_no_thread_can_start_loses_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = interface.current()
    accept, asked = client.connection.transport.accept, []

    def no_thread(thread: threading.Thread) -> None:
        asked.append(thread.name)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    monkeypatch.setattr(client.connection.transport, "accept", lambda *frame: [(b"", b"", m.CollectGarbage()), *accept(*frame)])
    assert client.query("status", timeout=PATIENCE)
    assert set(asked) == {"zfabric-collect"}
