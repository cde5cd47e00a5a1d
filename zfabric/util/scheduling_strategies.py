"""Strategies for the placement of tasks, under Ray's names."""

from zfabric.api.options import NodeAffinitySchedulingStrategy

__all__ = ["NodeAffinitySchedulingStrategy"]
