"""The registry: decides which nodes a cluster has. The head's daemon hosts it."""

from zfabric.machines.registry.machine import Registry as Registry
