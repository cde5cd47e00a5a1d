"""Large values, errors and texts: sent in other ways, cut down, or refused at the call; and later messages are not delayed."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import one_cluster
from faults import PATIENCE, eventually, failure, query

import zfabric as zf
from zfabric.api import remote_function

SIZE = 60_000
"""Of values that are inline by themselves, and too many for one row."""
MANY = 40


shared = one_cluster()


@zf.remote
def total(*values: bytes) -> int:
    return sum(map(len, values)) + sum(value[0] for value in values)


@zf.remote
def value(number: int) -> bytes:
    return bytes([number]) * SIZE


@zf.remote
class Actor:
    def total(self, *values: bytes) -> int:
        return sum(map(len, values)) + sum(value[0] for value in values)

    def value(self, number: int) -> bytes:
        return bytes([number]) * SIZE


RIGHT = MANY * SIZE + sum(range(MANY))


def test_values_too_many_for_one_row_arrive() -> None:
    actor = Actor.remote()
    values = [bytes([number]) * SIZE for number in range(MANY)]
    put = [zf.put(each) for each in values]
    made = [value.remote(number) for number in range(MANY)]
    called = [actor.value.remote(number) for number in range(MANY)]
    for arguments in (values, put, made, called):
        refs = [total.remote(*arguments), actor.total.remote(*arguments)]
        assert zf.get(refs, timeout=PATIENCE) == [RIGHT, RIGHT]


def test_returned_values_too_large_for_one_row_are_in_the_store() -> None:
    @zf.remote(num_returns=MANY)
    def several() -> list[bytes]:
        return [bytes([number]) * SIZE for number in range(MANY)]

    before = query("status")["statistics"]["inline_bytes"]
    refs = several.remote()
    assert [zf.get(ref, timeout=PATIENCE)[0] for ref in refs] == list(range(MANY))
    assert query("status")["statistics"]["inline_bytes"] - before < 20 * SIZE


LARGE = 4_000_000


class Found(Exception):
    def __init__(self, what: str, code: int, content: Any) -> None:
        super().__init__(what)
        self.code = code
        self.content = content


@zf.remote
def raises_text() -> None:
    raise ValueError("x" * LARGE)


@zf.remote
def passed_on(value: Any) -> Any:
    return value


@zf.remote
class Raises:
    def text(self) -> None:
        raise ValueError("x" * LARGE)

    @zf.method(num_returns=2)
    def texts(self) -> None:
        raise ValueError("x" * LARGE)

    def stream(self) -> Iterator[int]:
        yield 1
        raise ValueError("x" * LARGE)


def is_whole(error: BaseException) -> bool:
    return isinstance(error, ValueError) and isinstance(error, zf.TaskError) and error.args == ("x" * LARGE,) == (str(error),)


def test_a_large_error_arrives_whole_through_the_store() -> None:
    @zf.remote
    def array() -> None:
        raise Found("what it says", 7, np.arange(LARGE // 8))

    @zf.remote
    def group() -> None:
        raise ExceptionGroup("several", [Found("inside", 8, bytearray(LARGE))])

    assert is_whole(failure(raises_text.remote()))
    error: Any = failure(array.remote())
    assert (str(error), error.code, error.args) == ("what it says", 7, ("what it says",))
    assert (error.content == np.arange(LARGE // 8)).all()
    (inside,) = failure(group.remote()).exceptions  # type: ignore[attr-defined]
    assert (type(inside).__name__, inside.code, inside.content) == ("Found", 8, bytearray(LARGE))
    assert zf.get(value.remote(1), timeout=PATIENCE)[0] == 1


def test_a_large_error_passes_whole_through_dependents_gets_and_catchers() -> None:
    @zf.remote
    def got(refs: list[Any]) -> Any:
        return zf.get(refs[0])

    @zf.remote
    def caught(refs: list[Any]) -> Any:
        try:
            zf.get(refs[0])
        except ValueError as error:
            return error

    first = raises_text.remote()
    depends, gets = first, first
    for _ in range(5):
        depends, gets = passed_on.remote(depends), got.remote([gets])
    actor = Raises.remote()
    for ref in (depends, gets, passed_on.remote(actor.text.remote()), got.remote([actor.text.remote()])):
        assert is_whole(failure(ref))
    as_value = caught.remote([first])
    del first
    assert is_whole(zf.get(as_value, timeout=PATIENCE))
    assert is_whole(zf.get(raises_text.remote(), return_exceptions=True))


def test_a_large_error_that_is_returned_is_released_without_a_garbage_collection() -> None:
    def caught(refs: list[Any]) -> Any:
        gc.disable()  # In a worker of its own, and in an actor.
        try:
            zf.get(refs[0])
        except ValueError as error:
            return error

    class Catches:
        def caught(self, refs: list[Any]) -> Any:
            return caught(refs)

    task = zf.remote(runtime_env={"env_vars": {"COLLECTS": "no"}})(caught)
    actor = zf.remote(max_concurrency=2)(Catches).remote()
    nothing_is_kept()
    for catches in (task, actor.caught):
        assert is_whole(zf.get(catches.remote([raises_text.remote()]), timeout=PATIENCE))
        nothing_is_kept()


def test_a_large_error_of_a_call_arrives_whole() -> None:
    class Never:
        def __init__(self) -> None:
            raise ValueError("x" * LARGE)

        def method(self) -> None:
            pass

    class Light:
        def text(self) -> None:
            raise ValueError("x" * LARGE)

    class InLoop:
        async def text(self) -> None:
            raise ValueError("x" * LARGE)

    actor, light, in_loop = Raises.remote(), zf.remote(lightweight=True)(Light).remote(), zf.remote(InLoop).remote()
    refs = [actor.text.remote(), *actor.texts.remote(), light.text.remote(), in_loop.text.remote()]
    refs.append(list(actor.stream.options(num_returns="streaming").remote())[1])
    for ref in refs:
        assert is_whole(failure(ref))
    died = failure(zf.remote(Never).remote().method.remote())
    assert type(died) is zf.ActorDiedError
    assert died.__cause__ is not None
    assert is_whole(died.__cause__)


def test_a_large_error_of_a_stream_and_of_a_generator_arrives_whole() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        raise ValueError("x" * LARGE)

    streamed = list(zf.remote(num_returns="streaming")(numbers).remote())
    three = zf.remote(num_returns=3)(numbers).remote()
    assert [zf.get(streamed[0], timeout=PATIENCE), zf.get(three[0], timeout=PATIENCE)] == [1, 1]
    for ref in (streamed[1], *three[1:]):
        assert is_whole(failure(ref))


def test_a_large_error_that_is_retried_arrives_whole_and_leaves_nothing(tmp_path: Path) -> None:
    @zf.remote(max_retries=2, retry_exceptions=True)
    def again() -> None:
        (tmp_path / str(len(list(tmp_path.iterdir())))).touch()
        raise ValueError("x" * LARGE)

    nothing_is_kept()
    assert is_whole(failure(again.remote()))
    assert len(list(tmp_path.iterdir())) == 3
    nothing_is_kept()


def nothing_is_kept() -> None:
    gc.collect()
    eventually(lambda: query("status")["store"]["objects"] == 0, "nothing is kept of errors that were dropped")


def test_a_ref_inside_an_error_lives_as_long_as_the_error() -> None:
    @zf.remote
    def holds() -> None:
        raise Found("has a ref", 1, zf.put(bytes(LARGE)))

    @zf.remote
    class Holds:
        def method(self) -> None:
            raise Found("has a ref", 1, zf.put(bytes(LARGE)))

    nothing_is_kept()
    actor = Holds.remote()
    for raised in (holds.remote, actor.method.remote):
        for follow in (lambda ref: ref, passed_on.remote):
            error: Any = failure(follow(raised()))
            assert zf.get(passed_on.remote(1), timeout=PATIENCE) == 1
            assert len(zf.get(error.content, timeout=PATIENCE)) == LARGE
            copied = copy.copy(error)
            del error
            assert len(zf.get(copied.content, timeout=PATIENCE)) == LARGE
            del copied
            nothing_is_kept()


LONG = "n" * 5000
TEXTS: dict[str, Callable[[], Any]] = {
    "name": lambda: total.options(name=LONG),
    "an actor's name": lambda: Actor.options(name=LONG),
    "its namespace": lambda: Actor.options(name="short", namespace=LONG),
    "resource": lambda: total.options(resources={LONG: 1}),
    "variable": lambda: total.options(runtime_env={"env_vars": {"A": "v" * 131_072}}),
    "variables": lambda: total.options(runtime_env={"env_vars": {f"A{number}": "v" * 100_000 for number in range(11)}}),
    "get_actor": lambda: zf.get_actor(LONG),
    "namespace of get_actor": lambda: zf.get_actor("short", namespace=LONG),
    "explain": lambda: zf.explain(LONG),
    "explain bytes": lambda: zf.explain(LONG.encode()),
    "keyword of a task": lambda: keywords.remote(**{"k" * 5_000_000: 1}),
    "keyword of a call": lambda: Keywords.remote().keywords.remote(**{"k" * 5_000_000: 1}),
    "group": lambda: Actor.options(concurrency_groups={LONG: 2}),
}


@zf.remote
def keywords(**values: int) -> int:
    return len(values)


@zf.remote
class Keywords:
    def keywords(self, **values: int) -> int:
        return len(values)


@pytest.mark.parametrize("case", TEXTS)
def test_a_text_that_is_too_long_is_refused_at_the_call_with_the_bound(case: str) -> None:
    with pytest.raises(ValueError, match=r"has at most [0-9,]+ bytes") as caught:
        TEXTS[case]()
    assert len(str(caught.value)) < 200
    assert zf.get(keywords.remote(a=1), timeout=PATIENCE) == 1


def test_the_longest_texts_travel() -> None:
    longest = "n" * 4096
    named = Actor.options(name=longest).remote()
    assert zf.get(zf.get_actor(longest).value.remote(1), timeout=PATIENCE)[0] == 1
    assert zf.explain(longest).state == "alive"
    variables = {"LONG_ONE": "v" * (131_071 - len("LONG_ONE=")), **{f"LONG_{number}": "w" * 100_000 for number in range(8)}}

    @zf.remote(name=longest, runtime_env={"env_vars": variables})
    def seen() -> int:
        import os
        import subprocess

        subprocess.run(["true"], check=True)  # A program of its own is passed as much.
        return sum(len(os.environ[name]) for name in variables)

    assert zf.get(seen.remote(), timeout=PATIENCE) == sum(map(len, variables.values()))
    assert zf.get(keywords.remote(**{longest: 1}), timeout=PATIENCE) == 1
    del named


def test_a_call_with_more_refs_than_a_message_carries_is_refused_at_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_function, "CALL_BYTES_MAX", 10_000)
    refs = [zf.put(number) for number in range(500)]
    with pytest.raises(ValueError, match="have at most 10,000 bytes"):
        total.remote(*refs, b"x" * 2_000_000)
