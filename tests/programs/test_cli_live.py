"""The command line on running clusters: listings against known tasks, logs, timelines, several clusters and programs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from command_line import ZFABRIC, Place, a_place
from faults import PATIENCE, eventually, gone, name_of, next_line
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from zfabric.adapters.processes import children
from zfabric.cli.output import console
from zfabric.protocol.ids import object_id
from zfabric.protocol.messages import PROTOCOL_VERSION
from zfabric.protocol.names import brief
from zfabric.runtime.connect import attach
from zfabric.runtime.session import Session


@pytest.fixture
def place() -> Iterator[Place]:
    """Nothing runs here but what the test starts, and all of it has ended afterwards."""
    with a_place() as one:
        yield one


# --- a live cluster ---------------------------------------------------------------------------------------------------------------


LIVE = """
    import sys, time, numpy as np, zfabric as zf
    zf.init(num_cpus=2, object_store_memory=100 * 2**20, config={"worker_idle_seconds": 3600.0})  # All that ran tasks are listed.

    @zf.remote
    def slow(seconds):
        print("slow begins", flush=True)
        print("slow has doubts", file=sys.stderr, flush=True)
        time.sleep(seconds)

    @zf.remote
    def quick(x): return x

    @zf.remote
    def parent(): return zf.get(quick.remote(9))

    @zf.remote
    def wrong(): raise ValueError("wrong")

    @zf.remote(num_gpus=4)
    def needs_gpus(): pass

    @zf.remote
    def dependent(x): return x

    done = [quick.remote(i) for i in range(3)]
    assert zf.get(done) == [0, 1, 2] and zf.get(parent.remote()) == 9
    failed = wrong.remote()
    zf.wait([failed])
    running = [slow.remote(1000) for _ in range(2)]
    queued = [slow.remote(1000) for _ in range(3)]
    impossible = needs_gpus.remote()
    waiting = dependent.remote(running[0])
    large, small = zf.put(np.zeros(10**6)), zf.put("small")
    array = zf.get(large)
    print("ready", flush=True)
    sys.stdin.readline()
"""


class LiveCluster:
    """A cluster whose tasks are known, and its program."""

    def __init__(self, place: Place, running: subprocess.Popen[str]) -> None:
        self.place = place
        self.running = running
        self.session = Session(f"{place.sessions}/{place.left()[0]}")
        self.json = place.json
        self.run = place.run


@pytest.fixture(scope="module")
def live() -> Iterator[LiveCluster]:
    with a_place() as place, place.program(LIVE, command=("submit",)) as running:
        assert "ready\n" in iter(lambda: next_line(running.stdout), "")
        one = LiveCluster(place, running)
        eventually(lambda: [row["state"] for row in place.json("tasks", "--state", "running")] == ["running"] * 2, "two running tasks")
        eventually(lambda: place.run("logs").stdout.count("slow has doubts") == 2, "both have written their lines")
        eventually(lambda: place.json("status")["tasks"]["finished"] == 3, "what the program has dropped is forgotten")
        yield one
        running.communicate("\n", timeout=PATIENCE)
        assert running.returncode == 0


def by_state(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    states: dict[str, list[str]] = {}
    for row in rows:
        states.setdefault(row["state"], []).append(row["name"])
    return states


def test_status(live: LiveCluster) -> None:
    status = live.json("status")
    counts = {name: count for name, count in status["tasks"].items() if count}
    assert counts == {"running": 2, "queued": 3, "infeasible": 1, "waiting": 1, "finished": 3, "failed": 1}
    assert (status["resources"]["CPU"], status["available"]["CPU"]) == (2, 0)
    assert status["available"]["object_store_memory"] == status["resources"]["object_store_memory"] - status["store"]["used"]
    assert status["kind"] == "embedded"
    assert status["store"]["objects"] == 1
    assert 8 * 10**6 <= status["store"]["pinned"] < 9 * 10**6
    (job,) = status["jobs"]
    assert (job["number"], job["pid"], job["submitted"], job["ended"]) == (1, live.running.pid, 13, False)
    printed = live.run("status").stdout
    assert re.search(r"^CPU +2 +2 ", printed, flags=re.MULTILINE)
    assert re.search(r"^memory +0 B +[\d.]+ [MG]iB ", printed, flags=re.MULTILINE)
    assert "node:" not in printed, "every node has one of itself"
    assert "2 running, 3 queued, 1 infeasible, 1 waiting, 3 finished, 1 failed" in printed
    assert f"program {live.running.pid}" in printed


def test_tasks(live: LiveCluster) -> None:
    rows = live.json("tasks")
    assert by_state(rows) == {
        "running": ["slow"] * 2,
        "queued": ["slow"] * 3,
        "infeasible": ["needs_gpus"],
        "waiting": ["dependent"],
        "finished": ["quick"] * 3,
        "failed": ["wrong"],
    }
    assert all(re.fullmatch("[0-9a-f]{32}", row["task_id"]) for row in rows)
    assert [row["demand"] for row in rows if row["state"] == "infeasible"] == [{"CPU": 1, "GPU": 4}]
    assert [row["waits_for"] for row in rows if row["state"] == "waiting"] == [1]
    assert {row["pid"] for row in rows[:2]} == {row["pid"] for row in live.json("workers") if row["state"] == "busy"}
    assert set(by_state(live.json("tasks", "--state", "pending"))) == {"queued", "infeasible", "waiting"}
    assert by_state(live.json("tasks", "--state", "failed", "--state", "waiting")) == {"waiting": ["dependent"], "failed": ["wrong"]}
    assert live.json("tasks", "--state", "blocked") == []
    few = live.run("tasks", "--limit", 2)
    assert len(few.stdout.splitlines()) == 3
    assert "only the first 2 are shown" in few.stderr
    printed = live.run("tasks").stdout.splitlines()
    assert printed[0].split() == ["task", "name", "state", "for", "attempt", "pid", "demand"]
    assert len(printed) == 1 + len(rows)
    assert max(map(len, printed)) <= 80
    assert "\x1b" not in "".join(printed)


def test_objects(live: LiveCluster) -> None:
    rows = {row["object_id"]: row for row in live.json("objects")}
    assert all(re.fullmatch("[0-9a-f]{40}", name) for name in rows)
    puts = {row["size"]: row for row in rows.values() if row["made_by"] == "put"}
    large = puts.pop(max(puts))
    assert (large["where"], large["state"], large["in_use_by"], large["on_disk"]) == ("memory", "ready", 1, False)
    (small,) = puts.values()
    assert (small["where"], small["holders"]) == ("inline", 1)
    states = {(row["made_by"], row["state"]) for row in rows.values()}
    assert {("quick", "ready"), ("wrong", "error"), ("slow", "pending"), ("dependent", "pending")} <= states
    assert {row["pins"] for row in rows.values() if row["made_by"] == "slow"} == {0, 1}
    printed = live.run("objects").stdout
    assert "7.6 MiB" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_workers(live: LiveCluster) -> None:
    rows = live.json("workers")
    assert [(row["state"], row["task"], row["demand"]) for row in rows if row["task"]] == [("busy", "slow", {"CPU": 1})] * 2
    assert all(row["memory_bytes"] > 0 and row["seconds"] >= 0 and not gone(row["pid"]) for row in rows)
    printed = live.run("workers").stdout
    assert str(rows[0]["pid"]) in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_explain(live: LiveCluster) -> None:
    tasks = {row["name"]: bytes.fromhex(row["task_id"]) for row in live.json("tasks")}
    found = live.json("explain", tasks["needs_gpus"].hex())
    assert (found["kind"], found["state"], found["id"]) == ("task", "infeasible", tasks["needs_gpus"].hex())
    assert "no node has 1 CPU, 4 GPU" in found["reason"]
    assert found["facts"]["function"] == "needs_gpus"
    dependent = brief(tasks["dependent"])
    assert live.json("explain", dependent)["state"] == "waiting"
    printed = live.run("explain", dependent).stdout
    assert printed.startswith(f"task {dependent} (dependent): waiting\nwaits for 1 of its arguments: ")
    assert "(slow, running)" in printed
    assert live.json("explain", brief(object_id(tasks["wrong"])))["state"] == "failed"
    (large,) = (row["object_id"] for row in live.json("objects") if row["where"] == "memory")
    assert live.json("explain", large.upper())["kind"] == "object"
    worker = live.json("workers")[0]
    for name in (worker["pid"], worker["token"]):
        assert (live.json("explain", name)["kind"], live.json("explain", name)["id"]) == ("worker", worker["token"])
    several = live.run("explain", tasks["dependent"].hex()[:9], code=2).stderr
    assert "can mean" in several
    assert f"{dependent}   task dependent" in several
    for nothing in ("ffff", "9-0000-1", "no-such-id", "", "caf\udce9"):
        assert "nothing is known of" in live.run("explain", nothing, code=1).stderr


def test_timeline(live: LiveCluster) -> None:
    path = f"{live.place.directory}/trace.json"
    assert "6 attempts" in live.run("timeline", "-o", path).stdout
    events = json.loads(Path(path).read_text())
    assert isinstance(events, list)
    spans = [event for event in events if event["ph"] == "X"]
    assert sorted(span["name"] for span in spans) == ["parent", "quick", "quick", "quick", "quick", "wrong (failed)"]
    named = {(event["name"], event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"}
    for span in spans:
        assert {type(span["ts"]), type(span["dur"])} <= {int, float}
        assert span["dur"] >= 0
        assert re.fullmatch("[0-9a-f]{32}", span["args"]["task_id"])
        assert named["process_name", span["pid"], 0] == f"node {live.json('status')['node']}"
        assert named["thread_name", span["pid"], span["tid"]] == f"worker {span['tid']}"
    (parent,) = (span for span in spans if span["name"] == "parent")
    within = [span for span in spans if span["tid"] == parent["tid"] and parent["ts"] <= span["ts"] < parent["ts"] + parent["dur"]]
    assert all(span["ts"] + span["dur"] <= parent["ts"] + parent["dur"] for span in within)
    assert {span["tid"] for span in spans} <= {row["pid"] for row in live.json("workers")}
    assert json.loads(live.run("timeline", "-o", "-").stdout) == events
    pipe = f"{live.place.directory}/pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        try:
            live.run("timeline", "-o", pipe)
            assert json.loads(reader.communicate(timeout=PATIENCE)[0]) == events
        finally:
            reader.kill()  # If nobody has opened the pipe, it waits for ever.
    assert Path(pipe).is_fifo()  # written to, not replaced
    assert "cannot be written" in live.run("timeline", "-o", "/no/such/file", code=2).stderr
    assert "is a directory" in live.run("timeline", "-o", live.place.directory, code=2).stderr
    assert [name for name in os.listdir(live.place.directory) if "part" in name] == []


def test_logs(live: LiveCluster) -> None:
    busy = [row["pid"] for row in live.json("workers") if row["state"] == "busy"]
    printed = live.run("logs").stdout.splitlines()
    assert {f"(slow pid={pid}) slow begins" for pid in busy} <= set(printed)
    assert printed.count(f"(slow pid={busy[0]}) slow has doubts") == 1
    assert live.run("logs", "--worker", busy[0]).stdout == f"(slow pid={busy[0]}) slow begins\n(slow pid={busy[0]}) slow has doubts\n"
    assert live.run("logs", "-n", 0).stdout == ""
    assert "no logs of a worker 999999" in live.run("logs", "--worker", 999999, code=1).stderr
    (job,) = (row["number"] for row in live.json("status")["jobs"])
    assert set(live.run("logs", "--job", job).stdout.splitlines()) == set(printed)
    assert live.run("logs", "--job", job + 1).stdout == ""
    assert "--daemon and --job exclude each other" in live.run("logs", "--daemon", "--job", job, code=2).stderr
    with open(f"{live.session.logs}/daemon.err", "a") as file:
        file.write("one\ntwo\nthree\n")
    assert live.run("logs", "--daemon", "-n", 2).stdout == "(daemon) two\n(daemon) three\n"


def test_state_of_a_running_cluster(live: LiveCluster) -> None:
    rows = live.json("state", "dump")
    tables = {row["table"] for row in rows}
    assert {"meta", "job", "function", "event", "task"} <= tables
    assert {row["value"][0] for row in rows if row["table"] == "function"} >= {"slow", "quick", "needs_gpus"}
    (job,) = live.json("state", "dump", "--table", "job")
    assert (job["key"], job["value"]["status"], job["value"]["pid"]) == ("00000001", "running", live.running.pid)
    assert len(live.json("state", "dump", "--table", "function", "--limit", 2)) == 2
    assert live.json("state", "dump", "--limit", 0) == []
    lines = live.run("state", "dump", "--table", "job").stdout.splitlines()
    assert lines[0].startswith("job      00000001  {")
    assert live.json("state", "dump", live.session.directory, "--table", "job") == [job]
    assert "in use by process" in live.run("state", "dump", f"{live.session.directory}/store", code=1).stderr


def test_a_closed_pipe_is_no_error(live: LiveCluster) -> None:
    command = f"{ZFABRIC} state dump | head -1"
    ran = subprocess.run(["bash", "-c", command], env=live.place.environment, capture_output=True, text=True, timeout=PATIENCE)
    assert (ran.stdout.count("\n"), ran.stderr) == (1, "")


def test_tools_do_not_stay_registered_even_if_killed(live: LiveCluster) -> None:
    def processes() -> int:
        return int(live.json("status")["statistics"]["processes"])

    registered = 1 + len(live.json("workers")) + 1  # The program, its workers, and the tool that asks.
    eventually(lambda: processes() == registered, "the tools of other tests are forgotten")
    code = (
        "import os, sys\nfrom zfabric.runtime.connect import attach\nfrom zfabric.runtime.session import Session\n"
        "attach(Session(sys.argv[1]), kind='tool')\nos.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, live.session.directory], env=live.place.environment, timeout=PATIENCE)
    eventually(lambda: processes() == registered, "the killed tool is forgotten")


def test_wrong_queries_are_refused(live: LiveCluster) -> None:
    client = attach(live.session, kind="tool")
    try:
        wrong = (("nonsense",), ("rows", "tasks"), ("rows", "task", 5), ("rows", "task", b"", -1), ("tasks", 5, ("lost",)), ("find",))
        for question in wrong:
            with pytest.raises(Exception, match=f"^{question[0]}: "):
                client.query(*question)
        assert client.query("rows", "meta")[1] is False
    finally:
        client.close()


# --- which cluster? ---------------------------------------------------------------------------------------------------------------


IDLE = "import sys, zfabric as zf; zf.init(num_cpus=1, object_store_memory=2**26); print('ready', flush=True); sys.stdin.readline()"


def test_tools_choose_a_cluster_or_ask(place: Place) -> None:
    with place.program(IDLE) as one:
        assert next_line(one.stdout) == "ready\n"
        only = place.json("status")["session"]
        with place.program(IDLE) as other:
            assert next_line(other.stdout) == "ready\n"
            asked = place.run("status", code=2).stderr
            assert "2 clusters are running here" in asked
            listed = re.findall(r"--address (\S+) ", asked)
            assert only in listed
            assert len(listed) == 2
            assert {place.json("status", "--address", each)["session"] for each in listed} == set(listed)
            assert "has what it was started with" in place.run("submit", "--num-cpus", 1, "x.py", code=2, ZFABRIC_ADDRESS=only).stderr
            assert json.loads(place.run("status", "--json", ZFABRIC_ADDRESS=only).stdout)["session"] == only
            started = place.json("start", "--num-cpus", 1, "--object-store-memory", "64MiB")["session"]
            assert place.json("status")["session"] == started
            assert place.json("status", "--address", "auto")["session"] == started
            assert place.json("stop") == [started]
            assert only in place.run("stop", code=1).stderr
            assert sorted(place.json("stop", "--all")) == sorted(listed)
            assert place.left() == []


def test_a_cluster_of_another_version_is_stopped(place: Place) -> None:
    started = place.json("start", "--num-cpus", 1, "--object-store-memory", "64MiB")["session"]
    path = Path(started, "session.json")
    output = json.loads(path.read_text())
    path.write_text(json.dumps({**{name: output[name] for name in ("kind", "supervisor", "started")}, "protocol": 99}))
    assert (
        f"protocol 99, this has {PROTOCOL_VERSION}): end it with `zfabric stop --address {started}`" in place.run("status", code=1).stderr
    )
    assert place.run("stop").stdout == f"Stopped the cluster of another version of zfabric ({started}).\n"
    assert place.left() == []


JOINS = """
    import subprocess, sys, zfabric as zf
    @zf.remote
    def double(x): print("printed", flush=True); return 2 * x
    if len(sys.argv) > 1:
        with zf.init(address=sys.argv[1]) as cluster:
            print(zf.get(double.remote(3)), cluster["address"] == sys.argv[1])
        sys.exit()
    joined = zf.init(log_to_driver=False)
    print(joined["address"], zf.get([double.remote(x) for x in (1, 2)]))
    for own in ({"num_cpus": 1}, {"num_gpus": 0}, {"resources": {"x": 1}}, {"object_store_memory": 10**8}, {"config": {"max_retries": 1}}):
        zf.shutdown()
        try: zf.init(**own)
        except ValueError as error: assert 'address="local"' in str(error), error
        else: raise SystemExit(f"joined, or started another one: {own}")
    with zf.init(address="local", num_cpus=1) as mine:
        assert mine["address"] != joined["address"]
        print(subprocess.check_output([sys.executable, sys.argv[0], mine["address"]], text=True), end="")
"""


def test_a_program_joins_the_cluster_that_its_user_has_started_and_no_other(place: Place) -> None:
    """By ``init`` and by the first use. Another process can join the address that ``init`` returns."""
    with place.program(IDLE) as other:  # a cluster of a program is joined by nobody who does not name it
        assert next_line(other.stdout) == "ready\n"
        session = place.json("start", "--num-cpus", 1, "--object-store-memory", "64MiB")["session"]
        with place.program(JOINS) as running:
            out, err = running.communicate(timeout=PATIENCE)
    assert [line for line in out.splitlines() if "printed" not in line] == [f"{session} [2, 4]", "6 True"], err
    assert out.count("printed") == 1  # by the one without log_to_driver=False
    place.run("stop")


# --- a started cluster with two programs ------------------------------------------------------------------------------------------


TWO = """
    import json, os, sys, time, numpy as np, zfabric as zf
    zf.init(address="auto", log_to_driver=False)
    @zf.remote(name="work")
    def work(x): time.sleep(0.001); print("worked"); return os.getpid(), x
    @zf.remote(num_cpus=0.5)
    def forever(): time.sleep(1000)
    stuck = forever.remote()
    refs = [work.remote(i) for i in range(20)]
    kept = zf.put(np.full(10**6, os.getpid()))
    durable = zf.put("durable", durable=True)
    values = zf.get(refs)
    assert [x for _, x in values] == list(range(20))
    pids = sorted({pid for pid, _ in values})
    print(json.dumps([zf.get_runtime_context().get_job_id(), pids, [ref.hex() for ref in refs], kept.hex()]), flush=True)
    while sys.stdin.readline():
        assert zf.get(kept)[0] == os.getpid() and zf.get(durable) == "durable"
        print(sum(x for _, x in zf.get([work.remote(i) for i in range(50)])), flush=True)
"""


def rows_of_job(rows: list[dict[str, Any]], job: str) -> list[tuple[str, str]]:
    return [(row["table"], row["key"]) for row in rows if row["table"] not in ("event", "meta") and row["key"].startswith(job)]


def test_two_programs_on_one_cluster_are_isolated(place: Place) -> None:
    place.run("start", "--num-cpus", 2, "--object-store-memory", "100MiB")
    with place.program(TWO) as one, place.program(TWO) as other:
        assert other.stdin is not None
        first, second = json.loads(next_line(one.stdout)), json.loads(next_line(other.stdout))
        assert first[0] != second[0]
        assert not set(first[1]) & set(second[1])  # no worker served both
        assert not set(first[2]) & set(second[2])
        assert first[3] != second[3]
        assert {job["pid"] for job in place.json("status")["jobs"]} == {one.pid, other.pid}
        own = {(pid, int(job, 16)) for job, pids, *_ in (first, second) for pid in pids}
        shown = re.findall(r"^\(work pid=(\d+) job=(\d+)\) worked$", place.run("logs").stdout, re.MULTILINE)
        assert {(int(pid), int(job)) for pid, job in shown} == own
        workers = {row["pid"] for row in place.json("workers") if row["job"] == first[0]}
        assert workers
        eventually(lambda: "task" in {table for table, _ in rows_of_job(place.json("state", "dump"), first[0])}, "rows of the first")

        one.kill()

        def only_the_tombstone() -> bool:
            return rows_of_job(place.json("state", "dump"), first[0]) == [("job", first[0])]

        eventually(lambda: all(map(gone, workers)), "the end of its workers")
        eventually(only_the_tombstone, "the end of its rows")
        eventually(lambda: place.json("status")["store"]["objects"] == 1, "the end of its objects")
        assert [row["object_id"] for row in place.json("objects") if row["object_id"].startswith(first[0])] == []
        assert {row["job"] for row in place.json("tasks")} == {second[0]}
        ended = {row["key"]: row["value"]["status"] for row in place.json("state", "dump", "--table", "job")}
        assert ended == {first[0]: "ended", second[0]: "running"}

        other.stdin.write("\n")
        other.stdin.flush()
        assert next_line(other.stdout) == f"{sum(range(50))}\n"
        other.communicate(timeout=PATIENCE)
        assert other.returncode == 0
    assert place.json("status")["jobs"] == []
    assert rows_of_job(place.json("state", "dump"), second[0]) == [("job", second[0])]
    place.run("stop")


def test_state_of_a_store_that_no_daemon_has_open(place: Place) -> None:
    place.run("start", "--num-cpus", 1, "--object-store-memory", "64MiB", "--store", "kept")
    Path(place.directory, "p.py").write_text("import zfabric as zf\nprint(zf.get(zf.remote(abs).remote(-1)))")
    assert place.run("submit", "--address", "auto", "p.py").stdout == "1\n"
    place.run("stop")
    (job,) = place.json("state", "dump", "kept", "--table", "job")
    assert (job["key"], job["value"]["status"]) == ("00000001", "ended")
    tables = [row["table"] for row in place.json("state", "dump", "kept", "--limit", 1)]
    assert {"meta", "job", "event"} <= set(tables) <= {"meta", "job", "event", "node"}
    assert len(tables) == len(set(tables))
    place.run("start", "--num-cpus", 1, "--object-store-memory", "64MiB", "--store", "kept")
    assert place.run("submit", "--address", "auto", "p.py").stdout == "1\n"
    assert {row["key"] for row in place.json("state", "dump", "--table", "job")} == {"00000001", "00000002"}
    elsewhere = Path(place.directory, "t")  # where no cluster is running
    elsewhere.mkdir()
    second = place.run("start", "--num-cpus", 1, "--store", "kept", code=1, TMPDIR=str(elsewhere))
    assert "in use by process" in second.stderr
    place.run("stop")
    data = Path(place.directory, "kept/data.mdb")
    whole = data.read_bytes()
    data.write_bytes(whole[:9000])
    refused = place.run("state", "dump", "kept", code=1)
    assert "kept is damaged (data.mdb: it ends after 9,000 bytes" in refused.stderr
    begun = place.run("start", "--num-cpus", 1, "--object-store-memory", "64MiB", "--store", "kept")
    assert "kept is damaged" in begun.stderr
    assert "kept.set-aside-1, and begun anew" in begun.stderr
    place.run("stop")
    assert Path(place.directory, "kept.set-aside-1/data.mdb").stat().st_size == 9000


@pytest.mark.parametrize("settings", [(), ("--config", "durability=power")])
def test_a_program_that_joined_a_cluster_gets_an_error_when_it_is_stopped(place: Place, settings: tuple[str, ...]) -> None:
    place.run("start", "--num-cpus", 2, "--object-store-memory", "64MiB", *settings)
    _stopped_under_a_program(place, "auto", "stop")


def test_stopping_a_cluster_reports_no_deaths(place: Place) -> None:
    _stopped_under_a_program(place, "local", "stop", "--all")


def _stopped_under_a_program(place: Place, address: str, *stop: str) -> None:
    source = f"""
        import zfabric as zf
        zf.init(address={address!r}, num_cpus={"None" if address == "auto" else 2})
        refs = [zf.remote(__import__("time").sleep).remote(1000) for _ in range(4)]
        print("ready", flush=True)
        zf.get(refs)
    """
    with place.program(source) as running:
        assert next_line(running.stdout) == "ready\n"
        eventually(lambda: place.json("status")["tasks"]["running"] == 2, "tasks run")
        place.run(*stop)
        output = running.communicate(timeout=PATIENCE)[1]
    told = "NodeDiedError: the cluster was stopped (`zfabric stop`, or SIGTERM to its supervisor); call zf.shutdown() and zf.init()"
    assert told in output, output
    assert "died of signal" not in output, output


UNFINISHED = """
    import time, zfabric as zf
    zf.init(address="auto")
    @zf.remote
    def nap(_): time.sleep(1000)
    @zf.remote
    def done(): return b"v" * 100
    first = done.remote()
    kept, values = zf.put("kept", durable=True), [nap.remote(first) for _ in range(2000)]
    zf.get(first)
    print("ready", flush=True)
    zf.get(values)
"""


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_a_job_that_runs_when_its_cluster_ends_is_recorded_as_ended(place: Place, end: str) -> None:
    start = ("start", "--num-cpus", 1, "--object-store-memory", "64MiB", "--store", "kept")
    place.run(*start)
    session = Session(f"{place.sessions}/{place.left()[0]}")

    def left(*dump: str) -> dict[str, int]:
        """Rows of the job by table, what happened aside."""
        rows = [row for row in place.json("state", "dump", *dump) if row["table"] != "event" and row["key"].startswith("00000001")]
        return dict(Counter(row["table"] if row["table"] != "job" else row["value"]["status"] for row in rows))

    with place.program(UNFINISHED) as running:
        assert next_line(running.stdout) == "ready\n"
        eventually(lambda: left() == {"running": 1, "object": 1, "function": 2, "task": 2001}, "all of it is in the store")
        if end == "stopped":
            place.run("stop")
            assert left("kept") == {"ended": 1}
        else:
            os.kill(int(session.describe()["supervisor"]), signal.SIGKILL)
            eventually(lambda: not session.alive(), "the node is gone")
        assert "NodeDiedError" in running.communicate(timeout=PATIENCE)[1]
    if end == "killed":
        assert left("kept")["running"] == 1
        place.run(*start)
        eventually(lambda: left() == {"ended": 1, "object": 1}, "the next node ends the job of the one before, but for what is durable")
        Path(place.directory, "p.py").write_text("import zfabric as zf\nprint(zf.get(zf.remote(abs).remote(-1)))")
        assert place.run("submit", "--address", "auto", "p.py").stdout == "1\n"
        place.run("stop")


# --- logs that are followed, clusters that do not answer ---------------------------------------------------------------------------


TALK = """
    import os, sys, zfabric as zf
    zf.init(num_cpus=1, object_store_memory=2**26, log_to_driver=False)
    @zf.remote(max_retries=0)
    def say(text, die=False):
        print(text, flush=True)
        if die: os._exit(3)
        return os.getpid()
    print(zf.get(say.remote("first")), flush=True)
    sys.stdin.readline()
    zf.wait([say.remote("last words", True)])
    print(zf.get(say.remote("reborn")), flush=True)
    sys.stdin.readline()
"""


def test_following_logs_until_the_cluster_ends(place: Place) -> None:
    with place.program(TALK) as running:
        assert running.stdin is not None
        first = int(next_line(running.stdout))
        follower, interrupted = (
            subprocess.Popen([ZFABRIC, "logs", "-f"], env=place.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        )
        try:
            assert next_line(follower.stdout) == next_line(interrupted.stdout) == f"(say pid={first}) first\n"
            interrupted.send_signal(signal.SIGINT)
            assert interrupted.communicate(timeout=PATIENCE)[1].strip() == "interrupted"
            assert interrupted.returncode == 130
            running.stdin.write("\n")
            running.stdin.flush()
            second = int(next_line(running.stdout))
            assert {next_line(follower.stdout) for _ in range(2)} == {f"(say pid={first}) last words\n", f"(say pid={second}) reborn\n"}
            assert place.run("logs", "--worker", first).stdout == f"(say pid={first}) first\n(say pid={first}) last words\n"
            running.communicate("\n", timeout=PATIENCE)
            follower.wait(PATIENCE)
            assert follower.returncode == 0
        finally:
            for one in (follower, interrupted):
                one.kill()
                one.communicate()


def test_a_daemon_that_is_stopped_gives_a_clear_error(place: Place) -> None:
    with place.program(IDLE) as running:
        assert next_line(running.stdout) == "ready\n"
        description = Path(place.sessions, place.left()[0], "session.json")
        written = description.read_text()
        found = json.loads(written)
        (daemon,) = (pid for pid in children(found["supervisor"]) if name_of(pid) == "zf-daemon")
        os.kill(daemon, signal.SIGSTOP)
        try:  # Tools alone are to be so impatient: the program and its workers register on a busy machine.
            description.write_text(json.dumps({**found, "config": {**dict(found["config"]), "register_seconds": 0.5}}))
            assert "did not answer within 0.5 s" in place.run("status", code=1).stderr
            found = place.run("doctor", "--no-try", code=1).stdout
            assert re.search(r"^clusters +problem +\S+, of program \d+, .* does not answer", found, flags=re.MULTILINE)
            assert "zfabric stop --address" in found
        finally:
            description.write_text(written)
            os.kill(daemon, signal.SIGCONT)
        assert place.json("status")["jobs"][0]["pid"] == running.pid


# --- names that a terminal would obey ---------------------------------------------------------------------------------------------


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b1m\u202e\x7f"
NAMED = f"""
    import sys, time, zfabric as zf
    hostile = {HOSTILE!r}
    zf.init(num_cpus=2, labels={{"zone": "a" + hostile}}, resources={{"r" + hostile: 1}}, namespace="s" + hostile)

    @zf.remote
    def waits(): time.sleep(1000)

    @zf.remote
    class Holder:
        def hold(self): return 1

        def wrong(self): raise ValueError("wrong" + hostile)

    @zf.remote(num_gpus=3)
    def never(): print("out" + hostile, flush=True)

    holder = Holder.options(name="n" + hostile).remote()
    assert zf.get(holder.hold.remote()) == 1
    zf.wait([never.options(name="p" + hostile, num_gpus=0).remote()])
    named = never.options(name="t" + hostile).remote()
    running = waits.options(name="w" + hostile).remote()
    print("ready", named.hex(), flush=True)
    sys.stdin.readline()
"""


def test_no_name_reaches_the_terminal_as_anything_but_text(place: Place) -> None:
    with place.program(NAMED) as running:
        ready = next(line for line in iter(lambda: next_line(running.stdout), "") if line.startswith("ready"))
        eventually(lambda: [row for row in place.json("workers") if row["state"] == "busy"], "a task that runs")
        commands = ("tasks", "actors", "workers", "objects", "nodes", "status", "stack", "top", "logs")
        for command in (*((each,) for each in commands), ("metrics", "--once"), ("explain", ready.split()[1]), ("state", "dump")):
            for more in ({}, {"FORCE_COLOR": "1", "COLUMNS": "400"}) if command == ("tasks",) else ({},):
                printed = place.run(*command, **more)
                text = re.sub(r"\x1b\[[0-9;]*m" if more else "never", "", printed.stdout + printed.stderr)
                assert not [each for each in set(text) - {"\n"} if not each.isprintable()], (command, text)
                if command[0] in ("tasks", "actors", "workers", "objects", "nodes", "explain", "stack", "logs"):
                    assert r"\x1b]0;owned\x07\x1b[2J\x9b1m\u202e\x7f" in text, command
        assert "t" + HOSTILE in [row["name"] for row in place.json("tasks")]
        assert place.json("nodes")[0]["labels"] == {"zone": "a" + HOSTILE}
        running.communicate("\n", timeout=PATIENCE)


def test_what_rich_draws_is_text_too() -> None:
    file = StringIO()
    screen = console(force_terminal=True, file=file, width=200)
    with Live(Group(Panel(HOSTILE), Text(HOSTILE), HOSTILE), console=screen, auto_refresh=False):
        pass
    written = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    assert written.count(r"\x1b[2J\x9b1m\u202e\x7f") >= 3
    assert not [each for each in set(written) - {"\n", "\r"} if not each.isprintable()]
