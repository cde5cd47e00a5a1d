"""Draining: a node gives away what it has for others, then leaves its cluster (decision 0034).

It is given nothing new, and returns what it has not begun for others. It waits for tasks that run here or are at home here. Actors of other
homes that may be made again leave (``Relocation``); all others end with the node, once they have no calls and no task is left that may need
them.

Values that only this node has are copied: to their home, or from here to a node that holds refs to them; later the home of the job adopts
those from there (``failover``).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from zfabric.machines.local_scheduler.actor_records import ActorRecord, GuestRecord
from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.barrier import PROCESSES
from zfabric.machines.local_scheduler.channel import batches
from zfabric.machines.local_scheduler.due import IDLENESS
from zfabric.machines.local_scheduler.groups.directory import Groups
from zfabric.machines.local_scheduler.nodes.guests import Guests
from zfabric.machines.local_scheduler.nodes.placement.back import Returns
from zfabric.machines.local_scheduler.object_places import PENDING, Elsewhere, Stored
from zfabric.machines.local_scheduler.records import DONE, IDLE, PROBE, AnyObject, JobRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.worker_pool import WorkerPool
from zfabric.protocol import messages as m
from zfabric.protocol.effects import DRAINED, EndNode
from zfabric.protocol.messages import COPIED, COPY, DEAD, LEAVING

LOOK_SECONDS = 1.0
"""Seconds between looks whether the node is idle; less if ``node_idle_seconds`` is short."""


class Draining:
    """The drain of this node, and what drained nodes request."""

    def __init__(
        self,
        tables: Tables,
        returns: Returns,
        actors: ActorDirectory,
        guests: Guests,
        groups: Groups,
        workers: WorkerPool,
    ) -> None:
        self.tables = tables
        self.returns = returns
        self.actors = actors
        self.guests = guests
        self.groups = groups
        self.workers = workers
        self.look_at: float | None = 0.0 if tables.config.node_idle_seconds else None
        """When to look next whether this node is idle; None if it stays then."""
        if self.look_at is not None:
            tables.deadlines.note(IDLENESS, self.look_at)
        self._busy_at = 0.0
        """The last look at which it was busy; at first, when it began."""
        self._ended = False
        self._asked: dict[bytes, bytes] = {}
        """Daemons asked whether they have received everything, by node."""
        self._announced: set[bytes] = set()
        """Nodes that are notified."""
        self._copying: dict[bytes, bytes] = {}
        """Own values to copy, each with the node that is to do so."""
        self._copied: set[bytes] = set()
        self.wanted: dict[bytes, bytes] = {}
        """Drained nodes' values to copy, each with its node."""

    def begin(self, now: float) -> None:
        """Note when this node began."""
        self._busy_at = now

    def drain(self, now: float, force: bool = False, at_once: bool = False) -> dict[str, Any]:
        """Begin to drain this node, or report how far that is. Raises ValueError if refused.

        ``force`` drains a node with jobs, which end with it; ``at_once`` ends it with what is left.
        """
        tables = self.tables
        if not tables.nodes or tables.cluster.head == tables.cluster.node:
            raise ValueError("the head of a cluster cannot be drained: the cluster ends with it (zfabric stop --cluster)")
        jobs = [job for job in tables.jobs.values() if not job.home and not job.ended and (job.driver or self._has_detached(job))]
        if jobs and not force and not tables.draining:
            drivers = ", ".join(f"pid {job.driver.pid}" if job.driver is not None else "detached actors" for job in jobs)
            raise ValueError(f"programs run there, and would end with it ({len(jobs)}: {drivers}); --force drains it all the same")
        tables.draining = True
        if at_once:
            self._end()
        return self.report()

    def _has_detached(self, job: JobRecord) -> bool:
        return any(each.detached and each.state != DEAD for each in self.actors.of(job))

    def report(self) -> dict[str, Any]:
        """What is left on this node."""
        tasks, values = self._tasks(), self._values()
        actors = [self._described(each) for each in self._actors()]
        return {"tasks": tasks, "values": len(values), "actors": actors, "ended": self._ended}

    def tick(self, now: float) -> None:
        """Drain this node once it is idle for ``node_idle_seconds``."""
        if self.look_at is None or now < self.look_at:
            return
        tables, patience = self.tables, self.tables.config.node_idle_seconds
        self.look_at = now + min(LOOK_SECONDS, patience / 4)
        if not (tables.nodes and tables.cluster.head != tables.cluster.node and self._is_idle()):
            self._busy_at = now
        elif now >= patience + self._idle_since() and not tables.requested_nodes.node_stays(now):
            self.look_at = None
            self.drain(now)

    def idle_seconds(self, now: float) -> float:
        """Seconds without work here; 0 while a program is connected."""
        return max(0.0, now - self._idle_since()) if self._is_idle() else 0.0

    def _idle_since(self) -> float:
        ends = (worker.idle_since for worker in self.tables.workers.values())
        return max([self._busy_at, self.workers.last_removed, *ends])

    def _is_idle(self) -> bool:
        """Whether this node does nothing for anybody. Values do not count: others copy them."""
        tables = self.tables
        if tables.barrier.awaits(PROCESSES) or tables.bundles or self._actors():
            return False
        if any(worker.state != IDLE for worker in tables.workers.values()):
            return False
        return not self._tasks() and not any(job.driver for job in tables.jobs.values() if not job.home and not job.ended)

    def end_of_turn(self, now: float) -> None:
        """Give away what is possible; leave once nothing is left."""
        for node in self.tables.nodes.values():
            if node.token not in self._announced and node.is_ready:
                self._announced.add(node.token)
                self.tables.ledger.add(node.token, LEAVING, self.tables.cluster.node)
        self._announced &= self.tables.nodes.keys()
        self.returns.return_all()
        self.guests.drain(movable=True)
        tasks = self._tasks()
        if not tasks and not any(guest.may_restart for guest in self.guests.staying()):
            self.guests.drain(movable=False)
            self.actors.drain()
        values = self._values()
        for object_id, keeper in values.items():
            if self._copying.get(object_id) != keeper:
                self._copying[object_id] = keeper
                self.tables.ledger.add(keeper, COPY, object_id)
        for node_id in self.tables.nodes:
            self.tables.ledger.send_added(node_id)
        if values or tasks or self._actors() or any(each.ends.retained for each in self.tables.nodes.values()):
            self._asked.clear()
        else:
            self._take_leave()

    def _take_leave(self) -> None:
        """End this node once each other one has acknowledged an empty update of the ledger, behind all else."""
        ledger = self.tables.ledger
        unasked = [each for each in self.tables.nodes.values() if self._asked.get(each.token) != each.daemon]
        if not unasked and ledger.is_clear:
            self._end()
        for node in unasked if ledger.is_clear else ():
            if node.progress != PROBE:
                self._asked[node.token] = node.daemon
                self.tables.send_to_node(node.token, m.UpdateLedger(ledger.holds.number_for(node.token), ()))

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self.tables.emit(EndNode(DRAINED))

    def _actors(self) -> list[ActorRecord | GuestRecord]:
        return [*(each for each in self.tables.actors.values() if each.state != DEAD), *self.guests.staying()]

    def _tasks(self) -> int:
        return sum(task.state != DONE for task in self.tables.tasks.values())

    def _values(self) -> dict[bytes, bytes]:
        """Values that others may lack, with the node that is to copy each."""
        found: dict[bytes, bytes] = {}
        for record in self.tables.values():
            nodes = [each for each in sorted(record.all_holders) if each in self.tables.nodes]
            if record.home:
                if type(record.value) is Stored and record.home in nodes:
                    found[record.object_id] = record.home
            elif nodes and _is_here(record) and record.object_id not in self._copied:
                asked = self._copying.get(record.object_id, b"")
                found[record.object_id] = asked if asked in self.tables.nodes else nodes[0]
        return found

    def _described(self, record: ActorRecord | GuestRecord) -> str:
        name = f"{record.class_name} {record.name!r}" if record.name else record.class_name
        if not isinstance(record, GuestRecord) or not record.may_restart:
            return name
        return f"{name} (moves)" if self.guests.may_leave(record) else f"{name} (moves once its placement group has room elsewhere)"

    def repeat(self, node: bytes) -> None:
        """Enter the drain, and what the node is to copy, again."""
        if self.tables.draining:
            self.tables.ledger.add(node, LEAVING, self.tables.cluster.node)
            for object_id, keeper in self._copying.items():
                if keeper == node and object_id not in self._copied:
                    self.tables.ledger.add(node, COPY, object_id)

    def copied(self, node: bytes, object_ids: m.Ids) -> None:
        """Record values that a node has copied."""
        self._copied.update(each for each in object_ids if self._copying.get(each) == node)

    # -- what others ask --

    def node_leaves(self, node: bytes, drained: m.Ids) -> None:
        """Place nothing on a drained node; reserve its bundles elsewhere."""
        self.tables.nodes[node].draining = True
        self.groups.node_drained(node)

    def copy(self, node: bytes, object_ids: m.Ids) -> None:
        """Copy values of a drained node."""
        for object_id in object_ids:
            self.wanted[object_id] = node
            record = self.tables.find(object_id)
            if record is not None:
                self.tables.transfers.want(record)

    def answer(self) -> None:
        """Report copied and unneeded values."""
        found: defaultdict[bytes, list[bytes]] = defaultdict(list)
        for object_id, node in list(self.wanted.items()):
            record = self.tables.find(object_id)
            if record is None or _is_here(record) or node not in self.tables.nodes:
                del self.wanted[object_id]
                found[node].append(object_id)
                if record is not None:
                    self.tables.protect(record)
        for node in found.keys() & self.tables.nodes.keys():
            for batch in batches(found[node]):
                self.tables.send_to_node(node, m.LedgerUpdated(0, ((COPIED, batch),)))


def _is_here(record: AnyObject) -> bool:
    return record.status != PENDING and record.value is not None and not isinstance(record.value, Elsewhere)
