"""Requests to the stores and to peers, and the receivers of answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import Address

Answer = m.Written | m.JobNumber | m.Found | m.KeyAnswer | m.Answer
Continuation = Callable[[float, Any, Any], None]
"""Receives (now, what the request was about, the answer)."""


class _Request(NamedTuple):
    then: Continuation
    about: Any
    to: Address
    """Who answers; empty for the control store of the head, whichever node is the head by then."""
    message: m.Message | None = None
    """What is repeated to another node's next daemon."""


class PendingRequests:
    """Unanswered requests, by token."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._open: dict[int, _Request] = {}
        self._next_token = 1

    def ask(self, message: Callable[..., m.Message], *fields: Any, then: Continuation, about: Any = None) -> None:
        """Send the control store a message whose first field is a token; ``then`` receives the answer."""
        to = self.tables.cluster.control_address
        self.tables.send(to, message(self._enter(then, about, to), *fields))

    def ask_at(self, to: Address, message: Callable[..., m.Message], *fields: Any, then: Continuation, about: Any = None) -> None:
        """Ask a local scheduler, perhaps this one, and its next daemon."""
        token = self._enter(then, about, to)
        request = message(token, *fields)
        self._open[token] = _Request(then, about, to, request)
        self.tables.send(to or self.tables.cluster.head_control_address, request)

    def ask_head(self, message: Callable[..., m.Message], *fields: Any, then: Continuation, about: Any = None) -> None:
        """Ask the head's control store, and the next head's."""
        self.ask_at(b"", message, *fields, then=then, about=about)

    def repeat(self, node: bytes) -> None:
        """Repeat unanswered requests to a new daemon or head."""
        for request in self._open.values():
            to = request.to or self.tables.cluster.head_control_address
            if request.message is not None and to[1:] == node:
                self.tables.send(to, request.message)

    def node_died(self, node: bytes) -> None:
        """Drop requests to a dead node; callers learn of the death otherwise."""
        self._open = {token: request for token, request in self._open.items() if request.to[1:] != node}

    def ask_store(self, what: str, arguments: m.Row, then: Continuation, about: Any = None) -> None:
        """Query the object store."""
        token = self._enter(then, about, self.tables.store.address or b"")
        self.tables.send_to_store(m.Query(token, what, arguments))

    def _enter(self, then: Continuation, about: Any, to: Address) -> int:
        token = self._next_token
        self._next_token += 1
        self._open[token] = _Request(then, about, to)
        return token

    def on_answer(self, now: float, source: Address, message: Answer) -> None:
        """Pass an answer on. Unknown requests are dropped."""
        request = self._open.get(message.token)
        if request is not None and source[1:] == (request.to or self.tables.cluster.head_control_address)[1:]:
            del self._open[message.token]
            request.then(now, request.about, message)
