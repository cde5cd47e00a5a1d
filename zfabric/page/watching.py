"""Queries the daemon while somebody looks, once for all viewers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zfabric.exceptions import FabricError
from zfabric.page.views import Views
from zfabric.runtime.session import Session

EVERY_SECONDS = 1.0
"""Seconds between overviews."""
PAUSE_MOST = 5.0
"""The longest pause between overviews in seconds: a silent node delays nobody for longer."""
SHARE_MOST = 0.02
"""The share of its time that a daemon may spend on answers."""
VIEWERS_MOST = 50
ASIDE_MOST = 8
"""Most processes sampled at once."""


class Watcher:
    """One per server. Queries run on one thread, except those that wait for processes."""

    def __init__(self, session: Session, views: Views) -> None:
        self._session = session
        self._views = views
        self._thread = ThreadPoolExecutor(1, "queries")
        self._aside = ThreadPoolExecutor(ASIDE_MOST, "slow-queries")
        self._viewers: set[asyncio.Queue[str]] = set()
        self._asking: asyncio.Task[None] | None = None
        self._ended: str | None = None

    async def ask(self, view: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the views."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, view, *arguments)

    async def ask_aside(self, view: Callable[..., Any], *arguments: Any) -> Any:
        """Call, beside other calls, a method that waits and changes nothing that these use."""
        return await asyncio.get_running_loop().run_in_executor(self._aside, view, *arguments)

    @property
    def viewers(self) -> int:
        """Windows that show the page."""
        return len(self._viewers)

    @property
    def full(self) -> bool:
        """Whether no further viewer is admitted."""
        return self.viewers >= VIEWERS_MOST

    async def events(self) -> AsyncIterator[str]:
        """Server-sent events with the overview, until the cluster ends."""
        mine: asyncio.Queue[str] = asyncio.Queue(1)
        self._viewers.add(mine)
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_on())
        try:
            while True:
                event = await mine.get()
                yield event
                if event.startswith("event: ended"):
                    return
        finally:
            self._viewers.discard(mine)

    async def _ask_on(self) -> None:
        while self._viewers:
            began = asyncio.get_running_loop().time()
            try:
                overview = await self.ask(self._views.overview)
                text = f"event: update\ndata: {json.dumps(overview)}\n\n"
            except FabricError as error:
                if not self._session.alive():
                    self.end()
                    break
                text = f"event: trouble\ndata: {json.dumps(str(error))}\n\n"
            if self._ended is not None:
                break
            self._tell(text)
            took = asyncio.get_running_loop().time() - began
            # The more an answer costs, the longer the pause.
            await asyncio.sleep(min(max(EVERY_SECONDS, took / SHARE_MOST * 0.5), PAUSE_MOST))
        self._asking = None

    def end(self) -> None:
        """Notify windows that the cluster has ended now (seconds since 1970)."""
        if self._ended is None:
            self._ended = f"event: ended\ndata: {json.dumps(time.time())}\n\n"
        self._tell(self._ended)

    def _tell(self, event: str) -> None:
        for viewer in self._viewers:
            if viewer.full():  # It is slow; only the newest state counts.
                viewer.get_nowait()
            viewer.put_nowait(event)

    def close(self) -> None:
        """End the threads."""
        for threads in (self._thread, self._aside):
            threads.shutdown(wait=False, cancel_futures=True)
