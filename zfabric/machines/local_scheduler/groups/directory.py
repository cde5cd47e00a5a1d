"""Placement groups at their home: reserved, reserved again after the death of a node, removed (decision 0037).

The home asks all nodes for their room (``AskRoom``), chooses a node for each bundle (``planning``), and has these nodes prepare their
bundles (``PrepareBundles``), one after the other. If a node refuses, all bundles are freed and the group is planned anew. Once all are
prepared, the group's row is written, and the bundles are committed (``CommitBundles``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zfabric.machines.common.resources import covers, describe, describe_node
from zfabric.machines.common.tables import pack_row, unpack_row
from zfabric.machines.local_scheduler.due import GROUPS
from zfabric.machines.local_scheduler.group_records import GroupRecord, KnownGroup
from zfabric.machines.local_scheduler.groups.bundles import Bundles
from zfabric.machines.local_scheduler.groups.planning import STRICT_PACK, plan, total_of
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.protocol import messages as m
from zfabric.protocol.ids import JOB_BYTES, LOCAL_SCHEDULER, TASK_BYTES, Address
from zfabric.protocol.messages import CREATED, REMOVED, RESCHEDULING
from zfabric.protocol.options import Demand, Strategy, accepts

SURVEY_SECONDS = 1.0
"""Seconds in which nodes report room; others are left out."""


class Groups:
    """The placement groups of this node's jobs."""

    def __init__(self, tables: Tables, requests: PendingRequests, bundles: Bundles) -> None:
        self.tables = tables
        self.requests = requests
        self.bundles = bundles
        self.records: dict[bytes, GroupRecord] = {}
        """This home's placement groups, oldest first."""
        self._survey = 0
        self._asked_at = 0.0
        self._expected: set[bytes] = set()
        """Nodes that have not answered it."""
        self._until: float | None = None
        """When the survey ends without them."""
        self._unmet: dict[bytes, float] = {}
        """Groups that no node can hold, and when to warn."""
        self._surveyed: set[bytes] = set()
        self._rooms: dict[bytes, tuple[dict[str, int], dict[str, int]]] = {}
        """Answers by node: what is free, and what would be without tasks."""
        self._stale = True
        """Whether there may be more room by now."""

    # -- requests of clients --

    def create(
        self,
        source: Address,
        token: int,
        group: bytes,
        bundles: tuple[Demand, ...],
        policy: str,
        name: str,
        namespace: str,
        detached: bool,
        selectors: tuple[Strategy, ...] = (),
    ) -> None:
        """Make a group for a process of any node. The answer is (its home, why it was refused)."""
        job = self.tables.jobs.get(group[:JOB_BYTES])
        if job is None or job.ended:
            raise ValueError("the job has ended")
        if job.home:
            arguments = (group, bundles, policy, name, namespace, detached, selectors)
            self._relay(source, token, job.home, "create group", arguments)
            return
        holder = next((each for each in self.records.values() if name and (each.namespace, each.name) == (namespace, name)), None)
        if holder is not None and holder.id != group:
            self.tables.send(source, m.Answer(token, (b"", f"a placement group is called {name!r} already"), ""))
            return
        record = self.records.setdefault(group, GroupRecord(group, bundles, policy, name, namespace, detached, selectors))
        self._stale = True
        self._write(record, (source, token, (group, self.tables.cluster.node, "")))

    def remove(self, source: Address, token: int, group: bytes, home: bytes) -> None:
        """Remove a group, at its home."""
        if home in self.tables.nodes:
            self._relay(source, token, home, "remove group", (group, home))
            return
        record = self.records.get(group)
        if record is None:
            self.tables.send(source, m.Answer(token, None, ""))
            return
        self._remove(record, "remove_placement_group() was called")
        self.requests.ask(m.Write, (), (("group", group),), then=self._written, about=(source, token, None))

    def _relay(self, source: Address, token: int, home: bytes, what: str, arguments: tuple[Any, ...]) -> None:
        self.requests.ask_at(LOCAL_SCHEDULER + home, m.Query, what, arguments, then=self._relayed, about=(source, token))

    def _relayed(self, now: float, about: tuple[Address, int], answer: m.Answer) -> None:
        source, token = about
        self.tables.send(source, m.Answer(token, answer.payload, answer.error))

    def _write(self, record: GroupRecord, about: tuple[Address, int, Any] | None = None) -> None:
        facts = {
            "bundles": record.bundles,
            "policy": record.policy,
            "name": record.name,
            "namespace": record.namespace,
            "detached": record.detached,
            "selectors": record.selectors,
            "places": tuple(record.places),
            "leaving": tuple(sorted(record.leaving)),
            "state": record.state,
        }
        puts = (("group", record.id, pack_row(facts)),)
        if about is None:
            self.requests.ask(m.Write, puts, (), then=self._committed, about=record.id)
        else:
            self.requests.ask(m.Write, puts, (), then=self._written, about=about)

    def _written(self, now: float, about: tuple[Address, int, Any], answer: m.Written) -> None:
        source, token, payload = about
        if not answer.ok and payload is not None:
            for record in [each for each in self.records.values() if each.id == payload[0]]:
                self._remove(record, answer.text)
        self.tables.send(source, m.Answer(token, payload and payload[1:], "" if answer.ok else answer.text))

    # -- room --

    def end_of_turn(self, now: float) -> None:
        """Survey the nodes, if a group waits and there may be more room."""
        if not any(record.missing and not record.target for record in self.records.values()) or self._expected:
            return
        nodes = {node.token for node in self.tables.nodes.values() if node.is_ready and not node.draining}
        nodes.add(self.tables.cluster.node)
        if self._stale or nodes != self._surveyed:
            self._stale = False
            self._survey += 1
            self._asked_at = now
            self._rooms = {}
            self._until = now + SURVEY_SECONDS
            self.tables.deadlines.note(GROUPS, self._until)
            self._expected, self._surveyed = set(nodes), nodes
            for node in sorted(nodes, key=self.tables.cluster.number_of):
                self.tables.send_to_peer(node, m.AskRoom(self._survey))

    def on_room(self, now: float, source: Address, message: m.NodeRoom) -> None:
        """Accept a node's answer, or note that it has more room since."""
        self._stale |= not message.survey
        node = self.tables.sender_of(source)
        if node in self._expected and message.survey == self._survey:
            self._rooms[node] = dict(message.free), dict(message.capacity)
            self._no_longer_expected(node)

    def _no_longer_expected(self, node: bytes) -> None:
        self._expected.discard(node)
        if not self._expected and self._until is not None:
            self._until = None
            self._plan()

    def tick(self, now: float) -> None:
        """Plan without nodes that do not answer, and warn drivers."""
        if self._until is not None and now >= self._until:
            self._surveyed -= self._expected  # They are asked again.
            self._expected.clear()
            self._until = None
            self._plan()
        for group in [group for group, due in self._unmet.items() if now >= due]:
            del self._unmet[group]
            if group in self.records:
                self._warn(now, self.records[group])

    def next_deadline(self) -> float | None:
        """When the survey ends, or a driver is warned."""
        dues = [*self._unmet.values(), *(() if self._until is None else (self._until,))]
        return min(dues, default=None)

    # -- reserving --

    def _plan(self) -> None:
        order = sorted(self._rooms, key=self.tables.cluster.number_of)
        free = {node: self._rooms[node][0] for node in order}
        capacity = {node: self._rooms[node][1] for node in order}
        for record in self.records.values():
            if not record.missing or record.target:
                continue
            taken = [place for place in record.places if place]
            missing, marks = self._marked(record, order)
            target = plan(record.policy, missing, _joined(free, marks), taken) or plan(
                record.policy, missing, _joined(capacity, marks), taken
            )
            if target is None:
                if not record.warned and self._beyond_all_nodes(record):
                    self._unmet.setdefault(record.id, self._asked_at + self.tables.config.infeasible_warning)
                    self.tables.deadlines.note(GROUPS, self._unmet[record.id])
                continue
            for node, indexes in _by_node(target).items():
                for name, amount in total_of([record.bundles[index] for index in indexes]):
                    free[node][name] = free[node].get(name, 0) - amount
                    capacity[node][name] -= amount
            record.target = target
            record.reservation += 1
            record.steps = sorted(set(target.values()), key=self.tables.cluster.number_of, reverse=True)
            self._go_on(record)

    def _marked(self, record: GroupRecord, nodes: list[bytes]) -> tuple[dict[int, Demand], dict[bytes, dict[str, int]]]:
        """Bundles without a place, and marks of nodes.

        A label selector is planned as a resource: nodes with the labels have any amount, and the bundle takes one.
        """
        if not record.selectors:
            return record.missing, {}
        names = {selector: f"labels {number}" for number, selector in enumerate(dict.fromkeys(record.selectors)) if selector}
        missing = {
            index: (*demand, *([(names[record.selectors[index]], 1)] if record.selectors[index] else []))
            for index, demand in record.missing.items()
        }
        marks = {
            node: {name: len(record.bundles) for selector, name in names.items() if accepts(self._labels(node), selector)} for node in nodes
        }
        return missing, marks

    def _labels(self, node: bytes) -> Mapping[str, str]:
        if node == self.tables.cluster.node:
            return self.tables.cluster.labels
        return self.tables.nodes[node].labels if node in self.tables.nodes else {}

    def _beyond_all_nodes(self, record: GroupRecord) -> Demand:
        """A demand of a bundle, or of a whole STRICT_PACK group, that no node can meet; else empty."""
        demands = [total_of(record.bundles)] if record.policy == STRICT_PACK else record.bundles
        totals = [self.tables.pool.total, *(node.resources for node in self.tables.nodes.values())]
        return next((demand for demand in demands if not any(covers(total, demand) for total in totals)), ())

    def _warn(self, now: float, record: GroupRecord) -> None:
        demand = self._beyond_all_nodes(record)
        if not demand:
            return
        record.warned = True
        job = self.tables.jobs.get(record.id[:JOB_BYTES])
        driver = job.driver if job is not None else None
        if driver is not None:
            has = describe_node(tuple(sorted(self.tables.pool.total.items())))
            name = f" {record.name!r}" if record.name else ""
            text = (
                f"a placement group{name} asks one node for {describe(demand)}, which none has (this one has {has}); it stays pending "
                f"until one joins that does{self.tables.requested_nodes.describe(now, demand)}. Ask for less, or add a node that has it."
            )
            self.tables.send_to_client(driver, m.Notice("warning", text))

    def _go_on(self, record: GroupRecord) -> None:
        """Have the next node prepare; after the last, the group is whole."""
        if record.steps:
            node = record.steps[-1]
            rows = tuple((index, record.bundles[index]) for index in _by_node(record.target)[node])
            self.tables.send_to_peer(node, m.PrepareBundles(record.id, record.reservation, record.detached, rows))
            return
        for index, node in record.target.items():
            record.places[index] = node
        record.target = {}
        record.state = CREATED
        self._write(record)

    def on_bundles_prepared(self, now: float, source: Address, message: m.BundlesPrepared) -> None:
        """Accept a node's answer to ``PrepareBundles``."""
        record = self.records.get(message.group)
        node = self.tables.sender_of(source)
        if record is None or record.reservation != message.reservation or not record.steps or record.steps[-1] != node:
            return  # Bundles of an earlier attempt were freed by a message behind its request.
        if message.ok:
            record.steps.pop()
            self._go_on(record)
        else:
            self._abandon(record)

    def _abandon(self, record: GroupRecord) -> None:
        asked = set(record.target.values()) - set(record.steps[:-1])
        for node in sorted(asked, key=self.tables.cluster.number_of):
            self.tables.send_to_peer(node, m.FreeBundles(record.id, tuple(_by_node(record.target)[node]), "it is planned anew"))
        record.target, record.steps = {}, []
        self._stale = True

    def _committed(self, now: float, group: bytes, answer: m.Written) -> None:
        """Commit a whole group, whose row is written or could not be (a full disk)."""
        record = self.records.get(group)
        if record is not None and record.state == CREATED:
            for node in sorted(set(record.places), key=self.tables.cluster.number_of):
                self.tables.send_to_peer(node, m.CommitBundles(group))
            self._notify(record)

    # -- changes --

    def node_drained(self, node: bytes) -> None:
        """Reserve a drained node's bundles elsewhere; what runs there ends first."""
        for record in self.records.values():
            record.leaving |= {(index, node) for index, place in enumerate(record.places) if place == node}
            self._leave(record, node)

    def _leave(self, record: GroupRecord, node: bytes) -> None:
        if node in record.target.values():
            self._abandon(record)
        if node in record.places:
            record.places = [b"" if place == node else place for place in record.places]
            record.state = RESCHEDULING
            self._write(record)
            self._notify(record)
            self._stale = True

    def node_died(self, node: bytes) -> None:
        """Reserve a dead node's bundles elsewhere."""
        for record in self.records.values():
            record.watchers.discard(node)
            record.leaving = {each for each in record.leaving if each[1] != node}
            self._leave(record, node)
        if node in self._expected:
            self._no_longer_expected(node)

    def job_ended(self, job: bytes) -> None:
        """Remove a job's groups, without detached ones."""
        ended = [record for record in self.records.values() if record.id[:JOB_BYTES] == job and not record.detached]
        for record in ended:
            self._remove(record, "its job has ended")
        if ended:
            self.tables.send(self.tables.cluster.control_address, m.Write(0, (), tuple(("group", record.id) for record in ended)))

    def _remove(self, record: GroupRecord, reason: str) -> None:
        del self.records[record.id]
        nodes = {*record.places, *record.target.values(), *(node for _, node in record.leaving)} - {b""}
        for node in sorted(nodes, key=self.tables.cluster.number_of):
            self.tables.send_to_peer(node, m.FreeBundles(record.id, (), reason))
        record.state = REMOVED
        record.places = [b""] * len(record.bundles)
        self._notify(record, reason)

    def on_watch_group(self, now: float, source: Address, message: m.WatchGroup) -> None:
        """Report a group to a node with tasks for it, now and on every change."""
        node, record = self.tables.sender_of(source), self.records.get(message.group)
        if node is None:
            return
        if record is None:
            reason = "its home does not know it: it was removed, or its job has ended"
            self.tables.send_to_peer(node, m.GroupState(message.group, REMOVED, (), reason))
        else:
            record.watchers.add(node)
            self._send_state(node, record)

    def _notify(self, record: GroupRecord, reason: str = "") -> None:
        for node in sorted(record.watchers, key=self.tables.cluster.number_of):
            self._send_state(node, record, reason)

    def _send_state(self, node: bytes, record: GroupRecord, reason: str = "") -> None:
        self.tables.send_to_peer(node, _state_of(record, reason))

    # -- restarts of the daemon --

    def restore(self, rows: m.Rows) -> None:
        """Restore groups and bundles. Groups that were not whole are planned anew."""
        self.bundles.restore(tuple(row for row in rows if len(row[0]) > TASK_BYTES))
        for identifier, value in [row for row in rows if len(row[0]) == TASK_BYTES]:
            facts: Mapping[str, Any] = unpack_row(value)
            job = self.tables.jobs.get(identifier[:JOB_BYTES])
            if not facts["detached"] and (job is None or job.ended):
                self.tables.send(self.tables.cluster.control_address, m.Write(0, (), (("group", identifier),)))
                continue
            terms = (facts["bundles"], facts["policy"], facts["name"], facts["namespace"], facts["detached"], facts.get("selectors", ()))
            record = GroupRecord(identifier, *terms)
            record.state = facts["state"]
            record.places = list(facts["places"])
            record.leaving = set(facts["leaving"])
            record.watchers.add(self.tables.cluster.node)
            self.records[identifier] = record
            self.tables.known_groups[identifier] = KnownGroup(_state_of(record), {})
        self.bundles.hold(self.tables.cluster.node, self._held_by(self.tables.cluster.node))

    def repeat(self, node: bytes) -> None:
        """Repeat needed bundles and the open request to a node."""
        self.tables.send_to_peer(node, m.HoldBundles(self._held_by(node)))
        for record in self.records.values():
            if record.steps and record.steps[-1] == node:
                self._go_on(record)
        self._stale = True

    def _held_by(self, node: bytes) -> m.Rows:
        """Bundles placed, being reserved, or leaving there."""
        rows = []
        for record in self.records.values():
            asked = {} if node in record.steps[:-1] else record.target
            places = [*enumerate(record.places), *asked.items()]
            rows += [(record.id, index, record.state == CREATED) for index, place in places if place == node]
            rows += [(record.id, index, True) for index, place in record.leaving if place == node]
        return tuple(rows)


def _joined(rooms: Mapping[bytes, dict[str, int]], marks: Mapping[bytes, dict[str, int]]) -> Mapping[bytes, dict[str, int]]:
    return {node: {**room, **marks[node]} for node, room in rooms.items()} if marks else rooms


def _state_of(record: GroupRecord, reason: str = "") -> m.GroupState:
    return m.GroupState(record.id, record.state, tuple(zip(record.bundles, record.places, strict=True)), reason)


def _by_node(target: Mapping[int, bytes]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for index, node in target.items():
        found.setdefault(node, []).append(index)
    return found
