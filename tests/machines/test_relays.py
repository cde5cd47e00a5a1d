"""Calls between nodes: what the schedulers of the caller's and of the actor's node send, and what waits for what."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ledger_updates import claimed, decided, found, freed, held, released, retains, searching
from nodes_alone import ACTOR_ID, CALL, CALLER, HOME_A, HOME_C, OTHER, SELF, Nodes, call, members
from scheduler_alone import ACTOR_CLASS, DRIVER, JOB, OWN, Restarted, died, task_id

from tests.sim.variants import applied
from zfabric.machines.local_scheduler.nodes.receipts import ACKNOWLEDGE_AFTER, RECEIPTS_WITHIN
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import (
    ACTOR,
    CLIENT,
    FIRST_RETURN,
    LOCAL_SCHEDULER,
    WORKER,
    call_value,
    control_of,
    first_attempt,
    object_id,
    remote_caller,
)

FAR = JOB + b"parent F" + bytes(4)
"""An actor whose home is node A."""
ATTEMPT = first_attempt(0, 2)
"""The first life of an actor of this node, which is the second one."""


@pytest.fixture
def node() -> Nodes:
    return Nodes()


# -- at the actor's node --


def test_a_call_of_another_node_reaches_the_actor_and_its_outcome_returns(node: Nodes) -> None:
    worker = node.actor()
    node.hear(HOME_A, m.RelayedCalls(ACTOR_ID, ATTEMPT, (call(),), CALLER, ()))
    (relayed,) = node.sent_to(ACTOR + worker)
    assert (relayed.rows, relayed.caller) == ((call(),), remote_caller(CALLER, HOME_A))
    node.report(worker, (CALL, m.OK, (b"value",), ()))
    assert node.told(HOME_A) == [m.CallsEnded(1, ((CALL, CALLER, m.OK, (b"value",), ()),), ())]
    assert node.sent_to(WORKER + worker) == [], "the actor retains the outcome until the other node has taken it in"
    node.hear(HOME_A, m.EndsReceived(1))
    assert node.sent_to(WORKER + worker) == [m.OutcomesRecorded((CALL,))]


def test_an_outcome_is_retained_until_its_caller_has_received_it(node: Nodes) -> None:
    worker, another = node.actor(), b"\x05another"
    for number, caller in enumerate((CALLER, another, CALLER)):
        node.hear(HOME_A, m.RelayedCalls(ACTOR_ID, ATTEMPT, (call(number),), caller, ()))
        node.send(WORKER + worker, m.CallOutcomes(((call(number)[0], remote_caller(caller, HOME_A), m.OK, (b"value",), ()),)))
    ended = node.told(HOME_A)
    assert [each.number for each in ended] == [1, 2, 3]
    node.hear(HOME_A, m.EndsReceived(2, ((CALLER, 0),)))
    assert node.sent_to(WORKER + worker) == [m.OutcomesRecorded((call(1)[0],))]
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon 2", node.scheduler.address[1:]), m.Ready())
    assert [each for each in node.told(HOME_A) if isinstance(each, m.CallsEnded)] == [ended[0], ended[2]], "the next daemon receives them"
    node.hear(HOME_A, m.EndsReceived(3, ((CALLER, 1),)))
    assert node.sent_to(WORKER + worker) == [m.OutcomesRecorded((CALL,))]
    node.hear(HOME_A, m.EndsReceived(3))
    assert node.sent_to(WORKER + worker) == [m.OutcomesRecorded((call(2)[0],))], "the caller lacks nothing"


def test_outcomes_of_several_callers_are_acknowledged_one_by_one(node: Nodes) -> None:
    worker, another = node.actor(), b"\x05another"
    rows = tuple((call(each)[0], remote_caller(name, HOME_A), m.OK, (b"value",), ()) for each, name in enumerate((CALLER, another)))
    node.send(WORKER + worker, m.CallOutcomes(rows))
    assert [[row[1] for row in each.rows] for each in node.told(HOME_A)] == [[CALLER], [another]]


def test_an_outcome_waits_until_what_the_actor_holds_is_registered_at_its_home(node: Nodes) -> None:
    worker = node.actor()
    node.hear(HOME_A, m.RelayedCalls(ACTOR_ID, ATTEMPT, (call(contains=(OTHER,)),), CALLER, ((OTHER, HOME_C),)))
    node.send(CLIENT + worker, m.Hold((OTHER,)))
    (borrow,) = node.told(HOME_C)
    node.report(worker, (CALL, m.OK, (b"value",), ()))
    node.hear(HOME_A, m.FindActors((ACTOR_ID,)))
    assert node.told(HOME_A) == [], "neither the outcome nor any word of the actor behind it"
    node.hear(HOME_C, m.LedgerUpdated(borrow.number))
    assert [type(each) for each in node.told(HOME_A)] == [m.CallsEnded, m.ActorLocations]


def test_what_a_call_names_is_let_go_with_its_outcome_or_with_the_actors_life(node: Nodes) -> None:
    worker = node.actor()
    for number in (0, 1):
        node.hear(HOME_A, m.RelayedCalls(ACTOR_ID, ATTEMPT, (call(number, contains=(OTHER,)),), CALLER, ((OTHER, HOME_C),)))
    assert node.scheduler.tables.objects[OTHER].pins == 2
    node.report(worker, (CALL, m.OK, (b"value",), ()))
    assert node.scheduler.tables.objects[OTHER].pins == 1
    died(node, worker, None)
    assert OTHER not in node.scheduler.tables.objects


def test_what_a_call_names_that_comes_again_is_pinned_once(node: Nodes) -> None:
    worker = node.actor()
    relayed = m.RelayedCalls(ACTOR_ID, ATTEMPT, (call(0, contains=(OTHER,)),), CALLER, ((OTHER, HOME_C),))
    node.hear(HOME_A, relayed, relayed)
    assert node.scheduler.tables.objects[OTHER].pins == 1
    node.report(worker, (CALL, m.OK, (b"value",), ()))
    node.hear(HOME_A, relayed)
    assert OTHER not in node.scheduler.tables.objects


def test_a_large_result_stays_here_for_the_callers_node(node: Nodes) -> None:
    worker = node.actor()
    node.hear(HOME_A, m.RelayedCalls(ACTOR_ID, ATTEMPT, (call(),), CALLER, ()))
    node.report(worker, (CALL, m.OK, ((4096, 300_000),), ()))
    (ended,) = node.told(HOME_A)
    assert ended.rows == ((CALL, CALLER, m.OK, (300_000,), ()),)
    record = node.scheduler.tables.objects[call_value(CALL, 0)]
    assert (record.home, record.holders) == (HOME_A, HOME_A)
    node.hear(HOME_A, m.EndsReceived(1), released((call_value(CALL, 0),)))
    assert call_value(CALL, 0) not in node.scheduler.tables.objects


def test_a_large_result_keeps_its_place_until_its_caller_has_received_the_outcome(node: Nodes) -> None:
    """Until then the actor repeats the outcome, with the place, to each restarted daemon of its node."""
    worker, value = node.actor(), call_value(CALL, 0)
    node.hear(HOME_A, m.RelayedCalls(ACTOR_ID, ATTEMPT, (call(contains=(OTHER,)),), CALLER, ((OTHER, HOME_C),)))
    node.report(worker, (CALL, m.OK, ((4096, 300_000), b"small"), ((OTHER,), ())))
    node.told(HOME_A)
    node.hear(HOME_A, released((value,)))
    node.hear(HOME_A, m.EndsReceived(1, ((CALLER, 0),)))
    assert (node.scheduler.tables.objects[value].holders, node.scheduler.tables.objects[value].pins) == (None, 1)
    node.hear(HOME_A, m.EndsReceived(1))
    assert value not in node.scheduler.tables.objects
    assert OTHER not in node.scheduler.tables.objects


def test_a_large_result_of_a_job_that_has_just_ended_is_not_retained(node: Nodes) -> None:
    worker = node.actor()
    node.hear(HOME_A, m.RelayedCalls(ACTOR_ID, ATTEMPT, (call(),), CALLER, ()))
    node.scheduler.step(1.0, WORKER + worker, m.CallOutcomes(((CALL, remote_caller(CALLER, HOME_A), m.OK, ((4096, 300_000),), ()),)))
    node.scheduler.tables.jobs[JOB].ended = "the driver has exited"
    node.turn()
    node.turn()
    assert call_value(CALL, 0) not in node.scheduler.tables.objects


def test_a_large_result_is_repeated_with_its_outcome_and_by_itself_once_that_is_acknowledged(node: Nodes) -> None:
    """The next daemon of the caller's node would give up a value of a call of which it does not know."""
    worker = node.actor()
    node.hear(HOME_A, m.RelayedCalls(ACTOR_ID, ATTEMPT, (call(),), CALLER, ()))
    node.report(worker, (CALL, m.OK, ((4096, 300_000),), ()))
    node.told(HOME_A)
    for daemon, kind in ((b"daemon 2", m.CallsEnded), (b"daemon 3", m.Holdings)):
        node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, daemon, node.scheduler.address[1:]), m.Ready())
        told = node.told(HOME_A)
        assert [type(each) for each in told if isinstance(each, m.CallsEnded | m.Holdings)] == [kind]
        node.hear(HOME_A, m.EndsReceived(1))


def test_a_large_result_is_named_before_its_outcome_to_the_next_daemon_of_its_home_that_looks_for_it(node: Nodes) -> None:
    """The caller has the outcome. Its node has not acknowledged it, and would take the result for lost."""
    worker, value = node.actor(), call_value(CALL, 0)
    node.hear(HOME_A, m.RelayedCalls(ACTOR_ID, ATTEMPT, (call(),), CALLER, ()))
    node.report(worker, (CALL, m.OK, ((4096, 300_000),), ()))
    node.told(HOME_A)
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon 2", node.scheduler.address[1:]))
    node.told(HOME_A)
    node.hear(HOME_A, searching(1, (value, OTHER)))
    retained, borrowed = node.told(HOME_A)
    assert retained == retains(((value, 300_000, ()),), ())
    assert borrowed == m.LedgerUpdated(1), "neither is at home here"


def test_calls_for_a_life_that_has_ended_are_dropped_and_the_callers_node_is_notified(node: Nodes) -> None:
    worker = node.actor()
    died(node, worker, None)
    ((row,),) = [message.rows for message in node.told(HOME_A) if type(message) is m.ActorLocations]
    assert row[:3] == (ACTOR_ID, m.CREATING, b"")
    node.hear(HOME_A, m.RelayedCalls(ACTOR_ID, ATTEMPT, (call(),), CALLER, ()))
    assert node.sent_to(ACTOR + worker) == []


def test_outcomes_for_a_dead_node_are_dropped_and_its_callers_are_gone(node: Nodes) -> None:
    worker = node.actor()
    node.hear(HOME_A, m.RelayedCalls(ACTOR_ID, ATTEMPT, (call(), call(1)), CALLER, ()))
    node.report(worker, (CALL, m.OK, (b"value",), ()))
    node.table(2, SELF, HOME_C)
    assert node.sent_to(b"K" + control_of(worker), m.RetireActor) == [
        m.CallerGone(HOME_A),
        m.CallerGone(remote_caller(CALLER, HOME_A)),
    ]
    assert node.sent_to(WORKER + worker) == [m.OutcomesRecorded((CALL,))]
    node.report(worker, (call(1)[0], m.OK, ((8192, 300_000),), ()))
    assert node.sent_to(WORKER + worker) == [m.OutcomesRecorded((call(1)[0],))]
    assert call_value(call(1)[0], 0) not in node.scheduler.tables.objects


# -- at the caller's node --


def find(node: Nodes) -> bytes:
    """A process of this node gets a handle of node A's actor, and asks for the actor. Return the process."""
    worker = node.delegated(1, FAR + FIRST_RETURN)
    node.send(CLIENT + worker, m.Hold((FAR + FIRST_RETURN,)))
    node.send(CLIENT + worker, m.FindActors((FAR,)))
    assert [each for each in node.told(HOME_A) if not held(each)] == [m.FindActors((FAR,))]
    return worker


def alive(attempt: int = 7) -> m.ActorLocations:
    return m.ActorLocations(((FAR, m.ALIVE, HOME_A, attempt, False, b"", b""),))


def test_callers_see_their_own_daemon_in_place_of_the_actor(node: Nodes) -> None:
    worker = find(node)
    node.hear(HOME_A, alive())
    ((row,),) = [each.rows for each in node.sent_to(CLIENT + worker) if type(each) is m.ActorLocations]
    assert row == (FAR, m.ALIVE, node.scheduler.address[1:], 7, True, b"", b"")
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(),)))
    node.send(CLIENT + worker, m.Call(FAR, 6, (call(1),)))
    node.send(CLIENT + worker, m.OutcomesReceived(FAR, (CALL,), False))
    node.send(CLIENT + worker, m.StopRelayed(FAR, CALL, "cancelled"))
    node.send(CLIENT + worker, m.KillActor(FAR, True))
    assert node.told(HOME_A) == [
        m.RelayedCalls(FAR, 7, (call(),), worker, ()),
        m.RelayedReceipt(FAR, (CALL,), False, worker),
        m.StopRelayed(FAR, CALL, "cancelled"),
        m.KillActor(FAR, True),
    ]


def test_a_call_takes_the_result_of_another_call_along_of_which_only_the_caller_knows(node: Nodes) -> None:
    worker = find(node)
    node.hear(HOME_A, m.LedgerUpdated(1), alive())
    passed_on = (call(1)[0], "add", b"arguments", (call_value(CALL, 0),), (b"value",), None)
    node.send(CLIENT + worker, m.Call(FAR, 7, (passed_on,)))
    assert node.told(HOME_A) == [m.RelayedCalls(FAR, 7, (passed_on,), worker, ())]
    assert not any(type(each) is m.Returned for each in node.sent_to(CLIENT + worker)), "it has not failed"


def test_a_value_with_refs_inside_is_fetched_by_the_actors_node_which_learns_their_homes(node: Nodes) -> None:
    worker = find(node)
    node.hear(HOME_A, m.LedgerUpdated(1), alive())
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(),)))
    node.hear(HOME_A, m.CallsEnded(1, ((CALL, worker, m.OK, (b"value",), ((OTHER,),)),), ((OTHER, HOME_C),)))
    node.told(HOME_A)
    node.send(CLIENT + worker, m.Call(FAR, 7, ((call(1)[0], "add", b"arguments", (call_value(CALL, 0),), (b"value",), None),)))
    (relayed,) = node.told(HOME_A)
    assert [row[4] for row in relayed.rows] == [(None,)]
    node.hear(HOME_A, m.FetchValues((call_value(CALL, 0),)))
    assert [each.homes for each in node.told(HOME_A) if type(each) is m.FetchedValues] == [((OTHER, HOME_C),)]


def requests(node: Nodes, caller: bytes, after: float = RECEIPTS_WITHIN) -> list[m.RequestReceipt]:
    """The receipts that a caller was requested, after the time after which they are."""
    node.now += after
    node.turn()
    return [each for each in node.sent_to(CLIENT + caller) if isinstance(each, m.RequestReceipt)]


def confirm(node: Nodes, caller: bytes, after: float = RECEIPTS_WITHIN) -> None:
    """Have a caller confirm what it was sent."""
    for each in requests(node, caller, after):
        node.send(CLIENT + caller, m.Receipt(each.token))


def test_outcomes_are_acknowledged_together_after_a_while(node: Nodes) -> None:
    worker = find(node)
    node.hear(HOME_A, m.LedgerUpdated(1), alive())
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(),)))
    node.told(HOME_A)
    node.hear(HOME_A, m.CallsEnded(1, ((CALL, worker, m.OK, (b"value",), ()),), ()))
    assert node.told(HOME_A) == [], "nobody waits for it"
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(1),)))
    assert [type(each) for each in node.told(HOME_A)] == [m.RelayedCalls]
    node.hear(HOME_A, m.CallsEnded(2, ((call(1)[0], worker, m.OK, (b"value",), ()),), ()))
    due = node.scheduler.next_deadline()
    assert due is not None
    assert due <= node.now + RECEIPTS_WITHIN
    confirm(node, worker)
    assert node.told(HOME_A) == [], "the other callers have some time to confirm theirs"
    assert node.told_at_last(HOME_A) == [m.EndsReceived(2)]
    assert node.told_at_last(HOME_A) == [], "that was all"


def test_an_outcome_is_acknowledged_once_its_caller_has_received_it(node: Nodes) -> None:
    """Until then this daemon may die before its frame arrives. The caller then repeats the call, and the actor would run it again."""
    worker = find(node)
    node.hear(HOME_A, m.LedgerUpdated(1), alive())
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(), call(1))))
    node.hear(HOME_A, m.CallsEnded(3, ((CALL, worker, m.OK, (b"value",), ()),), ()))
    node.told(HOME_A)
    (first,) = requests(node, worker)
    node.hear(HOME_A, m.CallsEnded(4, ((call(1)[0], worker, m.OK, (b"value",), ()),), ()))
    assert node.told_at_last(HOME_A) == [m.EndsReceived(4, ((worker, 0),))], "what others wait for is not held up"
    assert requests(node, worker) == [], "one request at a time"
    node.send(CLIENT + worker, m.Receipt(first.token))
    assert node.told(HOME_A) == []
    (second,) = [each for each in node.sent_to(CLIENT + worker) if isinstance(each, m.RequestReceipt)]
    assert node.told_at_last(HOME_A) == [m.EndsReceived(3, ((worker, 3),))]
    node.send(CLIENT + worker, m.Receipt(first.token))
    assert node.told_at_last(HOME_A) == [], "that was the receipt for the first one"
    node.send(CLIENT + worker, m.Receipt(second.token))
    assert node.told_at_last(HOME_A) == [m.EndsReceived(4)]


def test_a_caller_that_exits_lacks_no_outcomes(node: Nodes) -> None:
    worker = find(node)
    node.hear(HOME_A, m.LedgerUpdated(1), alive())
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(),)))
    node.hear(HOME_A, m.CallsEnded(1, ((CALL, worker, m.OK, (b"value",), ()),), ()))
    requests(node, worker)
    node.told(HOME_A)
    died(node, worker, None)
    node.told_at_last(HOME_A)
    assert not node.scheduler.receipts.owed
    assert not node.scheduler.tables.nodes[HOME_A].inbox.callers


def test_an_outcome_with_refs_is_acknowledged_once_they_are_held_here(node: Nodes) -> None:
    worker = find(node)
    node.hear(HOME_A, m.LedgerUpdated(1), alive())
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(),)))
    node.told(HOME_A)
    node.hear(HOME_A, m.CallsEnded(1, ((CALL, worker, m.OK, (b"value",), ((OTHER,),)),), ((OTHER, HOME_C),)))
    assert m.Returned(((CALL, m.OK, (None,)),)) in node.sent_to(CLIENT + worker)
    assert node.told(HOME_A) == [], "the actor's node releases what is inside with this acknowledgement"
    (borrow,) = node.told(HOME_C)
    confirm(node, worker)
    assert node.told_at_last(HOME_A) == []
    node.hear(HOME_C, m.LedgerUpdated(borrow.number))
    assert node.told(HOME_A) == [m.EndsReceived(1)]


def test_a_call_that_comes_again_goes_ahead_of_the_word_that_its_caller_has_the_outcome() -> None:
    """Else the actor forgets the outcome and runs the call again. Here the call waits until this restarted daemon knows all homes."""
    node = Restarted()
    members(node, 1, HOME_A, HOME_C)
    node.rejoin((), held=(m.Hold((OTHER,)), m.FindActors((FAR,))))
    for other in (HOME_A, HOME_C):
        node.send(LOCAL_SCHEDULER + other, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon 1", OWN))
        node.send(LOCAL_SCHEDULER + other, m.Ready())
    searches = {to[1:]: message.number for to, message in node.take(m.UpdateLedger) if held(message)}
    node.send(LOCAL_SCHEDULER + HOME_A, alive())
    node.send(CLIENT + DRIVER, m.Call(FAR, 7, (call(),)))
    node.send(LOCAL_SCHEDULER + HOME_A, m.CallsEnded(1, ((CALL, DRIVER, m.OK, (b"value",), ()),), ()))
    node.now += RECEIPTS_WITHIN
    node.turn()
    ((_, request),) = node.take(m.RequestReceipt)
    node.send(CLIENT + DRIVER, m.Receipt(request.token))
    for _ in range(2):
        node.now += ACKNOWLEDGE_AFTER
        node.turn()
    for other, number in searches.items():
        node.send(LOCAL_SCHEDULER + other, found(number, (OTHER,) if other == HOME_C else ()))
    for _ in range(2):
        node.now += ACKNOWLEDGE_AFTER
        node.turn()
    told = [message for to, message in node.sent if to[1:] == HOME_A]
    ends = [each for each in told if isinstance(each, m.EndsReceived) and not each.callers]
    (relayed,) = [each for each in told if isinstance(each, m.RelayedCalls)]
    assert ends
    assert told.index(relayed) < told.index(ends[0])


def begin_next_daemon(node: Nodes) -> None:
    """Node A's daemon is new, and registers."""
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon.2"))
    told = node.told(HOME_A)
    assert m.FindActors((FAR,)) in told
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon.2", node.scheduler.address[1:]), m.Ready())
    node.hear(HOME_A, *(m.LedgerUpdated(each.number) for each in told if held(each)))


def test_calls_come_again_before_an_outcome_is_acknowledged_that_the_next_daemon_has_sent(node: Nodes) -> None:
    worker = find(node)
    node.hear(HOME_A, m.LedgerUpdated(1), alive())
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(), call(1))))
    node.sent.clear()
    begin_next_daemon(node)
    assert m.RepeatCalls(FAR) in node.sent_to(CLIENT + worker)
    node.hear(HOME_A, m.CallsEnded(1, ((CALL, worker, m.OK, (b"value",), ()),), ()))
    assert node.told_at_last(HOME_A) == [], "the caller is asked first"
    assert node.told_at_last(HOME_A) == [m.EndsReceived(1, ((worker, 0),))], "its call may be on its way again, and the actor is to know it"
    node.send(CLIENT + worker, m.CallsRepeated(FAR))
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(), call(1))))
    confirm(node, worker, 0.0)
    relayed, received = node.told_at_last(HOME_A)
    assert (relayed.rows, received) == ((call(), call(1)), m.EndsReceived(1))


def test_later_calls_do_not_overtake_calls_that_were_lost_with_a_daemon(node: Nodes) -> None:
    """They were on their way as their caller was to repeat those."""
    worker = find(node)
    node.hear(HOME_A, m.LedgerUpdated(1), alive())
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(),)))
    begin_next_daemon(node)
    assert m.RepeatCalls(FAR) in node.sent_to(CLIENT + worker)
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(1),)))
    assert [each for each in node.told(HOME_A) if type(each) is m.RelayedCalls] == []
    node.send(CLIENT + worker, m.CallsRepeated(FAR))
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(), call(1))))
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(2),)))
    assert [each.rows for each in node.told(HOME_A) if type(each) is m.RelayedCalls] == [(call(), call(1)), (call(2),)]


def test_nothing_is_expected_of_a_caller_that_exits_before_it_has_repeated_its_calls(node: Nodes) -> None:
    worker = find(node)
    node.hear(HOME_A, m.LedgerUpdated(1), alive())
    begin_next_daemon(node)
    assert node.scheduler.remote_actors._repeating == {(worker, FAR)}
    died(node, worker, None)
    assert not node.scheduler.remote_actors._repeating


def test_a_caller_that_exits_is_gone_on_the_actors_node_too(node: Nodes) -> None:
    worker = find(node)
    node.hear(HOME_A, alive())
    died(node, worker, None)
    assert m.CallerGone(worker) in node.told(HOME_A)


def test_the_death_of_the_actors_home_is_that_of_the_actor(node: Nodes) -> None:
    worker = find(node)
    node.hear(HOME_A, alive())
    node.sent.clear()
    node.table(2, SELF, HOME_C)
    ((row,),) = [each.rows for each in node.sent_to(CLIENT + worker) if type(each) is m.ActorLocations]
    assert row[1] == m.DEAD
    assert "its home, the node where it was made, was drained or has died" in unpack_failure(row[6])[1]


def test_of_a_weak_handle_all_nodes_are_asked_and_one_has_the_actor(node: Nodes) -> None:
    worker = node.delegated(1)
    node.send(CLIENT + worker, m.FindActors((FAR,)))
    assert node.told(HOME_A) == [m.FindActors((FAR,))] == node.told(HOME_C)
    node.hear(HOME_A, m.ActorLocations(((FAR, m.DEAD, b"", 0, True, b"", b"\x93"),)))
    assert not any(type(each) is m.ActorLocations for each in node.sent_to(CLIENT + worker)), "another node may have it"
    node.hear(HOME_C, m.ActorLocations(((FAR, m.ALIVE, HOME_C, 9, False, b"", b""),)))
    assert any(type(each) is m.ActorLocations for each in node.sent_to(CLIENT + worker))


def test_an_actor_that_was_never_called_here_is_killed_at_its_home(node: Nodes) -> None:
    worker = node.delegated(1, FAR + FIRST_RETURN)
    node.send(CLIENT + worker, m.Hold((FAR + FIRST_RETURN,)))
    node.told(HOME_A)
    node.scheduler.step(node.now, CLIENT + worker, m.FindActors((FAR,)))  # Both come in one turn.
    node.send(CLIENT + worker, m.KillActor(FAR, True))
    assert node.told(HOME_A) == [m.FindActors((FAR,)), m.KillActor(FAR, True)]


def test_a_kill_is_repeated_to_a_new_daemon_of_the_home_until_that_life_has_ended(node: Nodes) -> None:
    worker, killed = find(node), m.KillActor(FAR, False)
    node.hear(HOME_A, alive(7))
    node.send(CLIENT + worker, killed)
    assert node.told(HOME_A) == [killed]
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon.2"))
    told = node.told(HOME_A)
    assert told.index(m.FindActors((FAR,))) < told.index(killed)
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon.2", node.scheduler.address[1:]), m.Ready(), alive(8))
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon.3"))
    assert killed not in node.told(HOME_A)


def test_values_of_a_stream_come_from_the_actors_node_and_its_permission_goes_there(node: Nodes) -> None:
    worker, end = find(node), CALL + b"\x40\0\0\0"
    node.hear(HOME_A, alive())
    node.send(CLIENT + worker, m.ExpectResults(((end, FAR, 2),)))
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(stream=2),)))
    assert [each.rows for each in node.told(HOME_A) if type(each) is m.RelayedCalls] == [(call(stream=2),)]
    names = tuple(object_id(CALL, index + 1) for index in range(4))
    node.send(CLIENT + worker, m.Hold(names))
    node.send(CLIENT + worker, m.Fetch(names))
    assert node.told(HOME_A) == [m.AllowYields(CALL, 4)]
    node.hear(HOME_A, m.RelayedYields(1, ((CALL, 0, 0, b"a", ()),), ()))
    assert [each.rows for each in node.sent_to(CLIENT + worker) if type(each) is m.Objects] == [((names[0], m.OK, b"a", ()),)]
    node.hear(HOME_A, m.RelayedYields(2, ((CALL, 0, 2, b"c", ()),), ()))  # Its daemon is new, and had dropped a value.
    rows = [row for each in node.sent_to(CLIENT + worker) if type(each) is m.Objects for row in each.rows]
    assert [(row[0], unpack_failure(row[2])[0]) for row in rows] == [
        (names[1], "ObjectLostError"),
        *((each, "StreamEnded") for each in names[2:]),
    ]
    assert m.AllowYields(CALL, m.CLOSE) in node.told(HOME_A)


@pytest.mark.parametrize("is_read", [False, True])
def test_each_new_daemon_is_told_to_close_a_stream_of_which_values_went_with_the_one_before(node: Nodes, is_read: bool) -> None:
    """It knows the call only when that comes again. The reader has dropped the stream, or learned that values are lost."""
    worker, end, first = find(node), CALL + b"\x40\0\0\0", object_id(CALL, 1)
    node.hear(HOME_A, alive())
    node.send(CLIENT + worker, m.ExpectResults(((end, FAR, 2),)))
    node.send(CLIENT + worker, m.Call(FAR, 7, (call(stream=2),)))
    node.send(CLIENT + worker, m.Hold((first,)))
    node.hear(HOME_A, m.RelayedYields(1, ((CALL, 0, 0, b"a", ()),), ()))
    node.send(CLIENT + worker, m.Release((first,) if is_read else (first, end)))
    for daemon in (b"daemon.2", b"daemon.3"):
        node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, daemon, node.scheduler.address[1:]), m.Ready())
        node.told(HOME_A)
        node.hear(HOME_A, m.RelayedYields(1, ((CALL, 0, 3, None, ()),), ()))  # The actor had yielded three values.
        assert m.AllowYields(CALL, m.CLOSE) in node.told(HOME_A)


def test_an_actor_yields_for_a_caller_on_another_node_until_its_outcome_has_left(node: Nodes) -> None:
    worker = node.actor()
    node.hear(HOME_A, m.RelayedCalls(ACTOR_ID, ATTEMPT, (call(stream=2),), CALLER, ()))
    node.hear(HOME_C, m.AllowYields(CALL, 9))
    node.hear(HOME_A, m.AllowYields(CALL, 9))
    assert m.AllowYields(CALL, 9) in node.sent_to(WORKER + worker)
    node.send(WORKER + worker, m.Yielded(((CALL, 0, 0, b"a", ()),)))
    assert node.told(HOME_A) == [m.RelayedYields(1, ((CALL, 0, 0, b"a", ()),), ())]
    node.send(WORKER + worker, m.Yielded(((CALL, 0, 1, None, ()),)))
    node.report(worker, (CALL, m.OK, (b"1",), ()))
    assert [type(each) for each in node.told(HOME_A)] == [m.RelayedYields, m.CallsEnded]
    assert not node.scheduler.streams.relayed_calls
    node.send(WORKER + worker, m.Yielded(((CALL, 0, 0, b"a", ()),)))
    assert not node.told(HOME_A)


@pytest.mark.parametrize("acknowledged", [False, True])
def test_values_that_a_home_has_released_are_named_lost_behind_what_its_next_daemon_is_repeated(node: Nodes, acknowledged: bool) -> None:
    """Else that daemon takes them for retained here, and whoever wants one fetches again and again."""
    worker = node.actor()
    node.hear(HOME_A, m.RelayedCalls(ACTOR_ID, ATTEMPT, (call(stream=4),), CALLER, ()))
    rows = tuple((CALL, 0, index, (4096 * (index + 1), 300_000), ()) for index in range(2))
    node.send(WORKER + worker, m.Yielded(rows))
    if acknowledged:
        node.hear(HOME_A, m.EndsReceived(1))
    executor = node.delegated(2)
    node.complete(executor, 2, first_attempt(0, 1), m.OK, (40_960, 300_000))
    gone = (object_id(CALL, 1), object_id(task_id(2), 0))
    node.hear(HOME_A, released(gone))
    node.told(HOME_A)
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"daemon 2", node.scheduler.address[1:]), m.Ready())
    told = [each for each in node.told(HOME_A) if isinstance(each, m.RelayedYields | m.Ended | m.CopyLost)]
    assert [type(each) for each in told] == [m.RelayedYields, m.Ended, m.CopyLost, m.CopyLost]
    assert tuple(each.object_id for each in told[2:]) == gone


# -- names --

NAMED = ((ACTOR_CLASS, "A", b"payload", (("actor", b"blueprint"), ("name", "it"))),)


class Member(Nodes):
    """The same node in a cluster whose head is node A, or the node itself."""

    def __init__(self, head: bytes) -> None:
        super().__init__()
        self.head = head
        self.table(2, *self.nodes())
        self.sent.clear()

    def make(self) -> None:
        """The driver makes an actor with a name."""
        self.send(CLIENT + DRIVER, m.Export(NAMED))
        self.submit((ACTOR_ID, ACTOR_CLASS, b"", ()))


@pytest.mark.parametrize("wins", [True, False])
def test_an_actor_with_a_name_is_made_once_the_head_has_given_it_the_name(wins: bool) -> None:
    node = Member(HOME_A)
    node.make()
    assert node.told(HOME_A) == [claimed(ACTOR_ID, "it")]
    assert node.workers() == [] or node.dispatched() == []
    node.hear(HOME_A, decided(ACTOR_ID, wins))
    if wins:
        node.workers()
        assert len(node.dispatched()) == 1
    else:
        ((_, (_, (payload,))),) = node.results().items()
        assert unpack_failure(payload)[0] == "ActorNameTakenError"
        assert node.told(HOME_A) == [freed(ACTOR_ID, "it")]


def test_a_question_about_a_name_waits_until_the_head_has_decided() -> None:
    node = Member(HOME_A)
    node.make()
    node.hear(HOME_C, m.Query(5, "actor", ("it", "")))
    assert node.told(HOME_C) == []
    node.hear(HOME_A, decided(ACTOR_ID, True))
    node.turn()
    assert node.told(HOME_C) == [m.Answer(5, (ACTOR_ID, b"blueprint"), "")]


def test_the_head_gives_a_name_to_the_first_and_again_when_it_is_free() -> None:
    node = Member(SELF)
    for home, actor in ((HOME_A, FAR), (HOME_C, ACTOR_ID), (HOME_A, FAR)):
        node.hear(home, claimed(actor, "it"))
        assert node.told(home) == [decided(actor, actor == FAR)]
    node.hear(HOME_C, freed(FAR, "it"))
    node.hear(HOME_C, claimed(ACTOR_ID, "it"))
    assert node.told(HOME_C) == [decided(ACTOR_ID, False)], "only its home frees a name"
    node.hear(HOME_A, freed(FAR, "it"))
    node.hear(HOME_C, claimed(ACTOR_ID, "it"))
    assert node.told(HOME_C) == [decided(ACTOR_ID, True)]


def test_names_of_a_dead_node_are_free_and_those_of_the_heads_own_actors_are_not() -> None:
    node = Member(SELF)
    node.hear(HOME_A, claimed(FAR, "it"))
    node.table(3, SELF, HOME_C)
    node.make()
    node.told(HOME_C)
    assert node.told(SELF) == []
    node.hear(HOME_C, claimed(FAR, "it"))
    assert node.told(HOME_C) == [decided(FAR, False)]


@pytest.mark.parametrize(
    ("variant", "scripted"),
    [
        ("relayed-outcomes-released-early", test_a_call_of_another_node_reaches_the_actor_and_its_outcome_returns),
        ("relayed-arguments-not-pinned", test_what_a_call_names_is_let_go_with_its_outcome_or_with_the_actors_life),
    ],
)
def test_a_variant_is_caught(variant: str, scripted: Callable[[Nodes], None]) -> None:
    with applied(variant), pytest.raises((AssertionError, LookupError, ValueError)):
        scripted(Nodes())
