"""The global scheduler: one shard that places spilled tasks by the nodes' heartbeats (decision 0031).

It retains no task: homes ask again for what was placed nowhere. So no task is lost when a shard restarts, nor overlooked when a node joins.
Between heartbeats, placed tasks count as queued on their node; else the next batches would pile up there. A silent node's home did not send
them (a lost answer, an unknown node), and they count no longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zfabric.config import Config
from zfabric.machines.common.resources import covers
from zfabric.machines.global_scheduler.policies import Batch, LeastWait, MostRoom, NodeView, Policy
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Effect, Send
from zfabric.protocol.ids import LOCAL_SCHEDULER, Address, short
from zfabric.protocol.machine import Handler, Handlers, InvariantViolation
from zfabric.protocol.messages import FOR_LIFE, Message, Row, Rows
from zfabric.protocol.options import Demand

TASKS_MAX = 1_000_000
"""Most tasks per row of ``Place`` and answer. A home asks again for the rest."""
UNCONFIRMED_SECONDS, UNCONFIRMED_EACH = 1.0, 0.002
"""Seconds for which tasks count on a silent node: at least, and per node. Larger clusters report less often, but news within half of this.
"""


class GlobalScheduler:
    """One shard. ``policy`` chooses among nodes with enough, by default ``LeastWait``."""

    def __init__(self, address: Address, config: Config, policy: Policy | None = None) -> None:
        self.address = address
        self._config = config
        self._policy = policy or LeastWait()
        self._nodes: dict[bytes, NodeView] = {}
        self._placed_at: dict[bytes, float] = {}
        """First placements on nodes silent since, earliest first."""
        self._asked: list[tuple[Address, m.Place]] = []
        self._effects: list[Effect] = []
        self._counts = dict.fromkeys(("heartbeats", "placed", "infeasible", "refused"), 0)
        self.handlers = Handlers(self._counts, self._accepted())

    def step(self, now: float, source: Address, message: Message) -> None:
        """Take in one message."""
        self.handlers[type(message)](now, source, message)

    def tick(self, now: float) -> None:
        """Do nothing: no state depends on time."""

    def next_deadline(self) -> float | None:
        """None: nothing waits."""
        return None

    def take_effects(self, now: float) -> list[Effect]:
        """Place all requests: one answer per asker."""
        self._forget_unconfirmed(now)
        answers: dict[Address, list[Row]] = {}
        feasible: dict[Demand, list[NodeView]] = {}
        for asker, question in self._asked:
            rows = answers.setdefault(asker, [])
            for token, demand, count, seconds, inputs in question.rows:
                nodes = feasible.get(demand)
                if nodes is None:
                    nodes = feasible[demand] = self._feasible(demand)
                batch = Batch(demand, min(count, TASKS_MAX), seconds, self._fetch_times(inputs, nodes))
                places = self._place(batch, nodes, asker)
                for node, count in places:
                    if count:
                        self._placed_at.setdefault(node, now)
                rows.append((token, places))
        self._asked = []
        effects, self._effects = self._effects, []
        return effects + [Send(asker, m.Placed(tuple(rows))) for asker, rows in answers.items()]

    def statistics(self) -> Mapping[str, float]:
        """Counters, and the number of known nodes."""
        return {**self._counts, "nodes": len(self._nodes)}

    def check_invariants(self) -> None:
        """Raise InvariantViolation if two facts disagree."""
        for node, view in self._nodes.items():
            if node != view.node or view.queued < 0 or view.placed < 0 or (view.placed > 0 and node not in self._placed_at):
                raise InvariantViolation(f"node {short(node)} is filed wrongly or counts below nothing")

    # -- handlers --------------------------------------------------------------------------------------------------------------

    def on_heartbeat(self, now: float, source: Address, message: m.Heartbeat) -> None:
        """Take over a report: the node's queue has earlier placements."""
        if source[:1] != LOCAL_SCHEDULER:
            self._refuse(source, "only a local scheduler speaks for its node")
        elif not (_is_demand(message.total) and _is_demand(message.available, least=None) and _is_demand(message.lasting)):
            self._refuse(source, "resources are (name, amount) pairs in 1/10,000")
        elif message.queued < 0 or not message.mean_seconds >= 0:
            self._refuse(source, "a queue and its mean time are not negative")
        else:
            self._counts["heartbeats"] += 1
            self._placed_at.pop(message.node, None)
            self._nodes[message.node] = NodeView(
                message.node, source, message.total, message.available, message.queued, message.mean_seconds, message.lasting
            )

    def on_place(self, now: float, source: Address, message: m.Place) -> None:
        """Queue a request for placement."""
        if all(map(_is_question, message.rows)):
            self._asked.append((source, message))
        else:
            self._refuse(source, "rows of Place are (token, demand, tasks, seconds, inputs)")

    def on_process_gone(self, now: float, source: Address, message: m.ProcessGone) -> None:
        """Remove a dead scheduler's node; its next one sends a heartbeat."""
        for node, view in list(self._nodes.items()):
            if view.scheduler[1:] == message.incarnation:
                del self._nodes[node]
                self._placed_at.pop(node, None)

    # -- placing ---------------------------------------------------------------------------------------------------------------

    def _forget_unconfirmed(self, now: float) -> None:
        while self._placed_at:
            node, since = next(iter(self._placed_at.items()))
            if now < since + max(UNCONFIRMED_SECONDS, UNCONFIRMED_EACH * len(self._nodes)):
                break
            del self._placed_at[node]
            self._nodes[node].forget_placed()

    def _feasible(self, demand: Demand) -> list[NodeView]:
        return [self._nodes[node] for node in sorted(self._nodes) if covers(self._nodes[node].total, demand)]

    def _fetch_times(self, inputs: Rows, nodes: list[NodeView]) -> dict[bytes, float]:
        if not inputs:
            return {}
        has: dict[bytes, int] = dict(inputs)
        whole = sum(has.values())
        return {view.node: (whole - has.get(view.node, 0)) / self._config.node_bandwidth for view in nodes}

    def _place(self, batch: Batch, nodes: list[NodeView], asker: Address) -> tuple[Row, ...]:
        if not nodes:
            self._counts["infeasible"] += 1
            return ()
        for view in nodes:
            if view.scheduler == asker:  # What it asks for is in its queue: there it is not ahead of itself.
                view.queued = max(0, view.queued - batch.tasks)
        self._counts["placed"] += batch.tasks
        for_life = batch.seconds >= FOR_LIFE and any(amount > 0 for _, amount in batch.demand)
        if for_life:
            return tuple(MostRoom().place(batch, nodes).items())
        roomy = [view for view in nodes if view.has_room(batch.demand)]
        # What actors hold may never be free. Without room the answer names all that could, and the asker asks again.
        return tuple(self._policy.place(batch, roomy).items()) if roomy else tuple((view.node, 0) for view in nodes)

    def _refuse(self, source: Address, text: str) -> None:
        self._counts["refused"] += 1
        self._effects.append(Send(source, m.Refused("FabricError", text)))

    def _accepted(self) -> dict[type[Any], Handler]:
        return {
            m.Heartbeat: self.on_heartbeat,
            m.Place: self.on_place,
            m.ProcessGone: self.on_process_gone,
        }


def _is_question(row: Row) -> bool:
    if len(row) != 5 or type(row[1]) is not tuple or not _is_demand(row[1]) or type(row[4]) is not tuple:
        return False
    return bool(row[2] > 0 and row[3] >= 0.0 and all(len(pair) == 2 and pair[1] >= 0 for pair in row[4]))


def _is_demand(pairs: tuple[Any, ...], least: int | None = 0) -> bool:
    """(name, amount) pairs; with ``least`` None amounts lent twice may be negative."""
    return all(
        type(pair) is tuple and len(pair) == 2 and type(pair[0]) is str and type(pair[1]) is int and (least is None or pair[1] >= least)
        for pair in pairs
    )
