"""The registry, in the head's daemon: which nodes a cluster has."""

from zfabric.machines.registry.machine import Registry as Registry
