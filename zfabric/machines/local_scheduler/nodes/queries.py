"""Queries about the whole cluster: the receiver asks all nodes, itself included, and combines the answers.

Each node has ``ANSWER_SECONDS``; the asker is notified of those that did not answer. A node that another one asks answers for itself.
``AT`` passes a query on to one node: its arguments are the node's id, the query, and its arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from zfabric.machines.local_scheduler.due import QUERIES
from zfabric.machines.local_scheduler.reports.diagnoses import COPY
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import FIRST_RETURN, LOCAL_SCHEDULER, TASK_BYTES, Address
from zfabric.protocol.messages.queries import TASK_STATES

AT = "at"
ENDED = TASK_STATES.index("finished")
"""Where a listing has ended tasks."""
ANSWER_SECONDS = 2.0


class _Question:
    def __init__(self, source: Address, query: m.Query, nodes: list[bytes], now: float) -> None:
        self.source = source
        self.query = query
        self.missing = dict.fromkeys(nodes)
        self.asked = now
        self.until = now + ANSWER_SECONDS
        self.answers: dict[bytes, m.Answer] = {}
        self.times: dict[bytes, float] = {}


class ClusterQueries:
    """Combines answers of several nodes."""

    def __init__(self, tables: Tables, requests: PendingRequests, node: bytes) -> None:
        self.tables = tables
        self.requests = requests
        self.node = node
        self.open: list[_Question] = []
        self._merge: dict[str, Callable[[_Question], Any]] = {
            "tasks": self._tasks,
            "objects": self._objects,
            "locate": self._located,
            "workers": self._rows,
            "demand": self._rows,
            "functions": self._functions,
            "failures": self._rows,
            "actors": self._actors,
            "groups": self._rows,
            "group": self._first,
            "find": self._found,
            "actor": self._named,
            "named actors": self._names,
            "explain": self._first,
            "neighbours": self._first,
            "series": self._rows,
            "cancel": self._first,  # Only the home of a task or actor answers more than None.
            "kill": self._first,
            "available_resources": self._sum,
            "statuses": self._statuses,
            "autoscaler": self._first,
            "clock": self._clocks,
            AT: self._only,
        }

    def takes(self, now: float, source: Address, message: m.Query) -> bool:
        """Pass a query on if it concerns all nodes. False for queries of other nodes, and for those of one node."""
        if not self.tables.nodes or source[:1] == LOCAL_SCHEDULER or message.what not in self._merge:
            return False
        if message.what != AT:
            self._ask(now, source, message, [self.node, *self.tables.nodes], message.what, message.arguments)
            return True
        node, what, *arguments = message.arguments if len(message.arguments) > 1 else (b"", "")
        if node == self.node or node in self.tables.nodes:
            self._ask(now, source, message, [node], what, tuple(arguments))
        else:
            self.tables.send(source, m.Answer(message.token, None, f"{what or AT}: this cluster has no such node (any more)"))
        return True

    def _ask(self, now: float, source: Address, message: m.Query, nodes: list[bytes], what: str, arguments: m.Row) -> None:
        question = _Question(source, message, nodes, now)
        self.open.append(question)
        self.tables.deadlines.note(QUERIES, question.until)
        for node in nodes:
            to = self.tables.address if node == self.node else LOCAL_SCHEDULER + node
            self.requests.ask_at(to, m.Query, what, arguments, then=partial(self._answered, question), about=node)

    def _answered(self, question: _Question, now: float, node: bytes, answer: m.Answer) -> None:
        if node in question.missing:
            del question.missing[node]
            question.answers[node] = answer
            question.times[node] = now
            if question.query.what == "actor" and answer.payload is not None:
                question.missing.clear()  # A name belongs to one actor: no other node is awaited.
            if not question.missing:
                self._conclude(question)

    def node_died(self, node: bytes) -> None:
        """Stop waiting for a dead node."""
        for question in list(self.open):
            if question.missing.pop(node, 0) is None and not question.missing:
                self._conclude(question)

    def tick(self, now: float) -> None:
        """Answer overdue questions, without the nodes that did not answer."""
        for question in [each for each in self.open if now >= each.until]:
            silent = ", ".join(sorted(self._name(node) for node in question.missing))
            what = "an actor of this name may be there" if question.query.what == "actor" else "what is there is missing here"
            text = f"no answer within {ANSWER_SECONDS:g} s from {silent}: {what}"
            if question.query.what == AT:
                self._close(question)
                text = f"{silent} did not answer within {ANSWER_SECONDS:g} s: it is held up, or has just died"
                self.tables.send(question.source, m.Answer(question.query.token, None, text))
                continue
            self.tables.send(question.source, m.Notice("warning", text))
            self._conclude(question)

    def next_deadline(self) -> float | None:
        """When the next question is overdue."""
        return min((question.until for question in self.open), default=None)

    def _close(self, question: _Question) -> None:
        self.open.remove(question)
        question.missing.clear()

    def _conclude(self, question: _Question) -> None:
        self._close(question)
        error = next((answer.error for answer in question.answers.values() if answer.error), "")
        payload = None
        if question.query.what == AT and not question.answers:
            error = f"{question.query.arguments[1]}: that node has died"
        try:
            payload = None if error else self._merge[question.query.what](question)
        except (TypeError, ValueError, KeyError, AttributeError) as problem:
            error = f"{question.query.what}: the answers of the nodes do not fit together ({problem!r})"
        self.tables.send(question.source, m.Answer(question.query.token, payload, error))

    # -- putting answers together --

    def _name(self, node: bytes) -> str:
        row = self.tables.cluster.rows.get(node)
        return row[2] if row is not None else node.hex()

    def _rows(self, question: _Question, order: Callable[[dict[str, Any]], int] | None = None) -> list[dict[str, Any]]:
        """Rows of all nodes, sorted by ``order`` and cut to the query's limit."""
        rows = [{**row, "node": self._name(node)} for node, answer in question.answers.items() for row in answer.payload]
        if order is not None:
            rows.sort(key=order)
        arguments = question.query.arguments
        return rows[: arguments[0]] if arguments and type(arguments[0]) is int else rows

    def _tasks(self, question: _Question) -> list[dict[str, Any]]:
        return self._rows(question, lambda row: min(TASK_STATES.index(row["state"]), ENDED))

    def _objects(self, question: _Question) -> list[dict[str, Any]]:
        """All values; a copy is listed under its home's name for the maker."""
        rows = self._rows(question)
        makers = {row["object_id"]: row["made_by"] for row in rows if row["made_by"] != COPY}
        return [{**row, "made_by": makers.get(row["object_id"], COPY)} if row["made_by"] == COPY else row for row in rows]

    def _located(self, question: _Question) -> dict[bytes, m.Row]:
        """Locations combined: (size or None, nodes, only on disk, has an outcome)."""
        found: dict[bytes, m.Row] = {}
        for answer in question.answers.values():
            for object_id, (size, nodes, spilled, complete) in answer.payload.items():
                other, others, all_spilled, known = found.get(object_id, (None, (), True, False))
                all_spilled = all_spilled and (spilled or not nodes)
                found[object_id] = (other if size is None else size, (*others, *nodes), all_spilled, complete or known)
        return {each: (size, nodes, spilled and bool(nodes), complete) for each, (size, nodes, spilled, complete) in found.items()}

    def _actors(self, question: _Question) -> list[dict[str, Any]]:
        """Actors as their homes report them, with the process that their node reports."""
        pids = {row["actor_id"]: row["pid"] for answer in question.answers.values() for row in answer.payload if row.get("guest")}
        rows = []
        for node, answer in question.answers.items():
            for row in (each for each in answer.payload if not each.get("guest")):
                rows.append({**row, "node": row.get("node") or self._name(node), "pid": row["pid"] or pids.get(row["actor_id"], 0)})
        limit = question.query.arguments[0] if question.query.arguments else len(rows)
        return rows[:limit]

    def _functions(self, question: _Question) -> list[dict[str, Any]]:
        """One row per function of a job, counts added."""
        total: dict[tuple[str, str], dict[str, Any]] = {}
        for answer in question.answers.values():
            for row in answer.payload:
                found = total.setdefault((row["job"], row["function"]), row)
                if found is not row:
                    for count in ("waiting", "arguments", "running", "finished", "failed"):
                        found[count] += row[count]
                    found["mean_seconds"] = found["mean_seconds"] or row["mean_seconds"]
        return list(total.values())

    def _found(self, question: _Question) -> list[dict[str, str]]:
        rows = [row for answer in question.answers.values() for row in answer.payload]
        # Elsewhere, an actor being made is a delegated task.
        found = {row["id"]: row for row in sorted(rows, key=lambda row: bool(row["kind"] == "actor"))}
        return list(found.values())

    def _first(self, question: _Question) -> Any:
        order = sorted(question.answers, key=lambda node: node != self.node)
        return next((answer for node in order if (answer := question.answers[node].payload) is not None), None)

    def _named(self, question: _Question) -> m.Row | None:
        """The actor with a name. Its handle is entered as a ref of its home."""
        order = sorted(question.answers, key=lambda node: node != self.node)
        for node in order:
            if (answer := question.answers[node].payload) is not None:
                actor_id, blueprint = answer
                if type(actor_id) is not bytes or len(actor_id) != TASK_BYTES:
                    raise ValueError("an actor has an id")
                if node != self.node and self.tables.find(actor_id + FIRST_RETURN) is None:
                    self.tables.refer(actor_id + FIRST_RETURN, node)
                return actor_id, blueprint
        return None

    def _names(self, question: _Question) -> list[tuple[str, str]]:
        return sorted({(namespace, name) for answer in question.answers.values() for namespace, name in answer.payload})

    def _only(self, question: _Question) -> Any:
        (answer,) = question.answers.values()
        return answer.payload

    def _statuses(self, question: _Question) -> list[dict[str, Any]]:
        numbers = {node: row[1] for node, row in self.tables.cluster.rows.items()}
        order = sorted(question.answers, key=lambda node: int(numbers.get(node, 0)))
        return [{**row, "name": self._name(node)} for node in order for row in question.answers[node].payload]

    def _clocks(self, question: _Question) -> list[dict[str, Any]]:
        """Each node's clock less this one's; the error is half of the round trip."""
        found = []
        for node, answer in question.answers.items():
            middle, error = (question.asked + question.times[node]) / 2, (question.times[node] - question.asked) / 2
            offset, error = (answer.payload - middle, error) if node != self.node else (0.0, 0.0)
            found.append({"node": node.hex(), "name": self._name(node), "offset": offset, "error": error})
        return found

    def _sum(self, question: _Question) -> dict[str, float]:
        total: Counter[str] = Counter()
        for answer in question.answers.values():
            total.update(answer.payload)
        return dict(total)
