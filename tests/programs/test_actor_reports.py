"""Reports of actors: `zfabric actors`, `status` and `explain`, and `zf.explain` in the program."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import printed
from conftest import one_cluster
from faults import PATIENCE, eventually, failure, query

import zfabric as zf
from zfabric.protocol.names import brief

shared = one_cluster()


@zf.remote
class Seen:
    def __init__(self, path: str = "") -> None:
        while path and not os.path.exists(path):
            time.sleep(0.002)

    def pid(self) -> int:
        return os.getpid()

    def when(self, path: str) -> None:
        while not os.path.exists(path):
            time.sleep(0.002)

    def wait(self, refs: list[Any]) -> None:
        zf.get(refs)

    def ask(self, other: Any) -> Any:
        return zf.get(other.pid.remote())

    def ask_or(self, other: Any, mine: Any, gate: list[Any]) -> None:
        zf.wait([other.ask.remote(mine), *gate], num_returns=1)

    def die(self) -> None:
        os._exit(3)


@zf.remote
def when(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.002)


@zf.remote
def pass_on(value: Any) -> Any:
    return value


def row_of(handle: Any) -> dict[str, Any]:
    (row,) = (row for row in query("actors") if row["actor_id"] == handle._actor_id.hex())
    return dict(row)


def test_actors_are_listed() -> None:
    seen = Seen.options(name="to be seen", max_restarts=2).remote()
    pid = zf.get(seen.pid.remote(), timeout=PATIENCE)
    row = row_of(seen)
    assert (row["class"], row["name"], row["state"], row["pid"]) == ("Seen", "to be seen", "alive", pid)
    assert (row["restarts"], row["max_restarts"], row["detached"]) == (0, 2, False)
    assert row["handles"] == row["callers"] == (os.getpid(),)
    shown = printed("actors")
    assert "to be seen" in shown
    assert str(pid) in shown
    assert max(map(len, shown.splitlines())) <= 80
    (found,) = (each for each in json.loads(printed("actors", "--json")) if each["actor_id"] == row["actor_id"])
    assert found["memory_bytes"] > 0
    assert "1 alive" in printed("status")
    assert "namespace" not in shown
    elsewhere = Seen.options(name="to be seen", namespace="of others").remote()
    zf.get(elsewhere.pid.remote(), timeout=PATIENCE)
    head, *lines = printed("actors").splitlines()
    assert "namespace" in head
    assert [line for line in lines if "of others" in line]


def test_explain_takes_a_handle_a_name_or_an_id() -> None:
    seen = Seen.options(name="explained").remote()
    pid = zf.get(seen.pid.remote(), timeout=PATIENCE)
    for subject in (seen, "explained", seen._actor_id.hex()):
        found = zf.explain(subject)
        assert (found.state, found.reason) == ("alive", f"lives in process {pid}, and runs what it is called for")
        assert found.facts["handles"] == f"process {os.getpid()}"
    text = printed("explain", "explained")
    assert text.startswith("actor ")
    assert "(Seen, explained): alive" in text
    called = seen.pid.remote()
    assert zf.explain(called.hex()).state in ("called", "unknown"), "its result is known here alone"
    for name in ("f" * 32, "an actor with thirty-two letters"):
        kept = Seen.options(name=name).remote()
        zf.get(kept.pid.remote(), timeout=PATIENCE)
        assert zf.explain(name).state == "alive"
    for nothing in ("nobody of that name", "", "nobody with thirty-two letters.."):
        with pytest.raises(ValueError, match="an actor's name"):
            zf.explain(nothing)


def test_explain_names_why_an_actor_is_pending(tmp_path: Path) -> None:
    greedy = Seen.options(num_cpus=3).remote()
    called = greedy.pid.remote()
    eventually(lambda: zf.explain(greedy).state == "creating", "the daemon has heard of it")
    assert "no node has 3 CPU" in zf.explain(greedy).reason
    assert zf.explain(called).reason == "pid waits until the actor is made"
    shown = brief(called.binary())
    assert shown.endswith("-c0")
    for typed in (shown, shown.removesuffix("-c0"), shown.upper()):
        assert (zf.explain(typed).state, zf.explain(typed).reason) == ("waiting", "pid waits until the actor is made"), typed
    assert zf.explain(shown.replace("-c0", "-p0")).state == "unknown"
    born = Seen.remote(str(tmp_path / "go"))
    eventually(lambda: "runs on worker" in zf.explain(born).reason, "its __init__ runs")
    (tmp_path / "go").touch()
    zf.get(born.pid.remote(), timeout=PATIENCE)


def test_explain_names_the_actors_that_hold_missing_resources(tmp_path: Path) -> None:
    holder = Seen.options(name="holder", num_cpus=2).remote()
    zf.get(holder.pid.remote(), timeout=PATIENCE)
    waiting = when.remote(str(tmp_path))
    eventually(lambda: "held by" in zf.explain(waiting).reason, "the daemon has heard of it")
    assert zf.explain(waiting).reason.endswith("held by: actor Seen, holder has 2 CPU for life")
    zf.kill(holder)
    zf.get(waiting, timeout=PATIENCE)


def test_pending_calls_are_not_listed_as_tasks() -> None:
    """The numbers of tasks by state are those of tasks: an actor that waits in a call has no task that does."""
    seen, gate = Seen.remote(), Seen.remote()
    waiting = seen.wait.remote([gate.when.remote("/no/such/file")])
    eventually(lambda: zf.explain(seen).state == "blocked", "it waits")
    assert {state: count for state, count in query("status")["tasks"].items() if count < 0 or state in ("blocked", "assigned")} == {
        "blocked": 0,
        "assigned": 0,
    }
    zf.kill(gate)
    failure(waiting)


def test_explain_names_what_a_call_waits_for(tmp_path: Path) -> None:
    """Its place in the queue; and what keeps the actor."""
    go = tmp_path / "go"
    seen, endless = Seen.remote(), when.remote(str(go))
    zf.get(seen.pid.remote(), timeout=PATIENCE)
    waiting = seen.wait.remote([endless])
    behind = seen.pid.remote()
    eventually(lambda: zf.explain(seen).state == "blocked", "it waits for the task")
    assert "is blocked in get, waiting for" in zf.explain(seen).reason
    assert "(when, " in zf.explain(seen).reason
    found = zf.explain(behind)
    assert found.state == "called"
    assert found.reason == "pid is with the actor, behind 1 of this process that have no outcome yet"
    assert "waiting for" in found.facts["the actor is blocked"]
    held_up = seen.wait.remote(endless)
    assert zf.explain(held_up).reason.startswith("wait waits for 1 of its arguments")
    passed = pass_on.remote(behind)
    eventually(lambda: "call of Seen" in zf.explain(passed).reason, "the task waits for the call")
    go.touch()
    zf.get([waiting, behind, passed], timeout=PATIENCE)
    assert zf.explain(behind).state != "called"
    failure(held_up)


def test_explain_shows_two_actors_that_wait_for_each_other(tmp_path: Path) -> None:
    """Where the circle need not be one, since something else may come first, it is not refused, and each end shows it."""
    left, right = Seen.options(name="left").remote(), Seen.options(name="right").remote()
    zf.get([left.pid.remote(), right.pid.remote()], timeout=PATIENCE)
    gate = when.remote(str(tmp_path / "go"))
    first = left.ask_or.remote(right, left, [gate])
    eventually(lambda: zf.explain(left).state == "blocked" and zf.explain(right).state == "blocked", "both wait")
    for end, circle in ((left, "Seen.ask_or (left) -> Seen.ask (right)"), (right, "Seen.ask (right) -> Seen.ask_or (left)")):
        reason = zf.explain(end).reason
        assert f"its call {circle.split(' (')[0]} (1-" in reason
        assert "is blocked in get, waiting for" in reason
        assert "call of Seen" in reason
        assert reason.endswith(f"it waits for itself: {circle} -> {circle.split(' -> ')[0]}")
    assert "it waits for itself" in printed("explain", "left")
    (tmp_path / "go").touch()
    zf.get(first, timeout=PATIENCE)
    assert zf.get(right.pid.remote(), timeout=PATIENCE)


def test_explain_names_why_an_actor_is_dead() -> None:
    seen = Seen.options(name="dead, and listed").remote()
    failure(seen.die.remote())
    found = zf.explain(seen)
    assert found.state == "dead"
    assert "exit code 3" in found.reason
    assert row_of(seen)["reason"] == found.reason
    assert zf.explain("dead, and listed").reason == found.reason, "it is known by its name as long as it is listed"
    again = Seen.options(name="dead, and listed").remote()
    zf.get(again.pid.remote(), timeout=PATIENCE)
    assert zf.explain("dead, and listed").state == "alive"


@pytest.mark.parametrize("threads", [None, 2])
def test_calls_are_in_the_timeline(threads: int | None) -> None:
    """A row for the actor's process, and a bar for each call with its own duration; they come within a second or two."""
    began = time.monotonic()
    seen = Seen.options(max_concurrency=threads).remote()
    pids = zf.get([seen.pid.remote() for _ in range(1500)], timeout=PATIENCE)

    def bars() -> list[dict[str, Any]]:
        return [event for event in zf.timeline() or () if event["ph"] == "X" and event["tid"] == pids[0] and event["cat"] == "call"]

    eventually(lambda: len(bars()) == 1500, "every call is there, once")
    assert {bar["name"] for bar in bars()} == {"Seen.pid"}
    assert all(0 < bar["dur"] <= (time.monotonic() - began) * 1e6 for bar in bars())
    named = {event["args"]["name"] for event in zf.timeline() or () if event["name"] == "thread_name" and event["tid"] == pids[0]}
    assert f"actor Seen {pids[0]}" in named


@zf.remote
class Leaving:
    """Ends itself at once, and its process once a file is there."""

    def pid(self) -> int:
        return os.getpid()

    def leave(self, path: str) -> None:
        self.path = path
        zf.exit_actor()

    def __exit__(self, *_: object) -> None:
        while not os.path.exists(self.path):
            time.sleep(0.002)


def test_calls_of_an_actor_that_has_ended_itself_are_in_the_timeline(tmp_path: Path) -> None:
    """At once: a program that learns of the end may end as well, and all its processes then."""
    leaving = Leaving.remote()
    for _ in range(5):
        zf.get(leaving.pid.remote(), timeout=PATIENCE)
    left = leaving.leave.remote(str(tmp_path / "gate"))
    with pytest.raises(zf.ActorDiedError):
        zf.get(left, timeout=PATIENCE)
    assert [event["name"] for event in zf.timeline() or () if event["name"] == "Leaving.pid"] == ["Leaving.pid"] * 5
    (tmp_path / "gate").touch()


# --- ids ----------------------------------------------------------------------------------------------------------------------------------


@zf.remote
def yields(path: str) -> Iterator[int]:
    while not os.path.exists(path):
        time.sleep(0.002)
    yield 1


def test_ids_are_printed_in_one_form_that_commands_accept(tmp_path: Path) -> None:
    gate = str(tmp_path / "gate")
    actor, ref, stream, value = Seen.remote(), when.remote(gate), yields.remote(gate), zf.put(1)
    call = actor.when.remote(gate)
    dead = Seen.remote()
    error = failure(dead.die.remote())
    shown = {thing: re.findall(r"[0-9]+-[0-9a-f]{4}-[0-9]+(?:-[cp]?[0-9]+)?", repr(thing)) for thing in (actor, ref, stream, value, call)}
    assert all(len(found) == 1 for found in shown.values()), shown
    assert shown[ref][0].endswith("-0")
    assert "-p" in shown[value][0]
    assert shown[call][0].endswith("-c0")
    for thing in (actor, ref, value):
        # They may begin between the two questions.
        eventually(lambda thing=thing: zf.explain(shown[thing][0]).state == zf.explain(thing).state, "the text stands for the same")
        explanation = zf.explain(thing)
        asked = printed("explain", shown[thing][0])
        assert shown[thing][0].removesuffix("-0") in asked
        texts = (str(explanation), repr(explanation), asked, str(error), zf.explain(dead).reason)
        assert not any(re.search("[0-9a-f]{24}", text) for text in texts), texts
    assert shown[actor][0] in str(zf.explain(actor))
    assert re.search(r"of actor 1-[0-9a-f]{4}-[0-9]+ has no result", str(error))
    assert error.actor_id == dead._actor_id.hex(), "what programs compare is whole"
    Path(gate).touch()
    zf.get([ref, call], timeout=PATIENCE)
