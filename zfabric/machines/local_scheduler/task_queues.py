"""The queues of ready tasks: one for each job and shape, and whether its tasks run here or elsewhere."""

from __future__ import annotations

from collections.abc import Mapping

from zfabric.machines.common.resources import ResourcePool
from zfabric.machines.local_scheduler.cluster import ClusterView
from zfabric.machines.local_scheduler.group_records import Bundle, GroupPool, KnownGroup
from zfabric.machines.local_scheduler.records import QUEUES_MOST, JobRecord, NodeRecord, Shape, ShapeQueue
from zfabric.protocol.options import HERE, GroupTerm, Strategy, accepts


class TaskQueues(dict[int, ShapeQueue]):
    """All queues, by token. The other tables are read to find out which queues are away."""

    def __init__(
        self,
        pool: ResourcePool,
        cluster: ClusterView,
        nodes: Mapping[bytes, NodeRecord],
        known_groups: Mapping[bytes, KnownGroup],
        bundles: Mapping[bytes, dict[int, Bundle]],
    ) -> None:
        super().__init__()
        self._pool = pool
        self._cluster = cluster
        self._nodes = nodes
        self._known_groups = known_groups
        self._bundles = bundles
        self._next_token = 1
        self.any_away = False
        """Whether there was ever a queue whose tasks do not run here."""
        self.any_in_groups = False
        """Whether there was ever a queue of a placement group."""

    def of(self, job: JobRecord, shape: Shape) -> ShapeQueue:
        """A job's queue of this shape, made on first use."""
        queue = job.queues.get(shape)
        if queue is None:
            queue = ShapeQueue(shape, job, self._next_token)
            self._next_token += 1
            job.queues[shape] = queue
            self[queue.token] = queue
            self._find_out_if_away(queue)
            if len(job.queues) > job.queues_most:
                self._drop_unneeded(job, queue)
        return queue

    def like(self, queue: ShapeQueue, strategy: Strategy) -> ShapeQueue:
        """The same shape's queue for another strategy."""
        return self.of(queue.job, (*queue.shape[:5], strategy))

    def group_changed(self, group: bytes) -> None:
        """Decide again which of its queues are away."""
        for queue in self.values():
            if queue.group is not None and queue.group.group == group:
                self._find_out_if_away(queue)

    def nodes_changed(self) -> None:
        """Decide again which queues are away."""
        for queue in self.values():
            self._find_out_if_away(queue)

    def job_ended(self, job: JobRecord) -> None:
        """Drop a job's queues, with their tasks."""
        for queue in job.queues.values():
            self.pop(queue.token, None)
            queue.clear()

    def _find_out_if_away(self, queue: ShapeQueue) -> None:
        strategy = queue.strategy
        if queue.group is not None:
            self._find_bundles(queue, queue.group)
            return
        queue.pool = self._pool
        hard = [term for term in strategy if term[0] == "hard"]
        queue.away = bool(strategy) and strategy[:1] != HERE and (bool(self._nodes) or not accepts(self._cluster.labels, hard))
        self.any_away |= queue.away

    def _find_bundles(self, queue: ShapeQueue, term: GroupTerm) -> None:
        """Set whether it is away: not if the whole group is here, or the tasks were delegated here."""
        known = self._known_groups.get(term.group)
        if queue.strategy[0][0] == "group":
            queue.away = known is None or not known.all_at(self._cluster.node) or not known.able(term, queue.demand)
        else:
            queue.away = all(bundle.ending for bundle in self._bundles.get(term.group, {}).values())
        queue.pool = GroupPool(self._bundles, term.group, term.bundle)
        self.any_away |= queue.away
        self.any_in_groups = True

    def _drop_unneeded(self, job: JobRecord, new: ShapeQueue) -> None:
        functions = (*job.functions.values(), *job.delegated.values())
        needed = {new.token, *(function.queue.token for function in functions)}
        for shape, queue in list(job.queues.items()):
            if not queue and not queue.leased and queue.token not in needed:
                del job.queues[shape]
                del self[queue.token]
        job.queues_most = max(QUEUES_MOST, 2 * len(job.queues))
