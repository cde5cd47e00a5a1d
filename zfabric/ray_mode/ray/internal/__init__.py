"""Ray's inside, for its users."""

from zfabric.ray_mode.absent import Absent, submodules

memory_summary = Absent("ray.internal.memory_summary", "`zfabric memory` shows it")


def free(object_refs: object, local_only: bool = False) -> None:
    """Do nothing: a value is freed with its last ref."""


__getattr__ = submodules(__name__)
