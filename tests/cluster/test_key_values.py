"""The key-value store of the cluster: against a dictionary, message by message, and with real processes whose daemons and drivers die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
from faults import LEASE, PATIENCE, descendants, eventually, name_of, on_node
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from nodes_alone import SELF
from scheduler_alone import DRIVER, JOB, OWN, Restarted

import zfabric as zf
from zfabric.adapters.memory_journal import MemoryJournal
from zfabric.config import Config
from zfabric.exceptions import ArgumentTypeError, GetTimeoutError, KeyValueStoreFullError
from zfabric.machines.common.tables import pack_row, unpack_row
from zfabric.machines.control_store.key_values import BYTES_KEY, HEAD_BYTES, KEY_COSTS
from zfabric.machines.control_store.machine import ControlStore
from zfabric.protocol import codec
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Log, Send, Store
from zfabric.protocol.ids import CLIENT, CONTROL_STORE, LOCAL_SCHEDULER, SHELL, address, job_id
from zfabric.protocol.messages.key_values import KEY_LENGTH_MAX, NAMESPACE_LENGTH_MAX, PART_BYTES
from zfabric.shell.node import NodeMachines
from zfabric.util import kv

STORE, SHELL_ADDRESS = address(CONTROL_STORE, b"store---"), address(SHELL, b"store---")
ME = address(LOCAL_SCHEDULER, b"me------")
HOME = b"home----"


class StoreOfHead:
    """A control store over a journal, and a shell that commits or crashes on request. Requests are repeated to the store after a crash."""

    def __init__(self, **config: Any) -> None:
        self.config = Config.of(config)
        self.journal = MemoryJournal(deferred=True)
        self.token = 0
        self.number = 0
        self.now = 100.0
        self.begin()

    def begin(self) -> None:
        self.machine = ControlStore(STORE, self.config, self.journal)
        self.answers: dict[int, Any] = {}

    def send(self, message: Any) -> None:
        ((_, _, decoded),) = codec.decode(codec.encode(0, 0, [(b"S", b"L", message)]))[2]  # type: ignore[misc]
        self.machine.step(self.now, ME, decoded)

    def turn(self) -> bool:
        """Take effects once. Return whether a transaction was handed over."""
        self.machine.check_invariants()
        effects = self.machine.take_effects(self.now)
        for effect in effects:
            if isinstance(effect, Store):
                self.journal.commit([effect], lambda error, store=effect: self._ended(store, error))
            elif isinstance(effect, Send):
                self.answers[effect.message[0]] = effect.message
            else:
                assert isinstance(effect, Log)
        return any(isinstance(effect, Store) for effect in effects)

    def _ended(self, store: Store, error: str) -> None:
        self.machine.step(self.now, SHELL_ADDRESS, m.Committed(store.sequence, error))

    def settle(self) -> None:
        while self.turn() or self.journal.complete():
            pass

    def crash(self) -> None:
        self.journal = self.journal.crash()
        self.begin()

    def writer(self, job: bytes = job_id(1), number: int | None = None, process: bytes = b"process-") -> Any:
        self.number += number is None
        number = self.number if number is None else number
        return (job, HOME, process, number, number)

    def ask(self, kind: Any, *fields: Any) -> Any:
        self.token += 1
        self.send(kind(self.token, *fields))
        self.settle()
        return self.answers.pop(self.token)

    def put(self, key: bytes, value: bytes = b"", job: bytes = job_id(1), overwrite: bool = True, keep: bool = False) -> Any:
        return self.ask(m.PutKey, self.writer(job), "", key, value, 0, overwrite, keep)

    def get(self, key: bytes) -> Any:
        return self.ask(m.GetKey, "", key, b"", 0).payload

    def list(self, prefix: bytes = b"") -> Any:
        return self.ask(m.ListKeys, "", prefix, b"").payload

    @property
    def bytes(self) -> int:
        row = self.journal.get("meta", BYTES_KEY)
        return unpack_row(row) if row is not None else 0

    @property
    def rows(self) -> int:
        return len(self.journal.scan("kv", limit=10**6))


# --- one request after the other -------------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> StoreOfHead:
    return StoreOfHead()


def test_an_answer_waits_for_its_commit(store: StoreOfHead) -> None:
    store.send(m.PutKey(1, store.writer(), "", b"a", b"1", 0, True, False))
    store.send(m.PutKey(2, store.writer(), "", b"a", b"2", 0, False, False))
    assert store.turn()
    assert store.answers == {}
    store.send(m.GetKey(3, "", b"a", b"", 0))
    store.turn()
    assert store.answers == {}, "a read waits for what was written before it"
    store.settle()
    assert [store.answers[token].payload for token in (1, 2)] == [(True, False), (False, True)], "requests of one turn are decided in order"
    assert store.answers[3].payload[2] == b"1"


@pytest.mark.parametrize("committed", [True, False])
def test_a_repeated_request_changes_nothing_and_has_the_answer_of_the_first(store: StoreOfHead, committed: bool) -> None:
    first, second = store.writer(), store.writer(process=b"another-")
    store.send(m.PutKey(1, first, "", b"lock", b"mine", 0, False, False))
    store.turn()
    if committed:
        store.journal.complete()
    store.crash()  # Nobody has an answer. Another process is faster in having the next store do something.
    deleted = store.ask(m.DeleteKeys, second, "", b"lock", False)
    assert deleted.payload == (int(committed), False)
    answer = store.ask(m.PutKey, first, "", b"lock", b"mine", 0, False, False)
    assert answer.payload == (True, False)
    assert bool(store.get(b"lock")) is not committed, "it was put once: before it was deleted, or behind that"
    assert store.ask(m.DeleteKeys, second, "", b"lock", False) == deleted._replace(token=store.token)


def test_answers_are_retained_only_while_their_process_waits(store: StoreOfHead) -> None:
    for _ in range(3):
        store.put(b"a")
    ((_, row),) = (each for each in store.journal.scan("kv", b"j") if each[0].endswith(b"process-"))
    assert unpack_row(row) == (3, ((3, (True, True)),))
    late = store.ask(m.PutKey, store.writer(number=2), "", b"a", b"late", 0, True, False)
    assert (late.error, store.get(b"a")[2]) == ("FabricError", b""), "whoever sent it does not wait any more"


def test_a_long_key_is_found_by_prefix(store: StoreOfHead) -> None:
    keys = [b"k" * HEAD_BYTES, b"k" * (HEAD_BYTES + 1), b"k" * HEAD_BYTES + b"a", b"k" * KEY_LENGTH_MAX]
    for key in keys:
        store.put(key, key)
    assert all(store.get(key)[2] == key for key in keys)
    assert sorted(store.list(b"k" * 10)[0]) == sorted(keys)
    assert store.list(b"k" * HEAD_BYTES + b"a") == ((keys[2],), False)
    assert store.ask(m.DeleteKeys, store.writer(), "", b"k" * (HEAD_BYTES + 1), True).payload == (2, False)
    assert sorted(store.list()[0]) == sorted((keys[0], keys[2]))


def test_lists_and_deletions_go_page_by_page() -> None:
    store = StoreOfHead()
    for number in range(2_500):
        store.send(m.PutKey(number + 1, store.writer(process=number.to_bytes(8, "big")), "", b"%05d" % number, b"x", 0, True, False))
    found: list[bytes] = []
    more = True
    while more:
        keys, more = store.ask(m.ListKeys, "", b"", found[-1] if found else b"").payload
        assert len(keys) <= 1000
        found += keys
    assert found == [b"%05d" % number for number in range(2_500)]
    count, more = store.ask(m.DeleteKeys, store.writer(), "", b"", True).payload
    assert more
    assert 1000 < count < 2500
    assert store.ask(m.DeleteKeys, store.writer(), "", b"", True).payload == (2500 - count, False)
    assert store.bytes == 0


def test_a_full_store_refuses_and_room_is_found_again() -> None:
    store = StoreOfHead(kv_bytes=3 * KEY_COSTS + 150)
    assert store.put(b"a", b"x" * 100).payload == (True, False)
    assert store.put(b"b", b"x" * 100).payload == (True, False)
    refused = store.put(b"c", b"x" * 100)
    assert (refused.error, refused.payload) == ("KeyValueStoreFullError", ())
    assert "kv_bytes" in refused.text
    assert store.put(b"b", b"").payload == (True, True), "a smaller value fits"
    assert store.put(b"c", b"x" * 30).payload == (True, False)
    assert store.ask(m.PutPart, store.writer(), 0, 2 * PART_BYTES, bytes(PART_BYTES)).error == "KeyValueStoreFullError"
    assert store.list() == ((b"a", b"b", b"c"), False)


def test_an_upload_counts_from_its_first_part_and_is_dropped(store: StoreOfHead) -> None:
    size = PART_BYTES + 10
    writer = store.writer()
    assert store.ask(m.PutPart, writer, 0, size, bytes(PART_BYTES)).payload == ()
    assert store.ask(m.PutPart, writer, 0, size, bytes(PART_BYTES)).payload == (), "it may come twice"
    assert store.bytes == size + KEY_COSTS
    assert store.ask(m.PutPart, writer, 1, size + 1, bytes(11)).error == "FabricError", "it is of another value"
    store.ask(m.DropUpload, writer)
    store.ask(m.DropUpload, writer)
    assert store.bytes == 0
    put = store.ask(m.PutKey, store.writer(), "", b"a", b"", writer[3], True, False)
    assert put.error == "FabricError"
    assert not store.get(b"a")


def test_a_reader_of_parts_notices_another_value(store: StoreOfHead) -> None:
    writer = store.writer()
    for index, part in enumerate((bytes(PART_BYTES), b"end")):
        store.ask(m.PutPart, writer, index, PART_BYTES + 3, part)
    store.ask(m.PutKey, store.writer(), "", b"a", b"", writer[3], True, False)
    version, size, _ = store.get(b"a")
    assert store.ask(m.GetKey, "", b"a", version, 1).payload == (version, size, b"end")
    store.put(b"a", b"new")
    assert store.ask(m.GetKey, "", b"a", version, 1).payload == ()
    assert store.rows == 5, "the parts of the old value are gone: there are a key, a value, and three rows of the job"


def test_an_ended_job_puts_nothing_any_more(store: StoreOfHead) -> None:
    store.ask(m.Write, (("job", job_id(1), pack_row({"status": "ended"})),), ())
    assert store.put(b"a", keep=True).error == "JobEndedError"
    assert store.put(b"a", job=job_id(2)).payload == (True, False)


def test_the_end_of_a_job_deletes_what_was_put_just_before_it(store: StoreOfHead) -> None:
    store.send(m.PutKey(1, store.writer(), "", b"a", b"1", 0, True, False))
    store.send(m.EndKeys(2, job_id(1)))
    store.settle()
    assert store.answers[2].ok
    assert store.rows == store.bytes == 0


def test_the_end_of_a_large_job_takes_several_transactions(store: StoreOfHead) -> None:
    for number in range(5_000):
        process = number.to_bytes(8, "big")
        store.send(m.PutKey(number + 1, store.writer(process=process), "", b"%05d" % number, b"", 0, True, False))
    store.settle()
    before = store.machine.statistics()["commits"]
    assert store.ask(m.EndKeys, job_id(1)).ok
    assert store.rows == store.bytes == 0
    assert store.machine.statistics()["commits"] - before > 2


def test_the_end_of_a_job_goes_on_after_a_full_disk(store: StoreOfHead) -> None:
    store.put(b"kept", keep=True)
    store.send(m.PutKey(1, store.writer(), "", b"a", b"1", 0, True, False))
    store.send(m.EndKeys(2, job_id(1)))
    store.journal.full = "the disk is full"
    store.settle()
    assert store.answers[1] == m.Written(1, False, "the disk is full")
    assert store.answers[2] == m.Written(2, False, "the disk is full")
    assert store.put(b"b") == m.Written(store.token, False, "the disk is full")
    store.journal.full = ""
    store.now += 10
    store.machine.tick(store.now)
    store.settle()
    assert store.list() == ((b"kept",), False)
    assert store.rows == 1


@pytest.mark.parametrize("message", [m.Write(9, (("kv", b"a", b""),), ()), m.DeleteRows(9, "kv", b"", b"z"), m.Create(9, "kv", b"a", b"")])
def test_nobody_writes_rows_of_the_table(store: StoreOfHead, message: Any) -> None:
    store.send(message)
    store.settle()
    assert not store.answers[9].ok


# --- against a dictionary --------------------------------------------------------------------------------------------------------------


class Stored(NamedTuple):
    value: bytes
    job: int
    keep: bool


KEYS = st.sampled_from([b"a", b"ab", b"b", b"a" * HEAD_BYTES, b"a" * HEAD_BYTES + b"x", b"a" * HEAD_BYTES + b"y"])
NAMESPACES = st.sampled_from(["", "n", "né"])
VALUES = st.sampled_from([b"", b"1", b"2" * 100, b"3" * PART_BYTES, b"4" * (PART_BYTES + 1)])
JOBS = st.integers(1, 3)


class AgainstADictionary(RuleBasedStateMachine):
    """Changes, crashes before and behind a commit with repeated requests, full disks, and ends of jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.store = StoreOfHead()
        self.model: dict[tuple[str, bytes], Stored] = {}
        self.crashes = ""

    @rule(when=st.sampled_from(["before", "behind"]))
    def crash_during_the_next_change(self, when: str) -> None:
        self.crashes = when

    def change(self, kind: Any, *fields: Any) -> Any:
        """Have something changed. If the store crashes before or behind the commit, the request is repeated to the next one."""
        store = self.store
        if self.crashes:
            store.send(kind(10**6, *fields))
            store.turn()
            if self.crashes == "behind":
                store.journal.complete()
            store.crash()
            self.crashes = ""
        return store.ask(kind, *fields)

    @rule(namespace=NAMESPACES, key=KEYS, value=VALUES, job=JOBS, overwrite=st.booleans(), keep=st.booleans())
    def put(self, namespace: str, key: bytes, value: bytes, job: int, overwrite: bool, keep: bool) -> None:
        upload = 0
        if len(value) > PART_BYTES:
            writer = self.store.writer(job_id(job))
            upload = writer[3]
            for index in range(2):
                part = value[index * PART_BYTES : (index + 1) * PART_BYTES]
                assert self.change(m.PutPart, writer, index, len(value), part).payload == ()
            value_sent = b""
        else:
            value_sent = value
        existed = (namespace, key) in self.model
        expected = overwrite or not existed
        answer = self.change(m.PutKey, self.store.writer(job_id(job)), namespace, key, value_sent, upload, overwrite, keep)
        assert answer.payload == (expected, existed)
        if expected:
            self.model[namespace, key] = Stored(value, job, keep)

    @rule(namespace=NAMESPACES, key=KEYS | st.just(b""), prefix=st.booleans(), job=JOBS)
    def delete(self, namespace: str, key: bytes, prefix: bool, job: int) -> None:
        gone = [each for each in self.model if each[0] == namespace and (each[1].startswith(key) if prefix else each[1] == key)]
        answer = self.change(m.DeleteKeys, self.store.writer(job_id(job)), namespace, key, prefix)
        assert answer.payload == (len(gone), False)
        for each in gone:
            del self.model[each]

    @rule(job=JOBS)
    def end_job(self, job: int) -> None:
        assert self.change(m.EndKeys, job_id(job)).ok
        self.model = {each: stored for each, stored in self.model.items() if stored.keep or stored.job != job}
        assert self.store.journal.scan("kv", b"j" + job_id(job)) == []

    @precondition(lambda self: not self.crashes)
    @rule(namespace=NAMESPACES, key=KEYS, job=JOBS, deletes=st.booleans())
    def full_disk(self, namespace: str, key: bytes, job: int, deletes: bool) -> None:
        store = self.store
        store.journal.full = "full"
        writer = store.writer(job_id(job))
        if deletes:
            assert store.ask(m.DeleteKeys, writer, namespace, b"", True).text == "full"
        else:
            assert store.ask(m.PutKey, writer, namespace, key, b"lost", 0, True, False).text == "full"
        assert store.ask(m.DeleteKeys, writer, namespace, b"", True).text == "full", "it is read-only by now"
        store.journal.full = ""
        store.now += 10
        store.machine.tick(store.now)
        store.settle()

    @rule(namespace=NAMESPACES, prefix=KEYS | st.just(b""))
    def list_keys(self, namespace: str, prefix: bytes) -> None:
        keys, more = self.store.ask(m.ListKeys, namespace, prefix, b"").payload
        assert not more
        assert sorted(keys) == sorted(key for name, key in self.model if name == namespace and key.startswith(prefix))

    @invariant()
    def all_values_are_there(self) -> None:
        for (namespace, key), stored in self.model.items():
            version, size, part = self.store.ask(m.GetKey, namespace, key, b"", 0).payload
            if size > PART_BYTES:
                part += self.store.ask(m.GetKey, namespace, key, version, 1).payload[2]
            assert part == stored.value

    @invariant()
    def nothing_else_is(self) -> None:
        parts = [len(value) for _, value in self.store.journal.scan("kv", b"v", limit=10**6)]
        assert sum(parts) == sum(len(stored.value) for stored in self.model.values())
        assert self.store.bytes > sum(parts) if self.model else self.store.bytes == 0


TestAgainstADictionary = AgainstADictionary.TestCase
TestAgainstADictionary.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


# --- jobs whose homes are dead -------------------------------------------------------------------------------------------------------


class RestartedHead(Restarted):
    """Its control store has keys of its own running job, and of jobs whose homes are dead or have forgotten them."""

    def answer(self, message: Any) -> None:
        if isinstance(message, m.Scan) and message.table == "kv":
            homes = ((JOB, SELF), (job_id(2), b"deadnode"), (job_id(3), SELF))
            self.send(b"S" + OWN, m.Found(message.token, tuple((b"h" + job, home) for job, home in homes), False))
        else:
            super().answer(message)


def test_a_restarted_head_ends_the_keys_of_jobs_that_nobody_else_will_end() -> None:
    """Its daemon may have died between the death of a node and the end of the keys."""
    node = RestartedHead()
    node.rejoin()
    ended = [message.job for _, message in node.take(m.EndKeys)]
    assert ended == [job_id(2), job_id(3)]
    tombstones = [row[1] for _, message in node.take(m.Write) for row in message.puts if row[0] == "job"]
    assert tombstones == ended, "what comes late is refused"


def test_a_request_that_is_repeated_to_a_daemon_before_it_knows_the_process_waits() -> None:
    node = Restarted()
    node.send(CLIENT + DRIVER, m.Query(1, "keys", ("put", 1, 1, "", b"a", b"1", 0, True, False)))
    assert node.take(m.Answer) == []
    node.rejoin()
    ((_, message),) = node.take(m.PutKey)
    assert message.writer == (JOB, SELF, DRIVER, 1, 1)


def test_the_next_cluster_on_a_store_has_the_keys_that_are_kept() -> None:
    journal = MemoryJournal()

    def turn(machines: NodeMachines) -> list[Any]:
        def perform(effect: Any) -> None:
            if isinstance(effect, Store):
                journal.commit([effect], lambda error: machines.committed(effect.sequence, error))

        machines.decide(0.0, perform)
        return [message for _, _, message in machines.take_outgoing().get(DRIVER, ())]

    first = NodeMachines(OWN, b"node one", Config(), (("CPU", 10_000),), 0, journal, 0)
    rows = [("put", number, number, "", key, b"value", 0, True, key == b"kept") for number, key in ((1, b"gone"), (2, b"kept"))]
    puts = [m.Query(row[1], "keys", row) for row in rows]
    register = m.Register(m.PROTOCOL_VERSION, "driver", 77, 1, b"", DRIVER, b"", "", "")
    answers = []
    for message in (register, m.Ready(), *puts):
        first.receive(0.0, DRIVER, LOCAL_SCHEDULER, CLIENT, message)
        answers += turn(first)
    assert [each.payload for each in answers if isinstance(each, m.Answer)] == [((True, False), "", "")] * 2
    second = NodeMachines(b"\x02daemon2", b"node two", Config(), (("CPU", 10_000),), 0, journal, 0)
    second.start(0.0, former_jobs=True)
    turn(second)
    assert [unpack_row(row)[0] for _, row in journal.scan("kv", b"k")] == [b"kept"]
    assert len(journal.scan("kv")) == 2


# --- real processes --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes; the program is on the second one."""
    config = {"restart_backoff_max": 0.1, "kv_bytes": 16 * 2**20, "node_lease": LEASE}
    with (
        zf.LocalCluster(nodes=2, cpus_per_node=1, object_store_memory=64 * 2**20, config=config) as cluster,
        zf.init(cluster.nodes[1].address),
    ):
        yield cluster


def daemon_of(node: Any) -> int:
    return next((pid for pid in descendants(node.pid) if name_of(pid) == "zf-daemon"), 0)


@zf.remote
def put_and_get(key: str, value: bytes) -> tuple[bool, bytes | None]:
    return kv.put(key, value, overwrite=False), kv.get(key)


@zf.remote(num_cpus=0)
class Writer:
    """An actor that uses the store in its ``__init__``, too."""

    def __init__(self) -> None:
        kv.put("made", b"by an actor")

    def get(self, key: str) -> bytes | None:
        return kv.get(key)


def test_the_driver_tasks_and_actors_of_all_nodes_see_the_same(cluster: Any) -> None:
    for place, node in enumerate(cluster.nodes):
        key, large = f"from {place}", bytes([place]) * (2 * PART_BYTES + 5)
        assert zf.get(put_and_get.options(scheduling_strategy=on_node(node)).remote(key, large)) == (True, large)
        writer: Any = Writer.options(scheduling_strategy=on_node(node)).remote()
        assert zf.get(writer.get.remote(key)) == large
        assert kv.get(key) == large
        assert kv.delete("made") == 1
    assert not kv.put("from 1", b"no", overwrite=False)
    assert not kv.put("from 1", bytes(2 * PART_BYTES), overwrite=False)
    assert kv.list("from") == [b"from 0", b"from 1"]
    assert kv.list("from", namespace="other") == []
    assert kv.delete("from", prefix=True) == 2
    assert (kv.exists("from 0"), kv.get(b"from 0")) == (False, None)


def test_a_full_store_raises_and_leaves_nothing_of_the_value(cluster: Any) -> None:
    with pytest.raises(KeyValueStoreFullError, match="kv_bytes"):
        kv.put("huge", bytes(17 * 2**20))
    kv.put("large", bytes(15 * 2**20))
    with pytest.raises(KeyValueStoreFullError, match="no room"):
        kv.put("another", bytes(2**20))
    assert kv.list() == [b"large"]
    assert kv.delete("large") == 1
    assert kv.put("another", bytes(2**20))
    assert kv.delete("another") == 1


@pytest.mark.parametrize("place", [0, 1])
def test_requests_and_values_outlive_the_daemon_of_the_head_and_that_of_the_program(cluster: Any, place: int) -> None:
    """Four threads put the same keys, if absent, while the daemon is killed: one of them stores each, whether or not it asks again."""
    node = cluster.nodes[place]
    large = os.urandom(3 * PART_BYTES)
    kv.put("large", large)
    stored: list[str] = []
    begun = threading.Event()

    def put_all(name: str) -> None:
        for number in range(150):
            if kv.put(f"{number}", name.encode(), overwrite=False, namespace="race", timeout=PATIENCE):
                stored.append(f"{number}")
            if number == 20:
                begun.set()

    threads = [threading.Thread(target=put_all, args=(f"thread {place}",)) for place in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(PATIENCE)
    before = eventually(lambda: daemon_of(node), "it has a daemon")
    os.kill(before, signal.SIGKILL)
    for thread in threads:
        thread.join(PATIENCE)
    assert eventually(lambda: daemon_of(node), "it is restarted") != before
    assert sorted(stored) == sorted(map(str, range(150))), "each key was stored once"
    assert kv.get("large") == large
    assert kv.delete("", namespace="race", prefix=True) == 150
    assert kv.delete("large") == 1


def test_a_call_gives_up_after_its_timeout(cluster: Any) -> None:
    pid = eventually(lambda: daemon_of(cluster.nodes[0]), "the head has a daemon")
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(GetTimeoutError, match=r"within 0\.2 s"):
            kv.get("anything", timeout=0.2)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert kv.get("anything", timeout=PATIENCE) is None


PROGRAM = """
    import os, sys, zfabric as zf
    from zfabric.util import kv
    zf.init(address=sys.argv[1])
    @zf.remote
    def f():
        kv.put("task's", b"1", namespace="jobs")
        kv.put("task's, kept", bytes(2**20 + 1), namespace="jobs", keep=True)
    zf.get(f.remote())
    kv.put("large", bytes(2**20 + 1), namespace="jobs")
    if sys.argv[2] == "killed":
        os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("how", ["ends", "killed"])
def test_keys_end_with_their_job_unless_they_are_kept(cluster: Any, where: int, how: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), cluster.nodes[where].address, how], timeout=PATIENCE, check=False
    )
    assert ended.returncode == (-signal.SIGKILL if how == "killed" else 0)
    if how == "killed":
        eventually(lambda: len(kv.list(namespace="jobs")) == 1, "the job ends")
    assert kv.list(namespace="jobs") == [b"task's, kept"]
    assert kv.delete("task's, kept", namespace="jobs") == 1


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: kv.put(1, b""), "a str or bytes"),  # type: ignore[arg-type]
        (lambda: kv.put("a", "text"), "encode a text"),  # type: ignore[arg-type]
        (lambda: kv.put("", b""), "1 to 4,096 bytes"),
        (lambda: kv.get("k" * (KEY_LENGTH_MAX + 1)), "1 to 4,096 bytes"),
        (lambda: kv.get("\ud800"), "UTF-8"),
        (lambda: kv.list(namespace=b"n"), "a namespace is a str"),  # type: ignore[arg-type]
        (lambda: kv.delete("a", namespace="n" * (NAMESPACE_LENGTH_MAX + 1)), "at most 200 bytes"),
        (lambda: kv.exists("a", namespace="\ud800"), "UTF-8"),
        (lambda: kv.get("a", timeout=-1), "timeout is a number"),
    ],
)
def test_bad_arguments(cluster: Any, call: Any, text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=text):
        call()


def test_keys_of_jobs_end_with_the_node_of_their_driver(cluster: Any) -> None:
    """The last test of this cluster: the node of the other program is killed with all its processes."""
    third = cluster.add_node()
    ready = "\n    print('ready', flush=True); sys.stdin.readline()"
    program = textwrap.dedent(PROGRAM + ready)
    with subprocess.Popen(
        [sys.executable, "-c", program, third.address, "waits"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        assert len(kv.list(namespace="jobs")) == 3
        third.kill()
        eventually(lambda: kv.list(namespace="jobs") == [b"task's, kept"], "the node is dead, and its job has ended")
        other.communicate()
