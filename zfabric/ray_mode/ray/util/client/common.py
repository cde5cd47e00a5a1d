"""Types of Ray's client: nothing is an instance of them."""

from zfabric.ray_mode.absent import Absent, attributes


class ClientObjectRef:
    """A ref of Ray's client."""


class ClientActorHandle:
    """A handle of Ray's client."""


INT32_MAX = 2**31 - 1
OBJECT_TRANSFER_CHUNK_SIZE = 64 * 2**20
OBJECT_TRANSFER_WARNING_SIZE = 2 * 2**30
for _name in (
    "CLIENT_SERVER_MAX_THREADS", "ClientActorClass", "ClientActorRef", "ClientRemoteFunc", "ClientRemoteMethod", "ClientServerHandle",
    "ClientStub", "GRPC_OPTIONS", "GRPC_UNRECOVERABLE_ERRORS", "InProgressSentinel",
    "OptionWrapper", "OrderedResponseCache", "ResponseCache", "remote_decorator",
):  # fmt: skip
    globals()[_name] = Absent(f"ray.util.client.common.{_name}", "a program joins a cluster by ray.init(address), from one of its machines")

__getattr__ = attributes(__name__)
