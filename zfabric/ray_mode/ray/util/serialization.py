"""A program's own serializers."""

import copyreg as _copyreg
from typing import Any

from zfabric.ray_mode.absent import attributes
from zfabric.util import deregister_serializer, register_serializer


class StandaloneSerializationContext:
    """Registers serializers before there is a cluster: zfabric's need none."""

    def _register_cloudpickle_serializer(self, cls: type, custom_serializer: Any, custom_deserializer: Any) -> None:
        register_serializer(cls, serializer=custom_serializer, deserializer=custom_deserializer)

    def _unregister_cloudpickle_reducer(self, cls: type) -> None:
        deregister_serializer(cls)
        _copyreg.dispatch_table.pop(cls, None)  # A reducer is no serializer.

    def _register_cloudpickle_reducer(self, cls: type, reducer: Any) -> None:
        _copyreg.pickle(cls, reducer)


__getattr__ = attributes(__name__)
