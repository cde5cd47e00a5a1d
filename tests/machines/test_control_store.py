"""The control store: acknowledged writes are committed, rolled-back writes leave no trace, and reads return committed rows only."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from zfabric.adapters.journal import Journal
from zfabric.adapters.memory_journal import MemoryJournal
from zfabric.config import Config
from zfabric.machines.common.lineage_blocks import BlockWriter
from zfabric.machines.control_store.machine import SCAN_BYTES_MAX, ControlStore
from zfabric.protocol import codec
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Log, Send, Store
from zfabric.protocol.ids import CLIENT, CONTROL_STORE, LOCAL_SCHEDULER, SHELL, address, pack_counter

STORE = address(CONTROL_STORE, b"store---")
ME, YOU = address(LOCAL_SCHEDULER, b"me------"), address(LOCAL_SCHEDULER, b"you-----")
SHELL_ADDRESS = address(SHELL, b"store---")


class World:
    """A control store, its journal, and a shell that commits on request; every message goes through the codec."""

    def __init__(self, journal=None, **config):
        self.config = Config.of(config)
        self.now = 100.0
        self.begin(journal if journal is not None else MemoryJournal(deferred=True))

    def begin(self, journal):
        self.journal = journal
        self.machine = ControlStore(STORE, self.config, journal)
        self.received, self.notices, self.stores, self.committed = [], [], [], 0

    def send(self, message, source=ME):
        ((_, _, decoded),) = codec.decode(codec.encode(0, 0, [(b"S", source[:1], message)]))[2]
        self.machine.step(self.now, source, decoded)

    def turn(self, commit=True):
        """One loop turn; with ``commit``, as many as it takes. Return what was received in it, as (receiver, message)."""
        for _ in range(10):
            self.machine.check_invariants()
            effects = self.machine.take_effects(self.now)
            self.machine.check_invariants()
            assert sum(isinstance(effect, Store) for effect in effects) <= 1
            for effect in effects:
                if isinstance(effect, Store):
                    assert effect.sequence == self.committed + len(self.stores) + 1
                    self.stores.append(effect)
                    self.journal.commit([effect], lambda error, store=effect: self._ended(store, error))
                elif isinstance(effect, Log):
                    self.notices.append((effect.level, effect.text))
                else:
                    assert isinstance(effect, Send)
                    self.received.append((effect.to, effect.message))
            if not commit or not (self.commit() or effects):
                break
        received, self.received = self.received, []
        return received

    def commit(self):
        return self.journal.complete()

    def _ended(self, store, error):
        assert self.stores.pop(0) is store
        self.committed = store.sequence
        self.machine.step(self.now, SHELL_ADDRESS, m.Committed(store.sequence, error))

    def pass_time(self, seconds):
        self.now += seconds
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline <= self.now:
            self.machine.tick(self.now)

    def ask(self, message, source=ME):
        """One question or request with its one answer."""
        self.send(message, source)
        ((who, answer),) = self.turn()
        assert who == source
        return answer

    def write(self, puts=(), deletes=(), token=1):
        return self.ask(m.Write(token, tuple(puts), tuple(deletes)))

    def rows(self, table, prefix=b""):
        return dict(self.ask(m.Scan(9, table, prefix, b"", 10_000)).rows)


@pytest.fixture
def world():
    return World()


# --- persist before send ---------------------------------------------------------------------------------------------------------


def test_written_follows_the_commit(world):
    world.send(m.Write(7, (("job", b"a", b"1"), ("name", b"b", b"2")), (("node", b"c"),)))
    assert world.turn(commit=False) == []
    assert world.stores == [Store((("job", b"a", b"1"), ("name", b"b", b"2")), (("node", b"c"),), 1, True)]
    assert world.turn(commit=False) == []
    world.commit()
    assert world.turn() == [(ME, m.Written(7, True, ""))]
    assert world.journal.get("job", b"a") == b"1"


def test_rows_nobody_waits_for_gather(world):
    for number in range(3):
        world.send(m.Write(0, (("task", b"%d" % number, b""),), ()))
        assert world.turn() == []
        world.pass_time(0.02)
    assert world.journal.scan("task") == []
    assert world.machine.next_deadline() == pytest.approx(100.05)
    assert world.turn() == []
    assert len(world.journal.scan("task")) == 3
    assert world.machine.statistics()["commits"] == 1
    assert world.machine.next_deadline() is None


def test_a_large_transaction_waits_no_longer():
    world = World(commit_rows=3)
    world.send(m.Write(0, (("task", b"a", b""), ("task", b"b", b"")), ()))
    world.turn()
    assert world.journal.scan("task") == []
    world.send(m.Write(0, (("task", b"c", b""),), ()))
    world.turn()
    assert len(world.journal.scan("task")) == 3


def test_one_transaction_is_in_flight_while_the_next_gathers(world):
    world.send(m.Write(1, (("job", b"a", b"1"),), ()))
    world.turn(commit=False)
    world.send(m.Write(2, (("job", b"a", b"2"),), ()))
    world.send(m.Write(3, (), (("job", b"b"),)), YOU)
    assert world.turn(commit=False) == []
    assert len(world.stores) == 1
    world.commit()
    assert world.turn(commit=False) == [(ME, m.Written(1, True, ""))]
    assert world.stores == [Store((("job", b"a", b"2"),), (("job", b"b"),), 2, True)]
    assert world.turn() == [(ME, m.Written(2, True, "")), (YOU, m.Written(3, True, ""))]
    assert world.journal.get("job", b"a") == b"2"


def test_answers_of_a_transaction_come_in_order(world):
    world.send(m.Write(1, (("job", b"a", b"1"),), ()))
    world.send(m.Write(2, (("job", b"a", b"2"),), ()), YOU)
    world.send(m.Write(3, (), (("job", b"a"),)))
    assert world.turn() == [(ME, m.Written(1, True, "")), (YOU, m.Written(2, True, "")), (ME, m.Written(3, True, ""))]
    assert world.journal.get("job", b"a") is None


def test_a_write_without_rows_is_a_barrier(world):
    assert world.write() == m.Written(1, True, "")
    assert world.machine.statistics()["commits"] == 0
    world.send(m.Write(0, (("task", b"a", b""),), ()))
    assert world.write() == m.Written(1, True, "")
    assert world.journal.scan("task") == [(b"a", b"")]
    world.send(m.Write(0, (("task", b"b", b""),), ()))
    world.pass_time(1)
    world.turn(commit=False)
    world.send(m.Write(4, (), ()))
    assert world.turn(commit=False) == []
    assert world.turn() == [(ME, m.Written(4, True, ""))]


def test_the_same_write_twice_changes_nothing(world):
    for token in (1, 2):
        assert world.write([("job", b"a", b"1")], [("job", b"b")], token).ok
    assert world.rows("job") == {b"a": b"1"}


# --- conditions --------------------------------------------------------------------------------------------------------------------


def test_create_only_once(world):
    assert world.ask(m.Create(1, "name", b"n", b"mine")) == m.Written(1, True, "")
    refused = world.ask(m.Create(2, "name", b"n", b"yours"), YOU)
    assert (refused.token, refused.ok) == (2, False)
    assert "name" in refused.text
    assert world.ask(m.Create(3, "name", b"n", b"mine")) == m.Written(3, True, "")
    assert world.rows("name") == {b"n": b"mine"}
    world.write((), [("name", b"n")])
    assert world.ask(m.Create(4, "name", b"n", b"yours"), YOU).ok


def test_two_creators_in_one_turn_and_in_flight(world):
    world.send(m.Create(1, "name", b"n", b"mine"))
    world.send(m.Create(2, "name", b"n", b"yours"), YOU)
    assert world.turn(commit=False) == []
    world.send(m.Create(3, "name", b"n", b"yours"), YOU)
    assert world.turn(commit=False) == []
    world.commit()
    assert [(who, answer.token, answer.ok) for who, answer in world.turn()] == [(ME, 1, True), (YOU, 2, False), (YOU, 3, False)]


def test_swap_against_what_is_on_the_way(world):
    assert world.ask(m.Swap(1, "job", b"a", None, b"1")).ok
    assert not world.ask(m.Swap(2, "job", b"a", None, b"2")).ok
    world.send(m.Swap(3, "job", b"a", b"1", b"2"))
    world.turn(commit=False)
    world.send(m.Swap(4, "job", b"a", b"1", b"3"), YOU)
    world.send(m.Swap(5, "job", b"a", b"2", b"3"), YOU)
    world.send(m.Swap(6, "job", b"a", b"2", b"3"), YOU)
    world.commit()
    answers = {answer.token: answer.ok for _, answer in world.turn()}
    assert answers == {3: True, 4: False, 5: True, 6: True}
    assert world.rows("job") == {b"a": b"3"}


def test_a_deleted_row_on_the_way_is_absent(world):
    world.write([("job", b"a", b"1")])
    world.send(m.Write(0, (), (("job", b"a"),)))
    assert world.ask(m.Create(2, "job", b"a", b"2")).ok
    assert world.rows("job") == {b"a": b"2"}


def test_job_numbers_are_never_given_twice(world):
    assert world.ask(m.NewJob(1)) == m.JobNumber(1, 1)
    world.send(m.NewJob(2))
    world.send(m.NewJob(3), YOU)
    world.turn(commit=False)
    world.send(m.NewJob(4))
    world.commit()
    assert world.turn() == [(ME, m.JobNumber(2, 2)), (YOU, m.JobNumber(3, 3)), (ME, m.JobNumber(4, 4))]
    world.send(m.NewJob(5))
    world.turn(commit=False)
    world.begin(world.journal.crash())
    assert world.ask(m.NewJob(6)) == m.JobNumber(6, 5)


# --- reads -------------------------------------------------------------------------------------------------------------------------


def test_reads_wait_for_what_was_written_before_them(world):
    world.send(m.Write(0, (("job", b"a", b"1"),), ()))
    world.send(m.Read(1, "job", (b"a", b"absent")), YOU)
    world.send(m.Read(2, "node", (b"a",)), YOU)
    assert world.turn(commit=False) == [(YOU, m.Found(2, (), False))]
    world.send(m.Scan(3, "job", b"", b"", 10), YOU)
    assert world.turn(commit=False) == []
    world.commit()
    assert world.turn() == [(YOU, m.Found(1, ((b"a", b"1"),), False)), (YOU, m.Found(3, ((b"a", b"1"),), False))]


def test_a_read_is_not_starved_by_writers(world):
    world.send(m.Write(0, (("job", b"a", b"1"),), ()))
    world.send(m.Read(1, "job", (b"a",)), YOU)
    world.turn(commit=False)
    world.send(m.Write(0, (("job", b"a", b"2"),), ()))
    world.commit()
    assert world.turn(commit=False) == [(YOU, m.Found(1, ((b"a", b"1"),), False))]


def test_scan_pages(world):
    world.write([("name", b"p%03d" % number, b"") for number in range(700)] + [("name", b"q", b"")])
    first = world.ask(m.Scan(1, "name", b"p", b"", 600))
    assert (len(first.rows), first.more) == (600, True)
    rest = world.ask(m.Scan(2, "name", b"p", first.rows[-1][0], 100))
    assert ([key for key, _ in rest.rows], rest.more) == ([b"p%03d" % number for number in range(600, 700)], False)


def test_a_scan_of_large_rows_ends_early():
    world = World(MemoryJournal(deferred=True))
    value = bytes(SCAN_BYTES_MAX // 3)
    world.write([("function", b"%d" % number, value) for number in range(6)])
    first = world.ask(m.Scan(1, "function", b"", b"", 100))
    assert (len(first.rows), first.more) == (3, True)
    rest = world.ask(m.Scan(1, "function", b"", first.rows[-1][0], 100))
    assert (len(rest.rows), rest.more) == (3, False)


def test_task_rows_out_of_their_blocks(world):
    writer = BlockWriter()
    tasks = [b"job1" + bytes(8) + pack_counter(number) for number in range(1500)]
    for task in tasks:
        writer.add((task, b"f" * 16, b"", ()))
    puts, deletes = writer.flush()
    world.send(m.Write(0, tuple(puts), tuple(deletes)))
    found = world.ask(m.ReadBlocks(5, (tasks[3], tasks[1400], b"job2" + bytes(12), tasks[4])))
    assert found == m.Found(5, tuple((task, (task, b"f" * 16, b"", ())) for task in (tasks[3], tasks[1400], tasks[4])), False)


# --- no room -------------------------------------------------------------------------------------------------------------------------


def test_a_rollback_leaves_no_trace(world):
    world.write([("job", b"a", b"old")])
    world.send(m.Write(1, (("job", b"a", b"new"),), (("job", b"b"),)))
    world.turn(commit=False)
    world.send(m.Swap(2, "job", b"a", b"new", b"newer"), YOU)
    world.send(m.NewJob(3))
    world.send(m.Read(4, "job", (b"a",)), YOU)
    world.journal.full = "the disk is full"
    received = world.turn()
    assert received == [
        (ME, m.Written(1, False, "the disk is full")),
        (YOU, m.Written(2, False, "the disk is full")),
        (ME, m.Written(3, False, "the disk is full")),
        (YOU, m.Found(4, ((b"a", b"old"),), False)),
    ]
    assert world.notices == [("error", "the control store is read-only: the disk is full")]
    assert world.rows("job") == {b"a": b"old"}
    assert world.machine.statistics()["read_only"] == 1.0


def test_read_only_answers_and_heals(world):
    world.journal.full = "the disk is full"
    refused = m.Written(1, False, "the disk is full")
    assert world.write([("job", b"a", b"1")]) == refused
    assert world.write([("job", b"a", b"1")]) == refused
    assert world.ask(m.Create(1, "job", b"a", b"1")) == refused
    assert world.ask(m.Swap(1, "job", b"a", None, b"1")) == refused
    assert world.ask(m.NewJob(1)) == refused
    world.send(m.Write(0, (("job", b"a", b"1"),), ()))
    assert world.turn() == []
    assert world.rows("job") == {}
    assert world.machine.next_deadline() == pytest.approx(101.0)
    world.pass_time(1.0)
    assert world.turn() == []
    assert world.write([("job", b"a", b"1")]) == refused
    world.journal.full = ""
    world.pass_time(1.0)
    assert world.turn() == []
    assert world.notices == [("error", "the control store is read-only: the disk is full"), ("info", "the control store can write again")]
    assert world.write([("job", b"a", b"1")]).ok
    assert world.machine.next_deadline() is None


def test_deletes_are_tried_while_read_only(world):
    world.write([("job", b"a", b"1")])
    world.journal.full = "the disk is full"
    world.write([("job", b"b", b"1")])
    assert not world.write((), [("job", b"a")]).ok
    world.journal.full = ""
    assert world.write((), [("job", b"a")]).ok
    assert world.rows("job") == {}
    assert world.machine.statistics()["read_only"] == 1.0


def test_no_delete_is_lost_to_a_full_disk(world):
    world.write([("job", key, b"1") for key in (b"a", b"b", b"c", b"d")])
    world.journal.full = "the disk is full"
    # One that is rolled back, one that comes with rows that cannot be put, one alone; and one of a row that never was.
    world.write([("job", b"x", b"1")], [("job", b"a")])
    world.send(m.Write(0, (("job", b"y", b"1"),), (("job", b"b"), ("job", b"x"))))
    world.send(m.Write(0, (), (("job", b"c"),)))
    assert world.ask(m.Read(1, "job", (b"a", b"d"))) == m.Found(1, ((b"a", b"1"), (b"d", b"1")), False)
    world.pass_time(1.0)
    world.turn()
    assert world.rows("job").keys() == {b"a", b"b", b"c", b"d"}
    assert world.machine.statistics()["owed_deletes"] == 3
    world.journal.full = ""
    world.pass_time(1.0)
    world.turn()
    assert world.rows("job") == {b"d": b"1"}
    assert world.machine.statistics()["owed_deletes"] == world.machine.statistics()["read_only"] == 0


def test_a_range_of_rows_is_deleted_also_where_their_commit_is_under_way(world):
    world.write([("object", key, b"1") for key in (b"a", b"b1", b"b2", b"c")])
    world.send(m.Write(0, (("object", b"b3", b"1"), ("object", b"d", b"1"), ("job", b"b", b"1")), ()))
    assert world.ask(m.DeleteRows(1, "object", b"b", b"c")) == m.Written(1, True, "")
    assert world.rows("object").keys() == {b"a", b"c", b"d"}
    assert world.ask(m.DeleteRows(2, "object", b"a", b"b")) == m.Written(2, True, ""), "the first key, too"
    assert (world.rows("object").keys(), world.rows("job").keys()) == ({b"c", b"d"}, {b"b"})
    for table in ("meta", "no such"):
        assert world.ask(m.DeleteRows(3, table, b"", b"z")) == m.Written(3, False, f"there is no table {table!r} to write to")


def test_a_failed_attempt_is_repeated_also_while_a_commit_is_under_way(world):
    world.write([("job", b"a", b"1")])
    world.journal.full = "full"
    world.write([("job", b"b", b"1")])
    world.send(m.Write(0, (), (("job", b"a"),)))
    world.pass_time(1.0)
    world.turn(commit=False)
    world.pass_time(1.0)
    assert world.machine.next_deadline() > world.now
    world.journal.full = ""
    world.turn()
    assert world.machine.statistics()["read_only"] == 0.0


def test_a_full_map_on_disk_heals_through_the_machine(tmp_path):
    journal = Journal.open(str(tmp_path), 2**20, "process")
    journal.complete = lambda: False
    world = World(journal)
    number = 0
    while world.write([("object", b"%d" % number, bytes(20_000))]).ok:
        number += 1
    assert number > 10
    assert "control_store_bytes" in world.notices[0][1]
    assert world.write((), [("object", b"%d" % row) for row in range(number)]).ok
    for _ in range(2):
        world.pass_time(1.0)
        world.turn()
    assert world.write([("object", b"0", bytes(20_000))]).ok
    journal.close()


# --- events --------------------------------------------------------------------------------------------------------------------------


def test_the_oldest_events_are_deleted(world):
    world = World(events_bytes=10_000)
    for number in range(300):
        world.write([("event", b"%08d" % number, bytes(92))])
    kept = world.rows("event")
    assert 7_000 < world.machine.statistics()["events_bytes"] <= 10_000
    assert min(kept) == b"%08d" % (300 - len(kept))
    world.begin(world.journal.crash())
    assert world.machine.statistics()["events_bytes"] == sum(len(key) + len(value) for key, value in kept.items())
    world.write([("event", b"%08d" % 300, bytes(20_000))])
    assert world.rows("event") == {}
    world.write([("event", b"1", b"x"), ("event", b"2", b"")], [("event", b"0")])
    world.write([("event", b"1", b"xyz")], [("event", b"2")])
    assert world.machine.statistics()["events_bytes"] == 4


# --- refusals ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        m.Write(0, (("tasks", b"a", b""),), ()),
        m.Write(0, (("meta", b"jobs", b""),), ()),
        m.Write(0, (("job", b"fine", b""), ("job", b"", b"")), ()),
        m.Write(0, (), (("job", bytes(512)),)),
        m.Write(3, (("job", bytes(512), b""),), ()),
        m.Create(3, "meta", b"jobs", b""),
        m.Swap(3, "nothing", b"jobs", None, b""),
        m.Read(3, "nothing", ()),
        m.Scan(3, "nothing", b"", b"", 5),
        m.Scan(3, "job", b"", b"", 0),
    ],
)
def test_a_write_that_does_not_fit_is_refused_whole(world, message):
    answer = world.ask(message)
    assert isinstance(answer, m.Refused) or (answer.token, answer.ok) == (3, False)
    assert answer.text
    assert world.machine.statistics()["refused"] == 1
    world.pass_time(1)
    assert world.turn() == []
    assert world.machine.statistics()["commits"] == 0


def test_only_the_shell_reports_commits(world):
    client = address(CLIENT, b"12345678")
    world.send(m.Write(1, (("job", b"a", b"1"),), ()))
    world.turn(commit=False)
    world.send(m.Committed(1, ""), client)
    ((who, answer),) = world.turn(commit=False)
    assert (who, type(answer)) == (client, m.Refused)
    world.send(m.Committed(0, ""), SHELL_ADDRESS)
    assert world.turn(commit=False) == []
    world.commit()
    assert world.turn() == [(ME, m.Written(1, True, ""))]


# --- any order of all of it ----------------------------------------------------------------------------------------------------------


class Histories(RuleBasedStateMachine):
    """Random requests, commits, rollbacks and crashes. Nothing acknowledged is lost, nothing refused is there."""

    keys = st.sampled_from([b"a", b"b", b"c"])

    def __init__(self):
        super().__init__()
        self.world = World()
        self.token = 0
        self.requests = {}
        """token -> (key, value); every value is another"""
        self.latest = {}
        """key -> token of the last request that names it"""
        self.certain = {}
        """key -> value, where the last request was acknowledged"""
        self.refused = set()
        self.jobs = set()

    def listen(self, commit=False):
        for _, message in self.world.turn(commit=commit):
            if isinstance(message, m.JobNumber):
                assert message.number not in self.jobs
                self.jobs.add(message.number)
            elif message.token in self.requests:
                key, value = self.requests.pop(message.token)
                if not message.ok and value is not None:
                    self.refused.add(value)
                elif message.ok and self.latest[key] == message.token:
                    self.certain[key] = value

    def request(self, key, value):
        self.token += 1
        self.requests[self.token] = key, value
        self.latest[key] = self.token
        self.certain.pop(key, None)
        return self.token

    @rule(key=keys, delete=st.booleans())
    def write(self, key, delete):
        value = None if delete else b"%d" % self.token
        token = self.request(key, value)
        self.world.send(m.Write(token, () if delete else (("job", key, value),), (("job", key),) if delete else ()))

    @rule(key=keys, stale=st.booleans())
    def swap(self, key, stale):
        expected = b"stale" if stale else self.world.journal.get("job", key)
        value = b"%d" % self.token
        self.world.send(m.Swap(self.request(key, value), "job", key, expected, value))

    @rule(key=keys)
    def create(self, key):
        value = b"%d" % self.token
        self.world.send(m.Create(self.request(key, value), "job", key, value))

    @rule()
    def new_job(self):
        self.token += 1
        self.world.send(m.NewJob(self.token))

    @rule(seconds=st.sampled_from([0.01, 0.06, 1.1]))
    def time(self, seconds):
        self.world.pass_time(seconds)

    @rule(commit=st.booleans())
    def turn(self, commit):
        self.listen(commit)

    @rule()
    def commit(self):
        self.world.commit()

    @rule(full=st.booleans())
    def disk(self, full):
        self.world.journal.full = "full" if full else ""

    @rule()
    def crash(self):
        self.world.begin(self.world.journal.crash())

    @invariant()
    def sound(self):
        self.world.machine.check_invariants()
        rows = dict(self.world.journal.scan("job"))
        assert self.certain.items() <= {key: rows.get(key) for key in (b"a", b"b", b"c")}.items()
        assert self.refused.isdisjoint(rows.values())

    @precondition(lambda self: not self.world.journal.full)
    @rule()
    def settle(self):
        self.world.pass_time(1.1)
        self.listen(commit=True)
        self.world.pass_time(0.1)
        self.listen(commit=True)
        assert self.world.machine.statistics()["read_only"] == 0.0
        assert self.world.ask(m.NewJob(0)).number > max(self.jobs, default=0)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=40)
