"""The log of an actor that lives on another node: what both schedulers pass on, who may write, and what is pinned until when."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_updates import held, released
from nodes_alone import ACTOR_ID, CALL, CALLER, HANDLE, HOME_A, HOME_C, OTHER, PUT, SELF, Nodes
from scheduler_alone import ACTOR_CLASS, DRIVER, JOB, OWN, died

from zfabric.machines.common.tables import CHECKPOINT, LOG, pack_row, unpack_row
from zfabric.machines.worker.call_log import CallLog
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, CONTROL_STORE, WORKER, control_of, first_attempt, next_attempt, remote_caller
from zfabric.protocol.options import NODE_ID

FIRST, GIVEN = first_attempt(0, 2), first_attempt(0, 1)
"""The first attempts that this node and node A give out."""
LOGGED = (("actor", b"blueprint"), ("max_restarts", -1), ("checkpoint_every", 5))
BLOCK = m.LogAppended(ACTOR_ID, FIRST, 1, 3, b"rows", (), (OTHER,))


def relayed(block: m.LogAppended, *homes: tuple[bytes, bytes]) -> m.RelayedBlock:
    return m.RelayedBlock(*block, homes)


class Home(Nodes):
    """The home of a logged actor that lives on node A."""

    def __init__(self) -> None:
        super().__init__()
        strategy = ("strategy", (("soft", NODE_ID, "in", (HOME_A.hex(),)),))
        self.send(CLIENT + DRIVER, m.Export(((ACTOR_CLASS, "A", b"payload", (*LOGGED, strategy)),)))
        self.submit((ACTOR_ID, ACTOR_CLASS, b"", ()))
        completed = m.Completed.of(((ACTOR_ID, FIRST, m.OK, (b"value",)),), (), ())
        self.hear(HOME_A, m.Ended(1, tuple(completed), ()))
        self.sent.clear()

    def told(self, node: bytes) -> list[Any]:
        return [each for each in super().told(node) if type(each) is not m.EndsReceived]

    def written(self) -> list[tuple[str, bytes]]:
        """Rows of logs that the control store was to write since the last look; it has."""
        found = []
        writes = [each for _, each in self.sent if type(each) is m.Write and each.token]
        self.sent = [each for each in self.sent if type(each[1]) is not m.Write]
        for write in writes:
            found += [(table, unpack_row(value)[-1]) for table, _, value in write.puts if table in (LOG, CHECKPOINT)]
            self.send(CONTROL_STORE + OWN, m.Written(write.token, True, ""))
        return found

    @property
    def refused(self) -> int:
        return self.scheduler.tables.counts["refused"]


def test_the_home_says_that_rows_are_committed_once_it_holds_what_they_name() -> None:
    home = Home()
    home.hear(HOME_A, relayed(BLOCK, (OTHER, HOME_C)))
    assert home.told(HOME_A) == [], "they are not written"
    (borrow,) = [each for each in home.told(HOME_C) if held(each)]
    assert home.written() == [(LOG, b"rows")]
    assert home.told(HOME_A) == [], "their refs are not registered"
    home.hear(HOME_C, m.LedgerUpdated(borrow.number))
    assert home.told(HOME_A) == [m.LogRecorded(ACTOR_ID, FIRST, 1)]
    home.hear(HOME_A, m.RelayedCheckpoint(ACTOR_ID, FIRST, 2, 3, 0, 1, b"state", (), ()))
    assert home.written() == [(CHECKPOINT, b"state")]
    assert m.LogRecorded(ACTOR_ID, FIRST, 2) in home.told(HOME_A)
    assert released((OTHER,)) in home.told(HOME_C), "the checkpoint stands for the rows"


@pytest.mark.parametrize("which", ["attempt", "node"])
def test_rows_of_any_other_life_are_refused_and_counted_and_that_life_ends(which: str) -> None:
    home = Home()
    attempt, node = (FIRST + 1, HOME_A) if which == "attempt" else (FIRST, HOME_C)
    home.hear(node, relayed(BLOCK._replace(attempt=attempt)))
    home.hear(node, m.ReadLog(ACTOR_ID, attempt, LOG, b""))
    assert home.written() == []
    assert home.scheduler.tables.counts["refused_log_rows"] == home.refused == 1
    assert home.told(node) == [m.StopDelegated(ACTOR_ID, attempt, "force", False)]


def test_a_node_that_is_dead_is_refused_and_counted_and_the_next_life_reads_what_it_had_sent() -> None:
    home = Home()
    home.hear(HOME_A, relayed(BLOCK._replace(refs=())))
    assert home.written() == [(LOG, b"rows")]
    home.table(2, SELF, HOME_C)
    home.hear(HOME_A, relayed(BLOCK._replace(number=2, last=4, rows=b"late", refs=())))
    assert home.written() == []
    assert home.refused == 1
    home.workers()
    ((worker, _, attempt),) = home.dispatched()
    assert attempt == next_attempt(FIRST, FIRST)
    home.send(CLIENT + worker, m.Query(7, "actor log", (ACTOR_ID, LOG, b"")))
    assert [each.prefix for to, each in home.sent if type(each) is m.Scan and each.table == LOG] == [ACTOR_ID]


def test_a_page_names_the_refs_of_its_rows_and_their_homes() -> None:
    home = Home()
    home.hear(HOME_A, relayed(BLOCK, (OTHER, HOME_C)))
    home.hear(HOME_C, m.LedgerUpdated(1))
    home.sent.clear()
    home.hear(HOME_A, m.ReadLog(ACTOR_ID, FIRST, LOG, b""))
    (scan,) = [each for _, each in home.sent if type(each) is m.Scan]
    rows = ((ACTOR_ID + b"\x00" * 8, pack_row(((OTHER,), (), b"rows"))),)
    home.send(CONTROL_STORE + OWN, m.Found(scan.token, rows, True))
    assert home.told(HOME_A) == [m.LogPage(ACTOR_ID, FIRST, LOG, b"", rows, True, (OTHER, HANDLE), ((OTHER, HOME_C),))]


class Host(Nodes):
    """A node on which a logged actor of node A is being made."""

    def __init__(self) -> None:
        super().__init__()
        function = (ACTOR_CLASS, "A", b"payload", LOGGED)
        self.hear(HOME_A, m.Delegate((JOB, "", HOME_A), (function,), ((ACTOR_ID, ACTOR_CLASS, b"", ()),), (), (), (), GIVEN))
        self.workers()
        ((self.worker, _, _),) = self.dispatched()
        self.sent.clear()

    def live(self) -> None:
        self.complete(self.worker, 1, GIVEN)
        self.hear(HOME_A, m.EndsReceived(1))
        self.sent.clear()

    def confirmed(self) -> list[m.LogCommitted]:
        return [each for each in self.sent_to(b"K" + control_of(self.worker)) if type(each) is m.LogCommitted]


OF_GUEST = BLOCK._replace(attempt=GIVEN)


def test_the_node_of_a_guest_passes_rows_on_and_pins_what_they_name_until_they_are_committed() -> None:
    host = Host()
    host.live()
    host.send(CLIENT + host.worker, m.Put(((PUT, b"value", (), False),)))
    host.send(WORKER + host.worker, OF_GUEST._replace(refs=(PUT,)))
    assert [type(each) for each in host.told(HOME_A)].count(m.RelayedBlock) == 1
    host.send(CLIENT + host.worker, m.Release((PUT,)))
    record = host.scheduler.tables.find(PUT)
    assert record is not None
    assert record.pins == 1
    assert host.confirmed() == [], "only the home says so"
    host.hear(HOME_C, m.LogRecorded(ACTOR_ID, GIVEN, 1))
    host.hear(HOME_A, m.LogRecorded(ACTOR_ID, GIVEN + 1, 1))
    assert host.confirmed() == [], "its home, and of this life"
    host.hear(HOME_A, m.LogRecorded(ACTOR_ID, GIVEN, 1))
    assert host.confirmed() == [m.LogCommitted(ACTOR_ID, 1)]
    assert record.pins == 0


def test_a_home_whose_daemon_is_new_is_sent_again_what_is_not_committed_and_what_it_was_asked() -> None:
    host = Host()
    host.send(CLIENT + host.worker, m.Query(5, "actor log", (ACTOR_ID, LOG, b"")))
    assert m.ReadLog(ACTOR_ID, GIVEN, LOG, b"") in host.told(HOME_A)
    host.send(WORKER + host.worker, OF_GUEST._replace(refs=()))
    host.told(HOME_A)
    host.hear(HOME_A, m.RegisterNode(m.PROTOCOL_VERSION, b"newproc.", OWN), m.Ready())
    repeated = [each for each in host.told(HOME_A) if isinstance(each, m.RelayedBlock | m.ReadLog)]
    assert repeated == [relayed(OF_GUEST._replace(refs=())), m.ReadLog(ACTOR_ID, GIVEN, LOG, b"")]
    host.hear(HOME_A, m.LogPage(ACTOR_ID, GIVEN, LOG, b"", (), False, (HANDLE,), ()))
    (answer,) = [each for each in host.sent_to(CLIENT + host.worker) if type(each) is m.Answer]
    assert answer.payload == ((), False, SELF, HOME_A)


def test_nothing_remains_of_a_life_that_is_over() -> None:
    host = Host()
    host.live()
    host.send(WORKER + host.worker, OF_GUEST._replace(refs=()))
    died(host, host.worker, None)
    logs = host.scheduler.guest_logs
    assert ACTOR_ID in logs._lives, "its rows may be on their way"
    host.hear(HOME_A, m.LogRecorded(ACTOR_ID, GIVEN, 1))
    assert not logs._lives


def test_a_caller_has_one_name_in_the_log_wherever_the_actor_lives() -> None:
    def log_on(*places: bytes) -> CallLog:
        log = CallLog(ACTOR_ID, 0, 0)
        log.places = places
        return log

    at_home, on_a, on_c = log_on(), log_on(HOME_A, SELF), log_on(HOME_C, SELF)
    for names in (
        {at_home: CALLER, on_a: remote_caller(CALLER, SELF), on_c: remote_caller(CALLER, SELF)},
        {at_home: remote_caller(CALLER, HOME_A), on_a: CALLER, on_c: remote_caller(CALLER, HOME_A)},
    ):
        assert {log._stored(name) for log, name in names.items()} == {names[at_home]}
        assert all(log._here(names[at_home]) == name for log, name in names.items())
    on_a.acknowledged(CALLER, (CALL,), False)
    assert on_a._acknowledgements == [(remote_caller(CALLER, HOME_A), (CALL,), False)]


def test_callers_that_are_gone_are_forgotten_wherever_they_were() -> None:
    host = Host()
    elsewhere, dead = remote_caller(CALLER, HOME_C), remote_caller(CALLER, b"\x02dead n.")
    host.send(WORKER + host.worker, m.ReplayProgress(ACTOR_ID, 2, 2, (elsewhere, dead, CALLER)))
    assert m.ReplayProgress(ACTOR_ID, 2, 2, ()) in host.told(HOME_A)
    assert host.told(HOME_C) == [m.ReplayProgress(ACTOR_ID, 2, 2, (CALLER,))]
    gone = [each.incarnation for each in host.sent_to(b"K" + control_of(host.worker)) if type(each) is m.CallerGone]
    assert gone == [dead, CALLER], "its node is dead, and no process here has that name"
    host.hear(HOME_C, m.ReplayProgress(OTHER[:16], 1, 1, (CALLER, DRIVER)))
    assert host.told(HOME_C) == [m.CallerGone(CALLER)], "the driver lives"
