"""Large data that is sent again and again causes one warning, with the advice to put it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from faults import PATIENCE

import zfabric as zf
from zfabric.api import repeats

SIZE = repeats.LARGE // 8 + 1000


@pytest.fixture(autouse=True)
def fresh(shared_cluster: Any) -> Iterator[None]:
    repeats._sent.clear()
    repeats._warned.clear()
    yield
    repeats._sent.clear()


def warned(calls: Callable[[], Any]) -> list[warnings.WarningMessage]:
    """The warnings of these calls."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        refs = calls()
    zf.get(refs, timeout=PATIENCE)
    return found


@zf.remote
def size_of(value: Any, number: int = 0) -> int:
    return len(value)


@zf.remote
class Sizes:
    def of(self, value: Any) -> int:
        return len(value)


def test_an_argument_that_is_sent_again_and_again_is_named_once_with_what_to_do() -> None:
    array = np.arange(float(SIZE))
    sizes = Sizes.remote()
    assert warned(lambda: [size_of.remote(array, number) for number in range(2)]) == []
    (found,) = warned(lambda: [size_of.remote(array, number) for number in range(4)])
    assert found.category is RuntimeWarning
    assert found.filename == __file__
    assert "the same argument (args[0], 10 MB) has been sent 3 times: store it once, ref = zf.put(x)" in str(found.message)
    assert warned(lambda: [sizes.of.remote(array) for _ in range(4)]) == []


@pytest.mark.parametrize("how", ["a list", "a keyword", "map", "an actor", "bytes"])
def test_an_argument_is_recognised_by_its_contents(how: str) -> None:
    array = np.arange(float(SIZE))
    calls: dict[str, Callable[[], Any]] = {
        "a list": lambda: [size_of.remote([array, number]) for number in (1, 1, 1)],
        "a keyword": lambda: [size_of.remote(value=array.copy()) for _ in range(3)],
        "map": lambda: size_of.map([array] * 3),
        "an actor": lambda: [(sizes := Sizes.remote()).of.remote(array), sizes.of.remote(array), sizes.of.remote(array)],
        "bytes": lambda: [size_of.remote(bytes(SIZE * 8)) for _ in range(3)],
    }
    assert len(warned(calls[how])) == 1


def test_what_is_stored_once_or_changes_or_is_small_causes_no_warning() -> None:
    array, ref = np.zeros(SIZE), zf.put(np.zeros(SIZE))

    def changing() -> Iterator[Any]:
        for number in range(4):
            array[12_345 + number] = number + 1.0  # The samples do not see it.
            yield size_of.remote(array)

    for calls in (
        lambda: [size_of.remote(ref, number) for number in range(4)],
        lambda: list(changing()),
        lambda: [size_of.remote(np.full(SIZE, number)) for number in range(4)],
        lambda: [size_of.remote(np.zeros(SIZE // 2)) for number in range(4)],
    ):
        assert warned(calls) == []


def test_a_function_that_captures_much_is_named_once_with_what_to_do() -> None:
    array = np.arange(float(SIZE))

    @zf.remote
    def captures(number: int) -> float:
        return float(array[number])

    assert warned(lambda: [captures.remote(number) for number in range(2)]) == []
    (found,) = warned(lambda: [captures.remote(number) for number in range(3)])
    assert found.filename == __file__
    assert "captures has 10 MB with what it captures, which every worker that runs it receives: store the data once" in str(found.message)
    assert captures._client is not None, "further calls take the short way"


@pytest.mark.parametrize("how", ["lambdas", "map", "classes"])
def test_functions_that_are_made_anew_count_as_one(how: str) -> None:
    array = np.arange(float(SIZE))

    class Captures:
        def __init__(self) -> None:
            self.size = len(array)

        def of(self) -> int:
            return self.size

    calls: dict[str, Callable[[], Any]] = {
        "lambdas": lambda: [zf.remote(lambda: len(array)).remote() for _ in range(3)],
        "map": lambda: zf.remote(lambda number: len(array)).map(range(3)),
        "classes": lambda: [zf.remote(num_cpus=0)(Captures).remote().of.remote() for _ in range(3)],
    }
    assert len(warned(calls[how])) == 1
