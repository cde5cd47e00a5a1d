"""The decisions of ``zfabric autoscale``: without jobs, without a cluster, and at times that the tests choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as some

from zfabric.launch.policy import (
    FAILURES_MOST,
    JOB_LABEL,
    KIND_LABEL,
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    PENDING,
    RUNNING,
    SURPLUS_SECONDS,
    WORTH_SECONDS,
    YOUNG_SECONDS,
    Decision,
    NodeKind,
    Observation,
    ObservedNode,
    ScalingPolicy,
    WaitingWork,
    can_run,
)
from zfabric.protocol.options import RESOURCE_UNIT


def amounts(**resources: float) -> dict[str, int]:
    return {name: round(amount * RESOURCE_UNIT) for name, amount in resources.items()}


def kind(name: str = "small", most: int = 3, least: int = 0, labels: Mapping[str, str] | None = None, **resources: float) -> NodeKind:
    return NodeKind(name, amounts(**(resources or {"CPU": 2})), labels or {}, least, most)


def work(
    count: int = 1,
    oldest: float = 2 * YOUNG_SECONDS,
    mean: float | None = None,
    labels: Mapping[str, str] | None = None,
    **resources: float,
) -> WaitingWork:
    terms = tuple(("hard", name, "in", (value,)) for name, value in (labels or {}).items())
    return WaitingWork(amounts(**(resources or {"CPU": 1})), terms, count, oldest, mean)


class Site:
    """A scheduler of jobs and the cluster that its jobs' nodes join, for one policy."""

    def __init__(self, *kinds: NodeKind) -> None:
        self.kinds = {each.name: each for each in kinds}
        self.policy = ScalingPolicy(kinds)
        self.now = 1000.0
        self.jobs: dict[str, dict[str, str]] = {each.name: {} for each in kinds}
        self.nodes: dict[str, ObservedNode] = {}
        self.others: list[ObservedNode] = []
        """Nodes that no job runs."""
        self.is_known = True
        self.cancelled: list[str] = []

    def turn(self, *waiting: WaitingWork, after: float = 1.0) -> Decision:
        """A turn of the policy, and what follows from it."""
        self.now += after
        states: dict[str, Any] = {name: dict(jobs) if self.is_known else "squeue has failed" for name, jobs in self.jobs.items()}
        decision = self.policy.turn(self.now, Observation(waiting, [*self.others, *self.nodes.values()], states))
        for name, count in decision.submit:
            new = [f"{name}-{len(self.jobs[name])}-{self.now}-{index}" for index in range(count)]
            self.jobs[name].update(dict.fromkeys(new, PENDING))
            self.policy.submitted(name, new)
        for name, jobs in decision.cancel:
            for job in jobs:
                del self.jobs[name][job]
                self.cancelled.append(job)
        for name, _ in decision.failed:
            self.policy.explain(name, "no such partition")
        return decision

    def run(self, job: str, joins: bool = True, free: bool = True) -> None:
        """Have a job run, and its node join."""
        name = next(name for name, jobs in self.jobs.items() if job in jobs)
        self.jobs[name][job] = RUNNING
        if joins:
            made = self.kinds[name]
            labels = {**made.labels, KIND_LABEL: name, JOB_LABEL: job}
            self.nodes[job] = ObservedNode(f"node of {job}", made.resources, made.resources if free else {}, labels)

    def end(self, job: str) -> None:
        for jobs in self.jobs.values():
            jobs.pop(job, None)
        self.nodes.pop(job, None)

    def all_jobs(self) -> list[str]:
        return [job for jobs in self.jobs.values() for job in jobs]


def submitted(decision: Decision) -> dict[str, int]:
    return dict(decision.submit)


def test_24_tasks_on_no_node_take_as_many_nodes_as_there_may_be() -> None:
    site = Site(kind())
    assert submitted(site.turn(work(24))) == {"small": 3}
    assert submitted(site.turn(work(24))) == {}, "they are coming"
    for job in site.all_jobs():
        site.run(job)
    assert submitted(site.turn(work(24))) == {}
    for job in site.all_jobs():
        site.end(job)
    assert submitted(site.turn()) == {}


def test_nodes_are_submitted_for_what_is_left() -> None:
    site = Site(kind(most=10))
    assert submitted(site.turn(work(5))) == {"small": 3}
    assert submitted(site.turn(work(9))) == {"small": 2}, "of nine, six run on the nodes that are coming"


def test_free_nodes_take_work_first() -> None:
    site = Site(kind(most=10))
    site.others.append(ObservedNode("head", amounts(CPU=4), amounts(CPU=3), {}))
    assert submitted(site.turn(work(3))) == {}
    assert submitted(site.turn(work(4))) == {"small": 1}


def test_a_kind_that_cannot_run_the_work_is_never_submitted() -> None:
    site = Site(kind("small"), kind("gpu", CPU=4, GPU=1, labels={"zone": "b"}))
    assert submitted(site.turn(work(2, GPU=1))) == {"gpu": 2}
    assert submitted(site.turn(work(1, CPU=4))) == {}, "the node that is coming has them"
    assert submitted(site.turn(work(1, CPU=3, labels={"zone": "a"}))) == {}
    decision = site.turn(work(1, CPU=3, labels={"zone": "a"}), work(1, CPU=64), work(1, CPU=1, labels={"zone": "b"}))
    assert submitted(decision) == {}
    assert [each.terms or each.resources for each in decision.unmet] == [(("hard", "zone", "in", ("a",)),), amounts(CPU=64)]


def test_the_first_kind_of_the_file_that_can_run_it_is_taken_and_others_beyond_its_maximum() -> None:
    site = Site(kind("small", most=1), kind("large", CPU=8))
    assert submitted(site.turn(work(2))) == {"small": 1}
    assert submitted(site.turn(work(4))) == {"large": 1}


def test_work_that_the_nodes_do_soon_is_worth_no_node() -> None:
    site = Site(kind())
    site.others.append(ObservedNode("busy", amounts(CPU=2), {}, {}))
    assert submitted(site.turn(work(18, mean=1.0))) == {}
    assert submitted(site.turn(work(19, mean=1.0))) == {"small": 1}


def test_work_that_has_just_come_is_worth_no_node() -> None:
    site = Site(kind())
    assert submitted(site.turn(work(24, oldest=YOUNG_SECONDS / 2))) == {}
    assert submitted(site.turn(work(24, oldest=YOUNG_SECONDS))) == {"small": 3}
    site.turn(work(24, oldest=0.0), after=SURPLUS_SECONDS)
    site.turn(work(24, oldest=0.0), after=SURPLUS_SECONDS)
    assert not site.cancelled, "it needs nodes that are coming"


def test_actors_that_hold_a_node_for_life_do_not_keep_short_tasks_waiting() -> None:
    site = Site(kind())
    site.others.append(ObservedNode("full of actors", amounts(CPU=2), {}, {}))
    assert submitted(site.turn(work(2, mean=1.0))) == {}
    assert submitted(site.turn(work(2, mean=1.0, oldest=WORTH_SECONDS))) == {"small": 1}


def test_work_that_asks_for_nothing_needs_one_node_with_its_labels() -> None:
    site = Site(kind(labels={"disk": "ssd"}))
    nothing = work(50, labels={"disk": "ssd"})._replace(resources={})
    assert submitted(site.turn(nothing)) == {"small": 1}
    assert submitted(site.turn(nothing)) == {}


def test_bundles_that_are_to_be_apart_need_a_node_each() -> None:
    site = Site(kind(most=10))
    bundle = work(1)._replace(apart="group")
    site.others.append(ObservedNode("free", amounts(CPU=2), amounts(CPU=2), {}))
    assert submitted(site.turn(bundle, bundle, bundle)) == {"small": 2}
    assert submitted(site.turn(bundle, bundle, bundle)) == {}


def test_unknown_jobs_are_neither_submitted_nor_cancelled() -> None:
    site = Site(kind(least=1))
    site.turn(work(2))
    site.is_known = False
    for _ in range(100):
        decision = site.turn(work(50))
        assert (decision.submit, decision.cancel, decision.failed) == ([], [], [])
        decision = site.turn()
        assert (decision.submit, decision.cancel, decision.failed) == ([], [], [])
    assert site.policy.report(site.now)[0].requested() == "the jobs of kind 'small' are not known: squeue has failed"
    site.is_known = True
    assert submitted(site.turn(work(50))) == {"small": 2}


def test_pauses_double_after_jobs_that_end_before_their_node_joins() -> None:
    site = Site(kind(most=FAILURES_MOST + 1))
    pauses = []
    for _ in range(8):
        seconds = 0
        while not submitted(site.turn(work(24))):
            seconds += 1
        pauses.append(seconds)
        for job in site.all_jobs():
            site.run(job, joins=False)
            site.end(job)
    assert pauses[:2] == [0, PAUSE_SECONDS_MIN], "all jobs of the first turn are one pause"
    assert pauses[2:] == [120, 240, 480, 960, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MAX]
    assert not submitted(site.turn(work(24)))
    text = site.policy.report(site.now)[0].requested()
    assert text == "no node of kind 'small' is requested for 30 min, since jobs ended before their nodes joined: no such partition"


def test_a_kind_may_fail_for_months() -> None:
    policy = ScalingPolicy([kind()])
    for number in range(FAILURES_MOST + 1100):
        policy.refused(number * PAUSE_SECONDS_MAX, "small", "no such queue")
    assert policy.report(number * PAUSE_SECONDS_MAX)[0].pause_seconds == PAUSE_SECONDS_MAX


def test_after_a_pause_one_job_is_tried_and_the_others_follow_once_its_node_has_joined() -> None:
    site = Site(kind())
    for _ in range(FAILURES_MOST):
        site.policy.refused(site.now, "small", "sbatch has failed")
    assert submitted(site.turn(work(24))) == {}
    assert submitted(site.turn(work(24), after=PAUSE_SECONDS_MIN)) == {"small": 1}
    assert submitted(site.turn(work(24))) == {}
    site.run(*site.all_jobs())
    assert submitted(site.turn(work(24))) == {"small": 2}
    assert site.policy.report(site.now)[0].reason == ""


def test_jobs_whose_node_joined_may_end() -> None:
    site = Site(kind())
    for _ in range(10):
        site.turn(work(24))
        for job in site.all_jobs():
            site.run(job)
        site.turn()
        for job in site.all_jobs():
            site.end(job)
        assert site.turn().failed == []


def test_pending_jobs_that_nothing_needs_are_cancelled_after_a_while() -> None:
    site = Site(kind())
    site.turn(work(6))
    first, *rest = site.all_jobs()
    site.run(first, joins=False)
    site.turn()
    site.turn(after=SURPLUS_SECONDS - 1)
    assert not site.cancelled
    site.turn(work(6))
    site.turn(after=SURPLUS_SECONDS)
    assert not site.cancelled, "they were needed meanwhile"
    decision = site.turn(after=SURPLUS_SECONDS)
    assert sorted(site.cancelled) == rest, "the first runs: its node leaves by itself"
    assert decision.failed == site.turn().failed == []


def test_a_minimum_is_submitted_and_stays() -> None:
    site = Site(kind(least=2))
    assert submitted(site.turn()) == {"small": 2}
    for _ in range(5):
        assert submitted(site.turn(after=SURPLUS_SECONDS)) == {}
    for job in site.all_jobs():
        site.run(job)
    assert submitted(site.turn(work(6))) == {"small": 1}
    site.run(site.all_jobs()[2])
    decision = site.turn()
    assert len(decision.keep) == 2
    assert set(decision.keep) < {node.node for node in site.nodes.values()}
    site.end(site.all_jobs()[0])
    site.end(site.all_jobs()[0])
    assert submitted(site.turn()) == {"small": 1}


def test_another_autoscaler_goes_on_with_the_jobs_that_it_finds() -> None:
    site = Site(kind())
    site.turn(work(24))
    site.run(site.all_jobs()[0])
    site.policy = ScalingPolicy(list(site.kinds.values()))
    for _ in range(3):
        decision = site.turn(work(24))
        assert (submitted(decision), decision.cancel, decision.failed) == ({}, [], [])
    assert site.policy.report(site.now)[0][3:6] == (1, 2, 0)


KINDS = some.lists(
    some.builds(
        NodeKind,
        some.just(""),
        some.fixed_dictionaries({"CPU": some.integers(1, 8), "GPU": some.integers(0, 2)}),
        some.sampled_from([{}, {"zone": "a"}, {"zone": "b"}]),
        some.integers(0, 2),
        some.integers(0, 6),
    ),
    min_size=1,
    max_size=3,
).map(lambda kinds: [each._replace(name=f"kind{index}", min=min(each.min, each.max)) for index, each in enumerate(kinds)])
TERMS = [(), *((("hard", "zone", operator, values),) for operator in ("in", "not in") for values in ((), ("a", "d"), ("b",)))]
WORK = some.lists(
    some.builds(
        WaitingWork,
        some.fixed_dictionaries({"CPU": some.integers(1, 4)}, optional={"GPU": some.integers(1, 2)}),
        some.sampled_from(TERMS),
        some.integers(1, 40),
        some.sampled_from([0.0, 5.0, 100.0]),
        some.sampled_from([None, 0.1, 3.0, 60.0]),
        some.sampled_from(["", "", "group"]),
    ),
    max_size=4,
)


@settings(deadline=None)
@given(KINDS, some.lists(WORK, min_size=1, max_size=4), some.randoms(use_true_random=False))
def test_no_kind_passes_its_maximum_or_is_submitted_for_work_that_it_cannot_run(
    kinds: list[NodeKind], phases: Sequence[list[WaitingWork]], random: Any
) -> None:
    """Jobs start, join, fail and end at random, and the scheduler of jobs is down at times."""
    site = Site(*kinds)
    for waiting in phases:
        for _ in range(10):
            site.is_known = random.random() < 0.8
            decision = site.turn(*waiting, after=random.choice([1.0, 10.0, 100.0]))
            assert site.is_known or not (decision.submit or decision.cancel)
            for name, _ in decision.submit:
                made = site.kinds[name]
                assert made.min or any(can_run(made, each) for each in waiting)
            for made in kinds:
                assert len(site.jobs[made.name]) <= made.max
            for job in site.all_jobs():
                match random.randrange(6):
                    case 0:
                        site.run(job, joins=False)
                    case 1 | 2:
                        site.run(job, free=random.random() < 0.5)
                    case 3:
                        site.end(job)


@settings(deadline=None)
@given(KINDS, WORK, some.randoms(use_true_random=False))
def test_under_constant_demand_submissions_end(kinds: list[NodeKind], waiting: list[WaitingWork], random: Any) -> None:
    site = Site(*kinds)
    turns_most = sum(each.max for each in kinds) + 1
    for _ in range(turns_most):
        if not site.turn(*waiting).submit:
            break
        for job in site.all_jobs():
            if random.random() < 0.5:
                site.run(job)
    for _ in range(10):
        assert not site.turn(*waiting, after=SURPLUS_SECONDS).submit
        for job in site.all_jobs():
            site.run(job)
