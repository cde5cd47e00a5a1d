"""Runs the page's server until it is interrupted or the cluster ends."""

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
"""The usual port: that of Ray's dashboard."""
FAREWELL_SECONDS = 1.0
"""How long windows have at most to receive the last event."""
LOOK_EVERY = 1.0
"""Seconds between two looks at whether the cluster still runs."""


def serve(
    session: Session,
    host: str = "127.0.0.1",
    port: int = PORT,
    certificate: str | None = None,
    key: str | None = None,
    announce: Callable[[str], None] = print,
    allows_changes: bool = False,
) -> None:
    """Serve the page of a cluster, until SIGINT or the cluster's end. ``announce`` is called with its address, which has the token.

    ``certificate`` and ``key`` are PEM files. Without them, ``host`` is a loopback address: the page shows what programs print, and a
    token that crosses a network in the clear is no secret. With ``allows_changes`` the page has buttons that cancel tasks and kill actors.
    Raises ConfigError for an address that cannot be had.
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
            proxy_headers=False,  # The true address of a connection is its name in ``connections``.
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
        listener.listen(128)  # So that a browser may come as soon as the address is printed.
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen at {host}:{port}: {error.strerror}; --port 0 takes a free port") from None
    return listener


def _is_not_about_open_windows(record: logging.LogRecord) -> bool:
    """Whether a line says something else than that the server ends while windows show the page, or wait for an answer."""
    cancelled = record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)
    return "graceful shutdown" not in str(record.msg) and not cancelled


async def _serve(server: uvicorn.Server, listener: socket.socket, session: Session, watcher: Watcher) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not serving.done():
        await asyncio.wait([serving], timeout=LOOK_EVERY)
        if not session.alive() and not server.should_exit:
            watcher.end()
            until = time.monotonic() + FAREWELL_SECONDS
            while watcher.viewers and time.monotonic() < until:  # They are sent that the cluster has ended, and when.
                await asyncio.sleep(0.02)
            server.should_exit = True
    await serving
