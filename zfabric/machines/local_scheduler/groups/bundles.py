"""The bundles of this node: taken at once, reserved once running tasks have ended, used, freed (decision 0037)."""

from __future__ import annotations

from collections.abc import Iterable

from zfabric.machines.common.resources import GPU, ResourcePool, covers
from zfabric.machines.common.tables import pack_row, unpack_row
from zfabric.machines.local_scheduler.actors.directory import ActorDirectory
from zfabric.machines.local_scheduler.group_records import Bundle
from zfabric.machines.local_scheduler.groups.planning import total_of
from zfabric.machines.local_scheduler.records import DONE, WorkerRecord
from zfabric.machines.local_scheduler.requests import PendingRequests
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.dispatch import Dispatcher
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.machines.local_scheduler.tasks.worker_pool import WorkerPool
from zfabric.protocol import messages as m
from zfabric.protocol.ids import JOB_BYTES, TASK_BYTES, Address


class Bundles:
    """The bundles of this node."""

    def __init__(
        self,
        tables: Tables,
        requests: PendingRequests,
        outcomes: Outcomes,
        workers: WorkerPool,
        dispatcher: Dispatcher,
        actors: ActorDirectory,
    ) -> None:
        self.tables = tables
        self.requests = requests
        self.outcomes = outcomes
        self.workers = workers
        self.dispatcher = dispatcher
        self.actors = actors
        self._waiting: list[list[Bundle]] = []
        """Bundles of one request each that wait for tasks."""
        self.watchers: dict[bytes, dict[str, int]] = {}
        """Homes to notify when there is more room than this, of the last turn's end."""

    # -- room --

    def on_ask_room(self, now: float, source: Address, message: m.AskRoom) -> None:
        """Report what could be reserved here."""
        home = self.tables.sender_of(source)
        if home is not None:
            self.watchers[home] = capacity = self.tables.capacity()
            self._report_room(home, message.survey, capacity)

    def _report_room(self, home: bytes, survey: int, capacity: dict[str, int]) -> None:
        free = {name: max(0, min(amount, capacity[name])) for name, amount in self.tables.pool.available() if name in capacity}
        self.tables.send_to_peer(home, m.NodeRoom(survey, tuple(sorted(free.items())), tuple(sorted(capacity.items()))))

    # -- reserving --

    def on_prepare_bundles(self, now: float, source: Address, message: m.PrepareBundles) -> None:
        """Take bundles, reserved once no task uses them."""
        home = self.tables.sender_of(source)
        if home is None:
            self.tables.count("refused")
            return
        bundles = self.tables.bundles.get(message.group, {})
        known = [bundles[index] for index, _ in message.rows if index in bundles]
        if known:
            if all(bundle.durable and not bundle.ending for bundle in known) and len(known) == len(message.rows):
                self._answer(message.group, message.reservation, home, True)  # A daemon between has lost the answer.
            elif any(bundle.ending for bundle in known):
                self._answer(message.group, message.reservation, home, False)
            return
        demands = [demand for _, demand in message.rows]
        if not covers(self.tables.capacity(), total_of(demands)):
            self._answer(message.group, message.reservation, home, False)
            return
        made = [Bundle(message.group, index, demand, home, message.reservation, message.detached) for index, demand in message.rows]
        for bundle in made:
            self._take(bundle)
        self._waiting.append(made)
        self.dispatcher.reserving = True

    def _answer(self, group: bytes, reservation: int, home: bytes, ok: bool) -> None:
        self.tables.send_to_peer(home, m.BundlesPrepared(group, reservation, ok))

    def _take(self, bundle: Bundle) -> None:
        self.tables.pool.acquire(bundle.demand)
        self.tables.bundles.setdefault(bundle.group, {})[bundle.index] = bundle
        self.tables.count("bundles")

    def on_commit_bundles(self, now: float, source: Address, message: m.CommitBundles) -> None:
        """Let tasks run in a whole group."""
        home = self.tables.sender_of(source)
        for bundle in self.tables.bundles.get(message.group, {}).values():
            bundle.committed |= bundle.home == home and bundle.durable
        self.tables.queues.group_changed(message.group)

    def on_hold_bundles(self, now: float, source: Address, message: m.HoldBundles) -> None:
        """Accept a home's list after a restart."""
        home = self.tables.sender_of(source)
        if home is not None:
            self.hold(home, message.rows)

    def hold(self, home: bytes, rows: m.Rows) -> None:
        """Retain a home's bundles of the list, and free the others."""
        wanted = {(group, index): committed for group, index, committed in rows}
        for group, bundles in list(self.tables.bundles.items()):
            own = [bundle for bundle in bundles.values() if bundle.home == home]
            for bundle in own:
                bundle.committed |= wanted.get((group, bundle.index), False) and bundle.durable
            self._free([bundle for bundle in own if (group, bundle.index) not in wanted], "its home does not know it any more")
            self.tables.queues.group_changed(group)

    def on_free_bundles(self, now: float, source: Address, message: m.FreeBundles) -> None:
        """Free bundles."""
        home = self.tables.sender_of(source)
        bundles = self.tables.bundles.get(message.group, {})
        named = [bundle for index, bundle in bundles.items() if not message.indexes or index in message.indexes]
        self._free([bundle for bundle in named if bundle.home == home], message.reason)

    def node_died(self, node: bytes) -> None:
        """Free a dead home's bundles."""
        self.watchers.pop(node, None)
        for bundles in list(self.tables.bundles.values()):
            self._free([bundle for bundle in bundles.values() if bundle.home == node], "the node that had made it is dead")

    def job_ended(self, job: bytes) -> None:
        """Free a job's bundles, without detached ones."""
        for group, bundles in list(self.tables.bundles.items()):
            if group[:JOB_BYTES] == job:
                self._free([bundle for bundle in bundles.values() if not bundle.detached], "its job has ended")

    # -- freeing --

    def _free(self, bundles: Iterable[Bundle], reason: str) -> None:
        """End what runs in these. Their resources return once the processes are proved dead."""
        ending = [bundle for bundle in bundles if not bundle.ending]
        for bundle in ending:
            bundle.ending = True
            if bundle.pool is None or bundle.pool.idle:
                self._give_back(bundle)
        pools = [bundle.pool for bundle in ending if bundle.pool is not None]
        text = f"placement group {ending[0].group.hex()} was removed: {reason}" if ending else ""
        for worker in list(self.tables.workers.values()) if pools else ():
            if worker.queue is not None and any(worker.pool is pool for pool in pools):
                self._end(worker, text)
        for group in {bundle.group for bundle in ending}:
            self.tables.queues.group_changed(group)

    def _end(self, worker: WorkerRecord, reason: str) -> None:
        for task in [task for task in worker.inflight.values() if task.state != DONE]:
            self.outcomes.fail(task, "PlacementGroupRemovedError", f"{task.name}: {reason}", (("function", task.name),))
        for record in filter(None, map(self.actors.records.get, worker.actors)):
            record.killed = reason
        for guest in filter(None, map(self.tables.guests.get, worker.actors)):
            guest.ending = reason
        self.dispatcher.abandon(worker)
        self.workers.end(worker, reason)

    def end_of_turn(self) -> None:
        """Reserve what can be, return unused resources, and report room."""
        for bundles in list(self.tables.bundles.values()):
            for bundle in [each for each in bundles.values() if each.ending and (each.pool is None or each.pool.idle)]:
                self._give_back(bundle)
        self._waiting = [each for each in self._waiting if not self._reserve(each)]
        self.dispatcher.reserving = bool(self._waiting)
        capacity = self.tables.capacity() if self.watchers else {}
        for home, known in list(self.watchers.items()):
            if any(amount > known.get(name, 0) for name, amount in capacity.items()):
                del self.watchers[home]
                self._report_room(home, 0, capacity)
            else:
                self.watchers[home] = capacity  # What a home reserves comes back later, and then counts as more room.

    def _reserve(self, bundles: list[Bundle]) -> bool:
        """Reserve bundles that no task uses. Return whether they wait no longer."""
        if any(bundle.ending for bundle in bundles):
            return True
        pool = self.tables.pool
        if pool.owes(total_of([bundle.demand for bundle in bundles])):
            return False
        gpus: dict[int, tuple[int, ...]] = {}
        for bundle in bundles:
            amount = dict(bundle.demand).get(GPU, 0)
            gpus[bundle.index] = pool.acquire_gpus(amount)
            if amount and not gpus[bundle.index]:  # Two halves of different GPUs are no whole one.
                for each in bundles[: bundles.index(bundle)]:
                    pool.release_gpus(gpus[each.index], dict(each.demand).get(GPU, 0))
                return False
        puts = []
        for bundle in bundles:
            bundle.pool = ResourcePool(bundle.demand, gpus[bundle.index])
            facts = {"home": bundle.home, "demand": bundle.demand, "gpus": gpus[bundle.index], "detached": bundle.detached}
            puts.append(("group", _key(bundle), pack_row(facts)))
        self.requests.ask(m.Write, tuple(puts), (), then=self._durable, about=bundles)
        return True

    def _durable(self, now: float, bundles: list[Bundle], answer: m.Written) -> None:
        """Report written bundles as reserved; refuse them if the disk is full."""
        if any(bundle.ending for bundle in bundles):
            return
        first = bundles[0]
        if answer.ok:
            for bundle in bundles:
                bundle.durable = True
        else:
            self._free(bundles, answer.text)
        self._answer(first.group, first.reservation, first.home, answer.ok)

    def _give_back(self, bundle: Bundle) -> None:
        pool, bundles = self.tables.pool, self.tables.bundles[bundle.group]
        if bundle.pool is not None:
            pool.release_gpus(bundle.pool.gpu_ids, dict(bundle.demand).get(GPU, 0))
        pool.release(bundle.demand)
        self.tables.send(self.tables.cluster.control_address, m.Write(0, (), (("group", _key(bundle)),)))
        del bundles[bundle.index]
        if not bundles:
            del self.tables.bundles[bundle.group]

    def restore(self, rows: m.Rows) -> None:
        """Reserve again after a restart, before tasks resume."""
        for key, value in rows:
            facts = unpack_row(value)
            group, index = key[:TASK_BYTES], int.from_bytes(key[TASK_BYTES:], "big")
            bundle = Bundle(group, index, facts["demand"], facts["home"], 0, facts["detached"])
            self._take(bundle)
            self.tables.pool.acquire_gpus(dict(bundle.demand).get(GPU, 0), facts["gpus"])
            bundle.pool = ResourcePool(bundle.demand, facts["gpus"])
            bundle.durable = True


def _key(bundle: Bundle) -> bytes:
    return bundle.group + bundle.index.to_bytes(2, "big")
