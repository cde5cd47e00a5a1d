"""The journal: one suite for every engine, and what only a disk can do (crash, fill up, be of another boot or format)."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import textwrap
import threading

import hypothesis.strategies as st
import lmdb
import msgpack
import pytest
from faults import PATIENCE
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from zfabric.adapters import journal as journal_module
from zfabric.adapters.dump import dump
from zfabric.adapters.journal import Journal, ReadOnlyJournal
from zfabric.adapters.memory_journal import MemoryJournal
from zfabric.adapters.store_check import find_damage
from zfabric.exceptions import ConfigError, FabricError, VersionMismatchError
from zfabric.machines.common.tables import KEY_BYTES_MAX, TABLES
from zfabric.protocol.effects import Store

MiB = 2**20
ENGINES = ["process", "power", "memory", "memory-deferred"]


def store(puts=(), deletes=()):
    return Store(tuple(puts), tuple(deletes), 1, True)


def make(engine, path):
    if engine.startswith("memory"):
        return MemoryJournal(deferred=engine == "memory-deferred")
    return Journal.open(str(path), 64 * MiB, engine)


def commit(journal, *stores):
    """Commit and wait; the error."""
    ended, errors = threading.Event(), []
    journal.commit(stores, lambda error: (errors.append(error), ended.set()))
    if isinstance(journal, MemoryJournal):
        journal.complete()
    assert ended.wait(PATIENCE)
    return errors[0]


@pytest.fixture(params=ENGINES)
def journal(request, tmp_path):
    journal = make(request.param, tmp_path / "store")
    yield journal
    journal.close()


# --- conformance ------------------------------------------------------------------------------------------------------------


def test_rows_are_there_after_their_commit(journal):
    assert journal.get("task", b"a") is None
    assert commit(journal, store([("task", b"a", b"1"), ("task", b"b", b"2"), ("job", b"a", b"3")])) == ""
    assert (journal.get("task", b"a"), journal.get("job", b"a"), journal.get("object", b"a")) == (b"1", b"3", None)
    assert commit(journal, store([("task", b"a", b"")], [("task", b"b"), ("task", b"absent")])) == ""
    assert journal.scan("task") == [(b"a", b"")]


def test_several_transactions_are_one_in_order(journal):
    stores = [store([("job", b"k", b"1")]), store([], [("job", b"k")]), store([("job", b"k", b"2"), ("node", b"n", b"")])]
    assert commit(journal, *stores) == ""
    assert journal.scan("job") == [(b"k", b"2")]
    assert journal.scan("node") == [(b"n", b"")]


def test_a_bad_row_rolls_the_whole_back(journal):
    for key in (b"", b"k" * (KEY_BYTES_MAX + 1)):
        assert commit(journal, store([("job", b"good", b"1")]), store([("job", key, b"1")])) != ""
        assert journal.scan("job") == []
    assert commit(journal, store([("job", b"k" * KEY_BYTES_MAX, b"1")])) == ""


def test_scan_pages_through_a_prefix(journal):
    keys = [b"a", b"p", b"p\x00", b"p1", b"p2", b"p\xff", b"p\xff\xff", b"q"]
    commit(journal, store([("name", key, key) for key in keys]))
    assert [key for key, _ in journal.scan("name")] == keys
    assert [key for key, _ in journal.scan("name", b"p")] == keys[1:7]
    pages, after = [], b""
    while page := journal.scan("name", b"p", after, 4):
        pages.append([key for key, _ in page])
        after = page[-1][0]
    assert pages == [keys[1:5], keys[5:7]]
    assert journal.scan("name", b"p", b"zzz") == []
    assert journal.scan("name", b"p", b"a")[0] == (b"p", b"p")
    assert journal.scan("name", b"zz") == []


def test_floor(journal):
    assert journal.floor("task", b"", b"x") is None
    commit(journal, store([("task", key, key) for key in (b"a1", b"b3", b"b5")]))
    assert journal.floor("task", b"b", b"b4") == (b"b3", b"b3")
    assert journal.floor("task", b"b", b"b5") == (b"b5", b"b5")
    assert journal.floor("task", b"b", b"b9") == (b"b5", b"b5")
    assert journal.floor("task", b"b", b"b2") is None
    assert journal.floor("task", b"a", b"a0") is None


@pytest.mark.parametrize("engine", ["power", "memory-deferred"])
def test_reads_during_a_commit_show_the_state_before_it(engine, tmp_path, monkeypatch):
    gate = threading.Event()
    original = Journal._commit_filled
    monkeypatch.setattr(Journal, "_commit_filled", lambda self: (gate.wait(PATIENCE), original(self)))
    journal = make(engine, tmp_path / "store")
    errors, ended = [], threading.Event()
    journal.commit([store([("job", b"k", b"1")])], lambda error: (errors.append(error), ended.set()))
    assert journal.get("job", b"k") is None
    assert journal.scan("job") == []
    assert errors == []
    gate.set()
    if engine == "memory-deferred":
        assert journal.complete()
    assert ended.wait(PATIENCE)
    assert errors == [""]
    assert journal.get("job", b"k") == b"1"
    journal.close()


def test_a_commit_shows_when_it_has_ended_and_not_before(tmp_path, monkeypatch):
    journal = Journal.open(str(tmp_path), MiB, "power")
    reached, gate, ended = threading.Event(), threading.Event(), threading.Event()
    end = journal._idle.set
    monkeypatch.setattr(journal._idle, "set", lambda: (reached.set(), gate.wait(PATIENCE), end()))
    journal.commit([store([("job", b"k", b"1")])], lambda error: ended.set())
    assert reached.wait(PATIENCE)
    assert journal.get("job", b"k") is None
    assert journal.floor("job", b"k", b"k") is None
    gate.set()
    assert ended.wait(PATIENCE)
    assert journal.get("job", b"k") == b"1"
    journal.close()


class Engines(RuleBasedStateMachine):
    """Every engine against a dictionary."""

    keys = st.binary(min_size=1, max_size=3).map(lambda key: bytes(byte % 4 + 97 for byte in key))
    tables = st.sampled_from(["task", "job"])

    def __init__(self):
        super().__init__()
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        self.engines = {name: make(name, os.path.join(self.directory.name, name)) for name in ENGINES}
        self.model = {table: {} for table in TABLES}

    @rule(
        puts=st.dictionaries(st.tuples(tables, keys), st.binary(max_size=8), max_size=6),
        deletes=st.sets(st.tuples(tables, keys), max_size=4),
    )
    def commit(self, puts, deletes):
        deletes -= puts.keys()
        transaction = store([(table, key, value) for (table, key), value in puts.items()], sorted(deletes))
        for engine in self.engines.values():
            assert commit(engine, transaction) == ""
        for (table, key), value in puts.items():
            self.model[table][key] = value
        for table, key in deletes:
            self.model[table].pop(key, None)

    @rule(table=tables, prefix=st.one_of(st.just(b""), keys), after=st.one_of(st.just(b""), keys), limit=st.integers(1, 5))
    def scan(self, table, prefix, after, limit):
        expected = sorted(item for item in self.model[table].items() if item[0].startswith(prefix) and item[0] > after)[:limit]
        for name, engine in self.engines.items():
            assert engine.scan(table, prefix, after, limit) == expected, name

    @rule(table=tables, key=keys, length=st.integers(0, 3))
    def floor(self, table, key, length):
        last = max((item for item in self.model[table].items() if item[0] <= key), default=None)
        expected = last if last and last[0].startswith(key[:length]) else None
        for name, engine in self.engines.items():
            assert engine.floor(table, key[:length], key) == expected, name

    @rule(name=st.sampled_from(ENGINES))
    def reopen(self, name):
        engine = self.engines[name]
        if isinstance(engine, MemoryJournal):
            self.engines[name] = engine.crash()
        else:
            engine.close()
            self.engines[name] = make(name, os.path.join(self.directory.name, name))

    @invariant()
    def get(self):
        for table in ("task", "job"):
            for key in (b"a", b"ab", b"b"):
                assert {engine.get(table, key) for engine in self.engines.values()} == {self.model[table].get(key)}

    def teardown(self):
        for engine in self.engines.values():
            engine.close()
        self.directory.cleanup()


TestEngines = Engines.TestCase
TestEngines.settings = settings(max_examples=15, stateful_step_count=20)


# --- in memory ---------------------------------------------------------------------------------------------------------------


def test_a_crash_loses_what_was_under_way_and_nothing_else():
    journal = MemoryJournal(deferred=True)
    assert commit(journal, store([("job", b"a", b"1")])) == ""
    answers = []
    journal.commit([store([("job", b"b", b"2")])], answers.append)
    successor = journal.crash()
    assert successor.scan("job") == [(b"a", b"1")]
    assert not successor.complete()
    assert answers == []


def test_a_full_memory_journal_rolls_back():
    journal = MemoryJournal()
    journal.full = "no space"
    assert commit(journal, store([("job", b"a", b"1")])) == "no space"
    journal.full = ""
    assert journal.scan("job") == []


# --- the directory ------------------------------------------------------------------------------------------------------------


def test_the_store_is_readable_by_its_user_only(tmp_path):
    path = tmp_path / "deep" / "store"
    old = os.umask(0)
    try:
        journal = Journal.open(str(path), MiB, "process")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {name: stat.S_IMODE((path / name).stat().st_mode) for name in os.listdir(path)} == dict.fromkeys(os.listdir(path), 0o600)
    journal.close()
    path.chmod(0o755)
    Journal.open(str(path), MiB, "process").close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_one_process_at_a_time(tmp_path):
    first = Journal.open(str(tmp_path / "store"), MiB, "process")
    with pytest.raises(FabricError, match=f"in use by process {os.getpid()}"):
        Journal.open(str(tmp_path / "store"), MiB, "process")
    first.close()
    Journal.open(str(tmp_path / "store"), MiB, "process").close()


def test_a_directory_that_is_not_ours_is_refused_and_left_alone(tmp_path):
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(ConfigError, match="not a control store"):
        Journal.open(str(tmp_path), MiB, "process")
    assert os.listdir(tmp_path) == ["letter"]
    (tmp_path / "stamp.json").write_text('{"kind": "postage"}')
    with pytest.raises(ConfigError, match="not a control store"):
        Journal.open(str(tmp_path), MiB, "process")


def test_a_beginning_cut_short_is_begun_again(tmp_path):
    (tmp_path / "lock").touch()
    (tmp_path / "stamp.json.new").write_text("{")
    journal = Journal.open(str(tmp_path), MiB, "process")
    assert commit(journal, store([("job", b"a", b"1")])) == ""
    journal.close()


@pytest.mark.parametrize("change", [{"version": 99}, {"protocol": 99}, {"data": 3}, {"version": 99, "boot": None}])
def test_another_format_is_refused_naming_both(tmp_path, change):
    Journal.open(str(tmp_path), MiB, "process").close()
    ours = json.loads((tmp_path / "stamp.json").read_text())
    stamp = ours | change
    stamp = {name: value for name, value in stamp.items() if value is not None}
    (tmp_path / "stamp.json").write_text(json.dumps(stamp))
    with pytest.raises(VersionMismatchError) as caught:
        Journal.open(str(tmp_path), MiB, "process")
    changed, theirs = next(iter(change.items()))
    assert str(theirs) in str(caught.value)
    assert str(ours[changed]) in str(caught.value)
    with pytest.raises(VersionMismatchError):
        ReadOnlyJournal.look_into(str(tmp_path))


def test_a_file_of_the_other_lmdb_is_refused_before_it_is_mapped(tmp_path):
    Journal.open(str(tmp_path), MiB, "process").close()
    (tmp_path / "data.mdb").unlink()
    lmdb.open(str(tmp_path), lock=False, lib_version=1).close()
    with pytest.raises(VersionMismatchError, match="LMDB data format 3"):
        Journal.open(str(tmp_path), MiB, "process")


def test_the_format_stamp_matches_the_file(tmp_path):
    begin = "import sys; from zfabric.adapters.journal import Journal; Journal.open(sys.argv[1], 2**20, 'process').close()"
    environment = os.environ | {"LMDB_DEFAULT_LIB_VERSION": "1"}
    subprocess.run([sys.executable, "-c", begin, str(tmp_path)], check=True, env=environment)
    magic, version = struct.unpack_from("=II", (tmp_path / "data.mdb").read_bytes(), 16)
    assert (magic, version) == (0xBEEFC0DE, journal_module.LMDB_DATA_VERSION)
    stamp = json.loads((tmp_path / "stamp.json").read_text())
    assert stamp["lmdb"].startswith("0.9.")
    assert stamp["boot"] == journal_module.boot_id()


def damaged_store(path):
    """A store of every shape: rows in pages of their own, in several levels, overwritten and deleted ones."""
    journal = Journal.open(str(path), 16 * MiB, "process")
    for turn in range(4):
        commit(journal, store([("event", b"%d/%d" % (turn, n), bytes([turn]) * (9000 if n % 7 == 0 else 90)) for n in range(100)]))
        commit(
            journal,
            store([("job", b"%04d" % turn, msgpack.packb({"status": "ended"}))], [("event", b"%d/%d" % (turn, n)) for n in range(30)]),
        )
    journal.close()
    return (path / "data.mdb").read_bytes()


def test_a_damaged_store_is_set_aside_and_reported(tmp_path):
    path = tmp_path / "store"
    whole = damaged_store(path)
    for number, content in enumerate((b"x" * 8192, whole[:5000], whole[: len(whole) // 2]), 1):
        (path / "data.mdb").write_bytes(content)
        with pytest.raises(FabricError, match=r"is damaged .*sets it aside"):
            list(dump(str(path)))
        journal = Journal.open(str(path), 16 * MiB, "process")
        assert "is damaged" in journal.report
        assert f"{path}.set-aside-{number}" in journal.report
        assert (tmp_path / f"store.set-aside-{number}/data.mdb").read_bytes() == content
        assert journal.scan("event") == []
        journal.close()


def test_pages_far_outside_and_an_empty_list_of_free_pages_are_damage(tmp_path):
    whole = damaged_store(tmp_path / "store")
    file = tmp_path / "store/data.mdb"
    (size,) = struct.unpack_from("=I", whole, 40)
    newest = max((0, size), key=lambda meta: struct.unpack_from("=QQ", whole, meta + 136)[1])
    far, empty = bytearray(whole), bytearray(whole)
    for meta in (0, size):
        struct.pack_into("=QQ", far, meta + 128, 2**62, 2**63)  # the root of the tables, the last page
    page = struct.unpack_from("=Q", whole, newest + 80)[0] * size
    (node,) = struct.unpack_from("=H", whole, page + 16)
    struct.pack_into("=HHH", empty, page + node, 0, 0, 0)
    for content, text in ((far, "it ends after"), (empty, "its list of free pages is cut")):
        file.write_bytes(content)
        assert text in find_damage(str(file), thorough=True)


def test_every_cut_is_found_out_before_the_file_is_mapped(tmp_path):
    whole = damaged_store(tmp_path / "store")
    cut = tmp_path / "store/data.mdb"
    rows = list(dump(str(tmp_path / "store")))
    found = 0
    for size in range(4096, len(whole), 4096):
        cut.write_bytes(whole[:size])
        if find_damage(str(cut), thorough=False):
            found += 1
        else:
            assert list(dump(str(tmp_path / "store"))) == rows, "only pages that nothing refers to are missing"
    assert found > len(whole) // 4096 // 2
    cut.write_bytes(whole)
    assert find_damage(str(cut), thorough=True) == ""


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        ("job", b"job1", b"\xc1 foreign"),
        ("job", b"job1", msgpack.packb({"status": "running"})),
        ("meta", b"jobs", msgpack.packb("many")),
        ("task", b"job1" + bytes(12), msgpack.packb([[1, 2]])),
        ("function", b"job1" + bytes(16), msgpack.packb(7)),
        ("log", bytes(24), b""),
        ("checkpoint", bytes(28), msgpack.packb(["one", [], b""])),
        ("kv", b"k\0key", msgpack.packb([b"key", b"version", "large", b""])),
        ("kv", b"jjob1aprocess-", msgpack.packb([1, [[2, "stored"]]])),
        ("kv", b"jjob1uversion", b""),
        ("meta", b"kv bytes", msgpack.packb(1.5)),
    ],
)
def test_rows_that_no_daemon_could_take_in_are_damage_too(tmp_path, table, key, value):
    path = tmp_path / "store"
    journal = Journal.open(str(path), MiB, "process")
    commit(journal, store([(table, key, value)]))
    journal.close()
    assert [row["table"] for row in dump(str(path))] == [table], "people are shown it"
    assert Journal.open(str(path), MiB, "process", thorough=False).close() is None
    journal = Journal.open(str(path), MiB, "process", thorough=True)
    assert f"a row of the table {table!r}" in journal.report
    journal.close()


SCRIBBLE = """
import random, sys
from zfabric.adapters.journal import Journal
from zfabric.machines.common.tables import TABLES

path = sys.argv[1]
with open(path + "/data.mdb", "rb") as file:
    whole = file.read()
found = 0
for seed in range(200):
    rng = random.Random(seed)
    data = bytearray(whole)
    at = rng.randrange(len(data) // 4096) * 4096 + rng.choice((0, 8, 10, 12, 16, 24, 40, rng.randrange(4000)))
    size = rng.choice((1, 2, 8, 64))
    data[at : at + size] = rng.randbytes(size)
    with open(path + "/data.mdb", "wb") as file:
        file.write(data)
    with open(path + "/stamp.json", "rb") as file:
        stamp = file.read()
    try:
        journal = Journal.open(path, 2**24, "process", thorough=True)
    except Exception as error:  # whatever it is, its text is the one that is looked for
        assert "LMDB data format" in str(error), error
        continue
    found += bool(journal.report)
    for table in TABLES:
        journal.scan(table, limit=10_000)
    journal.close()
assert found > 20, found
"""


def test_foreign_bytes_anywhere_never_end_the_process(tmp_path):
    path = tmp_path / "store"
    damaged_store(path)
    done = subprocess.run([sys.executable, "-c", SCRIBBLE, str(path)], timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_unsynced_rows_of_another_boot_are_set_aside_and_reported(tmp_path):
    path = tmp_path / "store"
    for number in (1, 2):
        journal = Journal.open(str(path), MiB, "process", boot=f"boot {number - 1}")
        commit(journal, store([("job", b"a", b"%d" % number)]))
        journal.close()
        journal = Journal.open(str(path), MiB, "process", boot=f"boot {number}")
        aside = tmp_path / f"store.set-aside-{number}"
        assert str(aside) in journal.report
        assert (aside / "data.mdb").exists()
        assert journal.scan("job") == []
        with pytest.raises(FabricError, match="in use"):
            Journal.open(str(path), MiB, "process", boot=f"boot {number}")
        journal.close()
        again = Journal.open(str(path), MiB, "process", boot=f"boot {number}")
        assert again.report == ""
        again.close()
        for name in os.listdir(path):
            (path / name).unlink()


def test_synced_rows_outlive_the_boot(tmp_path):
    journal = Journal.open(str(tmp_path), MiB, "power", boot="one")
    commit(journal, store([("job", b"a", b"1")]))
    journal.close()
    journal = Journal.open(str(tmp_path), MiB, "power", boot="two")
    assert journal.report == ""
    assert journal.scan("job") == [(b"a", b"1")]
    journal.close()


def test_the_last_way_of_writing_decides(tmp_path):
    path = str(tmp_path / "store")
    for durability, boot in (("process", "one"), ("power", "one"), ("power", "two"), ("process", "two"), ("process", "two")):
        journal = Journal.open(path, MiB, durability, boot=boot)
        assert journal.report == ""
        commit(journal, store([("job", boot.encode() + durability.encode(), b"")]))
        journal.close()
    journal = Journal.open(path, MiB, "power", boot="three")
    assert journal.report != ""
    assert journal.scan("job") == []
    journal.close()


def test_reading_a_store_does_not_change_it(tmp_path):
    with pytest.raises(ConfigError):
        ReadOnlyJournal.look_into(str(tmp_path / "absent"))
    journal = Journal.open(str(tmp_path), MiB, "process")
    commit(journal, store([("job", b"a", b"1")]))
    with pytest.raises(FabricError, match="in use"):
        ReadOnlyJournal.look_into(str(tmp_path))
    journal.close()
    before = (tmp_path / "data.mdb").read_bytes()
    looking = ReadOnlyJournal.look_into(str(tmp_path))
    assert looking.scan("job") == [(b"a", b"1")]
    assert "reading only" in commit(looking, store([("job", b"b", b"1")]))
    looking.close()
    assert (tmp_path / "data.mdb").read_bytes() == before
    stamp = json.loads((tmp_path / "stamp.json").read_text())
    (tmp_path / "stamp.json").write_text(json.dumps(stamp | {"boot": "earlier"}))
    with pytest.raises(FabricError, match="before this boot"):
        ReadOnlyJournal.look_into(str(tmp_path))


# --- death ---------------------------------------------------------------------------------------------------------------------

WRITER = """
import sys, threading
from zfabric.adapters.journal import Journal
from zfabric.protocol.effects import Store
journal = Journal.open(sys.argv[1], 64 * 2**20, sys.argv[2])
batch = 0
while True:
    ended = threading.Event()
    rows = tuple(("task", b"%06d-%02d" % (batch, row), b"x" * (50 * row)) for row in range(20))
    journal.commit([Store(rows, (("task", b"%06d-%02d" % (batch - 1, 0)),), batch, True)], lambda error: ended.set())
    ended.wait()
    sys.stdout.write("%d\\n" % batch)
    sys.stdout.flush()
    batch += 1
"""


@pytest.mark.parametrize("durability", ["process", "power"])
def test_nothing_acknowledged_is_lost_and_nothing_is_torn_by_kill_9(durability, tmp_path):
    path = str(tmp_path / "store")
    for enough in (5, 40, 111):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, path, durability], stdout=subprocess.PIPE)
        acknowledged = -1
        while acknowledged < enough:
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split(b"\n")[:-1]
        writer.stdout.close()
        writer.wait()
        acknowledged = int(rest[-1]) if rest else acknowledged
        journal = Journal.open(path, 64 * MiB, durability)
        assert journal.report == ""
        batches = {}
        for key, value in journal.scan("task", limit=10**6):
            batch, row = map(int, key.split(b"-"))
            assert len(value) == 50 * row
            batches.setdefault(batch, set()).add(row)
        last = max(batches)
        assert last in (acknowledged, acknowledged + 1)
        assert batches.pop(last) == set(range(20))
        assert batches == {batch: set(range(1, 20)) for batch in range(last)}
        assert commit(journal, store([], [("task", key) for key, _ in journal.scan("task", limit=10**6)])) == ""
        journal.close()


# --- no room ---------------------------------------------------------------------------------------------------------------------


def many(prefix, count=3000):
    return store([("task", prefix + b"%05d" % number, b"x" * 100) for number in range(count)])


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_full_map_rolls_back_and_deletes_make_room(durability, tmp_path):
    journal = Journal.open(str(tmp_path), MiB, durability)
    assert commit(journal, many(b"a")) == ""
    size = (tmp_path / "data.mdb").stat().st_size
    number = 0
    while not (error := commit(journal, store([("task", b"b%05d" % number, b"x" * 3000)]))):
        number += 1
    assert "limit of 1048576 bytes (control_store_bytes)" in error
    assert journal.get("task", b"b%05d" % number) is None
    assert len(journal.scan("task", b"b", limit=10**6)) == number
    assert commit(journal, store([], [("task", b"a%05d" % row) for row in range(3000)])) == ""
    assert commit(journal, store([("meta", b"probe", b"")])) == ""
    assert commit(journal, store([("task", b"c", b"x" * 10000)])) == ""
    assert commit(journal, many(b"d", 20000)) != ""
    assert journal.scan("task", b"d") == []
    assert journal.get("task", b"c") == b"x" * 10000
    assert size < (tmp_path / "data.mdb").stat().st_size < 4 * MiB
    journal.close()


@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_full_map_has_room_for_trying_again(durability, tmp_path):
    journal = Journal.open(str(tmp_path), 64 * MiB, durability)
    assert commit(journal, many(b"a")) == ""
    journal.close()
    journal = Journal.open(str(tmp_path), 4096, durability)
    for attempt in range(100):
        assert commit(journal, store([("task", b"b%05d" % row, b"x" * 100) for row in range(100)])) != ""
        assert commit(journal, store([("meta", b"probe", b"%d" % attempt)])) == ""
    assert (tmp_path / "data.mdb").stat().st_size < 2 * MiB
    assert len(journal.scan("task", limit=10**6)) == 3000
    journal.close()


def test_an_engine_that_calls_itself_broken_is_opened_anew(tmp_path):
    journal = Journal.open(str(tmp_path), MiB, "power")
    assert commit(journal, store([("job", b"a", b"1")])) == ""
    # LMDB writes its meta page through a descriptor of its own; take away the right to write through it.
    data = os.path.realpath(tmp_path / "data.mdb")
    descriptors = [int(name) for name in os.listdir("/proc/self/fd") if os.path.realpath(f"/proc/self/fd/{name}") == data]
    (synced,) = [each for each in descriptors if fcntl.fcntl(each, fcntl.F_GETFL) & os.O_DSYNC]
    read_only = os.open(data, os.O_RDONLY)
    os.dup2(read_only, synced, inheritable=False)
    os.close(read_only)
    assert commit(journal, store([("job", b"b", b"2")])) != ""
    assert journal.scan("job") == [(b"a", b"1")]
    assert commit(journal, store([("job", b"c", b"3")])) == ""
    assert journal.scan("job") == [(b"a", b"1"), (b"c", b"3")]
    journal.close()


FULL_DISK = """
import os, subprocess, sys, threading
from zfabric.adapters.journal import Journal
from zfabric.protocol.effects import Store
directory, durability, limit = sys.argv[1], sys.argv[2], sys.argv[3]
if limit == "tmpfs":
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", directory], check=True)
journal = Journal.open(directory + "/store", 64 * 2**20, durability)

def commit(prefix, count):
    ended, errors = threading.Event(), []
    rows = tuple(("task", prefix + b"%05d" % number, b"x" * 1000) for number in range(count))
    journal.commit([Store(rows, (), 1, True)], lambda error: (errors.append(error), ended.set()))
    ended.wait()
    return errors[0]

if limit == "tmpfs":
    with open(directory + "/ballast", "wb") as file:
        file.write(b"x" * 2**20)
else:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, resource.RLIM_INFINITY))
assert commit(b"a", 50) == ""
error = commit(b"b", 5000)
print(error)
assert error, "it fitted"
assert commit(b"b", 5000)
assert journal.scan("task", b"b") == [] and len(journal.scan("task", b"a")) == 50
assert commit(b"c", 20) == ""
assert commit(b"b", 1100)
if limit == "tmpfs":
    os.unlink(directory + "/ballast")
else:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert commit(b"d", 1000) == ""
journal.close()
journal = Journal.open(directory + "/store", 64 * 2**20, durability)
assert [len(journal.scan("task", prefix, limit=9999)) for prefix in (b"a", b"b", b"c", b"d")] == [50, 0, 20, 1000]
journal.close()
print("healed")
"""


@pytest.mark.parametrize("durability", ["process", "power"])
@pytest.mark.parametrize("limit", ["tmpfs", "rlimit"])
def test_a_full_disk_rolls_back_and_heals(limit, durability, tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tmp_path), durability, limit]
    if limit == "tmpfs":
        # Without root, a user namespace of our own is where we may mount.
        command = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "healed"
    assert ("disk of" if limit == "tmpfs" else "cannot be written") in done.stdout
