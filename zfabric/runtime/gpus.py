"""The GPUs that a worker may use, and their CUDA names."""

from __future__ import annotations

import os

from zfabric.adapters.processes import visible_gpus

NODE_GPUS = visible_gpus()
"""The GPUs of ``CUDA_VISIBLE_DEVICES``, if set. Read before any worker is forked."""


class AssignedGpus:
    """This process's GPUs, until it ends (see ``Dispatcher``)."""

    def __init__(self) -> None:
        self.places: tuple[int, ...] = ()
        """Indices among the node's GPUs."""

    def assign(self, places: tuple[int, ...]) -> None:
        """Make only these GPUs visible to CUDA."""
        if places != self.places:
            self.places = places
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(_name, places))


def gpu_ids(places: tuple[int, ...]) -> tuple[int | str, ...]:
    """CUDA names, numbers as ints."""
    return tuple(int(name) if name.isdigit() else name for name in map(_name, places))


def _name(place: int) -> str:
    return NODE_GPUS[place] if NODE_GPUS is not None and place < len(NODE_GPUS) else str(place)
