"""Which nodes the bundles of a placement group go to: any plan keeps its promises, and a plan is found where one exists."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_updates import leaving
from nodes_alone import HOME_A, HOME_C, SELF, Nodes
from scheduler_alone import DRIVER, FUNCTION, OWN, row, task_id

from zfabric.machines.common.resources import covers
from zfabric.machines.local_scheduler.groups.planning import Plan, plan, total_of
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, LOCAL_SCHEDULER
from zfabric.protocol.options import GROUP_POLICIES, RESOURCE_UNIT, Demand, GroupTerm, group_strategy

demands = st.tuples(st.integers(0, 4), st.integers(0, 2)).map(lambda pair: (("CPU", pair[0]), ("disk", pair[1])))
groups = st.lists(demands, min_size=1, max_size=5).map(lambda found: dict(enumerate(found)))
rooms = st.lists(st.fixed_dictionaries({"CPU": st.integers(0, 8), "disk": st.integers(0, 4)}), max_size=4).map(
    lambda found: {bytes([65 + index]): room for index, room in enumerate(found)}
)


def fits(target: Plan, bundles: dict[int, Demand], nodes: dict[bytes, dict[str, int]]) -> bool:
    return all(covers(room, total_of([bundles[index] for index, node in target.items() if node == each])) for each, room in nodes.items())


def keeps(policy: str, target: Plan) -> bool:
    """Whether a plan is as strict as its policy."""
    used = set(target.values())
    return {"STRICT_PACK": len(used) == 1, "STRICT_SPREAD": len(used) == len(target)}.get(policy, True)


@given(st.sampled_from(GROUP_POLICIES), groups, rooms)
def test_a_plan_fits_and_is_found_if_there_is_one(policy: str, bundles: dict[int, Demand], nodes: dict[bytes, dict[str, int]]) -> None:
    found = plan(policy, bundles, nodes)
    if found is None:
        for choice in product(nodes, repeat=len(bundles)):
            other = dict(zip(bundles, choice, strict=True))
            assert not (keeps(policy, other) and fits(other, bundles, nodes)), other
    else:
        assert found.keys() == bundles.keys()
        assert fits(found, bundles, nodes)
        assert keeps(policy, found)


@given(groups, rooms)
def test_packing_takes_one_node_if_one_is_enough(bundles: dict[int, Demand], nodes: dict[bytes, dict[str, int]]) -> None:
    found = plan("PACK", bundles, nodes)
    if any(covers(room, total_of([*bundles.values()])) for room in nodes.values()):
        assert found is not None
        assert len(set(found.values())) == 1


@pytest.mark.parametrize(("policy", "nodes"), [("PACK", 1), ("STRICT_PACK", 1), ("SPREAD", 3), ("STRICT_SPREAD", 3)])
def test_bundles_that_fit_anywhere_are_packed_or_spread(policy: str, nodes: int) -> None:
    found = plan(policy, dict.fromkeys(range(3), (("CPU", 1),)), {each: {"CPU": 4} for each in (b"a", b"b", b"c", b"d")})
    assert found is not None
    assert len(set(found.values())) == nodes


def test_lost_bundles_join_the_others_or_keep_apart_from_them() -> None:
    nodes = {each: {"CPU": 4} for each in (b"a", b"b", b"c")}
    bundle = {1: (("CPU", 1),)}
    assert plan("STRICT_PACK", bundle, nodes, [b"b"]) == {1: b"b"}
    assert plan("PACK", bundle, {b"a": {"CPU": 4}, b"b": {"CPU": 0}}, [b"b"]) == {1: b"a"}
    assert plan("STRICT_SPREAD", bundle, nodes, [b"a", b"b"]) == {1: b"c"}
    assert plan("STRICT_SPREAD", bundle, nodes, [b"a", b"b", b"c"]) is None
    assert plan("SPREAD", bundle, nodes, [b"a", b"b", b"b"]) == {1: b"c"}
    assert plan("STRICT_PACK", bundle, {b"a": {"CPU": 4}}, [b"b"]) is None


def test_the_node_with_the_least_left_is_packed() -> None:
    assert plan("STRICT_PACK", {0: (("CPU", 2),)}, {b"a": {"CPU": 8}, b"b": {"CPU": 2}, b"c": {"CPU": 4}}) == {0: b"b"}


# --- a group at its home, message by message ------------------------------------------------------------------------------------

GROUP, ONE = task_id(7), (("CPU", RESOURCE_UNIT),)


def reserved(home: Nodes, survey: int, node: bytes, reservation: int) -> None:
    """A node alone has room for the group's bundle, and reserves it."""
    for other in (HOME_A, HOME_C):
        if m.AskRoom(survey) in home.told(other):
            room = ONE if other == node else ()
            home.hear(other, m.NodeRoom(survey, room, room))
    home.send(LOCAL_SCHEDULER + OWN, m.NodeRoom(survey, (), ()))
    assert home.told(node) == [m.PrepareBundles(GROUP, reservation, False, ((0, ONE),))]
    home.hear(node, m.BundlesPrepared(GROUP, reservation, True))
    assert home.told(node) == [m.CommitBundles(GROUP)]


@pytest.fixture
def home() -> Nodes:
    """The home of a group whose bundle is at node A, which watches it, and is drained."""
    made = Nodes()
    made.send(CLIENT + DRIVER, m.Query(1, "create group", (GROUP, (ONE,), "PACK", "", "", False)))
    reserved(made, 1, HOME_A, 1)
    made.hear(HOME_A, leaving(HOME_A), m.WatchGroup(GROUP))
    assert made.told(HOME_A)[-1] == m.GroupState(GROUP, "RESCHEDULING", ((ONE, b""),), "")
    return made


def test_a_bundle_of_a_drained_node_is_reserved_elsewhere_and_the_node_is_told(home: Nodes) -> None:
    reserved(home, 2, HOME_C, 2)
    assert home.told(HOME_A) == [m.GroupState(GROUP, "CREATED", ((ONE, HOME_C),), "")], "what runs in the old one goes on"


def test_the_old_bundle_of_a_drained_node_is_retained_until_it_leaves_and_freed_with_its_group(home: Nodes) -> None:
    reserved(home, 2, HOME_C, 2)
    home.told(HOME_A)
    home.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon.2", m.ANY_DAEMON))
    assert m.HoldBundles(((GROUP, 0, True),)) in home.told(HOME_A)
    home.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon.2", home.scheduler.address[1:]), m.Ready())
    home.send(CLIENT + DRIVER, m.Query(2, "remove group", (GROUP, b"")))
    for node in (HOME_A, HOME_C):
        assert m.FreeBundles(GROUP, (), "remove_placement_group() was called") in home.told(node)


def test_a_drained_node_that_has_left_has_no_bundle_any_more(home: Nodes) -> None:
    reserved(home, 2, HOME_C, 2)
    home.table(2, SELF, HOME_C)
    record = home.scheduler.groups.records[GROUP]
    assert (record.places, record.leaving, record.state) == ([HOME_C], set(), "CREATED")


def test_a_bundles_node_with_a_new_daemon_is_given_tasks_once_it_has_reported_its_attempts(home: Nodes) -> None:
    """A task given before would pass for lost, and be given again: the node would refuse the second attempt."""
    reserved(home, 2, HOME_C, 2)
    home.hear(HOME_C, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon.2", home.scheduler.address[1:]))
    home.told(HOME_C)
    where = group_strategy(GroupTerm(GROUP, SELF, 0, False))
    home.send(CLIENT + DRIVER, m.Export(((FUNCTION, "f", b"payload", (("demand", ONE),)),)))
    home.submit(row(9, strategy=where))
    for _ in range(2):  # The home asks itself about the group.
        for message in home.sent_to(LOCAL_SCHEDULER + OWN):
            home.send(LOCAL_SCHEDULER + OWN, message)
    assert not any(isinstance(each, m.Delegate) for each in home.told(HOME_C))
    home.hear(HOME_C, m.Ready())
    (given_task,) = [each for each in home.told(HOME_C) if isinstance(each, m.Delegate)]
    assert [each[0] for each in given_task.rows] == [task_id(9)]
