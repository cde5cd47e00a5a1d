"""The server of the page: Starlette, with one route for each view."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from zfabric.exceptions import FabricError
from zfabric.page.security import Guard, hosts_of
from zfabric.page.series import STEPS
from zfabric.page.views import ROWS, Views
from zfabric.page.watching import Watcher
from zfabric.protocol.messages.queries import LIST_LIMIT, TASK_STATES

STATIC = Path(__file__).parent / "static"
TEXT_MOST = 200
"""Most characters of a searched text."""

_SURROGATES = re.compile("[\ud800-\udfff]")
MINUTE = 60_000_000
"""Microseconds."""
Handler = Callable[[Request], Awaitable[Response]]


class _Answer(JSONResponse):
    """JSON with lone surrogates as text, since names of files that are not UTF-8 have such."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return _SURROGATES.sub(lambda found: rf"\\u{ord(found[0]):04x}", text).encode()


def make_app(watcher: Watcher, views: Views, token: str, host: str, port: int, secure: bool = False, allows_changes: bool = False) -> Guard:
    """Return the server's application, reached at ``host`` and ``port`` with ``token``.

    With ``allows_changes``, whoever sees the page may cancel and kill, by requests with a token that only the page has.
    """
    changing = secrets.token_urlsafe(32) if allows_changes else ""

    def view(answer: Callable[[Request], tuple[Any, ...]], ask: Callable[..., Awaitable[Any]] = watcher.ask) -> Handler:
        async def handler(request: Request) -> Response:
            try:
                method, *arguments = answer(request)
                return _Answer(await ask(method, *arguments))
            except ValueError as error:
                return _Answer({"error": str(error)}, 400)
            except FabricError as error:
                return _Answer({"error": str(error)}, 503)

        return handler

    async def index(request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def changes(request: Request) -> Response:
        return JSONResponse({"allowed": allows_changes, "token": changing})

    async def metrics(request: Request) -> Response:
        try:
            from zfabric.page.metrics import CONTENT_TYPE, exposition
        except ImportError:
            return _Answer({"error": "this needs prometheus_client: pip install 'zfabric[page]'"}, 503)
        return Response(await watcher.ask(exposition, views), media_type=CONTENT_TYPE)

    async def events(request: Request) -> Response:
        if watcher.full:
            return _Answer({"error": "too many windows show this page; close some"}, 503)
        return StreamingResponse(_until_gone(request, watcher), media_type="text/event-stream")

    routes = [
        Route("/", index),
        Route("/api/events", events),
        Route("/api/stream", view(lambda request: (views.stream, *_span(request)))),
        Route("/api/series", view(lambda request: (views.points, _step(request), _number(request, "after", 0)))),
        Route("/api/busy", view(lambda request: (views.busy,))),
        Route("/api/activity", view(lambda request: (views.activity,), watcher.ask_aside)),
        Route("/api/changes", changes),
        Route("/api/cancel", view(lambda request: (views.cancel, _id(request), "force" in request.query_params)), methods=["POST"]),
        Route("/api/kill", view(lambda request: (views.kill, _id(request))), methods=["POST"]),
        Route("/api/tasks", view(lambda request: (views.tasks, _states(request), _limit(request), _text(request)))),
        Route("/api/actors", view(lambda request: (views.actors, _limit(request)))),
        Route("/api/queues", view(lambda request: (views.queues, _limit(request)), watcher.ask_aside)),
        Route("/api/workers", view(lambda request: (views.workers,))),
        Route("/api/memory", view(lambda request: (views.memory, _limit(request)))),
        Route("/api/errors", view(lambda request: (views.errors,))),
        Route("/api/logs", view(lambda request: (views.logs, *_lines(request)))),
        Route("/api/stacks", view(lambda request: (views.stacks, _pid(request), _node(request)), watcher.ask_aside)),
        Route("/api/samples", view(lambda request: (views.samples, _pid(request) or 0, _node(request)), watcher.ask_aside)),
        Route("/api/details", view(lambda request: (views.details, _text(request)))),
        Route("/api/graph", view(lambda request: (views.graph, _text(request)))),
        Route("/metrics", metrics),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Guard(Starlette(routes=routes), token, hosts_of(host, port), secure, changing)


async def _until_gone(request: Request, watcher: Watcher) -> AsyncIterator[str]:
    async for event in watcher.events():
        if await request.is_disconnected():
            return
        yield event


def _number(request: Request, name: str, default: int, most: int = 2**53) -> int:
    text = request.query_params.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdecimal()) or len(text) > 16 or int(text) > most:
        raise ValueError(f"{name} is a number from 0 to {most}, not {text[:40]!r}")
    return int(text)


def _span(request: Request) -> tuple[float, float, float]:
    """The end, length and distance of a part of the task stream in seconds, given in microseconds."""
    until = _number(request, "until", 0)
    span, ago = (_number(request, name, default, MINUTE) for name, default in (("span", MINUTE), ("ago", 0)))
    return until / 1e6, max(1, span) / 1e6, ago / 1e6


def _step(request: Request) -> int:
    step = _number(request, "step", 1)
    if step not in STEPS:
        raise ValueError(f"a point stands for {' or '.join(map(str, STEPS))} seconds, not for {step}")
    return step


def _id(request: Request) -> str:
    return request.query_params.get("id", "")[:TEXT_MOST]


def _lines(request: Request) -> tuple[int, int | None, str, int, str]:
    """The selection of lines: number, pid, text, job, function."""
    job, function = _number(request, "job", 0, 2**32), request.query_params.get("function", "")[:TEXT_MOST]
    return _number(request, "since", 0), _pid(request), _text(request), job, function


def _limit(request: Request) -> int:
    return max(1, _number(request, "limit", ROWS, LIST_LIMIT - 1))


def _pid(request: Request) -> int | None:
    return _number(request, "pid", 0, 2**22) or None


def _node(request: Request) -> str:
    return request.query_params.get("node", "")[:TEXT_MOST]


def _text(request: Request) -> str:
    text = request.query_params.get("text", "")
    if len(text) > TEXT_MOST:
        raise ValueError(f"a text to search for has at most {TEXT_MOST} characters")
    return text


def _states(request: Request) -> tuple[str, ...]:
    states = tuple(request.query_params.getlist("state"))
    for state in states:
        if state not in TASK_STATES:
            raise ValueError(f"there is no state {state[:40]!r}; there are {', '.join(TASK_STATES)}")
    return states
