"""Questions about the whole cluster: the asked node asks all nodes, itself included, and puts their answers together.

Each node has ``ANSWER_SECONDS``. The asker is notified of those that did not answer. A node that another one asks answers for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import LOCAL_SCHEDULER, Address

ANSWER_SECONDS = 2.0
"""How long a node may take to answer for itself."""


class _Question:
    """A question that other nodes are asked, and their answers so far."""

    def __init__(self, source: Address, query: m.Query, nodes: list[bytes], until: float) -> None:
        self.source = source
        self.query = query
        self.missing = dict.fromkeys(nodes)
        self.until = until
        self.answers: dict[bytes, m.Answer] = {}


class ClusterQueries:
    """Answers of several nodes, put together. ``node`` is this one's id."""

    def __init__(self, tables: Tables, requests: PendingRequests, node: bytes) -> None:
        self.tables = tables
        self.requests = requests
        self.node = node
        self._open: list[_Question] = []
        self._merge: dict[str, Callable[[_Question], Any]] = {
            "tasks": self._rows,
            "objects": self._rows,
            "workers": self._rows,
            "functions": self._functions,
            "actors": self._rows,
            "find": self._found,
            "explain": self._first,
            "neighbours": self._first,
            "available_resources": self._sum,
        }

    def takes(self, now: float, source: Address, message: m.Query) -> bool:
        """Whether a question is about all nodes, and has been passed on to them. Those of other nodes, and of one node alone, are not."""
        if not self.tables.nodes or source[:1] == LOCAL_SCHEDULER or message.what not in self._merge:
            return False
        nodes = [self.node, *self.tables.nodes]
        question = _Question(source, message, nodes, now + ANSWER_SECONDS)
        self._open.append(question)
        for node in nodes:
            to = self.tables.address if node == self.node else LOCAL_SCHEDULER + node
            self.requests.ask_at(to, m.Query, message.what, message.arguments, then=partial(self._answered, question), about=node)
        return True

    def _answered(self, question: _Question, now: float, node: bytes, answer: m.Answer) -> None:
        if node in question.missing:
            del question.missing[node]
            if node != self.node and not answer.error and not _fits(question.query.what, answer.payload):
                answer = m.Answer(answer.token, None, f"the answer of node {self._name(node)} makes no sense")
            question.answers[node] = answer
            if not question.missing:
                self._conclude(question)

    def node_died(self, node: bytes) -> None:
        """Wait no longer for the answers of a dead node."""
        for question in list(self._open):
            if question.missing.pop(node, 0) is None and not question.missing:
                self._conclude(question)

    def tick(self, now: float) -> None:
        """Answer what has waited long enough, without the nodes that did not answer."""
        for question in [each for each in self._open if now >= each.until]:
            silent = ", ".join(sorted(self._name(node) for node in question.missing))
            text = f"no answer within {ANSWER_SECONDS:g} s from {silent}: what is there is missing here"
            self.tables.send(question.source, m.Notice("warning", text))
            self._conclude(question)

    def next_deadline(self) -> float | None:
        """When the next question is answered at the latest."""
        return min((question.until for question in self._open), default=None)

    def _conclude(self, question: _Question) -> None:
        self._open.remove(question)
        error = next((answer.error for answer in question.answers.values() if answer.error), "")
        payload = None if error else self._merge[question.query.what](question)
        self.tables.send(question.source, m.Answer(question.query.token, payload, error))

    # -- putting answers together --

    def _name(self, node: bytes) -> str:
        row = self.tables.node_table.get(node)
        return row[2] if row is not None else node.hex()

    def _rows(self, question: _Question) -> list[dict[str, Any]]:
        """Rows of all nodes, each with its node. Where a limit was asked for, so many of all."""
        rows = [{**row, "node": self._name(node)} for node, answer in question.answers.items() for row in answer.payload]
        arguments = question.query.arguments
        return rows[: arguments[0]] if arguments and type(arguments[0]) is int else rows

    def _functions(self, question: _Question) -> list[dict[str, Any]]:
        """One row for each function of a job: the counts of all nodes, added up."""
        total: dict[tuple[str, str], dict[str, Any]] = {}
        for answer in question.answers.values():
            for row in answer.payload:
                found = total.setdefault((row["job"], row["function"]), row)
                if found is not row:
                    for count in ("waiting", "running", "finished", "failed"):
                        found[count] += row[count]
                    found["mean_seconds"] = found["mean_seconds"] or row["mean_seconds"]
                    found["estimated"] |= row["estimated"]
        return list(total.values())

    def _found(self, question: _Question) -> list[dict[str, str]]:
        """Things that a text may name, each once: two nodes may know one object."""
        found = {row["id"]: row for answer in question.answers.values() for row in answer.payload}
        return list(found.values())

    def _first(self, question: _Question) -> Any:
        """What the home says of a thing, else what another node knows of it. This node's answer comes first where there are several."""
        order = sorted(question.answers, key=lambda node: node != self.node)
        return next((answer for node in order if (answer := question.answers[node].payload) is not None), None)

    def _sum(self, question: _Question) -> dict[str, float]:
        total: Counter[str] = Counter()
        for answer in question.answers.values():
            total.update(answer.payload)
        return dict(total)


def _fits(what: str, payload: Any) -> bool:
    """Whether another node's answer can be put together with others."""
    if what == "explain":
        return True
    if what == "available_resources":
        return type(payload) is dict and all(type(name) is str and type(amount) in (int, float) for name, amount in payload.items())
    return type(payload) is tuple and all(type(row) is dict and (what != "find" or type(row.get("id")) is str) for row in payload)
