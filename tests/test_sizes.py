"""What is large: it travels in other ways, is cut down, or is refused at the call; and what comes after it is not held up."""

from __future__ import annotations

from typing import Any

import pytest
from bad_days import PATIENCE, query

import zfabric as zf

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
