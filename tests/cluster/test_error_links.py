"""What is behind a remote exception: causes, contexts and members of groups are objects again."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
from faults import PATIENCE

import zfabric as zf
from zfabric.adapters import error_links, task_errors
from zfabric.exceptions import FabricError, TaskError

FACTS = {"function": "f"}


def sent(error: BaseException) -> Any:
    """An error as its reader gets it."""
    return task_errors.load_error(task_errors.pack_error(error, FACTS)[0])


def raised(error: BaseException, cause: BaseException | None = None, context: BaseException | None = None) -> BaseException:
    error.__context__ = context
    if cause is not None:
        error.__cause__ = cause
    return error


class Inner(Exception):
    def __init__(self, code: int, more: Any = None) -> None:
        super().__init__(code)
        self.code, self.more = code, more


def test_cause_and_context_are_behind_the_error_and_behind_what_was_raised() -> None:
    inner, before = Inner(7), KeyError("before")
    inner.add_note("while it rained")
    error = sent(raised(RuntimeError("outer"), inner, before))
    for each in (error, error.cause):
        assert (type(each.__cause__), each.__cause__.code, each.__cause__.__notes__) == (Inner, 7, ["while it rained"])
        assert repr(each.__context__) == "KeyError('before')"
        assert each.__suppress_context__
    assert error.__cause__ is error.cause.__cause__
    assert "direct cause" in error.traceback_text


@pytest.mark.parametrize("suppressed", [True, False])
def test_a_context_alone(suppressed: bool) -> None:
    original = raised(RuntimeError("outer"), context=Inner(1))
    original.__suppress_context__ = suppressed
    error = sent(original)
    assert error.__cause__ is None
    assert error.__context__.code == 1
    assert error.__suppress_context__ is suppressed


def test_an_error_with_nothing_behind_it_has_no_rows() -> None:
    error = sent(RuntimeError("alone"))
    assert (error.__cause__, error.__context__, error.__suppress_context__) == (None, None, False)
    assert error_links.rows_of(ExceptionGroup("two", [ValueError(1), ValueError(2)]), pytest.fail) == ()


def test_chains_and_what_is_shared() -> None:
    root = Inner(1)
    error = sent(raised(Inner(4), raised(Inner(3), raised(Inner(2), root)), root))
    assert error.__cause__.__cause__.__cause__ is error.__context__
    assert [error.code, error.__cause__.code, error.__cause__.__cause__.code, error.__context__.code] == [4, 3, 2, 1]


def test_cycles() -> None:
    one, other = Inner(1), Inner(2)
    one.__cause__, other.__cause__, other.__context__ = other, one, other
    error = sent(one)
    assert error.__cause__.code == 2
    assert error.__cause__.__cause__ is error.cause
    assert error.cause.__cause__ is error.__cause__ is error.__cause__.__context__


def test_members_of_groups_have_theirs() -> None:
    member, other = raised(ValueError("v"), Inner(1)), KeyError("k")
    inside = raised(ExceptionGroup("inside", [member]), context=Inner(2))
    error = sent(raised(ExceptionGroup("outside", [inside, other]), other))
    assert isinstance(error, ExceptionGroup)
    inside = error.exceptions[0]
    assert (inside.exceptions[0].__cause__.code, inside.__context__.code) == (1, 2)
    assert error.__cause__ is error.exceptions[1]
    assert error.exceptions[0] is error.cause.exceptions[0]


def test_a_member_is_the_cause_of_what_is_raised_for_its_group() -> None:
    member = raised(ValueError("v"), Inner(1))
    group = ExceptionGroup("all", [KeyError("k"), member])
    error = sent(raised(RuntimeError("last"), member, group))
    assert error.__cause__ is error.__context__.exceptions[1]
    assert error.__cause__.__cause__.code == 1


def test_a_link_that_cannot_be_pickled_or_loaded_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = raised(Inner(1, threading.Lock()), Inner(2))
    error = sent(raised(RuntimeError("outer"), locked))
    assert (error.__cause__.code, error.__cause__.__cause__.code) == (1, 2)
    assert "lock" in error.__cause__.more

    class Refusing(Exception):
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise TypeError("no")

        __new__ = None  # type: ignore[assignment]

    refusing = BaseException.__new__(Refusing)
    refusing.args = ("it refuses",)
    error = sent(raised(RuntimeError("outer"), raised(refusing, Inner(3))))
    assert isinstance(error.__cause__, FabricError)
    assert "Refusing: it refuses" in str(error.__cause__)
    assert error.__cause__.__cause__.code == 3


def test_links_end_at_their_bounds() -> None:
    last = Inner(0)
    for code in range(1, 1000):
        last = raised(Inner(code, b"x" * 100_000), context=last)  # type: ignore[assignment]
    data, _ = task_errors.pack_error(last, FACTS)
    assert len(data) < 2 * error_links.LINKED_BYTES_MAX
    error: Any = task_errors.load_error(data)
    found = [error]
    while found[-1].__context__ is not None:
        found.append(found[-1].__context__)
    assert len(found) == error_links.LINKED_MAX
    assert (found[1].code, found[1].more) == (998, b"x" * 100_000)
    assert "960" in str(found[39])  # Of those behind there is a text at least.


def test_an_error_keeps_its_links_wherever_it_goes() -> None:
    first = sent(raised(RuntimeError("outer"), Inner(7)))
    for error in (pickle.loads(pickle.dumps(first)), copy.copy(first), copy.deepcopy(first), sent(first), sent(sent(first))):
        assert isinstance(error, TaskError)
        assert error.__cause__.code == 7  # type: ignore[union-attr]
    sizes = [len(task_errors.pack_error(each, FACTS)[0]) for each in (first, sent(first), sent(sent(first)))]
    assert sizes[2] - sizes[1] < 1.5 * (sizes[1] - sizes[0]), "each task on the way adds as much"
    behind = sent(raised(KeyError("reader"), first))
    assert behind.__cause__.__cause__.code == 7


def test_a_tasks_error_has_its_cause(shared_cluster: Any) -> None:
    @zf.remote
    def fail() -> None:
        try:
            raise Inner(7)
        except Inner as error:
            raise RuntimeError("outer") from error

    @zf.remote
    def fails_below() -> None:
        zf.get(fail.remote())

    for function in (fail, fails_below):
        with pytest.raises(RuntimeError, match="outer") as caught:
            zf.get(function.remote(), timeout=PATIENCE)
        assert isinstance(caught.value.__cause__, Inner)
        assert caught.value.__cause__.code == 7
