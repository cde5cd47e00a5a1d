"""Drivers that wait for each task submit the next one to its worker directly; the scheduler has reports of both, in either order."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from client_alone import client as client  # a fixture
from client_alone import receive, submit
from client_alone import sent_by as sent_by_client
from conftest import running_cluster
from faults import PATIENCE, eventually, failure, kill_daemon
from scheduler_alone import DRIVER, FUNCTION, OWN, Node, ref, row, task_id
from worker_alone import DAEMON, begin, finish, give, sent_by
from worker_alone import row as worker_row
from worker_alone import worker as worker  # a fixture

import zfabric as zf
from zfabric.machines.client.machine import Client
from zfabric.machines.worker.machine import Worker
from zfabric.machines.worker.queue import Item
from zfabric.protocol import messages as m
from zfabric.protocol.effects import KillProcess
from zfabric.protocol.ids import CLIENT, CONTROL, WORKER, object_id
from zfabric.protocol.machine import Refusal
from zfabric.runtime import interface

# --- the scheduler ----------------------------------------------------------------------------------------------------------------


class DirectLease(Node):
    """A scheduler whose driver has waited for three tasks and has a direct lease on the worker that ran them."""

    def __init__(self, cpus: int = 1, waiting: tuple[Any, ...] = (), **config: Any) -> None:
        super().__init__(cpus, **config)
        self.scheduler.workers.prestart(self.now)
        self.turn()
        self.driver()
        self.workers()
        self.submit(*waiting)
        for number in range(3):
            self.submit(row(number))
            ((worker, _, _),) = self.dispatched()
            self.complete(worker, number)
        self.submit(row(3))
        self.worker = self.dispatched()[0][0]
        self.allowed = [message for to, message in self.take(m.DirectAllowed) if to == CLIENT + DRIVER]
        self.complete(self.worker, 3)
        self.sent.clear()

    def submit_direct(self, *numbers: int) -> None:
        self.send(CLIENT + DRIVER, m.SubmittedDirect(self.worker, tuple(map(row, numbers))))

    def dies(self, executing: bytes = b"") -> None:
        pid = self.pids[self.worker]
        self.send(b"X" + OWN, m.ProcessDied(pid, 9, 0, 0, "", executing))
        del self.pids[self.worker]

    @property
    def state(self) -> str:
        explained = self.scheduler.explain(self.worker)
        return explained.state if explained is not None else "gone"

    def task(self, number: int) -> Any:
        return self.scheduler.tables.tasks[task_id(number)]


def test_a_driver_that_waits_for_each_task_gets_a_direct_lease_and_others_do_not() -> None:
    node = DirectLease()
    assert node.allowed == [m.DirectAllowed(node.worker, (FUNCTION,), 0)]
    other = Node(cpus=1)
    other.scheduler.workers.prestart(other.now)
    other.turn()
    other.driver()
    (worker,) = other.workers()
    for number in range(0, 20, 2):
        other.submit(row(number), row(number + 1))
        for done in (number, number + 1):
            other.complete(worker, done)
    assert other.take(m.DirectAllowed) == []


def test_a_direct_task_runs_on_that_worker_and_its_value_is_sent_once() -> None:
    node = DirectLease()
    node.submit_direct(4)
    assert node.dispatched() == []
    assert node.task(4).worker.token == node.worker
    node.complete(node.worker, 4)
    assert node.results() == {}
    assert node.task(4).value == b"value"
    node.send(CLIENT + DRIVER, m.Release((ref(4),)))
    assert task_id(4) not in node.scheduler.tables.tasks


def test_the_outcome_may_arrive_before_the_submission() -> None:
    node = DirectLease()
    node.complete(node.worker, 4)
    node.submit_direct(4)
    assert node.task(4).value == b"value"
    assert node.scheduler.tables.workers[node.worker].inflight == {}


def test_refs_inside_an_early_value_live_until_its_task_is_reported() -> None:
    node = DirectLease()
    inner = object_id(task_id(9), 0)
    node.send(CLIENT + node.worker, m.Put(((inner, b"inside", (), False),)))
    node.complete(node.worker, 4, 0, m.OK, b"box", extras=((0, ((inner,),), ()),))
    node.send(CLIENT + node.worker, m.Release((inner,)))
    assert inner in node.scheduler.tables.objects
    node.submit_direct(4)
    assert inner in node.scheduler.tables.objects
    node.send(CLIENT + DRIVER, m.Release((ref(4),)))
    assert inner not in node.scheduler.tables.objects


@pytest.mark.parametrize("how", ["taken back", "it waits"])
def test_a_task_taken_back_before_its_report_is_dispatched_again(how: str) -> None:
    node = DirectLease()
    if how == "taken back":
        node.send(CONTROL + node.worker, m.TakenBack((task_id(4),), b""))
    else:
        node.submit(row(5), row(6))
        node.send(WORKER + node.worker, m.Blocked(task_id(5), (ref(7),), (task_id(6), task_id(4)), False))
    node.sent.clear()
    node.submit_direct(4)
    assert node.task(4).state in (1, 2), "it is ready, or given out"
    if how == "taken back":
        assert node.dispatched() == [(node.worker, 4, 0)]


def test_the_direct_lease_lasts_a_while_and_ends_where_others_wait() -> None:
    node = DirectLease(direct_lease_seconds=2.0)
    assert node.scheduler.pool.available() == (("CPU", 0),)
    assert node.scheduler.next_deadline() == pytest.approx(node.now + 0.01, abs=2.1)
    node.now += 3.0
    node.scheduler.tick(node.now)
    node.turn()
    assert dict(node.scheduler.pool.available())["CPU"] > 0
    assert node.take(m.DirectAllowed) == [(CLIENT + DRIVER, m.DirectAllowed(node.worker, (), 0))]
    node.submit_direct(4)  # The driver had not received that.
    node.complete(node.worker, 4)
    assert node.results() == {4: (m.OK, (b"value",))}, "nobody relies on what the worker tells any more"
    node.submit_direct()
    assert node.scheduler.tables.workers[node.worker].direct is None
    with pytest.raises(KeyError):
        node.submit_direct(5)
        node.task(5)


def test_tasks_of_another_shape_end_a_direct_lease() -> None:
    node = DirectLease(direct_lease_seconds=1000.0)
    half = (("CPU", 5000),)
    node.submit(row(4, demand=half))
    assert node.dispatched() == [(node.worker, 4, 0)]
    assert node.take(m.DirectAllowed) == [(CLIENT + DRIVER, m.DirectAllowed(node.worker, (), 0))]


def test_a_direct_lease_lasts_though_a_task_waits_that_can_never_run_here() -> None:
    node = DirectLease(waiting=(row(1000, demand=(("GPU", 10000),)),))
    assert node.allowed == [m.DirectAllowed(node.worker, (FUNCTION,), 0)]
    node.turn()
    assert node.take(m.DirectAllowed) == []


def test_a_query_for_resources_ends_a_direct_lease() -> None:
    node = DirectLease(direct_lease_seconds=1000.0)
    node.send(CLIENT + DRIVER, m.Query(1, "nodes", ()))
    assert dict(node.scheduler.pool.available())["CPU"] > 0


def test_tasks_of_a_dead_worker_run_again_reported_or_not() -> None:
    node = DirectLease()
    node.submit_direct(4)
    node.dies(executing=task_id(4))
    assert node.task(4).attempt == 1
    node.submit_direct(5)
    assert node.task(5).attempt == 1, "it may have begun"
    (worker,) = node.workers()
    given = node.dispatched()
    while len(given) < 2:
        node.complete(worker, given[-1][1], 1)
        given += node.dispatched()
    assert sorted(given) == [(worker, 4, 1), (worker, 5, 1)]


def test_values_that_a_dead_worker_may_not_have_sent_are_sent_by_the_scheduler() -> None:
    node = DirectLease()
    node.submit_direct(4)
    node.complete(node.worker, 4)
    node.submit_direct(5)
    node.complete(node.worker, 5)
    node.send(CLIENT + DRIVER, m.Release((ref(5),)))
    node.complete(node.worker, 6)
    assert node.results() == {}
    node.dies()
    assert node.results() == {4: (m.OK, (b"value",)), 5: (m.OK, ())}, "of what it has dropped, that it has ended"
    node.submit_direct(6)
    assert node.results() == {6: (m.OK, (b"value",))}


def test_a_driver_that_dropped_a_task_is_notified_of_its_end_although_the_worker_dies() -> None:
    node = DirectLease()
    node.submit_direct(4)
    node.send(CLIENT + DRIVER, m.Release((ref(4),)))
    node.complete(node.worker, 4)
    assert task_id(4) not in node.scheduler.tables.tasks
    node.dies()
    assert node.results() == {4: (m.OK, ())}, "else it would wait for that, and say the row again to the next daemon"


def test_a_query_is_answered_after_the_values_that_the_driver_has() -> None:
    node = DirectLease(direct_lease_seconds=1000.0)
    node.send(WORKER + node.worker, m.DirectCounts(DRIVER, 0))
    node.submit_direct(4)
    node.send(CLIENT + DRIVER, m.DirectCounts(node.worker, 1))
    node.send(CLIENT + DRIVER, m.Query(1, "available_resources", ()))
    assert node.take(m.Answer) == [], "the value has come to the driver sooner than the news of it to the scheduler"
    node.complete(node.worker, 4)
    node.send(WORKER + node.worker, m.DirectCounts(DRIVER, 1))
    ((_, answer),) = node.take(m.Answer)
    assert answer.payload == {"CPU": 1.0}


def test_a_query_does_not_wait_for_a_dead_worker() -> None:
    node = DirectLease()
    node.submit_direct(4)
    node.send(CLIENT + DRIVER, m.DirectCounts(node.worker, 1))
    node.send(CLIENT + DRIVER, m.Query(1, "available_resources", ()))
    node.dies()
    node.turn()
    assert len(node.take(m.Answer)) == 1


def test_only_plain_tasks_of_drivers_with_a_direct_lease_are_accepted() -> None:
    node = DirectLease()
    with pytest.raises(Refusal):
        node.send(CLIENT + DRIVER, m.SubmittedDirect(node.worker, (row(4, ref(3)),)))
    with pytest.raises(Refusal):
        node.send(CLIENT + DRIVER, m.SubmittedDirect(node.worker, (row(4, num_returns=2),)))
    before = node.scheduler.tables.counts["refused"]
    node.send(CLIENT + DRIVER, m.SubmittedDirect(b"\x01another", (row(4),)))
    assert node.scheduler.tables.counts["refused"] == before + 1
    assert task_id(4) not in node.scheduler.tables.tasks


def test_functions_that_demand_more_than_a_cpu_are_not_submitted_directly() -> None:
    node = Node(cpus=1, others=(("license", 1),))
    node.scheduler.workers.prestart(node.now)
    node.turn()
    node.driver()
    (worker,) = node.workers()
    licensed = b"l" * 16
    node.send(CLIENT + DRIVER, m.Export(((licensed, "l", b"payload", (("demand", (("CPU", 10_000), ("license", 1))),)),)))
    for number in range(10):
        node.submit((task_id(number), licensed, b"arguments", ()))
        ended = ((task_id(number), 0, m.OK, (b"value",)),)
        node.send(WORKER + worker, m.Completed.of(ended, (), ((licensed, 1, 0.0001),)))
    assert node.take(m.DirectAllowed) == [], "what is handed over late has no lease, and somebody else may have the license"


def test_a_worker_with_a_direct_lease_is_not_ended_for_others() -> None:
    node = DirectLease(workers_max=1)
    elsewhere = ((("PLACE", "elsewhere"),), "", ())
    node.submit(row(5, env=elsewhere))
    assert node.take(m.DirectAllowed) == [(CLIENT + DRIVER, m.DirectAllowed(node.worker, (), 0))]
    node.submit_direct(4)
    node.complete(node.worker, 4)
    assert [each for each in node.effects if isinstance(each, KillProcess)] == []
    node.submit_direct()
    assert [each.pid for each in node.effects if isinstance(each, KillProcess)] == [node.pids[node.worker]]


def test_values_of_direct_tasks_that_were_never_reported_are_freed() -> None:
    node = DirectLease()
    node.complete(node.worker, 4, 0, m.OK, (4096, 1000))
    assert node.take(m.Free) == []
    node.send(CLIENT + DRIVER, m.Goodbye())
    ((_, sealed),) = node.take(m.Sealed)
    assert sealed.rows[0][1:4] == (4096, 1000, node.worker)
    assert sealed.rows[0][0] in [each for _, free in node.take(m.Free) for each in free.object_ids]


def test_a_direct_lease_ends_with_its_driver() -> None:
    node = DirectLease()
    node.complete(node.worker, 4)
    node.send(CLIENT + DRIVER, m.Goodbye())
    assert node.scheduler.direct.next_deadline() is None


# --- the driver and the worker ------------------------------------------------------------------------------------------------------


def test_a_driver_submits_directly_when_no_other_task_is_in_flight(client: Client) -> None:
    place = b"\x05worker5"
    receive(client, m.DirectAllowed(place, (FUNCTION,), 0))
    first = submit(client)
    hand, handed = sent_by_client(client)
    assert hand.daemon == DAEMON
    assert handed == m.SubmittedDirect(place, hand.rows)
    assert hand.rows[0][0] == first
    submit(client)
    (second,) = sent_by_client(client)
    assert type(second) is m.Submit, "one is under way already"
    client.step(0.0, WORKER + place, m.Results(((first, m.OK, (b"value",)),)))
    client.step(0.0, WORKER + place, m.Results(((second.rows[0][0], m.OK, (b"value",)),)))
    submit(client, object_id(first, 0))
    assert [type(message) for message in sent_by_client(client)] == [m.Submit], "it has an argument by reference"


def test_a_driver_sends_its_count_of_values_before_a_query(client: Client) -> None:
    place = b"\x05worker5"
    receive(client, m.DirectAllowed(place, (FUNCTION,), 0))
    first = submit(client)
    sent_by_client(client)
    client.step(0.0, WORKER + place, m.Results(((first, m.OK, (b"value",)),)))
    client.queries.ask(1, "status", ())
    assert [type(message) for message in sent_by_client(client)] == [m.DirectCounts, m.Query]


def test_a_driver_stops_when_its_lease_ends_and_confirms_it(client: Client) -> None:
    place = b"\x05worker5"
    receive(client, m.DirectAllowed(place, (FUNCTION,), 0))
    receive(client, m.DirectAllowed(place, (), 0))
    assert sent_by_client(client) == [m.SubmittedDirect(place, ())]
    submit(client)
    assert [type(message) for message in sent_by_client(client)] == [m.Submit]


def test_a_worker_sends_plain_values_to_the_driver_and_everything_to_the_scheduler(worker: Worker) -> None:
    driver = b"\x01driver0"
    worker.step(0.0, b"L" + DAEMON, m.AllowDirect(driver))
    assert driver in worker.drivers
    worker.step(0.0, CLIENT + driver, m.SubmitDirect(DAEMON, (worker_row(1), worker_row(2)), 0))
    assert begin(worker) == 1
    finish(worker)
    assert begin(worker) == 2
    finish(worker, m.ERROR, (b"error",))
    told, first, completed, counted = sent_by(worker)
    assert (first, counted) == (m.DirectCounts(driver, 0), m.DirectCounts(driver, 1))
    assert told == m.Results(((worker_row(1)[0], m.OK, (b"value",)),))
    assert [status for _, _, status, _ in completed.rows] == [m.OK, m.ERROR]


def test_a_lone_value_is_sent_at_once_and_counted_once(worker: Worker) -> None:
    driver = b"\x01driver0"
    worker.step(0.0, b"L" + DAEMON, m.AllowDirect(driver))
    sent_by(worker)
    worker.step(0.0, CLIENT + driver, m.SubmitDirect(DAEMON, (worker_row(1),), 0))
    item = worker.begin()
    assert isinstance(item, Item)
    answer = worker.answer(item, m.OK, (b"value",))
    assert answer is not None
    assert (answer.to, answer.message) == (CLIENT + driver, m.Results(((worker_row(1)[0], m.OK, (b"value",)),)))
    worker.finish(item, m.OK, (b"value",), None, 0.0, 0.001, answered=True)
    completed, counted = sent_by(worker)
    assert [row[0] for row in completed.rows] == [worker_row(1)[0]]
    assert counted == m.DirectCounts(driver, 1)


def test_a_task_of_the_scheduler_is_answered_by_the_scheduler(worker: Worker) -> None:
    worker.step(0.0, b"L" + DAEMON, m.Dispatch((worker_row(1),), (), False))
    item = worker.begin()
    assert isinstance(item, Item)
    assert worker.answer(item, m.OK, (b"value",)) is None


def test_a_direct_task_is_sent_before_the_reports_to_the_scheduler(client: Client) -> None:
    place = b"\x05worker5"
    receive(client, m.DirectAllowed(place, (FUNCTION,), 0))
    task = submit(client)
    first = client.take_first()
    assert first is not None
    assert (first.to, [row[0] for row in first.message.rows]) == (WORKER + place, [task])
    assert sent_by_client(client) == [m.SubmittedDirect(place, first.message.rows)]


def test_reports_of_direct_tasks_are_sent_in_batches(client: Client) -> None:
    place = b"\x05worker5"
    receive(client, m.DirectAllowed(place, (FUNCTION,), 0))
    tasks = []
    for _ in range(3):
        tasks.append(submit(client))
        assert client.urgent, "the worker is to have it at once"
        assert client.take_first() is not None
        client.step(0.0, WORKER + place, m.Results(((tasks[-1], m.OK, (b"value",)),)))
        client.dropped.append(object_id(tasks[-1], 0))
        client.releases.settle()
        assert client.has_unsent
        assert not client.urgent
    client.put(b"p" * 20, b"value", (), False)
    assert client.urgent
    handed, released, put = sent_by_client(client)
    assert [row[0] for row in handed.rows] == tasks
    assert released == m.Release(tuple(object_id(task, 0) for task in tasks)), "behind what makes them known"
    assert type(put) is m.Put


def test_direct_tasks_are_submitted_as_plain_rows_to_a_restarted_daemon(client: Client) -> None:
    receive(client, m.DirectAllowed(b"\x05worker5", (FUNCTION,), 0))
    task = submit(client)
    client.connect(b"\x03daemon1")
    client.rejoin(m.Register(m.PROTOCOL_VERSION, "driver", 1, 1, b"jobj", b"name", b"", "", ""))
    assert client.take_first() is None
    sent_by = sent_by_client(client)
    assert [[row[0] for row in message.rows] for message in sent_by if type(message) is m.Submit] == [[task]]
    assert not any(type(message) is m.SubmittedDirect for message in sent_by)


def test_a_worker_drops_direct_tasks_of_a_former_daemon(worker: Worker) -> None:
    worker.step(0.0, CLIENT + b"\x01driver0", m.SubmitDirect(b"\x03daemon1", (worker_row(1),), 0))
    assert begin(worker) is None


def test_a_worker_forgets_a_driver_that_has_ended(worker: Worker) -> None:
    driver = b"\x01driver0"
    worker.step(0.0, b"L" + DAEMON, m.AllowDirect(driver))
    worker.step(0.0, CLIENT + driver, m.SubmitDirect(DAEMON, (worker_row(1), worker_row(2), worker_row(3)), 0))
    begin(worker)
    finish(worker)
    begin(worker)
    worker.step(0.0, b"L" + DAEMON, m.CallerGone(driver))
    finish(worker)
    given_back = [message.task_ids for message in sent_by(worker) if type(message) is m.TakenBack]
    assert given_back == [(worker_row(3)[0],)]
    give(worker, 4)
    assert begin(worker) == 4
    finish(worker)
    assert [type(message) for message in sent_by(worker)] == [m.Completed], "what it would say to the driver would be repeated for ever"
    assert driver not in worker.drivers


# --- real processes -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def shared() -> Any:
    with running_cluster(config={"restart_backoff_max": 0.05, "direct_lease_seconds": 30.0}) as context:
        yield context


def until_direct(task: Any, *arguments: Any) -> None:
    """Wait for one task after the other until the next is handed over."""

    def one_more() -> bool:
        zf.get(task.remote(*arguments), timeout=PATIENCE)
        return bool(interface.current().machine.direct.workers)  # type: ignore[union-attr]

    eventually(one_more, "the driver hands tasks to a worker")


@zf.remote
def pid(wish: str = "") -> int:
    if wish:
        Path(wish).touch()
        time.sleep(1000)
    return os.getpid()


@zf.remote
def note(path: str) -> None:
    with open(path, "a") as file:
        file.write("ran\n")


def test_tasks_that_are_waited_for_one_by_one_are_submitted_directly(shared: Any) -> None:
    until_direct(pid)
    client: Any = interface.current()
    ((worker,),) = (set(client.machine.direct.workers.values()),)
    zf.get(pid.remote())
    before = client.connection.transport.peers[worker].link.next_out
    assert len({zf.get(pid.remote()) for _ in range(20)}) == 1
    assert client.connection.transport.peers[worker].link.next_out == before + 20
    assert zf.available_resources()["CPU"] == 2.0, "who asks finds the worker free"
    assert zf.get([pid.remote() for _ in range(20)], timeout=PATIENCE)


def test_the_socket_of_a_dead_worker_is_closed(shared: Any) -> None:
    until_direct(pid)
    client: Any = interface.current()
    (worker,) = client.machine.direct.allowed
    os.kill(zf.get(pid.remote(), timeout=PATIENCE), signal.SIGKILL)
    eventually(lambda: worker not in client.connection.transport.peers, "the socket is closed")
    until_direct(pid)


def test_the_socket_of_a_worker_with_a_direct_lease_stays_open(shared: Any, tmp_path: Path) -> None:
    """Its daemon knows of its death a moment sooner than the driver: what is handed over then would open the socket again, for ever."""
    until_direct(pid)
    client: Any = interface.current()
    ((worker,),) = (set(client.machine.direct.workers.values()),)
    zf.get(pid.remote(), timeout=PATIENCE)
    path = Path(client.session.sockets) / worker.hex()
    path.rename(tmp_path / "socket")
    client.connection._forget_dead_workers()
    (tmp_path / "socket").rename(path)
    assert worker in client.connection.transport.peers
    assert zf.get(pid.remote(), timeout=PATIENCE)


def test_errors_and_values_with_refs_arrive_through_the_scheduler(shared: Any) -> None:
    @zf.remote
    def body(number: int) -> Any:
        if number % 3 == 0:
            raise ValueError(number)
        return zf.put(number) if number % 3 == 1 else b"x" * 1_000_000

    until_direct(pid)
    for number in range(60):
        if number % 3 == 0:
            with pytest.raises(ValueError, match=str(number)):
                zf.get(body.remote(number), timeout=PATIENCE)
        elif number % 3 == 1:
            assert zf.get(zf.get(body.remote(number), timeout=PATIENCE), timeout=PATIENCE) == number
        else:
            assert len(zf.get(body.remote(number), timeout=PATIENCE)) == 1_000_000


def test_a_direct_task_is_cancelled_as_any_other(shared: Any, tmp_path: Path) -> None:
    until_direct(pid)
    running = pid.remote(str(tmp_path / "runs"))
    eventually((tmp_path / "runs").exists, "it runs")
    zf.cancel(running)
    assert isinstance(failure(running), zf.TaskCancelledError)


def test_direct_tasks_survive_the_worker(shared: Any) -> None:
    for _ in range(5):
        until_direct(pid)
        os.kill(zf.get(pid.remote(), timeout=PATIENCE), signal.SIGKILL)
        assert zf.get(pid.remote(), timeout=PATIENCE)


def test_a_direct_task_that_kills_its_worker_is_retried_and_then_fails(shared: Any, tmp_path: Path) -> None:
    @zf.remote(max_retries=2)
    def deadly(path: str) -> int:
        if path:
            with Path(path).open("a") as file:
                file.write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        return 1

    until_direct(deadly, "")
    assert isinstance(failure(deadly.remote(str(tmp_path / "runs"))), zf.WorkerCrashedError)
    assert (tmp_path / "runs").read_text() == "xxx"


def test_direct_tasks_survive_the_daemon(shared: Any) -> None:
    for _ in range(3):
        until_direct(pid)
        kill_daemon()
        assert zf.get(pid.remote(), timeout=PATIENCE)
        assert sorted(zf.get([pid.remote() for _ in range(10)], timeout=PATIENCE))
