"""Task rows in blocks: every retained row is found, no dropped one is written, and the table shrinks with the living rows."""

from __future__ import annotations

import bisect

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from zfabric.machines.common.lineage_blocks import BLOCK_ROWS, BlockWriter, read_block, read_rows, run_of
from zfabric.protocol.ids import pack_counter

PARENT = b"job1parent-a"
OTHER = b"job1parent-b"


def task(counter, parent=PARENT):
    return parent + pack_counter(counter)


def row(counter, parent=PARENT, arguments=b"arguments"):
    return (task(counter, parent), b"f" * 16, arguments, ())


class Table(dict):
    def apply(self, flushed):
        puts, deletes = flushed
        assert not {key for _, key, _ in puts} & {key for _, key in deletes}
        for table, key, value in puts:
            assert table == "task"
            self[key] = value
        for table, key in deletes:
            assert table == "task"
            del self[key]

    def floor(self, table, prefix, key):
        assert table == "task"
        keys = sorted(self)
        index = bisect.bisect_right(keys, key) - 1
        return (keys[index], self[keys[index]]) if index >= 0 and keys[index].startswith(prefix) else None

    def rows(self, *task_ids):
        return dict(read_rows(task_ids, self.floor))


def test_children_of_one_run_share_a_block():
    writer, table = BlockWriter(), Table()
    for counter in range(10, 2 * BLOCK_ROWS + 10):
        writer.add(row(counter))
    table.apply(writer.flush())
    assert [len(read_block(value)) for _, value in sorted(table.items())] == [BLOCK_ROWS - 10, BLOCK_ROWS, 10]
    assert min(table) == task(10)
    assert table.rows(task(10), task(BLOCK_ROWS), task(2 * BLOCK_ROWS + 9), task(9), task(2 * BLOCK_ROWS + 10), task(11, OTHER)) == {
        task(counter): row(counter) for counter in (10, BLOCK_ROWS, 2 * BLOCK_ROWS + 9)
    }


def test_rows_dropped_before_their_block_is_written_are_never_written():
    writer = BlockWriter()
    blocks = [writer.add(row(counter)) for counter in range(100)]
    for counter in range(99):
        writer.drop(task(counter), blocks[counter])
    puts, deletes = writer.flush()
    assert [(key, read_block(value)) for _, key, value in puts] == [(task(99), (row(99),))]
    assert deletes == []
    writer.drop(task(99), writer.add(row(99)))
    assert not writer.pending
    assert writer.flush() == ([], [])
    assert writer.statistics()["lineage_unwritten"] == 0


def test_a_block_is_written_again_under_a_quarter_and_deleted_when_empty():
    writer, table = BlockWriter(), Table()
    block = writer.add(row(0))
    for counter in range(1, 100):
        writer.add(row(counter))
    table.apply(writer.flush())
    for counter in range(75):
        writer.drop(task(counter), block)
    assert not writer.pending
    writer.drop(task(75), block)
    assert writer.pending
    table.apply(writer.flush())
    assert len(read_block(table[task(0)])) == 24
    assert table.rows(task(80)) == {task(80): row(80)}
    for counter in range(76, 100):
        writer.drop(task(counter), block)
        writer.drop(task(counter), block)
    table.apply(writer.flush())
    assert table == {}
    assert writer.statistics() == {"lineage_blocks": 0, "lineage_rows": 0, "lineage_unwritten": 0}


def test_blocks_of_one_run_may_interleave():
    writer, table = BlockWriter(), Table()
    for counters in ((1, 9), (4, 7), (5,), (0, 1023)):
        for counter in counters:
            writer.add(row(counter))
        table.apply(writer.flush())
    assert set(table.rows(*(task(counter) for counter in range(1100)))) == {task(counter) for counter in (0, 1, 4, 5, 7, 9, 1023)}


def test_a_repeated_row_displaces_no_other_row():
    writer, table = BlockWriter(), Table()
    first = writer.add(row(5))
    writer.add(row(6))
    table.apply(writer.flush())
    writer.drop(task(5), first)
    second = writer.add(row(5, arguments=b"again"))
    table.apply(writer.flush())
    assert table.rows(task(5), task(6)) == {task(5): row(5, arguments=b"again"), task(6): row(6)}
    writer.drop(task(5), second)
    table.apply(writer.flush())
    assert table.rows(task(6)) == {task(6): row(6)}


def test_a_key_freed_and_taken_in_one_flush_is_put():
    writer, table = BlockWriter(), Table()
    block = writer.add(row(5))
    table.apply(writer.flush())
    writer.drop(task(5), block)
    writer.add(row(5, arguments=b"again"))
    table.apply(writer.flush())
    assert table.rows(task(5)) == {task(5): row(5, arguments=b"again")}


def test_a_miss_does_not_walk_through_other_runs():
    writer, table = BlockWriter(), Table()
    for counter in range(0, 20 * BLOCK_ROWS, BLOCK_ROWS):
        writer.add(row(counter))
    table.apply(writer.flush())
    looked = []

    def floor(*arguments):
        looked.append(arguments)
        return table.floor(*arguments)

    assert list(read_rows((task(19 * BLOCK_ROWS + 1),), floor)) == []
    assert len(looked) == 2


def test_flush_is_bounded():
    writer, table = BlockWriter(), Table()
    for counter in range(5 * BLOCK_ROWS):
        writer.add(row(counter))
    flushes = 0
    while writer.pending:
        flushed = writer.flush(rows_max=2 * BLOCK_ROWS)
        assert len(flushed[0]) <= 2
        table.apply(flushed)
        flushes += 1
    assert flushes == 3
    assert len(table) == 5


def test_adopted_blocks_go_on():
    writer, table = BlockWriter(), Table()
    for counter in range(8):
        writer.add(row(counter))
    table.apply(writer.flush())
    successor = BlockWriter()
    block = successor.adopt(*next(iter(table.items())))
    assert sorted(block.rows) == [task(counter) for counter in range(8)]
    late = successor.add(row(0))
    table.apply(successor.flush())
    for counter in range(8):
        successor.drop(task(counter), block)
    table.apply(successor.flush())
    assert table.rows(task(0), task(1)) == {task(0): row(0)}
    successor.drop(task(0), late)
    table.apply(successor.flush())
    assert table == {}


@given(st.binary(min_size=16, max_size=16))
def test_a_run_contains_its_own_task(task_id):
    low, high = run_of(task_id)
    assert low <= task_id <= high
    assert run_of(low) == run_of(high) == (low, high)


def test_a_withdrawn_row_is_deleted_by_the_next_flush_whatever_else_is_in_its_block():
    writer, table = BlockWriter(), Table()
    block = writer.add(row(0))
    for counter in range(1, 100):
        writer.add(row(counter))
    writer.withdraw(task(50), block)
    table.apply(writer.flush())
    writer.withdraw(task(7), block)
    writer.withdraw(task(7), block)
    table.apply(writer.flush())
    assert table.rows(task(7), task(50)) == {}
    assert len(read_block(table[task(0)])) == 98


def test_a_withdrawn_row_that_was_dropped_before_does_not_come_back():
    writer, table = BlockWriter(), Table()
    first = writer.add(row(0))
    writer.add(row(1))
    table.apply(writer.flush())
    writer.drop(task(0), first)
    writer.withdraw(task(0), writer.add(row(0)))
    table.apply(writer.flush())
    assert table.rows(task(0), task(1)) == {task(1): row(1)}


class Writing(RuleBasedStateMachine):
    """A writer and the table it feeds, against a plain dict of what is alive."""

    counters = st.one_of(st.integers(0, 40), st.sampled_from([1022, 1023, 1024, 2**32 - 1]))

    def __init__(self):
        super().__init__()
        self.writer, self.table, self.alive = BlockWriter(), Table(), {}
        self.withdrawn = set()

    @rule(counters=st.lists(counters, max_size=20), parent=st.sampled_from([PARENT, OTHER]))
    def add(self, counters, parent):
        for counter in counters:
            task_id = task(counter, parent)
            if task_id not in self.alive:
                self.withdrawn.discard(task_id)
                self.alive[task_id] = self.writer.add(row(counter, parent))

    @rule(data=st.data())
    def drop(self, data):
        for task_id in data.draw(st.sets(st.sampled_from(sorted(self.alive)))) if self.alive else ():
            self.writer.drop(task_id, self.alive.pop(task_id))

    @rule(data=st.data())
    def withdraw(self, data):
        if self.alive:
            task_id = data.draw(st.sampled_from(sorted(self.alive)))
            self.writer.withdraw(task_id, self.alive.pop(task_id))
            self.withdrawn.add(task_id)

    @rule()
    def flush(self):
        self.table.apply(self.writer.flush())

    @rule()
    def restart(self):
        self.table.apply(self.writer.flush())
        self.writer = BlockWriter()
        found = {}
        for key, value in self.table.items():
            block = self.writer.adopt(key, value)
            for task_id in list(block.rows):
                if task_id in self.alive and task_id in self.table.rows(task_id) and task_id not in found:
                    found[task_id] = block
                else:
                    self.writer.drop(task_id, block)
        assert found.keys() == self.alive.keys()
        self.alive = found

    @invariant()
    def all_alive_are_found_once_written(self):
        assert self.writer.statistics()["lineage_rows"] + self.writer.statistics()["lineage_unwritten"] == len(self.alive)
        if not self.writer.pending:
            assert set(self.table.rows(*self.alive)) == set(self.alive)
            assert not self.table.rows(*self.withdrawn)
            assert sum(len(read_block(value)) for value in self.table.values()) <= 4 * len(self.alive)


TestWriting = Writing.TestCase
TestWriting.settings = settings(max_examples=50, stateful_step_count=25)
