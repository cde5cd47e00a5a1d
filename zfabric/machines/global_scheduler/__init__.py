"""The global scheduler: which node could run what its own node cannot."""

from zfabric.machines.global_scheduler.machine import GlobalScheduler as GlobalScheduler
from zfabric.machines.global_scheduler.policies import LeastWait as LeastWait
