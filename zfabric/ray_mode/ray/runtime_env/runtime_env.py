"""Environments of tasks."""

from ray.runtime_env import RuntimeEnv, RuntimeEnvConfig  # type: ignore[import-not-found, unused-ignore]

from zfabric.ray_mode.absent import attributes

__getattr__ = attributes(__name__)
