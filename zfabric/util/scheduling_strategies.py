"""Where tasks are to run: Ray's names."""

from zfabric.api.options import NodeAffinitySchedulingStrategy

__all__ = ["NodeAffinitySchedulingStrategy"]
