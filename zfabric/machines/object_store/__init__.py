"""The object store: who may write, read and move the arena."""

from zfabric.machines.object_store.machine import ObjectStore as ObjectStore
