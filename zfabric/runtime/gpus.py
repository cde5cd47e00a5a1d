"""The GPUs of a worker: which it may use, and what CUDA calls them."""

from __future__ import annotations

import os

from zfabric.adapters.processes import visible_gpus

NODE_GPUS = visible_gpus()
"""Names of the node's GPUs, if it was started with some of the machine's. Read before any worker is forked."""


class AssignedGpus:
    """The GPUs in the environment. A process that is given some has them until it ends (see ``Dispatcher``)."""

    def __init__(self) -> None:
        self.places: tuple[int, ...] = ()
        """Their places among the node's."""

    def assign(self, places: tuple[int, ...]) -> None:
        """Have CUDA see these GPUs alone."""
        if places != self.places:
            self.places = places
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(_name, places))


def gpu_ids(places: tuple[int, ...]) -> tuple[int | str, ...]:
    """CUDA's names of GPUs, numbers as ints."""
    return tuple(int(name) if name.isdigit() else name for name in map(_name, places))


def _name(place: int) -> str:
    return NODE_GPUS[place] if NODE_GPUS is not None and place < len(NODE_GPUS) else str(place)
