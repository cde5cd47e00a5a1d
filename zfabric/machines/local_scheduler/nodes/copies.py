"""Copies of other nodes' values, which this node's transfer agent makes.

An agent that is new, after the death of the one before, is asked again for every copy that is missing. Copies under way do not outlive this
scheduler: whoever needs one asks its next incarnation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from zfabric.machines.local_scheduler.records import ProcessRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.transitions import AgentReady
from zfabric.protocol import messages as m
from zfabric.protocol.effects import StartAgent
from zfabric.protocol.ids import Address

Ended = Callable[[float, bytes, str, str], None]
"""Called with (now, object id, kind, text): of a failure as in ``PullFailed``, empty if the copy is in the object store."""


class _Copy(NamedTuple):
    """One copy that is under way."""

    size: int
    sources: m.Ids
    ended: Ended


class Copies:
    """The copies that are under way, over the shared tables."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._wanted: dict[bytes, _Copy] = {}
        self._agent: ProcessRecord | None = None
        self._requested = False
        """Whether an agent has been started: it is restarted by itself."""
        self._nodes = m.NodeTable(0, ())

    def __len__(self) -> int:
        return len(self._wanted)

    def pull(self, object_id: bytes, size: int, sources: m.Ids, ended: Ended) -> None:
        """Copy a value from one of these nodes, in order of preference. If that is under way, only its sources are replaced."""
        known = self._wanted.get(object_id)
        self._wanted[object_id] = _Copy(size, sources, ended) if known is None else known._replace(sources=sources)
        self._tell(m.Pull(object_id, size, sources))

    def set_sources(self, object_id: bytes, sources: m.Ids) -> None:
        """Replace the nodes that a copy which is under way may be made from."""
        known = self._wanted.get(object_id)
        if known is not None:
            self._wanted[object_id] = known._replace(sources=sources)
            self._tell(m.PullSources(object_id, sources))

    def stop(self, object_id: bytes) -> None:
        """Make a copy no longer; nobody is told of its end."""
        if self._wanted.pop(object_id, None) is not None:
            self._tell(m.StopPull(object_id))

    def _tell(self, message: m.Message) -> None:
        if self._agent is not None and self._agent.incarnation in self.tables.processes:
            self.tables.send_to_client(self._agent, message)

    def nodes_changed(self, table: m.NodeTable) -> None:
        """Pass on which nodes there are: their agents' addresses and keys."""
        self._nodes = table
        if len(table.rows) > 1 and not self._requested:
            self._requested = True
            self.tables.effects.append(StartAgent())
        self._tell(table)

    def on_agent_ready(self, transition: AgentReady) -> None:
        """An agent has registered: it knows no node and has no copy to make."""
        self._agent = transition.process
        self._tell(self._nodes)
        for object_id, copy in self._wanted.items():
            self._tell(m.Pull(object_id, copy.size, copy.sources))

    def on_pulled(self, now: float, source: Address, message: m.Pulled) -> None:
        """A copy is whole. If nobody needs it by now, its room is freed at once."""
        if source[1:] not in self.tables.processes:
            self.tables.counts["refused"] += 1
            return
        self.tables.sealed.append((message.object_id, message.offset, message.size, source[1:], True))
        copy = self._wanted.pop(message.object_id, None)
        if copy is not None:
            self.tables.counts["copied"] += 1
            copy.ended(now, message.object_id, "", "")
        elif self.tables.find(message.object_id) is None:
            self.tables.freed.append(message.object_id)

    def on_pull_failed(self, now: float, source: Address, message: m.PullFailed) -> None:
        """A copy cannot be made."""
        copy = self._wanted.pop(message.object_id, None)
        if copy is not None:
            copy.ended(now, message.object_id, message.kind, message.text)
