"""Who may see the page: whoever has the token in its address, from this machine only unless there is a certificate.

The token is exchanged for a cookie, and so leaves the address bar. Each request's Host is checked, since another site's name may lead to
127.0.0.1; ``SameSite`` keeps other sites from using the cookie. Only a page with changes accepts POST, with a second token in a header that
other sites' scripts cannot read.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Iterable
from urllib.parse import parse_qs

from psutil import net_if_addrs
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "zfabric_page"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
REFUSED = "open the address that `zfabric page` has printed: it has the token; a scraper sends that as `Authorization: Bearer TOKEN`"
CHANGING = "x-zfabric-token"
"""The header of requests for changes."""
EVERYWHERE = ("0.0.0.0", "::")


class Guard:
    """Admits requests to ``app`` with the right Host and the cookie, which it gives for the token.

    ``hosts`` are the server's names; ``secure``: the server has a certificate; ``changing`` is the token for changes, or "".
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], secure: bool = False, changing: str = "") -> None:
        self._app = app
        self._token = token
        self._hosts = frozenset(hosts)
        self._secure = secure
        self._changing = changing
        self._session = secrets.token_urlsafe(32)
        """The cookie's value, not the token: the token was on a terminal."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS.items()]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send_guarded)
        else:
            await refusal(scope, receive, send_guarded)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if host.lower() not in self._hosts:
            return PlainTextResponse("this server is not called so: give `zfabric page` the name as --host", 421)
        if scope["method"] not in ("GET", "HEAD"):
            return self._refusal_of_change(scope["method"], headers)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        if given is not None:
            if not hmac.compare_digest(given[0].encode(), self._token.encode()):
                return PlainTextResponse("wrong token: open the address that `zfabric page` has printed", 403)
            answer = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, self._session, httponly=True, samesite="strict", secure=self._secure, path="/")
            return answer
        return self._refusal_of_stranger(headers)

    def _refusal_of_change(self, method: str, headers: dict[bytes, bytes]) -> Response | None:
        if not self._changing or method != "POST":
            return PlainTextResponse("the page only shows; `zfabric page --allow-changes` has buttons", 405)
        if not hmac.compare_digest(headers.get(CHANGING.encode(), b""), self._changing.encode()):
            return PlainTextResponse("this request is not of the page's own: load the page again", 403)
        return self._refusal_of_stranger(headers)

    def _refusal_of_stranger(self, headers: dict[bytes, bytes]) -> Response | None:
        bearer = headers.get(b"authorization", b"").partition(b" ")
        if bearer[0].lower() == b"bearer" and hmac.compare_digest(bearer[2], self._token.encode()):
            return None  # As Prometheus does it.
        cookies = [part.strip().partition("=") for part in headers.get(b"cookie", b"").decode("latin-1").split(";")]
        if not any(name == COOKIE and hmac.compare_digest(value.encode(), self._session.encode()) for name, _, value in cookies):
            return PlainTextResponse(REFUSED, 403)
        return None


def hosts_of(host: str, port: int) -> list[str]:
    """A server's valid Host headers; at all addresses, the machine's name and addresses."""
    if host in EVERYWHERE:
        families = (socket.AF_INET, socket.AF_INET6)
        own = [each.address.partition("%")[0] for found in net_if_addrs().values() for each in found if each.family in families]
        names = [socket.gethostname(), "localhost", *own]
    else:
        names = ["127.0.0.1", "localhost", "::1"] if host in LOOPBACK else [host]
    written = dict.fromkeys(f"[{name}]" if ":" in name else name.lower() for name in names)
    return [f"{name}:{port}" for name in written] + [name for name in written if port in (80, 443)]
