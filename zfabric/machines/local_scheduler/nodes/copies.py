"""Copies of large values by this node's transfer agent, and the sources that a home offers (decision 0032).

Copies under way outlive the agent, but not this scheduler: whoever needs them asks again. An offer names the sources in the order in which
the reader asks them: the node to which the home made the offer before, the node that retains the value, the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from zfabric.machines.local_scheduler.object_places import Elsewhere, Stored, copies_of
from zfabric.machines.local_scheduler.records import AnyObject, ProcessRecord
from zfabric.machines.local_scheduler.tables import Tables
from zfabric.machines.local_scheduler.transitions import AgentReady
from zfabric.protocol import messages as m
from zfabric.protocol.effects import StartAgent
from zfabric.protocol.ids import MEMBER, Address

Ended = Callable[[float, m.Pulled | m.PullFailed, bytes], None]
"""Called with (now, how a copy ended, the agent's incarnation). A finished copy is not yet sealed."""
COPIES_MAX = 16
"""Nodes that are remembered to have a copy."""


class _Copy(NamedTuple):
    size: int
    sources: m.Ids
    ended: Ended


class Copies:
    """The copies under way."""

    def __init__(self, tables: Tables, node: bytes) -> None:
        self.tables = tables
        self.node = node
        self._wanted: dict[bytes, _Copy] = {}
        self._agent: ProcessRecord | None = None
        self._requested = False
        """Whether an agent was started; it restarts by itself."""
        self._nodes = m.NodeTable(0, ())
        self.copied_bytes: Counter[bytes] = Counter()
        """Bytes copied here, by source; empty if several were asked."""

    def __len__(self) -> int:
        return len(self._wanted)

    # -- where copies are --

    def offer(self, record: AnyObject, node: bytes) -> m.Row:
        """Offer a large value to a node, which then serves it, too: ``(size, node, …)``, in the order to ask."""
        value = record.value
        assert isinstance(value, Stored | Elsewhere)
        size, (retains, *copies) = self.places(value)
        others = [each for each in copies if each != node]
        value.copies = (*others, node)[-COPIES_MAX:]
        return (size, *(each for each in (*others[-1:], retains, *others[:-1]) if each != node))

    def places(self, value: Stored | Elsewhere) -> tuple[int, m.Ids]:
        """A value's size and the nodes that may have it, first the one that retains it."""
        first = value.place if isinstance(value, Elsewhere) else self.node
        return value.size, (first, *(each for each in copies_of(value) if each in self.tables.nodes and each != first))

    # -- copies that come here --

    def pull(self, object_id: bytes, size: int, sources: m.Ids, ended: Ended) -> None:
        """Copy a value from one of these nodes, or replace the sources of a copy under way."""
        known = self._wanted.get(object_id)
        if known is not None and known.size != size:
            self.stop(object_id)  # It was made again with another size.
        self._wanted[object_id] = _Copy(size, sources, ended)
        self._tell(m.Pull(object_id, size, sources))

    def stop(self, object_id: bytes) -> None:
        """Stop a copy, without notice."""
        if self._wanted.pop(object_id, None) is not None:
            self._tell(m.StopPull(object_id))

    def discard(self, message: m.Pulled, agent: bytes) -> None:
        """Free the room of an unneeded copy."""
        self.tables.store.seal(message.object_id, message.offset, message.size, agent, True)
        record = self.tables.find(message.object_id)
        if record is None or type(record.value) is not Stored:
            self.tables.store.free(message.object_id)

    def _tell(self, message: m.Message) -> None:
        if self._agent is not None and self._agent.incarnation in self.tables.processes:
            self.tables.send_to_client(self._agent, message)

    def nodes_changed(self, table: m.NodeTable) -> None:
        """Pass the nodes to the agent; start it if there are others."""
        self._nodes = table
        if len(table.rows) > 1 and not self._requested:
            self._requested = True
            self.tables.emit(StartAgent())
        self._tell(table)

    def on_agent_ready(self, transition: AgentReady) -> None:
        """Repeat the nodes and missing copies to a new agent."""
        self._agent = transition.process
        self._tell(self._nodes)
        for object_id, copy in self._wanted.items():
            self._tell(m.Pull(object_id, copy.size, copy.sources))

    def on_pulled(self, now: float, source: Address, message: m.Pulled) -> None:
        """Accept a finished copy."""
        if source[1:] not in self.tables.processes:
            self.tables.count("refused")
            return
        copy = self._wanted.pop(message.object_id, None)
        if copy is None:
            self.discard(message, source[1:])
        else:
            self.tables.count("copied")
            self.copied_bytes[copy.sources[0] if len(copy.sources) == 1 else b""] += message.size
            copy.ended(now, message, source[1:])

    def on_pull_failed(self, now: float, source: Address, message: m.PullFailed) -> None:
        """Accept a failed copy."""
        copy = self._wanted.pop(message.object_id, None)
        if copy is not None:
            copy.ended(now, message, source[1:])

    # -- pairs of nodes --

    def on_probe_pairs(self, now: float, source: Address, message: m.ProbePairs) -> None:
        """Have the agent probe its pairs. Without one, the other nodes notice."""
        if self._agent is not None and self._agent.incarnation in self.tables.processes:
            self._tell(message)
        else:
            self._tell_member(m.PairsProbed(message.number, ()))

    def on_agent_reports(self, now: float, source: Address, message: m.PairsProbed | m.PeersSilent) -> None:
        """Pass on which nodes are out of the agent's reach."""
        if self._agent is not None and source[1:] == self._agent.incarnation:
            self._tell_member(message)

    def _tell_member(self, message: m.Message) -> None:
        self.tables.send(MEMBER + self.tables.address[1:], message)
