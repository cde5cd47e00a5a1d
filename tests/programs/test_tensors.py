"""Tensors of torch: without a copy, and on memory of the reader's own. Where torch is not installed, nothing of this is tested."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import PATIENCE, eventually, query

import zfabric as zf
from zfabric.adapters import serialization as s

torch: Any = pytest.importorskip("torch", reason="torch is not installed: that tensors are read without a copy is NOT tested")
MIB = 2**20


def round_trip(value: Any) -> Any:
    return s.deserialize(s.serialize(value).to_bytes())


def test_tensors_of_every_kind_come_back() -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    values = [
        base,
        base.t(),
        base[1:, ::2],
        base > 3,
        torch.zeros(0),
        torch.tensor(5, dtype=torch.int64),
        torch.complex(base, base).conj(),
        base.to_sparse(),
        torch.ones(2, requires_grad=True),
        parameter,
    ]
    found = round_trip({"values": values, "array": np.arange(5), "same": [parameter, parameter]})
    for value, other in zip(values, found["values"], strict=True):
        assert type(value) is type(other)
        assert (value.dtype, value.shape, value.requires_grad) == (other.dtype, other.shape, other.requires_grad)
        assert torch.equal(value.to_dense() if value.is_sparse else value, other.to_dense() if other.is_sparse else other)
    assert found["same"][0] is found["same"][1]
    with pytest.raises(ValueError, match="read-only"):
        found["array"][0] = 1
    model = torch.nn.Linear(4, 2)
    assert torch.equal(round_trip(model)(torch.ones(4)), model(torch.ones(4)))


def test_a_small_slice_travels_without_the_whole_tensor() -> None:
    large = torch.zeros(MIB)
    assert s.serialize(large[:10]).size < 5000
    assert torch.equal(round_trip(large[:10]), large[:10])


def test_a_programs_own_way_of_pickling_tensors_is_left_alone() -> None:
    import copyreg

    copyreg.pickle(torch.Tensor, lambda tensor: (tuple, ((1, 2),)))
    try:
        assert round_trip([torch.zeros(3)]) == [(1, 2)]
    finally:
        del copyreg.dispatch_table[torch.Tensor]
    assert pickle.loads(pickle.dumps(torch.zeros(3))).shape == (3,)


def test_a_write_to_a_small_tensor_changes_a_private_copy() -> None:
    data = s.serialize([torch.zeros(100), np.zeros(10)]).to_bytes()
    tensor, array = s.deserialize(data)
    tensor += 1
    assert not array.any()
    assert not s.deserialize(data)[0].any()


@pytest.fixture(scope="module")
def store() -> Any:
    with zf.init("local", num_cpus=2, object_store_memory=128 * MIB, log_to_driver=False) as context:
        yield context


@zf.remote
def doubled(tensor: Any) -> Any:
    tensor *= 2
    return tensor


@pytest.mark.usefixtures("store")
def test_a_large_tensor_is_not_copied_and_a_write_changes_it_for_its_reader_alone() -> None:
    ref = zf.put(torch.ones(10 * MIB // 4))
    one, other = zf.get(ref), zf.get(ref)
    assert one.data_ptr() != other.data_ptr()
    begins = {int(line.split("-")[0], 16): line for line in Path("/proc/self/maps").read_text().splitlines()}
    mapped = begins[max(begin for begin in begins if begin <= one.data_ptr())]
    assert "zfabric-arena" in mapped, "it lies in the arena"
    assert " rw-p " in mapped
    one += 1
    assert one.sum() == 2 * one.numel()
    assert other.sum() == zf.get(ref).sum() == one.numel(), "the stored value is what it was"
    twice = zf.get(doubled.remote(ref), timeout=PATIENCE)
    assert twice.sum() == 2 * one.numel()
    assert zf.get(ref).sum() == one.numel()
    del ref, other, twice
    part = one[-10:]
    del one
    assert part.sum() == 20
    assert query("status")["store"]["objects"] >= 1, "what is looked at stays"
    del part
    eventually(lambda: query("status")["store"]["objects"] == 0, "and goes with the last tensor that looks into it")


@pytest.mark.usefixtures("store")
def test_tensors_that_are_read_on_disk_may_be_written_to() -> None:
    refs = [zf.put(torch.full((40 * MIB // 4,), float(number))) for number in range(5)]
    tensors = zf.get(refs, timeout=PATIENCE)
    for number, tensor in enumerate(tensors):
        tensor[:10] = -1
        assert tensor[10] == number
    assert [zf.get(ref)[0].item() for ref in refs] == [0, 1, 2, 3, 4]
