"""The page's connections: how many, and how long one may be silent.

A connection is *idle* unless one of its requests is being answered, and closed after ``IDLE_SECONDS``. If there are too many, a new one
replaces the one idle for longest: silent ones keep nobody out.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

IDLE_SECONDS = 10.0
CONNECTIONS_MAX = 256
"""A browser's window has up to six; ``watching.VIEWERS_MOST`` windows exceed this."""

Peer = tuple[str, int]
"""The address, as in a request's scope."""


class Connections:
    """One server's connections. ``protocol`` and ``application`` make what the server runs."""

    def __init__(self, seconds: float = IDLE_SECONDS, most: int = CONNECTIONS_MAX) -> None:
        self._seconds = seconds
        self._most = most
        self._open: dict[Peer, asyncio.Transport] = {}
        self._idle: dict[Peer, asyncio.TimerHandle] = {}
        """Timers that close idle connections, longest idle first."""

    def protocol(self) -> type[asyncio.Protocol]:
        """Make an HTTP protocol that counts its connections here."""
        connections = self

        class Counted(AutoHTTPProtocol):  # type: ignore[valid-type, misc]
            def connection_made(self, transport: Any) -> None:
                self.counted = transport
                super().connection_made(transport)
                connections.begin(transport)

            def connection_lost(self, error: Exception | None) -> None:
                connections.end(self.counted)
                super().connection_lost(error)

        return Counted

    def application(self, app: ASGIApp) -> ASGIApp:
        """Wrap an application: connections that wait for an answer are not idle."""

        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            peer = tuple(scope.get("client") or ())
            self._stop(peer)
            try:
                await app(scope, receive, send)
            finally:
                self._start(peer)

        return noted

    def begin(self, transport: asyncio.Transport) -> None:
        """Count a connection; close one if there are too many."""
        if len(self._open) >= self._most:
            oldest = next(iter(self._idle), None)
            if oldest is None:
                transport.abort()
                return
            self._close(oldest)
        peer = _peer(transport)
        self._open[peer] = transport
        self._start(peer)

    def end(self, transport: asyncio.Transport) -> None:
        """Forget a connection that is closed."""
        peer = _peer(transport)
        if self._open.get(peer) is transport:
            del self._open[peer]
            self._stop(peer)

    def _start(self, peer: Any) -> None:
        if peer in self._open:
            self._stop(peer)
            self._idle[peer] = asyncio.get_running_loop().call_later(self._seconds, self._close, peer)

    def _stop(self, peer: Any) -> None:
        timer = self._idle.pop(peer, None)
        if timer is not None:
            timer.cancel()

    def _close(self, peer: Peer) -> None:
        self._stop(peer)
        self._open.pop(peer).abort()  # ``close`` would wait for a peer that does not read.


class PageLoop(asyncio.SelectorEventLoop):
    """An event loop that waits for TLS no longer than for a request."""

    async def create_server(self, *arguments: Any, **options: Any) -> asyncio.Server:
        """Create a server as every loop does."""
        if options.get("ssl") is not None:
            options.setdefault("ssl_handshake_timeout", IDLE_SECONDS)
        return await super().create_server(*arguments, **options)


def _peer(transport: asyncio.Transport) -> Peer:
    host, port, *_ = transport.get_extra_info("peername") or ("", 0)
    return str(host), int(port)
