"""Queries of this process to its daemon."""

from __future__ import annotations

from zfabric.machines.client.direct_submission import DirectSubmitter
from zfabric.machines.client.outbox import Outbox
from zfabric.protocol import messages as m
from zfabric.protocol.messages import Row


class Queries:
    """Queries by token, until their answers are taken."""

    def __init__(self, outbox: Outbox, direct: DirectSubmitter) -> None:
        self.asked: dict[int, m.Query] = {}
        """Unanswered ones; a restarted daemon has not received them."""
        self.answers: dict[int, m.Answer] = {}
        self._outbox = outbox
        self._direct = direct
        self._next_token = 1

    def token(self) -> int:
        """A number of no other request."""
        self._next_token += 1
        return self._next_token

    def ask(self, token: int, what: str, arguments: Row) -> None:
        """Send a query; the answer arrives under ``token``."""
        query = self.asked[token] = m.Query(token, what, arguments)
        self._direct.report_counts()
        self._outbox.add_message(query)

    def forget(self, token: int) -> None:
        """Wait for this answer no longer."""
        self.asked.pop(token, None)

    def answered(self, token: int) -> bool:
        """Remove an answered query. False if none was expected."""
        return self.asked.pop(token, None) is not None

    def add_answer(self, answer: m.Answer) -> None:
        """Store an answer for its token."""
        self.answers[answer.token] = answer
