"""Anything that another node may send, at every machine that takes messages of nodes: refused, counted or processed, never an exception."""

from __future__ import annotations

import os
import typing
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from node_messages import Pool, answers, many, node_messages
from scheduler_alone import ACTOR_CLASS, DRIVER, FUNCTION, JOB, OWN, Node, died, ref, row, task_id

from zfabric.adapters.memory_journal import MemoryJournal
from zfabric.config import Config
from zfabric.machines.control_store import ControlStore
from zfabric.machines.global_scheduler import GlobalScheduler
from zfabric.machines.member import Member
from zfabric.machines.registry import Registry
from zfabric.machines.transfer import TransferAgent
from zfabric.protocol import messages as m
from zfabric.protocol.access import FROM_AGENTS, FROM_NODES
from zfabric.protocol.checks import UNCHECKED, field_checks
from zfabric.protocol.codec import MalformedFrame, decode, encode, salvage
from zfabric.protocol.effects import EndNode
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import (
    CLIENT,
    CONTROL_STORE,
    GLOBAL_SCHEDULER,
    LOCAL_SCHEDULER,
    MEMBER,
    REGISTRY,
    first_attempt,
    job_id,
    object_id,
)
from zfabric.protocol.machine import Machine, Refusal
from zfabric.protocol.options import NODE_ID
from zfabric.protocol.refusals import settle
from zfabric.shell.node import NodeMachines

OF_NODES = sorted({kind.__name__ for kinds in (*FROM_NODES.values(), FROM_AGENTS) for kind in kinds})
"""Messages that another node may send."""
ANY = node_messages()
NODES = (b"thisnode", b"\x02node B.", b"\x02node C.")


class Home(Node):
    """A node of one CPU, which runs a task, among others whose parts the test plays."""

    def __init__(self) -> None:
        super().__init__(cpus=1)
        rows = tuple((node, number, f"n{number}", "", "", b"", (("CPU", 10_000),), (), 0) for number, node in enumerate(NODES, 1))
        self.send(b"N" + OWN, m.NodeTable(1, rows))
        for node in NODES[1:]:
            self.send(LOCAL_SCHEDULER + node, m.RegisterNode(m.PROTOCOL_VERSION, node))
            self.send(LOCAL_SCHEDULER + node, m.Ready())
        self.driver()
        self.submit(row(0))
        (self.worker,) = self.workers()
        self.sent.clear()


# --- the codec --------------------------------------------------------------------------------------------------------------------


def test_every_message_of_a_node_with_ids_or_rows_is_checked() -> None:
    free = {"Query", "Answer", "Found"}  # They are plain data, which their receivers check.
    for name in OF_NODES:
        kinds = set(typing.get_type_hints(m.MESSAGES[name]).values())
        checked = field_checks(m.MESSAGES[name]) != UNCHECKED
        assert checked or name in free or kinds <= {str, bool, int}, f"{name} needs a check: an annotated type"


def test_every_message_of_a_node_has_a_strategy() -> None:
    assert {*ANY} >= {*OF_NODES}


strange = st.one_of(answers, st.binary(max_size=30), st.integers(-(2**63), 2**64 - 1), st.floats())


@settings(max_examples=600, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_a_message_with_one_strange_field_is_malformed_or_a_message(data: st.DataObject) -> None:
    """Somewhere inside of it, at any depth, there is something else."""
    name = data.draw(st.sampled_from(OF_NODES))
    fields = list(data.draw(ANY[name]))

    def spoiled(value: Any) -> Any:
        if isinstance(value, tuple) and value and data.draw(st.booleans()):
            index = data.draw(st.integers(0, len(value) - 1))
            return (*value[:index], spoiled(value[index]), *value[index + 1 :])
        return data.draw(strange)

    frame = msgpack.packb((1, 0, ((b"L", b"L", name, spoiled(tuple(fields))),)))
    try:
        decode(frame)
    except MalformedFrame:
        pass


HOME, OBJECT, TASK = b"homehome", b"o" * 20, b"t" * 16
NO_ENDS = ((), (), (), b"", (), (), b"")
ONE_END = ((0,), (0,), ((b"v",),), TASK, (), (), b"")
ABOUT = (b"job1", "", HOME)
DELEGATE = (ABOUT, (), (), (), (), (), 0)
JOIN = (1, HOME, 0, "name", 1, b"k" * 40, "", "", (), (), ())


def but(fields: tuple[Any, ...], index: int, value: Any) -> tuple[Any, ...]:
    """These fields, with another value in one place."""
    return (*fields[:index], value, *fields[index + 1 :])


MALFORMED = [
    ("RegisterNode", (1, b"short")),
    ("Delegate", but(DELEGATE, 0, ("job1", "", HOME))),
    ("Delegate", but(DELEGATE, 0, (b"job", "", HOME))),
    ("Delegate", but(DELEGATE, 0, (b"job1", "", b"home"))),
    ("Delegate", but(DELEGATE, 0, (b"job1", ""))),
    ("Delegate", but(DELEGATE, 1, ((b"f", "f", b"", ()),))),
    ("Delegate", but(DELEGATE, 2, ((TASK, b"f" * 16, b""),))),
    ("Delegate", but(DELEGATE, 2, ((TASK, b"f" * 16, b"", ()),))),
    ("Delegate", but(DELEGATE, 3, ((0, -1),))),
    ("Delegate", but(DELEGATE, 3, (0,))),
    ("Delegate", but(DELEGATE, 4, ((OBJECT, 7, ()),))),
    ("Delegate", but(DELEGATE, 4, ((OBJECT, (0, 64), ()),))),
    ("Delegate", but(DELEGATE, 4, ((OBJECT, (), ()),))),
    ("Delegate", but(DELEGATE, 4, ((OBJECT, b"", (TASK,)),))),
    ("Delegate", but(DELEGATE, 5, ((OBJECT, b"home"),))),
    ("Delegate", but(DELEGATE, 6, -1)),
    ("StopDelegated", (TASK, 0, "unknown", False)),
    ("StopDelegated", (OBJECT, 0, "cancelled", False)),
    ("StopChildren", ((TASK,), (), "cancelled")),
    ("StopChildren", ((), (OBJECT,), "cancelled")),
    ("StopChildren", ((), (TASK,), "unknown")),
    ("Cancel", ((TASK,), False, False)),
    ("WatchReferences", ((TASK,), b"")),
    ("WatchReferences", ((OBJECT,), b"home")),
    ("Unreferenced", ((TASK,),)),
    ("StopRelayed", (TASK, TASK, "unknown")),
    ("StopRelayed", (TASK, OBJECT, "cancelled")),
    ("ActorExiting", (OBJECT,)),
    ("LifeEnded", (TASK, 0, OBJECT, "", "", (0, 0, 0, 0), "", -1)),
    ("LifeEnded", (TASK, 0, b"", "", "", (0, "9", 0, 0), "", -1)),
    ("RelayedBlock", (TASK, 0, 1, 1, b"", (TASK,), (), ())),
    ("RelayedBlock", (TASK, 0, 1, 1, b"", (), (OBJECT,), ((OBJECT, b"home"),))),
    ("RelayedCheckpoint", (TASK, 0, 1, 1, 2, 2, b"", (), ())),
    ("RelayedCheckpoint", (TASK, 0, 1, 1, 0, 1, b"", (TASK,), ())),
    ("LogRecorded", (TASK, -1, 1)),
    ("LogRecorded", (TASK, 0, -1)),
    ("ReadLog", (TASK, 0, "task", b"")),
    ("ReadLog", (OBJECT, 0, "log", b"")),
    ("LogPage", (TASK, 0, "log", b"", ((b"key",),), False, (), ())),
    ("LogPage", (TASK, 0, "log", b"", (), False, (TASK,), ())),
    ("RelayedCalls", (TASK, 0, ((OBJECT, "method", b""),), HOME, ())),
    ("RelayedCalls", (TASK, -1, ((TASK, "method", b""),), HOME, ())),
    ("RelayedCalls", (TASK, 0, ((TASK, "method", b""),), b"short", ())),
    ("RelayedCalls", (TASK, 0, ((TASK, "method", b""),), HOME, ((OBJECT, b"home"),))),
    ("RelayedReceipt", (TASK, (TASK,), True, b"short")),
    ("CallerGone", (b"short",)),
    ("EndsReceived", (1, ((b"short", 1),))),
    ("EndsReceived", (1, ((HOME, -1),))),
    ("UpdateLedger", (0, (("name", ((OBJECT, "", "name"),)),), ())),
    ("UpdateLedger", (0, (), (("name", ((TASK, "", "name" * 10_000),)),))),
    ("LedgerUpdated", (0, (("granted", (OBJECT,)),))),
    ("CallsEnded", (-1, (), ())),
    ("CallsEnded", (1, ((TASK, b"short", 0, (b"",), ()),), ())),
    ("CallsEnded", (1, ((TASK, HOME, 0, ((0, 64),), ()),), ())),
    ("CallsEnded", (1, ((TASK, HOME, 4, (7,), ()),), ())),
    ("CallsEnded", (1, ((TASK, HOME, 7, (b"",), ()),), ())),
    ("CallsEnded", (1, ((TASK, HOME, 0, (-7,), ()),), ())),
    ("RelayedYields", (-1, (), ())),
    ("RelayedYields", (1, ((TASK, 0, 0, (0, 64), ()),), ())),
    ("RelayedYields", (1, ((TASK, 0, 0, True, ()),), ())),
    ("RelayedYields", (1, ((TASK, 0, 0, -7, ()),), ())),
    ("RelayedYields", (1, ((TASK, 0, -1, b"", ()),), ())),
    ("RelayedYields", (1, ((TASK, -1, 0, b"", ()),), ())),
    ("RelayedYields", (1, ((TASK, 0, 0, b"", (TASK,)),), ())),
    ("RelayedYields", (1, ((OBJECT, 0, 0, b"", ()),), ())),
    ("RelayedYields", (1, (), ((OBJECT, b"home"),))),
    ("AllowYields", (OBJECT, 1)),
    ("AllowYields", (TASK, -2)),
    ("Ended", (-1, NO_ENDS, ())),
    ("Ended", (1, NO_ENDS[:6], ())),
    ("Ended", (1, but(ONE_END, 0, (-1,)), ())),
    ("Ended", (1, but(ONE_END, 1, (7,)), ())),
    ("Ended", (1, but(ONE_END, 2, (((0, 64),),)), ())),
    ("Ended", (1, but(ONE_END, 2, ((-64,),)), ())),
    ("Ended", (1, but(but(ONE_END, 1, (4,)), 2, ((64,),)), ())),
    ("Ended", (1, but(but(ONE_END, 1, (5,)), 2, ((b"\x07",),)), ())),
    ("Ended", (1, but(but(ONE_END, 1, (5,)), 2, ((b"\x92",),)), ())),
    ("Ended", (1, but(ONE_END, 4, ((1, (), ()),)), ())),
    ("Ended", (1, but(ONE_END, 4, ((0, ((TASK,),), ()),)), ())),
    ("Ended", (1, but(ONE_END, 4, ((0, (), (TASK,)),)), ())),
    ("Ended", (1, but(ONE_END, 5, ((b"f" * 16, -1, 0.0),)), ())),
    ("Ended", (1, but(ONE_END, 5, ((b"f" * 16, 1, float("nan")),)), ())),
    ("FetchedValues", (((OBJECT, 0, (HOME, HOME), ()),), ())),
    ("FetchedValues", (((OBJECT, 0, (-1, HOME), ()),), ())),
    ("FetchedValues", (((OBJECT, 0, (1, b"home"), ()),), ())),
    ("FetchedValues", (((OBJECT, 0, (1, *[HOME] * 64), ()),), ())),
    ("FetchedValues", (((OBJECT, 4, (1, HOME), ()),), ())),
    ("Complain", ((b"short",),)),
    ("PairsProbed", (-1, ())),
    ("PairsProbed", (1, (b"short",))),
    ("DeleteRows", (-1, "object", b"", b"")),
    ("DeleteRows", (1, "object", b"", b"k" * 1000)),
    ("FetchedValues", (((OBJECT, 0, 7, ()),), ())),
    ("JobOutput", (b"job1", ((1, "", "out"),), ())),
    ("JobOutput", (b"job1", (), (("fatal", "text"),))),
    ("EndJob", (b"job",)),
    ("Entrust", (1, b"job1", (), ((TASK, b"f" * 16, b"", ()),), ())),
    ("Holdings", (HOME, ((OBJECT, -1, 7, ()),), (), (), True)),
    ("Holdings", (HOME, ((OBJECT, 0, b"", ()),), (), (), True)),
    ("Holdings", (HOME, ((TASK, -1, b"", ()),), (), (), True)),
    ("Holdings", (HOME, (), (), ((TASK, -1),), True)),
    ("Read", (1, "member", ("k",))),
    ("UpdateLedger", (1, (("hold", (TASK,)),), ())),
    ("UpdateLedger", (1, (), (("entrusted", (OBJECT,)),))),
    ("UpdateLedger", (1, (("entrusted", (TASK,)),), ())),
    ("UpdateLedger", (1, (), (("search", (OBJECT,)),))),
    ("UpdateLedger", (1, (("hold", OBJECT),), ())),
    ("UpdateLedger", (1, (("what", (OBJECT,)),), ())),
    ("UpdateLedger", (-1, (), ())),
    ("LedgerUpdated", (1, (("hold", (OBJECT,)),))),
    ("LedgerUpdated", (-1, ())),
    ("Place", (((1, (("CPU", "1"),), 1, 0.0, ()),),)),
    ("Place", (((1, (), -1, 0.0, ()),),)),
    ("Place", (((1, (), 1, float("inf"), ()),),)),
    ("Placed", (((1, ((HOME, -1),)),),)),
    ("Heartbeat", (HOME, (), (), 0, float("inf"))),
    ("AskRoom", (-1,)),
    ("NodeRoom", (0, (("CPU", -1),), ())),
    ("NodeRoom", (0, (), (("CPU",),))),
    ("PrepareBundles", (TASK, 1, False, ())),
    ("PrepareBundles", (TASK, 1, False, ((0, ()), (0, ())))),
    ("PrepareBundles", (TASK, 1, False, ((0, (("CPU", -1),)),))),
    ("PrepareBundles", (OBJECT, 1, False, ((0, ()),))),
    ("BundlesPrepared", (OBJECT, 1, True)),
    ("HoldBundles", (((TASK, 0),),)),
    ("HoldBundles", (((OBJECT, 0, True),),)),
    ("CommitBundles", (OBJECT,)),
    ("FreeBundles", (TASK, (-1,), "")),
    ("WatchGroup", (b"group",)),
    ("GroupState", (TASK, "CREATED", (((), b"node"),), "")),
    ("GroupState", (TASK, "CREATED", ((7, b""),), "")),
    ("GroupState", (TASK, "unknown", (), "")),
    ("Heartbeat", (b"home", (), (), 0, 0.0)),
    ("Join", but(JOIN, 1, b"home")),
    ("Join", but(JOIN, 2, 2**20)),
    ("Join", but(JOIN, 3, "n" * 5000)),
    ("Join", but(JOIN, 5, b"")),
    ("Join", but(JOIN, 8, (("CPU", -1),))),
    ("Join", but(JOIN, 9, (("zone", 1),))),
    ("Join", but(JOIN, 10, (("zfabric",),))),
    ("Joined", (HOME, 1, -1.0)),
    ("Joined", (HOME, 1, 0.0)),
    ("Joined", (HOME, 0, 1.0)),
    ("NodeTable", (1, ((HOME, 1, "n"),), b"")),
    ("RenewLease", (b"home", 1)),
    ("Want", (1, TASK, 1, 0, 1)),
    ("Chunk", (1, -1, 1)),
    ("Redirect", (1, b"home")),
]


@pytest.mark.parametrize(("name", "fields"), MALFORMED)
def test_a_message_that_makes_no_sense_is_malformed(name: str, fields: tuple[Any, ...]) -> None:
    with pytest.raises(MalformedFrame):
        decode(encode(1, 0, [(b"L", b"L", m.MESSAGES[name](*fields))]))


def test_what_is_malformed_here_is_well_formed_but_for_one_field() -> None:
    for name, fields in (("Delegate", DELEGATE), ("Ended", (1, ONE_END, ())), ("Join", JOIN), ("Ended", (1, NO_ENDS, ()))):
        decode(encode(1, 0, [(b"L", b"L", m.MESSAGES[name](*fields))]))


def test_tasks_in_a_message_between_nodes_that_cannot_be_read_have_an_outcome() -> None:
    """Neither their home waits for ever, nor what retains their values."""
    bad = m.Delegate(*but(but(DELEGATE, 2, ((b"job1" + TASK[4:], b"f" * 16, b"", ()),)), 5, ((OBJECT, b"home"),)))
    _, _, said = salvage(encode(1, 0, [(b"L", b"L", bad)]))
    delivered, answers = settle(said)
    assert delivered == []
    ((_, _, ended),) = answers
    assert (m.Completed(*ended.completed).task_ids, ended.completed[1]) == (b"job1" + TASK[4:], (m.FAILED,))
    bad = m.Ended(7, but(ONE_END, 2, (((0, 64),),)), ())
    ((_, _, delivered_instead),) = settle(salvage(encode(1, 0, [(b"L", b"L", bad)]))[2])[0]
    assert (delivered_instead.number, delivered_instead.completed[1]) == (7, (m.FAILED,))
    for each in (ended, delivered_instead):
        decode(encode(1, 0, [(b"L", b"L", each)]))


def test_a_row_whose_function_was_never_sent_fails_with_the_reason() -> None:
    executor = Home()
    strange = b"u" * 16
    given = m.Delegate((JOB, "", NODES[1]), (), ((task_id(50), strange, b"", ()), row(0)), (), (), (), first_attempt(0, 2))
    executor.send(LOCAL_SCHEDULER + NODES[1], given)
    ((to, ended),) = executor.take(m.Ended)
    completed = m.Completed(*ended.completed)
    assert (to[1:], completed.statuses) == (NODES[1], (m.FAILED, m.FAILED))
    texts = [unpack_failure(outputs[0])[1] for outputs in completed.outputs]
    assert "its function was not sent" in texts[0]
    assert "is there already" in texts[1], "its own task 0, which goes on"
    executor.complete(executor.worker, 0, first_attempt(0, 1))
    assert executor.results()[0][0] == m.OK


def test_an_answer_counts_only_from_the_one_that_was_asked() -> None:
    """Tokens are small numbers: another node could name them."""
    home = Home()
    heard: list[Any] = []
    home.scheduler.requests.ask_at(LOCAL_SCHEDULER + NODES[1], m.Query, "tasks", (), then=lambda now, about, answer: heard.append(answer))
    home.turn()
    ((_, query),) = home.take(m.Query)
    home.send(LOCAL_SCHEDULER + NODES[2], m.Answer(query.token, "forged", ""))
    assert heard == []
    home.send(LOCAL_SCHEDULER + NODES[1], m.Answer(query.token, "true", ""))
    assert [each.payload for each in heard] == ["true"]


def test_a_member_obeys_its_head_alone() -> None:
    member = Member(MEMBER + OWN, LOCAL_SCHEDULER + OWN, m.Join(*but(JOIN, 1, NODES[1])))
    member.take_effects(0.0)
    member.step(0.0, REGISTRY + NODES[0], m.Joined(NODES[0], 2, 10.0))
    member.step(0.0, REGISTRY + NODES[2], m.Expelled("not by you"))
    assert not any(isinstance(each, EndNode) for each in member.take_effects(0.0))
    member.step(0.0, REGISTRY + NODES[0], m.Expelled("dead"))
    assert any(isinstance(each, EndNode) for each in member.take_effects(0.0))


def test_no_node_speaks_for_another_or_reads_other_tables() -> None:
    daemon = NodeMachines(OWN, NODES[0], Config(), (), 2**20, MemoryJournal(), 0)
    beat = m.Heartbeat(NODES[1], (), (), 0, 0.0)
    for sender, to, message, refused in (
        (NODES[1], GLOBAL_SCHEDULER, beat, 0),
        (NODES[2], GLOBAL_SCHEDULER, beat, 1),
        (NODES[1], CONTROL_STORE, m.Read(1, "member", ()), 1),
        (NODES[1], CONTROL_STORE, m.Read(1, "function", ()), 2),
        (NODES[1], CONTROL_STORE, m.Write(1, (("job", b"k", b"v"),), ()), 3),
        (NODES[1], CONTROL_STORE, m.Write(1, (("object", b"k", b"v"),), (("job", b"k"),)), 4),
        (NODES[1], CONTROL_STORE, m.DeleteRows(1, "job", b"", b"k"), 5),
        (NODES[1], LOCAL_SCHEDULER, m.NodeTable(1, ()), 6),
        (NODES[1], CONTROL_STORE, m.Write(1, (("object", b"k", b"v"),), (("object", b"k"),)), 6),
        (NODES[1], CONTROL_STORE, m.DeleteRows(1, "object", b"", b"k"), 6),
    ):
        daemon.receive_from_node(0.0, sender, to, LOCAL_SCHEDULER, message)
        assert daemon.refused == refused, message


# --- machines -----------------------------------------------------------------------------------------------------------------------

FEW = Pool(
    jobs=st.sampled_from([JOB, job_id(7)]),
    tasks=st.sampled_from([*map(task_id, range(6)), *(task_id(number)[:4] + b"\x07" * 12 for number in range(3))]),
    functions=st.sampled_from([FUNCTION, ACTOR_CLASS, b"s" * 16]),
    objects=st.sampled_from([*map(ref, range(6)), ref(1, 1), object_id(task_id(90), 2**31), object_id(task_id(91), 2**30)]),
    nodes=st.sampled_from([*NODES[:3], bytes(8), b"unknown!"]),
    attempts=st.sampled_from([0, first_attempt(0, 1), first_attempt(0, 2), first_attempt(0, 1) + 1, 2**64 - 1]),
    numbers=st.integers(0, 12) | st.sampled_from([2**32, 2**63 - 1]),
    tokens=st.integers(-1, 12) | st.sampled_from([2**64 - 1]),
)
SENDERS = st.sampled_from([*NODES[1:3], b"unknown!"])
SENT = node_messages(FEW)
TO: dict[str, bytes] = {kind.__name__: role for role, kinds in FROM_NODES.items() for kind in kinds}
questions = st.builds(
    m.Query,
    st.integers(0, 5),
    st.sampled_from([*Home().scheduler.reports.queries, "what"]),
    many(answers | FEW.objects | FEW.tasks | FEW.jobs, 3),
)
SENT["Query"] = questions | SENT["Query"]


def of(role: bytes) -> st.SearchStrategy[list[tuple[bytes, Any]]]:
    """Messages of nodes for a role, each with its sender."""
    names = sorted(name for name in TO if TO[name] == role)
    return st.lists(st.tuples(SENDERS, st.one_of(*(SENT[name] for name in names))), min_size=1, max_size=6)


def passed(machine: Machine, now: float, role: bytes, sent: list[tuple[bytes, Any]]) -> None:
    """Pass messages on as a shell does, through the codec."""
    for node, message in sent:
        _, _, ((_, _, decoded),) = decode(encode(0, 0, [(role, LOCAL_SCHEDULER, message)]))
        try:
            machine.step(now, LOCAL_SCHEDULER + node, decoded)
        except Refusal:
            continue
        machine.take_effects(now)
    for later in (now + 1.0, now + 60.0):
        machine.tick(later)
        machine.take_effects(later)
    machine.statistics()
    machine.check_invariants()


FUZZED = settings(
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@FUZZED
@given(of(LOCAL_SCHEDULER))
def test_a_local_scheduler_survives_whatever_nodes_send(sent: list[tuple[bytes, Any]]) -> None:
    home = Home()
    home.send(CLIENT + DRIVER, m.Export(((ACTOR_CLASS, "C", b"", (("actor", b"handle"),)), (b"s" * 16, "s", b"", (("stream", 3),)))))
    there = (("hard", NODE_ID, "in", (NODES[1].hex(),)),)
    home.submit(row(1), row(2, ref(1)), row(3, num_returns=2, strategy=there), row(4, strategy=there))
    passed(home.scheduler, home.now, LOCAL_SCHEDULER, sent)
    home.send(b"N" + OWN, m.NodeTable(50, ((NODES[0], 1, "n1", "", "", b"", (), (), 0),)))
    died(home, home.worker, 0)


@FUZZED
@given(of(REGISTRY))
def test_a_registry_survives_whatever_nodes_send(sent: list[tuple[bytes, Any]]) -> None:
    registry = Registry(REGISTRY + OWN, NODES[0], Config(), CONTROL_STORE + OWN, (("zfabric", "1"),), 0)
    registry.take_effects(0.0)
    registry.step(0.0, CONTROL_STORE + OWN, m.Found(1, (), False))
    for token in range(2, 6):
        passed(registry, 0.0, REGISTRY, sent)
        registry.step(0.0, CONTROL_STORE + OWN, m.Written(token, token % 2 == 0, ""))


@FUZZED
@given(of(MEMBER))
def test_a_member_survives_whatever_nodes_send(sent: list[tuple[bytes, Any]]) -> None:
    join = m.Join(m.PROTOCOL_VERSION, NODES[1], 0, "n", 1, b"k" * 40, "", "", (), (), ())
    passed(Member(MEMBER + OWN, LOCAL_SCHEDULER + OWN, join), 0.0, MEMBER, sent)


@FUZZED
@given(of(GLOBAL_SCHEDULER))
def test_a_global_scheduler_survives_whatever_nodes_send(sent: list[tuple[bytes, Any]]) -> None:
    passed(GlobalScheduler(GLOBAL_SCHEDULER + OWN, Config()), 0.0, GLOBAL_SCHEDULER, sent)


@FUZZED
@given(of(CONTROL_STORE))
def test_a_control_store_survives_whatever_nodes_send(sent: list[tuple[bytes, Any]]) -> None:
    passed(ControlStore(CONTROL_STORE + OWN, Config(), MemoryJournal()), 0.0, CONTROL_STORE, sent)


@FUZZED
@given(st.lists(st.tuples(SENDERS, st.one_of(*(SENT[kind.__name__] for kind in FROM_AGENTS))), min_size=1, max_size=8))
def test_a_transfer_agent_survives_whatever_nodes_send(sent: list[tuple[bytes, Any]]) -> None:
    agent = TransferAgent(b"F" + OWN, Config(), OWN)
    rows = tuple((node, number, "n", "", "", b"", (), (), 0) for number, node in enumerate(NODES[:3], 1))
    agent.step(0.0, LOCAL_SCHEDULER + OWN, m.NodeTable(1, rows))
    agent.step(0.0, LOCAL_SCHEDULER + OWN, m.Pull(ref(1), 3 << 20, NODES[1:3]))
    agent.take_effects(0.0)
    passed(agent, 0.0, b"F", sent)
