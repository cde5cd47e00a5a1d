"""The order of ready tasks: what reads values goes before what only makes some, so that more data than memory passes through a node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from nodes_alone import HOME_A, Nodes
from scheduler_alone import DRIVER, OWN, Node, ref, row, task_id

import zfabric as zf
from zfabric.machines.local_scheduler.object_places import Elsewhere
from zfabric.machines.local_scheduler.records import PASSED_SECONDS
from zfabric.machines.local_scheduler.tasks.backpressure import HOLD_SECONDS
from zfabric.protocol import messages as m
from zfabric.protocol.ids import CLIENT, WORKER, first_attempt
from zfabric.protocol.options import RESOURCE_UNIT
from zfabric.runtime import interface

MB = 10**6
LARGE = 50 * MB
LICENCE = (("CPU", RESOURCE_UNIT), ("licence", RESOURCE_UNIT))
OTHER = b"g" * 16
"""Another function: one whose tasks read what those of ``FUNCTION`` make."""


class Pipeline(Node):
    """A scheduler whose tasks take a second each, so that none is handed out in advance, and may return large values."""

    def __init__(self, cpus: int = 1, **named: Any) -> None:
        super().__init__(cpus, **named)
        self.driver()
        self.send(CLIENT + DRIVER, m.Export(((OTHER, "g", b"payload", ()),)))
        self.offset = 0
        self.all = self.workers()

    def given(self) -> dict[bytes, list[int]]:
        """Numbers of the tasks that each worker has, if it has any."""
        workers = self.scheduler.tables.workers.values()
        return {each.token: [int.from_bytes(task[-4:], "big") for task in each.inflight] for each in workers if each.inflight}

    @property
    def running(self) -> list[int]:
        """Numbers of the tasks that workers have."""
        return sorted(number for numbers in self.given().values() for number in numbers)

    def end(self, number: int, size: int = 0, seconds: float = 1.0, count: int = 1) -> None:
        """Its worker ends a task: with ``count`` values of ``size`` bytes, or a small one."""
        (worker,) = (worker for worker, numbers in self.given().items() if number in numbers)
        values: list[Any] = [b"small"] * count
        if size:
            values = [(self.offset + index * size, size) for index in range(count)]
            self.offset += count * size
        task = self.scheduler.tables.tasks[task_id(number)]
        completed = m.Completed.of(((task.id, task.attempt, m.OK, tuple(values)),), (), ((task.row[1], 1, seconds),))
        self.send(WORKER + worker, completed)

    def drop(self, *numbers: int) -> None:
        """The driver drops its refs to these tasks' values."""
        self.send(CLIENT + DRIVER, m.Release(tuple(map(ref, numbers))))

    def store_room(self, free: int) -> None:
        """The store reports its free room."""
        self.send(b"O" + OWN, m.StoreRoom(free))


def reader(number: int, *needs: bytes, **options: Any) -> tuple[Any, ...]:
    """A task of the other function."""
    plain = (task_id(number), OTHER, b"arguments", needs)
    return (*plain, tuple(options.items())) if options else plain


def test_a_task_whose_input_was_made_goes_before_those_without_inputs() -> None:
    node = Pipeline()
    node.submit(*(row(number) for number in range(4)), *(reader(number + 10, ref(number)) for number in range(4)))
    order = []
    while node.running:
        order += node.running
        (number,) = node.running
        node.end(number, LARGE if number < 10 else 0)
    assert order == [0, 10, 1, 11, 2, 12, 3, 13]


def test_small_inputs_count_as_well_once_they_are_made() -> None:
    node = Pipeline()
    node.submit(*(row(number) for number in range(3)), row(10, ref(0)), row(11, ref(0)), row(20, ref(10), ref(11)))
    order = []
    while node.running:
        order += node.running
        node.end(node.running[0])
    assert order == [0, 10, 11, 20, 1, 2]


def test_the_newest_inputs_come_first_and_readers_of_one_value_in_order() -> None:
    node = Pipeline(cpus=2)
    node.submit(row(0), row(1), row(2), reader(10, ref(0)), reader(11, ref(0)), reader(12, ref(1)), reader(13, ref(1)))
    assert node.running == [0, 1]
    node.end(0, LARGE)
    assert node.running == [1, 10]
    node.end(1, LARGE)
    assert node.running == [10, 12]
    node.end(12)
    assert node.running == [10, 13]
    node.end(13)
    assert node.running == [10, 11]


def test_readers_of_values_that_were_there_before_stay_in_order_before_what_only_makes() -> None:
    node = Pipeline()
    node.submit(row(0))
    node.end(0, LARGE)
    node.submit(row(1), row(2))
    node.submit(reader(10, ref(0)), reader(11, ref(0)), reader(12, ref(1)))
    order = []
    while node.running:
        order += node.running
        node.end(node.running[0], LARGE)
    assert order == [1, 12, 10, 11, 2]


def test_tasks_with_small_inputs_that_were_there_before_stay_behind_the_others() -> None:
    node = Pipeline()
    node.submit(row(0))
    node.end(0)
    node.submit(row(1), row(2), reader(10, ref(0)))
    order = []
    while node.running:
        order += node.running
        node.end(node.running[0])
    assert order == [1, 2, 10]


def test_a_tree_is_reduced_as_its_leaves_are_made() -> None:
    node = Pipeline()
    leaves = [*range(8)]
    node.submit(*(row(number) for number in leaves))
    levels, rows, number = [leaves], [], 10
    while len(levels[-1]) > 1:
        level = []
        for left, right in zip(levels[-1][::2], levels[-1][1::2], strict=True):
            rows.append(reader(number, ref(left), ref(right)))
            level.append(number)
            number += 1
        levels.append(level)
    node.submit(*rows)
    node.drop(*range(number - 1))
    live, most, order = 0, 0, []
    while node.running:
        (task,) = node.running
        order.append(task)
        live += 1 if task < 10 else -1  # A sum takes the place of two values.
        most = max(most, live)
        node.end(task, LARGE)
    assert most == 4  # One of each level, and a leaf: not all eight.
    assert order[:7] == [0, 1, 10, 2, 3, 11, 14]


def test_a_shuffle_is_read_before_the_next_one_is_made() -> None:
    node = Pipeline()
    for shuffle in range(3):
        maps = [shuffle * 10 + index for index in range(2)]
        node.submit(*(row(number, num_returns=2) for number in maps))
        node.submit(*(reader(shuffle * 10 + 5 + part, *(ref(number, part) for number in maps)) for part in range(2)))
    order = []
    while node.running:
        (task,) = node.running
        order.append(task)
        node.end(task, LARGE, count=2 if task % 10 < 5 else 1)
    assert order == [0, 1, 5, 6, 10, 11, 15, 16, 20, 21, 25, 26]


def test_a_chain_without_end_does_not_keep_others_from_running() -> None:
    node = Pipeline()
    node.submit(row(0), *(row(number, ref(number - 1)) for number in range(1, 99)), row(200))
    begun = None
    for number in range(99):
        if 200 in node.running:
            begun = begun or number
            node.end(200)
            continue
        node.now += PASSED_SECONDS / 4
        node.end(node.running[0], LARGE)
    assert begun is not None
    assert begun <= 8


def test_what_returns_large_values_is_not_handed_out_in_advance() -> None:
    """A worker would run it before the task that reads what it has just made."""
    node = Pipeline()
    node.submit(*(row(number) for number in range(4)))
    node.end(0, seconds=0.0001)
    assert node.running == [1, 2, 3]
    node = Pipeline()
    node.submit(*(row(number) for number in range(4)))
    node.end(0, LARGE, seconds=0.0001)
    assert node.running == [1]


def test_a_function_whose_results_are_small_again_is_handed_out_in_advance_again() -> None:
    node = Pipeline()
    node.submit(*(row(number) for number in range(100)))
    node.end(0, LARGE, seconds=0.0001)
    for number in range(1, 60):
        if len(node.running) > 1:
            break
        node.end(number, seconds=0.0001)
    assert len(node.running) > 1


def holding(**options: Any) -> Pipeline:
    """Two CPUs: task 10 reads a value of 50 MB and runs, task 1 would make another one, and the store has room for 40 MB."""
    node = Pipeline(cpus=2, others=(("licence", RESOURCE_UNIT),))
    node.submit(row(0))
    node.end(0, LARGE)
    node.submit(reader(10, ref(0), demand=LICENCE, **options))
    node.workers()
    assert node.running == [10]
    return node


def test_nothing_that_only_makes_values_begins_while_the_store_is_full_and_one_is_read() -> None:
    node = holding()
    node.drop(0)
    node.store_room(40 * MB)
    node.submit(row(1), row(2))
    assert node.running == [10]
    assert node.scheduler.dispatcher.backpressure.until == node.now + HOLD_SECONDS
    node.end(10)
    node.workers()
    assert node.running == [1, 2]  # There is nothing to be read now.


def test_room_for_what_it_makes_lets_a_task_begin() -> None:
    node = holding()
    node.drop(0)
    node.store_room(60 * MB)
    node.submit(row(1), row(2))
    assert node.running == [1, 10]  # And none for a second one.
    node.end(1, LARGE)
    assert node.running == [2, 10]


@pytest.mark.parametrize("why", ["the value stays", "the reader waits", "results are small"])
def test_a_task_does_not_wait_for_room_that_nothing_makes(why: str) -> None:
    node = holding()
    if why != "the value stays":
        node.drop(0)
    if why == "the reader waits":
        (worker,) = node.given()
        node.send(WORKER + worker, m.Blocked(task_id(10), (ref(1),), (), False))
    node.store_room(40 * MB)
    node.submit(reader(1) if why == "results are small" else row(1))
    node.workers()
    assert 1 in node.running


def test_a_task_waits_for_room_only_so_long() -> None:
    node = holding()
    node.drop(0)
    node.store_room(40 * MB)
    node.submit(row(1), row(2), row(3))
    node.now += HOLD_SECONDS / 2
    node.turn()
    assert node.running == [10]
    node.now += HOLD_SECONDS / 2
    due = node.scheduler.next_deadline()
    assert due is not None
    assert due <= node.now
    node.turn()
    node.workers()
    assert node.running == [1, 10]
    node.end(1, LARGE)
    assert node.running == [10]  # The others wait anew.


def test_inputs_on_this_node_go_before_those_on_another_one() -> None:
    node = Nodes()
    node.submit(row(0))
    (worker,) = node.workers()
    node.hear(HOME_A, m.UpdateLedger(1, ((m.HOLD, (ref(0),)),)))
    tables = node.scheduler.tables
    node.complete(worker, 0, first_attempt(0, 2), m.OK, (4096, MB))
    node.submit(*(row(number) for number in range(1, 5)))
    queue = tables.tasks[task_id(1)].function.queue
    far, near = (tables.tasks[task_id(number)] for number in (3, 4))
    for each in (far, near):
        each.row = (*each.row[:3], (ref(0),))
    record = tables.tasks[task_id(0)]
    here = record.value
    queue.clear()
    near.ready()
    node.scheduler.outcomes.make_ready(near, front=True)
    record.value = Elsewhere(MB, HOME_A)
    node.scheduler.outcomes.make_ready(far, front=True)
    record.value = here
    assert [task.id for task in queue.consumers] == [near.id, far.id]


# -- real processes --------------------------------------------------------------------------------------------------------------

COUNT = 24
VALUE = 4 * MB


@zf.remote
def gate(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)  # A worker cannot wait for an event of the driver.


@zf.remote
def load(number: int, log: str) -> bytes:
    with Path(log).open("a") as file:
        file.write(f"load {number}\n")
    return bytes([number]) * VALUE


@zf.remote
def total(value: bytes, log: str) -> int:
    with Path(log).open("a") as file:
        file.write(f"total {value[0]}\n")
    return value[0] * len(value)


@contextmanager
def closed(path: Path) -> Iterator[str]:
    """The only worker waits while a program submits; the name of a file for its tasks to write to."""
    waiting = gate.remote(str(path / "open"))
    yield str(path / "log")
    (path / "open").touch()
    zf.get(waiting)


@pytest.mark.parametrize("where", ["in a program", "in a task", "one after the other"])
def test_more_data_than_memory_passes_through_the_store(tmp_path: Path, where: str) -> None:
    def submit(log: str) -> list[Any]:
        return [total.remote(load.remote(number, log), log) for number in range(COUNT)]

    @zf.remote
    def inside(log: str) -> list[int]:
        found: list[int] = zf.get(submit(log))
        return found

    zf.init(num_cpus=1, object_store_memory=COUNT * VALUE // 3)
    try:
        with closed(tmp_path) as log:
            if where == "in a task":
                found: Any = inside.remote(log)
            elif where == "in a program":
                found = submit(log)
            else:
                values = [load.remote(number, log) for number in range(COUNT)]
                found = []
                while values:
                    found.append(total.remote(values.pop(0), log))
        assert zf.get(found, timeout=60) == [number * VALUE for number in range(COUNT)]
        client: Any = interface.current()
        store = client.query("status")["store"]
    finally:
        zf.shutdown()
    assert store["spills"] + store["written_on_disk"] == 0
    steps = (tmp_path / "log").read_text().split()[::2]
    ahead = [steps[:end].count("load") - steps[:end].count("total") for end in range(len(steps))]
    assert max(ahead) <= 4  # A few may begin before the scheduler has received what reads them.
