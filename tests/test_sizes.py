"""What is large: it travels in other ways, is cut down, or is refused at the call; and what comes after it is not held up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bad_days import PATIENCE, query

import zfabric as zf
from zfabric.api import remote_function

SIZE = 60_000
"""Of values that are inline by themselves, and too many for one row."""
MANY = 40


@pytest.fixture(scope="module", autouse=True)
def shared(shared_cluster: Any) -> Any:
    return shared_cluster


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


def test_values_that_are_too_many_for_one_row_arrive_all_the_same() -> None:
    actor = Actor.remote()
    values = [bytes([number]) * SIZE for number in range(MANY)]
    put = [zf.put(each) for each in values]
    made = [value.remote(number) for number in range(MANY)]
    called = [actor.value.remote(number) for number in range(MANY)]
    for arguments in (values, put, made, called):
        refs = [total.remote(*arguments), actor.total.remote(*arguments)]
        assert zf.get(refs, timeout=PATIENCE) == [RIGHT, RIGHT]


def test_what_a_task_returns_is_in_the_store_where_it_is_too_much_for_one_row() -> None:
    @zf.remote(num_returns=MANY)
    def several() -> list[bytes]:
        return [bytes([number]) * SIZE for number in range(MANY)]

    before = query("status")["statistics"]["inline_bytes"]
    refs = several.remote()
    assert [zf.get(ref, timeout=PATIENCE)[0] for ref in refs] == list(range(MANY))
    assert query("status")["statistics"]["inline_bytes"] - before < 20 * SIZE


def test_an_error_that_is_too_large_reaches_its_caller_and_what_comes_after_it_is_not_held_up() -> None:
    class Found(Exception):
        pass

    @zf.remote
    def text() -> None:
        raise ValueError("x" * 5_000_000)

    @zf.remote
    def array() -> None:
        raise Found(bytearray(8_000_000))

    with pytest.raises(ValueError, match=r"^xxx"):
        zf.get(text.remote(), timeout=PATIENCE)
    with pytest.raises(zf.TaskError) as caught:
        zf.get(array.remote(), timeout=PATIENCE)
    assert type(caught.value.cause).__qualname__.endswith("Found")
    assert zf.get(value.remote(1), timeout=PATIENCE)[0] == 1


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
