"""Runs the page's server until an interrupt or the cluster's end."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import ssl
import time
from collections.abc import Callable

import uvicorn

from zfabric.exceptions import ConfigError
from zfabric.page.app import make_app
from zfabric.page.connections import Connections, PageLoop
from zfabric.page.security import EVERYWHERE, LOOPBACK
from zfabric.page.views import Views
from zfabric.page.watching import Watcher
from zfabric.runtime.connect import attach
from zfabric.runtime.session import Session

PORT = 8265
"""The port of Ray's dashboard."""
FAREWELL_SECONDS = 1.0
"""Seconds for windows to receive the last event."""
LOOK_EVERY = 1.0
"""Seconds between checks of the cluster."""


def serve(
    session: Session,
    host: str = "127.0.0.1",
    port: int = PORT,
    certificate: str | None = None,
    key: str | None = None,
    announce: Callable[[str], None] = print,
    allows_changes: bool = False,
) -> None:
    """Serve a cluster's page until SIGINT or the cluster's end. ``announce`` receives its address, with the token.

    ``certificate`` and ``key`` are PEM files, needed beyond loopback: a token in the clear is no secret. ``allows_changes`` adds buttons
    that cancel and kill. Raises ConfigError if the address is not available.
    """
    secure = certificate is not None
    if not secure and host not in LOOPBACK:
        raise ConfigError(f"{host}: only this machine sees the page without a certificate; pass --certificate FILE and --key FILE")
    listener = _listen(host, port)
    port = listener.getsockname()[1]
    client = attach(session, kind="tool")
    try:
        views = Views(session, client)
        watcher = Watcher(session, views)
        token = secrets.token_urlsafe(24)
        connections = Connections()
        app = make_app(watcher, views, token, host, port, secure, allows_changes)
        config = uvicorn.Config(
            connections.application(app),
            http=connections.protocol(),
            proxy_headers=False,  # ``connections`` needs a connection's true address.
            log_level="warning",
            access_log=False,
            server_header=False,
            date_header=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the certificate {certificate} cannot be used: {error}") from None
        shown = socket.gethostname() if host in EVERYWHERE else host
        name = f"[{shown}]" if ":" in shown else shown
        logging.getLogger("uvicorn.error").addFilter(_is_not_about_open_windows)
        announce(f"{'https' if secure else 'http'}://{name}:{port}/?token={token}")
        with asyncio.Runner(loop_factory=PageLoop) as runner:
            runner.run(_serve(uvicorn.Server(config), listener, session, watcher))
        watcher.close()
    finally:
        client.close()
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(128)  # A browser may come as soon as the address is printed.
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {host}:{port}: {error.strerror}; --port 0 takes a free port") from None
    return listener


def _is_not_about_open_windows(record: logging.LogRecord) -> bool:
    """Filter: leave out log lines about windows open at the end."""
    cancelled = record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)
    return "graceful shutdown" not in str(record.msg) and not cancelled


async def _serve(server: uvicorn.Server, listener: socket.socket, session: Session, watcher: Watcher) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not serving.done():
        await asyncio.wait([serving], timeout=LOOK_EVERY)
        if not session.alive() and not server.should_exit:
            watcher.end()
            until = time.monotonic() + FAREWELL_SECONDS
            while watcher.viewers and time.monotonic() < until:  # They are notified of the cluster's end, and when.
                await asyncio.sleep(0.02)
            server.should_exit = True
    await serving
