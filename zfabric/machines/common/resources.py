"""Resource vectors in fixed point: what a task asks for, what a node has, and which GPUs go to whom.

Amounts are integers in 1/10,000 (``RESOURCE_UNIT``), so that a thousand tenths are a hundred, and a comparison never
depends on the order of additions. What is between two of them is rounded down, so that amounts that add up to a whole fit in it: three
thirds of a GPU are one GPU. A demand is a sorted tuple of (name, amount) pairs. Equal demands are equal tuples,
so a scheduler can queue tasks by shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from zfabric.exceptions import OptionError, OptionTypeError
from zfabric.protocol.machine import InvariantViolation
from zfabric.protocol.names import check_length, is_text
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
from zfabric.protocol.wording import quantity

CPU, GPU = "CPU", "GPU"
AMOUNT_MAX = 10**9
"""Most of one resource that can be asked for, in whole units: amounts stay far inside what msgpack carries as an integer."""
BYTES_MAX = 2**49
"""The same of what is counted in bytes: 512 TiB, which in 1/10,000 is still an integer of 63 bits."""
OWN_RESOURCES = 5
"""Most resources that a node has beside CPUs, GPUs and what was declared: ``own_resources``, memory, and the model of its GPUs."""
ACCELERATOR_AMOUNT = 0.001
"""How much of that a task or actor takes that names an ``accelerator_type``: it chooses the node, and does not count."""
_ROUNDING = 1e-7
"""How far a number may be from a multiple of 1/10,000, as a part of itself, and still be taken to mean it: 0.1 * 3 and
``numpy.float32(0.3)`` are 0.3.
"""
_ROUNDING_MIN, _ROUNDING_MAX = 1e-6, 1e-3
"""The bounds of that, in 1/10,000. ``AMOUNT_MAX`` as a float is less exact than the upper one, and that is ten times as much there."""


def amount_of(name: str, value: Any) -> int:
    """``value`` of the resource or option ``name`` in 1/10,000, rounded down; OptionError says what is wrong with it.

    >>> amount_of("num_cpus", 0.5), amount_of("num_gpus", 1 / 3), amount_of("memory", 1.5)
    (5000, 3333, 10000)
    """
    return _bytes(name, value) if name in (MEMORY, STORE_MEMORY) else _scaled(name, value)[0]


def _bytes(name: str, value: Any) -> int:
    """Return a number of bytes in 1/10,000: a size is often computed as a share of another, and rounded down to whole bytes."""
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
    """Return the amount that ``value`` means, and whether that is exact."""
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
    """The demand that these options mean: one CPU unless ``num_cpus`` says otherwise, zeros left out. ``memory`` is in bytes.

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
    """The demand that the options of a task or an actor name; None if they name none, and have the ``usual`` one.

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
    """What a node has without being told: itself by its address, the head by its role, and the bytes of its object store.

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


def describe(demand: Demand) -> str:
    """A demand as people read it, such as "1 CPU, 2.0 GiB memory"."""
    return ", ".join(quantity(name, amount / RESOURCE_UNIT) for name, amount in demand) or "nothing"


def describe_node(amounts: Demand) -> str:
    """What a node has, or has free, as people read it: without its object store and its own address, for which few ask."""
    return describe(tuple((name, amount) for name, amount in amounts if is_shared(name)))


class ResourcePool:
    """The resources of one node, or of one bundle of a placement group, and those that are free. The ids of GPUs are included.

    ``acquire`` does not check: a worker that was blocked gets back the CPU that it had lent, although another task uses it
    meanwhile. So ``available`` may be negative for a while. Ask ``fits`` before a new task is started.

    >>> pool = ResourcePool(demand_of(num_cpus=2))
    >>> _ = pool.acquire(demand_of(num_cpus=1.5)); pool.fits(demand_of(num_cpus=1))
    False
    """

    def __init__(self, total: Demand, gpu_ids: tuple[int, ...] | None = None) -> None:
        """``gpu_ids`` are those that a bundle has; a node has all from 0."""
        self.total = dict(total)
        self._free = dict(total)
        gpus, rest = divmod(self.total.get(GPU, 0), RESOURCE_UNIT)
        if rest and gpu_ids is None:
            raise OptionError("a node has a whole number of GPUs")
        ids = range(gpus) if gpu_ids is None else gpu_ids
        self._gpu_share = dict.fromkeys(ids, min(self.total.get(GPU, 0), RESOURCE_UNIT))
        """How much of each GPU the pool has."""
        self._gpu_free = dict(self._gpu_share)

    def fits_total(self, demand: Demand) -> bool:
        """Whether the node could ever run this, were it empty."""
        return covers(self.total, demand)

    def fits(self, demand: Demand) -> bool:
        """Whether this much is free now. Two halves of different GPUs are no whole one."""
        return covers(self._free, demand) and all(self._pick(amount) for name, amount in demand if name == GPU)

    def acquire(self, demand: Demand) -> ResourcePool:
        """Take ``demand``; return the pool to which it is released. The ids of its GPUs, if it names any, come from ``acquire_gpus``."""
        free = self._free
        for name, amount in demand:
            free[name] = free.get(name, 0) - amount
        return self

    def release(self, demand: Demand) -> None:
        """Release ``demand``. Raises InvariantViolation if that is more than the node has."""
        free, total = self._free, self.total
        for name, amount in demand:
            free[name] += amount
            if free[name] > total.get(name, 0):
                raise InvariantViolation(f"more {name} released than acquired")

    def acquire_gpus(self, amount: int, known: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Ids for ``amount`` (1/10,000) of GPUs: whole ones alone, fractions share the fullest GPU with room for them.

        Empty for amount 0, and where the GPUs do not have it. ``known`` are those that whoever asks has in use already.
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
        """What is free now, as sorted (name, amount) pairs; an amount is negative while lent CPUs are in use twice."""
        return tuple(sorted(self._free.items()))

    def owes(self, demand: Demand) -> bool:
        """Whether more than there is was taken of a resource of ``demand``."""
        return any(self._free.get(name, 0) < 0 for name, _ in demand)

    @property
    def gpu_ids(self) -> tuple[int, ...]:
        """The GPUs of which it has a share."""
        return tuple(self._gpu_share)

    def has(self, pool: ResourcePool) -> bool:
        """Whether what is released to ``pool`` is released to this one."""
        return pool is self

    @property
    def idle(self) -> bool:
        """Whether all of it is free."""
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
"""The pool of what has no resources."""
