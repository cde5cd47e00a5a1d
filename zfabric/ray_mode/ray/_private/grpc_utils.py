"""gRPC servers for Serve; zfabric has none."""

from collections.abc import Sequence
from typing import Any

from zfabric.ray_mode.absent import attributes


def init_grpc_channel(address: str, options: Sequence[tuple[str, Any]] | None = None, asynchronous: bool = False, **ignored: Any) -> Any:
    """Open a channel to ``address`` (host:port) without encryption, as Ray does by default."""
    import grpc

    package: Any = grpc.aio if asynchronous else grpc
    return package.insecure_channel(address, options=options)


def create_grpc_server_with_interceptors(
    max_workers: int | None = None,
    thread_name_prefix: str = "grpc_server",
    options: Sequence[tuple[str, Any]] | None = None,
    asynchronous: bool = False,
    **ignored: Any,
) -> Any:
    """Make a server, with ``max_workers`` threads unless it is asynchronous."""
    import grpc

    if asynchronous:
        return grpc.aio.server(options=options)
    from concurrent.futures import ThreadPoolExecutor

    return grpc.server(ThreadPoolExecutor(max_workers, thread_name_prefix), options=options)


__getattr__ = attributes(__name__)
