"""Resource vectors in fixed point: what tasks ask for, what a node has, and which GPUs go to whom.

Amounts are integers in 1/10,000 (``RESOURCE_UNIT``), rounded down, so that sums are exact and three thirds of a GPU fit in one. A demand is
a sorted tuple of (name, amount) pairs: tasks can be queued by shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from zfabric.exceptions import OptionError, OptionTypeError
from zfabric.protocol.machine import InvariantViolation
from zfabric.protocol.names import check_length, is_text, quantity
from zfabric.protocol.options import (
    ACCELERATOR_RESOURCE,
    HEAD_RESOURCE,
    MEMORY,
    NODE_RESOURCE,
    ONE_CPU,
    RESOURCE_UNIT,
    STORE_MEMORY,
    Demand,
    is_shared,
)

CPU, GPU = "CPU", "GPU"
AMOUNT_MAX = 10**9
"""Most of one resource, in whole units."""
BYTES_MAX = 2**49
"""512 TiB: in 1/10,000 still an integer of 63 bits."""
OWN_RESOURCES = 5
"""Most resources beside CPUs, GPUs and declared ones: ``own_resources``, memory, GPU model."""
ACCELERATOR_AMOUNT = 0.001
"""Taken by ``accelerator_type``: it chooses the node, and does not count."""
_ROUNDING = 1e-7
"""Relative distance from a multiple that still means it: 0.1 * 3 and ``numpy.float32(0.3)`` are 0.3."""
_ROUNDING_MIN, _ROUNDING_MAX = 1e-6, 1e-3
"""Bounds of that distance, in 1/10,000."""


def amount_of(name: str, value: Any) -> int:
    """``value`` of the resource or option ``name`` in 1/10,000, rounded down. Raises OptionError.

    >>> amount_of("num_cpus", 0.5), amount_of("num_gpus", 1 / 3), amount_of("memory", 1.5)
    (5000, 3333, 10000)
    """
    return _bytes(name, value) if name in (MEMORY, STORE_MEMORY) else _scaled(name, value)[0]


def _bytes(name: str, value: Any) -> int:
    """Bytes in 1/10,000, rounded down to whole ones: sizes are often shares."""
    number = _finite(name, value, "number of bytes")
    if number > BYTES_MAX:
        raise OptionError(f"{name} is at most {BYTES_MAX} bytes (2**49), not {value!r}")
    if 0 < number < 1:
        raise OptionError(f"{name} is a number of bytes, 0 or at least 1, not {value!r}; write for example 2 * 2**30 for 2 GiB")
    return int(value) * RESOURCE_UNIT


def _finite(name: str, value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise OptionTypeError(f"{name} is a {what}, not {value!r}")
    try:
        number = float(value)
    except OverflowError:  # An int may be larger than any float.
        number = math.inf
    if not math.isfinite(number):
        raise OptionError(f"{name} is a finite {what}, not {value!r}")
    if number < 0:
        raise OptionError(f"{name} cannot be negative: {value!r}")
    return number


def _scaled(name: str, value: Any) -> tuple[int, bool]:
    number = _finite(name, value, "number")
    if number > AMOUNT_MAX:
        raise OptionError(f"{name} is at most {AMOUNT_MAX}, not {value!r}")
    scaled = number * RESOURCE_UNIT
    amount = round(scaled)
    exact = abs(scaled - amount) <= max(_ROUNDING_MIN, min(_ROUNDING_MAX, _ROUNDING * scaled), 1e-15 * scaled)
    if not exact:
        amount = math.floor(scaled)
    if number and not amount:
        raise OptionError(f"{name} is 0 or at least {1 / RESOURCE_UNIT}, not {value!r}")
    return amount, exact


def demand_of(num_cpus: Any = None, num_gpus: Any = None, resources: Mapping[str, Any] | None = None, memory: Any = None) -> Demand:
    """The demand of these options: one CPU by default, zeros left out. ``memory`` is in bytes.

    >>> demand_of(num_cpus=2, resources={"disk": 0.5})
    (('CPU', 20000), ('disk', 5000))
    """
    amounts = {CPU: RESOURCE_UNIT if num_cpus is None else amount_of("num_cpus", num_cpus)}
    if num_gpus is not None:
        amounts[GPU], exact = _scaled("num_gpus", num_gpus)
        if amounts[GPU] >= RESOURCE_UNIT and (amounts[GPU] % RESOURCE_UNIT or not exact):
            raise OptionError(f"num_gpus is a fraction of one GPU or a whole number of them, not {num_gpus!r}")
    if resources is not None and not isinstance(resources, Mapping):
        raise OptionTypeError(f"resources is a dict of names and amounts, not {resources!r}")
    for name, value in (resources or {}).items():
        if not isinstance(name, str) or not name:
            raise OptionError(f"resources: a name is a non-empty str, not {name!r}")
        check_length("resources: a name", name)
        if not is_text(name):
            raise OptionError(f"resources: a name is text, and {name!r} is not (it has no UTF-8)")
        if name in (CPU, GPU):
            raise OptionError(f"resources: {name!r} is asked for with num_{name.lower()}s=")
        if name == MEMORY:
            raise OptionError("resources: 'memory' is asked for with memory=, and a node is given it by init(_memory=) or --memory")
        if name == STORE_MEMORY:
            raise OptionError("resources: 'object_store_memory' is the size of a node's store: init(object_store_memory=) sets it")
        amounts[name] = amount_of(f"resources[{name!r}]", value)
    if memory is not None:
        amounts[MEMORY] = amount_of(MEMORY, memory)
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def named_demand(options: Mapping[str, Any], usual: Demand = ONE_CPU) -> Demand | None:
    """The demand that a task's or actor's options name; None if they name none, which means the ``usual`` one.

    ``memory`` and ``accelerator_type`` alone are added to the usual demand: an actor that names no CPUs holds none.

    >>> named_demand({"memory": 100}), named_demand({"memory": 100}, ())
    ((('CPU', 10000), ('memory', 1000000)), (('memory', 1000000),))
    >>> named_demand({"accelerator_type": "A100"}, ())
    (('accelerator_type:A100', 10),)
    """
    cpus, gpus, resources, memory, kind = map(options.get, ("num_cpus", "num_gpus", "resources", "memory", "accelerator_type"))
    if cpus is gpus is resources is None:
        if memory is kind is None:
            return None
        cpus = dict(usual).get(CPU, 0) / RESOURCE_UNIT
    if kind is not None:
        resources = {**(resources or {}), f"{ACCELERATOR_RESOURCE}{kind}": ACCELERATOR_AMOUNT}
    return demand_of(cpus, gpus, resources, memory)


def own_resources(host: str, head: bool, arena_bytes: int) -> dict[str, float]:
    """What every node has: its address, the head's role, and the bytes of its object store.

    >>> own_resources("10.0.0.7", False, 2**21)
    {'node:10.0.0.7': 1.0, 'object_store_memory': 2097152.0}
    """
    found = {f"{NODE_RESOURCE}{host}": 1.0}
    if head:
        found[HEAD_RESOURCE] = 1.0
    if arena_bytes:
        found[STORE_MEMORY] = float(arena_bytes)
    return found


def covers(total: Mapping[str, int], demand: Demand) -> bool:
    """Whether ``total`` has at least ``demand``."""
    return all(total.get(name, 0) >= amount for name, amount in demand)


def count_fitting(total: Mapping[str, int], demand: Demand, of_nothing: int) -> int:
    """How many times a demand fits in ``total``; ``of_nothing`` times if it asks for nothing.

    >>> count_fitting({"CPU": 40_000, "GPU": 10_000}, (("CPU", 5000), ("GPU", 5000)), 1)
    2
    """
    return min((total.get(name, 0) // amount for name, amount in demand if amount > 0), default=of_nothing)


def amounts(demand: Demand) -> dict[str, float]:
    """In units rather than 1/10,000."""
    return {name: amount / RESOURCE_UNIT for name, amount in demand}


def describe(demand: Demand) -> str:
    """As text: "1 CPU, 2.0 GiB memory"."""
    return ", ".join(quantity(name, amount / RESOURCE_UNIT) for name, amount in demand) or "nothing"


def describe_node(amounts: Demand) -> str:
    """As text, without object store and address."""
    return describe(tuple((name, amount) for name, amount in amounts if is_shared(name)))


class ResourcePool:
    """Total and free resources of a node or a placement group's bundle, with GPU ids.

    ``acquire`` does not check: a blocked worker gets its lent CPU back while another task uses it, so ``available`` may be negative for a
    while. Ask ``fits`` before a new task starts.

    >>> pool = ResourcePool(demand_of(num_cpus=2))
    >>> _ = pool.acquire(demand_of(num_cpus=1.5)); pool.fits(demand_of(num_cpus=1))
    False
    """

    def __init__(self, total: Demand, gpu_ids: tuple[int, ...] | None = None) -> None:
        """``gpu_ids`` are a bundle's; a node has all from 0."""
        self.total = dict(total)
        self._free = dict(total)
        gpus, rest = divmod(self.total.get(GPU, 0), RESOURCE_UNIT)
        if rest and gpu_ids is None:
            raise OptionError("a node has a whole number of GPUs")
        ids = range(gpus) if gpu_ids is None else gpu_ids
        self._gpu_share = dict.fromkeys(ids, min(self.total.get(GPU, 0), RESOURCE_UNIT))
        """The pool's share of each GPU."""
        self._gpu_free = dict(self._gpu_share)

    def fits_total(self, demand: Demand) -> bool:
        """Whether the empty pool could run this."""
        return covers(self.total, demand)

    def fits(self, demand: Demand) -> bool:
        """Whether a demand is free. Two halves of different GPUs are no whole one."""
        return covers(self._free, demand) and all(self._pick(amount) for name, amount in demand if name == GPU)

    def acquire(self, demand: Demand) -> ResourcePool:
        """Take ``demand``; return the pool to release it to. GPU ids come from ``acquire_gpus``."""
        free = self._free
        for name, amount in demand:
            free[name] = free.get(name, 0) - amount
        return self

    def release(self, demand: Demand) -> None:
        """Release. Raises InvariantViolation beyond the total."""
        free, total = self._free, self.total
        for name, amount in demand:
            free[name] += amount
            if free[name] > total.get(name, 0):
                raise InvariantViolation(f"more {name} released than acquired")

    def acquire_gpus(self, amount: int, known: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Take ids for ``amount`` (1/10,000) of GPUs: whole ones alone; fractions share the fullest GPU with room.

        Empty for amount 0, or without room. ``known`` are ids that the requester uses already.
        """
        ids = known or self._pick(amount)
        share = min(amount, RESOURCE_UNIT)
        for index in ids:
            self._gpu_free[index] -= share
        return ids

    def release_gpus(self, ids: tuple[int, ...], amount: int) -> None:
        """Release what ``acquire_gpus(amount)`` returned."""
        share = min(amount, RESOURCE_UNIT)
        for index in ids:
            self._gpu_free[index] += share
            if self._gpu_free[index] > self._gpu_share[index]:
                raise InvariantViolation(f"GPU {index} released more than acquired")

    def available(self) -> Demand:
        """Free amounts as sorted pairs, negative while lent CPUs are used twice."""
        return tuple(sorted(self._free.items()))

    def owes(self, demand: Demand) -> bool:
        """Whether a resource of ``demand`` is overdrawn."""
        return any(self._free.get(name, 0) < 0 for name, _ in demand)

    @property
    def gpu_ids(self) -> tuple[int, ...]:
        """GPUs of which it has a share."""
        return tuple(self._gpu_share)

    def has(self, pool: ResourcePool) -> bool:
        """Whether releases to ``pool`` are to this one."""
        return pool is self

    @property
    def idle(self) -> bool:
        """Whether all is free."""
        return self._free == self.total

    def _pick(self, amount: int) -> tuple[int, ...]:
        free = self._gpu_free
        if not amount:
            return ()
        if amount >= RESOURCE_UNIT:
            count, rest = divmod(amount, RESOURCE_UNIT)
            whole = [index for index, left in free.items() if left == RESOURCE_UNIT]
            return () if rest or len(whole) < count else tuple(whole[:count])
        rooms = [(left, index) for index, left in free.items() if left >= amount]
        return (min(rooms)[1],) if rooms else ()


NO_POOL = ResourcePool(())
"""Of what has no resources."""
