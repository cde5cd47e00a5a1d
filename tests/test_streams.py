"""Streams in the machines alone: what the scheduler answers to what it is told, and what a worker says to the next daemon."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_alone import CLIENT, DRIVER, WORKER, Node, ref, row, task_id

from zfabric.machines.worker.yields import Yields
from zfabric.protocol import messages as m
from zfabric.protocol.failures import unpack_failure
from zfabric.protocol.ids import call_value, object_id

STREAM = b"s" * 16


class Streaming(Node):
    """A node with one worker that runs task 0, a stream which may be two values ahead."""

    def __init__(self) -> None:
        super().__init__()
        self.driver()
        self.say(CLIENT + DRIVER, m.Export(((STREAM, "s", b"payload", (("stream", 2),)),)))
        self.submit((task_id(0), STREAM, b"", ()))
        (self.worker,) = self.workers()
        assert self.dispatched() == [(self.worker, 0, 0)]

    def yields(self, *values: tuple[int, Any], attempt: int = 0) -> None:
        self.say(WORKER + self.worker, m.Yielded(tuple((task_id(0), attempt, index, value, ()) for index, value in values)))

    def asks(self, *indexes: int) -> None:
        """The driver holds and fetches values."""
        names = tuple(ref(0, index + 1) for index in indexes)
        self.say(CLIENT + DRIVER, m.Hold(names))
        self.say(CLIENT + DRIVER, m.Fetch(names))

    def drops(self, *indexes: int) -> None:
        self.say(CLIENT + DRIVER, m.Release(tuple(ref(0, index + 1) for index in indexes)))

    def drops_stream(self) -> None:
        self.say(CLIENT + DRIVER, m.Release((ref(0),)))

    def got(self) -> list[tuple[int, Any]]:
        """What the driver was sent: (index, value or kind of failure)."""
        found = []
        for _, message in self.take(m.Objects):
            for identifier, status, value, _ in message.rows:
                index = int.from_bytes(identifier[-4:], "big") - 1
                found.append((index, value if status == m.OK else unpack_failure(value)[0] if status == m.FAILED else (status, value)))
        return found

    def allowed(self) -> list[int]:
        """How far the worker was told to go."""
        return [message.upto for _, message in self.take(m.AllowYields)]

    def objects(self) -> list[int]:
        """Values of the stream that there are records of."""
        return sorted(int.from_bytes(identifier[-4:], "big") - 1 for identifier in self.scheduler.tables.objects)


@pytest.fixture
def node() -> Streaming:
    return Streaming()


def test_values_come_as_they_are_yielded_to_who_asked_before(node: Streaming) -> None:
    node.asks(0, 1)
    assert node.got() == []
    node.yields((0, b"a"))
    assert node.got() == [(0, b"a")]
    node.yields((1, b"b"))
    assert node.got() == [(1, b"b")]
    assert node.allowed() == []  # It may go so far of itself.


def test_asking_is_the_credit(node: Streaming) -> None:
    node.asks(0, 1, 2)
    assert node.allowed() == [3]
    node.asks(3, 4)
    assert node.allowed() == [5]
    node.asks(2)
    assert node.allowed() == []


def test_values_that_nobody_asked_for_wait_with_the_stream(node: Streaming) -> None:
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


def test_the_end_and_what_is_beyond_it(node: Streaming) -> None:
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


def test_an_error_waits_for_its_reader_too(node: Streaming) -> None:
    node.yields((0, b"a"))
    node.complete(node.worker, 0, 0, m.ERROR, b"error")
    node.asks(0, 1, 2)
    assert node.got() == [(0, b"a"), (1, (m.ERROR, b"error")), (2, "StreamEnded")]


def test_a_later_attempt_goes_on_where_the_first_was(node: Streaming) -> None:
    node.asks(0, 1, 2)
    node.yields((0, b"a"), (1, b"b"))
    assert node.got() == [(0, b"a"), (1, b"b")]
    node.drops(0)
    node.allowed()
    pid = node.pids.pop(node.worker)
    node.say(b"X" + b"\x02daemon0", m.ProcessDied(pid, 0, 9, 0, "", task_id(0)))
    node.workers()
    ((worker, _, attempt),) = node.dispatched()
    assert attempt == 1
    node.worker = worker
    node.yields((2, b"too late"))
    assert node.got() == []
    node.yields((0, b"A"), (1, b"B"), attempt=1)
    assert node.allowed() == [3]  # The new worker has not heard it.
    assert (node.got(), node.objects()) == ([], [1, 2])
    node.yields((2, b"C"), attempt=1)
    assert node.got() == [(2, b"C")]


def test_what_was_taken_and_dropped_is_not_given_again(node: Streaming) -> None:
    node.asks(0)
    node.yields((0, b"a"))
    node.drops(0)
    node.got()
    node.asks(0)
    assert node.got() == [(0, "ObjectFreedError")]


def test_a_stream_nobody_wants_does_not_begin() -> None:
    node = Streaming()
    node.submit((task_id(1), STREAM, b"", ()))
    node.say(CLIENT + DRIVER, m.Release((ref(1),)))
    assert task_id(1) not in node.scheduler.tables.tasks
    assert list(node.scheduler.tables.streams) == [task_id(0)]


def test_who_stops_waiting_leaves_nothing(node: Streaming) -> None:
    node.asks(0, 1)
    node.drops(0, 1)
    assert node.objects() == []
    node.yields((0, b"a"))
    assert node.objects() == [0]
    node.drops_stream()
    assert node.objects() == []


def test_a_row_that_names_a_stream_keeps_it(node: Streaming) -> None:
    node.asks(0, 1)
    node.submit(row(1, contains=(ref(0), ref(0, 1), ref(0, 2))))
    node.drops_stream()
    node.drops(0, 1)
    assert node.allowed() == []
    assert node.objects() == [0, 1]


def test_values_of_nobody_are_refused(node: Streaming) -> None:
    refused = node.scheduler.tables.counts["refused"]
    node.say(WORKER + b"\x01nobody0", m.Yielded(((task_id(0), 0, 0, b"a", ()),)))
    assert node.scheduler.tables.counts["refused"] == refused + 1
    assert node.objects() == []


def test_a_method_streams_to_who_expects_it() -> None:
    node = Node()
    node.driver()
    node.say(CLIENT + DRIVER, m.Export(((STREAM, "s", b"payload", (("actor", b"blueprint"),)),)))
    node.submit((task_id(0), STREAM, b"", ()))
    node.workers()
    ((actor, _, _),) = node.dispatched()
    node.complete(actor, 0)
    call = task_id(5)
    end, names = call_value(call, 0), tuple(object_id(call, index + 1) for index in range(3))
    node.say(CLIENT + DRIVER, m.ExpectResults(((end, task_id(0), 2),)))
    node.say(CLIENT + DRIVER, m.Hold((end, *names)))
    node.say(CLIENT + DRIVER, m.Fetch(names))
    assert node.take(m.AllowYields) == [(WORKER + actor, m.AllowYields(call, 3))]  # The end has a number too, and is no value.
    node.say(WORKER + actor, m.Yielded(((call, 0, 0, b"a", ()), (call, 0, 1, None, ()))))
    node.say(WORKER + actor, m.CallOutcomes(((call, DRIVER, m.OK, (b"1",), ()),)))
    told = [row[1:3] for _, message in node.take(m.Objects) for row in message.rows]
    assert told[0] == (m.OK, b"a")
    assert [unpack_failure(value)[0] for _, value in told[1:]] == ["StreamEnded", "StreamEnded"]
    node.say(CLIENT + DRIVER, m.OfferResults(((end, m.OK, b"1", ()),)))
    node.say(CLIENT + DRIVER, m.Release((end, *names)))
    assert not node.scheduler.tables.streams
    assert not node.scheduler.tables.objects


def test_a_worker_goes_as_far_as_it_may() -> None:
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


def test_who_waits_for_room_may_leave_at_any_moment() -> None:
    yields = Yields()
    yields.begin(b"task", 2)

    class Leaves(dict[bytes, Any]):
        """Whoever is looked for leaves as soon as that has been answered: an event loop holds no lock."""

        def __contains__(self, key: object) -> bool:
            return super().pop(key, None) is not None

    yields.waiting = Leaves({b"task": lambda: None})
    yields.allow(b"task", 5)
    assert yields.may_go_on(b"task", 4)


def test_what_a_worker_says_to_the_next_daemon() -> None:
    yields = Yields()
    yields.begin(b"task", 3)
    rows = [(b"task", 0, index, b"value" if index % 2 else (index, 10), (b"ref",)) for index in range(6)]
    for each in rows:
        yields.say(each)
    yields.take()
    completed = m.Completed.of(())
    said = yields.again([m.Yielded((rows[4],)), completed])
    # The last three: a place that was heard of is the arena's; one that may not have been is said as it was.
    assert said == [m.Yielded((rows[3], rows[4], rows[5])), completed]
    assert yields.again([])[0] == m.Yielded((rows[3], (b"task", 0, 4, True, ()), rows[5]))
    yields.end(b"task")
    assert yields.again([completed]) == [completed]
