"""zfabric's errors under Ray's names, and classes for ``except`` that nothing in zfabric raises."""

from zfabric.exceptions import *
from zfabric.exceptions import ActorNotFoundError, FabricError, ObjectLostError, SerializationError, WorkerCrashedError
from zfabric.ray_mode.absent import attributes


class CrossLanguageError(FabricError):
    """An error of another language. There is none."""


class AuthenticationError(FabricError):
    """A token was refused. zfabric checks keys when a program joins (``ConnectionLostError``)."""


class RpcError(FabricError):
    """A call of Ray's inside has failed. There is none."""

    rpc_code = None


class AsyncioActorExit(FabricError):
    """An async actor ends."""


class PlasmaObjectNotAvailable(ObjectLostError):
    """A value is not in the store."""


class ObjectRefStreamEndOfStreamError(FabricError):
    """A stream has ended."""


class RayChannelError(FabricError):
    """A channel of a compiled graph has failed. There are no compiled graphs."""


class RayChannelTimeoutError(RayChannelError, TimeoutError):
    """A channel of a compiled graph was not ready in time."""


class RayCgraphCapacityExceeded(FabricError):
    """A compiled graph has too many executions."""


class RayDirectTransportError(FabricError):
    """Ray's direct transport has failed. Tensors travel through the object store."""


class UserCodeException(FabricError):
    """An error of the program."""


ActorHandleNotFoundError = ActorNotFoundError
UnserializableException = SerializationError
OufOfBandObjectRefSerializationException = SerializationError
StreamingGeneratorReplayInconsistentError = WorkerCrashedError

__getattr__ = attributes(__name__)
