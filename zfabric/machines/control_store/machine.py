"""The control store: one shard of the control table, as a machine over a journal.

**At most two transactions exist.** Rows are *gathered* in one. ``take_effects`` passes it to the shell as a ``Store``, and it is *in
flight* until ``Committed``, while the next gathers. Conditions look at gathered, in flight, committed.

**An answer, also a negative one, waits for the commit of all rows that it was decided on**: nothing is revealed that could be rolled back.
A rollback drops both transactions; all who waited receive False. Reads are answered from committed rows, once rows of their table on the
way are committed. So a ``Write`` without rows is a barrier.

**When.** A transaction is handed over at once if somebody waits, else when ``lineage_delay`` old or large; always urgent, since its waiting
is done.

**Read-only.** After a rollback (usually a full disk) puts receive False at once. Deletes are remembered, though their senders have received
False: nobody repeats them, and they may make room. Every ``store_retry_every`` seconds they are retried with one tiny row; the first
committed put ends this state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgpack

from zfabric.config import Config
from zfabric.machines.common import lineage_blocks
from zfabric.machines.common.tables import KEY_BYTES_MAX, TABLES, Reader
from zfabric.machines.control_store import key_values
from zfabric.machines.control_store.key_values import KeyValues
from zfabric.protocol import messages as m
from zfabric.protocol.effects import Effect, Log, Send, Store
from zfabric.protocol.ids import ACTOR, CLIENT, CONTROL, TOOL, WORKER, Address
from zfabric.protocol.machine import Handler, Handlers, InvariantViolation
from zfabric.protocol.messages import Message, Row

META, EVENT = "meta", "event"
OWN_TABLES = (META, key_values.TABLE)
"""Tables without writes by rows."""
JOBS_KEY, PROBE_KEY = b"jobs", b"probe"
SCAN_ROWS_MAX = 10_000
"""Most rows per answer to a ``Scan``, a few megabytes; the asker continues after the last."""
SCAN_BYTES_MAX = 16 * 2**20
"""Bytes that end such an answer: well under the largest frame."""
GATHERED_BYTES_MAX = 16 * 2**20
"""Bytes past which a transaction waits no longer."""
EVENTS_KEPT = 7 / 8
"""Share of ``events_bytes`` left by a drop of the oldest events, so that drops are rare."""
_PROCESSES = (CLIENT, WORKER, CONTROL, ACTOR, TOOL)

Question = m.Read | m.Scan | m.ReadBlocks | key_values.Question


class _Transaction:
    """Rows on their way to the journal (None: a delete), and who waits."""

    __slots__ = ("deadline", "events_bytes", "reads", "rows", "sequence", "size", "tables", "urgent", "waiters")

    def __init__(self) -> None:
        self.rows: dict[tuple[str, bytes], bytes | None] = {}
        self.tables: set[str] = set()
        self.size = 0
        self.urgent = False
        self.deadline: float | None = None
        self.waiters: list[tuple[Address, int, Message]] = []
        """(who, token, the answer once committed)."""
        self.reads: list[tuple[Address, Question]] = []
        self.sequence = 0
        self.events_bytes = 0
        """The event table's size once this is committed."""

    def write(self, table: str, key: bytes, value: bytes | None) -> None:
        self.rows[table, key] = value
        self.tables.add(table)
        self.size += len(key) + len(value or b"")

    def touches(self, table: str) -> bool:
        return table in self.tables


class ControlStore:
    """One shard. ``reader`` reads committed rows."""

    def __init__(self, address: Address, config: Config, reader: Reader) -> None:
        self.address = address
        self._config = config
        self._reader = reader
        self._gathered = _Transaction()
        self._in_flight: _Transaction | None = None
        self._sequence = 0
        self._committed = 0
        self._read_only = ""
        self._retry_at = 0.0
        self._owed: set[tuple[str, bytes]] = set()
        """Rows to delete once the store can write."""
        self._effects: list[Effect] = []
        self._events_bytes = self._count_events()
        self._keys = KeyValues(config, reader, self._current, self._pending, self._write)
        self._counts = dict.fromkeys(("commits", "rows_put", "rows_deleted", "rows_dropped", "rolled_back", "refused"), 0)
        self.handlers = Handlers(self._counts, self._accepted())

    # -- the contract --------------------------------------------------------------------------------------------------------

    def step(self, now: float, source: Address, message: Message) -> None:
        """Take in one message."""
        self.handlers[type(message)](now, source, message)

    def tick(self, now: float) -> None:
        """Try whether a read-only store can write."""
        if self._read_only and now >= self._retry_at:
            self._retry_at = now + self._config.store_retry_every
            self._write(now, META, PROBE_KEY, msgpack.packb(self._sequence))
            for table, key in sorted(self._owed):
                self._write(now, table, key, None)
            self._owed.clear()
            self._gathered.urgent = True

    def next_deadline(self) -> float | None:
        """When the oldest gathered row is due, or a read-only store tries again."""
        deadlines = []
        if self._in_flight is None and self._gathered.deadline is not None:
            deadlines.append(self._gathered.deadline)
        if self._read_only:
            deadlines.append(self._retry_at)
        return min(deadlines, default=None)

    def take_effects(self, now: float) -> list[Effect]:
        """Answer what can be answered; return the gathered transaction if due and none is in flight."""
        self._answer_reads(now)
        gathered = self._gathered
        if self._in_flight is None:
            if self._keys.ending and not self._read_only:
                self._end_keys(now)
            if not gathered.rows:
                self._answer_waiters(gathered)
            elif (
                gathered.urgent
                or len(gathered.rows) >= self._config.commit_rows
                or gathered.size >= GATHERED_BYTES_MAX
                or (gathered.deadline is not None and now >= gathered.deadline)
            ):
                self._hand_over(gathered)
        effects, self._effects = self._effects, []
        return effects

    def statistics(self) -> Mapping[str, float]:
        """Return counters and sizes."""
        return {
            **self._counts,
            "pending_rows": len(self._gathered.rows),
            "in_flight_rows": len(self._in_flight.rows) if self._in_flight else 0,
            "events_bytes": self._events_bytes,
            "read_only": float(bool(self._read_only)),
            "owed_deletes": len(self._owed),
        }

    def check_invariants(self) -> None:
        """Raise InvariantViolation if two facts disagree."""
        for transaction in (self._gathered, self._in_flight):
            if transaction and transaction.tables != {table for table, _ in transaction.rows}:
                raise InvariantViolation("a transaction's tables are not those of its rows")
        if bool(self._gathered.rows) != (self._gathered.deadline is not None):
            raise InvariantViolation("gathered rows without a deadline, or a deadline without rows")
        if self._sequence - self._committed != (self._in_flight is not None) or (
            self._in_flight and self._in_flight.sequence != self._sequence
        ):
            raise InvariantViolation("the transaction in flight is not the one after the last that ended")
        if self._read_only and any(value is not None and table != META for (table, _), value in self._gathered.rows.items()):
            raise InvariantViolation("a read-only store gathers puts")
        if self._in_flight is None and self._events_bytes != self._count_events():
            raise InvariantViolation("the event table's size is not what was counted")

    # -- writes --------------------------------------------------------------------------------------------------------------

    def on_write(self, now: float, source: Address, message: m.Write) -> None:
        """Gather rows; a wanted answer follows their commit."""
        refusal = self._misfit((table, key) for table, key, *_ in (*message.puts, *message.deletes))
        if refusal:
            self._refuse(source, message.token, refusal)
        elif message.puts and self._read_only:
            self._counts["rows_dropped"] += len(message.puts)
            self._owe(message.deletes)
            if message.token:
                self._send(source, m.Written(message.token, False, self._read_only))
        else:
            for table, key, value in message.puts:
                self._write(now, table, key, value)
            for table, key in message.deletes:
                self._write(now, table, key, None)
            if message.token:
                self._wait(source, message.token, m.Written(message.token, True, ""))

    def on_delete_rows(self, now: float, source: Address, message: m.DeleteRows) -> None:
        """Delete a range; a wanted answer follows the commit."""
        writable = message.table in TABLES and message.table not in OWN_TABLES
        refusal = "" if writable else f"there is no table {message.table!r} to write to"
        if refusal:
            self._refuse(source, message.token, refusal)
            return
        for key in self._keys_between(message.table, message.start, message.end):
            self._write(now, message.table, key, None)
        if message.token:
            self._wait(source, message.token, m.Written(message.token, True, ""))

    def _keys_between(self, table: str, start: bytes, end: bytes) -> list[bytes]:
        """Keys in a range, committed or to be. Large values are read one at a time."""
        found: list[bytes] = []
        row = [(start, b"")] if start and self._reader.get(table, start) is not None else self._reader.scan(table, b"", start, 1)
        while row and row[0][0] < end:
            found.append(row[0][0])
            row = self._reader.scan(table, b"", found[-1], 1)
        known = set(found)
        for transaction in (self._in_flight, self._gathered):
            rows = transaction.rows if transaction is not None else {}
            found += [key for other, key in rows if other == table and start <= key < end and key not in known]
        return found

    def on_create(self, now: float, source: Address, message: m.Create) -> None:
        """Put a row if its key is free. An equal row counts: the request came twice."""
        self._put_if(now, source, message, lambda current: "" if current is None else f"{message.table!r} has this key already")

    def on_swap(self, now: float, source: Address, message: m.Swap) -> None:
        """Put a row if the key has the expected value, or this one."""
        self._put_if(now, source, message, lambda current: "" if current == message.expected else "the row has another value")

    def on_new_job(self, now: float, source: Address, message: m.NewJob) -> None:
        """Allocate the next job number."""
        if self._read_only:
            self._send(source, m.Written(message.token, False, self._read_only))
            return
        counted = self._current(META, JOBS_KEY)
        number = (msgpack.unpackb(counted) if counted else 0) + 1
        self._write(now, META, JOBS_KEY, msgpack.packb(number))
        self._wait(source, message.token, m.JobNumber(message.token, number))

    def on_key_change(self, now: float, source: Address, message: key_values.Change) -> None:
        """Change keys; the answer follows the commit."""
        if self._read_only:
            self._send(source, m.Written(message.token, False, self._read_only))
        else:
            self._wait(source, message.token, self._keys.change(now, message))

    def on_end_keys(self, now: float, source: Address, message: m.EndKeys) -> None:
        """Delete a job's keys, in as many transactions as needed."""
        self._keys.end(message.job, source, message.token)
        if self._read_only:
            self._fail_ends(self._read_only)

    def _end_keys(self, now: float) -> None:
        """Go on to delete ended jobs' keys, once all changes of keys are committed."""
        if not self._gathered.touches(key_values.TABLE):
            for who, token in self._keys.go_on_ending(now):
                self._send(who, m.Written(token, True, ""))
        self._gathered.urgent |= bool(self._gathered.rows)

    def _fail_ends(self, error: str) -> None:
        for who, token in self._keys.take_waiting():
            self._send(who, m.Written(token, False, error))

    def on_committed(self, now: float, source: Address, message: m.Committed) -> None:
        """End the transaction in flight, committed or rolled back."""
        ended = self._in_flight
        if source[:1] in _PROCESSES:
            self._refuse(source, 0, "only the shell says what is committed")
        elif ended is not None and message.sequence >= ended.sequence:
            self._in_flight = None
            self._committed = ended.sequence
            if message.error:
                self._roll_back(now, ended, message.error)
            else:
                self._conclude(now, ended)

    # -- reads ---------------------------------------------------------------------------------------------------------------

    def on_question(self, now: float, source: Address, message: Question) -> None:
        """Queue a read for when no row of its table is in flight."""
        table = _table_of(message)
        refusal = "" if table in TABLES else f"there is no table {table!r}"
        if isinstance(message, m.Scan) and message.limit < 1:
            refusal = "the limit of a scan is at least 1"
        if refusal:
            self._refuse(source, 0, refusal)
        else:
            self._gathered.reads.append((source, message))

    def _answer_reads(self, now: float) -> None:
        waiting = []
        for asker, question in self._gathered.reads:
            table = _table_of(question)
            if self._gathered.touches(table):
                self._gathered.urgent = True
                waiting.append((asker, question))
            elif self._in_flight is not None and self._in_flight.touches(table):
                waiting.append((asker, question))
            else:
                self._answer(now, asker, question)
        self._gathered.reads = waiting

    def _answer(self, now: float, asker: Address, question: Question) -> None:
        if isinstance(question, m.Read):
            found = ((key, self._reader.get(question.table, key)) for key in question.keys)
            rows: tuple[Row, ...] = tuple((key, value) for key, value in found if value is not None)
            self._send(asker, m.Found(question.token, rows, False))
        elif isinstance(question, m.ReadBlocks):
            rows = tuple(lineage_blocks.read_rows(question.task_ids, self._reader.floor))
            self._send(asker, m.Found(question.token, rows, False))
        elif isinstance(question, m.Scan):
            self._send(asker, self._scan(question))
        else:
            self._send(asker, self._keys.answer(question))

    def _scan(self, question: m.Scan) -> m.Found:
        limit = min(question.limit, SCAN_ROWS_MAX)
        rows: list[Row] = []
        size, after = 0, question.after
        while True:
            page = self._reader.scan(question.table, question.prefix, after, min(256, limit - len(rows) + 1))
            for key, value in page:
                if len(rows) == limit or size > SCAN_BYTES_MAX:
                    return m.Found(question.token, tuple(rows), True)
                rows.append((key, value))
                size += len(key) + len(value)
            if not page:
                return m.Found(question.token, tuple(rows), False)
            after = page[-1][0]

    # -- transactions ----------------------------------------------------------------------------------------------------------

    def _write(self, now: float, table: str, key: bytes, value: bytes | None) -> None:
        if self._gathered.deadline is None:
            self._gathered.deadline = now + self._config.lineage_delay
        self._gathered.write(table, key, value)

    def _wait(self, who: Address, token: int, answer: Message) -> None:
        self._gathered.waiters.append((who, token, answer))
        self._gathered.urgent = True

    def _put_if(self, now: float, source: Address, message: m.Create | m.Swap, condition: Callable[[bytes | None], str]) -> None:
        refusal = self._misfit([(message.table, message.key)])
        if refusal or self._read_only:
            if refusal:
                self._counts["refused"] += 1
            self._send(source, m.Written(message.token, False, refusal or self._read_only))
            return
        current = self._current(message.table, message.key)
        text = "" if current == message.value else condition(current)
        if not text:
            self._write(now, message.table, message.key, message.value)
        self._wait(source, message.token, m.Written(message.token, not text, text))

    def _current(self, table: str, key: bytes) -> bytes | None:
        for transaction in (self._gathered, self._in_flight):
            if transaction is not None and (table, key) in transaction.rows:
                return transaction.rows[table, key]
        return self._reader.get(table, key)

    def _pending(self, table: str) -> list[bytes]:
        under_way = (each for each in (self._gathered, self._in_flight) if each is not None and each.touches(table))
        return [key for transaction in under_way for other, key in transaction.rows if other == table]

    def _hand_over(self, transaction: _Transaction) -> None:
        self._bound_events(transaction)
        self._sequence += 1
        transaction.sequence = self._sequence
        self._in_flight, self._gathered = transaction, _Transaction()
        puts = tuple((table, key, value) for (table, key), value in transaction.rows.items() if value is not None)
        deletes = tuple(row for row, value in transaction.rows.items() if value is None)
        self._effects.append(Store(puts, deletes, self._sequence, True))

    def _conclude(self, now: float, transaction: _Transaction) -> None:
        self._counts["commits"] += 1
        puts = sum(value is not None for value in transaction.rows.values())
        self._counts["rows_put"] += puts
        self._counts["rows_deleted"] += len(transaction.rows) - puts
        self._events_bytes = transaction.events_bytes
        if puts and self._read_only:
            self._read_only = ""
            self._effects.append(Log("info", "the control store can write again"))
        self._answer_waiters(transaction)
        for asker, question in transaction.reads:
            self._answer(now, asker, question)

    def _roll_back(self, now: float, transaction: _Transaction, error: str) -> None:
        gathered, self._gathered = self._gathered, _Transaction()
        if not self._read_only:
            self._effects.append(Log("error", f"the control store is read-only: {error}"))
        self._read_only = error
        self._retry_at = now + self._config.store_retry_every
        for failed in (transaction, gathered):
            self._counts["rolled_back"] += bool(failed.rows)
            self._counts["rows_dropped"] += sum(value is not None for value in failed.rows.values())
            self._owe(row for row, value in failed.rows.items() if value is None)
            for who, token, _ in failed.waiters:
                self._send(who, m.Written(token, False, error))
            self._gathered.reads += failed.reads
        self._fail_ends(error)

    def _owe(self, deletes: Iterable[tuple[str, bytes]]) -> None:
        """Remember deletes that nobody repeats, except those of keys, which depend on rows that were not written."""
        deletes = (row for row in deletes if row[0] not in OWN_TABLES)
        self._owed.update((table, key) for table, key in deletes if self._reader.get(table, key) is not None)

    def _answer_waiters(self, transaction: _Transaction) -> None:
        for who, _, answer in transaction.waiters:
            self._send(who, answer)
        transaction.waiters = []

    # -- events ----------------------------------------------------------------------------------------------------------------

    def _bound_events(self, transaction: _Transaction) -> None:
        size = self._events_bytes
        if transaction.touches(EVENT):
            for (table, key), value in transaction.rows.items():
                if table == EVENT:
                    size += _size(key, value) - _size(key, self._reader.get(EVENT, key))
            if size > self._config.events_bytes:
                size = self._drop_oldest_events(transaction, size, int(self._config.events_bytes * EVENTS_KEPT))
        transaction.events_bytes = size

    def _drop_oldest_events(self, transaction: _Transaction, size: int, target: int) -> int:
        after = b""
        while size > target and (page := self._reader.scan(EVENT, b"", after, 256)):
            after = page[-1][0]
            for key, value in page:
                if size > target and (EVENT, key) not in transaction.rows:
                    transaction.write(EVENT, key, None)
                    size -= _size(key, value)
        for table, key in sorted(transaction.rows) if size > target else ():
            own = transaction.rows[table, key]
            if table == EVENT and own is not None and size > target:
                transaction.write(EVENT, key, None)
                size -= _size(key, own)
        return size

    def _count_events(self) -> int:
        size, after = 0, b""
        while page := self._reader.scan(EVENT, b"", after, 256):
            size += sum(_size(key, value) for key, value in page)
            after = page[-1][0]
        return size

    # -- refusals --------------------------------------------------------------------------------------------------------------

    @staticmethod
    def _misfit(rows: Iterable[tuple[str, bytes]]) -> str:
        """Why a row cannot be written, or ""."""
        for table, key in rows:
            if table not in TABLES or table in OWN_TABLES:
                return f"there is no table {table!r} to write to"
            if not 0 < len(key) <= KEY_BYTES_MAX:
                return f"a key has 1 to {KEY_BYTES_MAX} bytes, not {len(key)}"
        return ""

    def _refuse(self, source: Address, token: int, text: str) -> None:
        self._counts["refused"] += 1
        self._send(source, m.Written(token, False, text) if token else m.Refused("FabricError", text))

    def _send(self, to: Address, message: Message) -> None:
        self._effects.append(Send(to, message))

    def _accepted(self) -> dict[type[Any], Handler]:
        return {
            m.Write: self.on_write,
            m.DeleteRows: self.on_delete_rows,
            m.Create: self.on_create,
            m.Swap: self.on_swap,
            m.NewJob: self.on_new_job,
            m.PutKey: self.on_key_change,
            m.PutPart: self.on_key_change,
            m.DropUpload: self.on_key_change,
            m.DeleteKeys: self.on_key_change,
            m.EndKeys: self.on_end_keys,
            m.Committed: self.on_committed,
            m.Read: self.on_question,
            m.Scan: self.on_question,
            m.ReadBlocks: self.on_question,
            m.GetKey: self.on_question,
            m.ListKeys: self.on_question,
        }


def _table_of(question: Question) -> str:
    if isinstance(question, m.Read | m.Scan):
        return question.table
    return lineage_blocks.TABLE if isinstance(question, m.ReadBlocks) else key_values.TABLE


def _size(key: bytes, value: bytes | None) -> int:
    return 0 if value is None else len(key) + len(value)
