"""Resource vectors: the meaning of options, and that a pool never gives away more than it has."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zfabric.exceptions import OptionError
from zfabric.machines.common.resources import AMOUNT_MAX, ResourcePool, amount_of, demand_of, describe
from zfabric.protocol.machine import InvariantViolation
from zfabric.protocol.options import ONE_CPU, RESOURCE_UNIT


def test_one_cpu_by_default():
    assert demand_of() == ONE_CPU
    assert demand_of(num_cpus=0) == ()
    assert demand_of(num_cpus=0, num_gpus=0.25, resources={"b": 1, "a": 2, "none": 0}) == (("GPU", 2500), ("a", 20000), ("b", 10000))


def test_fractions_that_floats_only_approximate():
    assert amount_of("x", 0.1 * 3) == 3000
    assert amount_of("x", 0.7 + 0.1) == 8000
    assert amount_of("x", numpy.float32(0.5)) == 5000
    assert amount_of("x", numpy.float32(0.7)) == 7000
    assert amount_of("x", numpy.int64(3)) == 30000
    assert amount_of("x", AMOUNT_MAX) == AMOUNT_MAX * RESOURCE_UNIT


def test_what_is_between_two_units_is_rounded_down():
    assert demand_of(num_cpus=1.23456, num_gpus=2 / 3, resources={"disk": 1 / 7}) == (("CPU", 12345), ("GPU", 6666), ("disk", 1428))
    assert amount_of("x", Fraction(1, 3)) == amount_of("x", numpy.float32(1 / 3)) == 3333
    assert amount_of("x", 0.99999) == 9999


@given(st.integers(1, RESOURCE_UNIT))
def test_n_of_an_nth_share_one_gpu(n):
    pool = ResourcePool(demand_of(num_gpus=2))
    demand = demand_of(num_cpus=1 / n, num_gpus=1 / n)
    for name, amount in demand:
        assert n * amount <= RESOURCE_UNIT, name
    for _ in range(n):
        assert pool.fits(demand)
        pool.acquire(demand)
        assert pool.acquire_gpus(dict(demand)["GPU"]) == (0,)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_fractions_that_are_a_third_together_fit_in_it(parts):
    pool = ResourcePool(demand_of(num_cpus=1 / 3))
    for part in parts:
        demand = demand_of(num_cpus=part / sum(parts) / 3)
        assert pool.fits(demand)
        pool.acquire(demand)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_cpus": -1}, "num_cpus cannot be negative"),
        ({"num_cpus": True}, "num_cpus is a number, not True"),
        ({"num_cpus": "2"}, "num_cpus is a number"),
        ({"num_cpus": math.nan}, "finite"),
        ({"num_gpus": math.inf}, "finite"),
        ({"num_cpus": 0.00001}, "num_cpus is 0 or at least 0.0001, not 1e-05"),
        ({"num_cpus": 1e-12}, "at least 0.0001"),
        ({"num_gpus": 1.00001}, "fraction of one GPU or a whole number"),
        ({"num_gpus": 4 / 3}, "fraction of one GPU or a whole number"),
        ({"num_cpus": AMOUNT_MAX + 1}, "at most"),
        ({"num_gpus": 1.5}, "fraction of one GPU or a whole number"),
        ({"resources": {"CPU": 1}}, "num_cpus="),
        ({"resources": {"GPU": 1}}, "num_gpus="),
        ({"resources": {"": 1}}, "non-empty"),
        ({"resources": {3: 1}}, "non-empty str"),
        ({"resources": {"disk": -0.5}}, r"resources\['disk'\] cannot be negative"),
        ({"resources": ["disk"]}, "a dict"),
    ],
)
def test_wrong_demands_are_readable_errors(options, words):
    with pytest.raises(OptionError, match=words):
        demand_of(**options)


def test_pool_takes_and_gives_back():
    pool = ResourcePool(demand_of(num_cpus=2, resources={"disk": 1}))
    assert pool.fits_total((("CPU", 20000),))
    assert not pool.fits_total((("CPU", 20001),))
    assert not pool.fits_total((("GPU", 1),))
    pool.acquire((("CPU", 15000), ("disk", 5000)))
    assert pool.fits((("CPU", 5000),))
    assert not pool.fits((("CPU", 5001),))
    assert not pool.fits((("CPU", 1), ("disk", 5001)))
    assert pool.available() == (("CPU", 5000), ("disk", 5000))
    pool.release((("CPU", 15000), ("disk", 5000)))
    with pytest.raises(InvariantViolation):
        pool.release((("CPU", 1),))


def test_a_lent_cpu_comes_back_although_it_is_in_use():
    pool = ResourcePool(ONE_CPU)
    pool.acquire(ONE_CPU)
    pool.release(ONE_CPU)  # lent while blocked
    pool.acquire(ONE_CPU)  # the borrower
    pool.acquire(ONE_CPU)  # unblocked
    assert pool.available() == (("CPU", -RESOURCE_UNIT),)
    assert not pool.fits((("CPU", 1),))
    pool.release(ONE_CPU)
    pool.release(ONE_CPU)
    assert pool.fits(ONE_CPU)


def test_whole_gpus_are_alone_and_fractions_share():
    pool = ResourcePool(demand_of(num_gpus=3))
    assert pool.acquire_gpus(5000) == (0,)
    assert pool.acquire_gpus(4000) == (0,)
    assert pool.acquire_gpus(20000) == (1, 2)
    assert pool.acquire_gpus(2000) == ()
    assert pool.acquire_gpus(1000) == (0,)
    pool.release_gpus((1, 2), 20000)
    pool.release_gpus((0,), 5000)
    assert pool.acquire_gpus(10000) == (1,)
    with pytest.raises(InvariantViolation):
        pool.release_gpus((2,), 1)


def test_two_halves_are_not_a_whole():
    pool = ResourcePool(demand_of(num_cpus=0, num_gpus=2))
    for _ in range(2):
        pool.acquire((("GPU", 6000),))
        pool.acquire_gpus(6000)
    assert pool.available() == (("GPU", 8000),)
    assert not pool.fits((("GPU", 8000),))
    assert pool.fits((("GPU", 4000),))


def test_describe():
    assert describe(demand_of(num_cpus=2, num_gpus=0.5)) == "2 CPU, 0.5 GPU"
    assert describe(()) == "nothing"


@given(
    gpus=st.integers(1, 4),
    wishes=st.lists(st.one_of(st.integers(1, RESOURCE_UNIT), st.integers(1, 3).map(lambda n: n * RESOURCE_UNIT)), max_size=30),
    order=st.randoms(use_true_random=False),
)
def test_no_gpu_is_ever_given_twice(gpus, wishes, order):
    pool = ResourcePool(demand_of(num_cpus=0, num_gpus=gpus))
    given_out = []
    for amount in wishes:
        demand = (("GPU", amount),)
        fits = pool.fits(demand)
        ids = pool.acquire_gpus(amount)
        assert fits == bool(ids)
        if ids:
            pool.acquire(demand)
            assert len(set(ids)) == len(ids) == max(1, amount // RESOURCE_UNIT)
            given_out.append((ids, amount))
        elif given_out and order.random() < 0.7:
            ids, amount = given_out.pop(order.randrange(len(given_out)))
            pool.release_gpus(ids, amount)
            pool.release((("GPU", amount),))
        load = [0] * gpus
        for ids, amount in given_out:
            for index in ids:
                load[index] += min(amount, RESOURCE_UNIT)
        assert max(load) <= RESOURCE_UNIT
    for ids, amount in given_out:
        pool.release_gpus(ids, amount)
        pool.release((("GPU", amount),))
    assert pool.fits((("GPU", gpus * RESOURCE_UNIT),))
