"""Tasks in placement groups: how they reach their bundles.

Their queues are *away* (``placement.where``) until the group is reserved and entirely here. Tasks for any bundle are divided by the room in
the bundles.
"""

from __future__ import annotations

from zfabric.machines.common.resources import count_fitting, describe
from zfabric.machines.local_scheduler.group_records import KnownGroup, excess
from zfabric.machines.local_scheduler.nodes.delegations import Delegations
from zfabric.machines.local_scheduler.nodes.placement.where import why_it_stays
from zfabric.machines.local_scheduler.records import READY, ShapeQueue
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.ids import JOB_BYTES, Address
from zfabric.protocol.messages import CREATED, REMOVED
from zfabric.protocol.options import WHOLE_GROUP, GroupTerm, in_bundle

REMOVED_MAX = 1000
"""Removed groups of running jobs that are remembered; for others the home is asked."""


class GroupTasks:
    """Tasks in placement groups."""

    def __init__(self, tables: Tables, outcomes: Outcomes, delegations: Delegations) -> None:
        self.tables = tables
        self.outcomes = outcomes
        self.delegations = delegations
        self._asked: set[bytes] = set()

    def on_group_state(self, now: float, source: Address, message: m.GroupState) -> None:
        """Accept a group's new state."""
        self._changed(message)

    def _changed(self, message: m.GroupState) -> None:
        known = self.tables.known_groups
        old = known.pop(message.group, None)
        known[message.group] = KnownGroup(message, old.dealt if old is not None else {})
        if message.state == REMOVED:
            self._asked.discard(message.group)
            if not any(queue.group is not None and queue.group.group == message.group for queue in self.tables.queues.values()):
                del known[message.group]  # Its last tasks have gone: their job has ended.
            removed = [group for group, each in known.items() if each.state == REMOVED]
            for group in removed[: len(removed) - REMOVED_MAX]:
                del known[group]
        self.tables.queues.group_changed(message.group)

    def repeat(self, node: bytes) -> None:
        """Watch a home's groups again."""
        terms = {queue.group.group for queue in self.tables.queues.values() if queue.group is not None and queue.group.home == node}
        for group in sorted(terms):
            self._asked.add(group)
            self.tables.send_to_peer(node, m.WatchGroup(group))

    def node_died(self, node: bytes) -> None:
        """Treat a dead home's groups as removed."""
        lost = [term for queue in self.tables.queues.values() if (term := queue.group) is not None and term.home == node]
        for group in {term.group for term in lost}:
            self._changed(m.GroupState(group, REMOVED, (), "the node that had made it is dead"))

    def job_ended(self, job: bytes) -> None:
        """Drop the groups of an ended job."""
        for group in [group for group in self.tables.known_groups if group[:JOB_BYTES] == job]:
            del self.tables.known_groups[group]
            self._asked.discard(group)

    def end_of_turn(self, now: float) -> None:
        """Give waiting tasks to their bundles."""
        for queue in [queue for queue in self.tables.queues.values() if queue.away and queue.group is not None]:
            if queue.drop_stale() and queue.group is not None:
                self._deal(queue, queue.group, now)

    def _deal(self, queue: ShapeQueue, term: GroupTerm, now: float) -> None:
        if queue.strategy[0][0] == "bundle":
            self._fail(queue, "PlacementGroupRemovedError", f"placement group {term.group.hex()} was removed")
            return
        known = self.tables.known_groups.get(term.group)
        if known is None:
            if term.group not in self._asked:
                self._asked.add(term.group)
                self.tables.send_to_peer(term.home, m.WatchGroup(term.group))
            return
        if known.state == REMOVED:
            self._fail(queue, "PlacementGroupRemovedError", f"placement group {term.group.hex()} was removed: {known.reason}")
            return
        able = known.able(term, queue.demand)
        if not able:
            what = f"bundle {term.bundle}" if term.bundle >= 0 else "no bundle"
            has = f"{what} of its placement group has {'not ' if term.bundle >= 0 else ''}as much"
            self._fail(queue, "TaskUnschedulableError", f"asks for {describe(queue.demand)}, and {has}: {_described(known)}")
            return
        places = [index for index in able if self._takes(known.places[index])]
        if places and (term.bundle != WHOLE_GROUP or known.state == CREATED):
            self._give(queue, known, places, now)

    def _takes(self, place: bytes) -> bool:
        node = self.tables.nodes.get(place)  # One that has yet to report its attempts would pass for one that lost the task.
        return place == self.tables.cluster.node or (node is not None and node.is_ready and not node.draining)

    def _give(self, queue: ShapeQueue, known: KnownGroup, indexes: list[int], now: float) -> None:
        """Deal tasks out in rotation, in proportion to what each bundle can run at once.

        Bundles with other resources come last, so that an actor without GPUs does not take the CPU beside one.
        """
        slots = {index: max(1, count_fitting(dict(known.bundles[index]), queue.demand, 1)) for index in indexes}
        order = [(excess(known.bundles[index], queue.demand), nth, index) for index in indexes for nth in range(slots[index])]
        row = [known.places[index] for _, _, index in sorted(order)]
        tasks = len(queue)
        share, more = divmod(tasks, len(row))
        counts = dict.fromkeys(row, 0)
        first = known.dealt.get(queue.demand, 0)
        for at in range(len(row)):
            counts[row[(first + at) % len(row)]] += share + (at < more)
        known.dealt[queue.demand] = first + tasks
        for place, count in counts.items():
            node = self.tables.nodes.get(place)
            if node is not None and count:
                self.delegations.give(queue, node, count, now)
        if self.tables.cluster.node in counts:
            self._stay(queue)
            return
        for task in [task for task in queue if task.state == READY]:
            text = f"{task.name} is to run in a placement group that has no bundle on this node, and {why_it_stays(task)}"
            self.outcomes.fail(task, "TaskUnschedulableError", text, ())

    def _stay(self, queue: ShapeQueue) -> None:
        queue.move_to(self.tables.queues.like(queue, in_bundle(queue.strategy)))
        self.outcomes.note_ready()

    def _fail(self, queue: ShapeQueue, kind: str, text: str) -> None:
        for task in [task for task in queue if task.state == READY]:
            self.outcomes.fail(task, kind, f"{task.name}: {text}", (("function", task.name),))


def _described(known: KnownGroup) -> str:
    return "; ".join(f"{index}: {describe(bundle)}" for index, bundle in enumerate(known.bundles[:8]))
