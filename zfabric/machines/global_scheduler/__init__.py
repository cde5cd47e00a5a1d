"""The global scheduler: nodes for what its own node cannot run."""

from zfabric.machines.global_scheduler.machine import GlobalScheduler as GlobalScheduler
from zfabric.machines.global_scheduler.policies import LeastWait as LeastWait
