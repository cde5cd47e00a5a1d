"""Who is notified when nothing needs an object any more, message by message: by its home, past restarts and deaths of nodes."""

from __future__ import annotations

from typing import Any

import pytest
from client_alone import NAMER, REGISTER, client, sent_by, submit
from ledger_updates import holding, released
from nodes_alone import HOME_A, HOME_C, OTHER, Executor, Nodes, members
from scheduler_alone import DRIVER, OWN, Node, Restarted, died, ref, row

from tests.sim.kinds import Kind
from tests.sim.world import World
from zfabric.machines.client.machine import Client
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, FIRST_RETURN, LOCAL_SCHEDULER

__all__ = ["client"]

WATCH = m.WatchReferences((OTHER,))
NEW = b"\x01daemonN"
PUT_HERE = ref(900, 2**31)


def notified(node: Node, process: bytes = DRIVER) -> list[bytes]:
    """Objects of which a process was notified since the last look."""
    found = [each for to, message in node.take(m.Unreferenced) if to == CLIENT + process for each in message.object_ids]
    node.sent = [(to, message) for to, message in node.sent if not isinstance(message, m.Unreferenced)]
    return found


def of_kind(kind: type[Any], messages: list[Any]) -> list[Any]:
    return [each for each in messages if isinstance(each, kind)]


class Watching(Nodes):
    """A node whose driver holds and watches an object that is at home on node C. The job is at home here."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler.tables.refer(OTHER, HOME_C)
        self.scheduler.step(self.now, CLIENT + DRIVER, m.Hold((OTHER,)))
        self.send(CLIENT + DRIVER, WATCH)


# --- the client -------------------------------------------------------------------------------------------------------------------


def test_a_client_asks_behind_what_makes_the_object_known_and_again_behind_all_that_it_reports(client: Client) -> None:
    called: list[bytes] = []
    task, other = (submit(client) + FIRST_RETURN for _ in range(2))
    client.last.add(task, called.append, True)
    client.last.add(task, called.append, True)
    client.last.add(other, called.append, False)
    assert [type(each) for each in sent_by(client)] == [m.Submit, m.WatchReferences]
    client.rejoin(REGISTER)
    again = sent_by(client)
    assert again.index(m.WatchReferences((task,))) > again.index(m.Ready())
    client.last.on_unreferenced(0.0, b"", m.Unreferenced((task, other)))
    client.last.on_unreferenced(0.0, b"", m.Unreferenced((task,)))
    assert (called, client.last.count) == ([task, task], 1)
    client.rejoin(REGISTER)
    assert of_kind(m.WatchReferences, sent_by(client)) == []


def test_a_result_that_only_its_caller_had_is_shared_and_an_argument_reported(client: Client) -> None:
    argument, actor = NAMER.put(), NAMER.child()
    client.reservations.grants.add(0, 2**20)
    offset = client.reservations.allocate(100_000)
    assert offset is not None
    client.add_argument(argument, (offset, 100_000))
    call = client.calls.call(actor, (NAMER.child(), "method", b""), 1, 0)
    sent_by(client)
    for identifier in (argument, call):
        client.last.add(identifier, print, True)
    messages = sent_by(client)
    assert [type(each) for each in messages if type(each) in (m.Put, m.ExpectResults, m.WatchReferences)][-1] is m.WatchReferences
    assert {type(each) for each in messages} >= {m.Put, m.ExpectResults}


# --- at home ----------------------------------------------------------------------------------------------------------------------


def test_a_task_counts_as_needed_until_it_ends_and_while_others_name_its_value() -> None:
    node = Node()
    node.driver()
    node.submit(row(0), row(1, ref(0)), row(2))
    node.send(CLIENT + DRIVER, m.WatchReferences((ref(0), ref(2))))
    node.send(CLIENT + DRIVER, m.Release((ref(0), ref(2))))
    (worker,) = node.workers()
    assert notified(node) == []
    node.complete(worker, 0, 0, m.OK, b"0")
    node.complete(worker, 2, 0, m.OK, b"2")
    assert notified(node) == [ref(2)]
    node.complete(worker, 1, 0, m.OK, b"1")
    assert notified(node) == [ref(0)]
    assert node.scheduler.references.watches == {}


def test_what_nobody_watches_leaves_by_the_short_way_also_while_others_are_watched() -> None:
    node = Node()
    node.driver()
    node.submit(row(0), row(1))
    node.send(CLIENT + DRIVER, m.WatchReferences((ref(0),)))
    (worker,) = node.workers()
    for number in (0, 1):
        node.complete(worker, number, 0, m.OK, b"value")
    node.scheduler.step(node.now, CLIENT + DRIVER, m.Release((ref(0), ref(1))))
    assert [each.object_id for each in node.scheduler.references.to_collect] == [ref(0)]
    node.turn()
    assert notified(node) == [ref(0)]


def test_a_value_that_was_freed_before_it_was_watched_or_is_unknown_is_answered_at_once() -> None:
    node = Node()
    node.driver()
    node.submit(row(0), row(1, ref(0)))
    (worker,) = node.workers()
    for number in (0, 1):
        node.complete(worker, number, 0, m.OK, b"value")
    node.send(CLIENT + DRIVER, m.Release((ref(0),)))
    assert node.scheduler.tables.find(ref(0)) is not None, "the row that names it is retained"
    node.send(CLIENT + DRIVER, m.WatchReferences((ref(0), ref(7))))
    assert sorted(notified(node)) == [ref(0), ref(7)]


def test_a_home_notifies_another_node_when_the_last_holder_releases() -> None:
    node = Nodes()
    node.send(CLIENT + DRIVER, m.Put(((PUT_HERE, b"value", (), False),)))
    node.hear(HOME_C, holding(1, (PUT_HERE,)))
    node.hear(HOME_A, m.WatchReferences((PUT_HERE,)), m.WatchReferences((PUT_HERE, OTHER)))
    assert of_kind(m.Unreferenced, node.told(HOME_A)) == [m.Unreferenced((OTHER,))], "that one is unknown"
    node.send(CLIENT + DRIVER, m.Release((PUT_HERE,)))
    assert node.told(HOME_A) == []
    node.hear(HOME_C, released((PUT_HERE,)))
    assert node.told(HOME_A) == [m.Unreferenced((PUT_HERE,))]


def test_a_watcher_whose_daemon_is_new_repeats_what_it_watches() -> None:
    node = Nodes()
    node.send(CLIENT + DRIVER, m.Put(((PUT_HERE, b"value", (), False),)))
    node.hear(HOME_A, m.WatchReferences((PUT_HERE,)))
    node.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, NEW, m.ANY_DAEMON))
    assert node.scheduler.references.watches == {}


def test_the_end_of_a_job_is_the_end_of_its_values() -> None:
    node = Nodes()
    node.send(CLIENT + DRIVER, m.Put(((PUT_HERE, b"value", (), False),)))
    node.hear(HOME_C, holding(1, (PUT_HERE,)), m.WatchReferences((PUT_HERE,)))
    node.send(CLIENT + DRIVER, m.Goodbye())
    assert m.Unreferenced((PUT_HERE,)) in node.told(HOME_C)


# --- elsewhere --------------------------------------------------------------------------------------------------------------------


def test_the_home_of_an_object_is_asked_behind_the_hold_and_its_answer_passed_on() -> None:
    node = Watching()
    borrow, asked = node.told(HOME_C)
    assert (borrow, asked) == (holding(borrow.number, (OTHER,)), WATCH)
    node.hear(HOME_C, m.LedgerUpdated(borrow.number))
    node.send(CLIENT + DRIVER, m.Release((OTHER,)))
    assert node.told(HOME_C) == [released((OTHER,))]
    assert notified(node) == [], "others may need it"
    node.hear(HOME_A, m.Unreferenced((OTHER,)))
    assert notified(node) == [], "that node was not asked"
    node.hear(HOME_C, m.Unreferenced((OTHER,)))
    assert notified(node) == [OTHER]
    assert node.told(HOME_A) == []


def test_the_next_daemon_of_a_home_is_asked_again() -> None:
    node = Watching()
    node.told(HOME_C)
    node.hear(HOME_C, m.RegisterNode(m.PROTOCOL_VERSION, NEW, m.ANY_DAEMON))
    again = node.told(HOME_C)
    assert again.index(WATCH) > again.index(m.Ready())


def test_the_home_of_the_job_is_asked_when_the_home_of_an_object_dies() -> None:
    node = Executor()
    worker = node.delegated(1, OTHER, homes=((OTHER, HOME_C),))
    node.send(CLIENT + worker, m.Hold((OTHER,)))
    node.send(CLIENT + worker, WATCH)
    assert WATCH in node.told(HOME_C)
    members(node, 2, HOME_A)
    told = node.told(HOME_A)
    assert told.index(m.WatchReferences((OTHER,), HOME_C)) > told.index(m.Holdings(HOME_C, ((OTHER, -1, b"", ()),), (), (), False))
    node.hear(HOME_A, m.Unreferenced((OTHER,)))
    assert notified(node, worker) == [OTHER]


@pytest.mark.parametrize("held", [False, True])
def test_the_home_of_the_job_answers_once_it_has_taken_over(held: bool) -> None:
    """Also a node that learns of the death before it does."""
    node = Watching()
    if held:
        node.hear(HOME_A, m.Holdings(HOME_C, ((OTHER, -1, b"", ()),), (), (), False), holding(1, (OTHER,)))
    node.hear(HOME_A, m.WatchReferences((OTHER,), HOME_C))
    node.send(CLIENT + DRIVER, m.Release((OTHER,)))
    members(node, 2, HOME_A)
    assert notified(node) == [], "node A may have more of the dead one"
    assert of_kind(m.Unreferenced, node.told(HOME_A)) == []
    node.hear(HOME_A, m.Holdings(HOME_C, (), (), (), True))
    node.turn()
    if held:
        assert notified(node) == []
        node.hear(HOME_A, m.TookOver(HOME_C), released((OTHER,)))
    else:
        node.hear(HOME_A, m.TookOver(HOME_C))
    node.turn()
    assert of_kind(m.Unreferenced, node.told(HOME_A)) == [m.Unreferenced((OTHER,))]


def test_the_home_of_the_job_that_knows_nothing_of_an_object_answers_once_no_node_can_report_it_any_more() -> None:
    node = Nodes()
    node.hear(HOME_A, m.WatchReferences((OTHER,), HOME_C))
    assert node.told(HOME_A) == [], "it may have yet to learn of a death"
    members(node, 2, HOME_A)
    assert of_kind(m.Unreferenced, node.told(HOME_A)) == [], "and then of what the others have"
    node.hear(HOME_A, m.Holdings(HOME_C, (), (), (), True))
    assert m.Unreferenced((OTHER,)) in node.told(HOME_A)


def test_all_nodes_are_asked_about_what_a_restarted_scheduler_does_not_know() -> None:
    node = Restarted()
    members(node, 1, HOME_A, HOME_C)
    node.rejoin()
    node.send(CLIENT + DRIVER, WATCH)
    for home in (HOME_A, HOME_C):
        assert notified(node) == [], "it may be a home itself, as far as it knows"
        node.sent.clear()
        node.send(LOCAL_SCHEDULER + home, m.RegisterNode(m.PROTOCOL_VERSION, NEW, OWN))
        node.send(LOCAL_SCHEDULER + home, m.Ready())
    node.turn()
    assert sorted(to[1:] for to, message in node.sent if message == WATCH) == sorted((HOME_A, HOME_C))
    node.send(LOCAL_SCHEDULER + HOME_A, m.Unreferenced((OTHER,)))
    assert notified(node) == []
    node.send(LOCAL_SCHEDULER + HOME_C, m.Unreferenced((OTHER,)))
    assert notified(node) == [OTHER]


def test_a_process_that_is_gone_is_notified_of_nothing() -> None:
    node = Executor()
    worker = node.delegated(1, OTHER, homes=((OTHER, HOME_C),))
    node.send(CLIENT + worker, m.Hold((OTHER,)))
    node.send(CLIENT + worker, WATCH)
    died(node, worker, 1)
    assert node.scheduler.references.watches == {}
    node.send(CLIENT + worker, WATCH)
    assert node.scheduler.references.watches == {}


# --- worlds -----------------------------------------------------------------------------------------------------------------------

KINDS = [
    Kind(watches=True),
    Kind(actors=True, watches=True),
    Kind(nodes=3, watches=True),
    Kind(nodes=3, actors=True, watches=True),
    Kind(nodes=3, restarts=True, watches=True),
    Kind(nodes=3, elsewhere=True, watches=True),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: " ".join(kind.arguments()))
def test_in_worlds_a_process_is_notified_once_no_process_has_a_ref_and_of_all_that_it_watches(kind: Kind) -> None:
    called = 0
    for seed in range(4):
        outcome = World(seed, kind).run()
        assert outcome.failure == "", seed
        called += outcome.states["last ref dropped"]
    assert called > 10
