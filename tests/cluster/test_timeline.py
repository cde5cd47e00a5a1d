"""The arrows of the timeline, for known graphs. Real processes; ``test_api.py`` tests its bars, too."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import running_cluster
from faults import PATIENCE, eventually
from timeline_arrows import Named, ends_of, named

import zfabric as zf
from zfabric.machines.common.lineage_blocks import pack_block
from zfabric.protocol.ids import FUNCTION_BYTES, TASK_BYTES, Namer, call_value, first_attempt, job_id, object_id, root_task
from zfabric.protocol.trace import actor_of, method_id, pack_times, read_trace, rename
from zfabric.runtime.arrows import Span, Spans, arrows


@pytest.fixture(autouse=True)
def shared() -> Iterator[Any]:
    """A cluster for each test, so that what it shows is the test's."""
    with running_cluster() as context:
        yield context


@zf.remote
def made(x: int) -> int:
    return x


@zf.remote
def added(*args: Any) -> Any:
    return sum(args)


@zf.remote
def submits(n: int) -> Any:
    return zf.get([made.remote(index) for index in range(n)])


@zf.remote
def puts() -> Any:
    return [zf.put(np.ones(20_000)), made.remote(1)]


@zf.remote
def first(pair: Any) -> Any:
    return float(pair[0])


@zf.remote
class Total:
    def __init__(self) -> None:
        self.total = 0

    def add(self, x: int) -> int:
        self.total += x
        return self.total

    def asks(self) -> Any:
        return zf.get(made.remote(5))

    def many(self, n: int) -> None:
        for index in range(n):
            made.remote(index)


def settled(wanted: Callable[[Named], bool]) -> Named:
    """The arrows, once late reports have arrived; rows are written, and calls reported, within a second or so."""

    def found() -> Named | None:
        arrows = named(zf.timeline() or [])
        return arrows if wanted(arrows) else None

    return eventually(found, "the arrows are there")  # type: ignore[no-any-return]


def test_arrows_of_tasks() -> None:
    parts = [made.remote(index) for index in range(3)]
    whole = added.remote(*parts, parts[0])
    outer = submits.remote(4)
    assert zf.get([whole, outer], timeout=PATIENCE) == [3, [0, 1, 2, 3]]
    assert settled(lambda arrows: arrows.total() == 7) == {("data", "made", "added"): 3, ("control", "submits", "made"): 4}


def test_arrows_of_values_that_a_task_put() -> None:
    taken = first.remote(zf.get(puts.remote(), timeout=PATIENCE)[0])
    assert zf.get(taken, timeout=PATIENCE) == 1.0
    settled(lambda arrows: arrows == {("data", "puts", "first"): 1, ("control", "puts", "made"): 1})


def test_arrows_of_an_actor() -> None:
    total = Total.remote()
    five = made.remote(5)
    calls = [total.add.remote(1), total.add.remote(five), total.asks.remote()]
    result = added.remote(calls[1], 1)
    assert zf.get([*calls, result], timeout=PATIENCE) == [1, 6, 5, 7]
    settled(
        lambda arrows: (
            arrows
            == {
                ("state", "Total", "Total.add"): 1,
                ("state", "Total.add", "Total.add"): 1,
                ("state", "Total.add", "Total.asks"): 1,
                ("data", "made", "Total.add"): 1,
                ("data", "Total.add", "added"): 1,
                ("control", "Total.asks", "made"): 1,
            }
        )
    )


def test_each_actor_has_arrows_of_its_own() -> None:
    totals = [Total.remote() for _ in range(2)]
    zf.get([each.add.remote(1) for each in totals for _ in range(10)], timeout=PATIENCE)
    settled(lambda arrows: arrows == {("state", "Total", "Total.add"): 2, ("state", "Total.add", "Total.add"): 18})


def test_actors_that_share_a_process_have_a_row_each() -> None:
    totals = [Total.options(lightweight=True).remote() for _ in range(5)]
    zf.get([each.add.remote(1) for each in totals for _ in range(3)], timeout=PATIENCE)
    settled(lambda arrows: arrows == {("state", "Total", "Total.add"): 5, ("state", "Total.add", "Total.add"): 10})
    rows = Counter((event["pid"], event["tid"]) for event in zf.timeline() or [] if event["ph"] == "X" and event["cat"] == "call")
    assert list(rows.values()) == [3] * 5


# --- without processes --------------------------------------------------------------------------------------------------------------

JOB = job_id(1)
DRIVER = Namer(JOB, root_task(JOB))


def drawn(*bars: tuple[bytes, float, float]) -> Spans:
    spans = Spans()
    for task, start, end in bars:
        spans.add(task, Span(start, end - start, 1, 1))
    return spans


def ends(spans: Spans, *rows: tuple[bytes, tuple[bytes, ...]]) -> list[tuple[str, float, float]]:
    """(kind, begins, ends) of all arrows, given these (task, dependencies)."""
    block = pack_block([(task, b"f" * 16, b"", taken) for task, taken in rows])
    events = list(arrows(spans, [(b"key", block)]))
    return sorted((begin["cat"], begin["ts"], end["ts"]) for begin, end in ends_of(events))


def test_children_of_each_attempt_have_arrows_from_that_attempt() -> None:
    parent = DRIVER.child()
    children = [Namer(JOB, parent, attempt=attempt).child() for attempt in range(3)]
    attempts = [(parent, 20 * n, 20 * n + 10) for n in range(3)]
    spans = drawn(*attempts, *((child, 20 * n + 5, 20 * n + 7) for n, child in enumerate(children)))
    assert ends(spans) == [("control", 0, 5), ("control", 20, 25), ("control", 40, 45)]


def test_children_of_an_attempt_that_a_later_daemon_gave_out_have_arrows() -> None:
    parent = DRIVER.child()
    child = Namer(JOB, parent, attempt=first_attempt(2) + 1).child()
    assert ends(drawn((parent, 0, 10), (child, 5, 7))) == [("control", 0, 5)]


def test_a_value_comes_from_the_last_attempt_that_was_done_before() -> None:
    source, target = DRIVER.child(), DRIVER.child()
    spans = drawn((source, 0, 10), (target, 15, 16), (source, 20, 30), (target, 35, 36), (source, 50, 60))
    assert ends(spans, (target, (object_id(source), object_id(source, 1)))) == [("data", 9, 15), ("data", 29, 35)]


def test_hidden_bars_have_no_arrows() -> None:
    source, target = DRIVER.child(), DRIVER.child()
    assert ends(drawn((target, 0, 1)), (target, (object_id(source),)), (source, (object_id(target),))) == []
    assert ends(drawn((target, 0, 1), (source, 5, 6)), (target, (object_id(source), DRIVER.put()))) == []


def test_calls_that_overlap_have_arrows_that_do_not_go_back() -> None:
    actor = DRIVER.child()
    calls = [DRIVER.child() for _ in range(2)]
    assert actor_of(method_id(actor, 7), calls[0]) == actor
    spans = drawn((actor, 0, 1), (calls[0], 2, 10), (calls[1], 4, 6))
    spans.actors[1, 1, actor] += [Span(4, 2, 1, 1), Span(2, 8, 1, 1)]
    spans.arguments.append((calls[1], (call_value(calls[0], 0),)))
    assert ends(spans) == [("state", 0.5, 2), ("state", 4, 4)]


@zf.remote(max_retries=1)
def works(how: str, path: Path | None = None) -> None:
    if path is not None:
        path.touch()
    if how == "raises":
        raise ValueError(how)
    if how == "crashes":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "sleeps":
        time.sleep(1000)


@zf.remote(max_restarts=1)
class Works:
    def ends(self, how: str, path: Path | None = None) -> None:
        works._function(how, path)


def time_out(function: Any, path: Path) -> None:
    """Run out of time while it runs, once: one that has not begun by then makes no attempt."""
    for seconds in (0.1, 1.0, 10.0):
        zf.get([function.options(timeout=seconds).remote("sleeps", path)], timeout=PATIENCE, return_exceptions=True)
        if path.exists():
            return


def test_names_and_ends_of_attempts_and_calls(tmp_path: Path) -> None:
    ref = works.remote("sleeps", tmp_path / "a task")
    eventually((tmp_path / "a task").exists, "the task has begun")
    zf.cancel(ref)
    tasks = [
        ref,
        works.remote("succeeds"),
        works.options(name="train").remote("succeeds"),
        works.options(name="train").remote("raises"),
        works.options(name="again", retry_exceptions=True).remote("raises"),
        works.remote("crashes"),
    ]
    zf.get(tasks, timeout=PATIENCE, return_exceptions=True)
    time_out(works, tmp_path / "late task")
    actor = Works.options(name="the actor").remote()
    call = actor.ends.remote("sleeps", tmp_path / "a call")
    eventually((tmp_path / "a call").exists, "the call has begun")
    zf.cancel(call)
    zf.get([call, actor.ends.remote("succeeds"), actor.ends.remote("raises")], timeout=PATIENCE, return_exceptions=True)
    time_out(actor.ends, tmp_path / "late call")
    expected = {
        ("works", "task"): 1,
        ("train", "task"): 1,
        ("works (cancelled)", "task,cancelled"): 1,
        ("train (failed)", "task,failed"): 1,
        ("again (retried)", "task,retried"): 1,
        ("again (failed)", "task,failed"): 1,
        ("works (crashed)", "task,crashed"): 2,
        ("works (timed out)", "task,timed out"): 1,
        ("the actor", "task"): 1,
        ("Works.ends (cancelled)", "call,cancelled"): 1,
        ("Works.ends", "call"): 1,
        ("Works.ends (failed)", "call,failed"): 1,
        ("Works.ends (timed out)", "call,timed out"): 1,
    }

    def bars() -> Counter[tuple[str, str]]:
        return Counter((event["name"], event["cat"]) for event in zf.timeline() or () if event["ph"] == "X")

    eventually(lambda: bars() == expected, "all that ran is there, and how it ended")
    zf.get([actor.ends.remote("crashes")], timeout=PATIENCE, return_exceptions=True)
    deaths = eventually(lambda: [event for event in zf.timeline() or () if event["ph"] == "i"], "the death of the actor's process")
    assert [(event["name"], event["cat"]) for event in deaths] == [("Works, the actor died", "death")]


def test_attempts_that_have_the_same_name_share_one_row_for_it() -> None:
    function, count = b"f" * FUNCTION_BYTES, 10
    ids = [number.to_bytes(TASK_BYTES, "big") for number in range(count)]
    trace = b"".join(ids) + pack_times([function] * count, [0.0] * 2 * count)
    changed, rows = rename(trace, {place: "even" if place % 2 == 0 else f"odd {place}" for place in range(count - 1)})
    names = {**dict(rows), function: "f"}
    assert [names[each] for _, each, *_ in read_trace(changed)] == [
        *("even" if place % 2 == 0 else f"odd {place}" for place in range(count - 1)),
        "f",
    ]
    assert len(rows) == 1 + count // 2 - 1
