"""Streams in the machines alone: what the scheduler sends, and what a worker reports to the next daemon."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_alone import ACTOR_CLASS, CLIENT, DRIVER, OLD, OWN, WORKER, Node, Restarted, died, ref, row, task_id

from zfabric.config import Config
from zfabric.machines.local_scheduler.object_places import PENDING, Stored
from zfabric.machines.worker.baton import Baton
from zfabric.machines.worker.machine import Worker
from zfabric.machines.worker.queue import Invocation, Item
from zfabric.machines.worker.reports import Yields
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import call_value, control_of, object_id
from zfabric.protocol.refusals import Unread, in_place_of

STREAM = b"s" * 16


class Streaming(Node):
    """A node with one worker that runs task 0, a stream which may be two values ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.driver()
        self.send(CLIENT + DRIVER, m.Export(((STREAM, "s", b"payload", (("stream", 2),)),)))
        self.submit((task_id(0), STREAM, b"", ()))
        (self.worker,) = self.workers()
        assert self.dispatched() == [(self.worker, 0, 0)]

    def yields(self, *values: tuple[int, Any], attempt: int = 0) -> None:
        self.send(WORKER + self.worker, m.Yielded(tuple((task_id(0), attempt, index, value, ()) for index, value in values)))

    def asks(self, *indexes: int) -> None:
        """The driver holds and fetches values."""
        names = tuple(ref(0, index + 1) for index in indexes)
        self.send(CLIENT + DRIVER, m.Hold(names))
        self.send(CLIENT + DRIVER, m.Fetch(names))

    def drops(self, *indexes: int) -> None:
        self.send(CLIENT + DRIVER, m.Release(tuple(ref(0, index + 1) for index in indexes)))

    def drops_stream(self) -> None:
        self.send(CLIENT + DRIVER, m.Release((ref(0),)))

    def got(self) -> list[tuple[int, Any]]:
        """What the driver was sent: (index, value or kind of failure)."""
        found = []
        for _, message in self.take(m.Objects):
            for identifier, status, value, _ in message.rows:
                index = int.from_bytes(identifier[-4:], "big") - 1
                found.append((index, value if status == m.OK else unpack_failure(value)[0] if status == m.FAILED else (status, value)))
        return found

    def allowed(self) -> list[int]:
        """The credit that the worker has received."""
        return [message.upto for _, message in self.take(m.AllowYields)]

    def objects(self) -> list[int]:
        """Values of the stream that there are records of."""
        return sorted(int.from_bytes(identifier[-4:], "big") - 1 for identifier in self.scheduler.tables.objects)


@pytest.fixture
def node() -> Streaming:
    return Streaming()


def test_yielded_values_go_to_readers_that_already_wait(node: Streaming) -> None:
    node.asks(0, 1)
    assert node.got() == []
    node.yields((0, b"a"))
    assert node.got() == [(0, b"a")]
    node.yields((1, b"b"))
    assert node.got() == [(1, b"b")]
    assert node.allowed() == []  # It may go so far of itself.


def test_a_request_is_the_credit(node: Streaming) -> None:
    node.asks(0, 1, 2)
    assert node.allowed() == [3]
    node.asks(3, 4)
    assert node.allowed() == [5]
    node.asks(2)
    assert node.allowed() == []


def test_a_value_that_a_later_one_overtakes_is_lost_and_made_again(node: Streaming) -> None:
    """It went with a daemon, and its reader waits for it. The maker waits for its reader, so it is ended to run again."""
    node.asks(0, 1, 2)
    node.yields((0, b"a"), (2, b"c"))
    assert node.allowed() == [3, m.CLOSE]
    node.yields((3, None))
    node.complete(node.worker, 0)
    ((worker, number, attempt),) = node.dispatched()
    assert (worker, number) == (node.worker, 0)
    node.yields((0, b"a"), (1, b"b"), (2, b"c"), attempt=attempt)
    assert node.got() == [(0, b"a"), (2, b"c"), (1, b"b")]


def test_unrequested_values_wait_in_the_stream(node: Streaming) -> None:
    node.yields((0, b"a"), (1, b"b"))
    assert node.objects() == [0, 1]
    node.asks(0)
    assert node.got() == [(0, b"a")]
    node.drops(0)
    assert node.objects() == [1]
    node.drops_stream()
    assert node.allowed() == [m.CLOSE]
    assert node.objects() == []
    node.yields((2, b"c"))
    assert node.objects() == []


def test_requests_at_and_beyond_the_end(node: Streaming) -> None:
    node.asks(0, 1, 2)
    node.yields((0, b"a"), (1, None))
    node.complete(node.worker, 0)
    assert node.got() == [(0, b"a"), (1, "StreamEnded"), (2, "StreamEnded")]
    node.asks(7)
    assert node.got() == [(7, "StreamEnded")]
    assert node.take(m.Results)[-1][1].rows == ((task_id(0), m.OK, (None,)),)  # The submitter keeps its row: it would make them again.
    node.drops_stream()
    node.drops(0, 1, 2, 7)
    assert node.objects() == []
    assert not node.scheduler.tables.streams
    assert task_id(0) not in node.scheduler.tables.tasks


def test_an_error_is_the_value_after_the_last(node: Streaming) -> None:
    node.asks(0, 1, 2)
    node.yields((0, b"a"))
    node.complete(node.worker, 0, 0, m.ERROR, b"error")
    assert node.got() == [(0, b"a"), (1, (m.ERROR, b"error")), (2, "StreamEnded")]


def test_an_error_waits_for_its_reader(node: Streaming) -> None:
    node.yields((0, b"a"))
    node.complete(node.worker, 0, 0, m.ERROR, b"error")
    node.asks(0, 1, 2)
    assert node.got() == [(0, b"a"), (1, (m.ERROR, b"error")), (2, "StreamEnded")]


def test_a_later_attempt_continues_at_the_position_of_the_first(node: Streaming) -> None:
    node.asks(0, 1, 2)
    node.yields((0, b"a"), (1, b"b"))
    assert node.got() == [(0, b"a"), (1, b"b")]
    node.drops(0)
    node.allowed()
    pid = node.pids.pop(node.worker)
    node.send(b"X" + b"\x02daemon0", m.ProcessDied(pid, 0, 9, 0, "", task_id(0)))
    node.workers()
    ((worker, _, attempt),) = node.dispatched()
    assert attempt == 1
    node.worker = worker
    node.yields((2, b"too late"))
    assert node.got() == []
    node.yields((0, b"A"), (1, b"B"), attempt=1)
    assert node.allowed() == [3]  # The new worker has not received it.
    assert (node.got(), node.objects()) == ([], [1, 2])
    node.yields((2, b"C"), attempt=1)
    assert node.got() == [(2, b"C")]


def test_values_that_were_released_are_not_delivered_again(node: Streaming) -> None:
    node.asks(0)
    node.yields((0, b"a"))
    node.drops(0)
    node.got()
    node.asks(0)
    assert node.got() == [(0, "ObjectFreedError")]


def test_a_released_stream_does_not_begin() -> None:
    node = Streaming()
    node.submit((task_id(1), STREAM, b"", ()))
    node.send(CLIENT + DRIVER, m.Release((ref(1),)))
    assert task_id(1) not in node.scheduler.tables.tasks
    assert list(node.scheduler.tables.streams) == [task_id(0)]


def test_a_reader_that_stops_waiting_leaves_nothing(node: Streaming) -> None:
    node.asks(0, 1)
    node.drops(0, 1)
    assert node.objects() == []
    node.yields((0, b"a"))
    assert node.objects() == [0]
    node.drops_stream()
    assert node.objects() == []


def test_a_row_that_names_a_stream_retains_it(node: Streaming) -> None:
    node.asks(0, 1)
    node.submit(row(1, contains=(ref(0), ref(0, 1), ref(0, 2))))
    node.drops_stream()
    node.drops(0, 1)
    assert node.allowed() == []
    assert node.objects() == [0, 1]


def test_values_of_unknown_streams_are_refused(node: Streaming) -> None:
    refused = node.scheduler.tables.counts["refused"]
    node.send(WORKER + b"\x01nobody0", m.Yielded(((task_id(0), 0, 0, b"a", ()),)))
    assert node.scheduler.tables.counts["refused"] == refused + 1
    assert node.objects() == []


def calling() -> tuple[Node, bytes, bytes, bytes, tuple[bytes, ...]]:
    """A node whose driver reads the stream of a call: the actor's worker, the call, its end and its first three values."""
    node = Node()
    node.driver()
    node.send(CLIENT + DRIVER, m.Export(((STREAM, "s", b"payload", (("actor", b"blueprint"),)),)))
    node.submit((task_id(0), STREAM, b"", ()))
    node.workers()
    ((actor, _, _),) = node.dispatched()
    node.complete(actor, 0)
    call = task_id(5)
    end, names = call_value(call, 0), tuple(object_id(call, index + 1) for index in range(3))
    node.send(CLIENT + DRIVER, m.ExpectResults(((end, task_id(0), 2),)))
    node.send(CLIENT + DRIVER, m.Hold((end, *names)))
    node.send(CLIENT + DRIVER, m.Fetch(names))
    return node, actor, call, end, names


def test_a_method_streams_to_its_caller() -> None:
    node, actor, call, end, names = calling()
    assert node.take(m.AllowYields) == [(WORKER + actor, m.AllowYields(call, 3))]  # The end has a number too, and is no value.
    node.send(WORKER + actor, m.Yielded(((call, 0, 0, b"a", ()), (call, 0, 1, None, ()))))
    node.send(WORKER + actor, m.CallOutcomes(((call, DRIVER, m.OK, (b"1",), ()),)))
    received = [row[1:3] for _, message in node.take(m.Objects) for row in message.rows]
    assert received[0] == (m.OK, b"a")
    assert [unpack_failure(value)[0] for _, value in received[1:]] == ["StreamEnded", "StreamEnded"]
    node.send(CLIENT + DRIVER, m.OfferResults(((end, m.OK, b"1", ()),)))
    node.send(CLIENT + DRIVER, m.Release((end, *names)))
    assert not node.scheduler.tables.streams
    assert not node.scheduler.tables.objects


def test_values_of_a_call_that_cannot_be_read_are_its_streams_last_failure() -> None:
    node, actor, call, end, names = calling()
    refused = in_place_of(Unread("Yielded", (((call, 0, 1, 7, ()),),), "it is a test"))
    assert refused is not None
    node.send(WORKER + actor, m.Yielded(((call, 0, 0, b"a", ()),)))
    node.send(WORKER + b"\x01nobody0", refused)
    node.send(WORKER + actor, refused)
    received = [row[1:3] for _, message in node.take(m.Objects) for row in message.rows]
    assert received[0] == (m.OK, b"a")
    assert [unpack_failure(value)[:2] for _, value in received[1:]] == [
        ("FabricError", "Yielded was refused: it is a test"),
        ("StreamEnded", "the stream of a method has 2 values"),
    ]
    node.send(WORKER + actor, m.Yielded(((call, 0, 2, b"c", ()), (call, 0, 3, None, ()))))
    node.send(WORKER + actor, m.CallOutcomes(((call, DRIVER, m.OK, (b"3",), ()),)))
    assert node.take(m.Objects) == []
    assert node.take(m.Returned)[-1][1].rows == ((call, m.OK, (b"3",)),)
    node.send(CLIENT + DRIVER, m.OfferResults(((end, m.OK, b"3", ()),)))
    node.send(CLIENT + DRIVER, m.Release((end, *names)))
    assert not node.scheduler.tables.streams
    assert not node.scheduler.tables.objects


# --- lost values of streams -----------------------------------------------------------------------------------------------------------

PLACE = (640, 100_000)


class Fed(Node):
    """A node whose driver has given the first value of a stream, task 0, to task 1, and dropped everything but what that is to make."""

    def __init__(self, *options: tuple[str, Any], **config: Any) -> None:
        super().__init__(**config)
        self.driver()
        self.send(CLIENT + DRIVER, m.Export(((STREAM, "s", b"payload", (("stream", 2), *options)),)))
        self.submit((task_id(0), STREAM, b"", ()))
        (self.worker,) = self.workers()
        self.send(CLIENT + DRIVER, m.Hold((ref(0, 1),)))
        self.submit(row(1, ref(0, 1)))
        self.yields((0, b"a"), (1, b"b"))

    def yields(self, *values: tuple[int, Any], attempt: int = 0) -> None:
        self.send(WORKER + self.worker, m.Yielded(tuple((task_id(0), attempt, index, value, ()) for index, value in values)))

    def makes(self) -> None:
        """Both tasks end; nothing refers to the stream any more, and what was made of its value has a copy."""
        self.yields((2, None))
        self.complete(self.worker, 0)
        self.complete(self.worker, 1, 0, m.OK, PLACE)
        self.send(CLIENT + DRIVER, m.Release((ref(0), ref(0, 1))))
        self.sent.clear()

    def loses(self, identifier: bytes) -> None:
        """The driver needs a value of which no copy is left."""
        self.send(b"O" + OWN, m.ObjectsLost(((identifier, "its bytes are damaged"),)))
        self.send(CLIENT + DRIVER, m.Fetch((identifier,)))

    def failure(self) -> tuple[str, str]:
        """Kind and text of the failure that the driver received."""
        (row,) = [row for _, message in self.take(m.Objects) for row in message.rows]
        assert row[1] == m.FAILED
        return unpack_failure(row[2])[:2]

    def is_empty(self) -> bool:
        tables = self.scheduler.tables
        return not (tables.tasks or tables.objects or tables.streams or self.scheduler.references.lineage_bytes)


def test_what_a_task_made_of_a_streams_value_is_made_again_after_the_generator_is_gone() -> None:
    node = Fed()
    node.makes()
    assert [identifier[-4:] for identifier in node.scheduler.tables.objects] == [ref(0, 1)[-4:]]  # The one that a retained row names.
    node.loses(ref(1))
    assert node.dispatched() == [(node.worker, 0, 1)]
    node.yields((0, b"A"), attempt=1)
    assert [message.upto for _, message in node.take(m.AllowYields)] == [m.CLOSE]  # Nobody needs the rest.
    node.yields((1, None), attempt=1)
    node.complete(node.worker, 0, 1)
    assert node.dispatched() == [(node.worker, 1, 1)]
    node.complete(node.worker, 1, 1, m.OK, b"made again")
    assert node.take(m.Objects)[0][1].rows == ((ref(1), m.OK, b"made again", ()),)
    assert not node.is_empty()  # It may be lost once more.
    node.send(CLIENT + DRIVER, m.Release((ref(1),)))
    assert node.is_empty()


def test_a_value_that_is_held_is_made_again_after_the_generator_is_gone() -> None:
    node = Fed()
    node.yields((2, None))
    node.complete(node.worker, 0)
    node.complete(node.worker, 1)
    node.send(CLIENT + DRIVER, m.Release((ref(0), ref(1))))
    node.scheduler.tables.objects[ref(0, 1)].arrive(Stored(9), node.scheduler.tables.inline)
    node.sent.clear()
    node.loses(ref(0, 1))
    assert node.dispatched() == [(node.worker, 0, 1)]
    node.yields((0, b"A"), attempt=1)
    assert node.take(m.Objects)[0][1].rows == ((ref(0, 1), m.OK, b"A", ()),)
    node.yields((1, None), attempt=1)
    node.complete(node.worker, 0, 1)
    node.send(CLIENT + DRIVER, m.Release((ref(0, 1),)))
    assert node.is_empty()


def test_a_stream_that_has_yielded_a_lost_value_ends_early_and_runs_again() -> None:
    """It may wait for the reader of that value, so nobody waits for its end. That is not one of its retries."""
    node = Fed(("max_retries", 1))
    node.scheduler.tables.objects[ref(0, 1)].arrive(Stored(9), node.scheduler.tables.inline)
    node.sent.clear()
    node.loses(ref(0, 1))
    assert [message.upto for _, message in node.take(m.AllowYields)] == [m.CLOSE]
    node.yields((2, None))
    node.complete(node.worker, 0)
    assert node.results() == {}
    assert node.dispatched()[0] == (node.worker, 0, 1)
    node.yields((0, b"A"), (1, b"B"), attempt=1)
    assert node.take(m.Objects)[0][1].rows == ((ref(0, 1), m.OK, b"A", ()),)
    died(node, node.worker, 0)
    (worker,) = node.workers()
    assert node.dispatched()[0] == (worker, 1, 0)  # It reads a value that is there.
    node.complete(worker, 1)
    assert node.dispatched()[0] == (worker, 0, 2)


def test_a_stream_that_has_not_come_to_a_lost_value_goes_on() -> None:
    node = Fed()
    node.send(CLIENT + DRIVER, m.Hold((ref(0, 2),)))
    node.makes()
    node.loses(ref(1))
    node.scheduler.tables.objects[ref(0, 2)].arrive(Stored(9), node.scheduler.tables.inline)
    node.loses(ref(0, 2))
    assert node.dispatched() == [(node.worker, 0, 1)]
    node.yields((0, b"A"), attempt=1)
    assert node.take(m.AllowYields) == []
    node.yields((1, b"B"), attempt=1)
    assert node.take(m.Objects)[0][1].rows == ((ref(0, 2), m.OK, b"B", ()),)
    assert [message.upto for _, message in node.take(m.AllowYields)] == [m.CLOSE]


@pytest.mark.parametrize("status", [m.ERROR, m.FAILED])
def test_a_stream_that_fails_as_it_runs_again_fails_what_needs_its_values(status: int) -> None:
    node = Fed()
    node.makes()
    node.loses(ref(1))
    node.complete(node.worker, 0, 1, status, b"error")
    assert node.take(m.Objects)[0][1].rows == ((ref(1), status, b"error", ()),)
    node.send(CLIENT + DRIVER, m.Release((ref(1),)))
    assert node.is_empty()


def test_a_stream_that_yields_less_as_it_runs_again_says_so() -> None:
    node = Fed()
    node.makes()
    node.loses(ref(1))
    node.yields((0, None), attempt=1)
    node.complete(node.worker, 0, 1)
    kind, text = node.failure()
    assert (kind, "yielded 0 values as it ran again" in text) == ("ObjectLostError", True)
    assert node.dispatched() == [(node.worker, 0, 1)]


def test_a_stream_that_must_not_run_twice_does_not() -> None:
    node = Fed(("max_retries", 0))
    node.makes()
    node.loses(ref(1))
    kind, text = node.failure()
    assert (kind, "what an actor or a task with max_retries=0 yields is not" in text) == ("LineageEvictedError", True)


def test_a_streams_row_goes_at_the_lineage_cap() -> None:
    node = Fed(lineage_bytes=100)
    node.makes()
    assert task_id(0) not in node.scheduler.tables.tasks
    assert not node.scheduler.tables.streams
    node.loses(ref(1))
    assert node.failure()[0] == "LineageEvictedError"
    node.send(CLIENT + DRIVER, m.Release((ref(1),)))
    assert node.is_empty()


def test_the_next_daemon_permits_a_stream_what_tasks_wait_for_that_nobody_requests_any_more() -> None:
    node = Restarted()
    stream = (task_id(0), STREAM, b"", ())
    yielded = m.Yielded(((task_id(0), 0, 0, b"a", ()), (task_id(0), 0, 1, b"b", ())))
    running = m.RunningTasks(((stream, 0, True, ""),), ())
    node.rejoin((stream, row(1, ref(0, 4))), (WORKER, running), (WORKER, yielded), functions=((STREAM, "s", b"payload", (("stream", 2),)),))
    assert [message for _, message in node.take(m.AllowYields)] == [m.AllowYields(task_id(0), 4)]


def test_the_next_daemon_has_a_value_made_again_that_the_one_before_had_released() -> None:
    """The task that took it had ended, but its submitter was not notified: the worker knows no more than that the value was accepted."""
    node = Restarted()
    stream = (task_id(0), STREAM, b"", ())
    running = m.RunningTasks(((stream, 0, True, ""),), ())
    yielded = m.Yielded(((task_id(0), 0, 0, True, ()),))
    node.rejoin((row(1, ref(0, 1)), stream), (WORKER, running), (WORKER, yielded), functions=((STREAM, "s", b"payload", (("stream", 2),)),))
    value = node.scheduler.tables.objects[ref(0, 1)]
    assert (value.status, value.value) == (PENDING, None)
    assert [message.upto for _, message in node.take(m.AllowYields)] == [m.CLOSE]
    node.send(WORKER + OLD, m.Yielded(((task_id(0), 0, 1, None, ()),)))
    node.complete(OLD, 0)
    ((_, number, attempt),) = node.dispatched()
    assert number == 0
    node.send(WORKER + OLD, m.Yielded(((task_id(0), attempt, 0, b"a", ()), (task_id(0), attempt, 1, None, ()))))
    node.complete(OLD, 0, attempt)
    assert [number for _, number, _ in node.dispatched()] == [1]


def test_an_actors_stream_goes_on_without_a_value_that_the_daemon_before_had_released() -> None:
    """Another copy of the generator has taken that value, and reads on."""
    node = Restarted()
    call = task_id(5)
    end, names = call_value(call, 0), tuple(object_id(call, index + 1) for index in range(2))
    actor = m.HostedActors((((task_id(0), ACTOR_CLASS, b"", ()), 0),))
    held = (m.ExpectResults(((end, task_id(0), 2),)), m.Hold((end, *names)), m.Fetch(names))
    node.rejoin((), (CLIENT, actor), (WORKER, m.Yielded(((call, 0, 0, True, ()),))), held=held)
    node.send(WORKER + OLD, m.Yielded(((call, 0, 1, b"b", ()),)))
    first, second = [row for _, message in node.take(m.Objects) for row in message.rows]
    assert (first[:2], unpack_failure(first[2])[0]) == ((names[0], m.FAILED), "ObjectFreedError")
    assert second[:3] == (names[1], m.OK, b"b")


# --- the worker's side -----------------------------------------------------------------------------------------------------------------


def test_a_worker_yields_as_far_as_its_credit() -> None:
    yields = Yields()
    yields.begin(b"task", 2)
    assert [yields.may_go_on(b"task", index) for index in (1, 2)] == [True, False]
    yields.allow(b"task", 5)
    yields.allow(b"task", 3)
    assert [yields.may_go_on(b"task", index) for index in (4, 5)] == [True, False]
    yields.allow(b"task", m.CLOSE)
    yields.allow(b"task", 9)
    assert yields.closed(b"task")
    assert yields.may_go_on(b"task", 9)


def test_a_task_that_waits_for_credit_may_be_stopped_at_any_moment() -> None:
    yields = Yields()
    yields.begin(b"task", 2)

    class Leaves(dict[bytes, Any]):
        """Whoever is looked for leaves as soon as that has been answered: an event loop holds no lock."""

        def __contains__(self, key: object) -> bool:
            return super().pop(key, None) is not None

    yields.waiting = Leaves({b"task": lambda: None})
    yields.allow(b"task", 5)
    assert yields.may_go_on(b"task", 4)


def again(yields: Yields, *unheard: m.Message) -> list[m.Message]:
    return yields.repeated(unheard, lambda call_id: False)


def test_streams_of_a_worker_are_reported_to_the_next_daemon() -> None:
    yields = Yields()
    yields.begin(b"task", 3)
    rows = [(b"task", 0, index, b"value" if index % 2 else (index, 10), (b"ref",)) for index in range(6)]
    for each in rows:
        yields.add(each)
    yields.take()
    completed = m.Completed.of(())
    reports = again(yields, m.Yielded((rows[4],)), completed)
    # The last four, of which one may count the values. An acknowledged place belongs to the arena; one that may not have arrived is
    # repeated unchanged.
    gone = (b"task", 0, 2, True, ())
    assert reports == [m.Yielded((gone, rows[3], rows[4], rows[5])), completed]
    assert again(yields)[0] == m.Yielded((gone, rows[3], (b"task", 0, 4, True, ()), rows[5]))
    yields.end(b"task")
    assert again(yields, completed) == [completed]


# --- streams that have ended, and whose outcome no daemon may have ------------------------------------------------------------------

SOURCE = task_id(60)
"""An actor."""
CALL = task_id(77)
END = call_value(CALL, 0)
FUNCTIONS = ((STREAM, "s", b"payload", (("stream", 4),)),)


class Source(Worker):
    """A worker that has made a stream of three values; the daemon before acknowledged all but the outcome."""

    def __init__(self) -> None:
        super().__init__(WORKER + OLD, Config.of({}))
        self.connect(b"\x01daemon0")
        self.functions[ACTOR_CLASS] = (ACTOR_CLASS, "C", b"payload", (("actor", b""),))

    def stream(self, task: bytes, *lost: int) -> None:
        self.yields.begin(task, 4)
        for index in range(4):
            if index not in lost:
                self.yields.add((task, 0, index, b"%d" % index if index < 3 else None, ()))

    def run_task(self, *lost: int) -> None:
        self.step(0.0, b"L", m.Dispatch(((task_id(0), STREAM, b"", ()),), (), 0, 0))
        item = self.begin()
        assert isinstance(item, Item)
        self.stream(task_id(0), *lost)
        self.finish(item, m.OK, (b"3",), None, 0.0, 0.001)
        self.unconfirmed += [message for message in self.sent() if type(message) is m.Completed]

    def begin_call(self, *lost: int) -> Invocation:
        self.mailbox.actors[SOURCE] = ((SOURCE, ACTOR_CLASS, b"", ()), 0)
        self.step(0.0, CLIENT + DRIVER, m.Call(SOURCE, 0, ((CALL, "count", b"", (), (), (("stream", 4),)),)))
        item = self.begin()
        assert isinstance(item, Invocation)
        self.stream(CALL, *lost)
        return item

    def run_call(self, *lost: int) -> None:
        item = self.begin_call(*lost)
        self.finish_call(item, m.OK, (b"3",), (), 0.0, 0.001)
        self.sent()

    def sent(self) -> list[Any]:
        self.check_invariants()
        return [effect.message for effect in self.take_effects(0.0)]  # type: ignore[union-attr]

    def receive(self, node: Node) -> None:
        """Receive a daemon's messages about outcomes."""
        for to, message in node.confirm():
            assert to in (WORKER + OLD, b"K" + control_of(OLD))
            self.step(0.0, b"L", message)


def read(node: Node, task: bytes) -> list[Any]:
    """What a reader of this stream has received, by index: values, or kinds of failures."""
    rows = sorted(row for _, message in node.take(m.Objects) for row in message.rows)
    assert {row[0][:16] for row in rows} <= {task}
    return [value if status == m.OK else unpack_failure(value)[0] for _, status, value, _ in rows]


def rejoined(source: Source, taken: int, *held: Any) -> Restarted:
    """A daemon to which that worker registers again, and a reader that has taken some values."""
    node = Restarted()
    task = CALL if held else task_id(0)
    names = tuple(object_id(task, index + 1) for index in range(taken, taken + 4))
    rows = () if held else ((task, STREAM, b"", ()),)
    roles = {m.HostedActors: CLIENT, m.CallOutcomes: CLIENT}
    reports = ((roles.get(type(message), WORKER), message) for message in source.running())  # type: ignore[call-overload]
    node.rejoin(rows, *reports, functions=FUNCTIONS, held=(*held, m.Hold(names), m.Fetch(names)))
    return node


EXPECTED = (m.ExpectResults(((END, SOURCE, 4),)), m.Hold((END,)))


@pytest.mark.parametrize("taken", range(4))
@pytest.mark.parametrize("held", [(), EXPECTED], ids=["task", "call"])
def test_values_outlive_the_daemon_until_their_streams_end_is_recorded(taken: int, held: Any) -> None:
    source = Source()
    (source.run_call if held else source.run_task)()
    node = rejoined(source, taken, *held)
    assert read(node, CALL if held else task_id(0)) == [b"0", b"1", b"2"][taken:] + ["StreamEnded"] * (taken + 1)
    assert node.dispatched() == []
    assert source.yields.ended
    source.receive(node)
    assert not source.yields.ended
    assert not any(type(message) is m.Yielded for message in source.running())


def test_a_task_whose_values_went_with_the_daemon_runs_again() -> None:
    source = Source()
    source.run_task(1)
    node = rejoined(source, 0)
    ((worker, _, attempt),) = node.dispatched()
    assert worker == OLD
    assert read(node, task_id(0)) == [b"0", b"2"]
    node.send(WORKER + OLD, m.Yielded(tuple((task_id(0), attempt, index, (b"0", b"1", b"2", None)[index], ()) for index in range(4))))
    node.complete(OLD, 0, attempt)
    assert read(node, task_id(0)) == [b"1", "StreamEnded"]


@pytest.mark.parametrize("lost", [(1,), (1, 3), (0, 1, 2, 3)])
def test_a_reader_receives_an_error_where_values_of_a_call_went_with_the_daemon(lost: tuple[int, ...]) -> None:
    source = Source()
    source.run_call(*lost)
    node = rejoined(source, 0, *EXPECTED)
    had = [b"0", b"1", b"2"]
    expected = ["StreamEnded" if index in lost else value for index, value in enumerate(had)] + ["StreamEnded"]
    expected[lost[0]] = "ObjectLostError"
    assert read(node, CALL) == expected


def test_the_end_of_every_attempt_is_recorded(node: Streaming) -> None:
    def recorded() -> list[Any]:
        return [(to, *message) for to, message in node.take(m.OutcomesRecorded)]

    once = [(WORKER + node.worker, (task_id(0),))]
    node.yields((0, b"a"))
    node.complete(node.worker, 0, 7)
    assert recorded() == once, "of an attempt that nobody waits for"
    node.complete(node.worker, 0)
    assert recorded() == once, "of one that lacks its end, and runs again"
    ((_, _, attempt),) = node.dispatched()
    node.yields((0, b"a"), (1, None), attempt=attempt)
    node.complete(node.worker, 0, attempt)
    assert recorded() == once


def test_a_later_attempt_retains_its_own_values() -> None:
    source = Source()
    source.run_task()
    source.step(0.0, b"L", m.Dispatch(((task_id(0), STREAM, b"", ()),), (), 0, 1))
    source.begin()
    source.stream(task_id(0))
    assert not source.yields.ended


@pytest.mark.parametrize("how", ["given up", "killed"])
def test_a_call_without_an_outcome_of_its_own_retains_no_values(how: str) -> None:
    source = Source()
    if how == "killed":
        source.baton = Baton(source.mailbox, source.interrupts)
    item = source.begin_call()
    if how == "given up":
        source.step(0.0, b"L", m.StopCall(CALL, "cancelled"))
        assert source.abandon(CALL)
    else:
        source.step(0.0, b"L", m.RetireActor(SOURCE, 0, True))
    source.finish_call(item, m.OK, (b"3",), (), 0.0, 0.001)
    assert not source.yields.ended


@pytest.mark.parametrize("readers", [2, 5])
def test_readers_that_wait_are_replaced_when_their_stream_is_to_run_again(node: Streaming, readers: int) -> None:
    """The node has one CPU, and what makes a stream never runs on top of its readers."""
    node.send(WORKER + node.worker, m.Blocked(task_id(0), (), (), False))
    for number in range(1, readers + 1):
        node.submit(row(number, contains=(ref(0),)))
        node.workers()
        ((worker, _, attempt),) = node.dispatched()
        node.send(CLIENT + worker, m.Hold((ref(0, 1),)))
        node.send(WORKER + worker, m.Blocked(task_id(number), (ref(0, 1),), (), True))
    died(node, node.worker, 0)
    node.workers()
    ((worker, number, attempt),) = node.dispatched()
    assert (number, attempt) == (0, 1)
