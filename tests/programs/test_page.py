"""The page: who may see it, what its views show of a running cluster, and what a browser makes of it."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from command_line import printed
from conftest import one_cluster, running_cluster
from faults import PATIENCE, eventually, kill_daemon, next_line, on_node
from prometheus_client.parser import text_string_to_metric_families

import zfabric as zf
from zfabric.config import Config
from zfabric.page import connections
from zfabric.page.connections import CONNECTIONS_MAX, Connections
from zfabric.page.errors import ErrorGroups
from zfabric.page.lines import Output
from zfabric.page.metrics import SCRAPERS_MAX, _Handler, exposition, serve
from zfabric.page.spans import LANE_MOST, Attempt, TaskStream, _bars, shares
from zfabric.page.views import Views
from zfabric.protocol.failures import pack_failure
from zfabric.protocol.messages.queries import TASK_STATES
from zfabric.protocol.names import brief
from zfabric.runtime.connect import attach
from zfabric.runtime.log_files import LocalLogFiles
from zfabric.runtime.logs import log_path, note_worker
from zfabric.runtime.session import Session
from zfabric.runtime.timeline import TimelineNode
from zfabric.util import metrics
from zfabric.util.local_cluster import LocalCluster

TOKEN = "?token="


class Page:
    """A page that `zfabric page` serves of the cluster of this test."""

    def __init__(self, address: str, *options: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "zfabric", "page", "--address", address, "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.url = next_line(self.process.stdout).strip()
        self.base, _, self.token = self.url.partition("/" + TOKEN)
        self.cookie = ""

    @property
    def port(self) -> int:
        return int(self.base.rpartition(":")[2])

    def request(self, path: str, method: str = "GET", /, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request(method, path, headers={"Host": f"127.0.0.1:{self.port}", **headers})
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def open(self) -> None:
        status, headers, _ = self.request(f"/{TOKEN}{self.token}")
        assert status == 303
        self.cookie = headers["set-cookie"].partition(";")[0]

    def ask(self, path: str) -> Any:
        status, _, body = self.request(f"/api/{path}", Cookie=self.cookie)
        assert status == 200, body
        return json.loads(body)

    def events(self) -> Any:
        """The stream of events that a window listens to."""
        return urllib.request.urlopen(urllib.request.Request(f"{self.base}/api/events", headers={"Cookie": self.cookie}), timeout=PATIENCE)

    def close(self) -> int:
        self.process.send_signal(2)
        return self.process.wait(PATIENCE)


def next_update(events: Any) -> dict[str, Any]:
    """The next update of a stream of events; empty if a node did not answer in time."""
    kind, data, _ = (events.readline() for _ in range(3))
    return json.loads(data.removeprefix(b"data: ")) if kind == b"event: update\n" else {}


@zf.remote
def double(x: int) -> int:
    return 2 * x


@zf.remote(max_retries=0)
def wrong(x: int) -> int:
    raise ValueError(f"<img src=x onerror=alert(1)> {x} \x1b[31m")


@zf.remote
def speak(text: str) -> None:
    print(text, flush=True)


@zf.remote
def chatter(text: str) -> None:
    print(text, flush=True)


@zf.remote
def nap() -> None:
    time.sleep(1000)


@zf.remote(max_retries=0)
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@zf.remote
class Counter:
    def __init__(self) -> None:
        self.n = 0

    def add(self) -> int:
        self.n += 1
        return self.n

    def pid(self) -> int:
        return os.getpid()


@zf.remote
class Slow:
    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


cluster = one_cluster(autouse=False)


@pytest.fixture(scope="module")
def page(cluster: Any) -> Iterator[Page]:
    found = Page(cluster["address"])
    found.open()
    yield found
    found.close()


# --- who may see it ----------------------------------------------------------------------------------------------------------------


def test_the_token_gives_a_cookie_and_without_it_there_is_nothing(page: Page) -> None:
    status, headers, _ = page.request(f"/{TOKEN}{page.token}")
    assert status == 303
    assert headers["location"] == "/"
    assert "HttpOnly" in headers["set-cookie"]
    assert "samesite=strict" in headers["set-cookie"].lower()
    assert page.token not in headers["set-cookie"]
    for path in ("/", "/api/tasks", "/api/events", "/static/main.js", f"/{TOKEN}wrong", "/nothing"):
        assert page.request(path)[0] == 403, path
    assert page.request("/", Cookie="zfabric_page=wrong")[0] == 403
    assert b"Authorization: Bearer TOKEN" in page.request("/metrics")[2]


def test_another_name_for_this_machine_is_refused(page: Page) -> None:
    """A site whose name leads to 127.0.0.1 could else read the page in its visitor's browser."""
    for host in ("evil.example", f"evil.example:{page.port}", "", "127.0.0.1"):
        assert page.request("/", Host=host, Cookie=page.cookie)[0] == 421, host
    assert page.request("/", Host=f"localhost:{page.port}", Cookie=page.cookie)[0] == 200


def test_every_answer_forbids_foreign_content(page: Page) -> None:
    for path, cookie in (("/", page.cookie), ("/static/main.js", page.cookie), ("/", ""), ("/nothing", page.cookie)):
        headers = page.request(path, Cookie=cookie)[1]
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_the_page_only_shows(page: Page) -> None:
    request = urllib.request.Request(f"{page.base}/api/tasks", method="POST", headers={"Cookie": page.cookie})
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(request, timeout=PATIENCE)


@contextmanager
def served(counted: Connections, app: Any) -> Iterator[tuple[str, int]]:
    config = uvicorn.Config(counted.application(app), http=counted.protocol(), proxy_headers=False, lifespan="off", log_level="error")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = server.force_exit = True
            thread.join(PATIENCE)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes a connection, without an answer."""
    connection.settimeout(PATIENCE)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_a_connection_without_a_request_is_closed() -> None:
    counted, asked, silent_are_closed = Connections(PATIENCE), threading.Event(), threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await asyncio.get_running_loop().run_in_executor(None, silent_are_closed.wait, PATIENCE)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    with served(counted, app) as address:
        busy = HTTPConnection(*address, timeout=PATIENCE)
        busy.request("GET", "/")
        assert asked.wait(PATIENCE)
        counted._seconds = 0.2  # From now on: on a busy machine the request may come later than so short a time after its connection.
        silent, partial = socket.create_connection(address), socket.create_connection(address)
        partial.sendall(b"GET / HTTP/1.1\r\nHost: ")
        with silent, partial:
            assert is_closed(silent)
            assert is_closed(partial)
        silent_are_closed.set()
        assert busy.getresponse().read() == b"ok", "who waits for an answer is not idle"
        assert is_closed(busy.sock), "now it is"
        busy.close()


def test_silent_connections_keep_nobody_out(page: Page) -> None:
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", page.port))) for _ in range(CONNECTIONS_MAX + 20)]
        assert page.request("/", Cookie=page.cookie)[0] == 200
        assert is_closed(silent[0])
        assert is_closed(silent[20])


def test_a_scraper_that_is_silent_keeps_no_other_out(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "timeout", 0.5)
    session = Session(cluster["address"])
    with closing(attach(session, kind="tool")) as client:
        server, port = serve(Views(session, client), "127.0.0.1", 0)
        with ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(SCRAPERS_MAX + 5)]
            assert is_closed(silent[-1]), "there are too many"
            assert is_closed(silent[0]), "it was silent for too long"
            for each in silent:
                assert is_closed(each)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
                assert b"zfabric_nodes" in answer.read()
        server.shutdown()
        server.server_close()


def test_only_the_pages_own_requests_change_something_and_only_where_it_may(page: Page, cluster: Any) -> None:
    assert page.ask("changes") == {"allowed": False, "token": ""}
    ref, actor = nap.remote(), Counter.remote()
    task, actor_id = ref.hex()[:32], actor._actor_id.hex()
    assert zf.get(actor.add.remote(), timeout=PATIENCE) == 1
    served = Page(cluster["address"], "--allow-changes")
    served.open()
    token = served.ask("changes")["token"]
    assert token not in ("", served.token)
    own = {"Cookie": served.cookie, "X-Zfabric-Token": token}
    for method, path, headers, status in (
        ("POST", f"cancel?id={task}", {"Cookie": served.cookie}, 403),
        ("POST", f"cancel?id={task}", {**own, "X-Zfabric-Token": "wrong"}, 403),
        ("POST", f"cancel?id={task}", {"X-Zfabric-Token": token}, 403),
        ("POST", f"cancel?id={task}", {**own, "Host": "evil.example"}, 421),
        ("GET", f"cancel?id={task}", own, 405),
        ("DELETE", f"cancel?id={task}", own, 405),
        ("POST", "tasks", own, 405),
        ("POST", "cancel?id=1-2-3", own, 400),
        ("POST", f"kill?id={bytes(16).hex()}", own, 400),
    ):
        assert served.request(f"/api/{path}", method, **headers)[0] == status, (method, path, status)
    assert zf.explain(ref).state != "failed"
    assert zf.get(actor.add.remote(), timeout=PATIENCE) == 2
    status, _, body = served.request(f"/api/cancel?id={task}", "POST", **own)
    assert (status, json.loads(body)["text"][:7]) == (200, "nap was")
    with pytest.raises(zf.TaskCancelledError):
        zf.get(ref, timeout=PATIENCE)
    status, _, body = served.request(f"/api/cancel?id={task}", "POST", **own)
    assert (status, "nap is" in json.loads(body)["error"]) == (400, True)
    assert served.request(f"/api/kill?id={actor_id}", "POST", **own)[0] == 200

    def dead() -> bool:  # A call that was made at once may be ahead of the signal.
        try:
            zf.get(actor.add.remote(), timeout=PATIENCE)
        except zf.ActorDiedError:
            return True
        return False

    eventually(dead, "the actor's death")
    assert b"dead already" in served.request(f"/api/kill?id={actor_id}", "POST", **own)[2]
    served.close()


def test_files_of_the_page_name_nothing_elsewhere() -> None:
    for path in (Path(zf.__file__).parent / "page" / "static").iterdir():
        text = path.read_text()
        assert "innerHTML" not in text, path
        assert "insertAdjacentHTML" not in text, path
        for part in text.split("//")[1:]:
            assert not part.startswith(("cdn", "fonts", "unpkg")), path
        assert "https://" not in text, path


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tasks?limit=many", "limit is a number"),
        ("tasks?limit=1000000", "limit is a number"),
        ("tasks?state=sleepy", "there is no state 'sleepy'; there are running, blocked, assigned, queued, infeasible"),
        ("series?step=7", "a point stands for 1 or 10 seconds, not for 7"),
        ("logs?since=-1", "since is a number"),
        ("details?text=" + "x" * 201, "at most 200 characters"),
        ("stacks?pid=4194303", "no process of this cluster"),
    ],
)
def test_wrong_parameters_are_explained(page: Page, path: str, text: str) -> None:
    status, _, body = page.request(f"/api/{path}", Cookie=page.cookie)
    assert status in (400, 503)
    assert text in json.loads(body)["error"]


def test_a_port_in_use_and_an_open_address_are_refused(page: Page, cluster: Any) -> None:
    for options, text in ((["--port", str(page.port)], "cannot listen at"), (["--host", "0.0.0.0"], "pass --certificate")):
        done = subprocess.run(
            [sys.executable, "-m", "zfabric", "page", "--address", cluster["address"], *options],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 2
        assert text in done.stderr
        assert "Traceback" not in done.stderr


def test_a_page_for_other_machines_is_served_by_https_under_their_names_for_it(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("NO OPENSSL HERE: the page is not served by https; on Debian: apt-get install openssl")
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=page")
    names = ("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate)
    subprocess.run((*made, *names), check=True, capture_output=True, timeout=PATIENCE)
    served = Page(cluster["address"], "--host", "0.0.0.0", "--certificate", certificate, "--key", key)
    assert served.base == f"https://{socket.gethostname()}:{served.port}"
    cookies, trusted = urllib.request.HTTPCookieProcessor(), ssl.create_default_context(cafile=certificate)
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=trusted), cookies)
    address = f"https://127.0.0.1:{served.port}/"
    assert opener.open(f"{address}{TOKEN}{served.token}", timeout=PATIENCE).status == 200
    assert [cookie.secure for cookie in cookies.cookiejar] == [True]
    for host, status in ((f"{socket.gethostname().upper()}:{served.port}", 200), (f"evil.example:{served.port}", 421)):
        try:
            found = opener.open(urllib.request.Request(address, headers={"Host": host}), timeout=PATIENCE).status
        except urllib.error.HTTPError as error:
            found = error.code
        assert found == status, host
    assert served.close() in (0, 130)
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with asyncio.Runner(loop_factory=connections.PageLoop) as runner:
        assert runner.run(silence_ends(context)), "who does not begin with TLS is closed as well"


async def silence_ends(context: ssl.SSLContext) -> bool:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=context)
    with socket.create_connection(server.sockets[0].getsockname()) as silent:
        ended = await loop.run_in_executor(None, is_closed, silent)
    server.close()
    return ended


# --- what it shows -----------------------------------------------------------------------------------------------------------------


def test_progress_counts_every_task_exactly(page: Page, cluster: Any) -> None:
    refs = [double.remote(i) for i in range(300)] + [wrong.remote(i) for i in range(7)]
    zf.wait(refs, num_returns=len(refs), timeout=PATIENCE)
    with page.events() as events:
        update = eventually(lambda: next_update(events), "what everybody is shown")
    rows = {row["name"]: row for row in update["progress"]}
    assert (rows["double"]["finished"], rows["double"]["failed"], rows["double"]["waiting"]) == (300, 0, 0)
    assert (rows["wrong"]["finished"], rows["wrong"]["failed"]) == (0, 7)
    assert update["tasks"]["failed"] >= 7
    errors = page.ask("errors")
    (group,) = (group for group in errors["groups"] if "wrong" in group["functions"])
    assert (group["count"], group["kind"], group["functions"]) == (7, "ValueError", {"wrong": 7})
    assert re.search(r"tests/programs/test_page\.py:\d+ in wrong$", group["place"])
    assert errors["failed"] >= 7
    told = page.ask(f"details?text={group['task_ids'][0]}")
    assert told["error"]["traceback"].startswith("Traceback")
    assert [attempt["mark"] for attempt in told["attempts"]] in ([], ["failed"])  # The stream is read when somebody looks at it.
    del refs
    assert any(each["count"] == 7 for each in page.ask("errors")["groups"]), "they stay when nobody has a ref any more"


def test_the_lines_of_the_first_screen_reach_back_before_anybody_looked(page: Page, cluster: Any) -> None:
    refs = [double.remote(i) for i in range(500)]
    zf.get(refs, timeout=PATIENCE)

    def points() -> list[Any]:
        return [point for point in page.ask("series")["points"] if point[1] is not None]

    def ended() -> bool:
        return sum(point[1].get("double", 0.0) for point in points()) > 400

    eventually(ended, "the tasks in the daemon's time series")
    late = Page(cluster["address"])  # It was not there then.
    late.open()
    answer = late.ask("series")
    assert sum(point[1].get("double", 0.0) for point in answer["points"] if point[1] is not None) > 400
    last = answer["last"]
    assert [point[0] for point in late.ask(f"series?after={last - 3}")["points"]][:3] == [last - 2, last - 1, last]
    assert all(0.0 <= point[7] <= 1.0 and 0.0 < point[9] < 1.0 for point in points())
    late.close()


def test_each_worker_has_a_bar_of_what_it_did_and_does(page: Page) -> None:
    slow = Slow.options(name="bars").remote()
    zf.get([slow.wait.remote(0.3), double.remote(1)], timeout=PATIENCE)
    runs = nap.remote()

    def shown() -> Any:
        rows = page.ask("busy")["workers"]
        of_actor = [row for row in rows if row["actor"] == "Slow, bars" and "Slow.wait" in dict(row["parts"])]
        running = [row for row in rows if row["task"] == "nap" and row["busy"] > 0.0]
        return (of_actor[0], running[0]) if of_actor and running else None

    actor, running = eventually(shown, "both bars")
    assert 0.3 <= dict(actor["parts"])["Slow.wait"] < 60.0
    assert 0.0 < actor["busy"] <= 1.0
    assert running["task_id"] == runs.hex()[:32]
    assert "nap" in [name for name, _ in running["parts"]]
    (worker,) = (row for row in page.ask("workers") if row["pid"] == actor["pid"])
    assert worker["actor"] == "Slow, bars"
    calls = [slow.wait.remote(1000), slow.wait.remote(0)]
    zf.wait(calls, timeout=0.0)

    def at_work() -> bool:
        rows = [row for row in page.ask("activity") if row["pid"] == actor["pid"]]
        return [(run[0], row["waiting"]) for row in rows for run in row["runs"]] == [("Slow.wait", 1)]

    eventually(at_work, "the call that runs, and the one that waits")
    zf.cancel(runs, force=True)
    zf.kill(slow)


def test_what_waits_for_a_worker_is_queued_and_tasks_are_found_by_their_function(page: Page) -> None:
    runs = [nap.remote() for _ in range(4)]
    needle = zf.remote(lambda: 1).options(name="needle_in_hay").remote()

    def states() -> set[str]:
        return {row["state"] for row in page.ask("tasks?text=NAP")["rows"]}

    eventually(lambda: {"running", "queued"} <= states() or {"running", "assigned"} <= states(), "the states")
    assert "ready" not in states()
    assert {row["name"] for row in page.ask("tasks?text=nap")["rows"]} == {"nap"}
    assert {row["state"] for row in page.ask("tasks?state=queued")["rows"]} <= {"queued"}
    found = eventually(lambda: page.ask("details?text=needle_in")["found"], "the daemon has the last one, too")
    assert [(each["kind"], each["name"]) for each in found] == [("function", "needle_in_hay")]
    assert found[0]["progress"]["waiting"] + found[0]["progress"]["running"] == 1
    for ref in (*runs, needle):
        zf.cancel(ref, force=True)


def test_the_stream_has_every_attempt_and_call(page: Page) -> None:
    counter = Counter.remote()
    zf.get([double.remote(i) for i in range(20)] + [counter.add.remote() for _ in range(5)], timeout=PATIENCE)

    def found() -> bool:
        stream = page.ask("stream")
        bars = [bar for lane in stream["lanes"] for bar in lane["bars"]]
        names = [bar[2] for bar in bars for _ in range(bar[4])]
        return names.count("double") >= 20 and names.count("Counter.add") >= 5

    eventually(found, "the bars of all runs")


def test_lists_are_cut_and_say_so(page: Page) -> None:
    refs = [double.remote(i) for i in range(30)]
    zf.get(refs, timeout=PATIENCE)
    answer = page.ask("tasks?limit=10&state=finished")
    assert len(answer["rows"]) == 10
    assert answer["more"]
    assert page.ask("actors")["more"] is False


def test_details_and_the_graph_of_a_task(page: Page) -> None:
    first = double.remote(1)
    second = double.remote(first)
    zf.get(second, timeout=PATIENCE)
    found = page.ask(f"details?text={second.hex()[:-8]}")
    assert found["state"] == "finished"
    graph = page.ask(f"graph?text={second.hex()[:-8]}")
    kinds = {node["id"]: node["kind"] for node in graph["nodes"]}
    assert kinds[first.hex()] == "object"
    assert [first.hex(), second.hex()[:-8], "data"] in graph["edges"]
    assert [second.hex()[:-8], second.hex(), "data"] in graph["edges"]
    page.ask("stream")
    (argument,) = page.ask(f"details?text={second.hex()[:-8]}")["arguments"]
    assert (argument["id"], argument["made_by"]) == (first.hex(), first.hex()[:-8])
    task = second.hex()[:-8]
    del first, second

    def forgotten() -> bool:
        page.ask("stream")
        told = page.ask(f"details?text={task}")
        return "forgotten" in told["reason"] and len(told["attempts"]) == 1

    eventually(forgotten, "what the stream has of it")
    assert any(kind == "control" for _, _, kind in graph["edges"])
    assert page.ask("details?text=nobody")["found"] == []


@zf.remote
def parent() -> int:
    return zf.get(double.remote(20))


def test_the_graph_of_what_has_ended_has_its_parent_and_the_order_of_calls(page: Page) -> None:
    counter = Counter.remote()
    calls = [counter.add.remote() for _ in range(3)]
    zf.get([*calls, parent.remote()], timeout=PATIENCE)

    def ran(name: str) -> list[str]:
        bars = [bar for lane in page.ask("stream")["lanes"] for bar in lane["bars"] if bar[2] == name]
        return [bar[5] for bar in sorted(bars)]

    ids = [call.hex()[:32] for call in calls]
    eventually(lambda: ran("parent") and set(ids) <= set(ran("Counter.add")), "the bars of all")
    graph = page.ask(f"graph?text={ids[1]}")
    order = [ids.index(each) for edge in graph["edges"] if edge[2] == "state" for each in edge[:2] if each in ids]
    assert order == [0, 0, 1, 1, 2]  # From the creation to the first, and from each to the next.
    (submitter,) = set(ran("parent"))
    (child,) = [edge[1] for edge in page.ask(f"graph?text={submitter}")["edges"] if edge[::2] == [submitter, "control"]]
    assert [submitter, child, "control"] in page.ask(f"graph?text={child}")["edges"]


def test_actors_have_rates_times_and_queues(page: Page) -> None:
    slow = Slow.remote()
    zf.get(slow.wait.remote(0.0), timeout=PATIENCE)
    page.ask("actors")  # From now on, its process measures how long calls wait.

    def row() -> Any:
        zf.get([slow.wait.remote(seconds) for seconds in (0.2, 0.0, 0.0, 0.0)], timeout=PATIENCE)
        rows = [row for row in page.ask("actors")["rows"] if row["class"] == "Slow" and row["p50"] is not None]
        return rows[0] if rows and rows[0]["p50"] > 0.1 else None

    found = eventually(row, "most calls waited for a long one, though they arrived while that ran")
    assert found["run_p50"] < found["p50"] <= found["p99"] < 10.0
    assert found["run_p99"] >= 0.2  # Also of the first calls, of which it is unknown how long they waited.
    assert found["rate"] > 0.0
    waits = [slow.wait.remote(1000), slow.wait.remote(0)]
    zf.wait(waits, timeout=0.0)
    eventually(lambda: page.ask("queues")["waiting"].get(found["actor_id"]) == 2, "its caller's answer")
    zf.kill(slow)


def test_memory_says_who_holds_what(page: Page) -> None:
    ref = zf.put(b"x" * 300_000)

    def of_it() -> Any:  # A put is reported a moment later.
        return next((row for row in page.ask("memory")["objects"]["rows"] if row["object_id"] == ref.hex()), None)

    row = eventually(of_it, "the value")
    memory = page.ask("memory")
    (holder,) = row["held_by"]
    assert holder == f"driver {os.getpid()}"
    assert next(owner for owner in memory["owners"] if owner["held_by"] == holder)["bytes"] >= 300_000
    assert next(maker for maker in memory["makers"] if maker["made_by"] == "put")["values"] >= 1


def test_output_is_followed_and_searched(page: Page) -> None:
    zf.get([speak.remote("a needle"), speak.remote("hay")], timeout=PATIENCE)
    eventually(lambda: any(line[5] == "a needle" for line in page.ask("logs?text=needle")["lines"]), "the line")
    assert all("needle" in line[5] for line in page.ask("logs?text=NEEDLE")["lines"])
    read = page.ask("logs")["read"]
    assert page.ask(f"logs?since={read}")["lines"] == []
    before = time.time()
    zf.get([speak.remote("timed"), chatter.remote("timed")], timeout=PATIENCE)
    rows = eventually(lambda: rows if len(rows := page.ask("logs?text=timed")["lines"]) == 2 else None, "both lines")
    assert all(before - 2.0 < row[6] < time.time() + 1.0 for row in rows), "when they were written"
    job = rows[0][7]
    assert job > 0
    assert [row[4] for row in page.ask("logs?text=timed&function=chatter")["lines"]] == ["chatter"]
    assert len(page.ask(f"logs?text=timed&job={job}")["lines"]) == 2
    assert page.ask(f"logs?text=timed&job={job + 1}")["lines"] == []
    answer = page.ask("logs")
    assert job in answer["jobs"]
    assert {"speak", "chatter"} <= set(answer["functions"])


def test_stacks_of_all_processes(page: Page) -> None:
    counter = Counter.remote()  # The processes of tasks may end at any time.
    pid = zf.get(counter.pid.remote(), timeout=PATIENCE)
    found = page.ask("stacks")
    assert {each["kind"] for each in found} == {"driver", "worker"}
    assert [each["kind"] for each in found if each["pid"] == pid] == ["worker"]
    sampled = page.ask(f"samples?pid={pid}")
    assert sampled["idle"] > 0, sampled


@zf.remote(max_retries=0)
def opens(name: str) -> None:
    print("opens", name, flush=True)
    counted = metrics.Counter("opened_here", name, tag_keys=("file",))
    counted.inc(1, tags={"file": name})
    error = ValueError(f"cannot read {name}")
    error.add_note(f"it was {name}")
    raise error


@zf.remote
class Opener:
    def __init__(self, name: str) -> None:
        raise ValueError(f"cannot read {name}")

    def read(self) -> None:
        pass


def test_errors_that_name_a_file_which_is_not_utf8_are_shown_everywhere(page: Page) -> None:
    """Python has lone surrogates in such names, which no UTF-8 can have."""
    opener = Opener.remote(os.fsdecode(b"th\xe9"))  # Held: the failure of an actor without a handle is forgotten before the page asks.
    failed, dead = opens.remote(os.fsdecode(b"caf\xe9")), opener.read.remote()
    with pytest.raises(ValueError, match="cannot read caf"):
        zf.get(failed, timeout=PATIENCE)
    with pytest.raises(zf.ActorDiedError):
        zf.get(dead, timeout=PATIENCE)

    def grouped() -> bool:
        texts = [group["text"] + group["traceback"] for group in page.ask("errors")["groups"]]
        return all(any(name in text for text in texts) for name in (r"caf\udce9", r"th\udce9"))

    eventually(grouped, "both errors in the page's view: events follow their outcomes")
    assert r"caf\udce9" in page.ask(f"details?text={failed.hex()}")["reason"]
    assert "opens" in str(page.ask(f"graph?text={failed.hex()}"))
    eventually(lambda: [line for line in page.ask("logs?text=opens")["lines"] if "caf" in str(line)], "the task's output")
    assert rb'file="caf\\udce9"' in page.request("/metrics", Cookie=page.cookie)[2]
    for command in (("explain", failed.hex()), ("explain", failed.hex(), "--json"), ("tasks", "--json"), ("logs",), ("metrics", "--once")):
        output = printed(*command)
        shown = str(json.loads(output)) if command[-1] == "--json" else output
        if command[0] == "explain":
            assert r"caf\udce9" in shown.replace(r"\\", "\\"), command


def test_the_page_outlives_a_daemon(page: Page) -> None:
    kill_daemon()
    eventually(lambda: page.request("/api/tasks", Cookie=page.cookie)[0] == 200, "an answer after the daemon's restart")


def test_the_page_ends_with_the_cluster() -> None:
    zf.shutdown()
    with running_cluster(num_cpus=1) as context:
        found = Page(context["address"])
    assert found.process.wait(PATIENCE) == 0


# --- parts -------------------------------------------------------------------------------------------------------------------------


def test_a_full_lane_is_merged_and_nothing_is_lost_in_the_count() -> None:
    attempts = [Attempt(("n", 1), f"f{i % 3}", "", "task", i * 0.001, 0.0005, bytes(16)) for i in range(5 * LANE_MOST)]
    bars = _bars(attempts, 10.0)
    assert len(bars) <= LANE_MOST
    assert sum(bar[4] for bar in bars) == len(attempts)
    few = _bars(attempts[:50], 10.0)
    assert [bar[4] for bar in few] == [1] * 50


def test_a_part_of_the_stream_is_merged_on_its_own_and_says_how_busy_it_was() -> None:
    stream = TaskStream(0.0)
    lane = ("n", 1)
    stream.attempts.extend(Attempt(lane, "f", "", "task", i * 0.01, 0.005, bytes(16)) for i in range(3000))
    stream.attempts.append(Attempt(lane, "on top", "", "task", 29.001, 0.001, bytes(16)))
    whole, part = stream.window(30.0, 30.0), stream.window(30.0, 2.0, 10.0)
    assert whole["merged"] > 0
    assert part["merged"] == 0
    assert 200 <= part["attempts"] <= 202  # Those that lie across its ends count.
    assert all(-12.01 <= bar[0] <= -9.99 for bar in part["lanes"][0]["bars"])
    assert whole["lanes"][0]["busy"] == pytest.approx(15.0)
    assert part["lanes"][0]["busy"] == pytest.approx(1.0, abs=0.01)


def test_a_bar_is_divided_by_function_and_no_time_counts_twice() -> None:
    lane = ("n", 1)
    runs = [("outer", 40.0, 10.0), ("inner", 42.0, 2.0), ("f", 55.0, 10.0), ("long ago", -90.0, 20.0)]
    found = shares([Attempt(lane, name, "", "task", start, seconds, bytes(16)) for name, start, seconds in runs], 60.0, 60.0)
    assert found == {lane: {"outer": 10.0, "f": 5.0}}


def test_errors_are_grouped_by_kind_and_by_the_programs_own_line() -> None:
    def error(task: int, line: int, name: str = "f") -> dict[str, Any]:
        frames = f'  File "/home/a/job.py", line {line}, in f\n    g()\n  File "/usr/lib/python3.11/json/decoder.py", line 3, in g\n'
        text = f"text {task}"
        payload = pickle.dumps(("ValueError", text, f"Traceback (most recent call last):\n{frames}ValueError: {text}\n", {}), 5)
        return {"task_id": f"{task:032x}", "name": name, "raised": True, "error": payload}

    groups = ErrorGroups()
    groups.add([error(3, 7), error(2, 7, "child"), error(1, 9)])
    groups.add([error(4, 7), error(3, 7)])
    groups.add([{"task_id": "5" * 32, "name": "f", "raised": False, "error": pack_failure("WorkerCrashedError", "killed")}])
    groups.add([{"task_id": "6" * 32, "name": "f", "raised": True, "error": error(6, 7)["error"][:30]}])  # It was cut.
    found = {(group["kind"], group["place"]): (group["count"], dict(group["functions"])) for group in groups.groups()}
    assert found == {
        ("ValueError", "/home/a/job.py:7 in f"): (3, {"child": 1, "f": 2}),
        ("ValueError", "/home/a/job.py:9 in f"): (1, {"f": 1}),
        ("WorkerCrashedError", ""): (1, {"f": 1}),
        ("ValueError", ""): (1, {"f": 1}),
    }
    assert groups.groups()[0]["task_ids"][0] == f"{4:032x}"


def test_a_stream_without_events_is_empty() -> None:
    class Nothing:
        def query(self, what: str, *arguments: Any, timeout: float = 10.0) -> Any:
            return (), False

    stream = TaskStream(0.0)
    stream.read([TimelineNode(Nothing())])
    assert stream.window(100.0) == {"seconds": 60.0, "now": 100.0, "lanes": [], "merged": 0, "attempts": 0, "full": False}


def test_output_of_rotated_files_and_of_long_ones(tmp_path: Path) -> None:
    token = bytes(8)
    note_worker(str(tmp_path), token, 77)
    path = Path(log_path(str(tmp_path), token, "out"))
    path.write_bytes(b"x" * 100_000 + b"\nlast\n")
    output = Output(lambda: [("", LocalLogFiles(str(tmp_path)))])
    output.read()
    assert [line.text for line in output.since(0)["lines"]] == ["last"]  # type: ignore[attr-defined]
    path.write_bytes(b"anew\npart")
    output.read()
    assert [line.text for line in output.since(1)["lines"]] == ["anew"]  # type: ignore[attr-defined]
    with path.open("ab") as file:
        file.write(b"ial\n")
    output.read()
    assert [line.text for line in output.since(2, 77)["lines"]] == ["partial"]  # type: ignore[attr-defined]


# --- in a browser ------------------------------------------------------------------------------------------------------------------

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")


@pytest.fixture
def browser() -> Iterator[Any]:
    if BROWSER is None or DRIVER is None:
        pytest.skip("NO BROWSER HERE: the page is not tried in one; on Debian: apt-get install chromium chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@contextmanager
def program_in_a_browser(browser: Any) -> Iterator[tuple[Page, list[Any]]]:
    """The page of a program that has run tasks of each kind, in a browser; their refs."""
    zf.shutdown()
    with running_cluster(num_cpus=2) as context:
        counter = Counter.options(name="counter").remote()
        refs = [double.remote(i) for i in range(50)] + [wrong.remote(i) for i in range(3)] + [counter.add.remote(), speak.remote("hello")]
        zf.wait(refs, num_returns=len(refs), timeout=PATIENCE)
        served = Page(context["address"])
        browser.get(served.url)
        eventually(lambda: says(browser, "link", "live"), "a connection")
        yield served, refs


def says(browser: Any, element: str, text: str) -> bool:
    """Whether an element of the page has a text."""
    return text in browser.find_element("id", element).text


def runs_again() -> list[Any]:
    """Call the program's actor: the task stream shows the last minute. Return the ref."""
    ref = zf.get_actor("counter").add.remote()
    zf.get(ref, timeout=PATIENCE)
    return [ref]


def complains_of_nothing(browser: Any) -> None:
    said = [entry["message"] for entry in browser.get_log("browser")]
    assert [text for text in said if "Content Security" in text or "Uncaught" in text] == []


def test_every_view_in_a_browser_with_a_program_that_runs(browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    def shown(text: str) -> bool:
        return says(browser, "view", text)

    with program_in_a_browser(browser) as (served, refs):
        assert TOKEN not in browser.current_url
        held = zf.put("held")
        expected = {
            "overview": "Tasks per second, by function",
            "progress": "double",
            "stream": "Counter.add",
            "tasks": "double",
            "actors": "counter",
            "workers": "worker processes",
            "memory": brief(bytes.fromhex(held.hex())),
            "graph": "Give the id",
            "logs": "hello",
            "errors": "ValueError",
            "stacks": "driver",
            "details/doub": "their tasks",
            "tasks/wron": "3 tasks",
            f"details/{refs[0].hex()[:-8]}": "finished",
            f"graph/{refs[0].hex()[:-8]}": "edges",
        }
        for view, text in expected.items():
            refs += runs_again() if view == "stream" else []
            browser.execute_script(f"location.hash = '{view}'")
            eventually(lambda text=text: shown(text), view)
            # For a screen reader: each column has a name, and what is a picture to it has no links inside.
            assert not browser.execute_script(
                "return [...document.querySelectorAll('#view th')].filter((each) => !each.textContent).length"
            )
            assert not browser.find_elements(By.CSS_SELECTOR, "#view [role=img] a"), view
        browser.execute_script("document.querySelector('.skip').focus()")  # As the first Tab does: it is outside of the screen before.
        ActionChains(browser).send_keys(Keys.ENTER).perform()
        assert browser.execute_script("return [document.activeElement.id, location.hash.split('/')[0]]") == ["view", "#graph"]
        refs += runs_again()
        browser.execute_script("location.hash = 'stream'")
        eventually(lambda: shown("Counter.add"), "bars")
        canvas = browser.find_element(By.CSS_SELECTOR, "#view canvas")
        canvas.send_keys("+-")  # By the keyboard alone.

        def chosen() -> bool:  # What a zoom shows is asked for: there may be no bar for a moment.
            canvas.send_keys("n")
            return bool(browser.find_elements(By.CSS_SELECTOR, "#view .picked h3"))

        eventually(chosen, "a chosen bar")
        canvas.send_keys("p")
        eventually(lambda: shown("attempts of the last minutes"), "a chosen bar, explained")
        browser.execute_script("location.hash = 'stacks'")
        eventually(lambda: shown("driver"), "stacks")
        browser.find_element(By.XPATH, "//button[text()='flame graph of ten seconds']").click()
        eventually(lambda: shown(" samples in "), "the first seconds of a flame graph")
        browser.execute_script("location.hash = 'errors'")
        eventually(lambda: shown("<img src=x onerror=alert(1)>"), "the error as text")  # It is text, and made no element.
        assert browser.find_elements(By.TAG_NAME, "img") == []
        complains_of_nothing(browser)
        served.close()


def test_a_browser_shows_what_happens_to_the_page_the_daemon_and_the_cluster(browser: Any) -> None:
    from selenium.webdriver.common.by import By

    def shown(text: str) -> bool:
        return says(browser, "view", text)

    with program_in_a_browser(browser) as (served, _):
        network = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        browser.execute_cdp_cmd("Network.enable", {})
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": True, **network})
        browser.execute_script("location.hash = 'tasks'")
        eventually(lambda: shown("no answer from the page's server"), "that there is no network")
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", {"offline": False, **network})
        browser.execute_script("location.hash = 'overview'")
        with pytest.raises(zf.WorkerCrashedError):
            zf.get(die.remote(), timeout=PATIENCE)
        eventually(lambda: shown("1 worker has died"), "what is wrong, with the advice")
        kill_daemon()
        eventually(lambda: says(browser, "link", "live"), "a connection again")
        complains_of_nothing(browser)
        _first_screen_is_drawn(browser)
        telephone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", telephone)
        for view in ("overview", "tasks", "actors", "workers", "memory"):  # All numbers are inside of a telephone's screen.
            browser.execute_script(f"location.hash = '{view}'")
            eventually(lambda: browser.find_elements(By.CSS_SELECTOR, "#view td"), view)
            outside = (
                "return [...document.querySelectorAll('#view td')].filter((each) => each.getBoundingClientRect().right > innerWidth).length"
                " + (document.documentElement.scrollWidth > innerWidth)"
            )
            eventually(lambda outside=outside: browser.execute_script(outside) == 0, f"{view} inside of 390 pixels")
        browser.execute_script("location.hash = 'overview'")
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", telephone | {"width": 700, "mobile": False})
        # An update takes neither the focus away nor the place to which a table was scrolled.
        nodes = "[aria-label='1 node']"
        eventually(lambda: browser.find_elements(By.CSS_SELECTOR, f"#view {nodes}"), "a table")
        place = f'const table = document.querySelector("#view {nodes}"); '
        browser.execute_script(place + "table.focus(); table.scrollLeft = 40; table.firstChild.id = 'before'")
        # As if something that is wrong were shown above it from now on, or no more.
        browser.execute_script(place + "table.before(document.createElement('p'))")
        eventually(lambda: not browser.find_elements(By.ID, "before"), "an update")
        assert browser.execute_script(place + "return [document.activeElement === table, table.scrollLeft]") == [True, 40]
    eventually(lambda: says(browser, "ended", "The cluster has ended at"), "an honest end")
    assert "past" in browser.execute_script("return document.body.className"), "greyed"
    browser.execute_script("location.hash = 'tasks'")
    eventually(lambda: shown("was not loaded before the end"), "what is gone")
    assert served.process.wait(PATIENCE) == 0


def _first_screen_is_drawn(browser: Any) -> None:
    """Lines, with a cursor that the arrow keys move; a bar for each worker; the same as a table."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    def found(selector: str) -> list[Any]:
        return list(browser.find_elements(By.CSS_SELECTOR, f"#view {selector}"))

    eventually(lambda: len(found(".chart .line")) >= 4 and found(".chart .area"), "lines")
    eventually(lambda: found(".lanes li .bar rect"), "bars of workers")
    chart = found(".wide .chart")[0]
    assert "double" in chart.get_attribute("aria-label")
    browser.execute_script("arguments[0].focus()", chart)
    ActionChains(browser).send_keys(Keys.ARROW_LEFT).perform()
    eventually(lambda: re.search(r"\d\d:\d\d:\d\d", found(".ranges .note")[0].text), "the moment of the cursor")
    # By the keyboard: an update that moves what is below it may come between a mouse's aim and its click.
    found(".numbers summary")[0].send_keys(Keys.ENTER)
    eventually(lambda: found(".numbers td"), "the lines as a table")
    browser.find_element(By.XPATH, "//button[text()='2 hours']").send_keys(Keys.ENTER)
    eventually(lambda: browser.find_element(By.XPATH, "//button[text()='2 hours']").get_attribute("aria-pressed") == "true", "the choice")


def test_a_button_asks_before_it_cancels(browser: Any) -> None:
    from selenium.webdriver.common.by import By

    zf.shutdown()
    with running_cluster(num_cpus=1) as context:
        ref = nap.remote()
        served = Page(context["address"], "--allow-changes")
        browser.get(served.url)
        eventually(lambda: "live" in browser.find_element(By.ID, "link").text, "a connection")
        eventually(lambda: zf.explain(ref).state == "running", "the task runs")
        browser.execute_script(f"location.hash = 'details/{ref.hex()[:-8]}'")

        def press(text: str) -> None:
            eventually(lambda: browser.find_elements(By.XPATH, f"//button[text()='{text}']"), text)
            browser.find_element(By.XPATH, f"//button[text()='{text}']").click()

        press("cancel …")
        press("leave it")
        eventually(lambda: not browser.find_elements(By.TAG_NAME, "dialog"), "the question's end")
        assert zf.explain(ref).state == "running"
        press("cancel …")
        press("cancel")
        with pytest.raises(zf.TaskCancelledError):
            zf.get(ref, timeout=PATIENCE)
        eventually(lambda: "and is cancelled" in browser.find_element(By.ID, "view").text, "what was done")
        served.close()


def test_the_page_shows_all_nodes() -> None:
    zf.shutdown()
    with LocalCluster(nodes=2, cpus_per_node=1) as nodes, zf.init(nodes.address):
        places = [on_node(node) for node in nodes.nodes]
        refs = [speak.options(scheduling_strategy=places[i % 2]).remote(f"line {i}") for i in range(20)]
        zf.get(refs, timeout=PATIENCE)
        served = Page(nodes.nodes[0].session_directory)
        served.open()
        eventually(lambda: {lane["node"] for lane in served.ask("stream")["lanes"]} == {"node1", "node2"}, "bars of both nodes")
        eventually(lambda: {line[1] for line in served.ask("logs")["lines"]} == {"node1", "node2"}, "output of both nodes")
        events = served.events()

        def answered() -> Any:  # A node that does not answer within two seconds is silent: a busy machine is slower at times.
            update = next_update(events)
            return update if [node.get("memory", 0) > 0 for node in update.get("nodes", ())] == [True, True] else None

        update = eventually(answered, "what both nodes tell")
        assert [(node["name"], node["silent"]) for node in update["nodes"]] == [("node1", False), ("node2", False)]
        assert update["resources"]["CPU"] == 2
        assert {row["name"]: row["finished"] for row in update["progress"]} == {"speak": 20}
        _values_have_the_names_of_their_makers(served, places)
        zf.get(make.options(scheduling_strategy=places[1]).remote(), timeout=PATIENCE)
        _nodes_serve_their_own_metrics(nodes, {"speak": 20, "make": 3})
        served.close()  # While a window shows the page.
        assert served.process.stderr is not None
        assert served.process.stderr.read() == "\ninterrupted\n"
        events.close()


@zf.remote
def make() -> bytes:
    return b"x" * 300_000


def _values_have_the_names_of_their_makers(page: Page, places: list[Any]) -> None:
    """Also those that tasks made on another node, and copies."""
    refs = [make.options(scheduling_strategy=place).remote() for place in places]
    zf.wait(refs, num_returns=2, timeout=PATIENCE, fetch_local=False)

    def large() -> Any:
        found = [row for row in page.ask("memory")["objects"]["rows"] if row["size"] >= 300_000]
        return found if {row["node"] for row in found} == {"node1", "node2"} else None

    rows = eventually(large, "the values on both nodes")
    assert {row["made_by"] for row in rows} == {"make"}
    assert {row["where"] for row in rows} <= {"memory", "store", "node node2"}

    def measured() -> Any:  # A node measures now and then.
        memory = page.ask("memory")
        return memory if {worker["node"] for worker in memory["workers"] if worker["memory"] > 0} == {"node1", "node2"} else None

    memory = eventually(measured, "the memory of the workers of both nodes")
    assert memory["store"]["nodes"] == 2
    assert not [row for row in memory["owners"] if row["held_by"].startswith("node ")]


def _nodes_serve_their_own_metrics(nodes: LocalCluster, finished: dict[str, int]) -> None:
    """So that sums over the nodes are those of the cluster."""
    ages: dict[str, float] = {}
    copied: dict[tuple[str, str], float] = {}

    def found() -> tuple[dict[str, float], float, int]:
        sums, workers, total = dict.fromkeys(finished, 0.0), 0.0, 0
        for node in nodes.nodes:
            with closing(attach(Session(node.session_directory), kind="tool")) as client:
                text = exposition(Views(Session(node.session_directory), client)).decode()
                total = len(client.query("workers"))
            for sample in (sample for family in text_string_to_metric_families(text) for sample in family.samples):
                if sample.name == "zfabric_function_finished_total" and sample.labels["function"] in sums:
                    sums[sample.labels["function"]] += sample.value
                workers += sample.value if sample.name == "zfabric_workers" else 0.0
                if sample.name == "zfabric_lease_age_seconds":
                    ages[node.name] = sample.value
                elif sample.name == "zfabric_copied_bytes_total":
                    copied[node.name, sample.labels["source"]] = sample.value
        return sums, workers, total

    def agree() -> bool:  # A worker may begin or end between two questions.
        _, workers, total = found()
        return workers == total

    eventually(agree, "as many workers as there are")
    assert found()[0] == finished
    assert ages.keys() == {"node1", "node2"}
    assert all(0.0 < age < Config.of({}).node_lease for age in ages.values()), "an older one is that of a dead node"
    assert copied.keys() == {("node1", "node2")}, "what was got here, and was made there"
    assert 300_000 <= copied["node1", "node2"] < 301_000


def test_what_is_wrong_is_said_first_and_silent_nodes_have_no_figures_of_others() -> None:
    stores = {"capacity": 100, "used": 10, "spilled": 5 * 2**20}
    status: dict[str, Any] = {
        "node": "aa", "name": "one", "resources": {"CPU": 1.0}, "available": {"CPU": 1.0}, "workers": 1, "actors": {}, "jobs": [],
        "tasks": dict.fromkeys(TASK_STATES, 0), "store": stores, "recovering": False, "copied_bytes": 0, "elsewhere": 0,
        "statistics": {"retries": 1, "workers_died": 2, "disk_free": 5 * 2**20, "disk_total": 100 * 2**20},
    }  # fmt: skip
    answers = {
        "status": status,
        "statuses": [status],
        "functions": [],
        "workers": [],
        "nodes": [{"node": "aa", "name": "one", "resources": {"CPU": 1.0}}, {"node": "bb", "name": "two", "resources": {"CPU": 9.0}}],
    }

    together = threading.Barrier(3)

    class Client:
        def query(self, what: str) -> Any:
            if what in ("statuses", "functions", "workers"):  # All nodes are asked: silent ones are waited for once.
                together.wait(PATIENCE)
            return answers[what]

    class Here:
        identifier = metrics_directory = directory = ""

        def membership(self) -> str:
            return "some"

    views = Views(Here(), Client())  # type: ignore[arg-type]
    now = views.overview()
    assert now["nodes"][1] == {"node": "bb", "name": "two", "resources": {"CPU": 9.0}, "silent": True}
    wrong = [each["what"] for each in now["problems"]]
    assert wrong[:5] == [
        "two does not answer",
        "5.0 MiB of values on one are on disk, for want of room in the object store",
        "the disk on one is almost full: 5 MiB are left",
        "2 workers have died on one",
        "1 attempt was a retry on one",
    ]
    assert now["nodes"][0]["copying"] is None
    status["copied_bytes"] = 2**20
    assert views.overview()["nodes"][0]["copying"] > 0


# --- shown by a program, and in a terminal -----------------------------------------------------------------------------------------


def test_a_program_shows_the_page_while_it_is_connected(capfd: pytest.CaptureFixture[str]) -> None:
    zf.shutdown()
    with running_cluster(num_cpus=1, include_dashboard=True) as context:
        url = context["webui_url"]
        assert f"this page shows the cluster: {url}" in capfd.readouterr().err
        base, _, token = url.partition("/" + TOKEN)
        assert urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(url, timeout=PATIENCE).status == 200
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(base, timeout=PATIENCE)
    assert token


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"include_dashboard": 1}, TypeError, "True or False"),
        ({"include_dashboard": True, "dashboard_port": -1}, zf.ConfigError, "dashboard_port is a port"),
        ({"include_dashboard": True, "dashboard_host": "0.0.0.0"}, zf.ConfigError, "without a certificate"),
    ],
)
def test_a_page_that_cannot_be_served_is_an_error_and_leaves_nothing(options: dict[str, Any], kind: type, text: str) -> None:
    zf.shutdown()
    with pytest.raises(kind, match=text):
        zf.init(address="local", num_cpus=1, **options)
    assert not zf.is_initialized()


def test_top_shows_progress_and_no_text_steers_the_terminal() -> None:
    zf.shutdown()
    with running_cluster(num_cpus=1) as context:
        named = zf.remote(lambda: 1).options(name="evil\x1b]0;title\x07")
        refs = [double.remote(i) for i in range(25)] + [named.remote()]
        zf.get(refs, timeout=PATIENCE)
        done = subprocess.run(
            [sys.executable, "-m", "zfabric", "top", "--address", context["address"], "-n", "1"], capture_output=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        assert b"\x1b]0" not in done.stdout
        assert b"\x07" not in done.stdout
        line = next(line for line in done.stdout.decode().splitlines() if line.startswith("double"))
        assert re.search(r" 0 +0 +25 +0 +- +[\d.]+ .?s", line), line


def test_the_rate_of_a_function_is_its_own_and_of_the_last_seconds() -> None:
    """Not the cluster's, and neither of an hour in which nobody looked nor below zero after a restart of the daemon."""
    views = Views.__new__(Views)
    views._ended = deque()

    def rates(now: float, *ended: int) -> list[float | None]:
        rows = [{"job": "01", "name": f"f{i}", "finished": many, "failed": 1} for i, many in enumerate(ended)]
        views._add_rates(rows, now)
        return [row["rate"] for row in rows]

    assert rates(100.0, 0, 50) == [None, None]
    assert rates(102.0, 10, 50) == [5.0, 0.0]
    assert rates(104.0, 10, 58, 3) == [2.5, 2.0, 1.0]
    for now in range(106, 116, 2):
        rates(now, 10, 58, 3)
    assert rates(116.0, 10, 58, 4) == [0.0, 0.0, 0.1]
    assert rates(117.0, 0, 0, 14) == [None, None, 1.0]
    assert rates(4000.0, 9, 9, 99) == [None, None, None]
