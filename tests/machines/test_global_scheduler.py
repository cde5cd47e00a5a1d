"""The global scheduler: which node it names, and that one batch does not pile up on one node."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zfabric.config import Config
from zfabric.machines.common.resources import demand_of
from zfabric.machines.global_scheduler.machine import UNCONFIRMED_SECONDS, GlobalScheduler
from zfabric.machines.global_scheduler.policies import Batch, LeastWait, NodeView, _Room
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Send
from zfabric.protocol.ids import CLIENT, GLOBAL_SCHEDULER, LOCAL_SCHEDULER, address
from zfabric.protocol.options import ONE_CPU, RESOURCE_UNIT

GPU = demand_of(num_gpus=1)


def local(number):
    return address(LOCAL_SCHEDULER, b"local%03d" % number)


def heartbeat(node, total, queued=0, mean=0.1, available=None):
    return m.Heartbeat(node, total, total if available is None else available, queued, mean)


@pytest.fixture
def scheduler():
    scheduler = GlobalScheduler(address(GLOBAL_SCHEDULER, b"12345678"), Config())
    yield scheduler
    scheduler.check_invariants()


def question(token, demand, count, seconds=0.0, inputs=()):
    return (token, demand, count, seconds, inputs)


def place(scheduler, *demands, asker=None):
    """Ask for one task of each demand; return the node of each, empty where there is none."""
    scheduler.step(1.0, asker or local(1), m.Place(tuple(question(token, demand, 1) for token, demand in enumerate(demands))))
    (effect,) = scheduler.take_effects(1.0)
    assert effect.to == (asker or local(1))
    assert [token for token, _ in effect.message.rows] == list(range(len(demands)))
    return [places[0][0] if places else b"" for _, places in effect.message.rows]


def test_no_node_is_named_until_one_has_the_resources(scheduler):
    assert place(scheduler, ONE_CPU) == [b""]
    scheduler.step(0.0, local(1), heartbeat(b"a", demand_of(num_cpus=2)))
    assert scheduler.take_effects(0.0) == []
    assert place(scheduler, ONE_CPU, GPU, demand_of(num_cpus=3)) == [b"a", b"", b""]
    scheduler.step(0.0, local(2), heartbeat(b"b", demand_of(num_cpus=4, num_gpus=1)))
    assert place(scheduler, GPU, demand_of(num_cpus=3)) == [b"b", b"b"]
    scheduler.step(0.0, local(1), heartbeat(b"a", demand_of(num_cpus=8)))
    assert place(scheduler, demand_of(num_cpus=7)) == [b"a"]
    assert scheduler.statistics()["infeasible"] == 3


def test_a_full_node_is_still_feasible(scheduler):
    scheduler.step(0.0, local(1), heartbeat(b"a", ONE_CPU, queued=10**6, available=(("CPU", -10000),)))
    assert place(scheduler, ONE_CPU) == [b"a"]


def test_no_task_is_placed_where_actors_leave_no_room(scheduler):
    scheduler.step(0.0, local(1), m.Heartbeat(b"a", demand_of(num_cpus=2), (), 0, 0.1, demand_of(num_cpus=2)))
    scheduler.step(1.0, local(3), m.Place((question(0, ONE_CPU, 4), question(1, (), 1))))
    (effect,) = scheduler.take_effects(1.0)
    assert effect.message.rows == ((0, ((b"a", 0),)), (1, ((b"a", 1),)))
    scheduler.step(1.0, local(2), m.Heartbeat(b"b", demand_of(num_cpus=4), (), 9, 0.1, demand_of(num_cpus=3)))
    scheduler.step(1.0, local(3), m.Place((question(0, ONE_CPU, 4),)))
    (effect,) = scheduler.take_effects(1.0)
    assert effect.message.rows == ((0, ((b"b", 4),)),)


def test_least_estimated_wait(scheduler):
    scheduler.step(0.0, local(1), heartbeat(b"a", ONE_CPU, queued=10, mean=0.001))
    scheduler.step(0.0, local(2), heartbeat(b"b", ONE_CPU, queued=2, mean=1.0))
    assert place(scheduler, ONE_CPU) == [b"a"]
    scheduler.step(0.0, local(3), heartbeat(b"c", ONE_CPU, queued=0, mean=100.0))
    assert place(scheduler, ONE_CPU) == [b"c"]


def test_a_batch_spreads_over_equal_nodes_and_a_heartbeat_starts_over(scheduler):
    for number, node in enumerate((b"a", b"b")):
        scheduler.step(0.0, local(number), heartbeat(node, demand_of(num_cpus=4)))
    assert sorted(place(scheduler, *[ONE_CPU] * 6)) == [b"a"] * 3 + [b"b"] * 3
    scheduler.step(0.0, local(1), heartbeat(b"b", demand_of(num_cpus=4)))
    assert place(scheduler, ONE_CPU) == [b"b"]


def test_an_actor_that_does_not_arrive_leaves_its_room_to_others(scheduler):
    """Its home may not have given it to the node, which then has no news to report."""

    def ask(now):
        scheduler.step(now, local(3), m.Place((question(0, ONE_CPU, 1, m.FOR_LIFE),)))
        (effect,) = scheduler.take_effects(now)
        return effect.message.rows[0][1]

    scheduler.step(0.0, local(1), heartbeat(b"a", ONE_CPU))
    assert ask(0.0) == ((b"a", 1),)
    assert ask(0.0 + UNCONFIRMED_SECONDS / 2) == ((b"a", 0),)
    assert ask(0.0 + UNCONFIRMED_SECONDS) == ((b"a", 1),)
    scheduler.step(1.5, local(1), m.Heartbeat(b"a", ONE_CPU, (), 0, 0.1, ONE_CPU))
    assert ask(9.0) == ((b"a", 0),), "this one has arrived"


def test_tasks_that_do_not_arrive_are_not_in_the_way_for_ever(scheduler):
    scheduler.step(0.0, local(1), heartbeat(b"a", ONE_CPU))
    scheduler.step(0.0, local(2), heartbeat(b"b", ONE_CPU))
    for now, expected in ((0.0, b"a"), (0.1, b"b"), (0.0 + UNCONFIRMED_SECONDS, b"a")):
        scheduler.step(now, local(3), m.Place((question(0, ONE_CPU, 1, 9.0),)))
        (effect,) = scheduler.take_effects(now)
        assert effect.message.rows[0][1] == ((expected, 1),)


def test_what_a_node_asks_for_is_not_ahead_of_itself(scheduler):
    scheduler.step(0.0, local(1), heartbeat(b"a", demand_of(num_cpus=2), queued=100))
    scheduler.step(0.0, local(2), heartbeat(b"b", demand_of(num_cpus=2)))
    scheduler.step(1.0, local(1), m.Place((question(0, ONE_CPU, 100),)))
    (effect,) = scheduler.take_effects(1.0)
    assert dict(effect.message.rows[0][1]) == {b"a": 50, b"b": 50}


def test_tasks_are_spread_by_cpus(scheduler):
    scheduler.step(0.0, local(1), heartbeat(b"a", demand_of(num_cpus=1)))
    scheduler.step(0.0, local(2), heartbeat(b"b", demand_of(num_cpus=3)))
    scheduler.step(1.0, local(3), m.Place((question(0, ONE_CPU, 100),)))
    (effect,) = scheduler.take_effects(1.0)
    assert dict(effect.message.rows[0][1]) == {b"a": 25, b"b": 75}


def test_requests_of_one_turn_are_answered_together_per_sender(scheduler):
    scheduler.step(0.0, local(1), heartbeat(b"a", ONE_CPU))
    scheduler.step(0.0, local(1), m.Place((question(1, ONE_CPU, 1),)))
    scheduler.step(0.0, local(2), m.Place((question(7, GPU, 1),)))
    scheduler.step(0.0, local(1), m.Place((question(2, ONE_CPU, 5),)))
    placed = m.Placed(((1, ((b"a", 1),)), (2, ((b"a", 5),))))
    assert scheduler.take_effects(0.0) == [Send(local(1), placed), Send(local(2), m.Placed(((7, ()),)))]
    assert scheduler.take_effects(0.0) == []
    assert scheduler.next_deadline() is None


def test_a_dead_node_gets_nothing(scheduler):
    scheduler.step(0.0, local(1), heartbeat(b"a", ONE_CPU))
    scheduler.step(0.0, local(2), m.ProcessGone(local(2)[1:]))
    assert place(scheduler, ONE_CPU) == [b"a"]
    scheduler.step(0.0, local(2), m.ProcessGone(local(1)[1:]))
    assert place(scheduler, ONE_CPU) == [b""]
    assert scheduler.statistics()["nodes"] == 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (address(CLIENT, b"12345678"), heartbeat(b"a", ONE_CPU)),
        (local(1), heartbeat(b"a", ONE_CPU, queued=-1)),
        (local(1), heartbeat(b"a", ONE_CPU, mean=float("nan"))),
        (local(1), heartbeat(b"a", (("CPU", 1.5),))),
        (local(1), heartbeat(b"a", (("CPU",),))),
        (local(1), m.Place(((1,),))),
        (local(1), m.Place((question(1, (("CPU", -1),), 1),))),
        (local(1), m.Place((question(1, (3,), 1),))),
        (local(1), m.Place((question(1, ONE_CPU, 1, seconds=-1.0),))),
        (local(1), m.Place((question(1, ONE_CPU, 1, inputs=((b"a", -1),)),))),
        (local(1), m.Place((question(1, ONE_CPU, 0),))),
    ],
)
def test_nonsense_is_refused_and_counted(scheduler, source, message):
    scheduler.step(0.0, source, message)
    (effect,) = scheduler.take_effects(0.0)
    assert (effect.to, type(effect.message)) == (source, m.Refused)
    assert scheduler.statistics()["refused"] == 1
    assert scheduler.statistics()["nodes"] == 0


# --- policies -----------------------------------------------------------------------------------------------------------------


def view(node, cpus=1, queued=0, mean=1.0, free=None):
    available = demand_of(num_cpus=cpus) if free is None else (("CPU", free * RESOURCE_UNIT),)
    return NodeView(node, local(1), demand_of(num_cpus=cpus), available, queued, mean)


def batch(count, seconds=1.0, fetch=None):
    return Batch(ONE_CPU, count, seconds, fetch or {})


def test_least_wait_weighs_inputs_against_the_queue():
    def nodes():
        return [view(b"a", queued=4), view(b"b", queued=1)]

    assert LeastWait().place(batch(1), nodes()) == {b"b": 1}
    assert LeastWait().place(batch(1, fetch={b"b": 60.0}), nodes()) == {b"a": 1}
    assert LeastWait().place(batch(1, fetch={b"b": 1.5}), nodes()) == {b"b": 1}


def test_inputs_are_fetched_at_the_bandwidth_between_nodes(scheduler):
    """200 MB take half a second: the node that has them waits for up to so much work before others are better."""
    scheduler.step(0.0, local(1), heartbeat(b"a", ONE_CPU, mean=0.1))
    scheduler.step(0.0, local(2), heartbeat(b"b", ONE_CPU, mean=0.1))
    scheduler.step(1.0, local(3), m.Place((question(0, ONE_CPU, 5, 0.1, ((b"a", 200_000_000),)),)))
    scheduler.step(1.0, local(3), m.Place((question(1, ONE_CPU, 20, 0.1, ((b"a", 200_000_000),)),)))
    (effect,) = scheduler.take_effects(1.0)
    assert effect.message.rows[0] == (0, ((b"a", 5),))
    assert dict(effect.message.rows[1][1])[b"b"] in range(9, 14)


def test_a_large_batch_is_not_placed_task_by_task(monkeypatch):
    """100,000 tasks on 100 nodes: fewer steps than it has tasks by far, and within one task of each other."""
    steps = 0
    usual = _Room.next

    def counted(room):
        nonlocal steps
        steps += 1
        return usual(room)

    monkeypatch.setattr(_Room, "next", counted)
    places = LeastWait().place(batch(100_000), [view(b"%03d" % index) for index in range(100)])
    assert set(places.values()) == {1000}
    assert steps < 500


def test_no_node_at_all():
    assert LeastWait().place(batch(1), []) == {}


def one_by_one(policy, count, seconds, nodes, fetch):
    """Place each task as a batch of its own."""
    places = Counter()
    for _ in range(count):
        places.update(policy.place(batch(1, seconds, fetch), nodes))
    return places


@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 64), st.integers(0, 50), st.sampled_from((0.001, 0.1, 3.0)), st.booleans()), min_size=1, max_size=8
    ),
    count=st.integers(1, 400),
    seconds=st.sampled_from((0.01, 0.1, 2.0)),
    fetch=st.lists(st.sampled_from((0.0, 0.5, 4.0)), min_size=8, max_size=8),
)
def test_a_batch_ends_no_later_than_its_tasks_placed_one_by_one(shapes, count, seconds, fetch):
    """No node begins its last task later than some node would if each task were placed on its own, up to one task."""

    def nodes():
        return [
            view(bytes([97 + index]), cpus, queued, mean, None if idle else 0) for index, (cpus, queued, mean, idle) in enumerate(shapes)
        ]

    times = {bytes([97 + index]): fetch[index] for index in range(len(shapes))}

    def last(places):
        begun = [0.0]
        for each in nodes():
            given = places.get(each.node, 0)
            if given:
                more = given - each.free_for(ONE_CPU)
                wait = each.backlog(seconds) + more * seconds / each.slots_for(ONE_CPU) if more > 0 else 0.0
                begun.append(max(wait, times[each.node]))
        return max(begun)

    together = LeastWait().place(batch(count, seconds, times), nodes())
    assert sum(together.values()) == count
    assert last(together) <= last(one_by_one(LeastWait(), count, seconds, nodes(), times)) + seconds + 1e-9


@given(
    nodes=st.dictionaries(
        st.binary(min_size=1, max_size=2), st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 9), st.floats(0, 5)), max_size=5
    ),
    demands=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=20),
)
def test_empty_exactly_where_no_node_has_it(nodes, demands):
    scheduler = GlobalScheduler(address(GLOBAL_SCHEDULER, b"12345678"), Config())
    for node, (cpus, gpus, queued, mean) in nodes.items():
        scheduler.step(0.0, local(1), heartbeat(node, demand_of(cpus, gpus), queued, mean))
    wanted = [demand_of(cpus, gpus) for cpus, gpus in demands]
    for (cpus, gpus), node in zip(demands, place(scheduler, *wanted), strict=True):
        able = {one for one, (has_cpus, has_gpus, _, _) in nodes.items() if has_cpus >= cpus and has_gpus >= gpus}
        assert node in (able or {b""})
    scheduler.check_invariants()
