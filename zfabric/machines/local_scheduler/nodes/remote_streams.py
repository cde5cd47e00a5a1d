"""Streams made on another node than their home, which serves the readers (decision 0012).

Values are numbered, retained and pinned until acknowledged, behind every hold, and ahead of the stream's end. After a restart of the home's
daemon, as many values as may be ahead of the reader are repeated; after one of the maker's daemon the worker repeats them.
"""

from __future__ import annotations

from collections import defaultdict, deque

from zfabric.machines.local_scheduler.barrier import HOMES
from zfabric.machines.local_scheduler.channel import batches
from zfabric.machines.local_scheduler.nodes.borrowing import Borrowing
from zfabric.machines.local_scheduler.nodes.executions import Executions
from zfabric.machines.local_scheduler.nodes.receipts import Receipts
from zfabric.machines.local_scheduler.objects.call_results import CallResults
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import NodeRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.ids import WORKER, Address


class _LastRows:
    """The last rows sent of a stream, with the refs inside pinned."""

    def __init__(self, home: bytes, ahead: int) -> None:
        self.home = home
        self.rows: deque[m.Row] = deque(maxlen=ahead + 1)
        """As many values as may be ahead of the reader, and the row that counts them."""
        self.has_ended = False
        """Whether its end is reported and not acknowledged."""


class RemoteStreams:
    """Sends values to streams' homes, and accepts those for this home."""

    def __init__(
        self,
        tables: Tables,
        references: References,
        outcomes: Outcomes,
        streams: Streams,
        call_results: CallResults,
        borrowing: Borrowing,
        executions: Executions,
        receipts: Receipts,
    ) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.streams = streams
        self.call_results = call_results
        self.borrowing = borrowing
        self.executions = executions
        self.receipts = receipts
        self.last: dict[bytes, _LastRows] = {}
        """Last rows of each stream made here, until its end is acknowledged."""

    # -- where they are made --

    def end_of_turn(self) -> None:
        """Send values. The homes of the refs inside must be known."""
        if self.tables.barrier.awaits(HOMES):
            return
        by_home: defaultdict[bytes, list[m.Row]] = defaultdict(list)
        for home, row in self.streams.relayed.take():
            by_home[home].append(row)
        for home, rows in by_home.items():
            node = self.tables.nodes.get(home)
            for batch in batches(rows):
                self._send(node, batch)
        if self.last:
            self._forget_ended()

    def _forget_ended(self) -> None:
        """Drop streams whose home is gone, or that ended with their process."""
        tables = self.tables
        for identifier in (*(each[0].id for each in self.outcomes.delegated_ends), *(row[0] for _, row, _ in self.call_results.relayed)):
            if identifier in self.last:
                self.last[identifier].has_ended = True
        for identifier, last in list(self.last.items()):
            is_running = identifier in tables.tasks or identifier in self.streams.relayed_calls
            is_awaited = last.home in tables.nodes and tables.job_home(identifier) is not None
            if not (is_awaited and (is_running or last.has_ended)):
                self._forget(identifier)

    def on_ends_received(self, now: float, source: Address, message: m.EndsReceived) -> None:
        """Drop the streams whose ends are acknowledged."""
        received = self.executions.on_ends_received(now, source, message)
        for report in received if self.last else ():
            if isinstance(report, m.Ended | m.CallsEnded):
                rows = m.Completed(*report.completed).rows if isinstance(report, m.Ended) else report.rows
                for row in rows:
                    self._forget(row[0])

    def _forget(self, identifier: bytes) -> None:
        last = self.last.pop(identifier, None)
        for row in last.rows if last is not None else ():
            self.references.unpin(row[4])

    def _send(self, node: NodeRecord | None, rows: m.Rows) -> None:
        named = [each for row in rows for each in row[4]]
        if node is None:
            self.references.unpin(named)
            return
        self.executions.report(node, m.RelayedYields(node.ends.next, rows, self.tables.homes_of(named)), named)
        for row in rows:
            self._retain(node.token, row)

    def _retain(self, home: bytes, row: m.Row) -> None:
        last = self.last.get(row[0])
        if last is None:
            task, call = self.tables.tasks.get(row[0]), self.streams.relayed_calls.get(row[0])
            if task is None and call is None:
                return
            ahead = call.ahead if call is not None else task.option("stream")  # type: ignore[union-attr]
            last = self.last[row[0]] = _LastRows(home, ahead or self.tables.config.stream_buffered)
        if len(last.rows) == last.rows.maxlen:
            self.references.unpin(last.rows[0][4])
        self.references.pin(row[4])
        last.rows.append(row)
        last.has_ended = False

    def repeat(self, home: NodeRecord) -> None:
        """Repeat each stream's last values to a home's new daemon, before everything unacknowledged."""
        rows = tuple(row for last in self.last.values() if last.home == home.token for row in last.rows)
        if rows and home.ends.free:  # If no number is free, nothing was acknowledged, and nothing is missing.
            named = tuple(each for row in rows for each in row[4])
            self.references.pin(named)
            home.ends.retain_first(m.RelayedYields(home.ends.free, rows, self.tables.homes_of(named)), named)

    def on_allow_yields(self, now: float, source: Address, message: m.AllowYields) -> None:
        """Pass on how far a stream may go, or do so after its first value."""
        task, call = self.tables.tasks.get(message.task_id), self.streams.relayed_calls.get(message.task_id)
        maker = task if call is None else self.tables.guests.get(call.actor) or self.tables.actors.get(call.actor)
        worker = maker.worker if maker is not None else None
        if worker is not None and worker.process is not None and self._home_of(message.task_id) == source[1:]:
            self.tables.send(WORKER + worker.process.incarnation, message)

    def _home_of(self, identifier: bytes) -> bytes:
        task, call = self.tables.tasks.get(identifier), self.streams.relayed_calls.get(identifier)
        return call.home if call is not None else task.submitter if task is not None and task.function.delegated else b""

    # -- at home --

    def on_relayed_yields(self, now: float, source: Address, message: m.RelayedYields) -> None:
        """Accept values of this home's streams."""
        node = self.tables.nodes.get(source[1:])
        if node is None:
            self.tables.count("refused")
            return
        named = [each for row in message.rows for each in row[4]]
        self.borrowing.refer(named, message.homes, node.token)
        self.streams.take(node, message.rows)
        self.borrowing.settle(named)
        self.receipts.accepted(node, message.number, now)
