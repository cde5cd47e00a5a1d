"""How many nodes of each kind a cluster needs: the decisions of ``zfabric autoscale``, without I/O and without a clock.

The shell (``autoscaler``) observes the cluster and the jobs that run its nodes, and calls ``ScalingPolicy.turn``, which returns what to
submit and what to cancel. Nothing here ends a node that has joined: idle nodes leave by themselves (``zfabric start --idle-timeout``).

A turn places the waiting work on the present nodes, then on the coming ones: those of jobs whose node has not joined. The rest needs new
nodes, each of the first kind of the file that can run the work and has not reached its maximum. A task that waits for its arguments is no
demand. Tasks of a shape whose oldest has waited less than ``YOUNG_SECONDS``, or that the nodes run within ``WORTH_SECONDS``, need no
further node.

Jobs that end before their node has joined are failures. After ``FAILURES_MOST`` in a row the kind is submitted again only after a pause,
which doubles each time, and then one job at a time until a node joins. While the job scheduler does not answer, the state of jobs is
unknown, and nothing is submitted or cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from zfabric.protocol.options import Strategy, accepts
from zfabric.protocol.scaling import KindReport

PENDING, RUNNING = "pending", "running"
"""States of jobs. A job that has ended has none."""
FAILURES_MOST = 3
"""Failures of a kind in a row until a pause begins."""
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 60.0, 1800.0
"""The first pause, and the longest."""
YOUNG_SECONDS = 1.0
"""How long a shape's oldest task waits until it is worth a node: a moment in a queue is no lack of nodes."""
WORTH_SECONDS = 10.0
"""Work that the present nodes do within this time is not worth another node: starting one takes seconds."""
SURPLUS_SECONDS = 30.0
"""How long nothing needs a pending job until the job is cancelled: demand comes and goes."""
KIND_LABEL, JOB_LABEL = "zfabric-kind", "zfabric-job"
"""Labels of a node that a job runs: the name of its kind, and the id of the job."""

Amounts = Mapping[str, int]
"""Resources by name, in 1/10,000 (``protocol.options.RESOURCE_UNIT``)."""
Labels = Mapping[str, str]


class NodeKind(NamedTuple):
    """A kind of nodes that can be had."""

    name: str
    resources: Amounts
    labels: Labels
    min: int
    """Nodes that stay even if idle."""
    max: int
    """Most jobs at a time, joined or not."""


class WaitingWork(NamedTuple):
    """Tasks of one shape that could run now, or bundles of a placement group."""

    resources: Amounts
    terms: Strategy
    """Which labels a node must have."""
    tasks: int
    oldest_seconds: float
    mean_seconds: float | None
    """How long a task runs; None: unknown, or for ever."""
    apart: str = ""
    """Work with the same text goes to different nodes: bundles of a strictly spread group."""


class ObservedNode(NamedTuple):
    """A living node of the cluster to which work may go."""

    node: str
    resources: Amounts
    free: Amounts
    labels: Labels


class Observation(NamedTuple):
    """What a turn decides on. ``jobs`` has the states of each kind's jobs, or a text: why they are unknown."""

    work: Sequence[WaitingWork]
    nodes: Sequence[ObservedNode]
    jobs: Mapping[str, Mapping[str, str] | str]

    def states(self, kind: str) -> Mapping[str, str] | None:
        """States of a kind's jobs by id; None if they are unknown."""
        found = self.jobs[kind]
        return None if isinstance(found, str) else found


class Decision(NamedTuple):
    """What the shell is to do."""

    submit: Sequence[tuple[str, int]]
    """Kinds, and how many jobs of each."""
    cancel: Sequence[tuple[str, tuple[str, ...]]]
    """Kinds, and the pending jobs of each that nothing needs."""
    failed: Sequence[tuple[str, str]]
    """Jobs that ended before their node joined: (kind, id). The shell finds the reason (``ScalingPolicy.explain``)."""
    keep: tuple[str, ...]
    """Nodes that are to stay although they are idle."""
    unmet: tuple[WaitingWork, ...]
    """Work that no node and no kind can run."""


class _Job:
    def __init__(self, number: int) -> None:
        self.number = number
        """The place in the order in which jobs were found."""
        self.has_joined = False
        self.surplus_since: float | None = None
        self.is_cancelled = False


class _KindRecord:
    def __init__(self) -> None:
        self.jobs: dict[str, _Job] = {}
        self.failures = 0
        """Failures since a node has joined."""
        self.next_pause = PAUSE_SECONDS_MIN
        self.paused_until: float | None = None
        self.reason = ""

    def fail(self, now: float) -> None:
        """Count a failure. Failures of jobs submitted before a pause began do not prolong the pause."""
        self.failures += 1
        if self.failures >= FAILURES_MOST and (self.paused_until is None or now >= self.paused_until):
            self.paused_until = now + self.next_pause
            self.next_pause = min(2 * self.next_pause, PAUSE_SECONDS_MAX)

    def recover(self) -> None:
        self.failures, self.next_pause = 0, PAUSE_SECONDS_MIN
        self.paused_until, self.reason = None, ""

    def room(self, now: float, kind: NodeKind) -> int:
        """How many jobs may be submitted."""
        if self.paused_until is None:
            return max(0, kind.max - len(self.jobs))
        if now < self.paused_until or any(not job.has_joined for job in self.jobs.values()):
            return 0
        return min(1, max(0, kind.max - len(self.jobs)))


class _Room:
    """What a node has left for work, in one turn."""

    def __init__(self, resources: Amounts, free: Amounts, labels: Labels, is_there: bool) -> None:
        self.resources = resources
        self.free = dict(free)
        self.labels = labels
        self.is_there = is_there
        self.is_used = False
        self._apart: set[str] = set()

    def take(self, work: WaitingWork, count: int) -> int:
        """Place up to ``count`` tasks here; return how many."""
        if not accepts(self.labels, work.terms) or work.apart in self._apart:
            return 0
        turns, count = _turns(work), min(count, 1) if work.apart else count
        if not work.resources:
            taken = count
        else:
            free = _times(self.free, work.resources)
            # A running task of the same length makes room soon. If the oldest has waited for longer, something else is in the way.
            soon = 0
            if self.is_there and work.oldest_seconds < WORTH_SECONDS:
                soon = (_times(self.resources, work.resources) - free) * (turns - 1)
            taken = min(count, free * turns + soon)
            places = min(free, -(-taken // turns))
            for name, amount in work.resources.items():
                self.free[name] = self.free.get(name, 0) - places * amount
        if taken:
            self.is_used = True
            self._apart |= {work.apart} - {""}
        return taken


class ScalingPolicy:
    """Decides, turn by turn, which jobs are submitted and cancelled. ``kinds`` are in the order of preference."""

    def __init__(self, kinds: Sequence[NodeKind]) -> None:
        self.kinds = tuple(kinds)
        self._records = {kind.name: _KindRecord() for kind in self.kinds}
        self._found = 0
        self._seen = Observation((), (), {})

    # -- what the shell reports --

    def submitted(self, kind: str, jobs: Sequence[str]) -> None:
        """Note the ids of jobs that a decision has submitted."""
        for job in jobs:
            self._note(kind, job)

    def has_joined(self, kind: str, job: str) -> bool:
        """Whether a job's node has joined. If the job scheduler is rarely asked, such a job may still be listed as pending."""
        found = self._records[kind].jobs.get(job)
        return found is not None and found.has_joined

    def explain(self, kind: str, reason: str) -> None:
        """Note why a job failed that a turn has counted as failed."""
        self._records[kind].reason = reason

    def refused(self, now: float, kind: str, reason: str) -> None:
        """Note that jobs could not be submitted, which counts as a failure."""
        self._records[kind].reason = reason
        self._records[kind].fail(now)

    # -- a turn --

    def turn(self, now: float, seen: Observation) -> Decision:
        """Decide on an observation. ``now`` is in seconds, of a clock that never goes back."""
        self._seen = seen
        failed = [(kind.name, job) for kind in self.kinds for job in self._compare(now, kind.name, seen)]
        coming = self._coming(seen)
        rooms = [*(_Room(node.resources, node.free, node.labels, True) for node in seen.nodes), *coming.values()]
        planned: dict[str, int] = {kind.name: 0 for kind in self.kinds}
        unmet = []
        for work in seen.work:
            left = work.tasks
            for room in rooms:
                left -= room.take(work, left)
            fitting = [kind for kind in self.kinds if can_run(kind, work)]
            if left and not fitting and not any(_could_take(room, work) for room in rooms):
                unmet.append(work)
            for kind in fitting if work.oldest_seconds >= YOUNG_SECONDS else ():
                most = self._most(now, kind, seen)
                while left and planned[kind.name] < most:
                    planned[kind.name] += 1
                    rooms.append(_new_room(kind))
                    left -= rooms[-1].take(work, left)
        living = {kind.name: [node.node for node in seen.nodes if node.labels.get(KIND_LABEL) == kind.name] for kind in self.kinds}
        cancel = []
        for kind in self.kinds:
            there, awaited = len(living[kind.name]), {job: room for (name, job), room in coming.items() if name == kind.name}
            missing = kind.min - there - len(awaited)
            planned[kind.name] = max(planned[kind.name], min(missing, self._most(now, kind, seen)))
            if surplus := self._surplus(now, kind, seen, awaited, -missing):
                cancel.append((kind.name, surplus))
        return Decision(
            [(name, count) for name, count in planned.items() if count],
            cancel,
            failed,
            tuple(node for kind in self.kinds for node in living[kind.name][: kind.min]),
            tuple(unmet),
        )

    def report(self, now: float) -> tuple[KindReport, ...]:
        """The state of all kinds after the last turn and the shell's reports since."""
        return tuple(self._described(now, kind) for kind in self.kinds)

    def _described(self, now: float, kind: NodeKind) -> KindReport:
        record, states = self._records[kind.name], self._seen.jobs.get(kind.name, {})
        coming = [job for job, found in record.jobs.items() if not found.has_joined and not found.is_cancelled]
        starting = 0 if isinstance(states, str) else sum(states.get(job) == RUNNING for job in coming)
        return KindReport(
            kind.name,
            tuple(sorted(kind.resources.items())),
            tuple(sorted(_labels_of(kind).items())),
            sum(node.labels.get(KIND_LABEL) == kind.name for node in self._seen.nodes),
            len(coming) - starting,
            starting,
            kind.max,
            max(0.0, (record.paused_until or now) - now),
            states if isinstance(states, str) else "",
            record.reason,
        )

    def _note(self, kind: str, job: str) -> None:
        if job not in self._records[kind].jobs:
            self._found += 1
            self._records[kind].jobs[job] = _Job(self._found)

    def _compare(self, now: float, kind: str, seen: Observation) -> list[str]:
        """Bring a kind's record up to date; return the jobs that have failed since the last turn."""
        record, listed = self._records[kind], seen.states(kind)
        for job in listed or ():
            self._note(kind, job)
        joined = {node.labels.get(JOB_LABEL) for node in seen.nodes if node.labels.get(KIND_LABEL) == kind}
        for job, found in record.jobs.items():
            if job in joined and not found.has_joined:
                found.has_joined = True
                record.recover()
        if listed is None:
            return []
        ended = {job: found for job, found in record.jobs.items() if job not in listed}
        record.jobs = {job: found for job, found in record.jobs.items() if job in listed}
        failed = [job for job, found in ended.items() if not found.has_joined and not found.is_cancelled]
        for _ in failed:
            record.fail(now)
        return failed

    def _coming(self, seen: Observation) -> dict[tuple[str, str], _Room]:
        """Nodes of jobs that have not joined, by kind and job: those of running jobs first, then oldest first.

        So each turn places the same work on the same nodes.
        """
        found = []
        for kind in self.kinds:
            states = seen.states(kind.name) or {}
            for job, record in self._records[kind.name].jobs.items():
                if not record.has_joined and not record.is_cancelled:
                    found.append((states.get(job) != RUNNING, record.number, kind, job))
        return {(kind.name, job): _new_room(kind) for _, _, kind, job in sorted(found, key=lambda each: each[:2])}

    def _most(self, now: float, kind: NodeKind, seen: Observation) -> int:
        """Most jobs of a kind that this turn may submit."""
        return 0 if seen.states(kind.name) is None else self._records[kind.name].room(now, kind)

    def _surplus(self, now: float, kind: NodeKind, seen: Observation, awaited: Mapping[str, _Room], spare: int) -> tuple[str, ...]:
        """At most ``spare`` pending jobs that nothing has needed for a while, the newest first."""
        states, jobs = seen.states(kind.name), self._records[kind.name].jobs
        chosen = []
        for job, room in reversed(list(awaited.items())):
            record = jobs[job]
            if states is None or room.is_used or states.get(job) != PENDING or spare <= 0:
                record.surplus_since = None
                continue
            spare -= 1
            if record.surplus_since is None:
                record.surplus_since = now
            if now >= record.surplus_since + SURPLUS_SECONDS:
                record.is_cancelled = True
                chosen.append(job)
        return tuple(chosen)


def can_run(kind: NodeKind, work: WaitingWork) -> bool:
    """Whether an empty node of a kind can run a task of this work."""
    return accepts(_labels_of(kind), work.terms) and _covers(kind.resources, work.resources)


def _labels_of(kind: NodeKind) -> Labels:
    return {**kind.labels, KIND_LABEL: kind.name}


def _new_room(kind: NodeKind) -> _Room:
    return _Room(kind.resources, kind.resources, _labels_of(kind), False)


def _could_take(room: _Room, work: WaitingWork) -> bool:
    """Whether a node could run a task of this work if it were empty."""
    return accepts(room.labels, work.terms) and _covers(room.resources, work.resources)


def _covers(resources: Amounts, wanted: Amounts) -> bool:
    return all(resources.get(name, 0) >= amount for name, amount in wanted.items())


def _times(free: Amounts, wanted: Amounts) -> int:
    """How often the wanted amounts fit into the free ones."""
    return max(0, min(free.get(name, 0) // amount for name, amount in wanted.items()))


def _turns(work: WaitingWork) -> int:
    """How many tasks, one after another, are not worth another node."""
    return 1 if work.mean_seconds is None else max(1, int(WORTH_SECONDS / max(work.mean_seconds, 1e-3)))
