"""Ctrl-C at every line of the fabric that a program comes to: what it has refs to arrives, and no call of an actor runs twice."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bad_days import PATIENCE
from conftest import running_cluster

import zfabric as zf
from zfabric.runtime import interface

PACKAGE = str(Path(zf.__file__).parent)
REPEAT = 0.2
"""What a frame was lost in the middle of being taken in is repeated by its sender after so many seconds."""


@pytest.fixture(scope="module", autouse=True)
def shared() -> Iterator[Any]:
    with running_cluster(config={"link_repeat": REPEAT}) as context:
        yield context


@zf.remote
def twice(number: int) -> int:
    return 2 * number


@zf.remote
class Notes:
    def __init__(self) -> None:
        self.numbers: list[int] = []

    def add(self, number: int) -> int:
        self.numbers.append(number)
        return 2 * number

    def all(self) -> list[int]:
        return self.numbers


class CtrlC:
    """Raises KeyboardInterrupt at one line of the fabric: the one that this thread comes to after so many others."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.client: Any = interface.current()
        self.where = ""

    def __call__(self, frame: Any, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: Any, event: str, _: Any) -> Any:
        # A lock that is taken in one statement and let go of in the "finally" of the next is no place: the interpreter itself is
        # interrupted there only if the signal comes in the middle of taking it.
        if event == "line" and not (frame.f_code.co_name in ("wait_until", "look") and self.client._pump_lock.locked()):
            self.left -= 1
            if not self.left:
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._line


def interrupted_everywhere(act: Callable[[int, list[tuple[int, Any]]], None], every: int, rest: Callable[[], Any] | None) -> set[int]:
    """Do it again and again, each time interrupted a little later; the numbers whose values have come.

    Without a ``rest`` in between, what puts right what was interrupted is interrupted as well.
    """
    arrived: set[int] = set()
    for number in range(1, 10_000):
        refs: list[tuple[int, Any]] = []
        ctrl_c = CtrlC(number * every)
        before = sys.gettrace()
        sys.settrace(ctrl_c)
        try:
            act(number, refs)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        for each, ref in refs:
            assert zf.get(ref, timeout=PATIENCE) == 2 * each, ctrl_c.where
            arrived.add(each)
        if not ctrl_c.where:
            return arrived
        if rest is not None:
            zf.get(rest(), timeout=PATIENCE)
    raise AssertionError("it takes ever more lines")


def one_by_one(submit: Callable[[int], Any]) -> Callable[[int, list[tuple[int, Any]]], None]:
    def act(number: int, refs: list[tuple[int, Any]]) -> None:
        refs.append((number, submit(number)))
        zf.get(refs[-1][1], timeout=PATIENCE)

    return act


def several(submit: Callable[[int], Any]) -> Callable[[int, list[tuple[int, Any]]], None]:
    def act(number: int, refs: list[tuple[int, Any]]) -> None:
        for index in range(5):
            refs.append((number * 10 + index, submit(number * 10 + index)))
        zf.get([ref for _, ref in refs], timeout=PATIENCE)

    return act


WAYS = [
    pytest.param(one_by_one, 1, True, id="one by one"),
    pytest.param(several, 3, True, id="several"),
    pytest.param(one_by_one, 7, False, id="again and again"),
]


@pytest.mark.parametrize(("how", "every", "rests"), WAYS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_tasks(how: Any, every: int, rests: bool) -> None:
    zf.get([twice.remote(number) for number in range(10)])
    for number in range(10):
        zf.get(twice.remote(number))
    arrived = interrupted_everywhere(how(twice.remote), every, (lambda: twice.remote(0)) if rests else None)
    assert len(arrived) > 100 or not rests
    client: Any = interface.current()
    client.wait_until(lambda: client.machine.unfinished == 0, None)


@pytest.mark.parametrize(("how", "every", "rests"), WAYS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_calls_of_an_actor(how: Any, every: int, rests: bool) -> None:
    notes = Notes.remote()
    zf.get(notes.all.remote())
    arrived = interrupted_everywhere(how(notes.add.remote), every, notes.all.remote if rests else None)
    assert len(arrived) > 100 or not rests
    ran = Counter(zf.get(notes.all.remote(), timeout=PATIENCE))
    assert max(ran.values()) == 1
    assert arrived <= ran.keys()
    client: Any = interface.current()
    client.wait_until(lambda: client.machine.unfinished == 0, None)
