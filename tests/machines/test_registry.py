"""The registry and the members of nodes: who joins, whose lease ends, and that a death is durable before any node is notified."""

from __future__ import annotations

from typing import Any

import pytest

from zfabric.adapters.memory_journal import MemoryJournal
from zfabric.config import Config
from zfabric.machines.control_store import ControlStore
from zfabric.machines.member import Member
from zfabric.machines.registry import Registry
from zfabric.protocol import messages as m
from zfabric.protocol.effects import ConnectNodes, EndNode, Freeze, RecordLease, Send, Silence, Store
from zfabric.protocol.ids import CONTROL_STORE, HEAD, JOINER, LOCAL_SCHEDULER, MEMBER, REGISTRY, SHELL
from zfabric.protocol.messages import PROTOCOL_VERSION

OWN = b"daemon01"
NODE_A, NODE_B, NODE_C = b"\x01nodeA..", b"\x01nodeB..", b"\x01nodeC.."
VERSIONS = (("zfabric", "1.0"), ("python", "3.11"))
LEASE = 10.0


def join(node: bytes, number: int = 0, **changes: Any) -> m.Join:
    """The request of a node to join."""
    message = m.Join(
        PROTOCOL_VERSION, node, number, node[1:6].decode(), 1, node * 5, "tcp://1.2.3.4:5", "", (("CPU", 10_000),), (), VERSIONS
    )
    return message._replace(**changes)


def join_row(node: bytes, number: int) -> m.Row:
    """The row of ``NodeTable`` for such a node."""
    return (node, number, node[1:6].decode(), "tcp://1.2.3.4:5", "", node * 5, (("CPU", 10_000),), (), 1)


class Head:
    """A registry and its control store, over a journal that survives both."""

    def __init__(self, journal: MemoryJournal | None = None, daemons: int = 0) -> None:
        self.journal = journal or MemoryJournal()
        config = Config.of({"node_lease": LEASE})
        self.control = ControlStore(CONTROL_STORE + OWN, config, self.journal)
        self.registry = Registry(REGISTRY + OWN, NODE_A, config, CONTROL_STORE + OWN, VERSIONS, daemons)
        self.now = 100.0
        self.full = False
        self.sent: list[tuple[bytes, Any]] = []
        self.turn()

    def say(self, node: bytes, message: m.Message) -> list[Any]:
        """Have a member send the registry a message; return what it is sent in this turn."""
        before = len(self.sent)
        self.registry.step(self.now, MEMBER + node, message)
        self.turn()
        return [message for to, message in self.sent[before:] if to == MEMBER + node]

    def wait(self, seconds: float) -> None:
        """Let time pass as a healthy daemon does: in small steps."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 0.25)
            self.registry.tick(self.now)
            self.control.tick(self.now)
            self.turn()

    def turn(self) -> None:
        """Deliver between the two machines, and commit, until nothing is left."""
        agenda = [self.registry, self.control]
        while agenda:
            machine = agenda.pop()
            for effect in machine.take_effects(self.now):
                if isinstance(effect, Send) and effect.to == CONTROL_STORE + OWN:
                    self.control.step(self.now, REGISTRY + OWN, effect.message)
                    agenda.append(self.control)
                elif isinstance(effect, Send) and effect.to == REGISTRY + OWN:
                    self.registry.step(self.now, CONTROL_STORE + OWN, effect.message)
                    agenda.append(self.registry)
                elif isinstance(effect, Send):
                    self.sent.append((effect.to, effect.message))
                elif isinstance(effect, Store):
                    error = "no space left on device" if self.full else ""
                    if not error:
                        self.journal.commit([effect], lambda text: None)
                    self.control.step(self.now, SHELL + OWN, m.Committed(effect.sequence, error))
                    agenda.append(self.control)
            machine.check_invariants()

    def table(self) -> set[bytes]:
        """The nodes of the last table that was sent."""
        tables = [message for _, message in self.sent if isinstance(message, m.NodeTable)]
        return {row[0] for row in tables[-1].rows}


@pytest.fixture
def head() -> Head:
    head = Head()
    head.say(NODE_A, join(NODE_A))
    return head


# --- the registry -------------------------------------------------------------------------------------------------------------


def test_a_node_gets_a_number_and_all_nodes_a_new_table(head: Head) -> None:
    joined, table = head.say(NODE_B, join(NODE_B))
    assert joined == m.Joined(NODE_A, 2, LEASE)
    assert [row[0] for row in table.rows] == [NODE_A, NODE_B]
    assert head.sent[-2:] == [(MEMBER + NODE_A, table), (MEMBER + NODE_B, table)]
    assert head.say(NODE_B, join(NODE_B))[0] == joined, "the answer may have been lost"


def test_a_joiner_receives_the_table_where_it_asked_and_can_claim_no_row_of_another(head: Head) -> None:
    joiner = JOINER + b"12345"  # A connection with the key of the cluster's key file, which proves no more.
    joined, table = head.say(joiner, join(NODE_B))
    assert joined == m.Joined(NODE_A, 2, LEASE)
    assert [row[0] for row in table.rows] == [NODE_A, NODE_B]
    assert [to for to, message in head.sent if message == table] == [MEMBER + NODE_A, MEMBER + NODE_B, MEMBER + joiner]
    claimed, table = head.say(joiner, join(NODE_B, address="tcp://6.6.6.6:6"))
    assert claimed == joined, "the answer may have been lost"
    assert table.rows[1] == join_row(NODE_B, 2)
    assert head.say(joiner, m.RenewLease(NODE_B, 1)) == []


def test_a_node_that_does_not_renew_its_lease_is_dead_once_that_is_durable(head: Head) -> None:
    head.say(NODE_B, join(NODE_B))
    for _ in range(5):
        head.wait(LEASE / 2)
        assert head.say(NODE_B, m.RenewLease(NODE_B, 7)) == [m.LeaseRenewed(7)]
    head.full = True
    head.wait(LEASE + 1)
    assert head.table() == {NODE_A, NODE_B}, "a death that is not durable is sent to nobody"
    assert head.say(NODE_B, m.RenewLease(NODE_B, 8)) == [], "and it is not taken back"
    head.full = False
    head.wait(2.0)
    assert head.table() == {NODE_A}
    assert type(head.say(NODE_B, m.RenewLease(NODE_B, 9))[0]) is m.Expelled


@pytest.mark.parametrize("restarts", [False, True])
def test_a_dead_node_does_not_join_again_though_it_missed_that_it_had_joined(head: Head, restarts: bool) -> None:
    """Its request came late, or it has asked again since the answer was lost. Others have it as dead, under the same id."""
    head.say(NODE_B, join(NODE_B))
    head.wait(LEASE + 1)
    assert head.table() == {NODE_A}
    if restarts:
        head = Head(head.journal.crash(), daemons=1)
    for source in (NODE_B, JOINER + b"12345"):
        assert [type(each) for each in head.say(source, join(NODE_B))] == [m.Expelled]
    assert type(head.say(NODE_C, join(NODE_C))[0]) is m.Joined
    assert head.table() == {NODE_A, NODE_C}


def test_the_head_needs_no_lease(head: Head) -> None:
    head.wait(10 * LEASE)
    assert head.say(NODE_A, m.RenewLease(NODE_A, 1)) == [m.LeaseRenewed(1)]


def test_a_registry_that_stalls_declares_nobody_dead(head: Head) -> None:
    head.say(NODE_B, join(NODE_B))
    head.now += 3 * LEASE  # Stopped and continued: renewals lie unread in its sockets.
    head.registry.tick(head.now)
    head.turn()
    assert head.table() == {NODE_A, NODE_B}
    head.wait(LEASE + 1)
    assert head.table() == {NODE_A}, "a full lease later it is as always"


def test_a_head_that_is_started_again_on_its_store_begins_a_new_cluster(head: Head) -> None:
    head.say(NODE_B, join(NODE_B))
    later = Head(head.journal.crash())
    _, table = later.say(NODE_A, join(NODE_A))
    assert [row[:2] for row in table.rows] == [(NODE_A, 3)], "numbers are not given twice"
    assert type(later.say(NODE_B, m.RenewLease(NODE_B, 1))[0]) is m.Expelled


def test_a_registry_that_restarts_knows_its_nodes_and_gives_no_number_twice(head: Head) -> None:
    head.say(NODE_B, join(NODE_B))
    head.say(NODE_C, join(NODE_C))
    version = max(message.version for _, message in head.sent if isinstance(message, m.NodeTable))
    head.wait(LEASE / 2)
    head.say(NODE_B, m.RenewLease(NODE_B, 1))
    head.wait(LEASE / 2 + 1)
    assert head.table() == {NODE_A, NODE_B}
    later = Head(head.journal.crash(), daemons=1)
    assert later.say(NODE_B, m.RenewLease(NODE_B, 2)) == [m.LeaseRenewed(2)]
    joined, table = later.say(NODE_B, join(NODE_B, number=2))
    assert joined.number == 2
    assert table.version > version
    assert later.say(b"\x01nodeD..", join(b"\x01nodeD.."))[0].number == 4
    assert type(later.say(NODE_C, join(NODE_C, number=3))[0]) is m.Expelled, "it was dead before: it must not come back"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protocol": PROTOCOL_VERSION + 1}, "protocol"),
        ({"versions": (("python", "3.12"),)}, "python 3.11, the node 3.12"),
        ({"versions": (("zfabric", "0.9"),)}, "zfabric 1.0, the node 0.9"),
    ],
)
def test_a_node_that_does_not_fit_is_refused(head: Head, changes: dict[str, Any], words: str) -> None:
    (refused,) = head.say(NODE_B, join(NODE_B)._replace(**changes))
    assert type(refused) is m.Refused
    assert words in refused.text


def test_two_nodes_of_one_machine_have_names_of_their_own(head: Head) -> None:
    for node in (NODE_B, NODE_C, NODE_B):
        tables = [each for each in head.say(node, join(node)._replace(name="host")) if isinstance(each, m.NodeTable)]
    assert [row[2] for row in tables[-1].rows] == ["nodeA", "host", "host-3"]


def test_no_node_speaks_for_another(head: Head) -> None:
    head.say(NODE_B, join(NODE_B))
    for message in (join(NODE_C), m.RenewLease(NODE_B, 1), m.Leave(NODE_B, "")):
        assert head.say(b"\x01nodeX..", message) == []
    assert head.table() == {NODE_A, NODE_B}
    assert head.registry.statistics()["refused"] == 3


def test_another_node_with_the_same_id_is_refused(head: Head) -> None:
    head.say(NODE_B, join(NODE_B))
    (refused,) = head.say(NODE_B, join(NODE_B, key=b"another key"))
    assert "this id" in refused.text


def test_a_full_disk_lets_no_node_join(head: Head) -> None:
    head.full = True
    (refused,) = head.say(NODE_B, join(NODE_B))
    assert (refused.kind, head.table()) == ("OutOfDiskError", {NODE_A})
    head.full = False
    head.wait(10.0)  # The control store tries again now and then.
    assert any(type(each) is m.Joined for each in head.say(NODE_B, join(NODE_B)))


def test_a_node_that_leaves_is_gone_at_once(head: Head) -> None:
    head.say(NODE_B, join(NODE_B))
    head.say(NODE_B, m.Leave(NODE_B, "stopped"))
    assert head.table() == {NODE_A}


# --- the member ---------------------------------------------------------------------------------------------------------------


def member() -> Member:
    """The member of node B."""
    return Member(MEMBER + OWN, LOCAL_SCHEDULER + OWN, join(NODE_B))


def step(machine: Member, now: float, message: m.Message | None = None) -> list[Any]:
    """Deliver a message, or let time pass; return the effects."""
    if message is None:
        machine.tick(now)
    else:
        machine.step(now, REGISTRY + NODE_A, message)
    effects = machine.take_effects(now)
    machine.check_invariants()
    return effects


def test_a_member_asks_until_it_is_answered_and_then_renews_its_lease() -> None:
    machine = member()
    assert machine.take_effects(0.0) == [Send(REGISTRY + HEAD, join(NODE_B))]
    assert step(machine, 0.5) == []
    assert step(machine, 1.0) == [Send(REGISTRY + HEAD, join(NODE_B))]
    step(machine, 1.1, m.Joined(NODE_A, 2, LEASE))
    assert machine.number == 2
    assert step(machine, 1.1) == [Send(REGISTRY + NODE_A, m.RenewLease(NODE_B, 1))]
    assert step(machine, 1.2) == []
    assert step(machine, 3.7) == [Send(REGISTRY + NODE_A, m.RenewLease(NODE_B, 2))]


def test_a_node_that_asks_to_join_an_ending_cluster_is_refused() -> None:
    """Also one whose row is being written: no notice of the end would reach it, and it would wait for its lease."""
    head = Head()
    head.say(NODE_A, join(NODE_A))
    head.registry.step(head.now, MEMBER + NODE_B, join(NODE_B))
    head.registry.end_cluster("it was stopped")
    head.turn()
    refused = m.Refused("ConnectionLostError", "the cluster ends: it was stopped")
    assert [message for to, message in head.sent if to == MEMBER + NODE_B] == [refused]
    assert head.say(NODE_C, join(NODE_C)) == [refused]
    assert not head.registry.ending


def test_a_lease_counts_from_its_request_and_a_node_without_one_is_silent_and_then_ends() -> None:
    machine = member()
    machine.take_effects(0.0)
    step(machine, 4.0, m.Joined(NODE_A, 2, LEASE))
    assert Silence(True) not in step(machine, 7.9)
    assert Silence(True) in step(machine, 8.0), "the first request was sent at 0"
    assert Freeze(True) not in step(machine, 8.9)
    assert Freeze(True) in step(machine, 9.0), "before the registry declares it dead"
    assert not any(isinstance(each, EndNode) for each in step(machine, 19.9))
    assert any(isinstance(each, EndNode) for each in step(machine, 20.0))
    assert machine.next_deadline() is None


@pytest.mark.parametrize("message", [None, m.Expelled("dead")])
def test_a_node_that_ends_stops_its_workers_first(message: m.Expelled | None) -> None:
    """All its processes may have been stopped: then what they ran runs elsewhere by now, and it takes a moment to end."""
    machine = member()
    machine.take_effects(0.0)
    step(machine, 0.0, m.Joined(NODE_A, 2, LEASE))
    effects = step(machine, 2 * LEASE if message is None else 1.0, message)
    order = [each for each in effects if isinstance(each, Freeze | EndNode)]
    assert order[0] == Freeze(True)
    assert isinstance(order[1], EndNode)


def test_a_node_goes_on_where_it_was_when_the_head_was_held_up() -> None:
    machine = member()
    machine.take_effects(0.0)
    step(machine, 0.0, m.Joined(NODE_A, 2, LEASE))
    for now in (0.0, 8.0, 9.0, 15.0):
        step(machine, now)
    assert step(machine, 15.1, m.LeaseRenewed(machine._number)) == [
        RecordLease(15.0 + LEASE),
        Freeze(False),
        Silence(False),
    ]


def test_a_late_answer_renews_only_what_its_request_can_have_renewed() -> None:
    machine = member()
    machine.take_effects(0.0)
    step(machine, 0.0, m.Joined(NODE_A, 2, LEASE))
    step(machine, 0.0)  # The first request for a renewal is sent now.
    assert Silence(True) in step(machine, 8.0)
    assert step(machine, 8.1, m.LeaseRenewed(1)) == [RecordLease(LEASE)], "sent at 0: that lease is over at 10 as before"
    assert step(machine, 8.2, m.LeaseRenewed(2)) == [RecordLease(8.0 + LEASE), Silence(False)], "sent at 8"


def test_a_new_node_passes_on_no_table_before_it_has_joined() -> None:
    """It would act without a lease: it may be dead by then, and would not know."""
    machine = member()
    machine.take_effects(0.0)
    assert step(machine, 0.0, m.NodeTable(3, (join_row(NODE_A, 1), join_row(NODE_B, 2)), NODE_A)) == []
    step(machine, 0.0, m.Joined(NODE_A, 2, LEASE))
    table = m.NodeTable(4, (join_row(NODE_A, 1), join_row(NODE_B, 2)), NODE_A)
    assert step(machine, 0.0, table) == [ConnectNodes(*table), Send(LOCAL_SCHEDULER + OWN, table)]


def test_tables_are_passed_on_and_older_ones_are_not() -> None:
    machine = member()
    machine.take_effects(0.0)
    step(machine, 0.5, m.Joined(NODE_A, 2, LEASE))
    newer, older = m.NodeTable(5, (("row",),), NODE_A), m.NodeTable(4, (), NODE_A)
    assert step(machine, 1.0, newer) == [ConnectNodes(5, (("row",),), NODE_A), Send(LOCAL_SCHEDULER + OWN, newer)]
    assert step(machine, 1.0, older) == []


@pytest.mark.parametrize("message", [m.Expelled("dead"), m.Refused("VersionMismatchError", "python 3.11, the node 3.12")])
def test_a_node_that_may_not_be_there_ends(message: Any) -> None:
    machine = member()
    machine.take_effects(0.0)
    effects = step(machine, 1.0, message)
    assert [each.reason for each in effects if isinstance(each, EndNode)] == [
        message.reason if isinstance(message, m.Expelled) else f"{message.kind}: {message.text}"
    ]


def test_a_node_that_finds_no_head_ends() -> None:
    machine = member()
    machine.take_effects(0.0)
    assert any(isinstance(each, EndNode) for each in step(machine, 10.0))


def test_a_restarted_daemon_begins_with_the_last_table_and_is_silent_until_the_registry_answers() -> None:
    table = m.NodeTable(7, (("row",),), NODE_A)
    machine = Member(MEMBER + OWN, LOCAL_SCHEDULER + OWN, join(NODE_B, number=2), table, LEASE, LEASE)
    asked = Send(REGISTRY + NODE_A, join(NODE_B, number=2))
    assert machine.take_effects(0.0) == [Silence(True), ConnectNodes(*table), Send(LOCAL_SCHEDULER + OWN, table), asked]
    assert step(machine, 4.0) == [asked]
    assert step(machine, 4.1, m.Joined(NODE_A, 2, LEASE))[1:3] == [Freeze(False), Silence(False)], "the daemon before may have stopped them"


def test_a_restarted_daemon_ends_its_node_if_the_registry_does_not_answer_within_two_leases() -> None:
    table = m.NodeTable(7, (("row",),), NODE_A)
    machine = Member(MEMBER + OWN, LOCAL_SCHEDULER + OWN, join(NODE_B, number=2), table, LEASE, LEASE)
    machine.take_effects(0.0)
    assert not any(isinstance(each, EndNode) for each in step(machine, 2 * LEASE - 0.1))
    assert any(isinstance(each, EndNode) for each in step(machine, 2 * LEASE))


def test_a_restarted_daemon_stops_the_workers_when_the_one_before_would_have() -> None:
    """It is given what the one before recorded: its lease counts from the same request."""
    before = member()
    before.take_effects(0.0)
    (recorded,) = [each.until for each in step(before, 3.0, m.Joined(NODE_A, 2, LEASE)) if isinstance(each, RecordLease)]
    step(before, 4.0)
    assert RecordLease(4.0 + LEASE) in step(before, 5.0, m.LeaseRenewed(before._number)), "a lease counts from its request"
    machine = Member(MEMBER + OWN, LOCAL_SCHEDULER + OWN, join(NODE_B, number=2), m.NodeTable(7, (("row",),), NODE_A), recorded, LEASE)
    machine.take_effects(8.0)
    assert Freeze(True) not in step(machine, 8.9)
    assert machine.next_deadline() == 9.0
    assert Freeze(True) in step(machine, 9.0)
    assert Freeze(True) not in step(machine, 9.1)
    effects = step(machine, 9.2, m.Joined(NODE_A, 2, LEASE))
    assert [each for each in effects if isinstance(each, Freeze)] == [Freeze(False)], "the head was only held up"


# --- pairs of nodes -----------------------------------------------------------------------------------------------------------


def members(head: Head, *nodes: bytes) -> None:
    """Have nodes join."""
    for node in nodes:
        head.say(node, join(node))
    head.sent.clear()


def probed(head: Head, complainer: bytes, of: bytes, **unreached: tuple[bytes, ...]) -> list[bytes]:
    """Have a node complain of another one, and all living nodes answer the probe. Return who is dead then."""
    before = head.registry._living().keys()
    head.say(complainer, m.Complain((of,)))
    probes = {to[1:]: message.number for to, message in head.sent if isinstance(message, m.ProbePairs)}
    head.sent.clear()
    assert probes.keys() == before, "every node probes its pairs"
    for node, number in probes.items():
        head.say(node, m.PairsProbed(number, unreached.get(node[5:6].decode(), ())))
    return expelled(head, before)


def expelled(head: Head, before: Any) -> list[bytes]:
    """Return who ends: it is told at once, and is dead when its lease has run out. The others renew theirs."""
    told = sorted({to[1:] for to, message in head.sent if isinstance(message, m.Expelled)})
    assert before <= head.registry._living().keys(), "it may act as long as it has a lease"
    for number in range(6):
        for node in before - {NODE_A}:
            renewed = [type(each) for each in head.say(node, m.RenewLease(node, number))]
            assert renewed[:1] == [m.Expelled if node in told else m.LeaseRenewed]
        head.wait(2.0)
    assert sorted(before - head.registry._living().keys()) == told
    return told


def test_of_nodes_that_cannot_reach_each_other_the_one_goes_that_most_cannot_reach(head: Head) -> None:
    """Whoever complains first: here it is a healthy node, of a healthy one that it does not reach either."""
    members(head, NODE_B, NODE_C)
    assert probed(head, NODE_C, NODE_B, A=(NODE_B,), B=(NODE_A, NODE_C), C=(NODE_B,)) == [NODE_B]
    told = [message.reason for _, message in head.sent if isinstance(message, m.Expelled)]
    assert told[0] == "2 of 2 other nodes cannot reach it, or it them, and no node is worse connected"


def test_of_two_nodes_that_are_as_badly_connected_the_younger_goes(head: Head) -> None:
    members(head, NODE_B, NODE_C)
    assert probed(head, NODE_B, NODE_C, B=(NODE_C,)) == [NODE_C], "one that reaches others, and is not reached"


def test_the_head_is_not_ended_and_nobody_else_for_it(head: Head) -> None:
    members(head, NODE_B, NODE_C)
    assert probed(head, NODE_B, NODE_A, B=(NODE_A,), C=(NODE_A,)) == []
    assert probed(head, NODE_B, NODE_A, B=(NODE_A,)) == [NODE_B], "it is as badly connected as the head, and younger"


def test_pairs_that_have_recovered_cost_nobody_its_life(head: Head) -> None:
    members(head, NODE_B, NODE_C)
    assert probed(head, NODE_B, NODE_C) == []


def test_a_node_that_does_not_answer_a_probe_is_not_waited_for(head: Head) -> None:
    members(head, NODE_B, NODE_C)
    head.say(NODE_B, m.Complain((NODE_C,)))
    head.say(NODE_B, m.Complain((NODE_C,)))
    (number,) = {message.number for _, message in head.sent if isinstance(message, m.ProbePairs)}
    head.say(NODE_B, m.PairsProbed(number, (NODE_C,)))
    head.say(NODE_A, m.PairsProbed(number - 1, (NODE_B,)))
    for _ in range(6):
        head.wait(4.0)
        for node in (NODE_B, NODE_C):
            head.say(node, m.RenewLease(node, 1))
    assert NODE_C not in head.registry._acting(), "there was time enough"
    head.say(NODE_A, m.PairsProbed(number, (NODE_B,)))
    head.wait(2.0)
    assert not head.registry._acting().keys() ^ {NODE_A, NODE_B}, "an answer that is late counts no more"


def test_a_registry_that_stalls_ends_no_node_for_what_it_has_been_told_before(head: Head) -> None:
    members(head, NODE_B, NODE_C)
    head.say(NODE_B, m.Complain((NODE_C,)))
    head.now += 60.0
    head.wait(0.5)
    (number,) = {message.number for _, message in head.sent if isinstance(message, m.ProbePairs)}
    for node in (NODE_A, NODE_B, NODE_C):
        head.say(node, m.PairsProbed(number, (NODE_C,)))
    assert len(head.registry._acting()) == 3


def test_complaints_of_strangers_and_of_dead_nodes_are_ignored(head: Head) -> None:
    members(head, NODE_B)
    head.say(NODE_C, m.Complain((NODE_B,)))
    head.say(NODE_B, m.Complain((NODE_C,)))
    assert not [message for _, message in head.sent if isinstance(message, m.ProbePairs)]


class Joined:
    """The member of a node that has joined. Its lease is renewed as soon as it asks."""

    def __init__(self) -> None:
        self.member = member()
        self.now = 100.0
        self.sent: list[tuple[bytes, Any]] = []
        self.member.take_effects(self.now)
        self.member.step(self.now, REGISTRY + NODE_A, m.Joined(NODE_A, 2, LEASE))

    def take(self) -> list[tuple[bytes, Any]]:
        """Take what it has sent, besides what concerns the lease."""
        for effect in self.member.take_effects(self.now):
            if isinstance(effect, Send) and isinstance(effect.message, m.RenewLease):
                self.member.step(self.now, REGISTRY + NODE_A, m.LeaseRenewed(effect.message.number))
            elif isinstance(effect, Send):
                self.sent.append((effect.to, effect.message))
        sent, self.sent = self.sent, []
        return sent

    def complaints(self) -> list[m.Message]:
        """Take its complaints, which go to the registry."""
        sent = self.take()
        assert {to for to, _ in sent} <= {REGISTRY + NODE_A}
        return [message for _, message in sent]

    def wait(self, seconds: float) -> None:
        """Let time pass; it is asked when it wants to be."""
        until = self.now + seconds
        while (due := self.member.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.member.tick(self.now)
            self.sent = self.take()
        self.now = until


def test_a_member_complains_of_nodes_out_of_reach_until_they_are_reached() -> None:
    node = Joined()
    node.member.step(node.now, SHELL + OWN, m.Unreachable((NODE_B,)))
    node.wait(29.0)
    node.member.step(node.now, SHELL + OWN, m.Unreachable((NODE_B, NODE_C)))
    node.wait(2.0)
    assert node.complaints() == [m.Complain((NODE_B,))]
    node.wait(30.0)
    assert node.complaints() == [m.Complain((NODE_B, NODE_C))]
    node.member.step(node.now, SHELL + OWN, m.Unreachable(()))
    node.wait(60.0)
    assert node.complaints() == []
    node.member.step(node.now, LOCAL_SCHEDULER + OWN, m.PeersSilent((NODE_C,)))
    assert node.complaints() == [m.Complain((NODE_C,))]


def test_a_member_answers_a_probe_for_its_agent_and_for_itself() -> None:
    node = Joined()
    node.member.step(node.now, SHELL + OWN, m.Unreachable((NODE_B,)))
    node.wait(11.0)
    node.member.step(node.now, SHELL + OWN, m.Unreachable((NODE_B, NODE_C)))
    node.member.step(node.now, REGISTRY + NODE_A, m.ProbePairs(7))
    assert (LOCAL_SCHEDULER + OWN, m.ProbePairs(7)) in node.take()
    node.member.step(node.now, LOCAL_SCHEDULER + OWN, m.PairsProbed(6, ()))
    node.member.step(node.now, LOCAL_SCHEDULER + OWN, m.PairsProbed(7, (NODE_A,)))
    assert [message for _, message in node.take()] == [m.PairsProbed(7, (NODE_A, NODE_B))], (
        "the other one is out of reach for a moment only"
    )
    node.member.step(node.now, REGISTRY + NODE_A, m.ProbePairs(8))
    node.take()
    node.wait(13.0)
    assert m.PairsProbed(8, (NODE_B, NODE_C)) in [message for _, message in node.take()], "the agent does not answer"
