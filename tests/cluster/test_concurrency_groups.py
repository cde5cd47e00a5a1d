"""Concurrency groups: calls of different groups do not wait for each other, those of one begin in order. Real processes."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from faults import PATIENCE, eventually

import zfabric as zf

pytestmark = pytest.mark.usefixtures("shared_cluster")

GROUPS = {"io": 2, "compute": 1}


def value(ref: Any) -> Any:
    return zf.get(ref, timeout=PATIENCE)


def gathered(path: str, wanted: int) -> list[str]:
    """Comes, and waits until ``wanted`` are here; who is."""
    Path(path, f"{os.urandom(8).hex()}").touch()
    return eventually(lambda: len(found) >= wanted and found if (found := os.listdir(path)) else None, "enough have come")  # type: ignore[no-any-return]


@zf.remote(concurrency_groups=GROUPS)
class Threaded:
    """Its groups are threads of their own."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.running = 0
        self.most = 0
        self.lock = threading.Lock()

    @zf.method(concurrency_group="io")
    def together(self, path: str, wanted: int) -> int:
        return len(gathered(path, wanted))

    @zf.method(concurrency_group="io")
    def counted(self) -> int:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        threading.Event().wait(0.001)  # so that others could run meanwhile
        with self.lock:
            self.running -= 1
        return self.most

    @zf.method(concurrency_group="compute")
    def note(self, number: int) -> list[int]:
        self.order.append(number)
        return self.order

    def hold(self, path: str) -> str:
        eventually(lambda: os.path.exists(path), "the gate opens")
        return threading.current_thread().name

    def ping(self) -> str:
        return "pong"


@zf.remote(concurrency_groups=GROUPS, max_concurrency=1)
class Looped:
    """They share one event loop."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.both = asyncio.Event()
        self.came = 0
        self.order: list[int] = []
        self.running = 0
        self.most = 0

    async def hold(self) -> str:
        await self.gate.wait()
        return "held"

    @zf.method(concurrency_group="io")
    async def release(self) -> None:
        self.gate.set()

    @zf.method(concurrency_group="io")
    async def meet(self) -> int:
        self.came += 1
        if self.came == 2:
            self.both.set()
        await self.both.wait()
        return self.came

    @zf.method(concurrency_group="io")
    async def counted(self) -> int:
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        return self.most

    @zf.method(concurrency_group="compute")
    async def note(self, number: int) -> list[int]:
        await asyncio.sleep(0)
        self.order.append(number)
        return self.order

    async def ping(self) -> str:
        return "pong"


def test_groups_of_threads_do_not_wait_for_each_other(tmp_path: Path) -> None:
    actor, gate = Threaded.remote(), tmp_path / "gate"
    together = tmp_path / "together"
    together.mkdir()
    held = actor.hold.remote(str(gate))
    behind = actor.ping.remote()
    assert value([actor.together.remote(str(together), 2) for _ in range(2)]) == [2, 2]
    assert value([actor.note.remote(number) for number in range(20)])[-1] == list(range(20))
    assert zf.wait([held, behind], num_returns=2, timeout=0)[0] == []
    gate.touch()
    assert value([held, behind])[1] == "pong"


def test_a_group_of_threads_is_no_larger_than_it_may_be() -> None:
    actor = Threaded.remote()
    assert value([actor.counted.remote() for _ in range(100)])[-1] <= 2


def test_groups_of_coroutines_do_not_wait_for_each_other() -> None:
    actor = Looped.remote()
    held, behind = actor.hold.remote(), actor.ping.remote()
    assert value([actor.note.remote(number) for number in range(20)])[-1] == list(range(20))
    assert value([actor.meet.remote(), actor.meet.remote()]) == [2, 2]
    assert value([actor.counted.remote() for _ in range(100)])[-1] <= 2
    assert zf.wait([held, behind], num_returns=2, timeout=0)[0] == []
    value(actor.release.remote())
    assert value([held, behind]) == ["held", "pong"]


def test_a_call_may_be_of_another_group_than_its_method(tmp_path: Path) -> None:
    actor, gate = Threaded.remote(), tmp_path / "gate"
    held = actor.hold.remote(str(gate))
    assert value(actor.ping.options(concurrency_group="io").remote()) == "pong"
    assert value(zf.get(pass_on.remote(actor), timeout=PATIENCE)) == "pong"
    gate.touch()
    assert value(held).startswith("zfabric-call")


@zf.remote
def pass_on(actor: Any) -> Any:
    """What calls of another caller come to."""
    return actor.ping.options(concurrency_group="io").remote()


@zf.remote
def ready_after(gate: str) -> str:
    eventually(lambda: Path(gate).exists(), "the gate is open")
    return "ready"


class Listens:
    """Its methods take values that may have yet to come."""

    def plain(self, value: Any) -> Any:
        return value

    @zf.method(concurrency_group="io")
    def grouped(self, value: Any) -> Any:
        return value


class ListensInLoop(Listens):
    async def plain(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize(
    ("kind", "options"), [(Listens, {}), (Listens, {"max_concurrency": 2}), (ListensInLoop, {})], ids=["groups", "threads", "loop"]
)
def test_a_call_with_a_pending_argument_blocks_its_own_group_only(kind: type, options: dict[str, Any], tmp_path: Path) -> None:
    """The argument is only made once the later call has returned."""
    actor, gate = zf.remote(concurrency_groups={"io": 1}, **options)(kind).remote(), tmp_path / "gate"
    waits = actor.plain.remote(ready_after.remote(str(gate)))
    later = actor.plain.remote if options or kind is ListensInLoop else actor.grouped.remote
    assert value(later("at once")) == "at once"
    gate.touch()
    assert value(waits) == "ready"


class Tells:
    """Its methods return the threads that they run in: thread-local state of a library stays in its group."""

    def plain(self) -> int:
        return threading.get_ident()

    @zf.method(concurrency_group="io")
    def io(self) -> int:
        return threading.get_ident()

    @zf.method(concurrency_group="compute")
    def compute(self) -> int:
        return threading.get_ident()


def test_groups_have_threads_of_their_own() -> None:
    actor = zf.remote(concurrency_groups=GROUPS)(Tells).remote()
    threads: dict[str, set[int]] = {name: set() for name in ("plain", "io", "compute")}
    for _ in range(20):
        for name, refs in [(name, [getattr(actor, name).remote() for _ in range(3)]) for name in threads]:
            threads[name].update(value(refs))
    assert [len(threads["plain"]), len(threads["compute"])] == [1, 1]
    assert len(threads["io"]) <= 2
    assert len(set().union(*threads.values())) == sum(map(len, threads.values()))


def test_the_default_group_has_max_concurrency(tmp_path: Path) -> None:
    actor, gate = Threaded.options(max_concurrency=2).remote(), tmp_path / "gate"
    held = actor.hold.remote(str(gate))
    assert value(actor.ping.remote()) == "pong"
    gate.touch()
    value(held)


def test_a_call_that_waits_in_a_group_is_cancelled(tmp_path: Path) -> None:
    actor, gate = Threaded.remote(), tmp_path / "gate"
    held = actor.hold.options(concurrency_group="compute").remote(str(gate))
    waiting = actor.note.remote(7)
    zf.cancel(waiting)
    with pytest.raises(zf.TaskCancelledError, match="before it ran"):
        value(waiting)
    late = actor.note.options(timeout=0.1).remote(8)
    with pytest.raises(zf.TaskTimeoutError, match="before it ran"):
        value(late)
    gate.touch()
    value(held)
    assert value(actor.note.remote(9)) == [9]


def test_an_actor_ends_once_all_its_groups_are_done(tmp_path: Path) -> None:
    """Its handle goes while calls wait in a group: they run."""
    actor, gate, note = Threaded.remote(), tmp_path / "gate", tmp_path / "note"
    note.mkdir()
    refs = [actor.hold.options(concurrency_group="compute").remote(str(gate))]
    refs += [actor.together.options(concurrency_group="compute").remote(str(note), count) for count in (1, 2, 3)]
    del actor
    gate.touch()
    assert value(refs)[1:] == [1, 2, 3]


def test_an_unknown_group_is_refused() -> None:
    class Wrong:
        @zf.method(concurrency_group="compte")
        def read(self) -> int:
            return 1

    with pytest.raises(zf.OptionError, match=r"Wrong, whose method read .* no concurrency group 'compte'; .*did you mean 'compute'"):
        zf.remote(concurrency_groups=GROUPS)(Wrong)
    undeclared = zf.remote(Wrong)
    with pytest.raises(zf.OptionError, match=r"concurrency_groups=\{'compte': 2\}"):
        undeclared.remote()
    assert value(undeclared.options(concurrency_groups={"compte": 1}).remote().read.remote()) == 1
    with pytest.raises(zf.OptionError, match="Threaded has no concurrency group 'gpu'; it has io, compute"):
        Threaded.remote().ping.options(concurrency_group="gpu")
    for wrong in (["io"], {"io": 0}, {"": 1}, {"io": "2"}, {1: 2}):
        with pytest.raises(zf.OptionError, match="concurrency_groups"):
            zf.remote(concurrency_groups=wrong)
