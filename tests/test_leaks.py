"""A few cycles of each kind of the soak: clusters begun, hurt and ended leave everything where it was."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import soak

import zfabric as zf
from zfabric.runtime import interface

CYCLES = {"start": 4, "kill": 2, "driver": 2, "daemon": 6, "worker": 6}


@pytest.mark.parametrize("kind", [*soak.WHOLE, *soak.WITHIN])
def test_cycles_leave_processes_descriptors_memory_and_files_where_they_were(kind: str) -> None:
    soak.zf.shutdown()
    assert soak.run(kind, CYCLES[kind]) == []


def test_a_client_goes_with_the_last_ref_of_its_cluster() -> None:
    """The collector does not look at refs, so none may be left where the client itself keeps it."""
    zf.shutdown()
    with zf.init(num_cpus=1):
        client = weakref.ref(interface.current())

        @zf.remote
        def same(value: object) -> object:
            return value

        refs = [same.remote(number) for number in range(3)]
        assert [ref.future().result(60) for ref in refs] == [0, 1, 2]
        assert zf.get(next(zf.as_completed([same.remote(refs[0])])), timeout=60) == 0
        late = same.remote(zf.put(1)).future()
    gc.collect()
    assert client() is not None, "refs of an ended cluster say so"
    del refs, late, same  # a function keeps the client that it was exported to
    gc.collect()
    assert client() is None


def test_completions_that_nobody_waits_for_any_more_go_with_their_cluster() -> None:
    zf.shutdown()
    with zf.init(num_cpus=1):
        client = weakref.ref(interface.current())

        @zf.remote
        def never() -> None:
            threading.Event().wait()

        refs = [never.remote() for _ in range(3)]
        with pytest.raises(zf.GetTimeoutError):
            next(zf.as_completed(refs, timeout=0.1))
    del refs, never
    gc.collect()
    assert client() is None
