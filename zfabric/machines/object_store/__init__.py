"""The object store: who may write, read and move which bytes of the arena."""

from zfabric.machines.object_store.machine import ObjectStore as ObjectStore
