"""Streams that are made on another node than their home: values go there as they are yielded, and permission to go on comes from there.

The home of a stream serves its readers wherever the values are made, and takes them in as it does those of its own workers: in order, each
once, over all attempts. What readers request is passed on to the node that makes the stream. Between the nodes values travel as the ends of
attempts do (``Ended``): numbered, retained and pinned until the home has taken them in, behind every hold of this node. So the end of a
stream comes after its values.

A home whose daemon is new has lost values that nobody had fetched. They are among the last that were yielded, as many as may be ahead of
the reader, and are repeated. A daemon that is new where a stream is made receives these from the worker, as on one node.
"""

from __future__ import annotations

from collections import defaultdict, deque

from zfabric.config import ROWS_MAX
from zfabric.machines.local_scheduler.nodes.borrowing import Borrowing
from zfabric.machines.local_scheduler.nodes.delegations import ACKNOWLEDGE_WITHIN
from zfabric.machines.local_scheduler.nodes.executions import Executions
from zfabric.machines.local_scheduler.objects.streams import Streams
from zfabric.machines.local_scheduler.records import NodeRecord
from zfabric.machines.local_scheduler.references import References
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.tasks.outcomes import Outcomes
from zfabric.protocol import messages as m
from zfabric.protocol.ids import WORKER, Address


class RemoteStreams:
    """Sends values of streams to their homes, and takes in those that other nodes yield for this one."""

    def __init__(
        self,
        tables: Tables,
        references: References,
        outcomes: Outcomes,
        streams: Streams,
        borrowing: Borrowing,
        executions: Executions,
    ) -> None:
        self.tables = tables
        self.references = references
        self.outcomes = outcomes
        self.streams = streams
        self.borrowing = borrowing
        self.executions = executions
        self._last: dict[bytes, deque[m.Row]] = {}
        """The last rows of each stream that is made here for another node, as they were sent. The refs inside are pinned."""

    # -- where they are made --

    def end_of_turn(self) -> None:
        """Send the values that were yielded in this turn. A restarted scheduler must know the homes of the refs inside."""
        if self.references.paused:
            return
        yielded, self.tables.relayed_yields = self.tables.relayed_yields, []
        by_home: defaultdict[bytes, list[m.Row]] = defaultdict(list)
        for home, row in yielded:
            by_home[home].append(row)
        for home, rows in by_home.items():
            node = self.tables.nodes.get(home)
            for start in range(0, len(rows), ROWS_MAX):
                self._send(node, rows[start : start + ROWS_MAX])
        if self._last:
            for task, *_ in self.tables.delegated_ends:
                self._forget(task.id)
            for call_id in [each for each in self._last if each not in self.tables.tasks and each not in self.tables.relayed_streams]:
                self._forget(call_id)

    def _send(self, node: NodeRecord | None, rows: list[m.Row]) -> None:
        named = [each for row in rows for each in row[4]]
        if node is None:
            self.references.unpin(named)
            return
        self.executions.report(node, m.RelayedYields(node.next_end, tuple(rows), self.tables.homes_of(named)), named)
        for row in rows:
            self._retain(row)

    def _retain(self, row: m.Row) -> None:
        last = self._last.get(row[0])
        if last is None:
            task, call = self.tables.tasks.get(row[0]), self.tables.relayed_streams.get(row[0])
            if task is None and call is None:
                return
            ahead = call.ahead if call is not None else task.option("stream")  # type: ignore[union-attr]
            last = self._last[row[0]] = deque(maxlen=ahead or self.tables.config.stream_buffered)
        if len(last) == last.maxlen:
            self.references.unpin(last[0][4])
        self.references.pin(row[4])
        last.append(row)

    def _forget(self, task_id: bytes) -> None:
        for row in self._last.pop(task_id, ()):
            self.references.unpin(row[4])

    def repeat(self, home: NodeRecord) -> None:
        """Have the last values of each stream repeated to a home whose daemon is new, before all that was not acknowledged."""
        rows = tuple(row for identifier, last in self._last.items() if self._home_of(identifier) == home.token for row in last)
        number = (home.unreceived[0].number if home.unreceived else home.next_end) - 1
        if rows and number:  # It is free again, since it was acknowledged. If none was, nothing is missing.
            home.pinned[number] = named = tuple(each for row in rows for each in row[4])
            self.references.pin(named)
            home.unreceived.appendleft(m.RelayedYields(number, rows, self.tables.homes_of(named)))

    def on_allow_yields(self, now: float, source: Address, message: m.AllowYields) -> None:
        """Pass on how far a stream may go. One that has not begun is allowed more after its first value."""
        task, call = self.tables.tasks.get(message.task_id), self.tables.relayed_streams.get(message.task_id)
        maker = task if call is None else self.tables.guests.get(call.actor) or self.tables.actors.get(call.actor)
        worker = maker.worker if maker is not None else None
        if worker is not None and worker.process is not None and self._home_of(message.task_id) == source[1:]:
            self.tables.send(WORKER + worker.process.incarnation, message)

    def _home_of(self, identifier: bytes) -> bytes:
        """The home of a stream that is made here for another node, by its task or call."""
        task, call = self.tables.tasks.get(identifier), self.tables.relayed_streams.get(identifier)
        return call.home if call is not None else task.submitter if task is not None and task.function.delegated else b""

    # -- at home --

    def on_relayed_yields(self, now: float, source: Address, message: m.RelayedYields) -> None:
        """Another node has yielded values of streams of this one."""
        node = self.tables.nodes.get(source[1:])
        if node is None:
            self.tables.counts["refused"] += 1
            return
        named = [each for row in message.rows for each in row[4]]
        self.borrowing.refer(named, message.homes, node.token)
        self.streams.take(node, message.rows)
        self.borrowing.settle(named)
        self.tables.owe(node, message.number, now + ACKNOWLEDGE_WITHIN)
