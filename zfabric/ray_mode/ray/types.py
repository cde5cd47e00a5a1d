"""Types."""

from zfabric import ObjectRef
